/* The engine's side of the prefix cache (offload/store/prefix_store.h). Sessions begin with tiles
 * that any process has computed earlier, and publish their own tiles for others. spillway.h has the
 * public part.
 *
 * Old tiles are attached: they stay in the files of the store. The ring streams them, or they are
 * loaded when the residency is applied. Where layers have windows or old tiles are quantized, a
 * session can begin only at a checkpoint. The few exact tiles of the checkpoint are read at once.
 * The engine's thread. */
#ifndef SPW_RUNTIME_PERSIST_PREFIX_H
#define SPW_RUNTIME_PERSIST_PREFIX_H

#include "runtime/engine/engine.h"

extern const struct spw_persist_hooks spw_prefix_hooks;

/* Where files are only counted (struct spw_engine.dry): from now on the cache has the first n
 * tokens of a sequence of n_tokens, with a checkpoint at their end. */
int spw_prefix_assume(struct spw_engine *e, const int32_t *tokens, uint64_t n_tokens, uint64_t n,
                      struct spw_error *err);
/* Whether it pays to replace the `held` tokens of a session by the `found` tokens of files. Reading
 * the KV of a token costs a small part of computing it. Pure. */
bool spw_prefix_is_useful(uint64_t held, uint64_t found);

#endif
