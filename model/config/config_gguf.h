/* The config of a GGUF file. Its keys say most of what config.json says; the tensors say the rest,
 * and what neither says follows from a rule. Inside model/ only. */
#ifndef SPW_MODEL_CONFIG_CONFIG_GGUF_H
#define SPW_MODEL_CONFIG_CONFIG_GGUF_H

#include "model/config/config.h"
#include "model/config/config_families.h"
#include "model/config/config_json.h"

/* An architecture, general.architecture. */
struct spw_gguf_architecture {
    const char *name;
    const char *model_type; /* of config.json */
    bool interleaved_qk;    /* as in struct spw_model_config */
    bool sandwich;          /* four norms a layer */
    bool joined;  /* one tensor for q, k and v, and one for gate and up; a window for all layers */
    bool experts; /* its layers have experts */
    bool windows; /* some of its layers have a sliding window */
    bool no_window, usual_window; /* without the key sliding_window no layer has a window, or those
                                     of all models have one of the same size. Both false: the key
                                     is required */
    uint32_t window_pattern;      /* every window_pattern-th layer is full; 0: as in the family */
    double local_theta;           /* rope.freq_base_swa, if no key says it; 0: rope.freq_base */
    bool post_attention_norm;     /* a layer's second norm is called so, not ffn_norm */
    bool joined_experts;          /* one tensor for gate and up of all experts of a layer */
    bool merged_tokens;           /* tokenizers with U+2581 have merges, not scores */
    bool greedy_tokens;           /* added tokens of such tokenizers take white space behind them */
    bool plain_start;             /* no space stands before a text, if no key says it */
    bool glm_norms;               /* four norms a layer, with the names that GLM-4 gives them */
    bool late_norms;              /* two norms a layer, after its halves */
    bool no_head;                 /* the embedding is always the head, too */
    const char *window_rule;      /* a sentence for struct spw_model_config; NULL: none */
    uint32_t chunk;               /* of layers with rope, which no key says; 0: they have none */
    uint32_t bare_experts;        /* models with so many experts have no norm on q and k */
    uint32_t scores;              /* expert_gating_func; 0: 1, a softmax */
    enum spw_family_rule renormalizes; /* weights of experts, as other programs read the files */
    /* Queries are scaled by the width of a head, in the model with so many layers by hidden /
     * heads. 0: in no model. */
    uint32_t wide_scale_layers;
    bool tiled;      /* as in struct spw_mixer_config */
    bool mamba_keys; /* files may have keys of layers that the model does not have: ssm.*, and the
                        width of shared experts */
    const char *end; /* a token that ends an answer beside the usual ones; NULL: none */
    /* The rest is of files that Ollama has made. */
    const char *scaling;   /* rope.scaling.type of a file that has a factor only */
    bool sections;         /* positions of images have several numbers; those of a text have one */
    const char *other_pre; /* a byte-level tokenizer.ggml.pre, if the file says "default" or none */
    const char *pre_token; /* other_pre is of vocabularies with this token; NULL: of all */
};
/* experts, windows: the file says that there are some; an architecture may have two kinds of
 * models. NULL: not supported. */
const struct spw_gguf_architecture *spw_gguf_architecture_find(const char *name, bool experts,
                                                               bool windows);
/* The architecture that the model of a folder has in GGUF; NULL: none. */
const struct spw_gguf_architecture *spw_gguf_architecture_of(const struct spw_model_config *c);
struct spw_config_gguf {
    const char *file; /* for messages */
    const struct spw_gguf_architecture *architecture;
    json_t *keys;         /* "NAME.*" without the prefix */
    json_t *tokenizer;    /* "tokenizer.ggml.*"; eos_token_id may be a list */
    uint32_t vocab;       /* rows of the embedding */
    uint32_t input_vocab; /* rows of the table of numbers of each layer; 0: none */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, head, rope_factors,
        long_factors; /* the file has such tensors */
    bool choice_bias; /* as in struct spw_experts_config */
    /* Of layers with a state: biases of the products, and of the convolution; a norm of their
     * result; no tensor for the gate. */
    bool state_bias, conv_bias, gate_norm, gate_joined;
    json_t *blocks;                 /* a letter for each layer, as in config_blocks.c */
    uint32_t mlp_width;             /* rows of a tensor of an mlp; 0: there is none */
    bool v_is_k;                    /* layers with keys have no tensor for values */
    bool more_eos;                  /* eos_token_id has tokens that were found by their text */
    bool default_tokens;            /* bos or eos are those of SentencePiece */
    bool other_parts;               /* the file has tensors for images or sound */
    bool gated_stacks, own_buckets; /* of T5: see config_families.h */
    uint32_t expert_width;          /* rows of a tensor of experts; 0: there is none */
};

/* Fills `out` as spw_config_parse does. */
int spw_config_from_gguf(struct spw_model_config *out, const struct spw_config_gguf *facts,
                         struct spw_error *err);

#endif
