/* What the blocks of each quantized type hold, and where: a table of constants for everything that
 * reads blocks, which is the reference (blocks.c), the CPU kernels and the CUDA kernels. The layout
 * of a type stands here and nowhere else.
 *
 *   bits of a code = low bits + high bits, each in a place of its own
 *   number         = (d * scale) * (code - offset) + m * minimum, see blocks.h
 *
 * `run` bytes hold the low bits of run * 8 / low_bits numbers: number i in byte i % run, from bit
 * i / run * low_bits on. The runs follow each other. High bits of a large block lie in the same
 * order, in runs of 32 bytes; those of a small block are the bits of one word. */
#ifndef SPW_QUANT_TYPE_FACTS_H
#define SPW_QUANT_TYPE_FACTS_H

#include "quant/types.h"

/* How a block stores d, m and the scales of its parts. */
enum spw_scales {
    SPW_SCALE_F16,   /* one part: d, then m if there are minima */
    SPW_SCALE_POWER, /* one part: d is 2^(e - 128), e a byte */
    SPW_SCALES_4,    /* a byte for each part: scale, and minimum in the high half */
    SPW_SCALES_6,    /* twelve bytes: four bits of each scale, then two; 32 is subtracted */
    SPW_SCALES_6_6,  /* twelve bytes: eight scales and eight minima */
    SPW_SCALES_8,    /* a byte with a sign for each part */
    SPW_SCALES_2_4,  /* two bits of each scale in one word, then four bits; 32 is subtracted */
};

/* What a code stands for. */
enum spw_values {
    SPW_VALUES_PLAIN,
    SPW_VALUES_IQ4,
    SPW_VALUES_E2M1, /* twice the numbers of MXFP4 */
};

/* The values of four bits, each as V(value). */
#define SPW_IQ4_VALUES(V)                                                                          \
    V(-127), V(-104), V(-83), V(-65), V(-49), V(-35), V(-22), V(-10), V(1), V(13), V(25), V(38),   \
        V(53), V(69), V(89), V(113)
#define SPW_E2M1_VALUES(V)                                                                         \
    V(0), V(1), V(2), V(3), V(4), V(6), V(8), V(12), V(0), V(-1), V(-2), V(-3), V(-4), V(-6),      \
        V(-8), V(-12)

/* `offset`: what makes all codes, or values, positive; 128 is that of bytes with a sign. `d`: where
 * it lies, and m after it. `scales`: where they lie.
 *
 *      id, values, low bits, at, run, high bits, at, offset, part, minima, form, d, scales */
#define SPW_QUANTIZED_TYPES(ROW)                                                                   \
    ROW(Q8_0, SPW_VALUES_PLAIN, 8, 2, 32, 0, 0, 128, 32, false, SPW_SCALE_F16, 0, 0)               \
    ROW(Q4_0, SPW_VALUES_PLAIN, 4, 2, 16, 0, 0, 8, 32, false, SPW_SCALE_F16, 0, 0)                 \
    ROW(Q4_1, SPW_VALUES_PLAIN, 4, 4, 16, 0, 0, 0, 32, true, SPW_SCALE_F16, 0, 0)                  \
    ROW(Q5_0, SPW_VALUES_PLAIN, 4, 6, 16, 1, 2, 16, 32, false, SPW_SCALE_F16, 0, 0)                \
    ROW(Q5_1, SPW_VALUES_PLAIN, 4, 8, 16, 1, 4, 0, 32, true, SPW_SCALE_F16, 0, 0)                  \
    ROW(Q2_K, SPW_VALUES_PLAIN, 2, 16, 32, 0, 0, 0, 16, true, SPW_SCALES_4, 80, 0)                 \
    ROW(Q3_K, SPW_VALUES_PLAIN, 2, 32, 32, 1, 0, 4, 16, false, SPW_SCALES_6, 108, 96)              \
    ROW(Q4_K, SPW_VALUES_PLAIN, 4, 16, 32, 0, 0, 0, 32, true, SPW_SCALES_6_6, 0, 4)                \
    ROW(Q5_K, SPW_VALUES_PLAIN, 4, 48, 32, 1, 16, 0, 32, true, SPW_SCALES_6_6, 0, 4)               \
    ROW(Q6_K, SPW_VALUES_PLAIN, 4, 0, 64, 2, 128, 32, 16, false, SPW_SCALES_8, 208, 192)           \
    ROW(IQ4_NL, SPW_VALUES_IQ4, 4, 2, 16, 0, 0, 128, 32, false, SPW_SCALE_F16, 0, 0)               \
    ROW(IQ4_XS, SPW_VALUES_IQ4, 4, 8, 16, 0, 0, 128, 32, false, SPW_SCALES_2_4, 0, 2)              \
    ROW(MXFP4, SPW_VALUES_E2M1, 4, 1, 16, 0, 0, 12, 32, false, SPW_SCALE_POWER, 0, 0)

struct spw_type_facts {
    enum spw_dtype type;
    int elements, bytes; /* of a block */
    enum spw_values values;
    int low_bits, low_at, run, high_bits, high_at, offset;
    int part; /* numbers that share a scale */
    bool has_minima;
    enum spw_scales form;
    int d_at, scales_at;
};

/* In the order of enum spw_dtype, from its first quantized type on. */
#ifdef __cplusplus
constexpr
#endif
    static const struct spw_type_facts spw_quantized_facts[] = {
#define SPW_FACTS_ROW(id, ...) {SPW_DTYPE_##id, SPW_##id##_ELEMENTS, SPW_##id##_BYTES, __VA_ARGS__},
        SPW_QUANTIZED_TYPES(SPW_FACTS_ROW)
#undef SPW_FACTS_ROW
};

/* Of a quantized type. With a constant type compilers make constants of the members. In CUDA
 * kernels: of a type that is a constant. */
#define SPW_FACTS(type) (spw_quantized_facts[(type)-SPW_DTYPE_Q8_0])

#endif
