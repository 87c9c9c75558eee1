/* Passes over a row of logits, by the best instruction set of the processor: see logits_row.h. */
#include "runtime/rules/logits_row.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

extern const struct spw_row_kernels spw_row_kernels_portable, spw_row_kernels_avx2,
    spw_row_kernels_avx512;

const struct spw_row_kernels *spw_row_kernels_of(enum spw_isa isa)
{
#if defined(SPW_X86_KERNELS)
    return isa >= SPW_ISA_AVX512 ? &spw_row_kernels_avx512
           : isa >= SPW_ISA_AVX2 ? &spw_row_kernels_avx2
                                 : &spw_row_kernels_portable;
#else
    (void)isa;
    return &spw_row_kernels_portable;
#endif
}

static const struct spw_row_kernels *kernels(void)
{
    static _Atomic(const struct spw_row_kernels *) best; /* asking the processor takes long */
    const struct spw_row_kernels *k = atomic_load_explicit(&best, memory_order_relaxed);
    if (!k) {
        k = spw_row_kernels_of(spw_isa_best());
        atomic_store_explicit(&best, k, memory_order_relaxed);
    }
    return k;
}

float spw_row_top(const float *logits, size_t n)
{
    return kernels()->top(logits, n);
}

size_t spw_row_find(const float *logits, size_t from, size_t n, float floor)
{
    return kernels()->find(logits, from, n, floor);
}

int32_t spw_row_best(const float *logits, size_t n)
{
    const float top = spw_row_top(logits, n);
    return isnan(top) ? -1 : (int32_t)spw_row_find(logits, 0, n, top);
}

void spw_row_fill(float *row, const float *logits, size_t n_tokens)
{
    size_t n = spw_align_up(n_tokens, SPW_ROW_LANES);
    memcpy(row, logits, n_tokens * sizeof *row);
    for (size_t i = n_tokens; i < n; i++)
        row[i] = -INFINITY;
}

size_t spw_row_count(const float *row, size_t n, float floor)
{
    return kernels()->count(row, n, floor);
}

double spw_row_weight(float logit, float top, double temperature)
{
    return kernels()->weight(logit, top, temperature);
}

double spw_row_weights(double *w, const float *row, size_t n, float top, double temperature)
{
    return kernels()->weights(w, row, n, top, temperature);
}

double spw_row_log_sum(const float *logits, size_t n, float top)
{
    const size_t whole = n - n % SPW_ROW_LANES;
    float last[SPW_ROW_LANES];
    spw_row_fill(last, logits + whole, n - whole);
    double sum = spw_row_weights(NULL, logits, whole, top, 1);
    if (n > whole)
        sum += spw_row_weights(NULL, last, SPW_ROW_LANES, top, 1);
    return log(sum);
}

double spw_row_sum(const double *w, size_t n, double floor)
{
    return kernels()->sum(w, n, floor);
}
