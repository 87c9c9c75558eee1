/* `plan --json` of one process predicts, as integers, the bytes that `generate --report` of another
 * process counts on every link: for random models, budgets, precisions of KV, chunks, slots,
 * prompts and answers; for several prompts; and with a prefix cache, of which the plan knows only
 * the number of tokens that it gives.
 *
 *   test_plan_command [draws] */
#include "runtime/spillway.h"
#include "tests/command/command_json.h"
#include "tests/command/command_model.h"
#include "tests/engine/tiny_model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static uint64_t n_down, n_to_disk, n_from_disk, n_together, n_waited, n_found, n_routed;

static json_t *plan(const char *options)
{
    int code = sh("\"$S\" plan m --json %s", options);
    CHECK_MSG(code == 0, "plan %s: %s", options, err);
    return parse(out);
}

static uint64_t below(uint64_t *seed, uint64_t n)
{
    return check_random(seed) % n;
}

/* For each budget the smallest one, or a little more. */
static void draw_budgets(char *options, size_t size, uint64_t *seed)
{
    size_t n = strlen(options);
    bool disk = below(seed, 2);
    json_t *j = plan(options);
    long long least = number(j, "smallest_bytes.device"), all = number(j, "peak_bytes.device");
    long long device = below(seed, 4) ? least + (all > least ? (all - least) / 4 : 0) : all;
    device = below(seed, 3) ? least : device;
    json_decref(j);
    n += (size_t)snprintf(options + n, size - n, " --device-memory %lld", device);
    if (!disk)
        return;
    n += (size_t)snprintf(
        options + n, size - n,
        " --disk . --disk-memory 64MiB --disk-write-limit 1GiB"); /* with this limit no drive is
                                                                     measured */
    j = plan(options);
    snprintf(options + n, size - n, " --host-memory %lld", number(j, "smallest_bytes.host") + 4096);
    json_decref(j);
}

static void draw_options(char *options, size_t size, uint64_t *seed)
{
    static const char *const kv[] = {"", " --kv-dtype int8 --residual-window 0",
                                     " --kv-dtype int4 --residual-window 128", " --kv-dtype f32"};
    size_t n = strlen(options);
    n += (size_t)snprintf(options + n, size - n, "%s", kv[below(seed, 4)]);
    if (below(seed, 2))
        n += (size_t)snprintf(options + n, size - n, " --prefill-chunk %llu",
                              (unsigned long long)check_range(seed, 16, 200));
    if (below(seed, 2))
        n += (size_t)snprintf(options + n, size - n, " --prefetch-slots 2");
    draw_budgets(options, size, seed);
}

/* The bytes of missed experts between the least and the most that the plan names. */
static bool in_bounds(const json_t *plan, const char *link, long long missed)
{
    char least[64], expected[64], most[64];
    snprintf(least, sizeof least, "run_experts.least.%s", link);
    snprintf(expected, sizeof expected, "run_experts.expected.%s", link);
    snprintf(most, sizeof most, "run_experts.most.%s", link);
    return number(plan, least) <= missed && missed <= number(plan, most) &&
           number(plan, least) <= number(plan, expected) &&
           number(plan, expected) <= number(plan, most);
}

/* The plan's totals against the report's counters. */
static void compare(const json_t *plan, const char *what)
{
    const char *link;
    json_t *bytes;
    json_t *report = parse_file("r.json");
    const json_t *run = json_object_get(json_object_get(plan, "moved_bytes"), "run");
    CHECK(json_object_size(run) == SPW_MOVED_COUNT);
    /* Without a trace no plan knows which experts will be missed. */
    bool unknown = json_object_get(plan, "run_experts") != NULL;
    json_object_foreach(json_object_get(report, "moved_bytes"), link, bytes)
        CHECK_MSG(unknown ? in_bounds(plan, link, number(bytes, "counted") - number(run, link))
                          : number(run, link) == number(bytes, "counted"),
                  "%s: %s: planned %lld, counted %lld", what, link, number(run, link),
                  number(bytes, "counted"));
    CHECK(json_equal(json_object_get(plan, "peak_bytes"), json_object_get(report, "peak_bytes")));
    if (json_object_get(report, "n_decode_steps"))
        CHECK(number(plan, "predicted_run.n_decode_steps") == number(report, "n_decode_steps"));
    n_down += number(run, "device_to_host") > 100000;
    n_to_disk += number(run, "host_to_disk") > 0;
    n_from_disk += number(run, "disk_to_host") > 0;
    json_decref(report);
}

static void write_ids(const char *name, uint64_t n, uint32_t vocab)
{
    FILE *f = fopen(in_folder(name), "w");
    for (uint64_t i = 0; i < n; i++)
        fprintf(f, "%llu ", (unsigned long long)(i * 7 % vocab));
    fclose(f);
}

static void generate(const char *options)
{
    int code = sh("\"$S\" generate m --ids --ignore-eos --drafts off --report r.json %s", options);
    CHECK_MSG(code == 0, "generate %s: %s", options, err);
}

/* With a trace of the routing all bytes are known, and what other rules would have missed. The
 * experts begin with the counts of the runs before. */
static void run_routed(const struct tiny_model *m, uint64_t *seed)
{
    char options[512], more[1024];
    write_ids("ids", check_range(seed, 1, 300), m->vocab);
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --context 400 --max-new-tokens %llu --token-ids ids "
             "--kv-dtype f32",
             (unsigned long long)check_range(seed, 10, 60));
    json_t *j = plan(options);
    long long least = number(j, "smallest_bytes.device");
    json_decref(j);
    snprintf(more, sizeof more, "%s --device-memory %lld%s --expert-trace trace", options,
             least + (long long)below(seed, 3) * 4096,
             below(seed, 2) ? " --host-memory 32MiB" : "");
    generate(more);
    /* A run that is refused leaves the old trace. */
    CHECK(sh("cp trace kept && \"$S\" generate m %s --device-memory 1KiB --expert-trace trace",
             options) == 2);
    CHECK(sh("cmp trace kept && test -z \"$(ls .trace* 2>&-)\"") == 0);
    j = plan(more);
    bool moves = number(j, "n_experts_resident") < number(j, "n_experts");
    CHECK(!moves || sh("test -s spillway/experts.json") == 0); /* for the next run */
    CHECK(!json_object_get(j, "run_experts"));
    CHECK_MSG(!strstr(err, "the trace has"), "%s", err);
    compare(j, more);
    json_t *report = parse_file("r.json");
    CHECK(json_equal(json_object_get(j, "expert_trace"), json_object_get(report, "expert_trace")));
    json_decref(report);
    long long best = number(j, "expert_trace.rules.best.missed");
    CHECK(best <= number(j, "expert_trace.rules.spillway.missed") &&
          best <= number(j, "expert_trace.rules.lru.missed") && (best > 0) == moves);
    n_routed += moves;
    json_decref(j);
    json_decref(plan(strcat(more, " --max-new-tokens 70")));
    CHECK_MSG(!moves || (strstr(err, "trace: the trace has ") &&
                         strstr(err, " tokens, and the run computes ")),
              "%s", err);
}

/* One prompt; the plan knows its length only. */
static void run_one(const struct tiny_model *m, uint64_t *seed)
{
    char options[1024], more[1200];
    uint64_t prompt = check_range(seed, 1, 1400);
    snprintf(options, sizeof options, "--device cpu --threads 2 --max-new-tokens %llu",
             (unsigned long long)below(seed, 140));
    snprintf(more, sizeof more, " --context %llu --prompt-tokens %llu",
             (unsigned long long)(prompt + 140), (unsigned long long)prompt);
    strcat(options, more);
    write_ids("ids", prompt, m->vocab);
    draw_options(options, sizeof options, seed);
    json_t *j = plan(options);
    char *length = strstr(options, "--prompt-tokens");
    char *rest = strchr(length + strlen("--prompt-tokens "), ' ');
    snprintf(more, sizeof more, "%.*s--token-ids ids%s", (int)(length - options), options,
             rest ? rest : "");
    generate(more);
    compare(j, more);
    json_decref(j);
}

static void write_lines(const struct tiny_model *m, int n_lines, uint64_t *seed)
{
    FILE *f = fopen(in_folder("lines.jsonl"), "w");
    for (int i = 0; i < n_lines; i++) {
        uint64_t n = check_range(seed, 1, below(seed, 3) ? 200 : 600);
        fprintf(f, "{\"tokens\": [%llu", (unsigned long long)below(seed, m->vocab));
        while (--n)
            fprintf(f, ", %llu", (unsigned long long)below(seed, m->vocab));
        fprintf(f, "], \"max_new_tokens\": %llu, \"n\": %d, \"temperature\": 1}\n",
                (unsigned long long)below(seed, 60), below(seed, 3) ? 1 : 3);
    }
    fclose(f);
}

/* Several prompts, more of them than run at a time. */
static void run_together(const struct tiny_model *m, uint64_t *seed)
{
    char options[1024];
    write_lines(m, 4, seed);
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --prompts lines.jsonl --sessions %d",
             (int)check_range(seed, 1, 8));
    draw_options(options, sizeof options, seed);
    json_t *j = plan(options);
    int code = sh("\"$S\" generate m --ignore-eos --drafts off --report r.json %s", options);
    CHECK_MSG(code == 0, "generate %s: %s", options, err);
    compare(j, options);
    json_decref(j);
    n_together++;
}

/* Prompts with memory for one of them that is as long as the longest: the others wait until they
 * fit, as the plan says. The answers are those of a run with all the memory. */
static void run_waiting(const struct tiny_model *m, uint64_t *seed)
{
    char options[1024] = "--device cpu --threads 2 --prompts lines.jsonl --sessions 4";
    size_t n = strlen(options);
    write_lines(m, 7, seed);
    CHECK(sh("\"$S\" generate m --ignore-eos %s | sort >all", options) == 0);
    int code = sh("\"$S\" plan m --json %s --device-memory 4KiB", options);
    json_t *j = parse(out);
    CHECK(code == 2 && j);
    const long long least = number(j, "smallest_bytes.device");
    bool waits = false;
    for (int i = 0; i < 16 && !waits; i++) { /* with the least memory there may be one session */
        json_decref(j);
        snprintf(options + n, sizeof options - n, " --device-memory %lld", least + i * least / 16);
        j = plan(options);
        waits = number(j, "full_sessions") < number(j, "sessions");
    }
    n_waited += waits;
    code = sh("\"$S\" generate m --ignore-eos --drafts off --report r.json %s >some; sort some | "
              "cmp - all",
              options);
    CHECK_MSG(code == 0, "generate %s: %s%s", options, err, out);
    compare(j, options);
    json_decref(j);
}

/* A prompt whose beginning an earlier process has published; and that process. */
static void run_found(const struct tiny_model *m, uint64_t *seed)
{
    char options[1024], more[1200];
    uint64_t prompt = check_range(seed, 200, 1400);
    write_ids("ids", prompt, m->vocab);
    CHECK(sh("rm -rf cache") == 0);
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --context %llu --max-new-tokens %llu --token-ids ids "
             "--prefix-cache cache",
             (unsigned long long)prompt + 200, (unsigned long long)below(seed, 140));
    draw_options(options, sizeof options, seed);
    json_t *j = plan(options);
    generate(options);
    compare(j, options);
    json_decref(j);
    CHECK(sh("cp ids first && cat first >ids && seq 1 60 | tr '\\n' ' ' >>ids") == 0);
    generate(options); /* continues after it */
    json_t *report = parse_file("r.json");
    long long found = number(report, "prefix.n_tokens_from_store");
    long long kept = number(report, "prefix.n_tokens_published");
    long long published = number(report, "prefix.published_bytes");
    long long whole = (number(report, "n_prompt") + number(report, "n_generated") - 1) / 128 * 128;
    json_decref(report);
    /* The cache has a part of it where no session can begin: no plan knows how much. Where the
     * cache has all tiles of full layers, only tiles of windows were published, and no tokens. */
    if (!found || (published && found + kept != whole))
        return;
    snprintf(more, sizeof more, "%s --prefix-tokens %lld", options, found);
    j = plan(more);
    compare(j, more);
    json_decref(j);
    n_found++;
}

/* A resumed run under budgets of its own. */
static void run_resumed(uint64_t *seed, uint32_t vocab)
{
    static const char *const kv[] = {"", " --kv-dtype int8 --residual-window 128"};
    char options[1024];
    uint64_t prompt = check_range(seed, 100, 1400), n = check_range(seed, 1, 60);
    write_ids("ids", prompt, vocab);
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --context %llu --token-ids ids --max-new-tokens %llu --save "
             "s%s",
             (unsigned long long)prompt + 200, (unsigned long long)n, kv[below(seed, 2)]);
    generate(options);
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --context %llu --resume s --max-new-tokens %llu",
             (unsigned long long)prompt + 200, (unsigned long long)(n + below(seed, 120)));
    draw_budgets(options, sizeof options, seed);
    json_t *j = plan(options);
    generate(options);
    compare(j, options);
    json_decref(j);
    CHECK(sh("rm s") == 0);
}

/* Steps of 60 tokens after the first one, none of which passes the end of a tile. */
static long long count_steps(const char *drafts)
{
    char options[256];
    snprintf(options, sizeof options,
             "--device cpu --threads 2 --context 400 --prompt-tokens 130 --max-new-tokens 61 %s",
             drafts);
    json_t *j = plan(options);
    long long n = number(j, "predicted_run.n_decode_steps");
    json_decref(j);
    return n;
}

static void plan_drafts(void)
{
    CHECK(count_steps("") == 60 && count_steps("--draft-tokens 4 --acceptance 0") == 60);
    CHECK(count_steps("--draft-tokens 4 --acceptance 1") == 12);
    const long long n = count_steps("--draft-tokens 4 --acceptance 0.5"); /* 60 / 1.9375 */
    CHECK_MSG(n >= 30 && n <= 32, "%lld steps", n);
    CHECK(sh("\"$S\" plan m --drafts off --draft-tokens 4") == 2 &&
          strstr(err, "found both --drafts off and --draft-tokens 4"));
}

/* Drafts of the model's own layer: its weights and its KV are in the plan. */
static void plan_layer(void)
{
    const char *options = "--device cpu --context 400 --prompt-tokens 130 --max-new-tokens 61";
    char with[128];
    snprintf(with, sizeof with, "%s --drafts mtp", options);
    json_t *off = plan(options), *on = plan(with);
    CHECK(number(on, "n_layers") == number(off, "n_layers") + 1);
    CHECK(number(on, "weights_bytes") > number(off, "weights_bytes"));
    CHECK(number(on, "kv_bytes_per_token") * 3 == number(off, "kv_bytes_per_token") * 4);
    CHECK(count_steps("--drafts mtp --draft-tokens 4 --acceptance 1") == 12);
    json_decref(off);
    json_decref(on);
}

static void write_model(struct tiny_model *m)
{
    m->vocab = BYTE_TOKENIZER_VOCAB;
    tiny_model_write(m, in_folder("m"));
    write_tokenizer("m");
}

int main(int argc, char **argv)
{
    int draws = argc > 1 ? atoi(argv[1]) : SANITIZED || !check_full() ? 1 : 2;
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("plan_command");
    command_limits();
    uint64_t seed = check_seed();
    for (int i = 0; i < TINY_STATES; i++) {
        struct tiny_model m = tiny_models[i];
        write_model(&m);
        for (int k = 0; k < draws; k++) {
            run_one(&m, &seed);
            run_together(&m, &seed);
            if (k == 0)
                run_waiting(&m, &seed);
            if (i == 0 && k == 0)
                plan_drafts();
            run_found(&m, &seed);
            run_resumed(&seed, m.vocab);
            if (m.experts)
                run_routed(&m, &seed);
        }
        CHECK(sh("rm -r m") == 0);
    }
    struct tiny_model with_layer = tiny_with_mtp;
    write_model(&with_layer);
    plan_layer();
    sh("rm -r %s", folder);
    fprintf(stderr,
            "%llu runs spilled, %llu wrote to disk, %llu read from it; %llu of prompts "
            "together, %llu of prompts that waited, %llu began with what was kept; %llu missed "
            "experts\n",
            (unsigned long long)n_down, (unsigned long long)n_to_disk,
            (unsigned long long)n_from_disk, (unsigned long long)n_together,
            (unsigned long long)n_waited, (unsigned long long)n_found,
            (unsigned long long)n_routed);
    CHECK(n_down && n_to_disk && n_from_disk && n_together && n_waited && n_found && n_routed);
    return check_done();
}
