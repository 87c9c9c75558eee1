/* Statements of a Jinja template, and the rendering of a whole one: see jinja_impl.h.
 *
 * Scopes follow jinja2's: a loop's body, a macro, a block that is captured have one of their own,
 * `if` has not. */
#include "model/text/jinja/jinja_impl.h"

/* Where a statement leads: to the next one, or to the loop that it ends or goes on with. */
enum flow { NEXT, BREAK, CONTINUE };

static enum flow exec_body(struct run *r, const struct node *body);

/* Begins a scope in `parent`; returns the one that it takes the place of. */
static struct scope *enter_scope(struct run *r, struct scope *parent)
{
    struct scope *outer = r->scope;
    r->scope = spw_jinja_take(r, sizeof *r->scope);
    r->scope->parent = parent;
    return outer;
}

/* The body in a scope of its own. */
static enum flow exec_inner(struct run *r, const struct node *body)
{
    struct scope *outer = enter_scope(r, r->scope);
    enum flow flow = exec_body(r, body);
    r->scope = outer;
    return flow;
}

/* ---- loops ---- */

/* What the loop's condition lets through. */
static struct list *loop_items(struct run *r, const struct node *n)
{
    struct list *all = spw_jinja_items(r, spw_jinja_eval(r, n->b)), *some;
    if (!n->c)
        return all;
    some = spw_jinja_new_list(r);
    struct scope *outer = enter_scope(r, r->scope);
    for (size_t i = 0; i < all->n; i++) {
        r->scope->n = 0;
        spw_jinja_assign(r, n->a, all->at[i]);
        if (spw_jinja_truth(spw_jinja_eval(r, n->c)))
            spw_jinja_append(r, some, all->at[i]);
    }
    r->scope = outer;
    return some;
}

static enum flow exec_for(struct run *r, const struct node *n)
{
    struct loop *loop = spw_jinja_take(r, sizeof *loop);
    const struct value its = {.type = SPW_JINJA_LOOP, .u.loop = loop};
    loop->items = loop_items(r, n);
    struct scope *outer = enter_scope(r, r->scope);
    enum flow flow = NEXT;
    bool whole = false; /* as in jinja2: `else` unless an iteration came to its end */
    for (; loop->at < loop->items->n && flow != BREAK; loop->at++) {
        r->scope->n = 0;
        spw_jinja_set(r, r->template->loop, its);
        spw_jinja_assign(r, n->a, loop->items->at[loop->at]);
        flow = exec_body(r, n->body);
        whole |= flow == NEXT;
        r->line = n->line;
    }
    r->scope = outer;
    return whole ? NEXT : exec_inner(r, n->other);
}

/* ---- macros ---- */

static bool is_bound(const struct scope *s, const struct string *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name)
            return true;
    return false;
}

static void bind_given(struct run *r, const struct node *n, const struct args *args)
{
    const struct string *caller = r->template->caller, *macro = n->name ? n->name : caller;
    const struct node *param = n->list;
    int bytes = (int)spw_min_u64(macro->bytes, 64);
    if (args->n > n->count)
        spw_jinja_fail(r, "macro '%.*s': found %zu arguments, expected at most %u", bytes,
                       macro->at, args->n, n->count);
    for (size_t k = 0; k < args->n; k++, param = param->next)
        spw_jinja_set(r, param->name, args->at[k]);
    for (size_t i = 0; i < args->named->n; i++) {
        const struct string *name = args->named->at[i].key.u.string;
        const struct node *its = param;
        spw_jinja_charge(r, n->count);
        while (its && its->name != name)
            its = its->next;
        if (!its && !(n->op && name == caller))
            spw_jinja_fail(r, "macro '%.*s' takes no argument '%.*s' by name", bytes, macro->at,
                           (int)spw_min_u64(name->bytes, 64), name->at);
        spw_jinja_set(r, name, args->named->at[i].value);
    }
}

/* What a parameter without an argument holds. */
static struct value missing(struct run *r, const struct node *param)
{
    size_t start = r->out_bytes;
    if (param->a)
        return spw_jinja_eval(r, param->a);
    spw_jinja_print_text(r, "parameter '");
    spw_jinja_print(r, param->name->at, param->name->bytes);
    spw_jinja_print(r, "' was not provided", sizeof "' was not provided");
    return spw_jinja_undefined_hint(r, spw_jinja_captured(r, start).u.string->at);
}

struct value spw_jinja_call_macro(struct run *r, const struct macro *m, const struct args *args)
{
    const struct string *caller = r->template->caller;
    struct scope *outer = enter_scope(r, m->scope);
    uint32_t line = r->line;
    size_t start = r->out_bytes;
    bind_given(r, m->node, args);
    if (m->node->op && !is_bound(r->scope, caller))
        spw_jinja_set(r, caller, spw_jinja_undefined_hint(r, "there is no caller"));
    for (const struct node *param = m->node->list; param; param = param->next)
        if (!is_bound(r->scope, param->name))
            spw_jinja_set(r, param->name, missing(r, param));
    exec_body(r, m->node->body);
    r->scope = outer;
    r->line = line;
    return spw_jinja_captured(r, start);
}

static struct value new_macro(struct run *r, const struct node *n)
{
    struct macro *m = spw_jinja_take(r, sizeof *m);
    *m = (struct macro){n, r->scope};
    return (struct value){.type = SPW_JINJA_MACRO, .u.macro = m};
}

static void exec_call_block(struct run *r, const struct node *n)
{
    struct value caller = new_macro(r, n), f = spw_jinja_eval(r, n->a->a);
    struct args args = spw_jinja_eval_args(r, n->a->list);
    spw_jinja_dict_set(r, args.named, string_value(r->template->caller), caller);
    r->line = n->line;
    spw_jinja_print_value(r, spw_jinja_call(r, f, &args));
}

/* ---- the rest ---- */

static enum flow exec_if(struct run *r, const struct node *n)
{
    for (;; n = n->other) {
        if (spw_jinja_truth(spw_jinja_eval(r, n->a)))
            return exec_body(r, n->body);
        if (!n->op) /* what follows is `else`, not `elif` */
            return exec_body(r, n->other);
    }
}

/* A chain of filters that begins with no value: that of set and filter blocks. */
static struct value apply_filters(struct run *r, const struct node *n, struct value v)
{
    if (!n)
        return v;
    v = apply_filters(r, n->a, v);
    struct args args = spw_jinja_eval_args(r, n->list);
    r->line = n->line;
    return spw_jinja_call_named(r, SPW_JINJA_FILTER, n->name, v, &args);
}

static enum flow exec_captured(struct run *r, const struct node *n)
{
    size_t start = r->out_bytes;
    enum flow flow = exec_inner(r, n->body);
    struct value v = spw_jinja_captured(r, start);
    if (flow != NEXT) /* a jump out of the block: what it printed is lost */
        return flow;
    v = apply_filters(r, n->b, v);
    if (n->kind == SPW_JINJA_N_SET_BLOCK)
        spw_jinja_assign(r, n->a, v);
    else
        spw_jinja_print_value(r, v);
    return NEXT;
}

static void exec_output(struct run *r, const struct node *n)
{
    struct value v = spw_jinja_eval(r, n->a);
    r->line = n->line;
    spw_jinja_print_value(r, v);
}

static enum flow exec_statement(struct run *r, const struct node *n)
{
    r->line = n->line;
    switch (n->kind) {
    case SPW_JINJA_N_TEXT:
        spw_jinja_print_value(r, n->value);
        return NEXT;
    case SPW_JINJA_N_OUTPUT:
        exec_output(r, n);
        return NEXT;
    case SPW_JINJA_N_IF:
        return exec_if(r, n);
    case SPW_JINJA_N_FOR:
        return exec_for(r, n);
    case SPW_JINJA_N_SET:
        spw_jinja_assign(r, n->a, spw_jinja_eval(r, n->b));
        return NEXT;
    case SPW_JINJA_N_SET_BLOCK:
    case SPW_JINJA_N_FILTER_BLOCK:
        return exec_captured(r, n);
    case SPW_JINJA_N_MACRO:
        spw_jinja_set(r, n->name, new_macro(r, n));
        return NEXT;
    case SPW_JINJA_N_CALL_BLOCK:
        exec_call_block(r, n);
        return NEXT;
    case SPW_JINJA_N_GENERATION:
        return exec_inner(r, n->body);
    default:
        return n->kind == SPW_JINJA_N_BREAK ? BREAK : CONTINUE;
    }
}

static enum flow exec_body(struct run *r, const struct node *body)
{
    enum flow flow = NEXT;
    spw_jinja_enter(r);
    for (const struct node *n = body; n && flow == NEXT; n = n->next) {
        spw_jinja_charge(r, 1);
        flow = exec_statement(r, n);
    }
    r->depth--;
    return flow;
}

/* ---- rendering ---- */

static void render(struct run *r, void *unused)
{
    (void)unused;
    r->vars = spw_jinja_from_json(r, r->in->vars).u.dict;
    exec_inner(r, r->template->body);
    spw_jinja_print(r, "", 1);
}

int spw_jinja_render(const struct spw_jinja *t, const struct spw_jinja_input *in, char **text,
                     size_t *bytes, struct spw_error *err)
{
    struct run r = {
        .arena.limit = SPW_JINJA_MEMORY_BASE,
        .in = in,
        .template = t,
        .name = t->name,
        .out_limit = SPW_JINJA_OUTPUT_BASE,
        .work_left = SPW_JINJA_WORK_BASE,
        .line = 1,
        .err = err,
    };
    int rc = spw_jinja_try(&r, render, NULL);
    spw_jinja_arena_free(&r.arena);
    *text = rc ? NULL : r.out;
    if (rc)
        spw_free(r.out);
    else
        *bytes = r.out_bytes - 1; /* without the NUL */
    return rc;
}
