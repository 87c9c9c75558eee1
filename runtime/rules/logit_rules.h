/* What changes a row before a token is picked from it, or a beam search adds it to its scores. A
 * row has logits, or log-probabilities; all of it is f32.
 *
 * The order is that of transformers (GenerationMixin._get_logits_processor); the rules of its names
 * are those of struct spw_token_rules. The two penalties that it lacks follow the repetition
 * penalty, as in vLLM (`apply_penalties`). Each rule with its meaning, for a token with the logit
 * l:
 *
 *   allowed         -inf for the tokens that are not
 *   bias b          l + b (OpenAI's logit_bias)
 *   repetition p    every token that occurs in the sequence (prompt included) once:
 *                   l > 0 ? l/p : l*p
 *                   (N. Keskar et al., "CTRL", 2019, section 4.1, with the sign case of HF)
 *   frequency f     l - f * c, for a token that was generated c times
 *   presence q      l - q, if c > 0
 *                   (OpenAI's definition; both leave out the prompt)
 *   no_repeat_ngram_size n   -inf for a token with which the last n tokens would occur again
 *   bad_words       -inf, also for the last token of a word, behind its others
 *   min_length, min_new_tokens   -inf for end tokens
 *   forced_bos, forced_eos       0 for these tokens, -inf for all others
 *   suppress, begin_suppress     -inf
 *   timestamp_begin              -inf for times that do not fit, and where a time must follow for
 *                                all other tokens (A. Radford et al., "Whisper", 2022)
 *
 * Where `allowed` is set, a grammar alone decides what may follow: rules that could forbid all of
 * that do not count. Ids outside of the vocabulary are passed over. */
#ifndef SPW_RUNTIME_RULES_LOGIT_RULES_H
#define SPW_RUNTIME_RULES_LOGIT_RULES_H

#include "runtime/spillway.h"

struct spw_logit_row {
    float *logits; /* [vocab], changed in place */
    uint32_t vocab;
    const int32_t *tokens; /* [n_tokens], which the row follows; n_prompt of them are the prompt */
    size_t n_prompt, n_tokens;
    uint64_t *seen;   /* scratch: [vocab] bits, all 0 between calls */
    uint32_t *counts; /* scratch: [vocab], all 0 between calls */
};

/* Whether any rule changes this row. */
bool spw_logit_rules_change(const struct spw_logit_row *r, const struct spw_sampling *p);
void spw_logit_rules_apply(const struct spw_logit_row *r, const struct spw_sampling *p);

#endif
