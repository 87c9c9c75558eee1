/* The parts of a plan; pure functions, for this folder and its test only.
 *
 *     candidate --spw_plan_lay_out--> plan --spw_plan_cost--> cost
 *
 * plan_search.c walks candidates and takes the cheapest one that fits. budgets.c walks them and
 * takes the one that needs the fewest bytes. plan_layout.c says where everything of a candidate
 * lies, plan_blocks.c where weight blocks lie, plan_kv.c what tiles need and cost, lower_tiers.c
 * what host and disk hold of them. */
#ifndef SPW_RUNTIME_PLAN_PLAN_PARTS_H
#define SPW_RUNTIME_PLAN_PLAN_PARTS_H

#include "runtime/plan/plan.h"

enum {
    SPW_PLAN_MOST_FRAMES = INT32_MAX,
    SPW_PLAN_SLOTS = 3, /* of KV: one is read, one is filled, one waits for its release */
};

static inline uint64_t spw_plan_pages(uint64_t bytes)
{
    return spw_align_up(bytes, 4096);
}

/* Sessions as long as the context for which there is memory; and whether there may be more sessions
 * than that (shares.h). */
static inline uint64_t spw_plan_full_sessions(const struct spw_plan_input *in)
{
    return in->full_sessions ? spw_min_u64(in->full_sessions, in->sessions) : in->sessions;
}
static inline bool spw_plan_pools(const struct spw_plan_input *in)
{
    return spw_plan_full_sessions(in) < in->sessions;
}

/* The least rows of a pass: all of a source pass together. */
static inline uint64_t spw_plan_least_rows(const struct spw_plan_input *in)
{
    return in->weights->config->n_source_layers ? in->context : 1;
}

/* The most rows of one pass. A prompt that is interrupted keeps what has passed all layers. So
 * where tiles may go to files, a pass has at most snapshot_rows rows, which take about a minute.
 * With experts, the device has buffers for all rows of a pass, and several for each row. */
enum { SPW_PLAN_EXPERT_ROWS = 4096 };
static inline uint64_t spw_plan_most_rows(const struct spw_plan_input *in)
{
    uint64_t all = spw_max_u64(spw_plan_full_sessions(in) * in->context, in->sessions);
    if (in->weights->n_expert_blocks)
        all = spw_min_u64(all, spw_max_u64(SPW_PLAN_EXPERT_ROWS, in->sessions));
    if (in->has_snapshots && in->snapshot_rows)
        all = spw_min_u64(all, in->snapshot_rows);
    return spw_max_u64(all, spw_plan_least_rows(in));
}

/* ---- a candidate ---- */

/* Where the hidden states of a pass lie between two layers. */
enum spw_plan_hidden {
    SPW_HIDDEN_ON_DEVICE, /* all rows of a pass */
    SPW_HIDDEN_ON_HOST,   /* two chunks on the device, the rows of a pass on the host */
    SPW_HIDDEN_ONE_CHUNK, /* one chunk on the device; a pass has one chunk */
};

/* The free decisions of a plan. All other numbers of the plan follow from them and the budgets. */
struct spw_candidate {
    bool retains;         /* sessions can be cut back to the beginning of their latest pass */
    bool kv_stays;        /* all KV on the device, and no ring */
    bool copies_on_host;  /* all of them; else the disk holds as many as it has room for */
    uint32_t logits_rows; /* of the head's product */
    uint32_t chunk;
    enum spw_plan_hidden hidden;
    uint32_t n_resident;          /* weight blocks on the device */
    bool experts_move;            /* not all experts are on the device */
    bool states_move;             /* states lie on the host */
    uint32_t n_disk;              /* places of the other blocks that come from disk */
    uint32_t passes;              /* of the longest prompt at most, but for ONE_CHUNK */
    uint32_t n_slots, slot_tiles; /* the KV ring */
};

/* What the plan costs: numbers in the order of their weight. Fewer is better, and a number counts
 * only where all numbers before it are equal. */
enum spw_plan_cost_key {
    SPW_COST_NOT_RETAINED, /* 1: tiles are not retained, though they may */
    SPW_COST_BYTES,        /* the time of a decode step, as bytes of the link: see plan_search.c */
    SPW_COST_ROWS,         /* that a pass lacks of the longest one */
    SPW_COST_ROWS_ON_HOST, /* 1: hidden states lie on the host */
    SPW_COST_KEYS,
};

struct spw_plan_cost {
    uint64_t key[SPW_COST_KEYS];
};

/* ---- plan_search.c ---- */

/* The candidate that needs least of every tier, but for the decisions that trade one tier for
 * another: chunk, kv_stays, n_resident, n_disk, copies_on_host. */
struct spw_candidate spw_plan_narrow(const struct spw_plan_input *in);
/* The cheapest candidate that fits, with the narrowest KV ring. One must fit: spw_budgets_work. */
void spw_plan_search(struct spw_plan *out, struct spw_candidate *chosen,
                     const struct spw_plan_input *in);
/* Candidates have chunks of `least` rows, twice as many, and so on up to `most`. */
struct spw_plan_chunks {
    uint32_t least, most;
};
struct spw_plan_chunks spw_plan_chunks(const struct spw_plan_input *in);
/* The most passes that candidates have: with one more, a pass would have one chunk. */
uint32_t spw_plan_most_passes(const struct spw_plan_input *in, uint32_t chunk);
/* What a decode step costs the link beside what is hidden, with its share of a prompt. */
uint64_t spw_plan_step_cost(const struct spw_plan *p, const struct spw_plan_input *in);
struct spw_plan_cost spw_plan_cost(const struct spw_plan *p, const struct spw_plan_input *in);
bool spw_plan_cheaper(const struct spw_plan_cost *a, const struct spw_plan_cost *b);

/* ---- lower_tiers.c ---- */

/* The most tiles of one slice of one session that have a copy in a lower tier. */
struct spw_lower {
    uint32_t full, sliding;
    uint32_t shared_most; /* of a sliding layer whose tiles other sessions share and hold longer */
    uint32_t all;         /* how many ranks there are */
};

/* Of a session that holds at most these tiles in a slice of each kind, with this residency.
 * chunked: its prompt may pass a layer in several chunks. shares_tiles: with other sessions. */
void spw_lower_of(struct spw_lower *b, const struct spw_plan *p,
                  const struct spw_residency kinds[SPW_LAYER_KINDS], uint32_t full_tiles,
                  uint32_t window_tiles, bool chunked, bool shares_tiles);
/* The same of a session as long as the context, with the residency of the plan. */
void spw_lower_count(struct spw_lower *b, const struct spw_plan *p,
                     const struct spw_plan_input *in);
/* Host frames of the first n ranks of one session; and the most ranks that these frames hold. */
uint64_t spw_lower_host_frames(const struct spw_lower *b, const struct spw_plan *p, uint32_t n);
uint32_t spw_lower_most_ranks(const struct spw_lower *b, const struct spw_plan *p, uint64_t frames);
/* The first n ranks lie on the host. */
void spw_lower_set_host(struct spw_residency kinds[SPW_LAYER_KINDS], const struct spw_plan *p,
                        const struct spw_lower *b, uint32_t n);
/* The least n with which the disk has room for the other ranks. */
uint32_t spw_lower_least(const struct spw_lower *b, const struct spw_plan *p,
                         const struct spw_plan_input *in);
/* Places n ranks on the host, with the smallest buffers between host and disk. */
void spw_lower_place(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                     uint32_t n);
/* Spends `room` more bytes of the host: first on larger buffers, then on more ranks than n. */
void spw_lower_grow(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                    uint32_t n, uint64_t room);

/* ---- plan_kv.c ---- */

/* Sets the numbers of each layer kind that no candidate changes. p: its slices are counted. */
void spw_plan_start_kinds(struct spw_plan *p, const struct spw_plan_input *in);

/* Frames of tiles that move between tiers. */
struct spw_plan_need {
    uint64_t extra;        /* for the tiles that one chunk adds to a layer; or, where tiles are
                              held, one pass to several layers */
    uint64_t all;          /* with everything on the device, whatever sessions are open */
    uint64_t whole;        /* the same of full_sessions that are as long as the context */
    uint64_t least;        /* one tile a slice and session */
    uint32_t window_tiles; /* of a slice of a sliding layer */
};

struct spw_plan_need spw_plan_kv_need(const struct spw_plan *p, const struct spw_plan_input *in);
/* Frames for every tile that moves between tiers, whatever sessions are open (shares.h). */
uint64_t spw_plan_all_tiles(const struct spw_plan *p, const struct spw_plan_input *in);
uint32_t spw_plan_exact_frames(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_exact_bytes(const struct spw_plan *p);
/* Rows of logits of a decode step: the head is read once for them. */
static inline uint32_t spw_plan_decode_logits(const struct spw_plan_input *in)
{
    return spw_max_u32(in->sessions, in->draft_rows);
}
/* What the device must have besides if plan.may_retain. */
uint64_t spw_plan_retained_bytes(const struct spw_plan *p, const struct spw_plan_input *in);
/* Sets the residency of the kinds: how sessions and layers share the frames of the device. Takes at
 * most as many frames as tiles need; with a ring one less, so that the ring has a tile to stream.
 * No tile is retained where sliding layers stream. False: too few frames. */
bool spw_plan_take_frames(struct spw_plan *p, const struct spw_plan_input *in, uint64_t frames);
/* Tiles of one slice that lie on disk when all of `b` lie in lower tiers. */
uint32_t spw_plan_tiles_on_disk(const struct spw_plan *p, const struct spw_lower *b,
                                enum spw_layer_kind kind);
/* What a decode step at the full context costs the link, in bytes: of KV; of weights; and the
 * part of KV's bytes that move while weights are read. */
uint64_t spw_plan_kv_cost(const struct spw_plan *p, const struct spw_plan_input *in);
/* Of `bytes` of experts, those that a row uses and misses, if it chooses all experts equally often.
 */
uint64_t spw_plan_expected_misses(const struct spw_plan *p, const struct spw_plan_input *in,
                                  uint64_t bytes);
/* Of weights: a decode step's, and a prompt pass's, whose rows need all experts. */
uint64_t spw_plan_weights_cost(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_pass_cost(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_overlapped_cost(const struct spw_plan *p, const struct spw_plan_input *in);

/* ---- plan_blocks.c ---- */

/* Places the weight blocks: n_resident stay on the device, and the others come from the host, but
 * for n_disk places among them. */
void spw_plan_place_blocks(struct spw_plan *p, const struct spw_weights *w, uint32_t n_resident,
                           uint32_t n_disk);

/* ---- plan_layout.c ---- */

/* What is the same for all candidates: sizes of the model, of its tiles and its weight blocks. */
void spw_plan_start(struct spw_plan *p, const struct spw_plan_input *in);
/* Whether a session's retained tiles would take a small part of the device. p: started. */
bool spw_plan_may_retain(const struct spw_plan *p, const struct spw_plan_input *in);
/* Whether work buffers for chunks of this size would take more than a fourth of the device. p:
 * started, with its rows of logits. */
bool spw_plan_crowds(const struct spw_plan *p, const struct spw_plan_input *in, uint32_t chunk);
/* The two halves of a layout: all of the device, then host and disk. Each is total: it has no
 * search in it. p: started, then the first half for the same candidate. False: the candidate does
 * not fit the budgets. If it fits, it fits larger budgets as well: more frames of one tier never
 * lead to more frames of another tier. */
bool spw_plan_lay_out_device(struct spw_plan *p, const struct spw_plan_input *in,
                             const struct spw_candidate *c);
bool spw_plan_lay_out_lower(struct spw_plan *p, const struct spw_plan_input *in,
                            const struct spw_candidate *c);
static inline bool spw_plan_lay_out(struct spw_plan *p, const struct spw_plan_input *in,
                                    const struct spw_candidate *c)
{
    return spw_plan_lay_out_device(p, in, c) && spw_plan_lay_out_lower(p, in, c);
}
/* Offsets of everything that candidates decide about, from the counts in p; whether it fits. */
bool spw_plan_lay_out_rest(struct spw_plan *p, const struct spw_plan_input *in);
void spw_plan_describe(struct spw_plan *p, const struct spw_plan_input *in);

#endif
