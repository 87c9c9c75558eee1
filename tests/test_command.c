/* The spillway command as its users meet it: run through sh on a tiny model (a committed golden
 * model with a tokenizer of bytes), on stories260K where the shared data is, on the bundled model
 * where it is. Skipped without the command. */
#include "tests/command_model.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    CHECK_MSG(j, "%s in: %.200s", e.text, text);
    return j;
}

static json_t *parse_file(const char *name)
{
    static char text[1 << 20];
    read_file(name, text, sizeof text);
    return parse(text);
}

/* A number at "a.b.c". */
static long long number(const json_t *j, const char *path)
{
    char key[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        j = json_object_get(j, key);
        path += n + (path[n] == '.');
    }
    CHECK_MSG(json_is_integer(j), "no number %s", key);
    return json_integer_value(j);
}

/* ---- help and completion ---- */

static const char *const commands[] = {"generate", "chat",     "score",     "plan",
                                       "inspect",  "tokenize", "bench",     "probe",
                                       "cache",    "check-kv", "completion"};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void test_help(void)
{
    CHECK(sh("\"$S\" --version") == 0 && strncmp(out, "spillway 0.", 11) == 0 && !*err);
    CHECK(sh("\"$S\" --help") == 0 && !*err);
    for (int i = 0; i < N_COMMANDS; i++)
        CHECK(strstr(out, commands[i]));
    for (int i = 0; i < N_COMMANDS; i++) {
        CHECK(sh("\"$S\" %s --help", commands[i]) == 0 && !*err);
        CHECK(strncmp(out, "Usage: spillway ", 16) == 0 && strstr(out, "\nExamples:\n"));
        for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
            CHECK_MSG(strlen(line) <= 88, "%s", line);
        CHECK(sh("\"$S\" help %s", commands[i]) == 0 && n_out > 0);
    }
    CHECK(sh("\"$S\"") == 2 && !n_out && strstr(err, "Usage:"));
}

/* Every option that --help shows is completed, and nothing else. */
static void test_completion(void)
{
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static char help[1 << 16];
    for (size_t i = 0; i < 3; i++) {
        CHECK(sh("\"$S\" completion %s | tee %s.completion", shells[i], shells[i]) == 0);
        CHECK(strstr(out, "dump-logits") && strstr(out, "always"));
        if (sh("command -v %s >/dev/null && %s -n %s.completion", shells[i], shells[i],
               shells[i]) != 0)
            CHECK_MSG(sh("command -v %s >/dev/null", shells[i]) != 0, "%s: %s", shells[i], err);
    }
    if (sh("command -v bash") != 0)
        return;
    CHECK(sh("bash -c '. ./bash.completion; "
             "COMP_WORDS=(spillway gen); COMP_CWORD=1; _spillway; echo \"${COMPREPLY[@]}\"'") == 0);
    CHECK_MSG(strcmp(out, "generate\n") == 0, "%s", out);
    CHECK(sh("bash -c '. ./bash.completion; COMP_WORDS=(spillway generate m --kv-dtype b); "
             "COMP_CWORD=4; _spillway; echo \"${COMPREPLY[@]}\"'") == 0);
    CHECK_MSG(strcmp(out, "bf16\n") == 0, "%s", out);
    /* --io is a choice here and a flag there. */
    CHECK(sh("bash -c '. ./bash.completion; COMP_WORDS=(spillway generate m --io u); COMP_CWORD=4; "
             "_spillway; echo \"${COMPREPLY[@]}\"; COMP_WORDS=(spillway bench m --io --repe); "
             "COMP_CWORD=4; _spillway; echo \"${COMPREPLY[@]}\"'") == 0);
    CHECK_MSG(strcmp(out, "uring\n--repeat\n") == 0, "%s", out);
    /* --name=value is three words to bash; a name with spaces is one. */
    CHECK(sh("bash -c '. ./bash.completion; COMP_WORDS=(spillway generate m --device = cu); "
             "COMP_CWORD=5; _spillway; echo \"${COMPREPLY[@]}\"; COMP_WORDS=(spillway generate m "
             "--device =); COMP_CWORD=4; _spillway; echo \"${COMPREPLY[@]}\"'") == 0);
    CHECK_MSG(strcmp(out, "cuda\nauto cpu cuda\n") == 0, "%s", out);
    CHECK(sh("mkdir -p 'two words'; bash -c '. ./bash.completion; COMP_WORDS=(spillway generate "
             "two); "
             "COMP_CWORD=2; _spillway; echo ${#COMPREPLY[@]} \"${COMPREPLY[0]}\"'") == 0);
    CHECK_MSG(strcmp(out, "1 two words\n") == 0, "%s", out);
    for (int i = 0; i < N_COMMANDS; i++) {
        CHECK(sh("\"$S\" %s --help | sed -n 's/^  \\(--[a-z-]*\\).*/\\1/p'", commands[i]) == 0);
        memcpy(help, out, n_out + 1);
        CHECK(sh("bash -c '. ./bash.completion; COMP_WORDS=(spillway %s m --); COMP_CWORD=3; "
                 "_spillway; printf \"%%s\\n\" \"${COMPREPLY[@]}\" | grep -v help; true'",
                 commands[i]) == 0);
        CHECK_MSG(strcmp(out, help) == 0 || (!*help && strcmp(out, "\n") == 0),
                  "%s: %s instead of %s", commands[i], out, help);
    }
}

/* ---- what is refused ---- */

static void test_refusals(void)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"bogus", "unknown command 'bogus'"},
        {"genrate m", "did you mean 'generate'"},
        {"generate", "found no MODEL"},
        {"generate m", "expected --prompt, --prompt-file, --token-ids or --prompts"},
        {"generate m other --prompt x", "found 'other' after 'm'"},
        {"generate m --promt x", "did you mean --prompt?"},
        {"generate m --qqqq x", "unknown option --qqqq"},
        {"generate m -n 4 --prompt x", "options are written --name"},
        {"generate m --tensors --prompt x", "--tensors is no option of 'generate'"},
        {"generate m --prompt", "--prompt: found no value, expected TEXT"},
        {"generate m --ignore-eos=yes --prompt x", "--ignore-eos: found the value 'yes'"},
        {"generate m --prompt ''", "found an empty text"},
        {"generate m --prompt \"$(printf 'a\\377b')\"", "0xff at offset 1"},
        {"generate m --prompt x --prompt-file m", "found both --prompt and --prompt-file"},
        {"generate m --prompt-file missing", "missing: No such file"},
        {"generate m --prompt-file m", "m: Is a directory"},
        {"generate m --prompt-file /dev/null", "/dev/null: found an empty text"},
        {"generate missing --prompt x", "missing/config.json"},
        {"generate m/config.json --prompt x", "m/config.json: found a file, expected a Hugging"},
        {"generate lfs1 --prompt x", "lfs1/model.safetensors: found a git-lfs pointer, expected"},
        {"generate lfs2 --prompt x", "lfs2/tokenizer.json: found a git-lfs pointer, expected"},
        {"plan lfs3 --context 9", "lfs3/config.json: found a git-lfs pointer, expected"},
        {"generate m --prompt x --max-new-tokens -1", "--max-new-tokens: found '-1'"},
        {"generate m --prompt x --max-new-tokens 1e3", "--max-new-tokens: found '1e3'"},
        {"generate m --prompt x --max-new-tokens 99999999999999999999", "--max-new-tokens: found"},
        {"generate m --prompt x --max-new-tokens ''", "--max-new-tokens: found ''"},
        {"generate m --prompt x --temperature hot", "--temperature: found 'hot'"},
        {"generate m --prompt x --temperature inf", "--temperature: found 'inf'"},
        {"generate m --prompt x --top-p 1.5",
         "--top-p: found '1.5', expected a number from 0 to 1"},
        {"generate m --prompt x --device-memory 12Q", "--device-memory: found '12Q'"},
        {"generate m --prompt x --device-memory -1", "--device-memory: found '-1'"},
        {"generate m --prompt x --device-memory 9999999TiB", "--device-memory: found '9999999TiB'"},
        {"generate m --prompt x --device-memory 1.5.5G", "--device-memory: found '1.5.5G'"},
        {"generate m --prompt x --device-memory 1000", "device memory: 1000 given"},
        {"generate m --prompt x --device-memory 0", "device memory: 0 given"},
        {"generate m --prompt x --disk-memory 1GiB", "no disk; give --disk DIR"},
        {"generate m --prompt x --disk-write-limit 1GiB", "no disk; give --disk DIR"},
        {"plan m --context 9 --disk . --disk-memory 1GiB --disk-write-limit 0",
         "1073741824 bytes given, but --disk-write-limit 0"},
        {"inspect m --disk . --disk-memory 1GiB --disk-write-limit 0",
         "1073741824 bytes given, but --disk-write-limit 0"},
        {"inspect m --disk-memory 1GiB", "no disk; give --disk DIR"},
        {"generate m --prompt x --disk missing", "disk directory missing: No such file"},
        {"score m --text xy --disk m/config.json", "m/config.json: Not a directory"},
        {"generate m --prompt x --disk /proc", "disk directory /proc: "},
        {"plan m --context 9 --disk . --disk-memory 1000000TiB", "has only"},
        {"plan m --context 9 --disk . --disk-memory 2.5.1", "--disk-memory: found '2.5.1'"},
        {"plan m --context 9 --disk . --disk-write-limit x", "--disk-write-limit: found 'x'"},
        {"bench m --contexts 9 --disk missing", "disk directory missing: No such file"},
        {"generate m --prompt x --io fast", "--io: found 'fast', expected auto, uring or threads"},
        {"generate m --prompt x --kv-dtype f64", "--kv-dtype: found 'f64', expected auto, f32"},
        {"generate m --prompt x --device tpu", "--device: found 'tpu', expected auto, cpu or cuda"},
        {"generate m --prompt x --device cuda:", "--device: found 'cuda:', expected the number"},
        {"generate m --prompt x --device cuda:9999", "device cuda"},
        {"generate m --prompt x --threads 0", "--threads: found '0'"},
        {"generate m --prompt x --context 100 --max-new-tokens 100", "expected at least 101"},
        {"generate m --prompt x --context 99999", "1024"},
        {"generate yarn --prompt x --context 2049", "the model knows 2048 positions"},
        {"generate m --prompt x --sessions 2", "--sessions: found without --prompts"},
        {"generate m --prompt x --stop ''", "--stop: found an empty text"},
        {"generate m --prompt x --stop \"$(printf '\\303')\"", "--stop: text: found byte 0xc3"},
        {"generate m --prompt x --report no/such/r.json", "--report: no/such/r.json"},
        {"generate m --prompt x --dump-logits no/such/l.npy", "--dump-logits: no/such/l.npy"},
        {"generate m --prompt x --report -", "--report: found -, expected a file"},
        {"generate m --prompt x --save -", "--save: found -, expected a file"},
        {"generate m --prompt x --report m", "--report: m: found a directory, expected a file"},
        {"score m --text xy --report ''", "--report: found an empty name, expected a file"},
        {"generate m --prompt x --dump-logits .", "--dump-logits: .: found a directory"},
        {"generate m --prompt x --report a --dump-logits a",
         "--report and --dump-logits: found a for both, expected two files"},
        {"generate m --prompt x --save a --report a", "--save and --report: found a for both"},
        {"generate fewer --prompt x",
         "tensor model.layers.2.input_layernorm.weight: found it, but config.json (model_type "
         "llama, 2 layers) does not call for it"},
        {"plan unbiased --context 9", "tensor model.layers.0.mlp.down_proj.bias: found it, but"},
        {"generate m --prompt x --report $(printf '%0300d' 7)", "File name too long"},
        {"generate m --prompt x --progress loud", "--progress: found 'loud'"},
        {"generate m --token-ids bad1", "bad1: byte 4: found 'x', expected token ids"},
        {"generate m --token-ids bad2", "bad2: token 2: found id 96, expected 0 to 95"},
        {"generate m --token-ids bad3", "bad3: byte 2: found '-1'"},
        {"generate m --token-ids /dev/null", "/dev/null: found no token ids"},
        {"generate m --prompts l1", "l1: line 2: found no JSON"},
        {"generate m --prompts l2", "l2: line 1: found neither, expected one of"},
        {"generate m --prompts l3", "l3: line 1: found the unknown key \"promt\""},
        {"generate m --prompts l4", "l4: line 1: \"seed\": found another kind"},
        {"generate m --prompts l5", "l5: line 1: token 1: found id 500, expected 0 to 95"},
        {"generate m --prompts l6", "l6: line 1: top_p: found 2"},
        {"generate m --prompts l7", "l7: line 1: \"prompt\": found an empty text"},
        {"generate m --prompts l8", "l8: line 3: \"stop\""},
        {"generate m --prompts /dev/null", "/dev/null: found no lines"},
        {"generate m --prompts l9 --dump-logits l.npy", "found both --prompts and --dump-logits"},
        {"generate m --ids --stop x --prompt x", "found both --ids and --stop"},
        {"score m", "expected --text, --text-file or --token-ids"},
        {"score m --text x", "found one token"},
        {"plan m --context 0", "--context: found '0'"},
        {"plan m --context 1000 --device-memory 1000", "device memory: 1000 given"},
        {"plan m --prompt x --prompt-tokens 9", "found both --prompt and --prompt-tokens"},
        {"generate m --prompt-tokens 9", "--prompt-tokens is no option of 'generate'"},
        {"tokenize m --text x --decode", "--decode: found --text, expected --token-ids"},
        {"tokenize m --token-ids bad2", "--token-ids: found without --decode"},
        {"tokenize m --token-ids bad2 --decode", "bad2: token 2: found id 96"},
        {"tokenize missing --text x", "missing/tokenizer.json"},
        {"inspect missing", "missing/config.json"},
        {"inspect", "found neither MODEL nor --topology"},
        {"inspect m --topology", "--topology: found with m"},
        {"generate m --prompt --seed 2", "--prompt: found the option --seed, expected TEXT"},
        {"inspect --topology --tensors", "--topology: found with --tensors"},
        {"inspect --topology --kv-dtype f16", "--topology: found with --kv-dtype"},
        {"inspect m --threads 2", "--threads: found without --topology"},
        {"inspect --topology --threads 2000 --device cpu", "threads: found 2000"},
        {"bench m --contexts 1,,2", "--contexts: found ''"},
        {"bench m --random-tokens --prompt-file x", "found both --random-tokens and --prompt-file"},
        {"bench m --budgets 1MiB --device-memory 1MiB", "found both --budgets and --device-memory"},
        {"bench m --io", "--io: found no --disk"},
        {"bench m --io --disk missing", "missing: No such file"},
        {"bench m --io --disk . --disk-memory 1MiB", "expected at least 16777216"},
        {"bench m --prefix", "--prefix: found no --prefix-cache"},
        {"bench m --prefix --prefix-cache missing", "--prefix-cache: missing: No such file"},
        {"bench m --prefix --prefix-cache . --contexts 127", "--contexts: found less than the 128"},
        {"bench m --prefix --io", "found both --io and --prefix"},
        {"bench m --prefix-cache .", "--prefix-cache: found without --prefix"},
        {"probe missing", "missing: No such file"},
        {"probe m/config.json", "m/config.json: found a file, expected a directory"},
        {"probe /proc", "/proc"},
        {"probe m m", "found 'm' after 'm'"},
        {"probe --threads 0", "--threads: found '0'"},
        {"cache", "found no ls|verify|prune DIR"},
        {"cache ls", "found no ls|verify|prune DIR"},
        {"cache ls missing", "prefix cache: missing: No such file"},
        {"cache ls m/config.json", "m/config.json: Not a directory"},
        {"cache list m", "cache: found 'list', expected ls, verify or prune"},
        {"cache prune m", "cache prune: found no --size"},
        {"cache ls m --size 1", "--size: found with ls"},
        {"cache ls m m", "found 'm' after 'm'"},
        {"completion tcsh", "found 'tcsh', expected bash, zsh or fish"},
    };
    CHECK(sh("echo '1 2 x' >bad1; echo 1,96 >bad2; echo '1 -1' >bad3\n"
             "printf '{\"prompt\":\"a\"}\\nnonsense\\n' >l1; echo '{\"seed\":1}' >l2\n"
             "echo '{\"promt\":\"a\",\"prompt\":\"a\"}' >l3\n"
             "echo '{\"prompt\":\"a\",\"seed\":\"x\"}' >l4; echo '{\"tokens\":[500]}' >l5\n"
             "echo '{\"prompt\":\"a\",\"top_p\":2}' >l6; echo '{\"prompt\":\"\"}' >l7\n"
             "printf '{\"prompt\":\"a\"}\\n\\n{\"prompt\":\"b\",\"stop\":[1]}\\n' >l8\n"
             "echo '{\"prompt\":\"a\"}' >l9") == 0);
    CHECK(sh("cp -r m fewer && sed -i 's/_layers\": 3/_layers\": 2/' fewer/config.json") == 0);
    CHECK(sh("for i in 1 2 3; do cp -r m lfs$i; done; for f in lfs1/model.safetensors "
             "lfs2/tokenizer.json lfs3/config.json; do printf 'version "
             "https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 9\\n' >$f; done") == 0);
    CHECK(
        sh("cp -r m yarn && sed -i 's/\"rope_theta\"/\"rope_scaling\": {\"type\": \"yarn\", "
           "\"factor\": 2}, &/' yarn/config.json && \"$S\" plan yarn --context 2048 --no-probe") ==
        0);
    char *golden = realpath("tests/golden/llama_biases", NULL);
    CHECK(sh("cp -r %s unbiased && chmod -R u+w unbiased && "
             "sed -i 's/\"mlp_bias\": true/\"mlp_bias\": false/' unbiased/config.json",
             golden) == 0);
    free(golden);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = sh("\"$S\" %s", cases[i].line);
        /* One line, behind the note where something was measured first. */
        const bool noted = strncmp(err, "spillway: measuring the drive", 29) == 0;
        const char *text = noted ? strchr(err, '\n') + 1 : err, *end = strchr(text, '\n');
        CHECK_MSG(code == 2 && n_out == 0, "%s: exit %d, %zu bytes on stdout", cases[i].line, code,
                  n_out);
        CHECK_MSG(strncmp(text, "spillway: ", 10) == 0 && end && !end[1] &&
                      strstr(text, cases[i].says),
                  "%s: %s", cases[i].line, err);
    }
    CHECK(sh("ls *.json *.npy 2>/dev/null") != 0 && !n_out);        /* nothing half-written */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* a second becomes many */
    CHECK(sh("ulimit -v 6000000; \"$S\" tokenize m --text-file /dev/zero") == 2);
    CHECK_MSG(strstr(err, "/dev/zero: found 1 GiB or more"), "%s", err);
#endif
}

/* A plan that is refused says so as JSON too, with what would do. */
static void test_refused_plan(void)
{
    CHECK(sh("\"$S\" plan m --context 1000 --device cpu --device-memory 1000 --json") == 2);
    json_t *j = parse(out);
    const char *error = json_string_value(json_object_get(j, "error"));
    CHECK(error && strstr(error, "device memory: 1000 given") && strstr(err, error));
    long long least = number(j, "smallest_bytes.device");
    json_decref(j);
    CHECK(sh("\"$S\" plan m --context 1000 --device cpu --no-probe --device-memory %lld --json",
             least) == 0);
    CHECK(sh("\"$S\" plan m --context 1000 --device cpu --no-probe --device-memory %lld --json",
             least - 1) == 2);
    json_decref(parse(out));
    CHECK(sh("\"$S\" plan m --context 9 --disk . --disk-memory 1000000TiB --json") == 2);
    j = parse(out);
    CHECK(json_is_null(json_object_get(j, "smallest_bytes")));
    json_decref(j);
}

/* ---- generation ---- */

static void check_moved(const json_t *report)
{
    const char *link;
    json_t *value;
    json_t *moved = json_object_get(report, "moved_bytes");
    CHECK(json_object_size(moved) == 4);
    json_object_foreach(moved, link, value)
        CHECK_MSG(number(value, "counted") == number(value, "predicted"), "%s", link);
}

static void test_report(void)
{
    static const char *const keys[] = {
        "model",      "backend",       "n_prompt",        "n_generated",
        "tokens",     "logits_hash",   "prefill_seconds", "decode_seconds",
        "peak_bytes", "budget_bytes",  "moved_bytes",     "unhidden_wait_seconds",
        "waterlines", "ladder_events", "finish",          "unhidden_wait_seconds_by_layer"};
    static char text[1 << 16];
    CHECK(sh("printf 'TheStartOfSomething' >p.txt; \"$S\" generate m --prompt-file p.txt "
             "--max-new-tokens 300 --ignore-eos --temperature 1 --seed 5 --report r.json "
             "--dump-logits l.npy --device cpu") == 0);
    CHECK_MSG(strstr(err, "the answer was cut off after 300 new tokens"), "%s", err);
    memcpy(text, out, n_out + 1);
    CHECK(sh("\"$S\" generate m --prompt x --max-new-tokens 1") == 0);
    CHECK_MSG(strncmp(err, "spillway: on c", 14) == 0, "auto says which: %s", err);
    json_t *r = parse_file("r.json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_MSG(json_object_get(r, keys[i]), "%s", keys[i]);
    CHECK(number(r, "n_prompt") == 19 && number(r, "n_generated") == 300);
    CHECK(json_array_size(json_object_get(r, "tokens")) == 300);
    CHECK(number(r, "waterlines.n_tokens") == 318);
    CHECK(number(r, "peak_bytes.device") <= number(r, "budget_bytes.device"));
    CHECK(number(r, "peak_bytes.disk") == 0);
    check_moved(r);
    double predicted = json_real_value(json_object_get(r, "predicted_step_seconds"));
    double measured = json_real_value(json_object_get(r, "measured_step_seconds"));
    CHECK_MSG(predicted > 0 && predicted < measured, "%g %g", predicted, measured); /* a bound */
    CHECK(fabs(measured * 299 - json_real_value(json_object_get(r, "decode_seconds"))) < 1e-6);
    json_t *waits = json_object_get(r, "unhidden_wait_seconds_by_layer"), *wait;
    double all = json_real_value(json_object_get(r, "unhidden_wait_seconds")), waited = 0;
    size_t layer;
    json_array_foreach(waits, layer, wait) waited += json_real_value(wait);
    CHECK(json_array_size(waits) > 0 && waited <= all * (1 + 1e-9));

    /* The dump is what was hashed: [300, 96] float32 behind a header of 128 bytes. */
    static char npy[300 * 96 * 4 + 200];
    char hash[32];
    size_t n = read_file("l.npy", npy, sizeof npy);
    CHECK(n == 128 + 300 * 96 * 4 && memcmp(npy, "\x93NUMPY\x01\x00\x76\x00", 10) == 0);
    CHECK(strstr(npy + 10, "'descr': '<f4', 'fortran_order': False, 'shape': (300, 96)"));
    CHECK(npy[127] == '\n');
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(npy + 128, n - 128));
    CHECK(strcmp(hash, json_string_value(json_object_get(r, "logits_hash"))) == 0);

    /* The text that was streamed is the text of all tokens, less the prompt. */
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

    /* What the dumped logits say of the tokens, score must say too. */
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
    json_decref(r);
}

/* Same seed, same text, wherever the bytes lie; another seed, another text. */
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

/* At the smallest device and host memory the cache lies on disk; a page less of that is refused by
 * the number that would do, and so is a byte less of writes. */
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
    p = plan_on_disk(device, "--host-memory 64MiB"); /* what the host may hold, the disk need not */
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
        snprintf(says, sizeof says, " writes up to %lld;", writes);
        CHECK_MSG(strstr(err, says), "%s", err);
    }
}

/* A run under these budgets says the same as one without, and its report tells of the disk. */
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

/* A disk that is too small for the KV takes nothing from the host, where that KV has room. */
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
    CHECK(!json_array_size(json_object_get(with, "ladder_events")));
    CHECK(number(with, "waterlines.host_end") > 0 && number(with, "waterlines.disk_end") == 0);
    json_decref(without);
    json_decref(with);
    json_decref(plan);
}

/* Lines of a batch are what single runs give, byte for byte. */
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
    for (int i = 0; i < N && line; i++, line = strtok(NULL, "\n")) { /* as they end */
        json_t *answer = parse(line);
        long long index = (long long)number(answer, "index");
        CHECK(index >= 0 && index < N && !lines[index]);
        lines[index < 0 || index >= N ? 0 : index] = answer;
    }
    CHECK(!line);
    json_t *batch = parse_file("b.json");
    CHECK(json_array_size(json_object_get(batch, "requests")) == N);
    check_moved(batch);
    for (int i = 0; i < N; i++) {
        const char *max = strstr(cases[i].options, "--max-new") ? "" : "--max-new-tokens 40";
        CHECK_MSG(sh("\"$S\" generate m %s %s --report s.json", cases[i].options, max) == 0, "%s",
                  err);
        json_t *single = parse_file("s.json");
        CHECK(number(lines[i], "index") == i);
        CHECK(strcmp(out, json_string_value(json_object_get(lines[i], "text"))) == 0);
        static const char *const same[] = {"tokens", "logits_hash", "finish", "n_prompt"};
        for (size_t k = 0; k < sizeof same / sizeof *same; k++)
            CHECK_MSG(
                json_equal(json_object_get(lines[i], same[k]), json_object_get(single, same[k])),
                "line %d: %s", i, same[k]);
        json_decref(single);
    }
    CHECK(number(json_object_get(lines[2], "id"), "k") == 1);
    for (int i = 0; i < N; i++)
        json_decref(lines[i]);
    json_decref(batch);
}

/* A sweep that is ended has written and printed the runs that were complete. */
static void test_bench_ended(void)
{
    CHECK(sh("\"$S\" bench m --device cpu --contexts 20,30 --repeat 1000 --decode-tokens 2 "
             "--report ended.json >ended.txt & p=$!; i=0; while [ $i -lt 900 ] && "
             "! grep -q '\"runs\": 2' ended.json 2>/dev/null; do sleep 0.1; i=$((i + 1)); done; "
             "kill $p; wait $p") == 128 + SIGTERM);
    CHECK(sh("cat ended.json") == 0);
    json_t *j = parse(out);
    CHECK(number(j, "repeat") == 1000 && json_array_size(json_object_get(j, "cases")) == 2);
    CHECK(number(json_array_get(json_object_get(j, "cases"), 0), "runs") >= 2);
    json_decref(j);
    CHECK(sh("grep -c 'of peak\\|^ *[23]0  *all' ended.txt") == 0 && atoi(out) == 3);
}

/* Answers come as they end; one text that is too long is named, and the others go on. */
static void test_batch_order(void)
{
    CHECK(sh("{ echo '{\"prompt\": \"a\", \"max_new_tokens\": 300, \"id\": \"long\"}'; "
             "for i in 1 2 3; do echo '{\"prompt\": \"b\", \"max_new_tokens\": 3}'; done; } "
             ">o.jsonl") == 0);
    CHECK(sh("\"$S\" generate m --prompts o.jsonl --sessions 2 --ignore-eos | sed 's/,.*//'") == 0);
    CHECK_MSG(strcmp(out, "{\"index\":1\n{\"index\":2\n{\"index\":3\n{\"index\":0\n") == 0, "%s",
              out);
    /* Too long for --context, for the model, and for memory. */
    static const char *const limits[] = {"--context 100", "", "--on-oom fail --device-memory %lld"};
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
        CHECK_MSG(code == 1 && strstr(err, "o.jsonl: line 1 (id \"long\"): 1 prompt tokens and") &&
                      strstr(err, "1 of 4 lines were not answered"),
                  "%s: %d: %s", options, code, err);
        CHECK_MSG(strstr(out, "{\"index\":0,\"id\":\"long\",\"error\":") == out, "%s", out);
        CHECK(strstr(out, "{\"index\":3,"));
        json_t *report = parse_file("o.json"), *requests = json_object_get(report, "requests");
        CHECK(json_array_size(requests) == 4 &&
              json_object_get(json_array_get(requests, 0), "error"));
        CHECK(number(json_array_get(requests, 3), "n_generated") == 3);
        json_decref(report);
        if (i == 1) { /* what the short ones take */
            CHECK(sh("\"$S\" plan m --context 4 --on-oom fail --json --device cpu") == 0);
            json_t *plan = parse(out);
            least = (long long)number(plan, "smallest_bytes.device");
            json_decref(plan);
        }
    }
    CHECK(sh("\"$S\" generate m --prompts o.jsonl --context 2") == 2 && !n_out);
}

/* Ctrl-C: lines that had ended are out, and what was begun comes with the report. */
static void test_batch_interrupted(void)
{
    int code = sh("{ echo '{\"prompt\": \"a\", \"max_new_tokens\": 900}'; "
                  "for i in 1 2 3; do echo '{\"prompt\": \"b\", \"max_new_tokens\": 3}'; done; } "
                  ">o.jsonl; rm -f o.json; \"$S\" generate m --prompts o.jsonl --sessions 2 "
                  "--ignore-eos --report o.json >lines & pid=$!; "
                  "while ! grep -q '\"index\":3' lines 2>/dev/null && kill -0 $pid; do sleep 0.01; "
                  "done; kill -INT $pid; wait $pid; code=$?; cat lines; exit $code");
    CHECK_MSG(code == 130 && strstr(err, "interrupted") && strstr(err, "o.json has the"), "%d: %s",
              code, err);
    char *last = strstr(out, "{\"index\":0,");
    CHECK_MSG(last && strstr(last, "\"finish\":\"interrupted\"") && !strchr(last, '\n')[1], "%s",
              out);
    json_t *report = parse_file("o.json"), *requests = json_object_get(report, "requests");
    CHECK(json_array_size(requests) == 4 && number(json_array_get(requests, 0), "n_generated") > 3);
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
    CHECK(json_is_null(json_object_get(without, "text")) && strstr(err, "token ids are printed"));
    CHECK(json_equal(json_object_get(with, "tokens"), json_object_get(without, "tokens")));
    CHECK(
        json_equal(json_object_get(with, "logits_hash"), json_object_get(without, "logits_hash")));
    json_decref(with);
    json_decref(without);
    CHECK(sh("echo '{\"prompt\": \"x\"}' >>i.jsonl; \"$S\" generate ids --prompts i.jsonl") == 2);
    CHECK_MSG(strstr(err, "i.jsonl: line 2: \"prompt\": the model has no tokenizer.json"), "%s",
              err);
}

/* ---- the other commands ---- */

static void test_tools(void)
{
    CHECK(sh("\"$S\" tokenize m --text 'a!\"'") == 0 && strcmp(out, "64 0 1\n") == 0);
    CHECK(sh("printf 'a!' | \"$S\" tokenize m --text-file - --json") == 0);
    json_t *j = parse(out);
    CHECK(number(j, "n_tokens") == 2 && json_array_size(json_object_get(j, "tokens")) == 2);
    json_decref(j);
    CHECK(sh("echo '[64, 0]' | \"$S\" tokenize m --decode --token-ids -") == 0);
    CHECK(strcmp(out, "a!") == 0);
    CHECK(sh("\"$S\" inspect m --json --tensors") == 0);
    j = parse(out);
    CHECK(number(j, "n_layers") == 3 && number(j, "vocab") == 96 && number(j, "n_kv_heads") == 2);
    CHECK(number(j, "kv_bytes_per_token") == 3 * 2 * 2 * 8 * 2); /* layers, K V, heads, dim, bf16 */
    CHECK(number(j, "tokenizer.vocab") == 96);
    CHECK((long long)json_array_size(json_object_get(j, "tensors")) == number(j, "n_tensors"));
    json_decref(j);
    CHECK(!*err && sh("\"$S\" inspect unbiased") == 0 && strstr(out, "positions"));
    CHECK_MSG(strstr(err, "spillway: this folder cannot be run: ") && strstr(err, "_proj.bias"),
              "%s", err);
    /* A path need not be UTF-8, and what was computed is not lost by that. */
    CHECK(sh("ln -s m \"$(printf 'odd\\377')\"; for c in 'plan --context 9 --no-probe' inspect "
             "'score --text abc' probe; do set -- $c; c=$1; shift; "
             "\"$S\" $c \"$(printf 'odd\\377')\" \"$@\" --json || exit 9; done >odd") == 0);
    CHECK_MSG(sh("grep -cE '\"(model|directory)\": \".*odd[?]' odd") == 0 && atoi(out) == 4, "%s",
              out);
    CHECK(sh("\"$S\" generate \"$(printf 'odd\\377')\" --prompt a --max-new-tokens 2 --report "
             "o.json") == 0);
    j = parse_file("o.json");
    CHECK(strcmp(json_string_value(json_object_get(j, "model")), "odd?") == 0);
    json_decref(j);
    CHECK(sh("mv m/tokenizer.json .; \"$S\" inspect m") == 0 && strstr(out, "tokenizer   none"));
    CHECK(sh("\"$S\" generate m --token-ids t --ids --max-new-tokens 3") == 0);
    CHECK_MSG(strspn(out, "0123456789 \n") == n_out && n_out > 5, "%s", out);
    char ids[64];
    snprintf(ids, sizeof ids, "%.60s", out);
    /* Without being asked for ids it says that it prints them; text that is asked for is refused.
     */
    CHECK(sh("\"$S\" generate m --token-ids t --max-new-tokens 3 --report i.json") == 0);
    CHECK_MSG(strcmp(out, ids) == 0 && strstr(err, "tokenizer.json: no such file"), "%s%s", out,
              err);
    j = parse_file("i.json");
    CHECK(number(j, "n_generated") == (long long)json_array_size(json_object_get(j, "tokens")));
    json_decref(j);
    CHECK(sh("\"$S\" generate m --token-ids t --stop x --max-new-tokens 3") == 2 && !n_out);
    CHECK(sh("\"$S\" generate missing --token-ids t") == 2 && !n_out && !strstr(err, "ids"));
    CHECK(sh("mv tokenizer.json m") == 0);
    CHECK(sh("\"$S\" plan m --context 1000 --device-memory 1MiB") == 0 && strstr(out, "smallest") &&
          strstr(out, "at most"));
    CHECK(sh("\"$S\" plan m --context 1000 --json") == 0);
    j = parse(out);
    const json_t *step = json_object_get(j, "predicted_step");
    double rate = json_real_value(
        json_object_get(json_object_get(j, "predicted_tokens_per_second"), "decode"));
    double seconds = json_real_value(json_object_get(step, "seconds"));
    CHECK(seconds > 0 && fabs(rate * seconds - 1) < 1e-9);
    CHECK(json_is_string(json_object_get(step, "bottleneck")));
    json_decref(j);
    CHECK(sh("\"$S\" bench m --contexts 20 --budgets 0,300K --repeat 2 --decode-tokens 4 "
             "--csv b.csv") == 0);
    CHECK_MSG(strstr(out, "of peak") && strstr(out, "300.00 KiB"), "%s %s", out, err);
    CHECK(sh("awk -F, '{print NF}' b.csv | sort -u | wc -l; wc -l <b.csv") == 0);
    CHECK_MSG(strcmp(out, "1\n3\n") == 0, "%s", out);
    test_bench_ended();
}

/* What inspect says of the cache is what a run does, and options win over the model's files. */
static void test_cache_policy(void)
{
    CHECK(sh("cp -r m q && echo '{\"cache_implementation\": \"quantized\"}' "
             ">q/generation_config.json") == 0);
    CHECK(sh("\"$S\" inspect q --disk . --device cpu --json") == 0);
    json_t *j = parse(out), *cache = json_object_get(j, "cache");
    json_t *range = json_array_get(json_object_get(cache, "layers"), 0);
    CHECK(json_array_size(json_object_get(cache, "layers")) == 1);
    CHECK(number(range, "first") == 0 && number(range, "last") == 2);
    CHECK(!strcmp(json_string_value(json_object_get(range, "kind")), "full"));
    CHECK(json_is_null(json_object_get(range, "window")));
    CHECK(!strcmp(json_string_value(json_object_get(range, "kv_dtype")), "bf16"));
    json_t *tiers = json_pack("[s,s,s]", "device", "host", "disk");
    CHECK(json_equal(json_object_get(range, "tiers"), tiers));
    CHECK(!strcmp(json_string_value(json_object_get(cache, "asked")), "quantized"));
    json_decref(tiers);
    json_decref(j);

    CHECK(sh("\"$S\" plan q --context 9 --no-probe --device cpu --kv-dtype f16") == 0);
    CHECK_MSG(strstr(out, "f16 for KV"), "%s", out);
    CHECK(sh("\"$S\" inspect q --kv-dtype f16") == 0 && strstr(out, "cache       f16"));
    CHECK_MSG(strstr(out, "\"quantized\": overruled: --kv-dtype asks for f16"), "%s", out);

    /* That the files change the precision is told, unless the user chose one. */
    CHECK(sh("\"$S\" generate m --prompt x --max-new-tokens 4 --quiet") == 0 && !*err);
    static char answer[4096];
    snprintf(answer, sizeof answer, "%.4000s", out);
    CHECK(sh("\"$S\" generate q --prompt x --max-new-tokens 4 --device cpu") == 0);
    CHECK_MSG(!strcmp(out, answer) && strstr(err, "asks for \"quantized\": done, as int8"), "%s",
              err);
    CHECK(sh("\"$S\" generate q --prompt x --max-new-tokens 4 --quiet --kv-dtype bf16") == 0);
    CHECK_MSG(!strcmp(out, answer) && !*err, "%s", err);
}

/* This machine; cut down to its first processor it is a smaller one. */
static void test_topology(void)
{
    CHECK(sh("\"$S\" inspect --topology --device cpu") == 0 && !*err);
    CHECK(strncmp(out, "processors  ", 12) == 0 && strstr(out, "\nmemory      ") &&
          strstr(out, "\na run may use ") && strstr(out, "\n  I/O  "));
    CHECK(sh("\"$S\" inspect --topology --device cpu --threads 3 --json") == 0 && !*err);
    json_t *j = parse(out);
    CHECK(number(j, "packages") >= 1 && number(j, "cores") <= number(j, "hardware_threads"));
    CHECK(number(j, "usable.hardware_threads") == sysconf(_SC_NPROCESSORS_ONLN) ||
          number(j, "usable.hardware_threads") < number(j, "hardware_threads"));
    CHECK(json_array_size(json_object_get(j, "nodes")) >= 1 && number(j, "memory_bytes") > 0);
    CHECK(number(j, "usable.memory_bytes") > 0);
    CHECK(number(j, "placement.compute.count") == 3 && number(j, "placement.io.count") == 1);
    json_decref(j);
    if (sh("command -v taskset") != 0 || sh("taskset -c 0 true") != 0)
        return;
    CHECK(sh("taskset -c 0 \"$S\" inspect --topology --device cpu --json") == 0);
    j = parse(out);
    CHECK(number(j, "usable.cores") == 1 && number(j, "usable.hardware_threads") == 1);
    CHECK(number(j, "placement.compute.count") == 1);
    const char *threads =
        json_string_value(json_object_get(json_object_get(j, "usable"), "threads"));
    CHECK(threads && strcmp(threads, "0") == 0);
    json_decref(j);
}

/* Measured once, shown from the profile, measured again when that is not to be trusted. */
static void test_probe(void)
{
    CHECK(sh("\"$S\" probe --json --drive-profile d.json") == 0);
    CHECK_MSG(strstr(err, "at most 256 MiB are written there"), "%s", err);
    json_t *first = parse(out), *again;
    CHECK(number(first, "drive.written_bytes") > 0 && number(first, "drive.queue_depth") >= 4);
    CHECK(number(first, "drive.request_bytes") == 1 << 20);
    CHECK(sh("\"$S\" probe . --drive-profile d.json --json") == 0 && !*err);
    again = parse(out);
    CHECK(number(again, "drive.written_bytes") == 0);
    CHECK(json_object_set_new(json_object_get(again, "drive"), "written_bytes",
                              json_integer(number(first, "drive.written_bytes"))) == 0);
    CHECK_MSG(json_equal(first, again), "%s", out);
    json_decref(again);
    json_decref(first);
    CHECK(sh("\"$S\" probe . --drive-profile d.json") == 0 && strstr(out, "kept in     d.json"));
    CHECK(sh("sed -i 's/[0-9]e*\\.*[0-9],/7,/' d.json; \"$S\" probe --drive-profile d.json") == 0);
    CHECK_MSG(strstr(err, "d.json: ") && strstr(err, "so the drive was measured again"), "%s", err);
    CHECK(sh("\"$S\" probe --drive-profile m/config.json/d.json") == 0 &&
          strstr(err, "Not a directory"));
    CHECK(sh("\"$S\" probe --drive-profile d.json") == 0 && !*err);
}

/* Outputs are the user's alone, whole or not there, and replace no input, link or other file. */
static void test_outputs(void)
{
    static const char *const run = "\"$S\" generate m --max-new-tokens 2 --device cpu";
    static const struct {
        const char *options, *expected;
    } cases[] = {
        {"--prompt-file text --report text", "--report: text: is the file of --prompt-file"},
        {"--prompt-file text --report hard", "--report: hard: is the file of --prompt-file"},
        {"--prompt-file text --dump-logits ./text", "is the file of --prompt-file"},
        {"--token-ids t --report t", "--report: t: is the file of --token-ids"},
        {"--prompts lines --report lines", "--report: lines: is the file of --prompts"},
        {"--prompt x --report link", "--report: link: found a symbolic link"},
        {"--prompt x --dump-logits dangling", "dangling: found a symbolic link"},
        {"--prompt x --report m/config.json", "--report: m/config.json: is a file of the model"},
        {"--prompt x --report /dev/null", "--report: /dev/null: is not a regular file"},
        {"--prompt x --report new --dump-logits ./new", "expected two files"},
        {"--prompt x --report new --drive-profile m/../new", "expected two files"},
        {"--prompt x --report foreign", "foreign: belongs to another user"},
    };
    CHECK(sh("umask 022; echo text >text; ln -f text hard; ln -sf text link; ln -sf none dangling; "
             "echo '{\"prompt\": \"x\"}' >lines; cp text same; cp m/config.json config; touch "
             "foreign; chown 4321 foreign") == 0 ||
          geteuid() != 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases - (geteuid() != 0); i++) {
        int code = sh("%s %s", run, cases[i].options);
        CHECK_MSG(code == 2 && strstr(err, cases[i].expected) && !n_out, "%s: %d, %s",
                  cases[i].options, code, err);
    }
    CHECK(sh("cmp text same && cmp m/config.json config && ! test -e new && ! test -e none") == 0);
    CHECK(sh("umask 0; echo old >ro; chmod 666 ro; %s --prompt x --report ro --dump-logits lo",
             run) == 0);
    CHECK(sh("test $(stat -c %%a ro) = 600 && test $(stat -c %%a lo) = 600 && ! ls ro.* lo.*") ==
          0);
    /* A profile replaces a profile, whatever is wrong with it, and nothing else. */
    CHECK(sh("\"$S\" probe --drive-profile text") == 0 && strstr(err, "another kind of file"));
    CHECK(sh("\"$S\" check-kv m --kv-dtype int8 --kv-profile link") == 0);
    CHECK_MSG(strstr(err, "link: found a symbolic link"), "%s", err);
    CHECK(sh("cmp text same && test -L link") == 0);
}

/* What is measured is there and plausible; fio may be here or not. Nothing stays on the disk. */
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

/* ---- the end that others put to it ---- */

/* Starts the command with stdout on `fd`, stderr in the file err. */
static pid_t start(int fd, const char *const *arguments)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(folder) != 0)
            _exit(99);
        int log = open("err", O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(fd, 1);
        dup2(log, 2);
        signal(SIGINT, SIG_DFL); /* a shell's background jobs have it ignored */
        execv(getenv("S"), (char *const *)(uintptr_t)arguments);
        _exit(98);
    }
    return pid;
}

/* A context that the model was not made for: refused, and allowed where that is asked for. */
static void test_long_context(void)
{
    CHECK(sh("\"$S\" generate m --token-ids t --ids --context 1100 --max-new-tokens 3") == 2);
    CHECK_MSG(strstr(err, "context of 1100 tokens: the model knows 1024 positions; --allow-long"),
              "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids t --ids --context 1100 --max-new-tokens 3 "
             "--allow-long-context") == 0);
    CHECK_MSG(strstr(err, "1100 tokens is longer than the 1024 positions that the model was made"),
              "%s", err);
    CHECK(sh("\"$S\" plan m --context 1100 --no-probe") == 2);
    CHECK(sh("\"$S\" plan m --context 1100 --no-probe --allow-long-context") == 0);
}

/* Logits that are not numbers: what is advised is not what the run did already. */
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

/* Ids that the tokenizer has no text for. */
static void test_unnamed_ids(void)
{
    CHECK(sh("cp -r m few; sed -E 's/,\"[^\"]+\":[4-9][0-9]//g' m/tokenizer.json "
             ">few/tokenizer.json") == 0);
    CHECK(sh("\"$S\" generate few --token-ids t --max-new-tokens 40 --temperature 3 "
             "--ignore-eos") == 0);
    CHECK_MSG(strstr(err, " of the 40 new tokens, such as id ") &&
                  strstr(err, "have no text in tokenizer.json and are not printed"),
              "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids t --max-new-tokens 40 --temperature 3 "
             "--ignore-eos") == 0);
    CHECK_MSG(!strstr(err, "have no text"), "%s", err);
}

static void test_broken_pipe(void)
{
    const char *const arguments[] = {"spillway", "generate", "m",   "--token-ids", "t",
                                     "--ids",    "--device", "cpu", NULL};
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    close(ends[0]); /* nobody reads */
    pid_t pid = start(ends[1], arguments);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(ends[1]);
    read_file("err", err, sizeof err);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1 && !*err, "%x: %s", status, err);
    if (access("/dev/full", W_OK) == 0) {
        CHECK(sh("\"$S\" generate m --token-ids t --ids >/dev/full") == 1);
        CHECK_MSG(strstr(err, "stdout: No space left"), "%s", err);
        CHECK(sh("\"$S\" inspect m >/dev/full") == 1);
        CHECK_MSG(strstr(err, "stdout: No space left"), "%s", err);
        CHECK(sh("\"$S\" generate --help >/dev/full") == 1); /* more than a buffer holds */
        CHECK_MSG(strstr(err, "stdout: "), "%s", err);
    }
    /* A limit on the size of files is a write that failed, too. */
    CHECK(sh("ulimit -f 1; \"$S\" generate m --token-ids t --ids --max-new-tokens 9 --report "
             "x.json") == 1);
    CHECK_MSG(strstr(err, "x.json: File too large"), "%s", err);
    CHECK(sh("{ sleep 0.2; \"$S\" generate --help; echo $? >code; } | true; cat code") == 0);
    CHECK_MSG(strcmp(out, "1\n") == 0 && !*err, "%s%s", out, err);
    /* Where stdout is closed, no file that is opened may take its place. */
    CHECK(sh("\"$S\" generate m --token-ids t --ids --max-new-tokens 3 --dump-logits c.npy >&-") ==
          1);
    CHECK_MSG(strstr(err, "stdout: Bad file descriptor"), "%s", err);
    CHECK(sh("\"$S\" generate m --token-ids - <&-") == 2);
    CHECK_MSG(strstr(err, "-: Bad file descriptor"), "%s", err);
}

/* A progress line says that some of the 30,000 requests are answered. */
static bool counts_answers(const char *lines)
{
    for (const char *at = lines; (at = strstr(at, "\033[K")); at++) {
        int n = 0, end = 0;
        if (sscanf(at, "\033[K%d of 30000 answers, %n", &n, &end) == 1 && n > 0 && end > 0)
            return true;
    }
    return false;
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
    /* As soon as there is a progress line; a minute is for machines that are busy. */
    for (int i = 0; i < 600; i++) {
        usleep(100000);
        read_file("err", err, sizeof err);
        if (counts_answers(err) || waitpid(pid, &status, WNOHANG) != 0)
            break;
    }
    kill(pid, SIGINT);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(sink);
    read_file("err", err, sizeof err);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x: %.200s", status, err);
    CHECK(strstr(err, "new tokens") && strstr(err, "tokens/s") && strstr(err, "s left"));
    CHECK_MSG(counts_answers(err), "%.200s", err);
    for (const char *at = strchr(err, '\r'); at; at = strchr(at + 1, '\r')) /* it never wraps */
        CHECK_MSG(strcspn(at + 1, "\r\n") < 80 + strlen("\033[K"), "%.200s", at + 1);
    const char *last = strrchr(err, '\r'); /* the line is taken away before the message */
    CHECK_MSG(last && strcmp(last, "\r\033[Kspillway: interrupted\n") == 0, "%.200s",
              last ? last : err);
}

/* What looks at no flag ends by the first one. */
static void test_interrupt_probe(void)
{
    const char *const arguments[] = {"spillway", "probe", ".", "--redo", NULL};
    int status, sink = open("/dev/null", O_WRONLY);
    pid_t pid = start(sink, arguments);
    usleep(200000); /* it takes more than a second */
    kill(pid, SIGINT);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(sink);
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "status %x", status);
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

int main(void)
{
    const char *command = getenv("SPW_COMMAND"), *data = getenv("SPW_DATA");
    char root[512];
    if (!command || !*command || access(command, X_OK) != 0) {
        fprintf(stderr, "SPW_COMMAND names no command: skipped\n");
        return CHECK_SKIP;
    }
    setenv("S", command, 1);
    CHECK(getcwd(root, sizeof root));
    command_model("command");
    setenv("XDG_CACHE_HOME", folder, 1); /* limits that are measured here are not the user's */
    test_help();
    test_completion();
    test_refusals();
    test_refused_plan();
    test_report();
    test_placement();
    test_small_stack();
    test_disk_plan();
    test_disk_run();
    test_disk_adds();
    test_batch();
    test_batch_order();
    test_batch_interrupted();
    test_batch_ids();
    test_tools();
    test_cache_policy();
    test_topology();
    test_probe();
    test_outputs();
    test_bench_io("PATH=/none"); /* without fio */
    test_bench_prefix("PATH=/none");
#ifndef __SANITIZE_ADDRESS__ /* the same but for what fio says */
    test_bench_io("");
    test_bench_prefix("");
#endif
    test_long_context();
    test_not_numbers();
    test_unnamed_ids();
    test_broken_pipe();
    test_interrupt();
    test_interrupt_probe();
    if (data)
        test_stories(data);
    test_records(root);
    sh("rm -r %s", folder);
    return check_done();
}
