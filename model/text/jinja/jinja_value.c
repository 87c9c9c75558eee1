/* Values of Jinja templates, with Python's rules of truth, equality and order: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <math.h>

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

void spw_jinja_append_all(struct run *r, struct list *l, const struct list *more)
{
    for (size_t i = 0; i < more->n; i++)
        spw_jinja_append(r, l, more->at[i]);
}

struct list *spw_jinja_pairs(struct run *r, const struct dict *d)
{
    struct list *pairs = spw_jinja_new_list(r);
    for (size_t i = 0; i < d->n; i++) {
        struct list *pair = spw_jinja_new_list(r);
        spw_jinja_append(r, pair, d->at[i].key);
        spw_jinja_append(r, pair, d->at[i].value);
        spw_jinja_append(r, pairs, list_value(SPW_JINJA_TUPLE, pair));
    }
    return pairs;
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
    struct list *l = spw_jinja_new_list(r);
    spw_jinja_append_all(r, l, spw_jinja_items(r, over));
    return l;
}

void spw_jinja_sort(struct run *r, struct list *items, const struct list *keys, bool reverse)
{
    uint32_t *order = spw_jinja_take(r, items->n * sizeof *order);
    struct value *sorted = spw_jinja_take(r, items->n * sizeof *sorted);
    for (uint32_t i = 0; i < items->n; i++) {
        size_t low = 0, high = i;
        while (low < high) {
            /* `<` of the later and the earlier, as Python asks: of equal ones the earlier is first
             */
            size_t middle = (low + high) / 2;
            struct value x = keys->at[i], y = keys->at[order[middle]];
            if (spw_jinja_order(r, reverse ? y : x, reverse ? x : y, "<") == -1)
                high = middle;
            else
                low = middle + 1;
        }
        spw_jinja_charge(r, (i - low) / 8);
        memmove(order + low + 1, order + low, (i - low) * sizeof *order);
        order[low] = i;
    }
    for (size_t i = 0; i < items->n; i++)
        sorted[i] = items->at[order[i]];
    items->at = sorted;
    items->room = items->n;
}

/* ---- dicts ---- */

struct dict *spw_jinja_new_dict(struct run *r)
{
    return spw_jinja_take(r, sizeof(struct dict));
}

/* A key has a hash in Python. */
static void check_key(struct run *r, struct value key)
{
    if (key.type == SPW_JINJA_METHOD)
        spw_jinja_refuse(r, "a key that is", key);
    if (key.type == SPW_JINJA_LIST || key.type == SPW_JINJA_DICT)
        spw_jinja_fail(r, "found a key that is a '%s', expected a string or a number",
                       spw_jinja_type_name(key));
    if (key.type != SPW_JINJA_TUPLE)
        return;
    spw_jinja_enter(r);
    for (size_t i = 0; i < key.u.list->n; i++)
        check_key(r, key.u.list->at[i]);
    r->depth--;
}

/* Dicts of templates are short. A long one costs what it costs: the work is counted. */
struct entry *spw_jinja_dict_find(struct run *r, const struct dict *d, struct value key)
{
    check_key(r, key);
    for (size_t i = 0; i < d->n; i++)
        if (spw_jinja_equal(r, d->at[i].key, key))
            return &d->at[i];
    return NULL;
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

static struct entry *add(struct run *r, struct dict *d, struct value key, struct value value)
{
    d->at = spw_jinja_grow(r, d->at, d->n, &d->room, sizeof *d->at);
    d->at[d->n] = (struct entry){key, value};
    spw_jinja_charge(r, 1);
    return &d->at[d->n++];
}

struct entry *spw_jinja_dict_set(struct run *r, struct dict *d, struct value key,
                                 struct value value)
{
    struct entry *entry = spw_jinja_dict_find(r, d, key);
    if (!entry)
        return add(r, d, key, value);
    entry->value = value;
    return entry;
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

/* An integer and a float: both are exact in a long double, of 64 bits or more. */
static long double exact(struct value v)
{
    return v.type == SPW_JINJA_FLOAT ? (long double)v.u.number : (long double)integer(v);
}

/* -1, 0, 1, or 2 where one is not a number. */
static int order_numbers(struct value a, struct value b)
{
    const long double x = exact(a), y = exact(b);
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
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
        const struct entry *other = spw_jinja_dict_find(r, b, a->at[i].key);
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

/* The limits grow with what the template is given to work on. */
static void allow(struct run *r, size_t bytes)
{
    r->arena.limit += bytes * SPW_JINJA_MEMORY_FACTOR;
    r->out_limit += bytes * SPW_JINJA_OUTPUT_FACTOR;
    r->work_left += (int64_t)bytes * SPW_JINJA_WORK_FACTOR;
}

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
        allow(r, 32 + bytes);
        add(r, d, name, spw_jinja_from_json(r, item)); /* it comes once */
    }
    return (struct value){.type = SPW_JINJA_DICT, .u.dict = d};
}

struct value spw_jinja_from_json(struct run *r, const json_t *json)
{
    struct value v = none_value();
    allow(r, 32 + json_string_length(json));
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
