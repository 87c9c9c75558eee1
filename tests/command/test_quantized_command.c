/* Quantized GGUF files end to end through the command: a q8_0 file and a q4_0 file that `quantize`
 * writes, a file whose matrices have types of their own, and a mixture in Q6_K. Budgets change no
 * bit and the plan knows every byte; jobs that are killed, summaries, prefix caches, saved runs,
 * check-kv, score, and what plan, inspect and reports say. */
#include "tests/engine/gguf_q6_k.h"
#include "tests/gguf_tokenizer.h"

#include "tests/command/command_json.h" /* after headers with parameters `out` and `err` */

#define RUN "--device cpu --threads 2 --ignore-eos "
#define INT4 "--kv-dtype int4 --residual-window 256 "

static const char *const models[] = {"q8.gguf", "q4.gguf", "mixed.gguf"};

/* ---- the models and the text ---- */

static void add_tokenizer(struct spw_gguf_writer *w, void *root)
{
    gguf_tokenizer_keys(w, root,
                        &(struct gguf_tokenizer){.model = "gpt2", .pre = "qwen2", .prefix = true});
}

static void write_mixed(uint64_t seed)
{
    json_t *root = json_load_file("models/records256/tokenizer.json", 0, NULL);
    const struct gguf_way way = {.seed = seed, .more_keys = add_tokenizer, .context = root};
    gguf_from_folder("models/records256", in_folder("mixed.gguf"), &way);
    json_decref(root);
}

/* The mixture that was trained. */
static void write_experts(void)
{
    CHECK_MSG(!sh("$S quantize \"$REPOSITORY/models/records-experts\" e8.gguf --type q8_0"), "%s",
              err);
    gguf_to_q6_k(in_folder("e8.gguf"), in_folder("experts.gguf"));
}

static void write_models(uint64_t seed)
{
    CHECK(!sh("cp -r \"$REPOSITORY/models/records\" m && chmod -R u+w m && mkdir docs"));
    CHECK(!sh("echo '{%% for m in messages %%}{{ m.content }}{%% endfor %%}\nA:' "
              ">m/chat_template.jinja"));
    CHECK_MSG(!sh("$S quantize m q8.gguf --type q8_0 && $S quantize m q4.gguf --type q4_0"), "%s",
              err);
    write_mixed(seed);
    write_experts();
    CHECK(!sh("for i in $(seq 1 90); do echo \"The gate number of Ros$i is $((i * 97 + 1000)).\"; "
              "done >text; head -n 30 text >docs/a.txt; tail -n 30 text >docs/b.txt"));
}

/* ---- runs ---- */

/* The report of a run, which must have moved the bytes that were predicted. */
static json_t *generate(const char *model, const char *options)
{
    CHECK_MSG(!sh("$S generate %s --prompt-file text --max-new-tokens 12 --report r.json " RUN "%s",
                  model, options),
              "%s %s: %s", model, options, err);
    json_t *report = parse_file("r.json");
    check_moved(report);
    return report;
}

static json_t *plan(const char *model, const char *options)
{
    CHECK_MSG(!sh("$S plan %s --prompt-file text --max-new-tokens 12 --device cpu --threads 2 "
                  "--no-probe --json %s",
                  model, options),
              "%s %s: %s", model, options, err);
    return parse(out);
}

static void hash_of(char hash[32], const char *model, const char *options)
{
    json_t *report = generate(model, options);
    snprintf(hash, 32, "%s", text_at(report, "logits_hash"));
    json_decref(report);
}

/* ---- budgets ---- */

/* A run with these budgets has the logits of `hash`, and moves the bytes of its plan. */
static json_t *same_with(const char *model, const char *options, const char *hash)
{
    char exact[256]; /* drafts are not in a plan */
    snprintf(exact, sizeof exact, "%s --drafts off", options);
    json_t *planned = plan(model, options), *report = generate(model, exact);
    const char *link;
    json_t *moved;
    CHECK_MSG(!strcmp(text_at(report, "logits_hash"), hash), "%s %s", model, options);
    CHECK(
        json_equal(json_object_get(planned, "peak_bytes"), json_object_get(report, "peak_bytes")));
    json_object_foreach(json_object_get(report, "moved_bytes"), link, moved)
    {
        char path[64];
        snprintf(path, sizeof path, "moved_bytes.run.%s", link);
        CHECK_MSG(number(moved, "counted") == number(planned, path), "%s %s: %s", model, options,
                  link);
    }
    json_decref(report);
    return planned;
}

/* The smallest device memory, with all of the rest on the host, and then on the disk. */
static void test_budgets(const char *model, const char *options, char hash[32])
{
    char budgets[256];
    hash_of(hash, model, options);
    snprintf(budgets, sizeof budgets, "%s --disk . --disk-memory 64MiB", options);
    json_t *j = plan(model, budgets);
    const long long device = number(j, "smallest_bytes.device");
    const long long host = number(j, "smallest_bytes.host");
    json_decref(j);
    snprintf(budgets, sizeof budgets, "%s --device-memory %lld --host-memory 64MiB", options,
             device);
    j = same_with(model, budgets, hash);
    CHECK(number(j, "n_layers_resident") == 0 && number(j, "host.weights") > 0);
    json_decref(j);
    snprintf(budgets, sizeof budgets,
             "%s --device-memory %lld --host-memory %lld --disk . --disk-memory 64MiB", options,
             device, host + 4096);
    j = same_with(model, budgets, hash);
    CHECK(number(j, "n_layers_from_disk") == number(j, "n_layers"));
    CHECK(number(j, "moved_bytes.run.host_to_disk") > 0);
    json_decref(j);
}

static void test_all_budgets(void)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char exact[32], old[32], f32[32];
        test_budgets(models[i], "", exact);
        test_budgets(models[i], INT4, old);
        test_budgets(models[i], "--compute f32", f32);
        CHECK(strcmp(exact, old) != 0 && strcmp(exact, f32) != 0);
    }
}

/* Experts that do not fit on the device change no bit. */
static void test_experts(void)
{
    static const char model[] = "experts.gguf";
    char options[128], all[32], missed[32];
    hash_of(all, model, "");
    json_t *j = plan(model, "--host-memory 64MiB");
    snprintf(options, sizeof options, "--host-memory 64MiB --device-memory %lld",
             number(j, "smallest_bytes.device"));
    json_decref(j);
    j = generate(model, options);
    snprintf(missed, sizeof missed, "%s", text_at(j, "logits_hash"));
    CHECK_MSG(!strcmp(all, missed), "%s, not %s", missed, all);
    CHECK(number(j, "moved_bytes.host_to_device.counted") > 0);
    json_decref(j);
    CHECK(!sh("$S inspect %s", model));
    CHECK_MSG(strstr(out, "n 12, kept 2, intermediate 256") &&
                  strstr(out, "dtype Q6_K, tensors 25,") && strstr(out, "dtype F32, tensors 15,"),
              "%s", out);
}

/* ---- what plan, inspect and reports say ---- */

static long long matrix_bytes(const char *model)
{
    long long bytes = 0;
    size_t i;
    json_t *t;
    CHECK(!sh("$S inspect %s --json --tensors", model));
    json_t *j = parse(out);
    json_array_foreach(json_object_get(j, "tensors"), i,
                       t) if (json_array_size(json_object_get(t, "shape")) == 2) bytes +=
        number(t, "bytes");
    CHECK(!strcmp(model, "m") || json_is_null(json_object_get(j, "dtype")));
    json_decref(j);
    return bytes;
}

static void check_says(const char *model, const char *options, bool int8)
{
    json_t *j = plan(model, options), *report = generate(model, options);
    CHECK(number(j, "weights_bytes") == matrix_bytes(model));
    CHECK(json_is_true(json_object_get(j, "int8_activations")) == int8);
    CHECK(json_is_true(json_object_get(report, "int8_activations")) == int8);
    json_decref(report);
    json_decref(j);
}

static void test_says(void)
{
    check_says("m", "", false);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_says(models[i], "", true);
        check_says(models[i], "--compute bf16", true);
        check_says(models[i], "--compute f32", false);
    }
    CHECK(!sh("$S inspect q4.gguf"));
    CHECK_MSG(strstr(out, "q4.gguf\n") && strstr(out, "dtype Q4_0, tensors 22,"), "%s", out);
}

/* ---- score and check-kv ---- */

static double loss(const char *model, const char *options)
{
    CHECK_MSG(!sh("$S score %s --text-file text --device cpu --json %s", model, options), "%s",
              err);
    json_t *j = parse(out);
    const double nats = json_real_value(json_object_get(j, "nats_per_token"));
    json_decref(j);
    return nats;
}

static void test_score(void)
{
    static const struct {
        const char *folder, *file;
        double most;
    } cases[] = {{"m", "q8.gguf", 0.005},
                 {"m", "q4.gguf", 0.05},
                 {"\"$REPOSITORY/models/records-experts\"", "experts.gguf", 0.01}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *file = cases[i].file;
        const double of_folder = loss(cases[i].folder, "--compute f32");
        const double exact = loss(file, "--compute f32"), fast = loss(file, "");
        CHECK_MSG(exact != fast && fabs(fast / exact - 1) < 0.005, "%s: %g, exact %g", file, fast,
                  exact);
        CHECK_MSG(exact != of_folder && fabs(exact / of_folder - 1) < cases[i].most,
                  "%s: %g, the folder %g", file, exact, of_folder);
    }
}

/* A result holds for one file and one type of computation. */
static void test_check_kv(void)
{
    static const char *const runs[] = {"q8.gguf --compute f32", "q8.gguf", "q4.gguf", "q8.gguf"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        CHECK_MSG(
            !sh("$S check-kv %s --kv-dtype int8 --device cpu --kv-profile checks --json", runs[i]),
            "%s", err);
        json_t *j = parse(out), *f = json_array_get(json_object_get(j, "formats"), 0);
        CHECK(json_is_true(json_object_get(f, "passes")));
        CHECK(json_is_true(json_object_get(f, "known")) == (i == 3));
        json_decref(j);
    }
}

/* ---- refusals ---- */

static void refused(const char *command, const char *text)
{
    CHECK(sh("$S %s " RUN, command) == 2);
    const char *end = strchr(err, '\n');
    CHECK_MSG(strstr(err, text) && end && !end[1], "%s: %s", command, err);
}

/* A type of GGUF that no kernel has: IQ3_S, whose blocks are as large as those of Q3_K. */
static void test_other_type(void)
{
    static const char name[] = "blk.0.attn_k.weight";
    static char header[1 << 14];
    const uint32_t iq3_s = 21;
    const char *path = in_folder("odd.gguf");
    gguf_from_folder("models/records256", path,
                     &(struct gguf_way){.matrices = SPW_DTYPE_Q3_K, .seed = 1});
    FILE *f = fopen(path, "r+b");
    const size_t n = fread(header, 1, sizeof header, f);
    const char *at = memmem(header, n, name, sizeof name - 1);
    CHECK(at != NULL);
    if (at) /* behind the name: the number of dimensions, two sizes, the type */
        CHECK(!fseek(f, at - header + (long)sizeof name - 1 + 4 + 2 * 8, SEEK_SET) &&
              fwrite(&iq3_s, sizeof iq3_s, 1, f) == 1);
    fclose(f);
    CHECK(!sh("echo 1 2 3 >ids"));
    refused("generate odd.gguf --ids --token-ids ids",
            "tensor blk.0.attn_k.weight: dtype IQ3_S, expected one of F32 F16 BF16 ");
    CHECK_MSG(strstr(err, " Q4_K ") && strstr(err, " MXFP4\n") && !strstr(err, "AUTO"), "%s", err);
}

/* ---- stored KV ---- */

static void test_saved(void)
{
    static const char another[] = "was saved with another model, or its files changed since";
    char hash[32];
    hash_of(hash, "q8.gguf", "");
    CHECK(!sh("for x in m q8.gguf; do $S generate $x --prompt-file text --max-new-tokens 5 --save "
              "s.$x " RUN " || exit 1; done"));
    refused("generate q8.gguf --resume s.m --max-new-tokens 12", another);
    refused("generate m --resume s.q8.gguf --max-new-tokens 12", another);
    refused("generate q4.gguf --resume s.q8.gguf --max-new-tokens 12", another);
    refused("generate q8.gguf --resume s.q8.gguf --max-new-tokens 12 --compute f32",
            "was saved with --compute bf16, found --compute f32");
    CHECK_MSG(
        !sh("$S generate q8.gguf --resume s.q8.gguf --max-new-tokens 12 --report r.json " RUN),
        "%s", err);
    json_t *report = parse_file("r.json");
    CHECK(!strcmp(text_at(report, "logits_hash"), hash));
    check_moved(report);
    json_decref(report);
}

static void test_prefix(void)
{
    static const struct {
        const char *model, *options;
        bool found;
    } runs[] = {{"q8.gguf", "", false},
                {"q8.gguf", "", true},
                {"m", "", false},
                {"q4.gguf", "", false},
                {"q8.gguf", "--compute f32", false},
                {"q8.gguf", "--device-memory 3MiB --host-memory 64MiB", true}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char hash[32], options[128];
        hash_of(hash, runs[i].model, runs[i].options);
        snprintf(options, sizeof options, "%s --prefix-cache p", runs[i].options);
        json_t *report = generate(runs[i].model, options);
        CHECK(!strcmp(text_at(report, "logits_hash"), hash));
        CHECK_MSG((number(report, "prefix.n_tokens_reused") > 0) == runs[i].found, "%s %s",
                  runs[i].model, options);
        json_decref(report);
    }
}

/* ---- jobs ---- */

enum { ITEMS = 40 };

/* Killed as soon as it has an answer, and given again: the answers of a job that nothing ended. */
static void test_job(const char *model)
{
    static char whole[1 << 20];
    char job[512];
    snprintf(job, sizeof job, "$S batch %s --input in --max-new-tokens 64 --sessions 2 " RUN,
             model);
    CHECK(!sh("rm -f a a.* b b.*; for i in $(seq %d); do echo \"{\\\"id\\\": \\\"i$i\\\", "
              "\\\"prompt\\\": \\\"The gate number of Ros$i\\\"}\"; done >in",
              ITEMS));
    CHECK_MSG(!sh("%s --output a", job), "%s", err);
    CHECK(!sh("sort a") && n_out > 0);
    memcpy(whole, out, n_out + 1);
    CHECK(sh("%s --output b & until grep -qs ' answer ' b.state; do sleep 0.01; done; kill -9 $!; "
             "wait $!",
             job) == 137);
    CHECK_MSG(!sh("grep -c ' answer ' b.state") && atoi(out) < ITEMS, "%s", out);
    CHECK_MSG(!sh("%s --output b --device-memory 3MiB --host-memory 64MiB", job), "%s", err);
    CHECK(!sh("sort b") && !strcmp(out, whole));
}

/* The lines without what budgets and time change: the text, and the hash of the logits. */
#define ANSWERS                                                                                    \
    "sort %s | sed 's/,\"strategy\".*\"logits_hash\"/,\"logits_hash\"/; s/,\"level\".*//'"

static void test_summaries(const char *model)
{
    static char whole[1 << 16];
    CHECK_MSG(!sh("rm -f s t *.state *.parts; $S summarize %s docs/a.txt docs/b.txt --output s "
                  "--length 20 --max-new-tokens 24 --context 900 " RUN,
                  model),
              "%s", err);
    CHECK(!sh(ANSWERS, "s") && n_out > 0 && n_out < sizeof whole);
    memcpy(whole, out, n_out + 1);
    CHECK_MSG(!sh("$S summarize %s docs/a.txt docs/b.txt --output t --length 20 --max-new-tokens "
                  "24 --context 900 --device-memory 3MiB --host-memory 64MiB " RUN,
                  model),
              "%s", err);
    CHECK(!sh(ANSWERS, "t"));
    CHECK_MSG(!strcmp(out, whole), "'%s', not '%s'", out, whole);
}

/* Under a sanitizer the command is slow, and test_engine runs such models: two cases stay. */
static void test_few(void)
{
    char hash[32];
    test_budgets("mixed.gguf", "", hash);
    test_saved();
}

static void test_all(void)
{
    test_all_budgets();
    test_experts();
    test_says();
    test_other_type();
    test_score();
    test_check_kv();
    test_saved();
    test_prefix();
    test_job("q8.gguf");
    if (check_full())
        test_job("mixed.gguf");
    test_summaries("q4.gguf");
}

int main(void)
{
    uint64_t seed = check_seed();
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("quantized");
    command_limits();
    write_models(check_random(&seed) | 1);
    RUN_UNDER_ASAN ? test_few() : test_all();
    CHECK(!sh("rm -r \"$PWD\""));
    return check_done();
}
