/* What one attention task works on: up to BATCH_ITEMS queries that share a KV head, against one
 * split of 512 positions at a time.
 *
 * An item is one (row, query head); the heads of a group lie side by side, so that each vector of K
 * or V that is loaded serves several of them. The pieces, in the order of a split:
 *
 *   batch_scores      scores[item][512] = scale * q . k, blocks of 64 positions (here: walk)
 *     scores_group    a few items against one such block                      (f32.h or avx512bf16)
 *   weigh_item        softcap, mask, exact maximum, exp, sum                               (walk)
 *   batch_values      out[item][channels] += p . v, tile by tile                           (walk)
 *     values_group    a few items, a few vectors of channels, a run of positions (f32.h or ...)
 *   merge_out         into the state, or stored as a partial                               (walk)
 */
#include "model/ops_cpu_kernels.h"
#include "model/ops_cpu_math.h"

enum {
    BATCH_ITEMS = 32,
    BATCH_FLOATS = BATCH_ITEMS * 256, /* heads above 256 channels take fewer items at a time */
    SCORE_BLOCKS = 4,                 /* 64 positions: half a tile */
    SCORE_SPAN = SCORE_BLOCKS * SPW_TILE_BLOCK,
    GROUP_ITEMS = 4, /* items that share the loads of a K or V vector */
};

/* The bytes that a batch of one group reads, in its order: K of a split's tiles, V of them, the
 * next split. Each is read once, so the batch fetches them itself, ahead of use: the hardware
 * starts anew at every head of every tile. Three lines for four that are multiplied, and the fourth
 * while weighing, which reads nothing: memory never rests. The lead of 24 KiB is half of a first
 * level. */
struct fetcher {
    const char *at, *end;     /* the rest of the piece */
    uint32_t piece, n_pieces; /* one head's K or V of one tile; eight to a split */
};

enum { FETCH_LEAD = 384, FETCH_OF_FOUR = 3, FETCH_LINE = 64 };

struct batch {
    const struct spw_attention_args *a;
    uint32_t kv_head, n_items;
    size_t out_stride;                         /* head_dim, padded to whole vectors */
    uint32_t lo[BATCH_ITEMS], hi[BATCH_ITEMS]; /* visible positions, from the split's start */
    float max[BATCH_ITEMS], sum[BATCH_ITEMS];
    const char *k[SPW_SPLIT_TILES], *v[SPW_SPLIT_TILES]; /* this head's halves of the tiles */
    bool streams;                                        /* one group only: fetches ahead */
    struct fetcher fetcher;
    void *q;       /* [n_items][head_dim], what scores_group reads */
    float *scores; /* [n_items][512]; once weighed: p, of the type that values_group reads */
    float *out;    /* [n_items][out_stride] */
};

/* A run of positions of one tile, and a strip of channels, for values_group. */
struct strip {
    const char *v;   /* the head's V half of the tile */
    uint32_t tile;   /* within the split */
    uint32_t lo, hi; /* positions within the tile: whole pairs, or one position of one item */
    uint32_t channel, n_vectors;
};

static bool fetch_next_piece(struct batch *b)
{
    struct fetcher *f = &b->fetcher;
    size_t bytes = spw_tile_head_bytes(b->a->head_dim, b->a->kv_dtype);
    while (f->piece < f->n_pieces) {
        uint32_t of_split = f->piece % (2 * SPW_SPLIT_TILES);
        uint32_t tile = f->piece++ / (2 * SPW_SPLIT_TILES) * SPW_SPLIT_TILES;
        size_t head = b->kv_head + (of_split < SPW_SPLIT_TILES ? 0 : b->a->n_kv_heads);
        tile += of_split % SPW_SPLIT_TILES;
        if (tile < b->a->n_tiles && b->a->tiles[tile]) {
            f->at = (const char *)b->a->tiles[tile] + head * bytes;
            f->end = f->at + bytes;
            return true;
        }
    }
    return false;
}

VEC_FN void fetch_lines(struct batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, b->fetcher.at += FETCH_LINE) {
        if (b->fetcher.at == b->fetcher.end && !fetch_next_piece(b))
            return;
        __builtin_prefetch(b->fetcher.at, 0, 3);
    }
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t greater(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
