/* The chances of experts: see expert_residency.h. */
#include "prefetch/expert_residency.h"

#include <math.h>
#include <string.h>

enum { MEMORY = 256, MOST_FIRST = 32, PRIOR = 4, HOST_MARGIN = 3 };

static uint32_t n_experts(const struct spw_expert_shape *s)
{
    return s->n_layers * s->n_experts;
}

/* The tables, one after the other in `memory`. Returns their bytes. */
static uint64_t lay_out(struct spw_expert_residency *r, void *memory)
{
    const struct spw_expert_shape *s = &r->shape;
    const uint64_t n = n_experts(s);
    uint64_t end = 0;
    r->shares = spw_expert_take(memory, &end, n * sizeof *r->shares);
    r->sums = spw_expert_take(memory, &end, s->n_layers * sizeof *r->sums);
    r->pairs = spw_expert_take(memory, &end, n * s->n_experts);
    r->n_first = spw_expert_take(memory, &end, n);
    r->latest = spw_expert_take(memory, &end, s->n_layers * s->n_kept * sizeof *r->latest);
    r->has_latest = spw_expert_take(memory, &end, s->n_layers * sizeof *r->has_latest);
    r->chances = spw_expert_take(memory, &end, s->n_experts * sizeof *r->chances);
    return end;
}

uint64_t spw_expert_residency_bytes(const struct spw_expert_shape *shape)
{
    const uint32_t n = n_experts(shape);
    return lay_out(&(struct spw_expert_residency){.shape = *shape}, NULL) +
           spw_expert_frames_bytes(n, n);
}

static void set_chances(struct spw_expert_residency *r, uint32_t layer);

int spw_expert_residency_init(struct spw_expert_residency *r, const struct spw_expert_shape *shape,
                              uint32_t n_frames, const double *counts, void *memory)
{
    const uint32_t n = n_experts(shape);
    *r = (struct spw_expert_residency){.shape = *shape};
    const uint64_t bytes = lay_out(r, NULL);
    if (!memory)
        memory = r->owned = spw_alloc(bytes + spw_expert_frames_bytes(n, n_frames));
    if (!memory)
        return -ENOMEM;
    memset(memory, 0, bytes);
    lay_out(r, memory);
    for (uint32_t e = 0; counts && e < n; e++) {
        r->shares[e] = counts[e];
        r->sums[e / shape->n_experts] += counts[e];
    }
    SPW_TRY(spw_expert_frames_init(&r->in, n, n_frames, (uint8_t *)memory + bytes));
    for (uint32_t layer = 0; layer < shape->n_layers; layer++)
        set_chances(r, layer);
    return 0;
}

void spw_expert_residency_free(struct spw_expert_residency *r)
{
    spw_free(r->owned);
    *r = (struct spw_expert_residency){0};
}

void spw_expert_residency_clear(struct spw_expert_residency *r)
{
    spw_expert_frames_clear(&r->in);
}

void spw_expert_residency_counts(const struct spw_expert_residency *r, double *counts)
{
    memcpy(counts, r->shares, r->in.n_experts * sizeof *counts);
}

/* ---- counts ---- */

/* The visit has one row: so had the one before. */
static void count_pairs(struct spw_expert_residency *r, uint32_t layer,
                        const struct spw_expert_visit *v)
{
    const struct spw_expert_shape *s = &r->shape;
    const uint32_t first = layer * s->n_experts;
    for (uint32_t i = 0; i < s->n_kept; i++) {
        const uint32_t a = r->latest[layer * s->n_kept + i];
        uint8_t *pairs = r->pairs + (size_t)a * s->n_experts;
        if (r->n_first[a] == MOST_FIRST) {
            r->n_first[a] /= 2;
            for (uint32_t b = 0; b < s->n_experts; b++)
                pairs[b] /= 2;
        }
        r->n_first[a]++;
        for (uint32_t k = 0; k < s->n_kept; k++)
            pairs[v[k].expert - first]++;
    }
}

static void count_shares(struct spw_expert_residency *r, uint32_t layer,
                         const struct spw_expert_visit *v, uint32_t n, uint64_t choices)
{
    double *shares = r->shares + layer * r->shape.n_experts, *sum = &r->sums[layer];
    const double stays = *sum > MEMORY - 1 ? (MEMORY - 1) / *sum : 1;
    for (uint32_t e = 0; e < r->shape.n_experts; e++)
        shares[e] *= stays;
    for (uint32_t i = 0; i < n; i++)
        r->shares[v[i].expert] += (double)v[i].n_rows / (double)choices;
    *sum = *sum * stays + 1;
}

static void count(struct spw_expert_residency *r, uint32_t layer, const struct spw_expert_visit *v,
                  uint32_t n)
{
    const uint32_t n_kept = r->shape.n_kept;
    uint64_t choices = 0;
    for (uint32_t i = 0; i < n; i++)
        choices += v[i].n_rows;
    const bool one_row = choices == n_kept && n == n_kept;
    if (one_row && r->has_latest[layer])
        count_pairs(r, layer, v);
    for (uint32_t i = 0; i < n_kept && one_row; i++)
        r->latest[layer * n_kept + i] = v[i].expert;
    r->has_latest[layer] = one_row;
    count_shares(r, layer, v, n, choices);
}

/* ---- chances ---- */

/* One choice is spread over all experts: none is impossible. */
static double chance_by_share(const struct spw_expert_residency *r, uint32_t layer, uint32_t expert)
{
    const struct spw_expert_shape *s = &r->shape;
    return s->n_kept * (r->shares[expert] + 1.0 / s->n_experts) / (r->sums[layer] + 1);
}

static void set_chances(struct spw_expert_residency *r, uint32_t layer)
{
    const struct spw_expert_shape *s = &r->shape;
    const uint32_t first = layer * s->n_experts;
    const uint32_t *latest = r->latest + layer * s->n_kept;
    const uint32_t n_latest = r->has_latest[layer] ? s->n_kept : 0;
    double per_prior = n_latest ? 0 : 1.0 / PRIOR;
    for (uint32_t i = 0; i < n_latest; i++)
        per_prior += 1.0 / (r->n_first[latest[i]] + PRIOR) / n_latest;
    for (uint32_t e = 0; e < s->n_experts; e++)
        r->chances[e] = per_prior * PRIOR * chance_by_share(r, layer, first + e);
    for (uint32_t i = 0; i < n_latest; i++) {
        const uint8_t *pairs = r->pairs + (size_t)latest[i] * s->n_experts;
        const double each = 1.0 / (r->n_first[latest[i]] + PRIOR) / n_latest;
        for (uint32_t e = 0; e < s->n_experts; e++)
            r->chances[e] += each * pairs[e];
    }
    for (uint32_t e = 0; e < s->n_experts; e++)
        spw_expert_frames_set(&r->in, first + e, r->chances[e]);
}

void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n, bool on_host)
{
    const uint32_t layer = v->expert / r->shape.n_experts;
    spw_expert_frames_find(&r->in, v, n);
    count(r, layer, v, n);
    set_chances(r, layer);
    spw_expert_frames_fill(&r->in, v, n, on_host ? HOST_MARGIN : 0);
}
