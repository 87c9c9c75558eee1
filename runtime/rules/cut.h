/* How the new tokens of a step are cut: passes, chunks, rows. A pure function.
 *
 *   span     one session's new tokens
 *   pass     rows that go through all layers together (as many as hidden states find room for)
 *   chunk    rows that go through one layer together
 *   part     the rows of a chunk that belong to one span
 *
 *   passes  |---------------------------------|----------|
 *   chunks  |----------|----------|-----------|----------|
 *   parts   |0000000000|0000000000|1111|222222|2222222222|     the span of each row
 *
 * A span that fits into one chunk is not cut: it starts a new chunk if the open one is too full. */
#ifndef SPW_RUNTIME_RULES_CUT_H
#define SPW_RUNTIME_RULES_CUT_H

#include "offload/kv/waterline.h"

/* What a step computes of one session: positions [from, to), and the logits of the last n_logits.
 */
struct spw_step_span {
    uint64_t from, to, n_logits;
};

/* Consecutive rows of a call: positions [from, to) of a span. */
struct spw_part {
    uint32_t span;
    uint64_t from, to;
    uint64_t row; /* of `from`, in the pass */
};

struct spw_chunk {
    uint32_t first_part, n_parts;
    uint64_t row, rows; /* in the pass */
};

/* The border of a span is the last end of a tile before its last token, whose logits may be wanted
 * again. A sequence with a state can be cut back to it, also where the next turn drops what a chat
 * template writes after the last message, and files can have it. Where a span goes on in the next
 * chunk, it leaves the chunk at the end of a tile. */
struct spw_cut {
    uint32_t chunk_rows;
    uint64_t pass_rows;
    bool borders; /* spans are cut there */
    uint32_t most_chunks, most_parts;
    struct spw_chunk *chunks; /* owned */
    struct spw_part *parts;   /* owned */
    uint32_t n_chunks, n_parts;
    uint64_t rows;
};

int spw_cut_init(struct spw_cut *c, uint32_t chunk_rows, uint64_t pass_rows, uint32_t most_spans,
                 bool borders);
void spw_cut_free(struct spw_cut *c);
/* Of a span up to `to`. */
uint64_t spw_cut_border(uint64_t to);
/* Cuts the next pass off the spans and moves their `from`. False when nothing is left. */
bool spw_cut_next(struct spw_cut *c, struct spw_step_span *spans, uint32_t n_spans);
/* The parts [first, end) whose old tiles get their places after chunk k of a layer: those of the
 * chunk; or, if tiles are held, none until the last chunk, and then those of the pass. */
struct spw_parts_placed {
    uint32_t first, end;
};
struct spw_parts_placed spw_cut_placed(const struct spw_cut *c, uint32_t k, bool holds_tiles);
/* What the pass that was cut computes of each span. `spans` as spw_cut_next left them. */
void spw_cut_describe(const struct spw_cut *c, const struct spw_step_span *spans, uint32_t n_spans,
                      struct spw_pass_span *out);
/* The number of rows of the pass whose logits are wanted. */
uint64_t spw_cut_count_wanted(const struct spw_cut *c, const struct spw_step_span *spans);

/* One of these rows. The first call of spw_cut_next_wanted starts from {0, UINT64_MAX}. */
struct spw_wanted_row {
    uint32_t part;
    uint64_t position;
};

/* Moves to the next wanted row; false after the last. */
bool spw_cut_next_wanted(const struct spw_cut *c, const struct spw_step_span *spans,
                         struct spw_wanted_row *w);

#endif
