/* Counts of experts from run to run: what an engine has chosen goes to a profile, and the next
 * engine of the same model begins with it; another model does not. A profile that is damaged is
 * replaced. */
#include "runtime/experts/counts.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/tiny_model.h"

enum { TOKENS = 60 };

static const struct tiny_model *mixture(void)
{
    for (int i = 0; i < N_TINY_MODELS; i++)
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
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.has_prediction);
    CHECK(!memcmp(stats.moved_bytes, stats.predicted_bytes, sizeof stats.moved_bytes));
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

static void check_damaged(const char *dir, const char *profile, uint32_t vocab)
{
    struct spw_expert_counts *c;
    struct spw_error err = {0};
    FILE *f = fopen(profile, "r+b");
    CHECK(f && !fseek(f, -20, SEEK_END) && fputc('x', f) == 'x' && !fclose(f));
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

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    const struct tiny_model *m = mixture();
    char dir[128], profile[160];
    run_folder(dir, m, "expert_profile");
    snprintf(profile, sizeof profile, "/tmp/spw_expert_profile_%d.json", (int)getpid());
    check_run(dir, profile, m->vocab);
    check_others(dir, profile);
    check_damaged(dir, profile, m->vocab);
    remove(profile);
    tiny_model_remove(dir);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
