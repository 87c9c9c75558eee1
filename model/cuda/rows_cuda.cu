/* Row operations on the GPU: see ops_cuda.h.
 *
 *   norm     [rows][cols] -> the same              one warp (cols <= 512) or one block for a row
 *   softcap  [n], in place                         8 elements a thread
 *   each     [n], in place                         8 elements a thread
 *   gated    two times [rows][cols] -> [rows][cols]  8 outputs a thread
 *
 * Each byte crosses the memory bus once a call: later reads of a row by norm hit L1. All
 * kernels work on chunks of 8 elements (model/cuda/rows_cuda.cuh). In every call the same thread of
 * a row or block takes the same chunk, so the sum of a norm is one tree that depends on cols
 * alone. */
#include "model/cuda/gated_cuda.cuh"
#include "model/cuda/linear_cuda.h"

enum {
    LANES = 32,
    THREADS = 256,
    MOST_BLOCKS = 1 << 16,
    WARP_COLS = 512, /* with at most so many columns a warp norms a row, and a lane has at most two
                        chunks */
};

/* The number of blocks for one chunk a thread. If the grid is smaller, a thread takes more chunks,
 * at the distance of the whole grid. */
static unsigned blocks_of(size_t n_chunks)
{
    return (unsigned)spw_min_u64(spw_div_up(n_chunks, THREADS), MOST_BLOCKS);
}

/* ---- norm ---- */

/* The sum over a warp. Every lane gets the same bits, because x + y equals y + x. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = x + __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

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

/* The sum over a block of what each thread has; every thread gets it. */
__device__ __forceinline__ float block_sum(float x, float *sums)
{
    x = warp_sum(x);
    __syncthreads(); /* an earlier sum has been read */
    if (threadIdx.x % LANES == 0)
        sums[threadIdx.x / LANES] = x;
    __syncthreads(); /* all sums are written */
    return warp_sum(threadIdx.x % LANES < THREADS / LANES ? sums[threadIdx.x % LANES] : 0.0f);
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

template <typename T> static void norm(const struct spw_norm_args *a, spw_stream s)
{
    if (a->cols <= WARP_COLS)
        SPW_LAUNCH((k_norm_warp<T>), (unsigned)spw_div_up(a->rows, THREADS / LANES), THREADS, 0, s,
                   *a);
    else
        SPW_LAUNCH((k_norm_block<T>), (unsigned)a->rows, THREADS, 0, s, *a);
}

int spw_norm_cuda(const struct spw_norm_args *a, spw_stream s)
{
    if (!known(a->dtype) || a->rows > INT32_MAX)
        return -EINVAL;
    if (!a->rows || !a->cols)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        norm<float>(a, s);
    else
        norm<uint16_t>(a, s);
    return spw_cuda_launched();
}

/* ---- softcap ---- */

__global__ void __launch_bounds__(THREADS) k_softcap(const struct spw_softcap_args a)
{
    spw_grid_wait();
    spw_grid_next();
    size_t stride = (size_t)gridDim.x * THREADS * CHUNK;
    for (size_t c = ((size_t)blockIdx.x * THREADS + threadIdx.x) * CHUNK; c < a.n; c += stride) {
        float x[CHUNK];
        load_chunk(a.x + c, a.n - c, x);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            x[i] = a.cap * tanhf(x[i] / a.cap);
        store_chunk(a.x + c, a.n - c, x);
    }
}

int spw_softcap_cuda(const struct spw_softcap_args *a, spw_stream s)
{
    if (!a->n)
        return 0;
    SPW_LAUNCH(k_softcap, blocks_of(spw_div_up(a->n, CHUNK)), THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- each ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS) k_each(const struct spw_each_args a)
{
    spw_grid_wait();
    spw_grid_next();
    size_t stride = (size_t)gridDim.x * THREADS * CHUNK;
    for (size_t c = ((size_t)blockIdx.x * THREADS + threadIdx.x) * CHUNK; c < a.n; c += stride) {
        float x[CHUNK];
        T *at = (T *)a.x + c;
        load_chunk(at, a.n - c, x);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (a.limit == 0)
                x[i] = activation(x[i], a.act);
            else /* NaN stays NaN */
                x[i] = x[i] > a.limit ? a.limit : x[i] < -a.limit ? -a.limit : x[i];
        store_chunk(at, a.n - c, x);
    }
}

int spw_each_cuda(const struct spw_each_args *a, spw_stream s)
{
    const unsigned grid = blocks_of(spw_div_up(a->n, CHUNK));
    if (!known(a->dtype))
        return -EINVAL;
    if (!grid)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_each<float>, grid, THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_each<uint16_t>, grid, THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- gated ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS) k_gated(const struct spw_gated_args a)
{
    spw_grid_wait();
    spw_grid_next();
    const size_t chunks = (a.cols + CHUNK - 1) / CHUNK, stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * chunks; i += stride) {
        const size_t row = i / chunks, col = i % chunks * CHUNK;
        float gate[CHUNK], up[CHUNK];
        load_chunk((const T *)a.gate + row * a.gate_stride + col, a.cols - col, gate);
        load_chunk((const T *)a.up + row * a.up_stride + col, a.cols - col, up);
#pragma unroll
        for (int j = 0; j < CHUNK; j++)
            gate[j] = gated<T>(gate[j], up[j], a.act);
        store_chunk((T *)a.y + row * a.cols + col, a.cols - col, gate);
    }
}

int spw_gated_cuda(const struct spw_gated_args *a, spw_stream s)
{
    const unsigned grid = blocks_of(a->rows * spw_div_up(a->cols, CHUNK));
    if (!known(a->dtype))
        return -EINVAL;
    if (!grid)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH(k_gated<float>, grid, THREADS, 0, s, *a);
    else
        SPW_LAUNCH(k_gated<uint16_t>, grid, THREADS, 0, s, *a);
    return spw_cuda_launched();
}
