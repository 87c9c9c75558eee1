/* exp, tanh, erf and what is made of them, in f32: activations, what a router makes of its logits,
 * decays of states. One text for the CPU and for CUDA: model/cpu/math.h, model/cuda/math.cuh.
 *
 * All give the same bits, because each function consists of operations that are rounded once: what
 * is fused is written num_fused. The including file defines, before it includes this header:
 *
 *   NUM_FN                   what stands before a function
 *   num                      an f32 number, or several: each function works lane by lane
 *   num_of(x)                a constant
 *   num_add, num_sub, num_mul, num_div, num_sqrt
 *   num_fused(a, b, c)       a b + c
 *   num_max(a, b)            a > b ? a : b, and
 *   num_min(a, b)            a < b ? a : b, so that a NaN in b stays NaN
 *   num_less(a, b, x, y)     a < b ? x : y
 *   num_round(a)             to the nearest integer, halves to even; |a| < 2^22
 *   num_scale2(a, n)         a 2^n for an integral n, |n| <= 252; NaN where a and n are
 *
 * tools/fit_math.py fits the polynomials. The largest errors of 70 million numbers of every size,
 * in ulp of the exact result: exp 1.01, expm1 0.95, tanh 1.32, erf 1.10, sigmoid 2.37 (above -88),
 * softplus 2.64. Activations, in ulp of x: silu 1.49, gelu_tanh 1.69, gelu_erf 1.38, gelu_quick
 * 1.48; where the result is much smaller than x, bits are lost as PyTorch loses them. */
#ifndef SPW_MODEL_MATH_H
#define SPW_MODEL_MATH_H

#include "model/kinds.h"

NUM_FN num num_neg(num x)
{
    return num_sub(num_of(0.0f), x);
}

/* x = n ln2 + r with |r| <= ln2/2; n times the first part of ln2 is exact. Returns e^r - 1 = r +
 * r^2 / 2 + r^3 P(r). */
NUM_FN num num_exp_part(num x, num *n)
{
    *n = num_round(num_mul(x, num_of(0x1.715476p+0f)));
    num r = num_fused(*n, num_of(-0x1.62e400p-1f), x);
    r = num_fused(*n, num_of(-0x1.7f7d1cp-20f), r);
    num p = num_of(0x1.6b6bbep-10f);
    p = num_fused(p, r, num_of(0x1.122f1ap-7f));
    p = num_fused(p, r, num_of(0x1.55568ap-5f));
    p = num_fused(p, r, num_of(0x1.5554a4p-3f));
    p = num_fused(p, r, num_of(0.5f));
    return num_fused(num_mul(r, r), p, r);
}

/* Beyond the range of f32 the limits make it 0 or infinity. */
NUM_FN num num_exp(num x)
{
    num n;
    x = num_exp_part(num_min(num_of(90.0f), num_max(num_of(-110.0f), x)), &n);
    return num_scale2(num_add(x, num_of(1.0f)), n);
}

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), x <= 88 */
NUM_FN num num_expm1(num x)
{
    num n;
    x = num_exp_part(num_max(num_of(-30.0f), x), &n);
    const num scale = num_scale2(num_of(1.0f), n);
    return num_fused(x, scale, num_sub(scale, num_of(1.0f)));
}

/* ln(1 + u), 0 <= u <= 1: 2 atanh(s) = 2s + s^3 P(s^2) for s = u / (2 + u). */
NUM_FN num num_log1p(num u)
{
    const num s = num_div(u, num_add(num_of(2.0f), u)), z = num_mul(s, s);
    num p = num_of(0x1.1eca06p-2f);
    p = num_fused(p, z, num_of(0x1.1ec042p-2f));
    p = num_fused(p, z, num_of(0x1.99d1ccp-2f));
    p = num_fused(p, z, num_of(0x1.555502p-1f));
    return num_fused(num_mul(s, z), p, num_add(s, s));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) */
NUM_FN num num_softplus(num x)
{
    const num below = num_min(num_neg(x), x);
    return num_add(num_max(num_of(0.0f), x), num_log1p(num_exp(below)));
}

/* Near 0 x + x^3 P(x^2); further out 1 - 2 / (e^2|x| + 1), with x's sign. */
NUM_FN num num_tanh(num x)
{
    const num z = num_mul(x, x), size = num_max(num_neg(x), x);
    num p = num_of(-0x1.750ce2p-8f);
    p = num_fused(p, z, num_of(0x1.51f8cep-6f));
    p = num_fused(p, z, num_of(-0x1.b835a4p-5f));
    p = num_fused(p, z, num_of(0x1.1106f6p-3f));
    p = num_fused(p, z, num_of(-0x1.555532p-2f));
    const num near = num_fused(num_mul(p, z), x, x);
    const num e = num_exp(num_add(size, size));
    const num far = num_sub(num_of(1.0f), num_div(num_of(2.0f), num_add(e, num_of(1.0f))));
    return num_less(size, num_of(0.625f), near, num_less(x, num_of(0.0f), num_neg(far), far));
}

/* Near 0 x + x P(x^2); further out 1 - e^(-|x| Q(|x|)), with x's sign; beyond 4 it is 1. */
NUM_FN num num_erf(num x)
{
    const num z = num_mul(x, x), size = num_min(num_of(4.0f), num_max(num_neg(x), x));
    num p = num_of(-0x1.3c566ap-11f);
    p = num_fused(p, z, num_of(0x1.47c52ap-8f));
    p = num_fused(p, z, num_of(-0x1.b6a216p-6f));
    p = num_fused(p, z, num_of(0x1.ce1beep-4f));
    p = num_fused(p, z, num_of(-0x1.8126eep-2f));
    p = num_fused(p, z, num_of(0x1.06eba6p-3f));
    const num near = num_fused(x, p, x);
    num q = num_of(-0x1.c35e74p-13f);
    q = num_fused(q, size, num_of(0x1.a6ba32p-9f));
    q = num_fused(q, size, num_of(-0x1.778fc2p-6f));
    q = num_fused(q, size, num_of(0x1.af5bd4p-4f));
    q = num_fused(q, size, num_of(0x1.4577e6p-1f));
    q = num_fused(q, size, num_of(0x1.20e70cp+0f));
    const num far = num_sub(num_of(1.0f), num_exp(num_neg(num_mul(size, q))));
    return num_less(size, num_of(0.875f), near, num_less(x, num_of(0.0f), num_neg(far), far));
}

NUM_FN num num_sigmoid(num x)
{
    return num_div(num_of(1.0f), num_add(num_of(1.0f), num_exp(num_neg(x))));
}

/* ---- activations ---- */

/* x sigmoid(by x) */
NUM_FN num num_gate(num x, num by)
{
    return num_div(x, num_add(num_of(1.0f), num_exp(num_neg(num_mul(by, x)))));
}

/* NaN stays NaN. */
NUM_FN num num_activation(num x, enum spw_activation act)
{
    switch (act) {
    case SPW_ACT_SILU:
        return num_gate(x, num_of(1.0f));
    case SPW_ACT_GELU_TANH: /* (1 + tanh(y)) / 2 = sigmoid(2 y), y = sqrt(2/pi) (x + 0.044715 x^3)
                             */
        return num_gate(x, num_mul(num_of(1.59576912f),
                                   num_fused(num_mul(num_of(0.044715f), x), x, num_of(1.0f))));
    case SPW_ACT_GELU_ERF: /* x (1 + erf(x / sqrt(2))) / 2 */
        return num_mul(num_mul(num_of(0.5f), x),
                       num_add(num_of(1.0f), num_erf(num_mul(num_of(0.707106781f), x))));
    case SPW_ACT_CUT_QUICK:
        x = num_min(num_of((float)SPW_GATE_LIMIT), x);
        return num_gate(x, num_of(1.702f));
    case SPW_ACT_GELU_QUICK:
        return num_gate(x, num_of(1.702f));
    case SPW_ACT_RELU_SQUARED:
        x = num_max(num_of(0.0f), x);
        return num_mul(x, x);
    case SPW_ACT_SIGMOID:
        return num_sigmoid(x);
    case SPW_ACT_IDENTITY:
        return x;
    case SPW_ACT_RELU:
    case SPW_ACT_COUNT:
        break;
    }
    return num_max(num_of(0.0f), x);
}

/* What CUT_QUICK has in place of up, which is rounded as if stored. */
NUM_FN num num_cut_up(num up)
{
    const num limit = num_of((float)SPW_GATE_LIMIT);
    return num_add(num_max(num_neg(limit), num_min(limit, up)), num_of(1.0f));
}

/* ---- states ---- */

/* RG-LRU: the decay of the state, and what is added to it. `first`: at position 0. */
NUM_FN num num_lru(num a, num rate, num gate, num v, bool first, num *decay)
{
    const num la = num_mul(a, num_sigmoid(rate)), in = num_mul(v, num_sigmoid(gate));
    const num lost = num_neg(num_expm1(num_add(la, la)));
    *decay = first ? num_of(0.0f) : num_exp(la);
    return first ? in : num_mul(in, num_sqrt(lost));
}

#endif
