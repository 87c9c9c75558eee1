/* Attention of many rows. A block walks the splits in order, like FlashAttention-2 (Dao, 2023,
 * arXiv:2307.08691), with mma.sync. model/cuda/attention_cuda.cuh says what is computed.
 *
 * A block of the grid is 4 warps, each with MT * 16 items of one KV head. All warps share the
 * blocks of 64 positions that pass through shared memory. While the block computes P V of a block
 * of positions, K of the next one is copied; V is copied during Q K^T and the softmax:
 *
 *      copies      | V x       | K x+1     | V x+1 ...
 *      computation | S x, P x  | P V x     | S x+1 ...
 *
 * With MT = 2 each register of K and V that is loaded from shared memory serves two products. With
 * MT = 1 an A100 would read shared memory as long as it multiplies. The running state of a split is
 * in registers. The state itself (fp32) is in global memory; a split reads and writes it once: 2 *
 * MT * 16 * (D + 2) * 4 bytes, next to 512 * D * 4 bytes of K and V that a warp reads meanwhile,
 * both from the L2 cache.
 *
 * A block of the grid reads K and V of its splits once. Shared memory holds Q in the order of the
 * product's registers, then K and V of 64 positions: 64 KiB at D = 128. A wgmma kernel for sm_90
 * would be a second kernel, with one chain of its own for every number of rows. */
#include "model/cuda/attention_mma_cuda.cuh"

/* The items of a warp: where they are, and their sums between two blocks. */
template <int D, int MT> struct warp_rows {
    float out[attention_shape<D>::tiles][MT][4]; /* channels 8 n + 2 t + (0, 1) of both rows */
    float top[MT][2], sum[MT][2];                /* of the running split; sum: this lane's share */
    uint32_t item, n_items, group, last_row;
};

template <int D, int MT>
__device__ __forceinline__ uint32_t row_of(const struct warp_rows<D, MT> &w, int m, int side)
{
    uint32_t g = threadIdx.x % 32 / 4;
    return min((w.item + (uint32_t)m * 16 + (uint32_t)side * 8 + g) / w.group, w.last_row);
}

/* The state of this lane's row, or NULL after the last item. */
template <int D, int MT>
__device__ __forceinline__ float *state_of(const struct attention_job &job,
                                           const struct warp_rows<D, MT> &w, int m, int side)
{
    uint32_t item = w.item + (uint32_t)m * 16 + (uint32_t)side * 8 + threadIdx.x % 32 / 4;
    if (item >= w.n_items)
        return nullptr;
    return attention_state(job, item);
}

/* Q of the warp's items as registers of A: [MT][steps][lane][4]. */
template <int D, int MT>
__device__ __forceinline__ void load_queries(uint32_t *to, const struct attention_job &job,
                                             const struct warp_rows<D, MT> &w)
{
    const struct attention_call &a = job.a;
    for (int i = (int)threadIdx.x % 32; i < MT * 16 * (D / 2); i += 32) {
        uint32_t r = (uint32_t)i / (D / 2), pair = (uint32_t)i % (D / 2), item = w.item + r,
                 word = 0;
        uint32_t step = pair / 8, t = pair % 4, high = pair / 4 % 2, lane = r % 8 * 4 + t;
        if (item < w.n_items) {
            size_t at = attention_query(a, item) + 2 * pair;
            word = *(const uint32_t *)((const uint16_t *)a.q + at);
        }
        uint32_t fragment = r / 16 * (D / 16) + step;
        to[(fragment * 32 + lane) * 4 + r / 8 % 2 + 2 * high] = word;
    }
}

/* s = Q K^T of the block's 64 positions: s[m][n][2 side + c] is row side of position 8 n + 2 t + c.
 */
template <int D, int MT>
__device__ __forceinline__ void scores(float s[MT][8][4], const uint4 *q, const uint32_t *k)
{
    const struct attention_k_words lane = attention_k_lane();
    SPW_UNROLL
    for (int i = 0; i < MT * 32; i++)
        s[i / 32][i / 4 % 8][i % 4] = 0.0f;
    SPW_UNROLL
    for (int step = 0; step < D / 16; step++) {
        uint4 a[MT];
        SPW_UNROLL
        for (int m = 0; m < MT; m++)
            a[m] = q[(m * (D / 16) + step) * 32 + threadIdx.x % 32];
        SPW_UNROLL
        for (int n = 0; n < 8; n++) {
            const uint32_t *at =
                k + lane.at[n % 2] + n / 2 * 4 * attention_shape<D>::k_block + step * 128;
            const uint32_t b[2] = {at[0], at[64]};
            SPW_UNROLL
            for (int m = 0; m < MT; m++) {
                const uint32_t rows[4] = {a[m].x, a[m].y, a[m].z, a[m].w};
                spw_mma_bf16(s[m][n], rows, b);
            }
        }
    }
}

/* Masks the scores of positions of block x that a row does not see. */
template <int D, int MT>
__device__ __forceinline__ void mask(float s[MT][8][4], const struct attention_job &job,
                                     const struct warp_rows<D, MT> &w, int x)
{
    int first = x * ATTENTION_BLOCK + 2 * (int)(threadIdx.x % 4);
    SPW_UNROLL
    for (int r = 0; r < 2 * MT; r++) {
        struct attention_span span = attention_visible(job, row_of(w, r / 2, r % 2));
        SPW_UNROLL
        for (int i = 0; i < 16; i++) {
            int at = first + i / 2 * 8 + i % 2;
            float *score = &s[r / 2][i / 2][2 * (r % 2) + i % 2];
            if (at < span.lo || at >= span.hi)
                *score = -INFINITY;
        }
    }
}

/* One row of a lane: turns its 16 scores into weights and updates (top, sum). Returns the factor of
 * the earlier sums. */
__device__ __forceinline__ float weigh(float s[8][4], int side, float *top, float *sum)
{
    float most = *top, old, part[4];
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, fmaxf(s[i][2 * side], s[i][2 * side + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    float base = attention_base(most);
    old = spw_device_exp2(*top - base);
    SPW_UNROLL
    for (int step = 0; step < 4; step++) {
        float p[4];
        SPW_UNROLL
        for (int i = 0; i < 4; i++) {
            float *score = &s[2 * step + i / 2][2 * side + i % 2];
            p[i] = *score = spw_device_exp2(*score - base);
        }
        part[step] = (p[0] + p[1]) + (p[2] + p[3]);
    }
    float total = (part[0] + part[1]) + (part[2] + part[3]);
    *sum = fmaf(*sum, old, total);
    *top = most;
    return old;
}

/* Turns scores into P, as registers of A, 16 positions a step. Scales `out` to the new maximum. */
template <int D, int MT>
__device__ __forceinline__ void weights(uint32_t p[4][MT][4], float s[MT][8][4],
                                        struct warp_rows<D, MT> &w)
{
    SPW_UNROLL
    for (int m = 0; m < MT; m++) {
        float old[2];
        SPW_UNROLL
        for (int side = 0; side < 2; side++)
            old[side] = weigh(s[m], side, &w.top[m][side], &w.sum[m][side]);
        SPW_UNROLL
        for (int i = 0; i < 16; i++) {
            const float *from = &s[m][i / 4 * 2 + i % 4 / 2][i % 2 * 2];
            p[i / 4][m][i % 4] = spw_device_pack_bf16(from[0], from[1]);
        }
        /* A factor of 1 changes nothing, and most factors are 1 after a few blocks. */
        if (!__any_sync(0xffffffffu, old[0] != 1.0f || old[1] != 1.0f))
            continue;
        SPW_UNROLL
        for (int n = 0; n < attention_shape<D>::tiles; n++) {
            w.out[n][m][0] *= old[0];
            w.out[n][m][1] *= old[0];
            w.out[n][m][2] *= old[1];
            w.out[n][m][3] *= old[1];
        }
    }
}

/* One step of 16 positions and 8 channels if a word of V is not finite: out += P V, row by row.
 * `at`: this lane's first position. */
template <int D, int MT>
__device__ __forceinline__ void values_hidden(float out[MT][4], const uint32_t p[MT][4],
                                              const uint32_t b[2], const struct attention_job &job,
                                              const struct warp_rows<D, MT> &w, int at)
{
    SPW_UNROLL_NOT
    for (int r = 0; r < 16; r++) {
        SPW_UNROLL
        for (int m = 0; m < MT; m++) {
            uint32_t row = min((w.item + (uint32_t)(m * 16 + r)) / w.group, w.last_row);
            attention_mma_row(out[m], p[m], b, attention_visible(job, row), at, r);
        }
    }
}

/* out += P V. `masked`: some row of the warp does not see all of block x. */
template <int D, int MT, bool masked>
__device__ __forceinline__ void values(struct warp_rows<D, MT> &w, const uint32_t p[4][MT][4],
                                       const uint32_t *v, const struct attention_job &job, int x)
{
    const int tiles = attention_shape<D>::tiles, row = 4 * attention_shape<D>::v_row;
    const struct attention_v_words lane = attention_v_lane<D>();
    SPW_UNROLL
    for (int i = 0; i < 4 * tiles; i++) {
        int step = i / tiles, n = i % tiles;
        const uint32_t *from = v + lane.at[n % 4] + n / 4 * 32 + 8 * step * row;
        const uint32_t b[2] = {from[0], from[4 * row]};
        if (masked &&
            __any_sync(0xffffffffu, !(attention_finite(b[0]) && attention_finite(b[1])))) {
            int at = x * ATTENTION_BLOCK + 16 * step + 2 * (int)(threadIdx.x % 4);
            values_hidden<D, MT>(w.out[n], p[step], b, job, w, at);
            continue;
        }
        SPW_UNROLL
        for (int m = 0; m < MT; m++)
            spw_mma_bf16(w.out[n][m], p[step][m], b);
    }
}

template <int D, int MT> __device__ __forceinline__ void start_split(struct warp_rows<D, MT> &w)
{
    SPW_UNROLL
    for (int m = 0; m < MT; m++) {
        SPW_UNROLL
        for (int i = 0; i < 4 * attention_shape<D>::tiles; i++)
            w.out[i / 4][m][i % 4] = 0.0f;
        w.top[m][0] = w.top[m][1] = -INFINITY;
        w.sum[m][0] = w.sum[m][1] = 0.0f;
    }
}

/* Merges `out` of one row into its state, for this lane's channels. */
template <int D, int MT>
__device__ __forceinline__ void merge_row(float *state, const struct warp_rows<D, MT> &w, int m,
                                          int side, struct attention_factors by, bool empty)
{
    SPW_UNROLL
    for (int n = 0; n < attention_shape<D>::tiles; n++) {
        float2 *to = (float2 *)(state + 8 * n) + threadIdx.x % 4;
        float2 was = empty ? make_float2(0.0f, 0.0f) : *to;
        /* adding 0 drops a zero's sign */
        was.x = attention_merge_out(by, was.x, w.out[n][m][2 * side] + 0.0f);
        was.y = attention_merge_out(by, was.y, w.out[n][m][2 * side + 1] + 0.0f);
        *to = was;
    }
}

template <int D, int MT>
__device__ __forceinline__ void end_split(const struct attention_job &job,
                                          struct warp_rows<D, MT> &w)
{
    SPW_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        int m = i / 2, side = i % 2;
        float sum = w.sum[m][side], *state = state_of(job, w, m, side);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        bool merges = state && sum != 0;
        float top = merges ? state[D] : 0.0f, all = merges ? state[D + 1] : 0.0f;
        __syncwarp(); /* the row's four lanes have read them */
        if (!merges)
            continue;
        struct attention_factors by = attention_factors_of(top, w.top[m][side]);
        merge_row(state, w, m, side, by, all == 0);
        if (threadIdx.x % 4 == 0) {
            state[D] = by.top;
            state[D + 1] = attention_merge_sum(by, all, sum);
        }
    }
}

/* Fresh states start empty: zeros, minus infinity, zero. */
template <int D, int MT>
__device__ __forceinline__ void start_states(const struct attention_job &job,
                                             const struct warp_rows<D, MT> &w)
{
    SPW_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        float *state = state_of(job, w, i / 2, i % 2);
        for (int c = (int)threadIdx.x % 4; state && c < D + 2; c += 4)
            state[c] = c == D ? -INFINITY : 0.0f;
    }
}

/* grid: (blocks of 64 MT items, KV heads, 1 or splits) */
template <int D, int MT>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    k_attention_rows(SPW_PARAMETER struct attention_job job)
{
#ifndef ATTENTION_NO_MMA
    spw_grid_wait();
    spw_grid_next();
    const struct attention_call &a = job.a;
    const int warp_items = 16 * MT, warp = (int)threadIdx.x / 32;
    SPW_SHARED_DYNAMIC(uint4, shared);
    uint4 *q = shared + warp * (MT * D / 16 * 32);
    uint4 *k = shared + ATTENTION_WARPS * (MT * D / 16 * 32), *v = k + attention_shape<D>::k_chunks;
    const uint32_t *v_words = reinterpret_cast<const uint32_t *>(v);
    struct warp_rows<D, MT> w;
    w.group = a.n_heads / a.n_kv_heads;
    w.n_items = (uint32_t)a.rows * w.group;
    w.last_row = (uint32_t)a.rows - 1;
    uint32_t first = blockIdx.x * ATTENTION_WARPS * warp_items;
    uint32_t end = min(first + ATTENTION_WARPS * warp_items, w.n_items);
    w.item = first + (uint32_t)(warp * warp_items);
    struct attention_span blocks = attention_blocks(job, first / w.group, (end - 1) / w.group);
    struct attention_span head = attention_visible(job, min(w.item / w.group, w.last_row));
    struct attention_span tail =
        attention_visible(job, min((w.item + (uint32_t)warp_items - 1) / w.group, w.last_row));

    if (a.first || job.split_floats)
        start_states(job, w);
    start_split(w);
    if (blocks.lo < blocks.hi)
        attention_copy_k<D>(k, a, blocks.lo, blockIdx.y);
    spw_copy_async_commit();
    load_queries(reinterpret_cast<uint32_t *>(q), job, w);
    for (int x = blocks.lo; x < blocks.hi; x++) {
        int from = x * ATTENTION_BLOCK, to = from + ATTENTION_BLOCK;
        bool sees = w.item < w.n_items && head.lo < to && tail.hi > from;
        bool masked = tail.lo > from || head.hi < to;
        uint32_t p[4][MT][4];
        spw_copy_async_wait<0>(); /* K x */
        __syncthreads();          /* all threads have K x, and V x - 1 was read */
        attention_copy_v<D>(v, a, x, blockIdx.y);
        spw_copy_async_commit();
        if (sees) {
            float s[MT][8][4];
            scores<D, MT>(s, q, reinterpret_cast<const uint32_t *>(k));
            attention_scale<MT * 32>(&s[0][0][0], job);
            if (masked)
                mask<D, MT>(s, job, w, x);
            weights<D, MT>(p, s, w);
        }
        spw_copy_async_wait<0>(); /* V x */
        __syncthreads();          /* all threads have V x, and K x was read */
        if (x + 1 < blocks.hi)
            attention_copy_k<D>(k, a, x + 1, blockIdx.y);
        spw_copy_async_commit();
        if (sees && masked)
            values<D, MT, true>(w, p, v_words, job, x);
        else if (sees)
            values<D, MT, false>(w, p, v_words, job, x);
        if (x % ATTENTION_BLOCKS == ATTENTION_BLOCKS - 1 || x + 1 == blocks.hi) {
            end_split(job, w);
            start_split(w);
        }
    }
#endif
}

template <int D> static int launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    const int MT = D == 256 ? 1 : 2;
    const struct attention_call *a = &job->a;
    size_t items = a->rows * (a->n_heads / a->n_kv_heads), each = ATTENTION_WARPS * MT * 16;
    size_t chunks = attention_shape<D>::k_chunks + attention_shape<D>::v_chunks;
    size_t bytes = (each * (D / 8) + chunks) * sizeof(uint4);
    dim3 grid((unsigned)spw_div_up(items, each), a->n_kv_heads, n_grid);
    SPW_LAUNCH((k_attention_rows<D, MT>), grid, ATTENTION_THREADS, bytes, s, *job);
    return spw_cuda_launched();
}

int spw_attention_rows_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    return ATTENTION_LAUNCH(launch, job, n_grid, s);
}
