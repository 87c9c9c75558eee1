/* `spillway generate`: one prompt whose text is streamed to stdout. Refuses bad input before the
 * model is loaded and before a byte of output. Many prompts (--prompts) are a job. */
#include "model/text/grammar/grammar.h"
#include "tools/command/engine.h"
#include "tools/command/experts.h"
#include "tools/command/input/saved.h"
#include "tools/command/output/npy.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/report.h"
#include "tools/command/transcribe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
    const struct cli_options *o;
    struct cli_model model;
    struct cli_inputs inputs;
    struct cli_saved saved; /* the saved run that this run continues; empty: none */
    struct spw_engine *engine;
    struct cli_events events;
    struct spw_session *session; /* the session of --save and --resume, owned */
    struct cli_batch batch;      /* of the only request, while it runs */
    struct spw_batch_times times;
    struct spw_result result;   /* owned, once the request has ended */
    uint64_t n_windows, n_made; /* of audio: requests that the run took, tokens of the last one */
    uint64_t n_text;            /* bytes of the answer's text so far */
    uint64_t saved_bytes, n_saves;
    uint64_t n_seen, n_kept; /* tokens of the answer: their events came; --save-every looked then */
    struct cli_npy *npy;
    struct spw_expert_trace_writer *trace; /* owned, until the last step */
    struct cli_output *trace_file;         /* owned, as the trace */
    bool ids;                              /* print token ids instead of text */
    bool any_id;                           /* one was printed */
    uint64_t n_expected;                   /* the most new tokens of all inputs */
    int write_error;                       /* -errno of a failed write to stdout */
    bool npy_failed;                       /* a row of --dump-logits could not be written */
    json_t *answers;                       /* owned: of a beam search, for the report */
    struct cli_limits limits;
    struct spw_grammar *grammar; /* owned; NULL: any text */
};

static int print(struct run *r, const char *text, size_t bytes)
{
    cli_progress_clear();
    if (!r->write_error)
        r->write_error = cli_write(text, bytes);
    return r->write_error;
}

static int save_run(struct run *r)
{
    const struct spw_result *running = r->batch.batch ? spw_batch_result(r->batch.batch, 1) : NULL;
    struct cli_progress_made made = {.prompt = r->inputs.items[0].tokens,
                                     .n_prompt = r->inputs.items[0].n_tokens,
                                     .max_new_tokens = r->inputs.items[0].max_new_tokens,
                                     .result = running ? running : &r->result,
                                     .n_text = r->n_text};
    int code = cli_saved_write(r->session, r->o, &made, &r->saved_bytes);
    r->n_saves += !code;
    return code;
}

/* A step gives several tokens, if drafts stay: the run is saved after the last of them. */
static void save_some(struct run *r)
{
    const uint64_t every = r->o->save_every, n = ++r->n_seen;
    if (!every || n < spw_batch_result(r->batch.batch, 1)->n_tokens)
        return;
    if (n / every > r->n_kept / every)
        save_run(r); /* after a failure, which save_run has reported, the answer continues */
    r->n_kept = n;
}

/* A part of a long prompt was computed. If saving it fails, save_run has reported that. */
static void on_pass(void *context)
{
    struct run *r = context;
    const struct cli_speech *speech = r->inputs.items[0].speech;
    cli_read_events(&r->events, r->engine);
    if (!speech || !speech->language)
        save_run(r);
}

static int on_token(struct run *r, int32_t token, const float *logits)
{
    cli_progress_token(r->n_expected, false);
    if (r->ids) {
        char id[16];
        int n = snprintf(id, sizeof id, "%s%d", r->any_id ? " " : "", (int)token);
        r->any_id = true;
        SPW_TRY(print(r, id, (size_t)n));
    }
    if (r->npy) {
        int rc = cli_npy_append(r->npy, logits);
        r->npy_failed = rc;
        SPW_TRY(rc);
    }
    if (cli_interrupted())
        return -ECANCELED;
    save_some(r);
    return 0;
}

static int check_options(const struct cli_options *o)
{
    static const char *const only_alone[] = {
        "json-schema", "prompt",      "prompt-file", "input-file",
        "token-ids",   "dump-logits", "ids",         "num-return-sequences"};
    static const char *const only_lines[] = {"sessions", "n"};
    for (size_t i = 0; !o->prompts && i < sizeof only_lines / sizeof *only_lines; i++)
        if (cli_given(o, only_lines[i]))
            return cli_fail(CLI_REFUSED, "--%s needs --prompts", only_lines[i]);
    if (o->prompts && o->expert_trace)
        return cli_fail(CLI_REFUSED,
                        "found both --prompts and --expert-trace, expected one of them");
    if (cli_given(o, "logprobs") && !o->prompts && !o->report)
        return cli_fail(CLI_REFUSED, "--logprobs needs --prompts or --report");
    for (size_t i = 0; o->prompts && i < sizeof only_alone / sizeof *only_alone; i++)
        if (cli_given(o, only_alone[i]))
            return cli_fail(CLI_REFUSED, "found both --prompts and --%s, expected one of them",
                            only_alone[i]);
    if (o->json_schema && (o->save || o->resume))
        return cli_fail(CLI_REFUSED, "found both --json-schema and --%s, expected one of them",
                        o->save ? "save" : "resume");
    int code = cli_saved_check(o);
    if (code)
        return code;
    if (o->ids && o->stop.n > 0)
        return cli_fail(CLI_REFUSED, "found both --ids and --stop, expected one of them");
    return 0;
}

/* ---- a request ---- */

static struct spw_request make_request(const struct run *r, const struct cli_input *in)
{
    return (struct spw_request){
        .prompt = in->tokens,
        .n_prompt = in->n_tokens,
        .audio = in->speech ? in->speech->window : NULL,
        .max_new_tokens = in->max_new_tokens,
        .given = r->saved.tokens ? r->saved.tokens + r->saved.n_prompt : NULL,
        .n_given = r->saved.n_given,
        .n_text_given = r->saved.n_text,
        .given_hash = r->saved.logits_hash,
        .continues = r->o->save != NULL,
        .session = r->session,
        .sampling = cli_sampling(r->o),
        .stop = r->o->stop.items,
        .n_stop = r->o->stop.n,
        .grammar = r->grammar,
        .ignore_eos = r->o->ignore_eos,
        .beams = cli_beams(r->o),
        .logprobs = cli_given(r->o, "logprobs"),
        .n_top_logprobs = (uint32_t)r->o->top_logprobs,
        .text = !r->ids,
    };
}

/* An answer of a beam search: they come one after the other, each with its text and its end. */
static int on_answer(struct run *r, const struct spw_event *e)
{
    const struct spw_result *result = spw_batch_result(r->batch.batch, e->request);
    const bool is_last = e->request == r->o->num_return_sequences;
    if (e->kind == SPW_EVENT_TEXT)
        return print(r, e->text, e->text_bytes);
    for (size_t i = 0; r->ids && i < result->n_tokens; i++) {
        char id[16];
        int n = snprintf(id, sizeof id, "%s%d", i ? " " : "", (int)result->tokens[i]);
        SPW_TRY(print(r, id, (size_t)n));
    }
    json_array_append_new(r->answers,
                          json_pack("{s:f, s:o}", "score", result->score, "tokens",
                                    cli_report_tokens(result->tokens, result->n_tokens)));
    return is_last ? 0 : print(r, "\n\n", 2);
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct run *r = context;
    if (r->o->num_beams > 1 && !(e->kind == SPW_EVENT_END && e->text_bytes))
        return on_answer(r, e);
    switch (e->kind) {
    case SPW_EVENT_TOKEN:
        return on_token(r, e->token, e->logits);
    case SPW_EVENT_TEXT:
        SPW_TRY(print(r, e->text, e->text_bytes));
        r->n_text += e->text_bytes;
        return 0;
    case SPW_EVENT_END:
        return e->text_bytes ? spw_fail(err, -EIO, "%s", e->text) : 0;
    }
    return 0;
}

/* ---- the report ---- */

/* The predicted time of one step of the full context, and the mean time of the run's steps. */
static void add_seconds(json_t **report, const struct run *r)
{
    const struct spw_batch_times *times = &r->times;
    struct spw_prediction step = {.seconds = NAN};
    double measured = times->decode_seconds / (double)times->n_decode_steps; /* NAN without steps */
    if (cli_limits_suffice(&r->limits, spw_engine_plan(r->engine)))
        spw_predict_step(&step, spw_engine_plan(r->engine), &r->limits.machine,
                         cli_limits_drive(&r->limits));
    const struct cli_field fields[] = {
        CLI_FIELD(times, prefill_seconds),
        CLI_FIELD(times, decode_seconds),
        CLI_FIELD(times, n_decode_steps),
        CLI_FIELD(times, n_drafted),
        CLI_FIELD(times, n_accepted),
        {"predicted_step_seconds", CLI_JSON(step.seconds)},
        {"measured_step_seconds", CLI_JSON(measured)},
    };
    CLI_ADD(report, fields);
}

static void add_prefix(json_t **report, const struct run *r)
{
    const struct cli_reuse reuse = {.n_prompt = r->inputs.items[0].n_tokens + r->saved.n_given,
                                    .n_reused = r->result.n_reused,
                                    .n_from_store = r->result.n_from_store,
                                    .prefill_seconds = r->times.prefill_seconds};
    cli_report_prefix(report, r->engine, &reuse);
}

/* What the routing of this run costs under several rules. */
static int add_routing(json_t **report, const struct run *r)
{
    struct spw_expert_replay replay;
    struct spw_error err = {0};
    int code = 0;
    if (!r->o->expert_trace)
        return 0;
    struct spw_expert_trace *t = cli_experts_trace(r->o, &code);
    int rc = t ? spw_engine_replay(&replay, r->engine, t, &err) : 0;
    if (t && !rc)
        cli_json_add(report, "expert_trace", cli_experts_replay_json(&replay));
    spw_expert_trace_free(t);
    return rc ? cli_fail_error(rc, &err, false) : code;
}

/* The bytes of this run, from its lengths. False: nobody can predict them. */
static bool predict(const struct run *r, uint64_t predicted[SPW_MOVED_COUNT])
{
    const struct cli_input *in = &r->inputs.items[0];
    const uint64_t most = in->max_new_tokens - r->saved.n_given;
    const uint64_t made = r->n_windows        ? r->n_made
                          : r->result.parents ? r->result.n_steps
                                              : r->result.n_tokens - r->saved.n_given;
    struct spw_plan_request q = {
        .n_prompt = in->n_tokens + r->saved.n_given,
        .prompt = r->saved.tokens    ? r->saved.tokens
                  : r->o->input_file ? in->tokens
                                     : NULL,
        .max_new_tokens = most,
        .n_found = r->result.n_from_store,
        .ends_at = made < most ? made : 0,
        .n_beams = cli_beams(r->o).n_beams,
        .parents = r->result.parents,
        .n_steps = r->result.n_steps,
        .step_rows = r->result.step_rows ? r->result.step_rows + r->saved.n_given : NULL};
    if (r->saved.file) {
        const struct spw_saved_info *info = spw_saved_info(r->saved.file);
        q.n_resumed = info->n_tokens;
        q.resumed_logits = info->has_logits;
    }
    if (r->n_windows > 1) /* their lengths were not known */
        return false;
    if (r->result.parents && r->o->prefix_cache) /* the cache gets the tokens of all beams */
        return false;
    return (made || !most) && !spw_engine_predict(predicted, r->engine, &q, 1, NULL);
}

static int write_report(const struct run *r)
{
    const struct cli_field saved[] = {
        {"n_resumed", CLI_JSON(r->saved.n_given)},
        {"saves", CLI_JSON(r->n_saves)},
        CLI_FIELD(r, saved_bytes),
    };
    uint64_t predicted[SPW_MOVED_COUNT];
    const bool is_known = predict(r, predicted);
    json_t *report =
        cli_report_engine(r->o->operand, r->engine, &r->events, is_known ? predicted : NULL);
    add_seconds(&report, r);
    add_prefix(&report, r);
    CLI_ADD(&report, saved);
    cli_report_result(&report, r->inputs.items[0].n_tokens, &r->result);
    if (r->answers)
        cli_json_add(&report, "answers", json_incref(r->answers));
    int code = add_routing(&report, r);
    int written = cli_write_json(r->o->report, report);
    return code ? code : written;
}

/* ---- one run ---- */

static int on_language(void *context, const struct spw_event *e, struct spw_error *err)
{
    (void)context;
    if (e->kind == SPW_EVENT_END && e->text_bytes)
        return spw_fail(err, -EIO, "%s", e->text);
    return cli_interrupted() ? -ECANCELED : 0;
}

/* The language of a run that is saved. Its session has the source then. */
static int find_language(struct run *r)
{
    struct cli_input *in = &r->inputs.items[0];
    struct cli_batch batch = {.engine = r->engine, .events = &r->events, .on_event = on_language};
    struct spw_request q = make_request(r, in);
    struct spw_result answer;
    struct spw_error err = {0};
    if (!in->speech || !in->speech->language)
        return 0;
    cli_speech_ask(in->speech, &q);
    int rc = cli_run_request(&batch, NULL, &q, &answer, &r->times, &err);
    rc = rc ? rc : cli_speech_take(in->speech, &answer, NULL);
    spw_result_free(&answer);
    memcpy(in->tokens, in->speech->tokens, in->n_tokens * sizeof *in->tokens);
    return rc ? cli_fail_error(rc, &err, false) : 0;
}

static int open_session(struct run *r)
{
    struct spw_error err = {0};
    int rc = 0;
    if (r->saved.file)
        rc = spw_session_resume(&r->session, r->engine, r->saved.file, &err);
    const bool is_damaged = rc == -EBADMSG; /* the KV; the tokens were checked before */
    if (is_damaged && r->model.config.n_mels)
        return cli_fail(CLI_REFUSED,
                        "%s; the file has no audio to compute this KV again; begin "
                        "anew, with --input-file",
                        err.text);
    if (is_damaged)
        cli_fail(0, "%s; the KV of this run is computed again from its tokens", err.text);
    if (is_damaged || (r->o->save && !r->saved.file))
        rc = spw_session_open(&r->session, r->engine, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    const int code = r->o->save ? find_language(r) : 0;
    if (code)
        return code;
    return r->o->save ? cli_saved_open_file(r->session, r->engine, r->o, &r->inputs.items[0]) : 0;
}

static int open_trace(struct run *r, struct spw_options *options)
{
    struct spw_error err = {0};
    const char *path = r->o->expert_trace;
    if (!path)
        return 0;
    if (!r->model.config.experts.n)
        return cli_fail(CLI_REFUSED, "--expert-trace: %s has no experts", r->o->operand);
    int code = cli_output_open(&r->trace_file, path, false);
    if (code)
        return code;
    int rc = spw_expert_trace_create(&r->trace, cli_output_name(r->trace_file), &err);
    options->expert_trace = r->trace;
    return rc ? cli_fail_error(rc, &err, false) : 0;
}

static void say_trace(const struct run *r)
{
    const struct spw_plan_info *p = spw_engine_plan(r->engine);
    if (r->trace && p->n_experts_resident == p->n_experts)
        cli_note("all experts lie on the device: %s has no routing; a smaller --device-memory "
                 "moves experts",
                 r->o->expert_trace);
}

static int open_engine(struct run *r)
{
    const struct cli_options *o = r->o;
    struct spw_options options =
        cli_engine_options(o, o->context ? o->context : r->inputs.longest, (uint32_t)o->num_beams);
    int code;
    cli_count_full(&options, o, &r->inputs.items[0]);
    options.on_progress = cli_progress_callback();
    options.saves = o->save || o->resume;
    options.rolls_back = o->save; /* an interrupted run can be saved, too */
    options.on_pass = o->save ? on_pass : NULL;
    options.pass_context = r;
    if (o->report || options.disk_dir) /* measuring needs memory that the engine would take */
        cli_limits_read_for(&r->limits, o, &options);
    code = open_trace(r, &options);
    if (!code)
        code = cli_engine_open(&r->engine, &r->events, o, &options, &r->limits);
    if (code)
        return code;
    say_trace(r);
    cli_progress_engine(r->engine, &r->events, &r->limits);
    if (o->dump_logits) {
        code = cli_npy_open(&r->npy, o->dump_logits, r->model.config.vocab);
        if (code)
            return code;
    }
    r->n_expected = r->inputs.items[0].max_new_tokens - r->saved.n_given;
    r->n_text = r->saved.n_text;
    r->n_seen = r->n_kept = r->saved.n_given;
    return open_session(r);
}

/* Reports the reason why a generation ended early. */
static int explain(const struct run *r, int rc, const struct spw_error *err)
{
    if (rc == -EPIPE && r->write_error == -EPIPE)
        return CLI_FAILED;
    if (r->write_error)
        return cli_fail(CLI_FAILED, "stdout: %s", strerror(-r->write_error));
    if (r->npy_failed) /* cli_npy_close has reported it */
        return CLI_FAILED;
    return cli_fail_error(rc, err, false);
}

/* The library or a write failed, or the run was interrupted. The text so far is on stdout. */
static int report_unfinished(struct run *r, int code)
{
    const size_t n = r->result.n_tokens;
    if (n == 0 || code == CLI_REFUSED)
        return code;
    if (r->o->report && write_report(r) == 0 && r->write_error != -EPIPE)
        cli_fail(0, "the run failed; %s has the %zu tokens that it had generated", r->o->report, n);
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
static void say_end(const struct run *r)
{
    const struct spw_result *result = &r->result;
    if (r->saved.file && result->n_tokens == r->saved.n_given)
        cli_note("%s: this run is complete: there is nothing to generate%s", r->o->resume,
                 result->finish == SPW_FINISH_LENGTH ? "; a larger --max-new-tokens continues it"
                                                     : "");
    else if (result->finish == SPW_FINISH_LENGTH && result->n_tokens && !r->n_windows)
        cli_note("the answer was cut off after %zu new token%s; a larger --max-new-tokens allows "
                 "more",
                 result->n_tokens, cli_plural(result->n_tokens));
}

/* A line break follows token ids, and text on a terminal, before the prompt of the shell. In a
 * file every byte is text. */
static void end_line(const struct run *r)
{
    if (r->ids || isatty(STDOUT_FILENO) == 1)
        cli_write("\n", 1);
}

static int finish(struct run *r)
{
    end_line(r);
    if (!r->ids && !r->n_windows) /* some tokenizers do not name times */
        cli_say_unnamed(&r->model, r->result.tokens, r->result.n_tokens);
    say_end(r);
    int code = r->o->save ? save_run(r) : 0;
    int report_code = r->o->report ? write_report(r) : 0;
    return code ? code : report_code;
}

/* No step follows. */
static int close_trace(struct run *r)
{
    struct cli_output *file = r->trace_file;
    int rc = spw_expert_trace_close(r->trace, NULL);
    r->trace = NULL;
    r->trace_file = NULL;
    if (!file)
        return 0;
    if (!rc)
        return cli_output_commit(file);
    cli_output_cancel(file);
    return cli_fail(CLI_FAILED, "%s: %s", r->o->expert_trace, strerror(-rc));
}

static int print_speech(void *context, const char *text, size_t bytes)
{
    struct run *r = context;
    r->any_id |= r->ids;
    r->n_text += bytes;
    return print(r, text, bytes);
}

/* The request of each window is like that of the first one. */
static int transcribe(struct run *r, const struct spw_request *request, struct spw_error *err)
{
    struct cli_speech *speech = r->inputs.items[0].speech;
    struct cli_transcript t = {.batch = &r->batch,
                               .speech = speech,
                               .request = *request,
                               .text = {r->ids ? NULL : r->model.tokenizer, print_speech, r}};
    const int rc = cli_transcribe(&t, err);
    r->result = speech->answer;
    speech->answer = (struct spw_result){0};
    r->times = t.times;
    r->n_windows = t.n_requests;
    r->n_made = t.n_made;
    return rc;
}

static int generate(struct run *r)
{
    struct spw_error err = {0};
    const struct spw_request request = make_request(r, &r->inputs.items[0]);
    const double language_seconds = r->times.prefill_seconds;
    r->batch = (struct cli_batch){
        .engine = r->engine, .events = &r->events, .on_event = on_event, .context = r};
    int rc =
        r->inputs.items[0].speech && !r->o->save
            ? transcribe(r, &request, &err)
            : cli_run_request(&r->batch, r->model.tokenizer, &request, &r->result, &r->times, &err);
    r->times.prefill_seconds += language_seconds;
    cli_progress_end();
    int code = cli_npy_close(r->npy);
    r->npy = NULL;
    int trace_code = close_trace(r);
    code = code ? code : trace_code;
    if (rc < 0) {
        if (r->any_id || r->n_text)
            end_line(r);
        code = explain(r, rc, &err);
        save_ended(r);
        code = report_unfinished(r, code);
    } else {
        int finish_code = finish(r);
        code = code ? code : finish_code;
    }
    spw_result_free(&r->result);
    return code;
}

static int open_grammar(struct run *r)
{
    const char *path = r->o->json_schema;
    struct spw_error err = {0};
    char *text;
    size_t n;
    if (!path)
        return 0;
    int code = cli_read_file(path, &text, &n);
    if (code)
        return code;
    const int rc = spw_grammar_open_schema(&r->grammar, text, n, &err);
    spw_free(text);
    return rc ? cli_fail(CLI_REFUSED, "%s: %s", cli_input_name(path), err.text) : 0;
}

static bool takes_ids(const struct cli_options *o)
{
    return (o->token_ids && !o->input_file) || o->resume;
}

/* A model without a tokenizer can run on token ids. Its answer is printed as ids, also without
 * --ids. Stop texts need a tokenizer. */
static int open_model(struct run *r)
{
    const struct cli_options *o = r->o;
    const bool needs = o->stop.n > 0 || o->json_schema;
    const bool may_lack = takes_ids(o) && !o->ids && !needs;
    struct spw_error err = {0};
    r->ids = o->ids;
    int code = cli_model_open(&r->model, o->operand,
                              !takes_ids(o) || o->json_schema || (!o->ids && needs));
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

/* A question without the marks of a chat template is not what a model for conversations was trained
 * on. */
static void say_template(const struct run *r)
{
    const struct cli_input *in = r->inputs.items;
    struct spw_chat_template *t;
    size_t n_prefix;
    spw_tokenizer_prefix(r->model.tokenizer, &n_prefix);
    for (size_t i = n_prefix; i < in->n_tokens; i++)
        if (spw_tokenizer_is_special(r->model.tokenizer, in->tokens[i]))
            return;
    if (r->model.source->ops->chat_template(r->model.source, NULL, NULL, &t, NULL))
        return;
    spw_chat_template_close(t);
    cli_note("this model has a chat template, which 'generate' does not use; 'spillway chat MODEL "
             "--prompt TEXT' does");
}

/* What has no meaning for several windows yet. */
static int check_speech(const struct run *r)
{
    static const char *const others[] = {"json-schema", "stop", "dump-logits", "expert-trace",
                                         "logprobs"};
    if (!r->model.config.n_mels)
        return 0;
    if (r->o->num_beams > 1)
        return cli_fail(CLI_REFUSED, "found both --input-file of audio and --num-beams");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cli_given(r->o, others[i]))
            return cli_fail(CLI_REFUSED, "found both --input-file of audio and --%s", others[i]);
    return 0;
}

/* A saved run is one answer, so it is one window; its text goes on where it ended. */
static int check_saved_speech(const struct run *r)
{
    const struct cli_speech *s = r->inputs.items[0].speech;
    if (!s || !r->o->save)
        return 0;
    if (s->n_rows > s->mel.window_frames)
        return cli_fail(CLI_REFUSED,
                        "--save: %s is longer than %g seconds, which are one window; a run of "
                        "several windows cannot be saved",
                        cli_input_name(r->o->input_file),
                        s->mel.window_frames * CLI_SPEECH_ROW_SECONDS);
    if (s->has_times)
        return cli_fail(CLI_REFUSED,
                        "--save: found a --prompt that asks for times, expected one that ends with "
                        "<|notimestamps|>, or none");
    return 0;
}

static int read_inputs(struct run *r)
{
    int code = cli_check_answers(r->o, &r->model);
    if (!code)
        code = check_speech(r);
    if (!code)
        code = open_grammar(r);
    if (code)
        return code;
    code = r->saved.file ? cli_saved_input(&r->saved, &r->inputs, r->o, &r->model)
                         : cli_inputs_read(&r->inputs, r->o, &r->model, false);
    if (code == 0)
        code = check_saved_speech(r);
    if (code == 0 && r->o->save)
        code = cli_take_as_source(&r->inputs, &r->model.config);
    if (code == 0 && r->o->prompt && !r->o->input_file)
        say_template(r);
    return code;
}

int cli_generate(const struct cli_options *given)
{
    struct cli_options options = *given; /* a copy: a saved run brings its own options */
    const struct cli_options *o = &options;
    struct run r = {.o = o};
    if (o->save)
        cli_catch_termination();
    int code = check_options(o);
    if (code == 0 && o->prompts)
        return cli_answer_prompts(o);
    if (code == 0)
        code = cli_saved_open(&r.saved, &options);
    if (code)
        return code;
    code = open_model(&r);
    if (code) {
        cli_saved_close(&r.saved);
        return code;
    }
    code = cli_take_search(&options, &r.model);
    r.answers = o->num_beams > 1 ? json_array() : NULL;
    if (code == 0)
        code = read_inputs(&r);
    cli_progress_start((enum cli_progress_mode)o->progress, NULL, isatty(STDOUT_FILENO) == 1);
    if (code == 0)
        code = open_engine(&r);
    if (code == 0)
        code = generate(&r);
    cli_progress_end();
    cli_npy_close(r.npy);
    spw_session_close(r.session);
    spw_expert_trace_close(r.trace, NULL);
    if (r.trace_file)
        cli_output_cancel(r.trace_file);
    cli_experts_close(r.engine, o);
    cli_events_free(&r.events);
    cli_inputs_free(&r.inputs);
    spw_grammar_close(r.grammar);
    json_decref(r.answers);
    cli_model_close(&r.model);
    cli_saved_close(&r.saved);
    return code;
}
