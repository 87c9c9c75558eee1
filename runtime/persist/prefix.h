/* The engine's side of the prefix cache (offload/store/prefix_store.h): sessions begin with tiles
 * that any process has computed earlier, and store their own tiles for others. spillway.h has what
 * callers see of it.
 *
 * Old tiles are attached where they lie in the packs of the store: the ring streams them, or they
 * are loaded when the residency is applied. Where layers have windows or old tiles are quantized, a
 * session can begin only at a checkpoint, whose few exact tiles are read at once.
 * The engine's thread. */
#ifndef SPW_RUNTIME_PERSIST_PREFIX_H
#define SPW_RUNTIME_PERSIST_PREFIX_H

#include "runtime/engine/engine.h"

/* Pure: whether `found` tokens from files are worth more than `held` ones that would go for them.
 * Reading a token's KV costs a small part of computing it. */
bool spw_prefix_is_useful(uint64_t held, uint64_t found);

/* Pure: the least tokens at which a checkpoint is worth a step of its own, behind one of `after`.
 */
uint64_t spw_prefix_min_branch(uint64_t after);

/* Opens the directory that the options name and sets e->prefix; nothing where they name none. After
 * the plan, before memory is taken. -EINVAL: its size; what the system says of the directory. */
int spw_prefix_open(struct spw_engine *e, struct spw_error *err);
/* The plan is another one, and the disk tier is closed: tiles of other precision are other tiles.
 */
int spw_prefix_reopen(struct spw_engine *e, struct spw_error *err);
void spw_prefix_close(struct spw_engine *e); /* after the disk tier, which has its tiles */

/* Lets go of what was found for a span; at the end of each sync. */
void spw_prefix_release_match(struct spw_session *s);

/* If files hold more of the span than the `*keep` tokens that the session would, and it is worth
 * it, the session holds what they do instead, and `*keep` says how much. All of it still lies in
 * the files: the step that follows brings up what is to stay on the device, beside its computation,
 * each tile once. Damage is told and costs computation. Fails only with the device. */
int spw_prefix_attach(struct spw_session *s, const struct spw_span *span, uint64_t *keep);

/* Logits of the session are not numbers. Whether it has begun with tiles of files: these files, and
 * those that extend them with its tokens, are then removed, and the session counts none of its
 * tokens as computed (spw_recover_step). */
bool spw_prefix_distrust(struct spw_session *s);

/* Whether a window that is no multiple of tiles has left tiles behind, with n tokens held, that the
 * last whole tile needs. */
bool spw_prefix_window_passed(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n);
/* Where a checkpoint would be new, useful and far enough behind the last one: where the span leaves
 * what others have computed, or its last tile, if there can be none once the span is computed. The
 * session is to be brought there first, and kept. 0: nowhere. */
uint64_t spw_prefix_branch(struct spw_session *s, const struct spw_span *span);

#endif
