/* Moves the tiles of sequences to the tiers that the waterlines say, at each point of a pass.
 *
 *   before the first layer   make_room: layers that wait for a long prompt spill
 *                            load_ahead: tiles that a session began with on disk come beside the
 *                            computation
 *   before each layer        enter: the tiles that its chunks read in place are loaded
 *   after each chunk         after_chunk: tiles that have become old are spilled or dropped
 *   after the last layer     apply: each layer is where it rests between steps
 *
 * Borrows everything. Errors are those of spw_kv_spill and spw_kv_load. */
#ifndef SPW_RUNTIME_STEP_RESIDENCY_H
#define SPW_RUNTIME_STEP_RESIDENCY_H

#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"

/* One sequence: its KV cache, and the share of the frames that it may take. Embedded by its
 * session. */
struct spw_sequence {
    struct spw_kv_seq *kv; /* owned */
    /* By layer kind: how many tiles of a layer it may keep in each tier. Borrowed; set by whoever
     * opens the sequence. */
    const struct spw_residency *residency;
    /* Its place among the rows that the MTP layer needs (plan.device.mtp_kept), and the positions
     * whose rows are there: [kept_from, kept_to), of the newest tokens that were computed. */
    uint32_t place;
    uint64_t kept_from, kept_to;
};

static inline bool spw_sequence_keeps(const struct spw_sequence *s, uint64_t from, uint64_t to)
{
    return s->kept_from <= from && to <= s->kept_to;
}

static inline void spw_sequence_keep_none(struct spw_sequence *s)
{
    s->kept_from = s->kept_to = 0;
}

/* Rows of positions [.., end) have come to their places: older ones are gone. */
static inline void spw_sequence_keep_newest(struct spw_sequence *s, uint64_t end)
{
    s->kept_from = spw_max_u64(s->kept_from, spw_sub_u64(end, SPW_MTP_KEPT));
}

/* A step has computed positions [from, to). */
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

/* The numbers of a span or of a part, of all kinds or of the slice's kind, are those of the pass
 * (struct spw_pass). load_ahead and enter: the sequence has rows in the pass. */
int spw_residency_make_room(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            const struct spw_span_tiles kinds[SPW_LAYER_KINDS]);
int spw_residency_load_ahead(struct spw_residency_moves *m, const struct spw_sequence *seq,
                             const struct spw_span_tiles *tiles, uint32_t slice);
int spw_residency_enter(struct spw_residency_moves *m, const struct spw_sequence *seq,
                        const struct spw_span_tiles *tiles, uint32_t slice);
int spw_residency_after_chunk(struct spw_residency_moves *m, const struct spw_sequence *seq,
                              const struct spw_part_tiles *tiles, uint32_t slice);
/* The sequence holds n tokens. After a failure in one slice the others have their places all the
 * same. -EBADMSG: tiles of any slice are lost. */
int spw_residency_apply(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n);
/* Between steps, when the numbers of several sequences have changed, and each holds n tokens:
 *   1. make_copies_fit for all: copies on the host that have no room there any more go to disk;
 *   2. leave for all: tiles leave the device. -ENOMEM: the host has no frame; then 3, and again 2;
 *   3. come_back for all: loads what the device has frames for, and drops the host's copies;
 *   4. apply for all. */
int spw_residency_make_copies_fit(struct spw_residency_moves *m, const struct spw_sequence *seq,
                                  uint64_t n);
int spw_residency_leave(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n);
int spw_residency_come_back(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            uint64_t n);

#endif
