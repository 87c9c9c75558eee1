/* Passes, chunks and segments: see cut.h. */
#include "runtime/step/cut.h"

#include <assert.h>

int spw_cut_init(struct spw_cut *c, uint32_t chunk_rows, uint64_t pass_rows, uint32_t most_spans)
{
    *c = (struct spw_cut){.chunk_rows = chunk_rows, .pass_rows = pass_rows};
    /* Of two neighbouring chunks at least one is half full: the second did not fit into the first.
     */
    uint64_t chunks = spw_min_u64(2 * spw_div_up(pass_rows, chunk_rows) + 1, pass_rows);
    if (chunks + most_spans > INT32_MAX)
        return -ENOMEM;
    c->most_chunks = (uint32_t)chunks;
    c->most_segments = c->most_chunks + most_spans;
    c->chunks = spw_alloc_zero(c->most_chunks, sizeof *c->chunks);
    c->segments = spw_alloc_zero(c->most_segments, sizeof *c->segments);
    if (c->chunks && c->segments)
        return 0;
    spw_cut_free(c);
    return -ENOMEM;
}

void spw_cut_free(struct spw_cut *c)
{
    spw_free(c->chunks);
    spw_free(c->segments);
    *c = (struct spw_cut){0};
}

static struct spw_cut_chunk *open_chunk(struct spw_cut *c)
{
    assert(c->n_chunks < c->most_chunks);
    struct spw_cut_chunk *k = &c->chunks[c->n_chunks++];
    *k = (struct spw_cut_chunk){.first_segment = c->n_segments, .row = c->rows};
    return k;
}

bool spw_cut_next(struct spw_cut *c, struct spw_cut_span *spans, uint32_t n_spans)
{
    struct spw_cut_chunk *k = NULL;
    c->n_chunks = c->n_segments = 0;
    c->rows = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        struct spw_cut_span *s = &spans[i];
        uint64_t left = s->to - s->from;
        if (k && left <= c->chunk_rows && left > c->chunk_rows - k->rows)
            k = NULL;
        while (s->from < s->to && c->rows < c->pass_rows) {
            if (!k || k->rows == c->chunk_rows)
                k = open_chunk(c);
            uint64_t n = spw_min_u64(s->to - s->from, c->chunk_rows - k->rows);
            n = spw_min_u64(n, c->pass_rows - c->rows);
            assert(c->n_segments < c->most_segments);
            c->segments[c->n_segments++] = (struct spw_cut_segment){
                .span = i, .from = s->from, .to = s->from + n, .row = c->rows};
            k->n_segments++;
            k->rows += n;
            c->rows += n;
            s->from += n;
        }
    }
    return c->rows > 0;
}
