/* The rows of a step pass the layers with states.
 *
 * The rows of a part with drafts read the state and do not update it. What an update needs of them,
 * the results of the layer's products, is copied to the kept rows (offload/kv/state_store.h). The
 * next part of the sequence first applies the kept rows that were not cut off: convolution and
 * recurrence run once more for them, the products do not. */
#include "runtime/step/executor.h"

#include "offload/kv/checkpoint.h"
#include "offload/kv/state_store.h"
#include "quant/types.h"

/* Applies the kept rows of one layer, if there are any. The state of the layer must be on the
 * device. */
static int apply_kept_rows(const struct spw_executor *x, uint32_t layer, struct spw_kv_seq *seq)
{
    const uint32_t slice = x->config->state_slices[layer];
    const struct spw_kept_rows kept = spw_kv_state_kept_rows(seq, slice);
    if (kept.from == kept.to)
        return 0;
    const struct spw_state_part part = {.state = spw_kv_state(seq, slice),
                                        .rows = (uint32_t)(kept.to - kept.from),
                                        .position = kept.from};
    SPW_TRY(spw_forward_take(&x->forward, layer, &part, kept.rows,
                             (uint8_t *)kept.rows + x->plan->kept_in_bytes));
    spw_kv_state_applied(seq, slice);
    return 0;
}

int spw_executor_apply_kept_rows(const struct spw_executor *x, struct spw_kv_seq *seq)
{
    for (uint32_t layer = 0; layer < x->config->n_layers; layer++) {
        const uint32_t slice = x->config->state_slices[layer];
        if (!spw_config_has_state(x->config, layer))
            continue;
        const struct spw_kept_rows kept = spw_kv_state_kept_rows(seq, slice);
        if (kept.from == kept.to)
            continue;
        SPW_TRY(spw_kv_state_enter(seq, slice));
        SPW_TRY(apply_kept_rows(x, layer, seq));
        SPW_TRY(spw_kv_state_leave(seq, slice));
    }
    return 0;
}

/* Copies `rows` rows of the chunk, from `row` on, to the kept rows of the sequence. */
static int keep_rows(const struct spw_executor *x, uint32_t layer, const struct spw_kv_seq *seq,
                     uint64_t row, uint64_t rows)
{
    const struct spw_forward *f = &x->forward;
    const uint64_t in = spw_row_bytes(f->dtype, spw_mixer_in_width(&x->config->mixer));
    const uint64_t rates = spw_row_bytes(f->dtype, spw_mixer_rates_width(&x->config->mixer));
    uint8_t *to = spw_kv_state_kept_rows(seq, x->config->state_slices[layer]).rows;
    SPW_TRY(spw_lane_copy(x->lane, to, (const uint8_t *)f->b.state_in + row * in, rows * in,
                          SPW_LINK_DEVICE_TO_DEVICE, x->lane->compute));
    if (!rates)
        return 0;
    return spw_lane_copy(x->lane, to + x->plan->kept_in_bytes,
                         (const uint8_t *)f->b.state_rates + row * rates, rows * rates,
                         SPW_LINK_DEVICE_TO_DEVICE, x->lane->compute);
}

/* Fills in *out, the arguments of the part for the kernels. out->stays: the rows of the part only
 * read the state, because they may be cut off again. */
static int begin_part(struct spw_executor *x, uint32_t layer, const struct spw_part *part,
                      struct spw_state_part *out)
{
    const uint32_t slice = x->config->state_slices[layer];
    struct spw_kv_seq *seq = x->step->items[part->span].seq->kv;
    const bool stays = spw_step_may_roll_back(x->step, part);
    SPW_TRY(apply_kept_rows(x, layer, seq));
    if (stays)
        spw_kv_state_keep_rows(seq, slice, part->to);
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
            SPW_TRY(keep_rows(x, layer, seq, states[i].row, states[i].rows));
        else
            SPW_TRY(spw_kv_checkpoint_layer(seq, parts[i].to, x->config->state_slices[layer]));
    }
    return 0;
}
