/* The CUDA encoder against the CPU's: the same bytes, for every type, format and head size, for
 * values of every size, and the same answer to what is not finite. */
#include "quant/codec.h"
#include "quant/types.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/unit/kernels/ops_cpu_each.h"

static uint64_t rng;

static const uint32_t dims[] = {64, 128, 80, 96, 256, 2, 6, 10, 16, 48, 288, 1024};
static const enum spw_dtype types[] = {SPW_DTYPE_F32, SPW_DTYPE_BF16, SPW_DTYPE_F16};

enum { N_DIMS = sizeof dims / sizeof dims[0], CANARY = 64 };

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* Codes of the given tile by one of the two, as bytes that hold 0xa5 wherever nothing was written.
 */
static unsigned char *encode(struct spw_codec_args a, bool cuda, uint32_t *not_finite)
{
    size_t exact = spw_tile_bytes(a.n_kv_heads, a.widths, a.dtype);
    size_t bytes = spw_qtile_bytes(a.n_kv_heads, a.widths, a.format) + CANARY;
    unsigned char *qtile = aligned_alloc(64, spw_align_up(bytes, 64));
    memset(qtile, 0xa5, bytes);
    *not_finite = 0;
    a.qtile = qtile, a.not_finite = not_finite;
    if (!cuda) {
        each_run(&spw_codec_encode_kernel_portable, &a, EACH_FORWARD);
        return qtile;
    }
    a.tile = cuda_copy_of(a.tile, exact, 0);
    a.qtile = cuda_copy_of(qtile, bytes, 0);
    a.not_finite = cuda_copy_of(not_finite, sizeof *not_finite, 0);
    CHECK(spw_codec_encode_cuda(&a, NULL) == 0);
    cuda_take_back(not_finite, a.not_finite, sizeof *not_finite, 0);
    cuda_take_back(qtile, a.qtile, bytes, 0);
    cuda_take_back(NULL, (void *)a.tile, 0, 0);
    return qtile;
}

static void check_tile(const struct spw_codec_args *a, const char *what, bool finite)
{
    size_t bytes = spw_qtile_bytes(a->n_kv_heads, a->widths, a->format) + CANARY;
    uint32_t theirs, ours;
    unsigned char *expected = encode(*a, false, &theirs), *got = encode(*a, true, &ours);
    CHECK(theirs == !finite);
    CHECK_MSG(ours == theirs && (!finite || !memcmp(expected, got, bytes)),
              "%s: %u heads of %u and %u, %s, format %d: not finite %u, expected %u", what,
              a->n_kv_heads, a->widths.k, a->widths.v, spw_dtype_name(a->dtype), (int)a->format,
              ours, theirs);
    free(expected);
    free(got);
}

static struct spw_codec_args tile_draw(uint32_t head_dim)
{
    struct spw_codec_args a = {.widths = spw_tile_square(head_dim)};
    if (!draw(0, 2)) /* 0: the tile has no V */
        a.widths.v = 2 * (uint32_t)draw(0, 64);
    a.n_kv_heads = head_dim > 256 ? 1 : (uint32_t)draw(1, 3);
    a.dtype = types[draw(0, 2)];
    a.format = (enum spw_qformat)draw(0, SPW_QFORMAT_EXACT - 1);
    a.tile = malloc(spw_tile_bytes(a.n_kv_heads, a.widths, a.dtype));
    return a;
}

static size_t elements(const struct spw_codec_args *a)
{
    return (size_t)SPW_TILE_TOKENS * a->n_kv_heads * (a->widths.k + a->widths.v);
}

/* Kinds of tiles: see `kinds`. */
static double value(int kind, size_t i, double size)
{
    double u = each_uniform(&rng);
    switch (kind) {
    case 0: /* magnitudes of one order */
        return size * u;
    case 1: /* some zeros of both signs, and all that lies between denormal and large */
        return i % 5 ? u * exp2((double)draw(0, 200) - 149) : i % 2 ? 0.0 : -0.0;
    case 2: /* the largest there is */
        return size * (i % 3 ? 1 : -1);
    case 3:
        return 0;
    default: /* offsets, and one outlier */
        return i == 77 ? size : 3 + u;
    }
}

static double largest(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 ? 0x1.fffffep127 : t == SPW_DTYPE_F16 ? 65504 : 0x1.fep127;
}

static void check_kinds(uint32_t head_dim)
{
    static const char *const kinds[] = {"plain", "all magnitudes", "largest", "zero", "outlier"};
    for (int kind = 0; kind < 5; kind++) {
        struct spw_codec_args a = tile_draw(head_dim);
        double size = kind == 0 ? exp2((double)draw(0, 18) - 9) : largest(a.dtype);
        for (size_t i = 0; i < elements(&a); i++) {
            double x = value(kind, i, size), most = largest(a.dtype);
            each_store((void *)a.tile, i, a.dtype, x > most ? most : x < -most ? -most : x);
        }
        check_tile(&a, kinds[kind], true);
        free((void *)a.tile);
    }
}

/* One NaN or infinity, anywhere. */
static void check_not_finite(uint32_t head_dim)
{
    struct spw_codec_args a = tile_draw(head_dim);
    size_t at = draw(0, elements(&a) - 1);
    for (size_t i = 0; i < elements(&a); i++)
        each_store((void *)a.tile, i, a.dtype, each_uniform(&rng));
    uint32_t f32[] = {0x7f800000u, 0xff800000u, 0x7fc00000u};
    uint16_t bf16[] = {0x7f80, 0xff80, 0x7fc0}, f16[] = {0x7c00, 0xfc00, 0x7e01};
    size_t which = draw(0, 2), width = spw_dtype_bytes(a.dtype);
    const void *bits = a.dtype == SPW_DTYPE_F32   ? (const void *)&f32[which]
                       : a.dtype == SPW_DTYPE_F16 ? (const void *)&f16[which]
                                                  : (const void *)&bf16[which];
    memcpy((char *)a.tile + at * width, bits, width);
    check_tile(&a, "not finite", false);
    free((void *)a.tile);
}

static void check_refused(void)
{
    _Alignas(64) static char memory[128];
    struct spw_codec_args a = {memory, memory, 1, {64, 64}, SPW_DTYPE_BF16, 0, (uint32_t *)memory};
    a.format = SPW_QFORMAT_EXACT;
    CHECK(spw_codec_encode_cuda(&a, NULL) == -EINVAL);
    a.format = SPW_QFORMAT_INT8, a.widths.k = 63;
    CHECK(spw_codec_encode_cuda(&a, NULL) == -EINVAL);
    a.widths.k = 64, a.qtile = memory + 16;
    CHECK(spw_codec_encode_cuda(&a, NULL) == -EINVAL);
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    rng = check_seed();
    for (size_t i = 0; i < N_DIMS; i++) {
        check_kinds(dims[i]);
        check_not_finite(dims[i]);
    }
    check_refused();
    return check_done();
}
