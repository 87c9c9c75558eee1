/* See summarize_plan.h. */
#include "tools/command/job/summarize/summarize_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

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

/* ---- estimates ---- */

uint64_t job_estimate_tokens(uint64_t bytes, uint64_t read_bytes, uint64_t read_tokens)
{
    enum { BYTES_OF_TOKEN = 4, ASSUMED = 1 << 14 };
    const double tokens = (double)read_tokens + ASSUMED / BYTES_OF_TOKEN;
    return (uint64_t)((double)bytes * tokens / ((double)read_bytes + ASSUMED));
}

size_t job_merge_levels(struct job_level *levels, const struct job_window *w, uint64_t n,
                        uint64_t answer)
{
    const uint64_t summary = w->part_answer + BLANK_LINE;
    size_t k = 0;
    for (; n > 1; k++) { /* each level has at most half, rounded up, of the one before */
        const uint64_t merges = job_merge_count(w, n, summary);
        levels[k] = (struct job_level){merges, spw_div_up(n, merges) * summary,
                                       merges > 1 ? w->part_answer : answer};
        n = merges;
    }
    return k;
}

size_t job_levels(struct job_level *levels, const struct job_window *w, uint64_t n_tokens,
                  uint64_t answer)
{
    const uint64_t n = w ? spw_max_u64(spw_div_up(n_tokens, w->part), 1) : 1;
    levels[0] = (struct job_level){n, spw_div_up(n_tokens, n), n > 1 ? w->part_answer : answer};
    return 1 + (n > 1 ? job_merge_levels(levels + 1, w, n, answer) : 0);
}

/* ---- names of files ---- */

enum { HASH_DIGITS = 16, KEPT = 90 };

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* Such a name may be that of another id, whose special characters were replaced. */
static bool ends_in_hash(const char *id, size_t bytes)
{
    return bytes > HASH_DIGITS && id[bytes - HASH_DIGITS - 1] == '-' &&
           strspn(id + bytes - HASH_DIGITS, "0123456789abcdef") == HASH_DIGITS;
}

void job_file_name(char name[JOB_NAME_BYTES], const char *id)
{
    const size_t bytes = strlen(id), kept = spw_min_u64(bytes, KEPT);
    bool is_same =
        bytes > 0 && bytes <= KEPT && *id != '.' && *id != '-' && !ends_in_hash(id, bytes);
    for (size_t i = 0; i < kept; i++) {
        bool stays = is_plain(id[i]) && (i > 0 || (*id != '.' && *id != '-'));
        name[i] = stays ? id[i] : '_';
        is_same &= stays;
    }
    if (is_same)
        snprintf(name + kept, JOB_NAME_BYTES - kept, ".txt");
    else
        snprintf(name + kept, JOB_NAME_BYTES - kept, "%s%016" PRIx64 ".txt", bytes ? "-" : "",
                 (uint64_t)XXH3_64bits(id, bytes));
}
