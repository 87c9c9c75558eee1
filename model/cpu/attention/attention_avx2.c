/* Attention in f32 arithmetic on AVX2: 16 registers of half the width hold 4 sums of 16 lanes. */
#define KERNEL(op) spw_##op##_kernel_avx2
enum { F32_ITEMS = 4, F32_BLOCKS = 1, F32_VECTORS = 1 };
#include "model/cpu/attention/attention_f32.h"
#include "model/cpu/attention/attention_walk.h"
