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
 * A span that fits into one chunk is not cut: it starts a new chunk if the open one is too full. A
 * pass has all of a source or nothing of it: every row of the source sees all the others. The
 * sources of all spans come first, and share chunks; then come the other tokens. */
#ifndef SPW_RUNTIME_RULES_CUT_H
#define SPW_RUNTIME_RULES_CUT_H

#include "offload/kv/waterline.h"

/* What a step computes of one session: positions [from, to), and the logits of the last n_logits.
 */
struct spw_step_span {
    uint64_t from, to, n_logits;
    uint64_t n_source; /* the first positions of the sequence are those of the source; or 0 */
};

/* Positions [from, to) of a span, in one chunk. */
struct spw_part {
    uint32_t span;
    uint64_t from, to;
    uint64_t row; /* of `from`, in the pass */
};

struct spw_chunk {
    uint32_t first_part, n_parts;
    uint64_t row, rows; /* in the pass */
    bool source;        /* all its rows are of sources; else none is */
};

/* The *border* of a span is the last end of a tile before the last token of the span. A layer with
 * a state gets a checkpoint there, for which a part must end there. From this checkpoint a session
 * can compute the logits of the last token once more, or go on with another turn of a chat, whose
 * template often replaces the last few tokens; and files have whole tiles only.
 *
 * If spans are cut at their borders, a part also ends with a tile where its span continues in the
 * next chunk. */
struct spw_cut {
    uint32_t chunk_rows;
    uint64_t pass_rows;
    bool borders; /* spans are cut at their borders */
    uint32_t most_chunks, most_parts;
    struct spw_chunk *chunks; /* owned */
    struct spw_part *parts;   /* owned */
    uint32_t n_chunks, n_parts;
    uint64_t rows;
};

int spw_cut_init(struct spw_cut *c, uint32_t chunk_rows, uint64_t pass_rows, uint32_t most_spans,
                 bool borders);
void spw_cut_free(struct spw_cut *c);
/* The border of a span that ends at `to`. */
uint64_t spw_cut_border(uint64_t to);
/* Cuts the next pass off the spans, and moves their `from` behind it. False: no token is left. */
bool spw_cut_next(struct spw_cut *c, struct spw_step_span *spans, uint32_t n_spans);
/* The parts [first, end) whose old tiles are spilled after chunk k of a layer: the parts of the
 * chunk. With holds_tiles (plan.h): none until the last chunk, and then all parts of the pass. */
struct spw_parts_placed {
    uint32_t first, end;
};
struct spw_parts_placed spw_cut_placed(const struct spw_cut *c, uint32_t k, bool holds_tiles);
/* What the pass computes of each span. `spans` as spw_cut_next has left them. */
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
