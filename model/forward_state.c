/* A layer with a state, one line per operation: see forward.h. The products of a row lie side by
 * side as struct spw_mixer_config says; where each part of them begins is a matter of columns. */
#include "model/forward_parts.h"

#include "quant/types.h"

#include <assert.h>

struct call {
    const struct spw_forward *f;
    const struct spw_mixer_config *m;
    const struct spw_layer_weights *matrices; /* NULL: what products give is there already */
    const struct spw_layer_small *v;
    size_t stride; /* of b.state_in */
    const struct spw_state_part *parts;
    uint32_t n_parts;
    size_t rows;
};

/* ---- columns of b.state_in ---- */

static struct spw_head_columns side_by_side(uint32_t first, uint32_t width, uint32_t heads)
{
    return (struct spw_head_columns){first, width, heads, 0};
}

struct delta_columns {
    struct spw_head_columns q, k, v, gate, beta, rate;
};

static struct delta_columns delta_columns(const struct spw_mixer_config *m)
{
    const uint32_t key = m->key_dim, value = m->value_dim, shared = m->heads / m->key_heads;
    const uint32_t keys = m->key_heads * key, values = m->heads * value;
    const uint32_t group = 2 * key + 2 * shared * value, rates = m->conv_channels + values;
    struct delta_columns c = {
        .q = side_by_side(0, key, m->key_heads),
        .k = side_by_side(keys, key, m->key_heads),
        .v = side_by_side(2 * keys, value, m->heads),
        .gate = side_by_side(m->conv_channels, value, m->heads),
        .beta = side_by_side(rates, 1, m->heads),
        .rate = side_by_side(rates + m->heads, 1, m->heads),
    };
    if (m->grouped) {
        c.q = (struct spw_head_columns){0, key, 1, group};
        c.k = (struct spw_head_columns){key, key, 1, group};
        c.v = (struct spw_head_columns){2 * key, value, shared, group};
        c.gate = (struct spw_head_columns){2 * key + shared * value, value, shared, group};
    }
    if (m->grouped_rates) {
        c.beta = (struct spw_head_columns){rates, 1, shared, 2 * shared};
        c.rate = (struct spw_head_columns){rates + shared, 1, shared, 2 * shared};
    }
    return c;
}

/* ---- operations ---- */

/* The address of a number of a buffer of the compute type. */
static void *number_at(const struct spw_forward *f, const void *x, size_t n)
{
    return (uint8_t *)x + spw_row_bytes(f->dtype, n);
}

/* Copies some parts for a call whose rows begin with those of the first part. Their states lie
 * `floats` into those of the layer. */
static void take_parts(struct spw_state_part *to, const struct spw_state_part *from, uint32_t n,
                       uint64_t floats)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] = from[i];
        to[i].state += floats;
        to[i].row -= from->row;
    }
}

/* b.state_conv = the convolution of x, which has the columns of a->runs. */
static int convolve(const struct call *c, struct spw_conv_args *a)
{
    const struct spw_forward *f = c->f;
    const void *x = a->x;
    a->w = f->small + c->v->conv;
    a->bias = spw_forward_vector(f, c->v->conv_bias);
    a->channels = c->m->conv_channels;
    a->width = c->m->conv_width;
    a->act = c->m->act;
    a->dtype = f->dtype;
    for (uint32_t i = 0; i < c->n_parts; i += a->n_parts) {
        const size_t row = c->parts[i].row;
        a->n_parts = spw_min_u32(c->n_parts - i, SPW_STATE_PARTS);
        a->x = number_at(f, x, row * a->x_stride);
        a->y = number_at(f, f->b.state_conv, row * a->channels);
        take_parts(a->parts, &c->parts[i], a->n_parts, 0);
        SPW_TRY(f->ops->conv(a, f->stream));
    }
    return 0;
}

/* b.state_out = the recurrence, in the type y_dtype. Pointers of *a are those of row 0. */
static int recur(const struct call *c, struct spw_recur_args *a, enum spw_dtype y_dtype)
{
    const struct spw_forward *f = c->f;
    const struct spw_recur_args first = *a;
    const uint64_t y_bytes = spw_row_bytes(y_dtype, spw_mixer_width(c->m));
    a->kind = c->m->kind;
    a->heads = c->m->heads;
    a->key_heads = c->m->key_heads;
    a->key_dim = c->m->key_dim;
    a->value_dim = c->m->value_dim;
    a->tiled = c->m->tiled;
    a->not_finite = f->b.not_finite;
    a->dtype = f->dtype;
    for (uint32_t i = 0; i < c->n_parts; i += a->n_parts) {
        const size_t row = c->parts[i].row;
        a->n_parts = spw_min_u32(c->n_parts - i, SPW_STATE_PARTS);
        a->q = first.q ? number_at(f, first.q, row * a->q_stride) : NULL;
        a->k = first.k ? number_at(f, first.k, row * a->k_stride) : NULL;
        a->v = number_at(f, first.v, row * a->v_stride);
        a->rate = number_at(f, first.rate, row * a->rate_stride);
        a->gate = first.gate ? number_at(f, first.gate, row * a->rate_stride) : NULL;
        a->y = (uint8_t *)f->b.state_out + row * y_bytes;
        take_parts(a->parts, &c->parts[i], a->n_parts, spw_mixer_conv_floats(c->m));
        SPW_TRY(f->ops->recur(a, f->stream));
    }
    return 0;
}

/* ---- kinds: the state takes the rows; then comes what the last product takes ---- */

static int take_conv(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const uint32_t n = c->m->conv_channels;
    struct spw_conv_args conv = {
        .x = f->b.x, .x_stride = n, .runs[0] = {side_by_side(0, n, 1), .n_heads = 1}};
    SPW_TRY(f->ops->gated(&(struct spw_gated_args){.gate = f->b.state_in,
                                                   .up = number_at(f, f->b.state_in, 2 * n),
                                                   .y = f->b.x,
                                                   .rows = c->rows,
                                                   .cols = n,
                                                   .gate_stride = c->stride,
                                                   .up_stride = c->stride,
                                                   .act = SPW_ACT_IDENTITY,
                                                   .dtype = f->dtype},
                          f->stream));
    return convolve(c, &conv);
}

static int gate_conv(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const uint32_t n = c->m->conv_channels;
    return f->ops->gated(&(struct spw_gated_args){.gate = number_at(f, f->b.state_in, n),
                                                  .up = f->b.state_conv,
                                                  .y = f->b.state_out,
                                                  .rows = c->rows,
                                                  .cols = n,
                                                  .gate_stride = c->stride,
                                                  .up_stride = n,
                                                  .act = SPW_ACT_IDENTITY,
                                                  .dtype = f->dtype},
                         f->stream);
}

static int take_delta(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    const struct delta_columns at = delta_columns(m);
    const size_t keys = (size_t)m->key_heads * m->key_dim;
    struct spw_conv_args conv = {
        .x = f->b.state_in,
        .x_stride = c->stride,
        .runs = {{at.q, m->key_heads}, {at.k, m->key_heads}, {at.v, m->heads}},
        .activates = true};
    struct spw_recur_args recurrence = {.q = f->b.state_conv,
                                        .k = number_at(f, f->b.state_conv, keys),
                                        .v = number_at(f, f->b.state_conv, 2 * keys),
                                        .q_stride = m->conv_channels,
                                        .k_stride = m->conv_channels,
                                        .v_stride = m->conv_channels,
                                        .rate = f->b.state_in,
                                        .gate = f->b.state_in,
                                        .rate_stride = c->stride,
                                        .rates = at.rate,
                                        .gates = at.beta,
                                        .a = f->small + c->v->decay,
                                        .dt_bias = f->small + c->v->dt_bias};
    SPW_TRY(convolve(c, &conv));
    return recur(c, &recurrence, f->dtype);
}

static int gate_delta(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    return f->ops->gated_norm(&(struct spw_gated_norm_args){.x = f->b.state_out,
                                                            .gate = f->b.state_in,
                                                            .gate_stride = c->stride,
                                                            .gates = delta_columns(m).gate,
                                                            .weight = f->small + c->v->gate_norm,
                                                            .y = f->b.state_out,
                                                            .rows = c->rows,
                                                            .n_groups = m->heads,
                                                            .cols = m->value_dim,
                                                            .eps = m->eps,
                                                            .norm_first = m->norm_first,
                                                            .norm = m->norm,
                                                            .act = SPW_ACT_SILU,
                                                            .x_dtype = f->dtype,
                                                            .dtype = f->dtype},
                              f->stream);
}

/* y = x W^T of the gates of a block of channels. */
static int gate_block(const struct call *c, enum spw_matrix_role role, uint64_t bias, uint32_t b,
                      void *y)
{
    const struct spw_forward *f = c->f;
    struct spw_operand block = c->matrices->of[role];
    assert(!block.on_host); /* the host multiplies no layer with such matrices */
    const size_t first = b * block.k;
    block.n = block.k;
    block.w += first * spw_row_bytes(block.type, block.k);
    struct spw_linear_args a = spw_forward_linear_args(
        f, &block, number_at(f, f->b.state_conv, first), number_at(f, y, first), c->rows);
    a.bias = f->small + bias + first;
    a.x_stride = c->m->conv_channels;
    a.y_stride = (size_t)spw_mixer_rates_width(c->m);
    return f->ops->linear(&a, f->stream);
}

static int take_lru(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const uint32_t n = c->m->conv_channels;
    void *const rates = number_at(f, f->b.state_rates, n);
    struct spw_conv_args conv = {.x = f->b.state_in,
                                 .x_stride = c->stride,
                                 .runs[0] = {side_by_side(0, n, 1), .n_heads = 1}};
    struct spw_recur_args recurrence = {.v = f->b.state_conv,
                                        .v_stride = n,
                                        .rate = rates,
                                        .gate = f->b.state_rates,
                                        .rate_stride = (size_t)spw_mixer_rates_width(c->m),
                                        .a = f->small + c->v->decay};
    SPW_TRY(convolve(c, &conv));
    for (uint32_t b = 0; b < c->m->gate_blocks && c->matrices; b++) {
        SPW_TRY(gate_block(c, SPW_MATRIX_LRU_GATE, c->v->lru_gate_bias, b, f->b.state_rates));
        SPW_TRY(gate_block(c, SPW_MATRIX_LRU_RATE, c->v->lru_rate_bias, b, rates));
    }
    return recur(c, &recurrence, f->dtype);
}

static int gate_lru(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const uint32_t n = c->m->conv_channels;
    return f->ops->gated_norm(&(struct spw_gated_norm_args){.x = f->b.state_out,
                                                            .gate = f->b.state_in,
                                                            .gate_stride = c->stride,
                                                            .gates = side_by_side(n, n, 1),
                                                            .y = f->b.state_out,
                                                            .rows = c->rows,
                                                            .n_groups = 1,
                                                            .cols = n,
                                                            .act = f->weights->config->act,
                                                            .x_dtype = f->dtype,
                                                            .dtype = f->dtype},
                              f->stream);
}

/* The values, then the keys and the queries of Mamba 2. */
static int take_ssd(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    const uint32_t width = (uint32_t)spw_mixer_width(m), keys = m->key_heads * m->key_dim;
    struct spw_conv_args conv = {.x = f->b.state_in,
                                 .x_stride = c->stride,
                                 .runs[0] = {side_by_side(width, m->conv_channels, 1), 1},
                                 .activates = true};
    struct spw_recur_args recurrence = {.v = f->b.state_conv,
                                        .k = number_at(f, f->b.state_conv, width),
                                        .q = number_at(f, f->b.state_conv, width + keys),
                                        .q_stride = m->conv_channels,
                                        .k_stride = m->conv_channels,
                                        .v_stride = m->conv_channels,
                                        .rate = f->b.state_in,
                                        .rate_stride = c->stride,
                                        .rates =
                                            side_by_side(width + m->conv_channels, 1, m->heads),
                                        .a = f->small + c->v->decay,
                                        .dt_bias = f->small + c->v->dt_bias,
                                        .skip = f->small + c->v->skip};
    SPW_TRY(convolve(c, &conv));
    return recur(c, &recurrence, SPW_DTYPE_F32);
}

static int gate_ssd(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    const uint32_t width = (uint32_t)spw_mixer_width(m);
    return f->ops->gated_norm(
        &(struct spw_gated_norm_args){.x = f->b.state_out,
                                      .gate = f->b.state_in,
                                      .gate_stride = c->stride,
                                      .gates = side_by_side(0, width / m->key_heads, m->key_heads),
                                      .weight = spw_forward_vector(f, c->v->gate_norm),
                                      .own_weights = true,
                                      .y = f->b.state_conv, /* x is wider in bf16 */
                                      .rows = c->rows,
                                      .n_groups = m->key_heads,
                                      .cols = width / m->key_heads,
                                      .eps = m->eps,
                                      .norm_first = m->norm_first,
                                      .norm = m->norm,
                                      .act = SPW_ACT_SILU,
                                      .x_dtype = SPW_DTYPE_F32,
                                      .dtype = f->dtype},
        f->stream);
}

/* dt, B and C of Mamba are products of what the convolution gives; dt then gets its full width,
 * before them in a row of b.state_rates. */
static int rates_of_scan(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_operand *scan = &c->matrices->of[SPW_MATRIX_SCAN];
    const size_t stride = (size_t)spw_mixer_rates_width(c->m);
    void *dt = f->b.state_rates, *narrow = number_at(f, dt, c->m->value_dim);
    SPW_TRY(spw_forward_linear(f, scan, 1, SPW_SMALL_NONE, f->b.state_conv, NULL, narrow, stride,
                               c->rows));
    const struct spw_operand *wide = &c->matrices->of[SPW_MATRIX_SCAN_DT];
    struct spw_linear_args a = spw_forward_linear_args(f, wide, narrow, dt, c->rows);
    a.x_stride = stride;
    a.y_stride = stride;
    a.bias = f->small + c->v->dt_bias;
    return spw_forward_product(f, wide, &a, false);
}

static int take_scan(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    const size_t stride = (size_t)spw_mixer_rates_width(m);
    const void *narrow = number_at(f, f->b.state_rates, m->value_dim);
    struct spw_conv_args conv = {.x = f->b.state_in,
                                 .x_stride = c->stride,
                                 .runs[0] = {side_by_side(0, m->value_dim, 1), 1},
                                 .activates = true};
    struct spw_recur_args recurrence = {.v = f->b.state_conv,
                                        .k = number_at(f, narrow, m->dt_rank),
                                        .q = number_at(f, narrow, m->dt_rank + m->key_dim),
                                        .q_stride = stride,
                                        .k_stride = stride,
                                        .v_stride = m->value_dim,
                                        .rate = f->b.state_rates,
                                        .rate_stride = stride,
                                        .a = f->small + c->v->decay,
                                        .skip = f->small + c->v->skip};
    SPW_TRY(convolve(c, &conv));
    if (c->matrices)
        SPW_TRY(rates_of_scan(c));
    return recur(c, &recurrence, f->dtype);
}

static int gate_scan(const struct call *c)
{
    const struct spw_forward *f = c->f;
    const struct spw_mixer_config *m = c->m;
    return f->ops->gated_norm(
        &(struct spw_gated_norm_args){.x = f->b.state_out,
                                      .gate = f->b.state_in,
                                      .gate_stride = c->stride,
                                      .gates = side_by_side(m->value_dim, m->value_dim, 1),
                                      .y = f->b.state_conv,
                                      .rows = c->rows,
                                      .n_groups = 1,
                                      .cols = m->value_dim,
                                      .act = SPW_ACT_SILU,
                                      .x_dtype = f->dtype,
                                      .dtype = f->dtype},
        f->stream);
}

static const struct {
    int (*take)(const struct call *c), (*gate)(const struct call *c);
    bool in_conv; /* the result is in b.state_conv, else in b.state_out */
} mixers[] = {
    [SPW_MIXER_CONV] = {take_conv, gate_conv, false},
    [SPW_MIXER_DELTA] = {take_delta, gate_delta, false},
    [SPW_MIXER_SSD] = {take_ssd, gate_ssd, true},
    [SPW_MIXER_SCAN] = {take_scan, gate_scan, true},
    [SPW_MIXER_LRU] = {take_lru, gate_lru, false},
};

/* b.state_in = the products of x, side by side, and scaled where the family does that. */
static int project(const struct call *c, const void *x)
{
    const struct spw_forward *f = c->f;
    struct spw_operand in[SPW_MATRIX_IN_RATE - SPW_MATRIX_IN + 1];
    int n = 0;
    for (int r = SPW_MATRIX_IN; r <= SPW_MATRIX_IN_RATE; r++)
        if (c->matrices->of[r].n)
            in[n++] = c->matrices->of[r];
    SPW_TRY(
        spw_forward_linear(f, in, n, c->v->in_bias, x, NULL, f->b.state_in, c->stride, c->rows));
    if (f->weights->in_scales == SPW_SMALL_NONE)
        return 0;
    return f->ops->norm(&(struct spw_norm_args){.x = f->b.state_in,
                                                .y = f->b.state_in,
                                                .weight = f->small + f->weights->in_scales,
                                                .rows = c->rows,
                                                .cols = c->stride,
                                                .x_stride = c->stride,
                                                .y_stride = c->stride,
                                                .kind = SPW_NORM_NONE,
                                                .dtype = f->dtype},
                        f->stream);
}

int spw_forward_state(const struct spw_forward *f, uint32_t layer,
                      const struct spw_layer_weights *m, const struct spw_state_part *parts,
                      uint32_t n_parts, void *h, size_t rows)
{
    const struct spw_mixer_config *mixer = &f->weights->config->mixer;
    const struct spw_layer_small *v = &f->weights->small_layers[layer];
    const struct call c = {.f = f,
                           .m = mixer,
                           .matrices = m,
                           .v = v,
                           .stride = (size_t)spw_mixer_in_width(mixer),
                           .parts = parts,
                           .n_parts = n_parts,
                           .rows = rows};
    const void *x;
    SPW_TRY(spw_forward_normed(f, v->attention_norm, h, &x, rows));
    SPW_TRY(project(&c, x));
    SPW_TRY(mixers[mixer->kind].take(&c));
    SPW_TRY(mixers[mixer->kind].gate(&c));
    return spw_forward_linear_added(
        f, &m->of[SPW_MATRIX_OUT], SPW_BRANCH_STATE, v->out_bias, v->after_attention_norm,
        SPW_SMALL_NONE, mixers[mixer->kind].in_conv ? f->b.state_conv : f->b.state_out, h, rows);
}

int spw_forward_take(const struct spw_forward *f, uint32_t layer, const struct spw_state_part *part,
                     void *in, void *rates)
{
    const struct spw_mixer_config *mixer = &f->weights->config->mixer;
    struct spw_forward kept = *f;
    kept.b.state_in = in;
    kept.b.state_rates = rates;
    return mixers[mixer->kind].take(&(struct call){.f = &kept,
                                                   .m = mixer,
                                                   .v = &f->weights->small_layers[layer],
                                                   .stride = (size_t)spw_mixer_in_width(mixer),
                                                   .parts = part,
                                                   .n_parts = 1,
                                                   .rows = part->rows});
}
