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
     * has_codes: an earlier product of the same x has filled it. */
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
 * whatever dtype is. */
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

/* y[i] = x[index[i]]: rows that an expert computes together. With choices each row is multiplied by
 * the weight that it gives to the expert; weight and product are rounded as if stored. */
struct spw_gather_args {
    const void *x;         /* [any][x_stride], dtype; x_stride 0: all rows are the same one */
    const uint32_t *index; /* [rows], or NULL: row i is y[i] */
    void *y;               /* [rows][cols], dtype */
    const struct spw_choice *choices; /* [any][n_kept], or NULL */
    uint32_t expert, n_kept;          /* n_kept 1: its choice is the expert */
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
    /* Most tiles of one attention call: a multiple of SPW_SPLIT_TILES. */
    uint32_t attention_tiles;
    bool gated_scratch; /* gated_linear always needs its scratch */
};

#endif
