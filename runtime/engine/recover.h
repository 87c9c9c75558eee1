/* What a session does when the disk fails it: tiles that were lost are computed again from the
 * tokens, and after a write that failed everything that was there before the step stays.
 *
 * A session is cut back to the first token of the earliest lost tile (sliding layers that no longer
 * hold what that position sees: to nothing) and the caller runs the step again from there. Nothing
 * computed from a lost tile exists: waiting for a transfer fails before anything that would read it
 * is queued. */
#ifndef SPW_RUNTIME_ENGINE_RECOVER_H
#define SPW_RUNTIME_ENGINE_RECOVER_H

#include "runtime/engine/engine.h"

/* A drive that loses a tile in every one of so many tries is not worth another one. */
enum { SPW_RECOVER_TRIES = 8 };

/* Cuts the session back to `*keep` tokens or, if more is lost than that, lower, and brings its
 * tiles to their waterlines. Nothing may be queued that uses it but transfers ahead. */
int spw_recover_cut_back(struct spw_session *s, uint64_t *keep);

/* A step over e->items[0..n) has failed; session i is sessions[i]. Waits until nothing is under
 * way. 0: the spans begin where their sessions now end, and the step can be run again. -EIO: the
 * device has failed too. */
int spw_recover_step(struct spw_engine *e, struct spw_session *const *sessions, uint32_t n);

#endif
