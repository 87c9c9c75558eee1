/* Makes the engine's plan from the options and the machine. If no plan works with exact KV, it
 * tries lower precisions of old KV. See engine.h. */
#include "runtime/engine/engine.h"
#include "runtime/engine/memory.h"
#include "quant/codes.h"
#include "runtime/plan/expert_forecast.h"
#include "runtime/rules/draft_length.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the input of a plan ---- */

enum {
    MOST_SESSIONS = 4096,
    MOST_SLOTS = 256,
};

/* The tiles of its rows go to one call of rope_append. */
static uint32_t most_chunk(const struct spw_model_config *c)
{
    return (SPW_APPEND_TILES / spw_config_most_slices(c) - 1) * SPW_TILE_TOKENS;
}

int spw_check_context(const struct spw_model_config *config, const struct spw_options *o,
                      struct spw_error *err)
{
    const uint64_t longest = o->past_positions ? SPW_CONFIG_MOST_POSITIONS : config->reach;
    spw_error_clear(err);
    if (o->context <= longest)
        return 0;
    return spw_fail(
        err, -EINVAL, "context of %llu tokens: %s %llu positions%s", (unsigned long long)o->context,
        o->past_positions ? "no model may have more than" : "the model knows",
        (unsigned long long)longest,
        o->past_positions ? "" : "; options.past_positions allows more, but answers may get worse");
}

static int check_options(const struct spw_model *m, const struct spw_backend *b,
                         const struct spw_options *o, struct spw_error *err)
{
    const struct {
        const char *what, *unit;
        uint32_t found, most;
    } numbers[] = {
        {"sessions", "", o->sessions, MOST_SESSIONS},
        {"prefill chunk", " tokens", o->prefill_chunk, most_chunk(&m->config)},
        {"prefetch slots", "", o->prefetch_slots, MOST_SLOTS},
        {"prefetch splits", " in a slot", o->prefetch_splits,
         b->ops->attention_tiles / SPW_SPLIT_TILES},
    };
    SPW_TRY(spw_check_context(&m->config, o, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].found > numbers[i].most)
            return spw_fail(err, -EINVAL, "%s: found %u%s, expected at most %u", numbers[i].what,
                            numbers[i].found, numbers[i].unit, numbers[i].most);
    return 0;
}

uint64_t spw_engine_budget(uint64_t given, uint64_t otherwise)
{
    return given == SPW_NONE ? 0 : given ? given : otherwise;
}

uint64_t spw_engine_leave_margin(uint64_t available)
{
    return spw_sub_u64(available, spw_max_u64((uint64_t)256 << 20, available / 32));
}

/* Sets the budgets: those of the options, else the available memory. Of system memory 9/10 are
 * available: 8/10 for a CPU's device, and for the host the rest, at least 1/10. Of a GPU's memory
 * all but a margin is available. */
static int set_budgets(struct spw_plan_input *in, const struct spw_engine *e,
                       const struct spw_options *o, struct spw_error *err)
{
    char given[32], left[32];
    uint64_t card = e->lane.ops->available(e->lane.device);
    uint64_t system = spw_engine_system_bytes(e, o) / 10;
    if (card == UINT64_MAX) {
        in->device_bytes = spw_engine_budget(o->device_bytes, system * 8);
        uint64_t rest = spw_sub_u64(
            system * 9,
            in->device_bytes); /* 0 if the device's budget is larger than the available memory */
        in->host_bytes = spw_engine_budget(o->host_bytes, spw_max_u64(rest, system));
        return 0;
    }
    card += e->lane.device_arena ? e->plan.device.end : 0; /* freed before the new plan is taken */
    card += e->drafter ? e->drafter->plan.device.end : 0;  /* a part of the budget */
    in->device_bytes = spw_engine_budget(o->device_bytes, spw_engine_leave_margin(card));
    in->host_bytes = spw_engine_budget(o->host_bytes, system * 8);
    if (in->device_bytes <= card)
        return 0;
    return spw_fail(err, -ENOMEM,
                    "device memory: %s given, but %s has only %s free; lower "
                    "options.device_bytes, or end what uses the GPU",
                    spw_budgets_given_text(given, in->device_bytes, spw_bytes_text(left, card)),
                    e->backend.name, left);
}

uint64_t spw_engine_limit(uint64_t given)
{
    return spw_engine_budget(given, UINT64_MAX - 1);
}

void spw_engine_limit_writes(const struct spw_engine *e, struct spw_plan_input *in)
{
    uint64_t limit = e->options.disk_write_limit;
    uint64_t done =
        e->files.written_bytes + e->past.disk_writes + (e->disk ? spw_disk_written(e->disk) : 0);
    in->disk_write_limit = spw_sub_u64(limit, done);
    if (limit && !in->disk_write_limit)
        in->disk_bytes = 0;
}

enum {
    DISK_MARGIN = 16, /* 1/16 of the free space is left to other programs */
    DISK_FLIGHT_BYTES = 16 << 20,
    DISK_COST = 8, /* memory of 40 GB/s against a drive of 5 GB/s */
    MOST_DISK_COST = 1024,
};

static uint32_t disk_cost(const struct spw_options *o)
{
    if (!o->machine || !o->drive)
        return DISK_COST;
    double cost = o->machine->copy_bytes_per_second / o->drive->read_bytes_per_second + 0.5;
    return cost < 1 ? 1 : cost > MOST_DISK_COST ? MOST_DISK_COST : (uint32_t)cost;
}

static int set_disk_budget(struct spw_plan_input *in, const struct spw_engine *e,
                           const struct spw_options *o, struct spw_error *err)
{
    char given[32], left[32];
    uint64_t free_bytes;
    /* Twice the bytes in flight: as many bytes have arrived, and wait for the computation or are
     * used by it. */
    in->disk_ring_bytes =
        2 * (o->drive ? o->drive->queue_depth * o->drive->request_bytes : DISK_FLIGHT_BYTES);
    in->attaches = o->prefix_cache_dir != NULL;
    if (!e->model.cache.disk)
        return 0;
    SPW_TRY(spw_memory_on_disk(&free_bytes, o->disk_dir, err));
    free_bytes += e->disk ? e->plan.info.disk.total : 0; /* given back first */
    in->disk_bytes = o->disk_bytes ? o->disk_bytes : free_bytes - free_bytes / DISK_MARGIN;
    if (!in->disk_bytes)
        return spw_fail(err, -ENOSPC,
                        "disk directory %.500s: found no free space; name another options.disk_dir",
                        o->disk_dir);
    if (in->disk_bytes <= free_bytes) {
        spw_engine_limit_writes(e, in);
        return 0;
    }
    return spw_fail(err, -ENOSPC,
                    "disk memory: %s given, but %.500s has only %s free; lower "
                    "options.disk_bytes, or name another options.disk_dir",
                    spw_budgets_given_text(given, o->disk_bytes, spw_bytes_text(left, free_bytes)),
                    o->disk_dir, left);
}

/* The number of rows of a prompt that take about a minute, at any position of the context. A pass
 * reads streamed weights, and this may take 1/20 of its time. Without measured limits the numbers
 * are those of a small machine. */
static uint64_t snapshot_rows(const struct spw_plan_input *in, const struct spw_options *o)
{
    enum { SECONDS = 60, WEIGHTS_SHARE = 20, LEAST = 512, MOST = 16384, SHARE = 2 };
    const struct spw_model_config *c = in->weights->config;
    double bytes = 0, speed = in->reads_host_memory ? 1e11 : 5e12, read = 2e9, seconds = SECONDS;
    double flops = 0;
    const struct spw_weights *w = in->weights;
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++) {
        double used = u < w->n_blocks ? 1 : (double)c->experts.n_kept / c->experts.n;
        bytes += (double)w->blocks[u].bytes;
        for (uint32_t i = w->blocks[u].first; i < w->blocks[u].first + w->blocks[u].n; i++)
            flops += 2.0 * used * (double)w->matrices[i].n * (double)w->matrices[i].k;
    }
    for (uint32_t l = 0; l < c->n_layers; l++) /* on average a row sees half of the context */
        flops += 2.0 * (double)spw_config_q_width(c, l) * (double)in->context;
    if (o->machine)
        speed = o->machine->many_flops[spw_product_of(in->compute, in->codes_row_bytes > 0, true)];
    if (o->drive)
        read = o->drive->read_bytes_per_second;
    if (bytes > (double)in->device_bytes)
        seconds = fmax(seconds, WEIGHTS_SHARE * bytes / read);
    double rows = seconds * speed / SHARE / flops;
    return rows >= MOST ? MOST : rows <= LEAST ? LEAST : spw_align_up((uint64_t)rows, LEAST);
}

/* The room that the products of this model need. */
static void size_products(struct spw_plan_input *in, const struct spw_engine *e,
                          const struct spw_options *o)
{
    const struct spw_weights *w = e->model.weights;
    const struct spw_model_config *c = &e->model.config;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->n_matrices; i++) {
        const struct spw_matrix *m = &w->matrices[i];
        bytes = spw_max_u64(bytes, e->backend.linear_workspace(m->k, in->compute, m->type));
        if (in->compute == SPW_DTYPE_BF16 && spw_type_is_quantized(m->type))
            in->codes_row_bytes =
                spw_max_u64(in->codes_row_bytes, spw_codes_groups(m->k) * sizeof(struct spw_codes));
        if (m->role == SPW_MATRIX_UP && !c->plain_mlp &&
            m->type != m[SPW_MATRIX_GATE - SPW_MATRIX_UP].type)
            in->gated_scratch = true;
    }
    in->workspace_bytes = e->lane.ops->workers(e->lane.device) * spw_align_up(bytes, 64);
    spw_engine_plan_host_lane(in, e, o);
}

/* Rows of logits of drafts: fewer where they would take more than a small part of the device. */
static uint32_t draft_rows(const struct spw_plan_input *in, const struct spw_options *o)
{
    enum { SHARE = 32, LEAST = SPW_PLAN_LEAST_DRAFT_ROWS };
    const uint64_t row = (uint64_t)in->weights->config->vocab * sizeof(float);
    uint32_t n = in->sessions > 1 ? SPW_DRAFT_ROWS : SPW_DRAFT_MOST + 1;
    while (n > LEAST && n * row > in->device_bytes / SHARE)
        n /= 2;
    return o->drafts == SPW_DRAFTS_OFF ? 0 : n;
}

int spw_engine_plan_input(struct spw_plan_input *in, struct spw_engine *e,
                          const struct spw_options *o, struct spw_error *err)
{
    const struct spw_model *m = &e->model;
    const struct spw_model_config *c = &m->config;
    const struct spw_backend *b = &e->backend;
    SPW_TRY(check_options(m, b, o, err));
    *in = (struct spw_plan_input){
        .weights = m->weights,
        .compute = m->compute,
        .kv = m->cache.kv,
        .quantizes = m->cache.precision != SPW_KV_EXACT,
        .precision = m->cache.precision,
        .residual_tiles =
            (uint32_t)spw_min_u64(spw_residual_tiles(m->cache.residual_tokens),
                                  spw_waterline_tiles(spw_max_u64(c->reach, o->context))),
        .context = o->context ? o->context : c->max_positions,
        .sessions = o->sessions ? o->sessions : 1,
        .full_sessions = o->full_sessions,
        .prefill_chunk = o->prefill_chunk,
        .prefetch_slots = o->prefetch_slots,
        .prefetch_splits = o->prefetch_splits,
        .transfer_cost_bytes = b->transfer_cost_bytes,
        .reads_per_link_byte = b->reads_per_link_byte,
        .attention_tiles = b->ops->attention_tiles,
        .gated_scratch = b->ops->gated_scratch,
        .reads_host_memory = b->reads_host_memory,
        .disk_cost = disk_cost(o),
        .kv_stays = m->cache.stays,
        .rolls_back = o->rolls_back,
        .has_snapshots = o->saves || o->prefix_cache_dir,
    };
    size_products(in, e, o);
    SPW_TRY(set_budgets(in, e, o, err));
    in->draft_rows = spw_drafts_are_optional(o) ? 0 : draft_rows(in, o);
    in->snapshot_rows = snapshot_rows(in, o);
    SPW_TRY(set_disk_budget(in, e, o, err));
    return spw_engine_plan_drafter(e, in, o, err);
}

/* ---- fallbacks ---- */

/* The first token whose logits may differ. Logits of tokens in the caches stay; the next token may
 * read quantized tiles. */
static uint64_t lossy_from(const struct spw_engine *e)
{
    uint64_t until = spw_residual_until(1, e->plan.residency[e->plan.full_kind].residual_tiles);
    uint64_t first = until * SPW_TILE_TOKENS, least = UINT64_MAX;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        least = spw_min_u64(least, spw_session_cached(s));
    return least == UINT64_MAX ? first : spw_max_u64(first, least);
}

void spw_engine_note_fallback(struct spw_engine *e, const struct spw_fallback *fallback)
{
    struct spw_engine_event event = {.kind = SPW_ENGINE_FALLBACK, .fallback = *fallback};
    if (fallback->kind >= SPW_FALLBACK_INT8 && fallback->kind <= SPW_FALLBACK_INT4)
        event.fallback.lossy_from = lossy_from(e);
    spw_engine_report(e, &event);
}

/* ---- the plan ---- */

/* A context without old tiles gains nothing from quantization. */
static bool may_quantize(const struct spw_engine *e, const struct spw_plan_input *in)
{
    uint64_t block = spw_residual_block(in->context);
    return e->options.gate && e->model.cache.may_quantize &&
           spw_residual_end(block, in->residual_tiles) > 1;
}

/* Describes the change from the refused plan to e->plan: the bytes that were missing, and the bytes
 * that are needed now. */
static void describe_precision(const struct spw_engine *e, const struct spw_plan_input *in,
                               const struct spw_plan_info *refused, int why,
                               struct spw_fallback *fallback)
{
    struct spw_plan_info now = e->plan.info;
    uint64_t need = now.disk_write_bytes;
    *fallback = (struct spw_fallback){.failed = "disk write limit",
                                      .bytes_asked = refused->disk_write_bytes};
    if (why == -ENOMEM) {
        int tier = spw_fallback_lacking(refused, in, &fallback->bytes_asked);
        spw_plan_smallest(&now, in);
        need = spw_budgets_smallest(&now, tier);
        fallback->failed = spw_budget_names[tier].budget;
    }
    fallback->bytes_freed = spw_sub_u64(fallback->bytes_asked, need);
    fallback->kind = spw_fallback_between(refused, &now);
}

/* The refusal names the budgets that exact KV needs. Adds the budgets that quantized KV needs. */
static void add_hint(struct spw_error *err, const struct spw_plan_info *exact,
                     const struct spw_plan_info *refused, const struct spw_plan_input *in,
                     const char *hindrance)
{
    char text[32];
    uint64_t needed, n = err ? strlen(err->text) : 0;
    if (!n)
        return;
    int tier = spw_fallback_lacking(refused, in, &needed);
    if (*hindrance)
        snprintf(err->text + n, sizeof err->text - n, " (%s)", hindrance);
    else if (needed && needed < spw_budgets_smallest(exact, tier)) /* else exact KV needs no more */
        snprintf(err->text + n, sizeof err->text - n,
                 " (with old KV as %s: %s %s, if this model passes its check)",
                 spw_kv_precision_name(in->precision), spw_budget_names[tier].option,
                 spw_bytes_text(text, needed));
}

/* No plan works with the precision of `in`, because of the error `why`. Takes the first lower
 * precision that has a plan and passes the gate. If there is none, restores everything and returns
 * `why`. */
static int go_down(struct spw_engine *e, struct spw_plan_input *in, int why,
                   struct spw_fallback *fallback, struct spw_error *err)
{
    const struct spw_plan refused = e->plan;
    const struct spw_plan_input given = *in;
    char hindrance[512] = ""; /* of the most precise one that fits */
    for (enum spw_kv_precision k = given.precision + 1; k <= SPW_KV_INT4; k++) {
        spw_plan_set_precision(in, k);
        if (spw_plan_make(&e->plan, in, NULL))
            continue;
        const char *refuses = e->options.gate(e->options.gate_context, k);
        if (refuses && !*hindrance)
            snprintf(hindrance, sizeof hindrance, "would fit with old KV as %s; %s",
                     spw_kv_precision_name(k), refuses);
        if (refuses)
            continue;
        describe_precision(e, in, &refused.info, why, fallback);
        return 0;
    }
    add_hint(err, &refused.info, &e->plan.info, in, hindrance);
    *in = given;
    e->plan = refused;
    return why;
}

int spw_engine_describe_plan(const struct spw_engine *e, struct spw_plan *p)
{
    struct spw_expert_forecast f;
    SPW_TRY(spw_expert_forecast_open(&f, p, e->model.weights, e->expert_counts));
    spw_expert_forecast_token(&f, &p->info.decode_expert_disk_bytes,
                              &p->info.decode_expert_host_bytes);
    spw_expert_forecast_close(&f);
    spw_plan_count_moved(p, e->model.weights);
    spw_plan_count_work(p, e->model.weights);
    return 0;
}

/* Whether what the MTP layer stores of each token takes at most a 200th of the products of the
 * model without the layer. */
static bool stores_fast(const struct spw_weights *w, const struct spw_plan_info *alone)
{
    enum { PART = 200 };
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->n_matrices; i++) {
        const struct spw_matrix *m = &w->matrices[i];
        if (spw_config_is_mtp(w->config, m->layer) &&
            (m->role <= SPW_MATRIX_V || m->role == SPW_MATRIX_JOIN))
            n += m->n * m->k;
    }
    return PART * n <= alone->decode_weights;
}

/* Nothing drops the layer later, so budgets that are lowered must still hold it: the smallest ones
 * are at most 3/4 of those that are given. */
static bool has_margin(const struct spw_plan_input *in)
{
    struct spw_plan_input bare = *in;
    struct spw_plan_info info;
    bare.draft_rows = 0;
    spw_plan_smallest(&info, &bare);
    for (int i = 0; i < SPW_BUDGETS; i++)
        if (spw_budgets_smallest(&info, i) > in->budgets[i] - in->budgets[i] / 4)
            return false;
    return true;
}

bool spw_engine_plan_mtp(struct spw_engine *e, const struct spw_options *o)
{
    const struct spw_weights *w = e->model.weights;
    struct spw_plan_input in = e->in;
    struct spw_plan p;
    in.weights = w;
    size_products(&in, e, o);
    if (!stores_fast(w, &e->plan.info) || spw_plan_make(&p, &in, NULL) ||
        !spw_plan_drafts_in_place(&p, w) || !spw_plan_is_as_good(&e->plan, &e->in, &p, &in) ||
        !has_margin(&in))
        return false;
    e->plan = p;
    e->in = in;
    return true;
}

int spw_engine_make_plan(struct spw_engine *e, struct spw_plan_input *in,
                         struct spw_fallback *fallback, struct spw_error *err)
{
    struct spw_fallback own;
    const bool optional = spw_drafts_are_optional(&e->options);
    fallback = fallback ? fallback : &own;
    *fallback = (struct spw_fallback){0};
    in->draft_rows = optional ? 0 : in->draft_rows;
    int rc = spw_plan_make(&e->plan, in, err);
    if ((rc == -ENOMEM || rc == -EDQUOT) && may_quantize(e, in)) {
        rc = go_down(e, in, rc, fallback, err);
        if (!rc)
            spw_error_clear(err);
    }
    if (!rc && optional)
        spw_plan_add_draft_rows(&e->plan, in, draft_rows(in, &e->options));
    if (!rc)
        rc = spw_engine_describe_plan(e, &e->plan);
    if (!rc && e->options.prefix_cache_dir)
        e->plan.info.prefix_write_bytes = spw_plan_publish_bytes(&e->plan, e->plan.info.context);
    return rc;
}
