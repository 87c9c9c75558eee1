/* The bytes that a batch moves for requests, by their lengths: see traffic.h.
 *
 *   request    [tokens found | prompt computed now | new tokens but the last ]
 *   step       every live slot: its prompt in the first, then one token each
 *
 * The last token of an answer is only picked, so that a request of n new tokens takes n steps.
 * Between two borders of tiles all steps move the same bytes: one of them is counted for all. */
#include "offload/store/pack.h"
#include "runtime/plan/traffic.h"
#include "runtime/plan/traffic_tiles.h"
#include "runtime/rules/snapshot_tiles.h"

struct slot {
    const struct spw_plan_request *request; /* NULL: the slot is free */
    uint64_t held, n_steps;                 /* tokens computed; steps it took part in */
    uint64_t stored, checkpoint;            /* of its tokens, those in the prefix cache */
    uint64_t rope_table;
    bool is_open, begun; /* it has a session; its prompt is being computed */
    /* The prompt of the request that ran here before, whose session is open; tokens NULL: none is
     */
    struct spw_prompt ended;
};

struct requests {
    const struct spw_plan *plan;
    const struct spw_weights *weights;
    struct spw_traffic_run *run; /* owned, as what follows */
    struct slot *slots;          /* [n_slots] */
    struct spw_share *shares;    /* [n_slots], most_tokens: of what runs in a slot */
    uint64_t *held;              /* [n_slots], as slots */
    bool shares_are_old;
    bool refused;     /* no request has ended since one had no room */
    uint32_t n_plain; /* steps since a request began or ended */
    struct spw_expert_forecast *experts;
    const struct spw_plan_steps *steps; /* borrowed, or NULL */
    struct spw_plan_span *told;         /* [n_slots], for `steps` */
    struct spw_step_span *spans;        /* [n_slots] */
    struct spw_prompt *prompts;         /* [n_slots] */
    struct spw_prompt *ended;           /* [n_slots], of the slots */
    uint32_t n_slots;
    uint64_t rope_table; /* of the tables on the device */
};

/* ---- rope ---- */

static uint64_t rope_table(const struct requests *q, uint64_t n_tokens)
{
    const struct spw_model_config *c = q->weights->config;
    return spw_rope_table(&c->rope[c->full_kind], c->max_positions, n_tokens);
}

static void upload_rope(struct requests *q, uint64_t table)
{
    uint64_t values = q->weights->n_small - q->weights->inv_freq[0];
    if (q->rope_table != table)
        spw_traffic_add(q->run, SPW_MOVED_HOST_TO_DEVICE, values * sizeof(float));
    q->rope_table = table;
}

/* ---- the prefix cache ---- */

static bool may_be_kept(const struct requests *q, const struct slot *s)
{
    return q->plan->attaches &&
           spw_rope_is_shared(&q->weights->config->rope[q->weights->config->full_kind],
                              s->rope_table);
}

/* The slot attaches the old tiles of its first n tokens, and reads the exact tiles beside them at
 * once. */
static void begin_with(struct requests *q, uint32_t slot, uint64_t n)
{
    uint32_t n_rows;
    const struct spw_tiles_row *rows = spw_tiles_rows(spw_traffic_tiles(q->run), &n_rows);
    uint64_t read = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct spw_residency *r = &q->plan->residency[rows[i].kind];
        enum spw_snapshot_kind kind = r->window.tokens ? SPW_SNAPSHOT_WINDOW : SPW_SNAPSHOT_OLD;
        struct spw_snapshot_tiles t = spw_snapshot_tiles(r, kind, 0, n);
        if (kind == SPW_SNAPSHOT_OLD)
            t.first = spw_waterline_first_tiered(r);
        if (t.first < t.end && !r->fixed)
            spw_tiles_attach(spw_traffic_tiles(q->run), slot, i, t.first, t.end);
        else if (r->window.tokens && !r->fixed)
            spw_tiles_import(spw_traffic_tiles(q->run), slot, i, t.end, t.end);
        for (kind = SPW_SNAPSHOT_SINK; q->plan->quantizes && kind <= SPW_SNAPSHOT_WINDOW; kind++) {
            t = spw_snapshot_tiles(r, kind, 0, n);
            read += t.first < t.end ? (t.end - t.first) * rows[i].times : 0;
        }
    }
    spw_traffic_add(q->run, SPW_MOVED_DISK_TO_HOST, read * q->plan->exact_tile_bytes);
    spw_traffic_add(q->run, SPW_MOVED_HOST_TO_DEVICE, read * q->plan->exact_tile_bytes);
    q->slots[slot].held = n;
}

/* What goes to the cache: sections and records of them, counted over the layers. */
struct kept {
    uint64_t sections, records, bytes, from_device, from_disk;
};

static void keep_section(struct requests *q, uint32_t slot, uint32_t row,
                         enum spw_snapshot_kind kind, uint64_t to, struct kept *k)
{
    const struct spw_plan *p = q->plan;
    struct spw_tiles *tiles = spw_traffic_tiles(q->run);
    uint32_t n_rows;
    const struct spw_tiles_row *at = &spw_tiles_rows(tiles, &n_rows)[row];
    struct spw_snapshot_tiles t =
        spw_snapshot_tiles(&p->residency[at->kind], kind, q->slots[slot].stored, to);
    uint64_t bytes = kind == SPW_SNAPSHOT_OLD ? p->tile_bytes : p->exact_tile_bytes;
    uint64_t n = t.first < t.end ? (t.end - t.first) * at->times : 0, device = n, disk = 0;
    if (!n)
        return;
    if (kind == SPW_SNAPSHOT_OLD || !p->quantizes) { /* exact tiles never leave the device */
        device = 0;
        spw_tiles_export(tiles, slot, row, t.first, t.end, &device, &disk);
    }
    k->sections += at->times;
    k->records += n;
    k->bytes += n * bytes;
    k->from_device += device * bytes;
    k->from_disk += disk * bytes;
}

/* What of the slot's whole tiles is not in the cache yet. */
static void keep(struct requests *q, uint32_t slot)
{
    struct slot *s = &q->slots[slot];
    bool checkpoint = spw_plan_sharing(q->plan).needs_checkpoint;
    uint64_t to = s->held - s->held % SPW_TILE_TOKENS;
    struct kept k = {0};
    uint32_t n_rows;
    spw_tiles_rows(spw_traffic_tiles(q->run), &n_rows);
    if (!may_be_kept(q, s) || !to ||
        (to < s->held && spw_prefix_window_passed(q->plan->residency, s->held)))
        return;
    if (s->stored == to && (!checkpoint || s->checkpoint == to))
        return;
    for (enum spw_snapshot_kind kind = SPW_SNAPSHOT_OLD;
         kind < (checkpoint ? SPW_SNAPSHOT_TAIL : SPW_SNAPSHOT_SINK); kind++)
        for (uint32_t i = 0; i < n_rows; i++)
            keep_section(q, slot, i, kind, to, &k);
    uint64_t covered = s->stored - (s->stored == to ? SPW_TILE_TOKENS : 0);
    spw_traffic_add(q->run, SPW_MOVED_DEVICE_TO_HOST, k.from_device);
    spw_traffic_add(q->run, SPW_MOVED_DISK_TO_HOST, k.from_disk);
    spw_traffic_add(q->run, SPW_MOVED_HOST_TO_DISK,
                    k.bytes + spw_pack_overhead_bytes(to - covered, k.sections, k.records, 0));
    s->stored = to;
    s->checkpoint = checkpoint ? to : 0;
}

/* Of n tokens, the most that may come from the cache: the last one is computed. */
static uint64_t most_found(uint64_t n)
{
    return (n - 1) - (n - 1) % SPW_TILE_TOKENS;
}

/* ---- a session from a file ---- */

static void resume(struct requests *q, uint32_t slot, const struct spw_plan_request *request)
{
    uint64_t n = request->n_resumed, logits = q->weights->config->vocab * sizeof(float);
    uint32_t n_rows;
    const struct spw_tiles_row *rows = spw_tiles_rows(spw_traffic_tiles(q->run), &n_rows);
    for (enum spw_snapshot_kind kind = SPW_SNAPSHOT_OLD; kind <= SPW_SNAPSHOT_TAIL; kind++)
        for (uint32_t i = 0; i < n_rows; i++) {
            struct spw_snapshot_tiles t =
                spw_snapshot_tiles(&q->plan->residency[rows[i].kind], kind, 0, n);
            spw_traffic_import(q->run, slot, i, t.first, t.end, kind != SPW_SNAPSHOT_OLD);
        }
    spw_traffic_cut_back(q->run, slot, n);
    if (request->resumed_logits)
        spw_traffic_add(q->run, SPW_MOVED_DISK_TO_HOST, spw_align_up(logits, SPW_PACK_ALIGN));
    q->slots[slot].held = n;
}

/* ---- shares of the frames ---- */

/* As count_shared in engine_shares.c; without the sessions of ended requests, if `stay`. */
static uint64_t count_shared(const struct requests *q, bool stay)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < q->n_slots && !spw_plan_sharing(q->plan).needs_checkpoint; i++) {
        uint64_t most = 0;
        for (uint32_t j = 0; j < i; j++) {
            const struct slot *two[] = {&q->slots[i], &q->slots[j]};
            uint64_t whole = spw_tiles_shared_end(spw_traffic_tiles(q->run), j, i, 0);
            for (int k = 0; k < 2; k++) {
                const struct slot *s = two[k];
                bool counts = s->request ? s->is_open && !s->request->n_resumed : !stay;
                uint64_t held = s->request ? s->held : s->ended.n_held;
                whole = spw_min_u64(whole, counts ? held / SPW_TILE_TOKENS : 0);
            }
            most = spw_max_u64(most, whole);
        }
        sum += most;
    }
    return sum;
}

/* As spw_engine_share. */
static void share(struct requests *q)
{
    if (!q->shares_are_old)
        return;
    for (uint32_t i = 0; i < q->n_slots; i++)
        q->held[i] = q->slots[i].request ? q->slots[i].held : q->slots[i].ended.n_held;
    spw_share_frames(q->plan, q->shares, q->n_slots, count_shared(q, false));
    bool moves = spw_traffic_share(q->run, q->shares, q->held);
    for (uint32_t i = 0; i < q->n_slots && moves; i++)
        if (q->held[i]) {
            spw_traffic_cut_back(q->run, i, q->held[i]);
            spw_traffic_drop_copies(q->run, i);
        }
    q->shares_are_old = false;
}

static uint64_t most_tokens(const struct spw_plan_request *r)
{
    return r->n_prompt + spw_sub_u64(r->max_new_tokens, 1);
}

static void set_most(struct requests *q, uint32_t slot, uint64_t most_tokens)
{
    q->shares[slot].most_tokens = most_tokens;
    q->shares_are_old = true;
    q->n_plain = 0;
}

/* The slot has no session any more. */
static void close_session(struct requests *q, uint32_t slot)
{
    spw_tiles_clear(spw_traffic_tiles(q->run), slot);
    set_most(q, slot, 0);
}

static void close_ended(struct requests *q, uint32_t slot)
{
    if (q->slots[slot].ended.tokens)
        close_session(q, slot);
    q->slots[slot].ended = (struct spw_prompt){0};
}

/* ---- steps ---- */

static uint64_t wanted(const struct slot *s)
{
    return s->request->n_prompt + s->n_steps;
}

static void tell(const struct requests *q, uint32_t n, uint64_t times)
{
    if (q->steps && n)
        q->steps->step(q->steps->context, q->told, n, times);
}

/* Between two passes the prefix cache gets what is through. */
static void compute(struct requests *q, const struct spw_step_span *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        q->told[i] =
            (struct spw_plan_span){spans[i].from, spans[i].to,
                                   spans[i].to <= q->slots[spans[i].session].request->n_prompt};
    tell(q, n, 1);
    spw_traffic_begin(q->run, spans, n);
    while (spw_traffic_next(q->run, NULL)) {
        bool more = false;
        for (uint32_t i = 0; i < n; i++) {
            q->slots[spans[i].session].held = spw_traffic_passed(q->run, i);
            more |= spw_traffic_passed(q->run, i) < spans[i].to;
        }
        for (uint32_t i = 0; i < n && more; i++)
            keep(q, spans[i].session);
    }
}

/* A step to where a later text can go on, if the window will have moved on by the prompt's end. */
static void make_checkpoint(struct requests *q, uint32_t slot)
{
    struct slot *s = &q->slots[slot];
    uint64_t n = s->request->n_prompt, to = most_found(n);
    uint64_t found = s->request->n_found;
    if (to < spw_prefix_min_branch(s->held) || to < spw_prefix_min_branch(found) ||
        !spw_prefix_window_passed(q->plan->residency, n) || rope_table(q, to) != s->rope_table)
        return;
    if (found)
        begin_with(q, slot, found);
    upload_rope(q, s->rope_table);
    compute(q, &(struct spw_step_span){slot, s->held, to, 0}, 1);
    keep(q, slot);
}

/* The slot is taken. A session from a file holds its tokens at once. */
static void start(struct requests *q, uint32_t slot, const struct spw_plan_request *request)
{
    struct slot *s = &q->slots[slot];
    *s = (struct slot){
        .request = request, .rope_table = rope_table(q, request->n_prompt), .ended = s->ended};
    if (!request->n_resumed)
        return;
    close_ended(q, slot);
    s->is_open = true;
    set_most(q, slot, q->plan->info.context);
    share(q);
    s->rope_table = rope_table(q, request->n_resumed);
    resume(q, slot, request);
    if (!request->max_new_tokens) /* it had ended */
        s->request = NULL;
}

/* Before the first step of a request: what its session finds in the prefix cache. */
static void begin(struct requests *q, uint32_t slot)
{
    struct slot *s = &q->slots[slot];
    const struct spw_plan_request *request = s->request;
    uint64_t found = spw_min_u64(request->n_found, most_found(request->n_prompt));
    s->begun = true;
    if (request->n_resumed || !may_be_kept(q, s))
        return;
    s->stored = s->checkpoint = found - found % SPW_TILE_TOKENS;
    make_checkpoint(q, slot);
    if (!s->held && s->stored)
        begin_with(q, slot, s->stored);
}

/* Makes one step of all slots that use the rope table `table`. */
static void step(struct requests *q, uint64_t table)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_slots; i++) {
        struct slot *s = &q->slots[i];
        if (!s->request || s->held == wanted(s) || rope_table(q, wanted(s)) != table)
            continue;
        if (s->held && s->rope_table != table) { /* keys of another table */
            spw_traffic_cut_back(q->run, i, 0);
            s->held = s->stored = s->checkpoint = 0;
        }
        s->rope_table = table;
        q->spans[n++] =
            (struct spw_step_span){i, s->held, wanted(s), s->request->max_new_tokens > 0};
        s->held = wanted(s);
    }
    if (!n)
        return;
    upload_rope(q, table);
    compute(q, q->spans, n);
}

/* Requests with a rope table of their own come one by one, after the others. */
static void step_all(struct requests *q)
{
    step(q, 1);
    for (uint32_t i = 0; i < q->n_slots; i++) {
        const struct slot *s = &q->slots[i];
        uint64_t table = s->request ? rope_table(q, wanted(s)) : SPW_ROPE_SHARED;
        if (table != 1 && s->held < wanted(s))
            step(q, table);
    }
}

static bool is_alone(const struct requests *q, const struct slot *s)
{
    return q->plan->attaches || s->rope_table != SPW_ROPE_SHARED ||
           rope_table(q, s->request->n_prompt) != SPW_ROPE_SHARED;
}

/* The session of a request that shares tokens stays open until the next step. */
static void end(struct requests *q, uint32_t slot)
{
    struct slot *s = &q->slots[slot];
    const struct spw_plan_request *r = s->request;
    keep(q, slot);
    q->refused = false;
    if (is_alone(q, s) || r->n_resumed || !r->prompt)
        close_session(q, slot);
    else
        s->ended = (struct spw_prompt){
            .tokens = r->prompt, .n_tokens = r->n_prompt, .n_held = s->held, .is_open = true};
    s->request = NULL;
    q->n_plain = 0;
}

static void end_step(struct requests *q, uint32_t slot)
{
    struct slot *s = &q->slots[slot];
    s->n_steps++;
    if (s->n_steps >= s->request->max_new_tokens) {
        end(q, slot);
    } else if (s->n_steps == 1 && spw_plan_sharing(q->plan).needs_checkpoint) {
        keep(q, slot);
    }
}

/* ---- tokens that requests share: as batch_sessions.c ---- */

static void describe_prompt(struct requests *q, uint32_t slot)
{
    const struct slot *s = &q->slots[slot];
    struct spw_prompt *p = &q->prompts[slot];
    *p = (struct spw_prompt){.is_alone = true};
    if (!s->request)
        return;
    *p = (struct spw_prompt){.tokens = s->request->prompt,
                             .n_tokens = s->request->n_prompt,
                             .n_held = s->held,
                             .is_open = s->is_open,
                             .is_alone = is_alone(q, s)};
}

/* Tiles that the session of the slot will share, as in batch_sessions.c. */
static uint64_t shared_tiles(const struct requests *q, uint32_t slot)
{
    uint32_t donor = 0;
    if (q->slots[slot].ended.n_tokens)
        return 0;
    uint64_t shared =
        spw_shared_tiles(spw_plan_sharing(q->plan), q->prompts, q->n_slots, slot, &donor);
    return shared && !q->slots[donor].request->n_resumed ? shared : 0;
}

static bool fit_together(struct requests *q)
{
    uint64_t tiles = 0;
    for (uint32_t i = 0; i < q->n_slots; i++) {
        const struct slot *s = &q->slots[i];
        if (s->request)
            tiles += s->is_open ? spw_waterline_tiles(q->shares[i].most_tokens)
                                : spw_waterline_tiles(most_tokens(s->request)) - shared_tiles(q, i);
    }
    return spw_share_fits(q->plan, tiles - count_shared(q, true));
}

/* Whether a waiting request fits into the slot beside those that run, as in batch_sessions.c. */
static bool has_room(struct requests *q, uint32_t slot, const struct spw_plan_request *request)
{
    struct slot *s = &q->slots[slot], before = *s;
    *s = (struct slot){
        .request = request, .rope_table = rope_table(q, request->n_prompt), .ended = before.ended};
    for (uint32_t i = 0; i < q->n_slots; i++)
        describe_prompt(q, i);
    bool has = fit_together(q);
    if (!has && before.ended.n_tokens) {
        s->ended.n_tokens = 0;
        has = fit_together(q);
        before.ended.n_tokens = has ? 0 : before.ended.n_tokens;
    }
    *s = before;
    return has;
}

/* Requests that start take over sessions of those that have ended; the others are closed. */
static void take_over_sessions(struct requests *q)
{
    for (uint32_t i = 0; i < q->n_slots; i++) {
        describe_prompt(q, i);
        q->ended[i] = q->slots[i].ended;
    }
    spw_take_over_prompts(spw_plan_sharing(q->plan), q->prompts, q->ended, q->n_slots);
    for (uint32_t i = 0; i < q->n_slots; i++) {
        struct slot *s = &q->slots[i];
        if (!s->request || s->is_open || !q->prompts[i].is_open)
            continue;
        if (q->prompts[i].n_held < s->ended.n_held)
            spw_traffic_truncate(q->run, i, q->prompts[i].n_held);
        s->is_open = true;
        s->held = q->prompts[i].n_held;
        s->ended = (struct spw_prompt){0};
        set_most(q, i, most_tokens(s->request));
    }
    for (uint32_t i = 0; i < q->n_slots; i++)
        close_ended(q, i);
}

static void add_shared_span(struct requests *q, uint32_t donor, uint64_t shared, uint32_t *n)
{
    uint32_t i = 0;
    while (i < *n && q->spans[i].session != donor)
        i++;
    if (i == *n)
        q->spans[(*n)++] = (struct spw_step_span){donor, q->slots[donor].held, 0, 0};
    q->spans[i].to = spw_shared_span_end(spw_plan_sharing(q->plan), q->spans[i].to, shared);
    q->spans[i].n_logits = q->spans[i].to == q->slots[donor].request->n_prompt &&
                           q->slots[donor].request->max_new_tokens > 0;
}

static bool open_session(struct requests *q, uint32_t slot, uint32_t *n)
{
    struct slot *s = &q->slots[slot];
    const struct spw_plan_request *r = s->request;
    uint32_t donor = 0;
    uint64_t shared =
        spw_shared_prompt(spw_plan_sharing(q->plan), q->prompts, q->n_slots, slot, &donor);
    if (shared && (!q->prompts[donor].is_open || q->prompts[donor].n_held < shared)) {
        if (q->prompts[donor].is_open)
            add_shared_span(q, donor, shared, n);
        return false;
    }
    s->is_open = true;
    set_most(q, slot, most_tokens(r));
    if (shared) {
        s->held = shared;
        spw_traffic_fork(q->run, slot, donor, shared);
    }
    return true;
}

static void open_sessions(struct requests *q)
{
    for (bool more = true; more;) {
        uint32_t n = 0;
        more = false;
        for (uint32_t i = 0; i < q->n_slots; i++)
            describe_prompt(q, i);
        for (uint32_t i = 0; i < q->n_slots; i++) {
            if (!q->slots[i].request || q->slots[i].is_open)
                continue;
            more |= !open_session(q, i, &n);
            describe_prompt(q, i);
        }
        if (!n)
            continue;
        share(q);
        compute(q, q->spans, n);
    }
}

/* ---- steps that are alike ---- */

/* Whether the lengths [from, to] lie inside one tile, their windows begin in one tile, and they
 * have the same rope. */
static bool are_alike(const struct requests *q, uint64_t from, uint64_t to)
{
    bool same = from % SPW_TILE_TOKENS && from / SPW_TILE_TOKENS == to / SPW_TILE_TOKENS &&
                rope_table(q, from) == SPW_ROPE_SHARED && rope_table(q, to) == SPW_ROPE_SHARED;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        same &= spw_waterline_first_visible(&q->plan->residency[k], from) ==
                spw_waterline_first_visible(&q->plan->residency[k], to);
    return same;
}

/* How many of the next steps move the same bytes as the last one. Before the last one, another one
 * has moved what the border of a tile moves. */
static uint64_t count_alike(const struct requests *q)
{
    uint64_t n = q->n_plain < 3 ? 0 : SPW_TILE_TOKENS;
    for (uint32_t i = 0; i < q->n_slots && n; i++) {
        const struct slot *s = &q->slots[i];
        if (!s->request)
            continue;
        n = spw_min_u64(n, SPW_TILE_TOKENS - 1 - s->held % SPW_TILE_TOKENS);
        n = spw_min_u64(n, s->request->max_new_tokens - s->n_steps - 1); /* the last step ends it */
        while (n && !are_alike(q, s->held - 2, s->held + n))
            n /= 2;
    }
    return n;
}

/* `before`: the bytes before the last step. */
static void repeat_step(struct requests *q, const struct spw_traffic *before)
{
    const uint64_t n = count_alike(q);
    uint32_t rows = 0;
    struct spw_traffic now;
    spw_traffic_run_moved(q->run, NULL, &now);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        spw_traffic_add(q->run, (enum spw_moved)i, n * (now.bytes[i] - before->bytes[i]));
    for (uint32_t i = 0; i < q->n_slots; i++) {
        struct slot *s = &q->slots[i];
        if (!s->request)
            continue;
        q->told[rows++] = (struct spw_plan_span){s->held, s->held + 1, false};
        s->held += n;
        s->n_steps += n;
    }
    if (n)
        tell(q, rows, n);
    for (uint64_t i = 0; i < n && q->experts; i++)
        spw_expert_forecast_pass(q->experts, rows);
}

static void run(struct requests *q, const struct spw_plan_request *requests, size_t n)
{
    struct spw_traffic before;
    size_t started = 0;
    for (;;) {
        bool any = false, room = true;
        for (uint32_t i = 0; i < q->n_slots; i++) {
            if (!q->slots[i].request && started < n)
                room = room && !q->refused && has_room(q, i, &requests[started]);
            if (!q->slots[i].request && started < n && room)
                start(q, i, &requests[started++]);
            any |= q->slots[i].request || started < n;
        }
        q->refused = !room;
        if (!any)
            return;
        take_over_sessions(q);
        open_sessions(q);
        share(q);
        for (uint32_t i = 0; i < q->n_slots; i++)
            if (q->slots[i].request && !q->slots[i].begun)
                begin(q, i);
        spw_traffic_run_moved(q->run, NULL, &before);
        step_all(q);
        q->n_plain++;
        for (uint32_t i = 0; i < q->n_slots; i++)
            if (q->slots[i].request)
                end_step(q, i);
        repeat_step(q, &before);
    }
}

int spw_traffic_requests(struct spw_traffic *out, const struct spw_plan *p,
                         const struct spw_weights *w, const struct spw_plan_request *requests,
                         size_t n, struct spw_expert_forecast *experts,
                         const struct spw_plan_steps *steps)
{
    struct requests q = {.plan = p,
                         .weights = w,
                         .n_slots = (uint32_t)spw_min_u64(n, p->info.sessions),
                         .rope_table = SPW_ROPE_SHARED,
                         .experts = experts,
                         .steps = steps};
    q.slots = spw_alloc_zero(q.n_slots, sizeof *q.slots);
    q.spans = spw_alloc_zero(q.n_slots, sizeof *q.spans);
    q.told = spw_alloc_zero(q.n_slots, sizeof *q.told);
    q.prompts = spw_alloc_zero(q.n_slots, sizeof *q.prompts);
    q.ended = spw_alloc_zero(q.n_slots, sizeof *q.ended);
    q.shares = spw_alloc_zero(q.n_slots, sizeof *q.shares);
    q.held = spw_alloc_zero(q.n_slots, sizeof *q.held);
    struct spw_plan of_slots = *p; /* other sessions stay empty, and get no tables */
    of_slots.info.sessions = q.n_slots;
    int rc = q.slots && q.spans && q.told && q.prompts && q.ended && q.shares && q.held
                 ? spw_traffic_run_open(&q.run, &of_slots, w, false, NULL, NULL)
                 : -ENOMEM;
    if (!rc) {
        spw_traffic_forecast(q.run, experts);
        spw_traffic_add(q.run, SPW_MOVED_HOST_TO_DEVICE, spw_traffic_open_bytes(p, w));
        run(&q, requests, n);
        spw_traffic_run_moved(q.run, NULL, out);
    }
    spw_traffic_run_close(q.run);
    spw_free(q.slots);
    spw_free(q.spans);
    spw_free(q.told);
    spw_free(q.prompts);
    spw_free(q.ended);
    spw_free(q.shares);
    spw_free(q.held);
    return rc;
}
