/* Layer kinds: what a layer stores of the past, one row of a table for each kind.
 *
 * The cache and the executor use the row, or the numbers that the plan made of it (struct
 * spw_residency, offload/kv/waterline.h). Code that moves tiles must not name a kind. */
#ifndef SPW_QUANT_LAYER_KIND_H
#define SPW_QUANT_LAYER_KIND_H

#include <stdbool.h>

enum spw_layer_kind {
    SPW_LAYER_FULL,    /* a query sees every key up to itself */
    SPW_LAYER_SLIDING, /* a query sees the newest `window` keys, itself included */
    SPW_LAYER_KINDS,
};

struct spw_layer_kind_row {
    const char *name;
    const char *type; /* in "layer_types" of config.json */
    const char *sees; /* for people */
    bool windowed;    /* keys that left the window are dropped */
    bool quantizes;   /* old tiles may be stored in a quantized format */
};

extern const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS];

#endif
