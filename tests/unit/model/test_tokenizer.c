/* A tokenizer that has all kinds of steps: every allocation failing, its file cut anywhere, many
 * threads.
 *
 * `test_tokenizer --serve FILE` answers requests on stdin for tests/oracle/tokenizer_property.py:
 * "e 0|1 HEX" encodes (1: with special tokens), "d 0|1 ID ..." decodes (1: skipping special ones).
 */
#include "tests/json_text.h"
#include "tests/tokenizer_json.h"

#include <pthread.h>

/* ---- allocation failures ---- */

static const char rich[] = SIMPLE(
    "\"added_tokens\":[" ADDED(20, "<s>", "") "," ADDED(
        21, "B a",
        ",\"normalized\":true") "]," NORM("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                                          "\"NFC\"},{\"type\":\"Replace\","
                                          "\"pattern\":{\"Regex\":\"\\\\p{Han}+ "
                                          "\"},\"content\":\"_\"},{\"type\":\"Lowercase\"}]}")
        PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"\\\\s\\\\w\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"},"
            "{\"type\":\"Metaspace\",\"replacement\":\"_\"}]}") "\"post_processor\":{\"type\":"
                                                                "\"TemplateProcessing\",\"single\":"
                                                                "[{\"SpecialToken\":{\"id\":"
                                                                "\"B\"}},{\"Sequence\":{\"id\":"
                                                                "\"A\"}}],\"special_tokens\":{"
                                                                "\"B\":{\"ids\":[20]}}},"
                                                                "\"decoder\":{\"type\":"
                                                                "\"Sequence\",\"decoders\":[{"
                                                                "\"type\":\"Replace\",\"pattern\":{"
                                                                "\"Regex\":"
                                                                "\"_\"},\"content\":\" "
                                                                "\"},{\"type\":\"ByteFallback\"},{"
                                                                "\"type\":\"Fuse\"},{\"type\":"
                                                                "\"ByteLevel\"}]},");

static int use_all(char out[4096])
{
    static const char text[] = "ab <s> B a \xc3\xa9\xcc\x81 a b c abc abc abc";
    struct spw_tokenizer *t = NULL;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    char *back = NULL;
    int rc = spw_tokenizer_parse(&t, rich, sizeof rich - 1, "rich.json", &err);
    if (!rc)
        rc = spw_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &err);
    if (!rc)
        rc = spw_tokenizer_decode(t, ids, n, false, &back, &bytes);
    if (!rc)
        snprintf(out, 4096, "%zu %s", n, back);
    spw_free(back);
    spw_free(ids);
    spw_tokenizer_close(t);
    return rc;
}

static void test_allocation_failures(void)
{
    char expected[4096], got[4096];
    int64_t before = spw_alloc_outstanding(), n = 0;
    int rc = use_all(expected);
    CHECK_MSG(!rc, "%d", rc);
    json_set_alloc_funcs(json_alloc, json_free);
    /* Success need not be the end: some failures (of a JIT compiler) only make things slower. */
    for (int successes = 0; successes < 20 && n < 10000; n++) {
        spw_alloc_fail_nth(n);
        rc = use_all(got);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || rc == -ENOMEM, "allocation %lld: %d", (long long)n, rc);
        CHECK_MSG(rc || !strcmp(got, expected), "allocation %lld", (long long)n);
        CHECK_MSG(spw_alloc_outstanding() == before, "allocation %lld leaks", (long long)n);
        successes = rc ? 0 : successes + 1;
    }
    json_set_alloc_funcs(malloc, free);
    CHECK(!rc && n > 60 && !json_outstanding);
    fprintf(stderr, "%lld allocations failed in turn\n", (long long)n);

    /* Cut anywhere, the file is refused and nothing leaks. */
    for (size_t cut = 0; cut < sizeof rich - 1; cut++) {
        struct spw_tokenizer *t = NULL;
        struct spw_error err = {0};
        CHECK(spw_tokenizer_parse(&t, rich, cut, "cut.json", &err) == -EINVAL && err.text[0]);
    }
    CHECK(spw_alloc_outstanding() == before);
}

/* ---- one tokenizer, many threads ---- */

struct worker {
    const struct spw_tokenizer *t;
    const char *text;
    char out[4096];
};

static void *encode_often(void *arg)
{
    struct worker *w = arg;
    char out[4096];
    for (int i = 0; i < 50; i++) {
        encode_text(w->t, w->text, strlen(w->text), false, out);
        if (!i)
            strcpy(w->out, out);
        else if (strcmp(w->out, out))
            w->out[0] = 0;
    }
    return NULL;
}

static void test_threads(void)
{
    struct spw_tokenizer *t = parse(rich);
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.t = t, .text = "a b <s> abc B a \xe4\xbd\xa0 cab ab. 11"};
        CHECK(!pthread_create(&threads[i], NULL, encode_often, &workers[i]));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        CHECK(workers[i].out[0] && !strcmp(workers[i].out, workers[0].out));
    spw_tokenizer_close(t);
}

/* ---- answers for the property script ---- */

static void serve_encode(const struct spw_tokenizer *t, bool special, const char *hex)
{
    size_t bytes = strlen(hex) / 2, n = 0;
    char *text = malloc(bytes + 1);
    int32_t *ids = NULL;
    struct spw_error err = {0};
    for (size_t i = 0; text && i < bytes; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
        text[i] = (char)strtoul(digits, NULL, 16);
    }
    if (!text || spw_tokenizer_encode(t, text, bytes, special, &ids, &n, &err))
        printf("error %s", err.text);
    for (size_t i = 0; i < n; i++)
        printf(i ? " %d" : "%d", ids[i]);
    spw_free(ids);
    free(text);
}

static void serve_decode(const struct spw_tokenizer *t, bool skip, char *list)
{
    static int32_t ids[1 << 16];
    size_t n = 0, bytes = 0;
    char *text = NULL;
    for (char *p = strtok(list, " "); p && n < 1 << 16; p = strtok(NULL, " "))
        ids[n++] = (int32_t)strtol(p, NULL, 10);
    if (spw_tokenizer_decode(t, ids, n, skip, &text, &bytes))
        printf("error");
    else if (!streams_alike(t, ids, n, skip))
        printf("error: streamed text differs");
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", (unsigned)(unsigned char)text[i]);
    spw_free(text);
}

static int serve(const char *file)
{
    struct spw_tokenizer *t = parse_file(file);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (!t)
        return 2;
    while ((n = getline(&line, &room, stdin)) > 0) {
        line[n - 1] = 0;
        if (n > 4 && line[0] == 'e')
            serve_encode(t, line[2] == '1', line + 4);
        else if (n > 4)
            serve_decode(t, line[2] == '1', line + 4);
        putchar('\n');
        fflush(stdout);
    }
    free(line);
    spw_tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--serve"))
        return serve(argv[2]);
    test_allocation_failures();
    test_threads();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
