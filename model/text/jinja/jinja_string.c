/* The methods of Jinja strings, as Python's str has them: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define METHOD(name)                                                                               \
    static int m_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

/* ---- case ---- */

static int in_case(struct spw_jj_run *r, struct spw_jj_value self, enum spw_jj_case how,
                   struct spw_jj_value *out)
{
    size_t start = r->out.bytes;
    SPW_TRY(spw_jj_print_case(r, self.u.string->at, self.u.string->bytes, how));
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, self.u.string, out);
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

METHOD(swapcase)
{
    (void)a;
    return in_case(r, self, SPW_JJ_SWAP, out);
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
    SPW_TRY(spw_jj_borrow(r, at, bytes, out));
    return spw_jj_mark(r, s, out);
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

static int cut_end(struct spw_jj_run *r, struct spw_jj_value self, struct spw_jj_value what,
                   bool at_start, struct spw_jj_value *out)
{
    const struct spw_jj_string *s = self.u.string, *end;
    SPW_TRY(spw_jj_want_string(r, what, at_start ? "removeprefix()" : "removesuffix()", &end));
    *out = self;
    SPW_TRY(spw_jj_charge(r, end->bytes / 32));
    if (!has_end(s, end, at_start))
        return 0;
    SPW_TRY(spw_jj_borrow(r, at_start ? s->at + end->bytes : s->at, s->bytes - end->bytes, out));
    return spw_jj_mark(r, s, out);
}

METHOD(removeprefix)
{
    return cut_end(r, self, a[0], true, out);
}

METHOD(removesuffix)
{
    return cut_end(r, self, a[0], false, out);
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
        if (one.type != SPW_JJ_STRING)
            return spw_jj_fail(r, "%s first arg must be str or a tuple of str, not %s",
                               at_start ? "startswith" : "endswith", spw_jj_type_name(one));
        end = one.u.string;
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
                  bool last, bool must, struct spw_jj_value *out)
{
    const struct spw_jj_string *s, *what;
    size_t offset;
    SPW_TRY(spw_jj_want_string(r, a[0], "find()", &what));
    SPW_TRY(part(r, self, a + 1, &s, &offset));
    SPW_TRY(last ? charge_last(r, s, what) : spw_jj_charge(r, s->bytes / 32));
    const char *found = last ? last_of(s, what) : first_of(s->at, s->at + s->bytes, what);
    if (!found && must)
        return spw_jj_fail(r, "substring not found");
    *out = spw_jj_int(
        found ? (int64_t)spw_jj_chars(self.u.string->at, offset + (size_t)(found - s->at)) : -1);
    return 0;
}

METHOD(find)
{
    return search(r, self, a, false, false, out);
}

METHOD(rfind)
{
    return search(r, self, a, true, false, out);
}

METHOD(index)
{
    return search(r, self, a, false, true, out);
}

METHOD(rindex)
{
    return search(r, self, a, true, true, out);
}

METHOD(count)
{
    const struct spw_jj_string *s, *what;
    size_t offset;
    int64_t n = 0;
    SPW_TRY(spw_jj_want_string(r, a[0], "count()", &what));
    SPW_TRY(part(r, self, a + 1, &s, &offset));
    const char *p = s->at, *end = s->at + s->bytes;
    for (; what->bytes && (p = first_of(p, end, what)); p += what->bytes)
        n++;
    *out = spw_jj_int(what->bytes ? n : (int64_t)s->chars + 1);
    return spw_jj_charge(r, s->bytes / 16);
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
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, s, out);
}

/* ---- splitting and joining ---- */

static int add_piece(struct spw_jj_run *r, const struct spw_jj_string *s, const char *at,
                     size_t bytes, struct spw_jj_list *to)
{
    struct spw_jj_value piece;
    SPW_TRY(spw_jj_borrow(r, at, bytes, &piece));
    SPW_TRY(spw_jj_mark(r, s, &piece));
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
            return add_piece(r, s, p, left, to);
        while (n < left && !spw_jj_is_space(spw_jj_decode(p + n, end, &step)))
            n += step;
        SPW_TRY(add_piece(r, s, p, n, to));
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
            return add_piece(r, s, at, left, to);
        size_t n = left;
        while (n > 0) {
            size_t before = n - 1;
            while (before > 0 && (at[before] & 0xc0) == 0x80)
                before--;
            if (spw_jj_is_space(spw_jj_decode(at + before, at + left, &step)))
                break;
            n = before;
        }
        SPW_TRY(add_piece(r, s, at + n, left - n, to));
        left = n;
    }
}

static int split_at(struct spw_jj_run *r, const struct spw_jj_string *s,
                    const struct spw_jj_string *sep, int64_t most, struct spw_jj_list *to)
{
    const char *p = s->at, *end = s->at + s->bytes, *found;
    SPW_TRY(spw_jj_charge(r, s->bytes / 16));
    while (most-- != 0 && (found = first_of(p, end, sep))) {
        SPW_TRY(add_piece(r, s, p, (size_t)(found - p), to));
        p = found + sep->bytes;
    }
    return add_piece(r, s, p, (size_t)(end - p), to);
}

static int rsplit_at(struct spw_jj_run *r, const struct spw_jj_string *s,
                     const struct spw_jj_string *sep, int64_t most, struct spw_jj_list *to)
{
    struct spw_jj_string rest = *s;
    const char *found;
    SPW_TRY(charge_last(r, s, sep));
    while (most-- != 0 && (found = last_of(&rest, sep))) {
        size_t at = (size_t)(found - s->at) + sep->bytes;
        SPW_TRY(add_piece(r, s, s->at + at, rest.bytes - at, to));
        rest.bytes = at - sep->bytes;
    }
    return add_piece(r, s, s->at, rest.bytes, to);
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
        return spw_jj_fail(r, "empty separator");
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
            SPW_TRY(add_piece(r, s, line, (size_t)(p - line) + (keep ? n : 0), list.u.list));
            line = p + n;
        }
        p += n ? n : step;
    }
    if (line < end)
        SPW_TRY(add_piece(r, s, line, (size_t)(end - line), list.u.list));
    *out = list;
    return 0;
}

static int partition_either(struct spw_jj_run *r, struct spw_jj_value self,
                            const struct spw_jj_value *a, bool right, struct spw_jj_value *out)
{
    const struct spw_jj_string *s = self.u.string, *sep;
    struct spw_jj_value tuple;
    SPW_TRY(spw_jj_want_string(r, a[0], "partition()", &sep));
    if (!sep->bytes)
        return spw_jj_fail(r, "empty separator");
    SPW_TRY(charge_last(r, s, sep));
    const char *found = right ? last_of(s, sep) : first_of(s->at, s->at + s->bytes, sep);
    size_t before = found ? (size_t)(found - s->at) : right ? 0 : s->bytes;
    size_t n = found ? sep->bytes : 0;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_TUPLE, &tuple));
    SPW_TRY(add_piece(r, s, s->at, before, tuple.u.list));
    SPW_TRY(add_piece(r, s, s->at + before, n, tuple.u.list));
    SPW_TRY(add_piece(r, s, s->at + before + n, s->bytes - before - n, tuple.u.list));
    *out = tuple;
    return 0;
}

METHOD(partition)
{
    return partition_either(r, self, a, false, out);
}

METHOD(rpartition)
{
    return partition_either(r, self, a, true, out);
}

METHOD(join)
{
    struct spw_jj_value list;
    SPW_TRY(spw_jj_to_list(r, a[0], SPW_JJ_LIST, &list));
    size_t start = r->out.bytes;
    for (size_t i = 0; i < list.u.list->n; i++) {
        struct spw_jj_value item = list.u.list->at[i];
        if (self.u.string->markup) { /* takes anything, as it escapes it */
            SPW_TRY(spw_jj_to_string(r, item, &item));
            SPW_TRY(spw_jj_escape(r, item.u.string, &item));
        }
        if (item.type != SPW_JJ_STRING)
            return spw_jj_fail(r, "sequence item %zu: expected str instance, %s found", i,
                               spw_jj_type_name(item));
        if (i)
            SPW_TRY(spw_jj_print_value(r, self));
        SPW_TRY(spw_jj_print_value(r, item));
    }
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, self.u.string, out);
}

/* ---- the rest ---- */

/* All characters are of a kind, and there is one. */
static int all(struct spw_jj_run *r, struct spw_jj_value self, bool (*kind)(uint32_t c),
               struct spw_jj_value *out)
{
    const char *p = self.u.string->at, *end = p + self.u.string->bytes;
    bool good = p < end;
    size_t n;
    for (; good && p < end; p += n)
        good = kind(spw_jj_decode(p, end, &n));
    *out = spw_jj_bool(good);
    return spw_jj_charge(r, self.u.string->bytes / 4);
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_alpha(uint32_t c)
{
    return spw_jj_is_letter(c);
}

static bool is_alnum(uint32_t c)
{
    return is_digit(c) || is_alpha(c);
}

METHOD(isspace)
{
    (void)a;
    return all(r, self, spw_jj_is_space, out);
}

METHOD(isdigit)
{
    (void)a;
    return all(r, self, is_digit, out);
}

METHOD(isalpha)
{
    (void)a;
    return all(r, self, is_alpha, out);
}

METHOD(isalnum)
{
    (void)a;
    return all(r, self, is_alnum, out);
}

/* Equal to itself in that case, and different in the other: has a letter. */
static int is_in_case(struct spw_jj_run *r, struct spw_jj_value self, enum spw_jj_case how,
                      struct spw_jj_value *out)
{
    struct spw_jj_value cased, other;
    bool same, letters;
    SPW_TRY(in_case(r, self, how, &cased));
    SPW_TRY(in_case(r, self, how == SPW_JJ_UPPER ? SPW_JJ_LOWER : SPW_JJ_UPPER, &other));
    SPW_TRY(spw_jj_equal(r, self, cased, &same));
    SPW_TRY(spw_jj_equal(r, cased, other, &letters));
    *out = spw_jj_bool(same && !letters);
    return 0;
}

METHOD(isupper)
{
    (void)a;
    return is_in_case(r, self, SPW_JJ_UPPER, out);
}

METHOD(islower)
{
    (void)a;
    return is_in_case(r, self, SPW_JJ_LOWER, out);
}

static int pad(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
               char where, struct spw_jj_value *out)
{
    static const struct spw_jj_string space = {" ", 1, 1, false}, zero = {"0", 1, 1, false};
    const struct spw_jj_string *s = self.u.string, *fill = where == 'z' ? &zero : &space;
    size_t start = r->out.bytes;
    int64_t width, n = (int64_t)s->chars;
    SPW_TRY(spw_jj_want_int(r, a[0], "width", &width));
    if (where != 'z' && a[1].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_string(r, a[1], "fillchar", &fill));
    if (fill->chars != 1)
        return spw_jj_fail(r, "The fill character must be exactly one character long");
    int64_t total = width > n ? width - n : 0;
    int64_t left = where == 'c' ? total / 2 + (total & width & 1) : where == 'l' ? 0 : total;
    size_t sign = where == 'z' && s->bytes && (*s->at == '-' || *s->at == '+');
    SPW_TRY(spw_jj_print(r, s->at, sign));
    SPW_TRY(spw_jj_print_times(r, fill->at, fill->bytes, left));
    SPW_TRY(spw_jj_print(r, s->at + sign, s->bytes - sign));
    SPW_TRY(spw_jj_print_times(r, fill->at, fill->bytes, total - left));
    SPW_TRY(spw_jj_captured(r, start, out));
    return spw_jj_mark(r, s, out);
}

METHOD(center)
{
    return pad(r, self, a, 'c', out);
}

METHOD(ljust)
{
    return pad(r, self, a, 'l', out);
}

METHOD(rjust)
{
    return pad(r, self, a, 'r', out);
}

METHOD(zfill)
{
    return pad(r, self, a, 'z', out);
}

METHOD(format)
{
    if (self.u.string->markup)
        return spw_jj_fail(r, "format() of a string that was marked safe");
    return spw_jj_format(r, self.u.string, &a[0], a[1].u.dict, out);
}

static const struct spw_jj_callable methods[] = {
    {"strip", "chars=", m_strip, false},
    {"lstrip", "chars=", m_lstrip, false},
    {"rstrip", "chars=", m_rstrip, false},
    {"split", "sep=,maxsplit=", m_split, false},
    {"rsplit", "sep=,maxsplit=", m_rsplit, false},
    {"splitlines", "keepends=", m_splitlines, false},
    {"partition", "sep", m_partition, false},
    {"rpartition", "sep", m_rpartition, false},
    {"join", "iterable", m_join, false},
    {"startswith", "prefix,start=,end=", m_startswith, false},
    {"endswith", "suffix,start=,end=", m_endswith, false},
    {"removeprefix", "prefix", m_removeprefix, false},
    {"removesuffix", "suffix", m_removesuffix, false},
    {"replace", "old,new,count=", m_replace, false},
    {"find", "sub,start=,end=", m_find, false},
    {"rfind", "sub,start=,end=", m_rfind, false},
    {"index", "sub,start=,end=", m_index, false},
    {"rindex", "sub,start=,end=", m_rindex, false},
    {"count", "sub,start=,end=", m_count, false},
    {"lower", "", m_lower, false},
    {"casefold", "", m_lower, false},
    {"upper", "", m_upper, false},
    {"title", "", m_title, false},
    {"capitalize", "", m_capitalize, false},
    {"swapcase", "", m_swapcase, false},
    {"isspace", "", m_isspace, false},
    {"isdigit", "", m_isdigit, false},
    {"isdecimal", "", m_isdigit, false},
    {"isnumeric", "", m_isdigit, false},
    {"isalpha", "", m_isalpha, false},
    {"isalnum", "", m_isalnum, false},
    {"isupper", "", m_isupper, false},
    {"islower", "", m_islower, false},
    {"center", "width,fillchar=", m_center, false},
    {"ljust", "width,fillchar=", m_ljust, false},
    {"rjust", "width,fillchar=", m_rjust, false},
    {"zfill", "width", m_zfill, false},
    {"format", "*", m_format, false},
};

const struct spw_jj_callable *spw_jj_string_method(const struct spw_jj_string *name)
{
    return spw_jj_in_table(methods, sizeof methods / sizeof *methods, name);
}
