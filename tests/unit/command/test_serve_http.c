/* The HTTP side of `spillway serve` with an engine's side that plays scripts: the body of a request
 * says what its answer does. Raw sockets are the clients. Also the access checks and the text of
 * /metrics. */
#include "base/base.h"
#include "tests/check.h"
#include "tools/command/serve/serve.h"
#include "tools/command/serve/work.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

/* spillway.c has the commands. */
const struct cli_command cli_commands[] = {{.name = NULL}};

enum { MOST_BODY = 100000, IDLE_SECONDS = 1 };

static struct serve_http *http;
static struct {
    pthread_t thread;
    struct serve_exchange *x; /* held */
    char script[256];
} engines[64];
static atomic_int n_engines;
static atomic_int n_gone, n_left;

static void sleep_ms(int ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* ---- the engine's side ---- */

static atomic_int n_wrong; /* CHECK is for the main thread */

static void expect(bool is_right)
{
    n_wrong += !is_right;
}

static int write_failed(struct serve_answer *a, const struct request_refusal *why,
                        struct spw_text *out)
{
    (void)a;
    return spw_text_add(out, why->message, strlen(why->message));
}

static int write_error(const struct request_refusal *why, const char *id, struct spw_text *out)
{
    (void)id;
    return spw_text_add(out, why->message, strlen(why->message));
}

static const struct serve_protocol fake = {
    .path = "/fake", .failed = write_failed, .error = write_error};

static void wait_until_gone(struct serve_exchange *x)
{
    for (int i = 0; i < 1000 && !serve_exchange_is_gone(x); i++)
        sleep_ms(10);
    n_gone += serve_exchange_is_gone(x);
}

enum { LARGE = 3 * SERVE_MOST_UNREAD };

/* Words of the script: "start", "add", "large", "slow", "wait", "flood", "refuse", "end". */
static void play(struct serve_exchange *x, const char *word)
{
    static char block[1 << 16];
    struct request_refusal why = {0};
    if (strcmp(word, "start") == 0)
        serve_exchange_start(x);
    if (strcmp(word, "add") == 0)
        expect(serve_exchange_add(x, "text", 4) == 0);
    if (strcmp(word, "large") == 0) { /* as the echo of a long prompt with log-probabilities */
        char *large = spw_alloc_zero(1, LARGE);
        expect(serve_exchange_add(x, memset(large, 'x', LARGE), LARGE) == 0);
        spw_free(large);
    }
    if (strcmp(word, "slow") == 0)
        sleep_ms(IDLE_SECONDS * 1600);
    if (strcmp(word, "pause") == 0)
        sleep_ms(300);
    if (strcmp(word, "wait") == 0)
        wait_until_gone(x);
    if (strcmp(word, "flood") == 0) {
        uint64_t n = 0;
        while (serve_exchange_add(x, block, sizeof block) == 0)
            n += sizeof block;
        expect(n < 64 << 20); /* what the system buffers, and SERVE_MOST_UNREAD */
        n_gone += serve_exchange_is_gone(x);
    }
    if (strcmp(word, "refuse") == 0) {
        request_refuse(&why, 429, NULL, NULL, "too many");
        serve_exchange_refuse(x, &why, 7);
    }
    if (strcmp(word, "end") == 0)
        serve_exchange_end(x, 0xabc);
}

static void *run_engine(void *context)
{
    const int i = (int)(intptr_t)context;
    struct serve_exchange *x = engines[i].x;
    char *rest;
    for (char *word = strtok_r(engines[i].script, " ", &rest); word;
         word = strtok_r(NULL, " ", &rest))
        play(x, word);
    serve_exchange_put(x);
    return NULL;
}

static void answer(void *context, struct serve_call *call, struct serve_reply *reply)
{
    (void)context;
    if (strcmp(call->head.path, "/size") == 0) {
        char text[32];
        snprintf(text, sizeof text, "%zu", call->body.n);
        expect(spw_text_add(&reply->body, text, strlen(text)) == 0);
        return;
    }
    const int i = n_engines++;
    struct serve_exchange *x = engines[i].x = serve_exchange_open(&fake);
    snprintf(engines[i].script, sizeof engines[i].script, "%.*s", (int)call->body.n,
             call->body.n ? call->body.text : "");
    x->wish.stream = strncmp(engines[i].script, "start", 5) == 0;
    serve_exchange_get(x);
    expect(pthread_create(&engines[i].thread, NULL, run_engine, (void *)(intptr_t)i) == 0);
    reply->exchange = x;
}

static void refuse(const struct serve_call *call, const struct request_refusal *why,
                   struct serve_reply *reply)
{
    (void)call;
    reply->status = why->status;
    expect(spw_text_add(&reply->body, why->message, strlen(why->message)) == 0);
}

static bool is_public(const char *path)
{
    return strcmp(path, "/public") == 0;
}

static void left(void *context)
{
    (void)context;
    n_left++;
}

/* ---- the client ---- */

static int dial(void)
{
    const struct timeval most = {.tv_sec = 20};
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons(serve_http_port(http)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (const struct sockaddr *)&at, sizeof at) == 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    return s;
}

static void say(int s, const char *text)
{
    const ssize_t n = (ssize_t)strlen(text);
    CHECK(send(s, text, (size_t)n, MSG_NOSIGNAL) == n);
}

static char got[1 << 20];

/* Reads until `until` has come, or the end of the connection (""). */
static bool hear(int s, const char *until)
{
    size_t n = 0;
    ssize_t more;
    got[0] = '\0';
    while ((!*until || !strstr(got, until)) && n + 1 < sizeof got &&
           (more = recv(s, got + n, sizeof got - 1 - n, 0)) > 0)
        got[n += (size_t)more] = '\0';
    return strstr(got, until);
}

static void post(int s, const char *body)
{
    char text[1024];
    snprintf(text, sizeof text,
             "POST /fake HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    say(s, text);
}

static bool ask(const char *request, const char *expected)
{
    int s = dial();
    say(s, request);
    bool found = hear(s, expected);
    CHECK_MSG(found, "expected '%s', got '%s'", expected, got);
    close(s);
    return found;
}

/* ---- tests ---- */

static void test_answers(void)
{
    int s = dial();
    post(s, "add add end");
    CHECK(hear(s, "texttext") && strstr(got, "200 OK") && strstr(got, "Content-Length: 8") &&
          strstr(got, "x-logits-hash: 0000000000000abc") && strstr(got, "request-id: req_"));
    post(s, "refuse"); /* the same connection */
    CHECK(hear(s, "too many") && strstr(got, " 429 ") && strstr(got, "Retry-After: 7"));
    post(s, "slow add end"); /* the answer may take longer than a client may */
    CHECK(hear(s, "text") && strstr(got, "200 OK"));
    close(s);
    ask("POST /fake HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 7\r\n\r\nadd end",
        "");
    CHECK(strstr(got, "Connection: close") && strstr(got, "\r\n\r\ntext"));
}

static void test_streams(void)
{
    int s = dial();
    post(s, "start pause add pause add end");
    CHECK(hear(s, "\r\n\r\n") && strstr(got, "text/event-stream") && strstr(got, "chunked"));
    CHECK(strstr(got, "text\r\n") || hear(s, "text\r\n"));
    CHECK(!strstr(got, "\r\n0\r\n")); /* a piece is sent before the next one is there */
    CHECK(hear(s, "0\r\n\r\n"));
    post(s, "start add slow add end");
    CHECK(hear(s, "0\r\n\r\n") && strstr(got, "text\r\n4\r\ntext"));
    post(s, "start add refuse");
    CHECK(hear(s, "0\r\n\r\n") && strstr(got, "too many"));
    close(s);
}

/* An event may be larger than what a slow reader may leave. */
static void test_large(void)
{
    size_t n = 0, n_x = 0;
    ssize_t more;
    int s = dial();
    post(s, "start large add add pause add end");
    while ((n < 5 || memcmp(got + n - 5, "0\r\n\r\n", 5) != 0) &&
           (more = recv(s, got + n, sizeof got - n, 0)) > 0) {
        n += (size_t)more;
        for (size_t i = n - (size_t)more; i < n; i++)
            n_x += got[i] == 'x';
        if (n > sizeof got / 2) {
            memmove(got, got + n - 5, 5);
            n = 5;
        }
    }
    CHECK_MSG(n_x >= LARGE + 3, "%zu of %d bytes", n_x, LARGE + 3); /* "text" has one, too */
    CHECK(n >= 5 && memcmp(got + n - 5, "0\r\n\r\n", 5) == 0);
    close(s);
}

/* A client that leaves is noticed, streamed or not, and one that does not read its answer. */
static void test_leaving(void)
{
    static const char *const scripts[] = {"wait", "start wait", "start add wait"};
    for (int i = 0; i < 3; i++) {
        int s = dial();
        post(s, scripts[i]);
        sleep_ms(50);
        close(s);
    }
    int s = dial();
    post(s, "start flood");
    for (int i = 0; i < 1500 && n_gone < 4; i++)
        sleep_ms(10);
    CHECK_MSG(n_gone == 4, "%d", n_gone);
    close(s);
}

#define TO_SIZE "POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

static void test_bodies(void)
{
    char *text = malloc(3 * MOST_BODY);
    int n = snprintf(text, MOST_BODY, TO_SIZE "Content-Length: %d\r\n\r\n", MOST_BODY);
    memset(text + n, 'x', MOST_BODY);
    text[n + MOST_BODY] = '\0';
    ask(text, "\r\n\r\n100000");
    ask(TO_SIZE "Content-Length: 100001\r\n\r\n", " 413 ");
    ask(TO_SIZE "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "\r\n\r\n5");
    n = snprintf(text, MOST_BODY, TO_SIZE "Transfer-Encoding: chunked\r\n\r\n%x\r\n",
                 MOST_BODY + 10);
    memset(text + n, 'x', MOST_BODY + 10);
    strcpy(text + n + MOST_BODY + 10, "\r\n0\r\n\r\n");
    ask(text, " 413 ");
    free(text);
    ask("POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
        "2\r\n"
        "\r\n{}",
        " 415 ");
    ask("GET /size HTTP/1.1\r\nHost: example.org\r\n\r\n", " 403 ");
    ask("GET /size HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: "
        "Upgrade\r\n\r\n",
        " 426 ");
    ask("HEAD /size HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "");
    CHECK(strstr(got, "Content-Length: 1\r\n") && got[strlen(got) - 1] == '\n');
    ask("OPTIONS /size HTTP/1.1\r\nHost: localhost\r\nOrigin: http://127.0.0.1:5\r\n"
        "Access-Control-Request-Headers: x-api-key\r\n\r\n",
        "\r\n\r\n");
    CHECK(strstr(got, " 204 ") && strstr(got, "Allow-Headers: x-api-key") &&
          strstr(got, "Allow-Origin: http://127.0.0.1:5"));
    ask("GET /size HTTP/1.1\r\nHost", ""); /* it says no more, and is cut off */
    ask(TO_SIZE "Content-Length: 5\r\n\r\nab", "");
    ask("nonsense\r\n\r\n", "");
}

/* Bodies that are open together have a limit, and a client that leaves gives its room back. */
static void test_room(void)
{
    enum { PART = MOST_BODY - 10000, MOST = 12 };
    static char text[MOST_BODY];
    int s[MOST], n = 0;
    const int head = snprintf(text, sizeof text, TO_SIZE "Content-Length: %d\r\n\r\n", MOST_BODY);
    memset(text + head, 'x', PART);
    text[head + PART] = '\0';
    for (; n < MOST; n++) {
        s[n] = dial();
        say(s[n], text);
        sleep_ms(20);
    }
    memset(text, 'x', MOST_BODY - PART);
    text[MOST_BODY - PART] = '\0';
    int n_ok = 0, n_full = 0;
    for (int i = 0; i < n; i++) {
        say(s[i], text);
        CHECK(hear(s[i], "\r\n\r\n"));
        n_ok += strstr(got, " 200 ") != NULL;
        n_full += strstr(got, " 503 ") != NULL;
        close(s[i]);
    }
    CHECK_MSG(n_ok >= 2 && n_full >= MOST - 4 && n_ok + n_full == MOST, "%d answers, %d refused",
              n_ok, n_full);
    struct request_refusal why;
    struct serve_room room = {.most = 100};
    struct serve_share one = {.room = &room}, other = {.room = &room};
    CHECK(!serve_share_grow(&one, 60, &why) && !serve_share_grow(&one, 50, &why));
    CHECK(serve_share_grow(&other, 60, &why) && why.status == 503 && one.bytes == 60);
    CHECK(serve_share_grow(&other, 200, &why) && why.status == 413 && !other.bytes);
    serve_share_give_back(&one);
    CHECK(!serve_share_grow(&other, 60, &why) && room.taken == 60);
    for (int i = 0; i < 2 * MOST; i++) /* one after the other */
        ask(TO_SIZE "Content-Length: 5\r\n\r\nabcde", "\r\n\r\n5");
}

/* ---- access ---- */

static int access_of(const struct serve_access *a, struct serve_head h, bool is_free)
{
    struct request_refusal why = {0};
    h.method = h.method ? h.method : "GET";
    h.path = "/";
    return serve_access_check(a, &h, is_free, &why) ? why.status : 200;
}

static void test_access(void)
{
    const char *hosts[] = {"example.org"}, *origins[] = {"https://chat.example.org"};
    char first[] = "one", second[] = "two", *keys[] = {first, second};
    struct serve_access a = {.on_loopback = true};
    static const struct {
        const char *host;
        int status;
    } named[] = {{"localhost:8080", 200},   {"127.0.0.1", 200},   {"[::1]:80", 200},
                 {"a.localhost", 200},      {"127.1.2.3", 200},   {"example.org:80", 403},
                 {"localhost.evil", 403},   {"192.168.0.1", 403}, {"127.0.0.1.evil:1", 403},
                 {"host.internal:80", 200}, {"[::2]", 403},       {"evillocal", 403}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        CHECK_MSG(access_of(&a, (struct serve_head){.host = named[i].host}, false) ==
                      named[i].status,
                  "%s", named[i].host);
    a.hosts = (struct cli_strings){hosts, 1};
    CHECK(access_of(&a, (struct serve_head){.host = "example.org:80"}, false) == 200);
    static const struct {
        const char *origin;
        int status;
    } pages[] = {{"http://localhost:3000", 200},
                 {"https://127.0.0.1", 200},
                 {"null", 403},
                 {"https://example.org", 200},
                 {"http://example.org", 200}, /* its own page */
                 {"file://", 403},
                 {"http://localhost.evil", 403},
                 {"http://other.org", 403}};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        CHECK_MSG(access_of(&a,
                            (struct serve_head){.host = "example.org", .origin = pages[i].origin},
                            false) == pages[i].status,
                  "%s", pages[i].origin);
    a.origins = (struct cli_strings){origins, 1};
    CHECK(access_of(&a, (struct serve_head){.origin = origins[0]}, false) == 200);
    CHECK(access_of(&a, (struct serve_head){.fetch_site = "cross-site"}, false) == 403);
    CHECK(access_of(&a, (struct serve_head){.fetch_site = "same-origin"}, false) == 200);
    CHECK(access_of(&a, (struct serve_head){.authorization = "Bearer "}, false) == 200);
    a.keys = keys;
    a.n_keys = 2;
    CHECK(access_of(&a, (struct serve_head){.authorization = "Bearer two"}, false) == 200);
    CHECK(access_of(&a, (struct serve_head){.api_key = "one"}, false) == 200);
    CHECK(access_of(&a, (struct serve_head){.api_key = "on"}, false) == 401);
    CHECK(access_of(&a, (struct serve_head){.api_key = "oneone"}, false) == 401);
    CHECK(access_of(&a, (struct serve_head){.authorization = "Bearer "}, false) == 401);
    CHECK(access_of(&a, (struct serve_head){0}, false) == 401);
    CHECK(access_of(&a, (struct serve_head){0}, true) == 200);
    CHECK(access_of(&a, (struct serve_head){.method = "OPTIONS"}, false) == 200);
    CHECK(serve_is_loopback("::1") && serve_is_loopback("127.0.0.9") &&
          !serve_is_loopback("0.0.0.0") && !serve_is_loopback("::"));
}

static void test_metrics(void)
{
    struct serve_metrics *m = serve_metrics_open();
    struct spw_text text = {0};
    const struct serve_counters c = {.n_running = 3,
                                     .n_decode_steps = 9,
                                     .n_drafted = 8,
                                     .n_accepted = 5,
                                     .engine.moved_bytes = {[SPW_MOVED_HOST_TO_DISK] = 70}};
    serve_metrics_count(m, &c);
    serve_metrics_observe(m, SERVE_FIRST_TOKEN, 0.02);
    serve_metrics_observe(m, SERVE_FIRST_TOKEN, 1000);
    serve_metrics_add(m, SERVE_ENDED_STOP);
    CHECK(serve_metrics_write(m, "a\"b", &text) == 0);
    static const char *const lines[] = {
        "\nspillway:num_requests_running{model_name=\"a\\\"b\"} 3\n",
        "\nspillway:moved_bytes_total{model_name=\"a\\\"b\",link=\"host_to_disk\"} 70\n",
        "\nspillway:decode_steps_total{model_name=\"a\\\"b\"} 9\n",
        "\nspillway:spec_decode_num_draft_tokens_total{model_name=\"a\\\"b\"} 8\n",
        "\nspillway:spec_decode_num_accepted_tokens_total{model_name=\"a\\\"b\"} 5\n",
        "\n# TYPE spillway:time_to_first_token_seconds histogram\n",
        "\nspillway:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.01\"} 0\n",
        "\nspillway:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.025\"} 1\n",
        "\nspillway:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 2\n",
        "\nspillway:time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 2\n",
        "\nspillway:request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 1\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        CHECK_MSG(strstr(text.text, lines[i]), "%s", lines[i]);
    CHECK(!strstr(text.text, "(null)"));
    spw_free(text.text);
    serve_metrics_close(m);
}

/* While the model is loaded, and paths and methods that do not exist. */
static void test_routes(void)
{
    static const struct {
        const char *method, *path;
        int status;
    } asks[] = {{"GET", "/health", 503},
                {"GET", "/v1/models", 503},
                {"POST", "/v1/chat/completions", 503},
                {"GET", "/", 200},
                {"GET", "/nothing", 404},
                {"GET", "/healthy", 404},
                {"POST", "/v1/models", 405},
                {"PUT", "/v1/messages", 405}};
    struct serve_server server = {0};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct serve_call call = {.head = {.method = asks[i].method, .path = asks[i].path}};
        struct serve_reply reply = {.status = 200};
        serve_route(&server, &call, &reply);
        CHECK_MSG(reply.status == asks[i].status, "%s: %d", asks[i].path, reply.status);
        CHECK(!reply.allow == (reply.status != 405));
        CHECK(!reply.retry_after == (reply.status != 503));
        spw_free(reply.body.text);
    }
    CHECK(serve_route_is_public("/health") && !serve_route_is_public("/v1/models"));
}

int main(void)
{
    struct spw_error err = {0};
    const struct serve_access access = {.on_loopback = true};
    const struct serve_http_options options = {.host = "127.0.0.1",
                                               .most_body_bytes = MOST_BODY,
                                               .most_connections = 32,
                                               .idle_seconds = IDLE_SECONDS,
                                               .access = &access,
                                               .answer = answer,
                                               .refuse = refuse,
                                               .is_public = is_public,
                                               .left = left};
    test_access();
    test_metrics();
    test_routes();
    const int64_t before = spw_alloc_outstanding();
    const int rc = serve_http_open(&http, &options, &err);
    if (rc == -ENOTSUP)
        return CHECK_SKIP;
    CHECK_MSG(rc == 0, "%s", err.text);
    if (rc)
        return check_done();
    struct serve_http *second; /* two servers do not share a port */
    struct serve_http_options same = options;
    same.port = serve_http_port(http);
    CHECK(serve_http_open(&second, &same, &err) == -EADDRINUSE && strstr(err.text, "port"));
    test_answers();
    test_streams();
    test_large();
    test_leaving();
    test_bodies();
    test_room();
    int s = dial(); /* the server ends while a client waits */
    post(s, "start add wait");
    CHECK(hear(s, "text\r\n"));
    serve_http_close(http);
    close(s);
    for (int i = 0; i < n_engines; i++)
        pthread_join(engines[i].thread, NULL);
    CHECK(n_gone == 5 && n_left >= 5 && n_wrong == 0);
    CHECK(spw_alloc_outstanding() == before);
    return check_done();
}
