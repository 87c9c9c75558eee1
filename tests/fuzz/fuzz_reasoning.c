/* libFuzzer target of the splitter of reasoning. The first byte chooses the form, whether the
 * prompt opens reasoning, and the length of the pieces; the others are the text of an answer.
 * Whatever the bytes: pieces give the same parts as the whole text, no part is longer than the
 * text, and a model without marks has all of it as its answer.
 *
 *   build/fuzz/fuzz_reasoning -max_total_time=60 tests/fuzz/seeds/reasoning */
#include "model/text/reasoning.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

struct parts {
    const struct spw_reasoning_parts *whole;
    size_t n_answer, n_reasoning;
};

/* Compares a piece with its place in the parts of the whole text. */
static int compare(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    struct parts *p = context;
    const char *part = is_reasoning ? p->whole->reasoning : p->whole->answer;
    size_t n = is_reasoning ? p->whole->n_reasoning : p->whole->n_answer;
    size_t *at = is_reasoning ? &p->n_reasoning : &p->n_answer;
    must(bytes > 0 && bytes <= n - *at && memcmp(part + *at, text, bytes) == 0);
    *at += bytes;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct spw_reasoning_form forms[] = {
        {0},
        {.open = "<think>", .close = "</think>"},
        {.open = "<|channel>thought\n", .close = "<channel|>"},
        {.has_channels = true},
    };
    if (size == 0)
        return 0;
    const struct spw_reasoning_form *form = &forms[data[0] & 3];
    const bool is_open = data[0] & 4;
    const size_t piece = 1 + (data[0] >> 3), bytes = size - 1;
    const char *text = (const char *)data + 1;
    struct spw_reasoning_parts whole = {.answer = malloc(bytes + 1),
                                        .reasoning = malloc(bytes + 1)};
    must(whole.answer && whole.reasoning);
    spw_reasoning_split(&whole, form, is_open, text, bytes);
    must(whole.n_answer <= bytes && whole.n_reasoning <= bytes);
    if (!spw_reasoning_has_marks(form))
        must(whole.n_answer == bytes && memcmp(whole.answer, text, bytes) == 0);
    struct spw_splitter s;
    struct parts parts = {.whole = &whole};
    spw_splitter_init(&s, form, is_open);
    for (size_t at = 0; at < bytes; at += piece)
        must(!spw_splitter_push(&s, text + at, piece < bytes - at ? piece : bytes - at, compare,
                                &parts));
    must(!spw_splitter_finish(&s, compare, &parts));
    must(parts.n_answer == whole.n_answer && parts.n_reasoning == whole.n_reasoning);
    free(whole.answer);
    free(whole.reasoning);
    return 0;
}
