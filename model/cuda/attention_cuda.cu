/* Attention on the GPU: which kernels a call launches, the merge of splits that were computed side
 * by side, and the result after the last call. The arithmetic is in model/cuda/attention_cuda.cuh.
 * The choices of this file do not change a result.
 *
 *   few items (decode)   attention_few_cuda.cu    a block of the grid takes one split
 *   many (prefill)       attention_rows_cuda.cu   a block walks the splits in order
 *   other types, sizes   attention_fma_cuda.cu    either
 *   quantized tiles      attention_codes_cuda.cu  either, and attention_fma_cuda.cu
 *
 * A call with tiles of both forms makes up to three launches: the tiles before the quantized ones,
 * the quantized tiles, and the tiles after them.
 *
 * Splits that are computed side by side go to `split_states`: (head_dim + 2) * 4 bytes for an item
 * and split, next to 512 * head_dim * 4 bytes of K and V that the split reads. The merge also
 * writes the result, because it has out and sum in registers. Where a block walks the splits
 * (prefill), the result is a merge of no splits: each of the four kernels stores its states
 * differently, and the cost of one more launch is small next to the products of a chunk. */
#include "model/cuda/attention_cuda.cuh"

#include "quant/hadamard.h"

enum {
    FEW_ITEMS = 32, /* of one KV head: two tiles of 16 rows */
    ENOUGH_BLOCKS =
        256, /* blocks of the grid; with more, splits need not be computed side by side */
    MOST_SPLITS = SPW_ATTENTION_TILES / SPW_SPLIT_TILES,
};

/* ---- attention ---- */

/* Whether the tensor-core kernels take these types and sizes on this device. */
static bool takes_mma(const struct attention_call *a)
{
    uint32_t d = a->head_dim;
    struct spw_cuda_card *card;
    if (a->dtype != SPW_DTYPE_BF16 || a->kv_dtype != SPW_DTYPE_BF16 || a->q_stride % 2 != 0 ||
        a->relative_bias) /* attention_fma_cuda.cu alone adds it */
        return false;
    if (d != 64 && d != 80 && d != 96 && d != 128 && d != 256)
        return false;
    return !spw_cuda_card_get(&card) && card->major >= 8;
}

/* The sum of an item, with the extra logit of its head, which is an exponent of e. */
__device__ __forceinline__ float whole_sum(const float *extra_logits, uint32_t head, float top,
                                           float sum)
{
    const float log2_e = 1.44269504f;
    return extra_logits ? sum + exp2f(extra_logits[head] * log2_e - top) : sum;
}

/* Channels c, c + 1 of an item's y. */
__device__ __forceinline__ void store_result(void *y, size_t at, float2 out, float sum,
                                             enum spw_dtype t)
{
    float low = out.x / sum, high = out.y / sum;
    if (t == SPW_DTYPE_BF16) {
        ((uint32_t *)y)[at / 2] = spw_device_pack_bf16(low, high); /* head_dim is even */
        return;
    }
    ((float *)y)[at] = low;
    ((float *)y)[at + 1] = high;
}

/* before[i] = the largest of tops[0 .. i - 1], i = 1 .. n. One warp; each lane takes a run of
 * tops. */
__device__ __forceinline__ void running_tops(float *before, const float *tops, uint32_t n)
{
    const uint32_t lane = threadIdx.x, per = n / 32 + 1;
    const uint32_t from = min(lane * per, n + 1), to = min(from + per, n + 1);
    float top = -INFINITY;
    for (uint32_t i = from; i < to; i++)
        top = fmaxf(top, tops[i]);
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        float other = __shfl_up_sync(0xffffffffu, top, apart);
        top = lane < apart ? top : fmaxf(top, other);
    }
    float lower = __shfl_up_sync(0xffffffffu, top, 1);
    top = lane ? lower : -INFINITY;
    for (uint32_t i = from; i < to; i++) {
        before[i] = top;
        top = fmaxf(top, tops[i]);
    }
}

/* A block per (row, head). The maximum after each split is exact, so the factors of all splits are
 * computed side by side. The sum and the outputs (two channels a thread) are chains over the
 * splits. An empty split takes no part. */
__global__ void k_attention_merge(SPW_PARAMETER struct attention_job job, const float *split_states,
                                  uint32_t n_splits)
{
    SPW_SHARED(float, tops, MOST_SPLITS + 1); /* of the state, and of each split */
    SPW_SHARED(float, sums, MOST_SPLITS + 1);
    SPW_SHARED(float, before, MOST_SPLITS + 1);
    SPW_SHARED(struct attention_factors, factors, MOST_SPLITS + 1);
    spw_grid_wait();
    spw_grid_next();
    const struct attention_call &a = job.a;
    const uint32_t d = a.head_dim;
    const size_t at = (size_t)blockIdx.x * (d + 2), stride = a.rows * a.n_heads * (size_t)(d + 2);
    float *state = a.state + at;
    const float *split = split_states + at;
    for (uint32_t i = threadIdx.x; i <= n_splits; i += blockDim.x) {
        const float *from = i ? split + (i - 1) * stride + d : state + d;
        bool none = i == 0 && a.first;
        tops[i] = none ? -INFINITY : from[0];
        sums[i] = none ? 0.0f : from[1];
    }
    __syncthreads(); /* all maxima are in `tops`, and the maxima of the states were read before they
                        change */
    if (threadIdx.x < 32)
        running_tops(before, tops, n_splits);
    __syncthreads(); /* the running maxima are written; minus infinity for an empty split */
    for (uint32_t i = threadIdx.x + 1; i <= n_splits; i += blockDim.x)
        factors[i] = attention_factors_of(before[i], tops[i]);
    __syncthreads(); /* the factors are written */
    for (uint32_t c = 2 * threadIdx.x; c < d; c += 2 * blockDim.x) {
        float2 out = a.first ? make_float2(0.0f, 0.0f) : *(const float2 *)(state + c);
        float sum = sums[0];
        SPW_UNROLL_BY(16) /* number of loads in flight */
        for (uint32_t i = 1; i <= n_splits; i++) {
            float2 x = *(const float2 *)(split + (i - 1) * stride + c);
            float2 merged = make_float2(attention_merge_out(factors[i], out.x, x.x),
                                        attention_merge_out(factors[i], out.y, x.y));
            out = sums[i] != 0 ? merged : out;
            sum = sums[i] != 0 ? attention_merge_sum(factors[i], sum, sums[i]) : sum;
        }
        if (a.y) {
            float top = n_splits ? factors[n_splits].top : tops[0];
            uint32_t head = blockIdx.x % a.n_heads;
            store_result(a.y, blockIdx.x / a.n_heads * a.y_stride + head * d + c, out,
                         whole_sum(a.extra_logits, head, top, sum), a.dtype);
            continue;
        }
        *(float2 *)(state + c) = out;
        if (c == 0) {
            state[d] = n_splits ? factors[n_splits].top : tops[0];
            state[d + 1] = sum;
        }
    }
}

typedef int launcher(const struct attention_job *job, uint32_t n_grid, spw_stream s);

/* With 0 splits it only writes the result. */
static int merge(const struct attention_job *job, uint32_t n_splits, spw_stream s)
{
    const struct attention_call *a = &job->a;
    unsigned threads = a->head_dim > 64 ? 64 : 32;
    SPW_LAUNCH(k_attention_merge, (unsigned)(a->rows * a->n_heads), threads, 0, s, *job,
               (const float *)a->split_states, n_splits);
    return spw_cuda_launched();
}

/* Computes each split into its own partial state, then merges all of them into the states. */
static int side_by_side(const struct attention_job *job, uint32_t n_splits, launcher *launch,
                        spw_stream s)
{
    const struct attention_call *a = &job->a;
    struct attention_job split = *job;
    split.split_floats = a->rows * a->n_heads * (size_t)(a->head_dim + 2);
    split.a.state = a->split_states;
    SPW_TRY(launch(&split, n_splits, s));
    return merge(job, n_splits, s);
}

/* How a part of a call runs. */
struct way {
    launcher *launch;
    bool side_by_side; /* else a block walks the splits */
};

static struct way way_of(const struct attention_call *a, uint32_t n_splits, bool codes)
{
    size_t items = a->rows * (a->n_heads / a->n_kv_heads);
    bool mma = takes_mma(a), many = n_splits > 1 && a->split_states;
    if (mma && !codes && items <= FEW_ITEMS && (many || n_splits <= 1))
        return (struct way){spw_attention_few_launch, many};
    launcher *exact = mma ? spw_attention_rows_launch : spw_attention_fma_launch;
    launcher *coded = mma ? spw_attention_codes_launch : spw_attention_codes_fma_launch;
    return (struct way){codes ? coded : exact,
                        many && spw_div_up(items, codes ? 16 : 64) * a->n_kv_heads < ENOUGH_BLOCKS};
}

/* Computes tiles [lo, hi) of the call, which have one form. Without tiles it only starts the
 * states. The last part of a call also writes the result. */
static int launch_part(struct attention_job *job, uint32_t lo, uint32_t hi, bool codes,
                       spw_stream s)
{
    uint32_t n_splits = (uint32_t)spw_div_up(hi, SPW_SPLIT_TILES) - lo / SPW_SPLIT_TILES;
    struct way way = way_of(&job->a, n_splits, codes);
    void *y = job->a.y;
    job->a.y = hi < job->a.n_tiles ? NULL : y;
    job->tile_lo = lo;
    job->tile_hi = hi;
    if (way.side_by_side) {
        SPW_TRY(side_by_side(job, n_splits, way.launch, s));
    } else {
        SPW_TRY(way.launch(job, 1, s));
        job->a.first = false;
        if (job->a.y)
            SPW_TRY(merge(job, 0, s));
    }
    job->a.first = false;
    job->a.y = y;
    return 0;
}

/* All tiles lie in one arena; their distances are multiples of a power of two. */
static int index_tiles(struct attention_call *c, const void *const *tiles)
{
    uintptr_t lowest = UINTPTR_MAX, bits = 0;
    for (uint32_t i = 0; i < c->n_tiles; i++)
        if (tiles[i])
            lowest = (uintptr_t)tiles[i] < lowest ? (uintptr_t)tiles[i] : lowest;
    for (uint32_t i = 0; i < c->n_tiles; i++)
        bits |= tiles[i] ? (uintptr_t)tiles[i] - lowest : 0;
    c->lowest_tile = (const char *)lowest;
    c->tile_shift = bits ? (uint32_t)__builtin_ctzll(bits) : 0;
    if (bits >> c->tile_shift >= ATTENTION_NO_TILE)
        return -EINVAL;
    for (uint32_t i = 0; i < c->n_tiles; i++)
        c->tile_at[i] = tiles[i] ? (uint32_t)(((uintptr_t)tiles[i] - lowest) >> c->tile_shift)
                                 : ATTENTION_NO_TILE;
    return 0;
}

static int make_job(struct attention_job *job, const struct spw_attention_args *a)
{
    const float log2_e = 1.44269504f;
    static_assert(sizeof *job + 2 * sizeof(uint64_t) <= 4096, "parameters of k_attention_merge");
    job->split_floats = 0;
    job->factor = a->softcap != 0 ? a->scale / a->softcap : a->scale * log2_e;
    job->cap = a->softcap * log2_e;
    job->k_factor = spw_hadamard_factor(spw_hadamard_k_block(a->head_dim));
    job->v_factor = spw_hadamard_factor(spw_hadamard_v_block(a->head_dim));
    struct attention_call *c = &job->a;
    c->q = a->q;
    c->state = a->state;
    c->split_states = a->split_states;
    c->extra_logits = a->extra_logits;
    c->relative_bias = a->relative_bias;
    c->most_distance = a->most_distance;
    c->first_key = a->first_key;
    c->seen_end = a->seen_end;
    c->y = a->y;
    c->rows = a->rows;
    c->q_stride = a->q_stride;
    c->y_stride = a->y_stride ? a->y_stride : (size_t)a->n_heads * a->head_dim;
    c->position = a->position;
    c->tile_first = a->tile_first;
    c->window = a->window;
    c->n_tiles = a->n_tiles;
    c->n_heads = a->n_heads;
    c->n_kv_heads = a->n_kv_heads;
    c->head_dim = a->head_dim;
    c->dtype = a->dtype;
    c->kv_dtype = a->kv_dtype;
    c->qformat = a->qformat;
    c->first = a->first;
    return index_tiles(c, a->tiles);
}

int spw_attention_cuda(const struct spw_attention_args *a, spw_stream s)
{
    if (!a->rows)
        return 0;
    if (a->n_tiles > SPW_ATTENTION_TILES || a->tile_first % SPW_SPLIT_TILES || !a->n_kv_heads ||
        a->n_heads % a->n_kv_heads || a->head_dim % 2 || (uintptr_t)a->state % 8 ||
        (uintptr_t)a->split_states % 8 || (uintptr_t)a->q % 4 || (uintptr_t)a->y % 4 ||
        a->y_stride % 2)
        return -EINVAL;
    uint32_t codes = (uint32_t)spw_min_u64(a->quantized_first, a->n_tiles);
    uint32_t behind = (uint32_t)spw_min_u64(a->quantized_end, a->n_tiles);
    struct attention_job job =
        {}; /* the unused end of the table of tiles is copied to the GPU, too */
    SPW_TRY(make_job(&job, a));
    if (codes >= behind)
        return launch_part(&job, 0, a->n_tiles, false, s);
    if (a->qformat >= SPW_QFORMAT_EXACT)
        return -EINVAL;
    if (codes > 0)
        SPW_TRY(launch_part(&job, 0, codes, false, s));
    SPW_TRY(launch_part(&job, codes, behind, true, s));
    return behind < a->n_tiles ? launch_part(&job, behind, a->n_tiles, false, s) : 0;
}
