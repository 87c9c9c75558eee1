/* `spillway batch`: its input, its three files, and what it refuses. test_batch_kills ends it. */
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

static void copy_job(const char *output)
{
    remove_job(output);
    CHECK(sh("cp from %s; cp from.errors %s.errors; cp from.state %s.state", output, output,
             output) == 0);
}

/* ---- damaged files ---- */

/* Cuts the last line of a file that follows from the state off at every length. */
static void test_torn_lines(int stride)
{
    static const char *const ends[] = {"", ".errors"};
    for (int i = 0; i < 2; i++) {
        CHECK(sh("tail -n 1 from%s", ends[i]) == 0);
        for (size_t left = 0; left < n_out; left += (size_t)stride) {
            copy_job("torn");
            CHECK(sh("truncate -s -%zu torn%s", n_out - left, ends[i]) == 0);
            check_end(&job, "torn");
        }
    }
}

static void test_damaged_state(void)
{
    copy_job("d");
    CHECK(sh("sed -i '1s/\"spillway_job\":3/\"spillway_job\":4/' d.state") == 0);
    correct_sums("d.state");
    CHECK(sh("cp d.state was") == 0);
    check_refused(batch("in.jsonl", "d", ""), "found a state of version 4, expected 3");
    CHECK(sh("cmp d.state was && cmp d from") == 0);
    CHECK(sh("sed -i '1s/.*/{\"spillway_job\":2,\"started\":1}/' d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""),
                  "d.state: an older version of spillway has begun this job (its state has the "
                  "version 2, this program writes 3)");
    copy_job("d");
    CHECK(sh("sed -i '3s/a/b/' d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.state: line 3 is damaged; with --retry-failed");
    copy_job("d");
    CHECK(sh("head -c 20 from.state >d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.state: found a file that no job has written");
    copy_job("d");
    CHECK(sh("rm d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: found a file that no job has written");
    CHECK(sh("cmp d from") == 0);
    copy_job("d");
    CHECK(sh("head -n 1 d >>d") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: line 7 is not as the job wrote it");
    copy_job("d");
    CHECK(sh("sed -i '2s/^/x/' d") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: line 2 is not as the job wrote it");
    copy_job("d");
    CHECK(sh("head -n 1 d >>d.errors") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.errors: line 2 is not as the job wrote it");
}

/* One bit of a line has flipped, so that the line may still be JSON, or may not. The line is named,
 * also by --status; --retry-failed mends it. */
static void test_damaged_results(void)
{
    static const char *const damages[] = {"s/e/f/", "s/{/[/", "s/}$/]/"};
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        copy_job("d");
        CHECK(sh("sed -i '2%s' d && ! cmp -s d from", damages[i]) == 0);
        CHECK(sh("\"$S\" batch --status d") == 1);
        CHECK_MSG(strstr(err, "d: line 2 is not as the job wrote it") &&
                      strstr(out, "d: 5 done, 1 failed, 1 missing"),
                  "%s%s", out, err);
        check_refused(batch("in.jsonl", "d", ""), "d: line 2 is not as the job wrote it");
        CHECK(batch("in.jsonl", "d", "--retry-failed") == 1 && sh("cmp d from") == 0);
    }
}

/* The run says that its output was taken away, and the next one has it again. */
static void test_output_taken_away(void)
{
    static const char *const changes[] = {"rm w", "mv w w.away", "cp w w.new && mv w.new w",
                                          "truncate -s 3 w"};
    const struct job held = {.before = "batch m --input held.in --output", .after = RUN};
    static const char lines[2][64] = {"{\"id\":1,\"tokens\":[5]," SHORT "}\n",
                                      "{\"id\":2,\"tokens\":[6]," SHORT "}\n"};
    char path[128];
    CHECK(sh("mkfifo held.in") == 0);
    snprintf(path, sizeof path, "%s/held.in", folder);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        pid_t child = start_job(&held, "w");
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        CHECK(write(fd, lines[0], strlen(lines[0])) > 0);
        for (int n = 0; n < 2000 && sh("test -s w") != 0; n++)
            usleep(10000);
        CHECK(sh("%s", changes[i]) == 0);
        CHECK(write(fd, lines[1], strlen(lines[1])) > 0);
        close(fd);
        const int status = end_of(child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s: %x", changes[i], status);
        CHECK(
            sh("grep -q 'w: another program has changed, replaced or removed this file' started") ==
            0);
        write_text("both.jsonl", lines[0]);
        CHECK(sh("echo '%s' >>both.jsonl", lines[1]) == 0);
        CHECK_MSG(batch("both.jsonl", "w", "") == 0, "%s", err);
        CHECK(check_results("w", NULL, 0) == 2);
        remove_job("w");
    }
}

/* ---- files of others ---- */

static void test_outputs_of_others(void)
{
    static const char *const others[] = {"no newline", "a line\n", "a line\nand more"};
    for (size_t i = 0; i < 3; i++) {
        remove_job("o");
        write_text("o", others[i]);
        check_refused(batch("in.jsonl", "o", ""), "o: found a file that no job has written");
        read_file("o", out, sizeof out);
        CHECK(strcmp(out, others[i]) == 0);
        remove_job("o");
        write_text("o.errors", others[i]);
        check_refused(batch("in.jsonl", "o", ""), "o.errors: found a file that no job has written");
        remove_job("o");
        write_text("o.state", others[i]);
        check_refused(batch("in.jsonl", "o", ""), "o.state: ");
        read_file("o.state", out, sizeof out);
        CHECK(strcmp(out, others[i]) == 0);
    }
    remove_job("o");
    CHECK(sh("cp in.jsonl was; ln -sf from link") == 0);
    check_refused(batch("in.jsonl", "in.jsonl", ""), "--output: in.jsonl: is the file of --input");
    check_refused(batch("in.jsonl", "./in.jsonl", ""), "is the file of --input");
    check_refused(batch("in.jsonl", "o", "--errors in.jsonl"), "is the file of --input");
    check_refused(batch("in.jsonl", "o", "--errors ./o"), "found ./o for both");
    check_refused(batch("in.jsonl", "o", "--errors o.state"), "are one file, expected two");
    check_refused(batch("in.jsonl", "o", "--report ./o.state"), "is a file of the job");
    remove_job("o");
    check_refused(batch("in.jsonl", "link", ""), "link: ");
    CHECK(sh("rm -f o.state; ln -s from.state o.state") == 0);
    check_refused(batch("in.jsonl", "o", ""), "o.state: is a symbolic link");
    remove_job("o");
    check_refused(batch("in.jsonl", "m", ""), "--output: m: ");
    check_refused(batch("m", "none", ""), "m: Is a directory");
    CHECK(sh("! test -e none") == 0);
    check_refused(batch("in.jsonl", "m/config.json", ""), "is a file of the model");
    check_refused(batch("in.jsonl", "nowhere/o", ""), "nowhere/o: No such file or directory");
    CHECK(sh("mkfifo pipe") == 0);
    check_refused(batch("in.jsonl", "pipe", ""), "pipe: ");
    check_refused(batch("missing.jsonl", "o", ""), "missing.jsonl: No such file");
    CHECK(sh("cmp in.jsonl was && test ! -s from.errors") == 1);
}

/* The names in the folder, and the contents of the job x. */
static void list_files(const char *to)
{
    sh("ls -A . new 2>/dev/null | grep -vx 'out\\|err\\|.*list'; cat x x.state x.errors");
    write_text(to, out);
}

/* A run that is refused leaves no file that was not there. */
static void test_refused_leaves_nothing(void)
{
    static const char *const runs[] = {
        "batch m --input in.jsonl --output n --shard 3/3",
        "batch m --input in.jsonl --output n --logit-bias 99999=1",
        "batch m --input in.jsonl --output n --no-such-option",
        "batch m --input in.jsonl --output n --errors n.state",
        "batch m --input missing.jsonl --output n",
        "batch m --input in.jsonl --output n --context 100000000",
        "batch m --input in.jsonl --output n --device-memory 1KiB --host-memory 1KiB",
        "batch m --input in.jsonl --output x --errors n",
        "batch m --input in.jsonl --output x --seed 5",
        "batch m --input in.jsonl --output n --errors x.errors",
        "batch missing --input in.jsonl --output n",
        "summarize m missing --out-dir new",
        "summarize m missing --output n",
        "summarize m in.jsonl --out-dir new --length 0",
        "summarize m m/config.json --output x --errors x.errors",
        "summarize m m/config.json --out-dir new --errors x.errors",
    };
    copy_job("x");
    list_files("was.list");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        int code = sh("\"$S\" %s " RUN, runs[i]);
        CHECK_MSG(code == 2, "%s: status %d, %s", runs[i], code, err);
        list_files("is.list");
        CHECK_MSG(sh("diff was.list is.list") == 0, "%s: %s", runs[i], out);
    }
}

/* ---- two processes ---- */

/* The first process waits for its input. */
static void test_two_processes(void)
{
    static const char line[] = "{\"id\":1,\"tokens\":[5]," SHORT "}\n";
    const struct job held = {.before = "batch m --input held --output",
                             .after = "--errors shared " RUN};
    char path[128];
    snprintf(path, sizeof path, "%s/held", folder);
    CHECK(mkfifo(path, 0600) == 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
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

/* ---- another job ---- */

static void test_differences(void)
{
    static const char *const options[][2] = {
        {"--temperature 0.5", "begun with --temperature 0.0, found 0.5"},
        {"--max-new-tokens 9", "begun with --max-new-tokens 128, found 9"},
        {"--stop a --stop b", "begun with --stop [], found [\"a\",\"b\"]"},
        {"--logit-bias 5=1", "begun with --logit-bias []"},
        {"--shard 0/1", "begun without --shard, found \"0/1\""},
        {"--kv-dtype int8", "begun with --kv-dtype \"auto\", found \"int8\""},
        {"--errors elsewhere", "this job writes its errors to OUTPUT.errors"},
    };
    copy_job("x");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        check_refused(batch("in.jsonl", "x", options[i][0]), options[i][1]);
    CHECK(batch("in.jsonl", "x", "--errors ./x.errors --prefill-chunk 100 --sessions 2") == 1);
    CHECK(sh("cp in.jsonl changed && sed -i '2s/max_new_tokens/ &/' changed") == 0);
    check_refused(batch("changed", "x", ""), "item \"item 2\", but line 2 of the input");
    CHECK(sh("cp in.jsonl changed && sed -i '7s/5/4/' changed") == 0);
    check_refused(batch("changed", "x", ""), "line 7 of the input");
    CHECK(sh("cp -r m m2 && printf ' ' >>m2/tokenizer.json && \"$S\" batch m2 --input in.jsonl "
             "--output x " RUN) == 2);
    CHECK_MSG(strstr(err, "begun with another tokenizer; give"), "%s", err);
    CHECK(sh("tac in.jsonl | grep id >changed") ==
          0); /* another order, and the last line is gone */
    CHECK(batch("changed", "x", "") == 1);
    CHECK(sh("cmp x from") == 0);
}

static void test_changed_file(void)
{
    write_text("sub.jsonl", "{\"id\":\"f\",\"file\":\"f.txt\"," SHORT "}\n"
                            "{\"id\":\"g\",\"file\":\"g.txt\"," SHORT "}\n");
    CHECK(sh("mkdir sub && mv sub.jsonl sub/in && printf text >sub/f.txt") == 0);
    CHECK(batch("sub/in", "sub/o", "") == 1);
    CHECK(check_results("sub/o", NULL, 1) == 2);
    CHECK(sh("cd sub && \"$S\" batch --status o") == 1 &&
          strstr(out, "1 done, 1 failed, 0 missing"));
    CHECK(sh("printf new >sub/f.txt") == 0);
    check_refused(batch("sub/in", "sub/o", ""), "or the file that it names, has changed since");
    CHECK(sh("printf text >sub/f.txt; printf more >sub/g.txt") == 0);
    CHECK_MSG(batch("sub/in", "sub/o", "") == 0, "%s", err); /* that file is there now */
    CHECK(check_results("sub/o", NULL, 0) == 2);
    CHECK(sh("\"$S\" batch --status sub/o") == 0);
}

static void test_corrected_lines(void)
{
    write_text("c.jsonl",
               "no JSON\n{\"id\":\"twice\",\"tokens\":[3]," SHORT "}\n"
               "{\"id\":\"twice\",\"tokens\":[4]," SHORT "}\n{\"id\":\"t\",\"tokens\":[]}\n");
    CHECK(batch("c.jsonl", "c", "") == 1);
    CHECK(check_results("c", NULL, 3) == 4);
    CHECK(batch("c.jsonl", "c", "") == 1); /* nothing is done again */
    CHECK(check_results("c", NULL, 3) == 4);
    write_text("c.jsonl", "{\"id\":\"now\",\"tokens\":[3]," SHORT "}\n"
                          "{\"id\":\"twice\",\"tokens\":[3]," SHORT "}\n"
                          "{\"id\":\"once\",\"tokens\":[4]," SHORT "}\n"
                          "{\"id\":\"t\",\"tokens\":[5]," SHORT "}\n");
    CHECK_MSG(batch("c.jsonl", "c", "") == 0, "%s", err);
    CHECK(check_results("c", NULL, 0) == 4);
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

/* ---- lines ---- */

static void test_ids(void)
{
    write_text(
        "ids.jsonl",
        "{\"id\":\"a\\nb\\\"c\\\\\",\"tokens\":[3]," SHORT "}\r\n"
        "\n   \t\r\n{\"id\":1,\"tokens\":[3]," SHORT "}\n"
        "{\"id\":\"1\",\"tokens\":[3]," SHORT "}\n{\"id\":1.0,\"tokens\":[3]," SHORT "}\n"
        "{\"id\":null,\"tokens\":[3]," SHORT "}\n{\"id\":{\"b\":1,\"a\":[]},\"tokens\":[3]," SHORT
        "}\n{\"id\":\"\\u0000\",\"tokens\":[3]," SHORT "}\n{\"id\":\"#7\",\"tokens\":[3]," SHORT
        "}\n{\"id\":true,\"tokens\":[3]," SHORT "}\n{\"id\":\"\xc3\xa9\",\"tokens\":[3]," SHORT
        "}\n{\"id\":7,\"tokens\":[3]," SHORT "}");
    CHECK(sh("(cat ids.jsonl; echo; printf '{\"id\":\"'; head -c 10000 /dev/zero | tr '\\0' x; "
             "printf "
             "'\",\"tokens\":[3]," SHORT "}') >i && mv i ids.jsonl") == 0);
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(batch("ids.jsonl", "ids", "") == 0, "%s", err);
        CHECK(sh("test $(wc -l <ids) = 12 && test ! -s ids.errors") == 0);
        if (i == 1)
            CHECK(sh("sed -i '8,$d' ids") == 0);
    }
    CHECK(check_results("ids", NULL, 0) == 12);
    CHECK(sh("\"$S\" batch --status ids") == 0 && strstr(out, "12 done, 0 failed, 0 missing"));
    /* Again in another order: the ids that are not there any more stay. */
    CHECK(sh("cat ids ids.jsonl >/dev/null; printf '\\n{\"id\":\"1\",\"tokens\":[3]," SHORT
             "}\\n' >>ids.jsonl") == 0);
    CHECK(batch("ids.jsonl", "ids", "") == 1);
    CHECK(sh("grep -q '\"param\":\"id\",\"code\":\"duplicate_custom_id\"' ids.errors && "
             "test $(wc -l <ids.errors) = 1") == 0);
}

static void test_odd_inputs(void)
{
    CHECK(sh(": >empty; printf '\\n\\r\\n  ' >blank") == 0);
    CHECK(batch("empty", "e", "") == 0 && check_results("e", NULL, 0) == 0);
    CHECK(batch("blank", "e", "") == 0 && check_results("e", NULL, 0) == 0);
    CHECK(sh("\"$S\" batch --status e") == 0);
    CHECK(sh("cat in.jsonl | \"$S\" batch m --input - --output s " RUN) == 1);
    CHECK(check_results("s", whole, 1) == ITEMS);
    CHECK(sh("\"$S\" batch --status s") == 1 && strstr(out, "the input was stdin"));
    CHECK(
        sh("head -n 4 s >t && cp s.state t.state && cp s.errors t.errors && \"$S\" batch m --input "
           "- --output t " RUN " <in.jsonl") == 1);
    CHECK(check_results("t", whole, 1) == ITEMS);
    CHECK(sh("mkdir dir; \"$S\" batch m --input dir --output e2 " RUN) != 0);
    CHECK(sh("cd dir && \"$S\" batch ../m --input ../in.jsonl --output o --errors ../far " RUN) ==
          1);
    check_refused(sh("\"$S\" batch --status m/config.json"), "m/config.json: found no m/config.j");
    CHECK(sh("cd / && \"$S\" batch --status %s/dir/o", folder) == 1);
    CHECK_MSG(strstr(out, "6 done, 1 failed, 0 missing"), "%s", out);
}

/* Lines that name files, and deep ones. */
static void test_hostile_lines(void)
{
    static const struct {
        const char *file, *why; /* NULL: an answer */
    } files[] = {
        {"pipe.in", "found a device or a pipe, expected a file"},
        {"/dev/zero", "found a device or a pipe, expected a file"},
        {"/dev/stdin", "found a device or a pipe, expected a file"},
        {".", "found a folder, expected a file"},
        {"m/../../", "found a folder, expected a file"},
        {"loop", "Too many levels of symbolic links"},
        {"loop/a", "Too many levels of symbolic links"},
        {"here/here/here/text", NULL},
        {"m/../m/../text", NULL},
        {"m/../missing", "No such file or directory"},
    };
    enum { N = sizeof files / sizeof *files };
    char path[128];
    CHECK(sh("mkfifo pipe.in; ln -s loop loop; ln -s . here; printf text >text") == 0);
    snprintf(path, sizeof path, "%s/h.jsonl", folder);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < N; i++)
        fprintf(file, "{\"id\":\"%s\",\"file\":\"%s\"," SHORT "}\n", files[i].file, files[i].file);
    fprintf(file, "{\"id\":\"open\",\"tokens\":");
    for (int i = 0; i < 1000000; i++)
        fputc('[', file);
    fprintf(file, "\n{\"id\":\"closed\",\"messages\":");
    for (int i = 0; i < 100000; i++)
        fputs("{\"a\":", file);
    fputc('1', file);
    for (int i = 0; i <= 100000; i++)
        fputc('}', file);
    fprintf(file, "\n{\"id\":\"last\",\"tokens\":[3]," SHORT "}\n");
    fclose(file);
    CHECK(sh("cat /dev/zero | \"$S\" batch m --input h.jsonl --output h " RUN) == 1);
    size_t n_failed = 2; /* the deep lines */
    for (int i = 0; i < N; i++)
        n_failed += files[i].why != NULL;
    CHECK_MSG(check_results("h", NULL, n_failed) == N + 3, "%s", err);
    json_t *failed = results_of("h.errors"), *answers = results_of("h");
    for (int i = 0; i < N; i++) {
        char id[64];
        snprintf(id, sizeof id, "\"%s\"", files[i].file);
        char *line = json_dumps(json_object_get(failed, id), JSON_ENCODE_ANY);
        CHECK_MSG(files[i].why ? line && strstr(line, files[i].why)
                               : json_object_get(answers, id) != NULL,
                  "%s: %s", files[i].file, line);
        free(line);
    }
    CHECK(json_object_get(failed, "\"open\"") && json_object_get(failed, "\"closed\""));
    json_decref(failed);
    json_decref(answers);
}

/* A line of 100 MB gets an error, and the lines around it are answered. */
static void test_long_line(void)
{
    CHECK(sh("{ head -n 1 in.jsonl; printf '{\"id\":\"long\",\"prompt\":\"'; head -c 100000000 "
             "/dev/zero | tr '\\0' x; echo '\"}'; sed -n 2p in.jsonl; } >l.jsonl") == 0);
    for (int i = 0; i < check_amount(2); i++) {
        CHECK_MSG(batch("l.jsonl", "l", "") == 1, "%s", err);
        CHECK(check_results("l", whole, 1) == 3);
        CHECK(sh("grep -q '\"id\":\"long\".*more than 64 MiB' l.errors") == 0);
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

static void write_bytes(int fd, const char *text, size_t bytes)
{
    CHECK(write(fd, text, bytes) == (ssize_t)bytes);
}

/* Requests run and end while the writer of the pipe pauses, also within a line; so does the
 * progress, and SIGTERM is obeyed while nothing runs. */
static void test_slow_pipe(void)
{
    static const char first[] = "{\"id\":1,\"tokens\":[5]," SHORT "}\n",
                      second[] = "{\"id\":2,\"tokens\":[6]," SHORT "}\n";
    const char *const arguments[] = {"spillway", "batch",      "m",        "--input", "slow",
                                     "--output", "p",          "--device", "cpu",     "--threads",
                                     "1",        "--progress", "always",   NULL};
    int null = open("/dev/null", O_WRONLY), status = -1;
    char path[128], log[128], kept[128];
    CHECK(sh("mkfifo slow") == 0);
    snprintf(path, sizeof path, "%s/slow", folder);
    snprintf(log, sizeof log, "%s/err", folder);
    snprintf(kept, sizeof kept, "%s/err.pipe", folder);
    pid_t child = start(null, arguments);
    close(null);
    int fd = open(path, O_WRONLY); /* returns when the command has opened the pipe */
    CHECK(rename(log, kept) == 0); /* sh empties err */
    write_bytes(fd, first, strlen(first));
    wait_for("test \"$(wc -l <p)\" = 1");
    write_bytes(fd, second, 20);
    wait_for("grep -q '1 item done, 0 running' err.pipe");
    write_bytes(fd, second + 20, strlen(second) - 20);
    wait_for("test \"$(wc -l <p)\" = 2");
    check_kill(child, SIGTERM);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM, "status %x", status);
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

/* ---- shards ---- */

static void test_shards(void)
{
    for (int i = 0; i < 3; i++) {
        char output[16], options[32];
        snprintf(output, sizeof output, "s%d", i);
        snprintf(options, sizeof options, "--shard %d/3", i);
        CHECK(sh("\"$S\" batch --status s0 s1") != 0);
        int code = batch("in.jsonl", output, options);
        CHECK_MSG(code == 0 || code == 1, "%s", err);
        check_refused(batch("in.jsonl", output, "--shard 0/2"), "begun with --shard");
    }
    CHECK(sh("cat s0 s1 s2 >sum; cat s0.errors s1.errors s2.errors >sum.errors; test -s s0 && test "
             "-s "
             "s1 && test -s s2") == 0);
    CHECK(check_results("sum", whole, 1) == ITEMS);
    CHECK(sh("\"$S\" batch --status s0 s1 s2") == 1);
    CHECK_MSG(strstr(out, "all: 6 done, 1 failed, 0 missing"), "%s", out);
    CHECK(sh("ln -s s0 alias && ln -s s0.state alias.state") == 0);
    check_refused(sh("\"$S\" batch --status s0 s1 s0"), "s0 and s0 are one file, expected two");
    check_refused(sh("\"$S\" batch --status s1 s0 alias"), "s0 and alias are one file");
    CHECK(sh("\"$S\" batch --status s0 s2") == 1);
    CHECK_MSG(strstr(out, "1 of 3 shards have no output here"), "%s", out);
    CHECK(sh("sed -i '$d' s1; \"$S\" batch --status s0 s1 s2") == 1);
    CHECK_MSG(strstr(out, "all: 5 done, 1 failed, 1 missing"), "%s", out);
    check_refused(batch("in.jsonl", "s3", "--shard 3/3"), "--shard: found '3/3'");
    check_refused(batch("in.jsonl", "s3", "--shard x"), "--shard: found 'x'");
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

/* Many answers end in one step, and their file is full. */
static void test_full_at_once(void)
{
    CHECK(sh("for i in $(seq 40); do echo \"{\\\"id\\\": $i, \\\"prompt\\\": \\\"a\\\"}\"; "
             "done >many.jsonl") == 0);
    int code = sh("ulimit -f 6; \"$S\" batch m --device cpu --input many.jsonl --output many "
                  "--max-new-tokens 2 --ignore-eos");
    const char *at = strstr(err, "File too large");
    CHECK_MSG(code == 1 && at && !strstr(at + 1, "File too large"), "status %d: %s", code, err);
    remove_job("many");
}

int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("batch_command");
    command_limits();
    make_job();
    test_torn_lines(check_stride(argc, argv, 40));
    test_damaged_state();
    test_damaged_results();
    test_output_taken_away();
    test_outputs_of_others();
    test_refused_leaves_nothing();
    check_unwritable_folder(&job);
    test_two_processes();
    check_short_files(&job);
    check_small_drives(&job);
    test_differences();
    test_changed_file();
    test_corrected_lines();
    test_retry();
    test_ids();
    test_odd_inputs();
    test_hostile_lines();
    test_long_line();
    test_slow_pipe();
    test_echo();
    test_shards();
    test_full_at_once();
    test_wide_line();
    test_memory_taken();
    json_decref(whole);
    sh("rm -rf %s", folder);
    return check_done();
}
