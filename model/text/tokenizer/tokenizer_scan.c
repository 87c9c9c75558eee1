/* The two large members of tokenizer.json, model.vocab and model.merges, read straight from the
 * text. As a tree of JSON values they take eight times the room of the file and most of the loading
 * time (Qwen2.5, 5.2 MB: 42 MB and 480 ms of wall time, against 8 MB and 190 ms read this way; 2
 * cores under load, November 2026). So the file is walked once to find them, and the rest, a few
 * kilobytes, goes to jansson with {} and [] in their place. What the walk does not understand it
 * leaves to jansson's error messages. */
#include "model/text/tokenizer/tokenizer_json.h"

#include <string.h>

char spw_tok_scan_peek(struct spw_tok_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
    return s->p < s->end ? *s->p : 0;
}

int spw_tok_scan_member(struct spw_tok_scan *s, char close, bool *begun)
{
    char c = spw_tok_scan_peek(s);
    if (c == close) {
        s->p++;
        return 0;
    }
    if (*begun) {
        if (c != ',')
            return -EINVAL;
        s->p++;
        c = spw_tok_scan_peek(s);
    }
    *begun = true;
    return c && c != close ? 1 : -EINVAL;
}

/* Four hex digits after \u. */
static int scan_hex4(struct spw_tok_scan *s, int32_t *out)
{
    *out = 0;
    if (s->end - s->p < 4)
        return -EINVAL;
    for (int i = 0; i < 4; i++, s->p++) {
        char c = *s->p;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -EINVAL;
        *out = *out << 4 | digit;
    }
    return 0;
}

static int scan_unicode(struct spw_tok_scan *s)
{
    int32_t cp, low;
    char utf8[4];
    SPW_TRY(scan_hex4(s, &cp));
    if (cp >= 0xd800 && cp < 0xdc00) { /* the first half of a pair */
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
            return -EINVAL;
        s->p += 2;
        SPW_TRY(scan_hex4(s, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return -EINVAL;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (!cp || (cp >= 0xdc00 && cp < 0xe000)) {
        return -EINVAL;
    }
    return spw_tok_buf_append(&s->text, utf8, spw_tok_utf8_put(cp, utf8));
}

static int scan_escape(struct spw_tok_scan *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end)
        return -EINVAL;
    char c = *s->p++;
    if (c == 'u')
        return scan_unicode(s);
    const char *at = c ? strchr(from, c) : NULL;
    return at ? spw_tok_buf_append(&s->text, to + (at - from), 1) : -EINVAL;
}

int spw_tok_scan_string(struct spw_tok_scan *s)
{
    s->text.n = 0;
    if (spw_tok_scan_peek(s) != '"')
        return -EINVAL;
    s->p++;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\') {
            s->p++;
            SPW_TRY(scan_escape(s));
            continue;
        }
        const char *plain = s->p;
        while (s->p < s->end && *s->p != '"' && *s->p != '\\') {
            int32_t cp = 0;
            int len = spw_tok_utf8(s->p, (size_t)(s->end - s->p), &cp);
            if (len <= 0 || cp < 0x20)
                return -EINVAL;
            s->p += len;
        }
        SPW_TRY(spw_tok_buf_append(&s->text, plain, (size_t)(s->p - plain)));
    }
    if (s->p == s->end)
        return -EINVAL;
    s->p++;
    SPW_TRY(spw_tok_buf_append(&s->text, "", 1));
    s->text.n--;
    return 0;
}

int spw_tok_scan_skip(struct spw_tok_scan *s)
{
    size_t depth = 0;
    do {
        char c = spw_tok_scan_peek(s);
        if (!c)
            return -EINVAL;
        if (c == '"') {
            for (s->p++; s->p < s->end && *s->p != '"'; s->p++)
                s->p += *s->p == '\\' && s->end - s->p > 1;
            if (s->p == s->end)
                return -EINVAL;
            s->p++;
        } else if (c == '{' || c == '[') {
            depth++;
            s->p++;
        } else if (c == '}' || c == ']') {
            if (!depth)
                return -EINVAL;
            depth--;
            s->p++;
        } else if (c == ',' || c == ':') {
            if (!depth)
                return -EINVAL;
            s->p++;
        } else { /* a number or a word, to the next mark */
            while (s->p < s->end && !memchr(" \n\r\t,:]}[{\"", *s->p, 11))
                s->p++;
        }
    } while (depth);
    return 0;
}

/* Key and colon; the value is next. */
int spw_tok_scan_key(struct spw_tok_scan *s)
{
    SPW_TRY(spw_tok_scan_string(s));
    if (spw_tok_scan_peek(s) != ':')
        return -EINVAL;
    s->p++;
    return spw_tok_scan_peek(s) ? 0 : -EINVAL;
}

static int find_in_model(struct spw_tok_scan *s, struct spw_tok_cut *vocab,
                         struct spw_tok_cut *merges)
{
    bool begun = false;
    int more;
    s->p++;
    while ((more = spw_tok_scan_member(s, '}', &begun)) > 0) {
        SPW_TRY(spw_tok_scan_key(s));
        const char *at = s->p;
        bool is_vocab = !strcmp(s->text.data, "vocab") && *at == '{';
        bool is_merges = !strcmp(s->text.data, "merges") && *at == '[';
        SPW_TRY(spw_tok_scan_skip(s));
        if (is_vocab && !vocab->at)
            *vocab = (struct spw_tok_cut){at, (size_t)(s->p - at)};
        else if (is_merges && !merges->at)
            *merges = (struct spw_tok_cut){at, (size_t)(s->p - at)};
    }
    return more;
}

int spw_tok_scan_find(struct spw_tok_scan *s, struct spw_tok_cut *vocab, struct spw_tok_cut *merges)
{
    bool begun = false;
    int more;
    if (spw_tok_scan_peek(s) != '{')
        return -EINVAL;
    s->p++;
    while ((more = spw_tok_scan_member(s, '}', &begun)) > 0) {
        SPW_TRY(spw_tok_scan_key(s));
        if (!strcmp(s->text.data, "model") && *s->p == '{' && !vocab->at && !merges->at)
            SPW_TRY(find_in_model(s, vocab, merges));
        else
            SPW_TRY(spw_tok_scan_skip(s));
    }
    return more;
}

/* The text before and between the cuts, an empty value for each, and its line ends, so that line
 * numbers stay true. */
static int copy_without(const struct spw_tok_cut *cut, const char **done, struct spw_tok_buf *out)
{
    if (!cut->at)
        return 0;
    char close = *cut->at == '{' ? '}' : ']';
    SPW_TRY(spw_tok_buf_append(out, *done, (size_t)(cut->at + 1 - *done)));
    *done = cut->at + cut->bytes;
    for (const char *p = cut->at; (p = memchr(p, '\n', (size_t)(*done - p))); p++)
        SPW_TRY(spw_tok_buf_append(out, "\n", 1));
    return spw_tok_buf_append(out, &close, 1);
}

int spw_tok_scan_rest(const char *json, size_t bytes, const struct spw_tok_cut *vocab,
                      const struct spw_tok_cut *merges, struct spw_tok_buf *out)
{
    const char *done = json;
    bool vocab_first = vocab->at && (!merges->at || vocab->at < merges->at);
    SPW_TRY(copy_without(vocab_first ? vocab : merges, &done, out));
    SPW_TRY(copy_without(vocab_first ? merges : vocab, &done, out));
    return spw_tok_buf_append(out, done, (size_t)(json + bytes - done));
}
