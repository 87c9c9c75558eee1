/* Row operations on the GPU: see ops_cuda.h.
 *
 *   norm     [rows][groups][cols] -> the same      one warp (cols <= 512) or one block for a group
 *   rope     [rows][heads][dim], in place          one block for 8 heads of a row
 *   gated    [rows][2 cols] -> [rows][cols]        8 elements a thread
 *   add      [n] += [n]                            8 elements a thread
 *   softcap  [n], in place                         8 elements a thread
 *
 * Each byte crosses the memory bus once a call: norm reads a row a second time while it is in L1.
 * All work in chunks of 8 elements, which are 16 or 32 bytes: moved 16 bytes at a time where their
 * address allows it, else one by one, with the same arithmetic either way. A chunk belongs to the
 * same thread of its row or block in every call, so that the sum of a norm is one tree that depends
 * on cols alone. */
#include "model/ops_cuda.h"

#include "quant/cuda.cuh"

enum {
    CHUNK = 8,
    LANES = 32,
    THREADS = 256,
    MOST_BLOCKS = 1 << 16,
    WARP_COLS = 512, /* up to here a warp norms a group, two chunks a lane at most */
    ROPE_HEADS = 8,  /* of one block */
    ROPE_THREADS = 128,
    ROPE_PAIRS = 256, /* angles held at a time */
};

/* ---- chunks ---- */

__device__ __forceinline__ bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

__device__ __forceinline__ float widened(float x)
{
    return x;
}

__device__ __forceinline__ float widened(uint16_t x)
{
    return spw_device_bf16(x);
}

__device__ __forceinline__ void narrowed(float *to, float x)
{
    *to = x;
}

__device__ __forceinline__ void narrowed(uint16_t *to, float x)
{
    *to = spw_device_to_bf16(x);
}

/* x as it would be after it was stored and loaded again. */
template <typename T> __device__ __forceinline__ float rounded(float x)
{
    T stored;
    narrowed(&stored, x);
    return widened(stored);
}

__device__ __forceinline__ void load_whole(const float *p, float v[CHUNK])
{
    float4 low = *(const float4 *)p, high = *(const float4 *)(p + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void load_whole(const uint16_t *p, float v[CHUNK])
{
    uint4 u = *(const uint4 *)p;
    const uint32_t pairs[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(pairs[i] << 16);
        v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ void store_whole(float *p, const float v[CHUNK])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

__device__ __forceinline__ void store_whole(uint16_t *p, const float v[CHUNK])
{
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = spw_device_to_bf16(v[2 * i]) | (uint32_t)spw_device_to_bf16(v[2 * i + 1]) << 16;
    *(uint4 *)p = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* The first n elements of a chunk, zeros after them; n may be more than a chunk. */
template <typename T>
__device__ __forceinline__ void load_chunk(const T *p, size_t n, float v[CHUNK])
{
    if (n >= CHUNK && aligned16(p)) {
        load_whole(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = i < n ? widened(p[i]) : 0.0f;
}

template <typename T>
__device__ __forceinline__ void store_chunk(T *p, size_t n, const float v[CHUNK])
{
    if (n >= CHUNK && aligned16(p)) {
        store_whole(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (i < n)
            narrowed(p + i, v[i]);
}

/* Blocks for one chunk a thread; a thread that finds more goes on by the whole grid. */
static unsigned blocks_of(size_t n_chunks)
{
    return (unsigned)spw_min_u64(spw_div_up(n_chunks, THREADS), MOST_BLOCKS);
}

static bool known(enum spw_dtype t)
{
    return t == SPW_DTYPE_F32 || t == SPW_DTYPE_BF16;
}

/* ---- norm ---- */

/* The sum over a warp, the same bits in every lane: x + y and y + x are the same. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int apart = LANES / 2; apart; apart /= 2)
        x = x + __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* What is normed, from element `at` on: x, or x + add, which is written on the way. */
template <typename T>
__device__ __forceinline__ void load_summed(const struct spw_norm_args &a, size_t at, size_t n,
                                            float v[CHUNK])
{
    load_chunk((const T *)a.x + at, n, v);
    if (!a.add)
        return;
    float more[CHUNK];
    load_chunk((const T *)a.add + at, n, more);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = rounded<T>(v[i] + more[i]);
    store_chunk((T *)a.sum + at, n, v);
}

/* Of the chunks first, first + step, ... of the group at x: one chain. */
template <typename T>
__device__ __forceinline__ float square_sum(const struct spw_norm_args &a, size_t x, size_t first,
                                            size_t step)
{
    float sum = 0.0f, v[CHUNK];
    for (size_t c = first * CHUNK; c < a.cols; c += step * CHUNK) {
        load_summed<T>(a, x + c, a.cols - c, v);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    return sum;
}

/* A thread rewrites only what it alone reads, so that y may be x; a sum it wrote itself. */
template <typename T>
__device__ __forceinline__ void scale(const struct spw_norm_args &a, size_t at, T *y, float sum,
                                      size_t first, size_t step)
{
    const T *x = (const T *)(a.add ? a.sum : a.x) + at;
    float inverse = 1.0f / sqrtf(sum / (float)a.cols + a.eps), v[CHUNK], w[CHUNK];
    for (size_t c = first * CHUNK; c < a.cols; c += step * CHUNK) {
        load_chunk(x + c, a.cols - c, v);
        load_chunk(a.weight + c, a.cols - c, w);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            v[i] = a.kind == SPW_NORM_LLAMA ? w[i] * rounded<T>(v[i] * inverse)
                                            : v[i] * inverse * (1.0f + w[i]);
        store_chunk(y + c, a.cols - c, v);
    }
}

/* A warp for each group. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_norm_warp(const struct spw_norm_args a)
{
    size_t i = (size_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    if (i >= a.rows * a.groups)
        return; /* the whole warp */
    size_t row = i / a.groups, column = i % a.groups * a.cols, lane = threadIdx.x % LANES;
    size_t x = row * a.x_stride + column;
    T *y = (T *)a.y + row * a.y_stride + column;
    float sum = warp_sum(square_sum<T>(a, x, lane, LANES));
    scale(a, x, y, sum, lane, LANES);
}

/* A block for each group. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_norm_block(const struct spw_norm_args a)
{
    SPW_SHARED(float, sums, THREADS / LANES);
    size_t row = blockIdx.x / a.groups, column = blockIdx.x % a.groups * a.cols;
    size_t x = row * a.x_stride + column;
    T *y = (T *)a.y + row * a.y_stride + column;
    float sum = warp_sum(square_sum<T>(a, x, threadIdx.x, THREADS));
    if (threadIdx.x % LANES == 0)
        sums[threadIdx.x / LANES] = sum;
    __syncthreads(); /* sums is written */
    sum = warp_sum(threadIdx.x % LANES < THREADS / LANES ? sums[threadIdx.x % LANES] : 0.0f);
    scale(a, x, y, sum, threadIdx.x, THREADS);
}

template <typename T> static void norm(const struct spw_norm_args *a, spw_stream s)
{
    size_t n = a->rows * a->groups;
    if (a->cols <= WARP_COLS)
        SPW_LAUNCH((k_norm_warp<T>), (unsigned)spw_div_up(n, THREADS / LANES), THREADS, 0, s, *a);
    else
        SPW_LAUNCH((k_norm_block<T>), (unsigned)n, THREADS, 0, s, *a);
}

int spw_norm_cuda(const struct spw_norm_args *a, spw_stream s)
{
    uint64_t n;
    if (!known(a->dtype) || !spw_mul_u64(a->rows, a->groups, &n) || n > INT32_MAX)
        return -EINVAL;
    if (!n || !a->cols)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        norm<float>(a, s);
    else
        norm<uint16_t>(a, s);
    return spw_cuda_launched();
}

/* ---- rope ---- */

/* Hugging Face rotates in the activation dtype: every product and the sum are rounded. `n` pairs
 * from x on, their other halves `apart` elements further. */
template <typename T>
__device__ __forceinline__ void rotate(T *x, size_t apart, size_t n, const float *cosine,
                                       const float *sine)
{
    float low[CHUNK], high[CHUNK];
    load_chunk(x, n, low);
    load_chunk(x + apart, n, high);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float c = i < n ? cosine[i] : 0.0f, s = i < n ? sine[i] : 0.0f;
        float low_c = rounded<T>(low[i] * c), low_s = rounded<T>(low[i] * s);
        float high_c = rounded<T>(high[i] * c), high_s = rounded<T>(high[i] * s);
        low[i] = low_c - high_s;
        high[i] = high_c + low_s;
    }
    store_chunk(x, n, low);
    store_chunk(x + apart, n, high);
}

/* Block (x, y): row x, heads 8 y and on. */
template <typename T>
__global__ void __launch_bounds__(ROPE_THREADS) k_rope(const struct spw_rope_args a)
{
    SPW_SHARED(float, cosine, ROPE_PAIRS);
    SPW_SHARED(float, sine, ROPE_PAIRS);
    size_t apart = a.rotary_dim / 2, head = (size_t)blockIdx.y * ROPE_HEADS;
    size_t heads = spw_min_u64(a.n_heads - head, ROPE_HEADS);
    T *x = (T *)a.x + blockIdx.x * a.stride + head * a.head_dim;
    float position = (float)(a.position + blockIdx.x);
    for (size_t first = 0; first < apart; first += ROPE_PAIRS) {
        size_t n = spw_min_u64(apart - first, ROPE_PAIRS), chunks = spw_div_up(n, CHUNK);
        __syncthreads(); /* the angles before these are used up */
        for (size_t i = threadIdx.x; i < n; i += ROPE_THREADS) {
            float angle = position * a.inv_freq[first + i];
            cosine[i] = rounded<T>(cosf(angle) * a.scaling);
            sine[i] = rounded<T>(sinf(angle) * a.scaling);
        }
        __syncthreads(); /* cosine and sine are written */
        for (size_t i = threadIdx.x; i < heads * chunks; i += ROPE_THREADS) {
            size_t c = i % chunks * CHUNK;
            T *at = x + i / chunks * a.head_dim + first + c;
            rotate(at, apart, n - c, cosine + c, sine + c);
        }
    }
}

int spw_rope_cuda(const struct spw_rope_args *a, spw_stream s)
{
    if (!known(a->dtype) || a->rows > INT32_MAX || a->rotary_dim > a->head_dim)
        return -EINVAL;
    dim3 grid((unsigned)a->rows, (unsigned)spw_div_up(a->n_heads, ROPE_HEADS));
    if (!a->rows || !a->n_heads || a->rotary_dim < 2)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH((k_rope<float>), grid, ROPE_THREADS, 0, s, *a);
    else
        SPW_LAUNCH((k_rope<uint16_t>), grid, ROPE_THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- gated ---- */

__device__ __forceinline__ float activation(float x, enum spw_activation act)
{
    if (act == SPW_ACT_SILU)
        return x / (1.0f + expf(0.0f - x));
    if (act == SPW_ACT_GELU_ERF)
        return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    float inner = x + 0.044715f * (x * x * x); /* sqrt(2/pi) (x + 0.044715 x^3) */
    return 0.5f * x * (1.0f + tanhf(0.797884561f * inner));
}

template <typename T>
__global__ void __launch_bounds__(THREADS) k_gated(const struct spw_gated_args a)
{
    size_t chunks = spw_div_up(a.cols, CHUNK), stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * chunks; i += stride) {
        size_t row = i / chunks, c = i % chunks * CHUNK;
        const T *gate = (const T *)a.x + row * 2 * a.cols + c;
        float g[CHUNK], u[CHUNK];
        load_chunk(gate, a.cols - c, g);
        load_chunk(gate + a.cols, a.cols - c, u);
#pragma unroll
        for (int j = 0; j < CHUNK; j++)
            g[j] = rounded<T>(activation(g[j], a.act)) * u[j];
        store_chunk((T *)a.y + row * a.cols + c, a.cols - c, g);
    }
}

int spw_gated_cuda(const struct spw_gated_args *a, spw_stream s)
{
    if (!known(a->dtype))
        return -EINVAL;
    size_t n = a->rows * spw_div_up(a->cols, CHUNK);
    if (!n)
        return 0;
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH((k_gated<float>), blocks_of(n), THREADS, 0, s, *a);
    else
        SPW_LAUNCH((k_gated<uint16_t>), blocks_of(n), THREADS, 0, s, *a);
    return spw_cuda_launched();
}

/* ---- add, softcap ---- */

template <typename T> __global__ void __launch_bounds__(THREADS) k_add(const struct spw_add_args a)
{
    size_t stride = (size_t)gridDim.x * THREADS * CHUNK;
    for (size_t c = ((size_t)blockIdx.x * THREADS + threadIdx.x) * CHUNK; c < a.n; c += stride) {
        float h[CHUNK], x[CHUNK];
        load_chunk((const T *)a.h + c, a.n - c, h);
        load_chunk((const T *)a.x + c, a.n - c, x);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            h[i] = h[i] + x[i];
        store_chunk((T *)a.h + c, a.n - c, h);
    }
}

int spw_add_cuda(const struct spw_add_args *a, spw_stream s)
{
    if (!known(a->dtype))
        return -EINVAL;
    if (!a->n)
        return 0;
    unsigned blocks = blocks_of(spw_div_up(a->n, CHUNK));
    if (a->dtype == SPW_DTYPE_F32)
        SPW_LAUNCH((k_add<float>), blocks, THREADS, 0, s, *a);
    else
        SPW_LAUNCH((k_add<uint16_t>), blocks, THREADS, 0, s, *a);
    return spw_cuda_launched();
}

__global__ void __launch_bounds__(THREADS) k_softcap(const struct spw_softcap_args a)
{
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
