/* The parts of struct spw_weights, for weights*.c only. */
#ifndef SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H
#define SPW_MODEL_WEIGHTS_WEIGHTS_PARTS_H

#include "model/weights/weights.h"

/* ---- weights_find.c: tensors by name, with the shapes that the config calls for ---- */

struct spw_finder {
    const struct spw_tensors *tensors;
    const char *prefix; /* "model.", or what a multimodal wrapper puts in front */
    bool *found;        /* by tensor; may be NULL */
    struct spw_error *err;
};

/* Fills in the prefix. -EINVAL: this is no language model. */
int spw_find_prefix(struct spw_finder *f);
/* cols 0: a vector. -EINVAL: there is none, or it has another shape or a type that nobody reads. */
int spw_find_tensor(const struct spw_finder *f, const char *name, uint64_t rows, uint64_t cols,
                    const struct spw_tensor **out);
int spw_find_in_layer(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t cols, const struct spw_tensor **out);
/* The factors of an FP8 matrix; NULL where it has none. */
int spw_find_scale(const struct spw_finder *f, const struct spw_model_config *c,
                   const struct spw_tensor *t, const struct spw_tensor **out);
int spw_find_ends(const struct spw_finder *f, const struct spw_model_config *c,
                  const struct spw_tensor **embedding, const struct spw_tensor **head);
/* -EINVAL: a tensor of the decoder was not found by any of these calls. */
int spw_find_check_all(const struct spw_finder *f, const struct spw_model_config *c);

/* ---- weights_read.c ---- */

/* Where the mapped file has the matrix, and the bytes that it takes there. */
const uint8_t *spw_matrix_data(const struct spw_matrix *m);
uint64_t spw_matrix_bytes(const struct spw_matrix *m);

/* ---- weights_small.c: norms, biases, places of rope frequencies ---- */

/* Checks and lays out. */
int spw_small_open(struct spw_weights *w, const struct spw_finder *f);
/* With w->small: reads. */
int spw_small_walk(struct spw_weights *w, const struct spw_finder *f);

#endif
