/* Experts that are read or copied when they are needed may arrive in any order: reads end late, in
 * reverse and shuffled, copies and kernels are delayed, and neither a bit of the logits nor a byte
 * of any link differs from a run in which all come at once and in order. Nor does it matter which
 * layers the host multiplies where they lie.
 *
 *   test_expert_order [draws [first]]    SPW_SEED repeats a run */
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"

#include <stdatomic.h>

enum { TOKENS = 90, PROMPT = 80, N_SESSIONS = 2, DRAWS = TEST_GPU ? 24 : 160 };

/* ---- a drive that answers in another order ---- */

enum order { AT_ONCE, SHUFFLED, REVERSED, N_ORDERS };

struct drive {
    struct spw_io_fault hook;
    enum order order;
    _Atomic uint64_t seed, begun, ended;
    _Atomic uint64_t n_reads, n_overtaken;
};

static void pause_for(uint64_t microseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)microseconds * 1000}, NULL);
}

/* On threads each request waits for itself; with io_uring, `reorder` holds results back. */
static int64_t completed(void *context, const struct spw_io_request *r, int64_t result)
{
    struct drive *d = context;
    if (!r->bytes || d->order == AT_ONCE)
        return result;
    uint64_t turn = atomic_fetch_add(&d->begun, 1), seed = atomic_fetch_add(&d->seed, 1);
    pause_for(d->order == REVERSED ? 400 - 100 * (turn % 4) : check_range(&seed, 0, 400));
    atomic_fetch_add(&d->n_reads, 1);
    atomic_fetch_add(&d->n_overtaken, atomic_fetch_add(&d->ended, 1) != turn);
    return result;
}

static uint64_t n_reads, n_overtaken, n_from_disk, n_from_host, n_bounced;
/* Of experts that the host multiplied: bytes; draws where all came from files, from its memory. */
static uint64_t host_bytes, n_host_disk, n_host_memory;

/* ---- a run ---- */

struct order_run {
    struct subject *s;
    struct spw_options o;
    struct spw_backend backend;
    uint64_t moved[SPW_MOVED_COUNT];
};

/* Two prompts together, the second one again from its middle, then tokens one by one. */
static void run(struct order_run *r, const char *what)
{
    static const size_t to[][N_SESSIONS] = {{PROMPT, 50}, {PROMPT + 1, 0},  {PROMPT + 2, PROMPT},
                                            {0, 30},      {PROMPT + 3, 31}, {TOKENS, 32}};
    struct spw_engine *e = run_open_on(&r->backend, r->s->dir, &r->o);
    struct spw_session *sessions[N_SESSIONS];
    struct watch watch = {0};
    struct spw_error err = {0};
    struct spw_stats stats;
    for (int i = 0; i < N_SESSIONS; i++)
        sessions[i] = run_session(e);
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        struct spw_span spans[N_SESSIONS];
        size_t n = 0;
        for (int i = 0; i < N_SESSIONS; i++)
            if (to[k][i])
                spans[n++] = (struct spw_span){sessions[i], r->s->ids[i], to[k][i], 1 + k};
        CHECK_MSG(!watch_sync(&watch, r->s, e, spans, n, TOKENS, &err), "%s: %s", what, err.text);
    }
    CHECK_MSG(watch.n_rows > 12 && !watch.n_wrong, "%s: %llu of %llu rows differ", what,
              (unsigned long long)watch.n_wrong, (unsigned long long)watch.n_rows);
    run_check_peaks(e, &r->o, what);
    spw_engine_stats(e, &stats);
    memcpy(r->moved, stats.moved_bytes, sizeof r->moved);
    host_bytes += stats.host_multiplied_bytes;
    if (stats.host_multiplied_bytes)
        *(e->plan.n_disk_experts ? &n_host_disk : &n_host_memory) += 1;
    for (int i = 0; i < N_SESSIONS; i++)
        spw_session_close(sessions[i]);
    spw_engine_close(e);
}

/* Experts have few frames, or more of them, and come from the files or from the host. */
static void draw_run(struct order_run *r, int number, uint64_t *seed)
{
    struct spw_options *o = &r->o;
    *o = r->s->o;
    r->backend = run_backend(number / 6 % 2);
    r->backend.host_lane = !r->backend.reads_host_memory;
    o->host_compute = number / 36 % 2 ? SPW_HOST_COMPUTE_OFF : SPW_HOST_COMPUTE_AUTO;
    o->sessions = N_SESSIONS;
    o->threads = (uint32_t)check_range(seed, 1, 3);
    o->io = number / 2 % 2 ? SPW_IO_URING : SPW_IO_THREADS; /* reads overtake on threads only */
    o->prefill_chunk = (uint32_t)(check_random(seed) % 3 * 16);
    o->device_bytes = o->host_bytes = 0;
    struct spw_plan_info all = run_plan_on(&r->backend, r->s->dir, o);
    uint64_t low = all.smallest_device_bytes, high = all.device.total;
    o->device_bytes = low;
    o->host_bytes = (uint64_t)1 << 30;
    const uint64_t more = check_random(seed) % 3 ? low : check_range(seed, low, (low + high) / 2);
    if (!run_plan_on(&r->backend, r->s->dir, o).host_rows) /* else many are missed */
        o->device_bytes = more;
    if (number / 12 % 3)
        o->host_bytes = run_plan_on(&r->backend, r->s->dir, o).smallest_host_bytes;
    struct spw_plan_info info = run_plan_on(&r->backend, r->s->dir, o);
    n_from_disk += info.n_experts_from_disk > 0;
    n_from_host += info.n_experts_from_disk + info.n_experts_resident < info.n_experts;
    n_bounced += info.n_experts_from_disk && !r->backend.reads_host_memory;
}

static void run_draw(int number, uint64_t start, struct subject *subjects, int n_subjects)
{
    uint64_t of_draw = start + (uint64_t)number * 1000003, *seed = &of_draw;
    struct drive drive = {.order = AT_ONCE};
    struct order_run r = {.s = &subjects[number % n_subjects]};
    uint64_t moved[SPW_MOVED_COUNT];
    char what[300];
    draw_run(&r, number, seed);
    drive.hook = (struct spw_io_fault){.completed = completed, .context = &drive};
    r.backend.io_fault = &drive.hook;
    snprintf(what, sizeof what, "draw %d (seed %llu): %.60s device %llu host %llu io %d", number,
             (unsigned long long)start, r.s->dir, (unsigned long long)r.o.device_bytes,
             (unsigned long long)r.o.host_bytes, (int)r.o.io);
    run(&r, what);
    memcpy(moved, r.moved, sizeof moved);
    for (drive.order = SHUFFLED; drive.order < N_ORDERS; drive.order++) {
        atomic_store(&drive.seed, check_random(seed));
        drive.hook.reorder = (unsigned)check_range(seed, 1, 8);
        r.o.delay_seed = check_random(seed) | 1;
        run(&r, what);
        CHECK_MSG(!memcmp(moved, r.moved, sizeof moved), "%s: other bytes", what);
    }
    n_reads += atomic_load(&drive.n_reads);
    n_overtaken += atomic_load(&drive.n_overtaken);
}

/* All experts are resident, on a device that is not the host: it finds those of a few rows by
 * itself (spw_plan_routes_on_device). */
static void run_resident(struct subject *s)
{
    struct order_run r = {.s = s, .o = s->o, .backend = run_backend(false)};
    r.o.sessions = N_SESSIONS;
    r.o.device_bytes = (uint64_t)1 << 28;
    r.o.host_bytes = (uint64_t)1 << 30;
    const struct spw_plan_info info = run_plan_on(&r.backend, s->dir, &r.o);
    CHECK_MSG(info.n_experts_resident == info.n_experts, "%.60s: %u of %u experts are resident",
              s->dir, info.n_experts_resident, info.n_experts);
    run(&r, "resident experts");
}

/* ---- layers ---- */

/* Layers with quantized weights, on a device that is not the host: all lie there, or the host
 * multiplies those that do not fit, all of them or some while others cross the link. */
static void run_layers(uint64_t *seed)
{
    static const struct tiny_model model = {TINY("qwen2", 6, 64, 96, 2, 1, 32, 67, 4096),
                                            .bias = true, .stored = TINY_QUANTIZED, .seed = 9};
    enum { BUDGETS = 4, RATES = 3 };
    static struct subject s;
    uint64_t n_all = 0, n_some = 0, n_none = 0;
    subject_open(&s, &model, "expert_order", TOKENS, &(struct spw_options){0});
    struct order_run r = {.s = &s, .o = s.o, .backend = run_backend(false)};
    r.backend.host_lane = true;
    r.o.sessions = N_SESSIONS;
    r.o.host_bytes = (uint64_t)1 << 30;
    r.o.device_bytes = (uint64_t)1 << 28;
    r.o.prefill_chunk = 16;
    const struct spw_plan_info all = run_plan_on(&r.backend, s.dir, &r.o);
    for (uint64_t i = 0; i < BUDGETS * RATES; i++) {
        const struct spw_machine machine = {.host_bytes_per_second = 4e9,
                                            .copy_bytes_per_second = 1e9,
                                            .read_bytes_per_second = (double)(i % RATES) * 0.6e9};
        r.o.device_bytes =
            all.smallest_device_bytes + all.weights_bytes * (i / RATES) / (BUDGETS - 1);
        r.o.machine = &machine;
        r.o.delay_seed = i % 2 ? check_random(seed) | 1 : 0;
        const struct spw_plan_info info = run_plan_on(&r.backend, s.dir, &r.o);
        const uint32_t others = info.n_layers - info.n_layers_resident - info.n_layers_on_host;
        n_all += info.n_layers_on_host == info.n_layers;
        n_some += info.n_layers_on_host && others;
        n_none += !info.n_layers_on_host && !others;
        run(&r, "layers");
    }
    subject_close(&s);
    CHECK_MSG(n_all && n_some && n_none,
              "all layers on the host in %llu runs, some beside others in %llu, none in %llu",
              (unsigned long long)n_all, (unsigned long long)n_some, (unsigned long long)n_none);
}

/* ---- models ---- */

enum { N_DRAWN = 3 };

/* Whether the host multiplies experts of the model where they do not fit: all of them must be of
 * types whose products are integers. */
static bool has_host_rows(const struct subject *s)
{
    struct order_run r = {.o = s->o, .backend = run_backend(false)};
    r.backend.host_lane = true;
    r.o.sessions = N_SESSIONS;
    r.o.device_bytes = run_plan_on(&r.backend, s->dir, &r.o).smallest_device_bytes;
    r.o.host_bytes = (uint64_t)1 << 30;
    return run_plan_on(&r.backend, s->dir, &r.o).host_rows > 0;
}

/* Stored in f32, in bf16 at odd addresses, in quantized types of a GGUF file. */
static void open_subjects(struct subject *subjects, uint64_t *seed)
{
    static char more[N_DRAWN][300];
    static struct tiny_model models[N_DRAWN];
    static const enum tiny_stored stored[N_DRAWN] = {TINY_F32, TINY_BF16, TINY_QUANTIZED};
    for (int i = 0; i < N_DRAWN; i++) {
        do /* one with experts */
            models[i] = stored[i] == TINY_QUANTIZED ? draw_mixture(more[i], 67, seed)
                                                    : draw_model(more[i], 67, false, seed);
        while (models[i].experts < 4);
        models[i].stored = stored[i];
        models[i].seed -= models[i].seed % 3 + (stored[i] == TINY_F32);
        subject_open(&subjects[i], &models[i], "expert_order", TOKENS, &(struct spw_options){0});
        if (stored[i] == TINY_QUANTIZED && !has_host_rows(&subjects[i])) {
            subject_close(&subjects[i]);
            i--; /* another one */
        }
    }
    const struct spw_options o = {0};
    subject_open_at(&subjects[N_DRAWN], "tests/golden/gpt_oss_plain", TOKENS, &o, 3);
    subject_open_at(&subjects[N_DRAWN + 1], "tests/golden/gpt_oss_mxfp4", TOKENS, &o, 4);
    subject_open_at(&subjects[N_DRAWN + 2], "tests/golden/glm4_moe_norms", TOKENS, &o, 5);
}

int main(int argc, char **argv)
{
    static struct subject subjects[N_DRAWN + 3];
    const int first = argc > 2 ? atoi(argv[2]) : 0;
    int n = 0;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed(), of_models = seed;
    int64_t outstanding = spw_alloc_outstanding();
    open_subjects(subjects, &of_models);
    for (int i = 0; i < N_DRAWN + 3; i++)
        run_resident(&subjects[i]);
    run_layers(&of_models);
    struct check_draws draws = check_draws_of(argc, argv, DRAWS);
    for (; check_another(&draws); n++)
        run_draw(first + n, seed, subjects, N_DRAWN + 3);
    for (int i = 0; i < N_DRAWN + 3; i++)
        subject_close(&subjects[i]);
    fprintf(
        stderr,
        "%d draws; experts from disk %llu, from the host %llu, by way of the host %llu; %llu "
        "of %llu reads came out of turn; the host multiplied %llu bytes, in %llu runs from files, "
        "in %llu from its memory\n",
        n, (unsigned long long)n_from_disk, (unsigned long long)n_from_host,
        (unsigned long long)n_bounced, (unsigned long long)n_overtaken, (unsigned long long)n_reads,
        (unsigned long long)host_bytes, (unsigned long long)n_host_disk,
        (unsigned long long)n_host_memory);
    /* How many reads overtake others depends on the threads: 18 of 2,894 in 20 draws with TSan. */
    CHECK(n < 20 || (n_from_disk && n_from_host && n_bounced && n_overtaken > (unsigned)n / 4));
    CHECK(n < 20 || (n_host_disk && n_host_memory));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
