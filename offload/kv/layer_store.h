/* The ways in which a layer can store the past, each as a set of operations. The row of a layer
 * kind names its way (quant/layer_kind.h).
 *
 * tile_store.c: tiles, for all layers with keys and values. state_store.c: states, for layers with
 * a recurrence. Another way is a file like these, an entry of enum spw_layer_store, and a row of
 * spw_layer_stores: code that asks these operations does not change. */
#ifndef SPW_OFFLOAD_KV_LAYER_STORE_H
#define SPW_OFFLOAD_KV_LAYER_STORE_H

#include "offload/kv/kv_cache.h"

/* The frames that one layer of a sequence needs at most, between steps. */
struct spw_store_need {
    uint32_t moving;   /* of what moves between the tiers */
    uint32_t fixed;    /* of what stays on the device beside it */
    uint32_t retained; /* more of them, if the sequence can be cut back to the beginning of its
                          latest pass */
};

/* Kinds of sections of a snapshot. All but TAIL are complete and never change. */
enum spw_snapshot_kind {
    SPW_SNAPSHOT_OLD = 1, /* layers without a window: tiles that move between tiers */
    SPW_SNAPSHOT_SINK,    /* where old tiles are quantized: tile 0, exact */
    SPW_SNAPSHOT_RECENT,  /* where old tiles are quantized: the exact tiles near the end */
    SPW_SNAPSHOT_WINDOW, /* layers with a window: the tiles in the window; with a state: one record,
                            the state */
    SPW_SNAPSHOT_TAIL,   /* every layer: the last tile, which is not complete */
    SPW_SNAPSHOT_LOGITS, /* of no layer: f32 logits after the last token */
};

/* Records [first, end) of a section; empty if first >= end. */
struct spw_snapshot_tiles {
    uint32_t first, end;
};

struct spw_layer_store_ops {
    /* ---- pure: of positions, and of the numbers that the plan gives the layer ---- */

    struct spw_store_need (*need)(const struct spw_residency *r, uint64_t n_tokens);
    /* Whether a sequence can begin with n tokens, a multiple of 128, though no checkpoint has what
     * the layer stores. */
    bool (*begins_at)(const struct spw_residency *r, uint64_t n_tokens);
    /* What a section of this kind has of the layer, if the old tiles before token `from` are stored
     * already and the snapshot ends at token `to`. */
    struct spw_snapshot_tiles (*snapshot)(const struct spw_residency *r,
                                          enum spw_snapshot_kind kind, uint64_t from, uint64_t to);

    /* ---- of one layer of a sequence; errors as in kv_cache.h ---- */

    /* Takes room for tokens [from, to); the layer has `from` tokens. */
    int (*grow)(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to);
    /* The layer of `to`, which is empty, begins with what the layer of `from` stores. */
    int (*share)(struct spw_kv_seq *to, const struct spw_kv_seq *from, uint32_t layer);
    /* Retains what the layer stores now as spw_kv_retain says. */
    void (*retain)(struct spw_kv_seq *seq, uint32_t layer);
    /* Whether the layer still stores what it needs to be cut back to n tokens. */
    bool (*can_cut)(const struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
                    uint64_t n_tokens);
    /* Cuts the layer back to n tokens: 0, or a number for which can_cut is true. */
    int (*cut)(struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
               uint64_t n_tokens);
    void (*release)(struct spw_kv_seq *seq, uint32_t layer); /* the sequence ends */
    /* Records [begin, end) of a section to memory; records from `first` on, up to token `to`, from
     * memory: see spw_kv_export and spw_kv_import in kv_attach.h. */
    int (*export_section)(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t begin, uint32_t end, void *memory);
    int (*import_section)(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t first, uint64_t to, const void *memory);
};

extern const struct spw_layer_store_ops *const spw_layer_stores[SPW_LAYER_STORES];
extern const struct spw_layer_store_ops spw_tile_store;

#endif
