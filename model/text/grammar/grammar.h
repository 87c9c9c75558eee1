/* Grammars: which bytes may follow in a text, from a JSON schema or from the calls of tools. A
 * batch lets a request choose only tokens that its grammar allows (struct spw_request.grammar).
 *
 * A grammar never changes after it was made: any number of threads and requests may use one. */
#ifndef SPW_MODEL_TEXT_GRAMMAR_GRAMMAR_H
#define SPW_MODEL_TEXT_GRAMMAR_GRAMMAR_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_grammar;

/* The JSON texts that a schema allows. -EINVAL: the text is no schema, or has a keyword that cannot
 * be enforced: `err` names the keyword and where it stands; -E2BIG: a limit. */
int spw_grammar_open_schema(struct spw_grammar **out, const char *schema, size_t bytes,
                            struct spw_error *err);
/* Any JSON object. */
int spw_grammar_open_json(struct spw_grammar **out, struct spw_error *err);
void spw_grammar_close(struct spw_grammar *g); /* NULL is fine */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
