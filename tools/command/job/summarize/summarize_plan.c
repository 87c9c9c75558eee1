/* See summarize_plan.h. */
#include "tools/command/job/summarize/summarize_plan.h"

/* An instruction and a text have a few tokens more together than each by itself. A blank line
 * follows each summary in a merge. */
enum { SPARE = 16, LEAST_TEXT = 24, LEAST_MERGED = 3, BLANK_LINE = 2 };

static uint64_t text_room(struct job_room room, size_t instructions, uint64_t answer)
{
    const uint64_t prompt = spw_min_u64(room.prompt, spw_sub_u64(room.tokens, answer));
    return spw_sub_u64(prompt, instructions + SPARE);
}

int job_window_plan(struct job_window *out, struct job_room room, size_t part_tokens,
                    size_t merge_tokens, uint64_t answer)
{
    uint64_t merge = text_room(room, merge_tokens, answer);
    uint64_t part_answer = spw_min_u64(answer, merge / LEAST_MERGED);
    uint64_t part = text_room(room, part_tokens, part_answer);
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
