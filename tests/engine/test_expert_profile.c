/* Counts of experts from run to run: what an engine has chosen goes to a profile, and the next
 * engine of the same model begins with it; another model does not. A profile that is damaged is
 * replaced. The bytes that counts let a plan expect are the mean of many drawn runs. */
#include "runtime/experts/counts.h"
#include "runtime/plan/expert_forecast.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/tiny_model.h"

enum { TOKENS = 60 };

static const struct tiny_model *mixture(void)
{
    for (int i = 0; i < TINY_STATES; i++)
        if (tiny_models[i].experts)
            return &tiny_models[i];
    return NULL;
}

static struct spw_engine *open_small(const char *dir, const struct spw_expert_counts *counts)
{
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = TOKENS, .threads = 2};
    struct spw_plan_info info;
    CHECK(spw_plan_query(&info, dir, &o, NULL) == 0);
    o.device_bytes = info.smallest_device_bytes;
    o.expert_counts = counts;
    struct spw_engine *e = run_open(dir, &o);
    CHECK(e->plan.n_expert_frames && e->plan.n_expert_frames < e->plan.info.n_experts);
    return e;
}

static void run_some(struct spw_engine *e, uint32_t vocab)
{
    int32_t ids[TOKENS];
    run_ids(ids, TOKENS, vocab, 5);
    struct spw_session *s = run_session(e);
    for (size_t n = TOKENS / 2; n <= TOKENS; n++)
        run_to(s, e, ids, n);
    spw_session_close(s);
}

/* The counts of the profile are those of the engine, as near as codes are. */
static void check_same(const struct spw_expert_counts *c, struct spw_engine *e)
{
    double counts[256];
    const double *now = spw_engine_expert_counts(e);
    CHECK(c->n_experts == e->plan.info.n_experts && c->n_experts <= 256);
    spw_expert_counts_get(c, counts);
    for (uint32_t i = 0; i < c->n_experts; i++)
        CHECK(now[i] > 0 ? fabs(log2(counts[i] / now[i])) < 0.04 || now[i] < c->largest / 60000
                         : counts[i] == 0);
}

static struct spw_expert_counts *read_counts(const char *dir, const char *profile)
{
    struct spw_expert_counts *c;
    struct spw_error err = {0};
    int rc = spw_expert_counts_read(&c, dir, profile, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    return c;
}

static void check_run(const char *dir, const char *profile, uint32_t vocab)
{
    struct spw_expert_counts *c;
    struct spw_error err = {0};
    CHECK(spw_expert_counts_read(&c, dir, profile, &err) == -ENODATA && !c);
    struct spw_engine *e = open_small(dir, NULL);
    CHECK(!spw_expert_counts_write(e, profile, &err)); /* nothing was chosen */
    CHECK(access(profile, F_OK) != 0);
    run_some(e, vocab);
    CHECK_MSG(!spw_expert_counts_write(e, profile, &err), "%s", err.text);
    c = read_counts(dir, profile);
    check_same(c, e);
    spw_engine_close(e);
    e = open_small(dir, c);
    check_same(c, e);
    const double largest = c->largest;
    run_some(e, vocab);
    CHECK(!spw_expert_counts_write(e, profile, &err));
    spw_engine_close(e);
    spw_expert_counts_free(c);
    c = read_counts(dir, profile); /* of both runs */
    CHECK(c->largest > largest);
    spw_expert_counts_free(c);
}

static void check_others(const char *dir, const char *profile)
{
    struct spw_expert_counts *c = read_counts(dir, profile);
    struct spw_error err = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = TOKENS, .expert_counts = c};
    struct tiny_model other = *mixture();
    char path[128];
    struct spw_engine *e;
    other.seed++;
    run_folder(path, &other, "other_experts");
    struct spw_expert_counts *none;
    CHECK(spw_expert_counts_read(&none, path, profile, &err) == -ENODATA && !none);
    tiny_model_remove(path);
    run_folder(path, &tiny_models[0], "no_experts");
    CHECK(spw_expert_counts_read(&none, path, profile, &err) == -ENODATA && !none);
    CHECK(spw_engine_open(&e, path, &o, &err) == -EINVAL && strstr(err.text, "counts of experts"));
    tiny_model_remove(path);
    CHECK(spw_expert_counts_read(&none, path, profile, &err) == -ENOENT && !none);
    spw_expert_counts_free(c);
}

/* The weights of the model cannot be read: the profile is not at fault. */
static void check_no_weights(const char *dir, const char *profile)
{
    struct spw_error err = {0};
    struct spw_expert_counts *c;
    char command[512];
    snprintf(command, sizeof command, "cp -r %s %s.cut && truncate -s 100 %s.cut/model.safetensors",
             dir, dir, dir);
    CHECK(system(command) == 0);
    snprintf(command, sizeof command, "%s.cut", dir);
    CHECK(spw_expert_counts_read(&c, command, profile, &err) == -ENODATA && !c);
    tiny_model_remove(command);
}

static void check_damaged(const char *dir, const char *profile, uint32_t vocab)
{
    struct spw_expert_counts *c;
    struct spw_error err = {0};
    FILE *f = fopen(profile, "r+b");
    /* Before the mark at the end, which nothing reads. */
    CHECK(f && !fseek(f, -55, SEEK_END) && fputc('x', f) == 'x' && !fclose(f));
    CHECK(spw_expert_counts_read(&c, dir, profile, &err) == -EINVAL && !c && *err.text);
    struct spw_engine *e = open_small(dir, NULL);
    run_some(e, vocab);
    CHECK(!spw_expert_counts_write(e, profile, &err));
    CHECK(spw_expert_counts_write(e, "/proc/none/p", &err) < 0 && *err.text);
    c = read_counts(dir, profile);
    check_same(c, e);
    spw_engine_close(e);
    spw_expert_counts_free(c);
}

/* ---- expected bytes ---- */

static const uint64_t passes[] = {7, 1, 1, 3, 1, 1};
enum { PASSES = sizeof passes / sizeof *passes, RUNS = 4000, MOST = 256 };

struct drawn {
    double chance[MOST];
    bool stays[MOST];
    uint32_t n, n_frames;
};

/* The chances of the forecast, and the experts that stay: those with the largest chances, or any
 * ones if there are no counts. */
static void draw_run(struct drawn *d, const struct spw_engine *e, const double *counts,
                     uint64_t *seed)
{
    const struct spw_experts_config *c = &e->model.config.experts;
    d->n = e->plan.info.n_experts;
    d->n_frames = e->plan.n_expert_frames;
    memset(d->stays, 0, sizeof d->stays);
    for (uint32_t x = 0; x < d->n; x += c->n)
        spw_expert_chances(d->chance + x, counts ? counts + x : NULL, c->n, c->n_kept);
    for (uint32_t i = 0; i < d->n_frames; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t x = 0; x < d->n && counts; x++)
            if (!d->stays[x] && (best == UINT32_MAX || d->chance[x] > d->chance[best]))
                best = x;
        while (!counts && (best == UINT32_MAX || d->stays[best]))
            best = (uint32_t)(check_random(seed) % d->n);
        d->stays[best] = true;
    }
}

static double missed_bytes(const struct drawn *d, const struct spw_engine *e, int link,
                           uint64_t *seed)
{
    double bytes = 0;
    for (uint32_t x = 0; x < d->n; x++) {
        bool has_come = false;
        for (int i = 0; i < PASSES; i++) {
            uint64_t moved[SPW_MOVED_COUNT] = {0};
            struct spw_expert_visit v = {.expert = x, .frame = d->stays[x] ? 0 : SPW_NO_FRAME};
            for (uint64_t row = 0; row < passes[i]; row++)
                v.n_rows += (double)(check_random(seed) >> 11) * 0x1p-53 < d->chance[x];
            if (v.n_rows && !(has_come && d->stays[x]))
                spw_plan_add_missed(&e->plan, e->model.weights, &v, passes[i], moved);
            bytes += (double)moved[link];
            has_come |= v.n_rows > 0;
        }
    }
    return bytes;
}

/* host_rows: as in struct spw_plan. */
static void check_expected(const char *dir, bool has_counts, uint32_t host_rows, uint64_t *seed)
{
    double counts[MOST], sum = 0, squares = 0;
    struct spw_engine *e = open_small(dir, NULL);
    struct spw_expert_forecast f;
    struct spw_expert_bytes b;
    struct drawn d;
    const int link = SPW_MOVED_HOST_TO_DEVICE;
    e->plan.host_rows = host_rows;
    for (uint32_t x = 0; x < e->plan.info.n_experts; x++)
        counts[x] = (double)check_range(seed, 0, 30);
    CHECK(!spw_expert_forecast_open(&f, &e->plan, e->model.weights, has_counts ? counts : NULL));
    for (int i = 0; i < PASSES; i++)
        spw_expert_forecast_pass(&f, false, passes[i]);
    spw_expert_forecast_bytes(&f, &b);
    spw_expert_forecast_close(&f);
    for (int i = 0; i < RUNS; i++) {
        draw_run(&d, e, has_counts ? counts : NULL, seed);
        const double bytes = missed_bytes(&d, e, link, seed);
        sum += bytes;
        squares += bytes * bytes;
    }
    const double mean = sum / RUNS, error = sqrt((squares / RUNS - mean * mean) / RUNS);
    CHECK(b.from_counts == has_counts && mean > 0);
    CHECK_MSG(fabs((double)b.expected[link] - mean) < 5 * error, "expected %llu, mean %g +- %g",
              (unsigned long long)b.expected[link], mean, error);
    CHECK(b.least[link] < b.expected[link] && b.expected[link] < b.most[link]);
    spw_engine_close(e);
}

/* ---- chances by counts ---- */

enum { EXPERTS = 128, KEPT = 8, SEEN = 256, LATER = 400, STAY = 40, LAYERS = 60 };

/* Adds `each` to the experts that a row chooses: those with the largest keys, which are drawn by
 * the logarithms of their weights. */
static void choose_row(double *to, const double *weights, double each, uint64_t *seed)
{
    double keys[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        keys[e] = weights[e] - log(-log(((double)(check_random(seed) >> 11) + 0.5) * 0x1p-53));
    for (int i = 0; i < KEPT; i++) {
        int best = 0;
        for (int e = 1; e < EXPERTS; e++)
            best = keys[e] > keys[best] ? e : best;
        keys[best] = -INFINITY;
        to[best] += each;
    }
}

/* What is in `of` outside of the STAY experts with the largest chances. */
static double outside(const double *of, const double *chances)
{
    double sum = 0;
    for (int e = 0; e < EXPERTS; e++) {
        int before = 0;
        for (int i = 0; i < EXPERTS; i++)
            before += chances[i] > chances[e] || (chances[i] == chances[e] && i < e);
        sum += before < STAY ? 0 : of[e];
    }
    return sum;
}

/* Rows choose by weights that nobody knows. The forecast knows what SEEN rows chose; LATER rows
 * miss what the chances say. Counts alone would promise less. spread: 0 where all experts are
 * alike. */
static void check_chances(double spread, uint64_t *seed)
{
    double expected = 0, by_counts = 0, missed = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        double weights[EXPERTS], chances[EXPERTS], counts[EXPERTS] = {0}, later[EXPERTS] = {0};
        for (int e = 0; e < EXPERTS; e++)
            weights[e] = spread * ((double)check_range(seed, 0, 1000) / 500 - 1);
        for (int i = 0; i < SEEN; i++)
            choose_row(counts, weights, 1.0 / KEPT, seed);
        for (int i = 0; i < LATER; i++)
            choose_row(later, weights, 1.0 / LATER, seed);
        spw_expert_chances(chances, counts, EXPERTS, KEPT);
        expected += outside(chances, chances);
        by_counts += outside(counts, chances) * KEPT / SEEN;
        missed += outside(later, chances);
    }
    const double error = fabs(expected / missed - 1);
    CHECK_MSG(error < 0.04 && by_counts < missed * (1 - error),
              "expected %g, missed %g, by counts %g", expected, missed, by_counts);
}

static void check_chances_without_counts(void)
{
    double chances[4], counts[4] = {0};
    spw_expert_chances(chances, NULL, 4, 2);
    CHECK(chances[0] == 0.5 && chances[3] == 0.5);
    spw_expert_chances(chances, counts, 4, 2); /* nothing was chosen in this layer */
    CHECK(chances[0] == 0.5 && chances[3] == 0.5);
    counts[1] = 1e-300;
    spw_expert_chances(chances, counts, 4, 2);
    CHECK(chances[0] >= 0 && chances[1] <= 1);
    counts[0] = counts[1] = 1e6; /* always these two */
    spw_expert_chances(chances, counts, 4, 2);
    CHECK(chances[0] > 0.99 && chances[0] <= 1 && chances[2] < 0.01 && chances[2] >= 0);
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    const struct tiny_model *m = mixture();
    char dir[128], profile[160];
    run_folder(dir, m, "expert_profile");
    snprintf(profile, sizeof profile, "/tmp/spw_expert_profile_%d.json", (int)getpid());
    check_run(dir, profile, m->vocab);
    check_others(dir, profile);
    check_no_weights(dir, profile);
    check_damaged(dir, profile, m->vocab);
    uint64_t seed = check_seed();
    for (uint32_t host_rows = 0; host_rows < 2; host_rows++) {
        check_expected(dir, true, host_rows, &seed);
        check_expected(dir, false, host_rows, &seed);
    }
    check_chances(1.5, &seed);
    check_chances(0.5, &seed);
    check_chances(0, &seed);
    check_chances_without_counts();
    remove(profile);
    tiny_model_remove(dir);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
