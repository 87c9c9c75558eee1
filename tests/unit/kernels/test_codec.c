/* Quantized tiles against their definition: a dense rotation and bounds in f64, codes read from the
 * planes one at a time, every instruction set (and as test_cuda_codec the GPU) against the portable
 * one, attention on codes against attention on the decoded tile, and the residual window against
 * its definition. */
#include <float.h>

#include "quant/codec.h"
#include "quant/hadamard.h"
#include "quant/residual.h"
#include "quant/types.h"
#include "tests/unit/kernels/codec_reference.h"
#include "tests/unit/kernels/ops_each.h"

enum { TOKENS = SPW_TILE_TOKENS, MOST_DIM = 256, MOST_HEADS = 2, CANARY = 64 };

static const uint32_t dims[] = {2,  4,  6,  8,   10,  12,  16,  24, 40,
                                64, 80, 96, 112, 128, 160, 192, 256};
static const enum spw_dtype dtypes[] = {SPW_DTYPE_F32, SPW_DTYPE_BF16, SPW_DTYPE_F16};

static uint64_t rng;

static double uniform(void)
{
    return each_uniform(&rng);
}

/* About normal: twelve uniforms have variance 4. */
static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += uniform();
    return sum / 2;
}

/* ---- a tile and its numbers ---- */

struct sample {
    uint32_t heads, dim;
    enum spw_dtype dtype;
    char *tile;                                     /* exact */
    unsigned char *qtile[SPW_QFORMAT_EXACT];        /* by the portable encoder */
    double x[2][MOST_HEADS][TOKENS][MOST_DIM];      /* K, V: the numbers of the exact tile */
    double turned[2][MOST_HEADS][TOKENS][MOST_DIM]; /* rotated by the dense matrix */
};

/* Element index in an exact tile of type t. */
static size_t exact_index(const struct sample *s, enum spw_dtype t, int values, uint32_t head,
                          uint32_t j, uint32_t c)
{
    size_t n = (size_t)TOKENS * s->dim;
    return ((values ? s->heads : 0) + head) * n +
           (values ? spw_tile_v_index(s->dim, t, j, c) : spw_tile_k_index(s->dim, t, j, c));
}

static void put(struct sample *s, int values, uint32_t head, uint32_t j, uint32_t c, double x)
{
    size_t at = exact_index(s, s->dtype, values, head, j, c);
    each_store(s->tile, at, s->dtype, x);
    s->x[values][head][j][c] = each_load(s->tile, at, s->dtype);
}

static struct sample *sample_new(uint32_t heads, uint32_t dim, enum spw_dtype dtype)
{
    struct sample *s = calloc(1, sizeof *s);
    s->heads = heads, s->dim = dim, s->dtype = dtype;
    s->tile =
        aligned_alloc(64, spw_align_up(spw_tile_bytes(heads, spw_tile_square(dim), dtype), 64));
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++) {
        size_t bytes = spw_qtile_bytes(heads, spw_tile_square(dim), (enum spw_qformat)f);
        s->qtile[f] = aligned_alloc(64, spw_align_up(bytes + CANARY, 64));
        memset(s->qtile[f], 0xa5, bytes + CANARY);
    }
    return s;
}

static void sample_free(struct sample *s)
{
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++)
        free(s->qtile[f]);
    free(s->tile);
    free(s);
}

/* Channel offsets far above the spread, as key biases are, and a spread of token norms. */
static void fill(struct sample *s, double offset, double norms)
{
    for (int values = 0; values < 2; values++)
        for (uint32_t head = 0; head < s->heads; head++)
            for (uint32_t c = 0; c < s->dim; c++) {
                double base = values ? 0 : offset * normal();
                for (uint32_t j = 0; j < TOKENS; j++)
                    put(s, values, head, j, c, base + exp(norms * (j % 7)) * normal());
            }
}

/* One element at a time: a sum over the matrix' rows. */
static void rotate_dense(const double *x, double *y, uint32_t n, uint32_t block)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (uint32_t j = i / block * block; j < (i / block + 1) * block; j++)
            y[i] += __builtin_popcount((i & j) % block) % 2 ? -x[j] : x[j];
        y[i] /= sqrt(block);
    }
}

static uint32_t block_of(const struct sample *s, int values)
{
    uint32_t block = 1;
    while (s->dim % (2 * block) == 0 && (!values || block < 64))
        block *= 2;
    return block;
}

static void turn(struct sample *s)
{
    for (int values = 0; values < 2; values++)
        for (uint32_t head = 0; head < s->heads; head++)
            for (uint32_t j = 0; j < TOKENS; j++)
                rotate_dense(s->x[values][head][j], s->turned[values][head][j], s->dim,
                             block_of(s, values));
}

static uint32_t run(const struct spw_kernel *kernel, const struct sample *s,
                    enum spw_qformat format, void *qtile, enum each_order order)
{
    uint32_t not_finite = 0;
    struct spw_codec_args a = {s->tile,  qtile,  s->heads,   {s->dim, s->dim},
                               s->dtype, format, &not_finite};
    each_run(kernel, &a, order);
    return not_finite;
}

/* Of the instruction sets, or of the portable one and the GPU; NULL: there are no more. */
static const struct spw_kernel *kernel_of(int i)
{
    int n = 1;
    EACH_TABLE(table)
    {
        if (n == i && table != each_portable())
            return table->kv_quantize;
        n += table != each_portable();
    }
    return i ? NULL : each_portable()->kv_quantize;
}

/* All formats by the portable encoder; the other instruction sets must give the same bytes. */
static bool encode_all(struct sample *s)
{
    uint32_t bad = 0;
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++) {
        enum spw_qformat format = (enum spw_qformat)f;
        size_t bytes = spw_qtile_bytes(s->heads, spw_tile_square(s->dim), format);
        unsigned char *other = aligned_alloc(64, spw_align_up(bytes + CANARY, 64));
        bad |= run(kernel_of(0), s, format, s->qtile[f], EACH_FORWARD);
        for (int isa = 0; kernel_of(isa); isa++) {
            memset(other, 0xa5, bytes + CANARY);
            bad |= run(kernel_of(isa), s, format, other, EACH_BACKWARD);
            CHECK_MSG(!memcmp(other, s->qtile[f], bytes + CANARY), "%s, head dim %u, %s, format %d",
                      kernel_of(isa)->name, s->dim, spw_dtype_name(s->dtype), f);
        }
        for (int i = 0; i < CANARY; i++)
            CHECK(s->qtile[f][bytes + (size_t)i] == 0xa5);
        if (f) /* a smaller format is the beginning of a larger one */
            CHECK(!memcmp(
                s->qtile[f], s->qtile[f - 1],
                spw_qtile_bytes(s->heads, spw_tile_square(s->dim), (enum spw_qformat)(f - 1))));
        free(other);
    }
    return !bad;
}

/* ---- reading a quantized tile one element at a time ---- */

static double bf16_at(const unsigned char *p)
{
    return (double)each_bits_float((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
}

static double step_at(const struct sample *s, const unsigned char *q, int values, uint32_t head,
                      uint32_t j, uint32_t c)
{
    struct spw_qtile_head at = spw_qtile_locate(s->heads, spw_tile_square(s->dim), head);
    return bf16_at(q + (values ? at.v_steps : at.k_steps) + 2 * ((size_t)c / 64 * TOKENS + j));
}

static double mean_at(const struct sample *s, const unsigned char *q, uint32_t head, uint32_t c)
{
    float mean;
    memcpy(&mean,
           q + spw_qtile_locate(s->heads, spw_tile_square(s->dim), head).k_means + 4 * (size_t)c,
           4);
    return (double)mean;
}

static uint32_t nibble_at(const struct sample *s, const unsigned char *q, int values, uint32_t head,
                          uint32_t j, uint32_t c, bool low)
{
    struct spw_qtile_head at = spw_qtile_locate(s->heads, spw_tile_square(s->dim), head);
    const size_t in_plane =
        values ? spw_qtile_v_index(s->dim, j, c) : spw_qtile_k_index(s->dim, j, c);
    const size_t plane = values ? (low ? at.v_low : at.v_high) : (low ? at.k_low : at.k_high);
    return q[plane + in_plane] >> codec_shift(values, j, c) & 15;
}

/* The quantized value of one element of the rotated head: minus the stored mean. */
static double wanted_at(const struct sample *s, int values, uint32_t head, uint32_t j, uint32_t c)
{
    double mean = values ? 0 : mean_at(s, s->qtile[SPW_QFORMAT_INT8], head, c);
    return s->turned[values][head][j][c] - mean;
}

/* ---- checks ---- */

/* The bound of f32 rounding: the sums of the rotation and of the mean, of numbers up to `most`; and
 * numbers that the shrink turns into zero. */
static double slack_of(const struct sample *s, int values, uint32_t head)
{
    double most = 0;
    for (uint32_t j = 0; j < TOKENS; j++)
        for (uint32_t c = 0; c < s->dim; c++)
            most = fmax(most, fabs(s->x[values][head][j][c]));
    return 16 * sqrt(s->dim) * most * 0x1p-24 + 0x1p-120;
}

static void check_mean(const struct sample *s, uint32_t head)
{
    for (uint32_t c = 0; c < s->dim; c++) {
        double mean = 0;
        for (uint32_t j = 0; j < TOKENS; j++)
            mean += s->turned[0][head][j][c] / TOKENS;
        if (fabs(mean) < (double)FLT_MAX)
            CHECK(fabs(mean_at(s, s->qtile[0], head, c) - mean) <= slack_of(s, 0, head));
    }
}

/* The steps, both codes and both errors of one position's group; adds up (error / step)^2. */
static void check_group(const struct sample *s, int values, uint32_t head, uint32_t j,
                        uint32_t from, double slack, double *squares)
{
    const unsigned char *q = s->qtile[SPW_QFORMAT_INT8];
    uint32_t end = from + 64 < s->dim ? from + 64 : s->dim;
    double most = 0, step = step_at(s, q, values, head, j, from);
    for (uint32_t c = from; c < end; c++)
        most = fmax(most, fabs(wanted_at(s, values, head, j, c)));
    /* never below what is needed, at most one bf16 step above it */
    CHECK(step * 128 >= most - slack);
    CHECK(step <= fmax((most + slack) / 128 * (1 + 0x1p-7), 0x1p-100));
    for (uint32_t c = from; c < end; c++) {
        double x = wanted_at(s, values, head, j, c);
        uint32_t high = nibble_at(s, q, values, head, j, c, false);
        uint32_t low = nibble_at(s, q, values, head, j, c, true);
        double error = ((double)(16 * high + low) - 127.5) * step - x;
        double coarse = ((double)high - 7.5) * 16 * step - x;
        CHECK(fabs(error) <= step / 2 * (1 + 1e-4) + slack);
        CHECK(fabs(coarse) <= step * 8 * (1 + 1e-4) + slack);
        /* the 4-bit midrise code of the same range, unless x lies on a border */
        double code = step > 0 ? x / (16 * step) + 8 : 8, near = step > 0 ? slack / step : 0;
        if (fabs(code - round(code)) > 1e-4 + near)
            CHECK((double)high == fmin(fmax(floor(code), 0), 15));
        if (step > 0)
            squares[0] += error * error / (step * step),
                squares[1] += coarse * coarse / (step * step);
    }
}

static void check_codes(const struct sample *s, double *squares, double *n)
{
    for (int values = 0; values < 2; values++)
        for (uint32_t head = 0; head < s->heads; head++) {
            double slack = slack_of(s, values, head);
            if (!values)
                check_mean(s, head);
            for (uint32_t j = 0; j < TOKENS; j++)
                for (uint32_t c = 0; c < s->dim; c += 64)
                    check_group(s, values, head, j, c, slack, squares);
            *n += (double)TOKENS * s->dim;
        }
}

/* The decoder's value of each element, against planes, steps and means that are read here: rotated,
 * and rotated back as an exact tile of every type. */
static void check_decoded(const struct sample *s, enum spw_qformat format)
{
    static double turned[TOKENS][MOST_DIM], x[MOST_DIM];
    static float rotated[TOKENS * MOST_DIM];
    const unsigned char *q = s->qtile[format];
    char *tile = malloc(spw_tile_bytes(s->heads, spw_tile_square(s->dim), SPW_DTYPE_F32));
    enum spw_dtype t = dtypes[check_random(&rng) % 3];
    codec_decode(q, format, s->heads, spw_tile_square(s->dim), t, tile);
    double most = t == SPW_DTYPE_F16 ? 65504 : t == SPW_DTYPE_BF16 ? 0x1.fep127 : (double)FLT_MAX;
    for (int values = 0; values < 2; values++)
        for (uint32_t head = 0; head < s->heads; head++) {
            double slack = slack_of(s, values, head);
            codec_decode_rotated(q, format, s->heads, spw_tile_square(s->dim), head, values,
                                 rotated);
            for (uint32_t j = 0; j < TOKENS; j++) {
                bool fine = format == SPW_QFORMAT_INT8 || (format && !values);
                for (uint32_t c = 0; c < s->dim; c++) {
                    double code = 16 * nibble_at(s, q, values, head, j, c, false) - 120.0;
                    if (fine)
                        code += nibble_at(s, q, values, head, j, c, true) - 7.5;
                    turned[j][c] = code * step_at(s, q, values, head, j, c) +
                                   (values ? 0 : mean_at(s, q, head, c));
                    if (fabs(turned[j][c]) < (double)FLT_MAX)
                        CHECK(fabs((double)rotated[j * s->dim + c] - turned[j][c]) <= slack);
                }
                rotate_dense(turned[j], x, s->dim, block_of(s, values));
                for (uint32_t c = 0; c < s->dim; c++) {
                    double got = each_load(tile, exact_index(s, t, values, head, j, c), t);
                    double want = fmin(fmax(x[c], -most), most);
                    CHECK(fabs(got - want) <= 16 * slack + each_ulp(want, t));
                }
            }
        }
    free(tile);
}

static void check_sample(struct sample *s, double *squares, double *n)
{
    turn(s);
    CHECK(encode_all(s));
    check_codes(s, squares, n);
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++)
        check_decoded(s, (enum spw_qformat)f);
}

static void check_round_trips(void)
{
    double squares[2] = {0}, n = 0;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (int t = 0; t < 3; t++) {
            struct sample *s = sample_new(dims[i] > 100 ? 1 : MOST_HEADS, dims[i], dtypes[t]);
            fill(s, t == 0 ? 20 : 1, t == 1 ? 0.4 : 0);
            check_sample(s, squares, &n);
            sample_free(s);
        }
    /* An error spread evenly over a step has variance 1/12 of it squared, and 256 times that for a
     * step that is 16 times as wide: 8 is the bound, 4.62 the root. Heads of 2 to 10 channels have
     * their greatest number at the end of the range more often, hence 5 %. */
    double fine = sqrt(12 * squares[0] / n), coarse = sqrt(12 * squares[1] / n) / 16;
    CHECK_MSG(fabs(fine - 1) < 0.05 && fabs(coarse - 1) < 0.05, "%g %g", fine, coarse);
}

/* ---- extreme values ---- */

static void check_extremes(void)
{
    static const double sizes[] = {0,       0x1p-149, 0x1p-130, 0x1p-126, 0x1p-90, 1e-20,
                                   0x1p-14, 60000,    1e20,     0x1p100,  1e38};
    double squares[2] = {0}, n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int t = 0; t < 3; t++) {
            uint32_t dim = dims[check_random(&rng) % (sizeof dims / sizeof dims[0])];
            if (dtypes[t] == SPW_DTYPE_F16 && sizes[i] > 65504)
                continue;
            struct sample *s = sample_new(1, dim, dtypes[t]);
            for (int values = 0; values < 2; values++)
                for (uint32_t j = 0; j < TOKENS; j++)
                    for (uint32_t c = 0; c < dim; c++)
                        put(s, values, 0, j, c, sizes[i] * uniform());
            check_sample(s, squares, &n);
            sample_free(s);
        }
}

/* Every element has the largest magnitude, with signs that the rotation adds up or does not; a tile
 * of zeros is decoded to zeros, and so are the zero tokens of any other tile. */
static void check_largest_and_zero(void)
{
    static float rotated[TOKENS * MOST_DIM];
    double squares[2] = {0}, n = 0;
    for (int t = 0; t < 3; t++)
        for (int pattern = 0; pattern < 3; pattern++) {
            struct sample *s = sample_new(1, 128, dtypes[t]);
            double most = t == 2 ? 65504 : t == 1 ? 0x1.fep127 : (double)FLT_MAX;
            for (int values = 0; values < 2; values++)
                for (uint32_t j = 0; j < TOKENS; j++)
                    for (uint32_t c = 0; c < 128; c++)
                        put(s, values, 0, j, c,
                            pattern == 0   ? most
                            : pattern == 1 ? most * (check_random(&rng) % 2 ? 1 : -1)
                                           : most * (j % 2 ? 1 : -1));
            check_sample(s, squares, &n);
            sample_free(s);
        }
    struct sample *s = sample_new(2, 80, SPW_DTYPE_BF16);
    fill(s, 0, 0);
    for (uint32_t j = 0; j < TOKENS; j++)
        for (uint32_t c = 0; c < 80; c++) {
            put(s, 0, 0, j, c, 0);
            if (j % 5 == 0)
                put(s, 1, 1, j, c, j % 2 ? -0.0 : 0.0);
        }
    check_sample(s, squares, &n);
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++) {
        codec_decode_rotated(s->qtile[f], (enum spw_qformat)f, 2, spw_tile_square(80), 0, false,
                             rotated);
        for (uint32_t i = 0; i < TOKENS * 80; i++)
            CHECK(rotated[i] == 0);
        codec_decode_rotated(s->qtile[f], (enum spw_qformat)f, 2, spw_tile_square(80), 1, true,
                             rotated);
        for (uint32_t i = 0; i < TOKENS * 80; i++)
            CHECK((rotated[i] == 0) == (i / 80 % 5 == 0));
    }
    sample_free(s);
}

/* One huge number: its own position and group of V lose their detail, and no other does. In K all
 * positions see it through the mean, which has 1/128 of it. */
static void check_outlier(void)
{
    struct sample *s = sample_new(1, 128, SPW_DTYPE_F32);
    double squares[2] = {0}, n = 0;
    fill(s, 1, 0);
    put(s, 0, 0, 77, 5, 1e6);
    put(s, 1, 0, 77, 5, 1e30);
    check_sample(s, squares, &n);
    const unsigned char *q = s->qtile[SPW_QFORMAT_INT8];
    for (uint32_t j = 0; j < TOKENS; j++) {
        CHECK((step_at(s, q, 1, 0, j, 0) > 1) == (j == 77));
        CHECK(step_at(s, q, 1, 0, j, 64) < 1);
        CHECK(step_at(s, q, 0, 0, j, 0) < (j == 77 ? 1 : 1.0 / 100) * 1e6 / sqrt(128) / 128 + 1);
    }
    sample_free(s);
}

static void check_not_finite(void)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int draw = 0; draw < each_draws(120, 18); draw++) {
        uint32_t dim = dims[check_random(&rng) % (sizeof dims / sizeof dims[0])];
        struct sample *s = sample_new(2, dim, dtypes[draw % 3]);
        int values = draw / 3 % 2;
        uint32_t head = (uint32_t)check_range(&rng, 0, 1), j = (uint32_t)check_range(&rng, 0, 127);
        uint32_t c = (uint32_t)check_range(&rng, 0, dim - 1);
        fill(s, 1, 0);
        size_t at = exact_index(s, s->dtype, values, head, j, c);
        float x = (float)bad[draw % 9 / 3];
        uint32_t bits = each_float_bits(x), narrow = bits >> 16;
        if (s->dtype == SPW_DTYPE_F16)
            narrow = (bits >> 16 & 0x8000) | (isnan(x) ? 0x7e01 : 0x7c00);
        uint16_t small = (uint16_t)narrow;
        for (int isa = 0; kernel_of(isa); isa++) {
            CHECK(!run(kernel_of(isa), s, SPW_QFORMAT_INT8, s->qtile[2], EACH_FORWARD));
            put(s, values, head, j, c, 0);
            if (s->dtype == SPW_DTYPE_F32)
                memcpy(s->tile + 4 * at, &x, 4);
            else
                memcpy(s->tile + 2 * at, &small, 2);
            CHECK_MSG(run(kernel_of(isa), s, SPW_QFORMAT_INT8, s->qtile[2], EACH_FORWARD),
                      "%g in %s of position %u, channel %u of %u", (double)x, values ? "V" : "K", j,
                      c, dim);
            put(s, values, head, j, c, 0);
        }
        sample_free(s);
    }
}

/* ---- attention on codes ---- */

/* Attention of one query in f32 on the codes: q is rotated once, the mean is one dot product for
 * each tile, a step is one product for each score; weights are multiplied by steps, and the output
 * is rotated back once. */
static void attend_codes(const struct sample *s, enum spw_qformat format, const float *query,
                         float scale, float *out)
{
    const unsigned char *q = s->qtile[format];
    float turned[MOST_DIM], p[TOKENS], offset = 0, most = -INFINITY, sum = 0;
    memcpy(turned, query, s->dim * sizeof(float));
    spw_hadamard_rotate(turned, s->dim, spw_hadamard_k_block(s->dim));
    for (uint32_t c = 0; c < s->dim; c++)
        offset += turned[c] * (float)mean_at(s, q, 0, c);
    for (uint32_t j = 0; j < TOKENS; j++) {
        p[j] = offset;
        for (uint32_t c = 0, end; c < s->dim; c = end) {
            float dot = 0;
            for (end = c; end < s->dim && end < c / 64 * 64 + 64; end++) {
                float code = (float)nibble_at(s, q, 0, 0, j, end, false) * 16 - 120;
                if (format != SPW_QFORMAT_INT4)
                    code += (float)nibble_at(s, q, 0, 0, j, end, true) - 7.5f;
                dot += turned[end] * code;
            }
            p[j] += dot * (float)step_at(s, q, 0, 0, j, c);
        }
        p[j] *= scale;
        most = p[j] > most ? p[j] : most;
    }
    for (uint32_t j = 0; j < TOKENS; j++)
        sum += p[j] = expf(p[j] - most);
    for (uint32_t c = 0; c < s->dim; c++) {
        out[c] = 0;
        for (uint32_t j = 0; j < TOKENS; j++) {
            float code = (float)nibble_at(s, q, 1, 0, j, c, false) * 16 - 120;
            if (format == SPW_QFORMAT_INT8)
                code += (float)nibble_at(s, q, 1, 0, j, c, true) - 7.5f;
            out[c] += p[j] * (float)step_at(s, q, 1, 0, j, c) * code;
        }
        out[c] /= sum;
    }
    spw_hadamard_rotate(out, s->dim, spw_hadamard_v_block(s->dim));
}

/* f64 attention on the exact tile that the quantized one stands for; size: |p v| summed. */
static void attend_decoded(const struct sample *s, const char *tile, const float *query,
                           double scale, double *out, double *size)
{
    double p[TOKENS], most = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < TOKENS; j++) {
        p[j] = 0;
        for (uint32_t c = 0; c < s->dim; c++)
            p[j] += scale * (double)query[c] *
                    each_load(tile, exact_index(s, s->dtype, 0, 0, j, c), s->dtype);
        most = fmax(most, p[j]);
    }
    for (uint32_t j = 0; j < TOKENS; j++)
        sum += p[j] = exp(p[j] - most);
    for (uint32_t c = 0; c < s->dim; c++) {
        out[c] = size[c] = 0;
        for (uint32_t j = 0; j < TOKENS; j++) {
            double part =
                p[j] / sum * each_load(tile, exact_index(s, s->dtype, 1, 0, j, c), s->dtype);
            out[c] += part, size[c] += fabs(part);
        }
    }
}

static void check_attention(void)
{
    double worst = 0;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (int f = 0; f < SPW_QFORMAT_EXACT; f++) {
            struct sample *s = sample_new(1, dims[i], SPW_DTYPE_F32);
            float query[MOST_DIM], got[MOST_DIM], scale = 1 / sqrtf((float)s->dim);
            double want[MOST_DIM], size[MOST_DIM];
            fill(s, 2, 0);
            for (uint32_t c = 0; c < s->dim; c++)
                query[c] = (float)normal();
            CHECK(encode_all(s));
            char *tile = malloc(spw_tile_bytes(1, spw_tile_square(s->dim), SPW_DTYPE_F32));
            codec_decode(s->qtile[f], (enum spw_qformat)f, 1, spw_tile_square(s->dim),
                         SPW_DTYPE_F32, tile);
            attend_codes(s, (enum spw_qformat)f, query, scale, got);
            attend_decoded(s, tile, query, (double)scale, want, size);
            double error = 0, norm = 0;
            for (uint32_t c = 0; c < s->dim; c++)
                error += pow((double)got[c] - want[c], 2), norm += size[c] * size[c];
            worst = fmax(worst, sqrt(error / norm));
            free(tile);
            sample_free(s);
        }
    CHECK_MSG(worst <= 1e-5, "%g", worst);
}

/* ---- sizes and the window ---- */

static void check_sizes(void)
{
    for (uint32_t heads = 1; heads <= 8; heads++)
        for (uint32_t dim = 2; dim <= 512; dim += 2) {
            struct spw_qtile_head last = spw_qtile_locate(heads, spw_tile_square(dim), heads - 1);
            struct spw_qtile_head first = spw_qtile_locate(heads, spw_tile_square(dim), 0);
            size_t k = spw_qtile_k_plane_bytes(dim), v = spw_qtile_v_plane_bytes(dim);
            /* each piece ends where the next one starts */
            CHECK(first.k_means == 0 && first.v_steps == last.k_steps + spw_qtile_steps_bytes(dim));
            CHECK(first.k_high == last.v_steps + spw_qtile_steps_bytes(dim));
            CHECK(first.v_high == last.k_high + k && first.k_low == last.v_high + v);
            CHECK(first.k_low == spw_qtile_bytes(heads, spw_tile_square(dim), SPW_QFORMAT_INT4));
            CHECK(first.v_low ==
                  spw_qtile_bytes(heads, spw_tile_square(dim), SPW_QFORMAT_INT8_INT4));
            CHECK(last.v_low + v == spw_qtile_bytes(heads, spw_tile_square(dim), SPW_QFORMAT_INT8));
            CHECK(last.k_steps % 64 == 0 && last.v_steps % 64 == 0 && last.k_high % 64 == 0 &&
                  last.v_high % 64 == 0 && last.k_low % 64 == 0 && last.v_low % 64 == 0);
        }
    for (uint32_t dim = 64; dim <= 256; dim *= 2) {
        double exact = (double)spw_tile_bytes(8, spw_tile_square(dim), SPW_DTYPE_BF16);
        CHECK((double)spw_qtile_bytes(8, spw_tile_square(dim), SPW_QFORMAT_INT8) <= 0.54 * exact);
        CHECK((double)spw_qtile_bytes(8, spw_tile_square(dim), SPW_QFORMAT_INT8_INT4) <=
              0.42 * exact);
        CHECK((double)spw_qtile_bytes(8, spw_tile_square(dim), SPW_QFORMAT_INT4) <= 0.29 * exact);
    }
}

/* Against the promise in tokens: a query reads only complete tiles quantized, never the sink, and
 * never one of the newest R tokens before its block. */
static void check_window(void)
{
    for (uint64_t tokens = 0; tokens < 1400; tokens += check_range(&rng, 1, 70)) {
        uint64_t r = spw_residual_tiles(tokens);
        for (uint64_t position = 0; position < 3000; position += check_range(&rng, 1, 50)) {
            uint64_t block = spw_residual_block(position), end = spw_residual_end(block, r);
            for (uint64_t tile = 0; tile < 30; tile++) {
                uint64_t newest = tile * TOKENS + TOKENS - 1, from = position / TOKENS * TOKENS;
                bool want = tile > 0 && newest + tokens < from;
                CHECK((tile >= 1 && tile < end) == want);
                CHECK((block >= spw_residual_until(tile, r)) == want);
            }
        }
    }
    CHECK(spw_residual_until(5, UINT64_MAX) == UINT64_MAX);
    CHECK(spw_residual_end(UINT64_MAX, UINT64_MAX) == 1);
}

/* ---- two widths ---- */

/* The exact tile of one half of another one: its K, or its V, in the place of both. */
static char *tile_of_half(const char *tile, uint32_t heads, struct spw_tile_widths w,
                          enum spw_dtype t, bool values)
{
    const uint32_t width = values ? w.v : w.k;
    const size_t bytes = spw_tile_head_bytes(width, t);
    char *out = aligned_alloc(64, spw_align_up(2 * heads * bytes + 1, 64));
    for (uint32_t i = 0; i < 2 * heads; i++)
        memcpy(out + i * bytes, tile + spw_tile_head_at(heads, w, t, i % heads, values), bytes);
    return out;
}

static unsigned char *encode_widths(const char *tile, uint32_t heads, struct spw_tile_widths w,
                                    enum spw_dtype t, int isa, enum spw_qformat format)
{
    const size_t bytes = spw_qtile_bytes(heads, w, format);
    uint32_t not_finite = 0;
    unsigned char *q = aligned_alloc(64, spw_align_up(bytes + CANARY, 64));
    memset(q, 0xa5, bytes + CANARY);
    struct spw_codec_args a = {tile, q, heads, w, t, format, &not_finite};
    each_run(kernel_of(isa), &a, EACH_BACKWARD);
    CHECK(!not_finite && q[bytes] == 0xa5);
    return q;
}

/* A tile whose K and V differ in width has the pieces of two tiles that have one width each. */
static void check_widths(uint32_t heads, struct spw_tile_widths w, enum spw_dtype t)
{
    const size_t bytes = spw_tile_bytes(heads, w, t), size = spw_dtype_bytes(t);
    char *tile = aligned_alloc(64, spw_align_up(bytes, 64));
    CHECK(bytes == (size_t)TOKENS * heads * (w.k + w.v) * size);
    CHECK(spw_tile_head_at(heads, w, t, heads, true) == bytes);
    for (size_t i = 0; i < bytes / size; i++)
        each_store(tile, i, t, normal());
    char *half[2] = {tile_of_half(tile, heads, w, t, false), tile_of_half(tile, heads, w, t, true)};
    for (int f = 0; f < SPW_QFORMAT_EXACT; f++)
        for (int isa = 0; kernel_of(isa); isa++) {
            const enum spw_qformat format = (enum spw_qformat)f;
            unsigned char *q = encode_widths(tile, heads, w, t, isa, format);
            for (int values = 0; values < (w.v ? 2 : 1); values++) {
                const struct spw_tile_widths one = spw_tile_square(values ? w.v : w.k);
                unsigned char *p = encode_widths(half[values], heads, one, t, isa, format);
                float mine[TOKENS * MOST_DIM], its[TOKENS * MOST_DIM];
                for (uint32_t head = 0; head < heads; head++) {
                    codec_decode_rotated(q, format, heads, w, head, values, mine);
                    codec_decode_rotated(p, format, heads, one, head, values, its);
                    CHECK(!memcmp(mine, its, (size_t)TOKENS * one.k * sizeof *mine));
                }
                free(p);
            }
            free(q);
        }
    free(half[0]);
    free(half[1]);
    free(tile);
}

/* ---- numbers of all sizes ---- */

static double largest(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 ? 0x1.fffffep127 : t == SPW_DTYPE_F16 ? 65504 : 0x1.fep127;
}

/* Kinds of tiles: magnitudes of one order; zeros of both signs, and all that lies between denormal
 * and large; the largest there is; offsets, and one outlier. */
static double number_of(int kind, size_t i, double size)
{
    const double u = uniform();
    return kind == 0   ? size * u
           : kind == 1 ? i % 5   ? u * exp2((double)check_range(&rng, 0, 200) - 149)
                         : i % 2 ? 0
                                 : -0.0
           : kind == 2 ? size * (i % 3 ? 1 : -1)
           : i == 77   ? size
                       : 3 + u;
}

/* Every kernel gives the same bytes, also for heads wider than those above. */
static void check_kinds(uint32_t k)
{
    for (int kind = 0; kind < 4; kind++) {
        const enum spw_dtype t = dtypes[check_range(&rng, 0, 2)];
        const uint32_t heads = k > MOST_DIM ? 1 : (uint32_t)check_range(&rng, 1, 3);
        const uint32_t v = check_range(&rng, 0, 2) ? k : 2 * (uint32_t)check_range(&rng, 0, 64);
        const struct spw_tile_widths w = {k, v};
        const enum spw_qformat format = (enum spw_qformat)check_range(&rng, 0, SPW_QFORMAT_INT8);
        const double most = largest(t);
        const double size = kind ? most : exp2((double)check_range(&rng, 0, 18) - 9);
        char *tile = aligned_alloc(64, spw_align_up(spw_tile_bytes(heads, w, t), 64));
        for (size_t i = 0; i < (size_t)TOKENS * heads * (w.k + w.v); i++)
            each_store(tile, i, t, fmax(fmin(number_of(kind, i, size), most), -most));
        unsigned char *want = encode_widths(tile, heads, w, t, 0, format);
        for (int i = 1; kernel_of(i); i++) {
            unsigned char *q = encode_widths(tile, heads, w, t, i, format);
            CHECK_MSG(!memcmp(q, want, spw_qtile_bytes(heads, w, format)),
                      "kind %d: %u heads of %u and %u, %s, format %d", kind, heads, w.k, w.v,
                      spw_dtype_name(t), (int)format);
            free(q);
        }
        free(want);
        free(tile);
    }
}

int main(void)
{
    static const uint32_t wide[] = {2, 6, 10, 16, 48, 64, 80, 96, 128, 256, 288, 1024};
    if (!each_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    if (!EACH_GPU) {
        check_sizes();
        check_window();
        check_round_trips();
        check_extremes();
        check_outlier();
        check_attention();
    }
    check_largest_and_zero();
    check_not_finite();
    for (int i = 0; i < 12 && !EACH_GPU; i++) { /* with and without V */
        const struct spw_tile_widths w = {2 * (uint32_t)check_range(&rng, 1, 128),
                                          i % 4 ? 2 * (uint32_t)check_range(&rng, 1, 128) : 0};
        check_widths((uint32_t)check_range(&rng, 1, MOST_HEADS), w, dtypes[i % 3]);
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        check_kinds(wide[i]);
    return check_done();
}
