/* Patterns. tokenizer.json is written for Oniguruma (Ruby syntax); PCRE2 runs it here. The two
 * agree on everything split patterns use except what translate() rewrites:
 *
 *   \s \S          PCRE2's \s has U+180E and is not White_Space;   -> \p{WSpace} \P{WSpace}
 *   \w \W          Oniguruma counts marks and all connectors       -> [\p{Alphabetic}\p{M}...]
 *   \b \B          follow \w                                      -> look-arounds
 *   \h \H          hex digits, not horizontal space                -> [0-9a-fA-F]
 *   \p{Han}        scripts; PCRE2 would match script extensions    -> \p{sc:Han}
 *   \uHHHH                                                         -> \x{HHHH}
 *   [[:alpha:]]    alpha, digit, space and word as above           -> \p{...}
 *   X{n,m}+        repeats X{n,m}, it is not possessive            -> (?:X{n,m})+
 *   X{,m}          from 0 on, not literal                          -> X{0,m}
 *   (?m)           the dot takes line ends                         -> (?s)
 *   ^ $            at every line                                   -> PCRE2_MULTILINE
 *
 * A set inside a set ([a[bc]], [a&&b]), (...){n,m}+, \Q, \K and (*VERB) mean other things there and
 * are refused. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>

#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside of a set Oniguruma takes Latin-1 from another table, where the superscript digits and the
 * fractions count too (measured over all of Unicode against 6.9). */
#define WORD_LATIN1 "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* A split pattern may step back through a long run of white space once, a step a byte. This limit
 * is above that, and it bounds what a hostile pattern costs. */
#define MATCH_LIMIT(bytes) (1000000u + (uint32_t)(bytes)) /* a text has less than 2 GiB */
#define HEAP_LIMIT_KIB (64u * 1024)
#define PATTERN_MAX_BYTES (64u * 1024)
#define JIT_STACK_BYTES (1024u * 1024)

static void *regex_alloc(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return spw_alloc(bytes);
}

static void regex_free(void *p, void *unused)
{
    (void)unused;
    spw_free(p);
}

pcre2_general_context *spw_tok_regex_memory(void)
{
    return pcre2_general_context_create(regex_alloc, regex_free, NULL);
}

int spw_tok_pattern_literal(struct spw_tok_pattern *p, const char *text, size_t bytes)
{
    p->literal = spw_alloc(bytes + 1);
    if (!p->literal)
        return -ENOMEM;
    memcpy(p->literal, text, bytes);
    p->literal[bytes] = 0;
    p->literal_bytes = bytes;
    return 0;
}

/* ---- translation ---- */

static int put(struct spw_tok_buf *out, const char *text)
{
    return spw_tok_buf_append(out, text, strlen(text));
}

/* 1 yes, 0 no, -ENOMEM. */
static int is_script(pcre2_compile_context *context, const char *name, size_t n)
{
    char pattern[48];
    int code;
    PCRE2_SIZE at;
    if (n < 3 || n > 30)
        return 0;
    memcpy(pattern, "\\p{sc:", 6);
    memcpy(pattern + 6, name, n);
    memcpy(pattern + 6 + n, "}", 2);
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, 7 + n, PCRE2_UTF, &code, &at, context);
    pcre2_code_free(compiled);
    if (!compiled && code == PCRE2_ERROR_HEAP_FAILED)
        return -ENOMEM;
    return compiled != NULL;
}

/* \p{...} at p; *used gets its length. */
static int translate_property(pcre2_compile_context *context, const char *p, size_t n,
                              struct spw_tok_buf *out, size_t *used)
{
    const char *end = n > 3 && p[2] == '{' ? memchr(p, '}', n) : NULL;
    *used = 2;
    if (!end)
        return spw_tok_buf_append(out, p, 2);
    const char *name = p + 3;
    bool negative = p[1] == 'P';
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    size_t name_bytes = (size_t)(end - name);
    int script = is_script(context, name, name_bytes);
    SPW_TRY(script);
    SPW_TRY(put(out, negative ? "\\P{" : "\\p{"));
    if (script)
        SPW_TRY(put(out, "sc:"));
    SPW_TRY(spw_tok_buf_append(out, name, name_bytes + 1));
    *used = (size_t)(end - p) + 1;
    return 0;
}

/* A class that is a list inside brackets and a set of its own outside. */
static int put_class(struct spw_tok_buf *out, const char *list, bool negative, bool in_set)
{
    if (in_set)
        return negative ? -ENOTSUP : put(out, list);
    SPW_TRY(put(out, negative ? "[^" : "["));
    SPW_TRY(put(out, list));
    return put(out, "]");
}

/* \b: exactly one side is of \w. \B: both or neither. */
static int put_boundary(struct spw_tok_buf *out, bool negative)
{
#define WORD "[" WORD_CLASS WORD_LATIN1 "]"
    return put(out, negative ? "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))"
                             : "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))");
#undef WORD
}

static bool is_hex4(const char *p, size_t n)
{
    return n >= 4 && strspn(p, "0123456789abcdefABCDEF") >= 4;
}

/* The escape at p (p[0] is a backslash, n >= 2). */
static int translate_escape(pcre2_compile_context *context, const char *p, size_t n, bool in_set,
                            struct spw_tok_buf *out, size_t *used)
{
    *used = 2;
    switch (p[1]) {
    case 's':
        return put(out, "\\p{WSpace}");
    case 'S':
        return put(out, "\\P{WSpace}");
    case 'w':
    case 'W':
        return put_class(out, in_set ? WORD_CLASS : WORD_CLASS WORD_LATIN1, p[1] == 'W', in_set);
    case 'b':
    case 'B':
        return in_set ? spw_tok_buf_append(out, p, 2) : put_boundary(out, p[1] == 'B');
    case 'h':
    case 'H':
        return put_class(out, "0-9a-fA-F", p[1] == 'H', in_set);
    case 'p':
    case 'P':
        return translate_property(context, p, n, out, used);
    case 'u':
        if (!is_hex4(p + 2, n - 2))
            return -ENOTSUP;
        *used = 6;
        SPW_TRY(put(out, "\\x{"));
        SPW_TRY(spw_tok_buf_append(out, p + 2, 4));
        return put(out, "}");
    case 'Q':
    case 'E':
    case 'K':
        return -ENOTSUP;
    default:
        return spw_tok_buf_append(out, p, 2);
    }
}

/* What translate() goes by. */
struct translation {
    pcre2_compile_context *context;
    struct spw_tok_buf *out;
    bool in_set;
    size_t atom; /* where in `out` the last character, escape or set begins; SIZE_MAX: no such */
};

/* [:name:] inside a set. */
static int translate_posix(struct translation *t, const char *p, size_t *used)
{
    static const struct {
        const char *name, *meaning;
    } classes[] = {
        {"[:alpha:]", "\\p{Alphabetic}"},
        {"[:digit:]", "\\p{Nd}"},
        {"[:space:]", "\\p{WSpace}"},
        {"[:word:]", WORD_CLASS},
    };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        *used = strlen(classes[i].name);
        if (!strncmp(p, classes[i].name, *used))
            return put(t->out, classes[i].meaning);
    }
    return -ENOTSUP;
}

static int translate_in_set(struct translation *t, const char *p, size_t *used)
{
    if (p[0] == '[')
        return translate_posix(t, p, used);
    if (p[0] == '&' && p[1] == '&')
        return -ENOTSUP;
    t->in_set = p[0] != ']';
    return spw_tok_buf_append(t->out, p, 1);
}

/* The options of a group: (?m-ix: or (?m) */
static int translate_group(struct translation *t, const char *p, size_t *used)
{
    size_t n = 2;
    if (p[1] == '*')
        return -ENOTSUP;
    t->atom = SIZE_MAX;
    if (p[1] != '?')
        return spw_tok_buf_append(t->out, p, 1);
    n += strspn(p + 2, "imx-");
    *used = n;
    for (size_t i = 0; i < n; i++)
        SPW_TRY(spw_tok_buf_append(t->out, p[i] == 'm' ? "s" : p + i, 1));
    return 0;
}

/* {n}, {n,}, {n,m} or {,m} at p: its length; 0: a literal brace. */
static size_t interval_bytes(const char *p)
{
    static const char digits[] = "0123456789";
    size_t low = strspn(p + 1, digits), n = 1 + low, high = 0;
    if (p[n] == ',') {
        high = strspn(p + n + 1, digits);
        n += 1 + high;
    }
    return p[n] == '}' && low + high ? n + 1 : 0;
}

static int translate_interval(struct translation *t, const char *p, size_t n)
{
    bool repeats = p[n] == '+';
    if (repeats) {
        size_t atom = t->atom;
        if (atom == SIZE_MAX)
            return -ENOTSUP;
        SPW_TRY(put(t->out, "(?:"));
        memmove(t->out->data + atom + 3, t->out->data + atom, t->out->n - 3 - atom);
        memcpy(t->out->data + atom, "(?:", 3);
    }
    SPW_TRY(put(t->out, p[1] == ',' ? "{0" : "{"));
    SPW_TRY(spw_tok_buf_append(t->out, p + 1, n - 1));
    return repeats ? put(t->out, ")") : 0;
}

/* Outside of sets and escapes. */
static int translate_plain(struct translation *t, const char *p, size_t *used)
{
    size_t interval = p[0] == '{' ? interval_bytes(p) : 0;
    if (p[0] == '(')
        return translate_group(t, p, used);
    if (interval) {
        *used = interval;
        return translate_interval(t, p, interval);
    }
    if (p[0] == '[') {
        t->atom = t->out->n;
        t->in_set = true;
        *used += p[1] == '^';
        *used += p[*used] == ']'; /* the first one is a character */
    } else if (p[0] == ')') {
        t->atom = SIZE_MAX;
    } else if (((unsigned char)p[0] & 0xc0) != 0x80) {
        t->atom = t->out->n;
    }
    return spw_tok_buf_append(t->out, p, *used);
}

/* The pattern ends in a NUL, so that looking a byte or two ahead is safe. -ENOTSUP with *at = where
 * it holds what the two dialects understand differently. */
static int translate(pcre2_compile_context *context, const char *p, size_t n,
                     struct spw_tok_buf *out, size_t *at)
{
    struct translation t = {.context = context, .out = out, .atom = SIZE_MAX};
    size_t used;
    for (size_t i = 0; i < n; i += used) {
        *at = i;
        used = 1;
        if (p[i] == '\\' && i + 1 < n) {
            t.atom = t.in_set ? t.atom : out->n;
            SPW_TRY(translate_escape(context, p + i, n - i, t.in_set, out, &used));
        } else if (t.in_set) {
            SPW_TRY(translate_in_set(&t, p + i, &used));
        } else {
            SPW_TRY(translate_plain(&t, p + i, &used));
        }
    }
    return 0;
}

/* ---- compiling ---- */

static int compile(struct spw_tok_pattern *p, pcre2_compile_context *context, const char *regex,
                   struct spw_tok_buf *out, const char *where, struct spw_error *err)
{
    size_t at = 0;
    int code = 0;
    PCRE2_SIZE offset = 0;
    int rc = translate(context, regex, strlen(regex), out, &at);
    if (rc == -ENOTSUP)
        return spw_fail(err, rc,
                        "%s: found a regular expression with \"%.12s\" at byte %zu, expected one "
                        "without sets in sets, negated classes in sets, (...){n,m}+, \\Q, \\K and "
                        "(*VERB)",
                        where, regex + at, at);
    SPW_TRY(rc);
    p->code = pcre2_compile((PCRE2_SPTR)out->data, out->n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, context);
    if (p->code) {
        /* Without JIT (no executable memory allowed, or too large a pattern) matching is slower,
         * but the same. */
        pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
        return 0;
    }
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return -ENOMEM;
    PCRE2_UCHAR text[128] = {0};
    pcre2_get_error_message(code, text, sizeof text);
    return spw_fail(err, -EINVAL,
                    "%s: found a regular expression that does not compile (%s, near byte %zu), "
                    "expected a valid one",
                    where, (const char *)text, (size_t)offset);
}

int spw_tok_pattern_regex(struct spw_tok_pattern *p, pcre2_general_context *memory,
                          const char *regex, const char *where, struct spw_error *err)
{
    size_t bytes = strlen(regex);
    if (bytes > PATTERN_MAX_BYTES)
        return spw_fail(err, -EINVAL,
                        "%s: found a regular expression of %zu bytes, expected at most %u", where,
                        bytes, PATTERN_MAX_BYTES);
    pcre2_compile_context *context = pcre2_compile_context_create(memory);
    if (!context)
        return -ENOMEM;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    struct spw_tok_buf out = {0};
    int rc = spw_tok_buf_reserve(&out, bytes + 1);
    if (!rc)
        rc = spw_tok_pattern_literal(p, regex, bytes);
    if (!rc)
        rc = compile(p, context, regex, &out, where, err);
    spw_tok_buf_free(&out);
    pcre2_compile_context_free(context);
    return rc;
}

void spw_tok_pattern_free(struct spw_tok_pattern *p)
{
    spw_free(p->literal);
    pcre2_code_free(p->code);
    *p = (struct spw_tok_pattern){0};
}

/* ---- matching ---- */

static int matcher_prepare(struct spw_tok_matcher *m)
{
    if (m->stack)
        return 0;
    if (!m->data)
        m->data = pcre2_match_data_create(1, m->memory);
    if (!m->context)
        m->context = pcre2_match_context_create(m->memory);
    if (!m->data || !m->context)
        return -ENOMEM;
    m->stack = pcre2_jit_stack_create(32u * 1024, JIT_STACK_BYTES, m->memory);
    if (!m->stack)
        return -ENOMEM;
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    return 0;
}

void spw_tok_matcher_free(struct spw_tok_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    spw_free(m->spans.at);
    *m = (struct spw_tok_matcher){0};
}

static int spans_add(struct spw_tok_spans *s, size_t start, size_t end, bool match)
{
    SPW_TRY(spw_grow(&s->at, &s->capacity, s->n + 1, sizeof *s->at));
    s->at[s->n++] = (struct spw_tok_span){start, end, match};
    return 0;
}

/* The text is valid UTF-8 (checked once, on entry): checking it again for every match would make
 * the whole quadratic. */
static int regex_search(const struct spw_tok_pattern *p, struct spw_tok_matcher *m,
                        const char *text, size_t bytes, size_t from, size_t *start, size_t *end)
{
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, m->data,
                         m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return -ENOMEM;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    if (rc < 0 || at[0] > at[1])
        return -EOVERFLOW;
    *start = at[0];
    *end = at[1];
    return 1;
}

static int search(const struct spw_tok_pattern *p, struct spw_tok_matcher *m, const char *text,
                  size_t bytes, size_t from, size_t *start, size_t *end)
{
    if (p->code)
        return regex_search(p, m, text, bytes, from, start, end);
    const char *hit = memmem(text + from, bytes - from, p->literal, p->literal_bytes);
    if (!hit)
        return 0;
    *start = (size_t)(hit - text);
    *end = *start + p->literal_bytes;
    return 1;
}

int spw_tok_find(const struct spw_tok_pattern *p, struct spw_tok_matcher *m, const char *text,
                 size_t bytes)
{
    size_t done = 0, from = 0, start = 0, end = 0, last_end = SIZE_MAX;
    m->spans.n = 0;
    if (!bytes)
        return 0;
    if (p->code) {
        SPW_TRY(matcher_prepare(m));
        pcre2_set_match_limit(m->context, MATCH_LIMIT(bytes));
    }
    while (from <= bytes) {
        int found = search(p, m, text, bytes, from, &start, &end);
        SPW_TRY(found);
        if (!found)
            break;
        if (start == end && end == last_end) { /* an empty match must not follow a match */
            from += from < bytes ? spw_tok_utf8_len(text + from) : 1;
            continue;
        }
        from = last_end = end;
        SPW_TRY(spw_tok_go_on(m));
        if (done != start)
            SPW_TRY(spans_add(&m->spans, done, start, false));
        SPW_TRY(spans_add(&m->spans, start, end, true));
        done = end;
    }
    if (done != bytes)
        SPW_TRY(spans_add(&m->spans, done, bytes, false));
    return 0;
}
