/* Blocks of the quantized types: GGUF's formats, each written out once, in blocks.c.
 *
 * A block of any type is unpacked into the same integers. Number i of the block is
 *
 *     x[i] = (d * scales[i / 16]) * codes[i] + m * minima[i / 16]
 *
 * in f32: each of the three products and the sum is rounded. A type without minima has m = -0 and
 * minima of 0: adding -0 changes no number. A type whose block has one scale has scales of 1. */
#ifndef SPW_QUANT_BLOCKS_H
#define SPW_QUANT_BLOCKS_H

#include "quant/types.h"

enum {
    SPW_BLOCK_ELEMENTS = 256, /* at most */
    SPW_BLOCK_PART = 16,      /* numbers that share a scale in every type */
    SPW_BLOCK_PARTS = SPW_BLOCK_ELEMENTS / SPW_BLOCK_PART,
};

struct spw_quantized_block {
    float d, m;
    int8_t scales[SPW_BLOCK_PARTS], minima[SPW_BLOCK_PARTS];
    int8_t codes[SPW_BLOCK_ELEMENTS];
};

/* Unpacks one block of a quantized type. `from` may have any address. Members behind the type's
 * `elements` keep their values. */
void spw_block_unpack(enum spw_dtype t, const void *from, struct spw_quantized_block *out);

#endif
