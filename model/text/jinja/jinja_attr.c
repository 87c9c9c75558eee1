/* Attributes and items of Jinja values, the methods of lists and dicts, and the binding of
 * arguments to parameters: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

/* ---- calling what is written in C ---- */

const struct spw_jj_callable *spw_jj_in_table(const struct spw_jj_callable *table, size_t n,
                                              const struct spw_jj_string *name)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == name->bytes && !memcmp(table[i].name, name->at, name->bytes))
            return &table[i];
    return NULL;
}

/* The k-th of "name,name=": its length and whether it must be given. NULL behind the last. */
static const char *param(const char *params, size_t k, size_t *bytes, bool *needed)
{
    const char *p = params;
    for (; k; k--) {
        p = strchr(p, ',');
        if (!p)
            return NULL;
        p++;
    }
    if (!*p)
        return NULL;
    *bytes = strcspn(p, ",=");
    *needed = p[*bytes] != '=';
    return p;
}

static int bind_named(struct spw_jj_run *r, const struct spw_jj_callable *c, const char *what,
                      const struct spw_jj_args *args, struct spw_jj_value *a)
{
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const struct spw_jj_string *name = args->named->at[i].key.u.string;
        size_t bytes, k = 0;
        const char *p;
        bool needed;
        while ((p = param(c->params, k, &bytes, &needed)))
            if (bytes == name->bytes && !memcmp(p, name->at, bytes))
                break;
            else
                k++;
        if (!p)
            return spw_jj_fail(r, "%s%s() got an unexpected keyword argument '%.*s'", what, c->name,
                               (int)spw_min_u64(name->bytes, 64), name->at);
        if (a[k].type != SPW_JJ_MISSING)
            return spw_jj_fail(r, "%s%s() got multiple values for argument '%.*s'", what, c->name,
                               (int)bytes, p);
        a[k] = args->named->at[i].value;
    }
    return 0;
}

int spw_jj_call_callable(struct spw_jj_run *r, const struct spw_jj_callable *c, const char *what,
                         struct spw_jj_value self, const struct spw_jj_args *args,
                         struct spw_jj_value *out)
{
    struct spw_jj_value a[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    size_t bytes, n_params = 0;
    const char *p;
    bool needed;
    if (*c->params == '*') {
        struct spw_jj_list *list = spw_jj_take(&r->arena, sizeof *list);
        if (!list)
            return spw_jj_no_memory(r);
        *list = (struct spw_jj_list){.at = args->at, .n = args->n, .room = args->n};
        a[0] = (struct spw_jj_value){.type = SPW_JJ_TUPLE, .u.list = list};
        if (args->named)
            a[1] = (struct spw_jj_value){.type = SPW_JJ_DICT, .u.dict = args->named};
        else
            SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, &a[1]));
        return c->run(r, self, a, out);
    }
    while (param(c->params, n_params, &bytes, &needed))
        n_params++;
    if (args->n > n_params)
        return spw_jj_fail(r, "%s%s() takes at most %zu arguments (%zu given)", what, c->name,
                           n_params, args->n);
    if (args->n)
        memcpy(a, args->at, args->n * sizeof *a);
    SPW_TRY(bind_named(r, c, what, args, a));
    for (size_t k = 0; k < n_params; k++) {
        p = param(c->params, k, &bytes, &needed);
        if (needed && a[k].type == SPW_JJ_MISSING)
            return spw_jj_fail(r, "%s%s() missing required argument '%.*s'", what, c->name,
                               (int)bytes, p);
    }
    return c->run(r, self, a, out);
}

int spw_jj_want_int(struct spw_jj_run *r, struct spw_jj_value v, const char *what, int64_t *out)
{
    if (v.type != SPW_JJ_INT && v.type != SPW_JJ_BOOL)
        return spw_jj_fail(r, "%s: found '%s', expected an integer", what, spw_jj_type_name(v));
    *out = v.type == SPW_JJ_INT ? v.u.integer : v.u.boolean;
    return 0;
}

int spw_jj_want_string(struct spw_jj_run *r, struct spw_jj_value v, const char *what,
                       const struct spw_jj_string **out)
{
    if (v.type != SPW_JJ_STRING)
        return spw_jj_fail(r, "%s: found '%s', expected a string", what, spw_jj_type_name(v));
    *out = v.u.string;
    return 0;
}

/* ---- dict ---- */

static int view(struct spw_jj_run *r, struct spw_jj_value self, char what, struct spw_jj_value *out)
{
    struct spw_jj_view *v = spw_jj_take(&r->arena, sizeof *v);
    if (!v)
        return spw_jj_no_memory(r);
    *v = (struct spw_jj_view){self.u.dict, what};
    *out = (struct spw_jj_value){.type = SPW_JJ_VIEW, .u.view = v};
    return 0;
}

static int dict_keys(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                     struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'k', out);
}

static int dict_values(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'v', out);
}

static int dict_items(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                      struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'i', out);
}

static int dict_get(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                    struct spw_jj_value *out)
{
    struct spw_jj_entry *entry;
    SPW_TRY(spw_jj_dict_find(r, self.u.dict, a[0], &entry));
    *out = entry ? entry->value : a[1].type == SPW_JJ_MISSING ? spw_jj_none() : a[1];
    return 0;
}

static int dict_copy(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                     struct spw_jj_value *out)
{
    struct spw_jj_value copy;
    (void)a;
    SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, &copy));
    for (size_t i = 0; i < self.u.dict->n; i++)
        SPW_TRY(spw_jj_dict_set(r, copy.u.dict, self.u.dict->at[i].key, self.u.dict->at[i].value));
    *out = copy;
    return 0;
}

static int dict_pop(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                    struct spw_jj_value *out)
{
    struct spw_jj_entry *entry;
    SPW_TRY(spw_jj_dict_find(r, self.u.dict, a[0], &entry));
    if (!entry && a[1].type == SPW_JJ_MISSING)
        return spw_jj_fail(r, "pop(): the dict has no such key");
    *out = entry ? entry->value : a[1];
    if (entry)
        spw_jj_dict_remove(self.u.dict, entry);
    return spw_jj_charge(r, self.u.dict->n);
}

static int dict_setdefault(struct spw_jj_run *r, struct spw_jj_value self,
                           const struct spw_jj_value *a, struct spw_jj_value *out)
{
    struct spw_jj_entry *entry;
    SPW_TRY(spw_jj_dict_find(r, self.u.dict, a[0], &entry));
    *out = entry ? entry->value : a[1].type == SPW_JJ_MISSING ? spw_jj_none() : a[1];
    return entry ? 0 : spw_jj_dict_set(r, self.u.dict, a[0], *out);
}

static int dict_update(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    struct spw_jj_value from[2] = {a[1], a[1]};
    if (a[0].u.list->n > 1)
        return spw_jj_fail(r, "update expected at most 1 argument, got %zu", a[0].u.list->n);
    if (a[0].u.list->n)
        from[0] = a[0].u.list->at[0];
    for (int k = 0; k < 2; k++) {
        if (from[k].type != SPW_JJ_DICT)
            return spw_jj_fail(r, "update(): found '%s', expected a dict",
                               spw_jj_type_name(from[k]));
        const struct spw_jj_dict *d = from[k].u.dict;
        for (size_t i = 0; d != self.u.dict && i < d->n; i++)
            SPW_TRY(spw_jj_dict_set(r, self.u.dict, d->at[i].key, d->at[i].value));
    }
    *out = spw_jj_none();
    return 0;
}

static int dict_clear(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                      struct spw_jj_value *out)
{
    (void)r;
    (void)a;
    *self.u.dict = (struct spw_jj_dict){0};
    *out = spw_jj_none();
    return 0;
}

static const struct spw_jj_callable dict_methods[] = {
    {"keys", "", dict_keys, false},
    {"values", "", dict_values, false},
    {"items", "", dict_items, false},
    {"get", "key,default=", dict_get, false},
    {"copy", "", dict_copy, false},
    {"pop", "key,default=", dict_pop, true},
    {"setdefault", "key,default=", dict_setdefault, true},
    {"update", "*", dict_update, true},
    {"clear", "", dict_clear, true},
};

/* ---- list and tuple ---- */

static int list_index(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                      struct spw_jj_value *out)
{
    for (size_t i = 0; i < self.u.list->n; i++) {
        bool same;
        SPW_TRY(spw_jj_equal(r, self.u.list->at[i], a[0], &same));
        if (same) {
            *out = spw_jj_int((int64_t)i);
            return 0;
        }
    }
    return spw_jj_fail(r, "index(): the value is not in the %s", spw_jj_type_name(self));
}

static int list_count(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                      struct spw_jj_value *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.u.list->n; i++) {
        bool same;
        SPW_TRY(spw_jj_equal(r, self.u.list->at[i], a[0], &same));
        n += same;
    }
    *out = spw_jj_int(n);
    return 0;
}

static int list_copy(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                     struct spw_jj_value *out)
{
    (void)a;
    return spw_jj_to_list(r, self, SPW_JJ_LIST, out);
}

static int list_append(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    *out = spw_jj_none();
    return spw_jj_append(r, self.u.list, a[0]);
}

static int list_extend(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    struct spw_jj_value more;
    SPW_TRY(spw_jj_to_list(r, a[0], SPW_JJ_LIST, &more));
    for (size_t i = 0; i < more.u.list->n; i++)
        SPW_TRY(spw_jj_append(r, self.u.list, more.u.list->at[i]));
    *out = spw_jj_none();
    return 0;
}

static int list_insert(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    struct spw_jj_list *l = self.u.list;
    int64_t at = 0, n = (int64_t)l->n;
    SPW_TRY(spw_jj_want_int(r, a[0], "insert()", &at));
    at = at < -n ? 0 : at < 0 ? at + n : at > n ? n : at;
    SPW_TRY(spw_jj_append(r, l, a[1]));
    memmove(l->at + at + 1, l->at + at, (size_t)(n - at) * sizeof *l->at);
    l->at[at] = a[1];
    *out = spw_jj_none();
    return spw_jj_charge(r, l->n / 4);
}

static int list_pop(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                    struct spw_jj_value *out)
{
    struct spw_jj_list *l = self.u.list;
    int64_t at = -1, n = (int64_t)l->n;
    if (a[0].type != SPW_JJ_MISSING)
        SPW_TRY(spw_jj_want_int(r, a[0], "pop()", &at));
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return spw_jj_fail(r, n ? "pop index out of range" : "pop from empty list");
    *out = l->at[at];
    l->n--;
    memmove(l->at + at, l->at + at + 1, (l->n - (size_t)at) * sizeof *l->at);
    return spw_jj_charge(r, l->n / 4);
}

static int list_remove(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                       struct spw_jj_value *out)
{
    struct spw_jj_value at;
    SPW_TRY(list_index(r, self, a, &at));
    SPW_TRY(list_pop(r, self, &at, out));
    *out = spw_jj_none();
    return 0;
}

static int list_reverse(struct spw_jj_run *r, struct spw_jj_value self,
                        const struct spw_jj_value *a, struct spw_jj_value *out)
{
    struct spw_jj_list *l = self.u.list;
    (void)a;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct spw_jj_value first = l->at[i];
        l->at[i] = l->at[l->n - 1 - i];
        l->at[l->n - 1 - i] = first;
    }
    *out = spw_jj_none();
    return spw_jj_charge(r, l->n);
}

static int list_clear(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                      struct spw_jj_value *out)
{
    (void)r;
    (void)a;
    *self.u.list = (struct spw_jj_list){0};
    *out = spw_jj_none();
    return 0;
}

static const struct spw_jj_callable list_methods[] = {
    {"index", "value", list_index, false},
    {"count", "value", list_count, false},
    {"copy", "", list_copy, false},
    {"append", "object", list_append, true},
    {"extend", "iterable", list_extend, true},
    {"insert", "index,object", list_insert, true},
    {"pop", "index=", list_pop, true},
    {"remove", "value", list_remove, true},
    {"reverse", "", list_reverse, true},
    {"clear", "", list_clear, true},
};

enum { N_TUPLE_METHODS = 2 };

/* ---- attributes and items ---- */

/* Python's list.sort and dict.popitem are not needed where changing is allowed, but the sandbox
 * refuses them by name like the others. */
static bool changes_by_name(struct spw_jj_value v, const struct spw_jj_string *name)
{
    struct spw_jj_value text = spw_jj_constant(name);
    return (v.type == SPW_JJ_LIST && spw_jj_is_text(text, "sort")) ||
           (v.type == SPW_JJ_DICT && spw_jj_is_text(text, "popitem"));
}

static const struct spw_jj_callable *find_method(struct spw_jj_value v,
                                                 const struct spw_jj_string *name)
{
    switch (v.type) {
    case SPW_JJ_STRING:
        return spw_jj_string_method(name);
    case SPW_JJ_LIST:
        return spw_jj_in_table(list_methods, sizeof list_methods / sizeof *list_methods, name);
    case SPW_JJ_TUPLE:
        return spw_jj_in_table(list_methods, N_TUPLE_METHODS, name);
    case SPW_JJ_DICT:
        return spw_jj_in_table(dict_methods, sizeof dict_methods / sizeof *dict_methods, name);
    default:
        return NULL;
    }
}

static int unsafe(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_string *name,
                  struct spw_jj_value *out)
{
    size_t room = name->bytes + 96;
    char *hint = spw_jj_take(&r->arena, room);
    if (!hint)
        return spw_jj_no_memory(r);
    snprintf(hint, room, "access to attribute '%.*s' of '%s' object is unsafe.",
             (int)spw_min_u64(name->bytes, 200), name->at, spw_jj_type_name(v));
    return spw_jj_undefined_hint(r, hint, out);
}

/* What getattr() finds. */
static int own_attr(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_string *name,
                    struct spw_jj_value *out, bool *found)
{
    *found = true;
    if (v.type == SPW_JJ_NAMESPACE) {
        struct spw_jj_entry *entry;
        SPW_TRY(spw_jj_dict_find(r, v.u.dict, spw_jj_constant(name), &entry));
        *found = entry != NULL;
        if (entry)
            *out = entry->value;
        return 0;
    }
    /* every Python object has some of these; none is a template's business */
    if (name->bytes > 4 && !memcmp(name->at, "__", 2) &&
        !memcmp(name->at + name->bytes - 2, "__", 2))
        return unsafe(r, v, name, out);
    if (v.type == SPW_JJ_LOOP) {
        SPW_TRY(spw_jj_loop_attr(r, v.u.loop, name, out));
        *found = out->type != SPW_JJ_MISSING;
        return 0;
    }
    if (v.type == SPW_JJ_MACRO && spw_jj_is_text(spw_jj_constant(name), "name")) {
        *out = v.u.macro->node->name ? spw_jj_constant(v.u.macro->node->name) : spw_jj_none();
        return 0;
    }
    if (v.type == SPW_JJ_TUPLE && v.u.list->group) {
        bool list = spw_jj_is_text(spw_jj_constant(name), "list");
        *out = v.u.list->at[list];
        if (list || spw_jj_is_text(spw_jj_constant(name), "grouper"))
            return 0;
    }
    const struct spw_jj_callable *method = find_method(v, name);
    if (changes_by_name(v, name) || (method && method->changes && !r->in->may_change))
        return unsafe(r, v, name, out);
    *found = method != NULL;
    if (!method)
        return 0;
    struct spw_jj_method *bound = spw_jj_take(&r->arena, sizeof *bound);
    if (!bound)
        return spw_jj_no_memory(r);
    *bound = (struct spw_jj_method){v, method};
    *out = (struct spw_jj_value){.type = SPW_JJ_METHOD, .u.method = bound};
    return 0;
}

/* What v[key] finds. */
static int own_item(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value key,
                    struct spw_jj_value *out, bool *found)
{
    *found = false;
    if (v.type == SPW_JJ_DICT) {
        struct spw_jj_entry *entry;
        if (key.type == SPW_JJ_LIST || key.type == SPW_JJ_DICT)
            return 0;
        SPW_TRY(spw_jj_dict_find(r, v.u.dict, key, &entry));
        *found = entry != NULL;
        if (entry)
            *out = entry->value;
        return 0;
    }
    if (v.type != SPW_JJ_LIST && v.type != SPW_JJ_TUPLE && v.type != SPW_JJ_STRING &&
        v.type != SPW_JJ_RANGE)
        return 0;
    if (key.type != SPW_JJ_INT && key.type != SPW_JJ_BOOL)
        return 0;
    int64_t at = key.type == SPW_JJ_INT ? key.u.integer : key.u.boolean, n;
    SPW_TRY(spw_jj_length(r, v, &n));
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return 0;
    *found = true;
    if (v.type == SPW_JJ_RANGE) {
        *out = spw_jj_int(v.u.range->start + at * v.u.range->step);
    } else if (v.type == SPW_JJ_STRING) {
        const struct spw_jj_value bounds[3] = {spw_jj_int(at), spw_jj_int(at + 1), spw_jj_none()};
        return spw_jj_slice(r, v, bounds, out);
    } else {
        *out = v.u.list->at[at];
    }
    return 0;
}

int spw_jj_get_attr(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_string *name,
                    struct spw_jj_value *out)
{
    bool found;
    if (v.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, v.u.undefined);
    SPW_TRY(own_attr(r, v, name, out, &found));
    if (!found)
        SPW_TRY(own_item(r, v, spw_jj_constant(name), out, &found));
    return found ? 0 : spw_jj_undefined_of(r, v, spw_jj_constant(name), out);
}

int spw_jj_get_item(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value key,
                    struct spw_jj_value *out)
{
    bool found;
    if (v.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, v.u.undefined);
    SPW_TRY(own_item(r, v, key, out, &found));
    if (!found && key.type == SPW_JJ_STRING)
        SPW_TRY(own_attr(r, v, key.u.string, out, &found));
    return found ? 0 : spw_jj_undefined_of(r, v, key, out);
}

static int get_part(struct spw_jj_run *r, struct spw_jj_value *v, struct spw_jj_value key,
                    struct spw_jj_value otherwise)
{
    SPW_TRY(spw_jj_charge(r, 1));
    SPW_TRY(spw_jj_get_item(r, *v, key, v));
    if (v->type == SPW_JJ_UNDEFINED && otherwise.type != SPW_JJ_MISSING &&
        otherwise.type != SPW_JJ_NONE)
        *v = otherwise;
    return 0;
}

int spw_jj_get_path(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value path,
                    struct spw_jj_value otherwise, struct spw_jj_value *out)
{
    if (path.type == SPW_JJ_NONE || path.type == SPW_JJ_MISSING) {
        *out = v;
        return 0;
    }
    if (path.type != SPW_JJ_STRING) {
        SPW_TRY(get_part(r, &v, path, otherwise));
        *out = v;
        return 0;
    }
    const char *p = path.u.string->at, *end = p + path.u.string->bytes;
    for (;;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p), digits = 0;
        struct spw_jj_value key;
        int64_t index = 0;
        while (digits < n && p[digits] >= '0' && p[digits] <= '9' && digits < 18)
            index = index * 10 + (p[digits++] - '0');
        SPW_TRY(spw_jj_borrow(r, p, n, &key));
        SPW_TRY(get_part(r, &v, n && digits == n ? spw_jj_int(index) : key, otherwise));
        if (!dot)
            break;
        p = dot + 1;
    }
    *out = v;
    return 0;
}
