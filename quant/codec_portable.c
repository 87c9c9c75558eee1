/* The encoder in plain C: four lanes of the compiler's own vectors. */
#define KERNEL(op) spw_##op##_kernel_portable
#include "quant/codec_encode.h"
