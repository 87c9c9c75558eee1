/* Attention: the arithmetic that the instruction set allows, then what is common to all. */
#include "base/simd.h"

#ifndef AS_DOT_BF16
#define AS_DOT_BF16 0
#endif

#if SIMD_DOT_BF16 && !AS_DOT_BF16
#include "model/cpu/attention/attention_bf16.h"
#else
#include "model/cpu/attention/attention_f32.h"
#if defined(__AVX2__) && !defined(__AVX512F__)
#define ATTENTION_PANELS 1
#include "model/cpu/attention/attention_panels.h"
#endif
#endif
#include "model/cpu/attention/attention_walk.h"

#if SIMD_DOT_BF16

/* Other types take the f32 arithmetic of the avx512 table. */
static bool all_bf16(const struct spw_attention_args *a)
{
    return a->dtype == SPW_DTYPE_BF16 && a->kv_dtype == SPW_DTYPE_BF16;
}

static void attention_choose(const void *args, size_t task, unsigned worker)
{
    if (all_bf16(args))
        attention_run(args, task, worker);
    else
        spw_attention_kernel_avx512.run(args, task, worker);
}

static void attention_splits_choose(const void *args, size_t task, unsigned worker)
{
    if (all_bf16(args))
        attention_splits_run(args, task, worker);
    else
        spw_attention_splits_kernel_avx512.run(args, task, worker);
}

#else
#define attention_choose attention_run
#define attention_splits_choose attention_splits_run
#endif

const struct spw_kernel SIMD_NAME(spw_attention_kernel) = {"attention", attention_tasks,
                                                           attention_choose};
const struct spw_kernel SIMD_NAME(spw_attention_splits_kernel) = {
    "attention_splits", attention_splits_tasks, attention_splits_choose};
const struct spw_kernel SIMD_NAME(spw_attention_merge_kernel) = {
    "attention_merge", attention_merge_tasks, attention_merge_run};
