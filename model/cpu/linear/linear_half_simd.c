/* The fast product of quantized weights for AVX-512 with registers of 256 bits for a few rows of x:
 * eight rows of W side by side (side_by_side.h). More rows as in linear_codes_simd.c. From memory,
 * one row is 1.2 to 1.4 times as fast as with lanes along k (SPEED.md).
 *
 * Two kernels: for units of 256 bits (Zen 4), where that is faster for one and two rows (Q8_0: up
 * to four), and for Intel's processors, whose units of 512 bits compute more rows faster in panels.
 */
#include "model/cpu/kernels.h"
#include "model/cpu/linear/side_by_side.h"

static void run_as(const struct spw_linear_args *a, bool side_by_side, size_t task, unsigned worker)
{
    const size_t bytes = spw_linear_codes_workspace_avx512vnni(a->k);
    assert(few_workspace(a->k) <= bytes);
    if (side_by_side)
        run_few(a, spw_linear_part(a, task), (uint8_t *)a->workspace + worker * bytes);
    else
        spw_linear_codes_kernel_avx512vnni.run(a, task, worker);
}

/* ---- units of 256 bits ---- */

/* Rows of x up to which eight streams are faster than sixteen, which are read more slowly and
 * computed faster (measured on Zen 4, SPEED.md). */
static size_t half_rows(enum spw_dtype t)
{
    return SPW_FACTS(t).low_bits == 8 ? 4 : 2;
}

static void run_half(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    run_as(a, a->m <= half_rows(a->w_dtype), task, worker);
}

const struct spw_kernel spw_linear_codes_kernel_avx512half = {
    .name = "linear_codes",
    .n_tasks = spw_linear_tasks,
    .run = run_half,
};

/* ---- Intel ---- */

/* Rows of x up to which these kernels are faster than panels (measured on Emerald Rapids,
 * SPEED.md). */
enum { INTEL_ROWS = 3 };

/* Codes of two and three bits are computed more slowly than they are read. */
static bool is_side_by_side(const struct spw_linear_args *a)
{
    return a->m <= INTEL_ROWS && largest_code(a->w_dtype) > 7;
}

static size_t intel_tasks(const void *args)
{
    return is_side_by_side(args) ? spw_linear_tasks(args)
                                 : spw_linear_codes_kernel_avx512vnni.n_tasks(args);
}

static void run_intel(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    if (a->m > INTEL_ROWS)
        spw_linear_codes_panels_avx512vnni(a, task, worker);
    else
        run_as(a, is_side_by_side(a), task, worker);
}

const struct spw_kernel spw_linear_codes_kernel_avx512intel = {
    .name = "linear_codes",
    .n_tasks = intel_tasks,
    .run = run_intel,
};
