/* Statements of a Jinja template, and what both halves of the parser stand on: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- tokens ---- */

const struct spw_jj_token *spw_jj_now(const struct spw_jj_parser *p)
{
    return &p->tokens.at[p->at];
}

static bool is_name(const struct spw_jj_token *t, const char *name)
{
    return t->type == SPW_JJ_T_NAME && t->bytes == strlen(name) && !memcmp(t->at, name, t->bytes);
}

bool spw_jj_at_name(const struct spw_jj_parser *p, const char *name)
{
    return is_name(spw_jj_now(p), name);
}

bool spw_jj_skip_name(struct spw_jj_parser *p, const char *name)
{
    bool found = spw_jj_at_name(p, name);
    p->at += found;
    return found;
}

bool spw_jj_skip(struct spw_jj_parser *p, int type)
{
    bool found = spw_jj_now(p)->type == type;
    p->at += found;
    return found;
}

static const char *type_text(int type, char text[4])
{
    static const char *const names[] = {
        [SPW_JJ_T_END] = "the end of the template",
        [SPW_JJ_T_DATA] = "text",
        [SPW_JJ_T_BLOCK_BEGIN] = "{%",
        [SPW_JJ_T_BLOCK_END] = "%}",
        [SPW_JJ_T_VARIABLE_BEGIN] = "{{",
        [SPW_JJ_T_VARIABLE_END] = "}}",
        [SPW_JJ_T_NAME] = "a name",
        [SPW_JJ_T_STRING] = "a string",
        [SPW_JJ_T_INTEGER] = "a number",
        [SPW_JJ_T_FLOAT] = "a number",
    };
    if (type < (int)(sizeof names / sizeof *names))
        return names[type];
    snprintf(text, 4, "'%c'", type);
    return text;
}

int spw_jj_unexpected(struct spw_jj_parser *p, const char *expected)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    char text[4];
    if (t->type == SPW_JJ_T_NAME || t->type >= SPW_JJ_T_EQ)
        return spw_jj_syntax(&p->source, t->line, "found '%.*s', expected %s",
                             (int)spw_min_u64(t->bytes, 64), t->at, expected);
    return spw_jj_syntax(&p->source, t->line, "found %s, expected %s", type_text(t->type, text),
                         expected);
}

int spw_jj_expect(struct spw_jj_parser *p, int type)
{
    char text[4];
    return spw_jj_skip(p, type) ? 0 : spw_jj_unexpected(p, type_text(type, text));
}

int spw_jj_expect_name(struct spw_jj_parser *p, const char *name)
{
    return spw_jj_skip_name(p, name) ? 0 : spw_jj_unexpected(p, name);
}

/* ---- memory ---- */

static int no_memory(struct spw_jj_parser *p)
{
    return spw_fail(p->source.err, -ENOMEM, "%s: out of memory", p->source.name);
}

int spw_jj_new_node(struct spw_jj_parser *p, enum spw_jj_kind kind, uint32_t line,
                    struct spw_jj_node **out)
{
    struct spw_jj_node *n = spw_jj_take(p->source.arena, sizeof *n);
    if (!n)
        return no_memory(p);
    n->kind = kind;
    n->line = line;
    *out = n;
    return 0;
}

int spw_jj_deeper(struct spw_jj_parser *p)
{
    if (++p->depth <= SPW_JINJA_MAX_PARSE_DEPTH)
        return 0;
    return spw_jj_syntax(&p->source, spw_jj_now(p)->line,
                         "found more than %d expressions and blocks inside each other",
                         SPW_JINJA_MAX_PARSE_DEPTH);
}

static int grow_names(struct spw_jj_parser *p)
{
    size_t size = p->names_size ? p->names_size * 2 : 256;
    const struct spw_jj_string **grown = spw_alloc_zero(size, sizeof *grown);
    if (!grown)
        return no_memory(p);
    for (size_t i = 0; i < p->names_size; i++) {
        const struct spw_jj_string *s = p->names[i];
        size_t at = s ? XXH3_64bits(s->at, s->bytes) & (size - 1) : 0;
        while (s && grown[at])
            at = (at + 1) & (size - 1);
        if (s)
            grown[at] = s;
    }
    spw_free(p->names);
    p->names = grown;
    p->names_size = size;
    return 0;
}

static int intern(struct spw_jj_parser *p, const char *text, size_t bytes,
                  const struct spw_jj_string **out)
{
    if (p->n_names * 2 >= p->names_size)
        SPW_TRY(grow_names(p));
    size_t mask = p->names_size - 1, at = XXH3_64bits(text, bytes) & mask;
    for (; p->names[at]; at = (at + 1) & mask)
        if (p->names[at]->bytes == bytes && !memcmp(p->names[at]->at, text, bytes))
            break;
    if (!p->names[at]) {
        struct spw_jj_string *s = spw_jj_take(p->source.arena, sizeof *s);
        if (!s)
            return no_memory(p);
        *s = (struct spw_jj_string){text, bytes, spw_jj_chars(text, bytes), false};
        p->names[at] = s;
        p->n_names++;
    }
    *out = p->names[at];
    return 0;
}

int spw_jj_parse_name(struct spw_jj_parser *p, const struct spw_jj_string **out)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    if (t->type != SPW_JJ_T_NAME)
        return spw_jj_unexpected(p, "a name");
    SPW_TRY(intern(p, t->at, t->bytes, out));
    p->at++;
    return 0;
}

/* ---- statements ---- */

static int parse_body(struct spw_jj_parser *p, const char *const *ends, struct spw_jj_node **out);

/* "%}", the body, and the tag that ends it, whose name stays ahead. */
static int parse_block(struct spw_jj_parser *p, const char *const *ends, struct spw_jj_node **out)
{
    spw_jj_skip(p, ':');
    SPW_TRY(spw_jj_expect(p, SPW_JJ_T_BLOCK_END));
    return parse_body(p, ends, out);
}

/* The same where only one tag can end it, which is passed over. */
static int parse_whole_block(struct spw_jj_parser *p, const char *end, struct spw_jj_node **out)
{
    const char *const ends[] = {end, NULL};
    SPW_TRY(parse_block(p, ends, out));
    p->at++;
    return 0;
}

static int parse_if(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct spw_jj_node *n = NULL, **last = out;
    do {
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_IF, spw_jj_now(p)->line, &n));
        *last = n;
        last = &n->other;
        SPW_TRY(spw_jj_parse_tuple(p, true, &n->a));
        SPW_TRY(parse_block(p, ends, &n->body));
        n->op = spw_jj_skip_name(p, "elif");
    } while (n->op);
    if (spw_jj_skip_name(p, "else"))
        return parse_whole_block(p, "endif", &n->other);
    p->at++;
    return 0;
}

static int parse_for(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    n->kind = SPW_JJ_FOR;
    SPW_TRY(spw_jj_parse_target(p, false, "in", &n->a));
    SPW_TRY(spw_jj_expect_name(p, "in"));
    SPW_TRY(spw_jj_parse_tuple(p, true, &n->b));
    if (spw_jj_skip_name(p, "if"))
        SPW_TRY(spw_jj_parse_expression(p, &n->c));
    p->loops++;
    SPW_TRY(parse_block(p, ends, &n->body));
    p->loops--;
    if (spw_jj_skip_name(p, "else"))
        return parse_whole_block(p, "endfor", &n->other);
    p->at++;
    return 0;
}

static int parse_set(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = SPW_JJ_SET;
    SPW_TRY(spw_jj_parse_target(p, true, NULL, &n->a));
    if (spw_jj_skip(p, '='))
        return spw_jj_parse_tuple(p, false, &n->b);
    n->kind = SPW_JJ_SET_BLOCK;
    SPW_TRY(spw_jj_parse_filters(p, NULL, false, &n->b));
    return parse_whole_block(p, "endset", &n->body);
}

/* (name, name=expression, ...) */
static int parse_signature(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    struct spw_jj_node **last = &n->list;
    SPW_TRY(spw_jj_expect(p, '('));
    while (spw_jj_now(p)->type != ')') {
        struct spw_jj_node *arg = NULL;
        if (n->count)
            SPW_TRY(spw_jj_expect(p, ','));
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_NAME, spw_jj_now(p)->line, &arg));
        SPW_TRY(spw_jj_parse_name(p, &arg->name));
        if (n->count == SPW_JINJA_MAX_ARGS)
            return spw_jj_syntax(&p->source, arg->line, "found more than %d parameters",
                                 SPW_JINJA_MAX_ARGS);
        for (struct spw_jj_node *other = n->list; other; other = other->next)
            if (other->name == arg->name)
                return spw_jj_syntax(&p->source, arg->line, "found the argument '%.*s' twice",
                                     (int)spw_min_u64(arg->name->bytes, 64), arg->name->at);
        if (spw_jj_skip(p, '='))
            SPW_TRY(spw_jj_parse_expression(p, &arg->a));
        else if (n->count && n->op)
            return spw_jj_syntax(&p->source, arg->line,
                                 "found a parameter without a default after one with");
        n->op = arg->a != NULL;
        *last = arg;
        last = &arg->next;
        n->count++;
    }
    return spw_jj_expect(p, ')');
}

/* The body of a macro or a call block. Whether it reads `caller` decides what it may be given; what
 * is read in a macro inside it counts too. */
static int parse_macro_body(struct spw_jj_parser *p, const char *end, struct spw_jj_node *n)
{
    bool outer = p->reads_caller;
    int loops = p->loops;
    p->reads_caller = false;
    p->loops = 0;
    SPW_TRY(parse_whole_block(p, end, &n->body));
    n->op = p->reads_caller;
    p->reads_caller |= outer;
    p->loops = loops;
    for (struct spw_jj_node *arg = n->list; arg; arg = arg->next)
        if (spw_jj_is_text(spw_jj_constant(arg->name), "caller"))
            return spw_jj_syntax(&p->source, n->line,
                                 "found a parameter called caller, which spillway does not know");
    return 0;
}

static int parse_macro(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = SPW_JJ_MACRO_DEF;
    SPW_TRY(spw_jj_parse_name(p, &n->name));
    SPW_TRY(parse_signature(p, n));
    return parse_macro_body(p, "endmacro", n);
}

static int parse_call_block(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = SPW_JJ_CALL_BLOCK;
    if (spw_jj_now(p)->type == '(')
        SPW_TRY(parse_signature(p, n));
    SPW_TRY(spw_jj_parse_expression(p, &n->a));
    if (n->a->kind != SPW_JJ_CALL)
        return spw_jj_syntax(&p->source, n->line, "found no call in {%% call %%}, expected one");
    return parse_macro_body(p, "endcall", n);
}

static int parse_filter_block(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = SPW_JJ_FILTER_BLOCK;
    SPW_TRY(spw_jj_parse_filters(p, NULL, true, &n->b));
    return parse_whole_block(p, "endfilter", &n->body);
}

static int parse_generation(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = SPW_JJ_GENERATION; /* the body of a call block, so caller is not the macro's */
    return parse_macro_body(p, "endgeneration", n);
}

static int parse_jump(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    n->kind = is_name(spw_jj_now(p) - 1, "break") ? SPW_JJ_BREAK : SPW_JJ_CONTINUE;
    if (!p->loops)
        return spw_jj_syntax(&p->source, n->line, "found '%s' outside of a loop",
                             n->kind == SPW_JJ_BREAK ? "break" : "continue");
    return 0;
}

static int parse_statement(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    static const struct {
        const char *name;
        int (*parse)(struct spw_jj_parser *p, struct spw_jj_node *n);
    } statements[] = {
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"generation", parse_generation},
        {"break", parse_jump},
        {"continue", parse_jump},
    };
    uint32_t line = spw_jj_now(p)->line;
    if (spw_jj_skip_name(p, "if"))
        return parse_if(p, out);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!spw_jj_skip_name(p, statements[i].name))
            continue;
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_TEXT, line, out));
        return statements[i].parse(p, *out);
    }
    return spw_jj_unexpected(p, "a tag that chat templates have");
}

static int parse_text(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    struct spw_jj_string *s = spw_jj_take(p->source.arena, sizeof *s);
    if (!s)
        return no_memory(p);
    *s = (struct spw_jj_string){t->at, t->bytes, spw_jj_chars(t->at, t->bytes), false};
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_TEXT, t->line, out));
    (*out)->name = s;
    p->at++;
    return 0;
}

static int parse_output(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_OUTPUT, spw_jj_now(p)->line, out));
    SPW_TRY(spw_jj_parse_tuple(p, false, &(*out)->list));
    return spw_jj_expect(p, SPW_JJ_T_VARIABLE_END);
}

/* Statements up to a tag of one of the names (NULL: up to the end), which stays ahead. */
static int parse_body(struct spw_jj_parser *p, const char *const *ends, struct spw_jj_node **out)
{
    SPW_TRY(spw_jj_deeper(p));
    for (;;) {
        if (spw_jj_now(p)->type == SPW_JJ_T_DATA) {
            SPW_TRY(parse_text(p, out));
        } else if (spw_jj_skip(p, SPW_JJ_T_VARIABLE_BEGIN)) {
            SPW_TRY(parse_output(p, out));
        } else if (spw_jj_skip(p, SPW_JJ_T_BLOCK_BEGIN)) {
            for (const char *const *end = ends; end && *end; end++)
                if (spw_jj_at_name(p, *end)) {
                    p->depth--;
                    return 0;
                }
            SPW_TRY(parse_statement(p, out));
            SPW_TRY(spw_jj_expect(p, SPW_JJ_T_BLOCK_END));
        } else {
            break;
        }
        out = &(*out)->next;
    }
    p->depth--;
    if (!ends)
        return 0;
    char expected[64];
    while (ends[1]) /* the one that closes */
        ends++;
    snprintf(expected, sizeof expected, "{%% %s %%}", ends[0]);
    return spw_jj_unexpected(p, expected);
}

static int parse_template(struct spw_jj_parser *p, struct spw_jinja *t, const char *text,
                          size_t bytes)
{
    if (bytes > SPW_JINJA_MAX_SOURCE)
        return spw_fail(p->source.err, -E2BIG,
                        "%s: found a template of %zu bytes, expected at most %u", t->name, bytes,
                        SPW_JINJA_MAX_SOURCE);
    SPW_TRY(intern(p, "loop", 4, &t->loop));
    SPW_TRY(intern(p, "caller", 6, &t->caller));
    SPW_TRY(spw_jj_lex(&p->source, text, bytes, &p->tokens));
    return parse_body(p, NULL, &t->body);
}

int spw_jinja_parse(struct spw_jinja **out, const char *text, size_t bytes, const char *name,
                    struct spw_error *err)
{
    struct spw_jinja *t = spw_alloc_zero(1, sizeof *t);
    char *own_name = spw_strdup(name), *own_text = spw_alloc(bytes + 1);
    *out = NULL;
    if (!t || !own_name || !own_text) {
        spw_free(t);
        spw_free(own_name);
        spw_free(own_text);
        return spw_fail(err, -ENOMEM, "%s: out of memory", name);
    }
    t->arena.limit = SIZE_MAX / 4;
    t->name = own_name;
    t->text = own_text;
    t->bytes = bytes;
    if (bytes > 0)
        memcpy(own_text, text, bytes);
    struct spw_jj_parser p = {.source = {&t->arena, own_name, err}};
    int rc = parse_template(&p, t, text, bytes);
    spw_free(p.tokens.at);
    spw_free(p.names);
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
    spw_jj_arena_free(&t->arena);
    spw_free(t->name);
    spw_free(t->text);
    spw_free(t);
}
