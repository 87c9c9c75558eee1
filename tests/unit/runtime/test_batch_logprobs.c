/* Log-probabilities of prompts and answers, and answers that another batch continues. */
#include "tests/unit/runtime/batch_requests.h"

static bool same_logprobs(const struct spw_result *a, const struct spw_result *b)
{
    size_t n_top = a->n_tokens * a->n_top_logprobs;
    bool same = !a->logprobs == !b->logprobs && a->n_top_logprobs == b->n_top_logprobs;
    for (size_t i = 0; same && a->logprobs && i < a->n_tokens; i++)
        same = a->logprobs[i] == b->logprobs[i];
    for (size_t i = 0; same && i < n_top; i++)
        same = a->top_logprobs[i].token == b->top_logprobs[i].token &&
               a->top_logprobs[i].logprob == b->top_logprobs[i].logprob;
    return same;
}

struct scored {
    const int32_t *ids;
    size_t n;
    double *out;
};

static void sum_logits(void *context, size_t span, size_t position, const float *logits)
{
    const struct scored *s = context;
    double sum = 0;
    (void)span;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    if (position + 1 < s->n)
        s->out[position + 1] = (double)logits[s->ids[position + 1]] - log(sum);
}

/* The log-probabilities of a prompt, against the logits of every position; also where all tokens of
 * the answer are given. */
static void test_logprobs(uint64_t seed)
{
    struct spw_engine *e = open_engine(MODEL, 3);
    struct spw_session *s;
    struct spw_result r[3];
    struct prompt p;
    double expected[200] = {0};
    draw_prompt(&p, &seed);
    p.request.prompt_logprobs = true;
    p.request.max_new_tokens = check_random(&seed) % 2 ? 0 : 3;
    struct spw_request plain = p.request, given = p.request;
    plain.prompt_logprobs = false;
    given.given = p.ids;
    given.n_given = given.max_new_tokens = 1;
    struct spw_error err = {0};
    CHECK_MSG(
        !batch_run(e, NULL, (struct spw_request[]){p.request, plain, given}, 3, r, NULL, &err),
        "%s", err.text);
    CHECK(same(&r[0], &r[1]) && !r[1].prompt_logprobs);
    CHECK(r[2].n_tokens == 1 && r[2].finish == SPW_FINISH_LENGTH);
    struct scored context = {p.ids, p.request.n_prompt, expected};
    CHECK(spw_session_open(&s, e, NULL) == 0);
    struct spw_span span = {s, p.ids, p.request.n_prompt, p.request.n_prompt};
    CHECK(spw_sync(e, &span, 1, sum_logits, &context, NULL) == 0);
    for (size_t i = 0; i < p.request.n_prompt; i++)
        CHECK_MSG(fabs(r[0].prompt_logprobs[i] - expected[i]) < 1e-9, "token %zu: %g, expected %g",
                  i, r[0].prompt_logprobs[i], expected[i]);
    CHECK(!memcmp(r[0].prompt_logprobs, r[2].prompt_logprobs, p.request.n_prompt * sizeof(double)));
    spw_session_close(s);
    for (int i = 0; i < 3; i++)
        spw_result_free(&r[i]);
    spw_engine_close(e);
}

/* log softmax, most likely token first. */
static int compare_logprobs(const void *a, const void *b)
{
    const struct spw_token_logprob *x = a, *y = b;
    if (x->logprob != y->logprob)
        return x->logprob > y->logprob ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static void check_row(const struct spw_result *r, size_t i, const float *logits)
{
    struct spw_token_logprob all[VOCAB];
    const struct spw_token_logprob *top = r->top_logprobs + i * r->n_top_logprobs;
    double sum = 0;
    for (int k = 0; k < VOCAB; k++)
        sum += exp((double)logits[k]);
    for (int k = 0; k < VOCAB; k++)
        all[k] = (struct spw_token_logprob){k, (double)logits[k] - log(sum)};
    CHECK(fabs(r->logprobs[i] - all[r->tokens[i]].logprob) < 1e-9);
    qsort(all, VOCAB, sizeof *all, compare_logprobs);
    for (uint32_t k = 0; k < r->n_top_logprobs; k++)
        CHECK_MSG(top[k].token == all[k].token && fabs(top[k].logprob - all[k].logprob) < 1e-9,
                  "token %zu, place %u: %d %g, expected %d %g", i, k, top[k].token, top[k].logprob,
                  all[k].token, all[k].logprob);
}

/* The log-probabilities of an answer: those of a prompt that has the answer's tokens, and the n
 * largest of each row of logits; whatever bias and penalties chose. */
static void test_answer_logprobs(uint64_t seed)
{
    static struct seen seen;
    static int32_t ids[200 + MOST];
    const struct spw_logit_bias bias = {11, 4};
    struct spw_engine *e = open_engine(MODEL, 2);
    struct spw_result r, again;
    struct prompt p;
    struct batch_watch watch = {.on_token = see_token, .context = &seen};
    memset(&seen, 0, sizeof seen);
    draw_prompt(&p, &seed);
    p.request.logprobs = true;
    p.request.n_top_logprobs = (uint32_t)check_range(&seed, 0, 20);
    p.request.max_new_tokens = check_range(&seed, 1, MOST);
    p.request.sampling.logit_bias = &bias;
    p.request.sampling.n_logit_bias = 1;
    CHECK(batch_watched(e, NULL, &p.request, &watch, 1, &r, NULL, NULL) == 0);
    CHECK(r.n_tokens > 0 && r.n_top_logprobs == p.request.n_top_logprobs);
    for (size_t i = 0; i < r.n_tokens; i++)
        check_row(&r, i, seen.logits + i * VOCAB);
    memcpy(ids, p.ids, p.request.n_prompt * sizeof *ids);
    memcpy(ids + p.request.n_prompt, r.tokens, r.n_tokens * sizeof *ids);
    struct spw_request scored = {.prompt = ids,
                                 .n_prompt = p.request.n_prompt + r.n_tokens,
                                 .prompt_logprobs = true,
                                 .logprobs = true,
                                 .n_top_logprobs = p.request.n_top_logprobs};
    CHECK(batch_run(e, NULL, &scored, 1, &again, NULL, NULL) == 0 && !again.n_tokens);
    const size_t n_top = r.n_top_logprobs, first = p.request.n_prompt * n_top;
    for (size_t i = 0; i < r.n_tokens; i++)
        CHECK(r.logprobs[i] == again.prompt_logprobs[p.request.n_prompt + i]);
    for (size_t i = 0; i < r.n_tokens * n_top; i++)
        CHECK(r.top_logprobs[i].token == again.prompt_top_logprobs[first + i].token &&
              r.top_logprobs[i].logprob == again.prompt_top_logprobs[first + i].logprob);
    CHECK(!r.prompt_top_logprobs && !again.prompt_top_logprobs == !n_top);
    spw_result_free(&r);
    spw_result_free(&again);
    spw_engine_close(e);
}

/* An answer that another batch continues, from any of its tokens on, has the hash and the
 * log-probabilities of the answer that nobody ended. */
static void test_given(uint64_t seed)
{
    static struct seen seen;
    struct prompt p;
    struct spw_result whole, rest[2];
    struct batch_watch watch = {.on_token = see_token, .context = &seen};
    memset(&seen, 0, sizeof seen);
    draw_prompt(&p, &seed);
    p.request.max_new_tokens = 20;
    p.request.logprobs = check_random(&seed) % 2;
    p.request.n_top_logprobs = p.request.logprobs ? 3 : 0;
    struct spw_engine *e = open_engine(MODEL, 3);
    CHECK(batch_watched(e, NULL, &p.request, &watch, 1, &whole, NULL, NULL) == 0);
    for (size_t n = 0; n <= whole.n_tokens; n++) {
        struct spw_request request = p.request;
        request.given = whole.tokens;
        request.n_given = n;
        request.given_hash = hash_rows(seen.logits, n);
        /* Beside a request whose prompt is the same. */
        CHECK(!batch_run(e, NULL, (struct spw_request[]){request, p.request}, 2, rest, NULL, NULL));
        for (int i = 0; i < 2; i++) {
            CHECK(same(&whole, &rest[i]) && same_logprobs(&whole, &rest[i]));
            spw_result_free(&rest[i]);
        }
    }
    spw_result_free(&whole);
    spw_engine_close(e);
}

int main(void)
{
    uint64_t seed = check_seed();
    test_logprobs(seed);
    for (uint64_t i = 0; i < 3; i++) {
        test_answer_logprobs(seed + 1 + i);
        test_given(seed + 1 + i);
    }
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
