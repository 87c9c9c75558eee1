/* JSON to and from the values of jansson, where memory may be short.
 *
 * jansson's values and their functions report a failed allocation. Its parser does not: it loses
 * bytes of a text or digits of a number, writes past the end of a block, or fails an assertion
 * (jansson 2.14, strbuffer_append_byte in lex_save). json_dumps loses bytes, too. So the product
 * parses with the parser of json.c and writes with spw_json_dump. Any thread. */
#ifndef SPW_BASE_JSON_H
#define SPW_BASE_JSON_H

#include "base/base.h"

#include <jansson.h>

/* A flag of spw_json_parse: an integer of more than 64 bits is a real number. Without this flag
 * such an integer is refused. */
#define SPW_JSON_LARGE_REAL ((size_t)1 << 16)

/* Parses a text. `flags`: SPW_JSON_LARGE_REAL, and jansson's JSON_REJECT_DUPLICATES,
 * JSON_DISABLE_EOF_CHECK, JSON_DECODE_ANY, JSON_ALLOW_NUL. 0: *out is a value of the caller.
 * -EINVAL: `why` (may be NULL) has line, column and text, "found ..., expected ...". -ENOMEM. *out
 * is NULL after a failure. */
int spw_json_parse(json_t **out, const char *text, size_t bytes, size_t flags, json_error_t *why);

/* Objects or lists that are too large for a tree: each of their values is given to `take`, and the
 * tree has them empty. */
struct spw_json_parts {
    /* Of each: the keys on the way to it, each with a NUL behind it ("model\0vocab\0"), and their
     * bytes. */
    const char *const *paths;
    const size_t *bytes;
    int n;
    /* `key` is NULL in a list. A negative value ends the parsing, which returns it. */
    int (*take)(void *context, int part, const char *key, const json_t *value);
    void *context;
};
/* As spw_json_parse. `parts` may be NULL. */
int spw_json_parse_parts(json_t **out, const char *text, size_t bytes, size_t flags,
                         const struct spw_json_parts *parts, json_error_t *why);

/* The text of a value, owned by the caller (spw_free). NULL: `value` is NULL or memory is short. */
char *spw_json_dump(const json_t *value, size_t flags);

#endif
