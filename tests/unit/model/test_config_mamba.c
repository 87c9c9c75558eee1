/* config.json: families with Mamba layers, and layers that are a mixer or an mlp alone. */
#include "tests/config_text.h"

static const char *const mamba = "{'model_type': 'mamba', 'hidden_size': 40, "
                                 "'num_hidden_layers': 3, 'intermediate_size': 80}";
static const char *const mamba2 = "{'model_type': 'mamba2', 'hidden_size': 64, "
                                  "'num_hidden_layers': 3, 'num_heads': 8, 'head_dim': 16}";
static const char *const granite =
    "{'model_type': 'granitemoehybrid', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100, 'num_hidden_layers': 3, 'num_attention_heads': 8, 'num_local_experts': 0, "
    "'num_experts_per_tok': 0, 'shared_intermediate_size': 80, 'mamba_n_heads': 4}";
static const char *const falcon =
    "{'model_type': 'falcon_h1', 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': "
    "2, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'mamba_d_ssm': 96, 'mamba_n_heads': 6}";
static const char *const nemotron =
    "{'model_type': 'nemotron_h', 'hidden_size': 64, 'intermediate_size': 96, "
    "'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 16, 'mamba_num_heads': 4, "
    "'mamba_head_dim': 8, 'n_groups': 2, 'num_hidden_layers': 99, "
    "'hybrid_override_pattern': 'M-*EM'}";

static bool has_no_mlp(const struct spw_model_config *c)
{
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (c->has_mlp[l] || spw_config_mlp_width(c, l))
            return false;
    return true;
}

static void test_mamba(void)
{
    struct spw_model_config c = accept(mamba, "{}", NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "MMM") && has_no_mlp(&c) && !c.intermediate && c.tied_embeddings);
    CHECK(m->kind == SPW_MIXER_SCAN && m->heads == 1 && m->key_dim == 16 && m->value_dim == 80 &&
          m->dt_rank == 3 && m->conv_channels == 80 && m->conv_width == 4 && m->conv_bias &&
          !m->in_bias && !m->out_bias && m->act == SPW_ACT_SILU);
    CHECK(c.max_positions == 1 << 20 && c.vocab == 50280 && c.bos == 0 && c.eos[0] == 0);
    CHECK(c.n_slices == 3 && c.slice_kinds[0] == SPW_LAYER_STATE && c.state_slices[2] == 2 &&
          spw_mixer_state_floats(m) == 80 * 3 + 16 * 80);
    c = accept(mamba,
               "{'time_step_rank': 7, 'expand': 3, 'state_size': 5, 'conv_kernel': 3, 'use_bias': "
               "true, 'use_conv_bias': false, 'hidden_act': 'relu'}",
               NULL);
    CHECK(m->dt_rank == 7 && m->value_dim == 120 && m->key_dim == 5 && m->conv_width == 3 &&
          m->in_bias && m->out_bias && !m->conv_bias && m->act == SPW_ACT_RELU);
    refuse(mamba, "{'hidden_act': 'gelu'}", "hidden_act: found 'gelu', expected silu, gelu_new");
    refuse(mamba, "{'conv_kernel': 9}", "conv_kernel: found 9, expected an integer from 2 to 8");
    refuse(mamba, "{'time_step_rank': 'some'}", "time_step_rank: found 'some'");
    refuse(mamba, "{'num_hidden_layers': null}", "num_hidden_layers: found null");
}

static void test_mamba2(void)
{
    struct spw_model_config c = accept(mamba2, "{'n_groups': 2, 'state_size': 24}", NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "MMM") && has_no_mlp(&c) && !c.tied_embeddings);
    CHECK(m->kind == SPW_MIXER_SSD && m->heads == 8 && m->key_heads == 2 && m->key_dim == 24 &&
          m->value_dim == 16 && m->conv_channels == 128 + 96 && m->gate_norm && !m->norm_first);
    CHECK(spw_mixer_in_width(m) == 128 + 224 + 8 && spw_mixer_width(m) == 128);
    CHECK(m->in_scale == 1 && m->in_scales[4] == 1 && c.branch_scales[SPW_BRANCH_STATE] == 1);
    c = accept(mamba2, "{'time_step_limit': [0.0, {'__float__': 'Infinity'}]}", NULL);
    CHECK(m->key_heads == 8 && m->key_dim == 128);
    refuse(mamba2, "{'time_step_limit': [0.0, 0.1]}", "time_step_limit: found a list of 2");
    refuse(mamba2, "{'time_step_limit': [0.001, 1e300]}", "time_step_limit: found a list of 2");
    refuse(mamba2, "{'expand': 3}",
           "num_heads: found 8, expected num_heads times head_dim, which "
           "give 192 channels");
    refuse(mamba2, "{'n_groups': 3}", "n_groups: found 3, expected a divisor of num_heads, 8");
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

static void test_granite(void)
{
    struct spw_model_config c =
        accept(granite, "{'layer_types': ['mamba', 'attention', 'linear_attention']}", NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "MFM") && c.has_mlp[0] && c.intermediate == 80 && !c.rotates[1]);
    CHECK(m->heads == 4 && m->value_dim == 32 && m->key_heads == 1 && m->key_dim == 256 &&
          m->conv_bias && !m->in_bias);
    CHECK(c.n_slices == 3 && c.slice_layers[0] == 1 && c.state_slices[0] == 1 &&
          c.state_slices[1] == SPW_NO_SLICE && c.state_slices[2] == 2);
    c = accept(granite, "{'layers_block_type': ['full_attention', 'mamba', 'mamba']}", NULL);
    CHECK(kinds_are(&c, "FMM"));
    c = accept(granite, "{'mamba_d_head': 'auto'}", NULL);
    CHECK(kinds_are(&c, "MMM") && m->value_dim == 32);
    c = accept(granite, "{'layer_types': ['attention', 'attention', 'attention']}", NULL);
    CHECK(kinds_are(&c, "FFF") && !m->kind);
    refuse(granite, "{'layer_types': ['mamba', 'other', 'mamba']}", "layer_types");
    refuse(granite, "{'mamba_d_head': 31}",
           "mamba_n_heads: found 4, expected mamba_n_heads times "
           "mamba_d_head, which give 128 channels");
}

static void test_falcon(void)
{
    struct spw_model_config c = accept(
        falcon,
        "{'embedding_multiplier': 3, 'lm_head_multiplier': 0.5, 'key_multiplier': 0.5, "
        "'attention_in_multiplier': 4, 'attention_out_multiplier': 0.25, 'ssm_in_multiplier': 2, "
        "'ssm_out_multiplier': 0.5, 'ssm_multipliers': [1, 2, 3, 4, 5], 'mlp_multipliers': [2, "
        "8]}",
        NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "FF") && c.has_mlp[1] && spw_config_has_state(&c, 0) && c.n_slices == 4 &&
          c.state_slices[1] == 3);
    CHECK(m->heads == 6 && m->value_dim == 16 && m->key_dim == 256 && !m->gate_norm &&
          m->norm_first);
    CHECK(c.embedding_scale == 3 && c.logit_divisor == 2 && c.attention_in_scale == 4 &&
          c.attention_scale == 0.25f * 0.5f * 16 && c.mlp_in_scale == 2);
    CHECK(c.branch_scales[SPW_BRANCH_ATTENTION] == 1 && c.branch_scales[SPW_BRANCH_STATE] == 0.5f &&
          c.branch_scales[SPW_BRANCH_MLP] == 4);
    CHECK(m->in_scale == 2 && m->in_scales[0] == 2 && m->in_scales[4] == 10);
    c = accept(falcon,
               "{'mamba_d_ssm': null, 'mamba_n_heads': 8, 'mamba_rms_norm': true, "
               "'mamba_norm_before_gate': false, 'projectors_bias': true}",
               NULL);
    CHECK(m->value_dim == 16 && m->gate_norm && !m->norm_first && m->out_bias && !m->in_bias);
    CHECK(c.embedding_scale == 1 && c.mlp_in_scale == 1 && m->in_scales[2] == 1);
    refuse(falcon, "{'mlp_multipliers': [1]}", "mlp_multipliers: found a list of 1, expected");
    refuse(falcon, "{'ssm_multipliers': [1, 1, 0, 1, 1]}", "ssm_multipliers: found a list of 5");
    refuse(falcon, "{'attention_in_multiplier': 0}", "attention_in_multiplier: found 0");
    refuse(llama, "{'embedding_multiplier': 2}", "embedding_multiplier: found 2");
}

static void test_nemotron(void)
{
    struct spw_model_config c = accept(nemotron, "{}", NULL);
    const struct spw_mixer_config *m = &c.mixer;
    CHECK(kinds_are(&c, "MNFNM") && !c.has_mlp[0] && c.has_mlp[1] && !c.has_mlp[2] &&
          c.has_mlp[3] && c.has_experts[3] && spw_expert_layers(&c) == 1);
    CHECK(c.plain_mlp && c.act == SPW_ACT_RELU_SQUARED && m->act == SPW_ACT_SILU && !c.rotates[2] &&
          c.norm == SPW_NORM_LATE && m->norm == SPW_NORM_LLAMA);
    CHECK(m->heads == 4 && m->value_dim == 8 && m->key_heads == 2 && m->key_dim == 128);
    CHECK(c.experts.n == 8 && c.experts.n_kept == 2 && c.experts.shared_intermediate == 7688 &&
          !c.experts.latent && c.experts.choice_bias && c.experts.route.renormalizes);
    CHECK(spw_config_expert_row(&c) == 64 && spw_config_mlp_width(&c, 1) == 96 &&
          !spw_config_mlp_width(&c, 2));
    c = accept(nemotron,
               "{'layers_block_type': ['moe', 'attention', 'mlp', 'linear_attention', "
               "'full_attention'], 'moe_latent_size': 24, 'mamba_n_groups': 4, 'mamba_d_conv': 3, "
               "'mamba_conv_bias': false, 'mamba_hidden_act': 'relu'}",
               NULL);
    CHECK(kinds_are(&c, "NFNMF") && c.has_experts[0] && spw_config_expert_row(&c) == 24 &&
          m->key_heads == 4 && m->conv_width == 3 && !m->conv_bias && m->act == SPW_ACT_RELU);
    c = accept(nemotron, "{'hybrid_override_pattern': 'M*-'}", NULL);
    CHECK(c.n_layers == 3 && !c.experts.n);
    refuse(nemotron, "{'hybrid_override_pattern': 'M+-'}",
           "hybrid_override_pattern: found 'M+-', expected for each layer linear_attention (M)");
    refuse(nemotron, "{'hybrid_override_pattern': null}", "layers_block_type: found nothing");
    refuse(nemotron, "{'moe_latent_size': 65}", "moe_latent_size: found 65");
}

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_mamba();
    test_mamba2();
    test_infinity();
    test_granite();
    test_falcon();
    test_nemotron();
    return config_done();
}
