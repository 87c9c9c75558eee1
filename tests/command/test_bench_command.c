/* `spillway probe` and `bench`, and plans with measured limits: run through sh on a tiny model.
 * Skipped without the command. */
#include "tests/command/command_json.h"
#include "tests/command/command_model.h"
#include "tests/command/command_start.h"

#include <math.h>

/* Measured, and measured again if the profile cannot be used. */
static void test_probe(void)
{
    CHECK(sh("\"$S\" probe --json --drive-profile d.json") == 0);
    CHECK_MSG(strstr(err, "at most 128 MiB are written there"), "%s", err);
    json_t *first = parse(out);
    CHECK(number(first, "drive.written_bytes") > 0 && number(first, "drive.queue_depth") >= 4);
    CHECK(number(first, "drive.request_bytes") == 1 << 20);
    json_decref(first);
    CHECK(sh("sed -i 's/[0-9]e*\\.*[0-9],/7,/' d.json; \"$S\" probe --drive-profile d.json") == 0);
    CHECK_MSG(strstr(err, "d.json: ") && strstr(err, "so the drive was measured again"), "%s", err);
    CHECK(sh("echo text >text; \"$S\" probe --drive-profile text") == 0);
    CHECK_MSG(strstr(err, "text: found another kind of file") &&
                  strstr(out, "\nstored in   nothing"),
              "%s%s", err, out);
}

/* What the profile has is shown. */
static void test_known(void)
{
    CHECK(sh("\"$S\" probe --device cpu --json") == 0 && !*err);
    json_t *j = parse(out);
    CHECK(number(j, "drive.written_bytes") == 0 && number(j, "drive.queue_depth") == 16);
    json_decref(j);
    CHECK(sh("\"$S\" probe . --device cpu") == 0 && !*err && strstr(out, "\nstored in   /"));
}

static double real(const json_t *j, const char *object, const char *key)
{
    return json_real_value(json_object_get(json_object_get(j, object), key));
}

/* A plan with known limits has the expected and the shortest time of a token and of a prompt, and
 * the limit that decides it. */
static void test_plan_rates(void)
{
    CHECK(sh("\"$S\" plan m --context 1000 --device-memory 1MiB") == 0 && strstr(out, "smallest") &&
          strstr(out, "\nexpected ") && strstr(out, "\nat most "));
    CHECK(sh("\"$S\" plan m --context 1000 --json") == 0);
    json_t *j = parse(out);
    double seconds = real(j, "predicted_step", "seconds");
    double least = real(j, "shortest_step", "seconds");
    CHECK(seconds >= least && least > 0);
    CHECK(fabs(real(j, "predicted_tokens_per_second", "decode") * seconds - 1) < 1e-9);
    CHECK(fabs(real(j, "highest_tokens_per_second", "decode") * least - 1) < 1e-9);
    seconds = real(j, "predicted_prompt", "seconds");
    least = real(j, "shortest_prompt", "seconds");
    CHECK(seconds >= least && least > 0);
    CHECK(fabs(real(j, "predicted_tokens_per_second", "prefill") * seconds / 1000 - 1) < 1e-9);
    CHECK(fabs(real(j, "highest_tokens_per_second", "prefill") * least / 1000 - 1) < 1e-9);
    CHECK(json_is_string(json_object_get(json_object_get(j, "predicted_step"), "bottleneck")));
    json_decref(j);
}

/* Names in what is printed as JSON. */
static void test_odd_names(void)
{
    /* A path need not be UTF-8, and the result is not lost because of it. */
    CHECK(sh("ln -s m \"$(printf 'odd\\377')\"; for c in 'plan --context 9 --no-probe' inspect "
             "'score --text abc' probe; do set -- $c; c=$1; shift; "
             "\"$S\" $c \"$(printf 'odd\\377')\" \"$@\" --json || exit 9; done >odd") == 0);
    CHECK_MSG(sh("grep -cE '\"(model|directory)\": \".*odd[?]' odd") == 0 && atoi(out) == 4, "%s",
              out);
    CHECK(sh("\"$S\" generate \"$(printf 'odd\\377')\" --prompt a --max-new-tokens 2 --report "
             "o.json") == 0);
    json_t *j = parse_file("o.json");
    CHECK(strcmp(json_string_value(json_object_get(j, "model")), "odd?") == 0);
    json_decref(j);
}

/* A profile replaces any profile, also a damaged one, and no other file: test_drive has the rule.
 * Each of these measures the machine. */
static void test_profile_is_kept(void)
{
    if (!check_full())
        return;
    CHECK(sh("echo text >text; cp text same; \"$S\" plan m --context 9 --drive-profile text") == 0);
    CHECK_MSG(strstr(err, "text: found another kind of file"), "%s", err);
    CHECK(sh("cmp text same") == 0);
    CHECK(sh("\"$S\" plan m --context 9 --drive-profile m/config.json/d.json") == 0);
    CHECK_MSG(strstr(err, "Not a directory"), "%s", err);
}

/* A sweep of one case, once. Each run measures the machine twice, and test_bench_ended has several
 * cases and runs. */
static void test_bench(void)
{
    if (!check_full())
        return;
    CHECK(sh("\"$S\" bench m --contexts 20 --budgets 300K --repeat 1 --decode-tokens 4 "
             "--csv b.csv") == 0);
    CHECK_MSG(strstr(out, "of the peak") && strstr(out, "300.00 KiB"), "%s %s", out, err);
    CHECK(sh("awk -F, '{print NF}' b.csv | sort -u; grep -c '^20,.*,prefill_seconds,' b.csv") == 0);
    CHECK_MSG(strcmp(out, "7\n1\n") == 0, "%s", out);
}

/* A sweep that was ended has written and printed its complete runs. */
static void test_bench_ended(void)
{
    CHECK(sh("\"$S\" bench m --device cpu --contexts 20 --budgets 0,300K --repeat 1000 "
             "--decode-tokens 2 "
             "--report ended.json --csv ended.csv >ended.txt & p=$!; while kill -0 $p && "
             "! grep -q '\"runs\": 2' ended.json 2>/dev/null; do sleep 0.1; done; "
             "kill $p; wait $p") == 128 + SIGTERM);
    CHECK(sh("cat ended.json") == 0);
    json_t *j = parse(out);
    CHECK(number(j, "repeat") == 1000 && json_array_size(json_object_get(j, "cases")) == 2);
    const json_t *of = json_array_get(json_object_get(j, "cases"), 0);
    CHECK(number(of, "runs") >= 2 && real(of, "decode_seconds_per_token", "median") > 0);
    CHECK(real(of, "decode_slowdown", "median") == 1);
    json_decref(j);
    CHECK(sh("grep -c '^context 20, budget \\(all\\|300.00 KiB\\): ' ended.txt") == 0 &&
          atoi(out) == 2);
    CHECK(sh("awk -F, '{print NF}' ended.csv | sort -u; grep -c prefill_seconds ended.csv") == 0);
    CHECK_MSG(strcmp(out, "7\n2\n") == 0, "%s", out);
}

/* The report has plausible numbers, with fio and without. No file stays on the disk. */
static void test_bench_io(const char *path)
{
    CHECK_MSG(sh("%s \"$S\" bench m --io --device cpu --disk . --disk-memory 64MiB --contexts 900 "
                 "--repeat 1 --decode-tokens 3 --report io.json --csv io.csv",
                 path) == 0,
              "%s", err);
    CHECK_MSG(strstr(out, "KV into slots") && strstr(out, "spilling / without"), "%s", out);
    json_t *j = parse_file("io.json");
    CHECK(number(j, "step_bytes_from_disk") > 0 && number(j, "pairs") == 1);
    double read =
        json_real_value(json_object_get(json_object_get(j, "read_bytes_per_second"), "median"));
    double step = json_real_value(json_object_get(json_object_get(j, "step_seconds"), "median"));
    CHECK_MSG(read > 1e6 && step > 0 && step < 10, "%g %g", read, step);
    const json_t *fio = json_object_get(j, "fio");
    const json_t *ratio = json_object_get(json_object_get(j, "read_over_fio"), "median");
    CHECK(json_is_true(fio) ? json_real_value(ratio) > 0 : json_is_null(ratio));
    CHECK(!*path || (json_is_string(fio) && strstr(out, "fio: No such file")));
    json_decref(j);
    CHECK(sh("awk -F, '{print NF}' io.csv | sort -u; ls | grep -c spillway-fio; true") == 0);
    CHECK_MSG(strcmp(out, "5\n0\n") == 0, "%s", out);
}

/* The first token of a prompt whose 896 tokens lie in a file, and nothing of it stays. */
static void test_bench_prefix(const char *path)
{
    CHECK_MSG(sh("%s \"$S\" bench m --prefix --device cpu --prefix-cache . --contexts 900 "
                 "--repeat 2 --decode-tokens 3 --report prefix.json --csv prefix.csv",
                 path) == 0,
              "%s", err);
    CHECK_MSG(strstr(out, "first token / fio") && strstr(out, "a prompt of 896 tokens"), "%s", out);
    json_t *j = parse_file("prefix.json");
    CHECK(number(j, "context") == 896 && number(j, "tile_bytes") > 0);
    CHECK(number(j, "tile_bytes") < number(j, "file_bytes"));
    const json_t *first = json_object_get(json_object_get(j, "first_token_seconds"), "median");
    CHECK(json_real_value(first) > 0 && json_real_value(first) < 10);
    const json_t *ratio = json_object_get(json_object_get(j, "first_token_over_fio"), "median");
    CHECK(json_is_true(json_object_get(j, "fio")) ? json_real_value(ratio) > 0
                                                  : json_is_null(ratio));
    json_decref(j);
    CHECK(sh("awk -F, '{print NF}' prefix.csv | sort -u; ls | grep -c spillway-bench; true") == 0);
    CHECK_MSG(strcmp(out, "5\n0\n") == 0, "%s", out);
}

/* probe does not catch SIGINT: the first one ends it. */
static void test_interrupt_probe(void)
{
    const char *const arguments[] = {"spillway", "probe", ".", "--redo", NULL};
    int status, sink = open("/dev/null", O_WRONLY);
    pid_t pid = start(sink, arguments);
    usleep(200000); /* it takes more than a second */
    check_kill(pid, SIGINT);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(sink);
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "status %x", status);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("bench");
    command_limits();
    test_probe();
    test_known();
    test_plan_rates();
    test_odd_names();
    test_profile_is_kept();
    test_bench();
    test_bench_ended();
    test_bench_io("PATH=/none"); /* without fio */
    test_bench_prefix("PATH=/none");
#ifndef __SANITIZE_ADDRESS__ /* the same but for what fio says */
    if (check_full()) {
        test_bench_io("");
        test_bench_prefix("");
    }
#endif
    test_interrupt_probe();
    sh("rm -r %s", folder);
    return check_done();
}
