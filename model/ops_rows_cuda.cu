/* Row operations on the GPU: see ops_cuda.h. Elementwise ones read and write each byte once. */
#include "model/ops_cuda.h"

#include "quant/cuda.cuh"

enum { THREADS = 256, MOST_BLOCKS = 1 << 16 };

static unsigned blocks(size_t n)
{
    return (unsigned)spw_min_u64(spw_div_up(n, THREADS), MOST_BLOCKS);
}

__global__ void k_softcap(float *x, size_t n, float cap)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        x[i] = cap * tanhf(x[i] / cap);
}

int spw_softcap_cuda(const struct spw_softcap_args *a, spw_stream s)
{
    if (!a->n)
        return 0;
    SPW_LAUNCH(k_softcap, blocks(a->n), THREADS, 0, s, a->x, a->n, a->cap);
    return spw_cuda_launched();
}
