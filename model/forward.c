/* One layer, one line per operation: see forward.h. Families differ only in which lines apply. */
#include "model/forward.h"

/* y = norm(x), row by row, plus the residual if there is one. */
static int norm(const struct spw_forward *f, uint64_t weight, const void *x, const void *residual,
                void *y, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    return f->ops->norm(&(struct spw_norm_args){.x = x,
                                                .y = y,
                                                .residual = residual,
                                                .weight = f->small + weight,
                                                .rows = rows,
                                                .cols = c->hidden,
                                                .x_stride = c->hidden,
                                                .y_stride = c->hidden,
                                                .eps = c->rms_eps,
                                                .kind = c->norm,
                                                .dtype = f->dtype},
                        f->stream);
}

/* A matrix, and how many outputs it gives. */
struct part {
    const uint8_t *w;
    size_t n;
};

/* y = x W^T, plus the residual if there is one, for up to three matrices whose outputs stand side
 * by side in y. Those that also follow each other in memory are one product; an output's bits do
 * not depend on that. */
static int linear(const struct spw_forward *f, const struct part parts[3], uint64_t bias,
                  const void *x, size_t k, const void *residual, void *y, size_t rows)
{
    const size_t row_bytes = k * spw_dtype_bytes(f->weights->dtype);
    const size_t stride = parts[0].n + parts[1].n + parts[2].n;
    size_t done = 0;
    for (int i = 0; i < 3 && parts[i].n;) {
        const uint8_t *w = parts[i].w;
        size_t n = 0;
        for (; i < 3 && parts[i].n && parts[i].w == w + n * row_bytes; i++)
            n += parts[i].n;
        const size_t at = done * spw_dtype_bytes(f->dtype);
        SPW_TRY(f->ops->linear(
            &(struct spw_linear_args){.x = x,
                                      .w = w,
                                      .bias =
                                          bias == SPW_SMALL_NONE ? NULL : f->small + bias + done,
                                      .y = (uint8_t *)y + at,
                                      .residual = residual ? (const uint8_t *)residual + at : NULL,
                                      .m = rows,
                                      .n = n,
                                      .k = k,
                                      .x_stride = k,
                                      .y_stride = stride,
                                      .x_dtype = f->dtype,
                                      .w_dtype = f->weights->dtype,
                                      .y_dtype = f->dtype,
                                      .workspace = f->b.workspace},
            f->stream));
        done += n;
    }
    return 0;
}

/* h += x W^T; in a family with a norm behind it, h += norm(x W^T). b.x is free by then. */
static int linear_added(const struct spw_forward *f, const struct part parts[3], uint64_t bias,
                        uint64_t after_norm, const void *x, size_t k, void *h, size_t rows)
{
    if (after_norm == SPW_SMALL_NONE)
        return linear(f, parts, bias, x, k, h, h, rows);
    SPW_TRY(linear(f, parts, bias, x, k, NULL, f->b.x, rows));
    return norm(f, after_norm, f->b.x, h, h, rows);
}

/* b.gated = act(x gate^T) * (x up^T). */
static int gated_linear(const struct spw_forward *f, const struct spw_layer_weights *m,
                        uint64_t bias, const void *x, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_gated_linear_args a = {.x = x,
                                            .w_gate = m->gate,
                                            .w_up = m->up,
                                            .bias = bias == SPW_SMALL_NONE ? NULL : f->small + bias,
                                            .y = f->b.gated,
                                            .scratch = f->b.gate_up,
                                            .m = rows,
                                            .n = c->intermediate,
                                            .k = c->hidden,
                                            .x_stride = c->hidden,
                                            .dtype = f->dtype,
                                            .w_dtype = f->weights->dtype,
                                            .act = c->act,
                                            .workspace = f->b.workspace};
    return f->ops->gated_linear(&a, f->stream);
}

int spw_forward_project(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *m, const void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const size_t q = (size_t)c->n_heads * c->head_dim, kv = (size_t)c->n_kv_heads * c->head_dim;
    const struct part qkv[3] = {{m->q, q}, {m->k, kv}, {m->v, kv}};
    SPW_TRY(norm(f, v->attention_norm, h, NULL, f->b.x, rows));
    return linear(f, qkv, v->qkv_bias, f->b.x, c->hidden, NULL, f->b.qkv, rows);
}

int spw_forward_output(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *m, void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct part o[3] = {{m->o, c->hidden}};
    return linear_added(f, o, v->o_bias, v->after_attention_norm, f->b.attention,
                        (size_t)c->n_heads * c->head_dim, h, rows);
}

int spw_forward_mlp(const struct spw_forward *f, uint32_t layer, const struct spw_layer_weights *m,
                    void *h, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct part down[3] = {{m->down, c->hidden}};
    SPW_TRY(norm(f, v->mlp_norm, h, NULL, f->b.x, rows));
    SPW_TRY(gated_linear(f, m, v->gate_up_bias, f->b.x, rows));
    return linear_added(f, down, v->down_bias, v->after_mlp_norm, f->b.gated, c->intermediate, h,
                        rows);
}

int spw_forward_final_norm(const struct spw_forward *f, const void *h, void *x, size_t rows)
{
    return norm(f, f->weights->final_norm, h, NULL, x, rows);
}

int spw_forward_head(const struct spw_forward *f, const uint8_t *block, const void *x,
                     float *logits, uint32_t first, uint32_t n, size_t rows)
{
    const struct spw_model_config *c = f->weights->config;
    return f->ops->linear(&(struct spw_linear_args){.x = x,
                                                    .w = block,
                                                    .y = logits + first,
                                                    .m = rows,
                                                    .n = n,
                                                    .k = c->hidden,
                                                    .x_stride = c->hidden,
                                                    .y_stride = c->vocab,
                                                    .x_dtype = f->dtype,
                                                    .w_dtype = f->weights->dtype,
                                                    .y_dtype = SPW_DTYPE_F32,
                                                    .workspace = f->b.workspace},
                          f->stream);
}
