/* What the files of the Jinja interpreter share. Not for other modules.
 *
 * Flow: jinja_lex (text to tokens) -> jinja_parse, jinja_parse_expr (tokens to nodes) -> jinja_exec
 * (statements) -> jinja_eval (expressions) -> jinja_ops (operators), jinja_attr (attributes),
 * jinja_names (the one table of filters, tests, methods and functions, and their calls) ->
 * jinja_filters*, jinja_string (string methods), jinja_tests (tests and functions) -> jinja_value
 * (values), jinja_text (values as text) -> jinja_memory. Values and nodes live in an arena: one for
 * a parsed template, one for a rendering; nothing is freed before the whole arena is.
 *
 * Errors say "spillway does not know" and "spillway does not do" where jinja2 would render: no
 * template of a model that we found needs it. */
#ifndef SPW_MODEL_TEXT_JINJA_JINJA_IMPL_H
#define SPW_MODEL_TEXT_JINJA_JINJA_IMPL_H

#include "model/text/jinja/jinja.h"

#include <string.h>

/* ---- memory ---- */

struct spw_jj_block {
    struct spw_jj_block *next;
    size_t used, room;
    char at[];
};

/* Text grows at the end of its block, so that `a + b + c` and `ns.text = ns.text + x` copy each
 * part once: objects have blocks of their own. */
struct spw_jj_arena {
    struct spw_jj_block *objects, *text;
    size_t taken, limit;
    bool full; /* the limit was met */
};

/* ---- values ---- */

struct spw_jj_run;

enum spw_jj_type {
    SPW_JJ_MISSING, /* an argument that was not given; never seen by a template */
    SPW_JJ_UNDEFINED,
    SPW_JJ_NONE,
    SPW_JJ_BOOL,
    SPW_JJ_INT,
    SPW_JJ_FLOAT,
    SPW_JJ_STRING,
    SPW_JJ_LIST,
    SPW_JJ_TUPLE,
    SPW_JJ_DICT,
    SPW_JJ_NAMESPACE,
    SPW_JJ_RANGE,
    SPW_JJ_VIEW,
    SPW_JJ_ITERATOR,
    SPW_JJ_MACRO,
    SPW_JJ_FUNCTION,
    SPW_JJ_METHOD,
    SPW_JJ_LOOP,
};

struct spw_jj_string {
    const char *at; /* UTF-8, no NUL at its end */
    size_t bytes, chars;
    bool markup; /* `safe` marked it: what `+` adds to it is escaped as HTML, as jinja2 does */
};

struct spw_jj_value {
    enum spw_jj_type type;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct spw_jj_string *string;
        struct spw_jj_list *list; /* LIST, TUPLE, VIEW: what keys() and the like give */
        struct spw_jj_dict *dict; /* DICT, NAMESPACE */
        const struct spw_jj_undefined *undefined;
        const struct spw_jj_range *range;
        struct spw_jj_iterator *iterator;
        const struct spw_jj_macro *macro;
        const struct spw_jj_callable *function;
        const struct spw_jj_method *method;
        struct spw_jj_loop *loop;
    } u;
};

struct spw_jj_list {
    struct spw_jj_value *at;
    size_t n, room;
};

struct spw_jj_entry {
    struct spw_jj_value key, value;
    uint64_t hash;
};

struct spw_jj_dict {
    struct spw_jj_entry *at; /* in the order of insertion */
    size_t n, room;
    uint32_t *index; /* open addressing, entry number + 1; NULL while there are few entries */
    size_t index_size;
};

struct spw_jj_undefined {
    const char *hint; /* the whole reason, or NULL: made from the two below */
    struct spw_jj_value object, name;
};

struct spw_jj_range {
    int64_t start, stop, step, n;
};

/* A pass over something, which is empty after its one use: what map, select and the like give. */
struct spw_jj_iterator {
    struct spw_jj_value over; /* what is walked */
    size_t at, offset;        /* how many were given; byte in a string */
};

struct spw_jj_macro {
    const struct spw_jj_node *node;
    struct spw_jj_scope *scope; /* where it was written */
};

struct spw_jj_loop {
    struct spw_jj_iterator *items;
    const struct spw_jj_node *condition; /* NULL: none, or asked for all that is left */
    const struct spw_jj_node *node;
    struct spw_jj_scope *scope; /* around the loop */
    struct spw_jj_value before, current, after;
    int64_t index0, length; /* length < 0: not known yet */
    bool has_after, ended;
};

/* ---- nodes ---- */

enum spw_jj_kind {
    /* expressions */
    SPW_JJ_CONST,
    SPW_JJ_NAME,
    SPW_JJ_MAKE_LIST,
    SPW_JJ_MAKE_TUPLE,
    SPW_JJ_MAKE_DICT, /* list: keys and values in turn */
    SPW_JJ_GET_ATTR,
    SPW_JJ_GET_ITEM,
    SPW_JJ_SLICE, /* a, b, c; only as what GET_ITEM asks for */
    SPW_JJ_CALL,
    SPW_JJ_FILTER,
    SPW_JJ_TEST,
    SPW_JJ_CONDITION, /* b if a else c */
    SPW_JJ_OR,
    SPW_JJ_AND,
    SPW_JJ_NOT,
    SPW_JJ_COMPARE, /* a, list: COMPARE nodes with op and a */
    SPW_JJ_BINARY,
    SPW_JJ_UNARY,
    SPW_JJ_CONCAT,
    SPW_JJ_NAMESPACE_REF,
    /* in a call: name=value, *list */
    SPW_JJ_KEYWORD,
    SPW_JJ_STAR,
    /* statements */
    SPW_JJ_TEXT,
    SPW_JJ_OUTPUT, /* list */
    SPW_JJ_IF,     /* a, body, other; op: other is an elif */
    SPW_JJ_FOR,    /* a in b if c, body, other */
    SPW_JJ_SET,    /* a = b */
    SPW_JJ_SET_BLOCK,
    SPW_JJ_MACRO_DEF,
    SPW_JJ_CALL_BLOCK,
    SPW_JJ_FILTER_BLOCK,
    SPW_JJ_GENERATION,
    SPW_JJ_BREAK,
    SPW_JJ_CONTINUE,
};

struct spw_jj_node {
    enum spw_jj_kind kind;
    uint32_t line;
    int op;         /* token of an operator, 'i' in, 'n' not in; a macro reads `caller` */
    uint32_t count; /* of list, or of a macro's arguments */
    const struct spw_jj_string *name;
    struct spw_jj_value value;
    struct spw_jj_node *a, *b, *c;
    struct spw_jj_node *list; /* chained by next; arguments of calls; a macro's parameters */
    struct spw_jj_node *body, *other;
    struct spw_jj_node *next;
};

struct spw_jinja {
    struct spw_jj_arena arena;
    struct spw_jj_node *body;
    char *name;
    char *text; /* owned: the source */
    size_t bytes;
    const struct spw_jj_string *loop, *caller; /* interned */
};

/* ---- a rendering ---- */

struct spw_jj_variable {
    const struct spw_jj_string *name; /* the parser's: one pointer for one name */
    struct spw_jj_value value;
};

struct spw_jj_scope {
    struct spw_jj_scope *parent;
    struct spw_jj_variable *at;
    size_t n, room;
};

struct spw_jj_buffer {
    char *at;
    size_t bytes, room;
};

struct spw_jj_run {
    struct spw_jj_arena arena;
    const struct spw_jinja_input *in;
    const struct spw_jinja *template;
    const char *name; /* its */
    struct spw_jj_dict *vars;
    struct spw_jj_buffer out; /* what is captured (macros, blocks) lies above what is printed */
    size_t out_limit;
    int64_t work_left;
    uint32_t line, depth;
    struct spw_error *err;
};

struct spw_jj_args {
    struct spw_jj_value *at;
    size_t n;
    struct spw_jj_dict *named; /* NULL: none */
};

enum { SPW_JJ_MAX_PARAMS = 4 };

/* What a filter, a test, a method or a function does: `self` stands before the bar, the `is` or the
 * dot, and `a` holds the parameters, MISSING where none was given. */
typedef int spw_jj_native(struct spw_jj_run *r, struct spw_jj_value self,
                          const struct spw_jj_value *a, struct spw_jj_value *out);

/* `params` is "name,name=,..." ('=' marks what may be left out); "*" takes the arguments as they
 * came, in a[0] a tuple and in a[1] a dict. */
struct spw_jj_callable {
    const char *name, *params;
    spw_jj_native *run;
};

struct spw_jj_method {
    struct spw_jj_value self;
    const struct spw_jj_callable *what;
};

/* ---- jinja_memory.c ---- */

void *spw_jj_take(struct spw_jj_arena *a, size_t bytes); /* zeroed, NULL when out of memory */
char *spw_jj_take_text(struct spw_jj_arena *a, size_t bytes);
/* Makes the text that ends the text block `more` bytes longer where it lies; false: elsewhere. */
bool spw_jj_extend_text(struct spw_jj_arena *a, const char *end, size_t more);
void spw_jj_arena_free(struct spw_jj_arena *a);
size_t spw_jj_chars(const char *at, size_t bytes);

__attribute__((format(printf, 2, 3))) int spw_jj_fail(struct spw_jj_run *r, const char *format,
                                                      ...);
int spw_jj_no_memory(struct spw_jj_run *r);
int spw_jj_charge(struct spw_jj_run *r, size_t work); /* counts work */
int spw_jj_enter(struct spw_jj_run *r);               /* a level deeper; undone by r->depth-- */
/* Fails: "found DOING a TYPE, which spillway does not do". */
int spw_jj_refuse(struct spw_jj_run *r, const char *doing, struct spw_jj_value v);
int spw_jj_print(struct spw_jj_run *r, const char *at, size_t bytes);
int spw_jj_print_times(struct spw_jj_run *r, const char *at, size_t bytes, int64_t times);
/* What was printed since `start` becomes a string and is taken back. */
int spw_jj_captured(struct spw_jj_run *r, size_t start, struct spw_jj_value *out);

/* ---- jinja_lex.c ---- */

enum {
    SPW_JJ_T_END = 1,
    SPW_JJ_T_DATA,
    SPW_JJ_T_BLOCK_BEGIN,
    SPW_JJ_T_BLOCK_END,
    SPW_JJ_T_VARIABLE_BEGIN,
    SPW_JJ_T_VARIABLE_END,
    SPW_JJ_T_NAME,
    SPW_JJ_T_STRING,
    SPW_JJ_T_INTEGER,
    SPW_JJ_T_FLOAT,
    /* operators are their character, two of them: */
    SPW_JJ_T_EQ = 256,
    SPW_JJ_T_NE,
    SPW_JJ_T_LE,
    SPW_JJ_T_GE,
    SPW_JJ_T_FLOORDIV,
};

struct spw_jj_token {
    int type;
    uint32_t line;
    const char *at; /* DATA, NAME: the text; STRING: between the quotes, decoded */
    size_t bytes;
    int64_t integer;
    double number;
};

struct spw_jj_tokens {
    struct spw_jj_token *at; /* spw_free */
    size_t n, room;
};

/* Of a template while it is parsed: where errors and memory go. */
struct spw_jj_source {
    struct spw_jj_arena *arena;
    const char *name;
    struct spw_error *err;
};

__attribute__((format(printf, 3, 4))) int spw_jj_syntax(const struct spw_jj_source *s,
                                                        uint32_t line, const char *format, ...);
int spw_jj_lex(const struct spw_jj_source *s, const char *text, size_t bytes,
               struct spw_jj_tokens *out);

/* ---- jinja_parse.c, jinja_parse_expr.c ---- */

struct spw_jj_parser {
    struct spw_jj_source source;
    struct spw_jj_tokens tokens;
    size_t at;
    uint32_t depth;
    bool reads_caller;                  /* since the innermost macro began */
    int loops;                          /* around the statement being parsed */
    const struct spw_jj_string **names; /* spw_free; interned, open addressing */
    size_t n_names, names_size;
};

const struct spw_jj_token *spw_jj_now(const struct spw_jj_parser *p);
bool spw_jj_at_name(const struct spw_jj_parser *p, const char *name);
bool spw_jj_skip_name(struct spw_jj_parser *p, const char *name);
bool spw_jj_skip(struct spw_jj_parser *p, int type);
int spw_jj_expect(struct spw_jj_parser *p, int type);
int spw_jj_expect_name(struct spw_jj_parser *p, const char *name);
int spw_jj_unexpected(struct spw_jj_parser *p, const char *expected);
int spw_jj_new_node(struct spw_jj_parser *p, enum spw_jj_kind kind, uint32_t line,
                    struct spw_jj_node **out);
int spw_jj_deeper(struct spw_jj_parser *p);
/* The interned string of a name token, which is consumed. */
int spw_jj_parse_name(struct spw_jj_parser *p, const struct spw_jj_string **out);
int spw_jj_parse_expression(struct spw_jj_parser *p, struct spw_jj_node **out);
/* No condition where `plain`. */
int spw_jj_parse_tuple(struct spw_jj_parser *p, bool plain, struct spw_jj_node **out);
/* What is written to: names, tuples of them, and ns.name where allowed. */
int spw_jj_parse_target(struct spw_jj_parser *p, bool with_namespace, const char *end,
                        struct spw_jj_node **out);
/* `| name(args)`...; the first without its bar if `inline_first`. */
int spw_jj_parse_filters(struct spw_jj_parser *p, struct spw_jj_node *on, bool inline_first,
                         struct spw_jj_node **out);

/* ---- jinja_value.c ---- */

struct spw_jj_value spw_jj_none(void);
struct spw_jj_value spw_jj_bool(bool b);
struct spw_jj_value spw_jj_int(int64_t i);
struct spw_jj_value spw_jj_float(double d);
/* Borrows the text. */
int spw_jj_borrow(struct spw_jj_run *r, const char *at, size_t bytes, struct spw_jj_value *out);
int spw_jj_copy(struct spw_jj_run *r, const char *at, size_t bytes, struct spw_jj_value *out);
struct spw_jj_value spw_jj_constant(const struct spw_jj_string *s);
/* The same text, marked as `like` is. */
int spw_jj_mark(struct spw_jj_run *r, const struct spw_jj_string *like, struct spw_jj_value *value);
int spw_jj_new_list(struct spw_jj_run *r, enum spw_jj_type type, struct spw_jj_value *out);
int spw_jj_append(struct spw_jj_run *r, struct spw_jj_list *l, struct spw_jj_value v);
int spw_jj_pair(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b,
                struct spw_jj_value *out);
int spw_jj_new_dict(struct spw_jj_run *r, enum spw_jj_type type, struct spw_jj_value *out);
int spw_jj_dict_set(struct spw_jj_run *r, struct spw_jj_dict *d, struct spw_jj_value key,
                    struct spw_jj_value value);
/* *entry NULL when there is none. */
int spw_jj_dict_find(struct spw_jj_run *r, const struct spw_jj_dict *d, struct spw_jj_value key,
                     struct spw_jj_entry **entry);
/* The same, by a text; for what cannot fail. */
struct spw_jj_value *spw_jj_dict_text(const struct spw_jj_dict *d, const char *at, size_t bytes);
int spw_jj_undefined_name(struct spw_jj_run *r, const struct spw_jj_string *name,
                          struct spw_jj_value *out);
int spw_jj_undefined_of(struct spw_jj_run *r, struct spw_jj_value object, struct spw_jj_value name,
                        struct spw_jj_value *out);
int spw_jj_undefined_hint(struct spw_jj_run *r, const char *hint, struct spw_jj_value *out);
/* Fails with what an undefined value says when it is used. */
int spw_jj_fail_undefined(struct spw_jj_run *r, const struct spw_jj_undefined *u);
const char *spw_jj_type_name(struct spw_jj_value v); /* Python's */
bool spw_jj_is_text(struct spw_jj_value v, const char *text);
int spw_jj_truth(struct spw_jj_run *r, struct spw_jj_value v, bool *out);
int spw_jj_equal(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b, bool *out);
/* -1, 0, 1, for `<` and the like; `op` is only for the text of the error. */
int spw_jj_order(struct spw_jj_run *r, struct spw_jj_value a, struct spw_jj_value b, const char *op,
                 int *out);
int spw_jj_length(struct spw_jj_run *r, struct spw_jj_value v, int64_t *out);
int spw_jj_contains(struct spw_jj_run *r, struct spw_jj_value in, struct spw_jj_value what,
                    bool *out);
int spw_jj_from_json(struct spw_jj_run *r, const json_t *json, struct spw_jj_value *out);

/* ---- jinja_iterate.c ---- */

int spw_jj_iterate(struct spw_jj_run *r, struct spw_jj_value over, struct spw_jj_iterator **out);
int spw_jj_new_iterator(struct spw_jj_run *r, struct spw_jj_value over,
                        struct spw_jj_iterator **out);
int spw_jj_next(struct spw_jj_run *r, struct spw_jj_iterator *it, struct spw_jj_value *out,
                bool *more);
int spw_jj_to_list(struct spw_jj_run *r, struct spw_jj_value over, enum spw_jj_type type,
                   struct spw_jj_value *out);
/* Sorts in place, stable: keys[i] belongs to items[i]. */
int spw_jj_sort(struct spw_jj_run *r, struct spw_jj_list *items, struct spw_jj_list *keys,
                bool reverse);

/* ---- jinja_text.c: printed to r->out, to be captured ---- */

int spw_jj_print_value(struct spw_jj_run *r, struct spw_jj_value v); /* str() */
int spw_jj_print_repr(struct spw_jj_run *r, struct spw_jj_value v);
int spw_jj_to_string(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value *out);

struct spw_jj_json {
    bool ascii, sort, indented;
    struct spw_jj_value indent; /* a string, where indented */
    struct spw_jj_value item_separator, key_separator;
};

int spw_jj_print_json(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_json *o,
                      uint32_t level);

/* ---- jinja_ops.c ---- */

int spw_jj_binary(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value b,
                  struct spw_jj_value *out);
int spw_jj_unary(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value *out);
int spw_jj_compare(struct spw_jj_run *r, int op, struct spw_jj_value a, struct spw_jj_value b,
                   bool *out);
/* MISSING or None where a bound was left out. */
int spw_jj_slice(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_value bounds[3],
                 struct spw_jj_value *out);

/* ---- jinja_attr.c ---- */

int spw_jj_get_attr(struct spw_jj_run *r, struct spw_jj_value v, const struct spw_jj_string *name,
                    struct spw_jj_value *out);
int spw_jj_get_item(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value key,
                    struct spw_jj_value *out);
/* "a.b.0" or an index, step by step; `otherwise` (or MISSING) where a step finds nothing. */
int spw_jj_get_path(struct spw_jj_run *r, struct spw_jj_value v, struct spw_jj_value path,
                    struct spw_jj_value otherwise, struct spw_jj_value *out);

/* ---- jinja_names.c ---- */

const struct spw_jj_callable *spw_jj_find_method(struct spw_jj_value v,
                                                 const struct spw_jj_string *name);
const struct spw_jj_callable *spw_jj_find_function(const struct spw_jj_string *name);
int spw_jj_call_function(struct spw_jj_run *r, const struct spw_jj_callable *f,
                         const struct spw_jj_args *args, struct spw_jj_value *out);
int spw_jj_call_method(struct spw_jj_run *r, const struct spw_jj_method *m,
                       const struct spw_jj_args *args, struct spw_jj_value *out);
int spw_jj_call_filter(struct spw_jj_run *r, const struct spw_jj_string *name,
                       struct spw_jj_value self, const struct spw_jj_args *args,
                       struct spw_jj_value *out);
int spw_jj_call_test(struct spw_jj_run *r, const struct spw_jj_string *name,
                     struct spw_jj_value self, const struct spw_jj_args *args, bool *out);
/* Arguments as the callables take them. */
int spw_jj_want_int(struct spw_jj_run *r, struct spw_jj_value v, const char *what, int64_t *out);
int spw_jj_want_string(struct spw_jj_run *r, struct spw_jj_value v, const char *what,
                       const struct spw_jj_string **out);

/* ---- what the table of jinja_names.c holds ---- */

/* A method of strings: where self was marked safe, so is what it gives. */
int spw_jj_call_string(struct spw_jj_run *r, spw_jj_native *method, struct spw_jj_value self,
                       const struct spw_jj_value *a, struct spw_jj_value *out);
spw_jj_native spw_jj_m_capitalize, spw_jj_m_count, spw_jj_m_endswith, spw_jj_m_find, spw_jj_m_join,
    spw_jj_m_lower, spw_jj_m_lstrip, spw_jj_m_removeprefix, spw_jj_m_removesuffix, spw_jj_m_replace,
    spw_jj_m_rfind, spw_jj_m_rsplit, spw_jj_m_rstrip, spw_jj_m_split, spw_jj_m_splitlines,
    spw_jj_m_startswith, spw_jj_m_strip, spw_jj_m_title, spw_jj_m_upper;
spw_jj_native spw_jj_m_get, spw_jj_m_items, spw_jj_m_keys, spw_jj_m_values;
spw_jj_native spw_jj_f_abs, spw_jj_f_capitalize, spw_jj_f_default, spw_jj_f_float, spw_jj_f_indent,
    spw_jj_f_int, spw_jj_f_lower, spw_jj_f_replace, spw_jj_f_safe, spw_jj_f_string, spw_jj_f_title,
    spw_jj_f_tojson, spw_jj_f_trim, spw_jj_f_upper;
spw_jj_native spw_jj_f_dictsort, spw_jj_f_first, spw_jj_f_items, spw_jj_f_join, spw_jj_f_last,
    spw_jj_f_length, spw_jj_f_list, spw_jj_f_map, spw_jj_f_max, spw_jj_f_min, spw_jj_f_reject,
    spw_jj_f_rejectattr, spw_jj_f_reverse, spw_jj_f_select, spw_jj_f_selectattr, spw_jj_f_sort,
    spw_jj_f_sum, spw_jj_f_unique;
spw_jj_native spw_jj_t_boolean, spw_jj_t_callable, spw_jj_t_defined, spw_jj_t_eq, spw_jj_t_even,
    spw_jj_t_false, spw_jj_t_float, spw_jj_t_ge, spw_jj_t_gt, spw_jj_t_in, spw_jj_t_integer,
    spw_jj_t_iterable, spw_jj_t_le, spw_jj_t_lt, spw_jj_t_mapping, spw_jj_t_ne, spw_jj_t_none,
    spw_jj_t_number, spw_jj_t_odd, spw_jj_t_sequence, spw_jj_t_string, spw_jj_t_true,
    spw_jj_t_undefined;
spw_jj_native spw_jj_dict, spw_jj_namespace, spw_jj_raise_exception, spw_jj_range_of,
    spw_jj_strftime_now;

/* ---- jinja_unicode.c ---- */

uint32_t spw_jj_decode(const char *at, const char *end, size_t *bytes); /* of valid UTF-8 */
size_t spw_jj_encode(uint32_t c, char out[4]);
bool spw_jj_is_space(uint32_t c);
bool spw_jj_is_printable(uint32_t c);
enum spw_jj_case { SPW_JJ_LOWER, SPW_JJ_UPPER, SPW_JJ_CAPITALIZE, SPW_JJ_TITLE };
int spw_jj_print_case(struct spw_jj_run *r, const char *at, size_t bytes, enum spw_jj_case how);
/* Cuts whitespace (chars NULL) or any of `chars` off one or both ends. */
void spw_jj_strip(const char **at, size_t *bytes, const struct spw_jj_string *chars, bool left,
                  bool right);
/* The byte at which character `index` begins. */
size_t spw_jj_byte_of(const struct spw_jj_string *s, size_t index);

/* ---- jinja_eval.c, jinja_exec.c ---- */

int spw_jj_eval(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *n,
                struct spw_jj_value *out);
int spw_jj_eval_args(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *list,
                     struct spw_jj_args *out);
/* `name` is the parser's, and new among them. */
int spw_jj_add_named(struct spw_jj_run *r, struct spw_jj_args *args,
                     const struct spw_jj_string *name, struct spw_jj_value v);
int spw_jj_call(struct spw_jj_run *r, struct spw_jj_value f, const struct spw_jj_args *args,
                struct spw_jj_value *out);
int spw_jj_assign(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_node *target,
                  struct spw_jj_value v);
int spw_jj_set(struct spw_jj_run *r, struct spw_jj_scope *s, const struct spw_jj_string *name,
               struct spw_jj_value v);
int spw_jj_call_macro(struct spw_jj_run *r, const struct spw_jj_macro *m,
                      const struct spw_jj_args *args, struct spw_jj_value *out);
int spw_jj_loop_attr(struct spw_jj_run *r, struct spw_jj_loop *loop,
                     const struct spw_jj_string *name, struct spw_jj_value *out);

#endif
