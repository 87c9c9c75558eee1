/* Sessions that begin with tiles in a file: one engine computes a prompt and its tiles are
 * exported, another one attaches them where they lie, under budgets as small as they can be, with a
 * disk of its own or without. Whatever streams from there, lengths, forks and cuts included, the
 * logits are the bits of one run that computed everything, and the bytes that moved are those that
 * were predicted besides the few that were imported. Then the file is damaged while it is in use:
 * tiles are lost and computed again, and no bit changes.
 *
 *   test_attach [draws] */
#include "runtime/plan/traffic_tiles.h"
#include "tests/engine/engine_run.h"

#include "offload/kv/kv_attach.h"
#include "runtime/engine/recover.h"

#include <fcntl.h>
#include <xxhash.h>

#ifndef TEST_TOKENS
#define TEST_TOKENS 1500
#define TEST_DRAWS (RUN_UNDER_TSAN ? 6 : RUN_UNDER_ASAN ? 25 : 80)
#define TEST_MODELS N_TINY_MODELS
#endif

enum { MOST_LAYERS = 4, N_SESSIONS = 2, MOST_TILES = TEST_TOKENS / SPW_TILE_TOKENS + 1 };

/* Tiles [begin, end) of one layer, in memory or in the file. */
struct part {
    uint32_t begin, end;
    uint8_t *bytes;
    uint64_t offset, sums[MOST_TILES];
};

/* What is kept of the first n tokens: old tiles in the file, those near the end beside it. */
struct kept {
    uint64_t n, tile_bytes, exact_tile_bytes;
    struct part old[MOST_LAYERS], sink[MOST_LAYERS], recent[MOST_LAYERS];
    int reads, writes;
    uint64_t file_bytes;
};

struct subject {
    char dir[128];
    struct spw_options o;
    int32_t ids[TEST_TOKENS];
    float *expected; /* [TEST_TOKENS][vocab] */
    uint32_t vocab;
};

struct draw {
    const struct subject *subject;
    struct spw_backend backend;
    struct spw_options o;
    struct kept kept;
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS];
    uint64_t imported, wrong, n_pieces, n_damaged;
    bool faulty;
};

static uint64_t streamed, with_disk, bounced, quantized, lost, rows;

/* ---- keeping ---- */

static void take_part(struct part *p, struct spw_kv_seq *seq, uint32_t layer, uint32_t begin,
                      uint32_t end, uint64_t tile_bytes)
{
    *p = (struct part){.begin = begin, .end = end};
    p->bytes = aligned_alloc(4096, (end - begin + 1) * tile_bytes);
    CHECK(begin >= end || spw_kv_export(seq, layer, begin, end, p->bytes) == 0);
}

/* Adds the part's tiles to the file. */
static void write_part(struct kept *k, struct part *p)
{
    uint64_t bytes = (p->end - p->begin) * k->tile_bytes;
    p->offset = k->file_bytes;
    for (uint32_t i = 0; i < p->end - p->begin; i++)
        p->sums[i] = XXH3_64bits(p->bytes + i * k->tile_bytes, k->tile_bytes);
    CHECK(pwrite(k->writes, p->bytes, bytes, (off_t)p->offset) == (ssize_t)bytes);
    k->file_bytes += bytes;
}

static void keep_layer(struct kept *k, const struct spw_sequence *seq, uint32_t l, bool slides)
{
    uint32_t first = spw_kv_first(seq->exact, l), end = spw_kv_end(seq->exact, l);
    if (seq->exact == seq->kv) { /* whole tiles, and the tail */
        uint32_t whole = (uint32_t)(k->n / SPW_TILE_TOKENS);
        take_part(&k->old[l], seq->kv, l, first, whole > first ? whole : first, k->tile_bytes);
        first = k->old[l].end;
    } else {
        take_part(&k->old[l], seq->kv, l, spw_kv_first(seq->kv, l), spw_kv_end(seq->kv, l),
                  k->tile_bytes);
        take_part(&k->sink[l], seq->exact, l, 0, first && !slides, k->exact_tile_bytes);
    }
    take_part(&k->recent[l], seq->exact, l, first, end, k->exact_tile_bytes);
    write_part(k, &k->old[l]);
}

/* The first n tokens, computed with nothing in the way. */
static void keep(struct kept *k, const struct subject *s, const struct spw_options *o, uint64_t n)
{
    char path[600];
    struct spw_engine *e = run_open(s->dir, o);
    struct spw_session *session = run_session(e);
    run_to(session, e, s->ids, n);
    *k = (struct kept){.n = n, .tile_bytes = e->plan.tile_bytes};
    k->exact_tile_bytes = e->plan.quantizes ? e->plan.exact_tile_bytes : e->plan.tile_bytes;
    snprintf(path, sizeof path, "%s/kept_XXXXXX", s->dir);
    k->writes = mkstemp(path);
    k->reads = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    CHECK(k->writes >= 0 && k->reads >= 0);
    unlink(path);
    for (uint32_t l = 0; l < e->model.config.n_layers; l++)
        keep_layer(k, &session->seq, l, e->model.config.layer_kinds[l] == SPW_LAYER_SLIDING);
    spw_session_close(session);
    spw_engine_close(e);
}

static void forget(struct kept *k)
{
    close(k->reads);
    close(k->writes);
    for (int l = 0; l < MOST_LAYERS; l++) {
        free(k->old[l].bytes);
        free(k->sink[l].bytes);
        free(k->recent[l].bytes);
    }
}

/* ---- beginning ---- */

static void released(void *context)
{
    struct draw *d = context;
    d->n_pieces--;
}

static void damaged(void *context, uint32_t i)
{
    struct draw *d = context;
    (void)i;
    CHECK(d->faulty);
    d->n_damaged++;
}

/* As from two packs. */
static void attach_layer(struct draw *d, struct spw_kv_seq *seq, uint32_t l, uint64_t *seed)
{
    const struct part *p = &d->kept.old[l];
    for (uint32_t from = p->begin, n; from < p->end; from += n) {
        n = (uint32_t)check_range(seed, (p->end - from + 1) / 2, p->end - from);
        struct spw_disk_attachment a = {.fd = d->kept.reads,
                                        .offset =
                                            p->offset + (from - p->begin) * d->kept.tile_bytes,
                                        .n = n,
                                        .sums = p->sums + (from - p->begin),
                                        .released = released,
                                        .damaged = damaged,
                                        .context = d};
        uint32_t frame;
        CHECK(spw_disk_attach(d->e->disk, &a, &frame) == 0);
        CHECK(spw_kv_attach(seq, l, from, frame, n) == 0);
        d->n_pieces++;
    }
}

static void import(struct draw *d, struct spw_kv_seq *seq, uint32_t l, const struct part *p)
{
    uint64_t to = spw_min_u64((uint64_t)p->end * SPW_TILE_TOKENS, d->kept.n);
    if (p->begin >= p->end)
        return;
    CHECK(spw_kv_import(seq, l, p->begin, to, p->bytes) == 0);
    d->imported += (p->end - p->begin) * d->kept.exact_tile_bytes;
}

static void tell_layer(struct draw *d, const struct spw_session *s, uint32_t l)
{
    struct spw_traffic_run *told = spw_executor_account_of(d->e->executor);
    const struct part *old = &d->kept.old[l], *recent = &d->kept.recent[l];
    if (told && old->begin < old->end)
        spw_traffic_attach(told, s->slot, l, old->begin, old->end);
    if (told && s->seq.exact == s->seq.kv && recent->begin < recent->end)
        spw_tiles_import(spw_traffic_tiles(told), s->slot, l, recent->begin, recent->end);
}

/* The session begins anew, with what was kept. */
static void begin(struct draw *d, struct spw_session *s, uint64_t *seed)
{
    uint64_t none = 0, n = d->kept.n;
    CHECK(spw_recover_cut_back(s, &none) == 0);
    for (uint32_t l = 0; l < d->e->model.config.n_layers; l++) {
        tell_layer(d, s, l);
        attach_layer(d, s->seq.kv, l, seed);
        if (s->seq.exact != s->seq.kv)
            import(d, s->seq.exact, l, &d->kept.sink[l]);
        import(d, s->seq.exact, l, &d->kept.recent[l]);
    }
    memcpy(s->tokens, d->subject->ids, n * sizeof *s->tokens);
    s->rope_table = SPW_ROPE_SHARED;
    if (check_random(seed) % 3 == 0) /* else the next step brings up what is to be there */
        CHECK(spw_recover_cut_back(s, &n) == 0);
    CHECK(d->faulty || n == d->kept.n);
    s->n_tokens = n;
    s->cached = true;
}

/* ---- draws ---- */

static void compare(void *context, size_t span, size_t position, const float *logits)
{
    struct draw *d = context;
    const struct subject *s = d->subject;
    (void)span;
    rows++;
    d->wrong += memcmp(logits, s->expected + position * s->vocab, s->vocab * sizeof *logits) != 0;
}

static void go_on(struct draw *d, uint64_t *seed)
{
    struct spw_span spans[N_SESSIONS];
    struct spw_error err = {{0}};
    size_t n = 0;
    for (int i = 0; i < N_SESSIONS; i++) {
        uint64_t held = d->sessions[i]->n_tokens, kind = check_random(seed) % 6;
        uint64_t to = kind == 0   ? check_range(seed, 1, TEST_TOKENS)
                      : kind == 1 ? check_range(seed, held, TEST_TOKENS)
                                  : held + kind / 3;
        to = to < 1 ? 1 : to > TEST_TOKENS ? TEST_TOKENS : to;
        if (check_random(seed) % 4)
            spans[n++] = (struct spw_span){.session = d->sessions[i],
                                           .tokens = d->subject->ids,
                                           .n_tokens = to,
                                           .n_logits = check_range(seed, 1,
                                                                   check_random(seed) % 2 ? 1
                                                                   : to < 9               ? to
                                                                                          : 9)};
    }
    CHECK_MSG(spw_sync(d->e, spans, n, compare, d, &err) == 0, "%s", err.text);
}

static void do_fork(struct draw *d, uint64_t *seed)
{
    struct spw_error err = {{0}};
    int to = (int)(check_random(seed) % N_SESSIONS);
    spw_session_close(d->sessions[to]);
    CHECK(spw_session_fork(&d->sessions[to], d->sessions[!to], &err) == 0);
}

static void spoil(struct draw *d, uint64_t *seed)
{
    uint8_t byte;
    off_t at = (off_t)check_range(seed, 0, d->kept.file_bytes - 1);
    CHECK(pread(d->kept.writes, &byte, 1, at) == 1);
    byte ^= 2;
    CHECK(pwrite(d->kept.writes, &byte, 1, at) == 1);
}

static void draw_options(struct draw *d, uint64_t *seed)
{
    struct spw_plan_info info;
    struct spw_error err = {{0}};
    struct spw_options *o = &d->o;
    *o = d->subject->o;
    o->threads = (uint32_t)check_range(seed, 1, 3);
    o->sessions = N_SESSIONS;
    o->io = (enum spw_io_kind)(check_random(seed) % 3);
    o->prefill_chunk = check_random(seed) % 2 ? 0 : (uint32_t)check_range(seed, 1, 200);
    o->delay_seed = check_random(seed) % 6 ? 0 : check_random(seed) | 1;
    o->prefix_cache_dir = d->subject->dir;
    if (check_random(seed) % 2) {
        o->disk_dir = d->subject->dir;
        o->disk_bytes = 256 << 20;
    }
    CHECK_MSG(!spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err), "%s", err.text);
    uint64_t least = info.smallest_device_bytes, more = info.device.total - least;
    o->device_bytes = least;
    if (check_random(seed) % 3 && TEST_TOKENS > 1000) /* short sequences have few tiles */
        o->device_bytes += check_range(seed, 0, more / 4);
    if (check_random(seed) % 6 == 0)
        o->device_bytes = info.device.total; /* all of it fits */
    CHECK_MSG(!spw_plan_query_on(&info, &d->backend, d->subject->dir, o, &err), "%s", err.text);
    o->host_bytes = check_random(seed) % 2 ? (uint64_t)1 << 30 : info.smallest_host_bytes;
}

static void check_account(struct draw *d, const char *what)
{
    struct spw_stats s;
    spw_engine_stats(d->e, &s);
    s.predicted_bytes[SPW_MOVED_HOST_TO_DEVICE] += d->imported;
    CHECK_MSG(s.has_prediction || d->faulty, "%s: nothing predicts what was moved", what);
    for (int i = 0; i < SPW_MOVED_COUNT && !d->faulty; i++)
        CHECK_MSG(s.moved_bytes[i] == s.predicted_bytes[i],
                  "%s: link %d: counted %llu, predicted %llu", what, i,
                  (unsigned long long)s.moved_bytes[i], (unsigned long long)s.predicted_bytes[i]);
    CHECK(s.device_peak_bytes <= d->o.device_bytes && s.host_peak_bytes <= d->o.host_bytes);
    CHECK(d->o.disk_dir || !s.moved_bytes[SPW_MOVED_HOST_TO_DISK]);
    streamed += d->e->plan.n_kv_slots && s.moved_bytes[SPW_MOVED_DISK_TO_HOST];
    with_disk += d->e->plan.n_disk_frames > 0;
    bounced += d->e->plan.n_bounce > 0;
    quantized += d->e->plan.quantizes && d->e->plan.n_kv_slots;
}

static void run_draw(const struct subject *subjects, uint64_t *seed)
{
    uint64_t start = *seed, n_incidents;
    struct draw d = {.subject = &subjects[check_random(seed) % (2 * TEST_MODELS)]};
    char what[200];
    snprintf(what, sizeof what, "seed %llu, %s", (unsigned long long)start, d.subject->dir);
    d.faulty = check_random(seed) % 4 == 0;
    d.backend = run_backend(check_random(seed) % 2);
    keep(&d.kept, d.subject, &d.subject->o, check_range(seed, 1, TEST_TOKENS - 1));
    draw_options(&d, seed);
    d.e = run_open_on(&d.backend, d.subject->dir, &d.o);
    for (int i = 0; i < N_SESSIONS; i++)
        d.sessions[i] = run_session(d.e);
    for (int step = (int)check_range(seed, 4, 12); step; step--) {
        uint64_t kind = check_random(seed) % 8;
        if (kind < 2)
            begin(&d, d.sessions[check_random(seed) % N_SESSIONS], seed);
        else if (kind == 2)
            do_fork(&d, seed);
        else
            go_on(&d, seed);
        if (d.faulty && d.kept.file_bytes && check_random(seed) % 2)
            spoil(&d, seed);
    }
    CHECK_MSG(!d.wrong, "%s: %llu rows differ", what, (unsigned long long)d.wrong);
    check_account(&d, what);
    spw_engine_incidents(d.e, &n_incidents);
    CHECK_MSG(d.faulty || !n_incidents, "%s: %llu losses", what, (unsigned long long)n_incidents);
    CHECK(d.n_damaged || !n_incidents);
    lost += n_incidents;
    for (int i = 0; i < N_SESSIONS; i++)
        spw_session_close(d.sessions[i]);
    CHECK_MSG(!d.n_pieces, "%s: %llu pieces are left", what, (unsigned long long)d.n_pieces);
    spw_engine_close(d.e);
    forget(&d.kept);
}

/* Each model twice: as it is, and with old KV quantized. */
static void make_subject(struct subject *s, int i)
{
    static const uint64_t windows[] = {SPW_BYTES_NONE, 128, 200, SPW_BYTES_NONE};
    const struct tiny_model *m = &tiny_models[i / 2];
    snprintf(s->dir, sizeof s->dir, "/tmp/spw_attach_%d_%d", (int)getpid(), i);
    tiny_model_write(m, s->dir);
    run_ids(s->ids, TEST_TOKENS, m->vocab, (uint64_t)i / 2 + 5);
    s->o = (struct spw_options){.backend = TEST_BACKEND, .context = TEST_TOKENS, .threads = 2};
    if (i % 2) {
        s->o.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i / 2 % 3);
        s->o.residual_window = windows[i / 2 % 4];
    }
    s->expected = model_all_logits(s->dir, &s->o, s->ids, TEST_TOKENS, &s->vocab);
}

int main(int argc, char **argv)
{
    static struct subject subjects[2 * TEST_MODELS];
    struct check_draws draws = check_draws_of(argc, argv, TEST_DRAWS);
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < 2 * TEST_MODELS; i++)
        make_subject(&subjects[i], i);
    while (check_another(&draws))
        run_draw(subjects, &seed);
    for (int i = 0; i < 2 * TEST_MODELS; i++) {
        tiny_model_remove(subjects[i].dir);
        free(subjects[i].expected);
    }
    fprintf(stderr,
            "%llu rows compared; of %d draws %llu stream, %llu of them quantized, %llu bounce, "
            "%llu have a disk of their own; %llu losses\n",
            (unsigned long long)rows, draws.done, (unsigned long long)streamed,
            (unsigned long long)quantized, (unsigned long long)bounced,
            (unsigned long long)with_disk, (unsigned long long)lost);
    CHECK(draws.done < 60 || (streamed && quantized && bounced && with_disk && lost));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
