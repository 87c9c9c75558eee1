/* The weights of a model as the runtime moves and uses them.
 *
 * Matrices lie in units, each moved as one block: a unit per layer, then the output matrix in
 * blocks of rows no larger than a layer. Norms, biases and rope frequencies are small, f32, and
 * always on the device: one `small` block. Nothing is read before spw_weights_prepare. Borrows
 * config and file; immutable after prepare. */
#ifndef SPW_MODEL_WEIGHTS_H
#define SPW_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/ops.h"
#include "model/safetensors.h"

/*   layer unit = | q | k | v | o | gate | up | down |   each matrix at a multiple of 64 bytes;
 *                  q,k,v and gate,up adjacent: one product each */
struct spw_layer_unit {
    uint64_t qkv, o, gate_up, down, bytes; /* byte offsets */
};

/* Float offsets in the small block; SPW_SMALL_NONE where the family has none. */
#define SPW_SMALL_NONE UINT64_MAX
struct spw_layer_small {
    uint64_t attention_norm, mlp_norm;             /* [hidden], before each half */
    uint64_t after_attention_norm, after_mlp_norm; /* [hidden], sandwich */
    uint64_t q_norm, k_norm;                       /* [head_dim] */
    uint64_t qkv_bias, o_bias, gate_up_bias, down_bias;
};

struct spw_weights {
    const struct spw_model_config *config;
    const struct spw_safetensors *file;
    enum spw_dtype dtype;       /* of every matrix on the device */
    struct spw_layer_unit unit; /* the same for all layers */
    uint32_t n_units;           /* layers, then head blocks */
    uint32_t head_block_rows;   /* rows of a head block; the last may have fewer */
    uint64_t convert_bytes;     /* host memory for matrices stored in another type; 0: none */
    struct spw_layer_small *small_layers; /* owned, [n_layers] */
    uint64_t final_norm;                  /* float offset */
    uint64_t inv_freq[SPW_LAYER_KINDS];   /* float offsets, [rotary_dim / 2] */
    float rope_scaling[SPW_LAYER_KINDS];
    float *small; /* owned, [n_small] */
    uint64_t n_small;
    const struct spw_tensor *embedding; /* [vocab][hidden] */
    struct spw_weight_source *sources;  /* owned, every matrix by unit; see weights.c */
    uint32_t n_sources;
    struct spw_piece *pieces; /* owned, of all units in order */
    uint32_t *unit_pieces;    /* owned, [n_units + 1]: where a unit's pieces begin */
};

/* Checks that every tensor is there with its shape and type. -EINVAL names the one that is not. */
int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_safetensors *file, enum spw_dtype compute,
                     struct spw_error *err);
void spw_weights_close(struct spw_weights *w);
/* Reads the small block and converts what must be, into `converted` [convert_bytes]. */
int spw_weights_prepare(struct spw_weights *w, void *converted, struct spw_error *err);
/* What a unit takes on the device, gaps included; and what crosses the link, the matrices alone. */
uint64_t spw_weights_unit_bytes(const struct spw_weights *w, uint32_t unit);
uint64_t spw_weights_unit_moved_bytes(const struct spw_weights *w, uint32_t unit);
/* The unit has been copied: its pages of the file are not needed for now. */
void spw_weights_release_unit(const struct spw_weights *w, uint32_t unit);
/* Rope tables for a sequence of this length, into the small block's two tables (host side). */
int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err);
/* Embedding rows of n tokens, scaled and rounded to the compute type, to out [n][hidden]. */
void spw_weights_embed(const struct spw_weights *w, const int32_t *tokens, size_t n,
                       enum spw_dtype compute, void *out);

#endif
