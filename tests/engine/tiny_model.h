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

/* Layers with a state. */
enum tiny_mixer { TINY_NO_MIXER, TINY_CONV, TINY_DELTA, TINY_SSD };

struct tiny_model {
    const char *family; /* model_type */
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, positions;
    const char *more; /* more keys of config.json, each with a comma in front */
    bool bias, qk_norm, sandwich, untied;
    enum tiny_stored stored;
    uint64_t seed;
    /* All layers but the first `dense` have experts; `more` has the keys that say so. */
    uint32_t experts, expert_width, shared_width, dense;
    /* gemma4_text: layers with an even number slide, the others and the last one are full and have
     * this shape of KV. v_is_k: they have no matrix for v. The last `readers` layers have no keys
     * and values of their own; `inputs` numbers of each row go to each layer. */
    uint32_t full_heads, full_head_dim, readers, inputs;
    bool v_is_k;
    /* Every `interval`-th layer attends, the others have a state; and with `beside` those that
     * attend, too. */
    enum tiny_mixer mixer;
    uint32_t interval, taps, state_heads, state_key_heads, state_key_dim, state_dim;
    bool beside;
    /* glm4_moe: one layer more, which predicts further tokens. All layers change little, so that
     * the last one often agrees with the model. */
    bool mtp;
};

/* The first members, in their order, and designated ones may follow: TINY("llama", 3, 64, 96, 4, 2,
 * 16, 101, 4096) has 3 layers, hidden rows of 64, mlps of 96, 4 heads, 2 KV heads of 16 channels.
 */
#define TINY(family_, layers_, hidden_, intermediate_, heads_, kv_heads_, head_dim_, vocab_, n_)   \
    .family = family_, .layers = layers_, .hidden = hidden_, .intermediate = intermediate_,        \
    .heads = heads_, .kv_heads = kv_heads_, .head_dim = head_dim_, .vocab = vocab_,                \
    .positions = n_

#define TINY_GGUF "/model.gguf"

struct tiny_writer {
    FILE *header, *data;
    uint64_t offset, seed;
    bool bf16, first, quiet;
    const char *mlp; /* how names of the mlp begin */
};

/* stacked: matrices that are one tensor; 0: a matrix, or a vector if cols is 0. */
static inline void tiny_stack(struct tiny_writer *w, const char *name, uint32_t stacked,
                              uint32_t rows, uint32_t cols, double scale, double center)
{
    uint64_t n = (uint64_t)rows * (cols ? cols : 1) * (stacked ? stacked : 1);
    uint64_t bytes = n * (w->bf16 ? 2 : 4);
    fprintf(w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->first ? "" : ",", name,
            w->bf16 ? "BF16" : "F32");
    if (stacked)
        fprintf(w->header, "%u,", stacked);
    fprintf(w->header, "%u", rows);
    if (cols)
        fprintf(w->header, ",%u", cols);
    fprintf(w->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->offset,
            (unsigned long long)(w->offset + bytes));
    w->offset += bytes;
    w->first = false;
    for (uint64_t i = 0; i < n; i++) {
        double u = (double)(check_random(&w->seed) >> 11) * 0x1p-53;
        float f = (float)(center + scale * (2 * u - 1));
        if (strstr(name, "eh_proj")) /* the embedding, and a little of the hidden state */
            f = (float)(0.05 * (2 * u - 1)) + (i % cols == i / cols ? 1 : 0);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        uint16_t half = (uint16_t)(bits >> 16); /* cut, not rounded: any value will do */
        fwrite(w->bf16 ? (void *)&half : (void *)&f, w->bf16 ? 2 : 4, 1, w->data);
    }
}

static inline void tiny_tensor(struct tiny_writer *w, const char *name, uint32_t rows,
                               uint32_t cols, double scale, double center)
{
    tiny_stack(w, name, 0, rows, cols, scale, center);
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
    const bool adds = strstr(name, "o_proj") || strstr(name, "down_proj");
    tiny_tensor(w, full, rows, cols, (w->quiet && adds ? 0.3 : 2.0) / sqrt(cols), 0);
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

/* What the files of the family store for a norm that does nothing. */
static inline double tiny_center(const struct tiny_model *m)
{
    const bool plus_one = !strncmp(m->family, "gemma", 5) || !strncmp(m->family, "qwen3_5", 7);
    return plus_one && strcmp(m->family, "gemma4_text") != 0 ? 0 : 1;
}

static inline void tiny_stacked(struct tiny_writer *w, const struct tiny_model *m, uint32_t l,
                                const char *name, uint32_t rows, uint32_t cols)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%u.%s", l, name);
    tiny_stack(w, full, m->experts, rows, cols, 2.0 / sqrt(cols), 0);
}

static inline void tiny_gemma4_experts(struct tiny_writer *w, const struct tiny_model *m,
                                       uint32_t l)
{
    tiny_matrix(w, l, "router.proj.weight", m->experts, m->hidden);
    tiny_vector(w, l, "router.scale", m->hidden, 0.3, 1);
    tiny_vector(w, l, "router.per_expert_scale", m->experts, 0.3, 1);
    tiny_stacked(w, m, l, "experts.gate_up_proj", 2 * m->expert_width, m->hidden);
    tiny_stacked(w, m, l, "experts.down_proj", m->hidden, m->expert_width);
    tiny_vector(w, l, "pre_feedforward_layernorm_2.weight", m->hidden, 0.2, 1);
    tiny_vector(w, l, "post_feedforward_layernorm_1.weight", m->hidden, 0.2, 1);
    tiny_vector(w, l, "post_feedforward_layernorm_2.weight", m->hidden, 0.2, 1);
}

static inline void tiny_gemma4_layer(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    static const char *const norms[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                        "pre_feedforward_layernorm.weight",
                                        "post_feedforward_layernorm.weight"};
    const bool full = l % 2 || l == m->layers - 1, stores = l < m->layers - m->readers;
    const uint32_t dim = full ? m->full_head_dim : m->head_dim, q = m->heads * dim;
    const uint32_t kv = (full && m->v_is_k ? m->full_heads : m->kv_heads) * dim;
    const uint32_t width = m->intermediate * (stores ? 1 : 2);
    for (int i = 0; i < 4; i++)
        tiny_vector(w, l, norms[i], m->hidden, 0.2, 1);
    tiny_vector(w, l, "layer_scalar", 1, 0.2, 1);
    tiny_vector(w, l, "self_attn.q_norm.weight", dim, 0.1, 0.5);
    tiny_matrix(w, l, "self_attn.q_proj.weight", q, m->hidden);
    tiny_matrix(w, l, "self_attn.o_proj.weight", m->hidden, q);
    if (stores || l % 2) { /* some readers have them; they are not read */
        tiny_vector(w, l, "self_attn.k_norm.weight", dim, 0.1, 0.5);
        tiny_matrix(w, l, "self_attn.k_proj.weight", kv, m->hidden);
        if (!full || !m->v_is_k)
            tiny_matrix(w, l, "self_attn.v_proj.weight", kv, m->hidden);
    }
    tiny_matrix(w, l, "mlp.gate_proj.weight", width, m->hidden);
    tiny_matrix(w, l, "mlp.up_proj.weight", width, m->hidden);
    tiny_matrix(w, l, "mlp.down_proj.weight", m->hidden, width);
    if (m->experts)
        tiny_gemma4_experts(w, m, l);
    if (!m->inputs)
        return;
    tiny_matrix(w, l, "per_layer_input_gate.weight", m->inputs, m->hidden);
    tiny_matrix(w, l, "per_layer_projection.weight", m->hidden, m->inputs);
    tiny_vector(w, l, "post_per_layer_input_norm.weight", m->hidden, 0.2, 1);
}

/* What all layers of gemma4_text have together. */
static inline void tiny_gemma4_inputs(struct tiny_writer *w, const struct tiny_model *m)
{
    if (!m->inputs)
        return;
    tiny_tensor(w, "model.embed_tokens_per_layer.weight", m->vocab + 3, m->layers * m->inputs, 0.5,
                0);
    tiny_tensor(w, "model.per_layer_model_projection.weight", m->layers * m->inputs, m->hidden,
                2.0 / sqrt(m->hidden), 0);
    tiny_tensor(w, "model.per_layer_projection_norm.weight", m->inputs, 0, 0.2, 1);
}

/* ---- layers with a state ---- */

static inline bool tiny_attends(const struct tiny_model *m, uint32_t l)
{
    return !m->mixer || (l + 1) % m->interval == 0;
}

static inline bool tiny_has_state(const struct tiny_model *m, uint32_t l)
{
    return m->mixer && (m->beside || !tiny_attends(m, l));
}

static inline void tiny_taps(struct tiny_writer *w, uint32_t l, uint32_t channels, uint32_t taps)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%u.linear_attn.conv1d.weight", l);
    tiny_stack(w, full, channels, 1, taps, 1, 0);
}

static inline void tiny_convolution(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    tiny_matrix(w, l, "linear_attn.in_proj.weight", 3 * m->hidden, m->hidden);
    tiny_matrix(w, l, "linear_attn.out_proj.weight", m->hidden, m->hidden);
    tiny_taps(w, l, m->hidden, m->taps);
    if (!m->bias)
        return;
    tiny_vector(w, l, "linear_attn.in_proj.bias", 3 * m->hidden, 0.3, 0);
    tiny_vector(w, l, "linear_attn.out_proj.bias", m->hidden, 0.3, 0);
    tiny_vector(w, l, "linear_attn.conv1d.bias", m->hidden, 0.3, 0);
}

/* Decays near 1: a state that is wrong is seen long after. */
static inline void tiny_delta(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    const uint32_t width = m->state_heads * m->state_dim;
    const uint32_t channels = 2 * m->state_key_heads * m->state_key_dim + width;
    tiny_matrix(w, l, "linear_attn.in_proj_qkv.weight", channels, m->hidden);
    tiny_matrix(w, l, "linear_attn.in_proj_z.weight", width, m->hidden);
    tiny_matrix(w, l, "linear_attn.in_proj_b.weight", m->state_heads, m->hidden);
    tiny_matrix(w, l, "linear_attn.in_proj_a.weight", m->state_heads, m->hidden);
    tiny_matrix(w, l, "linear_attn.out_proj.weight", m->hidden, width);
    tiny_taps(w, l, channels, m->taps);
    tiny_vector(w, l, "linear_attn.A_log", m->state_heads, 1, -1);
    tiny_vector(w, l, "linear_attn.dt_bias", m->state_heads, 1, -3);
    tiny_vector(w, l, "linear_attn.norm.weight", m->state_dim, 0.2, 1);
}

static inline void tiny_ssd(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    const uint32_t width = m->state_heads * m->state_dim;
    const uint32_t channels = width + 2 * m->state_key_heads * m->state_key_dim;
    tiny_matrix(w, l, "linear_attn.in_proj.weight", channels + width + m->state_heads, m->hidden);
    tiny_matrix(w, l, "linear_attn.out_proj.weight", m->hidden, width);
    tiny_taps(w, l, channels, m->taps);
    tiny_vector(w, l, "linear_attn.A_log", m->state_heads, 1, -1);
    tiny_vector(w, l, "linear_attn.dt_bias", m->state_heads, 1, -3);
    tiny_vector(w, l, "linear_attn.D", m->state_heads, 0.5, 1);
    tiny_vector(w, l, "linear_attn.norm.weight", width, 0.2, 1);
    if (m->bias)
        tiny_vector(w, l, "linear_attn.conv1d.bias", channels, 0.3, 0);
}

static inline void tiny_state(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    static void (*const mixers[])(struct tiny_writer *, const struct tiny_model *, uint32_t) = {
        [TINY_CONV] = tiny_convolution, [TINY_DELTA] = tiny_delta, [TINY_SSD] = tiny_ssd};
    mixers[m->mixer](w, m, l);
}

static inline void tiny_attention(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    const uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const uint32_t gates = m->mixer == TINY_DELTA ? 2 : 1; /* in the matrix of q */
    if (m->qk_norm) {
        tiny_vector(w, l, "self_attn.q_norm.weight", m->head_dim, 0.3, tiny_center(m));
        tiny_vector(w, l, "self_attn.k_norm.weight", m->head_dim, 0.3, tiny_center(m));
    }
    tiny_matrix(w, l, "self_attn.q_proj.weight", gates * q, m->hidden);
    tiny_matrix(w, l, "self_attn.k_proj.weight", kv, m->hidden);
    tiny_matrix(w, l, "self_attn.v_proj.weight", kv, m->hidden);
    tiny_matrix(w, l, "self_attn.o_proj.weight", m->hidden, q);
    if (m->bias && !m->mixer) {
        tiny_vector(w, l, "self_attn.q_proj.bias", q, 1, 0);
        tiny_vector(w, l, "self_attn.k_proj.bias", kv, 2, 0);
        tiny_vector(w, l, "self_attn.v_proj.bias", kv, 0.5, 0);
    }
}

static inline void tiny_mlp(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    if (m->experts && l >= m->dense) {
        tiny_experts(w, m, l);
        return;
    }
    tiny_matrix(w, l, "mlp.gate_proj.weight", m->intermediate, m->hidden);
    tiny_matrix(w, l, "mlp.up_proj.weight", m->intermediate, m->hidden);
    tiny_matrix(w, l, "mlp.down_proj.weight", m->hidden, m->intermediate);
}

static inline void tiny_layer(struct tiny_writer *w, const struct tiny_model *m, uint32_t l)
{
    double center = tiny_center(m);
    if (m->full_head_dim) {
        tiny_gemma4_layer(w, m, l);
        return;
    }
    tiny_vector(w, l, "input_layernorm.weight", m->hidden, 0.2, center);
    if (m->intermediate) /* else the layer has no mlp */
        tiny_vector(w, l, "post_attention_layernorm.weight", m->hidden, 0.2, center);
    if (m->sandwich) {
        tiny_vector(w, l, "pre_feedforward_layernorm.weight", m->hidden, 0.2, center);
        tiny_vector(w, l, "post_feedforward_layernorm.weight", m->hidden, 0.2, center);
    }
    if (tiny_has_state(m, l))
        tiny_state(w, m, l);
    if (tiny_attends(m, l))
        tiny_attention(w, m, l);
    if (m->intermediate)
        tiny_mlp(w, m, l);
}

static inline void tiny_mtp(struct tiny_writer *w, const struct tiny_model *m)
{
    static const char *const norms[] = {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"};
    if (!m->mtp)
        return;
    tiny_layer(w, m, m->layers);
    for (int i = 0; i < 3; i++)
        tiny_vector(w, m->layers, norms[i], m->hidden, 0, 1);
    tiny_matrix(w, m->layers, "eh_proj.weight", m->hidden, 2 * m->hidden);
}

static inline void tiny_gemma4_config(const struct tiny_model *m, FILE *f)
{
    if (!m->full_head_dim)
        return;
    fprintf(f,
            ",\"global_head_dim\":%u,\"num_global_key_value_heads\":%u,\"attention_k_eq_v\":%s,"
            "\"num_kv_shared_layers\":%u,\"use_double_wide_mlp\":true,"
            "\"hidden_size_per_layer_input\":%u,\"vocab_size_per_layer_input\":%u",
            m->full_head_dim, m->full_heads, m->v_is_k ? "true" : "false", m->readers, m->inputs,
            m->vocab + 3);
    if (m->experts)
        fprintf(f,
                ",\"enable_moe_block\":true,\"num_experts\":%u,\"top_k_experts\":%u,"
                "\"moe_intermediate_size\":%u",
                m->experts, m->experts > 1 ? 2 : 1, m->expert_width);
    for (uint32_t l = 0; l < m->layers; l++)
        fprintf(f, "%s\"%s_attention\"%s", l ? "," : ",\"layer_types\":[",
                l % 2 ? "full" : "sliding", l + 1 < m->layers ? "" : "]");
}

/* What the family calls the sizes of the state: heads, heads of keys, their channels, channels of a
 * head, taps. NULL: it has none. */
static inline void tiny_state_keys(const struct tiny_model *m, const char *const keys[5], FILE *f)
{
    const uint32_t sizes[] = {m->state_heads, m->state_key_heads, m->state_key_dim, m->state_dim,
                              m->taps};
    for (int i = 0; i < 5; i++)
        if (keys[i])
            fprintf(f, ",\"%s\":%u", keys[i], sizes[i]);
}

static inline void tiny_state_config(const struct tiny_model *m, FILE *f)
{
    static const char *const delta[] = {"linear_num_value_heads", "linear_num_key_heads",
                                        "linear_key_head_dim", "linear_value_head_dim",
                                        "linear_conv_kernel_dim"};
    static const char *const conv[] = {NULL, NULL, NULL, NULL, "conv_L_cache"};
    static const char *const ssd[] = {"num_heads", "n_groups", "state_size", NULL, "conv_kernel"};
    static const char *const beside[] = {"mamba_n_heads", "mamba_n_groups", "mamba_d_state",
                                         "mamba_d_head", "mamba_d_conv"};
    const char *bias = m->bias ? "true" : "false";
    if (!m->mixer)
        return;
    tiny_state_keys(m,
                    m->mixer == TINY_DELTA  ? delta
                    : m->mixer == TINY_CONV ? conv
                    : m->beside             ? beside
                                            : ssd,
                    f);
    if (m->mixer == TINY_CONV)
        fprintf(f, ",\"conv_bias\":%s,\"tie_embedding\":%s,\"block_auto_adjust_ff_dim\":false",
                bias, m->untied ? "false" : "true");
    if (m->mixer == TINY_SSD && m->beside)
        fprintf(f, ",\"mamba_d_ssm\":%u,\"mamba_rms_norm\":true,\"mamba_conv_bias\":%s",
                m->state_heads * m->state_dim, bias);
    else if (m->mixer == TINY_SSD)
        fprintf(f, ",\"expand\":%u,\"use_conv_bias\":%s", m->state_heads * m->state_dim / m->hidden,
                bias);
    for (uint32_t l = 0; l < m->layers && m->mixer != TINY_SSD; l++)
        fprintf(f, "%s\"%s\"%s", l ? "," : ",\"layer_types\":[",
                tiny_attends(m, l)       ? "full_attention"
                : m->mixer == TINY_DELTA ? "linear_attention"
                                         : "conv",
                l + 1 < m->layers ? "" : "]");
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
            "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":%s,\"torch_dtype\":\"%s\"%s",
            m->family, m->hidden, m->intermediate, m->layers, m->heads, m->kv_heads, m->head_dim,
            m->vocab, m->positions, m->untied ? "false" : "true",
            m->stored == TINY_BF16 ? "bfloat16" : "float32", m->more ? m->more : "");
    tiny_gemma4_config(m, f);
    tiny_state_config(m, f);
    fputc('}', f);
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
    w.quiet = m->mtp;
    w.mlp = strcmp(m->family, "llama4_text") ? "mlp." : "feed_forward.";
    mkdir(dir, 0700);
    tiny_config(m, dir);
    w.header = open_memstream(&header, &header_bytes);
    w.data = open_memstream(&data, &data_bytes);
    fputc('{', w.header);
    tiny_tensor(&w, "model.embed_tokens.weight", m->vocab, m->hidden, 1, 0);
    tiny_gemma4_inputs(&w, m);
    for (uint32_t l = 0; l < m->layers; l++)
        tiny_layer(&w, m, l);
    tiny_mtp(&w, m);
    tiny_tensor(&w, "model.norm.weight", m->hidden, 0, 0.2, tiny_center(m));
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

/* A narrow model; positions and the seed are the caller's. */
static const struct tiny_model tiny_narrow = {TINY("llama", 3, 32, 48, 4, 2, 8, 96, 0), .more = ""};

/* A model with an MTP layer. The vocabulary is large: beside the head the layer costs next to
 * nothing. */
static const struct tiny_model tiny_with_mtp = {
    TINY("glm4_moe", 3, 32, 48, 4, 2, 16, 40009, 4096),
    .more = ",\"first_k_dense_replace\":4,\"num_nextn_predict_layers\":1", .untied = true,
    .mtp = true, .seed = 21};

/* Makes number `at` of a tensor NaN. `dir` has safetensors. */
static inline void tiny_model_spoil(const char *dir, const struct tiny_model *m, const char *name,
                                    uint64_t at)
{
    char path[600], *header;
    uint64_t n = 0, offset = 0;
    static const uint32_t nan[] = {0x7fc07fc0};
    const uint64_t bytes = m->stored == TINY_BF16 ? 2 : 4;
    snprintf(path, sizeof path, "%.500s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    CHECK(f && fread(&n, 8, 1, f) == 1);
    header = calloc(n + 1, 1);
    CHECK(fread(header, 1, n, f) == n && strstr(header, name));
    CHECK(sscanf(strstr(strstr(header, name), "data_offsets"), "data_offsets\":[%lu", &offset) ==
          1);
    CHECK(!fseek(f, (long)(8 + n + offset + at * bytes), SEEK_SET) &&
          fwrite(nan, bytes, 1, f) == 1 && !fclose(f));
    free(header);
}

/* One of each thing that changes how a cache behaves; the last ones have layers with a state. */
static const struct tiny_model tiny_models[] = {
    {TINY("llama", 3, 64, 96, 4, 2, 16, 101, 4096), .untied = true, .seed = 1},
    {TINY("llama", 2, 64, 96, 4, 4, 16, 101, 4096), .more = ",\"rope_theta\":500000.0",
     .stored = TINY_BF16, .seed = 2},
    {TINY("qwen2", 3, 32, 64, 4, 1, 8, 67, 4096), .bias = true, .stored = TINY_BF16, .seed = 3},
    {TINY("qwen3", 2, 48, 64, 2, 2, 32, 67, 4096), .qk_norm = true, .untied = true, .seed = 4},
    {TINY("mistral", 3, 32, 64, 4, 2, 16, 67, 4096), .more = ",\"sliding_window\":200",
     .untied = true, .stored = TINY_BF16, .seed = 5},
    {TINY("gemma3_text", 4, 32, 64, 2, 1, 32, 67, 4096),
     .more = ",\"sliding_window\":300,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":32,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000.0,"
             "\"rope_local_base_freq\":10000.0",
     .qk_norm = true, .sandwich = true, .stored = TINY_BF16, .seed = 6},
    {TINY("qwen2_moe", 3, 32, 64, 4, 2, 16, 67, 4096),
     .more = ",\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
             "\"shared_expert_intermediate_size\":40,\"mlp_only_layers\":[0]",
     .bias = true, .untied = true, .stored = TINY_BF16, .seed = 8, .experts = 6, .expert_width = 24,
     .shared_width = 40, .dense = 1},
    {TINY("llama4_text", 3, 32, 24, 4, 2, 16, 67, 4096),
     .more = ",\"attention_chunk_size\":200,\"no_rope_layer_interval\":3,\"floor_scale\":100,"
             "\"intermediate_size_mlp\":24,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
             "\"moe_layers\":[1,2]",
     .untied = true, .stored = TINY_BF16, .seed = 9, .experts = 4, .expert_width = 24,
     .shared_width = 24, .dense = 1},
    {TINY("gemma4_text", 5, 32, 48, 2, 2, 16, 67, 4096), .more = ",\"sliding_window\":300",
     .stored = TINY_BF16, .seed = 10, .full_heads = 1, .full_head_dim = 32, .readers = 3,
     .inputs = 8},
    {TINY("qwen3_5_text", 4, 32, 48, 4, 2, 16, 67, 4096),
     .more = ",\"rope_parameters\":{\"rope_theta\":10000.0,\"partial_rotary_factor\":0.5}",
     .qk_norm = true, .untied = true, .stored = TINY_BF16, .seed = 11, .mixer = TINY_DELTA,
     .interval = 4, .taps = 4, .state_heads = 4, .state_key_heads = 2, .state_key_dim = 16,
     .state_dim = 16},
    {TINY("lfm2", 3, 32, 48, 4, 2, 8, 67, 4096), .qk_norm = true, .seed = 12, .mixer = TINY_CONV,
     .interval = 2, .taps = 3},
    {TINY("falcon_h1", 2, 32, 48, 4, 2, 16, 67, 4096), .bias = true, .stored = TINY_BF16,
     .seed = 13, .mixer = TINY_SSD, .beside = true, .interval = 1, .taps = 4, .state_heads = 4,
     .state_key_heads = 2, .state_key_dim = 16, .state_dim = 8},
    {TINY("mamba2", 3, 32, 0, 1, 1, 16, 67, 4096), /* no layer attends */
     .untied = true, .stored = TINY_BF16, .seed = 14, .mixer = TINY_SSD, .interval = 100, .taps = 4,
     .state_heads = 4, .state_key_heads = 1, .state_key_dim = 16, .state_dim = 16},
};

/* The first one of this family. */
static inline const struct tiny_model *tiny_model_of(const char *family)
{
    const struct tiny_model *m = tiny_models;
    while (strcmp(m->family, family) != 0)
        m++;
    return m;
}
enum {
    N_TINY_MODELS = sizeof tiny_models / sizeof *tiny_models,
    N_TINY_STATES = 4, /* the last ones */
    TINY_STATES = N_TINY_MODELS - N_TINY_STATES
};

#endif
