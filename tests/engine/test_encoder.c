/* Models with an encoder: whatever the budgets, the chunks, the threads and the partners are, every
 * row of logits has the bits of a run alone with everything in memory; sequences go on, are cut
 * back, fork, and are saved; the source changes; and a twin (twin.h) counts the same bytes.
 *
 *   test_encoder [draws]    SPW_SEED repeats a run */
#include "model/audio/audio.h"
#include "runtime/batch/batch_parts.h"
#include "runtime/saved.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/twin.h"

#include <dirent.h>

enum {
    N_SEQUENCES = 3,
    CONTEXT = TEST_GPU ? 300 : 700,
    MOST_SOURCE = CONTEXT / 2 - 1, /* of the first sequence, and what the second one has more */
    DRAWS = TEST_GPU ? 6 : 60,
    LIVES = 6, /* under one draw of sequences */
    STEPS = TEST_GPU ? 4 : 9,
    N_NEW = 12,
    N_ANSWER = CONTEXT / 4,
    BEAMS = 3,
    ANSWERS = BEAMS + 2, /* of run_batch */
};

/* Where the source is audio: its tokens, the most tokens after it, numbers of a row. */
struct folder {
    const char *name;
    uint32_t n_source, most_others, n_mels;
};

static const struct folder folders[] = {{"t5_relu", 0, 0, 0},          {"t5_gated", 0, 0, 0},
                                        {"umt5_buckets", 0, 0, 0},     {"bart_long", 0, 0, 0},
                                        {"m2m_100_plain", 0, 0, 0},    {"marian_plain", 0, 0, 0},
                                        {"whisper_long", 150, 160, 10}};

enum { N_FOLDERS = sizeof folders / sizeof *folders };

/* Sequences, and the logits after each of their tokens. */
struct truth {
    char dir[128];
    uint32_t vocab;
    int32_t ids[N_SEQUENCES][CONTEXT];
    size_t n_source[N_SEQUENCES], n[N_SEQUENCES];
    float *rows[N_SEQUENCES];  /* [n][vocab] */
    float *audio[N_SEQUENCES]; /* NULL: the source is text */
};

static struct spw_options plain(enum spw_kv_precision precision)
{
    return (struct spw_options){.backend = TEST_BACKEND,
                                .compute = SPW_DTYPE_F32,
                                .context = CONTEXT,
                                .past_positions = true,
                                .precision = precision,
                                .residual_window = precision == SPW_KV_EXACT ? 0 : 128,
                                .threads = 2};
}

/* A spectrogram, and the tokens that stand for it: the third one is that of the first sequence. */
static void make_audio(struct truth *t, int k, const struct folder *f, uint64_t *seed)
{
    const size_t n = (size_t)SPW_AUDIO_FRAMES * f->n_source * f->n_mels;
    t->audio[k] = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        t->audio[k][i] =
            k == 2 ? t->audio[0][i] : (float)(check_random(seed) % 4001) / 2000.0F - 1.0F;
    spw_audio_source(t->ids[k], f->n_source, 90, t->audio[k], n);
    CHECK((k == 1) == (memcmp(t->ids[k], t->ids[0], f->n_source * sizeof(int32_t)) != 0));
}

/* The second sequence begins as the first one does, and has a longer source; or its source is other
 * audio. The third one has the same source as the first one. */
static void truth_make(struct truth *t, const struct folder *folder,
                       enum spw_kv_precision precision, uint64_t *seed)
{
    const struct spw_options o = plain(precision);
    *t = (struct truth){0};
    snprintf(t->dir, sizeof t->dir, "tests/golden/%s", folder->name);
    for (int k = 0; k < N_SEQUENCES; k++) {
        t->n_source[k] = folder->n_source ? folder->n_source
                         : k == 2         ? t->n_source[0]
                                  : check_range(seed, 1, MOST_SOURCE) + (k ? t->n_source[0] : 0);
        const size_t room = CONTEXT - t->n_source[k];
        t->n[k] =
            t->n_source[k] +
            check_range(seed, 2, folder->n_source ? spw_min_u64(room, folder->most_others) : room);
        run_ids(t->ids[k], t->n[k], 90, k == 1 ? check_random(seed) : 7);
        if (k)
            memcpy(t->ids[k], t->ids[0], t->n_source[0] * sizeof(int32_t));
        for (size_t i = 0; i < t->n_source[k]; i++)
            if (t->ids[k][i] >= 0)
                t->ids[k][i] = spw_source_token(t->ids[k][i]);
        if (folder->n_source)
            make_audio(t, k, folder, seed);
        if (k == 2)
            t->ids[k][t->n_source[k]] = 5;
        t->rows[k] = model_logits_of(t->dir, &o, t->ids[k], t->n[k], t->audio[k], &t->vocab);
        CHECK(t->rows[k]);
    }
}

static void truth_free(struct truth *t)
{
    for (int k = 0; k < N_SEQUENCES; k++) {
        free(t->rows[k]);
        free(t->audio[k]);
    }
}

/* ---- a life under drawn options ---- */

/* What lives have done: read tiles of lower tiers, and ended beside a twin. */
static int n_streamed, n_from_disk, n_twins, n_changed;

struct life {
    const struct truth *t;
    struct spw_engine *e;
    struct twin twin;
    struct spw_session *sessions[N_SEQUENCES];
    int of[N_SEQUENCES]; /* the sequence that each session has */
    size_t at[N_SEQUENCES];
    struct spw_span spans[N_SEQUENCES];
    int places[N_SEQUENCES];
    char what[200];
};

static void compare_row(void *context, size_t span, size_t position, const float *logits)
{
    const struct life *f = context;
    const int k = f->of[f->places[span]];
    CHECK_MSG(!memcmp(logits, f->t->rows[k] + position * f->t->vocab, f->t->vocab * sizeof *logits),
              "%s: sequence %d: position %zu (source %zu)", f->what, k, position,
              f->t->n_source[k]);
}

/* Some sessions go to drawn lengths of drawn sequences. */
static void step(struct life *f, uint64_t *seed)
{
    struct spw_error err = {0};
    size_t n = 0, expected[N_SEQUENCES];
    for (int i = 0; i < N_SEQUENCES; i++) {
        if (!f->sessions[i] || check_random(seed) % 3 == 0)
            continue;
        const int k = check_random(seed) % 3 ? f->of[i] : (int)(check_random(seed) % N_SEQUENCES);
        const size_t source = f->t->n_source[k];
        const size_t to = check_range(seed, source + 1, f->t->n[k]);
        const size_t rows = check_range(seed, 1, check_random(seed) % 2 ? 1 : to - source);
        size_t same = 0;
        while (same < f->at[i] && same < to && f->t->ids[k][same] == f->t->ids[f->of[i]][same])
            same++;
        const bool held = same >= source && f->t->n_source[f->of[i]] == source;
        expected[n] = !held                                         ? 0
                      : same == to && same == f->at[i] && rows == 1 ? to
                                                                    : spw_min_u64(same, to - rows);
        n_changed += f->at[i] && !held;
        f->of[i] = k;
        f->at[i] = to;
        f->places[n] = i;
        spw_session_set_audio(f->sessions[i], f->t->audio[k]);
        f->spans[n++] = (struct spw_span){f->sessions[i], f->t->ids[k], to, rows};
    }
    if (!n)
        return;
    const int rc = spw_sync(f->e, f->spans, n, compare_row, f, &err);
    CHECK_MSG(!rc, "%s: %s", f->what, err.text);
    for (size_t i = 0; i < n && !rc && f->e->plan.format == SPW_QFORMAT_EXACT; i++)
        CHECK_MSG(spw_session_reused(f->spans[i].session) == expected[i], "%s: reused %zu, not %zu",
                  f->what, spw_session_reused(f->spans[i].session), expected[i]);
    twin_follow(&f->twin, f->e, f->spans, n, rc);
}

static void open_session(struct life *f, int i)
{
    f->sessions[i] = run_session(f->e);
    f->at[i] = 0;
    if (f->twin.e)
        twin_open_session(&f->twin, f->sessions[i]->slot, f->sessions[i]->most_tokens);
}

/* Session i is closed, and another one is made of a fork, of a file, or of nothing. */
static void replace(struct life *f, int i, uint64_t *seed)
{
    const int from = (int)(check_random(seed) % N_SEQUENCES);
    struct spw_error err = {0};
    char path[64];
    if (!f->sessions[i] || from == i || !f->sessions[from])
        return;
    if (f->twin.e)
        twin_close_session(&f->twin, f->sessions[i]->slot);
    spw_session_close(f->sessions[i]);
    f->sessions[i] = NULL;
    if (check_random(seed) % 3 == 0) {
        open_session(f, i);
        return;
    }
    f->of[i] = f->of[from];
    f->at[i] = f->at[from];
    if (check_random(seed) % 2 || !f->at[from]) {
        CHECK_MSG(!spw_session_fork(&f->sessions[i], f->sessions[from], &err), "%s", err.text);
        if (f->twin.e)
            twin_fork(&f->twin, f->sessions[i], f->sessions[from]->slot);
        return;
    }
    struct spw_saved *saved = NULL;
    snprintf(path, sizeof path, "/tmp/spw_encoder_%d", (int)getpid());
    CHECK_MSG(!spw_session_save(f->sessions[from], path, "x", 1, NULL, &err), "%s", err.text);
    CHECK_MSG(!spw_saved_open(&saved, path, &err), "%s", err.text);
    CHECK_MSG(!spw_session_resume(&f->sessions[i], f->e, saved, &err), "%s", err.text);
    spw_saved_close(saved);
    unlink(path);
    twin_close(&f->twin); /* it has no files */
}

static void run_life(const struct truth *t, enum spw_kv_precision precision, uint64_t *seed)
{
    struct life f = {.t = t};
    struct spw_options o = plain(precision);
    char disk[64] = "";
    const uint32_t places = (uint32_t)check_range(seed, 1, N_SEQUENCES);
    o.threads = (uint32_t)check_range(seed, 1, 3);
    o.saves = true;
    o.sessions = places;
    o.prefill_chunk = check_random(seed) % 4 ? 8u << check_range(seed, 0, 6) : 0;
    const int tight = (int)(check_random(seed) % 4);
    if (tight) {
        run_tight(t->dir, &o, check_random(seed) % 2 ? 0 : check_range(seed, 0, 1 << 20));
        snprintf(disk, sizeof disk, "/tmp");
        o.disk_dir = tight > 1 ? disk : NULL;
        if (o.disk_dir)
            run_to_disk(t->dir, &o);
    }
    snprintf(f.what, sizeof f.what, "%s: chunk %u, %u sessions, %u threads, tight %d", t->dir,
             o.prefill_chunk, places, o.threads, tight);
    f.e = run_open(t->dir, &o);
    if (!f.e)
        return;
    twin_open(&f.twin, f.e);
    for (uint32_t i = 0; i < places; i++)
        open_session(&f, (int)i);
    for (int i = 0; i < STEPS; i++) {
        step(&f, seed);
        if (check_random(seed) % 3 == 0)
            replace(&f, (int)(check_random(seed) % N_SEQUENCES), seed);
    }
    struct spw_stats s;
    spw_engine_stats(f.e, &s);
    n_streamed += f.e->plan.n_kv_slots && s.moved_bytes[SPW_MOVED_HOST_TO_DEVICE] > 0;
    n_from_disk += s.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0;
    run_check_peaks(f.e, &o, f.what);
    n_twins += twin_end(&f.twin, f.e, f.what);
    for (int i = 0; i < N_SEQUENCES; i++)
        spw_session_close(f.sessions[i]);
    spw_engine_close(f.e);
}

/* ---- a batch ---- */

/* Tokens from which the batch makes a source; or a source and other tokens. */
static size_t make_prompt(const struct truth *t, int k, int32_t prompt[CONTEXT])
{
    /* whose other tokens differ from those of the first answer */
    const bool is_whole = k == 2 || t->audio[k];
    const size_t n = spw_min_u64(t->n_source[k] + (is_whole ? 2 : 0), CONTEXT - N_NEW);
    for (size_t i = 0; i < n; i++)
        prompt[i] = is_whole ? t->ids[k][i] : spw_plain_token(t->ids[k][i]);
    return n;
}

/* Answers to two sources, one of them by a search, and to the first one again behind other tokens;
 * together or alone, and in any memory. */
static void run_batch(const struct truth *t, const struct spw_options *o, bool together,
                      struct spw_result results[ANSWERS])
{
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    struct spw_engine *e = run_open(t->dir, o);
    int32_t prompt[CONTEXT];
    uint64_t id;
    int rc = 1;
    CHECK_MSG(e && !spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (int k = 0; k < 3; k++) {
        const struct spw_request q = {
            .n_prompt = make_prompt(t, k, prompt),
            .prompt = prompt,
            .audio = t->audio[k],
            .max_new_tokens = N_NEW,
            .ignore_eos = true,
            .sampling.repetition_penalty = 1.2F,
            .beams = {.n_beams = k == 1 ? BEAMS : 0, .length_penalty = 1}};
        CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
        for (rc = 1; rc > 0 && (k == 2 || !together);)
            rc = spw_batch_step(b, &err);
        CHECK_MSG(rc >= 0, "%s", err.text);
    }
    for (uint64_t i = 0; i < ANSWERS; i++)
        CHECK(!spw_batch_take(b, i + 1, &results[i]) && results[i].n_tokens == N_NEW);
    spw_batch_close(b);
    spw_engine_close(e);
}

static void check_batch(const struct truth *t)
{
    struct spw_result alone[ANSWERS], both[ANSWERS];
    struct spw_options o = plain(SPW_KV_EXACT);
    o.sessions = ANSWERS;
    run_batch(t, &o, false, alone);
    run_tight(t->dir, &o, 0);
    run_batch(t, &o, true, both);
    for (int i = 0; i < ANSWERS; i++) {
        CHECK_MSG(!memcmp(alone[i].tokens, both[i].tokens, N_NEW * sizeof(int32_t)) &&
                      !memcmp(&alone[i].score, &both[i].score, sizeof alone[i].score),
                  "%s: answer %d", t->dir, i);
        spw_result_free(&alone[i]);
        spw_result_free(&both[i]);
    }
}

/* ---- requests with one source ---- */

enum { SHARERS = 6, MAX_TILES = (CONTEXT + SPW_TILE_TOKENS - 1) / SPW_TILE_TOKENS };

/* Requests that read one source; the second half of them begins with other tokens. */
struct sharers {
    int32_t prompts[SHARERS][CONTEXT];
    struct spw_request requests[SHARERS];
    struct spw_plan_request lengths[SHARERS];
    size_t n_source;
};

static void make_sharers(struct sharers *x, const struct truth *t)
{
    x->n_source = t->audio[0] ? t->n_source[0] : MOST_SOURCE;
    for (int i = 0; i < SHARERS; i++) {
        int32_t *prompt = x->prompts[i];
        run_ids(prompt, CONTEXT, 90, 3);
        for (size_t k = 0; k < x->n_source; k++)
            prompt[k] = t->audio[0] ? t->ids[0][k] : spw_source_token(prompt[k]);
        prompt[x->n_source] += 2 * i >= SHARERS ? i : 0;
        x->requests[i] = (struct spw_request){.prompt = prompt,
                                              .n_prompt = x->n_source + 1 + (2 * i >= SHARERS),
                                              .audio = t->audio[0],
                                              .max_new_tokens = N_NEW,
                                              .sampling = {.temperature = 1, .seed = (uint64_t)i},
                                              .ignore_eos = true};
        x->lengths[i] = (struct spw_plan_request){
            .prompt = prompt, .n_prompt = x->requests[i].n_prompt, .max_new_tokens = N_NEW};
    }
}

/* How many requests run together where memory is reserved for one session as long as the context.
 */
static uint32_t count_running(struct spw_engine *e, const struct sharers *x)
{
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    uint32_t n = 0;
    uint64_t id;
    CHECK_MSG(!spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (int i = 0; i < SHARERS; i++)
        CHECK_MSG(!spw_batch_submit(b, &x->requests[i], &id, &err), "%s", err.text);
    CHECK_MSG(spw_batch_step(b, &err) == 1, "%s", err.text);
    for (uint64_t i = 0; i < SHARERS; i++)
        n += spw_batch_runs(b, i + 1);
    spw_batch_close(b);
    return n;
}

/* The encoder reads the source once for all: its tiles are computed and counted once, whatever the
 * memory and the chunk are, and the bytes are those that the dry run predicts. */
static void check_shared(const struct truth *t, enum spw_kv_precision precision, uint32_t chunk)
{
    static struct sharers x;
    struct spw_result alone[SHARERS], both[SHARERS];
    struct spw_options o = plain(precision);
    struct spw_error err = {0};
    struct spw_stats s;
    uint64_t moved[SPW_MOVED_COUNT];
    make_sharers(&x, t);
    struct spw_engine *e = run_open(t->dir, &o);
    for (int i = 0; i < SHARERS; i++)
        CHECK(!batch_run(e, NULL, &x.requests[i], 1, &alone[i], NULL, NULL));
    spw_engine_close(e);
    o.sessions = SHARERS;
    o.prefill_chunk = chunk;
    run_tight(t->dir, &o, 0);
    e = run_open(t->dir, &o);
    CHECK(!batch_run(e, NULL, x.requests, SHARERS, both, NULL, NULL));
    for (int i = 0; i < SHARERS; i++) {
        CHECK_MSG(!memcmp(alone[i].tokens, both[i].tokens, N_NEW * sizeof(int32_t)) &&
                      alone[i].logits_hash == both[i].logits_hash,
                  "%s: request %d", t->dir, i);
        CHECK_MSG(both[i].n_reused == (i ? x.n_source : 0), "%s: request %d: reused %llu", t->dir,
                  i, (unsigned long long)both[i].n_reused);
        spw_result_free(&alone[i]);
        spw_result_free(&both[i]);
    }
    CHECK_MSG(!spw_engine_predict(moved, e, x.lengths, SHARERS, &err), "%s", err.text);
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(moved[i] == s.moved_bytes[i], "%s: link %d: counted %llu, predicted %llu", t->dir,
                  i, (unsigned long long)s.moved_bytes[i], (unsigned long long)moved[i]);
    spw_engine_close(e);
    if (precision != SPW_KV_EXACT)
        return;
    o = plain(precision);
    o.sessions = SHARERS;
    o.full_sessions = 1;
    o.prefill_chunk = chunk;
    e = run_open(t->dir, &o);
    const uint32_t n = (uint32_t)spw_div_up(x.n_source + N_NEW, SPW_TILE_TOKENS);
    const uint32_t shared = (uint32_t)(x.n_source / SPW_TILE_TOKENS);
    const uint32_t fit = spw_min_u32(1 + (MAX_TILES - n) / (n - shared), SHARERS);
    const uint32_t running = count_running(e, &x);
    CHECK_MSG(running == fit, "%s: %u requests run, not %u", t->dir, running, fit);
    spw_engine_close(e);
}

/* ---- sources in files ---- */

static void change_files(const char *cache, uint64_t *seed)
{
    char path[600];
    DIR *d = opendir(cache);
    for (struct dirent *x; d && (x = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", cache, x->d_name);
        FILE *f = strstr(x->d_name, ".pack") ? fopen(path, "r+b") : NULL;
        if (!f)
            continue;
        fseek(f, 0, SEEK_END);
        const long at = (long)check_range(seed, 0, (uint64_t)ftell(f) - 1);
        fseek(f, at, SEEK_SET);
        const int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 1, f);
        fclose(f);
    }
    if (d)
        closedir(d);
}

/* A request under drawn options and with this cache, or without one. */
static uint64_t run_cached(const struct truth *t, const struct spw_request *q,
                           enum spw_kv_precision precision, const char *cache, uint64_t *hash,
                           uint64_t *seed)
{
    struct spw_options o = plain(precision);
    struct spw_result r;
    struct spw_error err = {0};
    o.prefix_cache_dir = cache;
    o.prefill_chunk = check_random(seed) % 2 ? 64 : 0;
    if (cache && check_random(seed) % 2)
        run_tight(t->dir, &o, check_random(seed) % 2 ? 0 : check_range(seed, 0, 1 << 18));
    struct spw_engine *e = run_open(t->dir, &o);
    CHECK_MSG(!batch_run(e, NULL, q, 1, &r, NULL, &err) && !*err.text, "%s", err.text);
    spw_engine_close(e);
    *hash = r.logits_hash;
    const uint64_t n = r.n_from_store;
    spw_result_free(&r);
    return n;
}

/* A later run finds the source, whatever its answer begins with, and no other source that begins
 * alike; damaged files are not believed. */
static void check_cached(const struct truth *t, enum spw_kv_precision precision, uint64_t *seed)
{
    static struct sharers x;
    char cache[64], command[128];
    int32_t other[CONTEXT];
    make_sharers(&x, t);
    struct spw_request last = x.requests[SHARERS - 1], changed = x.requests[0];
    const struct spw_request *requests[] = {&x.requests[0], &last, &changed,
                                            &x.requests[0], &last, &last};
    memcpy(other, changed.prompt, changed.n_prompt * sizeof *other);
    changed.prompt = other;
    changed.audio = t->audio[1];
    if (t->audio[1])
        memcpy(other, t->ids[1], x.n_source * sizeof *other);
    else
        other[x.n_source - 1] = spw_source_token(spw_plain_token(other[x.n_source - 1]) ^ 1);
    snprintf(cache, sizeof cache, "/tmp/spw_encoder_cache_%d", (int)getpid());
    for (int i = 0; i < 6; i++) {
        uint64_t hash, alone;
        run_cached(t, requests[i], precision, NULL, &alone, seed);
        const uint64_t n = run_cached(t, requests[i], precision, cache, &hash, seed);
        CHECK_MSG(hash == alone, "%s: run %d: other bits", t->dir, i);
        CHECK_MSG(i > 3 || n == (i % 2 ? x.n_source : 0), "%s: run %d: found %llu of %zu", t->dir,
                  i, (unsigned long long)n, x.n_source);
        if (i >= 3)
            change_files(cache, seed);
    }
    snprintf(command, sizeof command, "rm -r %s", cache);
    CHECK(!system(command));
}

/* Where KV is quantized, a session gives the store its source while it has the exact tiles there.
 */
static void check_late(void)
{
    enum { SOURCE = 200 };
    static const size_t lengths[] = {CONTEXT, SOURCE + 1};
    struct spw_options o = plain(SPW_KV_INT8);
    struct spw_prefix_stats stats;
    struct spw_error err = {0};
    char cache[64], command[128];
    int32_t ids[CONTEXT];
    snprintf(cache, sizeof cache, "/tmp/spw_encoder_late_%d", (int)getpid());
    o.prefix_cache_dir = cache;
    struct spw_engine *e = run_open("tests/golden/t5_relu", &o);
    struct spw_session *s = run_session(e);
    run_ids(ids, CONTEXT, 90, 3);
    for (int i = 0; i < SOURCE; i++)
        ids[i] = spw_source_token(ids[i]);
    for (int i = 0; i < 2; i++) {
        const struct spw_span span = {s, ids, lengths[i], 1};
        CHECK_MSG(!spw_sync(e, &span, 1, NULL, NULL, &err), "%s", err.text);
        CHECK_MSG(!spw_session_publish(s, &err), "%s", err.text);
        spw_engine_prefix(e, &stats);
        CHECK_MSG(stats.n_published == (i ? SOURCE : 0), "%zu tokens: published %llu", lengths[i],
                  (unsigned long long)stats.n_published);
    }
    spw_session_close(s);
    spw_engine_close(e);
    snprintf(command, sizeof command, "rm -r %s", cache);
    CHECK(!system(command));
}

/* Requests that a batch refuses; it goes on. */
static void check_refusals(const struct truth *t)
{
    int32_t mixed[] = {3, spw_source_token(4), 5}, whole[] = {spw_source_token(3), 5},
            late[] = {spw_source_token(3), 5, spw_source_token(4)};
    const struct {
        struct spw_request q;
        int rc;
    } cases[] = {
        {{.prompt = mixed, .n_prompt = 3}, -EINVAL},
        {{.prompt = late, .n_prompt = 3}, -EINVAL},
        {{.prompt = whole, .n_prompt = 1}, -EINVAL},
        {{.prompt = whole, .n_prompt = 2, .given = mixed + 1, .n_given = 1}, -EINVAL},
        {{.prompt = whole, .n_prompt = 2, .prompt_logprobs = true}, -ENOTSUP},
        {{.prompt = mixed, .n_prompt = 1, .prompt_logprobs = true}, -ENOTSUP},
        {{.prompt = whole, .n_prompt = 2}, 0},
        {{.prompt = mixed, .n_prompt = 1}, 0},
    };
    const struct spw_options o = plain(SPW_KV_EXACT);
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    struct spw_engine *e = run_open(t->dir, &o);
    uint64_t id;
    int rc = 1;
    CHECK_MSG(e && !spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_request q = cases[i].q;
        q.max_new_tokens = 2;
        rc = spw_batch_submit(b, &q, &id, &err);
        CHECK_MSG(rc == cases[i].rc, "case %zu: %d %s", i, rc, err.text);
    }
    for (rc = 1; rc > 0;)
        rc = spw_batch_step(b, &err);
    CHECK_MSG(!rc, "%s", err.text);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* A stack has positions for 64 tokens: a batch, and a session, refuse longer ones. */
static void check_stack(void)
{
    enum { MOST = 64 };
    int32_t ids[3 * MOST];
    struct spw_options o = plain(SPW_KV_EXACT);
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    uint64_t id;
    o.context = 3 * MOST;
    struct spw_engine *e = run_open("tests/golden/bart_plain", &o);
    CHECK_MSG(e && !spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (int i = 0; i < 3 * MOST; i++)
        ids[i] = i % 90;
    for (size_t more = 0; more < 2; more++)
        for (size_t new = 0; new < 2; new ++) {
            const struct spw_request q = {
                .prompt = ids, .n_prompt = MOST + more, .max_new_tokens = MOST + new};
            const int rc = spw_batch_submit(b, &q, &id, &err);
            CHECK_MSG(rc == (more || new ? -E2BIG : 0), "%zu, %zu: %s", more, new, err.text);
        }
    spw_batch_close(b);
    struct spw_session *s = run_session(e);
    for (int i = 0; i <= MOST; i++)
        ids[i] = spw_source_token(ids[i]);
    const struct spw_span longer = {s, ids, MOST + 2, 1}, right = {s, ids + 1, 2 * MOST, 1};
    CHECK(spw_sync(e, &longer, 1, NULL, NULL, &err) == -E2BIG);
    CHECK_MSG(!spw_sync(e, &right, 1, NULL, NULL, &err), "%s", err.text);
    spw_session_close(s);
    spw_engine_close(e);
}

/* One answer: the bytes that the run moves are those that the dry run predicts. */
static void check_prediction(const struct truth *t)
{
    struct spw_options o = plain(SPW_KV_EXACT);
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    struct spw_stats s;
    uint64_t id, moved[SPW_MOVED_COUNT];
    int32_t prompt[CONTEXT];
    int rc = 1;
    run_tight(t->dir, &o, 0);
    struct spw_engine *e = run_open(t->dir, &o);
    CHECK_MSG(e && !spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    run_ids(prompt, CONTEXT, 90, 3);
    if (t->audio[0])
        memcpy(prompt, t->ids[0], t->n_source[0] * sizeof(int32_t));
    const struct spw_request q = {.prompt = prompt,
                                  .n_prompt = t->audio[0] ? t->n_source[0] + 1 : MOST_SOURCE,
                                  .audio = t->audio[0],
                                  .max_new_tokens = t->audio[0] ? N_NEW : N_ANSWER,
                                  .ignore_eos = true};
    CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s", err.text);
    while (rc > 0)
        rc = spw_batch_step(b, &err);
    CHECK_MSG(!rc, "%s", err.text);
    const struct spw_plan_request like = {
        .prompt = prompt, .n_prompt = q.n_prompt, .max_new_tokens = q.max_new_tokens};
    CHECK_MSG(!spw_engine_predict(moved, e, &like, 1, &err), "%s", err.text);
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(moved[i] == s.moved_bytes[i], "%s: link %d: counted %llu, predicted %llu", t->dir,
                  i, (unsigned long long)s.moved_bytes[i], (unsigned long long)moved[i]);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* A source that is audio has 40 tokens, and a batch and a session want its spectrogram. */
static void check_audio(void)
{
    enum { SOURCE = 40, N = SOURCE + 2 };
    static const float audio[SPW_AUDIO_FRAMES * SOURCE * 8];
    int32_t ids[N];
    struct spw_options o = plain(SPW_KV_EXACT);
    struct spw_error err = {0};
    struct spw_batch *b = NULL;
    uint64_t id;
    struct spw_engine *e = run_open("tests/golden/whisper_plain", &o);
    CHECK_MSG(e && !spw_batch_open(&b, e, NULL, &err), "%s", err.text);
    for (int i = 0; i < N; i++)
        ids[i] = i < SOURCE ? spw_source_token(i) : i;
    struct spw_session *s = run_session(e);
    const struct spw_span span = {s, ids, N, 1}, shorter = {s, ids + 1, N - 1, 1};
    CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -EINVAL && strstr(err.text, "is audio"));
    spw_session_set_audio(s, audio);
    CHECK(spw_sync(e, &shorter, 1, NULL, NULL, &err) == -E2BIG);
    const struct spw_span begun = {s, ids, N - 1, 1};
    CHECK_MSG(!spw_sync(e, &begun, 1, NULL, NULL, &err), "%s", err.text);
    spw_session_set_audio(s, NULL); /* the session has the source */
    CHECK_MSG(!spw_sync(e, &span, 1, NULL, NULL, &err), "%s", err.text);
    ids[0] ^= 1;
    CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -EINVAL && strstr(err.text, "is audio"));
    spw_session_close(s);
    struct spw_request q = {.prompt = ids, .n_prompt = N, .max_new_tokens = 2};
    CHECK(spw_batch_submit(b, &q, &id, &err) == -EINVAL && strstr(err.text, "is audio"));
    q.audio = audio;
    q.prompt++;
    q.n_prompt--;
    CHECK(spw_batch_submit(b, &q, &id, &err) == -E2BIG && strstr(err.text, "expected 40 and"));
    q.prompt = ids + SOURCE;
    q.n_prompt = N - SOURCE;
    CHECK(spw_batch_submit(b, &q, &id, &err) == -E2BIG);
    spw_batch_close(b);
    spw_engine_close(e);
}

int main(int argc, char **argv)
{
    static const enum spw_kv_precision precisions[] = {SPW_KV_EXACT, SPW_KV_EXACT, SPW_KV_INT8,
                                                       SPW_KV_INT4};
    const int draws = argc > 1 ? atoi(argv[1]) : DRAWS;
    uint64_t seed = check_seed();
    struct truth t;
    if (!run_is_there())
        return CHECK_SKIP;
    check_stack();
    check_audio();
    if (!TEST_GPU) /* whose context is too short */
        check_late();
    for (int i = 0; i < draws; i += LIVES) {
        const enum spw_kv_precision precision = precisions[check_random(&seed) % 4];
        truth_make(&t, &folders[check_random(&seed) % N_FOLDERS], precision, &seed);
        for (int k = 0; k < LIVES; k++)
            run_life(&t, precision, &seed);
        if (i < 12) {
            check_batch(&t);
            check_prediction(&t);
            check_shared(&t, precision, i / LIVES % 2 ? 64 : 0);
            check_cached(&t, precision, &seed);
            if (!t.audio[0])
                check_refusals(&t);
        }
        truth_free(&t);
    }
    fprintf(stderr, "%d lives streamed, %d read the disk, %d ended beside a twin, %d new sources\n",
            n_streamed, n_from_disk, n_twins, n_changed);
    CHECK(draws < 60 || (n_streamed && n_from_disk && n_twins && n_changed));
    return check_done();
}
