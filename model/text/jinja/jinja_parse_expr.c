/* Expressions of a Jinja template, one function a level of binding: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

static int parse_or(struct spw_jj_parser *p, struct spw_jj_node **out);
static int parse_unary(struct spw_jj_parser *p, bool with_filter, struct spw_jj_node **out);

/* A node over what *out holds. */
static int wrap(struct spw_jj_parser *p, enum spw_jj_kind kind, uint32_t line,
                struct spw_jj_node **out)
{
    struct spw_jj_node *n;
    SPW_TRY(spw_jj_new_node(p, kind, line, &n));
    n->a = *out;
    *out = n;
    return 0;
}

/* Chains grow to the left, one node inside the other: each counts as a level. */
static int chain(struct spw_jj_parser *p, uint32_t *n)
{
    if (++*n <= SPW_JINJA_MAX_PARSE_DEPTH)
        return 0;
    return spw_jj_syntax(&p->source, spw_jj_now(p)->line,
                         "found a chain of more than %d operators, expected parentheses",
                         SPW_JINJA_MAX_PARSE_DEPTH);
}

int spw_jj_parse_expression(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t n_ifs = 0, line = spw_jj_now(p)->line;
    SPW_TRY(spw_jj_deeper(p));
    SPW_TRY(parse_or(p, out));
    while (spw_jj_skip_name(p, "if")) {
        struct spw_jj_node *n;
        SPW_TRY(chain(p, &n_ifs));
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_CONDITION, line, &n));
        n->b = *out;
        *out = n;
        SPW_TRY(parse_or(p, &n->a));
        if (spw_jj_skip_name(p, "else"))
            SPW_TRY(spw_jj_parse_expression(p, &n->c));
    }
    p->depth--;
    return 0;
}

static int parse_not(struct spw_jj_parser *p, struct spw_jj_node **out);

static int parse_and(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t n = 0, line = spw_jj_now(p)->line;
    SPW_TRY(parse_not(p, out));
    while (spw_jj_skip_name(p, "and")) {
        SPW_TRY(chain(p, &n));
        SPW_TRY(wrap(p, SPW_JJ_AND, line, out));
        SPW_TRY(parse_not(p, &(*out)->b));
    }
    return 0;
}

static int parse_or(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t n = 0, line = spw_jj_now(p)->line;
    SPW_TRY(parse_and(p, out));
    while (spw_jj_skip_name(p, "or")) {
        SPW_TRY(chain(p, &n));
        SPW_TRY(wrap(p, SPW_JJ_OR, line, out));
        SPW_TRY(parse_and(p, &(*out)->b));
    }
    return 0;
}

/* ---- operators ---- */

static int parse_product(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t n = 0, line = spw_jj_now(p)->line;
    SPW_TRY(parse_unary(p, true, out));
    for (;;) {
        int op = spw_jj_now(p)->type;
        if (op != '*' && op != '/' && op != '%' && op != SPW_JJ_T_FLOORDIV)
            return 0;
        p->at++;
        SPW_TRY(chain(p, &n));
        SPW_TRY(wrap(p, SPW_JJ_BINARY, line, out));
        (*out)->op = op;
        SPW_TRY(parse_unary(p, true, &(*out)->b));
    }
}

static int parse_concat(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    SPW_TRY(parse_product(p, out));
    if (spw_jj_now(p)->type != '~')
        return 0;
    struct spw_jj_node *n;
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_CONCAT, line, &n));
    n->list = *out;
    struct spw_jj_node **last = &n->list->next;
    *out = n;
    while (spw_jj_skip(p, '~')) {
        SPW_TRY(parse_product(p, last));
        last = &(*last)->next;
    }
    return 0;
}

static int parse_sum(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t n = 0, line = spw_jj_now(p)->line;
    SPW_TRY(parse_concat(p, out));
    for (;;) {
        int op = spw_jj_now(p)->type;
        if (op != '+' && op != '-')
            return 0;
        p->at++;
        SPW_TRY(chain(p, &n));
        SPW_TRY(wrap(p, SPW_JJ_BINARY, line, out));
        (*out)->op = op;
        SPW_TRY(parse_concat(p, &(*out)->b));
    }
}

/* 'i' in, 'n' not in, a token, 0. */
static int comparison(struct spw_jj_parser *p)
{
    int type = spw_jj_now(p)->type;
    if (type == SPW_JJ_T_EQ || type == SPW_JJ_T_NE || type == SPW_JJ_T_LE || type == SPW_JJ_T_GE ||
        type == '<' || type == '>') {
        p->at++;
        return type;
    }
    if (spw_jj_skip_name(p, "in"))
        return 'i';
    if (!spw_jj_skip_name(p, "not"))
        return 0;
    if (spw_jj_skip_name(p, "in"))
        return 'n';
    p->at--;
    return 0;
}

static int parse_compare(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    SPW_TRY(parse_sum(p, out));
    int op = comparison(p);
    if (!op)
        return 0;
    SPW_TRY(wrap(p, SPW_JJ_COMPARE, line, out));
    struct spw_jj_node **last = &(*out)->list;
    for (; op; op = comparison(p)) {
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_COMPARE, line, last));
        (*last)->op = op;
        SPW_TRY(parse_sum(p, &(*last)->a));
        last = &(*last)->next;
    }
    return 0;
}

static int parse_not(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    if (!spw_jj_skip_name(p, "not"))
        return parse_compare(p, out);
    SPW_TRY(spw_jj_deeper(p));
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_NOT, line, out));
    SPW_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return 0;
}

/* ---- operators after a value ---- */

/* *last: all that follow must have a name. */
static int parse_arg(struct spw_jj_parser *p, struct spw_jj_node **out, bool *last)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    bool star = t->type == '*', named = t->type == SPW_JJ_T_NAME && t[1].type == '=';
    if (*last && !named)
        return spw_jj_syntax(&p->source, t->line, "found an argument that must have a name");
    *last = star || named;
    if (*last)
        SPW_TRY(spw_jj_new_node(p, star ? SPW_JJ_STAR : SPW_JJ_KEYWORD, t->line, out));
    if (named)
        SPW_TRY(spw_jj_parse_name(p, &(*out)->name));
    p->at += *last;
    return spw_jj_parse_expression(p, *last ? &(*out)->a : out);
}

static int parse_args(struct spw_jj_parser *p, struct spw_jj_node *call)
{
    struct spw_jj_node **last = &call->list;
    unsigned count = 0;
    bool needs_name = false;
    SPW_TRY(spw_jj_expect(p, '('));
    while (spw_jj_now(p)->type != ')') {
        if (call->list) {
            SPW_TRY(spw_jj_expect(p, ','));
            if (spw_jj_now(p)->type == ')')
                break;
        }
        if (count++ == SPW_JINJA_MAX_ARGS)
            return spw_jj_syntax(&p->source, call->line, "found more than %d arguments",
                                 SPW_JINJA_MAX_ARGS);
        SPW_TRY(parse_arg(p, last, &needs_name));
        for (struct spw_jj_node *n = call->list; n != *last; n = n->next)
            if (n->kind == SPW_JJ_KEYWORD && (*last)->kind == SPW_JJ_KEYWORD &&
                n->name == (*last)->name)
                return spw_jj_syntax(&p->source, n->line, "found the argument '%.*s' twice",
                                     (int)spw_min_u64(n->name->bytes, 64), n->name->at);
        last = &(*last)->next;
    }
    return spw_jj_expect(p, ')');
}

static int parse_call(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    SPW_TRY(wrap(p, SPW_JJ_CALL, spw_jj_now(p)->line, out));
    return parse_args(p, *out);
}

/* What stands between brackets: an expression or a slice. */
static int parse_subscript(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    struct spw_jj_node *parts[3] = {NULL};
    int n = 0;
    if (spw_jj_now(p)->type != ':') {
        SPW_TRY(spw_jj_parse_expression(p, &parts[0]));
        if (spw_jj_now(p)->type != ':') {
            *out = parts[0];
            return 0;
        }
    }
    while (n < 2 && spw_jj_skip(p, ':')) {
        int type = spw_jj_now(p)->type;
        n++;
        if (type != ':' && type != ']')
            SPW_TRY(spw_jj_parse_expression(p, &parts[n]));
    }
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_SLICE, line, out));
    (*out)->a = parts[0];
    (*out)->b = parts[1];
    (*out)->c = parts[2];
    return 0;
}

static int parse_brackets(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    p->at++;
    SPW_TRY(wrap(p, SPW_JJ_GET_ITEM, line, out));
    if (spw_jj_now(p)->type == ']') /* jinja2's empty tuple, which is in nothing */
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_MAKE_TUPLE, line, &(*out)->b));
    else
        SPW_TRY(parse_subscript(p, &(*out)->b));
    return spw_jj_expect(p, ']');
}

static int parse_dot(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    p->at++;
    const struct spw_jj_token *t = spw_jj_now(p);
    if (t->type == SPW_JJ_T_NAME) {
        SPW_TRY(wrap(p, SPW_JJ_GET_ATTR, line, out));
        return spw_jj_parse_name(p, &(*out)->name);
    }
    if (t->type != SPW_JJ_T_INTEGER)
        return spw_jj_unexpected(p, "a name or a number");
    SPW_TRY(wrap(p, SPW_JJ_GET_ITEM, line, out));
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_CONST, line, &(*out)->b));
    (*out)->b->value = spw_jj_int(t->integer);
    p->at++;
    return 0;
}

static int parse_postfix(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    for (uint32_t n = 0;;) {
        int type = spw_jj_now(p)->type;
        if (type != '.' && type != '[' && type != '(')
            return 0;
        SPW_TRY(chain(p, &n));
        if (type == '.')
            SPW_TRY(parse_dot(p, out));
        else if (type == '[')
            SPW_TRY(parse_brackets(p, out));
        else
            SPW_TRY(parse_call(p, out));
    }
}

/* The name of a filter or test, after which arguments may follow. */
static int parse_call_name(struct spw_jj_parser *p, enum spw_jj_kind kind, struct spw_jj_node **out)
{
    SPW_TRY(wrap(p, kind, spw_jj_now(p)->line, out));
    return spw_jj_parse_name(p, &(*out)->name);
}

int spw_jj_parse_filters(struct spw_jj_parser *p, struct spw_jj_node *on, bool inline_first,
                         struct spw_jj_node **out)
{
    uint32_t n = 0;
    *out = on;
    while (inline_first || spw_jj_skip(p, '|')) {
        inline_first = false;
        SPW_TRY(chain(p, &n));
        SPW_TRY(parse_call_name(p, SPW_JJ_FILTER, out));
        if (spw_jj_now(p)->type == '(')
            SPW_TRY(parse_args(p, *out));
    }
    return 0;
}

static int parse_primary(struct spw_jj_parser *p, bool with_namespace, struct spw_jj_node **out);

static int parse_test(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    p->at++;
    bool negated = spw_jj_skip_name(p, "not");
    SPW_TRY(parse_call_name(p, SPW_JJ_TEST, out));
    int type = spw_jj_now(p)->type;
    if (type == '(') {
        SPW_TRY(parse_args(p, *out));
    } else if (type == SPW_JJ_T_NAME || type == SPW_JJ_T_STRING || type == SPW_JJ_T_INTEGER ||
               type == SPW_JJ_T_FLOAT || type == '[' || type == '{') {
        if (spw_jj_at_name(p, "is"))
            return spw_jj_unexpected(p, "one test: `is` cannot be chained");
        if (!spw_jj_at_name(p, "else") && !spw_jj_at_name(p, "or") && !spw_jj_at_name(p, "and")) {
            SPW_TRY(parse_primary(p, false, &(*out)->list));
            SPW_TRY(parse_postfix(p, &(*out)->list));
        }
    }
    return negated ? wrap(p, SPW_JJ_NOT, line, out) : 0;
}

static int parse_filters_and_tests(struct spw_jj_parser *p, struct spw_jj_node **out)
{
    for (uint32_t n = 0;;) {
        SPW_TRY(chain(p, &n));
        if (spw_jj_now(p)->type == '|')
            SPW_TRY(spw_jj_parse_filters(p, *out, false, out));
        else if (spw_jj_at_name(p, "is"))
            SPW_TRY(parse_test(p, out));
        else if (spw_jj_now(p)->type == '(')
            SPW_TRY(parse_call(p, out));
        else
            return 0;
    }
}

static int parse_unary(struct spw_jj_parser *p, bool with_filter, struct spw_jj_node **out)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    SPW_TRY(spw_jj_deeper(p));
    if (t->type == '-' || t->type == '+') {
        p->at++;
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_UNARY, t->line, out));
        (*out)->op = t->type;
        SPW_TRY(parse_unary(p, false, &(*out)->a));
    } else {
        SPW_TRY(parse_primary(p, false, out));
    }
    SPW_TRY(parse_postfix(p, out));
    if (with_filter)
        SPW_TRY(parse_filters_and_tests(p, out));
    p->depth--;
    return 0;
}

/* ---- values ---- */

static int parse_strings(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    const struct spw_jj_token *first = spw_jj_now(p), *t = first;
    struct spw_jj_string *s = spw_jj_take(p->source.arena, sizeof *s);
    size_t bytes = 0;
    for (; t->type == SPW_JJ_T_STRING; t++)
        bytes += t->bytes;
    char *text = spw_jj_take_text(p->source.arena, bytes + 1);
    if (!s || !text)
        return spw_fail(p->source.err, -ENOMEM, "%s: out of memory", p->source.name);
    s->at = text;
    for (t = first; t->type == SPW_JJ_T_STRING; t++) {
        memcpy(text + s->bytes, t->at, t->bytes);
        s->bytes += t->bytes;
        p->at++;
    }
    s->chars = spw_jj_chars(text, bytes);
    n->value = spw_jj_constant(s);
    return 0;
}

static int parse_list(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    struct spw_jj_node **last = &n->list;
    n->kind = SPW_JJ_MAKE_LIST;
    p->at++;
    while (spw_jj_now(p)->type != ']') {
        if (n->list) {
            SPW_TRY(spw_jj_expect(p, ','));
            if (spw_jj_now(p)->type == ']')
                break;
        }
        SPW_TRY(spw_jj_parse_expression(p, last));
        last = &(*last)->next;
    }
    return spw_jj_expect(p, ']');
}

static int parse_dict(struct spw_jj_parser *p, struct spw_jj_node *n)
{
    struct spw_jj_node **last = &n->list;
    n->kind = SPW_JJ_MAKE_DICT;
    p->at++;
    while (spw_jj_now(p)->type != '}') {
        if (n->list) {
            SPW_TRY(spw_jj_expect(p, ','));
            if (spw_jj_now(p)->type == '}')
                break;
        }
        SPW_TRY(spw_jj_parse_expression(p, last));
        SPW_TRY(spw_jj_expect(p, ':'));
        SPW_TRY(spw_jj_parse_expression(p, &(*last)->next));
        last = &(*last)->next->next;
    }
    return spw_jj_expect(p, '}');
}

static int parse_word(struct spw_jj_parser *p, bool with_namespace, struct spw_jj_node *n)
{
    SPW_TRY(spw_jj_parse_name(p, &n->name));
    struct spw_jj_value word = spw_jj_constant(n->name);
    bool yes = spw_jj_is_text(word, "true") || spw_jj_is_text(word, "True");
    if (yes || spw_jj_is_text(word, "false") || spw_jj_is_text(word, "False")) {
        n->value = spw_jj_bool(yes);
        return 0;
    }
    if (spw_jj_is_text(word, "none") || spw_jj_is_text(word, "None")) {
        n->value = spw_jj_none();
        return 0;
    }
    n->kind = SPW_JJ_NAME;
    if (with_namespace && spw_jj_skip(p, '.')) {
        n->kind = SPW_JJ_NAMESPACE_REF;
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_NAME, n->line, &n->a));
        return spw_jj_parse_name(p, &n->a->name);
    }
    p->reads_caller |= spw_jj_is_text(word, "caller");
    return 0;
}

static int parse_primary(struct spw_jj_parser *p, bool with_namespace, struct spw_jj_node **out)
{
    const struct spw_jj_token *t = spw_jj_now(p);
    if (t->type == '(') {
        p->at++;
        if (spw_jj_skip(p, ')'))
            return spw_jj_new_node(p, SPW_JJ_MAKE_TUPLE, t->line, out);
        SPW_TRY(spw_jj_parse_tuple(p, false, out));
        return spw_jj_expect(p, ')');
    }
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_CONST, t->line, out));
    switch (t->type) {
    case SPW_JJ_T_NAME:
        return parse_word(p, with_namespace, *out);
    case SPW_JJ_T_STRING:
        return parse_strings(p, *out);
    case SPW_JJ_T_INTEGER:
        (*out)->value = spw_jj_int(t->integer);
        p->at++;
        return 0;
    case SPW_JJ_T_FLOAT:
        (*out)->value = spw_jj_float(t->number);
        p->at++;
        return 0;
    case '[':
        return parse_list(p, *out);
    case '{':
        return parse_dict(p, *out);
    default:
        return spw_jj_unexpected(p, "a value");
    }
}

static bool at_tuple_end(const struct spw_jj_parser *p, const char *end)
{
    int type = spw_jj_now(p)->type;
    return type == SPW_JJ_T_VARIABLE_END || type == SPW_JJ_T_BLOCK_END || type == ')' ||
           (end && spw_jj_at_name(p, end));
}

int spw_jj_parse_tuple(struct spw_jj_parser *p, bool plain, struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    struct spw_jj_node *first = NULL, **last = &first, *n;
    bool comma = false;
    do {
        if (comma && at_tuple_end(p, NULL))
            break;
        SPW_TRY(spw_jj_deeper(p));
        SPW_TRY(plain ? parse_or(p, last) : spw_jj_parse_expression(p, last));
        p->depth--;
        last = &(*last)->next;
    } while (spw_jj_skip(p, ',') && (comma = true));
    *out = first;
    if (!comma)
        return 0;
    SPW_TRY(spw_jj_new_node(p, SPW_JJ_MAKE_TUPLE, line, &n));
    n->list = first;
    *out = n;
    return 0;
}

/* Only what can be assigned to: jinja2 has the same set, and no nested constants either. */
static int check_target(struct spw_jj_parser *p, const struct spw_jj_node *n)
{
    if (n->kind == SPW_JJ_NAMESPACE_REF || n->kind == SPW_JJ_NAME)
        return 0;
    if (n->kind != SPW_JJ_MAKE_TUPLE && n->kind != SPW_JJ_MAKE_LIST)
        return spw_jj_syntax(&p->source, n->line, "found a value, expected a name to assign to");
    for (const struct spw_jj_node *item = n->list; item; item = item->next)
        SPW_TRY(check_target(p, item));
    return 0;
}

int spw_jj_parse_target(struct spw_jj_parser *p, bool with_namespace, const char *end,
                        struct spw_jj_node **out)
{
    uint32_t line = spw_jj_now(p)->line;
    struct spw_jj_node *first = NULL, **last = &first, *n;
    bool reads_caller = p->reads_caller;
    bool comma = false;
    do {
        if (comma && at_tuple_end(p, end))
            break;
        SPW_TRY(parse_primary(p, with_namespace, last));
        last = &(*last)->next;
    } while (spw_jj_skip(p, ',') && (comma = true));
    *out = first;
    if (comma) {
        SPW_TRY(spw_jj_new_node(p, SPW_JJ_MAKE_TUPLE, line, &n));
        n->list = first;
        *out = n;
    }
    p->reads_caller = reads_caller; /* written, not read */
    return check_target(p, *out);
}
