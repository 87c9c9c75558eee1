/* The cut of a step: every token lies in exactly one part, in order, within the limits; a span
 * that fits into one chunk is not cut; sources come first and share chunks; the arrays are large
 * enough for any spans; the wanted rows are the last ones of each span. */
#include "runtime/rules/cut.h"
#include "tests/check.h"

#include <string.h>

enum { MOST_SPANS = 9 };

static void check_pass(const struct spw_cut *c, const struct spw_step_span *before,
                       const struct spw_step_span *after, uint32_t n_spans)
{
    uint64_t at[MOST_SPANS], row = 0;
    uint32_t part = 0, last_span = 0;
    bool source = true; /* sources come first */
    for (uint32_t i = 0; i < n_spans; i++)
        at[i] = before[i].from;
    CHECK(c->n_chunks && c->n_chunks <= c->most_chunks && c->n_parts <= c->most_parts);
    for (uint32_t k = 0; k < c->n_chunks; k++) {
        const struct spw_chunk *chunk = &c->chunks[k];
        CHECK(chunk->first_part == part && chunk->n_parts && chunk->row == row);
        CHECK(chunk->rows && chunk->rows <= c->chunk_rows && chunk->source <= source);
        last_span = chunk->source == source ? last_span : 0;
        source = chunk->source;
        uint64_t rows = 0;
        for (uint32_t i = 0; i < chunk->n_parts; i++, part++) {
            const struct spw_part *s = &c->parts[part];
            CHECK(s->span < n_spans && s->span >= last_span);
            CHECK(s->from == at[s->span] && s->to > s->from && s->row == row + rows);
            at[s->span] = s->to;
            rows += s->to - s->from;
            CHECK((s->from < before[s->span].n_source) == chunk->source);
            CHECK(!chunk->source || s->to <= before[s->span].n_source);
            last_span = s->span;
        }
        CHECK(rows == chunk->rows);
        row += rows;
    }
    CHECK(part == c->n_parts && row == c->rows && row <= c->pass_rows);
    for (uint32_t i = 0; i < n_spans; i++)
        CHECK(at[i] == after[i].from && after[i].to == before[i].to &&
              (after[i].from == before[i].from || after[i].from >= before[i].n_source));
}

/* A source does not begin a chunk if the one before has room for the source. */
static void check_sources(const struct spw_cut *c, const struct spw_step_span *before)
{
    for (uint32_t k = 1; k < c->n_chunks && c->chunks[k].source; k++) {
        const struct spw_part *part = &c->parts[c->chunks[k].first_part];
        const struct spw_step_span *s = &before[part->span];
        CHECK(part->from > s->from ||
              c->chunks[k - 1].rows + spw_min_u64(s->n_source - s->from, c->chunk_rows) >
                  c->chunk_rows);
    }
}

/* Spans that a chunk holds whole have one part, unless the pass ends inside them. */
static void check_whole(const struct spw_cut *c, const struct spw_step_span *before,
                        const struct spw_step_span *after, uint32_t n_spans)
{
    for (uint32_t i = 0; i < n_spans; i++) {
        uint32_t n = 0;
        uint64_t length = before[i].to - before[i].from;
        for (uint32_t k = 0; k < c->n_parts; k++)
            n += c->parts[k].span == i;
        const bool has_border = before[i].from < before[i].n_source ||
                                (c->borders && spw_cut_border(before[i].to) > before[i].from);
        if (length && length <= c->chunk_rows && after[i].from == after[i].to && !has_border)
            CHECK(n == 1);
        if (!length)
            CHECK(n == 0);
    }
}

/* Parts of spans that go on in the next chunk end with a tile, if one ends among their rows; and at
 * the border of each span a part ends. */
static void check_borders(const struct spw_cut *c, const struct spw_step_span *before,
                          const struct spw_step_span *after, uint32_t n_spans)
{
    for (uint32_t k = 0; k + 1 < c->n_chunks; k++) {
        const uint32_t next = c->chunks[k + 1].first_part;
        const struct spw_part *last = &c->parts[next - 1];
        const uint64_t tile = last->to - last->to % SPW_TILE_TOKENS;
        if (c->chunks[k].source || last->span != c->parts[next].span ||
            c->chunks[k].rows == c->chunk_rows)
            continue;
        CHECK(c->borders && tile == last->to);
        CHECK(last->to == spw_cut_border(before[last->span].to) ||
              2 * c->chunks[k].rows > c->chunk_rows);
    }
    for (uint32_t i = 0; i < n_spans && c->borders; i++) {
        const uint64_t border = spw_cut_border(before[i].to);
        bool ends = before[i].from < before[i].n_source || border <= before[i].from ||
                    border > after[i].from;
        CHECK(before[i].to > border || !border);
        for (uint32_t k = 0; k < c->n_parts; k++)
            ends |= c->parts[k].span == i && c->parts[k].to == border;
        CHECK(ends);
    }
}

/* The wanted rows are those whose position is among the last n_logits of their span. */
static void check_wanted(const struct spw_cut *c, const struct spw_step_span *spans)
{
    struct spw_wanted_row w = {0, UINT64_MAX};
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->n_parts; i++)
        for (uint64_t at = c->parts[i].from; at < c->parts[i].to; at++) {
            const struct spw_step_span *s = &spans[c->parts[i].span];
            if (at + s->n_logits < s->to)
                continue;
            CHECK(spw_cut_next_wanted(c, spans, &w) && w.part == i && w.position == at);
            n++;
        }
    CHECK(!spw_cut_next_wanted(c, spans, &w) && spw_cut_count_wanted(c, spans) == n);
}

static void run(uint64_t *seed)
{
    uint32_t n_spans = (uint32_t)check_range(seed, 1, MOST_SPANS), passes = 0;
    uint32_t chunk = (uint32_t)check_range(seed, 1, check_random(seed) % 2 ? 8 : 600);
    uint64_t pass = check_range(seed, 1, check_random(seed) % 2 ? chunk : 3000), total = 0, cut = 0;
    struct spw_step_span spans[MOST_SPANS], before[MOST_SPANS];
    const bool borders = check_random(seed) % 2;
    bool has_source = false;
    struct spw_cut c;
    for (uint32_t i = 0; i < n_spans; i++) {
        uint64_t from = check_range(seed, 0, 1000);
        uint64_t most = check_random(seed) % 2 ? 2 : check_random(seed) % 2 ? chunk + 2 : 1500;
        spans[i] = (struct spw_step_span){.from = from, .to = from + check_range(seed, 0, most)};
        spans[i].n_logits = check_range(seed, 0, check_random(seed) % 2 ? 3 : 2 * most);
        total += spans[i].to - from;
        if (check_random(seed) % 4 == 0) /* a source, whole, which a pass has room for */
            spans[i].n_source = from + spw_min_u64(check_range(seed, 0, pass), spans[i].to - from);
        has_source |= spans[i].from < spans[i].n_source;
    }
    CHECK(spw_cut_init(&c, chunk, pass, n_spans, borders) == 0);
    do {
        memcpy(before, spans, sizeof spans);
        if (!spw_cut_next(&c, spans, n_spans))
            break;
        check_pass(&c, before, spans, n_spans);
        check_sources(&c, before);
        check_whole(&c, before, spans, n_spans);
        check_wanted(&c, spans);
        check_borders(&c, before, spans, n_spans);
        cut += c.rows;
        passes++;
        /* only the last pass has room left, or one that the next source does not fit */
        CHECK(has_source || c.rows == pass || cut == total);
    } while (passes < 10000);
    CHECK(cut == total);
    spw_cut_free(&c);
}

int main(void)
{
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < 20000; i++)
        run(&seed);
    for (int n = 0; n < 2; n++) { /* no memory: nothing is left behind */
        struct spw_cut c;
        spw_alloc_fail_nth(n);
        CHECK(spw_cut_init(&c, 16, 100, 2, false) == -ENOMEM);
        spw_alloc_fail_nth(-1);
    }
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
