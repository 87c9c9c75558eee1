/* The reference of the fast product: see codes.h. */
#include "quant/codes.h"

#include <math.h>
#include <string.h>

static float scale_of(const float *x, size_t n)
{
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        finite &= isfinite(x[i]) != 0;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    return finite ? largest / 127 : NAN;
}

static bool is_small(enum spw_dtype t)
{
    return spw_type_of(t).elements == SPW_CODES_BLOCK;
}

void spw_codes_encode(enum spw_dtype t, const float *x, size_t n, struct spw_codes *out)
{
    const size_t piece = is_small(t) ? SPW_CODES_BLOCK : SPW_CODES_HALF;
    float scales[SPW_CODES_BLOCKS] = {0};
    int16_t sums[16] = {0};
    memset(out, 0, sizeof *out);
    for (size_t at = 0; at < n; at += piece)
        scales[at / piece] = scale_of(x + at, (size_t)spw_min_u64(n - at, piece));
    for (size_t i = 0; i < n; i++) {
        const float scale = scales[i / piece];
        const float code = scale > 0 ? rintf(x[i] / scale) : 0; /* NaN: 0 */
        out->codes[i] = (int8_t)fminf(fmaxf(code, -127), 127);
        sums[i / 16] = (int16_t)(sums[i / 16] + out->codes[i]);
        out->sums32[i / 32] = (int16_t)(out->sums32[i / 32] + out->codes[i]);
    }
    if (is_small(t))
        memcpy(out->block_scales, scales, sizeof out->block_scales);
    else {
        memcpy(out->sums, sums, sizeof out->sums);
        memcpy(out->scales, scales, sizeof out->scales);
    }
}

/* t after numbers [from, to) of a block, with the codes of x for them. `scale`: that of x in a
 * block of 32, else NULL. */
static float add_block(const struct spw_quantized_block *w, size_t from, size_t to, const int8_t *x,
                       const float *scale, float t)
{
    int32_t sum = 0, minima = 0;
    for (size_t i = from; i < to; i++) {
        const size_t part = i / SPW_BLOCK_PART;
        sum += w->scales[part] * w->codes[i] * x[i - from];
        minima += w->minima[part] * x[i - from];
    }
    t = fmaf(scale ? w->d * *scale : w->d, (float)sum, t);
    return fmaf(w->m, scale ? *scale * (float)minima : (float)minima, t);
}

/* t of numbers [from, to) of a group. */
static float piece_dot(enum spw_dtype t, const uint8_t *blocks, const struct spw_codes *x,
                       size_t from, size_t to)
{
    const struct spw_type type = spw_type_of(t);
    struct spw_quantized_block w;
    float sum = 0;
    for (size_t i = from, n; i < to; i += n) {
        const size_t at = i % type.elements;
        n = (size_t)spw_min_u64(type.elements - at, to - i);
        spw_block_unpack(t, blocks + i / type.elements * type.bytes, &w);
        sum = add_block(&w, at, at + n, x->codes + i,
                        is_small(t) ? &x->block_scales[i / SPW_CODES_BLOCK] : NULL, sum);
    }
    return sum;
}

/* a after a group of n numbers. */
static float add_group(enum spw_dtype t, const uint8_t *blocks, const struct spw_codes *x, size_t n,
                       float a)
{
    if (is_small(t))
        return a + piece_dot(t, blocks, x, 0, n);
    for (size_t h = 0, at = 0; at < n; h++, at += SPW_CODES_HALF) {
        const size_t end = (size_t)spw_min_u64(at + SPW_CODES_HALF, n);
        a = fmaf(x->scales[h], piece_dot(t, blocks, x, at, end), a);
    }
    return a;
}

float spw_codes_dot(enum spw_dtype t, const void *row, const struct spw_codes *x, size_t k)
{
    const size_t groups = spw_codes_groups(k);
    float y = 0;
    for (size_t partition = 0; partition < SPW_CODES_PARTITIONS; partition++) {
        float a = 0;
        for (size_t g = spw_codes_partition(groups, partition);
             g < spw_codes_partition(groups, partition + 1); g++) {
            const size_t first = g * SPW_CODES_GROUP;
            a = add_group(t, (const uint8_t *)row + spw_row_bytes(t, first), &x[g],
                          (size_t)spw_min_u64(k - first, SPW_CODES_GROUP), a);
        }
        y += a;
    }
    return y == y ? y : NAN;
}
