/* Layers with a state on the GPU: see spw_conv_args, spw_recur_args and spw_gated_norm_args.
 *
 *   conv        [rows][x_stride] -> [rows][channels]   a thread takes a channel of some rows
 *   recur       a warp takes a head's state of up to 32 value channels, all rows of a part
 *   gated_norm  [rows][groups][cols] -> the same       one warp (cols <= 512) or one block a group
 *
 * conv and recur give the bits of the CPU: each value channel is a chain of its own, and both sides
 * have one text for the functions (model/math.h).
 *
 * recur holds the columns of the state in shared memory, [key_dim][columns], so that a lane reads
 * its own bank. Queries and keys of some rows are loaded together, beside them: their loads then
 * wait for memory once. The state crosses the memory bus twice a call, everything else once for
 * each 32 channels of a head. */
#include "model/conv_column.h"
#include "model/cuda/gated_cuda.cuh"

enum {
    STAGED_ROWS = 8,
    WIDE_KEYS = 256, /* with more of them a warp takes half as many channels: 64 KiB are enough */
    CONV_THREADS = 128,  /* channels of a block */
    CONV_ROWS = 16,      /* rows of a block */
    WARP_CHANNELS = 512, /* with at most so many columns a warp norms a group */
};

/* ---- conv ---- */

/* Input of a channel in row `row` of a part, which may be negative. */
template <typename T>
__device__ __forceinline__ float conv_input(const struct spw_conv_args &a,
                                            const struct spw_state_part &part, int row,
                                            uint32_t channel, size_t column)
{
    const int before = (int)a.width - 1;
    if (row >= 0)
        return widened(((const T *)a.x)[(part.row + row) * a.x_stride + column]);
    return part.position ? part.state[(size_t)channel * before + (before + row)] : 0.0f;
}

/* grid: (blocks of channels, blocks of rows, parts). The first block of rows is the only one that
 * reads the state, so it also writes it. */
template <typename T>
__global__ void __launch_bounds__(CONV_THREADS) k_conv(SPW_PARAMETER struct spw_conv_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const struct spw_state_part &part = a.parts[blockIdx.z];
    const uint32_t channel = blockIdx.x * CONV_THREADS + threadIdx.x;
    const int first = (int)blockIdx.y * CONV_ROWS, before = (int)a.width - 1;
    if (channel >= a.channels || first >= (int)part.rows)
        return;
    const int end = min(first + CONV_ROWS, (int)part.rows);
    uint32_t together;
    const size_t column = spw_conv_column(&a, channel, &together);
    float newest[SPW_MOST_CONV_WIDTH];
    for (int row = first; row < end; row++) {
        float sum = a.bias ? a.bias[channel] : 0.0f;
        for (int i = 0; i <= before; i++)
            sum = fmaf(a.w[(size_t)channel * a.width + i],
                       conv_input<T>(a, part, row - before + i, channel, column), sum);
        if (a.activates)
            sum = num_activation(rounded<T>(sum), a.act);
        narrowed((T *)a.y + (size_t)(part.row + row) * a.channels + channel, sum);
    }
    if (first || part.stays)
        return;
    for (int i = 0; i < before; i++)
        newest[i] = conv_input<T>(a, part, (int)part.rows - before + i, channel, column);
    for (int i = 0; i < before; i++)
        part.state[(size_t)channel * before + i] = newest[i];
}

/* Rows of the longest part. */
static uint32_t most_rows(const struct spw_state_part *parts, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = spw_max_u32(most, parts[i].rows);
    return most;
}

int spw_conv_cuda(const struct spw_conv_args *a, spw_stream s)
{
    const uint32_t rows = most_rows(a->parts, a->n_parts);
    const dim3 grid((unsigned)spw_div_up(a->channels, CONV_THREADS),
                    (unsigned)spw_div_up(rows, CONV_ROWS), a->n_parts);
    if (!known(a->dtype) || a->width < 1 || a->width > SPW_MOST_CONV_WIDTH ||
        a->n_parts > SPW_STATE_PARTS || grid.y > UINT16_MAX)
        return -EINVAL;
    if (!rows || !a->channels)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_conv<float>, grid, CONV_THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_conv<uint16_t>, grid, CONV_THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- recur ---- */

/* What a warp works on, and the thread's own value channel. */
struct its {
    uint32_t head, channel, columns, key_dim;
    float *s; /* shared, [key_dim][columns], from the thread's column on */
    float *k; /* shared, [STAGED_ROWS][key_dim] */
    float *q; /* shared, [STAGED_ROWS][key_dim] */
};

/* q and k of n rows of the call from `row` on, for all lanes; DELTA divides them by their lengths.
 * Lanes 0 to 15 take k, the others q. */
template <typename T>
__device__ __forceinline__ void stage_rows(const struct spw_recur_args &a, const struct its &t,
                                           size_t row, uint32_t n, float q_scale)
{
    const bool is_q = threadIdx.x >= 16;
    const uint32_t lane = threadIdx.x % 16,
                   key_head = a.tiled ? t.head % a.key_heads : t.head / (a.heads / a.key_heads);
    const size_t stride = is_q ? a.q_stride : a.k_stride;
    const T *x = (const T *)(is_q ? a.q : a.k) + row * stride + (size_t)key_head * t.key_dim;
    float *to = is_q ? t.q : t.k;
    __syncwarp(); /* the rows before have been read */
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = lane; i < t.key_dim; i += 16)
            to[r * t.key_dim + i] = widened(x[r * stride + i]);
    for (uint32_t r = 0; r < n && a.kind == SPW_MIXER_DELTA; r++) {
        float sum = 0.0f, *own = to + r * t.key_dim;
        for (uint32_t i = lane; i < t.key_dim; i += 16)
            sum = fmaf(own[i], own[i], sum);
        for (int apart = 8; apart; apart /= 2)
            sum = sum + __shfl_xor_sync(0xffffffffu, sum, apart);
        const float inverse = 1.0f / sqrtf(sum + 1e-6f);
        for (uint32_t i = lane; i < t.key_dim; i += 16)
            own[i] = own[i] * inverse * (is_q ? q_scale : 1.0f);
    }
    __syncwarp(); /* k and q are written */
}

/* A number of each head in a row. */
template <typename T>
__device__ __forceinline__ float of_head(const void *x, const struct spw_head_columns &c,
                                         uint32_t head, size_t at)
{
    return widened(((const T *)x)[at + spw_head_column(&c, head)]);
}

/* A row of DELTA: o of the thread's channel. */
template <typename T>
__device__ __forceinline__ float delta_row(const struct spw_recur_args &a, const struct its &t,
                                           size_t row, const float *k, const float *q, float v)
{
    const size_t at = row * a.rate_stride;
    const float dt = num_softplus(of_head<T>(a.rate, a.rates, t.head, at) + a.dt_bias[t.head]);
    const float g = num_exp(a.a[t.head] * dt);
    const float beta = rounded<T>(num_sigmoid(of_head<T>(a.gate, a.gates, t.head, at)));
    float sum = 0.0f, o = 0.0f;
    SPW_UNROLL_BY(8)
    for (uint32_t i = 0; i < t.key_dim; i++) {
        const float s = g * t.s[i * t.columns];
        sum = fmaf(k[i], s, sum);
        t.s[i * t.columns] = s;
    }
    const float d = beta * (v - sum);
    SPW_UNROLL_BY(8)
    for (uint32_t i = 0; i < t.key_dim; i++) {
        const float s = fmaf(k[i], d, t.s[i * t.columns]);
        o = fmaf(q[i], s, o);
        t.s[i * t.columns] = s;
    }
    return o;
}

/* A row of SSD or SCAN. */
template <typename T, bool SCANS>
__device__ __forceinline__ float plain_row(const struct spw_recur_args &a, const struct its &t,
                                           size_t row, const float *k, const float *q, float v)
{
    const size_t at = row * a.rate_stride;
    const float rate = SCANS ? widened(((const T *)a.rate)[at + t.channel])
                             : of_head<T>(a.rate, a.rates, t.head, at) + a.dt_bias[t.head];
    const float dt = num_softplus(rate), u = dt * v;
    const float of_the_head = SCANS ? 0.0f : num_exp(a.a[t.head] * dt);
    float o = 0.0f;
    SPW_UNROLL_BY(8)
    for (uint32_t i = 0; i < t.key_dim; i++) {
        const float g =
            SCANS ? num_exp(dt * a.a[(size_t)i * a.value_dim + t.channel]) : of_the_head;
        const float s = fmaf(k[i], u, g * t.s[i * t.columns]);
        o = fmaf(q[i], s, o);
        t.s[i * t.columns] = s;
    }
    return a.skip ? o + a.skip[SCANS ? t.channel : t.head] * v : o;
}

template <typename T>
__device__ __forceinline__ float lru_row(const struct spw_recur_args &a, const struct its &t,
                                         size_t row, uint64_t position, float v)
{
    const size_t at = row * a.rate_stride + t.channel;
    const float rate = widened(((const T *)a.rate)[at]), gate = widened(((const T *)a.gate)[at]);
    float g;
    const float u = num_lru(a.a[t.channel], rate, gate, v, !position, &g);
    return *t.s = u + g * *t.s;
}

/* The thread's channel of the row whose k and q are staged as row `r`. */
template <typename T, enum spw_mixer_kind KIND>
__device__ __forceinline__ void recur_row(const struct spw_recur_args &a, const struct its &t,
                                          size_t row, uint64_t position, uint32_t r)
{
    const size_t at = (size_t)t.head * a.value_dim + t.channel;
    const size_t y = row * a.heads * a.value_dim + at;
    const float v = widened(((const T *)a.v)[row * a.v_stride + at]);
    const float *k = t.k + r * t.key_dim, *q = t.q + r * t.key_dim;
    if (KIND == SPW_MIXER_DELTA)
        narrowed((T *)a.y + y, delta_row<T>(a, t, row, k, q, v));
    else if (KIND == SPW_MIXER_SSD)
        ((float *)a.y)[y] = plain_row<T, false>(a, t, row, k, q, v);
    else if (KIND == SPW_MIXER_SCAN)
        narrowed((T *)a.y + y, plain_row<T, true>(a, t, row, k, q, v));
    else
        narrowed((T *)a.y + y, lru_row<T>(a, t, row, position, v));
}

/* grid: (blocks of value channels, heads, parts) */
template <typename T, enum spw_mixer_kind KIND>
__global__ void __launch_bounds__(LANES)
    k_recur(SPW_PARAMETER struct spw_recur_args a, float q_scale, uint32_t columns)
{
    SPW_SHARED_DYNAMIC(float, shared);
    spw_grid_wait();
    spw_grid_next();
    const struct spw_state_part &part = a.parts[blockIdx.z];
    struct its t;
    t.head = blockIdx.y, t.columns = columns, t.key_dim = a.key_dim;
    t.channel = blockIdx.x * columns + threadIdx.x;
    t.s = shared + threadIdx.x;
    t.k = shared + (size_t)a.key_dim * columns;
    t.q = t.k + (size_t)STAGED_ROWS * a.key_dim;
    const bool works = threadIdx.x < columns && t.channel < a.value_dim;
    float *const state = part.state + (size_t)t.head * a.key_dim * a.value_dim + t.channel;
    for (uint32_t i = 0; i < a.key_dim && works; i++)
        t.s[i * columns] = part.position ? state[(size_t)i * a.value_dim] : 0.0f;
    for (uint32_t row = 0; row < part.rows; row += STAGED_ROWS) {
        const uint32_t n = min((uint32_t)STAGED_ROWS, part.rows - row);
        if (KIND != SPW_MIXER_LRU)
            stage_rows<T>(a, t, part.row + row, n, q_scale);
        for (uint32_t r = 0; r < n && works; r++)
            recur_row<T, KIND>(a, t, part.row + row + r, part.position + row + r, r);
    }
    bool finite = true;
    for (uint32_t i = 0; i < a.key_dim && works && !part.stays; i++) {
        const float s = t.s[i * columns];
        finite &= (__float_as_uint(s) & 0x7fffffffu) < 0x7f800000u;
        state[(size_t)i * a.value_dim] = s;
    }
    if (!finite)
        *a.not_finite = 1; /* whoever writes it, writes 1 */
}

template <enum spw_mixer_kind KIND>
static void launch_recur(const struct spw_recur_args *a, spw_stream s)
{
    const uint32_t columns = a->key_dim > WIDE_KEYS ? LANES / 2 : LANES;
    const size_t staged = KIND == SPW_MIXER_LRU ? 0 : 2 * STAGED_ROWS;
    const size_t bytes = a->key_dim * (columns + staged) * sizeof(float);
    const float q_scale = (float)(1 / sqrt((double)a->key_dim));
    const dim3 grid((unsigned)spw_div_up(a->value_dim, columns), a->heads, a->n_parts);
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH((k_recur<float, KIND>), grid, LANES, bytes, s, *a, q_scale, columns);
    else
        SPW_LAUNCH((k_recur<uint16_t, KIND>), grid, LANES, bytes, s, *a, q_scale, columns);
}

int spw_recur_cuda(const struct spw_recur_args *a, spw_stream s)
{
    if (!known(a->dtype) || a->n_parts > SPW_STATE_PARTS || a->key_dim > SPW_MOST_KEY_DIM ||
        a->heads > UINT16_MAX)
        return -EINVAL;
    if (!a->n_parts || !a->heads || !a->value_dim)
        return 0;
    if (a->kind == SPW_MIXER_DELTA)
        launch_recur<SPW_MIXER_DELTA>(a, s);
    else if (a->kind == SPW_MIXER_SSD)
        launch_recur<SPW_MIXER_SSD>(a, s);
    else if (a->kind == SPW_MIXER_SCAN)
        launch_recur<SPW_MIXER_SCAN>(a, s);
    else
        launch_recur<SPW_MIXER_LRU>(a, s);
    return spw_cuda_launched();
}

/* ---- gated_norm ---- */

/* A group of a row, and how its columns are shared out. */
struct gated_group {
    size_t x, gate;      /* where it begins */
    const float *weight; /* or NULL */
    uint32_t first, step;
};

/* Column c: what is normed; *gate gets act(gate). */
template <typename T, typename X>
__device__ __forceinline__ float gated_input(const struct spw_gated_norm_args &a,
                                             const struct gated_group &g, uint32_t c, float *gate)
{
    const float x = widened(((const X *)a.x)[g.x + c]);
    *gate = num_activation(widened(((const T *)a.gate)[g.gate + c]), a.act);
    return a.norm_first || !g.weight ? x : x * *gate;
}

template <typename T, typename X>
__device__ __forceinline__ float gated_squares(const struct spw_gated_norm_args &a,
                                               const struct gated_group &g)
{
    float sum = 0.0f, gate;
    for (uint32_t c = g.first; c < a.cols && g.weight; c += g.step) {
        const float x = gated_input<T, X>(a, g, c, &gate);
        sum = fmaf(x, x, sum);
    }
    return sum;
}

/* A thread writes only elements that no other thread reads, so y may be x. */
template <typename T, typename X>
__device__ __forceinline__ void gated_store(const struct spw_gated_norm_args &a,
                                            const struct gated_group &g, float squares)
{
    const float inverse = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    for (uint32_t c = g.first; c < a.cols; c += g.step) {
        float gate, y = gated_input<T, X>(a, g, c, &gate);
        if (!g.weight)
            y = y * rounded<T>(gate);
        else if (a.norm_first)
            y = rounded<T>(normed<T>(y, inverse, g.weight[c], a.norm)) * gate;
        else
            y = y * inverse * g.weight[c];
        narrowed((T *)a.y + g.x + c, y);
    }
}

/* A warp for each group, or a block. */
template <typename T, typename X, bool IS_WARP>
__global__ void __launch_bounds__(THREADS) k_gated_norm(const struct spw_gated_norm_args a)
{
    SPW_SHARED(float, sums, THREADS / LANES);
    spw_grid_wait();
    spw_grid_next();
    const size_t i =
        IS_WARP ? (size_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES : blockIdx.x;
    if (i >= a.rows * a.n_groups)
        return; /* the whole warp, or block */
    const uint32_t group = (uint32_t)(i % a.n_groups);
    struct gated_group g;
    g.x = i * a.cols;
    g.gate = i / a.n_groups * a.gate_stride + spw_head_column(&a.gates, group);
    g.weight = a.weight && a.own_weights ? a.weight + (size_t)group * a.cols : a.weight;
    g.first = IS_WARP ? threadIdx.x % LANES : threadIdx.x;
    g.step = IS_WARP ? LANES : THREADS;
    const float own = gated_squares<T, X>(a, g);
    gated_store<T, X>(a, g, IS_WARP ? warp_sum(own) : block_sum(own, sums));
}

template <typename T, typename X>
static void launch_gated_norm(const struct spw_gated_norm_args *a, spw_stream s)
{
    const size_t groups = a->rows * a->n_groups;
    if (a->cols <= WARP_CHANNELS)
        SPW_LAUNCH((k_gated_norm<T, X, true>), (unsigned)spw_div_up(groups, THREADS / LANES),
                   THREADS, 0, s, *a);
    else
        SPW_LAUNCH((k_gated_norm<T, X, false>), (unsigned)groups, THREADS, 0, s, *a);
}

int spw_gated_norm_cuda(const struct spw_gated_norm_args *a, spw_stream s)
{
    if (!known(a->dtype) || (a->x_dtype != a->dtype && a->x_dtype != SPW_DTYPE_F32) ||
        a->rows * a->n_groups > INT32_MAX)
        return -EINVAL;
    if (!a->rows || !a->n_groups || !a->cols)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        launch_gated_norm<float, float>(a, s);
    else if (a->x_dtype == SPW_DTYPE_F32)
        launch_gated_norm<uint16_t, float>(a, s);
    else
        launch_gated_norm<uint16_t, uint16_t>(a, s);
    return spw_cuda_launched();
}
