/* One automaton for each stop string: after every byte it knows the longest prefix of its string
 * that the text ends in (D. Knuth, J. Morris, V. Pratt, "Fast Pattern Matching in Strings", 1977).
 * The longest of these prefixes is what must be held back: no other suffix of the text can grow
 * into a stop string. It is shorter than the longest string, which bounds the buffer. */
#include "runtime/batch/stop.h"

#include <string.h>

struct pattern {
    const char *text; /* in spw_stop.text */
    size_t bytes;
    size_t *border; /* [bytes]: in spw_stop.borders; longest proper border of text[0..i] */
    size_t matched; /* bytes of it that the text ends in */
};

struct spw_stop {
    struct pattern *patterns; /* owned */
    size_t n;
    char *text;      /* owned: all strings, one after the other */
    size_t *borders; /* owned */
    char *held;      /* owned: [longest string] */
    size_t n_held;
    bool found;
};

static void fill_borders(struct pattern *p)
{
    p->border[0] = 0;
    for (size_t i = 1, k = 0; i < p->bytes; i++) {
        while (k > 0 && p->text[i] != p->text[k])
            k = p->border[k - 1];
        if (p->text[i] == p->text[k])
            k++;
        p->border[i] = k;
    }
}

int spw_stop_open(struct spw_stop **out, const char *const *strings, size_t n,
                  struct spw_error *err)
{
    *out = NULL;
    size_t total = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = strlen(strings[i]);
        if (bytes == 0)
            return spw_fail(err, -EINVAL, "stop string %zu: found an empty string, expected text",
                            i + 1);
        total += bytes;
        longest = bytes > longest ? bytes : longest;
    }
    struct spw_stop *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        goto fail;
    s->n = n;
    s->patterns = spw_alloc_zero(n, sizeof *s->patterns);
    s->text = spw_alloc(total);
    s->borders = spw_alloc_zero(total, sizeof *s->borders);
    s->held = spw_alloc(longest);
    if (!s->patterns || !s->text || !s->borders || !s->held)
        goto fail;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct pattern *p = &s->patterns[i];
        p->bytes = strlen(strings[i]);
        memcpy(s->text + at, strings[i], p->bytes);
        p->text = s->text + at;
        p->border = s->borders + at;
        at += p->bytes;
        fill_borders(p);
    }
    *out = s;
    return 0;
fail:
    spw_stop_close(s);
    return spw_fail(err, -ENOMEM, "no memory for %zu stop strings of %zu bytes", n, total);
}

void spw_stop_close(struct spw_stop *s)
{
    if (!s)
        return;
    spw_free(s->held);
    spw_free(s->borders);
    spw_free(s->text);
    spw_free(s->patterns);
    spw_free(s);
}

/* True when the string is complete. */
static bool advance(struct pattern *p, char byte)
{
    while (p->matched > 0 && p->text[p->matched] != byte)
        p->matched = p->border[p->matched - 1];
    if (p->text[p->matched] == byte)
        p->matched++;
    return p->matched == p->bytes;
}

/* Bytes of the text's end that must not be emitted: `complete` or possible strings. */
static size_t longest_match(const struct spw_stop *s, bool complete)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct pattern *p = &s->patterns[i];
        if ((!complete || p->matched == p->bytes) && p->matched > longest)
            longest = p->matched;
    }
    return longest;
}

bool spw_stop_found(const struct spw_stop *s)
{
    return s->found;
}

int spw_stop_push(struct spw_stop *s, const char *text, size_t bytes,
                  int (*emit)(void *context, const char *text, size_t bytes), void *context)
{
    if (s->found)
        return 0;
    size_t n_read = 0;
    while (n_read < bytes && !s->found) {
        for (size_t i = 0; i < s->n; i++)
            s->found |= advance(&s->patterns[i], text[n_read]);
        n_read++;
    }
    size_t keep = longest_match(s, s->found);
    size_t n_final = s->n_held + n_read - keep; /* of held, then text */
    size_t from_held = n_final < s->n_held ? n_final : s->n_held;
    size_t from_text = n_final - from_held;
    if (from_held > 0)
        SPW_TRY(emit(context, s->held, from_held));
    if (from_text > 0)
        SPW_TRY(emit(context, text, from_text));
    if (s->found) {
        s->n_held = 0;
        return 0;
    }
    memmove(s->held, s->held + from_held, s->n_held - from_held);
    memcpy(s->held + s->n_held - from_held, text + from_text, n_read - from_text);
    s->n_held = keep;
    return 0;
}

int spw_stop_finish(struct spw_stop *s, int (*emit)(void *context, const char *text, size_t bytes),
                    void *context)
{
    size_t n = s->n_held;
    s->n_held = 0;
    return n > 0 ? emit(context, s->held, n) : 0;
}
