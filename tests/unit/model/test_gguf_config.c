/* What the keys of a GGUF file say of a model: every fact, the rules for what no key says, and each
 * key that is wrong. */
#include "model/config/config_gguf.h"
#include "tests/check.h"
#include "tests/json_text.h"

#include <math.h>
#include <string.h>

/* Keys that architectures need. */
#define WINDOW "'attention.sliding_window': 16"
#define MIXTURE "'expert_count': 8, 'expert_used_count': 2, 'expert_feed_forward_length': 32"
#define PARTIAL "'rope.dimension_count': 4"
#define SECTIONS "rope.dimension_sections rope.mrope_section n_deepstack_layers "
#define YARN                                                                                       \
    "'rope.scaling.type': 'yarn', 'rope.scaling.factor': 4, "                                      \
    "'rope.scaling.original_context_length': 128"
#define GEMMA4                                                                                     \
    WINDOW ", 'attention.key_length': 32, 'attention.key_length_swa': 16, "                        \
           "'attention.sliding_window_pattern': [true, false, true, false]"
#define MUSE "'logit_scale': 0.25, 'final_logit_softcapping': 20, " WINDOW
#define DELTA                                                                                      \
    "'ssm.conv_kernel': 4, 'ssm.state_size': 16, 'ssm.group_count': 2, 'ssm.time_step_rank': 6, "  \
    "'ssm.inner_size': 144, " PARTIAL
#define EXPERTS "expert_weights_norm expert_weights_scale expert_gating_func "

static const char *const plain =
    "{'block_count': 4, 'context_length': 512, 'embedding_length': 64, 'feed_forward_length': 96, "
    "'attention.head_count': 8, 'attention.head_count_kv': 2, 'attention.layer_norm_rms_epsilon': "
    "1e-5, 'attention.layer_norm_epsilon': 1e-5}";

static bool is_above_0(const json_t *keys, const char *key)
{
    return json_number_value(json_object_get(keys, key)) > 0;
}

/* The plain model with the keys of `patch`, without braces, put over it. */
static struct spw_config_gguf facts_of(const char *architecture, const char *patch)
{
    char keys[2048];
    snprintf(keys, sizeof keys, "{%s}", patch);
    json_t *change = json_loads(json_quoted(keys), 0, NULL);
    const bool windows = is_above_0(change, "attention.sliding_window");
    struct spw_config_gguf f = {.file = "f.gguf",
                                .architecture =
                                    spw_gguf_architecture_find(architecture, false, windows),
                                .keys = json_loads(json_quoted(plain), 0, NULL),
                                .tokenizer = json_loads("{\"bos_token_id\": 1}", 0, NULL),
                                .vocab = 100};
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

static struct spw_model_config accepted; /* the latest one */

/* Takes the facts. The config lives until there is a later one. */
static struct spw_model_config accept_facts(struct spw_config_gguf f)
{
    struct spw_error err = {0};
    spw_config_free(&accepted);
    int rc = spw_config_from_gguf(&accepted, &f, &err);
    CHECK_MSG(!rc, "%s", err.text);
    if (rc)
        abort();
    facts_free(&f);
    return accepted;
}

static struct spw_model_config accept(const char *architecture, const char *patch)
{
    return accept_facts(facts_of(architecture, patch));
}

static void refuse(const char *architecture, const char *patch, const char *message)
{
    struct spw_config_gguf f = facts_of(architecture, patch);
    struct spw_model_config c;
    struct spw_error err = {0};
    f.rope_factors = !strcmp(architecture, "gemma4");
    int rc = spw_config_from_gguf(&c, &f, &err);
    char expected[512];
    snprintf(expected, sizeof expected, "f.gguf: %s.%s", architecture, message);
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
    struct spw_model_config c = accept("llama", "");
    CHECK(!strcmp(c.model_type, "llama") && c.n_layers == 4 && c.hidden == 64 && c.vocab == 100);
    CHECK(c.intermediate == 96 && c.n_heads == 8 && c.kv[0].n_heads == 2 && c.kv[0].head_dim == 8);
    CHECK(c.max_positions == 512 && c.rms_eps == 1e-5f && c.norm == SPW_NORM_LLAMA);
    CHECK(c.interleaved_qk && c.tied_embeddings && !c.qkv_bias && !c.o_bias && !c.mlp_bias);
    CHECK(c.bos == 1 && c.n_eos == 0 && c.window == 0 && c.rope[0].theta == 1e4);
    CHECK(has_rule(&c, "do not store a sliding window") && c.n_rules == 1);
    struct spw_config_gguf f =
        facts_of("llama", "'attention.sliding_window': 0, 'rope.freq_base': 5e5, "
                          "'rope.dimension_count': 8, 'expert_count': 0, 'logit_scale': 1");
    f.head = f.qkv_bias = f.mlp_bias = f.rope_factors = true;
    c = accept_facts(f);
    CHECK(!c.tied_embeddings && c.qkv_bias && !c.o_bias && c.mlp_bias && c.window == 0);
    CHECK(c.rope[0].kind == SPW_ROPE_FACTORS && c.rope[0].theta == 5e5);
    CHECK(has_rule(&c, "rope_freqs.weight"));
}

static void test_scaling(void)
{
    struct spw_model_config c = accept("qwen2", YARN);
    CHECK(c.rope[0].kind == SPW_ROPE_YARN && c.rope[0].factor == 4 && c.qkv_bias && !c.o_bias);
    CHECK(c.rope[0].original_max_positions == 128 && c.rope[0].truncate && !c.interleaved_qk);
    CHECK(fabs(c.rope[0].attention_factor - (0.1 * log(4) + 1)) < 1e-12);
    c = accept("llama", "'rope.scaling.type': 'linear', 'rope.scaling.factor': 2");
    CHECK(c.rope[0].kind == SPW_ROPE_LINEAR && c.rope[1].kind == SPW_ROPE_LINEAR &&
          c.reach == 1024);
    refuse("qwen2", "'rope.scaling.type': 'yarn', 'rope.scaling.original_context_length': 128",
           "rope.scaling.factor: found nothing, expected a number");
    c = accept("llama", "'rope.scaling.type': 'none'");
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT);
}

static void test_llama4(void)
{
    const char *keys = "'expert_count': 16, 'expert_used_count': 1, 'expert_feed_forward_length': "
                       "40, 'interleave_moe_layer_step': 2";
    struct spw_model_config c = accept("llama4", keys);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(c.layer_kinds[i] == (i == 3 ? SPW_LAYER_FULL : SPW_LAYER_CHUNKED));
        CHECK(c.rotates[i] == (i != 3) && c.has_experts[i] == (i % 2 == 1));
    }
    CHECK(!strcmp(c.model_type, "llama4_text") && c.window == 8192 && c.intermediate == 96);
    CHECK(c.experts.intermediate == 40 && c.experts.shared_intermediate == 40 && c.qk_norm_last);
    CHECK(c.query_growth.base == 8192 && c.grows_unrotated && c.interleaved_qk);
    CHECK(has_rule(&c, "chunks of 8192") && has_rule(&c, "a norm after rope") &&
          has_rule(&c, "queries of layers without rope") && !has_rule(&c, "a window"));
    c = accept("llama4", "'expert_count': 128, 'expert_used_count': 1, "
                         "'expert_feed_forward_length': 40, 'attention.sliding_window': 8192");
    CHECK(!c.qk_norm_last && has_rule(&c, "no norm") && c.has_experts[0]);
    refuse("llama4", "", "expert_count: found nothing");
}

static void test_gemma4(void)
{
    struct spw_config_gguf f =
        facts_of("gemma4", WINDOW
                 ", 'attention.key_length': 32, 'attention.value_length': 32, "
                 "'attention.key_length_swa': 16, 'attention.value_length_swa': 16, "
                 "'rope.dimension_count': 32, 'rope.dimension_count_swa': 16, 'rope.freq_base': "
                 "1e6, 'attention.sliding_window_pattern': [true, false, true, false], "
                 "'attention.head_count_kv': [2, 1, 2, 1], 'attention.shared_kv_layers': 2, "
                 "'feed_forward_length': [96, 96, 192, 192], 'expert_count': 5, "
                 "'expert_used_count': 2, 'expert_feed_forward_length': [40, 40, 40, 40], "
                 "'embedding_length_per_layer_input': 8, 'final_logit_softcapping': 30");
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
    CHECK(has_rule(&c, "scores are not scaled") && has_rule(&c, "values are keys"));
    f = facts_of("gemma4", WINDOW ", 'attention.key_length': 32, 'attention.key_length_swa': 16");
    f.rope_factors = true;
    f.input_vocab = 107; /* a table may have rows that no token has */
    c = accept_facts(f);
    CHECK(c.input_vocab == 107 && c.vocab == 100);
}

static void test_gemma4_refused(void)
{
    refuse("gemma4",
           GEMMA4 ", 'feed_forward_length': [96, 96, 288, 288], 'attention.shared_kv_layers': 2",
           "feed_forward_length: found");
    struct spw_model_config c =
        accept("llama",
               "'attention.head_count_kv': [2, 2, 2, 2], 'feed_forward_length': [48, 48, 48, 48]");
    CHECK(c.kv[0].n_heads == 2 && c.intermediate == 48);
}

static void test_gemma3(void)
{
    struct spw_model_config c = accept(
        "gemma3", "'block_count': 7, " WINDOW
                  ", 'attention.key_length': 16, 'attention.value_length': 16, 'rope.freq_base': "
                  "1e6, 'rope.scaling.type': 'linear', 'rope.scaling.factor': 8");
    for (uint32_t i = 0; i < 7; i++)
        CHECK(c.layer_kinds[i] == (i == 5 ? SPW_LAYER_FULL : SPW_LAYER_SLIDING));
    CHECK(!strcmp(c.model_type, "gemma3_text") && c.window == 16 && c.sandwich && c.qk_norm);
    CHECK(c.norm == SPW_NORM_LATE && !c.norm_plus_one && c.embedding_scale == 8.0f);
    CHECK(c.attention_scale == 0.25f && c.act == SPW_ACT_GELU_TANH);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].theta == 1e6);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 1e4 && c.reach == c.max_positions);
    CHECK(has_rule(&c, "every 6th layer") && has_rule(&c, "10000") && has_rule(&c, "key_length^"));
    c = accept("gemma3", "'block_count': 62, " WINDOW
                         ", 'attention.key_length': 16, 'attention.sliding_window_pattern': 2, "
                         "'rope.freq_base_swa': 2e4");
    CHECK(c.layer_kinds[0] == SPW_LAYER_SLIDING && c.layer_kinds[1] == SPW_LAYER_FULL);
    CHECK(fabsf(c.attention_scale - 1 / sqrtf(8)) < 1e-7f && has_rule(&c, "(embedding_length /"));
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 2e4 && !has_rule(&c, "6th"));
    c = accept("gemma3", WINDOW ", 'attention.sliding_window_pattern': [false, true, true, false]");
    CHECK(c.layer_kinds[0] == SPW_LAYER_FULL && c.layer_kinds[2] == SPW_LAYER_SLIDING);
    CHECK(c.layer_kinds[3] == SPW_LAYER_FULL);
    c = accept("gemma3", ""); /* no window: every layer is full */
    CHECK(c.window == 0 && c.layer_kinds[0] == SPW_LAYER_FULL);
}

/* A window that is no number is not taken for none, nor are other things for false. */
static void test_windows(void)
{
    refuse("gemma3", WINDOW ", 'attention.sliding_window_pattern': [true, 1, true, false]",
           "attention.sliding_window_pattern: found a list of 4, expected a truth value");
}

static void test_layer_norms(void)
{
    struct spw_model_config c =
        accept("cohere2", "'logit_scale': 0.25, " WINDOW ", 'attention.layer_norm_epsilon': 1e-4");
    CHECK(c.norm == SPW_NORM_MEAN && c.rms_eps == 1e-4f && c.logit_divisor == 4 && c.parallel);
    CHECK(c.layer_kinds[2] == SPW_LAYER_SLIDING && c.layer_kinds[3] == SPW_LAYER_FULL);
    CHECK(c.rotates[2] && !c.rotates[3] && has_rule(&c, "every 4th layer") && c.n_rules == 1);
    struct spw_config_gguf f = facts_of("stablelm", "'use_parallel_residual': true, " PARTIAL);
    f.qk_norm = true;
    c = accept_facts(f);
    CHECK(c.parallel && c.qk_norm && c.qk_norm_by_head && c.rope[0].rotary_dim == 4);
    c = accept("olmo", "'attention.clamp_kqv': 8");
    CHECK(c.norm_bare && c.qkv_limit == 8 && c.interleaved_qk);
    c = accept("mistral3",
               YARN ", 'rope.scaling.yarn_log_multiplier': 1, 'attention.temperature_scale': 0.5");
    CHECK(c.query_growth.beta == 0.5f && c.query_growth.base == 128);
    CHECK(c.rope[0].attention_factor == 1 && c.interleaved_qk);
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
        const bool shared = !strcmp(cases[i].architecture, "qwen2moe");
        const bool windows = !strcmp(cases[i].architecture, "gpt-oss");
        char patch[256];
        snprintf(patch, sizeof patch, MIXTURE "%s%s%s",
                 shared ? ", 'expert_shared_feed_forward_length': 32" : "",
                 windows ? ", " WINDOW : "", cases[i].key);
        struct spw_model_config c = accept(cases[i].architecture, patch);
        CHECK_MSG(c.experts.route.renormalizes == cases[i].renormalizes &&
                      has_rule(&c, "weights of experts") == cases[i].by_rule,
                  "%s%s", cases[i].architecture, cases[i].key);
    }
    refuse("gemma4", MIXTURE ", " WINDOW ", 'expert_weights_norm': false",
           "expert_weights_norm: found false, expected nothing, or true");
}

/* OLMo 2 and 3 have one architecture: the window tells. */
static void test_olmo(void)
{
    struct spw_model_config c = accept("olmo2", "'rope.freq_base': 5e5");
    CHECK(!strcmp(c.model_type, "olmo2") && c.window == 0 && c.late_norms && c.n_rules == 0);
    const char *olmo3 =
        WINDOW ", 'rope.freq_base': 5e5, " YARN ", 'rope.scaling.yarn_attn_factor': 1.25%s";
    for (int own = 0; own < 2; own++) {
        char keys[512];
        snprintf(keys, sizeof keys, olmo3,
                 own ? ", 'rope.freq_base_swa': 1e4, 'attention.sliding_window_pattern': [true, "
                       "false, false, true]"
                     : "");
        c = accept("olmo2", keys);
        CHECK(!strcmp(c.model_type, "olmo3") && c.window == 16 && c.qk_norm_whole && c.late_norms);
        for (uint32_t i = 0; i < 4; i++)
            CHECK((c.layer_kinds[i] == SPW_LAYER_SLIDING) == (own ? i % 3 == 0 : i != 3));
        CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_YARN && c.rope[SPW_LAYER_FULL].theta == 5e5);
        CHECK(c.rope[SPW_LAYER_FULL].attention_factor == 1.25);
        CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
        CHECK(c.rope[SPW_LAYER_SLIDING].theta == (own ? 1e4 : 5e5));
        CHECK(has_rule(&c, "every 4th layer") == !own && !has_rule(&c, "rope base"));
    }
}

static void test_glm(void)
{
    struct spw_config_gguf f = facts_of("chatglm", PARTIAL);
    f.qkv_bias = true;
    struct spw_model_config c = accept_facts(f);
    CHECK(!strcmp(c.model_type, "glm") && c.interleaved_qk && c.qkv_bias && !c.o_bias);
    CHECK(c.rope[0].rotary_dim == 4 && c.kv[0].head_dim == 8 && !c.sandwich && c.n_rules == 0);
}

/* Facts that the format has no key for. */
static void test_rules(void)
{
    struct spw_model_config c = accept("smollm3", "");
    CHECK(has_rule(&c, "every 4th layer has no rope") && c.n_rules == 1);
    c = accept("gpt-oss", MIXTURE ", " WINDOW ", " YARN);
    CHECK(has_rule(&c, "every 2nd layer") && has_rule(&c, "rope of YaRN"));
}

/* ---- each key is read or refused ---- */

/* Values that no tiny model has; 3 where none is given. */
static const char keys_of_gguf[] =
    "activation_sparsity_scale altup.num_inputs attention.causal=false attention.chunk_size "
    "attention.clamp_kqv attention.group_norm_groups attention.head_dim=6 attention.key_length=6 "
    "attention.key_length_mla=6 attention.key_length_swa=6 attention.kv_lora_rank "
    "attention.layer_norm_epsilon=3e-3 attention.layer_norm_rms_epsilon=3e-3 "
    "attention.max_alibi_bias attention.output_scale attention.q_lora_rank attention.scale "
    "attention.shared_kv_layers=1 attention.sliding_window attention.sliding_window_pattern "
    "attention.temperature_length attention.temperature_scale attention.value_length=6 "
    "attention.value_length_swa=6 attn_logit_softcapping decoder_block_count "
    "embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length "
    "expert_count expert_feed_forward_length expert_gating_func=4 expert_group_count=2 "
    "expert_group_scale expert_group_used_count=1 expert_shared_count "
    "expert_shared_feed_forward_length expert_used_count expert_weights_norm=false "
    "expert_weights_norm=true expert_weights_scale experts_per_group final_logit_softcapping "
    "full_attention_interval image_token_index interleave_moe_layer_step leading_dense_block_count "
    "logit_scale max_position_embeddings mm.tokens_per_image moe_every_n_layers moe_latent_size "
    "n_deepstack_layers nextn_predict_layers=1 norm_top_k_prob=false pooling_type "
    "rescale_every_n_layers residual_scale rope.dimension_count=6 rope.dimension_count_swa=6 "
    "rope.dimension_sections=[0,3,0,0] rope.freq_base=3e3 rope.freq_base_swa=3e3 "
    "rope.global.freq_base=3e3 rope.local.freq_base=3e3 rope.mrope_section=[3,3,2] "
    "rope.scale_linear rope.scaling.alpha rope.scaling.attn_factor rope.scaling.beta_fast "
    "rope.scaling.beta_slow rope.scaling.factor rope.scaling.finetuned=false rope.scaling.mscale "
    "rope.scaling.mscale_all_dim rope.scaling.type='longrope' rope.scaling.yarn_attn_factor "
    "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor "
    "rope.scaling.yarn_log_multiplier rope.scaling_beta router_logit_softcapping "
    "spatial_merge_size ssm.conv_kernel swiglu_clamp_exp=[3,3,3,3] swin_norm=true "
    "tensor_data_layout='another' token_shift_count use_parallel_residual=false "
    "use_parallel_residual=true use_qk_norm=false vision.block_count vocab_size wkv.head_size";

/* Keys that an architecture needs, and keys of the list above that change nothing in it. */
static const struct {
    const char *architecture, *keys, *unused;
} models[] = {
    {"llama", "", EXPERTS},
    {"llama", MIXTURE, ""},
    {"mistral3", "", EXPERTS},
    {"mistral3", YARN ", 'rope.scaling.yarn_log_multiplier': 0.5", EXPERTS},
    {"command-r", "'logit_scale': 0.25", EXPERTS},
    {"cohere2", "'logit_scale': 0.25, " WINDOW, EXPERTS},
    {"chatglm", PARTIAL, EXPERTS},
    {"glm4", PARTIAL, EXPERTS},
    {"glm4moe", PARTIAL ", " MIXTURE, ""},
    {"gpt-oss", MIXTURE ", " WINDOW, "expert_weights_norm "},
    {"gptoss", MIXTURE ", " WINDOW, "expert_weights_norm "},
    {"granite", "'logit_scale': 0.25, 'attention.scale': 0.5",
     EXPERTS "ssm.conv_kernel expert_shared_feed_forward_length "},
    {"granitemoe", "'logit_scale': 0.25, 'attention.scale': 0.5, " MIXTURE,
     "expert_weights_norm ssm.conv_kernel "},
    {"arcee", "", EXPERTS},
    {"hunyuan-dense", "", EXPERTS},
    {"hunyuan-moe", MIXTURE, ""},
    {"jais2", "", EXPERTS},
    {"exaone-moe", MIXTURE ", " WINDOW, ""},
    {"mellum", MIXTURE ", " WINDOW, ""},
    {"nemotron", PARTIAL, EXPERTS},
    {"ernie4_5-moe", MIXTURE, ""},
    {"dots1", MIXTURE, ""},
    {"minimax-m2", MIXTURE, ""},
    {"olmo", "", EXPERTS},
    {"olmo2", "", EXPERTS},
    {"olmo2", WINDOW, EXPERTS},
    {"olmo2", WINDOW ", " YARN, EXPERTS},
    {"olmo3", WINDOW, EXPERTS},
    {"olmoe", MIXTURE, ""},
    {"phi2", PARTIAL, EXPERTS},
    {"phi3", "", EXPERTS},
    {"phi3", WINDOW, EXPERTS},
    {"qwen2", "", EXPERTS},
    {"qwen2moe", MIXTURE ", 'expert_shared_feed_forward_length': 32", ""},
    {"qwen2vl", "", EXPERTS SECTIONS},
    {"qwen25vl", "", EXPERTS SECTIONS},
    {"qwen3", "", EXPERTS},
    {"qwen3vl", "", EXPERTS SECTIONS},
    {"qwen3vlmoe", MIXTURE, SECTIONS},
    {"qwen3moe", MIXTURE, ""},
    {"smollm3", "", EXPERTS},
    {"stablelm", PARTIAL, EXPERTS},
    {"starcoder2", "", EXPERTS},
    {"seed_oss", "", EXPERTS},
    {"ernie4_5", "", EXPERTS},
    {"exaone4", WINDOW, EXPERTS},
    {"exaone4", "", EXPERTS},
    {"gemma", "", EXPERTS},
    {"gemma2", WINDOW, EXPERTS},
    {"gemma3", WINDOW, EXPERTS},
    {"gemma3", "", EXPERTS},
    {"gemma4", WINDOW ", 'attention.key_length': 16, 'attention.key_length_swa': 8", ""},
    {"llama4", MIXTURE, "expert_weights_norm "},
    {"muse-glimmer", MUSE, EXPERTS},
    {"qwen35", DELTA, EXPERTS "rope.dimension_sections rope.mrope_section n_deepstack_layers "},
    {"qwen3next", DELTA ", 'expert_shared_feed_forward_length': 8, " MIXTURE, ""},
    {"lfm2", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 0, 0]", EXPERTS},
    {"lfm2moe", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 0, 0], " MIXTURE, ""},
};

/* Everything but addresses, and the lists that they lead to. */
static uint64_t hash_of(const struct spw_model_config *c)
{
    struct spw_model_config flat = *c;
    uint64_t h = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        h = h * 31 + c->layer_kinds[i] * 8u + c->has_experts[i] * 4u + c->rotates[i] * 2u +
            c->kv_layers[i] * 16u + c->has_mlp[i] * 32u + spw_config_has_state(c, i) * 64u;
    flat.layer_kinds = NULL;
    flat.has_experts = flat.rotates = flat.has_mlp = NULL;
    flat.state_slices = NULL;
    flat.kv_layers = flat.first_slices = flat.slice_layers = NULL;
    flat.slice_kinds = NULL;
    memset(flat.rules, 0, sizeof flat.rules);
    flat.n_rules = 0;
    for (size_t i = 0; i < sizeof flat; i++)
        h = h * 1099511628211u + ((const uint8_t *)&flat)[i];
    return h;
}

/* The hash of a model's config; 0: it was refused, by the name of the key. */
static uint64_t hash_with(size_t model, const char *key, const char *value)
{
    char patch[512], name[128];
    const char *architecture = models[model].architecture, *keys = models[model].keys;
    snprintf(patch, sizeof patch, key ? "%s%s'%s': %s" : "%s", keys, *keys ? ", " : "", key, value);
    struct spw_config_gguf f = facts_of("llama", patch);
    json_object_clear(f.tokenizer);
    f.architecture = spw_gguf_architecture_find(architecture, is_above_0(f.keys, "expert_count"),
                                                is_above_0(f.keys, "attention.sliding_window"));
    f.rope_factors = !strcmp(architecture, "gemma4");
    struct spw_model_config c;
    struct spw_error err = {0};
    const int rc = spw_config_from_gguf(&c, &f, &err);
    const uint64_t h = rc ? 0 : hash_of(&c);
    snprintf(name, sizeof name, "f.gguf: %s.%s: found ", architecture, key ? key : "");
    if (rc && key && strcmp(key, "expert_count") != 0) /* others may be missing then */
        CHECK_MSG(!strncmp(err.text, name, strlen(name)), "%s %s: %s", architecture, patch,
                  err.text);
    CHECK_MSG(!rc || key, "%s: %s", architecture, err.text);
    if (!rc)
        spw_config_free(&c);
    facts_free(&f);
    return h;
}

/* Keys that published files have beside those of the tiny models. */
static void test_published(void)
{
    struct spw_model_config c =
        accept("glm4moe", PARTIAL
               ", " MIXTURE
               ", 'expert_group_count': 1, 'expert_group_used_count': 1, 'expert_gating_func': 2, "
               "'expert_weights_scale': 2.5, 'expert_weights_norm': true, 'expert_shared_count': "
               "1, 'leading_dense_block_count': 1, 'rope.dimension_sections': [0, 0, 0, 0]");
    CHECK(c.experts.n && !c.has_experts[0] && c.has_experts[1] && c.experts.route.renormalizes);
    CHECK(!c.experts.route.n_groups);
    c = accept("glm4moe", PARTIAL ", " MIXTURE);
    CHECK(c.has_experts[0]); /* without leading_dense_block_count, as in llama.cpp: Solar Open's */
    refuse("glm4moe", PARTIAL ", " MIXTURE ", 'expert_weights_scale': 0",
           "expert_weights_scale: found 0, expected nothing, or a factor");
    c = accept("glm4moe",
               PARTIAL ", " MIXTURE ", 'expert_group_count': 4, 'expert_group_used_count': 2");
    CHECK(c.experts.route.n_groups == 4 && c.experts.route.n_groups_kept == 2);
    c = accept("granite",
               "'logit_scale': 10, 'attention.scale': 0.015625, 'expert_count': 0, "
               "'expert_used_count': 0, 'expert_shared_feed_forward_length': 96, "
               "'ssm.conv_kernel': 4, 'ssm.state_size': 128, 'rope.scaling.finetuned': false");
    CHECK(!c.experts.n && !c.rotates[0]);
    c = accept("ernie4_5-moe",
               MIXTURE ", 'leading_dense_block_count': 1, 'interleave_moe_layer_step': 1, "
                       "'expert_shared_count': 2, 'expert_shared_feed_forward_length': 64");
    CHECK(!c.has_experts[0] && c.has_experts[1] && c.experts.shared_intermediate == 64 &&
          c.experts.choice_bias && c.experts.route.score == SPW_ROUTE_SOFTMAX);
}

#define SSM                                                                                        \
    "'ssm.conv_kernel': 4, 'ssm.state_size': 16, 'ssm.inner_size': 96, 'ssm.time_step_rank': 6"

static void test_mamba(void)
{
    struct spw_config_gguf f =
        facts_of("mamba", "'attention.head_count': 0, 'feed_forward_length': "
                          "0, 'ssm.dt_b_c_rms': false, " SSM);
    json_object_del(f.keys, "attention.head_count_kv");
    f.conv_bias = true;
    struct spw_model_config c = accept_facts(f);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(m->kind == SPW_MIXER_SCAN && m->dt_rank == 6 && m->value_dim == 96 && m->key_dim == 16 &&
          m->conv_bias && !m->in_bias && !c.has_mlp[3] && c.state_slices[3] == 3);
    f = facts_of("mamba2",
                 "'attention.head_count': 0, 'feed_forward_length': 0, 'ssm.group_count': "
                 "2, " SSM);
    json_object_del(f.keys, "attention.head_count_kv");
    f.gate_norm = f.state_bias = true;
    c = accept_facts(f);
    CHECK(m->kind == SPW_MIXER_SSD && m->heads == 6 && m->value_dim == 16 && m->key_heads == 2 &&
          m->gate_norm && !m->norm_first && m->in_bias && m->out_bias && !m->conv_bias);
    c = accept("falcon-h1", "'ssm.group_count': 1, " SSM);
    CHECK(spw_config_has_state(&c, 2) && spw_config_attends(&c, 2) && !m->gate_norm &&
          c.branch_scales[SPW_BRANCH_MLP] == 1 && m->in_scales[0] == 1);
    c = accept(
        "granitehybrid",
        "'attention.head_count_kv': [0, 0, 2, 0], 'logit_scale': 8, 'attention.scale': 0.1, "
        "'expert_count': 0, 'expert_used_count': 0, 'expert_shared_feed_forward_length': 72, "
        "'rope.scaling.finetuned': false, 'ssm.group_count': 1, " SSM);
    CHECK(!spw_config_attends(&c, 0) && spw_config_attends(&c, 2) && c.intermediate == 72 &&
          c.kv[SPW_LAYER_FULL].n_heads == 2 && !c.rotates[2]);
    c = accept("granitehybrid",
               "'attention.head_count_kv': 0, 'logit_scale': 8, 'attention.scale': "
               "0.1, 'expert_count': 0, 'ssm.group_count': 1, "
               "'expert_shared_feed_forward_length': 72, " SSM);
    CHECK(!spw_config_attends(&c, 2));
    refuse("mamba2", "'ssm.state_size': 16, 'ssm.time_step_rank': 6",
           "ssm.inner_size: found nothing, expected a number");
    refuse("mamba2", SSM, "ssm.group_count: found nothing");
    refuse("mamba",
           "'attention.head_count': 0, 'attention.head_count_kv': 0, "
           "'feed_forward_length': 0, 'ssm.dt_b_c_rms': true, " SSM,
           "ssm.dt_b_c_rms: found true");
}

static struct spw_config_gguf nemotron_facts(const char *architecture, const char *blocks,
                                             const char *patch)
{
    struct spw_config_gguf f = facts_of(architecture, patch);
    f.blocks = json_string(blocks);
    f.mlp_width = 40;
    json_object_del(f.keys, "attention.layer_norm_rms_epsilon");
    return f;
}

/* What a layer is does not follow from keys: some converters write 0 where they should not. */
static void test_nemotron_h(void)
{
    struct spw_config_gguf f = nemotron_facts(
        "nemotron_h", "M-*M",
        "'attention.head_count_kv': [0, 0, 2, 0], 'feed_forward_length': [0, 40, 0, 0], "
        "'rope.dimension_count': 84, 'ssm.group_count': 2, 'attention.key_length': 16, " SSM);
    json_t *blocks = f.blocks;
    struct spw_model_config c = accept_facts(f);
    CHECK(c.layer_kinds[0] == SPW_LAYER_STATE && c.layer_kinds[1] == SPW_LAYER_NONE &&
          c.layer_kinds[2] == SPW_LAYER_FULL && c.intermediate == 40 && c.has_mlp[1] &&
          !c.has_mlp[2] && c.plain_mlp && c.mixer.act == SPW_ACT_SILU && c.rms_eps == 1e-5f &&
          !c.experts.n && !c.rotates[2] && c.kv[SPW_LAYER_FULL].n_heads == 2);
    json_decref(blocks);
    f = nemotron_facts("nemotron_h_moe", "ME*E",
                       "'attention.head_count_kv': [0, 0, 2, 0], 'feed_forward_length': [0, 20, 0, "
                       "20], 'expert_count': 8, 'expert_used_count': 2, 'expert_shared_count': 1, "
                       "'expert_feed_forward_length': 20, 'expert_shared_feed_forward_length': 24, "
                       "'expert_weights_norm': true, 'expert_weights_scale': 2.5, "
                       "'expert_group_count': 1, 'expert_group_used_count': 1, "
                       "'moe_latent_size': 32, 'ssm.group_count': 2, " SSM);
    blocks = f.blocks;
    c = accept_facts(f);
    CHECK(spw_expert_layers(&c) == 2 && c.experts.latent == 32 && c.experts.intermediate == 20 &&
          c.experts.shared_intermediate == 24 && c.experts.route.scale == 2.5f &&
          c.experts.choice_bias && c.experts.route.renormalizes);
    json_decref(blocks);
    f = nemotron_facts("nemotron_h", "M-*M",
                       "'attention.head_count_kv': 0, 'ssm.group_count': 2, " SSM);
    struct spw_error err = {0};
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL &&
          strstr(err.text, "head_count_kv: found 0, expected a number above 0: a layer has "));
    json_decref(f.blocks);
    facts_free(&f);
}

/* Rope of Hunyuan: the base says all. */
static void test_published_hunyuan(void)
{
    struct spw_model_config c =
        accept("hunyuan-moe",
               MIXTURE ", 'expert_shared_count': 1, 'expert_shared_feed_forward_length': 96, "
                       "'feed_forward_length': 96, 'expert_feed_forward_length': 96, "
                       "'rope.freq_base': 11158840, 'rope.scaling.type': 'none', "
                       "'rope.scaling.factor': 1, 'rope.scaling.original_context_length': 262144");
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT && c.rope[0].theta == 11158840 && c.qk_norm &&
          c.qk_norm_after_rope && c.experts.shared_intermediate == 96);
}

/* A file of any architecture may have any key: it changes the model, or is refused, or is known to
 * change nothing. */
static void test_all_keys(void)
{
    static const char always[] =
        " vision.block_count image_token_index spatial_merge_size mm.tokens_per_image "
        "max_position_embeddings vocab_size pooling_type tensor_data_layout "
        "expert_group_used_count rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow "
        "rope.scaling.finetuned attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
        "expert_feed_forward_length ";
    static const char of_windows[] =
        " attention.key_length_swa attention.value_length_swa attention.sliding_window_pattern "
        "rope.dimension_count_swa rope.freq_base_swa ";
    uint32_t n_changed = 0, n_refused = 0, n_unused = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const uint64_t base = hash_with(m, NULL, NULL);
        CHECK(base && base == hash_with(m, NULL, NULL));
        const bool has_window =
            strstr(models[m].keys, WINDOW) || !strcmp(models[m].architecture, "llama4");
        char words[sizeof keys_of_gguf], last[64] = "", *rest = words;
        bool last_changed =
            false; /* by another value of the same key, which may be the usual one */
        strcpy(words, keys_of_gguf);
        for (char *key; (key = strtok_r(rest, " ", &rest));) {
            char word[96], *value = strchr(key, '=');
            if (value)
                *value++ = 0;
            snprintf(word, sizeof word, " %s ", key);
            const bool may_be_unused = strstr(always, word) || strstr(models[m].unused, word + 1) ||
                                       (!has_window && strstr(of_windows, word));
            const uint64_t h = hash_with(m, key, value ? value : "3");
            const bool again = !strcmp(key, last);
            snprintf(last, sizeof last, "%s=", key);
            if (strncmp(rest, last, strlen(last)) != 0)
                CHECK_MSG(h != base || (again && last_changed) || may_be_unused, "%s ignores %s",
                          models[m].architecture, key);
            last_changed = h != base;
            snprintf(last, sizeof last, "%s", key);
            n_changed += h && h != base;
            n_refused += !h;
            n_unused += h == base;
        }
    }
    CHECK_MSG(n_changed > 150 && n_refused > 1000 && n_unused > 200, "%u %u %u", n_changed,
              n_refused, n_unused);
}

/* Files that Ollama has made say less, and say it otherwise. */
static void test_ollama(void)
{
    struct spw_model_config c =
        accept("gemma3", "'context_length': 131072, " WINDOW
                         ", 'attention.layer_norm_rms_epsilon': null, 'vision.block_count': 27, "
                         "'mm.tokens_per_image': 256, 'attention.layer_norm_epsilon': null");
    CHECK(c.rms_eps == 1e-6f && c.rope[SPW_LAYER_FULL].theta == 1e6);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].factor == 8);
    CHECK(c.rope[SPW_LAYER_SLIDING].kind == SPW_ROPE_DEFAULT);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 1e4 && !c.wrapper);
    CHECK(has_rule(&c, "epsilon of norms") && has_rule(&c, "1000000") && has_rule(&c, "factor 8"));
    const char *small = "'context_length': 32768, " WINDOW
                        ", 'rope.global.freq_base': 2e6, 'rope.local.freq_base': 2e4, "
                        "'final_logit_softcapping': %s";
    for (int made = 0; made < 2; made++) { /* the converter has made a cap of 30 */
        char keys[256];
        snprintf(keys, sizeof keys, small, made ? "30" : "20");
        c = accept("gemma3", keys);
        CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_DEFAULT && c.rms_eps == 1e-5f);
        CHECK(c.rope[SPW_LAYER_FULL].theta == 2e6 && c.rope[SPW_LAYER_SLIDING].theta == 2e4);
        CHECK(c.logit_softcap == (made ? 0 : 20) && has_rule(&c, "not capped") == made);
    }
    /* of llama.cpp */
    c = accept("gemma3", WINDOW ", 'rope.freq_base': 1e6, 'context_length': 131072, "
                                "'final_logit_softcapping': 30");
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_DEFAULT && c.logit_softcap == 30);
    refuse("gemma3", "'rope.global.freq_base': 1e6, 'rope.freq_base': 1e6",
           "rope.global.freq_base: found 1000000, expected nothing beside rope.freq_base");
    c = accept("gptoss",
               MIXTURE ", " WINDOW
                       ", 'rope.scaling.factor': 32, 'rope.scaling.original_context_length': 128");
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_YARN && c.rope[SPW_LAYER_FULL].factor == 32);
    CHECK(c.experts.n == 8 && c.window == 16);
    c = accept(
        "mistral3",
        YARN ", 'rope.scaling.beta_fast': 16, 'rope.scaling.beta_slow': 2, 'rope.scaling.mscale': "
             "1, 'rope.scaling.mscale_all_dim': 1, 'rope.scaling_beta': 0.5");
    CHECK(c.query_growth.beta == 0.5f && c.rope[0].attention_factor == 1);
    CHECK(c.rope[0].beta_fast == 16 && c.rope[0].beta_slow == 2);
    c = accept("mistral3",
               "'rope.scaling.type': '', 'rope.scaling.factor': 0, 'rope.scaling.beta_fast': 0");
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT);
    refuse("mistral3", "'rope.scaling.type': '', 'rope.scaling.factor': 4",
           "rope.scaling.factor: found 4, expected nothing, or 1");
    struct spw_config_gguf f =
        facts_of("qwen3vlmoe", "'expert_count': 8, 'expert_used_count': 2, 'norm_top_k_prob': "
                               "false, 'rope.dimension_sections': [2, 3, 3, 0]");
    f.other_parts = true;
    f.expert_width = 40;
    c = accept_facts(f);
    CHECK(c.experts.intermediate == 40 && !c.experts.route.renormalizes);
    CHECK(c.wrapper && !strcmp(c.wrapper, "qwen3vlmoe") && !strcmp(c.model_type, "qwen3_moe"));
    for (int norm = 0; norm < 2; norm++) {
        char keys[256];
        snprintf(keys, sizeof keys, MIXTURE ", 'use_qk_norm': %s, 'attention.head_dim': 8",
                 norm ? "true" : "false");
        c = accept("llama4", keys);
        CHECK(c.qk_norm_last == norm && !has_rule(&c, "norm"));
    }
    refuse("llama4", MIXTURE ", 'attention.head_dim': 16",
           "attention.head_dim: found 16, expected 8, the channels of a head");
}

static void test_required(void)
{
    static const char *const cases[][2] = {
        {"llama", "attention.layer_norm_rms_epsilon"},
        {"phi2", "attention.layer_norm_epsilon"},
        {"cohere2", "attention.sliding_window"},
        {"gpt-oss", "attention.sliding_window"},
        {"command-r", "logit_scale"},
        {"granite", "attention.scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char patch[128], message[160];
        snprintf(patch, sizeof patch, "'logit_scale': 1, '%s': null", cases[i][1]);
        snprintf(message, sizeof message, "%s: found null, expected a number: the key has no",
                 cases[i][1]);
        refuse(cases[i][0], patch, message);
    }
    struct spw_model_config c = accept("gemma2", "");
    CHECK(c.window == 4096 && c.layer_kinds[0] == SPW_LAYER_SLIDING && has_rule(&c, "4096"));
    c = accept("llama4", "'expert_count': 16, 'expert_used_count': 1, "
                         "'expert_feed_forward_length': 40, 'attention.chunk_size': 64");
    CHECK(c.window == 64 && has_rule(&c, "have chunks") && !has_rule(&c, "chunks of 8192"));
    c = accept(
        "glm4", PARTIAL
        ", 'rope.dimension_sections': [0, 0, 0, 0], 'nextn_predict_layers': 0, "
        "'rope.scaling.type': 'none', 'rope.scaling.factor': 4, 'use_parallel_residual': false");
}

/* One number for the pattern: each so many layers one sees all positions. */
static void test_pattern(void)
{
    static const char *const architectures[] = {"gpt-oss", "gemma2", "gemma3", "cohere2"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        struct spw_model_config c =
            accept(architectures[i], strcmp(architectures[i], "gpt-oss") != 0 ? WINDOW
                                         ", 'logit_scale': 1, 'attention.sliding_window_pattern': 3"
                                                                              : WINDOW
                                         ", 'expert_count': 8, 'expert_used_count': 2, "
                                         "'attention.sliding_window_pattern': 3");
        for (uint32_t l = 0; l < 4; l++)
            CHECK_MSG(c.layer_kinds[l] == (l == 2 ? SPW_LAYER_FULL : SPW_LAYER_SLIDING), "%s %u",
                      architectures[i], l);
        CHECK(!has_rule(&c, "sees all positions"));
    }
}

static void test_ends(void)
{
    struct spw_config_gguf f = facts_of("qwen3", "");
    json_object_set_new(f.tokenizer, "eos_token_id", json_pack("[ii]", 7, 9));
    json_object_set_new(f.tokenizer, "suppress_tokens", json_pack("[ii]", 5, 200));
    f.more_eos = true;
    struct spw_model_config c = accept_facts(f);
    CHECK(c.n_suppressed == 1 && c.suppressed[0] == 5);
    CHECK(c.n_eos == 2 && c.eos[0] == 7 && c.eos[1] == 9 && c.qk_norm &&
          has_rule(&c, "by their text"));
    f = facts_of("qwen3", "");
    struct spw_error err = {0};
    json_object_set_new(f.tokenizer, "eos_token_id", json_integer(100));
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "tokenizer.ggml.eos_token_id: found 100, expected ids below"), "%s",
              err.text);
    facts_free(&f);
}

/* Which layers have a state, and its sizes. */
static void test_states(void)
{
    struct spw_model_config c = accept("qwen35", DELTA ", 'nextn_predict_layers': 1");
    CHECK(c.n_layers == 3 && c.layer_kinds[2] == SPW_LAYER_STATE && c.n_more_layers == 1);
    CHECK(has_rule(&c, "MTP") && has_rule(&c, "every 4th layer attends"));
    CHECK(c.mixer.heads == 6 && c.mixer.key_heads == 2 && c.mixer.key_dim == 16 &&
          c.mixer.value_dim == 24 && c.mixer.tiled && !c.mixer.grouped_rates && !c.norm_plus_one);
    c = accept("qwen35", DELTA ", 'full_attention_interval': 4, 'attention.recurrent_layers': "
                               "[true, false, true, false, true]");
    for (uint32_t l = 0; l < 4; l++)
        CHECK(c.layer_kinds[l] == (l % 2 ? SPW_LAYER_FULL : SPW_LAYER_STATE));
    const char *next = DELTA ", 'expert_shared_feed_forward_length': 8, " MIXTURE;
    c = accept("qwen3next", next);
    CHECK(c.mixer.grouped_rates && !c.mixer.grouped && !c.mixer.tiled);
    struct spw_config_gguf old = facts_of("qwen3next", next);
    old.gate_joined = true;
    c = accept_facts(old);
    CHECK(c.mixer.grouped_rates && c.mixer.grouped);
    struct spw_config_gguf lfm2 =
        facts_of("lfm2moe", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 0, 0], "
                            "'leading_dense_block_count': 1, " MIXTURE);
    lfm2.choice_bias = true;
    c = accept_facts(lfm2);
    CHECK(c.mixer.kind == SPW_MIXER_CONV && c.layer_kinds[1] == SPW_LAYER_FULL &&
          c.layer_kinds[0] == SPW_LAYER_STATE && c.kv[SPW_LAYER_FULL].n_heads == 2);
    CHECK(!c.has_experts[0] && c.has_experts[1] && c.experts.choice_bias);
    refuse("qwen35",
           "'ssm.inner_size': 145, 'ssm.conv_kernel': 4, 'ssm.state_size': 16, "
           "'ssm.group_count': 2, 'ssm.time_step_rank': 6, " PARTIAL,
           "ssm.inner_size: found 145, expected a multiple of ssm.time_step_rank, 6");
    refuse("qwen35", PARTIAL, "ssm.conv_kernel: found nothing, expected an integer from 2 to 8");
    refuse("qwen35", DELTA ", 'attention.recurrent_layers': [true]",
           "attention.recurrent_layers: found a list of 1, expected a truth value");
    refuse("lfm2", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 1, 0]",
           "attention.head_count_kv: found a list of 4, expected 0, or the same number");
}

/* One wrong key beside the keys of the plain model, or beside the keys that gemma4 needs. */
static const struct {
    const char *architecture, *key, *value, *found;
} wrong[] = {
    {"gemma4", "attention.head_count_kv", "[2, 1, 4, 1]",
     "a list of 4, expected a number for each kind of layers"},
    {"gemma4", "attention.head_count_kv", "[2, 1, 2]",
     "a list of 3, expected a number, or one for each layer"},
    {"gemma4", "attention.head_count_kv", "[2, 0, 2, 0]", "a list of 4"},
    {"gemma4", "attention.head_count", "[8, 8, 8, 4]", "a list of 4, expected the same number"},
    {"gemma4", "feed_forward_length", "[96, 96, 96, 192]",
     "a list of 4, expected a number for layers that store keys"},
    {"gemma4", "attention.shared_kv_layers", "9", "9"},
    {"gemma4", "attention.key_length", "33", "33, expected an even number"},
    {"gemma4", "attention.value_length_swa", "32", "32, expected 16"},
    {"gemma4", "attention.sliding_window_pattern", "[true]", "a list of 1, expected a truth"},
    {"llama4", "attention.sliding_window", "0", "0, expected nothing: models without chunks"},
    {"llama", "attention.head_count_kv", "[2, 2, 1, 2]", "a list of 4, expected the same number"},
    {"olmo2", "attention.sliding_window", "[16, 16, 16, 0]", "a list of 4, expected nothing"},
    {"gemma3", "attention.sliding_window", "[16, 16, 16, 0]", "a list of 4, expected nothing"},
    {"exaone4", "attention.sliding_window", "'16'", "\"16\", expected nothing"},
    {"qwen3", "attention.sliding_window", "true", "true, expected nothing"},
    {"llama", "attention.temperature_scale", "0.5", "0.5, expected nothing, or 0"},
    {"llama", "attention.clamp_kqv", "8", "8, expected nothing: llama models have no such key"},
    {"llama", "rope.global.freq_base", "1e6", "1000000"},
    {"mistral3", "rope.scaling_beta", "0.1", "0.10000000000000001, expected rope.scaling.type"},
    {"llama", "rope.unknown", "1e4",
     "10000, expected nothing: this program does not know what the key changes"},
    {"llama", "block_count", "0", "0, expected an integer from 1"},
    {"llama", "block_count", "null", "null, expected an integer"},
    {"llama", "context_length", "null", "null, expected the"},
    {"llama", "attention.head_count", "[8, 4, 8, 8]", "a list of 4"},
    {"llama", "embedding_length", "60",
     "60, expected 8 (attention.head_count) times an even head_dim"},
    {"llama", "attention.value_length", "4", "4, expected 8, the channels of a head"},
    {"llama", "rope.dimension_count", "4", "4, expected 8"},
    {"llama", "expert_count", "8", "8, expected nothing: llama"},
    {"llama", "logit_scale", "2", "2, expected nothing"},
    {"llama", "attention.scale", "0.5", "0.5, expected nothing"},
    {"llama", "attention.causal", "false", "false, expected"},
    {"llama", "rope.scaling.type", "'longrope'",
     "\"longrope\", expected a tensor rope_factors_long.weight"},
    {"llama", "rope.scaling.attn_factor", "1.5", "1.5, expected nothing, or 1"},
    {"llama", "final_logit_softcapping", "30", "30"},
    {"llama", "rope.scaling.factor", "2", "2, expected nothing, or 1"},
    {"llama", "rope.scale_linear", "2", "2, expected nothing, or 1"},
    {"llama", "attention.max_alibi_bias", "8", "8, expected nothing, or 0"},
    {"gemma3", "rope.local.freq_base", "'x'", "\"x\", expected a number"},
    {"mistral3", "attention.temperature_length", "64", "64, expected nothing, or 0"},
};

static void test_wrong(void)
{
    refuse("llama", "'attention.head_count': 7",
           "attention.head_count_kv: found 2, expected a divisor of attention.head_count, 7");
    refuse("llama", "'rope.scaling.type': 'linear'", "rope.scaling.factor: found nothing, ");
    static const char *const without_windows[] = {"llama",   "qwen2",      "qwen3",   "glm4",
                                                  "smollm3", "starcoder2", "chatglm", "mistral3"};
    for (size_t i = 0; i < sizeof without_windows / sizeof *without_windows; i++)
        refuse(without_windows[i], WINDOW,
               "attention.sliding_window: found 16, expected nothing: such models are read from "
               "folders only");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char patch[512], message[256];
        snprintf(patch, sizeof patch, "%s'%s': %s",
                 strcmp(wrong[i].architecture, "gemma4") ? "" : GEMMA4 ", ", wrong[i].key,
                 wrong[i].value);
        snprintf(message, sizeof message, "%s: found %s", wrong[i].key, wrong[i].found);
        refuse(wrong[i].architecture, patch, message);
    }
    refuse("gemma3", WINDOW ", 'attention.sliding_window_pattern': [true]",
           "attention.sliding_window_pattern: found a list of 1, expected a truth value");
    struct spw_config_gguf f =
        facts_of("llama", "'rope.scaling.type': 'linear', 'rope.scaling.factor': 2");
    struct spw_model_config c;
    struct spw_error err = {0};
    f.rope_factors = true;
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL &&
          strstr(err.text, "llama.rope.scaling.type: found \"linear\", expected no scaling"));
    facts_free(&f);
    CHECK(!spw_gguf_architecture_find("rwkv6", false, false));
}

int main(void)
{
    test_llama();
    test_scaling();
    test_llama4();
    test_gemma3();
    test_gemma4();
    test_gemma4_refused();
    test_windows();
    test_layer_norms();
    test_olmo();
    test_glm();
    test_rules();
    test_published();
    test_published_hunyuan();
    test_mamba();
    test_nemotron_h();
    test_all_keys();
    test_ollama();
    test_required();
    test_weights_norm();
    test_pattern();
    test_ends();
    test_states();
    test_wrong();
    spw_config_free(&accepted);
    return check_done();
}
