/* A batch: any number of requests through the engine's sessions.
 *
 * As many requests run at a time as the engine has sessions, and memory for their prompts and
 * longest answers (runtime/plan/shares.h). The others wait, in the order of their numbers. A
 * request that brings its own session needs no room, so it does not wait for room. The prompts of
 * the first requests are computed in one step, so that each layer's weights cross the link once for
 * all of them. Every further step gives each running request one token. When a request ends, a
 * waiting one starts in its place, and its prompt is computed in the step in which the others
 * decode. The tokens of a request depend on this request alone: logits do not depend on the other
 * rows of a step, and random draws are numbered by the request's own positions.
 *
 * If several prompts begin with the same tokens, these are computed once (shared_prompt.h): before
 * the step, the session of the first such request computes them, and the sessions of the others are
 * forked from it. When a request ends, its session stays open until the next step: a request that
 * starts in the same place can take the session over, cut back to the tokens that both prompts
 * begin with. So these tokens are computed once even if all requests end at the same time.
 *
 * With spw_batch_set_prompt_chunks, prompts and requests that decode have steps of their own: a
 * step of prompts is paused after some chunks (runtime/engine/pause.c), and the others get a
 * token before it continues. No request starts while a step is paused. With
 * spw_batch_set_pass_tokens a step of prompts computes only so many of their tokens.
 *
 *   submit -> waiting -> running: session + answer -> spw_engine_sync -> group -> token
 *                                                     token -> answer.c -> events
 *
 * A request waits until there is room for its tiles. Tiles that it will share count once. If
 * sessions lose tiles that they share (on disk, or by another plan), there may be no room for a
 * copy of each. Then some sessions are closed, and their requests get new ones: only time is lost.
 *
 * The memory of a request is taken when it is submitted. Later only its text grows, and logits that
 * nobody has read are copied if another plan takes their memory. */
#include "base/grow.h"
#include "runtime/batch/batch_parts.h"
#include "runtime/rules/beams.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- what the engine asks of a batch ---- */

int spw_batch_copy_logits(struct spw_batch *b)
{
    uint64_t bytes = spw_engine_config(b->engine)->vocab * sizeof(float);
    for (uint64_t id = b->unread; id <= b->n_submitted; id++) {
        struct spw_batch_entry *x = spw_batch_find(b, id);
        if (!x || !x->n_new || x->is_kept)
            continue;
        SPW_TRY(spw_resize(&x->kept_logits, x->n_new, bytes));
        memcpy(x->kept_logits, x->logits, x->n_new * bytes);
        x->logits = x->kept_logits;
        x->is_kept = true;
    }
    return 0;
}

void spw_batch_close_ended(struct spw_batch *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_ended; i++)
        if (b->ended[i].is_free)
            spw_session_close(b->ended[i].session);
        else
            b->ended[n++] = b->ended[i];
    b->n_ended = n;
}

/* Waits until the batch is woken. Does not reset the eventfd. */
static bool see_wake(const struct spw_batch *b, int milliseconds)
{
    struct pollfd p = {.fd = b->wake_fd, .events = POLLIN};
    return poll(&p, 1, milliseconds) > 0;
}

static bool is_woken(const struct spw_batch *b)
{
    return see_wake(b, 0);
}

static const struct spw_batch_hooks hooks = {.copy_logits = spw_batch_copy_logits,
                                             .close_ended = spw_batch_close_ended,
                                             .make_room = spw_batch_make_room,
                                             .is_woken = is_woken};

/* ---- open, close ---- */

int spw_batch_open(struct spw_batch **out, struct spw_engine *e,
                   const struct spw_tokenizer *tokenizer, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    if (e->above.batch)
        return spw_fail(err, -EBUSY, "the engine has a batch already");
    struct spw_batch *b = spw_alloc_zero(1, sizeof *b);
    uint32_t n = spw_engine_plan(e)->sessions;
    if (!b)
        return spw_fail(err, -ENOMEM, "no memory for a batch");
    *b = (struct spw_batch){.engine = e,
                            .tokenizer = tokenizer,
                            .max_running = n,
                            .first_id = 1,
                            .first_waiting = 1,
                            .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                            .ended = spw_alloc_zero(n, sizeof *b->ended),
                            .running = spw_alloc_zero(n, sizeof(struct spw_batch_entry *)),
                            .stepping = spw_alloc_zero(n, sizeof(struct spw_batch_entry *)),
                            .spans = spw_alloc_zero(n, sizeof *b->spans),
                            .draft_spans = spw_alloc_zero(n, sizeof *b->draft_spans),
                            .deciding = spw_alloc_zero(n, sizeof(struct spw_batch_entry *)),
                            .members = spw_alloc_zero(n, sizeof *b->members),
                            .sessions = spw_alloc_zero(2 * (size_t)n, sizeof(struct spw_session *)),
                            .prompts = spw_alloc_zero(n, sizeof *b->prompts),
                            .ended_prompts = spw_alloc_zero(n, sizeof *b->prompts)};
    int rc = b->wake_fd < 0 ? spw_fail(err, -errno, "a batch's eventfd: %s", strerror(errno)) : 0;
    if (!rc)
        rc = spw_sampler_open(&b->sampler, spw_engine_config(e)->vocab, err);
    if (!rc && (!b->ended || !b->running || !b->stepping || !b->spans || !b->draft_spans ||
                !b->deciding || !b->members || !b->sessions || !b->prompts || !b->ended_prompts))
        rc = spw_fail(err, -ENOMEM, "no memory for a batch of %u sessions", n);
    if (rc) {
        spw_batch_close(b);
        return rc;
    }
    spw_batch_choose_drafts(b);
    e->above.batch = b;
    e->above.batch_hooks = &hooks;
    *out = b;
    return 0;
}

static void free_entry(struct spw_batch_entry *x)
{
    if (!x)
        return;
    if (x->session != x->answer.request.session)
        spw_session_close(x->session);
    spw_answer_close(&x->answer);
    if (x->id == x->group.first)
        spw_beams_close(x->group.beams);
    spw_draft_text_close(&x->drafts.text);
    spw_batch_end_drafts(x);
    spw_free(x->kept_logits);
    spw_free(x);
}

void spw_batch_close(struct spw_batch *b)
{
    if (!b)
        return;
    for (uint64_t id = b->first_id; id <= b->n_submitted; id++)
        free_entry(spw_batch_find(b, id));
    for (uint32_t i = 0; i < b->n_ended; i++)
        spw_session_close(b->ended[i].session);
    if (b->engine->above.batch == b)
        b->engine->above.batch = NULL;
    if (b->wake_fd >= 0)
        close(b->wake_fd);
    spw_sampler_close(b->sampler);
    spw_vocabulary_close(b->vocabulary);
    spw_free(b->entries);
    spw_free(b->ended);
    spw_free(b->running);
    spw_free(b->stepping);
    spw_free(b->spans);
    spw_free(b->draft_spans);
    spw_free(b->deciding);
    spw_free(b->members);
    spw_free(b->sessions);
    spw_free(b->prompts);
    spw_free(b->ended_prompts);
    spw_free(b);
}

/* ---- the thread that steps the batch ---- */

bool spw_batch_is_idle(struct spw_batch *b)
{
    return !spw_batch_next(b, NULL) && !spw_batch_any_waits(b);
}

void spw_batch_wake(struct spw_batch *b)
{
    const int before = errno; /* of the code that a signal has interrupted */
    ssize_t ignored = write(b->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)ignored; /* a full counter is readable, too */
    errno = before;
}

bool spw_batch_wait(struct spw_batch *b, int milliseconds)
{
    uint64_t n;
    see_wake(b, milliseconds);
    return read(b->wake_fd, &n, sizeof n) == sizeof n;
}

int spw_batch_wake_fd(const struct spw_batch *b)
{
    return b->wake_fd;
}

/* ---- submit ---- */

/* The first n_source ids are those of a source. */
static int check_sequence(const struct spw_batch *b, const char *what, const int32_t *ids, size_t n,
                          size_t n_source, struct spw_error *err)
{
    for (size_t k = 0; k < n; k++) {
        const uint32_t vocab = spw_config_vocab(spw_engine_config(b->engine), k < n_source);
        const int32_t id = k < n_source ? spw_plain_token(ids[k]) : ids[k];
        if (id < 0 || (uint32_t)id >= vocab)
            return spw_fail(
                err, -EINVAL, "request %llu: token %zu of the %s: found id %d, expected 0 to %u",
                (unsigned long long)b->n_submitted + 1, k + 1, what, (int)id, vocab - 1);
    }
    return 0;
}

static int check_ids(const struct spw_batch *b, const char *what, const int32_t *ids, size_t n,
                     struct spw_error *err)
{
    return check_sequence(b, what, ids, n, 0, err);
}

/* In a model with an encoder: a source, then other tokens (spw_batch_submit). */
static int check_prompt(const struct spw_batch *b, const struct spw_request *r,
                        struct spw_error *err)
{
    const unsigned long long i = b->n_submitted + 1;
    if (!spw_engine_config(b->engine)->n_source_layers)
        return check_ids(b, "prompt", r->prompt, r->n_prompt, err);
    const uint64_t n_source = spw_source_length(r->prompt, r->n_prompt);
    if (n_source == r->n_prompt)
        return spw_fail(err, -EINVAL,
                        "request %llu: found a source of %zu tokens alone, expected a token after "
                        "it",
                        i, r->n_prompt);
    if (spw_engine_config(b->engine)->n_mels && !r->audio && !r->session && !b->engine->dry)
        return spw_fail(err, -EINVAL,
                        "request %llu: the source of this model is audio, and the request has none",
                        i);
    if (r->prompt_logprobs)
        return spw_fail(err, -ENOTSUP,
                        "request %llu: the encoder of this model reads the prompt, so its tokens "
                        "have no probabilities; ask for those of the answer",
                        i);
    return check_sequence(b, "prompt", r->prompt, r->n_prompt, n_source, err);
}

static int check_biases(const struct spw_batch *b, const struct spw_sampling *s,
                        struct spw_error *err)
{
    uint32_t vocab = spw_engine_config(b->engine)->vocab;
    for (size_t k = 0; k < s->n_logit_bias; k++)
        if (s->logit_bias[k].token < 0 || (uint32_t)s->logit_bias[k].token >= vocab)
            return spw_fail(
                err, -EINVAL, "request %llu: logit_bias: found the token id %d, expected 0 to %u",
                (unsigned long long)b->n_submitted + 1, (int)s->logit_bias[k].token, vocab - 1);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        SPW_TRY(check_ids(b, spw_token_list_name((enum spw_token_list_kind)k),
                          s->rules.lists[k].ids, s->rules.lists[k].n, err));
    return 0;
}

static int check_lengths(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_error *err)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    unsigned long long i = b->n_submitted + 1;
    uint64_t needed, context = spw_engine_plan(b->engine)->context;
    size_t n_computed = r->max_new_tokens > 0 ? r->max_new_tokens - 1 : 0; /* the last is picked */
    if (r->n_prompt == 0)
        return spw_fail(err, -EINVAL, "request %llu: found an empty prompt, expected tokens", i);
    if (c->n_source_layers && !r->max_new_tokens)
        return spw_fail(err, -EINVAL,
                        "request %llu: max_new_tokens: found 0, expected at least 1, as for every "
                        "model with an encoder",
                        i);
    if (!spw_add_u64(r->n_prompt, n_computed, &needed) || needed > context)
        return spw_fail(err, -E2BIG,
                        "request %llu: found %zu prompt tokens and %zu to generate, expected a sum "
                        "within the context of %llu tokens",
                        i, r->n_prompt, r->max_new_tokens, (unsigned long long)context);
    const uint64_t n_source = c->n_source_layers ? spw_source_length(r->prompt, r->n_prompt) : 0;
    if (needed > spw_config_most_tokens(c, n_source))
        return spw_fail(err, -E2BIG,
                        "request %llu: found %llu tokens of a source and %llu others, expected %s"
                        "%llu and at most %llu, which the model has positions for",
                        i, (unsigned long long)n_source, (unsigned long long)(needed - n_source),
                        c->n_mels ? "" : "at most ", (unsigned long long)spw_config_most_source(c),
                        (unsigned long long)c->stack_positions);
    if (r->n_given > r->max_new_tokens)
        return spw_fail(err, -EINVAL,
                        "request %llu: found %zu tokens generated before, expected at most the %zu "
                        "that it may have",
                        i, r->n_given, r->max_new_tokens);
    return 0;
}

static int check_request(const struct spw_batch *b, const struct spw_request *r,
                         struct spw_error *err)
{
    enum { MOST_MARK = 63 };
    unsigned long long i = b->n_submitted + 1;
    SPW_TRY(check_lengths(b, r, err));
    SPW_TRY(check_prompt(b, r, err));
    SPW_TRY(check_ids(b, "answer", r->given, r->n_given, err));
    if ((r->text || r->n_stop) && !b->tokenizer)
        return spw_fail(err, -EINVAL, "request %llu: text and stop strings need a tokenizer", i);
    if (r->grammar && !b->tokenizer)
        return spw_fail(err, -EINVAL, "request %llu: a grammar needs a tokenizer", i);
    if (r->grammar && r->grammar_after &&
        (!*r->grammar_after || strlen(r->grammar_after) > MOST_MARK))
        return spw_fail(err, -EINVAL, "request %llu: grammar_after: expected 1 to %d bytes", i,
                        MOST_MARK);
    if (r->n_samples > 1 && (r->session || r->n_given))
        return spw_fail(err, -EINVAL,
                        "request %llu: several samples have no session and no tokens "
                        "generated before",
                        i);
    if (r->session && r->session->engine != b->engine)
        return spw_fail(err, -EINVAL, "request %llu: its session is not one of this engine", i);
    for (uint64_t id = b->first_id; id < i && r->session; id++) {
        const struct spw_batch_entry *x = spw_batch_find(b, id);
        if (x && x->answer.request.session == r->session &&
            x->answer.result.finish == SPW_FINISH_NONE)
            return spw_fail(err, -EINVAL, "requests %llu and %llu name the same session",
                            (unsigned long long)id, i);
    }
    if (r->n_top_logprobs > 20 || (r->n_top_logprobs && !r->logprobs))
        return spw_fail(err, -EINVAL, "request %llu: n_top_logprobs: found %u, expected at most %s",
                        i, r->n_top_logprobs, r->logprobs ? "20" : "0 without logprobs");
    SPW_TRY(spw_sampling_check(&r->sampling, err));
    SPW_TRY(spw_batch_check_beams(b, r, err));
    return check_biases(b, &r->sampling, err);
}

/* Makes room for one more request. Numbers of requests that were taken go if they are many. */
static int grow_entries(struct spw_batch *b)
{
    uint64_t n = b->n_submitted + 1 - b->first_id, n_taken = 0;
    if (n < b->capacity)
        return 0;
    while (n_taken < n && !b->entries[n_taken])
        n_taken++;
    if (n_taken && n_taken >= n / 2) {
        memmove(b->entries, b->entries + n_taken, (n - n_taken) * sizeof(struct spw_batch_entry *));
        b->first_id += n_taken;
        return 0;
    }
    return spw_grow(&b->entries, &b->capacity, n + 1, sizeof(struct spw_batch_entry *));
}

/* One request of the group, which the caller has checked. */
static int add_entry(struct spw_batch *b, const struct spw_group *g,
                     const struct spw_request *request, struct spw_error *err)
{
    struct spw_batch_entry *x = spw_alloc_zero(1, sizeof *x);
    if (!x || grow_entries(b)) {
        spw_free(x);
        return spw_fail(err, -ENOMEM, "no memory for a request");
    }
    int rc = spw_answer_open(&x->answer, request, b->n_submitted + 1, spw_engine_config(b->engine),
                             b->tokenizer, b->vocabulary, err);
    if (!rc)
        rc = spw_batch_open_drafts(b, x);
    if (!rc && g->beams && b->n_submitted + 1 == g->first)
        rc = spw_batch_open_parents(x);
    if (rc) {
        free_entry(x);
        return spw_fail(err, rc, "no memory for the drafts or the beams of a request");
    }
    x->group = *g;
    b->n_own_waiting += request->session != NULL;
    x->id = ++b->n_submitted;
    b->entries[x->id - b->first_id] = x;
    return 0;
}

static int submit(struct spw_batch *b, const struct spw_request *request, uint64_t *id,
                  struct spw_error *err)
{
    SPW_TRY(check_request(b, request, err));
    const uint64_t before = b->n_submitted;
    struct spw_request r = *request;
    struct spw_group g = {
        .decide = b->engine->dry ? spw_group_any : spw_group_sample,
        .first = before + 1,
        .n = spw_max_u32(spw_max_u32(request->n_samples, request->beams.n_beams), 1)};
    int rc = spw_batch_open_beams(b, request, &g);
    if (rc)
        return spw_fail(err, rc, "no memory for the answers of a beam search");
    if (request->grammar && !b->vocabulary)
        rc = spw_vocabulary_open(&b->vocabulary, b->tokenizer, spw_engine_config(b->engine)->vocab);
    if (rc)
        return spw_fail(err, rc, "no memory for the bytes of all tokens");
    for (uint32_t k = 0; k < g.n && !rc; k++) {
        rc = add_entry(b, &g, &r, err);
        r.sampling.stream++;
        r.prompt_logprobs = false;
    }
    if (rc && b->n_submitted == before)
        spw_beams_close(g.beams); /* nobody owns them yet */
    for (; rc && b->n_submitted > before; b->n_submitted--) {
        free_entry(spw_batch_find(b, b->n_submitted));
        b->entries[b->n_submitted - b->first_id] = NULL;
    }
    *id = before + 1;
    return rc;
}

/* Whether all tokens are those of the vocabulary: none is of a source. */
static bool is_plain(const struct spw_request *r)
{
    size_t i = 0;
    while (i < r->n_prompt && r->prompt[i] >= 0)
        i++;
    return r->n_prompt && i == r->n_prompt;
}

/* In a model with an encoder a plain prompt is the source. The token that answers begin with comes
 * after the source. */
static int32_t *make_source(const struct spw_model_config *c, const struct spw_request *r)
{
    int32_t *tokens = spw_alloc((r->n_prompt + 1) * sizeof *tokens);
    for (size_t i = 0; tokens && i < r->n_prompt; i++)
        tokens[i] = spw_source_token(r->prompt[i]);
    if (tokens)
        tokens[r->n_prompt] = c->start;
    return tokens;
}

int spw_batch_submit(struct spw_batch *b, const struct spw_request *request, uint64_t *id,
                     struct spw_error *err)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    struct spw_request r = *request;
    spw_error_clear(err);
    if (!c->n_source_layers || !is_plain(request))
        return submit(b, request, id, err);
    int32_t *tokens = make_source(c, &r);
    if (!tokens)
        return spw_fail(err, -ENOMEM, "no memory for a request");
    r.prompt = tokens;
    r.n_prompt++;
    const int rc = submit(b, &r, id, err);
    spw_free(tokens);
    return rc;
}

/* ---- events ---- */

void spw_batch_note_events(struct spw_batch *b, const struct spw_batch_entry *x)
{
    b->unread = spw_min_u64(b->unread, x->id);
}

/* The events of its request are gone: from now on the session may be taken over, closed or kept. */
static void free_ended(struct spw_batch *b, struct spw_ended_session *x)
{
    if (x->is_free)
        return;
    if (x->session->is_paused) /* it was canceled while its step waited */
        spw_engine_drop_paused(b->engine);
    x->is_free = x->session->leaves = true;
    b->engine->sharing.n_departures++;
    if (b->keeps_ended)
        spw_batch_keep_session(b, x);
}

/* A beam beyond beams.n_return, which has no events and no result. */
static bool is_inner(const struct spw_batch_entry *x)
{
    const uint32_t n = x->answer.request.beams.n_return;
    return x->group.together && n && x->id >= x->group.first + n;
}

void spw_batch_forget_events(struct spw_batch *b)
{
    for (; b->unread <= b->n_submitted; b->unread++) {
        struct spw_batch_entry *x = spw_batch_find(b, b->unread);
        if (!x || spw_batch_waits(x)) /* its text, of given tokens, comes with its first token */
            continue;
        const bool is_over = x->has_end;
        x->has_end = false;
        x->n_new = 0;
        x->answer.text.n = 0;
        if (is_over && is_inner(x)) {
            b->entries[x->id - b->first_id] = NULL;
            free_entry(x);
        }
    }
    for (uint32_t i = 0; i < b->n_ended; i++)
        free_ended(b, &b->ended[i]);
}

static bool next_event(struct spw_batch_entry *x, struct spw_event *out)
{
    *out = (struct spw_event){.request = x->id};
    if (x->n_new) {
        out->kind = SPW_EVENT_TOKEN;
        out->token = x->answer.tokens[x->answer.n_tokens - x->n_new--];
        out->logits = x->logits;
        x->logits += x->answer.config->vocab;
        return true;
    }
    if (x->answer.text.n) {
        out->kind = SPW_EVENT_TEXT;
        out->text = x->answer.text.text;
        out->text_bytes = x->answer.text.n;
        x->answer.text.n = 0;
        return true;
    }
    if (x->has_end) {
        out->kind = SPW_EVENT_END;
        out->text = x->why.text;
        out->text_bytes = strlen(x->why.text);
        out->rc = x->rc;
        x->has_end = false;
        return true;
    }
    return false;
}

bool spw_batch_event(struct spw_batch *b, struct spw_event *out)
{
    for (; b->unread <= b->n_submitted; b->unread++) {
        struct spw_batch_entry *x = spw_batch_find(b, b->unread);
        if (x && !spw_batch_waits(x) && !is_inner(x) && next_event(x, out))
            return true;
    }
    return false;
}

/* ---- requests by number ---- */

/* Moves the session to the ended ones. It stays open: events point to its logits, and other
 * requests may begin with its tokens. */
static void retire_session(struct spw_batch *b, struct spw_batch_entry *x)
{
    const struct spw_answer *a = &x->answer;
    bool failed = a->result.finish == SPW_FINISH_FAILED;
    x->session->is_last_step = false; /* a caller's session may go on */
    if (x->session == a->request.session)
        return;
    b->ended[b->n_ended++] =
        (struct spw_ended_session){.session = x->session,
                                   .request = x->id,
                                   .n_prompt = failed ? 0 : a->request.n_prompt,
                                   .place = x->place,
                                   .was_canceled = a->result.finish == SPW_FINISH_CANCELED};
    x->session = NULL;
}

void spw_batch_end(struct spw_batch *b, struct spw_batch_entry *x, enum spw_finish finish)
{
    bool flush = finish != SPW_FINISH_CANCELED && finish != SPW_FINISH_FAILED;
    const struct spw_session *session = x->session ? x->session : x->answer.request.session;
    if (x->has_started && b->running[x->place] == x)
        b->running[x->place] = NULL;
    x->answer.result.finish = finish;
    spw_batch_end_drafts(x);
    if (flush && spw_answer_end(&x->answer)) {
        x->answer.result.finish = SPW_FINISH_FAILED;
        x->rc = spw_fail(&x->why, -ENOMEM, "no memory for the last text");
    }
    if (session)
        spw_session_waterlines(session, &x->answer.result.waterlines);
    if (x->session)
        retire_session(b, x);
    x->has_end = true;
    spw_batch_note_events(b, x);
}

static void cancel(struct spw_batch *b, struct spw_batch_entry *x)
{
    b->n_own_waiting -= spw_batch_waits(x) && x->answer.request.session;
    spw_batch_end(b, x, SPW_FINISH_CANCELED);
}

int spw_batch_cancel(struct spw_batch *b, uint64_t id)
{
    struct spw_batch_entry *x = spw_batch_find(b, id);
    if (!x || x->answer.result.finish != SPW_FINISH_NONE)
        return -ENOENT;
    const struct spw_group g = x->group;
    for (uint64_t its = g.first; g.together && its < g.first + g.n; its++)
        cancel(b, spw_batch_find(b, its));
    if (!g.together)
        cancel(b, x);
    return 0;
}

int spw_batch_publish(struct spw_batch *b, uint64_t id)
{
    struct spw_batch_entry *x = spw_batch_find(b, id);
    if (!x || !x->session || x->answer.result.finish != SPW_FINISH_NONE)
        return -ENOENT;
    return spw_session_publish(x->session, NULL);
}

bool spw_batch_runs(const struct spw_batch *b, uint64_t id)
{
    const struct spw_batch_entry *x = spw_batch_find(b, id);
    return x && x->has_started && x->answer.result.finish == SPW_FINISH_NONE;
}

uint64_t spw_batch_n_read(const struct spw_batch *b, uint64_t id, const struct spw_progress *p)
{
    const struct spw_batch_entry *x = spw_batch_find(b, id);
    const struct spw_running_step *step = &b->engine->step;
    if (!x)
        return 0;
    const uint64_t n_prompt = x->answer.request.n_prompt;
    uint64_t n = x->answer.result.n_tokens ? n_prompt : 0;
    if (x->session && !n)
        n = spw_session_cached(x->session);
    for (uint32_t i = 0; i < step->n && step->runs && p && p->total; i++)
        if (step->sessions[i] == x->session) {
            const struct spw_step_span *span = &step->items[i].span;
            n = span->from +
                (uint64_t)((double)(span->to - span->from) * (double)p->done / (double)p->total);
        }
    return spw_min_u64(n, n_prompt);
}

const struct spw_result *spw_batch_result(const struct spw_batch *b, uint64_t id)
{
    const struct spw_batch_entry *x = spw_batch_find(b, id);
    return x ? &x->answer.result : NULL;
}

size_t spw_batch_sessions(const struct spw_batch *b, struct spw_batch_session *out, size_t most)
{
    size_t n = 0;
    for (const struct spw_batch_entry *x = NULL; n < most && (x = spw_batch_next(b, x));) {
        const struct spw_session *s = x->session ? x->session : x->answer.request.session;
        if (!s)
            continue;
        out[n] = (struct spw_batch_session){.request = x->id,
                                            .n_prompt = x->answer.request.n_prompt,
                                            .n_generated = x->answer.result.n_tokens};
        spw_session_waterlines(s, &out[n++].waterlines);
    }
    for (uint32_t i = 0; i < b->n_ended && n < most; i++) {
        const struct spw_ended_session *x = &b->ended[i];
        out[n] = (struct spw_batch_session){
            .request = x->request, .has_ended = true, .n_prompt = x->n_prompt};
        spw_session_waterlines(x->session, &out[n++].waterlines);
    }
    return n;
}

int spw_batch_take(struct spw_batch *b, uint64_t id, struct spw_result *out)
{
    struct spw_batch_entry *x = spw_batch_find(b, id);
    if (!x)
        return -ENOENT;
    if (x->answer.result.finish == SPW_FINISH_NONE)
        return -EBUSY;
    b->entries[id - b->first_id] = NULL;
    for (uint32_t i = 0; i < b->n_ended; i++)
        if (b->ended[i].request == id)
            free_ended(b, &b->ended[i]);
    *out = x->answer.result;
    x->answer.result = (struct spw_result){0};
    free_entry(x);
    return 0;
}
