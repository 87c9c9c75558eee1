/* A trace under several rules: see trace.h.
 *
 * Each rule gives an expert that is visited a value, and the least value leaves
 * (prefetch/expert_frames.h):
 *
 *   ours     prefetch/expert_residency.h
 *   static   the number of visits that use it, in all. The best ones never leave. The others come
 *            through one frame, one after the other
 *   recent   the number of this visit
 *   best     less, the later it is used again. Belady's rule: an expert in use cannot leave, all
 *            others may, and the one leaves that is not needed for the longest time. If a visit
 *            uses more experts than there are frames, they pass through the frames, and the last
 *            of them stay: those that are needed first. Where the host multiplies what is missed,
 *            an expert that is needed later than all others takes no frame. Where all visits do the
 *            one or all do the other, no other rule misses fewer
 *            (test_expert_replay compares with all ways there are) */
#include "runtime/experts/trace.h"

#include "prefetch/expert_residency.h"

#include <stdlib.h>
#include <string.h>

struct replay {
    const struct spw_expert_trace *t;
    uint32_t n, n_frames; /* experts of all layers */
    const struct spw_expert_costs *costs;
    struct spw_expert_visit *v; /* owned, [experts of a layer], as what follows */
    uint64_t *next;             /* [n_items]: the visit that uses the expert next */
    bool *stays;                /* [n]: STATIC has it */
};

/* ---- a visit ---- */

static uint64_t first_item(const struct spw_expert_trace *t, uint64_t visit)
{
    return visit ? t->ends[visit - 1] : 0;
}

/* Copies the visit, whose frames the rules fill in. */
static uint32_t take_visit(const struct replay *r, uint64_t visit)
{
    const uint64_t first = first_item(r->t, visit);
    const uint32_t n = (uint32_t)(r->t->ends[visit] - first);
    memcpy(r->v, &r->t->items[first], n * sizeof *r->v);
    return n;
}

/* The rows of a visit: each has chosen n_kept experts. */
static uint64_t count_rows(const struct replay *r, uint32_t n)
{
    uint64_t chosen = 0;
    for (uint32_t i = 0; i < n; i++)
        chosen += r->v[i].n_rows;
    return chosen / r->t->shape.n_kept;
}

/* Whether the host multiplies what the visit misses. */
static bool is_on_host(const struct replay *r, uint32_t n)
{
    return count_rows(r, n) <= r->costs->host_rows;
}

static void count(const struct replay *r, struct spw_expert_replay *out, enum spw_expert_rule rule,
                  uint32_t n)
{
    const uint64_t rows = count_rows(r, n);
    const bool token = rows == 1;
    for (uint32_t i = 0; i < n; i++) {
        if (!r->v[i].missed)
            continue;
        const uint64_t bytes = r->costs->bytes[r->v[i].expert];
        out->rules[rule].missed++;
        out->rules[rule].missed_bytes += bytes;
        out->rules[rule].token_missed += token;
        out->rules[rule].token_missed_bytes += token ? bytes : 0;
        if (rule == SPW_EXPERTS_OURS)
            r->costs->add_moved(r->costs->context, &r->v[i], rows, out->moved);
    }
}

/* ---- rules ---- */

static int replay_ours(const struct replay *r, struct spw_expert_replay *out)
{
    struct spw_expert_residency x;
    SPW_TRY(spw_expert_residency_init(&x, &r->t->shape, r->n_frames, r->t->counts, NULL));
    for (uint64_t i = 0; i < r->t->n_visits; i++) {
        const uint32_t n = take_visit(r, i);
        spw_expert_residency_visit(&x, r->v, n, is_on_host(r, n));
        count(r, out, SPW_EXPERTS_OURS, n);
    }
    spw_expert_residency_free(&x);
    return 0;
}

static int choose_best(const struct replay *r, const double *counts)
{
    uint32_t *order;
    SPW_TRY(spw_expert_order(&order, counts, r->n));
    const uint32_t n_stays = r->n_frames < r->n ? r->n_frames - 1 : r->n;
    for (uint32_t i = 0; i < n_stays; i++)
        r->stays[order[i]] = true;
    spw_free(order);
    return 0;
}

/* Sets r->stays. */
static int choose_static(const struct replay *r, bool *from_earlier_runs)
{
    *from_earlier_runs = false;
    for (uint32_t e = 0; e < r->n; e++)
        *from_earlier_runs |= r->t->counts[e] > 0;
    if (*from_earlier_runs)
        return choose_best(r, r->t->counts);
    double *totals = spw_alloc_zero(r->n, sizeof *totals);
    if (!totals)
        return -ENOMEM;
    for (uint64_t i = 0; i < r->t->n_items; i++)
        totals[r->t->items[i].expert]++;
    int rc = choose_best(r, totals);
    spw_free(totals);
    return rc;
}

static int replay_static(const struct replay *r, struct spw_expert_replay *out)
{
    bool *has_come = spw_alloc_zero(r->n, sizeof *has_come);
    int rc = has_come ? choose_static(r, &out->static_from_earlier_runs) : -ENOMEM;
    for (uint64_t i = 0; !rc && i < r->t->n_visits; i++) {
        const uint32_t n = take_visit(r, i);
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t e = r->v[k].expert;
            r->v[k].missed = !has_come[e];
            has_come[e] = r->stays[e];
        }
        count(r, out, SPW_EXPERTS_STATIC, n);
    }
    spw_free(has_come);
    return rc;
}

/* Fills r->next. */
static int find_next(const struct replay *r)
{
    uint64_t *latest = spw_alloc(r->n * sizeof *latest); /* the visit, going back from the end */
    if (!latest)
        return -ENOMEM;
    for (uint32_t e = 0; e < r->n; e++)
        latest[e] = UINT64_MAX;
    for (uint64_t visit = r->t->n_visits; visit--;)
        for (uint64_t i = first_item(r->t, visit); i < r->t->ends[visit]; i++) {
            r->next[i] = latest[r->t->items[i].expert];
            latest[r->t->items[i].expert] = visit;
        }
    spw_free(latest);
    return 0;
}

/* The least value first. */
static int compare_values(const void *a, const void *b, void *values)
{
    const uint32_t x = ((const struct spw_expert_visit *)a)->expert;
    const uint32_t y = ((const struct spw_expert_visit *)b)->expert;
    const double vx = ((const double *)values)[x], vy = ((const double *)values)[y];
    return vx != vy ? (vx > vy) - (vx < vy) : (x < y) - (x > y);
}

static int replay_by_time(const struct replay *r, struct spw_expert_replay *out,
                          enum spw_expert_rule rule)
{
    struct spw_expert_frames f;
    SPW_TRY(spw_expert_frames_init(&f, r->n, r->n_frames, NULL));
    for (uint64_t i = 0; i < r->t->n_visits; i++) {
        const uint32_t n = take_visit(r, i);
        const bool may = rule == SPW_EXPERTS_BEST && is_on_host(r, n);
        spw_expert_frames_find(&f, r->v, n);
        for (uint32_t k = 0; k < n; k++)
            f.values[r->v[k].expert] =
                rule == SPW_EXPERTS_RECENT ? (double)i : -(double)r->next[first_item(r->t, i) + k];
        if (rule == SPW_EXPERTS_BEST) /* the last experts that pass through the frames stay */
            qsort_r(r->v, n, sizeof *r->v, compare_values, f.values);
        spw_expert_frames_fill(&f, r->v, n, may);
        count(r, out, rule, n);
    }
    spw_expert_frames_free(&f);
    return 0;
}

/* ---- all of them ---- */

static int open_replay(struct replay *r)
{
    r->v = spw_alloc(r->t->shape.n_experts * sizeof *r->v);
    r->next = spw_alloc(r->t->n_items * sizeof *r->next);
    r->stays = spw_alloc_zero(r->n, sizeof *r->stays);
    return r->v && r->next && r->stays ? 0 : -ENOMEM;
}

static void count_used(const struct replay *r, struct spw_expert_replay *out)
{
    uint64_t n_token_visits = 0;
    for (uint64_t i = 0; i < r->t->n_visits; i++) {
        const uint32_t n = take_visit(r, i);
        const uint64_t rows = count_rows(r, n);
        const bool token = rows == 1;
        out->n_computed += r->v[0].expert < r->t->shape.n_experts ? rows : 0;
        out->used += n;
        out->token_used += token ? n : 0;
        n_token_visits += token;
    }
    out->n_tokens = n_token_visits / r->t->shape.n_layers;
}

static int replay_all(const struct replay *r, struct spw_expert_replay *out)
{
    SPW_TRY(replay_ours(r, out));
    SPW_TRY(replay_static(r, out));
    SPW_TRY(replay_by_time(r, out, SPW_EXPERTS_RECENT));
    SPW_TRY(find_next(r));
    return replay_by_time(r, out, SPW_EXPERTS_BEST);
}

int spw_expert_replay(struct spw_expert_replay *out, const struct spw_expert_trace *t,
                      const struct spw_expert_costs *costs)
{
    const uint32_t n = t->shape.n_layers * t->shape.n_experts, n_frames = costs->n_frames;
    struct replay r = {
        .t = t, .n = n, .n_frames = n_frames ? spw_min_u32(n_frames, n) : n, .costs = costs};
    *out = (struct spw_expert_replay){.n_experts = n, .n_frames = r.n_frames};
    int rc = open_replay(&r);
    if (!rc)
        count_used(&r, out);
    if (!rc && n_frames)
        rc = replay_all(&r, out);
    spw_free(r.v);
    spw_free(r.next);
    spw_free(r.stays);
    return rc;
}
