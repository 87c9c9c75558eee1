/* Attention in f32 arithmetic on AVX-512: 32 registers hold 4 x 4 sums. */
#define KERNEL(op) spw_##op##_kernel_avx512
enum { F32_ITEMS = 4, F32_BLOCKS = 4, F32_VECTORS = 4 };
#include "model/cpu/attention/attention_f32.h"
#include "model/cpu/attention/attention_walk.h"
