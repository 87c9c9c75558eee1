/* The weights of a model as the runtime moves and uses them.
 *
 * Matrices lie in units, each moved as one block: a unit per layer, then the output matrix in
 * blocks of rows no larger than a layer. A unit is read from the mapped file, as it is stored, or
 * from an image of it in host memory, packed and converted. Norms, biases and rope frequencies are
 * small, f32, and always on the device: one `small` block. Nothing is read before
 * spw_weights_prepare. Borrows config and file; immutable after prepare. */
#ifndef SPW_MODEL_WEIGHTS_H
#define SPW_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/file_ranges.h"
#include "model/ops.h"
#include "model/safetensors.h"

/* Where a layer's matrices lie. Packed, in an image, a slot or a resident place:
 *
 *   | q | k | v | o | gate | up | down |   each at a multiple of 64 bytes, but q,k,v and gate,up
 *                                          without gaps: one product each
 *
 * or each where the file has it. */
struct spw_layer_weights {
    const uint8_t *q, *k, *v, *o, *gate, *up, *down;
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
    enum spw_dtype dtype;                 /* of every matrix on the device */
    uint64_t layer_bytes;                 /* of a packed layer */
    uint32_t n_units;                     /* layers, then head blocks */
    uint32_t head_block_rows;             /* rows of a head block; the last may have fewer */
    struct spw_layer_small *small_layers; /* owned, [n_layers] */
    uint64_t final_norm;                  /* float offset */
    uint64_t inv_freq[SPW_LAYER_KINDS];   /* float offsets, [rotary_dim / 2] */
    float rope_scaling[SPW_LAYER_KINDS];
    float *small; /* owned, [n_small] */
    uint64_t n_small;
    const struct spw_tensor *embedding; /* [vocab][hidden] */
    struct spw_weight_source *sources;  /* owned, every matrix by unit; see weights.c */
    uint32_t n_sources;
    struct spw_piece *pieces; /* owned, of all units in order, as they are stored */
    uint32_t *unit_pieces;    /* owned, [n_units + 1]: where a unit's pieces begin */
    bool *mapped;             /* owned, [n_units]: see spw_weights_map_unit */
};

/* Checks that every tensor is there with its shape and type. -EINVAL names the one that is not. */
int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_safetensors *file, enum spw_dtype compute,
                     struct spw_error *err);
void spw_weights_close(struct spw_weights *w);
/* Before prepare: the unit will be computed from where the file is mapped, so its pages stay. */
void spw_weights_map_unit(struct spw_weights *w, uint32_t unit);
/* Reads the small block. */
int spw_weights_prepare(struct spw_weights *w, struct spw_error *err);

/* What a unit takes packed, gaps included; and the matrices alone, without gaps. */
uint64_t spw_weights_unit_bytes(const struct spw_weights *w, uint32_t unit);
uint64_t spw_weights_unit_stored_bytes(const struct spw_weights *w, uint32_t unit);
/* Whether its matrices are stored in the type that is computed with; and besides at addresses
 * that a kernel can read them from. */
bool spw_weights_unit_as_stored(const struct spw_weights *w, uint32_t unit);
bool spw_weights_unit_mappable(const struct spw_weights *w, uint32_t unit);
/* What to read of which files for the unit (file: as in spw_tensor.file_index), and where each of
 * its pieces then lies; the ranges' bytes. */
uint32_t spw_weights_unit_ranges(const struct spw_weights *w, uint32_t unit,
                                 struct spw_file_range out[SPW_FILE_PARTS],
                                 uint64_t lands[SPW_FILE_PARTS]);
uint64_t spw_weights_unit_read_bytes(const struct spw_weights *w, uint32_t unit);
/* Before the unit is used: in a slot its matrices lie as these ranges land, not packed. It must be
 * mappable. */
void spw_weights_place_unit_as_in_file(struct spw_weights *w, uint32_t unit);
/* Of every unit again: as at open, neither mapped nor as in the file. */
void spw_weights_place_packed(struct spw_weights *w);
/* Converts or copies the unit into its image [unit_bytes], gaps left as they are. */
void spw_weights_fill_image(const struct spw_weights *w, uint32_t unit, void *image);
/* The unit's pages of the file are wanted soon; are not needed for now. */
void spw_weights_populate_unit(const struct spw_weights *w, uint32_t unit);
void spw_weights_release_unit(const struct spw_weights *w, uint32_t unit);
/* The matrices of a layer, and of a head block. `packed`: where the unit lies (or was read into,
 * see spw_weights_place_unit_as_in_file); NULL: in the file. */
void spw_weights_layer(const struct spw_weights *w, uint32_t layer, const uint8_t *packed,
                       struct spw_layer_weights *out);
const uint8_t *spw_weights_head(const struct spw_weights *w, uint32_t unit, const uint8_t *packed);
/* Rope tables for a sequence of this length, into the small block's two tables (host side). */
int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err);
/* Embedding rows of n tokens, scaled and rounded to the compute type, to out [n][hidden]. */
void spw_weights_embed(const struct spw_weights *w, const int32_t *tokens, size_t n,
                       enum spw_dtype compute, void *out);

#endif
