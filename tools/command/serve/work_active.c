/* Exchanges that are in the batch: how each begins, gets the bytes of its answer, hears of its
 * progress, and ends. See work_parts.h. */
#include "tools/command/serve/work_parts.h"

#include "base/grow.h"

#include <math.h>
#include <string.h>

enum { PROGRESS_SECONDS = 1 };

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

static void fail(struct serve_active *a, const struct request_refusal *why)
{
    a->fails = true;
    a->why = why ? *why : (struct request_refusal){0};
}

/* Sends what a protocol has written, if its result is 0. */
static void send_text(struct serve_active *a, int rc, struct spw_text *text)
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
    struct serve_active *a;
    size_t choice;
};

static int emit(void *context, const struct spw_answer_piece *piece)
{
    const struct piece_context *to = context;
    struct serve_exchange *x = to->a->x;
    struct spw_text text = {0};
    SPW_TRY(request_add_piece(&x->request.choices[to->choice], piece));
    if (x->wish.stream && !to->a->fails)
        send_text(to->a, x->protocol->piece(&x->answer, to->choice, piece, &text), &text);
    return 0;
}

/* The next text of a choice; NULL: the text has ended. */
static void add_text(struct serve_active *a, size_t choice, const char *text, size_t bytes)
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

void serve_work_refuse(struct serve_exchange *x, const struct request_refusal *why,
                       uint32_t retry_after)
{
    serve_exchange_refuse(x, why, retry_after);
    serve_exchange_put(x);
}

static int submit(struct serve_work *w, struct serve_active *a, struct request_refusal *why)
{
    struct spw_error err = {0};
    const struct request *x = &a->x->request;
    for (size_t i = 0; i < a->n; i += request_together(x)) {
        const struct spw_request q = request_ask(x, i, w->is.model->tokenizer != NULL);
        for (uint32_t k = 0; k < request_together(x); k++)
            if (request_open_parts(x, i + k, &a->asks[i + k].parts))
                return request_refuse_memory(why);
        const int rc = spw_batch_submit(w->e.batch, &q, &a->asks[i].id, &err);
        for (uint32_t k = 1; k < request_together(x) && !rc; k++)
            a->asks[i + k].id = a->asks[i].id + k;
        if (rc)
            return rc == -EINVAL || rc == -E2BIG ? request_refuse_asked(why, &err)
                                                 : request_refuse_memory(why);
    }
    return 0;
}

struct serve_exchange *serve_active_detach(struct serve_work *w, struct serve_active *a)
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

void serve_active_begin(struct serve_work *w, struct serve_exchange *x)
{
    struct request_refusal why;
    struct spw_text text = {0};
    const size_t n = x->request.n_prompts * x->request.n_choices;
    struct serve_ask *asks = spw_alloc_zero(n, sizeof *asks);
    if (!asks || spw_grow(&w->active, &w->capacity, w->n_active + 1, sizeof *w->active)) {
        spw_free(asks);
        request_refuse_memory(&why);
        serve_work_refuse(x, &why, 0);
        return;
    }
    struct serve_active *a = &w->active[w->n_active++];
    *a = (struct serve_active){.x = x, .asks = asks, .n = n, .reported_at = cli_now_seconds()};
    if (submit(w, a, &why)) {
        serve_work_refuse(serve_active_detach(w, a), &why, 0);
        return;
    }
    if (x->wish.stream) {
        serve_exchange_start(x);
        send_text(a, x->protocol->begin(&x->answer, &text), &text);
    }
}

/* ---- exchanges that end ---- */

/* All choices have ended: the rest of the bytes. */
static void end_exchange(struct serve_work *w, struct serve_active *a)
{
    struct serve_exchange *x = a->x;
    const struct serve_protocol *p = x->protocol;
    struct spw_text text = {0};
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
    serve_exchange_put(serve_active_detach(w, a));
}

void serve_active_sweep(struct serve_work *w)
{
    for (size_t i = w->n_active; i-- > 0;) {
        struct serve_active *a = &w->active[i];
        const struct request_refusal why = a->why;
        if (!a->fails && !serve_exchange_is_gone(a->x))
            continue;
        const bool gets_error = a->fails && why.status;
        count_end(w, gets_error ? SERVE_ENDED_ERROR : SERVE_ENDED_ABORT);
        w->counters.n_failed += gets_error;
        w->counters.n_gone += !gets_error;
        struct serve_exchange *x = serve_active_detach(w, a);
        if (gets_error)
            serve_exchange_refuse(x, &why, 0);
        serve_exchange_put(x);
    }
}

/* ---- events ---- */

static struct serve_active *find(struct serve_work *w, uint64_t id, size_t *choice)
{
    for (size_t i = 0; i < w->n_active; i++)
        for (*choice = 0; *choice < w->active[i].n; ++*choice)
            if (w->active[i].asks[*choice].id == id)
                return &w->active[i];
    return NULL;
}

static void note_token(struct serve_work *w, struct serve_active *a, struct serve_ask *k)
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

static void end_choice(struct serve_work *w, struct serve_active *a, size_t choice,
                       const struct spw_event *e)
{
    struct serve_exchange *x = a->x;
    struct request_choice *c = &x->request.choices[choice];
    struct spw_text text = {0};
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

void serve_active_event(struct serve_work *w, const struct spw_event *e)
{
    size_t choice;
    struct serve_active *a = find(w, e->request, &choice);
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
static size_t find_reading(const struct serve_active *a)
{
    size_t i = 0;
    while (i < a->n && (a->asks[i].n_tokens || !a->asks[i].id))
        i++;
    return i;
}

static void report(struct serve_work *w, struct serve_active *a, uint32_t n_before,
                   const struct spw_progress *p)
{
    const size_t choice = find_reading(a);
    const struct request *x = &a->x->request;
    struct spw_text text = {0};
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

static void count_choices(struct serve_work *w, const struct serve_active *a, uint32_t *n_waiting,
                          uint32_t *n_running)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->asks[i].id)
            ++*(spw_batch_runs(w->e.batch, a->asks[i].id) ? n_running : n_waiting);
}

void serve_active_report(struct serve_work *w, const struct spw_progress *p)
{
    const double now = cli_now_seconds();
    uint32_t n_before = 0, n_waiting = 0, n_running = 0;
    for (size_t i = 0; i < w->n_active; i++) {
        struct serve_active *a = &w->active[i];
        count_choices(w, a, &n_waiting, &n_running);
        const size_t k = find_reading(a);
        const bool runs = k == a->n || spw_batch_runs(w->e.batch, a->asks[k].id);
        if (runs && a->started <= 0) {
            a->started = now;
            observe(w, SERVE_QUEUED, now - a->x->arrived);
        }
        n_before += !runs;
        if (now - a->reported_at < PROGRESS_SECONDS)
            continue;
        a->reported_at = now;
        report(w, a, runs ? 0 : n_before, p);
    }
    pthread_mutex_lock(&w->mutex);
    w->n_waiting = n_waiting;
    w->n_running = n_running;
    pthread_mutex_unlock(&w->mutex);
}
