/* The operations around experts on the GPU: see ops_cuda.h.
 *
 *   route     [rows][cols] -> [rows][n_kept] choices   one block for a row: a warp for each logit,
 *                                                      then one warp chooses
 *   gather    rows by their numbers                    8 elements a thread
 *   combine   h += weighted rows                       8 elements a thread
 *
 * A logit is one chain in each lane and a tree over lanes; both depend on cols alone. */
#include "model/cuda/rows_cuda.cuh"

enum {
    LANES = 32,
    THREADS = 256,
    WARPS = THREADS / LANES,
    MOST_BLOCKS = 1 << 16,
};

static unsigned blocks_of(size_t n_chunks)
{
    return (unsigned)spw_min_u64(spw_div_up(n_chunks, THREADS), MOST_BLOCKS);
}

/* Sum and maximum over a warp. Every lane gets the same bits. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = x + __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

__device__ __forceinline__ float warp_most(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

/* ---- route ---- */

template <typename T>
__device__ __forceinline__ float logit(const struct spw_route_args &a, const T *x, uint32_t e,
                                       unsigned lane)
{
    const float *w = a.w + (size_t)e * a.cols;
    float sum = 0.0f, v[CHUNK], u[CHUNK];
    for (size_t c = lane * CHUNK; c < a.cols; c += LANES * CHUNK) {
        load_chunk(x + c, a.cols - c, v);
        load_chunk(w + c, a.cols - c, u);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            sum = fmaf(v[i], u[i], sum);
    }
    return warp_sum(sum) + (a.bias ? a.bias[e] : 0.0f);
}

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Turns the logits of a row into scores. A lane has the experts lane, lane + 32, ... */
__device__ __forceinline__ void score(const struct spw_route_args &a, float *scores, unsigned lane)
{
    if (a.route.score == SPW_ROUTE_SIGMOID)
        for (uint32_t e = lane; e < a.n_experts; e += LANES)
            scores[e] = sigmoid(scores[e]);
    if (a.route.score != SPW_ROUTE_SOFTMAX)
        return;
    float most = -INFINITY, sum = 0.0f;
    for (uint32_t e = lane; e < a.n_experts; e += LANES)
        most = fmaxf(most, scores[e]);
    most = warp_most(most);
    for (uint32_t e = lane; e < a.n_experts; e += LANES)
        sum += expf(scores[e] - most);
    sum = warp_sum(sum);
    for (uint32_t e = lane; e < a.n_experts; e += LANES)
        scores[e] = expf(scores[e] - most) / sum;
}

__device__ __forceinline__ bool is_chosen(const struct spw_choice *out, uint32_t n, uint32_t e)
{
    for (uint32_t i = 0; i < n; i++)
        if (out[i].expert == e)
            return true;
    return false;
}

__device__ __forceinline__ float rank(const struct spw_route_args &a, const float *scores,
                                      uint32_t e)
{
    return scores[e] + (a.choice_bias ? a.choice_bias[e] : 0.0f);
}

/* Whether expert x comes before y: n_experts is no expert, and comes last. Between equal ranks, and
 * where one is not a number, the lower number comes first. */
__device__ __forceinline__ bool before(const struct spw_route_args &a, uint32_t x, float rank_x,
                                       uint32_t y, float rank_y)
{
    if (x == a.n_experts || y == a.n_experts)
        return y == a.n_experts && x != y;
    return rank_x > rank_y || (!(rank_y > rank_x) && x < y);
}

__device__ __forceinline__ uint32_t group_size(const struct spw_route_args &a)
{
    return a.route.n_groups ? a.n_experts / a.route.n_groups : a.n_experts;
}

/* The groups that experts are chosen from, a bit for each; the same in all lanes. Lane g has group
 * g. */
__device__ __forceinline__ uint32_t kept_groups(const struct spw_route_args &a, const float *scores,
                                                unsigned lane)
{
    const uint32_t n = a.route.n_groups, size = group_size(a);
    float first = -INFINITY, second = -INFINITY;
    uint32_t n_before = 0, kept;
    if (!n)
        return 1;
    for (uint32_t e = lane * size; lane < n && e < (lane + 1) * size; e++) {
        const float its = rank(a, scores, e);
        second = its > first ? first : fmaxf(second, its);
        first = fmaxf(first, its);
    }
    const float sum = fmaxf(first + second, -INFINITY); /* a number, whatever the ranks are */
    for (uint32_t g = 0; g < n; g++) {
        const float other = __shfl_sync(0xffffffffu, sum, (int)g);
        n_before += other > sum || (other == sum && g < lane);
    }
    kept = lane < n && n_before < a.route.n_groups_kept ? 1u << lane : 0;
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        kept |= __shfl_xor_sync(0xffffffffu, kept, apart);
    return kept;
}

/* The expert with the highest rank of those that are not chosen, in the groups; the same in all
 * lanes. */
__device__ __forceinline__ uint32_t best_of(const struct spw_route_args &a, const float *scores,
                                            uint32_t groups, const struct spw_choice *out,
                                            uint32_t n, unsigned lane)
{
    const uint32_t size = group_size(a);
    uint32_t best = a.n_experts;
    float its = 0.0f;
    for (uint32_t e = lane; e < a.n_experts; e += LANES) {
        float r = rank(a, scores, e);
        if (groups >> e / size & 1 && !is_chosen(out, n, e) && before(a, e, r, best, its)) {
            best = e;
            its = r;
        }
    }
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2) {
        uint32_t e = __shfl_xor_sync(0xffffffffu, best, apart);
        float r = __shfl_xor_sync(0xffffffffu, its, apart);
        if (before(a, e, r, best, its)) {
            best = e;
            its = r;
        }
    }
    return best;
}

/* The weights of the chosen experts, by one thread. */
__device__ __forceinline__ void weigh(const struct spw_route_args &a, const float *scores,
                                      struct spw_choice *out)
{
    float most = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < a.n_kept; i++) {
        out[i].weight = scores[out[i].expert];
        most = fmaxf(most, out[i].weight);
    }
    const bool softmax = a.route.score == SPW_ROUTE_SOFTMAX_KEPT;
    for (uint32_t i = 0; softmax && i < a.n_kept; i++) {
        out[i].weight = expf(out[i].weight - most);
        sum += out[i].weight;
    }
    for (uint32_t i = 0; softmax && i < a.n_kept; i++)
        out[i].weight /= sum;
    for (uint32_t i = 0; a.route.score == SPW_ROUTE_SIGMOID_KEPT && i < a.n_kept; i++)
        out[i].weight = sigmoid(out[i].weight);
    sum = 0.0f;
    for (uint32_t i = 0; i < a.n_kept; i++)
        sum += out[i].weight;
    for (uint32_t i = 0; i < a.n_kept; i++) {
        if (a.route.renormalizes)
            out[i].weight /= sum + 1e-20f; /* sigmoids may all be 0 */
        out[i].weight *= a.route.scale;
        if (a.expert_scale)
            out[i].weight *= a.expert_scale[out[i].expert];
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) k_route(const struct spw_route_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const T *x = (const T *)a.x + blockIdx.x * a.cols;
    float *scores = a.scores + (size_t)blockIdx.x * a.n_experts;
    struct spw_choice *out = a.choices + (size_t)blockIdx.x * a.n_kept;
    for (uint32_t e = warp; e < a.n_experts; e += WARPS) {
        float its = logit(a, x, e, lane);
        if (!lane)
            scores[e] = its;
    }
    __syncthreads(); /* all logits of the row are written */
    if (warp)
        return;
    score(a, scores, lane);
    __syncwarp();
    const uint32_t groups = kept_groups(a, scores, lane);
    for (uint32_t n = 0; n < a.n_kept; n++) {
        uint32_t best = best_of(a, scores, groups, out, n, lane), at = n;
        __syncwarp(); /* all lanes have read the choices */
        for (; !lane && at && out[at - 1].expert > best; at--)
            out[at] = out[at - 1];
        if (!lane)
            out[at].expert = best;
        __syncwarp();
    }
    if (!lane)
        weigh(a, scores, out);
}

int spw_route_cuda(const struct spw_route_args *a, spw_stream s)
{
    if (!known(a->dtype) || a->rows > INT32_MAX || a->n_kept > a->n_experts ||
        a->route.n_groups > SPW_MOST_EXPERT_GROUPS)
        return -EINVAL;
    if (!a->rows)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_route<float>, (unsigned)a->rows, THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_route<uint16_t>, (unsigned)a->rows, THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- gather, combine ---- */

/* The weight of the expert in a row of x. A row that has not chosen the expert is not gathered. */
__device__ __forceinline__ float weight_in(const struct spw_gather_args &a, size_t row)
{
    const struct spw_choice *its = a.choices + row * a.n_kept;
    uint32_t k = 0;
    while (k + 1 < a.n_kept && its[k].expert != a.expert)
        k++;
    return its[k].weight;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) k_gather(const struct spw_gather_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const size_t chunks = (a.cols + CHUNK - 1) / CHUNK, stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * chunks; i += stride) {
        const size_t row = i / chunks, col = i % chunks * CHUNK;
        const size_t from = a.index ? a.index[row] : row;
        const float weight = a.choices ? rounded<T>(weight_in(a, from)) : 1.0f;
        float v[CHUNK];
        load_chunk((const T *)a.x + from * a.x_stride + col, a.cols - col, v);
#pragma unroll
        for (int j = 0; j < CHUNK; j++)
            v[j] = v[j] * weight;
        store_chunk((T *)a.y + row * a.cols + col, a.cols - col, v);
    }
}

int spw_gather_cuda(const struct spw_gather_args *a, spw_stream s)
{
    const unsigned grid = blocks_of(a->rows * spw_div_up(a->cols, CHUNK));
    if (!known(a->dtype))
        return -EINVAL;
    if (!grid)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_gather<float>, grid, THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_gather<uint16_t>, grid, THREADS, 0, s, *a);
    return spw_cuda_launched();
}

template <typename T>
__global__ void __launch_bounds__(THREADS) k_combine(const struct spw_combine_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const size_t chunks = (a.cols + CHUNK - 1) / CHUNK, stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * chunks; i += stride) {
        const size_t row = i / chunks, col = i % chunks * CHUNK;
        T *h = (T *)a.h + row * a.cols + col;
        float sum[CHUNK] = {0}, v[CHUNK];
        for (uint32_t k = 0; k < a.n_kept; k++) {
            const size_t at = row * a.n_kept + k, from = a.places ? a.places[at] : at;
            load_chunk((const T *)a.y + from * a.cols + col, a.cols - col, v);
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                sum[j] = fmaf(a.unweighted ? 1.0f : a.choices[at].weight, v[j], sum[j]);
        }
        if (a.residual) {
            load_chunk((const T *)a.residual + row * a.cols + col, a.cols - col, v);
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                sum[j] = v[j] + rounded<T>(sum[j]);
        }
        store_chunk(h, a.cols - col, sum);
    }
}

int spw_combine_cuda(const struct spw_combine_args *a, spw_stream s)
{
    const unsigned grid = blocks_of(a->rows * spw_div_up(a->cols, CHUNK));
    if (!known(a->dtype))
        return -EINVAL;
    if (!grid)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_combine<float>, grid, THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_combine<uint16_t>, grid, THREADS, 0, s, *a);
    return spw_cuda_launched();
}
