/* The table of layer kinds: see layer_kind.h. */
#include "quant/layer_kind.h"

const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS] = {
    [SPW_LAYER_FULL] = {.name = "full",
                        .type = "full_attention",
                        .sees = "a query sees every key",
                        .quantizes = true},
    [SPW_LAYER_SLIDING] = {.name = "sliding",
                           .type = "sliding_attention",
                           .sees = "a query sees no key past the window",
                           .windowed = true},
    [SPW_LAYER_CHUNKED] = {.name = "chunked",
                           .type = "chunked_attention",
                           .sees = "a query sees no key of an earlier chunk",
                           .windowed = true,
                           .steps = true},
};
