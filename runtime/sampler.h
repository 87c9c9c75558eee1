/* Picks the next token from logits, for callers of spw_sync; a batch does this itself. Part of the
 * public API. */
#ifndef SPW_RUNTIME_SAMPLER_H
#define SPW_RUNTIME_SAMPLER_H

#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Scratch for one vocabulary; no state: the n-th draw of a seed is always the same draw. */
struct spw_sampler;
int spw_sampler_open(struct spw_sampler **out, uint32_t vocab, struct spw_error *err);
void spw_sampler_close(struct spw_sampler *s);
int spw_sampling_check(const struct spw_sampling *p, struct spw_error *err);
/* Picks the next token after `tokens` (which the repetition penalty needs), with the counter-based
 * generator at (seed, stream, n_tokens): the choices for a sequence depend only on its own
 * tokens. */
int32_t spw_sampler_pick(struct spw_sampler *s, const struct spw_sampling *p, const float *logits,
                         const int32_t *tokens, size_t n_tokens, uint64_t stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
