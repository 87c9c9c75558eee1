/* The kernels of model/cuda/linear_codes_cuda.cuh for types with blocks of 256 numbers. */
#include "model/cuda/linear_codes_cuda.cuh"

int spw_linear_codes_large_cuda(const struct codes_product *p, enum spw_dtype type, spw_stream s)
{
    switch (type) {
    case SPW_DTYPE_Q2_K:
        return launch<SPW_DTYPE_Q2_K>(p, s);
    case SPW_DTYPE_Q3_K:
        return launch<SPW_DTYPE_Q3_K>(p, s);
    case SPW_DTYPE_Q4_K:
        return launch<SPW_DTYPE_Q4_K>(p, s);
    case SPW_DTYPE_Q5_K:
        return launch<SPW_DTYPE_Q5_K>(p, s);
    case SPW_DTYPE_Q6_K:
        return launch<SPW_DTYPE_Q6_K>(p, s);
    case SPW_DTYPE_IQ4_XS:
        return launch<SPW_DTYPE_IQ4_XS>(p, s);
    default:
        return -EINVAL;
    }
}
