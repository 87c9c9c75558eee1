/* What model/forward*.c share: the calls of products and norms that all parts of a layer have. */
#ifndef SPW_MODEL_FORWARD_PARTS_H
#define SPW_MODEL_FORWARD_PARTS_H

#include "model/forward.h"

/* A vector of `small`, or NULL. */
static inline const float *spw_forward_vector(const struct spw_forward *f, uint64_t at)
{
    return at == SPW_SMALL_NONE ? NULL : f->small + at;
}

/* What all calls of y = x W^T have. */
struct spw_linear_args spw_forward_linear_args(const struct spw_forward *f,
                                               const struct spw_operand *m, const void *x, void *y,
                                               size_t rows);
/* One product, where its matrix lies. same_x: x is that of the call before. */
int spw_forward_product(const struct spw_forward *f, const struct spw_operand *m,
                        const struct spw_linear_args *a, bool same_x);
/* y = x W^T, plus the residual if there is one, for several matrices whose outputs are side by side
 * in y, whose rows are `stride` apart. Matrices of one type that are also adjacent in memory become
 * one product. This does not change the bits of an output. */
int spw_forward_linear(const struct spw_forward *f, const struct spw_operand *m, int n_matrices,
                       uint64_t bias, const void *x, const void *residual, void *y, size_t stride,
                       size_t rows);
/* h += x W^T; in a family with a norm after the product, h += norm(x W^T); in one that scales what
 * the branch adds, h += scale x W^T; and then times the factor, if there is one. b.x is free at
 * this point. SPW_BRANCHES: what is added has its scale. */
int spw_forward_linear_added(const struct spw_forward *f, const struct spw_operand *m,
                             enum spw_branch branch, uint64_t bias, uint64_t after_norm,
                             uint64_t factor, const void *x, void *h, size_t rows);
/* y = norm(x), plus the residual if there is one, times the factor if there is one. */
int spw_forward_norm(const struct spw_forward *f, enum spw_norm_kind kind, float eps,
                     uint64_t weight, const void *x, const void *residual, uint64_t factor, void *y,
                     size_t rows);
/* *x: what a product reads: norm(h) in b.x, or h in a family without a norm before the product. */
int spw_forward_normed(const struct spw_forward *f, uint64_t weight, const void *h, const void **x,
                       size_t rows);

#endif
