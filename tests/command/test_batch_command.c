/* `spillway batch`: its input, its three files, and what it refuses (batch.cases, and here).
 * test_batch_kills ends it. */
#include "tests/command/cases.h"
#include "tests/command/disturbed_job.h"

#include <sys/stat.h>

#include <math.h>

#define SHORT "\"max_new_tokens\":3"
#define SHORT_QUOTED "\\\"max_new_tokens\\\":3"

static json_t *whole; /* the answers to in.jsonl, of which line 3 has an error */
enum { ITEMS = 7 };

static size_t check(const char *output)
{
    return check_results(output, whole, 1);
}

static const struct job job = {.before = "batch m --input in.jsonl --output",
                               .after = RUN,
                               .code = 1,
                               .n_items = ITEMS,
                               .check = check};

static void check_refused(int code, const char *message)
{
    CHECK_MSG(code == 2 && strstr(err, message), "status %d, '%s', expected '%s'", code, err,
              message);
}

/* The job that other tests damage: in.jsonl to the files `from`. */
static void make_job(void)
{
    add_items("in.jsonl", 3, 1, 2);
    CHECK(sh("echo '{\"id\":\"bad\",\"prompt\":3}' >>in.jsonl") == 0);
    add_items("in.jsonl", 3, 4, 6);
    CHECK(sh("echo '{\"tokens\":[5,6]," SHORT "}' >>in.jsonl") == 0); /* no id */
    CHECK(batch("in.jsonl", "from", "") == 1);
    CHECK(strstr(err, "6 answered, 1 without an answer, see from.errors") || !*err);
    whole = results_of("from");
    CHECK(json_object_get(whole, "#7"));
    CHECK(check_results("from", NULL, 1) == ITEMS);
}

static void test_damaged_state(void)
{
    CHECK(sh("cp from d; cp from.errors d.errors; cp from.state d.state") == 0);
    CHECK(sh("sed -i '1s/\"spillway_job\":3/\"spillway_job\":4/' d.state") == 0);
    correct_sums("d.state");
    CHECK(sh("cp d.state was") == 0);
    check_refused(batch("in.jsonl", "d", ""), "found a state of version 4, expected 3");
    CHECK(sh("cmp d.state was && cmp d from") == 0);
}

/* ---- two processes ---- */

/* The first process waits for its input. */
static void test_two_processes(void)
{
    static const char line[] = "{\"id\":1,\"tokens\":[5]," SHORT "}\n";
    const struct job held = {.before = "batch m --input held --output",
                             .after = "--errors shared " RUN};
    CHECK(mkfifo(in_folder("held"), 0600) == 0);
    int fd = open(in_folder("held"), O_RDWR | O_CLOEXEC);
    pid_t child = start_beside(&held, "two", "two.state");
    check_refused(run_job(&held, "three"), "shared: another process writes this file");
    CHECK(write(fd, line, sizeof line - 1) == sizeof line - 1);
    close(fd);
    int status = end_of(child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
    write_text("now.jsonl", line);
    CHECK(batch("now.jsonl", "two", "--errors shared") == 0);
    CHECK(check_results("two", NULL, 0) == 1);
}

/* An item that was too long for the budgets is answered with larger ones. */
static void test_retry(void)
{
    CHECK(sh("cat in.jsonl >r.jsonl; echo '{\"id\":\"L\",\"tokens\":[5],\"max_new_tokens\":1000,"
             "\"ignore_eos\":true}' >>r.jsonl") == 0);
    char options[96];
    snprintf(options, sizeof options, "--device-memory %dKiB --host-memory 32KiB",
             least_budget("m", 430, 1, 32));
    int code = batch("r.jsonl", "r", options);
    CHECK_MSG(code == 1, "%d: %s", code, err);
    CHECK_MSG(check_results("r", NULL, 2) == ITEMS + 1, "%s", err);
    CHECK(batch("r.jsonl", "r", "") == 1 && check_results("r", NULL, 2) == ITEMS + 1);
    CHECK(batch("r.jsonl", "r", "--retry-failed") == 1);
    CHECK(check_results("r", NULL, 1) == ITEMS + 1);
}

/* A line of 100 MB gets an error, and the lines around it are answered. */
static void test_long_line(void)
{
    CHECK(sh("{ head -n 1 in.jsonl; printf '{\"id\":\"long\",\"prompt\":\"'; head -c 100000000 "
             "/dev/zero | tr '\\0' x; echo '\"}'; sed -n 2p in.jsonl; } >l.jsonl") == 0);
    for (int i = 0; i < check_amount(2); i++) {
        CHECK_MSG(batch("l.jsonl", "l", "") == 1, "%s", err);
        CHECK(check_results("l", whole, 1) == 3);
        CHECK(sh("grep -q 'more than 64 MiB.*\"line\":2' l.errors") == 0);
    }
    CHECK_MSG(sh("rm l.jsonl") == 0, "%s", err);
}

/* ---- a slow pipe ---- */

/* Waits for a command to succeed, 20 seconds at most. */
static void wait_for(const char *command)
{
    const double start = check_seconds();
    while (sh("%s", command) != 0 && check_seconds() - start < 20)
        usleep(10000);
    CHECK_MSG(sh("%s", command) == 0, "waited for '%s': %s", command, err);
}

static void write_to(int fd, const char *text, size_t bytes)
{
    CHECK(write(fd, text, bytes) == (ssize_t)bytes);
}

/* Requests run and end while the writer of the pipe pauses, also within a line; so does the
 * progress, and SIGTERM is obeyed while nothing runs. */
static void test_slow_pipe(void)
{
    static const char first[] = "{\"id\":1,\"tokens\":[5]," SHORT "}\n",
                      second[] = "{\"id\":2,\"tokens\":[6]," SHORT "}\n";
    CHECK(sh("mkfifo slow") == 0);
    pid_t child = start_on(-1, -1,
                           "exec $S batch m --input slow --output p --device cpu --threads 1 "
                           "--progress always >err.pipe 2>&1");
    int fd = open(in_folder("slow"), O_WRONLY); /* returns when the command has opened the pipe */
    write_to(fd, first, strlen(first));
    wait_for("test \"$(wc -l <p)\" = 1");
    write_to(fd, second, 20);
    wait_for("grep -q '1 item done, 0 running' err.pipe");
    write_to(fd, second + 20, strlen(second) - 20);
    wait_for("test \"$(wc -l <p)\" = 2");
    check_kill(child, SIGTERM);
    CHECK(has_exited(end_of(child), 128 + SIGTERM));
    close(fd);
    CHECK(sh("grep -q '2 answered, 0 without an answer; the same command continues' err.pipe") ==
          0);
    CHECK(check_results("p", NULL, 0) == 2);
}

/* ---- log-probabilities of a prompt ---- */

#define ECHO_BODY(tokens, keys)                                                                    \
    "{\"custom_id\":\"e\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":" tokens                \
    ",\"max_tokens\":1,\"temperature\":0,\"logprobs\":2" keys "}}\n"

/* "logprobs" of the only choice of the only line. */
static json_t *logprobs_of(const char *output)
{
    json_t *all = results_of(output), *choices = NULL, *found = NULL;
    json_unpack(all, "{s:{s:{s:{s:o}}}}", "\"e\"", "response", "body", "choices", &choices);
    found = json_incref(json_object_get(json_array_get(choices, 0), "logprobs"));
    CHECK(found);
    json_decref(all);
    return found;
}

/* With "echo", what stands before each token of the prompt is scored as `score` and as shorter
 * prompts score it. */
static void test_echo(void)
{
    double likelihood = NAN, sum = 0;
    write_text("echo.jsonl", ECHO_BODY("[5,6,7,80,9]", ",\"echo\":true"));
    CHECK_MSG(batch("echo.jsonl", "echo", "") == 0, "%s", err);
    json_t *with = logprobs_of("echo"), *list = json_object_get(with, "token_logprobs"),
           *top = json_object_get(with, "top_logprobs");
    CHECK(json_array_size(list) == 6 && json_array_size(top) == 6);
    CHECK(json_is_null(json_array_get(list, 0)) && json_is_null(json_array_get(top, 0)));
    for (size_t i = 1; i < 5; i++)
        sum += json_real_value(json_array_get(list, i));
    CHECK(sh("echo 5,6,7,80,9 >ids; \"$S\" score m --token-ids ids --json " RUN) == 0);
    json_t *score = json_loads(out, 0, NULL);
    CHECK(json_unpack(score, "{s:F}", "log_likelihood", &likelihood) == 0);
    CHECK_MSG(fabs(sum - likelihood) < 1e-12, "%.17g, score %.17g", sum, likelihood);
    json_decref(score);
    write_text("before.jsonl", ECHO_BODY("[5,6,7]", ""));
    CHECK_MSG(batch("before.jsonl", "before", "") == 0, "%s", err);
    json_t *before = logprobs_of("before"), *names = json_array_get(top, 3),
           *others = json_array_get(json_object_get(before, "top_logprobs"), 0), *value;
    const char *name;
    CHECK(json_object_size(others) == 2 && json_object_size(names) >= 2);
    json_object_foreach(others, name, value)
        CHECK_MSG(json_equal(value, json_object_get(names, name)), "%s", name);
    json_decref(before);
    json_decref(with);
}

/* Other processes take memory while the machine is measured: the line that has no room any more has
 * an error, and the others are answered. */
static void test_memory_taken(void)
{
    char line[1024];
    if (sh("unshare -m true") != 0) {
        fprintf(stderr, "no unshare: the test of memory that is taken is left out\n");
        return;
    }
    write_text("meminfo", "MemAvailable: 0004000000 kB\n");
    write_text("taken.jsonl",
               "{\"id\":\"short\",\"tokens\":[5]," SHORT "}\n{\"id\":\"long\",\"tokens\":[5],"
               "\"max_new_tokens\":300000,\"ignore_eos\":true}\n");
    snprintf(line, sizeof line,
             "cd %s && XDG_CACHE_HOME=$PWD/fresh exec unshare -m sh -c 'mount --bind meminfo "
             "/proc/meminfo && exec \"$S\" batch m --device cpu --threads 1 --allow-long-context "
             "--progress never --input taken.jsonl --output taken --report r.json' 2>taken.err",
             folder);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(98);
    }
    for (int i = 0; i < 2000 && sh("grep -q 'measuring this machine' taken.err") != 0; i++)
        usleep(10000);
    CHECK(sh("printf 'MemAvailable: %%010d kB' 3000 | dd of=meminfo conv=notrunc") == 0);
    const int status = end_of(child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%x", status);
    CHECK(check_results("taken", NULL, 1) == 2);
    CHECK(sh("grep -q '\"id\":\"long\".*host memory: .*\"line\":2' taken.errors") == 0);
}

/* A line of 64,000 answers does not hold up the lines after it, nor SIGTERM. */
static void test_wide_line(void)
{
    char command[] =
        "{ printf '{\"custom_id\":\"wide\",\"url\":\"/v1/completions\",\"body\":{\"max_tokens\":1,"
        "\"n\":128,\"prompt\":[[5]'; for i in $(seq 499); do printf ',[5]'; done; echo ']}}'; "
        "for i in 1 2; do echo \"{\\\"id\\\":$i,\\\"tokens\\\":[5]," SHORT_QUOTED
        "}\"; done; } >wide.in";
    const struct job wide = {.before = "batch m --input wide.in --output", .after = RUN};
    CHECK(sh("%s", command) == 0 && sh("wc -l <wide.in") == 0 && atoi(out) == 3);
    pid_t child = start_job(&wide, "wide");
    double start = check_seconds();
    while (sh("test -e wide && test $(wc -l <wide) = 2") != 0 && check_seconds() - start < 20)
        usleep(10000);
    CHECK(check_results("wide", NULL, 0) == 2);
    start = check_seconds();
    check_kill(child, SIGTERM);
    const int status = end_of(child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM, "%x", status);
    CHECK_MSG(check_seconds() - start < 5, "%.1f s", check_seconds() - start);
    remove_job("wide");
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("batch_command");
    command_limits();
    make_job();
    setenv("RUN", RUN, 1);
    test_damaged_state();
    run_cases("batch", NULL);
    CHECK(check_results("sum", whole, 1) == ITEMS); /* of the shards */
    CHECK(check_results("s", whole, 1) == ITEMS && check_results("t", whole, 1) == ITEMS);
    check_unwritable_folder(&job);
    test_two_processes();
    check_short_files(&job);
    check_small_drives(&job);
    test_retry();
    test_long_line();
    test_slow_pipe();
    test_echo();
    test_wide_line();
    test_memory_taken();
    json_decref(whole);
    sh("rm -rf %s", folder);
    return check_done();
}
