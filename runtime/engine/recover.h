/* Recovery of sessions after a failure of the disk. Lost tiles are computed again from their
 * tokens. After a failed write everything that the sessions held before the step stays.
 *
 * A session is cut back to the first token of its earliest lost tile (to nothing, if sliding
 * layers no longer hold what that position sees). The caller then runs the step again from
 * there. Nothing was computed from a lost tile: the wait for its transfer fails before any
 * kernel that reads it is queued. */
#ifndef SPW_RUNTIME_ENGINE_RECOVER_H
#define SPW_RUNTIME_ENGINE_RECOVER_H

#include "runtime/engine/engine.h"

/* After this many failed tries the step fails. */
enum { SPW_RECOVER_TRIES = 8 };

/* Cuts the session back to `*cut_to` tokens, or to fewer if more is lost, and moves its tiles to
 * the tiers of the waterlines. Lowers *cut_to accordingly. No queued work may use the session,
 * except transfers ahead. A session whose tokens are not in its caches, because another plan has
 * dropped them, keeps its tokens. */
int spw_recover_cut_back(struct spw_session *s, uint64_t *cut_to);

/* A step of these sessions has failed. Waits for all queued work, and cuts the sessions back to
 * tokens that their caches hold. -EIO: the device has failed, too; -EBADMSG: tiles were lost again
 * each time. */
int spw_recover_step(struct spw_engine *e, struct spw_session *const *sessions, uint32_t n);

#endif
