/* What a trace costs: a pure function. See runtime/experts.h. */
#ifndef SPW_RUNTIME_EXPERTS_REPLAY_H
#define SPW_RUNTIME_EXPERTS_REPLAY_H

#include "runtime/experts/trace.h"

/* n_frames: of the device; 0: all experts lie there, and none is missed. bytes: [experts of all
 * layers], of the weights of each. `missed` is called for each expert that OURS misses. All but
 * out->moved is filled in. -ENOMEM. */
int spw_expert_replay(struct spw_expert_replay *out, const struct spw_expert_trace *t,
                      uint32_t n_frames, const uint64_t *bytes,
                      void (*missed)(void *context, uint32_t expert), void *context);

#endif
