/* Rows of x become int8 codes, as quant/codes.h defines them: the first step of a product with
 * quantized weights. */
#include "model/cpu/kernels.h"
#include "model/cpu/linear/linear.h"
#include "base/simd_bytes.h"
#include "quant/codes.h"

enum {
    ROWS = 4, /* of a task: a few microseconds */
    REGISTERS = SPW_CODES_GROUP / SIMD_LANES,
};

static size_t n_tasks(const void *args)
{
    const struct spw_linear_args *a = args;
    return (size_t)spw_div_up(a->m, ROWS);
}

/* Codes of a group as numbers become bytes and sums. */
#if defined(__AVX512F__)

/* Registers 4 i .. 4 i + 3 of numbers become one of bytes. */
SIMD_FN __m512i bytes_of(const i32v *x, __m512i order)
{
    const __m512i low = _mm512_packs_epi32((__m512i)x[0], (__m512i)x[1]);
    const __m512i high = _mm512_packs_epi32((__m512i)x[2], (__m512i)x[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}

/* Neighbours are added until each part has one sum. Bytes that were stored by sixteens and then
 * loaded by 64 would have to reach the L1 first. */
SIMD_FN void store_codes(const i32v *x, struct spw_codes *c)
{
    const __m512i ones = _mm512_set1_epi16(1);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i bytes = bytes_of(x + 4 * i, order);
        _mm512_storeu_si512(c->codes + 64 * i, bytes);
        fours[i] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), ones);
    }
    const __m512i low = _mm512_madd_epi16(_mm512_packs_epi32(fours[0], fours[1]), ones);
    const __m512i high = _mm512_madd_epi16(_mm512_packs_epi32(fours[2], fours[3]), ones);
    __m512i all = _mm512_madd_epi16(_mm512_packs_epi32(low, high), ones);
    all = _mm512_permutexvar_epi32(order, all);
    _mm256_storeu_si256((void *)c->sums, _mm512_cvtepi32_epi16(all));
    const __m512i pairs = _mm512_add_epi32(all, _mm512_srli_epi64(all, 32));
    _mm_storeu_si128((void *)c->sums32, _mm512_cvtepi64_epi16(pairs));
}

#else

SIMD_FN void store_codes(const i32v *x, struct spw_codes *c)
{
    for (size_t i = 0; i < REGISTERS; i++) {
        const i8v bytes = __builtin_convertvector(x[i], i8v);
        memcpy(c->codes + i * SIMD_LANES, &bytes, sizeof bytes);
    }
    for (size_t j = 0; j < 16; j++) {
        int sum = 0;
        for (size_t i = 0; i < 16; i++)
            sum += c->codes[16 * j + i];
        c->sums[j] = (int16_t)sum;
    }
    for (size_t j = 0; j < 8; j++)
        c->sums32[j] = (int16_t)(c->sums[2 * j] + c->sums[2 * j + 1]);
}

#endif

/* x: n registers of numbers. */
SIMD_FN float scale_of(const uint16_t *x, const size_t n)
{
    i32v most = {0};
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
        most = simd_max_i32(most, simd_magnitude(simd_load_bf16(x + i * SIMD_LANES)));
    const int32_t bits = simd_highest_i32(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    return bits >= 0x7f800000 ? NAN : largest / 127;
}

/* x: 256 bf16, which have `pieces` scales. */
SIMD_FN void encode_pieces(const size_t pieces, const uint16_t *x, struct spw_codes *c)
{
    const size_t n = REGISTERS / pieces;
    i32v codes[REGISTERS];
    float scales[SPW_CODES_BLOCKS];
    memset(c->scales, 0, sizeof c->scales);
    memset(c->unused, 0, sizeof c->unused);
    for (size_t p = 0; p < pieces; p++) {
        const float scale = scales[p] = scale_of(x + p * n * SIMD_LANES, n);
        if (!(scale > 0)) { /* also of NaN */
            memset(codes + p * n, 0, n * sizeof *codes);
            continue;
        }
#pragma GCC unroll 8
        for (size_t i = p * n; i < (p + 1) * n; i++) {
            f32v code = simd_round(simd_load_bf16(x + i * SIMD_LANES) / simd_set1(scale));
            code = simd_min(simd_max(code, simd_set1(-127)), simd_set1(127));
            codes[i] = __builtin_convertvector(code, i32v);
        }
    }
    store_codes(codes, c);
    if (pieces == SPW_CODES_BLOCKS) /* in place of sums of 16 codes */
        memcpy(c->block_scales, scales, sizeof c->block_scales);
    else
        memcpy(c->scales, scales, sizeof c->scales);
}

static void encode_group(bool small, const uint16_t *x, struct spw_codes *c)
{
    if (small)
        encode_pieces(SPW_CODES_BLOCKS, x, c);
    else
        encode_pieces(SPW_CODES_HALVES, x, c);
}

/* The last numbers of a row. */
static void encode_rest(bool small, const uint16_t *x, size_t n, struct spw_codes *c)
{
    uint16_t all[SPW_CODES_GROUP] = {0};
    memcpy(all, x, n * sizeof *x);
    encode_group(small, all, c);
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    const size_t groups = spw_codes_groups(a->k), end = spw_min_u64((task + 1) * ROWS, a->m);
    const bool small = spw_type_of(a->w_dtype).elements == SPW_CODES_BLOCK;
    (void)worker;
    for (size_t row = task * ROWS; row < end; row++) {
        const uint16_t *x = (const uint16_t *)a->x + row * a->x_stride;
        struct spw_codes *c = (struct spw_codes *)a->codes + row * groups;
        for (size_t at = 0; at < a->k; at += SPW_CODES_GROUP, c++)
            if (a->k - at < SPW_CODES_GROUP)
                encode_rest(small, x + at, a->k - at, c);
            else
                encode_group(small, x + at, c);
    }
}

const struct spw_kernel SIMD_NAME(spw_encode_kernel) = {
    .name = "encode",
    .n_tasks = n_tasks,
    .run = run,
};
