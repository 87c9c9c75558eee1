/* config.json: which layers have a state, its sizes, and what only such families have. */
#include "tests/config_text.h"

static const char *const qwen =
    "{'model_type': 'qwen3_5_text', 'hidden_size': 64, 'vocab_size': 100, 'num_hidden_layers': 6}";
static const char *const next =
    "{'model_type': 'qwen3_next', 'hidden_size': 64, 'vocab_size': 100, 'num_hidden_layers': 4}";
static const char *const lfm2 =
    "{'model_type': 'lfm2', 'hidden_size': 64, 'vocab_size': 100, 'num_hidden_layers': 4}";
static const char *const mixture =
    "{'model_type': 'lfm2_moe', 'hidden_size': 64, 'vocab_size': 100, 'num_hidden_layers': 3, "
    "'layer_types': ['conv', 'full_attention', 'conv']}";

static void test_delta(void)
{
    struct spw_model_config c = accept(qwen, "{}", NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "MMMFMM") && !c.kinds_listed && c.attention_gate);
    CHECK(m->kind == SPW_MIXER_DELTA && m->heads == 32 && m->key_heads == 16 && m->key_dim == 128 &&
          m->value_dim == 128 && m->conv_width == 4 && m->conv_channels == 8192);
    CHECK(m->gate_norm && m->norm_first && m->norm == SPW_NORM_LLAMA && !m->grouped &&
          !m->grouped_rates && !m->tiled && !m->conv_bias && !m->in_bias);
    CHECK(c.norm_plus_one && c.qk_norm && !c.qkv_bias && c.kv[0].head_dim == 256);
    CHECK(c.rope[0].rotary_dim == 64 && c.intermediate == 12288 && !c.experts.n && c.n_rules == 0);
    CHECK(c.n_slices == 6 && c.state_slices[0] == 1 && c.state_slices[3] == SPW_NO_SLICE &&
          c.state_slices[4] == 4 && c.first_slices[3] == 0);
    CHECK(spw_mixer_in_width(m) == 8192 + 4096 + 64);
    CHECK(spw_mixer_state_floats(m) == 8192 * 3 + 32 * 128 * 128);
    c = accept(qwen,
               "{'full_attention_interval': 2, 'linear_num_value_heads': 6, "
               "'linear_num_key_heads': 3, 'linear_value_head_dim': 8, 'linear_key_head_dim': 4, "
               "'linear_conv_kernel_dim': 3, 'mtp_num_hidden_layers': 1, 'attention_bias': true}",
               NULL);
    CHECK(kinds_are(&c, "MFMFMF") && c.mixer.conv_channels == 72 && c.mixer.conv_width == 3);
    CHECK(c.n_rules == 1 && strstr(c.rules[0], "MTP") && c.qkv_bias && c.o_bias);
    c = accept(qwen,
               "{'num_hidden_layers': 2, 'layer_types': ['full_attention', 'linear_attention']}",
               NULL);
    CHECK(kinds_are(&c, "FM") && c.kinds_listed);
    c = accept(qwen, "{'full_attention_interval': 1}", NULL);
    CHECK(kinds_are(&c, "FFFFFF") && c.mixer.kind == SPW_MIXER_NONE);
    c = accept(next, "{'mlp_only_layers': [2]}", NULL);
    CHECK(c.mixer.grouped && c.mixer.grouped_rates && c.has_experts[1] && !c.has_experts[2]);
    CHECK(c.experts.n == 512 && c.experts.n_kept == 10 && c.experts.shared_gate &&
          c.experts.route.renormalizes);
    refuse(qwen, "{'linear_num_key_heads': 5}",
           "linear_num_key_heads: found 5, expected a divisor of linear_num_value_heads, 32");
    refuse(qwen, "{'linear_key_head_dim': 513}", "linear_key_head_dim: found 513, expected an int");
    refuse(qwen, "{'linear_conv_kernel_dim': 1}", "linear_conv_kernel_dim: found 1, expected an");
    refuse(qwen, "{'full_attention_interval': 0}", "full_attention_interval: found 0");
    refuse(qwen, "{'num_hidden_layers': 1, 'layer_types': ['mamba']}",
           "layer_types: found a list of 1, expected a list of 1");
    refuse(qwen, "{'layer_types': ['linear_attention']}", "layer_types: found a list of 1");
}

static void test_wrapped(void)
{
    const struct spw_model_config c =
        accept("{'model_type': 'qwen3_5_moe', 'tie_word_embeddings': true, 'text_config': "
               "{'model_type': 'qwen3_5_moe_text', 'hidden_size': 64, 'num_hidden_layers': 4}}",
               "{}", NULL);
    CHECK(!strcmp(c.wrapper, "qwen3_5_moe") && !strcmp(c.model_type, "qwen3_5_moe_text"));
    CHECK(c.tied_embeddings && c.experts.n == 256 && c.experts.route.renormalizes);
    CHECK(kinds_are(&c, "MMMF") && spw_expert_layers(&c) == 4);
}

static void test_conv(void)
{
    struct spw_model_config c = accept(lfm2, "{}", NULL);
    CHECK(kinds_are(&c, "FFFF") && c.mixer.kind == SPW_MIXER_NONE && c.tied_embeddings);
    CHECK(c.intermediate == 8192 && c.qk_norm && !c.qkv_bias && c.rope[0].theta == 1e6);
    c = accept(lfm2, "{'full_attn_idxs': [1, 9], 'conv_L_cache': 4, 'tie_embedding': false}", NULL);
    CHECK(kinds_are(&c, "MFMM") && c.mixer.kind == SPW_MIXER_CONV && c.mixer.conv_width == 4);
    CHECK(c.mixer.conv_channels == 64 && !c.mixer.conv_bias && !c.tied_embeddings);
    CHECK(spw_mixer_in_width(&c.mixer) == 192 && spw_mixer_state_floats(&c.mixer) == 64 * 3);
    c = accept(lfm2,
               "{'layer_types': ['conv', 'conv', 'full_attention', 'conv'], 'conv_bias': true, "
               "'block_ff_dim': 100, 'block_ffn_dim_multiplier': 1.3, 'block_multiple_of': 8}",
               NULL);
    CHECK(kinds_are(&c, "MMFM") && c.mixer.conv_bias && c.mixer.in_bias && c.mixer.out_bias);
    CHECK(c.intermediate == 88); /* 100 -> 66 -> 85 -> 88 */
    c = accept(lfm2, "{'intermediate_size': 100, 'block_ffn_dim_multiplier': null}", NULL);
    CHECK(c.intermediate == 66);
    c = accept(lfm2, "{'intermediate_size': 100, 'block_auto_adjust_ff_dim': false}", NULL);
    CHECK(c.intermediate == 100);
    refuse(lfm2, "{'full_attn_idxs': 'all'}", "full_attn_idxs: found 'all', expected a list");
    refuse(lfm2, "{'conv_L_cache': 9, 'full_attn_idxs': []}",
           "conv_L_cache: found 9, expected an integer from 2 to 8");
    refuse(lfm2, "{'block_multiple_of': 4194304, 'block_ffn_dim_multiplier': 1000}",
           "intermediate_size");
    c = accept(mixture, "{}", NULL);
    CHECK(!c.has_experts[1] && c.has_experts[2] && c.experts.choice_bias);
    CHECK(c.experts.route.sum_plus == 1e-6f && c.experts.route.renormalizes &&
          c.experts.route.score == SPW_ROUTE_SIGMOID && c.intermediate == 7168);
    c = accept(mixture, "{'use_expert_bias': false, 'num_dense_layers': 0}", NULL);
    CHECK(c.has_experts[0] && !c.experts.choice_bias);
    refuse(mixture, "{'layer_types': null}", "layer_types: found null, expected a list of 3");
}

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_delta();
    test_wrapped();
    test_conv();
    return config_done();
}
