/* Products of experts in host memory: see host_experts.h. */
#include "runtime/step/host_experts.h"

#include "quant/types.h"

#include <string.h>

void spw_host_experts_init(struct spw_host_experts *h, const struct spw_plan *p,
                           const struct spw_weights *w, const struct spw_ops *ops,
                           const struct spw_lane *lane, uint8_t *host_arena)
{
    const struct spw_plan_host_lane *at = &p->host.lane;
    *h = (struct spw_host_experts){.lane = lane, .x = host_arena + at->x, .y = host_arena + at->y};
    if (!lane)
        return;
    h->forward = (struct spw_forward){.ops = ops,
                                      .weights = w,
                                      .small = (const float *)(host_arena + at->small),
                                      .b = {.x = host_arena + at->rows,
                                            .gate_up = host_arena + at->gate_up,
                                            .gated = host_arena + at->gated,
                                            .workspace = host_arena + at->workspace,
                                            .codes = host_arena + at->codes},
                                      .dtype = p->info.compute,
                                      .stream = lane->compute};
    if (at->small < p->host.expert_tables) /* experts have biases */
        memcpy(host_arena + at->small, w->small, w->n_small * sizeof *w->small);
}

int spw_host_experts_queue(const struct spw_host_experts *h, uint32_t layer, uint32_t e,
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

int spw_host_experts_wait(const struct spw_host_experts *h)
{
    return spw_lane_stream_sync(h->lane, h->lane->compute);
}
