/* Traces and profiles of experts: what was written is read; random damage is refused with a line of
 * text, or gives a trace whose numbers are in range. */
#include "runtime/experts/counts.h"
#include "runtime/experts/trace.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { LAYERS = 3, OF_LAYER = 20, EXPERTS = LAYERS * OF_LAYER, VISITS = 60, MOST = 1 << 16 };

static uint64_t seed;
static char folder[128], path[160];
static uint8_t file[MOST];

static size_t read_file(void)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(file, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    return n;
}

static void write_file(size_t n)
{
    remove(path); /* a file that is cut and written again goes to the disk at once */
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(file, 1, n, f) == n && !fclose(f));
}

/* ---- traces ---- */

static struct spw_expert_visit items[VISITS][OF_LAYER];
static uint32_t sizes[VISITS];
static double counts[EXPERTS];
static const struct spw_expert_shape shape = {LAYERS, OF_LAYER, 2};

static void draw_visits(void)
{
    for (uint32_t visit = 0; visit < VISITS; visit++) {
        const uint32_t first = visit % LAYERS * OF_LAYER;
        const uint32_t most = visit % 4 ? 1 : (uint32_t)check_range(&seed, 2, 100000);
        sizes[visit] = 0;
        for (uint32_t e = first; e < first + OF_LAYER; e++)
            if (check_random(&seed) % 3 || (e == first + OF_LAYER - 1 && !sizes[visit]))
                items[visit][sizes[visit]++] = (struct spw_expert_visit){
                    .expert = e, .n_rows = (uint32_t)check_range(&seed, 1, most)};
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        counts[e] = check_random(&seed) % 4 ? exp2((double)check_range(&seed, 0, 200) / 16) : 0;
}

static void write_trace(void)
{
    struct spw_expert_trace_writer *w;
    struct spw_error err = {0};
    CHECK(!spw_expert_trace_create(&w, path, &err));
    spw_expert_trace_begin(w, &shape, counts);
    for (uint32_t visit = 0; visit < VISITS; visit++) {
        spw_expert_trace_add(w, items[visit], sizes[visit]);
        if (visit == VISITS / 2) /* the engine got other budgets */
            spw_expert_trace_begin(w, &shape, counts);
    }
    CHECK(!spw_expert_trace_close(w, &err));
}

/* The counts have gone through codes: once more changes nothing. */
static void check_counts(const double *read)
{
    uint8_t codes[EXPERTS];
    double again[EXPERTS];
    const double largest = spw_expert_counts_encode(codes, read, EXPERTS);
    spw_expert_counts_decode(again, largest, codes, EXPERTS);
    CHECK(!memcmp(again, read, sizeof again));
    for (uint32_t e = 0; e < EXPERTS; e++)
        CHECK(counts[e] > 0 ? fabs(log2(read[e] / counts[e])) < 0.04 : read[e] == 0);
}

static void check_trace(void)
{
    struct spw_expert_trace *t;
    struct spw_error err = {0};
    draw_visits();
    write_trace();
    CHECK_MSG(!spw_expert_trace_read(&t, path, &err), "%s", err.text);
    if (!t)
        return;
    CHECK(t->shape.n_layers == LAYERS && t->shape.n_experts == OF_LAYER && t->shape.n_kept == 2);
    CHECK(t->n_visits == VISITS);
    uint64_t at = 0;
    for (uint32_t visit = 0; visit < VISITS; visit++)
        for (uint32_t i = 0; i < sizes[visit]; i++, at++) {
            CHECK(t->items[at].expert == items[visit][i].expert);
            CHECK(t->items[at].n_rows == items[visit][i].n_rows);
            CHECK(t->ends[visit] > at);
        }
    CHECK(t->n_items == at);
    check_counts(t->counts);
    spw_expert_trace_free(t);
}

static void check_range_of(const struct spw_expert_trace *t)
{
    uint64_t from = 0;
    CHECK(t->shape.n_layers && t->shape.n_experts && t->shape.n_kept <= t->shape.n_experts);
    for (uint64_t visit = 0; visit < t->n_visits; from = t->ends[visit++])
        for (uint64_t i = from; i < t->ends[visit]; i++) {
            CHECK(t->items[i].expert < t->shape.n_layers * t->shape.n_experts &&
                  t->items[i].n_rows);
            CHECK(i == from || t->items[i].expert > t->items[i - 1].expert);
            CHECK(t->items[i].expert / t->shape.n_experts ==
                  t->items[from].expert / t->shape.n_experts);
        }
}

/* Damage whose checksum is right, so that every other check has work. */
static void damage_trace(const uint8_t *whole, size_t n)
{
    memcpy(file, whole, n);
    for (uint64_t k = check_range(&seed, 1, 3); k; k--)
        file[check_random(&seed) % n] = (uint8_t)check_random(&seed);
    if (check_random(&seed) % 4 == 0)
        n -= check_random(&seed) % n;
    const uint64_t sum = XXH3_64bits(file, n);
    memcpy(file + n, &sum, sizeof sum);
    write_file(n + sizeof sum);
}

static void check_damaged_traces(void)
{
    static uint8_t whole[MOST];
    uint64_t n_refused = 0, n_read = 0;
    write_trace();
    const size_t n = read_file() - 8;
    memcpy(whole, file, n);
    for (int i = 0; i < (RUN_UNDER_ASAN || RUN_UNDER_TSAN ? 300 : 3000); i++) {
        struct spw_expert_trace *t;
        struct spw_error err = {0};
        damage_trace(whole, n);
        if (spw_expert_trace_read(&t, path, &err) == 0) {
            check_range_of(t);
            n_read++;
        } else {
            CHECK(!t && strncmp(err.text, path, strlen(path)) == 0 && !strchr(err.text, '\n'));
            n_refused++;
        }
        spw_expert_trace_free(t);
    }
    CHECK(n_refused && n_read);
}

static void check_refused(size_t n, const char *why)
{
    struct spw_expert_trace *t;
    struct spw_error err = {0};
    write_file(n);
    CHECK(spw_expert_trace_read(&t, path, &err) == -EINVAL && !t);
    CHECK_MSG(strstr(err.text, why), "%s", err.text);
}

static void check_cut_traces(void)
{
    write_trace();
    size_t n = read_file();
    for (size_t cut = 0; cut < n; cut += 1 + cut / 8)
        check_refused(cut, "damaged, or its run was killed");
    file[n / 2] ^= 1;
    check_refused(n, "damaged, or its run was killed");
    struct spw_expert_trace *t;
    struct spw_error err = {0};
    CHECK(spw_expert_trace_read(&t, folder, &err) < 0 && *err.text);
    CHECK(spw_expert_trace_read(&t, "/nonexistent/t", &err) == -ENOENT && *err.text);
    struct spw_expert_trace_writer *w;
    CHECK(spw_expert_trace_create(&w, "/nonexistent/t", &err) == -ENOENT && !w && *err.text);
    CHECK(!spw_expert_trace_create(&w, "/dev/full", &err));
    spw_expert_trace_begin(w, &shape, counts);
    CHECK(spw_expert_trace_close(w, &err) == -ENOSPC && strstr(err.text, "/dev/full"));
}

/* ---- profiles ---- */

static void make_counts(struct spw_expert_counts *c, int model)
{
    *c = (struct spw_expert_counts){.n_experts = EXPERTS, .largest = 3.5, .measured_at = 1 + model};
    snprintf(c->model, sizeof c->model, "model %d", model);
    for (uint32_t e = 0; e < EXPERTS; e++)
        snprintf(&c->codes[2 * e], 3, "%02x", (e * 4 + (uint32_t)model) % 256);
}

static void check_profile(void)
{
    static struct spw_expert_profile p, back;
    static struct spw_expert_counts c;
    struct spw_error err = {0};
    p.n = 0;
    for (int model = 0; model < SPW_EXPERT_PROFILE_MODELS + 2; model++) {
        make_counts(&c, model);
        spw_expert_profile_put(&p, &c);
        spw_expert_profile_put(&p, &c); /* in the place of the first one */
    }
    CHECK(p.n == SPW_EXPERT_PROFILE_MODELS); /* the two oldest have gone */
    for (unsigned i = 0; i < p.n; i++)
        CHECK(p.models[i].measured_at > 2);
    CHECK(!spw_expert_profile_write(&p, path, &err));
    CHECK(!spw_expert_profile_read(&back, path, &err) && back.n == p.n);
    CHECK(!strcmp(back.models[1].codes, p.models[1].codes));
    double got[EXPERTS];
    spw_expert_counts_get(&c, got);
    CHECK(got[0] > 0 && got[0] < got[1] && got[1] < 3.5);
}

/* The largest models that a profile holds fit into its file. */
static void check_large(void)
{
    static struct spw_expert_profile p, back;
    struct spw_error err = {0};
    p.n = SPW_EXPERT_PROFILE_MODELS;
    for (unsigned i = 0; i < p.n; i++) {
        p.models[i] = (struct spw_expert_counts){
            .n_experts = SPW_MOST_COUNTED_EXPERTS, .largest = 1, .measured_at = 1};
        memset(p.models[i].model, 'a', 64);
        memset(p.models[i].codes, 'f', 2 * SPW_MOST_COUNTED_EXPERTS);
    }
    CHECK(!spw_expert_profile_write(&p, path, &err));
    CHECK_MSG(!spw_expert_profile_read(&back, path, &err) && back.n == p.n, "%s", err.text);
}

static void check_damaged_profiles(void)
{
    static struct spw_expert_profile p, back;
    static struct spw_expert_counts c;
    struct spw_error err = {0};
    for (int i = 0; i < 300; i++) {
        p.n = 0;
        make_counts(&c, i % 8);
        spw_expert_profile_put(&p, &c);
        CHECK(!spw_expert_profile_write(&p, path, &err));
        size_t n = read_file();
        file[check_random(&seed) % n] ^= (uint8_t)(1 << check_random(&seed) % 8);
        write_file(n - (check_random(&seed) % 2 ? check_random(&seed) % n : 0));
        if (spw_expert_profile_read(&back, path, &err) == 0)
            CHECK(back.n == 1 && !strcmp(back.models[0].codes, c.codes)); /* a space, for example */
        else
            CHECK(!back.n && *err.text);
        remove(path);
    }
    /* Codes of another length, with a checksum that is right. */
    c.codes[10] = 0;
    p.models[0] = c;
    struct spw_error why = {0};
    CHECK(!spw_expert_profile_write(&p, path, &err));
    CHECK(spw_expert_profile_read(&back, path, &why) == -EINVAL && !back.n);
    CHECK(strstr(why.text, "expected 120 digits") != NULL);
}

/* Each allocation fails in turn. */
static void check_allocations(void)
{
    static struct spw_expert_profile p, back;
    static struct spw_expert_counts c;
    make_counts(&c, 0);
    spw_expert_profile_put(&p, &c);
    CHECK(!spw_expert_profile_write(&p, path, NULL));
    const int64_t outstanding = spw_alloc_outstanding();
    for (int part = 0; part < 3; part++) {
        int rc = -ENOMEM, n = 0;
        for (; rc; n++) {
            struct spw_expert_trace_writer *w = NULL;
            struct spw_expert_trace *t = NULL;
            struct spw_error err = {0};
            spw_alloc_fail_nth(n);
            rc = part == 0   ? spw_expert_profile_read(&back, path, &err)
                 : part == 1 ? spw_expert_trace_create(&w, path, &err)
                             : spw_expert_trace_read(&t, path, &err);
            if (w) {
                spw_expert_trace_begin(w, &shape, counts);
                spw_expert_trace_add(w, items[0], sizes[0]);
                rc = spw_expert_trace_close(w, &err);
            }
            spw_alloc_fail_nth(-1);
            CHECK_MSG(!rc || (rc == -ENOMEM && strstr(err.text, path) && !t), "%d: %d '%s'", part,
                      rc, err.text);
            spw_expert_trace_free(t);
            CHECK(spw_alloc_outstanding() == outstanding);
        }
        CHECK(n > 1);
    }
}

int main(void)
{
    int64_t outstanding = spw_alloc_outstanding();
    seed = check_seed();
    snprintf(folder, sizeof folder, "/tmp/spw_expert_files_%d", (int)getpid());
    CHECK(!mkdir(folder, 0700));
    snprintf(path, sizeof path, "%s/trace", folder);
    for (int i = 0; i < 20; i++)
        check_trace();
    check_damaged_traces();
    check_cut_traces();
    remove(path);
    check_profile();
    check_large();
    check_damaged_profiles();
    check_allocations();
    remove(path);
    CHECK(!rmdir(folder) && spw_alloc_outstanding() == outstanding);
    return check_done();
}
