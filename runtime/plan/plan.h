/* The plan says where everything will lie, before any memory is taken. It is a pure function of the
 * model's sizes, the options and the budgets. The executor only carries it out.
 *
 * -ENOMEM: a budget is too small; plan.info.smallest_*_bytes then say which budgets would do.
 * -EDQUOT: the disk write limit is too small. */
#ifndef SPW_RUNTIME_PLAN_PLAN_H
#define SPW_RUNTIME_PLAN_PLAN_H

#include "model/weights/weights.h"
#include "offload/kv/layer_store.h"
#include "prefetch/expert_residency.h"
#include "runtime/plan_query.h"
#include "runtime/rules/draft_length.h"
#include "runtime/rules/host_rows.h"
#include "runtime/rules/shared_prompt.h"

struct spw_plan_input {
    const struct spw_weights *weights;
    enum spw_dtype compute, kv;
    bool quantizes;                  /* old tiles of full layers, */
    enum spw_kv_precision precision; /* to this precision */
    uint32_t residual_tiles;         /* the newest tiles that are read exactly */
    uint64_t context;
    uint32_t sessions;
    uint32_t full_sessions;   /* of these, as long as the context at a time; 0: all */
    uint32_t prefill_chunk;   /* 0: choose */
    uint32_t prefetch_slots;  /* 0: choose */
    uint32_t prefetch_splits; /* of one KV slot; 0: choose */
    union {
        struct {
            uint64_t device_bytes, host_bytes, disk_bytes; /* disk_bytes 0: no disk */
        };
        uint64_t budgets[SPW_BUDGETS]; /* the same */
    };
    uint64_t drafter_bytes[SPW_BUDGETS]; /* of the draft model, which were taken off the budgets */
    uint64_t disk_write_limit;           /* 0: none */
    uint64_t disk_ring_bytes;            /* bytes of disk reads that should be under way together */
    uint32_t disk_cost;           /* bytes that cross the link while the disk reads one; 0: 1 */
    bool attaches;                /* sessions may read tiles from files of other sessions */
    bool kv_stays;                /* all KV must stay on the device */
    uint64_t workspace_bytes;     /* for products, all workers together */
    uint32_t attention_tiles;     /* the most tiles of one attention call */
    uint64_t codes_row_bytes;     /* of a row of spw_linear_args.codes; 0: no product needs codes */
    bool gated_scratch;           /* gated products need their scratch */
    uint64_t transfer_cost_bytes; /* see spw_backend */
    uint32_t reads_per_link_byte; /* see spw_backend; 0: no transfer is hidden beside weights */
    bool reads_host_memory;       /* see spw_backend */
    bool rolls_back;              /* as in spw_options */
    uint32_t draft_rows;          /* rows of logits of drafts in one step */
    bool has_snapshots;           /* tiles go to files and come from files */
    uint64_t snapshot_rows;       /* with `has_snapshots`, the most rows of a pass; 0: any number */
    struct spw_host_rates host_rates; /* zeros: unknown, or the host multiplies nothing */
    uint32_t host_rows;               /* as in struct spw_plan, where experts move, */
    uint32_t host_layer_rows;         /* and where layers do not fit */
    uint64_t host_workspace_bytes;    /* for products of the host, all workers together */
};

static inline void spw_plan_set_precision(struct spw_plan_input *in,
                                          enum spw_kv_precision precision)
{
    in->precision = precision;
    in->quantizes = precision != SPW_KV_EXACT;
}

/*   device arena                              host arena
 *   | small | workspace | hidden | x, codes | | hidden | staging | logits rows |
 *   | qkv, attention, state  or  gate_up,     | logits of sessions, of drafts | flags |
 *     gated  or  logits |                      | piece | experts | host lane | expert tables |
 *   | embedding | inputs | source tiles | MTP |
 *   | experts |                                 | copies | weight bounce slots |
 *   | rows | flags | states | kept rows |       | expert bounce slots | states | checkpoints |
 *   | copied blocks | weight slots |           | KV frames | bounce slots |
 *   | expert frames | KV frames |
 *   | exact frames | KV slots |
 * Byte offsets, each a multiple of 4096. gate_up is empty without gated_scratch. Mapped weights
 * count as device memory but lie in no arena. KV comes last: plan_replan.c divides it anew and
 * leaves everything else where it is.
 *
 * KV frames hold tiles that move between tiers. These tiles are exact (quant/tile.h), or quantized
 * where the plan quantizes. Then exact frames hold all exact tiles. A frame has room for the
 * largest tile. Where layer kinds have other shapes of keys and values, slices (struct
 * spw_kv_shape) make their tiles about equal; a tile that is smaller leaves a part of its frame
 * unused, and that part moves with it. `hidden` and `staging` have room for the rows of a step that
 * runs beside one that was paused; so have `embedding` and `inputs`, which models with
 * layer_inputs have. The device's states are those of all sessions and layers, if they stay there;
 * else they lie on the host, and the device has one a session. In place of the buffers of attention
 * a layer with a state has state_in to state_out; beside them, where a layer has both.
 */

/* What the layers with experts need of all rows of a pass, in either arena: see
 * runtime/step/experts.h. The host has no x and no y. Then come the rows of a pass that runs beside
 * one that was paused. */
struct spw_plan_experts {
    uint64_t x, y, dense, choices, places, index, scores, addresses;
};

/* The newest rows of a session that the MTP layer may need: those of a step with drafts, and the
 * one before. */
enum { SPW_MTP_KEPT = SPW_DRAFT_MOST + 2 };

/* What the host needs for its products: see runtime/step/host_products.h. small: the array of that
 * name, if they have biases. */
struct spw_plan_host_lane {
    uint64_t x, y, rows, gate_up, gated, codes, workspace, small;
};

struct spw_plan_device {
    uint64_t small, workspace, hidden, hidden_beside, x, codes, qkv, attention, state;
    uint64_t attention_gate, state_in, state_conv, state_rates, state_out;
    uint64_t gate_up, gated, embedding, inputs, states, kept_rows;
    uint64_t source_tiles; /* of the sources of a pass, in the encoder layer that it is in */
    struct spw_plan_experts experts;
    /* Of the MTP layer: [sessions][SPW_MTP_KEPT] rows of what the last norm gives, and a row of
     * zeros; [chunk + 1] rows; and [chunk] rows of twice the width. */
    uint64_t mtp_kept, mtp_rows, mtp_joined;
    uint64_t split_states, rows, logits, flags, weights, weight_slots, expert_frames, kv_frames;
    uint64_t exact_frames, kv_slots, end;
};

struct spw_plan_host {
    uint64_t hidden, staging, staging_beside, mtp_staging, mtp_staging_beside, logits,
        session_logits, draft_logits, flags, piece;
    uint64_t packed;
    uint64_t weight_bounce, expert_bounce, states, checkpoints, kv_frames, bounce, end;
    struct spw_plan_experts experts;
    struct spw_plan_host_lane lane;
    uint64_t expert_tables; /* of struct spw_expert_residency */
};

struct spw_plan {
    struct spw_plan_info info;
    /* Of each session, if info.full_sessions are open and as long as the context: see shares.h. */
    struct spw_residency residency[SPW_LAYER_KINDS];
    enum spw_layer_kind full_kind, window_kind; /* as in struct spw_model_config */
    /* Of each layer kind, counted over its layers: slices that the cache stores; slices that layers
     * read, also of other layers; and the slices of one layer. */
    uint32_t n_slices[SPW_LAYER_KINDS], n_readers[SPW_LAYER_KINDS], layer_slices[SPW_LAYER_KINDS];
    /* The most slices that hold new tiles at the same time; and of those, slices of full layers. */
    uint32_t n_growing, n_full_growing;
    bool holds_tiles; /* layers read tiles of other layers: tiles stay on the device from the first
                         chunk of the layer that stores them to the last chunk of the last layer
                         that reads them */
    bool quantizes;   /* old tiles of some layers, to `format` */
    uint32_t chunk;   /* most rows that pass a layer together */
    uint64_t pass_rows;       /* most rows of one pass through all layers */
    bool hidden_on_host;      /* hidden states of a pass with several chunks lie on the host */
    uint32_t logits_rows;     /* rows of the head's product */
    uint32_t parallel_splits; /* splits of rows that run side by side in an attention call */
    uint32_t max_tiles;       /* of one slice of one sequence */
    uint32_t full_tiles;      /* of those, in a full layer, the tiles that move between tiers */
    uint32_t slot_tiles;      /* of a KV slot: whole splits */
    uint64_t tile_bytes;      /* of a tile that moves between tiers */
    uint64_t
        exact_tile_bytes;    /* of an exact tile beside those, and the device's frames for them; */
    uint32_t n_exact_frames; /* 0: nothing is quantized */
    enum spw_qformat format; /* of quantized tiles */
    uint32_t n_source_tiles; /* at device.source_tiles, of exact_tile_bytes each; 0: no encoder */
    uint64_t hidden_row_bytes;
    uint64_t inputs_row_bytes; /* of what all layers get of a row beside its embedding */
    uint32_t draft_rows;       /* as in struct spw_plan_input */
    uint32_t rows_beside; /* rows of a pass beside a step that was paused; 0: one session only */
    uint64_t piece_bytes; /* of what goes to files at a time; 0: nothing does */
    uint64_t weight_slot_bytes, weight_bounce_bytes; /* of a weight slot; of its bounce slot */
    /* Bytes of resident blocks: copied into the arena; computed from the mapped file. Bytes of
     * blocks in host memory: packed copies; streamed blocks that stay mapped between two uses. */
    uint64_t copied_bytes, mapped_bytes, packed_bytes, page_cache_bytes;
    /* Bytes of experts alone, if all are resident. */
    uint64_t expert_copied_bytes, expert_mapped_bytes, expert_packed_bytes;
    /* Else some are in frames on the device (prefetch/expert_pool.h); the first n_disk_experts come
     * from the disk, the others from the host. 0 frames: all are resident. */
    uint32_t n_expert_frames, n_disk_experts;
    uint32_t n_expert_slots;  /* experts on their way to frames */
    uint32_t n_expert_bounce; /* bounce slots on the host, of expert_frame_bytes */
    /* The rows of a pass that finds its experts by a table on the device, at most: all experts are
     * resident, and the host need not know the choices. 0: none does. */
    uint32_t routed_rows;
    /* A pass of so many rows, at most, has its missed experts multiplied where they lie, in host
     * memory. 0: they cross the link in every pass. The same of the matrices of layers; and how
     * many of the blocks in host memory cross the link all the same. */
    uint32_t host_rows, host_layer_rows, n_link_blocks;
    struct spw_host_rates host_rates;
    /* Bytes of streamed blocks that each pass moves: from the host to the device; from the disk. Of
     * the former, those that the host can read instead, in passes of host_layer_rows rows. And what
     * a source moves besides, of the encoder's blocks. */
    uint64_t streamed_bytes, disk_read_bytes, host_read_bytes;
    uint64_t source_streamed_bytes, source_disk_bytes;
    /* Tiles that windows have left behind since the latest prompt stay on the device: the frames
     * are counted so that they can; there are enough frames. */
    bool may_retain, retains;
    /* Layers with a state; bytes of the state of one layer of one session, whole pages; whether the
     * states stay on the device; and the checkpoints that the host and the disk have room for. */
    uint32_t n_states;
    uint64_t state_bytes;
    bool states_stay;
    uint32_t n_checkpoints, n_disk_checkpoints;
    /* The most rows of a step with drafts that a layer with a state keeps of a session; bytes of
     * what its products make of them, and of those and its rates. 0: such a step has no drafts. */
    uint32_t kept_rows;
    uint64_t kept_in_bytes, kept_bytes;
    bool reads_host_memory;
    bool disk_to_device; /* the disk reads into device memory and writes from it */
    uint32_t new_frames; /* of n_device_frames: see struct spw_plan_need */
    uint32_t n_device_frames, n_host_frames, n_kv_slots, n_weight_slots, n_resident_blocks;
    uint32_t n_disk_blocks;   /* places among the streamed blocks; see struct spw_block_place */
    uint32_t n_weight_bounce; /* n_weight_slots, or 0: no block bounces */
    uint32_t n_transit;       /* of n_host_frames: for tiles on their way to disk */
    uint32_t n_bounce;        /* bounce slots of the KV ring on the host; slot_tiles each */
    uint32_t n_disk_frames;   /* 0: no scratch file is needed */
    bool attaches;     /* as in the input: tiles are read from disk even without disk frames */
    uint32_t disk_run; /* disk frames of one slice of one session */
    struct spw_plan_device device;
    struct spw_plan_host host;
};

/* The table of addresses of experts: [gate, up, down][experts of all layers]. */
static inline uint64_t spw_plan_addresses_bytes(const struct spw_plan *p,
                                                const struct spw_weights *w)
{
    return p->routed_rows ? (uint64_t)w->n_expert_blocks * SPW_EXPERT_MATRICES * sizeof(void *) : 0;
}

/* Of host.expert_tables. It does not depend on the number of frames: more device memory never needs
 * more host memory. */
uint64_t spw_plan_expert_tables_bytes(const struct spw_plan *p, const struct spw_weights *w);

/* Of the flag that a pass reads after its layers: were all quantized values and states finite? */
static inline uint64_t spw_plan_flags_bytes(const struct spw_plan *p)
{
    return p->quantizes || p->n_states ? sizeof(uint32_t) : 0;
}

/* Whether prompts are cut at their borders (runtime/rules/cut.h): a chunk more costs little where
 * it reads no tiles again. */
static inline bool spw_plan_cuts_at_borders(const struct spw_plan *p)
{
    return p->n_checkpoints && !p->n_kv_slots;
}

/* All states of a session. */
static inline uint64_t spw_plan_session_states(const struct spw_plan *p)
{
    return p->n_states * p->state_bytes;
}

/* Whether a pass multiplies in host memory the experts that it misses. */
static inline bool spw_plan_computes_on_host(const struct spw_plan *p, uint64_t rows)
{
    return rows <= p->host_rows;
}

/* Of a row that experts read, or give. */
uint64_t spw_plan_expert_row_bytes(const struct spw_plan *p, const struct spw_weights *w);

static inline bool spw_plan_routes_on_device(const struct spw_plan *p, uint64_t rows)
{
    return rows <= p->routed_rows;
}

/* Slices of layers that see every key; below, of those with a window. */
static inline uint64_t spw_plan_n_full(const struct spw_plan *p)
{
    return p->n_slices[p->full_kind];
}

static inline uint64_t spw_plan_n_windowed(const struct spw_plan *p)
{
    return p->n_slices[p->window_kind];
}

/* Whether weight blocks come from their files. */
static inline bool spw_plan_reads_weights(const struct spw_plan *p)
{
    return p->disk_read_bytes + p->source_disk_bytes > 0;
}

/* Whether drafts of the MTP layer need no transfer: those for the step that follows can be under
 * way meanwhile. */
static inline bool spw_plan_drafts_in_place(const struct spw_plan *p, const struct spw_weights *w)
{
    return !p->n_kv_slots &&
           p->n_resident_blocks + spw_config_main_layers(w->config) >= w->n_blocks;
}

/* How sessions may begin with tokens of other sessions. They can begin only at a checkpoint where
 * old tiles are quantized, or where tiles that a window has left behind are gone. */
struct spw_sharing spw_plan_sharing(const struct spw_plan *p);
/* The tiles that a section of this kind of a file has of a slice with this residency, if the old
 * tiles before token `from` are stored already and the snapshot ends at token `to`. */
static inline struct spw_snapshot_tiles spw_plan_snapshot_tiles(const struct spw_residency *r,
                                                                enum spw_snapshot_kind kind,
                                                                uint64_t from, uint64_t to)
{
    return spw_layer_stores[r->store]->snapshot(r, kind, from, to);
}
/* Of a record of such a section, of a slice of this layer kind. */
static inline uint64_t spw_plan_record_bytes(const struct spw_plan *p, uint32_t layer_kind,
                                             enum spw_snapshot_kind kind)
{
    return p->residency[layer_kind].store == SPW_STORE_STATE ? p->state_bytes
           : kind == SPW_SNAPSHOT_OLD                        ? p->tile_bytes
                                                             : p->exact_tile_bytes;
}
/* The bytes that publishing a session of n tokens in an empty prefix cache writes. */
uint64_t spw_plan_publish_bytes(const struct spw_plan *p, uint64_t n);

/* What a slice of a layer of this kind needs for n tokens; zeros if no layer is of this kind. */
struct spw_store_need spw_plan_slice_need(const struct spw_plan *p, uint32_t kind,
                                          uint64_t n_tokens);

int spw_plan_make(struct spw_plan *out, const struct spw_plan_input *in, struct spw_error *err);
/* Divides KV anew inside the arenas of `from`, for other budgets or another precision. Everything
 * else stays as it is. n_on_disk: tiles that lie on disk now. -ENOMEM or -EDQUOT: there is no such
 * plan. */
int spw_plan_replan(struct spw_plan *out, const struct spw_plan *from,
                    const struct spw_plan_input *in, uint32_t n_on_disk);
/* Whether two plans of one model take the same memory and divide it alike. */
bool spw_plan_same_layout(const struct spw_plan *a, const struct spw_plan *b);
/* Whether the plan b has the same advantages as a, and a step takes at most a hundredth longer. */
bool spw_plan_is_as_good(const struct spw_plan *a, const struct spw_plan_input *of_a,
                         const struct spw_plan *b, const struct spw_plan_input *of_b);
/* The plan p of `in` has no rows of logits for drafts. Makes it again with `most` of them, or with
 * a half, a quarter, ..., if it stays as good; else changes nothing. */
enum { SPW_PLAN_LEAST_DRAFT_ROWS = 4 };
void spw_plan_add_draft_rows(struct spw_plan *p, struct spw_plan_input *in, uint32_t most);
/* Fills in info->smallest_*_bytes, each beside the other budgets as given. If no amount would do
 * beside these, then beside the smallest other budgets that work at all. */
void spw_plan_smallest(struct spw_plan_info *info, const struct spw_plan_input *in);
/* Where a weight block lies and comes from. Resident blocks are spread evenly: streamed blocks
 * cross the link while resident ones compute. With an MTP layer, this layer and the head are
 * resident first; with an encoder, the decoder and the head. The n_disk_blocks places of blocks
 * from disk are spread alike: those that are resident first come from disk last. */
struct spw_block_place {
    bool resident, mapped; /* mapped: resident without a copy, computed from the mapped file */
    /* Read from a packed copy in the host arena: blocks that are stored in another type, and blocks
     * that are streamed from host memory to a device that cannot read the mapped file. */
    bool packed;
    /* Streamed from the file itself, around the page cache, because the host has no room. A block
     * that is stored in another type has a packed copy in such a place, too. */
    bool from_disk;
    bool as_in_file; /* the disk would read it into its slot, where its matrices lie as in the file
                      */
    /* Bytes that cross the link each time the block is loaded, or once if it is resident; and bytes
     * that are read from disk. */
    uint64_t moved_bytes, disk_bytes;
    uint32_t host_rows; /* passes of so many rows multiply the layer's matrices in host memory */
};
struct spw_block_place spw_plan_block(const struct spw_plan *p, const struct spw_weights *w,
                                      uint32_t block);
struct spw_expert_shape spw_plan_expert_shape(const struct spw_weights *w);
/* Adds the bytes that a missed expert of a visit moves. rows: of the pass. Where the host
 * multiplies it, its outputs cross the link, and its weights only if it gets a frame. */
void spw_plan_add_missed(const struct spw_plan *p, const struct spw_weights *w,
                         const struct spw_expert_visit *v, uint64_t rows,
                         uint64_t moved[SPW_MOVED_COUNT]);
/* plan_account.c: what p->info tells of one session alone, of a prompt that fills the context and
 * of a decode step at its end: prefill_moved_bytes, decode_moved_bytes (without missed experts),
 * decode_slot_bytes and waterlines.disk_end; and what such a step computes and reads:
 * decode_read_bytes to decode_products, decode_weights, decode_quantized_weights, n_expert_layers
 * and n_experts_kept. Times are predicted from these. */
void spw_plan_count_moved(struct spw_plan *p, const struct spw_weights *w);
void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w);
/* How large a slot must be for any block, wherever the block comes from. */
void spw_plan_size_blocks(struct spw_plan *p, const struct spw_weights *w);

#endif
