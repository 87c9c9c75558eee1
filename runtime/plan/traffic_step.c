/* The prediction of a step, in the executor's order: see traffic.h and runtime/step/executor.c. */
#include "runtime/plan/traffic_run.h"

/* ---- blocks and rows ---- */

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
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * (p->hidden_row_bytes + p->inputs_row_bytes);
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += down * p->hidden_row_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += end->logits * w->config->vocab * sizeof(float);
}

/* In each layer with experts the host reads the choices and sends the order of rows, an index and
 * the places (runtime/step/experts.c). One row has no order. */
static void add_choices(struct spw_traffic *t, const struct spw_plan *p,
                        const struct spw_weights *w, uint64_t rows, uint64_t n_layers)
{
    uint64_t choices = n_layers * rows * w->config->experts.n_kept;
    if (spw_plan_finds_experts(p, rows))
        return;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += choices * sizeof(struct spw_choice);
    if (rows > 1)
        t->bytes[SPW_MOVED_HOST_TO_DEVICE] += choices * 2 * sizeof(uint32_t);
}

/* ---- tiles of a layer ---- */

/* As spw_residency_make_room. */
static void make_room(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n,
                      struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < spw_traffic_n_rows(r); k++)
            if (!spw_traffic_is_fixed(r, k))
                spw_traffic_spill(r, spans[i].session, k,
                                  spw_waterline_span(spw_traffic_residency(r, spans[i].session, k),
                                                     &r->now->pass_spans[i])
                                      .wait,
                                  m);
}

/* As spw_residency_enter. */
static void enter(struct spw_traffic_run *r, uint32_t row, const struct spw_step_span *spans,
                  uint32_t n, struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_pass_span *p = &r->now->pass_spans[i];
        if (p->from < p->to)
            spw_tiles_load(
                r->tiles, spans[i].session, row,
                spw_waterline_span(spw_traffic_residency(r, spans[i].session, row), p).enter, m);
    }
}

/* The transfers of a pass. `begun` and `landed` count down as the walk meets transfers. */
struct flow {
    struct spw_tiles_moved moved;
    uint64_t begun, landed; /* UINT64_MAX: all */
};

/* What part `n` of a chunk reads of lower tiles: as share_transfers of step.c. */
static void describe_part(struct spw_traffic_run *r, uint32_t row, const struct spw_chunk *k,
                          const struct spw_step_span *spans, uint32_t n)
{
    const struct spw_part *s = &r->now->cut.parts[k->first_part];
    struct spw_part_reads *g = &r->parts[k->first_part];
    struct spw_stream_range *range = &g[n].ranges[0];
    uint32_t session = spans[s[n].span].session;
    const struct spw_part_tiles tiles = spw_waterline_part(
        spw_traffic_residency(r, session, row), &r->now->pass_spans[s[n].span], s[n].from, s[n].to);
    *range = (struct spw_stream_range){tiles.first, tiles.begin};
    g[n].shared_end[0] = 0;
    for (uint32_t i = 0; i < n && range->first < range->end; i++) {
        uint32_t other = spans[s[i].span].session;
        if (g[i].shared_end[0] || other == session)
            continue;
        uint32_t both = spw_tiles_shared_end(r->tiles, other, session, row);
        g[n].shared_end[0] = spw_max_u32(
            g[n].shared_end[0],
            spw_schedule_one_transfer_end(&g[i].ranges[0], range, both, r->plan->slot_tiles));
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
                   const struct spw_part_reads *g, struct flow *f)
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
                 const struct spw_part *s)
{
    const struct spw_residency *at = spw_traffic_residency(r, session, row);
    if (at->quantizes)
        spw_tiles_grow(r->tiles, session, row, 0,
                       (uint64_t)spw_waterline_end(at, s->to) * SPW_TILE_TOKENS);
    else
        spw_tiles_grow(r->tiles, session, row, s->from, s->to);
}

/* As spw_residency_after_chunk. */
static void after_chunk(struct spw_traffic_run *r, uint32_t row, uint32_t session,
                        const struct spw_part *s, struct spw_tiles_moved *m)
{
    const struct spw_residency *at = spw_traffic_residency(r, session, row);
    spw_tiles_drop(r->tiles, session, row, spw_waterline_first_visible(at, s->to));
    spw_traffic_spill(r, session, row,
                      spw_waterline_part(at, &r->now->pass_spans[s->span], s->from, s->to).after,
                      m);
}

/* One that was not through: some of its parts have got tiles, and transfers may have begun. The
 * rows of a visit hold the same tiles. */
static void break_chunk(struct spw_traffic_run *r, const struct spw_traffic_visit *v,
                        const struct spw_chunk *k, const struct spw_step_span *spans,
                        uint32_t n_grown, struct flow *f)
{
    const struct spw_part *s = &r->now->cut.parts[k->first_part];
    const uint32_t end = v->row + v->n_rows;
    for (uint32_t i = 0; i < n_grown && v->first; i++)
        for (uint32_t row = v->row; row < end; row++)
            grow(r, row, spans[s[i].span].session, &s[i]);
    describe_chunk(r, v->row, k, spans);
    for (uint32_t i = 0; i < k->n_parts; i++)
        for (uint32_t row = v->row; row < end; row++)
            stream(r, row, spans[s[i].span].session, &r->parts[k->first_part + i], f);
}

/* As place_old_tiles in executor.c. */
static void pass_chunk(struct spw_traffic_run *r, const struct spw_traffic_visit *v, uint32_t k,
                       const struct spw_step_span *spans, struct flow *f)
{
    const struct spw_cut *cut = &r->now->cut;
    const struct spw_parts_placed placed = spw_cut_placed(cut, k, r->plan->holds_tiles);
    break_chunk(r, v, &cut->chunks[k], spans, cut->chunks[k].n_parts, f);
    for (uint32_t i = placed.first; i < placed.end && v->last; i++)
        for (uint32_t row = v->row; row < v->row + v->n_rows; row++)
            after_chunk(r, row, spans[cut->parts[i].span].session, &cut->parts[i], &f->moved);
}

/* ---- a step ---- */

/* Chunks [from, chunks) of a visit; after them, chunks and transfers that had only begun. */
static void pass_visit(struct spw_traffic_run *r, const struct spw_traffic_visit *v, uint64_t from,
                       uint64_t chunks, uint64_t begun, uint32_t parts, struct flow *f)
{
    const struct spw_traffic_account *a = r->now;
    for (uint32_t row = v->row; row < v->row + v->n_rows && begun && !from && v->first; row++)
        enter(r, row, a->spans, a->n_spans, &f->moved);
    for (uint64_t k = from; k < a->cut.n_chunks; k++)
        if (k < chunks)
            pass_chunk(r, v, (uint32_t)k, a->spans, f);
        else
            break_chunk(r, v, &a->cut.chunks[k], a->spans, k < begun ? parts : 0, f);
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
    const struct spw_traffic_account *a = r->now;
    uint64_t from = a->from.chunks, chunks = end->chunks, begun = end->begun_chunks;
    for (uint32_t i = 0; i < r->n_visits; i++) {
        uint64_t from_here = take_chunks(&from, a->cut.n_chunks);
        uint64_t here = take_chunks(&chunks, a->cut.n_chunks);
        uint64_t begun_here = take_chunks(&begun, a->cut.n_chunks);
        if (!spw_traffic_is_fixed(r, r->visits[i].row))
            pass_visit(r, &r->visits[i], from_here, here, begun_here, end->parts, f);
    }
}

/* As retain_exact_tiles in executor.c. */
static void hold(struct spw_traffic_run *r, const struct spw_step_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n && r->plan->retains && !r->plan->quantizes; i++) {
        const struct spw_pass_span *p = &r->now->pass_spans[i];
        if (p->from < p->to && spans[i].to != spans[i].from + 1)
            spw_tiles_retain(r->tiles, spans[i].session);
    }
}

/* The running pass from where it was counted to, as far as `end`. */
static void pass(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    const struct spw_traffic_account *a = r->now;
    uint64_t wanted = spw_cut_count_wanted(&a->cut, a->spans);
    bool through_host = r->plan->hidden_on_host && a == &r->accounts[0] && a->cut.n_chunks > 1;
    struct flow f = {.begun = end->rings.transfers, .landed = end->rings.queued_transfers};
    pass_layers(r, end, &f);
    f.moved.from_disk += end->loads;
    if (end->through) {
        for (uint32_t i = 0; i < a->n_spans; i++)
            spw_traffic_apply(r, a->spans[i].session, a->pass_spans[i].to, &f.moved);
        r->moved.bytes[SPW_MOVED_DEVICE_TO_HOST] += spw_traffic_flags(r->plan);
    }
    spw_traffic_add_tiles(&r->moved, r->plan, &f.moved);
    add_blocks(&r->moved, r->plan, r->weights, a->from.chunks / a->cut.n_chunks, wanted,
               &end->rings);
    add_rows(&r->moved, r->plan, r->weights, &a->cut, through_host, &a->from, end);
    add_choices(&r->moved, r->plan, r->weights, a->cut.rows,
                end->expert_layers - a->from.expert_layers);
    if (r->forecast)
        spw_expert_forecast_pass(r->forecast, a->cut.rows);
}

static struct spw_traffic_end whole_pass(const struct spw_traffic_run *r)
{
    uint64_t all = (uint64_t)r->weights->config->n_layers * r->now->cut.n_chunks;
    uint64_t wanted = spw_cut_count_wanted(&r->now->cut, r->now->spans);
    return (struct spw_traffic_end){.chunks = all,
                                    .begun_chunks = all,
                                    .logits = wanted,
                                    .begun_logits = wanted,
                                    .expert_layers = spw_expert_layers(r->weights->config),
                                    .through = true,
                                    .rings = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
}

/* Cuts the next pass, unless the pass was set aside. */
static bool begin_pass(struct spw_traffic_run *r)
{
    struct spw_traffic_account *a = r->now;
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
    spw_traffic_add_tiles(&r->moved, r->plan, &m);
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
    for (uint32_t i = 0; i < r->n_visits; i++)
        for (uint32_t k = 0; k < r->now->cut.n_chunks && !spw_traffic_is_fixed(r, r->visits[i].row);
             k++)
            break_chunk(r, &r->visits[i], &r->now->cut.chunks[k], r->expected, 0, &f);
    spw_traffic_add_tiles(t, r->plan, &f.moved);
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

void spw_traffic_visit_experts(struct spw_traffic_run *r, struct spw_expert_visit *v, uint32_t n)
{
    if (!r || !r->plan->n_expert_frames)
        return;
    spw_expert_residency_visit(&r->experts, v, n);
    for (uint32_t i = 0; i < n; i++)
        if (v[i].missed)
            spw_plan_add_missed(r->plan, r->weights, v[i].expert, r->moved.bytes);
}

void spw_traffic_forecast(struct spw_traffic_run *r, struct spw_expert_forecast *f)
{
    r->forecast = f;
}

void spw_traffic_set_aside(struct spw_traffic_run *r, const struct spw_traffic_end *end)
{
    if (!r)
        return;
    begin_pass(r);
    pass(r, end);
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
