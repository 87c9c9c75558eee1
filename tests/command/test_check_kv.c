/* `spillway check-kv` and --kv-gate, through the command. */
#include "tests/command/command_run.h"
#include "tests/engine/copying_model.h"

#include <jansson.h>

static const json_t *format(const json_t *checks, size_t i)
{
    return json_array_get(json_object_get(checks, "formats"), i);
}

static const char *name(const json_t *f)
{
    return json_string_value(json_object_get(f, "kv_dtype"));
}

/* Three formats, stored, shown again, in a table and as JSON. */
static void test_check(void)
{
    CHECK(sh("\"$S\" check-kv m --compute f32 --json --quiet --report r.json") == 0 && !*err);
    json_t *j = json_loads(out, 0, NULL);
    CHECK(json_array_size(json_object_get(j, "formats")) == 3);
    CHECK(!strcmp(name(format(j, 0)), "int8") && !strcmp(name(format(j, 2)), "int4"));
    CHECK(json_is_true(json_object_get(format(j, 0), "passes")));
    CHECK(json_is_false(json_object_get(format(j, 2), "passes")));
    CHECK(strstr(json_string_value(json_object_get(format(j, 2), "note")), "at most"));
    CHECK(json_is_false(json_object_get(format(j, 2), "known")));
    uint64_t exact =
        (uint64_t)json_integer_value(json_object_get(format(j, 2), "exact_bytes_per_token"));
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(format(j, 2), "bytes_per_token"));
    CHECK_MSG(exact == 2 * 2 * 128 * 4 && bytes > exact / 8 && bytes < exact / 6, "%llu of %llu",
              (unsigned long long)bytes, (unsigned long long)exact);
    CHECK(sh("cat r.json") == 0);
    json_t *report = json_loads(out, 0, NULL);
    CHECK(json_equal(report, j));
    json_decref(report);
    json_decref(j);

    CHECK(sh("\"$S\" check-kv m --compute f32") == 0 && !*err);
    CHECK_MSG(strstr(out, "\nint8 ") && strstr(out, "  passes\n") && strstr(out, "  REFUSED: ") &&
                  strstr(out, "known; --redo") && strstr(out, "spillway/kv-checks.json\n"),
              "%s", out);
    CHECK(sh("\"$S\" check-kv m --compute f32 --kv-dtype int4 --redo") == 0);
    CHECK(strstr(out, "int4") && !strstr(out, "int8") && !strstr(out, "known"));
    /* Another file keeps its name: nothing is stored, whether the format passes or not. */
    CHECK(
        sh("echo text >text; \"$S\" check-kv m --compute f32 --kv-dtype int4 --kv-profile text") ==
        0);
    CHECK_MSG(strstr(err, "text: found another kind of file") && strstr(out, "  REFUSED: ") &&
                  strstr(out, "\nstored in  nothing: "),
              "%s%s", err, out);
    CHECK(sh("\"$S\" check-kv m --compute f32 --kv-dtype int8 --kv-profile text --json") == 0);
    j = json_loads(out, 0, NULL);
    CHECK(json_is_true(json_object_get(format(j, 0), "passes")));
    CHECK_MSG(json_is_null(json_object_get(j, "profile")), "%s", out);
    json_decref(j);
}

/* Old KV of the layer that sees every key is quantized; layers with chunks stay exact. */
static void test_chunks(void)
{
    CHECK(
        sh("\"$S\" check-kv $REPOSITORY/tests/golden/llama4_plain --compute f32 --json --quiet") ==
        0);
    json_t *j = json_loads(out, 0, NULL);
    const double of_exact =
        json_number_value(json_object_get(format(j, 2), "bytes_per_token")) /
        json_number_value(json_object_get(format(j, 2), "exact_bytes_per_token"));
    CHECK_MSG(json_is_true(json_object_get(format(j, 2), "passes")) && of_exact < 0.5, "%s", out);
    json_decref(j);
}

/* If a run asks for a format that is known not to pass, a line says so; nothing is measured for
 * that. */
static void test_told(void)
{
    static char answer[4096];
    CHECK(sh("echo 5 6 7 8 9 >ids") == 0);
    const char *run = "\"$S\" generate m --device cpu --compute f32 --token-ids ids --ids "
                      "--max-new-tokens 4 --quiet";
    CHECK(sh("%s --kv-dtype int4", run) == 0);
    CHECK_MSG(strstr(err, "spillway: --kv-dtype int4: this model did not pass the check: ") &&
                  strchr(err, '\n') == err + strlen(err) - 1,
              "%s", err);
    snprintf(answer, sizeof answer, "%.4000s", out);
    CHECK(sh("%s --kv-dtype int4 --kv-gate off", run) == 0 && !*err && !strcmp(out, answer));
    CHECK(sh("%s --kv-dtype int8", run) == 0 && !*err);
    CHECK(sh("%s", run) == 0 && !*err);
    CHECK(sh("%s --kv-dtype int4 --kv-profile none.json; ls none.json", run) != 0);
    CHECK_MSG(!strstr(err, "--kv-dtype"), "%s", err);
}

static int n_warnings(void)
{
    int n = 0;
    for (const char *at = err; (at = strstr(at, "may differ from token 1280 on")); at++)
        n++;
    return n;
}

/* A budget that is too small for exact KV: the run takes the first format that fits and passes; the
 * check runs when it is first needed. At the smaller budget only int4 would fit, and it is
 * refused. */
static void test_fallback(void)
{
    const char *run = "\"$S\" generate m --device cpu --compute f32 --token-ids ids --ids "
                      "--max-new-tokens 4 --context 20000 --host-memory 1MiB --kv-profile l.json";
    CHECK(
        sh("\"$S\" plan m --device cpu --compute f32 --context 20000 --host-memory 1MiB --no-probe "
           "--device-memory 20MiB --kv-profile l.json") == 0);
    CHECK_MSG(strstr(err, "int8 KV: this model was not checked yet") && sh("ls l.json") != 0, "%s",
              err);
    CHECK_MSG(sh("%s --device-memory 20MiB --report r.json", run) == 0, "%s", err);
    CHECK_MSG(strstr(err, "int8 KV: this model passes its check") &&
                  strstr(err, "differ from token 1280 on (--on-oom spill forbids this"),
              "%s", err);
    CHECK(sh("grep -q '\"old_kv\": \"int8\"' r.json") == 0);
    CHECK(sh("grep -q '\"lossy_from\": 1280' r.json") == 0);
    CHECK(sh("%s --device-memory 20MiB", run) == 0);
    CHECK_MSG(!strstr(err, "check") && strstr(err, "--on-oom spill forbids this"), "%s", err);
    CHECK(sh("%s --device-memory 10MiB", run) == 2); /* nor do two caches for the check */
    CHECK_MSG(strstr(err, " (would fit with old KV as int4; this model is not checked yet: run "
                          "'spillway check-kv m' once)\n") &&
                  strchr(err, '\n') == err + strlen(err) - 1,
              "%s", err);
    CHECK(sh("\"$S\" check-kv m --compute f32 --kv-dtype int4 --kv-profile l.json") == 0);
    CHECK(sh("%s --device-memory 10MiB", run) == 2);
    CHECK_MSG(strstr(err, " (would fit with old KV as int4; this model does not pass its check: "),
              "%s", err);
    CHECK(sh("%s --device-memory 10MiB --kv-gate off", run) == 0);
    CHECK_MSG(strstr(err, "stored as int4") && !strstr(err, "check"), "%s", err);
    /* A disk that is too small as well: one line says so. */
    CHECK(sh("%s --device-memory 10MiB --disk . --disk-memory 1MiB --kv-gate off --report r.json",
             run) == 0);
    const char *says = strstr(err, "out of memory");
    CHECK_MSG(says && !strstr(says + 1, "out of memory") &&
                  strstr(says, "--on-oom spill forbids this"),
              "%s", err);
    CHECK(sh("grep -c '\"fallback\"' r.json") == 0 && !strcmp(out, "1\n"));
    CHECK(sh("%s --device-memory 10MiB --disk . --disk-memory 1MiB --on-oom spill", run) == 2);
    /* A batch and a sweep say it once for all their engines. */
    CHECK(sh("echo '{\"tokens\":[1,2]}\n{\"tokens\":[3]}' >lines; \"$S\" generate m --device cpu "
             "--compute f32 --prompts lines --sessions 1 --max-new-tokens 4 --context 20000 "
             "--host-memory 1MiB --device-memory 10MiB --kv-gate off") == 0);
    CHECK_MSG(n_warnings() == 1, "%s", err);
    CHECK(
        sh("\"$S\" bench m --device cpu --compute f32 --contexts 4000 --repeat 1 --decode-tokens 1 "
           "--random-tokens --host-memory 64KiB --device-memory 6MiB --kv-gate off") == 0);
    CHECK_MSG(n_warnings() == 1, "%s", err);
}

static void test_refusals(void)
{
    CHECK(sh("\"$S\" check-kv") == 2 && strstr(err, "MODEL"));
    CHECK(sh("\"$S\" check-kv none") == 2 && strstr(err, "none: found no such file"));
    CHECK_MSG(strchr(err, '\n') == err + strlen(err) - 1, "%s", err); /* no check was announced */
    CHECK(sh("\"$S\" check-kv m --redo --device-memory 1K") == 2 && strstr(err, "device memory"));
    CHECK(sh("\"$S\" check-kv m --report none/r.json") == 2 && strstr(err, "none/r.json"));
    CHECK(sh("\"$S\" check-kv m --kv-gate off") == 2);
    CHECK(sh("\"$S\" generate m --token-ids ids --ids --kv-gate maybe") == 2);
}

int main(void)
{
    const struct copying_model turning = {.quick = 200, .seed = 5};
    char path[128];
    if (!command_is_there())
        return CHECK_SKIP;
    snprintf(folder, sizeof folder, "/tmp/spw_check_kv_%d", (int)getpid());
    CHECK(mkdir(folder, 0700) == 0);
    command_limits();
    snprintf(path, sizeof path, "%s/m", folder);
    copying_model_write(&turning, path);
    test_refusals();
    test_check();
    test_chunks();
    test_told();
    test_fallback();
    sh("rm -r %s", folder);
    return check_done();
}
