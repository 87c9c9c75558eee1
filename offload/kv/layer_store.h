/* The stores of layers: how a layer stores what it needs of earlier tokens. Each store is a table
 * of operations. The row of a layer kind names its store (quant/layer_kind.h).
 *
 *   tile_store.c    tiles, for all layers with keys and values
 *   state_store.c   states, for layers with a recurrence; and the store of layers without any past
 *
 * A new store needs a file like these, an entry of enum spw_layer_store, and a row of
 * spw_layer_stores. The code that calls the operations does not change. `layer` is a layer of the
 * cache: a slice (kv_cache.h). */
#ifndef SPW_OFFLOAD_KV_LAYER_STORE_H
#define SPW_OFFLOAD_KV_LAYER_STORE_H

#include "offload/kv/kv_cache.h"

/* The most frames that one layer of a sequence needs between steps. */
struct spw_store_need {
    uint32_t moving;   /* for tiles that move between the tiers */
    uint32_t fixed;    /* for tiles that stay on the device */
    uint32_t retained; /* for tiles that are dropped, but needed if the sequence is cut back to the
                          beginning of its latest pass */
};

/* Kinds of sections of a snapshot, which has the part of a session that goes to a file. Sections of
 * all kinds but TAIL and LOGITS have whole tiles, which never change. */
enum spw_snapshot_kind {
    SPW_SNAPSHOT_OLD = 1, /* layers without a window: the tiles that move between tiers */
    SPW_SNAPSHOT_SINK,    /* layers that quantize: tile 0, exact */
    SPW_SNAPSHOT_RECENT,  /* layers that quantize: the newest whole tiles, exact */
    SPW_SNAPSHOT_WINDOW,  /* layers with a window: the whole tiles in the window; layers with a
                             state: one record, the state */
    SPW_SNAPSHOT_TAIL,    /* layers with tiles: the last tile, if it is not full */
    SPW_SNAPSHOT_LOGITS,  /* of no layer: the f32 logits after the last token */
};

/* Records [first, end) of a section, numbered as tiles; empty if first >= end. */
struct spw_snapshot_tiles {
    uint32_t first, end;
};

struct spw_layer_store_ops {
    /* ---- pure functions of positions, and of what the plan gives the layer (r) ---- */

    struct spw_store_need (*need)(const struct spw_residency *r, uint64_t n_tokens);
    /* Whether a sequence can begin with n tokens (a multiple of 128) that come from files with old
     * tiles alone, without a checkpoint of this layer: its next query reads no other tile. */
    bool (*begins_at)(const struct spw_residency *r, uint64_t n_tokens);
    /* The records of this layer in a section of this kind, in a snapshot that ends at token `to`,
     * if earlier snapshots have the old tiles before token `from`. */
    struct spw_snapshot_tiles (*snapshot)(const struct spw_residency *r,
                                          enum spw_snapshot_kind kind, uint64_t from, uint64_t to);

    /* ---- operations on one layer of a sequence; errors as in kv_cache.h ---- */

    /* Makes room for tokens [from, to). The layer has `from` tokens. */
    int (*grow)(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to);
    /* A fork: the layer of `to`, which is empty, begins with what the layer of `from` stores. */
    int (*share)(struct spw_kv_seq *to, const struct spw_kv_seq *from, uint32_t layer);
    /* Retains what the layer stores now: see spw_kv_retain. */
    void (*retain)(struct spw_kv_seq *seq, uint32_t layer);
    /* Whether the layer still has what it needs to be cut back to n tokens. */
    bool (*can_cut)(const struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
                    uint64_t n_tokens);
    /* Cuts the layer back to n tokens: 0, or a number for which can_cut is true. */
    int (*cut)(struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
               uint64_t n_tokens);
    void (*release)(struct spw_kv_seq *seq, uint32_t layer); /* the sequence ends */
    /* export: copies records [begin, end) of a section to memory. import: copies the records from
     * number `first` to token `to` from memory. See spw_kv_export and spw_kv_import in kv_attach.h.
     */
    int (*export_section)(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t begin, uint32_t end, void *memory);
    int (*import_section)(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t first, uint64_t to, const void *memory);
};

extern const struct spw_layer_store_ops *const spw_layer_stores[SPW_LAYER_STORES];
extern const struct spw_layer_store_ops spw_tile_store;

#endif
