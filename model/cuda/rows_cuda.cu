/* Row operations on the GPU: see ops_cuda.h.
 *
 *   norm     [rows][cols] -> the same              one warp (cols <= 512) or one block for a row
 *   softcap  [n], in place                         8 elements a thread, as all that follow
 *   each     [n], in place
 *   gated    two times [rows][cols] -> [rows][cols]
 *   gather   rows by their numbers
 *   combine  h += weighted rows
 *
 * Each byte crosses the memory bus once a call: later reads of a row by norm hit L1. All
 * kernels work on chunks of 8 elements (model/cuda/rows_cuda.cuh). In every call the same thread of
 * a row or block takes the same chunk, so the sum of a norm is one tree that depends on cols
 * alone. */
#include "model/cuda/gated_cuda.cuh"
#include "model/cuda/linear_cuda.h"

enum {
    MOST_BLOCKS = 1 << 16,
    WARP_COLS = 512, /* with at most so many columns a warp norms a row, and a lane has at most two
                        chunks */
};

/* ---- norm ---- */

/* The sum of the chunks first, first + step, ... of the row at x: one chain. */
template <typename T>
__device__ __forceinline__ float plain_sum(const struct spw_norm_args &a, const T *x, size_t first,
                                           size_t step)
{
    float sum = 0.0f, v[CHUNK];
    for (size_t c = first * CHUNK; c < a.cols; c += step * CHUNK) {
        load_chunk(x + c, a.cols - c, v);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            sum = sum + v[i];
    }
    return sum;
}

/* The sum of the squares of x - middle, in the same order. */
template <typename T>
__device__ __forceinline__ float square_sum(const struct spw_norm_args &a, const T *x, size_t first,
                                            size_t step, float middle)
{
    float sum = 0.0f, v[CHUNK];
    for (size_t c = first * CHUNK; c < a.cols; c += step * CHUNK) {
        load_chunk(x + c, a.cols - c, v);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const float far = c + i < a.cols ? v[i] - middle : 0.0f;
            sum = fmaf(far, far, sum);
        }
    }
    return sum;
}

/* v = residual + v, where v is rounded first. */
template <typename T>
__device__ __forceinline__ void add_residual(const T *residual, size_t n, float v[CHUNK])
{
    float more[CHUNK];
    load_chunk(residual, n, more);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = more[i] + rounded<T>(v[i]);
}

template <typename T> __device__ __forceinline__ void multiply(float factor, float v[CHUNK])
{
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = rounded<T>(v[i]) * factor;
}

/* A thread writes only elements that no other thread reads, so y may be x or the residual. */
template <typename T>
__device__ __forceinline__ void scale(const struct spw_norm_args &a, const T *x, size_t y,
                                      float middle, float sum, size_t first, size_t step)
{
    float inverse = a.kind == SPW_NORM_NONE ? 1.0f : 1.0f / sqrtf(sum / (float)a.cols + a.eps);
    float v[CHUNK], w[CHUNK], b[CHUNK];
    for (size_t c = first * CHUNK; c < a.cols; c += step * CHUNK) {
        load_chunk(x + c, a.cols - c, v);
        if (a.weight)
            load_chunk(a.weight + c, a.cols - c, w);
        if (a.bias)
            load_chunk(a.bias + c, a.cols - c, b);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            v[i] = normed<T>(v[i] - middle, inverse, a.weight ? w[i] : 1.0f, a.kind);
            v[i] = a.bias ? v[i] + b[i] : v[i];
        }
        if (a.residual)
            add_residual((const T *)a.residual + y + c, a.cols - c, v);
        if (a.factor)
            multiply<T>(*a.factor, v);
        store_chunk((T *)a.y + y + c, a.cols - c, v);
    }
}

/* A warp for each row. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_norm_warp(const struct spw_norm_args a)
{
    spw_grid_wait();
    spw_grid_next();
    size_t row = (size_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    if (row >= a.rows)
        return; /* the whole warp */
    size_t lane = threadIdx.x % LANES;
    const T *x = (const T *)a.x + row * a.x_stride;
    float middle = 0.0f;
    if (a.kind == SPW_NORM_MEAN)
        middle = warp_sum(plain_sum(a, x, lane, LANES)) / (float)a.cols;
    float sum = warp_sum(square_sum(a, x, lane, LANES, middle));
    scale(a, x, row * a.y_stride, middle, sum, lane, LANES);
}

/* A block for each row. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_norm_block(const struct spw_norm_args a)
{
    SPW_SHARED(float, sums, THREADS / LANES);
    spw_grid_wait();
    spw_grid_next();
    const T *x = (const T *)a.x + blockIdx.x * a.x_stride;
    float middle = 0.0f;
    if (a.kind == SPW_NORM_MEAN)
        middle = block_sum(plain_sum(a, x, threadIdx.x, THREADS), sums) / (float)a.cols;
    float sum = block_sum(square_sum(a, x, threadIdx.x, THREADS, middle), sums);
    scale(a, x, blockIdx.x * a.y_stride, middle, sum, threadIdx.x, THREADS);
}

int spw_norm_cuda(const struct spw_norm_args *a, spw_stream s)
{
    if (!known(a->dtype) || a->rows > INT32_MAX)
        return -EINVAL;
    if (!a->rows || !a->cols)
        return 0;
    if (a->cols <= WARP_COLS)
        LAUNCH_ROWS(k_norm_warp, a->dtype, (unsigned)spw_div_up(a->rows, THREADS / LANES), s, *a);
    else
        LAUNCH_ROWS(k_norm_block, a->dtype, (unsigned)a->rows, s, *a);
    return spw_cuda_launched();
}

/* ---- chunk by chunk ----
 *
 * Operations of which a chunk needs no other chunk of its row. apply_chunk makes the chunk of row
 * `row` that begins at column `col`. */

template <typename T>
__device__ __forceinline__ void apply_chunk(const struct spw_softcap_args &a, size_t, size_t col)
{
    float x[CHUNK];
    load_chunk(a.x + col, a.n - col, x);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        x[i] = a.cap * num_tanh(x[i] / a.cap);
    store_chunk(a.x + col, a.n - col, x);
}

template <typename T>
__device__ __forceinline__ void apply_chunk(const struct spw_each_args &a, size_t, size_t col)
{
    float x[CHUNK];
    T *at = (T *)a.x + col;
    load_chunk(at, a.n - col, x);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (a.limit == 0)
            x[i] = num_activation(x[i], a.act);
        else /* NaN stays NaN */
            x[i] = x[i] > a.limit ? a.limit : x[i] < -a.limit ? -a.limit : x[i];
    store_chunk(at, a.n - col, x);
}

template <typename T>
__device__ __forceinline__ void apply_chunk(const struct spw_gated_args &a, size_t row, size_t col)
{
    float gate[CHUNK], up[CHUNK];
    load_chunk((const T *)a.gate + row * a.gate_stride + col, a.cols - col, gate);
    load_chunk((const T *)a.up + row * a.up_stride + col, a.cols - col, up);
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        gate[j] = gated<T>(gate[j], up[j], a.act);
    store_chunk((T *)a.y + row * a.cols + col, a.cols - col, gate);
}

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
__device__ __forceinline__ void apply_chunk(const struct spw_gather_args &a, size_t row, size_t col)
{
    const size_t from = a.index ? a.index[row] : row, its_row = a.times ? row / a.times : from;
    const float weight = a.choices ? rounded<T>(weight_in(a, from)) : 1.0f;
    float v[CHUNK];
    load_chunk((const T *)a.x + its_row * a.x_stride + col, a.cols - col, v);
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        v[j] = v[j] * weight;
    store_chunk((T *)a.y + row * a.cols + col, a.cols - col, v);
}

template <typename T>
__device__ __forceinline__ void apply_chunk(const struct spw_combine_args &a, size_t row,
                                            size_t col)
{
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
    store_chunk((T *)a.h + row * a.cols + col, a.cols - col, sum);
}

/* A thread takes one chunk, or more, at the distance of the whole grid, if the grid is smaller. */
template <typename T, typename A>
__global__ void __launch_bounds__(THREADS) k_chunks(const A a, size_t rows, size_t cols)
{
    spw_grid_wait();
    spw_grid_next();
    const size_t chunks = (cols + CHUNK - 1) / CHUNK, stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < rows * chunks; i += stride)
        apply_chunk<T>(a, i / chunks, i % chunks * CHUNK);
}

template <typename A>
static int apply(const A *a, size_t rows, size_t cols, enum spw_dtype t, spw_stream s)
{
    const uint64_t chunks = rows * spw_div_up(cols, CHUNK);
    const unsigned grid = (unsigned)spw_min_u64(spw_div_up(chunks, THREADS), MOST_BLOCKS);
    if (!known(t))
        return -EINVAL;
    if (!grid)
        return 0;
    if (t == SPW_DTYPE_F32)
        SPW_LAUNCH((k_chunks<float, A>), grid, THREADS, 0, s, *a, rows, cols);
    else
        SPW_LAUNCH((k_chunks<uint16_t, A>), grid, THREADS, 0, s, *a, rows, cols);
    return spw_cuda_launched();
}

int spw_softcap_cuda(const struct spw_softcap_args *a, spw_stream s)
{
    return apply(a, 1, a->n, SPW_DTYPE_F32, s);
}

int spw_each_cuda(const struct spw_each_args *a, spw_stream s)
{
    return apply(a, 1, a->n, a->dtype, s);
}

int spw_gated_cuda(const struct spw_gated_args *a, spw_stream s)
{
    return apply(a, a->rows, a->cols, a->dtype, s);
}

int spw_gather_cuda(const struct spw_gather_args *a, spw_stream s)
{
    return apply(a, a->rows, a->cols, a->dtype, s);
}

int spw_combine_cuda(const struct spw_combine_args *a, spw_stream s)
{
    return apply(a, a->rows, a->cols, a->dtype, s);
}
