/* What the two tensor-core kernels of attention share: a block of 64 positions in shared memory,
 * and the order in which positions and channels meet the product's indices. bf16 throughout.
 *
 * The tile (quant/tile.h) is made for this. A 32-bit word of K is two channels of a position: a
 * register of B of S = Q K^T. A word of V is two positions of a channel: a register of B of P V. In
 * shared memory both stay as they lie, in chunks of 16 bytes, except that a chunk's place in its
 * line of 128 bytes is exchanged so that eight lanes never meet in a bank:
 *
 *   K: [4 blocks of 16][D/2 pairs][4 chunks of 4 positions]   chunk ^= 2 * (pair / 2 % 2)
 *   V: [32 pairs of positions][D/4 chunks of 4 channels]      chunk ^= 2 * (pair / 4 % 4)
 *      (the chunks of a V row are filled up to a multiple of 8, with zeros)
 *
 * With g = lane / 4, t = lane % 4: of S a lane ends up with positions 32 h + 8 t + (0..7) of rows g
 * and g + 8, and these are what it must hold of P in the two steps e = 0, 1 of 16 positions that
 * the 32 make: in step 2 h + e its k = 2t, 2t+1, 2t+8, 2t+9 are positions 32 h + 8 t + 4 e +
 * (0..3). So P never leaves the registers. A kernel that holds S otherwise brings P into the same
 * places. */
#ifndef SPW_MODEL_ATTENTION_MMA_CUDA_CUH
#define SPW_MODEL_ATTENTION_MMA_CUDA_CUH

#include "model/attention_cuda.cuh"

/* Without tensor cores for bf16 the fma kernel is faster than what could stand in for them: these
 * kernels are not launched then, and not compiled. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ATTENTION_NO_MMA
#endif

template <int D> struct attention_shape {
    static const int steps = D / 16;         /* of a score's chain */
    static const int groups = (D + 31) / 32; /* of 32 channels of V */
    static const int k_block = 2 * D;        /* chunks of 16 positions */
    static const int k_chunks = 4 * k_block; /* of a block of 64 */
    static const int v_row = 8 * groups;     /* chunks of two positions */
    static const int v_chunks = 32 * v_row;  /* of a block of 64 */
};

/* The K (or, from the tile's middle on, V) half of a KV head, or NULL. */
__device__ __forceinline__ const uint4 *attention_half(const struct spw_attention_args &a,
                                                       int block, uint32_t head)
{
    const char *tile = (const char *)a.tiles[block / 2];
    return tile ? (const uint4 *)(tile + head * spw_tile_head_bytes(a.head_dim, SPW_DTYPE_BF16))
                : nullptr;
}

/* Starts the copy of block x of K; all threads of the block of the grid. */
template <int D>
__device__ __forceinline__ void attention_copy_k(uint4 *to, const struct spw_attention_args &a,
                                                 int x, uint32_t kv_head)
{
    const uint4 *head = attention_half(a, x, kv_head);
    const uint4 *from = head + x % 2 * attention_shape<D>::k_chunks;
    SPW_UNROLL
    for (int n = 0; n < attention_shape<D>::k_chunks / ATTENTION_THREADS; n++) {
        int i = n * ATTENTION_THREADS + (int)threadIdx.x;
        spw_copy16_async(to + (i ^ (i >> 2 & 2)), from + i, head != nullptr);
    }
}

template <int D>
__device__ __forceinline__ void attention_copy_v(uint4 *to, const struct spw_attention_args &a,
                                                 int x, uint32_t kv_head)
{
    const int v_row = attention_shape<D>::v_row;
    const uint4 *head = attention_half(a, x, a.n_kv_heads + kv_head);
    const uint4 *from = head + x % 2 * (32 * D / 4);
    SPW_UNROLL
    for (int n = 0; n < attention_shape<D>::v_chunks / ATTENTION_THREADS; n++) {
        int i = n * ATTENTION_THREADS + (int)threadIdx.x, pair = i / v_row, chunk = i % v_row;
        bool take = head != nullptr && chunk < D / 4;
        int place = pair * v_row + (chunk ^ (pair >> 1 & 6));
        spw_copy16_async(to + place, from + (take ? pair * (D / 4) + chunk : 0), take);
    }
}

/* ---- values that are not finite ----
 *
 * A masked weight is an exact zero, but zero times infinity is not: where V is not finite it must
 * be hidden from the rows that do not see it. What lies behind a sequence's end may be anything.
 * That is looked for only in blocks that some row of the 16 does not see altogether, and when it is
 * found the product is made row by row. */

__device__ __forceinline__ bool attention_finite(uint32_t word)
{
    return (word & 0x7f80u) != 0x7f80u && (word & 0x7f800000u) != 0x7f800000u;
}

__device__ __forceinline__ bool attention_finite(uint4 words)
{
    return attention_finite(words.x) && attention_finite(words.y) && attention_finite(words.z) &&
           attention_finite(words.w);
}

/* The halves of a word of V at positions at, at + 1 that lie in [lo, hi). */
__device__ __forceinline__ uint32_t attention_hide(uint32_t word, int at, struct attention_span s)
{
    uint32_t low = at >= s.lo && at < s.hi ? word & 0xffffu : 0;
    return low | (at + 1 >= s.lo && at + 1 < s.hi ? word & 0xffff0000u : 0);
}

/* d += a b, one step, in which row r of the 16 meets only what it sees of b (`at`: the position of
 * the lane's first word; the second is two positions on): what the lane holds of row r is updated.
 */
__device__ __forceinline__ void attention_mma_row(float d[4], const uint32_t a[4],
                                                  const uint32_t b[2], struct attention_span seen,
                                                  int at, int r)
{
    const uint32_t words[2] = {attention_hide(b[0], at, seen), attention_hide(b[1], at + 2, seen)};
    float own[4] = {d[0], d[1], d[2], d[3]};
    int g = (int)threadIdx.x % 32 / 4;
    spw_mma_bf16(own, a, words);
    d[0] = g == r ? own[0] : d[0];
    d[1] = g == r ? own[1] : d[1];
    d[2] = g + 8 == r ? own[2] : d[2];
    d[3] = g + 8 == r ? own[3] : d[3];
}

#endif
