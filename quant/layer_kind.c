/* The table of layer kinds: see layer_kind.h. */
#include "quant/layer_kind.h"

const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS] = {
    [SPW_LAYER_FULL] = {.name = "full",
                        .type = "full_attention",
                        .sees = "a query sees every key",
                        .store = SPW_STORE_TILES},
    [SPW_LAYER_SLIDING] = {.name = "sliding",
                           .type = "sliding_attention",
                           .sees = "a query sees no key past the window",
                           .store = SPW_STORE_TILES,
                           .has_window = true},
    [SPW_LAYER_CHUNKED] = {.name = "chunked",
                           .type = "chunked_attention",
                           .sees = "a query sees no key of an earlier chunk",
                           .store = SPW_STORE_TILES,
                           .has_window = true,
                           .is_chunk = true},
    [SPW_LAYER_STATE] = {.name = "state",
                         .type = "linear_attention",
                         .sees = "earlier tokens are summed up in a state of fixed size",
                         .store = SPW_STORE_STATE},
    [SPW_LAYER_NONE] = {.name = "plain",
                        .type = "mlp",
                        .sees = "a token sees itself only",
                        .store = SPW_STORE_NOTHING},
};
