/* The engine of a command: see engine.h. */
#include "tools/command/engine.h"

#include "tools/command/check_kv.h"
#include "tools/command/limits.h"
#include "tools/command/experts.h"

#include <string.h>

/* 0 on the command line means "none". For the library 0 means "choose a number", which is also the
 * value of an option that was not given. */
static uint64_t budget(const struct cli_options *o, const char *name, uint64_t bytes)
{
    return cli_given(o, name) && bytes == 0 ? SPW_NONE : bytes;
}

struct spw_options cli_engine_options(const struct cli_options *o, uint64_t context,
                                      uint32_t sessions)
{
    static char checksums[CLI_PATH_BYTES]; /* the options borrow it */
    return (struct spw_options){
        .backend = (enum spw_backend_kind)o->device.kind,
        .device_index = o->device.index,
        .threads = (uint32_t)o->threads,
        .device_bytes = budget(o, "device-memory", o->device_memory),
        .host_bytes = budget(o, "host-memory", o->host_memory),
        .disk_dir = o->disk,
        .disk_bytes = budget(o, "disk-memory", o->disk_memory),
        .disk_write_limit = budget(o, "disk-write-limit", o->disk_write_limit),
        .prefix_cache_dir = o->prefix_cache,
        .prefix_cache_bytes = budget(o, "prefix-cache-size", o->prefix_cache_size),
        .prefix_cache_trusts_others = o->trust_prefix_cache,
        .io = (enum spw_io_kind)o->io,
        .weight_checksums = cli_cache_path(o->weight_checksums, "weight-checksums", checksums),
        .compute = (enum spw_dtype)o->compute,
        .kv = o->kv_dtype < CLI_KV_PRECISION ? (enum spw_dtype)o->kv_dtype : SPW_DTYPE_AUTO,
        .precision = o->kv_dtype < CLI_KV_PRECISION
                         ? SPW_KV_EXACT
                         : (enum spw_kv_precision)(o->kv_dtype - CLI_KV_PRECISION),
        .residual_window = budget(o, "residual-window", o->residual_window),
        .context = context,
        .past_positions = o->allow_long_context,
        .sessions = sessions,
        .prefill_chunk = (uint32_t)o->prefill_chunk,
        .prefetch_slots = (uint32_t)o->prefetch_slots,
        .prefetch_splits = (uint32_t)o->prefetch_splits,
        .drafts = (enum spw_drafts)o->drafts,
        .host_compute = (enum spw_host_compute)o->host_compute,
        .draft_model = o->draft_model,
        .delay_seed = o->delay_seed,
        .serial_kernels = o->serial_kernels,
        .interrupt = &cli_interrupt,
        .on_oom = (unsigned)o->on_oom,
        .gate = cli_check_kv_gate,
        .gate_context = (void *)o,
    };
}

static int plan_for(struct spw_options *options, const struct cli_options *o,
                    uint32_t full_sessions, struct spw_error *err)
{
    struct spw_plan_info plan;
    spw_error_clear(err);
    options->full_sessions = full_sessions;
    return spw_plan_query(&plan, o->operand, options, err);
}

/* As cli_fit_sessions, with as many sessions as the options have. */
static int fit_contexts(struct spw_options *options, const struct cli_options *o,
                        struct spw_error *err)
{
    struct spw_options exact = *options;
    uint32_t most = 1, none = options->sessions;
    exact.gate = NULL;
    options->full_sessions = 0;
    int rc = plan_for(&exact, o, 0, err);
    if (!cli_is_too_small(rc) || options->sessions == 1)
        return cli_is_too_small(rc) ? plan_for(options, o, 0, err) : rc;
    if (cli_is_too_small(plan_for(&exact, o, 1, err)))
        return plan_for(options, o, 1, err);
    while (none - most > 1) {
        uint32_t middle = most + (none - most) / 2;
        *(plan_for(&exact, o, middle, NULL) ? &none : &most) = middle;
    }
    spw_error_clear(err);
    options->full_sessions = most;
    return 0;
}

int cli_fit_sessions(struct spw_options *options, const struct cli_options *o, uint32_t least,
                     struct spw_error *err)
{
    for (;;) {
        const uint32_t n = options->sessions, half = n / 2;
        int rc = fit_contexts(options, o, err);
        if (!cli_is_too_small(rc) || n <= 1)
            return rc;
        options->sessions = n > least ? spw_max_u32(half, least) : half;
    }
}

void cli_count_full(struct spw_options *options, const struct cli_options *o,
                    const struct cli_input *in)
{
    struct spw_plan_info plan;
    const uint64_t own = in->max_new_tokens + 2 * spw_plan_tile_tokens();
    const uint64_t all = in->n_tokens + options->sessions * own;
    options->full_sessions =
        (uint32_t)spw_min_u64(options->sessions, spw_div_up(all, options->context));
    if (options->sessions > 1 && !spw_plan_query(&plan, o->operand, options, NULL) &&
        !plan.shares_tiles)
        options->full_sessions = options->sessions;
}

/* Says that prompts may wait for memory. The beams of the command's own search have one prompt. */
static void say_pool(const struct cli_options *o, const struct spw_engine *e)
{
    const struct spw_plan_info *p = spw_engine_plan(e);
    if (p->full_sessions < p->sessions && o->num_beams <= 1)
        cli_note("there is memory for %llu tokens of all prompts that run; a prompt waits until it "
                 "fits with its answer",
                 (unsigned long long)(p->full_sessions * p->context));
}

/* Names the device if the user did not, and prints the engine's notes. */
static void say_device(const struct cli_options *o, const struct spw_engine *e)
{
    if (o->device.kind == SPW_BACKEND_AUTO || !cli_given(o, "device"))
        cli_note("on %s", spw_engine_backend(e));
    cli_notes(spw_engine_note(e));
}

/* Once in a process: a job opens another engine when a longer item comes. */
static void say_wrapper(const char *wrapper)
{
    static bool said;
    if (wrapper && !said)
        cli_note("only the text model of this %s model runs: its parts for images are left out",
                 wrapper);
    said = said || wrapper;
}

/* The models must mean the same by each token. */
static int compare_tokens(const struct cli_options *o, const struct spw_tokenizer *a,
                          const struct spw_tokenizer *b)
{
    const uint32_t n = spw_min_u32(spw_tokenizer_vocab_size(a), spw_tokenizer_vocab_size(b));
    for (uint32_t id = 0; id < n; id++) {
        const char *x = spw_tokenizer_token(a, (int32_t)id),
                   *y = spw_tokenizer_token(b, (int32_t)id);
        if (x && y && strcmp(x, y) != 0)
            return cli_fail(
                CLI_REFUSED,
                "--draft-model: token %u is %s in %s and %s in %s; a draft model has the "
                "same tokens as the model",
                id, y, o->draft_model, x, o->operand);
    }
    return 0;
}

static int check_draft_model(const struct cli_options *o, const struct cli_model *m)
{
    struct cli_model drafter = {0};
    if (!o->draft_model && o->drafts == SPW_DRAFTS_MODEL)
        return cli_fail(CLI_REFUSED, "--drafts model needs --draft-model");
    if (!o->draft_model)
        return 0;
    if (o->drafts != SPW_DRAFTS_AUTO && o->drafts != SPW_DRAFTS_MODEL)
        return cli_fail(CLI_REFUSED, "--draft-model needs --drafts auto or model");
    int code = cli_refuse_encoder(m, "--draft-model");
    if (!code)
        code = cli_model_open(&drafter, o->draft_model, m->tokenizer);
    if (!code)
        code = cli_refuse_encoder(&drafter, "--draft-model");
    if (!code && m->tokenizer)
        code = compare_tokens(o, m->tokenizer, drafter.tokenizer);
    cli_model_close(&drafter);
    return code;
}

/* The option of a list; `name` [40] gets it. */
static const char *option_of(enum spw_token_list_kind kind, char *name)
{
    snprintf(name, 40, "--%s", spw_token_list_name(kind));
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return name;
}

/* Refuses biases and rules for tokens that the model does not have. */
static int check_tokens(const struct cli_options *o, uint32_t vocab)
{
    const struct spw_sampling s = cli_sampling(o);
    char name[40];
    int code = 0;
    for (size_t i = 0; i < s.n_logit_bias; i++)
        if ((uint32_t)s.logit_bias[i].token >= vocab)
            return cli_fail(CLI_REFUSED, "--logit-bias: found the token id %d, expected 0 to %u",
                            (int)s.logit_bias[i].token, vocab - 1);
    for (int k = 0; k < SPW_TOKEN_LISTS && !code; k++)
        code = cli_check_ids(option_of((enum spw_token_list_kind)k, name), s.rules.lists[k].ids,
                             s.rules.lists[k].n, vocab);
    return code;
}

int cli_check_answers(const struct cli_options *o, const struct cli_model *m)
{
    int code = cli_check_stops(o, m->tokenizer);
    if (!code)
        code = check_tokens(o, m->config.vocab);
    return code ? code : check_draft_model(o, m);
}

int cli_engine_open(struct spw_engine **out, struct cli_events *events, const struct cli_options *o,
                    const struct spw_options *options, const struct cli_limits *limits)
{
    struct spw_error err = {0};
    struct spw_options with_counts = *options;
    struct spw_expert_counts *counts = cli_experts_counts(o);
    with_counts.expert_counts = counts;
    int rc = spw_engine_open(out, o->operand, &with_counts, &err);
    spw_expert_counts_free(counts);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    cli_read_events(events, *out);
    if (*limits->why.text)
        cli_note("%s", limits->why.text);
    say_device(o, *out);
    say_wrapper(spw_engine_config(*out)->wrapper);
    say_pool(o, *out);
    cli_check_kv_warn(o, options);
    return 0;
}

/* To an option 0 means off, to a request SPW_NONE. */
static uint64_t rule_of(uint64_t option)
{
    return option == SPW_NONE ? 0 : option ? option : SPW_NONE;
}

struct spw_sampling cli_sampling(const struct cli_options *o)
{
    struct spw_token_rules rules = {.no_repeat_ngram_size = rule_of(o->no_repeat_ngram_size),
                                    .min_length = rule_of(o->min_length),
                                    .min_new_tokens = rule_of(o->min_new_tokens)};
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        if (o->token_lists[k].is_given)
            rules.lists[k] = (struct spw_token_list){o->token_lists[k].items, o->token_lists[k].n};
    return (struct spw_sampling){
        .temperature = (float)o->temperature,
        .top_k = (uint32_t)o->top_k,
        .top_p = (float)o->top_p,
        .min_p = (float)o->min_p,
        .repetition_penalty = (float)o->repetition_penalty,
        .presence_penalty = (float)o->presence_penalty,
        .frequency_penalty = (float)o->frequency_penalty,
        .logit_bias = o->logit_bias.items,
        .n_logit_bias = o->logit_bias.n,
        .rules = rules,
        .seed = o->seed,
    };
}
