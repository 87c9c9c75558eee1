/* See http.h. The life of a request on its connection's thread, each a call of libmicrohttpd:
 *
 *     on_request, the first time    the head is there: checks it, refuses early what has a large
 *                                   body
 *     on_request, with bytes        keeps the body; of a refused request, throws it away: a client
 *                                   that is still sending would not read the refusal
 *     on_request, without bytes     the body is complete: the refusal, or the reply. Waits here for
 *                                   an answer in one body, and for the beginning of a stream
 *     on_read                       of a stream: waits for bytes, hands them over; each call
 *                                   becomes a chunk, which is sent at once
 *     on_end                        the reply was sent, or the connection is broken
 */
#include "tools/command/serve/http.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 64 << 10,  /* of all header lines, and of what is read at once */
    STACK_BYTES = 4 << 20,  /* deeply nested JSON and templates need it */
    CHUNK_BYTES = 16 << 10, /* of a stream */
    BODY_SECONDS = 300,     /* for a whole body */
    CLOSE_MILLISECONDS = 3000,
    BODIES = 4, /* the largest ones that have room together */
};

struct serve_http {
    struct serve_http_options o;
    struct serve_room room;
    struct MHD_Daemon *daemon;
    int stopped_socket; /* of serve_http_stop; -1 */
    atomic_uint n_calls;
};

/* A request and its reply. */
struct open_call {
    struct serve_http *http;
    struct MHD_Connection *connection;
    struct serve_call call;
    struct request_refusal why; /* status 0: it is not refused */
    struct serve_exchange *exchange;
    uint64_t n_read;
    double began;
    int socket;
};

/* ---- replies ---- */

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* From now on the client again has idle_seconds. libmicrohttpd begins to count at a change from 0.
 */
static void restart_clock(const struct open_call *c)
{
    MHD_set_connection_option(c->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    MHD_set_connection_option(c->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              c->http->o.idle_seconds);
}

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    MHD_add_response_header(r, name, value);
}

/* Pages of an allowed origin may read the answer. */
static void add_origin(struct MHD_Response *r, const struct open_call *c)
{
    if (!c->call.head.origin || c->why.status == 403)
        return;
    add_header(r, "Access-Control-Allow-Origin", c->call.head.origin);
    add_header(r, "Vary", "Origin");
}

static enum MHD_Result queue(struct open_call *c, int status, struct MHD_Response *r)
{
    char name[64];
    if (!r)
        return MHD_NO;
    snprintf(name, sizeof name, "req_%s", c->call.id);
    add_header(r, "request-id", name);
    add_header(r, "x-request-id", name);
    add_origin(r, c);
    restart_clock(c);
    const enum MHD_Result rc = MHD_queue_response(c->connection, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

/* Frees the text. */
static enum MHD_Result send_whole(struct open_call *c, struct serve_reply *reply)
{
    char number[32];
    struct MHD_Response *r = MHD_create_response_from_buffer(
        reply->body.n, reply->body.n ? reply->body.text : "", MHD_RESPMEM_MUST_COPY);
    spw_free(reply->body.text);
    if (r && reply->content_type)
        add_header(r, "Content-Type", reply->content_type);
    if (r && reply->allow)
        add_header(r, "Allow", reply->allow);
    if (r && reply->status == 426)
        add_header(r, "Upgrade", "HTTP/1.1");
    snprintf(number, sizeof number, "%u", reply->retry_after);
    if (r && reply->retry_after)
        add_header(r, "Retry-After", number);
    return queue(c, reply->status, r);
}

static enum MHD_Result send_refusal(struct open_call *c)
{
    struct serve_reply reply = {.status = c->why.status};
    c->http->o.refuse(&c->call, &c->why, &reply);
    return send_whole(c, &reply);
}

/* Before a page of another origin asks: what it may ask. */
static enum MHD_Result send_preflight(struct open_call *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    const char *wanted = header(c->connection, "Access-Control-Request-Headers");
    if (!r)
        return MHD_NO;
    add_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (wanted)
        add_header(r, "Access-Control-Allow-Headers", wanted);
    if (header(c->connection, "Access-Control-Request-Private-Network"))
        add_header(r, "Access-Control-Allow-Private-Network", "true");
    add_header(r, "Access-Control-Max-Age", "600");
    return queue(c, 204, r);
}

/* ---- answers of exchanges ---- */

static void leave(struct open_call *c)
{
    if (!c->exchange)
        return;
    serve_exchange_leave(c->exchange);
    if (c->http->o.left)
        c->http->o.left(c->http->o.context);
    serve_exchange_put(c->exchange);
    c->exchange = NULL;
}

static void add_facts(struct MHD_Response *r, struct serve_exchange *x)
{
    char text[32];
    if (x->logits_hash && !x->wish.stream) {
        snprintf(text, sizeof text, "%016llx", (unsigned long long)x->logits_hash);
        add_header(r, "x-logits-hash", text);
    }
    snprintf(text, sizeof text, "%u", x->retry_after);
    if (x->retry_after)
        add_header(r, "Retry-After", text);
}

static ssize_t on_read(void *context, uint64_t at, char *to, size_t most)
{
    struct open_call *c = context;
    bool is_last;
    (void)at;
    if (!serve_exchange_wait(c->exchange, SERVE_WAIT_BYTES, c->socket))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    restart_clock(c);
    const size_t n = serve_exchange_take(c->exchange, to, most, &is_last);
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static enum MHD_Result send_stream(struct open_call *c)
{
    const int one = 1;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES, on_read, c, NULL);
    if (!r)
        return MHD_NO;
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    add_header(r, "Content-Type", "text/event-stream");
    add_header(r, "Cache-Control", "no-cache");
    add_header(r, "X-Accel-Buffering", "no");
    add_facts(r, c->exchange);
    return queue(c, 200, r);
}

/* The whole answer, or the error. After its end nobody else changes it. */
static enum MHD_Result send_ended(struct open_call *c)
{
    struct serve_exchange *x = c->exchange;
    struct MHD_Response *r = MHD_create_response_from_buffer(x->out.n, x->out.n ? x->out.text : "",
                                                             MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    add_header(r, "Content-Type", "application/json");
    add_facts(r, x);
    return queue(c, x->status, r);
}

static enum MHD_Result send_exchange(struct open_call *c)
{
    struct serve_exchange *x = c->exchange;
    const bool streams = x->wish.stream;
    MHD_set_connection_option(c->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    if (!serve_exchange_wait(x, streams ? SERVE_WAIT_START : SERVE_WAIT_END, c->socket))
        return MHD_NO;
    return streams && x->status == 200 ? send_stream(c) : send_ended(c);
}

/* ---- requests ---- */

static struct serve_head read_head(struct MHD_Connection *c, const char *method, const char *path)
{
    return (struct serve_head){
        .method = strcmp(method, "HEAD") == 0 ? "GET" : method,
        .path = path,
        .host = header(c, "Host"),
        .origin = header(c, "Origin"),
        .fetch_site = header(c, "Sec-Fetch-Site"),
        .content_type = header(c, "Content-Type"),
        .content_encoding = header(c, "Content-Encoding"),
        .authorization = header(c, "Authorization"),
        .api_key = header(c, "x-api-key"),
    };
}

static void drop_body(struct open_call *c)
{
    spw_free(c->call.body.text);
    c->call.body = (struct spw_text){0};
    serve_share_give_back(&c->call.share);
}

static void refuse_length(struct open_call *c)
{
    request_refuse(&c->why, 413, "request_too_large", NULL,
                   "found a body of more than %llu bytes, the limit of this server (--max-body)",
                   (unsigned long long)c->http->o.most_body_bytes);
}

/* The head is there. Refuses at once where the client waits with its body, or has a large one. */
static enum MHD_Result begin(struct open_call *c)
{
    const struct serve_http_options *o = &c->http->o;
    const char *length = header(c->connection, "Content-Length");
    const bool is_large = length && strtoull(length, NULL, 10) > o->most_body_bytes;
    const char *upgrade = header(c->connection, "Upgrade");
    serve_access_check(o->access, &c->call.head, o->is_public(c->call.head.path), &c->why);
    if (!c->why.status && upgrade && strcasecmp(upgrade, "websocket") == 0)
        request_refuse(&c->why, 426, "upgrade_required", NULL,
                       "this server has no WebSocket: send a POST with \"stream\": true");
    if (!c->why.status && is_large)
        refuse_length(c);
    if (c->why.status && (is_large || header(c->connection, "Expect")))
        return send_refusal(c);
    return MHD_YES;
}

static void keep_body(struct open_call *c, const char *bytes, size_t n)
{
    if (spw_text_add(&c->call.body, bytes, n))
        request_refuse(&c->why, 503, "no_memory", NULL, "out of memory");
    else
        serve_share_grow(&c->call.share, c->call.body.capacity, &c->why);
}

/* A client that sends on and on is cut off. */
static enum MHD_Result read_body(struct open_call *c, const char *bytes, size_t *n)
{
    const uint64_t most = c->http->o.most_body_bytes;
    c->n_read += *n;
    if (c->n_read > 2 * most || cli_now_seconds() - c->began > BODY_SECONDS)
        return MHD_NO;
    if (!c->why.status && c->n_read > most)
        refuse_length(c);
    if (!c->why.status)
        keep_body(c, bytes, *n);
    if (c->why.status)
        drop_body(c);
    *n = 0;
    return MHD_YES;
}

static enum MHD_Result reply_to(struct open_call *c)
{
    struct serve_reply reply = {.status = 200};
    if (c->why.status)
        return send_refusal(c);
    if (strcmp(c->call.head.method, "OPTIONS") == 0)
        return send_preflight(c);
    c->http->o.answer(c->http->o.context, &c->call, &reply);
    c->exchange = reply.exchange;
    drop_body(c);
    return c->exchange ? send_exchange(c) : send_whole(c, &reply);
}

/* A name that no other request has. */
static void draw_id(char id[40])
{
    uint64_t bits[2] = {0};
    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        bits[0] = (uint64_t)(cli_now_seconds() * 1e9);
    snprintf(id, 40, "%016" PRIx64 "%08" PRIx64, bits[0], bits[1] & 0xffffffff);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
                                  const char *path, const char *method, const char *version,
                                  const char *bytes, size_t *n, void **own)
{
    struct open_call *c = *own;
    (void)version;
    if (!c) {
        c = *own = spw_alloc_zero(1, sizeof *c);
        if (!c)
            return MHD_NO;
        c->http = context;
        c->call.share.room = &c->http->room;
        c->connection = connection;
        c->call.head = read_head(connection, method, path);
        c->began = cli_now_seconds();
        draw_id(c->call.id);
        c->socket =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->http->n_calls++;
        return begin(c);
    }
    return *n ? read_body(c, bytes, n) : reply_to(c);
}

static void on_end(void *context, struct MHD_Connection *connection, void **own,
                   enum MHD_RequestTerminationCode code)
{
    struct open_call *c = *own;
    (void)context;
    (void)connection;
    (void)code;
    if (!c)
        return;
    leave(c);
    c->http->n_calls--;
    drop_body(c);
    spw_free(c);
    *own = NULL;
}

/* ---- the daemon ---- */

static int find_address(const struct serve_http_options *o, struct addrinfo **out,
                        struct spw_error *err)
{
    char port[8];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", o->port);
    const int rc = getaddrinfo(o->host, port, &hints, out);
    return rc ? spw_fail(err, -EINVAL, "--host %s: %s", o->host, gai_strerror(rc)) : 0;
}

/* Its threads get no signals: they are for the main thread. */
static struct MHD_Daemon *start(struct serve_http *h, const struct addrinfo *at)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const unsigned ipv6 = at->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    struct MHD_Daemon *d =
        MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                             MHD_USE_POLL | MHD_USE_ITC | ipv6,
                         0, NULL, NULL, on_request, h, MHD_OPTION_SOCK_ADDR, at->ai_addr,
                         MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_CONNECTION_LIMIT,
                         h->o.most_connections, MHD_OPTION_CONNECTION_TIMEOUT, h->o.idle_seconds,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
                         MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_END);
    const int code = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return d;
}

int serve_http_open(struct serve_http **out, const struct serve_http_options *o,
                    struct spw_error *err)
{
    struct addrinfo *at = NULL;
    struct serve_http *h = *out = NULL;
    SPW_TRY(find_address(o, &at, err));
    h = spw_alloc_zero(1, sizeof *h);
    if (h) {
        h->o = *o;
        h->room.most = BODIES * o->most_body_bytes;
        h->stopped_socket = -1;
        errno = 0;
        h->daemon = start(h, at);
    }
    freeaddrinfo(at);
    if (!h || !h->daemon) {
        spw_free(h);
        return spw_fail(err, -EADDRINUSE, "%s, port %u: cannot listen there: %s", o->host, o->port,
                        errno ? strerror(errno) : "out of memory");
    }
    *out = h;
    return 0;
}

uint16_t serve_http_port(const struct serve_http *h)
{
    return MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

void serve_http_stop(struct serve_http *h)
{
    if (h->stopped_socket < 0)
        h->stopped_socket = MHD_quiesce_daemon(h->daemon);
}

void serve_http_close(struct serve_http *h)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000000};
    if (!h)
        return;
    serve_http_stop(h);
    for (int i = 0; i < CLOSE_MILLISECONDS / 10 && h->n_calls; i++)
        nanosleep(&moment, NULL);
    MHD_stop_daemon(h->daemon);
    if (h->stopped_socket >= 0)
        close(h->stopped_socket);
    spw_free(h);
}
