/* The account of a plan: what its info tells of the work of one session alone, from its first token
 * on. So a plan is made quickly; the bytes of a run are those of a dry run (runtime/dry/dry_run.c).
 * test_traffic compares the bytes here with the counters of an engine.
 *
 * Tiles of a kind of layers, by the waterlines of offload/kv/waterline.h:
 *
 *      first        disk_end        begin      copied          end
 *      | on disk    | on host       | on the device            |
 *      |        have copies in lower tiers     | have none      | */
#include "runtime/plan/plan.h"

#include "model/kinds.h"
#include "quant/types.h"

#include <string.h>

struct tiles {
    const struct spw_residency *r;
    uint64_t n_slices, n_readers; /* that store the tiles; that read them */
    uint32_t first, begin, end, copied, disk_end;
};

struct run {
    const struct spw_plan *plan;
    const struct spw_weights *weights;
    struct tiles kinds[SPW_LAYER_KINDS]; /* [n_kinds], those whose tiles move */
    uint32_t n_kinds;
    uint64_t moved[SPW_MOVED_COUNT];
};

/* ---- tiles ---- */

static uint32_t between(uint32_t first, uint32_t end)
{
    return end > first ? end - first : 0;
}

/* Tiles before `begin` leave the device. */
static void leave(struct run *x, struct tiles *t, uint32_t begin)
{
    const struct spw_plan *p = x->plan;
    uint32_t disk_end = t->disk_end;
    if (begin <= t->begin)
        return;
    if (p->n_disk_frames || p->attaches)
        disk_end = spw_max_u32(disk_end, spw_min_u32(spw_waterline_disk_end(t->r, begin), t->end));
    const uint32_t from = spw_max_u32(t->begin, t->copied);
    const uint64_t deep = between(from, spw_min_u32(begin, disk_end));
    const uint64_t on = between(spw_max_u32(t->first, t->disk_end),
                                spw_min_u32(t->copied, disk_end)); /* from the host to the disk */
    const uint64_t down = between(from, begin) - (p->disk_to_device ? deep : 0);
    x->moved[SPW_MOVED_DEVICE_TO_HOST] += t->n_slices * down * p->tile_bytes;
    x->moved[SPW_MOVED_HOST_TO_DISK] += t->n_slices * (deep + on) * p->tile_bytes;
    t->begin = begin;
    t->copied = spw_max_u32(t->copied, begin);
    t->disk_end = disk_end;
}

/* Counts the bytes of n slices that read tiles [first, end) from lower tiers. */
static void count_loads(struct run *x, const struct tiles *t, uint64_t n, uint32_t first,
                        uint32_t end)
{
    const uint64_t from_disk = between(first, spw_min_u32(end, t->disk_end));
    const uint64_t up = between(first, end) - (x->plan->disk_to_device ? from_disk : 0);
    x->moved[SPW_MOVED_HOST_TO_DEVICE] += n * up * x->plan->tile_bytes;
    x->moved[SPW_MOVED_DISK_TO_HOST] += n * from_disk * x->plan->tile_bytes;
}

/* Loads the tiles from `begin` on. */
static void load(struct run *x, struct tiles *t, uint32_t begin)
{
    count_loads(x, t, t->n_slices, begin, t->begin);
    t->begin = spw_min_u32(begin, t->begin);
}

static void drop(struct tiles *t, uint32_t first)
{
    t->first = spw_max_u32(t->first, spw_min_u32(first, t->end));
    t->begin = spw_max_u32(t->begin, t->first);
}

/* A pass through the layers of a kind. With holds_tiles the tiles of all chunks leave after the
 * last one. */
static void pass_kind(struct run *x, struct tiles *t, const struct spw_pass_span *span)
{
    const uint64_t chunk = x->plan->chunk;
    const struct spw_span_tiles at = spw_waterline_span(t->r, span);
    const bool held = x->plan->holds_tiles;
    leave(x, t, at.wait);
    load(x, t, at.enter);
    for (int placing = 0; placing <= held; placing++)
        for (uint64_t from = span->from, to; from < span->to; from = to) {
            to = spw_min_u64(from + chunk, span->to);
            const struct spw_part_tiles part = spw_waterline_part(t->r, span, from, to);
            if (!placing) {
                t->end = spw_waterline_end(t->r, to);
                count_loads(x, t, t->n_readers, part.first, part.begin);
            }
            if (placing == held) {
                drop(t, spw_waterline_first_visible(t->r, to));
                leave(x, t, part.after);
            }
        }
    drop(t, spw_waterline_first_visible(t->r, span->to));
    leave(x, t, spw_waterline_begin(t->r, span->to));
    load(x, t, spw_waterline_begin(t->r, span->to));
}

/* ---- weights, rows ---- */

/* Weights come up, or rows of their products go down and come up. An encoder has read its source in
 * the first pass. */
static void move_weights(struct run *x, uint64_t from, uint64_t rows, bool head)
{
    const struct spw_weights *w = x->weights;
    const uint32_t n = head ? w->n_blocks : w->config->n_layers;
    for (uint32_t u = from ? w->config->n_source_layers : 0; u < n; u++) {
        const struct spw_block_place at = spw_plan_block(x->plan, w, u);
        x->moved[SPW_MOVED_DISK_TO_HOST] += at.disk_bytes;
        if (rows <= at.host_rows) {
            const struct spw_block_row row = spw_weights_block_row(w, u);
            const enum spw_dtype type = x->plan->info.compute;
            x->moved[SPW_MOVED_DEVICE_TO_HOST] += rows * spw_row_bytes(type, row.in);
            x->moved[SPW_MOVED_HOST_TO_DEVICE] += rows * spw_row_bytes(type, row.out);
        } else if (!at.resident) {
            x->moved[SPW_MOVED_HOST_TO_DEVICE] += at.moved_bytes;
        }
    }
}

/* Embeddings come up. If hidden states lie on the host, they come up and go down for each layer,
 * and the row of the last token comes up once more, for the head. */
static void move_rows(struct run *x, uint64_t rows, bool last)
{
    const struct spw_plan *p = x->plan;
    const uint64_t layers = x->weights->config->n_layers, row = p->hidden_row_bytes;
    if (p->hidden_on_host && rows > p->chunk) {
        x->moved[SPW_MOVED_HOST_TO_DEVICE] += (layers * rows + last) * row;
        x->moved[SPW_MOVED_DEVICE_TO_HOST] += layers * rows * row;
    } else {
        x->moved[SPW_MOVED_HOST_TO_DEVICE] += rows * (row + p->inputs_row_bytes);
    }
    x->moved[SPW_MOVED_HOST_TO_DEVICE] += x->weights->config->mtp * rows * row;
    if (last)
        x->moved[SPW_MOVED_DEVICE_TO_HOST] += x->weights->config->vocab * sizeof(float);
    x->moved[SPW_MOVED_DEVICE_TO_HOST] += spw_plan_flags_bytes(p);
}

/* In each layer with experts the host reads the choices, and sends the order of several rows. Where
 * it multiplies experts, it reads the rows, too. */
static void move_choices(struct run *x, uint64_t rows)
{
    const struct spw_model_config *c = x->weights->config;
    const uint32_t layers = spw_expert_layers(c) - (c->mtp && c->has_experts[c->n_layers - 1]);
    const uint64_t choices = layers * rows * c->experts.n_kept;
    if (spw_plan_routes_on_device(x->plan, rows))
        return;
    x->moved[SPW_MOVED_DEVICE_TO_HOST] += choices * sizeof(struct spw_choice);
    if (spw_plan_computes_on_host(x->plan, rows))
        x->moved[SPW_MOVED_DEVICE_TO_HOST] +=
            layers * rows * spw_plan_expert_row_bytes(x->plan, x->weights);
    if (rows > 1)
        x->moved[SPW_MOVED_HOST_TO_DEVICE] += choices * 2 * sizeof(uint32_t);
}

/* States that do not stay on the device come up before a pass of their layer, if there are any yet,
 * and go down after it. */
static void move_states(struct run *x, uint64_t from)
{
    const struct spw_plan *p = x->plan;
    const uint64_t bytes = p->states_stay ? 0 : spw_plan_session_states(p);
    x->moved[SPW_MOVED_HOST_TO_DEVICE] += from ? bytes : 0;
    x->moved[SPW_MOVED_DEVICE_TO_HOST] += bytes;
}

/* ---- a run ---- */

static struct run begin_run(const struct spw_plan *p, const struct spw_weights *w)
{
    struct run x = {.plan = p, .weights = w};
    const uint32_t first = p->quantizes;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (p->n_slices[k] && !p->residency[k].fixed)
            x.kinds[x.n_kinds++] = (struct tiles){.r = &p->residency[k],
                                                  .n_slices = p->n_slices[k],
                                                  .n_readers = p->n_readers[k],
                                                  .first = first,
                                                  .begin = first,
                                                  .end = first,
                                                  .copied = first};
    return x;
}

/* Computes tokens [from, to), and the logits of the last one. */
static void step(struct run *x, uint64_t from, uint64_t to)
{
    struct spw_pass_span span;
    for (; from < to; from = span.to) {
        span =
            (struct spw_pass_span){.from = from, .to = spw_min_u64(to, from + x->plan->pass_rows)};
        span.chunked = span.to - from > x->plan->chunk;
        for (uint32_t i = 0; i < x->n_kinds; i++)
            pass_kind(x, &x->kinds[i], &span);
        move_states(x, from);
        move_weights(x, from, span.to - from, span.to == to);
        move_rows(x, span.to - from, span.to == to);
        move_choices(x, span.to - from);
    }
}

/* What comes into slots of the ring in a decode step at the full context. */
static void count_slots(struct spw_plan *p)
{
    struct spw_plan_info *i = &p->info;
    struct spw_pass_span span = {.from = i->context - 1, .to = i->context};
    i->decode_slot_bytes = 0;
    for (int k = 0; k < SPW_LAYER_KINDS && p->n_kv_slots; k++) {
        const struct spw_part_tiles t =
            spw_waterline_part(&p->residency[k], &span, span.from, span.to);
        if (p->n_readers[k])
            i->decode_slot_bytes +=
                (uint64_t)p->n_readers[k] * between(t.first, t.begin) * p->tile_bytes;
    }
}

void spw_plan_count_moved(struct spw_plan *p, const struct spw_weights *w)
{
    struct spw_plan_info *i = &p->info;
    struct run x = begin_run(p, w);
    step(&x, 0, i->context);
    memcpy(i->prefill_moved_bytes, x.moved, sizeof x.moved);
    if (spw_plan_n_full(p) && x.n_kinds && x.kinds[0].r == &p->residency[p->full_kind] &&
        x.kinds[0].disk_end > spw_waterline_first_tiered(x.kinds[0].r))
        i->waterlines.disk_end =
            spw_min_u64((uint64_t)x.kinds[0].disk_end * SPW_TILE_TOKENS, i->waterlines.host_end);
    x = begin_run(p, w);
    step(&x, 0, i->context - 1);
    memset(x.moved, 0, sizeof x.moved);
    step(&x, i->context - 1, i->context);
    memcpy(i->decode_moved_bytes, x.moved, sizeof x.moved);
    count_slots(p);
}

/* ---- work ---- */

static void count_reads(struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    struct spw_plan_info *i = &p->info;
    i->decode_read_bytes = i->decode_weights_bytes;
    i->decode_old_kv_bytes = i->decode_products = 0;
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_kv_shape *kv = &c->kv[k];
        if (!p->n_readers[k])
            continue;
        uint64_t layers = p->n_readers[k] / kv->n_slices;
        uint64_t row = (uint64_t)c->n_heads * kv->head_dim;
        uint64_t per_token = 2 * spw_row_bytes(p->info.kv, (uint64_t)kv->n_heads * kv->head_dim);
        uint64_t seen = p->residency[k].window.tokens ? spw_min_u64(p->info.context, c->window)
                                                      : p->info.context;
        uint64_t old = p->residency[k].quantizes ? p->full_tiles : 0;
        uint64_t exact = seen - old * SPW_TILE_TOKENS;
        uint64_t old_bytes = p->n_readers[k] * old * p->tile_bytes;
        i->decode_read_bytes += old_bytes + layers * exact * per_token;
        i->decode_old_kv_bytes += old_bytes;
        i->decode_products += layers * seen * row;
    }
}

/* A row uses n_kept experts of a layer: the mean counts. */
static void count_weights(struct spw_plan_info *i, const struct spw_weights *w)
{
    const struct spw_experts_config *c = &w->config->experts;
    i->decode_weights = i->decode_quantized_weights = 0;
    i->n_expert_layers = c->n ? w->n_expert_blocks / c->n : 0;
    i->n_experts_kept = c->n_kept;
    for (uint32_t u = w->config->n_source_layers; u < w->n_blocks + w->n_expert_blocks; u++) {
        const struct spw_matrix *end = &w->matrices[w->blocks[u].first + w->blocks[u].n];
        for (const struct spw_matrix *m = end - w->blocks[u].n; m < end; m++) {
            uint64_t n = m->n * m->k;
            if (u >= w->n_blocks)
                n = n * c->n_kept / c->n;
            i->decode_weights += n;
            i->decode_quantized_weights += spw_type_is_quantized(m->type) ? n : 0;
        }
    }
}

void spw_plan_count_work(struct spw_plan *p, const struct spw_weights *w)
{
    count_reads(p, w);
    count_weights(&p->info, w);
}
