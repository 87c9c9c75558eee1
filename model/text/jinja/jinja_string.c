/* The methods of Jinja strings, as Python's str has them: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define METHOD(name)                                                                               \
    int spw_jj_m_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

/* ---- strings that were marked safe ---- */

int spw_jj_f_safe(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                  struct spw_jj_value *out)
{
    (void)a;
    SPW_TRY(spw_jj_to_string(r, self, out));
    return spw_jj_mark(r, &(struct spw_jj_string){.markup = true}, out);
}

/* jinja2 escapes the texts that such a method is given, in some versions and for some methods. */
static bool would_escape(struct spw_jj_value v)
{
    for (size_t i = 0; v.type == SPW_JJ_STRING && i < v.u.string->bytes; i++)
        if (v.u.string->at[i] && strchr("&<>\"'", v.u.string->at[i]))
            return true;
    return v.type > SPW_JJ_STRING; /* what join() takes */
}

int spw_jj_call_string(struct spw_jj_run *r, spw_jj_native *method, struct spw_jj_value self,
                       const struct spw_jj_value *a, struct spw_jj_value *out)
{
    SPW_TRY(spw_jj_to_string(r, self, &self));
    if (!self.u.string->markup)
        return method(r, self, a, out);
    for (int i = 0; i < SPW_JJ_MAX_PARAMS; i++)
        if (would_escape(a[i]))
            return spw_jj_fail(r, "found a method with a text to escape, of a string that was "
                                  "marked safe, which spillway does not do");
    SPW_TRY(method(r, self, a, out));
    if (out->type == SPW_JJ_STRING)
        return spw_jj_mark(r, self.u.string, out);
    for (size_t i = 0; out->type == SPW_JJ_LIST && i < out->u.list->n; i++)
        SPW_TRY(spw_jj_mark(r, self.u.string, &out->u.list->at[i]));
    return 0;
}

/* ---- case ---- */

static int in_case(struct spw_jj_run *r, struct spw_jj_value self, enum spw_jj_case how,
                   struct spw_jj_value *out)
{
    size_t start = r->out.bytes;
    SPW_TRY(spw_jj_print_case(r, self.u.string->at, self.u.string->bytes, how));
    return spw_jj_captured(r, start, out);
}

METHOD(lower)
{
    (void)a;
    return in_case(r, self, SPW_JJ_LOWER, out);
}

METHOD(upper)
{
    (void)a;
    return in_case(r, self, SPW_JJ_UPPER, out);
}

METHOD(title)
{
    (void)a;
    return in_case(r, self, SPW_JJ_TITLE, out);
}

METHOD(capitalize)
{
    (void)a;
    return in_case(r, self, SPW_JJ_CAPITALIZE, out);
}

/* ---- ends ---- */

enum { MAX_STRIPPED = 256 }; /* each is looked at for each character of the text */

static int strip_ends(struct spw_jj_run *r, struct spw_jj_value self, struct spw_jj_value which,
                      bool left, bool right, struct spw_jj_value *out)
{
    const struct spw_jj_string *s = self.u.string, *chars = NULL;
    const char *at = s->at;
    size_t bytes = s->bytes;
    if (which.type != SPW_JJ_MISSING && which.type != SPW_JJ_NONE)
        SPW_TRY(spw_jj_want_string(r, which, "strip()", &chars));
    if (chars && chars->bytes > MAX_STRIPPED)
        return spw_jj_fail(r, "strip(): found more than %d bytes of characters to strip",
                           MAX_STRIPPED);
    spw_jj_strip(&at, &bytes, chars, left, right);
    SPW_TRY(spw_jj_charge(r, (s->bytes - bytes) * (chars ? chars->bytes : 1)));
    return spw_jj_borrow(r, at, bytes, out);
}

METHOD(strip)
{
    return strip_ends(r, self, a[0], true, true, out);
}

METHOD(lstrip)
{
    return strip_ends(r, self, a[0], true, false, out);
}

METHOD(rstrip)
{
    return strip_ends(r, self, a[0], false, true, out);
}

static bool has_end(const struct spw_jj_string *s, const struct spw_jj_string *end, bool at_start)
{
    return s->bytes >= end->bytes &&
           !memcmp(at_start ? s->at : s->at + s->bytes - end->bytes, end->at, end->bytes);
}

/* The part that start and end (MISSING or None: all) leave. */
static int part(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *range,
                const struct spw_jj_string **out, size_t *offset)
{
    const struct spw_jj_value bounds[3] = {range[0], range[1], spw_jj_none()};
    struct spw_jj_value cut = self;
    *offset = 0;
    if (range[0].type != SPW_JJ_MISSING || range[1].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_slice(r, self, bounds, &cut));
    *out = cut.u.string;
    if (cut.u.string->bytes)
        *offset = (size_t)(cut.u.string->at - self.u.string->at);
    return 0;
}

static int ends_with(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                     bool at_start, struct spw_jj_value *out)
{
    const struct spw_jj_string *s, *end;
    size_t offset, n = a[0].type == SPW_JJ_TUPLE ? a[0].u.list->n : 1;
    bool found = false;
    SPW_TRY(part(r, self, a + 1, &s, &offset));
    for (size_t i = 0; i < n && !found; i++) {
        struct spw_jj_value one = a[0].type == SPW_JJ_TUPLE ? a[0].u.list->at[i] : a[0];
        SPW_TRY(spw_jj_want_string(r, one, at_start ? "startswith()" : "endswith()", &end));
        SPW_TRY(spw_jj_charge(r, end->bytes / 32));
        found = has_end(s, end, at_start);
    }
    *out = spw_jj_bool(found);
    return spw_jj_charge(r, n);
}

METHOD(startswith)
{
    return ends_with(r, self, a, true, out);
}

METHOD(endswith)
{
    return ends_with(r, self, a, false, out);
}

/* ---- searching ---- */

static const char *last_of(const struct spw_jj_string *s, const struct spw_jj_string *what)
{
    if (s->bytes < what->bytes)
        return NULL;
    for (const char *p = s->at + s->bytes - what->bytes;; p--) {
        if (!memcmp(p, what->at, what->bytes))
            return p;
        if (p == s->at)
            return NULL;
    }
}

/* What last_of may cost, before it does: it looks at each place. */
static int charge_last(struct spw_jj_run *r, const struct spw_jj_string *s,
                       const struct spw_jj_string *what)
{
    return spw_jj_charge(r, (s->bytes / 8 + 1) * (what->bytes / 32 + 1));
}

static const char *first_of(const char *at, const char *end, const struct spw_jj_string *what)
{
    return what->bytes ? memmem(at, (size_t)(end - at), what->at, what->bytes) : at;
}

static int search(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                  bool last, struct spw_jj_value *out)
{
    const struct spw_jj_string *s, *what;
    size_t offset;
    SPW_TRY(spw_jj_want_string(r, a[0], "find()", &what));
    SPW_TRY(part(r, self, a + 1, &s, &offset));
    SPW_TRY(last ? charge_last(r, s, what) : spw_jj_charge(r, s->bytes / 32));
    const char *found = last ? last_of(s, what) : first_of(s->at, s->at + s->bytes, what);
    *out = spw_jj_int(
        found ? (int64_t)spw_jj_chars(self.u.string->at, offset + (size_t)(found - s->at)) : -1);
    return 0;
}

METHOD(find)
{
    return search(r, self, a, false, out);
}

METHOD(rfind)
{
    return search(r, self, a, true, out);
}

METHOD(replace)
{
    const struct spw_jj_string *s = self.u.string, *old, *new;
    int64_t left = -1;
    SPW_TRY(spw_jj_want_string(r, a[0], "replace()", &old));
    SPW_TRY(spw_jj_want_string(r, a[1], "replace()", &new));
    if (a[2].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[2], "replace()", &left));
    const char *p = s->at, *end = s->at + s->bytes, *found;
    size_t start = r->out.bytes, n;
    while (left-- != 0 && (found = first_of(p, end, old))) {
        SPW_TRY(spw_jj_charge(r, 1));
        SPW_TRY(spw_jj_print(r, p, (size_t)(found - p)));
        SPW_TRY(spw_jj_print(r, new->at, new->bytes));
        p = found + old->bytes;
        if (old->bytes)
            continue;
        if (p == end) /* an empty text is found before each character and at the end */
            break;
        spw_jj_decode(p, end, &n);
        SPW_TRY(spw_jj_print(r, p, n));
        p += n;
    }
    SPW_TRY(spw_jj_print(r, p, (size_t)(end - p)));
    return spw_jj_captured(r, start, out);
}

/* ---- splitting and joining ---- */

static int add_piece(struct spw_jj_run *r, const char *at, size_t bytes, struct spw_jj_list *to)
{
    struct spw_jj_value piece;
    SPW_TRY(spw_jj_borrow(r, at, bytes, &piece));
    return spw_jj_append(r, to, piece);
}

/* At runs of white space. */
static int split_space(struct spw_jj_run *r, const struct spw_jj_string *s, int64_t most,
                       struct spw_jj_list *to)
{
    const char *p = s->at, *end = s->at + s->bytes;
    SPW_TRY(spw_jj_charge(r, s->bytes / 4));
    for (;; most--) {
        size_t left = (size_t)(end - p), n = 0, step;
        spw_jj_strip(&p, &left, NULL, true, false);
        if (!left)
            return 0;
        if (most == 0)
            return add_piece(r, p, left, to);
        while (n < left && !spw_jj_is_space(spw_jj_decode(p + n, end, &step)))
            n += step;
        SPW_TRY(add_piece(r, p, n, to));
        p += n;
    }
}

static void reverse(struct spw_jj_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct spw_jj_value first = l->at[i];
        l->at[i] = l->at[l->n - 1 - i];
        l->at[l->n - 1 - i] = first;
    }
}

/* The same from the end; the pieces come last to first. */
static int rsplit_space(struct spw_jj_run *r, const struct spw_jj_string *s, int64_t most,
                        struct spw_jj_list *to)
{
    const char *at = s->at;
    size_t left = s->bytes, step;
    SPW_TRY(spw_jj_charge(r, s->bytes / 4));
    for (;; most--) {
        spw_jj_strip(&at, &left, NULL, false, true);
        if (!left)
            return 0;
        if (most == 0)
            return add_piece(r, at, left, to);
        size_t n = left;
        while (n > 0) {
            size_t before = n - 1;
            while (before > 0 && (at[before] & 0xc0) == 0x80)
                before--;
            if (spw_jj_is_space(spw_jj_decode(at + before, at + left, &step)))
                break;
            n = before;
        }
        SPW_TRY(add_piece(r, at + n, left - n, to));
        left = n;
    }
}

static int split_at(struct spw_jj_run *r, const struct spw_jj_string *s,
                    const struct spw_jj_string *sep, int64_t most, struct spw_jj_list *to)
{
    const char *p = s->at, *end = s->at + s->bytes, *found;
    SPW_TRY(spw_jj_charge(r, s->bytes / 16));
    while (most-- != 0 && (found = first_of(p, end, sep))) {
        SPW_TRY(add_piece(r, p, (size_t)(found - p), to));
        p = found + sep->bytes;
    }
    return add_piece(r, p, (size_t)(end - p), to);
}

static int rsplit_at(struct spw_jj_run *r, const struct spw_jj_string *s,
                     const struct spw_jj_string *sep, int64_t most, struct spw_jj_list *to)
{
    struct spw_jj_string rest = *s;
    const char *found;
    SPW_TRY(charge_last(r, s, sep));
    while (most-- != 0 && (found = last_of(&rest, sep))) {
        size_t at = (size_t)(found - s->at) + sep->bytes;
        SPW_TRY(add_piece(r, s->at + at, rest.bytes - at, to));
        rest.bytes = at - sep->bytes;
    }
    return add_piece(r, s->at, rest.bytes, to);
}

static int split_either(struct spw_jj_run *r, struct spw_jj_value self,
                        const struct spw_jj_value *a, bool right, struct spw_jj_value *out)
{
    const struct spw_jj_string *s = self.u.string, *sep = NULL;
    struct spw_jj_value list;
    int64_t most = -1;
    if (a[0].type != SPW_JJ_MISSING && a[0].type != SPW_JJ_NONE)
        SPW_TRY(spw_jj_want_string(r, a[0], "split()", &sep));
    if (a[1].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[1], "split()", &most));
    if (sep && !sep->bytes)
        return spw_jj_fail(r, "split(): found an empty text to split at");
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &list));
    if (sep)
        SPW_TRY((right ? rsplit_at : split_at)(r, s, sep, most, list.u.list));
    else
        SPW_TRY((right ? rsplit_space : split_space)(r, s, most, list.u.list));
    if (right)
        reverse(list.u.list);
    *out = list;
    return 0;
}

METHOD(split)
{
    return split_either(r, self, a, false, out);
}

METHOD(rsplit)
{
    return split_either(r, self, a, true, out);
}

/* The bytes of a line end at p, 0 if there is none. */
static size_t line_end(const char *p, const char *end)
{
    size_t n;
    uint32_t c = spw_jj_decode(p, end, &n);
    if (c == '\r' && p + 1 < end && p[1] == '\n')
        return 2;
    bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return ends ? n : 0;
}

METHOD(splitlines)
{
    const struct spw_jj_string *s = self.u.string;
    const char *p = s->at, *end = p + s->bytes, *line = p;
    struct spw_jj_value list;
    bool keep = false;
    size_t n, step;
    SPW_TRY(spw_jj_truth(r, a[0], &keep));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_charge(r, s->bytes / 4));
    while (p < end) {
        n = line_end(p, end);
        spw_jj_decode(p, end, &step);
        if (n) {
            SPW_TRY(add_piece(r, line, (size_t)(p - line) + (keep ? n : 0), list.u.list));
            line = p + n;
        }
        p += n ? n : step;
    }
    if (line < end)
        SPW_TRY(add_piece(r, line, (size_t)(end - line), list.u.list));
    *out = list;
    return 0;
}

METHOD(join)
{
    struct spw_jj_value list;
    SPW_TRY(spw_jj_to_list(r, a[0], SPW_JJ_LIST, &list));
    size_t start = r->out.bytes;
    for (size_t i = 0; i < list.u.list->n; i++) {
        struct spw_jj_value item = list.u.list->at[i];
        if (item.type != SPW_JJ_STRING)
            return spw_jj_fail(r, "join(): item %zu: found '%s', expected a string", i,
                               spw_jj_type_name(item));
        if (i)
            SPW_TRY(spw_jj_print_value(r, self));
        SPW_TRY(spw_jj_print_value(r, item));
    }
    return spw_jj_captured(r, start, out);
}
