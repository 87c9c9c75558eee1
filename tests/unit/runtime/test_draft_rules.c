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

static double cost_of(const struct spw_draft_costs *c, uint32_t n)
{
    while (n && !(c->times[n] > 0))
        n--;
    return n ? fmax(c->times[n], 1) : 1;
}

static void check_length(uint64_t *seed)
{
    struct spw_draft_costs c = {.n_sessions = 2, .seconds = 0.1};
    const double each = (double)check_range(seed, 0, 20) / 1000; /* of a step of 0.1 */
    const struct spw_draft_step s = {2, (uint32_t)check_range(seed, 0, 8), 1.5, 0.02};
    const double p = (double)check_range(seed, 0, 100) / 100;
    const uint32_t most = (uint32_t)check_range(seed, 0, SPW_DRAFT_MOST);
    for (int i = 1; i <= SPW_DRAFT_ROWS; i++)
        c.times[i] = check_random(seed) % 3 ? (double)check_range(seed, 90, 400) / 100 : 0;
    double tokens = 1, best = 0, rates[SPW_DRAFT_MOST + 1];
    for (uint32_t k = 0; k <= most; k++) {
        const double times = cost_of(&c, s.n_drafts + k) + 0.2 + k * each / 0.1;
        tokens += k ? pow(p, k) : 0;
        rates[k] = (k ? 1 : 1.02) * (tokens + s.n_tokens) / times;
        best = fmax(best, rates[k]);
    }
    const uint32_t got = spw_draft_length(&c, &s, p, each, most);
    CHECK(got <= most && rates[got] >= best * (1 - 1e-12)); /* rounding decides between equals */
    c.seconds = 0;
    CHECK(!spw_draft_length(&c, &s, p, each, most));
}

static void test_costs(void)
{
    struct spw_draft_costs c = {0};
    const struct spw_draft_step alone = {.n_sessions = 1};
    spw_draft_costs_note(&c, 1, 3, 1.0); /* without a step to compare with */
    CHECK(!(c.times[3] > 0) && !spw_draft_length(&c, &alone, 0.9, 0, 4));
    spw_draft_costs_note(&c, 1, 0, 1.0);
    CHECK(spw_draft_length(&c, &alone, 0.9, 0, 4) == 4);
    for (int i = 0; i < 40; i++)
        spw_draft_costs_note(&c, 1, 4, 9.0);
    CHECK(c.times[4] > 8.5 && spw_draft_length(&c, &alone, 0.9, 0, 4) == 3);
    for (int i = 0; i < 1000; i++) /* it is tried again */
        spw_draft_costs_note(&c, 1, 0, 1.0);
    CHECK(spw_draft_length(&c, &alone, 0.9, 0, 4) == 4);
    spw_draft_costs_note(&c, 2, 0, 1.0);
    CHECK(c.n_sessions == 2 && !(c.times[4] > 0));
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
    test_costs();
    test_odds();
    return check_done();
}
