/* The values of experts in frames: see expert_residency.h. */
#include "prefetch/expert_residency.h"

#include <math.h>

enum { HALF_LIFE = 256 };
#define LARGE_WEIGHT 0x1p400

int spw_expert_residency_init(struct spw_expert_residency *r, uint32_t n_experts, uint32_t n_frames,
                              uint32_t n_layers, const double *counts)
{
    *r = (struct spw_expert_residency){.weight = 1,
                                       .growth = exp2(1.0 / HALF_LIFE / spw_max_u32(n_layers, 1))};
    SPW_TRY(spw_expert_frames_init(&r->in, n_experts, n_frames));
    for (uint32_t e = 0; counts && e < n_experts; e++)
        r->in.values[e] = counts[e];
    return 0;
}

void spw_expert_residency_free(struct spw_expert_residency *r)
{
    spw_expert_frames_free(&r->in);
}

void spw_expert_residency_clear(struct spw_expert_residency *r)
{
    spw_expert_frames_clear(&r->in);
}

void spw_expert_residency_counts(const struct spw_expert_residency *r, double *counts)
{
    for (uint32_t e = 0; e < r->in.n_experts; e++)
        counts[e] = r->in.values[e] / r->weight;
}

static void limit_weight(struct spw_expert_residency *r)
{
    if (r->weight < LARGE_WEIGHT)
        return;
    for (uint32_t e = 0; e < r->in.n_experts; e++)
        r->in.values[e] /= r->weight;
    r->weight = 1;
    spw_expert_frames_sort(&r->in);
}

/* The weight of a choice grows, which is the same as that all older ones fade. */
void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n)
{
    limit_weight(r);
    r->weight *= r->growth;
    spw_expert_frames_find(&r->in, v, n);
    for (uint32_t i = 0; i < n; i++)
        r->in.values[v[i].expert] += r->weight * v[i].n_rows;
    spw_expert_frames_fill(&r->in, v, n);
}
