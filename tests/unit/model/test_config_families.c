/* config.json: what the model_type says, also of a model inside another one, and keys that a family
 * has or does not have. */
#include "tests/config_text.h"

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

/* Patterns that count from the last layer backward; a gate of attention; scales of its own. */
static void test_muse_glimmer(void)
{
    static const char *const muse = "{'model_type': 'muse_glimmer', 'text_config': {'hidden_size': "
                                    "64, 'num_hidden_layers': 6}}";
    struct spw_model_config c = accept(muse, "{}", NULL);
    CHECK(!strcmp(c.wrapper, "muse_glimmer") && !strcmp(c.model_type, "muse_glimmer_text"));
    CHECK(kinds_are(&c, "SFSSSF") && c.window == 2048 && !c.tied_embeddings && !c.qkv_bias);
    CHECK(c.rotates[0] && !c.rotates[1] && c.rotates[4] && !c.rotates[5] && c.sandwich);
    CHECK(c.attention_gate == SPW_ATTENTION_GATE_APART && c.normed_rows && c.norm_plus_one);
    CHECK(c.plain_last && c.rms_eps == 1e-5f && c.post_eps == 1e-8f && c.q_norm_scale == 3.87f);
    CHECK(c.logit_softcap == 20 && c.logit_divisor == (float)(1 / 0.19611613513818404));
    CHECK(spw_config_gate_width(&c, 0) == 32 * 128 && c.attention_softcap == 0);
    c = accept(muse,
               "{'text_config': {'hidden_size': 64, 'num_hidden_layers': 3, 'layer_types': "
               "['full_attention', 'sliding_attention', 'full_attention'], 'layer_rope_theta': "
               "[1e4, 0, 5], 'post_norm_eps': 0.1, 'qk_scale_factor': 2, 'output_multiplier': 0.5, "
               "'final_logit_softcapping': 3}}",
               NULL);
    CHECK(kinds_are(&c, "FSF") && c.rotates[0] && !c.rotates[1] && c.rotates[2]);
    CHECK(c.post_eps == 0.1f && c.q_norm_scale == 2 && c.logit_divisor == 2 &&
          c.logit_softcap == 3);
    static const char *const wrong[][2] = {
        {"'layer_rope_theta': [1e4]", "layer_rope_theta: found a list of 1, expected a list of 3"},
        {"'layer_rope_theta': []", "layer_rope_theta: found a list of 0, expected a list of 3"},
        {"'layer_rope_theta': [0, 0, '1']",
         "layer_rope_theta: found a list of 3, expected a list of"},
        {"'final_logit_softcapping': null", "final_logit_softcapping: found null, expected a"},
        {"'attn_logit_softcapping': 30", "attn_logit_softcapping: found 30, expected nothing"},
        {"'sliding_window': null", "sliding_window: found null, expected a number"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char patch[160];
        snprintf(patch, sizeof patch,
                 "{'text_config': {'hidden_size': 64, 'num_hidden_layers': 3, %s}}", wrong[i][0]);
        refuse(muse, patch, wrong[i][1]);
    }
}

/* Words that are repeated; states of one number a channel. */
static void test_recurrent_gemma(void)
{
    static const char *const griffin =
        "{'model_type': 'recurrent_gemma', 'hidden_size': 48, 'num_attention_heads': 4, "
        "'num_hidden_layers': 7, 'intermediate_size': 31}";
    struct spw_model_config c = accept(griffin, "{}", NULL);
    static const uint8_t usual[] = {SPW_LAYER_STATE, SPW_LAYER_STATE, SPW_LAYER_SLIDING};
    for (uint32_t l = 0; l < c.n_layers; l++)
        CHECK(c.layer_kinds[l] == usual[l % 3] && spw_config_has_state(&c, l) == (l % 3 < 2));
    CHECK(c.window == 2048 && c.intermediate == 15 && c.mlp_bias && c.o_bias && !c.qkv_bias);
    CHECK(c.kv[SPW_LAYER_SLIDING].n_heads == 4 && c.kv[SPW_LAYER_SLIDING].head_dim == 12);
    CHECK(c.rope[SPW_LAYER_SLIDING].rotary_dim == 6 && c.rotates[2]);
    CHECK(c.mixer.kind == SPW_MIXER_LRU && c.mixer.conv_width == 4 && c.mixer.conv_bias);
    CHECK(c.mixer.in_bias && c.mixer.out_bias && c.mixer.gate_blocks == 4);
    CHECK(spw_mixer_width(&c.mixer) == 48 && spw_mixer_state_floats(&c.mixer) == 144 + 48);
    CHECK(c.embedding_scale == 6.9375f && c.logit_softcap == 30 && c.tied_embeddings);
    CHECK(c.norm_plus_one && c.act == SPW_ACT_GELU_TANH && c.attention_softcap == 0);
    c = accept(
        griffin,
        "{'block_types': ['attention', 'recurrent'], 'attention_window_size': 9, "
        "'lru_width': 24, 'conv1d_width': 2, 'logits_soft_cap': 5, 'num_key_value_heads': 1}",
        NULL);
    CHECK(c.layer_kinds[0] == SPW_LAYER_SLIDING && c.layer_kinds[5] == SPW_LAYER_STATE);
    CHECK(c.window == 9 && c.logit_softcap == 5 && c.kv[SPW_LAYER_SLIDING].n_heads == 1);
    CHECK(spw_mixer_width(&c.mixer) == 24 && spw_mixer_conv_floats(&c.mixer) == 32);
    c = accept(griffin, "{'block_types': ['recurrent'], 'lru_width': null}", NULL);
    CHECK(c.window == 0 && c.layer_kinds[6] == SPW_LAYER_STATE && c.mixer.value_dim == 48);
    CHECK(accept(griffin, "{'sliding_window': 7}", NULL).window == 7); /* another name */
    refuse(griffin, "{'block_types': []}", "block_types: found a list of 0, expected a list of");
    refuse(griffin, "{'block_types': ['local']}",
           "block_types: found a list of 1, expected a list");
    refuse(griffin, "{'block_types': null}", "block_types: found null, expected a list of");
    refuse(griffin, "{'attention_window_size': null}",
           "attention_window_size: found null, expected");
    refuse(griffin, "{'lru_width': 30}",
           "lru_width: found 30, expected a multiple of "
           "num_attention_heads, 4");
    refuse(griffin, "{'conv1d_width': 9}",
           "conv1d_width: found 9, expected an integer from 2 to 8");
    refuse(griffin, "{'intermediate_size': 1}", "intermediate_size: found 1, expected at least 2");
    refuse(griffin, "{'logits_soft_cap': null}", "logits_soft_cap: found null, expected a number");
    refuse(griffin, "{'rope_scaling': {'type': 'linear', 'factor': 2}}",
           "rope_scaling.type: found 'linear', expected default, in this family");
    refuse(griffin, "{'final_logit_softcapping': 30}",
           "final_logit_softcapping: found 30, expected");
}

/* Facts of the families with layer norms, and of those whose queries grow. */
static void test_other_families(void)
{
    struct spw_model_config c =
        accept(llama, "{'model_type': 'phi', 'layer_norm_eps': 1e-4, 'rms_norm_eps': 1e-3}", NULL);
    CHECK(c.norm == SPW_NORM_MEAN && c.norm_bias && c.parallel && c.plain_mlp && c.head_bias);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.act == SPW_ACT_GELU_TANH && !c.qk_norm);
    CHECK(c.rms_eps == 1e-4f && c.rope[0].rotary_dim == 4);
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
    refuse(llama, "{'model_type': 'qwen2_vl', 'original_max_position_embeddings': 64}",
           "original_max_position_embeddings: found 64, expected this key inside rope_scaling");
    refuse(llama, "{'rope_scaling': {'type': 'mrope'}}",
           "rope_scaling.type: found 'mrope', expected default, linear");
    refuse(llama, "{'model_type': 'mistral3', 'text_config': {'model_type': 'llama'}}",
           "text_config.model_type: found 'llama', expected mistral, ministral or ministral3");
    refuse(llama, "{'model_type': 'llava', 'text_config': {'model_type': 'gemma'}}",
           "text_config.model_type: found 'gemma', expected llama, mistral or qwen2");
    refuse(llama, "{'model_type': 'llava', 'text_config': {'model_type': ''}}",
           "text_config.model_type: found '', expected llama, mistral or qwen2");
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

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_gemma3();
    test_gemma4();
    test_muse_glimmer();
    test_recurrent_gemma();
    test_other_families();
    test_foreign_keys();
    test_nulls();
    return config_done();
}
