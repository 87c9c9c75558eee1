/* Where everything of a candidate lies, and what of each tier it takes: see plan_parts.h. */
#include "offload/kv/checkpoint.h"
#include "quant/types.h"
#include "runtime/plan/plan_parts.h"

enum {
    PIECE_BYTES = 4 << 20,
    PARTIAL_ROWS = 4,
    MOST_PARTIALS = 256, /* all splits of one row, in the longest call of any backend */
    RETAINED_SHARE = 8,  /* retained tiles take at most an eighth of the device */
};

/* ---- what all candidates share ---- */

static enum spw_qformat format_of(const struct spw_plan_input *in)
{
    static const enum spw_qformat formats[] = {[SPW_KV_EXACT] = SPW_QFORMAT_EXACT,
                                               [SPW_KV_INT8] = SPW_QFORMAT_INT8,
                                               [SPW_KV_INT8_INT4] = SPW_QFORMAT_INT8_INT4,
                                               [SPW_KV_INT4] = SPW_QFORMAT_INT4};
    return formats[in->precision];
}

/* Enough tiles for large reads and writes of files. A row of logits is written from there too. */
static uint64_t piece_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t tile = spw_max_u64(p->exact_tile_bytes, p->tile_bytes);
    uint64_t tiles = spw_min_u64(PIECE_BYTES / tile, spw_waterline_tiles(in->context));
    return spw_max_u64(spw_max_u64(tile * spw_max_u64(tiles, 1), p->n_states ? p->state_bytes : 0),
                       spw_plan_pages(in->weights->config->vocab * sizeof(float)));
}

static void count_slices(struct spw_plan *p, const struct spw_model_config *c)
{
    p->full_kind = c->full_kind;
    p->window_kind = c->window_kind;
    for (uint32_t l = 0; l < spw_config_main_layers(c); l++) /* the MTP layer stores only */
        if (c->layer_kinds[l] != SPW_LAYER_CROSS) /* its layer before reads the rest of the tiles */
            p->n_readers[c->layer_kinds[l]] += spw_config_layer_slices(c, l);
    for (uint32_t i = 0; i < c->n_slices; i++) {
        p->n_slices[c->slice_kinds[i]]++;
        p->n_states += spw_layer_kinds[c->slice_kinds[i]].store == SPW_STORE_STATE;
    }
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        p->layer_slices[k] = spw_layer_has_tiles((enum spw_layer_kind)k) ? c->kv[k].n_slices : 0;
    p->n_growing = spw_config_n_growing(c, SPW_LAYER_KINDS);
    p->n_full_growing = spw_config_n_growing(c, p->full_kind);
    p->holds_tiles = spw_config_n_readers(c) > 0;
}

/* Of a slice of this shape, in whole pages. */
static uint64_t tile_bytes(const struct spw_kv_shape *kv, enum spw_dtype type,
                           enum spw_qformat format)
{
    const uint32_t heads = spw_config_slice_heads(kv);
    const struct spw_tile_widths w = {kv->head_dim, kv->v_dim};
    return spw_plan_pages(format == SPW_QFORMAT_EXACT ? spw_tile_bytes(heads, w, type)
                                                      : spw_qtile_bytes(heads, w, format));
}

void spw_plan_start(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    *p = (struct spw_plan){0};
    count_slices(p, c);
    spw_plan_start_kinds(p, in);
    p->format = format_of(in);
    p->state_bytes = spw_plan_pages(spw_mixer_state_floats(&c->mixer) * sizeof(float));
    p->exact_tile_bytes = spw_plan_pages(1);  /* there may be no layer with tiles */
    for (int k = 0; k < SPW_LAYER_KINDS; k++) /* one size for all */
        if (p->n_slices[k] && spw_layer_has_tiles((enum spw_layer_kind)k))
            p->exact_tile_bytes =
                spw_max_u64(p->exact_tile_bytes, tile_bytes(&c->kv[k], in->kv, SPW_QFORMAT_EXACT));
    p->tile_bytes = p->format == SPW_QFORMAT_EXACT
                        ? p->exact_tile_bytes
                        : tile_bytes(&c->kv[p->full_kind], in->kv, p->format);
    p->piece_bytes = in->has_snapshots ? piece_bytes(p, in) : 0;
    p->hidden_row_bytes = spw_row_bytes(in->compute, c->hidden);
    p->inputs_row_bytes = spw_row_bytes(in->compute, spw_config_inputs_width(c));
    p->draft_rows = in->draft_rows;
    /* source_tiles belong to one step: none of a model with an encoder is paused */
    p->rows_beside = in->sessions > 1 && !c->n_source_layers ? in->sessions + in->draft_rows : 0;
    p->max_tiles = p->full_tiles = spw_waterline_tiles(in->context);
    if (in->quantizes)
        p->full_tiles =
            (uint32_t)spw_residual_end(spw_residual_block(in->context), in->residual_tiles) - 1;
    p->parallel_splits =
        (uint32_t)spw_min_u64(in->attention_tiles / SPW_SPLIT_TILES * PARTIAL_ROWS, MOST_PARTIALS);
    p->reads_host_memory = in->reads_host_memory;
    p->host_rates = in->host_rates;
    p->host_layer_rows = in->host_layer_rows;
    spw_plan_size_blocks(p, in->weights);
    spw_plan_place_blocks(p, in->weights, 0, 0);
}

bool spw_plan_may_retain(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return in->rolls_back && spw_plan_retained_bytes(p, in) <= in->device_bytes / RETAINED_SHARE;
}

/* ---- offsets ---- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end = at + spw_plan_pages(bytes);
    return at;
}

/* The widest mlp, of a layer or of an expert; numbers of a layer take its place. */
static uint64_t mlp_width(const struct spw_model_config *c)
{
    uint64_t experts = spw_max_u64(c->experts.intermediate, c->experts.shared_intermediate);
    uint64_t dense = c->layer_inputs;
    for (uint32_t l = 0; l < c->n_layers; l++)
        dense = spw_max_u64(dense, spw_config_mlp_width(c, l));
    return spw_max_u64(dense, c->experts.n ? experts : 0);
}

static void lay_out_experts(const struct spw_plan *p, const struct spw_plan_input *in,
                            uint64_t pass_rows, struct spw_plan_experts *e, bool host,
                            uint64_t *end)
{
    const struct spw_model_config *c = in->weights->config;
    uint64_t rows = c->experts.n ? pass_rows + p->rows_beside : 0, n = rows * c->experts.n_kept;
    e->x = take(end, host ? 0 : rows * p->hidden_row_bytes);
    e->y = take(end, host ? 0 : n * p->hidden_row_bytes);
    e->dense = take(end, host || !c->experts.beside ? 0 : rows * p->hidden_row_bytes);
    e->choices = take(end, n * sizeof(struct spw_choice));
    e->places = take(end, n * sizeof(uint32_t));
    e->index = take(end, n * sizeof(uint32_t));
    e->scores = take(
        end,
        host || !rows ? 0 : p->chunk * (c->experts.n * sizeof(float) + sizeof(struct spw_choice)));
}

static bool has_biases(const struct spw_weights *w, bool experts, bool layers)
{
    bool any = false;
    for (uint32_t l = 0; l < w->config->n_layers; l++) {
        const struct spw_layer_small *v = &w->small_layers[l];
        const uint64_t of_experts[] = {v->expert_gate_up_bias, v->expert_down_bias};
        const uint64_t of_layer[] = {v->qkv_bias,  v->o_bias,         v->gate_up_bias,
                                     v->down_bias, v->latent_in_bias, v->latent_out_bias,
                                     v->in_bias,   v->out_bias,       v->dt_bias};
        for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
            any |= experts && of_experts[i] != SPW_SMALL_NONE;
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++)
            any |= layers && of_layer[i] != SPW_SMALL_NONE;
    }
    return any;
}

/* Numbers of the widest rows of products of layers that the host may multiply. */
static struct spw_block_row widest_row(const struct spw_weights *w)
{
    struct spw_block_row row = {0};
    for (uint32_t u = 0; u < spw_config_main_layers(w->config); u++) {
        const struct spw_block_row own = spw_weights_block_row(w, u);
        if (!w->blocks[u].quantized)
            continue;
        row.most_in = spw_max_u64(row.most_in, own.most_in);
        row.most_out = spw_max_u64(row.most_out, own.most_out);
        row.most_gated = spw_max_u64(row.most_gated, own.most_gated);
    }
    return row;
}

/* m rows of experts, n rows of layers. */
static void lay_out_host_lane(struct spw_plan *p, const struct spw_plan_input *in, uint64_t *end)
{
    const struct spw_weights *w = in->weights;
    const struct spw_experts_config *c = &w->config->experts;
    struct spw_plan_host_lane *h = &p->host.lane;
    const uint64_t m = p->host_rows, n = p->n_weight_slots ? p->host_layer_rows : 0;
    const uint64_t expert = m * spw_config_expert_row(w->config), gated = m * c->intermediate;
    const struct spw_block_row wide = n ? widest_row(w) : (struct spw_block_row){0};
    h->x = take(end, spw_row_bytes(in->compute, spw_max_u64(expert, n * wide.most_in)));
    h->y =
        take(end, spw_row_bytes(in->compute, spw_max_u64(c->n_kept * expert, n * wide.most_out)));
    h->rows = take(end, spw_row_bytes(in->compute, expert));
    h->gate_up = take(end, spw_row_bytes(in->compute, 2 * spw_max_u64(gated, n * wide.most_gated)));
    h->gated = take(end, spw_row_bytes(in->compute, gated));
    h->codes = take(end, spw_max_u64(m, n) * in->codes_row_bytes);
    h->workspace = take(end, m || n ? in->host_workspace_bytes : 0);
    h->small = take(end, has_biases(w, m, n) ? w->n_small * sizeof(float) : 0);
}

/* Rows of a layer with a state, from `at` on. Returns the end. */
static uint64_t lay_out_state_rows(struct spw_plan *p, const struct spw_plan_input *in, uint64_t at)
{
    const struct spw_mixer_config *x = &in->weights->config->mixer;
    struct spw_plan_device *d = &p->device;
    const uint64_t m = p->n_states ? p->chunk : 0;
    d->state_in = take(&at, m * spw_row_bytes(in->compute, spw_mixer_in_width(x)));
    d->state_conv = take(&at, m * spw_row_bytes(in->compute, x->conv_channels));
    d->state_rates = take(&at, m * spw_row_bytes(in->compute, spw_mixer_rates_width(x)));
    d->state_out = take(&at, m * spw_mixer_width(x) * sizeof(float));
    return at;
}

/* Each session has a place in each layer. */
static void size_kept_rows(struct spw_plan *p, const struct spw_plan_input *in)
{
    enum { ALIGN = 64 };
    const struct spw_mixer_config *x = &in->weights->config->mixer;
    const uint32_t rows = spw_min_u32(spw_min_u32(p->draft_rows, SPW_DRAFT_MOST + 1), p->chunk);
    const uint64_t rates = rows * spw_row_bytes(in->compute, spw_mixer_rates_width(x));
    p->kept_rows = p->n_states ? rows : 0;
    p->kept_in_bytes =
        spw_align_up(rows * spw_row_bytes(in->compute, spw_mixer_in_width(x)), ALIGN);
    p->kept_bytes = p->kept_in_bytes + spw_align_up(rates, ALIGN);
}

static bool any_layer_does_both(const struct spw_model_config *c)
{
    bool any = false;
    for (uint32_t l = 0; l < c->n_layers; l++)
        any |= spw_config_attends(c, l) && spw_config_has_state(c, l);
    return any;
}

/* Everything on the device but weights and KV. */
static void lay_out_work(struct spw_plan *p, const struct spw_plan_input *in, uint64_t hidden_rows)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    uint64_t m = p->chunk, end = 0;
    uint64_t q = 0, qkv = 0, gate = 0, state = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        gate = spw_max_u64(gate, spw_config_gate_width(c, l));
        q = spw_max_u64(q, spw_config_q_width(c, l));
        qkv = spw_max_u64(qkv, spw_config_qkv_width(c, l));
    }
    state = (q + 2 * (uint64_t)c->n_heads) * sizeof(float);
    uint64_t gated = m * spw_row_bytes(in->compute, mlp_width(c));
    d->small = take(&end, in->weights->n_small * sizeof(float));
    d->workspace = take(&end, in->workspace_bytes);
    d->hidden = take(&end, hidden_rows * p->hidden_row_bytes);
    d->hidden_beside = take(&end, p->rows_beside * p->hidden_row_bytes);
    d->x = take(&end, m * p->hidden_row_bytes);
    d->codes = take(&end, spw_max_u64(m, p->logits_rows) * in->codes_row_bytes);
    uint64_t other = end,
             head = end; /* attention is over before the mlp begins, both before the head */
    d->qkv = take(&end, m * spw_row_bytes(in->compute, qkv));
    d->attention = take(&end, m * spw_row_bytes(in->compute, q));
    d->state = take(&end, m * state);
    d->split_states = take(&end, p->parallel_splits * state);
    d->attention_gate = take(&end, m * spw_row_bytes(in->compute, gate));
    end = spw_max_u64(end, lay_out_state_rows(p, in, any_layer_does_both(c) ? end : other));
    d->gate_up = take(&other, in->gated_scratch ? 2 * gated : 0);
    d->gated = take(&other, gated);
    d->logits = take(&head, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    end = spw_max_u64(spw_max_u64(end, other), head);
    const uint64_t own = p->inputs_row_bytes ? hidden_rows + p->rows_beside : 0;
    d->embedding = take(&end, c->layer_inputs ? own * p->hidden_row_bytes : 0);
    d->inputs = take(&end, own * p->inputs_row_bytes);
    p->n_source_tiles =
        c->n_source_layers ? (uint32_t)(hidden_rows / SPW_TILE_TOKENS) + in->sessions : 0;
    d->source_tiles = take(&end, p->n_source_tiles * p->exact_tile_bytes);
    const uint64_t mtp = c->mtp ? p->hidden_row_bytes : 0;
    d->mtp_rows = take(&end, (m + 1) * mtp);
    d->mtp_joined = take(&end, 2 * m * mtp);
    lay_out_experts(p, in, hidden_rows, &d->experts, false, &end);
    const uint32_t of_layers = p->n_weight_slots ? p->host_layer_rows : 0;
    d->rows = take(&end, spw_max_u32(p->logits_rows, of_layers) * p->hidden_row_bytes);
    d->flags = take(&end, sizeof(uint32_t));
    /* What follows stays between steps. A new plan in place (engine_replan.c) takes the memory
     * before it as scratch memory. */
    d->mtp_kept = take(&end, (in->sessions * (uint64_t)SPW_MTP_KEPT + 1) * mtp);
    d->experts.addresses = take(&end, spw_plan_addresses_bytes(p, in->weights));
    d->states = take(&end, in->sessions * (p->states_stay ? p->n_states : p->n_states > 0) *
                               p->state_bytes);
    size_kept_rows(p, in);
    d->kept_rows = take(&end, in->sessions * p->n_states * p->kept_bytes);
    d->weights = end;
    p->n_exact_frames = spw_plan_exact_frames(p, in);
}

bool spw_plan_crowds(const struct spw_plan *p, const struct spw_plan_input *in, uint32_t chunk)
{
    enum { WORK_SHARE = 4 };
    struct spw_plan q = *p;
    q.chunk = chunk;
    q.n_weight_slots = 0; /* rows for products of the host: the same for all chunks */
    lay_out_work(&q, in, 2 * (uint64_t)chunk);
    /* states lie behind the work buffers, and no chunk makes them smaller */
    return q.device.states - spw_plan_pages(in->workspace_bytes) > in->device_bytes / WORK_SHARE;
}

/* Weights and KV on the device. */
static void lay_out_frames(struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_plan_device *d = &p->device;
    uint64_t end = d->weights;
    take(&end, p->copied_bytes);
    d->weight_slots = take(&end, p->n_weight_slots * p->weight_slot_bytes);
    d->expert_frames = take(&end, p->n_expert_frames * in->weights->expert_frame_bytes);
    uint64_t frames = spw_plan_pages(p->n_device_frames * p->tile_bytes);
    d->kv_frames = take(&end, frames + spw_plan_exact_bytes(p));
    d->exact_frames = d->kv_frames + frames;
    if (p->n_exact_frames) /* at a multiple of exact tiles from kv_frames: see plan_replan.c */
        d->exact_frames = d->kv_frames + spw_align_up(frames, p->exact_tile_bytes);
    d->kv_slots = take(&end, (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes);
    d->end = end;
}

bool spw_plan_lay_out_rest(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_device *d = &p->device;
    struct spw_plan_host *h = &p->host;
    uint64_t end = 0;
    lay_out_frames(p, in);
    h->hidden = take(&end, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0);
    const uint64_t row_bytes = p->hidden_row_bytes + p->inputs_row_bytes;
    h->staging = take(&end, 2 * p->chunk * row_bytes);
    h->staging_beside = take(&end, 2 * spw_min_u64(p->chunk, p->rows_beside) * row_bytes);
    const uint64_t mtp = c->mtp ? 2 * p->hidden_row_bytes : 0;
    h->mtp_staging = take(&end, p->chunk * mtp);
    h->mtp_staging_beside = take(&end, spw_min_u64(p->chunk, p->rows_beside) * mtp);
    h->logits = take(&end, (uint64_t)p->logits_rows * c->vocab * sizeof(float));
    h->session_logits = take(&end, (uint64_t)in->sessions * c->vocab * sizeof(float));
    h->draft_logits = take(&end, (uint64_t)in->draft_rows * c->vocab * sizeof(float));
    h->flags = take(&end, sizeof(uint32_t));
    h->piece = take(&end, p->piece_bytes);
    lay_out_experts(p, in, p->pass_rows, &h->experts, true, &end);
    lay_out_host_lane(p, in, &end);
    h->expert_tables = take(&end, spw_plan_expert_tables_bytes(p, in->weights));
    h->packed = take(&end, p->packed_bytes);
    h->weight_bounce = take(&end, p->n_weight_bounce * p->weight_bounce_bytes);
    h->expert_bounce = take(&end, p->n_expert_bounce * in->weights->expert_frame_bytes);
    h->states = take(&end, p->states_stay ? 0 : in->sessions * spw_plan_session_states(p));
    h->checkpoints = take(&end, p->n_checkpoints * spw_plan_session_states(p));
    h->kv_frames = take(&end, p->n_host_frames * p->tile_bytes);
    h->bounce = take(&end, (uint64_t)p->n_bounce * p->slot_tiles * p->tile_bytes);
    h->end = end;
    return d->end + p->mapped_bytes <= in->device_bytes &&
           end + p->page_cache_bytes <= in->host_bytes;
}

/* ---- experts that move ---- */

enum { EXPERT_SLOTS = 2, MOST_EXPERT_SLOTS = 16, SLOTS_SHARE = 4 };

/* A GPU loads the experts of a few rows for each row again: its L2 cache has most of them, and a
 * wait of the host in each layer, with launches for each expert, takes longer. Kernels of the host
 * group the rows of an expert. */
static uint32_t routed_rows(const struct spw_plan *p, const struct spw_weights *w)
{
    enum { MOST_CHOICES = 64 };
    const uint32_t kept = w->config->experts.n_kept;
    if (!w->n_expert_blocks || !w->experts_alike || p->chunk < kept)
        return 0;
    if (p->reads_host_memory)
        return 1;
    return spw_max_u32(spw_min_u32(p->chunk, MOST_CHOICES) / kept, 1);
}

/* The least frames: those that reads fill, and one that is computed. Experts move only where the
 * frames are fewer than the experts: so a plan whose experts move never has room for all. */
static void begin_experts(struct spw_plan *p, const struct spw_plan_input *in, bool move)
{
    const struct spw_weights *w = in->weights;
    move = move && w->n_expert_blocks > EXPERT_SLOTS + 1;
    p->n_expert_frames = p->n_expert_slots = p->n_disk_experts = p->n_expert_bounce = 0;
    p->routed_rows = move ? 0 : routed_rows(p, w);
    p->host_rows = move ? in->host_rows : 0;
    if (!move)
        return;
    p->n_expert_frames = EXPERT_SLOTS + 1;
    p->n_disk_experts = w->experts_stored ? w->n_expert_blocks : 0;
}

/* Memory of the device that KV does not need holds experts. A fourth of the frames may be filled at
 * a time, as many as keep the drive busy. */
static void spend_on_experts(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_weights *w = in->weights;
    if (!p->n_expert_frames)
        return;
    lay_out_frames(p, in);
    uint64_t spare = spw_sub_u64(in->device_bytes, p->device.end + p->mapped_bytes);
    p->n_expert_frames += (uint32_t)spw_min_u64(spare / w->expert_frame_bytes,
                                                w->n_expert_blocks - 1 - p->n_expert_frames);
    uint64_t n = spw_div_up(in->disk_ring_bytes, w->expert_frame_bytes);
    n = spw_min_u64(spw_min_u64(n, MOST_EXPERT_SLOTS), p->n_expert_frames / SLOTS_SHARE);
    p->n_expert_slots = (uint32_t)spw_max_u64(n, EXPERT_SLOTS);
    if (w->experts_stored && !(p->reads_host_memory && w->experts_mappable))
        p->n_expert_bounce = p->n_expert_slots;
}

/* Memory of the host that nothing else needs holds experts, the last ones first. */
static void keep_experts_on_host(struct spw_plan *p, const struct spw_plan_input *in,
                                 const struct spw_candidate *c, uint64_t bytes)
{
    const uint64_t *pages = in->weights->expert_pages;
    uint32_t n = p->n_disk_experts;
    while (n && pages[p->n_disk_experts] - pages[n - 1] <= bytes)
        n--;
    if (n == p->n_disk_experts)
        return;
    p->n_disk_experts = n;
    spw_plan_place_blocks(p, in->weights, c->n_resident, c->n_disk);
}

/* ---- a candidate ---- */

bool spw_plan_lay_out_device(struct spw_plan *p, const struct spw_plan_input *in,
                             const struct spw_candidate *c)
{
    uint64_t of_pass = spw_max_u64(spw_div_up(spw_plan_most_rows(in), c->passes), c->chunk);
    uint64_t rows = c->hidden == SPW_HIDDEN_ON_DEVICE ? of_pass : c->chunk;
    rows = spw_max_u64(rows, spw_plan_least_rows(in));
    p->may_retain = c->retains;
    p->logits_rows = c->logits_rows;
    p->chunk = c->chunk;
    p->hidden_on_host = c->hidden == SPW_HIDDEN_ON_HOST;
    p->pass_rows = p->hidden_on_host ? 0 : rows;
    p->n_kv_slots = c->kv_stays ? 0 : c->n_slots;
    p->slot_tiles = c->slot_tiles;
    p->states_stay = !c->states_move;
    p->n_checkpoints = p->n_disk_checkpoints = 0;
    begin_experts(p, in, c->experts_move);
    spw_plan_place_blocks(p, in->weights, c->n_resident, 0);
    lay_out_work(p, in, p->hidden_on_host ? 2 * rows : rows);
    uint64_t used = p->device.weights + p->copied_bytes + p->mapped_bytes +
                    p->n_weight_slots * p->weight_slot_bytes + spw_plan_exact_bytes(p) +
                    p->n_expert_frames * in->weights->expert_frame_bytes +
                    (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes;
    uint64_t frames = spw_sub_u64(in->device_bytes, used) / p->tile_bytes;
    if (used > in->device_bytes || !spw_plan_take_frames(p, in, frames) || p->retains != c->retains)
        return false;
    spend_on_experts(p, in);
    return true;
}

static uint64_t free_host_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return spw_sub_u64(in->host_bytes, p->host.end + p->page_cache_bytes) / 4096 * 4096;
}

/* The rows of hidden states that the host must have. */
static uint64_t rows_on_host(const struct spw_plan *p, const struct spw_plan_input *in,
                             const struct spw_candidate *c)
{
    uint64_t most = spw_plan_most_rows(in);
    return spw_max_u64(spw_div_up(most, c->passes), spw_min_u64(most, p->chunk + 1));
}

/* Checkpoints get a part of the host memory that nothing else needs, or as much as one takes; and
 * what tiles leave of the disk. For each session there are as many as it takes when their distances
 * double up to the context, and some for the borders of messages. Where writes are limited, tiles
 * have the disk alone. */
static void count_checkpoints(struct spw_plan *p, const struct spw_plan_input *in)
{
    enum { SHARE = 4, BORDERS = 6 };
    const uint64_t bytes = spw_max_u64(spw_plan_session_states(p), 1),
                   room = free_host_bytes(p, in);
    uint64_t most = BORDERS;
    for (uint64_t distance = SPW_CHECKPOINT_TOKENS; distance < in->context; distance *= 2)
        most++;
    most = p->n_states ? most * in->sessions : 0;
    p->n_checkpoints = (uint32_t)spw_min_u64(
        most, spw_max_u64(room / SHARE / bytes, spw_min_u64(room / bytes, 1)));
    const uint64_t disk = spw_sub_u64(in->disk_bytes, p->n_disk_frames * p->tile_bytes);
    const bool may = p->n_checkpoints && !in->disk_write_limit;
    p->n_disk_checkpoints = may ? (uint32_t)spw_min_u64(most - p->n_checkpoints, disk / bytes) : 0;
}

/* Bounce slots of experts that the host has no room for are given up, but for the least: else a
 * larger device budget, which has more frames to fill, could need more host memory. */
static bool lay_out_bounce(struct spw_plan *p, const struct spw_plan_input *in)
{
    bool fits = spw_plan_lay_out_rest(p, in);
    while (!fits && p->n_expert_bounce > EXPERT_SLOTS) {
        p->n_expert_slots = --p->n_expert_bounce;
        fits = spw_plan_lay_out_rest(p, in);
    }
    return fits;
}

/* Each copy goes to disk once. A sequence that grows token by token writes the most: each of its
 * tiles is written before it leaves a sliding window. */
static uint64_t disk_write_bytes(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_lower b;
    uint64_t tiles;
    if (spw_plan_pools(in)) { /* the other tiers may hold nothing of them: see lower_tiers.c */
        tiles = spw_plan_n_full(p) + (in->quantizes ? 0 : spw_plan_n_windowed(p));
        tiles *= p->n_disk_frames ? p->max_tiles : 0;
        return spw_plan_full_sessions(in) * tiles * p->tile_bytes;
    }
    spw_lower_count(&b, p, in);
    tiles = spw_plan_n_full(p) * spw_plan_tiles_on_disk(p, &b, p->full_kind);
    const struct spw_residency *window = &p->residency[p->window_kind];
    if (spw_plan_tiles_on_disk(p, &b, p->window_kind))
        tiles += spw_plan_n_windowed(p) *
                 spw_waterline_disk_end(window, spw_waterline_begin(window, in->context));
    return in->sessions * tiles * p->tile_bytes;
}

bool spw_plan_lay_out_lower(struct spw_plan *p, const struct spw_plan_input *in,
                            const struct spw_candidate *c)
{
    struct spw_lower b;
    spw_lower_count(&b, p, in);
    uint32_t n = c->copies_on_host ? b.all : spw_lower_least(&b, p, in);
    if (!c->copies_on_host && n == b.all)
        return false; /* the disk has no room: as with copies_on_host */
    if (c->n_disk != p->n_disk_blocks)
        spw_plan_place_blocks(p, in->weights, c->n_resident, c->n_disk);
    spw_lower_place(p, in, &b, n);
    if (p->hidden_on_host)
        p->pass_rows = rows_on_host(p, in, c);
    if (!lay_out_bounce(p, in))
        return false;
    count_checkpoints(p, in);
    spw_plan_lay_out_rest(p, in);
    if (n < b.all || in->attaches)
        spw_lower_grow(p, in, &b, n, free_host_bytes(p, in));
    spw_plan_lay_out_rest(p, in);
    keep_experts_on_host(p, in, c, free_host_bytes(p, in));
    spw_plan_lay_out_rest(p, in);
    if (p->hidden_on_host)
        p->pass_rows += spw_min_u64(free_host_bytes(p, in) / p->hidden_row_bytes,
                                    spw_plan_most_rows(in) - p->pass_rows);
    return spw_plan_lay_out_rest(p, in) &&
           (!in->disk_write_limit || disk_write_bytes(p, in) <= in->disk_write_limit);
}

/* ---- the account ---- */

void spw_plan_describe(struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    struct spw_plan_info *i = &p->info;
    const struct spw_plan_device *d = &p->device;
    const struct spw_plan_host *h = &p->host;
    i->context = in->context;
    i->sessions = in->sessions;
    i->full_sessions = (uint32_t)spw_plan_full_sessions(in);
    i->shares_tiles = !spw_plan_sharing(p).needs_checkpoint;
    i->prefill_chunk = p->chunk;
    i->prefetch_slots = p->n_kv_slots;
    i->prefetch_splits = p->n_kv_slots ? p->slot_tiles / SPW_SPLIT_TILES : 0;
    i->compute = in->compute;
    i->int8_activations = in->codes_row_bytes > 0;
    i->kv = in->kv;
    i->precision = in->precision;
    i->residual_tokens = in->quantizes ? (uint64_t)in->residual_tiles * SPW_TILE_TOKENS : 0;
    i->device_budget_bytes = in->device_bytes;
    i->host_budget_bytes = in->host_bytes;
    i->disk_budget_bytes = in->disk_bytes;
    i->device.weights_resident = d->workspace - d->small + d->weight_slots - d->weights +
                                 p->mapped_bytes + d->kv_frames - d->expert_frames;
    i->device.weights_slots = d->expert_frames - d->weight_slots;
    i->n_experts = in->weights->n_expert_blocks;
    i->n_experts_resident = p->n_expert_frames ? p->n_expert_frames : i->n_experts;
    i->n_experts_from_disk = p->n_disk_experts;
    i->host_rows = p->host_rows;
    i->host_layer_rows = p->host_layer_rows;
    i->device.kv_resident = d->kv_slots - d->kv_frames;
    i->device.kv_slots = d->end - d->kv_slots;
    i->device.hidden = d->x - d->hidden;
    i->device.activations = d->weights - d->x + d->hidden - d->workspace;
    i->device.states = d->weights - d->states;
    i->device.activations -= i->device.states;
    i->n_state_layers = p->n_states;
    i->n_checkpoints = p->n_checkpoints + p->n_disk_checkpoints;
    i->session_states_bytes = spw_plan_session_states(p);
    i->device.total = d->end + p->mapped_bytes;
    i->host.kv = (p->n_host_frames - p->n_transit) * p->tile_bytes;
    i->host.disk_staging = h->end - h->weight_bounce - i->host.kv - (h->kv_frames - h->states);
    i->host.states = h->kv_frames - h->states;
    i->host.hidden = h->staging - h->hidden;
    i->host.staging = h->packed - h->staging;
    i->host.weights = h->weight_bounce - h->packed + p->page_cache_bytes;
    i->host.total = h->end + p->page_cache_bytes;
    i->disk.kv = p->n_disk_frames * p->tile_bytes;
    i->disk.checkpoints = p->n_disk_checkpoints * spw_plan_session_states(p);
    i->disk.total = i->disk.kv + i->disk.checkpoints;
    i->disk_write_bytes = disk_write_bytes(p, in);
    i->rolls_back = (p->retains || (!spw_plan_n_windowed(p) && !in->quantizes)) &&
                    (!p->n_states || /* where a prompt begins and where it ends */
                     p->n_checkpoints + p->n_disk_checkpoints >= 2 * in->sessions);
    i->n_layers = c->n_layers;
    uint64_t experts = 0, encoder = 0;
    for (uint32_t u = in->weights->n_blocks;
         u < in->weights->n_blocks + in->weights->n_expert_blocks; u++)
        experts += in->weights->blocks[u].bytes;
    for (uint32_t u = 0; u < in->weights->n_blocks; u++) {
        i->weights_bytes += in->weights->blocks[u].bytes;
        encoder += u < c->n_source_layers ? in->weights->blocks[u].bytes : 0;
        bool of_layer = in->weights->blocks[u].layer != SPW_NO_LAYER;
        const struct spw_block_place at = spw_plan_block(p, in->weights, u);
        i->n_layers_resident += of_layer && at.resident;
        i->n_layers_from_disk += of_layer && at.from_disk;
        i->n_layers_on_host += at.host_rows > 0;
        i->host_layers_bytes += at.host_rows ? in->weights->blocks[u].matrix_bytes : 0;
    }
    i->weights_disk_bytes = p->disk_read_bytes;
    i->decode_weights_bytes = i->weights_bytes - encoder;
    i->weights_bytes += experts;
    if (experts)
        i->decode_expert_bytes = experts / c->experts.n * c->experts.n_kept;
    i->decode_weights_bytes += i->decode_expert_bytes;
    i->kv_bytes_per_token = spw_plan_n_full(p) * p->tile_bytes / SPW_TILE_TOKENS;
    i->waterlines.n_tokens = in->context;
    const struct spw_residency *full = &p->residency[p->full_kind];
    uint32_t begin = spw_waterline_begin(full, in->context);
    if (spw_plan_n_full(p) && begin > spw_waterline_first_tiered(full))
        i->waterlines.host_end = (uint64_t)begin * SPW_TILE_TOKENS;
}
