/* Events of an engine, and interrupts. Events are read once, in order, and a full queue reports how
 * many events it dropped. An interrupt ends the running step or the next one, from any thread and
 * any signal handler; it is never lost, and the step that it ends clears it. A refused budget comes
 * with correct numbers. */
#include "runtime/engine/engine.h"
#include "tests/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "tests/golden/llama_700"
enum { N_TOKENS = 600, N_SIGNALED = 120 };

static struct spw_interrupt interrupt;

static struct spw_options options(void)
{
    struct spw_options o;
    memset(&o, 0xff, sizeof o);
    spw_options_init(&o);
    o.backend = SPW_BACKEND_CPU;
    o.context = N_TOKENS + 8;
    o.threads = 2;
    o.prefill_chunk = 16;
    o.interrupt = &interrupt;
    return o;
}

/* ---- events ---- */

static void test_queue(void)
{
    static struct spw_engine e; /* only its queue is used */
    struct spw_engine_event event;
    CHECK(!spw_engine_event(&e, &event));
    for (uint64_t round = 0; round < 3; round++) {
        const uint64_t n = round == 1 ? SPW_ENGINE_EVENTS_KEPT + 7 : SPW_ENGINE_EVENTS_KEPT;
        for (uint64_t i = 0; i < n; i++)
            spw_engine_report(&e, &(struct spw_engine_event){.kind = SPW_ENGINE_LOST_TILE,
                                                             .lost_tile.position = i});
        const uint64_t n_missed = n - SPW_ENGINE_EVENTS_KEPT;
        for (uint64_t i = n_missed; i < n; i++) {
            CHECK(spw_engine_event(&e, &event) && event.kind == SPW_ENGINE_LOST_TILE);
            CHECK(event.lost_tile.position == i);
            CHECK(event.n_missed == (i == n_missed ? n_missed : 0));
        }
        CHECK(!spw_engine_event(&e, &event));
    }
    CHECK(e.events.n_lost_tiles == 3 * SPW_ENGINE_EVENTS_KEPT + 7);
    spw_engine_report_note(&e, "one line");
    spw_engine_report(
        &e, &(struct spw_engine_event){.kind = SPW_ENGINE_REUSE, .reuse = {128, 200, 4096}});
    spw_engine_report(&e, &(struct spw_engine_event){.kind = SPW_ENGINE_FALLBACK,
                                                     .fallback.kind = SPW_FALLBACK_DISK});
    CHECK(spw_engine_event(&e, &event) && event.kind == SPW_ENGINE_NOTE);
    CHECK(!strcmp(event.text, "one line"));
    CHECK(spw_engine_event(&e, &event) && event.kind == SPW_ENGINE_REUSE);
    CHECK(event.reuse.n_tokens == 128 && event.reuse.n_asked == 200 && event.reuse.bytes == 4096);
    CHECK(spw_engine_event(&e, &event) && event.kind == SPW_ENGINE_FALLBACK);
    CHECK(event.fallback.kind == SPW_FALLBACK_DISK && e.events.n_fallbacks == 1);
}

/* ---- interrupts ---- */

struct stepper {
    struct spw_engine *e;
    struct spw_session *s;
    int32_t ids[N_TOKENS];
};

static int sync_to(struct stepper *t, size_t n)
{
    struct spw_span span = {t->s, t->ids, n, 1};
    struct spw_error err;
    int rc = spw_sync(t->e, &span, 1, NULL, NULL, &err);
    CHECK_MSG(!rc || (rc == -ECANCELED && strstr(err.text, "interrupted")), "%d: %s", rc, err.text);
    return rc;
}

static void open_stepper(struct stepper *t, const struct spw_options *o)
{
    struct spw_error err;
    for (int i = 0; i < N_TOKENS; i++)
        t->ids[i] = (i * 7) % 60;
    CHECK_MSG(!spw_engine_open(&t->e, MODEL, o, &err), "%s", err.text);
    CHECK_MSG(!spw_session_open(&t->s, t->e, &err), "%s", err.text);
}

static void close_stepper(struct stepper *t)
{
    spw_session_close(t->s);
    spw_engine_close(t->e);
}

/* Raised between two calls: only the next call ends. Cleared before the call: no call ends. */
static void test_between_calls(struct stepper *t)
{
    CHECK(!spw_interrupt_clear(&interrupt));
    spw_interrupt_raise(&interrupt);
    spw_interrupt_raise(&interrupt); /* twice is once */
    CHECK(sync_to(t, 100) == -ECANCELED && spw_session_n_tokens(t->s) < 100);
    CHECK(!spw_interrupt_clear(&interrupt)); /* the step has cleared it */
    CHECK(!sync_to(t, 100) && spw_session_n_tokens(t->s) == 100);
    spw_interrupt_raise(&interrupt);
    CHECK(!sync_to(t, 100)); /* nothing to compute: the interrupt stays */
    CHECK(sync_to(t, 101) == -ECANCELED);
    CHECK(!sync_to(t, 101));
    spw_interrupt_raise(&interrupt);
    CHECK(spw_interrupt_clear(&interrupt) && !sync_to(t, 102));
    /* A refused call returns its own error. */
    struct spw_span wrong = {t->s, t->ids, 0, 1};
    spw_interrupt_raise(&interrupt);
    CHECK(spw_sync(t->e, &wrong, 1, NULL, NULL, NULL) == -EINVAL);
    CHECK(spw_interrupt_clear(&interrupt));
}

struct after {
    int left, n_calls;
};

static void raise_after(void *context, const struct spw_progress *p)
{
    struct after *a = context;
    a->n_calls++;
    if (p->done < p->total && --a->left == 0)
        spw_interrupt_raise(&interrupt);
}

/* Raised in a callback: at most two more chunks are computed. */
static void test_within_chunks(void)
{
    struct after after = {0};
    struct spw_options o = options();
    struct stepper t;
    o.on_progress = raise_after;
    o.progress_context = &after;
    open_stepper(&t, &o);
    for (int when = 1; when < 60; when += 9) {
        after = (struct after){.left = when};
        CHECK(sync_to(&t, N_TOKENS) == -ECANCELED);
        CHECK_MSG(after.n_calls <= when + 2, "%d calls, raised in number %d", after.n_calls, when);
    }
    after.left = -1;
    CHECK(!sync_to(&t, N_TOKENS));
    close_stepper(&t);
}

static void on_signal(int number)
{
    (void)number;
    spw_interrupt_raise(&interrupt);
}

static volatile bool sender_ends;

static void *send_signals(void *context)
{
    (void)context;
    for (unsigned i = 0; !__atomic_load_n(&sender_ends, __ATOMIC_SEQ_CST); i++) {
        /* sometimes long enough for a whole step, on a slow machine later */
        usleep(200 + 1000 * (i % 16) * (1 + i / 64));
        kill(getpid(), SIGUSR1);
    }
    return NULL;
}

/* Signals at any time: every step computes everything or returns that it was interrupted, and in
 * the end the session has the logits of a run without interrupts. */
static void test_signals(struct stepper *t)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    const size_t bytes = spw_engine_config(t->e)->vocab * sizeof(float);
    float *expected = malloc(bytes);
    uint64_t n_ended = 0, n_done = 0;
    pthread_t sender;
    CHECK(!sync_to(t, N_SIGNALED));
    memcpy(expected, spw_session_logits(t->s), bytes);
    sigaction(SIGUSR1, &action, NULL);
    CHECK(!pthread_create(&sender, NULL, send_signals, NULL));
    const int n_rounds = RUN_UNDER_TSAN ? 8 : 40;
    for (int i = 0; i < n_rounds; i++) {
        int rc = sync_to(t, 1 + (size_t)i % 3);
        n_ended += rc != 0;
        for (int tries = 0; (rc = sync_to(t, N_SIGNALED)) && tries < 10000; tries++)
            n_ended++;
        n_done += !rc && !memcmp(expected, spw_session_logits(t->s), bytes);
    }
    __atomic_store_n(&sender_ends, true, __ATOMIC_SEQ_CST);
    pthread_join(sender, NULL);
    CHECK_MSG(n_done == (uint64_t)n_rounds && n_ended > 0, "%llu done, %llu ended",
              (unsigned long long)n_done, (unsigned long long)n_ended);
    spw_interrupt_clear(&interrupt);
    free(expected);
}

/* ---- refusals ---- */

static int open_with(const uint64_t budgets[2], struct spw_error *err)
{
    struct spw_options o = options();
    struct spw_engine *e = NULL;
    o.device_bytes = budgets[0];
    o.host_bytes = budgets[1];
    int rc = spw_engine_open(&e, MODEL, &o, err);
    spw_engine_close(e);
    return rc;
}

/* The smallest budgets work, and a page less does not. */
static void test_refusals(void)
{
    const uint64_t page = 4096, given[][2] = {{page, 1 << 30}, {300 * page, page}, {page, page}};
    struct spw_error err;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        CHECK(open_with(given[i], &err) == -ENOMEM && err.refuses_budgets && *err.text);
        const struct spw_refused_budget device = err.budgets[SPW_BUDGET_DEVICE],
                                        host = err.budgets[SPW_BUDGET_HOST];
        CHECK(device.given_bytes == given[i][0] && host.given_bytes == given[i][1]);
        CHECK(!err.budgets[SPW_BUDGET_DISK].smallest_bytes);
        CHECK(device.smallest_bytes > device.given_bytes || host.smallest_bytes > host.given_bytes);
        uint64_t with[2] = {spw_max_u64(device.given_bytes, device.smallest_bytes),
                            spw_max_u64(host.given_bytes, host.smallest_bytes)};
        if (device.alone)
            with[1] = host.given_bytes;
        CHECK_MSG(!open_with(with, &err) && !err.refuses_budgets && !*err.text, "%s", err.text);
        with[0] = device.smallest_bytes - page;
        CHECK(!device.alone || open_with(with, &err) == -ENOMEM);
    }
    err.refuses_budgets = true;
    CHECK(spw_engine_open(&(struct spw_engine *){NULL}, "tests/no_such_folder",
                          &(struct spw_options){0}, &err) < 0);
    CHECK(!err.refuses_budgets); /* another error is no refusal */
}

int main(void)
{
    struct stepper t;
    struct spw_options o = options();
    test_queue();
    open_stepper(&t, &o);
    test_between_calls(&t);
    test_signals(&t);
    close_stepper(&t);
    test_within_chunks();
    test_refusals();
    return check_done();
}
