/* The types of numbers by name: of weights, activations and KV tiles. quant/types.h has the sizes
 * of weights' blocks; what only names a type, or addresses single numbers, needs no more than
 * this. */
#ifndef SPW_BASE_DTYPE_H
#define SPW_BASE_DTYPE_H

enum spw_dtype {
    SPW_DTYPE_AUTO = 0,
    SPW_DTYPE_F32,
    SPW_DTYPE_F16,
    SPW_DTYPE_BF16,
    SPW_DTYPE_F64, /* this type and the following ones are types of stored weights only */
    SPW_DTYPE_F8_E4M3,
    SPW_DTYPE_F8_E5M2,
    SPW_DTYPE_Q8_0, /* this type and the following ones are quantized: blocks of codes and scales */
    SPW_DTYPE_Q4_0,
    SPW_DTYPE_Q4_1,
    SPW_DTYPE_Q5_0,
    SPW_DTYPE_Q5_1,
    SPW_DTYPE_Q2_K,
    SPW_DTYPE_Q3_K,
    SPW_DTYPE_Q4_K,
    SPW_DTYPE_Q5_K,
    SPW_DTYPE_Q6_K,
    SPW_DTYPE_IQ4_NL,
    SPW_DTYPE_IQ4_XS,
    SPW_DTYPE_MXFP4,
};

#endif
