/* One step of generation, top to bottom: see executor.h.
 *
 *   step      cut the new tokens into passes
 *   pass      for each layer: weights arrive, chunks pass, old tiles go down; then logits
 *   chunk     norm, q k v, [attend], output, mlp: model/layer.c
 *   attend    rope and append, age, attention over what streams and what stays: attend.c
 *
 * Everything is queued: the host runs ahead of the streams and waits once, for the logits. */
#include "runtime/step/executor.h"

#include <assert.h>
#include <string.h>

/* One pass as it was cut, and its list of transfers. Two of them: the running one and the next. */
struct frame {
    struct spw_cut cut;
    struct spw_passage *passages;          /* [most_spans] */
    struct spw_schedule_segment *segments; /* [cut.most_segments] */
    struct spw_schedule schedule;
};

struct spw_executor {
    struct spw_executor_options o;
    const struct spw_model_config *config;
    const struct spw_plan *plan;
    struct spw_layer_run layer;
    struct spw_attend attend;
    struct spw_hidden hidden;
    struct frame frames[2], *now, *next;
    struct spw_cut_span *spans;           /* [most_spans] */
    struct spw_cut_span *next_spans;      /* [most_spans] */
    uint32_t *written;                    /* [most_spans], see spw_passage: before the next pass */
    const struct spw_executor_span *step; /* of the running step */
    const struct spw_cut_chunk *chunk;    /* that passes */
    struct spw_traffic_end end;           /* how far this pass is */
    bool expects;                         /* the rings hold transfers of the next step */
    uint64_t n_dropped;                   /* of spw_prefetch_dropped */
    bool unclear;                         /* this pass failed in a load or a spill */
    struct spw_traffic_run *told;         /* owned; NULL: see spw_executor_account_of */
    struct spw_traffic_span *told_spans;  /* [most_spans] */
    struct spw_progress_marks progress;
};

/* ---- open, close ---- */

static int open_frame(struct spw_executor *x, struct frame *f, uint64_t pass_rows)
{
    SPW_TRY(spw_cut_init(&f->cut, x->plan->chunk, pass_rows, x->o.most_spans));
    f->passages = spw_alloc_zero(x->o.most_spans, sizeof *f->passages);
    f->segments = spw_alloc_zero(f->cut.most_segments, sizeof *f->segments);
    f->schedule = (struct spw_schedule){
        .n_layers = x->config->n_layers,
        .sliding = x->config->layer_kinds,
        .slot_tiles = x->plan->slot_tiles,
        .segments = f->segments,
        .n_head_units = x->o.weights->n_units - x->config->n_layers,
    };
    return f->passages && f->segments ? 0 : -ENOMEM;
}

static void close_frame(struct frame *f)
{
    spw_cut_free(&f->cut);
    spw_free(f->passages);
    spw_free(f->segments);
}

static int attend(void *context, uint32_t layer);

static void borrow_buffers(struct spw_executor *x)
{
    const struct spw_plan_device *d = &x->plan->device;
    const struct spw_plan_host *h = &x->plan->host;
    uint8_t *device = x->o.device_arena, *host = x->o.host_arena;
    x->layer = (struct spw_layer_run){
        .ops = x->o.backend->ops,
        .weights = x->o.weights,
        .small = (const float *)(device + d->small),
        .b = {.x = device + d->x,
              .qkv = device + d->qkv,
              .attention = device + d->attention,
              .gate_up = device + d->gate_up,
              .gated = device + d->gated,
              .workspace = device + d->workspace},
        .dtype = x->plan->info.compute,
        .stream = x->o.compute,
        .attend = attend,
        .context = x,
    };
    x->attend = (struct spw_attend){.backend = x->o.backend,
                                    .device = x->o.device,
                                    .compute = x->o.compute,
                                    .plan = x->plan,
                                    .weights = x->o.weights,
                                    .prefetch = x->o.prefetch,
                                    .device_arena = device};
    x->hidden = (struct spw_hidden){
        .ops = x->o.backend->device_ops,
        .device = x->o.device,
        .compute = x->o.compute,
        .up = x->o.up,
        .down = x->o.down,
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
    x->next_spans = spw_alloc_zero(n, sizeof *x->next_spans);
    x->written = spw_alloc_zero(n, sizeof *x->written);
    x->told_spans = spw_alloc_zero(n, sizeof *x->told_spans);
    if (!x->spans || !x->next_spans || !x->written || !x->told_spans)
        return -ENOMEM;
    SPW_TRY(spw_traffic_run_open(&x->told, x->plan, x->o.weights, true));
    uint64_t most_rows = spw_min_u64(x->plan->pass_rows, n * x->plan->info.context);
    SPW_TRY(open_frame(x, &x->frames[0], most_rows));
    SPW_TRY(open_frame(x, &x->frames[1], most_rows));
    SPW_TRY(spw_hidden_init(&x->hidden));
    x->progress = (struct spw_progress_marks){.ops = x->o.backend->device_ops,
                                              .device = x->o.device,
                                              .compute = x->o.compute,
                                              .report = x->o.on_progress,
                                              .context = x->o.progress_context,
                                              .interrupted = x->o.interrupted,
                                              .interrupt_context = x->o.interrupt_context};
    SPW_TRY(spw_progress_init(&x->progress));
    spw_traffic_add(x->told, SPW_MOVED_HOST_TO_DEVICE,
                    spw_traffic_open_bytes(x->plan, x->o.weights));
    return x->o.backend->device_ops->copy(
        x->o.device, x->o.device_arena + x->plan->device.small, x->o.weights->small,
        x->o.weights->n_small * sizeof(float), SPW_LINK_HOST_TO_DEVICE, x->o.compute);
}

int spw_executor_open(struct spw_executor **out, const struct spw_executor_options *o)
{
    struct spw_executor *x = spw_alloc_zero(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    x->o = *o;
    x->config = o->weights->config;
    x->plan = o->plan;
    x->now = &x->frames[0];
    x->next = &x->frames[1];
    borrow_buffers(x);
    int rc = open_parts(x);
    if (rc) {
        spw_executor_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void spw_executor_refit(struct spw_executor *x)
{
    for (int i = 0; i < 2; i++) {
        x->frames[i].schedule.slot_tiles = x->plan->slot_tiles;
        x->frames[i].schedule.n_segments = 0;
    }
}

void spw_executor_close(struct spw_executor *x)
{
    if (!x)
        return;
    spw_progress_free(&x->progress);
    if (x->hidden.computed)
        spw_hidden_free(&x->hidden);
    close_frame(&x->frames[0]);
    close_frame(&x->frames[1]);
    spw_free(x->spans);
    spw_free(x->next_spans);
    spw_free(x->written);
    spw_free(x->told_spans);
    spw_traffic_run_close(x->told);
    spw_free(x);
}

/* ---- the account ---- */

struct spw_traffic_run *spw_executor_account_of(struct spw_executor *x)
{
    return x->told;
}

void spw_executor_stop_telling(struct spw_executor *x)
{
    spw_traffic_run_close(x->told);
    x->told = NULL;
}

/* The step that was expected has come, or never will. */
static void end_expecting(struct spw_executor *x)
{
    struct spw_schedule_progress last;
    uint64_t n = spw_prefetch_dropped(x->o.prefetch, &last);
    if (x->expects && n != x->n_dropped)
        spw_traffic_give_up(x->told, &last);
    x->n_dropped = n;
    x->expects = false;
}

int spw_executor_forget_ahead(struct spw_executor *x)
{
    int rc = spw_prefetch_forget(x->o.prefetch);
    end_expecting(x);
    return rc;
}

static void begin_telling(struct spw_executor *x, uint32_t n_spans)
{
    for (uint32_t i = 0; i < n_spans; i++)
        x->told_spans[i] = (struct spw_traffic_span){x->step[i].session, x->step[i].from,
                                                     x->step[i].to, x->step[i].n_logits};
    spw_traffic_begin(x->told, x->told_spans, n_spans);
}

/* Tells the account that a pass is over, or how far a pass came that ended early. */
static void tell_pass(struct spw_executor *x, int rc)
{
    bool clear = rc == -ECANCELED || rc == -EBADMSG || rc == -EDOM || rc == -EIO;
    if (rc && (!clear || x->unclear))
        spw_executor_stop_telling(x);
    x->end.rings =
        x->expects ? (struct spw_schedule_progress){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}
                   : spw_prefetch_progress(x->o.prefetch);
    spw_traffic_next(x->told, rc ? &x->end : NULL);
}

/* ---- waterlines ---- */

static int spill(struct spw_executor *x, struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    bool sliding = x->config->layer_kinds[layer] == SPW_LAYER_SLIDING;
    if (begin <= spw_kv_begin(seq, layer))
        return 0;
    int rc =
        spw_kv_spill(seq, layer, begin, spw_waterline_disk(&x->plan->residency, sliding, begin));
    x->unclear |= rc != 0;
    return rc;
}

static int load(struct spw_executor *x, struct spw_kv_seq *seq, uint32_t layer, uint32_t begin)
{
    int rc = spw_prefetch_wait_load(x->o.prefetch, seq, layer);
    if (!rc && begin < spw_kv_begin(seq, layer))
        rc = spw_kv_load(seq, layer, begin);
    x->unclear |= rc != 0;
    return rc;
}

/* Where old tiles are kept apart, sliding layers keep none: all they have is near. */
static bool moves(const struct spw_executor *x, uint32_t layer)
{
    return !x->plan->residency.aged || x->config->layer_kinds[layer] == SPW_LAYER_FULL;
}

int spw_executor_settle(struct spw_executor *x, struct spw_kv_seq *seq, uint64_t n)
{
    for (uint32_t l = 0; l < x->config->n_layers; l++) {
        const struct spw_residency *r = &x->plan->residency;
        bool sliding = x->config->layer_kinds[l] == SPW_LAYER_SLIDING;
        if (!moves(x, l))
            continue;
        uint32_t begin = spw_waterline_begin(r, sliding, n);
        if (sliding) /* what was held may reach back further */
            spw_kv_drop(seq, l, spw_waterline_first(r->window, n));
        SPW_TRY(spill(x, seq, l, begin));
        SPW_TRY(load(x, seq, l, begin));
    }
    return 0;
}

/* Sessions whose prompt passes in several chunks make room for it in the layers that wait. */
static int raise_waiting(struct spw_executor *x, uint32_t n_spans)
{
    for (uint32_t i = 0; i < n_spans; i++) {
        uint32_t wait = spw_waterline_wait(&x->plan->residency, &x->now->passages[i]);
        for (uint32_t l = 0; l < x->config->n_layers; l++)
            if (x->config->layer_kinds[l] == SPW_LAYER_FULL)
                SPW_TRY(spill(x, x->step[i].seq->aged, l, wait));
    }
    return 0;
}

/* Tiles that lie on the disk though they are to be on the device: a session has begun with them.
 * Layers get them beside the computation of those before, as many as they may have while they wait.
 */
static int load_ahead(struct spw_executor *x, uint32_t n_spans)
{
    const struct spw_residency *r = &x->plan->residency;
    for (uint32_t l = 0; l < x->config->n_layers; l++)
        for (uint32_t i = 0; i < n_spans && moves(x, l); i++) {
            const struct spw_passage *p = &x->now->passages[i];
            struct spw_kv_seq *seq = x->step[i].seq->aged;
            uint32_t begin = x->config->layer_kinds[l] == SPW_LAYER_SLIDING
                                 ? spw_waterline_begin(r, true, p->from)
                                 : spw_waterline_wait(r, p);
            uint32_t to = spw_kv_begin(seq, l);
            bool begun;
            if (p->from == p->to || begin >= to)
                continue;
            SPW_TRY(spw_kv_load_ahead(seq, l, begin, &begun));
        }
    return 0;
}

/* What the chunks of this layer will read in place is there, or comes up: once for all of them, as
 * far as there is room. */
static int enter_layer(struct spw_executor *x, uint32_t layer, uint32_t n_spans)
{
    const struct spw_residency *r = &x->plan->residency;
    for (uint32_t i = 0; i < n_spans && moves(x, layer); i++) {
        const struct spw_passage *p = &x->now->passages[i];
        if (p->from < p->to)
            SPW_TRY(load(x, x->step[i].seq->aged, layer,
                         x->config->layer_kinds[layer] == SPW_LAYER_SLIDING
                             ? spw_waterline_begin(r, true, p->from)
                             : spw_waterline_enter(r, p)));
    }
    return 0;
}

/* A chunk has passed a layer: tiles age. */
static int age_tiles(struct spw_executor *x, uint32_t layer)
{
    const struct spw_residency *r = &x->plan->residency;
    for (uint32_t i = 0; i < x->chunk->n_segments; i++) {
        const struct spw_cut_segment *s = &x->now->cut.segments[x->chunk->first_segment + i];
        const struct spw_passage *p = &x->now->passages[s->span];
        const struct spw_sequence *seq = x->step[s->span].seq;
        if (x->config->layer_kinds[layer] == SPW_LAYER_SLIDING) {
            spw_kv_drop(seq->near, layer, spw_waterline_first(r->window, s->to));
            if (moves(x, layer))
                SPW_TRY(spill(x, seq->aged, layer, spw_waterline_begin(r, true, s->to)));
            continue;
        }
        if (r->aged)
            spw_kv_drop(seq->near, layer, spw_waterline_near(r, s->to));
        SPW_TRY(spill(x, seq->aged, layer,
                      s->to < p->to ? spw_waterline_pass(r, p, s->to) : spw_waterline_leave(r, p)));
    }
    return 0;
}

/* ---- attention ---- */

static int attend(void *context, uint32_t layer)
{
    struct spw_executor *x = context;
    for (uint32_t i = 0; i < x->chunk->n_segments; i++) {
        const struct spw_cut_segment *s = &x->now->cut.segments[x->chunk->first_segment + i];
        x->end.segments = i + 1;
        SPW_TRY(spw_attend_segment(
            &x->attend, &(struct spw_attend_segment){.seq = x->step[s->span].seq,
                                                     .passage = &x->now->passages[s->span],
                                                     .layer = layer,
                                                     .from = s->from,
                                                     .to = s->to,
                                                     .row = s->row - x->chunk->row}));
    }
    return 0;
}

/* ---- a layer ---- */

static void embed(void *context, const struct spw_cut_chunk *chunk, void *out)
{
    struct spw_executor *x = context;
    uint8_t *to = out;
    for (uint32_t i = 0; i < chunk->n_segments; i++) {
        const struct spw_cut_segment *s = &x->now->cut.segments[chunk->first_segment + i];
        spw_weights_embed(x->o.weights, x->step[s->span].tokens + s->from, s->to - s->from,
                          x->plan->info.compute, to);
        to += (s->to - s->from) * x->plan->hidden_row_bytes;
    }
}

static int run_layer(struct spw_executor *x, uint32_t layer, uint32_t n_spans)
{
    const struct spw_hidden_source source = {embed, x};
    const uint8_t *unit;
    struct spw_layer_weights matrices;
    SPW_TRY(spw_prefetch_wait_unit(x->o.prefetch, layer, &unit));
    spw_weights_layer(x->o.weights, layer, unit, &matrices);
    SPW_TRY(enter_layer(x, layer, n_spans));
    for (uint32_t k = 0; k < x->now->cut.n_chunks; k++) {
        void *h;
        x->chunk = &x->now->cut.chunks[k];
        x->end.begun_chunks++;
        x->end.segments = 0;
        SPW_TRY(spw_hidden_get(&x->hidden, &source, x->config->n_layers, layer, k, &h));
        SPW_TRY(spw_layer_forward(&x->layer, layer, &matrices, h, x->chunk->rows));
        SPW_TRY(spw_hidden_put(&x->hidden, layer, k));
        SPW_TRY(age_tiles(x, layer));
        x->end.chunks++;
        SPW_TRY(spw_progress_mark(&x->progress, x->chunk->rows));
    }
    return spw_prefetch_release_unit(x->o.prefetch, layer);
}

/* ---- logits ---- */

struct wanted {
    uint32_t segment;
    uint64_t position;
};

/* The first position of the segment whose logits are wanted. */
static uint64_t wanted_from(const struct spw_executor *x, const struct spw_cut_segment *s)
{
    const struct spw_executor_span *span = &x->step[s->span];
    uint64_t from = spw_sub_u64(span->to, span->n_logits);
    return from < s->from ? s->from : from < s->to ? from : s->to;
}

static uint64_t count_wanted(const struct spw_executor *x)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->now->cut.n_segments; i++)
        n += x->now->cut.segments[i].to - wanted_from(x, &x->now->cut.segments[i]);
    return n;
}

/* Moves to the next wanted row; false behind the last. */
static bool next_wanted(const struct spw_executor *x, struct wanted *w)
{
    for (w->position++; w->segment < x->now->cut.n_segments; w->segment++, w->position = 0) {
        const struct spw_cut_segment *s = &x->now->cut.segments[w->segment];
        uint64_t from = wanted_from(x, s);
        if (w->position < from)
            w->position = from;
        if (w->position < s->to)
            return true;
    }
    return false;
}

static int run_head(struct spw_executor *x, size_t rows, float *logits)
{
    void *r = x->o.device_arena + x->plan->device.rows;
    uint32_t n_layers = x->config->n_layers, vocab = x->config->vocab;
    uint32_t block = x->o.weights->head_block_rows;
    SPW_TRY(spw_layer_final_norm(&x->layer, r, r, rows));
    for (uint32_t first = 0, unit = n_layers; first < vocab; first += block, unit++) {
        const uint8_t *w;
        SPW_TRY(spw_prefetch_wait_unit(x->o.prefetch, unit, &w));
        w = spw_weights_head(x->o.weights, unit, w);
        SPW_TRY(spw_layer_head(&x->layer, w, r, logits, first,
                               vocab - first < block ? vocab - first : block, rows));
        SPW_TRY(spw_prefetch_release_unit(x->o.prefetch, unit));
    }
    if (x->config->logit_softcap > 0)
        return x->layer.ops->softcap(&(struct spw_softcap_args){.x = logits,
                                                                .n = rows * vocab,
                                                                .cap = x->config->logit_softcap},
                                     x->o.compute);
    return 0;
}

static int run_logits(struct spw_executor *x,
                      int (*on_logits)(void *, uint32_t, uint64_t, const float *), void *context)
{
    const struct spw_device_ops *ops = x->o.backend->device_ops;
    float *logits = (float *)(x->o.device_arena + x->plan->device.logits);
    float *host = (float *)(x->o.host_arena + x->plan->host.logits);
    struct wanted ask = {0, 0}, tell;
    uint64_t left = count_wanted(x);
    ask.position = UINT64_MAX; /* next_wanted steps to 0 first */
    for (tell = ask; left;) {
        size_t rows = (size_t)spw_min_u64(left, x->plan->logits_rows);
        for (size_t i = 0; i < rows && next_wanted(x, &ask); i++) {
            const struct spw_cut_segment *s = &x->now->cut.segments[ask.segment];
            SPW_TRY(spw_hidden_row(&x->hidden, s->row + ask.position - s->from,
                                   x->o.device_arena + x->plan->device.rows +
                                       i * x->plan->hidden_row_bytes));
        }
        x->end.begun_heads += rows;
        SPW_TRY(run_head(x, rows, logits));
        SPW_TRY(ops->copy(x->o.device, host, logits, rows * x->config->vocab * sizeof(float),
                          SPW_LINK_DEVICE_TO_HOST, x->o.compute));
        left -= rows;
        x->end.heads += rows;
        if (!left && x->next->schedule.n_segments) { /* while the last logits are still computed */
            x->expects = true;
            SPW_TRY(spw_prefetch_ahead(x->o.prefetch, &x->next->schedule));
        }
        SPW_TRY(ops->stream_sync(x->o.device, x->o.compute));
        for (size_t i = 0; i < rows && next_wanted(x, &tell); i++)
            SPW_TRY(on_logits(context, x->now->cut.segments[tell.segment].span, tell.position,
                              host + i * x->config->vocab));
        if (left)
            SPW_TRY(spw_progress_ask(&x->progress));
    }
    return 0;
}

/* ---- a pass ---- */

/* Turns the pass that was cut into passages and a schedule. spans: where the pass has moved to. */
static void describe_pass(struct spw_executor *x, struct frame *f, const struct spw_cut_span *spans,
                          uint32_t n_spans)
{
    const struct spw_residency *r = &x->plan->residency;
    for (uint32_t i = 0; i < n_spans; i++)
        f->passages[i] = (struct spw_passage){.from = spans[i].from, .to = spans[i].from};
    for (uint32_t i = f->cut.n_segments; i-- > 0;) {
        const struct spw_cut_segment *s = &f->cut.segments[i];
        struct spw_passage *p = &f->passages[s->span];
        p->chunked = s->to < p->to;
        p->from = s->from;
        p->begin = spw_waterline_begin(r, false, s->from);
        p->written = x->written[s->span];
    }
    for (uint32_t i = 0; i < f->cut.n_segments; i++) {
        const struct spw_cut_segment *s = &f->cut.segments[i];
        struct spw_schedule_segment *g = &f->segments[i];
        *g = (struct spw_schedule_segment){.seq = x->step[s->span].seq->aged};
        for (int sliding = 0; sliding < 2; sliding++)
            if (!sliding || r->window) {
                const struct spw_passage *p = &f->passages[s->span];
                spw_traffic_range(r, sliding, p, s->from, &g->ranges[sliding].first,
                                  &g->ranges[sliding].end);
                g->disk_end[sliding] = spw_traffic_disk(r, sliding, p, s->from);
            }
    }
    f->schedule.n_segments = f->cut.n_segments;
}

/* The highest waterline so far, as far as it shows: where nothing is on disk it does not matter. Of
 * a sequence that began with adopted tiles: one that would have brought the same ones to disk. */
static uint32_t written_before(const struct spw_executor *x, const struct spw_kv_seq *seq)
{
    for (uint32_t l = 0; l < x->config->n_layers; l++)
        if (x->config->layer_kinds[l] == SPW_LAYER_FULL) {
            uint64_t disk_end = spw_kv_disk_end(seq, l), host = x->plan->residency.host;
            return disk_end ? (uint32_t)spw_min_u64(disk_end + host, UINT32_MAX) : 0;
        }
    return 0;
}

static void raise_written(struct spw_executor *x, uint32_t n_spans)
{
    for (uint32_t i = 0; i < n_spans; i++) {
        uint32_t leave = spw_waterline_leave(&x->plan->residency, &x->now->passages[i]);
        x->written[i] = leave > x->written[i] ? leave : x->written[i];
    }
}

/* The pass that will come if every session goes on by one token. None past the context, and none
 * where a session does not go on: who decodes then is not known. */
static void expect_decode(struct spw_executor *x, uint32_t n_spans)
{
    x->next->schedule.n_segments = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        x->next_spans[i] = (struct spw_cut_span){x->step[i].to, x->step[i].to + 1};
        if (x->step[i].to >= x->plan->info.context || !x->step[i].n_logits || x->step[i].last)
            return;
    }
    spw_cut_next(&x->next->cut, x->next_spans, n_spans);
    describe_pass(x, x->next, x->next_spans, n_spans);
    uint64_t rows = x->next->cut.rows;
    x->next->schedule.n_head_rounds = (uint32_t)spw_div_up(rows, x->plan->logits_rows);
}

/* Whether all that was quantized so far was finite. */
static int ask_flags(struct spw_executor *x)
{
    uint64_t bytes = spw_traffic_flags(x->plan);
    if (!bytes)
        return 0;
    return x->o.backend->device_ops->copy(x->o.device, x->o.host_arena + x->plan->host.flags,
                                          x->o.device_arena + x->plan->device.flags, bytes,
                                          SPW_LINK_DEVICE_TO_HOST, x->o.compute);
}

/* After compute has been waited for. */
static int check_flags(struct spw_executor *x)
{
    uint32_t *not_finite = (uint32_t *)(x->o.host_arena + x->plan->host.flags);
    if (!x->plan->residency.aged || !*not_finite)
        return 0;
    *not_finite = 0;
    spw_traffic_add(x->told, SPW_MOVED_HOST_TO_DEVICE, sizeof *not_finite);
    SPW_TRY(x->o.backend->device_ops->copy(x->o.device, x->o.device_arena + x->plan->device.flags,
                                           not_finite, sizeof *not_finite, SPW_LINK_HOST_TO_DEVICE,
                                           x->o.compute));
    return -EDOM;
}

static int run_layers(struct spw_executor *x, uint32_t n_spans, uint64_t heads,
                      int (*on_logits)(void *, uint32_t, uint64_t, const float *), void *context)
{
    const struct spw_hidden_source source = {embed, x};
    SPW_TRY(raise_waiting(x, n_spans));
    int begun = spw_prefetch_begin(x->o.prefetch, &x->now->schedule);
    end_expecting(x);
    SPW_TRY(begun);
    SPW_TRY(load_ahead(x, n_spans));
    SPW_TRY(spw_hidden_begin(&x->hidden, &x->now->cut, &source));
    const struct spw_device_ops *ops = x->o.backend->device_ops;
    for (uint32_t layer = 0; layer < x->config->n_layers; layer++) {
        ops->range_begin(x->o.device, "layer", layer);
        int rc = run_layer(x, layer, n_spans);
        ops->range_end(x->o.device);
        SPW_TRY(rc);
    }
    for (uint32_t i = 0; i < n_spans; i++)
        SPW_TRY(spw_executor_settle(x, x->step[i].seq->aged, x->now->passages[i].to));
    SPW_TRY(ask_flags(x));
    x->end.through = true;
    int rc =
        heads ? run_logits(x, on_logits, context) : ops->stream_sync(x->o.device, x->o.compute);
    int flags = !rc || rc == -EDOM ? check_flags(x) : 0; /* compute has been waited for */
    return rc ? rc : flags;
}

static int run_pass(struct spw_executor *x, uint32_t n_spans,
                    int (*on_logits)(void *, uint32_t, uint64_t, const float *), void *context)
{
    uint64_t heads = count_wanted(x);
    x->now->schedule.n_head_rounds = (uint32_t)spw_div_up(heads, x->plan->logits_rows);
    x->end = (struct spw_traffic_end){0};
    x->unclear = false;
    for (uint32_t i = 0; x->plan->holds && i < n_spans; i++) {
        const struct spw_passage *p = &x->now->passages[i];
        bool decodes = x->step[i].to == x->step[i].from + 1;
        if (p->from < p->to && !decodes) /* an answer can be taken back with its question */
            spw_kv_hold(x->step[i].seq->near, p->from);
    }
    return run_layers(x, n_spans, heads, on_logits, context);
}

static bool all_done(const struct spw_executor *x, uint32_t n_spans)
{
    for (uint32_t i = 0; i < n_spans; i++)
        if (x->spans[i].from < x->spans[i].to)
            return false;
    return true;
}

int spw_executor_step(struct spw_executor *x, const struct spw_executor_span *spans,
                      uint32_t n_spans,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context)
{
    assert(n_spans <= x->o.most_spans);
    x->step = spans;
    uint64_t n_new_tokens = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        x->spans[i] = (struct spw_cut_span){spans[i].from, spans[i].to};
        x->written[i] = written_before(x, spans[i].seq->aged);
        n_new_tokens += spans[i].to - spans[i].from;
    }
    begin_telling(x, n_spans);
    spw_progress_begin(&x->progress, n_new_tokens, x->config->n_layers, n_new_tokens > n_spans);
    while (spw_cut_next(&x->now->cut, x->spans, n_spans)) {
        describe_pass(x, x->now, x->spans, n_spans);
        raise_written(x, n_spans);
        x->next->schedule.n_segments = 0;
        if (all_done(x, n_spans))
            expect_decode(x, n_spans);
        int rc = run_pass(x, n_spans, on_logits, context);
        for (uint32_t i = 0; rc && i < n_spans; i++)
            x->unclear |= spw_kv_forget_loads(spans[i].seq->aged, &x->end.loads) != 0;
        tell_pass(x, rc);
        SPW_TRY(rc);
        if (x->o.on_pass && !all_done(x, n_spans))
            x->o.on_pass(x->o.pass_context);
        struct frame *ran = x->now;
        x->now = x->next;
        x->next = ran;
    }
    spw_progress_end(&x->progress);
    return 0;
}

uint64_t spw_executor_computed(const struct spw_executor *x, uint32_t i)
{
    return x->now->passages[i].from;
}

uint64_t spw_executor_passed(const struct spw_executor *x, uint32_t i)
{
    return x->now->passages[i].to;
}

int spw_executor_upload_rope(struct spw_executor *x)
{
    const struct spw_weights *w = x->o.weights;
    uint64_t first = w->inv_freq[0], bytes = (w->n_small - first) * sizeof(float);
    spw_traffic_add(x->told, SPW_MOVED_HOST_TO_DEVICE, bytes);
    return x->o.backend->device_ops->copy(
        x->o.device, x->o.device_arena + x->plan->device.small + first * sizeof(float),
        w->small + first, bytes, SPW_LINK_HOST_TO_DEVICE, x->o.compute);
}

bool spw_executor_predicted(struct spw_executor *x, struct spw_traffic *out)
{
    struct spw_schedule_progress ahead = spw_prefetch_progress(x->o.prefetch);
    if (x->told)
        spw_traffic_run_moved(x->told, x->expects ? &ahead : NULL, out);
    return x->told;
}
