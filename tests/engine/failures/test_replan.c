/* Old KV that loses precision in the middle of a run, where it lies: on the device, on the host and
 * on the disk, at random positions of random models under random budgets, in one step or in
 * several. The logits afterwards are bit for bit those of an engine with all the memory that was
 * told the same at the same position; and, for a model of one layer, whose keys and values do not
 * depend on what attention reads, those of a run that had this precision from its first token on.
 * What was moved is what was predicted, nothing is computed again, and no frame is lost: the run
 * goes on to the end of its context, cut back and forked.
 *
 * The same when it is a full disk that makes an engine fall back.
 *
 *   test_replan [draws [seed]] */
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/twin.h"

enum {
    VOCAB = 61,
    /* From 16 tiles on, int8 takes less memory than exact tiles, with each model and window. */
    CONTEXT = TEST_GPU ? 16 * SPW_TILE_TOKENS : 3072,
    PROMPT = TEST_GPU ? 500 : 1500,
    DRAWS = TEST_GPU || RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 4 : 40, /* each model, at least */
    STEPS = 4,
};

static const struct tiny_model models[] = {
    {TINY("llama", 1, 128, 96, 2, 1, 64, VOCAB, 4096), .untied = true, .seed = 271},
    {TINY("qwen3", 3, 128, 96, 2, 1, 64, VOCAB, 4096), .qk_norm = true, .untied = true,
     .stored = TINY_BF16, .seed = 272},
    {TINY("gemma3_text", 3, 128, 96, 2, 1, 64, VOCAB, 4096),
     .more = ",\"sliding_window\":150,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\"",
     .qk_norm = true, .sandwich = true, .stored = TINY_BF16, .seed = 273},
    {TINY("qwen3_5_text", 3, 128, 96, 2, 1, 64, VOCAB, 4096), /* layers with a state */
     .qk_norm = true, .untied = true, .stored = TINY_BF16, .seed = 274, .mixer = TINY_DELTA,
     .interval = 2, .taps = 3, .state_heads = 2, .state_key_heads = 1, .state_key_dim = 16,
     .state_dim = 16},
};

/* What is done at a position: precision NONE leaves it as it is. */
struct event {
    size_t n_tokens;
    enum spw_kv_precision precision;
};

struct draw {
    struct spw_backend backend;
    const char *dir;
    const struct tiny_model *model;
    struct spw_options o;
    int32_t ids[CONTEXT];
    struct event events[STEPS];
    size_t back; /* cut back so far and go on, at the end */
};

/* ---- one run ---- */

struct result {
    float logits[STEPS + 2][VOCAB]; /* of each event, cut back, and of a fork at the end */
    size_t reused;                  /* when it was cut back */
    uint32_t n_checkpoints;         /* that its plan has room for */
    bool predicted;
    uint64_t n_below, n_shrunk; /* replans with tiles below the device; under lower budgets only */
};

/* `seed`: NULL, or budgets become lower, too, by an eighth to a half. */
static struct spw_plan_input asked(const struct spw_engine *e, enum spw_kv_precision precision,
                                   uint64_t *seed)
{
    struct spw_plan_input in = e->in;
    in.precision = precision;
    in.quantizes = precision != SPW_KV_EXACT;
    if (!seed)
        return in;
    const struct spw_plan_info *now = spw_engine_plan(e);
    in.device_bytes = e->lane.device_arena_bytes + e->plan.mapped_bytes;
    in.host_bytes = e->lane.host_arena_bytes + e->plan.page_cache_bytes;
    if (e->io) /* arenas cannot become shorter */
        in.disk_bytes = now->disk.total - draw_between(seed, 0, now->disk.total / 2) / 4096 * 4096;
    else if (check_random(seed) % 2)
        in.host_bytes -= draw_between(seed, 0, now->host.kv / 4) / 4096 * 4096;
    else
        in.device_bytes -= draw_between(seed, 0, now->device.kv_resident / 8) / 4096 * 4096;
    return in;
}

/* All steps of the draw. False: a plan in these budgets was not to be had, and nothing more is
 * known. */
static bool run(const struct draw *d, const struct spw_options *o, struct result *out,
                uint64_t *seed)
{
    struct spw_engine *e = run_open_on(&d->backend, d->dir, o);
    struct twin twin = {0};
    struct spw_session *s = run_session(e), *fork = NULL;
    struct spw_error err = {0};
    if (!TEST_GPU) { /* whose arenas have other sizes than those of a dry engine */
        twin_open(&twin, e);
        twin_open_session(&twin, s->slot, CONTEXT);
    }
    enum spw_kv_precision now = SPW_KV_EXACT;
    int rc = 0;
    for (size_t i = 0; i < STEPS && !rc; i++) {
        const float *logits = run_to(s, e, d->ids, d->events[i].n_tokens);
        const struct spw_span span = {s, d->ids, d->events[i].n_tokens, 1};
        twin_follow(&twin, e, &span, 1, 0);
        memcpy(out->logits[i], logits, sizeof out->logits[i]);
        bool shrinks = seed && check_random(seed) % 4 == 0;
        if (d->events[i].precision <= now && !shrinks)
            continue;
        out->n_shrunk += d->events[i].precision == now;
        now = d->events[i].precision;
        out->n_below += spw_kv_begin(s->seq.kv, e->model.config.n_slices - 1) > 0;
        struct spw_plan_input in = asked(e, now, shrinks ? seed : NULL);
        rc = spw_engine_replan(e, &in);
        if (twin.e) {
            in.weights = twin.e->in.weights;
            CHECK(spw_engine_replan(twin.e, &in) == rc);
        }
        CHECK_MSG(!rc || rc == -ENOMEM || rc == -EDQUOT, "%d", rc);
        CHECK(rc || (spw_engine_plan(e)->precision == now && s->cached));
        struct spw_options lower = {.device_bytes = shrinks ? in.device_bytes : o->device_bytes,
                                    .host_bytes = shrinks ? in.host_bytes : o->host_bytes};
        if (!rc) /* peaks begin with what it has now */
            e->lane.ops->set_budgets(e->lane.device, spw_engine_limit(lower.device_bytes),
                                     spw_engine_limit(lower.host_bytes));
        if (!rc)
            run_check_peaks(e, &lower, "replan");
    }
    out->predicted = twin_end(&twin, e, "replans");
    if (!rc) {
        size_t n = d->events[STEPS - 1].n_tokens;
        CHECK_MSG(!spw_session_fork(&fork, s, &err), "%s", err.text);
        memcpy(out->logits[STEPS], run_to(s, e, d->ids, n - d->back), sizeof out->logits[0]);
        out->reused = spw_session_reused(s);
        out->n_checkpoints = spw_engine_plan(e)->n_checkpoints;
        memcpy(out->logits[STEPS + 1], run_to(fork, e, d->ids, CONTEXT), sizeof out->logits[0]);
        CHECK(spw_session_reused(fork) == n);
        run_check_peaks(e, o, "after a replan");
    }
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    return !rc;
}

/* ---- draws ---- */

static void draw(struct draw *d, uint64_t *seed)
{
    size_t n = draw_between(seed, 1, PROMPT);
    enum spw_kv_precision p = SPW_KV_EXACT;
    run_ids(d->ids, CONTEXT, VOCAB, check_random(seed));
    for (size_t i = 0; i < STEPS; i++) {
        if (i && check_random(seed) % 4)
            p = (enum spw_kv_precision)draw_between(seed, p, SPW_KV_INT4);
        d->events[i] = (struct event){n, p};
        n += draw_between(seed, 1, i == 1 ? 300 : 20);
    }
    d->back = draw_between(seed, 0, 100);
    if (d->back >= d->events[STEPS - 1].n_tokens)
        d->back = 0;
    d->o = (struct spw_options){.backend = TEST_BACKEND,
                                .context = CONTEXT,
                                .sessions = 2,
                                .threads = 1,
                                .prefill_chunk = (uint32_t)draw_between(seed, 128, 256),
                                .residual_window = 128 * draw_between(seed, 0, 2) + 1,
                                .rolls_back = draw_between(seed, 0, 1),
                                .on_oom = SPW_ON_OOM_SPILL};
}

/* Budgets somewhere between those that just work and all that could be used. */
static struct spw_options tighten(const struct draw *d, uint64_t *seed)
{
    struct spw_options o = d->o;
    bool some_host = false;
    o.threads = 1 + (int)(check_random(seed) % 2);
    if (check_random(seed) % 3) {
        o.disk_dir = d->dir;
        o.disk_bytes = 64 << 20;
        some_host = check_random(seed) % 2;
    }
    struct spw_plan_info info = run_plan_on(&d->backend, d->dir, &o);
    uint64_t spare = info.device.total - info.smallest_device_bytes;
    o.device_bytes = info.smallest_device_bytes + draw_between(seed, spare / 4, spare);
    if (o.disk_dir)
        run_to_disk_on(&d->backend, d->dir, &o);
    if (some_host) {
        o.host_bytes = 64 << 20;
        info = run_plan_on(&d->backend, d->dir, &o);
        o.host_bytes = draw_between(seed, info.smallest_host_bytes, info.host.total);
    }
    return o;
}

struct counts {
    int replan, refused, below, one_layer, cut, shrunk, predicted;
};

/* The precision that all fallbacks led to, from the first token on, with all memory. */
static bool same_from_start(const struct draw *d, size_t n_tokens, const float *logits)
{
    struct spw_options o = d->o;
    o.precision = d->events[STEPS - 1].precision;
    struct spw_engine *e = run_open_on(&d->backend, d->dir, &o);
    struct spw_session *s = run_session(e);
    bool same = run_same(run_to(s, e, d->ids, n_tokens), logits, VOCAB);
    spw_session_close(s);
    spw_engine_close(e);
    return same;
}

static void check_one_layer(const struct draw *d, const struct result *got, struct counts *n)
{
    CHECK(same_from_start(d, CONTEXT, got->logits[STEPS + 1]));
    n->one_layer += d->events[STEPS - 1].precision != SPW_KV_EXACT;
}

/* The logits of n tokens with all memory, after a cut back to r tokens, which may lie between two
 * events. */
static bool same_from(const struct draw *d, size_t r, size_t n, const float *logits)
{
    struct spw_engine *e = run_open_on(&d->backend, d->dir, &d->o);
    struct spw_session *s = run_session(e);
    struct spw_error err = {0};
    for (size_t i = 0; i < STEPS; i++) {
        const struct event *now = &d->events[i];
        struct spw_plan_input in = asked(e, now->precision, NULL);
        if (spw_session_n_tokens(s) < r && r <= now->n_tokens) {
            run_to(s, e, d->ids, r);
            CHECK(!spw_session_checkpoint(s));
        }
        run_to(s, e, d->ids, now->n_tokens);
        CHECK(spw_engine_plan(e)->precision == now->precision || !spw_engine_replan(e, &in));
    }
    const struct spw_span cut = {s, d->ids, r, 0};
    CHECK_MSG(!spw_sync(e, &cut, 1, NULL, NULL, &err), "%s", err.text);
    CHECK_MSG(spw_session_reused(s) == r, "%zu of %zu tokens", spw_session_reused(s), r);
    bool same = run_same(run_to(s, e, d->ids, n), logits, VOCAB);
    spw_session_close(s);
    spw_engine_close(e);
    return same;
}

/* Where the newest prompt before position n begins or ends. */
static size_t newest_end(const struct draw *d, size_t n)
{
    size_t newest = 0;
    for (size_t i = 0, from = 0; i < STEPS; from = d->events[i++].n_tokens)
        if (d->events[i].n_tokens > from + 1) {
            newest = from < n ? from : newest;
            newest = d->events[i].n_tokens < n ? d->events[i].n_tokens : newest;
        }
    return newest;
}

/* A session that is cut back begins where memory allows, in the precision that it has by now. What
 * windows leave behind stays where there is room, and a fallback may take it. A model with states
 * has checkpoints where prompts begin and end; those at borders between are made only where a chunk
 * more reads no tiles again (runtime/plan/plan.h). */
static void check_cut_back(const struct draw *d, const struct result *got,
                           const struct result *expected)
{
    size_t n = d->events[STEPS - 1].n_tokens - d->back;
    if (d->model->mixer && d->events[STEPS - 1].precision == SPW_KV_EXACT &&
        got->n_checkpoints >= 3 * STEPS) /* room for all */
        CHECK_MSG(got->reused >= newest_end(d, n), "%zu of %zu tokens", got->reused, n);
    if (got->reused == expected->reused) {
        CHECK(run_same(got->logits[STEPS], expected->logits[STEPS], VOCAB));
        return;
    }
    CHECK(d->model->mixer || (d->o.rolls_back && got->reused < expected->reused));
    CHECK(got->reused ? same_from(d, got->reused, n, got->logits[STEPS])
                      : same_from_start(d, n, got->logits[STEPS]));
}

static void check_draw(const char *dir, const struct tiny_model *model, bool reads_host_memory,
                       uint64_t *seed, struct counts *n)
{
    static struct draw d;
    struct result expected = {0}, got = {0};
    uint64_t given = *seed;
    d = (struct draw){.backend = run_backend(reads_host_memory), .dir = dir, .model = model};
    draw(&d, seed);
    struct spw_options o = tighten(&d, seed);
    CHECK_MSG(run(&d, &d.o, &expected, NULL), "seed %llu: with all memory",
              (unsigned long long)given);
    if (!run(&d, &o, &got, seed)) {
        n->refused++;
        return;
    }
    for (size_t i = 0; i < STEPS + 2; i++)
        CHECK_MSG(i == STEPS || run_same(got.logits[i], expected.logits[i], VOCAB),
                  "seed %llu: step %zu", (unsigned long long)given, i);
    check_cut_back(&d, &got, &expected);
    n->cut += got.reused + 1 == d.events[STEPS - 1].n_tokens - d.back;
    if (model->layers == 1)
        check_one_layer(&d, &got, n);
    n->replan++;
    n->shrunk += got.n_shrunk > 0;
    n->below += got.n_below > 0;
    n->predicted += got.predicted;
}

/* ---- a disk that takes no more ---- */

struct full {
    struct io_fault drive; /* full until the gate is asked: a plan is being made then */
    struct spw_fallback told[SPW_ENGINE_EVENTS_KEPT];
    int n_told;             /* by the latest step */
    int n_in_place, n_back; /* by all: with the same caches; of them, cut back to a checkpoint */
};

static const char *passes(void *context, enum spw_kv_precision precision)
{
    io_fault_end(&((struct full *)context)->drive);
    return precision != SPW_KV_EXACT ? NULL : "it is exact";
}

static void hear(struct full *f, struct spw_engine *e)
{
    struct spw_engine_event event;
    f->n_told = 0;
    while (spw_engine_event(e, &event))
        if (event.kind == SPW_ENGINE_FALLBACK)
            f->told[f->n_told++] = event.fallback;
}

enum {
    FULL_PROMPT = 1900,
    FULL_TOKENS = FULL_PROMPT + 300,
    STATES_BYTES = 32 << 10, /* more than a checkpoint takes, and no tile */
};

/* A step to n tokens. True: it has failed, as it must: the disk takes no more than it holds, and no
 * precision makes the rest fit. */
static bool is_refused(const struct draw *d, const struct spw_options *o, struct spw_engine *e,
                       struct spw_session *s, size_t n)
{
    struct spw_error err = {0};
    struct spw_plan_info info;
    struct spw_options less = *o;
    struct spw_span span = {s, d->ids, n, 1};
    int rc = spw_sync(e, &span, 1, NULL, NULL, &err);
    CHECK_MSG(!rc || rc == -ENOSPC, "%zu tokens: %s", n, err.text);
    if (!rc)
        return false;
    uint64_t held = spw_disk_n_used(e->disk) * e->plan.tile_bytes;
    less.disk_bytes = held ? held : SPW_NONE;
    less.precision = SPW_KV_INT4;
    CHECK(spw_plan_query_on(&info, &d->backend, d->dir, &less, &err) == -ENOMEM);
    return true;
}

/* The mirror, which has all the memory and no full disk, does what this fallback did: goes to the
 * tokens that stayed, and lowers the precision of the old KV there. False: none stayed, and all are
 * computed again in the new precision. */
static bool mirror_fallback(const struct draw *d, struct full *f, const struct spw_fallback *told,
                            struct spw_engine *all, struct spw_session *mirror)
{
    static const enum spw_kv_precision precisions[] = {[SPW_FALLBACK_INT8] = SPW_KV_INT8,
                                                       [SPW_FALLBACK_INT8_INT4] = SPW_KV_INT8_INT4,
                                                       [SPW_FALLBACK_INT4] = SPW_KV_INT4};
    const bool lossy = told->kind >= SPW_FALLBACK_INT8 && told->kind <= SPW_FALLBACK_INT4;
    const size_t stay = told->position - told->n_recomputed, had = spw_session_n_tokens(mirror);
    const struct spw_span span = {mirror, d->ids, stay, 0};
    struct spw_error err = {0};
    CHECK(!strcmp(told->failed, "disk space") && told->bytes_asked);
    CHECK(told->lossy_from == (!lossy ? 0 : stay ? stay : 384));
    if (!stay)
        return false;
    CHECK(!told->n_recomputed || d->model->mixer);
    CHECK_MSG(!spw_sync(all, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK_MSG(stay > had || spw_session_reused(mirror) == stay, "%zu tokens", stay);
    if (lossy) {
        struct spw_plan_input in = asked(all, precisions[told->kind], NULL);
        CHECK(!spw_engine_replan(all, &in));
    }
    f->n_in_place++;
    f->n_back += told->n_recomputed > 0;
    return true;
}

/* Token by token past some tile borders: where the disk is full, something gives way, and the
 * mirror is told of it. */
static void fill_disk(const struct draw *d, struct spw_options *o, struct full *f)
{
    struct spw_backend b = d->backend;
    io_fault_open(&f->drive);
    b.io_fault = &f->drive.hook;
    struct spw_engine *e = run_open_on(&b, d->dir, o),
                      *all = run_open_on(&d->backend, d->dir, &d->o);
    struct spw_session *s = run_session(e), *mirror = run_session(all);
    bool alike = true;
    for (size_t n = FULL_PROMPT; n <= FULL_TOKENS && alike; n += n % 64 == 1 ? 7 : 1) {
        if (is_refused(d, o, e, s, n))
            break;
        const float *logits = spw_session_logits(s);
        hear(f, e);
        io_fault_set(&f->drive, ALL_WRITES, 0);
        for (int i = 0; i < f->n_told && alike; i++)
            alike = mirror_fallback(d, f, &f->told[i], all, mirror);
        CHECK_MSG(!alike || run_same(logits, run_to(mirror, all, d->ids, n), VOCAB), "%zu tokens",
                  n);
        CHECK(!spw_session_checkpoint(mirror));
    }
    run_check_peaks(e, o, "a full disk");
    spw_session_close(mirror);
    spw_session_close(s);
    spw_engine_close(all);
    spw_engine_close(e);
}

static void fill_disks(const char *dir, const struct tiny_model *model, uint64_t seed)
{
    static struct draw d;
    int n_in_place = 0, n_back = 0;
    d = (struct draw){.dir = dir, .model = model, .backend = run_backend(true)};
    draw(&d, &seed);
    d.o.sessions = 1;
    d.o.residual_window = 128;
    d.o.context = FULL_TOKENS; /* most of it lies on the disk when that is full */
    for (uint64_t part = 24, i = 0; part-- > 0 && i < (RUN_UNDER_ASAN ? 3 : 8);) {
        struct full f = {0};
        struct spw_options o = d.o;
        d.backend = run_backend(i % 4);
        o.gate = passes;
        o.gate_context = &f;
        o.disk_dir = dir;
        o.disk_bytes = 64 << 20;
        o.host_bytes = 64 << 20;
        o.on_oom = SPW_ON_OOM_SPILL;
        struct spw_plan_info info = run_plan_on(&d.backend, dir, &o);
        o.device_bytes = info.smallest_device_bytes +
                         (info.device.total - info.smallest_device_bytes) * part / 24;
        info = run_plan_on(&d.backend, dir, &o);
        o.host_bytes = info.smallest_host_bytes + (i / 4 << 17) + (model->mixer ? STATES_BYTES : 0);
        if (!run_plan_on(&d.backend, dir, &o).disk.kv)
            continue;
        o.on_oom = 0;
        fill_disk(&d, &o, &f);
        n_in_place += f.n_in_place;
        n_back += f.n_back;
        i++;
    }
    fprintf(stderr, "%s: %d fallbacks of full disks in place, %d of them to a checkpoint\n",
            model->family, n_in_place, n_back);
    CHECK(n_in_place > 0 && (n_back > 0 || !model->mixer));
}

int main(int argc, char **argv)
{
    struct check_draws all = check_draws_of(argc, argv, DRAWS);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : check_seed();
    size_t n_models = sizeof models / sizeof *models;
    struct counts n = {0};
    char dirs[sizeof models / sizeof *models][128];
    if (!run_is_there())
        return CHECK_SKIP;
    for (size_t i = 0; i < n_models; i++)
        run_folder(dirs[i], &models[i], "replan");
    while (check_another(&all)) {
        int i = all.done - 1;
        size_t m = (size_t)i % n_models;
        uint64_t of_draw = seed + (uint64_t)i * 1000003;
        check_draw(dirs[m], &models[m], i % 2, &of_draw, &n);
    }
    fprintf(stderr,
            "%d runs, %d of them predicted, %d with tiles below, %d under lower budgets, %d of one "
            "layer, %d cut back; %d refused\n",
            n.replan, n.predicted, n.below, n.shrunk, n.one_layer, n.cut, n.refused);
    /* about two draws in three run to their end, and half of those have tiles below */
    CHECK(all.done < 20 || (n.replan > all.done / 6 && n.below && n.cut && n.one_layer &&
                            (TEST_GPU || n.predicted > n.replan / 2)));
    if (TEST_BACKEND == SPW_BACKEND_CPU && !RUN_UNDER_TSAN)
        for (size_t i = 1; i < n_models; i += 2) /* those without windows */
            fill_disks(dirs[i], &models[i], seed);
    for (size_t i = 0; i < n_models; i++)
        tiny_model_remove(dirs[i]);
    return check_done();
}
