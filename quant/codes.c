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

void spw_codes_encode(const float *x, size_t n, struct spw_codes *out)
{
    memset(out, 0, sizeof *out);
    for (size_t h = 0, at = 0; at < n; h++, at += SPW_CODES_HALF)
        out->scales[h] = scale_of(x + at, (size_t)spw_min_u64(n - at, SPW_CODES_HALF));
    for (size_t i = 0; i < n; i++) {
        const float scale = out->scales[i / SPW_CODES_HALF];
        const float code = scale > 0 ? rintf(x[i] / scale) : 0; /* NaN: 0 */
        out->codes[i] = (int8_t)fminf(fmaxf(code, -127), 127);
        out->sums[i / 16] = (int16_t)(out->sums[i / 16] + out->codes[i]);
        out->sums32[i / 32] = (int16_t)(out->sums32[i / 32] + out->codes[i]);
    }
}

/* t after numbers [from, to) of a block, with the codes of x for them. */
static float add_block(const struct spw_quantized_block *w, size_t from, size_t to, const int8_t *x,
                       float t)
{
    int32_t sum = 0, minima = 0;
    for (size_t i = from; i < to; i++) {
        const size_t part = i / SPW_BLOCK_PART;
        sum += w->scales[part] * w->codes[i] * x[i - from];
        minima += w->minima[part] * x[i - from];
    }
    t = fmaf(w->d, (float)sum, t);
    return fmaf(w->m, (float)minima, t);
}

/* t of numbers [from, to) of a group. */
static float half_dot(enum spw_dtype t, const uint8_t *blocks, const struct spw_codes *x,
                      size_t from, size_t to)
{
    const struct spw_type type = spw_type_of(t);
    struct spw_quantized_block w;
    float sum = 0;
    for (size_t i = from, n; i < to; i += n) {
        const size_t at = i % type.elements;
        n = (size_t)spw_min_u64(type.elements - at, to - i);
        spw_block_unpack(t, blocks + i / type.elements * type.bytes, &w);
        sum = add_block(&w, at, at + n, x->codes + i, sum);
    }
    return sum;
}

/* a after a group of n numbers. */
static float add_group(enum spw_dtype t, const uint8_t *blocks, const struct spw_codes *x, size_t n,
                       float a)
{
    for (size_t h = 0, at = 0; at < n; h++, at += SPW_CODES_HALF) {
        const size_t end = (size_t)spw_min_u64(at + SPW_CODES_HALF, n);
        a = fmaf(x->scales[h], half_dot(t, blocks, x, at, end), a);
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
