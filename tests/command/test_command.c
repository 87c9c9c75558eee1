/* The spillway command: help, completion, refusals and their texts, and the commands that compute
 * little or nothing. Run through sh on a tiny model (a committed golden model with a tokenizer of
 * bytes). Skipped without the command. */
#include "tests/command/command_json.h"
#include "tests/command/command_model.h"

#include <stdbool.h>

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
    /* The options of every day, and all; each with the text of this command only. */
    CHECK(sh("\"$S\" chat --help | grep -c '^  --'") == 0 && !strcmp(out, "8\n"));
    CHECK(sh("\"$S\" generate --help | grep -c '^  --'") == 0 && !strcmp(out, "8\n"));
    CHECK(sh("\"$S\" chat --help all") == 0 && strstr(out, "--context N"));
    CHECK_MSG(!strstr(out, "bench") && !strstr(out, "summarize"), "%s", out);
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
        CHECK(sh("\"$S\" %s --help all | sed -n 's/^  \\(--[a-z-]*\\).*/\\1/p'", commands[i]) == 0);
        memcpy(help, out, n_out + 1);
        CHECK(sh("bash -c '. ./bash.completion; COMP_WORDS=(spillway %s m --); COMP_CWORD=3; "
                 "_spillway; printf \"%%s\\n\" \"${COMPREPLY[@]}\" | grep -v help; true'",
                 commands[i]) == 0);
        CHECK_MSG(strcmp(out, help) == 0 || (!*help && strcmp(out, "\n") == 0),
                  "%s: %s instead of %s", commands[i], out, help);
    }
}

/* ---- refusals ---- */

struct refused {
    const char *line, *says;
};

static void check_refused(const struct refused *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int code = sh("\"$S\" %s", cases[i].line);
        /* One line; notes come first if the drive and the machine had to be measured. */
        const char *text = err, *end = strchr(text, '\n');
        for (; end && strncmp(text, "spillway: measuring ", 20) == 0; end = strchr(text, '\n'))
            text = end + 1;
        CHECK_MSG(code == 2 && n_out == 0, "%s: exit %d, %zu bytes on stdout", cases[i].line, code,
                  n_out);
        CHECK_MSG(strncmp(text, "spillway: ", 10) == 0 && end && !end[1] &&
                      strstr(text, cases[i].says),
                  "%s: %s", cases[i].line, err);
    }
}

#define CHECK_REFUSED(cases) check_refused(cases, sizeof(cases) / sizeof *(cases))

static void test_wrong_command_lines(void)
{
    static const struct refused cases[] = {
        {"bogus", "unknown command 'bogus'"},
        {"genrate m", "did you mean 'generate'"},
        {"generate", "found no MODEL"},
        {"generate m", "expected --prompt, --prompt-file, --token-ids or --prompts"},
        {"generate m other --prompt x", "found 'other' after 'm'"},
        {"generate m --promt x", "did you mean --prompt?"},
        {"generate m --temp 1", "did you mean --temperature?"},
        {"generate m --ctx 9", "did you mean --context?"},
        {"generate m --max-tokens 9", "did you mean --max-new-tokens?"},
        {"generate m --gpu-memory 1G", "unknown option --gpu-memory; see 'spillway generate"},
        {"generate m --qqqq x", "unknown option --qqqq"},
        {"generate m -n 4 --prompt x", "unknown option -n; did you mean --max-new-tokens?"},
        {"generate -m x -p y", "the model has no option: spillway generate MODEL"},
        {"chat m -c 9", "did you mean --context?"},
        {"chat m -t 9", "did you mean --threads?"},
        {"generate m -p 9", "did you mean --prompt?"},
        {"inspect m -p 9", "unknown option -p; options are written --name"},
        {"--verison", "did you mean '--version'?"},
        {"version", "did you mean '--version'?"},
        {"chat Qwen/Qwen2.5-0.5B", "'hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B' gets"},
        {"\"$(printf 'bog\\342\\200\\256us')\"", "unknown command 'bog???us'"},
        {"generate m --tensors --prompt x", "--tensors is no option of 'generate'"},
        {"generate m --prompt", "--prompt: found no value, expected TEXT"},
        {"generate m --ignore-eos=yes --prompt x", "--ignore-eos: found the value 'yes'"},
        {"generate m --prompt-tokens 9", "--prompt-tokens is no option of 'generate'"},
        {"generate m --prompt --seed 2", "--prompt: found the option --seed, expected TEXT"},
        {"generate m --prompt x --prompt y", "--prompt: found it twice, expected one TEXT"},
        {"generate m --token-ids=a --token-ids b",
         "--token-ids: found it twice, expected one FILE"},
        {"completion tcsh", "found 'tcsh', expected bash, zsh or fish"},
    };
    CHECK_REFUSED(cases);
}

static void test_wrong_prompts(void)
{
    static const struct refused cases[] = {
        {"generate m --prompt ''", "found an empty text"},
        {"generate m --prompt x --stop ''", "--stop: found an empty text"},
        {"generate m --prompt x --stop \"$(printf 'a\\377b')\"", "--stop: "},
        {"generate m --prompt \"$(printf 'a\\377b')\"", "0xff at offset 1"},
        {"generate m --prompt x --prompt-file m", "found both --prompt and --prompt-file"},
        {"generate m --prompt-file missing", "missing: No such file"},
        {"generate m --prompt-file m", "m: Is a directory"},
        {"generate m --prompt-file /dev/null", "/dev/null: found an empty text"},
        {"generate m --prompt-file - </dev/null", "stdin: found an empty text"},
        {"generate m --token-ids - <&-", "stdin: Bad file descriptor"},
        {"generate m --prompt x --stop ''", "--stop: found an empty text"},
        {"generate m --prompt x --stop \"$(printf '\\303')\"", "--stop: text: found byte 0xc3"},
        {"generate m --token-ids bad1", "bad1: byte 4: found 'x', expected token ids"},
        {"generate m --token-ids bad2", "bad2: token 2: found id 96, expected 0 to 95"},
        {"generate m --token-ids bad3", "bad3: byte 2: found '-1'"},
        {"generate m --token-ids /dev/null", "/dev/null: found no token ids"},
        {"generate m --ids --stop x --prompt x", "found both --ids and --stop"},
        {"plan m --prompt x --prompt-tokens 9", "found both --prompt and --prompt-tokens"},
    };
    CHECK_REFUSED(cases);
}

static void test_wrong_models(void)
{
    static const struct refused cases[] = {
        {"generate missing --prompt x",
         "missing: found no such file or folder, expected a Hugging"},
        {"generate . --prompt x", ".: found no config.json there, expected a Hugging Face model"},
        {"generate cached --prompt x", "a GGUF file; give the folder cached/snapshots/1f2e"},
        {"generate cached2 --prompt x", "; give one of the folders in cached2/snapshots"},
        {"generate '' --prompt x", "generate: found an empty MODEL; usage: "},
        {"generate m/config.json --prompt x", "m/config.json: found a file that is not GGUF, "
                                              "expected a GGUF file or a Hugging Face model "
                                              "folder, not a file in it"},
        {"generate lfs1 --prompt x", "lfs1/model.safetensors: found a git-lfs pointer, expected"},
        {"generate lfs2 --prompt x", "lfs2/tokenizer.json: found a git-lfs pointer, expected"},
        {"plan lfs3 --context 9", "lfs3/config.json: found a git-lfs pointer, expected"},
        {"generate yarn --prompt x --context 2049", "the model knows 2048 positions"},
        {"generate fewer --prompt x",
         "tensor model.layers.2.input_layernorm.weight: found it, but the config (model_type "
         "llama, 2 layers) does not call for it"},
        {"plan unbiased --context 9", "tensor model.layers.0.mlp.down_proj.bias: found it, but"},
    };
    CHECK(sh("mkdir -p cached/refs cached/snapshots/1f2e cached2/snapshots/1 "
             "cached2/snapshots/2") == 0);
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
    CHECK_REFUSED(cases);
}

static void test_wrong_values(void)
{
    static const struct refused cases[] = {
        {"generate m --prompt x --max-new-tokens -1", "--max-new-tokens: found '-1'"},
        {"generate m --prompt x --max-new-tokens 1e3", "--max-new-tokens: found '1e3'"},
        {"generate m --prompt x --max-new-tokens 99999999999999999999", "--max-new-tokens: found"},
        {"generate m --prompt x --max-new-tokens ''", "--max-new-tokens: found ''"},
        {"generate m --prompt x --seed 18446744073709551616",
         "expected a whole number from 0 to 18446744073709551615"},
        {"plan m --context 0", "expected a whole number from 1 to 1000000000000"},
        {"generate m --prompt x --temperature hot", "--temperature: found 'hot'"},
        {"generate m --prompt x --temperature inf", "--temperature: found 'inf'"},
        {"generate m --prompt x --top-p 1.5",
         "--top-p: found '1.5', expected a number from 0 to 1"},
        {"generate m --prompt x --presence-penalty 2.1",
         "--presence-penalty: found '2.1', expected a number from -2 to 2"},
        {"generate m --prompt x --frequency-penalty -3", "expected a number from -2 to 2"},
        {"generate m --prompt x --logit-bias 5",
         "--logit-bias: found '5', expected a token id, =, and a number from -100 to 100"},
        {"generate m --prompt x --logit-bias 5=101", "--logit-bias: found '5=101'"},
        {"generate m --prompt x --logit-bias =1", "--logit-bias: found '=1'"},
        {"generate m --prompt x --logit-bias 99999999999=1", "--logit-bias: found"},
        {"generate m --prompt x --logit-bias 96=1",
         "--logit-bias: found the token id 96, expected 0 to 95"},
        {"chat m --logit-bias 96=1", "--logit-bias: found the token id 96, expected 0 to 95"},
        {"generate m --prompt x --logprobs 2", "--logprobs needs --prompts or --report"},
        {"generate m --prompts l9 --logprobs 21", "--logprobs: found '21', expected"},
        {"generate m --prompt x --n 2", "--n needs --prompts"},
        {"generate m --prompts l9 --n 0", "--n: found '0', expected a whole number from 1"},
        {"generate m --prompt x --threads 0", "--threads: found '0'"},
        {"generate m --prompt x --context 100 --max-new-tokens 100", "expected at least 101"},
        {"generate m --prompt x --context 99999", "1024"},
        {"generate m --prompt x --sessions 2", "--sessions needs --prompts"},
        {"generate m --prompt x --progress loud", "--progress: found 'loud'"},
        {"plan m --context 0", "--context: found '0'"},
    };
    CHECK_REFUSED(cases);
}

static void test_wrong_memory(void)
{
    static const struct refused cases[] = {
        {"generate m --prompt x --device-memory 12Q", "--device-memory: found '12Q'"},
        {"generate m --prompt x --device-memory -1", "--device-memory: found '-1'"},
        {"generate m --prompt x --device-memory 9999999TiB", "--device-memory: found '9999999TiB'"},
        {"generate m --prompt x --device-memory 1.5.5G", "--device-memory: found '1.5.5G'"},
        {"generate m --prompt x --device-memory 18446744073709551615", "a size below 8 EiB"},
        {"generate m --prompt x --device-memory 8EiB", "a size below 8 EiB"},
        {"generate m --prompt x --disk . --disk-memory 7PiB", "disk memory: 7.00PiB given"},
        {"generate m --prompt x --device-memory 1000", "device memory: 1000B given"},
        {"generate m --prompt x --device-memory 0", "device memory: 0B given"},
        {"generate m --prompt x --disk-memory 1GiB", "no disk; name a directory with --disk"},
        {"generate m --prompt x --disk-write-limit 1GiB", "no disk; name a directory with --disk"},
        {"plan m --context 9 --disk . --disk-memory 1GiB --disk-write-limit 0",
         "1.00GiB given, but --disk-write-limit allows no writes"},
        {"inspect m --disk . --disk-memory 1GiB --disk-write-limit 0",
         "1.00GiB given, but --disk-write-limit allows no writes"},
        {"inspect m --disk-memory 1GiB", "no disk; name a directory with --disk"},
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
        {"plan m --context 1000 --device-memory 1000", "device memory: 1000B given"},
    };
    CHECK_REFUSED(cases);
}

static void test_wrong_outputs(void)
{
    static const struct refused cases[] = {
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
        {"generate m --prompt x --report $(printf '%0300d' 7)", "File name too long"},
        {"generate m --prompts l9 --dump-logits l.npy", "found both --prompts and --dump-logits"},
    };
    CHECK_REFUSED(cases);
}

/* score, tokenize, inspect. */
static void test_wrong_texts(void)
{
    static const struct refused cases[] = {
        {"score m", "expected --text, --text-file or --token-ids"},
        {"score m --text x", "found one token"},
        {"tokenize m --text x --decode", "--decode: found --text, expected --token-ids"},
        {"tokenize m --token-ids bad2", "--token-ids: found without --decode"},
        {"tokenize m --token-ids bad2 --decode", "bad2: token 2: found id 96"},
        {"tokenize missing --text x", "missing/tokenizer.json"},
        {"inspect missing", "missing: found no such file or folder"},
        {"inspect", "found neither MODEL nor --topology"},
        {"inspect m --topology", "--topology: found with m"},
        {"inspect --topology --tensors", "--topology: found with --tensors"},
        {"inspect --topology --kv-dtype f16", "--topology: found with --kv-dtype"},
        {"inspect m --threads 2", "--threads: found without --topology"},
        {"inspect --topology --threads 2000 --device cpu", "--threads: found '2000'"},
    };
    CHECK_REFUSED(cases);
}

/* bench, probe, cache. */
static void test_wrong_measurements(void)
{
    static const struct refused cases[] = {
        {"bench m --contexts 1,,2", "--contexts: found ''"},
        {"bench m --random-tokens --prompt-file x", "found both --random-tokens and --prompt-file"},
        {"bench m --budgets 1MiB --device-memory 1MiB", "found both --budgets and --device-memory"},
        {"bench m --io", "--io: found no --disk"},
        {"bench m --io --disk missing", "missing: No such file"},
        {"bench m --io --disk . --disk-memory 1MiB", "expected at least 16777216"},
        {"bench m --io --disk . --contexts 300 --device-memory 64MiB --host-memory 64MiB",
         "no KV lies on disk"},
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
    };
    CHECK_REFUSED(cases);
}

static void test_refusals(void)
{
    CHECK(sh("echo '1 2 x' >bad1; echo 1,96 >bad2; echo '1 -1' >bad3\n"
             "echo '{\"prompt\":\"a\"}' >l9") == 0);
    test_wrong_command_lines();
    test_wrong_prompts();
    test_wrong_models();
    test_wrong_values();
    test_wrong_memory();
    test_wrong_outputs();
    test_wrong_texts();
    test_wrong_measurements();
    CHECK(sh("ls *.json *.npy 2>/dev/null") != 0 && !n_out);        /* nothing half-written */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* a second becomes many */
    CHECK(sh("ulimit -v 6000000; \"$S\" tokenize m --text-file /dev/zero") == 2);
    CHECK_MSG(strstr(err, "/dev/zero: found 1 GiB or more"), "%s", err);
#endif
}

/* A refused plan also prints JSON, with the smallest budgets if budgets are the reason. */
static void test_refused_plan(void)
{
    CHECK(sh("\"$S\" plan m --context 1000 --device cpu --device-memory 1000 --json") == 2);
    json_t *j = parse(out);
    const char *error = json_string_value(json_object_get(j, "error"));
    CHECK(error && strstr(error, "device memory: 1000B given") &&
          strstr(error, "raise --device-memory, or lower --context, or lower --prefill-chunk") &&
          strstr(err, error));
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
    /* Budgets are not asked; `generate` refuses the same input with the same text. */
    static const char *const refused[] = {"m --token-ids t --context 2", "m --token-ids none",
                                          "m --prompts none", "m --resume none", "none"};
    CHECK(sh("echo 1 5 7 >t") == 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        CHECK(sh("\"$S\" plan --device cpu --json %s", refused[i]) == 2);
        j = parse(out);
        error = json_string_value(json_object_get(j, "error"));
        CHECK_MSG(error && strstr(err, error), "%s: %s", refused[i], err);
        CHECK(json_is_null(json_object_get(j, "smallest_bytes")));
        CHECK(sh("\"$S\" generate --device cpu %s%s", refused[i],
                 strchr(refused[i], ' ') ? "" : " --token-ids t") == 2);
        CHECK_MSG(error && strstr(err, error), "%s: %s", refused[i], err);
        json_decref(j);
    }
}

/* ---- the other commands ---- */

static void test_tools(void)
{
    CHECK(sh("echo 1 5 7 >t") == 0);
    CHECK(sh("\"$S\" tokenize m --text 'a!\"'") == 0 && strcmp(out, "64 0 1\n") == 0);
    CHECK(sh("printf 'a!' | \"$S\" tokenize m --text-file - --json") == 0);
    json_t *j = parse(out);
    CHECK(number(j, "n_tokens") == 2 && json_array_size(json_object_get(j, "tokens")) == 2);
    json_decref(j);
    CHECK(sh("echo '[64, 0]' | \"$S\" tokenize m --decode --token-ids -") == 0);
    CHECK(strcmp(out, "a!") == 0);
    CHECK(sh("printf '\\357\\273\\277a!' | \"$S\" tokenize m --text-file -") == 0 &&
          strcmp(out, "64 0\n") == 0); /* a byte order mark */
    CHECK(sh("printf '\\357\\273\\277[64, 0]' | \"$S\" tokenize m --decode --token-ids -") == 0 &&
          strcmp(out, "a!") == 0);
    CHECK(sh("echo 96 | \"$S\" tokenize m --decode --token-ids -") == 2 &&
          strstr(err, "token 1: found id 96, which is no token"));
    CHECK(sh("\"$S\" inspect m --json --tensors") == 0);
    j = parse(out);
    CHECK(number(j, "n_layers") == 3 && number(j, "vocab") == 96 && number(j, "n_kv_heads") == 2);
    CHECK(number(j, "kv_bytes_per_token") == 3 * 2 * 2 * 8 * 2); /* layers, K V, heads, dim, bf16 */
    CHECK(number(j, "tokenizer.vocab") == 96);
    CHECK((long long)json_array_size(json_object_get(j, "tensors")) == number(j, "n_tensors"));
    json_decref(j);
    CHECK(!*err && sh("\"$S\" inspect unbiased") == 0 && strstr(out, "positions"));
    CHECK_MSG(strstr(err, "spillway: this model cannot be run: ") && strstr(err, "_proj.bias"),
              "%s", err);
    CHECK(sh("mv m/tokenizer.json .; \"$S\" inspect m") == 0 && strstr(out, "tokenizer   none"));
    CHECK(sh("\"$S\" generate m --token-ids t --ids --max-new-tokens 3") == 0);
    CHECK_MSG(strspn(out, "0123456789 \n") == n_out && n_out > 5, "%s", out);
    char ids[64];
    snprintf(ids, sizeof ids, "%.60s", out);
    /* Without --ids a note says that ids are printed; a request for text is refused. */
    CHECK(sh("\"$S\" generate m --token-ids t --max-new-tokens 3 --report i.json") == 0);
    CHECK_MSG(strcmp(out, ids) == 0 && strstr(err, "tokenizer.json: no such file"), "%s%s", out,
              err);
    j = parse_file("i.json");
    CHECK(number(j, "n_generated") == (long long)json_array_size(json_object_get(j, "tokens")));
    json_decref(j);
    CHECK(sh("\"$S\" generate m --token-ids t --stop x --max-new-tokens 3") == 2 && !n_out);
    CHECK(sh("\"$S\" generate missing --token-ids t") == 2 && !n_out && !strstr(err, "ids"));
    CHECK(sh("mv tokenizer.json m") == 0);
}

/* Of a model for text and images: what is left out is said once, also by a job whose items become
 * longer, and inspect says it, too. */
static void test_wrapper(void)
{
    const char *left_out = "only the text model of this mistral3 model runs: its parts for images";
    CHECK(sh("m=$OLDPWD/tests/golden/mistral3_wrapped; echo 1 5 9 >ids; \"$S\" inspect $m; "
             "\"$S\" generate $m --token-ids ids --max-new-tokens 2") == 0);
    CHECK_MSG(strstr(out, "left out    what mistral3 models have for images"), "%s", out);
    const char *said = strstr(err, left_out);
    CHECK_MSG(said && !strstr(said + 1, left_out), "%s", err);
    CHECK(sh("for n in 2 20 200; do t=$(seq -s, $n | sed 's/[0-9]*/5/g'); "
             "echo '{\"id\": \"'$n'\", \"tokens\": ['$t']}'; done | \"$S\" batch "
             "$OLDPWD/tests/golden/mistral3_wrapped --input - --output lines.jsonl "
             "--max-new-tokens 2") == 0);
    said = strstr(err, "on cpu");
    CHECK_MSG(said && strstr(said + 1, "on cpu"), "%s", err); /* several engines */
    said = strstr(err, left_out);
    CHECK_MSG(said && !strstr(said + 1, left_out), "%s", err);
    CHECK(sh("\"$S\" inspect --json $OLDPWD/tests/golden/mistral3_wrapped") == 0 &&
          strstr(out, "\"wrapper\": \"mistral3\""));
}

/* inspect and a run know the tokens that generation_config.json suppresses, and so does the file
 * that quantize writes. */
static void test_suppressed(void)
{
    CHECK(
        sh("cp -r m never && echo '{\"suppress_tokens\": [7, 9]}' >never/generation_config.json && "
           "\"$S\" quantize never never.gguf --type q8_0 >quantized && \"$S\" inspect never.gguf "
           "--json") == 0);
    json_t *j = parse(out), *list = json_pack("[i,i]", 7, 9);
    CHECK(json_equal(json_object_get(j, "suppressed"), list));
    json_decref(list);
    json_decref(j);
    CHECK(sh("\"$S\" inspect never") == 0 && strstr(out, "never has 7 ("));
    CHECK(sh("\"$S\" inspect m") == 0 && !strstr(out, "never has"));
}

/* The cache that inspect shows is the cache of a run, and options win over the model's files. */
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
    CHECK(strstr(json_string_value(json_object_get(cache, "tiers_why")), "--disk names the disk"));
    CHECK(!strstr(out, "options."));
    json_decref(tiers);
    json_decref(j);

    CHECK(sh("\"$S\" plan q --context 9 --no-probe --device cpu --kv-dtype f16") == 0);
    CHECK_MSG(strstr(out, "f16 for KV"), "%s", out);
    CHECK(sh("\"$S\" inspect q --kv-dtype f16") == 0 && strstr(out, "cache       f16"));
    CHECK_MSG(strstr(out, "\"quantized\": overruled: --kv-dtype asks for f16"), "%s", out);

    /* A note says that the files change the precision, unless the user chose one. */
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

/* Outputs belong to the user alone, are complete or absent, and replace no input, link or other
 * file. */
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
    /* A profile replaces a profile and nothing else (test_bench_command has the other one). */
    CHECK(sh("\"$S\" check-kv m --kv-dtype int8 --kv-profile link") == 0);
    CHECK_MSG(strstr(err, "link: found a symbolic link"), "%s", err);
    CHECK(sh("cmp text same && test -L link") == 0);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("command");
    command_limits();
    test_help();
    test_completion();
    test_refusals();
    test_refused_plan();
    test_tools();
    test_wrapper();
    test_suppressed();
    test_cache_policy();
    test_topology();
    test_outputs();
    sh("rm -r %s", folder);
    return check_done();
}
