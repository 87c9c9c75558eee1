/* The rope keys of config.json, in both generations: see config_rope.c. Inside model/ only. */
#ifndef SPW_MODEL_CONFIG_CONFIG_ROPE_H
#define SPW_MODEL_CONFIG_CONFIG_ROPE_H

#include "model/config/config.h"
#include "model/config/config_json.h"

/* The defaults of a family. */
struct spw_rope_facts {
    bool by_layer_kind;  /* one table per layer kind (Gemma-3) */
    bool both_kinds;     /* such keys are complete, or absent; rope_scaling is another name of
                            rope_parameters, and rope_theta beside it means nothing (Gemma-4) */
    uint32_t original;   /* of original_max_position_embeddings, which is read beside the other
                            keys only; 0: it may be among them, or is max_position_embeddings */
    double theta;        /* full layers, or all of them */
    double partial;      /* the default of partial_rotary_factor; 0: the key does not apply */
    bool grows;          /* llama_4_scaling_beta is required: queries grow with their position */
    bool only_long;      /* no scaling but longrope, in config.json also by its older names */
    bool sections;       /* "mrope" is no scaling: positions of images have several numbers, those
                            of a text have one */
    bool unscaled;       /* no scaling at all */
    bool alpha;          /* "dynamic" with alpha is no scaling, but another theta */
    bool by_dim;         /* the default of partial_rotary_factor is rotary_dim / head_dim */
    bool whole_ramp;     /* YaRN's truncate is false, which GGUF files do not store */
    double local_theta;  /* sliding layers, where they have their own table */
    bool local_key;      /* rope_local_base_freq applies to them */
    const char *scaling; /* rope_scaling if the file has no rope keys; NULL: none */
};

/* A factor of SPW_ROPE_FACTORS: the pair of channels does not turn at all. */
#define SPW_ROPE_STILL 1e30f

/* Fills config->rope. head_dim and max_positions must be set. */
int spw_config_read_rope(struct spw_model_config *config, const struct spw_keys *keys,
                         const struct spw_rope_facts *facts);
/* Each frequency is divided by a factor of a tensor: SPW_ROPE_FACTORS or SPW_ROPE_LONG. In families
 * with rope by layer kind those of sliding layers are not. Call it after spw_config_read_rope. */
int spw_config_add_rope_factors(struct spw_model_config *config, const struct spw_keys *keys,
                                const struct spw_rope_facts *facts, enum spw_rope_kind kind);

#endif
