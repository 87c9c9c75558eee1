/* Prefixes and own names of tensors: see tensor_names.h. */
#include "model/weights/tensor_names.h"

#include <stdio.h>
#include <string.h>

/* Those of multimodal wrappers, then those of a text model. */
static const char *const prefixes[] = {"language_model.model.",
                                       "model.language_model.",
                                       "model.text_model.",
                                       "model.",
                                       "backbone.",
                                       ""};
static const char *const heads[] = {"lm_head.", "language_model.lm_head."};

enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes };

/* Parts of names, from the number of the layer to a point or the end, or from the prefix of the
 * decoder; and the usual ones. One that begins with a point is of layers only. The first row that
 * fits counts. */
static const struct {
    const char *own, *usual;
} parts[] = {
    {"temporal_pre_norm", "input_layernorm"}, /* of recurrent_gemma */
    {"channel_pre_norm", "post_attention_layernorm"},
    {"temporal_block.linear_x", "linear_attn.in_proj"},
    {"temporal_block.linear_y", "linear_attn.gate_proj"},
    {"temporal_block.linear_out", "linear_attn.out_proj"},
    {"temporal_block.conv_1d", "linear_attn.conv1d"},
    {"temporal_block.rg_lru.input_gate_weight", "linear_attn.input_gate.weight"},
    {"temporal_block.rg_lru.input_gate_bias", "linear_attn.input_gate.bias"},
    {"temporal_block.rg_lru.recurrent_gate_weight", "linear_attn.recurrent_gate.weight"},
    {"temporal_block.rg_lru.recurrent_gate_bias", "linear_attn.recurrent_gate.bias"},
    {"temporal_block.rg_lru.recurrent_param", "linear_attn.recurrent_param"},
    {"temporal_block", "self_attn"},
    {"mlp_block", "mlp"},
    {"final_norm", "norm"},
    {"self_attn.dense", "self_attn.o_proj"},
    {"self_attn.q_layernorm", "self_attn.q_norm"},
    {"self_attn.k_layernorm", "self_attn.k_norm"},
    {"self_attn.query_layernorm", "self_attn.q_norm"},
    {"self_attn.key_layernorm", "self_attn.k_norm"},
    {"final_layernorm", "norm"},
    {"mlp.fc1", "mlp.up_proj"},
    {"mlp.fc2", "mlp.down_proj"},
    {"mlp.c_fc", "mlp.up_proj"},
    {"mlp.c_proj", "mlp.down_proj"},
    {"shared_mlp.input_linear", "mlp.gate_up_proj"},
    {"shared_mlp.output_linear", "mlp.down_proj"},
    {"mlp.shared_experts", "mlp.shared_expert"},
    {"mlp.shared_mlp", "mlp.shared_expert"},
    {"mlp.gate.wg", "mlp.gate"}, /* routers */
    {"mlp.router", "mlp.gate"},
    {"feed_forward.router", "mlp.gate"},
    {"block_sparse_moe.gate", "mlp.gate"},
    {"block_sparse_moe.router.layer", "mlp.gate"},
    {"block_sparse_moe.router", "mlp.gate"},
    {"router.proj", "mlp.gate"},
    {"mlp.moe_statics.e_score_correction_bias", "mlp.gate.e_score_correction_bias"},
    {"mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"},
    {"block_sparse_moe.e_score_correction_bias", "mlp.gate.e_score_correction_bias"},
    {"block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj"},
    {"block_sparse_moe.output_linear.weight", "mlp.experts.down_proj"},
    {"block_sparse_moe.experts", "mlp.experts"},
    {"experts", "mlp.experts"},
    {"embedding_norm", "norm"}, /* LFM2 */
    {"operator_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"self_attn.out_proj", "self_attn.o_proj"},
    {"feed_forward.w1", "mlp.gate_proj"},
    {"feed_forward.w3", "mlp.up_proj"},
    {"feed_forward.w2", "mlp.down_proj"},
    {"feed_forward.expert_bias", "mlp.gate.e_score_correction_bias"},
    {"feed_forward", "mlp"},
    {"conv.conv", "linear_attn.conv1d"}, /* layers with a state */
    {"conv", "linear_attn"},
    {"mamba", "linear_attn"},
    {"pre_ff_layernorm", "post_attention_layernorm"}, /* Falcon-H1 */
    {"embeddings", "embed_tokens"},                   /* Mamba and Nemotron-H */
    {"embedding", "embed_tokens"},
    {"norm_f", "norm"},
    {".norm", "input_layernorm"},
    {"mixer.q_proj", "self_attn.q_proj"},
    {"mixer.k_proj", "self_attn.k_proj"},
    {"mixer.v_proj", "self_attn.v_proj"},
    {"mixer.o_proj", "self_attn.o_proj"},
    {"mixer.up_proj", "mlp.up_proj"},
    {"mixer.down_proj", "mlp.down_proj"},
    {"mixer.gate", "mlp.gate"},
    {"mixer.experts", "mlp.experts"},
    {"mixer.shared_experts", "mlp.shared_expert"},
    {"mixer.fc1_latent_proj", "mlp.fc1_latent_proj"},
    {"mixer.fc2_latent_proj", "mlp.fc2_latent_proj"},
    {"mixer", "linear_attn"},
    {"linear_attn.in_proj_qkvz", "linear_attn.in_proj"},
    {"linear_attn.in_proj_qkv", "linear_attn.in_proj"},
    {"linear_attn.in_proj_z", "linear_attn.gate_proj"},
    {"linear_attn.in_proj_ba", "linear_attn.beta_proj"},
    {"linear_attn.in_proj_b", "linear_attn.beta_proj"},
    {"linear_attn.in_proj_a", "linear_attn.rate_proj"},
};

enum { N_PARTS = sizeof parts / sizeof *parts };

static bool begins_with(const char *name, const char *start)
{
    return !strncmp(name, start, strlen(start));
}

/* The bytes before the part: those of "layers.12.", or none. */
static int before_part(const char *name)
{
    unsigned layer;
    int n = 0;
    sscanf(name, "layers.%5u.%n", &layer, &n);
    return n;
}

/* What follows the part, if the name has it behind its first n bytes (before_part); else NULL. */
static const char *after(const char *name, int n, const char *part)
{
    const bool of_layer = *part == '.';
    const size_t length = strlen(part += of_layer);
    const char *end = name + n + length;
    return (n || !of_layer) && !strncmp(name + n, part, length) && (*end == '.' || !*end) ? end
                                                                                          : NULL;
}

const char *spw_tensor_prefix(const struct spw_tensors *tensors)
{
    static const char *const always[] = {"embed_tokens.weight",
                                         "embeddings.weight",
                                         "embedding.weight",
                                         "decoder.block.0.layer.0.SelfAttention.q.weight",
                                         "layers.0.self_attn.q_proj.weight",
                                         "encoder.layers.0.self_attn.q_proj.weight",
                                         "layers.0.linear_attn.out_proj.weight",
                                         "layers.0.conv.out_proj.weight",
                                         "norm.weight",
                                         "final_norm.weight",
                                         "norm_f.weight"};
    char name[128];
    for (size_t i = 0; i < sizeof always / sizeof *always * N_PREFIXES; i++) {
        const char *prefix = prefixes[i % N_PREFIXES];
        snprintf(name, sizeof name, "%s%s", prefix, always[i / N_PREFIXES]);
        if (spw_tensors_find(tensors, name))
            return prefix;
    }
    return NULL;
}

bool spw_tensor_usual_name(const char *prefix, const char *name, char out[SPW_MOST_TENSOR_NAME])
{
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (begins_with(name, heads[i])) {
            snprintf(out, SPW_MOST_TENSOR_NAME, "lm_head.%s", name + strlen(heads[i]));
            return true;
        }
    if (!begins_with(name, prefix))
        return false;
    name += strlen(prefix);
    const int n = before_part(name);
    snprintf(out, SPW_MOST_TENSOR_NAME, "model.%s", name);
    for (size_t i = 0; i < N_PARTS; i++) {
        const char *end = after(name, n, parts[i].own);
        if (!end)
            continue;
        snprintf(out, SPW_MOST_TENSOR_NAME, "model.%.*s%s%s", n, name, parts[i].usual, end);
        break;
    }
    return true;
}

/* Parts of names behind "encoder.block.12." or "decoder.block.12." (T5), "encoder.layers.12." or
 * "decoder.layers.12." (BART), whether the part is in the second of the two layers that make the
 * block (config.h), and the usual names. */
static const struct {
    bool decoder, second;
    const char *own, *usual;
} stack_parts[] = {
    {false, false, "layer.0.SelfAttention.k", "source_attn.k_proj"},
    {false, false, "layer.0.SelfAttention.v", "source_attn.v_proj"},
    {false, true, "layer.0.SelfAttention.q", "self_attn.q_proj"},
    {false, true, "layer.0.SelfAttention.o", "self_attn.o_proj"},
    {false, true, "layer.0.SelfAttention.relative_attention_bias", "relative_bias"},
    {false, false, "layer.0.layer_norm", "input_layernorm"},
    {false, true, "layer.1.DenseReluDense.wi", "mlp.up_proj"},
    {false, true, "layer.1.DenseReluDense.wi_0", "mlp.gate_proj"},
    {false, true, "layer.1.DenseReluDense.wi_1", "mlp.up_proj"},
    {false, true, "layer.1.DenseReluDense.wo", "mlp.down_proj"},
    {false, true, "layer.1.layer_norm", "post_attention_layernorm"},
    {true, false, "layer.0.SelfAttention.q", "self_attn.q_proj"},
    {true, false, "layer.0.SelfAttention.k", "self_attn.k_proj"},
    {true, false, "layer.0.SelfAttention.v", "self_attn.v_proj"},
    {true, false, "layer.0.SelfAttention.o", "self_attn.o_proj"},
    {true, false, "layer.0.SelfAttention.relative_attention_bias", "relative_bias"},
    {true, false, "layer.0.layer_norm", "input_layernorm"},
    {true, false, "layer.1.EncDecAttention.k", "source_attn.k_proj"},
    {true, false, "layer.1.EncDecAttention.v", "source_attn.v_proj"},
    {true, true, "layer.1.EncDecAttention.q", "self_attn.q_proj"},
    {true, true, "layer.1.EncDecAttention.o", "self_attn.o_proj"},
    {true, true, "layer.1.layer_norm", "input_layernorm"},
    {true, true, "layer.2.DenseReluDense.wi", "mlp.up_proj"},
    {true, true, "layer.2.DenseReluDense.wi_0", "mlp.gate_proj"},
    {true, true, "layer.2.DenseReluDense.wi_1", "mlp.up_proj"},
    {true, true, "layer.2.DenseReluDense.wo", "mlp.down_proj"},
    {true, true, "layer.2.layer_norm", "post_attention_layernorm"},
    {false, false, "self_attn.k_proj", "source_attn.k_proj"},
    {false, false, "self_attn.v_proj", "source_attn.v_proj"},
    {false, true, "self_attn.q_proj", "self_attn.q_proj"},
    {false, true, "self_attn.out_proj", "self_attn.o_proj"},
    {false, false, "self_attn_layer_norm", "input_layernorm"},
    {false, true, "fc1", "mlp.up_proj"},
    {false, true, "fc2", "mlp.down_proj"},
    {false, true, "final_layer_norm", "post_attention_layernorm"},
    {true, false, "self_attn.q_proj", "self_attn.q_proj"},
    {true, false, "self_attn.k_proj", "self_attn.k_proj"},
    {true, false, "self_attn.v_proj", "self_attn.v_proj"},
    {true, false, "self_attn.out_proj", "self_attn.o_proj"},
    {true, false, "self_attn_layer_norm", "input_layernorm"},
    {true, false, "encoder_attn.k_proj", "source_attn.k_proj"},
    {true, false, "encoder_attn.v_proj", "source_attn.v_proj"},
    {true, true, "encoder_attn.q_proj", "self_attn.q_proj"},
    {true, true, "encoder_attn.out_proj", "self_attn.o_proj"},
    {true, true, "encoder_attn_layer_norm", "input_layernorm"},
    {true, true, "fc1", "mlp.up_proj"},
    {true, true, "fc2", "mlp.down_proj"},
    {true, true, "final_layer_norm", "post_attention_layernorm"},
};

/* The same of what is in no block. */
static const struct {
    const char *own, *usual;
} stack_ends[] = {
    {"encoder.final_layer_norm", "source_norm"},
    {"decoder.final_layer_norm", "norm"},
    {"encoder.layer_norm", "source_norm"},
    {"decoder.layer_norm", "norm"},
    {"encoder.layernorm_embedding", "source_embedding_norm"},
    {"decoder.layernorm_embedding", "embedding_norm"},
    {"encoder.conv1", "layers.0.source_conv1"},
    {"encoder.conv2", "layers.0.source_conv2"},
    {"encoder.embed_positions", "source_positions"},
    {"decoder.embed_positions", "positions"},
};

/* A file has one to three copies of the embedding: the name of the copy that is used. */
static const char *stack_embedding(const struct spw_tensors *tensors, const char *prefix,
                                   bool own_source_rows)
{
    static const char *const names[] = {"shared.weight", "encoder.embed_tokens.weight"};
    char name[SPW_MOST_TENSOR_NAME];
    for (size_t i = 0; i < sizeof names / sizeof *names && !own_source_rows; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        if (spw_tensors_find(tensors, name))
            return names[i];
    }
    return "decoder.embed_tokens.weight";
}

/* The bytes before the part: those of "decoder.layers.12.", or none. */
static int before_block(const char *name, unsigned *block)
{
    static const char *const starts[] = {"encoder.block.", "decoder.block.", "encoder.layers.",
                                         "decoder.layers."};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const int start = (int)strlen(starts[i]);
        int n = 0;
        if (begins_with(name, starts[i]) && sscanf(name + start, "%5u.%n", block, &n) == 1 && n)
            return start + n;
    }
    *block = 0;
    return 0;
}

bool spw_tensor_stack_name(const struct spw_tensors *tensors, const char *prefix, const char *name,
                           const struct spw_model_config *c, char out[SPW_MOST_TENSOR_NAME])
{
    const uint32_t n_source_layers = c->n_source_layers;
    const char *const whole[][2] = {
        {stack_embedding(tensors, prefix, c->own_source_rows), "model.embed_tokens.weight"},
        {"lm_head.weight", "lm_head.weight"},
        {"proj_out.weight", "lm_head.weight"},
        {"final_logits_bias", "lm_head.bias"},
        {"encoder.embed_tokens.weight",
         c->own_source_rows ? "model.source_embed_tokens.weight" : NULL}, /* other copies */
        {"decoder.embed_tokens.weight", NULL},
        {"encoder.version", NULL}, /* of old writers */
        {"decoder.version", NULL},
        {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
         NULL}}; /* unused */
    unsigned block;
    if (begins_with(name, prefix))
        name += strlen(prefix);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i][0]))
            return whole[i][1] && snprintf(out, SPW_MOST_TENSOR_NAME, "%s", whole[i][1]) > 0;
    const bool decoder = begins_with(name, "decoder.");
    snprintf(out, SPW_MOST_TENSOR_NAME, "model.%s", name);
    for (size_t i = 0; i < sizeof stack_ends / sizeof *stack_ends; i++) {
        const char *end = after(name, 0, stack_ends[i].own);
        if (end)
            return snprintf(out, SPW_MOST_TENSOR_NAME, "model.%s%s", stack_ends[i].usual, end) > 0;
    }
    const int n = before_block(name, &block);
    if (!decoder && block >= n_source_layers / 2)
        return true; /* nothing calls for it */
    for (size_t i = 0; i < sizeof stack_parts / sizeof *stack_parts && n; i++) {
        const char *end =
            stack_parts[i].decoder == decoder ? after(name, n, stack_parts[i].own) : NULL;
        if (end)
            return snprintf(out, SPW_MOST_TENSOR_NAME, "model.layers.%u.%s%s",
                            (decoder ? n_source_layers : 0) + 2 * block + stack_parts[i].second,
                            stack_parts[i].usual, end) > 0;
    }
    return true;
}

static bool has_t5_names(const struct spw_tensors *tensors, const char *prefix)
{
    char name[SPW_MOST_TENSOR_NAME];
    snprintf(name, sizeof name, "%sdecoder.block.0.layer.0.SelfAttention.q.weight", prefix);
    return spw_tensors_find(tensors, name);
}

/* Of a tensor in a block; false: no row has it. */
static bool name_in_stack(const struct spw_tensors *tensors, const char *prefix, const char *usual,
                          const struct spw_model_config *c, char out[SPW_MOST_OWN_NAME])
{
    const bool t5 = has_t5_names(tensors, prefix);
    const char *name = usual + strlen("model.");
    char again[SPW_MOST_TENSOR_NAME];
    unsigned layer = 0;
    sscanf(name, "layers.%5u.", &layer);
    const bool decoder = layer >= c->n_source_layers;
    const unsigned block = (layer - (decoder ? c->n_source_layers : 0)) / 2;
    for (size_t i = 0; i < sizeof stack_parts / sizeof *stack_parts; i++) {
        const char *own = stack_parts[i].own;
        const char *end = after(name, before_part(name), stack_parts[i].usual);
        if (!end || begins_with(own, "layer.") != t5 ||
            (!c->plain_mlp && !strcmp(own + strlen(own) - 2, "wi")))
            continue;
        snprintf(out, SPW_MOST_OWN_NAME, "%s%s.%s.%u.%s%s", prefix, decoder ? "decoder" : "encoder",
                 t5 ? "block" : "layers", block, own, end);
        if (spw_tensor_stack_name(tensors, prefix, out, c, again) && !strcmp(again, usual))
            return true;
    }
    return false;
}

void spw_tensor_stack_own_name(const struct spw_tensors *tensors, const char *prefix,
                               const char *usual, const struct spw_model_config *c,
                               char out[SPW_MOST_OWN_NAME])
{
    enum { T5_ENDS = 2 };
    const char *name = usual + strlen("model.");
    const bool t5 = has_t5_names(tensors, prefix);
    char full[SPW_MOST_OWN_NAME];
    if (!name_in_stack(tensors, prefix, usual, c, full))
        snprintf(full, sizeof full, "%s", usual);
    for (size_t i = t5 ? 0 : T5_ENDS; i < (t5 ? T5_ENDS : sizeof stack_ends / sizeof *stack_ends);
         i++) {
        const char *end = after(name, 0, stack_ends[i].usual);
        if (end)
            snprintf(full, sizeof full, "%s%s%s", prefix, stack_ends[i].own, end);
    }
    if (!strcmp(name, "embed_tokens.weight"))
        snprintf(full, sizeof full, "%s%s", prefix,
                 c->own_source_rows || c->n_mels ? "decoder.embed_tokens.weight" : "shared.weight");
    if (!strcmp(name, "source_embed_tokens.weight"))
        snprintf(full, sizeof full, "%sencoder.embed_tokens.weight", prefix);
    spw_tensors_own_name(tensors, full, out);
}

bool spw_tensor_mtp_name(const char *name, uint32_t layer, char out[SPW_MOST_TENSOR_NAME])
{
    static const char *const names[][2] = {{"mtp.layers.0.", ""},
                                           {"mtp.fc.", "eh_proj."},
                                           {"mtp.pre_fc_norm_embedding.", "enorm."},
                                           {"mtp.pre_fc_norm_hidden.", "hnorm."},
                                           {"mtp.norm.", "shared_head.norm."}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (begins_with(name, names[i][0])) {
            snprintf(out, SPW_MOST_TENSOR_NAME, "model.layers.%u.%s%s", layer, names[i][1],
                     name + strlen(names[i][0]));
            return true;
        }
    return false;
}

bool spw_tensors_have_mtp(const struct spw_tensors *tensors, uint32_t layer)
{
    const char *prefix = spw_tensor_prefix(tensors);
    char name[SPW_MOST_TENSOR_NAME];
    snprintf(name, sizeof name, "%slayers.%u.eh_proj.weight", prefix ? prefix : "", layer);
    return spw_tensors_find(tensors, "mtp.fc.weight") || spw_tensors_find(tensors, name);
}

/* Whether a tensor of the files has this part. */
static bool any_has(const struct spw_tensors *tensors, const char *prefix, const char *part)
{
    for (size_t i = 0; i < spw_tensors_count(tensors); i++) {
        const char *name = spw_tensors_at(tensors, i)->name + strlen(prefix);
        if (begins_with(spw_tensors_at(tensors, i)->name, prefix) &&
            after(name, before_part(name), part))
            return true;
    }
    return false;
}

void spw_tensor_own_name(const struct spw_tensors *tensors, const char *prefix, const char *usual,
                         char out[SPW_MOST_OWN_NAME])
{
    char full[SPW_MOST_OWN_NAME];
    const char *name = usual + strlen("model.");
    const int n = before_part(name);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (size_t i = 0; i < N_PARTS; i++) {
        const char *end = after(name, n, parts[i].usual);
        if (!end || !any_has(tensors, prefix, parts[i].own))
            continue;
        snprintf(full, sizeof full, "%s%.*s%s%s", prefix, n, name,
                 parts[i].own + (*parts[i].own == '.'), end);
        break;
    }
    if (begins_with(usual, heads[0]))
        snprintf(full, sizeof full, "%s%s", heads[!strcmp(prefix, prefixes[0])],
                 usual + strlen(heads[0]));
    spw_tensors_own_name(tensors, full, out);
}
