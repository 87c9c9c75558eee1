/* The texts of a job's progress: no line is longer than the terminal, for any numbers; the usual
 * line has everything on 80 columns; parts that are not known are left out. */
#include "tests/check.h"
#include "tools/command/output/progress.h"

#include <math.h>
#include <string.h>

enum { MOST_COLUMNS = 200 };

static const struct job_view usual = {
    .noun = "documents",
    .counts = {.n_total = 100, .n_done = 37, .n_running = 4, .n_waiting = 59},
    .prompt_rate = 812.3,
    .answer_rate = 35.06,
    .links = {[SPW_MOVED_HOST_TO_DEVICE] = {21.3e9, 26.1e9},
              [SPW_MOVED_DEVICE_TO_HOST] = {0.4e9, 26.1e9},
              [SPW_MOVED_DISK_TO_HOST] = {3.12e9, 3.4e9},
              [SPW_MOVED_HOST_TO_DISK] = {0.05e9, 1.9e9}},
    .left_seconds = 7500,
    .took_seconds = NAN,
};

static const char *line(const struct job_view *v, int columns)
{
    static char buffer[MOST_COLUMNS + 1];
    memset(buffer, 'x', sizeof buffer);
    job_progress_line(buffer, columns, v);
    CHECK_MSG(strlen(buffer) <= (size_t)columns, "%d columns: %s", columns, buffer);
    for (const char *c = buffer; *c; c++)
        CHECK_MSG(*c >= ' ' && *c <= '~', "%d columns: %s", columns, buffer);
    return buffer;
}

static bool sentence_is(const struct job_view *v, const char *wanted)
{
    char buffer[JOB_LOG_BYTES];
    job_progress_sentence(buffer, 1732345655, v);
    bool same = strcmp(buffer, wanted) == 0;
    CHECK_MSG(same, "%s", buffer);
    return same;
}

#define CHECK_LINE(v, columns, wanted)                                                             \
    CHECK_MSG(strcmp(line(v, columns), wanted) == 0, "%s", line(v, columns))

static void test_usual(void)
{
    CHECK_LINE(
        &usual, 200,
        "37 of 100 documents done, 4 running, 59 waiting, 0 failed  812 tokens/s of prompts, "
        "35.1 of answers  host link 21.3 of 26.1 GB/s, disk 3.12 of 3.40 GB/s  2 h 05 min left");
    CHECK_LINE(&usual, 79,
               "37/100 done 4 run 59 wait  in 812 out 35.1 t/s  link 82% disk 92%  left 2h05m");
    CHECK_LINE(&usual, 60, "37/100 done 4 run 59 wait  in 812 out 35.1 t/s  left 2h05m");
    CHECK_LINE(&usual, 40, "37/100 done 4 run 59 wait  left 2h05m");
    CHECK_LINE(&usual, 20, "37/100 done 4 run 59");
    struct job_view v = usual;
    v.counts.n_failed = 1;
    CHECK_LINE(&v, 79, "37/100 done 4 run 59 wait 1 fail  in 812 out 35.1 t/s  left 2h05m");
    CHECK(sentence_is(
        &usual, "2024-11-23 07:07:35 UTC: 37 of 100 documents done, 4 running, 59 waiting, 0 "
                "failed; 812 tokens/s of prompts, 35.1 of answers; host link 21.3 of 26.1 GB/s, "
                "disk 3.12 of 3.40 GB/s; 2 h 05 min left"));
}

/* What moves while a long prompt is computed. */
static void test_long_prompt(void)
{
    struct job_view v = usual;
    v.n_read = 12345;
    v.n_to_read = 345678;
    CHECK_LINE(&v, 79,
               "37/100 done 4 run 59 wait  read 12.3k/346k  in 812 out 35.1 t/s  left 2h05m");
    CHECK_LINE(&v, 60, "37/100 done 4 run 59 wait  read 12.3k/346k  left 2h05m");
    v.counts = (struct job_counts){.n_total = 1, .n_running = 1};
    v.links[SPW_MOVED_HOST_TO_DEVICE].rate = v.links[SPW_MOVED_DEVICE_TO_HOST].rate = NAN;
    v.links[SPW_MOVED_DISK_TO_HOST].rate = v.links[SPW_MOVED_HOST_TO_DISK].rate = NAN;
    v.n_read = 9999.4;
    v.n_to_read = 1234567;
    CHECK(sentence_is(&v, "2024-11-23 07:07:35 UTC: 0 of 1 document done, 1 running, 0 waiting, 0 "
                          "failed; 9999 of 1.23M tokens of prompts read; 812 tokens/s of prompts, "
                          "35.1 of answers; 2 h 05 min left"));
    v.counts.n_reading = 3; /* their prompts end together: none is done for long */
    CHECK_LINE(
        &v, 89,
        "0/1 done 1 run 0 wait  read 9999/1.23M, 3 at once  in 812 out 35.1 t/s  left 2h05m");
    v.noun = NULL; /* one request */
    v.counts = (struct job_counts){0};
    CHECK_LINE(&v, 60, "read 9999/1.23M  in 812 out 35.1 t/s  left 2h05m");
    v.n_read = v.n_to_read; /* only answers are left */
    CHECK(!strstr(line(&v, 79), "read"));
}

/* What is not known, or not used, is left out. */
static void test_unknown(void)
{
    struct job_view v = usual;
    v.counts.n_total = 0;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        v.links[i].limit = NAN;
    v.links[SPW_MOVED_DISK_TO_HOST].rate = v.links[SPW_MOVED_HOST_TO_DISK].rate = NAN;
    CHECK_LINE(&v, 79, "37 done 4 run 59 wait  in 812 out 35.1 t/s  link 21.3 GB/s  left 2h05m");
    v.left_seconds = v.prompt_rate = v.answer_rate = NAN;
    v.links[SPW_MOVED_HOST_TO_DEVICE].rate = v.links[SPW_MOVED_DEVICE_TO_HOST].rate = NAN;
    CHECK_LINE(&v, 79, "37 documents done, 4 running, 59 waiting, 0 failed");
    v.took_seconds = 100;
    CHECK(sentence_is(&v, "2024-11-23 07:07:35 UTC: 37 documents done, 4 running, 59 waiting, 0 "
                          "failed; in 2 min"));
}

static void test_durations(void)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0s"},         {99.4, "99s"},        {99.6, "2m"},      {3569, "59m"},
                 {3571, "1h00m"},   {7200, "2h00m"},      {86400, "24h00m"}, {172799, "2d00h"},
                 {200000, "2d08h"}, {1e12, "1000000d00h"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_view v = usual;
        char wanted[64];
        v.left_seconds = cases[i].seconds;
        snprintf(wanted, sizeof wanted, "left %s", cases[i].text);
        const char *text = strstr(line(&v, 60), "left");
        CHECK_MSG(text && strncmp(text, wanted, strlen(wanted)) == 0, "%s: %s", wanted,
                  line(&v, 60));
    }
}

/* A number of any size, or none. */
static double draw(uint64_t *seed)
{
    uint64_t kind = check_range(seed, 0, 9);
    return kind == 0 ? NAN : kind == 1 ? 0 : pow(10, (double)check_range(seed, 0, 1800) / 100 - 6);
}

static uint64_t draw_count(uint64_t *seed)
{
    double x = draw(seed);
    return isnan(x) ? 0 : (uint64_t)fmin(x, 1e12);
}

static void test_no_wrap(uint64_t seed)
{
    for (int i = 0; i < check_amount(40000); i++) {
        struct job_view v = {.noun = i % 2 ? "documents" : "items"};
        char sentence[JOB_LOG_BYTES];
        v.counts = (struct job_counts){.n_total = draw_count(&seed),
                                       .n_done = draw_count(&seed),
                                       .n_running = draw_count(&seed),
                                       .n_waiting = draw_count(&seed),
                                       .n_failed = draw_count(&seed)};
        for (int k = 0; k < SPW_MOVED_COUNT; k++) {
            v.links[k].rate = draw(&seed);
            v.links[k].limit = 1 + draw(&seed);
        }
        v.n_read = draw(&seed);
        v.n_to_read = draw(&seed);
        v.prompt_rate = draw(&seed);
        v.answer_rate = draw(&seed);
        v.left_seconds = draw(&seed);
        v.took_seconds = draw(&seed);
        int columns = (int)check_range(&seed, 20, MOST_COLUMNS);
        CHECK(*line(&v, columns) != 0);
        job_progress_sentence(sentence, (int64_t)draw_count(&seed), &v);
        CHECK(!strchr(sentence, '\n') && strlen(sentence) < 500);
        CHECK(!strstr(sentence, "nan") && !strstr(line(&v, columns), "nan"));
    }
}

int main(void)
{
    test_usual();
    test_long_prompt();
    test_unknown();
    test_durations();
    test_no_wrap(check_seed());
    return check_done();
}
