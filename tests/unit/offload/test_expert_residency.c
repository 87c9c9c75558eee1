/* Which experts lie in frames, against a plain account of every choice: who was missed, who left,
 * and that nobody left who was chosen more often, old choices fading. */
#include "prefetch/expert_residency.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 60, LAYERS = 3, VISITS = 600, HALF_LIFE = 256 };

static uint64_t seed;

/* Every choice since the beginning. */
static struct {
    double start[MOST_EXPERTS];
    uint32_t rows[VISITS][MOST_EXPERTS];
    uint32_t frame[MOST_EXPERTS]; /* or SPW_NO_FRAME */
    uint32_t n_experts, n_frames;
} plain;

/* The choices of an expert; each counts half as much HALF_LIFE visits of every layer later. */
static double score(uint32_t e, uint32_t now)
{
    double sum = plain.start[e] * exp2(-(double)(now + 1) / HALF_LIFE / LAYERS);
    for (uint32_t v = 0; v <= now; v++)
        sum += plain.rows[v][e] * exp2(-(double)(now - v) / HALF_LIFE / LAYERS);
    return sum;
}

static uint32_t n_in_frames(void)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < plain.n_experts; e++)
        n += plain.frame[e] != SPW_NO_FRAME;
    return n;
}

/* `e` may leave for another expert in this visit. */
static void check_leaves(uint32_t e, uint32_t now)
{
    const bool chosen = plain.rows[now][e];
    CHECK(n_in_frames() == plain.n_frames); /* no frame is empty */
    for (uint32_t x = 0; x < plain.n_experts; x++) {
        if (plain.frame[x] == SPW_NO_FRAME || x == e)
            continue;
        CHECK(!chosen || plain.rows[now][x]);
        if (chosen == (plain.rows[now][x] > 0))
            CHECK(score(e, now) <= score(x, now) * (1 + 1e-9));
    }
}

static uint32_t in_frame(uint32_t frame)
{
    for (uint32_t e = 0; e < plain.n_experts; e++)
        if (plain.frame[e] == frame)
            return e;
    return SPW_NO_EXPERT;
}

static void visit(struct spw_expert_residency *r, uint32_t now)
{
    struct spw_expert_visit v[MOST_EXPERTS];
    uint32_t n = 0, per_layer = plain.n_experts / LAYERS, first = now % LAYERS * per_layer;
    uint32_t share = (uint32_t)check_range(&seed, 1, 6);
    for (uint32_t e = first; e < first + per_layer; e++)
        if (!n || check_random(&seed) % share == 0) {
            v[n] = (struct spw_expert_visit){.expert = e,
                                             .n_rows = (uint32_t)check_range(&seed, 1, 5)};
            plain.rows[now][e] = v[n++].n_rows;
        }
    spw_expert_residency_visit(r, v, n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(v[i].missed == (plain.frame[v[i].expert] == SPW_NO_FRAME));
        CHECK(v[i].missed || v[i].frame == plain.frame[v[i].expert]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].missed)
            continue;
        uint32_t old = in_frame(v[i].frame);
        CHECK(v[i].frame < plain.n_frames);
        if (old != SPW_NO_EXPERT) {
            check_leaves(old, now);
            plain.frame[old] = SPW_NO_FRAME;
        }
        plain.frame[v[i].expert] = v[i].frame;
    }
    CHECK(!memcmp(r->in.frames, plain.frame, plain.n_experts * sizeof *plain.frame));
}

/* What a later run begins with. */
static void check_counts(const struct spw_expert_residency *r)
{
    double counts[MOST_EXPERTS];
    spw_expert_residency_counts(r, counts);
    for (uint32_t e = 0; e < plain.n_experts; e++)
        CHECK(fabs(counts[e] - score(e, VISITS - 1)) <= 1e-9 * score(e, VISITS - 1));
}

static void check_one(bool has_counts)
{
    struct spw_expert_residency r;
    memset(&plain, 0, sizeof plain);
    memset(plain.frame, 0xff, sizeof plain.frame);
    plain.n_experts = LAYERS * (uint32_t)check_range(&seed, 1, MOST_EXPERTS / LAYERS);
    plain.n_frames = (uint32_t)check_range(&seed, 1, plain.n_experts);
    for (uint32_t e = 0; e < plain.n_experts && has_counts; e++)
        plain.start[e] = (double)check_range(&seed, 0, 400);
    CHECK(!spw_expert_residency_init(&r, plain.n_experts, plain.n_frames, LAYERS,
                                     has_counts ? plain.start : NULL));
    for (uint32_t now = 0; now < VISITS; now++)
        visit(&r, now);
    check_counts(&r);
    spw_expert_residency_clear(&r);
    for (uint32_t e = 0; e < plain.n_experts; e++)
        CHECK(r.in.frames[e] == SPW_NO_FRAME);
    spw_expert_residency_free(&r);
}

/* Weights of choices grow without end: counts are divided before they overflow. */
static void check_long(void)
{
    enum { N = 4000000 };
    struct spw_expert_residency r;
    CHECK(!spw_expert_residency_init(&r, 4, 2, 1, NULL));
    for (uint32_t i = 0; i < N; i++) {
        struct spw_expert_visit v = {.expert = i % 4, .n_rows = 1 + i % 4};
        spw_expert_residency_visit(&r, &v, 1);
    }
    for (int e = 0; e < 4; e++)
        CHECK(isfinite(r.in.values[e]) && r.in.values[e] > 0);
    CHECK(r.in.frames[3] != SPW_NO_FRAME); /* chosen last, and by the most rows */
    spw_expert_residency_free(&r);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    seed = check_seed();
    for (int i = 0; i < 6; i++)
        check_one(i % 2);
    check_long();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
