/* `spillway chat`: a conversation, or one answer to a question or the messages of a file. Each turn
 * gives the tokens of the whole conversation to one session, which computes only the tokens that it
 * does not hold. */
#include "tools/command/chat/chat.h"
#include "tools/command/chat/chat_terminal.h"
#include "tools/command/engine.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/report.h"
#include "tools/command/experts.h"

#include <string.h>
#include <unistd.h>

#define DEFAULT_CONTEXT 16384
#define DEFAULT_NEW_TOKENS 4096

/* ---- one turn ---- */

/* `style`: a sequence for the terminal, before the text. */
static int print(struct chat *c, const char *style, const char *text, size_t bytes)
{
    cli_progress_clear();
    c->write_error = *style ? cli_write_as_is(style, strlen(style)) : 0;
    if (!c->write_error)
        c->write_error = cli_write(text, bytes);
    return c->write_error;
}

/* Reasoning is dim on a terminal. A blank line divides it from the answer. */
static int begin_part(struct chat *c, bool is_reasoning)
{
    const bool styled = isatty(STDOUT_FILENO) == 1, was_reasoning = c->shown == CHAT_REASONING;
    c->shown = is_reasoning ? CHAT_REASONING : CHAT_ANSWER;
    if (was_reasoning)
        return print(c, styled ? "\033[0m" : "", "\n\n", 2);
    return is_reasoning && styled ? print(c, "\033[2m", "", 0) : 0;
}

static int show(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    struct chat *c = context;
    SPW_TRY(spw_text_add(is_reasoning ? &c->reasoning : &c->answer, text, bytes));
    if (is_reasoning && !c->o->show_reasoning)
        return 0;
    if (c->shown != (is_reasoning ? CHAT_REASONING : CHAT_ANSWER))
        SPW_TRY(begin_part(c, is_reasoning));
    return print(c, "", text, bytes);
}

static int on_text(struct chat *c, const char *text, size_t bytes)
{
    SPW_TRY(spw_text_add(&c->reply, text, bytes));
    return spw_splitter_push(&c->splitter, text, bytes, show, c);
}

/* A single answer in a file gets no line break: there every byte is text. */
static void end_text(struct chat *c)
{
    const bool on_terminal = isatty(STDOUT_FILENO) == 1;
    if (!c->write_error)
        spw_splitter_finish(&c->splitter, show, c);
    if (c->shown == CHAT_REASONING && on_terminal && !c->write_error)
        print(c, "\033[0m", "", 0);
    if (c->shown != CHAT_NOTHING && !c->write_error && (c->interactive || on_terminal))
        c->write_error = cli_write("\n", 1);
}

/* The name of a single question in messages. */
static const char *question_name(const struct cli_options *o)
{
    return o->messages ? o->messages : o->prompt_file ? o->prompt_file : "--prompt";
}

static int refuse_length(const struct chat *c, size_t n, uint64_t context)
{
    const char *what = context >= c->model.config.reach
                           ? "--allow-long-context allows more than this model was made for"
                           : "a larger --context would do";
    cli_say_summarize(c->o, &c->model, n);
    if (!c->interactive || !c->engine)
        return cli_fail(CLI_REFUSED,
                        "%s: found %zu tokens, expected at most the context of %llu; %s",
                        question_name(c->o), n, (unsigned long long)context, what);
    return cli_fail(CLI_REFUSED,
                    "the context of %llu tokens is full: this turn needs %zu. /undo removes the "
                    "last turn; %s (/save, start again, /load)",
                    (unsigned long long)context, n, what);
}

static void say_length(const struct chat *c, const struct spw_request *request)
{
    if (request->max_new_tokens < c->o->max_new_tokens)
        cli_note("the answer ends here: the context of %llu tokens is full%s",
                 (unsigned long long)spw_engine_plan(c->engine)->context,
                 c->interactive ? "; /undo removes the last turn" : "");
    else
        cli_note("the answer ends here: --max-new-tokens %llu",
                 (unsigned long long)c->o->max_new_tokens);
}

static int explain(const struct chat *c, int rc, const struct spw_error *err)
{
    if (rc == -ECANCELED && cli_interrupted())
        return cli_fail(CLI_INTERRUPTED, "interrupted%s",
                        c->interactive ? " before the first word" : "");
    if (rc == -EPIPE && c->write_error == -EPIPE)
        return CLI_FAILED;
    if (c->write_error)
        return cli_fail(CLI_FAILED, "stdout: %s", strerror(-c->write_error));
    return cli_fail_error(rc, err, false);
}

static void report_turn(struct chat *c, size_t n_prompt, const struct spw_result *r)
{
    const struct cli_field fields[] = {
        CLI_FIELD(r, n_reused),
        CLI_FIELD(r, n_recomputed),
        CLI_FIELD(&c->last, prefill_seconds),
        CLI_FIELD(&c->last, decode_seconds),
    };
    json_t *turn = json_object();
    uint64_t n_reasoning = 0;
    cli_report_result(&turn, n_prompt, r);
    if (!spw_reasoning_count(&n_reasoning, cli_prompt_form(c->prompt),
                             cli_prompt_is_open(c->prompt), c->model.tokenizer, r->tokens,
                             r->n_tokens) &&
        n_reasoning)
        cli_json_add(&turn, "n_reasoning", CLI_JSON(n_reasoning));
    CLI_ADD(&turn, fields);
    cli_json_append(&c->turns, turn);
}

static void count_turn(struct chat *c, size_t n_prompt, const struct spw_result *r,
                       const struct spw_batch_times *times)
{
    c->last = (struct chat_turn){n_prompt,
                                 r->n_reused,
                                 r->n_from_store,
                                 r->n_recomputed,
                                 r->n_tokens,
                                 times->prefill_seconds,
                                 times->decode_seconds};
    c->sum.n_prompt += n_prompt;
    c->sum.n_reused += r->n_reused;
    c->sum.n_from_store += r->n_from_store;
    c->sum.n_recomputed += r->n_recomputed;
    c->sum.n_generated += r->n_tokens;
    c->sum.prefill_seconds += times->prefill_seconds;
    c->sum.decode_seconds += times->decode_seconds;
    c->n_turns++;
}

/* Adds the answer to the conversation, as its template expects it: reasoning apart. */
static int add_answer(struct chat *c)
{
    const int code = cli_history_add_answer(c->messages, &c->answer, &c->reasoning);
    if (code == 0 && !c->answer.n && !c->reasoning.n)
        cli_note("the model has given an empty answer");
    else if (code == 0 && !c->answer.n)
        cli_note("the model has reasoned and given no answer%s",
                 c->o->show_reasoning ? "" : "; --show-reasoning shows the reasoning");
    return code;
}

static int record(struct chat *c, size_t n_prompt, const struct spw_result *r,
                  const struct spw_batch_times *times)
{
    const char *text = c->reply.n > 0 ? c->reply.text : "";
    count_turn(c, n_prompt, r, times);
    if (cli_prompt_keep(c->prompt, r, text, c->reply.n) < 0)
        return cli_fail(CLI_FAILED, "out of memory");
    if (c->o->report)
        report_turn(c, n_prompt, r);
    return add_answer(c);
}

static struct spw_request make_request(struct chat *c, const int32_t *tokens, size_t n)
{
    struct spw_request request = {
        .prompt = tokens,
        .n_prompt = n,
        .sampling = cli_sampling(c->o),
        .stop = c->o->stop.items,
        .n_stop = c->o->stop.n,
        .ignore_eos = c->o->ignore_eos,
        .session = c->session,
        .text = true,
        .shown = cli_prompt_form(c->prompt)->specials.ids,
        .n_shown = cli_prompt_form(c->prompt)->specials.n,
    };
    /* the last token is chosen but not computed: it needs no room in the context */
    request.max_new_tokens =
        (size_t)spw_min_u64(c->o->max_new_tokens, spw_engine_plan(c->engine)->context - n + 1);
    request.sampling.seed += c->n_again;
    return request;
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct chat *c = context;
    if (e->kind == SPW_EVENT_TEXT)
        return on_text(c, e->text, e->text_bytes);
    if (e->kind == SPW_EVENT_END)
        return e->text_bytes ? spw_fail(err, -EIO, "%s", e->text) : 0;
    cli_progress_token(c->o->max_new_tokens,
                       !c->o->show_reasoning && c->splitter.state == SPW_SPLIT_REASONING);
    return cli_interrupted() ? -ECANCELED : 0;
}

/* Warns if an interrupted answer leaves a session that must compute the conversation again. */
static void say_loss(const struct chat *c, size_t held)
{
    bool lost = held && !spw_session_n_tokens(c->session);
    if (c->interactive && lost && !spw_engine_plan(c->engine)->rolls_back && !c->o->prefix_cache)
        cli_fail(0, "the next answer computes the whole conversation again: the interrupted answer "
                    "has moved the windows of layers, and --device-memory has no room for a copy "
                    "of them (--prefix-cache avoids this)");
}

int cli_chat_answer(struct chat *c)
{
    const int32_t *tokens;
    size_t n;
    struct spw_result result = {0};
    struct spw_batch_times times = {0};
    struct spw_error err = {0};
    int code = cli_prompt_render(c->prompt, c->messages, &tokens, &n);
    if (code)
        return code;
    uint64_t context = spw_engine_plan(c->engine)->context;
    if (n > context)
        return refuse_length(c, n, context);
    struct spw_request request = make_request(c, tokens, n);
    c->reply.n = c->answer.n = c->reasoning.n = 0;
    c->is_known = false;
    c->shown = CHAT_NOTHING;
    spw_splitter_init(&c->splitter, cli_prompt_form(c->prompt), cli_prompt_is_open(c->prompt));
    cli_progress_start((enum cli_progress_mode)c->o->progress, NULL, isatty(STDOUT_FILENO) == 1);
    cli_progress_engine(c->engine, &c->events, NULL);
    size_t held = spw_session_n_tokens(c->session);
    struct cli_batch batch = {
        .engine = c->engine, .events = &c->events, .on_event = on_event, .context = c};
    int rc = cli_run_request(&batch, c->model.tokenizer, &request, &result, &times, &err);
    cli_progress_end();
    bool interrupted = c->interactive && rc == -ECANCELED && cli_interrupted() && c->reply.n > 0;
    end_text(c);
    const bool failed = rc < 0 && !interrupted;
    if (failed)
        code = explain(c, rc, &err);
    if (!failed || c->write_error) { /* nobody reads the answer, but the report has it */
        int recorded = record(c, n, &result, &times);
        code = code ? code : recorded;
    }
    if (rc == -ECANCELED)
        say_loss(c, held);
    c->is_known = code == 0 && rc == 0;
    if (c->is_known && result.finish == SPW_FINISH_LENGTH)
        say_length(c, &request);
    cli_say_unnamed(&c->model, result.tokens, result.n_tokens);
    spw_result_free(&result);
    return code;
}

/* ---- the conversation ---- */

int cli_chat_read(struct chat *c, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = *path ? cli_read_file(path, &text, &bytes) : 0;
    if (code)
        return code;
    spw_free(c->document);
    c->document = text;
    c->document_bytes = bytes;
    c->document_at = SIZE_MAX;
    return 0;
}

void cli_chat_cut(struct chat *c, size_t n)
{
    cli_history_cut(c->messages, n);
    if (c->document_at >= n)
        c->document_at = SIZE_MAX;
}

/* The message is the document, if it has no place yet, a blank line, and the question. NULL: the
 * document alone. */
static int add_question(struct chat *c, const char *question, size_t bytes)
{
    struct spw_text message = {0};
    const bool reads = c->document && c->document_at == SIZE_MAX;
    size_t n = reads ? c->document_bytes : 0;
    while (question && n > 0 && c->document[n - 1] == '\n')
        n--;
    int rc = spw_text_add(&message, c->document, n);
    if (!rc && question && n > 0)
        rc = spw_text_add(&message, "\n\n", 2);
    if (!rc && question)
        rc = spw_text_add(&message, question, bytes);
    int code = rc ? cli_fail(CLI_FAILED, "out of memory")
                  : cli_history_add(c->messages, "user", message.text, message.n);
    spw_free(message.text);
    if (code == 0 && reads)
        c->document_at = json_array_size(c->messages) - 1;
    return code;
}

static int ask(struct chat *c, const char *text, size_t bytes)
{
    size_t before = json_array_size(c->messages);
    uint64_t n_again = c->n_again;
    c->n_again = 0;
    int code = add_question(c, text, bytes);
    if (code == 0)
        code = cli_chat_answer(c);
    if (code) {
        cli_chat_cut(c, before);
        c->n_again = n_again;
    }
    return code;
}

/* An error ends one turn. Without a terminal the command returns the error's exit code at its end.
 */
static int converse(struct chat *c)
{
    struct cli_terminal *terminal;
    char *text;
    size_t bytes;
    bool verbatim;
    int first = 0, rc = 0, code = cli_terminal_open(&terminal, cli_chat_words());
    if (code)
        return code;
    if (cli_terminal_edits(terminal))
        fputs("/help lists the commands, /quit ends.\n", stderr);
    while (!c->quit && !c->write_error &&
           (rc = cli_terminal_read(terminal, &text, &bytes, &verbatim)) > 0) {
        if (strspn(text, " \t\n") == bytes)
            continue;
        cli_interrupt_clear(); /* that of the answer before; with --messages none is cleared */
        cli_terminal_echo(terminal, false);
        code = text[0] == '/' && !verbatim ? cli_chat_command(c, text) : ask(c, text, bytes);
        cli_terminal_echo(terminal, true);
        if (first == 0)
            first = code;
    }
    if (rc == 0 && cli_terminal_edits(terminal))
        fputc('\n', stderr); /* behind the ^D */
    if (rc < 0)
        code = cli_fail(CLI_FAILED, "stdin: %s", strerror(-rc));
    else
        code = cli_terminal_edits(terminal) && !c->write_error ? 0 : first;
    cli_terminal_close(terminal);
    return code;
}

/* ---- opening and closing ---- */

static int open_messages(struct chat *c)
{
    static const char *const asks[][3] = {{"messages", "prompt"}, {"messages", "prompt-file"}};
    const struct cli_options *o = c->o;
    const char *given;
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        int code = cli_one_of(o, asks[i], true, &given);
        if (code)
            return code;
    }
    if (o->messages) {
        int code = cli_history_read(&c->messages, o->messages);
        if (code)
            return code;
        if (json_array_size(c->messages) == 0)
            return cli_fail(CLI_REFUSED, "%s: found no messages, expected some", o->messages);
        if (strcmp(cli_history_last_role(c->messages), "assistant") == 0)
            return cli_fail(CLI_REFUSED,
                            "%s: found an answer as the last message, expected a question",
                            o->messages);
        if (o->system && cli_history_has_system(c->messages))
            return cli_fail(CLI_REFUSED,
                            "found both --system and a system message in %s, expected one of them",
                            o->messages);
    } else if (!(c->messages = json_array())) {
        return cli_fail(CLI_FAILED, "out of memory");
    } else {
        int code = o->prompt_file ? cli_chat_read(c, o->prompt_file) : 0;
        if (code == 0 && !c->interactive)
            code = add_question(c, o->prompt, o->prompt ? strlen(o->prompt) : 0);
        if (code)
            return code;
    }
    return o->system ? cli_history_set_system(c->messages, o->system) : 0;
}

/* Computes the context of the session. Refuses lengths that can be known before the engine opens:
 * those of a single question, or of a document before the first one. */
static int find_context(struct chat *c, uint64_t *context)
{
    const size_t before = json_array_size(c->messages);
    uint64_t known = c->o->allow_long_context ? SPW_CONFIG_MOST_POSITIONS : c->model.config.reach;
    *context = c->o->context ? c->o->context : spw_min_u64(known, DEFAULT_CONTEXT);
    if (c->interactive && !c->document)
        return 0;
    const int32_t *tokens;
    size_t n;
    int code = c->interactive ? add_question(c, NULL, 0) : 0;
    if (code == 0)
        code = cli_prompt_render(c->prompt, c->messages, &tokens, &n);
    if (c->interactive)
        cli_chat_cut(c, before);
    if (code)
        return code;
    if (!c->o->context)
        *context =
            spw_min_u64(known, n + (c->interactive ? DEFAULT_CONTEXT : c->o->max_new_tokens));
    return n > *context ? refuse_length(c, n, *context) : 0;
}

static int open_engine(struct chat *c)
{
    struct cli_limits limits = {0};
    struct spw_error err = {0};
    uint64_t context;
    int code = find_context(c, &context);
    if (code)
        return code;
    struct spw_options options = cli_engine_options(c->o, context, 1);
    cli_progress_start((enum cli_progress_mode)c->o->progress, NULL, isatty(STDOUT_FILENO) == 1);
    options.on_progress = cli_progress_callback();
    options.rolls_back = c->interactive;
    if (options.disk_dir)
        cli_limits_read_for(&limits, c->o, &options);
    code = cli_engine_open(&c->engine, &c->events, c->o, &options, &limits);
    cli_progress_end();
    if (code)
        return code;
    int rc = spw_session_open(&c->session, c->engine, &err);
    return rc < 0 ? cli_fail_error(rc, &err, true) : 0;
}

static int write_report(const struct chat *c)
{
    json_t *report = cli_report_engine(c->o->operand, c->engine, &c->events, NULL);
    const struct cli_reuse reuse = {c->sum.n_prompt, c->sum.n_reused, c->sum.n_from_store,
                                    c->sum.prefill_seconds};
    cli_report_prefix(&report, c->engine, &reuse);
    cli_json_add(&report, "turns", json_incref(c->turns));
    return cli_write_json(c->o->report, report);
}

static int open_chat(struct chat *c)
{
    const struct cli_options *o = c->o;
    int code = cli_model_open(&c->model, o->operand, true);
    if (code == 0)
        code = cli_refuse_encoder(&c->model, "chat");
    if (code == 0)
        code = cli_check_answers(o, &c->model);
    if (code == 0)
        code = cli_prompt_open(&c->prompt, o, &c->model);
    if (code == 0)
        code = open_messages(c);
    c->turns = json_array();
    return code ? code : open_engine(c);
}

/* On a terminal a text file is what the conversation is about; for a script it is the question. */
static bool is_conversation(const struct cli_options *o)
{
    const bool can_ask = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    return !o->messages && !o->prompt &&
           (!o->prompt_file || (can_ask && strcmp(o->prompt_file, "-") != 0));
}

int cli_chat(const struct cli_options *o)
{
    struct chat c = {
        .own = *o, .o = &c.own, .interactive = is_conversation(o), .document_at = SIZE_MAX};
    if (!cli_given(o, "max-new-tokens"))
        c.own.max_new_tokens = DEFAULT_NEW_TOKENS;
    int code = open_chat(&c);
    if (code == 0)
        code = c.interactive ? converse(&c) : cli_chat_answer(&c);
    if (o->report && c.engine && c.n_turns > 0) {
        int report_code = write_report(&c);
        code = code ? code : report_code;
    }
    spw_session_close(c.session);
    cli_experts_close(c.engine, o);
    cli_events_free(&c.events);
    cli_prompt_close(c.prompt);
    cli_model_close(&c.model);
    json_decref(c.messages);
    json_decref(c.kept);
    json_decref(c.turns);
    spw_free(c.document);
    spw_free(c.reply.text);
    spw_free(c.answer.text);
    spw_free(c.reasoning.text);
    return code;
}
