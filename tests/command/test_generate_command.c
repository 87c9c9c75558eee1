/* `spillway generate`: reports, budgets, the disk, batches, runs that are ended from outside. Run
 * through sh on a tiny model, on stories260K if the shared data is there, and on the bundled model
 * if it is there. Skipped without the command. */
#include "tests/command/command_json.h"
#include "tests/command/command_model.h"
#include "tests/command/command_start.h"

#include <stdbool.h>
#include <math.h>
#include <xxhash.h>

static void check_report(json_t *r)
{
    static const char *const keys[] = {
        "model",      "backend",         "n_prompt",        "n_generated",
        "tokens",     "logits_hash",     "prefill_seconds", "decode_seconds",
        "peak_bytes", "budget_bytes",    "moved_bytes",     "unhidden_wait_seconds",
        "waterlines", "fallback_events", "finish",          "unhidden_wait_seconds_by_layer"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_MSG(json_object_get(r, keys[i]), "%s", keys[i]);
    CHECK(number(r, "n_prompt") == 19 && number(r, "n_generated") == 300);
    CHECK(json_array_size(json_object_get(r, "tokens")) == 300);
    CHECK(number(r, "waterlines.n_tokens") == 318);
    CHECK(number(r, "peak_bytes.device") <= number(r, "budget_bytes.device"));
    CHECK(number(r, "peak_bytes.disk") == 0);
    check_moved(r);
    double measured = json_real_value(json_object_get(r, "measured_step_seconds"));
    CHECK(fabs(measured * 299 - json_real_value(json_object_get(r, "decode_seconds"))) < 1e-6);
    json_t *waits = json_object_get(r, "unhidden_wait_seconds_by_layer"), *wait;
    double all = json_real_value(json_object_get(r, "unhidden_wait_seconds")), waited = 0;
    size_t layer;
    json_array_foreach(waits, layer, wait) waited += json_real_value(wait);
    CHECK(json_array_size(waits) > 0 && waited <= all * (1 + 1e-9));
}

/* The report predicts what `plan` predicts for the same run. Neither is compared with the measured
 * time here: a machine that is busy while its speeds are measured is slower than later. */
static void check_prediction(json_t *r)
{
    double predicted = json_real_value(json_object_get(r, "predicted_step_seconds"));
    CHECK(sh("\"$S\" plan m --prompt-file p.txt --max-new-tokens 300 --device cpu --json") == 0);
    json_t *plan = parse(out);
    double planned =
        json_real_value(json_object_get(json_object_get(plan, "predicted_step"), "seconds"));
    CHECK_MSG(predicted > 0 && predicted == planned, "%g, planned %g", predicted, planned);
    json_decref(plan);
}

/* The dump has the hashed logits: [300, 96] float32 after a header of 128 bytes. */
static void check_dump(json_t *r, const char *npy, size_t n)
{
    char hash[32];
    CHECK(n == 128 + 300 * 96 * 4 && memcmp(npy, "\x93NUMPY\x01\x00\x76\x00", 10) == 0);
    CHECK(strstr(npy + 10, "'descr': '<f4', 'fortran_order': False, 'shape': (300, 96)"));
    CHECK(npy[127] == '\n');
    uint64_t chain = 0;
    for (const char *row = npy + 128; row < npy + n; row += 96 * 4)
        chain = XXH3_64bits_withSeed(row, 96 * 4, chain);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)chain);
    CHECK(strcmp(hash, json_string_value(json_object_get(r, "logits_hash"))) == 0);
}

/* The streamed text is the text of all tokens minus the prompt. Leaves the tokens in `ids`. */
static void check_streamed(json_t *r, const char *text)
{
    size_t i;
    json_t *id;
    char path[256];
    snprintf(path, sizeof path, "%s/ids", folder);
    FILE *file = fopen(path, "w");
    CHECK(sh("\"$S\" tokenize m --text-file p.txt") == 0);
    fprintf(file, "%s", out);
    json_array_foreach(json_object_get(r, "tokens"), i, id)
        fprintf(file, "%lld\n", json_integer_value(id));
    fclose(file);
    CHECK(sh("\"$S\" tokenize m --decode --token-ids ids") == 0);
    CHECK(strncmp(out, "TheStartOfSomething", 19) == 0 && strcmp(out + 19, text) == 0);
}

/* The dumped logits and `score` agree on the tokens. */
static void check_score(json_t *r, const char *npy)
{
    size_t i;
    json_t *id;
    double sum = 0, whole, prompt;
    json_array_foreach(json_object_get(r, "tokens"), i, id)
    {
        float row[96];
        double total = 0;
        memcpy(row, npy + 128 + i * sizeof row, sizeof row);
        for (int k = 0; k < 96; k++)
            total += exp((double)row[k]);
        sum += (double)row[json_integer_value(id)] - log(total);
    }
    CHECK(sh("\"$S\" score m --token-ids ids --json") == 0);
    json_t *j = parse(out);
    whole = json_real_value(json_object_get(j, "log_likelihood"));
    CHECK(number(j, "n_tokens") == 319 && number(j, "n_scored") == 318);
    double mean = json_real_value(json_object_get(j, "nats_per_token"));
    CHECK(fabs(mean * 318 + whole) < 1e-6 * fabs(whole));
    CHECK(fabs(log(json_real_value(json_object_get(j, "perplexity"))) - mean) < 1e-9);
    json_decref(j);
    CHECK(sh("\"$S\" score m --text-file p.txt --json") == 0);
    j = parse(out);
    prompt = json_real_value(json_object_get(j, "log_likelihood"));
    json_decref(j);
    CHECK_MSG(fabs(whole - prompt - sum) < 1e-6 * fabs(sum), "%f - %f, not %f", whole, prompt, sum);
}

static void test_report(void)
{
    static char text[1 << 16], npy[300 * 96 * 4 + 200];
    CHECK(sh("printf 'TheStartOfSomething' >p.txt; \"$S\" generate m --prompt-file p.txt "
             "--max-new-tokens 300 --ignore-eos --temperature 1 --seed 5 --report r.json "
             "--dump-logits l.npy --device cpu") == 0);
    CHECK_MSG(strstr(err, "the answer was cut off after 300 new tokens"), "%s", err);
    memcpy(text, out, n_out + 1);
    /* A note begins a line, also where it shares a pipe or a file with the text. */
    CHECK(sh("\"$S\" generate m --prompt x --device cpu --ignore-eos --max-new-tokens 3 2>&1") ==
          0);
    CHECK_MSG(strstr(out, "\nspillway: the answer was cut off after 3 "), "%s", out);
    CHECK(sh("\"$S\" generate m --prompt x --device cpu --ignore-eos --max-new-tokens 3 | cat") ==
          0);
    CHECK(!strchr(out, '\n'));
    CHECK(sh("\"$S\" generate m --prompt x --max-new-tokens 1") == 0);
    CHECK_MSG(strncmp(err, "spillway: on c", 14) == 0, "auto says which: %s", err);
    json_t *r = parse_file("r.json");
    check_report(r);
    check_prediction(r);
    check_dump(r, npy, read_file("l.npy", npy, sizeof npy));
    check_streamed(r, text);
    check_score(r, npy);
    json_decref(r);
}

/* The same seed gives the same text under any budgets; another seed gives another text. */
static void test_placement(void)
{
    static char text[1 << 16];
    char hash[32];
    CHECK(sh("\"$S\" generate m --prompt-file p.txt --max-new-tokens 600 --ignore-eos "
             "--temperature 1 --seed 5 --report a.json") == 0);
    memcpy(text, out, n_out + 1);
    json_t *r = parse_file("a.json");
    snprintf(hash, sizeof hash, "%s", json_string_value(json_object_get(r, "logits_hash")));
    json_decref(r);
    CHECK(sh("\"$S\" plan m --prompt-file p.txt --max-new-tokens 600 --json --no-probe") == 0);
    json_t *plan = parse(out);
    long long device = number(plan, "smallest_bytes.device");
    CHECK(number(plan, "context") == 619 && number(plan, "smallest_bytes.disk") == 0);
    CHECK(number(plan, "peak_bytes.device") > device);
    json_decref(plan);
    CHECK(sh("\"$S\" generate m --prompt-file p.txt --max-new-tokens 600 --ignore-eos "
             "--temperature 1 --seed 5 --report b.json --device-memory %lld --threads 1 "
             "--progress never",
             device) == 0);
    CHECK(strcmp(text, out) == 0);
    r = parse_file("b.json");
    CHECK(strcmp(hash, json_string_value(json_object_get(r, "logits_hash"))) == 0);
    CHECK(number(r, "budget_bytes.device") == device && number(r, "peak_bytes.device") <= device);
    check_moved(r);
    json_decref(r);
    CHECK(sh("\"$S\" generate m --prompt-file p.txt --max-new-tokens 600 --device-memory %lld",
             device - 1) == 2);
    CHECK(sh("\"$S\" generate m --prompt-file p.txt --max-new-tokens 600 --ignore-eos "
             "--temperature 1 --seed 6") == 0);
    CHECK(strcmp(text, out) != 0);
}

/* A small stack of the main thread, and so of every thread that asks for no other. */
static void test_small_stack(void)
{
#ifndef __SANITIZE_ADDRESS__ /* its own code takes more */
    static const char run[] = "\"$S\" generate m --prompt 'ab!' --max-new-tokens 8 --device cpu";
    CHECK_MSG(sh("a=$(%s) && b=$(ulimit -s 64; %s) && [ \"$a\" = \"$b\" ]", run, run) == 0, "%s",
              err);
#endif
}

/* ---- the disk ---- */

static json_t *plan_on_disk(long long device, const char *more)
{
    char budget[64] = "";
    if (device)
        snprintf(budget, sizeof budget, "--device-memory %lld", device);
    CHECK_MSG(sh("\"$S\" plan m --context 1000 --prefill-chunk 64 --device cpu --no-probe --disk . "
                 "--json %s %s",
                 budget, more) == 0,
              "%s", err);
    return parse(out);
}

/* The smallest device memory, and `host`: the option with the smallest host memory beside it. */
static long long smallest_to_disk(char *host, size_t size)
{
    json_t *p = plan_on_disk(0, "");
    long long device = number(p, "smallest_bytes.device");
    json_decref(p);
    p = plan_on_disk(device, "");
    snprintf(host, size, "--host-memory %lld", number(p, "smallest_bytes.host"));
    json_decref(p);
    return device;
}

/* The host memory that the last refusal named leaves less to write. A page less does not. */
static void check_named_host(const char *line, const char *command, long long device,
                             const char *host, long long disk, long long writes)
{
    char more[160], number[16] = "", unit[8] = "";
    const char *at = strstr(err, ", --host-memory to ");
    CHECK_MSG(at && sscanf(at, ", --host-memory to %15[0-9.]%7[KM]iB,", number, unit) == 2, "%s",
              err);
    const double bytes = atof(number) * (*unit == 'M' ? 1 << 20 : 1 << 10);
    for (int pages = 0; pages < 4; pages += 3) { /* texts are rounded up */
        snprintf(more, sizeof more, "--disk-write-limit %lld --host-memory %.0f", writes - 1,
                 bytes - pages * 4096);
        CHECK_MSG(sh(line, command, device, host, disk, more) == (pages ? 2 : 0), "%s: %s", more,
                  err);
    }
}

/* At the smallest device and host memory the cache is on disk. A page less is refused with the
 * number that works, and so is a byte less of writes. */
static void test_disk_plan(void)
{
    static const char line[] =
        "\"$S\" %s --prefill-chunk 64 --device cpu --device-memory %lld %s --disk . "
        "--disk-memory %lld %s";
    char host[64];
    long long device = smallest_to_disk(host, sizeof host);
    json_t *p = plan_on_disk(device, host);
    long long disk = number(p, "smallest_bytes.disk"), writes = number(p, "disk_write_bytes");
    CHECK(disk > 0 && number(p, "disk.total") >= disk && number(p, "host.kv") == 0);
    CHECK(number(p, "peak_bytes.disk") == number(p, "disk.total"));
    CHECK(number(p, "budget_bytes.disk") >= number(p, "disk.total"));
    CHECK(number(p, "waterlines.disk_end") > 0 &&
          number(p, "waterlines.disk_end") == number(p, "waterlines.host_end"));
    CHECK(writes > 0 && number(p, "moved_bytes.prefill.host_to_disk") == writes);
    CHECK(number(p, "moved_bytes.decode_step.disk_to_host") > 0);
    json_decref(p);
    p = plan_on_disk(device,
                     "--host-memory 64MiB"); /* the disk need not hold what fits on the host */
    CHECK(number(p, "disk.total") == 0 && number(p, "host.kv") > 0);
    CHECK(number(p, "waterlines.disk_end") == 0 && number(p, "smallest_bytes.disk") == 0);
    json_decref(p);
    CHECK(sh(line, "plan m --context 1000 --no-probe", device, host, disk, "") == 0 && !*err);
    CHECK(strstr(out, "\ndisk ") && strstr(out, "on the disk, ") && strstr(out, " lie on disk, "));
    for (int run = 0; run < 2; run++) {
        const char *command =
            run ? "generate m --prompt x --max-new-tokens 999" : "plan m --context 1000 --no-probe";
        char says[64], least[32];
        CHECK(sh(line, command, device, host, disk - 4096, "") == 2 && !n_out);
        snprintf(says, sizeof says, "--disk-memory %s would do",
                 spw_bytes_text(least, (uint64_t)disk));
        CHECK_MSG(strstr(err, says) || strstr(err, " or --disk-memory "), "%s", err);
        snprintf(says, sizeof says, "--disk-write-limit %lld", writes - 1);
        CHECK(sh(line, command, device, host, disk, says) == 2 && !n_out);
        snprintf(says, sizeof says, " writes up to %s;", spw_bytes_text(least, (uint64_t)writes));
        CHECK_MSG(strstr(err, says), "%s", err);
        check_named_host(line, command, device, host, disk, writes);
    }
}

/* A run under these budgets gives the same answer as one without, and its report has the disk. */
static void test_disk_run(void)
{
    static const char line[] =
        "\"$S\" generate m --prompt-file long.txt --ignore-eos --max-new-tokens 40 --context 1000 "
        "--prefill-chunk 64 --device cpu %s";
    static const char *const engines[] = {"threads", "auto"};
    char budgets[256], host[64];
    long long device = smallest_to_disk(host, sizeof host);
    CHECK(sh("for i in $(seq 100 270); do printf \"$i \"; done >long.txt") == 0);
    CHECK_MSG(sh(line, "--report all.json") == 0, "%s", err);
    json_t *all = parse_file("all.json");
    for (int i = 0; i < 2; i++) {
        snprintf(budgets, sizeof budgets,
                 "--disk . --io %s --device-memory %lld %s --disk-memory 4MiB --report disk.json",
                 engines[i], device, host);
        CHECK_MSG(sh(line, budgets) == 0, "%s", err);
        json_t *r = parse_file("disk.json");
        const char *io = json_string_value(json_object_get(r, "io"));
        CHECK_MSG(io && (i || (strstr(io, " threads") && !strstr(io, "uring"))), "%s",
                  io ? io : "null");
        CHECK(json_equal(json_object_get(r, "logits_hash"), json_object_get(all, "logits_hash")));
        CHECK(json_equal(json_object_get(r, "tokens"), json_object_get(all, "tokens")));
        check_moved(r);
        CHECK(number(r, "moved_bytes.disk_to_host.counted") > 0);
        CHECK(number(r, "waterlines.disk_end") > 0 && number(r, "peak_bytes.disk") > 0);
        CHECK(number(r, "peak_bytes.disk") <= number(r, "budget_bytes.disk"));
        CHECK(number(r, "moved_bytes.host_to_disk.counted") <= number(r, "peak_bytes.disk"));
        json_decref(r);
    }
    json_decref(all);
}

/* A disk that is too small for the KV does not change a plan in which the host has room for it. */
static void test_disk_adds(void)
{
    static const char line[] =
        "\"$S\" generate m --prompt-file long.txt --ignore-eos --max-new-tokens 40 --context 1000 "
        "--prefill-chunk 64 --residual-window 128 --device cpu --device-memory %lld %s --report %s";
    json_t *plan = plan_on_disk(0, ""), *with, *without;
    long long device = number(plan, "smallest_bytes.device");
    CHECK_MSG(sh(line, device, "", "without.json") == 0, "%s", err);
    CHECK_MSG(sh(line, device, "--disk . --disk-memory 64KiB --kv-gate off", "with.json") == 0 &&
                  !strstr(err, "out of memory"),
              "%s", err);
    with = parse_file("with.json");
    without = parse_file("without.json");
    CHECK(
        json_equal(json_object_get(with, "logits_hash"), json_object_get(without, "logits_hash")));
    CHECK(!json_array_size(json_object_get(with, "fallback_events")));
    CHECK(number(with, "waterlines.host_end") > 0 && number(with, "waterlines.disk_end") == 0);
    json_decref(without);
    json_decref(with);
    json_decref(plan);
}

/* ---- batches ---- */

/* Lines of a batch equal the answers of single runs, byte for byte. */
static void test_batch(void)
{
    static const struct {
        const char *line, *options;
    } cases[] = {
        {"{\"prompt\": \"First\"}", "--prompt First"},
        {"{\"prompt\": \"Second\", \"seed\": 9, \"temperature\": 1.5}",
         "--prompt Second --seed 9 --temperature 1.5"},
        {"{\"tokens\": [1, 5, 7], \"max_new_tokens\": 3, \"id\": {\"k\": 1}}",
         "--token-ids t --max-new-tokens 3"},
        {"{\"prompt\": \"Third\", \"max_new_tokens\": 0}", "--prompt Third --max-new-tokens 0"},
        {"{\"prompt\": \"Fourth\", \"temperature\": 2, \"top_k\": 20, \"ignore_eos\": true, "
         "\"max_new_tokens\": 90}",
         "--prompt Fourth --temperature 2 --top-k 20 --ignore-eos --max-new-tokens 90"},
        {"{\"prompt\": \"Fifth\", \"temperature\": 2, \"stop\": [\"a\", \"E\"]}",
         "--prompt Fifth --temperature 2 --stop a --stop E"},
        {"{\"prompt\": \"caf\\u00e9\", \"repetition_penalty\": 1.2}",
         "--prompt \"$(printf 'caf\\303\\251')\" --repetition-penalty 1.2"},
        {"{\"prompt\": \"Sixth\", \"presence_penalty\": 1.5, \"frequency_penalty\": -0.5, "
         "\"logit_bias\": {\"40\": 2.5, \"41\": -100}, \"logprobs\": 3}",
         "--prompt Sixth --presence-penalty 1.5 --frequency-penalty -0.5 --logit-bias 40=2.5 "
         "--logit-bias 41=-100 --logprobs 3"},
    };
    enum { N = sizeof cases / sizeof *cases };
    json_t *lines[N];
    char path[256];
    snprintf(path, sizeof path, "%s/b.jsonl", folder);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < N; i++)
        fprintf(file, "%s\n%s", cases[i].line, i % 3 ? "" : "\n");
    fclose(file);
    CHECK(sh("echo 1 5 7 >t; \"$S\" generate m --prompts b.jsonl --max-new-tokens 40 "
             "--sessions 3 --report b.json") == 0);
    char *line = strtok(out, "\n");
    memset(lines, 0, sizeof lines);
    for (int i = 0; i < N && line;
         i++, line = strtok(NULL, "\n")) { /* in the order in which they end */
        json_t *answer = parse(line);
        /* A blank line follows lines 0, 3, 6, ... */
        long long index = 2;
        if (!json_object_get(answer, "id")) {
            long long n = (long long)number(answer, "line") - 1;
            index = n - (n + 2) / 4;
        }
        CHECK(index >= 0 && index < N && !lines[index]);
        lines[index < 0 || index >= N ? 0 : index] = answer;
    }
    CHECK(!line);
    json_t *batch = parse_file("b.json");
    for (int i = 0; i < N; i++) {
        const char *max = strstr(cases[i].options, "--max-new") ? "" : "--max-new-tokens 40";
        CHECK_MSG(sh("\"$S\" generate m %s %s --report s.json", cases[i].options, max) == 0, "%s",
                  err);
        json_t *single = parse_file("s.json");
        CHECK(strcmp(out, json_string_value(json_object_get(lines[i], "text"))) == 0);
        static const char *const same[] = {"tokens",   "logits_hash", "finish",
                                           "n_prompt", "logprobs",    "top_logprobs"};
        for (size_t k = 0; k < sizeof same / sizeof *same; k++)
            CHECK_MSG(!json_object_get(single, same[k]) == !json_object_get(lines[i], same[k]) &&
                          (!json_object_get(single, same[k]) ||
                           json_equal(json_object_get(lines[i], same[k]),
                                      json_object_get(single, same[k]))),
                      "line %d: %s", i, same[k]);
        CHECK(!json_object_get(single, "logprobs") == (i != N - 1));
        json_decref(single);
    }
    CHECK(number(json_object_get(lines[2], "id"), "k") == 1);
    for (int i = 0; i < N; i++)
        json_decref(lines[i]);
    json_decref(batch);
}

/* The tokens of answer `choice` in a line with several. */
static json_t *find_choice(const json_t *line, size_t choice)
{
    return json_object_get(json_array_get(json_object_get(line, "choices"), choice), "tokens");
}

/* Several answers to a prompt: the first is that of the prompt alone, the others draw anew. */
static void test_choices(void)
{
    json_t *lines[2] = {NULL}, *tokens[3];
    CHECK(sh("printf '%%s\\n' '{\"prompt\": \"ab\", \"n\": 3}' '{\"prompt\": \"ba\"}' >n.jsonl; "
             "\"$S\" generate m --prompt ab --temperature 2 --seed 4 --max-new-tokens 20 "
             "--ignore-eos --report n.json") == 0);
    json_t *alone = parse_file("n.json");
    CHECK_MSG(sh("\"$S\" generate m --prompts n.jsonl --n 2 --temperature 2 --seed 4 "
                 "--max-new-tokens 20 --ignore-eos --sessions 3 --report n.json") == 0,
              "%s", err);
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *answer = parse(line);
        lines[number(answer, "line") == 2] = answer;
    }
    for (size_t k = 0; k < 3; k++)
        tokens[k] = find_choice(lines[0], k);
    CHECK(json_equal(tokens[0], json_object_get(alone, "tokens")));
    CHECK(tokens[1] && tokens[2] && !json_equal(tokens[0], tokens[1]) &&
          !json_equal(tokens[0], tokens[2]) && !json_equal(tokens[1], tokens[2]));
    CHECK(find_choice(lines[1], 0) && find_choice(lines[1], 1) && !find_choice(lines[1], 2));
    json_t *report = parse_file("n.json");
    check_moved(report);
    json_decref(lines[0]);
    json_decref(lines[1]);
    json_decref(report);
    json_decref(alone);
}

/* Answers come in the order in which they end. A message names a text that is too long, and the
 * others continue. */
static void test_batch_order(void)
{
    CHECK(sh("{ echo '{\"prompt\": \"a\", \"max_new_tokens\": 300, \"id\": \"long\"}'; "
             "for i in 1 2 3; do echo '{\"prompt\": \"b\", \"max_new_tokens\": 3}'; done; } "
             ">o.jsonl") == 0);
    CHECK(sh("\"$S\" generate m --prompts o.jsonl --sessions 2 --ignore-eos | sed 's/,.*//'") == 0);
    CHECK_MSG(strcmp(out, "{\"line\":2\n{\"line\":3\n{\"line\":4\n{\"id\":\"long\"\n") == 0, "%s",
              out);
    /* Too long for --context, for the model, and for memory. */
    static const char *const limits[] = {"--context 100", "", "--on-oom fail --device-memory %lld"};
    static const char *const says[] = {
        "expected at most 100, the --context\"", "made for (--allow-long-context allows more)\"",
        "raise --device-memory, or shorten the prompt or the answer"};
    long long least = 0;
    for (int i = 0; i < 3; i++) {
        char options[128];
        snprintf(options, sizeof options, limits[i], least);
        CHECK(sh("sed -i 's/\"max_new_tokens\": [0-9]*, \"id\"/\"max_new_tokens\": %d, \"id\"/' "
                 "o.jsonl",
                 i == 1 ? 2000 : 300) == 0);
        int code =
            sh("\"$S\" generate m --prompts o.jsonl --sessions 1 --ignore-eos --report o.json %s",
               options);
        CHECK_MSG(code == 1 && strstr(err, "o.jsonl: line 1: found 1 token of the prompt and") &&
                      strstr(err, "3 answered, 1 without an answer"),
                  "%s: %d: %s", options, code, err);
        CHECK_MSG(strstr(out, "{\"id\":\"long\",\"error\":") &&
                      strstr(out, "\"code\":\"context_length_exceeded\""),
                  "%s", out);
        CHECK_MSG(strstr(out, says[i]), "%s", out);
        CHECK(strstr(out, "{\"line\":4,"));
        json_t *report = parse_file("o.json");
        CHECK(number(report, "items_done") == 3 && number(report, "items_failed") == 1);
        CHECK(number(report, "n_generated") == 9 && number(report, "n_prompt") == 3);
        json_decref(report);
        if (i == 1) { /* the size of the short prompts */
            CHECK_MSG(sh("\"$S\" plan m --context 4 --on-oom fail --json --device cpu") == 0, "%s",
                      err);
            json_t *plan = parse(out);
            least = (long long)number(plan, "smallest_bytes.device");
            json_decref(plan);
        }
    }
    CHECK(sh("\"$S\" generate m --prompts o.jsonl --context 2") == 1 && !strstr(out, "\"text\""));
    /* A line that is wrong does not end the others. */
    CHECK(sh("printf '%%s\\n' nonsense '{\"prompt\":\"a\",\"top_p\":2}' '{\"promt\":\"a\"}' "
             "'{\"prompt\":\"b\"}' >o.jsonl; \"$S\" generate m --prompts o.jsonl") == 1);
    CHECK_MSG(strstr(err, "o.jsonl: line 1: ") && strstr(err, "line 2: top_p: found 2") &&
                  strstr(err, "line 3: ") && strstr(err, "1 answered, 3 without an answer"),
              "%s", err);
    CHECK_MSG(strstr(out, "{\"line\":4,\"text\"") && strstr(out, "\"line\":1}"), "%s", out);
}

/* The budgets that a refusal names are enough for all lines, and for their plan: those of the whole
 * run, where no line can be answered, and those of the longest line. */
static void test_batch_named_budgets(void)
{
    static const char *const given[] = {"--device-memory 64K --host-memory 0",
                                        "--device-memory 8MiB --host-memory 0",
                                        "--device-memory 64K", "--device-memory 250K"};
    CHECK(sh("for n in 4 600 300; do echo '{\"prompt\": \"a\", \"max_new_tokens\": '$n'}'; "
             "done >n.jsonl") == 0);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        CHECK_MSG(sh("run=\"$S generate m --device cpu --prompts n.jsonl %s\"; $run 2>e >o; "
                     "code=$?; cat e; named=$(grep 'of 601 tokens\\|at most 600 of' e | sed -E "
                     "'s/.*; (--.*) would do.*/\\1/; s/ together with / /; "
                     "s/.*at least ([^;]*); raise (--[a-z-]*).*/\\2 \\1/'); echo \"$named\"; "
                     "[ $code = %d ] && \"$S\" plan ${run#*generate } $named && $run $named",
                     given[i], i < 3 ? 2 : 1) == 0,
                  "%s: %s%s", given[i], out, err);
        CHECK_MSG(strstr(out, "\"line\":1,\"text\"") && strstr(out, "\"line\":2,\"text\"") &&
                      strstr(out, "\"line\":3,\"text\""),
                  "%s: %s%s", given[i], out, err);
    }
}

/* Ctrl-C: complete lines are printed, and then unfinished ones. */
static void test_batch_interrupted(void)
{
    int code = sh("{ echo '{\"prompt\": \"a\", \"max_new_tokens\": 900}'; "
                  "for i in 1 2 3; do echo '{\"prompt\": \"b\", \"max_new_tokens\": 3}'; done; } "
                  ">o.jsonl; rm -f o.json; \"$S\" generate m --prompts o.jsonl --sessions 2 "
                  "--ignore-eos --report o.json >lines & pid=$!; "
                  "while ! grep -q '\"line\":4' lines 2>/dev/null && kill -0 $pid; do sleep 0.01; "
                  "done; kill -INT $pid; wait $pid; code=$?; cat lines; exit $code");
    CHECK_MSG(code == 130 && strstr(err, "interrupted"), "%d: %s", code, err);
    char *last = strstr(out, "{\"line\":1,");
    CHECK_MSG(last && strstr(last, "\"finish\":\"interrupted\"") && !strchr(last, '\n')[1], "%s",
              out);
    json_t *report = parse_file("o.json");
    CHECK(number(report, "items_done") == 3 && number(report, "n_generated") == 9);
    json_decref(report);
}

/* Ctrl-C while the line of one answer is printed: the other answer that ended in the same step has
 * its line, too. The first line is longer than the pipe holds, so that the command still prints it
 * when its first byte is here. */
static void test_batch_interrupted_line(void)
{
    const char *const arguments[] = {"spillway", "generate",   "m", "--prompts",
                                     "o.jsonl",  "--sessions", "2", "--ignore-eos",
                                     "--report", "o.json",     NULL};
    int from[2], status;
    size_t n = 0;
    CHECK(sh("awk 'BEGIN { for (; length(id) < 200000;) id = id \"0123456789\"; "
             "print \"{\\\"id\\\":\\\"\" id "
             "\"\\\",\\\"prompt\\\":\\\"a\\\",\\\"max_new_tokens\\\":3}\"; "
             "print \"{\\\"prompt\\\":\\\"b\\\",\\\"max_new_tokens\\\":3}\" }' >o.jsonl; rm -f "
             "o.json") == 0);
    CHECK(pipe2(from, O_CLOEXEC) == 0);
    pid_t pid = start(from[1], arguments);
    close(from[1]);
    for (ssize_t got = 1; got > 0 && n < sizeof out - 1; n += (size_t)got) {
        got = read(from[0], out + n, n ? sizeof out - 1 - n : 1);
        CHECK(got >= 0);
        if (!n)
            check_kill(pid, SIGINT);
    }
    out[n] = 0;
    close(from[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && (WEXITSTATUS(status) == 130 || WEXITSTATUS(status) == 0),
              "status %x", status);
    const char *second = strstr(out, "{\"line\":2,");
    CHECK_MSG(second && strstr(second, "\"finish\":\"length\""), "%s",
              second ? second : "no line of the second prompt");
    json_t *report = parse_file("o.json");
    CHECK(number(report, "items_done") == 2 && number(report, "n_generated") == 6);
    json_decref(report);
}

/* A folder without a tokenizer answers lines of ids with ids. */
static void test_batch_ids(void)
{
    CHECK(sh("rm -rf ids && cp -r m ids && rm ids/tokenizer.json && "
             "echo '{\"tokens\": [1, 5, 7], \"max_new_tokens\": 4}' >i.jsonl") == 0);
    CHECK(sh("\"$S\" generate m --prompts i.jsonl") == 0);
    json_t *with = parse(out);
    CHECK_MSG(sh("\"$S\" generate ids --prompts i.jsonl") == 0, "%s", err);
    json_t *without = parse(out);
    CHECK(json_is_null(json_object_get(without, "text")) && strstr(err, "answers are token ids"));
    CHECK(json_equal(json_object_get(with, "tokens"), json_object_get(without, "tokens")));
    CHECK(
        json_equal(json_object_get(with, "logits_hash"), json_object_get(without, "logits_hash")));
    json_decref(with);
    json_decref(without);
    CHECK(sh("echo '{\"prompt\": \"x\"}' >>i.jsonl; \"$S\" generate ids --prompts i.jsonl") == 1);
    CHECK_MSG(strstr(err, "i.jsonl: line 2: "), "%s", err);
}

/* ---- unusual cases ---- */

/* A context that the model was not made for is refused, or allowed with the option. */
static void test_long_context(void)
{
    CHECK(sh("\"$S\" generate m --token-ids t --ids --context 1100 --max-new-tokens 3") == 2);
    CHECK_MSG(strstr(err, "context of 1100 tokens: the model knows 1024 positions; --allow-long"),
              "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids t --ids --context 1100 --max-new-tokens 3 "
             "--allow-long-context") == 0);
    CHECK_MSG(strstr(err, "1100 tokens is longer than the 1024 positions that the model was made"),
              "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids t --ids --max-new-tokens 2000") == 2);
    CHECK_MSG(strstr(err, "--max-new-tokens: found 2000, expected at most ") &&
                  strstr(err, ": the model was made for 1024 tokens, and the prompt has "),
              "%s", err);
    CHECK(sh("\"$S\" plan m --context 1100 --no-probe") == 2);
    CHECK_MSG(strstr(err, "context of 1100 tokens: the model knows 1024 positions; --allow-long"),
              "%s", err);
    CHECK(sh("\"$S\" plan m --context 1100 --no-probe --allow-long-context") == 0);
}

/* A text that is too long for the model: `summarize` would read it. */
static void test_long_text(void)
{
    static const char *const commands[] = {"generate m --prompt-file book.txt",
                                           "plan m --prompt-file book.txt --no-probe"};
    static const char advice[] = "the model knows only 1024; 'spillway summarize' reads a text of "
                                 "any length";
    CHECK(sh("seq 2000 >book.txt") == 0);
    for (size_t i = 0; i < 2; i++) {
        CHECK(sh("\"$S\" %s", commands[i]) == 2);
        CHECK_MSG(strstr(err, "spillway: book.txt: found ") && strstr(err, advice) &&
                      strstr(err, "the model knows 1024 positions; --allow-long"),
                  "%s", err);
    }
    CHECK(sh("\"$S\" plan m --prompt-file book.txt --no-probe --allow-long-context") == 0);
    CHECK_MSG(!strstr(err, "summarize"), "%s", err);
    CHECK(sh("\"$S\" generate m --prompt \"$(cat book.txt)\"") == 2);
    CHECK_MSG(!strstr(err, "summarize"), "%s", err);
}

/* Logits that are not numbers: the advice is not what the run did already. */
static void test_not_numbers(void)
{
    CHECK(sh("cp -r m nan; printf '%%064d' 0 | tr 0 '\\377' >ff; n=$(stat -c %%s "
             "nan/model.safetensors)\n"
             "dd if=ff of=nan/model.safetensors bs=1 seek=$((n - 64)) conv=notrunc 2>/dev/null") ==
          0);
    CHECK(sh("\"$S\" generate nan --token-ids t --ids --compute bf16") == 1);
    CHECK_MSG(strstr(err, "not numbers (NaN): computing in f32 has more range, or"), "%s", err);
    CHECK(sh("\"$S\" generate nan --token-ids t --ids --compute f32") == 1);
    CHECK_MSG(strstr(err, "not numbers (NaN): the weights are damaged, or too large"), "%s", err);
}

/* One NaN, in the head's row of a token that is never chosen. */
static void test_one_nan(void)
{
    CHECK(sh("cp -r m one; h=$(od -An -tu8 -N8 one/model.safetensors)\n"
             "printf '\\300\\177' | dd of=one/model.safetensors bs=1 seek=$((h + 8 + 95 * 64)) "
             "conv=notrunc 2>/dev/null") == 0);
    CHECK(sh("\"$S\" generate one --token-ids t --ids") == 1);
    CHECK_MSG(strstr(err, "not numbers (NaN)"), "%s", err);
    CHECK(sh("\"$S\" score one --token-ids t") == 1);
    CHECK_MSG(strstr(err, "not numbers (NaN)"), "%s", err);
}

/* Ids without a text in the tokenizer. */
static void test_unnamed_ids(void)
{
    CHECK(sh("cp -r m few; sed -E 's/,\"[^\"]+\":[4-9][0-9]//g' m/tokenizer.json "
             ">few/tokenizer.json") == 0);
    CHECK(sh("\"$S\" generate few --token-ids t --max-new-tokens 40 --temperature 3 "
             "--ignore-eos") == 0);
    CHECK_MSG(strstr(err, " of the 40 new tokens, such as id ") &&
                  strstr(err, "have no text in the tokenizer and are not printed"),
              "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids t --max-new-tokens 40 --temperature 3 "
             "--ignore-eos") == 0);
    CHECK_MSG(!strstr(err, "have no text"), "%s", err);
}

/* ---- runs that are ended from outside ---- */

/* A run whose stdout fails writes its report. */
static void check_reported(const char *name, const char *count)
{
    json_t *report = parse_file(name);
    CHECK(number(report, count) > 0);
    json_decref(report);
    CHECK(sh("rm %s", name) == 0);
}

static void test_broken_pipe(void)
{
    const char *const arguments[] = {"spillway", "generate",  "m",        "--token-ids",
                                     "t",        "--ids",     "--device", "cpu",
                                     "--report", "pipe.json", NULL};
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    close(ends[0]); /* nobody reads */
    pid_t pid = start(ends[1], arguments);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(ends[1]);
    read_file("err", err, sizeof err);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1 && !*err, "%x: %s", status, err);
    check_reported("pipe.json", "n_generated");
    if (access("/dev/full", W_OK) == 0) {
        static const char *const lines[][2] = {
            {"generate m --token-ids t --ids", "n_generated"},
            {"generate m --prompts lines.jsonl --max-new-tokens 3", "n_prompt"},
            {"score m --text hello --json", "n_prompt"},
        };
        CHECK(sh("echo '{\"prompt\": \"a\"}' >lines.jsonl") == 0);
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            CHECK_MSG(sh("\"$S\" %s --report full.json >/dev/full", lines[i][0]) == 1, "%s", err);
            CHECK_MSG(strstr(err, "stdout: No space left"), "%s: %s", lines[i][0], err);
            check_reported("full.json", lines[i][1]);
        }
        CHECK(sh("\"$S\" generate m --token-ids t --ids >/dev/full") == 1);
        CHECK_MSG(strstr(err, "stdout: No space left"), "%s", err);
        CHECK(sh("\"$S\" inspect m >/dev/full") == 1);
        CHECK_MSG(strstr(err, "stdout: No space left"), "%s", err);
        CHECK(sh("\"$S\" generate --help all >/dev/full") == 1); /* more than a buffer holds */
        CHECK_MSG(strstr(err, "stdout: "), "%s", err);
    }
    /* A limit on the size of files also makes a write fail. */
    CHECK(sh("ulimit -f 1; \"$S\" generate m --token-ids t --ids --max-new-tokens 9 --report "
             "x.json") == 1);
    CHECK_MSG(strstr(err, "x.json: File too large"), "%s", err);
    CHECK(sh("{ sleep 0.2; \"$S\" generate --help all; echo $? >code; } | true; cat code") == 0);
    CHECK_MSG(strcmp(out, "1\n") == 0 && !*err, "%s%s", out, err);
    /* If stdout is closed, no opened file may take its place. */
    CHECK(sh("\"$S\" generate m --token-ids t --ids --max-new-tokens 3 --dump-logits c.npy >&-") ==
          1);
    CHECK_MSG(strstr(err, "stdout: Bad file descriptor"), "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids - <&-") == 2);
    CHECK_MSG(strstr(err, "stdin: Bad file descriptor"), "%s", err);
}

/* A file that cannot be written costs neither the saved run nor the report. */
static void test_bad_outputs(void)
{
    /* The name of the logits becomes a folder after the names were checked. */
    CHECK(
        sh("rm -f late.spw x.json; mkfifo late.ids; "
           "{ exec 3>late.ids; mkdir late.npy; echo 1 2 3 >&3; } & \"$S\" generate m --token-ids "
           "late.ids --max-new-tokens 3 --dump-logits late.npy --save late.spw --report x.json") ==
        1);
    CHECK_MSG(strstr(err, "late.npy: found a directory"), "%s", err);
    CHECK(sh("rm late.spw x.json") == 0);
    CHECK(sh("ulimit -f 8; \"$S\" generate m --token-ids t --ids --ignore-eos --max-new-tokens 40 "
             "--dump-logits full.npy --report x.json") == 1);
    const char *message = strstr(err, "full.npy: File too large");
    CHECK_MSG(message && !strstr(message + 1, "full.npy"), "once: %s", err);
    CHECK(sh("rm x.json") == 0);
    /* A saved run that cannot be written costs no report. */
    CHECK(sh("ulimit -f 8; \"$S\" generate m --token-ids t --ids --ignore-eos --max-new-tokens 40 "
             "--save full.spw --report x.json") == 1);
    CHECK_MSG(strstr(err, "full.spw: "), "%s", err);
    CHECK(sh("rm x.json") == 0);
}

/* A progress line says that some of the 30,000 items are done. */
static bool counts_answers(const char *lines)
{
    for (const char *at = lines; (at = strstr(at, "\033[K")); at++) {
        int n = 0, end = 0;
        if (sscanf(at, "\033[K%d/30000 done %n", &n, &end) == 1 && n > 0 && end > 0)
            return true;
    }
    return false;
}

/* Lines that wait take little memory. Sanitizers take more than the command. */
static void check_memory(pid_t pid)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    char path[64], text[4096];
    long long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && kib < 0 && fgets(text, sizeof text, file))
        sscanf(text, "VmHWM: %lld kB", &kib);
    if (file)
        fclose(file);
    CHECK_MSG(kib > 0 && kib < 200000, "%lld KiB", kib);
#else
    (void)pid;
#endif
}

static void test_interrupt(void)
{
    const char *const arguments[] = {"spillway", "generate",   "m",      "--prompts",
                                     "many",     "--progress", "always", NULL};
    int status;
    CHECK(sh("awk 'BEGIN { for (i = 0; i < 30000; i++) "
             "print \"{\\\"tokens\\\":[1,2,\" i %% 90 \"],\\\"max_new_tokens\\\":\" "
             "(i < 8 ? 1 : 900) \",\\\"ignore_eos\\\":true}\" }' >many") == 0);
    int sink = open("/dev/null", O_WRONLY);
    pid_t pid = start(sink, arguments);
    /* Waits for the progress line; a minute is for busy machines. */
    for (int i = 0; i < 600; i++) {
        usleep(100000);
        read_file("err", err, sizeof err);
        if (counts_answers(err) || waitpid(pid, &status, WNOHANG) != 0)
            break;
    }
    check_memory(pid);
    check_kill(pid, SIGINT);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(sink);
    read_file("err", err, sizeof err);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x: %.200s", status, err);
    CHECK_MSG(counts_answers(err), "%.200s", err);
    for (const char *at = strchr(err, '\r'); at; at = strchr(at + 1, '\r')) /* it never wraps */
        CHECK_MSG(strcspn(at + 1, "\r\n") < 80 + strlen("\033[K"), "%.200s", at + 1);
    const char *last = strrchr(err, '\r'); /* the line is removed before the message */
    CHECK_MSG(last && strcmp(last, "\r\033[Kspillway: interrupted\n") == 0, "%.200s",
              last ? last : err);
}

/* ---- real models ---- */

static void test_stories(const char *data)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/models/stories260K/golden.json", data);
    json_t *golden = json_load_file(path, 0, &e);
    if (!golden)
        return;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        const char *prompt = json_string_value(json_object_get(c, "prompt"));
        const char *text = json_string_value(json_object_get(c, "greedy_text"));
        json_t *expected = json_object_get(c, "greedy_ids");
        size_t n_prompt = json_array_size(json_object_get(c, "ids"));
        if (!*prompt)
            continue;
        snprintf(path, sizeof path, "%s/p.txt", folder);
        FILE *file = fopen(path, "w");
        fputs(prompt, file);
        fclose(file);
        CHECK_MSG(sh("\"$S\" generate %s/models/stories260K --prompt-file p.txt "
                     "--max-new-tokens %zu --compute f32 --report r.json",
                     data, json_array_size(expected) - n_prompt) == 0,
                  "%s", err);
        json_t *r = parse_file("r.json"), *tokens = json_object_get(r, "tokens");
        CHECK(json_array_size(tokens) == json_array_size(expected) - n_prompt);
        for (size_t k = 0; k < json_array_size(tokens); k++)
            CHECK(json_equal(json_array_get(tokens, k), json_array_get(expected, n_prompt + k)));
        json_decref(r);
        /* The golden text shows the eos token too. */
        CHECK_MSG(strncmp(text, prompt, strlen(prompt)) == 0 && n_out > 100 &&
                      strncmp(text + strlen(prompt), out, n_out) == 0,
                  "found '%.60s', expected '%.60s'", out, text + strlen(prompt));
    }
    json_decref(golden);
    CHECK(sh("\"$S\" generate %s/models/stories260K --prompt 'Once upon a time' --stop ' was a'",
             data) == 0);
    CHECK_MSG(strcmp(out, ", there") == 0, "'%s'", out);
}

/* The bundled model: what its document says is found again. */
static void test_records(const char *root)
{
    char model[600];
    snprintf(model, sizeof model, "%s/models/records", root);
    if (access(model, R_OK) != 0)
        return;
    CHECK_MSG(sh("\"$S\" inspect %s --json", model) == 0, "%s", err);
    CHECK_MSG(
        sh("\"$S\" generate %s --max-new-tokens 8 --prompt 'The access code of Bergen is 4817."
           "'",
           model) == 0,
        "%s", err);
}

/* A model gives the answer, and the same bits, with room for all of its experts and for a few. */
static void check_mixture(const char *model, const char *small, const char *prompt,
                          const char *expected)
{
    char hash[2][40];
    for (int few = 0; few < 2; few++) {
        CHECK_MSG(sh("\"$S\" generate %s --device cpu --prompt '%s' --max-new-tokens 20 "
                     "--device-memory %s --report r.json",
                     model, prompt, few ? small : "64M") == 0,
                  "%s", err);
        CHECK_MSG(strcmp(out, expected) == 0, "%s: '%s' is not '%s'", model, out, expected);
        json_t *r = parse_file("r.json");
        const char *its = json_string_value(json_object_get(r, "logits_hash"));
        snprintf(hash[few], sizeof hash[few], "%s", its ? its : "none");
        CHECK(!few || number(r, "moved_bytes.host_to_device.counted") > 1 << 20);
        json_decref(r);
    }
    CHECK_MSG(strcmp(hash[0], hash[1]) == 0, "%s: %s, %s", model, hash[0], hash[1]);
}

/* The bundled mixture and what quantize makes of it: each answer has the number of the record that
 * is asked for. */
static void test_records_experts(const char *root)
{
    static const char *const names[] = {"Bergen",  "Kalmora", "Torvik", "Ostdal", "Vinheim",
                                        "Marstad", "Selborg", "Gronby", "Halsund"};
    enum { N = sizeof names / sizeof *names };
    static const char *const small[] = {"4M", "3M", "2M"};
    char models[3][600] = {"", "e8.gguf", "e4.gguf"}, document[1024] = "";
    snprintf(models[0], sizeof models[0], "%s/models/records-experts", root);
    for (int m = 1; m < 3; m++)
        CHECK_MSG(sh("\"$S\" quantize %s %s --type %s", models[0], models[m],
                     m == 1 ? "q8_0" : "q4_0") == 0,
                  "%s", err);
    for (int i = 0; i < N; i++)
        sprintf(document + strlen(document), "%sThe access code of %s is %04d.", i ? " " : "",
                names[i], i * 1117 % 10000);
    for (int i = 0; i < N; i += 4) {
        char prompt[1200], expected[64];
        snprintf(prompt, sizeof prompt, "%s\n\nQ: What is the access code of %s?\nA:", document,
                 names[i]);
        snprintf(expected, sizeof expected, " The access code of %s is %04d.", names[i],
                 i * 1117 % 10000);
        for (int m = 0; m < 3; m++)
            check_mixture(models[m], small[m], prompt, expected);
    }
}

int main(void)
{
    const char *data = getenv("SPW_DATA");
    char root[512];
    if (!command_is_there())
        return CHECK_SKIP;
    CHECK(getcwd(root, sizeof root));
    command_model("generate");
    command_limits();
    test_report();
    test_placement();
    test_small_stack();
    test_disk_plan();
    test_disk_run();
    test_disk_adds();
    test_batch();
    test_choices();
    test_batch_order();
    test_batch_named_budgets();
    test_batch_interrupted();
    test_batch_interrupted_line();
    test_batch_ids();
    test_long_context();
    test_long_text();
    test_not_numbers();
    test_one_nan();
    test_unnamed_ids();
    test_broken_pipe();
    test_bad_outputs();
    test_interrupt();
    if (data)
        test_stories(data);
    test_records(root);
    test_records_experts(root);
    sh("rm -r %s", folder);
    return check_done();
}
