/* The byte account as a pure function: see traffic.h. */
#include "runtime/traffic.h"

#include "runtime/traffic_tiles.h"

#include <string.h>

void spw_traffic_range(const struct spw_residency *r, bool sliding, const struct spw_passage *p,
                       uint64_t from, uint32_t *first, uint32_t *end)
{
    *first = spw_waterline_start(r);
    *end = spw_waterline_pass(r, p, from);
    if (sliding) {
        *first = spw_waterline_first(r->window, from);
        *end = spw_waterline_begin(r, true, from);
    }
}

uint32_t spw_traffic_disk(const struct spw_residency *r, bool sliding, const struct spw_passage *p,
                          uint64_t from)
{
    uint32_t written, wait;
    if (sliding)
        return spw_waterline_disk(r, true, spw_waterline_begin(r, true, from));
    /* Every chunk before this one has raised the waterline to where it is now, or higher before. */
    written = spw_waterline_pass(r, p, from);
    wait = spw_waterline_wait(r, p);
    written = written > wait ? written : wait;
    return spw_waterline_disk(r, false, written > p->written ? written : p->written);
}

/* The output matrix is streamed once for each round of logits rows. */
static void add_streamed_weights(struct spw_traffic *t, const struct spw_plan *p,
                                 const struct spw_weights *w, uint64_t layers, uint64_t head_rounds)
{
    for (uint32_t u = 0; u < w->n_units; u++) {
        uint64_t times = u < w->config->n_layers ? u < layers : head_rounds;
        if (spw_plan_unit_resident(p, w, u))
            continue;
        t->bytes[SPW_MOVED_HOST_TO_DEVICE] += times * spw_plan_unit_moved_bytes(p, w, u);
        t->bytes[SPW_MOVED_DISK_TO_HOST] += times * spw_plan_unit_disk_bytes(p, w, u);
    }
}

uint64_t spw_traffic_chunks(const struct spw_weights *w, const struct spw_cut *cut)
{
    return (uint64_t)w->config->n_layers * cut->n_chunks;
}

/* Of the first chunks, counted over the layers. */
static uint64_t rows_of(const struct spw_cut *cut, uint64_t chunks)
{
    uint64_t rest = chunks % cut->n_chunks;
    return chunks / cut->n_chunks * cut->rows + (rest ? cut->chunks[rest].row : 0);
}

void spw_traffic_pass(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                      const struct spw_cut *cut, uint64_t chunks, uint64_t heads)
{
    uint64_t all = spw_traffic_chunks(w, cut);
    uint64_t down = heads * w->config->vocab * sizeof(float), up; /* up: rows */
    if (p->hidden_on_host && cut->n_chunks > 1) { /* the next chunk comes up beside this one */
        up = rows_of(cut, spw_min_u64(chunks + 1, all)) + heads;
        down += rows_of(cut, chunks) * p->hidden_row_bytes;
    } else {
        up = rows_of(cut, spw_min_u64(chunks, cut->n_chunks)); /* embeddings */
    }
    add_streamed_weights(t, p, w, spw_div_up(chunks, cut->n_chunks),
                         spw_div_up(heads, p->logits_rows));
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * p->hidden_row_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += down;
}

uint64_t spw_traffic_flags(const struct spw_plan *p)
{
    return p->residency.aged ? sizeof(uint32_t) : 0;
}

uint64_t spw_traffic_open_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    uint64_t bytes = w->n_small * sizeof(float);
    for (uint32_t u = 0; u < w->n_units; u++)
        if (spw_plan_unit_resident(p, w, u))
            bytes += spw_plan_unit_moved_bytes(p, w, u);
    return bytes;
}

/* ---- a run: what sessions hold, and what their steps move ---- */

struct spw_traffic_run {
    const struct spw_plan *plan;       /* borrowed */
    const struct spw_weights *weights; /* borrowed */
    struct spw_tiles *tiles;           /* owned, as what follows */
    struct spw_cut cut;
    struct spw_passage *passages;         /* [sessions], of the running pass */
    struct spw_cut_span *rest;            /* [sessions], of the running step, as what follows */
    const struct spw_traffic_span *spans; /* [n_spans], borrowed */
    uint32_t n_spans;
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
        rows[n++] = (struct spw_tiles_row){c->layer_kinds[l] == SPW_LAYER_SLIDING, 1};
    if (!by_layer && p->n_full)
        rows[n++] = (struct spw_tiles_row){false, p->n_full};
    if (!by_layer && p->n_sliding)
        rows[n++] = (struct spw_tiles_row){true, p->n_sliding};
    int rc = spw_tiles_open(&r->tiles, &(struct spw_tiles_options){
                                           .rows = rows,
                                           .n_rows = n,
                                           .n_sessions = p->info.sessions,
                                           .max_tiles = p->max_tiles,
                                           .first_tile = spw_waterline_start(&p->residency),
                                           .disk = p->n_disk_frames || p->adopts,
                                           .direct = p->direct,
                                       });
    spw_free(rows);
    return rc;
}

int spw_traffic_run_open(struct spw_traffic_run **out, const struct spw_plan *p,
                         const struct spw_weights *w, bool by_layer)
{
    uint32_t n = p->info.sessions;
    struct spw_traffic_run *r = spw_alloc_zero(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->plan = p;
    r->weights = w;
    r->passages = spw_alloc_zero(n, sizeof *r->passages);
    r->rest = spw_alloc_zero(n, sizeof *r->rest);
    int rc = r->passages && r->rest ? open_tiles(r, by_layer) : -ENOMEM;
    if (!rc)
        rc = spw_cut_init(&r->cut, p->chunk, spw_min_u64(p->pass_rows, n * p->info.context), n);
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
    spw_cut_free(&r->cut);
    spw_free(r->passages);
    spw_free(r->rest);
    spw_free(r);
}

void spw_traffic_run_moved(const struct spw_traffic_run *r, struct spw_traffic *out)
{
    *out = r->moved;
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

void spw_traffic_up(struct spw_traffic *t, const struct spw_plan *p, uint64_t from_host,
                    uint64_t from_disk)
{
    uint64_t over_link = from_host + (p->direct ? 0 : from_disk);
    t->bytes[SPW_MOVED_DISK_TO_HOST] += from_disk * p->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += over_link * p->tile_bytes;
}

/* What comes from the disk crosses the device's link too, unless it lands there itself. */
static void add_tiles(struct spw_traffic *t, const struct spw_plan *p,
                      const struct spw_tiles_moved *m)
{
    uint64_t up = m->from_host + (p->direct ? 0 : m->from_disk);
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * p->tile_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += m->to_host * p->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DISK] += m->to_disk * p->tile_bytes;
    t->bytes[SPW_MOVED_DISK_TO_HOST] += m->from_disk * p->tile_bytes;
}

/* ---- waterlines: the executor's moves, in its order ---- */

/* Where old tiles are kept apart, sliding layers keep none: all they have is near. */
static bool moves(const struct spw_residency *r, const struct spw_tiles_row *row)
{
    return !r->aged || !row->sliding;
}

static void spill(struct spw_traffic_run *r, uint32_t session, uint32_t row, bool sliding,
                  uint32_t begin, struct spw_tiles_moved *m)
{
    spw_tiles_spill(r->tiles, session, row, begin,
                    spw_waterline_disk(&r->plan->residency, sliding, begin), m);
}

static void settle(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                   struct spw_tiles_moved *m)
{
    const struct spw_residency *at = &r->plan->residency;
    uint32_t n_rows;
    const struct spw_tiles_row *rows = spw_tiles_rows(r->tiles, &n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t begin = spw_waterline_begin(at, rows[i].sliding, n);
        if (!moves(at, &rows[i]))
            continue;
        if (rows[i].sliding)
            spw_tiles_drop(r->tiles, session, i, spw_waterline_first(at->window, n));
        spill(r, session, i, rows[i].sliding, begin, m);
        spw_tiles_load(r->tiles, session, i, begin, m);
    }
}

static void raise_waiting(struct spw_traffic_run *r, const struct spw_traffic_span *spans,
                          uint32_t n, struct spw_tiles_moved *m)
{
    uint32_t n_rows;
    const struct spw_tiles_row *rows = spw_tiles_rows(r->tiles, &n_rows);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_rows; k++)
            if (!rows[k].sliding)
                spill(r, spans[i].session, k, false,
                      spw_waterline_wait(&r->plan->residency, &r->passages[i]), m);
}

static void enter(struct spw_traffic_run *r, uint32_t row, bool sliding,
                  const struct spw_traffic_span *spans, uint32_t n, struct spw_tiles_moved *m)
{
    const struct spw_residency *at = &r->plan->residency;
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_passage *p = &r->passages[i];
        if (p->from < p->to)
            spw_tiles_load(
                r->tiles, spans[i].session, row,
                sliding ? spw_waterline_begin(at, true, p->from) : spw_waterline_enter(at, p), m);
    }
}

/* New tokens; what is old by then; and what is read of tiles below the device. */
static void attend(struct spw_traffic_run *r, uint32_t row, bool sliding, uint32_t session,
                   const struct spw_cut_segment *s, struct spw_tiles_moved *m)
{
    const struct spw_residency *at = &r->plan->residency;
    uint32_t first, end;
    if (at->aged)
        spw_tiles_grow(r->tiles, session, row, 0,
                       (uint64_t)spw_waterline_end(at, s->to) * SPW_TILE_TOKENS);
    else
        spw_tiles_grow(r->tiles, session, row, s->from, s->to);
    spw_traffic_range(at, sliding, &r->passages[s->span], s->from, &first, &end);
    spw_tiles_stream(r->tiles, session, row, first, end, m);
}

static void age(struct spw_traffic_run *r, uint32_t row, bool sliding, uint32_t session,
                const struct spw_cut_segment *s, struct spw_tiles_moved *m)
{
    const struct spw_residency *at = &r->plan->residency;
    const struct spw_passage *p = &r->passages[s->span];
    if (sliding) {
        spw_tiles_drop(r->tiles, session, row, spw_waterline_first(at->window, s->to));
        spill(r, session, row, true, spw_waterline_begin(at, true, s->to), m);
        return;
    }
    spill(r, session, row, false,
          s->to < p->to ? spw_waterline_pass(at, p, s->to) : spw_waterline_leave(at, p), m);
}

static void pass_chunk(struct spw_traffic_run *r, uint32_t row, bool sliding,
                       const struct spw_cut_chunk *k, const struct spw_traffic_span *spans,
                       struct spw_tiles_moved *m)
{
    const struct spw_cut_segment *s = &r->cut.segments[k->first_segment];
    for (uint32_t i = 0; i < k->n_segments; i++)
        attend(r, row, sliding, spans[s[i].span].session, &s[i], m);
    for (uint32_t i = 0; i < k->n_segments; i++)
        age(r, row, sliding, spans[s[i].span].session, &s[i], m);
}

/* ---- a step ---- */

void spw_traffic_passages(struct spw_passage *out, const struct spw_residency *r,
                          const struct spw_cut *cut, const struct spw_cut_span *rest, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (struct spw_passage){.from = rest[i].from, .to = rest[i].from};
    for (uint32_t i = cut->n_segments; i-- > 0;) {
        const struct spw_cut_segment *s = &cut->segments[i];
        struct spw_passage *p = &out[s->span];
        p->chunked = s->to < p->to;
        p->from = s->from;
        p->begin = spw_waterline_begin(r, false, s->from);
    }
}

static uint64_t wanted_rows(const struct spw_traffic_run *r, const struct spw_traffic_span *spans)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->cut.n_segments; i++) {
        const struct spw_cut_segment *s = &r->cut.segments[i];
        const struct spw_traffic_span *x = &spans[s->span];
        n += spw_sub_u64(s->to, spw_max_u64(spw_sub_u64(x->to, x->n_logits), s->from));
    }
    return n;
}

/* So many chunks of the pass, counted over the layers. */
static void pass_layers(struct spw_traffic_run *r, const struct spw_traffic_span *spans, uint32_t n,
                        uint64_t chunks, struct spw_tiles_moved *m)
{
    uint32_t n_rows;
    const struct spw_tiles_row *rows = spw_tiles_rows(r->tiles, &n_rows);
    raise_waiting(r, spans, n, m);
    for (uint32_t i = 0; i < n_rows; i++) {
        uint64_t here = spw_min_u64(chunks, r->cut.n_chunks);
        if (!here || !moves(&r->plan->residency, &rows[i])) {
            chunks -= here;
            continue;
        }
        enter(r, i, rows[i].sliding, spans, n, m);
        for (uint64_t k = 0; k < here; k++)
            pass_chunk(r, i, rows[i].sliding, &r->cut.chunks[k], spans, m);
        chunks -= here;
    }
}

static void hold(struct spw_traffic_run *r, const struct spw_traffic_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n && r->plan->holds && !r->plan->residency.aged; i++)
        if (r->passages[i].from < r->passages[i].to && spans[i].to != spans[i].from + 1)
            spw_tiles_hold(r->tiles, spans[i].session);
}

static void pass(struct spw_traffic_run *r, const struct spw_traffic_span *spans, uint32_t n,
                 const struct spw_traffic_end *end)
{
    struct spw_tiles_moved m = {0};
    uint64_t all = spw_traffic_chunks(r->weights, &r->cut);
    uint64_t chunks = end ? end->chunks : all, heads = end ? end->heads : wanted_rows(r, spans);
    hold(r, spans, n);
    pass_layers(r, spans, n, chunks, &m);
    if (!end || end->through) {
        for (uint32_t i = 0; i < n; i++)
            settle(r, spans[i].session, r->passages[i].to, &m);
        r->moved.bytes[SPW_MOVED_DEVICE_TO_HOST] += spw_traffic_flags(r->plan);
    }
    add_tiles(&r->moved, r->plan, &m);
    spw_traffic_pass(&r->moved, r->plan, r->weights, &r->cut, chunks, heads);
}

void spw_traffic_begin(struct spw_traffic_run *r, const struct spw_traffic_span *spans, uint32_t n)
{
    if (!r)
        return;
    r->spans = spans;
    r->n_spans = n;
    for (uint32_t i = 0; i < n; i++)
        r->rest[i] = (struct spw_cut_span){spans[i].from, spans[i].to};
}

bool spw_traffic_next(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    if (!r || !spw_cut_next(&r->cut, r->rest, r->n_spans))
        return false;
    spw_traffic_passages(r->passages, &r->plan->residency, &r->cut, r->rest, r->n_spans);
    pass(r, r->spans, r->n_spans, end);
    return true;
}

uint64_t spw_traffic_passed(const struct spw_traffic_run *r, uint32_t i)
{
    return r->rest[i].from;
}

void spw_traffic_step(struct spw_traffic_run *r, const struct spw_traffic_span *spans, uint32_t n)
{
    spw_traffic_begin(r, spans, n);
    while (spw_traffic_next(r, NULL))
        ;
}

void spw_traffic_cut_back(struct spw_traffic_run *r, uint32_t session, uint64_t n)
{
    struct spw_tiles_moved m = {0};
    if (!r)
        return;
    const struct spw_residency *at = &r->plan->residency;
    spw_tiles_truncate(r->tiles, session,
                       at->aged ? (uint64_t)spw_waterline_end(at, n) * SPW_TILE_TOKENS : n);
    settle(r, session, n, &m);
    add_tiles(&r->moved, r->plan, &m);
}

void spw_traffic_fork(struct spw_traffic_run *r, uint32_t to, uint32_t from)
{
    if (r)
        spw_tiles_fork(r->tiles, to, from);
}

void spw_traffic_close(struct spw_traffic_run *r, uint32_t session)
{
    if (r)
        spw_tiles_clear(r->tiles, session);
}

void spw_traffic_adopt(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                       uint32_t end)
{
    if (r)
        spw_tiles_adopt(r->tiles, session, row, first, end);
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

static void count_reads(struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    struct spw_plan_info *i = &p->info;
    uint64_t row = (uint64_t)c->n_heads * c->head_dim;
    uint64_t per_token = 2 * (uint64_t)c->n_kv_heads * c->head_dim * spw_dtype_bytes(p->info.kv);
    uint64_t n = p->info.context, seen = p->n_sliding ? spw_min_u64(n, c->window) : 0;
    uint64_t old = p->residency.aged ? p->full_tiles : 0;
    uint64_t full = old * p->tile_bytes + (n - old * SPW_TILE_TOKENS) * per_token;
    i->decode_read_bytes = i->weights_bytes + p->n_full * full + p->n_sliding * seen * per_token;
    i->decode_old_kv_bytes = p->n_full * old * p->tile_bytes;
    i->decode_old_products = p->n_full * old * SPW_TILE_TOKENS * row;
    i->decode_products = (p->n_full * n + p->n_sliding * seen) * row - i->decode_old_products;
}

/* Slots of the ring that a decode step at the full context fills, and what comes into them. */
static void count_slots(struct spw_plan *p)
{
    struct spw_plan_info *i = &p->info;
    struct spw_passage passage = {.from = i->context - 1,
                                  .to = i->context,
                                  .begin =
                                      spw_waterline_begin(&p->residency, false, i->context - 1)};
    i->decode_slots = i->decode_slot_bytes = 0;
    for (int sliding = 0; sliding < 2 && p->n_kv_slots; sliding++) {
        uint32_t first, end, n_layers = sliding ? p->n_sliding : p->n_full;
        if (!n_layers)
            continue;
        spw_traffic_range(&p->residency, sliding, &passage, i->context - 1, &first, &end);
        if (first >= end)
            continue;
        i->decode_slots +=
            n_layers * (spw_div_up(end, p->slot_tiles) - (uint64_t)first / p->slot_tiles);
        i->decode_slot_bytes += (uint64_t)n_layers * (end - first) * p->tile_bytes;
    }
}

int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w)
{
    struct spw_plan_info *i = &p->info;
    struct spw_traffic_run *r;
    struct spw_traffic before;
    SPW_TRY(spw_traffic_run_open(&r, p, w, false));
    spw_traffic_step(r, &(struct spw_traffic_span){0, 0, i->context, 1}, 1);
    memcpy(i->prefill_moved_bytes, r->moved.bytes, sizeof r->moved.bytes);
    uint32_t disk_end = spw_tiles_disk_end(r->tiles, 0, 0);
    if (p->n_full && disk_end > spw_waterline_start(&p->residency))
        i->waterlines.disk_end =
            spw_min_u64((uint64_t)disk_end * SPW_TILE_TOKENS, i->waterlines.host_end);
    spw_tiles_clear(r->tiles, 0);
    spw_traffic_step(r, &(struct spw_traffic_span){0, 0, i->context - 1, 1}, 1);
    count_slots(p);
    before = r->moved;
    spw_traffic_step(r, &(struct spw_traffic_span){0, i->context - 1, i->context, 1}, 1);
    for (int k = 0; k < SPW_MOVED_COUNT; k++)
        i->decode_moved_bytes[k] = r->moved.bytes[k] - before.bytes[k];
    count_reads(p, w);
    spw_traffic_run_close(r);
    return 0;
}
