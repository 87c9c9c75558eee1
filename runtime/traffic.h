/* The byte account: how much one pass moves over each link, from positions and the plan alone. The
 * counters of the device must agree with it as integers.
 *
 * A tile on disk crosses the drive's link, and the device's too where the disk lands on the host
 * first (plan.direct is false). */
#ifndef SPW_RUNTIME_TRAFFIC_H
#define SPW_RUNTIME_TRAFFIC_H

#include "runtime/cut.h"
#include "runtime/plan.h"

struct spw_traffic {
    uint64_t bytes[SPW_MOVED_COUNT];
};

/* Tiles [first, end) of a layer of this kind that lie below the device when new tokens from `from`
 * on pass it in one chunk. */
void spw_traffic_range(const struct spw_residency *r, bool sliding, const struct spw_passage *p,
                       uint64_t from, uint32_t *first, uint32_t *end);
/* Of those, the first one that does not come from disk, if no other session shares the tiles. */
uint32_t spw_traffic_disk(const struct spw_residency *r, bool sliding, const struct spw_passage *p,
                          uint64_t from);
/* Chunks that pass in all, counted over the layers. */
uint64_t spw_traffic_chunks(const struct spw_weights *w, const struct spw_cut *cut);
/* Adds what a pass reads and writes wherever tiles lie: embeddings, hidden states, streamed weights
 * and `heads` rows of logits. `chunks`: all of them, or those before which it was ended. */
void spw_traffic_pass(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                      const struct spw_cut *cut, uint64_t chunks, uint64_t heads);
/* What a pass that got through its layers reads of whether all that was quantized was finite. */
uint64_t spw_traffic_flags(const struct spw_plan *p);
/* Adds the KV that streams through the ring in a pass, as far as no session shares tiles with
 * another one. passages[i] belongs to span i of the cut. */
void spw_traffic_kv(struct spw_traffic *t, const struct spw_plan *p, const struct spw_cut *cut,
                    const struct spw_passage *passages);
/* Adds so many tiles that come up. */
void spw_traffic_up(struct spw_traffic *t, const struct spw_plan *p, uint64_t from_host,
                    uint64_t from_disk);
/* Adds what one session's waterlines move in a pass, under the same condition. */
void spw_traffic_waterlines(struct spw_traffic *t, const struct spw_plan *p,
                            const struct spw_cut *cut, const struct spw_passage *passage);
/* What opening the engine moves. */
uint64_t spw_traffic_open(const struct spw_plan *p, const struct spw_weights *w);
/* Fills in plan.info: one session that takes `context` tokens from nothing; and the last of them
 * after a prompt of the others. */
int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w);

#endif
