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

/* The MTP layer, of families whose folders call its tensors mtp.*: in the file of the model, in no
 * file, or in a file of its own, with copies of what the layer shares with the model, too. */
enum gguf_mtp { GGUF_MTP_INSIDE, GGUF_MTP_LEFT_OUT, GGUF_MTP_ALONE, GGUF_MTP_WITH_COPIES };

struct gguf_way {
    enum gguf_mtp mtp;
    /* Their stored type; AUTO, and of rows that are no whole blocks: that of the folder. */
    enum spw_dtype matrices;
    bool rounded; /* matrices are stored in F32, after rounding to `matrices` */
    /* Not 0: matrices get random blocks, of the quantized type `matrices`, or each of a drawn one.
     */
    uint64_t seed;
    uint32_t n_files; /* 0 and 1: one */
    bool joined_gate; /* of qwen3next: the rows of old files */
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
    const char *const other[][2] = {
        {"mistral", "llama"},
        {"mixtral", "llama"},
        {"ministral3", "mistral3"},
        {"cohere", "command-r"},
        {"phi", "phi2"},
        {"llama4_text", "llama4"},
        {"gemma4_text", "gemma4"},
        {"muse_glimmer_text", "muse-glimmer"},
        {"olmo3", "olmo2"},
        {"glm", "chatglm"},
        {"qwen3_5_text", "qwen35"},
        {"qwen3_5_moe_text", "qwen35moe"},
        {"qwen3_next", "qwen3next"},
        {"lfm2_moe", "lfm2moe"},
        {"granitemoehybrid", "granitehybrid"},
        {"nemotron_h", c->experts.n ? "nemotron_h_moe" : "nemotron_h"},
        {"hunyuan_v1_dense", "hunyuan-dense"},
        {"umt5", "t5"},
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

/* ---- layers with a state ---- */

/* Gate and up of granitemoehybrid's mlp. */
static inline bool gguf_is_shared(const struct spw_tensor *t)
{
    return strstr(t->name, "shared_mlp.input_linear.") != NULL;
}

/* The files of qwen3next have q, k and v in one tensor, z in another; the folder has them in one,
 * those of a key head after those of the other. */
static inline uint32_t gguf_parts(const struct gguf_folder *f, const struct spw_tensor *t)
{
    const bool joined = strstr(t->name, ".in_proj_qkvz.") && !f->way->joined_gate;
    return joined || gguf_is_shared(t) ? 2 : 1;
}

static inline uint64_t gguf_part_rows(const struct gguf_folder *f, const struct spw_tensor *t,
                                      uint32_t part)
{
    const struct spw_mixer_config *m = &f->config.mixer;
    return gguf_parts(f, t) == 1 ? gguf_rows(f, t)
           : gguf_is_shared(t)   ? gguf_rows(f, t) / 2
           : part                ? (uint64_t)m->heads * m->value_dim
                                 : m->conv_channels;
}

/* The row of the folder's tensor that is row i of q, k, v and z. */
static inline uint64_t gguf_ungrouped(const struct spw_mixer_config *m, uint64_t i)
{
    const uint64_t shared = m->heads / m->key_heads, keys = (uint64_t)m->key_heads * m->key_dim;
    const uint64_t group = 2 * m->key_dim + 2 * shared * m->value_dim;
    const uint64_t values = (uint64_t)m->heads * m->value_dim;
    if (i < 2 * keys)
        return i % keys / m->key_dim * group + i / keys * m->key_dim + i % m->key_dim;
    const uint64_t v = (i - 2 * keys) % values, is_z = (i - 2 * keys) / values;
    return v / (shared * m->value_dim) * group + 2 * m->key_dim + is_z * shared * m->value_dim +
           v % (shared * m->value_dim);
}

/* Value heads of qwen35 come in another order: first the first one of each key head, and so on.
 * Where number i comes from, of numbers of which each head has `each`, from `first` on. */
static inline uint64_t gguf_tiled(const struct spw_mixer_config *m, uint64_t i, uint64_t each,
                                  uint64_t first)
{
    if (i < first)
        return i;
    const uint64_t head = (i - first) / each, shared = m->heads / m->key_heads;
    return first + (head % m->key_heads * shared + head / m->key_heads) * each + (i - first) % each;
}

/* 0: the rows of the tensor keep their order. */
static inline uint64_t gguf_rows_of_head(const struct gguf_folder *f, const struct spw_tensor *t,
                                         uint64_t *first)
{
    const struct spw_mixer_config *m = &f->config.mixer;
    const bool is_qkv = strstr(t->name, ".in_proj_qkv.") || strstr(t->name, ".conv1d.");
    *first = is_qkv ? 2 * (uint64_t)m->key_heads * m->key_dim : 0;
    if (strncmp(f->architecture, "qwen35", 6) != 0)
        return 0;
    return is_qkv || strstr(t->name, ".in_proj_z.") ? m->value_dim
           : strstr(t->name, ".in_proj_a.") || strstr(t->name, ".in_proj_b.") ||
                   strstr(t->name, ".A_log") || strstr(t->name, ".dt_bias")
               ? 1
               : 0;
}

/* ---- names ---- */

/* Of T5. */
static inline void gguf_stack_name(const struct spw_tensor *t, char out[SPW_GGUF_MOST_NAME + 1])
{
    static const char *const names[][2] = {{"SelfAttention.q", "attn_q"},
                                           {"SelfAttention.k", "attn_k"},
                                           {"SelfAttention.v", "attn_v"},
                                           {"SelfAttention.o", "attn_o"},
                                           {"SelfAttention.relative", "attn_rel_b"},
                                           {"EncDecAttention.q", "cross_attn_q"},
                                           {"EncDecAttention.k", "cross_attn_k"},
                                           {"EncDecAttention.v", "cross_attn_v"},
                                           {"EncDecAttention.o", "cross_attn_o"},
                                           {"DenseReluDense.wi.", "ffn_up"},
                                           {"DenseReluDense.wi_0", "ffn_gate"},
                                           {"DenseReluDense.wi_1", "ffn_up"},
                                           {"DenseReluDense.wo", "ffn_down"}};
    const bool decoder = !strncmp(t->name, "decoder.", 8);
    const char *block = strstr(t->name, "block."), *stack = decoder ? "dec" : "enc";
    if (!block) {
        const char *name = strstr(t->name, "final_layer_norm") ? ".output_norm"
                           : strstr(t->name, "lm_head")        ? "output"
                                                               : "token_embd";
        snprintf(out, SPW_GGUF_MOST_NAME + 1, "%s%s.weight", *name == '.' ? stack : "", name);
        return;
    }
    char *rest;
    const unsigned long number = strtoul(block + 6, &rest, 10), layer = strtoul(rest + 7, NULL, 10);
    const char *name = layer == (decoder ? 2 : 1) ? "ffn_norm"
                       : layer                    ? "cross_attn_norm"
                                                  : "attn_norm";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(rest + 9, names[i][0], strlen(names[i][0])))
            name = names[i][1];
    snprintf(out, SPW_GGUF_MOST_NAME + 1, "%s.blk.%lu.%s.weight", stack, number, name);
}

static inline void gguf_name(const struct gguf_folder *f, const struct spw_tensor *t, uint32_t part,
                             char out[SPW_GGUF_MOST_NAME + 1])
{
    static const char *const names[][2] = {{"input_layernorm", "attn_norm"},
                                           {"self_attn.q_proj", "attn_q"},
                                           {"self_attn.k_proj", "attn_k"},
                                           {"self_attn.v_proj", "attn_v"},
                                           {"self_attn.qkv_proj", "attn_qkv"},
                                           {"self_attn.o_proj", "attn_output"},
                                           {"self_attn.gate_proj", "attn_gate"},
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
                                           {"post_per_layer_input_norm", "post_norm"},
                                           {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
                                           {"mlp.experts.down_proj", "ffn_down_exps"},
                                           {"linear_attn.in_proj_qkv.", "attn_qkv"},
                                           {"linear_attn.in_proj_qkvz", "attn_qkv"},
                                           {"linear_attn.in_proj_z", "attn_gate"},
                                           {"linear_attn.in_proj_b.", "ssm_beta"},
                                           {"linear_attn.in_proj_a", "ssm_alpha"},
                                           {"linear_attn.in_proj_ba", "ssm_ba"},
                                           {"linear_attn.conv1d", "ssm_conv1d"},
                                           {"linear_attn.norm", "ssm_norm"},
                                           {"linear_attn.out_proj", "ssm_out"},
                                           {"linear_attn.dt_bias", "ssm_dt"},
                                           {"linear_attn.A_log", "ssm_a"},
                                           {"mamba.in_proj", "ssm_in"},
                                           {"mamba.conv1d", "ssm_conv1d"},
                                           {"mamba.x_proj", "ssm_x"},
                                           {"mamba.dt_proj", "ssm_dt"},
                                           {"mamba.dt_bias", "ssm_dt"},
                                           {"mamba.A_log", "ssm_a"},
                                           {"mamba.D", "ssm_d"},
                                           {"mamba.norm", "ssm_norm"},
                                           {"mamba.out_proj", "ssm_out"},
                                           {"mamba.q_proj", "attn_q"},
                                           {"mamba.k_proj", "attn_k"},
                                           {"mamba.v_proj", "attn_v"},
                                           {"mamba.o_proj", "attn_output"},
                                           {"mamba.up_proj", "ffn_up"},
                                           {"mamba.down_proj", "ffn_down"},
                                           {"mamba.gate.", "ffn_gate_inp"},
                                           {"mamba.gate.e_score", "exp_probs_b"},
                                           {"mamba.experts.0.up_proj", "ffn_up_exps"},
                                           {"mamba.experts.0.down_proj", "ffn_down_exps"},
                                           {"mamba.shared_experts.up_proj", "ffn_up_shexp"},
                                           {"mamba.shared_experts.down_proj", "ffn_down_shexp"},
                                           {"mamba.fc1_latent_proj", "ffn_latent_down"},
                                           {"mamba.fc2_latent_proj", "ffn_latent_up"},
                                           {"norm.", "attn_norm"},
                                           {"shared_mlp.output_linear", "ffn_down"},
                                           {"operator_norm", "attn_norm"},
                                           {"self_attn.out_proj", "attn_output"},
                                           {"self_attn.q_layernorm", "attn_q_norm"},
                                           {"self_attn.k_layernorm", "attn_k_norm"},
                                           {"mlp.w1", "ffn_gate"},
                                           {"mlp.w3", "ffn_up"},
                                           {"mlp.w2", "ffn_down"},
                                           {"mlp.experts.0.w1", "ffn_gate_exps"},
                                           {"mlp.experts.0.w3", "ffn_up_exps"},
                                           {"mlp.experts.0.w2", "ffn_down_exps"},
                                           {"mlp.expert_bias", "exp_probs_b"},
                                           {"conv.in_proj", "shortconv.in_proj"},
                                           {"conv.conv", "shortconv.conv"},
                                           {"conv.out_proj", "shortconv.out_proj"}};
    static const char *const mtp[][2] = {{"mtp.fc.", "eh_proj"},
                                         {"mtp.pre_fc_norm_embedding.", "enorm"},
                                         {"mtp.pre_fc_norm_hidden.", "hnorm"},
                                         {"mtp.norm.", "shared_head_norm"}};
    const char *layers = strstr(t->name, "layers."), *suffix = strrchr(t->name, '.');
    if (f->config.n_source_layers) {
        gguf_stack_name(t, out);
        return;
    }
    for (size_t i = 0; i < sizeof mtp / sizeof *mtp; i++)
        if (!strncmp(t->name, mtp[i][0], strlen(mtp[i][0]))) {
            snprintf(out, SPW_GGUF_MOST_NAME + 1, "blk.%u.nextn.%s%s", f->config.n_layers,
                     mtp[i][1], suffix);
            return;
        }
    if (!layers) {
        const char *name = strstr(t->name, "embed_tokens.")             ? "token_embd"
                           : strstr(t->name, "embeddings.")             ? "token_embd"
                           : strstr(t->name, "lm_head")                 ? "output"
                           : gguf_is_input_table(t)                     ? "per_layer_token_embd"
                           : strstr(t->name, "per_layer_model_project") ? "per_layer_model_proj"
                           : strstr(t->name, "per_layer_projection")    ? "per_layer_proj_norm"
                           : strstr(t->name, "embedding_norm")          ? "token_embd_norm"
                                                                        : "output_norm";
        snprintf(out, SPW_GGUF_MOST_NAME + 1, "%s%s", name, suffix);
        return;
    }
    unsigned layer = (unsigned)strtoul(layers + 7, NULL, 10);
    layer += strncmp(t->name, "mtp.", 4) ? 0 : f->config.n_layers;
    const char *rest = strchr(layers + 7, '.') + 1;
    char usual[160];
    if (!strncmp(rest, "feed_forward.", 13)) {
        snprintf(usual, sizeof usual, "mlp.%s", rest + 13);
        rest = usual;
    }
    if (!strncmp(rest, "mixer.", 6)) {
        snprintf(usual, sizeof usual, "mamba.%s", rest + 6);
        rest = usual;
    }
    const char *name =
        f->config.sandwich || f->config.late_norms || f->config.mixer.kind == SPW_MIXER_DELTA
            ? "post_attention_norm"
            : "ffn_norm";
    if (!strcmp(suffix, ".dt_bias") || !strcmp(suffix, ".expert_bias") ||
        !strcmp(suffix, ".e_score_correction_bias"))
        suffix = ".bias";
    else if (!strcmp(suffix, ".A_log") || !strcmp(suffix, ".D"))
        suffix = "";
    else if (strcmp(suffix, ".bias") != 0)
        suffix = strstr(rest, "router.") && strstr(rest, "scale") ? ".scale" : ".weight";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(rest, names[i][0], strlen(names[i][0])))
            name = names[i][1];
    if (strstr(rest, "in_proj_qkvz"))
        name = f->way->joined_gate ? "ssm_in" : part ? "attn_gate" : "attn_qkv";
    if (gguf_is_shared(t))
        name = part ? "ffn_up" : "ffn_gate";
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
    gguf_u32(f, w, "attention.shared_kv_layers", spw_config_n_readers(c));
    gguf_u32(f, w, "embedding_length_per_layer_input", c->layer_inputs);
}

/* Numbers by layer: 0 where it does not attend, or is no mlp. */
static inline void gguf_mamba_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    const struct spw_mixer_config *m = &c->mixer;
    const bool scan = m->kind == SPW_MIXER_SCAN, blocks = !strncmp(f->architecture, "nemo", 4);
    uint32_t heads[64], widths[64];
    char name[96];
    for (uint32_t i = 0; i < c->n_layers; i++) {
        heads[i] = spw_config_kv(c, i)->n_heads;
        widths[i] = (uint32_t)spw_config_mlp_width(c, i);
    }
    gguf_u32(f, w, "ssm.conv_kernel", m->conv_width);
    gguf_u32(f, w, "ssm.state_size", m->key_dim);
    gguf_u32(f, w, "ssm.time_step_rank", scan ? m->dt_rank : m->heads);
    gguf_u32(f, w, "ssm.inner_size", spw_mixer_width(m));
    if (!scan)
        gguf_u32(f, w, "ssm.group_count", m->key_heads);
    if (!strncmp(c->model_type, "mamba", 5))
        return;
    gguf_key(f, name, "attention.head_count_kv");
    spw_gguf_add(w, name, SPW_GGUF_U32, true, heads, c->n_layers);
    gguf_key(f, name, "rope.scaling.finetuned");
    spw_gguf_add(w, name, SPW_GGUF_BOOL, false, &(uint8_t){0}, 1);
    if (!blocks) {
        gguf_f32(f, w, "attention.scale", (double)c->attention_scale);
        gguf_f32(f, w, "embedding_scale", (double)c->embedding_scale);
        gguf_f32(f, w, "residual_scale", (double)c->branch_scales[SPW_BRANCH_MLP]);
        gguf_u32(f, w, "expert_shared_feed_forward_length", c->intermediate);
        gguf_u32(f, w, "expert_count", 0);
        return;
    }
    gguf_key(f, name, "feed_forward_length");
    spw_gguf_add(w, name, SPW_GGUF_U32, true, widths, c->n_layers);
    gguf_f32(f, w, "expert_weights_scale", (double)c->experts.route.scale);
    gguf_key(f, name, "expert_weights_norm");
    spw_gguf_add(w, name, SPW_GGUF_BOOL, false, &(uint8_t){c->experts.route.renormalizes}, 1);
    if (c->experts.route.n_groups)
        gguf_u32(f, w, "expert_group_count", c->experts.route.n_groups);
    if (c->experts.route.n_groups)
        gguf_u32(f, w, "expert_group_used_count", c->experts.route.n_groups_kept);
    if (c->experts.latent)
        gguf_u32(f, w, "moe_latent_size", c->experts.latent);
}

static inline void gguf_state_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    const struct spw_mixer_config *m = &c->mixer;
    const int32_t sections[] = {1, 1, 0, 0};
    uint32_t heads[64], interval = 0;
    uint8_t recurrent[64], usual = 1;
    char name[96];
    while (interval < c->n_layers && c->layer_kinds[interval++] == SPW_LAYER_STATE)
        ;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        heads[i] = spw_config_kv(c, i)->n_heads;
        recurrent[i] = c->layer_kinds[i] == SPW_LAYER_STATE;
        usual = usual && recurrent[i] == ((i + 1) % interval != 0);
    }
    if (m->kind == SPW_MIXER_CONV) {
        gguf_key(f, name, "attention.head_count_kv");
        spw_gguf_add(w, name, SPW_GGUF_U32, true, heads, c->n_layers);
        gguf_u32(f, w, "shortconv.l_cache", m->conv_width);
        if (c->experts.n)
            gguf_u32(f, w, "leading_dense_block_count", !c->has_experts[0]);
        if (c->experts.n)
            gguf_u32(f, w, "expert_gating_func", 2);
        return;
    }
    gguf_u32(f, w, "attention.head_count_kv", c->kv[SPW_LAYER_FULL].n_heads);
    gguf_u32(f, w, "ssm.conv_kernel", m->conv_width);
    gguf_u32(f, w, "ssm.state_size", m->key_dim);
    gguf_u32(f, w, "ssm.group_count", m->key_heads);
    gguf_u32(f, w, "ssm.time_step_rank", m->heads);
    gguf_u32(f, w, "ssm.inner_size", (uint64_t)m->heads * m->value_dim);
    if (!strcmp(f->architecture, "qwen35")) {
        gguf_key(f, name, "rope.dimension_sections");
        spw_gguf_add(w, name, SPW_GGUF_I32, true, sections, 4);
    }
    if (usual) {
        gguf_u32(f, w, "full_attention_interval", interval);
        return;
    }
    gguf_key(f, name, "attention.recurrent_layers");
    spw_gguf_add(w, name, SPW_GGUF_BOOL, true, recurrent, c->n_layers);
}

static inline void gguf_stack_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    gguf_u32(f, w, "context_length", c->max_positions);
    gguf_u32(f, w, "embedding_length", c->hidden);
    gguf_u32(f, w, "feed_forward_length", c->intermediate);
    gguf_u32(f, w, "block_count", c->n_source_layers / 2);
    gguf_u32(f, w, "decoder_block_count", (c->n_layers - c->n_source_layers) / 2);
    gguf_u32(f, w, "attention.head_count", c->n_heads);
    gguf_u32(f, w, "attention.key_length", c->kv[SPW_LAYER_FULL].head_dim);
    gguf_u32(f, w, "attention.value_length", c->kv[SPW_LAYER_FULL].head_dim);
    gguf_f32(f, w, "attention.layer_norm_epsilon", (double)c->rms_eps);
    gguf_u32(f, w, "attention.relative_buckets_count", c->n_buckets);
    gguf_f32(f, w, "attention.layer_norm_rms_epsilon", (double)c->rms_eps);
    gguf_u32(f, w, "decoder_start_token_id", (uint32_t)c->start);
}

static inline void gguf_keys(const struct gguf_folder *f, struct spw_gguf_writer *w)
{
    const struct spw_model_config *c = &f->config;
    spw_gguf_add_string(w, "general.architecture", f->architecture);
    if (c->n_source_layers) {
        gguf_stack_keys(f, w);
        return;
    }
    const bool mtp =
        f->way->mtp != GGUF_MTP_LEFT_OUT && spw_tensors_find(f->tensors, "mtp.fc.weight");
    gguf_u32(f, w, "block_count", c->n_layers + mtp);
    if (mtp)
        gguf_u32(f, w, "nextn_predict_layers", 1);
    gguf_u32(f, w, "context_length", c->max_positions);
    gguf_u32(f, w, "embedding_length", c->hidden);
    const bool mixes = c->mixer.kind == SPW_MIXER_SSD || c->mixer.kind == SPW_MIXER_SCAN;
    const bool attends = strncmp(c->model_type, "mamba", 5) != 0;
    gguf_u32(f, w, "attention.head_count", attends ? c->n_heads : 0);
    if (!strcmp(f->architecture, "gemma4")) {
        gguf_gemma4_keys(f, w);
    } else {
        if (strncmp(c->model_type, "nemotron_h", 10) != 0)
            gguf_u32(f, w, "feed_forward_length", c->intermediate);
        if (mixes)
            gguf_mamba_keys(f, w);
        else if (c->mixer.kind)
            gguf_state_keys(f, w);
        else
            gguf_u32(f, w, "attention.head_count_kv", c->kv[SPW_LAYER_FULL].n_heads);
    }
    if (attends)
        gguf_u32(f, w, "attention.key_length", c->kv[SPW_LAYER_FULL].head_dim);
    if (attends)
        gguf_u32(f, w, "attention.value_length", c->kv[SPW_LAYER_FULL].head_dim);
    gguf_f32(f, w,
             c->norm == SPW_NORM_MEAN ? "attention.layer_norm_epsilon"
                                      : "attention.layer_norm_rms_epsilon",
             (double)c->rms_eps);
    if (c->logit_divisor != 1) /* Granite's files divide by it */
        gguf_f32(f, w, "logit_scale",
                 mixes ? (double)c->logit_divisor : 1 / (double)c->logit_divisor);
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
           !strstr(t->name, "feed_forward.gate.") && !strstr(t->name, "router.") &&
           !strstr(t->name, ".conv.conv.") && !strstr(t->name, ".conv1d.") &&
           !strstr(t->name, ".A_log") && !strstr(t->name, "mixer.gate.") &&
           !strstr(t->name, "relative_attention_bias") && !gguf_is_gate(t);
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
    if (f->way->matrices && gguf_cols(t) % spw_type_of(f->way->matrices).elements == 0)
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
                   !strcmp(f->architecture, "olmo") || !strcmp(f->architecture, "arcee") ||
                   !strcmp(f->architecture, "muse-glimmer") ||
                   !strcmp(f->architecture, "granitehybrid") ||
                   !strncmp(f->architecture, "nemotron_h", 10);
    return !ordered ? 0 : q ? f->config.n_heads : k ? f->config.kv[SPW_LAYER_FULL].n_heads : 0;
}

/* Numbers of a tensor as f32, in the order of the file. */
static inline float *gguf_numbers(const struct gguf_folder *f, const struct spw_tensor *t,
                                  uint32_t part, size_t *n)
{
    const struct spw_mixer_config *m = &f->config.mixer;
    size_t rows = (size_t)gguf_part_rows(f, t, part), cols = (size_t)gguf_cols(t);
    size_t all = (size_t)gguf_rows(f, t) * cols;
    float *x = malloc((all + 1) * sizeof *x), *ordered = malloc(rows * cols * sizeof *x);
    uint32_t heads = gguf_heads(f, t);
    size_t hd = f->config.kv[SPW_LAYER_FULL].head_dim;
    uint64_t first, each = gguf_rows_of_head(f, t, &first);
    *n = rows * cols;
    spw_type_read(t->dtype, t->data, 0, all, x);
    for (size_t r = 0; r < rows; r++) {
        size_t in_head = r % hd;
        size_t from = heads ? r - in_head + in_head % 2 * (hd / 2) + in_head / 2 : r;
        if (each)
            from = gguf_tiled(m, r, each, first);
        if (gguf_is_shared(t))
            from = r + part * rows;
        else if (gguf_parts(f, t) > 1)
            from = gguf_ungrouped(m, r + (part ? m->conv_channels : 0));
        memcpy(ordered + r * cols, x + from * cols, cols * sizeof *x);
    }
    const bool tiled = !strncmp(f->architecture, "qwen35", 6);
    for (size_t i = 0; tiled && strstr(t->name, "linear_attn.out_proj.") && i < *n; i++)
        ordered[i] = x[i - i % cols + gguf_tiled(m, i % cols, m->value_dim, 0)];
    free(x);
    const bool is_last = !strstr(t->name, "layers.");
    const bool is_norm = (strstr(t->name, "norm.weight") || strstr(t->name, "pre_fc_norm")) &&
                         !strstr(t->name, "linear_attn.norm.") &&
                         !(f->config.plain_last && is_last);
    for (size_t i = 0; f->config.norm_plus_one && is_norm && i < *n; i++)
        ordered[i] = ordered[i] + 1.0f;
    for (size_t i = 0; strstr(t->name, ".A_log") && i < *n; i++)
        ordered[i] = (float)-exp((double)ordered[i]);
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
                                        uint32_t part, enum spw_dtype type, enum spw_dtype rounded,
                                        FILE *out)
{
    size_t n;
    float *x = gguf_numbers(f, t, part, &n);
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
                                     uint32_t part, FILE *out)
{
    const enum spw_dtype type = gguf_type(f, t), rounded = gguf_matrix_type(f, t);
    const bool stack = gguf_expert(t) == 0;
    size_t bytes = 0;
    for (uint32_t e = 0; e < (stack ? f->config.experts.n : 1); e++)
        bytes +=
            gguf_write_numbers(f, stack ? gguf_of_expert(f, t, e) : t, part, type, rounded, out);
    CHECK(!spw_gguf_write_padding(out, bytes));
}

/* Vectors that are matrices in files: of Mamba 2 a number for each head, and the norm. Their rows;
 * 0: it is no such vector. */
static inline uint32_t gguf_groups(const struct gguf_folder *f, const struct spw_tensor *t)
{
    const struct spw_mixer_config *m = &f->config.mixer;
    const bool norm = strstr(t->name, "mixer.norm.") || strstr(t->name, "mamba.norm.");
    const size_t n = strlen(t->name);
    if (m->kind != SPW_MIXER_SSD)
        return 0;
    return norm                                                          ? m->key_heads
           : strstr(t->name, ".A_log") || !strcmp(t->name + n - 2, ".D") ? m->heads
                                                                         : 0;
}

static inline void gguf_add_tensor(const struct gguf_folder *f, struct spw_gguf_writer *w,
                                   const struct spw_tensor *t, uint32_t part)
{
    char name[SPW_GGUF_MOST_NAME + 1];
    const uint64_t stacked[] = {f->config.experts.n, t->shape[0], t->shape[1]};
    const uint64_t table[] = {gguf_part_rows(f, t, part), gguf_cols(t)};
    const uint32_t groups = gguf_groups(f, t);
    const uint64_t grouped[] = {groups, groups ? t->shape[0] / groups : 0};
    const bool stack = gguf_expert(t) == 0, taps = t->n_dims == 3 && t->shape[1] == 1;
    gguf_name(f, t, part, name);
    spw_gguf_add_tensor(w, name, gguf_type(f, t),
                        stack             ? 3
                        : gguf_is_gate(t) ? 1
                        : taps || groups  ? 2
                                          : t->n_dims,
                        stack                                                    ? stacked
                        : gguf_is_gate(t)                                        ? t->shape + 1
                        : groups                                                 ? grouped
                        : taps || gguf_is_input_table(t) || gguf_parts(f, t) > 1 ? table
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

/* ---- norms of q and k that have no weights in the folder: q's is a factor ---- */

static inline uint32_t gguf_n_norms(const struct gguf_folder *f)
{
    return f->config.q_norm_scale > 0 ? 2 * f->config.n_layers : 0;
}

static inline void gguf_add_norm(struct spw_gguf_writer *w, uint32_t i, uint64_t width)
{
    char name[SPW_GGUF_MOST_NAME + 1];
    snprintf(name, sizeof name, "blk.%u.attn_%c_norm.weight", i / 2, "qk"[i % 2]);
    spw_gguf_add_tensor(w, name, SPW_DTYPE_F32, 1, &width);
}

static inline void gguf_write_norm(const struct gguf_folder *f, uint32_t i, uint64_t width,
                                   FILE *out)
{
    const float x = i % 2 ? 1 : f->config.q_norm_scale;
    for (uint64_t k = 0; k < width; k++)
        fwrite(&x, sizeof x, 1, out);
    CHECK(!spw_gguf_write_padding(out, width * sizeof x));
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

/* Whether a file has a tensor of this name, with others of its stack. */
static inline bool gguf_has(const struct gguf_folder *f, const struct spw_tensor *t)
{
    const bool mtp = !strncmp(t->name, "mtp.", 4), shared = !strstr(t->name, "layers.");
    return gguf_expert(t) <= 0 &&
           (f->way->mtp == GGUF_MTP_INSIDE || mtp == (f->way->mtp != GGUF_MTP_LEFT_OUT) ||
            (shared && !mtp && f->way->mtp == GGUF_MTP_WITH_COPIES));
}

/* Tensors of the files, but for factors. */
static inline size_t gguf_count(const struct gguf_folder *f)
{
    size_t n = 0;
    for (size_t i = 0; i < spw_tensors_count(f->tensors); i++)
        if (gguf_has(f, spw_tensors_at(f->tensors, i)))
            n += gguf_parts(f, spw_tensors_at(f->tensors, i));
    return n;
}

/* Tensors [from, to); the first file has the factors, too. */
static inline void gguf_write_file(const struct gguf_folder *f, const char *path, uint32_t number,
                                   uint32_t count, size_t from, size_t to)
{
    struct spw_gguf_writer w = {0};
    uint32_t n_tensors = 0; /* of factors */
    uint64_t n_factors = f->config.rope[0].rotary_dim / 2, width = f->config.kv[0].head_dim;
    const uint32_t n_norms = gguf_n_norms(f);
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL);
    while (gguf_factors(f, n_tensors))
        n_tensors++;
    if (number == 0)
        gguf_keys(f, &w);
    if (count > 1)
        gguf_split_keys(&w, number, count, gguf_count(f) + n_tensors + n_norms);
    for (uint32_t i = 0; number == 0 && i < n_tensors; i++)
        spw_gguf_add_tensor(&w, gguf_factors(f, i), SPW_DTYPE_F32, 1, &n_factors);
    for (uint32_t i = 0; number == 0 && i < n_norms; i++)
        gguf_add_norm(&w, i, width);
    for (size_t i = from; i < to; i++)
        if (gguf_has(f, spw_tensors_at(f->tensors, i)))
            for (uint32_t p = 0; p < gguf_parts(f, spw_tensors_at(f->tensors, i)); p++)
                gguf_add_tensor(f, &w, spw_tensors_at(f->tensors, i), p);
    CHECK(!spw_gguf_write_header(&w, out));
    for (uint32_t i = 0; number == 0 && i < n_tensors; i++)
        gguf_write_factors(f, i, out);
    for (uint32_t i = 0; number == 0 && i < n_norms; i++)
        gguf_write_norm(f, i, width, out);
    for (size_t i = from; i < to; i++)
        if (gguf_has(f, spw_tensors_at(f->tensors, i)))
            for (uint32_t p = 0; p < gguf_parts(f, spw_tensors_at(f->tensors, i)); p++)
                gguf_write_tensor(f, spw_tensors_at(f->tensors, i), p, out);
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
