/* The bundled model as GGUF files, with its tokenizer and a chat template, through the command
 * (gguf.cases). */
#include "tests/engine/gguf_folder.h"
#include "tests/gguf_tokenizer.h"

#include "tests/command/cases.h" /* after headers with parameters `out` and `err` */

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
    json_t *root = json_load_file("models/records/tokenizer.json", 0, NULL);
    const struct gguf_way one = {.more_keys = add_tokenizer, .context = root};
    struct gguf_way three = one;
    three.n_files = 3;
    gguf_from_folder("models/records", in_folder("m.gguf"), &one);
    gguf_from_folder("models/records", in_folder("m-00001-of-00003.gguf"), &three);
    json_decref(root);
    for (int i = 0; i < 2; i++) {
        bool add = i;
        const struct gguf_way way = {.more_keys = add_bos, .context = &add};
        gguf_from_folder("models/records", in_folder(i ? "bos1.gguf" : "bos0.gguf"), &way);
    }
}

/* A file with one key, whose value is a text. */
static void write_key(const char *name, const char *key, const char *text)
{
    struct spw_gguf_writer w = {0};
    FILE *f = fopen(in_folder(name), "w");
    spw_gguf_add_string(&w, key, text);
    CHECK(f && !spw_gguf_write_header(&w, f) && !fclose(f));
    spw_gguf_writer_free(&w);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("gguf");
    setenv("TEXT", "The access code of Bergen is 4711. What is the access code of Bergen?", 1);
    command_limits();
    write_models();
    write_key("mmproj.gguf", "general.architecture", "clip");
    write_key("adapter.gguf", "general.type", "adapter");
    run_cases("gguf", NULL);
    CHECK(!sh("rm -r \"$PWD\""));
    return check_done();
}
