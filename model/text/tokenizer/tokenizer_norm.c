/* Normalizers. Unicode forms are computed stretch by stretch: characters that every form leaves
 * alone and that never join with what precedes them are copied, and utf8proc sees only what lies
 * between two of them, so that its buffers stay small and plain text costs nothing. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>
#include <utf8proc.h>

static utf8proc_option_t form_options(enum spw_tok_norm_kind kind)
{
    switch (kind) {
    case SPW_TOK_NFD:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case SPW_TOK_NFKC:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case SPW_TOK_NFKD:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    default:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    }
}

/* One stretch through utf8proc, appended to out. */
static int form_stretch(enum spw_tok_norm_kind kind, const char *text, size_t bytes,
                        struct spw_tok_buf *work, struct spw_tok_buf *out)
{
    utf8proc_option_t options = form_options(kind);
    const utf8proc_uint8_t *s = (const utf8proc_uint8_t *)text;
    utf8proc_int32_t *chars;
    utf8proc_ssize_t room, n;
    work->n = 0;
    SPW_TRY(spw_tok_buf_reserve(work, 64 + 2 * bytes));
    for (;;) {
        chars = (utf8proc_int32_t *)(void *)work->data;
        room = (utf8proc_ssize_t)(work->capacity / sizeof *chars) - 1; /* reencode adds a 0 */
        n = utf8proc_decompose(s, (utf8proc_ssize_t)bytes, chars, room, options);
        if (n < 0)
            return n == UTF8PROC_ERROR_NOMEM ? -ENOMEM : -EINVAL;
        if (n <= room)
            break;
        SPW_TRY(spw_tok_buf_reserve(work, ((size_t)n + 1) * sizeof *chars));
    }
    n = utf8proc_reencode(chars, n, options);
    if (n < 0)
        return -EINVAL;
    return spw_tok_buf_append(out, work->data, (size_t)n);
}

static int unicode_form(enum spw_tok_norm_kind kind, const char *text, size_t bytes,
                        struct spw_tok_buf *work, struct spw_tok_buf *out)
{
    /* Below the combining marks nothing changes under NFC; the others change Latin-1 letters too.
     */
    unsigned char calm_lead = kind == SPW_TOK_NFC ? 0xcb : 0x7f;
    size_t calm = 0; /* text before this is in `out` */
    for (size_t i = 0; i < bytes;) {
        size_t last = i; /* the last calm character may take marks from the stretch after it */
        while (i < bytes && (unsigned char)text[i] <= calm_lead) {
            last = i;
            i += spw_tok_utf8_len(text + i);
        }
        if (i == bytes)
            break;
        SPW_TRY(spw_tok_buf_append(out, text + calm, last - calm));
        while (i < bytes && (unsigned char)text[i] > calm_lead)
            i += spw_tok_utf8_len(text + i);
        SPW_TRY(form_stretch(kind, text + last, i - last, work, out));
        calm = i;
    }
    return spw_tok_buf_append(out, text + calm, bytes - calm);
}

static int lowercase(const char *text, size_t bytes, struct spw_tok_buf *out)
{
    SPW_TRY(spw_tok_buf_reserve(out, bytes));
    for (size_t i = 0; i < bytes;) {
        int32_t cp = 0;
        int len = spw_tok_utf8(text + i, bytes - i, &cp);
        char c[4];
        if (len <= 0)
            return -EILSEQ;
        i += (size_t)len;
        if (cp == 0x130) { /* the one character whose lower case is two */
            SPW_TRY(spw_tok_buf_append(out, "i\xcc\x87", 3));
            continue;
        }
        if (cp < 0x80)
            cp = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
        else
            cp = utf8proc_tolower(cp);
        SPW_TRY(spw_tok_buf_append(out, c, spw_tok_utf8_put(cp, c)));
    }
    return 0;
}

static int replace(const struct spw_tok_norm *norm, struct spw_tok_matcher *m, const char *text,
                   size_t bytes, struct spw_tok_buf *out, bool *at_start)
{
    SPW_TRY(spw_tok_find(&norm->pattern, m, text, bytes));
    for (size_t i = 0; i < m->spans.n; i++) {
        const struct spw_tok_span *s = &m->spans.at[i];
        if (s->match)
            SPW_TRY(spw_tok_buf_append(out, norm->content, norm->content_bytes));
        else
            SPW_TRY(spw_tok_buf_append(out, text + s->start, s->end - s->start));
    }
    if (m->spans.n && m->spans.at[0].match && m->spans.at[0].end && !norm->content_bytes)
        *at_start = false;
    return 0;
}

static int strip(const struct spw_tok_norm *norm, const char *text, size_t bytes,
                 struct spw_tok_buf *out, bool *at_start)
{
    size_t start = 0, end = bytes;
    int32_t cp = 0;
    while (norm->left && start < end) {
        int len = spw_tok_utf8(text + start, end - start, &cp);
        if (len <= 0 || !spw_tok_is_space(cp))
            break;
        start += (size_t)len;
        *at_start = false;
    }
    while (norm->right && end > start) {
        size_t before = end - 1;
        while (before > start && ((unsigned char)text[before] & 0xc0) == 0x80)
            before--;
        if (spw_tok_utf8(text + before, end - before, &cp) <= 0 || !spw_tok_is_space(cp))
            break;
        end = before;
    }
    return spw_tok_buf_append(out, text + start, end - start);
}

static int apply(const struct spw_tok_norm *norm, struct spw_tok_matcher *m, const char *text,
                 size_t bytes, struct spw_tok_buf *work, struct spw_tok_buf *out, bool *at_start)
{
    switch (norm->kind) {
    case SPW_TOK_NFC:
    case SPW_TOK_NFD:
    case SPW_TOK_NFKC:
    case SPW_TOK_NFKD:
        return unicode_form(norm->kind, text, bytes, work, out);
    case SPW_TOK_PREPEND:
        if (bytes)
            SPW_TRY(spw_tok_buf_append(out, norm->content, norm->content_bytes));
        return spw_tok_buf_append(out, text, bytes);
    case SPW_TOK_REPLACE:
        return replace(norm, m, text, bytes, out, at_start);
    case SPW_TOK_LOWERCASE:
        return lowercase(text, bytes, out);
    case SPW_TOK_STRIP:
        return strip(norm, text, bytes, out, at_start);
    }
    return -EINVAL;
}

int spw_tok_normalize(const struct spw_tokenizer *t, struct spw_tok_matcher *m, const char *text,
                      size_t bytes, struct spw_tok_buf *out, bool *at_start)
{
    struct spw_tok_buf step[2] = {{0}, {0}}, work = {0};
    int rc = t->n_norms ? 0 : spw_tok_buf_append(out, text, bytes);
    for (size_t i = 0; !rc && i < t->n_norms; i++) {
        struct spw_tok_buf *to = i + 1 == t->n_norms ? out : &step[i & 1];
        if (to != out)
            to->n = 0;
        rc = apply(&t->norms[i], m, text, bytes, &work, to, at_start);
        text = to->data;
        bytes = to->n;
    }
    spw_tok_buf_free(&step[0]);
    spw_tok_buf_free(&step[1]);
    spw_tok_buf_free(&work);
    return rc;
}
