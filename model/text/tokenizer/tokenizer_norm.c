/* Normalizers. Unicode forms are computed stretch by stretch: characters that every form leaves
 * alone and that never join with what precedes them are copied, and utf8proc sees only what lies
 * between two of them, so that its buffers stay small and plain text costs nothing. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>
#include <utf8proc.h>

/* Puts the marks at chars[0 .. n) in the order of their combining classes, stable; `spare` has room
 * for as many. Runs are short in real text, and one of a million marks takes no longer a mark. */
static void order_marks(utf8proc_int32_t *chars, utf8proc_ssize_t n, utf8proc_int32_t *spare)
{
    size_t first[256 + 1] = {0};
    for (utf8proc_ssize_t i = 0; i < n; i++)
        first[utf8proc_get_property(chars[i])->combining_class + 1]++;
    for (int k = 1; k <= 256; k++)
        first[k] += first[k - 1];
    for (utf8proc_ssize_t i = 0; i < n; i++)
        spare[first[utf8proc_get_property(chars[i])->combining_class]++] = chars[i];
    memcpy(chars, spare, (size_t)n * sizeof *chars);
}

/* Unicode's canonical ordering: marks between two characters that are none (class 0). utf8proc
 * has its own, which takes quadratic time. */
static int order_all(utf8proc_int32_t *chars, utf8proc_ssize_t n, struct spw_tok_buf *spare)
{
    for (utf8proc_ssize_t i = 0, end; i < n; i = end + 1) {
        int last = 0;
        bool sorted = true;
        for (end = i; end < n; end++) {
            int its = utf8proc_get_property(chars[end])->combining_class;
            if (!its)
                break;
            sorted = sorted && its >= last;
            last = its;
        }
        if (sorted)
            continue;
        spare->n = 0;
        SPW_TRY(spw_tok_buf_reserve(spare, (size_t)(end - i) * sizeof *chars));
        order_marks(chars + i, end - i, (utf8proc_int32_t *)(void *)spare->data);
    }
    return 0;
}

static utf8proc_option_t form_options(enum spw_tok_kind kind)
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

struct form_work {
    struct spw_tok_buf chars, spare; /* of utf8proc_int32_t */
};

/* One stretch through utf8proc, appended to out. */
static int form_stretch(enum spw_tok_kind kind, const char *text, size_t bytes,
                        struct form_work *work, struct spw_tok_buf *out)
{
    enum { MOST_OF_ONE = 18 }; /* characters that one decomposes to; reencode adds a 0 */
    utf8proc_option_t options = form_options(kind);
    utf8proc_int32_t cp = 0, *chars = NULL;
    utf8proc_ssize_t n = 0, more;
    work->chars.n = 0;
    for (size_t i = 0; i < bytes; i += spw_tok_utf8_len(text + i)) {
        work->chars.n = (size_t)n * sizeof *chars;
        SPW_TRY(spw_tok_buf_reserve(&work->chars, (MOST_OF_ONE + 1) * sizeof *chars));
        chars = (utf8proc_int32_t *)(void *)work->chars.data;
        spw_tok_utf8(text + i, bytes - i, &cp);
        more = utf8proc_decompose_char(cp, chars + n, MOST_OF_ONE, options, NULL);
        if (more < 0 || more > MOST_OF_ONE)
            return -EINVAL;
        n += more;
    }
    SPW_TRY(order_all(chars, n, &work->spare));
    n = utf8proc_reencode(chars, n, options);
    return n < 0 ? -EINVAL : spw_tok_buf_append(out, work->chars.data, (size_t)n);
}

static int unicode_form(enum spw_tok_kind kind, struct spw_tok_matcher *m, const char *text,
                        size_t bytes, struct form_work *work, struct spw_tok_buf *out)
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
        SPW_TRY(spw_tok_go_on(m));
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

static int replace(const struct spw_tok_step *norm, struct spw_tok_matcher *m, const char *text,
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

static int strip(const struct spw_tok_step *norm, const char *text, size_t bytes,
                 struct spw_tok_buf *out, bool *at_start)
{
    const size_t start = norm->left ? spw_tok_skip_spaces(text, bytes, 0) : 0;
    const size_t end = norm->right ? spw_tok_skip_spaces_back(text, bytes, start) : bytes;
    *at_start &= !start;
    return spw_tok_buf_append(out, text + start, end - start);
}

static int apply(const struct spw_tok_step *norm, struct spw_tok_matcher *m, const char *text,
                 size_t bytes, struct form_work *work, struct spw_tok_buf *out, bool *at_start)
{
    switch (norm->kind) {
    case SPW_TOK_NFC:
    case SPW_TOK_NFD:
    case SPW_TOK_NFKC:
    case SPW_TOK_NFKD:
        return unicode_form(norm->kind, m, text, bytes, work, out);
    case SPW_TOK_PREPEND:
        if (bytes || norm->always)
            SPW_TRY(spw_tok_buf_append(out, norm->content, norm->content_bytes));
        return spw_tok_buf_append(out, text, bytes);
    case SPW_TOK_REPLACE:
        return replace(norm, m, text, bytes, out, at_start);
    case SPW_TOK_LOWERCASE:
        return lowercase(text, bytes, out);
    case SPW_TOK_STRIP:
        return strip(norm, text, bytes, out, at_start);
    case SPW_TOK_CHARSMAP:
        return spw_tok_charsmap_apply(norm, text, bytes, out);
    default:
        return -EINVAL;
    }
}

int spw_tok_normalize(const struct spw_tokenizer *t, struct spw_tok_matcher *m, const char *text,
                      size_t bytes, struct spw_tok_buf *out, bool *at_start)
{
    struct spw_tok_buf step[2] = {{.limit = out->limit}, {.limit = out->limit}};
    struct form_work work = {0};
    int rc = t->norms.n ? 0 : spw_tok_buf_append(out, text, bytes);
    for (size_t i = 0; !rc && i < t->norms.n; i++) {
        struct spw_tok_buf *to = i + 1 == t->norms.n ? out : &step[i & 1];
        if (to != out)
            to->n = 0;
        rc = apply(&t->norms.at[i], m, text, bytes, &work, to, at_start);
        text = to->data;
        bytes = to->n;
    }
    spw_tok_buf_free(&step[0]);
    spw_tok_buf_free(&step[1]);
    spw_tok_buf_free(&work.chars);
    spw_tok_buf_free(&work.spare);
    return rc;
}
