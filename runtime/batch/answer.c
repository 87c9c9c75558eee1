/* A request's tokens, text and result: see answer.h. */
#include "runtime/batch/answer.h"
#include "runtime/rules/logits_row.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* ---- text ---- */

static size_t character_bytes(const char *text, size_t bytes)
{
    size_t n = 1;
    while (n < bytes && ((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Adds final text to the answer, without the text that an earlier batch has handed over. */
static int emit_text(void *context, const char *text, size_t bytes)
{
    struct spw_answer *a = context;
    while (bytes > 0 && a->n_text_left > 0) {
        size_t n = character_bytes(text, bytes);
        if (n > a->n_text_left) { /* the earlier batch has reported half a character as U+FFFD */
            a->n_text_left = 0;
            break;
        }
        a->n_text_left -= n;
        text += n;
        bytes -= n;
    }
    return bytes > 0 && a->request.text ? spw_text_add(&a->text, text, bytes) : 0;
}

/* Leaves out characters that belong to the prompt. Half a character at the end of the prompt was
 * U+FFFD there. When new bytes complete the character, it is new text. */
static int push_text(struct spw_answer *a, const char *text, size_t bytes)
{
    while (bytes > 0 && a->n_skipped < a->n_prompt_end) {
        size_t n = character_bytes(text, bytes);
        if (n > a->n_prompt_end - a->n_skipped ||
            memcmp(text, a->prompt_end + a->n_skipped, n) != 0) {
            a->n_prompt_end = 0;
            break;
        }
        a->n_skipped += n;
        text += n;
        bytes -= n;
    }
    return spw_stop_push(a->stop, text, bytes, emit_text, a);
}

/* Whether the token ends the answer; its text is not part of it. */
static bool is_end(const struct spw_answer *a, int32_t token)
{
    for (uint32_t i = 0; i < a->config->n_eos && !a->request.ignore_eos; i++)
        if (a->config->eos[i] == token)
            return true;
    return false;
}

/* ---- the grammar ---- */

/* Adds bytes of an answer in which the grammar has not begun, and looks for the mark after which it
 * begins. */
static int push_before(struct spw_answer *a, const char *bytes, size_t n)
{
    const char *mark = a->request.grammar_after;
    const size_t n_mark = strlen(mark);
    for (size_t i = 0; i < n; i++) {
        if (a->n_latest == n_mark)
            memmove(a->latest, a->latest + 1, --a->n_latest);
        a->latest[a->n_latest++] = bytes[i];
        a->is_in_grammar = a->n_latest == n_mark && !memcmp(a->latest, mark, n_mark);
        if (a->is_in_grammar)
            return spw_grammar_run_push(a->grammar, bytes + i + 1, n - i - 1);
    }
    return 0;
}

/* Adds a token to the grammar's state. A token that does not fit is no failure here: then no token
 * may follow, which spw_answer_allow reports. */
static int push_grammar(struct spw_answer *a, int32_t token)
{
    char *bytes;
    size_t n;
    int rc;
    if (!a->grammar || is_end(a, token))
        return 0;
    if (a->is_in_grammar) {
        rc = spw_grammar_run_token(a->grammar, token);
    } else {
        SPW_TRY(spw_tokenizer_token_bytes(a->tokenizer, token, &bytes, &n));
        rc = push_before(a, bytes, n);
        spw_free(bytes);
    }
    return rc == -EINVAL ? 0 : rc;
}

void spw_answer_allow(struct spw_answer *a)
{
    const size_t n = (a->config->vocab + 63) / 64;
    const bool may_end = a->grammar && spw_grammar_run_may_end(a->grammar);
    bool any = false;
    if (!a->grammar || !a->is_in_grammar)
        return;
    const uint64_t *allowed;
    a->grammar_rc = spw_grammar_run_allowed(a->grammar, &allowed);
    for (size_t i = 0; allowed && i < n; i++) {
        a->allowed[i] = allowed[i];
        any |= allowed[i] != 0;
    }
    for (uint32_t i = 0; may_end && (!any || !a->request.ignore_eos) && i < a->config->n_eos; i++) {
        const uint32_t id = (uint32_t)a->config->eos[i];
        if (id < a->config->vocab)
            a->allowed[id / 64] |= UINT64_C(1) << id % 64;
    }
    if (!any && !may_end && !a->grammar_rc)
        a->grammar_rc = -EILSEQ;
    a->request.sampling.allowed = a->allowed;
}

static int open_grammar(struct spw_answer *a, const struct spw_request *r,
                        const struct spw_vocabulary *vocabulary)
{
    if (!r->grammar)
        return 0;
    a->is_in_grammar = !r->grammar_after;
    a->allowed = spw_alloc_zero((a->config->vocab + 63) / 64, sizeof *a->allowed);
    return a->allowed ? spw_grammar_run_open(&a->grammar, r->grammar, vocabulary, r->grammar_after)
                      : -ENOMEM;
}

/* One more token of the answer, and the text that it makes final. */
static int append(struct spw_answer *a, int32_t token)
{
    const char *text;
    size_t bytes;
    a->tokens[a->n_tokens++] = token;
    a->result.tokens[a->result.n_tokens++] = token;
    SPW_TRY(push_grammar(a, token));
    if (!a->detokenizer || is_end(a, token))
        return 0;
    SPW_TRY(spw_detokenizer_push(a->detokenizer, token, &text, &bytes));
    return push_text(a, text, bytes);
}

/* ---- open, close ---- */

static int push_prompt(struct spw_answer *a)
{
    for (size_t i = 0; i < a->request.n_prompt; i++) {
        const char *text;
        size_t bytes;
        if (a->tokens[i] >= 0) /* the source is no text before the answer */
            SPW_TRY(spw_detokenizer_push(a->detokenizer, a->tokens[i], &text, &bytes));
    }
    return 0;
}

/* The detokenizer reads the prompt, too: whether a token begins with a space, and which character
 * its bytes complete, depends on the tokens before it. The last bytes of the prompt (for example
 * half a character) come out with the first new text. Finish shows what these bytes are. */
static int open_text(struct spw_answer *a, const struct spw_request *r,
                     const struct spw_tokenizer *tokenizer, struct spw_error *err)
{
    const char *held;
    if (!r->text && !r->n_stop)
        return 0;
    SPW_TRY(spw_detokenizer_init(&a->detokenizer, tokenizer, true));
    spw_detokenizer_show(a->detokenizer, r->shown, r->n_shown);
    SPW_TRY(push_prompt(a));
    SPW_TRY(spw_detokenizer_finish(a->detokenizer, &held, &a->n_prompt_end));
    a->prompt_end = spw_alloc(a->n_prompt_end);
    if (!a->prompt_end)
        return -ENOMEM;
    if (a->n_prompt_end > 0)
        memcpy(a->prompt_end, held, a->n_prompt_end);
    SPW_TRY(push_prompt(a)); /* finish has made it new */
    return spw_stop_open(&a->stop, r->stop, r->n_stop, err);
}

/* NULL: no memory. */
static void *copy(const void *from, size_t n, size_t bytes)
{
    void *to = spw_alloc_zero(n, bytes);
    if (to && n)
        memcpy(to, from, n * bytes);
    return to;
}

/* A number of the request, or of the model's files. */
static void choose_number(uint64_t *own, uint64_t files)
{
    *own = *own == SPW_NONE ? 0 : *own ? *own : files;
}

static int open_sampling(struct spw_answer *a, const struct spw_request *r)
{
    const struct spw_model_config *c = a->config;
    struct spw_sampling *p = &a->request.sampling;
    p->logit_bias = a->logit_bias = copy(p->logit_bias, p->n_logit_bias, sizeof *p->logit_bias);
    bool all = a->logit_bias;
    if (p->rules.min_new_tokens == SPW_NONE) /* given: min_length is off, as in transformers */
        p->rules.min_length = SPW_NONE;
    choose_number(&p->rules.no_repeat_ngram_size, c->token_rules.no_repeat_ngram_size);
    choose_number(&p->rules.min_length, c->token_rules.min_length);
    choose_number(&p->rules.min_new_tokens, c->token_rules.min_new_tokens);
    p->rules.renormalize_logits |= c->token_rules.renormalize_logits;
    p->rules.bad_words = c->token_rules.bad_words;
    for (int k = 0; k < SPW_TOKEN_LISTS; k++) {
        struct spw_token_list *list = &p->rules.lists[k];
        const struct spw_token_list from = list->ids ? *list : c->token_rules.lists[k];
        a->lists[k] = copy(from.ids, from.n, sizeof *from.ids);
        all &= a->lists[k] != NULL;
        *list = (struct spw_token_list){a->lists[k], from.n};
    }
    p->ends = (struct spw_token_list){c->eos, r->ignore_eos ? 0 : c->n_eos};
    p->most_tokens = r->n_prompt - spw_source_length(r->prompt, r->n_prompt) + r->max_new_tokens;
    return all ? 0 : -ENOMEM;
}

static int open_tokens(struct spw_answer *a, const struct spw_request *r)
{
    a->tokens = spw_alloc_zero(r->n_prompt + r->max_new_tokens, sizeof *a->tokens);
    a->result.tokens = spw_alloc_zero(r->max_new_tokens, sizeof *a->tokens);
    if (!a->tokens || !a->result.tokens)
        return -ENOMEM;
    a->result.logits_hash = r->given_hash;
    memcpy(a->tokens, r->prompt, r->n_prompt * sizeof *a->tokens);
    a->n_tokens = r->n_prompt;
    return open_sampling(a, r);
}

static int open_logprobs(struct spw_answer *a, const struct spw_request *r)
{
    struct spw_result *out = &a->result;
    out->n_top_logprobs = (uint32_t)spw_min_u64(r->n_top_logprobs, a->config->vocab);
    if (r->prompt_logprobs)
        out->prompt_logprobs = spw_alloc_zero(r->n_prompt, sizeof *out->prompt_logprobs);
    if (r->logprobs)
        out->logprobs = spw_alloc_zero(r->max_new_tokens, sizeof *out->logprobs);
    if (out->n_top_logprobs)
        out->top_logprobs =
            spw_alloc_zero(r->max_new_tokens * out->n_top_logprobs, sizeof *out->top_logprobs);
    const bool has_prompt_top = r->prompt_logprobs && out->n_top_logprobs;
    if (has_prompt_top)
        out->prompt_top_logprobs =
            spw_alloc_zero(r->n_prompt * out->n_top_logprobs, sizeof *out->prompt_top_logprobs);
    bool all = (!r->prompt_logprobs || out->prompt_logprobs) && (!r->logprobs || out->logprobs) &&
               (!out->n_top_logprobs || out->top_logprobs) &&
               (!has_prompt_top || out->prompt_top_logprobs);
    return all ? 0 : -ENOMEM;
}

int spw_answer_open(struct spw_answer *a, const struct spw_request *request, uint64_t i,
                    const struct spw_model_config *config, const struct spw_tokenizer *tokenizer,
                    const struct spw_vocabulary *vocabulary, struct spw_error *err)
{
    *a = (struct spw_answer){.request = *request,
                             .config = config,
                             .tokenizer = tokenizer,
                             .n_text_left = request->n_text_given,
                             .result.finish = SPW_FINISH_NONE};
    int rc = open_tokens(a, request);
    if (!rc)
        rc = open_logprobs(a, request);
    if (!rc)
        rc = open_text(a, request, tokenizer, err);
    if (!rc)
        rc = open_grammar(a, request, vocabulary);
    for (size_t k = 0; k < request->n_given && !rc; k++) /* as they were seen when they were new */
        rc = append(a, request->given[k]);
    a->request.sampling.allowed = NULL;
    a->request.prompt = a->tokens;
    a->request.given = NULL;
    a->request.shown = NULL;
    a->request.stop = NULL;
    if (!rc)
        return 0;
    spw_answer_close(a);
    if (rc == -E2BIG)
        return spw_fail(err, rc, "request %llu: %s", (unsigned long long)i, SPW_GRAMMAR_TOO_MANY);
    return spw_fail(err, rc, "request %llu: no memory for %zu tokens and their text",
                    (unsigned long long)i, request->n_prompt + request->max_new_tokens);
}

void spw_answer_close(struct spw_answer *a)
{
    spw_result_free(&a->result);
    spw_free(a->text.text);
    spw_free(a->prompt_end);
    spw_detokenizer_free(a->detokenizer);
    spw_stop_close(a->stop);
    spw_free(a->logit_bias);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        spw_free(a->lists[k]);
    spw_grammar_run_close(a->grammar);
    spw_free(a->allowed);
    spw_free(a->tokens);
    *a = (struct spw_answer){0};
}

void spw_result_free(struct spw_result *r)
{
    if (!r)
        return;
    spw_free(r->tokens);
    spw_free(r->step_rows);
    spw_free(r->parents);
    spw_free(r->prompt_logprobs);
    spw_free(r->logprobs);
    spw_free(r->top_logprobs);
    spw_free(r->prompt_top_logprobs);
    *r = (struct spw_result){0};
}

/* ---- log-probabilities ---- */

/* A row's log softmax: l - top - log_sum for a logit l. In double over f32 logits [vocab]. */
struct softmax {
    double top, log_sum;
};

static struct softmax softmax_of(const float *logits, uint32_t vocab)
{
    const float top = spw_row_top(logits, vocab);
    return (struct softmax){(double)top, spw_row_log_sum(logits, vocab, top)};
}

static double log_probability(const struct softmax *s, float logit)
{
    return (double)logit - s->top - s->log_sum;
}

/* The n most likely tokens of logits [vocab], n <= vocab, by insertion: few tokens of a row reach
 * the list. */
static void find_top(struct spw_token_logprob *top, uint32_t n, const float *logits, uint32_t vocab,
                     const struct softmax *s)
{
    uint32_t n_found = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        float logit = logits[id];
        if (n_found == n && !(logit > logits[top[n - 1].token]))
            continue;
        uint32_t at = n_found < n ? n_found++ : n - 1;
        for (; at > 0 && logit > logits[top[at - 1].token]; at--)
            top[at] = top[at - 1];
        top[at].token = (int32_t)id;
    }
    for (uint32_t i = 0; i < n; i++)
        top[i].logprob = log_probability(s, logits[top[i].token]);
}

/* Sets entry k of `list` and of `top` [n_top_logprobs each] for a token, from the logits before the
 * token. list NULL: does nothing. -EDOM: the logits have no log softmax, because of a NaN or an
 * infinity. */
static int score(const struct spw_answer *a, double *list, struct spw_token_logprob *top, size_t k,
                 int32_t token, const float *logits)
{
    const uint32_t n_top = a->result.n_top_logprobs;
    if (!list)
        return 0;
    const struct softmax s = softmax_of(logits, a->config->vocab);
    if (!isfinite(s.top))
        return -EDOM;
    list[k] = log_probability(&s, logits[token]);
    if (top)
        find_top(top + k * n_top, n_top, logits, a->config->vocab, &s);
    return 0;
}

int spw_answer_score(struct spw_answer *a, uint64_t position, const float *logits)
{
    const size_t next = position + 1, n_prompt = a->request.n_prompt;
    const struct spw_result *r = &a->result;
    if (next < n_prompt)
        return score(a, r->prompt_logprobs, r->prompt_top_logprobs, next, a->tokens[next], logits);
    if (next < n_prompt + a->request.n_given)
        return score(a, r->logprobs, r->top_logprobs, next - n_prompt, a->tokens[next], logits);
    return 0;
}

/* ---- tokens ---- */

enum spw_finish spw_answer_finish(const struct spw_answer *a)
{
    size_t n = a->result.n_tokens;
    if (n && is_end(a, a->result.tokens[n - 1]))
        return SPW_FINISH_EOS;
    if (a->detokenizer && spw_stop_found(a->stop))
        return SPW_FINISH_STOP;
    return n && n == a->request.max_new_tokens ? SPW_FINISH_LENGTH : SPW_FINISH_NONE;
}

int spw_answer_push(struct spw_answer *a, int32_t token, const float *logits)
{
    if (!logits)
        return append(a, token);
    a->result.logits_hash =
        XXH3_64bits_withSeed(logits, a->config->vocab * sizeof *logits, a->result.logits_hash);
    SPW_TRY(
        score(a, a->result.logprobs, a->result.top_logprobs, a->result.n_tokens, token, logits));
    return append(a, token);
}

int spw_answer_replace(struct spw_answer *a, const int32_t *tokens, size_t n)
{
    int rc = 0;
    a->n_tokens = a->request.n_prompt;
    for (size_t i = 0; i < n && !rc; i++)
        rc = append(a, tokens[i]);
    return rc;
}

int spw_answer_end(struct spw_answer *a)
{
    const bool open = a->request.continues && a->result.finish == SPW_FINISH_LENGTH;
    if (!a->detokenizer || open || spw_stop_found(a->stop))
        return 0;
    const char *text;
    size_t bytes;
    SPW_TRY(spw_detokenizer_finish(a->detokenizer, &text, &bytes));
    SPW_TRY(push_text(a, text, bytes));
    if (spw_stop_found(a->stop))
        a->result.finish = SPW_FINISH_STOP;
    return spw_stop_finish(a->stop, emit_text, a);
}
