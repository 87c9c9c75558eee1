/* `spillway batch`: its input, its three files, and what it refuses. test_batch_kills ends it. */
#include "tests/command/batch_files.h"

#define SHORT "\"max_new_tokens\":3"

static json_t *whole; /* the answers to in.jsonl, of which line 3 has an error */
enum { ITEMS = 7 };

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

static void check_whole(const char *output)
{
    int code = batch("in.jsonl", output, "");
    CHECK_MSG(code == 1, "status %d: %s", code, err);
    CHECK(check_results(output, whole, 1) == ITEMS);
}

/* ---- damaged files ---- */

/* Cuts the last line off at every length. */
static void test_torn_lines(int stride)
{
    static const char *const ends[] = {"", ".errors", ".state"};
    for (int i = 0; i < 3; i++) {
        CHECK(sh("tail -n 1 from%s", ends[i]) == 0);
        for (size_t left = 0; left < n_out; left += (size_t)stride) {
            copy_job("torn");
            CHECK(sh("truncate -s -%zu torn%s", n_out - left, ends[i]) == 0);
            check_whole("torn");
        }
    }
}

static void test_damaged_state(void)
{
    copy_job("d");
    CHECK(sh("sed -i '1s/\"spillway_job\":1/\"spillway_job\":2/' d.state; cp d.state was") == 0);
    check_refused(batch("in.jsonl", "d", ""), "found a state of version 2, expected 1");
    CHECK(sh("cmp d.state was && cmp d from") == 0);
    copy_job("d");
    CHECK(sh("sed -i '3s/.*/{\"item\":7}/' d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.state: line 3: ");
    copy_job("d");
    CHECK(sh("head -c 20 from.state >d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.state: found a file that no job has written");
    copy_job("d");
    CHECK(sh("rm d.state") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: found a file that no job has written");
    CHECK(sh("cmp d from") == 0);
    copy_job("d");
    CHECK(sh("head -n 1 d >>d") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: line 7: found a second line of the same item");
    copy_job("d");
    CHECK(sh("sed -i '2s/^/x/' d") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d: line 2: ");
    copy_job("d");
    CHECK(sh("head -n 1 d >>d.errors") == 0);
    check_refused(batch("in.jsonl", "d", ""), "d.errors: line 2: found a second line");
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
    remove_job("o");
    check_refused(batch("in.jsonl", "link", ""), "link: ");
    CHECK(sh("rm -f o.state; ln -s from.state o.state") == 0);
    check_refused(batch("in.jsonl", "o", ""), "o.state: is a symbolic link");
    remove_job("o");
    check_refused(batch("in.jsonl", "m", ""), "--output: m: ");
    check_refused(batch("in.jsonl", "m/config.json", ""), "is a file of the model");
    check_refused(batch("in.jsonl", "nowhere/o", ""), "nowhere/o: No such file or directory");
    CHECK(sh("mkfifo pipe") == 0);
    check_refused(batch("in.jsonl", "pipe", ""), "pipe: ");
    check_refused(batch("missing.jsonl", "o", ""), "missing.jsonl: No such file");
    CHECK(sh("cmp in.jsonl was && test ! -s from.errors") == 1);
}

/* A user who may not write there. Root may write everywhere. */
static void test_unwritable_folder(void)
{
    if (geteuid() == 0 && sh("setpriv --reuid=65534 --clear-groups \"$S\" --version") != 0) {
        fprintf(stderr, "no setpriv: the test of a folder that is not writable is left out\n");
        return;
    }
    const char *as = geteuid() == 0 ? "setpriv --reuid=65534 --clear-groups" : "";
    copy_job("u");
    CHECK(sh("mkdir -p closed && mv u u.errors u.state closed && chmod -R a-w closed && chmod -R "
             "a+rX . && %s \"$S\" batch m --input in.jsonl --output closed/new " RUN,
             as) == 2);
    CHECK_MSG(strstr(err, "closed/new: Permission denied"), "%s", err);
    CHECK(sh("%s \"$S\" batch m --input in.jsonl --output closed/u " RUN, as) == 2);
    CHECK_MSG(strstr(err, "closed/u: "), "%s", err);
    CHECK(sh("chmod u+w closed closed/* && cmp from closed/u && cmp from.state closed/u.state") ==
          0);
}

/* ---- two processes ---- */

static void test_two_processes(void)
{
    write_text("slow.jsonl",
               "{\"id\":1,\"tokens\":[5],\"max_new_tokens\":1000,\"ignore_eos\":true}\n");
    const char *const arguments[] = {"spillway", "batch",     "m",        "--input", "slow.jsonl",
                                     "--output", "two",       "--errors", "shared",  "--device",
                                     "cpu",      "--threads", "1",        NULL};
    int null = open("/dev/null", O_WRONLY);
    pid_t child = start(null, arguments);
    close(null);
    while (sh("test -s two.state") != 0 && waitpid(child, NULL, WNOHANG) == 0)
        usleep(1000);
    int code = batch("slow.jsonl", "two", "--errors shared");
    int shares = batch("slow.jsonl", "three", "--errors shared");
    int status = -1;
    if (waitpid(child, &status, 0) == child)
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_MSG(code == 2 && shares == 2, "%d, %d: the first process was too fast?", code, shares);
    CHECK_MSG(strstr(err, "shared: another process writes this file"), "%s", err);
    CHECK(batch("slow.jsonl", "two", "--errors shared") == 0);
    CHECK(check_results("two", NULL, 0) == 1);
}

/* ---- a full disk ---- */

static void test_full_disk(void)
{
    for (int blocks = 1; blocks < 6; blocks++) { /* of 512 bytes */
        remove_job("f");
        int code = sh("ulimit -f %d; \"$S\" batch m --input in.jsonl --output f " RUN, blocks);
        CHECK_MSG(code == 1, "status %d", code);
        CHECK_MSG(strstr(err, "File too large"), "%d blocks: %s", blocks, err);
        check_whole("f");
    }
    CHECK(sh("mkdir tiny") == 0);
    if (sh("mount -t tmpfs -o size=12k tmpfs tiny") != 0) {
        fprintf(stderr, "no tmpfs: the test of a full disk is left out\n");
        return;
    }
    CHECK(batch("in.jsonl", "tiny/f", "") == 1);
    CHECK_MSG(strstr(err, "No space left on device"), "%s", err);
    CHECK(sh("mount -o remount,size=1m tiny") == 0);
    check_whole("tiny/f");
    CHECK(sh("umount tiny") == 0);
}

/* ---- another job ---- */

static void test_differences(void)
{
    static const char *const options[][2] = {
        {"--temperature 0.5", "begun with --temperature 0.0, found 0.5"},
        {"--max-new-tokens 9", "begun with --max-new-tokens 128, found 9"},
        {"--stop a --stop b", "begun with --stop [], found [\"a\",\"b\"]"},
        {"--logit-bias 5=1", "begun with --logit-bias []"},
        {"--shard 0/1", "begun with --shard null, found \"0/1\""},
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
    CHECK_MSG(strstr(err, "begun with the tokenizer"), "%s", err);
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
            CHECK(sh("sed -i '2d;5d;8d;11d' ids") == 0);
    }
    CHECK(check_results("ids", NULL, 0) == 12);
    CHECK(sh("\"$S\" batch --status ids") == 0 && strstr(out, "12 done, 0 failed, 0 missing"));
    /* Again in another order: the ids that are not there any more stay. */
    CHECK(sh("cat ids ids.jsonl >/dev/null; printf '\\n{\"id\":\"1\",\"tokens\":[3]," SHORT
             "}\\n' >>ids.jsonl") == 0);
    CHECK(batch("ids.jsonl", "ids", "") == 1);
    CHECK(sh("grep -q duplicate_custom_id ids.errors && test $(wc -l <ids.errors) = 1") == 0);
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
    CHECK(sh("cd / && \"$S\" batch --status %s/dir/o", folder) == 1);
    CHECK_MSG(strstr(out, "6 done, 1 failed, 0 missing"), "%s", out);
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
    CHECK(sh("\"$S\" batch --status s0 s2") == 1);
    CHECK_MSG(strstr(out, "1 of 3 shards have no output here"), "%s", out);
    CHECK(sh("sed -i '$d' s1; \"$S\" batch --status s0 s1 s2") == 1);
    CHECK_MSG(strstr(out, "all: 5 done, 1 failed, 1 missing"), "%s", out);
    check_refused(batch("in.jsonl", "s3", "--shard 3/3"), "--shard: found '3/3'");
    check_refused(batch("in.jsonl", "s3", "--shard x"), "--shard: found 'x'");
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
    test_outputs_of_others();
    test_unwritable_folder();
    test_two_processes();
    test_full_disk();
    test_differences();
    test_changed_file();
    test_corrected_lines();
    test_retry();
    test_ids();
    test_odd_inputs();
    test_long_line();
    test_shards();
    json_decref(whole);
    sh("rm -rf %s", folder);
    return check_done();
}
