/* Numbers into the types of types.h: the inverse of spw_type_read, for the types that spillway
 * writes: F32, F16, BF16, Q8_0, Q4_0. Pure; any thread. */
#ifndef SPW_QUANT_PACK_H
#define SPW_QUANT_PACK_H

#include "quant/types.h"

/* Stores from[0 .. n) at `row`, in whole blocks. Plain types round to nearest, ties to even; pack.c
 * has the rounding of quantized types. A number too large for the type becomes infinite. `row` may
 * have any address. */
void spw_type_write(enum spw_dtype t, const float *from, size_t n, void *row);

#endif
