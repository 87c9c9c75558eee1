/* Products in host memory: see host_products.h. */
#include "runtime/step/host_products.h"

#include "quant/types.h"

#include <assert.h>
#include <string.h>

/* ---- experts ---- */

int spw_host_products_expert(const struct spw_host_products *h, uint32_t layer, uint32_t e,
                             const struct spw_host_expert *from, const uint32_t *index,
                             const struct spw_choice *choices, uint64_t place, uint64_t n)
{
    const struct spw_weights *w = h->forward.weights;
    const uint64_t row = spw_row_bytes(h->forward.dtype, spw_config_expert_row(w->config));
    struct spw_layer_weights operands;
    if (from->lands)
        spw_weights_operands_as_read(w, w->n_blocks + from->expert, from->at, from->lands,
                                     &operands);
    else
        spw_weights_operands(w, w->n_blocks + from->expert, from->at, &operands);
    return spw_forward_expert(&h->forward, layer, e, &operands, h->x, index, choices,
                              h->y + place * row, n);
}

int spw_host_products_wait(const struct spw_host_products *h, uint32_t layer)
{
    SPW_TRY(spw_prefetch_stall_begin(h->prefetch));
    int rc = spw_lane_stream_sync(h->lane, h->lane->compute);
    spw_prefetch_stall_end(h->prefetch, layer);
    return rc;
}

/* ---- layers ---- */

/* Copies rows of `cols` numbers between the device, where they are `stride` apart, and the host,
 * where they follow each other. */
static int move_rows(const struct spw_host_products *h, const void *on_device, uint8_t *on_host,
                     size_t rows, size_t cols, size_t stride, enum spw_link link)
{
    const enum spw_dtype type = h->forward.dtype;
    const uint64_t row = spw_row_bytes(type, cols), step = spw_row_bytes(type, stride);
    const bool joined = rows == 1 || cols == stride;
    for (size_t i = 0; i < (joined ? 1 : rows); i++) {
        uint8_t *there = (uint8_t *)(uintptr_t)on_device + i * step, *here = on_host + i * row;
        const bool down = link == SPW_LINK_DEVICE_TO_HOST;
        SPW_TRY(spw_lane_copy(h->device_lane, down ? here : there, down ? there : here,
                              (joined ? rows : 1) * row, link, h->device_lane->compute));
    }
    return 0;
}

/* Brings the rows of a product, unless they are here, and waits until h->x and h->y are free. */
static int begin(const struct spw_host_products *h, const void *x, size_t rows, size_t cols,
                 size_t stride, bool same_x)
{
    if (!same_x)
        SPW_TRY(move_rows(h, x, h->x, rows, cols, stride, SPW_LINK_DEVICE_TO_HOST));
    return spw_lane_stream_sync(h->device_lane, h->device_lane->compute);
}

/* What was queued with `rc` ends; then its rows go up to y. */
static int end(const struct spw_host_products *h, int rc, void *y, size_t rows, size_t cols,
               size_t stride)
{
    int waited = h->lane ? spw_host_products_wait(h, h->layer) : 0; /* also after a failure */
    SPW_TRY(rc ? rc : waited);
    return move_rows(h, y, h->y, rows, cols, stride, SPW_LINK_HOST_TO_DEVICE);
}

/* A vector of `small`, where the host has it. */
static const float *vector_here(const struct spw_host_products *h, const float *on_device)
{
    return on_device ? h->forward.small + (on_device - h->device->small) : NULL;
}

static int linear(void *context, const struct spw_linear_args *a, bool same_x)
{
    const struct spw_host_products *h = context;
    struct spw_linear_args own = *a;
    assert(!a->residual);
    own.x = h->x;
    own.x_stride = a->k;
    own.y = h->y;
    own.y_stride = a->n;
    own.bias = vector_here(h, a->bias);
    own.workspace = h->forward.b.workspace;
    own.codes = h->forward.b.codes;
    SPW_TRY(begin(h, a->x, a->m, a->k, a->x_stride, same_x));
    int rc = h->lane ? h->forward.ops->linear(&own, h->forward.stream) : 0;
    return end(h, rc, a->y, a->m, a->n, a->y_stride);
}

static int gated_linear(void *context, const struct spw_gated_linear_args *a)
{
    const struct spw_host_products *h = context;
    struct spw_gated_linear_args own = *a;
    own.x = h->x;
    own.x_stride = a->k;
    own.y = h->y;
    own.bias = vector_here(h, a->bias);
    own.scratch = h->forward.b.gate_up;
    own.workspace = h->forward.b.workspace;
    own.codes = h->forward.b.codes;
    SPW_TRY(begin(h, a->x, a->m, a->k, a->x_stride, false));
    int rc = h->lane ? h->forward.ops->gated_linear(&own, h->forward.stream) : 0;
    return end(h, rc, a->y, a->m, a->n, a->n);
}

/* ---- open ---- */

void spw_host_products_init(struct spw_host_products *h, const struct spw_plan *p,
                            const struct spw_ops *ops, const struct spw_lane *lane)
{
    const struct spw_plan_host_lane *at = &p->host.lane;
    const struct spw_weights *w = h->device->weights;
    uint8_t *host_arena = h->device_lane->host_arena;
    h->lane = lane;
    h->x = host_arena + at->x;
    h->y = host_arena + at->y;
    h->layers = (struct spw_forward_host){linear, gated_linear, h};
    h->forward = (struct spw_forward){.ops = ops,
                                      .weights = w,
                                      .small = (const float *)(host_arena + at->small),
                                      .b = {.x = host_arena + at->rows,
                                            .gate_up = host_arena + at->gate_up,
                                            .gated = host_arena + at->gated,
                                            .workspace = host_arena + at->workspace,
                                            .codes = host_arena + at->codes},
                                      .dtype = p->info.compute,
                                      .stream = lane ? lane->compute : NULL};
    if (lane && at->small < p->host.expert_tables) /* products have biases */
        memcpy(host_arena + at->small, w->small, w->n_small * sizeof *w->small);
}
