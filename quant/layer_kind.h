/* Layer kinds: what a layer stores of the past, one row of a table for each kind.
 *
 * The cache and the executor use the row, or the numbers that the plan made of it (struct
 * spw_residency, offload/kv/waterline.h). Code that moves tiles must not name a kind. */
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

struct spw_layer_kind_row {
    const char *name;
    const char *type; /* in "layer_types" of config.json */
    const char *sees; /* for people */
    bool windowed;    /* keys that no later query sees are dropped */
    bool steps;       /* the window moves by its own size */
    bool quantizes;   /* old tiles may be stored in a quantized format */
};

extern const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS];

/* The window of a layer of this kind, of a model whose windows have this size. */
static inline struct spw_window spw_layer_window(enum spw_layer_kind kind, uint32_t tokens)
{
    const struct spw_layer_kind_row *row = &spw_layer_kinds[kind];
    struct spw_window window = {row->windowed ? tokens : 0, row->steps ? tokens : 1};
    return window;
}

#endif
