/* Rules that say which tokens may follow: of a model's files, and of a request. */
#ifndef SPW_BASE_TOKEN_RULES_H
#define SPW_BASE_TOKEN_RULES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what the shared library exports */

/* Tokens; borrowed. */
struct spw_token_list {
    const int32_t *ids;
    size_t n;
};
enum spw_token_list_kind {
    SPW_FORCED_BOS,     /* the token after a prompt of one token */
    SPW_FORCED_EOS,     /* one of them is the last token of the longest answer */
    SPW_SUPPRESS,       /* they are in no answer */
    SPW_BEGIN_SUPPRESS, /* no answer begins with them */
    SPW_TOKEN_LISTS,
};
/* "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens" */
const char *spw_token_list_name(enum spw_token_list_kind kind);
/* Which tokens may follow, as transformers has it under the same names. 0: off. */
struct spw_token_rules {
    uint64_t
        no_repeat_ngram_size; /* of prompt and answer, no so many tokens occur twice in a row */
    uint64_t min_length; /* no end token before prompt and answer have so many tokens together */
    uint64_t
        min_new_tokens; /* no end token before the answer has so many; then min_length is off */
    struct spw_token_list lists[SPW_TOKEN_LISTS];
};

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
