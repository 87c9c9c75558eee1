/* The weights of a model as the runtime moves and uses them.
 *
 * A table has a row for each matrix: its role, its type and shape, and its place in the model's
 * files. Matrices are grouped into weight blocks. A block is what is kept resident or transferred
 * as a whole: the matrices of a layer, or some rows of the head (the output matrix), at most as
 * many bytes as the largest layer. Blocks have any size, and matrices of one block may have
 * different types. A block is read from the mapped file in its stored form, or from a packed copy
 * in host memory, which holds every matrix in the type that products take.
 *
 * An expert is a block of its own. The blocks of experts come after all others, and no schedule has
 * them: which of them a step needs is known in its layers only.
 *
 * Norms, biases, routers and rope frequencies are small, f32, and always on the device, in one
 * array, `small`. Nothing is read before spw_weights_prepare. Routers may take much memory, so the
 * array is given up when the device has it; rope frequencies stay. Borrows config and tensors. */
#ifndef SPW_MODEL_WEIGHTS_WEIGHTS_H
#define SPW_MODEL_WEIGHTS_WEIGHTS_H

#include "model/config/config.h"
#include "model/weights/file_ranges.h"
#include "model/ops.h"
#include "model/source/tensors.h"
#include "base/dtype.h"

enum spw_matrix_role {
    SPW_MATRIX_Q,
    SPW_MATRIX_K,
    SPW_MATRIX_V,
    SPW_MATRIX_O,
    SPW_MATRIX_SOURCE_K, /* of rows of the source: spw_config_keeps_source */
    SPW_MATRIX_SOURCE_V,
    SPW_MATRIX_SOURCE_CONV1, /* of the first layer, where the source is audio: [n][taps * channels]
                              */
    SPW_MATRIX_SOURCE_CONV2,
    SPW_MATRIX_O_GATE, /* of SPW_ATTENTION_GATE_APART */
    /* Of layers with a state: the products that make a row of struct spw_mixer_config, side by side
     * in this order; fewer where a file joins them. */
    SPW_MATRIX_IN,
    SPW_MATRIX_IN_GATE,
    SPW_MATRIX_IN_BETA,
    SPW_MATRIX_IN_RATE,
    SPW_MATRIX_SCAN,     /* SCAN: dt, B and C, of the result of the convolution; */
    SPW_MATRIX_SCAN_DT,  /* dt in full width */
    SPW_MATRIX_LRU_GATE, /* LRU: [width][width / blocks], block after block: the gate of the input,
                          */
    SPW_MATRIX_LRU_RATE, /* and that of the decay */
    SPW_MATRIX_OUT,
    SPW_MATRIX_GATE,
    SPW_MATRIX_UP,
    SPW_MATRIX_DOWN,
    SPW_MATRIX_LATENT_IN, /* what experts read, of the row; and the row, of what they give */
    SPW_MATRIX_LATENT_OUT,
    SPW_MATRIX_INPUT, /* of layer_inputs: from the embedding; */
    SPW_MATRIX_INPUT_GATE,
    SPW_MATRIX_INPUT_OUT,
    SPW_MATRIX_JOIN,    /* of the MTP layer: from [embedding | hidden], both after norms */
    SPW_LAYER_MATRICES, /* the most matrices of a layer, beside its experts */
    SPW_MATRIX_HEAD = SPW_LAYER_MATRICES,
    SPW_MATRIX_EMBEDDING,
};

/* Gate, up and down follow each other in a block. Without a gate there is one fewer. */
enum { SPW_EXPERT_MATRICES = 3 };
static inline uint32_t spw_expert_matrices(const struct spw_model_config *c)
{
    return c->plain_mlp ? SPW_EXPERT_MATRICES - 1 : SPW_EXPERT_MATRICES;
}

/* The layer number of matrices that belong to no layer. */
#define SPW_NO_LAYER UINT32_MAX
#define SPW_NO_BLOCK UINT32_MAX

/* How a tensor holds a matrix. Products take rows, so matrices of the other forms are always packed
 * copies in host memory. */
enum spw_matrix_form {
    SPW_FORM_ROWS,
    SPW_FORM_COLUMNS, /* [k][columns], the rows are columns */
    SPW_FORM_BLOCKS,  /* [blocks][k][k], the rows of a block are its columns */
    SPW_FORM_TAPS,    /* [rows][channels][taps], a row has one tap after the other */
    SPW_FORM_PARTS, /* MXFP4: [rows][k / 32][16] bytes, and their scales in a tensor of their own */
};

/* A matrix, or some rows of one: [n][k]. */
struct spw_matrix {
    enum spw_matrix_role role;
    uint32_t layer;
    enum spw_dtype type; /* the type that products take; for the embedding the stored type */
    uint64_t n, k;
    const struct spw_tensor
        *tensor;                    /* contains the matrix as its rows [first_row, first_row + n) */
    const struct spw_tensor *scale; /* factors of an FP8 matrix, or of PARTS; NULL: none */
    uint64_t first_row;
    uint64_t offset; /* in a packed copy of its block */
    enum spw_matrix_form form;
    uint32_t first_column,
        step; /* COLUMNS: the column of row 0. Not ROWS: from a row to the next */
};

/* The packed form of a block, in host memory, in a slot or at its resident place: the matrices
 * follow each other, each at a multiple of 64 bytes. Exception: k and v follow q, and up follows
 * gate, without a gap if they have one type, because they form one product. */
struct spw_weight_block {
    uint32_t layer;               /* the layer of the matrices; SPW_NO_LAYER: rows of the head */
    uint32_t first, n;            /* matrices */
    uint64_t bytes, matrix_bytes; /* packed; the matrices alone, without gaps */
    uint64_t read_bytes;          /* of spw_weights_ranges */
    bool as_stored;               /* the matrices are stored in the types that products take, */
    bool mappable;                /* and at addresses that kernels can read */
    bool mapped;                  /* see spw_weights_map */
    bool quantized;               /* all matrices are: rows of quantized types */
};

/* A matrix where kernels read it: n rows of k numbers. */
struct spw_operand {
    const uint8_t *w;
    enum spw_dtype type;
    size_t n, k;
    bool on_host; /* in host memory: see struct spw_forward_host */
};

struct spw_layer_weights {
    struct spw_operand of[SPW_LAYER_MATRICES]; /* by enum spw_matrix_role */
};

/* Offsets in `small`, counted in floats; SPW_SMALL_NONE if the family has no such vector. */
#define SPW_SMALL_NONE UINT64_MAX
struct spw_layer_small {
    /* Weights of norms; where they have biases, as many of these follow. */
    uint64_t attention_norm, mlp_norm; /* [hidden], before each half */
    uint64_t after_inputs_norm;        /* [hidden] */
    uint64_t layer_scale;              /* one number */
    /* [hidden], of experts with a dense mlp beside them */
    uint64_t experts_norm, router_norm, after_dense_norm, after_experts_norm;
    uint64_t expert_scale;                         /* [experts] */
    uint64_t after_attention_norm, after_mlp_norm; /* [hidden], sandwich and late_norms */
    uint64_t sum_norm, mlp_sum_norm;               /* [hidden], post_norms */
    uint64_t q_norm, k_norm;                       /* [head_dim], or [heads * head_dim] */
    uint64_t qkv_bias, o_bias, gate_up_bias, down_bias;
    uint64_t source_bias;   /* of SPW_MATRIX_SOURCE_K, then of V */
    uint64_t extra_logits;  /* [heads] */
    uint64_t relative_bias; /* [heads][2 most_distance + 1]: by key - query + most_distance */
    uint64_t router;        /* [experts][hidden] */
    uint64_t router_bias, choice_bias;        /* [experts] */
    uint64_t expert_gate_up_bias;             /* [experts][2 intermediate]: gate's, then up's */
    uint64_t expert_down_bias;                /* [experts][hidden] */
    uint64_t shared_gate;                     /* [hidden] */
    uint64_t latent_in_bias, latent_out_bias; /* [latent], [hidden] */
    /* Of a layer with a state, as in struct spw_conv_args and spw_recur_args. */
    uint64_t conv, conv_bias;              /* [conv_channels][conv_width]; [conv_channels] */
    uint64_t decay, skip;                  /* a; skip */
    uint64_t dt_bias;                      /* SCAN: of the product SCAN_DT */
    uint64_t gate_norm;                    /* [value_dim] (DELTA), [heads * value_dim] (SSD) */
    uint64_t lru_gate_bias, lru_rate_bias; /* [width] */
    uint64_t in_bias, out_bias;
};

struct spw_weights {
    const struct spw_model_config *config;
    const struct spw_tensors *tensors;
    bool *is_read;               /* owned, by tensor: whether the model has numbers of it */
    struct spw_matrix *matrices; /* owned, [n_matrices], in the order of the blocks */
    struct spw_piece *pieces; /* owned, [n_matrices]: the stored bytes of each in the mapped file */
    /* owned, [n_blocks + n_expert_blocks]: layer l is block l; then the head, then the experts */
    struct spw_weight_block *blocks;
    uint32_t *layer_experts; /* owned, [n_layers]: the block of the layer's first expert;
                                SPW_NO_BLOCK: it has none */
    uint32_t n_matrices, n_blocks, n_expert_blocks;
    uint64_t *expert_pages; /* owned, [n_expert_blocks + 1]: bytes of the experts before each, every
                               one in whole pages */
    uint64_t expert_frame_bytes; /* of the largest expert, packed or as it lies in its file */
    bool experts_stored;         /* all experts are stored in the types that products take, */
    bool experts_mappable;       /* and at addresses that kernels can read */
    bool experts_alike;          /* in each layer, the matrices of one role have one type */
    uint32_t head_rows;          /* rows of a block of the head; the last block may have fewer */
    struct spw_matrix embedding; /* in no block: rows are read from the file */
    struct spw_matrix source_embedding;   /* of own_source_rows; else the same */
    struct spw_matrix inputs;             /* the same: [input_vocab][n_layers * layer_inputs] */
    struct spw_layer_small *small_layers; /* owned, [n_layers] */
    uint64_t final_norm;                  /* float offset */
    uint64_t source_norm;                 /* of rows that have passed the encoder */
    /* [0] of the source, [1] of the others: a float offset, [hidden]; a table of positions, NULL:
     * they are computed, or the model has none. */
    uint64_t embedding_norm[2];
    uint64_t source_conv_bias[2], no_frame; /* float offsets, [hidden]: of both convolutions over
                                               audio; zeros */
    const struct spw_tensor *positions[2];
    /* float offsets, [hidden], of the MTP layer: norms of its two inputs, and its last one */
    uint64_t mtp_embedding_norm, mtp_hidden_norm, mtp_norm;
    uint64_t bare_norm; /* float offset, [hidden or head_dim] ones: of norms without weights */
    uint64_t head_bias; /* float offset, [vocab] */
    uint64_t inputs_norm, inputs_factor; /* float offsets, [layer_inputs], and sqrt(1/2) */
    uint64_t in_scales; /* float offset, [spw_mixer_in_width], of struct spw_mixer_config */
    uint64_t branch_scales[SPW_BRANCHES]; /* float offsets, [hidden], all equal; SPW_SMALL_NONE if
                                        the scale is 1 */
    /* float offsets, [rotary_dim / 2], or SPW_SMALL_NONE; rope_factors: of short sequences */
    uint64_t rope_factors, long_rope_factors;
    uint64_t inv_freq[SPW_LAYER_KINDS]; /* float offsets, [rotary_dim / 2] */
    uint64_t no_freq;                   /* float offset, zeros: of layers that do not rotate */
    float rope_scaling[SPW_LAYER_KINDS];
    float *small; /* owned, [n_small]; NULL: prepare reads it */
    uint64_t n_small;
    struct spw_small_note *notes; /* owned: how it is read */
    size_t n_notes, notes_capacity;
    float *rope; /* owned: the numbers of `small` from first_rope on, factors and frequencies */
    uint64_t first_rope;
};

/* Checks that every tensor exists with its shape and type. -EINVAL names the tensor that does
 * not. */
int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_tensors *tensors, enum spw_dtype compute,
                     struct spw_error *err);
void spw_weights_close(struct spw_weights *w);
/* Reads the small array. The frequencies in it are the latest ones of spw_weights_rope. */
int spw_weights_prepare(struct spw_weights *w, struct spw_error *err);
/* Instead of prepare, where nobody reads the numbers: zeros. -ENOMEM. */
int spw_weights_prepare_blank(struct spw_weights *w);
/* Frees the small array. */
void spw_weights_forget_small(struct spw_weights *w);

/* ---- a block; `b` is its number ---- */

/* Call it before prepare: the block will be computed from the mapped file, so its pages stay. */
void spw_weights_map(struct spw_weights *w, uint32_t b);
/* The ranges of files to read for the block (file: as in spw_tensor.file_index), and the place of
 * each matrix in the slot then. out, lands: [matrices of the block]. Returns the number of ranges.
 */
uint32_t spw_weights_ranges(const struct spw_weights *w, uint32_t b, struct spw_file_range *out,
                            uint64_t *lands);
/* Call it before the block is used: in a slot its matrices then lie as these ranges put them, not
 * packed. The block must be mappable. */
void spw_weights_place_as_in_file(struct spw_weights *w, uint32_t b);
/* Resets all blocks to their state at open: neither mapped nor as in the file. */
void spw_weights_place_packed(struct spw_weights *w);
/* Converts or copies the block into a packed copy [bytes]. Does not write the gaps. */
void spw_weights_pack(const struct spw_weights *w, uint32_t b, void *copy);
/* Converts or copies a row of a matrix of any form, in its type; `to` [spw_row_bytes]. */
void spw_weights_pack_row(const struct spw_weights *w, const struct spw_matrix *m, uint64_t row,
                          uint8_t *to);
/* populate: the file's pages of the block are needed soon. release: they are not needed now. */
void spw_weights_populate(const struct spw_weights *w, uint32_t b);
void spw_weights_release(const struct spw_weights *w, uint32_t b);

/* Numbers of a row that go to the products of a layer's block, and that come back from them: a
 * product reads the row of the one before it, if both are one call. And the most of one product;
 * gated: of two whose results become one. */
struct spw_block_row {
    uint64_t in, out, most_in, most_out, most_gated;
};
struct spw_block_row spw_weights_block_row(const struct spw_weights *w, uint32_t b);

/* ---- use ---- */

/* The operands of a layer, or of an expert, whose block is layer_experts[layer] + its number (roles
 * that it does not have stay empty); and of a block of the head. `at`: the address of the block
 * (packed, or as spw_weights_place_as_in_file says); NULL: in the mapped file. */
void spw_weights_operands(const struct spw_weights *w, uint32_t b, const uint8_t *at,
                          struct spw_layer_weights *out);
/* The same of a block whose matrices lie at `at` as spw_weights_ranges puts them. */
void spw_weights_operands_as_read(const struct spw_weights *w, uint32_t b, const uint8_t *at,
                                  const uint64_t *lands, struct spw_layer_weights *out);
struct spw_operand spw_weights_head(const struct spw_weights *w, uint32_t b, const uint8_t *at);
/* Computes the rope tables for a sequence of this length, in w->rope. Call prepare before. */
int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err);
/* Writes the embedding rows of n tokens, scaled and rounded to the compute type, plus those of
 * their positions, to rows [n][hidden]; and the numbers that layers get of the tokens, scaled and
 * rounded likewise, to inputs [n][n_layers * layer_inputs]. */
struct spw_embed_args {
    const int32_t *tokens; /* all of a source, or none */
    size_t n;
    uint64_t position; /* of the first token in its stack */
    /* A source that is audio: its spectrogram, [SPW_AUDIO_FRAMES * tokens of the source][n_mels]. A
     * row then has its position alone, and its inputs are rows of the spectrogram. */
    const float *audio;
    enum spw_dtype compute;
    void *rows, *inputs;
};
void spw_weights_embed(const struct spw_weights *w, const struct spw_embed_args *a);

#endif
