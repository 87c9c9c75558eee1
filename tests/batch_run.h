/* Runs requests through one batch, all submitted before the first step. */
#ifndef SPW_TESTS_BATCH_RUN_H
#define SPW_TESTS_BATCH_RUN_H

#include "base/base.h"
#include "runtime/spillway.h"

/* Gets the events of one request. A negative return of on_token ends the run with it. */
struct batch_watch {
    int (*on_token)(void *context, int32_t token, const float *logits);
    void (*on_text)(void *context, const char *text, size_t bytes);
    void *context;
};

/* ids: [n]. The reason of the first failed request goes to `err`, but the run continues. */
static inline int batch_events(struct spw_batch *b, const struct batch_watch *watch,
                               struct spw_error *err)
{
    struct spw_event e;
    int rc = 0;
    while (spw_batch_event(b, &e)) {
        const struct batch_watch *w = watch ? &watch[e.request - 1] : NULL;
        if (e.kind == SPW_EVENT_TOKEN && w && w->on_token && !rc)
            rc = w->on_token(w->context, e.token, e.logits);
        if (e.kind == SPW_EVENT_TEXT && w && w->on_text)
            w->on_text(w->context, e.text, e.text_bytes);
        if (e.kind == SPW_EVENT_END && e.text_bytes && err && !err->text[0])
            spw_fail(err, -EIO, "%s", e.text);
    }
    return rc;
}

/* Fills results [n], for spw_result_free. 0: all requests ended by themselves, or failed alone;
 * else the error that ended the run: unfinished requests have SPW_FINISH_FAILED. */
static inline int batch_watched(struct spw_engine *e, const struct spw_tokenizer *tokenizer,
                                const struct spw_request *requests, const struct batch_watch *watch,
                                size_t n, struct spw_result *results, struct spw_batch_times *times,
                                struct spw_error *err)
{
    struct spw_batch *b = NULL;
    uint64_t id = 0;
    struct spw_error step = {0};
    int more = 1;
    for (size_t i = 0; i < n; i++)
        results[i] = (struct spw_result){.finish = SPW_FINISH_FAILED};
    int rc = spw_batch_open(&b, e, tokenizer, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = spw_batch_submit(b, &requests[i], &id, err);
    while (!rc && more > 0) {
        more = spw_batch_step(b, &step);
        rc = more < 0 ? more : 0;
        int ended = batch_events(b, watch, err);
        rc = rc ? rc : ended;
    }
    if (rc && err && !err->text[0])
        *err = step;
    for (size_t i = 0; b && i < n; i++) {
        bool early = !spw_batch_cancel(b, i + 1);
        if (!spw_batch_take(b, i + 1, &results[i]) && early)
            results[i].finish = SPW_FINISH_FAILED;
    }
    if (b && times)
        spw_batch_times(b, times);
    spw_batch_close(b);
    return rc;
}

static inline int batch_run(struct spw_engine *e, const struct spw_tokenizer *tokenizer,
                            const struct spw_request *requests, size_t n,
                            struct spw_result *results, struct spw_batch_times *times,
                            struct spw_error *err)
{
    return batch_watched(e, tokenizer, requests, NULL, n, results, times, err);
}

#endif
