/* libFuzzer target of the bodies that clients send to the server. The first byte of the input
 * chooses the protocol, the rest is the body. Whatever the bytes: a refusal has a status of 400 and
 * a message that is UTF-8; a body that is taken has tokens within the context, and its answer, with
 * reasoning, text and calls, is JSON, as a stream and in one piece; and nothing leaks.
 *
 *   build/fuzz/fuzz_serve -max_total_time=60 tests/fuzz/seeds/serve */
#include "tests/job_world.h"
#include "tools/command/serve/protocol.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 4096 };

static void must(bool good)
{
    if (!good)
        abort();
}

static void close_world(void)
{
    job_world_close();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    job_world_open();
    must(serve_prepare(&reader) == 0);
    return atexit(close_world);
}

static void must_be_json(const char *text, size_t n)
{
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    must(value);
    json_decref(value);
}

/* Each line "data: " has JSON, except the last one of OpenAI's streams. */
static void must_be_events(const struct spw_text *out)
{
    static const char begin[] = "data: ", done[] = "data: [DONE]";
    const char *line = out->text, *end;
    for (; line && (end = memchr(line, '\n', (size_t)(out->text + out->n - line))); line = end + 1)
        if (!strncmp(line, begin, sizeof begin - 1) && strncmp(line, done, sizeof done - 1) != 0)
            must_be_json(line + sizeof begin - 1, (size_t)(end - line) - sizeof begin + 1);
}

static void add_pieces(struct serve_answer *a, struct request *x, struct spw_text *out)
{
    static const struct spw_answer_piece pieces[] = {
        {SPW_PIECE_REASONING, 0, "h", 1}, {SPW_PIECE_TEXT, 0, "\"\\", 2},
        {SPW_PIECE_CALL, 0, "f", 1},      {SPW_PIECE_ARGUMENTS, 0, "{\"a\":1e400}", 11},
        {SPW_PIECE_CALL_END, 0, "", 0},   {SPW_PIECE_TEXT, 0, "b", 1},
        {SPW_PIECE_CALL, 1, "g", 1},      {SPW_PIECE_ARGUMENTS, 1, "{\"", 2}};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++)
        for (size_t i = 0; i < x->n_prompts * x->n_choices; i++) {
            must(request_add_piece(&x->choices[i], &pieces[k]) == 0);
            if (a->own)
                must(a->protocol->piece(a, i, &pieces[k], out) == 0);
        }
}

static void answer(const struct serve_protocol *p, struct request *x, const struct serve_wish *wish)
{
    struct spw_text out = {0};
    struct serve_answer a = {.protocol = p,
                             .wish = wish,
                             .request = x,
                             .model = "m",
                             .tokenizer = model.tokenizer,
                             .id = "1"};
    const struct request_refusal failure = {.status = 500, .type = "server_error", .message = "x"};
    const struct serve_progress progress = {1, 2, -1, 0};
    if (wish->stream) {
        must(p->begin(&a, &out) == 0 && p->progress(&a, &progress, &out) == 0);
        add_pieces(&a, x, &out);
        for (size_t i = 0; i < x->n_prompts * x->n_choices; i++) {
            x->choices[i].result.finish = SPW_FINISH_LENGTH;
            must(p->end_choice(&a, i, &out) == 0);
        }
        must(p->end(&a, &out) == 0 && p->failed(&a, &failure, &out) == 0);
        must_be_events(&out);
    } else {
        add_pieces(&a, x, &out);
        must(p->whole(&a, &out) == 0);
        must_be_json(out.text, out.n);
    }
    p->close(&a);
    spw_free(out.text);
}

static void check_refusal(const struct serve_protocol *p, const struct request_refusal *why)
{
    struct spw_text out = {0};
    must(why->status == 400 && why->message[0] && why->type);
    must(p->error(why, "1", &out) == 0);
    must_be_json(out.text, out.n);
    spw_free(out.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const int64_t before = spw_alloc_outstanding();
    const struct serve_protocol *p = serve_protocols[data[0] % serve_n_protocols];
    char *text = spw_alloc(size);
    must(text);
    memcpy(text, data + 1, size - 1);
    struct request x;
    struct serve_wish wish;
    struct request_refusal why = {0};
    int rc = serve_read(p, &x, &wish, text, size - 1, &reader, LONGEST, &why);
    must(rc == 0 || rc == -EINVAL || rc == -E2BIG);
    if (rc)
        check_refusal(p, &why);
    else
        must(x.n_prompts && x.n_choices && request_tokens(&x) <= LONGEST);
    if (!rc && x.n_prompts * x.n_choices <= 64)
        answer(p, &x, &wish);
    request_free(&x);
    spw_free(text);
    must(spw_alloc_outstanding() == before);
    return 0;
}
