/* Rules that say which tokens may follow: of a model's files, and of a request. */
#ifndef SPW_BASE_TOKEN_RULES_H
#define SPW_BASE_TOKEN_RULES_H

#include <stdbool.h>
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
    SPW_BAD_WORDS,      /* they are in no answer unless they are forced; only files name them */
    SPW_TOKEN_LISTS,
};
/* "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens",
 * "bad_words_ids" */
const char *spw_token_list_name(enum spw_token_list_kind kind);
/* Which tokens may follow, as transformers has it under the same names. 0: off. */
struct spw_token_rules {
    uint64_t
        no_repeat_ngram_size; /* of prompt and answer, no so many tokens occur twice in a row */
    uint64_t min_length; /* no end token before prompt and answer have so many tokens together */
    uint64_t
        min_new_tokens; /* no end token before the answer has so many; then min_length is off */
    struct spw_token_list lists[SPW_TOKEN_LISTS];
    /* Words of several tokens that are in no answer, each behind the number of its tokens. A batch
     * takes those of the model's files. */
    struct spw_token_list bad_words;
    bool renormalize_logits; /* after all rules the log-probabilities of a beam are those of a sum
                                of one again */
    /* Of an answer with times, as Whisper writes them: the token of the time 0, behind which come
     * those of later times, and in front of which is the token that says that there are none. Times
     * come in pairs, do not go back, and begin the answer; and one follows where all of them
     * together are likelier than any other token. The first one is at most
     * timestamp_begin + max_initial_timestamp_index. */
    uint64_t timestamp_begin, max_initial_timestamp_index;
};

/* When a beam search ends. */
enum spw_early_stopping {
    SPW_BEAMS_STOP_LATE,  /* when the best beam, at its length now, is worse than n_beams answers */
    SPW_BEAMS_STOP_EARLY, /* as soon as there are n_beams answers */
    SPW_BEAMS_NEVER_EARLY, /* as the first; the length is max_new_tokens if length_penalty is above
                              0 */
};

/* How the files of a model want its answers to be searched, by the names of transformers. 0: they
 * do not say. */
struct spw_search_rules {
    uint32_t num_beams, num_beam_groups;
    float diversity_penalty, repetition_penalty;
    float length_penalty;
    enum spw_early_stopping early_stopping;
    uint64_t max_length;     /* of an answer, with the tokens that it begins with */
    uint64_t max_new_tokens; /* wins */
};

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
