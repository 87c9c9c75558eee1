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
    const uint64_t prompt = draw(2) ? 1 + draw(tokens) : UINT64_MAX; /* that an encoder reads */
    const size_t part = draw(600), merge = draw(600);
    struct job_window w;
    if (job_window_plan(&w, (struct job_room){tokens, prompt}, part, merge, answer)) {
        CHECK(tokens < part + merge + 3 * answer + 200 || prompt < part + merge + 200);
        return;
    }
    CHECK(w.part > 0 && w.part_answer > 0 && w.part_answer <= answer);
    CHECK(part + w.part + w.part_answer <= tokens && part + w.part <= prompt);
    CHECK(merge + w.merge + answer <= tokens && merge + w.merge <= prompt);
    /* All the room that there is, but for a few tokens. */
    CHECK(part + w.part + 16 == spw_min_u64(prompt, tokens - w.part_answer));
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
    CHECK(job_window_plan(&w, (struct job_room){100, UINT64_MAX}, 90, 10, 10) == -E2BIG);
    CHECK(job_window_plan(&w, (struct job_room){100, UINT64_MAX}, 10, 90, 10) == -E2BIG);
    CHECK(job_window_plan(&w, (struct job_room){100, UINT64_MAX}, 10, 10, 90) == -E2BIG);
    CHECK(job_window_plan(&w, (struct job_room){200, UINT64_MAX}, 10, 10, 30) == 0);
    CHECK(job_window_plan(&w, (struct job_room){200, 50}, 10, 10, 30) == 0 && w.part == 24);
    CHECK(job_window_plan(&w, (struct job_room){200, 49}, 10, 10, 30) == -E2BIG);
}

int main(void)
{
    state = check_seed();
    for (int i = 0; i < 2000; i++)
        check_window();
    check_no_room();
    return check_done();
}
