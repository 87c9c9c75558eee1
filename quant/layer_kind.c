/* The table of layer kinds: see layer_kind.h. */
#include "quant/layer_kind.h"

static struct spw_window every_key(uint32_t tokens)
{
    (void)tokens;
    return (struct spw_window){0, 1};
}

static struct spw_window newest_keys(uint32_t tokens)
{
    return (struct spw_window){tokens, 1};
}

static struct spw_window own_chunk(uint32_t tokens)
{
    return (struct spw_window){tokens, tokens};
}

const struct spw_layer_kind_row spw_layer_kinds[SPW_LAYER_KINDS] = {
    [SPW_LAYER_FULL] = {.name = "full",
                        .type = "full_attention",
                        .sees = "a query sees every key",
                        .store = SPW_STORE_TILES,
                        .window = every_key},
    [SPW_LAYER_SLIDING] = {.name = "sliding",
                           .type = "sliding_attention",
                           .sees = "a query sees no key past the window",
                           .store = SPW_STORE_TILES,
                           .window = newest_keys},
    [SPW_LAYER_CHUNKED] = {.name = "chunked",
                           .type = "chunked_attention",
                           .sees = "a query sees no key of an earlier chunk",
                           .store = SPW_STORE_TILES,
                           .window = own_chunk},
};
