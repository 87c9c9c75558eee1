/* The encoder, sixteen lanes at a time. */
#define KERNEL(op) spw_##op##_kernel_avx512
#include "quant/codec_encode.h"
