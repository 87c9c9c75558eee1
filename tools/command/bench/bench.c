/* `spillway bench`: speed beside the limits of the machine, which are measured before and after
 * each run.
 *
 * A case is a context under a device budget. Each repeat runs every case once, so a slow minute of
 * the machine affects all cases. One run of a case:
 *
 *   open (timed) -> a 10-token prompt, its first token (timed) -> a prompt of `context` random
 *   tokens in one step (prefill, timed) -> one token at a time (decode, timed) -> close
 *   with --drafts: open -> the same prompt and answer with drafts, and steps of several rows ->
 * close
 *
 * Before a run, the weight files are read once from the page cache (timed): the time to the first
 * token is compared with this. A limit is the mean of the two probes around a run, because a shared
 * host changes its speed within minutes. A GPU is probed only once, because a run leaves no memory
 * to probe with, and because its limits do not drift.
 *
 * Decode is compared with the bytes of weights and KV that a token reads, at the best measured read
 * bandwidth, its bytes from the disk with the measured reads of the drive, and its time with the
 * prediction from the typical figures of the same probes (of a drive, those of the profile).
 * Prefill is compared with the best measured rate of products alone. The cost of offloading is the
 * time of a token above the least possible time: the time under the first budget of the list, or
 * that of the copies alone, if that is longer. */
#include "tools/command/bench/bench.h"
#include "quant/types.h"
#include "tools/command/engine.h"
#include "tools/command/input/input.h"
#include "tools/command/limits.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/report.h"
#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

#define FIRST_PROMPT 10 /* tokens of the prompt whose time to the first token is measured */

enum measure {
    PREFILL_RATE,
    PREFILL_SECONDS,
    PREFILL_FRACTION,
    PREFILL_SLOWDOWN,
    DECODE_RATE,
    DECODE_SECONDS,
    DECODE_FRACTION,
    DECODE_SLOWDOWN,
    OFFLOAD,
    LINK_FRACTION,
    DISK_FRACTION,
    WAIT_SECONDS,
    PREDICTED,
    PREDICTION,
    FIRST_SECONDS,
    WEIGHTS_SECONDS,
    FIRST_FRACTION,
    DRAFT_RATE,
    DRAFT_GAIN,
    DRAFTED,
    ACCEPTED,
    DRAFT_ROWS,
    DRAFT_LINK,
    DRAFT_DISK,
    ROW_SECONDS,
    ROWS_2,
    ROWS_4,
    ROWS_8,
    READ_LIMIT,
    COPY_LIMIT,
    MEASURES,
};

static const struct bench_line lines[MEASURES] = {
    [PREFILL_RATE] = {"prefill_tokens_per_second", "prompt, tokens", BENCH_TOKENS},
    [PREFILL_SECONDS] = {"prefill_seconds", "  its time", BENCH_SECONDS},
    [PREFILL_FRACTION] = {"prefill_fraction_of_products", "  of products alone", BENCH_RATIO},
    [PREFILL_SLOWDOWN] = {"prefill_slowdown", "  time / under the first budget", BENCH_FACTOR},
    [DECODE_RATE] = {"decode_tokens_per_second", "decode, tokens", BENCH_TOKENS},
    [DECODE_SECONDS] = {"decode_seconds_per_token", "  time of a token", BENCH_SECONDS},
    [DECODE_FRACTION] = {"decode_fraction_of_read", "  of the reads of memory", BENCH_RATIO},
    [DECODE_SLOWDOWN] = {"decode_slowdown", "  time / under the first budget", BENCH_FACTOR},
    [OFFLOAD] = {"offload_cost", "  more than with all memory, or copies", BENCH_RATIO},
    [LINK_FRACTION] = {"link_fraction", "  copies alone / time", BENCH_RATIO},
    [DISK_FRACTION] = {"disk_fraction", "  of the reads of the drive", BENCH_RATIO},
    [WAIT_SECONDS] = {"unhidden_wait_seconds_per_token", "  waiting that is not hidden",
                      BENCH_SECONDS},
    [PREDICTED] = {"predicted_seconds_per_token", "  predicted time", BENCH_SECONDS},
    [PREDICTION] = {"predicted_over_decode", "  predicted / measured", BENCH_RATIO},
    [FIRST_SECONDS] = {"first_token_seconds", "first token after the start", BENCH_SECONDS},
    [WEIGHTS_SECONDS] = {"weights_read_seconds", "  reading the weight files", BENCH_SECONDS},
    [FIRST_FRACTION] = {"first_token_over_read", "  first token / reading", BENCH_FACTOR},
    [DRAFT_RATE] = {"draft_tokens_per_second", "decode with drafts, tokens", BENCH_TOKENS},
    [DRAFT_GAIN] = {"draft_speedup", "  tokens / without drafts", BENCH_FACTOR},
    [DRAFTED] = {"drafted", "  drafted tokens", BENCH_NUMBER},
    [ACCEPTED] = {"accepted", "  of these accepted", BENCH_NUMBER},
    [DRAFT_ROWS] = {"draft_rows_per_step", "  rows of a step", BENCH_NUMBER},
    [DRAFT_LINK] = {"draft_link_fraction", "  bytes over the link / without", BENCH_RATIO},
    [DRAFT_DISK] = {"draft_disk_fraction", "  bytes from the disk / without", BENCH_RATIO},
    [ROW_SECONDS] = {"step_of_1_row_seconds", "a step of one row", BENCH_SECONDS},
    [ROWS_2] = {"step_of_2_rows", "  of 2 rows / of one", BENCH_FACTOR},
    [ROWS_4] = {"step_of_4_rows", "  of 4 rows / of one", BENCH_FACTOR},
    [ROWS_8] = {"step_of_8_rows", "  of 8 rows / of one", BENCH_FACTOR},
    [READ_LIMIT] = {"read_bytes_per_second", "memory, reads", BENCH_RATE},
    [COPY_LIMIT] = {"copy_bytes_per_second", "  copies", BENCH_RATE},
};

struct bench_case {
    uint64_t context, budget;
    const struct bench_case *base; /* the same context under the first budget */
    struct spw_plan_info plan;     /* the plan for `context` + half of the decoded tokens */
    struct bench_table table;      /* owned */
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t moved_bytes; /* of a decoded token over the host link, both directions */
    uint64_t disk_bytes;  /* of a decoded token, from the disk */
    uint64_t card_bytes;  /* GPU: memory of the card that is in use at the end, by the driver */
};

/* Of the median rounds, and of the fastest. */
struct speeds {
    struct spw_machine typical, best;
};

struct bench {
    const struct cli_options *o;
    struct cli_model model;
    struct speeds machine;    /* the latest probe */
    struct cli_limits limits; /* the limits for plans with a disk */
    char backend[80];
    int32_t *tokens;          /* owned: for the longest prompt and the decoded tokens */
    struct bench_case *cases; /* owned: those of a context are adjacent */
    size_t n_cases;
};

static struct spw_options case_options(const struct bench *b, const struct bench_case *c,
                                       uint64_t context)
{
    struct spw_options options = cli_engine_options(b->o, context, 1);
    if (b->o->budgets.n > 0)
        options.device_bytes = c->budget;
    options.drafts = SPW_DRAFTS_OFF; /* but where they are measured */
    options.on_progress = cli_progress_callback();
    options.drive = cli_limits_drive(&b->limits);
    options.machine = b->limits.has_machine ? &b->limits.machine : NULL;
    return options;
}

/* ---- one run ---- */

struct bench_run {
    struct spw_engine *engine;
    struct spw_session *session;
};

/* After a failure, too, close_run is due. */
static int open_run(struct bench_run *r, const char *model, const struct spw_options *options,
                    struct spw_error *err)
{
    *r = (struct bench_run){0};
    SPW_TRY(spw_engine_open(&r->engine, model, options, err));
    cli_progress_engine(r->engine, NULL, NULL);
    return spw_session_open(&r->session, r->engine, err);
}

static void close_run(struct bench_run *r)
{
    cli_progress_engine(NULL, NULL, NULL);
    cli_progress_clear();
    spw_session_close(r->session);
    spw_engine_close(r->engine);
}

/* Brings the session to these tokens in one step and measures the time. -ECANCELED: interrupted. */
static int sync_run(struct bench_run *r, const int32_t *tokens, size_t n, double *seconds,
                    struct spw_error *err)
{
    struct spw_span span = {.session = r->session, .tokens = tokens, .n_tokens = n, .n_logits = 1};
    struct cli_events events = {0};
    double start = cli_now_seconds();
    int rc = spw_sync(r->engine, &span, 1, NULL, NULL, err);
    *seconds = cli_now_seconds() - start;
    cli_read_events(&events, r->engine);
    cli_events_free(&events);
    return rc < 0 ? rc : cli_interrupted() ? -ECANCELED : 0;
}

/* Decodes the most likely tokens, as a greedy generation would; choosing a token is part of the
 * time. The first token is not timed, because it finds empty caches. */
static int decode(struct bench *b, struct bench_case *c, struct bench_run *r, size_t repeat,
                  struct spw_error *err)
{
    struct spw_sampler *sampler;
    struct spw_sampling greedy = {0};
    struct spw_stats before, after;
    size_t n_new = b->o->decode_tokens;
    double sum = 0;
    SPW_TRY(spw_sampler_open(&sampler, b->model.config.vocab, err));
    int rc = 0;
    int32_t *tokens = b->tokens;
    for (size_t i = 0; i <= n_new && rc == 0; i++) {
        if (i == 1)
            spw_engine_stats(r->engine, &before);
        double start = cli_now_seconds(), step;
        tokens[c->context + i] = spw_sampler_pick(sampler, &greedy, spw_session_logits(r->session),
                                                  tokens, c->context, c->context + i);
        rc = sync_run(r, tokens, c->context + i + 1, &step, err);
        sum += i ? cli_now_seconds() - start : 0;
    }
    spw_sampler_close(sampler);
    SPW_TRY(rc);
    spw_engine_stats(r->engine, &after);
    c->table.samples[DECODE_SECONDS][repeat] = sum / (double)n_new;
    c->table.samples[WAIT_SECONDS][repeat] =
        (after.unhidden_wait_seconds - before.unhidden_wait_seconds) / (double)n_new;
    c->moved_bytes = 0;
    for (int i = SPW_MOVED_HOST_TO_DEVICE; i <= SPW_MOVED_DEVICE_TO_HOST; i++)
        c->moved_bytes += (after.moved_bytes[i] - before.moved_bytes[i]) / n_new;
    c->disk_bytes =
        (after.moved_bytes[SPW_MOVED_DISK_TO_HOST] - before.moved_bytes[SPW_MOVED_DISK_TO_HOST]) /
        n_new;
    c->device_peak_bytes = after.device_peak_bytes;
    c->host_peak_bytes = after.host_peak_bytes;
    c->card_bytes = after.card_bytes;
    return 0;
}

/* `opened`: when the run began. */
static int run_steps(struct bench *b, struct bench_case *c, struct bench_run *r, double opened,
                     size_t repeat, struct spw_error *err)
{
    double seconds;
    size_t n_first = (size_t)spw_min_u64(FIRST_PROMPT, c->context);
    /* With another first token: the session reuses nothing of it for the long prompt. */
    const int32_t first = b->tokens[0];
    b->tokens[0] = first ? first - 1 : 1;
    int rc = sync_run(r, b->tokens, n_first, &seconds, err);
    b->tokens[0] = first;
    SPW_TRY(rc);
    c->table.samples[FIRST_SECONDS][repeat] = cli_now_seconds() - opened;
    SPW_TRY(sync_run(r, b->tokens, c->context, &c->table.samples[PREFILL_SECONDS][repeat], err));
    return decode(b, c, r, repeat, err);
}

/* ---- drafts ---- */

static bool has_drafts(const struct bench *b)
{
    return cli_given(b->o, "drafts") && b->o->drafts != SPW_DRAFTS_OFF;
}

static struct spw_options draft_options(const struct bench *b, const struct bench_case *c)
{
    const uint64_t n_tokens = c->context + b->o->decode_tokens + 1 + BENCH_ROW_TOKENS;
    struct spw_options options = case_options(b, c, n_tokens);
    options.drafts = (enum spw_drafts)b->o->drafts;
    return options;
}

/* Beside the decoded tokens of the same prompt without drafts. */
static void set_drafts(struct bench_case *c, const struct bench_drafts *d, size_t i)
{
    double **s = c->table.samples;
    const uint64_t *moved = d->moved_bytes;
    const uint64_t link = moved[SPW_MOVED_HOST_TO_DEVICE] + moved[SPW_MOVED_DEVICE_TO_HOST];
    s[DRAFT_RATE][i] = 1 / d->seconds_per_token;
    s[DRAFT_GAIN][i] = s[DECODE_SECONDS][i] / d->seconds_per_token;
    s[DRAFTED][i] = d->drafted;
    s[ACCEPTED][i] = d->accepted;
    s[DRAFT_ROWS][i] = d->rows_per_step;
    if (c->moved_bytes)
        s[DRAFT_LINK][i] = (double)link / (double)c->moved_bytes;
    if (c->disk_bytes)
        s[DRAFT_DISK][i] = (double)moved[SPW_MOVED_DISK_TO_HOST] / (double)c->disk_bytes;
    s[ROW_SECONDS][i] = d->step_seconds[0];
    for (size_t k = 1; k < BENCH_ROW_STEPS; k++)
        s[ROW_SECONDS + k][i] = d->step_seconds[k] / d->step_seconds[0];
}

static int run_drafts(struct bench *b, struct bench_case *c, size_t repeat, struct spw_error *err)
{
    const struct spw_options options = draft_options(b, c);
    const struct bench_prompt prompt = {b->tokens, c->context, b->o->decode_tokens};
    struct bench_drafts d;
    struct bench_run r;
    int rc = open_run(&r, b->o->operand, &options, err);
    rc = rc ? rc : bench_drafts(&d, r.session, r.engine, &prompt, err);
    close_run(&r);
    if (rc == 0)
        set_drafts(c, &d, repeat);
    return rc;
}

/* ---- what was measured beside the limits ---- */

/* NAN if the plan reads files of the model whose drive was not measured. */
static double predict(const struct bench *b, const struct bench_case *c,
                      const struct spw_machine *machine)
{
    struct spw_prediction step;
    if (c->plan.decode_moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0 && !b->limits.has_drive)
        return NAN;
    spw_predict_step(&step, &c->plan, machine, cli_limits_drive(&b->limits));
    return step.seconds;
}

/* Compares a run with the limits before and after it, and with that of the base. */
static void set_beside_limits(struct bench *b, struct bench_case *c, const struct speeds *before,
                              size_t i)
{
    double *const *s = c->table.samples, *const *base = c->base->table.samples;
    const struct spw_machine *was = &before->best, *is = &b->machine.best;
    const enum spw_product product =
        spw_product_of(c->plan.compute, c->plan.int8_activations, c->plan.int8_activations);
    const double products = (was->many_flops[product] + is->many_flops[product]) / 2;
    const struct spw_prompt_work work = cli_prompt_work(&c->plan, &b->model.config, c->context);
    const double prefill = s[PREFILL_SECONDS][i], token = s[DECODE_SECONDS][i];
    s[READ_LIMIT][i] = (was->read_bytes_per_second + is->read_bytes_per_second) / 2;
    s[COPY_LIMIT][i] = (was->copy_bytes_per_second + is->copy_bytes_per_second) / 2;
    const double copies = (double)c->moved_bytes / s[COPY_LIMIT][i];
    s[PREFILL_RATE][i] = (double)c->context / prefill;
    s[PREFILL_FRACTION][i] = (work.product_flops + work.attention_flops) / prefill / products;
    s[PREFILL_SLOWDOWN][i] = prefill / base[PREFILL_SECONDS][i];
    s[DECODE_RATE][i] = 1 / token;
    s[DECODE_FRACTION][i] = (double)c->plan.decode_read_bytes / token / s[READ_LIMIT][i];
    s[DECODE_SLOWDOWN][i] = token / base[DECODE_SECONDS][i];
    s[OFFLOAD][i] = token / fmax(base[DECODE_SECONDS][i], copies) - 1;
    s[LINK_FRACTION][i] = copies / token;
    if (c->disk_bytes && b->limits.has_drive)
        s[DISK_FRACTION][i] = (double)c->disk_bytes / token / b->limits.drive.read_bytes_per_second;
    s[PREDICTED][i] = (predict(b, c, &before->typical) + predict(b, c, &b->machine.typical)) / 2;
    s[PREDICTION][i] = s[PREDICTED][i] / token;
    s[FIRST_FRACTION][i] = s[FIRST_SECONDS][i] / s[WEIGHTS_SECONDS][i];
}

static int probe(struct bench *b, struct spw_error *err)
{
    struct spw_options options = cli_engine_options(b->o, 0, 1);
    return spw_machine_probe(&b->machine.typical, &b->machine.best, &options, err);
}

static int read_weights(const struct bench *b, double *seconds, struct spw_error *err)
{
    int rc = bench_read_weights(b->o->operand, b->machine.typical.threads, seconds);
    return rc ? spw_fail(err, rc, "%s: %s", b->o->operand, strerror(-rc)) : 0;
}

static int run_case(struct bench *b, struct bench_case *c, size_t repeat, struct spw_error *err)
{
    struct spw_options options = case_options(b, c, c->context + b->o->decode_tokens + 1);
    const struct speeds before = b->machine;
    struct bench_run r;
    SPW_TRY(read_weights(b, &c->table.samples[WEIGHTS_SECONDS][repeat], err));
    double opened = cli_now_seconds();
    int rc = open_run(&r, b->o->operand, &options, err);
    if (rc == 0) { /* a note such as memory that could not be pinned explains the numbers */
        snprintf(b->backend, sizeof b->backend, "%s", spw_engine_backend(r.engine));
        cli_notes(spw_engine_note(r.engine));
        rc = run_steps(b, c, &r, opened, repeat, err);
    }
    close_run(&r);
    if (rc == 0 && has_drafts(b))
        rc = run_drafts(b, c, repeat, err);
    if (rc == 0 && !*b->machine.typical.gpu)
        rc = probe(b, err);
    if (rc == 0)
        set_beside_limits(b, c, &before, repeat);
    return rc;
}

/* ---- output ---- */

/* The precision of old KV, or the type of KV if all of it is exact. */
static const char *kv_name(const struct spw_plan_info *p)
{
    return p->precision ? spw_kv_precision_name(p->precision) : spw_dtype_name(p->kv);
}

static void print_head(const struct bench *b)
{
    const struct spw_machine *m = &b->machine.best;
    const struct spw_plan_info *p = &b->cases[0].plan;
    char text[32];
    printf("machine   %s, %s, %u threads\n"
           "products  bf16 %.1f GFLOP/s, f32 %.1f GFLOP/s, int8 %.1f GFLOP/s\n"
           "model     %s, %s weights, %s to compute, %s for KV\n"
           "runs      %llu tokens decoded in each\n",
           m->cpu, m->isa, m->threads, m->many_flops[SPW_PRODUCT_BF16] * 1e-9,
           m->many_flops[SPW_PRODUCT_F32] * 1e-9, m->many_flops[SPW_PRODUCT_INT8] * 1e-9,
           b->o->operand, cli_format_bytes(text, p->weights_bytes), cli_report_compute(p),
           kv_name(p), (unsigned long long)b->o->decode_tokens);
    if (*m->gpu)
        printf("gpu       %s\n", m->gpu);
}

static void print(const struct bench *b)
{
    char budget[32] = "all", peak[32], moved[32];
    print_head(b);
    for (const struct bench_case *c = b->cases; c < b->cases + b->n_cases; c++) {
        if (!c->table.n_runs)
            continue;
        printf(
            "\ncontext %llu, budget %s: at most %s used, %s a token over the link\n",
            (unsigned long long)c->context, c->budget ? cli_format_bytes(budget, c->budget) : "all",
            cli_format_bytes(peak, c->device_peak_bytes), cli_format_bytes(moved, c->moved_bytes));
        bench_table_print(&c->table);
    }
}

static json_t *case_json(const struct bench_case *c)
{
    const struct cli_field fields[] = {
        {"runs", CLI_JSON(c->table.n_runs)},
        CLI_FIELD(c, context),
        {"device_budget_bytes", CLI_JSON(c->plan.device_budget_bytes)},
        CLI_FIELD(c, device_peak_bytes),
        CLI_FIELD(c, host_peak_bytes),
        CLI_FIELD(c, card_bytes),
        {"layers_resident", CLI_JSON(c->plan.n_layers_resident)},
        {"decode_read_bytes", CLI_JSON(c->plan.decode_read_bytes)},
        {"decode_moved_bytes", CLI_JSON(c->moved_bytes)},
        {"decode_disk_bytes", CLI_JSON(c->disk_bytes)},
    };
    json_t *j = CLI_OBJECT(fields);
    bench_table_json(&j, &c->table);
    return j;
}

/* The report always has every complete run, because a long sweep may be killed. */
static int write_report(const struct bench *b)
{
    if (!b->o->report)
        return 0;
    const struct spw_plan_info *p = &b->cases[0].plan;
    json_t *cases = json_array();
    for (const struct bench_case *c = b->cases; c < b->cases + b->n_cases; c++)
        if (c->table.n_runs)
            cli_json_append(&cases, case_json(c));
    const struct cli_field fields[] = {
        CLI_FIELD(b, backend),
        {"model", CLI_JSON(b->o->operand)},
        {"compute", CLI_JSON(spw_dtype_name(p->compute))},
        {"kv_dtype", CLI_JSON(kv_name(p))},
        {"repeat", CLI_JSON(b->o->repeat)},
        {"machine", cli_machine_json(&b->machine.best)},
        {"cases", cases},
    };
    return cli_write_json(b->o->report, CLI_OBJECT(fields));
}

/* ---- the sweep ---- */

/* Refuses budgets that are too small before anything is measured. */
static int plan_case(struct bench *b, struct bench_case *c, struct spw_error *err)
{
    struct spw_options full = case_options(b, c, c->context + b->o->decode_tokens + 1);
    if (has_drafts(b)) {
        const struct spw_options drafts = draft_options(b, c);
        SPW_TRY(spw_plan_query(&c->plan, b->o->operand, &drafts, err));
    }
    SPW_TRY(spw_plan_query(&c->plan, b->o->operand, &full, err));
    /* the same budgets in the middle of the decoded tokens */
    struct spw_options middle = case_options(b, c, c->context + b->o->decode_tokens / 2 + 1);
    const uint32_t resident = c->plan.n_layers_resident;
    SPW_TRY(spw_plan_query(&c->plan, b->o->operand, &middle, err));
    c->plan.n_layers_resident = resident;
    return bench_table_open(&c->table, lines, MEASURES, b->o->repeat, err);
}

static int make_cases(struct bench *b, struct spw_error *err)
{
    static const struct cli_counts default_contexts = {.items = {128, 2048}, .n = 2};
    const struct cli_counts *contexts = b->o->contexts.n ? &b->o->contexts : &default_contexts;
    const size_t n_budgets = b->o->budgets.n ? b->o->budgets.n : 1;
    b->n_cases = contexts->n * n_budgets;
    b->cases = spw_alloc_zero(b->n_cases, sizeof *b->cases);
    if (!b->cases)
        return spw_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < b->n_cases; i++) {
        struct bench_case *c = &b->cases[i];
        c->context = contexts->items[i / n_budgets];
        c->budget = b->o->budgets.n ? b->o->budgets.items[i % n_budgets] : b->o->device_memory;
        c->base = &b->cases[i - i % n_budgets];
        SPW_TRY(plan_case(b, c, err));
    }
    return 0;
}

/* splitmix64 (G. Steele, D. Lea, C. Flood, 2014) */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Prompts are the text of --prompt-file, or random tokens. A text that is too short is refused. */
static int make_tokens(struct bench *b)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < b->n_cases; i++)
        longest = spw_max_u64(longest, b->cases[i].context);
    const uint64_t n = longest + b->o->decode_tokens + 1 + BENCH_ROW_TOKENS;
    uint64_t random = b->o->seed;
    b->tokens = spw_alloc(n * sizeof *b->tokens);
    if (!b->tokens)
        return cli_fail(CLI_FAILED, "out of memory");
    for (uint64_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)(next_random(&random) % b->model.config.vocab);
    if (!b->o->prompt_file)
        return 0;
    char *text;
    size_t bytes, n_ids;
    int32_t *ids;
    int code = cli_read_file(b->o->prompt_file, &text, &bytes);
    if (code)
        return code;
    code = cli_encode(b->model.tokenizer, b->o->prompt_file, text, bytes, true, &ids, &n_ids);
    spw_free(text);
    if (code)
        return code;
    code = cli_check_ids(b->o->prompt_file, ids, n_ids, b->model.config.vocab);
    if (code == 0 && n_ids < longest)
        code = cli_fail(CLI_REFUSED, "%s: found %zu tokens, expected at least %llu for --contexts",
                        b->o->prompt_file, n_ids, (unsigned long long)longest);
    if (code == 0)
        memcpy(b->tokens, ids, longest * sizeof *ids);
    spw_free(ids);
    return code;
}

static int run_all(struct bench *b, struct spw_error *err)
{
    double seconds;
    SPW_TRY(probe(b, err));
    SPW_TRY(read_weights(b, &seconds, err)); /* warms the page cache */
    cli_catch_termination();                 /* after an interruption, print what was measured */
    cli_progress_start((enum cli_progress_mode)b->o->progress, NULL, false);
    for (size_t repeat = 0; repeat < b->o->repeat; repeat++)
        for (struct bench_case *c = b->cases; c < b->cases + b->n_cases; c++) {
            SPW_TRY(run_case(b, c, repeat, err));
            c->table.n_runs++;
            int code = write_report(b);
            if (code)
                return code;
        }
    return 0;
}

static int sweep(struct bench *b)
{
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(b->o, 0, 1);
    if (options.disk_dir)
        cli_limits_read(&b->limits, b->o, &options, SPW_PROBE_UNKNOWN);
    int rc = make_cases(b, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    int code = make_tokens(b);
    if (code)
        return code;
    cli_note("measuring this machine; then %zu case%s, %llu time%s each", b->n_cases,
             cli_plural(b->n_cases), (unsigned long long)b->o->repeat, cli_plural(b->o->repeat));
    code = run_all(b, &err); /* an error of the library, or an exit code that was told */
    cli_progress_end();
    if (code < 0)
        code = cli_fail_error(code, &err, false);
    if (b->cases[0].table.n_runs)
        print(b);
    return code;
}

int cli_bench(const struct cli_options *o)
{
    struct bench b = {.o = o};
    if (o->random_tokens && o->prompt_file)
        return cli_fail(CLI_REFUSED,
                        "found both --random-tokens and --prompt-file, expected one of them");
    if (o->budgets.n > 0 && cli_given(o, "device-memory"))
        return cli_fail(CLI_REFUSED,
                        "found both --budgets and --device-memory, expected one of them");
    if (o->simulate)
        return bench_simulate(o);
    int code = cli_model_open(&b.model, o->operand, o->prompt_file != NULL);
    if (code)
        return code;
    code = cli_refuse_encoder(&b.model, "bench");
    if (code == 0)
        code = sweep(&b);
    for (size_t i = 0; b.cases && i < b.n_cases; i++)
        bench_table_close(&b.cases[i].table);
    spw_free(b.cases);
    spw_free(b.tokens);
    cli_model_close(&b.model);
    return code;
}
