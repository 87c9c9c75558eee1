/* Whatever is done with an engine, in whatever order, under whatever budgets: the logits are the
 * bits of one plain run, the bytes that moved are those that were predicted, no peak passes its
 * budget, and nothing leaks.
 *
 * A draw is a model, the way its KV is kept, options that must not change a bit, and a walk over
 * the table of operations below. A walk prefers pairs of operations that have not followed each
 * other yet. The test fails if an operation, or a pair, or a kind of placement that is listed in
 * `tried` never happened.
 *
 *   test_engine [draws [first [walk]]]    SPW_SEED repeats a run. With 1 draw, the number, the seed
 *                                         and the letters of one that failed, a single one */
#include "runtime/saved.h"
#include "tests/batch_run.h"
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/persist/pack_run.h"
#include "tests/engine/told_run.h"

enum {
    TOKENS = TEST_GPU         ? 600
             : RUN_UNDER_ASAN ? 1100
                              : 1500,
    RANDOM_TOKENS = TEST_GPU ? 300 : 700, /* of random models and bundled ones */
    DRAWS = TEST_GPU         ? (RUN_UNDER_ASAN ? 2 : 6)
            : RUN_UNDER_TSAN ? 12
            : RUN_UNDER_ASAN ? 20
                             : 60,
    FULL_DRAWS = TEST_GPU || RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 2 * DRAWS : 16 * DRAWS,
    N_SESSIONS = 3,
    N_NEW = 4, /* tokens that a batch generates for a request */
    MIB = 1 << 20
};

/* What draws must have had. */
enum {
    SPILLED,
    ON_DISK,
    ON_THREE_TIERS,
    STREAMED_WEIGHTS,
    PACKED_WEIGHTS,
    KEPT_WEIGHTS,
    MAPPED_WEIGHTS,
    WEIGHTS_FROM_DISK,
    WEIGHTS_BOUNCED,
    QUANTIZED_STREAMS,
    OLD_FROM_HOST,
    OLD_FROM_DISK,
    FOUND,
    FOUND_QUANTIZED,
    FOUND_SLIDING,
    FOUND_STREAMS,
    FOUND_BOUNCED,
    NOTES,
    INCIDENTS,
    FAULT_ERRORS,
    INTERRUPTED,
    INTERRUPTED_DECODE,
    INTERRUPTED_LOGITS,
    INTERRUPTED_FURTHER,
    EMPTIED,
    TOLD,
    N_TRIED
};
static struct {
    const char *name;
    uint64_t n;
} tried[N_TRIED] = {{"tiles on the host", 0},
                    {"tiles on disk", 0},
                    {"on host and disk", 0},
                    {"streamed weights", 0},
                    {"packed copies", 0},
                    {"kept pages", 0},
                    {"mapped weights", 0},
                    {"weights from disk", 0},
                    {"weights by way of the host", 0},
                    {"quantized KV streams", 0},
                    {"old tiles from the host", 0},
                    {"old tiles from disk", 0},
                    {"prefixes found", 0},
                    {"quantized ones", 0},
                    {"ones with windows", 0},
                    {"ones that stream", 0},
                    {"ones by way of the host", 0},
                    {"notes of the prefix cache", 0},
                    {"lost tiles", 0},
                    {"faults that ended a step", 0},
                    {"interrupted steps", 0},
                    {"of one token", 0},
                    {"between logits", 0},
                    {"that had passes through", 0},
                    {"that emptied a session", 0},
                    {"accounts by who was told", 0}};
static uint64_t n_rows, n_unpredicted;

/* ---- a walk ---- */

struct walk {
    struct subject *s;
    enum aim aim;
    struct spw_backend backend;
    struct spw_options o;
    struct io_fault fault;
    size_t context;
    uint32_t n_sessions;
    struct spw_engine *e;
    struct spw_session *sessions[N_SESSIONS];
    int32_t *ids[N_SESSIONS]; /* [s->n_tokens], what each session was last asked for */
    char cache[160], file[N_SESSIONS][160];
    int32_t *saved_ids[N_SESSIONS]; /* [s->n_tokens], of each file */
    size_t saved[N_SESSIONS];       /* tokens in each file; 0: it is not there */
    struct told told;
    bool is_told;      /* told of all that the engine did */
    bool faulty;       /* something was lost: notes are due, and there may be no prediction */
    bool spoiled;      /* files were: how far they were read is not predicted */
    bool late_write;   /* a write has failed, which a step may hear of yet */
    int64_t alloc_nth; /* of the next step: this allocation fails; below 0: none */
    int64_t left;      /* times the engine asks until the step is interrupted; below 0: never */
    bool ended;        /* it was */
    struct watch watch;
    uint64_t *seed;
    char what[500]; /* the draw, and a letter for each operation so far */
};

static uint64_t draw_one(struct walk *w, uint64_t n)
{
    return check_random(w->seed) % n;
}

static bool interrupted(void *context)
{
    struct walk *w = context;
    CHECK(!w->ended); /* once is enough */
    return w->ended = w->left >= 0 && w->left-- == 0;
}

static void hear(struct walk *w)
{
    struct spw_engine_event event;
    while (spw_engine_event(w->e, &event))
        if (event.kind == SPW_ENGINE_NOTE) {
            tried[NOTES].n++;
            CHECK_MSG(w->faulty || w->o.prefix_cache_bytes < MIB, "%s: %s", w->what, event.text);
        }
}

/* From here on the engine does what nobody tells. */
static void stop_telling(struct walk *w)
{
    if (!w->is_told)
        return;
    told_check(&w->told, w->e, w->what);
    told_close(&w->told);
    w->is_told = false;
    tried[TOLD].n++;
}

static void open_engine(struct walk *w)
{
    w->e = run_open_on(&w->backend, w->s->dir, &w->o);
    w->e->look = interrupted;
    w->e->look_context = w;
    for (uint32_t i = 0; i < w->n_sessions; i++)
        w->sessions[i] = run_session(w->e);
    w->is_told = !w->o.prefix_cache_dir && w->o.sessions == w->n_sessions; /* else shares change */
    if (w->is_told)
        told_open(&w->told, w->e);
}

static void count_plan(const struct spw_plan *p, const struct spw_stats *s)
{
    tried[SPILLED].n += p->info.host.kv > 0;
    tried[ON_DISK].n += s->moved_bytes[SPW_MOVED_HOST_TO_DISK] > 0;
    tried[ON_THREE_TIERS].n +=
        s->moved_bytes[SPW_MOVED_HOST_TO_DISK] && p->residency[SPW_LAYER_FULL].host;
    tried[STREAMED_WEIGHTS].n += p->info.device.weights_slots > 0;
    tried[PACKED_WEIGHTS].n += p->host.end > p->host.packed;
    tried[KEPT_WEIGHTS].n += p->kept_bytes > 0;
    tried[MAPPED_WEIGHTS].n += p->mapped_bytes > 0;
    tried[WEIGHTS_FROM_DISK].n += p->info.weights_disk_bytes > 0;
    tried[WEIGHTS_BOUNCED].n += p->n_weight_bounce > 0;
    tried[QUANTIZED_STREAMS].n += p->quantizes && p->n_kv_slots;
}

static void count_found(const struct spw_plan *p, const struct spw_stats *s, uint64_t n)
{
    tried[FOUND].n += n;
    tried[FOUND_QUANTIZED].n += p->quantizes ? n : 0;
    tried[FOUND_SLIDING].n += p->n_layers[SPW_LAYER_SLIDING] ? n : 0;
    tried[FOUND_STREAMS].n += n && p->n_kv_slots && s->moved_bytes[SPW_MOVED_DISK_TO_HOST];
    tried[FOUND_BOUNCED].n += n && p->n_bounce;
}

static void check_engine(struct walk *w)
{
    struct spw_stats s;
    struct spw_prefix_stats p;
    spw_engine_stats(w->e, &s);
    const uint64_t n_incidents = s.n_lost_tiles;
    hear(w);
    spw_engine_prefix(w->e, &p);
    CHECK_MSG(!w->watch.n_wrong, "%s: %llu of %llu rows differ", w->what,
              (unsigned long long)w->watch.n_wrong, (unsigned long long)w->watch.n_rows);
    bool predicted = w->spoiled || run_check_moved(w->e, &w->o, w->what);
    n_unpredicted += !predicted && !w->faulty;
    CHECK_MSG(predicted || w->faulty, "%s: no prediction", w->what);
    CHECK_MSG(s.disk_peak_bytes <= w->o.disk_bytes, "%s: disk peak", w->what);
    CHECK_MSG(w->faulty || !n_incidents, "%s: %llu losses", w->what,
              (unsigned long long)n_incidents);
    tried[INCIDENTS].n += n_incidents;
    count_plan(&w->e->plan, &s);
    count_found(&w->e->plan, &s, p.n_reused);
}

static void close_engine(struct walk *w)
{
    stop_telling(w);
    check_engine(w);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        spw_session_close(w->sessions[i]);
    spw_engine_close(w->e);
}

/* ---- steps ---- */

/* Old tiles below the device: what the session's next token reads through slots. */
static void count_old(const struct walk *w, const struct spw_session *s)
{
    const struct spw_model_config *c = spw_engine_config(w->e);
    for (uint32_t l = 0; l < c->n_layers && w->e->plan.quantizes; l++)
        for (uint32_t t = spw_kv_first(s->seq.kv, l); t < spw_kv_begin(s->seq.kv, l); t++) {
            bool old = c->layer_kinds[l] != SPW_LAYER_SLIDING;
            tried[OLD_FROM_HOST].n += old && spw_kv_host_tile(s->seq.kv, l, t);
            tried[OLD_FROM_DISK].n += old && spw_kv_disk_frame(s->seq.kv, l, t) != SPW_DISK_NONE;
        }
}

/* What an interrupted step has left. */
static void check_interrupted(const struct walk *w, const struct spw_span *span, size_t held)
{
    size_t now = spw_session_n_tokens(span->session), kept = spw_session_reused(span->session);
    CHECK_MSG(now <= span->n_tokens, "%s: %zu of %zu tokens", w->what, now, span->n_tokens);
    if (spw_engine_plan(w->e)->rolls_back && span->n_tokens > kept + 1 && !w->faulty)
        CHECK_MSG(now >= kept, "%s: %zu of %zu tokens", w->what, now, kept);
    tried[INTERRUPTED_DECODE].n += span->n_tokens == held + 1;
    tried[INTERRUPTED_FURTHER].n += now > held;
    tried[EMPTIED].n += held && !now;
}

/* Sessions go to to[i] tokens of their sequences, where that is not 0. */
static int step(struct walk *w, const size_t *to, struct spw_error *err)
{
    struct spw_span spans[N_SESSIONS];
    uint32_t index[N_SESSIONS];
    size_t n = 0, held[N_SESSIONS];
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        if (!to[i])
            continue;
        size_t rows = draw_one(w, 5) ? 1 : draw_between(w->seed, 0, to[i] < 40 ? to[i] : 40);
        index[n] = i;
        held[n] = spw_session_n_tokens(w->sessions[i]);
        w->watch.rows[n] = oracle_rows(w->s, w->ids[i], to[i], w->s->n_tokens);
        spans[n] = (struct spw_span){w->sessions[i], w->ids[i], to[i], rows};
        if (to[i] == held[n] + 1)
            count_old(w, w->sessions[i]);
        n++;
    }
    uint64_t rows = w->watch.n_rows;
    w->ended = false;
    spw_alloc_fail_nth(w->alloc_nth);
    int rc = n ? spw_sync(w->e, spans, n, watch_logits, &w->watch, err) : 0;
    spw_alloc_fail_nth(w->alloc_nth = -1);
    hear(w);
    if (w->ended) {
        CHECK_MSG(rc == -ECANCELED && strstr(err->text, "interrupted"), "%s: %d", w->what, rc);
        for (size_t i = 0; i < n; i++)
            check_interrupted(w, &spans[i], held[i]);
        tried[INTERRUPTED].n++;
        tried[INTERRUPTED_LOGITS].n += w->watch.n_rows > rows;
    }
    for (size_t i = 0; i < n && !rc; i++) {
        CHECK(spw_session_n_tokens(spans[i].session) == to[index[i]]);
        if (w->is_told)
            told_span(&w->told, index[i], held[i], spw_session_reused(spans[i].session),
                      to[index[i]], spans[i].n_logits);
    }
    if (w->is_told)
        told_step(&w->told);
    return rc;
}

/* A write that failed after its step had ended fails one later step. */
static bool is_late(struct walk *w, int rc)
{
    bool late = w->late_write && (rc == -EIO || rc == -ENOSPC);
    w->late_write = w->late_write && !late;
    return late;
}

static void must_step(struct walk *w, const size_t *to, const char *why)
{
    struct spw_error err = {0};
    int rc = step(w, to, &err);
    if (is_late(w, rc)) {
        spw_error_clear(&err);
        rc = step(w, to, &err);
    }
    CHECK_MSG(rc == 0, "%s: %s: %d: %s", w->what, why, rc, err.text);
}

enum way { DECODE, MORE, BACK, OVER };

/* Where sessions go next: most of them, one at least. */
static void choose(struct walk *w, enum way way, size_t *to)
{
    uint32_t one = (uint32_t)draw_one(w, w->n_sessions);
    for (uint32_t i = 0; i < w->n_sessions; i++) {
        size_t held = spw_session_n_tokens(w->sessions[i]), rest = held % SPW_TILE_TOKENS;
        to[i] = way == DECODE ? held + 1
                : way == MORE ? draw_between(w->seed, held, held + 150)
                : way == BACK ? draw_between(w->seed, 1, held)
                              : check_range(w->seed, 1, w->context);
        if (way == OVER)
            memcpy(w->ids[i], w->s->ids[draw_one(w, SUBJECT_SEQUENCES)],
                   w->s->n_tokens * sizeof *w->ids[i]);
        if (way != DECODE && !draw_one(w, 3)) /* a whole tile, or a token beside */
            to[i] = to[i] / SPW_TILE_TOKENS * SPW_TILE_TOKENS + draw_one(w, 2);
        if (way == MORE && !draw_one(w, 8))
            to[i] = held + SPW_TILE_TOKENS - rest;
        to[i] = to[i] < 1 ? 1 : to[i] > w->context ? w->context : to[i];
        if (i != one && !draw_one(w, 3))
            to[i] = 0;
    }
}

static void go(struct walk *w, enum way way)
{
    size_t to[N_SESSIONS];
    choose(w, way, to);
    must_step(w, to, "a step");
}

static uint32_t any_session(struct walk *w)
{
    return (uint32_t)draw_one(w, w->n_sessions);
}

/* ---- operations ---- */

static void decode(struct walk *w)
{
    go(w, DECODE);
}

static void more(struct walk *w)
{
    go(w, MORE);
}

static void back(struct walk *w)
{
    go(w, BACK);
}

static void over(struct walk *w)
{
    go(w, OVER);
}

static void fork_session(struct walk *w)
{
    struct spw_error err = {0};
    uint32_t to = any_session(w), from = (to + 1) % w->n_sessions;
    spw_session_close(w->sessions[to]);
    CHECK_MSG(!spw_session_fork(&w->sessions[to], w->sessions[from], &err), "%s", err.text);
    memcpy(w->ids[to], w->ids[from], w->s->n_tokens * sizeof *w->ids[to]);
    if (w->is_told)
        told_fork(&w->told, to, from);
}

static void renew(struct walk *w)
{
    uint32_t i = any_session(w);
    stop_telling(w);
    spw_session_close(w->sessions[i]);
    w->sessions[i] = run_session(w->e);
}

/* A step that is interrupted behind any chunk of any layer, and goes on, or something else does. */
static void interrupt(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    stop_telling(w);
    choose(w, (enum way)draw_one(w, 4), to);
    w->left = (int64_t)check_range(w->seed, 0, 1 << check_range(w->seed, 0, 6));
    int rc = step(w, to, &err);
    CHECK_MSG(!rc || w->ended || is_late(w, rc), "%s: %d: %s", w->what, rc, err.text);
    w->left = -1;
    if (rc && draw_one(w, 2))
        must_step(w, to, "the interrupted step again");
}

static void publish(struct walk *w)
{
    struct spw_error err = {0};
    int rc = spw_session_publish(w->sessions[any_session(w)], &err);
    CHECK_MSG(!rc || w->faulty || (rc == -ENOSPC && w->o.prefix_cache_bytes < MIB), "%s", err.text);
}

/* Each session has a file of its own. */
static void save(struct walk *w)
{
    struct spw_error err = {0};
    uint32_t i = any_session(w);
    size_t to[N_SESSIONS] = {0}, n = spw_session_n_tokens(w->sessions[i]);
    n = to[i] = n ? n : 1;
    must_step(w, to, "before a save"); /* budgets that changed may have freed its cache */
    stop_telling(w);
    int rc = spw_session_save(w->sessions[i], w->file[i], &n, sizeof n, NULL, &err);
    CHECK_MSG(!rc || (w->faulty && err.text[0]), "%s: %d: %s", w->what, rc, err.text);
    if (rc)
        return;
    w->saved[i] = n;
    memcpy(w->saved_ids[i], w->ids[i], w->s->n_tokens * sizeof *w->ids[i]);
}

static bool has_saved(const struct walk *w)
{
    return w->saved[0] || w->saved[1] || w->saved[2];
}

/* Any session goes on from any file. */
static void resume(struct walk *w)
{
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    uint32_t i = any_session(w), k = (uint32_t)draw_one(w, N_SESSIONS);
    while (!w->saved[k])
        k = (k + 1) % N_SESSIONS;
    stop_telling(w);
    spw_session_close(w->sessions[i]);
    CHECK_MSG(!spw_saved_open(&saved, w->file[k], &err), "%s: %s", w->what, err.text);
    CHECK_MSG(!spw_session_resume(&w->sessions[i], w->e, saved, &err), "%s: %s", w->what, err.text);
    const struct spw_saved_info *info = spw_saved_info(saved);
    CHECK(info->n_tokens == w->saved[k] && !memcmp(info->state, &w->saved[k], sizeof w->saved[k]));
    spw_saved_close(saved);
    memcpy(w->ids[i], w->saved_ids[k], w->s->n_tokens * sizeof *w->ids[i]);
    CHECK(spw_session_n_tokens(w->sessions[i]) == w->saved[k]);
}

/* Another engine, under budgets of its own, with what the first one has left in files. Between the
 * two a process that shares nothing but the files may publish something. */
static void restart(struct walk *w)
{
    int status = 1;
    close_engine(w);
    /* a driver of a GPU does not work in a process that was forked */
    if (w->o.prefix_cache_dir && run_can_lose_device() && !RUN_UNDER_TSAN) {
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            check_failed_ = 0;
            draw_budgets(&w->o, &w->backend, w->s->dir, w->aim, w->seed);
            open_engine(w);
            over(w);
            publish(w);
            close_engine(w);
            _exit(check_failed_ != 0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    draw_speed(&w->o, w->seed);
    draw_budgets(&w->o, &w->backend, w->s->dir, w->aim, w->seed);
    open_engine(w);
}

/* Other budgets, up or down, under the engine's options. */
static void set_budgets(struct walk *w)
{
    struct spw_error err = {0};
    struct spw_options o = w->o;
    stop_telling(w);
    draw_budgets(&o, &w->backend, w->s->dir, w->aim, w->seed);
    int rc = spw_engine_set_budgets(w->e, o.device_bytes, o.host_bytes, o.disk_bytes, &err);
    CHECK_MSG(!rc || w->faulty, "%s: %d: %s", w->what, rc, err.text);
    if (rc)
        return;
    w->o = o;
    if (w->spoiled || w->faulty || run_check_moved(w->e, &w->o, w->what))
        return;
    w->faulty = true; /* what was moved by a replan that did not work out is not known */
    n_unpredicted++;
}

/* A step that failed has left one line of text, and works when it is made again. */
static void after_fault(struct walk *w, int rc, const size_t *to, const struct spw_error *err,
                        const char *what)
{
    if (!rc)
        return;
    tried[FAULT_ERRORS].n++;
    CHECK_MSG(err->text[0] && !strchr(err->text, '\n'), "%s: %s: %d %s", w->what, what, rc,
              err->text);
    must_step(w, to, what);
}

static bool has_drive(const struct walk *w)
{
    return w->e->io;
}

/* Any request of the step goes wrong. What is wrong once is made good without a word. */
static void break_drive(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    enum io_fault_kind kind = draw_one(w, 3) ? (enum io_fault_kind)draw_one(w, CUT) : FLIP_FOREVER;
    /* weights have no checksums */
    if (w->e->plan.info.weights_disk_bytes && (kind == FLIP_ONCE || kind == FLIP_FOREVER))
        kind = SHORT_READ;
    choose(w, (enum way)draw_one(w, 4), to);
    stop_telling(w);
    w->faulty = w->faulty || kind >= READ_FOREVER;
    io_fault_set(&w->fault, kind,
                 (int64_t)check_range(w->seed, 0, 1 << check_range(w->seed, 0, 4)));
    int rc = step(w, to, &err);
    CHECK_MSG(!rc || ((rc == -EIO || rc == -ENOSPC) && kind >= READ_FOREVER), "%s: %s: %d: %s",
              w->what, io_fault_names[kind], rc, err.text);
    /* a tile that was not written may still count as written in the account of a later step */
    w->late_write = w->fault.met && (kind == WRITE_FOREVER || kind == ALL_WRITES);
    w->spoiled = w->spoiled || w->late_write;
    io_fault_set(&w->fault, kind, -1);
    after_fault(w, rc, to, &err, io_fault_names[kind]);
}

/* One allocation of the step fails. */
static void refuse_memory(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    choose(w, (enum way)draw_one(w, 4), to);
    stop_telling(w);
    w->faulty = true;
    w->alloc_nth = (int64_t)draw_one(w, 12);
    int rc = step(w, to, &err);
    CHECK_MSG(!rc || rc == -ENOMEM || is_late(w, rc), "%s: %d: %s", w->what, rc, err.text);
    after_fault(w, rc, to, &err, "an allocation that failed");
}

/* A bit of any file of the prefix cache, or one of each page from some page on. */
static void spoil(struct walk *w)
{
    char path[512], name[256] = "";
    uint8_t byte;
    struct stat st;
    DIR *dir = opendir(w->cache);
    uint64_t n = 0;
    for (struct dirent *x; dir && (x = readdir(dir));)
        if (x->d_name[0] != '.' && draw_one(w, ++n) == 0)
            snprintf(name, sizeof name, "%s", x->d_name);
    if (dir)
        closedir(dir);
    w->faulty = w->spoiled = true;
    snprintf(path, sizeof path, "%s/%s", w->cache, name);
    int fd = *name ? open(path, O_RDWR) : -1;
    if (fd >= 0 && !fstat(fd, &st) && st.st_size > 0)
        for (off_t at = (off_t)draw_one(w, (uint64_t)st.st_size), all = (off_t)draw_one(w, 2);
             at < st.st_size; at += all ? 4096 : st.st_size) {
            CHECK(pread(fd, &byte, 1, at) == 1);
            byte ^= (uint8_t)(1 << draw_one(w, 8));
            CHECK(pwrite(fd, &byte, 1, at) == 1);
        }
    if (fd >= 0)
        close(fd);
}

/* ---- a batch ---- */

struct answer {
    int32_t *ids; /* [s->n_tokens]: the prompt, and what was generated */
    size_t n_prompt, n;
    float *logits; /* [N_NEW][vocab] */
    bool ended;
};

static void read_events(const struct walk *w, struct spw_batch *b, struct answer *answers)
{
    struct spw_event e;
    while (spw_batch_event(b, &e)) {
        struct answer *a = &answers[e.request - 1];
        uint32_t vocab = w->s->vocab;
        if (e.kind == SPW_EVENT_END) {
            CHECK_MSG(!e.text_bytes, "%s: %s", w->what, e.text);
            a->ended = true;
            continue;
        }
        CHECK(!a->ended && a->n - a->n_prompt < N_NEW && e.token == model_argmax(e.logits, vocab));
        memcpy(a->logits + (a->n - a->n_prompt) * vocab, e.logits, vocab * sizeof *e.logits);
        a->ids[a->n++] = e.token;
    }
}

static void check_answer(struct walk *w, const struct answer *a)
{
    uint32_t vocab = w->s->vocab;
    const float *rows = oracle_rows(w->s, a->ids, a->n, w->s->n_tokens);
    for (size_t i = 0; i < a->n - a->n_prompt; i++) {
        w->watch.n_rows++;
        w->watch.n_wrong +=
            !run_same(a->logits + i * vocab, rows + (a->n_prompt + i - 1) * vocab, vocab);
    }
}

/* Requests of the walk's sessions, and one that has none. One of them may be canceled, and any step
 * interrupted and made again. */
static void run_batch(struct walk *w)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    struct answer answers[N_SESSIONS + 1];
    uint32_t n = 0;
    int rc = 1;
    stop_telling(w);
    CHECK_MSG(!spw_batch_open(&b, w->e, NULL, &err), "%s", err.text);
    for (uint32_t i = 0; i < w->o.sessions; i++) {
        struct answer *a = &answers[n];
        bool own = i < w->n_sessions;
        if (own && n && draw_one(w, 2))
            continue;
        *a = (struct answer){.n_prompt = check_range(w->seed, 1, w->context - N_NEW)};
        a->ids = own ? w->ids[i] : calloc(w->s->n_tokens, sizeof *a->ids);
        if (!own || !draw_one(w, 3))
            memcpy(a->ids, w->s->ids[draw_one(w, 2)], w->s->n_tokens * sizeof *a->ids);
        size_t held = own ? spw_session_n_tokens(w->sessions[i]) : 0;
        if (held && held <= w->context - N_NEW && draw_one(w, 2)) /* the next turn */
            a->n_prompt = draw_between(w->seed, held, w->context - N_NEW);
        a->n = a->n_prompt;
        a->logits = calloc(N_NEW * w->s->vocab, sizeof *a->logits);
        struct spw_request q = {.prompt = a->ids,
                                .n_prompt = a->n_prompt,
                                .max_new_tokens = N_NEW,
                                .ignore_eos = true,
                                .session = own ? w->sessions[i] : NULL};
        uint64_t id;
        CHECK_MSG(!spw_batch_submit(b, &q, &id, &err), "%s: %s", w->what, err.text);
        CHECK(id == ++n);
    }
    while (rc > 0 || rc == -ECANCELED) {
        w->left = draw_one(w, 3) ? -1 : (int64_t)draw_one(w, 40);
        w->ended = false;
        rc = spw_batch_step(b, &err);
        if (is_late(w, rc))
            rc = 1; /* it may be tried again */
        CHECK_MSG(rc >= 0 || (rc == -ECANCELED && w->ended), "%s: %d: %s", w->what, rc, err.text);
        if (!draw_one(w, 8))
            spw_batch_cancel(b, 1 + draw_one(w, n));
        read_events(w, b, answers);
    }
    w->left = -1;
    w->ended = false;
    spw_batch_close(b);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(answers[i].ended);
        check_answer(w, &answers[i]);
        free(answers[i].logits);
        bool own = false;
        for (uint32_t k = 0; k < w->n_sessions; k++)
            own = own || answers[i].ids == w->ids[k];
        if (!own)
            free(answers[i].ids);
    }
}

/* ---- the table of operations ---- */

static bool has_partner(const struct walk *w)
{
    return w->n_sessions > 1;
}

static bool has_cache(const struct walk *w)
{
    return w->o.prefix_cache_dir;
}

static bool can_save(const struct walk *w)
{
    return w->o.saves;
}

static bool has_room(const struct walk *w)
{
    return w->context > 2 * N_NEW;
}

static const struct operation {
    const char *name;
    uint64_t weight;
    bool (*can)(const struct walk *w); /* NULL: always */
    void (*run)(struct walk *w);
} operations[] = {{"decode", 6, NULL, decode},
                  {"more", 5, NULL, more},
                  {"back", 3, NULL, back},
                  {"over", 3, NULL, over},
                  {"fork", 3, has_partner, fork_session},
                  {"renew", 1, NULL, renew},
                  {"interrupt", 3, NULL, interrupt},
                  {"publish", 3, has_cache, publish},
                  {"save", 2, can_save, save},
                  {"resume", 2, has_saved, resume},
                  {"restart", 1, NULL, restart},
                  {"budgets", 2, NULL, set_budgets},
                  {"drive", 4, has_drive, break_drive},
                  {"memory", 1, NULL, refuse_memory},
                  {"spoil", 2, has_cache, spoil},
                  {"batch", 2, has_room, run_batch}};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

static const char *given_walk;
static uint64_t done[N_OPERATIONS], pairs[N_OPERATIONS][N_OPERATIONS];

/* One that has never followed `last` where there is one, as a rule; else by weight. What damages
 * comes late: the account of a walk ends with it. */
static size_t choose_operation(const struct walk *w, size_t last, bool early)
{
    uint64_t weight[N_OPERATIONS], sum = 0, at;
    bool aims = check_random(w->seed) % 8 && last < N_OPERATIONS;
    for (int tries = 0; !sum; tries++)
        for (size_t i = 0; i < N_OPERATIONS; i++) {
            const struct operation *o = &operations[i];
            bool can = !o->can || o->can(w);
            bool harm = o->run == spoil || o->run == refuse_memory || o->run == break_drive;
            weight[i] = can && !(harm && early) ? o->weight : 0;
            if (aims && !tries && pairs[last][i])
                weight[i] = 0;
            sum += weight[i];
        }
    at = check_random(w->seed) % sum;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        if (at < weight[i])
            return i;
        at -= weight[i];
    }
    return 0;
}

/* ---- draws ---- */

static void draw_walk(struct walk *w, int number, struct subject *subjects, int n_subjects)
{
    w->s = &subjects[draw_one(w, (uint64_t)n_subjects)];
    w->aim = number % 4 == 1 ? (number % 8 == 1 ? FROM_HOST : FROM_DISK) : ANYTHING;
    if (w->aim && draw_one(w, 2)) /* little else than KV, and more old tiles than slots hold */
        w->s = &subjects[0];
    w->n_sessions = draw_one(w, 2) ? 1 : (uint32_t)check_range(w->seed, 1, N_SESSIONS);
    w->n_sessions = w->s == subjects && w->aim ? 1 : w->n_sessions;
    w->context = draw_one(w, 6) ? check_range(w->seed, w->s->n_tokens / 5 * 2, w->s->n_tokens)
                                : check_range(w->seed, 2, w->s->n_tokens / 4);
    if (w->aim)
        w->context = check_range(w->seed, w->s->n_tokens - 60, w->s->n_tokens);
    w->backend = run_backend(draw_one(w, 2));
    w->backend.io_fault = &w->fault.hook;
    struct spw_options *o = &w->o;
    *o = w->s->o;
    draw_speed(o, w->seed);
    o->context = w->context;
    o->sessions = w->n_sessions + (uint32_t)draw_one(w, 2);
    o->on_oom = SPW_ON_OOM_SPILL;
    o->saves = draw_one(w, 2);
    if (w->aim) /* little that old tiles could lie in instead */
        o->prefetch_slots = 2, o->prefetch_splits = 1, o->prefill_chunk &= ~63u;
    if (w->aim ? w->aim == FROM_DISK : draw_one(w, 2))
        o->disk_dir = w->s->dir;
    if (draw_one(w, 2) && (!w->aim || draw_one(w, 2))) {
        o->prefix_cache_dir = w->cache;
        o->prefix_cache_bytes =
            draw_one(w, 4) ? 64 * MIB : check_range(w->seed, 400 << 10, MIB - 1);
    }
    draw_budgets(o, &w->backend, w->s->dir, w->aim, w->seed);
}

static void describe(struct walk *w, int number, uint64_t start)
{
    const struct spw_options *o = &w->o;
    snprintf(
        w->what, sizeof w->what,
        "draw %d (seed %llu): %.60s context %zu sessions %u of %u device %llu host %llu disk "
        "%llu (io %d) chunk %u slots %u of %u splits threads %u delays %llu weights %s KV %s%s%s",
        number, (unsigned long long)start, w->s->dir, w->context, w->n_sessions, o->sessions,
        (unsigned long long)o->device_bytes, (unsigned long long)o->host_bytes,
        (unsigned long long)o->disk_bytes, (int)o->io, o->prefill_chunk, o->prefetch_slots,
        o->prefetch_splits, o->threads, (unsigned long long)o->delay_seed,
        w->backend.reads_host_memory ? "mapped" : "copied", spw_kv_precision_name(o->precision),
        o->prefix_cache_dir ? ", prefix cache" : "", o->saves ? ", saves: " : ": ");
}

static void run_draw(int number, struct subject *subjects, int n_subjects, uint64_t start)
{
    static struct walk walk;
    struct walk *w = &walk;
    uint64_t of_draw = start + (uint64_t)number * 1000003, *seed = &of_draw;
    size_t last = N_OPERATIONS;
    *w = (struct walk){.seed = seed, .alloc_nth = -1, .left = -1};
    io_fault_open(&w->fault);
    snprintf(w->cache, sizeof w->cache, "/tmp/spw_engine_%d_cache", (int)getpid());
    draw_walk(w, number, subjects, n_subjects);
    describe(w, number, start);
    w->watch.s = w->s;
    for (int i = 0; i < N_SESSIONS; i++) {
        snprintf(w->file[i], sizeof w->file[i], "/tmp/spw_engine_%d_%d", (int)getpid(), i);
        w->ids[i] = calloc(w->s->n_tokens, sizeof *w->ids[i]);
        w->saved_ids[i] = calloc(w->s->n_tokens, sizeof *w->ids[i]);
        memcpy(w->ids[i], w->s->ids[0], w->s->n_tokens * sizeof *w->ids[i]);
    }
    open_engine(w);
    if (w->aim) /* a long prompt, and a few tokens behind it */
        for (size_t n = w->context - 3; n <= w->context; n++)
            must_step(w, (const size_t[N_SESSIONS]){n}, "a long prompt");
    int steps = (int)check_range(seed, 6, 18);
    for (int i = 0; i < steps; i++) {
        size_t now = choose_operation(w, last, i < steps / 2);
        if (given_walk && given_walk[i])
            now = (size_t)(given_walk[i] - 'a');
        w->what[strlen(w->what)] = (char)('a' + now);
        operations[now].run(w);
        done[now]++;
        if (last < N_OPERATIONS)
            pairs[last][now]++;
        last = now;
    }
    close_engine(w);
    n_rows += w->watch.n_rows;
    for (int i = 0; i < N_SESSIONS; i++) {
        unlink(w->file[i]);
        free(w->ids[i]);
        free(w->saved_ids[i]);
    }
    if (access(w->cache, F_OK) == 0)
        pack_remove_folder(w->cache);
}

/* ---- models ---- */

enum { LONG, TINY, RANDOM = TINY + 2 * N_TINY_MODELS, BUNDLED = RANDOM + 2, N_SUBJECTS };

/* Where layers see every key, quantized ones must show from the first block on that reads one. */
static void expect_other_bits(struct subject *exact, struct subject *quantized)
{
    struct spw_plan_info info;
    uint64_t given = quantized->o.residual_window, window = given == SPW_BYTES_NONE ? 0 : given;
    CHECK(spw_plan_query_on(&info, NULL, quantized->dir, &quantized->o, NULL) == 0);
    size_t from = (size_t)spw_residual_until(1, spw_residual_tiles(window)) * SPW_TILE_TOKENS;
    const int32_t *ids = exact->ids[0];
    const float *a = oracle_rows(exact, ids, exact->n_tokens, exact->n_tokens);
    const float *b = oracle_rows(quantized, ids, exact->n_tokens, exact->n_tokens);
    CHECK(from < exact->n_tokens && !memcmp(a, b, from * exact->vocab * sizeof *a));
    bool same = run_same(a + from * exact->vocab, b + from * exact->vocab, exact->vocab);
    CHECK(same == (info.precision == SPW_KV_EXACT));
}

/* Little else than KV, and in a long run more old tiles than the least slots hold. Each tiny model
 * as it is, and with old KV quantized; one is not stored in the type it is computed with. */
static void open_subjects(struct subject *subjects)
{
    static const struct tiny_model long_run = {"llama", 2,    32,    32,    2,     1,    32,   67,
                                               4096,    NULL, false, false, false, true, true, 7};
    static const uint64_t windows[] = {128, SPW_BYTES_NONE, 200, SPW_BYTES_NONE};
    struct spw_options o = {.precision = SPW_KV_INT8, .residual_window = SPW_BYTES_NONE};
    subject_open(&subjects[LONG], &long_run, "engine", TOKENS > 1100 ? TOKENS : 1100, &o);
    for (int i = 0; i < N_TINY_MODELS; i++) {
        enum spw_dtype compute = i == 3 ? SPW_DTYPE_BF16 : SPW_DTYPE_AUTO;
        o = (struct spw_options){.compute = compute};
        subject_open(&subjects[TINY + 2 * i], &tiny_models[i], "engine", TOKENS, &o);
        o.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i % 3);
        o.residual_window = windows[i % 4];
        subject_open(&subjects[TINY + 2 * i + 1], &tiny_models[i], "engine_quantized", TOKENS, &o);
        if (!TEST_GPU)
            expect_other_bits(&subjects[TINY + 2 * i], &subjects[TINY + 2 * i + 1]);
    }
}

/* Two of any sizes; and the bundled one, or the shared one where it is here. */
static void open_others(struct subject *subjects, uint64_t *seed)
{
    static char more[2][300];
    static struct tiny_model models[2];
    const char *data = getenv("SPW_DATA");
    char dir[512];
    for (uint64_t i = 0; i < 2; i++) {
        struct spw_options o = {0};
        draw_kv(&o, i ? check_random(seed) % KV_KINDS : 1 + check_random(seed) % 4, seed);
        models[i] = draw_model(more[i], 67, seed);
        subject_open(&subjects[RANDOM + i], &models[i], "engine_random", RANDOM_TOKENS, &o);
    }
    struct spw_options o = {0};
    snprintf(dir, sizeof dir, "%.400s/models/stories260K", data ? data : "/none");
    if (check_random(seed) % 2 || access(dir, R_OK))
        snprintf(dir, sizeof dir, "models/records");
    draw_kv(&o, check_random(seed) % KV_KINDS, seed);
    subject_open_at(&subjects[BUNDLED], dir, RANDOM_TOKENS < 500 ? RANDOM_TOKENS : 500, &o, 5);
}

/* ---- a context that is bounded by no tier alone ---- */

/* 50,000 tokens and some decode steps under a few MiB of device memory; bytes and peaks are what
 * the plan says, to the byte. */
static void check_long_context(size_t n_prompt)
{
    enum { N_DECODE = 6, ROWS = 40 };
    static const struct tiny_model model = {
        "llama", 2,     16,    16,   1,    1, 16, 64, 262144, ",\"rope_theta\":500000.0",
        false,   false, false, true, true, 91};
    static struct subject s;
    struct spw_error err = {0};
    struct watch watch = {0};
    struct spw_stats stats;
    struct spw_waterlines w;
    subject_open(&s, &model, "long", n_prompt + N_DECODE, &(struct spw_options){0});
    struct spw_options o = s.o;
    o.device_bytes = 3 << 20;
    o.host_bytes = (uint64_t)1 << 30;
    struct spw_engine *e = run_open(s.dir, &o);
    struct spw_session *session = run_session(e);
    const struct spw_plan_info *plan = spw_engine_plan(e);
    for (size_t n = n_prompt; n <= n_prompt + N_DECODE; n++) {
        struct spw_span span = {session, s.ids[0], n, n > n_prompt ? 1 : ROWS};
        CHECK_MSG(!watch_sync(&watch, &s, e, &span, 1, s.n_tokens, &err), "%s", err.text);
        CHECK(n == n_prompt || spw_session_reused(session) == n - 1);
    }
    CHECK(watch.n_rows == ROWS + N_DECODE && !watch.n_wrong);
    spw_engine_stats(e, &stats);
    spw_session_waterlines(session, &w);
    run_check_account(e, &o, "long context");
    CHECK(stats.device_peak_bytes == plan->device.total);
    CHECK(stats.host_peak_bytes == plan->host.total);
    CHECK(w.host_end > n_prompt / 2); /* most of the context left the device */
    CHECK(w.n_tokens == plan->waterlines.n_tokens && w.host_end == plan->waterlines.host_end);
    spw_session_close(session);
    spw_engine_close(e);
    subject_close(&s);
}

/* ---- all of it ---- */

/* Where draws are slow there are too few of them for everything. */
static bool is_slow(void)
{
    return TEST_GPU || RUN_UNDER_ASAN || RUN_UNDER_TSAN;
}

/* Mapped weights and kept pages are of a device that reads the host's memory. */
static bool can_be(int kind)
{
    return run_backend(true).reads_host_memory || (kind != KEPT_WEIGHTS && kind != MAPPED_WEIGHTS);
}

/* What never happened and should have. */
static uint64_t missing(bool tell)
{
    uint64_t n = 0;
    for (int i = 0; i < N_TRIED; i++)
        if (!tried[i].n && can_be(i) && ++n && tell)
            fprintf(stderr, "never tried: %s\n", tried[i].name);
    for (size_t i = 0; i < N_OPERATIONS; i++)
        for (size_t k = 0; k < N_OPERATIONS; k++)
            if (!pairs[i][k] && ++n && tell)
                fprintf(stderr, "never: %s, %s\n", operations[i].name, operations[k].name);
    return n;
}

static void check_tried(int draws, bool all)
{
    fprintf(stderr, "%d draws, %llu rows", draws, (unsigned long long)n_rows);
    for (int i = 0; i < N_TRIED; i++)
        fprintf(stderr, "; %s: %llu", tried[i].name, (unsigned long long)tried[i].n);
    for (size_t i = 0; i < N_OPERATIONS; i++)
        fprintf(stderr, "%s%s %llu", i ? ", " : "\n", operations[i].name,
                (unsigned long long)done[i]);
    fputc('\n', stderr);
    CHECK(n_rows > (uint64_t)draws && n_unpredicted <= (uint64_t)draws / 8);
    CHECK(!all || !missing(true));
}

int main(int argc, char **argv)
{
    static struct subject subjects[N_SUBJECTS];
    int draws = argc > 1 ? atoi(argv[1]) : check_full() ? FULL_DRAWS : DRAWS, n = 0;
    int first = argc > 2 ? atoi(argv[2]) : 0;
    bool all = argc < 2 && !is_slow();
    given_walk = argc > 3 ? argv[3] : NULL;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed(), of_others = seed;
    int64_t outstanding = spw_alloc_outstanding();
    open_subjects(subjects);
    open_others(subjects, &of_others);
    for (; n < draws || (n < 8 * draws && all && missing(false)); n++)
        run_draw(first + n, subjects, N_SUBJECTS, seed);
    for (int i = 0; i < N_SUBJECTS; i++)
        subject_close(&subjects[i]);
    check_tried(n, all);
    if (all)
        check_long_context(check_full() ? 100000 : 50000);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
