/* Passes, chunks and rows: see cut.h. */
#include "runtime/rules/cut.h"

#include <assert.h>

int spw_cut_init(struct spw_cut *c, uint32_t chunk_rows, uint64_t pass_rows, uint32_t most_spans,
                 bool borders)
{
    *c = (struct spw_cut){.chunk_rows = chunk_rows, .pass_rows = pass_rows, .borders = borders};
    /* Of two neighbouring chunks at least one is half full: the second did not fit into the first,
     * or the first ends with a tile. And a span has at most two chunks more for its border, or for
     * the end of its source. */
    const uint64_t at_borders = 2 * (uint64_t)most_spans;
    uint64_t chunks =
        spw_min_u64(2 * spw_div_up(pass_rows, chunk_rows) + 1 + at_borders, pass_rows);
    if (chunks + most_spans > INT32_MAX)
        return -ENOMEM;
    c->most_chunks = (uint32_t)chunks;
    c->most_parts = c->most_chunks + most_spans;
    c->chunks = spw_alloc_zero(c->most_chunks, sizeof *c->chunks);
    c->parts = spw_alloc_zero(c->most_parts, sizeof *c->parts);
    if (c->chunks && c->parts)
        return 0;
    spw_cut_free(c);
    return -ENOMEM;
}

void spw_cut_free(struct spw_cut *c)
{
    spw_free(c->chunks);
    spw_free(c->parts);
    *c = (struct spw_cut){0};
}

static struct spw_chunk *open_chunk(struct spw_cut *c, bool source)
{
    assert(c->n_chunks < c->most_chunks);
    struct spw_chunk *k = &c->chunks[c->n_chunks++];
    *k = (struct spw_chunk){.first_part = c->n_parts, .row = c->rows, .source = source};
    return k;
}

uint64_t spw_cut_border(uint64_t to)
{
    const uint64_t most = spw_sub_u64(to, 1);
    return most - most % SPW_TILE_TOKENS;
}

/* The border of what is left of a span; 0: it has none. */
static uint64_t border_of(const struct spw_cut *c, const struct spw_step_span *s)
{
    const uint64_t at = spw_cut_border(s->to);
    return c->borders && at > s->from ? at : 0;
}

/* The end of the next part of the span, in a chunk that has room for this many rows. The end of the
 * pass does not count here. */
static uint64_t part_end(const struct spw_cut *c, const struct spw_step_span *s, uint64_t room)
{
    const uint64_t border = border_of(c, s);
    uint64_t end = spw_min_u64(s->to, s->from + room);
    if (s->from < s->n_source)
        return spw_min_u64(end, s->n_source);
    if (border && border <= end)
        return border;
    /* Ends the part with a tile. Not in small chunks, which could become less than half full. */
    const bool trims = c->borders && end < s->to && c->chunk_rows >= 2 * SPW_TILE_TOKENS;
    const uint64_t tile = end - end % SPW_TILE_TOKENS;
    return trims && tile > s->from ? tile : end;
}

/* Cuts the source of span i, or what follows the source, into parts: of the open chunk k, if there
 * is one, and of new chunks. Returns the chunk that is open then, or NULL. */
static struct spw_chunk *cut_span(struct spw_cut *c, struct spw_chunk *k,
                                  struct spw_step_span *spans, uint32_t i, bool source)
{
    struct spw_step_span *s = &spans[i];
    const uint64_t to = source ? s->n_source : s->to, left = to - s->from;
    if (k && left <= c->chunk_rows && left > c->chunk_rows - k->rows && !border_of(c, s))
        k = NULL;
    while (s->from < to && c->rows < c->pass_rows) {
        if (!k)
            k = open_chunk(c, source);
        const uint64_t end = part_end(c, s, c->chunk_rows - k->rows);
        const uint64_t n = spw_min_u64(end - s->from, c->pass_rows - c->rows);
        assert(c->n_parts < c->most_parts);
        c->parts[c->n_parts++] =
            (struct spw_part){.span = i, .from = s->from, .to = s->from + n, .row = c->rows};
        k->n_parts++;
        k->rows += n;
        c->rows += n;
        s->from += n;
        if (k->rows == c->chunk_rows || s->from < to)
            k = NULL;
    }
    return k;
}

static bool is_source(const struct spw_step_span *s)
{
    return s->from < s->n_source;
}

bool spw_cut_next(struct spw_cut *c, struct spw_step_span *spans, uint32_t n_spans)
{
    struct spw_chunk *k = NULL;
    c->n_chunks = c->n_parts = 0;
    c->rows = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        assert(!is_source(&spans[i]) || c->rows ||
               spans[i].n_source - spans[i].from <= c->pass_rows);
        if (is_source(&spans[i]) && spans[i].n_source - spans[i].from <= c->pass_rows - c->rows)
            k = cut_span(c, k, spans, i, true);
    }
    k = NULL;
    for (uint32_t i = 0; i < n_spans; i++)
        if (!is_source(&spans[i]))
            k = cut_span(c, k, spans, i, false);
    return c->rows > 0;
}

struct spw_parts_placed spw_cut_placed(const struct spw_cut *c, uint32_t k, bool holds_tiles)
{
    const struct spw_chunk *chunk = &c->chunks[k];
    if (holds_tiles)
        return (struct spw_parts_placed){0, k + 1 == c->n_chunks ? c->n_parts : 0};
    return (struct spw_parts_placed){chunk->first_part, chunk->first_part + chunk->n_parts};
}

void spw_cut_describe(const struct spw_cut *c, const struct spw_step_span *spans, uint32_t n_spans,
                      struct spw_pass_span *out)
{
    for (uint32_t i = 0; i < n_spans; i++)
        out[i] = (struct spw_pass_span){.from = spans[i].from, .to = spans[i].from};
    for (uint32_t i = c->n_parts; i-- > 0;) {
        struct spw_pass_span *p = &out[c->parts[i].span];
        p->chunked = c->parts[i].to < p->to;
        p->from = c->parts[i].from;
    }
}

/* The first position of the part whose logits the span wants; `to` of the part if none. */
static uint64_t logits_from(const struct spw_part *part, const struct spw_step_span *span)
{
    uint64_t from = spw_sub_u64(span->to, span->n_logits);
    return spw_min_u64(spw_max_u64(from, part->from), part->to);
}

uint64_t spw_cut_count_wanted(const struct spw_cut *c, const struct spw_step_span *spans)
{
    uint64_t n = 0;
    for (const struct spw_part *part = c->parts; part < c->parts + c->n_parts; part++)
        n += part->to - logits_from(part, &spans[part->span]);
    return n;
}

bool spw_cut_next_wanted(const struct spw_cut *c, const struct spw_step_span *spans,
                         struct spw_wanted_row *w)
{
    for (w->position++; w->part < c->n_parts; w->part++, w->position = 0) {
        const struct spw_part *part = &c->parts[w->part];
        w->position = spw_max_u64(w->position, logits_from(part, &spans[part->span]));
        if (w->position < part->to)
            return true;
    }
    return false;
}
