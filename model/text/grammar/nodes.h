/* What a grammar consists of, for the files that make one (schema.c, pattern.c, numbers.c) and for
 * the automaton that follows it (run.c).
 *
 * A node is a set of bytes, a sequence, a choice or a repetition of nodes. Nodes are numbers, so
 * that a node may contain itself (a recursive schema). A builder has a sticky error: after a
 * failure all calls return 0 and change nothing. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_NODES_H
#define SPW_MODEL_TEXT_GRAMMAR_NODES_H

#include "base/json.h"
#include "model/text/grammar/grammar.h"

enum spw_node_kind { SPW_NODE_SET, SPW_NODE_SEQUENCE, SPW_NODE_CHOICE, SPW_NODE_REPEAT };

#define SPW_REPEAT_ANY UINT32_MAX /* no upper limit */

struct spw_node {
    enum spw_node_kind kind;
    bool nests;     /* SEQUENCE: an object or a list, of which at most SPW_GRAMMAR_DEEPEST nest */
    bool is_plain;  /* CHOICE: one character, which may be any plain one */
    bool is_quoted; /* REPEAT: a quotation mark follows */
    uint8_t least;  /* objects and lists that nest in its flattest text; above SPW_GRAMMAR_DEEPEST:
                       it has no text */
    uint32_t at, n; /* children: links[at .. at + n); REPEAT: 1. SET: sets[at] */
    uint32_t min, max;
};

enum { SPW_GRAMMAR_DEEPEST = 64, SPW_GRAMMAR_MOST_NODES = 1 << 19 };

struct spw_byte_set {
    uint64_t bits[4];
};

struct spw_grammar {
    struct spw_node *nodes; /* all arrays are owned */
    uint32_t *links;
    struct spw_byte_set *sets;
    size_t n_nodes, n_links, n_sets, nodes_capacity, links_capacity, sets_capacity;
    uint32_t root, root_after;   /* root_after: at most two line breaks before the root */
    uint32_t space, text, value; /* of its schemas: white space, any text, any value; 0: not yet */
    bool is_bare;                /* while it is built: characters of texts are not escaped */
    int rc;                      /* of building; 0: good */
    struct spw_error *err;       /* while it is built: borrowed */
};

/* Node 0 is the empty text. */
int spw_grammar_begin(struct spw_grammar **out, struct spw_error *err);
/* Sets the root. 0, or what has failed: then the grammar is freed, and *out is NULL. -EINVAL: the
 * root has no text. */
int spw_grammar_finish(struct spw_grammar **out, uint32_t root);

/* A node that is defined later, once. */
uint32_t spw_node_reserve(struct spw_grammar *g);
void spw_node_define(struct spw_grammar *g, uint32_t reserved, uint32_t as);
uint32_t spw_node_set(struct spw_grammar *g, const struct spw_byte_set *set);
uint32_t spw_node_byte(struct spw_grammar *g, unsigned char byte);
uint32_t spw_node_text(struct spw_grammar *g, const char *text, size_t bytes);
uint32_t spw_node_word(struct spw_grammar *g, const char *text);
/* A special token. In a vocabulary it has no text, but bytes that begin with one that stands in no
 * text. */
enum { SPW_TOKEN_BYTES = 5, SPW_TOKEN_BEGIN = 0xFF };
void spw_token_bytes(char out[SPW_TOKEN_BYTES], int32_t id);
uint32_t spw_node_token(struct spw_grammar *g, int32_t id);
uint32_t spw_node_list(struct spw_grammar *g, enum spw_node_kind kind, const uint32_t *children,
                       size_t n);
#define SPW_NODES(g, kind, ...)                                                                    \
    spw_node_list(g, kind, (const uint32_t[]){__VA_ARGS__},                                        \
                  sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define SPW_SEQUENCE(g, ...) SPW_NODES(g, SPW_NODE_SEQUENCE, __VA_ARGS__)
#define SPW_CHOICE(g, ...) SPW_NODES(g, SPW_NODE_CHOICE, __VA_ARGS__)
uint32_t spw_node_repeat(struct spw_grammar *g, uint32_t child, uint32_t min, uint32_t max);
uint32_t spw_node_maybe(struct spw_grammar *g, uint32_t child);
/* The node is an object or a list. Returns the node. */
uint32_t spw_node_nests(struct spw_grammar *g, uint32_t node);
/* In quotation marks. */
uint32_t spw_node_quoted(struct spw_grammar *g, uint32_t content);

/* ---- characters ---- */

struct spw_char_range {
    uint32_t first, last; /* code points */
};
/* Plain characters stand for themselves in every kind of text: they are no control characters, and
 * none of " \ < U+2028 U+2029. */
enum { SPW_N_PLAIN = 5 };
extern const struct spw_char_range spw_plain_chars[SPW_N_PLAIN];
bool spw_char_is_plain(uint32_t c);
/* One of these characters as UTF-8: ranges in order, without the surrogates. */
uint32_t spw_node_chars(struct spw_grammar *g, const struct spw_char_range *ranges, size_t n);
/* The same inside a JSON text: what JSON wants escaped is escaped, unless g->is_bare. */
uint32_t spw_node_json_chars(struct spw_grammar *g, const struct spw_char_range *ranges, size_t n);

/* ---- parts ---- */

/* schema.c: JSON of a schema that is a part of `root`, where references look. */
uint32_t spw_node_schema(struct spw_grammar *g, const json_t *root, const json_t *schema);
/* The same for texts without quotation marks and escapes; `any`: what stands for any text. Schemas
 * that do not only allow texts get that, too. */
uint32_t spw_node_bare_text(struct spw_grammar *g, const json_t *root, const json_t *schema,
                            uint32_t any);
/* schema_values.c: any text that does not contain `mark`: ASCII, of which only the first byte is
 * '<'. */
uint32_t spw_node_text_before(struct spw_grammar *g, const char *mark);
/* pattern.c: texts that a regular expression of JSON schema matches anywhere, inside of quotes. */
uint32_t spw_node_pattern(struct spw_grammar *g, const char *pattern, const char *where);
/* numbers.c: numbers within whole bounds. */
struct spw_bounds {
    bool has_min, has_max, above, below; /* above, below: the bound itself is excluded */
    int64_t min, max;
};
uint32_t spw_node_integer(struct spw_grammar *g, const struct spw_bounds *b);
uint32_t spw_node_number(struct spw_grammar *g, const struct spw_bounds *b);

#endif
