/* See work.h, and work_parts.h. */
#include "tools/command/serve/protocol_parts.h"
#include "tools/command/serve/work_parts.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { GRACE_SECONDS = 15, PUBLISH_SECONDS = 10 };

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
    const uint32_t n = (uint32_t)serve_n_choices(&x->answer);
    pthread_mutex_lock(&w->mutex);
    const uint32_t n_before = w->n_queued + w->n_waiting;
    const bool is_full = n_before && n_before + n > w->is.most_waiting;
    const int rc = atomic_load(&w->is_stopped) ? -ESHUTDOWN : is_full ? -EBUSY : 0;
    w->counters.n_refused += is_full;
    if (!rc) {
        serve_exchange_get(x);
        w->queue[w->n_queue++] = x;
        w->n_queued += n;
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
        w->n_queued -= (uint32_t)serve_n_choices(&x->answer);
        w->n_waiting +=
            (uint32_t)serve_n_choices(&x->answer); /* until serve_active_report has seen it run */
        memmove(w->queue, w->queue + 1, --w->n_queue * sizeof(struct serve_exchange *));
    }
    pthread_mutex_unlock(&w->mutex);
    return x;
}

/* ---- the engine ---- */

static void on_progress(void *context, const struct spw_progress *p)
{
    struct serve_work *w = context;
    serve_active_report(w, p);
    if (serve_pace_is_late(&w->pace, cli_now_seconds()))
        serve_work_wake(w);
}

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
    w->least = (struct request){.max_new_tokens = 1, .beams = cli_beams(&w->o)};
    w->run = (struct job_run_options){.o = &w->o, .model = w->is.model};
    w->e = (struct job_engine){.is = &w->run,
                               .on_progress = on_progress,
                               .progress_context = w,
                               .rolls_back = true,
                               .next = &w->least,
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
    serve_work_wake(w); /* for exchanges that came before */
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
    c->n_drafted = times.n_drafted;
    c->n_accepted = times.n_accepted;
    c->n_pauses = times.n_pauses;
    c->prompt_chunks = w->pace.chunks;
    c->pass_tokens = w->pace.pass_tokens;
    c->n_kept = spw_batch_n_kept(w->e.batch, &c->n_kept_tokens);
    c->worst_gap_seconds = fmax(c->worst_gap_seconds, c->last_gap_seconds);
    pthread_mutex_lock(&w->mutex);
    c->n_waiting = w->n_waiting + w->n_queued;
    c->n_running = w->n_running;
    w->shown = *c;
    if (sees)
        w->shown_state = w->state;
    pthread_mutex_unlock(&w->mutex);
}

/* ---- the end ---- */

/* Refuses the exchanges that have no place; or all, as `all` says. */
static void refuse_rest(struct serve_work *w, bool all, const struct request_refusal *why)
{
    struct serve_exchange *x;
    while ((x = take_queued(w)))
        serve_work_refuse(x, why, 0);
    for (size_t i = w->n_active; i-- > 0;) {
        struct serve_active *a = &w->active[i];
        bool runs = false;
        for (size_t k = 0; k < a->n; k++)
            runs |= !a->asks[k].id || spw_batch_runs(w->e.batch, a->asks[k].id);
        if (all || !runs)
            serve_work_refuse(serve_active_detach(w, a), why, 0);
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

/* A step has failed. Requests that have failed twice end with the reason; the others, and those
 * that wait, go on. -EIO: the engine cannot, since its device or a drive fails each time. */
static int bear_failure(struct serve_work *w, int rc, struct spw_error *err)
{
    enum { TRIES = 2, MOST_BROKEN = 2 * TRIES };
    struct spw_batch_times times;
    spw_batch_times(w->e.batch, &times);
    const uint64_t done = times.n_decode_steps + times.n_pauses + times.n_prompt_tokens;
    w->n_broken = rc != -EIO ? 0 : done == w->done ? w->n_broken + 1 : 1;
    w->done = done;
    cli_name_options(err->text);
    cli_note("%s", err->text);
    spw_batch_give_up(w->e.batch, TRIES, rc, err);
    if (w->n_broken == MOST_BROKEN)
        return rc;
    spw_error_clear(err);
    return 0;
}

static int step(struct serve_work *w, struct spw_error *err)
{
    struct spw_event event;
    struct spw_batch_times times;
    spw_batch_set_prompt_chunks(w->e.batch, w->pace.chunks);
    spw_batch_set_pass_tokens(w->e.batch, w->pace.pass_tokens);
    w->counters.last_gap_seconds = 0;
    serve_pace_begin(&w->pace, cli_now_seconds());
    int rc = spw_batch_step(w->e.batch, err);
    if (rc < 0 && rc != -ECANCELED)
        rc = bear_failure(w, rc, err);
    cli_read_events(&w->e.events, w->e.engine);
    while (spw_batch_event(w->e.batch, &event))
        serve_active_event(w, &event);
    spw_batch_times(w->e.batch, &times);
    serve_pace_update(&w->pace, &times, any_decodes(w));
    return rc == -ECANCELED || rc > 0 ? 0 : rc;
}

static const struct request_refusal *refuse_end(struct request_refusal *why)
{
    request_refuse(why, 503, "shutting_down", NULL, "the server is shutting down");
    return why;
}

/* A turn of the loop. 1: the server goes on. */
static int turn(struct serve_work *w, struct spw_error *err)
{
    enum { IDLE_MILLISECONDS = 1000 };
    struct serve_exchange *x;
    serve_active_sweep(w);
    serve_active_report(w, NULL);
    show_counters(w);
    spw_batch_wait(w->e.batch, spw_batch_is_idle(w->e.batch) ? IDLE_MILLISECONDS : 0);
    if (atomic_load(&w->is_stopped) && w->stops_at <= 0) {
        struct request_refusal why;
        w->stops_at = cli_now_seconds() + GRACE_SECONDS;
        refuse_rest(w, false, refuse_end(&why));
    }
    while ((x = take_queued(w)))
        serve_active_begin(w, x);
    if (w->stops_at > 0 && (!w->n_active || cli_now_seconds() > w->stops_at))
        return 0;
    if (!spw_batch_is_idle(w->e.batch))
        SPW_TRY(step(w, err));
    return 1;
}

int serve_work_run(struct serve_work *w)
{
    struct spw_error err = {0};
    struct request_refusal why;
    int rc, code = open_engine(w);
    if (!code && w->is.ready)
        w->is.ready(w->is.context);
    for (rc = !code; rc > 0;)
        rc = turn(w, &err);
    serve_work_stop(w);
    refuse_end(&why);
    if (rc < 0)
        request_refuse(&why, 500, NULL, NULL, "%s", err.text);
    if (w->e.batch)
        publish_rest(w);
    refuse_rest(w, true, &why);
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
