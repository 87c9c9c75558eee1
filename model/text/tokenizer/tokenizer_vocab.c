/* Growing bytes, UTF-8 and character classes; strings to ids; merges; the trie of added tokens. */
#include "model/text/tokenizer/tokenizer_impl.h"

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

size_t spw_tok_utf8_put(int32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool spw_tok_is_space(int32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool spw_tok_is_numeric(int32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool spw_tok_is_punctuation(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return true;
    default:
        return false;
    }
}

bool spw_tok_is_word(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') ||
               cp == '_';
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_SO: /* the symbols that are Other_Alphabetic: letters in circles */
        return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
               (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
    default:
        return cp == 0x200c || cp == 0x200d;
    }
}

/* ---- string -> id ---- */

/* A power of two with at least half as much room again as entries, so that a search ends. */
static int table_size(size_t n, uint32_t *size)
{
    uint32_t slots = 16;
    while (slots < n + n / 2) {
        if (slots > UINT32_MAX / 4)
            return -EFBIG;
        slots *= 2;
    }
    *size = slots;
    return 0;
}

int spw_tok_map_init(struct spw_tok_map *map, size_t n)
{
    uint32_t size = 0;
    SPW_TRY(table_size(n, &size));
    map->slots = spw_alloc_zero(size, sizeof *map->slots);
    if (!map->slots)
        return -ENOMEM;
    map->mask = size - 1;
    return 0;
}

uint32_t *spw_tok_map_slot(const struct spw_tokenizer *t, const struct spw_tok_map *map,
                           const char *text, size_t bytes)
{
    uint32_t i = (uint32_t)XXH3_64bits(text, bytes) & map->mask;
    for (; map->slots[i]; i = (i + 1) & map->mask) {
        const struct spw_tok_entry *e = &t->entries[map->slots[i] - 1];
        if (e->bytes == bytes && !memcmp(t->blob + e->offset, text, bytes))
            break;
    }
    return &map->slots[i];
}

int32_t spw_tok_map_find(const struct spw_tokenizer *t, const struct spw_tok_map *map,
                         const char *text, size_t bytes)
{
    return (int32_t)*spw_tok_map_slot(t, map, text, bytes) - 1;
}

/* ---- merges ---- */

int spw_tok_merges_init(struct spw_tokenizer *t, size_t n)
{
    uint32_t size = 0;
    SPW_TRY(table_size(n, &size));
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

static int node_new(struct spw_tok_trie *trie, uint8_t byte, int32_t *node)
{
    if (trie->n > SPW_TOK_MAX_BYTES / 4)
        return -EFBIG;
    SPW_TRY(spw_grow(&trie->nodes, &trie->capacity, trie->n + 2, sizeof *trie->nodes));
    if (!trie->n)
        trie->nodes[trie->n++] = (struct spw_tok_node){.added = -1};
    trie->nodes[trie->n] = (struct spw_tok_node){.added = -1, .byte = byte};
    *node = (int32_t)trie->n++;
    return 0;
}

static int32_t child_find(const struct spw_tok_trie *trie, int32_t node, uint8_t byte)
{
    if (!node)
        return trie->first[byte];
    int32_t c = trie->nodes[node].child;
    while (c && trie->nodes[c].byte != byte)
        c = trie->nodes[c].sibling;
    return c;
}

int spw_tok_trie_add(struct spw_tok_trie *trie, const char *text, size_t bytes, int32_t added)
{
    int32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)text[i];
        int32_t child = child_find(trie, node, byte);
        if (!child) {
            SPW_TRY(node_new(trie, byte, &child));
            if (!node) {
                trie->first[byte] = child;
            } else {
                trie->nodes[child].sibling = trie->nodes[node].child;
                trie->nodes[node].child = child;
            }
        }
        node = child;
    }
    if (node && trie->nodes[node].added < 0)
        trie->nodes[node].added = added;
    return 0;
}

/* The longest added token that begins at p; -1: none. */
static int32_t trie_match(const struct spw_tok_trie *trie, const char *p, size_t n, size_t *bytes)
{
    int32_t node = 0, best = -1;
    for (size_t i = 0; i < n; i++) {
        node = child_find(trie, node, (uint8_t)p[i]);
        if (!node)
            break;
        if (trie->nodes[node].added >= 0) {
            best = trie->nodes[node].added;
            *bytes = i + 1;
        }
    }
    return best;
}

/* Start of the character that ends at p[end]. */
static size_t char_before(const char *p, size_t end)
{
    do
        end--;
    while (end && ((unsigned char)p[end] & 0xc0) == 0x80);
    return end;
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

static size_t skip_spaces_left(const char *p, size_t start, size_t limit)
{
    while (start > limit) {
        size_t before = char_before(p, start);
        int32_t cp = 0;
        if (spw_tok_utf8(p + before, start - before, &cp) <= 0 || !spw_tok_is_space(cp))
            break;
        start = before;
    }
    return start > limit ? start : limit;
}

static size_t skip_spaces_right(const char *p, size_t n, size_t end)
{
    while (end < n) {
        int32_t cp = 0;
        int len = spw_tok_utf8(p + end, n - end, &cp);
        if (len <= 0 || !spw_tok_is_space(cp))
            break;
        end += (size_t)len;
    }
    return end;
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
static int32_t match_at(const struct spw_tokenizer *t, const struct spw_tok_trie *trie,
                        const struct spw_encoding *plain, const char *p, size_t n, size_t at,
                        size_t *bytes)
{
    int32_t k = trie->first[(uint8_t)*p] ? trie_match(trie, p, n, bytes) : -1;
    if (k < 0 || !plain || !spw_tokenizer_is_special(t, t->added[k].id))
        return k;
    size_t room = bytes_before_plain(plain, at);
    return *bytes <= room ? k : trie_match(trie, p, room, bytes);
}

bool spw_tok_has_special(const struct spw_tokenizer *t, const struct spw_tok_trie *trie,
                         const struct spw_encoding *plain)
{
    for (size_t i = 0; trie->n && i < plain->n_plain; i++) {
        const struct spw_text_span *span = &plain->plain[i];
        for (size_t at = span->begin; at < span->end; at++) {
            size_t len;
            int32_t k = trie_match(trie, plain->text + at, span->end - at, &len);
            if (k >= 0 && spw_tokenizer_is_special(t, t->added[k].id))
                return true;
        }
    }
    return false;
}

/* One piece of text. `done` is where the last token, with the spaces it took, ended; the search
 * continues after the bare token, as the package does. */
static int split_piece(const struct spw_tokenizer *t, const struct spw_tok_trie *trie,
                       const struct spw_encoding *plain, const char *p,
                       const struct spw_tok_piece *piece, struct spw_tok_text *out)
{
    size_t n = piece->end - piece->start, done = 0;
    p += piece->start;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        int32_t k = match_at(t, trie, plain, p + i, n - i, piece->start + i, &len);
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
            start = skip_spaces_left(p, start, done);
        if (a->rstrip)
            end = skip_spaces_right(p, n, end);
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

int spw_tok_split_added(const struct spw_tokenizer *t, const struct spw_tok_trie *trie,
                        const struct spw_encoding *plain, const struct spw_tok_text *in,
                        struct spw_tok_text *out)
{
    for (size_t i = 0; i < in->n; i++) {
        const struct spw_tok_piece *piece = &in->pieces[i];
        if (piece->id >= 0 || !trie->n)
            SPW_TRY(spw_tok_text_add(out, piece->start, piece->end, piece->id, piece->at_start));
        else
            SPW_TRY(split_piece(t, trie, plain, in->buf.data, piece, out));
    }
    return 0;
}
