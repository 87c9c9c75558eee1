/* Rows and columns that GGUF files have in another order than folders. Pure. */
#ifndef SPW_MODEL_QUANTIZE_ORDER_H
#define SPW_MODEL_QUANTIZE_ORDER_H

#include "model/config/config.h"

/* All zero: as in the folder. */
struct spw_gguf_order {
    /* Rows of heads of so many channels, in which i and i + head_dim / 2 follow each other. */
    uint64_t head_dim;
    /* Rows, or columns, from tile_first on are those of value heads, `tile` of each. Those that use
     * the same key head follow each other in the folder only (struct spw_mixer_config, tiled). */
    uint64_t tile, tile_first;
    bool columns;
    /* Rows [q k v z] of a key head after the other become q, k, v and z: from this one of them on.
     */
    bool ungrouped;
    uint64_t ungrouped_first;
};

/* That of a tensor of a gated delta net, by its usual name (model/weights/tensor_names.h). */
void spw_gguf_order_delta(struct spw_gguf_order *o, const struct spw_mixer_config *m,
                          const char *name, bool tiles);
/* The row of the folder that is row r of the file, and the same for columns. */
uint64_t spw_gguf_order_row(const struct spw_gguf_order *o, const struct spw_mixer_config *m,
                            uint64_t r);
uint64_t spw_gguf_order_column(const struct spw_gguf_order *o, const struct spw_mixer_config *m,
                               uint64_t i);
static inline bool spw_gguf_order_has_rows(const struct spw_gguf_order *o)
{
    return o->head_dim || (o->tile && !o->columns) || o->ungrouped;
}

#endif
