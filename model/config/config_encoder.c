/* Models with an encoder: the names of their keys, their two stacks, and numbers of distances. See
 * config_parts.h. */
#include "model/config/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The keys of T5 that mean what others call differently, and those that keep their names. */
const struct spw_key_name spw_config_t5_names[] = {
    {"hidden_size", "d_model"},
    {"intermediate_size", "d_ff"},
    {"num_attention_heads", "num_heads"},
    {"head_dim", "d_kv"},
    {"num_hidden_layers", "num_layers"},
    {"num_decoder_layers", "num_decoder_layers"},
    {"vocab_size", "vocab_size"},
    {"max_position_embeddings", "n_positions"},
    {"layer_norm_epsilon", "layer_norm_epsilon"},
    {"feed_forward_proj", "feed_forward_proj"},
    {"relative_attention_num_buckets", "relative_attention_num_buckets"},
    {"relative_attention_max_distance", "relative_attention_max_distance"},
    {"tie_word_embeddings", "tie_word_embeddings"},
    {"scale_decoder_outputs", "scale_decoder_outputs"},
    {"decoder_start_token_id", "decoder_start_token_id"},
    {"bos_token_id", "bos_token_id"},
    {"eos_token_id", "eos_token_id"},
    {"suppress_tokens", "suppress_tokens"},
    {"cache_implementation", "cache_implementation"},
    {"quantization_config", "quantization_config"},
    {"dtype", "dtype"},
    {"torch_dtype", "torch_dtype"},
    {NULL, NULL},
};

/* Those of BART, mBART, Pegasus, M2M-100, Marian, Whisper. */
const struct spw_key_name spw_config_bart_names[] = {
    {"hidden_size", "d_model"},
    {"intermediate_size", "encoder_ffn_dim"},
    {"decoder_ffn_dim", "decoder_ffn_dim"},
    {"num_attention_heads", "encoder_attention_heads"},
    {"decoder_attention_heads", "decoder_attention_heads"},
    {"num_hidden_layers", "encoder_layers"},
    {"num_decoder_layers", "decoder_layers"},
    {"vocab_size", "vocab_size"},
    {"decoder_vocab_size", "decoder_vocab_size"},
    {"share_encoder_decoder_embeddings", "share_encoder_decoder_embeddings"},
    {"max_position_embeddings", "max_position_embeddings"},
    {"max_source_positions", "max_source_positions"},
    {"max_target_positions", "max_target_positions"},
    {"num_mel_bins", "num_mel_bins"},
    {"activation_function", "activation_function"},
    {"scale_embedding", "scale_embedding"},
    {"tie_word_embeddings", "tie_word_embeddings"},
    {"decoder_start_token_id", "decoder_start_token_id"},
    {"bos_token_id", "bos_token_id"},
    {"eos_token_id", "eos_token_id"},
    {"pad_token_id", "pad_token_id"},
    {"cache_implementation", "cache_implementation"},
    {"quantization_config", "quantization_config"},
    {"dtype", "dtype"},
    {"torch_dtype", "torch_dtype"},
    {NULL, NULL},
};

int spw_config_count_stacks(struct spw_model_config *out, const struct spw_config_source *source)
{
    uint32_t n_decoder = out->n_layers;
    if (!source->family->encodes)
        return 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, &source->text, "num_decoder_layers", 1, MAX_LAYERS / 4,
                        &n_decoder));
    if (out->n_layers > MAX_LAYERS / 4)
        return spw_keys_refuse(&source->text, "num_hidden_layers", "at most 1024 layers");
    out->n_source_layers = 2 * out->n_layers;
    out->n_layers = out->n_source_layers + 2 * n_decoder;
    return 0;
}

void spw_config_set_stacks(struct spw_model_config *out)
{
    for (uint32_t l = 0; l < out->n_layers && out->n_source_layers; l++) {
        const bool second = l % 2;
        out->has_mlp[l] = second;
        if (l < out->n_source_layers || second)
            out->layer_kinds[l] =
                (uint8_t)(l < out->n_source_layers ? SPW_LAYER_SOURCE : SPW_LAYER_CROSS);
    }
}

/* "relu", "gelu", or the same after "gated-". */
static int read_mlp(struct spw_model_config *out, const struct spw_config_source *source)
{
    static const char gated[] = "gated-";
    const char *key = "feed_forward_proj", *name = source->family->activation;
    SPW_TRY(spw_keys_string(&source->text, key, &name));
    out->plain_mlp = strncmp(name, gated, sizeof gated - 1) != 0;
    out->act = spw_config_activation(out->plain_mlp ? name : name + sizeof gated - 1);
    if (!out->plain_mlp && out->act == SPW_ACT_GELU_ERF)
        out->act = SPW_ACT_GELU_TANH; /* transformers means gelu_new by it */
    return out->act != SPW_ACT_COUNT
               ? 0
               : spw_keys_refuse(&source->text, key, "relu, gelu, silu, or gated- and one of them");
}

/* The heads and the mlp of the decoder are those of the encoder. */
static int check_decoder(const struct spw_model_config *out, const struct spw_keys *keys)
{
    const struct {
        const char *key;
        uint32_t same;
    } sizes[] = {{"decoder_attention_heads", out->n_heads}, {"decoder_ffn_dim", out->intermediate}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n = sizes[i].same;
        char expected[64];
        SPW_TRY(spw_keys_u32(keys, sizes[i].key, 1, MAX_WIDTH, &n));
        snprintf(expected, sizeof expected, "%u, as the encoder has", sizes[i].same);
        if (n != sizes[i].same)
            return spw_keys_refuse(keys, sizes[i].key, expected);
    }
    return 0;
}

/* Each stack has its own positions, and a sequence has the tokens of both. M2M-100 numbers its
 * positions from the one after pad_token_id on. */
static int count_positions(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    uint32_t pad = 1;
    if (source->family->n_mels) {
        out->n_mels = source->family->n_mels;
        out->n_audio = source->family->n_audio;
        SPW_TRY(spw_keys_u32(keys, "num_mel_bins", 1, 1024, &out->n_mels));
        SPW_TRY(spw_keys_u32(keys, "max_source_positions", 1, 1 << 20, &out->n_audio));
        SPW_TRY(
            spw_keys_u64(keys, "max_target_positions", 1, MAX_POSITIONS / 2, &out->max_positions));
    }
    if (out->positions == SPW_POSITIONS_STORED)
        out->stack_positions = out->max_positions;
    out->max_positions += out->n_mels ? out->n_audio : out->max_positions;
    if (out->positions != SPW_POSITIONS_SINES_F32)
        return 0;
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "pad_token_id", 0, out->vocab - 1, &pad));
    out->position_offset = pad + 1;
    return 0;
}

static int read_vocabularies(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    bool shared = true;
    out->source_vocab = out->vocab;
    if (source->family->may_split_rows)
        SPW_TRY(spw_keys_bool(keys, "share_encoder_decoder_embeddings", &shared));
    out->own_source_rows = !shared;
    return shared
               ? 0
               : SPW_OR_NULL(spw_keys_u32, keys, "decoder_vocab_size", 1, MAX_VOCAB, &out->vocab);
}

int spw_config_read_encoder(struct spw_model_config *out, const struct spw_config_source *source)
{
    const struct spw_keys *keys = &source->text;
    const uint32_t most_distance = 1u << 20;
    bool scaled = out->tied_embeddings;
    if (!source->family->encodes)
        return 0;
    SPW_TRY(read_vocabularies(out, source));
    SPW_TRY(count_positions(out, source));
    out->no_k_bias = source->family->no_k_bias;
    SPW_TRY(check_decoder(out, keys));
    if (!source->family->counts_distances)
        return 0;
    out->own_buckets = source->family->own_buckets;
    out->n_buckets = 32;
    out->most_distance = 128;
    SPW_TRY(read_mlp(out, source));
    SPW_TRY(spw_keys_u32(keys, "relative_attention_num_buckets", 4, 4096, &out->n_buckets));
    SPW_TRY(spw_keys_u32(keys, "relative_attention_max_distance", out->n_buckets / 2 + 1,
                         most_distance, &out->most_distance));
    if (out->n_buckets % 4)
        return spw_keys_refuse(keys, "relative_attention_num_buckets", "a multiple of 4");
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, keys, "scale_decoder_outputs", &scaled));
    out->attention_scale = 1;
    out->logit_divisor =
        scaled && source->family->scales_tied ? (float)sqrt((double)out->hidden) : 1;
    out->tied_embeddings = true; /* a matrix of its own counts, if the file has one */
    return 0;
}
