/* Reasoning, text and calls of tools in the text of an answer: see answer_parts.h.
 *
 *   text -> splitter (reasoning.h) -> held bytes -> text, or a call of the model's style
 *
 * Bytes that may begin a call are held until they are a call or not. A call that begins inside of
 * reasoning ends the reasoning. White space before the first call is no text, and what stands
 * between and behind calls is dropped. */
#include "model/text/tool_calls.h"

#include "base/grow.h"

#include <string.h>

/* ---- which style ---- */

static const struct spw_tool_style *find_style(const struct spw_chat_template *t,
                                               const struct spw_tokenizer *tokenizer)
{
    if (tokenizer && spw_tokenizer_id(tokenizer, "<|channel|>") >= 0 &&
        spw_tokenizer_id(tokenizer, "<|message|>") >= 0)
        return &spw_tool_channels;
    for (size_t i = 0; t && i < spw_tool_n_styles; i++)
        if (spw_chat_template_has(t, spw_tool_styles[i].sign))
            return &spw_tool_styles[i];
    return NULL;
}

int spw_tool_form_find(struct spw_tool_form *out, const struct spw_chat_template *t,
                       const struct spw_tokenizer *tokenizer)
{
    const struct spw_tool_style *s = find_style(t, tokenizer);
    *out = (struct spw_tool_form){.style = s};
    if (!s || !tokenizer)
        return 0;
    for (size_t i = 0; i < SPW_TOOL_MOST_STARTS && s->starts[i]; i++)
        SPW_TRY(spw_marks_add(&out->specials, tokenizer, s->starts[i]));
    for (size_t i = 0; i < SPW_TOOL_MOST_INSIDE && s->inside[i]; i++)
        SPW_TRY(spw_marks_add(&out->specials, tokenizer, s->inside[i]));
    for (size_t i = 0; i < SPW_TOOL_MOST_PASSES && s->passes[i]; i++)
        SPW_TRY(spw_marks_add(&out->specials, tokenizer, s->passes[i]));
    return 0;
}

bool spw_tool_form_wants_short_ids(const struct spw_tool_form *f)
{
    return f->style && f->style->wants_short_ids;
}

/* ---- open, close ---- */

int spw_answer_parts_open(struct spw_answer_parts **out, const struct spw_answer_parts_options *o)
{
    struct spw_answer_parts *a = spw_alloc_zero(1, sizeof *a);
    *out = NULL;
    if (!a)
        return -ENOMEM;
    const struct spw_reasoning_form none = {0};
    spw_splitter_init(&a->splitter, o->reasoning ? o->reasoning : &none, o->is_open);
    a->style = o->tools ? o->tools->style : NULL;
    int rc = a->style && o->tools_json ? spw_json_parse(&a->tools, o->tools_json, o->tools_bytes,
                                                        SPW_JSON_LARGE_REAL, NULL)
                                       : 0;
    if (!rc && a->tools && !json_is_array(a->tools))
        rc = -EINVAL;
    if (rc) {
        spw_answer_parts_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void spw_answer_parts_close(struct spw_answer_parts *a)
{
    if (!a)
        return;
    json_decref(a->tools);
    spw_free(a->held);
    spw_free(a->key);
    spw_free(a);
}

/* ---- text that may begin a call ---- */

void spw_parts_give(struct spw_answer_parts *a, enum spw_answer_piece_kind kind, const char *text,
                    size_t bytes)
{
    const struct spw_answer_piece p = {
        .kind = kind, .call = a->n_calls ? a->n_calls - 1 : 0, .text = text, .bytes = bytes};
    if (!a->rc)
        a->rc = a->emit(a->context, &p);
}

void spw_parts_drop(struct spw_answer_parts *a, size_t n)
{
    a->n -= n;
    if (n)
        memmove(a->held, a->held + n, a->n);
}

static size_t spaces(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && spw_is_blank(text[i]))
        i++;
    return i;
}

/* The first n held bytes are no call. Behind a call they are nothing. */
static void give_held(struct spw_answer_parts *a, size_t n)
{
    if (n && !a->n_calls) {
        a->had_text |= !a->is_reasoning && spaces(a->held, n) < n;
        spw_parts_give(a, a->is_reasoning ? SPW_PIECE_REASONING : SPW_PIECE_TEXT, a->held, n);
    }
    spw_parts_drop(a, n);
}

/* The first place where a mark begins, or may begin: a->n if there is none. *mark: its bytes, if
 * it is whole. */
static size_t find_start(const struct spw_answer_parts *a, size_t *mark)
{
    *mark = 0;
    for (size_t at = 0; at < a->n; at++)
        for (size_t i = 0; i < SPW_TOOL_MOST_STARTS && a->style->starts[i]; i++) {
            const char *start = a->style->starts[i];
            const size_t n = strlen(start), left = a->n - at;
            if (memcmp(a->held + at, start, left < n ? left : n) != 0)
                continue;
            *mark = left < n ? 0 : n;
            return at;
        }
    return a->n;
}

/* Text goes out up to where a call may begin. White space waits for the text that follows. */
static bool read_text(struct spw_answer_parts *a)
{
    size_t mark = 0, at = a->style ? find_start(a, &mark) : a->n;
    const size_t n_spaces = spaces(a->held, a->n);
    const bool may_be_bare = a->style && a->style->may_be_bare && !a->had_text && !a->n_calls &&
                             !a->is_reasoning && n_spaces < a->n && a->held[n_spaces] == '{';
    if (may_be_bare) {
        at = n_spaces;
        mark = 0;
    }
    if (a->style && !a->had_text && !a->is_reasoning && n_spaces == at) {
        if (!mark && !may_be_bare)
            return false; /* nothing but white space, or the begin of a mark */
    } else if (at) {
        give_held(a, at);
        at = 0;
    }
    if (!mark && !may_be_bare)
        return false;
    a->head = at + mark;
    a->state = SPW_PARTS_HEAD;
    return true;
}

/* The mark begins no call: the mark, or the byte that stands where there is no mark, is text. */
static void refuse_head(struct spw_answer_parts *a)
{
    const bool is_bare = spaces(a->held, a->head) == a->head;
    a->state = SPW_PARTS_TEXT;
    a->had_text = true;
    give_held(a, a->head + (is_bare && a->head < a->n));
}

/* ---- the whole ---- */

static int run(struct spw_answer_parts *a)
{
    bool goes_on = true;
    while (goes_on && !a->rc && (a->n || a->ends)) {
        if (a->state == SPW_PARTS_TEXT) {
            goes_on = read_text(a);
        } else if (a->state == SPW_PARTS_HEAD) {
            enum spw_tool_read r = a->style->read_head(a);
            if (r == SPW_TOOL_NONE || (r == SPW_TOOL_MORE && a->ends && !a->rc))
                refuse_head(a);
            else
                goes_on = r == SPW_TOOL_DONE;
        } else {
            goes_on = spw_tool_step(a);
        }
    }
    return a->rc;
}

/* The bytes that are held are all of this part. */
static void end_part(struct spw_answer_parts *a)
{
    a->ends = true;
    run(a);
    a->ends = false;
    if (a->state == SPW_PARTS_TEXT)
        give_held(a, a->n);
}

static int add(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    struct spw_answer_parts *a = context;
    is_reasoning &= !a->n_calls; /* which a call has ended */
    if (is_reasoning != a->is_reasoning && !a->n_calls) {
        end_part(a); /* no mark goes from one part into the other */
        a->is_reasoning = is_reasoning;
    }
    SPW_TRY(a->rc);
    SPW_TRY(spw_grow(&a->held, &a->capacity, a->n + bytes, 1));
    memcpy(a->held + a->n, text, bytes);
    a->n += bytes;
    return run(a);
}

int spw_answer_parts_push(struct spw_answer_parts *a, const char *text, size_t bytes,
                          spw_answer_emit emit, void *context)
{
    a->emit = emit;
    a->context = context;
    return spw_splitter_push(&a->splitter, text, bytes, add, a);
}

int spw_answer_parts_finish(struct spw_answer_parts *a, spw_answer_emit emit, void *context)
{
    a->emit = emit;
    a->context = context;
    SPW_TRY(spw_splitter_finish(&a->splitter, add, a));
    end_part(a);
    return a->rc;
}
