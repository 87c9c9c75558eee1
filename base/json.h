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

/* The text of a value, owned by the caller (spw_free). NULL: `value` is NULL or memory is short. */
char *spw_json_dump(const json_t *value, size_t flags);

#endif
