/* Filters over lists, dicts and what else can be walked, and the methods of dicts: see
 * jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define NATIVE(name)                                                                               \
    static struct value name(struct run *r, struct value self, const struct value *a)

static const struct value missing = {.type = SPW_JINJA_MISSING};

/* ---- dicts ---- */

/* Its 'k'eys, 'v'alues or 'i'tems. */
static struct value parts(struct run *r, const struct dict *d, char what)
{
    struct list *list = spw_jinja_new_list(r);
    for (size_t i = 0; i < d->n; i++)
        spw_jinja_append(r, list,
                         what == 'k'   ? d->at[i].key
                         : what == 'v' ? d->at[i].value
                                       : spw_jinja_pair(r, &d->at[i]));
    return list_value(SPW_JINJA_LIST, list);
}

NATIVE(keys)
{
    (void)a;
    return parts(r, self.u.dict, 'k');
}

NATIVE(values)
{
    (void)a;
    return parts(r, self.u.dict, 'v');
}

/* The method, and the filter. */
NATIVE(items)
{
    (void)a;
    if (self.type == SPW_JINJA_UNDEFINED)
        return list_value(SPW_JINJA_GENERATOR, spw_jinja_new_list(r));
    if (self.type != SPW_JINJA_DICT)
        spw_jinja_fail(r, "items: found '%s', expected a dict", spw_jinja_type_name(self));
    return parts(r, self.u.dict, 'i');
}

NATIVE(get)
{
    const struct entry *entry = spw_jinja_dict_find(r, self.u.dict, a[0]);
    return entry ? entry->value : a[1].type == SPW_JINJA_MISSING ? none_value() : a[1];
}

/* ---- order ---- */

NATIVE(length)
{
    int64_t n = spw_jinja_length(self);
    (void)a;
    if (n < 0)
        spw_jinja_fail(r, "'%s' object has no length", spw_jinja_type_name(self));
    return int_value(n);
}

NATIVE(list)
{
    (void)a;
    return list_value(SPW_JINJA_LIST, spw_jinja_copy_items(r, self));
}

/* The first item (0) or the last (-1). */
static struct value end_of(struct run *r, struct value v, int64_t at, const char *none)
{
    if (v.type == SPW_JINJA_STRING && v.u.string->bytes)
        return spw_jinja_get_item(r, v, int_value(at));
    const struct list *all = spw_jinja_items(r, v);
    return all->n ? all->at[at ? all->n - 1 : 0] : spw_jinja_undefined_hint(r, none);
}

NATIVE(first)
{
    (void)a;
    return end_of(r, self, 0, "there is no first item");
}

NATIVE(last)
{
    (void)a;
    if (self.type == SPW_JINJA_GENERATOR)
        spw_jinja_fail(r, "found '%s', which has no last item", spw_jinja_type_name(self));
    return end_of(r, self, -1, "there is no last item");
}

NATIVE(reverse)
{
    const struct value bounds[3] = {missing, missing, int_value(-1)};
    (void)a;
    if (self.type == SPW_JINJA_STRING)
        return spw_jinja_slice(r, self, bounds);
    /* as jinja2: a list of what can be walked once, and a pass over what has an order */
    enum type type = self.type == SPW_JINJA_GENERATOR ? SPW_JINJA_LIST : SPW_JINJA_GENERATOR;
    struct list *all = spw_jinja_items(r, self);
    all = spw_jinja_slice(r, list_value(SPW_JINJA_LIST, all), bounds).u.list;
    return list_value(type, all);
}

NATIVE(join)
{
    const struct list *all = spw_jinja_items(r, self);
    struct value between = a[0];
    if (between.type != SPW_JINJA_MISSING)
        between = spw_jinja_to_string(r, between);
    size_t start = r->out_bytes;
    for (size_t i = 0; i < all->n; i++) {
        struct value item = spw_jinja_get_path(r, all->at[i], a[1], missing);
        if (i && between.type != SPW_JINJA_MISSING)
            spw_jinja_print_value(r, between);
        spw_jinja_print_value(r, item);
    }
    return spw_jinja_captured(r, start);
}

/* ---- sorting ---- */

/* What is compared: an attribute (None: the item), in small letters. */
static struct value key_of(struct run *r, struct value item, struct value attribute,
                           bool case_sensitive)
{
    struct value v = spw_jinja_get_path(r, item, attribute, missing);
    size_t start = r->out_bytes;
    if (case_sensitive || v.type != SPW_JINJA_STRING)
        return v;
    spw_jinja_print_case(r, v.u.string->at, v.u.string->bytes, SPW_JINJA_LOWER);
    return spw_jinja_captured(r, start);
}

NATIVE(sort)
{
    struct list *all = spw_jinja_copy_items(r, self), *keys = spw_jinja_new_list(r);
    bool sensitive = spw_jinja_truth(a[1]);
    if (a[2].type == SPW_JINJA_STRING && memchr(a[2].u.string->at, ',', a[2].u.string->bytes))
        spw_jinja_fail(r, "sort: found several attributes, which spillway does not do");
    for (size_t i = 0; i < all->n; i++) {
        /* a list of one, as jinja2: of equal keys it is not asked which is less */
        struct list *one = spw_jinja_new_list(r);
        spw_jinja_append(r, one, key_of(r, all->at[i], a[2], sensitive));
        spw_jinja_append(r, keys, list_value(SPW_JINJA_LIST, one));
    }
    spw_jinja_sort(r, all, keys, spw_jinja_truth(a[0]));
    return list_value(SPW_JINJA_LIST, all);
}

NATIVE(dictsort)
{
    struct list *keys = spw_jinja_new_list(r);
    bool by_value = a[1].type == SPW_JINJA_STRING && spw_jinja_is_text(a[1].u.string, "value");
    if (!by_value && a[1].type != SPW_JINJA_MISSING &&
        !(a[1].type == SPW_JINJA_STRING && spw_jinja_is_text(a[1].u.string, "key")))
        spw_jinja_fail(r, "dictsort: found another `by` than 'key' and 'value'");
    spw_jinja_must_be_defined(r, self);
    struct value pairs = items(r, self, a);
    for (size_t i = 0; i < self.u.dict->n; i++) {
        const struct entry *e = &self.u.dict->at[i];
        spw_jinja_append(r, keys,
                         key_of(r, by_value ? e->value : e->key, missing, spw_jinja_truth(a[0])));
    }
    spw_jinja_sort(r, pairs.u.list, keys, spw_jinja_truth(a[2]));
    return pairs;
}

static struct value best(struct run *r, struct value self, const struct value *a, bool largest)
{
    const struct list *all = spw_jinja_items(r, self);
    struct value found = missing, best_key = missing;
    for (size_t i = 0; i < all->n; i++) {
        struct value key = key_of(r, all->at[i], a[1], spw_jinja_truth(a[0]));
        if (i && spw_jinja_order(r, key, best_key, largest ? ">" : "<") != (largest ? 1 : -1))
            continue;
        best_key = key;
        found = all->at[i];
    }
    return all->n ? found : spw_jinja_undefined_hint(r, "there is no smallest or largest item");
}

NATIVE(min)
{
    return best(r, self, a, false);
}

NATIVE(max)
{
    return best(r, self, a, true);
}

NATIVE(sum)
{
    const struct list *all = spw_jinja_items(r, self);
    struct value total = a[1].type == SPW_JINJA_MISSING ? int_value(0) : a[1];
    if (total.type == SPW_JINJA_STRING)
        spw_jinja_fail(r, "sum: found a string to begin with, expected a number");
    for (size_t i = 0; i < all->n; i++)
        total = spw_jinja_binary(r, '+', total, spw_jinja_get_path(r, all->at[i], a[0], missing));
    return total;
}

NATIVE(unique)
{
    const struct list *all = spw_jinja_items(r, self);
    struct list *some = spw_jinja_new_list(r);
    struct dict *seen = spw_jinja_new_dict(r);
    for (size_t i = 0; i < all->n; i++) {
        size_t before = seen->n;
        struct value key = key_of(r, all->at[i], a[1], spw_jinja_truth(a[0]));
        spw_jinja_dict_set(r, seen, key, missing);
        if (seen->n > before)
            spw_jinja_append(r, some, all->at[i]);
    }
    return list_value(SPW_JINJA_GENERATOR, some);
}

/* ---- picking ---- */

/* What map, select and the like do with each item. */
struct pick {
    struct value attribute;    /* MISSING: the item itself */
    struct value otherwise;    /* map's default, or MISSING */
    const struct string *call; /* a filter (map) or test; NULL: none */
    struct args args;
    bool map, reject;
};

static void apply(struct run *r, const struct pick *pick, struct value item, struct list *to)
{
    unsigned as = pick->map ? SPW_JINJA_FILTER : SPW_JINJA_TEST;
    struct value v = spw_jinja_get_path(r, item, pick->attribute, pick->otherwise);
    if (pick->call)
        v = spw_jinja_call_named(r, as, pick->call, v, &pick->args);
    if (pick->map)
        spw_jinja_append(r, to, v);
    else if (spw_jinja_truth(v) != pick->reject)
        spw_jinja_append(r, to, item);
}

/* `used` arguments were the filter's own; what follows is the name of what is called, and its. */
static struct value picked(struct run *r, struct value self, struct pick what,
                           const struct value *a, size_t used)
{
    const struct list *args = a[0].u.list, *all;
    struct list *to = spw_jinja_new_list(r);
    if (!spw_jinja_truth(self)) /* as jinja2: nothing, even where what it is cannot be walked */
        return list_value(SPW_JINJA_GENERATOR, to);
    if (args->n > used) {
        what.call = spw_jinja_want_string(r, args->at[used], "the name of a filter or test");
        what.args = (struct args){args->at + used + 1, args->n - used - 1, a[1].u.dict};
    }
    spw_jinja_enter(r);
    all = spw_jinja_items(r, self);
    for (size_t i = 0; i < all->n; i++)
        apply(r, &what, all->at[i], to);
    r->depth--;
    return list_value(SPW_JINJA_GENERATOR, to);
}

NATIVE(map)
{
    struct pick what = {.map = true};
    if (a[0].u.list->n)
        return picked(r, self, what, a, 0);
    what.attribute = spw_jinja_dict_text(a[1].u.dict, "attribute", 9);
    what.otherwise = spw_jinja_dict_text(a[1].u.dict, "default", 7);
    if (what.attribute.type == SPW_JINJA_MISSING)
        spw_jinja_fail(r, "map: found no filter and no attribute, expected one");
    if (a[1].u.dict->n > (what.otherwise.type == SPW_JINJA_MISSING ? 1u : 2u))
        spw_jinja_fail(r, "map: found an argument that is not `attribute` or `default`");
    return picked(r, self, what, a, 0);
}

NATIVE(select_items)
{
    return picked(r, self, (struct pick){0}, a, 0);
}

NATIVE(reject)
{
    return picked(r, self, (struct pick){.reject = true}, a, 0);
}

static struct value by_attr(struct run *r, struct value self, const struct value *a, bool reject)
{
    if (!a[0].u.list->n)
        spw_jinja_fail(r, "selectattr and rejectattr: the attribute's name is missing");
    return picked(r, self, (struct pick){.reject = reject, .attribute = a[0].u.list->at[0]}, a, 1);
}

NATIVE(selectattr)
{
    return by_attr(r, self, a, false);
}

NATIVE(rejectattr)
{
    return by_attr(r, self, a, true);
}

/* clang-format off */
enum { F = SPW_JINJA_FILTER, D = SPW_JINJA_OF_DICT };

const struct callable spw_jinja_of_items[] = {
    /* name, parameters               what it gives; who uses it */
    {F, "count", "", .run = length},
    {F, "dictsort", "case_sensitive=,by=,reverse=", .run = dictsort}, /* sorted pairs; Gemma 4 */
    {F, "first", "", .run = first},                 /* first item; Unsloth's Qwen3 */
    {D, "get", "key,default=", .run = get},         /* Kimi, GigaChat, Gemma 4 */
    {F | D, "items", "", .run = items}, /* pairs of a dict; Qwen3-Coder, Llama 3.1, GLM, Mistral */
    {F, "join", "d=,attribute=", .run = join},      /* one text of items; Llama 3, Apertus */
    {D, "keys", "", .run = keys},                   /* Qwen3-Coder's first */
    {F, "last", "", .run = last},                   /* last item; Qwen 3.6, Alpaca */
    {F, "length", "", .run = length},               /* how many; Qwen3, GLM, Mistral */
    {F, "list", "", .run = list},                   /* a list of items; Mistral, Gemma 4 */
    {F, "map", "*", .run = map}, /* an attribute or a filter of each; DeepSeek R1 */
    {F, "max", "case_sensitive=,attribute=", .run = max},
    {F, "min", "case_sensitive=,attribute=", .run = min},
    {F, "reject", "*", .run = reject},              /* items that fail a test; Llama 3.1 */
    {F, "rejectattr", "*", .run = rejectattr}, /* the same by attribute; Mistral, Functionary */
    {F, "reverse", "", .run = reverse},             /* from last to first */
    {F, "select", "*", .run = select_items},        /* items that pass a test */
    {F, "selectattr", "*", .run = selectattr},      /* the same by attribute; Mistral, Apriel */
    {F, "sort", "reverse=,case_sensitive=,attribute=", .run = sort}, /* Ministral 3 */
    {F, "sum", "attribute=,start=", .run = sum},
    {F, "unique", "case_sensitive=,attribute=", .run = unique}, /* each once */
    {D, "values", "", .run = values},
    {0},
};
/* clang-format on */
