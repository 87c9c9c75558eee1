/* One transformer layer of any family, one line per operation.
 *
 * Everything is queued on the stream; buffers are the caller's and hold `rows` rows. Attention over
 * the cache is a callback, because only the caller knows where the cache lies. */
#ifndef SPW_MODEL_LAYER_H
#define SPW_MODEL_LAYER_H

#include "model/weights.h"

/* Device buffers for one chunk of rows, in the compute type unless said otherwise. */
struct spw_layer_buffers {
    void *x;         /* [rows][hidden]: what a product reads, or makes for a norm to read */
    void *qkv;       /* [rows][(n_heads + 2 n_kv_heads) * head_dim] */
    void *attention; /* [rows][n_heads * head_dim] */
    void *gate_up;   /* [rows][2 * intermediate]: scratch, where ops->gated_scratch */
    void *gated;     /* [rows][intermediate] */
    void *workspace; /* of linear */
};

struct spw_layer_run {
    const struct spw_ops *ops;
    const struct spw_weights *weights;
    const float *small; /* the small block on the device */
    struct spw_layer_buffers b;
    enum spw_dtype dtype; /* compute type */
    spw_stream stream;
    /* Norms (if the family does) and rotates q and k of b.qkv, keeps k and v, attends; the result
     * goes to b.attention. */
    int (*attend)(void *context, uint32_t layer);
    void *context;
};

/* h += attention(h); h += mlp(h). h: [rows][hidden]. */
int spw_layer_forward(const struct spw_layer_run *r, uint32_t layer,
                      const struct spw_layer_weights *matrices, void *h, size_t rows);
/* logits[:, first .. first + n) = norm'd x times n rows of the output matrix. x: [rows][hidden]. */
int spw_layer_final_norm(const struct spw_layer_run *r, const void *h, void *x, size_t rows);
int spw_layer_head(const struct spw_layer_run *r, const uint8_t *block, const void *x,
                   float *logits, uint32_t first, uint32_t n, size_t rows);

#endif
