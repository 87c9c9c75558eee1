/* The orthonormal Hadamard rotation. It spreads a channel of large numbers over a whole block, and
 * then one step fits all channels of the block. A dot product of two rotated vectors is the dot
 * product of the vectors.
 *
 * The matrix is Sylvester's, H[i][j] = (-1)^popcount(i & j) / sqrt(block): symmetric and its own
 * inverse. There is one order: first the factor (no sum overflows unless the result does), then the
 * stages of distance 1, 2, 4, ... Every output is one tree of additions and subtractions: it has
 * the same bits whichever lanes compute it. */
#ifndef SPW_QUANT_HADAMARD_H
#define SPW_QUANT_HADAMARD_H

#include <math.h>

#include "base/base.h"

/* The largest power of two that divides head_dim: what keys (and queries) are rotated in. */
SPW_INLINE uint32_t spw_hadamard_k_block(uint32_t head_dim)
{
    return head_dim & (~head_dim + 1);
}

/* The same for values (and outputs): a rotation stays in its group of 64. */
SPW_INLINE uint32_t spw_hadamard_v_block(uint32_t head_dim)
{
    uint32_t block = spw_hadamard_k_block(head_dim);
    return block < 64 ? block : 64;
}

/* 1 / sqrt(block), rounded once. */
SPW_INLINE float spw_hadamard_factor(uint32_t block)
{
    return (float)(1 / sqrt((double)block));
}

/* Rotates x[n] in place; `block`, a power of two, divides n. */
SPW_INLINE void spw_hadamard_rotate(float *x, uint32_t n, uint32_t block)
{
    float factor = spw_hadamard_factor(block);
    for (uint32_t c = 0; c < n; c++)
        x[c] *= factor;
    for (uint32_t h = 1; h < block; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t c = i; c < i + h; c++) {
                float a = x[c], b = x[c + h];
                x[c] = a + b;
                x[c + h] = a - b;
            }
}

#endif
