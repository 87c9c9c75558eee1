/* What the two tensor-core kernels of attention share: the layout of a block of 64 positions in
 * shared memory, and the order of positions and channels in the indices of the product. bf16.
 *
 * The layout of a tile (quant/tile.h) fits the product. A 32-bit word of K is two channels of a
 * position: a register of B of S = Q K^T. A word of V is two positions of a channel: a register of
 * B of P V. Shared memory holds both in their stored order, in chunks of 16 bytes. Only the place
 * of a chunk in its line of 128 bytes changes, which puts the words of one register into 32 banks:
 *
 *   K: [4 blocks of 16][D/2 pairs][4 chunks of 4 positions]   chunk ^= 2 * (pair / 2 % 2)
 *   V: [32 pairs of positions][D/4 chunks of 4 channels]      chunk ^= 2 * (pair % 4)
 *      (a row of V has places for a multiple of 8 chunks)
 *
 * A lane loads one word at a time: the two registers of B must be neighbours, and words that are
 * neighbours in memory never are (with loads of 16 bytes each product would cost two moves).
 *
 * With g = lane / 4, t = lane % 4: a lane computes of S the positions 8 n + 2 t + (0, 1) of rows g
 * and g + 8. It needs the same positions of P in the steps of 16 positions, so P never leaves the
 * registers. A kernel with another order of S moves P into the same places. */
#ifndef SPW_MODEL_CUDA_ATTENTION_MMA_CUDA_CUH
#define SPW_MODEL_CUDA_ATTENTION_MMA_CUDA_CUH

#include "model/cuda/attention_cuda.cuh"

/* Without bf16 tensor cores the fma kernel is faster than an emulation of these kernels, so they
 * are neither launched nor compiled. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ATTENTION_NO_MMA
#endif

/* launch<D>(job, n_grid, s) for the head size of the job, one of those in takes_mma(). */
#define ATTENTION_LAUNCH(launch, job, n_grid, s)                                                   \
    ((job)->a.head_dim == 64    ? launch<64>(job, n_grid, s)                                       \
     : (job)->a.head_dim == 80  ? launch<80>(job, n_grid, s)                                       \
     : (job)->a.head_dim == 96  ? launch<96>(job, n_grid, s)                                       \
     : (job)->a.head_dim == 128 ? launch<128>(job, n_grid, s)                                      \
                                : launch<256>(job, n_grid, s))

template <int D> struct attention_shape {
    static const int steps = D / 16;              /* of a score's chain */
    static const int tiles = D / 8;               /* of 8 channels of V */
    static const int k_block = 2 * D;             /* chunks of 16 positions */
    static const int k_chunks = 4 * k_block;      /* of a block of 64 */
    static const int v_row = (D / 4 + 7) / 8 * 8; /* chunks of two positions, with gaps */
    static const int v_chunks = ATTENTION_BLOCK / 2 * v_row;
};

/* The K half of a KV head (from the middle of the tile on: the V half), or NULL. */
__device__ __forceinline__ const uint4 *attention_half(const struct attention_call &a, int block,
                                                       uint32_t head)
{
    const char *tile = attention_tile(a, block / 2);
    return tile ? (const uint4 *)(tile + head * spw_tile_head_bytes(a.head_dim, SPW_DTYPE_BF16))
                : nullptr;
}

/* Starts the copy of block x of K. All threads of the block of the grid call it. */
template <int D>
__device__ __forceinline__ void attention_copy_k(uint4 *to, const struct attention_call &a, int x,
                                                 uint32_t kv_head)
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
__device__ __forceinline__ void attention_copy_v(uint4 *to, const struct attention_call &a, int x,
                                                 uint32_t kv_head)
{
    const int row = D / 4, v_row = attention_shape<D>::v_row;
    const uint4 *head = attention_half(a, x, a.n_kv_heads + kv_head);
    const uint4 *from = head + x % 2 * (ATTENTION_BLOCK / 2 * row);
    SPW_UNROLL
    for (int n = 0; n < ATTENTION_BLOCK / 2 * row / ATTENTION_THREADS; n++) {
        int i = n * ATTENTION_THREADS + (int)threadIdx.x, pair = i / row, chunk = i % row;
        spw_copy16_async(to + pair * v_row + (chunk ^ pair % 4 * 2), from + i, head != nullptr);
    }
}

/* ---- a lane's words of B ----
 *
 * Base offsets, to which the loops add constants. K, n = 8 positions of the block, step = 16
 * channels: word k.at[n % 2] + n / 2 * 4 k_block + step * 128, and the word 64 further. V, n = 8
 * channels, step = 16 positions: word v.at[n % 4] + n / 4 * 32 + step * 32 v_row, and the word
 * 16 v_row further. */
struct attention_k_words {
    int at[2];
};

struct attention_v_words {
    int at[4];
};

__device__ __forceinline__ struct attention_k_words attention_k_lane(void)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    struct attention_k_words k;
    k.at[0] = 16 * t + 4 * (t & 2) + g;
    k.at[1] = 16 * t + 4 * (2 ^ (t & 2)) + g;
    return k;
}

template <int D> __device__ __forceinline__ struct attention_v_words attention_v_lane(void)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    struct attention_v_words v;
    SPW_UNROLL
    for (int i = 0; i < 4; i++)
        v.at[i] = 4 * attention_shape<D>::v_row * t + 8 * (i ^ t) + g;
    return v;
}

/* ---- values that are not finite ----
 *
 * A masked weight is an exact zero, but zero times infinity is NaN. So V that is not finite must be
 * hidden from the rows that do not see it. The memory after the end of a sequence may hold
 * anything. The kernels look for such values only in blocks that some of the 16 rows do not see
 * completely. If they find one, they compute the product row by row. */

__device__ __forceinline__ bool attention_finite(uint32_t word)
{
    return (word & 0x7f80u) != 0x7f80u && (word & 0x7f800000u) != 0x7f800000u;
}

/* The halves of a word of V, at positions `at` and at + 1, that lie in [lo, hi). */
__device__ __forceinline__ uint32_t attention_hide(uint32_t word, int at, struct attention_span s)
{
    uint32_t low = at >= s.lo && at < s.hi ? word & 0xffffu : 0;
    return low | (at + 1 >= s.lo && at + 1 < s.hi ? word & 0xffff0000u : 0);
}

/* d += a b, one step, for row r of the 16 only, and only with the part of b that the row sees.
 * `at`: the position of the lane's first word; the second word is eight positions further. Updates
 * the lane's part of row r. */
__device__ __forceinline__ void attention_mma_row(float d[4], const uint32_t a[4],
                                                  const uint32_t b[2], struct attention_span seen,
                                                  int at, int r)
{
    const uint32_t words[2] = {attention_hide(b[0], at, seen), attention_hide(b[1], at + 8, seen)};
    float own[4] = {d[0], d[1], d[2], d[3]};
    int g = (int)threadIdx.x % 32 / 4;
    spw_mma_bf16(own, a, words);
    d[0] = g == r ? own[0] : d[0];
    d[1] = g == r ? own[1] : d[1];
    d[2] = g + 8 == r ? own[2] : d[2];
    d[3] = g + 8 == r ? own[3] : d[3];
}

#endif
