/* What the two kernels of attention on quantized tiles (quant/qtile.h) share.
 *
 * A launch rotates its queries once, into fp32. Scores and outputs are sums over rotated channels.
 * What the quantized tiles of a split add to the output is rotated back once, before the merge. The
 * mean of K adds one dot product with the query for each tile. A code is an odd integer, 2 u - 255
 * or 2 h - 15, which every type that is multiplied here holds exactly. The step of a code is a bf16
 * times a power of two. */
#ifndef SPW_MODEL_CUDA_ATTENTION_CODES_CUDA_CUH
#define SPW_MODEL_CUDA_ATTENTION_CODES_CUDA_CUH

#include "model/cuda/attention_cuda.cuh"

#include "quant/hadamard_cuda.cuh"

/* One KV head of a quantized tile; the low planes are NULL where the format has none. */
struct attention_codes {
    const unsigned char *k_means, *k_steps, *k_high, *k_low, *v_steps, *v_high, *v_low;
};

__device__ __forceinline__ struct attention_codes attention_codes_of(const struct attention_call &a,
                                                                     int tile, uint32_t kv_head)
{
    struct spw_qtile_head at = spw_qtile_locate(a.n_kv_heads, spw_tile_square(a.head_dim), kv_head);
    const unsigned char *p = (const unsigned char *)attention_tile(a, tile);
    struct attention_codes c;
    c.k_means = p + at.k_means;
    c.k_steps = p + at.k_steps;
    c.k_high = p + at.k_high;
    c.k_low = a.qformat == SPW_QFORMAT_INT4 ? nullptr : p + at.k_low;
    c.v_steps = p + at.v_steps;
    c.v_high = p + at.v_high;
    c.v_low = a.qformat == SPW_QFORMAT_INT8 ? p + at.v_low : nullptr;
    return c;
}

/* The factor of an odd integer, beside its step. */
__device__ __forceinline__ float attention_code_width(bool fine)
{
    return fine ? 0.5f : 8.0f;
}

#endif
