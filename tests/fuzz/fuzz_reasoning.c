/* libFuzzer target of the splitter of reasoning. The first byte chooses the form, whether the
 * prompt opens reasoning, and the length of the pieces; the others are the text of an answer.
 * Whatever the bytes: pieces give the same parts as the whole text, no part is longer than the
 * text, and a model without marks has all of it as its answer.
 *
 *   build/fuzz/fuzz_reasoning -max_total_time=60 tests/fuzz/seeds/reasoning */
#include "base/base.h"
#include "base/grow.h"
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
    struct spw_text of[2]; /* the answer, the reasoning */
};

static int take(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    struct parts *p = context;
    must(bytes > 0);
    return spw_text_add(&p->of[is_reasoning], text, bytes);
}

static void split(struct parts *out, const struct spw_reasoning_form *form, bool is_open,
                  const char *text, size_t bytes, size_t piece)
{
    struct spw_splitter s;
    spw_splitter_init(&s, form, is_open);
    for (size_t at = 0; at < bytes; at += piece)
        must(!spw_splitter_push(&s, text + at, piece < bytes - at ? piece : bytes - at, take, out));
    must(!spw_splitter_finish(&s, take, out));
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
    struct parts whole = {0}, parts = {0};
    split(&whole, form, is_open, text, bytes, bytes + 1);
    split(&parts, form, is_open, text, bytes, piece);
    for (int i = 0; i < 2; i++) {
        const size_t n = whole.of[i].n;
        must(n <= bytes && parts.of[i].n == n);
        must(!n || memcmp(parts.of[i].text, whole.of[i].text, n) == 0);
        if (!spw_reasoning_has_marks(form) && i == 0)
            must(n == bytes && (!n || memcmp(whole.of[i].text, text, n) == 0));
        spw_free(parts.of[i].text);
        spw_free(whole.of[i].text);
    }
    return 0;
}
