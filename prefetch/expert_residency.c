/* Experts and frames: see expert_residency.h. */
#include "prefetch/expert_residency.h"

#include <math.h>
#include <string.h>

enum { HALF_LIFE = 256 };
#define LARGE_WEIGHT 0x1p400

int spw_expert_residency_init(struct spw_expert_residency *r, uint32_t n_experts, uint32_t n_frames,
                              uint32_t n_layers)
{
    *r = (struct spw_expert_residency){.n_experts = n_experts,
                                       .n_frames = n_frames,
                                       .frames = spw_alloc(n_experts * sizeof *r->frames),
                                       .experts = spw_alloc(n_frames * sizeof *r->experts),
                                       .counts = spw_alloc_zero(n_experts, sizeof *r->counts),
                                       .visited = spw_alloc_zero(n_experts, sizeof *r->visited),
                                       .weight = 1,
                                       .growth = exp2(1.0 / HALF_LIFE / spw_max_u32(n_layers, 1))};
    if (!r->frames || !r->experts || !r->counts || !r->visited) {
        spw_expert_residency_free(r);
        return -ENOMEM;
    }
    spw_expert_residency_clear(r);
    return 0;
}

void spw_expert_residency_free(struct spw_expert_residency *r)
{
    spw_free(r->frames);
    spw_free(r->experts);
    spw_free(r->counts);
    spw_free(r->visited);
    *r = (struct spw_expert_residency){0};
}

void spw_expert_residency_clear(struct spw_expert_residency *r)
{
    memset(r->frames, 0xff, r->n_experts * sizeof *r->frames);
    memset(r->experts, 0xff, r->n_frames * sizeof *r->experts);
}

/* Counts choices. The weight of a choice grows, which is the same as that all older ones fade. */
static void count(struct spw_expert_residency *r, const struct spw_expert_visit *v, uint32_t n)
{
    r->n_visits++;
    r->weight *= r->growth;
    for (uint32_t i = 0; i < n; i++) {
        r->counts[v[i].expert] += r->weight * v[i].n_rows;
        r->visited[v[i].expert] = r->n_visits;
    }
    if (r->weight < LARGE_WEIGHT)
        return;
    for (uint32_t e = 0; e < r->n_experts; e++)
        r->counts[e] /= r->weight;
    r->weight = 1;
}

/* Whether the expert in frame a leaves before the one in frame b. */
static bool leaves_before(const struct spw_expert_residency *r, uint32_t a, uint32_t b)
{
    const uint32_t x = r->experts[a], y = r->experts[b];
    const bool x_now = r->visited[x] == r->n_visits, y_now = r->visited[y] == r->n_visits;
    if (x_now != y_now)
        return y_now;
    return r->counts[x] < r->counts[y] || (!(r->counts[y] < r->counts[x]) && x < y);
}

static uint32_t choose_frame(const struct spw_expert_residency *r)
{
    uint32_t best = 0;
    for (uint32_t f = 0; f < r->n_frames; f++) {
        if (r->experts[f] == SPW_NO_EXPERT)
            return f;
        if (leaves_before(r, f, best))
            best = f;
    }
    return best;
}

void spw_expert_residency_visit(struct spw_expert_residency *r, struct spw_expert_visit *v,
                                uint32_t n)
{
    count(r, v, n);
    for (uint32_t i = 0; i < n; i++) { /* before anything leaves */
        v[i].frame = r->frames[v[i].expert];
        v[i].missed = v[i].frame == SPW_NO_FRAME;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].missed)
            continue;
        const uint32_t frame = choose_frame(r), old = r->experts[frame];
        if (old != SPW_NO_EXPERT)
            r->frames[old] = SPW_NO_FRAME;
        r->experts[frame] = v[i].expert;
        r->frames[v[i].expert] = frame;
        v[i].frame = frame;
    }
}
