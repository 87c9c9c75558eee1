/* The fast product of quantized weights with two to eight rows of x, with AVX-512: sixteen rows of
 * W side by side (side_by_side.h). One row: along_k.h. */
#define SIMD_LOAD_HALVES
#include "model/cpu/kernels.h"
#include "model/cpu/linear/side_by_side.h"

void SIMD_NAME(spw_linear_codes_few)(const struct spw_linear_args *a, size_t task, unsigned worker)
{
    const size_t bytes = SIMD_NAME(spw_linear_codes_workspace)(a->k);
    assert(few_workspace(a->k) <= bytes);
    run_few(a, spw_linear_part(a, task), (uint8_t *)a->workspace + worker * bytes);
}
