/* Attention on quantized tiles with tensor cores, for few rows (decode) and for many rows.
 *
 * A kernel reads the codes once. Codes go from memory to registers in their stored order and become
 * bf16 in registers, exactly. model/cuda/attention_cuda.cuh and attention_codes_cuda.cuh say what
 * is computed. The unit of work of this file is a tile:
 *
 *   score   fmaf chain over groups of 64 channels of step * (q . codes); it starts with q . mean
 *   tile    online over its four runs of 32 positions; weights times steps, rounded to bf16, times
 *           codes
 *   split   the tiles of a split, merged in order like splits, then rotated back
 *
 * A block of the grid takes 16 items of one KV head. Its four warps compute the four tiles of a
 * split side by side. Then they merge their tiles into shared memory, one warp after the other. A
 * row's result does not depend on the other rows, and one kernel serves every number of rows.
 *
 * A warp multiplies 16 channels by 8 positions at a time (or positions by channels). An index of
 * the product may mean any channel or position, as long as both operands use the same order. The
 * planes define this order: the 16 bytes that a lane loads are four words of a plane. Each word is
 * the lane's share of B in two products. With g = lane / 4, t = lane % 4:
 *
 *   K, 32 channels x 32 positions   lane: octet 4 m + t of channels, positions 4 g .. 4 g + 3
 *                                   S product n, column 2 t + c: position 8 t + 4 c + n
 *   V, 32 positions x 32 channels   lane: octet t of positions, channels 4 g .. 4 g + 3
 *                                   out product n, column 2 t + c: channel 8 t + 4 c + n
 *
 * With this order a lane needs the same elements of P that it computed of S. In a word, byte r
 * holds the two halves of pair r: channels (or positions) 8 o + r and 8 o + 4 + r.
 *
 * A lane reads from shared memory only what it copied there itself: a ring of pieces, K and V of 32
 * positions in turn. So the ring needs no barrier of the block. For 128 positions and head_dim 128
 * the pieces take 17.5 KiB in int4 and 33.5 KiB in int8. */
#include "model/cuda/attention_mma_cuda.cuh"

#include "model/cuda/attention_codes_cuda.cuh"

enum {
    ITEMS = 16,
    RUN = 32, /* positions */
    RUNS = SPW_TILE_TOKENS / RUN,
    PIECES = 2 * RUNS, /* of a tile */
    WARP_ITEMS = ITEMS / ATTENTION_WARPS,
};

template <int D> struct codes_shape {
    static const int spans = (D + 31) / 32; /* of 32 channels */
    static const int groups = (D + SPW_QTILE_GROUP - 1) / SPW_QTILE_GROUP;
    static const int stride = D + 16; /* of q and out: rows g and g + 1 lie in other banks */
    static const int steps_chunks = 4 * groups; /* of 8 positions each */
    static const int fragments = 2 * spans * 32;
};

/* Number of 16-byte chunks of a piece: steps, then one or two planes. */
template <int D> __host__ __device__ __forceinline__ int piece_chunks(bool fine)
{
    return codes_shape<D>::steps_chunks + (fine ? 2 : 1) * codes_shape<D>::spans * 32;
}

/* Shared memory of a block. The rings of its warps follow. */
template <int D> struct codes_memory {
    uint4 q[codes_shape<D>::fragments];           /* rotated, as registers of A: [2 spans][lane] */
    float exact_q[ITEMS][codes_shape<D>::stride]; /* the same in fp32 */
    float out[ITEMS][codes_shape<D>::stride];     /* rotated, of the running split */
    float top[ITEMS], sum[ITEMS];                 /* of the running split */
    float means[ATTENTION_WARPS][D];              /* of each warp's tile */
};

/* The tiles that a warp takes: every fourth one. */
struct codes_walk {
    uint4 *ring;
    int first, pieces; /* the first tile; 8 pieces a tile */
    int chunks, stages;
};

/* ---- copies ---- */

/* A plane of K or V: this lane's chunk of each 32 channels of run `run`. */
template <int D>
__device__ __forceinline__ void copy_plane(uint4 *to, const unsigned char *plane, int run,
                                           bool values)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    SPW_UNROLL
    for (int m = 0; m < codes_shape<D>::spans; m++) {
        int octet = values ? 4 * run + t : 4 * m + t, position = RUN * run + 4 * g;
        int channel = 32 * m + 4 * g;
        bool take = values ? channel < D : octet < D / 8;
        size_t at = values ? spw_qtile_v_index(D, 8 * octet, channel)
                           : spw_qtile_k_index(D, position, 8 * octet);
        spw_copy16_async_once(to + m * 32 + lane, plane + (take ? at : 0), take);
    }
}

/* Starts the copy of piece i of this warp. */
template <int D>
__device__ __forceinline__ void copy_piece(struct codes_memory<D> &m, const struct codes_walk &w,
                                           const struct attention_call &a, int i)
{
    const int lane = (int)threadIdx.x % 32, run = i % PIECES / 2;
    const bool values = i % 2;
    if (i < w.pieces) {
        uint4 *to = w.ring + i % w.stages * w.chunks;
        struct attention_codes c =
            attention_codes_of(a, w.first + i / PIECES * SPW_SPLIT_TILES, blockIdx.y);
        const unsigned char *steps = values ? c.v_steps : c.k_steps;
        const unsigned char *low = values ? c.v_low : c.k_low;
        if (lane < codes_shape<D>::steps_chunks)
            spw_copy16_async(to + lane,
                             steps + (lane / 4 * SPW_TILE_TOKENS + RUN * run + lane % 4 * 8) *
                                         (int)sizeof(uint16_t),
                             true);
        to += codes_shape<D>::steps_chunks;
        copy_plane<D>(to, values ? c.v_high : c.k_high, run, values);
        if (low)
            copy_plane<D>(to + codes_shape<D>::spans * 32, low, run, values);
        if (i % PIECES == 0)
            for (int n = lane; n < D / 4; n += 32)
                spw_copy16_async((uint4 *)m.means[threadIdx.x / 32] + n, c.k_means + 16 * n, true);
    }
    spw_copy_async_commit();
}

/* Waits until all lanes of the warp have piece i, and starts a copy into the place of piece i -
 * 1. */
template <int D>
__device__ __forceinline__ const uint4 *next_piece(struct codes_memory<D> &m,
                                                   const struct codes_walk &w,
                                                   const struct attention_call &a, int i)
{
    if (w.stages == 1) { /* no room for more: one piece at a time */
        __syncwarp();    /* all have read piece i - 1 */
        copy_piece<D>(m, w, a, i);
    }
    if (w.stages > 2)
        spw_copy_async_wait<1>();
    else
        spw_copy_async_wait<0>();
    __syncwarp(); /* all lanes' copies are there, and all have read piece i - 1 */
    if (w.stages > 1)
        copy_piece<D>(m, w, a, i + w.stages - 1);
    return w.ring + i % w.stages * w.chunks;
}

/* ---- codes ---- */

/* Pairs of half-bytes as odd integers 2 h - 15. A half-byte that is shifted up by one bit becomes
 * the last bits of 128 + 2 h in bf16; the subtraction is exact. */
__device__ __forceinline__ void half_codes(uint32_t b[4], uint32_t word)
{
    const uint32_t one = 0x3f803f80u, minus_143 = 0xc30fc30fu;
    const uint32_t low = word << 1, high = word >> 3;
    SPW_UNROLL
    for (uint32_t r = 0; r < 4; r++) {
        uint32_t both = __byte_perm(low, high, 0x4400u + 0x1111u * r);
        b[r] = spw_device_fma_bf16x2((both & 0x001e001eu) | 0x43004300u, one, minus_143);
    }
}

/* The registers of B of a word's two products: pairs 0 and 1, 2 and 3. */
template <bool FINE>
__device__ __forceinline__ void codes(uint32_t b[4], uint32_t high, uint32_t low)
{
    const uint32_t sixteen = 0x41804180u;
    half_codes(b, high);
    if (!FINE)
        return;
    uint32_t c[4];
    half_codes(c, low);
    SPW_UNROLL
    for (int r = 0; r < 4; r++)
        b[r] = spw_device_fma_bf16x2(b[r], sixteen, c[r]);
}

__device__ __forceinline__ void four_words(uint32_t w[4], const uint4 &chunk)
{
    w[0] = chunk.x;
    w[1] = chunk.y;
    w[2] = chunk.z;
    w[3] = chunk.w;
}

/* d[n] += A codes, for a chunk of four words. `q` holds A for both products. */
template <bool FINE>
__device__ __forceinline__ void multiply(float d[4][4], const uint32_t a[2][4], const uint4 *high,
                                         int to_low)
{
    uint32_t h[4], l[4] = {0, 0, 0, 0}, b[4];
    four_words(h, *high);
    if (FINE)
        four_words(l, high[to_low]);
    SPW_UNROLL
    for (int n = 0; n < 4; n++) {
        codes<FINE>(b, h[n], l[n]);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        spw_mma_bf16(d[n], a[0], first);
        spw_mma_bf16(d[n], a[1], second);
    }
}

/* The steps of this lane's positions 8 t .. 8 t + 7 in group g, times the codes' width. */
__device__ __forceinline__ void load_steps(float step[8], const uint4 *piece, int g, bool fine)
{
    const float width = attention_code_width(fine);
    uint32_t words[4];
    four_words(words, piece[4 * g + (int)threadIdx.x % 4]);
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        step[i] = width * spw_device_bf16((uint16_t)(words[i / 2] >> 16 * (i % 2)));
}

/* ---- a run of 32 positions ---- */

/* This lane's part of its rows g and g + 8 in a tile. */
template <int D> struct tile_rows {
    float out[codes_shape<D>::spans][4][4]; /* [32 channels][n][2 side + c] */
    float top[2], sum[2];                   /* sum: this lane's share */
    float offset[2];                        /* q . mean */
    struct attention_span span[2];
};

/* s[n][2 side + c]: raw scores of position 8 t + 4 c + n of the run. */
template <int D, bool FINE>
__device__ __forceinline__ void scores(float s[4][4], const struct codes_memory<D> &m,
                                       const uint4 *piece, const float offset[2])
{
    const int lane = (int)threadIdx.x % 32, spans = codes_shape<D>::spans;
    const uint4 *plane = piece + codes_shape<D>::steps_chunks + lane;
    SPW_UNROLL
    for (int i = 0; i < 16; i++)
        s[i / 4][i % 4] = offset[i % 4 / 2];
    SPW_UNROLL
    for (int g = 0; g < codes_shape<D>::groups; g++) {
        float part[4][4] = {}, step[8];
        SPW_UNROLL
        for (int i = 2 * g; i < min(2 * g + 2, spans); i++) {
            uint32_t a[2][4];
            four_words(a[0], m.q[2 * i * 32 + lane]);
            four_words(a[1], m.q[(2 * i + 1) * 32 + lane]);
            multiply<FINE>(part, a, plane + i * 32, spans * 32);
        }
        load_steps(step, piece, g, FINE);
        SPW_UNROLL
        for (int i = 0; i < 16; i++)
            s[i / 4][i % 4] = fmaf(part[i / 4][i % 4], step[i / 4 + i % 2 * 4], s[i / 4][i % 4]);
    }
}

/* One row of a lane: turns its 8 scores into weights and updates (top, sum). Returns the factor of
 * the earlier sums. */
__device__ __forceinline__ float weigh(float s[4][4], int side, float *top, float *sum)
{
    float most = *top, old, part[2];
    SPW_UNROLL
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, s[i / 2][2 * side + i % 2]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    float base = attention_base(most);
    old = spw_device_exp2(*top - base);
    SPW_UNROLL
    for (int c = 0; c < 2; c++) {
        SPW_UNROLL
        for (int n = 0; n < 4; n++)
            s[n][2 * side + c] = spw_device_exp2(s[n][2 * side + c] - base);
        part[c] =
            (s[0][2 * side + c] + s[1][2 * side + c]) + (s[2][2 * side + c] + s[3][2 * side + c]);
    }
    *sum = fmaf(*sum, old, part[0] + part[1]);
    *top = most;
    return old;
}

/* Turns scores into weights and scales out to the new maximum. `at`: the first position of the
 * run. */
template <int D>
__device__ __forceinline__ void weights(float s[4][4], struct tile_rows<D> &r,
                                        const struct attention_job &job, int at)
{
    float old[2];
    attention_scale<16>(&s[0][0], job);
    SPW_UNROLL
    for (int i = 0; i < 16; i++) {
        int here = at + 8 * ((int)threadIdx.x % 4) + i % 2 * 4 + i / 4, side = i % 4 / 2;
        if (here < r.span[side].lo || here >= r.span[side].hi)
            s[i / 4][i % 4] = -INFINITY;
    }
    SPW_UNROLL
    for (int side = 0; side < 2; side++)
        old[side] = weigh(s, side, &r.top[side], &r.sum[side]);
    /* A factor of 1 changes nothing. */
    if (!__any_sync(0xffffffffu, old[0] != 1.0f || old[1] != 1.0f))
        return;
    SPW_UNROLL
    for (int i = 0; i < 16 * codes_shape<D>::spans; i++)
        r.out[i / 16][i / 4 % 4][i % 4] *= old[i % 4 / 2];
}

/* out += (weights times steps) codes */
template <int D, bool FINE>
__device__ __forceinline__ void values(struct tile_rows<D> &r, const float s[4][4],
                                       const uint4 *piece)
{
    const int lane = (int)threadIdx.x % 32, spans = codes_shape<D>::spans;
    const uint4 *plane = piece + codes_shape<D>::steps_chunks + lane;
    SPW_UNROLL
    for (int g = 0; g < codes_shape<D>::groups; g++) {
        uint32_t a[2][4];
        float step[8];
        load_steps(step, piece, g, FINE);
        SPW_UNROLL
        for (int i = 0; i < 8; i++) { /* pair n of row `side` */
            int n = i / 2, side = i % 2;
            a[n / 2][n % 2 * 2 + side] =
                spw_device_pack_bf16(s[n][2 * side] * step[n], s[n][2 * side + 1] * step[4 + n]);
        }
        SPW_UNROLL
        for (int i = 2 * g; i < min(2 * g + 2, spans); i++)
            multiply<FINE>(r.out[i], a, plane + i * 32, spans * 32);
    }
}

/* ---- a tile ---- */

/* q . mean of rows g and g + 8: four lanes share a row. */
template <int D>
__device__ __forceinline__ void find_offsets(struct tile_rows<D> &r,
                                             const struct codes_memory<D> &m)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const float *means = m.means[threadIdx.x / 32];
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        const float *q = m.exact_q[g + 8 * side];
        float sum = 0.0f;
        SPW_UNROLL_BY(4)
        for (int c = 4 * t; c < D; c += 16) {
            const float4 x = *(const float4 *)(q + c), y = *(const float4 *)(means + c);
            sum = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        r.offset[side] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    }
}

/* The n-th tile of this warp, which lies at `tile` in the call. */
template <int D>
__device__ __forceinline__ void walk_tile(struct tile_rows<D> &r, struct codes_memory<D> &m,
                                          const struct codes_walk &w,
                                          const struct attention_job &job, int n, int tile)
{
    const bool k_fine = job.a.qformat != SPW_QFORMAT_INT4;
    const bool v_fine = job.a.qformat == SPW_QFORMAT_INT8;
    SPW_UNROLL
    for (int i = 0; i < 16 * codes_shape<D>::spans; i++)
        r.out[i / 16][i / 4 % 4][i % 4] = 0.0f;
    r.top[0] = r.top[1] = -INFINITY;
    r.sum[0] = r.sum[1] = 0.0f;
    SPW_UNROLL_NOT
    for (int run = 0; run < RUNS; run++) {
        float s[4][4];
        const uint4 *piece = next_piece<D>(m, w, job.a, n * PIECES + 2 * run);
        if (run == 0)
            find_offsets<D>(r, m);
        if (k_fine)
            scores<D, true>(s, m, piece, r.offset);
        else
            scores<D, false>(s, m, piece, r.offset);
        weights<D>(s, r, job, tile * SPW_TILE_TOKENS + RUN * run);
        piece = next_piece<D>(m, w, job.a, n * PIECES + 2 * run + 1);
        if (v_fine)
            values<D, true>(r, s, piece);
        else
            values<D, false>(r, s, piece);
    }
}

/* Merges this warp's tile into the split; one warp at a time. */
template <int D>
__device__ __forceinline__ void merge_tile(struct codes_memory<D> &m, const struct tile_rows<D> &r)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        const int row = g + 8 * side;
        float sum = r.sum[side], top = m.top[row], all = m.sum[row];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        __syncwarp(); /* all four lanes of the row have read them */
        if (sum == 0) /* the row sees nothing of the tile */
            continue;
        struct attention_factors by = attention_factors_of(top, r.top[side]);
        SPW_UNROLL
        for (int i = 0; i < 2 * codes_shape<D>::spans; i++) {
            int span = i / 2, c = i % 2, channel = 32 * span + 8 * t + 4 * c;
            if (channel >= D)
                continue;
            float4 *to = (float4 *)(m.out[row] + channel);
            float4 was = all == 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
            was.x = attention_merge_out(by, was.x, r.out[span][0][2 * side + c] + 0.0f);
            was.y = attention_merge_out(by, was.y, r.out[span][1][2 * side + c] + 0.0f);
            was.z = attention_merge_out(by, was.z, r.out[span][2][2 * side + c] + 0.0f);
            was.w = attention_merge_out(by, was.w, r.out[span][3][2 * side + c] + 0.0f);
            *to = was;
        }
        if (t == 0) {
            m.top[row] = by.top;
            m.sum[row] = attention_merge_sum(by, all, sum);
        }
    }
}

/* ---- a split ---- */

/* Rotates the split back and merges it into the states, then empties it for the next split. A warp
 * takes four of the items. */
template <int D>
__device__ __forceinline__ void
end_split(struct codes_memory<D> &m, const struct attention_job &job, uint32_t first, uint32_t n)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * WARP_ITEMS;
    for (int i = lane; i < WARP_ITEMS * D; i += 32)
        m.out[row + i / D][i % D] *= job.v_factor;
    spw_hadamard_stages(m.out[row], WARP_ITEMS, codes_shape<D>::stride, D, spw_hadamard_v_block(D));
    for (int i = row; i < row + WARP_ITEMS && (uint32_t)i < n; i++) {
        float *state = attention_state(job, first + (uint32_t)i), split = m.sum[i];
        float top = state[D], all = state[D + 1];
        __syncwarp(); /* all lanes have read them */
        if (split == 0)
            continue;
        struct attention_factors by = attention_factors_of(top, m.top[i]);
        for (int c = lane; c < D; c += 32)
            state[c] = attention_merge_out(by, all == 0 ? 0.0f : state[c], m.out[i][c] + 0.0f);
        if (lane == 0) {
            state[D] = by.top;
            state[D + 1] = attention_merge_sum(by, all, split);
        }
    }
    __syncwarp(); /* the sums of the split were read */
    if (lane < WARP_ITEMS) {
        m.top[row + lane] = -INFINITY;
        m.sum[row + lane] = 0.0f;
    }
}

/* Rotates the queries, into fp32 and into registers of A. Fresh states and the split start empty. A
 * warp takes the rows whose splits it ends. */
template <int D>
__device__ __forceinline__ void start(struct codes_memory<D> &m, const struct attention_job &job,
                                      uint32_t first, uint32_t n)
{
    const struct attention_call &a = job.a;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * WARP_ITEMS;
    for (int i = lane; i < WARP_ITEMS * D; i += 32) {
        uint32_t mine = (uint32_t)(row + i / D), c = (uint32_t)(i % D);
        size_t at = attention_query(a, first + mine) + c;
        m.exact_q[mine][c] =
            mine < n ? spw_device_bf16(((const uint16_t *)a.q)[at]) * job.k_factor : 0.0f;
        m.out[mine][c] = 0.0f;
    }
    spw_hadamard_stages(m.exact_q[row], WARP_ITEMS, codes_shape<D>::stride, D,
                        spw_hadamard_k_block(D));
    for (int i = row; i < row + WARP_ITEMS && (uint32_t)i < n; i++)
        for (int c = lane; c < D + 2 && (a.first || job.split_floats); c += 32)
            attention_state(job, first + (uint32_t)i)[c] = c == D ? -INFINITY : 0.0f;
    if (lane < WARP_ITEMS) {
        m.top[row + lane] = -INFINITY;
        m.sum[row + lane] = 0.0f;
    }
    __syncthreads(); /* all rows are rotated, and the split is empty */
    for (int i = (int)threadIdx.x; i < codes_shape<D>::fragments; i += ATTENTION_THREADS) {
        int step = i / 32, g = i % 32 / 4, t = i % 4, octet = step / 2 * 4 + t;
        uint32_t word[4];
        SPW_UNROLL
        for (int n_word = 0; n_word < 4; n_word++) { /* rows g, g + 8 of a pair, then of the next */
            int c = 8 * octet + step % 2 * 2 + n_word / 2;
            const float *q = m.exact_q[g + n_word % 2 * 8];
            word[n_word] = octet < D / 8 ? spw_device_pack_bf16(q[c], q[c + 4]) : 0;
        }
        m.q[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    __syncthreads(); /* the registers of A are there */
}

/* grid: (tiles of 16 items, KV heads, 1 or splits) */
template <int D>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    k_attention_codes(SPW_PARAMETER struct attention_job job, int stages)
{
#ifndef ATTENTION_NO_MMA
    spw_grid_wait();
    spw_grid_next();
    const struct attention_call &a = job.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const uint32_t group = a.n_heads / a.n_kv_heads, item = blockIdx.x * ITEMS;
    const uint32_t n = min((uint32_t)ITEMS, (uint32_t)a.rows * group - item);
    SPW_SHARED_DYNAMIC(struct codes_memory<D>, memory);
    struct codes_memory<D> &m = *memory;
    struct attention_span blocks = attention_blocks(job, item / group, (item + n - 1) / group);
    /* The tiles that at least one row sees. */
    int lo = blocks.lo / 2, hi = blocks.lo < blocks.hi ? (blocks.hi + 1) / 2 : lo;
    struct codes_walk w;
    w.stages = stages;
    w.chunks = piece_chunks<D>(a.qformat != SPW_QFORMAT_INT4);
    w.ring = (uint4 *)(memory + 1) + warp * stages * w.chunks;
    w.first = lo + (warp - lo % SPW_SPLIT_TILES + SPW_SPLIT_TILES) % SPW_SPLIT_TILES;
    w.pieces = max(hi - w.first + SPW_SPLIT_TILES - 1, 0) / SPW_SPLIT_TILES * PIECES;
    for (int i = 0; i < stages - 1; i++)
        copy_piece<D>(m, w, a, i);
    start<D>(m, job, item, n);

    struct tile_rows<D> r;
    SPW_UNROLL
    for (int side = 0; side < 2; side++) {
        uint32_t mine = item + min((uint32_t)(lane / 4 + 8 * side), n - 1);
        r.span[side] = attention_visible(job, mine / group);
    }
    for (int split = lo / SPW_SPLIT_TILES; split * SPW_SPLIT_TILES < hi; split++) {
        int tile = split * SPW_SPLIT_TILES + warp;
        bool takes = tile >= lo && tile < hi;
        if (takes)
            walk_tile<D>(r, m, w, job, (tile - w.first) / SPW_SPLIT_TILES, tile);
        for (int turn = 0; turn < ATTENTION_WARPS; turn++) {
            if (takes && turn == warp)
                merge_tile<D>(m, r);
            __syncthreads(); /* tiles are merged in order */
        }
        end_split<D>(m, job, item, n);
        __syncthreads(); /* the next split starts empty */
    }
#endif
}

/* The ring has fewer stages if a block of this device has no room for so many. */
template <int D> static int launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    const struct attention_call *a = &job->a;
    int stages = D == 64 || (D != 256 && a->qformat == SPW_QFORMAT_INT4) ? 3 : 2;
    size_t items = a->rows * (a->n_heads / a->n_kv_heads);
    size_t stage =
        ATTENTION_WARPS * sizeof(uint4) * (size_t)piece_chunks<D>(a->qformat != SPW_QFORMAT_INT4);
    struct spw_cuda_card *card;
    SPW_TRY(spw_cuda_card_get(&card));
    const size_t most = (size_t)card->shared_bytes;
    while (stages > 1 && sizeof(struct codes_memory<D>) + (size_t)stages * stage > most)
        stages--;
    size_t bytes = sizeof(struct codes_memory<D>) + (size_t)stages * stage;
    dim3 grid((unsigned)spw_div_up(items, ITEMS), a->n_kv_heads, n_grid);
    SPW_LAUNCH((k_attention_codes<D>), grid, ATTENTION_THREADS, bytes, s, *job, stages);
    return spw_cuda_launched();
}

/* At D = 128 a block takes 51 KB in int4 (three pieces of 2 KiB a warp, two of them in flight) and
 * 58 KB in int8 (two pieces of 4 KiB, one in flight), and 168 registers a thread (nvcc 13.0, no
 * spills; D = 256: 254). So a multiprocessor runs three blocks on sm_90, three or two on sm_80, one
 * on sm_86 and sm_89. int8 at D = 256 would take 115 KB, and sm_86 has 99 KiB. */
int spw_attention_codes_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s)
{
    return ATTENTION_LAUNCH(launch, job, n_grid, s);
}
