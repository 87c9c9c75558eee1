/* config.json: sizes and other single values, tokens, every kind of bad file, real files and the
 * golden folders, and no leak after a failed allocation. Expected values are copied from the files
 * by hand. Each of the files test_config_*.c has one subject more. */
#include "tests/config_text.h"
#include "tests/folder.h"
#include "tests/source_config.h"

#include <math.h>

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

static void test_defaults(void)
{
    struct spw_model_config c =
        accept(llama, "{'model_type': 'olmo', 'layer_norm_eps': 0.5}", NULL);
    CHECK(c.rms_eps == 1e-5f); /* no key of this family */
    c = accept(llama, "{}", NULL);
    CHECK(!strcmp(c.model_type, "llama") && c.n_layers == 6 && c.hidden == 64);
    CHECK(c.intermediate == 96 && c.n_heads == 8 && c.kv[0].n_heads == 8 && c.kv[0].head_dim == 8);
    CHECK(c.vocab == 100 && c.max_positions == 512 && c.rms_eps == 1e-6f);
    CHECK(c.norm == SPW_NORM_LLAMA && c.act == SPW_ACT_SILU);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.sandwich);
    CHECK(!c.tied_embeddings && c.embedding_scale == 1 && c.logit_softcap == 0);
    CHECK(c.attention_softcap == 0 && c.attention_scale == (float)(1 / sqrt(8)));
    CHECK(c.dtype == SPW_DTYPE_AUTO && kinds_are(&c, "FFFFFF") && c.window == 0);
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT && c.rope[0].theta == 1e4 && c.rope[1].theta == 1e4);
    CHECK(c.bos == 1 && c.n_eos == 1 && c.eos[0] == 2);

    c = accept(mistral, "{}", NULL); /* an absent window is 4096, a null one is none */
    CHECK(kinds_are(&c, "SSSSSS") && c.window == 4096 && c.kv[0].n_heads == 8);
    c = accept(mistral, "{'sliding_window': null, 'attention_bias': true}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.window == 0 && !c.qkv_bias);

    c = accept(qwen3, "{'head_dim': null}", NULL);
    CHECK(c.kv[0].head_dim == 8 && c.qk_norm && !c.qkv_bias && c.kv[0].n_heads == 8 && c.bos == -1);
    CHECK(c.n_eos == 0);
    c = accept(qwen3, "{'attention_bias': true}", NULL);
    CHECK(c.kv[0].head_dim == 128 && c.qkv_bias && c.o_bias && !c.mlp_bias);
}

static void test_bad_sizes(void)
{
    refuse(
        llama, "{'model_type': 'rwkv'}",
        "config.json: model_type: found 'rwkv', expected a model type that docs/models.md lists");
    refuse(llama, "{'model_type': 'gpt_oss', 'swiglu_limit': 5}",
           "swiglu_limit: found 5, expected 7");
    refuse(llama, "{'model_type': 'gpt_oss', 'swiglu_alpha': 1}",
           "swiglu_alpha: found 1, expected 1.702");
    refuse(llama, "{'swiglu_limit': 7}", "swiglu_limit: found 7, expected nothing: llama models");
    refuse(llama, "{'quantization_config': {'quant_method': 'mxfp4'}}",
           "quantization_config.quant_method: found 'mxfp4', expected fp8");
    refuse(llama, "{'model_type': null}", "model_type: found null");
    refuse(llama, "{'model_type': 7}", "model_type: found 7, expected a string");
    refuse(llama, "{'model_type': 'gemma3'}", "text_config: found nothing, expected an object");
    refuse(llama, "{'model_type': 'gemma3', 'text_config': {'model_type': 'llama'}}",
           "text_config.model_type: found 'llama', expected gemma3_text");
    static const char *const sizes[] = {"num_hidden_layers", "hidden_size", "intermediate_size",
                                        "vocab_size", "num_attention_heads"};
    static const char *const bad[] = {"null", "0",    "-1",   "'64'",       "64.5",
                                      "1e30", "true", "[64]", "4294967296", "9223372036854775807"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t j = 0; j < sizeof bad / sizeof bad[0]; j++) {
            char patch[96], message[96];
            snprintf(patch, sizeof patch, "{'%s': %s}", sizes[i], bad[j]);
            snprintf(message, sizeof message, "config.json: %s: found ", sizes[i]);
            refuse(llama, patch, message);
        }
    }
    refuse(llama, "{'num_key_value_heads': 3}",
           "num_key_value_heads: found 3, expected a divisor of num_attention_heads, 8");
    refuse(llama, "{'num_key_value_heads': 16}", "num_key_value_heads: found 16");
    refuse(llama, "{'num_key_value_heads': 0}", "num_key_value_heads: found 0");
    refuse(qwen2, "{'num_attention_heads': 4, 'num_key_value_heads': 32}", "a divisor of");
    refuse(llama, "{'head_dim': 7}", "head_dim: found 7, expected an even number");
    refuse(llama, "{'head_dim': 2048}", "head_dim: found 2048, expected an integer from 2 to 1024");
    refuse(llama, "{'num_attention_heads': 6}", "hidden_size: found 64, expected 6");
    refuse(llama, "{'hidden_size': 24}", "hidden_size: found 24, expected 8");
    refuse(llama, "{'max_position_embeddings': 0}", "max_position_embeddings: found 0");
    refuse(llama, "{'rms_norm_eps': -1e-6}", "rms_norm_eps: found -9.9999999999999995e-07");
    refuse(llama, "{'hidden_act': 'mish'}", "hidden_act: found 'mish', expected silu, gelu");
    refuse(llama, "{'attention_bias': 1}", "attention_bias: found 1, expected true or false");
    refuse(llama, "{'tie_word_embeddings': 'yes'}", "tie_word_embeddings: found 'yes'");
    refuse(llama, "{'torch_dtype': 'int8'}", "torch_dtype: found 'int8', expected float64");
    refuse(llama, "{'quantization_config': {'bits': 4}}",
           "quantization_config.quant_method: found nothing, expected fp8, or no quantization");
    refuse(llama, "{'quantization_config': {'quant_method': 'gptq'}}",
           "quantization_config.quant_method: found 'gptq', expected fp8");
    refuse(llama, "{'model_type': 'gpt_oss', 'quantization_config': {'quant_method': 'gptq'}}",
           "quantization_config.quant_method: found 'gptq', expected mxfp4, fp8, or no");
    refuse(llama, "{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128]}}",
           "quantization_config.weight_block_size: found a list of 1, expected a list of two");
    refuse(gemma3, "{'use_bidirectional_attention': true}",
           "use_bidirectional_attention: found true");
    accept(llama, "{'is_causal': true}", NULL);
    refuse(llama, "{'is_causal': false}", "is_causal: found false, expected true");
    refuse(gemma3, "{'is_causal': null}", "is_causal: found null, expected true");
    refuse(gemma3, "{'query_pre_attn_scalar': 0}", "query_pre_attn_scalar: found 0");
    refuse(llama, "{'hidden_act': 'a\\nb'}", "hidden_act: found 'a?b'");
}

/* Facts that come from the file only. */
static void test_facts(void)
{
    static const struct {
        const char *name;
        enum spw_activation act;
    } acts[] = {{"relu", SPW_ACT_RELU},
                {"quick_gelu", SPW_ACT_GELU_QUICK},
                {"gelu_new", SPW_ACT_GELU_TANH}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        char patch[64];
        snprintf(patch, sizeof patch, "{'hidden_act': '%s'}", acts[i].name);
        struct spw_model_config c = accept(llama, patch, NULL);
        CHECK(c.act == acts[i].act);
    }
    struct spw_model_config c = accept(llama, "{'torch_dtype': 'float64'}", NULL);
    CHECK(c.dtype == SPW_DTYPE_F32 && !c.fp8_scaled);
    c = accept(llama, "{'quantization_config': {'quant_method': 'fp8'}}", NULL);
    CHECK(c.fp8_scaled && c.fp8_block[0] == 128 && c.fp8_block[1] == 128);
    c = accept(llama, "{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': null}}",
               NULL);
    CHECK(c.fp8_scaled && !c.fp8_block[0] && !c.fp8_block[1]);
    const char *qwen = "{'model_type': 'qwen3_vl', 'text_config': {'model_type': 'qwen3_vl_text', "
                       "'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 2, "
                       "'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 100, "
                       "'quantization_config': {'quant_method': '%s'}}}";
    char text[512];
    snprintf(text, sizeof text, qwen, "fp8");
    CHECK(accept(text, "{}", NULL).fp8_scaled && accept(text, "{}", NULL).fp8_block[1] == 128);
    snprintf(text, sizeof text, qwen, "bitnet");
    refuse(text, "{}", "config.json: text_config.quantization_config.quant_method: found 'bitnet'");
    CHECK(accept(text, "{'quantization_config': {'quant_method': 'fp8'}}", NULL).fp8_scaled);
    /* transformers ignores flat keys if each layer kind has its own */
    c = accept(gemma3, "{'rope_parameters': {'rope_theta': 77, 'rope_type': 'default'}}", NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
}

static bool asks(const struct spw_model_config *c, const char *word, bool by_generation)
{
    return !strcmp(c->cache_implementation, word) && c->cache_by_generation == by_generation;
}

static void test_cache_words(void)
{
    struct spw_model_config c = accept(llama, "{}", "{}");
    CHECK(asks(&c, "", false) && !c.kinds_listed);
    c = accept(llama, "{'cache_implementation': 'hybrid'}", "{}");
    CHECK(asks(&c, "hybrid", false));
    c = accept(llama, "{'cache_implementation': 'hybrid'}", "{'cache_implementation': 'static'}");
    CHECK(asks(&c, "static", true));
    c = accept(llama, "{'cache_implementation': 'hybrid'}",
               "{'cache_implementation': null}"); /* removes it */
    CHECK(asks(&c, "", false));
    c = accept(llama, "{}",
               "{'cache_implementation': 'a\\u001b[31m\\u00e9 0123456789012345678901234567'}");
    CHECK_MSG(asks(&c, "a?[31m?? 0123456789012345678901", true), "%s", c.cache_implementation);
    c = accept(gemma3,
               "{'num_hidden_layers': 2, 'layer_types': ['sliding_attention','full_attention']}",
               NULL);
    CHECK(c.kinds_listed && kinds_are(&c, "SF"));
    refuse(llama, "{'cache_implementation': 4}",
           "config.json: cache_implementation: found 4, expected a string");
}

static void test_tokens(void)
{
    struct spw_model_config c =
        accept(llama, "{'eos_token_id': [5, 6, 7], 'bos_token_id': null}", NULL);
    CHECK(c.n_eos == 3 && c.eos[2] == 7 && c.bos == -1);
    c = accept(llama, "{'eos_token_id': 5}", "{'eos_token_id': [8, 9], 'bos_token_id': 4}");
    CHECK(c.n_eos == 2 && c.eos[0] == 8 && c.eos[1] == 9 && c.bos == 4);
    c = accept(llama, "{'eos_token_id': 5}", "{'do_sample': true}");
    CHECK(c.n_eos == 1 && c.eos[0] == 5);
    refuse(llama, "{'eos_token_id': -1}", "eos_token_id: found -1, expected a token id or a list");
    refuse(llama, "{'eos_token_id': [1, '2']}", "eos_token_id: found a list of 2");
    refuse(llama, "{'eos_token_id': [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}",
           "eos_token_id: found a list of 17");
    refuse(llama, "{'eos_token_id': [1, 100]}",
           "config.json: eos_token_id: found a list of 2, expected ids below vocab_size, 100");
    c = accept(llama, "{'suppress_tokens': [3]}", "{'suppress_tokens': [8, 100, -1, 99]}");
    CHECK(c.n_suppressed == 2 && c.suppressed[0] == 8 && c.suppressed[1] == 99);
    c = accept(llama, "{'suppress_tokens': [3]}", "{'do_sample': true}");
    CHECK(c.n_suppressed == 1 && c.suppressed[0] == 3);
    c = accept(llama, "{'suppress_tokens': [3]}", "{'suppress_tokens': null}");
    CHECK(c.n_suppressed == 0);
    refuse(llama, "{'suppress_tokens': [1, 'a']}",
           "suppress_tokens: found a list of 2, expected a list of at most 128 token ids");
    refuse(llama, "{'bos_token_id': [1]}", "bos_token_id: found a list of 1, expected a token id");
    struct spw_error err = {0};
    CHECK(parse(&c, json_quoted(llama), "{\"eos_token_id\": 2.5}", &err) == -EINVAL);
    CHECK(!strcmp(err.text, "generation_config.json: eos_token_id: found 2.5, expected a token id "
                            "or a list of at most 16"));
}

static void test_bad_json(void)
{
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
        CHECK(parse(&config, json_quoted(llama), texts[i], &err) == -EINVAL);
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
        CHECK_MSG(kinds_are(&config, cases[i].kinds), "%s", cases[i].folder);
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

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_failed_allocations();
    test_defaults();
    test_bad_sizes();
    test_facts();
    test_cache_words();
    test_tokens();
    test_bad_json();
    test_folders();
    test_golden_folders();
    test_real_configs();
    return config_done();
}
