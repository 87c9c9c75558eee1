/* What a plan says of itself against what its parts add up to: regions apart and within the
 * budgets, blocks of weights, frames, what is read from the files, the products of a step. */
#ifndef SPW_TESTS_ENGINE_PLAN_LAYOUT_H
#define SPW_TESTS_ENGINE_PLAN_LAYOUT_H

#include "base/numbers.h"
#include "runtime/rules/draft_length.h"
#include "tests/engine/plan_life.h"

enum { PAGE = 4096 };

/* Plans of each sort, so that none is missing from the draws. */
static struct {
    int disk, three; /* with a disk; with copies on the host too */
    int retains, no_retains, quantized_below, snapshot_rows;
    int pools, pools_on_disk;     /* more sessions than full_sessions; */
    int limited, limited_refused; /* by the bytes that they may write */
    int blocks_from_disk, blocks_bounced, both_kinds, shorter;
    uint64_t candidates;
    int together; /* refusals that raise several budgets together */
} n_of;

struct region {
    uint64_t at, bytes;
};

static void check_apart(const struct region *r, size_t n, uint64_t end)
{
    for (size_t i = 0; i < n; i++) {
        CHECK(r[i].at % PAGE == 0);
        CHECK(r[i].at + r[i].bytes <= (i + 1 < n ? r[i + 1].at : end));
    }
}

/* Bytes of blocks by where they lie. */
struct block_bytes {
    uint64_t copied, mapped, packed, kept, most_slot, most_bounce;
    uint32_t n_streamed, n_from_disk, n_bounce, n_others; /* others: streamed, could be from disk */
};

/* Every block has its place on the device, or is streamed; one that is converted has a packed copy
 * besides, another that is streamed comes from the host, pinned or mapped, or from its file. */
static void count_block(const struct spw_plan *p, const struct spw_plan_input *in, uint32_t u,
                        struct block_bytes *sum)
{
    const struct spw_weights *w = in->weights;
    uint64_t bytes = spw_align_up(w->blocks[u].bytes, PAGE);
    bool resident = spw_plan_block(p, w, u).resident, as_stored = true, aligned = true;
    const struct spw_weight_block *b = &w->blocks[u];
    enum spw_dtype type = w->matrices[b->first].type;
    for (uint32_t i = b->first; i < b->first + b->n; i++)
        aligned = aligned && (uintptr_t)w->pieces[i].from % spw_dtype_bytes(type) == 0;
    for (size_t i = 0; i < spw_tensors_count(w->tensors); i++) { /* tiny models have one type */
        const struct spw_tensor *t = spw_tensors_at(w->tensors, i);
        as_stored = as_stored && (t->n_dims != 2 || t->dtype == type);
    }
    if (resident && in->reads_host_memory && as_stored && aligned)
        sum->mapped += bytes;
    else if (resident)
        sum->copied += bytes;
    bool from_disk = spw_plan_block(p, w, u).from_disk, direct = in->reads_host_memory && aligned;
    CHECK(!from_disk || (as_stored && !resident));
    if (u >= w->n_blocks && p->n_expert_frames) { /* frames take the place of slots */
        CHECK(!resident && bytes <= w->expert_frame_bytes);
        CHECK(!from_disk || direct || p->n_expert_bounce);
        sum->packed += !as_stored || (!from_disk && !in->reads_host_memory) ? bytes : 0;
        sum->kept += as_stored && !from_disk && in->reads_host_memory ? bytes : 0;
        return;
    }
    sum->n_streamed += !resident;
    sum->n_from_disk += from_disk;
    sum->n_bounce += from_disk && !direct;
    sum->n_others += !resident && as_stored && !from_disk;
    uint64_t slot = from_disk && direct ? w->blocks[u].read_bytes : bytes;
    if (!resident)
        sum->most_slot = spw_max_u64(sum->most_slot, slot);
    if (from_disk && !direct)
        sum->most_bounce = spw_max_u64(sum->most_bounce, w->blocks[u].read_bytes);
    if (!as_stored || (!resident && !from_disk && !in->reads_host_memory))
        sum->packed += bytes;
    else if (!resident && !from_disk)
        sum->kept += bytes;
}

/* Blocks that are read more often leave the device, and the host, only after all others: those of a
 * decoder, or of an MTP layer and the head. Of either sort, blocks that come from disk are spread
 * over the others, and only the drive's link counts them. */
static void check_blocks(const struct spw_plan *p, const struct spw_plan_input *in,
                         const struct block_bytes *sum)
{
    const struct spw_weights *w = in->weights;
    const uint32_t n_source = w->config->n_source_layers, mtp = spw_config_main_layers(w->config);
    const uint32_t border = w->config->mtp ? mtp : n_source ? n_source : w->n_blocks;
    uint64_t read = 0;
    uint32_t gap = 0, n_layers = 0, n_resident[2] = {0}, n_streamed[2] = {0};
    for (uint32_t u = 0; u < w->n_blocks; u++)
        (spw_plan_block(p, w, u).resident ? n_resident : n_streamed)[u >= border]++;
    const uint32_t seldom = spw_min_u32(p->n_disk_blocks, n_streamed[0]);
    const uint32_t places[2] = {seldom, p->n_disk_blocks - seldom};
    CHECK(!n_resident[0] || !n_streamed[1]);
    CHECK(p->page_cache_bytes == sum->kept && sum->n_from_disk <= p->n_disk_blocks);
    CHECK(!p->n_weight_slots || sum->most_slot <= p->weight_slot_bytes);
    CHECK((p->n_weight_bounce > 0) == (sum->n_bounce > 0) &&
          sum->most_bounce <= p->weight_bounce_bytes);
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        bool from_disk = spw_plan_block(p, w, u).from_disk;
        const int often = u >= border;
        read += from_disk && u >= n_source ? w->blocks[u].read_bytes : 0;
        n_layers += from_disk && u < w->config->n_layers;
        gap = u == border ? 0 : gap;
        gap = from_disk ? 0 : gap + !spw_plan_block(p, w, u).resident;
        CHECK(places[often] || !from_disk);
        CHECK(!sum->n_from_disk || !places[often] ||
              gap <= spw_div_up(n_streamed[often], places[often]));
    }
    CHECK(p->info.weights_disk_bytes == read && p->info.n_layers_from_disk == n_layers);
    n_of.blocks_from_disk += sum->n_from_disk > 0;
    n_of.blocks_bounced += sum->n_bounce > 0;
    n_of.both_kinds += sum->n_from_disk && sum->n_others;
}

/* What the sizes of regions are made of. */
struct sizes {
    uint64_t e, m; /* bytes of an element; rows of a chunk */
    uint64_t q, qkv, mlp_width;
    uint64_t state, logits; /* bytes */
    uint64_t rows, own, expert_rows, choices;
    uint64_t in, conv, rates, width; /* of a row of a layer with a state */
    uint64_t kept;                   /* rows, of a step with drafts */
    bool both;                       /* a layer attends and has a state */
};

static struct sizes sizes_of(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    const struct spw_experts_config *x = &c->experts;
    struct sizes z = {.e = spw_dtype_bytes(in->compute), .m = p->chunk};
    uint64_t wide = c->layer_inputs;
    if (p->n_states) {
        z.in = spw_mixer_in_width(&c->mixer);
        z.conv = c->mixer.conv_channels;
        z.rates = spw_mixer_rates_width(&c->mixer);
        z.width = spw_mixer_width(&c->mixer);
        z.kept = spw_min_u64(spw_min_u64(in->draft_rows, SPW_DRAFT_MOST + 1), p->chunk);
    }
    for (uint32_t l = 0; l < c->n_layers; l++) {
        z.both = z.both || (spw_config_attends(c, l) && spw_config_has_state(c, l));
        z.q = spw_max_u64(z.q, spw_config_q_width(c, l));
        z.qkv = spw_max_u64(z.qkv, spw_config_qkv_width(c, l));
        wide = spw_max_u64(wide, spw_config_mlp_width(c, l));
    }
    z.state = (z.q + 2 * c->n_heads) * 4;
    z.own = c->layer_inputs ? p->pass_rows + p->rows_beside : 0;
    CHECK(p->logits_rows >= in->draft_rows); /* else a step reads the head again */
    z.logits = (uint64_t)p->logits_rows * c->vocab * 4;
    z.rows = p->hidden_on_host ? 2 * z.m : p->pass_rows;
    z.expert_rows = x->n ? p->pass_rows + p->rows_beside : 0;
    z.choices = z.expert_rows * x->n_kept;
    z.mlp_width =
        spw_max_u64(wide, x->n ? spw_max_u64(x->intermediate, x->shared_intermediate) : 0);
    return z;
}

static void check_device_regions(const struct spw_plan *p, const struct spw_plan_input *in,
                                 const struct sizes *z, const struct block_bytes *sum)
{
    const struct spw_model_config *c = in->weights->config;
    const struct spw_experts_config *x = &c->experts;
    const struct spw_plan_device *d = &p->device;
    struct region first[] = {
        {d->small, in->weights->n_small * 4},
        {d->workspace, in->workspace_bytes},
        {d->hidden, z->rows * p->hidden_row_bytes},
        {d->x, z->m * c->hidden * z->e},
        {d->codes, (z->m > p->logits_rows ? z->m : p->logits_rows) * in->codes_row_bytes},
        {d->qkv, z->m * z->qkv * z->e},
        {d->attention, z->m * z->q * z->e},
        {d->state, z->m * z->state},
        {d->split_states, (in->attention_tiles < 256 ? in->attention_tiles : 256) * z->state},
        {d->embedding, z->own * p->hidden_row_bytes},
        {d->inputs, z->own * p->inputs_row_bytes},
        {d->experts.x, z->expert_rows * p->hidden_row_bytes},
        {d->experts.y, z->choices * p->hidden_row_bytes},
        {d->experts.dense, x->beside ? z->expert_rows * p->hidden_row_bytes : 0},
        {d->experts.choices, z->choices * 8},
        {d->experts.places, z->choices * 4},
        {d->experts.index, z->choices * 4},
        {d->experts.scores, x->n ? z->m * (x->n + 2) * 4 : 0},
        {d->rows, p->logits_rows * p->hidden_row_bytes},
        {d->flags, 4},
        {d->experts.addresses,
         p->routed_rows ? in->weights->n_expert_blocks * 3 * sizeof(void *) : 0},
        {d->states,
         in->sessions * (p->states_stay ? p->n_states : p->n_states > 0) * p->state_bytes},
        {d->kept_rows, in->sessions * p->n_states *
                           (spw_align_up(z->kept * z->in * z->e, 64) +
                            spw_align_up(z->kept * z->rates * z->e, 64))},
        {d->weights, sum->copied},
        {d->weight_slots, p->n_weight_slots * p->weight_slot_bytes},
        {d->expert_frames, p->n_expert_frames * in->weights->expert_frame_bytes},
        {d->kv_frames, (uint64_t)p->n_device_frames * p->tile_bytes},
        {d->exact_frames, p->n_exact_frames * p->exact_tile_bytes},
        {d->kv_slots, (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes},
    };
    struct region mlp[] = {{d->x, z->m * c->hidden * z->e},
                           {d->codes, z->m * in->codes_row_bytes},
                           {d->gate_up, in->gated_scratch ? z->m * 2 * z->mlp_width * z->e : 0},
                           {d->gated, z->m * z->mlp_width * z->e},
                           {d->embedding, 0},
                           {d->rows, 0}};
    const struct region splits = {d->split_states, first[8].bytes};
    struct region states[] = {z->both ? splits : first[4],
                              {d->state_in, z->m * z->in * z->e},
                              {d->state_conv, z->m * z->conv * z->e},
                              {d->state_rates, z->m * z->rates * z->e},
                              {d->state_out, z->m * z->width * 4},
                              {d->embedding, 0},
                              {d->rows, 0}};
    const struct region head[] = {{d->x, z->m * c->hidden * z->e},
                                  first[4],
                                  {d->logits, z->logits},
                                  {d->embedding, 0},
                                  {d->rows, p->logits_rows * p->hidden_row_bytes}};
    check_apart(head, sizeof head / sizeof *head, d->weights);
    check_apart(first, sizeof first / sizeof *first, d->end);
    check_apart(states, sizeof states / sizeof *states, d->weights);
    check_apart(mlp, sizeof mlp / sizeof *mlp, d->weights);
}

static void check_host_regions(const struct spw_plan *p, const struct spw_plan_input *in,
                               const struct sizes *z, const struct block_bytes *sum)
{
    const struct spw_model_config *c = in->weights->config;
    const struct spw_plan_host *h = &p->host;
    const struct spw_expert_shape shape = spw_plan_expert_shape(in->weights);
    struct region host[] = {
        {h->hidden, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0},
        {h->staging, 2 * z->m * (p->hidden_row_bytes + p->inputs_row_bytes)},
        {h->logits, z->logits},
        {h->session_logits, (uint64_t)in->sessions * c->vocab * 4},
        {h->draft_logits, (uint64_t)in->draft_rows * c->vocab * 4},
        {h->flags, 4},
        {h->experts.choices, z->choices * 8},
        {h->experts.places, z->choices * 4},
        {h->experts.index, z->choices * 4},
        {h->expert_tables, p->n_expert_frames ? 2 * spw_expert_residency_bytes(&shape) : 0},
        {h->packed, sum->packed},
        {h->weight_bounce, p->n_weight_bounce * p->weight_bounce_bytes},
        {h->expert_bounce, p->n_expert_bounce * in->weights->expert_frame_bytes},
        {h->states, p->states_stay ? 0 : in->sessions * p->n_states * p->state_bytes},
        {h->checkpoints, p->n_checkpoints * p->n_states * p->state_bytes},
        {h->kv_frames, (uint64_t)p->n_host_frames * p->tile_bytes},
        {h->bounce, (uint64_t)p->n_bounce * p->slot_tiles * p->tile_bytes},
    };
    check_apart(host, sizeof host / sizeof *host, h->end);
}

/* The bytes that the plan shows. */
static void check_shown(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_plan_info *i = &p->info;
    CHECK(i->device.weights_resident + i->device.weights_slots + i->device.kv_resident +
              i->device.kv_slots + i->device.states + i->device.hidden + i->device.activations ==
          i->device.total);
    CHECK(i->host.kv + i->host.states + i->host.hidden + i->host.staging + i->host.disk_staging +
              i->host.weights ==
          i->host.total);
    CHECK(i->disk.kv + i->disk.checkpoints == i->disk.total);
    CHECK(i->n_checkpoints == p->n_checkpoints + p->n_disk_checkpoints);
    CHECK(p->n_states || !i->n_checkpoints);
    CHECK(p->n_device_frames * p->tile_bytes + p->n_exact_frames * p->exact_tile_bytes <=
          i->device.kv_resident);
    CHECK(p->tile_bytes % PAGE == 0 && p->exact_tile_bytes % PAGE == 0);
    CHECK(p->tile_bytes <= p->exact_tile_bytes && (p->n_exact_frames > 0) == in->quantizes);
}

static void check_layout(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_experts_config *x = &in->weights->config->experts;
    const struct sizes z = sizes_of(p, in);
    struct block_bytes sum = {0};
    for (uint32_t u = 0; u < in->weights->n_blocks + in->weights->n_expert_blocks; u++)
        count_block(p, in, u, &sum);
    check_device_regions(p, in, &z, &sum);
    check_host_regions(p, in, &z, &sum);
    CHECK(p->mapped_bytes == sum.mapped);
    CHECK(p->device.end + sum.mapped <= in->device_bytes &&
          p->host.end + sum.kept <= in->host_bytes);
    check_blocks(p, in, &sum);
    CHECK(p->info.host.total == p->host.end + p->page_cache_bytes);
    CHECK(p->slot_tiles && p->slot_tiles % SPW_SPLIT_TILES == 0 &&
          p->slot_tiles <= in->attention_tiles);
    CHECK(!in->prefetch_splits || p->slot_tiles == in->prefetch_splits * SPW_SPLIT_TILES);
    for (uint32_t u = 0; u < in->weights->n_blocks; u++)
        CHECK(in->weights->blocks[u].bytes <= p->weight_slot_bytes || !p->n_weight_slots);
    const bool routes =
        x->n && !p->n_expert_frames && z.m >= x->n_kept && in->weights->experts_alike;
    CHECK(routes == (p->routed_rows > 0));
    CHECK(p->routed_rows <= 1 ||
          (!in->reads_host_memory && p->routed_rows * x->n_kept <= (z.m < 64 ? z.m : 64)));
    check_shown(p, in);
}

/* What lies between host and disk is there where it is needed, and nowhere else. */
static void check_disk(const struct spw_plan *p, const struct spw_plan_input *in)
{
    bool bounces = (p->n_disk_frames || in->attaches) && !in->reads_host_memory;
    CHECK(p->info.disk.kv == (uint64_t)p->n_disk_frames * p->tile_bytes);
    CHECK(p->info.disk.checkpoints ==
          (uint64_t)p->n_disk_checkpoints * p->n_states * p->state_bytes);
    CHECK(p->info.disk.total <= in->disk_bytes && p->info.disk_budget_bytes == in->disk_bytes);
    CHECK(p->disk_to_device == ((in->disk_bytes || in->attaches) && in->reads_host_memory));
    CHECK(p->attaches == in->attaches);
    CHECK((p->n_transit >= 1) == bounces && p->n_transit <= p->n_host_frames);
    CHECK((bounces && p->n_kv_slots) == (p->n_bounce > 0) && p->n_bounce <= p->n_kv_slots);
    CHECK(!p->n_disk_frames || p->n_kv_slots);
    CHECK(!p->n_disk_frames || (p->disk_run && p->disk_run <= p->n_disk_frames));
    CHECK(!p->n_disk_frames == !p->info.disk_write_bytes);
    bool lower = false;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        lower |= p->residency[k].host < UINT32_MAX;
    CHECK(lower == (p->n_disk_frames > 0));
}

/* Where sessions share a pool, the frames suffice for any of their lengths. */
static void check_frames(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t *seed)
{
    int n = p->info.full_sessions < in->sessions ? 4 : 1;
    while (n--)
        n_of.quantized_below += check_life(p, in, seed) && in->quantizes;
}

static void check_counted(struct life *f, const uint64_t *plan, const uint64_t *before,
                          const char *what)
{
    const struct spw_stats s = counted(f);
    for (int i = 0; i < SPW_MOVED_COUNT && !f->e->plan.n_expert_frames; i++)
        CHECK_MSG(s.moved_bytes[i] - before[i] == plan[i],
                  "%s, link %d: planned %llu, counted %llu", what, i, (unsigned long long)plan[i],
                  (unsigned long long)(s.moved_bytes[i] - before[i]));
}

/* A prompt of the whole context, and its last token, beside other sessions that have their shares:
 * what the plan says of every link, counted. Which experts are missed nobody knows, and copies for
 * checkpoints are not in the account. */
static void check_account(struct spw_plan *plan, const struct spw_plan_input *in)
{
    struct life f;
    struct spw_stats before;
    spw_plan_count_moved(plan, in->weights);
    spw_plan_count_work(plan, in->weights);
    struct spw_plan without = *plan, *p = &without;
    p->n_checkpoints = p->n_disk_checkpoints = 0;
    p->info.disk.total = p->info.disk.kv;
    if (p->info.full_sessions < in->sessions)
        return; /* shares are others than those that the plan counts with */
    open_life(&f, p, in);
    for (uint32_t i = 1; i < in->sessions; i++)
        open_session(&f, i, in->context);
    for (int decode = 0; decode < (in->context > 1 ? 2 : 1); decode++) {
        const uint64_t before_last = in->context - 1;
        open_session(&f, 0, in->context);
        f.sessions[0]->is_last_step = true; /* nothing is fetched for a step that does not come */
        if (decode)
            run_step(&f, (const uint64_t[MOST_SESSIONS]){before_last});
        before = counted(&f);
        run_step(&f, (const uint64_t[MOST_SESSIONS]){in->context});
        check_counted(&f, decode ? p->info.decode_moved_bytes : p->info.prefill_moved_bytes,
                      before.moved_bytes, decode ? "decode" : "prefill");
        struct spw_waterlines w;
        spw_session_waterlines(f.sessions[0], &w);
        CHECK(!memcmp(&w, &p->info.waterlines, sizeof w));
        spw_session_close(f.sessions[0]);
        f.sessions[0] = NULL;
    }
    const struct spw_stats s = counted(&f);
    CHECK(s.device_peak_bytes == p->info.device.total && s.host_peak_bytes == p->info.host.total &&
          s.disk_peak_bytes == p->info.disk.total);
    close_life(&f);
}

/* The numbers in the weights of a token, from their bytes: these models have one type each. */
static void check_work(const struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_experts_config *x = &w->config->experts;
    const struct spw_type type = spw_type_of(w->matrices[0].type);
    uint64_t bytes[2] = {0, 0};
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++)
        bytes[u >= w->n_blocks] += w->blocks[u].matrix_bytes;
    if (x->n)
        bytes[0] += bytes[1] * x->n_kept / x->n;
    for (uint32_t i = 0; i < w->n_matrices; i++)
        if (w->matrices[i].type != w->matrices[0].type)
            return;
    CHECK(p->info.decode_weights == bytes[0] / type.bytes * type.elements);
    CHECK(p->info.decode_quantized_weights ==
          (spw_type_is_quantized(w->matrices[0].type) ? p->info.decode_weights : 0));
}

#endif
