/* Writes a model folder as GGUF files, by the rules of the common converter: names, the order of
 * rows of q and k, norms. Its keys say what those of the folder said, as far as GGUF has keys for
 * it. The tokenizer is not written; gguf_tokenizer.h does that. */
#ifndef SPW_TESTS_ENGINE_GGUF_FOLDER_H
#define SPW_TESTS_ENGINE_GGUF_FOLDER_H

#include "model/source/gguf_write.h"
#include "quant/types.h"
#include "tests/engine/model_run.h"
#include "tests/source_config.h"
#include "tests/engine/gguf_blocks.h"
#include "base/numbers.h"

struct gguf_way {
    enum spw_dtype matrices; /* their stored type; AUTO: that of the folder */
    bool rounded;            /* matrices are stored in F32, after rounding to `matrices` */
    /* Not 0: matrices get random blocks, of the quantized type `matrices`, or each of a drawn one.
     */
    uint64_t seed;
    uint32_t n_files; /* 0 and 1: one */
    void (*more_keys)(struct spw_gguf_writer *w, void *context);
    void *context;
};

struct gguf_folder {
    struct spw_model_config config;
    struct spw_tensors *tensors;
    const struct gguf_way *way;
    const char *architecture;
};

static inline const char *gguf_architecture(const struct spw_model_config *c)
{
    static const char *const other[][2] = {
        {"mistral", "llama"},
        {"mixtral", "llama"},
        {"ministral3", "mistral3"},
        {"cohere", "command-r"},
        {"phi", "phi2"},
        {"llama4_text", "llama4"},
        {"gemma4_text", "gemma4"},
        {"olmo3", "olmo2"},
        {"glm", "chatglm"},
        {"hunyuan_v1_dense", "hunyuan-dense"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!strcmp(c->model_type, other[i][0]))
            return other[i][1];
    if (!strcmp(c->model_type, "qwen2_moe") || !strcmp(c->model_type, "qwen3_moe"))
        return c->model_type[4] == '2' ? "qwen2moe" : "qwen3moe";
    return !strcmp(c->model_type, "gemma3_text") ? "gemma3" : c->model_type;
}

/* ---- shapes ---- */

/* Its rows beyond the vocabulary are of no token. */
static inline bool gguf_is_input_table(const struct spw_tensor *t)
{
    return strstr(t->name, "embed_tokens_per_layer.") != NULL;
}

static inline uint64_t gguf_cols(const struct spw_tensor *t)
{
    return t->n_dims > 1 ? t->shape[t->n_dims - 1] : 1;
}

static inline uint64_t gguf_rows(const struct gguf_folder *f, const struct spw_tensor *t)
{
    return gguf_is_input_table(t) ? f->config.vocab
                                  : t->shape[0] * (t->n_dims > 2 ? t->shape[1] : 1);
}

/* ---- names ---- */

static inline void gguf_name(const struct gguf_folder *f, const struct spw_tensor *t,
                             char out[SPW_GGUF_MOST_NAME + 1])
{
    static const char *const names[][2] = {{"input_layernorm", "attn_norm"},
                                           {"self_attn.q_proj", "attn_q"},
                                           {"self_attn.k_proj", "attn_k"},
                                           {"self_attn.v_proj", "attn_v"},
                                           {"self_attn.qkv_proj", "attn_qkv"},
                                           {"self_attn.o_proj", "attn_output"},
                                           {"self_attn.q_norm", "attn_q_norm"},
                                           {"self_attn.k_norm", "attn_k_norm"},
                                           {"self_attn.query_layernorm", "attn_q_norm"},
                                           {"self_attn.key_layernorm", "attn_k_norm"},
                                           {"pre_feedforward_layernorm", "ffn_norm"},
                                           {"post_feedforward_layernorm", "post_ffw_norm"},
                                           {"mlp.gate_proj", "ffn_gate"},
                                           {"mlp.up_proj", "ffn_up"},
                                           {"mlp.down_proj", "ffn_down"},
                                           {"mlp.gate_up_proj", "ffn_up"},
                                           {"self_attn.dense", "attn_output"},
                                           {"mlp.c_fc", "ffn_up"},
                                           {"mlp.fc1", "ffn_up"},
                                           {"mlp.c_proj", "ffn_down"},
                                           {"mlp.fc2", "ffn_down"},
                                           {"mlp.gate.", "ffn_gate_inp"},
                                           {"mlp.experts.0.gate_proj", "ffn_gate_exps"},
                                           {"mlp.experts.0.up_proj", "ffn_up_exps"},
                                           {"mlp.experts.0.down_proj", "ffn_down_exps"},
                                           {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                                           {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                                           {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                                           {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                           {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                                           {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                                           {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                                           {"router.p", "ffn_gate_inp"},
                                           {"router.scale", "ffn_gate_inp"},
                                           {"router.per_expert_scale", "ffn_down_exps"},
                                           {"experts.gate_up_proj", "ffn_gate_up_exps"},
                                           {"experts.down_proj", "ffn_down_exps"},
                                           {"layer_scalar", "layer_output_scale"},
                                           {"per_layer_input_gate", "inp_gate"},
                                           {"per_layer_projection", "proj"},
                                           {"post_per_layer_input_norm", "post_norm"}};
    const char *layers = strstr(t->name, "layers."), *suffix = strrchr(t->name, '.');
    if (!layers) {
        const char *name = strstr(t->name, "embed_tokens.")             ? "token_embd"
                           : strstr(t->name, "lm_head")                 ? "output"
                           : gguf_is_input_table(t)                     ? "per_layer_token_embd"
                           : strstr(t->name, "per_layer_model_project") ? "per_layer_model_proj"
                           : strstr(t->name, "per_layer_projection")    ? "per_layer_proj_norm"
                                                                        : "output_norm";
        snprintf(out, SPW_GGUF_MOST_NAME + 1, "%s%s", name, suffix);
        return;
    }
    unsigned layer = (unsigned)strtoul(layers + 7, NULL, 10);
    const char *rest = strchr(layers + 7, '.') + 1;
    char usual[160];
    if (!strncmp(rest, "feed_forward.", 13)) {
        snprintf(usual, sizeof usual, "mlp.%s", rest + 13);
        rest = usual;
    }
    const char *name =
        f->config.sandwich || f->config.late_norms ? "post_attention_norm" : "ffn_norm";
    if (strcmp(suffix, ".bias") != 0)
        suffix = strstr(rest, "router.") && strstr(rest, "scale") ? ".scale" : ".weight";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(rest, names[i][0], strlen(names[i][0])))
            name = names[i][1];
    snprintf(out, SPW_GGUF_MOST_NAME + 1, "blk.%u.%s%s", layer, name, suffix);
}

/* ---- keys ---- */

static inline void gguf_key(const struct gguf_folder *f, char out[96], const char *key)
{
    snprintf(out, 96, "%s.%s", f->architecture, key);
}

static inline void gguf_u32(const struct gguf_folder *f, struct spw_gguf_writer *w, const char *key,
                            uint64_t x)
{
    char name[96];
    gguf_key(f, name, key);
    spw_gguf_add_u32(w, name, (uint32_t)x);
}

static inline void gguf_f32(const struct gguf_folder *f, struct spw_gguf_writer *w, const char *key,
                            double x)
{
    char name[96];
    gguf_key(f, name, key);
    spw_gguf_add_f32(w, name, (float)x);
}

static inline void gguf_rope_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_rope_config *r = &f->config.rope[SPW_LAYER_FULL];
    char name[96];
    gguf_f32(f, w, "rope.freq_base", r->theta);
    gguf_u32(f, w, "rope.dimension_count", r->rotary_dim);
    if (f->config.window && !f->config.grows_unrotated)
        gguf_f32(f, w, "rope.freq_base_swa", f->config.rope[SPW_LAYER_SLIDING].theta);
    if (!strcmp(f->architecture, "gemma4"))
        gguf_u32(f, w, "rope.dimension_count_swa", f->config.rope[SPW_LAYER_SLIDING].rotary_dim);
    if (r->kind == SPW_ROPE_LONG) {
        gguf_key(f, name, "rope.scaling.type");
        spw_gguf_add_string(w, name, "longrope");
        gguf_f32(f, w, "rope.scaling.attn_factor", r->attention_factor);
        gguf_u32(f, w, "rope.scaling.original_context_length", r->original_max_positions);
    }
    if (r->kind != SPW_ROPE_LINEAR && r->kind != SPW_ROPE_YARN)
        return;
    gguf_key(f, name, "rope.scaling.type");
    spw_gguf_add_string(w, name, r->kind == SPW_ROPE_LINEAR ? "linear" : "yarn");
    gguf_f32(f, w, "rope.scaling.factor", r->factor);
    if (r->kind == SPW_ROPE_YARN) {
        gguf_u32(f, w, "rope.scaling.original_context_length", r->original_max_positions);
        gguf_f32(f, w, "rope.scaling.yarn_attn_factor", r->attention_factor);
    }
    if (f->config.query_growth.beta > 0 &&
        !f->config.grows_unrotated) { /* mscale and mscale_all_dim are 1 */
        gguf_f32(f, w, "rope.scaling.yarn_log_multiplier", 1);
        gguf_f32(f, w, "attention.temperature_scale", (double)f->config.query_growth.beta);
    }
}

/* Numbers by layer, even if they are all the same. */
static inline void gguf_gemma4_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    uint32_t heads[64], widths[64];
    char name[96];
    for (uint32_t i = 0; i < c->n_layers; i++) {
        heads[i] = spw_config_kv(c, i)->n_heads;
        widths[i] = (uint32_t)spw_config_mlp_width(c, i);
    }
    gguf_key(f, name, "attention.head_count_kv");
    spw_gguf_add(w, name, SPW_GGUF_U32, true, heads, c->n_layers);
    gguf_key(f, name, "feed_forward_length");
    spw_gguf_add(w, name, SPW_GGUF_U32, true, widths, c->n_layers);
    gguf_u32(f, w, "attention.key_length_swa", c->kv[SPW_LAYER_SLIDING].head_dim);
    gguf_u32(f, w, "attention.value_length_swa", c->kv[SPW_LAYER_SLIDING].head_dim);
    gguf_u32(f, w, "attention.shared_kv_layers", c->n_layers - c->n_kv_layers);
    gguf_u32(f, w, "embedding_length_per_layer_input", c->layer_inputs);
}

static inline void gguf_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    spw_gguf_add_string(w, "general.architecture", f->architecture);
    gguf_u32(f, w, "block_count", c->n_layers);
    gguf_u32(f, w, "context_length", c->max_positions);
    gguf_u32(f, w, "embedding_length", c->hidden);
    gguf_u32(f, w, "attention.head_count", c->n_heads);
    if (!strcmp(f->architecture, "gemma4")) {
        gguf_gemma4_keys(f, w);
    } else {
        gguf_u32(f, w, "feed_forward_length", c->intermediate);
        gguf_u32(f, w, "attention.head_count_kv", c->kv[SPW_LAYER_FULL].n_heads);
    }
    gguf_u32(f, w, "attention.key_length", c->kv[SPW_LAYER_FULL].head_dim);
    gguf_u32(f, w, "attention.value_length", c->kv[SPW_LAYER_FULL].head_dim);
    gguf_f32(f, w,
             c->norm == SPW_NORM_MEAN ? "attention.layer_norm_epsilon"
                                      : "attention.layer_norm_rms_epsilon",
             (double)c->rms_eps);
    if (c->logit_divisor != 1)
        gguf_f32(f, w, "logit_scale", 1 / (double)c->logit_divisor);
    if (c->qkv_limit > 0)
        gguf_f32(f, w, "attention.clamp_kqv", (double)c->qkv_limit);
    if (c->experts.n) {
        gguf_u32(f, w, "expert_count", c->experts.n);
        gguf_u32(f, w, "expert_used_count", c->experts.n_kept);
        gguf_u32(f, w, "expert_feed_forward_length", c->experts.intermediate);
    }
    if (c->experts.shared_intermediate)
        gguf_u32(f, w, "expert_shared_feed_forward_length", c->experts.shared_intermediate);
    gguf_rope_keys(f, w);
    if (c->logit_softcap > 0)
        gguf_f32(f, w, "final_logit_softcapping", (double)c->logit_softcap);
    if (c->grows_unrotated) /* llama4: no other key says what its layers see */
        gguf_u32(f, w, "interleave_moe_layer_step", c->has_experts[0] ? 1 : 2);
    else if (c->window) {
        uint8_t slides[64];
        char name[96];
        gguf_u32(f, w, "attention.sliding_window", c->window);
        for (uint32_t i = 0; i < c->n_layers; i++)
            slides[i] = c->layer_kinds[i] == SPW_LAYER_SLIDING;
        gguf_key(f, name, "attention.sliding_window_pattern");
        spw_gguf_add(w, name, SPW_GGUF_BOOL, true, slides, c->n_layers);
    }
    if (c->bos >= 0)
        spw_gguf_add_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)c->bos);
    if (c->n_eos)
        spw_gguf_add_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)c->eos[0]);
    if (f->way->more_keys)
        f->way->more_keys(w, f->way->context);
}

/* ---- experts: the first one stands for a stack of all ---- */

/* The number of an expert in the name of one of its tensors; -1: the tensor is of no expert. */
static inline int gguf_expert(const struct spw_tensor *t)
{
    const char *at = strstr(t->name, ".experts.");
    return at && at[9] >= '0' && at[9] <= '9' ? (int)strtol(at + 9, NULL, 10) : -1;
}

static inline const struct spw_tensor *gguf_of_expert(const struct gguf_folder *f,
                                                      const struct spw_tensor *first, uint32_t e)
{
    char name[160];
    const char *at = strstr(first->name, ".experts.") + 9;
    snprintf(name, sizeof name, "%.*s%u%s", (int)(at - first->name), first->name, e, at + 1);
    return spw_tensors_find(f->tensors, name);
}

/* ---- data ---- */

/* The gate of a shared expert is a vector in files. */
static inline bool gguf_is_gate(const struct spw_tensor *t)
{
    return strstr(t->name, "shared_expert_gate.") != NULL;
}

/* Routers stay in F32. */
static inline bool gguf_is_matrix(const struct spw_tensor *t)
{
    return t->n_dims > 1 && !strstr(t->name, "_norm.") && !strstr(t->name, "mlp.gate.") &&
           !strstr(t->name, "router.") && !gguf_is_gate(t);
}

/* A number for each tensor and each seed. */
static inline uint64_t gguf_seed(const struct gguf_folder *f, const struct spw_tensor *t)
{
    uint64_t seed = f->way->seed;
    for (const char *at = t->name; *at; at++)
        seed = seed * 31 + (uint8_t)*at;
    return seed;
}

/* The type that a matrix has, or is rounded to. */
static inline enum spw_dtype gguf_matrix_type(const struct gguf_folder *f,
                                              const struct spw_tensor *t)
{
    uint64_t seed = gguf_seed(f, t);
    if (f->way->matrices)
        return f->way->matrices;
    return f->way->seed && gguf_is_matrix(t) ? gguf_draw_type(gguf_cols(t), &seed) : t->dtype;
}

static inline enum spw_dtype gguf_type(const struct gguf_folder *f, const struct spw_tensor *t)
{
    if (!gguf_is_matrix(t) || f->way->rounded)
        return SPW_DTYPE_F32;
    return gguf_matrix_type(f, t);
}

/* Rows of a q or k matrix (or numbers of its bias) that the llama architecture has in another
 * order: rows of this many heads. 0: none. */
static inline uint32_t gguf_heads(const struct gguf_folder *f, const struct spw_tensor *t)
{
    bool q = strstr(t->name, ".q_proj."), k = strstr(t->name, ".k_proj.");
    bool ordered = !strcmp(f->architecture, "llama") || !strcmp(f->architecture, "mistral3") ||
                   !strcmp(f->architecture, "olmo") || !strcmp(f->architecture, "arcee");
    return !ordered ? 0 : q ? f->config.n_heads : k ? f->config.kv[SPW_LAYER_FULL].n_heads : 0;
}

/* Numbers of a tensor as f32, in the order of the file. */
static inline float *gguf_numbers(const struct gguf_folder *f, const struct spw_tensor *t,
                                  size_t *n)
{
    size_t rows = (size_t)gguf_rows(f, t), cols = (size_t)gguf_cols(t);
    float *x = malloc((rows * cols + 1) * sizeof *x), *ordered = malloc(rows * cols * sizeof *x);
    uint32_t heads = gguf_heads(f, t);
    size_t hd = f->config.kv[SPW_LAYER_FULL].head_dim;
    *n = rows * cols;
    spw_type_read(t->dtype, t->data, 0, *n, x);
    for (size_t r = 0; r < rows; r++) {
        size_t in_head = r % hd;
        size_t from = heads ? r - in_head + in_head % 2 * (hd / 2) + in_head / 2 : r;
        memcpy(ordered + r * cols, x + from * cols, cols * sizeof *x);
    }
    free(x);
    for (size_t i = 0; f->config.norm_plus_one && strstr(t->name, "norm.weight") && i < *n; i++)
        ordered[i] = ordered[i] + 1.0f;
    return ordered;
}

/* To nearest, ties to even; finite numbers below 65520. */
static inline uint16_t gguf_f16(float x)
{
    int exponent;
    double a = fabs((double)x), m = frexp(a, &exponent); /* a = m 2^exponent, m in [0.5, 1) */
    long bits = a < 0x1p-14 ? lrint(a * 0x1p24) : (exponent + 14) * 1024 + lrint(m * 2048) - 1024;
    return (uint16_t)(bits | (signbit(x) ? 0x8000 : 0));
}

/* Stores numbers in F32, F16 or BF16. */
static inline void gguf_encode(const float *x, size_t n, enum spw_dtype type, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = type == SPW_DTYPE_BF16 ? spw_f32_to_bf16(x[i]) : gguf_f16(x[i]);
        if (type == SPW_DTYPE_F32)
            memcpy(out + 4 * i, x + i, 4);
        else
            memcpy(out + 2 * i, &half, 2);
    }
}

/* `type`: of the first tensor of its stack. */
static inline size_t gguf_write_numbers(const struct gguf_folder *f, const struct spw_tensor *t,
                                        enum spw_dtype type, enum spw_dtype rounded, FILE *out)
{
    size_t n;
    float *x = gguf_numbers(f, t, &n);
    uint8_t *bytes = malloc(n * 4);
    if (gguf_is_matrix(t)) {
        uint64_t seed = gguf_seed(f, t);
        if (f->way->seed)
            gguf_draw_blocks(bytes, rounded, n, gguf_cols(t), &seed);
        else
            gguf_encode(x, n, rounded, bytes);
        spw_type_read(rounded, bytes, 0, n, x);
    }
    if (!spw_type_is_quantized(type))
        gguf_encode(x, n, type, bytes);
    CHECK(fwrite(bytes, 1, spw_row_bytes(type, n), out) == spw_row_bytes(type, n));
    free(bytes);
    free(x);
    return spw_row_bytes(type, n);
}

static inline void gguf_write_tensor(const struct gguf_folder *f, const struct spw_tensor *t,
                                     FILE *out)
{
    const enum spw_dtype type = gguf_type(f, t), rounded = gguf_matrix_type(f, t);
    const bool stack = gguf_expert(t) == 0;
    size_t bytes = 0;
    for (uint32_t e = 0; e < (stack ? f->config.experts.n : 1); e++)
        bytes += gguf_write_numbers(f, stack ? gguf_of_expert(f, t, e) : t, type, rounded, out);
    CHECK(!spw_gguf_write_padding(out, bytes));
}

static inline void gguf_add_tensor(const struct gguf_folder *f, struct spw_gguf_writer *w,
                                   const struct spw_tensor *t)
{
    char name[SPW_GGUF_MOST_NAME + 1];
    const uint64_t stacked[] = {f->config.experts.n, t->shape[0], t->shape[1]};
    const uint64_t table[] = {gguf_rows(f, t), gguf_cols(t)};
    const bool stack = gguf_expert(t) == 0;
    gguf_name(f, t, name);
    spw_gguf_add_tensor(w, name, gguf_type(f, t),
                        stack             ? 3
                        : gguf_is_gate(t) ? 1
                                          : t->n_dims,
                        stack                    ? stacked
                        : gguf_is_gate(t)        ? t->shape + 1
                        : gguf_is_input_table(t) ? table
                                                 : t->shape);
}

/* ---- rope of llama3, of full layers of gemma4, and longrope: factors for frequencies ---- */

/* The name of the i-th tensor of factors. NULL: there are no more. */
static inline const char *gguf_factors(const struct gguf_folder *f, uint32_t i)
{
    static const char *const of_longrope[] = {"rope_factors_long.weight",
                                              "rope_factors_short.weight", NULL};
    static const char *const of_others[] = {"rope_freqs.weight", NULL};
    const enum spw_rope_kind kind = f->config.rope[SPW_LAYER_FULL].kind;
    return kind == SPW_ROPE_LONG                                      ? of_longrope[i]
           : kind == SPW_ROPE_LLAMA3 || kind == SPW_ROPE_PROPORTIONAL ? of_others[i]
                                                                      : NULL;
}

static inline void gguf_write_factors(const struct gguf_folder *f, uint32_t tensor, FILE *out)
{
    const struct spw_rope_config *r = &f->config.rope[0];
    uint32_t n = r->rotary_dim / 2;
    double original = (double)r->original_max_positions;
    for (uint32_t i = 0; i < n; i++) {
        double length = 2 * M_PI * pow(r->theta, 2.0 * i / r->rotary_dim), factor = r->factor;
        double low = original / r->low_freq_factor, high = original / r->high_freq_factor;
        double smooth =
            (original / length - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
        if (length < high)
            factor = 1;
        else if (length <= low)
            factor = 1 / ((1 - smooth) / factor + smooth);
        if (r->kind == SPW_ROPE_PROPORTIONAL)
            factor = i < r->n_turned ? r->factor : 1e30;
        if (r->kind == SPW_ROPE_LONG)
            factor = (tensor ? r->short_factors : r->long_factors)[i];
        float x = (float)factor;
        fwrite(&x, sizeof x, 1, out);
    }
    CHECK(!spw_gguf_write_padding(out, n * sizeof(float)));
}

/* ---- files ---- */

static inline void gguf_split_keys(struct spw_gguf_writer *w, uint32_t number, uint32_t count,
                                   size_t n_tensors)
{
    uint16_t no = (uint16_t)number, of = (uint16_t)count;
    int32_t total = (int32_t)n_tensors;
    spw_gguf_add(w, "split.no", SPW_GGUF_U16, false, &no, 1);
    spw_gguf_add(w, "split.count", SPW_GGUF_U16, false, &of, 1);
    spw_gguf_add(w, "split.tensors.count", SPW_GGUF_I32, false, &total, 1);
}

/* Tensors [from, to); the first file has the factors, too. */
static inline void gguf_write_file(const struct gguf_folder *f, const char *path, uint32_t number,
                                   uint32_t count, size_t from, size_t to)
{
    struct spw_gguf_writer w = {0};
    uint32_t n_tensors = 0; /* of factors */
    uint64_t n_factors = f->config.rope[0].rotary_dim / 2;
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL);
    while (gguf_factors(f, n_tensors))
        n_tensors++;
    if (number == 0)
        gguf_keys(f, &w);
    if (count > 1)
        gguf_split_keys(&w, number, count, spw_tensors_count(f->tensors) + n_tensors);
    for (uint32_t i = 0; number == 0 && i < n_tensors; i++)
        spw_gguf_add_tensor(&w, gguf_factors(f, i), SPW_DTYPE_F32, 1, &n_factors);
    for (size_t i = from; i < to; i++)
        if (gguf_expert(spw_tensors_at(f->tensors, i)) <= 0)
            gguf_add_tensor(f, &w, spw_tensors_at(f->tensors, i));
    CHECK(!spw_gguf_write_header(&w, out));
    for (uint32_t i = 0; number == 0 && i < n_tensors; i++)
        gguf_write_factors(f, i, out);
    for (size_t i = from; i < to; i++)
        if (gguf_expert(spw_tensors_at(f->tensors, i)) <= 0)
            gguf_write_tensor(f, spw_tensors_at(f->tensors, i), out);
    CHECK(!fclose(out));
    spw_gguf_writer_free(&w);
}

/* `path` ends with ".gguf", or with several files "-00001-of-0000N.gguf". */
static inline bool gguf_from_folder(const char *dir, const char *path, const struct gguf_way *way)
{
    struct gguf_folder f = {.way = way};
    struct spw_source *s = NULL;
    struct spw_error err = {0};
    int rc = spw_source_open(&s, dir, &err);
    if (!rc)
        rc = s->ops->config(s, &f.config, &err);
    if (!rc)
        rc = s->ops->tensors(s, &f.tensors, &err);
    CHECK_MSG(!rc, "%s: %s", dir, err.text);
    if (!rc) {
        uint32_t count = way->n_files > 1 ? way->n_files : 1;
        size_t n = spw_tensors_count(f.tensors);
        f.architecture = gguf_architecture(&f.config);
        for (uint32_t i = 0; i < count; i++) {
            char its[512];
            snprintf(its, sizeof its, "%s", path);
            if (count > 1)
                its[strlen(path) - 15] = (char)('1' + i); /* -0000N-of-... */
            gguf_write_file(&f, its, i, count, n * i / count, n * (i + 1) / count);
        }
    }
    spw_tensors_close(f.tensors);
    spw_config_free(&f.config);
    spw_source_close(s);
    return !rc;
}

#endif
