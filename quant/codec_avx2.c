/* The encoder, eight lanes at a time. */
#define KERNEL(op) spw_##op##_kernel_avx2
#include "quant/codec_encode.h"
