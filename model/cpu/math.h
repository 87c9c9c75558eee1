/* model/math.h over the lanes of a vector. A file whose bits may differ between instruction sets
 * defines num_fused as vec_fma. */
#ifndef SPW_MODEL_CPU_MATH_H
#define SPW_MODEL_CPU_MATH_H

#include "model/cpu/vec.h"

#define NUM_FN SIMD_FN
#define num struct vec
#define num_of vec_set1
#define num_add vec_add
#define num_sub vec_sub
#define num_mul vec_mul
#define num_div vec_div
#define num_sqrt vec_sqrt
#ifndef num_fused
#define num_fused vec_fused
#endif
#define num_max vec_max
#define num_min vec_min
#define num_less vec_select_less
#define num_round vec_round
#define num_scale2 vec_scale2

#include "model/math.h"

#endif
