/* Bytes of experts that a run will miss: see expert_forecast.h. */
#include "runtime/plan/expert_forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- chances ---- */

void spw_expert_chances(double *chances, const double *counts, uint32_t n, uint32_t n_kept)
{
    const double mean_chance = (double)n_kept / n;
    double sum = 0, variance = 0, real = 0;
    for (uint32_t e = 0; counts && e < n; e++)
        sum += counts[e];
    for (uint32_t e = 0; sum > 0 && e < n; e++)
        variance += pow(n_kept * counts[e] - mean_chance * sum, 2) / n;
    if (variance > 0)
        real = fmax(0, 1 - mean_chance * sum * (1 - mean_chance) / variance);
    for (uint32_t e = 0; e < n; e++)
        chances[e] = real > 0
                         ? fmin(1, mean_chance + real * (n_kept * counts[e] / sum - mean_chance))
                         : mean_chance;
}

static int choose_best(struct spw_expert_forecast *f, uint32_t n)
{
    uint32_t *order;
    SPW_TRY(spw_expert_order(&order, f->chances, n));
    for (uint32_t i = 0; i < n; i++)
        f->stays[order[i]] = i < f->plan->n_expert_frames;
    spw_free(order);
    return 0;
}

static int compare_bytes(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void fill_bytes(struct spw_expert_forecast *f, uint32_t n)
{
    const uint32_t of_layer = f->weights->config->experts.n;
    for (uint32_t e = 0; e < n; e++) {
        uint64_t moved[SPW_MOVED_COUNT] = {0};
        const struct spw_expert_visit v = {.expert = e};
        spw_plan_add_missed(f->plan, f->weights, &v, UINT64_MAX, moved);
        for (int i = 0; i < SPW_MOVED_COUNT; i++)
            f->moved[i][e] = f->sorted[i][e] = moved[i];
    }
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        for (uint32_t e = 0; e < n; e += of_layer)
            qsort(f->sorted[i] + e, of_layer, sizeof(uint64_t), compare_bytes);
}

static int allocate(struct spw_expert_forecast *f, uint32_t n)
{
    f->chances = spw_alloc(n * sizeof *f->chances);
    f->stays = spw_alloc(n * sizeof *f->stays);
    f->unseen = spw_alloc(n * sizeof *f->unseen);
    bool all = f->chances && f->stays && f->unseen;
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        f->moved[i] = spw_alloc(n * sizeof(uint64_t));
        f->sorted[i] = spw_alloc(n * sizeof(uint64_t));
        all &= f->moved[i] && f->sorted[i];
    }
    return all ? 0 : -ENOMEM;
}

static int fill_chances(struct spw_expert_forecast *f, uint32_t n, const double *counts)
{
    const struct spw_experts_config *c = &f->weights->config->experts;
    for (uint32_t e = 0; counts && e < n; e++)
        f->bytes.from_counts |= counts[e] > 0;
    for (uint32_t e = 0; e < n; e += c->n)
        spw_expert_chances(f->chances + e, f->bytes.from_counts ? counts + e : NULL, c->n,
                           c->n_kept);
    for (uint32_t e = 0; e < n; e++) {
        f->unseen[e] = 1;
        f->stays[e] = (double)f->plan->n_expert_frames / n;
    }
    return f->bytes.from_counts ? choose_best(f, n) : 0;
}

int spw_expert_forecast_open(struct spw_expert_forecast *f, const struct spw_plan *p,
                             const struct spw_weights *w, const double *counts)
{
    const uint32_t n = w->n_expert_blocks;
    *f = (struct spw_expert_forecast){.plan = p, .weights = w};
    if (!p->n_expert_frames)
        return 0;
    int rc = allocate(f, n);
    if (!rc)
        rc = fill_chances(f, n, counts);
    if (!rc)
        fill_bytes(f, n);
    else
        spw_expert_forecast_close(f);
    return rc;
}

void spw_expert_forecast_close(struct spw_expert_forecast *f)
{
    spw_free(f->chances);
    spw_free(f->stays);
    spw_free(f->unseen);
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        spw_free(f->moved[i]);
        spw_free(f->sorted[i]);
    }
    *f = (struct spw_expert_forecast){0};
}

/* ---- a pass ---- */

/* Experts [from, to) of all layers that a pass goes through: the MTP layer is the last one. */
struct range {
    uint32_t from, to;
};

static struct range range_of(const struct spw_expert_forecast *f, bool draft)
{
    const struct spw_model_config *c = f->weights->config;
    const uint32_t n = f->weights->n_expert_blocks;
    const uint32_t main = n - (c->mtp && c->has_experts[c->n_layers - 1] ? c->experts.n : 0);
    return draft ? (struct range){main, n} : (struct range){0, main};
}

static void add_expected(struct spw_expert_forecast *f, struct range r, uint64_t rows)
{
    const bool on_host = spw_plan_computes_on_host(f->plan, rows);
    const double row = on_host ? (double)spw_plan_expert_row_bytes(f->plan, f->weights) : 0;
    for (uint32_t e = r.from; e < r.to; e++) {
        const double none = rows == 1 ? 1 - f->chances[e] : pow(1 - f->chances[e], (double)rows);
        const double comes = f->stays[e] * f->unseen[e], lacks = comes + (1 - f->stays[e]);
        f->unseen[e] *= none;
        for (int i = 0; i < SPW_MOVED_COUNT; i++) {
            const bool stays_below = on_host && i == SPW_MOVED_HOST_TO_DEVICE;
            f->expected[i] += (1 - none) * (stays_below ? comes : lacks) * (double)f->moved[i][e];
        }
        f->expected[SPW_MOVED_HOST_TO_DEVICE] += (double)rows * f->chances[e] * lacks * row;
    }
}

/* The bytes of the experts of each layer that come [from, to) in the order of their bytes. */
static uint64_t bytes_of(const struct spw_expert_forecast *f, struct range r, int link,
                         uint32_t from, uint32_t to)
{
    uint64_t sum = 0;
    for (uint32_t e = r.from; e < r.to; e += f->weights->config->experts.n)
        for (uint32_t i = from; i < to; i++)
            sum += f->sorted[link][e + i];
    return sum;
}

/* The fewest bytes of one expert. */
static uint64_t least_expert(const struct spw_expert_forecast *f, struct range r, int link)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t e = r.from; e < r.to; e += f->weights->config->experts.n)
        least = spw_min_u64(least, f->sorted[link][e]);
    return least;
}

/* Of a pass whose missed experts the host multiplies: outputs go up, and experts for which there is
 * a frame; in the first pass all frames are empty. */
static void add_bounds_on_host(struct spw_expert_forecast *f, struct range r, bool first,
                               uint64_t rows, uint64_t used, uint64_t lacking)
{
    const uint64_t row = spw_plan_expert_row_bytes(f->plan, f->weights);
    const int up = SPW_MOVED_HOST_TO_DEVICE;
    const uint64_t come = first ? spw_min_u64(used, f->plan->n_expert_frames) : 0;
    f->bytes.least[up] += (first ? rows * used : lacking) * row;
    f->bytes.least[up] += come ? come * least_expert(f, r, up) : 0;
    f->bytes.most[up] += rows * used * row;
}

void spw_expert_forecast_pass(struct spw_expert_forecast *f, bool draft, uint64_t rows)
{
    const struct spw_experts_config *c = &f->weights->config->experts;
    if (!f->chances)
        return;
    const struct range r = range_of(f, draft);
    const uint64_t used = (uint64_t)(r.to - r.from) / c->n * c->n_kept;
    const uint64_t lacking = spw_sub_u64(used, f->plan->n_expert_frames);
    const uint32_t most = (uint32_t)spw_min_u64(c->n, rows * c->n_kept);
    const bool on_host = spw_plan_computes_on_host(f->plan, rows);
    if (on_host)
        add_bounds_on_host(f, r, !draft && !f->n_passes[0], rows, used, lacking);
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        if (!on_host || i != SPW_MOVED_HOST_TO_DEVICE)
            f->bytes.least[i] += !f->n_passes[draft] ? bytes_of(f, r, i, 0, c->n_kept)
                                 : lacking           ? lacking * least_expert(f, r, i)
                                                     : 0;
        f->bytes.most[i] += bytes_of(f, r, i, c->n - most, c->n);
    }
    add_expected(f, r, rows);
    f->n_passes[draft]++;
}

void spw_expert_forecast_bytes(const struct spw_expert_forecast *f, struct spw_expert_bytes *out)
{
    *out = f->bytes;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        out->expected[i] = (uint64_t)(f->expected[i] + 0.5);
}

void spw_expert_forecast_token(const struct spw_expert_forecast *f, uint64_t *from_disk,
                               uint64_t *from_host)
{
    const uint32_t n = f->chances ? f->weights->n_expert_blocks : 0;
    double disk = 0, host = 0;
    for (uint32_t e = 0; e < n; e++) {
        const double bytes = (double)f->weights->blocks[f->weights->n_blocks + e].bytes;
        const double missed = f->chances[e] * (1 - f->stays[e]) * bytes;
        *(e < f->plan->n_disk_experts ? &disk : &host) += missed;
    }
    *from_disk = (uint64_t)(disk + 0.5);
    *from_host = (uint64_t)(host + 0.5);
}
