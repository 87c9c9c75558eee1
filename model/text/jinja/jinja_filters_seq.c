/* Filters over lists, dicts and what else can be walked: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define FILTER(name)                                                                               \
    int spw_jj_f_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

FILTER(length)
{
    int64_t n;
    (void)a;
    SPW_TRY(spw_jj_length(r, self, &n));
    *out = spw_jj_int(n);
    return 0;
}

FILTER(list)
{
    (void)a;
    return spw_jj_to_list(r, self, SPW_JJ_LIST, out);
}

/* A pass over a list that was made for it. */
static int pass(struct spw_jj_run *r, struct spw_jj_value list, struct spw_jj_value *out)
{
    struct spw_jj_iterator *it;
    SPW_TRY(spw_jj_new_iterator(r, list, &it));
    *out = (struct spw_jj_value){.type = SPW_JJ_ITERATOR, .u.iterator = it};
    return 0;
}

FILTER(items)
{
    struct spw_jj_value list;
    if (self.type == SPW_JJ_UNDEFINED)
        return pass(r, self, out);
    if (self.type != SPW_JJ_DICT)
        return spw_jj_fail(r, "items: found '%s', expected a dict", spw_jj_type_name(self));
    SPW_TRY(spw_jj_m_items(r, self, a, &list));
    return pass(r, list, out);
}

FILTER(first)
{
    struct spw_jj_iterator *it;
    bool more;
    (void)a;
    SPW_TRY(spw_jj_iterate(r, self, &it));
    SPW_TRY(spw_jj_next(r, it, out, &more));
    return more ? 0 : spw_jj_undefined_hint(r, "there is no first item", out);
}

/* The items as a list, for what has an order that can be turned round. */
static int reversible(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value *out)
{
    *out = v;
    if (v.type == SPW_JJ_LIST || v.type == SPW_JJ_TUPLE || v.type == SPW_JJ_VIEW)
        return 0;
    if (v.type == SPW_JJ_DICT || v.type == SPW_JJ_RANGE || v.type == SPW_JJ_UNDEFINED)
        return spw_jj_to_list(r, v, SPW_JJ_LIST, out);
    return spw_jj_fail(r, "found '%s', which has no last item", spw_jj_type_name(v));
}

FILTER(last)
{
    const struct spw_jj_value bounds[3] = {spw_jj_int(-1), spw_jj_none(), spw_jj_none()};
    (void)a;
    if (self.type == SPW_JJ_STRING && self.u.string->bytes)
        return spw_jj_slice(r, self, bounds, out);
    if (self.type != SPW_JJ_STRING) {
        SPW_TRY(reversible(r, self, &self));
        if (self.u.list->n) {
            *out = self.u.list->at[self.u.list->n - 1];
            return 0;
        }
    }
    return spw_jj_undefined_hint(r, "there is no last item", out);
}

FILTER(reverse)
{
    const struct spw_jj_value bounds[3] = {spw_jj_none(), spw_jj_none(), spw_jj_int(-1)};
    struct spw_jj_value list;
    (void)a;
    if (self.type == SPW_JJ_STRING)
        return spw_jj_slice(r, self, bounds, out);
    if (self.type == SPW_JJ_ITERATOR) { /* as jinja2: a list, not a pass */
        SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &list));
        return spw_jj_slice(r, list, bounds, out);
    }
    SPW_TRY(reversible(r, self, &list));
    SPW_TRY(spw_jj_slice(r, list, bounds, &list));
    return pass(r, list, out);
}

FILTER(join)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value item, between;
    bool more, any = false;
    if (a[0].type == SPW_JJ_MISSING)
        SPW_TRY(spw_jj_borrow(r, "", 0, &between));
    else
        SPW_TRY(spw_jj_to_string(r, a[0], &between));
    SPW_TRY(spw_jj_iterate(r, self, &it));
    size_t start = r->out.bytes;
    for (;; any = true) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(
            spw_jj_get_path(r, item, a[1], (struct spw_jj_value){.type = SPW_JJ_MISSING}, &item));
        if (any)
            SPW_TRY(spw_jj_print_value(r, between));
        SPW_TRY(spw_jj_print_value(r, item));
    }
    return spw_jj_captured(r, start, out);
}

/* ---- sorting ---- */

static int folded(struct spw_jj_run *r, struct spw_jj_value v, bool case_sensitive,
                  struct spw_jj_value *out)
{
    size_t start = r->out.bytes;
    *out = v;
    if (case_sensitive || v.type != SPW_JJ_STRING)
        return 0;
    SPW_TRY(spw_jj_print_case(r, v.u.string->at, v.u.string->bytes, SPW_JJ_LOWER));
    return spw_jj_captured(r, start, out);
}

static int key_of(struct spw_jj_run *r, struct spw_jj_value item, struct spw_jj_value attribute,
                  bool case_sensitive, struct spw_jj_value *out)
{
    SPW_TRY(
        spw_jj_get_path(r, item, attribute, (struct spw_jj_value){.type = SPW_JJ_MISSING}, out));
    return folded(r, *out, case_sensitive, out);
}

FILTER(sort)
{
    struct spw_jj_value list, keys, key, holder;
    bool reverse = false, sensitive = false;
    if (a[2].type == SPW_JJ_STRING && memchr(a[2].u.string->at, ',', a[2].u.string->bytes))
        return spw_jj_fail(r, "sort: found several attributes, which spillway does not do");
    SPW_TRY(spw_jj_truth(r, a[0], &reverse));
    SPW_TRY(spw_jj_truth(r, a[1], &sensitive));
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    for (size_t i = 0; i < list.u.list->n; i++) {
        /* a list of one, as jinja2: of equal keys it is not asked which is less */
        SPW_TRY(key_of(r, list.u.list->at[i], a[2], sensitive, &key));
        SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &holder));
        SPW_TRY(spw_jj_append(r, holder.u.list, key));
        SPW_TRY(spw_jj_append(r, keys.u.list, holder));
    }
    SPW_TRY(spw_jj_sort(r, list.u.list, keys.u.list, reverse));
    *out = list;
    return 0;
}

FILTER(dictsort)
{
    struct spw_jj_value list, keys, pair, key;
    bool sensitive = false, reverse = false;
    bool by_value = spw_jj_is_text(a[1], "value");
    SPW_TRY(spw_jj_truth(r, a[0], &sensitive));
    SPW_TRY(spw_jj_truth(r, a[2], &reverse));
    if (!by_value && a[1].type != SPW_JJ_MISSING && !spw_jj_is_text(a[1], "key"))
        return spw_jj_fail(r, "dictsort: found another `by` than 'key' and 'value'");
    if (self.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, self.u.undefined);
    if (self.type != SPW_JJ_DICT)
        return spw_jj_fail(r, "dictsort: found '%s', expected a dict", spw_jj_type_name(self));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    for (size_t i = 0; i < self.u.dict->n; i++) {
        const struct spw_jj_entry *e = &self.u.dict->at[i];
        SPW_TRY(spw_jj_pair(r, e->key, e->value, &pair));
        SPW_TRY(folded(r, by_value ? e->value : e->key, sensitive, &key));
        SPW_TRY(spw_jj_append(r, list.u.list, pair));
        SPW_TRY(spw_jj_append(r, keys.u.list, key));
    }
    SPW_TRY(spw_jj_sort(r, list.u.list, keys.u.list, reverse));
    *out = list;
    return 0;
}

static int best(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                bool largest, struct spw_jj_value *out)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value item, key, best_key = {.type = SPW_JJ_MISSING};
    bool sensitive = false, more;
    int c = 0;
    SPW_TRY(spw_jj_truth(r, a[0], &sensitive));
    SPW_TRY(spw_jj_iterate(r, self, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(key_of(r, item, a[1], sensitive, &key));
        if (best_key.type != SPW_JJ_MISSING)
            SPW_TRY(spw_jj_order(r, key, best_key, largest ? ">" : "<", &c));
        if (best_key.type == SPW_JJ_MISSING || c == (largest ? 1 : -1)) {
            best_key = key;
            *out = item;
        }
    }
    if (best_key.type == SPW_JJ_MISSING)
        return spw_jj_undefined_hint(r, "there is no smallest or largest item", out);
    return 0;
}

FILTER(min)
{
    return best(r, self, a, false, out);
}

FILTER(max)
{
    return best(r, self, a, true, out);
}

FILTER(sum)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value item, total = a[1].type == SPW_JJ_MISSING ? spw_jj_int(0) : a[1];
    bool more;
    if (total.type == SPW_JJ_STRING)
        return spw_jj_fail(r, "sum: found a string to begin with, expected a number");
    SPW_TRY(spw_jj_iterate(r, self, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(
            spw_jj_get_path(r, item, a[0], (struct spw_jj_value){.type = SPW_JJ_MISSING}, &item));
        SPW_TRY(spw_jj_binary(r, '+', total, item, &total));
    }
    *out = total;
    return 0;
}

FILTER(unique)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value item, key, seen, list;
    struct spw_jj_entry *entry;
    bool sensitive = false, more;
    SPW_TRY(spw_jj_truth(r, a[0], &sensitive));
    SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, &seen));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_iterate(r, self, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(key_of(r, item, a[1], sensitive, &key));
        SPW_TRY(spw_jj_dict_find(r, seen.u.dict, key, &entry));
        if (entry)
            continue;
        SPW_TRY(spw_jj_dict_set(r, seen.u.dict, key, spw_jj_none()));
        SPW_TRY(spw_jj_append(r, list.u.list, item));
    }
    return pass(r, list, out);
}

/* ---- picking ---- */

/* What map, select and the like do with each item. */
struct pick {
    struct spw_jj_value attribute;    /* MISSING: the item itself */
    struct spw_jj_value otherwise;    /* map's default, or MISSING */
    const struct spw_jj_string *call; /* a filter (map) or test; NULL: none */
    struct spw_jj_args args;
    bool map, reject;
};

static int apply(struct spw_jj_run *r, const struct pick *pick, struct spw_jj_value *item,
                 bool *taken)
{
    struct spw_jj_value looked_at = *item;
    if (pick->attribute.type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_get_path(r, *item, pick->attribute, pick->otherwise, &looked_at));
    if (pick->map) {
        *taken = true;
        *item = looked_at;
        return pick->call ? spw_jj_call_filter(r, pick->call, looked_at, &pick->args, item) : 0;
    }
    if (pick->call)
        SPW_TRY(spw_jj_call_test(r, pick->call, looked_at, &pick->args, taken));
    else
        SPW_TRY(spw_jj_truth(r, looked_at, taken));
    *taken ^= pick->reject;
    return 0;
}

/* `used` arguments were the filter's own; what follows is the name of what is called, and its. */
static int picked(struct spw_jj_run *r, struct spw_jj_value self, struct pick what,
                  const struct spw_jj_value *a, size_t used, struct spw_jj_value *out)
{
    const struct spw_jj_list *args = a[0].u.list;
    struct spw_jj_iterator *it;
    struct spw_jj_value list, item;
    bool more, taken;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_truth(r, self, &more));
    if (!more) /* as jinja2: nothing, even where what it is cannot be walked */
        return pass(r, list, out);
    if (args->n > used) {
        SPW_TRY(spw_jj_want_string(r, args->at[used], "the name of a filter or test", &what.call));
        what.args = (struct spw_jj_args){args->at + used + 1, args->n - used - 1, a[1].u.dict};
    }
    SPW_TRY(spw_jj_enter(r));
    SPW_TRY(spw_jj_iterate(r, self, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(apply(r, &what, &item, &taken));
        if (taken)
            SPW_TRY(spw_jj_append(r, list.u.list, item));
    }
    r->depth--;
    return pass(r, list, out);
}

FILTER(map)
{
    const struct spw_jj_value *attribute = spw_jj_dict_text(a[1].u.dict, "attribute", 9);
    const struct spw_jj_value *otherwise = spw_jj_dict_text(a[1].u.dict, "default", 7);
    struct pick what = {.map = true};
    if (a[0].u.list->n)
        return picked(r, self, what, a, 0, out);
    if (!attribute)
        return spw_jj_fail(r, "map: found no filter and no attribute, expected one");
    if (a[1].u.dict->n > (otherwise ? 2u : 1u))
        return spw_jj_fail(r, "map: found an argument that is not `attribute` or `default`");
    what.attribute = *attribute;
    if (otherwise)
        what.otherwise = *otherwise;
    return picked(r, self, what, a, 0, out);
}

FILTER(select)
{
    return picked(r, self, (struct pick){0}, a, 0, out);
}

FILTER(reject)
{
    return picked(r, self, (struct pick){.reject = true}, a, 0, out);
}

static int picked_by_attr(struct spw_jj_run *r, struct spw_jj_value self,
                          const struct spw_jj_value *a, bool reject, struct spw_jj_value *out)
{
    struct pick what = {.reject = reject};
    if (!a[0].u.list->n)
        return spw_jj_fail(r, "selectattr and rejectattr: the attribute's name is missing");
    what.attribute = a[0].u.list->at[0];
    return picked(r, self, what, a, 1, out);
}

FILTER(selectattr)
{
    return picked_by_attr(r, self, a, false, out);
}

FILTER(rejectattr)
{
    return picked_by_attr(r, self, a, true, out);
}
