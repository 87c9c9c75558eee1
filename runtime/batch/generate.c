/* Generation: any number of requests through the engine's sessions.
 *
 * The first requests take a slot each and their prompts are computed in one step, so that each
 * layer's weights cross the link once for all of them. Every further step gives each live slot one
 * token. A request that ends leaves its slot to the next one waiting, whose prompt joins the step
 * that the others decode in. A token depends on its own request alone: logits do not depend on the
 * partners in a step, and the draws of a request are numbered by its own positions.
 *
 *   waiting requests -> slot: session + tokens -> spw_sync(all slots) -> sampler -> token
 *                                                   token -> detokenizer -> stop strings -> on_text
 *
 * All memory of a slot is taken when its request starts; the token loop takes none here. */
#include "runtime/persist/keep.h"
#include "runtime/persist/prefix.h"
#include "runtime/batch/stop.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct slot {
    const struct spw_request *request; /* borrowed; NULL: the slot is free */
    struct spw_result *result;         /* borrowed */
    struct spw_session *session;       /* owned unless it is the request's own */
    int32_t *tokens;                   /* owned, as what follows: [n_prompt + max_new_tokens] */
    size_t n_tokens;
    struct spw_detokenizer *text; /* NULL: nobody wants text */
    char *prompt_end; /* what the detokenizer held back at the end of the prompt: not new text */
    size_t n_prompt_end, n_skipped;
    uint64_t n_text_left; /* of text_given: not to be handed over again */
    struct spw_stop *stop;
    XXH3_state_t *hash;
};

struct generation {
    struct spw_engine *engine;
    const struct spw_tokenizer *tokenizer;
    const struct spw_request *requests;
    struct spw_result *results;
    size_t n_requests, n_started;
    struct slot *slots;     /* owned */
    struct spw_span *spans; /* owned, [n_slots]: the step's */
    struct slot **stepping; /* owned, [n_slots]: whose span it is */
    size_t n_slots;
    struct spw_sampler *sampler; /* owned */
    size_t logits_bytes;
};

static bool has_text(const struct spw_request *r)
{
    return r->on_text || r->n_stop > 0;
}

static int check_ids(const struct generation *g, size_t i, const char *what, const int32_t *ids,
                     size_t n, struct spw_error *err)
{
    uint32_t vocab = spw_engine_config(g->engine)->vocab;
    for (size_t k = 0; k < n; k++)
        if (ids[k] < 0 || (uint32_t)ids[k] >= vocab)
            return spw_fail(err, -EINVAL,
                            "request %zu: token %zu of the %s: found id %d, expected 0 to %u",
                            i + 1, k + 1, what, (int)ids[k], vocab - 1);
    return 0;
}

static int check_given(const struct generation *g, size_t i, struct spw_error *err)
{
    const struct spw_request *r = &g->requests[i];
    if (r->n_given > r->max_new_tokens)
        return spw_fail(err, -EINVAL,
                        "request %zu: found %zu tokens generated before, expected at most the %zu "
                        "that it may have",
                        i + 1, r->n_given, r->max_new_tokens);
    return check_ids(g, i, "answer", r->given, r->n_given, err);
}

static int check_request(const struct generation *g, size_t i, struct spw_error *err)
{
    const struct spw_request *r = &g->requests[i];
    if (r->n_prompt == 0)
        return spw_fail(err, -EINVAL, "request %zu: found an empty prompt, expected tokens", i + 1);
    SPW_TRY(check_ids(g, i, "prompt", r->prompt, r->n_prompt, err));
    SPW_TRY(check_given(g, i, err));
    /* The last token is only picked, never computed on. */
    uint64_t needed, context = spw_engine_plan(g->engine)->context;
    size_t n_computed = r->max_new_tokens > 0 ? r->max_new_tokens - 1 : 0;
    if (!spw_add_u64(r->n_prompt, n_computed, &needed) || needed > context)
        return spw_fail(err, -E2BIG,
                        "request %zu: found %zu prompt tokens and %zu to generate, expected a sum "
                        "within the context of %llu tokens",
                        i + 1, r->n_prompt, r->max_new_tokens, (unsigned long long)context);
    if (has_text(r) && !g->tokenizer)
        return spw_fail(err, -EINVAL, "request %zu: text and stop strings need a tokenizer", i + 1);
    return spw_sampling_check(&r->sampling, err);
}

/* ---- one slot ---- */

static void slot_free(struct slot *s)
{
    if (!s->request || s->session != s->request->session)
        spw_session_close(s->session);
    spw_free(s->prompt_end);
    spw_detokenizer_free(s->text);
    spw_stop_close(s->stop);
    XXH3_freeState(s->hash);
    spw_free(s->tokens);
    memset(s, 0, sizeof *s);
}

static int push_prompt(struct slot *s)
{
    const struct spw_request *r = s->request;
    for (size_t i = 0; i < r->n_prompt; i++) {
        const char *text;
        size_t bytes;
        SPW_TRY(spw_detokenizer_push(s->text, r->prompt[i], &text, &bytes));
    }
    return 0;
}

/* The detokenizer reads the prompt too: whether a token begins with a space, and which character
 * its bytes complete, is known only from what stands before it. What it holds back at the prompt's
 * end (a line break in bytes, say) comes out with the first new text; finish shows what that is. */
static int start_text(const struct generation *g, struct slot *s, struct spw_error *err)
{
    const struct spw_request *r = s->request;
    const char *held;
    SPW_TRY(spw_detokenizer_init(&s->text, g->tokenizer, true));
    SPW_TRY(push_prompt(s));
    SPW_TRY(spw_detokenizer_finish(s->text, &held, &s->n_prompt_end));
    s->prompt_end = spw_alloc(s->n_prompt_end);
    if (!s->prompt_end)
        return -ENOMEM;
    if (s->n_prompt_end > 0)
        memcpy(s->prompt_end, held, s->n_prompt_end);
    SPW_TRY(push_prompt(s)); /* finish has made it new */
    return spw_stop_open(&s->stop, r->stop, r->n_stop, err);
}

static size_t character_bytes(const char *text, size_t bytes)
{
    size_t n = 1;
    while (n < bytes && ((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static int emit_text(void *context, const char *text, size_t bytes)
{
    struct slot *s = context;
    const struct spw_request *r = s->request;
    while (bytes > 0 && s->n_text_left > 0) {
        size_t n = character_bytes(text, bytes);
        if (n > s->n_text_left) { /* then it was half a character, at that call's end */
            s->n_text_left = 0;
            break;
        }
        s->n_text_left -= n;
        text += n;
        bytes -= n;
    }
    return bytes > 0 && r->on_text ? r->on_text(r->context, text, bytes) : 0;
}

/* Passes over the characters that still are the prompt's. Half a character at its end was U+FFFD
 * there; once new bytes complete it, it is another character, and new. */
static int push_text(struct slot *s, const char *text, size_t bytes)
{
    while (bytes > 0 && s->n_skipped < s->n_prompt_end) {
        size_t n = character_bytes(text, bytes);
        if (n > s->n_prompt_end - s->n_skipped ||
            memcmp(text, s->prompt_end + s->n_skipped, n) != 0) {
            s->n_prompt_end = 0;
            break;
        }
        s->n_skipped += n;
        text += n;
        bytes -= n;
    }
    return spw_stop_push(s->stop, text, bytes, emit_text, s);
}

/* Whether the token ends the request's answer; its text is not part of it. */
static bool is_end(const struct generation *g, const struct spw_request *r, int32_t token)
{
    const struct spw_model_config *config = spw_engine_config(g->engine);
    for (uint32_t i = 0; i < config->n_eos && !r->ignore_eos; i++)
        if (config->eos[i] == token)
            return true;
    return false;
}

/* Takes one more token of the answer, and hands over what text it makes final. */
static int push_token(struct slot *s, int32_t token)
{
    const char *text;
    size_t bytes;
    SPW_TRY(spw_detokenizer_push(s->text, token, &text, &bytes));
    return push_text(s, text, bytes);
}

/* What was generated before: the detokenizer and the stop strings see it as they did then. */
static int push_given(const struct generation *g, struct slot *s)
{
    const struct spw_request *r = s->request;
    for (size_t i = 0; i < r->n_given; i++) {
        s->tokens[s->n_tokens++] = r->given[i];
        s->result->tokens[s->result->n_tokens++] = r->given[i];
        if (s->text && !is_end(g, r, r->given[i]))
            SPW_TRY(push_token(s, r->given[i]));
    }
    return 0;
}

static int slot_start(struct generation *g, struct slot *s, size_t i, struct spw_error *err)
{
    const struct spw_request *r = &g->requests[i];
    s->request = r;
    s->result = &g->results[i];
    size_t n_new = r->max_new_tokens;
    s->tokens = spw_alloc_zero(r->n_prompt + n_new, sizeof *s->tokens);
    s->result->tokens = spw_alloc_zero(n_new, sizeof *s->tokens);
    s->hash = spw_alloc_fails() ? NULL : XXH3_createState();
    if (s->hash)
        XXH3_64bits_reset(s->hash); /* before anything fails: what is abandoned is hashed too */
    if (!s->tokens || !s->result->tokens || !s->hash)
        return spw_fail(err, -ENOMEM, "request %zu: no memory for %zu tokens", i + 1,
                        r->n_prompt + n_new);
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof *s->tokens);
    s->n_tokens = r->n_prompt;
    if (has_text(r))
        SPW_TRY(start_text(g, s, err));
    s->n_text_left = r->n_text_given;
    SPW_TRY(push_given(g, s));
    s->session = r->session;
    return s->session ? 0 : spw_session_open(&s->session, g->engine, err);
}

/* For those that begin like this one. What it cannot keep it has told, and the answer goes on. */
static void keep(const struct slot *s)
{
    spw_session_keep(s->session, NULL);
}

/* The request is over: flushes its text, unless a stop string has ended it. */
static int slot_end(struct slot *s, enum spw_finish finish)
{
    if (s->text && !spw_stop_found(s->stop)) {
        const char *text;
        size_t bytes;
        SPW_TRY(spw_detokenizer_finish(s->text, &text, &bytes));
        SPW_TRY(push_text(s, text, bytes));
        /* What was held back may complete a stop string even now. */
        if (spw_stop_found(s->stop))
            finish = SPW_FINISH_STOP;
        SPW_TRY(spw_stop_finish(s->stop, emit_text, s));
    }
    s->result->finish = finish;
    s->result->logits_hash = XXH3_64bits_digest(s->hash);
    spw_session_waterlines(s->session, &s->result->waterlines);
    keep(s);
    int rc = s->request->on_end ? s->request->on_end(s->request->context, s->result) : 0;
    slot_free(s);
    return rc;
}

/* The step that the request was part of failed: what it has is kept, and says so. */
static void slot_abandon(struct slot *s)
{
    if (s->result && s->hash)
        s->result->logits_hash = XXH3_64bits_digest(s->hash);
    slot_free(s);
}

/* A request whose answer was over already, though nobody had looked at its last token. */
static int slot_end_given(const struct generation *g, struct slot *s)
{
    const struct spw_request *r = s->request;
    if (r->n_given == 0)
        return 0;
    if (is_end(g, r, r->given[r->n_given - 1]))
        return slot_end(s, SPW_FINISH_EOS);
    if (s->text && spw_stop_found(s->stop))
        return slot_end(s, SPW_FINISH_STOP);
    return r->n_given == r->max_new_tokens ? slot_end(s, SPW_FINISH_LENGTH) : 0;
}

/* Picks the slot's next token from the step's logits; the slot is free again when that was its
 * last. */
static int slot_step(struct generation *g, struct slot *s)
{
    const struct spw_request *r = s->request;
    struct spw_result *result = s->result;
    bool first = result->n_tokens == r->n_given;
    if (first) {
        result->n_reused = spw_session_reused(s->session);
        result->n_from_store = spw_session_from_store(s->session);
    }
    if (r->max_new_tokens == 0)
        return slot_end(s, SPW_FINISH_LENGTH);
    const float *logits = spw_session_logits(s->session); /* [vocab] */
    XXH3_64bits_update(s->hash, logits, g->logits_bytes);
    int32_t token = spw_sampler_pick(g->sampler, &r->sampling, logits, s->tokens, s->n_tokens, 0);
    if (isnan(logits[token])) /* then no logit is a number, and there is no next token */
        return -EDOM;
    s->tokens[s->n_tokens++] = token;
    result->tokens[result->n_tokens++] = token;
    if (r->on_token)
        SPW_TRY(r->on_token(r->context, token, logits));
    if (is_end(g, r, token))
        return slot_end(s, SPW_FINISH_EOS);
    if (s->text) {
        SPW_TRY(push_token(s, token));
        if (spw_stop_found(s->stop))
            return slot_end(s, SPW_FINISH_STOP);
    }
    if (result->n_tokens == r->max_new_tokens)
        return slot_end(s, SPW_FINISH_LENGTH);
    if (first && spw_keep_needs_points(&g->engine->plan))
        keep(s); /* the session still ends where others will go on */
    return 0;
}

/* ---- all of them ---- */

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One step of every live slot, after waiting requests have taken the free ones. A step that
 * computes a prompt counts as prefill. Returns 1 while there is more to do. */
static int step(struct generation *g, struct spw_generate_times *times, struct spw_error *err)
{
    bool prefill = false;
    size_t n = 0;
    for (size_t i = 0; i < g->n_slots; i++) {
        struct slot *s = &g->slots[i];
        while (!s->request && g->n_started < g->n_requests) {
            SPW_TRY(slot_start(g, s, g->n_started++, err));
            SPW_TRY(slot_end_given(g, s));
            prefill = true;
        }
        if (!s->request)
            continue;
        g->stepping[n] = s;
        s->session->ends = s->result->n_tokens + 1 >= s->request->max_new_tokens;
        g->spans[n++] = (struct spw_span){.session = s->session,
                                          .tokens = s->tokens,
                                          .n_tokens = s->n_tokens,
                                          .n_logits = s->request->max_new_tokens > 0};
    }
    if (n == 0)
        return 0;
    double start = now_seconds();
    SPW_TRY(spw_sync(g->engine, g->spans, n, NULL, NULL, err));
    *(prefill ? &times->prefill_seconds : &times->decode_seconds) += now_seconds() - start;
    times->n_decode_steps += !prefill;
    for (size_t i = 0; i < n; i++) {
        int rc = slot_step(g, g->stepping[i]);
        if (rc == -EDOM)
            spw_fail(err, rc, "the logits are not numbers (NaN): %s",
                     spw_engine_nan_advice(g->engine));
        SPW_TRY(rc);
    }
    return 1;
}

int spw_generate(struct spw_engine *e, const struct spw_tokenizer *tokenizer,
                 const struct spw_request *requests, size_t n_requests, struct spw_result *results,
                 struct spw_generate_times *times, struct spw_error *err)
{
    spw_error_clear(err);
    const struct spw_model_config *config = spw_engine_config(e);
    struct generation g = {
        .engine = e,
        .tokenizer = tokenizer,
        .requests = requests,
        .results = results,
        .n_requests = n_requests,
        .n_slots = (size_t)spw_min_u64(n_requests, spw_engine_plan(e)->sessions),
        .logits_bytes = config->vocab * sizeof(float),
    };
    struct spw_generate_times unused;
    times = times ? times : &unused;
    *times = (struct spw_generate_times){0};
    if (n_requests == 0)
        return 0;
    memset(results, 0, n_requests * sizeof *results);
    for (size_t i = 0; i < n_requests; i++)
        results[i].finish = SPW_FINISH_FAILED; /* until it ends */
    for (size_t i = 0; i < n_requests; i++)
        SPW_TRY(check_request(&g, i, err));

    int rc = spw_sampler_open(&g.sampler, config->vocab, err);
    g.slots = spw_alloc_zero(g.n_slots, sizeof *g.slots);
    g.spans = spw_alloc_zero(g.n_slots, sizeof *g.spans);
    g.stepping = spw_alloc_zero(g.n_slots, sizeof(struct slot *));
    if (rc == 0 && (!g.slots || !g.spans || !g.stepping))
        rc = spw_fail(err, -ENOMEM, "no memory for %zu sessions", g.n_slots);
    e->generates = true;
    if (rc == 0)
        while ((rc = step(&g, times, err)) > 0)
            ;
    e->generates = false;
    for (size_t i = 0; g.slots && i < g.n_slots; i++)
        slot_abandon(&g.slots[i]);
    spw_free(g.stepping);
    spw_free(g.spans);
    spw_free(g.slots);
    spw_sampler_close(g.sampler);
    return rc < 0 ? spw_fail(err, rc, "generation: %s", strerror(-rc)) : 0;
}

void spw_result_free(struct spw_result *r)
{
    if (!r)
        return;
    spw_free(r->tokens);
    *r = (struct spw_result){0};
}
