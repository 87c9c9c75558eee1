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
};

#define TINY_GGUF "/model.gguf"

struct tiny_writer {
    FILE *header, *data;
    uint64_t offset, seed;
    bool bf16, first;
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
    char full[128];
    snprintf(full, sizeof full, "model.layers.%u.%s", layer, name);
    tiny_tensor(w, full, rows, cols, 2.0 / sqrt(cols), 0);
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
    {"llama", 3, 64, 96, 4, 2, 16, 101, 4096, NULL, false, false, false, true, false, 1},
    {"llama", 2, 64, 96, 4, 4, 16, 101, 4096, ",\"rope_theta\":500000.0", false, false, false,
     false, true, 2},
    {"qwen2", 3, 32, 64, 4, 1, 8, 67, 4096, NULL, true, false, false, false, true, 3},
    {"qwen3", 2, 48, 64, 2, 2, 32, 67, 4096, NULL, false, true, false, true, false, 4},
    {"mistral", 3, 32, 64, 4, 2, 16, 67, 4096, ",\"sliding_window\":200", false, false, false, true,
     true, 5},
    {"gemma3_text", 4, 32, 64, 2, 1, 32, 67, 4096,
     ",\"sliding_window\":300,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":32,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000.0,"
     "\"rope_local_base_freq\":10000.0",
     false, true, true, false, true, 6},
};
enum { N_TINY_MODELS = sizeof tiny_models / sizeof *tiny_models };

#endif
