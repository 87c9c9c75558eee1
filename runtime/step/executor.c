/* One step of generation, top to bottom: see executor.h.
 *
 *   step      cut the new tokens into passes
 *   pass      for each layer: weights arrive, chunks pass, old tiles go down; then logits
 *   chunk     norm, q k v, [attend], output, mlp: model/forward.c; here a step can be set aside
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

/* One step, and where it is. */
struct run {
    struct pass passes[2], *now, *next;
    struct spw_executor_item *items; /* [n_items], [most_spans] */
    uint32_t n_items;
    struct spw_step_span *spans;           /* [most_spans], as the caller gave them */
    struct spw_step_span *left;            /* [most_spans], what no pass has taken yet */
    struct spw_step_span *next_left;       /* [most_spans], of the step that may come next */
    uint32_t (*disk_end)[SPW_LAYER_KINDS]; /* [most_spans], of each span before the next pass */
    uint32_t (*on_disk)[SPW_LAYER_KINDS];  /* [most_spans], the same at a chunk of it */
    struct spw_hidden hidden;
    struct spw_progress_marks progress;
    struct spw_traffic_end end;   /* how far this pass is */
    uint32_t layer, chunk;        /* where this pass continues */
    uint64_t chunks_before_pause; /* of layers, until the step is set aside */
    bool is_aside;
};

struct spw_executor {
    const struct spw_lane *lane;
    struct spw_executor_options o;
    const struct spw_model_config *config;
    const struct spw_plan *plan;
    struct spw_forward forward;
    struct spw_attend attend;
    struct spw_residency_moves residency;
    struct run runs[2], *run;              /* the second one beside a step that was set aside */
    uint32_t n_runs;                       /* 1: one session only, no step can be set aside */
    struct spw_attend_rows *rows;          /* [cut.most_parts], of the running chunk */
    uint32_t first_layer[SPW_LAYER_KINDS]; /* of each kind; n_layers: there is none */
    bool expects;                          /* the rings hold transfers of the next step */
    uint64_t n_dropped;                    /* of spw_prefetch_dropped */
    struct spw_traffic_run *account;       /* owned; NULL: see spw_executor_account_of */
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
    uint8_t *device = x->lane->device_arena;
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
}

/* Hidden states of the second run never leave the device: they are few. */
static struct spw_hidden hidden_of(const struct spw_executor *x, bool beside)
{
    const struct spw_plan_device *d = &x->plan->device;
    const struct spw_plan_host *h = &x->plan->host;
    uint8_t *device = x->lane->device_arena, *host = x->lane->host_arena;
    return (struct spw_hidden){
        .lane = x->lane,
        .on_device = device + (beside ? d->hidden_beside : d->hidden),
        .on_host = x->plan->hidden_on_host && !beside ? host + h->hidden : NULL,
        .staging = host + (beside ? h->staging_beside : h->staging),
        .row_bytes = x->plan->hidden_row_bytes,
        .chunk_rows = beside ? spw_min_u64(x->plan->chunk, x->plan->rows_beside) : x->plan->chunk,
    };
}

static int open_run(struct spw_executor *x, struct run *r, bool beside)
{
    uint32_t n = x->o.most_spans;
    uint64_t most_rows = spw_min_u64(x->plan->pass_rows, n * x->plan->info.context);
    r->now = &r->passes[0];
    r->next = &r->passes[1];
    r->items = spw_alloc_zero(n, sizeof *r->items);
    r->spans = spw_alloc_zero(n, sizeof *r->spans);
    r->left = spw_alloc_zero(n, sizeof *r->left);
    r->next_left = spw_alloc_zero(n, sizeof *r->next_left);
    r->disk_end = spw_alloc_zero(n, sizeof *r->disk_end);
    r->on_disk = spw_alloc_zero(n, sizeof *r->on_disk);
    if (!r->items || !r->spans || !r->left || !r->next_left || !r->disk_end || !r->on_disk)
        return -ENOMEM;
    for (int i = 0; i < 2; i++)
        SPW_TRY(open_pass(x, &r->passes[i], beside ? x->plan->rows_beside : most_rows));
    r->hidden = hidden_of(x, beside);
    SPW_TRY(spw_hidden_init(&r->hidden));
    r->progress = (struct spw_progress_marks){.lane = x->lane,
                                              .report = x->o.on_progress,
                                              .context = x->o.progress_context,
                                              .interrupted = x->o.interrupted,
                                              .interrupt_context = x->o.interrupt_context};
    return spw_progress_init(&r->progress);
}

static void close_run(struct run *r)
{
    spw_progress_free(&r->progress);
    if (r->hidden.computed)
        spw_hidden_free(&r->hidden);
    close_pass(&r->passes[0]);
    close_pass(&r->passes[1]);
    spw_free(r->items);
    spw_free(r->spans);
    spw_free(r->left);
    spw_free(r->next_left);
    spw_free(r->disk_end);
    spw_free(r->on_disk);
}

static int open_parts(struct spw_executor *x)
{
    SPW_TRY(spw_traffic_run_open(&x->account, x->plan, x->o.weights, true));
    for (uint32_t i = 0; i < x->n_runs; i++)
        SPW_TRY(open_run(x, &x->runs[i], i > 0));
    uint32_t most_parts = 0;
    for (uint32_t i = 0; i < x->n_runs; i++)
        most_parts = spw_max_u32(most_parts, x->runs[i].now->cut.most_parts);
    x->rows = spw_alloc_zero(most_parts, sizeof *x->rows);
    if (!x->rows)
        return -ENOMEM;
    SPW_TRY(spw_attend_init(&x->attend, most_parts));
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
    x->run = &x->runs[0];
    x->n_runs = o->plan->rows_beside ? 2 : 1;
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
    for (uint32_t i = 0; i < x->n_runs; i++)
        for (int k = 0; k < 2; k++) {
            x->runs[i].passes[k].schedule.slot_tiles = x->plan->slot_tiles;
            x->runs[i].passes[k].schedule.n_parts = 0;
        }
}

void spw_executor_close(struct spw_executor *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; i < x->n_runs; i++)
        close_run(&x->runs[i]);
    spw_attend_free(&x->attend);
    spw_free(x->rows);
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
    x->run->end.rings =
        x->expects ? (struct spw_schedule_progress){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}
                   : spw_prefetch_progress(x->o.prefetch);
    spw_traffic_next(x->account, rc ? &x->run->end : NULL);
}

/* ---- a layer ---- */

static const struct spw_rows *parts_of(const struct spw_executor *x, const struct spw_chunk *chunk)
{
    return &x->run->now->cut.parts[chunk->first_part];
}

static void embed(void *context, const struct spw_chunk *chunk, void *out)
{
    struct spw_executor *x = context;
    const struct spw_rows *parts = parts_of(x, chunk);
    uint8_t *to = out;
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        uint64_t n = parts[i].to - parts[i].from;
        spw_weights_embed(x->o.weights, x->run->items[parts[i].span].tokens + parts[i].from, n,
                          x->plan->info.compute, to);
        to += n * x->plan->hidden_row_bytes;
    }
}

static int attend(struct spw_executor *x, uint32_t layer, const struct spw_chunk *chunk)
{
    const struct spw_rows *parts = parts_of(x, chunk);
    const uint32_t kind = x->config->layer_kinds[layer];
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        const struct spw_schedule_rows *g = &x->run->now->parts[chunk->first_part + i];
        x->rows[i] = (struct spw_attend_rows){.seq = x->run->items[parts[i].span].seq,
                                              .span = &x->run->now->spans[parts[i].span],
                                              .layer = layer,
                                              .from = parts[i].from,
                                              .to = parts[i].to,
                                              .row = parts[i].row - chunk->row,
                                              .donor = g->donor[kind] - chunk->first_part,
                                              .shared_end = g->shared_end[kind]};
        x->run->end.parts = i + 1;
        SPW_TRY(spw_attend_append(&x->attend, i, &x->rows[i]));
    }
    return spw_attend_read(&x->attend, chunk->n_parts);
}

static int enter_layer(struct spw_executor *x, uint32_t layer)
{
    for (uint32_t i = 0; i < x->run->n_items; i++)
        SPW_TRY(spw_residency_enter(&x->residency, x->run->items[i].seq, &x->run->now->spans[i],
                                    layer));
    return 0;
}

static int place_old_tiles(struct spw_executor *x, uint32_t layer, const struct spw_chunk *chunk)
{
    const struct spw_rows *parts = parts_of(x, chunk);
    for (uint32_t i = 0; i < chunk->n_parts; i++)
        SPW_TRY(spw_residency_after_chunk(&x->residency, x->run->items[parts[i].span].seq,
                                          &x->run->now->spans[parts[i].span], layer, parts[i].to));
    return 0;
}

static int run_chunk(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                     uint32_t k)
{
    const struct spw_hidden_source source = {embed, x};
    const struct spw_chunk *chunk = &x->run->now->cut.chunks[k];
    void *h;
    x->run->end.begun_chunks++;
    x->run->end.parts = 0;
    SPW_TRY(spw_hidden_get(&x->run->hidden, &source, x->config->n_layers, layer, k, &h));
    SPW_TRY(spw_forward_project(&x->forward, layer, w, h, chunk->rows));
    SPW_TRY(attend(x, layer, chunk));
    SPW_TRY(spw_forward_output(&x->forward, layer, w, h, chunk->rows));
    SPW_TRY(spw_forward_mlp(&x->forward, layer, w, h, chunk->rows));
    SPW_TRY(spw_hidden_put(&x->run->hidden, layer, k));
    SPW_TRY(place_old_tiles(x, layer, chunk));
    x->run->end.chunks++;
    return spw_progress_mark(&x->run->progress, chunk->rows);
}

/* Whether the step is to be set aside behind this chunk. */
static bool pauses(struct run *r)
{
    return r->chunks_before_pause && !--r->chunks_before_pause;
}

/* Continues at r->chunk. Moves r->layer and r->chunk to what comes next. */
static int run_layer(struct spw_executor *x, struct run *r, bool *pause)
{
    const uint32_t layer = r->layer, block = x->o.weights->layer_blocks[layer];
    const uint8_t *at;
    struct spw_layer_weights w;
    SPW_TRY(spw_prefetch_wait_block(x->o.prefetch, block, &at));
    spw_weights_layer(x->o.weights, layer, at, &w);
    if (!r->chunk)
        SPW_TRY(enter_layer(x, layer));
    while (r->chunk < r->now->cut.n_chunks && !*pause) {
        SPW_TRY(run_chunk(x, layer, &w, r->chunk++));
        *pause = pauses(r);
    }
    if (r->chunk == r->now->cut.n_chunks) {
        r->layer++;
        r->chunk = 0;
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
    return spw_cut_logits_from(part, &x->run->spans[part->span]);
}

static uint64_t count_wanted(const struct spw_executor *x)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->run->now->cut.n_parts; i++)
        n += x->run->now->cut.parts[i].to - wanted_from(x, &x->run->now->cut.parts[i]);
    return n;
}

/* Moves to the next wanted row; false behind the last. */
static bool next_wanted(const struct spw_executor *x, struct wanted *w)
{
    for (w->position++; w->part < x->run->now->cut.n_parts; w->part++, w->position = 0) {
        const struct spw_rows *part = &x->run->now->cut.parts[w->part];
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
        const struct spw_rows *part = &x->run->now->cut.parts[at->part];
        SPW_TRY(spw_hidden_row(&x->run->hidden, part->row + at->position - part->from,
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
        x->run->end.begun_logits += rows;
        SPW_TRY(run_head(x, rows, logits));
        SPW_TRY(spw_lane_copy(x->lane, host, logits, rows * x->config->vocab * sizeof(float),
                              SPW_LINK_DEVICE_TO_HOST, x->lane->compute));
        left -= rows;
        x->run->end.logits += rows;
        if (!left &&
            x->run->next->schedule.n_parts) { /* while the last logits are still computed */
            x->expects = true;
            SPW_TRY(spw_prefetch_ahead(x->o.prefetch, &x->run->next->schedule));
        }
        SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
        for (size_t i = 0; i < rows && next_wanted(x, &tell); i++)
            SPW_TRY(d->on_logits(d->context, x->run->now->cut.parts[tell.part].span, tell.position,
                                 host + i * x->config->vocab));
        if (left)
            SPW_TRY(spw_progress_ask(&x->run->progress));
    }
    return 0;
}

/* ---- a pass ---- */

/* The end of the tiles that two spans share for good. A tile that was not full when the pass began
 * is written to, and each session gets its own; a schedule is made before that. */
static uint32_t shared_end(const struct spw_executor *x, uint32_t i, uint32_t j, uint32_t layer)
{
    uint64_t from = spw_min_u64(x->run->now->spans[i].from, x->run->now->spans[j].from);
    uint32_t both = spw_kv_shared_end(x->run->items[i].seq->kv, x->run->items[j].seq->kv, layer);
    return (uint32_t)spw_min_u64(both, from / SPW_TILE_TOKENS);
}

/* Tiles that two sessions share go to the disk when the first of them says so. Returns the first
 * tile of span `i` that does not come from disk for this reason. */
static uint32_t shared_disk_end(const struct spw_executor *x, uint32_t i, uint32_t kind,
                                uint32_t disk_end)
{
    uint32_t layer = x->first_layer[kind];
    for (uint32_t j = 0; j < x->run->n_items && layer < x->config->n_layers; j++)
        if (j != i && x->run->on_disk[j][kind] > disk_end) {
            uint32_t both = shared_end(x, i, j, layer);
            disk_end = spw_max_u32(disk_end, spw_min_u32(both, x->run->on_disk[j][kind]));
        }
    return disk_end;
}

/* What lies on disk of each span when the first layer begins, and from chunk to chunk. */
static void start_on_disk(struct spw_executor *x, const struct pass *f)
{
    for (uint32_t i = 0; i < x->run->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->run->items[i].seq->residency[k];
            uint32_t wait = spw_waterline_wait(r, &f->spans[i]);
            x->run->on_disk[i][k] =
                spw_max_u32(x->run->disk_end[i][k], spw_waterline_disk(r, wait));
        }
}

static void raise_on_disk(struct spw_executor *x, const struct pass *f, const struct spw_chunk *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct spw_rows *part = &f->cut.parts[c->first_part + i];
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->run->items[part->span].seq->residency[k];
            uint32_t after = spw_waterline_after(r, &f->spans[part->span], part->to);
            uint32_t *on_disk = &x->run->on_disk[part->span][k];
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
    const struct spw_sequence *seq = x->run->items[part->span].seq;
    struct spw_schedule_rows *g = &f->parts[n];
    *g = (struct spw_schedule_rows){.seq = seq->kv};
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++) {
        uint32_t own = spw_waterline_streamed(&seq->residency[k], &f->spans[part->span], part->from,
                                              &g->ranges[k].first, &g->ranges[k].end);
        own = spw_max_u32(own, x->run->disk_end[part->span][k]);
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
    spw_cut_describe(&f->cut, left, x->run->n_items, f->spans);
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
    f->schedule.first_kv = (struct spw_kv_cursor){0};
    f->schedule.first_block = (struct spw_block_cursor){0};
}

/* What will lie on disk when the pass is through. */
static void raise_disk_end(struct spw_executor *x)
{
    for (uint32_t i = 0; i < x->run->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *r = &x->run->items[i].seq->residency[k];
            uint32_t leave = spw_waterline_leave(r, &x->run->now->spans[i]);
            x->run->disk_end[i][k] =
                spw_max_u32(x->run->disk_end[i][k], spw_waterline_disk(r, leave));
        }
}

/* The pass that will come if every session goes on by one token. None past the context, and none
 * where a session ends: nobody knows which sessions decode then. */
static void expect_decode(struct spw_executor *x)
{
    x->run->next->schedule.n_parts = 0;
    for (uint32_t i = 0; i < x->run->n_items; i++) {
        const struct spw_step_span *s = &x->run->spans[i];
        x->run->next_left[i] = (struct spw_step_span){.from = s->to, .to = s->to + 1};
        if (s->to >= x->plan->info.context || !s->n_logits || x->run->items[i].last)
            return;
    }
    spw_cut_next(&x->run->next->cut, x->run->next_left, x->run->n_items);
    describe_pass(x, x->run->next, x->run->next_left);
    uint64_t rows = x->run->next->cut.rows;
    x->run->next->schedule.n_head_rounds = (uint32_t)spw_div_up(rows, x->plan->logits_rows);
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

static int begin_transfers(struct spw_executor *x)
{
    int rc = spw_prefetch_begin(x->o.prefetch, &x->run->now->schedule);
    end_expecting(x);
    return rc;
}

/* Before the first layer: tiles make room or come up, and the rings begin to fill. */
static int begin_pass(struct spw_executor *x)
{
    const struct spw_hidden_source source = {embed, x};
    for (uint32_t i = 0; i < x->run->n_items; i++)
        SPW_TRY(
            spw_residency_make_room(&x->residency, x->run->items[i].seq, &x->run->now->spans[i]));
    SPW_TRY(begin_transfers(x));
    for (uint32_t l = 0; l < x->config->n_layers; l++)
        for (uint32_t i = 0; i < x->run->n_items; i++)
            SPW_TRY(spw_residency_load_ahead(&x->residency, x->run->items[i].seq,
                                             &x->run->now->spans[i], l));
    return spw_hidden_begin(&x->run->hidden, &x->run->now->cut, &source);
}

/* -EAGAIN: the step is to be set aside. */
static int run_layers(struct spw_executor *x, struct run *r)
{
    const struct spw_lane *lane = x->lane;
    bool pause = false;
    while (r->layer < x->config->n_layers && !pause) {
        lane->ops->range_begin(lane->device, "layer", r->layer);
        int rc = run_layer(x, r, &pause);
        lane->ops->range_end(lane->device);
        SPW_TRY(rc);
    }
    if (r->layer < x->config->n_layers)
        return -EAGAIN;
    for (uint32_t i = 0; i < r->n_items; i++)
        SPW_TRY(spw_residency_apply(&x->residency, r->items[i].seq, r->now->spans[i].to));
    SPW_TRY(ask_flags(x));
    r->end.through = true;
    return 0;
}

/* A prompt's span can be taken back with its question: what it drops stays until the next one. */
static void pin_exact_tiles(struct spw_executor *x)
{
    for (uint32_t i = 0; x->plan->pins && i < x->run->n_items; i++) {
        const struct spw_pass_span *p = &x->run->now->spans[i];
        bool decodes = x->run->spans[i].to == x->run->spans[i].from + 1;
        if (p->from < p->to && !decodes)
            spw_kv_retain(x->run->items[i].seq->kv, p->from);
    }
}

/* A pass from its begin, or a later part of one that was set aside. */
static int run_pass(struct spw_executor *x, struct run *r, const struct delivery *d)
{
    uint64_t wanted = count_wanted(x);
    x->residency.failed = false;
    if (r->is_aside) {
        SPW_TRY(begin_transfers(x));
    } else {
        r->now->schedule.n_head_rounds = (uint32_t)spw_div_up(wanted, x->plan->logits_rows);
        r->end = (struct spw_traffic_end){0};
        r->layer = r->chunk = 0;
        pin_exact_tiles(x);
        SPW_TRY(begin_pass(x));
    }
    SPW_TRY(run_layers(x, r));
    int rc = wanted ? run_logits(x, d) : spw_lane_stream_sync(x->lane, x->lane->compute);
    int flags = !rc || rc == -EDOM ? check_flags(x) : 0; /* compute has been waited for */
    return rc ? rc : flags;
}

/* ---- a step that is set aside ---- */

/* The rings are emptied for the steps that come first. Later they begin where the pass continues.
 */
static int set_aside(struct spw_executor *x, struct run *r)
{
    struct spw_schedule *s = &r->now->schedule;
    SPW_TRY(ask_flags(x));
    SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
    SPW_TRY(check_flags(x));
    r->end.rings = spw_prefetch_progress(x->o.prefetch);
    SPW_TRY(spw_executor_forget_ahead(x));
    const struct spw_chunk *chunk = &r->now->cut.chunks[r->chunk];
    s->first_kv = (struct spw_kv_cursor){.layer = r->layer, .part = chunk->first_part};
    s->first_block = (struct spw_block_cursor){.block = x->o.weights->layer_blocks[r->layer]};
    spw_traffic_set_aside(x->account, &r->end);
    r->is_aside = true;
    return -EAGAIN;
}

/* Whether the caller continues the step that was set aside. Its tokens may lie elsewhere now. */
static bool continues(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n)
{
    struct run *r = &x->runs[0];
    bool same = r->is_aside && n == r->n_items;
    for (uint32_t i = 0; i < n && same; i++)
        same = items[i].seq == r->items[i].seq;
    for (uint32_t i = 0; i < n && same; i++)
        r->items[i].tokens = items[i].tokens;
    return same;
}

bool spw_executor_is_aside(const struct spw_executor *x)
{
    return x->runs[0].is_aside;
}

/* The account takes the step as one that failed where it was set aside. */
int spw_executor_drop_aside(struct spw_executor *x)
{
    struct run *r = &x->runs[0];
    int rc = 0;
    r->is_aside = false;
    x->run = r;
    for (uint32_t i = 0; i < r->n_items; i++) {
        int forgot = spw_kv_forget_loads(r->items[i].seq->kv, &r->end.loads);
        rc = rc ? rc : forgot;
    }
    r->end.rings = (struct spw_schedule_progress){0};
    spw_traffic_continue(x->account);
    spw_traffic_next(x->account, &r->end);
    return rc;
}

/* ---- a step ---- */

static void begin_step(struct spw_executor *x, struct run *r, const struct spw_executor_item *items,
                       uint32_t n)
{
    uint64_t n_new_tokens = 0;
    assert(n <= x->o.most_spans);
    r->n_items = n;
    for (uint32_t i = 0; i < n; i++) {
        r->items[i] = items[i];
        r->spans[i] = r->left[i] = items[i].span;
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            r->disk_end[i][k] = x->first_layer[k] < x->config->n_layers
                                    ? spw_kv_disk_end(items[i].seq->kv, x->first_layer[k])
                                    : 0;
        n_new_tokens += items[i].span.to - items[i].span.from;
    }
    spw_traffic_begin(x->account, r->spans, n);
    spw_progress_begin(&r->progress, n_new_tokens, x->config->n_layers, n_new_tokens > n);
}

static bool all_done(const struct run *r)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (r->left[i].from < r->left[i].to)
            return false;
    return true;
}

static void begin_next_pass(struct spw_executor *x, struct run *r)
{
    describe_pass(x, r->now, r->left);
    raise_disk_end(x);
    r->next->schedule.n_parts = 0;
    if (all_done(r) && !spw_executor_is_aside(x))
        expect_decode(x);
}

static int end_pass(struct spw_executor *x, struct run *r, int rc)
{
    if (rc == -EAGAIN)
        rc = set_aside(x, r);
    if (rc == -EAGAIN)
        return rc;
    r->is_aside = false;
    for (uint32_t i = 0; rc && i < r->n_items; i++)
        x->residency.failed |= spw_kv_forget_loads(r->items[i].seq->kv, &r->end.loads) != 0;
    tell_pass(x, rc);
    return rc;
}

int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      uint64_t most_chunks,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context)
{
    const struct delivery d = {on_logits, context};
    bool again = continues(x, items, n);
    struct run *r = &x->runs[spw_executor_is_aside(x) && !again];
    x->run = r;
    r->chunks_before_pause = x->n_runs > 1 && r == &x->runs[0] ? most_chunks : 0;
    if (again)
        spw_traffic_continue(x->account);
    else
        begin_step(x, r, items, n);
    while (again || spw_cut_next(&r->now->cut, r->left, n)) {
        if (!again)
            begin_next_pass(x, r);
        again = false;
        SPW_TRY(end_pass(x, r, run_pass(x, r, &d)));
        if (x->o.on_pass && !all_done(r))
            x->o.on_pass(x->o.pass_context);
        struct pass *ran = r->now;
        r->now = r->next;
        r->next = ran;
    }
    spw_progress_end(&r->progress);
    return 0;
}

uint64_t spw_executor_computed(const struct spw_executor *x, uint32_t i)
{
    return x->run->now->spans[i].from;
}

uint64_t spw_executor_passed(const struct spw_executor *x, uint32_t i)
{
    return x->run->now->spans[i].to;
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
