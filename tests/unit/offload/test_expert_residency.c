/* Which experts lie in frames, against a plain account of every visit since the beginning: who was
 * missed, who left, and that nobody left whose layer was more likely to choose it next. */
#include "prefetch/expert_residency.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 60, LAYERS = 3, VISITS = 2400 };
enum { MEMORY = 256, PRIOR = 4, HOST_MARGIN = 3 };

static uint64_t seed;
static uint32_t n_below, n_above; /* missed on the host: without a frame, with one */

static struct {
    struct spw_expert_shape shape;
    double start[MOST_EXPERTS];
    uint32_t rows[VISITS][MOST_EXPERTS]; /* that chose each expert */
    uint32_t n_rows[VISITS];
    uint32_t frame[MOST_EXPERTS]; /* or SPW_NO_FRAME */
    double chance[MOST_EXPERTS];
    uint32_t n_experts, n_frames;
} plain;

/* ---- chances ---- */

/* The visits that chose the expert, as they count after visit `now` of its layer. */
static double share(uint32_t e, uint32_t now, double *sum)
{
    const uint32_t layer = now % LAYERS, first = layer * plain.shape.n_experts;
    double count = plain.start[e];
    *sum = 0;
    for (uint32_t x = first; x < first + plain.shape.n_experts; x++)
        *sum += plain.start[x];
    for (uint32_t v = layer; v <= now; v += LAYERS) {
        const double all = (double)plain.n_rows[v] * plain.shape.n_kept;
        if (*sum + 1 > MEMORY) {
            count *= (MEMORY - 1) / *sum;
            *sum = MEMORY - 1;
        }
        count += plain.rows[v][e] / all;
        *sum += 1;
    }
    return count;
}

/* How often b was chosen by the row after one that had chosen a. */
static void count_pairs(uint32_t a, uint32_t b, uint32_t now, uint32_t *n_pairs, uint32_t *n_first)
{
    *n_pairs = *n_first = 0;
    for (uint32_t v = now % LAYERS + LAYERS; v <= now; v += LAYERS) {
        if (plain.n_rows[v] != 1 || plain.n_rows[v - LAYERS] != 1 || !plain.rows[v - LAYERS][a])
            continue;
        if (*n_first == 32) {
            *n_first = 16;
            *n_pairs /= 2;
        }
        *n_first += 1;
        *n_pairs += plain.rows[v][b];
    }
}

static double chance(uint32_t e, uint32_t now)
{
    const uint32_t first = now % LAYERS * plain.shape.n_experts, k = plain.shape.n_kept;
    double sum, mean = 0, n = share(e, now, &sum);
    double by_share = k * (n + 1.0 / plain.shape.n_experts) / (sum + 1);
    if (plain.n_rows[now] != 1)
        return by_share;
    for (uint32_t a = first; a < first + plain.shape.n_experts; a++) {
        uint32_t n_pairs, n_first;
        if (!plain.rows[now][a])
            continue;
        count_pairs(a, e, now, &n_pairs, &n_first);
        mean += (n_pairs + PRIOR * by_share) / (n_first + PRIOR) / k;
    }
    return mean;
}

/* ---- visits ---- */

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
            CHECK(plain.chance[e] <= plain.chance[x] * (1 + 1e-9));
    }
}

/* `e` was missed and multiplied on the host: no expert in a frame is so much less likely. */
static void check_stays_below(uint32_t e)
{
    CHECK(n_in_frames() == plain.n_frames);
    for (uint32_t x = 0; x < plain.n_experts; x++)
        CHECK(plain.frame[x] == SPW_NO_FRAME ||
              plain.chance[e] <= HOST_MARGIN * plain.chance[x] * (1 + 1e-9));
}

static uint32_t in_frame(uint32_t frame)
{
    for (uint32_t e = 0; e < plain.n_experts; e++)
        if (plain.frame[e] == frame)
            return e;
    return SPW_NO_EXPERT;
}

/* One row, which often chooses what the row before did, or the experts after these; or several
 * rows. */
static void draw(uint32_t now)
{
    const uint32_t n = plain.shape.n_experts, first = now % LAYERS * n;
    const bool many = check_random(&seed) % 8 == 0;
    plain.n_rows[now] = many ? (uint32_t)check_range(&seed, 2, 40) : 1;
    for (uint32_t row = 0; row < plain.n_rows[now]; row++) {
        bool taken[MOST_EXPERTS] = {false};
        const uint32_t step = (uint32_t)(check_random(&seed) % 3);
        for (uint32_t k = 0, e; k < plain.shape.n_kept; k++) {
            e = (uint32_t)(check_random(&seed) % n);
            if (now >= LAYERS && check_random(&seed) % 4)
                for (uint32_t x = 0; x < n; x++)
                    e = plain.rows[now - LAYERS][first + x] && !taken[(x + step) % n]
                            ? (x + step) % n
                            : e;
            while (taken[e])
                e = (e + 1) % n;
            taken[e] = true;
            plain.rows[now][first + e]++;
        }
    }
}

static void visit(struct spw_expert_residency *r, uint32_t now)
{
    struct spw_expert_visit v[MOST_EXPERTS];
    const uint32_t first = now % LAYERS * plain.shape.n_experts;
    uint32_t n = 0;
    draw(now);
    for (uint32_t e = first; e < first + plain.shape.n_experts; e++)
        if (plain.rows[now][e])
            v[n++] = (struct spw_expert_visit){.expert = e, .n_rows = plain.rows[now][e]};
    for (uint32_t e = first; e < first + plain.shape.n_experts; e++)
        plain.chance[e] = chance(e, now);
    const bool on_host = check_random(&seed) % 2;
    spw_expert_residency_visit(r, v, n, on_host);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(v[i].missed == (plain.frame[v[i].expert] == SPW_NO_FRAME));
        CHECK(v[i].missed || v[i].frame == plain.frame[v[i].expert]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].missed)
            continue;
        n_below += v[i].frame == SPW_NO_FRAME;
        if (v[i].frame == SPW_NO_FRAME)
            continue;
        CHECK(!on_host || in_frame(v[i].frame) == SPW_NO_EXPERT ||
              HOST_MARGIN * plain.chance[in_frame(v[i].frame)] <
                  plain.chance[v[i].expert] * (1 + 1e-9));
        n_above += on_host;
        uint32_t old = in_frame(v[i].frame);
        CHECK(v[i].frame < plain.n_frames);
        if (old != SPW_NO_EXPERT) {
            if (!on_host)
                check_leaves(old, now);
            plain.frame[old] = SPW_NO_FRAME;
        }
        plain.frame[v[i].expert] = v[i].frame;
    }
    CHECK(!memcmp(r->in.frames, plain.frame, plain.n_experts * sizeof *plain.frame));
    for (uint32_t i = 0; i < n; i++)
        if (v[i].frame == SPW_NO_FRAME) {
            CHECK(on_host);
            check_stays_below(v[i].expert);
        }
}

/* What a later run begins with. */
static void check_counts(const struct spw_expert_residency *r)
{
    double counts[MOST_EXPERTS], sum;
    spw_expert_residency_counts(r, counts);
    for (uint32_t e = 0; e < plain.n_experts; e++) {
        const uint32_t layer = e / plain.shape.n_experts;
        CHECK(fabs(counts[e] - share(e, VISITS - LAYERS + layer, &sum)) <= 1e-9 * sum);
        CHECK(sum <= MEMORY * (1 + 1e-9));
    }
}

/* given: the tables lie in memory of the caller, which is not zero. */
static void check_one(bool has_counts, bool given)
{
    struct spw_expert_residency r;
    memset(&plain, 0, sizeof plain);
    memset(plain.frame, 0xff, sizeof plain.frame);
    plain.shape.n_layers = LAYERS;
    plain.shape.n_experts = (uint32_t)check_range(&seed, 1, MOST_EXPERTS / LAYERS);
    plain.shape.n_kept = (uint32_t)check_range(&seed, 1, plain.shape.n_experts);
    plain.n_experts = LAYERS * plain.shape.n_experts;
    plain.n_frames = (uint32_t)check_range(&seed, 1, plain.n_experts);
    for (uint32_t e = 0; e < plain.n_experts && has_counts; e++)
        plain.start[e] = (double)check_range(&seed, 0, 20);
    const uint64_t bytes = spw_expert_residency_bytes(&plain.shape);
    uint8_t *memory = given ? spw_alloc(bytes + 8) : NULL;
    if (memory)
        memset(memory, 0xa5, bytes + 8);
    CHECK(!spw_expert_residency_init(&r, &plain.shape, plain.n_frames,
                                     has_counts ? plain.start : NULL, memory));
    for (uint32_t now = 0; now < VISITS; now++)
        visit(&r, now);
    check_counts(&r);
    spw_expert_residency_clear(&r);
    for (uint32_t e = 0; e < plain.n_experts; e++)
        CHECK(r.in.frames[e] == SPW_NO_FRAME);
    spw_expert_residency_free(&r);
    for (uint32_t i = 0; memory && i < 8; i++)
        CHECK(memory[bytes + i] == 0xa5);
    spw_free(memory);
}

/* An expert that follows another one stays for it, even if it was chosen less often. So as few are
 * missed as can be: three in two rounds. "Least recently used" misses six. */
static void check_follows(void)
{
    static const uint32_t order[] = {0, 1, 2, 2, 2, 2}; /* 1 follows 0 */
    const struct spw_expert_shape shape = {1, 4, 1};
    struct spw_expert_residency r;
    uint32_t missed = 0;
    CHECK(!spw_expert_residency_init(&r, &shape, 2, NULL, NULL));
    for (uint32_t i = 0; i < 600; i++) {
        struct spw_expert_visit v = {.expert = order[i % 6], .n_rows = 1};
        spw_expert_residency_visit(&r, &v, 1, false);
        missed += v.missed && i >= 300;
    }
    CHECK_MSG(missed == 300 / 12 * 3, "%u", missed);
    spw_expert_residency_free(&r);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    seed = check_seed();
    for (int i = 0; i < (RUN_UNDER_ASAN || RUN_UNDER_TSAN ? 2 : 4); i++)
        check_one(i % 2, i / 2 % 2);
    check_follows();
    CHECK(n_below && n_above);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
