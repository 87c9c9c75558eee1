/* Names that a model's description and the operations share: norms, activations, routers,
 * limits. */
#ifndef SPW_MODEL_KINDS_H
#define SPW_MODEL_KINDS_H

#include <stdbool.h>
#include <stdint.h>

enum { SPW_MOST_HEAD_DIM = 1024, SPW_GATE_LIMIT = 7 };

enum spw_norm_kind {
    SPW_NORM_LLAMA, /* y = w * round(x / rms): rounded before the weight, and after it */
    SPW_NORM_LATE,  /* y = round(x / rms * w): one rounding at the end */
    SPW_NORM_MEAN,  /* LATE of x less its mean, the layer norm of Ba et al. 2016 */
    SPW_NORM_NONE,  /* y = round(x * w) */
};

enum spw_activation {
    SPW_ACT_SILU,
    SPW_ACT_GELU_TANH,
    SPW_ACT_GELU_ERF,
    SPW_ACT_GELU_QUICK, /* x * sigmoid(1.702 x) */
    SPW_ACT_RELU,
    /* Of gpt-oss: the gate is cut to at most SPW_GATE_LIMIT, then as GELU_QUICK; up is cut to
     * [-SPW_GATE_LIMIT, SPW_GATE_LIMIT], and 1 is added. */
    SPW_ACT_CUT_QUICK,
    SPW_ACT_RELU_SQUARED,
    SPW_ACT_COUNT,
};

/* How the logits of a router become scores of experts. */
enum spw_route_score {
    SPW_ROUTE_SOFTMAX,      /* a softmax over all experts */
    SPW_ROUTE_SOFTMAX_KEPT, /* the experts with the highest logits; a softmax over these */
    SPW_ROUTE_SIGMOID,      /* of each logit */
    SPW_ROUTE_SIGMOID_KEPT, /* the experts with the highest logits; the sigmoids of these */
    SPW_ROUTE_COUNT,
};

enum { SPW_MOST_EXPERT_GROUPS = 32 };

/* The experts of a row: those with the highest scores. The lower number wins between equal scores.
 * With groups (of n_experts / n_groups experts that follow each other) they are chosen from the
 * n_groups_kept groups with the highest sums of their two highest scores. An expert's weight is its
 * score, divided by the sum of the kept scores if `renormalizes`, times `scale`. */
struct spw_route {
    enum spw_route_score score;
    bool renormalizes;
    float scale;
    uint32_t n_groups, n_groups_kept; /* n_groups 0: no groups */
};

/* What rope rounds to the type of activations, as transformers does it in the family. Its results
 * always are. */
enum spw_rope_rounding {
    SPW_ROPE_ROUNDS_ALL,    /* cos and sin, and products with them */
    SPW_ROPE_ROUNDS_ANGLES, /* cos and sin */
    SPW_ROPE_ROUNDS_RESULT, /* neither */
};

/* After rope queries are multiplied by 1 + beta ln(1 + floor((position + offset) / base)), rounded
 * to their type. */
struct spw_query_growth {
    float beta; /* 0: they are not */
    float base, offset;
};

#endif
