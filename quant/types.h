/* The types that numbers are stored in: a table with a row for each.
 *
 * A row of a matrix is a row of blocks, each of `elements` numbers in `bytes` bytes. A block of a
 * plain type is one number; blocks.h has the blocks of quantized types. So bytes come from
 * spw_row_bytes(type, n). spw_dtype_bytes of base/numbers.h is for numbers that are addressed one
 * by one, in kernels and tiles: plain types only. */
#ifndef SPW_QUANT_TYPES_H
#define SPW_QUANT_TYPES_H

#include "base/base.h"
#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* `align`: of an address that kernels read a matrix from. `multiplies`: kernels take a matrix as it
 * is stored; else it is converted first.
 *
 *      id, name, elements and bytes of a block, align, multiplies */
#define SPW_TYPES(ROW)                                                                             \
    ROW(AUTO, "auto", 1, 0, 1, false)                                                              \
    ROW(F32, "f32", 1, 4, 4, true)                                                                 \
    ROW(F16, "f16", 1, 2, 2, true)                                                                 \
    ROW(BF16, "bf16", 1, 2, 2, true)                                                               \
    ROW(F64, "f64", 1, 8, 8, false)                                                                \
    ROW(F8_E4M3, "f8_e4m3", 1, 1, 1, false)                                                        \
    ROW(F8_E5M2, "f8_e5m2", 1, 1, 1, false)                                                        \
    ROW(Q8_0, "q8_0", 32, 34, 2, true)                                                             \
    ROW(Q4_0, "q4_0", 32, 18, 2, true)                                                             \
    ROW(Q4_1, "q4_1", 32, 20, 4, true)                                                             \
    ROW(Q5_0, "q5_0", 32, 22, 2, true)                                                             \
    ROW(Q5_1, "q5_1", 32, 24, 8, true)                                                             \
    ROW(Q2_K, "q2_k", 256, 84, 4, true)                                                            \
    ROW(Q3_K, "q3_k", 256, 110, 2, true)                                                           \
    ROW(Q4_K, "q4_k", 256, 144, 16, true)                                                          \
    ROW(Q5_K, "q5_k", 256, 176, 16, true)                                                          \
    ROW(Q6_K, "q6_k", 256, 210, 2, true)                                                           \
    ROW(IQ4_NL, "iq4_nl", 32, 18, 2, true)                                                         \
    ROW(IQ4_XS, "iq4_xs", 256, 136, 8, true)                                                       \
    ROW(MXFP4, "mxfp4", 32, 17, 1, true)

/* SPW_Q4_K_BYTES and SPW_Q4_K_ELEMENTS: constants of a type, for type_facts.h. */
enum {
#define SPW_TYPE_SIZES(id, name, elements, bytes, align, multiplies)                               \
    SPW_##id##_ELEMENTS = elements, SPW_##id##_BYTES = bytes,
    SPW_TYPES(SPW_TYPE_SIZES)
#undef SPW_TYPE_SIZES
};

struct spw_type {
    const char *name; /* in options and reports */
    uint32_t elements, bytes, align;
    bool multiplies;
};

SPW_INLINE struct spw_type spw_type_of(enum spw_dtype t)
{
    struct spw_type type = {NULL, 0, 0, 0, false};
#define SPW_TYPE_CASE(id, its_name, its_elements, its_bytes, its_align, does_multiply)             \
    case SPW_DTYPE_##id:                                                                           \
        type.name = its_name;                                                                      \
        type.elements = its_elements;                                                              \
        type.bytes = its_bytes;                                                                    \
        type.align = its_align;                                                                    \
        type.multiplies = does_multiply;                                                           \
        break;
    switch (t) {
        SPW_TYPES(SPW_TYPE_CASE)
    }
#undef SPW_TYPE_CASE
    return type;
}

SPW_INLINE bool spw_type_is_quantized(enum spw_dtype t)
{
    return spw_type_of(t).elements > 1;
}

/* Of n numbers that lie in whole blocks. */
SPW_INLINE uint64_t spw_row_bytes(enum spw_dtype t, uint64_t n)
{
    const struct spw_type type = spw_type_of(t);
    return n / type.elements * type.bytes;
}

const char *spw_dtype_name(enum spw_dtype t);
/* out[0 .. n) = numbers [first, first + n) of a row at `row`; both borders are borders of blocks.
 * A plain number becomes the nearest float; blocks.h has the formula of quantized types. `row` may
 * have any address. */
void spw_type_read(enum spw_dtype t, const void *row, uint64_t first, size_t n, float *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
