/* What an engine and its batch report: see events.h. */
#include "tools/command/events.h"

#include <string.h>

/* ---- messages ---- */

/* A command plans more than once, and bench opens an engine for each run. A fallback before the
 * first token is therefore printed only the first time. */
static bool was_said(const struct spw_fallback *f)
{
    enum { MOST = 64 };
    static struct spw_fallback said[MOST];
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (f->kind == said[i].kind && f->bytes_asked == said[i].bytes_asked &&
            f->bytes_freed == said[i].bytes_freed)
            return true;
    if (n < MOST)
        said[n++] = *f;
    return false;
}

/* What the run does from now on. */
static void describe_fallback(char out[96], enum spw_fallback_kind kind,
                              const struct spw_plan_info *plan)
{
    static const char *const texts[] = {[SPW_FALLBACK_BUDGETS] = "less memory is kept spare",
                                        [SPW_FALLBACK_CHUNK] = "the prefill chunk is smaller",
                                        [SPW_FALLBACK_SLOTS] = "there are fewer prefetch slots",
                                        [SPW_FALLBACK_WEIGHTS] = "fewer layers stay on the device",
                                        [SPW_FALLBACK_HOST] = "more KV lies in host memory",
                                        [SPW_FALLBACK_DISK] = "more KV lies on disk",
                                        [SPW_FALLBACK_INT8] = "int8",
                                        [SPW_FALLBACK_INT8_INT4] = "int8:int4",
                                        [SPW_FALLBACK_INT4] = "int4",
                                        [SPW_FALLBACK_UP] = "old KV has more precision"};
    if (kind >= SPW_FALLBACK_INT8 && kind <= SPW_FALLBACK_INT4)
        snprintf(out, 96, "KV older than %llu tokens is now stored as %s",
                 (unsigned long long)plan->residual_tokens, texts[kind]);
    else
        snprintf(out, 96, "%s now", texts[kind]);
}

static void say_fallback(const struct spw_fallback *f, const struct spw_plan_info *plan)
{
    char asked[32], freed[32], again[64] = "", lossy[128] = "", when[64] = "before the first token";
    char now[96];
    if (!f->position && was_said(f))
        return;
    describe_fallback(now, f->kind, plan);
    if (f->position)
        snprintf(when, sizeof when, "at token %llu", (unsigned long long)f->position);
    if (f->n_recomputed)
        snprintf(again, sizeof again, "; %llu tokens are computed again",
                 (unsigned long long)f->n_recomputed);
    if (f->lossy_from)
        snprintf(lossy, sizeof lossy,
                 "; the answer may differ from token %llu on (--on-oom spill forbids this)",
                 (unsigned long long)f->lossy_from);
    cli_fail(0, "out of memory %s (%s, %s asked): %s, which frees %s%s%s", when, f->failed,
             cli_format_bytes(asked, f->bytes_asked), now, cli_format_bytes(freed, f->bytes_freed),
             again, lossy);
}

void cli_say_plan_fallback(const struct spw_plan_info *plan)
{
    if (plan->fallback.failed)
        say_fallback(&plan->fallback, plan);
}

static const char *read_error(const struct spw_lost_tile *t)
{
    return t->error == -EBADMSG ? "checksum" : strerror(-t->error);
}

/* The run continues, and the answer stays the same. */
static void say_lost_tile(const struct spw_lost_tile *t)
{
    cli_fail(0,
             "disk: the KV of layer %u from token %llu on could not be read back (%s): %llu "
             "tokens are computed again",
             t->layer, (unsigned long long)t->position, read_error(t),
             (unsigned long long)t->n_recomputed);
}

static void say_reuse(const struct spw_reuse *r)
{
    char bytes[32];
    cli_note("prefix cache: the first %llu of %llu tokens were found, %s",
             (unsigned long long)r->n_tokens, (unsigned long long)r->n_asked,
             cli_format_bytes(bytes, r->bytes));
}

/* ---- lists for the report ---- */

static json_t *fallback_json(const struct spw_fallback *f)
{
    const struct cli_field fields[] = {
        CLI_FIELD(f, position),
        CLI_FIELD(f, failed),
        CLI_FIELD(f, bytes_asked),
        {"fallback", CLI_JSON(spw_fallback_name(f->kind))},
        CLI_FIELD(f, bytes_freed),
        {"recomputed_tokens", CLI_JSON(f->n_recomputed)},
        {"lossy_from", CLI_OR_NULL(f->lossy_from, CLI_JSON(f->lossy_from))},
    };
    return CLI_OBJECT(fields);
}

static json_t *lost_tile_json(const struct spw_lost_tile *t)
{
    const struct cli_field fields[] = {
        {"error", CLI_JSON(read_error(t))},
        CLI_FIELD(t, layer),
        CLI_FIELD(t, position),
        {"recomputed_tokens", CLI_JSON(t->n_recomputed)},
    };
    return CLI_OBJECT(fields);
}

static void keep(json_t **list, json_t *item)
{
    enum { MOST = 64 }; /* a failing drive loses any number of tiles */
    if (!*list)
        *list = json_array();
    if (json_array_size(*list) < MOST)
        cli_json_append(list, item);
    else
        json_decref(item);
}

void cli_events_free(struct cli_events *v)
{
    json_decref(v->fallbacks);
    json_decref(v->lost_tiles);
    *v = (struct cli_events){0};
}

void cli_read_events(struct cli_events *v, struct spw_engine *e)
{
    struct spw_engine_event event;
    while (spw_engine_event(e, &event)) {
        if (event.n_missed)
            cli_fail(0, "%llu earlier messages of the engine are lost",
                     (unsigned long long)event.n_missed);
        switch (event.kind) {
        case SPW_ENGINE_FALLBACK:
            say_fallback(&event.fallback, spw_engine_plan(e));
            keep(&v->fallbacks, fallback_json(&event.fallback));
            break;
        case SPW_ENGINE_LOST_TILE:
            say_lost_tile(&event.lost_tile);
            keep(&v->lost_tiles, lost_tile_json(&event.lost_tile));
            break;
        case SPW_ENGINE_REUSE:
            say_reuse(&event.reuse);
            break;
        case SPW_ENGINE_NOTE:
            cli_note("%s", event.text);
            break;
        }
    }
}

/* ---- a batch ---- */

int cli_run_batch(const struct cli_batch *b, struct spw_error *err)
{
    struct spw_event event;
    int left = 0, more = 1, rc = 0;
    while (!rc && (more || left)) {
        left = b->submit ? b->submit(b->context, err) : 0;
        if (left < 0)
            return left;
        more = spw_batch_step(b->batch, err);
        rc = more < 0 ? more : 0;
        cli_read_events(b->events, b->engine);
        while (spw_batch_event(b->batch, &event)) {
            int failed = b->on_event(b->context, &event, err);
            rc = rc ? rc : failed;
        }
    }
    return rc;
}

int cli_submit(const struct cli_batch *b, const struct spw_request *request, uint64_t *id,
               struct spw_error *err)
{
    const int rc = spw_batch_submit(b->batch, request, id, err);
    if (rc)
        cli_name_request(err, true);
    return rc;
}

int cli_run_request(struct cli_batch *b, const struct spw_tokenizer *t,
                    const struct spw_request *request, struct spw_result *result,
                    struct spw_batch_times *times, struct spw_error *err)
{
    uint64_t id;
    *result = (struct spw_result){.finish = SPW_FINISH_FAILED};
    SPW_TRY(spw_batch_open(&b->batch, b->engine, t, err));
    int rc = cli_submit(b, request, &id, err);
    const bool is_there = !rc;
    rc = rc ? rc : cli_run_batch(b, err);
    spw_batch_times(b->batch, times);
    const bool runs = is_there && !spw_batch_cancel(b->batch, id);
    if (is_there)
        spw_batch_take(b->batch, id, result);
    if (runs)
        result->finish = SPW_FINISH_FAILED;
    spw_batch_close(b->batch);
    b->batch = NULL;
    return rc;
}
