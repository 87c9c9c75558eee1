/* Opens and closes an executor: gives its parts their places in the arenas. See executor.h. */
#include "runtime/step/executor.h"

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
              .attention_gate = device + d->attention_gate,
              .state_in = device + d->state_in,
              .state_conv = device + d->state_conv,
              .state_rates = device + d->state_rates,
              .state_out = device + d->state_out,
              .not_finite = (uint32_t *)(void *)(device + d->flags),
              .gate_up = device + d->gate_up,
              .gated = device + d->gated,
              .workspace = device + d->workspace,
              .codes = device + d->codes,
              .from_host = device + d->rows,
              .scores = (float *)(device + d->experts.scores),
              .gates = (struct spw_choice *)(device + d->experts.scores +
                                             (uint64_t)x->plan->chunk * x->config->experts.n *
                                                 sizeof(float))},
        .dtype = x->plan->info.compute,
        .stream = x->lane->compute,
    };
    x->host = (struct spw_host_products){
        .device = &x->forward, .device_lane = x->lane, .prefetch = x->o.prefetch};
    spw_host_products_init(&x->host, x->plan, x->o.host_ops, x->o.host_lane);
    x->forward.host = &x->host.layers;
    x->attend = (struct spw_attend){.ops = x->o.ops,
                                    .lane = x->lane,
                                    .plan = x->plan,
                                    .weights = x->o.weights,
                                    .prefetch = x->o.prefetch};
    x->residency = (struct spw_residency_moves){.config = x->config, .prefetch = x->o.prefetch};
}

/* beside: for the second step, which runs while the first one is paused. Where both share a
 * buffer, the rows of the second step come after those of the first one. */
static uint64_t first_row(const struct spw_executor *x, bool beside)
{
    return beside ? x->plan->pass_rows : 0;
}

/* As `embed` of struct spw_hidden. */
static void embed(void *context, const struct spw_chunk *chunk, void *out, void *inputs)
{
    struct spw_executor *x = context;
    const struct spw_part *parts = &x->step->now->cut.parts[chunk->first_part];
    uint8_t *to = out, *inputs_to = inputs;
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        const uint64_t n = parts[i].to - parts[i].from;
        const uint64_t n_source = x->step->spans[parts[i].span].n_source;
        x->o.embed(x->o.weights, &(struct spw_embed_args){
                                     .tokens = x->step->items[parts[i].span].tokens + parts[i].from,
                                     .n = n,
                                     .position = parts[i].from - (chunk->source ? 0 : n_source),
                                     .audio = x->step->items[parts[i].span].audio,
                                     .compute = x->plan->info.compute,
                                     .rows = to,
                                     .inputs = inputs_to});
        to += n * x->plan->hidden_row_bytes;
        inputs_to += n * x->plan->inputs_row_bytes;
    }
}

/* Hidden states of the second step never leave the device: they are few. */
static struct spw_hidden hidden_of(struct spw_executor *x, bool beside)
{
    const struct spw_plan_device *d = &x->plan->device;
    const struct spw_plan_host *h = &x->plan->host;
    uint8_t *device = x->lane->device_arena, *host = x->lane->host_arena;
    return (struct spw_hidden){
        .lane = x->lane,
        .on_device = device + (beside ? d->hidden_beside : d->hidden),
        .on_host = x->plan->hidden_on_host && !beside ? host + h->hidden : NULL,
        .staging = host + (beside ? h->staging_beside : h->staging),
        .again = host + (beside ? h->mtp_staging_beside : h->mtp_staging),
        .inputs = device + d->inputs + first_row(x, beside) * x->plan->inputs_row_bytes,
        .n_source_layers = x->config->n_source_layers,
        .row_bytes = x->plan->hidden_row_bytes,
        .inputs_bytes = x->plan->inputs_row_bytes,
        .chunk_rows = beside ? spw_min_u64(x->plan->chunk, x->plan->rows_beside) : x->plan->chunk,
        .embed = embed,
        .context = x,
    };
}

static int open_step(struct spw_executor *x, struct spw_step *s, bool beside)
{
    uint32_t n = x->o.most_spans;
    uint64_t pass_rows = spw_min_u64(x->plan->pass_rows, n * x->plan->info.context);
    SPW_TRY(spw_step_open(s, x->plan, x->o.weights, n, beside ? x->plan->rows_beside : pass_rows));
    s->hidden = hidden_of(x, beside);
    SPW_TRY(spw_hidden_init(&s->hidden));
    s->experts = (struct spw_experts){.forward = &x->forward,
                                      .lane = x->lane,
                                      .plan = x->plan,
                                      .prefetch = x->o.prefetch,
                                      .host = &x->host,
                                      .first_row = first_row(x, beside)};
    SPW_TRY(spw_experts_init(&s->experts));
    s->progress = (struct spw_progress_marks){.lane = x->lane,
                                              .report = x->o.on_progress,
                                              .context = x->o.progress_context,
                                              .interrupted = x->o.interrupted,
                                              .interrupt_context = x->o.interrupt_context};
    return spw_progress_init(&s->progress);
}

static void close_step(struct spw_step *s)
{
    spw_progress_free(&s->progress);
    spw_experts_free(&s->experts);
    if (s->hidden.computed)
        spw_hidden_free(&s->hidden);
    spw_step_close(s);
}

/* Writes the table of the experts' addresses to the device, if the plan has one. */
static int send_addresses(struct spw_executor *x)
{
    const uint64_t bytes = spw_plan_addresses_bytes(x->plan, x->o.weights);
    if (!bytes)
        return 0;
    x->addresses = spw_alloc(bytes);
    if (!x->addresses)
        return -ENOMEM;
    spw_experts_addresses(x->o.weights, x->o.prefetch, x->addresses);
    return spw_lane_copy(x->lane, x->lane->device_arena + x->plan->device.experts.addresses,
                         x->addresses, bytes, SPW_LINK_HOST_TO_DEVICE, x->lane->compute);
}

static int open_parts(struct spw_executor *x)
{
    for (uint32_t i = 0; i < x->n_steps; i++)
        SPW_TRY(open_step(x, &x->steps[i], i > 0));
    uint32_t most_parts = 0;
    for (uint32_t i = 0; i < x->n_steps; i++)
        most_parts = spw_max_u32(most_parts, x->steps[i].now->cut.most_parts);
    x->chunk_parts = spw_alloc_zero(most_parts, sizeof *x->chunk_parts);
    x->state_parts = spw_alloc_zero(most_parts, sizeof *x->state_parts);
    if (!x->chunk_parts || !x->state_parts)
        return -ENOMEM;
    SPW_TRY(spw_attend_init(&x->attend, most_parts));
    SPW_TRY(send_addresses(x));
    SPW_TRY(spw_executor_begin_kept(x));
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
    x->step = &x->steps[0];
    x->n_steps = o->plan->rows_beside ? 2 : 1;
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
    for (uint32_t i = 0; i < x->n_steps; i++)
        spw_step_replan(&x->steps[i]);
}

void spw_executor_close(struct spw_executor *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; i < x->n_steps; i++)
        close_step(&x->steps[i]);
    spw_attend_free(&x->attend);
    spw_free(x->chunk_parts);
    spw_free(x->state_parts);
    spw_free(x->addresses);
    spw_free(x);
}

int spw_executor_upload_rope(struct spw_executor *x)
{
    const struct spw_weights *w = x->o.weights;
    uint64_t first = w->inv_freq[0], bytes = (w->n_small - first) * sizeof(float);
    return spw_lane_copy(
        x->lane, x->lane->device_arena + x->plan->device.small + first * sizeof(float),
        w->rope + (first - w->first_rope), bytes, SPW_LINK_HOST_TO_DEVICE, x->lane->compute);
}
