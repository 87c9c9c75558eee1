/* The weights of a model as the runtime moves and uses them.
 *
 * A table has a row for each matrix: what it is, its type and shape, and where the model's files
 * have it. Matrices are grouped into weight blocks. A block is the unit of residency and transfer:
 * the matrices of a layer, or some rows of the head (the output matrix), at most as many as the
 * largest layer has bytes. Blocks have any size, and matrices of one block may have different
 * types. A block is read from the mapped file, as it is stored, or from a packed copy of it in host
 * memory, which holds every matrix in the type that products take.
 *
 * Norms, biases and rope frequencies are small, f32, and always on the device: one array, `small`.
 * Nothing is read before spw_weights_prepare. Borrows config and tensors; immutable after prepare.
 */
#ifndef SPW_MODEL_WEIGHTS_WEIGHTS_H
#define SPW_MODEL_WEIGHTS_WEIGHTS_H

#include "model/config.h"
#include "model/weights/file_ranges.h"
#include "model/ops.h"
#include "model/source/tensors.h"

enum spw_matrix_role {
    SPW_MATRIX_Q,
    SPW_MATRIX_K,
    SPW_MATRIX_V,
    SPW_MATRIX_O,
    SPW_MATRIX_GATE,
    SPW_MATRIX_UP,
    SPW_MATRIX_DOWN,
    SPW_LAYER_MATRICES, /* how many a layer has */
    SPW_MATRIX_HEAD = SPW_LAYER_MATRICES,
    SPW_MATRIX_EMBEDDING,
};

/* A layer's number, of what belongs to no layer. */
#define SPW_NO_LAYER UINT32_MAX

/* A matrix, or some rows of one: [n][k]. */
struct spw_matrix {
    enum spw_matrix_role role;
    uint32_t layer;
    enum spw_dtype type; /* that products take it in; of the embedding: that it is stored in */
    uint64_t n, k;
    const struct spw_tensor *tensor; /* has it as rows [first_row, first_row + n) */
    const struct spw_tensor *scale;  /* factors of an FP8 matrix; NULL: none */
    uint64_t first_row;
    uint64_t offset; /* in a packed copy of its block */
};

/* Packed, in host memory, a slot or a resident place, the matrices of a block lie one behind the
 * other, each at a multiple of 64 bytes, but k and v behind q, and up behind gate, without a gap
 * where they have one type: one product each. */
struct spw_weight_block {
    uint32_t layer;               /* whose matrices; SPW_NO_LAYER: rows of the head */
    uint32_t first, n;            /* matrices */
    uint64_t bytes, matrix_bytes; /* packed; the matrices alone, without gaps */
    bool mapped;                  /* see spw_weights_map */
};

/* A matrix where kernels read it: n rows of k numbers. */
struct spw_operand {
    const uint8_t *w;
    enum spw_dtype type;
    size_t n, k;
};

struct spw_layer_weights {
    struct spw_operand of[SPW_LAYER_MATRICES]; /* by enum spw_matrix_role */
};

/* Float offsets in `small`; SPW_SMALL_NONE where the family has none. */
#define SPW_SMALL_NONE UINT64_MAX
struct spw_layer_small {
    uint64_t attention_norm, mlp_norm;             /* [hidden], before each half */
    uint64_t after_attention_norm, after_mlp_norm; /* [hidden], sandwich */
    uint64_t q_norm, k_norm;                       /* [head_dim] */
    uint64_t qkv_bias, o_bias, gate_up_bias, down_bias;
};

struct spw_weights {
    const struct spw_model_config *config;
    const struct spw_tensors *tensors;
    struct spw_matrix *matrices;     /* owned, [n_matrices], in the order of the blocks */
    struct spw_piece *pieces;        /* owned, [n_matrices]: where each lies, as it is stored */
    struct spw_weight_block *blocks; /* owned, [n_blocks], in the order of their use */
    uint32_t *layer_blocks;          /* owned, [n_layers + 1]: layer l has blocks [l] to [l + 1];
                                        the head has those from [n_layers] on */
    uint32_t n_matrices, n_blocks;
    uint32_t head_rows;                   /* of a block of the head; the last may have fewer */
    struct spw_matrix embedding;          /* in no block: rows are read from the file */
    struct spw_layer_small *small_layers; /* owned, [n_layers] */
    uint64_t final_norm;                  /* float offset */
    uint64_t inv_freq[SPW_LAYER_KINDS];   /* float offsets, [rotary_dim / 2] */
    float rope_scaling[SPW_LAYER_KINDS];
    float *small; /* owned, [n_small] */
    uint64_t n_small;
};

/* Checks that every tensor is there with its shape and type. -EINVAL names the one that is not. */
int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_tensors *tensors, enum spw_dtype compute,
                     struct spw_error *err);
void spw_weights_close(struct spw_weights *w);
/* Reads the small array. */
int spw_weights_prepare(struct spw_weights *w, struct spw_error *err);

/* ---- a block; `b` is its number ---- */

/* Before prepare: the block will be computed from where the file is mapped, so its pages stay. */
void spw_weights_map(struct spw_weights *w, uint32_t b);
/* Whether its matrices are stored in the types that products take; and besides at addresses that
 * kernels can read them from. */
bool spw_weights_as_stored(const struct spw_weights *w, uint32_t b);
bool spw_weights_mappable(const struct spw_weights *w, uint32_t b);
/* What to read of which files for the block (file: as in spw_tensor.file_index), and where each of
 * its matrices then lies. Returns how many ranges. */
uint32_t spw_weights_ranges(const struct spw_weights *w, uint32_t b,
                            struct spw_file_range out[SPW_FILE_PARTS],
                            uint64_t lands[SPW_FILE_PARTS]);
/* The bytes of these ranges. */
uint64_t spw_weights_read_bytes(const struct spw_weights *w, uint32_t b);
/* Before the block is used: in a slot its matrices lie as these ranges land, not packed. It must be
 * mappable. */
void spw_weights_place_as_in_file(struct spw_weights *w, uint32_t b);
/* All blocks again: as at open, neither mapped nor as in the file. */
void spw_weights_place_packed(struct spw_weights *w);
/* Converts or copies the block into a packed copy [bytes]. Gaps keep what was there. */
void spw_weights_pack(const struct spw_weights *w, uint32_t b, void *copy);
/* The block's pages of the file are wanted soon; are not needed for now. */
void spw_weights_populate(const struct spw_weights *w, uint32_t b);
void spw_weights_release(const struct spw_weights *w, uint32_t b);

/* ---- use ---- */

/* The matrices of a layer, and of a block of the head. `at`: where the block lies (packed, or as
 * spw_weights_place_as_in_file says); NULL: in the file. */
void spw_weights_layer(const struct spw_weights *w, uint32_t layer, const uint8_t *at,
                       struct spw_layer_weights *out);
struct spw_operand spw_weights_head(const struct spw_weights *w, uint32_t b, const uint8_t *at);
/* Rope tables for a sequence of this length, into the two tables of `small` (host side). */
int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err);
/* Embedding rows of n tokens, scaled and rounded to the compute type, to out [n][hidden]. */
void spw_weights_embed(const struct spw_weights *w, const int32_t *tokens, size_t n,
                       enum spw_dtype compute, void *out);

#endif
