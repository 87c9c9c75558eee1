/* The reference of the fast product: see codes.h. */
#include "quant/codes.h"

#include <math.h>
#include <string.h>

void spw_codes_encode(const float *x, size_t n, struct spw_codes *out)
{
    float largest = 0;
    bool finite = true;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        finite &= isfinite(x[i]) != 0;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    out->scale = finite ? largest / 127 : NAN;
    for (size_t i = 0; finite && out->scale != 0 && i < n; i++) {
        float code = rintf(x[i] / out->scale);
        out->codes[i] = (int8_t)fminf(fmaxf(code, -127), 127);
        out->sums[i / 16] = (int16_t)(out->sums[i / 16] + out->codes[i]);
        out->sums32[i / 32] = (int16_t)(out->sums32[i / 32] + out->codes[i]);
    }
}

/* t after one block, whose first number is number `first` of the group. */
static float add_block(const struct spw_quantized_block *w, size_t elements,
                       const struct spw_codes *x, size_t first, float t)
{
    int32_t sum = 0, minima = 0;
    for (size_t i = 0; i < elements; i++) {
        const size_t part = i / SPW_BLOCK_PART;
        sum += w->scales[part] * w->codes[i] * x->codes[first + i];
        minima += w->minima[part] * x->codes[first + i];
    }
    t = fmaf(w->d, (float)sum, t);
    return fmaf(w->m, (float)minima, t);
}

static float group_dot(enum spw_dtype t, const uint8_t *blocks, const struct spw_codes *x, size_t n)
{
    const struct spw_type type = spw_type_of(t);
    struct spw_quantized_block w;
    float sum = 0;
    for (size_t i = 0; i < n; i += type.elements, blocks += type.bytes) {
        spw_block_unpack(t, blocks, &w);
        sum = add_block(&w, type.elements, x, i, sum);
    }
    return sum;
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
            a = fmaf(x[g].scale,
                     group_dot(t, (const uint8_t *)row + spw_row_bytes(t, first), &x[g],
                               (size_t)spw_min_u64(k - first, SPW_CODES_GROUP)),
                     a);
        }
        y += a;
    }
    return y == y ? y : NAN;
}
