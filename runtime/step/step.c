/* What the passes of a step compute and read: see step.h. */
#include "runtime/step/step.h"

#include <assert.h>

/* ---- open, close ---- */

static int open_pass(struct spw_step *r, struct spw_pass *f, const struct spw_weights *weights,
                     uint64_t pass_rows)
{
    const uint32_t of_layers = weights->layer_blocks[r->config->n_layers];
    SPW_TRY(spw_cut_init(&f->cut, r->plan->chunk, pass_rows, r->most_spans));
    f->spans = spw_alloc_zero(r->most_spans, sizeof *f->spans);
    f->parts = spw_alloc_zero(f->cut.most_parts, sizeof *f->parts);
    f->schedule = (struct spw_schedule){
        .n_layers = r->config->n_layers,
        .kinds = r->config->layer_kinds,
        .slot_tiles = r->plan->slot_tiles,
        .parts = f->parts,
        .n_layer_blocks = of_layers,
        .n_head_blocks = weights->n_blocks - of_layers,
    };
    return f->spans && f->parts ? 0 : -ENOMEM;
}

static void close_pass(struct spw_pass *f)
{
    spw_cut_free(&f->cut);
    spw_free(f->spans);
    spw_free(f->parts);
}

/* All layers of a kind hold the same tiles of a session. */
static void find_first_layers(struct spw_step *r)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        while (r->first_layer[k] < r->config->n_layers &&
               r->config->layer_kinds[r->first_layer[k]] != k)
            r->first_layer[k]++;
}

int spw_step_open(struct spw_step *r, const struct spw_plan *plan,
                  const struct spw_weights *weights, uint32_t most_spans, uint64_t pass_rows)
{
    uint32_t n = most_spans;
    *r = (struct spw_step){.plan = plan, .config = weights->config, .most_spans = n};
    find_first_layers(r);
    r->now = &r->passes[0];
    r->next = &r->passes[1];
    r->items = spw_alloc_zero(n, sizeof *r->items);
    r->spans = spw_alloc_zero(n, sizeof *r->spans);
    r->left = spw_alloc_zero(n, sizeof *r->left);
    r->next_left = spw_alloc_zero(n, sizeof *r->next_left);
    r->disk_end = spw_alloc_zero(n, sizeof *r->disk_end);
    r->on_disk = spw_alloc_zero(n, sizeof *r->on_disk);
    if (!r->items || !r->spans || !r->left || !r->next_left || !r->disk_end || !r->on_disk)
        return -ENOMEM;
    for (int i = 0; i < 2; i++)
        SPW_TRY(open_pass(r, &r->passes[i], weights, pass_rows));
    return 0;
}

void spw_step_close(struct spw_step *r)
{
    close_pass(&r->passes[0]);
    close_pass(&r->passes[1]);
    spw_free(r->items);
    spw_free(r->spans);
    spw_free(r->left);
    spw_free(r->next_left);
    spw_free(r->disk_end);
    spw_free(r->on_disk);
}

void spw_step_replan(struct spw_step *r)
{
    for (int k = 0; k < 2; k++) {
        r->passes[k].schedule.slot_tiles = r->plan->slot_tiles;
        r->passes[k].schedule.n_parts = 0;
    }
}

/* ---- what a pass reads ---- */

/* The end of the tiles that two spans share for good. A tile that was not full when the pass began
 * is written to, and each session gets its own; a schedule is made before that. */
static uint32_t shared_end(const struct spw_step *r, uint32_t i, uint32_t j, uint32_t layer)
{
    uint64_t from = spw_min_u64(r->now->spans[i].from, r->now->spans[j].from);
    uint32_t both = spw_kv_shared_end(r->items[i].seq->kv, r->items[j].seq->kv, layer);
    return (uint32_t)spw_min_u64(both, from / SPW_TILE_TOKENS);
}

/* Tiles that two sessions share go to the disk when the first of them says so. Returns the first
 * tile of span `i` that does not come from disk for this reason. */
static uint32_t shared_disk_end(const struct spw_step *r, uint32_t i, uint32_t kind,
                                uint32_t disk_end)
{
    uint32_t layer = r->first_layer[kind];
    for (uint32_t j = 0; j < r->n_items && layer < r->config->n_layers; j++)
        if (j != i && r->on_disk[j][kind] > disk_end) {
            uint32_t both = shared_end(r, i, j, layer);
            disk_end = spw_max_u32(disk_end, spw_min_u32(both, r->on_disk[j][kind]));
        }
    return disk_end;
}

/* What lies on disk of each span when the first layer begins, and from chunk to chunk. */
static void start_on_disk(struct spw_step *r, const struct spw_pass *f)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *at = &r->items[i].seq->residency[k];
            uint32_t wait = spw_waterline_wait(at, &f->spans[i]);
            r->on_disk[i][k] = spw_max_u32(r->disk_end[i][k], spw_waterline_disk(at, wait));
        }
}

static void raise_on_disk(struct spw_step *r, const struct spw_pass *f, const struct spw_chunk *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct spw_rows *part = &f->cut.parts[c->first_part + i];
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *at = &r->items[part->span].seq->residency[k];
            uint32_t after = spw_waterline_after(at, &f->spans[part->span], part->to);
            uint32_t *on_disk = &r->on_disk[part->span][k];
            *on_disk = spw_max_u32(*on_disk, spw_waterline_disk(at, after));
        }
    }
}

/* Finds the part of the same chunk, before part n, that reads most of the same tiles. */
static void find_donor(const struct spw_step *r, struct spw_pass *f, uint32_t first, uint32_t n,
                       uint32_t kind)
{
    struct spw_schedule_rows *g = &f->parts[n];
    uint32_t layer = r->first_layer[kind];
    bool reads = g->ranges[kind].first < g->ranges[kind].end;
    for (uint32_t i = first; i < n && reads && layer < r->config->n_layers; i++) {
        const struct spw_schedule_rows *h = &f->parts[i];
        if (h->shared_end[kind] || h->seq == g->seq)
            continue;
        uint32_t both = shared_end(r, f->cut.parts[i].span, f->cut.parts[n].span, layer);
        uint32_t end = spw_schedule_shared_end(&h->ranges[kind], &g->ranges[kind], both,
                                               f->schedule.slot_tiles);
        if (end > g->shared_end[kind]) {
            g->shared_end[kind] = end;
            g->donor[kind] = i;
        }
    }
}

static void describe_part(struct spw_step *r, struct spw_pass *f, uint32_t first, uint32_t n)
{
    const struct spw_rows *part = &f->cut.parts[n];
    const struct spw_sequence *seq = r->items[part->span].seq;
    struct spw_schedule_rows *g = &f->parts[n];
    *g = (struct spw_schedule_rows){.seq = seq->kv};
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++) {
        uint32_t own = spw_waterline_streamed(&seq->residency[k], &f->spans[part->span], part->from,
                                              &g->ranges[k].first, &g->ranges[k].end);
        own = spw_max_u32(own, r->disk_end[part->span][k]);
        g->disk_end[k] = shared_disk_end(r, part->span, k, own);
        find_donor(r, f, first, n, k);
    }
}

/* The donor's transfers bring them. */
static void leave_shared_tiles(struct spw_schedule_rows *g)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (g->shared_end[k])
            g->ranges[k].first = g->shared_end[k];
}

/* Turns the pass that was cut into spans and a schedule. `left`: where the step has moved to. */
static void describe_pass(struct spw_step *r, struct spw_pass *f, const struct spw_step_span *left)
{
    spw_cut_describe(&f->cut, left, r->n_items, f->spans);
    start_on_disk(r, f);
    for (uint32_t c = 0; c < f->cut.n_chunks; c++) {
        const struct spw_chunk *chunk = &f->cut.chunks[c];
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            describe_part(r, f, chunk->first_part, chunk->first_part + i);
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            leave_shared_tiles(&f->parts[chunk->first_part + i]);
        raise_on_disk(r, f, chunk);
    }
    f->schedule.n_parts = f->cut.n_parts;
    f->schedule.first_kv = (struct spw_kv_cursor){0};
    f->schedule.first_block = (struct spw_block_cursor){0};
}

/* What will lie on disk when the pass is through. */
static void raise_disk_end(struct spw_step *r)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            const struct spw_residency *at = &r->items[i].seq->residency[k];
            uint32_t leave = spw_waterline_leave(at, &r->now->spans[i]);
            r->disk_end[i][k] = spw_max_u32(r->disk_end[i][k], spw_waterline_disk(at, leave));
        }
}

/* The pass that will come if every session goes on by one token. None past the context, and none
 * where a session ends: nobody knows which sessions decode then. */
static void expect_decode(struct spw_step *r)
{
    r->next->schedule.n_parts = 0;
    for (uint32_t i = 0; i < r->n_items; i++) {
        const struct spw_step_span *s = &r->spans[i];
        r->next_left[i] = (struct spw_step_span){.from = s->to, .to = s->to + 1};
        if (s->to >= r->plan->info.context || !s->n_logits || r->items[i].last)
            return;
    }
    spw_cut_next(&r->next->cut, r->next_left, r->n_items);
    describe_pass(r, r->next, r->next_left);
    uint64_t rows = r->next->cut.rows;
    r->next->schedule.n_head_rounds = (uint32_t)spw_div_up(rows, r->plan->logits_rows);
}

/* ---- a step ---- */

uint64_t spw_step_begin(struct spw_step *r, const struct spw_executor_item *items, uint32_t n)
{
    uint64_t n_new_tokens = 0;
    assert(n <= r->most_spans);
    r->n_items = n;
    for (uint32_t i = 0; i < n; i++) {
        r->items[i] = items[i];
        r->spans[i] = r->left[i] = items[i].span;
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            r->disk_end[i][k] = r->first_layer[k] < r->config->n_layers
                                    ? spw_kv_disk_end(items[i].seq->kv, r->first_layer[k])
                                    : 0;
        n_new_tokens += items[i].span.to - items[i].span.from;
    }
    return n_new_tokens;
}

bool spw_step_is_last_pass(const struct spw_step *r)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (r->left[i].from < r->left[i].to)
            return false;
    return true;
}

bool spw_step_next_pass(struct spw_step *r, bool expects)
{
    if (!spw_cut_next(&r->now->cut, r->left, r->n_items))
        return false;
    describe_pass(r, r->now, r->left);
    raise_disk_end(r);
    r->next->schedule.n_parts = 0;
    if (expects && spw_step_is_last_pass(r))
        expect_decode(r);
    return true;
}

void spw_step_end_pass(struct spw_step *r)
{
    struct spw_pass *ran = r->now;
    r->now = r->next;
    r->next = ran;
}
