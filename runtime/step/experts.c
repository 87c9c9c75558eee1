/* Rows, sorted by expert: see experts.h. */
#include "runtime/step/experts.h"

#include "quant/types.h"

#include <string.h>

int spw_experts_init(struct spw_experts *x)
{
    uint32_t n = x->forward->weights->config->experts.n;
    if (!n)
        return 0;
    x->ends = spw_alloc_zero(n + 1, sizeof *x->ends);
    x->visit = spw_alloc_zero(n, sizeof *x->visit);
    return x->ends && x->visit ? 0 : -ENOMEM;
}

void spw_experts_free(struct spw_experts *x)
{
    spw_free(x->ends);
    spw_free(x->visit);
    x->ends = NULL;
    x->visit = NULL;
}

/* ---- buffers ---- */

static const struct spw_experts_config *config(const struct spw_experts *x)
{
    return &x->forward->weights->config->experts;
}

/* Where something begins that has `bytes` for each row, or for each choice of a row. */
static uint8_t *on_device(const struct spw_experts *x, uint64_t part, uint64_t row, uint64_t bytes)
{
    return x->lane->device_arena + part + (x->first_row + row) * bytes;
}

static uint8_t *on_host(const struct spw_experts *x, uint64_t part, uint64_t bytes)
{
    return x->lane->host_arena + part + x->first_row * bytes;
}

static uint64_t choices_bytes(const struct spw_experts *x)
{
    return config(x)->n_kept * sizeof(struct spw_choice);
}

static uint64_t row_bytes(const struct spw_experts *x)
{
    return spw_plan_expert_row_bytes(x->plan, x->forward->weights);
}

static uint64_t numbers_bytes(const struct spw_experts *x)
{
    return config(x)->n_kept * sizeof(uint32_t);
}

static uint32_t first_expert(const struct spw_experts *x, uint32_t layer)
{
    const struct spw_weights *w = x->forward->weights;
    return w->layer_experts[layer] - w->n_blocks;
}

static struct spw_forward_experts buffers(const struct spw_experts *x, uint64_t row)
{
    const struct spw_plan_experts *d = &x->plan->device.experts;
    return (struct spw_forward_experts){
        .x = on_device(x, d->x, row, row_bytes(x)),
        .dense = on_device(x, d->dense, row, x->plan->hidden_row_bytes),
        .choices = (struct spw_choice *)on_device(x, d->choices, row, choices_bytes(x))};
}

/* ---- route ---- */

int spw_experts_route(const struct spw_experts *x, uint32_t layer,
                      const struct spw_layer_weights *matrices, void *h, uint64_t row,
                      uint64_t rows)
{
    const struct spw_forward_experts e = buffers(x, row);
    return spw_forward_route(x->forward, layer, matrices, &e, h, rows);
}

/* ---- compute ---- */

void spw_experts_sort(const struct spw_choice *choices, uint64_t rows, uint32_t n_kept,
                      uint32_t n_experts, uint32_t *ends, uint32_t *index, uint32_t *places)
{
    const uint64_t n = rows * n_kept;
    memset(ends, 0, (n_experts + 1) * sizeof *ends);
    for (uint64_t i = 0; i < n; i++)
        ends[choices[i].expert + 1]++;
    for (uint32_t e = 0; e < n_experts; e++)
        ends[e + 1] += ends[e];
    for (uint64_t i = 0; i < n; i++) {
        places[i] = ends[choices[i].expert]++;
        index[places[i]] = (uint32_t)(i / n_kept);
    }
    memmove(ends + 1, ends, n_experts * sizeof *ends); /* each begin has become the next one's */
    ends[0] = 0;
}

/* The rows whose experts the host may multiply. */
static int fetch_rows(const struct spw_experts *x, uint64_t rows)
{
    if (!spw_plan_computes_on_host(x->plan, rows))
        return 0;
    return spw_lane_copy(x->lane, x->host->x,
                         on_device(x, x->plan->device.experts.x, 0, row_bytes(x)),
                         rows * row_bytes(x), SPW_LINK_DEVICE_TO_HOST, x->lane->compute);
}

/* The host reads the choices. A number that no expert has comes from memory that was damaged. */
static int fetch_choices(const struct spw_experts *x, uint64_t rows)
{
    struct spw_choice *host =
        (struct spw_choice *)on_host(x, x->plan->host.experts.choices, choices_bytes(x));
    SPW_TRY(spw_lane_copy(x->lane, host,
                          on_device(x, x->plan->device.experts.choices, 0, choices_bytes(x)),
                          rows * choices_bytes(x), SPW_LINK_DEVICE_TO_HOST, x->lane->compute));
    SPW_TRY(fetch_rows(x, rows));
    SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
    for (uint64_t i = 0; i < rows * config(x)->n_kept; i++)
        if (host[i].expert >= config(x)->n)
            return -EIO;
    return 0;
}

/* The device needs the order of rows; one row has no order. */
static int send_order(const struct spw_experts *x, uint64_t rows)
{
    const struct spw_plan_experts *d = &x->plan->device.experts, *h = &x->plan->host.experts;
    const uint64_t bytes = rows * numbers_bytes(x);
    if (rows == 1)
        return 0;
    SPW_TRY(spw_lane_copy(x->lane, on_device(x, d->index, 0, numbers_bytes(x)),
                          on_host(x, h->index, numbers_bytes(x)), bytes, SPW_LINK_HOST_TO_DEVICE,
                          x->lane->compute));
    return spw_lane_copy(x->lane, on_device(x, d->places, 0, numbers_bytes(x)),
                         on_host(x, h->places, numbers_bytes(x)), bytes, SPW_LINK_HOST_TO_DEVICE,
                         x->lane->compute);
}

int spw_experts_sort_rows(struct spw_experts *x, uint32_t layer, uint64_t rows)
{
    const struct spw_plan_experts *host = &x->plan->host.experts;
    SPW_TRY(fetch_choices(x, rows));
    spw_experts_sort((const struct spw_choice *)on_host(x, host->choices, choices_bytes(x)), rows,
                     config(x)->n_kept, config(x)->n, x->ends,
                     (uint32_t *)on_host(x, host->index, numbers_bytes(x)),
                     (uint32_t *)on_host(x, host->places, numbers_bytes(x)));
    x->n_visited = 0;
    for (uint32_t e = 0; e < config(x)->n; e++)
        if (x->ends[e] < x->ends[e + 1])
            x->visit[x->n_visited++] = (struct spw_expert_visit){
                .expert = first_expert(x, layer) + e, .n_rows = x->ends[e + 1] - x->ends[e]};
    return send_order(x, rows);
}

/* ---- few rows, and all experts resident: kernels find the experts by a table of addresses ---- */

/* The kernels may read any expert of the layer: all must have been loaded. */
static int compute_found(const struct spw_experts *x, uint32_t layer, uint64_t rows)
{
    const struct spw_plan_experts *d = &x->plan->device.experts;
    const struct spw_weights *weights = x->forward->weights;
    const uint32_t block = weights->layer_experts[layer];
    const uint8_t *at;
    struct spw_layer_weights like;
    for (uint32_t e = config(x)->n; e-- > 0;)
        SPW_TRY(spw_prefetch_wait_block(x->prefetch, block + e, &at));
    spw_weights_operands(weights, block, at, &like);
    const void *const *addresses = (const void *const *)(x->lane->device_arena + d->addresses);
    return spw_forward_chosen(
        x->forward, layer, &like,
        (const struct spw_choice *)on_device(x, d->choices, 0, choices_bytes(x)),
        addresses + first_expert(x, layer), weights->n_expert_blocks,
        on_device(x, d->x, 0, row_bytes(x)),
        on_device(x, d->y, 0, config(x)->n_kept * row_bytes(x)), rows);
}

/* The products of one expert with its rows, as many rows in a call as a chunk has. at: its weights;
 * NULL: they are used in the mapped file. ordered: the rows are sorted by expert. */
static int compute_expert(const struct spw_experts *x, uint32_t layer, uint32_t expert,
                          const uint8_t *at, bool ordered)
{
    const struct spw_plan_experts *d = &x->plan->device.experts;
    const struct spw_weights *weights = x->forward->weights;
    const uint64_t kept = config(x)->n_kept;
    const uint32_t block = weights->n_blocks + expert, e = block - weights->layer_experts[layer];
    struct spw_layer_weights w;
    spw_weights_operands(weights, block, at, &w);
    for (uint32_t i = x->ends[e]; i < x->ends[e + 1]; i += x->plan->chunk) {
        const uint32_t *index = (const uint32_t *)on_device(x, d->index, 0, numbers_bytes(x)) + i;
        SPW_TRY(spw_forward_expert(
            x->forward, layer, e, &w, on_device(x, d->x, 0, row_bytes(x)), ordered ? index : NULL,
            (const struct spw_choice *)on_device(x, d->choices, 0, choices_bytes(x)),
            on_device(x, d->y, 0, kept * row_bytes(x)) + i * row_bytes(x),
            spw_min_u32(x->ends[e + 1] - i, x->plan->chunk)));
    }
    return 0;
}

/* All experts lie on the device. */
static int compute_resident(const struct spw_experts *x, uint32_t layer, bool ordered)
{
    for (uint32_t i = 0; i < x->n_visited; i++) {
        const uint32_t expert = x->visit[i].expert;
        const uint8_t *at;
        SPW_TRY(spw_prefetch_wait_block(x->prefetch, x->forward->weights->n_blocks + expert, &at));
        SPW_TRY(compute_expert(x, layer, expert, at, ordered));
    }
    return 0;
}

/* Computes the chosen experts that lie on the device, and then those that are being fetched, as
 * they come. */
static int compute_next(const struct spw_experts *x, uint32_t layer, bool ordered)
{
    while (spw_prefetch_has_expert(x->prefetch)) {
        uint32_t expert;
        const uint8_t *at;
        SPW_TRY(spw_prefetch_next_expert(x->prefetch, layer, &expert, &at));
        SPW_TRY(compute_expert(x, layer, expert, at, ordered));
        SPW_TRY(spw_prefetch_expert_done(x->prefetch));
    }
    return 0;
}

static int compute_moving(const struct spw_experts *x, uint32_t layer, bool ordered)
{
    SPW_TRY(spw_prefetch_visit_experts(x->prefetch, x->visit, x->n_visited, false));
    return compute_next(x, layer, ordered);
}

/* ---- few rows: what is missed is multiplied by the host ---- */

/* Queues expert number i of those that the host multiplies. */
static int queue_on_host(const struct spw_experts *x, uint32_t layer, uint32_t i, bool ordered)
{
    const struct spw_plan_experts *h = &x->plan->host.experts;
    struct spw_host_expert from;
    SPW_TRY(spw_prefetch_host_expert(x->prefetch, layer, i, &from));
    const uint32_t e = from.expert - first_expert(x, layer);
    const uint32_t *index = (const uint32_t *)on_host(x, h->index, numbers_bytes(x));
    return spw_host_products_expert(
        x->host, layer, e, &from, ordered ? index + x->ends[e] : NULL,
        (const struct spw_choice *)on_host(x, h->choices, choices_bytes(x)), x->ends[e],
        x->ends[e + 1] - x->ends[e]);
}

/* Outputs that lie side by side go up together. */
static int send_outputs(const struct spw_experts *x, uint32_t layer)
{
    const uint64_t row = row_bytes(x);
    const uint32_t first = first_expert(x, layer);
    uint8_t *to = on_device(x, x->plan->device.experts.y, 0, config(x)->n_kept * row);
    for (uint32_t i = 0; i < x->n_visited; i++) {
        if (!x->visit[i].missed)
            continue;
        const uint64_t from = x->ends[x->visit[i].expert - first];
        while (i + 1 < x->n_visited && x->visit[i + 1].missed)
            i++;
        const uint64_t bytes = (x->ends[x->visit[i].expert - first + 1] - from) * row;
        SPW_TRY(spw_lane_copy(x->lane, to + from * row, x->host->y + from * row, bytes,
                              SPW_LINK_HOST_TO_DEVICE, x->lane->compute));
    }
    return 0;
}

/* Experts in host memory, then on the device, then from files: each of these leaves its bounce slot
 * to another one. */
static int compute_split(const struct spw_experts *x, uint32_t layer, bool ordered)
{
    const uint32_t packed = spw_prefetch_n_host_experts(x->prefetch, true);
    const uint32_t n = spw_prefetch_n_host_experts(x->prefetch, false);
    for (uint32_t i = 0; i < packed; i++)
        SPW_TRY(queue_on_host(x, layer, i, ordered));
    SPW_TRY(compute_next(x, layer, ordered));
    for (uint32_t i = packed; i < n; i++) {
        SPW_TRY(queue_on_host(x, layer, i, ordered));
        SPW_TRY(spw_host_products_wait(x->host, layer));
        SPW_TRY(spw_prefetch_host_expert_done(x->prefetch, i));
    }
    return 0;
}

static int compute_on_both(const struct spw_experts *x, uint32_t layer, bool ordered)
{
    SPW_TRY(spw_prefetch_visit_experts(x->prefetch, x->visit, x->n_visited, true));
    int rc = compute_split(x, layer, ordered);
    const uint32_t packed = spw_prefetch_n_host_experts(x->prefetch, true);
    int waited = packed ? spw_host_products_wait(x->host, layer) : 0; /* also after a failure */
    SPW_TRY(rc ? rc : waited);
    SPW_TRY(send_outputs(x, layer));
    for (uint32_t i = 0; i < packed; i++)
        SPW_TRY(spw_prefetch_host_expert_done(x->prefetch, i));
    return 0;
}

/* Adds the outputs to the rows of the pass, as many at a time as a chunk has. */
static int combine(const struct spw_experts *x, uint32_t layer,
                   const struct spw_layer_weights *matrices, uint8_t *h, uint64_t rows,
                   bool ordered)
{
    const struct spw_plan_experts *d = &x->plan->device.experts;
    const uint8_t *y = on_device(x, d->y, 0, config(x)->n_kept * row_bytes(x));
    for (uint64_t row = 0; row < rows; row += x->plan->chunk) {
        const struct spw_forward_experts e = buffers(x, row);
        const uint32_t *places = (const uint32_t *)on_device(x, d->places, row, numbers_bytes(x));
        SPW_TRY(spw_forward_combine(x->forward, layer, matrices, &e,
                                    h + row * x->plan->hidden_row_bytes, y, ordered ? places : NULL,
                                    spw_min_u64(rows - row, x->plan->chunk)));
    }
    return 0;
}

int spw_experts_compute(struct spw_experts *x, uint32_t layer,
                        const struct spw_layer_weights *matrices, void *h, uint64_t rows)
{
    const bool found = spw_plan_routes_on_device(x->plan, rows), ordered = rows > 1 && !found;
    if (found)
        SPW_TRY(compute_found(x, layer, rows));
    else if (spw_plan_computes_on_host(x->plan, rows))
        SPW_TRY(compute_on_both(x, layer, ordered));
    else if (x->plan->n_expert_frames)
        SPW_TRY(compute_moving(x, layer, ordered));
    else
        SPW_TRY(compute_resident(x, layer, ordered));
    return combine(x, layer, matrices, h, rows, ordered);
}

void spw_experts_addresses(const struct spw_weights *w, const struct spw_prefetch *prefetch,
                           const void **out)
{
    const uint32_t n = w->n_expert_blocks;
    for (uint32_t i = 0; i < n; i++) {
        struct spw_layer_weights expert;
        const uint32_t block = w->n_blocks + i;
        spw_weights_operands(w, block, spw_prefetch_resident(prefetch, block), &expert);
        out[i] = expert.of[SPW_MATRIX_GATE].w;
        out[n + i] = expert.of[SPW_MATRIX_UP].w;
        out[2 * n + i] = expert.of[SPW_MATRIX_DOWN].w;
    }
}
