/* y = x W^T + bias on tensor cores: bf16 x [m][k] and W [n][k], y [m][n] bf16 or f32, fp32 sums.
 * Bytes per call: 2nk for W, read once where m <= 64, else once per 64 or 128 rows of x; 2mk for x,
 * read once per CTA column, from L2; 2mn or 4mn for y, and as much for a residual.
 *
 * The contract: the bits of a row do not depend on m. So the kernels below differ in where data
 * waits, and never in the arithmetic of an output element:
 *
 *   - k is cut into two partitions, [0, half) and [half, 2 half), half = 64 ceil(k / 128): a
 *     function of k alone. Elements from k on are zero.
 *   - A partition is one chain of tensor-core products, two for each block of 32 k, the blocks in
 *     order. Within a block, lane t of a quad holds the 16 bytes at k = 8t .. 8t+7 of a row. Its
 *     first four elements go into the first product and its last four into the second. A slot of a
 *     product may stand for any k, as long as W and x use the same order. So each lane loads 16
 *     bytes straight from a row-major matrix:
 *
 *       k in the block   0 .. 3 | 4 .. 7 | 8 .. 11 | 12 .. 15 | 16 .. 19 | ... | 28 .. 31
 *       product          first  | second | first   | second   | first    | ... | second
 *       lane t           0      | 0      | 1       | 1        | 2        | ... | 3
 *
 *   - y = round((partition 0 + partition 1) + bias). With a residual, y = round(residual + that
 *     value). A gated product has two sums with their bias for each output, gate's and up's;
 *     model/cuda/gated_cuda.cuh makes the output from them.
 *
 * Why two partitions: one chain advances by 16 k per latency of a product (about 33 cycles on
 * sm_90). 16 rows of W with one chain each would not keep up with 4.8 TB/s at n = 2048; two chains
 * do. More partitions would need a second set of accumulators where m is large, and there registers
 * limit the tile. Two partitions cost no registers, because two groups of warps share a tile, one
 * partition each.
 *
 * W is the product's A (16 rows), x its B (8 rows): y^T = W x^T. In a gated product the 16 rows are
 * 8 rows of gate's W and the same 8 rows of up's, so one lane gets both sums of an output. A tile
 * of y then has 8 columns of gate, 8 of up, 8 of gate, ...; n counts the rows of both below.
 *
 *   k_stream   m <= 16. One CTA: 16 rows of W, 2 warps, one partition each. Every lane copies what
 *              it will multiply itself into its own ring in shared memory: no barrier before the
 *              end, 14-16 KB of W in flight per warp, and no dependence on other warps. The copies
 *              of W start before the previous kernel ends.
 *   k_tile     m > 16. One CTA: a tile of y, W and x shared through stages in shared memory.
 *
 * A tile stage holds, for both partitions, W rows then x rows, 64 bytes (one block) a row, without
 * padding: the eight lanes of one phase of a 16-byte access touch two adjacent rows, 128 contiguous
 * bytes, both in cp.async and in the fragment loads. So there are no bank conflicts.
 *
 *   | partition 0: W [tile n][4 pieces] | x [tile m][4] | partition 1: W | x |
 *     piece = 16 bytes = 8 bf16
 *
 * A path with wgmma for sm_90 belongs beside k_tile in choose(). Its bits must equal those of
 * k_stream, which a test on the device would have to show; else it must replace k_stream, too. */
#include "model/cuda/linear_outputs_cuda.cuh"
#include "model/cuda/ops_cuda.h"

#include "quant/cuda.cuh"
#include "quant/codes.h"

enum {
    PIECE = 8, /* elements in 16 bytes */
    BLOCK = 32,
    CUT = 64, /* partitions are multiples of it */
    PARTITIONS = 2,
    WARP = 32,
    GROUP = 8,            /* tiles of m for which a column of W stays in L2 */
    MOST_CHOICES = 65535, /* the grid's second dimension */
};

struct product : linear_outputs {
    const uint16_t *x;
    /* A warp multiplies 16 rows together: 8 of w[0] and 8 of w[1]. The next 16 rows lie w_step rows
     * further in both. Gated: w[0] is gate, w[1] is up, w_step is 8. Else w[1] is row 8 of w[0],
     * and w_step is 16. */
    const uint16_t *w[2];
    int w_step, w_last[2]; /* w_last: the last valid row, counted from each pointer */
    size_t x_stride;
    int k, half;
    bool y_wide; /* a row is a multiple of four elements, which may be stored and loaded at once */
};

/* ---- what all kernels share ---- */

/* Who reads a piece again. NEAR: every CTA beside this one that works on other rows of W (x in
 * k_stream). FAR: some CTAs that run at the same time (tiles). ONCE: no CTA (W in k_stream). */
enum reuse { NEAR, FAR, ONCE };

/* The piece at `from`, which is element k of a row. From k_end on it is zero, and nothing is read.
 * Not aligned: reads element by element, with the same values; past the L1 cache, for W may be read
 * before the previous kernel ends (spw_grid_wait). */
template <bool aligned>
static __device__ __forceinline__ uint4 load_piece(const uint16_t *from, int k, int k_end)
{
    if constexpr (aligned) {
        return k < k_end ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    } else {
        uint32_t pair[PIECE / 2];
        for (int i = 0; i < PIECE / 2; i++) {
            uint32_t low = k + 2 * i < k_end ? __ldcg(from + 2 * i) : 0;
            uint32_t high = k + 2 * i + 1 < k_end ? __ldcg(from + 2 * i + 1) : 0;
            pair[i] = low | high << 16;
        }
        return make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}

/* The same, as an asynchronous copy if `aligned`. */
template <enum reuse reuse, bool aligned>
static __device__ __forceinline__ void copy_piece(uint4 *to, const uint16_t *from, int k, int k_end)
{
    if constexpr (aligned && reuse == NEAR) {
        spw_copy16_async_near(to, from, k < k_end);
    } else if constexpr (aligned && reuse == FAR) {
        spw_copy16_async(to, from, k < k_end);
    } else if constexpr (aligned) {
        spw_copy16_async_once(to, from, k < k_end);
    } else {
        *to = load_piece<aligned>(from, k, k_end);
    }
}

/* Rows after the last row repeat the last row; their outputs are not stored. There is no branch,
 * because with a branch tile_issue would compute the address again in each step. */
static __device__ __forceinline__ const uint16_t *row_of_w(const struct product &p, int row)
{
    const bool second = row & 8;
    const int own = (row >> 4) * p.w_step + (row & 7);
    const ptrdiff_t there = min(own, second ? p.w_last[1] : p.w_last[0]);
    return (second ? p.w[1] : p.w[0]) + there * p.k;
}

static __device__ __forceinline__ const uint16_t *row_of_x(const struct product &p, int row)
{
    return p.x + (size_t)min(row, p.m - 1) * p.x_stride;
}

/* One block: multiplies rows g (top) and g + 8 (low) of W by row g of x. spw_mma_bf16 says what d
 * holds. */
static __device__ __forceinline__ void multiply_block(float d[4], uint4 top, uint4 low, uint4 x)
{
    const uint32_t first[4] = {top.x, low.x, top.y, low.y}, first_x[2] = {x.x, x.y};
    const uint32_t second[4] = {top.z, low.z, top.w, low.w}, second_x[2] = {x.z, x.w};
    spw_mma_bf16(d, first, first_x);
    spw_mma_bf16(d, second, second_x);
}

/* ---- few rows: W flows past at the speed of memory ---- */

/* Ring slot: 4 pieces of W (block 0 rows g, g + 8; block 1 rows g, g + 8), then 2 of x for each 8
 * rows; 32 lanes a piece. */
template <int tiles_m> struct stream_shape {
    enum {
        PIECES = 4 + 2 * tiles_m,
        STAGES = tiles_m == 1 ? 8 : 6,
        SHARED = PARTITIONS * STAGES * PIECES * WARP * 16,
    };
};

/* The sources of a lane's next copies. */
template <int tiles_m> struct stream_next {
    const uint16_t *w[2], *x[tiles_m];
    int k;
};

/* Copies the pieces of W of the step that is `step` steps after the next one. */
template <int tiles_m, bool aligned>
static __device__ __forceinline__ void stream_issue_w(const struct stream_next<tiles_m> &next,
                                                      int step, uint4 *slot, int k_end)
{
#pragma unroll
    for (int b = 0; b < 2; b++) {
        const int along = step * CUT + b * BLOCK;
#pragma unroll
        for (int i = 0; i < 2; i++)
            copy_piece<ONCE, aligned>(slot + (2 * b + i) * WARP + threadIdx.x % WARP,
                                      next.w[i] + along, next.k + along, k_end);
    }
}

template <int tiles_m, bool aligned>
static __device__ __forceinline__ void stream_issue_x(const struct stream_next<tiles_m> &next,
                                                      uint4 *slot, int k_end)
{
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int j = 0; j < tiles_m; j++)
            copy_piece<NEAR, aligned>(slot + (4 + 2 * j + b) * WARP + threadIdx.x % WARP,
                                      next.x[j] + b * BLOCK, next.k + b * BLOCK, k_end);
}

/* Loads x of the steps that fill the ring, through registers. Asynchronous copies of x would
 * complete after all copies of W that started before them, so the first product would wait for the
 * whole ring while nothing is in flight. */
template <int tiles_m, bool aligned>
static __device__ __forceinline__ void stream_load_x(const struct stream_next<tiles_m> &next,
                                                     int steps, uint4 *ring, int k_end)
{
    using shape = stream_shape<tiles_m>;
    enum { pieces = 2 * tiles_m };
    uint4 x[shape::STAGES][pieces];
#pragma unroll
    for (int i = 0; i < shape::STAGES; i++)
#pragma unroll
        for (int j = 0; j < pieces; j++) {
            const int along = i * CUT + j % 2 * BLOCK;
            x[i][j] =
                load_piece<aligned>(next.x[j / 2] + along, next.k + along, i < steps ? k_end : 0);
        }
#pragma unroll
    for (int i = 0; i < shape::STAGES; i++)
#pragma unroll
        for (int j = 0; j < pieces; j++)
            ring[(i * shape::PIECES + 4 + j) * WARP + threadIdx.x % WARP] = x[i][j];
}

template <int tiles_m>
static __device__ __forceinline__ void stream_advance(struct stream_next<tiles_m> *next, int steps)
{
    next->w[0] += steps * CUT;
    next->w[1] += steps * CUT;
#pragma unroll
    for (int j = 0; j < tiles_m; j++)
        next->x[j] += steps * CUT;
    next->k += steps * CUT;
}

template <int pieces>
static __device__ __forceinline__ void stream_load(uint4 *piece, const uint4 *slot)
{
#pragma unroll
    for (int i = 0; i < pieces; i++)
        piece[i] = slot[i * WARP + (int)(threadIdx.x % WARP)];
}

/* Output i of a lane's products. */
static __device__ __forceinline__ int stream_row(int i)
{
    return 8 * (i / 4) + 2 * (int)(threadIdx.x % 4) + i % 2;
}

static __device__ __forceinline__ int stream_col(int i)
{
    return (int)blockIdx.x * 16 + (int)(threadIdx.x % WARP / 4) + 8 * (i % 4 / 2);
}

/* A lane's sums of gate belong to row g of 16, its sums of up to row g + 8. `other`: the sums of
 * partition 1. */
template <int tiles_m>
static __device__ __forceinline__ void
stream_store_gated(const struct product &p, const float d[tiles_m][4], const float *other)
{
    const int lane = (int)(threadIdx.x % WARP), col = (int)blockIdx.x * 8 + lane / 4;
#pragma unroll
    for (int j = 0; j < tiles_m; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = stream_row(4 * j + i);
            const float gate = d[j][i] + other[(4 * j + i) * WARP + lane];
            const float up = d[j][i + 2] + other[(4 * j + i + 2) * WARP + lane];
            if (row < p.m && col < p.n)
                store(p, row, col, finish_gated(p, gate, up, col));
        }
}

/* The product of one row with the matrix of its expert. */
static __device__ __forceinline__ void take_row(struct product *p)
{
    const uint32_t expert = chosen_expert(p->choices);
    const ptrdiff_t second = p->w[1] - p->w[0];
    p->w[0] = (const uint16_t *)p->choices.w[expert];
    p->w[1] = p->gated ? (const uint16_t *)p->choices.w_up[expert] : p->w[0] + second;
    p->x += blockIdx.y * p->x_stride;
    take_row_of_y(p, expert);
}

/* m <= 8 * tiles_m; grid: ceil(n / 16), and the rows if each has a matrix. A lane reads from the
 * ring only what it copied itself, so its own wait is enough. It refills a slot after the products
 * have read the slot. */
template <int tiles_m, bool aligned>
static __global__ void __launch_bounds__(PARTITIONS *WARP) k_stream(struct product p)
{
    using shape = stream_shape<tiles_m>;
    SPW_SHARED_DYNAMIC(uint4, shared);
    if (tiles_m == 1 && p.choices.of)
        take_row(&p);
    const int lane = (int)(threadIdx.x % WARP), partition = (int)(threadIdx.x / WARP);
    const int steps = p.half / CUT, slot_size = shape::PIECES * WARP;
    const int w_row = (int)blockIdx.x * 16 + lane / 4;
    uint4 *ring = shared + partition * shape::STAGES * slot_size;
    struct stream_next<tiles_m> ahead;
    ahead.k = partition * p.half + lane % 4 * PIECE;
    for (int i = 0; i < 2; i++)
        ahead.w[i] = row_of_w(p, w_row + 8 * i) + ahead.k;
    for (int j = 0; j < tiles_m; j++)
        ahead.x[j] = row_of_x(p, 8 * j + lane / 4) + ahead.k;
    float d[tiles_m][4] = {};
    uint32_t more[4 * tiles_m] = {};
    for (int i = 0; i < shape::STAGES; i++) {
        if (i < steps)
            stream_issue_w<tiles_m, aligned>(ahead, i, ring + i * slot_size, p.k);
        spw_copy_async_commit();
    }
    spw_grid_wait(); /* only W was read until here */
    spw_grid_next();
#pragma unroll
    for (int i = 0; i < 4 * tiles_m; i++)
        if (partition == 0 && stream_row(i) < p.m && stream_col(i) < p.n)
            more[i] = residual(p, stream_row(i), stream_col(i));
    stream_load_x<tiles_m, aligned>(ahead, steps, ring, p.k);
    stream_advance(&ahead, shape::STAGES);
    uint4 now[shape::PIECES], next[shape::PIECES] = {};
    spw_copy_async_wait<shape::STAGES - 1>();
    stream_load<shape::PIECES>(next, ring);
    for (int i = 0, slot = 0; i < steps; i++) {
        const int then = slot + 1 == shape::STAGES ? 0 : slot + 1;
        for (int j = 0; j < shape::PIECES; j++)
            now[j] = next[j];
        /* STAGES + i groups were committed; the group of step i + 1 must be complete. */
        spw_copy_async_wait<shape::STAGES - 2>();
        if (i + 1 < steps)
            stream_load<shape::PIECES>(next, ring + then * slot_size);
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int j = 0; j < tiles_m; j++)
                multiply_block(d[j], now[2 * b], now[2 * b + 1], now[4 + 2 * j + b]);
        if (i + shape::STAGES < steps) {
            stream_issue_w<tiles_m, aligned>(ahead, 0, ring + slot * slot_size, p.k);
            stream_issue_x<tiles_m, aligned>(ahead, ring + slot * slot_size, p.k);
            stream_advance(&ahead, 1);
        }
        spw_copy_async_commit();
        slot = then;
    }
    /* Partition 1 goes to the warp of partition 0 through the ring of partition 1, whose copies are
     * complete. */
    spw_copy_async_wait<0>();
    float *other = (float *)(shared + shape::STAGES * slot_size);
    __syncwarp(); /* a lane writes where others have read their pieces */
    if (partition == 1)
        for (int i = 0; i < 4 * tiles_m; i++)
            other[i * WARP + lane] = d[i / 4][i % 4];
    __syncthreads(); /* partition 1 is in shared memory */
    if (partition == 1)
        return;
    if (p.gated) {
        stream_store_gated<tiles_m>(p, d, other);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4 * tiles_m; i++) {
        const int row = stream_row(i), col = stream_col(i);
        if (row < p.m && col < p.n)
            store(p, row, col, finish(p, d[i / 4][i % 4] + other[i * WARP + lane], col, more[i]));
    }
}

/* ---- many rows: tiles of y ---- */

/* Two groups of warps with one partition each, or one group that computes both partitions, one
 * after the other. In a group, warps_n x warps_m warps compute tiles_n x tiles_m products each. A
 * stage holds `blocks` blocks of each group. y [m][y_pitch] adds the partitions; it uses the memory
 * of the stages, or memory beside them. */
template <int groups_, int warps_n_, int warps_m_, int tiles_n_, int tiles_m_, int blocks_,
          int stages_>
struct tile_shape {
    enum {
        groups = groups_,
        warps_n = warps_n_,
        warps_m = warps_m_,
        tiles_n = tiles_n_,
        tiles_m = tiles_m_,
        blocks = blocks_,
        stages = stages_,
        n = warps_n * tiles_n * 16,
        m = warps_m * tiles_m * 8,
        group = warps_n * warps_m * WARP, /* threads */
        threads = groups * group,
        block_pieces = (n + m) * 4,
        partition_pieces = blocks * block_pieces,
        stage_pieces = groups * partition_pieces,
        ring_pieces = stages * stage_pieces,
        y_pitch = n + 4, /* floats: rows 2t of a quad's lanes lie 8 banks apart */
        y_pieces = m * y_pitch / 4,
        y_at = groups == 1 ? ring_pieces : 0,
        shared = 16 * (y_at + y_pieces > ring_pieces ? y_at + y_pieces : ring_pieces),
    };
};

/* 32 x 64: batches in decode. 64 x 64: if there are few tiles; 48 KB, which every GPU has. 128 x
 * 128: loads half as many bytes for a product; 96 KB. 256 x 128: loads 3/4 of that; 202 KB, and no
 * registers are left for the sums of partition 0. */
struct tile_low : tile_shape<2, 1, 2, 2, 4, 2, 4> {
};
struct tile_mid : tile_shape<2, 2, 1, 2, 8, 1, 3> {
};
struct tile_high : tile_shape<2, 2, 2, 4, 8, 1, 3> {
};
struct tile_wide : tile_shape<1, 4, 2, 4, 8, 1, 3> {
};

/* Finds the tile of this CTA. GROUP tiles of m advance along n together, so the CTAs that run at
 * the same time share both their W and their x in L2. */
static __device__ __forceinline__ void tile_place(int tiles_n, int tiles_m, int *tile_n,
                                                  int *tile_m)
{
    const int id = (int)blockIdx.x, first = id / (GROUP * tiles_n) * GROUP;
    const int height = min(GROUP, tiles_m - first), in_group = id - first * tiles_n;
    *tile_n = in_group / height;
    *tile_m = first + in_group % height;
}

/* Copies the calling group's part of a stage, from k on: four threads a row. */
template <typename shape, bool aligned>
static __device__ __forceinline__ void tile_issue(const struct product &p, uint4 *part, int k,
                                                  int n_first, int m_first)
{
    enum { lines = shape::group / 4, unrolled = aligned ? 8 : 1 };
    const int thread = (int)(threadIdx.x % shape::group), line = thread >> 2;
    k += thread % 4 * PIECE;
    part += thread;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++, k += BLOCK, part += shape::block_pieces) {
#pragma unroll(unrolled)
        for (int i = 0; i < shape::n; i += lines)
            copy_piece<FAR, aligned>(part + i * 4, row_of_w(p, n_first + line + i) + k, k, p.k);
#pragma unroll(unrolled)
        for (int i = 0; i < shape::m; i += lines)
            copy_piece<FAR, aligned>(part + (shape::n + i) * 4, row_of_x(p, m_first + line + i) + k,
                                     k, p.k);
    }
}

template <typename shape>
static __device__ __forceinline__ void tile_multiply(float d[shape::tiles_n][shape::tiles_m][4],
                                                     const uint4 *part)
{
    const int lane = (int)(threadIdx.x % WARP);
    const int warp = (int)(threadIdx.x % shape::group / WARP);
    /* Lane (g, t) reads piece t of row g: piece `lane` of eight rows. */
    const uint4 *w = part + warp % shape::warps_n * shape::tiles_n * 16 * 4 + lane;
    const uint4 *x = part + (shape::n + warp / shape::warps_n * shape::tiles_m * 8) * 4 + lane;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        uint4 right[shape::tiles_m];
#pragma unroll
        for (int j = 0; j < shape::tiles_m; j++)
            right[j] = x[b * shape::block_pieces + j * 8 * 4];
#pragma unroll
        for (int i = 0; i < shape::tiles_n; i++) {
            const uint4 top = w[b * shape::block_pieces + i * 16 * 4];
            const uint4 low = w[b * shape::block_pieces + (i * 16 + 8) * 4];
#pragma unroll
            for (int j = 0; j < shape::tiles_m; j++)
                multiply_block(d[i][j], top, low, right[j]);
        }
    }
}

/* Stores a group's sums to y [shape::m][y_pitch] in shared memory, or adds y to them. */
template <typename shape, bool add>
static __device__ __forceinline__ void tile_merge(float d[shape::tiles_n][shape::tiles_m][4],
                                                  float *y)
{
    const int lane = (int)(threadIdx.x % WARP);
    const int warp = (int)(threadIdx.x % shape::group / WARP);
    const int col = warp % shape::warps_n * shape::tiles_n * 16 + lane / 4;
    const int row = warp / shape::warps_n * shape::tiles_m * 8 + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < shape::tiles_n; i++)
#pragma unroll
        for (int j = 0; j < shape::tiles_m; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *at = y + (row + 8 * j + e % 2) * shape::y_pitch + col + 16 * i + e / 2 * 8;
                *at = add ? d[i][j][e] + *at : d[i][j][e];
            }
}

/* Stores the sums of partition 0 in y; the next partition starts at zero. */
template <typename shape>
static __device__ __forceinline__ void tile_park(float d[shape::tiles_n][shape::tiles_m][4],
                                                 float *y)
{
    tile_merge<shape, false>(d, y);
#pragma unroll
    for (int i = 0; i < shape::tiles_n; i++)
#pragma unroll
        for (int j = 0; j < shape::tiles_m; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d[i][j][e] = 0.0f;
}

static __device__ __forceinline__ uint2 packed4(const float v[4])
{
    return make_uint2(spw_device_to_bf16(v[0]) | (uint32_t)spw_device_to_bf16(v[1]) << 16,
                      spw_device_to_bf16(v[2]) | (uint32_t)spw_device_to_bf16(v[3]) << 16);
}

/* Four adjacent outputs. */
static __device__ __forceinline__ void store4(const struct product &p, int row, int col, float4 sum)
{
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    if (!p.y_wide) {
        for (int i = 0; i < 4 && col + i < p.n; i++)
            store(p, row, col + i, finish(p, v[i], col + i, residual(p, row, col + i)));
        return;
    }
    float out[4];
    for (int i = 0; i < 4; i++)
        out[i] = finish(p, v[i], col + i, residual(p, row, col + i));
    const size_t at = place_in_y(p, row, col);
    if (p.y_f32)
        *(float4 *)((float *)p.y + at) = make_float4(out[0], out[1], out[2], out[3]);
    else
        *(uint2 *)((uint16_t *)p.y + at) = packed4(out);
}

/* Writes the sums to y. Adjacent threads write whole rows of the tile. */
template <typename shape>
static __device__ __forceinline__ void tile_store(const struct product &p, const float *y,
                                                  int n_first, int m_first)
{
    for (int i = (int)threadIdx.x; i < shape::m * shape::n / 4; i += shape::threads) {
        const int row = i / (shape::n / 4), col = i % (shape::n / 4) * 4;
        if (m_first + row < p.m && n_first + col < p.n)
            store4(p, m_first + row, n_first + col,
                   *(const float4 *)(y + row * shape::y_pitch + col));
    }
}

/* The same for the common case of a layer: a bf16 residual, wide. A load after each store would
 * take a good part of the product's time, so eight loads are in flight at a time. */
template <typename shape>
static __device__ __forceinline__ void tile_store_added(const struct product &p, const float *y,
                                                        int n_first, int m_first)
{
    enum {
        wide = shape::n / 4,
        step = shape::threads / wide, /* rows */
        at_once = shape::m / step < 8 ? shape::m / step : 8,
    };
    const int left = (int)threadIdx.x % wide * 4, col = n_first + left;
    if (col >= p.n)
        return;
    for (int top = (int)threadIdx.x / wide; top < shape::m; top += at_once * step) {
        uint2 more[at_once] = {};
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const int row = m_first + top + i * step;
            if (row < p.m)
                more[i] = *(const uint2 *)((const uint16_t *)p.residual + place_in_y(p, row, col));
        }
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const int row = m_first + top + i * step;
            const float4 sum = *(const float4 *)(y + (top + i * step) * shape::y_pitch + left);
            const float out[4] = {finish(p, sum.x, col, more[i].x & 0xffffu),
                                  finish(p, sum.y, col + 1, more[i].x >> 16),
                                  finish(p, sum.z, col + 2, more[i].y & 0xffffu),
                                  finish(p, sum.w, col + 3, more[i].y >> 16)};
            if (row < p.m)
                *(uint2 *)((uint16_t *)p.y + place_in_y(p, row, col)) = packed4(out);
        }
    }
}

/* The same for a gated product, which is bf16 and has no residual. */
template <typename shape>
static __device__ __forceinline__ void tile_store_gated(const struct product &p, const float *y,
                                                        int n_first, int m_first)
{
    for (int i = (int)threadIdx.x; i < shape::m * shape::n / 8; i += shape::threads) {
        const int line = i / (shape::n / 8), piece = i % (shape::n / 8);
        const int row = m_first + line, col = n_first / 2 + 4 * piece;
        if (row >= p.m || col >= p.n)
            continue;
        const float *sum = y + line * shape::y_pitch + piece / 2 * 16 + piece % 2 * 4;
        const float4 gate = *(const float4 *)sum, up = *(const float4 *)(sum + 8);
        const float gates[4] = {gate.x, gate.y, gate.z, gate.w};
        const float ups[4] = {up.x, up.y, up.z, up.w};
        float out[4];
        for (int j = 0; j < 4; j++)
            out[j] = finish_gated(p, gates[j], ups[j], min(col + j, p.n - 1));
        if (p.y_wide)
            *(uint2 *)((uint16_t *)p.y + place_in_y(p, row, col)) = packed4(out);
        else
            for (int j = 0; j < 4 && col + j < p.n; j++)
                store(p, row, col + j, out[j]);
    }
}

/* Shared memory limits how many CTAs fit. ptxas does not know the amount, and would spill registers
 * to fit more CTAs. */
template <typename shape, bool aligned>
static __global__ void __launch_bounds__(shape::threads, 1)
    k_tile(struct product p, int tiles_n, int tiles_m)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    if (shape::shared >
        64 << 10) /* the device's blocks have less: not launched, and not compiled */
        return;
#endif
    SPW_SHARED_DYNAMIC(uint4, shared);
    spw_grid_wait();
    spw_grid_next();
    int tile_n, tile_m;
    tile_place(tiles_n, tiles_m, &tile_n, &tile_m);
    const int n_first = tile_n * shape::n, m_first = tile_m * shape::m;
    const int group = (int)(threadIdx.x / shape::group), begin = group * p.half;
    const int step_k = shape::blocks * BLOCK, partition_steps = p.half / step_k;
    const int steps = shape::groups == 1 ? PARTITIONS * partition_steps : partition_steps;
    uint4 *ring = shared + group * shape::partition_pieces;
    float *y = (float *)(shared + shape::y_at);
    float d[shape::tiles_n][shape::tiles_m][4] = {};
    for (int i = 0; i < shape::stages - 1; i++) {
        if (i < steps)
            tile_issue<shape, aligned>(p, ring + i * shape::stage_pieces, begin + i * step_k,
                                       n_first, m_first);
        spw_copy_async_commit();
    }
    for (int i = 0, slot = 0, refill = shape::stages - 1; i < steps; i++) {
        spw_copy_async_wait<shape::stages - 2>();
        /* All threads have copied stage i and have read stage i - 1, which is filled next. */
        __syncthreads();
        if (i + shape::stages - 1 < steps)
            tile_issue<shape, aligned>(p, ring + refill * shape::stage_pieces,
                                       begin + (i + shape::stages - 1) * step_k, n_first, m_first);
        spw_copy_async_commit();
        tile_multiply<shape>(d, ring + slot * shape::stage_pieces);
        refill = slot;
        slot = slot + 1 == shape::stages ? 0 : slot + 1;
        if (shape::groups == 1 && i + 1 == partition_steps)
            tile_park<shape>(d, y);
    }
    spw_copy_async_wait<0>();
    if (shape::groups == 1) {
        tile_merge<shape, true>(d, y); /* a thread reads only what it stored itself */
    } else {
        __syncthreads(); /* the stages are no longer read: y takes their place */
        if (group == 1)
            tile_merge<shape, false>(d, y);
        __syncthreads(); /* partition 1 is written */
        if (group == 0)
            tile_merge<shape, true>(d, y);
    }
    __syncthreads(); /* all sums are written */
    if (p.gated)
        tile_store_gated<shape>(p, y, n_first, m_first);
    else if (p.residual && p.y_wide && !p.y_f32)
        tile_store_added<shape>(p, y, n_first, m_first);
    else
        tile_store<shape>(p, y, n_first, m_first);
}

/* ---- which kernel ---- */

enum choice { STREAM_8, STREAM_16, TILE_LOW, TILE_MID, TILE_HIGH, TILE_WIDE };

/* The time for y if `at_once` tiles of n x m run side by side and a tile takes `each`. */
static uint64_t tiles_time(uint64_t y_m, uint64_t y_n, uint64_t m, uint64_t n, uint64_t at_once,
                           uint64_t each)
{
    return spw_div_up(spw_div_up(y_m, m) * spw_div_up(y_n, n), at_once) * each;
}

/* The choice does not change the result. The time of a tile is an estimate from the bytes that it
 * loads for a product (1 : 1/2 : 3/8), in thirteenths of the time of a 64 x 64 tile; it was not
 * measured. Three of the 64 x 64 tiles fit on a multiprocessor, or one larger tile. */
static enum choice choose(uint64_t m, uint64_t n, const struct spw_cuda_card *c)
{
    const uint64_t count = (uint64_t)c->multiprocessors;
    if (m <= 16)
        return m <= 8 ? STREAM_8 : STREAM_16;
    if (m <= 64)
        return c->shared_bytes >= tile_low::shared ? TILE_LOW : TILE_MID;
    uint64_t best = tiles_time(m, n, tile_mid::m, tile_mid::n, 3 * count, 3 * 13);
    enum choice choice = TILE_MID;
    uint64_t high = tiles_time(m, n, tile_high::m, tile_high::n, count, 4 * 10);
    if (c->shared_bytes >= tile_high::shared && high <= best) {
        best = high;
        choice = TILE_HIGH;
    }
    uint64_t wide = tiles_time(m, n, tile_wide::m, tile_wide::n, count, 8 * 9);
    return c->shared_bytes >= tile_wide::shared && wide <= best ? TILE_WIDE : choice;
}

/* Number of rows of W; for a gated product of both matrices together. */
static uint64_t rows_of_w(const struct product *p)
{
    return (uint64_t)p->n * (p->gated ? 2 : 1);
}

template <int tiles_m> static int launch_stream(const struct product *p, bool aligned, spw_stream s)
{
    enum { shared = stream_shape<tiles_m>::SHARED };
    const dim3 grid((unsigned)spw_div_up(rows_of_w(p), 16), p->choices.of ? (unsigned)p->m : 1);
    if (aligned)
        SPW_LAUNCH((k_stream<tiles_m, true>), grid, PARTITIONS * WARP, shared, s, *p);
    else
        SPW_LAUNCH((k_stream<tiles_m, false>), grid, PARTITIONS * WARP, shared, s, *p);
    return spw_cuda_launched();
}

template <typename shape>
static int launch_tile(const struct product *p, bool aligned, spw_stream s)
{
    const int tiles_n = (int)spw_div_up(rows_of_w(p), shape::n);
    const int tiles_m = (int)spw_div_up((uint64_t)p->m, shape::m);
    const unsigned grid = (unsigned)tiles_n * (unsigned)tiles_m;
    if (aligned)
        SPW_LAUNCH((k_tile<shape, true>), grid, shape::threads, shape::shared, s, *p, tiles_n,
                   tiles_m);
    else
        SPW_LAUNCH((k_tile<shape, false>), grid, shape::threads, shape::shared, s, *p, tiles_n,
                   tiles_m);
    return spw_cuda_launched();
}

static int launch_bf16(const struct spw_linear_args *a, const struct spw_gate *gate, spw_stream s)
{
    const size_t y_bytes = a->y_dtype == SPW_DTYPE_F32 ? 4 : 2;
    struct product p = {};
    set_outputs(&p, a, gate);
    p.x = (const uint16_t *)a->x;
    const size_t second = gate ? 0 : spw_min_u64(8, a->n - 1);
    p.w[0] = (const uint16_t *)a->w;
    p.w[1] = (const uint16_t *)(gate ? gate->w_up : a->w) + second * a->k;
    p.w_step = gate ? 8 : 16;
    p.w_last[0] = (int)a->n - 1;
    p.w_last[1] = p.w_last[0] - (int)second;
    p.x_stride = a->x_stride;
    p.k = (int)a->k;
    p.half = (int)(CUT * spw_max_u64(spw_div_up(a->k, PARTITIONS * CUT), 1));
    p.y_wide = a->n % 4 == 0 && a->y_stride % 4 == 0 &&
               ((uintptr_t)a->y | (uintptr_t)a->residual) % (4 * y_bytes) == 0;
    const uintptr_t at = (uintptr_t)p.x | (uintptr_t)p.w[0] | (uintptr_t)p.w[1];
    const bool aligned = at % 16 == 0 && a->k % PIECE == 0 && a->x_stride % PIECE == 0;
    if (a->choices)
        return launch_stream<1>(&p, aligned, s);
    struct spw_cuda_card *card;
    SPW_TRY(spw_cuda_card_get(&card));
    switch (choose(a->m, rows_of_w(&p), card)) {
    case STREAM_8:
        return launch_stream<1>(&p, aligned, s);
    case STREAM_16:
        return launch_stream<2>(&p, aligned, s);
    case TILE_LOW:
        return launch_tile<tile_low>(&p, aligned, s);
    case TILE_MID:
        return launch_tile<tile_mid>(&p, aligned, s);
    case TILE_HIGH:
        return launch_tile<tile_high>(&p, aligned, s);
    case TILE_WIDE:
        return launch_tile<tile_wide>(&p, aligned, s);
    }
    return -EINVAL;
}

/* Rows of whole blocks, at addresses of their type's alignment. */
static bool packed_whole(const struct spw_linear_args *a, const struct spw_gate *gate)
{
    const struct spw_type type = spw_type_of(a->w_dtype);
    const uintptr_t at = (uintptr_t)a->w | (uintptr_t)(gate ? gate->w_up : NULL);
    return a->k % type.elements == 0 && at % type.align == 0;
}

static int launch(const struct spw_linear_args *a, const struct spw_gate *gate, spw_stream s)
{
    const size_t most = 1 << 29;
    if ((a->x_stride < a->k && !a->choices) || a->y_stride < a->n || a->m > most || a->n > most ||
        a->k > most)
        return -EINVAL;
    if (!a->m || !a->n)
        return 0;
    if (a->choices && a->m > MOST_CHOICES)
        return -EINVAL;
    if (spw_type_is_quantized(a->w_dtype) && !packed_whole(a, gate))
        return -EINVAL;
    if (a->x_dtype == SPW_DTYPE_F32)
        return a->y_dtype == SPW_DTYPE_F32 ? spw_linear_f32_cuda(a, gate, s) : -EINVAL;
    if (a->x_dtype != SPW_DTYPE_BF16 ||
        (a->y_dtype != SPW_DTYPE_BF16 && a->y_dtype != SPW_DTYPE_F32))
        return -EINVAL;
    if (spw_type_is_quantized(a->w_dtype))
        return spw_linear_codes_cuda(a, gate, s);
    return a->w_dtype == SPW_DTYPE_BF16 ? launch_bf16(a, gate, s) : -EINVAL;
}

int spw_linear_cuda(const struct spw_linear_args *a, spw_stream s)
{
    return launch(a, NULL, s);
}

/* Matrices of two types: one product after the other, into the scratch, and then their outputs. */
static int launch_apart(const struct spw_gated_linear_args *a, struct spw_linear_args *product,
                        spw_stream s)
{
    uint8_t *up = (uint8_t *)a->scratch + spw_row_bytes(a->dtype, a->n);
    product->y = a->scratch;
    product->y_stride = 2 * a->n;
    SPW_TRY(launch(product, NULL, s));
    if (spw_type_is_quantized(a->gate_dtype))
        product->has_codes = spw_codes_shared(a->gate_dtype, a->up_dtype);
    product->w = a->w_up;
    product->matrices = a->ups;
    product->w_dtype = a->up_dtype;
    product->bias = a->bias ? a->bias + a->n : NULL;
    product->y = up;
    SPW_TRY(launch(product, NULL, s));
    struct spw_gated_args gated = {};
    gated.gate = a->scratch;
    gated.up = up;
    gated.y = a->y;
    gated.rows = a->m;
    gated.cols = a->n;
    gated.gate_stride = gated.up_stride = 2 * a->n;
    gated.act = a->act;
    gated.dtype = a->dtype;
    return spw_gated_cuda(&gated, s);
}

int spw_gated_linear_cuda(const struct spw_gated_linear_args *a, spw_stream s)
{
    struct spw_linear_args product = {};
    product.x = a->x;
    product.w = a->w_gate;
    product.bias = a->bias;
    product.y = a->y;
    product.m = a->m;
    product.n = product.y_stride = a->n;
    product.k = a->k;
    product.x_stride = a->x_stride;
    product.x_dtype = product.y_dtype = a->dtype;
    product.w_dtype = a->gate_dtype;
    product.codes = a->codes;
    product.has_codes = a->has_codes;
    product.choices = a->choices;
    product.matrices = a->gates;
    product.bias_step = 2 * a->n;
    if (a->gate_dtype != a->up_dtype)
        return launch_apart(a, &product, s);
    const struct spw_gate gate = {a->w_up, a->act, a->ups};
    return launch(&product, &gate, s);
}
