/* Expressions of a Jinja template, one function a level of binding: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_primary(struct parser *p, bool with_namespace);

/* A node over another. */
static struct node *wrap(struct parser *p, enum kind kind, uint32_t line, struct node *a)
{
    struct node *n = spw_jinja_new_node(p, kind, line);
    n->a = a;
    return n;
}

/* Chains grow to the left, one node inside the other: each counts as a level. */
static void chain(struct parser *p, uint32_t *n)
{
    if (++*n > SPW_JINJA_MAX_PARSE_DEPTH)
        spw_jinja_syntax(p, spw_jinja_now(p)->line,
                         "found a chain of more than %d operators, expected parentheses",
                         SPW_JINJA_MAX_PARSE_DEPTH);
}

struct node *spw_jinja_parse_expression(struct parser *p)
{
    uint32_t n_ifs = 0, line = spw_jinja_now(p)->line;
    spw_jinja_deeper(p);
    struct node *out = parse_or(p);
    while (spw_jinja_skip_name(p, "if")) {
        chain(p, &n_ifs);
        struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_CONDITION, line);
        n->b = out;
        n->a = parse_or(p);
        if (spw_jinja_skip_name(p, "else"))
            n->c = spw_jinja_parse_expression(p);
        out = n;
    }
    p->run->depth--;
    return out;
}

/* ---- operators between values ---- */

/* From the loosest to the tightest; `not` and comparisons are between AND and SUM. */
enum level { OR, AND, SUM, CONCAT, PRODUCT };

/* Passes over one of the operators, and returns its token; 0: it is none of them. */
static int skip_operator(struct parser *p, const int *types)
{
    for (; *types; types++)
        if (spw_jinja_skip(p, *types))
            return *types;
    return 0;
}

static struct node *parse_not(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filter);

/* Operators that bind to the left: OR those of all levels, SUM those of arithmetic. */
static struct node *parse_left(struct parser *p, enum level level)
{
    static const struct {
        enum kind kind;
        const char *word; /* NULL: one of `types` */
        int types[5];
    } levels[] = {
        [OR] = {SPW_JINJA_N_OR, "or", {0}},
        [AND] = {SPW_JINJA_N_AND, "and", {0}},
        [SUM] = {SPW_JINJA_N_BINARY, NULL, {'+', '-'}},
        [CONCAT] = {SPW_JINJA_N_BINARY, NULL, {'~'}},
        [PRODUCT] = {SPW_JINJA_N_BINARY, NULL, {'*', '/', '%', SPW_JINJA_T_FLOORDIV}},
    };
    const char *word = levels[level].word;
    uint32_t n = 0, line = spw_jinja_now(p)->line;
    struct node *out = NULL;
    int op = 0;
    do {
        struct node *part = level == AND       ? parse_not(p)
                            : level == PRODUCT ? parse_unary(p, true)
                                               : parse_left(p, level + 1);
        if (out)
            out->b = part;
        else
            out = part;
        op = word ? spw_jinja_skip_name(p, word) : skip_operator(p, levels[level].types);
        if (op) {
            chain(p, &n);
            out = wrap(p, levels[level].kind, line, out);
            out->op = op;
        }
    } while (op);
    return out;
}

/* 'i' in, 'n' not in, a token, 0. */
static int comparison(struct parser *p)
{
    static const int types[] = {
        SPW_JINJA_T_EQ, SPW_JINJA_T_NE, SPW_JINJA_T_LE, SPW_JINJA_T_GE, '<', '>', 0};
    if (spw_jinja_skip_name(p, "in"))
        return 'i';
    if (!spw_jinja_skip_name(p, "not"))
        return skip_operator(p, types);
    if (spw_jinja_skip_name(p, "in"))
        return 'n';
    p->at--;
    return 0;
}

static struct node *parse_compare(struct parser *p)
{
    uint32_t line = spw_jinja_now(p)->line;
    struct node *first = parse_left(p, SUM);
    int op = comparison(p);
    if (!op)
        return first;
    struct node *n = wrap(p, SPW_JINJA_N_COMPARE, line, first), **last = &n->list;
    for (; op; op = comparison(p)) {
        *last = wrap(p, SPW_JINJA_N_COMPARE, line, parse_left(p, SUM));
        (*last)->op = op;
        last = &(*last)->next;
    }
    return n;
}

static struct node *parse_not(struct parser *p)
{
    uint32_t line = spw_jinja_now(p)->line;
    if (!spw_jinja_skip_name(p, "not"))
        return parse_compare(p);
    spw_jinja_deeper(p);
    struct node *n = wrap(p, SPW_JINJA_N_NOT, line, parse_not(p));
    p->run->depth--;
    return n;
}

static struct node *parse_or(struct parser *p)
{
    return parse_left(p, OR);
}

/* ---- operators after a value ---- */

/* *named: all that follow must have a name. */
static struct node *parse_arg(struct parser *p, bool *named)
{
    const struct token *t = spw_jinja_now(p);
    bool star = t->type == '*', keyword = t->type == SPW_JINJA_T_NAME && t[1].type == '=';
    if (*named && !keyword)
        spw_jinja_syntax(p, t->line, "found an argument that must have a name");
    *named = star || keyword;
    if (!*named)
        return spw_jinja_parse_expression(p);
    struct node *n = spw_jinja_new_node(p, star ? SPW_JINJA_N_STAR : SPW_JINJA_N_KEYWORD, t->line);
    if (keyword)
        n->name = spw_jinja_parse_name(p);
    p->at++;
    n->a = spw_jinja_parse_expression(p);
    return n;
}

/* Whether another item follows in a list that ends in `end`, after the comma between. */
static bool another(struct parser *p, int end, const struct node *before)
{
    if (before && spw_jinja_now(p)->type != end)
        spw_jinja_expect(p, ',');
    return !spw_jinja_skip(p, end);
}

static void parse_args(struct parser *p, struct node *call)
{
    struct node **last = &call->list;
    unsigned count = 0;
    bool named = false;
    spw_jinja_expect(p, '(');
    for (; another(p, ')', call->list); last = &(*last)->next) {
        if (count++ == SPW_JINJA_MAX_ARGS)
            spw_jinja_syntax(p, call->line, "found more than %d arguments", SPW_JINJA_MAX_ARGS);
        *last = parse_arg(p, &named);
        for (struct node *n = call->list; n != *last; n = n->next)
            if (n->kind == SPW_JINJA_N_KEYWORD && (*last)->kind == SPW_JINJA_N_KEYWORD &&
                n->name == (*last)->name)
                spw_jinja_syntax(p, n->line, "found the argument '%.*s' twice",
                                 (int)spw_min_u64(n->name->bytes, 64), n->name->at);
    }
}

static struct node *parse_call(struct parser *p, struct node *f)
{
    struct node *n = wrap(p, SPW_JINJA_N_CALL, spw_jinja_now(p)->line, f);
    parse_args(p, n);
    return n;
}

/* What stands between brackets: an expression or a slice. */
static struct node *parse_subscript(struct parser *p)
{
    struct node *parts[3] = {NULL};
    uint32_t line = spw_jinja_now(p)->line;
    if (spw_jinja_now(p)->type != ':') {
        parts[0] = spw_jinja_parse_expression(p);
        if (spw_jinja_now(p)->type != ':')
            return parts[0];
    }
    for (int n = 1; n < 3 && spw_jinja_skip(p, ':'); n++)
        if (spw_jinja_now(p)->type != ':' && spw_jinja_now(p)->type != ']')
            parts[n] = spw_jinja_parse_expression(p);
    struct node *n = wrap(p, SPW_JINJA_N_SLICE, line, parts[0]);
    n->b = parts[1];
    n->c = parts[2];
    return n;
}

static struct node *parse_brackets(struct parser *p, struct node *of)
{
    struct node *n = wrap(p, SPW_JINJA_N_ITEM, spw_jinja_now(p)->line, of);
    p->at++;
    if (spw_jinja_now(p)->type == ']') /* jinja2's empty tuple, which is in nothing */
        n->b = spw_jinja_new_node(p, SPW_JINJA_N_TUPLE, n->line);
    else
        n->b = parse_subscript(p);
    spw_jinja_expect(p, ']');
    return n;
}

static struct node *parse_dot(struct parser *p, struct node *of)
{
    struct node *n = wrap(p, SPW_JINJA_N_ITEM, spw_jinja_now(p)->line, of);
    p->at++;
    const struct token *t = spw_jinja_now(p);
    n->b = spw_jinja_new_node(p, SPW_JINJA_N_CONST, n->line);
    n->b->value = t->number;
    if (t->type == SPW_JINJA_T_NAME) {
        n->op = '.';
        n->b->value = string_value(spw_jinja_parse_name(p));
    } else if (!spw_jinja_skip(p, SPW_JINJA_T_INTEGER)) {
        spw_jinja_unexpected(p, "a name or a number");
    }
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (uint32_t count = 0;;) {
        int type = spw_jinja_now(p)->type;
        if (type != '.' && type != '[' && type != '(')
            return n;
        chain(p, &count);
        n = type == '.' ? parse_dot(p, n) : type == '[' ? parse_brackets(p, n) : parse_call(p, n);
    }
}

struct node *spw_jinja_parse_filters(struct parser *p, struct node *on, bool inline_first)
{
    for (uint32_t count = 0; inline_first || spw_jinja_skip(p, '|'); inline_first = false) {
        chain(p, &count);
        on = wrap(p, SPW_JINJA_N_FILTER, spw_jinja_now(p)->line, on);
        on->name = spw_jinja_parse_name(p);
        if (spw_jinja_now(p)->type == '(')
            parse_args(p, on);
    }
    return on;
}

static struct node *parse_test(struct parser *p, struct node *on)
{
    uint32_t line = spw_jinja_now(p)->line;
    p->at++;
    bool negated = spw_jinja_skip_name(p, "not");
    struct node *n = wrap(p, SPW_JINJA_N_TEST, spw_jinja_now(p)->line, on);
    n->name = spw_jinja_parse_name(p);
    int type = spw_jinja_now(p)->type;
    if (spw_jinja_at_name(p, "is"))
        spw_jinja_unexpected(p, "one test: `is` cannot be chained");
    if (type == '(') {
        parse_args(p, n);
    } else if ((type == SPW_JINJA_T_NAME && !spw_jinja_at_name(p, "else") &&
                !spw_jinja_at_name(p, "or") && !spw_jinja_at_name(p, "and")) ||
               type == SPW_JINJA_T_STRING || type == SPW_JINJA_T_INTEGER ||
               type == SPW_JINJA_T_FLOAT || type == '[' || type == '{') {
        n->list = parse_postfix(p, parse_primary(p, false));
    }
    return negated ? wrap(p, SPW_JINJA_N_NOT, line, n) : n;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *n)
{
    for (uint32_t count = 0;;) {
        chain(p, &count);
        if (spw_jinja_now(p)->type == '|')
            n = spw_jinja_parse_filters(p, n, false);
        else if (spw_jinja_at_name(p, "is"))
            n = parse_test(p, n);
        else if (spw_jinja_now(p)->type == '(')
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    const struct token *t = spw_jinja_now(p);
    struct node *n;
    spw_jinja_deeper(p);
    if (spw_jinja_skip(p, '-') || spw_jinja_skip(p, '+')) {
        n = wrap(p, SPW_JINJA_N_UNARY, t->line, parse_unary(p, false));
        n->op = t->type;
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filters_and_tests(p, n);
    p->run->depth--;
    return n;
}

/* ---- values ---- */

/* Strings side by side are one. */
static struct value parse_strings(struct parser *p)
{
    const struct token *first = spw_jinja_now(p);
    size_t bytes = 0, at = 0;
    for (const struct token *t = first; t->type == SPW_JINJA_T_STRING; t++)
        bytes += t->bytes;
    char *text = spw_jinja_take_text(p->run, bytes + 1);
    for (const struct token *t = first; t->type == SPW_JINJA_T_STRING; t++, p->at++) {
        memcpy(text + at, t->at, t->bytes);
        at += t->bytes;
    }
    return spw_jinja_borrow(p->run, text, bytes);
}

static void parse_list(struct parser *p, struct node *n)
{
    n->kind = SPW_JINJA_N_LIST;
    p->at++;
    for (struct node **last = &n->list; another(p, ']', n->list); last = &(*last)->next)
        *last = spw_jinja_parse_expression(p);
}

static void parse_dict(struct parser *p, struct node *n)
{
    struct node **last = &n->list;
    n->kind = SPW_JINJA_N_DICT;
    p->at++;
    for (; another(p, '}', n->list); last = &(*last)->next->next) {
        *last = spw_jinja_parse_expression(p);
        spw_jinja_expect(p, ':');
        (*last)->next = spw_jinja_parse_expression(p);
    }
}

static void parse_word(struct parser *p, bool with_namespace, struct node *n)
{
    static const struct {
        const char *word;
        struct value value;
    } constants[] = {
        {"true", {.type = SPW_JINJA_BOOL, .u.boolean = true}},
        {"True", {.type = SPW_JINJA_BOOL, .u.boolean = true}},
        {"false", {.type = SPW_JINJA_BOOL}},
        {"False", {.type = SPW_JINJA_BOOL}},
        {"none", {.type = SPW_JINJA_NONE}},
        {"None", {.type = SPW_JINJA_NONE}},
    };
    n->name = spw_jinja_parse_name(p);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (spw_jinja_is_text(n->name, constants[i].word)) {
            n->value = constants[i].value;
            return;
        }
    n->kind = SPW_JINJA_N_NAME;
    if (with_namespace && spw_jinja_skip(p, '.')) {
        n->kind = SPW_JINJA_N_NAMESPACE_REF;
        n->a = spw_jinja_new_node(p, SPW_JINJA_N_NAME, n->line);
        n->a->name = spw_jinja_parse_name(p);
        return;
    }
    p->reads_caller |= n->name == p->template->caller;
}

static struct node *parse_primary(struct parser *p, bool with_namespace)
{
    const struct token *t = spw_jinja_now(p);
    if (spw_jinja_skip(p, '(')) {
        if (spw_jinja_skip(p, ')'))
            return spw_jinja_new_node(p, SPW_JINJA_N_TUPLE, t->line);
        struct node *inner = spw_jinja_parse_tuple(p, false);
        spw_jinja_expect(p, ')');
        return inner;
    }
    struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_CONST, t->line);
    if (t->type == SPW_JINJA_T_NAME)
        parse_word(p, with_namespace, n);
    else if (t->type == SPW_JINJA_T_STRING)
        n->value = parse_strings(p);
    else if (spw_jinja_skip(p, SPW_JINJA_T_INTEGER) || spw_jinja_skip(p, SPW_JINJA_T_FLOAT))
        n->value = t->number;
    else if (t->type == '[')
        parse_list(p, n);
    else if (t->type == '{')
        parse_dict(p, n);
    else
        spw_jinja_unexpected(p, "a value");
    return n;
}

/* ---- tuples ---- */

static bool at_tuple_end(const struct parser *p, const char *end)
{
    int type = spw_jinja_now(p)->type;
    return type == SPW_JINJA_T_VARIABLE_END || type == SPW_JINJA_T_BLOCK_END || type == ')' ||
           (end && spw_jinja_at_name(p, end));
}

/* One item, or a tuple of several with commas between. */
static struct node *parse_items(struct parser *p, const char *end, bool flag,
                                struct node *(*item)(struct parser *, bool))
{
    uint32_t line = spw_jinja_now(p)->line;
    struct node *first = NULL, **last = &first;
    bool comma = false;
    do {
        if (comma && at_tuple_end(p, end))
            break;
        spw_jinja_deeper(p);
        *last = item(p, flag);
        p->run->depth--;
        last = &(*last)->next;
    } while (spw_jinja_skip(p, ',') && (comma = true));
    if (!comma)
        return first;
    struct node *n = spw_jinja_new_node(p, SPW_JINJA_N_TUPLE, line);
    n->list = first;
    return n;
}

static struct node *parse_tuple_item(struct parser *p, bool plain)
{
    return plain ? parse_or(p) : spw_jinja_parse_expression(p);
}

struct node *spw_jinja_parse_tuple(struct parser *p, bool plain)
{
    return parse_items(p, NULL, plain, parse_tuple_item);
}

/* Only what can be assigned to: jinja2 has the same set, and no nested constants either. */
static void check_target(struct parser *p, const struct node *n)
{
    if (n->kind == SPW_JINJA_N_NAMESPACE_REF || n->kind == SPW_JINJA_N_NAME)
        return;
    if (n->kind != SPW_JINJA_N_TUPLE && n->kind != SPW_JINJA_N_LIST)
        spw_jinja_syntax(p, n->line, "found a value, expected a name to assign to");
    for (const struct node *item = n->list; item; item = item->next)
        check_target(p, item);
}

struct node *spw_jinja_parse_target(struct parser *p, bool with_namespace, const char *end)
{
    bool reads_caller = p->reads_caller;
    struct node *n = parse_items(p, end, with_namespace, parse_primary);
    p->reads_caller = reads_caller; /* written, not read */
    check_target(p, n);
    return n;
}
