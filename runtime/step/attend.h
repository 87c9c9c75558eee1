/* Attention of a chunk's rows over the KV cache: new keys and values are appended, tiles that have
 * become old are quantized, and every split is read in the order of positions, from
 * KV slots or from where it lies on the device.
 *
 * Borrows everything. Queues work on `compute` only; the host waits nowhere but for the disk. */
#ifndef SPW_RUNTIME_STEP_ATTEND_H
#define SPW_RUNTIME_STEP_ATTEND_H

#include "model/ops.h"
#include "model/weights/weights.h"
#include "prefetch/prefetch.h"
#include "runtime/step/residency.h"

struct spw_query; /* attend.c */

struct spw_attend {
    const struct spw_ops *ops;
    const struct spw_lane *lane;
    const struct spw_plan *plan;
    const struct spw_weights *weights;
    struct spw_prefetch *prefetch;
    struct spw_query *queries; /* owned, [most parts of a chunk][most_slices] */
    uint32_t most_slices;      /* of a layer */
};

/* Positions [from, to) of one sequence in one layer, whose rows start at `row` of the chunk. */
struct spw_attend_part {
    const struct spw_sequence *seq;
    const struct spw_part_tiles *tiles; /* of the layer's kind */
    uint32_t layer;
    uint64_t from, to, row;
    uint64_t n_source;    /* the source are the first positions */
    bool keys_only;       /* rows of the source, of which the layer keeps keys and values */
    uint32_t source_tile; /* of the first one, in plan.device.source_tiles */
    struct spw_stream_range reads; /* the tiles that queries read */
    /* The tiles before shared_end are read from the slots of part `shared_with` of the chunk. With
     * shared_end 0 no slot is shared, and shared_with has no meaning. */
    uint32_t shared_with, shared_end;
};

/* The caller has set the fields before `queries`. most: parts of a chunk, at most. */
int spw_attend_init(struct spw_attend *a, uint32_t most);
void spw_attend_free(struct spw_attend *a);
/* Part i of a chunk: reads k and v in plan.device.qkv, and rotates q. `s` stays borrowed until the
 * parts have been read. */
int spw_attend_append(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s);
/* In the encoder, where nothing stays of a layer: keys and values of rows of a source go to
 * plan.device.source_tiles; then, when all rows have, its queries attend to all of them. */
int spw_attend_keep_source(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s);
int spw_attend_source(const struct spw_attend *a, uint32_t i, const struct spw_attend_part *s);
/* Attention of parts [0, n), which have all been appended; the results are in
 * plan.device.attention. */
int spw_attend_read(const struct spw_attend *a, uint32_t n);

#endif
