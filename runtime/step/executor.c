/* One step of generation: see executor.h. The step itself is at the end of this file.
 *
 *   step      cut the new tokens into passes
 *   pass      for each layer: weights arrive, chunks pass, old tiles are spilled; then logits
 *   chunk     norm, q k v, [attend], output, mlp: model/forward.c. A step can pause after a chunk
 *   experts   in some layers, in place of mlp, for all chunks together: experts.c
 *   states    rows of layers with a state: executor_states.c
 *   attend    rope and append, quantize old tiles, read streamed and resident tiles: attend.c
 *
 *   spw_executor_step
 *     spw_step_next_pass          what the pass computes and reads: step.c
 *     run_pass                    begin_pass, then run_layers, then run_logits
 *       run_layer > run_chunk     attend; place_old_tiles
 *
 * Work is queued; executor.h says where the host waits.
 */
#include "runtime/step/executor.h"

#include "offload/kv/checkpoint.h"
#include "offload/kv/state_store.h"
#include "runtime/experts/trace.h"

/* Where the logits go. */
struct logits_sink {
    int (*on_logits)(void *context, uint32_t span, uint64_t position, const float *logits);
    void *context;
};

/* ---- a layer ---- */

/* Copies the embeddings of a chunk: every layer with inputs needs them (spw_forward_inputs), and
 * layer 0 overwrites the rows. */
static int keep_embedding(struct spw_executor *x, const struct spw_chunk *chunk, const void *h)
{
    const uint64_t bytes = x->plan->hidden_row_bytes;
    const uint64_t row = x->step->experts.first_row + chunk->row;
    return spw_lane_copy(x->lane, x->lane->device_arena + x->plan->device.embedding + row * bytes,
                         h, chunk->rows * bytes, SPW_LINK_DEVICE_TO_DEVICE, x->lane->compute);
}

/* `row`, `rows`: of the pass. */
static int add_inputs(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                      void *h, uint64_t row, uint64_t rows)
{
    uint8_t *device = x->lane->device_arena;
    const uint64_t at = x->step->experts.first_row + row;
    return spw_forward_inputs(
        &x->forward, layer, w, device + x->plan->device.embedding + at * x->plan->hidden_row_bytes,
        device + x->plan->device.inputs + at * x->plan->inputs_row_bytes, h, rows);
}

/* Where the source of a span begins among those of the pass. */
static uint32_t first_source_tile(const struct spw_step *s, uint32_t span)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < span; i++)
        if (s->now->spans[i].from < s->now->spans[i].to &&
            s->now->spans[i].from < s->spans[i].n_source)
            n += spw_waterline_tiles(s->spans[i].n_source);
    return n;
}

/* Each part of the chunk goes through one phase of attention. */
static int each_part(struct spw_executor *x, uint32_t layer, const struct spw_chunk *chunk,
                     int (*phase)(const struct spw_attend *a, uint32_t i,
                                  const struct spw_attend_part *part))
{
    const struct spw_part *parts = &x->step->now->cut.parts[chunk->first_part];
    const uint32_t kind = x->config->layer_kinds[layer];
    for (uint32_t i = 0; i < chunk->n_parts; i++) {
        const struct spw_part_reads *g = &x->step->now->parts[chunk->first_part + i];
        x->chunk_parts[i] = (struct spw_attend_part){
            .seq = x->step->items[parts[i].span].seq,
            .tiles = &x->step->now->part_tiles[chunk->first_part + i][kind],
            .layer = layer,
            .n_source = x->step->spans[parts[i].span].n_source,
            .source_tile = first_source_tile(x->step, parts[i].span),
            .keys_only = chunk->source && spw_config_keeps_source(x->config, layer),
            .reads = spw_step_reads(x->step, parts[i].span, kind, parts[i].to),
            .from = parts[i].from,
            .to = parts[i].to,
            .row = parts[i].row - chunk->row,
            .shared_with = g->shared_with[kind] - chunk->first_part,
            .shared_end = g->shared_end[kind]};
        SPW_TRY(phase(&x->attend, i, &x->chunk_parts[i]));
    }
    return 0;
}

/* Before the first chunk of a layer with states, and after its last one: `move` brings the states
 * to the device, or back. */
static int move_states(struct spw_executor *x, uint32_t layer,
                       int (*move)(struct spw_kv_seq *seq, uint32_t slice))
{
    const struct spw_pass *pass = x->step->now;
    for (uint32_t i = 0; i < x->step->n_items && spw_config_has_state(x->config, layer); i++)
        if (pass->spans[i].from < pass->spans[i].to)
            SPW_TRY(move(x->step->items[i].seq->kv, x->config->state_slices[layer]));
    return 0;
}

/* Before the first chunk of the layer: loads the tiles that its chunks read in place, and the
 * states. */
static int enter_layer(struct spw_executor *x, uint32_t layer)
{
    const struct spw_pass *pass = x->step->now;
    const uint32_t first = x->config->first_slices[layer], kind = x->config->layer_kinds[layer];
    const uint32_t end = first + spw_config_layer_slices(x->config, layer);
    for (uint32_t i = 0; i < x->step->n_items && spw_config_stores_kv(x->config, layer); i++)
        for (uint32_t slice = first; slice < end && pass->spans[i].from < pass->spans[i].to;
             slice++)
            SPW_TRY(spw_residency_enter(&x->residency, x->step->items[i].seq,
                                        &pass->span_tiles[i][kind], slice));
    return move_states(x, layer, spw_kv_state_enter);
}

/* ---- a chunk ---- */

/* Spills or drops the tiles of the layer that have become old. Where other layers read the tiles of
 * this layer (plan.holds_tiles), that comes after all chunks of the last of these layers. */
static int place_old_tiles(struct spw_executor *x, uint32_t layer, uint32_t k)
{
    const struct spw_cut *cut = &x->step->now->cut;
    const struct spw_parts_placed placed = spw_cut_placed(cut, k, x->plan->holds_tiles);
    const uint32_t first = x->config->first_slices[layer];
    const uint32_t end = first + spw_config_layer_slices(x->config, layer);
    if (spw_config_last_reader(x->config, x->config->kv_layers[layer]) != layer)
        return 0;
    for (uint32_t i = placed.first; i < placed.end; i++) {
        const struct spw_part *part = &cut->parts[i];
        for (uint32_t slice = first; slice < end; slice++)
            SPW_TRY(spw_residency_after_chunk(
                &x->residency, x->step->items[part->span].seq,
                &x->step->now->part_tiles[i][x->config->layer_kinds[layer]], slice));
    }
    return 0;
}

/* The rest of the layer, after its keys and values were appended and its states were updated: h
 * becomes what the next layer reads. */
static int finish_chunk(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                        const struct spw_chunk *chunk, void *h)
{
    if (spw_config_attends(x->config, layer)) {
        SPW_TRY(spw_attend_read(&x->attend, chunk->n_parts));
        SPW_TRY(spw_forward_output(&x->forward, layer, w, h, chunk->rows));
    }
    if (x->config->has_experts[layer])
        return spw_experts_route(&x->step->experts, layer, w, h, chunk->row, chunk->rows);
    if (x->config->has_mlp[layer])
        SPW_TRY(spw_forward_mlp(&x->forward, layer, w, h, chunk->rows));
    return add_inputs(x, layer, w, h, chunk->row, chunk->rows);
}

/* Before the first layer of an encoder of audio. */
static int run_audio(struct spw_executor *x, const struct spw_layer_weights *w,
                     const struct spw_chunk *chunk, void *h)
{
    const struct spw_part *parts = &x->step->now->cut.parts[chunk->first_part];
    SPW_TRY(spw_forward_audio(&x->forward, w,
                              x->lane->device_arena + x->plan->device.inputs +
                                  chunk->row * x->plan->inputs_row_bytes,
                              chunk->rows));
    for (uint32_t i = 0; i < chunk->n_parts; i++)
        if (!parts[i].from)
            SPW_TRY(spw_forward_no_frame(&x->forward, parts[i].row - chunk->row));
    return spw_forward_audio_added(&x->forward, w, h, chunk->rows);
}

/* Rows of a source: a layer keeps keys and values of them, or else they attend to all of it. */
static int run_source(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                      const struct spw_chunk *chunk, void *h)
{
    const bool encodes = layer < x->config->n_source_layers;
    if (spw_config_keeps_source(x->config, layer)) {
        SPW_TRY(spw_forward_project_source(&x->forward, layer, w, h, chunk->rows));
        return each_part(x, layer, chunk, encodes ? spw_attend_keep_source : spw_attend_append);
    }
    SPW_TRY(spw_forward_project(&x->forward, layer, w, h, chunk->rows));
    SPW_TRY(each_part(x, layer, chunk, spw_attend_source));
    SPW_TRY(spw_forward_output(&x->forward, layer, w, h, chunk->rows));
    return spw_forward_mlp(&x->forward, layer, w, h, chunk->rows);
}

/* Whether the layer only stores keys and values: the MTP layer in a step of the model. Only a step
 * of drafts uses the output of this layer. */
static bool only_stores(const struct spw_executor *x, uint32_t layer)
{
    return spw_config_is_mtp(x->config, layer) && !x->step->is_draft;
}

static int run_rows(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                    uint32_t k)
{
    const struct spw_chunk *chunk = &x->step->now->cut.chunks[k];
    void *h;
    SPW_TRY(spw_hidden_get(&x->step->hidden, x->config->n_layers, layer, k, &h));
    if (chunk->source && !layer && x->config->n_mels)
        SPW_TRY(run_audio(x, w, chunk, h));
    if (layer == (chunk->source ? 0 : x->config->n_source_layers))
        SPW_TRY(spw_forward_embedded(&x->forward, chunk->source, h, chunk->rows));
    if (chunk->source)
        return run_source(x, layer, w, chunk, h);
    if (spw_config_is_mtp(x->config, layer))
        SPW_TRY(spw_executor_join(x, w, k, &h));
    if (x->config->layer_inputs && !layer)
        SPW_TRY(keep_embedding(x, chunk, h));
    const bool attends = spw_config_attends(x->config, layer);
    if (attends)
        SPW_TRY(spw_forward_project(&x->forward, layer, w, h, chunk->rows));
    if (spw_config_has_state(x->config, layer))
        SPW_TRY(spw_executor_run_states(x, layer, w, chunk, h));
    if (attends)
        SPW_TRY(each_part(x, layer, chunk, spw_attend_append));
    if (!only_stores(x, layer))
        SPW_TRY(finish_chunk(x, layer, w, chunk, h));
    return spw_hidden_put(&x->step->hidden, layer, k);
}

static int run_chunk(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w,
                     uint32_t k)
{
    const struct spw_chunk *chunk = &x->step->now->cut.chunks[k];
    if (spw_config_passes(x->config, layer, chunk->source))
        SPW_TRY(run_rows(x, layer, w, k));
    SPW_TRY(place_old_tiles(x, layer, k));
    return spw_progress_mark(&x->step->progress, chunk->rows);
}

/* Counts the experts that were not on the device when rows of the pass chose them. */
static void count_missed(struct spw_executor *x, uint64_t rows)
{
    const struct spw_weights *w = x->o.weights;
    for (uint32_t i = 0; i < x->step->experts.n_visited && x->plan->n_expert_frames; i++) {
        const struct spw_expert_visit *v = &x->step->experts.visit[i];
        if (!v->missed)
            continue;
        spw_plan_add_missed(x->plan, w, v, rows, x->missed);
        if (spw_plan_computes_on_host(x->plan, rows))
            x->host_multiplied_bytes += w->blocks[w->n_blocks + v->expert].matrix_bytes;
    }
}

/* The router has chosen the experts of all rows of the pass. These experts compute now. */
static int run_experts(struct spw_executor *x, uint32_t layer, const struct spw_layer_weights *w)
{
    struct spw_experts *experts = &x->step->experts;
    const uint64_t rows = x->step->now->cut.rows;
    void *h; /* a pass with experts lies on the device as a whole */
    SPW_TRY(spw_hidden_get(&x->step->hidden, x->config->n_layers, 1, 0, &h));
    if (!spw_plan_routes_on_device(x->plan, rows)) {
        SPW_TRY(spw_experts_sort_rows(experts, layer, rows));
        if (x->o.dry)
            experts->n_visited = 0;
        if (x->o.dry && x->o.dry->experts)
            x->o.dry->experts(x->o.dry->context, layer, rows);
        if (x->o.expert_trace && x->plan->n_expert_frames)
            spw_expert_trace_add(x->o.expert_trace, experts->visit, experts->n_visited);
    }
    int rc = spw_experts_compute(experts, layer, w, h, rows);
    count_missed(x, rows);
    const struct spw_cut *cut = &x->step->now->cut;
    for (uint32_t k = 0; k < cut->n_chunks && !rc; k++) {
        const struct spw_chunk *chunk = &cut->chunks[k];
        rc = add_inputs(x, layer, w, (uint8_t *)h + chunk->row * x->plan->hidden_row_bytes,
                        chunk->row, chunk->rows);
    }
    return rc;
}

/* Whether the step is to be paused after this chunk. */
static bool is_due(struct spw_executor *x)
{
    struct spw_step *s = x->step;
    return s->chunks_before_pause &&
           (!--s->chunks_before_pause || (x->o.hurried && x->o.hurried(x->o.interrupt_context)));
}

/* The host multiplies the matrices of the layer where they lie, if the prefetch has left them
 * there. */
static void leave_on_host(struct spw_executor *x, uint32_t layer, struct spw_layer_weights *w)
{
    x->host.layer = layer;
    for (int r = 0; r < SPW_LAYER_MATRICES; r++)
        w->of[r].on_host = spw_prefetch_is_on_host(x->o.prefetch, layer);
}

/* Computes the chunks of layer s->layer from s->chunk on, and moves both to what comes next. Stops
 * early, with *pause set, if the step is to be paused. */
static int run_layer(struct spw_executor *x, bool *pause)
{
    struct spw_step *s = x->step;
    const uint32_t layer = s->layer; /* and its block */
    const uint8_t *at;
    struct spw_layer_weights w;
    SPW_TRY(spw_prefetch_wait_block(x->o.prefetch, layer, &at));
    spw_weights_operands(x->o.weights, layer, at, &w);
    leave_on_host(x, layer, &w);
    if (!s->chunk)
        SPW_TRY(enter_layer(x, layer));
    while (s->chunk < s->now->cut.n_chunks && !*pause) {
        SPW_TRY(run_chunk(x, layer, &w, s->chunk++));
        x->n_chunks++;
        if (w.of[0].on_host)
            x->host_multiplied_bytes += x->o.weights->blocks[layer].matrix_bytes;
        *pause = is_due(x);
    }
    if (s->chunk == s->now->cut.n_chunks) {
        SPW_TRY(move_states(x, layer, spw_kv_state_leave));
        if (x->config->has_experts[layer] && !only_stores(x, layer))
            SPW_TRY(run_experts(x, layer, &w));
        s->layer++;
        s->chunk = 0;
    }
    return spw_prefetch_release_block(x->o.prefetch, layer);
}

/* ---- logits ---- */

/* Moves to the next row whose logits are wanted; false after the last. */
static bool next_wanted(const struct spw_executor *x, struct spw_wanted_row *w)
{
    return spw_cut_next_wanted(&x->step->now->cut, x->step->spans, w);
}

/* Logits [rows][vocab] of the rows in plan.device.rows. */
static int run_head(struct spw_executor *x, size_t rows, float *logits)
{
    void *r = x->lane->device_arena + x->plan->device.rows;
    const struct spw_weights *w = x->o.weights;
    size_t first = 0, vocab = x->config->vocab;
    SPW_TRY(spw_forward_final_norm(&x->forward, x->step->is_draft, r, r, rows));
    for (uint32_t b = x->config->n_layers; b < w->n_blocks; b++) {
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

/* Copies the hidden rows of the next wanted positions, at most `most`, to plan.device.rows. */
static int gather_rows(struct spw_executor *x, struct spw_wanted_row *at, size_t most)
{
    uint8_t *to = x->lane->device_arena + x->plan->device.rows;
    for (size_t i = 0; i < most && next_wanted(x, at); i++) {
        const struct spw_part *part = &x->step->now->cut.parts[at->part];
        SPW_TRY(spw_hidden_row(&x->step->hidden, part->row + at->position - part->from,
                               to + i * x->plan->hidden_row_bytes));
    }
    return 0;
}

/* The logits of the `wanted` rows of the pass, in rounds of as many rows as the logits buffer has.
 * Two cursors go over these rows: `ask` gathers them for the head, `tell` hands their logits over.
 */
static int run_logits(struct spw_executor *x, uint64_t wanted, const struct logits_sink *d)
{
    float *logits = (float *)(x->lane->device_arena + x->plan->device.logits);
    float *host = (float *)(x->lane->host_arena + x->plan->host.logits);
    struct spw_wanted_row ask = {0, UINT64_MAX}, tell = ask;
    for (uint64_t left = wanted; left;) {
        size_t rows = (size_t)spw_min_u64(left, x->plan->logits_rows);
        SPW_TRY(gather_rows(x, &ask, rows));
        SPW_TRY(run_head(x, rows, logits));
        SPW_TRY(spw_lane_copy(x->lane, host, logits, rows * x->config->vocab * sizeof(float),
                              SPW_LINK_DEVICE_TO_HOST, x->lane->compute));
        left -= rows;
        if (!left && x->step->next->schedule.n_parts) /* while the last logits are still computed */
            SPW_TRY(spw_prefetch_ahead(x->o.prefetch, &x->step->next->schedule));
        SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
        for (size_t i = 0; i < rows && next_wanted(x, &tell); i++) {
            const uint32_t span = x->step->now->cut.parts[tell.part].span;
            if (x->step->is_draft)
                SPW_TRY(spw_executor_keep(x, x->step->items[span].seq, tell.position, i));
            SPW_TRY(d->on_logits(d->context, span, tell.position, host + i * x->config->vocab));
        }
        if (left)
            SPW_TRY(spw_progress_ask(&x->step->progress));
    }
    return 0;
}

/* ---- a pass ---- */

/* Queues the copy of the flag to the host: a kernel has met a value that is not finite. */
static int fetch_flags(struct spw_executor *x)
{
    uint64_t bytes = spw_plan_flags_bytes(x->plan);
    if (!bytes)
        return 0;
    return spw_lane_copy(x->lane, x->lane->host_arena + x->plan->host.flags,
                         x->lane->device_arena + x->plan->device.flags, bytes,
                         SPW_LINK_DEVICE_TO_HOST, x->lane->compute);
}

/* -EDOM: a value was not finite. Clears the flag. The caller has waited for `compute`. */
static int check_flags(struct spw_executor *x)
{
    uint32_t *not_finite = (uint32_t *)(x->lane->host_arena + x->plan->host.flags);
    if (!spw_plan_flags_bytes(x->plan) || !*not_finite)
        return 0;
    *not_finite = 0;
    SPW_TRY(spw_lane_copy(x->lane, x->lane->device_arena + x->plan->device.flags, not_finite,
                          sizeof *not_finite, SPW_LINK_HOST_TO_DEVICE, x->lane->compute));
    return -EDOM;
}

/* Computes the layers of the pass, from s->layer on. -EAGAIN: the step is to be paused. */
static int run_layers(struct spw_executor *x)
{
    struct spw_step *s = x->step;
    const struct spw_lane *lane = x->lane;
    bool pause = false;
    while (s->layer < x->config->n_layers && !pause) {
        lane->ops->range_begin(lane->device, "layer", s->layer);
        int rc = run_layer(x, &pause);
        lane->ops->range_end(lane->device);
        SPW_TRY(rc);
    }
    if (s->layer < x->config->n_layers)
        return -EAGAIN;
    if (pause) /* after the last chunk of a pass there is nothing to pause: one chunk later */
        s->chunks_before_pause = 1;
    for (uint32_t i = 0; i < s->n_items && !s->is_draft; i++)
        SPW_TRY(spw_residency_apply(&x->residency, s->items[i].seq, s->now->spans[i].to));
    return fetch_flags(x);
}

/* A caller may cut a session back to where its prompt began, to ask another question. So the tiles
 * that this prompt drops keep their frames until the next prompt (spw_kv_retain). */
static void retain_exact_tiles(struct spw_executor *x)
{
    for (uint32_t i = 0; x->plan->retains && i < x->step->n_items; i++) {
        const struct spw_pass_span *p = &x->step->now->spans[i];
        if (p->from < p->to && spw_step_is_prompt(x->step, i))
            spw_kv_retain(x->step->items[i].seq->kv, p->from);
    }
}

/* Makes a checkpoint where a pass of prompt i begins: a pass that fails can then be cut off. When
 * the next pass begins or the step ends, this checkpoint is dropped, unless the whole prompt began
 * here or the sequence had a checkpoint here already. */
static int mark_begin(const struct spw_executor *x, uint32_t i)
{
    struct spw_step *s = x->step;
    struct spw_kv_seq *seq = s->items[i].seq->kv;
    const uint64_t from = s->now->spans[i].from, before = s->began_at[i];
    const bool stays = from == s->spans[i].from || spw_kv_last_checkpoint(seq, from) == from;
    s->began_at[i] = stays ? 0 : from;
    SPW_TRY(spw_executor_apply_kept_rows(x, seq));
    SPW_TRY(spw_kv_checkpoint(seq, from));
    spw_kv_checkpoint_drop(seq, before);
    return 0;
}

/* Takes memory for the checkpoints of the pass: where a prompt begins, inside it and at its end; in
 * an answer, at each multiple of SPW_CHECKPOINT_TOKENS. */
static int begin_checkpoints(struct spw_executor *x)
{
    struct spw_step *s = x->step;
    for (uint32_t i = 0; i < s->n_items && x->plan->n_states; i++)
        if (spw_step_is_prompt(s, i) && s->now->spans[i].from < s->now->spans[i].to)
            SPW_TRY(mark_begin(x, i));
    for (uint32_t n = 0; n < s->now->cut.n_parts; n++)
        if (spw_step_wants_checkpoint(s, n))
            spw_kv_checkpoint_begin(s->items[s->now->cut.parts[n].span].seq->kv,
                                    s->now->cut.parts[n].to);
    return 0;
}

/* The pass is over: its checkpoints are complete, or are given up. */
static void end_checkpoints(struct spw_step *s, bool complete)
{
    for (uint32_t i = 0; i < s->n_items; i++) {
        spw_kv_checkpoints_end(s->items[i].seq->kv, complete);
        if (complete && spw_step_is_last_pass(s))
            spw_kv_checkpoint_drop(s->items[i].seq->kv, s->began_at[i]);
    }
}

/* Before the first layer: spills tiles, begins to load others, and the rings begin to fill. */
static int begin_pass(struct spw_executor *x)
{
    const struct spw_pass *pass = x->step->now;
    retain_exact_tiles(x);
    SPW_TRY(begin_checkpoints(x));
    for (uint32_t i = 0; i < x->step->n_items; i++)
        SPW_TRY(spw_residency_make_room(&x->residency, x->step->items[i].seq, pass->span_tiles[i]));
    SPW_TRY(spw_prefetch_begin(x->o.prefetch, &pass->schedule));
    for (uint32_t slice = 0; slice < x->config->n_slices; slice++)
        for (uint32_t i = 0; i < x->step->n_items; i++)
            if (pass->spans[i].from < pass->spans[i].to)
                SPW_TRY(spw_residency_load_ahead(
                    &x->residency, x->step->items[i].seq,
                    &pass->span_tiles[i][x->config->slice_kinds[slice]], slice));
    return spw_hidden_begin(&x->step->hidden, &x->step->now->cut);
}

/* Moves no tile: drafts begin no new tile, so tiles lie where the latest step has left them. */
static int begin_draft(struct spw_executor *x)
{
    if (!spw_plan_drafts_in_place(x->plan, x->o.weights))
        SPW_TRY(spw_prefetch_begin(x->o.prefetch, &x->step->now->schedule));
    return spw_hidden_begin(&x->step->hidden, &x->step->now->cut);
}

/* Runs a pass from its beginning, or continues one that was paused. */
static int run_pass(struct spw_executor *x, const struct logits_sink *d)
{
    struct spw_step *s = x->step;
    uint64_t wanted = spw_cut_count_wanted(&s->now->cut, s->spans);
    if (s->is_paused) {
        SPW_TRY(spw_prefetch_begin(x->o.prefetch, &x->step->now->schedule));
    } else {
        s->now->schedule.n_head_rounds = (uint32_t)spw_div_up(wanted, x->plan->logits_rows);
        s->layer = s->now->schedule.first_block.block;
        s->chunk = 0;
        SPW_TRY(s->is_draft ? begin_draft(x) : begin_pass(x));
    }
    SPW_TRY(run_layers(x));
    int rc = wanted ? run_logits(x, wanted, d) : spw_lane_stream_sync(x->lane, x->lane->compute);
    int flags = !rc || rc == -EDOM ? check_flags(x) : 0; /* then `compute` has no work left */
    return rc ? rc : flags;
}

/* ---- a step that is paused ---- */

/* Cancels the loads of tiles for layers that have not begun. */
static int forget_loads(struct spw_executor *x)
{
    struct spw_step *s = x->step;
    uint64_t n_read = 0;
    int rc = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        int forgot = spw_kv_forget_loads(s->items[i].seq->kv, &n_read);
        rc = rc ? rc : forgot;
    }
    return rc;
}

/* Waits for the queued work, and empties the rings for the steps that run meanwhile. When the pass
 * continues, its schedule begins at the layer and chunk where the pass has stopped. */
static int pause_step(struct spw_executor *x)
{
    struct spw_step *s = x->step;
    struct spw_schedule *schedule = &s->now->schedule;
    SPW_TRY(fetch_flags(x));
    SPW_TRY(spw_lane_stream_sync(x->lane, x->lane->compute));
    SPW_TRY(check_flags(x));
    SPW_TRY(forget_loads(x));
    SPW_TRY(spw_prefetch_forget(x->o.prefetch));
    const struct spw_chunk *chunk = &s->now->cut.chunks[s->chunk];
    schedule->first_kv = (struct spw_kv_cursor){.layer = s->layer, .part = chunk->first_part};
    schedule->first_block = (struct spw_block_cursor){.block = s->layer};
    s->is_paused = true;
    return 0;
}

/* Whether these items continue the step that was paused. If so, notes where their tokens lie
 * now. */
static bool continues(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n)
{
    struct spw_step *s = &x->steps[0];
    bool same = s->is_paused && n == s->n_items;
    for (uint32_t i = 0; i < n && same; i++)
        same = items[i].seq == s->items[i].seq;
    for (uint32_t i = 0; i < n && same; i++)
        s->items[i].tokens = items[i].tokens;
    return same;
}

void spw_executor_drop_paused(struct spw_executor *x)
{
    x->step = &x->steps[0];
    if (x->step->is_paused)
        end_checkpoints(x->step, false);
    x->step->is_paused = false;
}

/* ---- a step ---- */

static void begin_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n)
{
    struct spw_step *s = x->step;
    uint64_t n_new_tokens = spw_step_begin(s, items, n);
    if (x->o.dry && x->o.dry->step)
        x->o.dry->step(x->o.dry->context, items, n);
    spw_progress_begin(&s->progress, n_new_tokens, x->config->n_layers, n_new_tokens > n);
}

/* Ends the pass, which has returned rc. With -EAGAIN it pauses the step instead. */
static int end_pass(struct spw_executor *x, int rc)
{
    struct spw_step *s = x->step;
    if (rc == -EAGAIN) {
        rc = pause_step(x);
        if (!rc)
            return -EAGAIN;
    }
    end_checkpoints(s, !rc);
    s->is_paused = false;
    if (rc)
        forget_loads(x);
    return rc;
}

int spw_executor_draft(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                       int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                        const float *logits),
                       void *context)
{
    const struct logits_sink d = {on_logits, context};
    struct spw_step *s = x->step = &x->steps[x->n_steps - 1];
    int rc = 0;
    s->progress.interrupted = NULL; /* drafts are short: the step after them asks */
    s->chunks_before_pause = 0;
    s->is_draft = true;
    spw_progress_begin(&s->progress, spw_step_begin(s, items, n), 1, false);
    while (!rc && spw_step_next_pass(s, false)) {
        rc = run_pass(x, &d);
        spw_step_end_pass(s);
    }
    s->progress.interrupted = x->o.interrupted;
    s->is_draft = false;
    return rc;
}

static bool next_pass(struct spw_executor *x)
{
    return spw_step_next_pass(x->step, !x->steps[0].is_paused);
}

int spw_executor_step(struct spw_executor *x, const struct spw_executor_item *items, uint32_t n,
                      uint64_t most_chunks,
                      int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                       const float *logits),
                      void *context)
{
    const struct logits_sink d = {on_logits, context};
    bool again = continues(x, items, n);
    struct spw_step *s = x->steps[0].is_paused && !again ? &x->steps[1] : &x->steps[0];
    x->step = s;
    s->chunks_before_pause = x->n_steps > 1 && s == &x->steps[0] ? most_chunks : 0;
    if (!again)
        begin_step(x, items, n);
    bool more = again || next_pass(x);
    for (; more; more = next_pass(x)) {
        SPW_TRY(end_pass(x, run_pass(x, &d)));
        if (x->o.on_pass && !spw_step_is_last_pass(s))
            x->o.on_pass(x->o.pass_context);
        spw_step_end_pass(s);
    }
    spw_progress_end(&s->progress);
    return 0;
}
