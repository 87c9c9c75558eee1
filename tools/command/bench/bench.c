/* `spillway bench`: speed beside the limits of the machine, which are measured right before and
 * right after.
 *
 * A case is a context under a device budget. Each repeat runs every case once, so a slow minute of
 * the machine affects all cases; the tables show medians. One run of a case:
 *
 *   open (timed) -> a 10-token prompt, its first token (timed) -> a prompt of `context` random
 *   tokens in one step (prefill, timed) -> one token at a time (decode, timed) -> close
 *
 * Before a run, the weight files are read once from the page cache (timed): the time to the first
 * token is compared with this. The machine is probed before the prompt, between prompt and decode,
 * and at the end, because a shared host changes its speed within minutes. A limit is the mean of
 * the two probes around a measurement; if the probes differ much, both are shown.
 *
 * Decode is compared with the bytes of weights and KV that a token reads, at the measured read
 * bandwidth, and with the prediction of spw_predict_step for the typical figures of the same probes
 * (of a drive, those at the start). Limits are the best figures. Prefill is compared with its
 * multiplications at the measured matrix peak. The cost of offloading is the time of a token above
 * the least possible time. The least possible time is the time under the first budget of the list,
 * or the time of the copies alone at the measured copy bandwidth, if that is longer. A GPU is
 * probed only once, because a run leaves no memory to probe with, and because its limits do not
 * drift. On a GPU the attention of a token is also measured alone. */
#include "tools/command/engine.h"
#include "tools/command/bench/bench.h"
#include "tools/command/bench/bench_lines.h"
#include "tools/command/output/progress.h"
#include "runtime/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PROMPT 10 /* tokens of the prompt whose time to the first token is measured */

static struct spw_options case_options(const struct bench *b, const struct bench_case *c,
                                       uint64_t context)
{
    struct spw_options options = cli_engine_options(b->o, context, 1);
    if (b->o->budgets.n > 0)
        options.device_bytes = c->budget;
    options.on_progress = cli_progress_callback();
    options.drive = cli_limits_drive(&b->limits);
    options.machine = b->limits.has_machine ? &b->limits.machine.typical : NULL;
    return options;
}

/* ---- one run ---- */

int bench_sync(struct spw_engine *e, struct spw_session *s, const int32_t *tokens, size_t n,
               double *seconds, struct spw_error *err)
{
    struct spw_span span = {.session = s, .tokens = tokens, .n_tokens = n, .n_logits = 1};
    struct cli_events events = {.quiet_reuse = true}; /* bench --prefix measures it */
    double start = cli_now_seconds();
    int rc = spw_sync(e, &span, 1, NULL, NULL, err);
    *seconds = cli_now_seconds() - start;
    cli_read_events(&events, e);
    cli_events_free(&events);
    return rc < 0 ? rc : cli_interrupted() ? -ECANCELED : 0;
}

int bench_open(struct bench_run *r, const char *model, const struct spw_options *options,
               struct spw_error *err)
{
    double start = cli_now_seconds();
    *r = (struct bench_run){0};
    SPW_TRY(spw_engine_open(&r->engine, model, options, err));
    cli_progress_engine(r->engine, NULL);
    int rc = spw_session_open(&r->session, r->engine, err);
    r->opened = cli_now_seconds() - start;
    return rc;
}

void bench_close(struct bench_run *r)
{
    cli_progress_engine(NULL, NULL);
    cli_progress_clear();
    spw_session_close(r->session);
    spw_engine_close(r->engine);
}

static double larger_over_smaller(double a, double b)
{
    return fmax(a, b) / fmin(a, b);
}

/* Probes the machine again, into b->machine. `before` gets the earlier numbers. */
static int probe_again(struct bench *b, struct spw_machine_range *before, struct spw_error *err)
{
    struct spw_options options = cli_engine_options(b->o, 0, 1);
    *before = b->machine;
    return *b->machine.typical.gpu ? 0 : spw_machine_probe(&b->machine, &options, err);
}

static void take_mean(double *a, double b)
{
    *a = (*a + b) / 2;
}

static void take_mean_speeds(struct spw_product_speed a[SPW_ROW_COUNTS],
                             const struct spw_product_speed b[SPW_ROW_COUNTS])
{
    for (int i = 0; i < SPW_ROW_COUNTS; i++) {
        take_mean(&a[i].byte_seconds, b[i].byte_seconds);
        take_mean(&a[i].short_byte_seconds, b[i].short_byte_seconds);
        take_mean(&a[i].product_seconds, b[i].product_seconds);
    }
}

/* The means of two probes. */
static struct spw_machine mean_limits(const struct spw_machine *a, const struct spw_machine *b)
{
    struct spw_machine m = *a;
    take_mean(&m.read_bytes_per_second, b->read_bytes_per_second);
    take_mean(&m.copy_bytes_per_second, b->copy_bytes_per_second);
    take_mean(&m.read_beside_bytes_per_second, b->read_beside_bytes_per_second);
    take_mean(&m.copy_beside_bytes_per_second, b->copy_beside_bytes_per_second);
    for (int t = 0; t < SPW_WEIGHT_TYPES; t++) {
        take_mean_speeds(m.bf16_products[t], b->bf16_products[t]);
        take_mean_speeds(m.f32_products[t], b->f32_products[t]);
    }
    take_mean(&m.row_operation_seconds, b->row_operation_seconds);
    take_mean(&m.row_number_seconds, b->row_number_seconds);
    for (int i = 0; i < SPW_KV_PRECISIONS; i++) {
        take_mean(&m.attention[i].byte_seconds, b->attention[i].byte_seconds);
        take_mean(&m.attention[i].product_seconds, b->attention[i].product_seconds);
    }
    take_mean(&m.handover_seconds, b->handover_seconds);
    take_mean(&m.handover_core_seconds, b->handover_core_seconds);
    return m;
}

/* Predicts a step. NAN if it reads files of the model whose drive was not measured. */
static double predict(const struct bench *b, const struct bench_case *c,
                      const struct spw_machine *machine)
{
    struct spw_prediction step;
    if (c->plan.decode_moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0 && !b->limits.has_drive)
        return NAN;
    spw_predict_step(&step, &c->plan, machine, cli_limits_drive(&b->limits));
    return step.seconds;
}

/* Compares the decoding of a run with the limits before and after it. */
static void set_beside_limits(const struct bench *b, struct bench_case *c,
                              const struct spw_machine_range *before, size_t repeat)
{
    const struct spw_machine *was = &before->best, *is = &b->machine.best;
    const struct spw_machine m = mean_limits(was, is);
    const struct spw_machine typical = mean_limits(&before->typical, &b->machine.typical);
    double measured = c->samples[DECODE_SECONDS][repeat];
    c->samples[READ_LIMIT][repeat] = m.read_bytes_per_second;
    c->samples[COPY_LIMIT][repeat] = m.copy_bytes_per_second;
    c->samples[DECODE_FRACTION][repeat] =
        (double)c->plan.decode_read_bytes / measured / m.read_bytes_per_second;
    c->samples[PREDICTED][repeat] = predict(b, c, &typical);
    c->samples[PREDICTION][repeat] = c->samples[PREDICTED][repeat] / measured;
    double drift = fmax(larger_over_smaller(was->read_bytes_per_second, is->read_bytes_per_second),
                        larger_over_smaller(was->copy_bytes_per_second, is->copy_bytes_per_second));
    if (drift <= c->drift)
        return;
    c->drift = drift;
    c->before = *before;
    c->after = b->machine;
}

/* Decodes the most likely tokens, as a greedy generation would; choosing a token is part of the
 * time. The first token is not timed, because the probe before it has emptied the caches. */
static int decode(struct bench *b, struct bench_case *c, struct spw_engine *e,
                  struct spw_session *s, size_t repeat, struct spw_error *err)
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
            spw_engine_stats(e, &before);
        double start = cli_now_seconds(), step;
        tokens[c->context + i] = spw_sampler_pick(sampler, &greedy, spw_session_logits(s), tokens,
                                                  c->context, c->context + i);
        rc = bench_sync(e, s, tokens, c->context + i + 1, &step, err);
        sum += i ? cli_now_seconds() - start : 0;
    }
    spw_engine_stats(e, &after);
    spw_sampler_close(sampler);
    c->samples[DECODE_SECONDS][repeat] = sum / (double)n_new;
    c->samples[WAIT_SECONDS][repeat] =
        (after.unhidden_wait_seconds - before.unhidden_wait_seconds) / (double)n_new;
    c->moved_bytes = 0; /* over the link between host and device, without the disk */
    for (int i = SPW_MOVED_HOST_TO_DEVICE; i <= SPW_MOVED_DEVICE_TO_HOST; i++)
        c->moved_bytes += (after.moved_bytes[i] - before.moved_bytes[i]) / n_new;
    c->device_peak_bytes = after.device_peak_bytes;
    c->host_peak_bytes = after.host_peak_bytes;
    c->card_bytes = after.card_bytes;
    return rc;
}

static int run_steps(struct bench *b, struct bench_case *c, struct spw_engine *e,
                     struct spw_session *s, double opened, size_t repeat, struct spw_error *err)
{
    double seconds;
    size_t n_first = (size_t)spw_min_u64(FIRST_PROMPT, c->context);
    SPW_TRY(bench_sync(e, s, b->tokens, n_first, &seconds, err));
    c->samples[FIRST_SECONDS][repeat] = cli_now_seconds() - opened;
    /* With another first token the session reuses nothing of the short prompt. */
    int32_t first = b->tokens[0];
    b->tokens[0] = first ? first - 1 : 1;
    struct spw_machine_range before;
    int rc = bench_sync(e, s, b->tokens, c->context, &seconds, err);
    if (rc == 0)
        rc = probe_again(b, &before, err);
    double peak = (spw_machine_peak(&before.best, c->plan.compute, c->plan.int8_activations) +
                   spw_machine_peak(&b->machine.best, c->plan.compute, c->plan.int8_activations)) /
                  2;
    const struct spw_prompt_work work = cli_prompt_work(&b->model.config, c->context);
    c->samples[PREFILL_SECONDS][repeat] = seconds;
    c->samples[MATRIX_LIMIT][repeat] = peak;
    c->samples[PREFILL_FRACTION][repeat] = /* without cuBLASLt there is no peak */
        peak > 0 ? (work.product_flops + work.attention_flops) / seconds / peak : 0;
    if (rc == 0)
        rc = decode(b, c, e, s, repeat, err);
    if (rc == 0)
        rc = probe_again(b, &before, err);
    if (rc == 0)
        set_beside_limits(b, c, &before, repeat);
    b->tokens[0] = first;
    return rc;
}

static int read_weights(const struct bench *b, double *seconds)
{
    struct spw_error err = {0};
    uint64_t bytes;
    int rc = cli_read_weights(b->o->operand, b->machine.typical.threads, seconds, &bytes);
    if (rc && rc != -ECANCELED)
        spw_fail(&err, rc, "%s: %s", b->o->operand, strerror(-rc));
    return rc ? cli_fail_error(rc, &err, false) : 0;
}

static int run_case(struct bench *b, struct bench_case *c, size_t repeat)
{
    struct spw_options options = case_options(b, c, c->context + b->o->decode_tokens + 1);
    struct bench_run r;
    struct spw_error err = {0};
    int code = read_weights(b, &c->samples[WEIGHTS_SECONDS][repeat]);
    if (code)
        return code;
    double opened = cli_now_seconds();
    int rc = bench_open(&r, b->o->operand, &options, &err);
    if (rc == 0) { /* a note such as memory that could not be pinned explains the numbers */
        snprintf(b->backend, sizeof b->backend, "%s", spw_engine_backend(r.engine));
        cli_notes(spw_engine_note(r.engine));
        rc = run_steps(b, c, r.engine, r.session, opened, repeat, &err);
    }
    bench_close(&r);
    return rc < 0 ? cli_fail_error(rc, &err, false) : 0;
}

/* ---- the sweep ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void find_medians(struct bench *b)
{
    for (size_t i = 0; i < b->n_cases; i++)
        for (int m = 0; m < MEASURES; m++)
            if (b->cases[i].n_runs)
                b->cases[i].median[m] = bench_median(b->cases[i].samples[m], b->cases[i].n_runs);
}

/* Measures the attention of a token alone, on exact and on quantized tiles. */
static int time_attention(struct bench *b)
{
    static const uint32_t bits[BENCH_FORMS] = {0, 8, 4};
    const struct spw_model_config *c = &b->model.config;
    struct spw_options options = cli_engine_options(b->o, 0, 1);
    struct spw_error err = {0};
    b->attention = spw_alloc_zero(b->n_cases * BENCH_FORMS, sizeof *b->attention);
    if (!b->attention)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < b->n_cases && *b->machine.typical.gpu; i += bench_n_budgets(b))
        for (size_t form = 0; form < BENCH_FORMS; form++) {
            struct spw_attention_shape shape = {.n_heads = c->n_heads,
                                                .n_kv_heads = c->kv[c->full_kind].n_heads,
                                                .head_dim = c->kv[c->full_kind].head_dim,
                                                .dtype = b->cases[i].plan.kv,
                                                .k_bits = bits[form],
                                                .v_bits = bits[form],
                                                .context = b->cases[i].context};
            int rc = spw_machine_attention(&b->attention[i * BENCH_FORMS + form], &shape, &options,
                                           &err);
            if (rc < 0)
                return cli_fail_error(rc, &err, false);
        }
    return 0;
}

/* Plans all cases. Refuses budgets that are too small before anything is measured. */
static int plan_cases(struct bench *b)
{
    for (size_t i = 0; i < b->n_cases; i++) {
        struct bench_case *c = &b->cases[i];
        struct spw_error err = {0};
        struct spw_options full = case_options(b, c, c->context + b->o->decode_tokens + 1);
        int rc = spw_plan_query(&c->plan, b->o->operand, &full, &err);
        /* the same budgets in the middle of the decoded tokens */
        struct spw_options middle = case_options(b, c, c->context + b->o->decode_tokens / 2 + 1);
        uint32_t resident = c->plan.n_layers_resident;
        if (rc == 0)
            rc = spw_plan_query(&c->plan, b->o->operand, &middle, &err);
        if (rc < 0)
            return cli_fail_error(rc, &err, true);
        c->plan.n_layers_resident = resident;
    }
    return 0;
}

static int make_cases(struct bench *b)
{
    static const struct cli_counts default_contexts = {.items = {128, 2048}, .n = 2};
    const struct cli_counts *contexts = b->o->contexts.n ? &b->o->contexts : &default_contexts;
    size_t n_budgets = bench_n_budgets(b), n_repeat = b->o->repeat;
    b->n_cases = contexts->n * n_budgets;
    b->cases = spw_alloc_zero(b->n_cases, sizeof *b->cases);
    b->samples = spw_alloc_zero(b->n_cases * MEASURES * n_repeat, sizeof *b->samples);
    if (!b->cases || !b->samples)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < b->n_cases; i++) {
        struct bench_case *c = &b->cases[i];
        c->context = contexts->items[i / n_budgets];
        c->budget = b->o->budgets.n ? b->o->budgets.items[i % n_budgets] : b->o->device_memory;
        for (size_t m = 0; m < MEASURES; m++)
            c->samples[m] = b->samples + (i * MEASURES + m) * n_repeat;
    }
    return plan_cases(b);
}

/* splitmix64 (G. Steele, D. Lea, C. Flood, 2014) */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int32_t *bench_random_tokens(uint32_t vocab, uint64_t seed, size_t n)
{
    int32_t *tokens = spw_alloc_zero(n, sizeof *tokens);
    for (size_t i = 0; tokens && i < n; i++)
        tokens[i] = (int32_t)(next_random(&seed) % vocab);
    return tokens;
}

/* Prompts are the text of --prompt-file, or random tokens. A text that is too short is refused. */
static int make_tokens(struct bench *b)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < b->n_cases; i++)
        longest = spw_max_u64(longest, b->cases[i].context);
    b->tokens =
        bench_random_tokens(b->model.config.vocab, b->o->seed, longest + b->o->decode_tokens + 1);
    if (!b->tokens)
        return cli_fail(CLI_FAILED, "out of memory");
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

/* Runs all cases. The files always have every complete run, because a long sweep may be killed. */
static int run_and_write(struct bench *b, struct bench_case *c)
{
    int code = run_case(b, c, c->n_runs);
    if (code)
        return code;
    c->n_runs++;
    find_medians(b);
    return bench_write(b);
}

static int sweep(struct bench *b)
{
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(b->o, 0, 1);
    if (options.disk_dir)
        cli_limits_read(&b->limits, b->o, &options, SPW_PROBE_UNKNOWN);
    int code = make_cases(b);
    if (code == 0)
        code = make_tokens(b);
    if (code)
        return code;
    cli_note("measuring this machine; then %zu case%s, %llu time%s each", b->n_cases,
             cli_plural(b->n_cases), (unsigned long long)b->o->repeat, cli_plural(b->o->repeat));
    int rc = spw_machine_probe(&b->machine, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, false);
    code = time_attention(b);
    if (code)
        return code;
    double seconds; /* once before the first run, to warm the page cache */
    code = read_weights(b, &seconds);
    if (code)
        return code;
    cli_catch_termination(); /* after an interruption, print what was measured */
    cli_progress_start((enum cli_progress_mode)b->o->progress, false);
    for (size_t repeat = 0; repeat < b->o->repeat && code == 0; repeat++)
        for (size_t i = 0; i < b->n_cases && code == 0; i++)
            code = run_and_write(b, &b->cases[i]);
    cli_progress_end();
    if (b->cases[0].n_runs)
        bench_print(b);
    return code;
}

int cli_bench(const struct cli_options *o)
{
    struct bench b = {.o = o};
    if (o->io_bench && o->prefix_bench)
        return cli_fail(CLI_REFUSED, "found both --io and --prefix, expected one of them");
    if (o->prefix_cache && !o->prefix_bench)
        return cli_fail(CLI_REFUSED, "--prefix-cache: found without --prefix, expected both");
    if (o->io_bench || o->prefix_bench)
        return o->io_bench ? bench_io(o) : bench_prefix(o);
    if (o->random_tokens && o->prompt_file)
        return cli_fail(CLI_REFUSED,
                        "found both --random-tokens and --prompt-file, expected one of them");
    if (o->budgets.n > 0 && cli_given(o, "device-memory"))
        return cli_fail(CLI_REFUSED,
                        "found both --budgets and --device-memory, expected one of them");
    int code = cli_model_open(&b.model, o->operand, o->prompt_file != NULL);
    if (code)
        return code;
    code = sweep(&b);
    spw_free(b.attention);
    spw_free(b.samples);
    spw_free(b.cases);
    spw_free(b.tokens);
    cli_model_close(&b.model);
    return code;
}
