/* `spillway score`: the log-likelihood of a text. Each token is scored with all tokens before it.
 */
#include "tools/command/check_kv.h"
#include "tools/command/input/input.h"
#include "tools/command/limits.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <math.h>
#include <string.h>

struct score {
    const int32_t *tokens;
    size_t n_tokens;
    uint32_t vocab;
    double log_likelihood; /* nats */
};

/* log softmax(logits)[id], computed in double from f32 logits [vocab]. */
static double log_probability(const float *logits, uint32_t vocab, int32_t id)
{
    float top = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        top = fmaxf(top, logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)top);
    return (double)logits[id] - (double)top - log(sum);
}

static void on_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct score *s = context;
    (void)span;
    if (position + 1 < s->n_tokens) /* the last token has no successor */
        s->log_likelihood += log_probability(logits, s->vocab, s->tokens[position + 1]);
}

static int read_text(const struct cli_options *o, const struct cli_model *m, const char *source,
                     int32_t **ids, size_t *n)
{
    if (strcmp(source, "token-ids") == 0)
        return cli_read_ids(o->token_ids, ids, n);
    if (strcmp(source, "text") == 0)
        return cli_encode(m->tokenizer, "--text", o->text, strlen(o->text), true, ids, n);
    char *text;
    size_t bytes;
    int code = cli_read_file(o->text_file, &text, &bytes);
    if (code)
        return code;
    code = cli_encode(m->tokenizer, o->text_file, text, bytes, true, ids, n);
    spw_free(text);
    return code;
}

static int print_score(const struct cli_options *o, const struct score *s)
{
    size_t n_scored = s->n_tokens - 1;
    double mean = -s->log_likelihood / (double)n_scored;
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

static int write_report(const struct cli_options *o, struct spw_engine *e, const struct score *s,
                        const struct spw_session *session, double seconds)
{
    struct spw_waterlines w;
    spw_session_waterlines(session, &w);
    const struct cli_field fields[] = {
        {"prefill_seconds", CLI_JSON(seconds)}, {"decode_seconds", CLI_JSON(0.0)},
        {"n_prompt", CLI_JSON(s->n_tokens)},    {"n_generated", CLI_JSON(0)},
        CLI_FIELD(s, log_likelihood),           {"waterlines", cli_report_waterlines(&w)},
    };
    json_t *report = cli_report_engine(o->operand, e);
    CLI_ADD(&report, fields);
    return cli_write_json(o->report, report);
}

static int score_text(const struct cli_options *o, struct score *s)
{
    struct spw_options options = cli_engine_options(o, o->context ? o->context : s->n_tokens, 1);
    struct spw_engine *engine = NULL;
    struct spw_session *session = NULL;
    struct spw_error err = {0};
    cli_progress_start((enum cli_progress_mode)o->progress, false);
    options.on_progress = cli_progress_callback();
    struct cli_limits limits = {0};
    if (options.disk_dir)
        cli_limits_read_for(&limits, o, &options);
    int rc = spw_engine_open(&engine, o->operand, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    if (*limits.why.text)
        cli_note("%s", limits.why.text);
    cli_say_device(o, engine);
    cli_check_kv_warn(o, &options);
    cli_progress_engine(engine);
    rc = spw_session_open(&session, engine, &err);
    struct spw_span span = {
        .session = session, .tokens = s->tokens, .n_tokens = s->n_tokens, .n_logits = s->n_tokens};
    double start = cli_now_seconds();
    if (rc == 0)
        rc = spw_sync(engine, &span, 1, on_logits, s, &err);
    double seconds = cli_now_seconds() - start;
    cli_progress_end();
    int code = rc < 0 ? cli_fail_error(rc, &err, false) : 0;
    if (code == 0 && isnan(s->log_likelihood))
        code = cli_fail(CLI_FAILED, "the logits are not numbers (NaN): %s",
                        spw_engine_nan_advice(engine));
    if (code == 0)
        code = print_score(o, s);
    if (code == 0 && o->report)
        code = write_report(o, engine, s, session, seconds);
    spw_session_close(session);
    spw_engine_close(engine);
    return code;
}

int cli_score(const struct cli_options *o)
{
    static const char *const sources[] = {"text", "text-file", "token-ids", NULL};
    struct cli_model m;
    const char *source;
    int32_t *ids = NULL;
    size_t n = 0;
    int code = cli_one_of(o, sources, false, &source);
    if (code)
        return code;
    code = cli_model_open(&m, o->operand, !o->token_ids);
    if (code)
        return code;
    code = read_text(o, &m, source, &ids, &n);
    if (code == 0)
        code = cli_check_ids(o->token_ids ? o->token_ids : source, ids, n, m.config.vocab);
    if (code == 0 && n < 2)
        code = cli_fail(CLI_REFUSED,
                        "--%s: found one token, expected at least two: the first has "
                        "nothing before it",
                        source);
    if (code == 0 && o->context && o->context < n)
        code = cli_fail(CLI_REFUSED,
                        "--context: found %llu, expected at least %zu, the tokens of "
                        "the text",
                        (unsigned long long)o->context, n);
    if (code == 0)
        code = cli_check_context(o, &m, o->context ? o->context : n);
    struct score s = {.tokens = ids, .n_tokens = n, .vocab = m.config.vocab};
    if (code == 0)
        code = score_text(o, &s);
    spw_free(ids);
    cli_model_close(&m);
    return code;
}
