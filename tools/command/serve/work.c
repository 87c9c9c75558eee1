/* See work.h. The life of an exchange on this side:
 *
 *   queue -> active: its requests are in the batch -> answered, refused, or gone
 *
 * All but the queue belongs to the engine's thread. */
#include "tools/command/serve/work.h"

#include "base/grow.h"
#include "tools/command/job/engine.h"
#include "tools/command/serve/pace.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { GRACE_SECONDS = 15, PUBLISH_SECONDS = 10, PROGRESS_SECONDS = 1 };

/* A request of the batch: one choice of an exchange. */
struct ask {
    uint64_t id; /* 0: it has ended, and its result was taken */
    uint64_t n_tokens;
    double latest;                  /* when its latest token came */
    struct spw_answer_parts *parts; /* owned */
};

/* An exchange whose requests are in the batch. */
struct active {
    struct serve_exchange *x; /* held */
    struct ask *asks;         /* owned, [n] */
    size_t n, n_ended;
    double started, first;      /* when it got a place, and its first token; 0: not yet */
    double told;                /* when it heard of its progress */
    uint64_t read_before;       /* tokens of prompts that had been read when it started */
    bool fails;                 /* its answer cannot be written */
    struct request_refusal why; /* status 0: nobody is there to read it */
};

struct serve_work {
    struct serve_work_options is;
    struct cli_options o; /* with the defaults of a job */
    struct job_run_options run;
    struct job_engine e;
    struct serve_pace pace;
    struct active *active; /* owned, [n_active], in the order in which they came */
    size_t n_active, capacity;
    double stops_at; /* when the grace ends; 0: the server goes on */

    pthread_mutex_t mutex;         /* of what follows */
    struct serve_exchange **queue; /* owned, [most_waiting] */
    uint32_t n_queue, n_waiting;   /* waiting: also those in the batch without a place */
    uint64_t context;
    struct serve_counters counters;
    struct serve_counters shown; /* their copy for others */
    struct serve_state state;    /* the same: of the engine's thread, and the copy */
    struct serve_state shown_state;

    /* Any thread, and signal handlers: */
    atomic_bool is_stopped;
    atomic_int wake_fd; /* owned: wakes the batch; below 0: it is not open */
};

/* ---- other threads ---- */

void serve_work_wake(struct serve_work *w)
{
    const int before = errno; /* of the code that a signal has interrupted */
    const int fd = atomic_load(&w->wake_fd);
    const ssize_t ignored = fd < 0 ? 0 : write(fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)ignored; /* a full counter is readable, too */
    errno = before;
}

void serve_work_stop(struct serve_work *w)
{
    atomic_store(&w->is_stopped, true);
    serve_work_wake(w);
}

int serve_work_submit(struct serve_work *w, struct serve_exchange *x)
{
    pthread_mutex_lock(&w->mutex);
    const bool is_full = w->n_queue + w->n_waiting >= w->is.most_waiting;
    const int rc = atomic_load(&w->is_stopped) ? -ESHUTDOWN : is_full ? -EBUSY : 0;
    w->counters.n_refused += is_full;
    if (!rc) {
        serve_exchange_hold(x);
        w->queue[w->n_queue++] = x;
    }
    pthread_mutex_unlock(&w->mutex);
    serve_work_wake(w);
    return rc;
}

void serve_work_count(struct serve_work *w, struct serve_counters *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->shown;
    out->n_refused = w->counters.n_refused;
    pthread_mutex_unlock(&w->mutex);
}

void serve_work_look(struct serve_work *w, struct serve_state *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->shown_state;
    out->n_running = w->shown.n_running;
    out->n_waiting = w->shown.n_waiting;
    out->most_waiting = w->is.most_waiting;
    pthread_mutex_unlock(&w->mutex);
    if (!out->n_running && !out->n_waiting) /* nothing moves, and the engine's thread sleeps */
        out->seconds = cli_now_seconds();
}

uint64_t serve_work_context(struct serve_work *w)
{
    pthread_mutex_lock(&w->mutex);
    const uint64_t context = w->context;
    pthread_mutex_unlock(&w->mutex);
    return context;
}

/* The oldest exchange of the queue; NULL: it is empty. */
static struct serve_exchange *take_queued(struct serve_work *w)
{
    struct serve_exchange *x = NULL;
    pthread_mutex_lock(&w->mutex);
    if (w->n_queue) {
        x = w->queue[0];
        w->n_waiting++; /* until tell_all has seen it run */
        memmove(w->queue, w->queue + 1, --w->n_queue * sizeof(struct serve_exchange *));
    }
    pthread_mutex_unlock(&w->mutex);
    return x;
}

static void observe(struct serve_work *w, enum serve_metric row, double value)
{
    if (w->is.metrics)
        serve_metrics_observe(w->is.metrics, row, value);
}

static void count_end(struct serve_work *w, enum serve_metric row)
{
    if (w->is.metrics)
        serve_metrics_add(w->is.metrics, row);
}

/* ---- the bytes of an answer ---- */

static void fail(struct active *a, const struct request_refusal *why)
{
    a->fails = true;
    a->why = why ? *why : (struct request_refusal){0};
}

/* Sends what a protocol has written, if its result is 0. */
static void send_text(struct active *a, int rc, struct cli_text *text)
{
    struct request_refusal why;
    if (!rc && text->n && !a->fails)
        rc = serve_exchange_add(a->x, text->text, text->n);
    spw_free(text->text);
    if (rc == -EPIPE)
        fail(a, NULL);
    else if (rc && !a->fails) {
        request_refuse_memory(&why);
        fail(a, &why);
    }
}

/* What a piece of a choice's answer goes to. */
struct piece_context {
    struct active *a;
    size_t choice;
};

static int emit(void *context, const struct spw_answer_piece *piece)
{
    const struct piece_context *to = context;
    struct serve_exchange *x = to->a->x;
    struct cli_text text = {0};
    SPW_TRY(request_add_piece(&x->request.choices[to->choice], piece));
    if (x->wish.stream && !to->a->fails)
        send_text(to->a, x->protocol->piece(&x->answer, to->choice, piece, &text), &text);
    return 0;
}

/* The next text of a choice; NULL: the text has ended. */
static void add_text(struct active *a, size_t choice, const char *text, size_t bytes)
{
    struct spw_answer_parts *parts = a->asks[choice].parts;
    struct piece_context to = {a, choice};
    struct request_refusal why;
    const int rc = text ? spw_answer_parts_push(parts, text, bytes, emit, &to)
                        : spw_answer_parts_finish(parts, emit, &to);
    if (rc && !a->fails) {
        request_refuse_memory(&why);
        fail(a, &why);
    }
}

/* ---- exchanges that begin ---- */

static void refuse(struct serve_exchange *x, const struct request_refusal *why,
                   uint32_t retry_after)
{
    serve_exchange_refuse(x, why, retry_after);
    serve_exchange_put(x);
}

static int submit(struct serve_work *w, struct active *a, struct request_refusal *why)
{
    struct spw_error err = {0};
    const struct request *x = &a->x->request;
    for (size_t i = 0; i < a->n; i++) {
        const struct spw_request q = request_ask(x, i, w->is.model->tokenizer != NULL);
        if (request_open_parts(x, i, &a->asks[i].parts))
            return request_refuse_memory(why);
        const int rc = spw_batch_submit(w->e.batch, &q, &a->asks[i].id, &err);
        cli_name_options(err.text);
        if (rc)
            return rc == -EINVAL || rc == -E2BIG
                       ? request_refuse(why, 400, NULL, NULL, "%s", err.text)
                       : request_refuse_memory(why);
    }
    return 0;
}

/* The requests leave the batch. The caller has the exchange. */
static struct serve_exchange *let_go(struct serve_work *w, struct active *a)
{
    struct serve_exchange *x = a->x;
    struct spw_result ignored;
    for (size_t i = 0; i < a->n; i++) {
        spw_answer_parts_close(a->asks[i].parts);
        if (!a->asks[i].id)
            continue;
        x->request.choices[i].result = (struct spw_result){0}; /* lent */
        spw_batch_cancel(w->e.batch, a->asks[i].id);
        if (!spw_batch_take(w->e.batch, a->asks[i].id, &ignored))
            spw_result_free(&ignored);
    }
    spw_free(a->asks);
    const size_t i = (size_t)(a - w->active);
    memmove(a, a + 1, (--w->n_active - i) * sizeof *a);
    return x;
}

/* Takes the exchange. */
static void begin(struct serve_work *w, struct serve_exchange *x)
{
    struct request_refusal why;
    struct cli_text text = {0};
    const size_t n = x->request.n_prompts * x->request.n_choices;
    struct ask *asks = spw_alloc_zero(n, sizeof *asks);
    if (!asks || spw_grow(&w->active, &w->capacity, w->n_active + 1, sizeof *w->active)) {
        spw_free(asks);
        request_refuse_memory(&why);
        refuse(x, &why, 0);
        return;
    }
    struct active *a = &w->active[w->n_active++];
    *a = (struct active){.x = x, .asks = asks, .n = n, .told = cli_now_seconds()};
    if (submit(w, a, &why)) {
        refuse(let_go(w, a), &why, 0);
        return;
    }
    if (x->wish.stream) {
        serve_exchange_start(x);
        send_text(a, x->protocol->begin(&x->answer, &text), &text);
    }
}

/* ---- exchanges that end ---- */

/* All choices have ended: the rest of the bytes. */
static void end_exchange(struct serve_work *w, struct active *a)
{
    struct serve_exchange *x = a->x;
    const struct serve_protocol *p = x->protocol;
    struct cli_text text = {0};
    int rc = x->wish.stream ? p->end(&x->answer, &text) : p->whole(&x->answer, &text);
    const double now = cli_now_seconds();
    const struct spw_result *r = &x->request.choices[0].result;
    send_text(a, rc, &text);
    if (a->fails)
        return; /* sweep ends it */
    observe(w, SERVE_WHOLE, now - x->arrived);
    observe(w, SERVE_DECODE, a->first > 0 ? now - a->first : 0);
    observe(w, SERVE_REQUEST_PROMPT, (double)x->request.prompts[0].n);
    observe(w, SERVE_REQUEST_GENERATED, (double)r->n_tokens);
    count_end(w, r->finish == SPW_FINISH_LENGTH ? SERVE_ENDED_LENGTH : SERVE_ENDED_STOP);
    w->counters.n_ended++;
    w->counters.answer_seconds += now - x->arrived;
    serve_exchange_end(x, r->logits_hash);
    serve_exchange_put(let_go(w, a));
}

/* Ends the exchanges whose client has left, and those that cannot be answered. */
static void sweep(struct serve_work *w)
{
    for (size_t i = w->n_active; i-- > 0;) {
        struct active *a = &w->active[i];
        const struct request_refusal why = a->why;
        if (!a->fails && !serve_exchange_is_gone(a->x))
            continue;
        const bool is_told = a->fails && why.status;
        count_end(w, is_told ? SERVE_ENDED_ERROR : SERVE_ENDED_ABORT);
        w->counters.n_failed += is_told;
        w->counters.n_gone += !is_told;
        struct serve_exchange *x = let_go(w, a);
        if (is_told)
            serve_exchange_refuse(x, &why, 0);
        serve_exchange_put(x);
    }
}

/* ---- events ---- */

static struct active *find(struct serve_work *w, uint64_t id, size_t *choice)
{
    for (size_t i = 0; i < w->n_active; i++)
        for (*choice = 0; *choice < w->active[i].n; ++*choice)
            if (w->active[i].asks[*choice].id == id)
                return &w->active[i];
    return NULL;
}

static void note_token(struct serve_work *w, struct active *a, struct ask *k)
{
    const double now = cli_now_seconds();
    w->counters.n_answer_tokens++;
    if (a->first <= 0) {
        w->counters.n_first_tokens++;
        w->counters.first_token_seconds += now - a->x->arrived;
        observe(w, SERVE_FIRST_TOKEN, now - a->x->arrived);
        observe(w, SERVE_PREFILL, now - a->started);
        a->first = now;
    }
    if (k->n_tokens++) {
        observe(w, SERVE_BETWEEN_TOKENS, now - k->latest);
        w->counters.last_gap_seconds = fmax(w->counters.last_gap_seconds, now - k->latest);
    }
    k->latest = now;
}

static void end_choice(struct serve_work *w, struct active *a, size_t choice,
                       const struct spw_event *e)
{
    struct serve_exchange *x = a->x;
    struct request_choice *c = &x->request.choices[choice];
    struct cli_text text = {0};
    struct request_refusal why;
    const bool failed = request_failed(&why, e);
    c->result = (struct spw_result){0}; /* it was lent */
    spw_batch_take(w->e.batch, e->request, &c->result);
    a->asks[choice].id = 0;
    a->n_ended++;
    c->has_ended = true;
    w->counters.n_prompt_tokens += x->request.prompts[choice / x->request.n_choices].n;
    w->counters.n_reused_tokens += c->result.n_reused;
    w->counters.n_stored_tokens += c->result.n_from_store;
    if (failed) {
        fail(a, &why);
        return;
    }
    add_text(a, choice, NULL, 0);
    if (request_count_reasoning(&x->request, choice, w->is.model->tokenizer)) {
        request_refuse_memory(&why);
        fail(a, &why);
    }
    if (x->wish.stream && !a->fails)
        send_text(a, x->protocol->end_choice(&x->answer, choice, &text), &text);
    if (a->n_ended == a->n && !a->fails)
        end_exchange(w, a);
}

static void on_event(struct serve_work *w, const struct spw_event *e)
{
    size_t choice;
    struct active *a = find(w, e->request, &choice);
    if (!a)
        return;
    if (e->kind == SPW_EVENT_END) {
        end_choice(w, a, choice, e);
        return;
    }
    const struct spw_result *so_far = spw_batch_result(w->e.batch, e->request);
    a->x->request.choices[choice].result = *so_far; /* lent until the result is taken */
    if (e->kind == SPW_EVENT_TOKEN)
        note_token(w, a, &a->asks[choice]);
    else
        add_text(a, choice, e->text, e->text_bytes);
}

/* ---- progress ---- */

/* The first choice that has no token yet. n: there is none. */
static size_t find_reading(const struct active *a)
{
    size_t i = 0;
    while (i < a->n && (a->asks[i].n_tokens || !a->asks[i].id))
        i++;
    return i;
}

static void tell(struct serve_work *w, struct active *a, uint32_t n_before,
                 const struct spw_progress *p)
{
    const size_t choice = find_reading(a);
    const struct request *x = &a->x->request;
    struct cli_text text = {0};
    if (choice == a->n || !a->x->wish.stream || a->fails)
        return;
    struct serve_progress s = {.n_read = spw_batch_n_read(w->e.batch, a->asks[choice].id, p),
                               .n_prompt = x->prompts[choice / x->n_choices].n,
                               .seconds_left = -1,
                               .n_before = n_before};
    const double rate = w->pace.tokens_a_second;
    if (!n_before && rate > 0)
        s.seconds_left = (double)(s.n_prompt - s.n_read) / rate;
    send_text(a, a->x->protocol->progress(&a->x->answer, &s, &text), &text);
}

/* Tells each exchange once a second how far its prompt is. Also called inside of a step. */
static void tell_all(struct serve_work *w, const struct spw_progress *p)
{
    const double now = cli_now_seconds();
    uint32_t n_before = 0;
    for (size_t i = 0; i < w->n_active; i++) {
        struct active *a = &w->active[i];
        const size_t k = find_reading(a);
        const bool runs = k == a->n || spw_batch_runs(w->e.batch, a->asks[k].id);
        if (runs && a->started <= 0) {
            a->started = now;
            observe(w, SERVE_QUEUED, now - a->x->arrived);
        }
        n_before += !runs;
        if (now - a->told < PROGRESS_SECONDS)
            continue;
        a->told = now;
        tell(w, a, runs ? 0 : n_before, p);
    }
    pthread_mutex_lock(&w->mutex);
    w->n_waiting = n_before;
    pthread_mutex_unlock(&w->mutex);
}

static void on_progress(void *context, const struct spw_progress *p)
{
    tell_all(context, p);
}

/* ---- the engine ---- */

/* The page shows limits also where no plan needs them. Nothing is measured: that takes memory. */
static void find_limits(struct serve_work *w)
{
    struct spw_options options = w->e.options;
    if (!w->e.limits.has_machine && !w->e.limits.has_drive)
        cli_limits_read(&w->e.limits, &w->o, &options, SPW_PROBE_NEVER);
}

/* Opens an engine for contexts as long as the model and the budgets allow. 0 or an exit code. */
static int open_engine(struct serve_work *w)
{
    bool fits = false;
    w->run = (struct job_run_options){.o = &w->o, .model = w->is.model};
    w->e = (struct job_engine){.is = &w->run,
                               .on_progress = on_progress,
                               .progress_context = w,
                               .rolls_back = true,
                               .limit = cli_longest_context(&w->o, w->is.model),
                               .most = UINT64_MAX};
    int code = job_engine_open(&w->e, w->e.limit, 0, &fits);
    const struct request longest = {.max_new_tokens = w->e.limit};
    if (!code && !fits)
        code = job_engine_find_most(&w->e, &longest);
    if (!code && !fits)
        code = job_engine_open(&w->e, w->e.most, 0, &fits);
    if (!code && !fits)
        code = cli_fail(CLI_REFUSED, "no context of this model fits the budgets");
    if (code)
        return code;
    const struct spw_plan_info *plan = spw_engine_plan(w->e.engine);
    serve_pace_init(&w->pace, plan, w->is.max_gap_seconds);
    spw_batch_keep_ended(w->e.batch);
    find_limits(w);
    w->counters.is_ready = true;
    w->counters.plan = *plan;
    pthread_mutex_lock(&w->mutex);
    w->context = plan->context;
    pthread_mutex_unlock(&w->mutex);
    const int fd = dup(spw_batch_wake_fd(w->e.batch));
    atomic_store(&w->wake_fd, fd);
    return fd < 0 ? cli_fail(CLI_FAILED, "a batch's eventfd: %s", strerror(errno)) : 0;
}

static void close_engine(struct serve_work *w)
{
    struct job_report ignored = {0};
    job_engine_close(&w->e, &ignored);
}

/* ---- counters ---- */

/* After a step, or before a wait: what others may see. */
static void show_counters(struct serve_work *w)
{
    struct serve_counters *c = &w->counters;
    struct spw_batch_times times;
    const bool sees = cli_now_seconds() - w->state.seconds >= 1 || spw_batch_is_idle(w->e.batch);
    if (sees)
        serve_state_see(&w->state, w->e.engine, w->e.batch, &w->e.limits);
    c->engine = w->state.stats;
    spw_engine_prefix(w->e.engine, &c->prefix);
    spw_batch_times(w->e.batch, &times);
    c->prefill_seconds = times.prefill_seconds;
    c->decode_seconds = times.decode_seconds;
    c->n_decode_steps = times.n_decode_steps;
    c->n_asides = times.n_asides;
    c->prompt_chunks = w->pace.chunks;
    c->pass_tokens = w->pace.pass_tokens;
    c->n_kept = spw_batch_n_kept(w->e.batch, &c->n_kept_tokens);
    c->worst_gap_seconds = fmax(c->worst_gap_seconds, c->last_gap_seconds);
    pthread_mutex_lock(&w->mutex);
    c->n_waiting = w->n_waiting + w->n_queue;
    c->n_running = (uint32_t)w->n_active - w->n_waiting;
    w->shown = *c;
    if (sees)
        w->shown_state = w->state;
    pthread_mutex_unlock(&w->mutex);
}

/* ---- the end ---- */

/* Refuses the exchanges that have no place; or all, as `all` says. */
static void refuse_rest(struct serve_work *w, bool all)
{
    struct request_refusal why;
    struct serve_exchange *x;
    request_refuse(&why, 503, "shutting_down", NULL, "the server is shutting down");
    while ((x = take_queued(w)))
        refuse(x, &why, 0);
    for (size_t i = w->n_active; i-- > 0;) {
        struct active *a = &w->active[i];
        bool runs = false;
        for (size_t k = 0; k < a->n; k++)
            runs |= !a->asks[k].id || spw_batch_runs(w->e.batch, a->asks[k].id);
        if (all || !runs)
            refuse(let_go(w, a), &why, 0);
    }
}

/* What requests that ran have computed goes into the prefix cache. */
static void publish_rest(struct serve_work *w)
{
    const double start = cli_now_seconds();
    for (size_t i = 0; i < w->n_active; i++)
        for (size_t k = 0; k < w->active[i].n; k++)
            if (w->active[i].asks[k].id && cli_now_seconds() - start < PUBLISH_SECONDS)
                spw_batch_publish(w->e.batch, w->active[i].asks[k].id);
}

/* ---- the loop ---- */

static bool any_decodes(const struct serve_work *w)
{
    for (size_t i = 0; i < w->n_active; i++)
        for (size_t k = 0; k < w->active[i].n; k++)
            if (w->active[i].asks[k].id && w->active[i].asks[k].n_tokens)
                return true;
    return false;
}

static int step(struct serve_work *w, struct spw_error *err)
{
    struct spw_event event;
    struct spw_batch_times times;
    spw_batch_set_prompt_chunks(w->e.batch, w->pace.chunks);
    spw_batch_set_pass_tokens(w->e.batch, w->pace.pass_tokens);
    w->counters.last_gap_seconds = 0;
    const int rc = spw_batch_step(w->e.batch, err);
    cli_read_events(&w->e.events, w->e.engine);
    while (spw_batch_event(w->e.batch, &event))
        on_event(w, &event);
    spw_batch_times(w->e.batch, &times);
    serve_pace_update(&w->pace, &times, any_decodes(w));
    return rc < 0 && rc != -ECANCELED ? rc : 0;
}

/* A turn of the loop. 1: the server goes on. */
static int turn(struct serve_work *w, struct spw_error *err)
{
    enum { IDLE_MILLISECONDS = 1000 };
    struct serve_exchange *x;
    sweep(w);
    tell_all(w, NULL);
    show_counters(w);
    spw_batch_wait(w->e.batch, spw_batch_is_idle(w->e.batch) ? IDLE_MILLISECONDS : 0);
    if (atomic_load(&w->is_stopped) && w->stops_at <= 0) {
        w->stops_at = cli_now_seconds() + GRACE_SECONDS;
        refuse_rest(w, false);
    }
    while ((x = take_queued(w)))
        begin(w, x);
    if (w->stops_at > 0 && (!w->n_active || cli_now_seconds() > w->stops_at))
        return 0;
    if (!spw_batch_is_idle(w->e.batch))
        SPW_TRY(step(w, err));
    return 1;
}

int serve_work_run(struct serve_work *w)
{
    struct spw_error err = {0};
    int rc, code = open_engine(w);
    if (!code && w->is.ready)
        w->is.ready(w->is.context);
    for (rc = !code; rc > 0;)
        rc = turn(w, &err);
    serve_work_stop(w);
    if (w->e.batch) {
        publish_rest(w);
        refuse_rest(w, true);
    }
    if (rc < 0)
        code = cli_fail_error(rc, &err, false);
    close_engine(w);
    return code;
}

/* ---- open, close ---- */

int serve_work_open(struct serve_work **out, const struct serve_work_options *options)
{
    struct serve_work *w = spw_alloc_zero(1, sizeof *w);
    *out = w;
    if (!w)
        return -ENOMEM;
    w->is = *options;
    w->o = *options->o;
    job_set_defaults(&w->o);
    atomic_init(&w->wake_fd, -1);
    w->is.most_waiting = options->most_waiting ? options->most_waiting : 256;
    w->is.max_gap_seconds = options->max_gap_seconds > 0 ? options->max_gap_seconds : 2;
    pthread_mutex_init(&w->mutex, NULL);
    w->queue = spw_alloc_zero(w->is.most_waiting, sizeof(struct serve_exchange *));
    if (w->queue)
        return 0;
    serve_work_close(w);
    *out = NULL;
    return -ENOMEM;
}

void serve_work_close(struct serve_work *w)
{
    if (!w)
        return;
    if (atomic_load(&w->wake_fd) >= 0)
        close(atomic_load(&w->wake_fd));
    pthread_mutex_destroy(&w->mutex);
    spw_free(w->active);
    spw_free(w->queue);
    spw_free(w);
}
