/* `spillway generate`: one prompt whose text is streamed to stdout, or many prompts with a JSON
 * line for each. Refuses bad input before the model is loaded and before a byte of output. */
#include "tools/command/generate/generate.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A request of the batch and its answer. Request number n has reply n - 1. */
struct reply {
    struct run *run;
    const struct cli_input *in;
    char *text; /* owned: the answer of a batch, until its line is printed */
    size_t n_text, capacity;
    bool first, printed;
};

static int print(struct run *r, const char *text, size_t bytes)
{
    cli_progress_clear();
    if (!r->write_error)
        r->write_error = cli_write(text, bytes);
    return r->write_error;
}

static int stream_text(struct reply *s, const char *text, size_t bytes)
{
    SPW_TRY(print(s->run, text, bytes));
    s->run->n_text += bytes;
    return 0;
}

static int keep_text(struct reply *s, const char *text, size_t bytes)
{
    if (s->n_text + bytes > s->capacity) {
        size_t capacity = 2 * (s->n_text + bytes);
        char *grown = spw_realloc(s->text, capacity);
        if (!grown)
            return -ENOMEM;
        s->text = grown;
        s->capacity = capacity;
    }
    memcpy(s->text + s->n_text, text, bytes);
    s->n_text += bytes;
    return 0;
}

static int save_run(struct run *r)
{
    const struct spw_result *running = spw_batch_result(r->batch, 1);
    struct cli_progress_made made = {.prompt = r->inputs.items[0].tokens,
                                     .n_prompt = r->inputs.items[0].n_tokens,
                                     .result = running ? running : r->results,
                                     .n_text = r->n_text};
    int code = cli_saved_write(r->session, r->o, &made, &r->saved_bytes);
    r->n_saves += !code;
    return code;
}

/* A part of a long prompt was computed. If saving it fails, save_run has reported that. */
static void on_pass(void *context)
{
    struct run *r = context;
    cli_read_events(&r->events, r->engine);
    save_run(r);
}

static int on_token(struct reply *s, int32_t token, const float *logits)
{
    struct run *r = s->run;
    cli_progress_token(r->n_expected);
    if (r->ids && !r->o->prompts) {
        char id[16];
        int n = snprintf(id, sizeof id, "%s%d", s->first ? "" : " ", (int)token);
        s->first = false;
        SPW_TRY(print(r, id, (size_t)n));
    }
    if (r->npy && !r->bad_file) {
        int rc = cli_npy_append(r->npy, logits);
        if (rc < 0) {
            r->bad_file = r->o->dump_logits;
            return rc;
        }
    }
    if (cli_interrupted())
        return -ECANCELED;
    if (r->o->save_every && spw_batch_result(r->batch, 1)->n_tokens % r->o->save_every == 0)
        save_run(r); /* after a failure, which save_run has reported, the answer continues */
    return 0;
}

static int check_options(const struct cli_options *o)
{
    static const char *const only_alone[] = {"dump-logits", "ids"};
    static const char *const only_lines[] = {"sessions", "n"};
    for (size_t i = 0; !o->prompts && i < sizeof only_lines / sizeof *only_lines; i++)
        if (cli_given(o, only_lines[i]))
            return cli_fail(CLI_REFUSED, "--%s needs --prompts", only_lines[i]);
    if (cli_given(o, "logprobs") && !o->prompts && !o->report)
        return cli_fail(CLI_REFUSED, "--logprobs needs --prompts or --report");
    for (size_t i = 0; o->prompts && i < sizeof only_alone / sizeof *only_alone; i++)
        if (cli_given(o, only_alone[i]))
            return cli_fail(CLI_REFUSED, "found both --prompts and --%s, expected one of them",
                            only_alone[i]);
    int refused = cli_saved_check(o);
    if (refused)
        return refused;
    if (o->ids && o->stop.n > 0)
        return cli_fail(CLI_REFUSED, "found both --ids and --stop, expected one of them");
    return 0;
}

/* ---- lines of a batch ---- */

/* The line and its newline; takes the reference. */
static int print_json(struct run *r, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(line);
    if (!text)
        return -ENOMEM;
    int rc = print(r, text, strlen(text));
    free(text);
    return rc ? rc : print(r, "\n", 1);
}

static json_t *begin_line(const struct cli_input *in)
{
    json_t *id = json_object_get(in->line, "id");
    const struct cli_field fields[] = {
        {"index", CLI_JSON(in->index)},
        {in->n > 1 ? "choice" : NULL, CLI_JSON(in->choice)},
        {id ? "id" : NULL, json_incref(id)},
    };
    return CLI_OBJECT(fields);
}

/* Prints one answer when its request ends, while other requests still run. `why` is the reason if
 * the request failed, else "". */
static int print_answer(struct reply *s, const struct spw_result *result, const char *why)
{
    json_t *line = begin_line(s->in);
    const char *text = s->text ? s->text : "";
    cli_json_add(&line, "text", CLI_OR_NULL(!s->run->ids, json_stringn(text, s->n_text)));
    cli_report_result(&line, s->in->n_tokens, result);
    /* An answer does not depend on the budgets, waterlines do: only the report has them. */
    json_object_del(line, "waterlines");
    if (*why)
        cli_json_add(&line, "error", CLI_JSON(why));
    s->printed = true;
    cli_progress_answers(++s->run->n_answers, s->run->inputs.n - s->run->inputs.n_refused);
    return print_json(s->run, line);
}

static int print_refused(struct run *r)
{
    int rc = 0;
    for (size_t i = 0; i < r->inputs.n && !rc; i++) {
        const struct cli_input *in = &r->inputs.items[i];
        if (!in->refused)
            continue;
        json_t *line = begin_line(in);
        cli_json_add(&line, "error", CLI_JSON(in->refused));
        rc = print_json(r, line);
    }
    return rc;
}

/* ---- a request ---- */

static struct spw_request make_request(const struct run *r, const struct cli_input *in)
{
    return (struct spw_request){
        .prompt = in->tokens,
        .n_prompt = in->n_tokens,
        .max_new_tokens = in->max_new_tokens,
        .given = r->saved.tokens ? r->saved.tokens + r->saved.n_prompt : NULL,
        .n_given = r->saved.n_given,
        .n_text_given = r->saved.n_text,
        .given_hash = r->saved.logits_hash,
        .session = r->session,
        .sampling = in->sampling,
        .stop = in->stop.items,
        .n_stop = in->stop.n,
        .ignore_eos = in->ignore_eos,
        .logprobs = in->logprobs,
        .n_top_logprobs = in->n_top_logprobs,
        .text = !r->ids,
    };
}

static int on_end(struct reply *s, const struct spw_event *e, struct spw_error *err)
{
    struct run *r = s->run;
    struct spw_result *result = &r->results[e->request - 1];
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", e->text);
    cli_name_options(why);
    spw_batch_take(r->batch, e->request, result);
    r->n_ended++;
    r->n_failed += result->finish == SPW_FINISH_FAILED;
    if (r->o->prompts)
        return print_answer(s, result, why);
    return result->finish == SPW_FINISH_FAILED ? spw_fail(err, -EIO, "%s", why) : 0;
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct run *r = context;
    struct reply *s = &r->replies[e->request - 1];
    switch (e->kind) {
    case SPW_EVENT_TOKEN:
        return on_token(s, e->token, e->logits);
    case SPW_EVENT_TEXT:
        return (s->run->o->prompts ? keep_text : stream_text)(s, e->text, e->text_bytes);
    case SPW_EVENT_END:
        return on_end(s, e, err);
    }
    return 0;
}

/* Submits prompts. As many wait as can run, so that each step is full: a request that waits takes
 * memory. */
static int submit_some(void *context, struct spw_error *err)
{
    struct run *r = context;
    const uint64_t most = 2 * (uint64_t)spw_engine_plan(r->engine)->sessions;
    for (; r->next_input < r->inputs.n && r->n_submitted - r->n_ended < most; r->next_input++) {
        const struct cli_input *in = &r->inputs.items[r->next_input];
        uint64_t id;
        if (in->refused)
            continue;
        const struct spw_request request = make_request(r, in);
        SPW_TRY(spw_batch_submit(r->batch, &request, &id, err));
        r->replies[r->n_submitted++] = (struct reply){.run = r, .in = in, .first = true};
    }
    return r->next_input < r->inputs.n;
}

static int run_batch(struct run *r, struct spw_error *err)
{
    SPW_TRY(spw_batch_open(&r->batch, r->engine, r->model.tokenizer, err));
    const struct cli_batch b = {.engine = r->engine,
                                .batch = r->batch,
                                .events = &r->events,
                                .submit = submit_some,
                                .on_event = on_event,
                                .context = r};
    return cli_run_batch(&b, err);
}

/* Takes the results of requests that a failure has ended. */
static void take_ended(struct run *r)
{
    for (uint64_t id = 1; id <= r->n_submitted; id++)
        if (!spw_batch_cancel(r->batch, id)) {
            spw_batch_take(r->batch, id, &r->results[id - 1]);
            r->results[id - 1].finish = SPW_FINISH_FAILED;
        }
}

/* ---- one run ---- */

static int open_session(struct run *r)
{
    struct spw_error err = {0};
    int rc = 0;
    if (r->saved.file)
        rc = spw_session_resume(&r->session, r->engine, r->saved.file, &err);
    else if (r->o->save)
        rc = spw_session_open(&r->session, r->engine, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    return r->o->save ? cli_saved_hold(r->session, r->engine, r->o, &r->inputs.items[0]) : 0;
}

/* Leaves out the longest line. `why`: the reason, as the library says it. */
static int refuse_longest(struct run *r, struct spw_error *why)
{
    size_t i = 0;
    while (r->inputs.items[i].refused ||
           r->inputs.items[i].n_tokens + r->inputs.items[i].max_new_tokens < r->inputs.longest)
        i++;
    cli_name_options(why->text);
    return cli_inputs_refuse(&r->inputs, r->o, &r->inputs.items[i], why->text);
}

/* Whether budgets suffice for anything at all. */
static bool any_plan(const struct run *r, const struct spw_options *options)
{
    struct spw_plan_info plan;
    struct spw_options least = *options;
    least.context = least.sessions = 1;
    return !spw_plan_query(&plan, r->o->operand, &least, NULL);
}

/* Leaves out prompts that no plan has room for, the longest first; one prompt always stays. As many
 * of the others run at a time as there is room for. */
static int fit_prompts(struct run *r, struct spw_options *options)
{
    struct spw_error err = {0};
    int code = 0;
    bool may_refuse = r->o->prompts && !r->o->context && any_plan(r, options);
    while (r->o->prompts && !code) {
        size_t n = r->inputs.n - r->inputs.n_refused;
        options->context = r->o->context ? r->o->context : r->inputs.longest;
        options->sessions = (uint32_t)spw_min_u64(r->o->sessions, n);
        if (cli_fit_sessions(options, r->o, &err) != -ENOMEM || !may_refuse || n == 1)
            break; /* if no plan works, opening the engine says why */
        code = refuse_longest(r, &err);
    }
    return code;
}

static int open_engine(struct run *r)
{
    const struct cli_options *o = r->o;
    size_t n = r->inputs.n - r->inputs.n_refused;
    uint32_t sessions = o->prompts ? (uint32_t)spw_min_u64(o->sessions, n) : 1;
    struct spw_options options =
        cli_engine_options(o, o->context ? o->context : r->inputs.longest, sessions);
    int code = fit_prompts(r, &options);
    if (code)
        return code;
    options.on_progress = cli_progress_callback();
    options.saves = o->save || o->resume;
    options.rolls_back = o->save; /* an interrupted run can be saved, too */
    options.on_pass = o->save ? on_pass : NULL;
    options.pass_context = r;
    if (o->report || options.disk_dir) /* measuring needs memory that the engine would take */
        cli_limits_read_for(&r->limits, o, &options);
    code = cli_engine_open(&r->engine, &r->events, o, &options, &r->limits);
    if (code)
        return code;
    cli_progress_engine(r->engine, &r->events);
    if (o->dump_logits) {
        code = cli_npy_open(&r->npy, o->dump_logits, r->model.config.vocab);
        if (code)
            return code;
    }
    for (size_t i = 0; i < r->inputs.n; i++)
        if (!r->inputs.items[i].refused)
            r->n_expected += r->inputs.items[i].max_new_tokens;
    r->n_expected -= r->saved.n_given;
    r->n_text = r->saved.n_text;
    return open_session(r);
}

/* Reports the reason why a generation ended early. */
static int explain(const struct run *r, int rc, const struct spw_error *err)
{
    if (rc == -EPIPE && r->write_error == -EPIPE)
        return CLI_FAILED;
    if (r->write_error)
        return cli_fail(CLI_FAILED, "stdout: %s", strerror(-r->write_error));
    if (r->bad_file)
        return cli_fail(CLI_FAILED, "%s: %s", r->bad_file, strerror(-rc));
    return cli_fail_error(rc, err, false);
}

/* The library failed, or the run was interrupted. Prints the unfinished answers of a batch and
 * writes the report. Text of a single prompt is already on stdout. */
static int report_unfinished(struct run *r, const struct spw_result *results,
                             const struct spw_batch_times *times, int code)
{
    size_t n = 0;
    for (uint64_t i = 0; i < r->n_submitted; i++)
        n += results[i].n_tokens;
    if (n == 0 || code == CLI_REFUSED || r->write_error || r->bad_file)
        return code;
    for (uint64_t i = 0; r->o->prompts && i < r->n_submitted; i++)
        if (!r->replies[i].printed && results[i].n_tokens &&
            print_answer(&r->replies[i], &results[i], ""))
            return code;
    if (r->o->report && run_write_report(r, results, times) == 0)
        cli_fail(0, "%s has the %zu tokens that were generated before", r->o->report, n);
    return code;
}

/* Saves a run that ended early, with the tokens that its session still has. */
static void save_ended(struct run *r)
{
    if (!r->o->save)
        return;
    if (!spw_session_n_tokens(r->session))
        cli_fail(0, "%s was not written: no part of the prompt has passed all layers", r->o->save);
    else if (!save_run(r))
        cli_fail(0, "%s has the run up to this point; --resume %s continues it", r->o->save,
                 r->o->save);
}

/* Says why the text ends here, unless the model ended it. */
static void say_end(const struct run *r, const struct spw_result *result)
{
    if (r->saved.file && result->n_tokens == r->saved.n_given)
        cli_note("%s: this run is complete: there is nothing to generate%s", r->o->resume,
                 result->finish == SPW_FINISH_LENGTH ? "; a larger --max-new-tokens continues it"
                                                     : "");
    else if (result->finish == SPW_FINISH_LENGTH && result->n_tokens)
        cli_note("the answer was cut off after %zu new token%s; a larger --max-new-tokens allows "
                 "more",
                 result->n_tokens, cli_plural(result->n_tokens));
}

static int finish(struct run *r, const struct spw_result *results,
                  const struct spw_batch_times *times)
{
    /* A line break follows token ids, and text on a terminal, before the prompt of the shell. In a
     * file every byte is text. */
    if (!r->o->prompts && (r->ids || isatty(STDOUT_FILENO) == 1))
        cli_write("\n", 1);
    for (size_t i = 0; i < r->inputs.n && !r->ids; i++)
        cli_say_unnamed(&r->model, results[i].tokens, results[i].n_tokens);
    if (!r->o->prompts)
        say_end(r, &results[0]);
    int code = r->o->save ? save_run(r) : 0;
    if (code == 0 && r->o->report)
        code = run_write_report(r, results, times);
    size_t n_missing = r->inputs.n_refused + r->n_failed;
    if (code == 0 && n_missing)
        code = cli_fail(CLI_FAILED, "%zu of %zu lines were not answered", n_missing, r->inputs.n);
    return code;
}

static int generate(struct run *r, struct spw_result *results)
{
    struct spw_batch_times times = {0};
    struct spw_error err = {0};
    r->results = results;
    for (size_t i = 0; i < r->inputs.n; i++)
        results[i].finish = SPW_FINISH_FAILED; /* until it ends */
    int rc = print_refused(r);
    if (r->o->prompts)
        cli_progress_answers(0, r->inputs.n - r->inputs.n_refused);
    if (!rc)
        rc = run_batch(r, &err);
    cli_progress_end();
    if (r->batch) {
        spw_batch_times(r->batch, &times);
        take_ended(r);
    }
    int npy_code = cli_npy_close(r->npy);
    r->npy = NULL;
    if (rc < 0) {
        int why = explain(r, rc, &err);
        save_ended(r);
        return report_unfinished(r, results, &times, why);
    }
    return npy_code ? npy_code : finish(r, results, &times);
}

static int run_all(struct run *r)
{
    size_t n = r->inputs.n;
    struct reply *replies = r->replies = spw_alloc_zero(n, sizeof *replies);
    struct spw_result *results = spw_alloc_zero(n, sizeof *results);
    int code = replies && results ? generate(r, results) : cli_fail(CLI_FAILED, "out of memory");
    spw_batch_close(r->batch);
    for (size_t i = 0; i < n && replies && results; i++) {
        spw_free(replies[i].text);
        spw_result_free(&results[i]);
    }
    spw_free(results);
    spw_free(replies);
    return code;
}

static bool takes_ids(const struct cli_options *o)
{
    return o->token_ids || o->resume || o->prompts;
}

/* A model without a tokenizer can run on token ids. Its answer is printed as ids, also without
 * --ids. Stop texts need a tokenizer. */
static int open_model(struct run *r)
{
    const struct cli_options *o = r->o;
    const bool may_lack = takes_ids(o) && !o->ids && o->stop.n == 0;
    struct spw_error err = {0};
    r->ids = o->ids;
    int code = cli_model_open(&r->model, o->operand, !takes_ids(o) || (!o->ids && o->stop.n > 0));
    if (code || !may_lack)
        return code;
    int rc = r->model.source->ops->tokenizer(r->model.source, &r->model.tokenizer, &err);
    if (rc == -ENOENT) {
        cli_note("%s, so token ids are printed instead of text", err.text);
        r->ids = true;
        return 0;
    }
    if (rc)
        cli_model_close(&r->model);
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

static int read_inputs(struct run *r)
{
    const struct spw_sampling sampling = cli_sampling(r->o);
    int code = cli_check_stops(r->o, r->model.tokenizer);
    if (!code)
        code = cli_check_biases("--logit-bias", &sampling, r->model.config.vocab);
    if (code)
        return code;
    return r->saved.file ? cli_saved_input(&r->saved, &r->inputs, r->o, &r->model)
                         : cli_inputs_read(&r->inputs, r->o, &r->model, false);
}

int cli_generate(const struct cli_options *given)
{
    struct cli_options options = *given; /* a copy: a saved run brings its own options */
    const struct cli_options *o = &options;
    struct run r = {.o = o};
    if (o->save)
        cli_catch_termination();
    int code = check_options(o);
    if (code == 0)
        code = cli_saved_open(&r.saved, &options);
    if (code)
        return code;
    code = open_model(&r);
    if (code) {
        cli_saved_close(&r.saved);
        return code;
    }
    code = read_inputs(&r);
    bool terminal = isatty(STDOUT_FILENO) == 1 && !o->prompts;
    cli_progress_start((enum cli_progress_mode)o->progress, terminal);
    if (code == 0)
        code = open_engine(&r);
    if (code == 0)
        code = run_all(&r);
    cli_progress_end();
    cli_npy_close(r.npy);
    spw_session_close(r.session);
    spw_engine_close(r.engine);
    cli_events_free(&r.events);
    cli_inputs_free(&r.inputs);
    cli_model_close(&r.model);
    cli_saved_close(&r.saved);
    return code;
}
