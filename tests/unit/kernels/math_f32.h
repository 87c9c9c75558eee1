/* model/math.h for single numbers, and the end of a gated product. */
#ifndef SPW_TESTS_UNIT_KERNELS_MATH_F32_H
#define SPW_TESTS_UNIT_KERNELS_MATH_F32_H

#include <math.h>

#include "tests/unit/kernels/ops_cpu_each.h"

#define NUM_FN static inline __attribute__((unused))
#define num float
#define num_of(x) (x)
#define num_add(a, b) ((a) + (b))
#define num_sub(a, b) ((a) - (b))
#define num_mul(a, b) ((a) * (b))
#define num_div(a, b) ((a) / (b))
#define num_sqrt sqrtf
#define num_fused fmaf
#define num_max(a, b) num_less(b, a, a, b)
#define num_min(a, b) num_less(a, b, a, b)
#define num_less(a, b, x, y) ((a) < (b) ? (x) : (y))
#define num_round rintf
#define num_scale2(a, n) ldexpf(a, (int)(n))

#include "model/math.h"

/* act(gate) up. What act makes of gate, what CUT_QUICK makes of up, and the product are rounded as
 * if stored. */
static inline double math_gated(double gate, double up, enum spw_activation act, enum spw_dtype t)
{
    if (act == SPW_ACT_CUT_QUICK)
        up = each_round_as((double)num_cut_up((float)up), t);
    const double f = each_round_as((double)num_activation((float)gate, act), t);
    return each_round_as((double)(float)(f * up), t);
}

#endif
