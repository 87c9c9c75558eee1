/* An exchange: one HTTP request that is answered by the model, and its answer, between two threads.
 *
 * The HTTP side (http.c) makes an exchange from a complete body, hands it to the engine's side and
 * sends what comes back. The engine's side (work.c) is the one thread that uses engine and batch.
 * exchange.c has the order of an exchange's life at its head. Calls are safe from both threads. */
#ifndef SPW_TOOLS_COMMAND_SERVE_EXCHANGE_H
#define SPW_TOOLS_COMMAND_SERVE_EXCHANGE_H

#include "tools/command/serve/protocol.h"
#include "tools/command/serve/room.h"

#include <pthread.h>

/* Bytes of an answer that a slow reader may leave unread, besides its largest event: then its
 * request ends. */
enum { SERVE_MOST_UNREAD = 4 << 20 };

struct serve_exchange {
    /* Made by the HTTP side, read only afterwards: */
    const struct serve_protocol *protocol;
    struct serve_wish wish;
    struct request request;     /* encoded; its choices belong to the engine's side */
    struct serve_answer answer; /* the engine's side; exchange_put closes it */
    double arrived;             /* cli_now_seconds */
    struct serve_share share;   /* for the request and its answers; exchange_put gives it back */

    /* Both sides, under `mutex`: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;  /* `started`, `ended` or `out` */
    unsigned n_refs;         /* sides that have a reference */
    bool gone;               /* the client has left: the engine's side ends the request */
    bool started;            /* `status` is known; an answer of 200 that streams may be sent */
    bool ended;              /* `out` is complete, and `logits_hash` is valid */
    int status;              /* of HTTP */
    uint32_t retry_after;    /* seconds, with status 429 or 503; 0: none */
    uint64_t logits_hash;    /* of choice 0; 0: none */
    struct spw_text out;     /* bytes; the first `n_taken` were sent */
    size_t n_taken, largest; /* largest: bytes that one call has added */
};

/* The caller has the first reference. NULL: out of memory. `protocol` may be NULL until it is read.
 */
struct serve_exchange *serve_exchange_open(const struct serve_protocol *protocol);
/* Takes one more reference, which must be put. */
void serve_exchange_get(struct serve_exchange *x);
/* Gives a reference back; the last one frees the exchange. NULL is fine. */
void serve_exchange_put(struct serve_exchange *x);

/* ---- the HTTP side ---- */

enum serve_wait {
    SERVE_WAIT_START, /* until the status is known */
    SERVE_WAIT_BYTES, /* until there are bytes to send, or the answer has ended */
    SERVE_WAIT_END,
};
/* Waits, and looks at the client's socket meanwhile: a client that leaves makes the exchange
 * `gone`. False: it is gone. */
bool serve_exchange_wait(struct serve_exchange *x, enum serve_wait until, int socket);
/* Takes at most `most` bytes of the answer. *is_last: none are left, and none will come. */
size_t serve_exchange_take(struct serve_exchange *x, char *to, size_t most, bool *is_last);
/* The client gets no more. */
void serve_exchange_leave(struct serve_exchange *x);

/* ---- the engine's side ---- */

/* The request is accepted: a streamed answer begins with status 200. */
void serve_exchange_start(struct serve_exchange *x);
/* More bytes of the answer. -EPIPE: the client is gone, or has left too many bytes unread (then it
 * is gone from now on). -ENOMEM. */
int serve_exchange_add(struct serve_exchange *x, const char *bytes, size_t n);
/* The answer is complete. */
void serve_exchange_end(struct serve_exchange *x, uint64_t logits_hash);
/* The answer is an error: with its status and the protocol's text if nothing was started, else as
 * the protocol ends a stream. Ends the exchange. */
void serve_exchange_refuse(struct serve_exchange *x, const struct request_refusal *why,
                           uint32_t retry_after);
bool serve_exchange_is_gone(struct serve_exchange *x);

/* ---- work.c ---- */

struct serve_work;
/* Hands over an exchange, which the engine's side then holds, too. 0, or it does not hold it:
 * -EBUSY: the queue is full; -ESHUTDOWN: the server ends. */
int serve_work_submit(struct serve_work *w, struct serve_exchange *x);

#endif
