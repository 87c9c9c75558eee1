/* libFuzzer target of chat templates. The input is a template, and after a NUL byte, if there is
 * one, the JSON object of its variables. Whatever the bytes, a failure has a one-line message, a
 * text is UTF-8 and the same the second time, and nothing leaks.
 *
 *   build/fuzz/fuzz_template -max_total_time=60 tests/fuzz/seeds/template */
#include "model/text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void check_text(const char *text, size_t bytes)
{
    utf8proc_int32_t c;
    must(text[bytes] == 0);
    for (size_t i = 0; i < bytes;) {
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &c);
        must(n > 0);
        i += (size_t)n;
    }
}

static void render(const struct spw_jinja *t, const json_t *vars)
{
    static const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26};
    const struct spw_jinja_input in = {vars, &now};
    struct spw_error err = {0};
    char *text = NULL, *again = NULL;
    size_t bytes = 0, bytes_again = 0;
    int rc = spw_jinja_render(t, &in, &text, &bytes, &err);
    must(!rc == !err.text[0] && !rc == !!text && !strchr(err.text, '\n'));
    if (rc)
        return;
    check_text(text, bytes);
    must(!spw_jinja_render(t, &in, &again, &bytes_again, &err));
    must(bytes == bytes_again && !memcmp(text, again, bytes));
    spw_free(text);
    spw_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be \\u00e9xact\"}, {\"role\": "
        "\"user\", "
        "\"content\": \" Hi \\ud83e\\udd99 \"}, {\"role\": \"assistant\", \"content\": [{\"type\": "
        "\"text\", \"text\": \"x\"}]}], \"tools\": null, \"n\": 3, \"f\": 1.5, "
        "\"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t bytes = nul ? (size_t)(nul - data) : size;
    json_t *vars = nul ? json_loadb((const char *)nul + 1, size - bytes - 1, JSON_ALLOW_NUL, NULL)
                       : json_loads(usual, 0, NULL);
    struct spw_jinja *t = NULL;
    struct spw_error err = {0};
    int rc = spw_jinja_parse(&t, (const char *)data, bytes, "fuzz", &err);
    must(!rc == !err.text[0] && !rc == !!t && !strchr(err.text, '\n'));
    if (!rc && json_is_object(vars))
        render(t, vars);
    spw_jinja_free(t);
    json_decref(vars);
    must(spw_alloc_outstanding() == 0);
    return 0;
}
