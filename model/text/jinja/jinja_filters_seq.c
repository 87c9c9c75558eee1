/* Filters over lists, dicts and what else can be walked: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#define FILTER(name)                                                                               \
    static int f_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
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

static int as_iterator(struct spw_jj_run *r, struct spw_jj_value over, const char *type_name,
                       struct spw_jj_iterator **it, struct spw_jj_value *out)
{
    SPW_TRY(spw_jj_new_iterator(r, over, type_name, it));
    *out = (struct spw_jj_value){.type = SPW_JJ_ITERATOR, .u.iterator = *it};
    return 0;
}

/* A generator: nothing is done before its first item is asked for. */
static int lazy(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                int (*begin)(struct spw_jj_run *, struct spw_jj_value, const struct spw_jj_value *,
                             struct spw_jj_value *),
                struct spw_jj_value *out)
{
    struct spw_jj_iterator *it;
    struct spw_jj_value *args = spw_jj_take(&r->arena, (1 + SPW_JJ_MAX_PARAMS) * sizeof *args);
    if (!args)
        return spw_jj_no_memory(r);
    args[0] = self;
    memcpy(args + 1, a, SPW_JJ_MAX_PARAMS * sizeof *args);
    SPW_TRY(as_iterator(r, self, "generator", &it, out));
    it->begin = begin;
    it->begin_args = args;
    return 0;
}

#define LAZY_FILTER(name)                                                                          \
    static int b_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out);                   \
    FILTER(name)                                                                                   \
    {                                                                                              \
        return lazy(r, self, a, b_##name, out);                                                    \
    }                                                                                              \
    static int b_##name(struct spw_jj_run *r, struct spw_jj_value self,                            \
                        const struct spw_jj_value *a, struct spw_jj_value *out)

LAZY_FILTER(items)
{
    (void)a;
    *out = self;
    if (self.type == SPW_JJ_UNDEFINED)
        return 0;
    if (self.type != SPW_JJ_DICT)
        return spw_jj_fail(r, "Can only get item pairs from a mapping.");
    struct spw_jj_view *v = spw_jj_take(&r->arena, sizeof *v);
    if (!v)
        return spw_jj_no_memory(r);
    *v = (struct spw_jj_view){self.u.dict, 'i'};
    *out = (struct spw_jj_value){.type = SPW_JJ_VIEW, .u.view = v};
    return 0;
}

FILTER(first)
{
    struct spw_jj_iterator *it;
    bool more;
    (void)a;
    SPW_TRY(spw_jj_iterate(r, self, &it));
    SPW_TRY(spw_jj_next(r, it, out, &more));
    return more ? 0 : spw_jj_undefined_hint(r, "No first item, sequence was empty.", out);
}

/* Walks backwards what Python's reversed() takes. */
static int reversed(struct spw_jj_run *r, struct spw_jj_value self, struct spw_jj_iterator **it,
                    struct spw_jj_value *out)
{
    SPW_TRY(as_iterator(r, self, self.type == SPW_JJ_LIST ? "list_reverseiterator" : "reversed", it,
                        out));
    (*it)->reversed = true;
    return 0;
}

static bool is_reversible(struct spw_jj_value v)
{
    return v.type == SPW_JJ_LIST || v.type == SPW_JJ_TUPLE || v.type == SPW_JJ_DICT ||
           v.type == SPW_JJ_VIEW || v.type == SPW_JJ_RANGE || v.type == SPW_JJ_UNDEFINED;
}

FILTER(last)
{
    struct spw_jj_iterator *it;
    bool more;
    (void)a;
    if (self.type == SPW_JJ_STRING) {
        const struct spw_jj_value bounds[3] = {spw_jj_int(-1), spw_jj_none(), spw_jj_none()};
        if (self.u.string->bytes)
            return spw_jj_slice(r, self, bounds, out);
    } else if (!is_reversible(self)) {
        return spw_jj_fail(r, "'%s' object is not reversible", spw_jj_type_name(self));
    } else {
        SPW_TRY(reversed(r, self, &it, out));
        SPW_TRY(spw_jj_next(r, it, out, &more));
        if (more)
            return 0;
    }
    return spw_jj_undefined_hint(r, "No last item, sequence was empty.", out);
}

FILTER(reverse)
{
    const struct spw_jj_value bounds[3] = {spw_jj_none(), spw_jj_none(), spw_jj_int(-1)};
    struct spw_jj_iterator *it;
    (void)a;
    if (self.type == SPW_JJ_STRING)
        return spw_jj_slice(r, self, bounds, out);
    if (is_reversible(self))
        return reversed(r, self, &it, out);
    if (self.type != SPW_JJ_ITERATOR)
        return spw_jj_fail(r, "argument must be iterable");
    struct spw_jj_value list;
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &list));
    return spw_jj_slice(r, list, bounds, out);
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

/* By several attributes, "a,b". A list even of one: equal keys are not asked which is less. */
static int keys_of(struct spw_jj_run *r, struct spw_jj_value item, struct spw_jj_value attribute,
                   bool case_sensitive, struct spw_jj_value *out)
{
    struct spw_jj_value keys, key;
    const char *p = NULL, *end = NULL, *comma = NULL;
    if (attribute.type == SPW_JJ_STRING) {
        p = attribute.u.string->at;
        end = p + attribute.u.string->bytes;
    }
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    do {
        if (p) {
            comma = memchr(p, ',', (size_t)(end - p));
            SPW_TRY(spw_jj_borrow(r, p, (size_t)((comma ? comma : end) - p), &attribute));
            p = comma ? comma + 1 : end;
        }
        SPW_TRY(key_of(r, item, attribute, case_sensitive, &key));
        SPW_TRY(spw_jj_append(r, keys.u.list, key));
    } while (comma);
    *out = keys;
    return 0;
}

FILTER(sort)
{
    struct spw_jj_value list, keys, key;
    bool reverse = false, sensitive = false;
    SPW_TRY(spw_jj_truth(r, a[0], &reverse));
    SPW_TRY(spw_jj_truth(r, a[1], &sensitive));
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    for (size_t i = 0; i < list.u.list->n; i++) {
        SPW_TRY(keys_of(r, list.u.list->at[i], a[2], sensitive, &key));
        SPW_TRY(spw_jj_append(r, keys.u.list, key));
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
        return spw_jj_fail(r, "You can only sort by either \"key\" or \"value\"");
    if (self.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, self.u.undefined);
    if (self.type != SPW_JJ_DICT)
        return spw_jj_fail(r, "'%s' object has no attribute 'items'", spw_jj_type_name(self));
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
        return spw_jj_undefined_hint(r, "No aggregated item, sequence was empty.", out);
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
        return spw_jj_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
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

LAZY_FILTER(unique)
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
    *out = list;
    return 0;
}

/* ---- picking ---- */

static int picked(struct spw_jj_run *r, struct spw_jj_value self, struct spw_jj_pick what,
                  const struct spw_jj_value *a, size_t used, struct spw_jj_value *out)
{
    struct spw_jj_pick *pick = spw_jj_take(&r->arena, sizeof *pick);
    const struct spw_jj_list *args = a[0].u.list;
    struct spw_jj_iterator *it;
    bool any;
    SPW_TRY(spw_jj_truth(r, self, &any));
    if (!any) /* as jinja2: nothing, even where what it is cannot be walked */
        return spw_jj_new_list(r, SPW_JJ_LIST, out);
    if (!pick)
        return spw_jj_no_memory(r);
    *pick = what;
    if (args->n > used) {
        SPW_TRY(spw_jj_want_string(r, args->at[used], "the name of a filter or test", &pick->call));
        pick->args = (struct spw_jj_args){args->at + used + 1, args->n - used - 1, a[1].u.dict};
    }
    SPW_TRY(spw_jj_iterate(r, self, &it));
    self = (struct spw_jj_value){.type = SPW_JJ_ITERATOR, .u.iterator = it};
    SPW_TRY(as_iterator(r, self, "generator", &it, out));
    it->pick = pick;
    return 0;
}

LAZY_FILTER(map)
{
    const struct spw_jj_value *attribute = spw_jj_dict_text(a[1].u.dict, "attribute", 9);
    const struct spw_jj_value *otherwise = spw_jj_dict_text(a[1].u.dict, "default", 7);
    struct spw_jj_pick what = {.map = true};
    if (a[0].u.list->n)
        return picked(r, self, what, a, 0, out);
    if (!attribute)
        return spw_jj_fail(r, "map requires a filter argument");
    if (a[1].u.dict->n > (otherwise ? 2u : 1u))
        return spw_jj_fail(r, "map: unexpected keyword argument");
    what.attribute = *attribute;
    if (otherwise)
        what.otherwise = *otherwise;
    return picked(r, self, what, a, 0, out);
}

LAZY_FILTER(select)
{
    return picked(r, self, (struct spw_jj_pick){0}, a, 0, out);
}

LAZY_FILTER(reject)
{
    return picked(r, self, (struct spw_jj_pick){.reject = true}, a, 0, out);
}

static int picked_by_attr(struct spw_jj_run *r, struct spw_jj_value self,
                          const struct spw_jj_value *a, bool reject, struct spw_jj_value *out)
{
    struct spw_jj_pick what = {.reject = reject};
    if (!a[0].u.list->n)
        return spw_jj_fail(r, "Missing parameter for attribute name");
    what.attribute = a[0].u.list->at[0];
    return picked(r, self, what, a, 1, out);
}

LAZY_FILTER(selectattr)
{
    return picked_by_attr(r, self, a, false, out);
}

LAZY_FILTER(rejectattr)
{
    return picked_by_attr(r, self, a, true, out);
}

/* ---- groups ---- */

LAZY_FILTER(batch)
{
    struct spw_jj_value items, batches, row;
    int64_t n;
    SPW_TRY(spw_jj_want_int(r, a[0], "batch", &n));
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &items));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &batches));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &row));
    for (size_t i = 0; i < items.u.list->n; i++) {
        if ((int64_t)row.u.list->n == n) {
            SPW_TRY(spw_jj_append(r, batches.u.list, row));
            SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &row));
        }
        SPW_TRY(spw_jj_append(r, row.u.list, items.u.list->at[i]));
    }
    if (row.u.list->n) {
        while (a[1].type != SPW_JJ_MISSING && a[1].type != SPW_JJ_NONE &&
               (int64_t)row.u.list->n < n)
            SPW_TRY(spw_jj_append(r, row.u.list, a[1]));
        SPW_TRY(spw_jj_append(r, batches.u.list, row));
    }
    *out = batches;
    return 0;
}

LAZY_FILTER(slice)
{
    struct spw_jj_value items, slices, row;
    int64_t n;
    SPW_TRY(spw_jj_want_int(r, a[0], "slice", &n));
    if (n < 1)
        return spw_jj_fail(r, "slice: found %lld slices, expected 1 or more", (long long)n);
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &items));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &slices));
    int64_t each = (int64_t)items.u.list->n / n, longer = (int64_t)items.u.list->n % n, at = 0;
    for (int64_t k = 0; k < n; k++) {
        SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &row));
        for (int64_t end = at + each + (k < longer); at < end; at++)
            SPW_TRY(spw_jj_append(r, row.u.list, items.u.list->at[at]));
        if (a[1].type != SPW_JJ_MISSING && a[1].type != SPW_JJ_NONE && k >= longer)
            SPW_TRY(spw_jj_append(r, row.u.list, a[1]));
        SPW_TRY(spw_jj_append(r, slices.u.list, row));
    }
    *out = slices;
    return 0;
}

FILTER(groupby)
{
    const struct spw_jj_value missing = {.type = SPW_JJ_MISSING};
    struct spw_jj_value list, keys, key, before = missing, row, groups, pair, name;
    bool sensitive = false, same = false;
    SPW_TRY(spw_jj_truth(r, a[2], &sensitive));
    SPW_TRY(spw_jj_to_list(r, self, SPW_JJ_LIST, &list));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &keys));
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &groups));
    for (size_t i = 0; i < list.u.list->n; i++) {
        SPW_TRY(spw_jj_get_path(r, list.u.list->at[i], a[0], a[1], &key));
        SPW_TRY(folded(r, key, sensitive, &key));
        SPW_TRY(spw_jj_append(r, keys.u.list, key));
    }
    SPW_TRY(spw_jj_sort(r, list.u.list, keys.u.list, false));
    for (size_t i = 0; i < list.u.list->n; i++) {
        SPW_TRY(spw_jj_get_path(r, list.u.list->at[i], a[0], a[1], &name));
        SPW_TRY(folded(r, name, sensitive, &key));
        if (i)
            SPW_TRY(spw_jj_equal(r, key, before, &same));
        if (!same) {
            SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &row));
            SPW_TRY(spw_jj_pair(r, name, row, &pair));
            pair.u.list->group = true;
            SPW_TRY(spw_jj_append(r, groups.u.list, pair));
        }
        SPW_TRY(spw_jj_append(r, row.u.list, list.u.list->at[i]));
        before = key;
    }
    *out = groups;
    return 0;
}

static const struct spw_jj_callable filters[] = {
    {"length", "", f_length, false},
    {"count", "", f_length, false},
    {"list", "", f_list, false},
    {"items", "", f_items, false},
    {"first", "", f_first, false},
    {"last", "", f_last, false},
    {"reverse", "", f_reverse, false},
    {"join", "d=,attribute=", f_join, false},
    {"sort", "reverse=,case_sensitive=,attribute=", f_sort, false},
    {"dictsort", "case_sensitive=,by=,reverse=", f_dictsort, false},
    {"min", "case_sensitive=,attribute=", f_min, false},
    {"max", "case_sensitive=,attribute=", f_max, false},
    {"sum", "attribute=,start=", f_sum, false},
    {"unique", "case_sensitive=,attribute=", f_unique, false},
    {"map", "*", f_map, false},
    {"select", "*", f_select, false},
    {"reject", "*", f_reject, false},
    {"selectattr", "*", f_selectattr, false},
    {"rejectattr", "*", f_rejectattr, false},
    {"batch", "linecount,fill_with=", f_batch, false},
    {"slice", "slices,fill_with=", f_slice, false},
    {"groupby", "attribute,default=,case_sensitive=", f_groupby, false},
};

const struct spw_jj_callable *spw_jj_filter_of_sequences(const struct spw_jj_string *name)
{
    return spw_jj_in_table(filters, sizeof filters / sizeof *filters, name);
}
