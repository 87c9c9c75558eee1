/* The arithmetic of summaries: how many tokens the requests of a map-reduce have, how summaries are
 * merged in levels. Pure functions. */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SUMMARIZE_PLAN_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SUMMARIZE_PLAN_H

#include "base/base.h"

/* Tokens of the requests of a map-reduce. */
struct job_window {
    size_t part;          /* the most tokens of the text of a part */
    size_t merge;         /* of all summaries that are merged by one request */
    uint64_t part_answer; /* the most tokens of a summary that will be merged */
};
/* The most tokens of a request with its answer, and of its prompt by itself, for an encoder. */
struct job_room {
    uint64_t tokens, prompt;
};
/* The instructions take part_tokens and merge_tokens; the last answer has at most `answer` tokens.
 * A merge takes at least three summaries, so that each level has fewer of them. -E2BIG: there is no
 * room for texts. */
int job_window_plan(struct job_window *out, struct job_room room, size_t part_tokens,
                    size_t merge_tokens, uint64_t answer);

/* The number of merges of `n` summaries of at most `longest` tokens each; less than n if n > 1. */
size_t job_merge_count(const struct job_window *w, size_t n, size_t longest);
/* The first summary of merge i of n_merges; that of merge n_merges is n. */
size_t job_merge_first(size_t n, size_t n_merges, size_t i);

#endif
