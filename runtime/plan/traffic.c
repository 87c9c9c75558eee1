/* The byte account as a pure function: see traffic.h. */
#include "runtime/plan/traffic.h"

#include "runtime/plan/traffic_tiles.h"

#include <string.h>

/* Streamed blocks of a pass from `layer` on, the head's once for each round of logits rows: as many
 * as have been begun; what comes from disk by way of the host is up once it has landed there. */
static void add_blocks(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                       uint64_t layer, uint64_t wanted, const struct spw_schedule_progress *rings)
{
    const uint32_t of_layers = w->layer_blocks[w->config->n_layers];
    struct spw_schedule schedule = {.n_layer_blocks = of_layers,
                                    .n_head_blocks = w->n_blocks - of_layers,
                                    .n_head_rounds = (uint32_t)spw_div_up(wanted, p->logits_rows)};
    struct spw_block_cursor at = {.block = w->layer_blocks[layer]};
    uint32_t u;
    for (uint64_t i = 0; i < rings->blocks && spw_schedule_next_block(&schedule, &at, &u);) {
        if (spw_plan_block_resident(p, w, u))
            continue;
        uint64_t read = spw_plan_block_disk_bytes(p, w, u);
        if (!read || i < rings->queued_blocks)
            t->bytes[SPW_MOVED_HOST_TO_DEVICE] += spw_plan_block_moved_bytes(p, w, u);
        t->bytes[SPW_MOVED_DISK_TO_HOST] += read;
        i++;
    }
}

/* Of the first chunks, counted over the layers. */
static uint64_t rows_of(const struct spw_cut *cut, uint64_t chunks)
{
    uint64_t rest = chunks % cut->n_chunks;
    return chunks / cut->n_chunks * cut->rows + (rest ? cut->chunks[rest].row : 0);
}

/* Rows of embeddings and hidden states that have come up when a pass has come to `end`. */
static uint64_t rows_up(const struct spw_cut *cut, uint64_t n_layers, bool through_host,
                        const struct spw_traffic_end *end)
{
    uint64_t all = n_layers * cut->n_chunks;
    if (!through_host)
        return rows_of(cut, spw_min_u64(end->begun_chunks, cut->n_chunks)); /* embeddings */
    /* the next chunk comes up beside this one */
    uint64_t up = end->begun_chunks ? rows_of(cut, spw_min_u64(end->begun_chunks + 1, all)) : 0;
    return up + end->begun_logits;
}

/* Embeddings, hidden states and logits, between two points of a pass. */
static void add_rows(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                     const struct spw_cut *cut, bool through_host,
                     const struct spw_traffic_end *from, const struct spw_traffic_end *end)
{
    uint64_t n = w->config->n_layers;
    uint64_t up = rows_up(cut, n, through_host, end) - rows_up(cut, n, through_host, from);
    uint64_t down = through_host ? rows_of(cut, end->chunks) - rows_of(cut, from->chunks) : 0;
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * p->hidden_row_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += down * p->hidden_row_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += end->logits * w->config->vocab * sizeof(float);
}

uint64_t spw_traffic_flags(const struct spw_plan *p)
{
    return p->quantizes ? sizeof(uint32_t) : 0;
}

uint64_t spw_traffic_open_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    uint64_t bytes = w->n_small * sizeof(float);
    for (uint32_t u = 0; u < w->n_blocks; u++)
        if (spw_plan_block_resident(p, w, u))
            bytes += spw_plan_block_moved_bytes(p, w, u);
    return bytes;
}

/* ---- a run: what sessions hold, and what their steps move ---- */

/* A step and its running pass. */
struct account {
    struct spw_cut cut;                /* owned, as what follows */
    struct spw_pass_span *pass_spans;  /* [sessions], of the pass */
    struct spw_step_span *rest;        /* [sessions], what no pass has taken yet */
    const struct spw_step_span *spans; /* [n_spans], borrowed */
    uint32_t n_spans;
    struct spw_traffic_end from; /* what is counted of the pass */
    bool is_aside;
};

struct spw_traffic_run {
    const struct spw_plan *plan;       /* borrowed */
    const struct spw_weights *weights; /* borrowed */
    struct spw_tiles *tiles;           /* owned, as what follows */
    struct spw_share *shares;          /* [sessions], their residency */
    struct spw_schedule_rows *parts;   /* [cut.most_parts], of the running row: only numbers */
    struct spw_step_span *ahead;       /* [sessions], scratch */
    struct spw_step_span *expected;    /* [n_expected], the step that may come next */
    struct account accounts[2], *now;  /* the second one beside a step that was set aside */
    uint32_t n_expected;
    struct spw_traffic moved;
};

static int open_tiles(struct spw_traffic_run *r, bool by_layer)
{
    const struct spw_plan *p = r->plan;
    const struct spw_model_config *c = r->weights->config;
    struct spw_tiles_row *rows = spw_alloc_zero(c->n_layers, sizeof *rows);
    uint32_t n = 0;
    if (!rows)
        return -ENOMEM;
    for (uint32_t l = 0; l < c->n_layers && by_layer; l++)
        rows[n++] = (struct spw_tiles_row){c->layer_kinds[l], 1};
    for (uint8_t k = 0; k < SPW_LAYER_KINDS && !by_layer; k++)
        if (p->n_layers[k])
            rows[n++] = (struct spw_tiles_row){k, p->n_layers[k]};
    int rc = spw_tiles_open(&r->tiles, &(struct spw_tiles_options){
                                           .rows = rows,
                                           .n_rows = n,
                                           .n_sessions = p->info.sessions,
                                           .max_tiles = p->max_tiles,
                                           .first_tile = p->quantizes,
                                           .disk = p->n_disk_frames || p->attaches,
                                           .disk_to_device = p->disk_to_device,
                                       });
    spw_free(rows);
    return rc;
}

static int open_account(struct account *a, const struct spw_plan *p, uint64_t pass_rows)
{
    uint32_t n = p->info.sessions;
    a->pass_spans = spw_alloc_zero(n, sizeof *a->pass_spans);
    a->rest = spw_alloc_zero(n, sizeof *a->rest);
    return a->pass_spans && a->rest ? spw_cut_init(&a->cut, p->chunk, pass_rows, n) : -ENOMEM;
}

static void close_account(struct account *a)
{
    spw_cut_free(&a->cut);
    spw_free(a->pass_spans);
    spw_free(a->rest);
}

static int open_run(struct spw_traffic_run *r, bool by_layer)
{
    const struct spw_plan *p = r->plan;
    uint32_t n = p->info.sessions;
    r->shares = spw_alloc_zero(n, sizeof *r->shares);
    r->ahead = spw_alloc_zero(n, sizeof *r->ahead);
    r->expected = spw_alloc_zero(n, sizeof *r->expected);
    if (!r->shares || !r->ahead || !r->expected)
        return -ENOMEM;
    spw_share_frames(p, r->shares, n);
    SPW_TRY(open_tiles(r, by_layer));
    SPW_TRY(open_account(&r->accounts[0], p, spw_min_u64(p->pass_rows, n * p->info.context)));
    if (p->rows_beside)
        SPW_TRY(open_account(&r->accounts[1], p, p->rows_beside));
    r->now = &r->accounts[0];
    r->parts = spw_alloc_zero(spw_max_u32(r->now->cut.most_parts, r->accounts[1].cut.most_parts),
                              sizeof *r->parts);
    return r->parts ? 0 : -ENOMEM;
}

int spw_traffic_run_open(struct spw_traffic_run **out, const struct spw_plan *p,
                         const struct spw_weights *w, bool by_layer)
{
    struct spw_traffic_run *r = spw_alloc_zero(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->plan = p;
    r->weights = w;
    int rc = open_run(r, by_layer);
    if (rc) {
        spw_traffic_run_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void spw_traffic_run_close(struct spw_traffic_run *r)
{
    if (!r)
        return;
    spw_tiles_close(r->tiles);
    close_account(&r->accounts[0]);
    close_account(&r->accounts[1]);
    spw_free(r->shares);
    spw_free(r->parts);
    spw_free(r->ahead);
    spw_free(r->expected);
    spw_free(r);
}

void spw_traffic_add(struct spw_traffic_run *r, enum spw_moved link, uint64_t bytes)
{
    if (r)
        r->moved.bytes[link] += bytes;
}

struct spw_tiles *spw_traffic_tiles(struct spw_traffic_run *r)
{
    return r->tiles;
}

/* What comes from the disk crosses the device's link too, unless it lands there itself. */
static void add_tiles(struct spw_traffic *t, const struct spw_plan *p,
                      const struct spw_tiles_moved *m)
{
    uint64_t up = m->from_host + (p->disk_to_device ? 0 : m->from_disk - m->in_bounce);
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * p->tile_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += m->to_host * p->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DISK] += m->to_disk * p->tile_bytes;
    t->bytes[SPW_MOVED_DISK_TO_HOST] += m->from_disk * p->tile_bytes;
}

/* ---- waterlines: the executor's moves, in its order ---- */

static const struct spw_residency *residency_of(const struct spw_traffic_run *r, uint32_t session,
                                                uint32_t row)
{
    uint32_t n_rows;
    return &r->shares[session].residency[spw_tiles_rows(r->tiles, &n_rows)[row].kind];
}

/* No tile of the row leaves the device before it is dropped. */
static bool is_fixed(const struct spw_traffic_run *r, uint32_t row)
{
    return residency_of(r, 0, row)->fixed;
}

static void spill(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t begin,
                  struct spw_tiles_moved *m)
{
    if (begin > spw_tiles_begin(r->tiles, session, row))
        spw_tiles_spill(r->tiles, session, row, begin,
                        spw_waterline_disk(residency_of(r, session, row), begin), m);
}

static uint32_t count_rows(const struct spw_traffic_run *r)
{
    uint32_t n_rows;
    spw_tiles_rows(r->tiles, &n_rows);
    return n_rows;
}

/* As spw_residency_apply. */
static void apply(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                  struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < count_rows(r); i++) {
        const struct spw_residency *at = residency_of(r, session, i);
        uint32_t begin = spw_waterline_begin(at, n);
        if (at->fixed)
            continue;
        spw_tiles_drop(r->tiles, session, i, spw_waterline_visible(at, n));
        spill(r, session, i, begin, m);
        spw_tiles_load(r->tiles, session, i, begin, m);
    }
}

/* As spw_residency_make_room. */
static void make_room(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n,
                      struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < count_rows(r); k++)
            if (!is_fixed(r, k))
                spill(r, spans[i].session, k,
                      spw_waterline_wait(residency_of(r, spans[i].session, k),
                                         &r->now->pass_spans[i]),
                      m);
}

/* As spw_residency_enter. */
static void enter(struct spw_traffic_run *r, uint32_t row, const struct spw_step_span *spans,
                  uint32_t n, struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_pass_span *p = &r->now->pass_spans[i];
        if (p->from < p->to)
            spw_tiles_load(r->tiles, spans[i].session, row,
                           spw_waterline_enter(residency_of(r, spans[i].session, row), p), m);
    }
}

/* The transfers of a pass. `begun` and `landed` count down as the walk meets transfers. */
struct flow {
    struct spw_tiles_moved moved;
    uint64_t begun, landed; /* UINT64_MAX: all */
};

/* What part `n` of a chunk reads of lower tiles: as find_donor of executor.c. */
static void describe_part(struct spw_traffic_run *r, uint32_t row, const struct spw_chunk *k,
                          const struct spw_step_span *spans, uint32_t n)
{
    const struct spw_rows *s = &r->now->cut.parts[k->first_part];
    struct spw_schedule_rows *g = &r->parts[k->first_part];
    struct spw_stream_range *range = &g[n].ranges[0];
    uint32_t session = spans[s[n].span].session;
    spw_waterline_streamed(residency_of(r, session, row), &r->now->pass_spans[s[n].span], s[n].from,
                           &range->first, &range->end);
    g[n].shared_end[0] = 0;
    for (uint32_t i = 0; i < n && range->first < range->end; i++) {
        uint32_t other = spans[s[i].span].session;
        if (g[i].shared_end[0] || other == session)
            continue;
        uint32_t both = spw_tiles_shared_end(r->tiles, other, session, row);
        g[n].shared_end[0] =
            spw_max_u32(g[n].shared_end[0],
                        spw_schedule_shared_end(&g[i].ranges[0], range, both, r->plan->slot_tiles));
    }
}

static void describe_chunk(struct spw_traffic_run *r, uint32_t row, const struct spw_chunk *k,
                           const struct spw_step_span *spans)
{
    for (uint32_t i = 0; i < k->n_parts; i++)
        describe_part(r, row, k, spans, i);
}

/* Rows read their tiles that lie below the device. */
static void stream(struct spw_traffic_run *r, uint32_t row, uint32_t session,
                   const struct spw_schedule_rows *g, struct flow *f)
{
    uint32_t slot = f->begun == UINT64_MAX ? UINT32_MAX : r->plan->slot_tiles, next;
    uint32_t first = spw_max_u32(g->ranges[0].first, g->shared_end[0]), end = g->ranges[0].end;
    for (; first < end && f->begun; first = next) {
        uint64_t before = f->moved.from_disk;
        next = (uint32_t)spw_min_u64((first / slot + 1) * (uint64_t)slot, end);
        spw_tiles_stream(r->tiles, session, row, first, next, &f->moved);
        f->moved.in_bounce += f->landed ? 0 : f->moved.from_disk - before;
        f->begun -= f->begun != UINT64_MAX;
        f->landed -= f->landed && f->landed != UINT64_MAX;
    }
}

/* New tokens get tiles; where old tiles are kept apart, only tiles that are old by then. */
static void grow(struct spw_traffic_run *r, uint32_t row, uint32_t session,
                 const struct spw_rows *s)
{
    const struct spw_residency *at = residency_of(r, session, row);
    if (at->quantizes)
        spw_tiles_grow(r->tiles, session, row, 0,
                       (uint64_t)spw_waterline_end(at, s->to) * SPW_TILE_TOKENS);
    else
        spw_tiles_grow(r->tiles, session, row, s->from, s->to);
}

/* As spw_residency_after_chunk. */
static void after_chunk(struct spw_traffic_run *r, uint32_t row, uint32_t session,
                        const struct spw_rows *s, struct spw_tiles_moved *m)
{
    const struct spw_residency *at = residency_of(r, session, row);
    spw_tiles_drop(r->tiles, session, row, spw_waterline_visible(at, s->to));
    spill(r, session, row, spw_waterline_after(at, &r->now->pass_spans[s->span], s->to), m);
}

static void pass_chunk(struct spw_traffic_run *r, uint32_t row, const struct spw_chunk *k,
                       const struct spw_step_span *spans, struct flow *f)
{
    const struct spw_rows *s = &r->now->cut.parts[k->first_part];
    for (uint32_t i = 0; i < k->n_parts; i++)
        grow(r, row, spans[s[i].span].session, &s[i]);
    describe_chunk(r, row, k, spans);
    for (uint32_t i = 0; i < k->n_parts; i++)
        stream(r, row, spans[s[i].span].session, &r->parts[k->first_part + i], f);
    for (uint32_t i = 0; i < k->n_parts; i++)
        after_chunk(r, row, spans[s[i].span].session, &s[i], &f->moved);
}

/* One that was not through: some of its parts have got tiles, and transfers may have begun. */
static void break_chunk(struct spw_traffic_run *r, uint32_t row, const struct spw_chunk *k,
                        const struct spw_step_span *spans, uint32_t n_grown, struct flow *f)
{
    const struct spw_rows *s = &r->now->cut.parts[k->first_part];
    for (uint32_t i = 0; i < n_grown; i++)
        grow(r, row, spans[s[i].span].session, &s[i]);
    describe_chunk(r, row, k, spans);
    for (uint32_t i = 0; i < k->n_parts; i++)
        stream(r, row, spans[s[i].span].session, &r->parts[k->first_part + i], f);
}

/* ---- a step ---- */

static uint64_t wanted_rows(const struct spw_traffic_run *r, const struct spw_step_span *spans)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->now->cut.n_parts; i++) {
        const struct spw_rows *s = &r->now->cut.parts[i];
        const struct spw_step_span *x = &spans[s->span];
        n += s->to - spw_cut_logits_from(s, x);
    }
    return n;
}

/* Chunks [from, chunks) of a row; behind them, chunks and transfers that had only begun. */
static void pass_row(struct spw_traffic_run *r, uint32_t row, uint64_t from, uint64_t chunks,
                     uint64_t begun, uint32_t parts, struct flow *f)
{
    const struct account *a = r->now;
    if (begun && !from)
        enter(r, row, a->spans, a->n_spans, &f->moved);
    for (uint64_t k = from; k < a->cut.n_chunks; k++)
        if (k < chunks)
            pass_chunk(r, row, &a->cut.chunks[k], a->spans, f);
        else
            break_chunk(r, row, &a->cut.chunks[k], a->spans, k < begun ? parts : 0, f);
}

/* Takes at most n chunks, those of one layer, off what is left. */
static uint64_t take_chunks(uint64_t *left, uint64_t n)
{
    uint64_t here = spw_min_u64(*left, n);
    *left -= here;
    return here;
}

static void pass_layers(struct spw_traffic_run *r, const struct spw_traffic_end *end,
                        struct flow *f)
{
    const struct account *a = r->now;
    uint64_t from = a->from.chunks, chunks = end->chunks, begun = end->begun_chunks;
    for (uint32_t i = 0; i < count_rows(r); i++) {
        uint64_t from_here = take_chunks(&from, a->cut.n_chunks);
        uint64_t here = take_chunks(&chunks, a->cut.n_chunks);
        uint64_t begun_here = take_chunks(&begun, a->cut.n_chunks);
        if (!is_fixed(r, i))
            pass_row(r, i, from_here, here, begun_here, end->parts, f);
    }
}

static void hold(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n && r->plan->retains && !r->plan->quantizes; i++)
        if (r->now->pass_spans[i].from < r->now->pass_spans[i].to &&
            spans[i].to != spans[i].from + 1)
            spw_tiles_retain(r->tiles, spans[i].session);
}

/* The running pass from where it was counted to, as far as `end`. */
static void pass(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    const struct account *a = r->now;
    uint64_t wanted = wanted_rows(r, a->spans);
    bool through_host = r->plan->hidden_on_host && a == &r->accounts[0] && a->cut.n_chunks > 1;
    struct flow f = {.begun = end->rings.transfers, .landed = end->rings.queued_transfers};
    pass_layers(r, end, &f);
    f.moved.from_disk += end->loads;
    if (end->through) {
        for (uint32_t i = 0; i < a->n_spans; i++)
            apply(r, a->spans[i].session, a->pass_spans[i].to, &f.moved);
        r->moved.bytes[SPW_MOVED_DEVICE_TO_HOST] += spw_traffic_flags(r->plan);
    }
    add_tiles(&r->moved, r->plan, &f.moved);
    add_blocks(&r->moved, r->plan, r->weights, a->from.chunks / a->cut.n_chunks, wanted,
               &end->rings);
    add_rows(&r->moved, r->plan, r->weights, &a->cut, through_host, &a->from, end);
}

static struct spw_traffic_end whole_pass(const struct spw_traffic_run *r)
{
    uint64_t all = (uint64_t)r->weights->config->n_layers * r->now->cut.n_chunks;
    uint64_t wanted = wanted_rows(r, r->now->spans);
    return (struct spw_traffic_end){.chunks = all,
                                    .begun_chunks = all,
                                    .logits = wanted,
                                    .begun_logits = wanted,
                                    .through = true,
                                    .rings = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
}

/* Cuts the next pass, unless the pass was set aside. */
static bool begin_pass(struct spw_traffic_run *r)
{
    struct account *a = r->now;
    struct spw_tiles_moved m = {0};
    if (a->is_aside) {
        a->is_aside = false;
        return true;
    }
    if (!spw_cut_next(&a->cut, a->rest, a->n_spans))
        return false;
    spw_cut_describe(&a->cut, a->rest, a->n_spans, a->pass_spans);
    a->from = (struct spw_traffic_end){0};
    hold(r, a->spans, a->n_spans);
    make_room(r, a->spans, a->n_spans, &m);
    add_tiles(&r->moved, r->plan, &m);
    return true;
}

/* What the next step is expected to be; of that, nothing is computed here. */
static void expect(struct spw_traffic_run *r)
{
    r->n_expected = r->now->n_spans;
    for (uint32_t i = 0; i < r->now->n_spans; i++)
        r->expected[i] = (struct spw_step_span){r->now->spans[i].session, r->now->spans[i].to,
                                                r->now->spans[i].to + 1, 0};
}

static void add_ahead(struct spw_traffic *t, struct spw_traffic_run *r,
                      const struct spw_schedule_progress *rings)
{
    struct flow f = {.begun = rings->transfers, .landed = rings->queued_transfers};
    if (!rings->transfers && !rings->blocks)
        return;
    for (uint32_t i = 0; i < r->n_expected; i++)
        r->ahead[i] = r->expected[i];
    spw_cut_next(&r->now->cut, r->ahead, r->n_expected);
    spw_cut_describe(&r->now->cut, r->ahead, r->n_expected, r->now->pass_spans);
    for (uint32_t i = 0; i < count_rows(r); i++)
        for (uint32_t k = 0; k < r->now->cut.n_chunks && !is_fixed(r, i); k++)
            break_chunk(r, i, &r->now->cut.chunks[k], r->expected, 0, &f);
    add_tiles(t, r->plan, &f.moved);
    add_blocks(t, r->plan, r->weights, 0, r->now->cut.rows, rings);
}

void spw_traffic_give_up(struct spw_traffic_run *r, const struct spw_schedule_progress *rings)
{
    if (r)
        add_ahead(&r->moved, r, rings);
}

void spw_traffic_run_moved(struct spw_traffic_run *r, const struct spw_schedule_progress *ahead,
                           struct spw_traffic *out)
{
    *out = r->moved;
    if (ahead)
        add_ahead(out, r, ahead);
}

void spw_traffic_begin(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n)
{
    if (!r)
        return;
    r->now->spans = spans;
    r->now->n_spans = n;
    for (uint32_t i = 0; i < n; i++)
        r->now->rest[i] = spans[i];
}

bool spw_traffic_next(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    if (!r || !begin_pass(r))
        return false;
    const struct spw_traffic_end whole = whole_pass(r);
    pass(r, end ? end : &whole);
    expect(r);
    return true;
}

void spw_traffic_set_aside(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    if (!r)
        return;
    begin_pass(r);
    pass(r, end);
    spw_traffic_add(r, SPW_MOVED_DEVICE_TO_HOST, spw_traffic_flags(r->plan));
    r->now->from = *end;
    r->now->is_aside = true;
    r->now = &r->accounts[1];
}

void spw_traffic_continue(struct spw_traffic_run *r)
{
    if (r)
        r->now = &r->accounts[0];
}

uint64_t spw_traffic_passed(const struct spw_traffic_run *r, uint32_t i)
{
    return r->now->rest[i].from;
}

void spw_traffic_step(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n)
{
    spw_traffic_begin(r, spans, n);
    while (spw_traffic_next(r, NULL))
        ;
}

/* Of n tokens, those that the tables are about: the old ones, where old tiles are kept apart. */
static uint64_t tokens_in_tables(const struct spw_plan *p, uint64_t n)
{
    return p->quantizes ? (uint64_t)spw_waterline_old_end(p->residency, n) * SPW_TILE_TOKENS : n;
}

void spw_traffic_cut_back(struct spw_traffic_run *r, uint32_t session, uint64_t n)
{
    struct spw_tiles_moved m = {0};
    if (!r)
        return;
    spw_tiles_truncate(r->tiles, session, tokens_in_tables(r->plan, n));
    apply(r, session, n, &m);
    add_tiles(&r->moved, r->plan, &m);
}

/* ---- other shares of the frames ---- */

static void take_shares(struct spw_traffic_run *r, const struct spw_share *shares)
{
    memcpy(r->shares, shares, r->plan->info.sessions * sizeof *shares);
}

/* As spw_residency_make_copies_fit. */
static void make_copies_fit(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                            struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < count_rows(r); i++) {
        const struct spw_residency *at = residency_of(r, session, i);
        uint32_t begin = spw_waterline_begin(at, n);
        if (at->fixed)
            continue;
        spw_tiles_drop_copies(r->tiles, session, i, begin);
        spw_tiles_spill(r->tiles, session, i, 0, spw_waterline_disk(at, begin), m);
    }
}

/* As spw_engine_leave_frames. */
static void leave_frames(struct spw_traffic_run *r, const uint64_t *n_tokens,
                         struct spw_tiles_moved *m)
{
    uint32_t n = r->plan->info.sessions;
    for (uint32_t i = 0; i < n; i++)
        make_copies_fit(r, i, n_tokens[i], m);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < count_rows(r); k++)
            if (!is_fixed(r, k))
                spill(r, i, k, spw_waterline_begin(residency_of(r, i, k), n_tokens[i]), m);
}

void spw_traffic_drop_copies(struct spw_traffic_run *r, uint32_t session)
{
    for (uint32_t k = 0; r && k < count_rows(r); k++)
        spw_tiles_drop_copies(r->tiles, session, k, 0);
}

bool spw_traffic_share(struct spw_traffic_run *r, const struct spw_share *shares,
                       const uint64_t *n_tokens)
{
    struct spw_tiles_moved m = {0};
    bool moves = false;
    if (!r)
        return false;
    for (uint32_t i = 0; i < r->plan->info.sessions; i++)
        moves |= n_tokens[i] && spw_share_differs(r->shares[i].residency, shares[i].residency);
    take_shares(r, shares);
    if (moves)
        leave_frames(r, n_tokens, &m);
    add_tiles(&r->moved, r->plan, &m);
    return moves;
}

/* ---- another plan ---- */

/* Exact tiles leave the tables: they lie on the device from now on. */
static void split(struct spw_traffic_run *r, const struct spw_plan *from, const uint64_t *n_tokens,
                  struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < from->info.sessions; i++)
        for (uint32_t k = 0; k < count_rows(r); k++) {
            const struct spw_residency *at = residency_of(r, i, k);
            uint32_t first =
                at->fixed ? spw_tiles_first(r->tiles, i, k) : spw_waterline_exact(at, n_tokens[i]);
            spw_tiles_load(r->tiles, i, k, first, m);
        }
    for (uint32_t i = 0; i < from->info.sessions; i++) {
        spw_tiles_truncate(r->tiles, i, tokens_in_tables(r->plan, n_tokens[i]));
        spw_tiles_split(r->tiles, i, m);
    }
}

/* Tiles below the device get their new form, each copy on its own. */
static void convert(struct spw_traffic_run *r, const struct spw_plan *from)
{
    const struct spw_plan *to = r->plan;
    bool quantized = from->format == SPW_QFORMAT_EXACT && to->format != SPW_QFORMAT_EXACT;
    uint64_t on_host, on_disk;
    spw_tiles_count_below(r->tiles, &on_host, &on_disk);
    if (to->tile_bytes == from->tile_bytes)
        return;
    uint64_t by_device = quantized ? on_host + (to->disk_to_device ? 0 : on_disk) : 0;
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, on_disk * from->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DISK, on_disk * to->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DEVICE, by_device * from->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DEVICE_TO_HOST, by_device * to->tile_bytes);
}

void spw_traffic_replan(struct spw_traffic_run *r, const struct spw_plan *from,
                        const struct spw_share *shares, const uint64_t *n_tokens,
                        uint64_t n_renumbered)
{
    struct spw_tiles_moved before = {0}, after = {0};
    if (!r)
        return;
    const struct spw_plan *to = r->plan;
    uint32_t n = from->info.sessions;
    take_shares(r, shares);
    bool apart = to->quantizes && !from->quantizes;
    for (uint32_t i = 0; i < n; i++)
        spw_tiles_truncate(r->tiles, i, tokens_in_tables(from, n_tokens[i]));
    if (apart)
        split(r, from, n_tokens, &before);
    add_tiles(&r->moved, from, &before);
    convert(r, from);
    if (apart)
        spw_tiles_end_split(r->tiles);
    leave_frames(r, n_tokens, &after);
    for (uint32_t i = 0; i < n; i++)
        apply(r, i, n_tokens[i], &after);
    for (uint32_t i = 0; i < n; i++)
        spw_traffic_drop_copies(r, i);
    add_tiles(&r->moved, to, &after);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, n_renumbered * to->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DISK, n_renumbered * to->tile_bytes);
}

bool spw_traffic_shares(const struct spw_traffic_run *r, uint32_t session, uint32_t row,
                        uint32_t tile)
{
    return r && spw_tiles_is_shared(r->tiles, session, row, tile);
}

void spw_traffic_fork(struct spw_traffic_run *r, uint32_t to, uint32_t from, uint64_t n_tokens)
{
    if (!r)
        return;
    spw_tiles_fork(r->tiles, to, from);
    spw_tiles_truncate(r->tiles, to, tokens_in_tables(r->plan, n_tokens));
    r->shares[to] = r->shares[from];
}

void spw_traffic_close(struct spw_traffic_run *r, uint32_t session)
{
    if (r)
        spw_tiles_clear(r->tiles, session);
}

void spw_traffic_attach(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end)
{
    if (r)
        spw_tiles_attach(r->tiles, session, row, first, end);
}

void spw_traffic_import(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end, bool exact)
{
    uint32_t n_rows;
    if (!r || first >= end)
        return;
    const struct spw_plan *p = r->plan;
    bool apart = p->quantizes && exact;
    uint64_t n = (end - first) * spw_tiles_rows(r->tiles, &n_rows)[row].times;
    uint64_t bytes = n * (apart ? p->exact_tile_bytes : p->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DEVICE, bytes);
    if (!apart)
        spw_tiles_import(r->tiles, session, row, first, end);
}

void spw_traffic_export(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end)
{
    uint64_t from_device = 0, from_disk = 0;
    if (!r)
        return;
    spw_tiles_export(r->tiles, session, row, first, end, &from_device, &from_disk);
    spw_traffic_add(r, SPW_MOVED_DEVICE_TO_HOST, from_device * r->plan->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, from_disk * r->plan->tile_bytes);
}
