/* Attributes and items of Jinja values, and the methods of dicts: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

/* ---- dict ---- */

/* Its 'k'eys, 'v'alues or 'i'tems. */
static int view(struct spw_jj_run *r, struct spw_jj_value self, char what, struct spw_jj_value *out)
{
    struct spw_jj_value list;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_VIEW, &list));
    for (size_t i = 0; i < self.u.dict->n; i++) {
        const struct spw_jj_entry *e = &self.u.dict->at[i];
        struct spw_jj_value item = what == 'k' ? e->key : e->value;
        if (what == 'i')
            SPW_TRY(spw_jj_pair(r, e->key, e->value, &item));
        SPW_TRY(spw_jj_append(r, list.u.list, item));
    }
    *out = list;
    return 0;
}

int spw_jj_m_keys(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                  struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'k', out);
}

int spw_jj_m_values(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                    struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'v', out);
}

int spw_jj_m_items(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                   struct spw_jj_value *out)
{
    (void)a;
    return view(r, self, 'i', out);
}

int spw_jj_m_get(struct spw_jj_run *r, struct spw_jj_value self, const struct spw_jj_value *a,
                 struct spw_jj_value *out)
{
    struct spw_jj_entry *entry;
    SPW_TRY(spw_jj_dict_find(r, self.u.dict, a[0], &entry));
    *out = entry ? entry->value : a[1].type == SPW_JJ_MISSING ? spw_jj_none() : a[1];
    return 0;
}

/* ---- attributes and items ---- */

/* The methods of Python that change their object: the sandbox refuses them. */
static bool changes(struct spw_jj_value v, const struct spw_jj_string *name)
{
    static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    if (v.type != SPW_JJ_LIST && v.type != SPW_JJ_DICT)
        return false;
    for (const char *const *p = v.type == SPW_JJ_LIST ? of_list : of_dict; *p; p++)
        if (spw_jj_is_text(spw_jj_constant(name), *p))
            return true;
    return false;
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
    const struct spw_jj_callable *method = spw_jj_find_method(v, name);
    if (changes(v, name))
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
