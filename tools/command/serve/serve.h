/* What the parts of `spillway serve` share: one model, its reader of requests, and the engine's
 * side. Made before the first request is answered, and not changed afterwards, except for what has
 * locks of its own. */
#ifndef SPW_TOOLS_COMMAND_SERVE_SERVE_H
#define SPW_TOOLS_COMMAND_SERVE_SERVE_H

#include "tools/command/serve/http.h"
#include "tools/command/serve/metrics.h"

#include <stdatomic.h>

struct serve_server {
    const struct cli_options *o;
    struct serve_access access;
    struct serve_metrics *metrics; /* owned */
    char name[256];                /* of the model, as clients call it */
    int64_t created;               /* seconds since 1970 */
    atomic_bool is_ready;          /* what follows can be used */
    struct cli_model model;
    struct request_reader reader; /* each thread uses a copy: serve_prepare */
    struct serve_work *work;      /* owned */
};

/* The most tokens of a prompt and its answer. */
uint64_t serve_longest(const struct serve_server *s);
/* As serve_http_options wants them; the context is the server. */
void serve_route(void *context, struct serve_call *call, struct serve_reply *reply);
void serve_route_refusal(const struct serve_call *call, const struct request_refusal *why,
                         struct serve_reply *reply);
bool serve_route_is_public(const char *path);

#endif
