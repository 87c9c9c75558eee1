/* Growing bytes, UTF-8 and character classes; strings to ids; merges; the search for added tokens.
 */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

int spw_tok_buf_reserve(struct spw_tok_buf *b, size_t more)
{
    if (b->limit && (b->n > b->limit || more > b->limit - b->n))
        return -E2BIG;
    if (more > SPW_TOK_MAX_BYTES - b->n)
        return -EFBIG;
    return spw_grow(&b->data, &b->capacity, b->n + more, 1);
}

int spw_tok_buf_append(struct spw_tok_buf *b, const char *data, size_t n)
{
    SPW_TRY(spw_tok_buf_reserve(b, n));
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

void spw_tok_buf_free(struct spw_tok_buf *b)
{
    spw_free(b->data);
    *b = (struct spw_tok_buf){0};
}

/* The well-formed byte sequences of table 3-7 of the Unicode standard: the lead byte fixes the
 * range of the second byte, the others are 80..BF. */
int spw_tok_utf8(const char *p, size_t n, int32_t *cp)
{
    const unsigned char *s = (const unsigned char *)p;
    unsigned char c = s[0], low = 0x80, high = 0xbf;
    int len;
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4)
        return -1;
    if (c < 0xe0) {
        len = 2;
        *cp = c & 0x1f;
    } else if (c < 0xf0) {
        len = 3;
        *cp = c & 0x0f;
        low = c == 0xe0 ? 0xa0 : 0x80;  /* no overlong forms */
        high = c == 0xed ? 0x9f : 0xbf; /* no surrogates */
    } else {
        len = 4;
        *cp = c & 0x07;
        low = c == 0xf0 ? 0x90 : 0x80;
        high = c == 0xf4 ? 0x8f : 0xbf;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        *cp = *cp << 6 | (s[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

size_t spw_tok_valid(const char *p, size_t n)
{
    int32_t cp;
    size_t at = 0;
    while (at < n) {
        const int len = (unsigned char)p[at] < 0x80 ? 1 : spw_tok_utf8(p + at, n - at, &cp);
        if (len <= 0)
            break;
        at += (size_t)len;
    }
    return at;
}

size_t spw_tok_utf8_put(int32_t cp, char out[4])
{
    return (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)out);
}

bool spw_tok_is_space(int32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* utf8proc numbers the categories so that letters, marks and numbers follow each other. */
bool spw_tok_is_word(int32_t cp)
{
    utf8proc_category_t c = utf8proc_category(cp);
    if (c == UTF8PROC_CATEGORY_SO) /* those that are Other_Alphabetic: letters in circles */
        return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
               (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
           cp == 0x200c || cp == 0x200d;
}

/* Start of the character that ends at p[end]. */
static size_t char_before(const char *p, size_t end)
{
    do
        end--;
    while (end && ((unsigned char)p[end] & 0xc0) == 0x80);
    return end;
}

size_t spw_tok_skip_spaces(const char *p, size_t n, size_t at)
{
    int32_t cp = 0;
    int len;
    while (at < n && (len = spw_tok_utf8(p + at, n - at, &cp)) > 0 && spw_tok_is_space(cp))
        at += (size_t)len;
    return at;
}

size_t spw_tok_skip_spaces_back(const char *p, size_t at, size_t limit)
{
    int32_t cp = 0;
    while (at > limit) {
        size_t before = char_before(p, at);
        if (spw_tok_utf8(p + before, at - before, &cp) <= 0 || !spw_tok_is_space(cp))
            break;
        at = before;
    }
    return at > limit ? at : limit;
}

/* ---- string -> id ---- */

/* Where `text` is, or the free slot where it would go (0). The map is not empty. */
static uint32_t *map_slot(const struct spw_tokenizer *t, const struct spw_tok_map *map,
                          const char *text, size_t bytes)
{
    uint32_t i = (uint32_t)XXH3_64bits(text, bytes) & map->mask;
    for (; map->slots[i]; i = (i + 1) & map->mask) {
        const struct spw_tok_entry *e = &t->entries[map->slots[i] - 1];
        if (e->bytes == bytes && !memcmp(t->blob.data + e->offset, text, bytes))
            break;
    }
    return &map->slots[i];
}

int32_t spw_tok_map_find(const struct spw_tokenizer *t, const struct spw_tok_map *map,
                         const char *text, size_t bytes)
{
    return map->slots ? (int32_t)*map_slot(t, map, text, bytes) - 1 : -1;
}

int32_t spw_tok_known(const struct spw_tokenizer *t, const char *text, size_t bytes)
{
    const int32_t id = spw_tok_map_find(t, &t->vocab, text, bytes);
    return id < 0 ? spw_tok_map_find(t, &t->named, text, bytes) : id;
}

static void map_put(const struct spw_tokenizer *t, struct spw_tok_map *map, uint32_t id)
{
    const struct spw_tok_entry *e = &t->entries[id];
    *map_slot(t, map, t->blob.data + e->offset, e->bytes) = id + 1;
    map->n++;
}

/* There is half as much room again as entries, so that a search ends. */
int spw_tok_map_add(const struct spw_tokenizer *t, struct spw_tok_map *map, int32_t id)
{
    const size_t size = map->slots ? (size_t)map->mask + 1 : 0;
    if (3 * ((size_t)map->n + 1) > 2 * size) {
        const size_t more = size ? 2 * size : 16;
        struct spw_tok_map grown = {.slots = spw_alloc_zero(more, sizeof *grown.slots),
                                    .mask = (uint32_t)more - 1};
        if (!grown.slots)
            return -ENOMEM;
        for (size_t i = 0; i < size; i++)
            if (map->slots[i])
                map_put(t, &grown, map->slots[i] - 1);
        spw_free(map->slots);
        *map = grown;
    }
    map_put(t, map, (uint32_t)id);
    return 0;
}

/* ---- merges ---- */

int spw_tok_merges_init(struct spw_tokenizer *t, size_t n)
{
    uint32_t size = 16;
    while (size < n + n / 2) /* room as in a map */
        size *= 2;
    t->merges = spw_alloc_zero(size, sizeof *t->merges);
    if (!t->merges)
        return -ENOMEM;
    for (uint32_t i = 0; i < size; i++)
        t->merges[i].rank = UINT32_MAX;
    t->merge_mask = size - 1;
    return 0;
}

struct spw_tok_merge *spw_tok_merge_slot(const struct spw_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    /* Fibonacci hashing: the high half of the product depends on all bits of both ids. */
    uint32_t i = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & t->merge_mask;
    while (t->merges[i].rank != UINT32_MAX && t->merges[i].pair != pair)
        i = (i + 1) & t->merge_mask;
    return &t->merges[i];
}

/* ---- added tokens ---- */

/* Of equal forms the first token comes first. */
static int compare_forms(const void *a, const void *b)
{
    const struct spw_tok_form *x = a, *y = b;
    const int c = memcmp(x->text, y->text, spw_min_u64(x->bytes, y->bytes));
    return c                      ? c
           : x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1)
                                  : (x->index > y->index) - (x->index < y->index);
}

static int add_form(struct spw_tok_finder *f, const char *text, size_t bytes, uint32_t index)
{
    if (!bytes)
        return 0;
    SPW_TRY(spw_grow(&f->forms, &f->capacity, f->n + 1, sizeof *f->forms));
    f->forms[f->n++] = (struct spw_tok_form){text, (uint32_t)bytes, index};
    f->begins[(uint8_t)*text] = true;
    return 0;
}

static void sort_forms(struct spw_tok_finder *f)
{
    if (f->n)
        qsort(f->forms, f->n, sizeof *f->forms, compare_forms);
}

int spw_tok_finder_of_added(struct spw_tok_finder *f, const struct spw_tokenizer *t,
                            bool normalized)
{
    for (uint32_t k = 0; k < t->n_added; k++) {
        const struct spw_tok_added *a = &t->added[k];
        const struct spw_tok_entry *e = &t->entries[a->id];
        if (a->normalized == normalized)
            SPW_TRY(add_form(f, a->form ? a->form : t->blob.data + e->offset,
                             a->form ? a->form_bytes : e->bytes, k));
    }
    sort_forms(f);
    return 0;
}

int spw_tok_finder_of_model(struct spw_tok_finder *f, const struct spw_tokenizer *t)
{
    for (uint32_t id = 0; id < t->n_entries; id++)
        if (t->entries[id].flags & SPW_TOK_IN_MODEL)
            SPW_TRY(add_form(f, t->blob.data + t->entries[id].offset, t->entries[id].bytes, id));
    sort_forms(f);
    return 0;
}

/* Of the forms [low, high), which have their first `at` bytes in common: the first one whose next
 * byte is at least `byte`. A form without a next byte comes before all others. */
static size_t first_with(const struct spw_tok_finder *f, size_t low, size_t high, size_t at,
                         int byte)
{
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct spw_tok_form *form = &f->forms[middle];
        if (at < form->bytes && (uint8_t)form->text[at] >= byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t spw_tok_find_next(const struct spw_tok_finder *f, const char *p, size_t n,
                          struct spw_tok_search *s)
{
    if (!s->bytes)
        s->high = n && f->begins[(uint8_t)*p] ? f->n : 0;
    while (s->bytes < n && s->low < s->high) {
        const size_t at = s->bytes++;
        s->low = first_with(f, s->low, s->high, at, (uint8_t)p[at]);
        s->high = first_with(f, s->low, s->high, at, (uint8_t)p[at] + 1);
        if (s->low < s->high && f->forms[s->low].bytes == s->bytes)
            return f->forms[s->low].index;
    }
    return -1;
}

/* The longest added token that begins at p; -1: none. */
static int32_t longest_at(const struct spw_tok_finder *f, const char *p, size_t n, size_t *bytes)
{
    struct spw_tok_search s = {0};
    int32_t best = -1;
    for (int64_t k; (k = spw_tok_find_next(f, p, n, &s)) >= 0;) {
        best = (int32_t)k;
        *bytes = s.bytes;
    }
    return best;
}

static bool word_at(const char *p, size_t n)
{
    int32_t cp = 0;
    return n && spw_tok_utf8(p, n, &cp) > 0 && spw_tok_is_word(cp);
}

/* A single_word token counts only where no word character touches it. */
static bool stands_alone(const char *p, size_t n, size_t start, size_t end)
{
    if (word_at(p + end, n - end))
        return false;
    if (!start)
        return true;
    size_t before = char_before(p, start);
    return !word_at(p + before, start - before);
}

/* How many bytes from `at` on are outside of all spans. */
static size_t bytes_before_plain(const struct spw_encoding *plain, size_t at)
{
    size_t room = SIZE_MAX;
    for (size_t i = 0; i < plain->n_plain; i++)
        if (at < plain->plain[i].end && plain->plain[i].begin < plain->plain[i].end)
            room = spw_min_u64(room, spw_sub_u64(plain->plain[i].begin, at));
    return room;
}

/* The longest token at `at` of the text that may be there: a special one has no part of a span. */
static int32_t match_at(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                        const struct spw_encoding *plain, const char *p, size_t n, size_t at,
                        size_t *bytes)
{
    int32_t k = longest_at(f, p, n, bytes);
    if (k < 0 || !plain || !spw_tokenizer_is_special(t, t->added[k].id))
        return k;
    size_t room = bytes_before_plain(plain, at);
    return *bytes <= room ? k : longest_at(f, p, room, bytes);
}

bool spw_tok_has_special(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                         const struct spw_encoding *plain)
{
    for (size_t i = 0; f->n && i < plain->n_plain; i++) {
        const struct spw_text_span *span = &plain->plain[i];
        for (size_t at = span->begin; at < span->end; at++) {
            size_t len;
            int32_t k = longest_at(f, plain->text + at, span->end - at, &len);
            if (k >= 0 && spw_tokenizer_is_special(t, t->added[k].id))
                return true;
        }
    }
    return false;
}

/* One piece of text. `done` is where the last token, with the spaces it took, ended; the search
 * continues after the bare token, as the package does. */
static int split_piece(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                       const struct spw_encoding *plain, const char *p,
                       const struct spw_tok_piece *piece, struct spw_tok_text *out)
{
    size_t n = piece->end - piece->start, done = 0;
    p += piece->start;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        int32_t k = match_at(t, f, plain, p + i, n - i, piece->start + i, &len);
        if (k < 0) {
            i++;
            continue;
        }
        const struct spw_tok_added *a = &t->added[k];
        size_t start = i, end = i + len;
        i = end;
        if (a->single_word && !stands_alone(p, n, start, end))
            continue;
        if (a->lstrip)
            start = spw_tok_skip_spaces_back(p, start, done);
        if (a->rstrip)
            end = spw_tok_skip_spaces(p, n, end);
        if (done < start)
            SPW_TRY(spw_tok_text_add(out, piece->start + done, piece->start + start, -1,
                                     piece->at_start && !done));
        start = start < end ? start : end;
        SPW_TRY(spw_tok_text_add(out, piece->start + start, piece->start + end, a->id, false));
        done = end;
    }
    if (done < n)
        SPW_TRY(
            spw_tok_text_add(out, piece->start + done, piece->end, -1, piece->at_start && !done));
    return 0;
}

int spw_tok_split_added(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                        const struct spw_encoding *plain, const struct spw_tok_text *in,
                        struct spw_tok_text *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const struct spw_tok_piece *piece = &in->pieces[i];
        if (piece->id >= 0 || !f->n)
            SPW_TRY(spw_tok_text_add(out, piece->start, piece->end, piece->id, piece->at_start));
        else
            SPW_TRY(split_piece(t, f, plain, in->buf.data, piece, out));
    }
    return 0;
}
