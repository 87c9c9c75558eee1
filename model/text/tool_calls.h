/* How models write calls of tools, and the state of reading an answer: for answer_parts.c (what is
 * text and what is a call), tool_styles.c (how calls begin), tool_calls.c (what follows) and
 * tool_values.c (values of arguments). */
#ifndef SPW_MODEL_TEXT_TOOL_CALLS_H
#define SPW_MODEL_TEXT_TOOL_CALLS_H

#include "base/json.h"
#include "model/text/answer_parts.h"

enum { SPW_TOOL_MOST_STARTS = 2, SPW_TOOL_MOST_INSIDE = 2, SPW_TOOL_MOST_PASSES = 4 };

/* The marks around the name and the parameters of a call that is written in tags. */
struct spw_tool_tags {
    const char *name, *name_end;   /* before and behind the name of the function */
    const char *key, *key_end;     /* before and behind the name of a parameter */
    const char *value, *value_end; /* before the value, after white space (NULL: nothing); behind */
    const char *end;               /* of the call */
    const char *between;           /* a forced call has it behind each parameter */
    bool says_type;                /* behind the name of a parameter: whether its value is a text */
    bool breaks;                   /* a line break on each side of a value belongs to the marks */
};

/* What a reader says about the held bytes. */
enum spw_tool_read {
    SPW_TOOL_MORE, /* they may go on as a call */
    SPW_TOOL_NONE, /* they are no call */
    SPW_TOOL_DONE, /* the reader has taken bytes, and has set the next state */
};

struct spw_tool_style {
    const char *sign;                         /* words in the templates of such models */
    const char *starts[SPW_TOOL_MOST_STARTS]; /* what begins a call; NULL: nothing */
    bool may_be_bare;     /* an answer that begins with '{' may be a call of a known tool */
    bool is_list;         /* calls follow each other without marks */
    bool drops_namespace; /* names are "functions.NAME" or "functions.NAME:NUMBER" */
    /* Reads the begin of a call at held + a->head. */
    enum spw_tool_read (*read_head)(struct spw_answer_parts *a);
    const char *inside[SPW_TOOL_MOST_INSIDE]; /* marks inside of a call, if they may be tokens */
    /* An answer that is one call, with holes: {name}, {id} (nine letters and digits), {arguments}
     * (JSON), {object} (JSON of a name and of `arguments`), {tags} and {python} (NAME=JSON, ...).
     * NULL: calls cannot be forced. */
    const char *call, *arguments;
    const struct spw_tool_tags *tags; /* of {tags} */
    bool wants_short_ids;             /* the template takes ids of nine letters and digits only */
    const char *passes[SPW_TOOL_MOST_PASSES]; /* marks behind a call that say nothing */
};

struct spw_json_scan { /* where the scan of one JSON value stands */
    uint32_t depth;
    bool in_text, escaped, has_begun;
};

enum spw_parts_state {
    SPW_PARTS_TEXT,     /* text, or reasoning, that may begin a call */
    SPW_PARTS_HEAD,     /* behind the mark of a call: its name is not complete */
    SPW_PARTS_JSON,     /* arguments that are JSON */
    SPW_PARTS_REST,     /* of the JSON object around the arguments */
    SPW_PARTS_KEY,      /* in tags: before a parameter */
    SPW_PARTS_VALUE,    /* in tags: of a parameter */
    SPW_PARTS_ARGUMENT, /* in a list as in Python: before, or in, an argument */
    SPW_PARTS_BARE,     /* in an object with bare keys */
    SPW_PARTS_BEHIND,   /* behind a call */
};

struct spw_answer_parts {
    struct spw_splitter splitter;
    const struct spw_tool_style *style; /* NULL: no calls */
    json_t *tools;                      /* owned; NULL: not known */

    enum spw_parts_state state;
    char *held; /* [n], owned: bytes that are not read yet. HEAD: from the mark on */
    size_t n, capacity;
    size_t head;       /* HEAD: bytes of the mark */
    bool is_reasoning; /* TEXT: the held bytes */
    bool had_text;     /* a text that is not white space was given */
    bool ends;         /* no more bytes come */
    uint32_t n_calls;  /* begun */

    const struct spw_tool_tags *tags; /* of the call, if it has any */
    const json_t *parameters;         /* of the call's function: a schema; NULL: not known */
    struct spw_json_scan scan;
    bool may_follow;    /* BEHIND: another call may follow without a mark */
    bool in_object;     /* arguments lie in an object with the name */
    bool has_arguments; /* a parameter was given */
    char *key;          /* owned: of the parameter */
    bool is_text;       /* the value is given as it comes */
    bool may_be_null;   /* a text that says "null" is none */
    bool has_begun;     /* the value's key was given */
    bool skips_break;   /* a line break that comes next belongs to the mark */

    spw_answer_emit emit; /* during a push */
    void *context;
    int rc; /* what emit has returned, or -ENOMEM */
};

/* The rows; the first one whose sign a template has. */
extern const struct spw_tool_style spw_tool_styles[];
extern const size_t spw_tool_n_styles;
extern const struct spw_tool_style spw_tool_channels; /* of a model whose answers have channels */

/* One step of a call: false: it needs more bytes, or there is an error. */
bool spw_tool_step(struct spw_answer_parts *a);

/* tool_calls.c. The held bytes: the first one from `at` on that is no white space; whether a text
 * stands at `at` (MORE: its begin does, and no bytes follow); where it begins, from `at` on (a->n:
 * nowhere); the end of a name. */
size_t spw_tool_skip(const struct spw_answer_parts *a, size_t at);
enum spw_tool_read spw_tool_stands_at(const struct spw_answer_parts *a, size_t at,
                                      const char *text);
size_t spw_tool_look_for(const struct spw_answer_parts *a, size_t at, const char *text);
size_t spw_tool_end_of_name(const struct spw_answer_parts *a, size_t at);
static inline bool spw_tool_is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}
/* The call is complete. */
void spw_tool_end_call(struct spw_answer_parts *a);

/* answer_parts.c: hands over a piece; drops held bytes. */
void spw_parts_give(struct spw_answer_parts *a, enum spw_answer_piece_kind kind, const char *text,
                    size_t bytes);
void spw_parts_drop(struct spw_answer_parts *a, size_t n);

/* tool_values.c. The description of a function, or NULL. */
const json_t *spw_tool_find(const json_t *tools, const char *name, size_t bytes);
/* Whether a parameter's value may have a type: "string", "null". */
bool spw_tool_allows(const json_t *parameters, const char *key, const char *type);
/* JSON for the value of a parameter that is no text: the value itself if it is JSON, else what a
 * Python literal means, else a text. The caller frees it with spw_free; NULL: no memory. */
char *spw_tool_value(const char *raw, size_t bytes);
/* Gives the bytes of a text as a part of a JSON text. */
void spw_tool_give_escaped(struct spw_answer_parts *a, const char *text, size_t bytes);
/* Takes bytes of one JSON value; how many belong to it. The value has ended if depth and in_text
 * are 0 and has_begun. */
size_t spw_json_scan(struct spw_json_scan *s, const char *text, size_t bytes);
static inline bool spw_json_has_ended(const struct spw_json_scan *s)
{
    return s->has_begun && !s->depth && !s->in_text;
}

#endif
