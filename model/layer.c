/* One layer, one line per operation: see layer.h. Families differ only in which lines apply. */
#include "model/layer.h"

static const float *vector(const struct spw_layer_run *r, uint64_t at)
{
    return at == SPW_SMALL_NONE ? NULL : r->small + at;
}

/* y = norm(x), row by row. */
static struct spw_norm_args norm_args(const struct spw_layer_run *r, uint64_t weight, const void *x,
                                      void *y, size_t rows)
{
    const struct spw_model_config *c = r->weights->config;
    return (struct spw_norm_args){.x = x,
                                  .y = y,
                                  .weight = vector(r, weight),
                                  .rows = rows,
                                  .cols = c->hidden,
                                  .x_stride = c->hidden,
                                  .y_stride = c->hidden,
                                  .eps = c->rms_eps,
                                  .kind = c->norm,
                                  .dtype = r->dtype};
}

/* A family without this norm skips the line. */
static int norm(const struct spw_layer_run *r, uint64_t weight, const void *x, void *y, size_t rows)
{
    struct spw_norm_args a = norm_args(r, weight, x, y, rows);
    return weight == SPW_SMALL_NONE ? 0 : r->ops->norm(&a, r->stream);
}

/* h += y, then x = norm(h): the layer's middle. */
static int add_norm(const struct spw_layer_run *r, uint64_t weight, void *h, size_t rows)
{
    struct spw_norm_args a = norm_args(r, weight, h, r->b.x, rows);
    a.add = r->b.y;
    a.sum = h;
    return r->ops->norm(&a, r->stream);
}

/* A matrix, and how many outputs it gives. */
struct part {
    const uint8_t *w;
    size_t n;
};

/* y = x W^T for up to three matrices whose outputs stand side by side in y. Those that also follow
 * each other in memory are one product; an output's bits do not depend on that. */
static int linear(const struct spw_layer_run *r, const struct part parts[3], uint64_t bias,
                  const void *x, size_t k, void *y, size_t rows)
{
    const size_t row_bytes = k * spw_dtype_bytes(r->weights->dtype);
    const size_t stride = parts[0].n + parts[1].n + parts[2].n;
    size_t done = 0;
    for (int i = 0; i < 3 && parts[i].n;) {
        const uint8_t *w = parts[i].w;
        size_t n = 0;
        for (; i < 3 && parts[i].n && parts[i].w == w + n * row_bytes; i++)
            n += parts[i].n;
        SPW_TRY(r->ops->linear(
            &(struct spw_linear_args){.x = x,
                                      .w = w,
                                      .bias =
                                          bias == SPW_SMALL_NONE ? NULL : r->small + bias + done,
                                      .y = (uint8_t *)y + done * spw_dtype_bytes(r->dtype),
                                      .m = rows,
                                      .n = n,
                                      .k = k,
                                      .x_stride = k,
                                      .y_stride = stride,
                                      .x_dtype = r->dtype,
                                      .w_dtype = r->weights->dtype,
                                      .y_dtype = r->dtype,
                                      .workspace = r->b.workspace},
            r->stream));
        done += n;
    }
    return 0;
}

static int add(const struct spw_layer_run *r, void *h, size_t rows)
{
    size_t n = rows * r->weights->config->hidden;
    return r->ops->add(&(struct spw_add_args){.h = h, .x = r->b.y, .n = n, .dtype = r->dtype},
                       r->stream);
}

static int gated(const struct spw_layer_run *r, size_t rows)
{
    const struct spw_model_config *c = r->weights->config;
    return r->ops->gated(&(struct spw_gated_args){.x = r->b.gate_up,
                                                  .y = r->b.gated,
                                                  .rows = rows,
                                                  .cols = c->intermediate,
                                                  .act = c->act,
                                                  .dtype = r->dtype},
                         r->stream);
}

int spw_layer_forward(const struct spw_layer_run *r, uint32_t layer,
                      const struct spw_layer_weights *m, void *h, size_t rows)
{
    const struct spw_model_config *c = r->weights->config;
    const struct spw_layer_small *v = &r->weights->small_layers[layer];
    const struct spw_layer_buffers *b = &r->b;
    size_t hidden = c->hidden, inter = c->intermediate, q = (size_t)c->n_heads * c->head_dim;
    size_t kv = (size_t)c->n_kv_heads * c->head_dim;
    const struct part qkv[3] = {{m->q, q}, {m->k, kv}, {m->v, kv}}, o[3] = {{m->o, hidden}};
    const struct part gate_up[3] = {{m->gate, inter}, {m->up, inter}},
                      down[3] = {{m->down, hidden}};

    SPW_TRY(norm(r, v->attention_norm, h, b->x, rows));
    SPW_TRY(linear(r, qkv, v->qkv_bias, b->x, hidden, b->qkv, rows));
    SPW_TRY(r->attend(r->context, layer));
    SPW_TRY(linear(r, o, v->o_bias, b->attention, q, b->y, rows));
    SPW_TRY(norm(r, v->after_attention_norm, b->y, b->y, rows));
    SPW_TRY(add_norm(r, v->mlp_norm, h, rows));

    SPW_TRY(linear(r, gate_up, v->gate_up_bias, b->x, hidden, b->gate_up, rows));
    SPW_TRY(gated(r, rows));
    SPW_TRY(linear(r, down, v->down_bias, b->gated, inter, b->y, rows));
    SPW_TRY(norm(r, v->after_mlp_norm, b->y, b->y, rows));
    return add(r, h, rows);
}

int spw_layer_final_norm(const struct spw_layer_run *r, const void *h, void *x, size_t rows)
{
    return norm(r, r->weights->final_norm, h, x, rows);
}

int spw_layer_head(const struct spw_layer_run *r, const uint8_t *block, const void *x,
                   float *logits, uint32_t first, uint32_t n, size_t rows)
{
    const struct spw_model_config *c = r->weights->config;
    return r->ops->linear(&(struct spw_linear_args){.x = x,
                                                    .w = block,
                                                    .y = logits + first,
                                                    .m = rows,
                                                    .n = n,
                                                    .k = c->hidden,
                                                    .x_stride = c->hidden,
                                                    .y_stride = c->vocab,
                                                    .x_dtype = r->dtype,
                                                    .w_dtype = r->weights->dtype,
                                                    .y_dtype = SPW_DTYPE_F32,
                                                    .workspace = r->b.workspace},
                          r->stream);
}
