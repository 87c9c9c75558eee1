/* The families: a row of facts for each. A new family is a new row; a new kind of fact
 * is a new member. Inside model/ only. */
#ifndef SPW_MODEL_CONFIG_CONFIG_FAMILIES_H
#define SPW_MODEL_CONFIG_CONFIG_FAMILIES_H

#include "model/config/config_rope.h"

/* How a yes-or-no property is decided. */
enum spw_family_rule {
    SPW_FAMILY_NEVER,
    SPW_FAMILY_ALWAYS,
    SPW_FAMILY_BY_KEY, /* attention_bias, mlp_bias or norm_topk_prob; false when absent, */
    SPW_FAMILY_UNLESS, /* or true when absent */
};

/* How the layer kinds are decided if layer_types does not list them. */
enum spw_window_rule {
    SPW_WINDOW_NEVER,  /* every layer is full; the list may have full layers only */
    SPW_WINDOW_ALL,    /* every layer slides, unless sliding_window is null; transformers ignores
                          a list, unless the family is `listed` */
    SPW_WINDOW_OPT_IN, /* use_sliding_window, from layer max_window_layers on */
    SPW_WINDOW_LATE,   /* from layer max_window_layers on, unless sliding_window is null */
    SPW_WINDOW_OPT_IN_ALL,  /* use_sliding_window */
    SPW_WINDOW_OPT_IN_EVEN, /* use_sliding_window, even layers before max_window_layers */
    SPW_WINDOW_UNROTATED,   /* use_sliding_window, layers without rope */
    SPW_WINDOW_PATTERN,     /* every sliding_window_pattern-th is full, the others slide */
    SPW_WINDOW_CHUNKS,      /* layers with rope are chunked, unless attention_chunk_size is null */
};

/* Layers with experts. The keys are names of config.json; the numbers are defaults, and 0 says that
 * the key is required. */
struct spw_expert_facts {
    const char *count_key;        /* NULL: the family has no experts */
    const char *other_count_key;  /* a name that transformers takes and writes, too; NULL: none */
    const char *width_key;        /* of an expert; NULL: as wide as a dense mlp */
    const char *shared_width_key; /* of an expert that every row has; NULL: see the next key */
    const char *shared_count_key; /* such experts, which are one mlp of all their widths; NULL: no
                                     expert is shared */
    bool shared_by_key;           /* without shared_width_key no expert is shared */
    bool shared_alone;            /* in a model without experts the shared one is the mlp */
    const char *kept_key;         /* of a row; NULL: num_experts_per_tok */
    const char *other_kept_key;   /* as other_count_key */
    const char *enable_key;       /* true: there are experts; NULL: there always are */
    const char *first_layer_key;  /* layers before this one are dense; NULL: none is */
    const char *last_layer_key;   /* layers after this one are dense; -1, or NULL: none is */
    const char *step_key;         /* every step-th layer has experts; NULL: every one */
    const char *dense_list_key;   /* a list of layers that have none; NULL: no list */
    const char *list_key;         /* a list of those that have some, whatever the step is */
    bool kinds_list;              /* mlp_layer_types says "sparse" or "dense" for each layer */
    const char *latent_key;       /* NULL: experts read the row */
    const char *scale_key;        /* a factor of all weights; NULL: 1 */
    double scale;                 /* its default; 0: 1 */
    uint32_t count, kept, width, shared_width, first_layer;
    uint32_t shared_count; /* 0: 1 */
    bool groups;           /* n_group and topk_group: see struct spw_route */
    /* as in struct spw_experts_config */
    bool beside, shared_gate, biases, choice_bias, transposed, either_order, halves,
        weighted_inputs;
    const char *choice_bias_key; /* switches choice_bias off; NULL: no key does */
    enum spw_route_score score;
    enum spw_family_rule renormalizes; /* by key: norm_topk_prob */
    float sum_plus;                    /* as in struct spw_route */
};

/* Layers with a state: struct spw_mixer_config. The keys are names of config.json; NULL: the number
 * is the default. The numbers are defaults, and 0 says that the key is required. */
struct spw_mixer_facts {
    enum spw_mixer_kind kind; /* SPW_MIXER_NONE: the family has no such layers */
    /* Words of such a layer in layer_types. With an old word "attention" is an old word, too. */
    const char *word, *old_word;
    const char *old_list_key; /* another name of layer_types; NULL: none */
    const char *attends_key;  /* a list of the layers that attend; NULL: none */
    const char *repeated_key; /* a list of words, "recurrent" or "attention", that is repeated for
                                 all layers; attention has a window. NULL: none */
    uint32_t interval; /* full_attention_interval, every so many-th layer attends; 0: no such key */
    bool all_attend, all_mix; /* all layers do, if nothing says which. Both false: the list of kinds
                                 is required */
    bool beside;              /* all layers attend, and have a state, too */
    const char *heads_key, *key_heads_key, *key_dim_key, *value_dim_key, *conv_width_key;
    const char *other_key_heads_key, *other_conv_width_key, *other_conv_bias_key; /* NULL: none */
    uint32_t heads, key_heads, key_dim, value_dim, conv_width;
    /* SSD and SCAN: value channels of all heads, or else so many times hidden. NULL: what heads and
     * value_dim give. value_dim may be "auto" */
    const char *inner_key, *expand_key;
    uint32_t inner, expand;
    const char *rank_key;  /* SCAN: of dt, which may be "auto" */
    const char *limit_key; /* bounds of dt, which must be none */
    const char *act_key;   /* of the convolution; NULL: the activation of the model */
    /* Of the products (out_bias_key NULL: of the last one, too), of the convolution; NULL: never */
    const char *bias_key, *out_bias_key, *conv_bias_key;
    bool bias, conv_bias;
    const char *gate_norm_key, *norm_first_key;                /* NULL: no key decides */
    bool grouped, grouped_rates, tiled, gate_norm, norm_first; /* as in struct spw_mixer_config */
    enum spw_norm_kind norm;
};

struct spw_family {
    const char *name;
    const char *also;      /* another model_type of the same facts; NULL: none */
    const char *listed_as; /* the family of a config with layer_types, outside of wrappers; NULL:
                              the same */
    enum spw_norm_kind norm;
    bool norm_plus_one, plain_last, norm_bias, norm_bare, qk_norm_by_head, qk_norm_bias, head_bias,
        parallel, plain_mlp, normed_rows, post_norms,
        embedding_norm; /* as in struct spw_model_config */
    enum spw_attention_gate attention_gate;
    const char *eps_key;        /* NULL: rms_norm_eps */
    const char *activation_key; /* NULL: hidden_act */
    const char *activation;     /* NULL: silu; see spw_family_activation */
    bool tanh_gelu;             /* "gelu" means gelu_pytorch_tanh */
    enum spw_family_rule qkv_bias, o_bias, mlp_bias;
    bool qk_norm, qk_norm_whole, sandwich, late_norms; /* as in struct spw_model_config */
    bool qk_norm_last;                                 /* unless use_qk_norm is false */
    double q_norm_scale;     /* the default of qk_scale_factor, q_norm_scale of struct
                                spw_model_config; 0: the family has no such key */
    bool qk_norm_after_rope; /* as in struct spw_model_config */
    const char *width_key;   /* of a dense mlp; NULL: intermediate_size */
    uint32_t width;          /* its default; 0: required */
    bool adjusts_width;      /* block_ff_dim, block_auto_adjust_ff_dim, block_ffn_dim_multiplier and
                                block_multiple_of apply to it */
    const char *tied_key;    /* another name of tie_word_embeddings, which wins; NULL: none */
    bool halves_width;       /* the key is the width of gate and up together */
    const char *qk_norm_key, *parallel_key; /* switch qk_norm and parallel on; NULL: no key does */
    const char *attention_bias_key, *mlp_bias_key; /* NULL: attention_bias, mlp_bias */
    bool bias_or_null, qk_norm_or_null; /* the keys of biases, and of qk_norm, may be null */
    const char *false_key;              /* a switch that must be false: it adds biases that are not
                                           supported; NULL: none */
    enum spw_rope_rounding rope_rounding;
    bool paired_qk;        /* channels 2 i and 2 i + 1 of a head rotate together */
    bool extra_logits;     /* as in struct spw_model_config */
    bool cut_gate;         /* SPW_ACT_CUT_QUICK, whatever the activation key says */
    bool predicts_next;    /* layers after the last one, or mtp_*, predict further tokens; */
    bool may_add_mtp;      /* as in struct spw_model_config */
    bool mtp_dense;        /* that layer has no experts */
    bool multiplied;       /* attention_multiplier, embedding_multiplier, residual_multiplier and
                              logits_scaling apply; each is 1 when absent */
    bool scales_branches;  /* embedding_multiplier, lm_head_multiplier, and multipliers of what
                              attention, states and the mlp get and give apply */
    bool blocks;           /* each layer is a mixer or an mlp: a list says which */
    bool unrotated;        /* no layer has rope */
    bool encodes;          /* an encoder and a decoder */
    bool counts_distances; /* numbers of distances, and an activation that says whether the mlp is
                              gated: T5 */
    const struct spw_key_name *names; /* of keys; NULL: the usual ones */
    bool may_split_rows; /* share_encoder_decoder_embeddings: false: each stack has an embedding */
    enum spw_position_kind positions;
    uint32_t position_offset;
    enum spw_family_rule scales_rows; /* by key: scale_embedding, embeddings times sqrt(hidden) */
    int32_t start;                    /* the default of decoder_start_token_id; -1: bos */
    bool no_k_bias;                   /* as in struct spw_model_config */
    uint32_t n_mels, n_audio;         /* the source is audio: the defaults of num_mel_bins and
                                                  max_source_positions */
    bool scales_tied;       /* with a tied head, the last rows are divided by sqrt(hidden) */
    bool own_buckets;       /* as in struct spw_model_config */
    bool mixes_only;        /* no layer attends */
    bool limits_qkv;        /* clip_qkv applies */
    bool skips_full;        /* layers that see all positions are not rotated, */
    bool skips_in_windowed; /* in models with windows; in others they are */
    bool tunes_unrotated;   /* queries of layers without rope grow by attn_scale and floor_scale */
    bool skips_rope;  /* in layers where no_rope_layers is 0, or every no_rope_layer_interval-th */
    bool counts_back; /* every 4th layer is found from the last one backward; layer_rope_theta is
                         in place of no_rope_layers */
    bool shares_kv;   /* num_kv_shared_layers: the last layers read the KV of earlier ones;
                         use_double_wide_mlp: their mlp is wider */
    bool own_full_kv; /* global_head_dim, num_global_key_value_heads and attention_k_eq_v: full
                         layers have another shape of KV */
    bool v_norm, layer_scales; /* as in struct spw_model_config */
    bool plain_scores;         /* scores are not scaled */
    bool caps_wrapped;         /* final_logit_softcapping and the scale of logits also apply in a
                                  multimodal model */
    bool last_full;            /* the last layer is full, whatever layer_types says */
    bool scaled_rows;          /* embeddings times sqrt(hidden), */
    bool bf16_scale;           /* rounded to bf16, whatever the compute type is */
    bool scaled_scores;        /* scores times query_pre_attn_scalar^-0.5, and
                                  final_logit_softcapping applies */
    bool rope_by_type;         /* position_embedding_type switches rope on */
    bool tied; /* the default of tie_word_embeddings; the members below are defaults, too */
    uint32_t n_heads, n_kv_heads; /* 0: required; 0: as many as n_heads */
    uint32_t head_dim, vocab;     /* 0: hidden / n_heads; 0: required */
    uint32_t full_head_dim;       /* with own_full_kv */
    uint32_t layer_inputs; /* of hidden_size_per_layer_input; 0: the family has no such key */
    uint64_t max_positions;
    double rms_eps;                          /* 0: 1e-6 */
    double post_eps;                         /* of post_norm_eps; 0: the family has no such key */
    double attention_softcap, logit_softcap; /* of attn_logit_softcapping (0: the family has no such
                                                key) and final_logit_softcapping, which also
                                                applies where this is not 0 */
    const char *softcap_key;                 /* NULL: final_logit_softcapping */
    double logit_scale;                      /* 0: the family has no such key */
    const char *logit_scale_key;             /* NULL: logit_scale */
    enum spw_window_rule window_rule;
    bool listed;
    uint32_t window, max_window_layers;
    const char *window_key; /* NULL: sliding_window, or attention_chunk_size */
    uint32_t window_pattern;
    bool window_pattern_key; /* sliding_window_pattern applies */
    int32_t bos, eos;        /* -1: none */
    struct spw_rope_facts rope;
    struct spw_expert_facts experts;
    struct spw_mixer_facts mixer;
};

/* The activation of a config that names none. */
static inline const char *spw_family_activation(const struct spw_family *f)
{
    return f->activation ? f->activation : "silu";
}

/* Whether a key decides. */
static inline bool spw_family_asks(enum spw_family_rule rule)
{
    return rule == SPW_FAMILY_BY_KEY || rule == SPW_FAMILY_UNLESS;
}

/* Whether GGUF files have the epsilon as that of a layer norm, not of an RMS norm. */
static inline bool spw_family_has_layer_norm(const struct spw_family *f)
{
    return f->eps_key && f->norm == SPW_NORM_MEAN;
}

/* config_encoder.c: names of keys. */
extern const struct spw_key_name spw_config_t5_names[], spw_config_bart_names[];

/* By a model_type; NULL: there is none. */
const struct spw_family *spw_family_find(const char *name);

#endif
