/* The plan over drawn models' sizes, options and budgets: totals within budgets, regions apart, no
 * candidate cheaper, the smallest budgets exact to the page and named in the refusal, and enough
 * frames for every step of any life of the sessions, on the dry device. plan_layout.h checks
 * one plan, plan_choices.h compares it with others, plan_life.h lets sessions live under it.
 *
 *   test_plan [draws] */
#include "runtime/plan/budgets.h"
#include "tests/engine/oracle.h"
#include "tests/engine/plan_choices.h"

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
    uint64_t tile = spw_tile_bytes(c->kv[SPW_LAYER_FULL].n_heads,
                                   spw_tile_square(c->kv[SPW_LAYER_FULL].head_dim), in->kv),
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

/* The refusal has both numbers, and budgets with which a plan writes less. */
static void check_write_refusal(const struct spw_plan *p, const struct spw_plan_input *in,
                                const struct spw_plan *refused, const char *says)
{
    char texts[2][32], text[96];
    const char *written = spw_bytes_text(texts[0], p->info.disk_write_bytes);
    const char *given = spw_bytes_text(texts[1], in->disk_write_limit);
    if (!strcmp(given, written)) /* both are rounded up */
        snprintf(texts[1], 32, "%llu bytes", (unsigned long long)in->disk_write_limit);
    snprintf(text, sizeof text, "disk write limit: %s given,", given);
    CHECK_MSG(strstr(says, text), "%s, not %s", says, text);
    snprintf(text, sizeof text, " writes up to %s;", written);
    CHECK_MSG(strstr(says, text), "%s, not %s", says, text);
    CHECK_MSG(strstr(says, "options.host_bytes to "), "%s", says);
    for (int tier = DEVICE; tier <= HOST; tier++) {
        struct spw_plan_input more = *in;
        struct spw_plan limited;
        if (!strstr(says, tier == DEVICE ? "device_bytes to " : "host_bytes to "))
            continue;
        *budget_of(&more, tier) = smallest_of(&refused->info, tier);
        CHECK_MSG(spw_plan_make(&limited, &more, NULL) == 0, "%s", says);
    }
}

/* Under a limit that is less than what the plan may write, another plan writes less, or none. */
static void check_write_limit(const struct spw_plan *p, const struct spw_plan_input *in)
{
    const uint64_t most = p->info.disk_write_bytes, limits[] = {most, most - 1, most / 2};
    for (int i = 0; most && i < 3; i++) {
        struct spw_plan_input with = *in;
        struct spw_error err = {0};
        struct spw_plan limited;
        with.disk_write_limit = limits[i];
        const int rc = spw_plan_make(&limited, &with, &err);
        CHECK_MSG(rc == 0 || (i && rc == -EDQUOT), "%d: %s", rc, err.text);
        if (rc)
            check_write_refusal(p, &with, &limited, err.text);
        else
            CHECK(limited.info.disk_write_bytes <= limits[i]);
        n_of.limited += i && !rc;
        n_of.limited_refused += rc != 0;
    }
}

/* More memory of any kind never turns a plan that works into one that does not, and more
 * on the host never takes more from the disk, but for a checkpoint. */
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
                more.n_resident_blocks != last.n_resident_blocks ||
                more.states_stay != last.states_stay) /* others lie on the host */
                continue;
            /* weights first, then all tiles if they fit, then checkpoints (count_checkpoints of
             * plan_layout.c), then tiles beside the disk: what one of them gets more of may cost
             * the next ones some of the host */
            const bool all_came = last.n_disk_frames && !more.n_disk_frames;
            CHECK(more.n_disk_blocks <= last.n_disk_blocks);
            if (more.n_disk_blocks == last.n_disk_blocks) {
                CHECK(last.n_disk_frames || !more.n_disk_frames);
                CHECK(all_came || more.n_checkpoints >= last.n_checkpoints);
                CHECK(more.n_checkpoints != last.n_checkpoints ||
                      (more.residency[SPW_LAYER_FULL].host >= last.residency[SPW_LAYER_FULL].host &&
                       more.residency[more.window_kind].host >=
                           last.residency[last.window_kind].host));
            }
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
    const bool checkpoints = p->info.n_checkpoints >= 2 * in->sessions;
    CHECK(p->info.rolls_back == ((p->retains || !needed) && (checkpoints || !p->n_states)));
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
        .draft_rows = check_random(seed) % 3 ? 0 : 16,
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
    check_account(&p, &in);
    check_work(&p, in.weights);
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
    uint64_t window = spw_waterline_window_tiles(all.residency[all.window_kind].window),
             extra = all.new_frames + 1;
    uint64_t passing = spw_plan_n_windowed(&all) * window +
                       all.layer_slices[SPW_LAYER_FULL] * all.max_tiles +
                       all.n_slices[SPW_LAYER_FULL] + extra + slots;
    if (!all.n_slices[SPW_LAYER_FULL] || all.n_device_frames <= passing)
        return;
    uint64_t less = check_range(seed, 1, (all.n_device_frames - passing) * tile);
    in.device_bytes = all.device.end - less;
    CHECK(spw_plan_make(&p, &in, &err) == 0);
    spw_plan_count_moved(&p, model->weights);
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
    life_model = model;
}

static void close_model(struct spw_model *model, const char *dir)
{
    spw_model_close(model);
    tiny_model_remove(dir);
}

/* Of a model whose layers are large beside its tiles. */
static void check_large_blocks(uint64_t *seed)
{
    static const struct tiny_model large = {TINY("llama", 3, 128, 4096, 2, 1, 32, 64, 4096),
                                            .more = "", .stored = TINY_BF16, .seed = 1};
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
    static const struct tiny_model shapes = {TINY("gemma4_text", 4, 32, 32, 4, 4, 64, 64, 4096),
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
    for (int i = 0; i < draws / TINY_STATES; i++) {
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
        TINY("qwen3_moe", 4, 64, 64, 2, 1, 32, 64, 4096),
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

/* Layers with quantized weights, some of which the host multiplies where rows are few: what a
 * prompt and a token move, by the account and counted by the engine. A third of the models are
 * drawn from all families that a GGUF file can have. */
static void check_host_layers(uint32_t draws, uint64_t *seed)
{
    static const struct tiny_model families[] = {
        {TINY("llama", 5, 256, 256, 2, 1, 32, 64, 4096), .stored = TINY_QUANTIZED, .seed = 5},
        {TINY("qwen2", 4, 64, 96, 2, 1, 32, 64, 4096), .bias = true, .stored = TINY_QUANTIZED,
         .seed = 6}};
    uint64_t n_on_host = 0, n_split = 0, n_prompts = 0;
    for (uint32_t i = 0; i < draws || (draws >= 20 && !(n_split && n_prompts) && i < 20 * draws);
         i++) {
        char dir[128], more[300];
        const struct tiny_model drawn = draw_model(more, 64, true, seed);
        struct spw_model model;
        struct spw_plan_info info;
        struct spw_plan p;
        struct spw_error err = {0};
        open_model(&model, dir, i % 3 == 1 ? &drawn : &families[i % 2], SPW_DTYPE_AUTO);
        struct spw_plan_input in = start_input(&model, check_range(seed, 2, i % 3 ? 400 : 16));
        in.attention_tiles = 32;
        in.sessions = (uint32_t)check_range(seed, 1, 3);
        in.host_rates = (struct spw_host_rates){.host = 1e9 * (double)check_range(seed, 2, 20),
                                                .link = 1e9,
                                                .device = 1e9 * (double)check_range(seed, 1, 10)};
        in.host_layer_rows = spw_host_rows(&in.host_rates, 1, 1);
        in.disk_bytes = check_random(seed) % 2 ? (uint64_t)1 << 32 : 0;
        in.disk_cost = (uint32_t)check_range(seed, 2, 20); /* a drive is slower than the link */
        spw_plan_smallest(&info, &in);
        in.device_bytes = info.smallest_device_bytes + check_range(seed, 0, 1 << 19);
        if (in.disk_bytes) {
            spw_plan_smallest(&info, &in);
            in.host_bytes = info.smallest_host_bytes + check_range(seed, 0, 1 << 19);
        }
        CHECK_MSG(spw_plan_make(&p, &in, &err) == 0, "%s", err.text);
        check_account(&p, &in);
        check_cheapest(&in, seed);
        n_on_host += p.info.n_layers_on_host > 0;
        n_split += p.info.n_layers_on_host && p.n_link_blocks;
        n_prompts += p.info.n_layers_on_host && in.context <= in.host_layer_rows;
        close_model(&model, dir);
    }
    CHECK_MSG(draws < 20 || (n_on_host && n_split && n_prompts),
              "%llu plans with layers on the host, %llu beside others, %llu with such prompts",
              (unsigned long long)n_on_host, (unsigned long long)n_split,
              (unsigned long long)n_prompts);
}

/* The encoder reads its weights once a source, the decoder once a token: a token costs the
 * decoder's alone, and these have the device and the host before the encoder's. */
static void check_encoder(uint64_t *seed)
{
    static const char *const folders[] = {"t5_relu", "marian_plain"};
    for (int i = 0; i < 24; i++) {
        struct spw_options o = {.threads = 1};
        struct spw_model model;
        struct spw_plan_info info;
        struct spw_error err = {0};
        struct block_bytes sum = {0};
        struct spw_plan p;
        char dir[64];
        uint64_t of_source = 0, of_token = 0;
        snprintf(dir, sizeof dir, "tests/golden/%s", folders[i % 2]);
        CHECK_MSG(!spw_model_open(&model, dir, &o, &err), "%s", err.text);
        const struct spw_weights *w = model.weights;
        struct spw_plan_input in = start_input(&model, 64);
        in.attention_tiles = 32;
        for (uint32_t u = 0; u < w->n_blocks; u++)
            *(u < model.config.n_source_layers ? &of_source : &of_token) += w->blocks[u].bytes;
        spw_plan_start(&p, &in); /* no block is on the device */
        CHECK(spw_plan_weights_cost(&p, &in) == of_token);
        CHECK(spw_plan_pass_cost(&p, &in) == of_source + of_token);
        in.reads_host_memory = check_random(seed) % 2;
        in.disk_bytes = check_random(seed) % 2 ? (uint64_t)1 << 32 : 0;
        in.disk_cost = (uint32_t)check_range(seed, 1, 20);
        spw_plan_smallest(&info, &in);
        in.device_bytes = info.smallest_device_bytes + check_range(seed, 0, of_source + of_token);
        spw_plan_smallest(&info, &in);
        in.host_bytes = info.smallest_host_bytes + check_range(seed, 0, of_token);
        CHECK_MSG(!spw_plan_make(&p, &in, &err), "%s", err.text);
        for (uint32_t u = 0; u < w->n_blocks; u++)
            count_block(&p, &in, u, &sum);
        check_blocks(&p, &in, &sum);
        spw_model_close(&model);
    }
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
        for (int k = 0; k < draws / TINY_STATES; k++) {
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
    /* One of 60 plans has blocks from disk beside others, one of 35 writes less under a limit: 300
     * draws may well have too few. */
    for (int more = draws;
         draws >= 300 && (!n_of.both_kinds || n_of.limited < 3) && draws < 4 * more; draws += more)
        run_draws(more, &seed);
    check_shapes(draws, &seed);
    check_large_blocks(&seed);
    check_passes_of_experts();
    check_host_layers(spw_min_u32((uint32_t)draws, 40), &seed);
    check_many_rows();
    check_encoder(&seed);
    printf("%d plans of %llu candidates; %d with a disk, %d with copies on the host too; %d with "
           "weights from disk, %d beside others, %d by way of the host; %d that retain tiles, %d "
           "that do not; %d "
           "of few rows beside streamed weights, %d with shorter passes; %d of a pool, %d of these "
           "with a disk; %d that write less under a limit, %d refused for it\n",
           draws, (unsigned long long)n_of.candidates, n_of.disk, n_of.three, n_of.blocks_from_disk,
           n_of.both_kinds, n_of.blocks_bounced, n_of.retains, n_of.no_retains, n_of.snapshot_rows,
           n_of.shorter, n_of.pools, n_of.pools_on_disk, n_of.limited, n_of.limited_refused);
    if (draws >= 300) {
        CHECK(n_of.quantized_below > 20 && n_of.snapshot_rows > 5 && n_of.shorter > 5);
        CHECK(n_of.retains > 2 && n_of.no_retains > 10);
        CHECK(n_of.both_kinds && n_of.blocks_bounced &&
              n_of.blocks_bounced < n_of.blocks_from_disk);
        CHECK(n_of.pools > draws / 10 && n_of.pools_on_disk > 2 && n_of.together > 2);
        CHECK(n_of.disk > draws / 10 && n_of.three > draws / 60);
        CHECK(n_of.limited > 2 && n_of.limited_refused > 10);
    }
    return check_done();
}
