/* How a JSON schema becomes a grammar, for schema.c (keywords, references), schema_values.c
 * (numbers, texts, constants) and schema_members.c (objects, lists). Functions that return a node
 * return 0 after a failure, which is in m->g->rc. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_SCHEMA_PARTS_H
#define SPW_MODEL_TEXT_GRAMMAR_SCHEMA_PARTS_H

#include "base/json.h"
#include "model/text/grammar/nodes.h"

enum { SPW_SCHEMA_MOST_PATH = 400 };

struct spw_schema_known { /* a schema that has a node: for references, which may be recursive */
    const json_t *schema;
    uint32_t node;
    int depth;    /* objects and lists around it */
    bool is_open; /* it is being read */
};

struct spw_schema {
    struct spw_grammar *g;
    const json_t *root;             /* where references look */
    struct spw_schema_known *known; /* owned */
    size_t n_known, capacity;
    char path[SPW_SCHEMA_MOST_PATH]; /* of the schema that is being read: "#/properties/a" */
    int depth, n_open;               /* objects and lists, schemas around the present one */
    uint32_t n_merged;               /* schemas in allOf */
    uint32_t any;                    /* g->is_bare: what stands for any text */
};

/* schema.c. A part of `root`; a keyword of it; item i of a keyword. */
uint32_t spw_schema_node(struct spw_schema *m, const json_t *schema);
uint32_t spw_schema_at_key(struct spw_schema *m, const char *key, const json_t *schema);
uint32_t spw_schema_at_index(struct spw_schema *m, const char *key, size_t i, const json_t *schema);
/* The schema is refused, with its path: 0. */
__attribute__((format(printf, 2, 3))) uint32_t spw_schema_refuse(struct spw_schema *m,
                                                                 const char *format, ...);
uint32_t spw_schema_no_memory(struct spw_schema *m); /* 0 */
/* Adds "/KEY" to the path; the length before, for spw_schema_leave. */
size_t spw_schema_enter(struct spw_schema *m, const char *key);
void spw_schema_leave(struct spw_schema *m, size_t n);
/* What "#/a/b" names; NULL: it is refused. */
const json_t *spw_schema_resolve(struct spw_schema *m, const char *reference);
/* Refuses keywords that are not carried out. */
void spw_schema_check_keywords(struct spw_schema *m, const json_t *schema);
/* A keyword that restricts values of this type, NULL: of any type; NULL: the schema has none. */
const char *spw_schema_restriction(const json_t *schema, const char *type);

/* schema_values.c */
void spw_schema_make_texts(struct spw_schema *m);         /* g->space, g->text */
uint32_t spw_schema_spaced(struct spw_schema *m, char c); /* with white space on both sides */
uint32_t spw_schema_constant(struct spw_schema *m, const json_t *value);
uint32_t spw_schema_constants(struct spw_schema *m, const json_t *list);
/* A count of the schema; `absent` if the schema does not have the key. */
uint32_t spw_schema_count(struct spw_schema *m, const json_t *schema, const char *key,
                          uint32_t absent);
uint32_t spw_schema_number(struct spw_schema *m, const json_t *schema, bool is_integer);
uint32_t spw_schema_text(struct spw_schema *m, const json_t *schema);

/* schema_members.c */
void spw_schema_make_value(struct spw_schema *m); /* g->value */
uint32_t spw_schema_object(struct spw_schema *m, const json_t *schema);
uint32_t spw_schema_list(struct spw_schema *m, const json_t *schema);
uint32_t spw_schema_all_of(struct spw_schema *m, const json_t *schema);

#endif
