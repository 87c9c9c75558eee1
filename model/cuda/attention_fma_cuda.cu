/* Attention in plain fp32 arithmetic: for every pair of types, every even head size, and quantized
 * tiles. K and V are widened exactly (a code times its step is exact). Each sum is one chain of
 * fused multiply-adds, over channels for a score and over positions for an output. Weights stay
 * fp32. model/cuda/attention_cuda.cuh and attention_codes_cuda.cuh say what is computed.
 *
 * A block of the grid takes ITEMS items of one KV head. Scores: a thread takes one position of the
 * block of 64 and half of the items. Weights: a warp takes one item at a time. Values: a thread
 * takes some channels of all items. So one loaded word of K or V serves ITEMS / 2 or ITEMS chains.
 * Shared memory holds q and out [ITEMS][head_dim] and weights [ITEMS][64]. K and V are read from
 * global memory in their stored order; two threads read the same K. */
#include "model/cuda/attention_codes_cuda.cuh"

enum { MANY_ITEMS = 16, FEW_ITEMS = 4 };

/* Shared memory of a block of items. */
template <int ITEMS> struct item_rows {
    __align__(8) float p[ITEMS][ATTENTION_BLOCK]; /* two are loaded at once */
    float old[ITEMS];                             /* factor of the earlier sums */
    float top[ITEMS], sum[ITEMS];                 /* of the running split */
    float all_top[ITEMS], all_sum[ITEMS];         /* of the state */
    struct attention_factors by[ITEMS];           /* of the merge */
    struct attention_span span[ITEMS];            /* positions seen */
    const float *bias[ITEMS];                     /* of the item's head, at distance 0 */
    int query[ITEMS];                             /* position, from the call's first tile on */
    float offset[ITEMS]; /* q . mean of the tile, if the tile is quantized */
};

/* Elements i and i + apart of K or V. */
template <enum spw_dtype T>
__device__ __forceinline__ float2 load_two(const void *from, size_t i, size_t apart)
{
    if (T == SPW_DTYPE_F32)
        return make_float2(((const float *)from)[i], ((const float *)from)[i + apart]);
    uint32_t word = *(const uint32_t *)((const uint16_t *)from + i);
    if (T == SPW_DTYPE_F16)
        return make_float2(spw_device_f16((uint16_t)word), spw_device_f16((uint16_t)(word >> 16)));
    return make_float2(spw_device_bf16((uint16_t)word), spw_device_bf16((uint16_t)(word >> 16)));
}

/* Scales and masks the raw scores of this thread: of the items from `side` on at position j. */
template <int ITEMS>
__device__ __forceinline__ void keep_scores(struct item_rows<ITEMS> &r, float acc[ITEMS / 2],
                                            const struct attention_job &job, int side, int j,
                                            int at)
{
    const int most = (int)job.a.most_distance;
    attention_scale<ITEMS / 2>(acc, job);
    if (job.a.relative_bias) {
        SPW_UNROLL
        for (int i = 0; i < ITEMS / 2; i++) {
            const int distance = max(-most, min(most, at - r.query[side + i]));
            acc[i] = fmaf(r.bias[side + i][distance], 1.44269504f, acc[i]); /* log2(e) */
        }
    }
    SPW_UNROLL
    for (int i = 0; i < ITEMS / 2; i++) {
        bool seen = at >= r.span[side + i].lo && at < r.span[side + i].hi;
        r.p[side + i][j] = seen ? acc[i] : -INFINITY;
    }
}

/* p[item][j] = the score of position j of block x, for this thread's j and half of the items. */
template <enum spw_dtype T, int ITEMS>
__device__ __forceinline__ void scores(struct item_rows<ITEMS> &r, const float *q,
                                       const struct attention_job &job, int x)
{
    const int side = (int)threadIdx.x / ATTENTION_BLOCK * (ITEMS / 2);
    const uint32_t d = job.a.head_dim;
    int j = (int)threadIdx.x % ATTENTION_BLOCK, at = x * ATTENTION_BLOCK + j;
    uint32_t in_tile = (uint32_t)(at % SPW_TILE_TOKENS);
    const char *tile = attention_tile(job.a, x / 2);
    const char *k = tile + blockIdx.y * spw_tile_head_bytes(d, T);
    float acc[ITEMS / 2] = {};
    for (uint32_t c = 0; c < d && tile; c += 2) {
        float2 word = load_two<T>(k, spw_tile_k_index(d, T, in_tile, c), SPW_TILE_BLOCK);
        SPW_UNROLL
        for (int i = 0; i < ITEMS / 2; i++) {
            const float2 pair = *(const float2 *)(q + (side + i) * d + c);
            acc[i] = fmaf(pair.y, word.y, fmaf(pair.x, word.x, acc[i]));
        }
    }
    keep_scores(r, acc, job, side, j, at);
}

/* ---- the same for a quantized tile ---- */

/* Four codes from a word of a plane, or of both planes: from the low halves of its bytes (side 0)
 * or from the high halves. */
__device__ __forceinline__ void load_codes(float x[4], uint32_t high, uint32_t low, bool fine,
                                           int side)
{
    SPW_UNROLL
    for (int i = 0; i < 4; i++) {
        int h = (int)(high >> (8 * i + 4 * side) & 15), l = (int)(low >> (8 * i + 4 * side) & 15);
        x[i] = fine ? (float)(32 * h + 2 * l - 255) : (float)(2 * h - 15);
    }
}

/* offset[item] = q . mean; a warp takes every fourth item. */
template <int ITEMS>
__device__ __forceinline__ void offsets(struct item_rows<ITEMS> &r, const float *q,
                                        const struct attention_job &job, int x)
{
    const uint32_t d = job.a.head_dim, lane = threadIdx.x % 32;
    const float *means = (const float *)attention_codes_of(job.a, x / 2, blockIdx.y).k_means;
    for (int i = (int)threadIdx.x / 32; i < ITEMS; i += ATTENTION_WARPS) {
        float sum = 0.0f;
        for (uint32_t c = lane; c < d; c += 32)
            sum = fmaf(q[i * d + c], means[c], sum);
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0)
            r.offset[i] = sum;
    }
}

/* Like scores(), for a quantized tile. q is rotated. */
template <int ITEMS>
__device__ __forceinline__ void score_codes(struct item_rows<ITEMS> &r, const float *q,
                                            const struct attention_job &job, int x)
{
    const int side = (int)threadIdx.x / ATTENTION_BLOCK * (ITEMS / 2);
    const uint32_t d = job.a.head_dim;
    int j = (int)threadIdx.x % ATTENTION_BLOCK, at = x * ATTENTION_BLOCK + j;
    uint32_t in_tile = (uint32_t)(at % SPW_TILE_TOKENS);
    const struct attention_codes t = attention_codes_of(job.a, x / 2, blockIdx.y);
    const float width = attention_code_width(t.k_low);
    float acc[ITEMS / 2], step = 0.0f;
    SPW_UNROLL
    for (int i = 0; i < ITEMS / 2; i++)
        acc[i] = r.offset[side + i];
    for (uint32_t c = 0; c < d; c += 4) {
        size_t word = spw_qtile_k_index(d, in_tile, c);
        float code[4];
        if (c % SPW_QTILE_GROUP == 0)
            step =
                width *
                spw_device_bf16(
                    ((const uint16_t *)t.k_steps)[c / SPW_QTILE_GROUP * SPW_TILE_TOKENS + in_tile]);
        load_codes(code, *(const uint32_t *)(t.k_high + word),
                   t.k_low ? *(const uint32_t *)(t.k_low + word) : 0, t.k_low, (int)(c / 4 % 2));
        SPW_UNROLL
        for (uint32_t n = 0; n < 4; n++) {
            if (c + n >= d) /* padding */
                continue;
            SPW_UNROLL
            for (int i = 0; i < ITEMS / 2; i++)
                acc[i] = fmaf(q[(side + i) * d + c + n], code[n] * step, acc[i]);
        }
    }
    keep_scores(r, acc, job, side, j, at);
}

/* Like values(), into the rotated out. A code is always finite, also at masked positions. */
template <int ITEMS>
__device__ __forceinline__ void value_codes(const struct item_rows<ITEMS> &r, float *out,
                                            const struct attention_job &job, int x)
{
    const uint32_t d = job.a.head_dim;
    const struct attention_codes t = attention_codes_of(job.a, x / 2, blockIdx.y);
    const float width = attention_code_width(t.v_low);
    for (uint32_t c = threadIdx.x; c < d; c += ATTENTION_THREADS) {
        const uint16_t *steps = (const uint16_t *)t.v_steps + c / SPW_QTILE_GROUP * SPW_TILE_TOKENS;
        float acc[ITEMS];
        SPW_UNROLL
        for (int i = 0; i < ITEMS; i++)
            acc[i] = out[i * d + c] * r.old[i];
        for (int j = 0; j < ATTENTION_BLOCK; j += 4) {
            uint32_t in_tile = (uint32_t)((x * ATTENTION_BLOCK + j) % SPW_TILE_TOKENS);
            size_t word = spw_qtile_v_index(d, in_tile, c);
            float code[4];
            load_codes(code, *(const uint32_t *)(t.v_high + word),
                       t.v_low ? *(const uint32_t *)(t.v_low + word) : 0, t.v_low, j / 4 % 2);
            SPW_UNROLL
            for (int n = 0; n < 4; n++) {
                float v = code[n] * (width * spw_device_bf16(steps[in_tile + n]));
                SPW_UNROLL
                for (int i = 0; i < ITEMS; i++)
                    acc[i] = fmaf(r.p[i][j + n], v, acc[i]);
            }
        }
        SPW_UNROLL
        for (int i = 0; i < ITEMS; i++)
            out[i * d + c] = acc[i];
    }
}

/* Rotates the row of each item; a warp takes every fourth item. */
template <int ITEMS>
__device__ __forceinline__ void turn(float *rows, uint32_t d, uint32_t block, float factor)
{
    for (int i = (int)threadIdx.x / 32; i < ITEMS; i += ATTENTION_WARPS) {
        for (uint32_t c = threadIdx.x % 32; c < d; c += 32)
            rows[i * d + c] *= factor;
        spw_hadamard_stages(rows + i * d, 1, 0, d, block);
    }
}

/* ---- weights, the merge ---- */

/* Turns scores into weights. A warp takes every fourth item, a lane two positions. */
template <int ITEMS> __device__ __forceinline__ void weights(struct item_rows<ITEMS> &r)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = (int)threadIdx.x / 32; i < ITEMS; i += ATTENTION_WARPS) {
        float first = r.p[i][lane], second = r.p[i][lane + 32], top = r.top[i];
        float most = fmaxf(top, fmaxf(first, second));
        for (int step = 16; step; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        float base = attention_base(most);
        r.p[i][lane] = first = spw_device_exp2(first - base);
        r.p[i][lane + 32] = second = spw_device_exp2(second - base);
        float total = first + second, old = spw_device_exp2(top - base);
        for (int step = 16; step; step /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) {
            r.old[i] = old;
            r.top[i] = most;
            r.sum[i] = fmaf(r.sum[i], old, total);
        }
        __syncwarp(); /* top was read by all lanes */
    }
}

/* out[item][c] += p v for this thread's channels. `masked`: some item does not see all of block x.
 * A position is then added only for the items that see it, because V may be anything elsewhere. */
template <enum spw_dtype T, int ITEMS, bool masked>
__device__ __forceinline__ void values(const struct item_rows<ITEMS> &r, float *out,
                                       const struct attention_job &job, int x)
{
    const uint32_t d = job.a.head_dim;
    const char *tile = attention_tile(job.a, x / 2);
    const char *v = tile + (job.a.n_kv_heads + blockIdx.y) * spw_tile_head_bytes(d, T);
    for (uint32_t c = threadIdx.x; c < d; c += ATTENTION_THREADS) {
        float acc[ITEMS];
        SPW_UNROLL
        for (int i = 0; i < ITEMS; i++)
            acc[i] = out[i * d + c] * r.old[i];
        for (int j = 0; j < ATTENTION_BLOCK; j += 2) {
            int at = x * ATTENTION_BLOCK + j;
            float2 word =
                load_two<T>(v, spw_tile_v_index(d, T, (uint32_t)(at % SPW_TILE_TOKENS), c), d);
            SPW_UNROLL
            for (int i = 0; i < ITEMS; i++) {
                float2 p = *(const float2 *)&r.p[i][j];
                if (!masked || (at >= r.span[i].lo && at < r.span[i].hi))
                    acc[i] = fmaf(p.x, word.x, acc[i]);
                if (!masked || (at + 1 >= r.span[i].lo && at + 1 < r.span[i].hi))
                    acc[i] = fmaf(p.y, word.y, acc[i]);
            }
        }
        SPW_UNROLL
        for (int i = 0; i < ITEMS; i++)
            out[i * d + c] = acc[i];
    }
}

/* Merges the split into the states and starts the next one. */
template <int ITEMS>
__device__ __forceinline__ void end_split(struct item_rows<ITEMS> &r, float *out,
                                          const struct attention_job &job, uint32_t first,
                                          uint32_t n)
{
    const uint32_t d = job.a.head_dim;
    bool empty[ITEMS], skip[ITEMS];
    SPW_UNROLL
    for (int i = 0; i < ITEMS; i++) {
        empty[i] = r.all_sum[i] == 0;
        skip[i] = (uint32_t)i >= n || r.sum[i] == 0;
    }
    __syncthreads(); /* the sums were read */
    if (threadIdx.x < ITEMS) {
        int i = (int)threadIdx.x;
        r.by[i] = attention_factors_of(r.all_top[i], r.top[i]);
        if (r.sum[i] != 0) {
            r.all_top[i] = r.by[i].top;
            r.all_sum[i] = attention_merge_sum(r.by[i], r.all_sum[i], r.sum[i]);
        }
        r.top[i] = -INFINITY;
        r.sum[i] = 0.0f;
    }
    __syncthreads(); /* the factors are there */
    for (uint32_t c = threadIdx.x; c < d; c += ATTENTION_THREADS)
        SPW_UNROLL
    for (int i = 0; i < ITEMS; i++) {
        float split = out[i * d + c] + 0.0f; /* a zero's sign is dropped */
        out[i * d + c] = 0.0f;
        if (skip[i])
            continue;
        float *to = attention_state(job, first + (uint32_t)i) + c;
        *to = attention_merge_out(r.by[i], empty[i] ? 0.0f : *to, split);
    }
}

/* Widens the queries, reads (max, sum) of the states, and finds the spans. Items after the last one
 * use the span of the last one. */
template <int ITEMS>
__device__ __forceinline__ void start(struct item_rows<ITEMS> &r, float *q, float *out,
                                      const struct attention_job &job, uint32_t first, uint32_t n)
{
    const struct attention_call &a = job.a;
    uint32_t group = a.n_heads / a.n_kv_heads, d = a.head_dim;
    for (uint32_t i = threadIdx.x; i < ITEMS * d; i += ATTENTION_THREADS) {
        size_t at = attention_query(a, first + i / d) + i % d;
        out[i] = q[i] = 0.0f;
        if (i / d < n)
            q[i] = a.dtype == SPW_DTYPE_F32 ? ((const float *)a.q)[at]
                                            : spw_device_bf16(((const uint16_t *)a.q)[at]);
    }
    if (threadIdx.x < ITEMS) {
        uint32_t i = threadIdx.x;
        const float *state = i < n ? attention_state(job, first + i) : nullptr;
        bool fresh = a.first || job.split_floats || !state;
        const uint32_t item = first + min(i, n - 1);
        r.span[i] = attention_visible(job, item / group);
        r.query[i] = (int)(int64_t)(a.position + item / group - a.tile_first * SPW_TILE_TOKENS);
        if (a.relative_bias)
            r.bias[i] = a.relative_bias +
                        (size_t)(blockIdx.y * group + item % group) * (2 * a.most_distance + 1) +
                        a.most_distance;
        r.all_top[i] = fresh ? -INFINITY : state[d];
        r.all_sum[i] = fresh ? 0.0f : state[d + 1];
        r.top[i] = -INFINITY;
        r.sum[i] = 0.0f;
    }
}

template <int ITEMS>
__device__ __forceinline__ void finish(const struct item_rows<ITEMS> &r,
                                       const struct attention_job &job, uint32_t first, uint32_t n)
{
    const uint32_t d = job.a.head_dim;
    for (uint32_t i = 0; i < n; i++) {
        float *state = attention_state(job, first + i);
        if (r.all_sum[i] == 0)
            for (uint32_t c = threadIdx.x; c < d; c += ATTENTION_THREADS)
                state[c] = 0.0f;
        if (threadIdx.x == 0) {
            state[d] = r.all_top[i];
            state[d + 1] = r.all_sum[i];
        }
    }
}

/* Scores and values of block x, for the form of its tile. T: the type of exact tiles. */
template <enum spw_dtype T, bool CODES, int ITEMS>
__device__ __forceinline__ void walk_block(struct item_rows<ITEMS> &r, const float *q, float *out,
                                           const struct attention_job &job, uint32_t n, int x)
{
    int from = x * ATTENTION_BLOCK;
    bool there = attention_tile(job.a, x / 2);
    bool whole = r.span[n - 1].lo <= from && r.span[0].hi >= from + ATTENTION_BLOCK;
    if (CODES && there)
        offsets(r, q, job, x);
    __syncthreads(); /* the offsets are written, and the weights of the block before were read */
    if (CODES && there)
        score_codes(r, q, job, x);
    else
        scores<T>(r, q, job, x);
    __syncthreads(); /* all scores are written */
    weights(r);
    __syncthreads(); /* all weights are written */
    if (CODES && there)
        value_codes(r, out, job, x);
    else if (whole)
        values<T, ITEMS, false>(r, out, job, x);
    else if (there)
        values<T, ITEMS, true>(r, out, job, x);
}

/* grid: (blocks of ITEMS items, KV heads, 1 or splits) */
template <enum spw_dtype T, bool CODES, int ITEMS>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    k_attention_fma(SPW_PARAMETER struct attention_job job)
{
    SPW_SHARED_DYNAMIC(float, q);
    SPW_SHARED(struct item_rows<ITEMS>, rows, 1);
    spw_grid_wait();
    spw_grid_next();
    struct item_rows<ITEMS> &r = rows[0];
    const struct attention_call &a = job.a;
    float *out = q + ITEMS * a.head_dim;
    uint32_t group = a.n_heads / a.n_kv_heads, first = blockIdx.x * ITEMS;
    uint32_t n = min((uint32_t)ITEMS, (uint32_t)a.rows * group - first);
    struct attention_span blocks = attention_blocks(job, first / group, (first + n - 1) / group);
    start(r, q, out, job, first, n);
    __syncthreads(); /* queries and states are written */
    if (CODES)
        turn<ITEMS>(q, a.head_dim, spw_hadamard_k_block(a.head_dim), job.k_factor);
    for (int x = blocks.lo; x < blocks.hi; x++) {
        walk_block<T, CODES, ITEMS>(r, q, out, job, n, x);
        if (x % ATTENTION_BLOCKS != ATTENTION_BLOCKS - 1 && x + 1 != blocks.hi)
            continue;
        if (CODES) {
            __syncthreads(); /* all channels are written */
            turn<ITEMS>(out, a.head_dim, spw_hadamard_v_block(a.head_dim), job.v_factor);
        }
        end_split(r, out, job, first, n);
    }
    finish(r, job, first, n);
}

template <enum spw_dtype T, bool CODES, int ITEMS>
static int launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    const struct attention_call *a = &job->a;
    size_t items = a->rows * (a->n_heads / a->n_kv_heads);
    size_t bytes = 2 * ITEMS * a->head_dim * sizeof(float);
    dim3 grid((unsigned)spw_div_up(items, ITEMS), a->n_kv_heads, n_grid);
    SPW_LAUNCH((k_attention_fma<T, CODES, ITEMS>), grid, ATTENTION_THREADS, bytes, s, *job);
    return spw_cuda_launched();
}

template <int ITEMS>
static int launch_as(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    if (job->a.kv_dtype == SPW_DTYPE_F32)
        return launch<SPW_DTYPE_F32, false, ITEMS>(job, n_grid, s);
    if (job->a.kv_dtype == SPW_DTYPE_F16)
        return launch<SPW_DTYPE_F16, false, ITEMS>(job, n_grid, s);
    return launch<SPW_DTYPE_BF16, false, ITEMS>(job, n_grid, s);
}

enum {
    MANY_MOST = 256, /* the largest head sizes for which MANY_ITEMS and FEW_ITEMS fit into 48 KiB */
    FEW_MOST = 1024,
};

static bool is_few(const struct attention_call *a)
{
    return a->head_dim > MANY_MOST || a->rows * (a->n_heads / a->n_kv_heads) <= FEW_ITEMS;
}

int spw_attention_fma_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    if (job->a.head_dim > FEW_MOST)
        return -EINVAL;
    return (is_few(&job->a) ? launch_as<FEW_ITEMS> : launch_as<MANY_ITEMS>)(job, n_grid, s);
}

int spw_attention_codes_fma_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    if (job->a.head_dim > FEW_MOST)
        return -EINVAL;
    return (is_few(&job->a) ? launch<SPW_DTYPE_BF16, true, FEW_ITEMS>
                            : launch<SPW_DTYPE_BF16, true, MANY_ITEMS>)(job, n_grid, s);
}
