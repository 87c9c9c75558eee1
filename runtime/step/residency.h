/* Moves the tiles of sequences to the tiers that the waterlines say, at each point of a pass.
 *
 *   before the first layer   make_room: a long prompt needs room in the layer that it passes, so
 *                            the other layers spill
 *                            load_ahead: tiles that lie on disk, because the session began with
 *                            them, are loaded beside the computation
 *   before each layer        enter: the tiles that its chunks read in place are loaded
 *   after each chunk         after_chunk: tiles that have become old are spilled or dropped
 *   after the last layer     apply: each layer gets the tiles that it has between steps
 *
 * Borrows everything. Errors are those of spw_kv_spill and spw_kv_load. */
#ifndef SPW_RUNTIME_STEP_RESIDENCY_H
#define SPW_RUNTIME_STEP_RESIDENCY_H

#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"

/* One sequence: its part of the KV cache, and how many frames it may take. A member of its session.
 */
struct spw_sequence {
    struct spw_kv_seq *kv; /* owned */
    /* By layer kind: how many tiles of a layer it may keep in each tier. Borrowed; set by whoever
     * opens the sequence. */
    const struct spw_residency *residency;
    /* The rows that the MTP layer needs (executor_mtp.c): the number of the sequence in
     * plan.device.mtp_kept, and the positions [kept_from, kept_to) whose rows are there. */
    uint32_t place;
    uint64_t kept_from, kept_to;
};

/* Whether the rows of positions [from, to) are there. */
static inline bool spw_sequence_keeps(const struct spw_sequence *s, uint64_t from, uint64_t to)
{
    return s->kept_from <= from && to <= s->kept_to;
}

static inline void spw_sequence_keep_none(struct spw_sequence *s)
{
    s->kept_from = s->kept_to = 0;
}

/* The row of position end - 1 was written: only the newest SPW_MTP_KEPT rows are left. */
static inline void spw_sequence_keep_newest(struct spw_sequence *s, uint64_t end)
{
    s->kept_from = spw_max_u64(s->kept_from, spw_sub_u64(end, SPW_MTP_KEPT));
}

/* A step has computed positions [from, to), and their rows were written. */
static inline void spw_sequence_keep(struct spw_sequence *s, uint64_t from, uint64_t to)
{
    if (from >= to)
        return;
    if (!from || !spw_sequence_keeps(s, from - 1, from))
        s->kept_from = from;
    s->kept_to = to;
    spw_sequence_keep_newest(s, to);
}

struct spw_residency_moves {
    const struct spw_model_config *config;
    struct spw_prefetch *prefetch;
};

/* span_tiles and part_tiles of struct spw_pass give the numbers: make_room takes those of all
 * kinds, the others those of the slice's kind. load_ahead and enter: only for sequences that have
 * rows in the pass. */
int spw_residency_make_room(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            const struct spw_span_tiles kinds[SPW_LAYER_KINDS]);
int spw_residency_load_ahead(struct spw_residency_moves *m, const struct spw_sequence *seq,
                             const struct spw_span_tiles *tiles, uint32_t slice);
int spw_residency_enter(struct spw_residency_moves *m, const struct spw_sequence *seq,
                        const struct spw_span_tiles *tiles, uint32_t slice);
int spw_residency_after_chunk(struct spw_residency_moves *m, const struct spw_sequence *seq,
                              const struct spw_part_tiles *tiles, uint32_t slice);
/* The sequence has n tokens. If one slice fails, the others are moved all the same. -EBADMSG: tiles
 * of one slice at least are lost. */
int spw_residency_apply(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n);
/* Between steps, when the residency of several sequences has changed; each has n tokens:
 *   1. make_copies_fit for all sequences: copies that have no room on the host any more go to disk;
 *   2. leave for all: tiles leave the device. -ENOMEM: the host has no free frame; then 3, and 2
 *      once more;
 *   3. load_back for all: loads the tiles for which the device has frames, and drops their copies
 *      on the host;
 *   4. apply for all. */
int spw_residency_make_copies_fit(struct spw_residency_moves *m, const struct spw_sequence *seq,
                                  uint64_t n);
int spw_residency_leave(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n);
int spw_residency_load_back(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            uint64_t n);

#endif
