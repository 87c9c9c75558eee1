/* Names that a model's description and the operations share: norms, activations, routers,
 * limits. */
#ifndef SPW_MODEL_KINDS_H
#define SPW_MODEL_KINDS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SPW_MOST_HEAD_DIM = 1024,
    SPW_GATE_LIMIT = 7,
    SPW_MOST_CONV_WIDTH = 8,
    SPW_MOST_KEY_DIM = 512,
};

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
    SPW_ACT_SIGMOID, /* of gates alone */
    SPW_ACT_IDENTITY,
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
 * score, divided by the sum of the kept scores, plus sum_plus, if `renormalizes`, times `scale`. */
struct spw_route {
    enum spw_route_score score;
    bool renormalizes;
    float sum_plus;
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

/* A gate of each number that attention gives: it is multiplied by the gate's sigmoid. */
enum spw_attention_gate {
    SPW_ATTENTION_PLAIN,      /* there is none */
    SPW_ATTENTION_GATE_IN_Q,  /* the matrix of q gives, for each head, q and then the gate */
    SPW_ATTENTION_GATE_APART, /* the gate has a matrix of its own */
};

/* How a layer with a state mixes positions. Every kind but CONV is a recurrence over a state of
 * key channels x value channels for each head: see struct spw_recur_args of model/ops.h. */
enum spw_mixer_kind {
    SPW_MIXER_NONE,  /* the model has no such layers */
    SPW_MIXER_CONV,  /* a short convolution alone, between two gates (LFM2) */
    SPW_MIXER_DELTA, /* gated delta net (Yang et al. 2024; Qwen3-Next, Qwen3.5) */
    SPW_MIXER_SSD,   /* one decay a head (Mamba 2, Dao and Gu 2024) */
    SPW_MIXER_SCAN,  /* one decay a channel of the state (Mamba, Gu and Dao 2023) */
    SPW_MIXER_LRU,   /* one number of state a channel (RG-LRU of Griffin, De et al. 2024) */
};

/* After rope queries are multiplied by 1 + beta ln(1 + floor((position + offset) / base)), rounded
 * to their type. */
struct spw_query_growth {
    float beta; /* 0: they are not */
    float base, offset;
};

#endif
