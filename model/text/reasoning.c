/* Marks of reasoning, and the text between them: see reasoning.h.
 *
 * The splitter reads byte by byte. Bytes that may belong to a mark are held:
 *
 *   START      white space, and the begin of the opening mark
 *   HEADER     all bytes up to <|message|>: they name the channel
 *   REASONING, ANSWER   the begin of a mark that ends this part
 *
 * If held bytes turn out to be no mark, the first one is text, and the others are read again. */
#include "model/text/reasoning.h"

#include "base/grow.h"

#include <string.h>

static const struct {
    const char *open, *close;
    const char *bare; /* as in struct spw_reasoning_form */
} pairs[] = {
    {"<think>", "</think>", NULL},
    {"[THINK]", "[/THINK]", NULL},
    {"<|START_THINKING|>", "<|END_THINKING|>", NULL},
    {"<|channel>thought\n", "<channel|>", NULL},
    {"<|think|>", "<|end|><|begin|>assistant<|content|>", "<|content|>"}, /* Solar Open */
};

static const char start_mark[] = "<|start|>", channel_mark[] = "<|channel|>",
                  message_mark[] = "<|message|>";
/* What ends a message of a channel. */
static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", start_mark, channel_mark};

enum { N_PAIRS = sizeof pairs / sizeof *pairs, N_ENDS = sizeof ends / sizeof *ends };

/* ---- which marks ---- */

static bool is_token(const struct spw_tokenizer *t, const char *mark)
{
    return spw_tokenizer_id(t, mark) >= 0;
}

int spw_marks_add(struct spw_marks *m, const struct spw_tokenizer *t, const char *mark)
{
    int32_t *ids;
    size_t n;
    SPW_TRY(spw_tokenizer_encode(t, mark, strlen(mark), false, &ids, &n, NULL));
    for (size_t i = 0; i < n && m->n < SPW_TOKENIZER_MOST_SHOWN; i++)
        if (spw_tokenizer_is_special(t, ids[i]))
            m->ids[m->n++] = ids[i];
    spw_free(ids);
    return 0;
}

static int find_channels(struct spw_reasoning_form *f, const struct spw_tokenizer *t)
{
    f->has_channels = true;
    for (size_t i = 0; i < N_ENDS; i++)
        SPW_TRY(spw_marks_add(&f->specials, t, ends[i]));
    return spw_marks_add(&f->specials, t, message_mark);
}

int spw_reasoning_find(struct spw_reasoning_form *out, const struct spw_chat_template *t,
                       const struct spw_tokenizer *tokenizer)
{
    *out = (struct spw_reasoning_form){0};
    if (is_token(tokenizer, channel_mark) && is_token(tokenizer, message_mark))
        return find_channels(out, tokenizer);
    for (size_t i = 0; i < N_PAIRS; i++) {
        const char *open = pairs[i].open, *close = pairs[i].close, *bare = pairs[i].bare;
        if (!(t && spw_chat_template_has(t, close)) &&
            !(is_token(tokenizer, open) && is_token(tokenizer, bare ? bare : close)))
            continue;
        out->open = open;
        out->close = close;
        out->bare = bare;
        SPW_TRY(spw_marks_add(&out->specials, tokenizer, open));
        return spw_marks_add(&out->specials, tokenizer, close);
    }
    return 0;
}

/* Also without the white space at the end of the mark itself. */
bool spw_reasoning_is_open(const struct spw_reasoning_form *f, const char *prompt, size_t bytes)
{
    size_t n = f->open ? strlen(f->open) : 0;
    while (n > 0 && spw_is_blank(f->open[n - 1]))
        n--;
    while (bytes > 0 && spw_is_blank(prompt[bytes - 1]))
        bytes--;
    return n > 0 && bytes >= n && !memcmp(prompt + bytes - n, f->open, n);
}

/* ---- giving text ---- */

/* Text of one part that is given together. */
struct out {
    struct spw_splitter *s;
    spw_splitter_emit emit;
    void *context;
    bool is_reasoning;
    char text[256];
    size_t n;
};

static int flush(struct out *o)
{
    size_t n = o->n;
    o->n = 0;
    return n ? o->emit(o->context, o->is_reasoning, o->text, n) : 0;
}

static int put(struct out *o, bool is_reasoning, char c)
{
    if (o->n == sizeof o->text || is_reasoning != o->is_reasoning)
        SPW_TRY(flush(o));
    o->is_reasoning = is_reasoning;
    o->text[o->n++] = c;
    return 0;
}

/* A byte of the part that the splitter is in. */
static int give(struct out *o, char c)
{
    struct spw_splitter *s = o->s;
    const bool is_reasoning = s->state == SPW_SPLIT_REASONING;
    if (c == '\n' && s->after_mark)
        return 0;
    s->after_mark = false;
    if (c == '\n' && is_reasoning) {
        s->n_breaks++;
        return 0;
    }
    for (; is_reasoning && s->n_breaks; s->n_breaks--)
        SPW_TRY(put(o, true, '\n'));
    *(is_reasoning ? &s->had_reasoning : &s->had_answer) = true;
    return put(o, is_reasoning, c);
}

/* The held bytes, which are no mark. */
static int give_held(struct out *o)
{
    struct spw_splitter *s = o->s;
    for (size_t i = 0; i < s->n_held; i++)
        SPW_TRY(give(o, s->held[i]));
    s->n_held = 0;
    return 0;
}

/* ---- channels ---- */

static bool held_has(const struct spw_splitter *s, const char *text)
{
    return memmem(s->held, s->n_held, text, strlen(text)) != NULL;
}

/* The header is complete. The header of a message to a tool is given too: it names the tool.
 * Another message begins on a new line, if it is not the first one of its part. */
static int end_header(struct out *o)
{
    struct spw_splitter *s = o->s;
    const bool is_call = held_has(s, " to=");
    const bool is_reasoning = !is_call && held_has(s, "<|channel|>analysis");
    s->state = is_reasoning ? SPW_SPLIT_REASONING : SPW_SPLIT_ANSWER;
    s->n_breaks = 0;
    if (is_call)
        return give_held(o);
    s->n_held = 0;
    return (is_reasoning ? s->had_reasoning : s->had_answer) ? put(o, is_reasoning, '\n') : 0;
}

static int read_header(struct out *o, char c)
{
    struct spw_splitter *s = o->s;
    const size_t n = sizeof message_mark - 1;
    s->held[s->n_held++] = c;
    if (s->n_held >= n && !memcmp(s->held + s->n_held - n, message_mark, n))
        return end_header(o);
    if (s->n_held < sizeof s->held)
        return 0;
    s->state = SPW_SPLIT_ANSWER; /* no header is that long */
    return give_held(o);
}

/* ---- one byte ---- */

enum fit { NO_MARK, PART_OF_MARK, WHOLE_MARK };

static enum fit fit_one(const struct spw_splitter *s, size_t skip, const char *mark)
{
    const size_t n = strlen(mark), held = s->n_held - skip;
    if (held > n || memcmp(s->held + skip, mark, held) != 0)
        return NO_MARK;
    return held == n ? WHOLE_MARK : PART_OF_MARK;
}

/* How the held bytes fit the marks that end this part. *mark: the whole one. */
static enum fit fit_end(const struct spw_splitter *s, const char **mark)
{
    enum fit best = NO_MARK;
    const size_t n = s->form.has_channels ? N_ENDS : s->state == SPW_SPLIT_REASONING;
    for (size_t i = 0; i < n && best != WHOLE_MARK; i++) {
        *mark = s->form.has_channels ? ends[i] : s->form.close;
        enum fit fit = fit_one(s, 0, *mark);
        best = fit > best ? fit : best;
    }
    return best;
}

static void end_part(struct spw_splitter *s, const char *mark)
{
    s->after_mark = !s->form.has_channels;
    s->state = s->form.has_channels ? SPW_SPLIT_HEADER : SPW_SPLIT_ANSWER;
    if (mark != channel_mark) /* which belongs to the header */
        s->n_held = 0;
}

static int read_part(struct out *o, char c)
{
    struct spw_splitter *s = o->s;
    const char *mark = NULL;
    enum fit fit;
    s->held[s->n_held++] = c;
    while ((fit = fit_end(s, &mark)) == NO_MARK && s->n_held) {
        SPW_TRY(give(o, s->held[0]));
        memmove(s->held, s->held + 1, --s->n_held);
    }
    if (fit == WHOLE_MARK)
        end_part(s, mark);
    return 0;
}

static int read_start(struct out *o, char c)
{
    struct spw_splitter *s = o->s;
    size_t n_space = 0;
    s->held[s->n_held++] = c;
    while (n_space < s->n_held && spw_is_blank(s->held[n_space]))
        n_space++;
    const enum fit open = fit_one(s, n_space, s->form.open);
    const enum fit bare = s->form.bare ? fit_one(s, n_space, s->form.bare) : NO_MARK;
    if (open == WHOLE_MARK || bare == WHOLE_MARK) {
        s->state = open == WHOLE_MARK ? SPW_SPLIT_REASONING : SPW_SPLIT_ANSWER;
        s->after_mark = true;
        s->n_held = 0;
    } else if ((open == NO_MARK && bare == NO_MARK) || s->n_held == sizeof s->held) {
        s->state = SPW_SPLIT_ANSWER;
        return give_held(o);
    }
    return 0;
}

/* ---- the whole ---- */

void spw_splitter_init(struct spw_splitter *s, const struct spw_reasoning_form *form, bool is_open)
{
    *s = (struct spw_splitter){.form = *form};
    s->state = form->has_channels ? SPW_SPLIT_HEADER
               : !form->open      ? SPW_SPLIT_ANSWER
               : is_open          ? SPW_SPLIT_REASONING
                                  : SPW_SPLIT_START;
    s->after_mark = s->state == SPW_SPLIT_REASONING;
}

int spw_splitter_push(struct spw_splitter *s, const char *text, size_t bytes,
                      spw_splitter_emit emit, void *context)
{
    struct out o = {.s = s, .emit = emit, .context = context};
    for (size_t i = 0; i < bytes; i++)
        SPW_TRY(s->state == SPW_SPLIT_START    ? read_start(&o, text[i])
                : s->state == SPW_SPLIT_HEADER ? read_header(&o, text[i])
                                               : read_part(&o, text[i]));
    return flush(&o);
}

/* A text that ends inside a header has no message after it: marks alone are no answer. */
int spw_splitter_finish(struct spw_splitter *s, spw_splitter_emit emit, void *context)
{
    struct out o = {.s = s, .emit = emit, .context = context};
    if (s->state == SPW_SPLIT_START)
        s->state = SPW_SPLIT_ANSWER;
    if (s->state == SPW_SPLIT_HEADER && !held_has(s, channel_mark) && !s->had_answer &&
        !s->had_reasoning)
        s->state = SPW_SPLIT_ANSWER; /* the model knows no channels */
    if (s->state == SPW_SPLIT_HEADER)
        s->n_held = 0;
    SPW_TRY(give_held(&o));
    return flush(&o);
}

static int no_text(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    (void)context, (void)is_reasoning, (void)text, (void)bytes;
    return 0;
}

/* A token of a mark counts with the part that the mark begins or ends. `n_undecided`: tokens that
 * may be the begin of an opening mark. */
int spw_reasoning_count(uint64_t *out, const struct spw_reasoning_form *form, bool is_open,
                        const struct spw_tokenizer *t, const int32_t *tokens, size_t n)
{
    struct spw_splitter s;
    struct spw_detokenizer *d;
    uint64_t n_undecided = 0;
    int rc = 0;
    *out = 0;
    if (!spw_reasoning_has_marks(form))
        return 0;
    SPW_TRY(spw_detokenizer_init(&d, t, true));
    spw_detokenizer_show(d, form->specials.ids, form->specials.n);
    spw_splitter_init(&s, form, is_open);
    for (size_t i = 0; i < n && !rc; i++) {
        const bool was_reasoning = s.state == SPW_SPLIT_REASONING;
        const char *text;
        size_t bytes;
        rc = spw_detokenizer_push(d, tokens[i], &text, &bytes);
        if (!rc)
            spw_splitter_push(&s, text, bytes, no_text, NULL);
        n_undecided++;
        if (was_reasoning || s.state == SPW_SPLIT_REASONING)
            *out += n_undecided;
        if (was_reasoning || s.state == SPW_SPLIT_REASONING || s.state == SPW_SPLIT_ANSWER)
            n_undecided = 0;
    }
    spw_detokenizer_free(d);
    return rc;
}
