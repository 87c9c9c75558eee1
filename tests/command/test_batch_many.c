/* `spillway batch` of many items of very different lengths under a device budget that holds two of
 * the longest, and of many that begin alike. An argument, 1000, is the number of items; with 1000
 * the longest has 60,000 tokens, which takes many minutes. */
#include "tests/command/batch_files.h"
#include "tests/command/command_json.h"
#include "tests/engine/tiny_model.h"

#include <math.h>

enum { VOCAB = 64, MOST_NEW = 24, MOST_ITEMS = 1000 };

static uint64_t n_tokens;              /* of the prompts that were written */
static size_t lengths[MOST_ITEMS + 1]; /* of the prompt of each item */
static int n_new[MOST_ITEMS + 1];      /* tokens of its answer */

/* An item with `n` tokens, the first of which are `shared`, and `most` tokens to answer. */
static void add_item(FILE *file, uint64_t *random, int number, size_t n, int most,
                     const int *shared, size_t n_shared)
{
    lengths[number] = n;
    n_new[number] = most;
    fprintf(file, "{\"id\":%d,\"ignore_eos\":true,\"max_new_tokens\":%d,\"tokens\":[", number,
            n_new[number]);
    for (size_t i = 0; i < n; i++)
        fprintf(file, "%s%d", i ? "," : "",
                i < n_shared ? shared[i] : (int)check_range(random, 3, VOCAB - 1));
    fprintf(file, "]}\n");
    n_tokens += n;
}

static FILE *open_items(const char *name)
{
    FILE *file = fopen(in_folder(name), "w");
    CHECK(file);
    n_tokens = 0;
    return file;
}

/* Items start in the order of the input, and without drafts each gets a token a step. So whenever
 * one ends, those before it have ended or run: fewer than there are sessions have not ended. One
 * that is neither longer nor has as many tokens to answer has ended: it would have waited for an
 * item behind it. */
static void check_order(const char *output, int n, long long sessions)
{
    char *line = NULL, *ended = calloc((size_t)n + 1, 1);
    size_t room = 0;
    int first = 1; /* that has not ended */
    long long n_compared = 0;
    FILE *file = fopen(in_folder(output), "r");
    while (file && getline(&line, &room, file) > 0) {
        int id = 0;
        CHECK(sscanf(line, "{\"id\":%d", &id) == 1 && id >= 1 && id <= n && !ended[id]);
        long long n_before = 0;
        for (int i = first; i < id; i++) {
            n_before += !ended[i];
            n_compared += lengths[i] <= lengths[id] && n_new[i] < n_new[id];
            CHECK_MSG(ended[i] || lengths[i] > lengths[id] || n_new[i] >= n_new[id],
                      "item %d of %zu and %d tokens ended after item %d of %zu and %d", i,
                      lengths[i], n_new[i], id, lengths[id], n_new[id]);
        }
        CHECK_MSG(n_before < sessions, "item %d has passed %lld of %lld that run", id, n_before,
                  sessions);
        ended[id] = 1;
        while (first <= n && ended[first])
            first++;
    }
    CHECK(first == n + 1);
    fprintf(stderr, "%lld pairs in the same order\n", n_compared);
    free(line);
    free(ended);
    if (file)
        fclose(file);
}

static void check_report(const json_t *report, int n, int kib)
{
    CHECK(number(report, "peak_bytes.device") <= number(report, "budget_bytes.device"));
    CHECK(number(report, "peak_bytes.host") <= number(report, "budget_bytes.host"));
    CHECK(!kib || number(report, "budget_bytes.device") == 1024LL * kib);
    fprintf(stderr, "%lld sessions, %lld full, device %lld of %lld bytes\n",
            number(report, "sessions"), number(report, "full_sessions"),
            number(report, "peak_bytes.device"), number(report, "budget_bytes.device"));
    check_order("o", n, number(report, "sessions"));
    CHECK(!json_object_get(report, "earlier_engines"));
    CHECK(number(report, "items_done") == n && number(report, "items_failed") == 0);
    CHECK(number(report, "n_prompt") == (long long)n_tokens);
}

/* Three of the items, alone and with all memory. */
static void check_some_alone(uint64_t *random, int n)
{
    for (int i = 0; i < 3; i++) {
        int which = (int)check_range(random, 1, (uint64_t)n);
        CHECK_MSG(sh("sed -n %dp i.jsonl >one.jsonl; \"$S\" generate t --prompts one.jsonl " RUN
                     " >alone && grep -o '\"logits_hash\":\"[0-9a-f]*' alone >a; grep "
                     "'^{\"id\":%d,' o | grep -o '\"logits_hash\":\"[0-9a-f]*' | cmp - a",
                     which, which) == 0,
                  "item %d: %s", which, err);
    }
}

/* Most are short, as documents are; the last but one is the longest. */
static void write_items(uint64_t *random, int n, size_t longest)
{
    FILE *file = open_items("i.jsonl");
    for (int i = 1; i <= n; i++) {
        double u = (double)check_range(random, 0, 1000000) / 1e6;
        size_t length = i == n - 1 ? longest : (size_t)pow((double)longest, u);
        add_item(file, random, i, length, (int)check_range(random, 1, MOST_NEW), NULL, 0);
    }
    fclose(file);
}

/* Returns the bytes that came back from host memory. */
static long long run_items(int n, int device_kib, int host_kib)
{
    double start = check_seconds();
    CHECK_MSG(sh("\"$S\" batch t --input i.jsonl --output o --device-memory %dKiB --host-memory "
                 "%dKiB --report r.json " RUN " --drafts off",
                 device_kib, host_kib) == 0,
              "%s", err);
    fprintf(stderr, "%d items, %llu tokens, %.1f s\n", n, (unsigned long long)n_tokens,
            check_seconds() - start);
    json_t *report = parse_file("r.json");
    check_report(report, n, device_kib);
    const long long moved = number(report, "moved_bytes.host_to_device.counted");
    json_decref(report);
    return moved;
}

/* Budgets of two contexts, first on the device, then the greater part in host memory. */
static void test_many_lengths(uint64_t *random, int n)
{
    const size_t longest = n >= 1000 ? 60000 : 3000;
    write_items(random, n, longest);
    const int kib = least_budget("t", longest + MOST_NEW, 2, 256);
    const long long resident = run_items(n, kib, 256);
    check_some_alone(random, n);
    remove_job("o");
    if (n >= 1000)
        return;
    const long long spilled = run_items(n, kib * 9 / 20, 1024);
    CHECK_MSG(spilled > resident + 100000, "%lld and %lld bytes", resident, spilled);
    check_some_alone(random, n);
    remove_job("o");
}

/* Long items under a budget of two, each longer than all before it: they end in the order of the
 * input, so none has waited for an item behind it. They differ by more tokens than the bytes of
 * their lines can hide: one engine is enough. */
static void test_order(uint64_t *random)
{
    enum { N = 24, LENGTH = 1300, STEP = 16 };
    FILE *file = open_items("i.jsonl");
    for (int i = 1; i <= N; i++)
        add_item(file, random, i, LENGTH + STEP * (size_t)i, 8, NULL, 0);
    fclose(file);
    run_items(N, least_budget("t", LENGTH + STEP * N + 8, 2, 256), 256);
    CHECK(sh("grep -o '^{\"id\":[0-9]*' o | grep -o '[0-9]*' >order && seq %d | cmp - order", N) ==
          0);
    remove_job("o");
}

/* Tokens that all prompts begin with are computed once, although all that run end together. */
static void test_shared_instruction(uint64_t *random, int n)
{
    enum { SHARED = 1000 };
    int shared[SHARED];
    for (int i = 0; i < SHARED; i++)
        shared[i] = (int)check_range(random, 3, VOCAB - 1);
    FILE *file = open_items("i.jsonl");
    for (int i = 1; i <= n; i++)
        add_item(file, random, i, SHARED + check_range(random, 1, 300), 8, shared, SHARED);
    fclose(file);
    CHECK_MSG(sh("\"$S\" batch t --input i.jsonl --output o --report r.json --sessions 8 " RUN) ==
                  0,
              "%s", err);
    json_t *report = parse_file("r.json");
    check_report(report, n, 0);
    long long reused = number(report, "prefix.n_tokens_reused");
    CHECK_MSG(reused >= (long long)(n - 1) * SHARED && reused < (long long)(n - 1) * (SHARED + 1),
              "%lld tokens were not computed", reused);
    json_decref(report);
    check_some_alone(random, n);
}

/* What all engines of a job wrote to the disk. *n: the engines that wrote something. */
static long long written_to_disk(const json_t *report, int *n)
{
    const char *const path = "moved_bytes.host_to_disk.counted";
    long long all = number(report, path);
    const json_t *earlier;
    size_t i;
    *n = all > 0;
    json_array_foreach(json_object_get(report, "earlier_engines"), i, earlier)
    {
        all += number(earlier, path);
        *n += number(earlier, path) > 0;
    }
    return all;
}

/* From a pipe each longer item gets an engine of its own. They write to the disk what the limit
 * allows them together. */
static void test_write_limit(uint64_t *random)
{
    static const size_t each[] = {200, 2000, 6000};
    int n;
    FILE *file = open_items("i.jsonl");
    for (int i = 1; i <= 3; i++)
        add_item(file, random, i, each[i - 1], 8, NULL, 0);
    fclose(file);
    remove_job("o");
    CHECK(sh("\"$S\" plan t --device cpu --no-probe --quiet --context 6008 --disk . --host-memory "
             "64KiB --device-memory 1 --json") == 2);
    json_t *j = parse(out);
    const long long device = number(j, "smallest_bytes.device");
    json_decref(j);
    CHECK_MSG(sh("cat i.jsonl | \"$S\" batch t --input - --output o --disk . --device-memory %lld "
                 "--host-memory 64KiB --sessions 1 --report r.json " RUN,
                 device) == 0,
              "%s", err);
    json_t *report = parse_file("r.json");
    const long long limit = written_to_disk(report, &n) * 3 / 4; /* enough for each engine */
    CHECK_MSG(n >= 2, "%d engines wrote to the disk", n);
    json_decref(report);
    remove_job("o");
    CHECK(sh("cat i.jsonl | \"$S\" batch t --input - --output o --disk . --device-memory %lld "
             "--host-memory 64KiB --sessions 1 --report r.json --disk-write-limit %lld " RUN,
             device, limit) == 1);
    report = parse_file("r.json");
    CHECK(written_to_disk(report, &n) <= limit && n >= 1 && number(report, "items_done") == 2);
    json_decref(report);
    CHECK(sh("grep -c 'disk write limit: .*; beside that, earlier items have written ' o.errors") ==
              0 &&
          atoi(out) == 1);
    remove_job("o");
}

int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    static const struct tiny_model model = {TINY("llama", 2, 16, 16, 1, 1, 8, VOCAB, 70000),
                                            .stored = TINY_BF16, .seed = 7};
    uint64_t random = check_seed();
    command_model("batch_many");
    command_limits();
    tiny_model_write(&model, in_folder("t"));
    test_many_lengths(&random,
                      argc > 1 ? (int)spw_min_u64((uint64_t)atoi(argv[1]), MOST_ITEMS) : 80);
    test_order(&random);
    test_shared_instruction(&random, 40);
    test_write_limit(&random);
    sh("rm -rf %s", folder);
    return check_done();
}
