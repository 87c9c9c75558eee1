/* Attention in f32 arithmetic, plain C. */
#define KERNEL(op) spw_##op##_kernel_portable
enum { F32_ITEMS = 1, F32_BLOCKS = 1, F32_VECTORS = 1 };
#include "model/cpu/attention/attention_f32.h"
#include "model/cpu/attention/attention_walk.h"
