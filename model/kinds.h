/* Names that a model's description and the operations share: norms, activations, limits. */
#ifndef SPW_MODEL_KINDS_H
#define SPW_MODEL_KINDS_H

enum { SPW_MOST_HEAD_DIM = 1024 };

enum spw_norm_kind {
    SPW_NORM_LLAMA, /* y = w * round(x / rms): rounded before the weight, and after it */
    SPW_NORM_LATE,  /* y = round(x / rms * w): one rounding at the end */
};

enum spw_activation {
    SPW_ACT_SILU,
    SPW_ACT_GELU_TANH,
    SPW_ACT_GELU_ERF,
    SPW_ACT_GELU_QUICK, /* x * sigmoid(1.702 x) */
    SPW_ACT_RELU,
};

#endif
