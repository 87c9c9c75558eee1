/* Which experts compute a row, on the GPU: see ops_cuda.h. [rows][cols] -> [rows][n_kept] choices.
 *
 *   - k_route_logits: a warp for each logit, so that one row already uses all multiprocessors. Of
 *     many rows a warp makes 4 x 4 logits, and loads each number of x and of w once for four.
 *     Bytes from L2: 4 cols of w and 2 or 4 cols of x for a logit, or a quarter of that.
 *   - k_route_choose: a warp for each row; scores and ranks stay in registers.
 *
 * A logit is one chain in each lane and a tree over lanes; both depend on cols alone. */
#include "model/cuda/math.cuh"
#include "model/cuda/rows_cuda.cuh"

enum {
    WARPS = THREADS / LANES,
    SIDE = 4,                 /* of the logits of a warp, where rows are many */
    MANY_ROWS = 64,           /* fewer rows do not fill a card with 4 x 4 logits a warp */
    MOST_ROWS = SIDE * 65535, /* of a grid */
    /* Experts of a lane of k_route_choose. The last size is that of the largest model that a config
     * may describe; it does not fit into registers. */
    HELD_FEW = 4,
    HELD_MANY = 16,
    HELD_MOST = 128,
};

/* The maximum over a warp. Every lane gets the same bits. */
__device__ __forceinline__ float warp_most(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

/* grid: (ceil(experts / (8 side)), ceil(rows / side)) */
template <typename T, int side>
__global__ void __launch_bounds__(THREADS) k_route_logits(const struct spw_route_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const unsigned lane = threadIdx.x % LANES;
    const uint32_t e_first = (blockIdx.x * WARPS + threadIdx.x / LANES) * side;
    const size_t first = (size_t)blockIdx.y * side;
    float sum[side][side] = {};
    if (e_first >= a.n_experts)
        return;
    for (size_t c = lane * CHUNK; c < a.cols; c += LANES * CHUNK) {
        float v[side][CHUNK];
#pragma unroll
        for (int r = 0; r < side; r++) {
            const size_t row = first + r < a.rows ? first + r : a.rows - 1;
            load_chunk((const T *)a.x + row * a.cols + c, a.cols - c, v[r]);
        }
#pragma unroll
        for (int i = 0; i < side; i++) {
            float u[CHUNK];
            const size_t e = e_first + i < a.n_experts ? e_first + i : a.n_experts - 1;
            load_chunk(a.w + e * a.cols + c, a.cols - c, u);
#pragma unroll
            for (int r = 0; r < side; r++)
#pragma unroll
                for (int k = 0; k < CHUNK; k++)
                    sum[r][i] = fmaf(v[r][k], u[k], sum[r][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < side; r++)
#pragma unroll
        for (int i = 0; i < side; i++) {
            const float all = warp_sum(sum[r][i]);
            const uint32_t e = e_first + i;
            if (!lane && first + r < a.rows && e < a.n_experts)
                a.scores[(first + r) * a.n_experts + e] = all + (a.bias ? a.bias[e] : 0.0f);
        }
}

/* Turns the logits of a row into scores. Lane l has the experts l, l + 32, ...; after the last one
 * minus infinity, of which e^x is 0. */
template <int held>
__device__ __forceinline__ void score(const struct spw_route_args &a, float scores[held])
{
    float most = -INFINITY, sum = 0.0f;
    if (!spw_route_is_softmax(&a.route)) {
#pragma unroll
        for (int i = 0; i < held; i++)
            scores[i] = num_sigmoid(scores[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < held; i++)
        most = fmaxf(most, scores[i]);
    most = warp_most(most);
#pragma unroll
    for (int i = 0; i < held; i++) {
        scores[i] = num_exp(scores[i] - most);
        sum += scores[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < held; i++)
        scores[i] = scores[i] / sum;
}

__device__ __forceinline__ float choice_bias(const struct spw_route_args &a, uint32_t e)
{
    return a.choice_bias ? a.choice_bias[e] : 0.0f;
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
        const float its = scores[e] + choice_bias(a, e);
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

enum state { SHUT, OPEN, CHOSEN }; /* of an expert: shut where its group is not kept */

/* The open expert with the highest rank; the same in all lanes. */
template <int held>
__device__ __forceinline__ uint32_t best_of(const struct spw_route_args &a, const float ranks[held],
                                            const enum state states[held], unsigned lane)
{
    uint32_t best = a.n_experts;
    float its = 0.0f;
#pragma unroll
    for (int i = 0; i < held; i++) {
        const uint32_t e = lane + LANES * i;
        if (states[i] == OPEN && before(a, e, ranks[i], best, its)) {
            best = e;
            its = ranks[i];
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

/* Writes the chosen experts in the order of their numbers; their weights are their scores. */
template <int held>
__device__ __forceinline__ void write_chosen(const float scores[held],
                                             const enum state states[held], struct spw_choice *out,
                                             unsigned lane)
{
    uint32_t n = 0;
#pragma unroll
    for (int i = 0; i < held; i++) {
        const uint32_t chosen = __ballot_sync(0xffffffffu, states[i] == CHOSEN);
        if (states[i] == CHOSEN)
            out[n + __popc(chosen & ((1u << lane) - 1))] = {lane + LANES * i, scores[i]};
        n += __popc(chosen);
    }
}

/* The weights of the chosen experts, from their scores, by one thread. */
__device__ __forceinline__ void weigh(const struct spw_route_args &a, struct spw_choice *out)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < a.n_kept; i++)
        sum += out[i].weight;
    for (uint32_t i = 0; i < a.n_kept; i++) {
        if (a.route.renormalizes)
            out[i].weight /= sum + (a.route.sum_plus + 1e-20f); /* sigmoids may all be 0 */
        out[i].weight *= a.route.scale;
        if (a.expert_scale)
            out[i].weight *= a.expert_scale[out[i].expert];
    }
}

/* grid: rows; one warp. held: at least a 32nd of the experts. */
template <int held>
__global__ void __launch_bounds__(LANES) k_route_choose(const struct spw_route_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const unsigned lane = threadIdx.x;
    float *row = a.scores + (size_t)blockIdx.x * a.n_experts, scores[held], ranks[held];
    struct spw_choice *out = a.choices + (size_t)blockIdx.x * a.n_kept;
    enum state states[held];
#pragma unroll
    for (int i = 0; i < held; i++)
        scores[i] = lane + LANES * i < a.n_experts ? row[lane + LANES * i] : -INFINITY;
    if (!spw_route_scores_kept(&a.route))
        score<held>(a, scores);
    for (int i = 0; a.route.n_groups && i < held; i++)
        if (lane + LANES * i < a.n_experts)
            row[lane + LANES * i] = scores[i];
    __syncwarp(); /* a lane reads the scores of a group */
    const uint32_t groups = kept_groups(a, row, lane), size = group_size(a);
#pragma unroll
    for (int i = 0; i < held; i++) {
        const uint32_t e = lane + LANES * i;
        states[i] = e < a.n_experts && groups >> e / size & 1 ? OPEN : SHUT;
        ranks[i] = scores[i] + (e < a.n_experts ? choice_bias(a, e) : 0.0f);
    }
    for (uint32_t n = 0; n < a.n_kept; n++) {
        const uint32_t best = best_of<held>(a, ranks, states, lane);
#pragma unroll
        for (int i = 0; i < held; i++)
            if (lane + LANES * i == best)
                states[i] = CHOSEN;
    }
    if (spw_route_scores_kept(&a.route)) {
#pragma unroll
        for (int i = 0; i < held; i++)
            scores[i] = states[i] == CHOSEN ? scores[i] : -INFINITY;
        score<held>(a, scores);
    }
    write_chosen<held>(scores, states, out, lane);
    __syncwarp(); /* all choices are written */
    if (!lane)
        weigh(a, out);
}

template <typename T, int side>
static void launch_logits(const struct spw_route_args *a, spw_stream s)
{
    const dim3 grid((unsigned)spw_div_up(a->n_experts, WARPS * side),
                    (unsigned)spw_div_up(a->rows, side));
    SPW_LAUNCH((k_route_logits<T, side>), grid, THREADS, 0, s, *a);
}

template <typename T> static void launch_logits_as(const struct spw_route_args *a, spw_stream s)
{
    if (a->rows < MANY_ROWS)
        launch_logits<T, 1>(a, s);
    else
        launch_logits<T, SIDE>(a, s);
}

int spw_route_cuda(const struct spw_route_args *a, spw_stream s)
{
    const unsigned rows = (unsigned)a->rows;
    if (!known(a->dtype) || a->rows > MOST_ROWS || a->n_kept > a->n_experts ||
        a->n_experts > LANES * HELD_MOST || a->route.n_groups > SPW_MOST_EXPERT_GROUPS)
        return -EINVAL;
    if (!a->rows)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        launch_logits_as<float>(a, s);
    else
        launch_logits_as<uint16_t>(a, s);
    if (a->n_experts <= LANES * HELD_FEW)
        SPW_LAUNCH(k_route_choose<HELD_FEW>, rows, LANES, 0, s, *a);
    else if (a->n_experts <= LANES * HELD_MANY)
        SPW_LAUNCH(k_route_choose<HELD_MANY>, rows, LANES, 0, s, *a);
    else
        SPW_LAUNCH(k_route_choose<HELD_MOST>, rows, LANES, 0, s, *a);
    return spw_cuda_launched();
}
