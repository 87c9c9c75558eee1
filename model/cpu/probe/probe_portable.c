/* Probe loops in plain C: see probe.h. */
#include <stdint.h>
#include <string.h>

/* What the baseline reads at once. */
typedef uint64_t vec __attribute__((vector_size(16)));

static inline vec vec_zero(void)
{
    return (vec){0};
}

static inline vec vec_or(vec v, const char *p)
{
    vec more;
    memcpy(&more, p, sizeof more);
    return v | more;
}

static inline vec vec_both(vec a, vec b)
{
    return a | b;
}

static inline uint64_t vec_bits(vec v)
{
    return v[0] | v[1];
}

#include "model/cpu/probe/probe_read.h"

/* What the baseline offers for a multiply-add: a product and a sum, of vectors of four. */
typedef float four __attribute__((vector_size(16)));

static double f32(uint64_t rounds)
{
    const four x = {1, 1, 1, 1}, w = {0.5f, 0.5f, 0.5f, 0.5f};
#define START(i) four a##i = {i};
    SPW_PROBE_EACH(START)
    for (uint64_t round = 0; round < rounds; round++) {
#define STEP(i) a##i = a##i * w + x;
        SPW_PROBE_EACH(STEP)
    }
#define END(i) spw_probe_keep(&a##i);
    SPW_PROBE_EACH(END)
    return (double)rounds * SPW_PROBE_CHAINS * 4 * 2;
}

const struct spw_probe_loops spw_probe_loops_portable = {.read = read_all, .f32 = f32, .bf16 = f32};
