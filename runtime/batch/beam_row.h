/* The row of log-probabilities from which a beam search chooses. */
#ifndef SPW_RUNTIME_BATCH_BEAM_ROW_H
#define SPW_RUNTIME_BATCH_BEAM_ROW_H

#include "runtime/sampler.h"

struct spw_row_of_beam {
    const struct spw_sampling *sampling; /* biases and penalties count; nothing is drawn */
    const float *logits;                 /* [vocab], after the beam's tokens */
    const int32_t *tokens;               /* [n_tokens], of which n_prompt are the prompt */
    size_t n_prompt, n_tokens;
    /* [n_chosen]: each lowers its token by diversity_penalty */
    const int32_t *chosen;
    uint32_t n_chosen;
    float diversity_penalty;
};

/* Log softmax in f32, then diversity and the rules of logit_rules.h, as transformers orders them.
 * The result [vocab] is valid until the next call for the sampler. NULL: the logits are not
 * numbers. */
const float *spw_sampler_log_probs(struct spw_sampler *s, const struct spw_row_of_beam *b);

#endif
