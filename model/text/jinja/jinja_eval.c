/* Expressions of a Jinja template, evaluated: names, attributes, calls. See jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

/* ---- names ---- */

static struct value load(struct run *r, const struct string *name)
{
    for (const struct scope *s = r->scope; s; s = s->parent) {
        spw_jinja_charge(r, s->n / 16);
        for (size_t i = s->n; i-- > 0;)
            if (s->at[i].name == name)
                return s->at[i].value;
    }
    struct value given = spw_jinja_dict_text(r->vars, name->at, name->bytes);
    if (given.type != SPW_JINJA_MISSING)
        return given;
    struct method *f = spw_jinja_take(r, sizeof *f);
    f->what = spw_jinja_find(SPW_JINJA_FUNCTION, name);
    if (f->what)
        return (struct value){.type = SPW_JINJA_METHOD, .u.method = f};
    return spw_jinja_undefined_of(r, given, string_value(name));
}

void spw_jinja_set(struct run *r, const struct string *name, struct value v)
{
    struct scope *s = r->scope;
    spw_jinja_charge(r, s->n / 16);
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name) {
            s->at[i].value = v;
            return;
        }
    s->at = spw_jinja_grow(r, s->at, s->n, &s->room, sizeof *s->at);
    s->at[s->n++] = (struct variable){name, v};
}

void spw_jinja_assign(struct run *r, const struct node *target, struct value v)
{
    if (target->kind == SPW_JINJA_N_NAME) {
        spw_jinja_set(r, target->name, v);
        return;
    }
    if (target->kind == SPW_JINJA_N_NAMESPACE_REF) {
        struct value ns = load(r, target->name);
        if (ns.type != SPW_JINJA_NAMESPACE)
            spw_jinja_fail(r, "found '%s', expected a namespace: only its names can be set",
                           spw_jinja_type_name(ns));
        spw_jinja_dict_set(r, ns.u.dict, string_value(target->a->name), v);
        return;
    }
    const struct list *items = spw_jinja_items(r, v);
    size_t n = 0, i = 0;
    for (const struct node *part = target->list; part; part = part->next)
        n++;
    if (items->n != n)
        spw_jinja_fail(r, "found %zu values for %zu names", items->n, n);
    for (const struct node *part = target->list; part; part = part->next)
        spw_jinja_assign(r, part, items->at[i++]);
}

/* ---- attributes and items ---- */

/* The methods of Python that change their object: the sandbox refuses them. */
static bool changes(struct value v, const struct string *name)
{
    static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    if (v.type != SPW_JINJA_LIST && v.type != SPW_JINJA_DICT)
        return false;
    for (const char *const *p = v.type == SPW_JINJA_LIST ? of_list : of_dict; *p; p++)
        if (spw_jinja_is_text(name, *p))
            return true;
    return false;
}

static bool is_unsafe(struct value v, const struct string *name)
{
    /* every Python object has some of the latter; none is a template's business */
    return changes(v, name) || (name->bytes > 4 && !memcmp(name->at, "__", 2) &&
                                !memcmp(name->at + name->bytes - 2, "__", 2));
}

static struct value unsafe(struct run *r, struct value v, const struct string *name)
{
    size_t room = name->bytes + 96;
    char *hint = spw_jinja_take(r, room);
    snprintf(hint, room, "access to attribute '%.*s' of '%s' object is unsafe.",
             (int)spw_min_u64(name->bytes, 200), name->at, spw_jinja_type_name(v));
    return spw_jinja_undefined_hint(r, hint);
}

static struct value loop_attr(struct run *r, const struct loop *loop, const struct string *name)
{
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->items->n;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", at + 1},
                   {"index0", at},
                   {"length", n},
                   {"revindex", n - at},
                   {"revindex0", n - at - 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (spw_jinja_is_text(name, numbers[i].name))
            return int_value(numbers[i].value);
    if (spw_jinja_is_text(name, "first"))
        return bool_value(at == 0);
    if (spw_jinja_is_text(name, "last"))
        return bool_value(at + 1 == n);
    if (spw_jinja_is_text(name, "previtem"))
        return at ? loop->items->at[at - 1]
                  : spw_jinja_undefined_hint(r, "there is no previous item");
    if (spw_jinja_is_text(name, "nextitem"))
        return at + 1 < n ? loop->items->at[at + 1]
                          : spw_jinja_undefined_hint(r, "there is no next item");
    return (struct value){.type = SPW_JINJA_MISSING};
}

/* What getattr() finds, or MISSING. */
static struct value own_attr(struct run *r, struct value v, const struct string *name)
{
    struct value missing = {.type = SPW_JINJA_MISSING};
    if (v.type == SPW_JINJA_NAMESPACE)
        return spw_jinja_dict_text(v.u.dict, name->at, name->bytes);
    if (is_unsafe(v, name))
        return unsafe(r, v, name);
    if (v.type == SPW_JINJA_LOOP)
        return loop_attr(r, v.u.loop, name);
    if (v.type != SPW_JINJA_STRING && v.type != SPW_JINJA_DICT)
        return missing;
    const struct callable *what =
        spw_jinja_find(v.type == SPW_JINJA_STRING ? SPW_JINJA_OF_STRING : SPW_JINJA_OF_DICT, name);
    if (!what)
        return missing;
    struct method *bound = spw_jinja_take(r, sizeof *bound);
    *bound = (struct method){v, what};
    return (struct value){.type = SPW_JINJA_METHOD, .u.method = bound};
}

/* What v[key] finds, or MISSING. */
static struct value own_item(struct run *r, struct value v, struct value key)
{
    struct value missing = {.type = SPW_JINJA_MISSING};
    if (v.type == SPW_JINJA_DICT && key.type != SPW_JINJA_LIST && key.type != SPW_JINJA_DICT) {
        const struct entry *entry = spw_jinja_dict_find(r, v.u.dict, key);
        return entry ? entry->value : missing;
    }
    if ((v.type != SPW_JINJA_LIST && v.type != SPW_JINJA_TUPLE && v.type != SPW_JINJA_STRING) ||
        !is_integer(key))
        return missing;
    int64_t at = integer(key), n = spw_jinja_length(v);
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return missing;
    if (v.type != SPW_JINJA_STRING)
        return v.u.list->at[at];
    return spw_jinja_slice(r, v, (struct value[]){int_value(at), int_value(at + 1), missing});
}

/* v.key or v[key]: either finds what the other one would, if it is not found first. */
static struct value get(struct run *r, struct value v, struct value key, bool attribute)
{
    struct value found = {.type = SPW_JINJA_MISSING};
    spw_jinja_must_be_defined(r, v);
    for (int k = 0; k < 2 && found.type == SPW_JINJA_MISSING; k++) {
        if (attribute == (k != 0))
            found = own_item(r, v, key);
        else if (key.type == SPW_JINJA_STRING)
            found = own_attr(r, v, key.u.string);
    }
    return found.type == SPW_JINJA_MISSING ? spw_jinja_undefined_of(r, v, key) : found;
}

struct value spw_jinja_get_item(struct run *r, struct value v, struct value key)
{
    return get(r, v, key, false);
}

static struct value get_part(struct run *r, struct value v, struct value key,
                             struct value otherwise)
{
    spw_jinja_charge(r, 1);
    v = spw_jinja_get_item(r, v, key);
    return v.type == SPW_JINJA_UNDEFINED && given(otherwise) ? otherwise : v;
}

struct value spw_jinja_get_path(struct run *r, struct value v, struct value path,
                                struct value otherwise)
{
    if (!given(path))
        return v;
    if (path.type != SPW_JINJA_STRING)
        return get_part(r, v, path, otherwise);
    const char *p = path.u.string->at, *end = p + path.u.string->bytes, *dot;
    do {
        dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p), digits = 0;
        int64_t index = 0;
        while (digits < n && p[digits] >= '0' && p[digits] <= '9' && digits < 18)
            index = index * 10 + (p[digits++] - '0');
        bool number = n && digits == n;
        v = get_part(r, v, number ? int_value(index) : spw_jinja_borrow(r, p, n), otherwise);
        p = dot ? dot + 1 : end;
    } while (dot);
    return v;
}

/* ---- calls ---- */

struct args spw_jinja_eval_args(struct run *r, const struct node *list)
{
    struct list all = {0};
    struct args args = {.named = spw_jinja_new_dict(r)};
    for (const struct node *n = list; n; n = n->next) {
        if (n->kind == SPW_JINJA_N_KEYWORD) {
            spw_jinja_dict_set(r, args.named, string_value(n->name), spw_jinja_eval(r, n->a));
        } else if (n->kind == SPW_JINJA_N_STAR) {
            spw_jinja_append_all(r, &all, spw_jinja_items(r, spw_jinja_eval(r, n->a)));
        } else {
            spw_jinja_append(r, &all, spw_jinja_eval(r, n));
        }
    }
    args.at = all.at;
    args.n = all.n;
    return args;
}

struct value spw_jinja_call(struct run *r, struct value f, const struct args *args)
{
    if (f.type == SPW_JINJA_MACRO)
        return spw_jinja_call_macro(r, f.u.macro, args);
    if (f.type == SPW_JINJA_METHOD)
        return spw_jinja_call_method(r, f.u.method, args);
    if (f.type != SPW_JINJA_UNDEFINED)
        spw_jinja_fail(r, "found a call of '%s', which cannot be called", spw_jinja_type_name(f));
    /* What is not there is called: most often a method of Python's that we do not have. */
    const struct undefined *u = f.u.undefined;
    enum type type = u->object.type;
    bool method = type == SPW_JINJA_STRING || type == SPW_JINJA_LIST || type == SPW_JINJA_TUPLE ||
                  type == SPW_JINJA_DICT || type == SPW_JINJA_LOOP;
    if (u->hint || !method || u->name.type != SPW_JINJA_STRING)
        spw_jinja_must_be_defined(r, f);
    spw_jinja_fail(r, "'%s object' has no attribute '%.*s', or spillway does not know it",
                   spw_jinja_type_name(u->object), (int)spw_min_u64(u->name.u.string->bytes, 64),
                   u->name.u.string->at);
}

/* A call, a filter or a test. */
static struct value eval_call(struct run *r, const struct node *n)
{
    struct value self = spw_jinja_eval(r, n->a);
    struct args args = spw_jinja_eval_args(r, n->list);
    r->line = n->line;
    if (n->kind == SPW_JINJA_N_CALL)
        return spw_jinja_call(r, self, &args);
    bool filter = n->kind == SPW_JINJA_N_FILTER;
    return spw_jinja_call_named(r, filter ? SPW_JINJA_FILTER : SPW_JINJA_TEST, n->name, self,
                                &args);
}

/* ---- the rest ---- */

static struct value eval_list(struct run *r, const struct node *n)
{
    struct list *list = spw_jinja_new_list(r);
    for (const struct node *item = n->list; item; item = item->next)
        spw_jinja_append(r, list, spw_jinja_eval(r, item));
    return list_value(n->kind == SPW_JINJA_N_LIST ? SPW_JINJA_LIST : SPW_JINJA_TUPLE, list);
}

static struct value eval_dict(struct run *r, const struct node *n)
{
    struct dict *dict = spw_jinja_new_dict(r);
    for (const struct node *item = n->list; item; item = item->next->next) {
        struct value key = spw_jinja_eval(r, item);
        spw_jinja_dict_set(r, dict, key, spw_jinja_eval(r, item->next));
    }
    return (struct value){.type = SPW_JINJA_DICT, .u.dict = dict};
}

static struct value eval_item(struct run *r, const struct node *n)
{
    struct value v = spw_jinja_eval(r, n->a), bounds[3] = {{0}};
    if (n->b->kind != SPW_JINJA_N_SLICE) {
        struct value key = spw_jinja_eval(r, n->b);
        r->line = n->line;
        return get(r, v, key, n->op == '.');
    }
    const struct node *const parts[3] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        if (parts[i])
            bounds[i] = spw_jinja_eval(r, parts[i]);
    spw_jinja_must_be_defined(r, v);
    if (v.type != SPW_JINJA_STRING && v.type != SPW_JINJA_LIST && v.type != SPW_JINJA_TUPLE)
        spw_jinja_fail(r, "found a slice of '%s', expected a string or a list",
                       spw_jinja_type_name(v));
    return spw_jinja_slice(r, v, bounds);
}

static struct value eval_compare(struct run *r, const struct node *n)
{
    struct value left = spw_jinja_eval(r, n->a);
    bool yes = true;
    for (const struct node *next = n->list; next && yes; next = next->next) {
        struct value right = spw_jinja_eval(r, next->a);
        r->line = n->line;
        yes = spw_jinja_compare(r, next->op, left, right);
        left = right;
    }
    return bool_value(yes);
}

/* `b if a else c`, and, or, not. */
static struct value eval_logic(struct run *r, const struct node *n)
{
    struct value v = spw_jinja_eval(r, n->a);
    bool yes = spw_jinja_truth(v);
    if (n->kind == SPW_JINJA_N_NOT)
        return bool_value(!yes);
    if (n->kind != SPW_JINJA_N_CONDITION)
        return yes == (n->kind == SPW_JINJA_N_AND) ? spw_jinja_eval(r, n->b) : v;
    if (yes || n->c)
        return spw_jinja_eval(r, yes ? n->b : n->c);
    return spw_jinja_undefined_hint(r, "there is no value: an `if` without `else` was false");
}

static struct value eval_operator(struct run *r, const struct node *n)
{
    struct value a = spw_jinja_eval(r, n->a), b = {0};
    if (n->b)
        b = spw_jinja_eval(r, n->b);
    r->line = n->line;
    return n->b ? spw_jinja_binary(r, n->op, a, b) : spw_jinja_unary(r, n->op, a);
}

static struct value eval_deeper(struct run *r, const struct node *n)
{
    switch (n->kind) {
    case SPW_JINJA_N_LIST:
    case SPW_JINJA_N_TUPLE:
        return eval_list(r, n);
    case SPW_JINJA_N_DICT:
        return eval_dict(r, n);
    case SPW_JINJA_N_ITEM:
        return eval_item(r, n);
    case SPW_JINJA_N_CALL:
    case SPW_JINJA_N_FILTER:
    case SPW_JINJA_N_TEST:
        return eval_call(r, n);
    case SPW_JINJA_N_CONDITION:
    case SPW_JINJA_N_OR:
    case SPW_JINJA_N_AND:
    case SPW_JINJA_N_NOT:
        return eval_logic(r, n);
    case SPW_JINJA_N_COMPARE:
        return eval_compare(r, n);
    default:
        return eval_operator(r, n);
    }
}

struct value spw_jinja_eval(struct run *r, const struct node *n)
{
    r->line = n->line;
    spw_jinja_enter(r);
    struct value v = n->kind == SPW_JINJA_N_CONST  ? n->value
                     : n->kind == SPW_JINJA_N_NAME ? load(r, n->name)
                                                   : eval_deeper(r, n);
    r->depth--;
    return v;
}
