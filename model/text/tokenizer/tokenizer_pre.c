/* Pre-tokenizers: a list of steps over the pieces of a text. A rewriting step changes bytes (byte
 * stand-ins, metaspace), a splitting step only cuts; ByteLevel and Metaspace of tokenizer.json are
 * both, one after the other. Added tokens pass through untouched. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>

int spw_tok_text_add(struct spw_tok_text *x, size_t start, size_t end, int32_t id, bool at_start)
{
    if (start == end)
        return 0;
    SPW_TRY(spw_grow(&x->pieces, &x->capacity, x->n + 1, sizeof *x->pieces));
    x->pieces[x->n++] = (struct spw_tok_piece){start, end, id, at_start};
    return 0;
}

void spw_tok_text_free(struct spw_tok_text *x)
{
    spw_tok_buf_free(&x->buf);
    spw_free(x->pieces);
    *x = (struct spw_tok_text){0};
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 upwards. */
static bool byte_is_printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

int32_t spw_tok_byte_to_char(uint8_t byte)
{
    if (byte_is_printable(byte))
        return byte;
    if (byte <= ' ')
        return 0x100 + byte;
    return byte == 0xad ? 0x143 : 0x121 + (byte - 0x7f);
}

int spw_tok_char_to_byte(int32_t cp)
{
    if (cp >= 0 && cp < 0x100)
        return byte_is_printable(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)cp - 0x100;
    if (cp <= 0x142)
        return (int)cp - 0x121 + 0x7f;
    return cp == 0x143 ? 0xad : -1;
}

/* ---- rewriting ---- */

static int write_bytes(const char *text, size_t n, struct spw_tok_buf *out)
{
    SPW_TRY(spw_tok_buf_reserve(out, 2 * n));
    for (size_t i = 0; i < n; i++)
        out->n += spw_tok_utf8_put(spw_tok_byte_to_char((uint8_t)text[i]), out->data + out->n);
    return 0;
}

static int write_metaspace(const struct spw_tok_step *pre, const char *text, size_t n,
                           bool at_start, struct spw_tok_buf *out)
{
    bool begins = n >= pre->content_bytes && !memcmp(text, pre->content, pre->content_bytes);
    bool wanted =
        pre->scheme == SPW_TOK_SCHEME_ALWAYS || (pre->scheme == SPW_TOK_SCHEME_FIRST && at_start);
    if (wanted && !begins && text[0] != ' ')
        SPW_TRY(spw_tok_buf_append(out, pre->content, pre->content_bytes));
    for (size_t i = 0; i < n;) {
        const char *space = memchr(text + i, ' ', n - i);
        size_t end = space ? (size_t)(space - text) : n;
        SPW_TRY(spw_tok_buf_append(out, text + i, end - i));
        if (space)
            SPW_TRY(spw_tok_buf_append(out, pre->content, pre->content_bytes));
        i = end + (space != NULL);
    }
    return 0;
}

static int rewrite(const struct spw_tok_step *pre, const struct spw_tok_text *in,
                   struct spw_tok_text *out)
{
    SPW_TRY(spw_tok_buf_reserve(&out->buf, in->buf.n));
    for (size_t i = 0; i < in->n; i++) {
        const struct spw_tok_piece *p = &in->pieces[i];
        const char *text = in->buf.data + p->start;
        size_t n = p->end - p->start, start = out->buf.n;
        if (p->id < 0 && pre->kind == SPW_TOK_PRE_BYTES) {
            SPW_TRY(write_bytes(text, n, &out->buf));
        } else if (p->id < 0 && pre->kind == SPW_TOK_PRE_METASPACE) {
            SPW_TRY(write_metaspace(pre, text, n, p->at_start, &out->buf));
        } else {
            if (p->id < 0 && text[0] != ' ')
                SPW_TRY(spw_tok_buf_append(&out->buf, " ", 1));
            SPW_TRY(spw_tok_buf_append(&out->buf, text, n));
        }
        SPW_TRY(spw_tok_text_add(out, start, out->buf.n, p->id, p->at_start));
    }
    return 0;
}

/* ---- splitting ---- */

/* Joins spans in place, as the behavior says. A match joins its neighbour unless that neighbour is
 * a match too; Contiguous joins what is alike. Returns how many are left. */
static size_t join_forward(struct spw_tok_span *s, size_t n, bool contiguous)
{
    size_t kept = 0;
    bool previous = false;
    for (size_t i = 0; i < n; i++) {
        bool match = s[i].match;
        bool join = contiguous ? match == previous : match && !previous;
        if (join && kept)
            s[kept - 1].end = s[i].end;
        else
            s[kept++] = s[i];
        previous = match;
    }
    return kept;
}

/* The same from the end; what is left lies at the end of the array, at s[return value]. */
static size_t join_backward(struct spw_tok_span *s, size_t n)
{
    size_t first = n;
    bool next = false;
    for (size_t i = n; i-- > 0;) {
        bool match = s[i].match;
        if (match && !next && first < n)
            s[first].start = s[i].start;
        else
            s[--first] = s[i];
        next = match;
    }
    return first;
}

static int split_piece(const struct spw_tok_step *pre, struct spw_tok_matcher *m,
                       const struct spw_tok_text *in, const struct spw_tok_piece *p,
                       struct spw_tok_text *out)
{
    SPW_TRY(spw_tok_find(&pre->pattern, m, in->buf.data + p->start, p->end - p->start));
    struct spw_tok_span *s = m->spans.at;
    size_t first = 0, n = m->spans.n;
    for (size_t i = 0; pre->invert && i < n; i++)
        s[i].match = !s[i].match;
    if (pre->behavior == SPW_TOK_CONTIGUOUS || pre->behavior == SPW_TOK_MERGED_WITH_PREVIOUS)
        n = join_forward(s, n, pre->behavior == SPW_TOK_CONTIGUOUS);
    else if (pre->behavior == SPW_TOK_MERGED_WITH_NEXT)
        first = join_backward(s, n);
    for (size_t i = first; i < n; i++) {
        if (pre->behavior == SPW_TOK_REMOVED && s[i].match)
            continue;
        SPW_TRY(spw_tok_text_add(out, p->start + s[i].start, p->start + s[i].end, -1,
                                 p->at_start && !s[i].start));
    }
    return 0;
}

static int split(const struct spw_tok_step *pre, struct spw_tok_matcher *m,
                 const struct spw_tok_text *in, struct spw_tok_text *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const struct spw_tok_piece *p = &in->pieces[i];
        if (p->id >= 0)
            SPW_TRY(spw_tok_text_add(out, p->start, p->end, p->id, p->at_start));
        else
            SPW_TRY(split_piece(pre, m, in, p, out));
    }
    return 0;
}

int spw_tok_pre_apply(const struct spw_tokenizer *t, struct spw_tok_matcher *m,
                      struct spw_tok_text *x)
{
    struct spw_tok_text next = {0};
    int rc = 0;
    for (size_t i = 0; !rc && i < t->pres.n; i++) {
        next.n = next.buf.n = 0;
        if (t->pres.at[i].kind != SPW_TOK_PRE_SPLIT) {
            rc = rewrite(&t->pres.at[i], x, &next);
        } else {
            rc = split(&t->pres.at[i], m, x, &next);
            struct spw_tok_buf same = x->buf;
            x->buf = next.buf;
            next.buf = same;
        }
        struct spw_tok_text swap = *x;
        *x = next;
        next = swap;
    }
    spw_tok_text_free(&next);
    return rc;
}
