/* What the attention kernels share: which positions an item sees, and how splits are merged.
 *
 * An item is one (row, query head). The query heads of one KV head are neighbours: item = row *
 * group + head of the group. All kernels walk the call in blocks of 64 positions at absolute
 * multiples of 64, and start again at each split of 512. An item gets the same bits from every
 * kernel and beside any other items of the call. For an item and a split:
 *
 *   for each block of 64 positions, in order:
 *     s[j]  = one chain over channels, times scale log2(e) (softcap: cap log2(e) tanh(.));
 *             minus infinity where masked
 *     top'  = max(top, s[0..63])                      exact, in any order
 *     old   = 2^(top - top')                          1 where the whole block is masked
 *     p[j]  = 2^(s[j] - top')                         exact zeros where masked
 *     sum   = sum old + (p[0..63] in a fixed tree)
 *     out   = out old, then one chain over positions of p[j] v[j]
 *   then merge_* below merges (out, top, sum) into the state. There is no other merge.
 *
 * A block that an item does not see does not change the item: old is 1 and the products are zeros.
 * So the kernels skip blocks that no item sees. The skip could change only the sign of a zero in
 * `out`, and the end of a split drops that sign. Everything is in base 2: the state's max is an
 * exponent of two.
 *
 * A split also ends where its tiles change between exact and quantized: a launch takes tiles of one
 * form, and its part of a split is merged like a split, in the order of positions. Which tiles a
 * row reads quantized follows from the row's position, so the launches do not change a bit. */
#ifndef SPW_MODEL_CUDA_ATTENTION_CUDA_CUH
#define SPW_MODEL_CUDA_ATTENTION_CUDA_CUH

#include "model/cuda/ops_cuda.h"

#include "quant/cuda.cuh"

enum {
    ATTENTION_BLOCK = 64, /* positions */
    ATTENTION_BLOCKS = SPW_SPLIT_TOKENS / ATTENTION_BLOCK,
    ATTENTION_THREADS = 128,
    ATTENTION_WARPS = ATTENTION_THREADS / 32,
};

/* The part of struct spw_attention_args that kernels need. Every GPU takes 4 KB of parameters, and
 * the arguments of each launch fit into them, because a tile is stored as its distance from the
 * lowest tile. */
struct attention_call {
    const void *q;
    float *state, *split_states;
    const float *extra_logits;
    const float *relative_bias;
    uint32_t most_distance;
    uint64_t first_key, seen_end;
    void *y;
    size_t rows, q_stride, y_stride;
    uint64_t position, tile_first;
    struct spw_window window;
    uint32_t n_tiles, n_heads, n_kv_heads, head_dim;
    enum spw_dtype dtype, kv_dtype;
    enum spw_qformat qformat;
    bool first;
    uint32_t tile_shift; /* the unit of tile_at is 2^tile_shift bytes */
    const char *lowest_tile;
    uint32_t tile_at[SPW_ATTENTION_TILES]; /* ATTENTION_NO_TILE: no row sees the tile */
};

#define ATTENTION_NO_TILE UINT32_MAX

__device__ __forceinline__ const char *attention_tile(const struct attention_call &a, int i)
{
    uint32_t at = a.tile_at[i];
    return at == ATTENTION_NO_TILE ? nullptr : a.lowest_tile + ((size_t)at << a.tile_shift);
}

/* One launch. With split_floats = 0 a block merges its splits into a.state, one after the other.
 * Else block z of the grid computes only split z, as a fresh state at a.state + z *
 * split_floats. */
struct attention_job {
    size_t split_floats;
    uint32_t tile_lo, tile_hi; /* of the call, all of one form; other tiles are not seen */
    float factor;              /* of a raw score: scale * log2(e), or with a softcap scale / cap */
    float cap;                 /* cap * log2(e), or 0 */
    float k_factor, v_factor;  /* of the rotations of q and out, for quantized tiles */
    struct attention_call a;
};

/* Launchers of the kernel families. n_grid: splits side by side; 1: a block walks them. */
int spw_attention_rows_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s);
int spw_attention_few_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s);
int spw_attention_fma_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s);
/* The same for quantized tiles. */
int spw_attention_codes_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s);
int spw_attention_codes_fma_launch(const struct attention_job *job, uint32_t n_grid, spw_stream s);

/* Positions [lo, hi) counted from the call's first tile; none: lo >= hi. */
struct attention_span {
    int lo, hi;
};

__device__ __forceinline__ int attention_clip(uint64_t x, uint64_t base, int limit)
{
    return x <= base ? 0 : x - base < (uint64_t)limit ? (int)(x - base) : limit;
}

/* Both ends increase with the row. */
__device__ __forceinline__ struct attention_span attention_visible(const struct attention_job &job,
                                                                   uint32_t row)
{
    const struct attention_call &a = job.a;
    uint64_t past = a.seen_end ? a.seen_end : a.position + row + 1;
    uint64_t from = spw_window_first(a.window, past - 1), base = a.tile_first * SPW_TILE_TOKENS;
    from = from > a.first_key ? from : a.first_key;
    int limit = (int)(job.tile_hi * SPW_TILE_TOKENS);
    struct attention_span s = {
        max(attention_clip(from, base, limit), (int)(job.tile_lo * SPW_TILE_TOKENS)),
        attention_clip(past, base, limit)};
    return s;
}

/* The blocks [from, to) that rows first..last see, within the splits that this block of the grid
 * takes. Block x begins at position 64 x of the call. */
__device__ __forceinline__ struct attention_span attention_blocks(const struct attention_job &job,
                                                                  uint32_t first, uint32_t last)
{
    int lo = attention_visible(job, first).lo, hi = attention_visible(job, last).hi;
    int from = lo / ATTENTION_BLOCK, to = (hi + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    if (job.split_floats) {
        int split = (int)(job.tile_lo / SPW_SPLIT_TILES + blockIdx.z);
        from = max(from, split * ATTENTION_BLOCKS);
        to = min(to, (split + 1) * ATTENTION_BLOCKS);
    }
    struct attention_span s = {from, to};
    return s;
}

/* The state of an item of this block's KV head. */
__device__ __forceinline__ float *attention_state(const struct attention_job &job, uint32_t item)
{
    const struct attention_call &a = job.a;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    const size_t head = (size_t)(item / group) * a.n_heads + blockIdx.y * group + item % group;
    return a.state + blockIdx.z * job.split_floats + head * (a.head_dim + 2);
}

/* Where q of an item begins, in elements. */
__device__ __forceinline__ size_t attention_query(const struct attention_call &a, uint32_t item)
{
    const uint32_t group = a.n_heads / a.n_kv_heads;
    return item / group * a.q_stride + (size_t)(blockIdx.y * group + item % group) * a.head_dim;
}

/* ---- a score and its weight ---- */

/* n raw scores. One branch serves all of them, so they are computed side by side without a
 * softcap. */
template <int n>
__device__ __forceinline__ void attention_scale(float *s, const struct attention_job &job)
{
    SPW_UNROLL
    for (int i = 0; i < n; i++)
        s[i] = fmaf(s[i], job.factor, 0.0f); /* never a negative zero: a maximum has one sign */
    if (job.cap == 0)
        return;
    SPW_UNROLL
    for (int i = 0; i < n; i++)
        s[i] = job.cap * tanhf(s[i]);
}

/* The value that is subtracted from scores. It is 0, not minus infinity, while every position is
 * masked. */
__device__ __forceinline__ float attention_base(float top)
{
    return top == -INFINITY ? 0.0f : top;
}

/* ---- the merge ---- */

struct attention_factors {
    float old, now; /* of the state's and of the split's values */
    float top;      /* the new state's */
};

/* The factors of a state (an empty one has minus infinity) and a split. */
__device__ __forceinline__ struct attention_factors attention_factors_of(float top, float split_top)
{
    struct attention_factors f;
    f.top = fmaxf(top, split_top);
    f.old = spw_device_exp2(top - attention_base(f.top));
    f.now = spw_device_exp2(split_top - attention_base(f.top));
    return f;
}

__device__ __forceinline__ float attention_merge_sum(struct attention_factors f, float sum,
                                                     float split)
{
    return fmaf(sum, f.old, split * f.now);
}

/* `state` is 0 if the state is empty. */
__device__ __forceinline__ float attention_merge_out(struct attention_factors f, float state,
                                                     float split)
{
    return fmaf(state, f.old, split * f.now);
}

#endif
