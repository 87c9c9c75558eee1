/* How many tokens to draft, and from which source: see draft_length.h. */
#include "runtime/rules/draft_length.h"

#include <math.h>
#include <string.h>

static const double weight = 0.25;     /* of a new measurement in the mean */
static const double fading = 0.995;    /* of what was measured is left after a step without it */
static const double doubt = 0.3;       /* a single step may take so much less than is measured */
static const double quicker = 0.8;     /* of the mean: the machine has become faster */
static const double least_gain = 1.02; /* in tokens a second, for the first draft */
static const double most_lost = 0.01;  /* drafts may cost this part of all time */
static const double reserve = 8;       /* and so many steps of what they have saved before */
static const double learns = 0.1;      /* odds move by this part of the distance to 0 or 1 */

/* The running mean of a time. A new time that is much longer counts less: another program may have
 * held up the machine. */
static double mix(double old, double new, double w)
{
    return old > 0 ? old + w * (fmin(new, 1.25 * old) - old) : new;
}

/* ---- costs ---- */

/* The highest number of rows up to n whose cost was measured; *times: this cost. */
static uint32_t measured(const struct spw_draft_costs *c, uint32_t n, double *times)
{
    while (n && !(c->times[n] > 0))
        n--;
    *times = n ? fmax(c->times[n], 1) : 1;
    return n;
}

/* How many times as long as a step without additional rows a step with n_beside of them takes. Not
 * measured: on the line between the two nearest numbers of rows that were measured; above all of
 * these on the line through 0 rows, but no less than so many rows of a prompt. */
static double cost(const struct spw_draft_costs *c, uint32_t n_beside)
{
    const uint32_t n = spw_min_u32(n_beside, SPW_DRAFT_ROWS);
    const double least = c->seconds > 0 ? 1 + n * c->row_seconds / c->seconds : 1;
    double low, high;
    const uint32_t before = measured(c, n, &low);
    uint32_t after = n;
    while (after < SPW_DRAFT_ROWS && !(c->times[after] > 0))
        after++;
    if (before == n)
        return low;
    if (!(c->times[after] > 0))
        return fmax(before ? 1 + (low - 1) * n / before : 1, least);
    high = fmax(c->times[after], 1);
    return low + (high - low) * (n - before) / (after - before);
}

/* The part of a measured cost that still counts. While no draft is tried, costs count less and
 * less, until drafts are tried again. */
static double stays(const struct spw_draft_costs *c)
{
    return pow(fading, c->n_since);
}

/* The same of the seconds of a step without drafts, while each step has drafts. */
static double still(const struct spw_draft_costs *c)
{
    return pow(fading, c->n_drafting);
}

/* The least that a step without drafts probably takes. Savings count by this: what was measured
 * badly is a loss, so there are more steps without drafts, and it is measured better. */
static double sure_seconds(const struct spw_draft_costs *c)
{
    enum { MOST = 50 }; /* steps that the mean knows */
    return still(c) * c->seconds * (1 - doubt / sqrt(spw_min_u32(c->n_plain, MOST)));
}

void spw_draft_costs_note(struct spw_draft_costs *c, uint32_t n_sessions, uint32_t n_beside,
                          double seconds)
{
    enum { MOST = 16 }; /* steps of the mean without drafts */
    const uint32_t n = spw_min_u32(n_beside, SPW_DRAFT_ROWS);
    c->spent += seconds;
    if (n_sessions != c->n_sessions)
        c->seconds = c->n_plain = 0;
    c->n_sessions = n_sessions;
    c->n_plain += !n;
    const bool is_quick = seconds < quicker * c->seconds;
    if (is_quick)
        c->seconds = seconds;
    else if (!n)
        c->seconds = mix(c->seconds, seconds, 1.0 / spw_min_u32(c->n_plain, MOST));
    c->n_drafting = n ? c->n_drafting + 1 : 0;
    if (n && c->n_plain) { /* a row never takes longer than a step */
        const double new = mix(c->times[n], seconds / c->seconds, fmax(weight, 1 - stays(c)));
        c->times[n] = fmin(new, 1 + n);
        c->lost += cost(c, n) * c->seconds - sure_seconds(c);
    }
    c->n_since = n ? 0 : c->n_since + 1;
    if (n && is_quick)
        c->n_plain = 0; /* nobody knows how long steps without drafts take now */
}

void spw_draft_costs_note_stayed(struct spw_draft_costs *c, uint32_t n)
{
    if (c->n_plain)
        c->lost -= n * sure_seconds(c) / c->n_sessions;
    c->lost = fmax(c->lost, -fmax(most_lost * c->spent, reserve * c->seconds));
}

void spw_draft_costs_note_model(struct spw_draft_costs *c, uint32_t n, double seconds)
{
    c->lost += seconds;
    c->model_seconds = n ? mix(c->model_seconds, seconds / n, weight) : c->model_seconds;
}

double spw_draft_costs_bearable(const struct spw_draft_costs *c)
{
    return most_lost * c->spent - c->lost;
}

void spw_draft_costs_note_read(struct spw_draft_costs *c, uint64_t n, double seconds)
{
    c->read_seconds = mix(c->read_seconds, seconds / (double)n, weight);
}

/* ---- odds ---- */

static const struct {
    uint32_t most; /* the longest match of the class */
    double start;  /* odds before anything was seen */
} matches[SPW_DRAFT_MATCHES] = {
    {3, 0.4}, {7, 0.6}, {15, 0.7}, {SPW_DRAFT_BY_MODEL - 1, 0.8}, {SPW_DRAFT_BY_MODEL, 0.7}};

static uint32_t class_of(uint32_t match)
{
    uint32_t i = 0;
    while (match > matches[i].most)
        i++;
    return i;
}

double spw_draft_odds_of(const struct spw_draft_odds *o, uint32_t match)
{
    const uint32_t i = class_of(match);
    return matches[i].start + o->shift[i];
}

void spw_draft_odds_note(struct spw_draft_odds *o, uint32_t match, uint32_t n_stayed, bool ended)
{
    double *shift = &o->shift[class_of(match)];
    for (; n_stayed; n_stayed--)
        *shift += learns * (1 - spw_draft_odds_of(o, match));
    if (ended)
        *shift -= learns * spw_draft_odds_of(o, match);
}

/* ---- the length ---- */

/* The most additional rows that may be tried: twice as many as were measured, and one. */
static uint32_t most_rows(const struct spw_draft_costs *c)
{
    double times;
    return 2 * measured(c, SPW_DRAFT_ROWS, &times) + 1;
}

/* What an additional row may cost before any was measured: a row among few is slower than a row
 * among the many of a prompt, but never slower than a step. In steps. */
static double first_cost(const struct spw_draft_costs *c)
{
    enum { SLOWER = 3 };
    return c->row_seconds > 0 ? fmin(SLOWER * c->row_seconds / c->seconds, 1) : 1;
}

/* Whether an offer has a length whose tokens a second pass *best, and which ones. *length: the best
 * one of those lengths that are bearable even if no draft stays; 0: none of them is, and what may
 * be lost is kept for this offer. */
static bool is_better(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                      const struct spw_draft_offer *o, double *best, uint32_t *length)
{
    const double others = before->seconds / c->seconds; /* times: of a step without drafts */
    const double now = cost(c, before->n_beside) + others;
    const double bearable = spw_draft_costs_bearable(c) / c->seconds;
    const double longest = bearable + sure_seconds(c) / c->seconds;
    const uint32_t rows = (uint32_t)spw_sub_u64(most_rows(c), before->n_beside);
    const double least = *best;
    double tokens = before->n_tokens + 1, next = 1, best_bearable = least;
    uint32_t n = 0;
    for (uint32_t k = 1; k <= spw_min_u32(o->most, rows); k++) {
        const double times = cost(c, before->n_beside + k) + others;
        const double by_model = k * o->each / c->seconds;
        next *= o->odds;
        tokens += next;
        const double rate = tokens / (now + stays(c) * (times - now) + by_model);
        *best = fmax(*best, rate);
        if (rate > best_bearable && times + by_model <= longest &&
            (most_rows(c) > 1 || first_cost(c) <= bearable)) {
            best_bearable = rate;
            n = k;
        }
    }
    if (*best > least)
        *length = n;
    return *best > least;
}

uint32_t spw_draft_length(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                          const struct spw_draft_offer *offers, uint32_t n, uint32_t *source)
{
    uint32_t length = 0;
    *source = 0;
    if (c->n_sessions != before->n_sessions || c->n_plain < 2)
        return 0;
    const double now = cost(c, before->n_beside) + before->seconds / c->seconds;
    double best = least_gain * (before->n_tokens + 1) / (still(c) * now);
    for (uint32_t i = 0; i < n; i++)
        *source = is_better(c, before, &offers[i], &best, &length) ? i : *source;
    *source = length ? *source : 0;
    return length;
}
