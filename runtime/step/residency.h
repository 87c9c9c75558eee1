/* Moves the tiles of sequences to the tiers that the waterlines say, at each point of a pass.
 *
 *   before the first layer   make_room: layers that wait for a long prompt spill
 *                            load_ahead: tiles that a session began with on disk come beside the
 *                            computation
 *   before each layer        enter: the tiles that its chunks read in place are loaded
 *   after each chunk         age: tiles that have become old are spilled or dropped
 *   after the last layer     apply: each layer is where it rests between steps
 *
 * Borrows everything. Errors are those of spw_kv_spill and spw_kv_load. */
#ifndef SPW_RUNTIME_STEP_RESIDENCY_H
#define SPW_RUNTIME_STEP_RESIDENCY_H

#include "prefetch/prefetch.h"
#include "runtime/plan/plan.h"
#include "runtime/step/sequence.h"

struct spw_residency_moves {
    const struct spw_plan *plan;
    const struct spw_model_config *config;
    struct spw_prefetch *prefetch;
    bool failed; /* a load or a spill, since the caller cleared it */
};

/* The numbers of the layer's kind. */
const struct spw_residency *spw_residency_of(const struct spw_residency_moves *m, uint32_t layer);

int spw_residency_make_room(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            const struct spw_pass_span *span);
int spw_residency_load_ahead(struct spw_residency_moves *m, const struct spw_sequence *seq,
                             const struct spw_pass_span *span, uint32_t layer);
int spw_residency_enter(struct spw_residency_moves *m, const struct spw_sequence *seq,
                        const struct spw_pass_span *span, uint32_t layer);
/* A chunk with positions up to `to` of the span has passed the layer. */
int spw_residency_age(struct spw_residency_moves *m, const struct spw_sequence *seq,
                      const struct spw_pass_span *span, uint32_t layer, uint64_t to);
/* The sequence holds n tokens. */
int spw_residency_apply(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n);
/* The highest `begin` of the sequence so far (spw_pass_span.written), worked back from what lies on
 * disk: written - host = disk_end. 0 where nothing is on disk. For a sequence that began with
 * attached tiles, the `begin` that would have brought the same tiles to disk. */
uint32_t spw_residency_written(const struct spw_residency_moves *m, const struct spw_sequence *seq);

#endif
