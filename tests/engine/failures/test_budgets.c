/* Budgets that change in the middle of a run: the caller's, down and up again; a tier's that
 * refuses memory at any allocation of the run; the disk's that takes no more. Whatever happens, the
 * logits of each step are those of an engine that has all the memory and the precision that was
 * taken; what cannot work is refused with the smallest budgets, and the run goes on under the old
 * ones. Nothing leaks, and what was moved is what was predicted.
 *
 *   test_budgets [stride]    of the failing allocations */
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/twin.h"

#define SLOW (RUN_UNDER_TSAN || RUN_UNDER_ASAN)

enum {
    STRIDE = TEST_GPU         ? 199
             : RUN_UNDER_TSAN ? 151
             : RUN_UNDER_ASAN ? 61
                              : 5,
    WRITES = SLOW ? 17 : 4,
    N_MODELS = TEST_GPU || SLOW ? 1 : 3,
    QUANTIZES = !TEST_GPU && !RUN_UNDER_TSAN,
    N_PROMPT = TEST_GPU ? 300 : 900,
    N_MORE = 12,
    N_TOKENS = N_PROMPT + N_MORE,
};
enum { VOCAB = 67, PRECISIONS = SPW_KV_INT4 + 1 };

static const struct tiny_model models[] = {
    {TINY("llama", 3, 64, 96, 4, 2, 32, VOCAB, 2048), .untied = true, .seed = 261},
    {TINY("gemma3_text", 3, 64, 96, 4, 2, 32, VOCAB, 2048),
     .more = ",\"sliding_window\":150,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\"",
     .qk_norm = true, .sandwich = true, .stored = TINY_BF16, .seed = 262},
    {TINY("qwen3_5_text", 6, 64, 96, 4, 2, 32, VOCAB, 2048), /* three layers have a state */
     .qk_norm = true, .untied = true, .stored = TINY_BF16, .seed = 263, .mixer = TINY_DELTA,
     .interval = 2, .taps = 3, .state_heads = 2, .state_key_heads = 1, .state_key_dim = 16,
     .state_dim = 16},
};

struct run {
    struct spw_backend backend;
    struct subject of[PRECISIONS]; /* from the first token on; their files are those of of[0] */
    const char *dir;
    const int32_t *ids;
    struct spw_options o;
    struct spw_plan_info all; /* exact, without budgets */
    struct spw_fallback last; /* what was told last */
    int n_told;
    struct twin twin; /* of the engine that runs; its engine is NULL: nobody follows */
};

static const char *passes(void *context, enum spw_kv_precision precision)
{
    (void)context;
    return precision != SPW_KV_EXACT ? NULL : "it is exact";
}

static void hear(struct run *s, struct spw_engine *e)
{
    s->n_told += run_fallbacks(e, &s->last);
}

static void begin(struct run *s, size_t model, bool reads_host_memory)
{
    *s = (struct run){.backend = run_backend(reads_host_memory)};
    struct spw_options bits = {.residual_window = 128};
    subject_open(&s->of[0], &models[model], "budgets", N_TOKENS, &bits);
    s->dir = s->of[0].dir;
    s->ids = s->of[0].ids[0];
    s->o = s->of[0].o;
    s->o.threads = 1;
    s->o.prefill_chunk = 128;
    s->o.on_oom = SPW_ON_OOM_SPILL;
    s->all = run_plan_on(&s->backend, s->dir, &s->o);
    s->o.gate = passes;
    for (int p = SPW_KV_EXACT; p < (QUANTIZES ? PRECISIONS : SPW_KV_INT8); p++) {
        bits.precision = (enum spw_kv_precision)p;
        if (p)
            subject_open_at(&s->of[p], s->dir, N_TOKENS, &bits, models[model].seed + 77);
        oracle_rows(&s->of[p], s->ids, N_TOKENS, N_TOKENS); /* before anything fails */
    }
}

static void end(struct run *s)
{
    for (int p = PRECISIONS - 1; p >= 0; p--)
        subject_close(&s->of[p]);
}

static bool right(struct run *s, struct spw_engine *e, const float *logits, size_t i)
{
    return oracle_same(&s->of[spw_engine_plan(e)->precision], s->ids, N_PROMPT + i, logits);
}

/* One step: to N_PROMPT + i tokens, with the logits of the precision that is planned with. */
static void step(struct run *s, struct spw_engine *e, struct spw_session *session, size_t i,
                 const char *what)
{
    const struct spw_span span = {session, s->ids, N_PROMPT + i, 1};
    CHECK_MSG(right(s, e, run_to(session, e, s->ids, N_PROMPT + i), i), "%s: step %zu at %s", what,
              i, spw_kv_precision_name(spw_engine_plan(e)->precision));
    twin_follow(&s->twin, e, &span, 1, 0);
    hear(s, e);
}

static void set(struct run *s, struct spw_engine *e, uint64_t device, uint64_t host, uint64_t disk)
{
    struct spw_error err = {0};
    CHECK_MSG(!spw_engine_set_budgets(e, device, host, disk, &err), "%s", err.text);
    if (s->twin.e)
        CHECK_MSG(!spw_engine_set_budgets(s->twin.e, device, host, disk, &err), "%s", err.text);
    hear(s, e);
    struct spw_options o = {.device_bytes = device, .host_bytes = host == SPW_NONE ? 0 : host};
    run_check_peaks(e, &o, "after budgets were set");
}

/* ---- the caller's budgets ---- */

/* From everything to almost nothing every other token, down to the device's smallest, then up. */
static void shrink(struct run *s)
{
    struct spw_plan_info of_two;
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_query_on(&of_two, &s->backend, s->dir, &s->o, &err), "%s", err.text);
    const uint64_t least = of_two.smallest_device_bytes, host = 64 << 20;
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &s->o);
    twin_open(&s->twin, e);
    struct spw_session *session = run_session(e), *idle = run_session(e);
    for (uint32_t i = 0; i < 2; i++)
        twin_open_session(&s->twin, i, s->o.context);
    step(s, e, session, 0, "shrinking");
    for (size_t i = 1; i < N_MORE; i++) {
        if (i % 2)
            set(s, e, least + (least >> (i / 2)) - (i / 2 > 3 ? least >> (i / 2) : 0), host, 0);
        CHECK(spw_session_n_tokens(session) == N_PROMPT + i - 1);
        step(s, e, session, i, "shrinking");
    }
    struct spw_plan_info tight = *spw_engine_plan(e);
    CHECK(tight.device.total <= least && tight.precision == SPW_KV_EXACT);
    CHECK(tight.host.kv || N_PROMPT < 512); /* a short run's smallest device holds it all */
    CHECK(e->events.n_fallbacks == (uint64_t)s->n_told && s->n_told >= 2 &&
          !strcmp(s->last.failed, "device budget"));
    CHECK(s->last.position >= N_PROMPT && s->last.n_recomputed >= N_PROMPT);
    set(s, e, 0, 0, 0);
    step(s, e, session, N_MORE, "grown again");
    CHECK(spw_engine_plan(e)->device.total > tight.device.total && !spw_engine_plan(e)->host.kv);
    run_check_peaks(e, &s->o, "grown again");
    CHECK(twin_end(&s->twin, e, "budgets down and up"));
    spw_session_close(idle);
    spw_session_close(session);
    spw_engine_close(e);
}

/* An engine with all the memory whose old KV lost precision where that of the subject did. */
struct mirror {
    struct spw_engine *engine;
    struct spw_session *session;
};

static void open_mirror(struct mirror *m, const struct run *s, enum spw_kv_precision precision)
{
    struct spw_options o = s->o;
    o.precision = precision;
    m->engine = run_open_on(&s->backend, s->dir, &o);
    m->session = run_session(m->engine);
}

static void close_mirror(struct mirror *m)
{
    spw_session_close(m->session);
    spw_engine_close(m->engine);
}

/* What was computed again was so from its first token on. */
static void follow(struct mirror *m, const struct run *s, enum spw_kv_precision precision)
{
    if (s->last.n_recomputed) {
        close_mirror(m);
        open_mirror(m, s, precision);
        return;
    }
    struct spw_plan_input in = m->engine->in;
    in.precision = precision;
    in.quantizes = true;
    CHECK(!spw_engine_replan(m->engine, &in));
}

static void step_both(const struct run *s, struct mirror *m, struct spw_engine *e,
                      struct spw_session *session, size_t i)
{
    const float *a = run_to(session, e, s->ids, N_PROMPT + i);
    CHECK_MSG(run_same(a, run_to(m->session, m->engine, s->ids, N_PROMPT + i), VOCAB),
              "step %zu at %s", i, spw_kv_precision_name(spw_engine_plan(e)->precision));
}

/* Nothing may leave the device: old KV loses precision, and gets it back. */
static void quantize(struct run *s)
{
    struct mirror mirror;
    int n_in_place = 0;
    struct spw_options o = s->o;
    o.on_oom = SPW_ON_OOM_QUANTIZE;
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &o);
    struct spw_session *session = run_session(e);
    struct spw_error err = {0};
    struct spw_plan_info need[PRECISIONS];
    for (int p = SPW_KV_EXACT; p < PRECISIONS; p++) {
        struct spw_options with = o;
        with.precision = (enum spw_kv_precision)p;
        CHECK_MSG(!spw_plan_query_on(&need[p], &s->backend, s->dir, &with, &err), "%s", err.text);
    }
    size_t i = 0;
    uint64_t least = need[SPW_KV_EXACT].smallest_device_bytes;
    step(s, e, session, i++, "exact");
    open_mirror(&mirror, s, SPW_KV_EXACT);
    run_to(mirror.session, mirror.engine, s->ids, N_PROMPT);
    for (int p = SPW_KV_INT8; p < PRECISIONS; p++) {
        if (need[p].smallest_device_bytes >= least)
            continue; /* a short run: what is exact beside it takes as much */
        least = need[p].smallest_device_bytes;
        set(s, e, least, 0, 0);
        CHECK((int)spw_engine_plan(e)->precision == p);
        CHECK((int)s->last.kind == SPW_FALLBACK_INT8 + p - SPW_KV_INT8);
        follow(&mirror, s, (enum spw_kv_precision)p);
        n_in_place += !s->last.n_recomputed;
        step_both(s, &mirror, e, session, i++);
        step_both(s, &mirror, e, session, i++);
    }
    CHECK(i > 1);
    CHECK(n_in_place || TEST_BACKEND != SPW_BACKEND_CPU);
    close_mirror(&mirror);
    set(s, e, 0, 0, 0);
    CHECK(spw_engine_plan(e)->precision == SPW_KV_EXACT && s->last.kind == SPW_FALLBACK_UP);
    step(s, e, session, i++, "exact again");
    spw_session_close(session);
    spw_engine_close(e);
}

/* With a prefix cache what is kept under one precision is not read under another, and is found
 * again when that comes back. */
static void keep_prefixes(struct run *s)
{
    struct spw_options o = s->o;
    struct spw_plan_info int8;
    struct spw_error err = {0};
    char store[192], command[256];
    snprintf(store, sizeof store, "%s/prefixes", s->dir);
    CHECK(!mkdir(store, 0700));
    o.on_oom = SPW_ON_OOM_QUANTIZE;
    o.prefix_cache_dir = store;
    o.precision = SPW_KV_INT8;
    CHECK_MSG(!spw_plan_query_on(&int8, &s->backend, s->dir, &o, &err), "%s", err.text);
    o.precision = SPW_KV_EXACT;
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &o);
    struct spw_session *session = run_session(e);
    const uint64_t budgets[] = {0, int8.smallest_device_bytes, 0, int8.smallest_device_bytes};
    for (size_t i = 0; i < 4; i++) {
        if (i)
            set(s, e, budgets[i], 0, 0);
        CHECK(!spw_session_publish(session, NULL)); /* nothing is there to keep: no failure */
        CHECK(spw_engine_plan(e)->precision == (i % 2 ? SPW_KV_INT8 : SPW_KV_EXACT));
        step(s, e, session, i, "beside a prefix cache");
        CHECK_MSG((spw_session_from_store(session) > 0) == (i > 1), "%zu: %zu tokens", i,
                  spw_session_from_store(session));
        CHECK_MSG(!spw_session_publish(session, &err), "%s", err.text);
    }
    spw_session_close(session);
    spw_engine_close(e);
    snprintf(command, sizeof command, "rm -rf '%s'", store);
    CHECK(system(command) == 0);
}

/* What cannot work is refused, and nothing has changed. */
static void refuse(struct run *s)
{
    const uint64_t least = s->all.smallest_device_bytes;
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &s->o);
    struct spw_session *session = run_session(e), *fork = NULL;
    struct spw_error err = {0};
    step(s, e, session, 0, "before");
    uint64_t device = spw_engine_plan(e)->device_budget_bytes;
    CHECK(spw_engine_set_budgets(e, least / 2, 0, 0, &err) == -ENOMEM);
    CHECK_MSG(strstr(err.text, "needs at least") && !strchr(err.text, '\n'), "%s", err.text);
    CHECK(spw_engine_plan(e)->device_budget_bytes == device);
    CHECK(spw_engine_set_budgets(e, least - 1, 0, 0, &err) == -ENOMEM);
    CHECK_MSG(strstr(err.text, " bytes given"), "%s", err.text); /* "2.63MiB" would be both */
    spw_error_clear(&err);
    /* The same with three tiers. */
    struct spw_options disk = s->o;
    struct spw_plan_info info = {0};
    disk.disk_dir = s->dir;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &disk, &err), "%s", err.text);
    disk.device_bytes = info.smallest_device_bytes - 1;
    CHECK(spw_plan_query_on(&info, &s->backend, s->dir, &disk, &err) == -ENOMEM);
    CHECK_MSG(strstr(err.text, " bytes, host memory of "), "%s", err.text);
    spw_error_clear(&err);
    /* An option that cannot be meant: no disk was ever named. */
    CHECK(spw_engine_set_budgets(e, 0, 0, 4096, &err) == -EINVAL &&
          strstr(err.text, "options.disk_dir"));
    CHECK(!e->events.n_fallbacks);
    step(s, e, session, 1, "after a refusal");
    CHECK(spw_session_reused(session) == N_PROMPT); /* not even the cache is gone */
    /* Budgets that change nothing cost nothing. */
    set(s, e, device, spw_engine_plan(e)->host_budget_bytes, 0);
    step(s, e, session, 2, "after no change");
    CHECK(spw_session_reused(session) == N_PROMPT + 1);
    CHECK(!spw_session_fork(&fork, session, &err) || !s->o.sessions);
    spw_session_close(fork);
    spw_session_close(session);
    spw_engine_close(e);
}

/* ---- memory that is refused ---- */

/* A step meets a fault at most once; the next call finds memory again. */
static void step_again(struct run *s, struct spw_engine *e, struct spw_session *session, size_t i)
{
    struct spw_error err = {0};
    struct spw_span span = {session, s->ids, N_PROMPT + i, 1};
    int rc = spw_sync(e, &span, 1, NULL, NULL, &err);
    CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0] && !strchr(err.text, '\n')), "%d: %s", rc,
              err.text);
    if (!rc)
        CHECK(right(s, e, spw_session_logits(session), i));
    else
        step(s, e, session, i, "again");
}

/* Runs with a fault. What was moved in a replan that failed is not known. */

/* The whole run, in which one allocation fails. */
static void run_with_fault(struct run *s)
{
    const uint64_t least = s->all.smallest_device_bytes;
    struct spw_engine *e = NULL;
    struct spw_session *session = NULL;
    struct spw_error err = {0};
    int rc = spw_engine_open_on(&e, &s->backend, s->dir, &s->o, &err);
    if (rc) {
        CHECK_MSG(rc == -ENOMEM && err.text[0], "%d: %s", rc, err.text);
        e = run_open_on(&s->backend, s->dir, &s->o);
    }
    if (spw_session_open(&session, e, &err))
        session = run_session(e);
    step_again(s, e, session, 0);
    const uint64_t budgets[] = {least * 5 / 4, least, 0};
    for (size_t i = 0; i < 3; i++) {
        spw_error_clear(&err);
        rc = spw_engine_set_budgets(e, budgets[i], i == 2 ? 0 : 64 << 20, 0, &err);
        CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0]), "%d: %s", rc, err.text);
        CHECK(spw_session_n_tokens(session) == N_PROMPT + i);
        step_again(s, e, session, i + 1);
    }
    hear(s, e);
    spw_session_close(session);
    spw_engine_close(e);
}

static void fail_allocations(struct run *s, int stride)
{
    int64_t outstanding = spw_alloc_outstanding();
    int n = 0, n_absorbed = 0;
    bool met = true;
    for (; met; n += stride) {
        s->n_told = 0;
        spw_alloc_fail_nth(n);
        run_with_fault(s);
        met = run_alloc_failed();
        n_absorbed += met && s->n_told && strstr(s->last.failed, "memory");
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "allocation %d: %lld blocks lost", n,
                  (long long)(spw_alloc_outstanding() - outstanding));
    }
    CHECK(n > 100);
    fprintf(stderr, "%s: allocations 0, %d, ... %d failed, %d of them arenas\n", s->dir, stride,
            n - 2 * stride, n_absorbed);
}

/* Every allocation of opening, one by one: where it is an arena that is refused, a plan that needs
 * less of that tier opens instead, and computes the same. */
static void refuse_arenas(struct run *s)
{
    const struct spw_plan_info *plan = &s->all;
    int n_device = 0;
    bool met = true, fits = plan->device.total * 3 / 4 / 4096 * 4096 >= plan->smallest_device_bytes;
    for (int n = 0; met; n++) {
        struct spw_engine *e = NULL;
        struct spw_error err = {0};
        s->n_told = 0;
        spw_alloc_fail_nth(n);
        int rc = spw_engine_open_on(&e, &s->backend, s->dir, &s->o, &err);
        met = run_alloc_failed();
        CHECK_MSG(!rc == !!e && (!rc || (rc == -ENOMEM && err.text[0])), "%d: %s", rc, err.text);
        if (!rc)
            hear(s, e);
        if (!rc && s->n_told) {
            CHECK(s->n_told == 1 && !s->last.n_recomputed && s->last.bytes_asked);
            n_device += !strcmp(s->last.failed, "device memory") && s->last.bytes_freed;
            struct spw_session *session = run_session(e);
            step(s, e, session, 0, "with less than was planned");
            run_check_peaks(e, &s->o, "with less than was planned");
            spw_session_close(session);
        }
        spw_engine_close(e);
    }
    CHECK_MSG(n_device == fits, "%d device arenas", n_device); /* three quarters are tried */
}

/* ---- the disk takes no more ---- */

/* Budgets under which KV lies on the disk. `stays`: the host could hold that KV instead, and fewer
 * hidden states. */
static void need_disk(const struct run *s, struct spw_options *o, bool stays)
{
    struct spw_plan_info info;
    struct spw_error err = {0};
    o->disk_dir = stays ? NULL : s->dir;
    o->disk_bytes = stays ? 0 : 64 << 20;
    o->device_bytes = s->all.smallest_device_bytes;
    o->host_bytes = 64 << 20;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, o, &err), "%s", err.text);
    o->host_bytes = info.smallest_host_bytes;
    o->disk_dir = s->dir;
    o->disk_bytes = 64 << 20;
}

/* The disk is full after n writes. Where the host can do without it, nobody notices; else the run
 * ends, and goes on once the host has a budget. */
static bool run_full(struct run *s, bool stays, int64_t n)
{
    struct io_fault full;
    struct spw_backend b = s->backend;
    struct spw_options o = s->o;
    struct spw_error err = {0};
    s->n_told = 0;
    io_fault_open(&full);
    io_fault_set(&full, ALL_WRITES, n);
    b.io_fault = &full.hook;
    need_disk(s, &o, stays);
    struct spw_engine *e = run_open_on(&b, s->dir, &o);
    struct spw_session *session = run_session(e);
    CHECK(spw_engine_plan(e)->disk.kv > 0);
    for (size_t i = 0; i < 3; i++) {
        struct spw_span span = {session, s->ids, N_PROMPT + i, 1};
        int rc = spw_sync(e, &span, 1, NULL, NULL, &err);
        if (rc) {
            CHECK_MSG(rc == -ENOSPC && io_fault_met(&full) && err.text[0] && !stays, "%d: %s", rc,
                      err.text);
            spw_error_clear(&err);
            CHECK_MSG(!spw_engine_set_budgets(e, o.device_bytes, 64 << 20, SPW_NONE, &err), "%s",
                      err.text);
            step(s, e, session, i, "with a host");
        } else {
            CHECK(right(s, e, spw_session_logits(session), i));
        }
        hear(s, e);
    }
    if (io_fault_met(&full) && stays) {
        if (!s->n_told) { /* the last write of all: the next one hears of it */
            run_to(session, e, s->ids, 1);
            step(s, e, session, 0, "after a last write");
        }
        CHECK(s->n_told && !strcmp(s->last.failed, "disk space") && s->last.bytes_freed);
    }
    spw_session_close(session);
    spw_engine_close(e);
    pthread_mutex_destroy(&full.lock);
    return full.met;
}

static void fill_disk(struct run *s)
{
    int64_t n = 0;
    for (; run_full(s, true, n); n += WRITES + n / 2)
        ;
    for (n = 0; run_full(s, false, n); n += WRITES + n / 2)
        ;
    CHECK(n > WRITES);
    s->o.on_oom = 0; /* or with less precision, where that fits */
    for (n = WRITES / 2; QUANTIZES && run_full(s, false, n); n += 2 * WRITES + n / 2)
        ;
    s->o.on_oom = SPW_ON_OOM_SPILL;
}

/* A session that is cut back and grows again writes more than any plan foresees. */
static void exceed_write_limit(struct run *s)
{
    struct spw_options o = s->o;
    struct spw_plan_info info;
    struct spw_error err = {0};
    need_disk(s, &o, true);
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &o, &err), "%s", err.text);
    o.disk_write_limit = info.disk_write_bytes;
    s->n_told = 0;
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &o);
    struct spw_session *session = run_session(e);
    for (int i = 0; i < 4 && !s->n_told; i++) {
        run_to(session, e, s->ids, 1);
        step(s, e, session, 0, "again and again");
    }
    CHECK(s->n_told == 1 && !strcmp(s->last.failed, "disk quota"));
    step(s, e, session, 1, "past the write limit");
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.moved_bytes[SPW_MOVED_HOST_TO_DISK] <= o.disk_write_limit);
    spw_session_close(session);
    spw_engine_close(e);
}

/* The same budgets again: everything stays where it is, whatever lies between the members of the
 * plan. */
static void same_again(struct run *s)
{
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &s->o);
    struct spw_session *session = run_session(e);
    step(s, e, session, 0, "first");
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        uint8_t *r = (uint8_t *)&e->plan.residency[k];
        memset(r + offsetof(struct spw_residency, quantizes) + 1, 0x5a, 3);
    }
    set(s, e, s->o.device_bytes, s->o.host_bytes, s->o.disk_bytes);
    CHECK(spw_session_logits(session) != NULL);
    spw_session_close(session);
    spw_engine_close(e);
}

int main(int argc, char **argv)
{
    static struct run s;
    int stride = check_stride(argc, argv, STRIDE);
    if (!run_is_there())
        return CHECK_SKIP;
    for (size_t i = 0; i < N_MODELS; i++) {
        begin(&s, i, i == 0);
        s.o.sessions = 2;
        shrink(&s);
        s.o.sessions = 0;
        same_again(&s);
        if (QUANTIZES) {
            quantize(&s);
            if (i == 0)
                keep_prefixes(&s);
        }
        refuse(&s);
        refuse_arenas(&s);
        fail_allocations(&s, stride);
        end(&s);
    }
    /* Straight from device memory, and by way of the host's; and with states. */
    for (size_t i = 0; i < N_MODELS && TEST_BACKEND == SPW_BACKEND_CPU; i++) {
        begin(&s, i == 2 ? 2 : 0, i == 1);
        fill_disk(&s);
        exceed_write_limit(&s);
        end(&s);
    }
    return check_done();
}
