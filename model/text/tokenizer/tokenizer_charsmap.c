/* The normalizer of SentencePiece files, "Precompiled": a map of characters to texts.
 *
 *   bytes of the map   [u32 n][n bytes: a trie, units of u32][texts, each with a NUL behind it]
 *
 * All numbers are little-endian. The trie is a double array, as the library Darts-clone lays it
 * out. A unit has the byte that leads to it (bits 0 to 7; bit 31 is set in units that are values),
 * whether a key ends there (bit 8), and where its children are (`children_of`). The value of a key
 * is where its text begins.
 *
 * SentencePiece replaces the longest key at each place. As the tokenizers package does it: a
 * cluster of characters that readers see as one (UAX 29) of less than six bytes becomes the text of
 * the shortest key that it begins with. Without such a key, each of its characters does, or stays.
 */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>
#include <utf8proc.h>

static uint32_t u32_at(const char *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static size_t trie_bytes(const char *map, size_t bytes)
{
    return bytes < 4 ? 0 : u32_at(map);
}

bool spw_tok_charsmap_check(const char *map, size_t bytes)
{
    const size_t n = trie_bytes(map, bytes);
    if (!bytes)
        return true;
    if (bytes < 4 || n % 4 || n > bytes - 4)
        return false;
    const char *texts = map + 4 + n;
    const size_t n_texts = bytes - 4 - n;
    return !n_texts || (!texts[n_texts - 1] && spw_tok_valid(texts, n_texts) == n_texts);
}

/* False: the map has no such unit. */
static bool read_unit(const struct spw_tok_step *norm, uint32_t at, uint32_t *unit)
{
    if (at >= trie_bytes(norm->content, norm->content_bytes) / 4)
        return false;
    *unit = u32_at(norm->content + 4 + 4 * (size_t)at);
    return true;
}

static uint32_t children_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The text whose place is the value of a unit; NULL: the map has no such text. */
static const char *text_of(const struct spw_tok_step *norm, uint32_t at)
{
    uint32_t unit;
    if (!read_unit(norm, at, &unit))
        return NULL;
    const size_t texts = 4 + trie_bytes(norm->content, norm->content_bytes);
    const size_t begin = texts + (unit & 0x7fffffffu);
    const bool is_text = begin < norm->content_bytes && (norm->content[begin] & 0xc0) != 0x80;
    return is_text ? norm->content + begin : NULL;
}

/* The text of the shortest key that p [n] begins with, or of the longest one, if norm->longest;
 * NULL: there is none. *key_bytes: of that key. */
static const char *find_text(const struct spw_tok_step *norm, const char *p, size_t n,
                             size_t *key_bytes)
{
    const char *found = NULL;
    uint32_t unit = 0, at = 0;
    if (!read_unit(norm, 0, &unit))
        return NULL;
    at = children_of(unit);
    for (size_t i = 0; i < n && p[i]; i++) {
        at ^= (uint8_t)p[i];
        if (!read_unit(norm, at, &unit) || (unit & 0x800000ffu) != (uint8_t)p[i])
            break;
        at ^= children_of(unit);
        const bool is_inside = i + 1 < n && (p[i + 1] & 0xc0) == 0x80; /* of a character */
        if (!(unit & 1u << 8) || (norm->longest && is_inside))
            continue;
        found = text_of(norm, at);
        *key_bytes = i + 1;
        if (!norm->longest)
            break;
    }
    return found;
}

static int apply_longest(const struct spw_tok_step *norm, const char *p, size_t n,
                         struct spw_tok_buf *out)
{
    for (size_t i = 0, len = 0; i < n; i += len) {
        const char *text = find_text(norm, p + i, n - i, &len);
        if (!text)
            len = spw_tok_utf8_len(p + i);
        SPW_TRY(spw_tok_buf_append(out, text ? text : p + i, text ? strlen(text) : len));
    }
    return 0;
}

static int apply_to(const struct spw_tok_step *norm, const char *p, size_t n, bool whole,
                    struct spw_tok_buf *out)
{
    size_t key_bytes;
    const char *text = whole ? find_text(norm, p, n, &key_bytes) : NULL;
    if (text)
        return spw_tok_buf_append(out, text, strlen(text));
    for (size_t i = 0, len; i < n; i += len) {
        len = spw_tok_utf8_len(p + i);
        text = find_text(norm, p + i, len, &key_bytes);
        SPW_TRY(spw_tok_buf_append(out, text ? text : p + i, text ? strlen(text) : len));
    }
    return 0;
}

int spw_tok_charsmap_apply(const struct spw_tok_step *norm, const char *text, size_t bytes,
                           struct spw_tok_buf *out)
{
    enum { MOST_WHOLE = 5 };
    utf8proc_int32_t state = 0;
    int32_t last = 0, cp = 0;
    size_t begin = 0; /* of the cluster */
    if (norm->longest)
        return apply_longest(norm, text, bytes, out);
    for (size_t i = 0; i < bytes; i += spw_tok_utf8_len(text + i), last = cp) {
        spw_tok_utf8(text + i, bytes - i, &cp);
        if (!i || !utf8proc_grapheme_break_stateful(last, cp, &state))
            continue;
        SPW_TRY(apply_to(norm, text + begin, i - begin, i - begin <= MOST_WHOLE, out));
        begin = i;
    }
    return apply_to(norm, text + begin, bytes - begin, bytes - begin <= MOST_WHOLE, out);
}
