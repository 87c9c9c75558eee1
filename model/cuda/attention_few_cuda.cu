/* Attention of few rows (decode). A block of the grid takes up to 16 items of one KV head and one
 * split of 512 positions, so a long context gives many blocks. It reads K and V of the split once:
 * 4096 D bytes. The kernel is bound by memory, so copies must be in flight all the time.
 *
 * It computes the same bits as the kernel for many rows (model/cuda/attention_cuda.cuh), in another
 * order of time, because here several lanes share the positions of one item:
 *
 *   1  scores    4 warps, each 16 of the 64 positions of a block; S of all 512 stays in registers
 *   2  weights   the maximum after each block is known after all scores
 *   3  values    4 warps, each 16 channels at a time, over all positions in order; P of a block
 *                goes through shared memory to all warps
 *
 * The blocks of K of the split, then the blocks of V, pass through a ring of pieces in shared
 * memory. The copy of a piece starts stages - 1 pieces ahead, so copies of V start while the scores
 * are computed. */
#include "model/cuda/attention_mma_cuda.cuh"

enum { ITEMS = 16 };

/* Shared memory beside the ring. */
struct split_rows {
    uint4 p[2][4][32]; /* P of a block, and of the one before: registers of A, 4 steps */
    float most[ATTENTION_BLOCKS][ATTENTION_WARPS][ITEMS];    /* of 16 scores */
    float sums[ATTENTION_BLOCKS][ATTENTION_WARPS][4][ITEMS]; /* of 4 of 16 weights */
    float old[ATTENTION_BLOCKS][ITEMS]; /* factor of the sums before the block */
};

/* This lane's part of its rows g and g + 8. */
struct lane_rows {
    struct attention_span span[2];
    float top[2];
};

template <int D> struct ring_shape {
    static const int k_chunks = attention_shape<D>::k_chunks;
    static const int v_chunks = attention_shape<D>::v_chunks;
    static const int piece = k_chunks > v_chunks ? k_chunks : v_chunks;
    static const int stages = D == 64 ? 4 : D == 256 ? 2 : 3;
};

__device__ __forceinline__ uint32_t row_of(const struct attention_call &a, uint32_t item)
{
    return min(item / (a.n_heads / a.n_kv_heads), (uint32_t)a.rows - 1);
}

/* Starts the copy of piece i of the split: the n blocks of K from `from` on, then those of V. */
template <int D>
__device__ __forceinline__ void copy_piece(uint4 *ring, const struct attention_call &a, int i,
                                           int from, int n)
{
    uint4 *to = ring + i % ring_shape<D>::stages * ring_shape<D>::piece;
    if (i < n)
        attention_copy_k<D>(to, a, from + i, blockIdx.y);
    else if (i < 2 * n)
        attention_copy_v<D>(to, a, from + i - n, blockIdx.y);
    spw_copy_async_commit();
}

/* Waits until all threads have piece i, and starts a copy into the place of piece i - 1. */
template <int D>
__device__ __forceinline__ const uint4 *next_piece(uint4 *ring, const struct attention_call &a,
                                                   int i, int from, int n)
{
    spw_copy_async_wait<ring_shape<D>::stages - 2>();
    __syncthreads(); /* all threads' copies are there, and all have read piece i - 1 */
    copy_piece<D>(ring, a, i + ring_shape<D>::stages - 1, from, n);
    return ring + i % ring_shape<D>::stages * ring_shape<D>::piece;
}

/* Q as registers of A. */
template <int D>
__device__ __forceinline__ void load_queries(uint32_t q[D / 16][4], const struct attention_call &a,
                                             uint32_t item, uint32_t n_items)
{
    const uint32_t lane = threadIdx.x % 32;
    SPW_UNROLL
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t mine = item + lane / 4 + 8 * side;
        const uint16_t *row = (const uint16_t *)a.q + attention_query(a, mine);
        const uint32_t *from = (const uint32_t *)row + lane % 4;
        SPW_UNROLL
        for (int step = 0; step < D / 16; step++) {
            q[step][side] = mine < n_items ? from[8 * step] : 0;
            q[step][side + 2] = mine < n_items ? from[8 * step + 4] : 0;
        }
    }
}

/* Scores of this warp's 16 positions of a block: s[n][2 side + c] is row side of position
 * 16 warp + 8 n + 2 t + c. */
template <int D>
__device__ __forceinline__ void scores(float s[2][4], const uint32_t q[D / 16][4],
                                       const uint32_t *k)
{
    const struct attention_k_words lane = attention_k_lane();
    const uint32_t *mine = k + threadIdx.x / 32 * 4 * attention_shape<D>::k_block;
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        s[i / 4][i % 4] = 0.0f;
    SPW_UNROLL
    for (int i = 0; i < 2 * (D / 16); i++) {
        const uint32_t *at = mine + lane.at[i % 2] + i / 2 * 128;
        const uint32_t b[2] = {at[0], at[64]};
        spw_mma_bf16(s[i % 2], q[i / 2], b);
    }
}

/* Scales and masks this lane's scores of block x, and writes their maximum to shared memory. */
__device__ __forceinline__ void mask(float s[2][4], struct split_rows *r, const struct lane_rows &w,
                                     const struct attention_job &job, int x)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int first = x * ATTENTION_BLOCK + 16 * warp + 2 * (lane % 4);
    attention_scale<8>(&s[0][0], job);
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        float most = -INFINITY;
        SPW_UNROLL
        for (int i = 0; i < 4; i++) {
            float *score = &s[i / 2][2 * side + i % 2];
            int at = first + i / 2 * 8 + i % 2;
            bool seen = at >= w.span[side].lo && at < w.span[side].hi;
            *score = seen ? *score : -INFINITY;
            most = fmaxf(most, *score);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (lane % 4 == 0)
            r->most[x % ATTENTION_BLOCKS][warp][lane / 4 + 8 * side] = most;
    }
}

/* Turns this lane's scores of block b into weights, rounded and packed as registers of A. Writes
 * their sums and the factor of the earlier sums, and updates the maximum. */
__device__ __forceinline__ uint4 weights(const float s[8], struct split_rows *r,
                                         struct lane_rows &w, int b)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4,
              t = lane % 4;
    uint32_t p[4];
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        float top = w.top[side], x[4];
        SPW_UNROLL
        for (int i = 0; i < ATTENTION_WARPS; i++)
            w.top[side] = fmaxf(w.top[side], r->most[b][i][g + 8 * side]);
        float base = attention_base(w.top[side]);
        SPW_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = spw_device_exp2(s[i / 2 * 4 + 2 * side + i % 2] - base);
        r->sums[b][warp][t][g + 8 * side] = (x[0] + x[1]) + (x[2] + x[3]);
        if (warp == 0 && t == 0)
            r->old[b][g + 8 * side] = spw_device_exp2(top - base);
        p[side] = spw_device_pack_bf16(x[0], x[1]);
        p[side + 2] = spw_device_pack_bf16(x[2], x[3]);
    }
    return make_uint4(p[0], p[1], p[2], p[3]);
}

/* The sum of a row's weights: this lane's blocks in order, then the four lanes. A kernel in which
 * one lane holds the same positions of all 64 adds in the same order. */
__device__ __forceinline__ float row_sum(const struct split_rows *r, int row, int from, int to)
{
    const int t = (int)threadIdx.x % 4;
    float sum = 0.0f;
    for (int b = from; b < to; b++) {
        float low = r->sums[b][0][t][row] + r->sums[b][1][t][row];
        sum = fmaf(sum, r->old[b][row], low + (r->sums[b][2][t][row] + r->sums[b][3][t][row]));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* The product of one step if a word of V is not finite: row by row. */
__device__ __forceinline__ void values_hidden(float out[4], const uint32_t p[4],
                                              const uint32_t words[2],
                                              const struct attention_job &job, uint32_t item,
                                              int at)
{
    SPW_UNROLL_NOT
    for (int r = 0; r < 16; r++) {
        uint32_t row = row_of(job.a, item + (uint32_t)r);
        attention_mma_row(out, p, words, attention_visible(job, row), at, r);
    }
}

/* out += P V of block x. `p`: P of the block. `masked`: some row does not see all of the block. */
template <int D, bool masked>
__device__ __forceinline__ void values(float out[(D / 16 + 3) / 4][2][4], const uint4 p[4][32],
                                       const float old[2], const uint32_t *v,
                                       const struct attention_job &job, uint32_t item, int x)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = 4 * attention_shape<D>::v_row;
    const struct attention_v_words words = attention_v_lane<D>();
    /* Warps 0 and 2 take the first half of 32 channels, warps 1 and 3 the second half, in each
     * round. */
    const int at[2] = {(warp % 2 ? words.at[2] : words.at[0]) + warp / 2 * 32,
                       (warp % 2 ? words.at[3] : words.at[1]) + warp / 2 * 32};
    SPW_UNROLL
    for (int u = 0; u < (D / 16 + 3) / 4; u++) {
        if (u * ATTENTION_WARPS + warp >= D / 16)
            continue;
        SPW_UNROLL
        for (int i = 0; i < 8; i++)
            out[u][i / 4][i % 4] *= old[i % 4 / 2];
        SPW_UNROLL
        for (int i = 0; i < 8; i++) {
            int step = i / 2, n = i % 2;
            const uint4 weight = p[step][lane];
            const uint32_t rows[4] = {weight.x, weight.y, weight.z, weight.w};
            const uint32_t *from = v + at[n] + u * 64 + 8 * step * row;
            const uint32_t b[2] = {from[0], from[4 * row]};
            if (masked &&
                __any_sync(0xffffffffu, !(attention_finite(b[0]) && attention_finite(b[1]))))
                values_hidden(out[u][n], rows, b, job, item,
                              x * ATTENTION_BLOCK + 16 * step + 2 * (lane % 4));
            else
                spw_mma_bf16(out[u][n], rows, b);
        }
    }
}

/* Merges the split into the states of the items. An unseen split leaves a state as it is; a fresh
 * state becomes empty. */
template <int D>
__device__ __forceinline__ void merge(const struct attention_job &job,
                                      float out[(D / 16 + 3) / 4][2][4], const struct split_rows *r,
                                      const struct lane_rows &w, uint32_t item, uint32_t n_items,
                                      int from, int to)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    float *state[2], top[2], all[2], sum[2];
    bool fresh = job.a.first || job.split_floats;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        uint32_t mine = item + (uint32_t)(lane / 4 + 8 * side);
        state[side] = mine < n_items ? attention_state(job, mine) : nullptr;
        sum[side] = row_sum(r, lane / 4 + 8 * side, from, to);
        top[side] = fresh || !state[side] ? -INFINITY : state[side][D];
        all[side] = fresh || !state[side] ? 0.0f : state[side][D + 1];
    }
    __syncthreads(); /* all have read the states' (max, sum) */
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        if (!state[side] || (sum[side] == 0 && !fresh))
            continue;
        /* A fresh state that sees nothing becomes empty: zeros, minus infinity, zero. */
        struct attention_factors by = attention_factors_of(top[side], w.top[side]);
        SPW_UNROLL
        for (int n = 0; n < (D / 16 + 3) / 4; n++) {
            int unit = n * ATTENTION_WARPS + warp;
            if (unit >= D / 16)
                continue;
            SPW_UNROLL
            for (int c = 0; c < 2; c++) {
                float2 *at = (float2 *)(state[side] + 16 * unit + 8 * c + 2 * t);
                float2 was = all[side] == 0 ? make_float2(0.0f, 0.0f) : *at;
                /* adding 0 drops a zero's sign */
                was.x = attention_merge_out(by, was.x, out[n][c][2 * side] + 0.0f);
                was.y = attention_merge_out(by, was.y, out[n][c][2 * side + 1] + 0.0f);
                *at = was;
            }
        }
        if (warp == 0 && t == 0) {
            state[side][D] = by.top;
            state[side][D + 1] = attention_merge_sum(by, all[side], sum[side]);
        }
    }
}

/* grid: (tiles of 16 items, KV heads, 1 or splits) */
template <int D>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    k_attention_few(SPW_PARAMETER struct attention_job job)
{
#ifndef ATTENTION_NO_MMA
    spw_grid_wait();
    spw_grid_next();
    const struct attention_call &a = job.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    SPW_SHARED_DYNAMIC(uint4, ring);
    struct split_rows *r =
        reinterpret_cast<struct split_rows *>(ring + ring_shape<D>::stages * ring_shape<D>::piece);
    uint32_t n_items = (uint32_t)a.rows * (a.n_heads / a.n_kv_heads), item = blockIdx.x * ITEMS;
    uint32_t first = row_of(a, item), last = row_of(a, item + ITEMS - 1);
    struct attention_span head = attention_visible(job, first), tail = attention_visible(job, last);
    struct attention_span blocks = attention_blocks(job, first, last);
    int n = max(blocks.hi - blocks.lo, 0), start = blocks.lo % ATTENTION_BLOCKS;
    for (int i = 0; i < ring_shape<D>::stages - 1; i++)
        copy_piece<D>(ring, a, i, blocks.lo, n);

    struct lane_rows w;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        w.span[side] = attention_visible(job, row_of(a, item + (uint32_t)(lane / 4 + 8 * side)));
        w.top[side] = -INFINITY;
    }
    uint32_t q[D / 16][4];
    load_queries<D>(q, a, item, n_items);
    float s[ATTENTION_BLOCKS][8];
    for (int i = 0; i < n; i++) {
        float block[2][4];
        const uint4 *k = next_piece<D>(ring, a, i, blocks.lo, n);
        scores<D>(block, q, reinterpret_cast<const uint32_t *>(k));
        mask(block, r, w, job, blocks.lo + i);
        SPW_UNROLL
        for (int b = 0; b < ATTENTION_BLOCKS * 8; b++) /* unrolled: registers cannot be indexed */
            s[b / 8][b % 8] = b / 8 == i ? block[b % 8 / 4][b % 4] : s[b / 8][b % 8];
    }
    __syncthreads(); /* all maxima are written */
    uint4 p[ATTENTION_BLOCKS];
    SPW_UNROLL
    for (int i = 0; i < ATTENTION_BLOCKS; i++)
        if (i < n)
            p[i] = weights(s[i], r, w, start + i);

    float out[(D / 16 + 3) / 4][2][4] = {};
    for (int i = 0; i < n; i++) {
        SPW_UNROLL
        for (int b = 0; b < ATTENTION_BLOCKS; b++)
            if (b == i)
                r->p[i % 2][warp][lane] = p[b];
        /* The barrier of next_piece also makes P and the factors visible. */
        const uint4 *piece = next_piece<D>(ring, a, n + i, blocks.lo, n);
        const uint32_t *v = reinterpret_cast<const uint32_t *>(piece);
        const float old[2] = {r->old[start + i][lane / 4], r->old[start + i][lane / 4 + 8]};
        int x = blocks.lo + i, from = x * ATTENTION_BLOCK;
        if (tail.lo > from || head.hi < from + ATTENTION_BLOCK)
            values<D, true>(out, r->p[i % 2], old, v, job, item, x);
        else
            values<D, false>(out, r->p[i % 2], old, v, job, item, x);
    }
    merge<D>(job, out, r, w, item, n_items, start, start + n);
#endif
}

template <int D> static int launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    const struct attention_call *a = &job->a;
    size_t items = a->rows * (a->n_heads / a->n_kv_heads);
    size_t bytes =
        ring_shape<D>::stages * ring_shape<D>::piece * sizeof(uint4) + sizeof(struct split_rows);
    dim3 grid((unsigned)spw_div_up(items, ITEMS), a->n_kv_heads, n_grid);
    SPW_LAUNCH((k_attention_few<D>), grid, ATTENTION_THREADS, bytes, s, *job);
    return spw_cuda_launched();
}

/* A block takes 62 KiB at D = 128. A multiprocessor runs three blocks on sm_90, two on sm_80, one
 * on sm_86 and sm_89. Each block has copies of 32 KiB in flight. Other head sizes are similar. */
int spw_attention_few_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    return ATTENTION_LAUNCH(launch, job, n_grid, s);
}
