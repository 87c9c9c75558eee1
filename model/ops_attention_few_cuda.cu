/* Attention of few rows (decode): a block of the grid takes up to 16 items of one KV head and one
 * split of 512 positions, so that a long context is many blocks, and reads K and V of the split
 * once: 4096 D bytes. It is bound by memory: what counts is that copies are under way all the time.
 *
 * What is computed is what the kernel for many rows computes (model/attention_cuda.cuh), to the
 * bit, in another order of time, for here the lanes must share one item's positions:
 *
 *   1  scores    4 warps, each 16 of the 64 positions of a block; S of all 512 stays in registers
 *   2  weights   the maximum after each block is known once all scores are; P goes to shared memory
 *   3  values    4 warps, each 16 channels at a time, over all positions in order
 *
 * K of the split's blocks, then V of them, pass through a ring of STAGES pieces in shared memory; a
 * piece is asked for STAGES - 1 pieces ahead, V already while the scores are computed. */
#include "model/attention_mma_cuda.cuh"

enum { ITEMS = 16 };

/* Shared memory beside the ring. */
struct split_rows {
    uint4 p[ATTENTION_BLOCKS][4][32];                     /* P as registers of A, 4 steps a block */
    float most[ATTENTION_BLOCKS][ATTENTION_WARPS][ITEMS]; /* of 16 scores */
    float sums[ATTENTION_BLOCKS][8][ITEMS];               /* of 8 weights */
    float old[ATTENTION_BLOCKS][ITEMS]; /* factor of what was summed before the block */
};

/* What a lane knows of its rows g and g + 8. */
struct lane_rows {
    struct attention_span span[2];
    float top[2];
};

template <int D> struct ring_shape {
    static const int k_chunks = attention_shape<D>::k_chunks;
    static const int v_chunks = attention_shape<D>::v_chunks;
    static const int piece = k_chunks > v_chunks ? k_chunks : v_chunks;
};

__device__ __forceinline__ uint32_t row_of(const struct spw_attention_args &a, uint32_t item)
{
    return min(item / (a.n_heads / a.n_kv_heads), (uint32_t)a.rows - 1);
}

/* Starts the copy of piece i of the split: K of its n blocks from `from` on, then V of them. */
template <int D, int STAGES>
__device__ __forceinline__ void copy_piece(uint4 *ring, const struct spw_attention_args &a, int i,
                                           int from, int n)
{
    uint4 *to = ring + i % STAGES * ring_shape<D>::piece;
    if (i < n)
        attention_copy_k<D>(to, a, from + i, blockIdx.y);
    else if (i < 2 * n)
        attention_copy_v<D>(to, a, from + i - n, blockIdx.y);
    spw_copy_async_commit();
}

/* Piece i is there for all threads, and its predecessor's place is asked for anew. */
template <int D, int STAGES>
__device__ __forceinline__ const uint4 *next_piece(uint4 *ring, const struct spw_attention_args &a,
                                                   int i, int from, int n)
{
    spw_copy_async_wait<STAGES - 2>();
    __syncthreads(); /* all threads' copies are there, and all have read piece i - 1 */
    copy_piece<D, STAGES>(ring, a, i + STAGES - 1, from, n);
    return ring + i % STAGES * ring_shape<D>::piece;
}

/* Q as registers of A. */
template <int D>
__device__ __forceinline__ void load_queries(uint32_t q[D / 16][4],
                                             const struct spw_attention_args &a, uint32_t item,
                                             uint32_t n_items)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, lane = threadIdx.x % 32;
    SPW_UNROLL
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t mine = item + lane / 4 + 8 * side;
        size_t at = mine / group * a.q_stride + (blockIdx.y * group + mine % group) * D;
        const uint32_t *from = (const uint32_t *)((const uint16_t *)a.q + at) + lane % 4;
        SPW_UNROLL
        for (int step = 0; step < D / 16; step++) {
            q[step][side] = mine < n_items ? from[8 * step] : 0;
            q[step][side + 2] = mine < n_items ? from[8 * step + 4] : 0;
        }
    }
}

/* Scores of this warp's 16 positions of a block: s[i][2 side + c] is row side of position
 * 16 warp + 4 t + 2 c + i. Eight bytes of K are a register of B for two of them. */
template <int D>
__device__ __forceinline__ void scores(float s[2][4], const uint32_t q[D / 16][4], const uint4 *k)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4,
              t = lane % 4;
    const uint4 *chunk = k + warp * attention_shape<D>::k_block + 4 * t + (g / 2 ^ (t & 2));
    const uint2 *mine = (const uint2 *)chunk + g % 2;
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        s[i / 4][i % 4] = 0.0f;
    SPW_UNROLL
    for (int step = 0; step < D / 16; step++) {
        uint2 low = mine[step * 64], high = mine[step * 64 + 32];
        const uint32_t even[2] = {low.x, high.x}, odd[2] = {low.y, high.y};
        spw_mma_bf16(s[0], q[step], even);
        spw_mma_bf16(s[1], q[step], odd);
    }
}

/* Scales and masks this lane's scores of block x; their maximum goes to shared memory. */
__device__ __forceinline__ void mask(float s[2][4], struct split_rows *r, const struct lane_rows &w,
                                     const struct attention_job &job, int x)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int first = x * ATTENTION_BLOCK + 16 * warp + 4 * (lane % 4);
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        float most = -INFINITY;
        SPW_UNROLL
        for (int i = 0; i < 4; i++) {
            float *score = &s[i % 2][2 * side + i / 2];
            bool seen = first + i >= w.span[side].lo && first + i < w.span[side].hi;
            *score = seen ? attention_score(job, *score) : -INFINITY;
            most = fmaxf(most, *score);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (lane % 4 == 0)
            r->most[x % ATTENTION_BLOCKS][warp][lane / 4 + 8 * side] = most;
    }
}

/* This lane's scores of block b become weights in P's order, their sums of 8, and the factor of
 * what came before; the maximum moves on. */
__device__ __forceinline__ void weights(const float s[2][4], struct split_rows *r,
                                        struct lane_rows &w, int b)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4,
              t = lane % 4;
    uint32_t p[4];
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        float top = w.top[side], x[4];
        for (int i = 0; i < ATTENTION_WARPS; i++)
            w.top[side] = fmaxf(w.top[side], r->most[b][i][g + 8 * side]);
        float base = attention_base(w.top[side]);
        SPW_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = spw_device_exp2(s[i % 2][2 * side + i / 2] - base);
        float sum = (x[0] + x[1]) + (x[2] + x[3]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (t % 2 == 0)
            r->sums[b][2 * warp + t / 2][g + 8 * side] = sum;
        if (warp == 0 && t == 0)
            r->old[b][g + 8 * side] = spw_device_exp2(top - base);
        p[side] = spw_device_pack_bf16(x[0], x[1]);
        p[side + 2] = spw_device_pack_bf16(x[2], x[3]);
    }
    int step = warp / 2 * 2 + t % 2, to = 4 * g + 2 * (warp % 2) + t / 2;
    r->p[b][step][to] = make_uint4(p[0], p[1], p[2], p[3]);
}

/* Sum of a row's weights: a lane's blocks in order, then the four lanes, as they are summed where a
 * lane holds 8 positions of every 32. */
__device__ __forceinline__ float row_sum(const struct split_rows *r, int row, int from, int to)
{
    const int t = (int)threadIdx.x % 4;
    float sum = 0.0f;
    for (int b = from; b < to; b++)
        sum = fmaf(sum, r->old[b][row], r->sums[b][t][row] + r->sums[b][t + 4][row]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* Channels 16 unit + 4 t + (0..3): out[i][2 side + c] is channel 2 c + i of row side. */
template <int D>
__device__ __forceinline__ void values(float out[2][4], const struct split_rows *r, const uint4 *v,
                                       const struct attention_job &job, uint32_t item, int unit,
                                       int x, bool masked)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, b = x % ATTENTION_BLOCKS;
    const int row = attention_shape<D>::v_row;
    const uint4 *chunk = v + 4 * t * row + ((4 * unit + g / 2) ^ 2 * t);
    const uint2 *mine = (const uint2 *)chunk + g % 2;
    float old[2] = {r->old[b][g], r->old[b][g + 8]};
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        out[i / 4][i % 4] *= old[i % 4 / 2];
    SPW_UNROLL
    for (int step = 0; step < 4; step++) {
        const uint4 weight = r->p[b][step][lane];
        const uint32_t p[4] = {weight.x, weight.y, weight.z, weight.w};
        uint2 low = mine[(step / 2 * 16 + step % 2 * 2) * row * 2];
        uint2 high = mine[(step / 2 * 16 + step % 2 * 2 + 1) * row * 2];
        const uint32_t words[2][2] = {{low.x, high.x}, {low.y, high.y}};
        bool finite = attention_finite(make_uint4(low.x, low.y, high.x, high.y));
        if (!masked || !__any_sync(0xffffffffu, !finite)) {
            spw_mma_bf16(out[0], p, words[0]);
            spw_mma_bf16(out[1], p, words[1]);
            continue;
        }
        int at = x * ATTENTION_BLOCK + step / 2 * 32 + 8 * t + step % 2 * 4;
        SPW_UNROLL_NOT
        for (int i = 0; i < 16; i++) {
            struct attention_span seen =
                attention_visible(job.a, row_of(job.a, item + (uint32_t)i));
            attention_mma_row(out[0], p, words[0], seen, at, i);
            attention_mma_row(out[1], p, words[1], seen, at, i);
        }
    }
}

/* The merge of the split into the states of the items; an unseen split leaves them, or makes fresh
 * ones empty. */
template <int D>
__device__ __forceinline__ void merge(const struct attention_job &job,
                                      float out[(D / 16 + 3) / 4][2][4], const struct split_rows *r,
                                      const struct lane_rows &w, uint32_t item, uint32_t n_items,
                                      int from, int to)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    const uint32_t group = job.a.n_heads / job.a.n_kv_heads;
    float *state[2], top[2], all[2], sum[2];
    bool fresh = job.a.first || job.split_floats;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        uint32_t mine = item + (uint32_t)(lane / 4 + 8 * side);
        state[side] = mine < n_items
                          ? attention_state(job, mine / group, blockIdx.y * group + mine % group)
                          : nullptr;
        sum[side] = row_sum(r, lane / 4 + 8 * side, from, to);
        top[side] = fresh || !state[side] ? -INFINITY : state[side][D];
        all[side] = fresh || !state[side] ? 0.0f : state[side][D + 1];
    }
    __syncthreads(); /* all have read the states' (max, sum) */
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        if (!state[side] || (sum[side] == 0 && !fresh))
            continue;
        /* A fresh state that sees nothing comes out empty: zeros, minus infinity, zero. */
        struct attention_factors by = attention_merge(top[side], all[side], w.top[side], sum[side]);
        SPW_UNROLL
        for (int n = 0; n < (D / 16 + 3) / 4; n++) {
            int unit = n * ATTENTION_WARPS + warp;
            if (unit >= D / 16)
                continue;
            SPW_UNROLL
            for (int c = 0; c < 2; c++) {
                float2 *at = (float2 *)(state[side] + 16 * unit + 4 * t + 2 * c);
                float2 was = all[side] == 0 ? make_float2(0.0f, 0.0f) : *at;
                /* adding 0 drops a zero's sign */
                was.x = attention_merge_out(by, was.x, out[n][0][2 * side + c] + 0.0f);
                was.y = attention_merge_out(by, was.y, out[n][1][2 * side + c] + 0.0f);
                *at = was;
            }
        }
        if (warp == 0 && t == 0) {
            state[side][D] = by.top;
            state[side][D + 1] = by.sum;
        }
    }
}

/* grid: (tiles of 16 items, KV heads, 1 or splits) */
template <int D, int STAGES>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    k_attention_few(SPW_PARAMETER struct attention_job job)
{
#ifndef ATTENTION_NO_MMA
    const struct spw_attention_args &a = job.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    SPW_SHARED_DYNAMIC(uint4, ring);
    struct split_rows *r =
        reinterpret_cast<struct split_rows *>(ring + STAGES * ring_shape<D>::piece);
    uint32_t n_items = (uint32_t)a.rows * (a.n_heads / a.n_kv_heads), item = blockIdx.x * ITEMS;
    uint32_t first = row_of(a, item), last = row_of(a, item + ITEMS - 1);
    struct attention_span head = attention_visible(a, first), tail = attention_visible(a, last);
    struct attention_span blocks = attention_blocks(job, first, last);
    int n = max(blocks.hi - blocks.lo, 0), start = blocks.lo % ATTENTION_BLOCKS;
    for (int i = 0; i < STAGES - 1; i++)
        copy_piece<D, STAGES>(ring, a, i, blocks.lo, n);

    struct lane_rows w;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        w.span[side] = attention_visible(a, row_of(a, item + (uint32_t)(lane / 4 + 8 * side)));
        w.top[side] = -INFINITY;
    }
    uint32_t q[D / 16][4];
    load_queries<D>(q, a, item, n_items);
    float s[ATTENTION_BLOCKS][2][4];
    SPW_UNROLL
    for (int i = 0; i < ATTENTION_BLOCKS; i++)
        if (i < n) {
            const uint4 *k = next_piece<D, STAGES>(ring, a, i, blocks.lo, n);
            scores<D>(s[i], q, k);
            mask(s[i], r, w, job, blocks.lo + i);
        }
    __syncthreads(); /* the maxima are there */
    SPW_UNROLL
    for (int i = 0; i < ATTENTION_BLOCKS; i++)
        if (i < n)
            weights(s[i], r, w, start + i);

    float out[(D / 16 + 3) / 4][2][4] = {};
    for (int i = 0; i < n; i++) {
        /* The first one's barrier also makes P and its factors visible. */
        const uint4 *v = next_piece<D, STAGES>(ring, a, n + i, blocks.lo, n);
        int from = (blocks.lo + i) * ATTENTION_BLOCK;
        bool masked = tail.lo > from || head.hi < from + ATTENTION_BLOCK;
        SPW_UNROLL
        for (int u = 0; u < (D / 16 + 3) / 4; u++)
            if (u * ATTENTION_WARPS + warp < D / 16)
                values<D>(out[u], r, v, job, item, u * ATTENTION_WARPS + warp, blocks.lo + i,
                          masked);
    }
    merge<D>(job, out, r, w, item, n_items, start, start + n);
#endif
}

template <int D, int STAGES>
static int launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    const struct spw_attention_args *a = &job->a;
    size_t items = a->rows * (a->n_heads / a->n_kv_heads);
    size_t bytes = STAGES * ring_shape<D>::piece * sizeof(uint4) + sizeof(struct split_rows);
    dim3 grid((unsigned)spw_div_up(items, ITEMS), a->n_kv_heads, n_grid);
    SPW_TRY(spw_cuda_result(cudaFuncSetAttribute(
        k_attention_few<D, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes)));
    SPW_LAUNCH((k_attention_few<D, STAGES>), grid, ATTENTION_THREADS, bytes, s, *job);
    return spw_cuda_launched();
}

/* Two blocks of the grid, or more, at a time on a multiprocessor with 164 KiB (sm_80) or 228
 * (sm_90), one with 100 (sm_86, sm_89), with 48 KiB or more asked for ahead in each. */
int spw_attention_few_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    switch (job->a.head_dim) {
    case 64:
        return launch<64, 6>(job, n_grid, s);
    case 80:
        return launch<80, 4>(job, n_grid, s);
    case 96:
        return launch<96, 4>(job, n_grid, s);
    case 128:
        return launch<128, 4>(job, n_grid, s);
    default:
        return launch<256, 2>(job, n_grid, s);
    }
}
