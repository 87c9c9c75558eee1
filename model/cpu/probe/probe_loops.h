/* The loops of probe.c that need an instruction set: defined in probe_simd.c and probe_amx.c. */
#ifndef SPW_MODEL_CPU_PROBE_PROBE_LOOPS_H
#define SPW_MODEL_CPU_PROBE_PROBE_LOOPS_H

#include "model/cpu/ops_cpu.h"

struct spw_probe_loops {
    /* Reads `bytes`, a multiple of SPW_PROBE_READ_BYTES. The result depends on all bytes. */
    uint64_t (*read)(const void *p, size_t bytes);
    /* Multiplies and adds `rounds` times; returns the FLOP that took. NULL: not on this set. */
    double (*f32)(uint64_t rounds);
    double (*bf16)(uint64_t rounds);
    double (*int8)(uint64_t rounds);
};

extern const struct spw_probe_loops spw_probe_loops_portable;
extern const struct spw_probe_loops spw_probe_loops_avx2;
extern const struct spw_probe_loops spw_probe_loops_avx2vnni;
extern const struct spw_probe_loops spw_probe_loops_avx512;
extern const struct spw_probe_loops spw_probe_loops_avx512vnni;
extern const struct spw_probe_loops spw_probe_loops_avx512bf16;
extern const struct spw_probe_loops spw_probe_loops_amx;

enum { SPW_PROBE_READ_BYTES = 32 << 10 };

/* Prevents the compiler from removing an unused result. */
static inline void spw_probe_keep(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

#endif
