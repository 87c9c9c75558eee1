/* The fast product of quantized weights for AVX-512 whose units have 256 bits (Zen 4): one to eight
 * rows of x with registers of 256 bits, more rows as with units of 512 bits. From memory, one row
 * is 1.2 to 1.4 times as fast as with lanes along k (SPEED.md). */
#include "model/cpu/kernels.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/eight_rows.h"
#include "model/cpu/linear/linear.h"

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    const size_t bytes = spw_linear_codes_workspace_avx512vnni(a->k);
    assert(few_workspace(a->k) <= bytes);
    if (a->m <= few_rows(a->w_dtype))
        run_few(a, spw_linear_part(a, task), (uint8_t *)a->workspace + worker * bytes);
    else
        spw_linear_codes_kernel_avx512vnni.run(a, task, worker);
}

const struct spw_kernel SIMD_NAME(spw_linear_codes_kernel) = {
    .name = "linear_codes",
    .n_tasks = spw_linear_tasks,
    .run = run,
};
