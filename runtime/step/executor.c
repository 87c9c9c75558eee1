/* One step of generation, top to bottom: see executor.h.
 *
 *   step      cut the new tokens into passes
 *   pass      for each layer: weights arrive, chunks pass, old tiles go down; then logits
 *   chunk     norm, q k v, [attend], output, mlp: model/forward.c
 *   attend    rope and append, quantize old tiles, read streamed and resident tiles: attend.c
 *
 * Everything is queued: the host runs ahead of the streams and waits once, for the logits. */
#include "runtime/step/executor.h"

#include <assert.h>
#include <string.h>

/* A pass as it was cut, and its list of transfers. Two of them: the running one and the next. */
struct pass {
    struct spw_cut cut;
    struct spw_pass_span *spans;     /* [most_spans] */
    struct spw_schedule_rows *parts; /* [cut.most_parts] */
    struct spw_schedule schedule;
};

/* Where the logits go. */
struct delivery {
    int (*on_logits)(void *context, uint32_t span, uint64_t position, const float *logits);
    void *context;
};

struct spw_executor {
    const struct spw_lane *lane;
    struct spw_executor_options o;
    const struct spw_model_config *config;
    const struct spw_plan *plan;
    struct spw_forward forward;
    struct spw_attend attend;
    struct spw_hidden hidden;
    struct spw_residency_moves residency;
    struct pass passes[2], *now, *next;
    const struct spw_executor_item *items; /* [n_items], of the running step, as what follows */
    uint32_t n_items;
    struct spw_step_span *spans;     /* [most_spans], as the caller gave them */
    struct spw_step_span *left;      /* [most_spans], what no pass has taken yet */
    struct spw_step_span *next_left; /* [most_spans], the same of the step that may come next */
    struct spw_attend_rows *rows;    /* [cut.most_parts], of the running chunk */
    uint32_t first_layer[SPW_LAYER_KINDS]; /* of each kind; n_layers: there is none */
    uint32_t (*disk_end)[SPW_LAYER_KINDS]; /* [most_spans], of each span before the next pass */
    uint32_t (*on_disk)[SPW_LAYER_KINDS];  /* [most_spans], the same at a chunk of it */
    struct spw_traffic_end end;            /* how far this pass is */
    bool expects;                          /* the rings hold transfers of the next step */
    uint64_t n_dropped;                    /* of spw_prefetch_dropped */
    struct spw_traffic_run *account;       /* owned; NULL: see spw_executor_account_of */
    struct spw_progress_marks progress;
};

/* ---- open, close ---- */

static int open_pass(struct spw_executor *x, struct pass *f, uint64_t pass_rows)
{
    const uint32_t of_layers = x->o.weights->layer_blocks[x->config->n_layers];
    SPW_TRY(spw_cut_init(&f->cut, x->plan->chunk, pass_rows, x->o.most_spans));
    f->spans = spw_alloc_zero(x->o.most_spans, sizeof *f->spans);
    f->parts = spw_alloc_zero(f->cut.most_parts, sizeof *f->parts);
    f->schedule = (struct spw_schedule){
        .n_layers = x->config->n_layers,
        .kinds = x->config->layer_kinds,
        .slot_tiles = x->plan->slot_tiles,
        .parts = f->parts,
        .n_layer_blocks = of_layers,
        .n_head_blocks = x->o.weights->n_blocks - of_layers,
    };
    return f->spans && f->parts ? 0 : -ENOMEM;
}

static void close_pass(struct pass *f)
{
    spw_cut_free(&f->cut);
    spw_free(f->spans);
    spw_free(f->parts);
}

/* All layers of a kind hold the same tiles of a session. */
static void find_first_layers(struct spw_executor *x)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        while (x->first_layer[k] < x->config->n_layers &&
               x->config->layer_kinds[x->first_layer[k]] != k)
            x->first_layer[k]++;
}

static void borrow_buffers(struct spw_executor *x)
{
    const struct spw_plan_device *d = &x->plan->device;
    const struct spw_plan_host *h = &x->plan->host;
    uint8_t *device = x->lane->device_arena, *host = x->lane->host_arena;
    x->forward = (struct spw_forward){
        .ops = x->o.ops,
        .weights = x->o.weights,
        .small = (const float *)(device + d->small),
        .b = {.x = device + d->x,
              .qkv = device + d->qkv,
              .attention = device + d->attention,
              .gate_up = device + d->gate_up,
              .gated = device + d->gated,
              .workspace = device + d->workspace},
        .dtype = x->plan->info.compute,
        .stream = x->lane->compute,
    };
    x->attend = (struct spw_attend){.ops = x->o.ops,
                                    .lane = x->lane,
                                    .plan = x->plan,
                                    .weights = x->o.weights,
                                    .prefetch = x->o.prefetch};
    x->residency = (struct spw_residency_moves){.config = x->config, .prefetch = x->o.prefetch};
    x->hidden = (struct spw_hidden){
        .lane = x->lane,
        .on_device = device + d->hidden,
        .on_host = x->plan->hidden_on_host ? host + h->hidden : NULL,
        .staging = host + h->staging,
        .row_bytes = x->plan->hidden_row_bytes,
        .chunk_rows = x->plan->chunk,
    };
}

static int open_parts(struct spw_executor *x)
{
    uint32_t n = x->o.most_spans;
    x->spans = spw_alloc_zero(n, sizeof *x->spans);
    x->left = spw_alloc_zero(n, sizeof *x->left);
    x->next_left = spw_alloc_zero(n, sizeof *x->next_left);
    x->disk_end = spw_alloc_zero(n, sizeof *x->disk_end);
    x->on_disk = spw_alloc_zero(n, sizeof *x->on_disk);
    if (!x->spans || !x->left || !x->next_left || !x->disk_end || !x->on_disk)
        return -ENOMEM;
    SPW_TRY(spw_traffic_run_open(&x->account, x->plan, x->o.weights, true));
    uint64_t most_rows = spw_min_u64(x->plan->pass_rows, n * x->plan->info.context);
    SPW_TRY(open_pass(x, &x->passes[0], most_rows));
    SPW_TRY(open_pass(x, &x->passes[1], most_rows));
    x->rows = spw_alloc_zero(x->now->cut.most_parts, sizeof *x->rows);
    if (!x->rows)
        return -ENOMEM;
    SPW_TRY(spw_attend_init(&x->attend, x->now->cut.most_parts));
    SPW_TRY(spw_hidden_init(&x->hidden));
    x->progress = (struct spw_progress_marks){.lane = x->lane,
                                              .report = x->o.on_progress,
                                              .context = x->o.progress_context,
                                              .interrupted = x->o.interrupted,
                                              .interrupt_context = x->o.interrupt_context};
    SPW_TRY(spw_progress_init(&x->progress));
    spw_traffic_add(x->account, SPW_MOVED_HOST_TO_DEVICE,
                    spw_traffic_open_bytes(x->plan, x->o.weights));
    return spw_lane_copy(x->lane, x->lane->device_arena + x->plan->device.small,
                         x->o.weights->small, x->o.weights->n_small * sizeof(float),
                         SPW_LINK_HOST_TO_DEVICE, x->lane->compute);
}

int spw_executor_open(struct spw_executor **out, const struct spw_lane *lane,
                      const struct spw_executor_options *o)
{
    struct spw_executor *x = spw_alloc_zero(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    x->lane = lane;
    x->o = *o;
    x->config = o->weights->config;
    x->plan = o->plan;
    x->now = &x->passes[0];
    x->next = &x->passes[1];
    find_first_layers(x);
    borrow_buffers(x);
    int rc = open_parts(x);
    if (rc) {
        spw_executor_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void spw_executor_replan(struct spw_executor *x)
{
    for (int i = 0; i < 2; i++) {
        x->passes[i].schedule.slot_tiles = x->plan->slot_tiles;
        x->passes[i].schedule.n_parts = 0;
    }
}

void spw_executor_close(struct spw_executor *x)
{
    if (!x)
        return;
    spw_progress_free(&x->progress);
    if (x->hidden.computed)
        spw_hidden_free(&x->hidden);
    close_pass(&x->passes[0]);
    close_pass(&x->passes[1]);
    spw_attend_free(&x->attend);
    spw_free(x->rows);
    spw_free(x->spans);
    spw_free(x->left);
    spw_free(x->next_left);
    spw_free(x->disk_end);
    spw_free(x->on_disk);
    spw_traffic_run_close(x->account);
    spw_free(x);
}

/* ---- the account ---- */

struct spw_traffic_run *spw_executor_account_of(struct spw_executor *x)
{
    return x->account;
}

void spw_executor_stop_predicting(struct spw_executor *x)
{
    spw_traffic_run_close(x->account);
    x->account = NULL;
}

/* The step that was expected has come, or never will. */
static void end_expecting(struct spw_executor *x)
{
    struct spw_schedule_progress last;
    uint64_t n = spw_prefetch_dropped(x->o.prefetch, &last);
    if (x->expects && n != x->n_dropped)
        spw_traffic_give_up(x->account, &last);
    x->n_dropped = n;
    x->expects = false;
}

int spw_executor_forget_ahead(struct spw_executor *x)
{
    int rc = spw_prefetch_forget(x->o.prefetch);
    end_expecting(x);
    return rc;
}

/* Tells the account that a pass is over, or how far a pass came that ended early. */
static void tell_pass(struct spw_executor *x, int rc)
{
    bool is_known = rc == -ECANCELED || rc == -EBADMSG || rc == -EDOM || rc == -EIO;
    if (rc && (!is_known || x->residency.failed))
        spw_executor_stop_predicting(x);
    x->end.rings =
        x->expects ? (struct spw_schedule_progress){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}
                   : spw_prefetch_progress(x->o.prefetch);
    spw_traffic_next(x->account, rc ? &x->end : NULL);
}

/* ---- a layer ---- */

static const struct spw_rows *parts_of(const struct spw_executor *x, const struct spw_chunk *chunk)
{
    return &x->now->cut.parts[chunk->first_part];
}

static void embed(void *context, const struct spw_chunk *chunk, void *out)
{
    struct spw_executor *x = context;
    const struct spw_rows *parts = parts_of(x, chunk);
    uint8_t *to = out;
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        uint64_t n = parts[i].to - parts[i].from;
        spw_weights_embed(x->o.weights, x->items[parts[i].span].tokens + parts[i].from, n,
                          x->plan->info.compute, to);
        to += n * x->plan->hidden_row_bytes;
    }
}

static int attend(struct spw_executor *x, uint32_t layer, const struct spw_chunk *chunk)
{
    const struct spw_rows *parts = parts_of(x, chunk);
    const uint32_t kind = x->config->layer_kinds[layer];
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        const struct spw_schedule_rows *g = &x->now->parts[chunk->first_part + i];
        x->rows[i] = (struct spw_attend_rows){.seq = x->items[parts[i].span].seq,
                                              .span = &x->now->spans[parts[i].span],
                                              .layer = layer,
                                              .from = parts[i].from,
                                              .to = parts[i].to,
                                              .row = parts[i].row - chunk->row,
                                              .donor = g->donor[kind] - chunk->first_part,
                                              .shared_end = g->shared_end[kind]};
        x->end.parts = i + 1;
        SPW_TRY(spw_attend_append(&x->attend, i, &x->rows[i]));
    }
    return spw_attend_read(&x->attend, chunk->n_parts);
}

static int enter_layer(struct spw_executor *x, uint32_t layer)
{
    for (uint32_t i = 0; i < x->n_items; i++)
        SPW_TRY(spw_residency_enter(&x->residency, x->items[i].seq, &x->now->spans[i], layer));
    return 0;
}

static int place_old_tiles(struct spw_executor *x, uint32_t layer, const struct spw_chunk *chunk)
{
    const struct spw_rows *parts = parts_of(x, chunk);
    for (uint32_t i = 0; i < chunk->n_parts; i++)
        SPW_TRY(spw_residency_after_chunk(&x->residency, x->items[parts[i].span].seq,
                                          &x->now->spans[parts[i].span], layer, parts[i].to));
    return 0;
}

static int run_layer(struct spw_executor *x, uint32_t layer)
{
    const struct spw_hidden_source source = {embed, x};
    const uint32_t block = x->o.weights->layer_blocks[layer];
    const uint8_t *at;
    struct spw_layer_weights w;
    SPW_TRY(spw_prefetch_wait_block(x->o.prefetch, block, &at));
    spw_weights_layer(x->o.weights, layer, at, &w);
    SPW_TRY(enter_layer(x, layer));
    for (uint32_t k = 0; k < x->now->cut.n_chunks; k++) {
        const struct spw_chunk *chunk = &x->now->cut.chunks[k];
        void *h;
        x->end.begun_chunks++;
        x->end.parts = 0;
        SPW_TRY(spw_hidden_get(&x->hidden, &source, x->config->n_layers, layer, k, &h));
        SPW_TRY(spw_forward_project(&x->forward, layer, &w, h, chunk->rows));
        SPW_TRY(attend(x, layer, chunk));
        SPW_TRY(spw_forward_output(&x->forward, layer, &w, h, chunk->rows));
        SPW_TRY(spw_forward_mlp(&x->forward, layer, &w, h, chunk->rows));
        SPW_TRY(spw_hidden_put(&x->hidden, layer, k));
        SPW_TRY(place_old_tiles(x, layer, chunk));
        x->end.chunks++;
        SPW_TRY(spw_progress_mark(&x->progress, chunk->rows));
    }
    return spw_prefetch_release_block(x->o.prefetch, block);
}

/* ---- logits ---- */

/* A row of the pass whose logits are wanted. */
struct wanted {
    uint32_t part;
    uint64_t position;
};

static uint64_t wanted_from(const struct spw_executor *x, const struct spw_rows *part)
{
    return spw_cut_logits_from(part, &x->spans[part->span]);
}

static uint64_t count_wanted(const struct spw_executor *x)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->now->cut.n_parts; i++)
        n += x->now->cut.parts[i].to - wanted_from(x, &x->now->cut.parts[i]);
    return n;
}

/* Moves to the next wanted row; false behind the last. */
static bool next_wanted(const struct spw_executor *x, struct wanted *w)
{
    for (w->position++; w->part < x->now->cut.n_parts; w->part++, w->position = 0) {
        const struct spw_rows *part = &x->now->cut.parts[w->part];
        w->position = spw_max_u64(w->position, wanted_from(x, part));
        if (w->position < part->to)
            return true;
    }
    return false;
}

static int run_head(struct spw_executor *x, size_t rows, float *logits)
{
    void *r = x->lane->device_arena + x->plan->device.rows;
    const struct spw_weights *w = x->o.weights;
    size_t first = 0, vocab = x->config->vocab;
    SPW_TRY(spw_forward_final_norm(&x->forward, r, r, rows));
    for (uint32_t b = w->layer_blocks[x->config->n_layers]; b < w->n_blocks; b++) {
        const uint8_t *at;
        SPW_TRY(spw_prefetch_wait_block(x->o.prefetch, b, &at));
        const struct spw_operand head = spw_weights_head(w, b, at);
        SPW_TRY(spw_forward_head(&x->forward, &head, r, logits, first, rows));
        SPW_TRY(spw_prefetch_release_block(x->o.prefetch, b));
        first += head.n;
    }
    if (x->config->logit_softcap > 0)
        return x->forward.ops->softcap(&(struct spw_softcap_args){.x = logits,
                                                                  .n = rows * vocab,
                                                                  .cap = x->config->logit_softcap},
                                       x->lane->compute);
    return 0;
}

/* Gathers the hidden rows of the next wanted positions, at most `most`. */
static int gather_rows(struct spw_executor *x, struct wanted *at, size_t most)
{
    uint8_t *to = x->lane->device_arena + x->plan->device.rows;
    for (size_t i = 0; i < most && next_wanted(x, at); i++) {
        const struct spw_rows *part = &x->now->cut.parts[at->part];
        SPW_TRY(spw_hidden_row(&x->hidden, part->row + at->position - part->from,
                               to + i * x->plan->hidden_row_bytes));
    }
    return 0;
}

static int run_logits(struct spw_executor *x, const struct delivery *d)
{
    float *logits = (float *)(x->lane->device_arena + x->plan->device.logits);
    float *host = (float *)(x->lane->host_arena + x->plan->host.logits);
    struct wanted ask = {0, UINT64_MAX}, tell = ask; /* next_wanted steps to position 0 first */
    for (uint64_t left = count_wanted(x); left;) {
        size_t rows = (size_t)spw_min_u64(left, x->plan->logits_rows);
        SPW_TRY(gather_rows(x, &ask, rows));
        x->end.begun_logits += rows;
        SPW_TRY(run_head(x, rows, logits));
        SPW_TRY(spw_lane_copy(x->lane, host, logits, rows * x->config->vocab * sizeof(float),
                              SPW_LINK_DEVICE_TO_HOST, x->lane->compute));
        left -= rows;
        x->end.logits += rows;
        if (!left && x->next->schedule.n_parts) { /* while the last logits are still computed */
            x->expects = true;
            SPW_TRY(spw_prefetch_ahead(x->o.prefetch, &x->next->schedule));
        }
        SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
        for (size_t i = 0; i < rows && next_wanted(x, &tell); i++)
            SPW_TRY(d->on_logits(d->context, x->now->cut.parts[tell.part].span, tell.position,
                                 host + i * x->config->vocab));
        if (left)
            SPW_TRY(spw_progress_ask(&x->progress));
    }
    return 0;
}

/* ---- a pass ---- */

/* The end of the tiles that two spans share for good. A tile that was not full when the pass began
 * is written to, and each session gets its own; a schedule is made before that. */
static uint32_t shared_end(const struct spw_executor *x, uint32_t i, uint32_t j, uint32_t layer)
{
    uint64_t from = spw_min_u64(x->now->spans[i].from, x->now->spans[j].from);
    uint32_t both = spw_kv_shared_end(x->items[i].seq->kv, x->items[j].seq->kv, layer);
    return (uint32_t)spw_min_u64(both, from / SPW_TILE_TOKENS);
}

/* Tiles that two sessions share go to the disk when the first of them says so. Returns the first
 * tile of span `i` that does not come from disk for this reason. */
static uint32_t shared_disk_end(const struct spw_executor *x, uint32_t i, uint32_t kind,
                                uint32_t disk_end)
{
    uint32_t layer = x->first_layer[kind];
    for (uint32_t j = 0; j < x->n_items && layer < x->config->n_layers; j++)
        if (j != i && x->on_disk[j][kind] > disk_end) {
            uint32_t both = shared_end(x, i, j, layer);
            disk_end = spw_max_u32(disk_end, spw_min_u32(both, x->on_disk[j][kind]));
        }
    return disk_end;
}

/* What lies on disk of each span when the first layer begins, and from chunk to chunk. */
static void start_on_disk(struct spw_executor *x, const struct pass *f)
{
    for (uint32_t i = 0; i < x->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->items[i].seq->residency[k];
            uint32_t wait = spw_waterline_wait(r, &f->spans[i]);
            x->on_disk[i][k] = spw_max_u32(x->disk_end[i][k], spw_waterline_disk(r, wait));
        }
}

static void raise_on_disk(struct spw_executor *x, const struct pass *f, const struct spw_chunk *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct spw_rows *part = &f->cut.parts[c->first_part + i];
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->items[part->span].seq->residency[k];
            uint32_t after = spw_waterline_after(r, &f->spans[part->span], part->to);
            uint32_t *on_disk = &x->on_disk[part->span][k];
            *on_disk = spw_max_u32(*on_disk, spw_waterline_disk(r, after));
        }
    }
}

/* Finds the part of the same chunk, before part n, that reads most of the same tiles. */
static void find_donor(const struct spw_executor *x, struct pass *f, uint32_t first, uint32_t n,
                       uint32_t kind)
{
    struct spw_schedule_rows *g = &f->parts[n];
    uint32_t layer = x->first_layer[kind];
    bool reads = g->ranges[kind].first < g->ranges[kind].end;
    for (uint32_t i = first; i < n && reads && layer < x->config->n_layers; i++) {
        const struct spw_schedule_rows *h = &f->parts[i];
        if (h->shared_end[kind] || h->seq == g->seq)
            continue;
        uint32_t both = shared_end(x, f->cut.parts[i].span, f->cut.parts[n].span, layer);
        uint32_t end = spw_schedule_shared_end(&h->ranges[kind], &g->ranges[kind], both,
                                               f->schedule.slot_tiles);
        if (end > g->shared_end[kind]) {
            g->shared_end[kind] = end;
            g->donor[kind] = i;
        }
    }
}

static void describe_part(struct spw_executor *x, struct pass *f, uint32_t first, uint32_t n)
{
    const struct spw_rows *part = &f->cut.parts[n];
    const struct spw_sequence *seq = x->items[part->span].seq;
    struct spw_schedule_rows *g = &f->parts[n];
    *g = (struct spw_schedule_rows){.seq = seq->kv};
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++) {
        uint32_t own = spw_waterline_streamed(&seq->residency[k], &f->spans[part->span], part->from,
                                              &g->ranges[k].first, &g->ranges[k].end);
        own = spw_max_u32(own, x->disk_end[part->span][k]);
        g->disk_end[k] = shared_disk_end(x, part->span, k, own);
        find_donor(x, f, first, n, k);
    }
}

/* The donor's transfers bring them. */
static void leave_shared_tiles(struct spw_schedule_rows *g)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (g->shared_end[k])
            g->ranges[k].first = g->shared_end[k];
}

/* Turns the pass that was cut into spans and a schedule. `left`: where the step has moved to. */
static void describe_pass(struct spw_executor *x, struct pass *f, const struct spw_step_span *left)
{
    spw_cut_describe(&f->cut, left, x->n_items, f->spans);
    start_on_disk(x, f);
    for (uint32_t c = 0; c < f->cut.n_chunks; c++) {
        const struct spw_chunk *chunk = &f->cut.chunks[c];
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            describe_part(x, f, chunk->first_part, chunk->first_part + i);
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            leave_shared_tiles(&f->parts[chunk->first_part + i]);
        raise_on_disk(x, f, chunk);
    }
    f->schedule.n_parts = f->cut.n_parts;
}

/* What will lie on disk when the pass is through. */
static void raise_disk_end(struct spw_executor *x)
{
    for (uint32_t i = 0; i < x->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->items[i].seq->residency[k];
            uint32_t leave = spw_waterline_leave(r, &x->now->spans[i]);
            x->disk_end[i][k] = spw_max_u32(x->disk_end[i][k], spw_waterline_disk(r, leave));
        }
}

/* The pass that will come if every session goes on by one token. None past the context, and none
 * where a session ends: nobody knows which sessions decode then. */
static void expect_decode(struct spw_executor *x)
{
    x->next->schedule.n_parts = 0;
    for (uint32_t i = 0; i < x->n_items; i++) {
        const struct spw_step_span *s = &x->spans[i];
        x->next_left[i] = (struct spw_step_span){.from = s->to, .to = s->to + 1};
        if (s->to >= x->plan->info.context || !s->n_logits || x->items[i].last)
            return;
    }
    spw_cut_next(&x->next->cut, x->next_left, x->n_items);
    describe_pass(x, x->next, x->next_left);
    uint64_t rows = x->next->cut.rows;
    x->next->schedule.n_head_rounds = (uint32_t)spw_div_up(rows, x->plan->logits_rows);
}

/* Whether all that was quantized so far was finite. */
static int ask_flags(struct spw_executor *x)
{
    uint64_t bytes = spw_traffic_flags(x->plan);
    if (!bytes)
        return 0;
    return spw_lane_copy(x->lane, x->lane->host_arena + x->plan->host.flags,
                         x->lane->device_arena + x->plan->device.flags, bytes,
                         SPW_LINK_DEVICE_TO_HOST, x->lane->compute);
}

/* After compute has been waited for. */
static int check_flags(struct spw_executor *x)
{
    uint32_t *not_finite = (uint32_t *)(x->lane->host_arena + x->plan->host.flags);
    if (!spw_traffic_flags(x->plan) || !*not_finite)
        return 0;
    *not_finite = 0;
    spw_traffic_add(x->account, SPW_MOVED_HOST_TO_DEVICE, sizeof *not_finite);
    SPW_TRY(spw_lane_copy(x->lane, x->lane->device_arena + x->plan->device.flags, not_finite,
                          sizeof *not_finite, SPW_LINK_HOST_TO_DEVICE, x->lane->compute));
    return -EDOM;
}

/* Before the first layer: tiles make room or come up, and the rings begin to fill. */
static int begin_pass(struct spw_executor *x)
{
    const struct spw_hidden_source source = {embed, x};
    for (uint32_t i = 0; i < x->n_items; i++)
        SPW_TRY(spw_residency_make_room(&x->residency, x->items[i].seq, &x->now->spans[i]));
    int begun = spw_prefetch_begin(x->o.prefetch, &x->now->schedule);
    end_expecting(x);
    SPW_TRY(begun);
    for (uint32_t l = 0; l < x->config->n_layers; l++)
        for (uint32_t i = 0; i < x->n_items; i++)
            SPW_TRY(spw_residency_load_ahead(&x->residency, x->items[i].seq, &x->now->spans[i], l));
    return spw_hidden_begin(&x->hidden, &x->now->cut, &source);
}

static int run_layers(struct spw_executor *x)
{
    const struct spw_lane *lane = x->lane;
    for (uint32_t layer = 0; layer < x->config->n_layers; layer++) {
        lane->ops->range_begin(lane->device, "layer", layer);
        int rc = run_layer(x, layer);
        lane->ops->range_end(lane->device);
        SPW_TRY(rc);
    }
    for (uint32_t i = 0; i < x->n_items; i++)
        SPW_TRY(spw_residency_apply(&x->residency, x->items[i].seq, x->now->spans[i].to));
    SPW_TRY(ask_flags(x));
    x->end.through = true;
    return 0;
}

/* A prompt's span can be taken back with its question: what it drops stays until the next one. */
static void pin_exact_tiles(struct spw_executor *x)
{
    for (uint32_t i = 0; x->plan->pins && i < x->n_items; i++) {
        const struct spw_pass_span *p = &x->now->spans[i];
        bool decodes = x->spans[i].to == x->spans[i].from + 1;
        if (p->from < p->to && !decodes)
            spw_kv_retain(x->items[i].seq->kv, p->from);
    }
}

static int run_pass(struct spw_executor *x, const struct delivery *d)
{
    uint64_t wanted = count_wanted(x);
    x->now->schedule.n_head_rounds = (uint32_t)spw_div_up(wanted, x->plan->logits_rows);
    x->end = (struct spw_traffic_end){0};
    x->residency.failed = false;
    pin_exact_tiles(x);
    SPW_TRY(begin_pass(x));
    SPW_TRY(run_layers(x));
    int rc = wanted ? run_logits(x, d) : spw_lane_stream_sync(x->lane, x->lane->compute);
    int flags = !rc || rc == -EDOM ? check_flags(x) : 0; /* compute has been waited for */
    return rc ? rc : flags;
}

/* ---- a step ---- */

static void begin_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n)
{
    uint64_t n_new_tokens = 0;
    assert(n <= x->o.most_spans);
    x->items = items;
    x->n_items = n;
    for (uint32_t i = 0; i < n; i++) {
        x->spans[i] = x->left[i] = items[i].span;
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            x->disk_end[i][k] = x->first_layer[k] < x->config->n_layers
                                    ? spw_kv_disk_end(items[i].seq->kv, x->first_layer[k])
                                    : 0;
        n_new_tokens += items[i].span.to - items[i].span.from;
    }
    spw_traffic_begin(x->account, x->spans, n);
    spw_progress_begin(&x->progress, n_new_tokens, x->config->n_layers, n_new_tokens > n);
}

static bool all_done(const struct spw_executor *x)
{
    for (uint32_t i = 0; i < x->n_items; i++)
        if (x->left[i].from < x->left[i].to)
            return false;
    return true;
}

int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context)
{
    const struct delivery d = {on_logits, context};
    begin_step(x, items, n);
    while (spw_cut_next(&x->now->cut, x->left, n)) {
        describe_pass(x, x->now, x->left);
        raise_disk_end(x);
        x->next->schedule.n_parts = 0;
        if (all_done(x))
            expect_decode(x);
        int rc = run_pass(x, &d);
        for (uint32_t i = 0; rc && i < n; i++)
            x->residency.failed |= spw_kv_forget_loads(items[i].seq->kv, &x->end.loads) != 0;
        tell_pass(x, rc);
        SPW_TRY(rc);
        if (x->o.on_pass && !all_done(x))
            x->o.on_pass(x->o.pass_context);
        struct pass *ran = x->now;
        x->now = x->next;
        x->next = ran;
    }
    spw_progress_end(&x->progress);
    return 0;
}

uint64_t spw_executor_computed(const struct spw_executor *x, uint32_t i)
{
    return x->now->spans[i].from;
}

uint64_t spw_executor_passed(const struct spw_executor *x, uint32_t i)
{
    return x->now->spans[i].to;
}

int spw_executor_apply_residency(struct spw_executor *x, const struct spw_sequence *seq, uint64_t n)
{
    return spw_residency_apply(&x->residency, seq, n);
}

int spw_executor_upload_rope(struct spw_executor *x)
{
    const struct spw_weights *w = x->o.weights;
    uint64_t first = w->inv_freq[0], bytes = (w->n_small - first) * sizeof(float);
    spw_traffic_add(x->account, SPW_MOVED_HOST_TO_DEVICE, bytes);
    return spw_lane_copy(x->lane,
                         x->lane->device_arena + x->plan->device.small + first * sizeof(float),
                         w->small + first, bytes, SPW_LINK_HOST_TO_DEVICE, x->lane->compute);
}

bool spw_executor_predicted(struct spw_executor *x, struct spw_traffic *out)
{
    struct spw_schedule_progress ahead = spw_prefetch_progress(x->o.prefetch);
    if (x->account)
        spw_traffic_run_moved(x->account, x->expects ? &ahead : NULL, out);
    return x->account;
}
