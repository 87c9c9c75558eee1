/* The architectures of GGUF files, a row each: which family of config_families.c they are, and what
 * their files say otherwise. See config_gguf.h. */
#include "model/config/config_gguf.h"

#include <string.h>

#define NO_WINDOW_STORED                                                                           \
    "every layer sees all positions: files of this architecture do not store a sliding window"
#define NO_WINDOW_OF_MISTRAL NO_WINDOW_STORED " (Mistral 7B v0.1 has one of 4096)"

/* clang-format off */
static const struct spw_gguf_architecture architectures[] = {
    {.name = "llama", .model_type = "llama", .interleaved_qk = true,
     .window_rule = NO_WINDOW_OF_MISTRAL, .other_pre = "llama-bpe", .pre_token = "<|eot_id|>"},
    {.name = "llama", .model_type = "mixtral", .window_rule = NO_WINDOW_OF_MISTRAL,
     .interleaved_qk = true, .experts = true, .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "chatglm", .model_type = "glm", .interleaved_qk = true, .joined = true,
     .end = "<|observation|>"},
    {.name = "glm4", .model_type = "glm4", .end = "<|observation|>", .interleaved_qk = true,
     .joined = true, .glm_norms = true},
    {.name = "glm4moe", .model_type = "glm4_moe", .end = "<|observation|>",
     .post_attention_norm = true, .experts = true, .scores = 2, .renormalizes = SPW_FAMILY_UNLESS},
    {.name = "gpt-oss", .model_type = "gpt_oss", .post_attention_norm = true, .experts = true},
    {.name = "gptoss", .model_type = "gpt_oss", .post_attention_norm = true, .experts = true,
     .scaling = "yarn", .other_pre = "gpt-4o"},
    {.name = "arcee", .model_type = "arcee", .interleaved_qk = true},
    {.name = "granite", .model_type = "granite", .interleaved_qk = true, .mamba_keys = true},
    {.name = "granitemoe", .model_type = "granitemoe", .interleaved_qk = true, .experts = true,
     .mamba_keys = true},
    {.name = "mistral3", .model_type = "ministral3", .interleaved_qk = true, .other_pre = "tekken"},
    {.name = "command-r", .model_type = "cohere", .interleaved_qk = true, .no_head = true},
    {.name = "cohere2", .model_type = "cohere2", .interleaved_qk = true, .no_head = true},
    {.name = "phi2", .model_type = "phi"},
    {.name = "stablelm", .model_type = "stablelm"},
    {.name = "starcoder2", .model_type = "starcoder2", .window_rule = NO_WINDOW_STORED},
    {.name = "olmo", .model_type = "olmo", .interleaved_qk = true},
    {.name = "olmo2", .model_type = "olmo2", .late_norms = true},
    {.name = "olmo2", .model_type = "olmo3", .late_norms = true, .windows = true,
     .other_pre = "dbrx"},
    {.name = "olmo3", .model_type = "olmo3", .late_norms = true, .other_pre = "dbrx"},
    {.name = "olmoe", .model_type = "olmoe", .experts = true, .renormalizes = SPW_FAMILY_NEVER},
    {.name = "phi3", .model_type = "phi3", .joined = true, .greedy_tokens = true},
    {.name = "qwen2", .model_type = "qwen2", .window_rule = NO_WINDOW_STORED},
    {.name = "qwen2moe", .model_type = "qwen2_moe", .window_rule = NO_WINDOW_STORED,
     .experts = true, .renormalizes = SPW_FAMILY_NEVER},
    {.name = "qwen2vl", .model_type = "qwen2", .window_rule = NO_WINDOW_STORED, .sections = true},
    {.name = "qwen25vl", .model_type = "qwen2", .window_rule = NO_WINDOW_STORED, .sections = true},
    {.name = "qwen3", .model_type = "qwen3", .window_rule = NO_WINDOW_STORED},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .window_rule = NO_WINDOW_STORED,
     .experts = true, .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "qwen3vl", .model_type = "qwen3", .window_rule = NO_WINDOW_STORED, .sections = true},
    {.name = "qwen3vlmoe", .model_type = "qwen3_moe", .window_rule = NO_WINDOW_STORED,
     .experts = true, .renormalizes = SPW_FAMILY_ALWAYS, .sections = true},
    {.name = "qwen35", .model_type = "qwen3_5_text", .post_attention_norm = true, .tiled = true,
     .sections = true},
    {.name = "qwen35moe", .model_type = "qwen3_5_moe_text", .post_attention_norm = true,
     .experts = true, .renormalizes = SPW_FAMILY_ALWAYS, .tiled = true, .sections = true},
    {.name = "qwen3next", .model_type = "qwen3_next", .post_attention_norm = true, .experts = true,
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "mamba", .model_type = "mamba"},
    {.name = "mamba2", .model_type = "mamba2"},
    {.name = "falcon-h1", .model_type = "falcon_h1"},
    {.name = "granitehybrid", .model_type = "granitemoehybrid", .interleaved_qk = true,
     .renormalizes = SPW_FAMILY_NEVER},
    {.name = "nemotron_h", .model_type = "nemotron_h", .interleaved_qk = true, .scores = 2,
     .renormalizes = SPW_FAMILY_BY_KEY},
    {.name = "nemotron_h_moe", .model_type = "nemotron_h", .interleaved_qk = true, .scores = 2,
     .experts = true, .renormalizes = SPW_FAMILY_BY_KEY},
    {.name = "lfm2", .model_type = "lfm2"},
    {.name = "lfm2moe", .model_type = "lfm2_moe", .experts = true, .scores = 2,
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "seed_oss", .model_type = "seed_oss", .post_attention_norm = true},
    {.name = "ernie4_5", .model_type = "ernie4_5", .interleaved_qk = true},
    {.name = "ernie4_5-moe", .model_type = "ernie4_5_moe", .interleaved_qk = true, .experts = true,
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "hunyuan-dense", .model_type = "hunyuan_v1_dense"},
    {.name = "hunyuan-moe", .model_type = "hunyuan_v1_moe", .experts = true,
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "jais2", .model_type = "jais2"},
    {.name = "nemotron", .model_type = "nemotron"},
    {.name = "dots1", .model_type = "dots1", .end = "<|endofresponse|>",
     .window_rule = NO_WINDOW_STORED, .experts = true, .scores = 2,
     .renormalizes = SPW_FAMILY_BY_KEY},
    {.name = "minimax-m2", .model_type = "minimax_m2", .end = "[e~[", .experts = true, .scores = 2,
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "exaone4", .model_type = "exaone4", .late_norms = true, .no_window = true},
    {.name = "exaone-moe", .model_type = "exaone_moe", .experts = true, .no_window = true,
     .scores = 2, .renormalizes = SPW_FAMILY_BY_KEY},
    {.name = "mellum", .model_type = "mellum", .experts = true, .no_window = true,
     .window_pattern = 4, .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "smollm3", .model_type = "smollm3", .interleaved_qk = true},
    {.name = "gemma", .model_type = "gemma", .plain_start = true},
    {.name = "gemma2", .model_type = "gemma2", .plain_start = true, .sandwich = true,
     .usual_window = true, .wide_scale_layers = 46},
    {.name = "gemma3", .model_type = "gemma3_text", .plain_start = true, .sandwich = true,
     .no_window = true, .local_theta = 1e4, .wide_scale_layers = 62},
    {.name = "gemma4", .model_type = "gemma4_text", .sandwich = true, .local_theta = 1e4,
     .joined_experts = true, .merged_tokens = true, .end = "<|tool_response>",
     .renormalizes = SPW_FAMILY_ALWAYS},
    {.name = "t5", .model_type = "t5"},
    {.name = "muse-glimmer", .model_type = "muse_glimmer_text", .interleaved_qk = true,
     .sandwich = true},
    {.name = "llama4", .model_type = "llama4_text", .interleaved_qk = true, .experts = true,
     .scores = 2, .chunk = 8192, .bare_experts = 128, .other_pre = "gpt-4o"},
};
/* clang-format on */

const struct spw_gguf_architecture *spw_gguf_architecture_find(const char *name, bool experts,
                                                               bool windows)
{
    const struct spw_gguf_architecture *found = NULL;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const struct spw_gguf_architecture *a = &architectures[i];
        if (!strcmp(name, a->name) &&
            (!found || (a->experts && experts) || (a->windows && windows)))
            found = a;
    }
    return found;
}

const struct spw_gguf_architecture *spw_gguf_architecture_of(const struct spw_model_config *c)
{
    /* A text is the same to both. */
    const char *const same[][2] = {{"mistral", "llama"},
                                   {"ministral", "llama"},
                                   {"internlm3", "llama"},
                                   {"iquestcoder", "llama"},
                                   {"qwen2_vl_text", "qwen2"},
                                   {"qwen2_5_vl_text", "qwen2"},
                                   {"qwen3_vl_text", "qwen3"},
                                   {"qwen3_vl_moe_text", "qwen3_moe"},
                                   {"granitemoeshared", "granitemoe"},
                                   {"mt5", "t5"},
                                   {"umt5", "t5"},
                                   {"solar_open", "glm4_moe"},
                                   {"granitemoehybrid", c->experts.n ? "granitemoe" : "granite"}};
    const char *model_type = c->model_type;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!strcmp(model_type, same[i][0]))
            model_type = same[i][1];
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (!strcmp(model_type, architectures[i].model_type))
            return &architectures[i];
    return NULL;
}
