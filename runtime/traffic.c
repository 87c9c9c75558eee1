/* The byte account as a pure function: see traffic.h. */
#include "runtime/traffic.h"

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

/* ---- what comes back up ---- */

void spw_traffic_up(struct spw_traffic *t, const struct spw_plan *p, uint64_t from_host,
                    uint64_t from_disk)
{
    uint64_t over_link = from_host + (p->direct ? 0 : from_disk);
    t->bytes[SPW_MOVED_DISK_TO_HOST] += from_disk * p->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += over_link * p->tile_bytes;
}

/* Tiles [first, end) of `n_layers` layers, those below `disk` from there. */
static void add_up(struct spw_traffic *t, const struct spw_plan *p, uint64_t n_layers,
                   uint32_t first, uint32_t end, uint32_t disk)
{
    uint64_t tiles = end > first ? end - first : 0;
    uint64_t from_disk = disk > first ? spw_min_u64(disk - first, tiles) : 0;
    spw_traffic_up(t, p, n_layers * (tiles - from_disk), n_layers * from_disk);
}

void spw_traffic_kv(struct spw_traffic *t, const struct spw_plan *p, const struct spw_cut *cut,
                    const struct spw_passage *passages)
{
    const struct spw_residency *r = &p->residency;
    for (uint32_t i = 0; i < cut->n_segments; i++) {
        const struct spw_cut_segment *s = &cut->segments[i];
        const struct spw_passage *passage = &passages[s->span];
        for (int sliding = 0; sliding < 2; sliding++) {
            uint32_t first, end, n_layers = sliding ? p->n_sliding : p->n_full;
            if (!n_layers)
                continue;
            spw_traffic_range(r, sliding, passage, s->from, &first, &end);
            add_up(t, p, n_layers, first, end, spw_traffic_disk(r, sliding, passage, s->from));
        }
    }
}

/* ---- what goes down ---- */

/* The copies below of one layer, as its waterlines rise. */
struct copies {
    const struct spw_plan *plan;
    bool sliding;
    uint32_t written, disk; /* tiles below `disk` are on disk, those below `written` on the host */
    uint64_t to_host, to_disk;
};

/* A tile that is below the disk's waterline already need not touch the host on its way. */
static void rise(struct copies *c, uint32_t begin)
{
    if (begin <= c->written)
        return;
    uint32_t disk = spw_waterline_disk(&c->plan->residency, c->sliding, begin);
    disk = disk > c->disk ? disk : c->disk;
    uint32_t on_host = disk > c->written && c->plan->direct ? disk : c->written;
    c->to_host += begin - on_host;
    c->to_disk += disk - c->disk;
    c->written = begin;
    c->disk = disk;
}

/* Tiles below `first` are forgotten, wherever they were. */
static void drop(struct copies *c, uint32_t first)
{
    c->written = c->written > first ? c->written : first;
    c->disk = c->disk > first ? c->disk : first;
}

static void add_down(struct spw_traffic *t, const struct copies *c, uint64_t n_layers)
{
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += n_layers * c->to_host * c->plan->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DISK] += n_layers * c->to_disk * c->plan->tile_bytes;
}

/* A full layer: down to wait, up when it begins to pass, down with each chunk, up to rest. */
static void full_waterlines(struct spw_traffic *t, const struct spw_plan *p,
                            const struct spw_cut *cut, const struct spw_passage *passage)
{
    const struct spw_residency *r = &p->residency;
    uint32_t wait = spw_waterline_wait(r, passage), leave = spw_waterline_leave(r, passage);
    struct copies c = {.plan = p};
    c.written = passage->written > passage->begin ? passage->written : passage->begin;
    c.disk = spw_waterline_disk(r, false, c.written);
    rise(&c, wait);
    add_up(t, p, p->n_full, spw_waterline_enter(r, passage), wait, c.disk);
    for (uint32_t i = 0; i + 1 < cut->n_segments; i++)
        rise(&c, spw_waterline_pass(r, passage, cut->segments[i].to));
    rise(&c, leave);
    add_up(t, p, p->n_full, spw_waterline_begin(r, false, passage->to), leave, c.disk);
    add_down(t, &c, p->n_full);
}

/* A sliding layer: chunk by chunk, because what leaves the window is never written. */
static void sliding_waterlines(struct spw_traffic *t, const struct spw_plan *p,
                               const struct spw_cut *cut, const struct spw_passage *passage)
{
    const struct spw_residency *r = &p->residency;
    struct copies c = {.plan = p, .sliding = true};
    c.written = spw_waterline_begin(r, true, passage->from);
    c.disk = spw_waterline_disk(r, true, c.written);
    drop(&c, spw_waterline_first(r->window, passage->from));
    for (uint32_t i = 0; i < cut->n_segments; i++) {
        drop(&c, spw_waterline_first(r->window, cut->segments[i].to));
        rise(&c, spw_waterline_begin(r, true, cut->segments[i].to));
    }
    add_down(t, &c, p->n_sliding);
}

void spw_traffic_waterlines(struct spw_traffic *t, const struct spw_plan *p,
                            const struct spw_cut *cut, const struct spw_passage *passage)
{
    if (p->n_full)
        full_waterlines(t, p, cut, passage);
    if (p->n_sliding)
        sliding_waterlines(t, p, cut, passage);
}

uint64_t spw_traffic_flags(const struct spw_plan *p)
{
    return p->residency.aged ? sizeof(uint32_t) : 0;
}

uint64_t spw_traffic_open(const struct spw_plan *p, const struct spw_weights *w)
{
    uint64_t bytes = w->n_small * sizeof(float);
    for (uint32_t u = 0; u < w->n_units; u++)
        if (spw_plan_unit_resident(p, w, u))
            bytes += spw_plan_unit_moved_bytes(p, w, u);
    return bytes;
}

/* One step of one session from `from` to `to` tokens, pass by pass. `written`: see spw_passage. */
static int walk(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                uint64_t from, uint64_t to, uint32_t *written)
{
    struct spw_cut cut;
    struct spw_cut_span span = {from, to};
    if (from == to)
        return 0;
    SPW_TRY(spw_cut_init(&cut, p->chunk, spw_min_u64(p->pass_rows, to - from), 1));
    for (uint64_t done = from; spw_cut_next(&cut, &span, 1); done = span.from) {
        struct spw_passage passage = {.from = done,
                                      .to = span.from,
                                      .begin = spw_waterline_begin(&p->residency, false, done),
                                      .written = *written,
                                      .chunked = cut.n_segments > 1};
        spw_traffic_pass(t, p, w, &cut, spw_traffic_chunks(w, &cut), span.from == to);
        t->bytes[SPW_MOVED_DEVICE_TO_HOST] += spw_traffic_flags(p);
        spw_traffic_kv(t, p, &cut, &passage);
        spw_traffic_waterlines(t, p, &cut, &passage);
        uint32_t leave = spw_waterline_leave(&p->residency, &passage);
        *written = *written > leave ? *written : leave;
    }
    spw_cut_free(&cut);
    return 0;
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
static void count_slots(struct spw_plan *p, uint32_t written)
{
    struct spw_plan_info *i = &p->info;
    struct spw_passage passage = {.from = i->context - 1,
                                  .to = i->context,
                                  .begin =
                                      spw_waterline_begin(&p->residency, false, i->context - 1),
                                  .written = written};
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
    struct spw_traffic prefill = {{0}}, before = {{0}}, decode = {{0}};
    uint32_t written = 0, written_before = 0;
    SPW_TRY(walk(&prefill, p, w, 0, i->context, &written));
    SPW_TRY(walk(&before, p, w, 0, i->context - 1, &written_before));
    count_slots(p, written_before);
    SPW_TRY(walk(&decode, p, w, i->context - 1, i->context, &written_before));
    uint32_t disk_end = spw_waterline_disk(&p->residency, false, written);
    if (p->n_full && disk_end > spw_waterline_start(&p->residency))
        i->waterlines.disk_end =
            spw_min_u64((uint64_t)disk_end * SPW_TILE_TOKENS, i->waterlines.host_end);
    memcpy(i->prefill_moved_bytes, prefill.bytes, sizeof prefill.bytes);
    memcpy(i->decode_moved_bytes, decode.bytes, sizeof decode.bytes);
    count_reads(p, w);
    return 0;
}
