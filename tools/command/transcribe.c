/* Speech to text: see transcribe.h. */
#include "tools/command/transcribe.h"

#include "base/grow.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"

#include <string.h>

/* ---- a request ---- */

/* The likeliest token of a language. */
static int32_t likeliest(const struct spw_speech_config *c, const float *logits)
{
    int32_t best = c->languages[0];
    for (uint32_t i = 1; i < c->n_languages; i++)
        if (logits[c->languages[i]] > logits[best])
            best = c->languages[i];
    return best;
}

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct cli_transcript *t = context;
    struct cli_speech *s = t->speech;
    switch (e->kind) {
    case SPW_EVENT_TOKEN:
        if (s->language) {
            *s->language = likeliest(&s->config->speech, e->logits);
            s->language = NULL;
        }
        cli_progress_token(t->request.max_new_tokens, false);
        return cli_interrupted() ? -ECANCELED : 0;
    case SPW_EVENT_TEXT:
        return t->print(t->context, e->text, e->text_bytes);
    case SPW_EVENT_END:
        return e->text_bytes ? spw_fail(err, -EIO, "%s", e->text) : 0;
    }
    return 0;
}

/* Runs one request to its end. */
static int run(struct cli_transcript *t, size_t n_tokens, size_t max_new_tokens, bool text,
               struct spw_result *out, struct spw_error *err)
{
    struct cli_batch *b = t->batch;
    struct spw_request q = t->request;
    uint64_t id;
    q.prompt = t->speech->tokens;
    q.n_prompt = n_tokens;
    q.audio = t->speech->window;
    q.max_new_tokens = max_new_tokens;
    q.text = text;
    q.given_hash = t->all.logits_hash;
    q.session = t->session;
    if (t->speech->has_times) {
        q.sampling.rules.timestamp_begin = cli_speech_first_time(t->speech);
        q.sampling.rules.max_initial_timestamp_index =
            t->speech->config->speech.max_initial_timestamp_index;
    }
    SPW_TRY(spw_batch_submit(b->batch, &q, &id, err));
    const int rc = cli_run_batch(b, err);
    const bool runs = !spw_batch_cancel(b->batch, id);
    spw_batch_take(b->batch, id, out);
    out->finish = runs ? SPW_FINISH_FAILED : out->finish;
    t->n_requests++;
    t->n_made = out->n_tokens;
    return rc;
}

/* The first token that follows the first one of an answer. */
static int hear_language(struct cli_transcript *t, struct spw_error *err)
{
    struct spw_result r = {0};
    if (!t->speech->language)
        return 0;
    int rc = run(t, (size_t)t->speech->config->n_audio + 1, 1, false, &r, err);
    spw_result_free(&r);
    return rc;
}

/* ---- what is printed of an answer with times ---- */

static int print_ids(struct cli_transcript *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char id[16];
        const int bytes = snprintf(id, sizeof id, "%s%d", t->n_printed++ ? " " : "", (int)ids[i]);
        SPW_TRY(t->print(t->context, id, (size_t)bytes));
    }
    return 0;
}

static int print_text(struct cli_transcript *t, const int32_t *ids, size_t n)
{
    char *text;
    size_t bytes;
    SPW_TRY(spw_tokenizer_decode(t->tokenizer, ids, n, true, &text, &bytes));
    const int rc = t->print(t->context, text, bytes);
    spw_free(text);
    return rc;
}

/* Seconds in the file; seek: of the window. */
static double seconds(uint64_t seek, uint64_t time)
{
    return (double)seek * CLI_SPEECH_ROW_SECONDS + (double)time * CLI_SPEECH_TIME_SECONDS;
}

/* A text between two times, or behind the last one: then its end is not known. */
static int print_part(struct cli_transcript *t, uint64_t seek, const int32_t *ids, size_t n,
                      uint64_t from, const uint64_t *to)
{
    char line[64];
    size_t bytes = (size_t)snprintf(line, sizeof line, "[%.2f --> ", seconds(seek, from));
    if (to)
        bytes += (size_t)snprintf(line + bytes, sizeof line - bytes, "%.2f", seconds(seek, *to));
    bytes += (size_t)snprintf(line + bytes, sizeof line - bytes, "]");
    SPW_TRY(t->print(t->context, line, bytes));
    SPW_TRY(print_text(t, ids, n));
    return t->print(t->context, "\n", 1);
}

static int print_parts(struct cli_transcript *t, uint64_t seek, const int32_t *ids, size_t n)
{
    const uint64_t first = cli_speech_first_time(t->speech);
    const bool shows = t->speech->shows_times;
    size_t begin = 0;
    uint64_t from = 0;
    for (size_t i = 0; i <= n; i++) {
        const bool is_time = i < n && (uint64_t)ids[i] >= first;
        const uint64_t time = is_time ? (uint64_t)ids[i] - first : 0;
        if (i < n && !is_time)
            continue;
        if (i > begin)
            SPW_TRY(shows
                        ? print_part(t, seek, ids + begin, i - begin, from, is_time ? &time : NULL)
                        : print_text(t, ids + begin, i - begin));
        from = time;
        begin = i + 1;
    }
    return 0;
}

/* ---- windows ---- */

/* t->all gets the first n tokens of an answer. */
static int keep(struct cli_transcript *t, struct spw_result *r, size_t n)
{
    struct spw_result *all = &t->all;
    const size_t before = all->n_tokens;
    int rc = spw_resize(&all->tokens, before + n + 1, sizeof *all->tokens);
    if (!rc) {
        int32_t *tokens = all->tokens;
        memcpy(tokens + before, r->tokens, n * sizeof *tokens);
        all->tokens = NULL;
        spw_result_free(all);
        *all = *r;
        spw_free(r->tokens);
        all->tokens = tokens;
        all->n_tokens = before + n;
        *r = (struct spw_result){0};
    }
    return rc;
}

static int run_window(struct cli_transcript *t, struct spw_error *err)
{
    struct cli_speech *s = t->speech;
    struct spw_result r = {0};
    const uint64_t seek = s->seek;
    const bool streams = t->tokenizer && !s->has_times;
    cli_speech_begin_window(s);
    int rc = run(t, s->n_tokens, t->request.max_new_tokens, streams, &r, err);
    const size_t n_heard = r.n_tokens - (r.finish == SPW_FINISH_EOS); /* the end token is no text */
    const size_t n = rc ? n_heard : cli_speech_end_window(s, r.tokens, n_heard);
    if (!rc && !t->tokenizer)
        rc = print_ids(t, r.tokens, n);
    else if (!rc && !streams)
        rc = print_parts(t, seek, r.tokens, n);
    const int kept = keep(t, &r, n);
    spw_result_free(&r);
    return rc ? rc : kept;
}

int cli_transcribe(struct cli_transcript *t, struct spw_error *err)
{
    struct cli_batch *b = t->batch;
    b->on_event = on_event;
    b->context = t;
    SPW_TRY(spw_batch_open(&b->batch, b->engine, t->tokenizer, err));
    int rc = spw_session_open(&t->session, b->engine, err);
    rc = rc ? rc : hear_language(t, err);
    while (!rc && !cli_speech_ends(t->speech))
        rc = run_window(t, err);
    spw_batch_times(b->batch, &t->times);
    spw_batch_close(b->batch);
    b->batch = NULL;
    spw_session_close(t->session);
    t->session = NULL;
    return rc;
}
