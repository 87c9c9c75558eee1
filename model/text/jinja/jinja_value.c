/* Values of Jinja templates, with Python's rules of truth, equality and order: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>
#include <xxhash.h>

enum { INDEX_FROM = 8 }; /* a dict of fewer entries is searched from its first to its last */

/* ---- strings ---- */

struct value spw_jinja_borrow(struct run *r, const char *at, size_t bytes)
{
    struct string *s = spw_jinja_take(r, sizeof *s);
    *s = (struct string){at, bytes, spw_jinja_chars(at, bytes), false};
    spw_jinja_charge(r, bytes / 32);
    return string_value(s);
}

struct value spw_jinja_copy(struct run *r, const char *at, size_t bytes)
{
    char *copy = spw_jinja_take_text(r, bytes);
    if (bytes)
        memcpy(copy, at, bytes);
    return spw_jinja_borrow(r, copy, bytes);
}

struct value spw_jinja_mark(struct run *r, bool markup, struct value v)
{
    if (v.u.string->markup == markup)
        return v;
    struct string *s = spw_jinja_take(r, sizeof *s);
    *s = *v.u.string;
    s->markup = markup;
    return string_value(s);
}

bool spw_jinja_is_text(const struct string *s, const char *text)
{
    size_t n = strlen(text);
    return s->bytes == n && !memcmp(s->at, text, n);
}

/* ---- lists ---- */

struct list *spw_jinja_new_list(struct run *r)
{
    return spw_jinja_take(r, sizeof(struct list));
}

void spw_jinja_append(struct run *r, struct list *l, struct value v)
{
    l->at = spw_jinja_grow(r, l->at, l->n, &l->room, sizeof *l->at);
    l->at[l->n++] = v;
    spw_jinja_charge(r, 1);
}

struct value spw_jinja_pair(struct run *r, const struct entry *e)
{
    struct list *pair = spw_jinja_new_list(r);
    spw_jinja_append(r, pair, e->key);
    spw_jinja_append(r, pair, e->value);
    return list_value(SPW_JINJA_TUPLE, pair);
}

/* Its characters; plain, also those of a string that was marked safe: as in Python. */
static struct list *characters(struct run *r, const struct string *s)
{
    struct list *l = spw_jinja_new_list(r);
    l->room = s->chars;
    l->at = spw_jinja_take(r, l->room * sizeof *l->at);
    size_t n;
    for (const char *p = s->at; p < s->at + s->bytes; p += n) {
        spw_jinja_decode(p, s->at + s->bytes, &n);
        spw_jinja_append(r, l, spw_jinja_borrow(r, p, n));
    }
    return l;
}

struct list *spw_jinja_items(struct run *r, struct value over)
{
    if (is_list(over))
        return over.u.list;
    if (over.type == SPW_JINJA_STRING)
        return characters(r, over.u.string);
    if (over.type != SPW_JINJA_DICT && over.type != SPW_JINJA_UNDEFINED)
        spw_jinja_fail(r, "'%s' object is not iterable", spw_jinja_type_name(over));
    struct list *l = spw_jinja_new_list(r);
    for (size_t i = 0; over.type == SPW_JINJA_DICT && i < over.u.dict->n; i++)
        spw_jinja_append(r, l, over.u.dict->at[i].key);
    return l;
}

struct list *spw_jinja_copy_items(struct run *r, struct value over)
{
    const struct list *from = spw_jinja_items(r, over);
    struct list *l = spw_jinja_new_list(r);
    for (size_t i = 0; i < from->n; i++)
        spw_jinja_append(r, l, from->at[i]);
    return l;
}

/* Merges the sorted runs [a, b) and [b, end) of `order` into `to`. */
static void merge(struct run *r, const struct list *keys, const uint32_t *order, size_t a, size_t b,
                  size_t end, bool reverse, uint32_t *to)
{
    size_t i = a, j = b;
    for (size_t n = a; n < end; n++) {
        bool left = j >= end;
        /* `<` of the later and the earlier, as Python asks: of equal ones the earlier is first */
        if (i < b && j < end) {
            struct value x = keys->at[order[i]], y = keys->at[order[j]];
            left = spw_jinja_order(r, reverse ? x : y, reverse ? y : x, "<") != -1;
        }
        to[n] = left ? order[i++] : order[j++];
    }
}

void spw_jinja_sort(struct run *r, struct list *items, const struct list *keys, bool reverse)
{
    size_t n = items->n;
    uint32_t *order = spw_jinja_take(r, n * sizeof *order);
    uint32_t *to = spw_jinja_take(r, n * sizeof *to), *swap;
    struct value *sorted = spw_jinja_take(r, n * sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t a = 0; a < n; a += width * 2) {
            size_t b = spw_min_u64(a + width, n), end = spw_min_u64(a + width * 2, n);
            merge(r, keys, order, a, b, end, reverse, to);
        }
        swap = order;
        order = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = items->at[order[i]];
    items->at = sorted;
    items->room = n;
}

/* ---- dicts ---- */

struct dict *spw_jinja_new_dict(struct run *r)
{
    return spw_jinja_take(r, sizeof(struct dict));
}

static uint64_t hash(struct run *r, struct value v);

static uint64_t hash_tuple(struct run *r, const struct list *l)
{
    uint64_t h = SPW_JINJA_TUPLE;
    spw_jinja_enter(r);
    spw_jinja_charge(r, l->n);
    for (size_t n = 0; n < l->n; n++)
        h = (h ^ hash(r, l->at[n])) * 0x9e3779b97f4a7c15u;
    r->depth--;
    return h;
}

/* Equal values have equal hashes: 1, 1.0 and True are one key. */
static uint64_t hash(struct run *r, struct value v)
{
    int64_t i = v.type;
    switch (v.type) {
    case SPW_JINJA_STRING:
        spw_jinja_charge(r, v.u.string->bytes / 32);
        return XXH3_64bits(v.u.string->at, v.u.string->bytes);
    case SPW_JINJA_FLOAT:
        if (v.u.number != floor(v.u.number) || fabs(v.u.number) >= 9.2e18)
            return XXH3_64bits(&v.u.number, sizeof v.u.number);
        i = (int64_t)v.u.number;
        break;
    case SPW_JINJA_BOOL:
    case SPW_JINJA_INT:
        i = integer(v);
        break;
    case SPW_JINJA_TUPLE:
        return hash_tuple(r, v.u.list);
    case SPW_JINJA_LIST:
    case SPW_JINJA_DICT:
        spw_jinja_fail(r, "found a key that is a '%s', expected a string or a number",
                       spw_jinja_type_name(v));
    case SPW_JINJA_METHOD:
        spw_jinja_refuse(r, "a key that is", v);
    default:
        break;
    }
    return XXH3_64bits(&i, sizeof i);
}

static struct entry *find(struct run *r, const struct dict *d, struct value key, uint64_t h)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->at[i].hash == h && spw_jinja_equal(r, d->at[i].key, key))
                return &d->at[i];
        return NULL;
    }
    size_t mask = d->index_size - 1;
    for (size_t at = h & mask; d->index[at]; at = (at + 1) & mask) {
        struct entry *e = &d->at[d->index[at] - 1];
        spw_jinja_charge(r, 1);
        if (e->hash == h && spw_jinja_equal(r, e->key, key))
            return e;
    }
    return NULL;
}

struct entry *spw_jinja_dict_find(struct run *r, const struct dict *d, struct value key)
{
    return find(r, d, key, hash(r, key));
}

struct value spw_jinja_dict_text(const struct dict *d, const char *at, size_t bytes)
{
    for (size_t i = 0; d && i < d->n; i++) {
        struct value key = d->at[i].key;
        if (key.type == SPW_JINJA_STRING && key.u.string->bytes == bytes &&
            !memcmp(key.u.string->at, at, bytes))
            return d->at[i].value;
    }
    return (struct value){.type = SPW_JINJA_MISSING};
}

static void add_to_index(struct dict *d, size_t entry)
{
    size_t mask = d->index_size - 1, at = d->at[entry].hash & mask;
    while (d->index[at])
        at = (at + 1) & mask;
    d->index[at] = (uint32_t)entry + 1;
}

struct entry *spw_jinja_dict_set(struct run *r, struct dict *d, struct value key,
                                 struct value value)
{
    uint64_t h = hash(r, key);
    struct entry *entry = find(r, d, key, h);
    if (entry) {
        entry->value = value;
        return entry;
    }
    size_t room = d->room;
    d->at = spw_jinja_grow(r, d->at, d->n, &d->room, sizeof *d->at);
    d->at[d->n++] = (struct entry){key, value, h};
    if (d->room > INDEX_FROM && d->room != room) {
        d->index_size = d->room * 2;
        d->index = spw_jinja_take(r, d->index_size * sizeof *d->index);
        for (size_t i = 0; i + 1 < d->n; i++)
            add_to_index(d, i);
    }
    if (d->index)
        add_to_index(d, d->n - 1);
    spw_jinja_charge(r, 1);
    return &d->at[d->n - 1];
}

/* ---- undefined ---- */

static struct value new_undefined(struct run *r, struct undefined what)
{
    struct undefined *u = spw_jinja_take(r, sizeof *u);
    *u = what;
    return (struct value){.type = SPW_JINJA_UNDEFINED, .u.undefined = u};
}

struct value spw_jinja_undefined_of(struct run *r, struct value object, struct value name)
{
    return new_undefined(r, (struct undefined){.object = object, .name = name});
}

struct value spw_jinja_undefined_hint(struct run *r, const char *hint)
{
    return new_undefined(r, (struct undefined){.hint = hint});
}

void spw_jinja_must_be_defined(struct run *r, struct value v)
{
    const struct undefined *u = v.u.undefined;
    if (v.type != SPW_JINJA_UNDEFINED)
        return;
    if (u->hint)
        spw_jinja_fail(r, "%s", u->hint);
    size_t start = r->out_bytes;
    spw_jinja_print_repr(r, u->name);
    const struct string *text = spw_jinja_captured(r, start).u.string;
    int n = (int)spw_min_u64(text->bytes, 200);
    if (u->object.type == SPW_JINJA_MISSING)
        spw_jinja_fail(r, "%.*s is undefined", n, text->at);
    const char *type = u->object.type == SPW_JINJA_NONE ? "None" : spw_jinja_type_name(u->object);
    const char *object = u->object.type == SPW_JINJA_NONE ? "" : " object";
    if (u->name.type != SPW_JINJA_STRING)
        spw_jinja_fail(r, "%s%s has no element %.*s", type, object, n, text->at);
    spw_jinja_fail(r, "'%s%s' has no attribute %.*s", type, object, n, text->at);
}

/* ---- questions ---- */

const char *spw_jinja_type_name(struct value v)
{
    static const char *const names[] = {
        [SPW_JINJA_MISSING] = "missing", [SPW_JINJA_UNDEFINED] = "Undefined",
        [SPW_JINJA_NONE] = "NoneType",   [SPW_JINJA_BOOL] = "bool",
        [SPW_JINJA_INT] = "int",         [SPW_JINJA_FLOAT] = "float",
        [SPW_JINJA_STRING] = "str",      [SPW_JINJA_LIST] = "list",
        [SPW_JINJA_TUPLE] = "tuple",     [SPW_JINJA_GENERATOR] = "generator",
        [SPW_JINJA_DICT] = "dict",       [SPW_JINJA_NAMESPACE] = "Namespace",
        [SPW_JINJA_MACRO] = "macro",     [SPW_JINJA_METHOD] = "method",
        [SPW_JINJA_LOOP] = "loop",
    };
    return names[v.type];
}

int64_t spw_jinja_length(struct value v)
{
    if (v.type == SPW_JINJA_STRING)
        return (int64_t)v.u.string->chars;
    if (v.type == SPW_JINJA_DICT)
        return (int64_t)v.u.dict->n;
    if (v.type == SPW_JINJA_UNDEFINED)
        return 0;
    return is_list(v) ? (int64_t)v.u.list->n : -1;
}

bool spw_jinja_truth(struct value v)
{
    switch (v.type) {
    case SPW_JINJA_MISSING:
    case SPW_JINJA_NONE:
        return false;
    case SPW_JINJA_BOOL:
        return v.u.boolean;
    case SPW_JINJA_INT:
        return v.u.integer != 0;
    case SPW_JINJA_FLOAT:
        return v.u.number != 0;
    case SPW_JINJA_GENERATOR:
        return true;
    default:
        return spw_jinja_length(v) != 0;
    }
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
static int order_numbers(struct value a, struct value b)
{
    if (a.type == SPW_JINJA_FLOAT && b.type == SPW_JINJA_FLOAT) {
        double p = a.u.number, q = b.u.number;
        return p < q ? -1 : p > q ? 1 : p == q ? 0 : 2;
    }
    if (b.type == SPW_JINJA_FLOAT)
        return order_int_float(integer(a), b.u.number);
    int64_t y = integer(b);
    if (a.type == SPW_JINJA_FLOAT) {
        int turned = order_int_float(y, a.u.number);
        return turned == 2 ? 2 : -turned;
    }
    int64_t x = integer(a);
    return x < y ? -1 : x > y;
}

static int order_strings(struct run *r, const struct string *a, const struct string *b)
{
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int c = n ? memcmp(a->at, b->at, n) : 0; /* UTF-8 sorts as its characters do */
    spw_jinja_charge(r, n / 32);
    return c ? (c < 0 ? -1 : 1) : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static bool equal_items(struct run *r, const struct list *a, const struct list *b)
{
    bool same = a->n == b->n;
    spw_jinja_enter(r);
    for (size_t i = 0; same && a != b && i < a->n; i++)
        same = spw_jinja_equal(r, a->at[i], b->at[i]);
    r->depth--;
    return same;
}

static bool equal_dicts(struct run *r, const struct dict *a, const struct dict *b)
{
    bool same = a->n == b->n;
    spw_jinja_enter(r);
    for (size_t i = 0; same && a != b && i < a->n; i++) {
        const struct entry *other = find(r, b, a->at[i].key, a->at[i].hash);
        same = other && spw_jinja_equal(r, a->at[i].value, other->value);
    }
    r->depth--;
    return same;
}

bool spw_jinja_equal(struct run *r, struct value a, struct value b)
{
    spw_jinja_charge(r, 1);
    if (is_number(a) && is_number(b))
        return order_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case SPW_JINJA_MISSING:
    case SPW_JINJA_UNDEFINED:
    case SPW_JINJA_NONE:
        return true;
    case SPW_JINJA_STRING:
        return a.u.string->bytes == b.u.string->bytes && !order_strings(r, a.u.string, b.u.string);
    case SPW_JINJA_LIST:
    case SPW_JINJA_TUPLE:
        return equal_items(r, a.u.list, b.u.list);
    case SPW_JINJA_DICT:
        return equal_dicts(r, a.u.dict, b.u.dict);
    case SPW_JINJA_METHOD:
        spw_jinja_refuse(r, "a comparison with", a);
    default:
        return a.u.macro == (const void *)b.u.macro; /* the pointers of one union */
    }
}

static int order_items(struct run *r, const struct list *a, const struct list *b, const char *op)
{
    int c = a->n < b->n ? -1 : a->n > b->n;
    spw_jinja_enter(r);
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!spw_jinja_equal(r, a->at[i], b->at[i])) {
            c = spw_jinja_order(r, a->at[i], b->at[i], op);
            break;
        }
    r->depth--;
    return c;
}

int spw_jinja_order(struct run *r, struct value a, struct value b, const char *op)
{
    spw_jinja_charge(r, 1);
    if (is_number(a) && is_number(b))
        return order_numbers(a, b);
    spw_jinja_must_be_defined(r, a);
    spw_jinja_must_be_defined(r, b);
    if (a.type == SPW_JINJA_STRING && b.type == SPW_JINJA_STRING)
        return order_strings(r, a.u.string, b.u.string);
    if ((a.type == SPW_JINJA_LIST || a.type == SPW_JINJA_TUPLE) && a.type == b.type)
        return order_items(r, a.u.list, b.u.list, op);
    spw_jinja_fail(r, "cannot compute '%s' %s '%s'", spw_jinja_type_name(a), op,
                   spw_jinja_type_name(b));
}

bool spw_jinja_contains(struct run *r, struct value in, struct value what)
{
    if (in.type == SPW_JINJA_STRING) {
        if (what.type != SPW_JINJA_STRING)
            spw_jinja_fail(r, "found '%s' before `in` and a string, expected a string",
                           spw_jinja_type_name(what));
        const struct string *s = in.u.string, *part = what.u.string;
        spw_jinja_charge(r, s->bytes / 32);
        return !part->bytes || memmem(s->at, s->bytes, part->at, part->bytes);
    }
    if (in.type == SPW_JINJA_DICT)
        return spw_jinja_dict_find(r, in.u.dict, what) != NULL;
    if (!is_list(in) && in.type != SPW_JINJA_UNDEFINED)
        spw_jinja_fail(r, "found '%s' after `in`, expected a string, a list or a dict",
                       spw_jinja_type_name(in));
    const struct list *items = spw_jinja_items(r, in);
    for (size_t i = 0; i < items->n; i++)
        if (spw_jinja_equal(r, items->at[i], what))
            return true;
    return false;
}

/* ---- JSON ---- */

static struct value from_array(struct run *r, const json_t *json)
{
    struct list *l = spw_jinja_new_list(r);
    for (size_t i = 0; i < json_array_size(json); i++)
        spw_jinja_append(r, l, spw_jinja_from_json(r, json_array_get(json, i)));
    return list_value(SPW_JINJA_LIST, l);
}

static struct value from_object(struct run *r, json_t *json)
{
    struct dict *d = spw_jinja_new_dict(r);
    const char *key;
    size_t bytes;
    json_t *item;
    json_object_keylen_foreach(json, key, bytes, item)
    {
        struct value name = spw_jinja_borrow(r, key, bytes);
        spw_jinja_dict_set(r, d, name, spw_jinja_from_json(r, item));
    }
    return (struct value){.type = SPW_JINJA_DICT, .u.dict = d};
}

struct value spw_jinja_from_json(struct run *r, const json_t *json)
{
    struct value v = none_value();
    switch (json_typeof(json)) {
    case JSON_NULL:
        return v;
    case JSON_TRUE:
    case JSON_FALSE:
        return bool_value(json_is_true(json));
    case JSON_INTEGER:
        return int_value(json_integer_value(json));
    case JSON_REAL:
        return float_value(json_real_value(json));
    case JSON_STRING:
        return spw_jinja_borrow(r, json_string_value(json), json_string_length(json));
    case JSON_ARRAY:
    case JSON_OBJECT:
        spw_jinja_enter(r);
        v = json_is_array(json) ? from_array(r, json) : from_object(r, (json_t *)(uintptr_t)json);
        r->depth--;
    }
    return v;
}
