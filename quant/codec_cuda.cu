/* The encoder of quant/codec.h on a GPU. */
#include "quant/codec.h"

#include "quant/cuda.cuh"

int spw_codec_encode_cuda(const struct spw_codec_args *a, spw_stream s)
{
    (void)a;
    (void)s;
    return -ENOTSUP;
}
