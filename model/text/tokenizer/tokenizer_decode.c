/* Ids to text. The decoders of tokenizer.json are stages in a row; a stage is told text(part of the
 * current token), end(of the token) and finish(no more tokens), and tells the next one the same as
 * soon as it can be sure. Decoding a whole list is pushing its tokens one by one, so that streamed
 * text and text at once cannot differ. Every part handed on is whole characters.
 *
 * What must wait: ByteLevel holds the beginning of an unfinished character; ByteFallback holds a
 * run of byte tokens to its end, because one bad byte turns the whole run into U+FFFD; Strip and
 * the trim of SentencePiece hold the characters that may turn out to be the last. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

struct stage {
    struct spw_tok_buf token; /* BYTE_LEVEL, BYTE_FALLBACK, REPLACE: the token so far */
    struct spw_tok_buf bytes; /* the same: bytes not yet characters; STRIP, TRIM: held at the end */
    struct spw_tok_matcher matcher; /* REPLACE */
    size_t n_tokens;                /* JOIN, METASPACE: tokens that ended */
    size_t n_cut;                   /* STRIP: cut in front */
    bool begun;                     /* JOIN, STRIP, TRIM: the token has begun, its front is done */
};

struct spw_detokenizer {
    const struct spw_tokenizer *t; /* borrowed */
    bool skip_special;
    int32_t shown[SPW_TOKENIZER_MOST_SHOWN]; /* special tokens that are not skipped */
    size_t n_shown;
    bool keeps_bytes; /* ByteLevel holds all bytes of a token, unless they are whole characters */
    struct spw_tok_buf out;
    size_t n_stages;
    struct stage stages[];
};

/* ---- stages; number n_stages is the output ---- */

static int stage_text(struct spw_detokenizer *d, size_t i, const char *p, size_t n);
static int stage_end(struct spw_detokenizer *d, size_t i);

static bool is_text(const struct spw_tok_buf *b)
{
    return spw_tok_valid(b->data, b->n) == b->n;
}

/* ByteLevel's bytes as characters, as far as they are complete. */
static int flush_characters(struct spw_detokenizer *d, size_t i, bool last)
{
    struct spw_tok_buf *b = &d->stages[i].bytes;
    size_t at = 0, clean = 0; /* [clean, at): valid and not yet handed on */
    if (d->keeps_bytes && !is_text(b))
        return 0;
    while (at < b->n) {
        int32_t cp;
        int len = spw_tok_utf8(b->data + at, b->n - at, &cp);
        if (len > 0) {
            at += (size_t)len;
            continue;
        }
        if (!len && !last)
            break;
        SPW_TRY(stage_text(d, i + 1, b->data + clean, at - clean));
        SPW_TRY(stage_text(d, i + 1, REPLACEMENT, 3));
        at = len ? at + (size_t)-len : b->n;
        clean = at;
    }
    SPW_TRY(stage_text(d, i + 1, b->data + clean, at - clean));
    memmove(b->data, b->data + at, b->n - at);
    b->n -= at;
    return 0;
}

/* A token made of stand-ins only gives its bytes, any other its own text. */
static int byte_level_end(struct spw_detokenizer *d, size_t i)
{
    struct stage *s = &d->stages[i];
    size_t before = s->bytes.n;
    SPW_TRY(spw_tok_buf_reserve(&s->bytes, s->token.n + 1));
    for (size_t k = 0, len; k < s->token.n; k += len) {
        int32_t cp = 0;
        len = spw_tok_utf8_len(s->token.data + k);
        spw_tok_utf8(s->token.data + k, len, &cp);
        int byte = spw_tok_char_to_byte(cp);
        if (byte < 0) {
            s->bytes.n = before;
            SPW_TRY(spw_tok_buf_append(&s->bytes, s->token.data, s->token.n));
            break;
        }
        s->bytes.data[s->bytes.n++] = (char)byte;
    }
    s->token.n = 0;
    return flush_characters(d, i, false);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* <0x41> -> 0x41; -1: an ordinary token. */
static int fallback_byte(const struct spw_tok_buf *token)
{
    const char *p = token->data;
    if (token->n != 6 || memcmp(p, "<0x", 3) || p[5] != '>')
        return -1;
    int high = hex_digit(p[3]), low = hex_digit(p[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* As SentencePiece: the characters of a run, and U+FFFD for each byte between them. */
static int flush_characters_of_run(struct spw_detokenizer *d, size_t i)
{
    struct spw_tok_buf *run = &d->stages[i].bytes;
    int32_t cp;
    for (size_t at = 0; at < run->n;) {
        const int len = spw_tok_utf8(run->data + at, run->n - at, &cp);
        SPW_TRY(len > 0 ? stage_text(d, i + 1, run->data + at, (size_t)len)
                        : stage_text(d, i + 1, REPLACEMENT, 3));
        SPW_TRY(stage_end(d, i + 1));
        at += len > 0 ? (size_t)len : 1;
    }
    run->n = 0;
    return 0;
}

static int flush_run(struct spw_detokenizer *d, size_t i)
{
    struct spw_tok_buf *run = &d->stages[i].bytes;
    bool valid = is_text(run);
    if (d->t->decs.at[i].by_character)
        return flush_characters_of_run(d, i);
    if (valid && run->n) {
        SPW_TRY(stage_text(d, i + 1, run->data, run->n));
        SPW_TRY(stage_end(d, i + 1));
    }
    for (size_t k = 0; !valid && k < run->n; k++) {
        SPW_TRY(stage_text(d, i + 1, REPLACEMENT, 3));
        SPW_TRY(stage_end(d, i + 1));
    }
    run->n = 0;
    return 0;
}

static int byte_fallback_end(struct spw_detokenizer *d, size_t i)
{
    struct stage *s = &d->stages[i];
    int byte = fallback_byte(&s->token);
    if (byte >= 0) {
        char c = (char)byte;
        s->token.n = 0;
        return spw_tok_buf_append(&s->bytes, &c, 1);
    }
    SPW_TRY(flush_run(d, i));
    SPW_TRY(stage_text(d, i + 1, s->token.data, s->token.n));
    s->token.n = 0;
    return stage_end(d, i + 1);
}

static int replace_end(struct spw_detokenizer *d, size_t i)
{
    struct stage *s = &d->stages[i];
    const struct spw_tok_step *dec = &d->t->decs.at[i];
    s->matcher.memory = d->t->regex_memory;
    SPW_TRY(spw_tok_find(&dec->pattern, &s->matcher, s->token.data, s->token.n));
    for (size_t k = 0; k < s->matcher.spans.n; k++) {
        const struct spw_tok_span *span = &s->matcher.spans.at[k];
        if (span->match)
            SPW_TRY(stage_text(d, i + 1, dec->content, dec->content_bytes));
        else
            SPW_TRY(stage_text(d, i + 1, s->token.data + span->start, span->end - span->start));
    }
    s->token.n = 0;
    return stage_end(d, i + 1);
}

static bool is_character(const struct spw_tok_step *dec, const char *p, size_t len)
{
    return len == dec->content_bytes && !memcmp(p, dec->content, len);
}

static bool is_white(const char *p, size_t len)
{
    int32_t cp = 0;
    spw_tok_utf8(p, len, &cp);
    return spw_tok_is_space(cp) || (cp >= 0x1c && cp <= 0x1f); /* as str.strip of Python */
}

/* Cuts the first characters of the kind. The last ones wait for another character behind them.
 * STRIP: so many of one character; TRIM: all white space. */
static int strip_text(struct spw_detokenizer *d, size_t i, const char *p, size_t n)
{
    struct stage *s = &d->stages[i];
    const struct spw_tok_step *dec = &d->t->decs.at[i];
    const bool trims = dec->kind == SPW_TOK_DEC_TRIM;
    for (size_t k = 0, len; k < n; k += len) {
        len = spw_tok_utf8_len(p + k);
        const bool same = trims ? is_white(p + k, len) : is_character(dec, p + k, len);
        if (same && !s->begun && (trims || s->n_cut < dec->start)) {
            s->n_cut++;
            continue;
        }
        s->begun = true;
        if (same && (trims || s->bytes.n / len < dec->stop)) {
            SPW_TRY(spw_tok_buf_append(&s->bytes, p + k, len));
            continue;
        }
        if (!same) {
            SPW_TRY(stage_text(d, i + 1, s->bytes.data, s->bytes.n));
            s->bytes.n = 0;
        }
        SPW_TRY(stage_text(d, i + 1, p + k, len));
    }
    return 0;
}

static int metaspace_text(struct spw_detokenizer *d, size_t i, const char *p, size_t n)
{
    const struct spw_tok_step *dec = &d->t->decs.at[i];
    bool drop = dec->scheme != SPW_TOK_SCHEME_NEVER && !d->stages[i].n_tokens;
    for (size_t k = 0, len; k < n; k += len) {
        len = spw_tok_utf8_len(p + k);
        if (!is_character(dec, p + k, len))
            SPW_TRY(stage_text(d, i + 1, p + k, len));
        else if (!drop)
            SPW_TRY(stage_text(d, i + 1, " ", 1));
    }
    return 0;
}

/* JOIN: a space in front of every token but the first, also of an empty one. */
static int join_begin(struct spw_detokenizer *d, size_t i)
{
    struct stage *s = &d->stages[i];
    bool space = !s->begun && s->n_tokens;
    s->begun = true;
    return space ? stage_text(d, i + 1, " ", 1) : 0;
}

static int stage_text(struct spw_detokenizer *d, size_t i, const char *p, size_t n)
{
    if (i == d->n_stages)
        return spw_tok_buf_append(&d->out, p, n);
    if (!n)
        return 0;
    switch (d->t->decs.at[i].kind) {
    case SPW_TOK_DEC_BYTE_LEVEL:
    case SPW_TOK_DEC_BYTE_FALLBACK:
    case SPW_TOK_REPLACE:
        return spw_tok_buf_append(&d->stages[i].token, p, n);
    case SPW_TOK_DEC_FUSE:
        return stage_text(d, i + 1, p, n);
    case SPW_TOK_DEC_STRIP:
    case SPW_TOK_DEC_TRIM:
        return strip_text(d, i, p, n);
    case SPW_TOK_DEC_METASPACE:
        return metaspace_text(d, i, p, n);
    case SPW_TOK_DEC_JOIN:
        SPW_TRY(join_begin(d, i));
        return stage_text(d, i + 1, p, n);
    default:
        return -EINVAL;
    }
}

static int stage_end(struct spw_detokenizer *d, size_t i)
{
    if (i == d->n_stages)
        return 0;
    struct stage *s = &d->stages[i];
    switch (d->t->decs.at[i].kind) {
    case SPW_TOK_DEC_BYTE_LEVEL:
        return byte_level_end(d, i);
    case SPW_TOK_DEC_BYTE_FALLBACK:
        return byte_fallback_end(d, i);
    case SPW_TOK_REPLACE:
        return replace_end(d, i);
    case SPW_TOK_DEC_FUSE:
        return 0;
    case SPW_TOK_DEC_JOIN:
        SPW_TRY(join_begin(d, i));
        break;
    default:
        break;
    }
    s->n_tokens++;
    s->n_cut = s->bytes.n = 0;
    s->begun = false;
    return stage_end(d, i + 1);
}

/* No more tokens: ByteLevel and Fuse now end the one token they made of all. */
static int stage_finish(struct spw_detokenizer *d, size_t i)
{
    if (i == d->n_stages)
        return 0;
    enum spw_tok_kind kind = d->t->decs.at[i].kind;
    if (kind == SPW_TOK_DEC_BYTE_LEVEL)
        SPW_TRY(flush_characters(d, i, true));
    else if (kind == SPW_TOK_DEC_BYTE_FALLBACK)
        SPW_TRY(flush_run(d, i));
    if (kind == SPW_TOK_DEC_BYTE_LEVEL || kind == SPW_TOK_DEC_FUSE)
        SPW_TRY(stage_end(d, i + 1));
    d->stages[i].n_tokens = 0;
    return stage_finish(d, i + 1);
}

/* ---- public ---- */

int spw_detokenizer_init(struct spw_detokenizer **out, const struct spw_tokenizer *t,
                         bool skip_special)
{
    struct spw_detokenizer *d = spw_alloc_zero(1, sizeof *d + t->decs.n * sizeof d->stages[0]);
    if (!d)
        return -ENOMEM;
    d->t = t;
    d->skip_special = skip_special;
    d->n_stages = t->decs.n;
    /* Room for any ordinary token from the start: streaming then allocates nothing. */
    int rc = spw_tok_buf_reserve(&d->out, 512);
    for (size_t i = 0; !rc && i < d->n_stages; i++) {
        rc = spw_tok_buf_reserve(&d->stages[i].token, 256);
        if (!rc)
            rc = spw_tok_buf_reserve(&d->stages[i].bytes, 256);
    }
    if (rc) {
        spw_detokenizer_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void spw_detokenizer_show(struct spw_detokenizer *d, const int32_t *ids, size_t n)
{
    d->n_shown = n < SPW_TOKENIZER_MOST_SHOWN ? n : SPW_TOKENIZER_MOST_SHOWN;
    for (size_t i = 0; i < d->n_shown; i++)
        d->shown[i] = ids[i];
}

static bool is_shown(const struct spw_detokenizer *d, int32_t id)
{
    for (size_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return true;
    return false;
}

static int push(struct spw_detokenizer *d, int32_t id)
{
    const struct spw_tokenizer *t = d->t;
    if (id < 0 || (uint32_t)id >= spw_tokenizer_vocab_size(t) || !t->entries[id].flags)
        return 0;
    const struct spw_tok_entry *e = &t->entries[id];
    if (d->skip_special && e->flags & SPW_TOK_SPECIAL && !is_shown(d, id))
        return 0;
    const char *text = t->blob.data + e->offset;
    size_t bytes = e->bytes;
    if (e->flags & SPW_TOK_IN_ADDED && t->added[e->flags >> SPW_TOK_ADDED_SHIFT].form) {
        text = t->added[e->flags >> SPW_TOK_ADDED_SHIFT].form;
        bytes = t->added[e->flags >> SPW_TOK_ADDED_SHIFT].form_bytes;
    }
    SPW_TRY(stage_text(d, 0, text, bytes));
    return stage_end(d, 0);
}

int spw_detokenizer_push(struct spw_detokenizer *d, int32_t id, const char **text, size_t *bytes)
{
    d->out.n = 0;
    SPW_TRY(push(d, id));
    *text = d->out.data;
    *bytes = d->out.n;
    return 0;
}

int spw_detokenizer_finish(struct spw_detokenizer *d, const char **text, size_t *bytes)
{
    d->out.n = 0;
    SPW_TRY(stage_finish(d, 0));
    *text = d->out.data;
    *bytes = d->out.n;
    return 0;
}

void spw_detokenizer_free(struct spw_detokenizer *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n_stages; i++) {
        spw_tok_buf_free(&d->stages[i].token);
        spw_tok_buf_free(&d->stages[i].bytes);
        spw_tok_matcher_free(&d->stages[i].matcher);
    }
    spw_tok_buf_free(&d->out);
    spw_free(d);
}

/* Ends decoding at once: hands the text over if `rc` is 0. */
static int give_text(struct spw_detokenizer *d, int rc, char **text, size_t *bytes)
{
    if (!rc)
        rc = spw_tok_buf_append(&d->out, "", 1);
    if (!rc) {
        *text = d->out.data;
        *bytes = d->out.n - 1;
        d->out = (struct spw_tok_buf){0};
    }
    spw_detokenizer_free(d);
    return rc;
}

int spw_tokenizer_decode(const struct spw_tokenizer *t, const int32_t *ids, size_t n,
                         bool skip_special, char **text, size_t *bytes)
{
    struct spw_detokenizer *d = NULL;
    SPW_TRY(spw_detokenizer_init(&d, t, skip_special));
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = push(d, ids[i]);
    if (!rc)
        rc = stage_finish(d, 0);
    return give_text(d, rc, text, bytes);
}

/* ---- the bytes of a token ---- */

/* Sets the stages as they are inside a text: no token is the first one. */
static void enter_text(struct spw_detokenizer *d)
{
    bool fused = false;
    for (size_t i = 0; i < d->n_stages; i++) {
        enum spw_tok_kind kind = d->t->decs.at[i].kind;
        fused = fused || kind == SPW_TOK_DEC_FUSE || kind == SPW_TOK_DEC_BYTE_LEVEL;
        d->stages[i].n_tokens = 1;
        d->stages[i].begun = (kind == SPW_TOK_DEC_STRIP || kind == SPW_TOK_DEC_TRIM) && fused;
    }
}

/* Bytes that the decoders have not handed on, because they are no whole characters. */
static int append_held(struct spw_detokenizer *d)
{
    for (size_t i = 0; i < d->n_stages; i++)
        SPW_TRY(spw_tok_buf_append(&d->out, d->stages[i].bytes.data, d->stages[i].bytes.n));
    return 0;
}

int spw_tokenizer_token_bytes(const struct spw_tokenizer *t, int32_t id, char **text, size_t *bytes)
{
    struct spw_detokenizer *d;
    SPW_TRY(spw_detokenizer_init(&d, t, false));
    d->keeps_bytes = true;
    enter_text(d);
    int rc = push(d, id);
    if (!rc)
        rc = append_held(d);
    return give_text(d, rc, text, bytes);
}
