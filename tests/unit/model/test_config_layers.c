/* config.json: which layers have windows, chunks, rope and experts, and how many experts. */
#include "tests/config_text.h"

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
    refuse(llama, "{'model_type': 'mixtral', 'num_local_experts': 0}",
           "num_local_experts: found 0, expected an integer from 1");
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

/* Experts are chosen by groups. */
static void test_groups(void)
{
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
    accept(llama, "{'model_type': 'ernie4_5_moe', 'use_bias': null}", NULL);
    refuse(llama, "{'model_type': 'ernie4_5_moe', 'use_bias': true}",
           "use_bias: found true, expected false: such biases are not supported");
    refuse(llama, "{'model_type': 'seed_oss', 'attention_out_bias': true}",
           "attention_out_bias: found true, expected false: such biases are not supported");
    c = accept(llama,
               "{'model_type': 'mellum', 'num_key_value_heads': 8, 'mlp_layer_types': ['sparse', "
               "'dense', 'dense', 'sparse', 'dense', 'dense']}",
               NULL);
    CHECK(spw_expert_layers(&c) == 2 && c.has_experts[3] && kinds_are(&c, "FFFFFF"));
    refuse(llama,
           "{'model_type': 'mellum', 'num_key_value_heads': 8, 'mlp_layer_types': ['sparse', "
           "'other', 'dense', 'sparse', 'dense', 'dense']}",
           "mlp_layer_types[1]: found 'other', expected 'sparse' or 'dense'");
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

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_windows();
    test_chunks();
    test_hybrid();
    test_expert_counts();
    test_groups();
    test_last_layer();
    return config_done();
}
