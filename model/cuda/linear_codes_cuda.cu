/* Products of quantized weights with int8 activations: rows of x become codes once for each input
 * of products, then model/cuda/linear_codes_cuda.cuh multiplies. quant/codes.h has the contract of
 * both.
 *
 * k_codes_encode: a warp for each group of 256 numbers, 8 adjacent ones a lane. Bytes per call: 2mk
 * for x, 320 ceil(k / 256) m for the codes. */
#include "model/cuda/linear_codes_cuda.cuh"
#include "model/cuda/linear_cuda.h"
#include "quant/types.h"

enum {
    LANE_NUMBERS = SPW_CODES_GROUP / WARP,
    HALF_LANES = WARP / SPW_CODES_HALVES,
    BLOCK_LANES = WARP / SPW_CODES_BLOCKS,
    ENCODE_WARPS = 4,
};

struct encode {
    const uint16_t *x;
    struct spw_codes *out;
    size_t x_stride, rows, groups;
    int k;
    bool small; /* for types with blocks of 32 */
};

/* Zeros from the end of the row on. Aligned: all numbers lie before the end, or none. */
template <bool aligned>
static __device__ __forceinline__ void load_numbers(float out[LANE_NUMBERS], const uint16_t *row,
                                                    int k, int k_end)
{
    if constexpr (aligned) {
        const uint4 four = k < k_end ? *(const uint4 *)(row + k) : make_uint4(0, 0, 0, 0);
        const uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
        for (int i = 0; i < LANE_NUMBERS; i++)
            out[i] = spw_device_bf16((uint16_t)(pairs[i / 2] >> i % 2 * 16));
    } else {
        for (int i = 0; i < LANE_NUMBERS; i++)
            out[i] = k + i < k_end ? spw_device_bf16(row[k + i]) : 0.0f;
    }
}

/* The scale of the numbers that `lanes` lanes hold together. As integers, magnitudes have the same
 * order, and those of NaN and infinity are the largest. */
static __device__ __forceinline__ float scale_of(const float x[LANE_NUMBERS], int lanes)
{
    uint32_t largest = 0;
    for (int i = 0; i < LANE_NUMBERS; i++)
        largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    for (int i = lanes / 2; i; i /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    return largest < 0x7f800000u ? __uint_as_float(largest) / 127.0f : __uint_as_float(0x7fc00000u);
}

/* grid: the groups of all rows, ENCODE_WARPS a CTA. */
template <bool aligned>
static __global__ void __launch_bounds__(ENCODE_WARPS *WARP) k_codes_encode(struct encode e)
{
    spw_grid_wait();
    spw_grid_next();
    const int lane = (int)(threadIdx.x % WARP);
    const size_t at = (size_t)blockIdx.x * ENCODE_WARPS + threadIdx.x / WARP;
    if (at >= e.rows * e.groups)
        return;
    const int k = (int)(at % e.groups) * SPW_CODES_GROUP + lane * LANE_NUMBERS;
    struct spw_codes *out = e.out + at;
    float x[LANE_NUMBERS];
    load_numbers<aligned>(x, e.x + at / e.groups * e.x_stride, k, e.k);
    const float scale = scale_of(x, e.small ? BLOCK_LANES : HALF_LANES);
    int sum = 0;
    uint32_t bytes[2] = {};
    for (int i = 0; scale > 0 && i < LANE_NUMBERS; i++) { /* false for NaN */
        const int code = (int)fminf(fmaxf(rintf(x[i] / scale), -127.0f), 127.0f);
        sum += code;
        bytes[i / 4] |= ((uint32_t)code & 0xffu) << 8 * (i % 4);
    }
    const int sum16 = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    const int sum32 = sum16 + __shfl_xor_sync(0xffffffffu, sum16, 2);
    ((uint2 *)out->codes)[lane] = make_uint2(bytes[0], bytes[1]);
    if (!e.small && lane % 2 == 0)
        out->sums[lane / 2] = (int16_t)sum16;
    if (e.small && lane % BLOCK_LANES == 0)
        out->block_scales[lane / BLOCK_LANES] = scale;
    if (lane % 4 == 0)
        out->sums32[lane / 4] = (int16_t)sum32;
    if (lane % HALF_LANES == 0) {
        out->scales[lane / HALF_LANES] = e.small ? 0.0f : scale;
        out->unused[lane / HALF_LANES] = 0.0f;
    }
}

static int launch_encode(const struct spw_linear_args *a, spw_stream s)
{
    struct encode e = {};
    e.x = (const uint16_t *)a->x;
    e.out = (struct spw_codes *)a->codes;
    e.x_stride = a->x_stride;
    e.rows = a->m;
    e.groups = spw_codes_groups(a->k);
    e.k = (int)a->k;
    e.small = spw_type_of(a->w_dtype).elements == SPW_CODES_BLOCK;
    const unsigned grid = (unsigned)spw_div_up(e.rows * e.groups, ENCODE_WARPS);
    if (!grid)
        return 0;
    if (((uintptr_t)a->x | a->x_stride * sizeof *e.x) % 16 == 0)
        SPW_LAUNCH((k_codes_encode<true>), grid, ENCODE_WARPS * WARP, 0, s, e);
    else
        SPW_LAUNCH((k_codes_encode<false>), grid, ENCODE_WARPS * WARP, 0, s, e);
    return spw_cuda_launched();
}

int spw_linear_codes_cuda(const struct spw_linear_args *a, const struct spw_gate *gate,
                          spw_stream s)
{
    const size_t second = gate ? 0 : spw_min_u64(8, a->n - 1);
    const uint8_t *w = (const uint8_t *)a->w, *up = gate ? (const uint8_t *)gate->w_up : w;
    struct codes_product p = {};
    if ((uintptr_t)a->codes % 16)
        return -EINVAL;
    if (!a->has_codes)
        SPW_TRY(launch_encode(a, s));
    p.x = (const uint8_t *)a->codes;
    p.row_bytes = (int64_t)spw_row_bytes(a->w_dtype, a->k);
    p.groups = (int)spw_codes_groups(a->k);
    p.w[0] = p.begin[0] = w;
    p.begin[1] = up;
    p.w[1] = up + (int64_t)second * p.row_bytes;
    for (int i = 0; i < 2; i++)
        p.end[i] = p.begin[i] + (int64_t)a->n * p.row_bytes;
    p.w_step = gate ? 8 : 16;
    p.w_last[0] = (int)a->n - 1;
    p.w_last[1] = p.w_last[0] - (int)second;
    p.gated = gate;
    p.act = gate ? gate->act : SPW_ACT_SILU;
    p.bias = a->bias;
    p.y = a->y;
    p.residual = a->residual;
    p.y_stride = a->y_stride;
    p.m = (int)a->m;
    p.n = (int)a->n;
    p.y_f32 = a->y_dtype == SPW_DTYPE_F32;
    p.choices = {a->choices, a->matrices, gate ? gate->ups : NULL, a->bias_step};
    return spw_type_of(a->w_dtype).elements == SPW_CODES_GROUP
               ? spw_linear_codes_large_cuda(&p, a->w_dtype, s)
               : spw_linear_codes_small_cuda(&p, a->w_dtype, s);
}
