/* The bundled model as a GGUF file, with its tokenizer and a chat template: every command gives
 * what it gives for the folder, saved sessions and the prefix cache work, and inspect shows types
 * and rules. Then files that are no model. */
#include "tests/engine/gguf_folder.h"
#include "tests/gguf_tokenizer.h"

#include "tests/command/command_run.h" /* after headers with parameters `out` and `err` */

#define RUN "--progress never --device cpu --threads 2"

static char before[1 << 20];

static void add_tokenizer(struct spw_gguf_writer *w, void *root)
{
    gguf_tokenizer_keys(w, root,
                        &(struct gguf_tokenizer){.model = "gpt2", .pre = "qwen2", .prefix = true});
    spw_gguf_add_string(w, "tokenizer.chat_template",
                        "{% for m in messages %}{{ m.content }}\n{% endfor %}");
}

/* A bos, as `context` says: added to a text or, as in Qwen, not. */
static void add_bos(struct spw_gguf_writer *w, void *context)
{
    json_t *root = json_load_file("models/records/tokenizer.json", 0, NULL);
    gguf_tokenizer_keys(w, root,
                        &(struct gguf_tokenizer){.model = "gpt2",
                                                 .pre = "qwen2",
                                                 .prefix = true,
                                                 .bos = "<|endoftext|>",
                                                 .add_bos = *(bool *)context});
    spw_gguf_add_bool(w, "tokenizer.ggml.add_eos_token", *(bool *)context);
    json_decref(root);
}

static void write_models(void)
{
    char path[512];
    json_t *root = json_load_file("models/records/tokenizer.json", 0, NULL);
    const struct gguf_way one = {.more_keys = add_tokenizer, .context = root};
    struct gguf_way three = one;
    three.n_files = 3;
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    gguf_from_folder("models/records", path, &one);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", folder);
    gguf_from_folder("models/records", path, &three);
    json_decref(root);
    for (int i = 0; i < 2; i++) {
        bool add = i;
        const struct gguf_way way = {.more_keys = add_bos, .context = &add};
        snprintf(path, sizeof path, "%s/bos%d.gguf", folder, i);
        gguf_from_folder("models/records", path, &way);
    }
}

/* The same command on the folder and on the files; the output has no name of the model. */
static void same(const char *command, const char *arguments)
{
    static const char *const models[] = {"m.gguf", "m-00001-of-00003.gguf"};
    CHECK_MSG(!sh("$S %s \"$M\" %s", command, arguments), "%s %s: %s", command, arguments, err);
    memcpy(before, out, n_out + 1);
    CHECK(n_out > 0);
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(!sh("$S %s %s %s", command, models[i], arguments), "%s %s %s: %s", command,
                  models[i], arguments, err);
        CHECK_MSG(!strcmp(out, before), "%s %s %s: '%s', not '%s'", command, models[i], arguments,
                  out, before);
    }
}

static void test_same(void)
{
    same("tokenize", "--text \"$TEXT\"");
    same("generate", "--prompt \"$TEXT\" --max-new-tokens 12 " RUN);
    same("generate", "--prompt \"$TEXT\" --max-new-tokens 12 --compute f32 --device-memory 6MiB "
                     "--host-memory 8MiB " RUN);
    same("score", "--text \"$TEXT\" " RUN);
    same("generate",
         "--prompt \"$TEXT\" --max-new-tokens 3 --report - " RUN " >/dev/null; echo rest");
}

/* A job, and its continuation with the same file. */
static void test_job(void)
{
    static const char *const models[] = {"\"$M\"", "m.gguf", "m.gguf"};
    CHECK(!sh("for i in 1 2 3; do printf '{\"prompt\": \"The access code %%d\"}\\n' $i; done >in"));
    for (int i = 0; i < 3; i++) {
        const char *to = i ? "b" : "a";
        CHECK_MSG(!sh("$S batch %s --input in --output %s --max-new-tokens 5 " RUN, models[i], to),
                  "%s", err);
        CHECK_MSG(!sh("cat %s", to) && n_out > 0, "%s", err);
        if (!i)
            memcpy(before, out, n_out + 1);
        CHECK_MSG(!strcmp(out, before), "'%s', not '%s'", out, before);
    }
}

static void test_kept(void)
{
    CHECK(!sh("$S generate m.gguf --prompt \"$TEXT\" --max-new-tokens 9 " RUN));
    memcpy(before, out, n_out + 1);
    CHECK_MSG(!sh("$S generate m.gguf --prompt \"$TEXT\" --max-new-tokens 5 --save s " RUN
                  " && $S generate m.gguf --resume s --max-new-tokens 9 " RUN),
              "%s", err);
    CHECK_MSG(!strcmp(out, before), "'%s', not '%s'", out, before);
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(
            !sh("$S generate m.gguf --prompt \"$TEXT\" --max-new-tokens 9 --prefix-cache p " RUN),
            "%s", err);
        CHECK(!strcmp(out, before));
    }
    CHECK(sh("$S generate \"$M\" --resume s --max-new-tokens 9 " RUN) == 2); /* of another model */
    CHECK_MSG(!sh("printf 'hello\\n' | $S chat m.gguf --max-new-tokens 3 " RUN), "%s", err);
}

static void test_inspect(void)
{
    CHECK(!sh("$S inspect m.gguf"));
    CHECK_MSG(strstr(out, "model       m.gguf (qwen3)") && strstr(out, "types       BF16 in ") &&
                  strstr(out, " bits a weight\n") &&
                  strstr(out, "by rule     every layer sees all positions") &&
                  strstr(out, "tokenizer   768 tokens\n"),
              "%s", out);
    CHECK(!sh("$S inspect m.gguf --json --tensors") && strstr(out, "\"bits_per_weight\": 16.") &&
          strstr(out, "\"by_rule\": [") && strstr(out, "blk.0.attn_q_norm.weight"));
    CHECK(!sh("$S inspect bos0.gguf"));
    CHECK_MSG(strstr(out, "\na text      begins with no special token\n"), "%s", out);
    CHECK(!sh("$S tokenize bos0.gguf --text The") && !strcmp(out, "456\n"));
    CHECK(!sh("$S inspect bos1.gguf"));
    CHECK_MSG(strstr(out, "\na text      begins with 0 (<|endoftext|>) and ends with 0 "
                          "(<|endoftext|>)\nan answer   ends with 0 (<|endoftext|>)\n"),
              "%s", out);
    CHECK(!sh("$S tokenize bos1.gguf --text The") && !strcmp(out, "0 456 0\n"));
    /* Codes for a terminal in a token. */
    CHECK(!sh("sed 's/<|endoftext|>/<\\x1b[31mtexts\\n>/' bos1.gguf >codes.gguf && $S inspect "
              "codes.gguf"));
    CHECK_MSG(strstr(out, "\nan answer   ends with 0 (<?[31mtexts?>)\n"), "%s", out);
}

/* A file without a chat template: the error and inspect say what would do. With a template of the
 * user it answers as a file with this template. */
static void test_template(void)
{
    CHECK(!sh("sed 's/tokenizer[.]chat_template/tokenizer.chat_tem_late/' m.gguf >no.gguf"));
    CHECK(sh("printf 'hello\\n' | $S chat no.gguf " RUN) == 2);
    CHECK_MSG(strstr(err, "no.gguf: found no chat template, expected one") &&
                  strstr(err, "; --chat-template FILE.jinja gives one; 'spillway generate'"),
              "%s", err);
    CHECK(!sh("$S inspect no.gguf && $S inspect no.gguf --json"));
    CHECK_MSG(strstr(out, "\na chat      no template: --chat-template FILE.jinja gives one\n") &&
                  strstr(out, "\"chat_template\": null"),
              "%s", out);
    CHECK(!sh("$S inspect m.gguf"));
    CHECK_MSG(strstr(out, "\na chat      m.gguf: tokenizer.chat_template\n"), "%s", out);
    CHECK(!sh(
        "echo '{{ bos_token }}{%% for m in messages %%}{{ m.content }}{%% endfor %%}:' >t.jinja; "
        "echo '{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}' >talk"));
    for (int i = 0; i < 2; i++) {
        const char *const model = i ? "m.gguf" : "no.gguf";
        CHECK_MSG(!sh("$S chat %s --prompt hello --chat-template t.jinja --max-new-tokens 9 " RUN
                      " && $S batch %s --input talk --output talk%d --chat-template t.jinja "
                      "--max-new-tokens 9 " RUN " && cat talk%d",
                      model, model, i, i),
                  "%s", err);
        if (!i)
            memcpy(before, out, n_out + 1);
        CHECK_MSG(!strcmp(out, before) && n_out > 100, "'%s', not '%s'", out, before);
    }
    CHECK(sh("$S batch no.gguf --input talk --output talk0 --max-new-tokens 9 " RUN) == 2);
    CHECK_MSG(strstr(err, "this job was begun with the chat template"), "%s", err);
    static const char *const wrong[] = {"chat no.gguf --prompt hello",
                                        "batch no.gguf --input talk --output x",
                                        "summarize no.gguf talk --output x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(sh("$S %s --chat-template none.jinja " RUN, wrong[i]) == 2);
        CHECK_MSG(strstr(err, "none.jinja: no such file\n"), "%s: %s", wrong[i], err);
    }
}

/* A file with one key, whose value is a text. */
static void write_key(const char *name, const char *key, const char *text)
{
    char path[128];
    struct spw_gguf_writer w = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    spw_gguf_add_string(&w, key, text);
    CHECK(f && !spw_gguf_write_header(&w, f) && !fclose(f));
    spw_gguf_writer_free(&w);
}

static void test_refused(void)
{
    CHECK(sh("$S inspect m-00002-of-00003.gguf") == 2);
    CHECK_MSG(strstr(err, "m-00002-of-00003.gguf: found file 2 of 3, expected the first one"), "%s",
              err);
    CHECK(sh("head -c 2000 m.gguf >short.gguf; $S inspect short.gguf") == 2);
    CHECK_MSG(strstr(err, "short.gguf: ") && strstr(err, "found the end of the file"), "%s", err);
    CHECK(sh("$S inspect none.gguf") == 2);
    CHECK_MSG(strstr(err, "none.gguf: found no such file, expected a GGUF file"), "%s", err);
    CHECK(sh("echo '{\"a\": \"more than twenty-four bytes\"}' >x; $S inspect x") == 2);
    CHECK_MSG(strstr(err, "x: found a file that is not GGUF, expected a GGUF file or"), "%s", err);
    write_key("mmproj.gguf", "general.architecture", "clip");
    CHECK(sh("$S inspect mmproj.gguf") == 2);
    CHECK_MSG(strstr(err, "mmproj.gguf: general.architecture: found \"clip\", expected a language "
                          "model; this file is used beside one"),
              "%s", err);
    write_key("adapter.gguf", "general.type", "adapter");
    CHECK(sh("$S inspect adapter.gguf") == 2);
    CHECK_MSG(strstr(err, "adapter.gguf: general.type: found \"adapter\", expected a language "
                          "model; "),
              "%s", err);
}

int main(void)
{
    char here[4096];
    snprintf(folder, sizeof folder, "/tmp/spw_gguf_XXXXXX");
    if (!command_is_there())
        return CHECK_SKIP;
    if (!mkdtemp(folder) || !getcwd(here, sizeof here - 20))
        return 1;
    strcat(here, "/models/records");
    setenv("M", here, 1);
    setenv("TEXT", "The access code of Bergen is 4711. What is the access code of Bergen?", 1);
    command_limits();
    write_models();
    test_same();
    test_job();
    test_kept();
    test_inspect();
    test_template();
    test_refused();
    CHECK(!sh("rm -r \"$PWD\""));
    return check_done();
}
