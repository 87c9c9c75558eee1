/* The plan over drawn models' sizes, options and budgets: totals within budgets, regions apart, no
 * candidate cheaper, the smallest budgets exact to the page and named in the refusal, and enough
 * frames for every step of any life of the sessions, counted tile by tile.
 *
 *   test_plan [draws] */
#include "runtime/plan/budgets.h"
#include "tests/engine/plan_life.h"

enum { PAGE = 4096 };

/* Plans of each sort, so that none is missing from the draws. */
static struct {
    int disk, three; /* with a disk; with copies on the host too */
    int retains, no_retains, quantized_below, snapshot_rows;
    int pools, pools_on_disk; /* more sessions than full_sessions; */
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
    bool resident = spw_plan_block_resident(p, w, u), as_stored = true, aligned = true;
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
    bool from_disk = spw_plan_block_from_disk(p, w, u), direct = in->reads_host_memory && aligned;
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

/* Blocks that come from disk are spread over the others, and only the drive's link counts them. */
static void check_blocks(const struct spw_plan *p, const struct spw_plan_input *in,
                         const struct block_bytes *sum)
{
    const struct spw_weights *w = in->weights;
    uint64_t read = 0;
    uint32_t gap = 0, n_layers = 0;
    CHECK(p->page_cache_bytes == sum->kept && sum->n_from_disk <= p->n_disk_blocks);
    CHECK(!p->n_weight_slots || sum->most_slot <= p->weight_slot_bytes);
    CHECK((p->n_weight_bounce > 0) == (sum->n_bounce > 0) &&
          sum->most_bounce <= p->weight_bounce_bytes);
    for (uint32_t u = 0; u < w->n_blocks; u++) {
        bool from_disk = spw_plan_block_from_disk(p, w, u);
        read += from_disk ? w->blocks[u].read_bytes : 0;
        n_layers += from_disk && u < w->config->n_layers;
        gap = from_disk ? 0 : gap + !spw_plan_block_resident(p, w, u);
        CHECK(!sum->n_from_disk || gap <= spw_div_up(sum->n_streamed, p->n_disk_blocks));
    }
    CHECK(p->info.weights_disk_bytes == read && p->info.n_layers_from_disk == n_layers);
    n_of.blocks_from_disk += sum->n_from_disk > 0;
    n_of.blocks_bounced += sum->n_bounce > 0;
    n_of.both_kinds += sum->n_from_disk && sum->n_others;
}

static void check_layout(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const struct spw_model_config *c = in->weights->config;
    const struct spw_plan_device *d = &p->device;
    const struct spw_plan_host *h = &p->host;
    uint64_t e = spw_dtype_bytes(in->compute), m = p->chunk;
    struct block_bytes sum = {0};
    uint64_t q = 0, qkv = 0, wide = c->layer_inputs;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        q = spw_max_u64(q, spw_config_q_width(c, l));
        qkv = spw_max_u64(qkv, spw_config_qkv_width(c, l));
        wide = spw_max_u64(wide, spw_config_mlp_width(c, l));
    }
    uint64_t state = (q + 2 * c->n_heads) * 4,
             own = c->layer_inputs ? p->pass_rows + p->rows_beside : 0;
    uint64_t logits = (uint64_t)p->logits_rows * c->vocab * 4;
    uint64_t rows = p->hidden_on_host ? 2 * m : p->pass_rows;
    const struct spw_experts_config *x = &c->experts;
    uint64_t expert_rows = x->n ? p->pass_rows + p->rows_beside : 0,
             choices = expert_rows * x->n_kept;
    uint64_t mlp_width =
        spw_max_u64(wide, x->n ? spw_max_u64(x->intermediate, x->shared_intermediate) : 0);
    for (uint32_t u = 0; u < in->weights->n_blocks + in->weights->n_expert_blocks; u++)
        count_block(p, in, u, &sum);
    uint64_t weight_slots = p->n_weight_slots * p->weight_slot_bytes;
    uint64_t kv_slots = (uint64_t)p->n_kv_slots * p->slot_tiles * p->tile_bytes;
    struct region first[] = {
        {d->small, in->weights->n_small * 4},
        {d->workspace, in->workspace_bytes},
        {d->hidden, rows * p->hidden_row_bytes},
        {d->x, m * c->hidden * e},
        {d->codes, (m > p->logits_rows ? m : p->logits_rows) * in->codes_row_bytes},
        {d->qkv, m * qkv * e},
        {d->attention, m * q * e},
        {d->state, m * state},
        {d->split_states, (in->attention_tiles < 256 ? in->attention_tiles : 256) * state},
        {d->embedding, own * p->hidden_row_bytes},
        {d->inputs, own * p->inputs_row_bytes},
        {d->experts.x, expert_rows * p->hidden_row_bytes},
        {d->experts.y, choices * p->hidden_row_bytes},
        {d->experts.dense, x->beside ? expert_rows * p->hidden_row_bytes : 0},
        {d->experts.choices, choices * 8},
        {d->experts.places, choices * 4},
        {d->experts.index, choices * 4},
        {d->experts.addresses,
         p->finds_experts ? in->weights->n_expert_blocks * 3 * sizeof(void *) : 0},
        {d->experts.scores, x->n ? m * (x->n + 2) * 4 : 0},
        {d->rows, p->logits_rows * p->hidden_row_bytes},
        {d->logits, logits},
        {d->flags, 4},
        {d->weights, sum.copied},
        {d->weight_slots, weight_slots},
        {d->expert_frames, p->n_expert_frames * in->weights->expert_frame_bytes},
        {d->kv_frames, (uint64_t)p->n_device_frames * p->tile_bytes},
        {d->exact_frames, p->n_exact_frames * p->exact_tile_bytes},
        {d->kv_slots, kv_slots},
    };
    struct region mlp[] = {{d->x, m * c->hidden * e},
                           {d->codes, m * in->codes_row_bytes},
                           {d->gate_up, in->gated_scratch ? m * 2 * mlp_width * e : 0},
                           {d->gated, m * mlp_width * e},
                           {d->embedding, 0},
                           {d->rows, 0}};
    const struct spw_expert_shape shape = spw_plan_expert_shape(in->weights);
    struct region host[] = {
        {h->hidden, p->hidden_on_host ? p->pass_rows * p->hidden_row_bytes : 0},
        {h->staging, 2 * m * (p->hidden_row_bytes + p->inputs_row_bytes)},
        {h->logits, logits},
        {h->session_logits, (uint64_t)in->sessions * c->vocab * 4},
        {h->flags, 4},
        {h->experts.choices, choices * 8},
        {h->experts.places, choices * 4},
        {h->experts.index, choices * 4},
        {h->expert_tables, p->n_expert_frames ? 2 * spw_expert_residency_bytes(&shape) : 0},
        {h->packed, sum.packed},
        {h->weight_bounce, p->n_weight_bounce * p->weight_bounce_bytes},
        {h->expert_bounce, p->n_expert_bounce * in->weights->expert_frame_bytes},
        {h->kv_frames, (uint64_t)p->n_host_frames * p->tile_bytes},
        {h->bounce, (uint64_t)p->n_bounce * p->slot_tiles * p->tile_bytes},
    };
    check_apart(first, sizeof first / sizeof *first, d->end);
    check_apart(mlp, sizeof mlp / sizeof *mlp, d->weights);
    check_apart(host, sizeof host / sizeof *host, h->end);
    CHECK(p->mapped_bytes == sum.mapped);
    CHECK(d->end + sum.mapped <= in->device_bytes && h->end + sum.kept <= in->host_bytes);
    check_blocks(p, in, &sum);
    CHECK(p->info.host.total == h->end + p->page_cache_bytes);
    CHECK(p->slot_tiles && p->slot_tiles % SPW_SPLIT_TILES == 0 &&
          p->slot_tiles <= in->attention_tiles);
    CHECK(!in->prefetch_splits || p->slot_tiles == in->prefetch_splits * SPW_SPLIT_TILES);
    for (uint32_t u = 0; u < in->weights->n_blocks; u++)
        CHECK(in->weights->blocks[u].bytes <= p->weight_slot_bytes || !p->n_weight_slots);
    CHECK(p->finds_experts ==
          (x->n && !p->n_expert_frames && m >= x->n_kept && in->weights->experts_alike));
    const struct spw_plan_info *i = &p->info;
    CHECK(i->device.weights_resident + i->device.weights_slots + i->device.kv_resident +
              i->device.kv_slots + i->device.hidden + i->device.activations ==
          i->device.total);
    CHECK(i->host.kv + i->host.hidden + i->host.staging + i->host.disk_staging + i->host.weights ==
          i->host.total);
    CHECK(p->n_device_frames * p->tile_bytes + p->n_exact_frames * p->exact_tile_bytes <=
          i->device.kv_resident);
    CHECK(p->tile_bytes % PAGE == 0 && p->exact_tile_bytes % PAGE == 0);
    CHECK(p->tile_bytes <= p->exact_tile_bytes && (p->n_exact_frames > 0) == in->quantizes);
}

/* What lies between host and disk is there where it is needed, and nowhere else. */
static void check_disk(const struct spw_plan *p, const struct spw_plan_input *in)
{
    bool bounces = (p->n_disk_frames || in->attaches) && !in->reads_host_memory;
    CHECK(p->info.disk.total == (uint64_t)p->n_disk_frames * p->tile_bytes);
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
        n_of.quantized_below += check_life(p, in, seed) > 0;
}

/* What passes that end with one row of logits read of the model's files. */
static uint64_t read_of_files(const struct spw_plan *p, const struct spw_weights *w,
                              uint64_t n_passes)
{
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < w->n_blocks; u++)
        if (spw_plan_block_from_disk(p, w, u))
            bytes += w->blocks[u].read_bytes * (u < w->config->n_layers ? n_passes : 1);
    return bytes;
}

/* A prompt of the whole context: what the plan says of the disk, counted tile by tile. */
static void check_disk_account(struct spw_plan *p, const struct spw_plan_input *in)
{
    struct life f;
    struct spw_cut cut;
    uint64_t *prompt = p->info.prefill_moved_bytes, *step = p->info.decode_moved_bytes;
    uint64_t before = in->context - 1;
    CHECK(spw_traffic_info(p, in->weights, NULL) == 0);
    CHECK(spw_cut_init(&cut, p->chunk, spw_min_u64(p->pass_rows, in->context), 1) == 0);
    start_life(&f, p, in, 1);
    run_step(&f, &cut, &in->context);
    CHECK(prompt[SPW_MOVED_HOST_TO_DISK] == f.n_written_to_disk * p->tile_bytes);
    CHECK(prompt[SPW_MOVED_DISK_TO_HOST] ==
          f.n_read_from_disk * p->tile_bytes + read_of_files(p, in->weights, f.n_passes));
    start_life(&f, p, in, 1);
    run_step(&f, &cut, &before);
    f.n_written_to_disk = f.n_read_from_disk = f.n_passes = 0;
    run_step(&f, &cut, &in->context);
    CHECK(step[SPW_MOVED_HOST_TO_DISK] == f.n_written_to_disk * p->tile_bytes);
    CHECK(step[SPW_MOVED_DISK_TO_HOST] ==
          f.n_read_from_disk * p->tile_bytes + read_of_files(p, in->weights, f.n_passes));
    CHECK(f.n_passes == 1 && read_of_files(p, in->weights, 1) == p->info.weights_disk_bytes);
    spw_cut_free(&cut);
}

/* What a token computes: the bytes of its blocks without gaps, and routers in f32. All rows of
 * weights are short in these models. */
static void check_products(const struct spw_plan *p, const struct spw_weights *w)
{
    const struct spw_experts_config *x = &w->config->experts;
    uint64_t dense = 0, experts = 0, routers = 0;
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++)
        *(u < w->n_blocks ? &dense : &experts) += w->blocks[u].matrix_bytes;
    for (uint32_t l = 0; l < w->config->n_layers; l++)
        routers += w->config->has_experts[l] ? 4ull * x->n * w->config->hidden : 0;
    uint64_t of_dense = 0, of_experts = 0;
    for (int t = 0; t < SPW_WEIGHT_TYPES; t++) {
        const struct spw_decode_products *of = &p->info.decode_products_of[t];
        of_dense += of->dense.bytes;
        of_experts += of->experts.bytes;
        CHECK(of->dense.short_bytes == of->dense.bytes && !of->dense.n == !of->dense.bytes);
        CHECK(of->experts.short_bytes == of->experts.bytes && !of->experts.n == !of->experts.bytes);
    }
    CHECK(of_dense == dense + routers);
    CHECK(of_experts == (x->n ? experts * x->n_kept / x->n : 0));
    CHECK(p->info.decode_row_operations >= 3ull * w->config->n_layers + 1);
}

static void check_short_bytes(void)
{
    CHECK(spw_traffic_short_bytes(1000, 256) == 1000 && spw_traffic_short_bytes(1000, 768) == 1000);
    CHECK(spw_traffic_short_bytes(1000, 2048) == 0 && spw_traffic_short_bytes(1000, 8192) == 0);
    const uint64_t between = spw_traffic_short_bytes(1000, 1024); /* (2 - 1) / (8 / 3 - 1) */
    CHECK(between == 599 || between == 600);
}

/* ---- the size of a KV slot ---- */

/* What the plan chooses freely and pays for with memory that the cache could have had. */
static bool same_work(const struct spw_plan *a, const struct spw_plan *b)
{
    return a->chunk == b->chunk && a->logits_rows == b->logits_rows &&
           a->hidden_on_host == b->hidden_on_host && a->pass_rows == b->pass_rows &&
           !a->n_expert_frames == !b->n_expert_frames;
}

struct layer_cost {
    uint64_t all, hidden; /* bytes over the link, as the disk counts them */
};

/* What a layer's KV costs the link in a decode step, tile by tile; and of that, what the ring
 * brings up while a layer's weights are read: as far as it is not full, as there are tiles, and as
 * there is time. */
static struct layer_cost layer_cost(const struct spw_plan *p, const struct spw_plan_input *in,
                                    bool slides)
{
    struct layer_cost c = {0};
    const struct spw_residency *r =
        &p->residency[slides ? spw_plan_window_kind(p) : SPW_LAYER_FULL];
    uint64_t weights = 0, n = in->weights->config->n_layers;
    uint64_t ring = (uint64_t)p->n_kv_slots * p->slot_tiles;
    uint32_t tiles = p->full_tiles, stay = r->resident, copies;
    for (uint32_t l = 0; l < n; l++)
        weights += in->weights->blocks[l].bytes;
    copies = tiles - (in->context > p->chunk ? r->resident_pass : r->resident);
    if (slides) {
        uint32_t most = spw_waterline_window_tiles(r->window);
        tiles = tiles < most ? tiles : most;
        copies = tiles - stay;
    }
    for (uint32_t t = 0; t + stay < tiles; t++) {
        bool on_disk = copies > r->host && t < copies - r->host;
        uint64_t tile = p->tile_bytes * (on_disk && in->disk_cost ? in->disk_cost : 1);
        c.all += p->info.full_sessions * (tile + (t % p->slot_tiles ? 0 : in->transfer_cost_bytes));
        c.hidden += t < ring ? tile : 0;
    }
    uint64_t of_all = (uint64_t)p->info.full_sessions * (tiles - stay);
    for (uint64_t t = tiles - stay; t < of_all && t < ring; t++)
        c.hidden += p->tile_bytes; /* of the sessions behind the first one */
    if (in->reads_per_link_byte)
        c.hidden = spw_min_u64(c.hidden, weights / n / in->reads_per_link_byte);
    else
        c.hidden = 0;
    return c;
}

static uint64_t link_cost(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct layer_cost full = layer_cost(p, in, false), sliding = {0};
    if (spw_plan_n_windowed(p))
        sliding = layer_cost(p, in, true);
    return spw_plan_weights_cost(p, in) + p->n_readers[SPW_LAYER_FULL] * (full.all - full.hidden) +
           p->n_readers[spw_plan_window_kind(p)] * (sliding.all - sliding.hidden);
}

/* No other size, given by hand, would cost less. All but the slots and the tiles stays as it is. */
static void check_slots(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_plan_input with = *in;
    struct spw_error err = {0};
    struct spw_plan other;
    bool disk = p->n_disk_frames || in->attaches;
    if (in->prefetch_splits || !p->n_kv_slots || (disk && !in->prefetch_slots))
        return; /* with a disk the ring's depth follows the size of its slots */
    with.prefill_chunk = p->chunk;
    for (with.prefetch_splits = 1; with.prefetch_splits <= in->attention_tiles / 4;
         with.prefetch_splits++)
        if (!spw_plan_make(&other, &with, &err) && other.n_kv_slots && same_work(p, &other) &&
            other.n_resident_blocks == p->n_resident_blocks &&
            other.n_disk_blocks == p->n_disk_blocks && other.retains == p->retains &&
            !other.n_disk_frames == !p->n_disk_frames)
            CHECK_MSG(link_cost(p, in) <= link_cost(&other, in),
                      "%u tiles in a slot cost %llu, %u cost %llu", p->slot_tiles,
                      (unsigned long long)link_cost(p, in), other.slot_tiles,
                      (unsigned long long)link_cost(&other, in));
}

/* ---- all candidates ---- */

struct all {
    const struct spw_plan_input *in;
    struct spw_plan started, plan; /* what the search has found; */
    struct spw_plan_cost cost;     /* its cost */
    uint64_t *seed;
};

static bool lay_out(struct spw_plan *p, const struct all *a, const struct spw_plan_input *in,
                    const struct spw_candidate *c)
{
    *p = a->started;
    return spw_plan_lay_out(p, in, c);
}

/* Whether fewer blocks from disk would have done for as few passes. */
static bool fewer_from_disk(const struct all *a, const struct spw_candidate *cheap)
{
    struct spw_candidate c = *cheap;
    struct spw_plan p;
    for (int on_host = 0; on_host < 2; on_host++) {
        c.copies_on_host = on_host;
        for (c.n_disk = 0; c.n_disk < cheap->n_disk; c.n_disk++)
            if (lay_out(&p, a, a->in, &c))
                return true;
    }
    return false;
}

/* Nothing is cheaper, but for candidates that read more blocks from disk than they must. What fits
 * the budgets fits larger ones: the smallest budgets are found by halving. */
static void check_candidate(const struct all *a, const struct spw_candidate *c)
{
    struct spw_plan p;
    if (!lay_out(&p, a, a->in, c))
        return;
    n_of.candidates++;
    struct spw_plan_cost cost = spw_plan_cost(&p, a->in);
    CHECK_MSG(!spw_plan_cheaper(&cost, &a->cost) || fewer_from_disk(a, c),
              "chunk %u, hidden %d, %u blocks stay, %u from disk: cheaper", c->chunk, c->hidden,
              c->n_resident, c->n_disk);
    struct spw_plan_input more = *a->in;
    more.device_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    more.host_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    more.disk_bytes += check_range(a->seed, 0, 1 << check_range(a->seed, 0, 20));
    CHECK(lay_out(&p, a, &more, c));
}

/* Every candidate there is with these comforts and this chunk. */
static void check_chunk(const struct all *a, struct spw_candidate *c)
{
    uint64_t rows = spw_plan_most_rows(a->in), bytes = rows * a->started.hidden_row_bytes;
    const struct spw_model_config *m = a->in->weights->config;
    bool experts = a->in->weights->n_expert_blocks;
    bool pays = m->n_kv_layers < m->n_layers || m->layer_inputs; /* each row, with device memory */
    bool small = rows <= 2 * (uint64_t)c->chunk || bytes <= a->in->device_bytes / 32 || experts;
    for (int i = 0; i < (experts ? 24 : 12); i++) {
        c->experts_move = i >= 12;
        c->hidden = (enum spw_plan_hidden)(i / 4 % 3);
        c->kv_stays = i % 2;
        c->copies_on_host = i / 2 % 2;
        if ((c->hidden == SPW_HIDDEN_ON_DEVICE && !small && !pays) ||
            (c->hidden == SPW_HIDDEN_ON_HOST && (experts || pays)))
            continue;
        const bool divides = c->hidden == (pays ? SPW_HIDDEN_ON_DEVICE : SPW_HIDDEN_ON_HOST);
        uint32_t most = spw_plan_most_passes(a->in, c->chunk);
        c->passes = 1;
        while (divides && c->passes < most && check_random(a->seed) % 2)
            c->passes *= 2;
        for (c->n_resident = 0; c->n_resident <= a->in->weights->n_blocks; c->n_resident++)
            for (c->n_disk = 0; c->n_disk <= a->in->weights->n_blocks - c->n_resident; c->n_disk++)
                check_candidate(a, c);
    }
}

static void check_cheapest(const struct spw_plan_input *in, uint64_t *seed)
{
    struct all a = {.in = in, .seed = seed};
    struct spw_candidate chosen, c = spw_plan_narrow(in);
    struct spw_plan_chunks chunks = spw_plan_chunks(in);
    uint64_t logits = (uint64_t)16 * in->weights->config->vocab * 4;
    spw_plan_start(&a.started, in);
    spw_plan_search(&a.plan, &chosen, in);
    a.cost = spw_plan_cost(&a.plan, in);
    a.started.logits_rows = chosen.logits_rows;
    CHECK_MSG(!fewer_from_disk(&a, &chosen), "%u blocks from disk", chosen.n_disk);
    for (int i = 0; i < 4; i++) {
        c.retains = i % 2;
        c.logits_rows = in->sessions;
        if (i / 2 && logits <= in->device_bytes / 32)
            c.logits_rows = spw_max_u32(16, in->sessions);
        a.started.logits_rows = c.logits_rows;
        for (c.chunk = chunks.least; c.chunk <= chunks.most; c.chunk *= 2)
            if (!c.retains || spw_plan_may_retain(&a.started, in))
                check_chunk(&a, &c);
    }
}

/* ---- draws ---- */

enum { DEVICE = SPW_BUDGET_DEVICE, HOST = SPW_BUDGET_HOST, DISK = SPW_BUDGET_DISK };

static uint64_t *budget_of(struct spw_plan_input *in, int tier)
{
    uint64_t *const budgets[SPW_BUDGETS] = {&in->device_bytes, &in->host_bytes, &in->disk_bytes};
    return budgets[tier];
}

static uint64_t smallest_of(const struct spw_plan_info *i, int tier)
{
    const uint64_t least[SPW_BUDGETS] = {i->smallest_device_bytes, i->smallest_host_bytes,
                                         i->smallest_disk_bytes};
    return least[tier];
}

/* At the smallest budget the plan works; a page less is refused by its name. */
static void check_smallest(const struct spw_plan_input *in, int tier)
{
    struct spw_plan_input with = *in;
    struct spw_error err = {0};
    struct spw_plan_info info;
    struct spw_plan p;
    const char *name = spw_budget_names[tier].memory;
    char number[32];
    spw_plan_smallest(&info, in);
    uint64_t bytes = smallest_of(&info, tier);
    spw_bytes_text(number, bytes);
    if (bytes ||
        tier != DISK) { /* a disk of nothing is no disk, and KV may lie on the host again */
        *budget_of(&with, tier) = bytes;
        CHECK_MSG(spw_plan_make(&p, &with, &err) == 0, "%s", err.text);
    }
    if (bytes < 2 * PAGE)
        return;
    *budget_of(&with, tier) = bytes - PAGE;
    CHECK(spw_plan_make(&p, &with, &err) == -ENOMEM);
    CHECK_MSG(strstr(err.text, number) && strstr(err.text, name), "%s does not name %s", err.text,
              number);
    CHECK(smallest_of(&p.info, tier) == bytes);
}

/* A plan with these budgets of the refusal: the ones that it names, and the given ones. */
static int make_with(const struct spw_plan_input *in, const struct spw_error *refused, int tiers)
{
    struct spw_plan_input with = *in;
    struct spw_plan p;
    for (int tier = 0; tier < SPW_BUDGETS; tier++)
        if (tiers & 1 << tier)
            *budget_of(&with, tier) = refused->budgets[tier].smallest_bytes;
    return spw_plan_make(&p, &with, NULL);
}

/* Several budgets are too small at once. A refusal names those that do, one of them alone or all
 * that are too small together, and with them there is a plan. */
static void check_advice(const struct spw_plan_input *in, uint64_t *seed)
{
    struct spw_plan_input with = *in;
    struct spw_error err = {0};
    struct spw_plan p;
    char number[32];
    int any = 0, lacking = 0;
    for (int tier = 0; tier < SPW_BUDGETS; tier++) {
        uint64_t *bytes = budget_of(&with, tier);
        *bytes =
            *bytes && check_random(seed) % 4 ? check_range(seed, tier == DISK, *bytes) : *bytes;
    }
    if (!spw_plan_make(&p, &with, &err))
        return;
    CHECK(err.refuses_budgets);
    for (int tier = 0; tier < SPW_BUDGETS; tier++) {
        any |= err.budgets[tier].alone << tier;
        lacking |= (err.budgets[tier].given_bytes < err.budgets[tier].smallest_bytes) << tier;
    }
    n_of.together += !any;
    for (int tier = 0; tier < SPW_BUDGETS; tier++) {
        if (!((any ? any : lacking) & 1 << tier))
            continue;
        spw_bytes_text(number, err.budgets[tier].smallest_bytes);
        CHECK_MSG(strstr(err.text, number) && strstr(err.text, spw_budget_names[tier].option),
                  "%s does not name %s of %s", err.text, spw_budget_names[tier].option, number);
        CHECK_MSG(make_with(&with, &err, any ? 1 << tier : lacking) == 0, "no plan with what %s",
                  err.text);
    }
}

/* The smallest one, or more, up to about what the whole cache takes, or on the host the weights. */
static void draw_budget(struct spw_plan_input *in, int tier, uint64_t *seed)
{
    const struct spw_model_config *c = in->weights->config;
    uint64_t tile = spw_tile_bytes(c->kv[SPW_LAYER_FULL].n_heads, c->kv[SPW_LAYER_FULL].head_dim,
                                   in->kv),
             more = 0;
    uint64_t all = in->sessions * c->n_layers * (in->context / SPW_TILE_TOKENS + 1) * tile;
    struct spw_plan_info info;
    spw_plan_smallest(&info, in);
    if (tier == HOST && check_random(seed) % 4 == 0) {
        all = 0;
        for (uint32_t u = 0; u < in->weights->n_blocks; u++)
            all += in->weights->blocks[u].bytes;
    }
    if (check_random(seed) % 4)
        more = check_range(seed, 0, check_random(seed) % 4 ? all / (tier == DEVICE ? 4 : 1) : tile);
    *budget_of(in, tier) = spw_max_u64(smallest_of(&info, tier), tier == DISK ? PAGE : 0) + more;
}

/* A limit below what the plan may write is refused with both numbers. */
static void check_write_limit(const struct spw_plan *p, const struct spw_plan_input *in)
{
    struct spw_plan_input with = *in;
    struct spw_error err = {0};
    struct spw_plan limited;
    char texts[2][32], text[96];
    if (!p->info.disk_write_bytes)
        return;
    with.disk_write_limit = p->info.disk_write_bytes;
    CHECK(spw_plan_make(&limited, &with, &err) == 0);
    with.disk_write_limit--;
    CHECK(spw_plan_make(&limited, &with, &err) == -EDQUOT);
    const char *written = spw_bytes_text(texts[0], p->info.disk_write_bytes);
    const char *given = spw_bytes_text(texts[1], with.disk_write_limit);
    if (!strcmp(given, written)) /* both are rounded up */
        snprintf(texts[1], 32, "%llu bytes", (unsigned long long)with.disk_write_limit);
    snprintf(text, sizeof text, "disk write limit: %s given,", given);
    CHECK_MSG(strstr(err.text, text), "%s, not %s", err.text, text);
    snprintf(text, sizeof text, " writes up to %s;", written);
    CHECK_MSG(strstr(err.text, text), "%s, not %s", err.text, text);
}

/* More memory of any kind never turns a plan that works into one that does not, and more
 * on the host never takes more from the disk. */
static void check_more(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t *seed)
{
    struct spw_plan last = *p, more;
    struct spw_error err = {0};
    for (int tier = DEVICE; tier < SPW_BUDGETS; tier++) {
        struct spw_plan_input with = *in;
        if (tier == DISK && !in->disk_bytes)
            continue;
        for (int i = 0; i < 8; i++) {
            *budget_of(&with, tier) += check_range(seed, 1, 1 << check_range(seed, 0, 20));
            CHECK_MSG(spw_plan_make(&more, &with, &err) == 0, "%s", err.text);
            if (tier != HOST || !same_work(&more, &last) || more.n_kv_slots != last.n_kv_slots ||
                more.slot_tiles != last.slot_tiles || more.retains != last.retains ||
                more.n_resident_blocks != last.n_resident_blocks) /* others lie on the host */
                continue;
            CHECK(more.n_disk_blocks <= last.n_disk_blocks);
            /* weights first: a block more on the host may cost the tiles some of it */
            CHECK(more.n_disk_blocks != last.n_disk_blocks ||
                  (more.residency[SPW_LAYER_FULL].host >= last.residency[SPW_LAYER_FULL].host &&
                   more.residency[spw_plan_window_kind(&more)].host >=
                       last.residency[spw_plan_window_kind(&last)].host));
            last = more;
        }
    }
}

/* Sessions that are to go back can where there is memory, and where it is little that they take. */
static void check_holds(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t *seed)
{
    struct spw_plan_input with = *in;
    struct spw_plan large;
    bool needed = spw_plan_n_windowed(p) || in->quantizes;
    with.device_bytes = (uint64_t)1 << 40;
    CHECK(!p->retains || in->rolls_back);
    CHECK(p->info.rolls_back == (p->retains || !needed));
    struct spw_error err = {0};
    int rc = spw_plan_make(&large, &with, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    CHECK(large.retains == in->rolls_back);
    check_frames(&large, &with, seed);
    n_of.retains += p->retains && needed;
    n_of.no_retains += in->rolls_back && !p->retains;
}

/* Passes of fewer rows need fewer hidden states: the plan for longer passes fits for them, too, and
 * the plan that was chosen for them costs no more. */
static void check_kept_rows(const struct spw_plan_input *in, uint64_t *seed)
{
    struct spw_plan_input with = *in;
    struct spw_plan all, some, same;
    struct spw_candidate of_all, of_some;
    struct spw_plan_info info;
    with.has_snapshots = true;
    with.disk_bytes = 0;
    with.host_bytes = (uint64_t)1 << 40;
    with.prefill_chunk = in->prefill_chunk ? in->prefill_chunk : 16;
    spw_plan_smallest(&info, &with);
    with.device_bytes = info.smallest_device_bytes;
    for (uint32_t u = 0; u < in->weights->n_blocks; u++)
        with.device_bytes += check_range(seed, 0, in->weights->blocks[u].bytes);
    spw_plan_search(&all, &of_all, &with);
    with.snapshot_rows = check_range(seed, 1, in->context);
    spw_plan_search(&some, &of_some, &with);
    if (all.pass_rows > all.chunk && spw_plan_most_rows(&with) > all.chunk) {
        spw_plan_start(&same, &with);
        same.logits_rows = of_all.logits_rows;
        CHECK(spw_plan_lay_out(&same, &with, &of_all));
        struct spw_plan_cost cost = spw_plan_cost(&same, &with),
                             least = spw_plan_cost(&some, &with);
        CHECK_MSG(!spw_plan_cheaper(&cost, &least), "%u blocks stay, not %u, in %llu rows",
                  some.n_resident_blocks, same.n_resident_blocks,
                  (unsigned long long)with.snapshot_rows);
        n_of.shorter++;
    }
    n_of.snapshot_rows +=
        all.n_resident_blocks > 0 && all.n_resident_blocks < in->weights->n_blocks;
}

/* One session, and as much memory as it likes but for the device. */
static struct spw_plan_input start_input(const struct spw_model *model, uint64_t context)
{
    return (struct spw_plan_input){.weights = model->weights,
                                   .compute = model->compute,
                                   .kv = model->cache.kv,
                                   .context = context,
                                   .sessions = 1,
                                   .host_bytes = (uint64_t)1 << 32};
}

static void run_draw(const struct spw_model *model, uint64_t *seed)
{
    static const uint32_t chunks[] = {0, 0, 0, 1, 16, 100, 128, 333};
    static const uint32_t splits[] = {0, 0, 0, 1, 2, 8};
    struct spw_plan p;
    struct spw_error err = {0};
    struct spw_plan_input in = {
        .weights = model->weights,
        .compute = model->compute,
        .kv = model->cache.kv,
        .context = check_range(seed, 1, 4096),
        .sessions = (uint32_t)check_range(seed, 1, MOST_SESSIONS),
        .prefill_chunk = chunks[check_random(seed) % 8],
        .prefetch_slots = (uint32_t)check_range(seed, 0, 4),
        .prefetch_splits = splits[check_random(seed) % 6],
        .transfer_cost_bytes = (uint64_t)1 << check_range(seed, 0, 24),
        .reads_per_link_byte = (uint32_t)check_range(seed, 0, 5),
        .device_bytes = 0,
        .host_bytes = (uint64_t)1 << 32,
        .disk_bytes = check_random(seed) % 3 ? (uint64_t)1 << 32 : 0,
        .disk_ring_bytes = (uint64_t)1 << check_range(seed, 0, 24),
        .disk_cost = (uint32_t)check_range(seed, 0, 20),
        .attaches = check_random(seed) % 4 == 0,
        .rolls_back = check_random(seed) % 2,
        .workspace_bytes = check_range(seed, 0, 1 << 18),
        .attention_tiles = 4 * (uint32_t)check_range(seed, 1, check_range(seed, 0, 7) ? 64 : 224),
        .codes_row_bytes = check_random(seed) % 2 ? 320 * check_range(seed, 1, 40) : 0,
        .gated_scratch = check_random(seed) % 2,
        .reads_host_memory = check_random(seed) % 2};
    if (model->cache.layers[SPW_LAYER_FULL].n_layers && check_random(seed) % 2) {
        in.quantizes = true;
        in.precision = (enum spw_kv_precision)(check_random(seed) % 4);
        in.residual_tiles = (uint32_t)check_range(seed, 0, check_random(seed) % 2 ? 2 : 12);
        uint64_t block = spw_residual_block(in.context);
        if (block > 2 && check_random(seed) % 4 == 0)
            in.residual_tiles = (uint32_t)block - 2; /* one tile of each layer is old */
    }
    if (check_random(seed) % 2)
        in.full_sessions = (uint32_t)check_range(seed, 1, spw_max_u32(in.sessions - 1, 1));
    in.prefetch_splits = (uint32_t)spw_min_u64(in.prefetch_splits, in.attention_tiles / 4);
    for (int tier = DEVICE; tier < SPW_BUDGETS; tier++) {
        if (tier == DISK && !in.disk_bytes)
            continue;
        check_smallest(&in, tier);
        if (tier == DEVICE || in.disk_bytes || check_random(seed) % 2)
            draw_budget(&in, tier, seed);
    }
    CHECK_MSG(spw_plan_make(&p, &in, &err) == 0, "%s", err.text);
    check_advice(&in, seed);
    check_kept_rows(&in, seed);
    check_cheapest(&in, seed);
    check_layout(&p, &in);
    check_disk(&p, &in);
    check_frames(&p, &in, seed);
    check_disk_account(&p, &in);
    check_products(&p, in.weights);
    check_slots(&p, &in);
    check_write_limit(&p, &in);
    check_more(&p, &in, seed);
    n_of.disk += p.n_disk_frames > 0;
    n_of.pools += p.info.full_sessions < in.sessions;
    n_of.pools_on_disk += p.info.full_sessions < in.sessions && p.n_disk_frames > 0;
    check_holds(&p, &in, seed);
    n_of.three += p.n_disk_frames > 0 && p.n_host_frames > p.n_transit;
}

/* More device memory never makes a step cost the link more, as long as it is not spent on larger
 * work buffers (at the border where the plan takes a larger chunk, decode may lose a little), and
 * but for what does not divide evenly: when one more weight block fits, all layers may lose a tile,
 * which may take a transfer of its own. */
static void check_monotone(const struct spw_model *model, uint64_t *seed)
{
    struct spw_plan_info info = {0};
    struct spw_plan p, last;
    struct spw_error err = {0};
    struct spw_plan_input in = start_input(model, check_range(seed, 1, 4096));
    in.prefill_chunk = check_random(seed) % 2 ? 64 : 0;
    in.transfer_cost_bytes = (uint64_t)1 << check_range(seed, 0, 24);
    in.reads_per_link_byte = (uint32_t)check_range(seed, 0, 5);
    uint64_t cost, least = 0;
    spw_plan_smallest(&info, &in);
    in.device_bytes = info.smallest_device_bytes;
    for (int i = 0; i < 30; i++) {
        CHECK(spw_plan_make(&p, &in, &err) == 0);
        cost = spw_plan_step_cost(&p, &in);
        if (i && same_work(&p, &last) && p.slot_tiles == last.slot_tiles)
            CHECK_MSG(cost <= least + p.n_slices[SPW_LAYER_FULL] *
                                          (p.tile_bytes + in.transfer_cost_bytes),
                      "context %llu, chunk %u: a step costs %llu on a device of %llu, not %llu",
                      (unsigned long long)in.context, p.chunk, (unsigned long long)cost,
                      (unsigned long long)in.device_bytes, (unsigned long long)least);
        least = cost;
        last = p;
        in.device_bytes += check_range(seed, 0, 1 << check_range(seed, 12, 18));
    }
}

/* A little less than everything: then a little KV streams, and no weight block with its slots.
 */
static void check_little_less(const struct spw_model *model, uint64_t *n_checked, uint64_t *seed)
{
    struct spw_plan all, p;
    struct spw_error err = {0};
    struct spw_plan_input in = start_input(model, check_range(seed, 1024, 4096));
    in.prefill_chunk = 64;
    in.attention_tiles = 32;
    in.device_bytes = (uint64_t)1 << 32;
    CHECK(spw_plan_make(&all, &in, &err) == 0);
    uint64_t tile = all.tile_bytes, slots = 3 * SPW_SPLIT_TILES;
    uint64_t window = spw_waterline_window_tiles(all.residency[spw_plan_window_kind(&all)].window),
             extra = all.new_frames + 1;
    uint64_t passing = spw_plan_n_windowed(&all) * window +
                       all.layer_slices[SPW_LAYER_FULL] * all.max_tiles +
                       all.n_slices[SPW_LAYER_FULL] + extra + slots;
    if (!all.n_slices[SPW_LAYER_FULL] || all.n_device_frames <= passing)
        return;
    uint64_t less = check_range(seed, 1, (all.n_device_frames - passing) * tile);
    in.device_bytes = all.device.end - less;
    CHECK(spw_plan_make(&p, &in, &err) == 0 && spw_traffic_info(&p, model->weights, NULL) == 0);
    if (p.device.weights > all.device.weights)
        return;
    uint64_t most = less +
                    (slots + extra + p.n_slices[SPW_LAYER_FULL] + spw_plan_n_windowed(&p)) * tile +
                    4 * PAGE;
    CHECK_MSG(p.info.decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE] <= most,
              "context %llu, %llu bytes less than everything: %llu move in decode",
              (unsigned long long)in.context, (unsigned long long)less,
              (unsigned long long)p.info.decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE]);
    *n_checked += 1;
}

static void open_model(struct spw_model *model, char dir[128], const struct tiny_model *tiny,
                       enum spw_dtype compute)
{
    struct spw_error err = {0};
    struct spw_options o = {.threads = 1, .compute = compute};
    run_folder(dir, tiny, "plan");
    CHECK_MSG(spw_model_open(model, dir, &o, &err) == 0, "%s", err.text);
}

static void close_model(struct spw_model *model, const char *dir)
{
    spw_model_close(model);
    tiny_model_remove(dir);
}

/* Of a model whose layers are large beside its tiles. */
static void check_large_blocks(uint64_t *seed)
{
    static const struct tiny_model large = {.family = "llama",
                                            .layers = 3,
                                            .hidden = 128,
                                            .intermediate = 4096,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .head_dim = 32,
                                            .vocab = 64,
                                            .positions = 4096,
                                            .more = "",
                                            .stored = TINY_BF16,
                                            .seed = 1};
    char dir[128];
    struct spw_model model;
    uint64_t n_checked = 0;
    open_model(&model, dir, &large, SPW_DTYPE_AUTO);
    for (int i = 0; i < 50; i++)
        check_little_less(&model, &n_checked, seed);
    CHECK(n_checked > 0);
    close_model(&model, dir);
}

/* Sliding layers whose tokens take twice the bytes of those of full layers, as in gemma4 31B: each
 * kind takes the bytes of its own shape. */
static void check_shapes(int draws, uint64_t *seed)
{
    static const struct tiny_model shapes = {.family = "gemma4_text",
                                             .layers = 4,
                                             .hidden = 32,
                                             .intermediate = 32,
                                             .heads = 4,
                                             .kv_heads = 4,
                                             .head_dim = 64,
                                             .vocab = 64,
                                             .positions = 4096,
                                             .more = ",\"sliding_window\":300",
                                             .stored = TINY_BF16,
                                             .seed = 2,
                                             .full_heads = 1,
                                             .full_head_dim = 128,
                                             .v_is_k = true};
    enum { CONTEXT = 4096, WINDOW_TILES = 4, N_OF_KIND = 2, TILE = 2 * 128 * 128 * 2 };
    char dir[128];
    struct spw_model model;
    struct spw_plan p;
    struct spw_error err = {0};
    open_model(&model, dir, &shapes, SPW_DTYPE_AUTO);
    struct spw_plan_input in = start_input(&model, CONTEXT);
    in.prefill_chunk = 64, in.attention_tiles = 32, in.device_bytes = (uint64_t)1 << 32;
    CHECK(spw_plan_make(&p, &in, &err) == 0 && p.tile_bytes == TILE);
    CHECK(p.info.kv_bytes_per_token == N_OF_KIND * TILE / SPW_TILE_TOKENS);
    uint64_t tiles = N_OF_KIND * (CONTEXT / SPW_TILE_TOKENS + 2 * WINDOW_TILES) + p.new_frames;
    CHECK_MSG(p.n_device_frames == tiles, "%u frames, not %llu", p.n_device_frames,
              (unsigned long long)tiles);
    for (int i = 0; i < draws / N_TINY_MODELS; i++) {
        run_draw(&model, seed);
        check_monotone(&model, seed);
    }
    close_model(&model, dir);
}

/* A pass needs all experts, a row two of 32: one pass of 2,048 rows saves more reads than the
 * frames of its buffers do. */
static void check_passes_of_experts(void)
{
    static const struct tiny_model mixture = {
        .family = "qwen3_moe",
        .layers = 4,
        .hidden = 64,
        .intermediate = 64,
        .heads = 2,
        .kv_heads = 1,
        .head_dim = 32,
        .vocab = 64,
        .positions = 4096,
        .more = ",\"num_experts\":32,\"num_experts_per_tok\":2,\"moe_intermediate_size\":512",
        .qk_norm = true,
        .stored = TINY_BF16,
        .seed = 3,
        .experts = 32,
        .expert_width = 512};
    enum { CONTEXT = 2048 };
    char dir[128];
    struct spw_model model;
    struct spw_plan_info info;
    struct spw_plan p;
    struct spw_error err = {0};
    open_model(&model, dir, &mixture, SPW_DTYPE_AUTO);
    struct spw_plan_input in = start_input(&model, CONTEXT);
    in.prefill_chunk = 512, in.attention_tiles = 32;
    spw_plan_smallest(&info, &in);
    in.device_bytes = info.smallest_device_bytes +
                      model.weights->n_expert_blocks / 2 * model.weights->expert_frame_bytes;
    CHECK(spw_plan_make(&p, &in, &err) == 0 && p.n_expert_frames);
    CHECK_MSG(p.pass_rows == CONTEXT, "%llu rows of a pass", (unsigned long long)p.pass_rows);
    close_model(&model, dir);
}

/* More rows than 2^31 passes of one chunk. */
static void check_many_rows(void)
{
    struct spw_options o = {.threads = 1};
    struct spw_model model;
    struct spw_error err = {0};
    struct spw_candidate chosen;
    struct spw_plan p;
    CHECK(spw_model_open(&model, "tests/golden/gemma4_inputs", &o, &err) == 0);
    struct spw_plan_input in = start_input(&model, (uint64_t)1 << 24);
    in.sessions = 256;
    in.prefill_chunk = 1;
    in.attention_tiles = 32;
    in.device_bytes = (uint64_t)1 << 62;
    spw_plan_search(&p, &chosen, &in);
    CHECK(p.pass_rows);
    spw_model_close(&model);
}

static void run_draws(int draws, uint64_t *seed)
{
    for (int i = 0; i < N_TINY_MODELS; i++) {
        char dir[128];
        struct spw_model model;
        /* One of them stored in another type than it is computed with. */
        open_model(&model, dir, &tiny_models[i], i == 3 ? SPW_DTYPE_BF16 : SPW_DTYPE_AUTO);
        for (int k = 0; k < draws / N_TINY_MODELS; k++) {
            run_draw(&model, seed);
            check_monotone(&model, seed);
        }
        close_model(&model, dir);
    }
}

int main(int argc, char **argv)
{
    int draws =
        argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 60 : 300);
    uint64_t seed = check_seed();
    run_draws(draws, &seed);
    /* One of 60 plans has blocks from disk beside others: 300 draws may well have none. */
    for (int more = draws; draws >= 300 && !n_of.both_kinds && draws < 4 * more; draws += more)
        run_draws(more, &seed);
    check_shapes(draws, &seed);
    check_large_blocks(&seed);
    check_short_bytes();
    check_passes_of_experts();
    check_many_rows();
    printf("%d plans of %llu candidates; %d with a disk, %d with copies on the host too; %d with "
           "weights from disk, %d beside others, %d by way of the host; %d that retain tiles, %d "
           "that do not; %d "
           "of few rows beside streamed weights, %d with shorter passes; %d of a pool, %d of these "
           "with a disk\n",
           draws, (unsigned long long)n_of.candidates, n_of.disk, n_of.three, n_of.blocks_from_disk,
           n_of.both_kinds, n_of.blocks_bounced, n_of.retains, n_of.no_retains, n_of.snapshot_rows,
           n_of.shorter, n_of.pools, n_of.pools_on_disk);
    if (draws >= 300) {
        CHECK(n_of.quantized_below > 20 && n_of.snapshot_rows > 5 && n_of.shorter > 5);
        CHECK(n_of.retains > 2 && n_of.no_retains > 10);
        CHECK(n_of.both_kinds && n_of.blocks_bounced &&
              n_of.blocks_bounced < n_of.blocks_from_disk);
        CHECK(n_of.pools > draws / 10 && n_of.pools_on_disk > 2 && n_of.together > 2);
        CHECK(n_of.disk > draws / 10 && n_of.three > draws / 60);
    }
    return check_done();
}
