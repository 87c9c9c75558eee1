/* Room for what clients make the server hold: bodies that arrive, and requests from their body to
 * the end of their answer. All clients together have one limit. Any thread. */
#ifndef SPW_TOOLS_COMMAND_SERVE_ROOM_H
#define SPW_TOOLS_COMMAND_SERVE_ROOM_H

#include "tools/command/request/request.h"

#include <stdatomic.h>

struct serve_room {
    uint64_t most; /* bytes */
    atomic_uint_least64_t taken;
};

/* What one client has of it. */
struct serve_share {
    struct serve_room *room; /* borrowed; NULL: without a limit */
    uint64_t bytes;
};

/* Makes the share at least so large. 0, or -errno with the reason: 413, more than there is; 503,
 * others have too much of it now. */
int serve_share_grow(struct serve_share *s, uint64_t bytes, struct request_refusal *why);
void serve_share_give_back(struct serve_share *s);

#endif
