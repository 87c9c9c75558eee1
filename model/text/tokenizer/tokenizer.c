/* Open and close, look-ups, and encoding from end to end:
 *
 *   text -> added tokens as written -> normalizer -> added tokens in normal form
 *        -> pre-tokenizers -> model, piece by piece -> post-processor */
#include "model/config/config_json.h"
#include "base/file.h"
#include "model/text/special_tokens.h"
#include "model/text/tokenizer/tokenizer_spm.h"

#include <string.h>

/* ---- open, close ---- */

struct spw_tokenizer *spw_tok_new(struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_tokenizer *t = spw_alloc_zero(1, sizeof *t);
    if (t && !(t->regex_memory = spw_tok_regex_memory())) {
        spw_free(t);
        t = NULL;
    }
    return t;
}

int spw_tok_opened(struct spw_tokenizer **out, struct spw_tokenizer *t, int rc, const char *name,
                   struct spw_error *err)
{
    *out = rc ? NULL : t;
    if (!rc)
        return 0;
    spw_json_tidy(err);
    spw_tokenizer_close(t);
    return rc == -ENOMEM  ? spw_fail(err, rc, "%s: out of memory while reading it", name)
           : rc == -EFBIG ? spw_fail(err, rc, "%s: found more than 2 GiB of token text", name)
                          : rc;
}

static int parse(struct spw_tokenizer **out, const char *json, size_t bytes,
                 const struct spw_special_tokens *special, const char *name, struct spw_error *err)
{
    struct spw_tokenizer *t = spw_tok_new(err);
    int rc = t ? spw_tok_load(t, json, bytes, special, name, err) : -ENOMEM;
    return spw_tok_opened(out, t, rc, name, err);
}

int spw_tokenizer_parse(struct spw_tokenizer **out, const char *json, size_t bytes,
                        const char *name, struct spw_error *err)
{
    return parse(out, json, bytes, NULL, name, err);
}

int spw_tokenizer_open_folder(struct spw_tokenizer **out, const char *folder, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    struct spw_special_tokens special = {0};
    char *path = spw_file_join(folder, "tokenizer.json"), *json = NULL;
    size_t bytes;
    int rc = path ? spw_special_tokens_read(&special, folder, err)
                  : spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    if (!rc) {
        const int read = spw_file_read(path, SPW_TOKENIZER_MOST_BYTES, &json, &bytes, err);
        rc = !read             ? parse(out, json, bytes, &special, path, err)
             : read == -ENOENT ? spw_tok_open_spm(out, folder, &special, err)
                               : read;
        if (rc && rc == read)
            spw_fail(err, rc, "%s: cannot be opened: %s", path, strerror(-rc));
        spw_free(json);
    }
    if (rc)
        spw_json_tidy(err);
    spw_special_tokens_free(&special);
    spw_free(path);
    return rc;
}

static void free_steps(struct spw_tok_steps *steps)
{
    for (size_t i = 0; i < steps->n; i++) {
        spw_tok_pattern_free(&steps->at[i].pattern);
        spw_free(steps->at[i].content);
    }
}

void spw_tokenizer_close(struct spw_tokenizer *t)
{
    if (!t)
        return;
    free_steps(&t->norms);
    free_steps(&t->pres);
    free_steps(&t->decs);
    for (size_t i = 0; i < t->n_added; i++)
        spw_free(t->added[i].form);
    spw_free(t->added);
    spw_free(t->raw.forms);
    spw_free(t->normalized.forms);
    spw_free(t->pieces.forms);
    spw_free(t->scores);
    spw_free(t->prefix.at);
    spw_free(t->suffix.at);
    spw_free(t->vocab.slots);
    spw_free(t->added_map.slots);
    spw_free(t->named.slots);
    spw_free(t->merges);
    spw_free(t->ranks);
    spw_free(t->entries);
    spw_tok_buf_free(&t->blob);
    pcre2_general_context_free(t->regex_memory);
    spw_free(t);
}

/* ---- look-ups ---- */

uint32_t spw_tokenizer_vocab_size(const struct spw_tokenizer *t)
{
    return (uint32_t)(t->n_entries - t->n_hidden);
}

int spw_tokenizer_id(const struct spw_tokenizer *t, const char *token)
{
    size_t bytes = strlen(token);
    int32_t id = spw_tok_map_find(t, &t->added_map, token, bytes);
    id = id < 0 ? spw_tok_known(t, token, bytes) : id;
    return id < 0 || (uint32_t)id >= spw_tokenizer_vocab_size(t) ? -ENOENT : id;
}

static const struct spw_tok_entry *entry_at(const struct spw_tokenizer *t, int32_t id)
{
    bool there = id >= 0 && (uint32_t)id < spw_tokenizer_vocab_size(t) && t->entries[id].flags;
    return there ? &t->entries[id] : NULL;
}

const char *spw_tokenizer_token(const struct spw_tokenizer *t, int32_t id)
{
    const struct spw_tok_entry *e = entry_at(t, id);
    return e ? t->blob.data + e->offset : NULL;
}

bool spw_tokenizer_is_special(const struct spw_tokenizer *t, int32_t id)
{
    const struct spw_tok_entry *e = entry_at(t, id);
    return e && e->flags & SPW_TOK_SPECIAL;
}

const int32_t *spw_tokenizer_prefix(const struct spw_tokenizer *t, size_t *n)
{
    *n = t->prefix.n;
    return t->prefix.at;
}

const int32_t *spw_tokenizer_suffix(const struct spw_tokenizer *t, size_t *n)
{
    *n = t->suffix.n;
    return t->suffix.at;
}

/* ---- encoding ---- */

struct encoder {
    struct spw_tok_matcher matcher;
    struct spw_tok_model_work work;
    struct spw_tok_text x, next;
    struct spw_tok_ids ids;
};

static void encoder_free(struct encoder *e)
{
    spw_tok_matcher_free(&e->matcher);
    spw_tok_model_work_free(&e->work);
    spw_tok_text_free(&e->x);
    spw_tok_text_free(&e->next);
    spw_free(e->ids.at);
}

static void text_swap(struct encoder *e)
{
    struct spw_tok_text x = e->x;
    e->x = e->next;
    e->next = x;
}

/* e->x gets the pieces of e->next, which are of the bytes of e->x. */
static void take_pieces(struct encoder *e)
{
    struct spw_tok_buf buf = e->x.buf;
    e->x.buf = e->next.buf;
    e->next.buf = buf;
    text_swap(e);
}

/* Cuts e->x at added tokens. */
static int cut_added(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                     const struct spw_encoding *plain, struct encoder *e)
{
    e->next.n = 0;
    SPW_TRY(spw_tok_split_added(t, f, plain, &e->x, &e->next));
    take_pieces(e);
    return 0;
}

/* The language at the beginning of each piece of text, ">>de<<", becomes a token of its own, also
 * where the vocabulary has none of this name. */
static int cut_languages(const struct spw_tokenizer *t, struct encoder *e)
{
    e->next.n = 0;
    for (size_t i = 0; i < e->x.n; i++) {
        const struct spw_tok_piece *p = &e->x.pieces[i];
        const char *text = e->x.buf.data + p->start;
        const size_t n = p->end - p->start;
        const bool begins = p->id < 0 && n > 2 && !memcmp(text, ">>", 2);
        const char *close = begins ? memmem(text, n, "<<", 2) : NULL;
        const size_t mark = close ? (size_t)(close + 2 - text) : 0;
        const int32_t id = mark ? spw_tok_known(t, text, mark) : -1;
        SPW_TRY(spw_tok_text_add(&e->next, p->start, p->start + mark, id < 0 ? t->unk_id : id,
                                 p->at_start));
        SPW_TRY(spw_tok_text_add(&e->next, p->start + mark, p->end, p->id, p->at_start));
    }
    take_pieces(e);
    return 0;
}

static int normalize_pieces(const struct spw_tokenizer *t, struct encoder *e)
{
    if (!t->norms.n)
        return 0;
    e->next.n = e->next.buf.n = 0;
    e->next.buf.limit = spw_tok_normal_limit(e->x.buf.n);
    for (size_t i = 0; i < e->x.n; i++) {
        struct spw_tok_piece *p = &e->x.pieces[i];
        const char *text = e->x.buf.data + p->start;
        size_t start = e->next.buf.n;
        if (p->id >= 0)
            SPW_TRY(spw_tok_buf_append(&e->next.buf, text, p->end - p->start));
        else
            SPW_TRY(spw_tok_normalize(t, &e->matcher, text, p->end - p->start, &e->next.buf,
                                      &p->at_start));
        SPW_TRY(spw_tok_text_add(&e->next, start, e->next.buf.n, p->id, p->at_start));
    }
    e->next.buf.limit = 0;
    text_swap(e);
    return 0;
}

static int add_ids(struct spw_tok_ids *ids, const struct spw_tok_ids *more)
{
    for (size_t i = 0; i < more->n; i++)
        SPW_TRY(spw_tok_ids_add(ids, more->at[i]));
    return 0;
}

static int encode(const struct spw_tokenizer *t, struct encoder *e, const struct spw_encoding *is)
{
    const bool add_special = is->add_special;
    const struct spw_encoding *plain = is->n_plain ? is : NULL;
    e->matcher.memory = t->regex_memory;
    e->matcher.stopped = e->work.stopped = is->stopped;
    SPW_TRY(spw_tok_buf_append(&e->x.buf, is->text, is->bytes));
    SPW_TRY(spw_tok_text_add(&e->x, 0, is->bytes, -1, true));
    SPW_TRY(cut_added(t, &t->raw, plain, e));
    if (t->marks_language)
        SPW_TRY(cut_languages(t, e));
    if (t->norms.n && plain) { /* the spans would be elsewhere */
        if (spw_tok_has_special(t, &t->normalized, plain))
            return -EBADMSG;
        plain = NULL;
    }
    SPW_TRY(normalize_pieces(t, e));
    SPW_TRY(cut_added(t, &t->normalized, plain, e));
    SPW_TRY(spw_tok_pre_apply(t, &e->matcher, &e->x));

    SPW_TRY(spw_grow(&e->ids.at, &e->ids.capacity, 1, sizeof *e->ids.at)); /* never NULL */
    if (add_special)
        SPW_TRY(add_ids(&e->ids, &t->prefix));
    for (size_t i = 0; i < e->x.n; i++) {
        const struct spw_tok_piece *p = &e->x.pieces[i];
        SPW_TRY(spw_tok_go_on(&e->matcher));
        if (p->id >= 0)
            SPW_TRY(spw_tok_ids_add(&e->ids, p->id));
        else
            SPW_TRY(spw_tok_model_encode(t, &e->work, e->x.buf.data + p->start, p->end - p->start,
                                         &e->ids));
    }
    return add_special ? add_ids(&e->ids, &t->suffix) : 0;
}

/* The failures of the steps, which know no text to put them in. */
static int explain(int rc, size_t bytes, struct spw_error *err)
{
    switch (rc) {
    case -ENODATA:
        return spw_fail(err, -EINVAL,
                        "text: found a character that the tokenizer cannot spell, and its "
                        "unk_token is not in its vocabulary");
    case -EOVERFLOW:
        return spw_fail(err, -EINVAL,
                        "text: a regular expression of the tokenizer gave up on it (match limit)");
    case -EBADMSG:
        return spw_fail(err, -EINVAL,
                        "text: found a special token of the tokenizer where only plain text may "
                        "be, and this tokenizer looks for it in normalized text");
    case -E2BIG:
        return spw_fail(err, -EINVAL,
                        "text: the normalizer of the tokenizer makes more than %zu bytes of it",
                        spw_tok_normal_limit(bytes));
    case -ECANCELED:
        return spw_fail(err, rc, "interrupted");
    case -EFBIG:
        return spw_fail(err, rc,
                        "text: found more than 2 GiB, after normalization; encode it in "
                        "parts");
    case -ENOMEM:
        return spw_fail(err, rc, "text: out of memory while encoding it");
    default:
        return rc;
    }
}

int spw_tokenizer_encode(const struct spw_tokenizer *t, const char *text, size_t bytes,
                         bool add_special, int32_t **ids, size_t *n_ids, struct spw_error *err)
{
    const struct spw_encoding is = {.text = text, .bytes = bytes, .add_special = add_special};
    return spw_tokenizer_encode_spans(t, &is, ids, n_ids, err);
}

int spw_tokenizer_encode_spans(const struct spw_tokenizer *t, const struct spw_encoding *is,
                               int32_t **ids, size_t *n_ids, struct spw_error *err)
{
    spw_error_clear(err);
    struct encoder e = {0};
    const size_t valid = spw_tok_valid(is->text, is->bytes);
    if (valid < is->bytes)
        return spw_fail(err, -EILSEQ,
                        "text: found byte 0x%02x at offset %zu, which is not valid UTF-8; "
                        "convert the text to UTF-8 first",
                        (unsigned char)is->text[valid], valid);
    int rc = encode(t, &e, is);
    if (!rc) {
        *ids = e.ids.at;
        *n_ids = e.ids.n;
        e.ids.at = NULL;
    }
    encoder_free(&e);
    return rc ? explain(rc, is->bytes, err) : 0;
}
