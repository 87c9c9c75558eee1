/* The rules of drafts: the text's longest match against a search of all places; the length of a
 * draft against the best of all lengths; what is measured changes odds and costs towards it. */
#include "runtime/rules/draft_length.h"
#include "runtime/rules/draft_text.h"
#include "tests/check.h"

#include <math.h>

/* ---- the text ---- */

enum { TOKENS = 400 };

static uint32_t match_at(const int32_t *t, uint32_t n, uint32_t next)
{
    uint32_t k = 0;
    while (k < next && k < SPW_DRAFT_MOST_MATCH && t[next - 1 - k] == t[n - 1 - k])
        k++;
    return k;
}

/* The newest place of the longest match, and how many matches there are. */
static uint32_t find_best(const int32_t *t, uint32_t n, uint32_t *match, uint32_t *n_matches)
{
    uint32_t best = 0;
    *match = *n_matches = 0;
    for (uint32_t next = SPW_DRAFT_LEAST_MATCH; next < n; next++) {
        const uint32_t k = match_at(t, n, next);
        *n_matches += k >= SPW_DRAFT_LEAST_MATCH;
        if (k >= SPW_DRAFT_LEAST_MATCH && k >= *match) {
            *match = k;
            best = next;
        }
    }
    return best;
}

static void check_text(uint64_t *seed)
{
    int32_t t[TOKENS], out[9];
    enum { LOOKS_AT = 64 }; /* places */
    uint32_t match, expected, n_matches;
    struct spw_draft_text d;
    const uint64_t vocab = check_range(seed, 2, 9);
    CHECK(!spw_draft_text_open(&d, TOKENS));
    for (uint32_t n = 1; n <= TOKENS; n++) {
        const bool copies = n > 40 && check_random(seed) % 8;
        t[n - 1] = copies ? t[n - 1 - n / 3] : (int32_t)(check_random(seed) % vocab);
        if (check_random(seed) % 3)
            continue; /* several tokens at once */
        const uint32_t got = spw_draft_text_propose(&d, t, n, out, 9, &match);
        const uint32_t next = find_best(t, n, &expected, &n_matches);
        CHECK(got == (expected ? 9 : 0));
        CHECK(match <= expected && (n_matches > LOOKS_AT || match == expected));
        if (match < expected)
            continue; /* further back than the index looks */
        for (uint32_t i = 0; i < got; i++)
            CHECK(out[i] == (next + i < n ? t[next + i] : out[next + i - n]));
    }
    spw_draft_text_close(&d);
}

/* ---- the length ---- */

/* Of one source. */
static uint32_t length_of(const struct spw_draft_costs *c, const struct spw_draft_step *s, double p,
                          double each, uint32_t most)
{
    uint32_t source;
    return spw_draft_length(c, s, &(struct spw_draft_offer){p, each, most}, 1, &source);
}

/* Steps take 0.1 seconds. On the line between the numbers that were measured, 0 rows among them;
 * above all of them on the line from 0. */
static double cost_of(const struct spw_draft_costs *c, uint32_t n)
{
    double at[SPW_DRAFT_ROWS + 1] = {1}, times = 1;
    uint32_t last = 0;
    for (uint32_t i = 1; i <= SPW_DRAFT_ROWS; i++) {
        if (!(c->times[i] > 0))
            continue;
        times = fmax(c->times[i], 1);
        for (uint32_t k = last + 1; k <= i; k++)
            at[k] = at[last] + (times - at[last]) * (k - last) / (i - last);
        last = i;
    }
    return n <= last ? at[n]
                     : fmax(last ? 1 + (times - 1) * n / last : 1, 1 + n * c->row_seconds / 0.1);
}

/* The best of all lengths that may be tried, against a search of them. */
static void check_length(uint64_t *seed)
{
    struct spw_draft_costs c = {.n_sessions = 2, .seconds = 0.1, .n_plain = 2};
    const double each = (double)check_range(seed, 0, 20) / 1000; /* of a step of 0.1 */
    const struct spw_draft_step s = {2, (uint32_t)check_range(seed, 0, 8), 1.5, 0.02};
    const double p = (double)check_range(seed, 0, 100) / 100;
    const uint32_t most = (uint32_t)check_range(seed, 0, SPW_DRAFT_MOST);
    uint32_t last = 0;
    for (uint32_t i = 1; i <= SPW_DRAFT_ROWS; i++) {
        c.times[i] = check_random(seed) % 3 ? 0 : (double)check_range(seed, 90, 400) / 100;
        last = c.times[i] > 0 ? i : last;
    }
    c.spent = (double)check_range(seed, 0, 40) + 0.0123; /* no cost is just bearable */
    const double now = cost_of(&c, s.n_beside) + 0.2, bearable = c.spent * 0.01 / 0.1;
    const double longest = bearable + 1 - 0.3 / sqrt(2); /* two steps say little about the next */
    c.row_seconds = check_random(seed) % 2 ? 0 : (double)check_range(seed, 1, 50) / 1000;
    const double first = c.row_seconds > 0 ? fmin(3 * c.row_seconds / 0.1, 1) : 1;
    double tokens = s.n_tokens + 1, best = 0, rates[SPW_DRAFT_MOST + 1] = {1.02 * tokens / now};
    best = rates[0];
    for (uint32_t k = 1; k <= most; k++) {
        const double times = cost_of(&c, s.n_beside + k) + 0.2 + k * each / 0.1;
        if (s.n_beside + k > 2 * last + 1)
            break;
        tokens += pow(p, k);
        if (times > longest || (!last && bearable < first))
            continue; /* too much to lose */
        rates[k] = tokens / times;
        best = fmax(best, rates[k]);
    }
    const uint32_t got = length_of(&c, &s, p, each, most);
    CHECK(got <= most && rates[got] >= best * (1 - 1e-12)); /* rounding decides between equals */
    c.n_plain = 1;
    CHECK(!length_of(&c, &s, p, each, most));
}

static void test_costs(void)
{
    struct spw_draft_costs c = {.spent = 1e9};
    const struct spw_draft_step alone = {.n_sessions = 1};
    spw_draft_costs_note(&c, 1, 3, 1.0); /* without a step to compare with */
    CHECK(!(c.times[3] > 0) && !length_of(&c, &alone, 0.9, 0, 4));
    spw_draft_costs_note(&c, 1, 0, 3.0); /* the first step is slow */
    CHECK(!length_of(&c, &alone, 0.9, 0, 4));
    spw_draft_costs_note(&c, 1, 0, 1.0);
    CHECK(fabs(c.seconds - 1) < 1e-9);
    CHECK(length_of(&c, &alone, 0.9, 0, 4) == 1); /* then 3, ... */
    spw_draft_costs_note(&c, 1, 1, 1.0);
    CHECK(length_of(&c, &alone, 0.9, 0, 4) == 3);
    spw_draft_costs_note(&c, 1, 3, 1.0);
    CHECK(length_of(&c, &alone, 0.9, 0, 4) == 4);
    for (int i = 0; i < 40; i++)
        spw_draft_costs_note(&c, 1, 4, 9.0);
    CHECK(c.times[4] > 4.9 && length_of(&c, &alone, 0.9, 0, 4) == 3);
    for (int i = 0; i < 1000; i++) /* it is tried again, and counts as what was measured */
        spw_draft_costs_note(&c, 1, 0, 1.0);
    CHECK(length_of(&c, &alone, 0.9, 0, 4) == 4);
    const double lost = c.lost;
    spw_draft_costs_note(&c, 1, 4, 4.0);
    CHECK(fabs(c.lost - lost - 3) < 0.1 && length_of(&c, &alone, 0.5, 0, 4) < 4);
    spw_draft_costs_note(&c, 1, 0, 100); /* the machine was busy with something else */
    CHECK(c.seconds < 1.5);
    spw_draft_costs_note(&c, 2, 0, 1.0);
    CHECK(c.n_sessions == 2 && c.times[4] > 0 && c.lost > 150);
}

/* What a run has lost so far leaves 0.35 of a step for the next drafts. */
static void test_account(void)
{
    struct spw_draft_costs c = {.n_sessions = 1,
                                .seconds = 1,
                                .n_plain = 100,
                                .spent = 100,
                                .lost = 0.65,
                                .times = {0, 1.2, 0, 0, 2}};
    const struct spw_draft_step alone = {.n_sessions = 1};
    struct spw_draft_offer offers[] = {{0.6, 0, 4}, {0.9, 0.1, 4}};
    uint32_t source;
    CHECK(fabs(spw_draft_costs_bearable(&c) - 0.35) < 1e-9);
    CHECK(spw_draft_length(&c, &alone, offers, 2, &source) == 1 && source == 1);
    offers[1].each = 0.2; /* too much, and nothing is lost for the other source */
    CHECK(spw_draft_length(&c, &alone, offers, 2, &source) == 0 && source == 0);
    CHECK(spw_draft_length(&c, &alone, offers, 1, &source) == 1);
    for (c.n_drafting = 0; length_of(&c, &alone, 0.5, 0, 1) && c.n_drafting < 200;)
        c.n_drafting++; /* a gain of a quarter is not relied on for ever */
    CHECK(c.n_drafting > 20 && c.n_drafting < 60);
    spw_draft_costs_note(&c, 1, 0, 0.7); /* a quicker machine is noticed at once */
    CHECK(fabs(c.seconds - 0.7) < 1e-9 && !c.n_drafting);
}

/* ---- whole runs, by a made-up clock ---- */

/* Requests one after the other, with prompts that take `prompt` steps each. Of the positions, `has`
 * of 100 have a match; the tokens after it stay with odds `stays`. k rows beside take 1 + each * k
 * steps, and what the clock says varies by a tenth; of a busy machine, sometimes by much more. */
struct run {
    uint32_t n_requests, n_tokens, prompt, has;
    double stays, each;
    /* An MTP layer beside the text: how likely its drafts stay, how long one takes, and what each
     * row takes longer for the layer. */
    double layer_stays, layer_each, layer_row;
    bool is_busy;
};

static double clock_of(const struct run *r, double seconds, uint64_t *seed)
{
    const double noise = (double)check_range(seed, 900, 1100) / 1000;
    return seconds * noise * (r->is_busy && check_random(seed) % 50 == 0 ? 4 : 1);
}

/* How long the run takes, in steps without drafts. */
static double play(const struct run *r, uint64_t *seed)
{
    struct spw_draft_costs c = {0};
    struct spw_draft_odds all = {{0}};
    double total = 0;
    for (uint32_t i = 0; i < r->n_requests; i++) {
        struct spw_draft_odds odds = all;
        uint32_t stayed;
        c.spent += clock_of(r, r->prompt * (1 + r->layer_row), seed);
        c.row_seconds = r->each / 2; /* rows of a prompt are cheaper */
        total += r->prompt * (1 + r->layer_row);
        for (uint32_t at = 1; at < r->n_tokens; at += 1 + stayed) {
            const struct spw_draft_step s = {.n_sessions = 1};
            const bool has = check_random(seed) % 100 < r->has;
            const uint32_t match = 3 + (uint32_t)(check_random(seed) % 30);
            const uint32_t most = spw_min_u32(r->n_tokens - at - 1, SPW_DRAFT_MOST);
            const struct spw_draft_offer offers[] = {
                {spw_draft_odds_of(&odds, match), 0, has ? most : 0},
                {spw_draft_odds_of(&odds, SPW_DRAFT_BY_MODEL),
                 c.model_seconds > 0 ? c.model_seconds : 2 * r->layer_each * c.seconds,
                 r->layer_each > 0 ? most : 0}};
            uint32_t layer;
            const uint32_t k = spw_draft_length(&c, &s, offers, 2, &layer);
            const uint32_t class = layer ? SPW_DRAFT_BY_MODEL : match;
            const double seconds = 1 + r->layer_row + r->each * k;
            const double stays = layer ? r->layer_stays : r->stays;
            uint32_t right = 0; /* tokens after the match */
            while (right < 16 && (double)(check_random(seed) % 1000) < 1000 * stays)
                right++;
            stayed = spw_min_u32(k, right);
            if (layer)
                spw_draft_costs_note_model(&c, k, clock_of(r, r->layer_each * k, seed));
            spw_draft_costs_note(&c, 1, k, clock_of(r, seconds, seed));
            total += seconds + (layer ? r->layer_each * k : 0);
            if (!has && !layer)
                continue;
            const uint32_t seen = k ? stayed : right > 0;
            spw_draft_odds_note(&odds, class, seen, k ? stayed < k : !seen);
            spw_draft_odds_note(&all, class, seen, k ? stayed < k : !seen);
            if (k)
                spw_draft_costs_note_stayed(&c, stayed);
        }
    }
    return total / (r->n_requests * (r->prompt + r->n_tokens - 1.0));
}

/* No run takes more than a fiftieth longer than without drafts, and those whose drafts stay take
 * less. A busy machine hides a part of the costs. The keys and values of a layer take a 200th of
 * the run, drafted or not; what a draft of it takes is known before the first one, and doubled to
 * be safe. */
static void test_runs(bool is_busy, uint64_t *seed)
{
    static const double odds[] = {0, 0.2, 0.5, 0.8, 0.95}, rows[] = {0, 0.05, 0.2, 0.5, 1};
    static const uint32_t lengths[] = {8, 64, 300}, prompts[] = {1, 10, 100};
    static const double layers[][2] = {{0, 0}, {0, 0.05}, {0.3, 0.1}, {0.6, 0.4}, {0.9, 0.05}};
    enum { RUNS = 5 * 5 * 3 * 3 * 2 };
    for (int i = 0; i < 5 * RUNS; i++) {
        const double *layer = layers[i / RUNS];
        const struct run r = {.stays = odds[i % 5],
                              .each = rows[i / 5 % 5],
                              .n_tokens = lengths[i / 25 % 3],
                              .prompt = prompts[i / 75 % 3],
                              .n_requests = i / 225 % 2 ? 8 : 1,
                              .layer_stays = layer[0],
                              .layer_each = layer[1],
                              .layer_row = layer[1] > 0 ? 0.005 : 0,
                              .has = (uint32_t)check_range(seed, 20, 100),
                              .is_busy = is_busy};
        const double t = play(&r, seed);
        CHECK_MSG(t < (is_busy ? 1.05 : 1.02),
                  "%g stay, %g a row, %u of %u tokens, %g of a layer stay, %g each: %g", r.stays,
                  r.each, r.n_requests, r.n_tokens, r.layer_stays, r.layer_each, t);
    }
    const struct run copy = {.stays = 0.97,
                             .each = 0.05,
                             .n_tokens = 1000,
                             .prompt = 50,
                             .has = 100,
                             .n_requests = 1,
                             .is_busy = is_busy};
    const double t = play(&copy, seed);
    CHECK_MSG(t < (is_busy ? 0.5 : 0.3), "%g", t);
    struct run layer = copy; /* which is right where the text is wrong */
    layer.stays = 0.1;
    layer.layer_stays = 0.9;
    layer.layer_each = 0.05;
    layer.layer_row = 0.005;
    double by_layer = 0;
    for (int i = 0; i < 10; i++)
        by_layer += play(&layer, seed) / 10;
    CHECK_MSG(by_layer < (is_busy ? 0.6 : 0.45), "%g", by_layer);
}

static void test_odds(void)
{
    struct spw_draft_odds o = {{0}};
    const double before = spw_draft_odds_of(&o, 20), other = spw_draft_odds_of(&o, 3);
    CHECK(other < before);
    for (int i = 0; i < 100; i++)
        spw_draft_odds_note(&o, 20, 5, false);
    CHECK(spw_draft_odds_of(&o, 20) > 0.95 && spw_draft_odds_of(&o, 20) <= 1);
    for (int i = 0; i < 100; i++)
        spw_draft_odds_note(&o, 20, 0, true);
    CHECK(spw_draft_odds_of(&o, 20) < 0.05 && spw_draft_odds_of(&o, 20) >= 0);
    CHECK(fabs(spw_draft_odds_of(&o, 3) - other) < 1e-12);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    for (struct check_draws d = check_draws_of(argc, argv, 200); check_another(&d);) {
        check_text(&seed);
        check_length(&seed);
    }
    test_runs(false, &seed);
    test_runs(true, &seed);
    test_costs();
    test_account();
    test_odds();
    return check_done();
}
