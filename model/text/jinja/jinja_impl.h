/* What the files of the Jinja interpreter share. Not for other modules.
 *
 * Flow: jinja_lex (text to tokens) -> jinja_parse, jinja_parse_expr (tokens to nodes) -> jinja_exec
 * (statements) -> jinja_eval (expressions, attributes) -> jinja_ops (operators), jinja_names (calls
 * of filters, methods, tests and functions, which stand there, in jinja_of_text and in
 * jinja_of_items) -> jinja_value (values), jinja_text (values as text) -> jinja_memory.
 *
 * Values and nodes live in an arena: one for a parsed template, one for a rendering; nothing is
 * freed before the whole arena is. So nothing between owns anything, and a failure is a jump:
 * spw_jinja_stop goes back to spw_jinja_try, and no function here returns an error.
 *
 * Errors say "spillway does not know" and "spillway does not do" where jinja2 would render: no
 * template of a model that we found needs it. */
#ifndef SPW_MODEL_TEXT_JINJA_JINJA_IMPL_H
#define SPW_MODEL_TEXT_JINJA_JINJA_IMPL_H

#include "base/grow.h"
#include "model/text/jinja/jinja.h"

#include <setjmp.h>
#include <string.h>

/* ---- memory ---- */

struct block {
    struct block *next;
    size_t used, room;
    char at[];
};

/* Text grows at the end of its block, so that `a + b + c` and `ns.text = ns.text + x` copy each
 * part once: objects have blocks of their own. */
struct arena {
    struct block *objects, *text;
    size_t taken, limit;
};

/* ---- values ---- */

struct run;

enum type {
    SPW_JINJA_MISSING, /* an argument that was not given; never seen by a template */
    SPW_JINJA_UNDEFINED,
    SPW_JINJA_NONE,
    SPW_JINJA_BOOL,
    SPW_JINJA_INT,
    SPW_JINJA_FLOAT,
    SPW_JINJA_STRING,
    SPW_JINJA_LIST, /* also range(), keys(), values() and items() */
    SPW_JINJA_TUPLE,
    SPW_JINJA_GENERATOR, /* what map, select and the like give: a list that has no text */
    SPW_JINJA_DICT,
    SPW_JINJA_NAMESPACE,
    SPW_JINJA_MACRO,
    SPW_JINJA_METHOD, /* or a function */
    SPW_JINJA_LOOP,
};

struct string {
    const char *at; /* UTF-8, no NUL at its end */
    size_t bytes, chars;
    bool markup; /* `safe` marked it: what `+` adds to it is escaped as HTML, as jinja2 does */
};

struct value {
    enum type type;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct string *string;
        struct list *list; /* LIST, TUPLE, GENERATOR */
        struct dict *dict; /* DICT, NAMESPACE */
        const struct undefined *undefined;
        const struct macro *macro;
        const struct method *method;
        const struct loop *loop;
    } u;
};

struct list {
    struct value *at;
    size_t n, room;
};

struct entry {
    struct value key, value;
};

struct dict {
    struct entry *at; /* in the order of insertion */
    size_t n, room;
};

struct undefined {
    const char *hint; /* the whole reason, or NULL: made from the two below */
    struct value object, name;
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was written */
};

struct loop {
    struct list *items; /* those that the loop's condition let through */
    size_t at;
};

/* ---- nodes ---- */

enum kind {
    /* expressions */
    SPW_JINJA_N_CONST,
    SPW_JINJA_N_NAME,
    SPW_JINJA_N_LIST,
    SPW_JINJA_N_TUPLE,
    SPW_JINJA_N_DICT,  /* list: keys and values in turn */
    SPW_JINJA_N_ITEM,  /* a[b], or a.b where op is '.' */
    SPW_JINJA_N_SLICE, /* a, b, c; only as what ITEM asks for */
    SPW_JINJA_N_CALL,
    SPW_JINJA_N_FILTER,
    SPW_JINJA_N_TEST,
    SPW_JINJA_N_CONDITION, /* b if a else c */
    SPW_JINJA_N_OR,
    SPW_JINJA_N_AND,
    SPW_JINJA_N_NOT,
    SPW_JINJA_N_COMPARE, /* a, list: COMPARE nodes with op and a */
    SPW_JINJA_N_BINARY,
    SPW_JINJA_N_UNARY,
    SPW_JINJA_N_NAMESPACE_REF,
    /* in a call: name=value, *list */
    SPW_JINJA_N_KEYWORD,
    SPW_JINJA_N_STAR,
    /* statements */
    SPW_JINJA_N_TEXT,
    SPW_JINJA_N_OUTPUT, /* list */
    SPW_JINJA_N_IF,     /* a, body, other; op: other is an elif */
    SPW_JINJA_N_FOR,    /* a in b if c, body, other */
    SPW_JINJA_N_SET,    /* a = b */
    SPW_JINJA_N_SET_BLOCK,
    SPW_JINJA_N_MACRO,
    SPW_JINJA_N_CALL_BLOCK,
    SPW_JINJA_N_FILTER_BLOCK,
    SPW_JINJA_N_GENERATION,
    SPW_JINJA_N_BREAK,
    SPW_JINJA_N_CONTINUE,
};

struct node {
    enum kind kind;
    uint32_t line;
    int op;         /* token of an operator, 'i' in, 'n' not in; a macro reads `caller` */
    uint32_t count; /* of a macro's parameters */
    const struct string *name;
    struct value value;
    struct node *a, *b, *c;
    struct node *list; /* chained by next; arguments of calls; a macro's parameters */
    struct node *body, *other;
    struct node *next;
};

struct spw_jinja {
    struct arena arena;
    struct node *body;
    const char *name, *text; /* of the source */
    size_t bytes;
    const struct string *loop, *caller; /* interned */
};

/* ---- a parse or a rendering ---- */

struct variable {
    const struct string *name; /* the parser's: one pointer for one name */
    struct value value;
};

struct scope {
    struct scope *parent;
    struct variable *at;
    size_t n, room;
};

struct run {
    struct arena arena;
    const char *name; /* the template's, for errors */
    uint32_t line, depth;
    struct spw_error *err;
    int rc; /* of the failure that ended it */
    jmp_buf failed;
    int64_t work_left;
    /* what is printed; what is captured (macros, blocks) lies above what is printed */
    char *out; /* spw_free */
    size_t out_bytes, out_room, out_limit;
    /* of a rendering only */
    const struct spw_jinja_input *in;
    const struct spw_jinja *template;
    struct dict *vars;
    struct scope *scope; /* the innermost */
};

struct args {
    struct value *at;
    size_t n;
    struct dict *named;
};

enum { SPW_JINJA_MAX_PARAMS = 4 };

/* A call of a filter, a test, a method or a function. */
struct call {
    const struct callable *what;
    struct value self;                    /* before the bar, the `is` or the dot */
    struct value a[SPW_JINJA_MAX_PARAMS]; /* the parameters, MISSING where none was given */
};

typedef struct value spw_jinja_native(struct run *r, const struct call *c);
#define NATIVE(name) static struct value name(struct run *r, const struct call *c)

/* As what a template can call a row. */
enum {
    SPW_JINJA_FILTER = 1,
    SPW_JINJA_TEST = 2,
    SPW_JINJA_OF_STRING = 4, /* a method of strings */
    SPW_JINJA_OF_DICT = 8,
    SPW_JINJA_FUNCTION = 16,
    /* Self becomes a text first; where it was marked safe, so is what the row gives. */
    SPW_JINJA_ON_TEXT = 32,
};

/* `params` is "name,name=,..." ('=' marks what may be left out); "*" takes the arguments as they
 * came, in a[0] a tuple and in a[1] a dict. */
struct callable {
    unsigned as;
    const char *name, *params;
    spw_jinja_native *run;
    int how; /* selects what `run` does for this name; `run` says the meaning of each number */
};

struct method {
    struct value self;
    const struct callable *what;
};

/* ---- jinja_memory.c ---- */

/* Runs `body`; returns 0, or the code of the failure that ended it. */
int spw_jinja_try(struct run *r, void (*body)(struct run *r, void *arg), void *arg);
/* Ends the run with `rc`: the error's text begins with the template's name and line. */
__attribute__((format(printf, 3, 4))) _Noreturn void spw_jinja_stop(struct run *r, int rc,
                                                                    const char *format, ...);
#define spw_jinja_fail(r, ...) spw_jinja_stop(r, -EINVAL, __VA_ARGS__)
/* Fails: "found DOING a TYPE, which spillway does not do". */
_Noreturn void spw_jinja_refuse(struct run *r, const char *doing, struct value v);
/* Memory of the arena, zeroed; never NULL. */
void *spw_jinja_take(struct run *r, size_t bytes);
char *spw_jinja_take_text(struct run *r, size_t bytes);
/* An array of `n` elements with room for one more: `at`, or a larger copy. */
void *spw_jinja_grow(struct run *r, void *at, size_t n, size_t *room, size_t size);
/* Makes the text that ends the text block `more` bytes longer where it lies; false: elsewhere. */
bool spw_jinja_extend_text(struct run *r, const char *end, size_t more);
void spw_jinja_arena_free(struct arena *a);
void spw_jinja_charge(struct run *r, size_t work); /* counts work */
void spw_jinja_enter(struct run *r);               /* a level deeper; undone by r->depth-- */
void spw_jinja_print(struct run *r, const char *at, size_t bytes);
void spw_jinja_print_text(struct run *r, const char *text);
void spw_jinja_print_times(struct run *r, const char *at, size_t bytes, int64_t times);
/* What was printed since `start` becomes a string and is taken back. */
struct value spw_jinja_captured(struct run *r, size_t start);

/* ---- jinja_lex.c ---- */

enum {
    SPW_JINJA_T_END = 1,
    SPW_JINJA_T_DATA,
    SPW_JINJA_T_BLOCK_BEGIN,
    SPW_JINJA_T_BLOCK_END,
    SPW_JINJA_T_VARIABLE_BEGIN,
    SPW_JINJA_T_VARIABLE_END,
    SPW_JINJA_T_NAME,
    SPW_JINJA_T_STRING,
    SPW_JINJA_T_INTEGER,
    SPW_JINJA_T_FLOAT,
    /* operators are their character, two of them: */
    SPW_JINJA_T_EQ = 256,
    SPW_JINJA_T_NE,
    SPW_JINJA_T_LE,
    SPW_JINJA_T_GE,
    SPW_JINJA_T_FLOORDIV,
};

struct token {
    int type;
    uint32_t line;
    const char *at; /* DATA, NAME: the text; STRING: between the quotes, decoded */
    size_t bytes;
    struct value number; /* INTEGER, FLOAT */
};

struct tokens {
    struct token *at; /* spw_free, also after a failure */
    size_t n, room;
};

void spw_jinja_lex(struct run *r, const char *text, size_t bytes, struct tokens *out);

/* ---- jinja_parse.c, jinja_parse_expr.c ---- */

struct parser {
    struct run *run;
    struct spw_jinja *template;
    struct tokens tokens;
    size_t at;
    bool reads_caller;  /* since the innermost macro began */
    int loops;          /* around the statement being parsed */
    struct dict *names; /* interned: the keys */
};

const struct token *spw_jinja_now(const struct parser *p);
bool spw_jinja_at_name(const struct parser *p, const char *name);
bool spw_jinja_skip_name(struct parser *p, const char *name);
bool spw_jinja_skip(struct parser *p, int type);
void spw_jinja_expect(struct parser *p, int type);
_Noreturn void spw_jinja_unexpected(struct parser *p, const char *expected);
/* As spw_jinja_fail, at a line of the source. */
#define spw_jinja_syntax(p, at_line, ...)                                                          \
    do {                                                                                           \
        (p)->run->line = (at_line);                                                                \
        spw_jinja_fail((p)->run, __VA_ARGS__);                                                     \
    } while (0)
struct node *spw_jinja_new_node(struct parser *p, enum kind kind, uint32_t line);
/* Where a function that recurses begins; p->run->depth-- ends it. */
void spw_jinja_deeper(struct parser *p);
/* The interned string of a name token, which is consumed. */
const struct string *spw_jinja_parse_name(struct parser *p);
struct node *spw_jinja_parse_expression(struct parser *p);
/* No condition where `plain`. */
struct node *spw_jinja_parse_tuple(struct parser *p, bool plain);
/* What is written to: names, tuples of them, and ns.name where allowed. */
struct node *spw_jinja_parse_target(struct parser *p, bool with_namespace, const char *end);
/* `| name(args)`...; the first without its bar if `inline_first`. */
struct node *spw_jinja_parse_filters(struct parser *p, struct node *on, bool inline_first);

/* ---- jinja_value.c ---- */

static inline struct value none_value(void)
{
    return (struct value){.type = SPW_JINJA_NONE};
}

static inline struct value bool_value(bool b)
{
    return (struct value){.type = SPW_JINJA_BOOL, .u.boolean = b};
}

static inline struct value int_value(int64_t i)
{
    return (struct value){.type = SPW_JINJA_INT, .u.integer = i};
}

static inline struct value float_value(double d)
{
    return (struct value){.type = SPW_JINJA_FLOAT, .u.number = d};
}

static inline struct value string_value(const struct string *s)
{
    return (struct value){.type = SPW_JINJA_STRING, .u.string = s};
}

static inline struct value list_value(enum type type, struct list *l)
{
    return (struct value){.type = type, .u.list = l};
}

static inline bool given(struct value v)
{
    return v.type != SPW_JINJA_MISSING && v.type != SPW_JINJA_NONE;
}

static inline bool is_integer(struct value v)
{
    return v.type == SPW_JINJA_INT || v.type == SPW_JINJA_BOOL;
}

static inline bool is_number(struct value v)
{
    return is_integer(v) || v.type == SPW_JINJA_FLOAT;
}

static inline int64_t integer(struct value v)
{
    return v.type == SPW_JINJA_BOOL ? v.u.boolean : v.u.integer;
}

static inline bool is_list(struct value v)
{
    return v.type == SPW_JINJA_LIST || v.type == SPW_JINJA_TUPLE || v.type == SPW_JINJA_GENERATOR;
}

/* A string that borrows the text, or has a copy. */
struct value spw_jinja_borrow(struct run *r, const char *at, size_t bytes);
struct value spw_jinja_copy(struct run *r, const char *at, size_t bytes);
/* The same text, marked as safe or not. */
struct value spw_jinja_mark(struct run *r, bool markup, struct value v);
struct list *spw_jinja_new_list(struct run *r);
void spw_jinja_append(struct run *r, struct list *l, struct value v);
void spw_jinja_append_all(struct run *r, struct list *l, const struct list *more);
/* Its items, as tuples of key and value. */
struct list *spw_jinja_pairs(struct run *r, const struct dict *d);
struct dict *spw_jinja_new_dict(struct run *r);
/* The entry, whose key stays the first one, as in Python. */
struct entry *spw_jinja_dict_set(struct run *r, struct dict *d, struct value key,
                                 struct value value);
/* NULL when there is none. */
struct entry *spw_jinja_dict_find(struct run *r, const struct dict *d, struct value key);
/* The value of a text; MISSING when there is none. */
struct value spw_jinja_dict_text(const struct dict *d, const char *at, size_t bytes);
struct value spw_jinja_undefined_of(struct run *r, struct value object, struct value name);
struct value spw_jinja_undefined_hint(struct run *r, const char *hint);
/* Fails with what an undefined value says when it is used; other values pass. */
void spw_jinja_must_be_defined(struct run *r, struct value v);
const char *spw_jinja_type_name(struct value v); /* Python's */
bool spw_jinja_is_text(const struct string *s, const char *text);
bool spw_jinja_truth(struct value v);
bool spw_jinja_equal(struct run *r, struct value a, struct value b);
/* -1, 0, 1, or 2 where one is not a number, for `<` and the like; `op` is for the error's text. */
int spw_jinja_order(struct run *r, struct value a, struct value b, const char *op);
/* -1: it has no length. */
int64_t spw_jinja_length(struct value v);
bool spw_jinja_contains(struct run *r, struct value in, struct value what);
/* The items of what can be walked: its own list, or a new one. */
struct list *spw_jinja_items(struct run *r, struct value over);
/* The items as a list that may be changed. */
struct list *spw_jinja_copy_items(struct run *r, struct value over);
/* Sorts in place, stable: keys[i] belongs to items[i]. */
void spw_jinja_sort(struct run *r, struct list *items, const struct list *keys, bool reverse);
/* Raises the limits of `r` by what is converted. */
struct value spw_jinja_from_json(struct run *r, const json_t *json);

/* ---- jinja_text.c: printed to r->out, to be captured ---- */

void spw_jinja_print_value(struct run *r, struct value v); /* str() */
void spw_jinja_print_repr(struct run *r, struct value v);
struct value spw_jinja_to_string(struct run *r, struct value v);
spw_jinja_native spw_jinja_tojson;

/* ---- jinja_ops.c ---- */

struct value spw_jinja_binary(struct run *r, int op, struct value a, struct value b);
struct value spw_jinja_unary(struct run *r, int op, struct value a);
bool spw_jinja_compare(struct run *r, int op, struct value a, struct value b);
/* Of a string or a list. MISSING or None where a bound was left out. */
struct value spw_jinja_slice(struct run *r, struct value v, const struct value bounds[3]);

/* ---- jinja_names.c ---- */

const struct callable *spw_jinja_find(unsigned as, const struct string *name);
struct value spw_jinja_call_method(struct run *r, const struct method *m, const struct args *args);
/* Of a filter or a test. */
struct value spw_jinja_call_named(struct run *r, unsigned as, const struct string *name,
                                  struct value self, const struct args *args);
/* Arguments as the callables take them. */
int64_t spw_jinja_want_int(struct run *r, struct value v, const char *what);
const struct string *spw_jinja_want_string(struct run *r, struct value v, const char *what);

/* ---- jinja_of_text.c, jinja_of_items.c: tables that end in a row without name ---- */

extern const struct callable spw_jinja_of_text[], spw_jinja_of_items[];
spw_jinja_native spw_jinja_format; /* jinja_format.c */

/* ---- jinja_unicode.c ---- */

uint32_t spw_jinja_decode(const char *at, const char *end, size_t *bytes); /* of valid UTF-8 */
size_t spw_jinja_chars(const char *at, size_t bytes);
/* The start of the character that ends at `at`. */
const char *spw_jinja_before(const char *start, const char *at);
bool spw_jinja_is_space(uint32_t c);
bool spw_jinja_is_printable(uint32_t c);
enum letters { SPW_JINJA_LOWER, SPW_JINJA_UPPER, SPW_JINJA_CAPITALIZE, SPW_JINJA_TITLE };
void spw_jinja_print_case(struct run *r, const char *at, size_t bytes, enum letters how);
/* Cuts whitespace (chars NULL) or any of `chars` off one or both ends. */
void spw_jinja_strip(const char **at, size_t *bytes, const struct string *chars, bool left,
                     bool right);
/* The byte at which character `index` begins. */
size_t spw_jinja_byte_of(const struct string *s, size_t index);

/* ---- jinja_eval.c, jinja_exec.c ---- */

struct value spw_jinja_eval(struct run *r, const struct node *n);
struct args spw_jinja_eval_args(struct run *r, const struct node *list);
struct value spw_jinja_call(struct run *r, struct value f, const struct args *args);
struct value spw_jinja_get_item(struct run *r, struct value v, struct value key);
/* "a.b.0" or an index, step by step; `otherwise` (or MISSING) where a step finds nothing. */
struct value spw_jinja_get_path(struct run *r, struct value v, struct value path,
                                struct value otherwise);
void spw_jinja_assign(struct run *r, const struct node *target, struct value v);
/* In the innermost scope. */
void spw_jinja_set(struct run *r, const struct string *name, struct value v);
struct value spw_jinja_call_macro(struct run *r, const struct macro *m, const struct args *args);

#endif
