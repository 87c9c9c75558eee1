/* Expressions of a Jinja template, evaluated: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

/* ---- names ---- */

static int load(struct spw_jj_run *r, const struct spw_jj_scope *s,
                const struct spw_jj_string *name, struct spw_jj_value *out)
{
    for (; s; s = s->parent) {
        SPW_TRY(spw_jj_charge(r, s->n / 16));
        for (size_t i = s->n; i-- > 0;)
            if (s->at[i].name == name) {
                *out = s->at[i].value;
                return 0;
            }
    }
    const struct spw_jj_value *given = spw_jj_dict_text(r->vars, name->at, name->bytes);
    if (given) {
        *out = *given;
        return 0;
    }
    const struct spw_jj_callable *f = spw_jj_find_function(name);
    *out = (struct spw_jj_value){.type = SPW_JJ_FUNCTION, .u.function = f};
    return f ? 0 : spw_jj_undefined_name(r, name, out);
}

int spw_jj_set(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_string *name,
               struct spw_jj_value v)
{
    SPW_TRY(spw_jj_charge(r, s->n / 16));
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name) {
            s->at[i].value = v;
            return 0;
        }
    if (s->n == s->room) {
        size_t room = s->room ? s->room * 2 : 4;
        struct spw_jj_variable *grown = spw_jj_take(&r->arena, room * sizeof *grown);
        if (!grown)
            return spw_jj_no_memory(r);
        if (s->n)
            memcpy(grown, s->at, s->n * sizeof *grown);
        s->at = grown;
        s->room = room;
    }
    s->at[s->n++] = (struct spw_jj_variable){name, v};
    return 0;
}

static int unpack(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *target,
                  struct spw_jj_value v)
{
    struct spw_jj_value items;
    size_t n = 0, i = 0;
    for (const struct spw_jj_node *part = target->list; part; part = part->next)
        n++;
    SPW_TRY(spw_jj_to_list(r, v, SPW_JJ_TUPLE, &items));
    if (items.u.list->n != n)
        return spw_jj_fail(r, "found %zu values for %zu names", items.u.list->n, n);
    for (const struct spw_jj_node *part = target->list; part; part = part->next)
        SPW_TRY(spw_jj_assign(r, s, part, items.u.list->at[i++]));
    return 0;
}

int spw_jj_assign(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *target,
                  struct spw_jj_value v)
{
    struct spw_jj_value ns;
    if (target->kind == SPW_JJ_NAME)
        return spw_jj_set(r, s, target->name, v);
    if (target->kind != SPW_JJ_NAMESPACE_REF)
        return unpack(r, s, target, v);
    SPW_TRY(load(r, s, target->name, &ns));
    if (ns.type != SPW_JJ_NAMESPACE)
        return spw_jj_fail(r, "found '%s', expected a namespace: only its names can be set",
                           spw_jj_type_name(ns));
    return spw_jj_dict_set(r, ns.u.dict, spw_jj_constant(target->a->name), v);
}

/* ---- calls ---- */

int spw_jj_add_named(struct spw_jj_run *r, struct spw_jj_args *args,
                     const struct spw_jj_string *name, struct spw_jj_value v)
{
    struct spw_jj_value dict;
    if (!args->named) {
        SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, &dict));
        args->named = dict.u.dict;
    }
    return spw_jj_dict_set(r, args->named, spw_jj_constant(name), v);
}

int spw_jj_eval_args(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *list,
                     struct spw_jj_args *out)
{
    struct spw_jj_value all, v, items;
    *out = (struct spw_jj_args){0};
    if (!list)
        return 0;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &all));
    for (const struct spw_jj_node *n = list; n; n = n->next) {
        bool named = n->kind == SPW_JJ_KEYWORD, star = n->kind == SPW_JJ_STAR;
        SPW_TRY(spw_jj_eval(r, s, named || star ? n->a : n, &v));
        if (named)
            SPW_TRY(spw_jj_add_named(r, out, n->name, v));
        else if (!star)
            SPW_TRY(spw_jj_append(r, all.u.list, v));
        else
            SPW_TRY(spw_jj_to_list(r, v, SPW_JJ_LIST, &items));
        for (size_t i = 0; star && i < items.u.list->n; i++)
            SPW_TRY(spw_jj_append(r, all.u.list, items.u.list->at[i]));
    }
    out->at = all.u.list->at;
    out->n = all.u.list->n;
    return 0;
}

/* What is not there is called: most often a method of Python's that we do not have. */
static int call_undefined(struct spw_jj_run *r, const struct spw_jj_undefined *u)
{
    bool method = u->object.type == SPW_JJ_STRING || u->object.type == SPW_JJ_LIST ||
                  u->object.type == SPW_JJ_TUPLE || u->object.type == SPW_JJ_DICT ||
                  u->object.type == SPW_JJ_LOOP;
    if (u->hint || !method || u->name.type != SPW_JJ_STRING)
        return spw_jj_fail_undefined(r, u);
    return spw_jj_fail(r, "'%s object' has no attribute '%.*s', or spillway does not know it",
                       spw_jj_type_name(u->object), (int)spw_min_u64(u->name.u.string->bytes, 64),
                       u->name.u.string->at);
}

int spw_jj_call(struct spw_jj_run *r, struct spw_jj_value f, const struct spw_jj_args *args,
                struct spw_jj_value *out)
{
    switch (f.type) {
    case SPW_JJ_MACRO:
        return spw_jj_call_macro(r, f.u.macro, args, out);
    case SPW_JJ_FUNCTION:
        return spw_jj_call_function(r, f.u.function, args, out);
    case SPW_JJ_METHOD:
        return spw_jj_call_method(r, f.u.method, args, out);
    case SPW_JJ_UNDEFINED:
        return call_undefined(r, f.u.undefined);
    default:
        return spw_jj_fail(r, "found a call of '%s', which cannot be called", spw_jj_type_name(f));
    }
}

static int eval_call(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_value f;
    struct spw_jj_args args;
    SPW_TRY(spw_jj_eval(r, s, n->a, &f));
    SPW_TRY(spw_jj_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return spw_jj_call(r, f, &args, out);
}

static int eval_filter(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                       struct spw_jj_value *out)
{
    struct spw_jj_value self;
    struct spw_jj_args args;
    SPW_TRY(spw_jj_eval(r, s, n->a, &self));
    SPW_TRY(spw_jj_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return spw_jj_call_filter(r, n->name, self, &args, out);
}

static int eval_test(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_value self;
    struct spw_jj_args args;
    bool yes;
    SPW_TRY(spw_jj_eval(r, s, n->a, &self));
    SPW_TRY(spw_jj_eval_args(r, s, n->list, &args));
    r->line = n->line;
    SPW_TRY(spw_jj_call_test(r, n->name, self, &args, &yes));
    *out = spw_jj_bool(yes);
    return 0;
}

/* ---- the rest ---- */

static int eval_list(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_value list, v;
    SPW_TRY(spw_jj_new_list(r, n->kind == SPW_JJ_MAKE_LIST ? SPW_JJ_LIST : SPW_JJ_TUPLE, &list));
    for (const struct spw_jj_node *item = n->list; item; item = item->next) {
        SPW_TRY(spw_jj_eval(r, s, item, &v));
        SPW_TRY(spw_jj_append(r, list.u.list, v));
    }
    *out = list;
    return 0;
}

static int eval_dict(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_value dict, key, v;
    SPW_TRY(spw_jj_new_dict(r, SPW_JJ_DICT, &dict));
    for (const struct spw_jj_node *item = n->list; item; item = item->next->next) {
        SPW_TRY(spw_jj_eval(r, s, item, &key));
        SPW_TRY(spw_jj_eval(r, s, item->next, &v));
        SPW_TRY(spw_jj_dict_set(r, dict.u.dict, key, v));
    }
    *out = dict;
    return 0;
}

static int eval_slice(struct spw_jj_run *r, struct spw_jj_scope *s, struct spw_jj_value v,
                      const struct spw_jj_node *n, struct spw_jj_value *out)
{
    const struct spw_jj_node *const parts[3] = {n->a, n->b, n->c};
    struct spw_jj_value bounds[3] = {{.type = SPW_JJ_MISSING}};
    for (int i = 0; i < 3; i++) {
        bounds[i] = spw_jj_none();
        if (parts[i])
            SPW_TRY(spw_jj_eval(r, s, parts[i], &bounds[i]));
    }
    if (v.type == SPW_JJ_UNDEFINED)
        return spw_jj_fail_undefined(r, v.u.undefined);
    if (v.type == SPW_JJ_STRING || v.type == SPW_JJ_LIST || v.type == SPW_JJ_TUPLE)
        return spw_jj_slice(r, v, bounds, out);
    if (v.type == SPW_JJ_RANGE)
        return spw_jj_refuse(r, "a slice of", v);
    return spw_jj_fail(r, "found a slice of '%s', expected a string or a list",
                       spw_jj_type_name(v));
}

static int eval_item(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_value v, key;
    SPW_TRY(spw_jj_eval(r, s, n->a, &v));
    if (n->b->kind == SPW_JJ_SLICE)
        return eval_slice(r, s, v, n->b, out);
    SPW_TRY(spw_jj_eval(r, s, n->b, &key));
    r->line = n->line;
    return spw_jj_get_item(r, v, key, out);
}

static int eval_compare(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                        struct spw_jj_value *out)
{
    struct spw_jj_value left, right;
    bool yes = true;
    SPW_TRY(spw_jj_eval(r, s, n->a, &left));
    for (const struct spw_jj_node *next = n->list; next && yes; next = next->next) {
        SPW_TRY(spw_jj_eval(r, s, next->a, &right));
        r->line = n->line;
        SPW_TRY(spw_jj_compare(r, next->op, left, right, &yes));
        left = right;
    }
    *out = spw_jj_bool(yes);
    return 0;
}

static int eval_condition(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                          struct spw_jj_value *out)
{
    struct spw_jj_value v;
    bool yes;
    SPW_TRY(spw_jj_eval(r, s, n->a, &v));
    SPW_TRY(spw_jj_truth(r, v, &yes));
    if (yes)
        return spw_jj_eval(r, s, n->b, out);
    if (n->c)
        return spw_jj_eval(r, s, n->c, out);
    return spw_jj_undefined_hint(r, "there is no value: an `if` without `else` was false", out);
}

static int eval_logic(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                      struct spw_jj_value *out)
{
    bool yes;
    SPW_TRY(spw_jj_eval(r, s, n->a, out));
    SPW_TRY(spw_jj_truth(r, *out, &yes));
    if (n->kind == SPW_JJ_NOT)
        *out = spw_jj_bool(!yes);
    else if (yes == (n->kind == SPW_JJ_AND))
        return spw_jj_eval(r, s, n->b, out);
    return 0;
}

static int eval_concat(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                       struct spw_jj_value *out)
{
    struct spw_jj_value v;
    size_t start = r->out.bytes;
    for (const struct spw_jj_node *part = n->list; part; part = part->next) {
        SPW_TRY(spw_jj_eval(r, s, part, &v));
        SPW_TRY(spw_jj_print_value(r, v));
    }
    return spw_jj_captured(r, start, out);
}

static int eval_operator(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                         struct spw_jj_value *out)
{
    struct spw_jj_value a, b;
    SPW_TRY(spw_jj_eval(r, s, n->a, &a));
    if (n->kind == SPW_JJ_UNARY) {
        r->line = n->line;
        return spw_jj_unary(r, n->op, a, out);
    }
    SPW_TRY(spw_jj_eval(r, s, n->b, &b));
    r->line = n->line;
    return spw_jj_binary(r, n->op, a, b, out);
}

static int eval_deeper(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                       struct spw_jj_value *out)
{
    struct spw_jj_value v;
    switch (n->kind) {
    case SPW_JJ_MAKE_LIST:
    case SPW_JJ_MAKE_TUPLE:
        return eval_list(r, s, n, out);
    case SPW_JJ_MAKE_DICT:
        return eval_dict(r, s, n, out);
    case SPW_JJ_GET_ATTR:
        SPW_TRY(spw_jj_eval(r, s, n->a, &v));
        r->line = n->line;
        return spw_jj_get_attr(r, v, n->name, out);
    case SPW_JJ_GET_ITEM:
        return eval_item(r, s, n, out);
    case SPW_JJ_CALL:
        return eval_call(r, s, n, out);
    case SPW_JJ_FILTER:
        return eval_filter(r, s, n, out);
    case SPW_JJ_TEST:
        return eval_test(r, s, n, out);
    case SPW_JJ_CONDITION:
        return eval_condition(r, s, n, out);
    case SPW_JJ_OR:
    case SPW_JJ_AND:
    case SPW_JJ_NOT:
        return eval_logic(r, s, n, out);
    case SPW_JJ_COMPARE:
        return eval_compare(r, s, n, out);
    case SPW_JJ_CONCAT:
        return eval_concat(r, s, n, out);
    default:
        return eval_operator(r, s, n, out);
    }
}

int spw_jj_eval(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                struct spw_jj_value *out)
{
    r->line = n->line;
    if (n->kind == SPW_JJ_CONST) {
        *out = n->value;
        return spw_jj_charge(r, 1);
    }
    if (n->kind == SPW_JJ_NAME) {
        SPW_TRY(spw_jj_charge(r, 1));
        return load(r, s, n->name, out);
    }
    SPW_TRY(spw_jj_enter(r));
    SPW_TRY(eval_deeper(r, s, n, out));
    r->depth--;
    return 0;
}
