/* Probe loops: see probe.h and probe_loops.h. */
#include "base/simd_bytes.h"
#include "model/cpu/probe/probe_loops.h"

/* ---- reading memory ---- */

enum { READ_LINE = 64, READ_AHEAD = 4096, STREAMS = 4 };

/* Four parts side by side, with software prefetches: no pattern was faster on most processors. */
static uint64_t read_all(const void *memory, size_t bytes)
{
    const size_t part = bytes / STREAMS;
    u32v any[STREAMS] = {{0}};
    for (size_t i = 0; i < part; i += READ_LINE)
#pragma GCC unroll 4
        for (int s = 0; s < STREAMS; s++) {
            const char *at = (const char *)memory + (size_t)s * part + i;
            __builtin_prefetch(at + READ_AHEAD);
#pragma GCC unroll 8
            for (size_t j = 0; j < READ_LINE; j += sizeof(u32v))
                any[s] |= (u32v)simd_load(at + j);
        }
    uint64_t bits = 0;
    for (int s = 0; s < STREAMS; s++)
        for (int l = 0; l < SIMD_LANES; l++)
            bits |= any[s][l];
    return bits;
}

/* ---- multiply-adds ---- */

/* f(i) for each chain, with a constant i: so chains are registers and not an array. They start from
 * different values, because a compiler may see that equal chains are one. There are enough chains
 * for the latency of a multiply-add times two units, and few enough for the registers of AVX2. */
enum { CHAINS = 12 };
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

#define START(i) f32v a##i = simd_set1(i);
#define END(i) spw_probe_keep(&a##i);

static double f32(uint64_t rounds)
{
    const f32v x = simd_set1(0.5f), w = simd_set1(1);
    EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = simd_fma(a##i, x, w);
        EACH(STEP)
#undef STEP
    }
    EACH(END)
    return (double)rounds * CHAINS * SIMD_LANES * 2;
}

/* bf16 numbers are widened where there is no dot product of them. */
static double bf16(uint64_t rounds)
{
#if SIMD_DOT_BF16
    const u32v x = (u32v){0} + 0x30003000u;
    EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = simd_dot_bf16(a##i, x, x);
        EACH(STEP)
#undef STEP
    }
    EACH(END)
    return (double)rounds * CHAINS * SIMD_LANES * 4;
#else
    return f32(rounds);
#endif
}

/* Bytes: four products in a lane. SIMD_PAIRS: w must look new each time, or a compiler would
 * compute one product before the loop. */
static double int8(uint64_t rounds)
{
    const u32v x = simd_set1_u32(0x01020304u);
#if SIMD_PAIRS
    const u32v ones = simd_set1_u32(0x10001u);
    u32v w = x;
#endif
#undef START
#define START(i) i32v a##i = (i32v){0} + i;
    EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#if SIMD_PAIRS
#define STEP(i)                                                                                    \
    w = simd_in_order(w);                                                                          \
    a##i = simd_dot_pairs(a##i, (u32v)simd_pairs(w, x), ones);
#else
#define STEP(i) a##i = simd_dot(a##i, x, x);
#endif
        EACH(STEP)
#undef STEP
    }
    EACH(END)
    return (double)rounds * CHAINS * SIMD_LANES * 8;
}

const struct spw_probe_loops SIMD_NAME(spw_probe_loops) = {
    .read = read_all, .f32 = f32, .bf16 = bf16, .int8 = int8};
