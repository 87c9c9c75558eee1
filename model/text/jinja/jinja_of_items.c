/* Filters over lists, dicts and what else can be walked, and the methods of dicts: see
 * jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

static const struct value missing = {.type = SPW_JINJA_MISSING};

/* ---- dicts ---- */

NATIVE(values)
{
    struct list *list = spw_jinja_new_list(r);
    for (size_t i = 0; i < c->self.u.dict->n; i++)
        spw_jinja_append(r, list, c->self.u.dict->at[i].value);
    return list_value(SPW_JINJA_LIST, list);
}

/* The method, and the filter. */
NATIVE(items)
{
    if (c->self.type == SPW_JINJA_UNDEFINED)
        return list_value(SPW_JINJA_GENERATOR, spw_jinja_new_list(r));
    if (c->self.type != SPW_JINJA_DICT)
        spw_jinja_fail(r, "items: found '%s', expected a dict", spw_jinja_type_name(c->self));
    return list_value(SPW_JINJA_LIST, spw_jinja_pairs(r, c->self.u.dict));
}

NATIVE(get)
{
    const struct entry *entry = spw_jinja_dict_find(r, c->self.u.dict, c->a[0]);
    return entry ? entry->value : c->a[1].type == SPW_JINJA_MISSING ? none_value() : c->a[1];
}

/* ---- order ---- */

NATIVE(length)
{
    int64_t n = spw_jinja_length(c->self);
    if (n < 0)
        spw_jinja_fail(r, "'%s' object has no length", spw_jinja_type_name(c->self));
    return int_value(n);
}

NATIVE(list)
{
    return list_value(SPW_JINJA_LIST, spw_jinja_copy_items(r, c->self));
}

enum { FIRST = 0, LAST = -1 };

NATIVE(end_of)
{
    const bool last = c->what->how == LAST;
    if (c->self.type == SPW_JINJA_STRING && c->self.u.string->bytes)
        return spw_jinja_get_item(r, c->self, int_value(c->what->how));
    if (last && c->self.type == SPW_JINJA_GENERATOR)
        spw_jinja_fail(r, "found '%s', which has no last item", spw_jinja_type_name(c->self));
    const struct list *all = spw_jinja_items(r, c->self);
    if (!all->n)
        return spw_jinja_undefined_hint(r, "there is no first or last item");
    return all->at[last ? all->n - 1 : 0];
}

NATIVE(reverse)
{
    const struct value bounds[3] = {missing, missing, int_value(-1)};
    if (c->self.type == SPW_JINJA_STRING)
        return spw_jinja_slice(r, c->self, bounds);
    /* as jinja2: a list of what can be walked once, and a pass over what has an order */
    enum type type = c->self.type == SPW_JINJA_GENERATOR ? SPW_JINJA_LIST : SPW_JINJA_GENERATOR;
    struct list *all = spw_jinja_items(r, c->self);
    all = spw_jinja_slice(r, list_value(SPW_JINJA_LIST, all), bounds).u.list;
    return list_value(type, all);
}

NATIVE(join)
{
    const struct list *all = spw_jinja_items(r, c->self);
    const bool has_between = c->a[0].type != SPW_JINJA_MISSING;
    const struct value between = has_between ? spw_jinja_to_string(r, c->a[0]) : missing;
    size_t start = r->out_bytes;
    for (size_t i = 0; i < all->n; i++) {
        struct value item = spw_jinja_get_path(r, all->at[i], c->a[1], missing);
        if (i && has_between)
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
    struct list *all = spw_jinja_copy_items(r, c->self), *keys = spw_jinja_new_list(r);
    const struct value by = c->a[2];
    if (by.type == SPW_JINJA_STRING && memchr(by.u.string->at, ',', by.u.string->bytes))
        spw_jinja_fail(r, "sort: found several attributes, which spillway does not do");
    for (size_t i = 0; i < all->n; i++) {
        /* a list of one, as jinja2: of equal keys it is not asked which is less */
        struct list *one = spw_jinja_new_list(r);
        spw_jinja_append(r, one, key_of(r, all->at[i], by, spw_jinja_truth(c->a[1])));
        spw_jinja_append(r, keys, list_value(SPW_JINJA_LIST, one));
    }
    spw_jinja_sort(r, all, keys, spw_jinja_truth(c->a[0]));
    return list_value(SPW_JINJA_LIST, all);
}

NATIVE(dictsort)
{
    struct list *keys = spw_jinja_new_list(r);
    const struct value by = c->a[1];
    const bool by_text = by.type == SPW_JINJA_STRING;
    const bool by_value = by_text && spw_jinja_is_text(by.u.string, "value");
    if (!by_value && by.type != SPW_JINJA_MISSING &&
        !(by_text && spw_jinja_is_text(by.u.string, "key")))
        spw_jinja_fail(r, "dictsort: found another `by` than 'key' and 'value'");
    spw_jinja_must_be_defined(r, c->self);
    struct list *pairs = items(r, c).u.list;
    for (size_t i = 0; i < pairs->n; i++)
        spw_jinja_append(
            r, keys,
            key_of(r, pairs->at[i].u.list->at[by_value], missing, spw_jinja_truth(c->a[0])));
    spw_jinja_sort(r, pairs, keys, spw_jinja_truth(c->a[2]));
    return list_value(SPW_JINJA_LIST, pairs);
}

enum { SMALLEST = -1, LARGEST = 1 };

NATIVE(extreme)
{
    const struct list *all = spw_jinja_items(r, c->self);
    const int how = c->what->how;
    struct value found = missing, best = missing;
    for (size_t i = 0; i < all->n; i++) {
        struct value key = key_of(r, all->at[i], c->a[1], spw_jinja_truth(c->a[0]));
        if (i && spw_jinja_order(r, key, best, how == LARGEST ? ">" : "<") != how)
            continue;
        best = key;
        found = all->at[i];
    }
    return all->n ? found : spw_jinja_undefined_hint(r, "there is no smallest or largest item");
}

NATIVE(sum)
{
    const struct list *all = spw_jinja_items(r, c->self);
    struct value total = c->a[1].type == SPW_JINJA_MISSING ? int_value(0) : c->a[1];
    if (total.type == SPW_JINJA_STRING)
        spw_jinja_fail(r, "sum: found a string to begin with, expected a number");
    for (size_t i = 0; i < all->n; i++) {
        struct value item = spw_jinja_get_path(r, all->at[i], c->a[0], missing);
        total = spw_jinja_binary(r, '+', total, item);
    }
    return total;
}

NATIVE(unique)
{
    const struct list *all = spw_jinja_items(r, c->self);
    struct list *some = spw_jinja_new_list(r);
    struct dict *seen = spw_jinja_new_dict(r);
    for (size_t i = 0; i < all->n; i++) {
        size_t before = seen->n;
        struct value key = key_of(r, all->at[i], c->a[1], spw_jinja_truth(c->a[0]));
        spw_jinja_dict_set(r, seen, key, missing);
        if (seen->n > before)
            spw_jinja_append(r, some, all->at[i]);
    }
    return list_value(SPW_JINJA_GENERATOR, some);
}

/* ---- picking ---- */

/* map: each item becomes another value; BY_ATTRIBUTE: the first argument is what is tested. */
enum { SELECT = 0, REJECT = 1, BY_ATTRIBUTE = 2, MAP = 4 };

/* What is done with each item. */
struct pick {
    int how;
    struct value attribute;    /* MISSING: the item itself */
    struct value otherwise;    /* map's default, or MISSING */
    const struct string *call; /* a filter (map) or test; NULL: none */
    struct args args;
};

static void apply(struct run *r, const struct pick *pick, struct value item, struct list *to)
{
    const bool map = pick->how & MAP;
    struct value v = spw_jinja_get_path(r, item, pick->attribute, pick->otherwise);
    if (pick->call)
        v = spw_jinja_call_named(r, map ? SPW_JINJA_FILTER : SPW_JINJA_TEST, pick->call, v,
                                 &pick->args);
    if (map)
        spw_jinja_append(r, to, v);
    else if (spw_jinja_truth(v) != (pick->how & REJECT))
        spw_jinja_append(r, to, item);
}

/* map without a filter: attribute and default, given by name. */
static void read_map(struct run *r, const struct dict *named, struct pick *pick)
{
    pick->attribute = spw_jinja_dict_text(named, "attribute", 9);
    pick->otherwise = spw_jinja_dict_text(named, "default", 7);
    if (pick->attribute.type == SPW_JINJA_MISSING)
        spw_jinja_fail(r, "map: found no filter and no attribute, expected one");
    if (named->n > (pick->otherwise.type == SPW_JINJA_MISSING ? 1u : 2u))
        spw_jinja_fail(r, "map: found an argument that is not `attribute` or `default`");
}

/* After the attribute comes the name of what is called, and its arguments. */
NATIVE(pick_items)
{
    const struct list *args = c->a[0].u.list, *all;
    struct list *to = spw_jinja_new_list(r);
    struct pick pick = {.how = c->what->how};
    const size_t used = (pick.how & BY_ATTRIBUTE) != 0;
    if (args->n < used)
        spw_jinja_fail(r, "selectattr and rejectattr: the attribute's name is missing");
    if (used)
        pick.attribute = args->at[0];
    if (pick.how == MAP && !args->n)
        read_map(r, c->a[1].u.dict, &pick);
    if (!spw_jinja_truth(c->self)) /* as jinja2: nothing, even where it cannot be walked */
        return list_value(SPW_JINJA_GENERATOR, to);
    if (args->n > used) {
        pick.call = spw_jinja_want_string(r, args->at[used], "the name of a filter or test");
        pick.args = (struct args){args->at + used + 1, args->n - used - 1, c->a[1].u.dict};
    }
    spw_jinja_enter(r);
    all = spw_jinja_items(r, c->self);
    for (size_t i = 0; i < all->n; i++)
        apply(r, &pick, all->at[i], to);
    r->depth--;
    return list_value(SPW_JINJA_GENERATOR, to);
}

/* clang-format off */
enum { F = SPW_JINJA_FILTER, D = SPW_JINJA_OF_DICT };

const struct callable spw_jinja_of_items[] = {
    /* name, parameters, what it gives; who uses it */
    {F, "count", "", .run = length},
    {F, "dictsort", "case_sensitive=,by=,reverse=", .run = dictsort},/* sorted pairs; Gemma 4 */
    {F, "first", "", end_of, FIRST},                /* first item; Unsloth's Qwen3 */
    {D, "get", "key,default=", .run = get},         /* Kimi, GigaChat, Gemma 4 */
    {F | D, "items", "", .run = items}, /* pairs of a dict; Qwen3-Coder, Llama 3.1, GLM, Mistral */
    {F, "join", "d=,attribute=", .run = join},      /* one text of items; Llama 3, Apertus */
    {D, "keys", "", .run = list},                   /* Qwen3-Coder's first */
    {F, "last", "", end_of, LAST},                  /* last item; Qwen 3.6, Alpaca */
    {F, "length", "", .run = length},               /* how many; Qwen3, GLM, Mistral */
    {F, "list", "", .run = list},                   /* a list of items; Mistral, Gemma 4 */
    {F, "map", "*", pick_items, MAP}, /* an attribute or a filter of each; DeepSeek R1 */
    {F, "max", "case_sensitive=,attribute=", extreme, LARGEST},
    {F, "min", "case_sensitive=,attribute=", extreme, SMALLEST},
    {F, "reject", "*", pick_items, REJECT},         /* items that fail a test; Llama 3.1 */
    {F, "rejectattr", "*", pick_items, REJECT | BY_ATTRIBUTE}, /* by attribute; Mistral, Functionary */
    {F, "reverse", "", .run = reverse},             /* from last to first */
    {F, "select", "*", pick_items, SELECT},         /* items that pass a test */
    {F, "selectattr", "*", pick_items, BY_ATTRIBUTE},/* the same by attribute; Mistral, Apriel */
    {F, "sort", "reverse=,case_sensitive=,attribute=", .run = sort},/* Ministral 3 */
    {F, "sum", "attribute=,start=", .run = sum},
    {F, "unique", "case_sensitive=,attribute=", .run = unique},/* each once */
    {D, "values", "", .run = values},
    {0},
};
/* clang-format on */
