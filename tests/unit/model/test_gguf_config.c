/* What the keys of a GGUF file say of a model: every fact, the rules for what no key says, and each
 * key that is wrong. */
#include "model/config/config_gguf.h"
#include "tests/check.h"
#include "tests/json_text.h"

#include <math.h>
#include <string.h>

static const char *const plain =
    "{'block_count': 4, 'context_length': 512, 'embedding_length': 64, 'feed_forward_length': 96, "
    "'attention.head_count': 8, 'attention.head_count_kv': 2, "
    "'attention.layer_norm_rms_epsilon': 1e-5}";

static struct spw_config_gguf facts_of(const char *architecture, const char *patch)
{
    struct spw_config_gguf f = {.file = "f.gguf",
                                .architecture = spw_gguf_architecture_find(architecture, false),
                                .keys = json_loads(json_quoted(plain), 0, NULL),
                                .tokenizer = json_loads("{\"bos_token_id\": 1}", 0, NULL),
                                .vocab = 100};
    json_t *change = json_loads(json_quoted(patch), 0, NULL);
    if (!f.architecture || !f.keys || !change || json_object_update(f.keys, change))
        abort();
    json_decref(change);
    return f;
}

static void facts_free(struct spw_config_gguf *f)
{
    json_decref(f->keys);
    json_decref(f->tokenizer);
}

static struct spw_model_config accept_facts(struct spw_config_gguf f)
{
    struct spw_model_config c;
    struct spw_error err = {0};
    int rc = spw_config_from_gguf(&c, &f, &err);
    CHECK_MSG(!rc, "%s", err.text);
    if (rc)
        abort();
    facts_free(&f);
    return c;
}

static void refuse(const char *architecture, const char *patch, const char *message)
{
    struct spw_config_gguf f = facts_of(architecture, patch);
    struct spw_model_config c;
    struct spw_error err = {0};
    f.rope_factors = !strcmp(architecture, "gemma4");
    int rc = spw_config_from_gguf(&c, &f, &err);
    char expected[512];
    snprintf(expected, sizeof expected, "f.gguf: %s", message);
    CHECK_MSG(rc == -EINVAL && !strncmp(err.text, expected, strlen(expected)) && !c.layer_kinds,
              "%d '%s', not '%s'", rc, err.text, expected);
    facts_free(&f);
}

static bool has_rule(const struct spw_model_config *c, const char *part)
{
    for (uint32_t i = 0; i < c->n_rules; i++)
        if (strstr(c->rules[i], part))
            return true;
    return false;
}

static void test_llama(void)
{
    struct spw_model_config c = accept_facts(facts_of("llama", "{}"));
    CHECK(!strcmp(c.model_type, "llama") && c.n_layers == 4 && c.hidden == 64 && c.vocab == 100);
    CHECK(c.intermediate == 96 && c.n_heads == 8 && c.kv[0].n_heads == 2 && c.kv[0].head_dim == 8);
    CHECK(c.max_positions == 512 && c.rms_eps == 1e-5f && c.norm == SPW_NORM_LLAMA);
    CHECK(c.interleaved_qk && c.tied_embeddings && !c.qkv_bias && !c.o_bias && !c.mlp_bias);
    CHECK(c.bos == 1 && c.n_eos == 0 && c.window == 0 && c.rope[0].theta == 1e4);
    CHECK(has_rule(&c, "do not store a sliding window") && c.n_rules == 1);
    spw_config_free(&c);
    struct spw_config_gguf f =
        facts_of("llama", "{'attention.sliding_window': 0, "
                          "'rope.freq_base': 5e5, 'rope.dimension_count': 8, "
                          "'expert_count': 0, 'logit_scale': 1}");
    f.head = f.qkv_bias = f.mlp_bias = f.rope_factors = true;
    c = accept_facts(f);
    CHECK(!c.tied_embeddings && c.qkv_bias && !c.o_bias && c.mlp_bias && c.window == 0);
    CHECK(c.rope[0].kind == SPW_ROPE_FACTORS && c.rope[0].theta == 5e5);
    CHECK(has_rule(&c, "rope_freqs.weight"));
    spw_config_free(&c);
}

static void test_scaling(void)
{
    struct spw_model_config c =
        accept_facts(facts_of("qwen2", "{'rope.scaling.type': 'yarn', 'rope.scaling.factor': 4, "
                                       "'rope.scaling.original_context_length': 128}"));
    CHECK(c.rope[0].kind == SPW_ROPE_YARN && c.rope[0].factor == 4 && c.qkv_bias && !c.o_bias);
    CHECK(c.rope[0].original_max_positions == 128 && c.rope[0].truncate && !c.interleaved_qk);
    CHECK(fabs(c.rope[0].attention_factor - (0.1 * log(4) + 1)) < 1e-12);
    spw_config_free(&c);
    c = accept_facts(
        facts_of("llama", "{'rope.scaling.type': 'linear', 'rope.scaling.factor': 2}"));
    CHECK(c.rope[0].kind == SPW_ROPE_LINEAR && c.rope[1].kind == SPW_ROPE_LINEAR &&
          c.reach == 1024);
    spw_config_free(&c);
    c = accept_facts(facts_of("llama", "{'rope.scaling.type': 'none'}"));
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT);
    spw_config_free(&c);
}

static void test_llama4(void)
{
    const char *keys = "{'expert_count': 16, 'expert_used_count': 1, 'expert_feed_forward_length': "
                       "40, 'interleave_moe_layer_step': 2}";
    struct spw_model_config c = accept_facts(facts_of("llama4", keys));
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(c.layer_kinds[i] == (i == 3 ? SPW_LAYER_FULL : SPW_LAYER_CHUNKED));
        CHECK(c.rotates[i] == (i != 3) && c.has_experts[i] == (i % 2 == 1));
    }
    CHECK(!strcmp(c.model_type, "llama4_text") && c.window == 8192 && c.intermediate == 96);
    CHECK(c.experts.intermediate == 40 && c.experts.shared_intermediate == 40 && c.qk_norm_last);
    CHECK(c.query_growth.base == 8192 && c.grows_unrotated && c.interleaved_qk);
    CHECK(has_rule(&c, "chunks of 8192") && has_rule(&c, "a norm after rope") &&
          has_rule(&c, "queries of layers without rope") && !has_rule(&c, "a window"));
    spw_config_free(&c);
    c = accept_facts(facts_of("llama4", "{'expert_count': 128, 'expert_used_count': 1, "
                                        "'expert_feed_forward_length': 40, "
                                        "'attention.sliding_window': 8192}"));
    CHECK(!c.qk_norm_last && has_rule(&c, "no norm") && c.has_experts[0]);
    spw_config_free(&c);
    refuse("llama4", "{'attention.sliding_window': 0}",
           "llama4.attention.sliding_window: found 0, expected nothing: models without chunks");
    refuse("llama4", "{}", "llama4.expert_count: found nothing");
}

static void test_gemma4(void)
{
    struct spw_config_gguf f = facts_of(
        "gemma4", "{'attention.sliding_window': 16, 'attention.key_length': 32, "
                  "'attention.value_length': 32, 'attention.key_length_swa': 16, "
                  "'attention.value_length_swa': 16, 'rope.dimension_count': 32, "
                  "'rope.dimension_count_swa': 16, 'rope.freq_base': 1e6, "
                  "'attention.sliding_window_pattern': [true, false, true, false], "
                  "'attention.head_count_kv': [2, 1, 2, 1], 'attention.shared_kv_layers': 2, "
                  "'feed_forward_length': [96, 96, 192, 192], 'expert_count': 5, "
                  "'expert_used_count': 2, 'expert_feed_forward_length': [40, 40, 40, 40], "
                  "'embedding_length_per_layer_input': 8, 'final_logit_softcapping': 30}");
    f.rope_factors = f.v_is_k = true;
    struct spw_model_config c = accept_facts(f);
    CHECK(!strcmp(c.model_type, "gemma4_text") && c.window == 16 && c.sandwich && c.v_norm);
    CHECK(c.kv[SPW_LAYER_FULL].n_heads == 1 && c.kv[SPW_LAYER_FULL].head_dim == 32);
    CHECK(c.kv[SPW_LAYER_SLIDING].n_heads == 2 && c.kv[SPW_LAYER_SLIDING].head_dim == 16);
    CHECK(c.v_is_k[SPW_LAYER_FULL] && !c.v_is_k[SPW_LAYER_SLIDING] && c.n_kv_layers == 2);
    CHECK(c.kv_layers[2] == 0 && c.kv_layers[3] == 1 && c.wide_readers && c.intermediate == 96);
    CHECK(c.experts.n == 5 && c.experts.n_kept == 2 && c.experts.intermediate == 40);
    CHECK(c.experts.beside && c.has_experts[0] && c.experts.route.renormalizes);
    CHECK(c.layer_inputs == 8 && c.input_vocab == 100 && c.logit_softcap == 30);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_FACTORS && c.attention_scale == 1);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
    CHECK(has_rule(&c, "of layers that see all positions: divided by the numbers of rope_freqs"));
    spw_config_free(&c);
    f = facts_of("gemma4", "{'attention.sliding_window': 16, 'attention.key_length': 32, "
                           "'attention.key_length_swa': 16}");
    f.rope_factors = true;
    f.input_vocab = 107; /* a table may have rows that no token has */
    c = accept_facts(f);
    CHECK(c.input_vocab == 107 && c.vocab == 100);
    spw_config_free(&c);
}

static void refuse_gemma4(const char *patch, const char *message)
{
    char all[512];
    snprintf(all, sizeof all,
             "{'attention.sliding_window': 16, 'attention.key_length': 32, "
             "'attention.key_length_swa': 16, "
             "'attention.sliding_window_pattern': [true, false, true, false], %s}",
             patch);
    refuse("gemma4", all, message);
}

static void test_gemma4_refused(void)
{
    refuse_gemma4("'attention.head_count_kv': [2, 1, 4, 1]",
                  "gemma4.attention.head_count_kv: found a list of 4, expected a number for each "
                  "kind of layers");
    refuse_gemma4("'attention.head_count_kv': [2, 1, 2]",
                  "gemma4.attention.head_count_kv: found a list of 3, expected a number, or one "
                  "for each layer");
    refuse_gemma4("'attention.head_count_kv': [2, 0, 2, 0]",
                  "gemma4.attention.head_count_kv: found a list of 4");
    refuse_gemma4("'attention.head_count': [8, 8, 8, 4]",
                  "gemma4.attention.head_count: found a list of 4, expected the same number");
    refuse_gemma4("'feed_forward_length': [96, 96, 96, 192]",
                  "gemma4.feed_forward_length: found a list of 4, expected a number for layers "
                  "that store keys");
    refuse_gemma4("'feed_forward_length': [96, 96, 288, 288], 'attention.shared_kv_layers': 2",
                  "gemma4.feed_forward_length: found");
    refuse_gemma4("'attention.shared_kv_layers': 9", "gemma4.attention.shared_kv_layers: found 9");
    refuse_gemma4("'attention.key_length': 33",
                  "gemma4.attention.key_length: found 33, expected an even number");
    refuse_gemma4("'attention.value_length_swa': 32",
                  "gemma4.attention.value_length_swa: found 32, expected 16");
    refuse_gemma4("'attention.sliding_window_pattern': [true]",
                  "gemma4.attention.sliding_window_pattern: found a list of 1, expected a truth");
    refuse("llama", "{'attention.head_count_kv': [2, 2, 1, 2]}",
           "llama.attention.head_count_kv: found a list of 4, expected the same number");
    struct spw_model_config c =
        accept_facts(facts_of("llama", "{'attention.head_count_kv': [2, 2, 2, 2], "
                                       "'feed_forward_length': [48, 48, 48, 48]}"));
    CHECK(c.kv[0].n_heads == 2 && c.intermediate == 48);
    spw_config_free(&c);
}

static void test_gemma3(void)
{
    struct spw_model_config c = accept_facts(facts_of(
        "gemma3", "{'block_count': 7, 'attention.sliding_window': 16, 'attention.key_length': 16, "
                  "'attention.value_length': 16, 'rope.freq_base': 1e6, 'rope.scaling.type': "
                  "'linear', 'rope.scaling.factor': 8}"));
    for (uint32_t i = 0; i < 7; i++)
        CHECK(c.layer_kinds[i] == (i == 5 ? SPW_LAYER_FULL : SPW_LAYER_SLIDING));
    CHECK(!strcmp(c.model_type, "gemma3_text") && c.window == 16 && c.sandwich && c.qk_norm);
    CHECK(c.norm == SPW_NORM_LATE && !c.norm_plus_one && c.embedding_scale == 8.0f);
    CHECK(c.attention_scale == 0.25f && c.act == SPW_ACT_GELU_TANH);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].theta == 1e6);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 1e4 && c.reach == c.max_positions);
    CHECK(has_rule(&c, "every 6th layer") && has_rule(&c, "10000") && has_rule(&c, "key_length^"));
    spw_config_free(&c);
    c = accept_facts(facts_of(
        "gemma3", "{'block_count': 62, 'attention.sliding_window': 16, 'attention.key_length': 16, "
                  "'attention.sliding_window_pattern': 2, 'rope.freq_base_swa': 2e4}"));
    CHECK(c.layer_kinds[0] == SPW_LAYER_SLIDING && c.layer_kinds[1] == SPW_LAYER_FULL);
    CHECK(fabsf(c.attention_scale - 1 / sqrtf(8)) < 1e-7f && has_rule(&c, "(embedding_length /"));
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 2e4 && !has_rule(&c, "6th"));
    spw_config_free(&c);
    c = accept_facts(facts_of("gemma3", "{'attention.sliding_window': 16, "
                                        "'attention.sliding_window_pattern': [false, true, true, "
                                        "false]}"));
    CHECK(c.layer_kinds[0] == SPW_LAYER_FULL && c.layer_kinds[2] == SPW_LAYER_SLIDING);
    CHECK(c.layer_kinds[3] == SPW_LAYER_FULL);
    spw_config_free(&c);
    c = accept_facts(facts_of("gemma3", "{}")); /* no window: every layer is full */
    CHECK(c.window == 0 && c.layer_kinds[0] == SPW_LAYER_FULL);
    spw_config_free(&c);
}

static void test_layer_norms(void)
{
    struct spw_model_config c =
        accept_facts(facts_of("cohere2", "{'logit_scale': 0.25, 'attention.sliding_window': 16, "
                                         "'attention.layer_norm_epsilon': 1e-4}"));
    CHECK(c.norm == SPW_NORM_MEAN && c.rms_eps == 1e-4f && c.logit_divisor == 4 && c.parallel);
    CHECK(c.layer_kinds[2] == SPW_LAYER_SLIDING && c.layer_kinds[3] == SPW_LAYER_FULL);
    CHECK(c.rotates[2] && !c.rotates[3] && has_rule(&c, "every 4th layer") && c.n_rules == 1);
    spw_config_free(&c);
    struct spw_config_gguf f = facts_of("stablelm", "{'use_parallel_residual': true, "
                                                    "'rope.dimension_count': 4}");
    f.qk_norm = true;
    c = accept_facts(f);
    CHECK(c.parallel && c.qk_norm && c.qk_norm_by_head && c.rope[0].rotary_dim == 4);
    spw_config_free(&c);
    c = accept_facts(facts_of("olmo", "{'attention.clamp_kqv': 8}"));
    CHECK(c.norm_bare && c.qkv_limit == 8 && c.interleaved_qk);
    spw_config_free(&c);
    c = accept_facts(facts_of("mistral3", "{'rope.scaling.type': 'yarn', 'rope.scaling.factor': 4, "
                                          "'rope.scaling.original_context_length': 128, "
                                          "'rope.scaling.yarn_log_multiplier': 1, "
                                          "'attention.temperature_scale': 0.5}"));
    CHECK(c.query_growth.beta == 0.5f && c.query_growth.base == 128);
    CHECK(c.rope[0].attention_factor == 1 && c.interleaved_qk);
    spw_config_free(&c);
    refuse("llama", "{'attention.temperature_scale': 0.5}",
           "llama.attention.temperature_scale: found 0.5, expected nothing, or 0");
    refuse("llama", "{'attention.clamp_kqv': 8}",
           "llama.attention.clamp_kqv: found 8, expected nothing: llama models have no such key");
}

/* The sum of an expert's weights: the rule of the architecture, or the key. */
static void test_weights_norm(void)
{
    static const struct {
        const char *architecture, *key;
        bool renormalizes, by_rule;
    } cases[] = {
        {"qwen3moe", "", true, true},
        {"qwen3moe", ", 'expert_weights_norm': false", false, false},
        {"qwen2moe", "", false, true},
        {"qwen2moe", ", 'expert_weights_norm': true", true, false},
        {"olmoe", ", 'expert_weights_norm': true", true, false},
        {"gpt-oss", ", 'expert_weights_norm': true", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char patch[256];
        snprintf(patch, sizeof patch,
                 "{'expert_count': 8, 'expert_used_count': 2, 'expert_feed_forward_length': 32, "
                 "'expert_shared_feed_forward_length': 32%s}",
                 cases[i].key);
        struct spw_model_config c = accept_facts(facts_of(cases[i].architecture, patch));
        CHECK_MSG(c.experts.route.renormalizes == cases[i].renormalizes &&
                      has_rule(&c, "weights of experts") == cases[i].by_rule,
                  "%s%s", cases[i].architecture, cases[i].key);
        spw_config_free(&c);
    }
    refuse("gemma4",
           "{'expert_count': 8, 'expert_used_count': 2, 'expert_feed_forward_length': 32, "
           "'expert_weights_norm': false}",
           "gemma4.expert_weights_norm: found false, expected nothing, or true");
}

/* One number for the pattern: each so many layers one sees all positions. */
static void test_pattern(void)
{
    static const char *const architectures[] = {"gpt-oss", "gemma2", "gemma3", "cohere2"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        struct spw_model_config c = accept_facts(
            facts_of(architectures[i], strcmp(architectures[i], "gpt-oss") != 0
                                           ? "{'attention.sliding_window': 16, "
                                             "'attention.sliding_window_pattern': 3}"
                                           : "{'attention.sliding_window': 16, 'expert_count': 8, "
                                             "'expert_used_count': 2, "
                                             "'attention.sliding_window_pattern': 3}"));
        for (uint32_t l = 0; l < 4; l++)
            CHECK_MSG(c.layer_kinds[l] == (l == 2 ? SPW_LAYER_FULL : SPW_LAYER_SLIDING), "%s %u",
                      architectures[i], l);
        CHECK(!has_rule(&c, "sees all positions"));
        spw_config_free(&c);
    }
}

static void test_ends(void)
{
    struct spw_config_gguf f = facts_of("qwen3", "{}");
    json_object_set_new(f.tokenizer, "eos_token_id", json_pack("[ii]", 7, 9));
    f.more_eos = true;
    struct spw_model_config c = accept_facts(f);
    CHECK(c.n_eos == 2 && c.eos[0] == 7 && c.eos[1] == 9 && c.qk_norm &&
          has_rule(&c, "by their text"));
    spw_config_free(&c);
    f = facts_of("qwen3", "{}");
    struct spw_error err = {0};
    json_object_set_new(f.tokenizer, "eos_token_id", json_integer(100));
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "tokenizer.ggml.eos_token_id: found 100, expected ids below"), "%s",
              err.text);
    facts_free(&f);
}

static void test_wrong(void)
{
    refuse("llama", "{'block_count': 0}", "llama.block_count: found 0, expected an integer from 1");
    refuse("llama", "{'block_count': null}", "llama.block_count: found null, expected an integer");
    refuse("llama", "{'context_length': null}", "llama.context_length: found null, expected the");
    refuse("llama", "{'attention.head_count': 7}",
           "llama.attention.head_count_kv: found 2, expected "
           "a divisor of attention.head_count, 7");
    refuse("llama", "{'attention.head_count': [8, 4, 8, 8]}",
           "llama.attention.head_count: found a list of 4");
    refuse("llama", "{'embedding_length': 60}",
           "llama.embedding_length: found 60, expected 8 "
           "(attention.head_count) times an even head_dim");
    refuse("llama", "{'attention.value_length': 4}",
           "llama.attention.value_length: found 4, expected 8, the channels of a head");
    refuse("llama", "{'rope.dimension_count': 4}",
           "llama.rope.dimension_count: found 4, expected 8");
    refuse("llama", "{'expert_count': 8}", "llama.expert_count: found 8, expected nothing: llama");
    refuse("llama", "{'logit_scale': 2}", "llama.logit_scale: found 2, expected nothing");
    refuse("llama", "{'attention.scale': 0.5}",
           "llama.attention.scale: found 0.5, expected nothing");
    refuse("llama", "{'attention.causal': false}", "llama.attention.causal: found false, expected");
    refuse(
        "llama", "{'rope.scaling.type': 'longrope'}",
        "llama.rope.scaling.type: found \"longrope\", expected a tensor rope_factors_long.weight");
    refuse("llama", "{'rope.scaling.type': 'linear'}",
           "llama.rope.scaling.factor: found nothing, ");
    refuse("llama", "{'rope.scaling.attn_factor': 1.5}",
           "llama.rope.scaling.attn_factor: found 1.5, expected nothing, or 1");
    refuse("llama", "{'final_logit_softcapping': 30}", "llama.final_logit_softcapping: found 30");
    refuse("llama", "{'rope.scaling.factor': 2}",
           "llama.rope.scaling.factor: found 2, expected nothing, or 1");
    refuse("llama", "{'rope.scale_linear': 2}",
           "llama.rope.scale_linear: found 2, expected nothing, or 1");
    refuse("llama", "{'attention.max_alibi_bias': 8}",
           "llama.attention.max_alibi_bias: found 8, expected nothing, or 0");
    refuse("mistral3", "{'attention.temperature_length': 64}",
           "mistral3.attention.temperature_length: found 64, expected nothing, or 0");
    static const char *const without_windows[] = {"llama",   "qwen2",      "qwen3", "glm4",
                                                  "smollm3", "starcoder2", "olmo2", "mistral3"};
    for (size_t i = 0; i < sizeof without_windows / sizeof *without_windows; i++) {
        char message[128];
        snprintf(message, sizeof message,
                 "%s.attention.sliding_window: found 16, expected nothing: such models are read "
                 "from folders only",
                 without_windows[i]);
        refuse(without_windows[i], "{'attention.sliding_window': 16}", message);
    }
    refuse("gemma3", "{'attention.sliding_window': 16, 'attention.sliding_window_pattern': [true]}",
           "gemma3.attention.sliding_window_pattern: found a list of 1, expected a truth value");
    struct spw_config_gguf f =
        facts_of("llama", "{'rope.scaling.type': 'linear', 'rope.scaling.factor': 2}");
    struct spw_model_config c;
    struct spw_error err = {0};
    f.rope_factors = true;
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL &&
          strstr(err.text, "llama.rope.scaling.type: found \"linear\", expected no scaling"));
    facts_free(&f);
    CHECK(!spw_gguf_architecture_find("mamba", false));
}

int main(void)
{
    test_llama();
    test_scaling();
    test_llama4();
    test_gemma3();
    test_gemma4();
    test_gemma4_refused();
    test_layer_norms();
    test_weights_norm();
    test_pattern();
    test_ends();
    test_wrong();
    return check_done();
}
