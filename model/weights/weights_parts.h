/* The parts of struct spw_weights, for weights*.c only. */
#ifndef SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H
#define SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H

#include "model/weights/tensor_names.h"
#include "model/weights/weights.h"

/* ---- weights_find.c: tensors by name, with the shapes of the config ---- */

struct spw_finder {
    const struct spw_tensors *tensors;
    const struct spw_tensor_name *names; /* of the family */
    const struct spw_tensor_prefix *prefix;
    bool *found; /* by tensor; may be NULL */
    struct spw_error *err;
};

/* Finds the prefix. -EINVAL: this is no language model. */
int spw_find_prefix(struct spw_finder *f);
/* Finds a tensor; cols 0: a vector. -EINVAL: it is missing, or it has another shape or an unknown
 * type. */
int spw_find_tensor(const struct spw_finder *f, const char *name, uint64_t rows, uint64_t cols,
                    const struct spw_tensor **out);
/* Of no layer: the last norm. */
int spw_find_in_decoder(const struct spw_finder *f, const char *name, uint64_t n,
                        const struct spw_tensor **out);
int spw_find_in_layer(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t cols, const struct spw_tensor **out);
/* A tensor of a layer that holds n matrices of this shape. */
int spw_find_stacked(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t n,
                     uint64_t rows, uint64_t cols, const struct spw_tensor **out);
/* A tensor of bytes, dtype U8. */
int spw_find_bytes(const struct spw_finder *f, uint32_t layer, const char *name,
                   const uint64_t *shape, uint32_t n_dims, const struct spw_tensor **out);
/* The tensor of this name, of any shape; NULL: the layer has none. */
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

/* ---- weights_experts.c ---- */

enum { SPW_MXFP4_GROUP = 32 };

/* The matrices of an expert, without their types. */
int spw_find_expert(struct spw_matrix out[SPW_EXPERT_MATRICES], const struct spw_finder *f,
                    const struct spw_model_config *c, uint32_t layer, uint32_t expert);
/* The name of the router of a layer, and what the names of its shared expert begin with. */
const char *spw_find_router_name(const struct spw_finder *f, uint32_t layer);
/* The biases of a layer's experts, [experts][rows of the product]. up NULL: gate has the numbers of
 * both, which alternate. */
struct spw_expert_biases {
    const struct spw_tensor *gate, *up, *down;
};
int spw_find_expert_biases(struct spw_expert_biases *out, const struct spw_finder *f,
                           const struct spw_model_config *c, uint32_t layer);
const char *spw_find_shared_prefix(const struct spw_finder *f, uint32_t layer);

/* ---- weights_read.c ---- */

/* The address of the matrix in the mapped file, and its stored bytes. */
const uint8_t *spw_matrix_data(const struct spw_matrix *m);
uint64_t spw_matrix_bytes(const struct spw_matrix *m);

/* ---- weights_small.c: norms, biases, places of rope frequencies ---- */

/* Checks the vectors and gives each its place. */
int spw_small_open(struct spw_weights *w, const struct spw_finder *f);
/* Does the same, and if w->small is set, reads the vectors. */
int spw_small_walk(struct spw_weights *w, const struct spw_finder *f);

#endif
