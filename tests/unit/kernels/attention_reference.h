/* Attention of one query in f64, from keys and values without tiles. */
#ifndef SPW_TESTS_UNIT_KERNELS_ATTENTION_REFERENCE_H
#define SPW_TESTS_UNIT_KERNELS_ATTENTION_REFERENCE_H

#include <math.h>

#include "model/ops.h"
#include "tests/unit/kernels/ops_cpu_each.h"

enum { ATTENTION_REFERENCE_TOKENS = 4096 };

/* out[head_dim] of one row and head, and the sum of |p v|, which rounding errors are relative to.
 * a->q is in host memory; keys, values: [tokens][n_kv_heads][head_dim]. */
static inline void attention_reference(const struct spw_attention_args *a, const float *keys,
                                       const float *values, size_t row, size_t head, double *out,
                                       double *size)
{
    static double s[ATTENTION_REFERENCE_TOKENS];
    size_t d = a->head_dim, kv = head / (a->n_heads / a->n_kv_heads), query = a->position + row;
    size_t window = a->window.tokens, first = window && query + 1 > window ? query + 1 - window : 0;
    if (window && a->window.step > 1) /* chunks */
        first = query / window * window;
    const size_t last = a->seen_end ? a->seen_end - 1 : query;
    const int64_t most = a->most_distance;
    double max = -INFINITY, sum = 0;
    first = first > a->first_key ? first : a->first_key;
    for (size_t t = first; t <= last; t++) {
        const float *k = keys + (t * a->n_kv_heads + kv) * d;
        s[t] = 0;
        for (size_t c = 0; c < d; c++)
            s[t] += each_load(a->q, row * a->q_stride + head * d + c, a->dtype) * (double)k[c];
        s[t] *= (double)a->scale;
        if (a->softcap != 0)
            s[t] = (double)a->softcap * tanh(s[t] / (double)a->softcap);
        const int64_t far = (int64_t)t - (int64_t)query;
        const int64_t distance = far < -most ? -most : far > most ? most : far;
        if (a->relative_bias)
            s[t] += (double)a->relative_bias[(int64_t)head * (2 * most + 1) + most + distance];
        max = s[t] > max ? s[t] : max;
    }
    for (size_t t = first; t <= last; t++)
        sum += s[t] = exp(s[t] - max);
    for (size_t c = 0; c < d; c++) {
        out[c] = size[c] = 0;
        for (size_t t = first; t <= last; t++) {
            double part = s[t] / sum * (double)values[(t * a->n_kv_heads + kv) * d + c];
            out[c] += part, size[c] += fabs(part);
        }
    }
}

#endif
