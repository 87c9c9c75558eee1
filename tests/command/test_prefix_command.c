/* --prefix-cache through the command: one process computes and publishes, others begin with
 * that. */
#include "tests/command/command_run.h"
#include "tests/engine/tiny_model.h"

#include <jansson.h>

static const char *const run = "\"$S\" generate m --device cpu --token-ids ids --ids --ignore-eos "
                               "--max-new-tokens 8 --report r.json";

static json_t *report(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/r.json", folder);
    json_t *r = json_load_file(path, 0, NULL);
    CHECK(r);
    return r;
}

static long long number(const json_t *r, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(r, "prefix"), name));
}

static void check_moved(const json_t *r)
{
    const char *link;
    json_t *bytes;
    json_object_foreach(json_object_get(r, "moved_bytes"), link, bytes)
    {
        const json_t *predicted = json_object_get(bytes, "predicted"); /* NULL: none */
        CHECK_MSG(!predicted || json_equal(json_object_get(bytes, "counted"), predicted), "%s",
                  link);
    }
}

static void write_model(const struct tiny_model *m, uint32_t n_ids)
{
    char path[256];
    snprintf(path, sizeof path, "%s/m", folder);
    tiny_model_write(m, path);
    snprintf(path, sizeof path, "%s/ids", folder);
    FILE *f = fopen(path, "w");
    for (uint32_t i = 0; i < n_ids; i++)
        fprintf(f, "%u ", i * 7 % m->vocab);
    fclose(f);
}

/* The second process reads the KV of the first one, and gives the same answer. */
static void test_two_processes(const struct tiny_model *m, uint32_t n_ids, const char *more)
{
    static char answer[1 << 10];
    char says[100];
    write_model(m, n_ids);
    snprintf(says, sizeof says, "prefix cache: the first 1024 of %u tokens were found, ", n_ids);
    CHECK_MSG(sh("%s %s --prefix-cache cache --quiet", run, more) == 0, "%s", err);
    snprintf(answer, sizeof answer, "%.1000s", out);
    CHECK_MSG(!*err, "%s", err);
    json_t *first = report();
    CHECK(number(first, "n_tokens_published") == 1024 && number(first, "n_tokens_reused") == 0);
    CHECK(json_is_null(json_object_get(json_object_get(first, "prefix"), "from")));
    CHECK(number(first, "bytes_written") >= number(first, "published_bytes"));
    check_moved(first);
    CHECK_MSG(sh("%s %s --prefix-cache cache --threads 1 --prefill-chunk 50", run, more) == 0, "%s",
              err);
    CHECK_MSG(strstr(err, says), "%s", err);
    CHECK_MSG(!strcmp(out, answer), "%s", out);
    json_t *second = report();
    CHECK(
        json_equal(json_object_get(first, "logits_hash"), json_object_get(second, "logits_hash")));
    CHECK(number(second, "n_tokens_from_store") == 1024 &&
          number(second, "n_tokens_published") == 0);
    CHECK(number(second, "bytes_read") > 0);
    bool enough = n_ids - 1024 >= 64; /* enough computed tokens for a speed */
    CHECK(enough ==
          json_is_real(json_object_get(json_object_get(second, "prefix"), "seconds_saved")));
    const char *from =
        json_string_value(json_object_get(json_object_get(second, "prefix"), "from"));
    CHECK(from && !strcmp(from, "store"));
    check_moved(second);
    json_decref(first);
    json_decref(second);
    CHECK(sh("\"$S\" cache verify cache && rm -r cache m") == 0);
}

/* A resumed run needs no prefix, and publishes what it holds. */
static void test_resume(void)
{
    write_model(&tiny_models[0], 300);
    CHECK(sh("%s --save s", run) == 0);
    CHECK_MSG(sh("\"$S\" generate m --device cpu --resume s --max-new-tokens 120 --report r.json "
                 "--prefix-cache cache") == 0,
              "%s", err);
    json_t *r = report(), *prefix = json_object_get(r, "prefix");
    CHECK(number(r, "n_tokens_reused") > 300 && number(r, "n_tokens_from_store") == 0);
    CHECK(json_is_null(json_object_get(prefix, "seconds_saved")));
    CHECK_MSG(number(r, "n_tokens_published") == 384, "%lld", number(r, "n_tokens_published"));
    check_moved(r);
    json_decref(r);
    CHECK(sh("rm -r m cache s") == 0);
}

/* Nothing is published beyond the limit; this is one line on stderr and no failure. The bytes
 * within the limit are predicted. */
static void test_write_limit(void)
{
    write_model(&tiny_models[0], 1100);
    CHECK(sh("\"$S\" plan m --device cpu --context 1024 --no-probe --json --prefix-cache cache "
             "> plan.json") == 0);
    char path[256];
    snprintf(path, sizeof path, "%s/plan.json", folder);
    json_t *plan = json_load_file(path, 0, NULL);
    long long most = json_integer_value(json_object_get(plan, "prefix_write_bytes"));
    json_decref(plan);
    for (int less = 1; less >= 0; less--) {
        CHECK_MSG(sh("%s --prefix-cache cache --disk-write-limit %lld", run, most - less) == 0,
                  "%s", err);
        CHECK_MSG(less ? strstr(err, "bytes to write") && strstr(err, "--disk-write-limit")
                       : !strstr(err, "kept"),
                  "%s", err);
        json_t *r = report();
        CHECK(number(r, "bytes_written") == (less ? 0 : most));
        check_moved(r);
        json_decref(r);
    }
    CHECK(sh("rm -r m cache plan.json") == 0);
}

/* One line, before any work. */
static void test_refusals(void)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"--prefix-cache no/where", "no/where"},
        {"--prefix-cache ids", "ids"},
        {"--prefix-cache cache --prefix-cache-size 1000", "at least"},
        {"--prefix-cache cache --prefix-cache-size 0", "at least"},
        {"--prefix-cache-size 1GiB", "name a directory with --prefix-cache"},
    };
    write_model(&tiny_models[0], 300);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_MSG(sh("%s %s", run, cases[i].arguments) == 2, "%s", cases[i].arguments);
        CHECK_MSG(!*out && strstr(err, cases[i].says) && strchr(err, '\n') == err + strlen(err) - 1,
                  "%s: %s", cases[i].arguments, err);
        CHECK(sh("test ! -e cache") == 0);
    }
    CHECK(sh("rm -r m") == 0);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    snprintf(folder, sizeof folder, "/tmp/spw_prefix_command_%d", (int)getpid());
    CHECK(mkdir(folder, 0700) == 0);
    command_limits();
    test_two_processes(&tiny_models[0], 1100, "");
    test_two_processes(&tiny_models[1], 1100, "--kv-dtype int8 --residual-window 128");
    test_two_processes(&tiny_models[4], 1030, ""); /* where its odd window ends in the last tile */
    test_two_processes(&tiny_models[5], 1030, "--kv-dtype int4 --residual-window 0");
    test_resume();
    test_write_limit();
    test_refusals();
    sh("rm -r %s", folder);
    return check_done();
}
