/* Writing K and V of new positions into their tiles (quant/tile.h draws them).
 *
 * A thread takes two channels of two positions 2 p, 2 p + 1 of one head: the four values are two
 * neighbouring words of K and two of V, so that no two threads write into one word. Where only the
 * even position is new its partner in V becomes zero; where only the odd one is, the even half
 * stays as it is. Each byte is read and written once. */
#include "model/ops_cuda.h"

#include "quant/cuda.cuh"

enum { THREADS = 128 };

__device__ __forceinline__ float load_as(const void *x, size_t i, enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 ? ((const float *)x)[i] : spw_device_bf16(((const uint16_t *)x)[i]);
}

__device__ __forceinline__ void store_as(void *to, size_t i, float x, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = t == SPW_DTYPE_F16 ? spw_device_to_f16(x) : spw_device_to_bf16(x);
}

/* grid: (pairs of positions, KV heads) */
__global__ void k_kv_append(SPW_PARAMETER struct spw_kv_append_args a)
{
    const enum spw_dtype t = a.kv_dtype;
    const uint32_t d = a.head_dim, head = blockIdx.y;
    uint64_t pair = a.position / 2 + blockIdx.x;
    uint64_t tile = pair / (SPW_TILE_TOKENS / 2) - a.position / SPW_TILE_TOKENS;
    char *k = (char *)a.tiles[tile] + head * spw_tile_head_bytes(d, t);
    char *v = k + a.n_kv_heads * spw_tile_head_bytes(d, t);
    for (uint32_t c = 2 * threadIdx.x; c < d; c += 2 * blockDim.x)
        for (uint32_t i = 0; i < 4; i++) { /* (position of the pair, channel of the two) */
            uint64_t position = 2 * pair + i / 2;
            uint32_t j = (uint32_t)(position % SPW_TILE_TOKENS), channel = c + i % 2;
            bool is_new = position >= a.position && position < a.position + a.rows;
            size_t from = (size_t)(position - a.position) * a.stride + (size_t)head * d + channel;
            if (is_new) {
                store_as(k, spw_tile_k_index(d, t, j, channel), load_as(a.k, from, a.dtype), t);
                store_as(v, spw_tile_v_index(d, t, j, channel), load_as(a.v, from, a.dtype), t);
            } else if (i / 2 && t != SPW_DTYPE_F32) {
                store_as(v, spw_tile_v_index(d, t, j, channel), 0.0f, t);
            }
        }
}

int spw_kv_append_cuda(const struct spw_kv_append_args *a, spw_stream s)
{
    if (!a->rows)
        return 0;
    uint64_t end = a->position + a->rows;
    uint64_t tiles = spw_div_up(a->position % SPW_TILE_TOKENS + a->rows, SPW_TILE_TOKENS);
    if (tiles > SPW_APPEND_TILES || a->head_dim % 2)
        return -EINVAL;
    dim3 grid((unsigned)((end + 1) / 2 - a->position / 2), a->n_kv_heads);
    SPW_LAUNCH(k_kv_append, grid, a->head_dim > 128 ? THREADS : THREADS / 2, 0, s, *a);
    return spw_cuda_launched();
}
