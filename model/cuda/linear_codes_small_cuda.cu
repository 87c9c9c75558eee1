/* The kernels of model/cuda/linear_codes_cuda.cuh for types with blocks of 32 numbers. */
#include "model/cuda/linear_codes_cuda.cuh"

int spw_linear_codes_small_cuda(const struct codes_product *p, enum spw_dtype type, spw_stream s)
{
    return launch_type<false>(p, type, s);
}
