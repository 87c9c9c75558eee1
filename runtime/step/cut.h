/* How the new tokens of a step are cut: passes, chunks, segments. A pure function.
 *
 *   pass     rows that go through all layers together (as many as hidden states find room for)
 *   chunk    rows that go through one layer together
 *   segment  the rows of a chunk that belong to one span (one session's new tokens)
 *
 *   span 0  |-------------------|   span 1 |--|   span 2 |--|
 *   chunks  |--------|--------|-----------------------------|
 *   segments|--------|--------|-|          |--|          |--|
 *
 * A span that fits into one chunk is not cut: it starts a new chunk if the open one is too full. */
#ifndef SPW_RUNTIME_STEP_CUT_H
#define SPW_RUNTIME_STEP_CUT_H

#include "base/base.h"

struct spw_cut_span {
    uint64_t from, to; /* positions to compute; `from` moves on with each pass */
};

struct spw_cut_segment {
    uint32_t span;
    uint64_t from, to; /* positions */
    uint64_t row;      /* in the pass */
};

struct spw_cut_chunk {
    uint32_t first_segment, n_segments;
    uint64_t row, rows; /* in the pass */
};

struct spw_cut {
    uint32_t chunk_rows;
    uint64_t pass_rows;
    uint32_t most_chunks, most_segments;
    struct spw_cut_chunk *chunks;     /* owned */
    struct spw_cut_segment *segments; /* owned */
    uint32_t n_chunks, n_segments;
    uint64_t rows;
};

int spw_cut_init(struct spw_cut *c, uint32_t chunk_rows, uint64_t pass_rows, uint32_t most_spans);
void spw_cut_free(struct spw_cut *c);
/* Cuts the next pass off the spans and moves their `from`. False when nothing is left. */
bool spw_cut_next(struct spw_cut *c, struct spw_cut_span *spans, uint32_t n_spans);

#endif
