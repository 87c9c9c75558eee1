/* The kernels of model/cuda/linear_codes_cuda.cuh for types with blocks of 32 numbers. */
#include "model/cuda/linear_codes_cuda.cuh"

int spw_linear_codes_small_cuda(const struct codes_product *p, enum spw_dtype type, spw_stream s)
{
    switch (type) {
    case SPW_DTYPE_Q8_0:
        return launch<SPW_DTYPE_Q8_0>(p, s);
    case SPW_DTYPE_Q4_0:
        return launch<SPW_DTYPE_Q4_0>(p, s);
    case SPW_DTYPE_Q4_1:
        return launch<SPW_DTYPE_Q4_1>(p, s);
    case SPW_DTYPE_Q5_0:
        return launch<SPW_DTYPE_Q5_0>(p, s);
    case SPW_DTYPE_Q5_1:
        return launch<SPW_DTYPE_Q5_1>(p, s);
    case SPW_DTYPE_IQ4_NL:
        return launch<SPW_DTYPE_IQ4_NL>(p, s);
    case SPW_DTYPE_MXFP4:
        return launch<SPW_DTYPE_MXFP4>(p, s);
    default:
        return -EINVAL;
    }
}
