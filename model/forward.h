/* One transformer layer of any family in phases, one line per operation.
 *
 *   project   q, k and v of the rows
 *   (mix)     the caller attends over its cache: q, k, v in b.qkv become b.attention
 *   output    the attention's result joins the residual stream
 *   mlp       so does the multilayer perceptron's
 *
 * All work is queued on the stream. The caller owns the buffers, which hold `rows` rows. */
#ifndef SPW_MODEL_FORWARD_H
#define SPW_MODEL_FORWARD_H

#include "model/weights/weights.h"

/* Device buffers for one chunk of rows, in the compute type unless said otherwise. */
struct spw_forward_buffers {
    void *x;         /* [rows][hidden]: what a product reads, or makes for a norm to read */
    void *qkv;       /* [rows][(n_heads + 2 n_kv_heads) * head_dim] */
    void *attention; /* [rows][n_heads * head_dim] */
    void *gate_up;   /* [rows][2 * intermediate]: scratch, where ops->gated_scratch */
    void *gated;     /* [rows][intermediate] */
    void *workspace; /* of linear */
};

struct spw_forward {
    const struct spw_ops *ops;
    const struct spw_weights *weights;
    const float *small; /* norms, biases and rope frequencies, on the device: see weights.h */
    struct spw_forward_buffers b;
    enum spw_dtype dtype; /* compute type */
    spw_stream stream;
};

/* b.qkv = norm(h) times q, k and v. h: [rows][hidden]. */
int spw_forward_project(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *matrices, const void *h, size_t rows);
/* h += b.attention times o. */
int spw_forward_output(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *matrices, void *h, size_t rows);
/* h += mlp(norm(h)). */
int spw_forward_mlp(const struct spw_forward *f, uint32_t layer,
                    const struct spw_layer_weights *matrices, void *h, size_t rows);

/* Behind the last layer. x: [rows][hidden]; x may be h. */
int spw_forward_final_norm(const struct spw_forward *f, const void *h, void *x, size_t rows);
/* logits[:, first .. first + head->n) = x times these rows of the output matrix. */
int spw_forward_head(const struct spw_forward *f, const struct spw_operand *head, const void *x,
                     float *logits, size_t first, size_t rows);

#endif
