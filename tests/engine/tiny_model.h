/* Writes a random model folder into a temporary directory: a few layers of any family, small enough
 * that a property test can run hundreds of drawn placements over it. */
#ifndef SPW_TESTS_ENGINE_TINY_MODEL_H
#define SPW_TESTS_ENGINE_TINY_MODEL_H

#include "base/base.h"
#include "tests/check.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

/* The type of weights. TINY_QUANTIZED: run_folder writes a GGUF file, too, whose matrices have
 * drawn quantized types. */
enum tiny_stored { TINY_F32 = false, TINY_BF16 = true, TINY_QUANTIZED };

struct tiny_model {
    const char *family; /* model_type */
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, positions;
    const char *more; /* more keys of config.json, each with a comma in front */
    bool bias, qk_norm, sandwich, untied;
    enum tiny_stored stored;
    uint64_t seed;
    /* All layers but the first `dense` have experts; `more` has the keys that say so. */
    uint32_t experts, expert_width, shared_width, dense;
};

#define TINY_GGUF "/model.gguf"

struct tiny_writer {
    FILE *header, *data;
    uint64_t offset, seed;
    bool bf16, first;
    const char *mlp; /* how names of the mlp begin */
};

static inline void tiny_tensor(struct tiny_writer *w, const char *name, uint32_t rows,
                               uint32_t cols, double scale, double center)
{
    uint64_t n = (uint64_t)rows * (cols ? cols : 1), bytes = n * (w->bf16 ? 2 : 4);
    fprintf(w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u", w->first ? "" : ",", name,
            w->bf16 ? "BF16" : "F32", rows);
    if (cols)
        fprintf(w->header, ",%u", cols);
    fprintf(w->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->offset,
            (unsigned long long)(w->offset + bytes));
    w->offset += bytes;
    w->first = false;
    for (uint64_t i = 0; i < n; i++) {
        double u = (double)(check_random(&w->seed) >> 11) * 0x1p-53;
        float f = (float)(center + scale * (2 * u - 1));
        uint32_t bits;
        memcpy(&bits, &f, 4);
        uint16_t half = (uint16_t)(bits >> 16); /* cut, not rounded: any value will do */
        fwrite(w->bf16 ? (void *)&half : (void *)&f, w->bf16 ? 2 : 4, 1, w->data);
    }
}

static inline void tiny_vector(struct tiny_writer *w, uint32_t layer, const char *name, uint32_t n,
                               double scale, double center)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%u.%s", layer, name);
    tiny_tensor(w, full, n, 0, scale, center);
}

static inline void tiny_matrix(struct tiny_writer *w, uint32_t layer, const char *name,
                               uint32_t rows, uint32_t cols)
{
    char full[192];
    const bool mlp = !strncmp(name, "mlp.", 4);
    snprintf(full, sizeof full, "model.layers.%u.%s%s", layer, mlp ? w->mlp : "",
             name + (mlp ? 4 : 0));
    tiny_tensor(w, full, rows, cols, 2.0 / sqrt(cols), 0);
}

/* A tensor for each matrix, as released files have them. */
static inline void tiny_expert(struct tiny_writer *w, const struct tiny_model *m, uint32_t l,
                               const char *expert, uint32_t width)
{
    char name[96];
    snprintf(name, sizeof name, "mlp.%s.gate_proj.weight", expert);
    tiny_matrix(w, l, name, width, m->hidden);
    snprintf(name, sizeof name, "mlp.%s.up_proj.weight", expert);
    tiny_matrix(w, l, name, width, m->hidden);
    snprintf(name, sizeof name, "mlp.%s.down_proj.weight", expert);
    tiny_matrix(w, l, name, m->hidden, width);
}

static inline void tiny_experts(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    char name[32];
    tiny_matrix(w, l, "mlp.gate.weight", m->experts, m->hidden);
    for (uint32_t e = 0; e < m->experts; e++) {
        snprintf(name, sizeof name, "experts.%u", e);
        tiny_expert(w, m, l, name, m->expert_width);
    }
    if (m->shared_width) {
        tiny_expert(w, m, l, "shared_expert", m->shared_width);
        if (strcmp(m->family, "llama4_text") != 0)
            tiny_matrix(w, l, "mlp.shared_expert_gate.weight", 1, m->hidden);
    }
}

static inline void tiny_layer(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    double center = strncmp(m->family, "gemma", 5) ? 1 : 0;
    tiny_vector(w, l, "input_layernorm.weight", m->hidden, 0.2, center);
    tiny_vector(w, l, "post_attention_layernorm.weight", m->hidden, 0.2, center);
    if (m->sandwich) {
        tiny_vector(w, l, "pre_feedforward_layernorm.weight", m->hidden, 0.2, center);
        tiny_vector(w, l, "post_feedforward_layernorm.weight", m->hidden, 0.2, center);
    }
    if (m->qk_norm) {
        tiny_vector(w, l, "self_attn.q_norm.weight", m->head_dim, 0.3, center);
        tiny_vector(w, l, "self_attn.k_norm.weight", m->head_dim, 0.3, center);
    }
    tiny_matrix(w, l, "self_attn.q_proj.weight", q, m->hidden);
    tiny_matrix(w, l, "self_attn.k_proj.weight", kv, m->hidden);
    tiny_matrix(w, l, "self_attn.v_proj.weight", kv, m->hidden);
    tiny_matrix(w, l, "self_attn.o_proj.weight", m->hidden, q);
    if (m->bias) {
        tiny_vector(w, l, "self_attn.q_proj.bias", q, 1, 0);
        tiny_vector(w, l, "self_attn.k_proj.bias", kv, 2, 0);
        tiny_vector(w, l, "self_attn.v_proj.bias", kv, 0.5, 0);
    }
    if (m->experts && l >= m->dense) {
        tiny_experts(w, m, l);
        return;
    }
    tiny_matrix(w, l, "mlp.gate_proj.weight", m->intermediate, m->hidden);
    tiny_matrix(w, l, "mlp.up_proj.weight", m->intermediate, m->hidden);
    tiny_matrix(w, l, "mlp.down_proj.weight", m->hidden, m->intermediate);
}

static inline void tiny_config(const struct tiny_model *m, const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%.500s/config.json", dir);
    FILE *f = fopen(path, "w");
    fprintf(f,
            "{\"model_type\":\"%s\",\"hidden_size\":%u,\"intermediate_size\":%u,"
            "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
            "\"head_dim\":%u,\"vocab_size\":%u,\"max_position_embeddings\":%u,"
            "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":%s,\"torch_dtype\":\"%s\"%s}",
            m->family, m->hidden, m->intermediate, m->layers, m->heads, m->kv_heads, m->head_dim,
            m->vocab, m->positions, m->untied ? "false" : "true",
            m->stored == TINY_BF16 ? "bfloat16" : "float32", m->more ? m->more : "");
    fclose(f);
}

/* Data at a multiple of 8 (as writers pad today) plus `odd`. */
static inline void tiny_file_write(const char *path, const char *header, size_t header_bytes,
                                   const char *data, size_t data_bytes, uint64_t odd)
{
    FILE *f = fopen(path, "wb");
    uint64_t n = (header_bytes + 7) / 8 * 8 + odd;
    fwrite(&n, 8, 1, f);
    fprintf(f, "%-*s", (int)n, header);
    fwrite(data, 1, data_bytes, f);
    fclose(f);
}

/* `dir` must be writable and is made; two files lie in it afterwards. */
static inline void tiny_model_write(const struct tiny_model *m, const char *dir)
{
    char path[600], *header = NULL, *data = NULL;
    size_t header_bytes = 0, data_bytes = 0;
    struct tiny_writer w = {.seed = m->seed, .bf16 = m->stored == TINY_BF16, .first = true};
    w.mlp = strcmp(m->family, "llama4_text") ? "mlp." : "feed_forward.";
    mkdir(dir, 0700);
    tiny_config(m, dir);
    w.header = open_memstream(&header, &header_bytes);
    w.data = open_memstream(&data, &data_bytes);
    fputc('{', w.header);
    tiny_tensor(&w, "model.embed_tokens.weight", m->vocab, m->hidden, 1, 0);
    for (uint32_t l = 0; l < m->layers; l++)
        tiny_layer(&w, m, l);
    tiny_tensor(&w, "model.norm.weight", m->hidden, 0, 0.2, strncmp(m->family, "gemma", 5) ? 1 : 0);
    if (m->untied)
        tiny_tensor(&w, "lm_head.weight", m->vocab, m->hidden, 0.5, 0);
    fputc('}', w.header);
    fclose(w.header);
    fclose(w.data);
    snprintf(path, sizeof path, "%.500s/model.safetensors", dir);
    /* With every third seed at an odd address. */
    tiny_file_write(path, header, header_bytes, data, data_bytes, m->seed % 3 == 0);
    free(header);
    free(data);
}

/* The folder, or the GGUF file in it. */
static inline void tiny_model_remove(const char *dir)
{
    static const char *const files[] = {"/config.json", "/model.safetensors", TINY_GGUF, ""};
    const char *file = strstr(dir, TINY_GGUF);
    const int n = file ? (int)(file - dir) : (int)strlen(dir);
    char path[600];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%.*s%s", n, dir, files[i]);
        remove(path);
    }
}

/* One of each thing that changes how a cache behaves. */
static const struct tiny_model tiny_models[] = {
    {.family = "llama",
     .layers = 3,
     .hidden = 64,
     .intermediate = 96,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .vocab = 101,
     .positions = 4096,
     .untied = true,
     .seed = 1},
    {.family = "llama",
     .layers = 2,
     .hidden = 64,
     .intermediate = 96,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 16,
     .vocab = 101,
     .positions = 4096,
     .more = ",\"rope_theta\":500000.0",
     .stored = TINY_BF16,
     .seed = 2},
    {.family = "qwen2",
     .layers = 3,
     .hidden = 32,
     .intermediate = 64,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 8,
     .vocab = 67,
     .positions = 4096,
     .bias = true,
     .stored = TINY_BF16,
     .seed = 3},
    {.family = "qwen3",
     .layers = 2,
     .hidden = 48,
     .intermediate = 64,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 32,
     .vocab = 67,
     .positions = 4096,
     .qk_norm = true,
     .untied = true,
     .seed = 4},
    {.family = "mistral",
     .layers = 3,
     .hidden = 32,
     .intermediate = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .vocab = 67,
     .positions = 4096,
     .more = ",\"sliding_window\":200",
     .untied = true,
     .stored = TINY_BF16,
     .seed = 5},
    {.family = "gemma3_text",
     .layers = 4,
     .hidden = 32,
     .intermediate = 64,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 32,
     .vocab = 67,
     .positions = 4096,
     .more = ",\"sliding_window\":300,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":32,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000.0,"
             "\"rope_local_base_freq\":10000.0",
     .qk_norm = true,
     .sandwich = true,
     .stored = TINY_BF16,
     .seed = 6},
    {.family = "qwen2_moe",
     .layers = 3,
     .hidden = 32,
     .intermediate = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .vocab = 67,
     .positions = 4096,
     .more = ",\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
             "\"shared_expert_intermediate_size\":40,\"mlp_only_layers\":[0]",
     .bias = true,
     .untied = true,
     .stored = TINY_BF16,
     .seed = 8,
     .experts = 6,
     .expert_width = 24,
     .shared_width = 40,
     .dense = 1},
    {.family = "llama4_text",
     .layers = 3,
     .hidden = 32,
     .intermediate = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .vocab = 67,
     .positions = 4096,
     .more = ",\"attention_chunk_size\":200,\"no_rope_layer_interval\":3,\"floor_scale\":100,"
             "\"intermediate_size_mlp\":24,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
             "\"moe_layers\":[1,2]",
     .untied = true,
     .stored = TINY_BF16,
     .seed = 9,
     .experts = 4,
     .expert_width = 24,
     .shared_width = 24,
     .dense = 1},
};
enum { N_TINY_MODELS = sizeof tiny_models / sizeof *tiny_models };

#endif
