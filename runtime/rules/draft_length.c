/* How many tokens to draft: see draft_length.h. */
#include "runtime/rules/draft_length.h"

#include <math.h>
#include <string.h>

static const double weight = 0.25;  /* of a new measurement */
static const double forgets = 0.99; /* what a step leaves of the excess of a cost not measured */
static const double least_gain = 1.02;
static const double learns = 0.1; /* of the distance to what was seen */

static double mix(double old, double new)
{
    return old > 0 ? old + weight * (new - old) : new;
}

void spw_draft_costs_note(struct spw_draft_costs *c, uint32_t n_sessions, uint32_t n_drafts,
                          double seconds)
{
    if (n_sessions != c->n_sessions)
        *c = (struct spw_draft_costs){.n_sessions = n_sessions, .model_seconds = c->model_seconds};
    for (uint32_t i = 1; i <= SPW_DRAFT_ROWS; i++)
        if (c->times[i] > 1 && i != n_drafts)
            c->times[i] = 1 + (c->times[i] - 1) * forgets;
    if (!n_drafts)
        c->seconds = mix(c->seconds, seconds);
    else if (n_drafts <= SPW_DRAFT_ROWS && c->seconds > 0)
        c->times[n_drafts] = mix(c->times[n_drafts], seconds / c->seconds);
}

/* A number that was not measured costs as much as the next lower one. */
static double cost(const struct spw_draft_costs *c, uint32_t n_drafts)
{
    for (; n_drafts; n_drafts--)
        if (c->times[n_drafts] > 0)
            return fmax(c->times[n_drafts], 1);
    return 1;
}

/* ---- odds ---- */

static const struct {
    uint32_t most; /* tokens of the match */
    double start;
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

uint32_t spw_draft_length(const struct spw_draft_costs *c, const struct spw_draft_step *before,
                          double p, double each, uint32_t most)
{
    if (c->n_sessions != before->n_sessions || !(c->seconds > 0))
        return 0;
    const double spent = before->seconds / c->seconds, others = before->n_tokens;
    double tokens = 1, next = 1;
    double best = least_gain * (others + 1) / (cost(c, before->n_drafts) + spent);
    uint32_t length = 0;
    for (uint32_t k = 1; k <= most; k++) {
        const double times = cost(c, before->n_drafts + k) + spent + k * each / c->seconds;
        next *= p;
        tokens += next;
        if ((others + tokens) / times > best) {
            best = (others + tokens) / times;
            length = k;
        }
    }
    return length;
}

void spw_draft_costs_note_model(struct spw_draft_costs *c, double seconds)
{
    c->model_seconds = mix(c->model_seconds, seconds);
}
