/* config.json: real files and the golden folders, every kind of bad file, and no leak after a
 * failed allocation. Expected values are copied from the files by hand. */
#include "model/config/config.h"
#include "tests/source_config.h"
#include "tests/json_text.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

static const char *const llama =
    "{'model_type': 'llama', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'max_position_embeddings': 512}";
static const char *const mistral =
    "{'model_type': 'mistral', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'max_position_embeddings': 512}";
static const char *const qwen2 =
    "{'model_type': 'qwen2', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'num_key_value_heads': "
    "2,'sliding_window': 32, 'max_window_layers': 4}";
static const char *const qwen3 =
    "{'model_type': 'qwen3', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'num_key_value_heads': null}";
static const char *const gemma3 =
    "{'model_type': 'gemma3_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "6, 'sliding_window': 16}";

static const char *const llama4 =
    "{'model_type': 'llama4_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "6, 'attention_chunk_size': 32}";

static const char *const gemma4 =
    "{'model_type': 'gemma4_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "8, 'sliding_window': 16, 'hidden_size_per_layer_input': 0}";

/* `base` with the keys of `patch` put over it. */
static char *patched(const char *base, const char *patch)
{
    json_t *root = json_loads(json_quoted(base), 0, NULL),
           *change = json_loads(json_quoted(patch), 0, NULL);
    if (!root || !change || json_object_update(root, change))
        abort();
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(change);
    return text;
}

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

static struct spw_model_config accepted[2]; /* the latest ones */

/* The config must be there, and lives until there are two later ones. */
static struct spw_model_config accept(const char *base, const char *patch, const char *generation)
{
    struct spw_error err = {0};
    char *text = patched(base, patch);
    spw_config_free(&accepted[0]);
    accepted[0] = accepted[1];
    int rc = parse(&accepted[1], text, generation ? json_quoted(generation) : NULL, &err);
    CHECK_MSG(rc == 0, "%s: %s", text, err.text);
    json_free(text);
    if (rc)
        abort();
    return accepted[1];
}

/* "FFSC..." */
static bool kinds_are(const struct spw_model_config *config, const char *expected)
{
    bool same = strlen(expected) == config->n_layers;
    for (uint32_t i = 0; same && i < config->n_layers; i++)
        same = config->layer_kinds[i] == (expected[i] == 'S'   ? SPW_LAYER_SLIDING
                                          : expected[i] == 'C' ? SPW_LAYER_CHUNKED
                                                               : SPW_LAYER_FULL);
    return same;
}

static void refuse(const char *base, const char *patch, const char *message)
{
    struct spw_error err = {0};
    struct spw_model_config config;
    char *text = patched(base, patch);
    int rc = parse(&config, text, NULL, &err);
    CHECK_MSG(rc == -EINVAL, "%s gave %d", text, rc);
    CHECK_MSG(strstr(err.text, json_quoted(message)) && !strchr(err.text, '\n'),
              "found '%s', expected '%s'", err.text, message);
    if (!rc)
        spw_config_free(&config);
    json_free(text);
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

static void test_gemma3(void)
{
    struct spw_model_config c = accept(gemma3, "{'query_pre_attn_scalar': 144}", NULL);
    CHECK(c.n_heads == 8 && c.kv[0].n_heads == 4 && c.kv[0].head_dim == 256 && c.vocab == 262208);
    CHECK(c.norm == SPW_NORM_LATE && c.act == SPW_ACT_GELU_TANH && c.sandwich && c.qk_norm);
    CHECK(c.tied_embeddings && c.embedding_scale == 8 && c.attention_scale == (float)(1.0 / 12));
    CHECK(kinds_are(&c, "SSSSSF") && c.window == 16 && c.logit_softcap == 0);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
    c = accept(gemma3,
               "{'rope_theta': 5e5, 'rope_local_base_freq': 2e4, 'sliding_window_pattern': "
               "2,'rope_scaling': {'rope_type': 'linear', 'factor': 8},'final_logit_softcapping': "
               "30.0, 'attn_logit_softcapping': 50.0}",
               NULL);
    CHECK(kinds_are(&c, "SFSFSF") && c.logit_softcap == 30 && c.attention_softcap == 0);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].factor == 8);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 5e5);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 2e4);
    c = accept(gemma3,
               "{'rope_parameters': {'full_attention': {'rope_type': 'linear','factor': 4.0, "
               "'rope_theta': 7e5}, 'sliding_attention': {'rope_theta': 9}},'layer_types': "
               "['full_attention', 'sliding_attention', 'full_attention','full_attention', "
               "'sliding_attention', 'full_attention']}",
               NULL);
    CHECK(kinds_are(&c, "FSFFSF") && c.rope[SPW_LAYER_FULL].theta == 7e5);
    CHECK(c.rope[SPW_LAYER_FULL].factor == 4 && c.rope[SPW_LAYER_SLIDING].theta == 9);
    /* a multimodal wrapper: the decoder's keys one level down, tokens and type at the top */
    c = accept(
        "{'model_type': 'gemma3', 'eos_token_id': [1, 106], 'torch_dtype': 'bfloat16', "
        "'text_config': {'model_type': 'gemma3_text','hidden_size': 2560, 'intermediate_size': "
        "10240, 'num_hidden_layers': 34,'rope_scaling': {'factor': 8.0, 'rope_type': "
        "'linear'},'final_logit_softcapping': 30.0, 'sliding_window': 1024}}",
        "{}", NULL);
    CHECK(!strcmp(c.model_type, "gemma3_text") && c.n_layers == 34 && c.window == 1024);
    CHECK(c.logit_softcap == 0); /* as transformers: the wrapper's class does not cap */
    CHECK(c.n_eos == 2 && c.eos[1] == 106 && c.dtype == SPW_DTYPE_BF16);
    CHECK(c.layer_kinds[5] == SPW_LAYER_FULL && c.layer_kinds[33] == SPW_LAYER_SLIDING);
}

static void test_windows(void)
{
    struct spw_model_config c = accept(qwen2, "{}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.window == 0 && c.qkv_bias && !c.o_bias);
    c = accept(qwen2, "{'use_sliding_window': true}", NULL);
    CHECK(kinds_are(&c, "FFFFSS") && c.window == 32);
    c = accept(qwen2, "{'use_sliding_window': true, 'sliding_window': null}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.window == 0);
    c = accept(qwen2, "{'use_sliding_window': false, 'sliding_window': 0}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.window == 0);
    refuse(qwen2, "{'use_sliding_window': true, 'sliding_window': 0}",
           "sliding_window: found 0, expected an integer from 1");
    const char *types = "'layer_types': ['sliding_attention', 'full_attention', "
                        "'full_attention','full_attention', 'full_attention', 'sliding_attention']";
    char patch[320];
    snprintf(patch, sizeof patch, "{'use_sliding_window': true, %s}", types);
    c = accept(qwen2, patch, NULL);
    CHECK(kinds_are(&c, "SFFFFS") && c.window == 32);
    const char *more = "'sliding_window': 9";
    snprintf(patch, sizeof patch, "{%s, %s}", more, types);
    c = accept(mistral, patch, NULL); /* a ministral to transformers */
    CHECK(kinds_are(&c, "SFFFFS") && c.window == 9 && c.kinds_listed);
    snprintf(patch, sizeof patch, "{'model_type': 'ministral', %s}", types);
    c = accept(mistral, patch, NULL);
    CHECK(kinds_are(&c, "SFFFFS") && c.window == 4096 && !strcmp(c.model_type, "ministral"));
    snprintf(patch, sizeof patch, "{%s}", types);
    refuse(llama, patch, "layer_types: found a list of 6, expected only full_attention: llama");
    snprintf(patch, sizeof patch, "{'model_type': 'mixtral', 'sliding_window': 9, %s}", types);
    refuse(mistral, patch, "layer_types: found a list of 6, expected nothing, or layers as slid");
    snprintf(patch, sizeof patch, "{'model_type': 'qwen3_moe', %s}", types);
    refuse(qwen3, patch, "layer_types: found a list of 6, expected nothing, or layers as slid");
    c = accept(mistral, "{'layer_types': null}", NULL);
    CHECK(kinds_are(&c, "SSSSSS"));
    snprintf(patch, sizeof patch, "{%s}", types);
    refuse(qwen2, patch, "use_sliding_window: found nothing, expected true");
    snprintf(patch, sizeof patch, "{'sliding_window': 0, %s}", types);
    refuse(qwen2, patch, "use_sliding_window: found nothing, expected true");
    refuse(qwen2, "{'layer_types': ['full_attention']}", "layer_types: found a list of 1");
    refuse(gemma3, "{'sliding_window': null}", "sliding_window: found null");
    refuse(gemma3, "{'sliding_window_pattern': 0}", "sliding_window_pattern: found 0");
    refuse(gemma3, "{'num_hidden_layers': 1, 'layer_types': ['chunked_attention']}",
           "layer_types[0]: found 'chunked_attention'");
    refuse(gemma3, "{'num_hidden_layers': 1, 'layer_types': [null]}", "layer_types[0]: found null");
}

/* Facts of the families with layer norms, and of those whose queries grow. */
static void test_other_families(void)
{
    struct spw_model_config c =
        accept(llama, "{'model_type': 'phi', 'layer_norm_eps': 1e-4, 'rms_norm_eps': 1e-3}", NULL);
    CHECK(c.norm == SPW_NORM_MEAN && c.norm_bias && c.parallel && c.plain_mlp && c.head_bias);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.act == SPW_ACT_GELU_TANH && !c.qk_norm);
    CHECK(c.rms_eps == 1e-4f && c.rope[0].rotary_dim == 4 && c.names);
    c = accept(llama, "{'model_type': 'phi', 'partial_rotary_factor': null}", NULL);
    CHECK(c.rope[0].rotary_dim == 8);
    c = accept(llama, "{'model_type': 'starcoder2', 'use_bias': false, 'attention_bias': true}",
               NULL);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.plain_mlp && !c.parallel && c.window == 0);
    c = accept(
        llama,
        "{'model_type': 'stablelm', 'use_parallel_residual': true, 'num_key_value_heads': 8}",
        NULL);
    CHECK(c.parallel && !c.qkv_bias && c.rope[0].rotary_dim == 2 && !c.plain_mlp);
    c = accept(llama, "{'model_type': 'olmo', 'clip_qkv': 8}", NULL);
    CHECK(c.norm_bare && c.qkv_limit == 8 && c.rms_eps == 1e-5f);
    c = accept(llama, "{'model_type': 'cohere2', 'sliding_window': 9, 'num_hidden_layers': 8}",
               NULL);
    CHECK(kinds_are(&c, "SSSFSSSF") && c.rotates[2] && !c.rotates[3] && c.logit_divisor == 16);
    CHECK(c.parallel && c.interleaved_qk && c.tied_embeddings && c.bos == 5);
    CHECK(c.rope_rounding == SPW_ROPE_ROUNDS_ANGLES);
    c = accept(llama, "{'model_type': 'olmo2'}", NULL);
    CHECK(c.rope_rounding == SPW_ROPE_ROUNDS_RESULT);
    c = accept(llama, "{}", NULL);
    CHECK(c.rope_rounding == SPW_ROPE_ROUNDS_ALL);
    c = accept(llama, "{'model_type': 'cohere', 'logit_scale': 0.5, 'use_qk_norm': true}", NULL);
    CHECK(c.logit_divisor == 2 && c.qk_norm && c.qk_norm_by_head && c.rope[0].theta == 5e5);
    c = accept(llama, "{'model_type': 'ministral3', 'head_dim': 8}", NULL);
    CHECK(c.query_growth.beta == 0.1f && c.query_growth.base == 16384 && c.rope[0].theta == 1e6);
    CHECK(c.rope[0].kind == SPW_ROPE_YARN && c.rope[0].attention_factor == 1);
    c = accept(
        "{'model_type': 'mistral3', 'text_config': {'model_type': 'ministral3', 'hidden_size': "
        "64, 'intermediate_size': 96, 'num_hidden_layers': 2}}",
        "{}", NULL);
    CHECK(!strcmp(c.wrapper, "mistral3") && !strcmp(c.model_type, "ministral3") && c.n_heads == 32);

    CHECK(c.tied_embeddings); /* of the wrapper, whatever its text model has */
    c = accept("{'model_type': 'smolvlm', 'text_config': {'hidden_size': 64, 'vocab_size': 100, "
               "'intermediate_size': 96, 'num_hidden_layers': 2, 'num_attention_heads': 8}}",
               "{}", NULL);
    CHECK(!strcmp(c.wrapper, "smolvlm") && !strcmp(c.model_type, "llama") && !c.tied_embeddings);

    refuse(llama, "{'clip_qkv': 8}", "clip_qkv: found 8, expected nothing: llama models");
    refuse(llama, "{'logit_scale': 0.5}", "logit_scale: found 0.5, expected nothing: llama models");
    refuse(llama, "{'model_type': 'cohere', 'logit_scale': 0}", "logit_scale: found 0, expected a");
    refuse(llama, "{'model_type': 'ministral3', 'rope_parameters': {'rope_theta': 5.0}}",
           "rope_parameters.llama_4_scaling_beta: found nothing, expected a number");
    c = accept(llama,
               "{'model_type': 'ministral3', 'rope_parameters': {'rope_type': 'proportional', "
               "'llama_4_scaling_beta': 0.5, 'original_max_position_embeddings': 64.0}}",
               NULL);
    CHECK(c.query_growth.beta == 0.5f && c.query_growth.base == 64);
    refuse(llama, "{'rope_parameters': {'original_max_position_embeddings': 64.5}}",
           "rope_parameters.original_max_position_embeddings: found 64.5, expected an integer");
    refuse(llama,
           "{'model_type': 'smolvlm', 'text_config': {'hidden_size': 64, 'vocab_size': 100, "
           "'intermediate_size': 96, 'num_hidden_layers': 2, 'num_attention_heads': 8, "
           "'rope_scaling': {'factor': 2, 'type': 'x'}}}",
           "text_config.rope_scaling.type: found 'x', expected default, linear");
    refuse(llama, "{'rope_parameters': {'llama_4_scaling_beta': 0.5}}",
           "rope_parameters.llama_4_scaling_beta: found 0.5, expected nothing, or 0");
    c = accept("{'model_type': 'qwen2_5_vl', 'text_config': {'model_type': 'qwen2_5_vl_text', "
               "'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 2, "
               "'num_attention_heads': 4, 'num_key_value_heads': 2, 'rope_scaling': {'type': "
               "'mrope', 'mrope_section': [4, 2, 2]}}}",
               "{}", NULL);
    CHECK(!strcmp(c.wrapper, "qwen2_5_vl") && c.qkv_bias && c.rope[0].kind == SPW_ROPE_DEFAULT);
    refuse(llama, "{'rope_scaling': {'type': 'mrope'}}",
           "rope_scaling.type: found 'mrope', expected default, linear");
    refuse(llama, "{'model_type': 'mistral3', 'text_config': {'model_type': 'llama'}}",
           "text_config.model_type: found 'llama', expected mistral, ministral or ministral3");
    refuse(llama, "{'model_type': 'llava', 'text_config': {'model_type': 'gemma'}}",
           "text_config.model_type: found 'gemma', expected llama, mistral or qwen2");
    refuse(llama, "{'model_type': 'llava', 'text_config': {'model_type': ''}}",
           "text_config.model_type: found '', expected llama, mistral or qwen2");
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

static void test_rope_keys(void)
{
    /* the same model in both generations */
    struct spw_model_config old =
        accept(llama,
               "{'rope_theta': 500000, 'rope_scaling': {'type': 'llama3', 'factor': "
               "8.0,'low_freq_factor': 1.0, 'high_freq_factor': "
               "4.0,'original_max_position_embeddings': 64}}",
               NULL);
    struct spw_model_config new =
        accept(llama,
               "{'rope_theta': 1, 'rope_parameters': {'rope_theta': 500000.0, "
               "'rope_type':'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': "
               "4,'original_max_position_embeddings': 64}}",
               NULL);
    CHECK(old.rope[0].kind == SPW_ROPE_LLAMA3 && old.rope[0].original_max_positions == 64);
    CHECK(old.rope[0].theta == 5e5 && old.rope[0].high_freq_factor == 4);
    for (int kind = 0; kind < SPW_LAYER_KINDS; kind++) {
        CHECK(old.rope[kind].kind == new.rope[kind].kind);
        CHECK(old.rope[kind].theta == new.rope[kind].theta);
        CHECK(old.rope[kind].factor == new.rope[kind].factor);
        CHECK(old.rope[kind].low_freq_factor == new.rope[kind].low_freq_factor);
        CHECK(old.rope[kind].high_freq_factor == new.rope[kind].high_freq_factor);
        CHECK(old.rope[kind].original_max_positions == new.rope[kind].original_max_positions);
    }
    /* the top level's original length wins over a flat dict's; absent, it is the maximum */
    struct spw_model_config c =
        accept(llama,
               "{'original_max_position_embeddings': 77, 'rope_scaling': {'type': 'yarn','factor': "
               "4, 'original_max_position_embeddings': 64}}",
               NULL);
    CHECK(c.rope[0].original_max_positions == 77 && c.rope[0].truncate);
    CHECK(fabs(c.rope[0].attention_factor - 1.13862944) < 1e-8);
    c = accept(llama, "{'rope_scaling': {'type': 'yarn', 'factor': null}}", NULL);
    CHECK(c.rope[0].original_max_positions == 512 && c.rope[0].factor == 1);
    c = accept(llama,
               "{'rope_scaling': {'type': 'yarn', 'factor': null, "
               "'original_max_position_embeddings': 1024}}",
               NULL);
    CHECK(c.rope[0].factor == 0.5 && c.rope[0].attention_factor == 1 && c.reach == 512);
    c = accept(llama, "{'rope_scaling': {'type': 'yarn', 'factor': 4, 'truncate': null}}", NULL);
    CHECK(!c.rope[0].truncate);
    c = accept(llama, "{'rope_scaling': {}, 'rope_parameters': {'rope_theta': 5.0}}", NULL);
    CHECK(c.rope[0].theta == 5); /* an empty dict says nothing */

    refuse(llama, "{'rope_scaling': {'type': 'longrope', 'factor': 2}}",
           "config.json: rope_scaling.short_factor: found nothing, expected a list of ");
    refuse(llama, "{'rope_scaling': {'type': 'su', 'factor': 2}}",
           "config.json: rope_scaling.type: found 'su', expected default, linear");
    refuse(llama, "{'rope_parameters': {'rope_type': 3}}",
           "rope_parameters.rope_type: found 3, expected a string");
    refuse(llama, "{'rope_scaling': 'linear'}", "rope_scaling: found 'linear', expected an object");
    refuse(llama, "{'rope_scaling': {'type': 'linear'}}", "rope_scaling.factor: found nothing");
    refuse(llama, "{'rope_scaling': {'type': 'linear', 'factor': 0.5}}",
           "rope_scaling.factor: found 0.5, expected a number from 1");
    refuse(llama, "{'rope_scaling': {'type': 'yarn'}}",
           "rope_scaling.factor: found nothing, expected a number, or null, for yarn");
    refuse(llama, "{'rope_scaling': {'type': 'llama3', 'factor': 8}}",
           "rope_scaling.low_freq_factor: found nothing");
    refuse(llama,
           "{'rope_scaling': {'type': 'llama3', 'factor': 8, 'low_freq_factor': "
           "4,'high_freq_factor': 1}}",
           "rope_scaling.high_freq_factor: found 1, expected at least low_freq_factor");
    refuse(llama, "{'rope_theta': 0}", "rope_theta: found 0, expected a number from");
    refuse(llama, "{'rope_theta': '1e6'}", "rope_theta: found '1e6'");
    refuse(llama, "{'rope_theta': 0.5, 'rope_scaling': {'type': 'yarn', 'factor': 4}}",
           "rope_theta: found 0.5, expected more than 1, for yarn");
    refuse(llama, "{'partial_rotary_factor': 0.5}", "partial_rotary_factor: found 0.5, expected 1");
    refuse(llama, "{'rope_parameters': {'full_attention': {'rope_theta': 1e4}}}",
           "rope_parameters: found an object, expected one flat set");
    refuse(qwen3, "{'rope_scaling': {'full_attention': {'rope_type': 'linear', 'factor': 2}}}",
           "rope_scaling: found an object, expected one flat set");
    refuse(
        gemma3,
        "{'rope_parameters': {'rope_theta': 1e4}, 'rope_scaling': {'type': 'linear','factor': 8}}",
        "rope_parameters: found an object, expected an object full_attention, which rope_scal");
    refuse(gemma3, "{'rope_parameters': {'full_attention': {'rope_type': 'su'}}}",
           "rope_parameters.full_attention.rope_type: found 'su'");
    refuse(llama, "{'head_dim': 2, 'rope_scaling': {'type': 'dynamic', 'factor': 2}}",
           "head_dim: found 2, expected at least 4");
}

static void test_bad_sizes(void)
{
    refuse(llama, "{'model_type': 'mamba'}",
           "config.json: model_type: found 'mamba', expected llama, mistral, ministral, "
           "ministral3, mixtral, arcee, cohere");
    refuse(llama, "{'model_type': 'gpt_oss', 'swiglu_limit': 5}",
           "swiglu_limit: found 5, expected 7");
    refuse(llama, "{'model_type': 'gpt_oss', 'swiglu_alpha': 1}",
           "swiglu_alpha: found 1, expected 1.702");
    refuse(llama, "{'swiglu_limit': 7}", "swiglu_limit: found 7, expected nothing: llama models");
    refuse(llama, "{'model_type': 'glm4_moe', 'n_group': 48}",
           "n_group: found 48, expected at most 32, which divides the 128 experts into groups of "
           "at least 2");
    refuse(llama, "{'model_type': 'glm4_moe', 'n_group': 3}", "n_group: found 3, expected at most");
    refuse(llama, "{'model_type': 'glm4_moe', 'n_routed_experts': 8, 'n_group': 8}",
           "n_group: found 8, expected at most");
    refuse(llama, "{'model_type': 'glm4_moe', 'n_group': 4, 'topk_group': 5}",
           "topk_group: found 5, expected an integer from 1 to 4");
    refuse(llama, "{'model_type': 'glm4_moe', 'topk_group': 0}",
           "topk_group: found 0, expected an integer from 1 to 1");
    refuse(llama, "{'model_type': 'glm4_moe', 'n_group': 32, 'topk_group': 1}",
           "topk_group: found 1, expected groups that have the 8 experts of a token");
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

/* The lengths that scaled rope allows are not refused: Qwen2.5's own advice for 131,072 tokens
 * leaves max_position_embeddings at 32,768. */
static void test_reach(void)
{
    static const struct {
        const char *patch;
        uint64_t reach;
    } cases[] = {
        {"{}", 32768},
        {"{'rope_scaling': {'type': 'yarn', 'factor': 4.0,'original_max_position_embeddings': "
         "32768}}",
         131072},
        {"{'max_position_embeddings': 131072, 'rope_scaling': {'type': 'yarn','factor': 4.0, "
         "'original_max_position_embeddings': 32768}}",
         131072},
        {"{'rope_scaling': {'type': 'linear', 'factor': 2.5}}", 81920},
        {"{'rope_scaling': {'type': 'dynamic', 'factor': 2}}", 1 << 24},
        {"{'rope_scaling': {'type': 'linear', 'factor': 100000}}", 1 << 24},
        {"{'rope_scaling': {'type': 'llama3', 'factor': 8, 'low_freq_factor': "
         "1,'high_freq_factor': 4, 'original_max_position_embeddings': 8192}}",
         32768},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spw_model_config c = accept(qwen2, cases[i].patch, NULL);
        CHECK_MSG(c.reach == cases[i].reach, "%s: %llu", cases[i].patch,
                  (unsigned long long)c.reach);
    }
    struct spw_model_config c =
        accept(gemma3, "{'rope_scaling': {'rope_type': 'linear', 'factor': 8}}", NULL);
    CHECK(c.reach == 131072); /* counts the factor in */
}

/* Keys that would change the mathematics of a family without them are refused; a neutral number and
 * null are accepted. */
static void test_foreign_keys(void)
{
    static const struct {
        const char *key, *value;
    } keys[] = {{"logit_scale", "0.0625"},
                {"logits_scaling", "8.0"},
                {"residual_multiplier", "0.22"},
                {"embedding_multiplier", "12"},
                {"attention_multiplier", "0.015"},
                {"no_rope_layers", "[1, 1, 1, 0]"},
                {"attention_chunk_size", "8192"},
                {"final_logit_softcapping", "30.0"},
                {"attn_logit_softcapping", "50"},
                {"query_pre_attn_scalar", "256"},
                {"num_experts", "8"},
                {"num_local_experts", "8"},
                {"n_routed_experts", "64"},
                {"logits_soft_cap", "30.0"},
                {"clip_qkv", "8.0"},
                {"per_layer_config", "{'0': {'rms_norm_eps': 0.1}}"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char patch[96], message[96];
        snprintf(patch, sizeof patch, "{'%s': %s}", keys[i].key, keys[i].value);
        snprintf(message, sizeof message, "config.json: %s: found ", keys[i].key);
        refuse(i % 2 ? llama : qwen3, patch, message);
        refuse(mistral, patch, "expected nothing: mistral models have no such key");
        snprintf(patch, sizeof patch, "{'%s': null}", keys[i].key);
        accept(llama, patch, NULL);
    }
    accept(qwen2, "{'logit_scale': 1, 'residual_multiplier': 1.0, 'num_experts': 0}", NULL);
    refuse(gemma3, "{'logits_scaling': 8}", "expected nothing: gemma3_text models have");
    refuse(llama, "{'attention_chunk_size': 32}",
           "attention_chunk_size: found 32, expected nothing: llama models have no such key");
}

/* null: nothing, where transformers takes it; else it is refused. */
static void test_nulls(void)
{
    static const char *const refused[] = {"hidden_act", "rms_norm_eps", "attention_bias",
                                          "mlp_bias",   "rope_theta",   "max_position_embeddings"};
    char patch[160], message[96];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(patch, sizeof patch, "{'%s': null}", refused[i]);
        snprintf(message, sizeof message, "config.json: %s: found null, expected ", refused[i]);
        refuse(llama, patch, message);
    }
    accept(llama, "{'head_dim': null, 'num_key_value_heads': null, 'rope_scaling': null}", NULL);
    accept(llama, "{'rope_theta': null, 'rope_parameters': {'rope_theta': 1e4}}", NULL);
    accept(llama, "{'max_window_layers': null, 'norm_topk_prob': null}", NULL); /* of others */
    accept(llama, "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': null}", NULL);
    refuse(llama, "{'rope_parameters': {'rope_type': null}}",
           "rope_parameters.rope_type: found null, expected a string");
    refuse(llama, "{'rope_parameters': {'rope_theta': null}}",
           "rope_parameters.rope_theta: found null, expected a number");
    refuse(llama, "{'rope_parameters': {'partial_rotary_factor': null}}",
           "rope_parameters.partial_rotary_factor: found null, expected a number");
    refuse(llama,
           "{'rope_parameters': {'rope_type': 'yarn', 'factor': 2, "
           "'original_max_position_embeddings': null}}",
           "rope_parameters.original_max_position_embeddings: found null, expected a number");
    CHECK(!accept(llama4, "{'use_qk_norm': null}", NULL).qk_norm_last);
    CHECK(accept(llama4, "{}", NULL).qk_norm_last);
}

/* The number of experts has two names in some families. */
static void test_expert_counts(void)
{
    static const struct {
        const char *family, *key;
        uint32_t found;
    } cases[] = {
        {"mixtral", "num_local_experts", 4},    {"mixtral", "num_experts", 4},
        {"qwen3_moe", "num_experts", 4},        {"qwen3_moe", "num_local_experts", 4},
        {"olmoe", "num_local_experts", 4},      {"gpt_oss", "num_experts", 4},
        {"glm4_moe", "n_routed_experts", 4},    {"glm4_moe", "num_local_experts", 4},
        {"qwen2_moe", "num_local_experts", 60}, /* as transformers: an unknown key */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char patch[256];
        snprintf(patch, sizeof patch,
                 "{'model_type': '%s', '%s': 4, 'num_experts_per_tok': 2, 'hidden_size': 64, "
                 "'num_attention_heads': 4, 'num_key_value_heads': 4, 'head_dim': 16}",
                 cases[i].family, cases[i].key);
        struct spw_model_config c = accept(llama, patch, NULL);
        CHECK_MSG(c.experts.n == cases[i].found, "%s: %u", patch, c.experts.n);
    }
    refuse(llama,
           "{'model_type': 'qwen3_moe', 'num_local_experts': 4, 'num_experts': 6, "
           "'num_experts_per_tok': 2}",
           "num_local_experts: found 4, expected nothing, or the number of num_experts, 6");
    refuse(llama, "{'model_type': 'ernie4_5_moe', 'moe_k': 2, 'num_experts_per_tok': 1}",
           "num_experts_per_tok: found 1, expected nothing, or the number of moe_k, 2");
    struct spw_model_config c = accept(llama,
                                       "{'model_type': 'hunyuan_v1_moe', 'num_experts': 8, "
                                       "'moe_topk': [2, 2], 'num_experts_per_tok': 2}",
                                       NULL);
    CHECK(c.experts.n_kept == 2);
    c = accept(llama, "{'model_type': 'qwen3_moe', 'num_experts': 0}", NULL);
    CHECK(!c.experts.n && !spw_expert_layers(&c));
    c = accept(llama, "{'model_type': 'qwen3_moe', 'decoder_sparse_step': 100}", NULL);
    CHECK(!spw_expert_layers(&c)); /* no number of a layer is so large */
}

/* Shapes of KV by layer kind, layers that read the KV of others, numbers of each layer. */
static void test_gemma4(void)
{
    struct spw_model_config c = accept(gemma4, "{}", NULL);
    CHECK(kinds_are(&c, "SSSSSFSF") && c.n_kv_layers == 8 && c.kv_layers[7] == 7);
    CHECK(c.kv[SPW_LAYER_SLIDING].head_dim == 256 && c.kv[SPW_LAYER_FULL].head_dim == 512);
    CHECK(c.kv[SPW_LAYER_FULL].n_heads == 4 && !c.v_is_k[SPW_LAYER_FULL] && !c.layer_inputs);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_PROPORTIONAL &&
          c.rope[SPW_LAYER_FULL].rotary_dim == 512 && c.rope[SPW_LAYER_FULL].n_turned == 64);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT && c.attention_scale == 1);
    CHECK(c.kv[SPW_LAYER_FULL].n_slices == 2 && c.kv[SPW_LAYER_SLIDING].n_slices == 1);
    CHECK(c.n_slices == 10 && c.first_slices[5] == 5 && c.first_slices[7] == 8);
    CHECK(c.slice_layers[6] == 5 && c.slice_kinds[6] == SPW_LAYER_FULL && c.slice_layers[7] == 6);
    c = accept(gemma4,
               "{'num_kv_shared_layers': 2, 'use_double_wide_mlp': true, 'attention_k_eq_v': true, "
               "'num_global_key_value_heads': 2, 'global_head_dim': 32, "
               "'hidden_size_per_layer_input': 4, 'use_bidirectional_attention': 'vision'}",
               NULL);
    CHECK(c.n_kv_layers == 6 && c.kv_layers[6] == 4 && c.kv_layers[7] == 5);
    CHECK(spw_config_last_reader(&c, 4) == 6 && spw_config_last_reader(&c, 3) == 3);
    CHECK(spw_config_last_reader(&c, 5) == 7 && spw_config_mlp_width(&c, 6) == 192);
    CHECK(c.kv[SPW_LAYER_SLIDING].n_slices == 4 && spw_config_n_growing(&c, SPW_LAYER_KINDS) == 5);
    CHECK(spw_config_n_growing(&c, SPW_LAYER_FULL) == 1);
    CHECK(c.n_slices == 21 && c.first_slices[6] == 16 && c.first_slices[7] == 20);
    CHECK(c.kv[SPW_LAYER_FULL].n_heads == 2 && c.v_is_k[SPW_LAYER_FULL]);
    CHECK(spw_config_qkv_width(&c, 5) == 10 * 32 && spw_config_qkv_width(&c, 7) == 8 * 32);
    CHECK(c.layer_inputs == 4 && c.input_vocab == 262144);
    c = accept(gemma4,
               "{'per_layer_config': {'5': {'head_dim': 64, 'num_key_value_heads': 1}, '7': "
               "{'head_dim': 64, 'num_key_value_heads': 1}}}",
               NULL);
    CHECK(c.kv[SPW_LAYER_FULL].head_dim == 64 && c.kv[SPW_LAYER_FULL].n_heads == 1);
    c = accept(gemma4, /* as in 31B */
               "{'num_attention_heads': 32, 'num_key_value_heads': 16, 'attention_k_eq_v': true, "
               "'num_global_key_value_heads': 4}",
               NULL);
    CHECK(c.kv[SPW_LAYER_SLIDING].n_slices == 2 && c.kv[SPW_LAYER_FULL].n_slices == 1);
    CHECK(c.n_slices == 14 && spw_config_slice_heads(&c.kv[SPW_LAYER_SLIDING]) == 8);
    refuse(gemma4, "{'per_layer_config': {'5': {'head_dim': 64}}}", "per_layer_config.7: found");
    refuse(gemma4, "{'per_layer_config': {'5': {'intermediate_size': 64}}}",
           "per_layer_config.5: found");
    refuse(gemma4, "{'num_kv_shared_layers': 3}", "that a full layer is before them");
    refuse(gemma4, "{'num_kv_shared_layers': 8}", "num_kv_shared_layers: found 8");
    refuse(gemma4, "{'global_head_dim': 7}", "global_head_dim: found 7, expected an even number");
    refuse(gemma4, "{'attention_k_eq_v': true, 'num_global_key_value_heads': 3}",
           "num_global_key_value_heads: found 3, expected a divisor of num_attention_heads, 8");
    refuse(gemma4, "{'hidden_size_per_layer_input': 4, 'vocab_size_per_layer_input': 100}",
           "vocab_size_per_layer_input: found 100, expected at least vocab_size, 262144");
    refuse(gemma4, "{'use_bidirectional_attention': 'all'}", "use_bidirectional_attention: found");
    refuse(gemma4, "{'enable_moe_block': true}", "num_experts: found nothing");
}

/* Rope by layer kind has two generations of keys in Gemma-3, and one in Gemma-4. */
static void test_nested_rope(void)
{
    const char *types = "'type': 'linear', 'factor': 8";
    char patch[512];
    snprintf(patch, sizeof patch, "{'rope_scaling': {%s}}", types);
    refuse(gemma3, patch, "rope_scaling.type: found 'linear', expected the name rope_type");
    snprintf(patch, sizeof patch, "{'rope_scaling': {'rope_type': 'linear', %s}}", types);
    CHECK(accept(gemma3, patch, NULL).rope[SPW_LAYER_FULL].factor == 8);
    struct spw_model_config c = accept(
        gemma3,
        "{'rope_scaling': {'factor': 2}, 'rope_parameters': {'full_attention': {'rope_type': "
        "'linear', 'factor': 8, 'rope_theta': 77}}}",
        NULL);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].factor == 2);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 77);
    c = accept(llama, "{'model_type': 'olmo3', 'rope_local_base_freq': 7}", NULL);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 5e5); /* a key of Gemma-3 */
    refuse(gemma3,
           "{'rope_parameters': {'full_attention': {'rope_type': 'yarn', 'factor': 2, 'truncate': "
           "false}}}",
           "rope_parameters.full_attention.truncate: found false, expected true");
    refuse(gemma3, "{'rope_parameters': {'full_attention': {}, 'truncate': false}}",
           "rope_parameters.truncate: found false, expected nothing");

    const char *both = "{'full_attention': {'rope_type': 'linear', 'factor': 2, 'rope_theta': 5e5},"
                       "'sliding_attention': {'rope_theta': 7e4}}";
    snprintf(patch, sizeof patch, "{'rope_theta': 1, 'rope_scaling': %s}", both);
    c = accept(gemma4, patch, NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 5e5 && c.rope[SPW_LAYER_FULL].factor == 2);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 7e4);
    c = accept(gemma4, "{'rope_theta': 1, 'rope_local_base_freq': 2}", NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
    refuse(gemma4, "{'rope_scaling': {'rope_type': 'linear', 'factor': 2}}",
           "rope_scaling.full_attention: found nothing, expected an object");
    refuse(gemma4, "{'rope_parameters': {'full_attention': {'rope_theta': 1}}}",
           "rope_parameters.sliding_attention: found nothing, expected an object");
    refuse(gemma4, "{'rope_parameters': {'full_attention': {}, 'sliding_attention': {}}}",
           "rope_parameters.full_attention.rope_theta: found nothing, expected a number");
}

/* Older files have other names for it. */
static void test_longrope(void)
{
    static const char *const names[] = {"longrope", "su", "yarn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char patch[512];
        snprintf(patch, sizeof patch,
                 "{'model_type': 'phi3', 'original_max_position_embeddings': 128, 'rope_scaling': "
                 "{'type': '%s', 'short_factor': [1, 1, 2, 2], 'long_factor': [2, 3, 4, 5]}}",
                 names[i]);
        struct spw_model_config c = accept(llama, patch, NULL);
        CHECK(c.rope[0].kind == SPW_ROPE_LONG && c.rope[0].long_factors[3] == 5 &&
              c.rope[0].original_max_positions == 128);
    }
    struct spw_model_config c =
        accept(llama, /* as transformers: the default wins over a number in the object */
               "{'model_type': 'phi3', 'rope_scaling': {'type': 'longrope', "
               "'original_max_position_embeddings': 128, 'short_factor': [1, 1, 2, 2], "
               "'long_factor': [2, 3, 4, 5]}}",
               NULL);
    CHECK(c.rope[0].original_max_positions == 4096);
    refuse(llama, "{'model_type': 'phi3', 'rope_scaling': {'rope_type': 'linear', 'factor': 2}}",
           "rope_scaling.rope_type: found 'linear', expected default or longrope, in this family");
}

/* Granite 4: layers with attention only. */
#define ATTENTION                                                                                  \
    "'layer_types': ['attention', 'attention', 'attention', 'full_attention', 'attention', "       \
    "'attention']"
static void test_hybrid(void)
{
    struct spw_model_config c = accept(llama,
                                       "{'model_type': 'granitemoehybrid', " ATTENTION
                                       ", 'num_local_experts': 0, 'num_experts_per_tok': 0, "
                                       "'shared_intermediate_size': 80, "
                                       "'position_embedding_type': 'rope'}",
                                       NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.rotates[5] && !c.experts.n && c.intermediate == 80);
    c = accept(llama,
               "{'model_type': 'granitemoehybrid', 'layers_block_type': ['attention', 'attention', "
               "'attention', 'attention', 'attention', 'attention']}",
               NULL);
    CHECK(!c.rotates[0] && c.experts.n == 8 && c.experts.intermediate == 96 &&
          c.experts.shared_intermediate == 1024);
    c = accept(llama, "{'model_type': 'granitemoeshared'}", NULL);
    CHECK(c.rotates[0] && c.experts.n == 8 && !c.experts.shared_intermediate);
    refuse(llama, "{'model_type': 'granitemoehybrid'}",
           "layers_block_type: found nothing, expected 'attention' for each of 6 layers");
    refuse(llama,
           "{'model_type': 'granitemoehybrid', 'layer_types': ['attention', 'mamba', 'mamba', "
           "'mamba', 'mamba', 'attention']}",
           "layer_types[1]: found 'mamba', expected 'attention': this program does not compute "
           "Mamba layers");
    refuse(llama, "{'model_type': 'mixtral', 'num_local_experts': 0}",
           "num_local_experts: found 0, expected an integer from 1");
}

/* Theta is stretched, or the factor is that of the length. */
static void test_alpha(void)
{
    struct spw_model_config c = accept(llama,
                                       "{'model_type': 'hunyuan_v1_dense', 'rope_scaling': "
                                       "{'type': 'dynamic', 'alpha': 1000.0, 'factor': 1.0}}",
                                       NULL);
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT && c.qk_norm && c.qk_norm_after_rope);
    CHECK(fabs(c.rope[0].theta / (1e4 * pow(1000, 8.0 / 6)) - 1) < 1e-12);
    c = accept(llama,
               "{'model_type': 'hunyuan_v1_dense', 'rope_scaling': {'type': 'dynamic', 'alpha': "
               "null, 'factor': 2.0}}",
               NULL);
    CHECK(c.rope[0].kind == SPW_ROPE_DYNAMIC && c.rope[0].theta == 1e4);
    c = accept(llama, "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': 8}", NULL);
    CHECK(c.rope[0].rotary_dim == 8);
    refuse(llama, "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': 32}",
           "rotary_dim: found 32, expected a number from 2 to 16");
}

/* Layers from the first one with experts to the last one. */
static void test_last_layer(void)
{
    struct spw_model_config c = accept(
        llama, "{'model_type': 'ernie4_5_moe', 'num_experts_per_tok': 3, 'moe_layer_end_index': 3}",
        NULL);
    CHECK(!c.has_experts[0] && c.has_experts[1] && c.has_experts[3] && !c.has_experts[4]);
    CHECK(c.experts.n_kept == 3 && c.experts.shared_intermediate == 2 * 1536);
    c = accept(llama, "{'model_type': 'ernie4_5_moe', 'moe_layer_end_index': -1}", NULL);
    CHECK(spw_expert_layers(&c) == 5 && !c.qkv_bias);
    c = accept(llama, "{'model_type': 'ernie4_5_moe', 'use_bias': true}", NULL);
    CHECK(c.qkv_bias && c.o_bias);
    c = accept(llama,
               "{'model_type': 'mellum', 'num_key_value_heads': 8, 'mlp_layer_types': ['sparse', "
               "'dense', 'dense', 'sparse', 'dense', 'dense']}",
               NULL);
    CHECK(spw_expert_layers(&c) == 2 && c.has_experts[3] && kinds_are(&c, "FFFFFF"));
    refuse(llama,
           "{'model_type': 'mellum', 'num_key_value_heads': 8, 'mlp_layer_types': ['sparse', "
           "'other', 'dense', 'sparse', 'dense', 'dense']}",
           "mlp_layer_types: found a list of 6, expected 'sparse' or 'dense' for each layer");
    c = accept(llama,
               "{'model_type': 'hunyuan_v1_moe', 'num_experts': 64, 'moe_topk': [8, 8, 8, 8, 8, "
               "8], 'n_group': false, 'topk_group': false, 'routed_scaling_factor': false}",
               NULL);
    CHECK(c.experts.n_kept == 8);
    refuse(llama, "{'model_type': 'hunyuan_v1_moe', 'num_experts': 64, 'n_group': 8}",
           "n_group: found 8, expected 1");
    refuse(llama, "{'model_type': 'ernie4_5_moe', 'moe_norm_min': 0.1}", "moe_norm_min: found 0.1");
    refuse(llama, "{'model_type': 'dots1', 'num_key_value_heads': 8}",
           "n_routed_experts: found nothing");
}

static void test_chunks(void)
{
    struct spw_model_config c = accept(llama4, "{}", NULL);
    CHECK(kinds_are(&c, "CCCFCC") && c.window == 32 && c.n_heads == 40 && c.kv[0].head_dim == 128);
    CHECK(c.rotates[2] && !c.rotates[3] && c.qk_norm_last && !c.qk_norm && c.interleaved_qk);
    CHECK(c.query_growth.base == 8192 && c.query_growth.offset == 1);
    CHECK(c.intermediate == 16384 && c.experts.intermediate == 96 && c.experts.n == 16 &&
          c.experts.shared_intermediate == 96 && !c.experts.shared_gate &&
          c.experts.weighted_inputs && spw_expert_layers(&c) == 6);
    CHECK(c.rope[SPW_LAYER_CHUNKED].theta == 5e5 && c.bos == 1 && !c.tied_embeddings);
    c = accept(llama4, "{'attention_chunk_size': null, 'no_rope_layers': []}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.window == 0 && !c.rotates[3]);
    c = accept(llama4,
               "{'no_rope_layers': [0, 1, 0, 1, 0, 1], 'interleave_moe_layer_step': 3, "
               "'use_qk_norm': false, 'attn_temperature_tuning': false}",
               NULL);
    CHECK(kinds_are(&c, "FCFCFC") && !c.rotates[0] && !c.qk_norm_last);
    CHECK(c.query_growth.beta == 0 && spw_expert_layers(&c) == 2 && c.has_experts[5]);
    c = accept(llama4,
               "{'moe_layers': [1], 'interleave_moe_layer_step': 3, 'layer_types': "
               "['full_attention', 'full_attention', 'full_attention', 'chunked_attention', "
               "'full_attention', 'full_attention']}",
               NULL);
    CHECK(kinds_are(&c, "FFFCFF") && spw_expert_layers(&c) == 1 && c.has_experts[1]);
    refuse(llama4,
           "{'attention_chunk_size': null, 'layer_types': ['full_attention', 'full_attention', "
           "'full_attention', 'chunked_attention', 'full_attention', 'full_attention']}",
           "attention_chunk_size: found null, expected a number: some layers are chunked");
    refuse(llama4,
           "{'layer_types': ['sliding_attention', 'full_attention', 'full_attention', "
           "'full_attention', 'full_attention', 'full_attention']}",
           "layer_types[0]: found 'sliding_attention', expected 'full_attention' or 'chunked_att");
    refuse(llama4, "{'floor_scale': 0}", "floor_scale: found 0");
    refuse(llama4, "{'moe_layers': 1}",
           "moe_layers: found 1, expected a list of numbers of layers, from 0");
    refuse(llama4, "{'moe_layers': [0, '1']}", "moe_layers: found a list of 2, expected a list of");
    refuse(llama4, "{'moe_layers': [-1]}", "moe_layers: found a list of 1, expected a list of");
    refuse(llama4, "{'model_type': 'llama4', 'text_config': {'model_type': 'llama'}}",
           "text_config.model_type: found 'llama', expected llama4_text");
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
    /* transformers ignores flat keys if each layer kind has its own */
    c = accept(gemma3, "{'rope_parameters': {'rope_theta': 77, 'rope_type': 'default'}}", NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
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
    char folder[] = "/tmp/spw_config_XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK(!mkdir(path, 0700));
    spw_error_clear(&err);
    CHECK(source_config(&config, folder, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "config.json: found a directory") != NULL, "%s", err.text);
    rmdir(path);
    CHECK(!mkfifo(path, 0600)); /* there is no writer: a wait would never end */
    spw_error_clear(&err);
    CHECK(source_config(&config, folder, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "config.json: found a FIFO") != NULL, "%s", err.text);
    unlink(path);
    rmdir(folder);
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

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_defaults();
    test_gemma3();
    test_windows();
    test_other_families();
    test_nulls();
    test_nested_rope();
    test_longrope();
    test_hybrid();
    test_alpha();
    test_last_layer();
    test_chunks();
    test_gemma4();
    test_expert_counts();
    test_cache_words();
    test_rope_keys();
    test_bad_sizes();
    test_reach();
    test_foreign_keys();
    test_facts();
    test_tokens();
    test_bad_json();
    test_folders();
    test_golden_folders();
    test_real_configs();
    for (int i = 0; i < 2; i++)
        spw_config_free(&accepted[i]);
    test_failed_allocations();
    CHECK(spw_alloc_outstanding() == 0);
    CHECK(json_outstanding == 0);
    return check_done();
}
