/* `spillway score`: the log-likelihood of a text. Each token is scored with all tokens before it.
 */
#include "tools/command/score.h"

#include "tools/command/engine.h"
#include "tools/command/input/input.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <math.h>
#include <string.h>

static int read_text(const struct cli_options *o, const struct cli_model *m, const char *source,
                     int32_t **ids, size_t *n)
{
    if (strcmp(source, "token-ids") == 0)
        return cli_read_ids(o->token_ids, ids, n);
    if (strcmp(source, "text") == 0)
        return cli_encode(m->tokenizer, "--text", o->text, strlen(o->text), true, ids, n);
    return cli_encode_file(m->tokenizer, o->text_file, true, ids, n);
}

/* Which of the options names the tokens. */
static int find_source(const struct cli_options *o, const char **source)
{
    static const char *const sources[] = {"text", "text-file", "token-ids", NULL};
    return cli_one_of(o, sources, false, source);
}

/* An engine would refuse it, too, but `quantize` opens one only when its file is written. */
static int check_context(const struct cli_options *o, const struct cli_model *m, uint64_t context)
{
    const struct spw_options wanted = {.context = context, .past_positions = o->allow_long_context};
    struct spw_error err = {0};
    const int rc = spw_check_context(&m->config, &wanted, &err);
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

static int check_tokens(const struct cli_options *o, const struct cli_model *m, const char *source,
                        const struct cli_score *s)
{
    int code = cli_check_ids(o->token_ids ? o->token_ids : source, s->tokens, s->n_tokens,
                             m->config.vocab);
    if (code)
        return code;
    if (s->n_tokens < 2)
        return cli_fail(CLI_REFUSED,
                        "--%s: found one token, expected at least two: the first has "
                        "nothing before it",
                        source);
    if (o->context && o->context < s->n_tokens)
        return cli_fail(CLI_REFUSED,
                        "--context: found %llu, expected at least %zu, the tokens of "
                        "the text",
                        (unsigned long long)o->context, s->n_tokens);
    return check_context(o, m, o->context ? o->context : s->n_tokens);
}

int cli_score_read(const struct cli_options *o, struct cli_score *s)
{
    struct cli_model m;
    const char *source;
    int code = find_source(o, &source);
    if (code)
        return code;
    code = cli_model_open(&m, o->operand, !o->token_ids);
    if (code)
        return code;
    code = cli_refuse_encoder(&m, o->text_file ? "--text-file" : "score");
    if (code == 0)
        code = read_text(o, &m, source, &s->tokens, &s->n_tokens);
    if (code == 0)
        code = check_tokens(o, &m, source, s);
    cli_model_close(&m);
    return code;
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    (void)context;
    return e->kind == SPW_EVENT_END && e->text_bytes ? spw_fail(err, -EIO, "%s", e->text) : 0;
}

/* Runs a request for no new token, which returns the log-probabilities of its prompt. */
static int run(struct cli_score *s, struct spw_error *err)
{
    const struct spw_request request = {
        .prompt = s->tokens, .n_prompt = s->n_tokens, .prompt_logprobs = true};
    struct spw_result result;
    struct spw_batch_times times;
    struct cli_batch b = {.engine = s->engine, .events = &s->events, .on_event = on_event};
    const double start = cli_now_seconds();
    const int rc = cli_run_request(&b, NULL, &request, &result, &times, err);
    s->seconds = cli_now_seconds() - start;
    for (size_t i = 1; !rc && i < s->n_tokens; i++)
        s->log_likelihood += result.prompt_logprobs[i];
    s->waterlines = result.waterlines;
    spw_result_free(&result);
    return rc;
}

int cli_score_run(const struct cli_options *o, struct cli_score *s)
{
    struct spw_options options = cli_engine_options(o, o->context ? o->context : s->n_tokens, 1);
    struct spw_error err = {0};
    cli_progress_start((enum cli_progress_mode)o->progress, NULL, false);
    options.on_progress = cli_progress_callback();
    struct cli_limits limits = {0};
    if (options.disk_dir)
        cli_limits_read_for(&limits, o, &options);
    int code = cli_engine_open(&s->engine, &s->events, o, &options, &limits);
    if (code)
        return code;
    cli_progress_engine(s->engine, &s->events, NULL);
    int rc = run(s, &err);
    cli_progress_end();
    if (rc < 0)
        return cli_fail_error(rc, &err, false);
    if (isnan(s->log_likelihood))
        return cli_fail(CLI_FAILED, "the logits are not numbers (NaN): %s",
                        spw_engine_nan_advice(s->engine));
    return 0;
}

void cli_score_close(struct cli_score *s)
{
    spw_engine_close(s->engine);
    cli_events_free(&s->events);
    s->engine = NULL;
    s->events = (struct cli_events){0};
}

double cli_score_loss(const struct cli_score *s)
{
    return -s->log_likelihood / (double)(s->n_tokens - 1);
}

static int print_score(const struct cli_options *o, const struct cli_score *s)
{
    size_t n_scored = s->n_tokens - 1;
    double mean = cli_score_loss(s);
    if (!o->json) {
        printf("tokens          %zu (%zu scored)\n"
               "log-likelihood  %.6f nats\n"
               "mean            %.6f nats/token\n"
               "perplexity      %.6f\n",
               s->n_tokens, n_scored, s->log_likelihood, mean, exp(mean));
        return 0;
    }
    const struct cli_field fields[] = {
        {"model", CLI_JSON(o->operand)},    CLI_FIELD(s, n_tokens),
        {"n_scored", CLI_JSON(n_scored)},   CLI_FIELD(s, log_likelihood),
        {"nats_per_token", CLI_JSON(mean)}, {"perplexity", CLI_JSON(exp(mean))},
    };
    return cli_print_json(CLI_OBJECT(fields));
}

static int write_report(const struct cli_options *o, const struct cli_score *s)
{
    const struct cli_field fields[] = {
        {"prefill_seconds", CLI_JSON(s->seconds)},
        {"decode_seconds", CLI_JSON(0.0)},
        {"n_prompt", CLI_JSON(s->n_tokens)},
        {"n_generated", CLI_JSON(0)},
        CLI_FIELD(s, log_likelihood),
        {"waterlines", cli_report_waterlines(&s->waterlines)},
    };
    json_t *report = cli_report_engine(o->operand, s->engine, &s->events, NULL);
    CLI_ADD(&report, fields);
    return cli_write_json(o->report, report);
}

int cli_score(const struct cli_options *o)
{
    struct cli_score s = {0};
    int code = cli_score_read(o, &s);
    if (code == 0)
        code = cli_score_run(o, &s);
    if (code == 0) {
        int printed = print_score(o, &s);
        code = o->report ? write_report(o, &s) : 0;
        code = printed ? printed : code;
    }
    cli_score_close(&s);
    spw_free(s.tokens);
    return code;
}
