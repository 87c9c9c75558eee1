/* Exchanges: see exchange.h. The order of an exchange's life:
 *
 *     HTTP's thread of the connection          the engine's thread
 *     1 open                                   .
 *     2 serve_read: body to tokens             .
 *     3 serve_work_submit  ------------------> takes the exchange, holds it
 *     4 wait for a start   <------------------ start, or refuse
 *     5 wait for bytes, take, send  <--------- add, add, ...
 *     6 sees the end, sends the rest  <------- end, or refuse
 *     7 put                                    put
 *
 * Steps 6 and 7 come in any order on the two sides. A client that leaves is noticed by the HTTP
 * side while it waits, at most POLL_MILLISECONDS later, or when it sends. It marks the exchange as
 * gone, puts it, and is done with it. The engine's side finds the mark at its next look, ends the
 * request in the batch and puts the exchange. No side waits for the other one to put it.
 *
 * Nobody holds the mutex while it calls a protocol, a tokenizer or the system, except for poll. */
#include "tools/command/serve/exchange.h"

#include <poll.h>
#include <string.h>
#include <time.h>

enum { POLL_MILLISECONDS = 200 };

struct serve_exchange *serve_exchange_open(const struct serve_protocol *protocol)
{
    struct serve_exchange *x = spw_alloc_zero(1, sizeof *x);
    pthread_condattr_t clock;
    if (!x)
        return NULL;
    x->protocol = protocol;
    x->arrived = cli_now_seconds();
    x->n_refs = 1;
    x->status = 200;
    pthread_mutex_init(&x->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&x->changed, &clock);
    pthread_condattr_destroy(&clock);
    return x;
}

void serve_exchange_get(struct serve_exchange *x)
{
    pthread_mutex_lock(&x->mutex);
    x->n_refs++;
    pthread_mutex_unlock(&x->mutex);
}

void serve_exchange_put(struct serve_exchange *x)
{
    if (!x)
        return;
    pthread_mutex_lock(&x->mutex);
    const bool is_last = --x->n_refs == 0;
    pthread_mutex_unlock(&x->mutex);
    if (!is_last)
        return;
    if (x->answer.own)
        x->protocol->close(&x->answer);
    request_free(&x->request);
    serve_share_give_back(&x->share);
    spw_free(x->out.text);
    pthread_cond_destroy(&x->changed);
    pthread_mutex_destroy(&x->mutex);
    spw_free(x);
}

/* ---- the HTTP side ---- */

static size_t n_unread(const struct serve_exchange *x)
{
    return x->out.n - x->n_taken;
}

/* Whether the client has closed its socket, or will send nothing more. */
static bool has_left(int socket)
{
    struct pollfd p = {.fd = socket, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLERR | POLLHUP);
}

static bool is_reached(const struct serve_exchange *x, enum serve_wait until)
{
    return x->ended || (until == SERVE_WAIT_START && x->started) ||
           (until == SERVE_WAIT_BYTES && n_unread(x));
}

bool serve_exchange_wait(struct serve_exchange *x, enum serve_wait until, int socket)
{
    struct timespec at;
    pthread_mutex_lock(&x->mutex);
    while (!x->gone && !is_reached(x, until)) {
        x->gone = has_left(socket);
        clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_nsec += POLL_MILLISECONDS * 1000000L;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        if (!x->gone)
            pthread_cond_timedwait(&x->changed, &x->mutex, &at);
    }
    const bool is_there = !x->gone;
    pthread_mutex_unlock(&x->mutex);
    return is_there;
}

size_t serve_exchange_take(struct serve_exchange *x, char *to, size_t most, bool *is_last)
{
    pthread_mutex_lock(&x->mutex);
    const size_t n = (size_t)spw_min_u64(n_unread(x), most);
    if (n)
        memcpy(to, x->out.text + x->n_taken, n);
    x->n_taken += n;
    *is_last = x->ended && !n_unread(x);
    pthread_mutex_unlock(&x->mutex);
    return n;
}

void serve_exchange_leave(struct serve_exchange *x)
{
    pthread_mutex_lock(&x->mutex);
    x->gone = true;
    pthread_mutex_unlock(&x->mutex);
}

/* ---- the engine's side ---- */

void serve_exchange_start(struct serve_exchange *x)
{
    pthread_mutex_lock(&x->mutex);
    x->started = true;
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->mutex);
}

/* Bytes that were sent go, once they are as many as the others: to move these costs no more than it
 * did to send those. */
static void forget_taken(struct serve_exchange *x)
{
    const size_t left = n_unread(x);
    if (x->n_taken < left || !x->n_taken)
        return;
    memmove(x->out.text, x->out.text + x->n_taken, left);
    x->out.n = left;
    x->n_taken = 0;
}

int serve_exchange_add(struct serve_exchange *x, const char *bytes, size_t n)
{
    pthread_mutex_lock(&x->mutex);
    forget_taken(x);
    x->largest = spw_max_u64(x->largest, n);
    /* An answer in one body is read only when it has ended: it is bounded by its length. */
    if (x->wish.stream && n_unread(x) + n > SERVE_MOST_UNREAD + x->largest)
        x->gone = true;
    const int rc = x->gone ? -EPIPE : spw_text_add(&x->out, bytes, n);
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->mutex);
    return rc;
}

void serve_exchange_end(struct serve_exchange *x, uint64_t logits_hash)
{
    pthread_mutex_lock(&x->mutex);
    x->started = x->ended = true;
    x->logits_hash = logits_hash;
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->mutex);
}

void serve_exchange_refuse(struct serve_exchange *x, const struct request_refusal *why,
                           uint32_t retry_after)
{
    struct spw_text text = {0};
    /* Only the engine's side writes these two. */
    const bool in_stream = x->started && x->wish.stream;
    int rc = in_stream ? x->protocol->failed(&x->answer, why, &text)
                       : x->protocol->error(why, x->answer.id, &text);
    pthread_mutex_lock(&x->mutex);
    if (!in_stream) {
        x->out.n = 0;
        x->status = why->status ? why->status : 400;
        x->retry_after = retry_after;
    }
    if (!rc && text.n)
        rc = spw_text_add(&x->out, text.text, text.n);
    x->gone = x->gone || rc; /* without memory: the connection closes */
    x->started = x->ended = true;
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->mutex);
    spw_free(text.text);
}

bool serve_exchange_is_gone(struct serve_exchange *x)
{
    pthread_mutex_lock(&x->mutex);
    const bool gone = x->gone;
    pthread_mutex_unlock(&x->mutex);
    return gone;
}
