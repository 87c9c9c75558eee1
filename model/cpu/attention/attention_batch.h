/* What one attention task works on: up to BATCH_ITEMS queries that share a KV head, against one
 * split of 512 positions at a time.
 *
 * An item is one (row, query head). The heads of a group lie side by side: a vector of K or V is
 * loaded once for several of them. The pieces, in the order of a split:
 *
 *   batch_scores      scores[item][512] = scale * q . k, blocks of 64 positions (here: walk)
 *     scores_group    a few items against one such block                      (f32.h or avx512bf16)
 *     panel_scores    all items, where they are many                           (panels.h, AVX2)
 *     score_codes     the same, where the tile is quantized                              (codes.h)
 *   weigh_item        softcap, mask, exact maximum, exp, sum                               (walk)
 *   batch_values      out[item][channels] += p . v, tile by tile                           (walk)
 *     values_group    a few items, a few vectors of channels, a run of positions (f32.h or ...)
 *     panel_values    all items, where they are many                           (panels.h, AVX2)
 *     value_codes     all items, a quantized tile; turn_back rotates the sum back once   (codes.h)
 *   merge_out         merges into the state, or into a partial state                       (walk)
 */
#include "model/cpu/kernels.h"
/* A processor without the instruction would need several times as long for e^x. */
#define num_fused vec_fma
#include "model/cpu/math.h"

enum {
    BATCH_ITEMS = 32,
    BATCH_FLOATS = BATCH_ITEMS * 256, /* heads above 256 channels take fewer items at a time */
    SCORE_BLOCKS = 4,                 /* 64 positions: half a tile */
    SCORE_SPAN = SCORE_BLOCKS * SPW_TILE_BLOCK,
    GROUP_ITEMS = 4,             /* items that share the loads of a K or V vector */
    FEW_ITEMS = 2 * GROUP_ITEMS, /* of one row: memory, not arithmetic, takes most of the time */
};

/* The bytes that a batch of few items reads, in their order: K of a split's tiles, V of these
 * tiles, the next split. Each byte is read once, and the batch prefetches it: the hardware
 * prefetchers start anew at every head of every tile. While four lines are multiplied, three are
 * fetched; the fourth is fetched while scores are weighed, which reads no tile. So memory is always
 * busy. Lines are fetched into the second level cache: a lead that is long enough for memory would
 * fill a first level of 32 KiB. */
struct fetcher {
    const char *at, *end;     /* the rest of the piece */
    uint32_t piece, n_pieces; /* a piece is one of the runs of a head's K or V of one tile: meta
                                 bytes, high plane, low plane; of an exact tile the first is all */
};

enum {
    FETCH_LEAD = 768, /* 48 KiB */
    FETCH_OF_FOUR = 3,
    FETCH_LINE = 64,
    FETCH_RUNS = 4, /* three; the fourth is empty and makes divisions shifts */
    SPLIT_PIECES = 2 * SPW_SPLIT_TILES * FETCH_RUNS,
};

/* Bytes of a tile that are read in one go. */
struct run {
    size_t offset, bytes;
};

/* One head of a quantized tile; the low planes are NULL where the format has none. */
struct codes {
    const char *k_means, *k_steps, *k_high, *k_low, *v_steps, *v_high, *v_low;
};

/* Numbers as integers of two signed bytes: half of their unit, and the sum of the integers. */
struct limbs {
    float unit;
    int32_t sum;
};

struct batch {
    const struct spw_attention_args *a;
    uint32_t kv_head, n_items;
    size_t out_stride;                         /* head_dim, padded to whole vectors */
    uint32_t lo[BATCH_ITEMS], hi[BATCH_ITEMS]; /* visible positions, from the split's start */
    uint64_t base;                             /* the position of the split's start, */
    int64_t query[BATCH_ITEMS];                /* and those of the items; the head of each */
    uint32_t head[BATCH_ITEMS];
    float max[BATCH_ITEMS], sum[BATCH_ITEMS];
    const char *k[SPW_SPLIT_TILES], *v[SPW_SPLIT_TILES]; /* this head's halves of the tiles */
    struct codes codes[SPW_SPLIT_TILES];                 /* of the quantized ones */
    bool coded[SPW_SPLIT_TILES];                         /* which these are */
    uint32_t n_coded;
    bool streams; /* few items: their first group fetches ahead */
    struct fetcher fetcher;
    struct run runs[2][2][FETCH_RUNS]; /* of an exact and a quantized tile, K and V */
    void *q;                           /* [n_items][head_dim], what scores_group reads */
    float *scores; /* [n_items][512]; after weighing p, in the type that values_group reads */
    float *out;    /* [n_items][out_stride] */
    /* Rotated, for quantized tiles: q, and the sum that is added to out. [n_items][out_stride] */
    float *turned, *out_turned;
    /* The rotated q as integers, where sums are of integers: high and low bytes
     * [n_items][2][out_stride], and unit and sum of each group of 64 channels [n_items][groups]. */
    signed char *q_bytes;
    struct limbs *q_limbs;
};

/* A run of positions of one tile, and a strip of channels, for values_group. */
struct strip {
    const char *v;   /* the head's V half of the tile */
    uint32_t tile;   /* within the split */
    uint32_t lo, hi; /* positions within the tile */
    uint32_t channel, n_vectors;
};

static bool is_coded(const struct spw_attention_args *a, uint32_t tile)
{
    return tile >= a->quantized_first && tile < a->quantized_end;
}

static struct codes codes_of(const struct spw_attention_args *a, uint32_t tile, uint32_t kv_head)
{
    struct spw_qtile_head at =
        spw_qtile_locate(a->n_kv_heads, spw_tile_square(a->head_dim), kv_head);
    const char *p = a->tiles[tile];
    struct codes t = {.k_means = p + at.k_means, .k_steps = p + at.k_steps};
    t.v_steps = p + at.v_steps, t.k_high = p + at.k_high, t.v_high = p + at.v_high;
    t.k_low = a->qformat == SPW_QFORMAT_INT4 ? NULL : p + at.k_low;
    t.v_low = a->qformat == SPW_QFORMAT_INT8 ? p + at.v_low : NULL;
    return t;
}

/* Where a head's pieces lie in a tile, exact or quantized. All batches fetch pieces of quantized
 * tiles; only batches of few items fetch pieces of exact tiles. */
static void find_runs(struct batch *b)
{
    const struct spw_attention_args *a = b->a;
    uint32_t d = a->head_dim, head = b->kv_head;
    size_t exact = spw_tile_head_bytes(d, a->kv_dtype), steps = spw_qtile_steps_bytes(d);
    size_t k = spw_qtile_k_plane_bytes(d), v = spw_qtile_v_plane_bytes(d);
    struct spw_qtile_head at = spw_qtile_locate(a->n_kv_heads, spw_tile_square(d), head);
    memset(b->runs, 0, sizeof b->runs);
    if (b->streams) {
        b->runs[0][0][0] = (struct run){head * exact, exact};
        b->runs[0][1][0] = (struct run){(a->n_kv_heads + head) * exact, exact};
    }
    b->runs[1][0][0] = (struct run){at.k_means, spw_qtile_means_bytes(d) + steps};
    b->runs[1][0][1] = (struct run){at.k_high, k};
    b->runs[1][0][2] = (struct run){at.k_low, a->qformat == SPW_QFORMAT_INT4 ? 0 : k};
    b->runs[1][1][0] = (struct run){at.v_steps, steps};
    b->runs[1][1][1] = (struct run){at.v_high, v};
    b->runs[1][1][2] = (struct run){at.v_low, a->qformat == SPW_QFORMAT_INT8 ? v : 0};
}

/* Small, because it is inlined into every loop: a call would make the compiler keep the sums of the
 * loops in memory (8 queries a head then read bf16 tiles at 8 GB/s in place of 13). */
SIMD_FN bool fetch_next_piece(struct batch *b)
{
    struct fetcher *f = &b->fetcher;
    while (f->piece < f->n_pieces) {
        uint32_t run = f->piece % FETCH_RUNS, of_split = f->piece % SPLIT_PIECES / FETCH_RUNS;
        uint32_t tile = f->piece++ / SPLIT_PIECES * SPW_SPLIT_TILES + of_split % SPW_SPLIT_TILES;
        if (tile >= b->a->n_tiles || !b->a->tiles[tile])
            continue;
        const struct run *r = &b->runs[is_coded(b->a, tile)][of_split >= SPW_SPLIT_TILES][run];
        if (r->bytes) {
            f->at = (const char *)b->a->tiles[tile] + r->offset;
            f->end = f->at + r->bytes;
            return true;
        }
    }
    return false;
}

SIMD_FN void fetch_lines(struct batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, b->fetcher.at += FETCH_LINE) {
        if (b->fetcher.at == b->fetcher.end && !fetch_next_piece(b))
            return;
        __builtin_prefetch(b->fetcher.at, 0, 2);
    }
}

/* A loop that reads `lines` lines a step calls this at each step. Three of four steps fetch as many
 * lines. */
SIMD_FN void fetch_lines_of(struct batch *b, size_t step, const uint32_t lines)
{
    if (step % 4 < FETCH_OF_FOUR)
        fetch_lines(b, lines);
}

/* A line is fetched once, for all groups of a batch. */
SIMD_FN bool fetches(const struct batch *b, uint32_t item)
{
    return b->streams && item == 0;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t greater(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
