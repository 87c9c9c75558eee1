/* Placement never changes the answer: random budgets, chunk sizes, slots, thread counts, batch
 * partners, prefix splits and interleavings, all compared with memcmp to one unconstrained run of
 * the same precision: exact, or quantized where KV is old. In
 * every draw the bytes that were moved must be the bytes that were predicted, by the engine and by
 * somebody who is only told which tokens were computed, and no peak may pass its budget.
 *
 * Some draws aim at old KV that streams, from the host or from the disk, as drawn ones of this
 * size rarely make it do.
 *
 *   test_placement [draws [first]]     default 160, 320 in a full run, under sanitizers fewer;
 * SPW_SEED repeats a run, and with 1 draw, that number and its seed, a single one */
#include "tests/engine/told_run.h"

#ifndef TEST_TOKENS
#define TEST_TOKENS (RUN_UNDER_ASAN ? 1100 : 1500)
#define TEST_DRAWS (RUN_UNDER_TSAN ? 24 : RUN_UNDER_ASAN ? 50 : 320)
#define TEST_MODELS N_TINY_MODELS
#endif

enum { N_SEQUENCES = 3, MOST_TOKENS = TEST_TOKENS > 1100 ? TEST_TOKENS : 1100 };
enum { EXACT, QUANTIZED, N_KINDS };
enum { LONG = TEST_MODELS, N_SUBJECTS };
enum aim { ANYTHING, FROM_HOST, FROM_DISK };

/* Little else than KV, and in a long run more old tiles than the least slots hold. */
static const struct tiny_model long_run = {"llama", 2,    32,    32,    2,     1,    32,   67,
                                           4096,    NULL, false, false, false, true, true, 7};

/* One model with the answers of the unconstrained run. */
struct subject {
    char dir[128];
    enum spw_dtype compute;
    enum spw_kv_precision precision; /* when quantized */
    uint64_t residual_window;
    uint32_t vocab;
    size_t n_tokens; /* of a run */
    int32_t tokens[N_SEQUENCES][MOST_TOKENS];
    float *logits[N_KINDS][N_SEQUENCES]; /* [n_tokens][vocab]; NULL: not asked for yet */
};

/* One model's weights are not stored in the type they are computed with. */
static enum spw_dtype compute_of(int i)
{
    return i == 3 ? SPW_DTYPE_BF16 : SPW_DTYPE_AUTO;
}

/* Where layers see every key, quantized ones must show from the first block on that reads one. */
static void expect_other_bits(const struct subject *s, const struct spw_options *o)
{
    struct spw_plan_info info;
    CHECK(spw_plan_query_on(&info, NULL, s->dir, o, NULL) == 0);
    uint64_t window = s->residual_window == SPW_BYTES_NONE ? 0 : s->residual_window;
    const float *exact = s->logits[EXACT][0], *quantized = s->logits[QUANTIZED][0];
    size_t from = (size_t)spw_residual_until(1, spw_residual_tiles(window)) * SPW_TILE_TOKENS;
    CHECK(from < s->n_tokens && !memcmp(exact, quantized, from * s->vocab * sizeof *exact));
    bool same =
        !memcmp(exact + from * s->vocab, quantized + from * s->vocab, s->vocab * sizeof *exact);
    CHECK(same == (info.precision == SPW_KV_EXACT));
}

static void make_subject(struct subject *s, int i)
{
    uint64_t fixed = (uint64_t)i + 77,
             *seed = &fixed; /* a draw is repeated by its own seed alone */
    const struct tiny_model *m = i == LONG ? &long_run : &tiny_models[i];
    static const uint64_t windows[] = {128, SPW_BYTES_NONE, 200, SPW_BYTES_NONE};
    s->compute = compute_of(i);
    s->precision = (enum spw_kv_precision)(SPW_KV_INT8 + i % 3);
    s->n_tokens = i == LONG ? MOST_TOKENS : TEST_TOKENS;
    s->residual_window = i == LONG ? SPW_BYTES_NONE : windows[i % 4];
    snprintf(s->dir, sizeof s->dir, "/tmp/spw_placement_%d_%d", (int)getpid(), i);
    tiny_model_write(m, s->dir);
    for (int k = 0; k < N_SEQUENCES; k++) {
        for (size_t t = 0; t < s->n_tokens; t++)
            s->tokens[k][t] = (int32_t)(check_random(seed) % m->vocab);
        /* sequences share a beginning, so that reuse across them is exercised */
        if (k)
            memcpy(s->tokens[k], s->tokens[0], (size_t)k * 200 * sizeof(int32_t));
    }
}

/* What a draw is compared with: everything on the device, computed when it is first wanted. */
static void want_logits(struct subject *s, int kind, int k)
{
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = s->n_tokens, .threads = 2, .compute = s->compute};
    if (s->logits[kind][k])
        return;
    if (kind == QUANTIZED) {
        o.precision = s->precision;
        o.residual_window = s->residual_window;
    }
    s->logits[kind][k] = model_all_logits(s->dir, &o, s->tokens[k], s->n_tokens, &s->vocab);
    if (kind == QUANTIZED && !k) {
        want_logits(s, EXACT, 0);
        expect_other_bits(s, &o);
    }
}

/* How much the draws really tried. */
static uint64_t draws_with_disk, draws_with_three_tiers, disk_tiles_read;
static uint64_t rows_compared, draws_with_spill, draws_with_streamed_weights;
static uint64_t draws_with_mapped_weights, draws_with_packed, draws_with_kept;
static uint64_t draws_from_disk, draws_from_both, draws_bounced, draws_quantized;
static uint64_t old_from_host, old_from_disk; /* tiles that decode steps streamed */

struct draw {
    enum aim aim;
    struct subject *subject;
    int kind; /* EXACT or QUANTIZED */
    struct spw_backend backend;
    struct spw_engine *engine;
    struct told told;
    struct spw_session *sessions[N_SEQUENCES];
    int sequence[N_SEQUENCES]; /* which tokens a session holds */
    uint32_t n_sessions;
    uint64_t context;
    struct {
        int sequence;
    } spans[N_SEQUENCES];
    uint64_t checked, wrong;
    uint64_t from_host, from_disk; /* old tiles that streamed into decode steps */
};

static void compare_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct draw *d = context;
    const struct subject *s = d->subject;
    const float *expected = s->logits[d->kind][d->spans[span].sequence] + position * s->vocab;
    d->checked++;
    d->wrong += memcmp(logits, expected, s->vocab * sizeof *logits) != 0;
}

static uint64_t between(uint64_t *seed, uint64_t low, uint64_t high)
{
    return low >= high ? low : check_range(seed, low, high);
}

/* A third tier below this device budget: with the host's from the least upward, or for all but KV;
 * and as much disk as that takes, or more. */
static void draw_disk(struct draw *d, struct spw_options *o, uint64_t *seed)
{
    struct spw_plan_info info;
    struct spw_error err = {{0}};
    uint64_t host = d->aim ? 8 : check_random(seed) % 4;
    o->disk_dir = d->subject->dir;
    o->disk_bytes = 256 << 20;
    o->io = (enum spw_io_kind)(check_random(seed) % 3);
    CHECK_MSG(spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err) == 0, "%s", err.text);
    /* where most of the KV has to go down; short sequences have few tiles that could */
    if (d->aim || check_random(seed) % 2 || TEST_TOKENS < 1000) {
        uint64_t more = d->aim ? 0 : info.smallest_device_bytes / 16;
        o->device_bytes =
            between(seed, info.smallest_device_bytes, info.smallest_device_bytes + more);
        CHECK_MSG(spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err) == 0, "%s",
                  err.text);
    }
    run_to_disk_on(&d->backend, d->subject->dir, o);
    if (host) { /* some of what would lie on disk */
        CHECK_MSG(spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err) == 0, "%s",
                  err.text);
        o->host_bytes = info.smallest_host_bytes + between(seed, 0, info.disk.total / host);
    }
    CHECK_MSG(spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err) == 0, "%s", err.text);
    o->disk_bytes = between(seed, info.smallest_disk_bytes, 2 * info.disk.total);
    if (!o->disk_bytes)
        o->disk_bytes = 1 << 20;
}

/* Budgets from the smallest that can work upward. */
static void draw_options(struct draw *d, struct spw_options *o, uint64_t *seed)
{
    struct spw_plan_info all, least;
    struct spw_error err = {{0}};
    uint32_t chunks[] = {0, 0, 1, 7, 16, 64, 100, 128, 200, 333};
    uint32_t splits[] = {0, 0, 0, 0, 0, 0, 1, 2};
    *o = (struct spw_options){
        .backend = TEST_BACKEND,
        .threads = (uint32_t)check_range(seed, 1, 3),
        .compute = d->subject->compute,
        .context = d->context,
        .sessions = d->n_sessions,
        .prefill_chunk = chunks[check_random(seed) % 10],
        .prefetch_slots = (uint32_t)check_range(seed, 0, 5),
        .prefetch_splits = splits[check_random(seed) % 8],
        .rolls_back = check_random(seed) % 3 == 0,
        .delay_seed = check_random(seed) % 8 ? 0 : check_random(seed) | 1,
    };
    if (o->prefetch_slots == 1)
        o->prefetch_slots = 2;
    if (d->aim) /* little that old tiles could lie in instead */
        o->prefetch_slots = 2, o->prefetch_splits = 1, o->prefill_chunk &= ~63u;
    if (d->kind == QUANTIZED) {
        o->precision = d->subject->precision;
        o->residual_window = d->subject->residual_window;
    }
    CHECK_MSG(spw_plan_query_on(&all, &d->backend, d->subject->dir, o, &err) == 0, "%s", err.text);
    uint64_t low = all.smallest_device_bytes, high = all.device.total;
    uint64_t fraction = check_random(seed) % 4;
    if (check_random(seed) % 6 == 0) /* around what holds everything */
        o->device_bytes = between(seed, high - (high - low) / 4, high + (high - low) / 4);
    else
        o->device_bytes =
            fraction ? between(seed, low, low + (high - low) / (1 << 2 * fraction)) : low;
    if (d->aim || (d->kind == QUANTIZED && check_random(seed) % 2))
        o->device_bytes = low; /* there is less of it that could leave the device */
    CHECK_MSG(spw_plan_query_on(&least, &d->backend, d->subject->dir, o, &err) == 0, "%s",
              err.text);
    if (d->aim ? d->aim == FROM_DISK : check_random(seed) % 2) {
        draw_disk(d, o, seed);
        return;
    }
    if (check_random(seed) % 2)
        o->host_bytes = between(seed, least.smallest_host_bytes, 2 * least.host.total);
    if (!o->host_bytes)
        o->host_bytes = 1 << 30;
}

struct below {
    uint64_t on_host, on_disk;
};

/* A session's old tiles below the device: what its next token reads through slots. */
static struct below old_below(const struct draw *d, const struct spw_session *s)
{
    const struct spw_model_config *c = spw_engine_config(d->engine);
    const struct spw_kv_seq *kv = s->seq.kv;
    struct below b = {0};
    for (uint32_t l = 0; l < c->n_layers && d->engine->plan.quantizes; l++)
        for (uint32_t t = spw_kv_first(kv, l); t < spw_kv_begin(kv, l); t++) {
            bool old = c->layer_kinds[l] != SPW_LAYER_SLIDING;
            b.on_host += old && spw_kv_host_tile(kv, l, t);
            b.on_disk += old && spw_kv_disk_frame(kv, l, t) != SPW_DISK_NONE;
        }
    return b;
}

static uint32_t index_of(const struct draw *d, const struct spw_session *s)
{
    uint32_t i = 0;
    while (d->sessions[i] != s)
        i++;
    return i;
}

static void sync_spans(struct draw *d, const struct spw_span *spans, size_t n)
{
    struct spw_error err = {{0}};
    struct below below[N_SEQUENCES];
    size_t held[N_SEQUENCES];
    for (size_t i = 0; i < n; i++) {
        held[i] = spw_session_n_tokens(spans[i].session);
        below[i] = old_below(d, spans[i].session);
    }
    int rc = spw_sync(d->engine, spans, n, compare_logits, d, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        told_span(&d->told, index_of(d, spans[i].session), held[i],
                  spw_session_reused(spans[i].session), spans[i].n_tokens, spans[i].n_logits);
    told_step(&d->told);
    for (size_t i = 0; i < n; i++)
        if (spans[i].n_tokens == held[i] + 1 && spw_session_reused(spans[i].session) == held[i]) {
            d->from_host += below[i].on_host;
            d->from_disk += below[i].on_disk;
        }
}

/* Every session goes to some length of some sequence: on, back, or over to another beginning. */
static void run_sync(struct draw *d, uint64_t *seed)
{
    struct spw_span spans[N_SEQUENCES];
    size_t n = 0;
    for (uint32_t i = 0; i < d->n_sessions; i++) {
        if (d->n_sessions > 1 && check_random(seed) % 4 == 0)
            continue;
        if (check_random(seed) % 6 == 0)
            d->sequence[i] = (int)(check_random(seed) % N_SEQUENCES);
        size_t held = spw_session_n_tokens(d->sessions[i]);
        uint64_t kind = check_random(seed) % 4;
        size_t to = kind == 0   ? between(seed, 1, d->context)
                    : kind == 1 ? between(seed, held, spw_min_u64(held + 150, d->context))
                                : spw_min_u64(held + 1, d->context);
        if (!to)
            to = 1;
        d->spans[n].sequence = d->sequence[i];
        want_logits(d->subject, d->kind, d->sequence[i]);
        spans[n++] = (struct spw_span){
            .session = d->sessions[i],
            .tokens = d->subject->tokens[d->sequence[i]],
            .n_tokens = to,
            .n_logits = check_random(seed) % 5 ? 1 : between(seed, 0, spw_min_u64(to, 40)),
        };
    }
    if (n)
        sync_spans(d, spans, n);
}

/* A long prompt and a few tokens behind it. */
static void run_decode(struct draw *d)
{
    d->sequence[0] = d->spans[0].sequence = 0;
    want_logits(d->subject, d->kind, 0);
    for (size_t n = d->context - 3; n <= d->context; n++) {
        struct spw_span span = {d->sessions[0], d->subject->tokens[0], n, 1};
        sync_spans(d, &span, 1);
    }
}

static void maybe_fork(struct draw *d, uint64_t *seed)
{
    struct spw_error err = {{0}};
    if (d->n_sessions < 2 || check_random(seed) % 5)
        return;
    uint32_t to = (uint32_t)(check_random(seed) % d->n_sessions);
    uint32_t from = (to + 1) % d->n_sessions;
    spw_session_close(d->sessions[to]);
    int rc = spw_session_fork(&d->sessions[to], d->sessions[from], &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    d->sequence[to] = d->sequence[from];
    told_fork(&d->told, to, from);
}

static void check_account(struct draw *d, const struct spw_options *o, const char *what)
{
    struct spw_stats s;
    told_check(&d->told, d->engine, what);
    spw_engine_stats(d->engine, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == s.predicted_bytes[i],
                  "%s: link %d: counted %llu, predicted %llu", what, i,
                  (unsigned long long)s.moved_bytes[i], (unsigned long long)s.predicted_bytes[i]);
    CHECK_MSG(s.device_peak_bytes <= o->device_bytes, "%s: device peak %llu", what,
              (unsigned long long)s.device_peak_bytes);
    CHECK_MSG(!o->host_bytes || s.host_peak_bytes <= o->host_bytes, "%s: host peak %llu", what,
              (unsigned long long)s.host_peak_bytes);
    CHECK_MSG(s.disk_peak_bytes <= o->disk_bytes, "%s: disk peak %llu", what,
              (unsigned long long)s.disk_peak_bytes);
    draws_with_disk += s.moved_bytes[SPW_MOVED_HOST_TO_DISK] > 0;
    draws_with_three_tiers +=
        s.moved_bytes[SPW_MOVED_HOST_TO_DISK] && d->engine->plan.residency[SPW_LAYER_FULL].host;
    if (!d->engine->plan.info.weights_disk_bytes)
        disk_tiles_read += s.moved_bytes[SPW_MOVED_DISK_TO_HOST] / d->engine->plan.tile_bytes;
}

/* Beside others that stream from the host; and by way of bounce slots. */
static void count_weights_from_disk(const struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    bool others = p->kept_bytes || p->host.end > p->host.packed;
    draws_from_disk += p->info.weights_disk_bytes > 0;
    draws_from_both += p->info.weights_disk_bytes && others;
    draws_bounced += p->n_weight_bounce > 0;
}

static void run_draw(struct subject *subjects, int number, uint64_t *seed)
{
    struct spw_error err = {{0}};
    struct spw_options o;
    uint64_t start = *seed;
    struct draw d = {.subject = &subjects[check_random(seed) % TEST_MODELS]};
    char what[400];
    d.n_sessions = check_random(seed) % 2 ? 1 : (uint32_t)check_range(seed, 1, N_SEQUENCES);
    d.context =
        check_random(seed) % 6 ? check_range(seed, 600, TEST_TOKENS) : check_range(seed, 2, 400);
    d.backend = run_backend(check_random(seed) % 2);
    d.kind = (int)(check_random(seed) % N_KINDS);
    if (number % 4 == 1) {
        d.aim = number % 8 == 1 ? FROM_HOST : FROM_DISK;
        d.subject = &subjects[LONG];
        d.kind = QUANTIZED;
        d.n_sessions = 1;
        d.context = check_range(seed, MOST_TOKENS - 60, MOST_TOKENS);
    }
    draw_options(&d, &o, seed);
    snprintf(
        what, sizeof what,
        "draw %d (seed %llu): %s context %llu sessions %u device %llu host %llu disk %llu (io %d) "
        "chunk %u slots %u of %u splits threads %u delays %llu weights %s KV %s",
        number, (unsigned long long)start, d.subject->dir, (unsigned long long)d.context,
        d.n_sessions, (unsigned long long)o.device_bytes, (unsigned long long)o.host_bytes,
        (unsigned long long)o.disk_bytes, (int)o.io, o.prefill_chunk, o.prefetch_slots,
        o.prefetch_splits, o.threads, (unsigned long long)o.delay_seed,
        d.backend.reads_host_memory ? "mapped" : "copied", spw_kv_precision_name(o.precision));
    int rc = spw_engine_open_on(&d.engine, &d.backend, d.subject->dir, &o, &err);
    CHECK_MSG(rc == 0, "%s: %s", what, err.text);
    if (rc)
        return;
    told_open(&d.told, d.engine);
    for (uint32_t i = 0; i < d.n_sessions; i++) {
        CHECK_MSG(spw_session_open(&d.sessions[i], d.engine, &err) == 0, "%s", err.text);
        d.sequence[i] = (int)(check_random(seed) % N_SEQUENCES);
    }
    if (d.aim)
        run_decode(&d);
    int steps = d.aim ? 0 : (int)check_range(seed, 3, 10);
    for (int i = 0; i < steps; i++) {
        run_sync(&d, seed);
        maybe_fork(&d, seed);
    }
    CHECK_MSG(!d.wrong, "%s: %llu of %llu rows differ", what, (unsigned long long)d.wrong,
              (unsigned long long)d.checked);
    check_account(&d, &o, what);
    old_from_host += d.from_host;
    old_from_disk += d.from_disk;
    rows_compared += d.checked;
    draws_with_spill += spw_engine_plan(d.engine)->host.kv > 0;
    draws_quantized += d.engine->plan.quantizes && d.engine->plan.n_kv_slots;
    draws_with_mapped_weights += d.engine->plan.mapped_bytes > 0;
    draws_with_packed += d.engine->plan.host.end > d.engine->plan.host.packed;
    draws_with_kept += d.engine->plan.kept_bytes > 0;
    count_weights_from_disk(d.engine);
    draws_with_streamed_weights += spw_engine_plan(d.engine)->device.weights_slots > 0;
    for (uint32_t i = 0; i < d.n_sessions; i++)
        spw_session_close(d.sessions[i]);
    told_close(&d.told);
    spw_engine_close(d.engine);
}

int main(int argc, char **argv)
{
    static struct subject subjects[N_SUBJECTS];
    int all = check_full() ? TEST_DRAWS : (TEST_DRAWS + 1) / 2;
    int draws = argc > 1 ? atoi(argv[1]) : all, first = argc > 2 ? atoi(argv[2]) : 0;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < N_SUBJECTS; i++)
        make_subject(&subjects[i], i);
    for (int i = first; i < first + draws; i++)
        run_draw(subjects, i, &seed);
    for (int i = 0; i < N_SUBJECTS; i++) {
        tiny_model_remove(subjects[i].dir);
        for (int k = 0; k < N_KINDS * N_SEQUENCES; k++)
            free(subjects[i].logits[k / N_SEQUENCES][k % N_SEQUENCES]);
    }
    CHECK(spw_alloc_outstanding() == outstanding);
    fprintf(
        stderr,
        "%d draws, %llu with tiles on the host, %llu on disk (%llu on host and disk, %llu tiles "
        "read), %llu with streamed weights (%llu from packed copies, "
        "%llu from kept pages, %llu from disk: %llu of them beside others, %llu by way of the "
        "host), %llu with mapped ones, %llu that stream quantized KV (%llu tiles from the host, "
        "%llu "
        "from disk), %llu rows\n",
        draws, (unsigned long long)draws_with_spill, (unsigned long long)draws_with_disk,
        (unsigned long long)draws_with_three_tiers, (unsigned long long)disk_tiles_read,
        (unsigned long long)draws_with_streamed_weights, (unsigned long long)draws_with_packed,
        (unsigned long long)draws_with_kept, (unsigned long long)draws_from_disk,
        (unsigned long long)draws_from_both, (unsigned long long)draws_bounced,
        (unsigned long long)draws_with_mapped_weights, (unsigned long long)draws_quantized,
        (unsigned long long)old_from_host, (unsigned long long)old_from_disk,
        (unsigned long long)rows_compared);
    CHECK(rows_compared > (uint64_t)draws);
    CHECK(draws < 8 || (old_from_host && old_from_disk));
    /* About 83, 50 and 10 of 320 draws, give or take 8, 7 and 3: a failure means that the draws
     * have stopped trying. Few draws may miss a kind by chance. */
    CHECK(draws < 40 || draws_with_spill > (draws < 160 ? 0 : (uint64_t)draws / 8));
    CHECK(draws < 80 || draws_with_disk > (draws < 160 ? 0 : (uint64_t)draws / 16));
    CHECK(draws < 320 || (draws_with_three_tiers && disk_tiles_read > (uint64_t)draws));
    CHECK(draws < 160 || draws_quantized > (uint64_t)draws / 16);
    CHECK(draws < 160 || (draws_with_packed && draws_from_disk && draws_bounced));
    CHECK(draws < 160 || !run_backend(true).reads_host_memory ||
          (draws_with_mapped_weights && draws_with_kept && draws_from_disk > draws_bounced));
    return check_done();
}
