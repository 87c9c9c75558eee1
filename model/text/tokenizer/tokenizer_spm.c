/* Reads a SentencePiece model. The file is one message in protobuf's wire format: fields, each with
 * a key (its number << 3 | how it is written) and a value. A field that comes twice counts with its
 * last value; fields that nobody here asks for are passed over.
 *
 *   ModelProto      1 pieces (many)  2 trainer_spec  3 normalizer_spec  5 denormalizer_spec
 *   SentencePiece   1 piece  2 score  3 type
 *   TrainerSpec     3 model_type  24 treat_whitespace_as_suffix  35 byte_fallback
 *   NormalizerSpec  2 precompiled_charsmap  3 add_dummy_prefix  4 remove_extra_whitespaces
 *                   5 escape_whitespaces */
#include "model/text/tokenizer/tokenizer_spm.h"

#include <math.h>
#include <string.h>

/* How a value is written. */
enum wire { VARINT = 0, EIGHT_BYTES = 1, BYTES = 2, FOUR_BYTES = 5 };
enum { UNIGRAM = 1, BPE = 2 };

struct field {
    uint64_t number;
    enum wire wire;
    uint64_t value;       /* of a number */
    const uint8_t *bytes; /* of BYTES [n] */
    size_t n;
};

/* A message in work. */
struct message {
    const uint8_t *at, *end;
};

/* What the reader needs beside struct spw_spm. */
struct reader {
    struct spw_spm *m;
    uint64_t model_type;
    bool suffix, escapes, denormalizes;
};

static bool read_varint(struct message *m, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        const uint8_t byte = *m->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_little(struct message *m, size_t bytes, uint64_t *out)
{
    *out = 0;
    if ((size_t)(m->end - m->at) < bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        *out |= (uint64_t)*m->at++ << 8 * i;
    return true;
}

/* 1: the next field. 0: there is none. -EINVAL: the bytes are no field. */
static int next_field(struct message *m, struct field *f)
{
    uint64_t key, n = 0;
    bool good;
    *f = (struct field){0};
    if (m->at == m->end)
        return 0;
    if (!read_varint(m, &key))
        return -EINVAL;
    f->number = key >> 3;
    f->wire = (enum wire)(key & 7);
    switch (f->wire) {
    case VARINT:
        good = read_varint(m, &f->value);
        break;
    case FOUR_BYTES:
    case EIGHT_BYTES:
        good = read_little(m, f->wire == FOUR_BYTES ? 4 : 8, &f->value);
        break;
    case BYTES:
        good = read_varint(m, &n) && n <= (uint64_t)(m->end - m->at);
        f->bytes = m->at;
        f->n = good ? (size_t)n : 0;
        m->at += f->n;
        break;
    default:
        good = false;
    }
    return good && f->number ? 1 : -EINVAL;
}

/* Calls `each` for the fields of a message. */
static int walk(struct reader *r, const uint8_t *bytes, size_t n,
                int (*each)(struct reader *r, const struct field *f))
{
    struct message m = {bytes, bytes + n};
    struct field f;
    int rc;
    while ((rc = next_field(&m, &f)) > 0)
        SPW_TRY(each(r, &f));
    return rc;
}

/* A field of the number `number` that is written so. */
static bool is_field(const struct field *f, uint64_t number, enum wire wire)
{
    return f->number == number && f->wire == wire;
}

static int piece_field(struct reader *r, const struct field *f)
{
    struct spw_spm_piece *p = &r->m->pieces[r->m->n - 1];
    if (is_field(f, 1, BYTES)) {
        p->text = (const char *)f->bytes;
        p->bytes = f->n;
    } else if (is_field(f, 2, FOUR_BYTES)) {
        const uint32_t bits = (uint32_t)f->value;
        memcpy(&p->score, &bits, sizeof p->score);
    } else if (is_field(f, 3, VARINT)) {
        if (f->value < NORMAL || f->value > BYTE)
            return -EINVAL;
        p->type = (enum token_type)f->value;
    }
    return 0;
}

static int trainer_field(struct reader *r, const struct field *f)
{
    if (is_field(f, 3, VARINT))
        r->model_type = f->value;
    else if (is_field(f, 24, VARINT))
        r->suffix = f->value;
    else if (is_field(f, 35, VARINT))
        r->m->byte_fallback = f->value;
    return 0;
}

static int normalizer_field(struct reader *r, const struct field *f)
{
    if (is_field(f, 2, BYTES)) {
        r->m->charsmap = (const char *)f->bytes;
        r->m->charsmap_bytes = f->n;
    } else if (is_field(f, 3, VARINT)) {
        r->m->adds_space = f->value;
    } else if (is_field(f, 4, VARINT)) {
        r->m->strips = f->value;
    } else if (is_field(f, 5, VARINT)) {
        r->escapes = f->value;
    }
    return 0;
}

static int denormalizer_field(struct reader *r, const struct field *f)
{
    if (is_field(f, 2, BYTES))
        r->denormalizes = f->n > 0;
    return 0;
}

static int model_field(struct reader *r, const struct field *f)
{
    struct spw_spm *m = r->m;
    if (f->wire != BYTES)
        return 0;
    switch (f->number) {
    case 1:
        if (m->n > SPW_TOK_MAX_ID)
            return -EINVAL;
        SPW_TRY(spw_grow(&m->pieces, &m->capacity, m->n + 1, sizeof *m->pieces));
        m->pieces[m->n++] = (struct spw_spm_piece){.type = NORMAL};
        return walk(r, f->bytes, f->n, piece_field);
    case 2:
        return walk(r, f->bytes, f->n, trainer_field);
    case 3:
        return walk(r, f->bytes, f->n, normalizer_field);
    case 5:
        return walk(r, f->bytes, f->n, denormalizer_field);
    default:
        return 0;
    }
}

static int check_pieces(struct spw_spm *m, const char *name, struct spw_error *err)
{
    size_t n_unknown = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct spw_spm_piece *p = &m->pieces[i];
        if (!p->bytes || memchr(p->text, 0, p->bytes) ||
            spw_tok_valid(p->text, p->bytes) < p->bytes || !isfinite(p->score))
            return spw_fail(err, -EINVAL,
                            "%s: pieces[%zu]: found a piece without a text or a score, expected "
                            "UTF-8 without a zero byte, and a number",
                            name, i);
        if (p->type != UNKNOWN)
            continue;
        n_unknown++;
        m->unknown = i;
    }
    return n_unknown == 1
               ? 0
               : spw_fail(err, -EINVAL, "%s: pieces: found %zu unknown pieces, expected one of %zu",
                          name, n_unknown, m->n);
}

static int check(const struct reader *r, const char *name, struct spw_error *err)
{
    SPW_TRY(check_pieces(r->m, name, err));
    if (r->model_type != UNIGRAM && r->model_type != BPE)
        return spw_fail(err, -ENOTSUP,
                        "%s: trainer_spec.model_type: found %llu, expected 1 (Unigram) or 2 (BPE)",
                        name, (unsigned long long)r->model_type);
    if (r->suffix || !r->escapes || r->denormalizes)
        return spw_fail(err, -ENOTSUP, "%s: found %s, expected spaces as U+2581 in front of words",
                        name,
                        r->suffix    ? "treat_whitespace_as_suffix"
                        : r->escapes ? "a denormalizer"
                                     : "escape_whitespaces false");
    if (!spw_tok_charsmap_check(r->m->charsmap, r->m->charsmap_bytes))
        return spw_fail(err, -EINVAL,
                        "%s: normalizer_spec.precompiled_charsmap: found no map of characters",
                        name);
    return 0;
}

int spw_spm_read(struct spw_spm *m, const char *bytes, size_t n, const char *name,
                 struct spw_error *err)
{
    *m = (struct spw_spm){.adds_space = true, .strips = true};
    struct reader r = {.m = m, .model_type = UNIGRAM, .escapes = true};
    const int rc = walk(&r, (const uint8_t *)bytes, n, model_field);
    m->unigram = r.model_type == UNIGRAM;
    if (rc == -EINVAL)
        return spw_fail(err, rc, "%s: found bytes that are no SentencePiece model", name);
    return rc ? rc : check(&r, name, err);
}

void spw_spm_free(struct spw_spm *m)
{
    spw_free(m->pieces);
    *m = (struct spw_spm){0};
}
