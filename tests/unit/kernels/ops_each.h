/* For tests of kernels that are compiled twice: for the CPU's tables, and, as test_cuda_NAME, for
 * the GPU, which is one table there. */
#ifndef SPW_TESTS_UNIT_KERNELS_OPS_EACH_H
#define SPW_TESTS_UNIT_KERNELS_OPS_EACH_H

#include "tests/unit/kernels/ops_cpu_each.h"

#ifdef TEST_BACKEND /* the GPU */
#include "tests/cuda/gpu_table.h"

enum { EACH_GPU = 1 };
#define EACH_TABLE(table)                                                                          \
    for (const struct spw_cpu_kernels *table = &gpu_table; table; table = NULL)

static inline bool each_is_there(void)
{
    return cuda_there();
}

static inline int each_draws(int on_cpu, int on_gpu)
{
    (void)on_cpu;
    return cuda_draws(on_gpu);
}

static inline void each_set_gpu(uint64_t seed, int capability)
{
    gpu_set(seed, capability);
}

static inline bool each_is_emulated(void)
{
    return spw_simt_set;
}
#else
enum { EACH_GPU = 0 };
#define EACH_TABLE EACH_CPU_TABLE

static inline bool each_is_there(void)
{
    return true;
}

static inline int each_draws(int on_cpu, int on_gpu)
{
    (void)on_gpu;
    return on_cpu;
}

static inline void each_set_gpu(uint64_t seed, int capability)
{
    (void)seed, (void)capability;
}

static inline bool each_is_emulated(void)
{
    return false;
}
#endif

static inline const char *each_name(const struct spw_cpu_kernels *table)
{
    return EACH_GPU ? "cuda" : spw_isa_name(table->isa);
}

static inline const struct spw_cpu_kernels *each_portable(void)
{
    return spw_cpu_kernels_get(SPW_ISA_PORTABLE);
}

#endif
