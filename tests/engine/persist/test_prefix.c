/* Prefixes that were kept, one behaviour at a time: what is found, what is read of it and what is
 * written, whatever a session does from there on, its logits are the bits of one run that computed
 * everything, and bytes that moved are those that were predicted. Sequences branch, files are
 * damaged, memory and writes are refused. test_engine publishes and finds among all else. */
#include "tests/engine/oracle.h"

#include "offload/store/prefix_store.h"
#include "runtime/persist/prefix.h"
#include "runtime/persist/snapshot.h"
#include "tests/engine/persist/pack_run.h"

enum { TOKENS = 1100, N_SESSIONS = 2, MIB = 1 << 20 };

struct draw {
    struct subject *s;
    struct spw_backend backend;
    char cache[160];
    uint64_t limit, write_limit; /* write_limit: 0: none */
    bool faulty;
};

/* One engine of a draw. */
struct run {
    const struct draw *d;
    struct spw_options o;
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS];
    struct watch watch;
    uint64_t n_told;
};

static uint64_t found_quantized, found_sliding, branched, began_before, n_notes, read_once;

/* ---- engines ---- */

static void hear(struct run *r)
{
    struct spw_engine_event event;
    while (spw_engine_event(r->e, &event)) {
        CHECK(!event.n_missed);
        if (event.kind == SPW_ENGINE_REUSE) {
            const struct spw_reuse *reuse = &event.reuse;
            CHECK(reuse->n_tokens && reuse->n_tokens % SPW_TILE_TOKENS == 0 && reuse->bytes);
            CHECK(reuse->n_tokens < reuse->n_asked);
            r->n_told++;
        } else if (event.kind == SPW_ENGINE_NOTE) {
            n_notes++;
            CHECK_MSG(r->d->faulty || r->d->limit < MIB || r->d->write_limit, "%s", event.text);
        }
    }
}

static void draw_run(struct run *r, uint64_t *seed)
{
    const struct draw *d = r->d;
    struct spw_options *o = &r->o;
    *o = d->s->o;
    draw_speed(o, seed);
    o->sessions = N_SESSIONS;
    o->prefill_chunk = check_random(seed) % 2 ? 0 : (uint32_t)check_range(seed, 16, 200);
    o->prefix_cache_dir = d->cache;
    o->prefix_cache_bytes = d->limit;
    o->disk_write_limit = d->write_limit;
    if (check_random(seed) % 2 && !d->write_limit) { /* of which spills might take all */
        o->disk_dir = d->s->dir;
        o->disk_bytes = 256 * MIB;
    }
    struct spw_plan_info info = run_plan_on(&d->backend, d->s->dir, o);
    uint64_t least = info.smallest_device_bytes, most = info.device.total;
    uint64_t kind = check_random(seed) % 4;
    o->device_bytes = kind == 0  ? most
                      : kind < 3 ? least
                                 : least + check_range(seed, 0, (most - least) / 3);
    o->host_bytes = (uint64_t)1 << 30;
}

static void open_run(struct run *r, const struct draw *d, uint64_t *seed)
{
    *r = (struct run){.d = d};
    draw_run(r, seed);
    r->e = run_open_on(&d->backend, d->s->dir, &r->o);
    for (int i = 0; i < N_SESSIONS; i++)
        r->sessions[i] = run_session(r->e);
}

static void close_run(struct run *r)
{
    struct spw_prefix_stats p;
    hear(r);
    run_check_peaks(r->e, &r->o, r->d->s->dir);
    CHECK(!r->watch.n_wrong);
    spw_engine_prefix(r->e, &p);
    CHECK(r->d->faulty || !r->e->events.n_lost_tiles);
    found_quantized += r->e->plan.quantizes ? p.n_reused : 0;
    found_sliding += spw_plan_n_windowed(&r->e->plan) ? p.n_reused : 0;
    CHECK(!p.n_reused == !r->n_told);
    CHECK(p.published_bytes <= p.written_bytes);
    for (int i = 0; i < N_SESSIONS; i++)
        spw_session_close(r->sessions[i]);
    spw_engine_close(r->e);
}

/* Session i to the first n tokens of the sequence. Returns what came from the store. */
static uint64_t go_to(struct run *r, int i, int sequence, uint64_t n, uint64_t n_logits)
{
    struct spw_error err = {0};
    struct spw_span span = {r->sessions[i], r->d->s->ids[sequence], n, spw_min_u64(n_logits, n)};
    CHECK_MSG(!watch_sync(&r->watch, r->d->s, r->e, &span, 1, TOKENS, &err), "%s", err.text);
    hear(r);
    CHECK(spw_session_n_tokens(r->sessions[i]) == n);
    CHECK(spw_session_from_store(r->sessions[i]) <= spw_session_reused(r->sessions[i]));
    return spw_session_from_store(r->sessions[i]);
}

static void keep(struct run *r, int i)
{
    struct spw_error err = {0};
    int rc = spw_session_publish(r->sessions[i], &err);
    CHECK_MSG(!rc || r->d->faulty || (rc == -ENOSPC && r->d->limit < MIB), "%s", err.text);
}

/* ---- one by one ---- */

/* Exactly what must be found where any tile may be the first that is computed; what is left to
 * compute, and that another model finds nothing. */
static void test_counts(struct subject *s)
{
    static const uint64_t rests[] = {0, 1, 127, 128, 129, 300};
    uint64_t seed = 7, n = 6 * SPW_TILE_TOKENS + 50;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    CHECK(go_to(&r, 0, 0, n, 1) == 0);
    keep(&r, 0);
    close_run(&r);
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++)
        for (uint64_t n_logits = i % 2; n_logits < 3; n_logits += 2) {
            uint64_t to = 5 * SPW_TILE_TOKENS + rests[i];
            uint64_t left = to - (n_logits > 1 ? n_logits : 1);
            uint64_t expected = left - left % SPW_TILE_TOKENS;
            open_run(&r, &d, &seed);
            uint64_t n_found = go_to(&r, 0, 0, to, n_logits);
            expected = spw_min_u64(expected, n - n % SPW_TILE_TOKENS);
            /* one checkpoint is there, at the end: it also has the exact tiles of one tile before
             */
            if (spw_plan_sharing(&s->plan).needs_checkpoint && expected < 5 * SPW_TILE_TOKENS)
                expected = 0;
            CHECK_MSG(n_found == expected, "%s: %llu tokens: found %llu, expected %llu", s->dir,
                      (unsigned long long)to, (unsigned long long)n_found,
                      (unsigned long long)expected);
            go_to(&r, 0, 0, to + 1, 1);
            close_run(&r);
        }
    struct subject other = *s;
    other.o.precision = s->o.precision ? SPW_KV_EXACT : SPW_KV_INT8;
    d.s = &other;
    open_run(&r, &d, &seed);
    struct spw_span span = {r.sessions[0], s->ids[0], n, 0};
    CHECK(spw_sync(r.e, &span, 1, NULL, NULL, NULL) == 0);
    CHECK(spw_session_from_store(r.sessions[0]) == 0);
    close_run(&r);
    pack_remove_folder(d.cache);
}

/* Whether sequences can begin at some tiles only: where windows, or states, were stored. */
static bool is_patchy(const struct subject *s)
{
    return spw_plan_n_windowed(&s->plan) || s->plan.n_states;
}

/* A text that others have gone on from, by `more` tokens: the second one to leave it makes a
 * checkpoint there, the third begins there. The checkpoint of a first one that goes on by one tile
 * serves all others, if no window slides. */
static void test_branch(struct subject *s, uint64_t more)
{
    struct subject *x = calloc(1, sizeof *x);
    uint64_t seed = 3, text = 17 * SPW_TILE_TOKENS, at[3];
    int32_t *ids = calloc(text + more, sizeof *ids);
    struct draw d = {.s = x, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    *x = *s;
    x->o.context = text + more;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    for (int i = 0; i < 3; i++) {
        struct spw_error err = {0};
        run_ids(ids, text, s->vocab, 9);
        run_ids(ids + text, more, s->vocab, 20 + (uint64_t)i);
        open_run(&r, &d, &seed);
        struct spw_span span = {r.sessions[0], ids, text + more, 1};
        CHECK_MSG(spw_sync(r.e, &span, 1, NULL, NULL, &err) == 0, "%s", err.text);
        at[i] = spw_session_from_store(r.sessions[0]);
        keep(&r, 0);
        close_run(&r);
    }
    CHECK(at[0] == 0 && at[2] == text);
    bool before = more < 2 * SPW_TILE_TOKENS && !is_patchy(s);
    CHECK(at[1] == (spw_plan_sharing(&s->plan).needs_checkpoint && !before ? 0 : text));
    branched += at[2] > at[1];
    pack_remove_folder(d.cache);
    free(ids);
    free(x);
}

/* A long prompt that is asked again: all but its last tokens are found, in layers of any kind, with
 * the same logits, though the prompt ends where a tile does. */
static void test_whole(struct subject *s)
{
    struct subject x = *s;
    uint64_t seed = 3, most = 18 * SPW_TILE_TOKENS + 1;
    int32_t *ids = calloc(most, sizeof *ids);
    float *logits = calloc(s->vocab, sizeof *logits);
    struct draw d = {.s = &x, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    x.o.context = most;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    run_ids(ids, most, s->vocab, 11);
    for (uint64_t n = most - 2; n <= most; n++) {
        for (int i = 0; i < 2; i++) {
            struct spw_error err = {0};
            open_run(&r, &d, &seed);
            struct spw_span span = {r.sessions[0], ids, n, 1};
            CHECK_MSG(spw_sync(r.e, &span, 1, NULL, NULL, &err) == 0, "%s", err.text);
            uint64_t all = (n - 1) - (n - 1) % SPW_TILE_TOKENS;
            CHECK(spw_session_from_store(r.sessions[0]) == (i ? all : 0));
            CHECK(spw_session_reused(r.sessions[0]) == (i ? all : 0));
            CHECK(!i || run_same(spw_session_logits(r.sessions[0]), logits, s->vocab));
            memcpy(logits, spw_session_logits(r.sessions[0]), s->vocab * sizeof *logits);
            keep(&r, 0);
            close_run(&r);
        }
        pack_remove_folder(d.cache);
    }
    free(logits);
    free(ids);
}

/* Of a text that another one has begun with, no checkpoint is there: a session begins where its
 * last chunk begins. */
static void test_border(uint64_t *seed)
{
    struct tiny_model m = tiny_models[7];
    struct subject s;
    struct run r;
    char more[300];
    snprintf(more, sizeof more, ",\"attention_chunk_size\":256%s", strchr(m.more + 1, ','));
    m.more = more;
    subject_open(&s, &m, "border", TOKENS, &(struct spw_options){0});
    struct draw d = {.s = &s, .limit = 64 * MIB, .backend = run_backend(true)};
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s.dir);
    memcpy(s.ids[1], s.ids[0], 700 * sizeof *s.ids[0]);
    s.ids[1][700] = (s.ids[0][700] + 1) % (int32_t)m.vocab;
    for (int i = 0; i < 2; i++) {
        open_run(&r, &d, seed);
        CHECK(go_to(&r, 0, i, 900, 1) == (i ? 512 : 0));
        keep(&r, 0);
        close_run(&r);
    }
    pack_remove_folder(d.cache);
    subject_close(&s);
}

/* Tiles of the first n tokens that one step to `to` reads of files: what is to be on the device
 * once, however many chunks there are; what streams once a chunk, for each layer that reads it. Of
 * the layers of a kind, by the waterlines. */
static uint64_t tiles_read(const struct spw_engine *e, bool sliding, uint64_t n, uint64_t to)
{
    const enum spw_layer_kind kind = sliding ? e->plan.window_kind : SPW_LAYER_FULL;
    const struct spw_residency *r = &e->plan.residency[kind];
    struct spw_pass_span p = {.from = n, .to = to, .chunked = to - n > e->plan.chunk};
    uint64_t end = sliding ? n / SPW_TILE_TOKENS : spw_waterline_end(r, n);
    uint64_t on_device = sliding ? spw_waterline_begin(r, n) : spw_waterline_span(r, &p).enter;
    uint64_t tiles = spw_sub_u64(end, on_device), streamed = 0;
    for (uint64_t at = n; at < to; at += e->plan.chunk) {
        uint64_t first =
            sliding ? spw_waterline_window_first(r->window, at) : spw_waterline_first_tiered(r);
        uint64_t below = sliding ? spw_waterline_begin(r, r->held ? n : at)
                                 : spw_waterline_part(r, &p, at, to).begin;
        streamed += spw_sub_u64(spw_min_u64(below, end), first);
    }
    if (!sliding) /* what had to make room for layers that passed */
        tiles += spw_sub_u64(spw_min_u64(spw_waterline_part(r, &p, n, to).after, end),
                             spw_waterline_begin(r, to));
    return e->plan.n_slices[kind] * tiles + e->plan.n_readers[kind] * streamed;
}

static uint64_t moved(struct spw_engine *e, enum spw_moved link)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    return s.moved_bytes[link];
}

/* Longrope has two tables, by the length of a sequence. Keys of one are found by sequences of that
 * table only, and a session that passes the border computes all its tokens again. */
static void test_tables(enum spw_kv_precision precision, uint64_t *seed)
{
    enum { BORDER = 3 * SPW_TILE_TOKENS + 40 };
    struct tiny_model m = tiny_models[0];
    const struct spw_options o = {.precision = precision,
                                  .residual_window = precision ? SPW_TILE_TOKENS : 0};
    char more[256];
    struct subject s;
    struct run r;
    snprintf(
        more, sizeof more,
        ",\"original_max_position_embeddings\":%d,\"rope_scaling\":{\"rope_type\":"
        "\"longrope\",\"short_factor\":[1,1,1.5,2,2,2.5,3,3],\"long_factor\":[2,2,3,5,6,7,8,9]}",
        BORDER);
    m.more = more;
    subject_open(&s, &m, "prefix_tables", TOKENS, &o);
    struct draw d = {.s = &s, .limit = 64 * MIB, .backend = run_backend(true)};
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s.dir);
    open_run(&r, &d, seed);
    CHECK(go_to(&r, 0, 0, BORDER + 1, 1) == 0); /* long: three tiles */
    keep(&r, 0);
    CHECK(go_to(&r, 1, 0, BORDER, 1) == 0); /* none of them is for a short one, */
    keep(&r, 1);
    CHECK(go_to(&r, 1, 0, BORDER + 1, 1) == 0); /* and none for one that passes the border */
    CHECK(spw_session_reused(r.sessions[1]) == 0);
    go_to(&r, 1, 0, BORDER + 2, 1);
    CHECK(spw_session_reused(r.sessions[1]) == BORDER + 1);
    close_run(&r);
    open_run(&r, &d, seed);
    const uint64_t whole = BORDER - BORDER % SPW_TILE_TOKENS;
    CHECK(go_to(&r, 0, 0, BORDER + 9, 1) == whole);
    CHECK(go_to(&r, 1, 0, BORDER, 1) == whole);
    CHECK(go_to(&r, 1, 1, 2 * SPW_TILE_TOKENS, 1) == 0);
    close_run(&r);
    pack_remove_folder(d.cache);
    subject_close(&s);
}

/* What was found is read as often as it must be, and no more: the whole of it once where there is
 * room for it. */
static void test_reads(struct subject *s, uint64_t *seed)
{
    uint64_t n = 6 * SPW_TILE_TOKENS;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, seed);
    go_to(&r, 0, 0, n, 1);
    keep(&r, 0);
    close_run(&r);
    for (int i = 0; i < 4; i++) {
        d.backend = run_backend(i % 2);
        open_run(&r, &d, seed);
        const struct spw_plan *p = &r.e->plan;
        uint64_t to = n + spw_min_u64(check_range(seed, 1, 300), p->pass_rows);
        uint64_t before = moved(r.e, SPW_MOVED_DISK_TO_HOST);
        CHECK(go_to(&r, 0, 0, to, 0) == n);
        uint64_t tiles = tiles_read(r.e, false, n, to);
        if (!p->quantizes && spw_plan_n_windowed(p))
            tiles += tiles_read(r.e, true, n, to);
        struct spw_prefix_stats found_here;
        spw_engine_prefix(r.e, &found_here);
        const struct spw_residency *full = &p->residency[SPW_LAYER_FULL];
        uint64_t old = p->n_slices[SPW_LAYER_FULL] *
                       (spw_waterline_end(full, n) - spw_waterline_first_tiered(full));
        bool beside = p->quantizes || p->n_states; /* exact tiles, or states */
        uint64_t exact = beside ? found_here.reused_bytes - old * p->tile_bytes : 0;
        uint64_t bytes = moved(r.e, SPW_MOVED_DISK_TO_HOST) - before - exact;
        CHECK_MSG(bytes == tiles * p->tile_bytes, "%s: chunks of %u: %llu bytes for %llu tiles",
                  s->dir, p->chunk, (unsigned long long)bytes, (unsigned long long)tiles);
        read_once += !spw_plan_n_windowed(p) && tiles == old && to - n > p->chunk;
        close_run(&r);
    }
    pack_remove_folder(d.cache);
}

/* The next tiles are not kept, which is told once, and whoever asks goes on. */
static void refuse_to_keep(struct run *r, uint64_t n, uint64_t written)
{
    struct spw_prefix_stats p;
    uint64_t before = n_notes;
    for (int i = 0; i < 3; i++) {
        struct spw_error err = {0};
        go_to(r, 0, 0, n + SPW_TILE_TOKENS * (uint64_t)i, 1);
        CHECK(spw_session_publish(r->sessions[0], &err) == -EDQUOT);
        CHECK_MSG(strstr(err.text, "options.disk_write_limit"), "%s", err.text);
    }
    hear(r);
    CHECK(n_notes == before + 1);
    spw_engine_prefix(r->e, &p);
    CHECK(p.written_bytes == written && moved(r->e, SPW_MOVED_HOST_TO_DISK) == written);
}

/* What is kept counts against the limit, to the byte that the plan alone says. */
static void test_write_limit(struct subject *s)
{
    uint64_t seed = 29, n = 4 * SPW_TILE_TOKENS;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct spw_plan_info info;
    struct spw_options o = s->o;
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    for (uint64_t less = 0; less < 2; less++) {
        d.write_limit = SPW_NONE;
        open_run(&r, &d, &seed);
        uint64_t bytes = spw_plan_publish_bytes(&r.e->plan, n);
        refuse_to_keep(&r, n, 0);
        close_run(&r);
        d.write_limit = bytes - less;
        open_run(&r, &d, &seed);
        go_to(&r, 0, 0, n, 1);
        CHECK(spw_session_publish(r.sessions[0], NULL) == (less ? -EDQUOT : 0));
        if (!less)
            refuse_to_keep(&r, n + SPW_TILE_TOKENS, bytes);
        close_run(&r);
        pack_remove_folder(d.cache);
    }
    o.prefix_cache_dir = d.cache;
    o.context = n;
    CHECK(spw_plan_query(&info, s->dir, &o, NULL) == 0);
    CHECK(info.prefix_write_bytes == d.write_limit + 1);
}

/* What is written beside the KV that is kept is little, with tiles as small as 64 KiB: a prompt,
 * and the turns of a conversation. */
static void test_written(enum spw_kv_precision precision)
{
    enum { TURN = 97, TURNS = 8 };
    static struct subject x;
    const struct tiny_model wide = {TINY("llama", 4, 64, 64, 4, 4, 64, 101, 4096), .untied = true,
                                    .seed = 41};
    uint64_t seed = 31, n = 3 * SPW_TILE_TOKENS + 5;
    struct draw d = {.s = &x, .limit = 64 * MIB, .backend = run_backend(true)};
    struct spw_prefix_stats p;
    struct run r;
    subject_open(&x, &wide, "prefix_wide", TOKENS,
                 &(struct spw_options){.precision = precision, .residual_window = 128});
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", x.dir);
    open_run(&r, &d, &seed);
    for (int turn = 0; turn < TURNS; turn++, n += TURN) {
        go_to(&r, 0, 0, spw_min_u64(n, TOKENS), 1);
        keep(&r, 0);
        spw_engine_prefix(r.e, &p);
        CHECK_MSG(p.n_published &&
                      p.written_bytes <= p.published_bytes + p.published_bytes * 3 / 100,
                  "turn %d: %llu bytes for %llu", turn, (unsigned long long)p.written_bytes,
                  (unsigned long long)p.published_bytes);
    }
    close_run(&r);
    pack_remove_folder(d.cache);
    subject_close(&x);
}

/* Each turn computes what is new, and a process that comes later as little as it can. */
static void test_turns(struct subject *s)
{
    enum { TURN = 97 };
    uint64_t seed = 5, n = 0;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    struct spw_prefix_stats p;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    for (int turn = 0; turn < 10; turn++) {
        go_to(&r, 0, 0, n + TURN, 1);
        CHECK(spw_session_reused(r.sessions[0]) == n);
        CHECK(spw_session_from_store(r.sessions[0]) == 0);
        n += TURN;
        keep(&r, 0);
    }
    spw_engine_prefix(r.e, &p);
    CHECK(spw_plan_sharing(&s->plan).needs_checkpoint ||
          p.n_published == n - n % SPW_TILE_TOKENS); /* each once */
    close_run(&r);
    open_run(&r, &d, &seed);
    uint64_t n_found = go_to(&r, 0, 0, n + TURN, 1);
    CHECK(is_patchy(s) || n_found == n - n % SPW_TILE_TOKENS);
    close_run(&r);
    pack_remove_folder(d.cache);
}

/* A prompt that is asked again in another process, of any length. All but its last tokens are
 * found, though its last checkpoint may lie after them. Windows may need a checkpoint that short
 * prompts do not get. */
static void again(const struct draw *d, uint64_t n, uint64_t *seed)
{
    struct run r;
    for (int i = 0; i < 2; i++) {
        open_run(&r, d, seed);
        uint64_t n_found = go_to(&r, 0, 0, n, check_range(seed, 0, 1));
        uint64_t all = (n - 1) - (n - 1) % SPW_TILE_TOKENS;
        bool some = is_patchy(d->s);
        CHECK_MSG(!i || (some ? n_found <= all : n_found == all), "%s: %llu of %llu tokens found",
                  d->s->dir, (unsigned long long)n_found, (unsigned long long)n);
        began_before += i && r.e->plan.quantizes && n_found && n == all + SPW_TILE_TOKENS;
        keep(&r, 0);
        close_run(&r);
    }
}

/* Texts that begin alike, of any lengths. The first one has whole tiles, or in a long run about
 * whole tiles. Every second cache has other texts already. */
static void test_lengths(struct subject *s, uint64_t *seed)
{
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    for (uint64_t i = 0; i < (check_full() ? 24 : 2); i++) {
        uint64_t n = check_range(seed, 2, TOKENS - 1);
        if (i % 4 == 0)
            n = check_range(seed, 2, 8) * SPW_TILE_TOKENS + i / 4 % 3 - (i > 12);
        again(&d, n, seed);
        for (int k = 0; k < SUBJECT_SEQUENCES; k++) { /* they part after 200 or 400 tokens */
            open_run(&r, &d, seed);
            go_to(&r, 0, k, check_range(seed, 150, 600), 1);
            keep(&r, 0);
            go_to(&r, 1, k, check_range(seed, 1, 600), 1);
            keep(&r, 1);
            close_run(&r);
        }
        if (i % 2)
            pack_remove_folder(d.cache);
    }
}

/* Whatever allocation fails on the way, the answer is right or refused, and the next one is right.
 */
static void test_allocations(struct subject *s)
{
    uint64_t seed = 11, n = 4 * SPW_TILE_TOKENS + 9, n_found = 0;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    go_to(&r, 0, 0, n, 1);
    keep(&r, 0);
    close_run(&r);
    int i = -1, rc;
    do {
        struct spw_error err = {0};
        open_run(&r, &d, &seed);
        r.watch.s = s;
        r.watch.rows[0] = oracle_rows(s, s->ids[0], n, TOKENS);
        struct spw_span span = {r.sessions[0], s->ids[0], n, 1};
        spw_alloc_fail_nth(++i);
        rc = spw_sync(r.e, &span, 1, watch_logits, &r.watch, &err);
        n_found = rc ? 0 : spw_session_from_store(r.sessions[0]);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || rc == -ENOMEM, "%s", err.text);
        go_to(&r, 0, 0, n + 1, 1);
        close_run(&r);
    } while (!n_found && i < 200);
    CHECK_MSG(i > 2 && i < 200, "%d", i);
    pack_remove_folder(d.cache);
}

/* Budgets that change take the cache from a session, which then begins with the store again. */
static void test_budgets(struct subject *s)
{
    uint64_t seed = 23, n = 5 * SPW_TILE_TOKENS;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    go_to(&r, 0, 0, n, 1);
    keep(&r, 0);
    CHECK(spw_plan_query_on(&info, &d.backend, s->dir, &r.o, &err) == 0);
    const uint64_t budgets[] = {info.smallest_device_bytes, info.smallest_device_bytes + 3 * MIB};
    for (uint64_t i = 0; i < 4; i++) {
        r.o.device_bytes = spw_max_u64(r.o.device_bytes, budgets[i % 2]);
        CHECK_MSG(
            spw_engine_set_budgets(r.e, budgets[i % 2], r.o.host_bytes, r.o.disk_bytes, &err) == 0,
            "%s", err.text);
        uint64_t n_found = go_to(&r, 0, 0, n + i + 1, 1);
        CHECK(n_found == n || spw_session_reused(r.sessions[0]) == n + i);
        go_to(&r, 1, 1, n, 1);
    }
    CHECK(r.n_told);
    close_run(&r);
    pack_remove_folder(d.cache);
}

/* A pack of the right name, tokens and fingerprint that has not got the tiles: told, removed,
 * computed and kept anew. */
static void test_incomplete(struct subject *s)
{
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    uint64_t seed = 17, n = 5 * SPW_TILE_TOKENS, before = n_notes;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true), .faulty = true};
    struct spw_store_addition a = {.tokens = s->ids[0], .n_tiles = 5, .checkpoint = true};
    struct spw_store_options o = {
        .directory = d.cache, .limit_bytes = d.limit, .fingerprint = fingerprint};
    struct spw_store *store;
    struct spw_store_writer *w;
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    spw_snapshot_fingerprint(fingerprint, r.e, SPW_ROPE_SHARED);
    CHECK(spw_store_open(&store, &o, NULL) == 0);
    CHECK(spw_store_begin(&w, store, &a, NULL) == 0 && spw_store_commit(w, NULL, NULL) == 0);
    spw_store_close(store);
    CHECK(go_to(&r, 0, 0, n + 1, 1) == 0 && n_notes == before + 1);
    keep(&r, 0);
    CHECK(go_to(&r, 1, 0, n + 1, 1) == n && n_notes == before + 1);
    close_run(&r);
    pack_remove_folder(d.cache);
}

/* Writes the file anew with last tiles that are no numbers, and with right sums. */
static void forge(const char *path)
{
    static struct spw_pack_section sections[64];
    struct spw_pack *p;
    struct spw_pack_writer *w;
    CHECK(spw_pack_open(&p, path, NULL, NULL) == 0);
    const struct spw_pack_info *info = spw_pack_info(p);
    struct spw_pack_spec spec = {.fingerprint = info->fingerprint,
                                 .first_token = info->first_token,
                                 .n_tokens = info->n_tokens,
                                 .tokens = info->tokens,
                                 .parent = info->parent,
                                 .previous = info->previous,
                                 .checkpoint = info->checkpoint,
                                 .sections = sections,
                                 .n_sections = info->n_sections};
    for (uint32_t i = 0; i < info->n_sections && i < 64; i++) {
        sections[i] = info->sections[i];
        sections[i].offset = 0;
    }
    CHECK(spw_pack_create(&w, path, true, &spec, NULL) == 0);
    for (uint32_t i = 0; i < info->n_sections; i++) {
        const struct spw_pack_section *x = &info->sections[i];
        uint8_t *records = aligned_alloc(4096, x->n_tiles * x->record_bytes);
        CHECK(spw_pack_read(p, x, x->first_tile, x->n_tiles, records, NULL) == 0);
        memset(records + (x->n_tiles - 1) * x->record_bytes, 0xff, x->record_bytes);
        CHECK(spw_pack_write(w, i, x->first_tile, x->n_tiles, records) == 0);
        free(records);
    }
    CHECK(spw_pack_commit(w, NULL, 0, NULL, NULL) == 0);
    spw_pack_close(p);
}

static void forge_all(const char *cache)
{
    char path[512];
    DIR *dir = opendir(cache);
    for (struct dirent *x; dir && (x = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", cache, x->d_name);
        if (strstr(x->d_name, ".pack"))
            forge(path);
    }
    closedir(dir);
}

/* Tiles that are no numbers are dropped, told and computed; and computed ones are kept instead. */
static void test_not_numbers(struct subject *s)
{
    uint64_t seed = 29, n = 5 * SPW_TILE_TOKENS, before = n_notes;
    struct draw d = {.s = s, .limit = 64 * MIB, .backend = run_backend(true)};
    struct spw_stats stats;
    struct run r;
    snprintf(d.cache, sizeof d.cache, "%.120s_cache", s->dir);
    open_run(&r, &d, &seed);
    go_to(&r, 0, 0, n, 1);
    keep(&r, 0);
    close_run(&r);
    forge_all(d.cache);
    d.faulty = true;
    open_run(&r, &d, &seed);
    CHECK(go_to(&r, 0, 0, n + 1, 1) == 0 && n_notes == before + 1);
    CHECK_MSG(spw_session_reused(r.sessions[0]) == 0 && pack_count(d.cache, ".lock", NULL) == 1 &&
                  pack_count(d.cache, NULL, NULL) == 1,
              "%s: %d files, reused %zu", s->dir, pack_count(d.cache, NULL, NULL),
              spw_session_reused(r.sessions[0]));
    spw_engine_stats(r.e, &stats);
    CHECK(!stats.n_lost_tiles);
    keep(&r, 0);
    CHECK(go_to(&r, 1, 0, n + 1, 1) == n && n_notes == before + 1);
    close_run(&r);
    pack_remove_folder(d.cache);
}

static void test_refusals(struct subject *s)
{
    struct spw_engine *e;
    struct spw_error err = {0};
    struct spw_options o = s->o;
    char cache[600];
    o.prefix_cache_dir = cache;
    snprintf(cache, sizeof cache, "%s/none/there", s->dir);
    CHECK(spw_engine_open(&e, s->dir, &o, &err) == -ENOENT && err.text[0]);
    snprintf(cache, sizeof cache, "%s/config.json", s->dir);
    err.text[0] = 0;
    CHECK(spw_engine_open(&e, s->dir, &o, &err) == -ENOTDIR && err.text[0]);
    err.text[0] = 0;
    snprintf(cache, sizeof cache, "%.120s_cache", s->dir);
    o.prefix_cache_bytes = 1000;
    CHECK(spw_engine_open(&e, s->dir, &o, &err) == -EINVAL && strstr(err.text, "at least"));
    CHECK(access(cache, F_OK) != 0);
    o.prefix_cache_bytes = 0;
    err.text[0] = 0;
    CHECK(mkdir(cache, 0700) == 0 && chmod(cache, 0770) == 0);
    CHECK(spw_engine_open(&e, s->dir, &o, &err) == -EPERM && strstr(err.text, "other users"));
    o.prefix_cache_trusts_others = true;
    CHECK(spw_engine_open(&e, s->dir, &o, &err) == 0);
    spw_engine_close(e);
    CHECK(rmdir(cache) == 0);
}

/* What a model of 8 billion weights writes beside its KV: 32 layers, 8 heads of 128, bf16. */
static void test_overhead(void)
{
    enum { LAYERS = 32, TILES = 8 };
    static int32_t tokens[TILES * SPW_TILE_TOKENS];
    struct spw_pack_section sections[LAYERS];
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES] = {1};
    uint64_t kv = 0, record = (uint64_t)2 * 8 * 128 * 128 * 2;
    for (uint32_t l = 0; l < LAYERS; l++) {
        sections[l] = (struct spw_pack_section){
            .kind = 1, .layer = l, .n_tiles = TILES, .record_bytes = record};
        kv += TILES * record;
    }
    struct spw_pack_spec spec = {.fingerprint = fingerprint,
                                 .n_tokens = TILES * SPW_TILE_TOKENS,
                                 .tokens = tokens,
                                 .sections = sections,
                                 .n_sections = LAYERS};
    CHECK(spw_pack_bytes(&spec) <= kv + kv * 3 / 100);
    CHECK(!spw_prefix_is_useful(0, 127) && spw_prefix_is_useful(0, 128));
    CHECK(!spw_prefix_is_useful(8000, 8128) && spw_prefix_is_useful(8000, 9088));
}

static void test_one_by_one(struct subject *subjects, uint64_t *seed)
{
    test_overhead();
    test_refusals(&subjects[0]);
    test_allocations(&subjects[0]);
    test_allocations(&subjects[1]);
    test_budgets(&subjects[0]);
    test_budgets(&subjects[3]);
    test_budgets(&subjects[10]);
    test_write_limit(&subjects[0]);
    test_write_limit(&subjects[3]);
    test_write_limit(&subjects[10]);
    test_written(SPW_KV_EXACT);
    test_written(SPW_KV_INT4);
    test_incomplete(&subjects[0]);
    test_incomplete(&subjects[3]);
    for (int i = 0; i < 2 * N_TINY_MODELS; i++) {
        if (!check_full() && (i + i / 2) % 2)
            continue; /* each model in one way, which alternates */
        test_not_numbers(&subjects[i]);
        test_turns(&subjects[i]);
        test_reads(&subjects[i], seed);
        if (!spw_plan_n_windowed(&subjects[i].plan) && i < 4)
            test_counts(&subjects[i]);
        if (i > 6)
            test_branch(&subjects[i], 300);
        if (i % 6 == 1)
            test_branch(&subjects[i], 200);
        test_lengths(&subjects[i], seed);
        if (i % 4 < 2)
            test_whole(&subjects[i]);
    }
    test_border(seed);
    test_tables(SPW_KV_EXACT, seed);
    test_tables(SPW_KV_INT8, seed);
    CHECK(found_quantized && found_sliding && branched && began_before);
    for (int i = 0; i < 20 && !read_once; i++) /* budgets are drawn, and so is what is computed */
        test_reads(&subjects[0], seed);
    CHECK(read_once);
}

int main(void)
{
    static struct subject subjects[2 * N_TINY_MODELS];
    static const uint64_t windows[] = {SPW_NONE, 128, 200, SPW_NONE};
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < 2 * N_TINY_MODELS; i++) { /* as it is, and with old KV in less precision */
        struct spw_options o = {0};
        if (i % 2)
            o = (struct spw_options){.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i / 2 % 3),
                                     .residual_window = windows[i / 2 % 4]};
        subject_open(&subjects[i], &tiny_models[i / 2], i % 2 ? "prefix_old" : "prefix", TOKENS,
                     &o);
    }
    test_one_by_one(subjects, &seed);
    for (int i = 0; i < 2 * N_TINY_MODELS; i++)
        subject_close(&subjects[i]);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
