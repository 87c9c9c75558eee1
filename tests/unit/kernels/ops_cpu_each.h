/* For tests of CPU kernels: every table that this machine can run, and orders of tasks that must
 * not change a result. */
#ifndef SPW_TESTS_UNIT_KERNELS_OPS_CPU_EACH_H
#define SPW_TESTS_UNIT_KERNELS_OPS_CPU_EACH_H

#include <math.h>
#include <string.h>

#include "model/cpu/ops_cpu.h"
#include "tests/check.h"

#define EACH_CPU_TABLE(table)                                                                      \
    for (int isa_ = 0; isa_ < SPW_ISA_COUNT; isa_++)                                               \
        for (const struct spw_cpu_kernels *table = spw_cpu_kernels_get((enum spw_isa)isa_); table; \
             table = NULL)

enum each_order { EACH_FORWARD, EACH_BACKWARD };

static inline void each_run(const struct spw_kernel *kernel, const void *args,
                            enum each_order order)
{
    size_t n = kernel->n_tasks(args);
    for (size_t i = 0; i < n; i++)
        kernel->run(args, order == EACH_FORWARD ? i : n - 1 - i, (unsigned)(i % 3));
}

/* Uniform in [-1, 1). */
static inline double each_uniform(uint64_t *rng)
{
    return (double)(int64_t)check_random(rng) * 0x1p-63;
}

static inline float each_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t each_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* To `digits` significand bits with a least exponent, halves to even, by libm: the reference for
 * the kernels' integer tricks. */
static inline double each_round(double x, int digits, int least)
{
    int e;
    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &e);
    e = e - digits < least ? least : e - digits;
    return ldexp(nearbyint(ldexp(x, -e)), e);
}

static inline double each_round_as(double x, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        return (double)(float)x;
    double y = t == SPW_DTYPE_F16 ? each_round(x, 11, -24) : each_round(x, 8, -133);
    return t == SPW_DTYPE_F16 && fabs(y) > 65504 ? copysign(INFINITY, y) : y;
}

static inline void each_store(void *base, size_t i, enum spw_dtype t, double x)
{
    double y = each_round_as(x, t);
    uint32_t bits = each_float_bits((float)y);
    uint16_t narrow = (uint16_t)(bits >> 16);
    if (t == SPW_DTYPE_F32) {
        memcpy((char *)base + 4 * i, &bits, 4);
        return;
    }
    if (t == SPW_DTYPE_F16) { /* y is an f16 value: take its fields */
        double size = fabs(y);
        int e = 0;
        frexp(size, &e);
        uint32_t code = size == 0     ? 0
                        : isinf(size) ? 0x7c00
                        : size < 0x1p-14
                            ? (uint32_t)ldexp(size, 24)
                            : (uint32_t)(e + 14) << 10 | ((uint32_t)ldexp(size, 11 - e) & 0x3ff);
        narrow = (uint16_t)(code | (bits >> 16 & 0x8000));
    }
    memcpy((char *)base + 2 * i, &narrow, 2);
}

static inline double each_load(const void *base, size_t i, enum spw_dtype t)
{
    uint32_t bits;
    uint16_t narrow;
    if (t == SPW_DTYPE_F32) {
        memcpy(&bits, (const char *)base + 4 * i, 4);
        return (double)each_bits_float(bits);
    }
    memcpy(&narrow, (const char *)base + 2 * i, 2);
    if (t == SPW_DTYPE_BF16)
        return (double)each_bits_float((uint32_t)narrow << 16);
    int e = narrow >> 10 & 31, fraction = narrow & 1023;
    double size = e == 31 ? (fraction ? NAN : INFINITY)
                  : e     ? ldexp(1024 + fraction, e - 25)
                          : ldexp(fraction, -24);
    return narrow & 0x8000 ? -size : size;
}

/* The spacing of type t's values around x. */
static inline double each_ulp(double x, enum spw_dtype t)
{
    int e, digits = t == SPW_DTYPE_F32 ? 24 : t == SPW_DTYPE_F16 ? 11 : 8;
    int least = t == SPW_DTYPE_F32 ? -149 : t == SPW_DTYPE_F16 ? -24 : -133;
    frexp(x, &e);
    return ldexp(1, x == 0 || e - digits < least ? least : e - digits);
}

/* All finite numbers of bf16, in their order, or a million of f32: of any bits, and as many below
 * 30 in size. Freed by the caller. */
static inline void *each_finite(uint64_t *rng, enum spw_dtype t, size_t *n)
{
    const size_t most = t == SPW_DTYPE_BF16 ? 1 << 16 : 1000000;
    char *p = (char *)malloc(most * spw_dtype_bytes(t)); /* this header is C++, too */
    *n = 0;
    for (size_t i = 0; i < most; i++) {
        const uint32_t bits = t == SPW_DTYPE_BF16 ? (uint32_t)i << 16 : (uint32_t)check_random(rng);
        float x = i % 2 && t == SPW_DTYPE_F32 ? 30 * (float)each_uniform(rng) : 0;
        x = x == 0 ? each_bits_float(bits) : x;
        if (isfinite(x))
            each_store(p, (*n)++, t, (double)x);
    }
    return p;
}

#endif
