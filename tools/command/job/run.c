/* See run.h. */
#include "tools/command/job/run.h"

#include "tools/command/output/progress.h"

#include <string.h>

/* A request of the batch. */
struct asked {
    uint64_t id;
    struct job_item *item;
    size_t choice;
};

struct run {
    const struct job_run_options *is;
    const struct job_source *source;
    /* An item that has come, and does not run yet: the engine is too small for it. */
    struct job_item *next;
    bool has_ended; /* the source had no item */
    uint64_t limit; /* the longest item that the model allows */
    /* Longer items do not fit the budgets; UINT64_MAX: not known. `why`: the plan's refusal. */
    uint64_t most;
    struct spw_error why;

    struct spw_options options;
    struct cli_limits limits;
    struct cli_events events;
    struct spw_engine *engine;
    struct spw_batch *batch;
    struct asked *asked; /* owned, [capacity]; of requests that have not ended */
    size_t n_asked, capacity;
    int code; /* the exit code that ends the run */
};

static uint64_t tokens_of(const struct job_item *x)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < x->n_prompts; i++)
        longest = spw_max_u64(longest, x->prompts[i].n);
    return longest + x->max_new_tokens;
}

static void free_item(struct job_item *x)
{
    if (x)
        job_item_free(x);
    spw_free(x);
}

/* ---- items that end ---- */

static int refuse(struct run *r, struct job_item *x, const struct job_refusal *why)
{
    int code = r->source->refused(r->source->context, x, why);
    free_item(x);
    return code;
}

/* An item that no engine can be made for. */
static int refuse_length(struct run *r, struct job_item *x)
{
    struct job_refusal why;
    const uint64_t n = tokens_of(x), most = spw_min_u64(r->limit, r->most);
    job_refuse(&why, 400, "context_length_exceeded", "messages",
               "found %llu tokens of the prompt and at most %llu of the answer, expected at most "
               "%llu%s%s",
               (unsigned long long)(n - x->max_new_tokens), (unsigned long long)x->max_new_tokens,
               (unsigned long long)most,
               r->most < r->limit ? ": " : ", as many as the model was made for",
               r->most < r->limit ? r->why.text : "");
    return refuse(r, x, &why);
}

/* ---- requests ---- */

static int submit_choice(struct run *r, struct job_item *x, size_t choice, struct spw_error *err)
{
    const size_t prompt = choice / x->n_choices, k = choice % x->n_choices;
    const char *machine = spw_engine_backend(r->engine);
    struct job_kept kept;
    r->code = r->source->kept(r->source->context, x, choice, machine, &kept);
    if (r->code)
        return -ECANCELED;
    struct spw_request request = {
        .prompt = x->prompts[prompt].tokens,
        .n_prompt = x->prompts[prompt].n,
        .max_new_tokens = x->max_new_tokens,
        .sampling = x->sampling,
        .given = kept.tokens,
        .n_given = kept.n_tokens,
        .given_hash = kept.hash,
        .text = r->is->model->tokenizer != NULL,
        .stop = x->stop.items,
        .n_stop = x->stop.n,
        .ignore_eos = x->ignore_eos,
        .logprobs = x->logprobs,
        .n_top_logprobs = x->n_top_logprobs,
        .prompt_logprobs = x->echo && x->logprobs && k == 0,
    };
    request.sampling.stream = k;
    struct asked *a = &r->asked[r->n_asked];
    *a = (struct asked){.item = x, .choice = choice};
    int rc = spw_batch_submit(r->batch, &request, &a->id, err);
    spw_free(kept.tokens);
    r->n_asked += !rc;
    return rc;
}

/* Forgets the item's requests. */
static void cancel(struct run *r, const struct job_item *x)
{
    struct spw_result ignored;
    size_t n = 0;
    for (size_t i = 0; i < r->n_asked; i++) {
        if (r->asked[i].item != x) {
            r->asked[n++] = r->asked[i];
            continue;
        }
        spw_batch_cancel(r->batch, r->asked[i].id);
        spw_batch_take(r->batch, r->asked[i].id, &ignored);
        spw_result_free(&ignored);
    }
    r->n_asked = n;
}

static int submit(struct run *r, struct job_item *x, struct spw_error *err)
{
    const size_t n = x->n_prompts * x->n_choices;
    if (r->n_asked + n > r->capacity) {
        struct asked *grown = spw_realloc(r->asked, 2 * (r->n_asked + n) * sizeof *grown);
        if (!grown) {
            free_item(x);
            return spw_fail(err, -ENOMEM, "no memory for %zu requests", r->n_asked + n);
        }
        r->asked = grown;
        r->capacity = 2 * (r->n_asked + n);
    }
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = submit_choice(r, x, i, err);
    if (!rc)
        return 0;
    cancel(r, x);
    if (rc != -EINVAL && rc != -E2BIG) {
        free_item(x);
        return rc;
    }
    struct job_refusal why;
    job_refuse(&why, 400, NULL, NULL, "%s", err->text);
    r->code = refuse(r, x, &why);
    return r->code ? -ECANCELED : 0;
}

/* Takes the next item from the source, if there is none yet. */
static int fetch(struct run *r, struct spw_error *err)
{
    while (!r->next && !r->code) {
        struct job_item *x;
        r->code = r->source->next(r->source->context, &x);
        if (r->code || !x)
            break;
        uint64_t n = tokens_of(x);
        if (x->max_is_default && n > r->limit)
            x->max_new_tokens -= spw_min_u64(n - r->limit, x->max_new_tokens - 1);
        if (tokens_of(x) > spw_min_u64(r->limit, r->most))
            r->code = refuse_length(r, x);
        else
            r->next = x;
    }
    return r->code ? spw_fail(err, -ECANCELED, "the job ends here") : 0;
}

/* Submits items. As many wait as can run, so that each step is full: an item that waits takes
 * memory. */
static int submit_some(void *context, struct spw_error *err)
{
    struct run *r = context;
    const struct spw_plan_info *plan = spw_engine_plan(r->engine);
    while (r->n_asked < 2 * (size_t)plan->sessions && !cli_interrupted()) {
        SPW_TRY(fetch(r, err));
        struct job_item *x = r->next;
        if (!x || tokens_of(x) > plan->context)
            break; /* no more; or this engine is too small for it */
        r->next = NULL;
        SPW_TRY(submit(r, x, err));
    }
    return r->n_asked > 0;
}

/* ---- events ---- */

static int add_text(struct job_choice *c, const char *text, size_t bytes)
{
    if (c->n_text + bytes + 1 > c->text_capacity) {
        size_t capacity = 2 * (c->n_text + bytes + 1);
        char *grown = spw_realloc(c->text, capacity);
        if (!grown)
            return -ENOMEM;
        c->text = grown;
        c->text_capacity = capacity;
    }
    memcpy(c->text + c->n_text, text, bytes);
    c->n_text += bytes;
    c->text[c->n_text] = '\0';
    return 0;
}

static int end_item(struct run *r, struct job_item *x, const char *failure)
{
    struct job_refusal why;
    if (!*failure) {
        int code = r->source->answered(r->source->context, x);
        free_item(x);
        return code;
    }
    cancel(r, x);
    job_refuse(&why, 500, NULL, NULL, "%s", failure);
    return refuse(r, x, &why);
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct run *r = context;
    size_t i = 0;
    while (i < r->n_asked && r->asked[i].id != e->request)
        i++;
    if (i == r->n_asked)
        return 0; /* of an item that has failed */
    struct job_item *x = r->asked[i].item;
    struct job_choice *c = &x->choices[r->asked[i].choice];
    if (e->kind == SPW_EVENT_TEXT)
        return add_text(c, e->text, e->text_bytes) ? spw_fail(err, -ENOMEM, "out of memory") : 0;
    if (e->kind != SPW_EVENT_END)
        return 0;
    char failure[sizeof err->text];
    snprintf(failure, sizeof failure, "%s", e->text_bytes ? e->text : "");
    cli_name_options(failure);
    spw_batch_take(r->batch, e->request, &c->result);
    c->has_ended = true;
    r->asked[i] = r->asked[--r->n_asked];
    if (++x->n_ended < x->n_prompts * x->n_choices && !*failure)
        return 0;
    r->code = end_item(r, x, failure);
    return r->code ? spw_fail(err, -ECANCELED, "the job ends here") : 0;
}

/* ---- ending early ---- */

/* Keeps the tokens of answers that are under way, and frees their items. */
static int keep_all(struct run *r, bool keeps)
{
    int code = 0;
    while (r->n_asked) {
        struct job_item *x = r->asked[0].item;
        size_t n_tokens = 0;
        for (size_t i = 0; i < r->n_asked; i++) {
            const struct spw_result *result = spw_batch_result(r->batch, r->asked[i].id);
            if (r->asked[i].item == x && result)
                x->choices[r->asked[i].choice].result = *result; /* borrowed */
        }
        for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
            n_tokens += x->choices[i].result.n_tokens;
        if (n_tokens && keeps && !code)
            code = r->source->keep(r->source->context, x, spw_engine_backend(r->engine));
        for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
            if (!x->choices[i].has_ended)
                x->choices[i].result = (struct spw_result){0};
        cancel(r, x);
        free_item(x);
    }
    return code;
}

/* ---- engines ---- */

static void close_engine(struct run *r)
{
    spw_batch_close(r->batch);
    cli_progress_engine(NULL, NULL);
    spw_engine_close(r->engine);
    cli_events_free(&r->events);
    r->batch = NULL;
    r->engine = NULL;
}

/* Plans for items of `context` tokens, with as many sessions as there is memory for. */
static int plan(struct run *r, uint64_t context, struct spw_error *err)
{
    enum { SESSIONS = 64 };
    const struct cli_options *o = r->is->o;
    uint64_t sessions = o->sessions ? o->sessions : SESSIONS;
    if (r->is->n_items)
        sessions = spw_min_u64(sessions, r->is->n_items);
    for (;; sessions /= 2) {
        r->options = cli_engine_options(o, context, (uint32_t)sessions);
        r->options.on_progress = cli_progress_callback();
        spw_error_clear(err);
        int rc = cli_fit_sessions(&r->options, o, err);
        if (rc != -ENOMEM || sessions == 1)
            return rc;
    }
}

/* Finds the longest context that fits the budgets: `most`. */
static int find_most(struct run *r, uint64_t too_long)
{
    uint64_t fits = 0, fails = too_long;
    struct spw_error err;
    while (fails - fits > 1) {
        uint64_t middle = fits + (fails - fits) / 2;
        int rc = plan(r, middle, &err);
        if (rc && rc != -ENOMEM)
            return rc;
        *(rc ? &fails : &fits) = middle;
        if (rc)
            r->why = err;
    }
    cli_name_options(r->why.text);
    r->most = fits;
    return 0;
}

/* Opens an engine for the next item, and for twice the length of the last ones if there is memory:
 * a job whose items grow needs few engines. */
static int open_engine(struct run *r, uint64_t last)
{
    const uint64_t least = tokens_of(r->next);
    uint64_t context = spw_max_u64(least, spw_max_u64(r->is->longest, 2 * last));
    struct spw_error err = {0};
    if (r->is->o->context)
        context = r->is->o->context;
    int rc = plan(r, spw_min_u64(context, spw_min_u64(r->limit, r->most)), &err);
    if (rc == -ENOMEM && context > least)
        rc = plan(r, least, &err);
    if (rc == -ENOMEM) {
        r->why = err;
        rc = find_most(r, least);
        if (rc || !r->most)
            return cli_fail_error(rc ? rc : -ENOMEM, rc ? &err : &r->why, true);
        struct job_item *x = r->next;
        r->next = NULL;
        return refuse_length(r, x);
    }
    if (rc)
        return cli_fail_error(rc, &err, true);
    if (r->options.disk_dir)
        cli_limits_read_for(&r->limits, r->is->o, &r->options);
    int code = cli_engine_open(&r->engine, &r->events, r->is->o, &r->options, &r->limits);
    if (code)
        return code;
    cli_progress_engine(r->engine, &r->events);
    rc = spw_batch_open(&r->batch, r->engine, r->is->model->tokenizer, &err);
    return rc ? cli_fail_error(rc, &err, false) : 0;
}

/* Answers items until none is left that this engine is long enough for. */
static int run_engine(struct run *r)
{
    struct spw_error err = {0};
    const struct cli_batch b = {.engine = r->engine,
                                .batch = r->batch,
                                .events = &r->events,
                                .submit = submit_some,
                                .on_event = on_event,
                                .context = r};
    int rc = cli_run_batch(&b, &err);
    int kept = keep_all(r, !r->code);
    if (r->code || kept)
        return r->code ? r->code : kept;
    return rc || cli_interrupted() ? cli_fail_error(rc ? rc : -ECANCELED, &err, false) : 0;
}

int job_run(const struct job_run_options *options, const struct job_source *source)
{
    const struct cli_options *o = options->o;
    struct run r = {.is = options, .source = source, .most = UINT64_MAX};
    struct spw_error err;
    r.limit = o->context
                  ? o->context
                  : (o->allow_long_context ? UINT64_MAX / 4 : options->model->config.max_positions);
    uint64_t last = 0;
    int code = 0;
    while (!code && !fetch(&r, &err) && r.next && !cli_interrupted()) {
        code = open_engine(&r, last);
        if (!code && r.engine) {
            last = spw_engine_plan(r.engine)->context;
            code = run_engine(&r);
        }
        close_engine(&r);
    }
    free_item(r.next);
    spw_free(r.asked);
    return r.code ? r.code : code;
}
