/* `spillway generate`: reports, the disk, batches, and the cases of generate.cases. Run through sh
 * on a tiny model, on stories260K if the shared data is there, and on the bundled model if it is
 * there. Skipped without the command. */
#include "tests/command/cases.h"
#include "tests/command/command_model.h"
#include "tests/command/command_start.h"
#include "tests/command/speech_files.h"

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
    FILE *file = fopen(in_folder("ids"), "w");
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
    CHECK(sh("$S generate m --prompt-file p.txt "
             "--max-new-tokens 300 --ignore-eos --temperature 1 --seed 5 --report r.json "
             "--dump-logits l.npy --device cpu") == 0);
    CHECK_MSG(strstr(err, "the answer was cut off after 300 new tokens"), "%s", err);
    memcpy(text, out, n_out + 1);
    json_t *r = parse_file("r.json");
    check_report(r);
    check_prediction(r);
    check_dump(r, npy, read_file("l.npy", npy, sizeof npy));
    check_streamed(r, text);
    check_score(r, npy);
    json_decref(r);
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
    CHECK(strstr(out, "\ndisk ") && strstr(out, "\nwaterlines "));
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
        {"{\"prompt\": \"Seventh\", \"no_repeat_ngram_size\": 2, \"min_new_tokens\": 9, "
         "\"forced_eos_token_id\": 2, \"suppress_tokens\": [40, 41]}",
         "--prompt Seventh --no-repeat-ngram-size 2 --min-new-tokens 9 --forced-eos-token-id 2 "
         "--suppress-tokens 40,41"},
        {"{\"tokens\": [1], \"forced_bos_token_id\": 50, \"begin_suppress_tokens\": [51], "
         "\"min_length\": 0}",
         "--token-ids t1 --forced-bos-token-id 50 --begin-suppress-tokens 51 --min-length 0"},
        {"{\"prompt\": \"Sixth\", \"presence_penalty\": 1.5, \"frequency_penalty\": -0.5, "
         "\"logit_bias\": {\"40\": 2.5, \"41\": -100}, \"logprobs\": 3}",
         "--prompt Sixth --presence-penalty 1.5 --frequency-penalty -0.5 --logit-bias 40=2.5 "
         "--logit-bias 41=-100 --logprobs 3"},
    };
    enum { N = sizeof cases / sizeof *cases };
    json_t *lines[N];
    FILE *file = fopen(in_folder("b.jsonl"), "w");
    for (int i = 0; i < N; i++)
        fprintf(file, "%s\n%s", cases[i].line, i % 3 ? "" : "\n");
    fclose(file);
    CHECK(sh("echo 1 5 7 >t; echo 1 >t1; \"$S\" generate m --prompts b.jsonl --max-new-tokens 40 "
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

/* Runs a command whose first line is longer than a pipe holds. It gets SIGINT when the first byte
 * of this line is here, so that the command still prints the line. Fills `out`. */
static void interrupt_line(const char *command)
{
    int from[2];
    size_t n = 0;
    CHECK(pipe2(from, O_CLOEXEC) == 0);
    pid_t pid = start(from[1], command);
    close(from[1]);
    for (ssize_t got = 1; got > 0 && n < sizeof out - 1; n += (size_t)got) {
        got = read(from[0], out + n, n ? sizeof out - 1 - n : 1);
        CHECK(got >= 0);
        if (!n)
            check_kill(pid, SIGINT);
    }
    out[n] = 0;
    close(from[0]);
    int status = end_of(pid);
    CHECK_MSG(has_exited(status, 130) || has_exited(status, 0), "status %x", status);
}

/* Ctrl-C while the line of one answer is printed: the other answer that ended in the same step has
 * its line, too. */
static void test_batch_interrupted_line(void)
{
    CHECK(sh("awk 'BEGIN { for (; length(id) < 200000;) id = id \"0123456789\"; "
             "print \"{\\\"id\\\":\\\"\" id "
             "\"\\\",\\\"prompt\\\":\\\"a\\\",\\\"max_new_tokens\\\":3}\"; "
             "print \"{\\\"prompt\\\":\\\"b\\\",\\\"max_new_tokens\\\":3}\" }' >o.jsonl; rm -f "
             "o.json") == 0);
    interrupt_line("generate m --prompts o.jsonl --sessions 2 --ignore-eos --report o.json");
    const char *second = strstr(out, "{\"line\":2,");
    CHECK_MSG(second && strstr(second, "\"finish\":\"length\""), "%s",
              second ? second : "no line of the second prompt");
    json_t *report = parse_file("o.json");
    CHECK(number(report, "items_done") == 2 && number(report, "n_generated") == 6);
    json_decref(report);
}

/* ---- runs that are ended from outside ---- */

static void test_broken_pipe(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    close(ends[0]); /* nobody reads */
    pid_t pid = start(ends[1], "generate m --token-ids t --ids --device cpu --report pipe.json");
    int status = end_of(pid);
    close(ends[1]);
    read_file("err", err, sizeof err);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1 && !*err, "%x: %s", status, err);
    json_t *report = parse_file("pipe.json");
    CHECK(number(report, "n_generated") > 0);
    json_decref(report);
}

/* The line of ids ends also if the run is interrupted. */
static void test_interrupted_ids(void)
{
    char ids[8192];
    size_t n = 0;
    int from[2];
    CHECK(pipe2(from, O_CLOEXEC) == 0);
    pid_t pid = start(from[1], "generate m --token-ids t --ids --ignore-eos --max-new-tokens 900");
    close(from[1]);
    for (ssize_t got = 1; got > 0 && n < sizeof ids; n += (size_t)got) {
        got = read(from[0], ids + n, n ? sizeof ids - n : 1);
        CHECK(got >= 0);
        if (!n)
            check_kill(pid, SIGINT);
    }
    close(from[0]);
    const int status = end_of(pid);
    CHECK_MSG(has_exited(status, 130) || has_exited(status, 0), "status %x", status);
    CHECK(n > 1 && ids[n - 1] == '\n' && ids[n - 2] != '\n');
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
    int status = 0;
    CHECK(sh("awk 'BEGIN { for (i = 0; i < 30000; i++) "
             "print \"{\\\"tokens\\\":[1,2,\" i %% 90 \"],\\\"max_new_tokens\\\":\" "
             "(i < 8 ? 1 : 900) \",\\\"ignore_eos\\\":true}\" }' >many") == 0);
    int sink = open("/dev/null", O_WRONLY);
    pid_t pid = start(sink, "generate m --prompts many --progress always");
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

/* ---- speech ---- */

static bool are_tokens(const json_t *tokens, const json_t *expected)
{
    return json_array_size(tokens) && json_equal(tokens, expected);
}

/* `generate` hears a file: as ids, and as text with a report. The report has all of the answer. */
static json_t *hear(size_t i, const char *begin, const json_t *expected)
{
    static const char command[] =
        "\"$S\" generate $REPOSITORY/tests/golden/speech --input-file w%zu.wav --device cpu "
        "--compute f32 %s %s";
    json_t *id;
    size_t k;
    write_text("begin", begin);
    const char *ids = *begin ? "--token-ids begin" : "", *text = out;
    CHECK_MSG(sh(command, i, ids, "--ids") == 0, "%s", err);
    json_array_foreach((json_t *)(uintptr_t)expected, k, id)
    {
        char *end;
        const long token = strtol(text, &end, 10);
        CHECK_MSG(end > text && token == json_integer_value(id), "answer %zu, token %zu: %ld", i, k,
                  token);
        text = end;
    }
    CHECK_MSG(!text[strspn(text, " \n")], "answer %zu: more than %zu tokens: %s", i, k, text);
    CHECK_MSG(sh(command, i, ids, "--report r.json") == 0, "%s", err);
    json_t *report = parse_file("r.json");
    CHECK_MSG(are_tokens(json_object_get(report, "tokens"), expected), "answer %zu", i);
    json_object_set_new(report, "text", json_string(out));
    return report;
}

/* Lines of a job are answered as `generate` answers the same files, whatever runs beside them. */
static void check_heard_lines(const char *options, json_t *heard)
{
    char *end, *line = out, name[32];
    size_t n = 0;
    CHECK_MSG(sh("\"$S\" generate $REPOSITORY/tests/golden/speech --prompts speech.jsonl "
                 "--device cpu --compute f32 %s",
                 options) == 0,
              "%s: %s", options, err);
    for (; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = 0;
        json_t *answer = parse(line);
        snprintf(name, sizeof name, "%s", text_at(answer, "id"));
        const json_t *expected = json_object_get(heard, name);
        static const char *const same[] = {"text", "tokens", "logits_hash", "finish", "n_prompt"};
        for (size_t i = 0; i < sizeof same / sizeof *same; i++)
            CHECK_MSG(
                json_equal(json_object_get(answer, same[i]), json_object_get(expected, same[i])),
                "%s: %s, %s: %s", options, name, same[i], line);
        json_decref(answer);
    }
    CHECK(n == json_object_size(heard));
}

/* The line of a file whose first window is under way has the tokens of this window. */
static void test_speech_interrupted(void)
{
    write_clip("begun.wav", 40000);
    CHECK(
        sh("cp $REPOSITORY/tests/golden/audio/clip.wav ok.wav && awk 'BEGIN { for (; length(id) < "
           "200000;) id = id \"0123456789\"; "
           "print \"{\\\"id\\\":\\\"\" id \"\\\",\\\"file\\\":\\\"ok.wav\\\"}\"; "
           "print \"{\\\"file\\\":\\\"begun.wav\\\"}\" }' >o.jsonl") == 0);
    interrupt_line(
        "generate $REPOSITORY/tests/golden/speech --prompts o.jsonl --sessions 2 --device cpu");
    const char *second = strstr(out, "{\"line\":2,");
    CHECK_MSG(second && strstr(second, "\"finish\":\"interrupted\"") &&
                  !strstr(second, "\"tokens\":[]"),
              "%s", second ? second : "no line of the second file");
}

/* What transformers hears (tests/golden/make_speech_goldens.py): audio of a window and of several,
 * the language by itself or said, with times and without. */
static void test_speech(void)
{
    static const char *const options[] = {"", "--sessions 1 --threads 1", "--sessions 3",
                                          "--prefill-chunk 16 --threads 2 --kv-dtype f32 "
                                          "--sessions 2"};
    size_t i;
    json_t *answers = json_load_file("tests/golden/speech/answers.json", 0, NULL), *a;
    json_t *heard = json_object();
    char lines[2000] = "", name[32];
    CHECK(json_array_size(answers) == 7);
    json_array_foreach(answers, i, a)
    {
        const json_t *begin = json_object_get(a, "begin");
        const size_t n = (size_t)json_integer_value(json_object_get(a, "n_samples"));
        char ids[64] = "";
        snprintf(name, sizeof name, "w%zu.wav", i);
        write_clip(name, n);
        for (size_t k = 0; k < json_array_size(begin); k++)
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", k ? ", " : "",
                     (int)json_integer_value(json_array_get(begin, k)));
        if (!*ids && json_is_true(json_object_get(a, "times")) && n <= 16000)
            strcpy(ids, "72, 76"); /* the language that is heard: to have times of a short one */
        snprintf(name, sizeof name, "%zu", i);
        json_object_set_new(heard, name, hear(i, ids, json_object_get(a, "tokens")));
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines),
                 "{\"id\": \"%zu\", \"file\": \"w%zu.wav\"%s%s%s}\n", i, i,
                 *ids ? ", \"tokens\": [" : "", ids, *ids ? "]" : "");
    }
    write_text("speech.jsonl", lines);
    for (i = 0; i < sizeof options / sizeof *options; i++)
        check_heard_lines(options[i], heard);
    json_decref(answers);
    json_decref(heard);
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
    run_cases("generate", NULL);
    test_report();
    test_small_stack();
    test_disk_plan();
    test_disk_run();
    test_disk_adds();
    test_batch();
    test_batch_interrupted_line();
    test_broken_pipe();
    test_interrupted_ids();
    test_interrupt();
    test_speech();
    test_speech_interrupted();
    if (data)
        test_stories(data);
    test_records_experts(root);
    sh("rm -r %s", folder);
    return check_done();
}
