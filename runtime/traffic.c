/* The byte account as a pure function: see traffic.h. */
#include "runtime/traffic.h"

#include <string.h>

void spw_traffic_range(const struct spw_residency *r, bool sliding, const struct spw_passage *p,
                       uint64_t from, uint32_t *first, uint32_t *end)
{
    *first = 0;
    *end = spw_waterline_pass(r, p, from);
    if (sliding) {
        *first = spw_waterline_first(r->window, from);
        *end = spw_waterline_begin(r, true, from);
    }
}

static uint64_t streamed_weights(const struct spw_plan *p, const struct spw_weights *w,
                                 uint64_t head_rounds)
{
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < w->n_units; u++)
        if (!spw_plan_unit_resident(p, w, u))
            bytes +=
                spw_plan_unit_moved_bytes(p, w, u) * (u < w->config->n_layers ? 1 : head_rounds);
    return bytes;
}

void spw_traffic_pass(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                      const struct spw_cut *cut, const struct spw_passage *passages, uint64_t heads)
{
    uint64_t up = 0, down = 0, layers = w->config->n_layers;
    for (uint32_t i = 0; i < cut->n_segments; i++) {
        const struct spw_cut_segment *s = &cut->segments[i];
        uint32_t first, end;
        spw_traffic_range(&p->residency, false, &passages[s->span], s->from, &first, &end);
        up += (uint64_t)p->n_full * (end - first) * p->tile_bytes;
        if (!p->n_sliding)
            continue;
        spw_traffic_range(&p->residency, true, &passages[s->span], s->from, &first, &end);
        up += (uint64_t)p->n_sliding * (end - first) * p->tile_bytes;
    }
    up += cut->rows * p->hidden_row_bytes; /* embeddings */
    if (p->hidden_on_host && cut->n_chunks > 1) {
        up += ((layers - 1) * cut->rows + heads) * p->hidden_row_bytes;
        down += layers * cut->rows * p->hidden_row_bytes;
    }
    up += streamed_weights(p, w, spw_div_up(heads, p->logits_rows));
    down += heads * w->config->vocab * sizeof(float);
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += down;
}

/* Spills of one sliding layer: chunk by chunk, because what leaves the window is never written. */
static uint64_t sliding_spills(const struct spw_plan *p, const struct spw_cut *cut,
                               const struct spw_passage *passage)
{
    const struct spw_residency *r = &p->residency;
    uint64_t n = 0;
    uint32_t begin = spw_waterline_begin(r, true, passage->from);
    for (uint32_t i = 0; i < cut->n_segments; i++) {
        uint64_t to = cut->segments[i].to;
        uint32_t first = spw_waterline_first(r->window, to);
        if (begin < first)
            begin = first;
        uint32_t next = spw_waterline_begin(r, true, to);
        if (next > begin) {
            n += next - begin;
            begin = next;
        }
    }
    return n;
}

void spw_traffic_waterlines(struct spw_traffic *t, const struct spw_plan *p,
                            const struct spw_cut *cut, const struct spw_passage *passage,
                            uint32_t written)
{
    const struct spw_residency *r = &p->residency;
    uint32_t wait = spw_waterline_wait(r, passage), enter = spw_waterline_enter(r, passage);
    uint32_t leave = spw_waterline_leave(r, passage);
    uint32_t rest = spw_waterline_begin(r, false, passage->to);
    uint64_t loads = (uint64_t)(wait - enter) + (leave > rest ? leave - rest : 0);
    uint64_t spills = leave > written ? leave - written : 0;
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += p->n_full * loads * p->tile_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += p->n_full * spills * p->tile_bytes;
    if (p->n_sliding)
        t->bytes[SPW_MOVED_DEVICE_TO_HOST] +=
            p->n_sliding * sliding_spills(p, cut, passage) * p->tile_bytes;
}

uint64_t spw_traffic_open(const struct spw_plan *p, const struct spw_weights *w)
{
    uint64_t bytes = w->n_small * sizeof(float);
    for (uint32_t u = 0; u < w->n_units; u++)
        if (spw_plan_unit_resident(p, w, u))
            bytes += spw_plan_unit_moved_bytes(p, w, u);
    return bytes;
}

/* One step of one session from `from` to `to` tokens, pass by pass. */
static int walk(struct spw_traffic *t, const struct spw_plan *p, const struct spw_weights *w,
                uint64_t from, uint64_t to)
{
    struct spw_cut cut;
    struct spw_cut_span span = {from, to};
    uint32_t written = spw_waterline_begin(&p->residency, false, from);
    SPW_TRY(spw_cut_init(&cut, p->chunk, spw_min_u64(p->pass_rows, to - from), 1));
    for (uint64_t done = from; spw_cut_next(&cut, &span, 1); done = span.from) {
        struct spw_passage passage = {.from = done,
                                      .to = span.from,
                                      .begin = spw_waterline_begin(&p->residency, false, done),
                                      .chunked = cut.n_segments > 1};
        spw_traffic_pass(t, p, w, &cut, &passage, span.from == to);
        spw_traffic_waterlines(t, p, &cut, &passage, written);
        uint32_t leave = spw_waterline_leave(&p->residency, &passage);
        written = written > leave ? written : leave;
    }
    spw_cut_free(&cut);
    return 0;
}

static uint64_t decode_read_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_model_config *c = w->config;
    uint64_t per_token = 2 * (uint64_t)c->n_kv_heads * c->head_dim * spw_dtype_bytes(p->info.kv);
    uint64_t n = p->info.context, seen = p->n_sliding ? spw_min_u64(n, c->window) : 0;
    return p->info.weights_bytes + per_token * (p->n_full * n + p->n_sliding * seen);
}

int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w)
{
    struct spw_plan_info *i = &p->info;
    struct spw_traffic prefill = {{0}}, decode = {{0}};
    SPW_TRY(walk(&prefill, p, w, 0, i->context));
    SPW_TRY(walk(&decode, p, w, i->context - 1, i->context));
    memcpy(i->prefill_moved_bytes, prefill.bytes, sizeof prefill.bytes);
    memcpy(i->decode_moved_bytes, decode.bytes, sizeof decode.bytes);
    i->decode_read_bytes = decode_read_bytes(p, w);
    return 0;
}
