/* The facts come from transformers' configuration_*.py (the default of a key) and modeling_*.py
 * (behaviour that no key changes). */
#include "model/config_families.h"

#include <string.h>

static const struct spw_family families[] = {
    {.name = "llama",
     .norm = SPW_NORM_LLAMA,
     .activation_key = "hidden_act",
     .activation = "silu",
     .qkv_bias = SPW_FAMILY_BY_KEY,
     .o_bias = SPW_FAMILY_BY_KEY,
     .mlp_bias = SPW_FAMILY_BY_KEY,
     .max_positions = 2048,
     .bos = 1,
     .eos = 2,
     .rope = {.theta = 1e4}},
    {.name = "mistral",
     .other_name = "ministral",
     .norm = SPW_NORM_LLAMA,
     .activation_key = "hidden_act",
     .activation = "silu",
     .n_kv_heads = 8,
     .max_positions = 131072,
     .window_rule = SPW_WINDOW_ALL,
     .window = 4096,
     .bos = 1,
     .eos = 2,
     .rope = {.theta = 1e4}},
    {.name = "qwen2",
     .norm = SPW_NORM_LLAMA,
     .activation_key = "hidden_act",
     .activation = "silu",
     .qkv_bias = SPW_FAMILY_ALWAYS,
     .n_kv_heads = 32,
     .max_positions = 32768,
     .window_rule = SPW_WINDOW_OPT_IN,
     .window = 4096,
     .max_window_layers = 28,
     .bos = -1,
     .eos = -1,
     .rope = {.theta = 1e4}},
    {.name = "qwen3",
     .norm = SPW_NORM_LLAMA,
     .activation_key = "hidden_act",
     .activation = "silu",
     .qkv_bias = SPW_FAMILY_BY_KEY,
     .o_bias = SPW_FAMILY_BY_KEY,
     .qk_norm = true,
     .n_kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .window_rule = SPW_WINDOW_OPT_IN,
     .window = 4096,
     .max_window_layers = 28,
     .bos = -1,
     .eos = -1,
     .rope = {.theta = 1e4}},
    {.name = "gemma3_text",
     .norm = SPW_NORM_LATE,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .qkv_bias = SPW_FAMILY_BY_KEY,
     .o_bias = SPW_FAMILY_BY_KEY,
     .qk_norm = true,
     .sandwich = true,
     .scaled = true,
     .tied = true,
     .n_heads = 8,
     .n_kv_heads = 4,
     .head_dim = 256,
     .vocab = 262208,
     .max_positions = 131072,
     .window_rule = SPW_WINDOW_PATTERN,
     .window = 4096,
     .bos = 2,
     .eos = 1,
     .rope = {.by_layer_kind = true, .theta = 1e6, .local_theta = 1e4}},
};

const struct spw_family *spw_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const struct spw_family *f = &families[i];
        if (!strcmp(name, f->name) || (f->other_name && !strcmp(name, f->other_name)))
            return f;
    }
    return NULL;
}
