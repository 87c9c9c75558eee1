/* The functions of conv and recur (model/ops.h): one text for the CPU and for CUDA.
 *
 * Both give the same bits, because each function consists of operations that are rounded once: what
 * is fused is written num_fused. The including file defines, before it includes this header:
 *
 *   NUM_FN                   what stands before a function
 *   num                      an f32 number, or several: each function works lane by lane
 *   num_of(x)                a constant
 *   num_add, num_sub, num_mul, num_div, num_sqrt
 *   num_fused(a, b, c)       a b + c
 *   num_less(a, b, x, y)     a < b ? x : y
 *   num_round(a)             to the nearest integer, halves to even; |a| < 2^22
 *   num_scale2(a, n)         a 2^n for an integral n, |n| <= 252; NaN where a and n are
 *
 * tests/unit/kernels/test_ops_state.c has the errors: exp and expm1 2 ulp, softplus 4 ulp. */
#ifndef SPW_MODEL_STATE_MATH_H
#define SPW_MODEL_STATE_MATH_H

#include "model/kinds.h"

NUM_FN num num_neg(num x)
{
    return num_sub(num_of(0.0f), x);
}

/* x = n ln2 + r with |r| <= ln2/2. Returns e^r - 1 = r + r^2 P(r), with the P of vec_exp
 * (model/cpu/math.h). */
NUM_FN num num_exp_part(num x, num *n)
{
    *n = num_round(num_mul(x, num_of(0x1.715476p+0f)));
    num r = num_fused(*n, num_of(-0x1.62e400p-1f), x);
    r = num_fused(*n, num_of(-0x1.7f7d1cp-20f), r);
    num p = num_of(0x1.6db47ep-10f);
    p = num_fused(p, r, num_of(0x1.123b92p-7f));
    p = num_fused(p, r, num_of(0x1.55545ep-5f));
    p = num_fused(p, r, num_of(0x1.55548ep-3f));
    p = num_fused(p, r, num_of(0.5f));
    return num_fused(num_mul(r, r), p, r);
}

/* Beyond the range of f32 the clamps make it 0 or infinity; NaN stays NaN. */
NUM_FN num num_exp(num x)
{
    num n;
    x = num_less(x, num_of(-110.0f), num_of(-110.0f), x);
    x = num_less(num_of(90.0f), x, num_of(90.0f), x);
    x = num_exp_part(x, &n);
    return num_scale2(num_add(x, num_of(1.0f)), n);
}

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), x <= 88 */
NUM_FN num num_expm1(num x)
{
    num n;
    x = num_exp_part(num_less(x, num_of(-30.0f), num_of(-30.0f), x), &n);
    const num scale = num_scale2(num_of(1.0f), n);
    return num_fused(x, scale, num_sub(scale, num_of(1.0f)));
}

NUM_FN num num_sigmoid(num x)
{
    return num_div(num_of(1.0f), num_add(num_of(1.0f), num_exp(num_neg(x))));
}

/* ln(1 + u), 0 <= u <= 1: 2 atanh(s) = 2s + s^3 P(s^2) for s = u / (2 + u). P was fitted (Lawson,
 * f64) for this file. */
NUM_FN num num_log1p(num u)
{
    const num s = num_div(u, num_add(num_of(2.0f), u)), z = num_mul(s, s);
    num p = num_of(0x1.1ed7bep-2f);
    p = num_fused(p, z, num_of(0x1.1ebd0ep-2f));
    p = num_fused(p, z, num_of(0x1.99d208p-2f));
    p = num_fused(p, z, num_of(0x1.555502p-1f));
    return num_fused(num_mul(s, z), p, num_add(s, s));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) */
NUM_FN num num_softplus(num x)
{
    const num zero = num_of(0.0f), below = num_less(x, zero, x, num_neg(x));
    return num_add(num_less(zero, x, x, zero), num_log1p(num_exp(below)));
}

/* x sigmoid(by x) */
NUM_FN num num_gate(num x, num by)
{
    return num_div(x, num_add(num_of(1.0f), num_exp(num_neg(num_mul(by, x)))));
}

/* What conv may do to its sums: no erf, nothing that is of gates alone. */
NUM_FN num num_activation(num x, enum spw_activation act)
{
    const num zero = num_of(0.0f);
    switch (act) {
    case SPW_ACT_SILU:
        return num_gate(x, num_of(1.0f));
    case SPW_ACT_GELU_QUICK:
        return num_gate(x, num_of(1.702f));
    case SPW_ACT_GELU_TANH: /* (1 + tanh(y)) / 2 = sigmoid(2 y) */
        return num_gate(x, num_mul(num_of(1.59576912f),
                                   num_fused(num_mul(num_of(0.044715f), x), x, num_of(1.0f))));
    case SPW_ACT_RELU:
        return num_less(x, zero, zero, x);
    case SPW_ACT_RELU_SQUARED:
        x = num_less(x, zero, zero, x);
        return num_mul(x, x);
    default:
        return x;
    }
}

/* RG-LRU: the decay of the state, and what is added to it. `first`: at position 0. */
NUM_FN num num_lru(num a, num rate, num gate, num v, bool first, num *decay)
{
    const num la = num_mul(a, num_sigmoid(rate)), in = num_mul(v, num_sigmoid(gate));
    const num lost = num_neg(num_expm1(num_add(la, la)));
    *decay = first ? num_of(0.0f) : num_exp(la);
    return first ? in : num_mul(in, num_sqrt(lost));
}

#endif
