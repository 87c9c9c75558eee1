/* Picks the next token from logits, for callers of spw_sync; a batch does this itself. Part of the
 * public API. */
#ifndef SPW_RUNTIME_SAMPLER_H
#define SPW_RUNTIME_SAMPLER_H

#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Scratch for one vocabulary; no state: the n-th draw of a seed and a stream is always the same. */
struct spw_sampler;
int spw_sampler_open(struct spw_sampler **out, uint32_t vocab, struct spw_error *err);
void spw_sampler_close(struct spw_sampler *s);
/* Refuses values out of their ranges with -EINVAL. A batch also refuses tokens of logit_bias that
 * its model does not have. */
int spw_sampling_check(const struct spw_sampling *p, struct spw_error *err);
/* Picks the next token after `tokens`, with the counter-based generator at (seed, stream,
 * n_tokens): the choices for a sequence depend only on its own tokens. Penalties need the tokens,
 * of which the first n_prompt are the prompt. Ids outside of the vocabulary are passed over.
 * -EDOM: one of the logits is NaN. */
int32_t spw_sampler_pick(struct spw_sampler *s, const struct spw_sampling *p, const float *logits,
                         const int32_t *tokens, size_t n_prompt, size_t n_tokens);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
