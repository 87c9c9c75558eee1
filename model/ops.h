/* The operations a transformer layer is made of: one table of launchers per backend.
 *
 * Every launcher copies its arguments, queues the work on a stream and returns 0 or -errno; buffers
 * stay borrowed until the work is done. All pointers are device memory. A row's result never
 * depends on the other rows of the call, on how rows are cut into calls, or on the number of
 * threads: each output is one reduction in a fixed order. `dtype` is the activation type (f32, or
 * bf16 with fp32 accumulation and one rounding where a tensor is stored). */
#ifndef SPW_MODEL_OPS_H
#define SPW_MODEL_OPS_H

#include "model/kinds.h"
#include "quant/codec.h"
#include "quant/layer_kind.h"
#include "base/base.h"

/* y = norm(x), row by row; with a residual y = residual + norm(x); with a factor all of this times
 * the factor; each rounded as if stored. The kind SPW_NORM_NONE only multiplies by the weights. A
 * bias is added after them, without a rounding between. */
struct spw_norm_args {
    const void *x;                         /* [rows][x_stride], dtype */
    void *y;                               /* [rows][y_stride], dtype; may be x */
    const void *residual;                  /* as y, may be y; or NULL */
    const float *weight, *bias;            /* [cols]; weight NULL: all are 1; bias may be NULL */
    const float *factor;                   /* one number; or NULL */
    size_t rows, cols, x_stride, y_stride; /* elements */
    float eps;
    enum spw_norm_kind kind;
    enum spw_dtype dtype;
};

/* An expert of a row, and the weight of its output. */
struct spw_choice {
    uint32_t expert;
    float weight;
};

/* y = x W^T + bias; with a residual y = residual + (x W^T + bias), each rounded as if stored.
 * W as a Hugging Face file has it: [n][k].
 *
 * With choices row i of x is multiplied by the matrix of its expert, choices[i].expert. All these
 * matrices have one shape and one type, and addresses as aligned as w, which is any of them.
 * x_stride may be 0: then all rows of x are the same one. */
struct spw_linear_args {
    const void *x;        /* [m][x_stride], x_dtype; x_stride >= k */
    const void *w;        /* [n][k] contiguous, w_dtype */
    const float *bias;    /* [n], or NULL */
    void *y;              /* [m][y_stride], y_dtype (x_dtype or f32); y_stride >= n */
    const void *residual; /* as y, may be y; or NULL */
    size_t m, n, k, x_stride, y_stride;
    /* f32 x takes f32, f16 or bf16 w (widened exactly); bf16 x takes bf16 w. Both take a quantized
     * w: f32 x multiplies the numbers of quant/blocks.h, bf16 x the integers of quant/codes.h. */
    enum spw_dtype x_dtype, w_dtype, y_dtype;
    void *workspace; /* n_workers * workspace_bytes(k), 64-byte aligned; see spw_cpu_kernels */
    /* bf16 x and quantized w: room for struct spw_codes [m][spw_codes_groups(k)], 64-byte aligned.
     * has_codes: an earlier product of the same x with a type that takes the same codes
     * (spw_codes_shared) has filled it. */
    void *codes;
    bool has_codes;
    const struct spw_choice *choices; /* [m], or NULL: all rows by w */
    const void *const *matrices;      /* [experts]; their addresses */
    size_t bias_step;                 /* bias: from expert to expert */
};

/* y = act(x gate^T) * (x up^T). Each product with its bias, and what act makes of each, are rounded
 * as if they were stored. */
struct spw_gated_linear_args {
    const void *x;             /* [m][x_stride], dtype; x_stride >= k */
    const void *w_gate, *w_up; /* [n][k] contiguous each */
    const float *bias;         /* [2n]: gate's, then up's; or NULL */
    void *y;                   /* [m][n], dtype */
    void *scratch; /* [m][2n], dtype, if spw_ops.gated_scratch or if the matrices differ in type */
    size_t m, n, k, x_stride;
    enum spw_dtype dtype, gate_dtype, up_dtype; /* as x's and w's of linear */
    enum spw_activation act;
    void *workspace; /* as linear's, and so are the codes of x */
    void *codes;
    bool has_codes;
    const struct spw_choice *choices;      /* as linear's; the bias is [experts][2n] */
    const void *const *gates, *const *ups; /* [experts] */
};

/* y = act(gate) * up. What act makes of gate and the product are rounded as if stored. */
struct spw_gated_args {
    const void *gate, *up; /* [rows][gate_stride], [rows][up_stride], dtype */
    void *y;               /* [rows][cols], dtype; may be gate if gate_stride is cols */
    size_t rows, cols, gate_stride, up_stride;
    enum spw_activation act;
    enum spw_dtype dtype;
};

/* A launch passes the addresses of its tiles by value. 896 tiles of attention are as many as 4 KB
 * of parameters can name: a CUDA kernel gets distances of 32 bits (attention_cuda.cuh). */
enum {
    SPW_APPEND_TILES = 32,
    SPW_ATTENTION_TILES = 896, /* at most; a backend may take fewer: spw_ops.attention_tiles */
};

/* The work between the projections and attention, for `rows` consecutive positions. Each head of q
 * and k is normed, if the family does that, and rotated, or first rotated and then normed. Then q
 * is written back, and k and v are written into their tiles; v may be normed, too. Without KV heads
 * only q is rewritten. The bits equal those of norm, rope and a copy one after the other, each
 * rounded to dtype.
 *
 * The first rotary_dim channels of a head are rotated; pairs are i and i + rotary_dim/2. angle =
 * (float)position * inv_freq[i]; cos and sin are multiplied by `scaling`. Sums are rounded to
 * dtype; cos, sin and products, too, if `rounding` says it.
 *
 * interleaved: channels i and i + rotary_dim/2 of a head of q and k come as 2i and 2i + 1, for each
 * i. They are put in order before everything else, so nothing after this call differs. */
struct spw_rope_append_args {
    void *qkv; /* [rows][stride], dtype: heads of q (rewritten), then of k, then of v, if not
                  v_is_k */
    /* Where q comes from, if it is not in qkv yet: head h of a row from h * q_step on; or NULL. */
    const void *q; /* [rows][q_stride], dtype */
    size_t q_stride, q_step;
    /* [head_dim], for each head of its own if `norm_by_head`, or NULL: not normed; no bias */
    const float *q_norm, *k_norm, *q_norm_bias, *k_norm_bias;
    const float *inv_freq; /* [rotary_dim / 2] */
    size_t rows, stride;
    uint64_t position; /* of row 0 */
    uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
    float scaling, eps;
    bool interleaved, norm_by_head;
    bool norm_last; /* after the rotation */
    bool v_norm;    /* a head of v is normed, without weights */
    bool v_is_k;    /* v is what k is before its norm and rotation */
    struct spw_query_growth growth;
    enum spw_rope_rounding rounding;
    enum spw_norm_kind norm;
    enum spw_dtype dtype, kv_dtype;
    uint32_t slice_heads; /* KV heads that share a tile; 0: all do */
    /* [slices][tiles that the rows reach], the first of which holds position / 128; 4-byte aligned
     */
    void *tiles[SPW_APPEND_TILES];
};

/* Tiles that the rows reach, in a slice. */
SPW_INLINE uint32_t spw_append_tiles(const struct spw_rope_append_args *a)
{
    return (uint32_t)spw_div_up(a->position % SPW_TILE_TOKENS + a->rows, SPW_TILE_TOKENS);
}

SPW_INLINE uint32_t spw_append_slice_heads(const struct spw_rope_append_args *a)
{
    return a->slice_heads ? a->slice_heads : a->n_kv_heads;
}

/* Where K, or V, of a KV head begins in the tile of a row. */
SPW_INLINE char *spw_append_head(const struct spw_rope_append_args *a, uint64_t row, uint32_t head,
                                 bool values)
{
    const uint32_t heads = spw_append_slice_heads(a);
    const uint64_t tile = (a->position % SPW_TILE_TOKENS + row) / SPW_TILE_TOKENS;
    const size_t before = head % heads + (values ? heads : 0);
    return (char *)a->tiles[head / heads * spw_append_tiles(a) + tile] +
           before * spw_tile_head_bytes(a->head_dim, a->kv_dtype);
}

/* Attention of `rows` consecutive queries over some tiles, merged into the running state.
 *
 * For each row, head and split of 512 positions: scores in one chain over channels, their exact
 * maximum, exp, the sum in a fixed tree, the weighted values in one chain over positions. Then the
 * split is merged into (max, sum, out), in the order of positions. A split without a visible key
 * does not change the row. Visible: key <= query, and key >= spw_window_first(window, query). A
 * head with an extra logit shares its softmax with that logit, which has no value.
 *
 * Tiles [quantized_first, quantized_end) of the call are quantized (quant/qtile.h), for all its
 * rows. Rows that read a tile in another form (quant/residual.h) need another call. */
struct spw_attention_args {
    const void *q;       /* [rows][q_stride], dtype, n_heads heads adjacent */
    float *state;        /* [rows][n_heads][head_dim + 2]: out (unnormalised), max, sum */
    float *split_states; /* [splits of the call][rows][n_heads][head_dim + 2] or NULL: lets splits
                        run side by side */
    void *y; /* NULL, or in the last call of these rows: [rows][y_stride], dtype; gets out / sum.
                The state is unspecified after that */
    size_t rows, q_stride;
    size_t y_stride;     /* 0: n_heads * head_dim */
    uint64_t position;   /* of row 0 */
    uint64_t tile_first; /* absolute index of tiles[0], a multiple of 4 */
    uint32_t n_tiles;
    uint32_t n_heads, n_kv_heads, head_dim;
    struct spw_window window;
    uint64_t first_key; /* older keys are not seen */
    uint64_t seen_end;  /* not 0: keys before it are seen, whatever the position of a query is */
    /* [n_heads][2 most_distance + 1], added to a score: the number of key - query, or of the
     * distance nearest to it that has one; NULL: none. Without a softcap. */
    const float *relative_bias;
    uint32_t most_distance;
    float scale, softcap;      /* softcap 0: none; else cap * tanh(score / cap) */
    const float *extra_logits; /* [n_heads], or NULL: none (the sinks of gpt-oss) */
    bool first;                /* the state starts empty */
    enum spw_dtype dtype, kv_dtype;
    uint32_t quantized_first, quantized_end; /* equal: none */
    enum spw_qformat qformat;
    /* The last member: a launcher need not copy more than n_tiles of them. NULL: no row of this
     * call sees the tile. */
    const void *tiles[SPW_ATTENTION_TILES];
};

/* x = cap * tanh(x / cap), n floats. */
struct spw_softcap_args {
    float *x;
    size_t n;
    float cap;
};

/* x = act(x), n numbers; or, if `limit` is not 0, x is cut to [-limit, limit] and nothing else. */
struct spw_each_args {
    void *x;
    size_t n;
    float limit;
    enum spw_activation act; /* not SPW_ACT_CUT_QUICK */
    enum spw_dtype dtype;
};

/* The experts of each row (enum spw_route_score), in the order of their numbers. Logits are f32,
 * whatever dtype is; how their products are added is up to a backend. From the same logits every
 * backend and every instruction set gives the same bits: functions of model/math.h; of a softmax
 * e^(logit - largest), whose sum has thirty-two chains, of every thirty-second expert, then halves
 * are added, 16, 8, 4, 2, 1. The sum of kept scores is one chain, in the order of experts. */
struct spw_route_args {
    const void *x;            /* [rows][cols], dtype */
    const float *w;           /* [n_experts][cols] */
    const float *bias;        /* [n_experts], added to the logits; or NULL */
    const float *choice_bias; /* [n_experts], added to the scores that experts are chosen by, not to
                                 their weights; or NULL */
    const float *expert_scale;  /* [n_experts], factors of the weights of experts; or NULL */
    float *scores;              /* [rows][n_experts]: scratch */
    struct spw_choice *choices; /* [rows][n_kept] */
    size_t rows, cols;
    uint32_t n_experts, n_kept;
    struct spw_route route;
    enum spw_dtype dtype;
};

/* Whether experts are chosen by their logits, and scores are those of the chosen ones: then the
 * logits of all others become minus infinity. */
SPW_INLINE bool spw_route_scores_kept(const struct spw_route *r)
{
    return r->score == SPW_ROUTE_SOFTMAX_KEPT || r->score == SPW_ROUTE_SIGMOID_KEPT;
}

SPW_INLINE bool spw_route_is_softmax(const struct spw_route *r)
{
    return r->score == SPW_ROUTE_SOFTMAX || r->score == SPW_ROUTE_SOFTMAX_KEPT;
}

/* y[i] = x[index[i]]: rows that an expert computes together. With choices each row is multiplied by
 * the weight that it gives to the expert; weight and product are rounded as if stored. */
struct spw_gather_args {
    const void *x;                    /* [any][x_stride], dtype */
    const uint32_t *index;            /* [rows], or NULL: row i is y[i] */
    void *y;                          /* [rows][cols], dtype */
    const struct spw_choice *choices; /* [any][n_kept], or NULL */
    uint32_t expert, n_kept;          /* n_kept 1: its choice is the expert */
    uint32_t times;                   /* index NULL: each row of x so many times; 0: once */
    size_t rows, cols, x_stride;
    enum spw_dtype dtype;
};

/* h = the weighted outputs of a row's experts, which are added in f32 and in the order of the
 * choices; with a residual h = residual + that sum, which is rounded as if stored. */
struct spw_combine_args {
    const void *residual;             /* as h, may be h; or NULL */
    void *h;                          /* [rows][cols], dtype */
    const void *y;                    /* [any][cols], dtype: outputs of experts */
    const struct spw_choice *choices; /* [rows][n_kept] */
    const uint32_t *places; /* [rows][n_kept], the row of y of each choice; NULL: in order */
    size_t rows, cols;
    uint32_t n_kept;
    bool unweighted; /* every weight counts as 1 */
    enum spw_dtype dtype;
};

/* Where the channels of head h are in a row: width channels from first + h / per_group *
 * group_stride + h % per_group * width on. per_group is at least 1; all heads side by side: as many
 * as there are heads. */
struct spw_head_columns {
    uint32_t first, width, per_group, group_stride;
};

SPW_INLINE size_t spw_head_column(const struct spw_head_columns *c, uint32_t head)
{
    return c->first + (size_t)(head / c->per_group) * c->group_stride +
           (size_t)(head % c->per_group) * c->width;
}

/* Consecutive rows of one sequence in a call of conv or recur, and the state of the sequence, which
 * the call reads and replaces. At position 0 the state is not read: the call begins with zeros. */
struct spw_state_part {
    float *state;       /* of conv, or of recur; 64-byte aligned */
    uint32_t row, rows; /* of the call */
    uint64_t position;  /* of `row` */
    bool stays;         /* the state is read only, and no number of a new one is looked at */
};

enum { SPW_STATE_PARTS = 32, SPW_CONV_RUNS = 3 };

/* A short causal convolution of each channel: y[t] = act(bias + sum over i of w[i] x[t - width + 1
 * + i]), the newest input times the last tap. One f32 chain of fma from the oldest input on, which
 * begins with the bias or 0; its result is rounded as if stored, and so is what act makes of it
 * (num_activation of model/math.h). Every backend and every instruction set gives the same
 * bits.
 * The rows of x before a part are in its state, [channels][width - 1], the oldest first (zeros at
 * the begin of a sequence), which gets the newest ones. Channels are those of the heads of run 0,
 * then of run 1, and so on. */
struct spw_conv_args {
    const void *x; /* [rows][x_stride], dtype */
    size_t x_stride;
    struct {
        struct spw_head_columns columns; /* of x */
        uint32_t n_heads;                /* 0: there is no such run */
    } runs[SPW_CONV_RUNS];
    const float *w, *bias; /* [channels][width], [channels]; bias may be NULL */
    void *y;               /* [rows][channels], dtype */
    uint32_t channels, width;
    bool activates;          /* else act counts for nothing */
    enum spw_activation act; /* not one that is of gates alone */
    enum spw_dtype dtype;
    uint32_t n_parts;
    struct spw_state_part parts[SPW_STATE_PARTS]; /* all rows of the call, in order */
};

/* A recurrence over a state S of [key_dim][value_dim] for each head, token by token. For one value
 * channel j of a head, with the query q, the key k, the value v_j and the decay g of the token:
 *
 *   DELTA    S_ij = g S_ij;  d = beta (v_j - sum_i k_i S_ij);  S_ij = fma(k_i, d, S_ij)
 *   others   S_ij = fma(k_i, u_j, g S_ij)
 *   all      o_j = sum_i q_i S_ij
 *
 * All in f32, with the functions of model/math.h. Sums over i are one chain of fma in the
 * order of i that begins with 0; every other product or sum is rounded by itself. Value channels do
 * not depend on each other, so a backend may share them out as it likes; every backend and every
 * instruction set gives the same bits.
 *
 *   kind    q, k, v                              g, and what belongs to it
 *   DELTA   each head of q and of k is divided   g = exp(a softplus(rate + dt_bias)), of the head;
 *           by its length: x rsqrt(sum x^2 +     beta = sigmoid(gate), rounded as if stored
 *           1e-6); then q times key_dim^-0.5
 *   SSD     u = dt v; o_j += skip v_j            dt = softplus(rate + dt_bias), g = exp(dt a), of
 *                                                the head
 *   SCAN    u_j = dt_j v_j; o_j += skip_j v_j    dt_j = softplus(rate_j), g_ij = exp(dt_j a_ij)
 *   LRU     k = q = 1; o = S                     la = a_j sigmoid(rate_j), g = exp(la); u_j = v_j
 *                                                sigmoid(gate_j) sqrt(-expm1(2 la)); at position 0
 *                                                g = 0 and the root is 1
 *
 * sum x^2 has sixteen chains of fma, of every sixteenth channel; then halves are added, 8, 4, 2, 1.
 *
 * `y` gets o: rounded to dtype in DELTA, SCAN and LRU; f32 in SSD. */
struct spw_recur_args {
    enum spw_mixer_kind kind;
    const void *q, *k, *v;               /* [rows][.._stride], dtype; LRU has neither q nor k */
    size_t q_stride, k_stride, v_stride; /* the heads of each are side by side */
    /* [rows][rate_stride], dtype. Of DELTA and SSD one number a head, at `rates` and `gates`; of
     * SCAN and LRU one a channel. */
    const void *rate, *gate; /* gate: DELTA and LRU */
    size_t rate_stride;
    struct spw_head_columns rates, gates; /* of DELTA and SSD: columns of `rate` and of `gate` */
    /* a: [heads], SCAN [key_dim][value_dim], LRU [value_dim] (-8 softplus of the file's number).
     * dt_bias: [heads], DELTA and SSD. skip: [heads], SCAN [value_dim]; NULL: 0 */
    const float *a, *dt_bias, *skip;
    void *y;                                       /* [rows][heads * value_dim] */
    uint32_t heads, key_heads, key_dim, value_dim; /* SCAN and LRU: one head */
    bool tiled;                                    /* value head h uses key head h % key_heads */
    uint32_t *not_finite; /* a word of device memory: becomes 1 if a number of a new state is not
                             finite, else it stays */
    enum spw_dtype dtype;
    uint32_t n_parts;
    struct spw_state_part parts[SPW_STATE_PARTS]; /* all rows of the call, in order */
};

/* y = x, normed and multiplied by act(gate), in groups of channels that share a norm. Rounded to
 * dtype:
 *   no weight     R(x R(act(gate)))
 *   norm_first    R(R'(norm(x)) act(gate)), where norm rounds as enum spw_norm_kind says; R' rounds
 *                 as if stored
 *   else          R(norm(x act(gate))), rounded once
 * With a weight act(gate) is f32, not rounded. */
struct spw_gated_norm_args {
    const void *x;    /* [rows][n_groups * cols], x_dtype: dtype or f32 */
    const void *gate; /* [rows][gate_stride], dtype */
    size_t gate_stride;
    struct spw_head_columns gates; /* the gate of group g */
    const float *weight;           /* [cols], or of every group its own; NULL: no norm */
    bool own_weights;
    void *y; /* [rows][n_groups * cols], dtype; may be x if the types are the same */
    size_t rows;
    uint32_t n_groups, cols;
    float eps;
    bool norm_first;
    enum spw_norm_kind norm;
    enum spw_activation act;
    enum spw_dtype x_dtype, dtype;
};

struct spw_ops {
    int (*norm)(const struct spw_norm_args *a, spw_stream s);
    int (*linear)(const struct spw_linear_args *a, spw_stream s);
    int (*gated_linear)(const struct spw_gated_linear_args *a, spw_stream s);
    int (*gated)(const struct spw_gated_args *a, spw_stream s);
    int (*rope_append)(const struct spw_rope_append_args *a, spw_stream s);
    /* Quantizes one exact tile, all KV heads: quant/codec.h. Every backend gives the same bits.
     * `not_finite` is a word of device memory. */
    int (*kv_quantize)(const struct spw_codec_args *a, spw_stream s);
    int (*attention)(const struct spw_attention_args *a, spw_stream s);
    int (*softcap)(const struct spw_softcap_args *a, spw_stream s);
    int (*each)(const struct spw_each_args *a, spw_stream s);
    int (*route)(const struct spw_route_args *a, spw_stream s);
    int (*gather)(const struct spw_gather_args *a, spw_stream s);
    int (*combine)(const struct spw_combine_args *a, spw_stream s);
    /* Layers with a state. */
    int (*conv)(const struct spw_conv_args *a, spw_stream s);
    int (*recur)(const struct spw_recur_args *a, spw_stream s);
    int (*gated_norm)(const struct spw_gated_norm_args *a, spw_stream s);
    /* Most tiles of one attention call: a multiple of SPW_SPLIT_TILES. */
    uint32_t attention_tiles;
    bool gated_scratch; /* gated_linear always needs its scratch */
};

#endif
