/* `spillway batch` that is ended from outside, at any moment: every item has one answer in the end,
 * the one that it has without neighbours and interruptions. An argument: how often it is ended. */
#include "tests/command/command_json.h"
#include "tests/command/disturbed_job.h"
#include "tests/command/speech_files.h"

#define ITEMS 40

static json_t *whole; /* every answer */

static size_t check(const char *output)
{
    return check_results(output, whole, 0);
}

static struct job job = {.before = "batch m --input in.jsonl --output",
                         .after = RUN " --sessions 4 --drafts text",
                         .n_items = ITEMS,
                         .check = check};

static void run_undisturbed(uint64_t seed)
{
    add_items("in.jsonl", seed, 1, ITEMS);
    double start = check_seconds();
    CHECK_MSG(batch("in.jsonl", "whole", "--sessions 4") == 0, "%s", err);
    job.seconds = check_seconds() - start;
    whole = results_of("whole");
    CHECK(check_results("whole", NULL, 0) == ITEMS);
}

/* ---- alone ---- */

/* The answers of `generate` to one line. */
static void check_alone(int number)
{
    char id[32];
    snprintf(id, sizeof id, "\"item %d\"", number);
    CHECK_MSG(sh("sed -n %dp in.jsonl >one.jsonl; \"$S\" generate m --prompts one.jsonl " RUN
                 " >alone",
                 number) == 0,
              "%s", err);
    json_t *alone = results_of("alone");
    const json_t *a = json_object_get(alone, id), *b = json_object_get(whole, id);
    static const char *const keys[] = {"tokens", "logits_hash", "text",
                                       "finish", "logprobs",    "top_logprobs"};
    CHECK_MSG(json_object_get(a, "logits_hash"), "item %d", number);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_MSG(json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])) ||
                      !json_object_get(a, keys[i]),
                  "item %d: %s", number, keys[i]);
    json_decref(alone);
}

/* The same for lines that `generate` does not have. */
static void check_alone_in_batch(int number)
{
    char id[32];
    snprintf(id, sizeof id, "\"item %d\"", number);
    remove_job("one");
    /* names in the answer depend on the number of the line */
    CHECK(sh("awk '{print NR == %d ? $0 : \"\"}' in.jsonl >one.jsonl", number) == 0);
    CHECK_MSG(batch("one.jsonl", "one", "--sessions 1") == 0, "%s", err);
    json_t *alone = results_of("one");
    CHECK_MSG(json_equal(json_object_get(alone, id), json_object_get(whole, id)), "%s", id);
    json_decref(alone);
}

static void test_alone(void)
{
    for (int i = 1; i <= ITEMS; i += check_full() ? 1 : 3)
        if (i % 7 == 6 || i % 4 == 3)
            check_alone_in_batch(i);
        else
            check_alone(i);
}

/* ---- tokens under way ---- */

/* The text of the last line of the state. */
static json_t *last_state(void)
{
    sh("tail -n 1 t.state | cut -c75-"); /* there may be none yet */
    return json_loads(out, 0, NULL);
}

static const struct job long_job = {.before = "batch m --input long.jsonl --output", .after = RUN};

static size_t count_kept(void)
{
    json_t *line = last_state();
    size_t n = json_array_size(json_object_get(line, "tokens"));
    n += n ? (size_t)number(line, "from") : 0;
    json_decref(line);
    return n;
}

/* Ends a job of one long answer with SIGTERM. The number of tokens that its state has. */
static size_t terminate(double after)
{
    remove_job("t");
    pid_t child = start_job(&long_job, "t");
    usleep((useconds_t)(after * 1e6));
    check_kill(child, SIGTERM);
    end_of(child);
    return count_kept();
}

/* The last kept token becomes another one: the answer has it only if the next run continues. */
static void check_continues(size_t n_kept)
{
    json_t *line = last_state();
    json_t *tokens = json_object_get(line, "tokens");
    const size_t last = json_array_size(tokens) - 1;
    json_int_t was = json_integer_value(json_array_get(tokens, last)), is = was == 50 ? 51 : 50;
    json_array_set_new(tokens, last, json_integer(is));
    char *text = json_dumps(line, JSON_COMPACT);
    write_text("changed", text);
    free(text);
    json_decref(line);
    CHECK(sh("cp t.state kept && sed -i '$d' t.state && tail -n 1 kept | cut -c-74 | tr -d '\\n' "
             ">>t.state && cat changed >>t.state && echo >>t.state") == 0);
    correct_sums("t.state");
    CHECK_MSG(batch("long.jsonl", "t", "") == 0, "%s", err);
    json_t *answers = results_of("t"), *answer = json_object_get(answers, "\"long\"");
    tokens = json_object_get(answer, "tokens");
    CHECK(json_integer_value(json_array_get(tokens, n_kept - 1)) == is);
    CHECK(json_array_size(tokens) == 900);
    json_decref(answers);
}

/* A kill costs a second of a long answer: its tokens go to the state once a second. 900 tokens
 * took `took` seconds; this answer takes about three. */
static void test_kill_under_way(double took)
{
    const struct job j = {.before = "batch m --allow-long-context --input longer.jsonl --output",
                          .after = RUN};
    const size_t n = (size_t)(3 * 900 / took);
    char line[160];
    snprintf(line, sizeof line,
             "{\"id\":\"long\",\"tokens\":[5,6,7],\"max_new_tokens\":%zu,\"ignore_eos\":true}\n",
             n);
    write_text("longer.jsonl", line);
    CHECK_MSG(batch("longer.jsonl", "u", "--allow-long-context") == 0, "%s", err);
    remove_job("t");
    pid_t child = start_job(&j, "t");
    for (int i = 0; i < 2000 && sh("grep -q ' kept ' t.state") != 0; i++)
        usleep(30000);
    check_kill(child, SIGKILL);
    end_of(child);
    const size_t n_kept = count_kept();
    CHECK_MSG(n_kept > 0 && n_kept < n, "%zu tokens of %zu", n_kept, n);
    CHECK_MSG(batch("longer.jsonl", "t", "--allow-long-context --report r.json") == 0, "%s", err);
    CHECK(sh("cmp t u") == 0);
    json_t *report = parse_file("r.json");
    CHECK(number(report, "n_generated") == (long long)(n - n_kept));
    json_decref(report);
    /* A state that holds its first line and no tokens ends the job. */
    CHECK(sh("head -n 1 u.state | wc -c") == 0);
    const int blocks = atoi(out) / 512 + 1;
    remove_job("t");
    CHECK(run_short_files(&j, "t", blocks));
}

static void test_tokens_under_way(void)
{
    write_text("long.jsonl", "{\"id\":\"long\",\"tokens\":[5,6,7],\"max_new_tokens\":900,"
                             "\"ignore_eos\":true,\"temperature\":1,\"logprobs\":1}\n");
    double start = check_seconds();
    CHECK_MSG(batch("long.jsonl", "l", "") == 0, "%s", err);
    double took = check_seconds() - start;
    test_kill_under_way(took);
    size_t n_kept = 0;
    /* The machine may be slower or faster now than when the job took so long. */
    for (int i = 0; i < 20 && (n_kept == 0 || n_kept == 900); i++) {
        n_kept = terminate(took * 0.3);
        took *= sh("test -s t") == 0 ? 0.6 : 1.3; /* it has an answer: the job was over */
    }
    CHECK_MSG(n_kept > 0 && n_kept < 900, "%zu tokens", n_kept);
    check_continues(n_kept);
    /* And without a change the answer is the one of a run that nobody ended. */
    CHECK(sh("mv kept t.state && rm t") == 0);
    CHECK_MSG(batch("long.jsonl", "t", "--report r.json") == 0, "%s", err);
    CHECK(sh("cmp t l") == 0);
    json_t *report = parse_file("r.json");
    CHECK(number(report, "n_prompt") == (long long)(3 + n_kept));
    CHECK(number(report, "n_generated") == (long long)(900 - n_kept));
    json_decref(report);
    /* Tokens of another machine are not used. */
    CHECK(sh("sed -i 's/\"machine\":\"[^\"]*/&x/' t.state && rm t") == 0);
    correct_sums("t.state");
    CHECK_MSG(batch("long.jsonl", "t", "") == 0, "%s", err);
    CHECK(sh("cmp t l") == 0);
}

/* A pipe that gives nothing does not hold up the end. */
static void test_silent_pipe(void)
{
    char path[128];
    CHECK(sh("mkfifo pipe") == 0);
    const struct job silent = {.before = "batch m --input pipe --output", .after = RUN};
    pid_t child = start_job(&silent, "p");
    snprintf(path, sizeof path, "%s/pipe", folder);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, "{\"id\":1,\"tokens\":[5]}\n", 23) == 23);
    usleep(100000);
    double start = check_seconds();
    check_kill(child, SIGTERM);
    int status = end_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    CHECK(check_seconds() - start < 10);
    close(fd);
}

/* ---- growing ---- */

static void test_growing_input(void)
{
    CHECK(sh("cp in.jsonl all && head -n 25 all >in.jsonl && printf '{\"id\": \"ha' >>in.jsonl") ==
          0);
    CHECK(batch("in.jsonl", "g", "") == 1);
    CHECK(check_results("g", whole, 1) == 26);
    CHECK(sh("head -n 30 all >in.jsonl") == 0); /* the line is complete now */
    CHECK_MSG(batch("in.jsonl", "g", "") == 0, "%s", err);
    CHECK(check_results("g", whole, 0) == 30);
    pid_t child = start_job(&job, "g2");
    usleep((useconds_t)(job.seconds * 2e5));
    CHECK(sh("cp all in.jsonl") == 0); /* in place: the run that reads it finds more lines */
    int status = end_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_MSG(batch("in.jsonl", "g2", "") == 0, "%s", err);
    CHECK_MSG(batch("in.jsonl", "g", "") == 0, "%s", err);
    CHECK(check_results("g", whole, 0) == ITEMS && check_results("g2", whole, 0) == ITEMS);
}

/* ---- speech ---- */

/* Windows are kept as answers are: of a file of many, a run that continues computes those that are
 * missing. */
static void test_speech(uint64_t *random, int kills)
{
    static const char *const begins[] = {"", ", \"tokens\": [72, 76]", ", \"temperature\": 1.5"};
    struct job speech = {.before =
                             "batch $REPOSITORY/tests/golden/speech --input in.jsonl --output",
                         .after = RUN " --sessions 4",
                         .n_items = ITEMS,
                         .check = check};
    char line[128];
    FILE *file = fopen(in_folder("in.jsonl"), "w");
    CHECK(file);
    for (int i = 0; file && i < ITEMS; i++) {
        snprintf(line, sizeof line, "clip%d.wav", i);
        write_clip(line, check_range(random, 1000, i % 4 ? 50000 : 400000));
        fprintf(file, "{\"id\": %d, \"file\": \"%s\"%s}\n", i, line, begins[i % 3]);
    }
    CHECK(file && fclose(file) == 0);
    const double start = check_seconds();
    CHECK_MSG(run_job(&speech, "whole") == 0, "%s", err);
    speech.seconds = check_seconds() - start;
    whole = results_of("whole");
    CHECK(check_results("whole", NULL, 0) == ITEMS);
    check_kills(&speech, random, kills);
    json_decref(whole);
}

int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed(), random = seed;
    command_model("batch_kills");
    command_limits();
    for (int states = 0; states < 2; states++) {
        if (states)
            command_golden("m", "qwen3_5_plain");
        run_undisturbed(seed);
        test_alone();
        test_tokens_under_way();
        check_kills(&job, &random, kills_of(argc, argv, 200, 10) / (1 + states));
        if (!states) {
            test_silent_pipe();
            test_growing_input();
        }
        json_decref(whole);
        CHECK(sh("rm -f in.jsonl whole* l l.* t t.* u u.*") == 0);
    }
    test_speech(&random, kills_of(argc, argv, 100, 10));
    sh("rm -rf %s", folder);
    return check_done();
}
