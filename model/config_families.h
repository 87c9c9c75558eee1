/* The dense families: a row of facts for each. A new dense family is a new row; a new kind of fact
 * is a new member. Inside model/ only. */
#ifndef SPW_MODEL_CONFIG_FAMILIES_H
#define SPW_MODEL_CONFIG_FAMILIES_H

#include "model/config_rope.h"

/* How a yes-or-no property is decided. */
enum spw_family_rule {
    SPW_FAMILY_NEVER,
    SPW_FAMILY_ALWAYS,
    SPW_FAMILY_BY_KEY, /* attention_bias or mlp_bias, false when absent */
};

/* How the layer kinds are decided if layer_types does not list them. transformers reads a mistral
 * config with that list as a ministral, so the list counts in every family. */
enum spw_window_rule {
    SPW_WINDOW_NEVER,   /* every layer is full; the list may have full layers only */
    SPW_WINDOW_ALL,     /* every layer slides, unless sliding_window is null */
    SPW_WINDOW_OPT_IN,  /* use_sliding_window, from layer max_window_layers on */
    SPW_WINDOW_PATTERN, /* every sliding_window_pattern-th is full, the others slide */
};

struct spw_family {
    const char *name, *other_name; /* other_name NULL: the family has one name */
    enum spw_norm_kind norm;
    const char *activation_key;
    const char *activation;
    enum spw_family_rule qkv_bias, o_bias, mlp_bias;
    bool qk_norm, sandwich;
    bool scaled; /* embeddings times sqrt(hidden), scores times query_pre_attn_scalar^-0.5, and
                    final_logit_softcapping applies */
    bool tied;   /* the default of tie_word_embeddings; the members below are defaults, too */
    uint32_t n_heads, n_kv_heads; /* 0: required; 0: as many as n_heads */
    uint32_t head_dim, vocab;     /* 0: hidden / n_heads; 0: required */
    uint64_t max_positions;
    enum spw_window_rule window_rule;
    uint32_t window, max_window_layers;
    int32_t bos, eos; /* -1: none */
    struct spw_rope_facts rope;
};

/* By its model_type; NULL: there is none. */
const struct spw_family *spw_family_find(const char *name);

#endif
