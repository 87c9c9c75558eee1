/* The HTTP side of the server, on libmicrohttpd: connections, limits, whole answers and streams. It
 * knows nothing of models: `answer` makes the reply to each request. Each connection has a thread
 * of its own, which may wait: it reads a body, makes tokens of it, and waits for the answer.
 *
 * A build without libmicrohttpd has no_http.c instead of http.c. */
#ifndef SPW_TOOLS_COMMAND_SERVE_HTTP_H
#define SPW_TOOLS_COMMAND_SERVE_HTTP_H

#include "tools/command/serve/access.h"
#include "tools/command/serve/exchange.h"
#include "tools/command/serve/room.h"

/* A request that is complete and allowed. */
struct serve_call {
    char id[40]; /* no other request has it */
    struct serve_head head;
    struct spw_text body;
    struct serve_share share; /* of the server's room, for the body; may be moved away */
};

/* Either the answer, or the exchange that it comes from. */
struct serve_reply {
    int status;
    const char *content_type, *allow; /* allow: the methods, with 405 */
    uint32_t retry_after;             /* seconds; 0: none */
    struct spw_text body;             /* owned */
    struct serve_exchange *exchange;  /* held; NULL: none */
};

struct serve_http_options {
    const char *host;
    uint16_t port; /* 0: any free one */
    uint64_t most_body_bytes;
    uint32_t most_connections;
    uint32_t idle_seconds; /* a client that sends or reads nothing for so long loses its connection;
                              an answer may take longer */
    const struct serve_access *access;
    /* The thread of the connection. Fills *reply, which is zero. */
    void (*answer)(void *context, struct serve_call *call, struct serve_reply *reply);
    /* A refusal in the form of the path; whether a path needs no key. */
    void (*refuse)(const struct serve_call *call, const struct request_refusal *why,
                   struct serve_reply *reply);
    bool (*is_public)(const char *path);
    void (*left)(void *context); /* a client has left its exchange */
    void *context;
};

struct serve_http;
/* Listens, and answers from now on. -ENOTSUP: this build has no server. */
int serve_http_open(struct serve_http **out, const struct serve_http_options *o,
                    struct spw_error *err);
uint16_t serve_http_port(const struct serve_http *h);
/* Takes no new connections. */
void serve_http_stop(struct serve_http *h);
/* Waits some seconds for replies that are being sent, then closes all connections. NULL is fine. */
void serve_http_close(struct serve_http *h);

#endif
