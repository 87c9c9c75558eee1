/* libFuzzer target of the lines of a job. The input is a line. Whatever the bytes, phase 1 and
 * jansson agree on what is an object and on its id, a refusal has a message that is UTF-8, an item
 * gives a line of output, and nothing leaks. A line with a NUL byte is refused: JSON has no place
 * for one, and jansson skips a NUL byte behind a number or a word.
 *
 *   build/fuzz/fuzz_request -max_total_time=60 tests/fuzz/seeds/request */
#include "tests/job_world.h"
#include "tools/command/request/record.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    return atexit(close_world);
}

static void check_parsed(const struct request *x, const json_t *line, int rc,
                         const struct request_refusal *why)
{
    bool is_openai = json_object_get(line, "custom_id") || json_object_get(line, "url") ||
                     json_object_get(line, "body");
    json_t *id = json_object_get(line, is_openai ? "custom_id" : "id");
    must(is_openai == (x->form != REQUEST_SHORT));
    must(id && !json_is_null(id) ? json_equal(id, x->id) : !x->id);
    must(!rc || strcmp(why->code, "invalid_json_line") != 0);
}

static void check_refusal(const struct request *x, const struct request_refusal *why)
{
    json_t *message = json_string(why->message), *param = json_string(why->param);
    must(message && param && why->message[0] && why->type && (!why->status || why->status == 400));
    json_decref(message);
    json_decref(param);
    json_t *line = request_record_error(x, why);
    must(line);
    json_decref(line);
}

static void check_item(struct request *x)
{
    const struct request_names names = {.model = "m", .tokenizer = model.tokenizer};
    must(x->n_prompts && x->n_choices && x->choices);
    for (size_t i = 0; i < x->n_prompts; i++)
        must(x->prompts[i].n > 0);
    for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
        x->choices[i].result.finish = SPW_FINISH_LENGTH;
    json_t *line = request_record(x, &names);
    must(line);
    json_decref(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    int64_t before = reader.template ? spw_alloc_outstanding() : -1;
    struct request x;
    struct request_refusal why = {0};
    const bool has_nul = size && memchr(text, '\0', size);
    json_t *line =
        has_nul ? NULL : json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    int rc = request_parse(&x, &reader, text, size, 1, &why);
    if (json_is_object(line))
        check_parsed(&x, line, rc, &why);
    if (!rc)
        rc = request_encode(&x, &reader, &why);
    must(rc == 0 || rc == -EINVAL);
    must(rc || json_is_object(line));
    must(!rc || !json_is_object(line) || strcmp(why.code, "invalid_json_line") != 0);
    if (rc)
        check_refusal(&x, &why);
    else
        check_item(&x);
    request_free(&x);
    json_decref(line);
    must(before < 0 || spw_alloc_outstanding() == before);
    return 0;
}
