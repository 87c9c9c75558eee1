/* What comes between the projections and attention, on the GPU: see spw_rope_append_args.
 *
 *   qkv    [rows][stride]   a row: n_heads of q | n_kv_heads of k | n_kv_heads of v, head_dim each;
 *                           with v_is_k there are no heads of v
 *   q      [rows][q_stride] heads of q come from here, if it is there
 *   tiles  K and V of 128 positions (quant/tile.h draws them)
 *
 * A block takes a row, or some heads of a row if there are few rows. Its threads form groups, and a
 * group takes one head at a time. A group has as many lanes of a warp as the head has chunks of 8
 * channels, rounded up to a power of two, and at most a warp. A lane's chunks stay in registers
 * from the only load to the only store. The sum of a norm is one chain in a lane, then a tree over
 * lanes, like k_norm for as many columns (up to 512). A lane gets the other half of a rope pair
 * through shared memory.
 *
 * In 2-byte types two positions share a word of V. The block of the first position writes both, or
 * the first one and a zero if the second one is not in this call. If only the second one is in the
 * call, its halves of words are written, and the other halves stay. A word of K holds two channels
 * of one position.
 *
 * Bytes: the row is read once, q written once, K and V written once in their own type. The words of
 * K lie 64 bytes apart; the rows between them fill their lines in the L2 cache. */
#include "model/cuda/rows_cuda.cuh"

enum {
    ROPE_THREADS = 128,
    ENOUGH_BLOCKS = 512, /* of the grid: with as many rows a block takes all heads of its row */
    WIDE_CHUNKS = SPW_MOST_HEAD_DIM / (LANES * CHUNK), /* the most chunks of a lane */
};

/* A thread's view of its group of lanes. */
struct group {
    uint32_t lane, lanes;
    unsigned mask;       /* the group's lanes of the warp */
    uint32_t d, apart;   /* channels of a head; distance of the two channels of a pair */
    float *head;         /* the group's head in shared memory, ordered by place() */
    const float *cosine; /* in shared memory, [apart], ordered by place() */
    const float *sine;   /* in shared memory, [apart], ordered by place() */
    bool rounds_products;
};

/* The place of element e of a head (or of the angles, which are half as many) in shared memory. The
 * first elements of all chunks are neighbours, then the second elements, and so on. So lanes that
 * read one element each of their chunks, at any distance in channels, read different banks. Each
 * warp has one such area, where its groups are neighbours. */
template <int CHUNKS> __device__ __forceinline__ uint32_t place(uint32_t e)
{
    return e % CHUNK * CHUNKS + e / CHUNK;
}

/* The first channel of the lane's n-th chunk. It may lie after the end of the head. */
__device__ __forceinline__ uint32_t channel(const struct group &g, int n)
{
    return (g.lane + (uint32_t)n * g.lanes) * CHUNK;
}

/* Loads the lane's chunks of the head at x; zeros after the end of the head. */
template <typename T, int N>
__device__ __forceinline__ void load_head(const struct group &g, const T *x, float v[N][CHUNK])
{
    SPW_UNROLL
    for (int n = 0; n < N; n++) {
        uint32_t c = min(channel(g, n), g.d);
        load_chunk(x + c, g.d - c, v[n]);
    }
}

/* The same for a head of which the first `turned` channels are interleaved pairs: channel e of
 * their first half lies at 2 e. All
 * lanes of the group have loaded before a lane stores, because rotate_head is between. */
template <typename T, int N>
__device__ __forceinline__ void load_interleaved(const struct group &g, const T *x, uint32_t turned,
                                                 float v[N][CHUNK])
{
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++) {
        uint32_t e = channel(g, i / CHUNK) + i % CHUNK, low = turned / 2;
        uint32_t at = e >= turned ? e : e < low ? 2 * e : 2 * (e - low) + 1;
        v[i / CHUNK][i % CHUNK] = e < g.d ? widened(x[at]) : 0.0f;
    }
}

/* ---- norm, rope ---- */

/* The sum over the group of what each lane has. */
__device__ __forceinline__ float group_sum(const struct group &g, float sum)
{
    for (uint32_t step = g.lanes / 2; step; step /= 2)
        sum = sum + __shfl_xor_sync(g.mask, sum, (int)step);
    return sum;
}

/* Subtracts the mean of the head. What lies after its end stays 0. */
template <int N>
__device__ __forceinline__ void center_head(const struct group &g, float v[N][CHUNK])
{
    float sum = 0.0f;
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++)
        sum = sum + v[i / CHUNK][i % CHUNK];
    const float middle = group_sum(g, sum) / (float)g.d;
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++)
        if (channel(g, i / CHUNK) + i % CHUNK < g.d)
            v[i / CHUNK][i % CHUNK] -= middle;
}

template <typename T, int N>
__device__ __forceinline__ void norm_head(const struct group &g,
                                          const struct spw_rope_append_args &a, const float *weight,
                                          const float *bias, float v[N][CHUNK])
{
    float sum = 0.0f, w[N][CHUNK], b[N][CHUNK];
    if (a.norm == SPW_NORM_MEAN)
        center_head<N>(g, v);
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++)
        sum = fmaf(v[i / CHUNK][i % CHUNK], v[i / CHUNK][i % CHUNK], sum);
    float inverse = 1.0f / sqrtf(group_sum(g, sum) / (float)g.d + a.eps);
    if (weight)
        load_head<float, N>(g, weight, w);
    if (bias)
        load_head<float, N>(g, bias, b);
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++) {
        float *x = &v[i / CHUNK][i % CHUNK];
        *x = normed<T>(*x, inverse, weight ? w[i / CHUNK][i % CHUNK] : 1.0f, a.norm);
        *x = rounded<T>(bias ? *x + b[i / CHUNK][i % CHUNK] : *x);
    }
}

/* The factor of the row's queries. */
template <typename T>
__device__ __forceinline__ float query_growth(const struct spw_rope_append_args &a, uint32_t row)
{
    if (a.growth.beta == 0)
        return 1.0f;
    const float steps = floorf(((float)(a.position + row) + a.growth.offset) / a.growth.base);
    return rounded<T>(1.0f + a.growth.beta * logf(1.0f + steps));
}

/* Hugging Face transformers rotates in the activation dtype, so every product and the sum are
 * rounded. The store rounds the sum. */
template <typename T, int N>
__device__ __forceinline__ void rotate_head(const struct group &g, float v[N][CHUNK])
{
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++)
        g.head[place<N * LANES>(channel(g, i / CHUNK) + i % CHUNK)] = v[i / CHUNK][i % CHUNK];
    __syncwarp(g.mask); /* the head is written */
    SPW_UNROLL
    for (int i = 0; i < N * CHUNK; i++) {
        uint32_t e = channel(g, i / CHUNK) + i % CHUNK;
        if (e >= 2 * g.apart)
            continue;
        float *x = &v[i / CHUNK][i % CHUNK];
        bool low = e < g.apart;
        uint32_t other_e = low ? e + g.apart : e - g.apart;
        uint32_t angle = place<N * LANES / 2>(min(e, other_e));
        float other = g.head[place<N * LANES>(other_e)];
        float own_c = *x * g.cosine[angle], other_s = other * g.sine[angle];
        if (g.rounds_products) {
            own_c = rounded<T>(own_c);
            other_s = rounded<T>(other_s);
        }
        *x = low ? own_c - other_s : own_c + other_s;
    }
    __syncwarp(g.mask); /* it has been read */
}

/* ---- append ---- */

/* A value in the 2-byte type of its tile. */
__device__ __forceinline__ uint32_t code_of(float x, enum spw_dtype t)
{
    return t == SPW_DTYPE_F16 ? spw_device_to_f16(x) : spw_device_to_bf16(x);
}

/* Stores n channels from c on, at position j of a K head. n may be larger than a chunk. */
__device__ __forceinline__ void store_k(char *k, uint32_t d, uint32_t j, uint32_t c, uint32_t n,
                                        const float v[CHUNK], enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32) {
        float *to = (float *)k + spw_tile_k_index(d, t, j, c);
        SPW_UNROLL
        for (uint32_t i = 0; i < CHUNK; i++)
            if (i < n)
                to[i * SPW_TILE_BLOCK] = v[i];
        return;
    }
    uint32_t *to = (uint32_t *)k + spw_tile_k_index(d, t, j, c) / 2;
    SPW_UNROLL
    for (uint32_t i = 0; i < CHUNK; i += 2) /* c and n are even */
        if (i < n)
            to[i / 2 * SPW_TILE_BLOCK] = code_of(v[i], t) | code_of(v[i + 1], t) << 16;
}

/* The same for V, at position j, which is even, and at the next position. n is at least 1. */
__device__ __forceinline__ void store_v_pair(char *v, uint32_t d, uint32_t j, uint32_t c,
                                             uint32_t n, const float x[CHUNK],
                                             const float next[CHUNK], enum spw_dtype t)
{
    uint32_t *to = (uint32_t *)v + spw_tile_v_index(d, t, j, c) / 2, w[CHUNK];
    SPW_UNROLL
    for (int i = 0; i < CHUNK; i++)
        w[i] = code_of(x[i], t) | code_of(next[i], t) << 16;
    if (n >= CHUNK && aligned16(to)) {
        ((uint4 *)to)[0] = make_uint4(w[0], w[1], w[2], w[3]);
        ((uint4 *)to)[1] = make_uint4(w[4], w[5], w[6], w[7]);
        return;
    }
    SPW_UNROLL
    for (uint32_t i = 0; i < CHUNK; i++)
        if (i < n)
            to[i] = w[i];
}

/* The same for V, at position j only. */
__device__ __forceinline__ void store_v(char *v, uint32_t d, uint32_t j, uint32_t c, uint32_t n,
                                        const float x[CHUNK], enum spw_dtype t)
{
    size_t at = spw_tile_v_index(d, t, j, c);
    if (t == SPW_DTYPE_F32) {
        store_chunk((float *)v + at, n, x);
        return;
    }
    SPW_UNROLL
    for (uint32_t i = 0; i < CHUNK; i++)
        if (i < n)
            ((uint16_t *)v)[at + 2 * i] = (uint16_t)code_of(x[i], t);
}

/* The head of V at x, as it is stored. */
template <typename T, int N>
__device__ __forceinline__ void load_v(const struct group &g, const struct spw_rope_append_args &a,
                                       const T *x, float v[N][CHUNK])
{
    load_head<T, N>(g, x, v);
    if (a.v_norm)
        norm_head<T, N>(g, a, NULL, NULL, v);
}

/* Stores V of the row, from x on. In 2-byte types it stores both positions of the pair, if this row
 * is the first row of the pair in this call. */
template <typename T, int N>
__device__ __forceinline__ void append_v(const struct group &g,
                                         const struct spw_rope_append_args &a, uint32_t row,
                                         uint32_t head, const T *x)
{
    const uint32_t j = (uint32_t)(a.position + row) % SPW_TILE_TOKENS;
    const bool pairs = a.kv_dtype != SPW_DTYPE_F32;
    char *to = spw_append_head(&a, row, head, true);
    float v[N][CHUNK], next[N][CHUNK] = {};
    if (pairs && j % 2 && row)
        return;
    load_v<T, N>(g, a, x, v);
    if (pairs && j % 2 == 0 && row + 1 < a.rows)
        load_v<T, N>(g, a, x + a.stride, next);
    SPW_UNROLL
    for (int n = 0; n < N; n++) {
        uint32_t c = channel(g, n);
        if (c >= g.d)
            continue;
        if (pairs && j % 2 == 0)
            store_v_pair(to, g.d, j, c, g.d - c, v[n], next[n], a.kv_dtype);
        else
            store_v(to, g.d, j, c, g.d - c, v[n], a.kv_dtype);
    }
}

/* ---- all of it ---- */

/* Norm and rope of head `head` of q and k, which comes from x; stores q at `to`, or k. */
template <typename T, int N>
__device__ __forceinline__ void turn_head(const struct group &g,
                                          const struct spw_rope_append_args &a, uint32_t row,
                                          uint32_t head, const T *x, T *to)
{
    const uint32_t j = (uint32_t)(a.position + row) % SPW_TILE_TOKENS;
    const bool is_q = head < a.n_heads;
    const float *weight = is_q ? a.q_norm : a.k_norm, *bias = is_q ? a.q_norm_bias : a.k_norm_bias;
    const uint32_t weights = a.norm_by_head ? (is_q ? head : head - a.n_heads) * a.head_dim : 0;
    const float growth = is_q ? query_growth<T>(a, row) : 1.0f;
    float v[N][CHUNK];
    if (a.interleaved)
        load_interleaved<T, N>(g, x, a.rotary_dim, v);
    else
        load_head<T, N>(g, x, v);
    if (weight && !a.norm_last)
        norm_head<T, N>(g, a, weight + weights, bias ? bias + weights : NULL, v);
    rotate_head<T, N>(g, v);
    if (weight && a.norm_last) {
        SPW_UNROLL
        for (int i = 0; i < N * CHUNK; i++)
            v[i / CHUNK][i % CHUNK] = rounded<T>(v[i / CHUNK][i % CHUNK]);
        norm_head<T, N>(g, a, weight + weights, bias ? bias + weights : NULL, v);
    }
    SPW_UNROLL
    for (int n = 0; n < N; n++) {
        uint32_t c = channel(g, n);
        if (c >= g.d)
            continue;
        if (is_q) {
            SPW_UNROLL
            for (int i = 0; i < CHUNK && growth != 1.0f; i++)
                v[n][i] = rounded<T>(v[n][i]) * growth;
            store_chunk(to + c, g.d - c, v[n]);
            continue;
        }
        SPW_UNROLL
        for (int i = 0; i < CHUNK; i++)
            v[n][i] = rounded<T>(v[n][i]);
        store_k(spw_append_head(&a, row, head - a.n_heads, false), g.d, j, c, g.d - c, v[n],
                a.kv_dtype);
    }
}

/* Cosines and sines of the row's position. */
template <typename T, int N>
__device__ __forceinline__ void angles(const struct spw_rope_append_args &a, uint32_t pairs,
                                       float *cosine, float *sine)
{
    float position = (float)(a.position + blockIdx.x);
    for (uint32_t i = threadIdx.x; i < 2 * pairs; i += ROPE_THREADS) {
        uint32_t pair = i % pairs;
        float angle = position * a.inv_freq[pair], x = i < pairs ? cosf(angle) : sinf(angle);
        const float scaled = x * a.scaling;
        (i < pairs ? cosine : sine)[place<N * LANES / 2>(pair)] =
            a.rounding == SPW_ROPE_ROUNDS_RESULT ? scaled : rounded<T>(scaled);
    }
}

/* grid: (rows, blocks that share a row's heads) */
template <typename T, int N>
__global__ void __launch_bounds__(ROPE_THREADS, N == 1 ? 8 : 2)
    k_rope_append(SPW_PARAMETER struct spw_rope_append_args a, uint32_t lanes)
{
    SPW_SHARED(float, cosine, CHUNK *N *LANES / 2);
    SPW_SHARED(float, sine, CHUNK *N *LANES / 2);
    SPW_SHARED(float, heads, ROPE_THREADS *N *CHUNK);
    spw_grid_wait();
    spw_grid_next();
    const uint32_t n = a.n_heads + 2 * a.n_kv_heads, row = blockIdx.x,
                   groups = ROPE_THREADS / lanes;
    const uint32_t first = threadIdx.x % LANES / lanes * lanes; /* the first lane of the group */
    struct group g;
    g.lane = threadIdx.x % lanes;
    g.lanes = lanes;
    g.mask = 0xffffffffu >> (LANES - lanes) << first;
    g.d = a.head_dim;
    g.apart = a.rotary_dim / 2;
    g.head = heads + threadIdx.x / LANES * (LANES * N * CHUNK) + first;
    g.cosine = cosine;
    g.sine = sine;
    g.rounds_products = a.rounding == SPW_ROPE_ROUNDS_ALL;
    angles<T, N>(a, g.apart, cosine, sine);
    __syncthreads(); /* cosine and sine are written */
    uint32_t head = blockIdx.y * groups + threadIdx.x / lanes;
    for (; head < n; head += gridDim.y * groups) {
        const bool is_v = head >= a.n_heads + a.n_kv_heads;
        const uint32_t at = is_v && a.v_is_k ? head - a.n_kv_heads : head;
        T *x = (T *)a.qkv + row * a.stride + at * a.head_dim;
        if (!is_v && a.q && head < a.n_heads)
            turn_head<T, N>(g, a, row, head, (const T *)a.q + row * a.q_stride + head * a.q_step,
                            x);
        else if (!is_v)
            turn_head<T, N>(g, a, row, head, x, x);
        else
            append_v<T, N>(g, a, row, head - a.n_heads - a.n_kv_heads, x);
    }
}

template <typename T> static void launch(const struct spw_rope_append_args *a, spw_stream s)
{
    uint32_t lanes = 1;
    while (lanes < LANES && lanes * CHUNK < a->head_dim)
        lanes *= 2;
    uint64_t heads = a->n_heads + 2 * (uint64_t)a->n_kv_heads;
    uint64_t share =
        spw_min_u64(spw_div_up(heads * lanes, ROPE_THREADS), spw_div_up(ENOUGH_BLOCKS, a->rows));
    dim3 grid((unsigned)a->rows, (unsigned)share);
    if (a->head_dim <= LANES * CHUNK)
        SPW_LAUNCH((k_rope_append<T, 1>), grid, ROPE_THREADS, 0, s, *a, lanes);
    else
        SPW_LAUNCH((k_rope_append<T, WIDE_CHUNKS>), grid, ROPE_THREADS, 0, s, *a, lanes);
}

int spw_rope_append_cuda(const struct spw_rope_append_args *a, spw_stream s)
{
    if (!a->rows)
        return 0;
    const uint64_t slices = a->n_kv_heads ? a->n_kv_heads / spw_append_slice_heads(a) : 1;
    if (!known(a->dtype) || spw_append_tiles(a) * slices > SPW_APPEND_TILES || a->head_dim % 2 ||
        a->head_dim > SPW_MOST_HEAD_DIM || a->rotary_dim > a->head_dim)
        return -EINVAL;
    if (!a->head_dim || !(a->n_heads + a->n_kv_heads))
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        launch<float>(a, s);
    else
        launch<uint16_t>(a, s);
    return spw_cuda_launched();
}
