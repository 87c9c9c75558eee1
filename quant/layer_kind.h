/* Layer kinds: which earlier keys a query of a layer sees, and how the layer stores keys and
 * values. One row of a table for each kind.
 *
 * Only code that parses or prints the names of kinds uses the constants SPW_LAYER_FULL and so on.
 * All other code asks a row, or the numbers that the plan made of it (struct spw_residency,
 * offload/kv/waterline.h). offload/kv/layer_store.h has the operations for each way of storing. */
#ifndef SPW_QUANT_LAYER_KIND_H
#define SPW_QUANT_LAYER_KIND_H

#include "base/base.h"

enum spw_layer_kind {
    SPW_LAYER_FULL,    /* a query sees every key up to itself */
    SPW_LAYER_SLIDING, /* a query sees the newest `window` keys, itself included */
    SPW_LAYER_CHUNKED, /* positions are cut into chunks of `window`; a query sees the keys of its
                          own chunk up to itself */
    /* The kinds above have keys and values, those below have none. */
    SPW_LAYER_STATE, /* no attention: rows are summed up in a state of fixed size */
    SPW_LAYER_NONE,  /* a row sees itself only */
    /* Of models with an encoder: */
    SPW_LAYER_SOURCE, /* a row of the source sees all its rows; nothing stays of them */
    SPW_LAYER_CROSS,  /* a query sees all rows of the source, in tiles that are written once */
    SPW_LAYER_KINDS,
};

/* Which keys a query sees, itself included: at most the newest `tokens`, from a multiple of `step`
 * on. A sliding window has a step of 1. In a chunked layer the step is the chunk, and so is the
 * window. tokens 0: every key. */
struct spw_window {
    uint32_t tokens, step;
};

/* The oldest key that a query at `position` sees. It never falls when `position` rises. */
SPW_INLINE uint64_t spw_window_first(struct spw_window w, uint64_t position)
{
    uint64_t oldest = w.tokens ? spw_sub_u64(position + 1, w.tokens) : 0;
    return w.step > 1 ? spw_div_up(oldest, w.step) * w.step : oldest;
}

/* How a layer stores the past. */
enum spw_layer_store {
    SPW_STORE_TILES, /* keys and values of positions, in tiles (quant/tile.h) */
    SPW_STORE_STATE, /* numbers of a fixed size, in f32 */
    SPW_STORE_NOTHING,
    SPW_LAYER_STORES,
};

struct spw_layer_kind_row {
    const char *name;
    const char *type; /* in "layer_types" of config.json */
    const char *sees; /* for people */
    enum spw_layer_store store;
    /* Keys that no later query sees are dropped. A layer whose queries see every key may store old
     * tiles in a quantized format. is_chunk: the window moves by its own size. */
    bool has_window, is_chunk;
    bool of_source; /* queries see rows of the source: all of them, and no others */
};

extern const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS];

static inline bool spw_layer_has_tiles(enum spw_layer_kind kind)
{
    return spw_layer_kinds[kind].store == SPW_STORE_TILES;
}

static inline bool spw_layer_has_window(enum spw_layer_kind kind)
{
    return spw_layer_kinds[kind].has_window;
}

static inline bool spw_layer_sees_source(enum spw_layer_kind kind)
{
    return spw_layer_kinds[kind].of_source;
}

/* What a query sees in a model whose windows have this size. */
static inline struct spw_window spw_layer_window(enum spw_layer_kind kind, uint32_t tokens)
{
    const struct spw_layer_kind_row *row = &spw_layer_kinds[kind];
    struct spw_window w = {row->has_window ? tokens : 0, row->is_chunk ? tokens : 1};
    return w; /* C++ has no compound literals */
}

#endif
