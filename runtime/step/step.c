/* What the passes of a step compute and read: see step.h. */
#include "runtime/step/step.h"

#include "offload/kv/checkpoint.h"

#include <assert.h>
#include <string.h>

/* ---- open, close ---- */

static int open_pass(struct spw_step *s, struct spw_pass *pass, const struct spw_weights *weights,
                     uint64_t pass_rows)
{
    SPW_TRY(spw_cut_init(&pass->cut, s->plan->chunk, pass_rows, s->most_spans,
                         spw_plan_cuts_at_borders(s->plan)));
    pass->spans = spw_alloc_zero(s->most_spans, sizeof *pass->spans);
    pass->span_tiles = spw_alloc_zero(s->most_spans, sizeof *pass->span_tiles);
    pass->part_tiles = spw_alloc_zero(pass->cut.most_parts, sizeof *pass->part_tiles);
    pass->parts = spw_alloc_zero(pass->cut.most_parts, sizeof *pass->parts);
    pass->schedule = (struct spw_schedule){
        .kinds = s->config->layer_kinds,
        .first_slices = s->config->first_slices,
        .layer_slices = s->plan->layer_slices,
        .slot_tiles = s->plan->slot_tiles,
        .parts = pass->parts,
        .n_layer_blocks = s->config->n_layers,
        .n_head_blocks = weights->n_blocks - s->config->n_layers,
    };
    return pass->spans && pass->span_tiles && pass->part_tiles && pass->parts ? 0 : -ENOMEM;
}

static void close_pass(struct spw_pass *pass)
{
    spw_cut_free(&pass->cut);
    spw_free(pass->spans);
    spw_free(pass->span_tiles);
    spw_free(pass->part_tiles);
    spw_free(pass->parts);
}

static int tile_kind(const struct spw_step *s, int kind)
{
    return (int)spw_config_tile_kind(s->config, (enum spw_layer_kind)kind);
}

static void find_slices_of_kinds(struct spw_step *s)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        while (s->slice_of_kind[k] < s->config->n_slices &&
               s->config->slice_kinds[s->slice_of_kind[k]] != tile_kind(s, k))
            s->slice_of_kind[k]++;
}

int spw_step_open(struct spw_step *s, const struct spw_plan *plan,
                  const struct spw_weights *weights, uint32_t most_spans, uint64_t pass_rows)
{
    uint32_t n = most_spans;
    *s = (struct spw_step){.plan = plan, .config = weights->config, .most_spans = n};
    find_slices_of_kinds(s);
    s->now = &s->passes[0];
    s->next = &s->passes[1];
    s->items = spw_alloc_zero(n, sizeof *s->items);
    s->spans = spw_alloc_zero(n, sizeof *s->spans);
    s->left = spw_alloc_zero(n, sizeof *s->left);
    s->next_left = spw_alloc_zero(n, sizeof *s->next_left);
    s->began_at = spw_alloc_zero(n, sizeof *s->began_at);
    s->disk_end = spw_alloc_zero(n, sizeof *s->disk_end);
    s->disk_end_at_chunk = spw_alloc_zero(n, sizeof *s->disk_end_at_chunk);
    if (!s->items || !s->spans || !s->left || !s->next_left || !s->began_at || !s->disk_end ||
        !s->disk_end_at_chunk)
        return -ENOMEM;
    for (int i = 0; i < 2; i++)
        SPW_TRY(open_pass(s, &s->passes[i], weights, pass_rows));
    return 0;
}

void spw_step_close(struct spw_step *s)
{
    close_pass(&s->passes[0]);
    close_pass(&s->passes[1]);
    spw_free(s->items);
    spw_free(s->spans);
    spw_free(s->left);
    spw_free(s->next_left);
    spw_free(s->began_at);
    spw_free(s->disk_end);
    spw_free(s->disk_end_at_chunk);
}

void spw_step_replan(struct spw_step *s)
{
    for (int k = 0; k < 2; k++) {
        s->passes[k].schedule.slot_tiles = s->plan->slot_tiles;
        s->passes[k].schedule.n_parts = 0;
    }
}

/* ---- what a pass reads ---- */

/* The end of the tiles that the sessions of two spans share during the whole pass. The tile that
 * was not full when the pass began is not one of them: the first session that writes to this tile
 * gets its own copy, after the schedule was made. */
static uint32_t shared_end(const struct spw_step *s, uint32_t i, uint32_t j, uint32_t slice)
{
    uint64_t from = spw_min_u64(s->now->spans[i].from, s->now->spans[j].from);
    uint32_t both = spw_kv_shared_end(s->items[i].seq->kv, s->items[j].seq->kv, slice);
    return (uint32_t)spw_min_u64(both, from / SPW_TILE_TOKENS);
}

/* The first tile of span `i` that is not on disk. disk_end: the same number, from the waterline of
 * this session alone. But a tile that sessions share is on disk as soon as the waterline of one of
 * them has passed the tile. */
static uint32_t shared_disk_end(const struct spw_step *s, uint32_t i, uint32_t kind,
                                uint32_t disk_end)
{
    uint32_t slice = s->slice_of_kind[kind];
    for (uint32_t j = 0; j < s->n_items && slice < s->config->n_slices; j++)
        if (j != i && s->disk_end_at_chunk[j][kind] > disk_end) {
            uint32_t both = shared_end(s, i, j, slice);
            disk_end = spw_max_u32(disk_end, spw_min_u32(both, s->disk_end_at_chunk[j][kind]));
        }
    return disk_end;
}

/* Where the tiles of all spans and parts lie. */
static void place_tiles(struct spw_step *s, struct spw_pass *pass)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        for (uint32_t i = 0; i < s->n_items; i++)
            pass->span_tiles[i][k] =
                spw_waterline_span(&s->items[i].seq->residency[tile_kind(s, k)], &pass->spans[i]);
        for (uint32_t n = 0; n < pass->cut.n_parts; n++) {
            const struct spw_part *part = &pass->cut.parts[n];
            pass->part_tiles[n][k] =
                spw_waterline_part(&s->items[part->span].seq->residency[tile_kind(s, k)],
                                   &pass->spans[part->span], part->from, part->to);
        }
    }
}

/* The session of a span has now lower copies of the tiles [0, written) of this kind: raises
 * disk_end_at_chunk. */
static void raise_disk_end(struct spw_step *s, uint32_t span, int kind, uint32_t written)
{
    const struct spw_residency *r = &s->items[span].seq->residency[tile_kind(s, kind)];
    uint32_t *end = &s->disk_end_at_chunk[span][kind];
    *end = spw_max_u32(*end, spw_waterline_disk_end(r, written));
}

/* Sets disk_end_at_chunk for the begin of the first chunk. */
static void start_disk_ends(struct spw_step *s, const struct spw_pass *pass)
{
    for (uint32_t i = 0; i < s->n_items; i++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++) {
            s->disk_end_at_chunk[i][k] = s->disk_end[i][k];
            raise_disk_end(s, i, k, pass->span_tiles[i][k].wait);
        }
}

/* Raises disk_end_at_chunk by what is spilled after chunk c. */
static void raise_disk_ends(struct spw_step *s, const struct spw_pass *pass, uint32_t c)
{
    const struct spw_parts_placed placed = spw_cut_placed(&pass->cut, c, s->plan->holds_tiles);
    for (uint32_t n = placed.first; n < placed.end; n++)
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            raise_disk_end(s, pass->cut.parts[n].span, k, pass->part_tiles[n][k].after);
}

/* Lets part n use the transfers of an earlier part of the same chunk: of that part which reads most
 * of the same tiles. `first`: the first part of the chunk. */
static void share_transfers(const struct spw_step *s, struct spw_pass *pass, uint32_t first,
                            uint32_t n, uint32_t kind)
{
    struct spw_part_reads *reads = &pass->parts[n];
    uint32_t slice = s->slice_of_kind[kind];
    bool any = reads->ranges[kind].first < reads->ranges[kind].end;
    for (uint32_t i = first; i < n && any && slice < s->config->n_slices; i++) {
        const struct spw_part_reads *other = &pass->parts[i];
        if (other->shared_end[kind] || other->seq == reads->seq)
            continue;
        uint32_t both = shared_end(s, pass->cut.parts[i].span, pass->cut.parts[n].span, slice);
        uint32_t end = spw_schedule_one_transfer_end(&other->ranges[kind], &reads->ranges[kind],
                                                     both, pass->schedule.slot_tiles);
        if (end > reads->shared_end[kind]) {
            reads->shared_end[kind] = end;
            reads->shared_with[kind] = i;
        }
    }
}

struct spw_stream_range spw_step_reads(const struct spw_step *s, uint32_t i, uint32_t kind,
                                       uint64_t to)
{
    const uint64_t source = s->spans[i].n_source;
    if (spw_layer_sees_source((enum spw_layer_kind)kind))
        return (struct spw_stream_range){0, spw_waterline_tiles(source)};
    return (struct spw_stream_range){(uint32_t)(source / SPW_TILE_TOKENS), spw_waterline_tiles(to)};
}

/* What part n reads from lower tiers: fills in pass->parts[n]. */
static void describe_part(struct spw_step *s, struct spw_pass *pass, uint32_t first, uint32_t n)
{
    const struct spw_part *part = &pass->cut.parts[n];
    const struct spw_sequence *seq = s->items[part->span].seq;
    struct spw_part_reads *reads = &pass->parts[n];
    *reads = (struct spw_part_reads){.seq = seq->kv};
    for (uint32_t k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_part_tiles *t = &pass->part_tiles[n][k];
        /* Tiles before the highest `begin` that the layer had so far have lower copies: it began at
         * `wait` before the pass reached it, and begins at t->begin now. */
        uint32_t written = spw_max_u32(t->begin, pass->span_tiles[part->span][k].wait);
        uint32_t own = spw_waterline_disk_end(&seq->residency[tile_kind(s, (int)k)], written);
        const struct spw_stream_range all = spw_step_reads(s, part->span, k, part->to);
        reads->ranges[k] = (struct spw_stream_range){spw_max_u32(t->first, all.first),
                                                     spw_min_u32(t->begin, all.end)};
        if (part->from < s->spans[part->span].n_source)
            reads->ranges[k].end = reads->ranges[k].first; /* its rows have no queries here */
        own = spw_max_u32(own, s->disk_end[part->span][k]);
        reads->disk_end[k] = shared_disk_end(s, part->span, k, own);
        share_transfers(s, pass, first, n, k);
    }
}

/* Leaves out the tiles that come with the transfers of another part. */
static void leave_shared_tiles(struct spw_part_reads *reads)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (reads->shared_end[k])
            reads->ranges[k].first = reads->shared_end[k];
}

/* Fills in spans, parts and schedule of a pass that was cut. `left`: the spans as spw_cut_next has
 * left them. */
static void describe_pass(struct spw_step *s, struct spw_pass *pass,
                          const struct spw_step_span *left)
{
    spw_cut_describe(&pass->cut, left, s->n_items, pass->spans);
    place_tiles(s, pass);
    start_disk_ends(s, pass);
    for (uint32_t c = 0; c < pass->cut.n_chunks; c++) {
        const struct spw_chunk *chunk = &pass->cut.chunks[c];
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            describe_part(s, pass, chunk->first_part, chunk->first_part + i);
        for (uint32_t i = 0; i < chunk->n_parts; i++)
            leave_shared_tiles(&pass->parts[chunk->first_part + i]);
        raise_disk_ends(s, pass, c);
    }
    const uint32_t main_layers = spw_config_main_layers(s->config);
    const uint32_t first = s->is_draft                 ? main_layers
                           : spw_step_has_source(pass) ? 0
                                                       : s->config->n_source_layers;
    pass->schedule.n_layers = s->is_draft ? s->config->n_layers : main_layers;
    pass->schedule.n_parts = pass->cut.n_parts;
    pass->schedule.rows = pass->cut.rows;
    pass->schedule.first_kv = (struct spw_kv_cursor){.layer = first};
    pass->schedule.first_block = (struct spw_block_cursor){.block = first};
}

/* Describes the next decode step as s->next, so that its transfers can begin early: one more token
 * of each session. Describes none if a session has reached the end of the context or of its answer:
 * then it is not known which sessions decode next. */
static void expect_decode(struct spw_step *s)
{
    s->next->schedule.n_parts = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        const struct spw_step_span *span = &s->spans[i];
        s->next_left[i] = (struct spw_step_span){
            .from = span->to, .to = span->to + 1, .n_source = span->n_source};
        if (span->to >= s->plan->info.context || !span->n_logits || s->items[i].is_last_step)
            return;
    }
    spw_cut_next(&s->next->cut, s->next_left, s->n_items);
    describe_pass(s, s->next, s->next_left);
    uint64_t rows = s->next->cut.rows;
    s->next->schedule.n_head_rounds = (uint32_t)spw_div_up(rows, s->plan->logits_rows);
}

/* ---- a step ---- */

uint64_t spw_step_begin(struct spw_step *s, const struct spw_executor_item *items, uint32_t n)
{
    uint64_t n_new_tokens = 0;
    assert(n <= s->most_spans);
    s->n_items = n;
    for (uint32_t i = 0; i < n; i++) {
        s->items[i] = items[i];
        s->spans[i] = s->left[i] = items[i].span;
        s->began_at[i] = 0;
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            s->disk_end[i][k] = s->slice_of_kind[k] < s->config->n_slices
                                    ? spw_kv_disk_end(items[i].seq->kv, s->slice_of_kind[k])
                                    : 0;
        n_new_tokens += items[i].span.to - items[i].span.from;
    }
    return n_new_tokens;
}

/* Whether a multiple of the distance lies in (from, to]. */
static bool passes_distance(uint64_t from, uint64_t to)
{
    return from / SPW_CHECKPOINT_TOKENS < to / SPW_CHECKPOINT_TOKENS;
}

bool spw_step_wants_checkpoint(const struct spw_step *s, uint32_t n)
{
    const struct spw_part *part = &s->now->cut.parts[n];
    const uint64_t left = s->spans[part->span].to - part->to;
    const bool last_tile =
        part->to % SPW_TILE_TOKENS == 0 && left <= spw_max_u64(s->plan->chunk, SPW_TILE_TOKENS);
    const bool ends = spw_step_is_prompt(s, part->span) && (!left || last_tile);
    return s->plan->n_checkpoints && (ends || passes_distance(part->from, part->to));
}

bool spw_step_is_last_pass(const struct spw_step *s)
{
    for (uint32_t i = 0; i < s->n_items; i++)
        if (s->left[i].from < s->left[i].to)
            return false;
    return true;
}

bool spw_step_next_pass(struct spw_step *s, bool expects)
{
    if (!spw_cut_next(&s->now->cut, s->left, s->n_items))
        return false;
    describe_pass(s, s->now, s->left);
    memcpy(s->disk_end, s->disk_end_at_chunk, s->n_items * sizeof *s->disk_end);
    s->next->schedule.n_parts = 0;
    if (expects && spw_step_is_last_pass(s))
        expect_decode(s);
    return true;
}

void spw_step_end_pass(struct spw_step *s)
{
    struct spw_pass *ran = s->now;
    s->now = s->next;
    s->next = ran;
}
