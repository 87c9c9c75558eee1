/* Drawn calls of conv, recur and gated_norm, and references for them in f64. Tests of the CPU and
 * of CUDA share them. */
#ifndef SPW_TESTS_UNIT_KERNELS_STATE_PROBLEM_H
#define SPW_TESTS_UNIT_KERNELS_STATE_PROBLEM_H

#include "base/numbers.h"
#include "tests/unit/kernels/ops_cpu_each.h"

#include <stdlib.h>

enum { STATE_INPUTS = 8, STATE_CANARY = 64, STATE_MOST_PARTS = 4 };

/* A call. Its inputs are owned; a pointer to an output is NULL. */
struct state_problem {
    union {
        struct spw_conv_args conv;
        struct spw_recur_args recur;
        struct spw_gated_norm_args norm;
    } a;
    struct {
        size_t place, bytes; /* of the pointer in `a`; of what it points to */
    } inputs[STATE_INPUTS];
    int n_inputs;
    struct spw_state_part parts[STATE_MOST_PARTS]; /* with states of their own, owned */
    uint32_t n_parts, rows;
    size_t state_floats, y_bytes;
};

/* What a run writes: y, with a canary, and the states. */
struct state_written {
    char *y;
    float *states[STATE_MOST_PARTS];
    uint32_t not_finite;
};

static uint64_t state_rng;

static inline uint32_t state_draw(uint32_t low, uint32_t high)
{
    return (uint32_t)check_range(&state_rng, low, high);
}

/* In [low, high). */
static inline double state_real(double low, double high)
{
    return low + (high - low) * (each_uniform(&state_rng) + 1) / 2;
}

static inline enum spw_dtype state_draw_dtype(void)
{
    return state_draw(0, 1) ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
}

/* An input of n elements in [low, high), for the pointer at `place` of p->a. */
static inline void *state_input(struct state_problem *p, void *place, size_t n, enum spw_dtype t,
                                double low, double high)
{
    void *data = malloc(n * spw_dtype_bytes(t) + 1);
    for (size_t i = 0; i < n; i++)
        each_store(data, i, t, state_real(low, high));
    memcpy(place, &data, sizeof data);
    p->inputs[p->n_inputs].place = (size_t)((char *)place - (char *)&p->a);
    p->inputs[p->n_inputs++].bytes = n * spw_dtype_bytes(t);
    return data;
}

/* Sequences, `most` rows each or fewer. */
static inline void state_draw_parts(struct state_problem *p, uint32_t most)
{
    p->n_parts = state_draw(1, STATE_MOST_PARTS);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct spw_state_part *part = &p->parts[i];
        part->row = p->rows;
        part->rows = state_draw(0, 2) ? state_draw(1, most) : 1;
        part->position = state_draw(0, 1) ? 0 : state_draw(1, 5000);
        p->rows += part->rows;
    }
}

/* A sequence begins with zeros. */
static inline void state_draw_states(struct state_problem *p, size_t floats)
{
    p->state_floats = floats;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const double most = p->parts[i].position ? 1 : 0;
        p->parts[i].state = malloc(floats * sizeof(float) + 1);
        for (size_t j = 0; j < floats; j++)
            p->parts[i].state[j] = (float)(most * each_uniform(&state_rng));
    }
}

static inline void state_problem_free(struct state_problem *p)
{
    for (int i = 0; i < p->n_inputs; i++) {
        void *data;
        memcpy(&data, (char *)&p->a + p->inputs[i].place, sizeof data);
        free(data);
    }
    for (uint32_t i = 0; i < p->n_parts; i++)
        free(p->parts[i].state);
}

/* Memory of a state that begins has any bits: nobody reads it. */
static inline struct state_written state_written_init(const struct state_problem *p)
{
    struct state_written w = {
        .y = memset(malloc(p->y_bytes + STATE_CANARY), 0xa5, p->y_bytes + STATE_CANARY)};
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const size_t bytes = p->state_floats * sizeof(float);
        w.states[i] = memset(malloc(bytes + 1), 0xff, bytes);
        if (p->parts[i].position)
            memcpy(w.states[i], p->parts[i].state, bytes);
    }
    return w;
}

static inline void state_written_free(struct state_written *w)
{
    free(w->y);
    for (int i = 0; i < STATE_MOST_PARTS; i++)
        free(w->states[i]);
}

static inline bool state_written_same(const struct state_problem *p, const struct state_written *w,
                                      const struct state_written *other)
{
    bool same =
        w->not_finite == other->not_finite && !memcmp(w->y, other->y, p->y_bytes + STATE_CANARY);
    for (uint32_t i = 0; i < p->n_parts; i++)
        same &= !memcmp(w->states[i], other->states[i], p->state_floats * sizeof(float));
    return same;
}

/* The parts of rows [from, to) of the call, whose states are these. Returns how many. */
static inline uint32_t state_cut_parts(const struct state_problem *p, float *const *states,
                                       uint32_t from, uint32_t to, struct spw_state_part *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct spw_state_part part = p->parts[i];
        const uint32_t first = spw_max_u32(part.row, from);
        const uint32_t end = part.row + part.rows < to ? part.row + part.rows : to;
        if (first >= end)
            continue;
        part.position += first - part.row;
        part.row = first, part.rows = end - first, part.state = states[i];
        out[n++] = part;
    }
    return n;
}

static inline void state_let_stay(struct spw_state_part *parts, uint32_t n, bool stays)
{
    for (uint32_t i = 0; i < n; i++)
        parts[i].stays = stays;
}

/* ---- recur ---- */

static inline const char *recur_text(const struct state_problem *p)
{
    static char text[200];
    const struct spw_recur_args *a = &p->a.recur;
    snprintf(text, sizeof text, "kind %d: %u parts, %u rows, heads %u/%u, state %u x %u, type %d",
             (int)a->kind, p->n_parts, p->rows, a->heads, a->key_heads, a->key_dim, a->value_dim,
             (int)a->dtype);
    return text;
}

static inline double state_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double state_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* beta is rounded to bf16: gates whose beta lies near the middle of two values are moved. */
static inline void recur_keep_from_ties(void *gates, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (;;) {
            const double beta = state_sigmoid(each_load(gates, i, SPW_DTYPE_BF16));
            const double down = each_round_as(beta * (1 - 0x1p-20), SPW_DTYPE_BF16);
            if (down == each_round_as(beta * (1 + 0x1p-20), SPW_DTYPE_BF16))
                break;
            each_store(gates, i, SPW_DTYPE_BF16, state_real(-5, 5));
        }
}

/* A state of this many numbers, or fewer. */
static inline void recur_draw_shape(struct spw_recur_args *a, uint32_t most)
{
    const bool has_heads = a->kind == SPW_MIXER_DELTA || a->kind == SPW_MIXER_SSD;
    do {
        a->key_heads = has_heads ? state_draw(1, 3) : 1;
        a->heads = a->key_heads * (has_heads ? state_draw(1, 3) : 1);
        a->key_dim = a->kind == SPW_MIXER_LRU ? 1 : state_draw(0, 3) ? state_draw(1, 40) : 128;
        a->value_dim = state_draw(0, 2) ? state_draw(1, 100) : 32 * state_draw(1, 3);
    } while (a->heads * a->key_dim * a->value_dim > most);
    a->tiled = state_draw(0, 1);
    a->dtype = state_draw_dtype();
}

static inline struct spw_head_columns state_draw_columns(uint32_t width, uint32_t heads)
{
    const uint32_t per_group = state_draw(1, heads);
    return (struct spw_head_columns){state_draw(0, 3), width, per_group,
                                     per_group * width + state_draw(0, 2)};
}

/* Elements of a row with these heads. */
static inline size_t state_columns_end(const struct spw_head_columns *c, uint32_t heads)
{
    return spw_head_column(c, heads - 1) + c->width;
}

static inline void recur_draw_rates(struct state_problem *p)
{
    struct spw_recur_args *a = &p->a.recur;
    const size_t values = (size_t)a->heads * a->value_dim;
    size_t width = values;
    if (a->kind == SPW_MIXER_DELTA || a->kind == SPW_MIXER_SSD) {
        a->rates = state_draw_columns(1, a->heads);
        a->gates = state_draw_columns(1, a->heads);
        width = spw_max_u64(state_columns_end(&a->rates, a->heads),
                            state_columns_end(&a->gates, a->heads));
        state_input(p, &a->dt_bias, a->heads, SPW_DTYPE_F32, -2, 1);
    }
    a->rate_stride = width + state_draw(0, 2);
    state_input(p, &a->rate, p->rows * a->rate_stride, a->dtype, -5, 3);
    if (a->kind == SPW_MIXER_DELTA || a->kind == SPW_MIXER_LRU)
        state_input(p, &a->gate, p->rows * a->rate_stride, a->dtype, -5, 5);
    if (a->kind == SPW_MIXER_DELTA && a->dtype == SPW_DTYPE_BF16)
        recur_keep_from_ties((void *)(uintptr_t)a->gate, p->rows * a->rate_stride);
    if ((a->kind == SPW_MIXER_SSD || a->kind == SPW_MIXER_SCAN) && state_draw(0, 3))
        state_input(p, &a->skip, a->kind == SPW_MIXER_SSD ? a->heads : values, SPW_DTYPE_F32, -1,
                    1);
    state_input(p, &a->a,
                a->kind == SPW_MIXER_SCAN  ? a->key_dim * values
                : a->kind == SPW_MIXER_LRU ? values
                                           : a->heads,
                SPW_DTYPE_F32, -2, state_draw(0, 1) ? 0 : -0.001);
}

/* rows: of one sequence with a small state; 0: several short ones. */
static inline struct state_problem *recur_problem_draw(enum spw_mixer_kind kind, uint32_t rows)
{
    struct state_problem *p = calloc(1, sizeof *p);
    struct spw_recur_args *a = &p->a.recur;
    if (rows)
        p->parts[p->n_parts++] = (struct spw_state_part){.rows = p->rows = rows};
    else
        state_draw_parts(p, 40);
    a->kind = kind;
    recur_draw_shape(a, rows ? 200 : UINT32_MAX);
    const size_t keys = (size_t)a->key_heads * a->key_dim, values = (size_t)a->heads * a->value_dim;
    a->q_stride = keys + state_draw(0, 3), a->k_stride = keys + state_draw(0, 3);
    a->v_stride = values + state_draw(0, 3);
    if (kind != SPW_MIXER_LRU) {
        state_input(p, &a->q, p->rows * a->q_stride, a->dtype, -1, 1);
        state_input(p, &a->k, p->rows * a->k_stride, a->dtype, -0.5, 1);
    }
    state_input(p, &a->v, p->rows * a->v_stride, a->dtype, -2, 2);
    recur_draw_rates(p);
    state_draw_states(p, a->key_dim * values);
    p->y_bytes =
        p->rows * values * spw_dtype_bytes(kind == SPW_MIXER_SSD ? SPW_DTYPE_F32 : a->dtype);
    return p;
}

/* ---- the reference ---- */

/* A head of a sequence. */
struct recur_head {
    const struct spw_recur_args *a;
    uint32_t head, key_head;
    double *s, *k, *q; /* [key_dim][value_dim], [key_dim], [key_dim] */
    double largest;    /* of all numbers of the state until now */
};

static inline void recur_load_head(const struct recur_head *h, const void *x, size_t at, double *to)
{
    double squares = 0;
    for (uint32_t i = 0; i < h->a->key_dim; i++) {
        to[i] = each_load(x, at + h->key_head * h->a->key_dim + i, h->a->dtype);
        squares += to[i] * to[i];
    }
    for (uint32_t i = 0; i < h->a->key_dim && h->a->kind == SPW_MIXER_DELTA; i++)
        to[i] /= sqrt(squares + 1e-6);
}

/* The decay of S_ij, and what belongs to it: beta, dt, or sqrt(1 - g^2) times the gate. */
static inline double recur_decay(const struct recur_head *h, size_t row, uint64_t position,
                                 uint32_t i, uint32_t j, double *factor)
{
    const struct spw_recur_args *a = h->a;
    const bool by_head = a->kind == SPW_MIXER_DELTA || a->kind == SPW_MIXER_SSD;
    const size_t at = row * a->rate_stride;
    const double rate =
        each_load(a->rate, at + (by_head ? spw_head_column(&a->rates, h->head) : j), a->dtype);
    double gate = 0;
    if (a->gate)
        gate = state_sigmoid(
            each_load(a->gate, at + (by_head ? spw_head_column(&a->gates, h->head) : j), a->dtype));
    if (a->kind == SPW_MIXER_LRU) {
        const double g = position ? (double)a->a[j] * state_sigmoid(rate) : -INFINITY;
        *factor = gate * sqrt(-expm1(2 * g));
        return exp(g);
    }
    const double dt = state_softplus(rate + (by_head ? (double)a->dt_bias[h->head] : 0));
    *factor = a->kind == SPW_MIXER_DELTA ? each_round_as(gate, a->dtype) : dt;
    return exp(dt * (double)a->a[by_head ? h->head : i * a->value_dim + j]);
}

/* Value channel j of a row: the new column of S. Returns o. */
static inline double recur_channel(struct recur_head *h, size_t row, uint64_t position, uint32_t j)
{
    const struct spw_recur_args *a = h->a;
    const size_t at = h->head * a->value_dim + j;
    const double v = each_load(a->v, row * a->v_stride + at, a->dtype);
    double factor = 0, sum = 0, o = 0;
    for (uint32_t i = 0; i < a->key_dim; i++) {
        double *s = &h->s[i * a->value_dim + j];
        *s *= recur_decay(h, row, position, i, j, &factor);
        sum += h->k[i] * *s;
    }
    const double u = factor * (a->kind == SPW_MIXER_DELTA ? v - sum : v);
    for (uint32_t i = 0; i < a->key_dim; i++) {
        double *s = &h->s[i * a->value_dim + j];
        *s += h->k[i] * u;
        o += h->q[i] * *s;
        h->largest = fmax(h->largest, fabs(*s));
    }
    const double skip = a->skip ? (double)a->skip[a->kind == SPW_MIXER_SSD ? h->head : j] : 0;
    return o + skip * v;
}

/* Whether a row of the head is right. Returns how far its worst number is off, in 2^-24 of the
 * largest number of the state so far (times the sum of |q| for o); what the store rounds is free.
 */
static inline double recur_row(struct recur_head *h, size_t row, uint64_t position, const void *y)
{
    const struct spw_recur_args *a = h->a;
    const enum spw_dtype t = a->kind == SPW_MIXER_SSD ? SPW_DTYPE_F32 : a->dtype;
    double worst = 0, q = 0;
    h->q[0] = h->k[0] = 1;
    if (a->q) {
        recur_load_head(h, a->q, row * a->q_stride, h->q);
        recur_load_head(h, a->k, row * a->k_stride, h->k);
    }
    for (uint32_t i = 0; i < a->key_dim; i++) {
        h->q[i] /= a->kind == SPW_MIXER_DELTA ? sqrt((double)a->key_dim) : 1;
        q += fabs(h->q[i]);
    }
    for (uint32_t j = 0; j < a->value_dim; j++) {
        const double o = recur_channel(h, row, position, j);
        const double got = each_load(y, (row * a->heads + h->head) * a->value_dim + j, t);
        const double off = fabs(got - o) - 0.51 * each_ulp(o, t);
        worst = fmax(worst, off / (h->largest * q + fabs(o)));
    }
    return worst * 0x1p24;
}

/* The worst number of all that a run has written, as recur_row says. */
static inline double recur_worst(const struct state_problem *p, const struct state_written *w)
{
    const struct spw_recur_args *a = &p->a.recur;
    const size_t n = (size_t)a->key_dim * a->value_dim;
    struct recur_head h = {.a = a};
    double worst = 0;
    h.s = malloc((n + 2 * a->key_dim) * sizeof *h.s), h.k = h.s + n, h.q = h.k + a->key_dim;
    for (uint32_t i = 0; i < p->n_parts * a->heads; i++) {
        const struct spw_state_part *part = &p->parts[i / a->heads];
        h.head = i % a->heads, h.largest = 0;
        h.key_head = a->tiled ? h.head % a->key_heads : h.head / (a->heads / a->key_heads);
        for (size_t j = 0; j < n; j++) {
            h.s[j] = (double)part->state[h.head * n + j];
            h.largest = fmax(h.largest, fabs(h.s[j]));
        }
        for (uint32_t row = 0; row < part->rows; row++)
            worst = fmax(worst, recur_row(&h, part->row + row, part->position + row, w->y));
        for (size_t j = 0; j < n; j++) {
            const double off = fabs((double)w->states[i / a->heads][h.head * n + j] - h.s[j]);
            worst = fmax(worst, off / h.largest * 0x1p24);
        }
    }
    free(h.s);
    return worst;
}

/* ---- conv ---- */

static inline struct state_problem *conv_problem_draw(void)
{
    static const enum spw_activation acts[] = {
        SPW_ACT_SILU, SPW_ACT_GELU_TANH,    SPW_ACT_GELU_ERF, SPW_ACT_GELU_QUICK,
        SPW_ACT_RELU, SPW_ACT_RELU_SQUARED, SPW_ACT_IDENTITY};
    struct state_problem *p = calloc(1, sizeof *p);
    struct spw_conv_args *a = &p->a.conv;
    size_t width = 0;
    state_draw_parts(p, state_draw(0, 3) ? 12 : 200);
    a->width = state_draw(1, SPW_MOST_CONV_WIDTH);
    a->act = acts[state_draw(0, 6)], a->activates = state_draw(0, 2);
    a->dtype = state_draw_dtype();
    for (uint32_t i = 0, n = state_draw(1, SPW_CONV_RUNS); i < n; i++) {
        a->runs[i].n_heads = state_draw(1, 6);
        a->runs[i].columns = state_draw_columns(
            state_draw(0, 1) ? state_draw(1, 40) : 64 * state_draw(1, 2), a->runs[i].n_heads);
        a->channels += a->runs[i].n_heads * a->runs[i].columns.width;
        width = spw_max_u64(width, state_columns_end(&a->runs[i].columns, a->runs[i].n_heads));
    }
    a->x_stride = width + state_draw(0, 3);
    state_input(p, &a->x, p->rows * a->x_stride, a->dtype, -2, 2);
    state_input(p, &a->w, a->channels * a->width, SPW_DTYPE_F32, -1, 1);
    if (state_draw(0, 1))
        state_input(p, &a->bias, a->channels, SPW_DTYPE_F32, -1, 1);
    state_draw_states(p, a->channels * (a->width - 1));
    for (uint32_t i = 0; i < p->n_parts; i++)
        for (size_t j = 0; j < p->state_floats; j++)
            p->parts[i].state[j] = (float)each_round_as((double)p->parts[i].state[j], a->dtype);
    p->y_bytes = p->rows * a->channels * spw_dtype_bytes(a->dtype);
    return p;
}

static inline const char *conv_text(const struct state_problem *p)
{
    static char text[200];
    const struct spw_conv_args *a = &p->a.conv;
    snprintf(text, sizeof text, "%u parts, %u rows, %u channels x %u, act %d %d, type %d",
             p->n_parts, p->rows, a->channels, a->width, a->activates, (int)a->act, (int)a->dtype);
    return text;
}

/* Input of a channel in row `row` of a part, which may be negative. */
static inline double conv_x(const struct state_problem *p, const struct spw_state_part *part,
                            int64_t row, uint32_t channel)
{
    const struct spw_conv_args *a = &p->a.conv;
    const size_t before = a->width - 1;
    uint32_t run = 0, own = channel;
    if (row < 0)
        return (double)part->state[channel * before + (size_t)((int64_t)before + row)];
    while (own >= a->runs[run].n_heads * a->runs[run].columns.width) {
        own -= a->runs[run].n_heads * a->runs[run].columns.width;
        run++;
    }
    const struct spw_head_columns *c = &a->runs[run].columns;
    const size_t column = spw_head_column(c, own / c->width) + own % c->width;
    return each_load(a->x, (part->row + (size_t)row) * a->x_stride + column, a->dtype);
}

static inline double conv_activation(double x, enum spw_activation act)
{
    if (act == SPW_ACT_SILU || act == SPW_ACT_GELU_QUICK)
        return x * state_sigmoid(act == SPW_ACT_SILU ? x : 1.702 * x);
    if (act == SPW_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    if (act == SPW_ACT_GELU_ERF)
        return 0.5 * x * erfc(-x / sqrt(2));
    if (act == SPW_ACT_RELU || act == SPW_ACT_RELU_SQUARED)
        return x < 0 ? 0 : act == SPW_ACT_RELU ? x : x * x;
    return x;
}

/* Whether one output is right: the sum within 2^-22 of its terms; a rounding of it may tip. */
static inline bool conv_right(const struct state_problem *p, const struct spw_state_part *part,
                              uint32_t row, uint32_t channel, double got)
{
    const struct spw_conv_args *a = &p->a.conv;
    double sum = a->bias ? (double)a->bias[channel] : 0, size = fabs(sum), want;
    for (uint32_t i = 0; i < a->width; i++) {
        const double x = conv_x(p, part, (int64_t)row + i + 1 - a->width, channel);
        sum += x * (double)a->w[channel * a->width + i];
        size += fabs(x * (double)a->w[channel * a->width + i]);
    }
    double slack = size * 0x1p-22;
    if (a->dtype == SPW_DTYPE_BF16)
        slack += each_ulp(sum, a->dtype) / 2;
    want = a->activates ? conv_activation(sum, a->act) : sum;
    if (a->activates)
        slack *= a->act == SPW_ACT_RELU_SQUARED ? 2 * fabs(sum) + slack : 1.2;
    return fabs(got - want) <=
           slack + each_ulp(fabs(want) + slack, a->dtype) / 2 + 4e-7 * fabs(want);
}

/* Outputs that are wrong, and numbers of the state, which are exact. */
static inline size_t conv_wrong(const struct state_problem *p, const struct state_written *w)
{
    const struct spw_conv_args *a = &p->a.conv;
    size_t wrong = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct spw_state_part *part = &p->parts[i];
        for (uint32_t row = 0; row < part->rows; row++)
            for (uint32_t c = 0; c < a->channels; c++)
                wrong +=
                    !conv_right(p, part, row, c,
                                each_load(w->y, (part->row + row) * a->channels + c, a->dtype));
        for (uint32_t j = 0; j < p->state_floats; j++) {
            const uint32_t before = a->width - 1;
            const int64_t row = (int64_t)part->rows - before + j % before;
            wrong += (double)w->states[i][j] != conv_x(p, part, row, j / before);
        }
    }
    return wrong;
}

/* ---- gated_norm ---- */

static inline struct state_problem *gated_norm_problem_draw(void)
{
    static const enum spw_activation acts[] = {SPW_ACT_SILU, SPW_ACT_SIGMOID, SPW_ACT_IDENTITY};
    struct state_problem *p = calloc(1, sizeof *p);
    struct spw_gated_norm_args *a = &p->a.norm;
    a->rows = p->rows = state_draw(1, 9);
    a->n_groups = state_draw(1, 5), a->cols = state_draw(0, 2) ? state_draw(1, 200) : 1500;
    a->dtype = state_draw_dtype();
    a->x_dtype = state_draw(0, 1) ? SPW_DTYPE_F32 : a->dtype;
    a->norm_first = state_draw(0, 1), a->own_weights = state_draw(0, 1);
    a->norm = state_draw(0, 1) ? SPW_NORM_LLAMA : SPW_NORM_LATE;
    a->act = acts[state_draw(0, 2)];
    a->eps = 1e-5f;
    a->gates = state_draw_columns(a->cols, a->n_groups);
    a->gate_stride = state_columns_end(&a->gates, a->n_groups) + state_draw(0, 2);
    const size_t n = a->rows * a->n_groups * a->cols;
    state_input(p, &a->x, n, a->x_dtype, -3, 3);
    state_input(p, &a->gate, a->rows * a->gate_stride, a->dtype, -4, 4);
    if (state_draw(0, 3))
        state_input(p, &a->weight, a->cols * (a->own_weights ? a->n_groups : 1), SPW_DTYPE_F32, -2,
                    2);
    p->y_bytes = n * spw_dtype_bytes(a->dtype);
    return p;
}

static inline const char *gated_norm_text(const struct state_problem *p)
{
    static char text[200];
    const struct spw_gated_norm_args *a = &p->a.norm;
    snprintf(text, sizeof text,
             "rows %zu, %u x %u, weights %d %d, first %d kind %d, act %d, types %d %d", a->rows,
             a->n_groups, a->cols, a->weight != NULL, a->own_weights, a->norm_first, (int)a->norm,
             (int)a->act, (int)a->x_dtype, (int)a->dtype);
    return text;
}

static inline double gated_norm_gate(const struct spw_gated_norm_args *a, size_t row,
                                     uint32_t group, uint32_t c)
{
    const double g =
        each_load(a->gate, row * a->gate_stride + spw_head_column(&a->gates, group) + c, a->dtype);
    return a->act == SPW_ACT_SILU      ? g * state_sigmoid(g)
           : a->act == SPW_ACT_SIGMOID ? state_sigmoid(g)
                                       : g;
}

/* What a group gives in f64, and how much each number may be off: in f32 the sum moves all of them
 * by a few 2^-24; in bf16 each rounding may tip. */
static inline void gated_norm_group(const struct spw_gated_norm_args *a, size_t row, uint32_t group,
                                    double *want, double *slack)
{
    const size_t at = (row * a->n_groups + group) * a->cols;
    const float *weight = a->own_weights ? a->weight + group * a->cols : a->weight;
    double squares = 0;
    for (uint32_t c = 0; c < a->cols; c++) {
        const double gate = a->norm_first ? 1 : gated_norm_gate(a, row, group, c);
        squares += pow(each_load(a->x, at + c, a->x_dtype) * gate, 2);
    }
    const double inverse = 1 / sqrt(squares / a->cols + (double)a->eps);
    for (uint32_t c = 0; c < a->cols; c++) {
        const double x = each_load(a->x, at + c, a->x_dtype),
                     gate = gated_norm_gate(a, row, group, c);
        const double n = x * inverse, w = a->weight ? (double)weight[c] : 1;
        const double step = a->dtype == SPW_DTYPE_BF16 ? 1 : 0;
        if (!a->weight) {
            want[c] = x * each_round_as(gate, a->dtype);
            slack[c] = step * fabs(x) * each_ulp(gate, a->dtype);
        } else if (!a->norm_first) {
            want[c] = n * gate * w;
            slack[c] = 0;
        } else {
            const double r = a->norm == SPW_NORM_LLAMA ? each_round_as(n, a->dtype) : n;
            want[c] = each_round_as(r * w, a->dtype) * gate;
            slack[c] =
                step * fabs(gate) * (fabs(w) * each_ulp(n, a->dtype) + each_ulp(r * w, a->dtype));
        }
        slack[c] += 1e-6 * fabs(want[c]) + 1e-9 + each_ulp(want[c], a->dtype) / 2;
    }
}

static inline size_t gated_norm_wrong(const struct state_problem *p, const void *y)
{
    const struct spw_gated_norm_args *a = &p->a.norm;
    double *want = malloc(2 * a->cols * sizeof *want), *slack = want + a->cols;
    size_t wrong = 0;
    for (size_t i = 0; i < a->rows * a->n_groups; i++) {
        gated_norm_group(a, i / a->n_groups, (uint32_t)(i % a->n_groups), want, slack);
        for (uint32_t c = 0; c < a->cols; c++)
            wrong += !(fabs(each_load(y, i * a->cols + c, a->dtype) - want[c]) <= slack[c]);
    }
    free(want);
    return wrong;
}

#endif
