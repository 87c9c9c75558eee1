/* Values of Jinja templates, with Python's rules of truth, equality and order: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <xxhash.h>

enum { INDEX_FROM = 8 }; /* a dict of fewer entries is searched from its first to its last */

struct spw_jj_value spw_jj_none(void)
{
    return (struct spw_jj_value){.type = SPW_JJ_NONE};
}

struct spw_jj_value spw_jj_bool(bool b)
{
    return (struct spw_jj_value){.type = SPW_JJ_BOOL, .u.boolean = b};
}

struct spw_jj_value spw_jj_int(int64_t i)
{
    return (struct spw_jj_value){.type = SPW_JJ_INT, .u.integer = i};
}

struct spw_jj_value spw_jj_float(double d)
{
    return (struct spw_jj_value){.type = SPW_JJ_FLOAT, .u.number = d};
}

struct spw_jj_value spw_jj_constant(const struct spw_jj_string *s)
{
    return (struct spw_jj_value){.type = SPW_JJ_STRING, .u.string = s};
}

int spw_jj_borrow(struct spw_jj_run *r, const char *at, size_t bytes, struct spw_jj_value *out)
{
    struct spw_jj_string *s = spw_jj_take(&r->arena, sizeof *s);
    if (!s)
        return spw_jj_no_memory(r);
    *s = (struct spw_jj_string){at, bytes, spw_jj_chars(at, bytes), false};
    *out = spw_jj_constant(s);
    return spw_jj_charge(r, bytes / 32);
}

int spw_jj_copy(struct spw_jj_run *r, const char *at, size_t bytes, struct spw_jj_value *out)
{
    char *copy = spw_jj_take_text(&r->arena, bytes);
    if (!copy)
        return spw_jj_no_memory(r);
    if (bytes)
        memcpy(copy, at, bytes);
    return spw_jj_borrow(r, copy, bytes, out);
}

int spw_jj_mark(struct spw_jj_run *r, const struct spw_jj_string *like, struct spw_jj_value *value)
{
    if (value->u.string->markup == like->markup)
        return 0;
    struct spw_jj_string *s = spw_jj_take(&r->arena, sizeof *s);
    if (!s)
        return spw_jj_no_memory(r);
    *s = *value->u.string;
    s->markup = like->markup;
    value->u.string = s;
    return 0;
}

/* ---- lists ---- */

int spw_jj_new_list(struct spw_jj_run *r, enum spw_jj_type type, struct spw_jj_value *out)
{
    struct spw_jj_list *l = spw_jj_take(&r->arena, sizeof *l);
    if (!l)
        return spw_jj_no_memory(r);
    *out = (struct spw_jj_value){.type = type, .u.list = l};
    return 0;
}

int spw_jj_append(struct spw_jj_run *r, struct spw_jj_list *l, struct spw_jj_value v)
{
    if (l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 4;
        struct spw_jj_value *grown = spw_jj_take(&r->arena, room * sizeof *grown);
        if (!grown)
            return spw_jj_no_memory(r);
        if (l->n)
            memcpy(grown, l->at, l->n * sizeof *grown);
        l->at = grown;
        l->room = room;
    }
    l->at[l->n++] = v;
    return spw_jj_charge(r, 1);
}

int spw_jj_pair(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b,
                struct spw_jj_value *out)
{
    struct spw_jj_value pair;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_TUPLE, &pair));
    SPW_TRY(spw_jj_append(r, pair.u.list, a));
    SPW_TRY(spw_jj_append(r, pair.u.list, b));
    *out = pair;
    return 0;
}

/* ---- dicts ---- */

int spw_jj_new_dict(struct spw_jj_run *r, enum spw_jj_type type, struct spw_jj_value *out)
{
    struct spw_jj_dict *d = spw_jj_take(&r->arena, sizeof *d);
    if (!d)
        return spw_jj_no_memory(r);
    *out = (struct spw_jj_value){.type = type, .u.dict = d};
    return 0;
}

static uint64_t hash_number(double d)
{
    if (d == floor(d) && fabs(d) < 9.2e18) {
        int64_t i = (int64_t)d;
        return XXH3_64bits(&i, sizeof i);
    }
    return XXH3_64bits(&d, sizeof d);
}

/* Equal values have equal hashes: 1, 1.0 and True are one key. */
static int hash(struct spw_jj_run *r, struct spw_jj_value v, uint64_t *out)
{
    int64_t i = v.type;
    switch (v.type) {
    case SPW_JJ_STRING:
        *out = XXH3_64bits(v.u.string->at, v.u.string->bytes);
        return spw_jj_charge(r, v.u.string->bytes / 32);
    case SPW_JJ_FLOAT:
        *out = hash_number(v.u.number);
        return 0;
    case SPW_JJ_BOOL:
    case SPW_JJ_INT:
        i = v.type == SPW_JJ_INT ? v.u.integer : v.u.boolean;
        break;
    case SPW_JJ_TUPLE:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(spw_jj_charge(r, v.u.list->n));
        for (size_t n = 0; n < v.u.list->n; n++) {
            uint64_t part = 0;
            SPW_TRY(hash(r, v.u.list->at[n], &part));
            i = (int64_t)(((uint64_t)i ^ part) * 0x9e3779b97f4a7c15u);
        }
        r->depth--;
        break;
    case SPW_JJ_LIST:
    case SPW_JJ_DICT:
        return spw_jj_fail(r, "found a key that is a '%s', expected a string or a number",
                           spw_jj_type_name(v));
    case SPW_JJ_VIEW:
    case SPW_JJ_RANGE:
    case SPW_JJ_METHOD:
        return spw_jj_refuse(r, "a key that is", v);
    default:
        break;
    }
    *out = XXH3_64bits(&i, sizeof i);
    return 0;
}

static int find(struct spw_jj_run *r, const struct spw_jj_dict *d, struct spw_jj_value key,
                uint64_t h, struct spw_jj_entry **entry)
{
    bool same = false;
    *entry = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n && !same; i++) {
            if (d->at[i].hash == h)
                SPW_TRY(spw_jj_equal(r, d->at[i].key, key, &same));
            if (same)
                *entry = &d->at[i];
        }
        return 0;
    }
    size_t mask = d->index_size - 1;
    for (size_t at = h & mask; d->index[at] && !same; at = (at + 1) & mask) {
        struct spw_jj_entry *e = &d->at[d->index[at] - 1];
        SPW_TRY(spw_jj_charge(r, 1));
        if (e->hash == h)
            SPW_TRY(spw_jj_equal(r, e->key, key, &same));
        if (same)
            *entry = e;
    }
    return 0;
}

int spw_jj_dict_find(struct spw_jj_run *r, const struct spw_jj_dict *d, struct spw_jj_value key,
                     struct spw_jj_entry **entry)
{
    uint64_t h = 0;
    SPW_TRY(hash(r, key, &h));
    return find(r, d, key, h, entry);
}

struct spw_jj_value *spw_jj_dict_text(const struct spw_jj_dict *d, const char *at, size_t bytes)
{
    for (size_t i = 0; d && i < d->n; i++) {
        struct spw_jj_value key = d->at[i].key;
        if (key.type == SPW_JJ_STRING && key.u.string->bytes == bytes &&
            !memcmp(key.u.string->at, at, bytes))
            return &d->at[i].value;
    }
    return NULL;
}

static void add_to_index(struct spw_jj_dict *d, size_t entry)
{
    size_t mask = d->index_size - 1, at = d->at[entry].hash & mask;
    while (d->index[at])
        at = (at + 1) & mask;
    d->index[at] = (uint32_t)entry + 1;
}

static int grow_dict(struct spw_jj_run *r, struct spw_jj_dict *d)
{
    size_t room = d->room ? d->room * 2 : 4;
    struct spw_jj_entry *grown = spw_jj_take(&r->arena, room * sizeof *grown);
    if (!grown || room > UINT32_MAX / 2)
        return spw_jj_no_memory(r);
    if (d->n)
        memcpy(grown, d->at, d->n * sizeof *grown);
    d->at = grown;
    d->room = room;
    if (room <= INDEX_FROM)
        return 0;
    d->index = spw_jj_take(&r->arena, room * 2 * sizeof *d->index);
    if (!d->index)
        return spw_jj_no_memory(r);
    d->index_size = room * 2;
    for (size_t i = 0; i < d->n; i++)
        add_to_index(d, i);
    return 0;
}

int spw_jj_dict_set(struct spw_jj_run *r, struct spw_jj_dict *d, struct spw_jj_value key,
                    struct spw_jj_value value)
{
    struct spw_jj_entry *entry;
    uint64_t h = 0;
    SPW_TRY(hash(r, key, &h));
    SPW_TRY(find(r, d, key, h, &entry));
    if (entry) {
        entry->value = value; /* the key stays the first one, as in Python */
        return 0;
    }
    if (d->n == d->room)
        SPW_TRY(grow_dict(r, d));
    d->at[d->n] = (struct spw_jj_entry){key, value, h};
    if (d->index)
        add_to_index(d, d->n);
    d->n++;
    return spw_jj_charge(r, 1);
}

/* ---- undefined ---- */

static int new_undefined(struct spw_jj_run *r, struct spw_jj_undefined what,
                         struct spw_jj_value *out)
{
    struct spw_jj_undefined *u = spw_jj_take(&r->arena, sizeof *u);
    if (!u)
        return spw_jj_no_memory(r);
    *u = what;
    *out = (struct spw_jj_value){.type = SPW_JJ_UNDEFINED, .u.undefined = u};
    return 0;
}

int spw_jj_undefined_name(struct spw_jj_run *r, const struct spw_jj_string *name,
                          struct spw_jj_value *out)
{
    return new_undefined(r, (struct spw_jj_undefined){.name = spw_jj_constant(name)}, out);
}

int spw_jj_undefined_of(struct spw_jj_run *r, struct spw_jj_value object, struct spw_jj_value name,
                        struct spw_jj_value *out)
{
    return new_undefined(r, (struct spw_jj_undefined){.object = object, .name = name}, out);
}

int spw_jj_undefined_hint(struct spw_jj_run *r, const char *hint, struct spw_jj_value *out)
{
    return new_undefined(r, (struct spw_jj_undefined){.hint = hint}, out);
}

int spw_jj_fail_undefined(struct spw_jj_run *r, const struct spw_jj_undefined *u)
{
    struct spw_jj_value text;
    bool quoted = u->object.type != SPW_JJ_NONE;
    if (u->hint)
        return spw_jj_fail(r, "%s", u->hint);
    size_t start = r->out.bytes;
    SPW_TRY(spw_jj_print_repr(r, u->name));
    SPW_TRY(spw_jj_captured(r, start, &text));
    int n = (int)spw_min_u64(text.u.string->bytes, 200);
    if (u->object.type == SPW_JJ_MISSING)
        return spw_jj_fail(r, "%.*s is undefined", n, text.u.string->at);
    const char *type = quoted ? spw_jj_type_name(u->object) : "None";
    if (u->name.type != SPW_JJ_STRING)
        return spw_jj_fail(r, "%s%s has no element %.*s", type, quoted ? " object" : "", n,
                           text.u.string->at);
    return spw_jj_fail(r, "'%s%s' has no attribute %.*s", type, quoted ? " object" : "", n,
                       text.u.string->at);
}

/* ---- questions ---- */

const char *spw_jj_type_name(struct spw_jj_value v)
{
    static const char *const names[] = {
        [SPW_JJ_MISSING] = "missing",
        [SPW_JJ_UNDEFINED] = "Undefined",
        [SPW_JJ_NONE] = "NoneType",
        [SPW_JJ_BOOL] = "bool",
        [SPW_JJ_INT] = "int",
        [SPW_JJ_FLOAT] = "float",
        [SPW_JJ_STRING] = "str",
        [SPW_JJ_LIST] = "list",
        [SPW_JJ_TUPLE] = "tuple",
        [SPW_JJ_DICT] = "dict",
        [SPW_JJ_NAMESPACE] = "Namespace",
        [SPW_JJ_RANGE] = "range",
        [SPW_JJ_VIEW] = "view of a dict",
        [SPW_JJ_ITERATOR] = "generator",
        [SPW_JJ_MACRO] = "macro",
        [SPW_JJ_FUNCTION] = "function",
        [SPW_JJ_METHOD] = "method",
        [SPW_JJ_LOOP] = "loop",
    };
    return names[v.type];
}

bool spw_jj_is_text(struct spw_jj_value v, const char *text)
{
    size_t n = strlen(text);
    return v.type == SPW_JJ_STRING && v.u.string->bytes == n && !memcmp(v.u.string->at, text, n);
}

int spw_jj_truth(struct spw_jj_run *r, struct spw_jj_value v, bool *out)
{
    int64_t n = 1;
    *out = true;
    switch (v.type) {
    case SPW_JJ_MISSING:
    case SPW_JJ_UNDEFINED:
    case SPW_JJ_NONE:
        *out = false;
        return 0;
    case SPW_JJ_BOOL:
        *out = v.u.boolean;
        return 0;
    case SPW_JJ_INT:
        *out = v.u.integer != 0;
        return 0;
    case SPW_JJ_FLOAT:
        *out = v.u.number != 0;
        return 0;
    case SPW_JJ_NAMESPACE:
    case SPW_JJ_ITERATOR:
    case SPW_JJ_MACRO:
    case SPW_JJ_FUNCTION:
    case SPW_JJ_METHOD:
    case SPW_JJ_LOOP:
        return 0;
    default:
        SPW_TRY(spw_jj_length(r, v, &n));
        *out = n != 0;
        return 0;
    }
}

static bool is_number(struct spw_jj_value v)
{
    return v.type == SPW_JJ_BOOL || v.type == SPW_JJ_INT || v.type == SPW_JJ_FLOAT;
}

static int order_int_float(int64_t i, double d)
{
    if (isnan(d))
        return 2;
    if (d >= 9223372036854775808.0)
        return -1;
    if (d < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)d; /* towards zero, exact */
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = d - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* -1, 0, 1, or 2 where one is not a number; exact between integers and floats. */
static int order_numbers(struct spw_jj_value a, struct spw_jj_value b)
{
    int64_t x = a.type == SPW_JJ_BOOL ? a.u.boolean : a.u.integer;
    int64_t y = b.type == SPW_JJ_BOOL ? b.u.boolean : b.u.integer;
    if (a.type == SPW_JJ_FLOAT && b.type == SPW_JJ_FLOAT) {
        double p = a.u.number, q = b.u.number;
        return p < q ? -1 : p > q ? 1 : p == q ? 0 : 2;
    }
    if (b.type == SPW_JJ_FLOAT)
        return order_int_float(x, b.u.number);
    if (a.type == SPW_JJ_FLOAT) {
        int turned = order_int_float(y, a.u.number);
        return turned == 2 ? 2 : -turned;
    }
    return x < y ? -1 : x > y;
}

static int order_strings(const struct spw_jj_string *a, const struct spw_jj_string *b)
{
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int c = n ? memcmp(a->at, b->at, n) : 0; /* UTF-8 sorts as its characters do */
    return c ? (c < 0 ? -1 : 1) : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int equal_items(struct spw_jj_run *r, const struct spw_jj_list *a,
                       const struct spw_jj_list *b, bool *out)
{
    *out = a->n == b->n;
    SPW_TRY(spw_jj_enter(r));
    for (size_t i = 0; *out && i < a->n && i < b->n; i++)
        SPW_TRY(spw_jj_equal(r, a->at[i], b->at[i], out));
    r->depth--;
    return 0;
}

static int equal_dicts(struct spw_jj_run *r, const struct spw_jj_dict *a,
                       const struct spw_jj_dict *b, bool *out)
{
    *out = a->n == b->n;
    SPW_TRY(spw_jj_enter(r));
    for (size_t i = 0; *out && i < a->n; i++) {
        struct spw_jj_entry *other;
        SPW_TRY(find(r, b, a->at[i].key, a->at[i].hash, &other));
        *out = other != NULL;
        if (other)
            SPW_TRY(spw_jj_equal(r, a->at[i].value, other->value, out));
    }
    r->depth--;
    return 0;
}

int spw_jj_equal(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b, bool *out)
{
    SPW_TRY(spw_jj_charge(r, 1));
    if (is_number(a) && is_number(b)) {
        *out = order_numbers(a, b) == 0;
        return 0;
    }
    *out = false;
    if (a.type != b.type)
        return 0;
    switch (a.type) {
    case SPW_JJ_MISSING:
    case SPW_JJ_UNDEFINED:
    case SPW_JJ_NONE:
        *out = true;
        return 0;
    case SPW_JJ_STRING:
        *out = a.u.string->bytes == b.u.string->bytes && !order_strings(a.u.string, b.u.string);
        return spw_jj_charge(r, spw_min_u64(a.u.string->bytes, b.u.string->bytes) / 32);
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
        if (a.u.list == b.u.list) {
            *out = true;
            return 0;
        }
        return equal_items(r, a.u.list, b.u.list, out);
    case SPW_JJ_DICT:
        if (a.u.dict == b.u.dict) {
            *out = true;
            return 0;
        }
        return equal_dicts(r, a.u.dict, b.u.dict, out);
    case SPW_JJ_VIEW:
    case SPW_JJ_RANGE:
    case SPW_JJ_METHOD:
        return spw_jj_refuse(r, "a comparison with", a);
    default:
        *out = a.u.macro == (const void *)b.u.macro; /* the pointers of one union */
        return 0;
    }
}

static int order_items(struct spw_jj_run *r, const struct spw_jj_list *a,
                       const struct spw_jj_list *b, const char *op, int *out)
{
    *out = a->n < b->n ? -1 : a->n > b->n;
    SPW_TRY(spw_jj_enter(r));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        SPW_TRY(spw_jj_equal(r, a->at[i], b->at[i], &same));
        if (same)
            continue;
        SPW_TRY(spw_jj_order(r, a->at[i], b->at[i], op, out));
        break;
    }
    r->depth--;
    return 0;
}

int spw_jj_order(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b, const char *op,
                 int *out)
{
    SPW_TRY(spw_jj_charge(r, 1));
    if (is_number(a) && is_number(b)) {
        *out = order_numbers(a, b);
        return 0;
    }
    if (a.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, a.u.undefined);
    if (b.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, b.u.undefined);
    if (a.type == SPW_JJ_STRING && b.type == SPW_JJ_STRING) {
        *out = order_strings(a.u.string, b.u.string);
        return spw_jj_charge(r, spw_min_u64(a.u.string->bytes, b.u.string->bytes) / 32);
    }
    if ((a.type == SPW_JJ_LIST || a.type == SPW_JJ_TUPLE) && a.type == b.type)
        return order_items(r, a.u.list, b.u.list, op, out);
    if (a.type == SPW_JJ_VIEW || b.type == SPW_JJ_VIEW)
        return spw_jj_refuse(r, "a comparison with", a.type == SPW_JJ_VIEW ? a : b);
    return spw_jj_fail(r, "cannot compute '%s' %s '%s'", spw_jj_type_name(a), op,
                       spw_jj_type_name(b));
}

int spw_jj_length(struct spw_jj_run *r, struct spw_jj_value v, int64_t *out)
{
    switch (v.type) {
    case SPW_JJ_STRING:
        *out = (int64_t)v.u.string->chars;
        return 0;
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
    case SPW_JJ_VIEW:
        *out = (int64_t)v.u.list->n;
        return 0;
    case SPW_JJ_DICT:
        *out = (int64_t)v.u.dict->n;
        return 0;
    case SPW_JJ_RANGE:
        *out = v.u.range->n;
        return 0;
    case SPW_JJ_UNDEFINED:
        *out = 0;
        return 0;
    default:
        return spw_jj_fail(r, "'%s' object has no length", spw_jj_type_name(v));
    }
}

static int contains_item(struct spw_jj_run *r, struct spw_jj_value in, struct spw_jj_value what,
                         bool *out)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value item;
    bool more;
    *out = false;
    SPW_TRY(spw_jj_iterate(r, in, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            return 0;
        SPW_TRY(spw_jj_equal(r, item, what, out));
        if (*out)
            return 0;
    }
}

int spw_jj_contains(struct spw_jj_run *r, struct spw_jj_value in, struct spw_jj_value what,
                    bool *out)
{
    struct spw_jj_entry *entry;
    switch (in.type) {
    case SPW_JJ_STRING:
        if (what.type != SPW_JJ_STRING)
            return spw_jj_fail(r, "found '%s' before `in` and a string, expected a string",
                               spw_jj_type_name(what));
        *out = !what.u.string->bytes ||
               memmem(in.u.string->at, in.u.string->bytes, what.u.string->at, what.u.string->bytes);
        return spw_jj_charge(r, in.u.string->bytes / 32);
    case SPW_JJ_DICT:
        SPW_TRY(spw_jj_dict_find(r, in.u.dict, what, &entry));
        *out = entry != NULL;
        return 0;
    case SPW_JJ_VIEW:
        if (what.type == SPW_JJ_LIST || what.type == SPW_JJ_DICT || what.type == SPW_JJ_TUPLE)
            return spw_jj_refuse(r, "a search among keys, values or items for", what);
        return contains_item(r, in, what, out);
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
    case SPW_JJ_RANGE:
    case SPW_JJ_ITERATOR:
    case SPW_JJ_UNDEFINED:
        return contains_item(r, in, what, out);
    default:
        return spw_jj_fail(r, "found '%s' after `in`, expected a string, a list or a dict",
                           spw_jj_type_name(in));
    }
}

/* ---- JSON ---- */

static int from_object(struct spw_jj_run *r, json_t *json, struct spw_jj_dict *d)
{
    const char *key;
    size_t bytes;
    json_t *item;
    json_object_keylen_foreach(json, key, bytes, item)
    {
        struct spw_jj_value name, value;
        SPW_TRY(spw_jj_borrow(r, key, bytes, &name));
        SPW_TRY(spw_jj_from_json(r, item, &value));
        SPW_TRY(spw_jj_dict_set(r, d, name, value));
    }
    return 0;
}

int spw_jj_from_json(struct spw_jj_run *r, const json_t *json, struct spw_jj_value *out)
{
    switch (json_typeof(json)) {
    case JSON_NULL:
        *out = spw_jj_none();
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = spw_jj_bool(json_is_true(json));
        return 0;
    case JSON_INTEGER:
        *out = spw_jj_int(json_integer_value(json));
        return 0;
    case JSON_REAL:
        *out = spw_jj_float(json_real_value(json));
        return 0;
    case JSON_STRING:
        return spw_jj_borrow(r, json_string_value(json), json_string_length(json), out);
    case JSON_ARRAY:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            struct spw_jj_value item;
            SPW_TRY(spw_jj_from_json(r, json_array_get(json, i), &item));
            SPW_TRY(spw_jj_append(r, out->u.list, item));
        }
        r->depth--;
        return 0;
    case JSON_OBJECT:
        SPW_TRY(spw_jj_enter(r));
        SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, out));
        SPW_TRY(from_object(r, (json_t *)(uintptr_t)json, out->u.dict));
        r->depth--;
        return 0;
    }
    return 0;
}
