/* Rows of a step go through the states of their sequences.
 *
 * A part that is a whole span with drafts leaves the states as they are, and what they need of its
 * rows is kept (offload/kv/state_store.h). The next part of the sequence first gives the states
 * those rows that stayed: their convolution and recurrence run once more, and no product does. */
#include "runtime/step/executor.h"

#include "offload/kv/checkpoint.h"
#include "offload/kv/state_store.h"
#include "quant/types.h"

/* The state of the layer is on the device. */
static int take(const struct spw_executor *x, uint32_t layer, struct spw_kv_seq *seq)
{
    const uint32_t slice = x->config->state_slices[layer];
    const struct spw_kept_rows kept = spw_kv_state_kept(seq, slice);
    if (kept.from == kept.to)
        return 0;
    const struct spw_state_part part = {.state = spw_kv_state(seq, slice),
                                        .rows = (uint32_t)(kept.to - kept.from),
                                        .position = kept.from};
    SPW_TRY(spw_forward_take(&x->forward, layer, &part, kept.rows,
                             (uint8_t *)kept.rows + x->plan->kept_in_bytes));
    spw_kv_state_took(seq, slice);
    return 0;
}

int spw_executor_take_kept(const struct spw_executor *x, struct spw_kv_seq *seq)
{
    for (uint32_t layer = 0; layer < x->config->n_layers; layer++) {
        const uint32_t slice = x->config->state_slices[layer];
        if (!spw_config_has_state(x->config, layer))
            continue;
        const struct spw_kept_rows kept = spw_kv_state_kept(seq, slice);
        if (kept.from == kept.to)
            continue;
        SPW_TRY(spw_kv_state_enter(seq, slice));
        SPW_TRY(take(x, layer, seq));
        SPW_TRY(spw_kv_state_leave(seq, slice));
    }
    return 0;
}

/* Keeps `rows` rows of the chunk, from `row` on. */
static int keep(const struct spw_executor *x, uint32_t layer, const struct spw_kv_seq *seq,
                uint64_t row, uint64_t rows)
{
    const struct spw_forward *f = &x->forward;
    const uint64_t in = spw_row_bytes(f->dtype, spw_mixer_in_width(&x->config->mixer));
    const uint64_t rates = spw_row_bytes(f->dtype, spw_mixer_rates_width(&x->config->mixer));
    uint8_t *to = spw_kv_state_kept(seq, x->config->state_slices[layer]).rows;
    SPW_TRY(spw_lane_copy(x->lane, to, (const uint8_t *)f->b.state_in + row * in, rows * in,
                          SPW_LINK_DEVICE_TO_DEVICE, x->lane->compute));
    if (!rates)
        return 0;
    return spw_lane_copy(x->lane, to + x->plan->kept_in_bytes,
                         (const uint8_t *)f->b.state_rates + row * rates, rows * rates,
                         SPW_LINK_DEVICE_TO_DEVICE, x->lane->compute);
}

/* What the state of the part's sequence is given, and whether it takes that. */
static int begin_part(struct spw_executor *x, uint32_t layer, const struct spw_part *part,
                      struct spw_state_part *out)
{
    const uint32_t slice = x->config->state_slices[layer];
    struct spw_kv_seq *seq = x->step->items[part->span].seq->kv;
    const bool stays = spw_step_may_take_back(x->step, part);
    SPW_TRY(take(x, layer, seq));
    if (stays)
        spw_kv_state_keep(seq, slice, part->to);
    else
        SPW_TRY(spw_kv_grow(seq, slice, part->from, part->to));
    *out = (struct spw_state_part){.state = spw_kv_state(seq, slice),
                                   .rows = (uint32_t)(part->to - part->from),
                                   .position = part->from,
                                   .stays = stays};
    return 0;
}

int spw_executor_run_states(struct spw_executor *x, uint32_t layer,
                            const struct spw_layer_weights *w, const struct spw_chunk *chunk,
                            void *h)
{
    const struct spw_part *parts = &x->step->now->cut.parts[chunk->first_part];
    struct spw_state_part *states = x->state_parts;
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        SPW_TRY(begin_part(x, layer, &parts[i], &states[i]));
        states[i].row = (uint32_t)(parts[i].row - chunk->row);
    }
    SPW_TRY(spw_forward_state(&x->forward, layer, w, states, chunk->n_parts, h, chunk->rows));
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        struct spw_kv_seq *seq = x->step->items[parts[i].span].seq->kv;
        if (states[i].stays)
            SPW_TRY(keep(x, layer, seq, states[i].row, states[i].rows));
        else
            SPW_TRY(spw_kv_checkpoint_layer(seq, parts[i].to, x->config->state_slices[layer]));
    }
    return 0;
}
