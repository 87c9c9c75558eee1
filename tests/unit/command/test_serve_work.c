/* The engine's side of the server, with a protocol that writes a letter for each call: side by side
 * and alone the same bits, clients that leave, a full queue, answers that no token continues,
 * memory and devices that fail, the end; and the pace of prompts, from times that this test makes
 * up. */
#include "tests/byte_tokenizer.h"
#include "tests/engine/engine_run.h"
#include "tools/command/serve/pace.h"
#include "tools/command/serve/work_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { CONTEXT = 1200, N = 6 };

const struct cli_command cli_commands[] = {{.name = NULL}};

static char folder[128];
static struct cli_options options;
static struct cli_model model;
static int32_t ids[N][CONTEXT];

/* ---- the protocol ---- */

static atomic_uint n_wrong; /* calls on the engine's thread that should not have been made */
static struct request_refusal refusal; /* the latest one */

static int add(struct spw_text *out, char letter)
{
    return spw_text_add(out, &letter, 1);
}

static int begin(struct serve_answer *a, struct spw_text *out)
{
    (void)a;
    return add(out, 'B');
}

static int progress(struct serve_answer *a, const struct serve_progress *p, struct spw_text *out)
{
    (void)a;
    n_wrong += p->n_read > p->n_prompt;
    return add(out, 'P');
}

static int piece(struct serve_answer *a, size_t choice, const struct spw_answer_piece *p,
                 struct spw_text *out)
{
    (void)a, (void)choice, (void)p;
    return add(out, 't');
}

static int end_choice(struct serve_answer *a, size_t choice, struct spw_text *out)
{
    n_wrong += !a->request->choices[choice].has_ended;
    return add(out, 'C');
}

static int end(struct serve_answer *a, struct spw_text *out)
{
    (void)a;
    return add(out, 'E');
}

static int failed(struct serve_answer *a, const struct request_refusal *why, struct spw_text *out)
{
    (void)a;
    refusal = *why;
    return add(out, 'F');
}

static int error(const struct request_refusal *why, const char *id, struct spw_text *out)
{
    (void)id;
    refusal = *why;
    return add(out, 'X');
}

static void no_close(struct serve_answer *a)
{
    (void)a;
}

static const struct serve_protocol letters = {.path = "/letters",
                                              .begin = begin,
                                              .progress = progress,
                                              .piece = piece,
                                              .end_choice = end_choice,
                                              .end = end,
                                              .failed = failed,
                                              .whole = end,
                                              .error = error,
                                              .close = no_close};

/* ---- a server ---- */

static struct serve_work *work;
static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_ready = PTHREAD_COND_INITIALIZER;
static bool ready;

static struct spw_look look; /* of the engine */

static void on_ready(void *context)
{
    (void)context;
    work->e.engine->look = look;
    pthread_mutex_lock(&mutex);
    ready = true;
    pthread_cond_signal(&is_ready);
    pthread_mutex_unlock(&mutex);
}

static void *run(void *context)
{
    (void)context;
    return (void *)(intptr_t)serve_work_run(work);
}

static void open_work(uint32_t most_waiting)
{
    const struct serve_work_options o = {
        .o = &options, .model = &model, .most_waiting = most_waiting, .ready = on_ready};
    ready = false;
    CHECK(!serve_work_open(&work, &o));
    CHECK(!serve_work_context(work));
}

static void start_work(void)
{
    CHECK(!pthread_create(&thread, NULL, run, NULL));
    pthread_mutex_lock(&mutex);
    while (!ready)
        pthread_cond_wait(&is_ready, &mutex);
    pthread_mutex_unlock(&mutex);
    CHECK(serve_work_context(work) == CONTEXT);
}

/* Its exit code. */
static int end_work(void)
{
    void *code;
    CHECK(!pthread_join(thread, &code));
    serve_work_close(work);
    return (int)(intptr_t)code;
}

static void close_work(void)
{
    serve_work_stop(work);
    CHECK(end_work() == 0);
}

/* ---- a client ---- */

static struct serve_exchange *ask(uint32_t k, size_t n_prompt, uint64_t max_new, uint32_t n_choices)
{
    struct serve_exchange *x = serve_exchange_open(&letters);
    struct request *q = &x->request;
    q->prompts = spw_alloc_zero(1, sizeof *q->prompts);
    q->prompts[0].tokens = spw_alloc(n_prompt * sizeof(int32_t));
    memcpy(q->prompts[0].tokens, ids[k], n_prompt * sizeof(int32_t));
    q->prompts[0].n = n_prompt;
    q->n_prompts = 1;
    q->n_choices = n_choices;
    q->choices = spw_alloc_zero(n_choices, sizeof *q->choices);
    q->max_new_tokens = max_new;
    q->ignore_eos = true;
    x->wish.stream = true;
    x->answer = (struct serve_answer){.protocol = &letters, .wish = &x->wish, .request = q};
    return x;
}

/* Waits for the end, and puts the exchange. The letters of the answer, without progress and text.
 */
static const char *finish(struct serve_exchange *x, uint64_t *hash, uint64_t *n_reused)
{
    static char text[4096];
    size_t n = 0, kept = 0;
    bool is_last = false;
    pthread_mutex_lock(&x->mutex);
    while (!x->ended)
        pthread_cond_wait(&x->changed, &x->mutex);
    *hash = x->logits_hash;
    pthread_mutex_unlock(&x->mutex);
    while (!is_last && n < sizeof text - 1)
        n += serve_exchange_take(x, text + n, sizeof text - 1 - n, &is_last);
    for (size_t i = 0; i < n; i++)
        if (text[i] != 'P' && text[i] != 't')
            text[kept++] = text[i];
    text[kept] = '\0';
    *n_reused = x->request.choices[0].result.n_reused;
    serve_exchange_put(x);
    return text;
}

/* What a batch of one request gives. */
static uint64_t hash_alone(uint32_t k, size_t n_prompt, size_t max_new)
{
    struct spw_error err = {0};
    struct spw_result r = {0};
    struct spw_batch *b = NULL;
    uint64_t id;
    const struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = CONTEXT, .threads = 1};
    struct spw_engine *e = run_open(folder, &o);
    CHECK_MSG(!spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    const struct spw_request q = {
        .prompt = ids[k], .n_prompt = n_prompt, .max_new_tokens = max_new, .ignore_eos = true};
    CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
    while (spw_batch_step(b, &err) > 0)
        continue;
    CHECK(!spw_batch_take(b, id, &r));
    const uint64_t hash = r.logits_hash;
    spw_result_free(&r);
    spw_batch_close(b);
    spw_engine_close(e);
    return hash;
}

/* ---- the tests ---- */

static void wait_for(uint64_t n_gone)
{
    struct serve_counters c;
    const struct timespec moment = {.tv_nsec = 1000000};
    for (uint32_t i = 0; i < 20000; i++) {
        serve_work_count(work, &c);
        if (c.n_gone == n_gone)
            return;
        nanosleep(&moment, NULL);
    }
    CHECK_MSG(false, "%llu clients have left", (unsigned long long)c.n_gone);
}

/* All at once, one after a client has left, and once more: the same bits as alone. */
static void check_bits(void)
{
    struct serve_exchange *x[N];
    uint64_t right[N], hash, n_reused;
    for (uint32_t k = 0; k < N; k++)
        right[k] = hash_alone(k, 100 + 170 * k, 4);
    open_work(0);
    start_work();
    struct serve_exchange *leaves = ask(N - 1, 100 + 170 * (N - 1), 4, 1);
    CHECK(!serve_work_submit(work, leaves));
    serve_exchange_leave(leaves);
    serve_work_wake(work);
    for (uint32_t k = 0; k < N; k++) {
        x[k] = ask(k, 100 + 170 * k, 4, 1);
        CHECK(!serve_work_submit(work, x[k]));
    }
    for (uint32_t k = 0; k < N; k++) {
        CHECK_MSG(!strcmp(finish(x[k], &hash, &n_reused), "BCE"), "request %u", k);
        CHECK_MSG(hash == right[k], "request %u", k);
    }
    wait_for(1);
    serve_exchange_put(leaves);
    struct serve_exchange *again;
    for (uint32_t i = 0; i < 2; i++) { /* the first one makes sure that its session is there */
        again = ask(2, 100 + 170 * 2, 4, 1);
        CHECK(!serve_work_submit(work, again));
        finish(again, &hash, &n_reused);
    }
    CHECK_MSG(hash == right[2] && n_reused == 100 + 170 * 2 - 1, "%llu reused",
              (unsigned long long)n_reused);
    again = ask(0, 100, 4, 3); /* several answers */
    CHECK(!serve_work_submit(work, again));
    CHECK(!strcmp(finish(again, &hash, &n_reused), "BCCCE") && hash == right[0]);
    close_work();
}

/* The tokenizer has no blank: the client's schema is at fault, not the server. */
static void check_grammar(void)
{
    static const char schema[] = "{\"enum\":[\"a b\"]}";
    uint64_t hash, n_reused;
    open_work(0);
    start_work();
    for (int stream = 0; stream < 2; stream++) {
        struct serve_exchange *x = ask(0, 100, 9, 1);
        CHECK(!spw_grammar_open_schema(&x->request.grammar, schema, sizeof schema - 1, NULL));
        x->wish.stream = stream;
        refusal = (struct request_refusal){0};
        CHECK(!serve_work_submit(work, x));
        CHECK(!strcmp(finish(x, &hash, &n_reused), stream ? "BF" : "X"));
        CHECK_MSG(refusal.status == 400 && strstr(refusal.message, "no token"), "%d: %s",
                  refusal.status, refusal.message);
    }
    close_work();
}

/* Beyond the queue: -EBUSY. Exchanges that wait when the server ends are refused. */
static void check_queue(void)
{
    uint64_t hash, n_reused;
    struct serve_counters c;
    open_work(2);
    struct serve_exchange *x[] = {ask(0, 100, 2, 1), ask(1, 100, 2, 1), ask(2, 100, 2, 1)};
    CHECK(!serve_work_submit(work, x[0]) && !serve_work_submit(work, x[1]));
    CHECK(serve_work_submit(work, x[2]) == -EBUSY);
    start_work();
    CHECK(!strcmp(finish(x[0], &hash, &n_reused), "BCE"));
    CHECK(!strcmp(finish(x[1], &hash, &n_reused), "BCE"));
    serve_work_count(work, &c);
    CHECK(c.n_refused == 1);
    serve_work_stop(work);
    CHECK(serve_work_submit(work, x[2]) == -ESHUTDOWN);
    serve_exchange_put(x[2]);
    close_work();
    open_work(4); /* choices count */
    struct serve_exchange *y[] = {ask(0, 100, 2, 9), ask(1, 100, 2, 1), ask(0, 100, 2, 3),
                                  ask(1, 100, 2, 2), ask(2, 100, 2, 1)};
    CHECK(!serve_work_submit(work, y[0])); /* more than there are, but nobody else waits */
    CHECK(serve_work_submit(work, y[1]) == -EBUSY);
    serve_exchange_put(y[1]);
    start_work();
    CHECK(!strcmp(finish(y[0], &hash, &n_reused), "BCCCCCCCCCE"));
    close_work();
    open_work(4);
    CHECK(!serve_work_submit(work, y[2]) && serve_work_submit(work, y[3]) == -EBUSY &&
          !serve_work_submit(work, y[4]));
    serve_exchange_put(y[3]);
    start_work();
    CHECK(!strcmp(finish(y[2], &hash, &n_reused), "BCCCE"));
    CHECK(!strcmp(finish(y[4], &hash, &n_reused), "BCE"));
    close_work();
    open_work(2);
    struct serve_exchange *late = ask(0, 100, 2, 1);
    CHECK(!serve_work_submit(work, late));
    serve_work_stop(work);
    start_work();
    CHECK(!strcmp(finish(late, &hash, &n_reused), "X"));
    close_work();
}

/* ---- clients that leave in the middle of a prompt ---- */

enum { LEAVES_AFTER = 9, LONG = 1100 }; /* chunks: some passes are through; tokens */

static struct serve_exchange *leaver; /* the engine's thread waits until its side has noticed */
static atomic_bool has_noticed;
static int leaver_socket;
static uint32_t n_looks; /* chunks of a layer that were queued, while there is a leaver */

/* The client of `leaver` closes its socket while the engine computes a chunk of its prompt. */
static bool leave_in_chunk(void *context)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    (void)context;
    if (!leaver || ++n_looks != LEAVES_AFTER)
        return false;
    close(leaver_socket);
    for (uint32_t i = 0; i < 20000 && !has_noticed; i++)
        nanosleep(&moment, NULL);
    return false;
}

/* As a connection's thread does, from a complete body to the end of the connection. */
static void *connection(void *socket)
{
    const int s = (int)(intptr_t)socket;
    const enum serve_wait until = leaver->wish.stream ? SERVE_WAIT_BYTES : SERVE_WAIT_END;
    bool is_last = false;
    char byte;
    while (!is_last && serve_exchange_wait(leaver, until, s))
        serve_exchange_take(leaver, &byte, 1, &is_last);
    n_wrong += is_last; /* it has not left */
    serve_exchange_leave(leaver);
    serve_work_wake(work);
    has_noticed = true;
    return NULL;
}

/* It is noticed within two chunks, which are queued by then, and what has passed all layers of its
 * prompt is found again: a chunk at least, since the first pass of a new server is one. */
static void check_leaving(bool stream)
{
    int sockets[2];
    pthread_t client;
    uint64_t hash, n_reused;
    const uint64_t right = hash_alone(0, LONG, 4);
    look = (struct spw_look){.is_time = leave_in_chunk};
    open_work(0);
    start_work();
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    struct serve_exchange *x = ask(0, LONG, 4, 1);
    x->wish.stream = stream;
    leaver = x;
    leaver_socket = sockets[1];
    n_looks = 0;
    has_noticed = false;
    CHECK(!pthread_create(&client, NULL, connection, (void *)(intptr_t)sockets[0]));
    CHECK(!serve_work_submit(work, x));
    CHECK(!pthread_join(client, NULL));
    wait_for(1);
    close(sockets[0]);
    CHECK_MSG(n_looks >= LEAVES_AFTER && n_looks <= LEAVES_AFTER + 2, "%u chunks", n_looks);
    leaver = NULL;
    serve_exchange_put(x);
    struct serve_exchange *again = ask(0, LONG, 4, 1);
    again->wish.stream = stream;
    CHECK(!serve_work_submit(work, again));
    CHECK(!strcmp(finish(again, &hash, &n_reused), stream ? "BCE" : "E"));
    CHECK_MSG(hash == right && n_reused >= 64 && n_reused < LONG - 1,
              "stream %d: %llu reused, %llx, alone %llx", stream, (unsigned long long)n_reused,
              (unsigned long long)hash, (unsigned long long)right);
    close_work();
    look = (struct spw_look){0};
}

/* ---- what fails ---- */

static void check_answer(struct serve_exchange *x, uint64_t right, int64_t n)
{
    uint64_t hash, n_reused;
    const bool streams = x->wish.stream;
    const char *text = finish(x, &hash, &n_reused);
    const bool fails = *text && strchr("XF", text[strlen(text) - 1]);
    CHECK_MSG(fails || !*text || (!strcmp(text, streams ? "BCE" : "E") && hash == right),
              "fault %lld: %s", (long long)n, text);
}

/* The n-th allocation fails, for n = 0, 1, ...: each request has its answer or an error (nothing,
 * if there is no memory for that), and the next one its answer. */
static void check_allocations(void)
{
    const uint64_t right[] = {hash_alone(0, 200, 4), hash_alone(1, 300, 4)};
    uint64_t hash, n_reused;
    bool met = true;
    int64_t n = 0;
    open_work(0);
    start_work();
    for (; met; n++) {
        struct serve_exchange *x[] = {ask(0, 200, 4, 1), ask(1, 300, 4, 1)};
        x[1]->wish.stream = false;
        spw_alloc_fail_nth(n);
        for (int i = 0; i < 2; i++)
            CHECK(!serve_work_submit(work, x[i]));
        for (int i = 0; i < 2; i++)
            check_answer(x[i], right[i], n);
        met = run_alloc_failed();
        struct serve_exchange *again = ask(0, 200, 4, 1);
        CHECK(!serve_work_submit(work, again));
        CHECK(!strcmp(finish(again, &hash, &n_reused), "BCE") && hash == right[0]);
    }
    close_work();
    CHECK_MSG(n > 20, "%lld allocations", (long long)n);
}

/* The same while the engine opens: the server starts, or ends with a line; nobody waits for ever.
 */
static void check_opening(void)
{
    enum { STRIDE = 11 };
    const uint64_t right = hash_alone(0, 100, 2);
    const int64_t outstanding = spw_alloc_outstanding();
    uint32_t n_failed = 0;
    bool met = true;
    for (int64_t n = 0; met; n += STRIDE) {
        open_work(0);
        struct serve_exchange *x = ask(0, 100, 2, 1);
        CHECK(!serve_work_submit(work, x));
        spw_alloc_fail_nth(n);
        CHECK(!pthread_create(&thread, NULL, run, NULL));
        check_answer(x, right, n);
        serve_work_stop(work);
        const int code = end_work();
        met = run_alloc_failed();
        CHECK(!code || met);
        n_failed += code != 0;
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "allocation %lld: blocks lost",
                  (long long)n);
    }
    CHECK_MSG(n_failed >= 5, "%u servers did not open", n_failed);
}

/* A device that fails for good: those that run, and the next ones, hear why, and the server ends.
 */
static void check_device(void)
{
    uint64_t hash, n_reused;
    int64_t n = 0;
    open_work(0);
    start_work();
    spw_device_cpu_fail_nth(work->e.engine->lane.device, 0);
    for (; n < 4 && !atomic_load(&work->is_stopped); n++) {
        struct serve_exchange *x = ask(0, 200, 4, 1);
        x->wish.stream = n % 2;
        refusal = (struct request_refusal){0};
        if (serve_work_submit(work, x)) { /* it ends right now */
            serve_exchange_put(x);
            break;
        }
        CHECK(!strcmp(finish(x, &hash, &n_reused), n % 2 ? "BF" : "X"));
        CHECK_MSG(refusal.status == 500 && strstr(refusal.message, "failed on the device"),
                  "%d: %s", refusal.status, refusal.message);
    }
    CHECK_MSG(n == 2, "%lld requests", (long long)n);
    CHECK(end_work() == CLI_FAILED);
}

/* ---- the pace ---- */

/* A step of n chunks of prompts of a second each, beside decode steps of d. */
static double gap_of(double max_gap, double chunk, double d)
{
    const struct spw_plan_info plan = {.prefill_chunk = 512, .n_layers = 4, .n_layers_resident = 4};
    struct spw_batch_times t = {0};
    struct serve_pace p;
    serve_pace_init(&p, &plan, max_gap);
    for (uint32_t i = 0; i < 100; i++) {
        t.decode_seconds += d;
        t.n_decode_steps++;
        t.prefill_seconds += p.chunks * chunk;
        t.n_chunks += p.chunks;
        t.n_pauses++;
        t.n_prompt_tokens += i % 10 == 9 ? 512 : 0;
        serve_pace_update(&p, &t, true);
    }
    CHECK(p.pass_tokens >= 512);
    const double most = fmax(0.9 * max_gap - 0.2 * d, 0); /* of a step */
    serve_pace_begin(&p, 100);
    CHECK(serve_pace_is_late(&p, 100.001 + most) && p.chunk_seconds > 0);
    CHECK(serve_pace_is_late(&p, 100) == (2 * p.chunk_seconds > most));
    return p.chunks * chunk + d;
}

/* The promise: max(max_gap, one chunk + 1.2 x a decode step); and prompts lose a tenth at most. */
static void check_pace(void)
{
    for (double chunk = 1e-4; chunk < 20; chunk *= 3)
        for (double d = 1e-3; d < 20; d *= 3) {
            const double gap = gap_of(2, chunk, d), most = fmax(2, chunk + 1.2 * d);
            CHECK_MSG(gap <= most, "chunks of %g s, decode %g s: %g s", chunk, d, gap);
            CHECK_MSG(gap >= 11 * d || gap > 1.7 - 1.2 * d - chunk || gap >= chunk,
                      "chunks of %g s, decode %g s: %g s", chunk, d, gap);
        }
}

static void write_tokenizer(void)
{
    char path[160], json[BYTE_TOKENIZER_BYTES];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(json, byte_tokenizer_json(json), 1, f) == 1 && !fclose(f));
}

int main(void)
{
    static const struct cli_command command = {
        .name = "serve", .bit = CLI_SERVE, .operand = "MODEL"};
    struct tiny_model m = tiny_narrow;
    m.positions = CONTEXT;
    run_folder(folder, &m, "serve_work");
    write_tokenizer();
    char *argv[] = {"serve",      folder, "--device",        "cpu", "--threads", "1",
                    "--sessions", "3",    "--prefill-chunk", "64",  "--quiet"};
    CHECK(cli_parse(&options, &command, sizeof argv / sizeof *argv, argv) == 0);
    CHECK(cli_model_open(&model, folder, true) == 0);
    for (uint64_t k = 0; k < N; k++)
        run_ids(ids[k], CONTEXT, m.vocab, 10 + k);
    check_pace();
    check_bits();
    check_queue();
    check_grammar();
    check_leaving(false);
    check_leaving(true);
    check_allocations();
    check_opening();
    check_device();
    CHECK(!n_wrong);
    cli_model_close(&model);
    cli_options_free(&options);
    tiny_model_remove(folder);
    return check_done();
}
