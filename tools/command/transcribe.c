/* Speech to text: see transcribe.h. */
#include "tools/command/transcribe.h"

#include "base/grow.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"

#include <string.h>

/* ---- what is asked ---- */

/* The likeliest token of a language, after the first token of answers. No rule of the files counts.
 */
static void ask_language(const struct cli_speech *s, struct spw_request *r)
{
    static const int32_t none;
    struct spw_token_rules *rules = &r->sampling.rules;
    r->sampling = (struct spw_sampling){.rules = {.no_repeat_ngram_size = SPW_NONE,
                                                  .min_length = SPW_NONE,
                                                  .min_new_tokens = SPW_NONE}};
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        rules->lists[k].ids = &none;
    rules->lists[SPW_SUPPRESS] = (struct spw_token_list){s->others, s->n_others};
    r->n_prompt = (size_t)s->config->n_audio + 1;
    r->max_new_tokens = 1;
    r->text = false;
}

void cli_speech_ask(struct cli_speech *s, struct spw_request *r)
{
    cli_speech_begin_window(s);
    r->prompt = s->tokens;
    r->n_prompt = s->n_tokens;
    r->audio = s->window;
    r->given_hash = s->answer.logits_hash;
    r->text &= !s->has_times;
    if (s->language) {
        ask_language(s, r);
    } else if (s->has_times) {
        r->sampling.rules.timestamp_begin = cli_speech_first_time(s);
        r->sampling.rules.max_initial_timestamp_index =
            s->config->speech.max_initial_timestamp_index;
    }
}

/* ---- what is printed of an answer with times ---- */

static int print_text(const struct cli_speech_text *t, const int32_t *ids, size_t n)
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
static int print_part(const struct cli_speech_text *t, uint64_t seek, const int32_t *ids, size_t n,
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

static int print_parts(const struct cli_speech *s, const struct cli_speech_text *t,
                       const int32_t *ids, size_t n)
{
    const uint64_t first = cli_speech_first_time(s);
    size_t begin = 0;
    uint64_t from = 0;
    for (size_t i = 0; i <= n; i++) {
        const bool is_time = i < n && (uint64_t)ids[i] >= first;
        const uint64_t time = is_time ? (uint64_t)ids[i] - first : 0;
        if (i < n && !is_time)
            continue;
        if (i > begin)
            SPW_TRY(s->shows_times ? print_part(t, s->seek, ids + begin, i - begin, from,
                                                is_time ? &time : NULL)
                                   : print_text(t, ids + begin, i - begin));
        from = time;
        begin = i + 1;
    }
    return 0;
}

/* ---- answers ---- */

/* s->answer gets the first n tokens of an answer. */
static int keep(struct cli_speech *s, const struct spw_result *r, size_t n, bool ends)
{
    struct spw_result *all = &s->answer;
    const size_t before = all->n_tokens;
    SPW_TRY(spw_resize(&all->tokens, before + n + 1, sizeof *all->tokens));
    if (n)
        memcpy(all->tokens + before, r->tokens, n * sizeof *r->tokens);
    *all = (struct spw_result){.tokens = all->tokens,
                               .n_tokens = before + n,
                               .n_reused = r->n_reused,
                               .n_from_store = r->n_from_store,
                               .n_recomputed = r->n_recomputed,
                               .finish = ends ? r->finish : SPW_FINISH_FAILED,
                               .logits_hash = r->logits_hash,
                               .waterlines = r->waterlines};
    return 0;
}

int cli_speech_take(struct cli_speech *s, const struct spw_result *r,
                    const struct cli_speech_text *to)
{
    const size_t n = r->n_tokens - (r->finish == SPW_FINISH_EOS); /* the end token is no text */
    if (r->finish == SPW_FINISH_FAILED)
        return s->language ? 0 : keep(s, r, n, false);
    if (s->language) {
        *s->language = r->tokens[0];
        s->language = NULL;
        return 0;
    }
    const struct cli_speech before = *s;
    const size_t n_kept = cli_speech_end_window(s, r->tokens, n);
    SPW_TRY(keep(s, r, n_kept, cli_speech_ends(s)));
    return s->has_times && to->tokenizer ? print_parts(&before, to, r->tokens, n_kept) : 0;
}

/* ---- `generate` ---- */

static int on_event(void *context, const struct spw_event *e, struct spw_error *err)
{
    struct cli_transcript *t = context;
    switch (e->kind) {
    case SPW_EVENT_TOKEN:
        cli_progress_token(t->request.max_new_tokens, false);
        return cli_interrupted() ? -ECANCELED : 0;
    case SPW_EVENT_TEXT:
        return t->text.print(t->text.context, e->text, e->text_bytes);
    case SPW_EVENT_END:
        return e->text_bytes ? spw_fail(err, -EIO, "%s", e->text) : 0;
    }
    return 0;
}

/* Runs one request to its end. */
static int run(struct cli_transcript *t, struct spw_result *out, struct spw_error *err)
{
    struct cli_batch *b = t->batch;
    struct spw_request q = t->request;
    uint64_t id;
    q.text = t->text.tokenizer;
    q.session = t->session;
    cli_speech_ask(t->speech, &q);
    SPW_TRY(cli_submit(b, &q, &id, err));
    const int rc = cli_run_batch(b, err);
    const bool runs = !spw_batch_cancel(b->batch, id);
    spw_batch_take(b->batch, id, out);
    out->finish = runs ? SPW_FINISH_FAILED : out->finish;
    t->n_requests++;
    t->n_made = out->n_tokens;
    return rc;
}

/* The ids from number `first` on. */
static int print_ids(const struct cli_transcript *t, size_t first)
{
    const struct spw_result *all = &t->speech->answer;
    for (size_t i = first; i < all->n_tokens; i++) {
        char id[16];
        const int bytes = snprintf(id, sizeof id, "%s%d", i ? " " : "", (int)all->tokens[i]);
        SPW_TRY(t->text.print(t->text.context, id, (size_t)bytes));
    }
    return 0;
}

static int run_next(struct cli_transcript *t, struct spw_error *err)
{
    struct spw_result r = {.finish = SPW_FINISH_FAILED};
    const size_t n_before = t->speech->answer.n_tokens;
    const int rc = run(t, &r, err);
    if (rc)
        r.finish = SPW_FINISH_FAILED;
    int taken = cli_speech_take(t->speech, &r, &t->text);
    if (!rc && !taken && !t->text.tokenizer)
        taken = print_ids(t, n_before);
    spw_result_free(&r);
    return rc ? rc : taken;
}

int cli_transcribe(struct cli_transcript *t, struct spw_error *err)
{
    struct cli_batch *b = t->batch;
    b->on_event = on_event;
    b->context = t;
    SPW_TRY(spw_batch_open(&b->batch, b->engine, t->text.tokenizer, err));
    int rc = spw_session_open(&t->session, b->engine, err);
    while (!rc && !cli_speech_ends(t->speech))
        rc = run_next(t, err);
    spw_batch_times(b->batch, &t->times);
    spw_batch_close(b->batch);
    b->batch = NULL;
    spw_session_close(t->session);
    t->session = NULL;
    return rc;
}
