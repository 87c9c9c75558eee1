/* The encoder of quant/codec.h on a GPU. It gives the bits of quant/codec_simd.c, which states the
 * order of every sum.
 *
 * A block of the grid takes eight positions of K or of V of one head (a row of a V plane, half a
 * block of a K plane), one position per warp. Eight rows of 128 channels are small enough to stay
 * in shared memory from the rotation to the codes. For K every block computes the means of the
 * whole tile again, from the L2 cache: that is faster than a second launch. For a tile in bf16 at
 * head_dim 128 a head's 64 KiB are read from memory and 34 KiB (int8) written, by 32 blocks. */
#include "quant/codec.h"

#include <float.h>

#include "quant/hadamard_cuda.cuh"

enum {
    WARPS = SPW_QTILE_OCTET, /* one position for each */
    THREADS = 32 * WARPS,
    MOST_CHANNELS = 1024,
};

struct encode_job {
    struct spw_codec_args a;
    float factor[2];   /* of the rotation of K and of V, shrunk */
    float mean_factor; /* of the rotation of the means, which are shrunk already */
};

/* Shared memory of a block, in this order. */
struct encode_rows {
    float *x;             /* [8][channels] rotated and shrunk */
    float *means;         /* [channels] */
    unsigned char *codes; /* K: [8][channels], V: [channels][8] */
};

__device__ __forceinline__ float load_exact(const void *from, size_t i, enum spw_dtype t)
{
    if (t == SPW_DTYPE_F32)
        return ((const float *)from)[i];
    uint16_t bits = ((const uint16_t *)from)[i];
    return t == SPW_DTYPE_F16 ? spw_device_f16(bits) : spw_device_bf16(bits);
}

__device__ __forceinline__ bool not_finite(float x)
{
    return (__float_as_uint(x) & 0x7fffffffu) >= 0x7f800000u;
}

/* The shrunk mean of every channel. A half-warp sums one channel; each lane adds every sixteenth
 * position. */
__device__ __forceinline__ bool sum_means(float *means, const void *k, const struct encode_job &job)
{
    const uint32_t d = job.a.widths.k, lane = threadIdx.x % SPW_TILE_BLOCK;
    const float part = 0x1p-24f / SPW_TILE_TOKENS;
    bool bad = false;
    /* d is even, so both halves of a warp take part. */
    for (uint32_t c = threadIdx.x / SPW_TILE_BLOCK; c < d; c += THREADS / SPW_TILE_BLOCK) {
        float sum = 0.0f;
        for (uint32_t j = lane; j < SPW_TILE_TOKENS; j += SPW_TILE_BLOCK) {
            float x = load_exact(k, spw_tile_k_index(d, job.a.dtype, j, c), job.a.dtype);
            bad |= not_finite(x);
            sum += x * part;
        }
        for (int step = SPW_TILE_BLOCK / 2; step; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0)
            means[c] = sum;
    }
    return bad;
}

/* Writes the means in their stored form, and the shrunk means that are subtracted. One warp calls
 * it. */
__device__ __forceinline__ void rotate_means(float *means, float *to, const struct encode_job &job)
{
    const float most = FLT_MAX * 0x1p-24f;
    const uint32_t d = job.a.widths.k, lane = threadIdx.x % 32;
    for (uint32_t c = lane; c < d; c += 32)
        means[c] *= job.mean_factor;
    spw_hadamard_stages(means, 1, 0, d, spw_hadamard_k_block(d));
    for (uint32_t c = lane; c < d; c += 32)
        means[c] = means[c] > most ? most : means[c] < -most ? -most : means[c];
    if (blockIdx.x == 0)
        for (uint32_t c = lane; c < spw_qtile_means_bytes(d) / sizeof(float); c += 32)
            to[c] = c < d ? means[c] * 0x1p24f : 0.0f;
}

/* Loads the rows of the octet, multiplied by the factor of the rotation. */
__device__ __forceinline__ bool load_rows(float *x, uint32_t stride, const void *from,
                                          const struct encode_job &job, bool values)
{
    const uint32_t d = values ? job.a.widths.v : job.a.widths.k,
                   first = blockIdx.x * SPW_QTILE_OCTET;
    const enum spw_dtype t = job.a.dtype;
    bool bad = false;
    for (uint32_t i = threadIdx.x; i < SPW_QTILE_OCTET * d; i += THREADS) {
        /* neighbours in the exact tile */
        uint32_t j = values ? i / d : i % SPW_QTILE_OCTET, c = values ? i % d : i / SPW_QTILE_OCTET;
        size_t at =
            values ? spw_tile_v_index(d, t, first + j, c) : spw_tile_k_index(d, t, first + j, c);
        float exact = load_exact(from, at, t);
        bad |= not_finite(exact);
        x[j * stride + c] = exact * job.factor[values];
    }
    return bad;
}

/* Turns this warp's row into codes, group by group. */
__device__ __forceinline__ void encode_row(const struct encode_rows &r, uint32_t stride,
                                           uint16_t *steps, uint32_t d, bool values)
{
    const uint32_t j = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *x = r.x + j * stride;
    for (uint32_t c = lane; c < stride && !values; c += 32)
        x[c] = c < d ? x[c] - r.means[c] : 0.0f;
    const uint32_t n = values ? d : stride;
    for (uint32_t g = 0; g < spw_qtile_groups(d); g++) {
        uint32_t end = min(n, (g + 1) * SPW_QTILE_GROUP), most = 0;
        for (uint32_t c = g * SPW_QTILE_GROUP + lane; c < end; c += 32)
            most = max(most, __float_as_uint(x[c]) & 0x7fffffffu);
        for (int step = 16; step; step /= 2)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        float step = __uint_as_float(most) * (0x1p24f / 128);
        step = step < 0x1p-100f ? 0x1p-100f : step;
        uint32_t bits = (__float_as_uint(step) + 0xffffu) & 0xffff0000u;
        float inverse = most ? 0x1p24f / __uint_as_float(bits) : 0.0f;
        if (lane == 0)
            steps[g * SPW_TILE_TOKENS + blockIdx.x * SPW_QTILE_OCTET + j] =
                (uint16_t)(most ? bits >> 16 : 0);
        for (uint32_t c = g * SPW_QTILE_GROUP + lane; c < end; c += 32) {
            float t = fmaxf(fminf(x[c] * inverse + 128.0f, 255.0f), 0.0f);
            r.codes[values ? c * SPW_QTILE_OCTET + j : j * stride + c] = (unsigned char)t;
        }
    }
}

/* Writes the octet's words of both planes: four codes of one half and four of the other. */
__device__ __forceinline__ void store_planes(const struct encode_rows &r, uint32_t stride,
                                             unsigned char *high, unsigned char *low, uint32_t d,
                                             bool values)
{
    const uint32_t *codes = reinterpret_cast<const uint32_t *>(r.codes);
    const uint32_t first = blockIdx.x * SPW_QTILE_OCTET, n = values ? d : stride;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t j = i % SPW_QTILE_OCTET, octet = i / SPW_QTILE_OCTET;
        uint32_t at = values ? 2 * i : j * (stride / 4) + 2 * octet;
        size_t to = values ? spw_qtile_v_index(d, first, i)
                           : spw_qtile_k_index(d, first + j, octet * SPW_QTILE_OCTET);
        uint32_t four = codes[at], next = codes[at + 1];
        *(uint32_t *)(high + to) = (four >> 4 & 0x0f0f0f0fu) | (next & 0xf0f0f0f0u);
        if (low)
            *(uint32_t *)(low + to) = (four & 0x0f0f0f0fu) | (next << 4 & 0xf0f0f0f0u);
    }
}

/* grid: (16 octets of positions, KV heads, K and V) */
__global__ void __launch_bounds__(THREADS) k_codec_encode(SPW_PARAMETER struct encode_job job)
{
    SPW_SHARED_DYNAMIC(float, shared);
    spw_grid_wait();
    spw_grid_next();
    const struct spw_codec_args &a = job.a;
    const bool values = blockIdx.z != 0;
    const uint32_t d = values ? a.widths.v : a.widths.k, stride = spw_qtile_k_channels(d);
    const uint32_t warp = threadIdx.x / 32;
    const struct spw_qtile_head at = spw_qtile_locate(a.n_kv_heads, a.widths, blockIdx.y);
    unsigned char *to = (unsigned char *)a.qtile;
    const char *exact = (const char *)a.tile +
                        spw_tile_head_at(a.n_kv_heads, a.widths, a.dtype, blockIdx.y, values);
    struct encode_rows r;
    r.x = shared;
    r.means = r.x + SPW_QTILE_OCTET * stride;
    r.codes = reinterpret_cast<unsigned char *>(r.means + stride);
    bool bad = load_rows(r.x, stride, exact, job, values);
    if (!values)
        bad |= sum_means(r.means, exact, job);
    __syncthreads(); /* rows and sums are written */
    if (!values && warp == 0)
        rotate_means(r.means, (float *)(to + at.k_means), job);
    spw_hadamard_stages(r.x + warp * stride, 1, 0, d,
                        values ? spw_hadamard_v_block(d) : spw_hadamard_k_block(d));
    __syncthreads(); /* the means are rotated */
    encode_row(r, stride, (uint16_t *)(to + (values ? at.v_steps : at.k_steps)), d, values);
    __syncthreads(); /* the codes are written */
    bool fine = a.format == SPW_QFORMAT_INT8 || (a.format == SPW_QFORMAT_INT8_INT4 && !values);
    unsigned char *low = to + (values ? at.v_low : at.k_low);
    store_planes(r, stride, to + (values ? at.v_high : at.k_high), fine ? low : nullptr, d, values);
    if (bad)
        *a.not_finite = 1;
}

int spw_codec_encode_cuda(const struct spw_codec_args *a, spw_stream s)
{
    const uint32_t k = a->widths.k, v = a->widths.v, most = k > v ? k : v;
    if (!k || k % 2 || v % 2 || most > MOST_CHANNELS || a->format >= SPW_QFORMAT_EXACT ||
        (uintptr_t)a->tile % 4 || (uintptr_t)a->qtile % 64 || (uintptr_t)a->not_finite % 4)
        return -EINVAL;
    struct encode_job job = {};
    job.a = *a;
    job.mean_factor = spw_hadamard_factor(spw_hadamard_k_block(k));
    job.factor[0] = job.mean_factor * 0x1p-24f;
    job.factor[1] = v ? spw_hadamard_factor(spw_hadamard_v_block(v)) * 0x1p-24f : 0;
    size_t stride = spw_qtile_k_channels(most);
    size_t bytes = stride * ((SPW_QTILE_OCTET + 1) * sizeof(float) + SPW_QTILE_OCTET);
    dim3 grid(SPW_TILE_TOKENS / SPW_QTILE_OCTET, a->n_kv_heads, v ? 2 : 1);
    SPW_LAUNCH(k_codec_encode, grid, THREADS, bytes, s, job);
    return spw_cuda_launched();
}
