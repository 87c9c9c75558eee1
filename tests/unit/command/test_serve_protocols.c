/* Answers of the server's protocols, event by event, from parts that this test makes up, and an
 * allocation that fails anywhere.
 *
 *   test_serve_protocols --print   prints answers: for tests/oracle/serve_answers.py */
#include "tests/serve_world.h"
#include "tests/text_cases.h"

/* ---- answers ---- */

struct answering {
    struct request x;
    struct serve_answer a;
    struct spw_text out;
};

static void open_answer(struct answering *w, const struct serve_protocol *p, const char *body)
{
    *w = (struct answering){.x = body_of(p, body)};
    w->a = (struct serve_answer){.protocol = p,
                                 .wish = &wish,
                                 .request = &w->x,
                                 .model = "m",
                                 .tokenizer = model.tokenizer,
                                 .id = "1",
                                 .created = 1700000000};
}

static void close_answer(struct answering *w)
{
    w->a.protocol->close(&w->a);
    request_free(&w->x);
    spw_free(w->out.text);
}

/* A piece of a choice, and a token for each byte of it. */
static void piece(struct answering *w, size_t i, enum spw_answer_piece_kind kind, uint32_t call,
                  const char *text)
{
    struct request_choice *c = &w->x.choices[i];
    struct spw_result *r = &c->result;
    const size_t n = strlen(text), all = r->n_tokens + n;
    const struct spw_answer_piece p = {kind, call, text, n};
    CHECK(request_add_piece(c, &p) == 0);
    r->tokens = spw_realloc(r->tokens, (all + 1) * sizeof *r->tokens);
    r->logprobs = w->x.logprobs ? spw_realloc(r->logprobs, (all + 1) * sizeof(double)) : NULL;
    r->n_top_logprobs = w->x.n_top_logprobs;
    if (r->n_top_logprobs)
        r->top_logprobs =
            spw_realloc(r->top_logprobs, (all + 1) * r->n_top_logprobs * sizeof *r->top_logprobs);
    for (size_t k = 0; k < n; k++, r->n_tokens++) {
        r->tokens[r->n_tokens] = text[k] - '!';
        if (r->logprobs)
            r->logprobs[r->n_tokens] = -0.5;
        for (uint32_t j = 0; j < r->n_top_logprobs; j++)
            r->top_logprobs[r->n_tokens * r->n_top_logprobs + j] =
                (struct spw_token_logprob){text[k] - '!', -0.5};
    }
    if (w->a.own)
        CHECK(w->a.protocol->piece(&w->a, i, &p, &w->out) == 0);
}

static void end_choice(struct answering *w, size_t i, enum spw_finish finish)
{
    w->x.choices[i].result.finish = finish;
    w->x.choices[i].result.logits_hash = 0xabc;
    w->x.choices[i].has_ended = true;
    if (w->a.own)
        CHECK(w->a.protocol->end_choice(&w->a, i, &w->out) == 0);
}

/* ---- the cases of serve_answers.cases ---- */

/* Bytes that were written are those that the case has: see the head of the file. */
static void expect(struct text_cases *c, struct answering *w)
{
    char expected[1 << 14];
    const char *text = w->out.n ? w->out.text : "";
    size_t n = 0;
    for (size_t i = 0; i < c->n_says; i++) {
        const char *line = c->says[i], *end = !strncmp(line, "data: ", 6)    ? "\n\n"
                                              : !strncmp(line, "event: ", 7) ? "\n"
                                                                             : "";
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%s", line, end);
    }
    if (*expected == '~')
        CHECK_CASE(c, strstr(text, expected + 2), "%s", text);
    else
        CHECK_CASE(c, !strcmp(text, strcmp(expected, "=") ? expected : ""), "%s", text);
    w->out.n = 0;
}

/* "text Hi" of choice i. */
static void do_piece(struct answering *w, size_t i, char *what)
{
    static const char *const kinds[] = {"text", "reasoning", "call", "arguments", "end_call"};
    static const char *const reasons[] = {"", "length", "eos", "stop"};
    const size_t n_calls = w->x.choices[i].n_calls;
    char *text = what + strcspn(what, " ");
    text += *text ? (*text = '\0', 1) : 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(what, kinds[k]))
            piece(w, i, (enum spw_answer_piece_kind)k,
                  (uint32_t)n_calls - (n_calls && k != SPW_PIECE_CALL), text);
    for (size_t k = 0; k < sizeof reasons / sizeof *reasons && !strcmp(what, "finish"); k++)
        if (!strcmp(text, reasons[k]))
            end_choice(w, i, (enum spw_finish)k);
}

static void do_line(struct text_cases *c, char *line)
{
    struct answering *w = c->context;
    static const struct request_refusal failure = {
        .status = 500, .type = "server_error", .message = "x"};
    const struct serve_protocol *p = w->a.protocol; /* NULL: no answer has begun */
    struct spw_result *r = w->x.choices ? &w->x.choices[0].result : NULL;
    struct serve_progress progress = {0};
    char path[32];
    int n = 0;
    if (sscanf(line, "POST %31s %n", path, &n) == 1) {
        if (p)
            close_answer(w);
        open_answer(w, protocol_of(path), line + n);
    } else if (!strcmp(line, "begin"))
        CHECK(p->begin(&w->a, &w->out) == 0);
    else if (sscanf(line, "progress %lu %lu %lf %u", &progress.n_read, &progress.n_prompt,
                    &progress.seconds_left, &progress.n_before) == 4)
        CHECK(p->progress(&w->a, &progress, &w->out) == 0);
    else if (!strcmp(line, "end"))
        CHECK(p->end(&w->a, &w->out) == 0);
    else if (!strcmp(line, "whole"))
        CHECK(p->whole(&w->a, &w->out) == 0);
    else if (!strcmp(line, "failed"))
        CHECK(p->failed(&w->a, &failure, &w->out) == 0);
    else if (!strcmp(line, "forget"))
        w->out.n = 0;
    else if (!strncmp(line, "reused ", 7))
        r->n_reused = (size_t)atoi(line + 7);
    else if (!strncmp(line, "prompt_logprobs ", 16))
        r->prompt_logprobs = spw_alloc_zero((size_t)atoi(line + 16), sizeof(double));
    else
        do_piece(w, (size_t)atoi(line), line + strcspn(line, " ") + 1);
    if (c->n_says)
        expect(c, w);
}

static void check_answers(void)
{
    static struct answering w;
    static struct text_cases cases = {
        .path = "tests/unit/command/serve_answers.cases", .run = do_line, .context = &w};
    use(EACH_MESSAGE);
    run_text_cases(&cases);
    close_answer(&w);
}

static void check_errors(void)
{
    struct spw_text out = {0};
    struct request_refusal error;
    request_refuse(&error, 429, "rate_limit_exceeded", NULL, "full");
    CHECK(CHAT->error(&error, "1a", &out) == 0);
    CHECK_MSG(!strcmp(out.text, "{\"error\":{\"message\":\"full\",\"type\":\"rate_limit_error\","
                                "\"param\":null,\"code\":\"rate_limit_exceeded\"}}"),
              "%s", out.text);
    out.n = 0;
    CHECK(MESSAGES_API->error(&error, "1a", &out) == 0);
    CHECK_MSG(!strcmp(out.text, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\","
                                "\"message\":\"full\"},\"request_id\":\"req_1a\"}"),
              "%s", out.text);
    spw_free(out.text);
}

/* ---- all of it once ---- */

struct sample {
    const char *path, *body;
};
#define ASK "'messages':[{'role':'user','content':'a'}]"
static const struct sample samples[] = {
    {"/v1/chat/completions", "{" ASK ",'stream':true,'n':2,'stream_options':{'include_usage':true,"
                             "'continuous_usage_stats':true},'logits_hash':true}"},
    {"/v1/chat/completions", "{" ASK ",'logprobs':true,'top_logprobs':2,'stream':true}"},
    {"/v1/chat/completions", "{" ASK ",'logprobs':true,'n':2,'logits_hash':true,'seed':5}"},
    {"/v1/completions", "{'prompt':['xy','z'],'stream':true,'logprobs':2,'stream_options':{"
                        "'include_usage':true}}"},
    {"/v1/completions", "{'prompt':[[1,2]],'n':2,'logprobs':1,'seed':5}"},
    {"/v1/responses", "{'input':'a','stream':true,'include':['message.output_text.logprobs'],"
                      "'top_logprobs':1,'instructions':'I','logits_hash':true}"},
    {"/v1/responses", "{'input':'a','tools':[{'type':'function','name':'f','parameters':{'a':1},"
                      "'strict':true}],'tool_choice':'auto','text':{"
                      "'format':{'type':'text'}},'metadata':{'k':'v'},'temperature':0.5}"},
    {"/v1/messages", "{'max_tokens':9," ASK ",'stream':true,'logits_hash':true}"},
    {"/v1/messages", "{'max_tokens':9," ASK ",'stop_sequences':['x']}"},
};

static void show(const struct answering *w, const char *kind)
{
    json_t *line = json_pack("{s:s,s:s,s:s#}", "path", w->a.protocol->path, "kind", kind, "text",
                             w->out.text, (int)w->out.n);
    json_dumpf(line, stdout, JSON_COMPACT);
    puts("");
    json_decref(line);
}

/* All bytes of an answer. 0, or what the first call returned that failed. */
static int write_all(struct answering *w)
{
    static const struct spw_answer_piece pieces[] = {{SPW_PIECE_REASONING, 0, "hm", 2},
                                                     {SPW_PIECE_TEXT, 0, "Hi", 2},
                                                     {SPW_PIECE_CALL, 0, "f", 1},
                                                     {SPW_PIECE_ARGUMENTS, 0, "{\"a\":1.10}", 10},
                                                     {SPW_PIECE_CALL_END, 0, "", 0}};
    const struct serve_progress half = {5, 10, 1.5, 0};
    const struct serve_protocol *p = w->a.protocol;
    const size_t n = w->x.n_prompts * w->x.n_choices;
    if (!wish.stream)
        return p->whole(&w->a, &w->out);
    int rc = p->begin(&w->a, &w->out);
    if (!rc)
        rc = p->progress(&w->a, &half, &w->out);
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces && !rc; k++)
        for (size_t i = 0; i < n && !rc; i++) {
            if (w->x.form == REQUEST_COMPLETION && pieces[k].kind != SPW_PIECE_TEXT)
                continue; /* it has only text */
            rc = request_add_piece(&w->x.choices[i], &pieces[k]);
            if (!rc)
                rc = p->piece(&w->a, i, &pieces[k], &w->out);
        }
    for (size_t i = 0; i < n && !rc; i++)
        rc = p->end_choice(&w->a, i, &w->out);
    return rc ? rc : p->end(&w->a, &w->out);
}

static void open_sample(struct answering *w, const struct sample *s)
{
    open_answer(w, protocol_of(s->path), s->body);
    for (size_t i = 0; i < w->x.n_prompts * w->x.n_choices; i++) {
        piece(w, i, SPW_PIECE_TEXT, 0, wish.stream ? "" : "Hi");
        if (!wish.stream && w->x.form == REQUEST_CHAT) {
            piece(w, i, SPW_PIECE_REASONING, 0, "hm");
            piece(w, i, SPW_PIECE_CALL, 0, "f");
            piece(w, i, SPW_PIECE_ARGUMENTS, 0, "{\"a\":1.10}");
            piece(w, i, SPW_PIECE_CALL_END, 0, "");
        }
        end_choice(w, i, SPW_FINISH_EOS);
    }
}

static void print_samples(void)
{
    struct answering w;
    const struct request_refusal failure = {.status = 500, .type = "server_error", .message = "x"};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        open_sample(&w, &samples[i]);
        CHECK(write_all(&w) == 0);
        show(&w, wish.stream ? "stream" : "whole");
        w.out.n = 0;
        CHECK(w.a.protocol->failed(&w.a, &failure, &w.out) == 0 || !wish.stream);
        if (wish.stream)
            show(&w, "failure");
        w.out.n = 0;
        CHECK(w.a.protocol->error(&failure, w.a.id, &w.out) == 0);
        show(&w, "error");
        close_answer(&w);
    }
}

/* Each allocation fails once, while an answer is written. A failure that changes nothing is one of
 * a value that the answer does not have. */
static void check_answer_failures(const struct sample *s)
{
    struct answering right, w;
    bool failed = true;
    int n = 0;
    open_sample(&right, s);
    CHECK(write_all(&right) == 0);
    for (; failed; n++) {
        open_sample(&w, s);
        spw_alloc_fail_nth(n);
        int rc = write_all(&w);
        failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        CHECK_MSG(rc == -ENOMEM || (rc == 0 && !strcmp(w.out.text, right.out.text)),
                  "%s: %d\n%s\n%s", s->body, rc, w.out.text, right.out.text);
        close_answer(&w);
    }
    CHECK_MSG(n > 20, "%s: %d", s->body, n);
    close_answer(&right);
}

static void check_failures(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    use(EACH_MESSAGE);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        check_answer_failures(&samples[i]);
    json_set_alloc_funcs(malloc, free);
}

int main(int argc, char **argv)
{
    job_world_open();
    if (argc == 2 && !strcmp(argv[1], "--print")) {
        use(EACH_MESSAGE);
        print_samples();
        job_world_close();
        return check_done();
    }
    check_failures();
    check_answers();
    check_errors();
    job_world_close();
    return check_done();
}
