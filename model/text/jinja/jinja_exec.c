/* Statements of a Jinja template, and the rendering of a whole one: see jinja_impl.h.
 *
 * A statement returns 0, BREAK or CONTINUE on the way to the loop that means, or -errno. Scopes
 * follow jinja2's: a loop's body, a macro, a block that is captured have one of their own, `if` has
 * not. */
#include "model/text/jinja/jinja_impl.h"

enum { BREAK = 1, CONTINUE = 2 };

static int exec_body(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *body);

static int new_scope(struct spw_jj_run *r, struct spw_jj_scope *parent, struct spw_jj_scope **out)
{
    *out = spw_jj_take(&r->arena, sizeof **out);
    if (!*out)
        return spw_jj_no_memory(r);
    (*out)->parent = parent;
    return 0;
}

/* The body's output as a string, or where a jump in it leads. */
static int capture(struct spw_jj_run *r, struct spw_jj_scope *parent,
                   const struct spw_jj_node *body, struct spw_jj_value *out)
{
    struct spw_jj_scope *s;
    size_t start = r->out.bytes;
    SPW_TRY(new_scope(r, parent, &s));
    int flow = exec_body(r, s, body);
    if (!flow)
        return spw_jj_captured(r, start, out);
    r->out.bytes = start; /* a jump out of the block: what it printed is lost */
    return flow;
}

/* ---- loops ---- */

/* The next item that the loop's condition lets through. */
static int fetch(struct spw_jj_run *r, struct spw_jj_loop *loop, struct spw_jj_value *out,
                 bool *more)
{
    struct spw_jj_scope *s;
    struct spw_jj_value v;
    bool yes;
    for (;;) {
        SPW_TRY(spw_jj_next(r, loop->items, out, more));
        if (!*more || !loop->condition)
            return 0;
        SPW_TRY(new_scope(r, loop->scope, &s));
        SPW_TRY(spw_jj_assign(r, s, loop->node->a, *out));
        SPW_TRY(spw_jj_eval(r, s, loop->condition, &v));
        SPW_TRY(spw_jj_truth(r, v, &yes));
        if (yes)
            return 0;
    }
}

static int advance(struct spw_jj_run *r, struct spw_jj_loop *loop, bool *more)
{
    struct spw_jj_value v = loop->after;
    *more = loop->has_after;
    if (!loop->has_after && !loop->ended)
        SPW_TRY(fetch(r, loop, &v, more));
    loop->has_after = false;
    loop->ended = !*more;
    if (!*more)
        return 0;
    loop->before = loop->current;
    loop->current = v;
    loop->index0++;
    return 0;
}

static int peek(struct spw_jj_run *r, struct spw_jj_loop *loop)
{
    if (loop->has_after || loop->ended)
        return 0;
    SPW_TRY(fetch(r, loop, &loop->after, &loop->has_after));
    loop->ended = !loop->has_after;
    return 0;
}

/* Where it is not known beforehand, what is left is walked to its end and kept. */
static int loop_length(struct spw_jj_run *r, struct spw_jj_loop *loop)
{
    struct spw_jj_value rest, v;
    bool more;
    if (loop->length >= 0)
        return 0;
    SPW_TRY(spw_jj_new_list(r, SPW_JJ_LIST, &rest));
    for (;;) {
        SPW_TRY(fetch(r, loop, &v, &more));
        if (!more)
            break;
        SPW_TRY(spw_jj_append(r, rest.u.list, v));
    }
    loop->condition = NULL;
    loop->length = (int64_t)rest.u.list->n + loop->index0 + 1 + loop->has_after;
    return spw_jj_new_iterator(r, rest, &loop->items);
}

int spw_jj_loop_attr(struct spw_jj_run *r, struct spw_jj_loop *loop,
                     const struct spw_jj_string *name, struct spw_jj_value *out)
{
    enum { INDEX, INDEX0, FIRST, LAST, NEXTITEM, LENGTH, REVINDEX, REVINDEX0, PREVITEM, N };
    static const char *const names[] = {"index",  "index0",   "first",     "last",    "nextitem",
                                        "length", "revindex", "revindex0", "previtem"};
    size_t k = 0;
    while (k < N && !spw_jj_is_text(spw_jj_constant(name), names[k]))
        k++;
    if (k == LAST || k == NEXTITEM)
        SPW_TRY(peek(r, loop));
    if (k == LENGTH || k == REVINDEX || k == REVINDEX0)
        SPW_TRY(loop_length(r, loop));
    const struct spw_jj_value values[] = {
        spw_jj_int(loop->index0 + 1),
        spw_jj_int(loop->index0),
        spw_jj_bool(loop->index0 == 0),
        spw_jj_bool(!loop->has_after),
        loop->after,
        spw_jj_int(loop->length),
        spw_jj_int(loop->length - loop->index0),
        spw_jj_int(loop->length - loop->index0 - 1),
        loop->before,
    };
    if (k == NEXTITEM && !loop->has_after)
        return spw_jj_undefined_hint(r, "there is no next item", out);
    if (k == PREVITEM && loop->index0 == 0)
        return spw_jj_undefined_hint(r, "there is no previous item", out);
    *out = k < N ? values[k] : (struct spw_jj_value){.type = SPW_JJ_MISSING};
    return 0;
}

static int exec_for(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n)
{
    struct spw_jj_value over;
    SPW_TRY(spw_jj_eval(r, s, n->b, &over));
    struct spw_jj_loop *loop = spw_jj_take(&r->arena, sizeof *loop);
    struct spw_jj_scope *body;
    bool more, whole = false; /* as in jinja2: `else` unless an iteration came to its end */
    if (!loop)
        return spw_jj_no_memory(r);
    *loop =
        (struct spw_jj_loop){.node = n, .scope = s, .condition = n->c, .index0 = -1, .length = -1};
    SPW_TRY(spw_jj_iterate(r, over, &loop->items));
    if (over.type != SPW_JJ_ITERATOR && !n->c)
        SPW_TRY(spw_jj_length(r, over, &loop->length));
    SPW_TRY(new_scope(r, s, &body));
    for (;;) {
        SPW_TRY(advance(r, loop, &more));
        if (!more)
            break;
        body->n = 0;
        SPW_TRY(spw_jj_set(r, body, r->template->loop,
                           (struct spw_jj_value){.type = SPW_JJ_LOOP, .u.loop = loop}));
        SPW_TRY(spw_jj_assign(r, body, n->a, loop->current));
        int flow = exec_body(r, body, n->body);
        if (flow < 0)
            return flow;
        if (flow == BREAK)
            break;
        whole |= flow == 0;
        r->line = n->line;
    }
    if (whole || !n->other)
        return 0;
    SPW_TRY(new_scope(r, s, &body));
    return exec_body(r, body, n->other);
}

/* ---- macros ---- */

static bool is_bound(const struct spw_jj_scope *s, const struct spw_jj_string *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name)
            return true;
    return false;
}

static int bind_given(struct spw_jj_run *r, const struct spw_jj_node *n, struct spw_jj_scope *s,
                      const struct spw_jj_args *args)
{
    const struct spw_jj_string *macro = n->name ? n->name : r->template->caller;
    const struct spw_jj_node *param = n->list;
    int bytes = (int)spw_min_u64(macro->bytes, 64);
    if (args->n > n->count)
        return spw_jj_fail(r, "macro '%.*s': found %zu arguments, expected at most %u", bytes,
                           macro->at, args->n, n->count);
    for (size_t k = 0; k < args->n; k++, param = param->next)
        SPW_TRY(spw_jj_set(r, s, param->name, args->at[k]));
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const struct spw_jj_string *name = args->named->at[i].key.u.string;
        const struct spw_jj_node *its = param;
        SPW_TRY(spw_jj_charge(r, n->count));
        while (its && its->name != name)
            its = its->next;
        if (!its && !(n->op && name == r->template->caller))
            return spw_jj_fail(r, "macro '%.*s' takes no argument '%.*s' by name", bytes, macro->at,
                               (int)spw_min_u64(name->bytes, 64), name->at);
        SPW_TRY(spw_jj_set(r, s, name, args->named->at[i].value));
    }
    return 0;
}

static int bind_missing(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *arg)
{
    struct spw_jj_value v;
    if (arg->a) {
        SPW_TRY(spw_jj_eval(r, s, arg->a, &v));
        return spw_jj_set(r, s, arg->name, v);
    }
    static const char text[] = "parameter '%' was not provided";
    size_t room = sizeof text + arg->name->bytes, before = 11;
    char *hint = spw_jj_take(&r->arena, room);
    if (!hint)
        return spw_jj_no_memory(r);
    memcpy(hint, text, before);
    memcpy(hint + before, arg->name->at, arg->name->bytes);
    memcpy(hint + before + arg->name->bytes, text + before + 1, sizeof text - before - 1);
    SPW_TRY(spw_jj_undefined_hint(r, hint, &v));
    return spw_jj_set(r, s, arg->name, v);
}

int spw_jj_call_macro(struct spw_jj_run *r, const struct spw_jj_macro *m,
                      const struct spw_jj_args *args, struct spw_jj_value *out)
{
    const struct spw_jj_node *n = m->node;
    struct spw_jj_scope *s;
    struct spw_jj_value v;
    uint32_t line = r->line;
    size_t start = r->out.bytes;
    SPW_TRY(new_scope(r, m->scope, &s));
    SPW_TRY(bind_given(r, n, s, args));
    if (n->op && !is_bound(s, r->template->caller)) {
        SPW_TRY(spw_jj_undefined_hint(r, "there is no caller", &v));
        SPW_TRY(spw_jj_set(r, s, r->template->caller, v));
    }
    for (const struct spw_jj_node *arg = n->list; arg; arg = arg->next)
        if (!is_bound(s, arg->name))
            SPW_TRY(bind_missing(r, s, arg));
    SPW_TRY(exec_body(r, s, n->body));
    r->line = line;
    return spw_jj_captured(r, start, out);
}

static int new_macro(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                     struct spw_jj_value *out)
{
    struct spw_jj_macro *m = spw_jj_take(&r->arena, sizeof *m);
    if (!m)
        return spw_jj_no_memory(r);
    *m = (struct spw_jj_macro){n, s};
    *out = (struct spw_jj_value){.type = SPW_JJ_MACRO, .u.macro = m};
    return 0;
}

static int exec_call_block(struct spw_jj_run *r, struct spw_jj_scope *s,
                           const struct spw_jj_node *n)
{
    struct spw_jj_value f, caller, result;
    struct spw_jj_args args;
    SPW_TRY(new_macro(r, s, n, &caller));
    SPW_TRY(spw_jj_eval(r, s, n->a->a, &f));
    SPW_TRY(spw_jj_eval_args(r, s, n->a->list, &args));
    SPW_TRY(spw_jj_add_named(r, &args, r->template->caller, caller));
    r->line = n->line;
    SPW_TRY(spw_jj_call(r, f, &args, &result));
    return spw_jj_print_value(r, result);
}

/* ---- the rest ---- */

static int exec_output(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n)
{
    struct spw_jj_value v;
    for (const struct spw_jj_node *e = n->list; e; e = e->next) {
        SPW_TRY(spw_jj_eval(r, s, e, &v));
        r->line = n->line;
        SPW_TRY(spw_jj_print_value(r, v));
    }
    return 0;
}

static int exec_if(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n)
{
    struct spw_jj_value v;
    bool yes;
    for (;; n = n->other) {
        SPW_TRY(spw_jj_eval(r, s, n->a, &v));
        SPW_TRY(spw_jj_truth(r, v, &yes));
        if (yes)
            return exec_body(r, s, n->body);
        if (!n->op) /* what follows is `else`, not `elif` */
            return exec_body(r, s, n->other);
    }
}

/* A chain of filters that begins with no value: that of set and filter blocks. */
static int apply_filters(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                         struct spw_jj_value v, struct spw_jj_value *out)
{
    struct spw_jj_args args;
    if (!n) {
        *out = v;
        return 0;
    }
    SPW_TRY(apply_filters(r, s, n->a, v, &v));
    SPW_TRY(spw_jj_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return spw_jj_call_filter(r, n->name, v, &args, out);
}

static int exec_captured(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n)
{
    struct spw_jj_value v;
    int flow = capture(r, s, n->body, &v);
    if (flow)
        return flow;
    SPW_TRY(apply_filters(r, s, n->b, v, &v));
    return n->kind == SPW_JJ_SET_BLOCK ? spw_jj_assign(r, s, n->a, v) : spw_jj_print_value(r, v);
}

static int exec_statement(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n)
{
    struct spw_jj_scope *inner;
    struct spw_jj_value v;
    r->line = n->line;
    switch (n->kind) {
    case SPW_JJ_TEXT:
        return spw_jj_print(r, n->name->at, n->name->bytes);
    case SPW_JJ_OUTPUT:
        return exec_output(r, s, n);
    case SPW_JJ_IF:
        return exec_if(r, s, n);
    case SPW_JJ_FOR:
        return exec_for(r, s, n);
    case SPW_JJ_SET:
        SPW_TRY(spw_jj_eval(r, s, n->b, &v));
        return spw_jj_assign(r, s, n->a, v);
    case SPW_JJ_SET_BLOCK:
    case SPW_JJ_FILTER_BLOCK:
        return exec_captured(r, s, n);
    case SPW_JJ_MACRO_DEF:
        SPW_TRY(new_macro(r, s, n, &v));
        return spw_jj_set(r, s, n->name, v);
    case SPW_JJ_CALL_BLOCK:
        return exec_call_block(r, s, n);
    case SPW_JJ_GENERATION:
        SPW_TRY(new_scope(r, s, &inner));
        return exec_body(r, inner, n->body);
    case SPW_JJ_BREAK:
        return BREAK;
    default:
        return CONTINUE;
    }
}

static int exec_body(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *body)
{
    int flow = 0;
    SPW_TRY(spw_jj_enter(r));
    for (const struct spw_jj_node *n = body; n && !flow; n = n->next) {
        SPW_TRY(spw_jj_charge(r, 1));
        flow = exec_statement(r, s, n);
    }
    r->depth--;
    return flow;
}

/* ---- rendering ---- */

/* About how much a template is given to work on. */
static uint64_t weight(const json_t *json, unsigned depth)
{
    uint64_t sum = 32;
    const char *key;
    json_t *item;
    if (json_is_string(json))
        return sum + json_string_length(json);
    if (depth > SPW_JINJA_MAX_DEPTH)
        return sum;
    if (json_is_array(json))
        for (size_t i = 0; i < json_array_size(json); i++)
            sum += weight(json_array_get(json, i), depth + 1);
    json_object_foreach((json_t *)(uintptr_t)json, key, item) sum +=
        32 + strlen(key) + weight(item, depth + 1);
    return sum;
}

int spw_jinja_render(const struct spw_jinja *t, const struct spw_jinja_input *in, char **text,
                     size_t *bytes, struct spw_error *err)
{
    uint64_t given = weight(in->vars, 0);
    struct spw_jj_run r = {
        .arena.limit = SPW_JINJA_MEMORY_BASE + given * SPW_JINJA_MEMORY_FACTOR,
        .in = in,
        .template = t,
        .name = t->name,
        .out_limit = SPW_JINJA_OUTPUT_BASE + given * SPW_JINJA_OUTPUT_FACTOR,
        .work_left = (int64_t)(SPW_JINJA_WORK_BASE + given * SPW_JINJA_WORK_FACTOR),
        .line = 1,
        .err = err,
    };
    struct spw_jj_scope *top;
    struct spw_jj_value vars;
    *text = NULL;
    int rc = new_scope(&r, NULL, &top);
    if (!rc)
        rc = spw_jj_from_json(&r, in->vars, &vars);
    if (!rc) {
        r.vars = vars.u.dict;
        rc = exec_body(&r, top, t->body);
    }
    if (!rc)
        rc = spw_jj_print(&r, "", 0); /* there is a buffer, with room for the NUL */
    spw_jj_arena_free(&r.arena);
    if (rc) {
        spw_free(r.out.at);
        return rc;
    }
    r.out.at[r.out.bytes] = 0;
    *text = r.out.at;
    *bytes = r.out.bytes;
    return 0;
}
