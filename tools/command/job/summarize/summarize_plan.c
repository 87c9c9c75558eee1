/* See summarize_plan.h. */
#include "tools/command/job/summarize/summarize_plan.h"

/* An instruction and a text have a few tokens more together than each by itself. A blank line
 * follows each summary in a merge. */
enum { SPARE = 16, LEAST_TEXT = 24, LEAST_MERGED = 3, BLANK_LINE = 2 };

int job_window_plan(struct job_window *out, uint64_t tokens, size_t part_tokens,
                    size_t merge_tokens, uint64_t answer)
{
    uint64_t merge = spw_sub_u64(tokens, merge_tokens + answer + SPARE);
    uint64_t part_answer = spw_min_u64(answer, merge / LEAST_MERGED);
    uint64_t part = spw_sub_u64(tokens, part_tokens + part_answer + SPARE);
    *out = (struct job_window){part, merge, part_answer};
    return merge < LEAST_TEXT || part < LEAST_TEXT ? -E2BIG : 0;
}

size_t job_merge_count(const struct job_window *w, size_t n, size_t longest)
{
    size_t together = longest ? w->merge / longest : n;
    return spw_div_up(n, together < 2 ? 2 : together);
}

size_t job_merge_first(size_t n, size_t n_merges, size_t i)
{
    return n / n_merges * i + n % n_merges * i / n_merges;
}
