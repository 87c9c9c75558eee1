/* `spillway generate --save` and `--resume`: the outputs of the parts, one after the other, are the
 * output of a run that was never ended. */
#include "tests/command/cases.h"
#include "tests/command/command_model.h"
#include "tests/engine/tiny_model.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define RUN "--progress never --device cpu"
#define HALVES                                                                                     \
    "--ignore-eos --temperature 1 --seed 5 --logit-bias 94=6 --logit-bias 95=6 " /* e acute */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROMPT 6000 /* tokens that take a few seconds */
#else
#define PROMPT 12000
#endif

static char whole[1 << 16], first[1 << 16], second[1 << 16];

static long long number_in(const char *name, const char *key)
{
    json_t *j = parse_file(name);
    const long long n = number(j, key);
    json_decref(j);
    return n;
}

static bool same(const char *a, const char *b, const char *key)
{
    json_t *x = parse_file(a), *y = parse_file(b);
    bool equal = json_equal(json_object_get(x, key), json_object_get(y, key));
    json_decref(x);
    json_decref(y);
    return equal;
}

/* Counted on every link; nobody predicts what a run that is saved writes. */
static void check_account(const char *name)
{
    const char *link;
    json_t *value;
    json_t *j = parse_file(name), *moved = json_object_get(j, "moved_bytes");
    CHECK(json_object_size(moved) == 4);
    json_object_foreach(moved, link, value)
    {
        const json_t *predicted = json_object_get(value, "predicted"); /* NULL: none */
        CHECK_MSG(!predicted || json_equal(json_object_get(value, "counted"), predicted), "%s: %s",
                  name, link);
    }
    json_decref(j);
}

static void read_parts(void)
{
    read_file("first", first, sizeof first);
    read_file("second", second, sizeof second);
}

static bool is_whole(void)
{
    size_t n = strlen(first);
    return strncmp(whole, first, n) == 0 && strcmp(whole + n, second) == 0;
}

/* ---- cut at a token ---- */

static void check_split(const char *options, int cut, const char *others)
{
    CHECK_MSG(sh("\"$S\" generate m --prompt 'on and on' --max-new-tokens 400 %s --logprobs 2 "
                 "--report w.json " RUN " >whole",
                 options) == 0,
              "%s", err);
    CHECK_MSG(sh("rm -f f; \"$S\" generate m --prompt 'on and on' --max-new-tokens %d --save f "
                 "--report a.json %s " RUN " >first",
                 cut, options) == 0,
              "%s", err);
    CHECK_MSG(sh("\"$S\" generate m --resume f --max-new-tokens 400 --save f --save-every 100 "
                 "--logprobs 2 --report b.json %s " RUN " >second",
                 others) == 0,
              "%s", err);
    read_file("whole", whole, sizeof whole);
    read_parts();
    CHECK(strlen(whole) > 200 && *first && *second);
    /* nothing is left but half a character at the end */
    CHECK(sh("\"$S\" generate m --resume f " RUN) == 0 && n_out <= 3);
    strcat(second, out);
    CHECK_MSG(is_whole(), "%s, cut at %d: '%s' + '%s' is not '%s'", options, cut, first, second,
              whole);
    CHECK(number_in("a.json", "n_resumed") == 0 && number_in("b.json", "n_resumed") == cut);
    CHECK(number_in("b.json", "n_generated") == 400);
    CHECK(same("w.json", "b.json", "logits_hash") && !same("w.json", "a.json", "logits_hash"));
    CHECK(same("w.json", "b.json", "logprobs") && same("w.json", "b.json", "top_logprobs"));
    CHECK(number_in("a.json", "saves") == 1 && number_in("a.json", "saved_bytes") > 0);
    CHECK(number_in("b.json", "saves") == 5 - cut / 100);
    check_account("a.json");
    check_account("b.json");
}

static void test_splits(void)
{
    static const char sampled[] =
        "--ignore-eos --temperature 1.3 --top-p 0.95 --min-p 0.001 --top-k 80 --seed 9 "
        "--repetition-penalty 1.2 --stop 'this does not come' --presence-penalty 0.3 "
        "--frequency-penalty -0.1 --logit-bias 40=1.5 --logit-bias 50=-3 --no-repeat-ngram-size 5 "
        "--suppress-tokens 42,43 --begin-suppress-tokens none --min-length 0";
    check_split("--ignore-eos", 1, "--threads 1 --prefill-chunk 100 --drafts text");
    check_split("--ignore-eos --kv-dtype int8 --residual-window 128", 300,
                "--kv-dtype int8 --threads 2");
    check_split(sampled, 130, "--disk . --disk-memory 64MiB --host-memory 6MiB");
    check_split(sampled, 257, "--seed 9 --ignore-eos");
    command_golden("m", "qwen3_5_plain"); /* layers with a state */
    check_split("--ignore-eos", 130, "--threads 1 --prefill-chunk 100");
    check_split("--ignore-eos --kv-dtype int8 --residual-window 128", 300,
                "--kv-dtype int8 --threads 2 --disk . --disk-memory 64MiB --host-memory 6MiB");
    command_golden("m", "t5_relu"); /* the prompt is a source */
    check_split("--ignore-eos", 130, "--threads 1 --prefill-chunk 100");
    check_split("--ignore-eos --kv-dtype int8 --residual-window 128", 300,
                "--kv-dtype int8 --threads 2 --disk . --disk-memory 64MiB --host-memory 6MiB");
    command_golden("m", "llama_700");
}

/* A stop string, or an end of text, after the end of the first part, or across it. */
static void test_stops(void)
{
    size_t n = 0;
    CHECK(sh("\"$S\" generate m --prompt 'on and on' --max-new-tokens 60 --ignore-eos "
             "--temperature 1.5 --seed 3 " RUN " >whole") == 0);
    read_file("whole", whole, sizeof whole);
    /* Three characters that a shell takes as they are. */
    for (size_t i = 20; i + 3 < strlen(whole) && !n; i++)
        if (strspn(whole + i, "abcdefghijklmnopqrstuvwxyz0123456789") >= 3)
            n = i;
    CHECK_MSG(n > 0, "no word in '%s'", whole);
    char stop[4] = {whole[n], whole[n + 1], whole[n + 2], 0};
    n = (size_t)(strstr(whole, stop) - whole);
    for (int cut = (int)n; cut < (int)n + 4; cut++) {
        if (cut < 1)
            continue;
        CHECK(sh("rm -f f; \"$S\" generate m --prompt 'on and on' --max-new-tokens %d --save f "
                 "--stop %s --ignore-eos --temperature 1.5 --seed 3 " RUN " >first",
                 cut, stop) == 0);
        CHECK_MSG(sh("\"$S\" generate m --resume f --max-new-tokens 60 " RUN " >second") == 0, "%s",
                  err);
        read_parts();
        strcat(first, second);
        CHECK_MSG(strncmp(first, whole, n) == 0 && strlen(first) == n, "cut at %d: '%s'", cut,
                  first);
    }
}

/* A part that ends in the middle of a character prints the character with the next part, and no
 * other one is lost. HALVES: the tokens of 0xc3 and 0xa9 are likely. */
static void test_characters(void)
{
    CHECK(sh("\"$S\" generate m --prompt 'on and on' --max-new-tokens 24 " HALVES RUN " >whole") ==
          0);
    read_file("whole", whole, sizeof whole);
    CHECK_MSG(strstr(whole, "\xc3\xa9"), "'%s'", whole);
    for (int cut = 1; cut < 24; cut++) {
        CHECK(sh("rm -f f; \"$S\" generate m --prompt 'on and on' --max-new-tokens %d --save "
                 "f " HALVES RUN " >first",
                 cut) == 0);
        CHECK_MSG(sh("\"$S\" generate m --resume f --max-new-tokens 24 " RUN " >second") == 0, "%s",
                  err);
        read_parts();
        CHECK_MSG(is_whole(), "cut at %d: '%s' + '%s' is not '%s'", cut, first, second, whole);
    }
}

/* ---- ended from outside ---- */

static const char *model = "m", *drafts = ""; /* of the runs that are ended */

static void expect_whole(void)
{
    CHECK(sh("\"$S\" generate %s --prompt 'on and on' --max-new-tokens 900 --ignore-eos "
             "--drafts off --report w.json " RUN " >whole",
             model) == 0);
    read_file("whole", whole, sizeof whole);
}

/* Starts a run of 900 tokens, and sends the signal once it has saved for the first time. */
static int interrupt(const char *signal_name)
{
    return sh("rm -f f; \"$S\" generate %s --prompt 'on and on' --max-new-tokens 900 --ignore-eos "
              "--save f --save-every 20 %s " RUN " >first & pid=$!; "
              "while ! [ -s f ] && kill -0 $pid; do sleep 0.01; done; "
              "kill -%s $pid; wait $pid",
              model, drafts, signal_name);
}

static void resume_rest(void)
{
    CHECK_MSG(
        sh("\"$S\" generate %s --resume f --report b.json %s " RUN " >second", model, drafts) == 0,
        "%s", err);
    read_parts();
    CHECK(same("w.json", "b.json", "logits_hash"));
}

static void test_killed(void)
{
    const int code = interrupt("KILL");
    CHECK_MSG(code == 137, "%d: %s", code, err);
    resume_rest();
    /* What was printed since the last save comes again. */
    size_t n = strlen(second), total = strlen(whole);
    CHECK(n > 0 && n <= total && strcmp(whole + total - n, second) == 0);
    CHECK(strncmp(whole, first, strlen(first)) == 0 && strlen(first) + n >= total);
}

/* Drafts by the model's MTP layer, whose KV is saved, too. */
static void test_killed_mtp(void)
{
    CHECK(sh("ln -s $REPOSITORY/models/records-mtp mtp") == 0);
    model = "mtp";
    drafts = "--drafts mtp";
    expect_whole();
    test_killed();
    CHECK(number_in("b.json", "n_accepted") > 0 && number_in("b.json", "n_resumed") > 0);
    model = "m";
    drafts = "";
}

static void test_interrupted(void)
{
    expect_whole();
    int code = interrupt("INT");
    CHECK_MSG(code == 130 && strstr(err, "interrupted") && strstr(err, "--resume f"), "%d: %s",
              code, err);
    resume_rest();
    CHECK_MSG(is_whole(), "'%s' + '%s'", first, second);
    CHECK(*second);
    for (int hup = 0; hup < 2; hup++) {
        code = interrupt(hup ? "HUP" : "TERM");
        CHECK_MSG(code == (hup ? 129 : 143) && strstr(err, "interrupted") &&
                      strstr(err, "--resume f"),
                  "%d: %s", code, err);
        resume_rest();
        CHECK_MSG(is_whole(), "'%s' + '%s'", first, second);
    }
    test_killed();
}

/* SIGINT in a prompt of several passes: the file has the complete passes and the tokens of the
 * others, and the rest of the prompt is computed after them. */
static void test_interrupted_prompt(void)
{
    static const char *const run = "\"$S\" generate slow --device cpu --threads 1 --ids";
    struct tiny_model slow = tiny_models[0];
    slow.positions = 100000;
    tiny_model_write(&slow, in_folder("slow"));
    CHECK(sh("seq %d | awk '{ print $1 * 7 %% 90 }' >many", PROMPT) == 0);
    CHECK(sh("%s --token-ids many --max-new-tokens 8 --ignore-eos --progress never >whole", run) ==
          0);
    int code = sh("rm -f f says; %s --token-ids many --max-new-tokens 8 --ignore-eos --progress "
                  "always --device-memory 1200000 --host-memory %d --disk . --disk-memory 64MiB "
                  "--save f >first 2>says & pid=$!; "
                  "while ! grep -qE '([5-9][0-9]{3}|1[01][.][0-9]k)( of |/)' says && kill -0 $pid; "
                  "do sleep 0.02; done; "
                  "kill -INT $pid; wait $pid",
                  run, PROMPT * 290); /* which leaves little for hidden rows */
    read_file("says", err, sizeof err);
    CHECK_MSG(code == 130 && strstr(err, "interrupted") && strstr(err, "--resume f"), "%d: %s",
              code, err);
    CHECK_MSG(sh("%s --resume f --report b.json --progress never >second", run) == 0, "%s", err);
    read_file("whole", whole, sizeof whole);
    read_parts();
    CHECK_MSG(!*first && *second && is_whole(), "'%s' + '%s' is not '%s'", first, second, whole);
    CHECK(number_in("b.json", "n_resumed") == 0);
    check_account("b.json");
}

/* SIGKILL in a prompt of several passes: each complete pass is in the file of --save and in the
 * prefix cache. */
static void test_killed_prompt(void)
{
    static const char *const run = "\"$S\" generate slow --device cpu --threads 1 --ids";
    static const char *const keeps[] = {"--save f", "--prefix-cache cache"};
    static const char *const signs[] = {"-s f", "-n \"$(find cache -name '*.pack')\""};
    for (int i = 0; i < 2; i++) {
        int code = sh("rm -f f; mkdir -m 700 -p cache; %s --token-ids many --max-new-tokens 8 "
                      "--ignore-eos --progress never --device-memory 1200000 --host-memory %d "
                      "--disk . --disk-memory 64MiB %s >first & pid=$!; "
                      "while ! [ %s ] && kill -0 $pid; do sleep 0.01; done 2>/dev/null; "
                      "kill -KILL $pid; wait $pid",
                      run, PROMPT * 290, keeps[i], signs[i]);
        CHECK_MSG(code == 137, "%s: %d", keeps[i], code);
        CHECK_MSG(sh("%s %s --progress never >second", run,
                     i ? "--token-ids many --max-new-tokens 8 --ignore-eos --prefix-cache cache"
                       : "--resume f") == 0,
                  "%s", err);
        CHECK_MSG(!i || strstr(err, "tokens were found"), "%s", err);
        read_parts();
        CHECK_MSG(!*first && is_whole(), "%s: '%s' is not '%s'", keeps[i], second, whole);
    }
}

/* ---- damage ---- */

static void change_byte(const char *name, long at)
{
    FILE *file = fopen(in_folder(name), "r+b");
    CHECK(file && fseek(file, at, SEEK_SET) == 0);
    if (!file)
        return;
    int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 0x5a, file);
    fclose(file);
}

/* Damaged KV is computed again from the tokens, and the file can be written again. */
static void test_damaged_kv(void)
{
    struct stat st = {0};
    CHECK(sh("cp -p good f") == 0 && stat(in_folder("f"), &st) == 0);
    change_byte("f", st.st_size / 2);
    CHECK(sh("\"$S\" generate m --resume f --save f --max-new-tokens 400 --report b.json " RUN
             " >second") == 0);
    CHECK_MSG(strstr(err, "does not have its checksum; the KV of this run is computed again"), "%s",
              err);
    read_file("second", second, sizeof second);
    CHECK(is_whole() && same("a.json", "b.json", "logits_hash"));
    CHECK(sh("\"$S\" generate m --resume f --max-new-tokens 401 " RUN) == 0);
    CHECK_MSG(!strstr(err, "checksum"), "%s", err);
}

/* A byte is changed at many places, then the run is saved to the file again, then resumed. */
static void test_damaged(int times)
{
    uint64_t seed = check_seed();
    CHECK(
        sh("rm -f f; \"$S\" generate m --prompt 'on and on' --max-new-tokens 400 --ignore-eos " RUN
           " --report a.json >whole") == 0);
    CHECK(
        sh("\"$S\" generate m --prompt 'on and on' --max-new-tokens 300 --save f --save-every 100 "
           "--ignore-eos " RUN " >first && cp -p f good") == 0);
    read_file("whole", whole, sizeof whole);
    for (int i = 0; i < times; i++) {
        struct stat st = {0};
        CHECK(sh("cp -p good f") == 0 && stat(in_folder("f"), &st) == 0);
        long at = (long)check_range(&seed, 0, (uint64_t)st.st_size - 1);
        change_byte("f", at);
        CHECK_MSG(sh("\"$S\" generate m --prompt 'on and on' --max-new-tokens 300 --save f "
                     "--ignore-eos " RUN " >first") == 0,
                  "byte %ld: %s", at, err);
        CHECK_MSG(sh("\"$S\" generate m --resume f --max-new-tokens 400 --report b.json " RUN
                     " >second") == 0,
                  "byte %ld: %s", at, err);
        read_parts();
        CHECK_MSG(is_whole() && same("a.json", "b.json", "logits_hash"), "byte %ld", at);
    }
    read_file("first", first, sizeof first);
    test_damaged_kv();
}

/* test_save_command [changed bytes]: 6 by default, hundreds by hand */
int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    signal(SIGHUP, SIG_DFL); /* nohup may have changed it */
    command_model("save_command");
    command_limits();
    test_splits();
    test_stops();
    test_characters();
    test_interrupted();
    command_golden("m", "qwen3_5_plain");
    test_interrupted();
    command_golden("m", "t5_relu");
    model = "m --allow-long-context";
    expect_whole();
    test_killed();
    model = "m";
    test_damaged(2);
    command_golden("m", "llama_700");
    test_killed_mtp();
    test_interrupted_prompt();
    test_killed_prompt();
    test_damaged(argc > 1 ? atoi(argv[1]) : 6);
    run_cases("save", NULL);
    sh("rm -r %s", folder);
    return check_done();
}
