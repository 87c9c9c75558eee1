/* A life of sessions under a plan, by drawn steps: every tile is counted where it lies, and the
 * plan must have frames for all of them. */
#ifndef SPW_TESTS_ENGINE_PLAN_LIFE_H
#define SPW_TESTS_ENGINE_PLAN_LIFE_H

#include "runtime/plan/plan_parts.h"
#include "runtime/plan/shares.h"
#include "tests/engine/engine_run.h"

enum { MOST_SESSIONS = 4, MOST_SLICES = 8 * SPW_MOST_SLICES };

struct slice_state {
    const struct spw_residency *kind; /* of the session */
    uint32_t first, begin, end;
    uint32_t disk, written; /* copies: tiles [first, disk) on disk, [disk, written) on the host */
    uint32_t exact_first, exact_end; /* exact tiles that are kept apart, but for the sink */
    uint32_t held, held_end;         /* those, or a window's, that a pass has begun with */
};

struct life {
    const struct spw_plan *plan;
    const struct spw_model_config *config;
    struct slice_state slices[MOST_SESSIONS][MOST_SLICES];
    struct spw_share shares[MOST_SESSIONS];
    uint64_t n[MOST_SESSIONS];
    uint32_t sessions, most_device, most_host, most_disk, most_exact;
    uint64_t n_written_to_disk, n_read_from_disk, n_passes;
};

/* Of what a pass has begun with, the tiles that windows have left behind. */
static uint32_t left_behind(const struct life *f, const struct slice_state *x, uint32_t slice)
{
    bool full = f->config->slice_kinds[slice] == SPW_LAYER_FULL;
    uint32_t first = f->plan->quantizes ? x->exact_first : full ? 0 : x->first;
    uint32_t end = first < x->held_end ? first : x->held_end;
    uint32_t from = x->held || !full ? x->held : 1; /* a sink is not left */
    return end > from ? end - from : 0;
}

static void count(struct life *f)
{
    uint32_t device = 0, host = 0, disk = 0, exact = 0;
    for (uint32_t s = 0; s < f->sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices; l++) {
            const struct slice_state *x = &f->slices[s][l];
            device += x->end - x->begin;
            host += x->written - x->disk;
            disk += x->disk - x->first;
            *(f->plan->quantizes ? &exact : &device) += left_behind(f, x, l);
            exact += x->exact_end - x->exact_first;
            exact += x->exact_first && f->config->slice_kinds[l] == SPW_LAYER_FULL;
        }
    f->most_exact = exact > f->most_exact ? exact : f->most_exact;
    f->most_disk = disk > f->most_disk ? disk : f->most_disk;
    f->most_device = device > f->most_device ? device : f->most_device;
    f->most_host = host > f->most_host ? host : f->most_host;
}

/* A life that begins: where old tiles are kept apart, those of full layers start at tile 1. */
static void start_life(struct life *f, const struct spw_plan *p, const struct spw_plan_input *in,
                       uint32_t sessions)
{
    *f = (struct life){.plan = p, .config = in->weights->config, .sessions = sessions};
    for (uint32_t s = 0; s < sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices; l++) {
            struct slice_state *x = &f->slices[s][l];
            x->kind = &p->residency[f->config->slice_kinds[l]];
            if (in->quantizes && f->config->slice_kinds[l] == SPW_LAYER_FULL)
                x->first = x->begin = x->end = x->disk = x->written = 1;
        }
}

/* Draws how long each session may become, as far as such sessions may be open together. */
static void draw_shares(struct life *f, const struct spw_plan_input *in, uint64_t *seed)
{
    uint64_t tiles = spw_share_most_tiles(f->plan);
    for (uint32_t s = 0; s < f->sessions; s++) {
        uint64_t most = spw_min_u64(in->context, tiles * SPW_TILE_TOKENS);
        if (s + 1 < f->sessions || check_random(seed) % 4 == 0)
            most = check_random(seed) % 2 ? most : check_range(seed, 0, most);
        f->shares[s].most_tokens = most;
        tiles -= spw_waterline_tiles(most);
    }
    spw_share_frames(f->plan, f->shares, f->sessions, 0);
    for (uint32_t s = 0; s < f->sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices; l++)
            f->slices[s][l].kind = &f->shares[s].residency[f->config->slice_kinds[l]];
}

static void raise_to(struct life *f, struct slice_state *x, uint32_t begin)
{
    if (begin > x->begin)
        x->begin = begin;
    if (x->written < x->begin)
        x->written = x->begin;
    for (; x->written - x->disk > x->kind->host; x->disk++)
        f->n_written_to_disk++;
}

/* Tiles [from, to) come up, to the ring or to stay. */
static void bring_up(struct life *f, const struct slice_state *x, uint32_t from, uint32_t to)
{
    for (uint32_t t = spw_max_u32(from, x->first); t < to; t++)
        f->n_read_from_disk += t < x->disk;
}

/* Rows of a chunk read the tiles of a slice. `stores`: and add theirs. */
static void read_slice(struct life *f, const struct spw_cut *cut, const struct spw_chunk *k,
                       uint32_t l, bool stores)
{
    const bool quantizes = f->plan->quantizes, full = f->config->slice_kinds[l] == SPW_LAYER_FULL;
    for (uint32_t i = 0; i < k->n_parts; i++) {
        const struct spw_part *s = &cut->parts[k->first_part + i];
        struct slice_state *x = &f->slices[s->span][l];
        bring_up(f, x, spw_waterline_first_visible(x->kind, s->from), x->begin);
        if (stores && quantizes)
            x->exact_end = spw_waterline_tiles(s->to);
        if (stores && (!quantizes || full))
            x->end = full ? spw_waterline_end(x->kind, s->to) : spw_waterline_tiles(s->to);
    }
}

/* Old tiles of a slice leave after parts [from, to). */
static void leave_slice(struct life *f, const struct spw_cut *cut, uint32_t from, uint32_t to,
                        const struct spw_pass_span *pass_spans, uint32_t l)
{
    const bool quantizes = f->plan->quantizes;
    for (uint32_t i = from; i < to; i++) {
        const struct spw_part *s = &cut->parts[i];
        const struct spw_pass_span *p = &pass_spans[s->span];
        struct slice_state *x = &f->slices[s->span][l];
        const struct spw_residency *r = x->kind;
        bool sliding = f->config->slice_kinds[l] != SPW_LAYER_FULL;
        if (quantizes) {
            uint32_t exact = sliding ? spw_waterline_window_first(r->window, s->to)
                                     : spw_waterline_first_exact(r, s->to);
            exact = exact < x->exact_end ? exact : x->exact_end;
            /* tile 0 is not dropped from a full layer, so that nothing goes while it is the only */
            x->exact_first = spw_max_u32(!sliding && x->exact_end < 2 ? 0 : exact, x->exact_first);
            if (sliding)
                continue;
        }
        if (sliding) {
            uint32_t first = spw_waterline_window_first(r->window, s->to);
            first = first < x->end ? first : x->end;
            x->first = spw_max_u32(first, x->first);
            x->begin = spw_max_u32(first, x->begin);
            x->written = spw_max_u32(first, x->written);
            x->disk = spw_max_u32(first, x->disk);
            if (!r->held || s->to == p->to) /* held tiles stay until the last rows have passed */
                raise_to(f, x, spw_waterline_begin(r, s->to));
        } else {
            raise_to(f, x, spw_waterline_part(r, p, s->from, s->to).after);
        }
        count(f);
    }
}

/* `reader` reads the tiles of a layer. The first reader is that layer itself, which gets new ones;
 * old ones leave after the last one. If some layer has another reader, they leave when all chunks
 * have passed. */
static void pass_chunk(struct life *f, const struct spw_cut *cut, const struct spw_chunk *k,
                       const struct spw_pass_span *pass_spans, uint32_t reader)
{
    const struct spw_model_config *c = f->config;
    const uint32_t first = c->first_slices[reader], l = c->kv_layers[reader];
    const uint32_t end = first + spw_config_layer_slices(c, reader);
    for (uint32_t slice = first; slice < end; slice++)
        read_slice(f, cut, k, slice, reader == l);
    count(f);
    uint32_t part = k->first_part, parts = k->first_part + k->n_parts;
    if (c->n_kv_layers < c->n_layers && parts == cut->n_parts)
        part = 0;
    else if (c->n_kv_layers < c->n_layers)
        return;
    for (uint32_t slice = first; slice < end && spw_config_last_reader(c, l) == reader; slice++)
        leave_slice(f, cut, part, parts, pass_spans, slice);
}

/* What sessions begin a prompt's pass with is held until the next one begins. */
static void hold(struct life *f, const struct spw_pass_span *pass_spans)
{
    for (uint32_t s = 0; s < f->sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices; l++) {
            struct slice_state *x = &f->slices[s][l];
            bool quantizes = f->plan->quantizes;
            if (pass_spans[s].to <= pass_spans[s].from + 1)
                continue;
            x->held = quantizes ? x->exact_first : x->first;
            x->held_end = quantizes ? x->exact_end : x->end;
        }
}

/* The layer that stores the slice begins. */
static void enter_slice(struct life *f, const struct spw_pass_span *pass_spans, uint32_t l)
{
    for (uint32_t s = 0; s < f->sessions; s++)
        if (f->config->slice_kinds[l] == SPW_LAYER_FULL && pass_spans[s].chunked) {
            struct slice_state *x = &f->slices[s][l];
            uint32_t enter = spw_waterline_span(x->kind, &pass_spans[s]).enter;
            bring_up(f, x, enter, x->begin);
            x->begin = enter < x->begin ? enter : x->begin;
        }
}

static void run_pass(struct life *f, const struct spw_cut *cut, struct spw_pass_span *pass_spans)
{
    const uint8_t *kinds = f->config->slice_kinds;
    if (f->plan->retains)
        hold(f, pass_spans);
    for (uint32_t s = 0; s < f->sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices; l++)
            if (kinds[l] == SPW_LAYER_FULL && pass_spans[s].from < pass_spans[s].to)
                raise_to(f, &f->slices[s][l],
                         spw_waterline_span(f->slices[s][l].kind, &pass_spans[s]).wait);
    for (uint32_t l = 0; l < f->config->n_layers; l++) {
        for (uint32_t i = 0; i < f->config->n_slices; i++)
            if (f->config->slice_layers[i] == l)
                enter_slice(f, pass_spans, i);
        for (uint32_t k = 0; k < cut->n_chunks; k++)
            pass_chunk(f, cut, &cut->chunks[k], pass_spans, l);
    }
    for (uint32_t s = 0; s < f->sessions; s++)
        for (uint32_t l = 0; l < f->config->n_slices && pass_spans[s].to > pass_spans[s].from;
             l++) {
            struct slice_state *x = &f->slices[s][l];
            if (f->plan->quantizes && kinds[l] != SPW_LAYER_FULL)
                continue;
            uint32_t begin = spw_waterline_begin(x->kind, pass_spans[s].to);
            raise_to(f, x, begin);
            bring_up(f, x, begin, x->begin);
            x->begin = begin;
            count(f);
        }
}

static void run_step(struct life *f, struct spw_cut *cut, const uint64_t *to)
{
    struct spw_step_span spans[MOST_SESSIONS], before[MOST_SESSIONS];
    for (uint32_t s = 0; s < f->sessions; s++)
        spans[s] = (struct spw_step_span){.from = f->n[s], .to = to[s]};
    for (;;) {
        struct spw_pass_span pass_spans[MOST_SESSIONS] = {{0}};
        memcpy(before, spans, sizeof spans);
        if (!spw_cut_next(cut, spans, f->sessions))
            break;
        for (uint32_t s = 0; s < f->sessions; s++) {
            uint32_t segments = 0;
            for (uint32_t i = 0; i < cut->n_parts; i++)
                segments += cut->parts[i].span == s;
            pass_spans[s] = (struct spw_pass_span){
                .from = before[s].from, .to = spans[s].from, .chunked = segments > 1};
        }
        run_pass(f, cut, pass_spans);
        f->n_passes++;
    }
    memcpy(f->n, to, f->sessions * sizeof *to);
}

/* Returns how many quantized tiles were below the device at once. */
static uint32_t check_life(const struct spw_plan *p, const struct spw_plan_input *in,
                           uint64_t *seed)
{
    struct life f;
    struct spw_cut cut;
    uint64_t rows = spw_min_u64(p->pass_rows, in->sessions * in->context), to[MOST_SESSIONS];
    CHECK(spw_cut_init(&cut, p->chunk, rows, in->sessions) == 0);
    start_life(&f, p, in, in->sessions);
    draw_shares(&f, in, seed);
    for (int step = 0; step < 12; step++) {
        for (uint32_t s = 0; s < f.sessions; s++) {
            uint64_t most = f.shares[s].most_tokens - f.n[s];
            uint64_t more = check_random(seed) % 2 ? most : spw_min_u64(most, 130);
            to[s] = f.n[s] + (step == 11 ? most : check_range(seed, 0, more));
        }
        run_step(&f, &cut, to);
    }
    CHECK_MSG(f.most_device <= p->n_device_frames, "%u device frames, %u planned", f.most_device,
              p->n_device_frames);
    CHECK_MSG(f.most_exact <= p->n_exact_frames, "%u exact frames, %u planned", f.most_exact,
              p->n_exact_frames);
    CHECK_MSG(f.most_host <= p->n_host_frames - p->n_transit, "%u host frames, %u planned",
              f.most_host, p->n_host_frames - p->n_transit);
    CHECK_MSG(f.most_disk <= p->n_disk_frames, "%u disk frames, %u planned", f.most_disk,
              p->n_disk_frames);
    CHECK_MSG(f.n_written_to_disk * p->tile_bytes <= p->info.disk_write_bytes,
              "%llu tiles written to disk, %llu bytes planned",
              (unsigned long long)f.n_written_to_disk,
              (unsigned long long)p->info.disk_write_bytes);
    spw_cut_free(&cut);
    return in->quantizes ? f.most_host + f.most_disk : 0;
}

#endif
