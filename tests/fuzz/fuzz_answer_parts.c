/* libFuzzer target of the parts of an answer. The first byte chooses the style of calls and the
 * form of reasoning, the second one the length of the pieces; the others are the text of an answer.
 * Whatever the bytes: pieces give the same parts as the whole text; a model without marks has all
 * of it as its text; arguments that are not JSON in the text are JSON when the call is complete.
 *
 *   build/fuzz/fuzz_answer_parts -max_total_time=60 tests/fuzz/seeds/answer_parts */
#include "model/text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"u\":{\"type\":"
    "[\"string\",\"null\"]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static void must(bool good)
{
    if (!good)
        abort();
}

/* The parts as bytes: each part begins with a byte of its kind. */
struct parts {
    char *text; /* owned, [capacity] */
    size_t n, capacity;
    int kind;         /* of the latest piece; -1: none */
    size_t arguments; /* where those of the latest call begin */
    bool makes_json;
};

static void add(struct parts *p, const char *text, size_t bytes)
{
    while (p->capacity - p->n < bytes)
        must((p->text = realloc(p->text, p->capacity = 2 * p->capacity + bytes)) != NULL);
    memcpy(p->text + p->n, text, bytes);
    p->n += bytes;
}

static int hear(void *context, const struct spw_answer_piece *piece)
{
    struct parts *p = context;
    const bool is_call = piece->kind == SPW_PIECE_CALL || piece->kind == SPW_PIECE_CALL_END;
    const char kind = (char)('0' + piece->kind);
    must(is_call || piece->bytes > 0);
    must(piece->kind != SPW_PIECE_ARGUMENTS || p->kind == SPW_PIECE_CALL ||
         p->kind == SPW_PIECE_ARGUMENTS);
    if (p->makes_json && piece->kind == SPW_PIECE_CALL_END) {
        json_t *arguments;
        must(!spw_json_parse(&arguments, p->text + p->arguments, p->n - p->arguments,
                             JSON_ALLOW_NUL | SPW_JSON_LARGE_REAL, NULL));
        must(json_is_object(arguments));
        json_decref(arguments);
    }
    if (is_call || (int)piece->kind != p->kind)
        add(p, &kind, 1);
    if (piece->kind == SPW_PIECE_ARGUMENTS && p->kind == SPW_PIECE_CALL)
        p->arguments = p->n;
    add(p, piece->text, piece->bytes);
    p->kind = (int)piece->kind;
    return 0;
}

static void divide(const struct spw_answer_parts_options *o, const char *text, size_t bytes,
                   size_t piece, struct parts *p)
{
    struct spw_answer_parts *a;
    must(!spw_answer_parts_open(&a, o));
    for (size_t at = 0; at < bytes; at += piece)
        must(
            !spw_answer_parts_push(a, text + at, piece < bytes - at ? piece : bytes - at, hear, p));
    must(!spw_answer_parts_finish(a, hear, p));
    spw_answer_parts_close(a);
}

static bool is_utf8(const char *text, size_t bytes)
{
    json_t *s = json_stringn(text, bytes);
    json_decref(s);
    return s != NULL;
}

/* Whether the style's arguments are no JSON in the text. */
static bool makes_json(const struct spw_tool_style *style)
{
    static const char *const signs[] = {"<|tool_call_start|>", "<minimax:tool_call>", "｜DSML｜"};
    bool found = false;
    for (size_t i = 0; style->sign && i < sizeof signs / sizeof *signs; i++)
        found |= !strcmp(style->sign, signs[i]);
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct spw_reasoning_form none, think = {.open = "<think>", .close = "</think>"},
                                                 channels = {.has_channels = true};
    if (size < 2)
        return 0;
    const size_t style = (data[0] >> 2) % (spw_tool_n_styles + 2);
    const struct spw_tool_form form = {.style = style < spw_tool_n_styles ? &spw_tool_styles[style]
                                                : style == spw_tool_n_styles ? &spw_tool_channels
                                                                             : NULL};
    const struct spw_answer_parts_options o = {.reasoning = style == spw_tool_n_styles ? &channels
                                                            : data[0] & 1              ? &think
                                                                                       : &none,
                                               .is_open = data[0] & 2,
                                               .tools = &form,
                                               .tools_json = tools,
                                               .tools_bytes = sizeof tools - 1};
    const char *text = (const char *)data + 2;
    const size_t bytes = size - 2;
    struct parts whole = {.kind = -1}, pieces = {.kind = -1};
    whole.makes_json = form.style && makes_json(form.style) && is_utf8(text, bytes);
    divide(&o, text, bytes, bytes ? bytes : 1, &whole);
    divide(&o, text, bytes, 1 + data[1] % 32, &pieces);
    must(whole.n == pieces.n && (!whole.n || !memcmp(whole.text, pieces.text, whole.n)));
    if (!form.style && o.reasoning == &none && bytes)
        must(whole.n == bytes + 1 && !memcmp(whole.text + 1, text, bytes));
    free(whole.text);
    free(pieces.text);
    return 0;
}
