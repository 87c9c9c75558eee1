/* The windows of requests, the levels of merges and the names of files, on random numbers. */
#include "tests/check.h"
#include "tools/command/job/summarize/summarize_plan.h"
#include "tools/command/options/options.h"

#include <string.h>

const struct cli_command cli_commands[] = {{.name = NULL}};

static uint64_t state;

static uint64_t draw(uint64_t n)
{
    return check_random(&state) % n;
}

/* Every request fits its window, and summaries become fewer until one is left. */
static void check_window(void)
{
    const uint64_t tokens = 1 + draw(20000), answer = 1 + draw(2000);
    const size_t part = draw(600), merge = draw(600);
    struct job_window w;
    if (job_window_plan(&w, tokens, part, merge, answer)) {
        CHECK(tokens < part + merge + 3 * answer + 200);
        return;
    }
    CHECK(w.part > 0 && w.part_answer > 0 && w.part_answer <= answer);
    CHECK(part + w.part + w.part_answer <= tokens);
    CHECK(merge + w.merge + answer <= tokens);
    CHECK(3 * w.part_answer <= w.merge);
    size_t levels = 0;
    for (size_t n = 2 + draw(5000); n > 1; levels++) {
        const size_t longest = 1 + draw(w.part_answer);
        const size_t merges = job_merge_count(&w, n, longest);
        CHECK(merges >= 1 && merges < n);
        CHECK(job_merge_first(n, merges, 0) == 0 && job_merge_first(n, merges, merges) == n);
        for (size_t i = 0; i < merges; i++) {
            const size_t count = job_merge_first(n, merges, i + 1) - job_merge_first(n, merges, i);
            CHECK(count >= 2 && count * longest <= w.merge);
        }
        n = merges;
    }
    CHECK(levels <= 13); /* at least halves 5,000 summaries */
}

static void check_no_room(void)
{
    struct job_window w;
    CHECK(job_window_plan(&w, 100, 90, 10, 10) == -E2BIG);
    CHECK(job_window_plan(&w, 100, 10, 90, 10) == -E2BIG);
    CHECK(job_window_plan(&w, 100, 10, 10, 90) == -E2BIG);
    CHECK(job_window_plan(&w, 200, 10, 10, 30) == 0);
}

static void check_levels_equal(const struct job_level *levels, size_t n,
                               const struct job_level *expected, size_t n_expected)
{
    CHECK(n == n_expected);
    for (size_t i = 0; i < n && i < n_expected; i++)
        CHECK_MSG(levels[i].n == expected[i].n && levels[i].prompt == expected[i].prompt &&
                      levels[i].answer == expected[i].answer,
                  "level %zu: %llu of %llu and %llu tokens", i, (unsigned long long)levels[i].n,
                  (unsigned long long)levels[i].prompt, (unsigned long long)levels[i].answer);
}

/* A window of 8,192 tokens holds 7,426 of text: 8,192 less an answer of 750 and 16 to spare. Nine
 * summaries of 752 tokens are merged by one request. */
static void check_estimates(void)
{
    struct job_level levels[JOB_MOST_LEVELS];
    struct job_window w;
    CHECK(job_estimate_tokens(8000, 0, 0) == 2000);
    CHECK(job_estimate_tokens(8000, 3 * 16384, 16384 + 4096) == 3000);
    /* The first document has 70 bytes, and 174 tokens with its instruction. */
    CHECK(job_estimate_tokens(16384 + 70, 70, 174) == 4096 + 174);
    CHECK(job_estimate_tokens(UINT64_C(1) << 60, UINT64_C(1) << 50, UINT64_C(1) << 48) ==
          UINT64_C(1) << 58);
    CHECK(job_window_plan(&w, 8192, 0, 0, 750) == 0 && w.part == 7426 && w.part_answer == 750);
    static const struct job_level whole = {1, 100000, 750}, one = {1, 500, 750},
                                  parts[] = {{14, 7143, 750}, {2, 5264, 750}, {1, 1504, 750}},
                                  small[] = {{2, 3714, 750}, {1, 1504, 750}};
    check_levels_equal(levels, job_levels(levels, NULL, 100000, 750), &whole, 1);
    check_levels_equal(levels, job_levels(levels, &w, 500, 750), &one, 1);
    check_levels_equal(levels, job_levels(levels, &w, 7427, 750), small, 2);
    check_levels_equal(levels, job_levels(levels, &w, 100000, 750), parts, 3);
    check_levels_equal(levels, job_merge_levels(levels, &w, 14, 750), parts + 1, 2);
    CHECK(job_merge_levels(levels, &w, 1, 750) == 0 && job_levels(levels, &w, 0, 5) == 1);
    w = (struct job_window){1, 1, 1};
    CHECK(job_levels(levels, &w, UINT64_MAX, 1) <= JOB_MOST_LEVELS);
}

int main(void)
{
    state = check_seed();
    for (int i = 0; i < 2000; i++)
        check_window();
    check_no_room();
    check_estimates();
    return check_done();
}
