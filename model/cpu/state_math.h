/* model/state_math.h over the lanes of a vector. */
#ifndef SPW_MODEL_CPU_STATE_MATH_H
#define SPW_MODEL_CPU_STATE_MATH_H

#include "model/cpu/vec.h"

#define NUM_FN SIMD_FN
#define num struct vec
#define num_of vec_set1
#define num_add vec_add
#define num_sub vec_sub
#define num_mul vec_mul
#define num_div vec_div
#define num_sqrt vec_sqrt
#define num_fused vec_fused
#define num_less vec_select_less
#define num_round vec_round
#define num_scale2 vec_scale2

#include "model/state_math.h"

#endif
