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

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define SPW_CONFIG_MAX_EOS 16
#define SPW_CONFIG_MAX_SUPPRESSED 128
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
    uint32_t n;                   /* of a layer; 0: no layer has experts */
    uint32_t n_kept;              /* of each row */
    uint32_t intermediate;        /* of an expert */
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

/* A part of the name of a tensor, from the number of its layer to its last point, or from the
 * prefix of the decoder. */
struct spw_tensor_name {
    const char *usual; /* NULL: the end of a list */
    const char *own;   /* what files of the family have in its place */
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

enum { SPW_MOST_SLICES = 4 };

struct spw_model_config {
    char model_type[32]; /* the decoder's own: "gemma3_text" also for a "gemma3" folder */
    const char *wrapper; /* model_type of the folder, of which only the text model is used; NULL:
                            the folder is the text model */
    const struct spw_tensor_name *names; /* NULL: all are usual */
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
    bool norm_plus_one; /* files store the weights of norms less 1 */
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
    bool qk_norm_last;   /* a norm over head_dim without weights, after rope, in layers with rope */
    bool v_norm;         /* a norm without weights on v, over head_dim */
    bool interleaved_qk; /* rows of q and k come in another order: channels i and i + head_dim / 2
                            of a head follow each other, for each i */
    bool sandwich;       /* four norms a layer: also after attention and after the mlp */
    bool late_norms;     /* two norms a layer: after attention and after the mlp only */
    bool parallel;       /* one norm a layer: its output is what attention and the mlp read */
    bool plain_mlp;      /* act(x up^T) down^T: there is no gate */
    bool tied_embeddings;    /* the embedding matrix is also the output matrix, unless the file has
                                a matrix for each */
    bool fp8_scaled;         /* FP8 matrices come with factors, "weight_scale_inv" */
    uint32_t fp8_block[2];   /* rows and columns that share a factor; 0: the whole matrix */
    float attention_scale;   /* scores = q.k * attention_scale */
    float attention_softcap; /* 0: none */
    float logit_softcap;     /* 0: none; else logits = cap * tanh(logits / cap) */
    bool extra_logits;       /* each head has one more logit, which has no value */
    float qkv_limit;         /* numbers of q, k and v are cut to [-limit, limit]; 0: they are not */
    struct spw_query_growth query_growth;
    bool grows_unrotated; /* only in layers without rope */
    enum spw_rope_rounding rope_rounding;
    float residual_scale;  /* what both halves of a layer add is multiplied by it; 1: none */
    float logit_divisor;   /* 1: none */
    bool layer_scales;     /* the rows that leave a layer are multiplied by a number of the file */
    float embedding_scale; /* 1: none. Unrounded: round it to the compute dtype before use */
    enum spw_dtype dtype;  /* what the file says the weights are; AUTO when it says nothing */
    uint8_t *layer_kinds;  /* owned: n_layers of enum spw_layer_kind */
    /* The kind of the layers that see every key, and the kind of those with a window: a model has
     * one of each at most. */
    enum spw_layer_kind full_kind, window_kind;
    /* Layers from n_kv_layers on store no keys and values: each reads those of an earlier layer of
     * its kind. kv_layers: owned, [n_layers], the layer whose keys and values a layer reads. */
    uint32_t n_kv_layers, *kv_layers;
    /* The slices that the cache stores: those of the first layer, then those of the second one, and
     * so on. Owned: [n_layers], the first slice that a layer reads; and the layer and the kind of
     * each slice. */
    uint32_t n_slices, *first_slices, *slice_layers;
    uint8_t *slice_kinds;
    bool wide_readers;            /* their mlp is twice as wide */
    bool v_is_k[SPW_LAYER_KINDS]; /* no matrix for v: v is what the matrix of k gives */
    /* Numbers of each row that each layer gets beside the hidden state, from a table of their own;
     * 0: none. input_vocab: rows of the table. */
    uint32_t layer_inputs, input_vocab;
    uint32_t n_more_layers; /* that files may have after the last one; they are not used */
    bool kinds_listed;      /* layer_types lists the kinds; else they follow the family's rule */
    struct spw_experts_config experts;
    bool *rotates;     /* owned: [n_layers], whether q and k of the layer are rotated */
    bool *has_experts; /* owned: [n_layers] */
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
    int32_t bos;                                   /* -1: none */
    int32_t suppressed[SPW_CONFIG_MAX_SUPPRESSED]; /* tokens that no answer has */
    uint32_t n_suppressed;
    /* Facts that the files do not store and that follow from a rule, as sentences. */
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
    return spw_config_kv(c, layer)->n_slices;
}
/* Numbers of a row in the queries of a layer, and in its keys, or its values. */
static inline uint64_t spw_config_q_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint64_t)c->n_heads * spw_config_kv(c, layer)->head_dim;
}
static inline uint64_t spw_config_kv_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint64_t)spw_config_kv(c, layer)->n_heads * spw_config_kv(c, layer)->head_dim;
}
static inline bool spw_config_stores_kv(const struct spw_model_config *c, uint32_t layer)
{
    return layer < c->n_kv_layers;
}
/* Numbers of a row of what the products of a layer give: q, k and v side by side, or fewer. */
static inline uint64_t spw_config_qkv_width(const struct spw_model_config *c, uint32_t layer)
{
    uint64_t n = !spw_config_stores_kv(c, layer) ? 0 : c->v_is_k[c->layer_kinds[layer]] ? 1 : 2;
    return spw_config_q_width(c, layer) + n * spw_config_kv_width(c, layer);
}
/* The last layer that reads the keys and values of the layer, which stores them. */
uint32_t spw_config_last_reader(const struct spw_model_config *c, uint32_t layer);
/* The most slices that hold the new tiles of one pass at the same time: those of the layer that the
 * pass is in, and of layers before it whose tiles wait for the layers that read them. Slices of
 * this kind, or of all kinds (SPW_LAYER_KINDS). */
uint32_t spw_config_n_growing(const struct spw_model_config *c, enum spw_layer_kind kind);
/* The width of the mlp of a layer without experts. */
static inline uint64_t spw_config_mlp_width(const struct spw_model_config *c, uint32_t layer)
{
    return (uint64_t)c->intermediate * (c->wide_readers && !spw_config_stores_kv(c, layer) ? 2 : 1);
}
/* The number of layers with experts. */
uint32_t spw_expert_layers(const struct spw_model_config *config);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
