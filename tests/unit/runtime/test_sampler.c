/* The sampler against closed forms, the published vectors of its generator, and a literal
 * transcription of the logits processors of Hugging Face and vLLM (full sorts, one step after the
 * other). */
#include "base/base.h"
#include "base/philox.h"
#include "model/config/config.h"
#include "runtime/rules/logit_rules.h"
#include "runtime/sampler.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

/* kat_vectors of Random123 (the authors' distribution), philox4x32 with 10 rounds. */
static void test_philox_vectors(void)
{
    static const struct {
        struct spw_philox counter;
        uint32_t key[2];
        struct spw_philox expected;
    } vectors[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        struct spw_philox r =
            spw_philox_block(vectors[i].counter, vectors[i].key[0], vectors[i].key[1]);
        CHECK(memcmp(&r, &vectors[i].expected, sizeof r) == 0);
    }
}

/* A chi-square variable of `df` degrees exceeds this with probability 1e-6 (E. Wilson, M. Hilferty,
 * 1931; z = 4.75). Seeds are fixed, so the result never changes. */
static double chi_square_limit(double df)
{
    double a = 2 / (9 * df);
    double c = 1 - a + 4.75 * sqrt(a);
    return df * c * c * c;
}

static void test_uniform(void)
{
    enum { BINS = 64, DRAWS = 64000 };
    double count[BINS] = {0}, chi = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = spw_philox_uniform(7, 0, i);
        CHECK(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
    }
    for (int i = 0; i < BINS; i++)
        chi += (count[i] - DRAWS / BINS) * (count[i] - DRAWS / BINS) / (DRAWS / BINS);
    CHECK_MSG(chi < chi_square_limit(BINS - 1), "chi %f", chi);
    /* Every word of seed, stream and position counts. */
    double base = spw_philox_uniform(1, 2, 3);
    CHECK(base != spw_philox_uniform(1 + (UINT64_C(1) << 32), 2, 3));
    CHECK(base != spw_philox_uniform(1, 2 + (UINT64_C(1) << 32), 3));
    CHECK(base != spw_philox_uniform(1, 2, 3 + (UINT64_C(1) << 32)));
}

/* ---- the reference ---- */

struct ranked {
    float logit;
    int32_t id;
};

/* Ascending; among equal values the lower id comes last. */
static int rank_up(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? -1 : 1;
    return x->id > y->id ? -1 : 1;
}

static void softmax(const double *scores, int n, double *p)
{
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        top = fmax(top, scores[i]);
    for (int i = 0; i < n; i++)
        sum += p[i] = exp(scores[i] - top);
    for (int i = 0; i < n; i++)
        p[i] /= sum;
}

static bool has(const struct spw_token_list *list, int id)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] == id)
            return true;
    return false;
}

/* Whether the last n tokens with `id` occur before. */
static bool repeats(size_t n, int id, const int32_t *tokens, size_t n_tokens)
{
    for (size_t at = 0; n && at + n <= n_tokens; at++) {
        bool same = tokens[at + n - 1] == id;
        for (size_t i = 0; i + 1 < n; i++)
            same &= tokens[at + i] == tokens[n_tokens - n + 1 + i];
        if (same)
            return true;
    }
    return false;
}

/* Whether `id` behind the last tokens ends a word. */
static bool ends_word(const struct spw_token_list *words, int id, const int32_t *tokens,
                      size_t n_tokens)
{
    bool any = false;
    for (size_t at = 0; at < words->n; at += (size_t)words->ids[at] + 1) {
        const size_t n = (size_t)words->ids[at];
        bool same = n <= n_tokens && words->ids[at + n] == id;
        for (size_t i = 0; same && i + 1 < n; i++)
            same = words->ids[at + 1 + i] == tokens[n_tokens + 1 - n + i];
        any |= same;
    }
    return any;
}

/* NoRepeatNGram, NoBadWords, MinLength, MinNewTokensLength, ForcedBOS, ForcedEOS, SuppressTokens
 * and SuppressTokensAtBegin of transformers. */
static float ruled_logit(const struct spw_sampling *o, float l, int id, const int32_t *tokens,
                         size_t n_prompt, size_t n_tokens)
{
    const struct spw_token_rules *r = &o->rules;
    const struct spw_token_list *bos = &r->lists[SPW_FORCED_BOS], *eos = &r->lists[SPW_FORCED_EOS];
    const uint64_t least = r->min_new_tokens ? n_prompt + r->min_new_tokens : r->min_length;
    const size_t begin = n_prompt > 1 || !bos->n ? n_prompt : n_prompt + 1;
    if (repeats(r->no_repeat_ngram_size, id, tokens, n_tokens) ||
        has(&r->lists[SPW_BAD_WORDS], id) || ends_word(&r->bad_words, id, tokens, n_tokens) ||
        (n_tokens < least && has(&o->ends, id)))
        l = -INFINITY;
    if (bos->n && n_tokens == 1)
        l = has(bos, id) ? 0 : -INFINITY;
    if (eos->n && n_tokens == o->most_tokens - 1)
        l = has(eos, id) ? 0 : -INFINITY;
    if (has(&r->lists[SPW_SUPPRESS], id) ||
        (n_tokens == begin && has(&r->lists[SPW_BEGIN_SUPPRESS], id)))
        l = -INFINITY;
    return l;
}

/* SequenceBias, RepetitionPenalty as in transformers/generation/logits_process.py, then the other
 * two penalties as in vLLM's model_executor/layers/utils.py. */
static float changed_logit(const struct spw_sampling *o, float l, int id, const int32_t *tokens,
                           size_t n_prompt, size_t n_tokens)
{
    bool seen = false;
    int count = 0;
    for (size_t k = 0; k < o->n_logit_bias; k++)
        if (o->logit_bias[k].token == id)
            l = l + o->logit_bias[k].bias;
    for (size_t k = 0; k < n_tokens; k++)
        seen |= tokens[k] == id;
    for (size_t k = n_prompt; k < n_tokens; k++)
        count += tokens[k] == id;
    if (seen && o->repetition_penalty != 0)
        l = l < 0 ? l * o->repetition_penalty : l / o->repetition_penalty;
    l -= o->frequency_penalty * (float)count;
    l -= o->presence_penalty * (float)(count > 0);
    return ruled_logit(o, l, id, tokens, n_prompt, n_tokens);
}

/* Those, and Temperature, TopK, TopP, MinP as in transformers.
 * Returns the smallest distance of a comparison from its border: too close means that rounding
 * decides. */
static double reference(const struct spw_sampling *o, const float *logits, int n,
                        const int32_t *tokens, size_t n_prompt, size_t n_tokens, double *p)
{
    double score[512];
    double slack = 1;
    struct ranked order[512];
    for (int i = 0; i < n; i++) {
        float l = changed_logit(o, logits[i], i, tokens, n_prompt, n_tokens);
        order[i] = (struct ranked){l, i};
        score[i] = (double)l / (double)o->temperature;
    }
    qsort(order, (size_t)n, sizeof *order, rank_up);
    if (o->top_k > 0) {
        int k = o->top_k < (uint32_t)n ? (int)o->top_k : n;
        for (int i = 0; i < n; i++)
            if (order[i].logit < order[n - k].logit)
                score[order[i].id] = -INFINITY;
    }
    softmax(score, n, p);
    if (o->top_p > 0 && o->top_p < 1) {
        double sum = 0;
        for (int i = 0; i < n - 1; i++) { /* min_tokens_to_keep = 1: never the last */
            sum += p[order[i].id];
            slack = fmin(slack, fabs(sum - (1 - (double)o->top_p)));
            if (sum <= 1 - (double)o->top_p)
                score[order[i].id] = -INFINITY;
        }
        softmax(score, n, p);
    }
    if (o->min_p > 0) {
        double top = 0;
        for (int i = 0; i < n; i++)
            top = fmax(top, p[i]);
        for (int i = 0; i < n; i++) {
            if (p[i] > 0)
                slack = fmin(slack, fabs(p[i] - top * (double)o->min_p) / top);
            if (p[i] < top * (double)o->min_p)
                score[i] = -INFINITY;
        }
        softmax(score, n, p);
    }
    return slack;
}

static float random_logit(uint64_t *rng, double scale)
{
    /* Coarse values, so that ties are frequent. */
    return (float)(((double)check_range(rng, 0, 80) / 8 - 5) * scale);
}

/* Biases and penalties: half of the time each. */
static void draw_changes(struct spw_sampling *o, struct spw_logit_bias biases[3], int vocab,
                         uint64_t *rng)
{
    for (int i = 0; i < 3; i++)
        biases[i] = (struct spw_logit_bias){(int32_t)check_range(rng, 0, (uint64_t)vocab - 1),
                                            (float)check_range(rng, 0, 64) / 4 - 8};
    o->logit_bias = biases;
    if (check_range(rng, 0, 1))
        o->n_logit_bias = check_range(rng, 1, 3);
    if (check_range(rng, 0, 1))
        o->repetition_penalty = (float)check_range(rng, 5, 20) / 10;
    if (check_range(rng, 0, 1))
        o->frequency_penalty = (float)check_range(rng, 0, 40) / 10 - 2;
    if (check_range(rng, 0, 1))
        o->presence_penalty = (float)check_range(rng, 0, 40) / 10 - 2;
}

/* Rules, so often that each pair of them is drawn. Lists have a token or two, and one that does not
 * exist. */
static void draw_rules(struct spw_sampling *o, int32_t ids[SPW_TOKEN_LISTS + 1][3], size_t n_tokens,
                       int vocab, uint64_t *rng)
{
    struct spw_token_rules *r = &o->rules;
    o->ends = (struct spw_token_list){ids[SPW_TOKEN_LISTS], check_range(rng, 0, 2)};
    o->most_tokens = n_tokens + check_range(rng, 1, 3);
    for (int k = 0; k <= SPW_TOKEN_LISTS; k++)
        for (int i = 0; i < 3; i++)
            ids[k][i] = i < 2 ? (int32_t)check_range(rng, 0, (uint64_t)vocab - 1) : vocab;
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        if (!check_range(rng, 0, 2))
            r->lists[k] = (struct spw_token_list){ids[k], check_range(rng, 1, 3)};
    if (check_range(rng, 0, 1))
        r->no_repeat_ngram_size = check_range(rng, 1, 3);
    if (check_range(rng, 0, 1))
        r->min_length = check_range(rng, 0, n_tokens + 2);
    if (!check_range(rng, 0, 2))
        r->min_new_tokens = check_range(rng, 1, n_tokens + 2);
}

/* Times of Whisper. The tokens: text, the end, others, "no times", then the times. */
enum { TIMES_END = 12, TIMES_BEGIN = 20, TIMES_VOCAB = 44 };

/* Whether WhisperTimeStampLogitsProcessor of transformers lets a token follow the answer, but for
 * its last rule: by what the tokens are, one token at a time. first: of the times that may begin an
 * answer, how many there are beside the first one. */
static bool may_follow(int id, const int32_t *answer, size_t n, uint64_t first)
{
    const bool is_time = id >= TIMES_BEGIN;
    const bool after_time = n >= 1 && answer[n - 1] >= TIMES_BEGIN;
    const bool after_two = after_time && (n == 1 || answer[n - 2] >= TIMES_BEGIN);
    int newest = -1; /* the time that was written last */
    for (size_t i = 0; i < n; i++)
        newest = answer[i] >= TIMES_BEGIN ? answer[i] : newest;
    if (id == TIMES_BEGIN - 1)
        return false;
    if (n == 0)
        return is_time && (uint64_t)(id - TIMES_BEGIN) <= first;
    if (!is_time)
        return !after_time || after_two || id >= TIMES_END;
    if (after_two)
        return false;
    return after_time ? id >= newest : id > newest;
}

/* And the last rule: all times together, against the likeliest of the other tokens. 0: which one is
 * larger is within what f32 rounds. */
static int times_win(const float *logits)
{
    double times = 0, text = -INFINITY;
    for (int i = 0; i < TIMES_VOCAB; i++)
        if (i < TIMES_BEGIN)
            text = fmax(text, (double)logits[i]);
    for (int i = TIMES_BEGIN; i < TIMES_VOCAB; i++)
        times += exp((double)logits[i]);
    const double more = log(times) - text;
    return isnan(more) || fabs(more) < 1e-4 ? 0 : more > 0 ? 1 : -1;
}

/* Answers as a model writes them, with pairs of times, and any others. */
static size_t draw_answer(int32_t *answer, uint64_t *rng)
{
    const size_t n = check_range(rng, 0, 9);
    for (size_t i = 0; i < n; i++) {
        const uint64_t kind = check_range(rng, 0, 9);
        const int32_t before = i ? answer[i - 1] : 0;
        answer[i] = (int32_t)(kind < 4 ? check_range(rng, 0, TIMES_BEGIN - 1)
                              : kind < 6 && before >= TIMES_BEGIN
                                  ? (uint64_t)before
                                  : check_range(rng, TIMES_BEGIN, TIMES_VOCAB - 1));
    }
    return n;
}

static void test_times(uint64_t seed)
{
    int n_won = 0, n_compared = 0;
    for (int round = 0; round < check_amount(40000); round++) {
        float logits[TIMES_VOCAB], expected[TIMES_VOCAB];
        const size_t n_prompt = check_range(&seed, 1, 4);
        int32_t tokens[16] = {0, 25, 30, 1};
        const size_t n = draw_answer(tokens + n_prompt, &seed);
        const int32_t end = TIMES_END;
        const uint64_t first = check_range(&seed, 0, 2) ? check_range(&seed, 0, 30) : UINT64_MAX;
        const struct spw_sampling o = {
            .ends = {&end, 1},
            .rules = {.timestamp_begin = TIMES_BEGIN, .max_initial_timestamp_index = first}};
        for (int i = 0; i < TIMES_VOCAB; i++) {
            logits[i] = random_logit(&seed, i < TIMES_BEGIN ? 1 : 0.5);
            expected[i] = may_follow(i, tokens + n_prompt, n, first) ? logits[i] : -INFINITY;
        }
        const int wins = times_win(expected);
        for (int i = 0; i < TIMES_BEGIN && wins > 0; i++)
            expected[i] = -INFINITY;
        const struct spw_logit_row row = {.logits = logits,
                                          .vocab = TIMES_VOCAB,
                                          .tokens = tokens,
                                          .n_prompt = n_prompt,
                                          .n_tokens = n_prompt + n};
        spw_logit_rules_apply(&row, &o);
        n_won += wins > 0;
        n_compared += wins != 0;
        CHECK_MSG(!wins || !memcmp(logits, expected, sizeof logits), "times: round %d", round);
    }
    CHECK(n_won > n_compared / 10 && n_won < n_compared * 9 / 10);
}

/* Words of two and three tokens, most of which the sequences have. */
static void draw_words(struct spw_token_list *out, int32_t words[7], int vocab, uint64_t *rng)
{
    for (int i = 0; i < 7; i++)
        words[i] = (int32_t)check_range(rng, 0, spw_min_u64((uint64_t)vocab, 6));
    words[0] = 2;
    words[3] = 3;
    *out = (struct spw_token_list){words, (size_t[]){0, 3, 7}[check_range(rng, 0, 2)]};
}

/* Greedy: the lowest id of the largest logits, after biases and penalties. */
static int greedy_choice(const struct spw_sampling *o, const float *logits, int n,
                         const int32_t *tokens, size_t n_prompt, size_t n_tokens)
{
    int best = -ENODATA; /* the rules forbid every token */
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        float l = changed_logit(o, logits[i], i, tokens, n_prompt, n_tokens);
        if (l > top) {
            top = l;
            best = i;
        }
    }
    return best;
}

/* The source of a model with an encoder, in front of the tokens, changes no choice. */
static void check_behind_source(struct spw_sampler *s, const struct spw_sampling *greedy,
                                const float *logits, const int32_t *tokens, size_t n_prompt,
                                size_t n_tokens, uint64_t *seed)
{
    int32_t all[40 + 8];
    const size_t n_source = check_range(seed, 1, 8);
    for (size_t i = 0; i < n_source; i++)
        all[i] = spw_source_token((int32_t)check_range(seed, 0, 5));
    memcpy(all + n_source, tokens, n_tokens * sizeof *tokens);
    CHECK(spw_sampler_pick(s, greedy, logits, all, n_source + n_prompt, n_source + n_tokens) ==
          spw_sampler_pick(s, greedy, logits, tokens, n_prompt, n_tokens));
}

/* Every choice of the sampler is the inverse of the reference's distribution at the generator's
 * number. Draws within rounding of a border are skipped. */
static void test_against_reference(uint64_t seed)
{
    struct spw_sampler *s = NULL;
    struct spw_logit_bias biases[3];
    int32_t ids[SPW_TOKEN_LISTS + 1][3], words[7];
    int n_compared = 0;
    for (int round = 0; round < 3000; round++) {
        int n = (int)check_range(&seed, 1, 300);
        float logits[512];
        double p[512];
        int32_t tokens[40];
        size_t n_tokens = check_range(&seed, 0, 40), n_prompt = check_range(&seed, 0, n_tokens);
        double scale = (double[]){1, 1, 0.001, 30}[check_range(&seed, 0, 3)];
        for (int i = 0; i < n; i++)
            logits[i] = random_logit(&seed, scale);
        for (size_t i = 0; i < n_tokens; i++)
            tokens[i] = (int32_t)check_range(&seed, 0, spw_min_u64((uint64_t)n, 6) - 1);
        struct spw_sampling o = {.temperature = (float)check_range(&seed, 1, 40) / 10,
                                 .seed = check_random(&seed),
                                 .stream = check_range(&seed, 0, 3)};
        if (check_range(&seed, 0, 1))
            o.top_k = (uint32_t)check_range(&seed, 1, 310);
        if (check_range(&seed, 0, 1))
            o.top_p = (float)check_range(&seed, 1, 1000) / 1000;
        if (check_range(&seed, 0, 1))
            o.min_p = (float)check_range(&seed, 1, 1000) / 1000;
        draw_changes(&o, biases, n, &seed);
        if (check_range(&seed, 0, 1))
            draw_rules(&o, ids, n_tokens, n, &seed);
        draw_words(&o.rules.bad_words, words, n, &seed);
        spw_sampler_close(s);
        CHECK(spw_sampler_open(&s, (uint32_t)n, NULL) == 0);
        struct spw_sampling greedy = o;
        greedy.temperature = 0;
        CHECK(spw_sampler_pick(s, &greedy, logits, tokens, n_prompt, n_tokens) ==
              greedy_choice(&o, logits, n, tokens, n_prompt, n_tokens));
        check_behind_source(s, &greedy, logits, tokens, n_prompt, n_tokens, &seed);
        if (reference(&o, logits, n, tokens, n_prompt, n_tokens, p) < 1e-9)
            continue;
        double u = spw_philox_uniform(o.seed, o.stream, n_tokens), sum = 0;
        int expected = -1;
        bool close = false;
        for (int i = 0; i < n; i++) {
            sum += p[i];
            close |= fabs(sum - u) < 1e-9;
            if (expected < 0 && p[i] > 0 && sum > u)
                expected = i;
        }
        if (close || expected < 0)
            continue;
        n_compared++;
        int32_t got = spw_sampler_pick(s, &o, logits, tokens, n_prompt, n_tokens);
        CHECK_MSG(got == expected,
                  "n %d T %g k %u p %g min %g penalties %g %g %g: found %d, expected %d", n,
                  (double)o.temperature, o.top_k, (double)o.top_p, (double)o.min_p,
                  (double)o.repetition_penalty, (double)o.frequency_penalty,
                  (double)o.presence_penalty, got, expected);
    }
    spw_sampler_close(s);
    CHECK_MSG(n_compared > 2000, "only %d draws were clear of rounding", n_compared);
}

/* ---- closed forms ---- */

static void test_distribution(void)
{
    enum { N = 12, DRAWS = 60000 };
    static const struct spw_sampling cases[] = {
        {.temperature = 1, .seed = 1},
        {.temperature = 0.5f, .seed = 2},
        {.temperature = 2, .top_k = 5, .seed = 3},
        {.temperature = 1, .top_p = 0.9f, .seed = 4},
        {.temperature = 1, .min_p = 0.05f, .seed = 5},
        {.temperature = 1.5f, .top_k = 8, .top_p = 0.8f, .min_p = 0.1f, .seed = 6},
    };
    struct spw_sampler *s;
    CHECK(spw_sampler_open(&s, N, NULL) == 0);
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 7) % N) * 0.4f;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double p[512], count[N] = {0}, chi = 0;
        int df = -1;
        struct spw_sampling o = cases[c];
        reference(&o, logits, N, NULL, 0, 0, p);
        for (; o.stream < DRAWS; o.stream++)
            count[spw_sampler_pick(s, &o, logits, NULL, 0, 0)]++;
        for (int i = 0; i < N; i++) {
            CHECK(p[i] > 0 || count[i] == 0);
            if (p[i] == 0)
                continue;
            double expected = DRAWS * p[i];
            chi += (count[i] - expected) * (count[i] - expected) / expected;
            df++;
        }
        CHECK_MSG(df > 0 && chi < chi_square_limit(df), "case %zu: chi %f of %d", c, chi, df);
    }
    spw_sampler_close(s);
}

static void test_greedy(void)
{
    struct spw_sampler *s;
    struct spw_sampling greedy = {0};
    CHECK(spw_sampler_open(&s, 5, NULL) == 0);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 3, 0}, NULL, 0, 0) == 1);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){NAN, -1, NAN, -2, NAN}, NULL, 0, 0) == -EDOM);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){0, INFINITY, 9, INFINITY, 0}, NULL, 0, 0) == 1);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){0, 1, 2, 9, NAN}, NULL, 0, 0) == -EDOM);
    /* The penalty applies to the greedy choice, too: each token once; negative logits decrease. */
    greedy.repetition_penalty = 2;
    int32_t seen[] = {1, 1, 1};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 0, 0}, seen, 3, 3) == 2);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 4.5f, 2, 0, 0}, seen, 3, 3) == 1);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){-3, -2, -3, -5, -5}, seen, 0, 3) == 0);
    /* Ids that are not tokens are ignored. */
    int32_t outside[] = {-1, 5, INT32_MAX};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 3, 0}, outside, 0, 3) == 1);
    greedy = (struct spw_sampling){.frequency_penalty = 0.5f, .presence_penalty = 0.5f};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 3, 0}, outside, 0, 3) == 1);
    /* Only generated tokens count: token 1 was generated twice, and loses 1.5. */
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 0, 0}, seen, 3, 3) == 1);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 0, 0}, seen, 1, 3) == 2);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 1.25f, 0, 0}, seen, 1, 3) == 1);
    /* A bias comes before the repetition penalty, and changes no minus infinity. */
    struct spw_logit_bias biases[] = {{2, 100}, {-1, 100}, {5, 100}, {3, 4}};
    greedy =
        (struct spw_sampling){.logit_bias = biases, .n_logit_bias = 4, .repetition_penalty = 2};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, NAN, 2, 0}, (int32_t[]){3}, 1, 1) == -EDOM);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, -INFINITY, 2.5f, 0}, (int32_t[]){3}, 1, 1) ==
          3);
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, -9, 2.5f, 0}, NULL, 0, 0) == 2);
    /* A suppressed token stays away, whatever its logit. */
    greedy = (struct spw_sampling){.rules.lists[SPW_SUPPRESS] = {(int32_t[]){2}, 1}};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, INFINITY, 2, 0}, NULL, 0, 0) == 1);
    greedy.rules.lists[SPW_SUPPRESS] = (struct spw_token_list){(int32_t[]){0, 1, 2, 3, 4}, 5};
    CHECK(spw_sampler_pick(s, &greedy, (float[]){1, 3, 2, 2, 0}, NULL, 0, 0) == -ENODATA);
    spw_sampler_close(s);
}

static void test_edges(void)
{
    struct spw_sampler *s;
    CHECK(spw_sampler_open(&s, 4, NULL) == 0);
    const float one[] = {-INFINITY, -INFINITY, 0, -INFINITY};
    const float none[] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const float mixed[] = {1, 5, 2, 5};
    const float infinite[] = {1, INFINITY, 2, 3};
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct spw_sampling o = {.temperature = 3, .top_k = 99, .seed = seed};
        CHECK(spw_sampler_pick(s, &o, one, NULL, 0, 0) == 2);
        CHECK(spw_sampler_pick(s, &o, none, NULL, 0, 0) == 0);
        CHECK(spw_sampler_pick(s, &o, infinite, NULL, 0, 0) == 1);
        o.top_k = 1; /* transformers keeps values equal to the k-th */
        CHECK(spw_sampler_pick(s, &o, mixed, NULL, 0, 0) % 2 == 1);
        o = (struct spw_sampling){.temperature = 1, .top_p = 1e-30f, .seed = seed};
        CHECK(spw_sampler_pick(s, &o, mixed, NULL, 0, 0) == 1); /* one value stays, the lower id */
        o = (struct spw_sampling){.temperature = 1, .min_p = 1, .seed = seed};
        CHECK(spw_sampler_pick(s, &o, mixed, NULL, 0, 0) % 2 == 1);
        o = (struct spw_sampling){.temperature = 1e-40f, .seed = seed};
        CHECK(spw_sampler_pick(s, &o, mixed, NULL, 0, 0) % 2 == 1);
        o = (struct spw_sampling){.temperature = 3e38f, .top_p = 0.999f, .seed = seed};
        CHECK(spw_sampler_pick(s, &o, mixed, NULL, 0, 0) < 4);
    }
    spw_sampler_close(s);
    CHECK(spw_sampler_open(&s, 0, NULL) == -EINVAL && !s);
    CHECK(spw_sampler_open(&s, UINT32_MAX, NULL) == -EINVAL && !s);
}

/* A draw depends on its position, not on earlier calls; a row of any shape costs O(vocab). */
static void test_places(void)
{
    enum { VOCAB = 262144, N = 24 };
    struct spw_sampler *s;
    CHECK(spw_sampler_open(&s, VOCAB, NULL) == 0);
    float *logits = malloc(VOCAB * sizeof *logits);
    int32_t tokens[N] = {0}, forward[N], again[N];
    struct spw_sampling o = {.temperature = 1, .top_k = VOCAB / 2, .top_p = 0.7f, .seed = 11};
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < VOCAB; i++)
            logits[i] = shape == 0 ? 0 : (float)(shape == 1 ? i : VOCAB - i) * 1e-5f;
        for (size_t i = 0; i < N; i++)
            forward[i] = spw_sampler_pick(s, &o, logits, tokens, i, i);
        for (size_t i = N; i-- > 0;)
            again[i] = spw_sampler_pick(s, &o, logits, tokens, i, i);
        CHECK(memcmp(forward, again, sizeof forward) == 0);
        CHECK(forward[0] != forward[1] || forward[1] != forward[2]);
    }
    o.seed = 12;
    CHECK(spw_sampler_pick(s, &o, logits, tokens, 3, 3) != forward[3]);
    o.seed = 11;
    CHECK(spw_sampler_pick(s, &o, logits, tokens, 3, 3) == forward[3]);
    o.stream = 1;
    CHECK(spw_sampler_pick(s, &o, logits, tokens, 3, 3) != forward[3]);
    free(logits);
    spw_sampler_close(s);
}

static void test_check(void)
{
    struct spw_error err = {0};
    const struct spw_logit_bias low = {3, -100}, high = {7, 100.5f}, none = {8, NAN};
    struct spw_sampling good[] = {{0},
                                  {.temperature = 1, .top_p = 1, .min_p = 1},
                                  {.temperature = 100, .repetition_penalty = 0.5f},
                                  {.presence_penalty = -2, .frequency_penalty = 2},
                                  {.logit_bias = &low, .n_logit_bias = 1}};
    struct spw_sampling bad[] = {{.temperature = -1},
                                 {.temperature = NAN},
                                 {.temperature = INFINITY},
                                 {.top_p = 1.5f},
                                 {.top_p = -0.1f},
                                 {.top_p = NAN},
                                 {.min_p = 2},
                                 {.min_p = NAN},
                                 {.repetition_penalty = -1},
                                 {.repetition_penalty = INFINITY},
                                 {.presence_penalty = 2.1f},
                                 {.presence_penalty = NAN},
                                 {.frequency_penalty = -2.1f},
                                 {.logit_bias = &high, .n_logit_bias = 1},
                                 {.logit_bias = &none, .n_logit_bias = 1}};
    static const char *named[] = {"temperature",
                                  "temperature",
                                  "temperature",
                                  "top_p",
                                  "top_p",
                                  "top_p",
                                  "min_p",
                                  "min_p",
                                  "repetition_penalty",
                                  "repetition_penalty",
                                  "presence_penalty",
                                  "presence_penalty",
                                  "frequency_penalty",
                                  "logit_bias: token 7",
                                  "logit_bias: token 8"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(spw_sampling_check(&good[i], &err) == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spw_error_clear(&err);
        CHECK(spw_sampling_check(&bad[i], &err) == -EINVAL);
        CHECK_MSG(strstr(err.text, named[i]), "%s", err.text);
    }
}

static void test_allocation(void)
{
    for (int64_t n = 0;; n++) {
        struct spw_sampler *s;
        spw_alloc_fail_nth(n);
        int rc = spw_sampler_open(&s, 1000, NULL);
        spw_alloc_fail_nth(-1);
        spw_sampler_close(s);
        CHECK(spw_alloc_outstanding() == 0);
        if (rc == 0)
            break;
        CHECK(rc == -ENOMEM && !s && n < 10);
    }
}

int main(void)
{
    uint64_t seed = check_seed();
    test_philox_vectors();
    test_uniform();
    test_against_reference(seed);
    test_times(seed);
    test_distribution();
    test_greedy();
    test_edges();
    test_places();
    test_check();
    test_allocation();
    return check_done();
}
