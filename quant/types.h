/* The types that numbers are stored in: a table with a row for each.
 *
 * A row of a matrix is a row of blocks, each of `elements` numbers in `bytes` bytes. A block of a
 * plain type is one number. So bytes come from spw_row_bytes(type, n). spw_dtype_bytes is for
 * numbers that are addressed one by one, in kernels and tiles: plain types only. */
#ifndef SPW_QUANT_TYPES_H
#define SPW_QUANT_TYPES_H

#include "base/base.h"

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
    ROW(F8_E5M2, "f8_e5m2", 1, 1, 1, false)

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

/* Of n numbers that lie in whole blocks. */
SPW_INLINE uint64_t spw_row_bytes(enum spw_dtype t, uint64_t n)
{
    const struct spw_type type = spw_type_of(t);
    return n / type.elements * type.bytes;
}

/* Of one number of a plain type. */
SPW_INLINE size_t spw_dtype_bytes(enum spw_dtype t)
{
    return spw_type_of(t).bytes;
}

const char *spw_dtype_name(enum spw_dtype t);
/* out[0 .. n) = numbers [first, first + n) of a row at `row`; both borders are borders of blocks.
 * Each becomes the nearest float. `row` may have any address. */
void spw_type_read(enum spw_dtype t, const void *row, uint64_t first, size_t n, float *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
