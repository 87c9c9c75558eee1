/* Statements of a Jinja template, and the parse of a whole one: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

/* ---- tokens ---- */

const struct token *spw_jinja_now(const struct parser *p)
{
    return &p->tokens.at[p->at];
}

static bool is_name(const struct token *t, const char *name)
{
    return t->type == SPW_JINJA_T_NAME && t->bytes == strlen(name) &&
           !memcmp(t->at, name, t->bytes);
}

bool spw_jinja_at_name(const struct parser *p, const char *name)
{
    return is_name(spw_jinja_now(p), name);
}

bool spw_jinja_skip_name(struct parser *p, const char *name)
{
    bool found = spw_jinja_at_name(p, name);
    p->at += found;
    return found;
}

bool spw_jinja_skip(struct parser *p, int type)
{
    bool found = spw_jinja_now(p)->type == type;
    p->at += found;
    return found;
}

static const char *type_text(int type, char text[4])
{
    static const char *const names[] = {
        [SPW_JINJA_T_END] = "the end of the template",
        [SPW_JINJA_T_DATA] = "text",
        [SPW_JINJA_T_BLOCK_BEGIN] = "{%",
        [SPW_JINJA_T_BLOCK_END] = "%}",
        [SPW_JINJA_T_VARIABLE_BEGIN] = "{{",
        [SPW_JINJA_T_VARIABLE_END] = "}}",
        [SPW_JINJA_T_NAME] = "a name",
        [SPW_JINJA_T_STRING] = "a string",
        [SPW_JINJA_T_INTEGER] = "a number",
        [SPW_JINJA_T_FLOAT] = "a number",
    };
    if (type < (int)(sizeof names / sizeof *names))
        return names[type];
    snprintf(text, 4, "'%c'", type);
    return text;
}

void spw_jinja_unexpected(struct parser *p, const char *expected)
{
    const struct token *t = spw_jinja_now(p);
    char text[4];
    if (t->type == SPW_JINJA_T_NAME || t->type >= SPW_JINJA_T_EQ)
        spw_jinja_syntax(p, t->line, "found '%.*s', expected %s", (int)spw_min_u64(t->bytes, 64),
                         t->at, expected);
    spw_jinja_syntax(p, t->line, "found %s, expected %s", type_text(t->type, text), expected);
}

void spw_jinja_expect(struct parser *p, int type)
{
    char text[4];
    if (!spw_jinja_skip(p, type))
        spw_jinja_unexpected(p, type_text(type, text));
}

/* ---- memory ---- */

struct node *spw_jinja_new_node(struct parser *p, enum kind kind, uint32_t line)
{
    struct node *n = spw_jinja_take(p->run, sizeof *n);
    n->kind = kind;
    n->line = line;
    return n;
}

void spw_jinja_deeper(struct parser *p)
{
    if (++p->run->depth > SPW_JINJA_MAX_PARSE_DEPTH)
        spw_jinja_syntax(p, spw_jinja_now(p)->line,
                         "found more than %d expressions and blocks inside each other",
                         SPW_JINJA_MAX_PARSE_DEPTH);
}

static const struct string *intern(struct parser *p, const char *text, size_t bytes)
{
    struct value name = spw_jinja_borrow(p->run, text, bytes);
    return spw_jinja_dict_set(p->run, p->names, name, none_value())->key.u.string;
}

const struct string *spw_jinja_parse_name(struct parser *p)
{
    const struct token *t = spw_jinja_now(p);
    if (t->type != SPW_JINJA_T_NAME)
        spw_jinja_unexpected(p, "a name");
    p->at++;
    return intern(p, t->at, t->bytes);
}

/* ---- statements ---- */

static struct node *parse_body(struct parser *p, const char *const *ends);

/* "%}", the body, and the tag that ends it, whose name stays ahead. */
static struct node *parse_block(struct parser *p, const char *const *ends)
{
    spw_jinja_skip(p, ':');
    spw_jinja_expect(p, SPW_JINJA_T_BLOCK_END);
    return parse_body(p, ends);
}

/* The same where only one tag can end it, which is passed over. */
static struct node *parse_whole_block(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body = parse_block(p, ends);
    p->at++;
    return body;
}

/* `else` and its block, if they are there, and the tag that ends the whole. */
static struct node *parse_else(struct parser *p, const char *end)
{
    if (spw_jinja_skip_name(p, "else"))
        return parse_whole_block(p, end);
    p->at++;
    return NULL;
}

static void parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    n->kind = SPW_JINJA_N_IF;
    for (;; n = n->other) {
        n->a = spw_jinja_parse_tuple(p, true);
        n->body = parse_block(p, ends);
        n->op = spw_jinja_skip_name(p, "elif");
        if (!n->op)
            break;
        n->other = spw_jinja_new_node(p, SPW_JINJA_N_IF, spw_jinja_now(p)->line);
    }
    n->other = parse_else(p, "endif");
}

static void parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    n->kind = SPW_JINJA_N_FOR;
    n->a = spw_jinja_parse_target(p, false, "in");
    if (!spw_jinja_skip_name(p, "in"))
        spw_jinja_unexpected(p, "in");
    n->b = spw_jinja_parse_tuple(p, true);
    if (spw_jinja_skip_name(p, "if"))
        n->c = spw_jinja_parse_expression(p);
    p->loops++;
    n->body = parse_block(p, ends);
    p->loops--;
    n->other = parse_else(p, "endfor");
}

static void parse_set(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_SET;
    n->a = spw_jinja_parse_target(p, true, NULL);
    if (spw_jinja_skip(p, '=')) {
        n->b = spw_jinja_parse_tuple(p, false);
        return;
    }
    n->kind = SPW_JINJA_N_SET_BLOCK;
    n->b = spw_jinja_parse_filters(p, NULL, false);
    n->body = parse_whole_block(p, "endset");
}

static struct node *parse_parameter(struct parser *p, const struct node *macro)
{
    struct node *arg = spw_jinja_new_node(p, SPW_JINJA_N_NAME, spw_jinja_now(p)->line);
    arg->name = spw_jinja_parse_name(p);
    if (macro->count == SPW_JINJA_MAX_ARGS)
        spw_jinja_syntax(p, arg->line, "found more than %d parameters", SPW_JINJA_MAX_ARGS);
    for (const struct node *other = macro->list; other; other = other->next)
        if (other->name == arg->name)
            spw_jinja_syntax(p, arg->line, "found the argument '%.*s' twice",
                             (int)spw_min_u64(arg->name->bytes, 64), arg->name->at);
    if (spw_jinja_skip(p, '='))
        arg->a = spw_jinja_parse_expression(p);
    else if (macro->count && macro->op)
        spw_jinja_syntax(p, arg->line, "found a parameter without a default after one with");
    return arg;
}

/* (name, name=expression, ...) */
static void parse_signature(struct parser *p, struct node *n)
{
    struct node **last = &n->list;
    spw_jinja_expect(p, '(');
    for (; spw_jinja_now(p)->type != ')'; n->count++) {
        if (n->count)
            spw_jinja_expect(p, ',');
        *last = parse_parameter(p, n);
        n->op = (*last)->a != NULL;
        last = &(*last)->next;
    }
    spw_jinja_expect(p, ')');
}

/* The body of a macro or a call block. Whether it reads `caller` decides what it may be given; what
 * is read in a macro inside it counts too. */
static void parse_macro_body(struct parser *p, const char *end, struct node *n)
{
    bool outer = p->reads_caller;
    int loops = p->loops;
    p->reads_caller = false;
    p->loops = 0;
    n->body = parse_whole_block(p, end);
    n->op = p->reads_caller;
    p->reads_caller |= outer;
    p->loops = loops;
    for (struct node *arg = n->list; arg; arg = arg->next)
        if (arg->name == p->template->caller)
            spw_jinja_syntax(p, n->line,
                             "found a parameter called caller, which spillway does not know");
}

static void parse_macro(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_MACRO;
    n->name = spw_jinja_parse_name(p);
    parse_signature(p, n);
    parse_macro_body(p, "endmacro", n);
}

static void parse_call_block(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_CALL_BLOCK;
    if (spw_jinja_now(p)->type == '(')
        parse_signature(p, n);
    n->a = spw_jinja_parse_expression(p);
    if (n->a->kind != SPW_JINJA_N_CALL)
        spw_jinja_syntax(p, n->line, "found no call in {%% call %%}, expected one");
    parse_macro_body(p, "endcall", n);
}

static void parse_filter_block(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_FILTER_BLOCK;
    n->b = spw_jinja_parse_filters(p, NULL, true);
    n->body = parse_whole_block(p, "endfilter");
}

static void parse_generation(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_GENERATION; /* the body of a call block, so caller is not the macro's */
    parse_macro_body(p, "endgeneration", n);
}

static void parse_jump(struct parser *p, struct node *n)
{
    bool is_break = is_name(spw_jinja_now(p) - 1, "break");
    n->kind = is_break ? SPW_JINJA_N_BREAK : SPW_JINJA_N_CONTINUE;
    if (!p->loops)
        spw_jinja_syntax(p, n->line, "found '%s' outside of a loop",
                         is_break ? "break" : "continue");
}

static struct node *parse_statement(struct parser *p)
{
    static const struct {
        const char *name;
        void (*parse)(struct parser *p, struct node *n);
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"generation", parse_generation},
        {"break", parse_jump},
        {"continue", parse_jump},
    };
    struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_TEXT, spw_jinja_now(p)->line);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (spw_jinja_skip_name(p, statements[i].name)) {
            statements[i].parse(p, n);
            spw_jinja_expect(p, SPW_JINJA_T_BLOCK_END);
            return n;
        }
    spw_jinja_unexpected(p, "a tag that chat templates have");
}

static struct node *parse_text(struct parser *p)
{
    const struct token *t = spw_jinja_now(p);
    struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_TEXT, t->line);
    n->value = spw_jinja_borrow(p->run, t->at, t->bytes);
    p->at++;
    return n;
}

static struct node *parse_output(struct parser *p)
{
    struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_OUTPUT, spw_jinja_now(p)->line);
    n->a = spw_jinja_parse_tuple(p, false);
    spw_jinja_expect(p, SPW_JINJA_T_VARIABLE_END);
    return n;
}

/* Statements up to a tag of one of the names (NULL: up to the end), which stays ahead. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
    struct node *body = NULL, **last = &body;
    spw_jinja_deeper(p);
    for (; spw_jinja_now(p)->type != SPW_JINJA_T_END; last = &(*last)->next) {
        if (spw_jinja_now(p)->type == SPW_JINJA_T_DATA) {
            *last = parse_text(p);
        } else if (spw_jinja_skip(p, SPW_JINJA_T_VARIABLE_BEGIN)) {
            *last = parse_output(p);
        } else {
            spw_jinja_expect(p, SPW_JINJA_T_BLOCK_BEGIN);
            for (const char *const *end = ends; end && *end; end++)
                if (spw_jinja_at_name(p, *end)) {
                    p->run->depth--;
                    return body;
                }
            *last = parse_statement(p);
        }
    }
    p->run->depth--;
    if (!ends)
        return body;
    char expected[64];
    while (ends[1]) /* the one that closes */
        ends++;
    snprintf(expected, sizeof expected, "{%% %s %%}", ends[0]);
    spw_jinja_unexpected(p, expected);
}

/* ---- a whole template ---- */

static void parse_template(struct run *r, void *arg)
{
    struct parser *p = arg;
    struct spw_jinja *t = p->template;
    if (t->bytes > SPW_JINJA_MAX_SOURCE)
        spw_jinja_stop(r, -E2BIG, "found a template of %zu bytes, expected at most %u", t->bytes,
                       SPW_JINJA_MAX_SOURCE);
    t->name = spw_jinja_copy(r, t->name, strlen(t->name) + 1).u.string->at;
    t->text = spw_jinja_copy(r, t->text, t->bytes).u.string->at;
    p->names = spw_jinja_new_dict(r);
    t->loop = intern(p, "loop", 4);
    t->caller = intern(p, "caller", 6);
    spw_jinja_lex(r, t->text, t->bytes, &p->tokens);
    t->body = parse_body(p, NULL);
}

int spw_jinja_parse(struct spw_jinja **out, const char *text, size_t bytes, const char *name,
                    struct spw_error *err)
{
    struct spw_jinja *t = spw_alloc_zero(1, sizeof *t);
    *out = NULL;
    if (!t)
        return spw_fail(err, -ENOMEM, "%s: out of memory", name);
    *t = (struct spw_jinja){.name = name, .text = text, .bytes = bytes};
    struct run r = {.arena.limit = SIZE_MAX / 4,
                    .name = name,
                    .line = 1,
                    .err = err,
                    .work_left = (int64_t)SPW_JINJA_WORK_BASE << 6};
    struct parser p = {.run = &r, .template = t};
    int rc = spw_jinja_try(&r, parse_template, &p);
    t->arena = r.arena;
    spw_free(p.tokens.at);
    if (rc)
        spw_jinja_free(t);
    else
        *out = t;
    return rc;
}

bool spw_jinja_has(const struct spw_jinja *t, const char *words)
{
    return t && memmem(t->text, t->bytes, words, strlen(words)) != NULL;
}

void spw_jinja_free(struct spw_jinja *t)
{
    if (!t)
        return;
    spw_jinja_arena_free(&t->arena);
    spw_free(t);
}
