/* What a model is: one plain descriptor that all layers run from. spw_config_parse reads
 * config.json and generation_config.json of a Hugging Face folder into it. A family is a row of
 * facts in config_families.c.
 *
 * spw_config_parse fills `out`, which owns its arrays until spw_config_free;
 * after a failure there is nothing to free. Every size has a limit, so no product of two sizes
 * overflows 64 bits. Errors: -EINVAL (the text names file, key, what was found and what was
 * expected), -ENOMEM. Pure; any thread. */
#ifndef SPW_MODEL_CONFIG_CONFIG_H
#define SPW_MODEL_CONFIG_CONFIG_H

#include "model/kinds.h"
#include "model/config/rope.h"
#include "quant/layer_kind.h"
#include "base/base.h"
#include "base/dtype.h"
#include "base/token_rules.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define SPW_CONFIG_MAX_EOS 16
#define SPW_CONFIG_MAX_RULES 8
/* Positions become floats: below this limit every position has a float of its own. */
#define SPW_CONFIG_MOST_POSITIONS ((uint64_t)1 << 24)

/* The tensor of SPW_ROPE_FACTORS. */
#define SPW_ROPE_FACTORS_NAME "model.rope_freqs.weight"
/* Those of SPW_ROPE_LONG, where a file stores them as tensors. */
#define SPW_ROPE_SHORT_NAME "model.rope_factors_short.weight"
#define SPW_ROPE_LONG_NAME "model.rope_factors_long.weight"

/* Layers whose mlp is a choice among experts. */
struct spw_experts_config {
    uint32_t n;            /* of a layer; 0: no layer has experts */
    uint32_t n_kept;       /* of each row */
    uint32_t intermediate; /* of an expert */
    uint32_t latent; /* numbers of a row that experts read and give, between two products of the
                        layer; 0: they read the row */
    uint32_t shared_intermediate; /* of one more expert, which every row has; 0: there is none */
    bool beside; /* the mlp of a layer without experts is beside the experts, with norms of its own
                  */
    bool shared_gate;     /* its output is multiplied by a sigmoid of the row */
    bool biases;          /* of the router, and of the products of experts */
    bool choice_bias;     /* numbers that are added to scores, only for the choice */
    bool transposed;      /* a file's tensor for all experts has a column for each output; those of
                             gate and up alternate. The same for the biases */
    bool either_order;    /* such a tensor may also have a row for each output: its shape tells */
    bool halves;          /* in these tensors those of up follow those of gate */
    bool weighted_inputs; /* an expert's weight multiplies its input, not its output */
    struct spw_route route;
};

/* Layers with a state. Sizes of the recurrence: `heads` value heads of value_dim channels, and
 * key_heads key heads of key_dim channels; several value heads share a key head.
 *
 *   kind     heads           key_heads      key_dim       value_dim     conv_channels
 *   CONV     0               0              0             0             hidden
 *   DELTA    value heads     key heads      key head dim  value head    2 keys + values
 *   SSD      heads           groups         state size    head dim      values + 2 keys
 *   SCAN     1               1              state size    inner size    inner size
 *   LRU      1               1              1             width         width
 *
 * A row of the first product of the layer holds, side by side:
 *
 *   CONV     B [hidden] | C [hidden] | x [hidden]
 *   DELTA    q | k | v | z (the gate) | b | a; grouped: [q k v z] of a key head after the other,
 * then [b a] of a key head after the other SSD      z | x (the values) | B (keys) | C (queries) |
 * dt SCAN     x | z LRU      x | y (the gate) */
enum { SPW_SSD_PARTS = 5 };
struct spw_mixer_config {
    enum spw_mixer_kind kind;
    uint32_t heads, key_heads, key_dim, value_dim;
    uint32_t conv_channels, conv_width; /* taps, the newest input included */
    uint32_t dt_rank;                   /* SCAN: of dt before its second product */
    uint32_t gate_blocks;               /* LRU: blocks of the two gates, of width / blocks */
    bool conv_bias, in_bias, out_bias;
    enum spw_activation act; /* of the convolution */
    /* SSD: the parts of a row of the first product, z, x, B, C and dt, are multiplied by these; 1:
     * they are not. in_scale is in them: biases are divided by it. */
    float in_scales[SPW_SSD_PARTS], in_scale;
    bool grouped;            /* DELTA: see above */
    bool grouped_rates;      /* DELTA: [b a] of a key head after the other, whatever the rest is */
    bool tiled;              /* DELTA: value head h uses key head h % key_heads, not h / (heads /
                                key_heads) */
    bool gate_norm;          /* DELTA always: the output is normed; SSD: over heads * value_dim /
                                key_heads channels */
    bool norm_first;         /* the norm is before the gate, not after it. DELTA always */
    enum spw_norm_kind norm; /* of that norm */
    float eps;
};

/* Keys and values of a layer. Its KV heads are divided into slices, and a tile (quant/tile.h) has
 * the heads of one slice. Slices of all kinds have about the same bytes, so frames of one size fit
 * them all. One slice is the rule; a kind whose tokens take more bytes than those of another kind
 * has several. What a kind has less than the widest one stays unused in its frames, and moves with
 * them. Attention is called for each slice, with the heads of q that read it: heads do not depend
 * on each other, so slices change no bit. */
struct spw_kv_shape {
    uint32_t n_heads;  /* divides the number of heads of q */
    uint32_t head_dim; /* of K; even; heads of q have it, too */
    uint32_t v_dim;    /* channels of a V head. Tiles take any (quant/tile.h); attention takes
                          head_dim only, which all models have */
    uint32_t n_slices; /* divides n_heads; at most SPW_MOST_SLICES */
};

/* In a model with an encoder a sequence begins with its source: token t of the source is the number
 * below zero spw_source_token(t). Twice gives t again. */
static inline int32_t spw_source_token(int32_t t)
{
    return ~t;
}
/* The vocabulary's number of a token of a sequence. */
static inline int32_t spw_plain_token(int32_t t)
{
    return t < 0 ? spw_source_token(t) : t;
}
/* How many of the tokens are those of the source. */
static inline uint64_t spw_source_length(const int32_t *tokens, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && tokens[i] < 0)
        i++;
    return i;
}

/* What is added to the rows of the embedding: a row for each position in its stack. */
enum spw_position_kind {
    SPW_POSITIONS_NONE,
    SPW_POSITIONS_STORED, /* rows of a table in the files */
    SPW_POSITIONS_SINES,  /* sin(p / 10000^(2 i / hidden)) for each i, then the cosines; files may
                             store the table. Vaswani et al. 2017, section 3.5 */
    SPW_POSITIONS_SINES_F32, /* the same with 2 i / (hidden - 2), in f32, whatever a file stores */
};

enum { SPW_MOST_SLICES = 4 };
#define SPW_NO_SLICE UINT32_MAX

/* What adds to the residual stream. */
enum spw_branch { SPW_BRANCH_ATTENTION, SPW_BRANCH_STATE, SPW_BRANCH_MLP, SPW_BRANCHES };

/* What generation_config.json of a model for speech says of the tokens that begin an answer. */
enum { SPW_SPEECH_MOST_START = 8 };
struct spw_speech_config {
    int32_t *languages; /* owned: the tokens of languages, one of which follows the first token */
    uint32_t n_languages;
    /* forced_decoder_ids: the tokens that follow the first one; -1: the language of the audio */
    int32_t start[SPW_SPEECH_MOST_START];
    uint32_t n_start;
    /* The token behind which an answer has no times; those after it are times, 0.02 seconds apart.
     * -1: the model has no times */
    int32_t no_timestamps;
    uint64_t max_initial_timestamp_index; /* as in struct spw_token_rules */
};

/* What a model with an encoder gets and does when it summarizes: config.json's
 * task_specific_params.summarization, and else what counts for all answers. */
struct spw_summary_config {
    char prefix[256]; /* comes before each text; "": nothing */
    struct spw_search_rules search;
    struct spw_token_rules rules; /* the numbers; the lists are those of all answers */
};

struct spw_model_config {
    char model_type[32]; /* the decoder's own: "gemma3_text" also for a "gemma3" folder */
    const char *wrapper; /* model_type of the folder, of which only the text model is used; NULL:
                            the folder is the text model */
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t n_heads;
    /* By layer kind; the same twice in most families. n_heads * head_dim need not be hidden */
    struct spw_kv_shape kv[SPW_LAYER_KINDS];
    uint32_t vocab;
    uint64_t max_positions;
    uint64_t reach; /* positions that a sequence may have; scaled rope can allow more than
                       max_positions */
    float rms_eps;
    enum spw_norm_kind norm;
    float post_eps;     /* of norms behind attention and the mlp; rms_eps in most families */
    bool norm_plus_one; /* files store the weights of norms less 1, */
    bool plain_last;    /* but not those of the last norm */
    bool norm_bias;     /* norms have biases, those of q and k excepted */
    bool norm_bare;     /* norms have neither weights nor biases */
    enum spw_activation act;
    bool qkv_bias;
    bool o_bias;
    bool mlp_bias;
    bool head_bias;          /* logits have biases */
    bool qk_norm;            /* a norm on q and k, after projection, before rope: over head_dim, */
    bool qk_norm_whole;      /* or over all heads together */
    bool qk_norm_by_head;    /* each head has weights of its own */
    bool qk_norm_bias;       /* these norms have biases */
    bool qk_norm_after_rope; /* these norms, over head_dim, are after rope */
    float q_norm_scale;      /* these norms, over head_dim, have no weights: q is multiplied by this
                                number. 0: they have weights */
    bool qk_norm_last;   /* a norm over head_dim without weights, after rope, in layers with rope */
    bool v_norm;         /* a norm without weights on v, over head_dim */
    bool interleaved_qk; /* rows of q and k come in another order: channels i and i + head_dim / 2
                            of a head follow each other, for each i */
    bool sandwich;       /* four norms a layer: also after attention and after the mlp */
    bool late_norms;     /* two norms a layer: after attention and after the mlp only */
    bool post_norms;     /* two norms a layer: of the rows after attention and after the mlp have
                            added to them; and no last norm */
    bool parallel;       /* one norm a layer: its output is what attention and the mlp read */
    bool plain_mlp;      /* act(x up^T) down^T: there is no gate, nor have experts one */
    bool tied_embeddings;    /* the embedding matrix is also the output matrix, unless the file has
                                a matrix for each */
    bool fp8_scaled;         /* FP8 matrices come with factors, "weight_scale_inv" */
    uint32_t fp8_block[2];   /* rows and columns that share a factor; 0: the whole matrix */
    float attention_scale;   /* scores = q.k * attention_scale */
    float attention_softcap; /* 0: none */
    float logit_softcap;     /* 0: none; else logits = cap * tanh(logits / cap) */
    bool extra_logits;       /* each head has one more logit, which has no value */
    enum spw_attention_gate attention_gate;
    float qkv_limit; /* numbers of q, k and v are cut to [-limit, limit]; 0: they are not */
    struct spw_query_growth query_growth;
    bool grows_unrotated; /* only in layers without rope */
    enum spw_rope_rounding rope_rounding;
    float branch_scales[SPW_BRANCHES]; /* what a branch of a layer adds is multiplied by it; 1: none
                                        */
    /* What attention, or the mlp, gets is multiplied by it, above 0; 1: none. It is in
     * attention_scale, in the weights of the norm before the mlp and in biases; in branch_scales,
     * too, so that all products take the row as the norm left it. */
    float attention_in_scale, mlp_in_scale;
    float logit_divisor;   /* 1: none */
    bool layer_scales;     /* the rows that leave a layer are multiplied by a number of the file */
    float embedding_scale; /* 1: none. Unrounded: round it to the compute dtype before use */
    bool normed_rows;      /* a norm without weights on the rows of the embedding */
    bool embedding_norm;   /* a norm on these rows, with their positions; each stack has its own */
    enum spw_position_kind positions;
    uint32_t position_offset; /* the row of the first position */
    enum spw_dtype dtype;     /* what the file says the weights are; AUTO when it says nothing */
    uint8_t *layer_kinds;     /* owned: n_layers of enum spw_layer_kind */
    /* The kind of the layers that see every key, and the kind of those with a window: a model has
     * one of each at most. */
    enum spw_layer_kind full_kind, window_kind;
    /* The layer whose keys and values a layer reads: itself, or an earlier one. Owned, [n_layers].
     */
    uint32_t *kv_layers;
    /* A model with an encoder; 0: none. The source, which are the first tokens of a sequence
     * (spw_source_token), passes the first n_source_layers layers, the others the rest. A
     * block of such a model is two layers:
     *
     *   encoder   2 i       keys and values of the source
     *             2 i + 1   queries of the source, the mlp
     *   decoder   2 i       attention of the other tokens; keys and values of the source that has
     *                       passed the encoder, in front of their own in the same tiles
     *             2 i + 1   CROSS: queries over those of the source, the mlp */
    uint32_t n_source_layers;
    uint32_t source_vocab; /* of the source, which may have an embedding of its own */
    bool own_source_rows;
    int32_t start;            /* the token after the source */
    uint64_t stack_positions; /* the most tokens of the source, and of the others; 0: no limit */
    /* The source is audio: numbers of a row of its spectrogram, SPW_AUDIO_FRAMES rows for each of
     * its n_audio tokens. n_mels 0: the source is text. */
    uint32_t n_mels, n_audio;
    struct spw_speech_config speech;
    bool no_k_bias;         /* qkv_bias: of q and v only */
    uint32_t n_buckets;     /* of distances, each with a number for each head that is added to its
                               scores; 0: none. Not in CROSS layers */
    uint32_t most_distance; /* farther ones share a bucket */
    bool own_buckets;       /* each layer has its own numbers; else the first one of a stack has */
    /* The slices that the cache stores: those with keys and values of the first layer, then those
     * of the second one, and so on; then a slice for each layer with a state. Owned: [n_layers],
     * the first slice that a layer reads; and the layer and the kind of each slice. */
    uint32_t n_slices, *first_slices, *slice_layers;
    uint8_t *slice_kinds;
    bool wide_readers;            /* their mlp is twice as wide */
    bool v_is_k[SPW_LAYER_KINDS]; /* no matrix for v: v is what the matrix of k gives */
    /* Numbers of each row that each layer gets beside the hidden state, from a table of their own;
     * 0: none. input_vocab: rows of the table. */
    uint32_t layer_inputs, input_vocab;
    uint32_t n_more_layers; /* that files may have after the last one; they are not used */
    /* Layers after the last one predict further tokens (MTP), and the first of them can propose
     * drafts: spw_config_add_mtp makes it the last layer, `mtp`. mtp_experts: it has experts.
     * mtp_rotates: its queries and keys are rotated. mtp_beside: the model's own files have none,
     * but a file beside them may (struct spw_source_ops). */
    bool may_add_mtp, mtp_experts, mtp_rotates, mtp, mtp_beside;
    bool kinds_listed; /* layer_types lists the kinds; else they follow the family's rule */
    struct spw_experts_config experts;
    struct spw_mixer_config mixer; /* of the layers with a state */
    /* Owned, [n_layers]: the slice of the layer's state, SPW_NO_SLICE: it has none. A layer of any
     * kind may have one: it then adds what attention and the state give. */
    uint32_t *state_slices;
    bool *rotates;     /* owned: [n_layers], whether q and k of the layer are rotated */
    bool *has_experts; /* owned: [n_layers] */
    bool *has_mlp;     /* owned: [n_layers]; false: the layer is a mixer alone */
    uint32_t window;   /* keys a sliding layer sees, or the chunk of chunked layers; 0: no layer
                          is of these kinds. A model has one of the two kinds at most */
    /* The cache that the files ask for, cut to fit and made printable; "": none. */
    char cache_implementation[32];
    bool cache_by_generation; /* asked by generation_config.json; else by config.json */
    struct spw_rope_config
        rope[SPW_LAYER_KINDS]; /* by layer kind; the same for all in most families */
    float *rope_factors;       /* owned: what rope[] has of longrope */
    int32_t eos[SPW_CONFIG_MAX_EOS];
    uint32_t n_eos;
    int32_t bos;                               /* -1: none */
    struct spw_token_rules token_rules;        /* of all answers; lists are in rule_tokens */
    struct spw_search_rules search;            /* of a model with an encoder */
    struct spw_summary_config summary;         /* the same */
    int32_t *rule_tokens[SPW_TOKEN_LISTS + 1]; /* owned; the last one: of bad_words */
    /* Facts that the files do not store and that follow from a rule, and what is left out, as
     * sentences. */
    const char *rules[SPW_CONFIG_MAX_RULES];
    uint32_t n_rules;
};

/* Both files as text in memory. The names are for messages. */
struct spw_config_text {
    const char *config;
    size_t config_bytes;
    const char *config_name; /* NULL: "config.json" */
    const char *generation;  /* NULL: there is none */
    size_t generation_bytes;
    const char *generation_name; /* NULL: "generation_config.json" */
};

int spw_config_parse(struct spw_model_config *out, const struct spw_config_text *text,
                     struct spw_error *err);
void spw_config_free(struct spw_model_config *config);
/* -EINVAL: a preprocessor_config.json that asks for another spectrogram than spw_audio_mel_config
 * (model/audio/audio.h) makes for this model. -ENOMEM. */
int spw_config_check_audio(const struct spw_model_config *c, const char *text, size_t bytes,
                           const char *name, struct spw_error *err);
/* Counts the layer that predicts further tokens as the last layer. It attends to every key. Its
 * input is a product of the embedding of a token with what the last norm gives of the token before
 * (spw_forward_join of model/forward.h). -EINVAL: files of this family have no such layer. */
int spw_config_add_mtp(struct spw_model_config *config, struct spw_error *err);
/* The layers of the model itself. */
static inline uint32_t spw_config_main_layers(const struct spw_model_config *c)
{
    return c->n_layers - c->mtp;
}
static inline bool spw_config_is_mtp(const struct spw_model_config *c, uint32_t layer)
{
    return c->mtp && layer + 1 == c->n_layers;
}
/* Whether the layer attends to keys and values. */
static inline bool spw_config_attends(const struct spw_model_config *c, uint32_t layer)
{
    return spw_layer_has_tiles((enum spw_layer_kind)c->layer_kinds[layer]);
}
static inline bool spw_config_has_state(const struct spw_model_config *c, uint32_t layer)
{
    return c->state_slices[layer] != SPW_NO_SLICE;
}
/* Whether rows of the layer see other rows. */
static inline bool spw_config_mixes(const struct spw_model_config *c, uint32_t layer)
{
    return spw_config_attends(c, layer) || spw_config_has_state(c, layer) ||
           layer < c->n_source_layers;
}
/* Channels of the output of the recurrence. */
static inline uint64_t spw_mixer_width(const struct spw_mixer_config *m)
{
    return m->kind == SPW_MIXER_CONV ? m->conv_channels : (uint64_t)m->heads * m->value_dim;
}
/* Numbers of a row of what the gates of SCAN and LRU are made of: SCAN dt in full width, then dt, B
 * and C as the first product gives them; LRU the gate of the input and that of the decay. */
static inline uint64_t spw_mixer_rates_width(const struct spw_mixer_config *m)
{
    const uint64_t v = spw_mixer_width(m);
    return m->kind == SPW_MIXER_SCAN  ? v + m->dt_rank + 2 * (uint64_t)m->key_dim
           : m->kind == SPW_MIXER_LRU ? 2 * v
                                      : 0;
}
/* Numbers of a row of the first product. */
static inline uint64_t spw_mixer_in_width(const struct spw_mixer_config *m)
{
    const uint64_t v = spw_mixer_width(m);
    switch (m->kind) {
    case SPW_MIXER_CONV:
        return 3 * v;
    case SPW_MIXER_DELTA:
        return m->conv_channels + v + 2 * (uint64_t)m->heads;
    case SPW_MIXER_SSD:
        return v + m->conv_channels + m->heads;
    case SPW_MIXER_SCAN:
    case SPW_MIXER_LRU:
        return 2 * v;
    case SPW_MIXER_NONE:
        break;
    }
    return 0;
}
/* The state of one layer of one sequence, in floats: first the newest conv_width - 1 inputs of each
 * channel of the convolution, [conv_channels][conv_width - 1], the oldest first; then, from
 * spw_mixer_conv_floats on, the state of the recurrence, [heads][key_dim][value_dim]. */
static inline uint64_t spw_mixer_conv_floats(const struct spw_mixer_config *m)
{
    return spw_align_up((uint64_t)m->conv_channels * (m->conv_width - 1), 16);
}
static inline uint64_t spw_mixer_state_floats(const struct spw_mixer_config *m)
{
    return spw_mixer_conv_floats(m) + (uint64_t)m->heads * m->key_dim * m->value_dim;
}
static inline uint32_t spw_config_vocab(const struct spw_model_config *c, bool source)
{
    return source ? c->source_vocab : c->vocab;
}
/* The most tokens of a source; a source that is audio has so many. */
static inline uint64_t spw_config_most_source(const struct spw_model_config *c)
{
    return c->n_mels ? c->n_audio : c->stack_positions;
}
/* The most tokens of a sequence with so many tokens in its source; 0: no sequence has that many. */
static inline uint64_t spw_config_most_tokens(const struct spw_model_config *c, uint64_t n_source)
{
    const uint64_t most = spw_config_most_source(c);
    const bool fits = c->n_mels ? n_source == most : n_source <= most;
    return !c->stack_positions ? UINT64_MAX : fits ? n_source + c->stack_positions : 0;
}
/* The encoder of Whisper begins with two convolutions. Each reads SPW_CONV_TAPS neighbouring rows;
 * the second one has a step of SPW_AUDIO_FRAMES rows. A row of the encoder comes from three rows of
 * the first convolution, and each of these from three rows of the spectrogram. So the input of a
 * row of the encoder is nine rows of the spectrogram, side by side. */
enum { SPW_CONV_TAPS = 3, SPW_AUDIO_FRAMES = 2 };
/* Numbers that come with a row of the embedding. */
static inline uint64_t spw_config_inputs_width(const struct spw_model_config *c)
{
    return c->n_mels ? (uint64_t)SPW_CONV_TAPS * SPW_CONV_TAPS * c->n_mels
                     : (uint64_t)c->n_layers * c->layer_inputs;
}
/* Of a layer. */
static inline const struct spw_kv_shape *spw_config_kv(const struct spw_model_config *c,
                                                       uint32_t layer)
{
    return &c->kv[c->layer_kinds[layer]];
}
/* KV heads that share a tile. */
static inline uint32_t spw_config_slice_heads(const struct spw_kv_shape *kv)
{
    return kv->n_heads / kv->n_slices;
}
/* The most slices that a layer has. */
static inline uint32_t spw_config_most_slices(const struct spw_model_config *c)
{
    uint32_t most = 1;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        most = c->kv[k].n_slices > most ? c->kv[k].n_slices : most;
    return most;
}
/* Slices that a layer reads, from first_slices[layer] on. */
static inline uint32_t spw_config_layer_slices(const struct spw_model_config *c, uint32_t layer)
{
    return spw_config_attends(c, layer) ? spw_config_kv(c, layer)->n_slices : 0;
}
/* Numbers of a row in the queries of a layer, and in its keys, or its values. */
static inline uint64_t spw_config_q_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint64_t)c->n_heads * spw_config_kv(c, layer)->head_dim;
}
/* Numbers of a row of what comes with the gates of attention: q and the gate of each head, or the
 * gates; 0: there are none. */
static inline uint64_t spw_config_gate_width(const struct spw_model_config *c, uint32_t layer)
{
    const uint64_t n = c->attention_gate == SPW_ATTENTION_GATE_IN_Q ? 2 : 1;
    return c->attention_gate == SPW_ATTENTION_PLAIN ? 0 : n * spw_config_q_width(c, layer);
}
static inline uint64_t spw_config_kv_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint64_t)spw_config_kv(c, layer)->n_heads * spw_config_kv(c, layer)->head_dim;
}
static inline bool spw_config_stores_kv(const struct spw_model_config *c, uint32_t layer)
{
    return c->kv_layers[layer] == layer;
}
/* Layers that read the keys and values of another layer. */
static inline uint32_t spw_config_n_readers(const struct spw_model_config *c)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->n_layers; l++)
        n += !spw_config_stores_kv(c, l);
    return n;
}
/* Whether rows of the source, or the others, have anything to compute in a layer. */
static inline bool spw_config_passes(const struct spw_model_config *c, uint32_t layer, bool source)
{
    if (layer < c->n_source_layers || !source)
        return source == (layer < c->n_source_layers);
    return !spw_layer_sees_source((enum spw_layer_kind)c->layer_kinds[layer]);
}
/* Whether a layer makes keys and values of rows of the source, without queries for them. */
static inline bool spw_config_keeps_source(const struct spw_model_config *c, uint32_t layer)
{
    return c->n_source_layers && layer % 2 == 0;
}
/* Whether it attends over the source or over tiles: it has matrices for q and for its result. */
static inline bool spw_config_has_queries(const struct spw_model_config *c, uint32_t layer)
{
    return layer < c->n_source_layers ? layer % 2 : spw_config_attends(c, layer);
}
/* The kind of the layer whose tiles layers of this kind read. */
static inline enum spw_layer_kind spw_config_tile_kind(const struct spw_model_config *c,
                                                       enum spw_layer_kind kind)
{
    return spw_layer_sees_source(kind) ? c->full_kind : kind;
}
/* Numbers of a row of what the products of a layer give: q, k and v side by side, or fewer. */
static inline uint64_t spw_config_qkv_width(const struct spw_model_config *c, uint32_t layer)
{
    const bool stores = spw_config_attends(c, layer) && spw_config_stores_kv(c, layer);
    uint64_t n = !stores ? 0 : c->v_is_k[c->layer_kinds[layer]] ? 1 : 2;
    return spw_config_q_width(c, layer) + n * spw_config_kv_width(c, layer);
}
/* The last layer that reads the keys and values of the layer, which stores them. */
uint32_t spw_config_last_reader(const struct spw_model_config *c, uint32_t layer);
/* The most slices that hold the new tiles of one pass at the same time: those of the layer that the
 * pass is in, and of layers before it whose tiles wait for the layers that read them. Slices of
 * this kind, or of all kinds (SPW_LAYER_KINDS). */
uint32_t spw_config_n_growing(const struct spw_model_config *c, enum spw_layer_kind kind);
/* The width of the mlp of a layer without experts; 0: it has none. */
static inline uint64_t spw_config_mlp_width(const struct spw_model_config *c, uint32_t layer)
{
    return !c->has_mlp[layer] ? 0
                              : (uint64_t)c->intermediate *
                                    (c->wide_readers && !spw_config_stores_kv(c, layer) ? 2 : 1);
}
/* Numbers of a row that experts read, and of one that they give. */
static inline uint32_t spw_config_expert_row(const struct spw_model_config *c)
{
    return c->experts.latent ? c->experts.latent : c->hidden;
}
/* The number of layers with experts. */
uint32_t spw_expert_layers(const struct spw_model_config *config);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
