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

/* Opens the store of options.prefix_cache_dir and sets e->prefix. Does nothing without this option.
 * Call it after the plan is made and before memory is allocated. -EINVAL: the cache is too small
 * for one tile; or an error of the directory. */
int spw_prefix_open(struct spw_engine *e, struct spw_error *err);
/* Opens the store again if a new plan has another precision of KV, which means other tiles. The
 * disk tier must be closed. */
int spw_prefix_reopen(struct spw_engine *e, struct spw_error *err);
void spw_prefix_close(struct spw_engine *e); /* after the disk tier, which uses its files */

/* Releases the match that was found for a span. Every sync ends with it. */
void spw_prefix_release_match(struct spw_session *s);

/* If it pays, replaces the *n_reused tokens that the session would reuse by more tokens from files,
 * and sets *n_reused to their number. Old tiles stay in the files; the next step loads those that
 * belong on the device, each once, while it computes. Damage is reported, and costs only
 * computation. Fails only if the device fails. */
int spw_prefix_attach(struct spw_session *s, const struct spw_span *span, uint64_t *n_reused);

/* Call it if logits of the session are NaN. False: the session has not begun with tiles of files.
 * Else removes these files and those that extend them with its tokens, and the session counts none
 * of its tokens as computed (see spw_recover_step). */
bool spw_prefix_distrust(struct spw_session *s);

/* The position at which the session should compute and publish a checkpoint before the rest of the
 * span: where the span leaves the tokens that others have computed; or its last tile, if no
 * checkpoint is possible after the whole span. It must be new and far enough from the last
 * checkpoint. 0: no such position. */
uint64_t spw_prefix_branch(struct spw_session *s, const struct spw_span *span);

#endif
