/* The parts of struct spw_weights, for weights*.c only. */
#ifndef SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H
#define SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H

#include "model/weights/tensor_names.h"
#include "model/weights/weights.h"

/* ---- weights_find.c: tensors by their usual names (tensor_names.h), with the shapes of the config
 */

struct spw_finder {
    const struct spw_tensors *tensors;
    const struct spw_model_config *config;
    const char *prefix;
    struct spw_named
        *named; /* owned, [n], sorted by name: the tensors of the decoder and its head */
    size_t n;
    bool *found; /* by tensor */
    struct spw_error *err;
};

/* `tensors`, `found` and `err` are set. -EINVAL: this is no language model, or it lacks the MTP
 * layer of the config; -ENOMEM. The caller frees `named`. */
int spw_finder_open(struct spw_finder *f, const struct spw_model_config *c);
/* Finds a tensor; cols 0: a vector. -EINVAL: it is missing, or it has another shape or an unknown
 * type. */
int spw_find_tensor(const struct spw_finder *f, const char *name, uint64_t rows, uint64_t cols,
                    const struct spw_tensor **out);
int spw_find_in_layer(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t cols, const struct spw_tensor **out);
/* A tensor of a layer that holds n matrices of this shape. */
int spw_find_stacked(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t n,
                     uint64_t rows, uint64_t cols, const struct spw_tensor **out);
/* A tensor of bytes, dtype U8. */
int spw_find_bytes(const struct spw_finder *f, uint32_t layer, const char *name,
                   const uint64_t *shape, uint32_t n_dims, const struct spw_tensor **out);
/* The tensor of this name, of any shape; NULL: the files have none, or the layer has none. */
const struct spw_tensor *spw_find_by_name(const struct spw_finder *f, const char *name);
const struct spw_tensor *spw_find_by_layer(const struct spw_finder *f, uint32_t layer,
                                           const char *name);
/* The factors of an FP8 matrix; NULL where it has none. */
int spw_find_scale(const struct spw_finder *f, const struct spw_model_config *c,
                   const struct spw_tensor *t, const struct spw_tensor **out);
int spw_find_ends(const struct spw_finder *f, const struct spw_model_config *c,
                  const struct spw_tensor **embedding, const struct spw_tensor **head);
/* Whether the type of a table is one that rows are read of without factors. -EINVAL: no. */
int spw_find_table_type(const struct spw_finder *f, const struct spw_model_config *c,
                        const struct spw_tensor *t);
/* -EINVAL: the decoder has a tensor that no call has asked for. */
int spw_find_check_all(const struct spw_finder *f, const struct spw_model_config *c);

/* ---- weights.c ---- */

/* The width of the mlp of a layer: in one with experts, of the expert that every row has, or of the
 * mlp beside them. 0: there is none. */
uint64_t spw_layer_mlp_width(const struct spw_model_config *c, uint32_t layer);
/* Whether the names of this mlp begin with mlp.shared_expert. Some families call it as the mlp of a
 * layer without experts. */
bool spw_has_shared_name(const struct spw_finder *f, const struct spw_model_config *c,
                         uint32_t layer);

/* ---- weights_experts.c ---- */

enum { SPW_MXFP4_GROUP = 32 };

/* The matrices of an expert (spw_expert_matrices), without their types. */
int spw_find_expert(struct spw_matrix out[SPW_EXPERT_MATRICES], const struct spw_finder *f,
                    const struct spw_model_config *c, uint32_t layer, uint32_t expert);

/* ---- weights_read.c ---- */

/* The address of the matrix in the mapped file, and its stored bytes. */
const uint8_t *spw_matrix_data(const struct spw_matrix *m);
uint64_t spw_matrix_bytes(const struct spw_matrix *m);

/* ---- weights_audio.c ---- */

/* spw_weights_embed for tokens of a source that is audio. */
void spw_audio_embed(const struct spw_weights *w, const struct spw_embed_args *a);

/* ---- weights_positions.c ---- */

/* The tables of positions that the files have. */
int spw_positions_open(struct spw_weights *w, const struct spw_finder *f);
/* Adds the rows of the positions, rounded to the compute type, to a->rows. */
void spw_positions_add(const struct spw_weights *w, const struct spw_embed_args *a);

/* ---- weights_small.c: norms, biases, places of rope frequencies ---- */

/* How numbers of w->small are read: rows of a tensor, or the same number everywhere. */
struct spw_small_note {
    const struct spw_tensor *tensor; /* NULL: `fill` */
    uint64_t at, rows, n, stride;    /* of row 0; numbers of a row; from row to row. In floats */
    uint64_t first, step;            /* every step-th number of a row of the tensor */
    float fill;
    bool plus_one;                            /* weights of a norm that are stored less 1 */
    bool lru_decay;                           /* x becomes -8 ln(1 + exp(x)) */
    bool negates_exp;                         /* x becomes -exp(x) */
    float factor, divisor;                    /* 0: none */
    uint32_t n_ordered;                       /* channels of a row that come in another order */
    const struct spw_model_config *distances; /* NULL; else row h has, for each distance, the number
                                                 of its bucket in column h of the tensor */
    bool both_ways;                           /* keys after the query have buckets of their own */
};

/* Checks the vectors, gives each its place, and notes how it is read. */
int spw_small_open(struct spw_weights *w, const struct spw_finder *f);
/* Fills in w->small. */
void spw_small_read(struct spw_weights *w);

#endif
