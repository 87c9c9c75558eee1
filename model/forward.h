/* One transformer layer of any family in phases, one line per operation.
 *
 *   project   q, k and v of the rows
 *   (mix)     the caller attends over its cache: b.qkv becomes b.attention
 *   output    adds the result of attention to the residual stream
 *   state     adds what the state of the layer makes of the rows: in a layer with a state, in place
 *             of these three, or beside them
 *   mlp       adds the result of the multilayer perceptron to it. In a parallel layer it reads what
 *             project read: b.x must be as project left it
 *
 * In a layer with experts, these come in place of mlp:
 *
 *   route     chooses the experts of the rows; adds the result of the expert that every row has
 *   expert    the output of one expert for the rows that chose it
 *   combine   adds the weighted outputs to the residual stream
 *
 * In some models comes last, for rows that have passed all of this:
 *
 *   inputs    adds what the layer makes of its own numbers of each row
 *
 * All work is queued on the stream. The caller owns the buffers, which hold `rows` rows. */
#ifndef SPW_MODEL_FORWARD_H
#define SPW_MODEL_FORWARD_H

#include "model/weights/weights.h"

/* Device buffers for one chunk of rows, in the compute type unless said otherwise. */
struct spw_forward_buffers {
    void *x;                  /* [rows][hidden]: input of a product, or output that a norm reads */
    void *qkv;                /* [rows][(n_heads + 2 n_kv_heads) * head_dim] */
    void *attention;          /* [rows][n_heads * head_dim] */
    void *attention_gate;     /* [rows][spw_config_gate_width] */
    void *gate_up;            /* [rows][2 * intermediate]: scratch, if ops->gated_scratch */
    void *gated;              /* [rows][intermediate], or [rows][layer_inputs] if that is more */
    void *workspace;          /* of linear */
    void *codes;              /* [rows] of linear's codes, if it needs them */
    void *from_host;          /* [rows][hidden]: what the host has multiplied, before it is added */
    float *scores;            /* [rows][experts]: scratch of a router */
    struct spw_choice *gates; /* [rows]: the weight of the expert that every row has */
    /* Of a layer with a state: a row of struct spw_mixer_config; what the convolution makes of it,
     * [rows][conv_channels]; rates, [rows][spw_mixer_rates_width]; the result,
     * [rows][spw_mixer_width] floats. */
    void *state_in, *state_conv, *state_rates, *state_out;
    uint32_t *not_finite; /* a word: see struct spw_recur_args */
};

/* Products with matrices in host memory (struct spw_operand.on_host), of rows on the device: as the
 * operations of struct spw_ops, but these return when the product is done, and y is on its way.
 * same_x: x is that of the call before. No residual. */
struct spw_forward_host {
    int (*linear)(void *context, const struct spw_linear_args *a, bool same_x);
    int (*gated_linear)(void *context, const struct spw_gated_linear_args *a);
    void *context;
};

struct spw_forward {
    const struct spw_ops *ops;
    const struct spw_forward_host *host; /* NULL: no matrix is in host memory */
    const struct spw_weights *weights;
    const float *small; /* norms, biases and rope frequencies, on the device: see weights.h */
    struct spw_forward_buffers b;
    enum spw_dtype dtype; /* compute type */
    spw_stream stream;
};

/* Before the first layer of an encoder of audio: h, which has positions, gets what two convolutions
 * make of the inputs (spw_audio_embed), [rows][SPW_CONV_TAPS][SPW_CONV_TAPS * n_mels]. First b.qkv
 * gets what the first one makes of them, [rows][SPW_CONV_TAPS][hidden]. Then the caller names each
 * row that begins a source: there is no frame before it. */
int spw_forward_audio(const struct spw_forward *f, const struct spw_layer_weights *matrices,
                      const void *inputs, size_t rows);
int spw_forward_no_frame(const struct spw_forward *f, size_t row);
int spw_forward_audio_added(const struct spw_forward *f, const struct spw_layer_weights *matrices,
                            void *h, size_t rows);
/* Before the first layer of a stack: h = norm(h), in a model that norms its embedding. */
int spw_forward_embedded(const struct spw_forward *f, bool source, void *h, size_t rows);
/* b.qkv = norm(h) times q, k and v. h: [rows][hidden]. */
int spw_forward_project(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *matrices, const void *h, size_t rows);
/* b.qkv = norm(h) times k and v, side by side, for rows of a source: spw_config_keeps_source. */
int spw_forward_project_source(const struct spw_forward *f, uint32_t layer,
                               const struct spw_layer_weights *matrices, const void *h,
                               size_t rows);
/* h += b.attention times o. */
int spw_forward_output(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *matrices, void *h, size_t rows);
/* h += what the state makes of norm(h). parts: of all rows, in order; their states are those of the
 * layer. h is read before b.qkv and b.attention of the layer are used, and these stay as they are.
 */
int spw_forward_state(const struct spw_forward *f, uint32_t layer,
                      const struct spw_layer_weights *matrices, const struct spw_state_part *parts,
                      uint32_t n_parts, void *h, size_t rows);
/* The state of the part takes rows whose products spw_forward_state has made already: rows of
 * b.state_in and b.state_rates that the caller has kept, from row 0 of `in` and `rates` on. b.x,
 * b.state_conv and b.state_out are scratch. */
int spw_forward_take(const struct spw_forward *f, uint32_t layer, const struct spw_state_part *part,
                     void *in, void *rates);
/* h += mlp(norm(h)). */
int spw_forward_mlp(const struct spw_forward *f, uint32_t layer,
                    const struct spw_layer_weights *matrices, void *h, size_t rows);

/* What the experts of some rows need of them. */
struct spw_forward_experts {
    void *x;                    /* [rows][spw_config_expert_row], input of the experts */
    void *dense;                /* [rows][hidden], of the mlp beside the experts, if there is one */
    struct spw_choice *choices; /* [rows][n_kept] */
};

/* Fills in *e for h, [rows][hidden]. Then h += the output of the expert that every row has. */
int spw_forward_route(const struct spw_forward *f, uint32_t layer,
                      const struct spw_layer_weights *matrices, const struct spw_forward_experts *e,
                      void *h, size_t rows);
/* y[i] = the output of an expert for row index[i] of x; index NULL: for row i. choices: of all rows
 * of x. */
int spw_forward_expert(const struct spw_forward *f, uint32_t layer, uint32_t expert,
                       const struct spw_layer_weights *matrices, const void *x,
                       const uint32_t *index, const struct spw_choice *choices, void *y,
                       size_t rows);
/* y[row * kept + i] = the output of the expert choices[row * kept + i] for a row of x. addresses:
 * of the experts' matrices on the device, gate, up and down in arrays of their own; `step` is from
 * array to array. like: the matrices of any expert, for their shapes and types. */
int spw_forward_chosen(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *like, const struct spw_choice *choices,
                       const void *const *addresses, size_t step, const void *x, void *y,
                       size_t rows);
/* h += the outputs of the experts of its rows, weighted unless their inputs were, and what is
 * beside them. x and dense of *e are scratch. matrices: of the layer. places: as in struct
 * spw_combine_args. */
int spw_forward_combine(const struct spw_forward *f, uint32_t layer,
                        const struct spw_layer_weights *matrices,
                        const struct spw_forward_experts *e, void *h, const void *y,
                        const uint32_t *places, size_t rows);

/* Adds what the layer makes of its own numbers of each row, in a model with layer_inputs.
 * embedding: [rows][hidden], what layer 0 got; inputs: [rows][n_layers][layer_inputs], as they come
 * from the table; those of this layer are changed. */
int spw_forward_inputs(const struct spw_forward *f, uint32_t layer,
                       const struct spw_layer_weights *matrices, const void *embedding,
                       void *inputs, void *h, size_t rows);

/* The input of the MTP layer: h = [norm(embedding) | norm(hidden)] times its matrix. `hidden`: what
 * spw_forward_final_norm has given of the token before each row. joined: [rows][2 hidden], scratch.
 * join_embedding comes first; then its memory may be used again. h may be `hidden`. */
int spw_forward_join_embedding(const struct spw_forward *f, const void *embedding, void *joined,
                               size_t rows);
int spw_forward_join(const struct spw_forward *f, const struct spw_layer_weights *matrices,
                     const void *hidden, void *joined, void *h, size_t rows);
/* The norm after the last layer, or after the MTP layer. x: [rows][hidden]; x may be h. */
int spw_forward_final_norm(const struct spw_forward *f, bool mtp, const void *h, void *x,
                           size_t rows);
/* logits[:, first .. first + head->n) = x times these rows of the output matrix. Calls for one x
 * follow each other and begin with row 0: the codes of x are made there. */
int spw_forward_head(const struct spw_forward *f, const struct spw_operand *head, const void *x,
                     float *logits, size_t first, size_t rows);

#endif
