/* Layer kinds: what a layer stores of the past, one row of a table for each kind.
 *
 * Only the code that reads and writes names of kinds may name one. All other code asks a row, or
 * the numbers that the plan made of it (struct spw_residency, offload/kv/waterline.h). A row says
 * how a layer stores the past; offload/kv/layer_store.h has the operations for each way. */
#ifndef SPW_QUANT_LAYER_KIND_H
#define SPW_QUANT_LAYER_KIND_H

#include "base/base.h"

enum spw_layer_kind {
    SPW_LAYER_FULL,    /* a query sees every key up to itself */
    SPW_LAYER_SLIDING, /* a query sees the newest `window` keys, itself included */
    SPW_LAYER_CHUNKED, /* positions are cut into chunks of `window`; a query sees the keys of its
                          own chunk up to itself */
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
    SPW_LAYER_STORES,
};

struct spw_layer_kind_row {
    const char *name;
    const char *type; /* in "layer_types" of config.json */
    const char *sees; /* for people */
    enum spw_layer_store store;
    /* What a query sees in a model whose windows have this size. Keys that no later query sees are
     * dropped. A layer whose queries see every key may store old tiles in a quantized format. */
    struct spw_window (*window)(uint32_t tokens);
};

extern const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS];

static inline struct spw_window spw_layer_window(enum spw_layer_kind kind, uint32_t tokens)
{
    return spw_layer_kinds[kind].window(tokens);
}

static inline bool spw_layer_has_window(enum spw_layer_kind kind)
{
    return spw_layer_window(kind, 1).tokens;
}

#endif
