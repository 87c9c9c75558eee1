/* y = x W^T + bias with packed W: the expression of quant/codes.h on integer tensor cores. x is
 * [m][groups] of struct spw_codes, W [n][k] of one quantized type, y [m][n] bf16 or f32.
 * Bytes per call: the packed W, once where m <= 16, else from L2 once per 16 rows of x (m <= 32) or
 * 64; 320 bytes of x per group and row, read once per 16 rows of W (m <= 32) or 32 to 128, from L1
 * and L2; 2mn or 4mn for y, and as much for a residual. No weight is stored unpacked, not even in
 * shared memory.
 *
 * W is the product's A (16 rows: a strip), x its B (8 rows): y^T = W x^T. Lane (g, t) of a warp
 * unpacks its operands of rows g and g + 8 of the strip into registers, a part of 32 numbers at a
 * time. It gets the sums of the same two rows. So the lane needs the scales of two rows of W only,
 * and each output of a lane is the chain of f32 steps that quant/codes.h writes down: nothing is
 * added across lanes, and no kernel here can have another order.
 *
 *   - Blocks of 32: one product is S of a block. It starts from 1.5 2^23 as bits of a float. These
 *     bits plus S are the float 1.5 2^23 + S, because |S| < 2^22: one subtraction makes f32(S).
 *   - Blocks of 256: products of a part, times its scale, are added as int32 to S. In Q2_K codes
 *     times scale still fit a byte, so the products add up S themselves. M is a product of minima
 *     and sums of codes. Such a sum has 13 bits and is cut in two bytes: sum = 128 high + low.
 *
 *   k_codes_stream  m <= 32. One CTA: a strip by 8 rows of x, or by 16 if m > 8; 4 warps, one
 *                   partition of k each. A warp copies packed bytes into its own ring of
 *                   SPW_CODES_RING_BYTES and unpacks from there: 18 to 38 KB in flight for each
 *                   CTA. On a card with 100 KB of shared memory 2 to 5 CTAs fit. At 3.35 TB/s and
 *                   132 multiprocessors, 1 us of latency needs 25 KB on each. The copies of W start
 *                   before the previous kernel ends. Partitions meet in shared memory.
 *   k_codes_tile    m > 32. One CTA: 2, 4 or 8 strips, one warp each, by 64 rows of x, which the
 *                   warps share. A strip is unpacked once for the 64 rows.
 *
 * A stage has one group. Rows of W begin at any multiple of the type's alignment, so a stage holds
 * the 16-byte pieces that cover a row's part, and a lane reads at the row's shift within them. The
 * first and the last piece of a matrix may reach beyond it, and are copied byte by byte.
 *
 * Speed was not measured: no GPU was at hand (2026-11-23). gpu_codes prints it. */
#ifndef SPW_MODEL_CUDA_LINEAR_CODES_CUDA_CUH
#define SPW_MODEL_CUDA_LINEAR_CODES_CUDA_CUH

#include "model/cuda/codes_cuda.cuh"
#include "model/cuda/linear_outputs_cuda.cuh"

/* The ring of a warp of k_codes_stream, at least two stages. 12272 gives twice the stages to half
 * the CTAs: gpu_codes of a build with it shows which is faster on a card. */
#ifndef SPW_CODES_RING_BYTES
#define SPW_CODES_RING_BYTES 6144
#endif

enum {
    WARP = 32,
    STRIP = 16,                        /* rows of W that a warp multiplies */
    STREAM_M = 32,                     /* most rows of x for k_codes_stream */
    TILE_M = 64,                       /* rows of x in k_codes_tile */
    X_PIECES = sizeof(spw_codes) / 16, /* of a group of a row of x */
    X_PITCH = 16 * (X_PIECES + 1),     /* bytes: the words that 8 rows give B lie in 32 banks */
};

struct codes_product : linear_outputs {
    const uint8_t *x; /* [m][groups] */
    /* A strip is 8 rows of w[0] and 8 of w[1]; the next strip lies w_step rows further in both.
     * Gated: w[0] is gate, w[1] is up, w_step is 8. Else w[1] is row 8 of w[0], and w_step is 16.
     */
    const uint8_t *w[2];
    const uint8_t *begin[2], *end[2]; /* of the matrices */
    int w_step, w_last[2];            /* w_last: the last valid row, counted from each pointer */
    int64_t row_bytes;
    int groups;
};

int spw_linear_codes_small_cuda(const struct codes_product *p, enum spw_dtype type, spw_stream s);
int spw_linear_codes_large_cuda(const struct codes_product *p, enum spw_dtype type, spw_stream s);

template <enum spw_dtype type> struct codes_shape {
    enum {
        bytes = packed_type<type>::group_bytes,
        align = packed_type<type>::align < 16 ? packed_type<type>::align : 16,
        pieces = (bytes + 16 - align + 15) / 16, /* that cover a group of a row, at any shift */
        /* Rows that lie in different banks without a gap: a row has 4 lanes, and 8 rows are read at
         * once. A gap of a piece follows so many rows. */
        apart = pieces % 2   ? 8
                : pieces % 4 ? 4
                : pieces % 8 ? 2
                             : 1,
        strip = 16 * (STRIP * pieces + (STRIP - 1) / apart), /* bytes of a stage of W */
        stages = SPW_CODES_RING_BYTES / strip > 2 ? SPW_CODES_RING_BYTES / strip : 2,
        stream_shared = SPW_CODES_PARTITIONS * stages * strip,
    };
};

/* The first byte of a row in a stage. */
template <enum spw_dtype type>
static __host__ __device__ __forceinline__ constexpr int row_in_strip(int row)
{
    return 16 * (row * codes_shape<type>::pieces + row / codes_shape<type>::apart);
}

/* Whether the words that 8 rows give A lie in 32 banks: 16 bytes of each row, from 8 places. */
template <enum spw_dtype type> constexpr bool banks_differ(int first)
{
    unsigned taken = 0;
    for (int row = first; row < first + 8; row++)
        taken |= 1u << row_in_strip<type>(row) / 16 % 8;
    return taken == 0xff;
}

/* ---- copies ---- */

/* What a lane copies and reads: rows g and g + 8 of a strip, from the next group on. */
struct strip_rows {
    const uint8_t *at[2];
    int left; /* bytes of a row from here on */
};

static __device__ __forceinline__ struct strip_rows
strip_begin(const struct codes_product &p, int strip, int group, int group_bytes)
{
    struct strip_rows r;
    const int64_t skip = (int64_t)group * group_bytes;
    for (int i = 0; i < 2; i++) {
        const int row = min(strip * p.w_step + (int)(threadIdx.x % WARP / 4), p.w_last[i]);
        r.at[i] = p.w[i] + row * p.row_bytes + skip;
    }
    r.left = (int)(p.row_bytes - skip);
    return r;
}

static __device__ __forceinline__ int shift_of(const uint8_t *p)
{
    return (int)((uintptr_t)p & 15);
}

/* The bytes of a piece that lie in [begin, end). W may be read before the previous kernel ends: the
 * L1 cache may then hold what lay in a slot before W. */
static __device__ void copy_inside(uint8_t *to, const uint8_t *from, const uint8_t *begin,
                                   const uint8_t *end)
{
    SPW_UNROLL_NOT
    for (int i = 0; i < 16; i++)
        if (from + i >= begin && from + i < end)
            to[i] = __ldcg(from + i);
}

/* Copies one group of a strip and goes on to the next group: four lanes a row. `once`: no other CTA
 * reads these bytes. */
template <enum spw_dtype type, bool once>
static __device__ __forceinline__ void strip_issue(const struct codes_product &p,
                                                   struct strip_rows *rows, uint8_t *stage)
{
    using shape = codes_shape<type>;
    const int lane = (int)(threadIdx.x % WARP), bytes = min((int)shape::bytes, rows->left);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int shift = shift_of(rows->at[i]);
        const uint8_t *from = rows->at[i] - shift;
        uint8_t *to = stage + row_in_strip<type>(lane / 4 + 8 * i);
#pragma unroll
        for (int j = 0; j < (shape::pieces + 3) / 4; j++) {
            const int at = 16 * (lane % 4 + 4 * j);
            if (at >= shift + bytes)
                continue;
            if (from + at < p.begin[i] || from + at + 16 > p.end[i])
                copy_inside(to + at, from + at, p.begin[i], p.end[i]);
            else if (once)
                spw_copy16_async_once(to + at, from + at, true);
            else
                spw_copy16_async(to + at, from + at, true);
        }
        rows->at[i] += shape::bytes;
    }
    rows->left -= shape::bytes;
}

/* Where the calling lane's rows of a stage begin; `rows` are those of the stage. */
template <enum spw_dtype type>
static __device__ __forceinline__ void strip_find(const struct strip_rows &rows,
                                                  const uint8_t *stage, const uint8_t *w[2])
{
    for (int i = 0; i < 2; i++)
        w[i] = stage + row_in_strip<type>((int)(threadIdx.x % WARP / 4) + 8 * i) +
               shift_of(rows.at[i]);
}

static __device__ __forceinline__ void strip_advance(struct strip_rows *rows, int bytes)
{
    rows->at[0] += bytes;
    rows->at[1] += bytes;
    rows->left -= bytes;
}

/* ---- one group ---- */

/* Rows of x of a lane, in shared or global memory, in tiles of 8 rows. */
struct x_rows {
    const uint8_t *b;    /* row g: the lane's words of B */
    const uint8_t *y[2]; /* rows 2t, 2t + 1: those of its outputs */
    int b_tile;          /* bytes from tile to tile */
    int y_tile[2];
};

static __device__ __forceinline__ void x_words(const struct x_rows &x, int tile, int part,
                                               uint32_t out[2])
{
    const uint8_t *at = x.b + tile * x.b_tile + 32 * part + 4 * (threadIdx.x % 4);
    out[0] = *(const uint32_t *)at;
    out[1] = *(const uint32_t *)(at + 16);
}

static __device__ __forceinline__ const struct spw_codes *x_group(const struct x_rows &x, int tile,
                                                                  int i)
{
    return (const struct spw_codes *)(x.y[i] + tile * x.y_tile[i]);
}

/* sum = fma(s, t, sum) */
template <int tiles>
static __device__ __forceinline__ void add_half(const struct x_rows &x, int h,
                                                const float t[tiles][4], float sum[tiles][4])
{
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[j][e] = fmaf(x_group(x, j, e % 2)->scales[h], t[j][e], sum[j][e]);
}

/* t of the blocks of a group, of 32 numbers. Element e of a tile: row e / 2 of w, row e % 2 of x.y.
 */
template <enum spw_dtype type, int tiles>
static __device__ __forceinline__ void
multiply_small(const uint8_t *const w[2], const struct x_rows &x, int blocks, float t[tiles][4])
{
    enum { magic = 0x4b400000, unrolled = tiles == 1 ? 4 : 1 };
    const int lane_t = (int)(threadIdx.x % 4);
#pragma unroll(unrolled)
    for (int b = 0; b < blocks; b++) {
        float d[2], m[2];
        uint32_t codes[2][2];
        for (int i = 0; i < 2; i++) {
            const uint8_t *block = w[i] + b * packed_type<type>::bytes;
            unpack_factors<type>(block, &d[i], &m[i]);
            unpack_codes<type>(block, 0, lane_t, codes[i]);
        }
        const uint32_t left[4] = {codes[0][0], codes[1][0], codes[0][1], codes[1][1]};
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            int s[4] = {magic, magic, magic, magic};
            uint32_t right[2];
            float scale[2];
            x_words(x, j, b, right);
            for (int i = 0; i < 2; i++)
                scale[i] = x_group(x, j, i)->block_scales[b];
            spw_mma_s8(s, left, right);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float exact = __int_as_float(s[e]) - 12582912.0f;
                t[j][e] = fmaf(d[e / 2] * scale[e % 2], exact, t[j][e]);
                if (packed_type<type>::has_minima) {
                    const float sum = (float)x_group(x, j, e % 2)->sums32[b];
                    t[j][e] = fmaf(m[e / 2], scale[e % 2] * sum, t[j][e]);
                }
            }
        }
    }
}

/* Adds a part of 32 numbers to S; `scales`: of the part's one or two scales, of rows g, g + 8. */
template <enum spw_dtype type, int tiles>
static __device__ __forceinline__ void add_part(uint32_t codes[2][2], const int scales[2][2],
                                                const struct x_rows &x, int part,
                                                int total[tiles][4])
{
    if constexpr (packed_type<type>::scales_codes)
        for (int i = 0; i < 4; i++)
            codes[i / 2][i % 2] *= (uint32_t)scales[i / 2][i % 2];
    const uint32_t left[4] = {codes[0][0], codes[1][0], codes[0][1], codes[1][1]};
#pragma unroll
    for (int j = 0; j < tiles; j++) {
        uint32_t right[2];
        x_words(x, j, part, right);
        if constexpr (packed_type<type>::scales_codes) {
            spw_mma_s8(total[j], left, right);
        } else if constexpr (packed_type<type>::parts_of_16) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int s[4] = {};
                spw_mma_s8_half(s, left + 2 * h, right[h]);
                for (int e = 0; e < 4; e++)
                    total[j][e] += scales[e / 2][h] * s[e];
            }
        } else {
            int s[4] = {};
            spw_mma_s8(s, left, right);
            for (int e = 0; e < 4; e++)
                total[j][e] += scales[e / 2][0] * s[e];
        }
    }
}

/* t = fma(m, M, t) of a half. Lane t has minima 4t .. 4t + 3 of the block and the sums of the same
 * numbers: one lane of each four has those of the half, or two lanes of 16 minima. The others have
 * zeros. */
template <enum spw_dtype type, int tiles>
static __device__ __forceinline__ void add_minima(const uint8_t *const w[2], const float m[2],
                                                  const struct x_rows &x, int h, float t[tiles][4])
{
    const bool of_16 = packed_type<type>::parts_of_16;
    const int lane_t = (int)(threadIdx.x % 4), mine = of_16 ? lane_t : lane_t % 2;
    const size_t sums_at =
        of_16 ? offsetof(struct spw_codes, sums) : offsetof(struct spw_codes, sums32);
    uint32_t left[2];
    for (int i = 0; i < 2; i++)
        left[i] = (of_16 ? lane_t / 2 : lane_t) == h ? unpack_minima<type>(w[i], mine) : 0;
#pragma unroll
    for (int j = 0; j < tiles; j++) {
        const uint2 sums = *(const uint2 *)(x.b + j * x.b_tile + sums_at + 8 * mine);
        const uint32_t low = __byte_perm(sums.x & 0x007f007fu, sums.y & 0x007f007fu, 0x6420);
        const uint32_t high = __byte_perm(sums.x >> 7, sums.y >> 7, 0x6420);
        int lows[4] = {}, highs[4] = {};
        spw_mma_s8_half(lows, left, low);
        spw_mma_s8_half(highs, left, high);
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[j][e] = fmaf(m[e / 2], (float)(128 * highs[e] + lows[e]), t[j][e]);
    }
}

/* t of half h of a block of 256. */
template <enum spw_dtype type, int tiles>
static __device__ __forceinline__ void
multiply_large(const uint8_t *const w[2], const struct x_rows &x, int h, float t[tiles][4])
{
    enum { per_part = packed_type<type>::parts_of_16 ? 2 : 1 };
    const int lane_t = (int)(threadIdx.x % 4);
    int total[tiles][4] = {};
    float d[2], m[2];
    uint32_t words[2][per_part];
    for (int i = 0; i < 2; i++) {
        unpack_factors<type>(w[i], &d[i], &m[i]);
        for (int s = 0; s < per_part; s++)
            words[i][s] = unpack_scales<type>(w[i], per_part * h + s);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint32_t codes[2][2];
        int scales[2][2];
        for (int i = 0; i < 2; i++) {
            unpack_codes<type>(w[i], 4 * h + part, lane_t, codes[i]);
            for (int s = 0; s < per_part; s++) {
                const int nth = per_part * part + s;
                scales[i][s] = byte_of(words[i][nth / 4], nth % 4);
            }
        }
        add_part<type, tiles>(codes, scales, x, 4 * h + part, total);
    }
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[j][e] = fmaf(d[e / 2], (float)total[j][e], 0.0f);
    if constexpr (packed_type<type>::has_minima)
        add_minima<type, tiles>(w, m, x, h, t);
}

/* left: bytes of a row from this group on. */
template <enum spw_dtype type, int tiles>
static __device__ __forceinline__ void multiply_group(const uint8_t *const w[2], int left,
                                                      const struct x_rows &x, float sum[tiles][4])
{
    enum { unrolled = tiles == 1 && packed_type<type>::large ? 2 : 1 };
#pragma unroll(unrolled)
    for (int h = 0; packed_type<type>::large && h < SPW_CODES_HALVES; h++) {
        float t[tiles][4] = {};
        if constexpr (packed_type<type>::large)
            multiply_large<type, tiles>(w, x, h, t);
        add_half<tiles>(x, h, t, sum);
    }
    if constexpr (!packed_type<type>::large) {
        float t[tiles][4] = {};
        const int blocks = min(left / packed_type<type>::bytes, (int)SPW_CODES_BLOCKS);
        multiply_small<type, tiles>(w, x, blocks, t);
#pragma unroll
        for (int i = 0; i < 4 * tiles; i++)
            sum[i / 4][i % 4] += t[i / 4][i % 4];
    }
}

/* ---- outputs ---- */

static __device__ __forceinline__ void store_y(const struct codes_product &p, int row, int col,
                                               float value)
{
    store(p, row, col, value == value ? value : __uint_as_float(0x7fc00000u));
}

/* Stores the sums of a lane: element e of tile j belongs to row 8 j + 2 t + e % 2 of x, counted
 * from `row`. */
template <int tiles>
static __device__ __forceinline__ void store_sums(const struct codes_product &p, int strip, int row,
                                                  const float y[tiles][4])
{
    const int lane = (int)(threadIdx.x % WARP);
    const int col = strip * p.w_step + lane / 4;
    row += 2 * (lane % 4);
    uint32_t more[tiles][4];
    if (p.gated) {
#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            const int at = row + 8 * (i / 2) + i % 2;
            if (at >= p.m || col >= p.n)
                continue;
            const float gate = biased(p, y[i / 2][i % 2], col);
            const float up = biased(p, y[i / 2][2 + i % 2], p.n + col);
            store_y(p, at, col,
                    p.y_f32 ? gated<float>(gate, up, p.act) : gated<uint16_t>(gate, up, p.act));
        }
        return;
    }
    /* The residual may be y, so no load of it may pass a store: all loads come first. */
#pragma unroll
    for (int i = 0; i < 4 * tiles; i++) {
        const int at = row + 8 * (i / 4) + i % 2, there = col + i % 4 / 2 * 8;
        more[i / 4][i % 4] = at < p.m && there < p.n ? residual(p, at, there) : 0;
    }
#pragma unroll
    for (int i = 0; i < 4 * tiles; i++) {
        const int at = row + 8 * (i / 4) + i % 2, there = col + i % 4 / 2 * 8;
        if (at < p.m && there < p.n)
            store_y(p, at, there, finish(p, y[i / 4][i % 4], there, more[i / 4][i % 4]));
    }
}

static __device__ __forceinline__ int partition_begin(const struct codes_product &p, int partition)
{
    return (int)spw_codes_partition((size_t)p.groups, (size_t)partition);
}

/* ---- few rows ---- */

static __device__ __forceinline__ const uint8_t *row_of_x(const struct codes_product &p, int row,
                                                          int group)
{
    return p.x + ((size_t)min(row, p.m - 1) * (size_t)p.groups + (size_t)group) *
                     sizeof(struct spw_codes);
}

/* The product of one row with the matrix of its expert. */
static __device__ __forceinline__ void take_row(struct codes_product *p)
{
    const uint32_t expert = chosen_expert(p->choices);
    const ptrdiff_t second = p->w[1] - p->w[0], bytes = p->end[0] - p->begin[0];
    p->begin[0] = p->w[0] = (const uint8_t *)p->choices.w[expert];
    p->begin[1] = p->gated ? (const uint8_t *)p->choices.w_up[expert] : p->w[0];
    p->w[1] = p->gated ? p->begin[1] : p->w[0] + second;
    p->end[0] = p->begin[0] + bytes;
    p->end[1] = p->begin[1] + bytes;
    p->x += (size_t)blockIdx.y * (size_t)p->groups * sizeof(struct spw_codes);
    take_row_of_y(p, expert);
}

/* Rows of x from `row` on, in one or two tiles. Rows after the last one are the last one. */
static __device__ __forceinline__ struct x_rows stream_rows(const struct codes_product &p, int row,
                                                            int group)
{
    const int lane = (int)(threadIdx.x % WARP), b = row + lane / 4, y = row + 2 * (lane % 4);
    struct x_rows x;
    x.b = row_of_x(p, b, group);
    x.b_tile = (int)(row_of_x(p, b + 8, group) - x.b);
    for (int i = 0; i < 2; i++) {
        x.y[i] = row_of_x(p, y + i, group);
        x.y_tile[i] = (int)(row_of_x(p, y + i + 8, group) - x.y[i]);
    }
    return x;
}

/* m <= 32, or any number of rows with a matrix each; grid: the strips, and then 8 or 16 rows, or
 * one row. `once`: no other CTA reads these bytes of W. */
template <enum spw_dtype type, int tiles>
static __global__ void __launch_bounds__(SPW_CODES_PARTITIONS *WARP, 1)
    k_codes_stream(codes_product p)
{
    using shape = codes_shape<type>;
    static_assert(tiles * 16 * WARP <= shape::stages * shape::strip);
    const bool once = tiles == 1;
    const int row = p.choices.of ? 0 : (int)blockIdx.y * 8 * tiles;
    SPW_SHARED_DYNAMIC(uint8_t, shared);
    if (p.choices.of)
        take_row(&p);
    const int lane = (int)(threadIdx.x % WARP), partition = (int)(threadIdx.x / WARP);
    const int first = partition_begin(p, partition), end = partition_begin(p, partition + 1);
    uint8_t *ring = shared + partition * shape::stages * shape::strip;
    struct strip_rows rows = strip_begin(p, (int)blockIdx.x, first, shape::bytes), ahead = rows;
    float a[tiles][4] = {};
    for (int i = 0; i < shape::stages; i++) {
        if (first + i < end)
            strip_issue<type, once>(p, &ahead, ring + i * shape::strip);
        spw_copy_async_commit();
    }
    spw_grid_wait(); /* only W was read until here */
    spw_grid_next();
    struct x_rows x = stream_rows(p, row, first);
    for (int group = first, slot = 0; group < end; group++) {
        const uint8_t *w[2];
        spw_copy_async_wait<shape::stages - 1>();
        __syncwarp(); /* all lanes have copied this group */
        strip_find<type>(rows, ring + slot * shape::strip, w);
        multiply_group<type, tiles>(w, rows.left, x, a);
        strip_advance(&rows, shape::bytes);
        x.b += sizeof(struct spw_codes);
        x.y[0] += sizeof(struct spw_codes);
        x.y[1] += sizeof(struct spw_codes);
        __syncwarp(); /* all lanes have read it: the slot is filled again */
        if (group + shape::stages < end)
            strip_issue<type, once>(p, &ahead, ring + slot * shape::strip);
        spw_copy_async_commit();
        slot = slot + 1 == shape::stages ? 0 : slot + 1;
    }
    spw_copy_async_wait<0>();
    float *sums = (float *)shared; /* [partition][tiles][4][lane] */
    __syncthreads();               /* the rings are no longer read: the sums take their place */
#pragma unroll
    for (int e = 0; e < 4 * tiles; e++)
        sums[(partition * 4 * tiles + e) * WARP + lane] = a[e / 4][e % 4];
    __syncthreads(); /* all partitions are written */
    if (partition)
        return;
    float y[tiles][4] = {};
    for (int i = 0; i < SPW_CODES_PARTITIONS; i++)
#pragma unroll
        for (int e = 0; e < 4 * tiles; e++)
            y[e / 4][e % 4] += sums[(i * 4 * tiles + e) * WARP + lane];
    store_sums<tiles>(p, (int)blockIdx.x, row, y);
}

/* ---- many rows ---- */

/* Copies a group of rows of x, all threads of the CTA together. */
static __device__ __forceinline__ void tile_issue_x(const struct codes_product &p, uint8_t *to,
                                                    int row, int group)
{
    for (int i = (int)threadIdx.x; i < TILE_M * X_PIECES; i += (int)blockDim.x) {
        const int line = i / X_PIECES, piece = i % X_PIECES;
        spw_copy16_async(to + line * X_PITCH + 16 * piece,
                         row_of_x(p, row + line, group) + 16 * piece, true);
    }
}

/* A stage: | x [64][X_PITCH] | W [warps][strip] |. Two stages: one is filled while the other is
 * read. grid: tiles of n times tiles of m. */
template <enum spw_dtype type>
static __global__ void __launch_bounds__(256, 1) k_codes_tile(codes_product p, int tiles_m)
{
    using shape = codes_shape<type>;
    enum { tiles = TILE_M / 8 };
    SPW_SHARED_DYNAMIC(uint8_t, shared);
    spw_grid_wait();
    spw_grid_next();
    const int lane = (int)(threadIdx.x % WARP), warp = (int)(threadIdx.x / WARP);
    const int warps = (int)(blockDim.x / WARP), w_at = TILE_M * X_PITCH + warp * shape::strip;
    const int row = (int)blockIdx.x % tiles_m * TILE_M;
    const int strip = (int)blockIdx.x / tiles_m * warps + warp;
    const int stage_bytes = TILE_M * X_PITCH + warps * shape::strip;
    struct strip_rows rows = strip_begin(p, strip, 0, shape::bytes), ahead = rows;
    float y[tiles][4] = {}, a[tiles][4] = {};
    /* Group -1 is nothing but the copy of group 0. */
    for (int group = -1, partition = 0; group < p.groups; group++) {
        uint8_t *now = shared + (group & 1) * stage_bytes;
        uint8_t *then = shared + ((group + 1) & 1) * stage_bytes;
        spw_copy_async_wait<0>();
        __syncthreads(); /* `now` is complete, and all warps have read `then` */
        if (group + 1 < p.groups) {
            tile_issue_x(p, then, row, group + 1);
            strip_issue<type, false>(p, &ahead, then + w_at);
            spw_copy_async_commit();
        }
        if (group >= 0) {
            const uint8_t *w[2], *x_b = now + lane / 4 * X_PITCH;
            const uint8_t *x_y = now + 2 * (lane % 4) * X_PITCH;
            const struct x_rows x = {
                x_b, {x_y, x_y + X_PITCH}, 8 * X_PITCH, {8 * X_PITCH, 8 * X_PITCH}};
            strip_find<type>(rows, now + w_at, w);
            multiply_group<type, tiles>(w, rows.left, x, a);
            strip_advance(&rows, shape::bytes);
        }
        for (; partition < SPW_CODES_PARTITIONS && group + 1 == partition_begin(p, partition + 1);
             partition++) {
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++) {
                y[i / 4][i % 4] += a[i / 4][i % 4];
                a[i / 4][i % 4] = 0.0f;
            }
        }
    }
    store_sums<tiles>(p, strip, row, y);
}

/* ---- launches ---- */

template <enum spw_dtype type, int tiles>
static int launch_stream(const struct codes_product *p, spw_stream s)
{
    static_assert(banks_differ<type>(0) && banks_differ<type>(8));
    const dim3 grid((unsigned)spw_div_up((uint64_t)p->n, (uint64_t)p->w_step),
                    (unsigned)(p->choices.of ? p->m : (p->m + 8 * tiles - 1) / (8 * tiles)));
    SPW_LAUNCH((k_codes_stream<type, tiles>), grid, SPW_CODES_PARTITIONS * WARP,
               codes_shape<type>::stream_shared, s, *p);
    return spw_cuda_launched();
}

/* The most warps whose stages fit, as long as there is a CTA for each multiprocessor. The stages of
 * two warps fit in 64 KB, which every card has. */
template <enum spw_dtype type> static int launch_tile(const struct codes_product *p, spw_stream s)
{
    const int tiles_m = (int)spw_div_up((uint64_t)p->m, TILE_M);
    const int strips = (int)spw_div_up((uint64_t)p->n, (uint64_t)p->w_step);
    static_assert(2 * (TILE_M * X_PITCH + 2 * codes_shape<type>::strip) <= 64 << 10);
    struct spw_cuda_card *card;
    int warps = 8;
    SPW_TRY(spw_cuda_card_get(&card));
    while (warps > 2 &&
           (2 * (TILE_M * X_PITCH + warps * codes_shape<type>::strip) > card->shared_bytes ||
            (int64_t)tiles_m * strips < (int64_t)warps * card->multiprocessors))
        warps /= 2;
    SPW_LAUNCH((k_codes_tile<type>),
               (unsigned)tiles_m * (unsigned)spw_div_up((uint64_t)strips, (uint64_t)warps),
               (unsigned)(warps * WARP), 2 * (TILE_M * X_PITCH + warps * codes_shape<type>::strip),
               s, *p, tiles_m);
    return spw_cuda_launched();
}

template <enum spw_dtype type> static int launch(const struct codes_product *p, spw_stream s)
{
    if (p->m <= 8 || p->choices.of)
        return launch_stream<type, 1>(p, s);
    return p->m <= STREAM_M ? launch_stream<type, 2>(p, s) : launch_tile<type>(p, s);
}

/* Launches the kernels of a type that has large blocks, or none: kernels of types are compiled in
 * two files. */
template <enum spw_dtype type, bool large>
static int launch_of(const struct codes_product *p, spw_stream s)
{
    if constexpr (packed_type<type>::large == large)
        return launch<type>(p, s);
    else
        return -EINVAL;
}

template <bool large>
static int launch_type(const struct codes_product *p, enum spw_dtype type, spw_stream s)
{
    switch (type) {
#define SPW_CASE(id, ...)                                                                          \
    case SPW_DTYPE_##id:                                                                           \
        return launch_of<SPW_DTYPE_##id, large>(p, s);
        SPW_QUANTIZED_TYPES(SPW_CASE)
#undef SPW_CASE
    default:
        return -EINVAL;
    }
}

#endif
