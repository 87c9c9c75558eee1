/* config.json: the cases of config.cases, every kind of bad file, real files and the golden
 * folders, and no leak after a failed allocation. Expected values are copied from the files by
 * hand. */
#include "tests/folder.h"
#include "tests/source_config.h"
#include "tests/unit/model/config_cases.h"

static int parse(struct spw_model_config *out, const char *text, const char *generation,
                 struct spw_error *err)
{
    return spw_config_parse(
        out,
        &(struct spw_config_text){.config = text,
                                  .config_bytes = strlen(text),
                                  .generation = generation,
                                  .generation_bytes = generation ? strlen(generation) : 0},
        err);
}

/* A line of config.cases: a base, and a patch over it. */
static int parse_case(struct spw_model_config *out, const char *line, struct spw_error *err)
{
    json_t *root = config_cases_json(&line), *patch = config_cases_json(&line);
    if (!root || !patch || json_object_update(root, patch))
        abort();
    char *text = json_dumps(root, 0);
    const int rc = parse(out, text, strncmp(line, "+ ", 2) ? NULL : line + 2, err);
    json_free(text);
    json_decref(root);
    json_decref(patch);
    return rc;
}

/* Every allocation fails once, ours and jansson's: -ENOMEM, and no leak. */
static void test_failed_allocations(void)
{
    int n_failed = 0;
    for (int64_t n = 0;; n++) {
        struct spw_error err = {0};
        struct spw_model_config config;
        spw_alloc_fail_nth(n);
        int rc = source_config(&config, "tests/golden/llama_plain", &err);
        spw_alloc_fail_nth(-1);
        if (!rc) {
            spw_config_free(&config);
            break;
        }
        n_failed++;
        CHECK(rc == -ENOMEM && strstr(err.text, "out of memory") && !config.layer_kinds);
        CHECK(spw_alloc_outstanding() == 0);
    }
    CHECK(n_failed >= 50);
}

static void test_bad_json(void)
{
    const char *llama =
        json_quoted("{'model_type': 'llama', 'hidden_size': 64, 'intermediate_size': 96, "
                    "'vocab_size': 100, 'num_hidden_layers': 6, "
                    "'num_attention_heads': 8}");
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "nul",
                                        "{\"a\": 1, \"a\": 2}",
                                        "{\"model_type\": \"llama\"} x",
                                        "{\"a\": \"\xff\"}",
                                        "{\"a\": NaN}",
                                        "{\"a\": 99999999999999999999}",
                                        "{\"a\": \"\\u0000\"}",
                                        "\n\n{\"a\": \n\t]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct spw_error err = {0};
        struct spw_model_config config;
        CHECK(parse(&config, texts[i], NULL, &err) == -EINVAL);
        CHECK_MSG(!strncmp(err.text, "config.json: ", 13) && strstr(err.text, "expected") &&
                      !strchr(err.text, '\n'),
                  "%s", err.text);
        CHECK(parse(&config, texts[i], NULL, NULL) == -EINVAL); /* err may be NULL */
        spw_error_clear(&err);
        CHECK(parse(&config, llama, texts[i], &err) == -EINVAL);
        CHECK_MSG(!strncmp(err.text, "generation_config.json: ", 24), "%s", err.text);
    }
    char deep[8193];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    struct spw_error err = {0};
    struct spw_model_config config;
    CHECK(parse(&config, deep, NULL, &err) == -EINVAL);
}

static void test_folders(void)
{
    struct spw_error err = {0};
    struct spw_model_config config;
    CHECK(source_config(&config, "/nonexistent/folder", &err) == -ENOENT);
    CHECK(!strcmp(err.text, "/nonexistent/folder: found no such file or folder, expected a "
                            "Hugging Face model folder or a GGUF file"));
    spw_error_clear(&err);
    CHECK(source_config(&config, "tests/unit/model/test_config.c", &err) == -EINVAL);
    CHECK(!strcmp(err.text,
                  "tests/unit/model/test_config.c: found a file that is not GGUF, expected a GGUF "
                  "file or a Hugging Face model folder, not a file in it"));
    open_folder("config");
    for (int is_fifo = 0; is_fifo < 2; is_fifo++) { /* a wait for its writer would never end */
        const char *path = in_folder("config.json");
        CHECK(!(is_fifo ? mkfifo(path, 0600) : mkdir(path, 0700)));
        spw_error_clear(&err);
        CHECK(source_config(&config, folder, &err) == -EINVAL);
        CHECK_MSG(strstr(err.text,
                         is_fifo ? "config.json: found a FIFO" : "config.json: found a directory"),
                  "%s", err.text);
        remove(path);
    }
    close_folder();
}

static void test_golden_folders(void)
{
    static const struct {
        const char *folder, *kinds;
        uint32_t window;
    } cases[] = {{"llama_plain", "FFF", 0},         {"mistral_window_128", "SSS", 128},
                 {"mistral_null_window", "FFF", 0}, {"qwen2_max_window_layers", "FFSS", 32},
                 {"qwen2_layer_types", "SFS", 20},  {"qwen3_bias_sliding", "FSS", 24},
                 {"gemma3_old_keys", "SSFSS", 16},  {"gemma3_new_keys", "SFFS", 16},
                 {"gemma3_wrapped", "SF", 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128];
        struct spw_error err = {0};
        struct spw_model_config config;
        snprintf(path, sizeof path, "tests/golden/%s", cases[i].folder);
        int rc = source_config(&config, path, &err);
        CHECK_MSG(rc == 0, "%s", err.text);
        if (rc)
            continue;
        json_t *facts = config_facts(&config);
        CHECK_MSG(!strcmp(json_string_value(json_object_get(facts, "kinds")), cases[i].kinds), "%s",
                  cases[i].folder);
        json_decref(facts);
        CHECK(config.window == cases[i].window);
        if (!strcmp(cases[i].folder, "llama_plain"))
            CHECK(config.n_eos == 3 && config.eos[2] == 7);
        spw_config_free(&config);
    }
}

/* Real files, where they are. */
static void test_real_configs(void)
{
    static const struct {
        const char *name, *refused;
        uint32_t n_layers, n_kv_heads, head_dim, window, n_eos;
        double theta;
        enum spw_rope_kind kind;
        bool tied;
    } cases[] = {
        {"Llama-2-7b", NULL, 32, 32, 128, 0, 1, 1e4, SPW_ROPE_DEFAULT, false},
        {"Llama-3.1-8B", NULL, 32, 8, 128, 0, 1, 5e5, SPW_ROPE_LLAMA3, false},
        {"Llama-3.2-1B", NULL, 16, 8, 64, 0, 3, 5e5, SPW_ROPE_LLAMA3, true},
        {"Mistral-7B-v0.1", NULL, 32, 8, 128, 4096, 1, 1e4, SPW_ROPE_DEFAULT, false},
        {"Qwen2.5-0.5B-Instruct", NULL, 24, 2, 64, 0, 1, 1e6, SPW_ROPE_DEFAULT, true},
        {"Qwen3-0.6B", NULL, 28, 8, 128, 0, 1, 1e6, SPW_ROPE_DEFAULT, true},
        {"gemma-3-1b-it", NULL, 26, 1, 256, 512, 2, 1e6, SPW_ROPE_DEFAULT, true},
        {"gemma-2-2b", NULL, 26, 4, 256, 4096, 2, 1e4, SPW_ROPE_DEFAULT, true},
        {"Phi-3-mini-4k-instruct", NULL, 32, 32, 96, 2047, 1, 1e4, SPW_ROPE_DEFAULT, false},
        {"Phi-3.5-mini-instruct", NULL, 32, 32, 96, 262144, 1, 1e4, SPW_ROPE_LONG, false},
    };
    const char *data = getenv("SPW_DATA");
    for (size_t i = 0; data && i < sizeof cases / sizeof cases[0]; i++) {
        char path[512];
        struct spw_error err = {0};
        struct spw_model_config config;
        snprintf(path, sizeof path, "%s/configs/%s", data, cases[i].name);
        if (access(path, R_OK))
            continue;
        int rc = source_config(&config, path, &err);
        CHECK_MSG(rc == (cases[i].refused ? -EINVAL : 0), "%s: %s", cases[i].name, err.text);
        if (cases[i].refused)
            CHECK_MSG(strstr(err.text, cases[i].refused) != NULL, "%s", err.text);
        if (rc)
            continue;
        CHECK(config.n_layers == cases[i].n_layers && config.kv[0].n_heads == cases[i].n_kv_heads);
        CHECK(config.kv[0].head_dim == cases[i].head_dim && config.window == cases[i].window);
        CHECK(config.n_eos == cases[i].n_eos && config.tied_embeddings == cases[i].tied);
        CHECK(config.rope[0].theta == cases[i].theta && config.rope[0].kind == cases[i].kind);
        spw_config_free(&config);
    }
}

/* The word is no JSON; in a text it stays. */
static void test_infinity(void)
{
    struct spw_error err = {0};
    struct spw_model_config c;
    const char *text = "{'model_type': 'mamba2', 'hidden_size': 64, 'num_hidden_layers': 1, "
                       "'num_heads': 8, 'head_dim': 16, 'time_step_limit': [0.0, Infinity], "
                       "'a\\\"b': 'Infinity'}";
    CHECK_MSG(parse(&c, json_quoted(text), NULL, &err) == 0, "%s", err.text);
    spw_config_free(&c);
    CHECK(parse(&c, json_quoted("{'model_type': 'Infinity'}"), NULL, &err) == -EINVAL &&
          strstr(err.text, "found \"Infinity\""));
}

int main(void)
{
    static struct config_cases cases = {.read = parse_case};
    json_set_alloc_funcs(json_alloc, json_free);
    test_failed_allocations();
    run_config_cases(&cases, "tests/unit/model/config.cases");
    test_bad_json();
    test_infinity();
    test_folders();
    test_golden_folders();
    test_real_configs();
    CHECK(spw_alloc_outstanding() == 0);
    CHECK(json_outstanding == 0);
    return check_done();
}
