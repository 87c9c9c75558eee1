/* y = x W^T + bias in fp32: x [m][k] f32, W [n][k] f32, f16 or bf16 (widened exactly) or quantized
 * (the numbers of quant/blocks.h), y [m][n] f32. Bytes per call: W once per 8 rows of x where m <=
 * 32, else once per 64; 4mk for x, 4mn for y, and as much for a residual.
 *
 * As in linear_cuda.cu, both kernels compute an output element with the same arithmetic. k is cut
 * into partitions of 64 ceil(k / 512) elements, at most 8 partitions: a function of k alone. A
 * partition is one chain of fmaf in the order of k, with zeros after the end of k. The partitions
 * are added in order, then the bias, then the residual. There are eight partitions because a chain
 * advances by one k per four cycles. For a gated product a CTA takes as many rows of gate's W as of
 * up's, for the same outputs, and model/cuda/gated_cuda.cuh makes the outputs.
 *
 *   k_f32_stream  m <= 32, 8 rows a CTA. One CTA: 32 rows of W, one for each lane; one warp per
 *                 partition. A stage has 64 bytes of every row; it goes through the warp's own ring
 *                 in shared memory.
 *   k_f32_tile    one CTA: a 64 x 64 tile of y, 8 x 4 outputs a thread; the partitions one
 *                 after another, each added to the totals when it is complete. */
#include "model/cuda/codes_cuda.cuh"
#include "model/cuda/linear_outputs_cuda.cuh"
#include "model/cuda/ops_cuda.h"
#include "quant/types.h"

#include <type_traits>

enum {
    WARP = 32,
    PARTITIONS = 8,
    CUT = 64, /* partitions are multiples of it */
    STAGES = 3,
    ROW_PIECES = 4,                               /* 16-byte pieces of a row in a stage */
    SLOT = WARP * ROW_PIECES,                     /* pieces */
    RING_BYTES = PARTITIONS * STAGES * SLOT * 16, /* 48 KB, which every GPU has */
    TILE = 64,
    TILE_K = 16,
    TILE_THREADS = 128,
    PITCH = TILE + 4, /* floats: 16-byte aligned rows */
};

struct product_f32 : linear_outputs {
    const float *x;
    const void *w, *w_up;       /* gated: gate's and up's */
    size_t x_stride, row_bytes; /* row_bytes: of W */
    int k, partition, partitions;
    enum spw_dtype w_dtype;
    bool y_wide; /* four adjacent outputs may be stored, and loaded, at once */
};

/* ---- weights ---- */

struct half_bits {
    uint16_t bits;
};

struct bf16_bits {
    uint16_t bits;
};

/* Of a quantized matrix. Pointers to it are addresses of rows; shared memory holds the number. */
struct quantized {
    float number;
};

static __device__ __forceinline__ float widen(float w)
{
    return w;
}

static __device__ __forceinline__ float widen(struct half_bits w)
{
    return spw_device_f16(w.bits);
}

static __device__ __forceinline__ float widen(struct bf16_bits w)
{
    return spw_device_bf16(w.bits);
}

/* The elements of 16 bytes. */
static __device__ __forceinline__ void widen_piece(float out[4], uint4 piece, float)
{
    const uint32_t u[4] = {piece.x, piece.y, piece.z, piece.w};
    for (int i = 0; i < 4; i++)
        out[i] = __uint_as_float(u[i]);
}

static __device__ __forceinline__ void widen_piece(float out[4], uint4 piece, struct quantized)
{
    widen_piece(out, piece, 0.0f);
}

template <typename type>
static __device__ __forceinline__ void widen_piece(float out[8], uint4 piece, type)
{
    const uint32_t u[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = widen(type{(uint16_t)u[i]});
        out[2 * i + 1] = widen(type{(uint16_t)(u[i] >> 16)});
    }
}

/* The row of W for line `line` of a CTA's `lines`. For a gated product the first half of the lines
 * are rows of gate, the second half the same rows of up. Rows after the last row repeat the last
 * row; their outputs are not stored. */
template <typename type, int lines>
static __device__ __forceinline__ const type *row_of_w(const struct product_f32 &p, int line)
{
    const bool up = p.gated && line >= lines / 2;
    const int row = (int)blockIdx.x * (p.gated ? lines / 2 : lines) + line - (up ? lines / 2 : 0);
    const char *w = (const char *)(up ? p.w_up : p.w);
    return (const type *)(w + (size_t)min(row, p.n - 1) * p.row_bytes);
}

static __device__ __forceinline__ const float *row_of_x(const struct product_f32 &p, int row)
{
    return p.x + (size_t)min(row, p.m - 1) * p.x_stride;
}

/* Numbers k .. k + 3 of a row, for a multiple of 4: spw_block_unpack's integers, and the roundings
 * of quant/blocks.h. A minimum of 0 times -0 would change nothing. */
template <enum spw_dtype type>
static __device__ __forceinline__ void read_four(float out[4], const uint8_t *row, int k)
{
    using packed = packed_type<type>;
    const uint8_t *block = row + (size_t)(k / packed::elements) * packed::bytes;
    const int i = k % packed::elements, part = i / (packed::parts_of_16 ? 16 : 32);
    uint32_t codes[2];
    float d, m;
    unpack_codes<type>(block, i / 32, i % 16 / 4, codes);
    unpack_factors<type>(block, &d, &m);
    if constexpr (packed::large)
        d *= (float)byte_of(unpack_scales<type>(block, part / 4), part % 4);
    if constexpr (packed::large && packed::has_minima)
        m *= (float)byte_of(unpack_minima<type>(block, part / 4), part % 4);
    for (int e = 0; e < 4; e++) {
        out[e] = d * (float)byte_of(i % 32 < 16 ? codes[0] : codes[1], e);
        if (packed::has_minima)
            out[e] += m;
    }
}

static __device__ void read_quantized(enum spw_dtype type, float out[4], const uint8_t *row, int k)
{
    switch (type) {
#define CASE(t, ...)                                                                               \
    case SPW_DTYPE_##t:                                                                            \
        read_four<SPW_DTYPE_##t>(out, row, k);                                                     \
        break;
        SPW_QUANTIZED_TYPES(CASE)
#undef CASE
    default:
        break;
    }
}

/* Loads elements k .. k + count - 1 of a row, zeros from k_end on. `aligned`: all of them lie
 * before k_end, or none. */
template <int count, bool aligned, typename type>
static __device__ __forceinline__ void read_row(float out[count], const type *row, int k, int k_end)
{
    enum { piece = 16 / sizeof(type) };
    if constexpr (aligned) {
#pragma unroll
        for (int i = 0; i < count / piece; i++)
            widen_piece(out + i * piece,
                        k + i * piece < k_end ? *(const uint4 *)(row + k + i * piece)
                                              : make_uint4(0, 0, 0, 0),
                        type{});
    } else {
#pragma unroll
        for (int i = 0; i < count; i++)
            out[i] = k + i < k_end ? widen(row[k + i]) : 0.0f;
    }
}

/* The same for a row of W. The rows of a quantized matrix have a multiple of 32 numbers. */
template <int count, bool aligned, typename type>
static __device__ __forceinline__ void read_w(float out[count], const struct product_f32 &p,
                                              const type *row, int k)
{
    if constexpr (std::is_same_v<type, struct quantized>) {
        for (int i = 0; i < count; i += 4) {
            out[i] = out[i + 1] = out[i + 2] = out[i + 3] = 0.0f;
            if (k + i < p.k)
                read_quantized(p.w_dtype, out + i, (const uint8_t *)row, k + i);
        }
    } else {
        read_row<count, aligned>(out, row, k, p.k);
    }
}

static __device__ __forceinline__ float finish_gated(const struct product_f32 &p, float gate,
                                                     float up, int col)
{
    return gated<float>(biased(p, gate, col), biased(p, up, p.n + col), p.act);
}

/* ---- few rows ---- */

/* Piece c of row r is at 4 r + (c ^ (r / 2 % 4)). So the pieces c of eight adjacent rows are in
 * different banks. */
static __device__ __forceinline__ int place(int row, int piece)
{
    return row * ROW_PIECES + (piece ^ (row / 2 % ROW_PIECES));
}

template <typename type, bool aligned>
static __device__ __forceinline__ void stream_issue(const struct product_f32 &p, uint4 *slot, int k)
{
    enum { elements = 16 / sizeof(type) };
    const int lane = (int)(threadIdx.x % WARP), piece = lane % ROW_PIECES;
    k += piece * elements;
    for (int i = 0; i < ROW_PIECES; i++) {
        const int line = lane / ROW_PIECES + i * (WARP / ROW_PIECES);
        const type *row = row_of_w<type, WARP>(p, line);
        uint4 *to = slot + place(line, piece);
        if constexpr (std::is_same_v<type, struct quantized>) {
            read_w<elements, aligned>((float *)to, p, row, k);
        } else if constexpr (aligned) {
            spw_copy16_async(to, row + (k < p.k ? k : 0), k < p.k);
        } else {
            for (int e = 0; e < elements; e++)
                ((type *)to)[e] = k + e < p.k ? row[k + e] : type{};
        }
    }
}

/* The sum of row `row` and lane `lane`. */
template <int rows>
static __device__ __forceinline__ float stream_total(const struct product_f32 &p, const float *sums,
                                                     int row, int lane)
{
    float total = sums[row * WARP + lane];
    for (int s = 1; s < p.partitions; s++)
        total += sums[(s * rows + row) * WARP + lane];
    return total;
}

/* Row blockIdx.y has the matrix of its expert. */
static __device__ __forceinline__ void take_row(struct product_f32 *p)
{
    const uint32_t expert = chosen_expert(p->choices);
    p->w = p->choices.w[expert];
    if (p->gated)
        p->w_up = p->choices.w_up[expert];
    if (p->bias)
        p->bias += expert * p->choices.bias_step;
}

/* grid: (ceil(n / 32), ceil(m / rows)), or 16 in place of 32 where gated; 8 warps. */
template <typename type, int rows, bool aligned>
static __global__ void __launch_bounds__(PARTITIONS *WARP) k_f32_stream(struct product_f32 p)
{
    enum { elements = 16 / sizeof(type), step_k = ROW_PIECES * elements };
    SPW_SHARED_DYNAMIC(uint4, shared);
    if (rows == 1 && p.choices.of)
        take_row(&p);
    const int lane = (int)(threadIdx.x % WARP), partition = (int)(threadIdx.x / WARP);
    const int steps = partition < p.partitions ? p.partition / step_k : 0;
    const int begin = partition * p.partition;
    const int m_first = (int)blockIdx.y * rows;
    uint4 *ring = shared + partition * STAGES * SLOT;
    float sum[rows] = {};
    /* Asynchronous copies read W past the L1 cache, so they may come before the wait. Other reads
     * may not: that cache may still hold what lay in a slot before W. */
    const bool early = aligned && !std::is_same_v<type, struct quantized>;
    if (!early)
        spw_grid_wait();
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            stream_issue<type, aligned>(p, ring + i * SLOT, begin + i * step_k);
        spw_copy_async_commit();
    }
    if (early)
        spw_grid_wait(); /* only W was read until here */
    spw_grid_next();
    for (int i = 0; i < steps; i++) {
        spw_copy_async_wait<STAGES - 2>();
        /* The warp has copied stage i, and all lanes have read stage i - 1. */
        __syncwarp();
        const int ahead = i + STAGES - 1, k = begin + i * step_k;
        if (ahead < steps)
            stream_issue<type, aligned>(p, ring + ahead % STAGES * SLOT, begin + ahead * step_k);
        spw_copy_async_commit();
#pragma unroll
        for (int c = 0; c < ROW_PIECES; c++) {
            float w[elements];
            widen_piece(w, ring[i % STAGES * SLOT + place(lane, c)], type{});
#pragma unroll
            for (int r = 0; r < rows; r++) {
                float x[elements];
                read_row<elements, aligned>(x, row_of_x(p, m_first + r), k + c * elements, p.k);
#pragma unroll
                for (int e = 0; e < elements; e++)
                    sum[r] = fmaf(x[e], w[e], sum[r]);
            }
        }
    }
    float *sums = (float *)shared; /* [partition][row][lane] */
    __syncthreads();               /* the rings are no longer read: the sums take their place */
    for (int r = 0; r < rows; r++)
        sums[(partition * rows + r) * WARP + lane] = sum[r];
    __syncthreads(); /* all partitions are written */
    const int row = m_first + partition, width = p.gated ? WARP / 2 : WARP;
    const int col = (int)blockIdx.x * width + lane;
    if (partition >= rows || row >= p.m || lane >= width || col >= p.n)
        return;
    const size_t at = place_in_y(p, row, col);
    const float total = stream_total<rows>(p, sums, partition, lane);
    const float value =
        p.gated
            ? finish_gated(p, total, stream_total<rows>(p, sums, partition, lane + WARP / 2), col)
            : biased(p, total, col);
    ((float *)p.y)[at] = p.residual ? ((const float *)p.residual)[at] + value : value;
}

/* ---- many rows ---- */

/* The calling thread's 8 elements of row thread % 64 at k: first in registers, then transposed. */
enum { MINE = 8 };

static __device__ __forceinline__ void tile_put(float *tile, const float part[MINE])
{
    const int line = (int)(threadIdx.x % TILE), k = (int)(threadIdx.x / TILE) * MINE;
#pragma unroll
    for (int i = 0; i < MINE; i++)
        tile[(k + i) * PITCH + line] = part[i];
}

/* sum [4 of m][8 of n]; a thread's columns are 4 at 4 (thread % 8) and 4 more 32 further. */
static __device__ __forceinline__ void tile_multiply(float sum[4][8], const float *w,
                                                     const float *x)
{
    const int n = (int)(threadIdx.x % 8) * 4, m = (int)(threadIdx.x / 8) * 4;
#pragma unroll
    for (int k = 0; k < TILE_K; k++) {
        const float4 a = *(const float4 *)(w + k * PITCH + n);
        const float4 b = *(const float4 *)(w + k * PITCH + n + TILE / 2);
        const float4 c = *(const float4 *)(x + k * PITCH + m);
        const float left[4] = {c.x, c.y, c.z, c.w};
        const float right[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
}

/* Four adjacent outputs. Outputs after the last column are left out. */
static __device__ __forceinline__ void add_residual4(const struct product_f32 &p, float v[4],
                                                     int row, int col)
{
    const float *more = (const float *)p.residual + place_in_y(p, row, col);
    if (p.y_wide && col + 4 <= p.n) {
        const float4 four = *(const float4 *)more;
        v[0] = four.x + v[0], v[1] = four.y + v[1], v[2] = four.z + v[2], v[3] = four.w + v[3];
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (col + j < p.n)
            v[j] = more[j] + v[j];
}

static __device__ __forceinline__ void store4(const struct product_f32 &p, const float v[4],
                                              int row, int col)
{
    float *y = (float *)p.y + place_in_y(p, row, col);
    if (p.y_wide && col + 4 <= p.n) {
        *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (col + j < p.n)
            y[j] = v[j];
}

/* The residual may be y, so no load of it may pass a store: all loads come first. */
static __device__ __forceinline__ void tile_store(const struct product_f32 &p, float total[4][8],
                                                  int n_first, int m_first)
{
    const int m = m_first + (int)(threadIdx.x / 8) * 4, n = n_first + (int)(threadIdx.x % 8) * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = m + i / 2, col = n + i % 2 * (TILE / 2);
        float *v = &total[i / 2][i % 2 * 4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = biased(p, v[j], min(col + j, p.n - 1));
        if (p.residual && row < p.m)
            add_residual4(p, v, row, col);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (m + i / 2 < p.m)
            store4(p, &total[i / 2][i % 2 * 4], m + i / 2, n + i % 2 * (TILE / 2));
}

/* A thread's columns 0 .. 3 are of gate, 4 .. 7 of up. */
static __device__ __forceinline__ void tile_store_gated(const struct product_f32 &p,
                                                        const float total[4][8], int m_first)
{
    const int col = (int)blockIdx.x * (TILE / 2) + (int)(threadIdx.x % 8) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = m_first + (int)(threadIdx.x / 8) * 4 + i;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = finish_gated(p, total[i][j], total[i][4 + j], min(col + j, p.n - 1));
        if (row < p.m)
            store4(p, v, row, col);
    }
}

/* grid: (ceil(n / 64), ceil(m / 64)), or 32 in place of the first 64 where gated */
template <typename type, bool aligned>
static __global__ void __launch_bounds__(TILE_THREADS) k_f32_tile(struct product_f32 p)
{
    SPW_SHARED(float4, shared, 4 * TILE_K * PITCH / 4); /* [2][W, x][k][PITCH] */
    spw_grid_wait();
    spw_grid_next();
    const int n_first = (int)blockIdx.x * TILE, m_first = (int)blockIdx.y * TILE;
    const int line = (int)(threadIdx.x % TILE), k_mine = (int)(threadIdx.x / TILE) * MINE;
    const int per_partition = p.partition / TILE_K;
    const type *w_row = row_of_w<type, TILE>(p, line);
    const float *x_row = row_of_x(p, m_first + line);
    float *tile = (float *)shared;
    float sum[4][8] = {}, total[4][8] = {}, w[MINE], x[MINE];
    read_w<MINE, aligned>(w, p, w_row, k_mine);
    read_row<MINE, aligned>(x, x_row, k_mine, p.k);
    for (int partition = 0, i = 0; partition < p.partitions; partition++) {
        for (const int end = i + per_partition; i < end; i++) {
            float *w_tile = tile + i % 2 * 2 * TILE_K * PITCH, *x_tile = w_tile + TILE_K * PITCH;
            tile_put(w_tile, w);
            tile_put(x_tile, x);
            /* The tile of this step is complete. All threads have read the other tile before they
             * came here, so the next step may overwrite it. */
            __syncthreads();
            /* After the last step k has ended, and this call reads nothing. */
            read_w<MINE, aligned>(w, p, w_row, (i + 1) * TILE_K + k_mine);
            read_row<MINE, aligned>(x, x_row, (i + 1) * TILE_K + k_mine, p.k);
            tile_multiply(sum, w_tile, x_tile);
        }
#pragma unroll
        for (int e = 0; e < 32; e++) {
            float *t = &total[e / 8][e % 8], *s = &sum[e / 8][e % 8];
            *t = partition ? *t + *s : *s;
            *s = 0.0f;
        }
    }
    if (p.gated)
        tile_store_gated(p, total, m_first);
    else
        tile_store(p, total, n_first, m_first);
}

/* ---- which kernel ---- */

template <typename type, bool aligned> static int launch(const struct product_f32 *p, spw_stream s)
{
    const unsigned m = (unsigned)p->m, n = (unsigned)p->n * (p->gated ? 2 : 1);
    if (m == 1 || p->choices.of) {
        SPW_LAUNCH((k_f32_stream<type, 1, aligned>), dim3((n + WARP - 1) / WARP, m),
                   PARTITIONS * WARP, RING_BYTES, s, *p);
    } else if (m <= 32) {
        SPW_LAUNCH((k_f32_stream<type, PARTITIONS, aligned>),
                   dim3((n + WARP - 1) / WARP, (m + PARTITIONS - 1) / PARTITIONS),
                   PARTITIONS * WARP, RING_BYTES, s, *p);
    } else {
        SPW_LAUNCH((k_f32_tile<type, aligned>), dim3((n + TILE - 1) / TILE, (m + TILE - 1) / TILE),
                   TILE_THREADS, 0, s, *p);
    }
    return spw_cuda_launched();
}

template <typename type> static int launch_as(const struct product_f32 *p, spw_stream s)
{
    const bool packed = std::is_same_v<type, struct quantized>; /* W has an alignment of its own */
    const uintptr_t at = (uintptr_t)p->x | (packed ? 0 : (uintptr_t)p->w | (uintptr_t)p->w_up);
    const bool aligned =
        at % 16 == 0 && p->x_stride % 4 == 0 && (size_t)p->k % (16 / sizeof(type)) == 0;
    return aligned ? launch<type, true>(p, s) : launch<type, false>(p, s);
}

int spw_linear_f32_cuda(const struct spw_linear_args *a, const struct spw_gate *gate, spw_stream s)
{
    /* The grid's second dimension ends at 65535. */
    enum { MOST_ROWS = 65535 * TILE };
    struct product_f32 p = {};
    set_outputs(&p, a, gate);
    p.w = a->w;
    p.w_up = gate ? gate->w_up : NULL;
    p.x_stride = a->x_stride;
    p.k = (int)a->k;
    p.w_dtype = a->w_dtype;
    p.row_bytes = spw_row_bytes(a->w_dtype, a->k);
    p.partition = (int)(CUT * spw_div_up(a->k, PARTITIONS * CUT));
    p.partitions = p.partition ? (int)spw_div_up(a->k, (uint64_t)p.partition) : 0;
    p.y_wide = a->y_stride % 4 == 0 && ((uintptr_t)a->y | (uintptr_t)a->residual) % 16 == 0;
    for (size_t row = 0; row < a->m; row += MOST_ROWS) {
        p.x = (const float *)a->x + row * a->x_stride;
        p.y = (float *)a->y + row * a->y_stride;
        p.residual = a->residual ? (const float *)a->residual + row * a->y_stride : NULL;
        p.m = (int)spw_min_u64(a->m - row, MOST_ROWS);
        if (a->w_dtype == SPW_DTYPE_F32)
            SPW_TRY(launch_as<float>(&p, s));
        else if (a->w_dtype == SPW_DTYPE_F16)
            SPW_TRY(launch_as<struct half_bits>(&p, s));
        else if (a->w_dtype == SPW_DTYPE_BF16)
            SPW_TRY(launch_as<struct bf16_bits>(&p, s));
        else if (spw_type_is_quantized(a->w_dtype))
            SPW_TRY(launch_as<struct quantized>(&p, s));
        else
            return -EINVAL;
    }
    return 0;
}
