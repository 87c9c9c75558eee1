/* exp, tanh and activations over sixteen lanes. Polynomials fitted (Lawson's weighted least
 * squares, f64) for this file; tests/unit/kernels/test_ops_rows.c holds exp and tanh to 2 ulp over
 * their ranges. */
#ifndef SPW_MODEL_CPU_MATH_H
#define SPW_MODEL_CPU_MATH_H

#include <math.h>

#include "model/cpu/vec.h"
#include "model/kinds.h"

/* e^x = 2^n e^r, r in [-ln2/2, ln2/2], e^r = 1 + r + r^2 P(r). Beyond the range of f32 the clamps
 * make n round to 0 or infinity; NaN stays NaN. */
SIMD_FN struct vec vec_exp(struct vec x)
{
    x = vec_max(vec_set1(-110.0f), x);
    x = vec_select_less(vec_set1(90.0f), x, vec_set1(90.0f), x);
    struct vec n = vec_round(vec_mul(x, vec_set1(0x1.715476p+0f)));
    struct vec r = vec_fma(n, vec_set1(-0x1.62e400p-1f), x); /* ln2 in two parts: n * high is */
    r = vec_fma(n, vec_set1(-0x1.7f7d1cp-20f), r);           /* exact, so plain C is as good */
    struct vec p = vec_set1(0x1.6db47ep-10f);
    p = vec_fma(p, r, vec_set1(0x1.123b92p-7f));
    p = vec_fma(p, r, vec_set1(0x1.55545ep-5f));
    p = vec_fma(p, r, vec_set1(0x1.55548ep-3f));
    p = vec_fma(p, r, vec_set1(0.5f));
    p = vec_fma(vec_mul(r, r), p, r);
    return vec_scale2(vec_add(p, vec_set1(1.0f)), n);
}

/* Near 0 an odd polynomial; further out 1 - 2 / (e^2|x| + 1), with x's sign. */
SIMD_FN struct vec vec_tanh(struct vec x)
{
    struct vec zero = vec_set1(0.0f), one = vec_set1(1.0f), z = vec_mul(x, x);
    struct vec p = vec_set1(-0.0056039137f);
    p = vec_fma(p, z, vec_set1(0.020551719f));
    p = vec_fma(p, z, vec_set1(-0.053714108f));
    p = vec_fma(p, z, vec_set1(0.13331152f));
    p = vec_fma(p, z, vec_set1(-0.33333272f));
    struct vec near = vec_fma(vec_mul(p, z), x, x);
    struct vec size = vec_max(vec_sub(zero, x), x);
    struct vec e = vec_exp(vec_add(size, size));
    struct vec far = vec_sub(one, vec_div(vec_set1(2.0f), vec_add(e, one)));
    far = vec_select_less(x, zero, vec_sub(zero, far), far);
    return vec_select_less(size, vec_set1(0.625f), near, far);
}

/* ---- activations ---- */

SIMD_FN struct vec silu(struct vec x)
{
    struct vec e = vec_exp(vec_sub(vec_set1(0.0f), x));
    return vec_div(x, vec_add(vec_set1(1.0f), e));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
SIMD_FN struct vec gelu_tanh(struct vec x)
{
    struct vec cube = vec_mul(vec_mul(x, x), x);
    struct vec inner = vec_add(x, vec_mul(vec_set1(0.044715f), cube));
    struct vec t = vec_tanh(vec_mul(vec_set1(0.797884561f), inner));
    return vec_mul(vec_mul(vec_set1(0.5f), x), vec_add(vec_set1(1.0f), t));
}

/* 0.5 x (1 + erf(x / sqrt(2))), by libm: no family whose speed matters uses it today. */
SIMD_FN struct vec gelu_erf(struct vec x)
{
    float lanes[VEC_LANES];
    vec_store(lanes, vec_mul(x, vec_set1(0.707106781f)));
    for (int i = 0; i < VEC_LANES; i++)
        lanes[i] = erff(lanes[i]);
    struct vec t = vec_add(vec_set1(1.0f), vec_load(lanes));
    return vec_mul(vec_mul(vec_set1(0.5f), x), t);
}

SIMD_FN struct vec gelu_quick(struct vec x)
{
    struct vec e = vec_exp(vec_mul(vec_set1(-1.702f), x));
    return vec_div(x, vec_add(vec_set1(1.0f), e));
}

/* NaN stays NaN: vec_max and vec_min give their second operand where the two do not compare. */
SIMD_FN struct vec relu(struct vec x)
{
    return vec_max(vec_set1(0.0f), x);
}

SIMD_FN struct vec at_most_limit(struct vec x)
{
    return vec_min(vec_set1((float)SPW_GATE_LIMIT), x);
}

SIMD_FN struct vec activation(struct vec x, enum spw_activation act)
{
    switch (act) {
    case SPW_ACT_SILU:
        return silu(x);
    case SPW_ACT_GELU_TANH:
        return gelu_tanh(x);
    case SPW_ACT_GELU_ERF:
        return gelu_erf(x);
    case SPW_ACT_GELU_QUICK:
        return gelu_quick(x);
    case SPW_ACT_CUT_QUICK:
        return gelu_quick(at_most_limit(x));
    case SPW_ACT_RELU_SQUARED:
        x = relu(x);
        return vec_mul(x, x);
    case SPW_ACT_SIGMOID:
        return vec_div(vec_set1(1.0f),
                       vec_add(vec_set1(1.0f), vec_exp(vec_sub(vec_set1(0.0f), x))));
    case SPW_ACT_IDENTITY:
        return x;
    case SPW_ACT_RELU:
    case SPW_ACT_COUNT:
        break;
    }
    return relu(x);
}

#endif
