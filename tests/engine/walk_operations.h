/* The table of operations that a walk of test_engine chooses from. */
#ifndef SPW_TESTS_ENGINE_WALK_OPERATIONS_H
#define SPW_TESTS_ENGINE_WALK_OPERATIONS_H

#include "runtime/saved.h"
#include "tests/children.h"
#include "tests/engine/persist/pack_run.h"
#include "tests/engine/walk.h"
#include "tests/engine/weight_sums.h"

enum {
    N_NEW = 4,   /* tokens that a batch generates for a request */
    N_OTHERS = 3 /* most requests of a batch without a session of the walk */
};

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
    if (w->has_twin)
        twin_fork(&w->twin, to, from);
}

/* A session of any length comes beside the others, or goes: their shares of the frames change. */
static void change_guest(struct walk *w)
{
    struct spw_error err = {0};
    size_t most = check_range(w->seed, 1, w->context), n = check_range(w->seed, 1, most);
    if (w->guest) {
        close_guest(w);
        return;
    }
    CHECK_MSG(!spw_session_open_for(&w->guest, w->e, most, &err), "%s: %s", w->what, err.text);
    const struct spw_span span = {w->guest, w->s->ids[1], n, 1};
    w->ended = false;
    int rc = watch_sync(&w->watch, w->s, w->e, &span, 1, w->s->n_tokens, &err);
    CHECK_MSG(!rc || is_late(w, rc), "%s: a guest: %d: %s", w->what, rc, err.text);
}

static void renew(struct walk *w)
{
    uint32_t i = any_session(w);
    part_twin(w);
    if (w->o.sessions > w->n_sessions && draw_one(w, 2)) {
        change_guest(w);
        return;
    }
    spw_session_close(w->sessions[i]);
    w->sessions[i] = run_session(w->e);
}

/* A step that is interrupted behind any chunk of any layer, and goes on, or something else does. */
static void interrupt(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    part_twin(w);
    choose(w, (enum way)draw_one(w, 4), to);
    w->left = (int64_t)check_range(w->seed, 0, 1 << check_range(w->seed, 0, 6));
    int rc = step(w, to, &err);
    CHECK_MSG(!rc || w->ended || is_late(w, rc), "%s: %d: %s", w->what, rc, err.text);
    w->left = -1;
    if (rc && draw_one(w, 2))
        must_step(w, to, "the interrupted step again");
}

/* A step that is set aside, goes on and is set aside again, while other sessions decode. The last
 * time it may wait until another operation comes. */
static void set_aside(struct walk *w)
{
    size_t to[N_SESSIONS], beside[N_SESSIONS];
    struct spw_error err = {0};
    part_twin(w);
    choose(w, (enum way)draw_one(w, 4), to);
    choose(w, DECODE, beside);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        beside[i] = to[i] || !spw_session_n_tokens(w->sessions[i]) ? 0 : beside[i];
    for (uint64_t n = check_range(w->seed, 1, 8); n--; w->wants_same = true) {
        w->most_chunks = check_range(w->seed, 1, 6);
        int rc = step(w, to, &err);
        w->most_chunks = 0;
        w->wants_same = false;
        if (rc != -EAGAIN) {
            CHECK_MSG(!rc || is_late(w, rc), "%s: %d: %s", w->what, rc, err.text);
            return;
        }
        tried[SET_ASIDE].n++;
        size_t rows[N_SESSIONS];
        memcpy(rows, w->n_rows, sizeof rows);
        must_step(w, beside, "beside a step that waits");
        memcpy(w->n_rows, rows, sizeof rows);
        tried[BESIDE].n += w->e->aside.n > 0 && (beside[0] || beside[1] || beside[2]);
        for (uint32_t i = 0; i < w->n_sessions; i++)
            beside[i] += beside[i] && beside[i] < w->context;
    }
    w->wants_same = false;
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
    part_twin(w);
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
    part_twin(w);
    spw_session_close(w->sessions[i]);
    CHECK_MSG(!spw_saved_open(&saved, w->file[k], &err), "%s: %s", w->what, err.text);
    CHECK_MSG(!spw_session_resume(&w->sessions[i], w->e, saved, &err), "%s: %s", w->what, err.text);
    const struct spw_saved_info *info = spw_saved_info(saved);
    CHECK(info->n_tokens == w->saved[k] && !memcmp(info->state, &w->saved[k], sizeof w->saved[k]));
    spw_saved_close(saved);
    memcpy(w->ids[i], w->saved_ids[k], w->s->n_tokens * sizeof *w->ids[i]);
    CHECK(spw_session_n_tokens(w->sessions[i]) == w->saved[k]);
}

/* A process that shares nothing but the files may publish something. */
static void publish_there(void *context, struct child *self)
{
    struct walk *w = context;
    (void)self;
    draw_budgets(&w->o, &w->backend, w->s->dir, w->aim, w->seed);
    open_engine(w);
    over(w);
    publish(w);
    close_engine(w);
}

/* Another engine, under budgets of its own, with what the first one has left in files, and maybe
 * with what a process has published between the two. */
static void restart(struct walk *w)
{
    uint64_t seed = *w->seed;
    close_engine(w);
    /* a driver of a GPU does not work in a process that was forked */
    if (w->o.prefix_cache_dir && run_can_lose_device() && !RUN_UNDER_TSAN)
        CHECK_MSG(in_child(publish_there, w, &seed) == 0, "%s: in another process", w->what);
    draw_speed(&w->o, w->seed);
    draw_budgets(&w->o, &w->backend, w->s->dir, w->aim, w->seed);
    open_engine(w);
}

/* Other budgets, up or down, under the engine's options. */
static void set_budgets(struct walk *w)
{
    struct spw_error err = {0};
    struct spw_options o = w->o;
    part_twin(w);
    draw_budgets(&o, &w->backend, w->s->dir, w->aim, w->seed);
    int rc = spw_engine_set_budgets(w->e, o.device_bytes, o.host_bytes, o.disk_bytes, &err);
    CHECK_MSG(!rc || w->faulty, "%s: %d: %s", w->what, rc, err.text);
    if (rc)
        return;
    w->o = o;
    run_check_peaks(w->e, &w->o, w->what);
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
    if (kind == FLIP_ONCE || kind == FLIP_FOREVER) /* the first read of a weight finds no flip */
        CHECK(!weight_sums_check(w->e, true).n_wrong);
    choose(w, (enum way)draw_one(w, 4), to);
    part_twin(w);
    w->faulty = w->faulty || kind >= READ_FOREVER;
    io_fault_set(&w->fault, kind,
                 (int64_t)check_range(w->seed, 0, 1 << check_range(w->seed, 0, 4)));
    int rc = step(w, to, &err);
    CHECK_MSG(!rc || ((rc == -EIO || rc == -ENOSPC) && kind >= READ_FOREVER), "%s: %s: %d: %s",
              w->what, io_fault_names[kind], rc, err.text);
    /* a tile that was not written may still count as written in the account of a later step */
    w->late_fault = io_fault_end(&w->fault) && kind >= READ_FOREVER;
    w->spoiled = w->spoiled || (w->late_fault && (kind == WRITE_FOREVER || kind == ALL_WRITES));
    after_fault(w, rc, to, &err, io_fault_names[kind]);
}

/* One allocation of the step fails. */
static void refuse_memory(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    choose(w, (enum way)draw_one(w, 4), to);
    part_twin(w);
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
    for (size_t i = 0; i < a->n - a->n_prompt; i++) {
        const size_t n = a->n_prompt + i; /* each may have a rope table of its own */
        const float *rows = oracle_rows(w->s, a->ids, n, w->s->n_tokens);
        w->watch.n_rows++;
        w->watch.n_wrong += !run_same(a->logits + i * vocab, rows + (n - 1) * vocab, vocab);
    }
}

/* Requests of the walk's sessions, and some that have none: the first of them, and what runs in its
 * place afterwards. One of them may be canceled, and any step
 * interrupted and made again. Prompts may wait between their chunks: a step in which others have
 * got a token tells of the interrupt in the next call. */
static void run_batch(struct walk *w)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    struct answer answers[N_SESSIONS + N_OTHERS];
    uint32_t n = 0, n_others = w->o.sessions - w->n_sessions;
    int rc = 1;
    bool was_ended = false;
    part_twin(w);
    close_guest(w); /* the request without a session needs its place */
    CHECK_MSG(!spw_batch_open(&b, w->e, NULL, &err), "%s", err.text);
    spw_batch_set_prompt_chunks(b, (uint32_t)draw_one(w, 6));
    n_others += n_others ? (uint32_t)draw_one(w, N_OTHERS - n_others + 1) : 0;
    for (uint32_t i = 0; i < w->n_sessions + n_others; i++) {
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
                                .max_new_tokens = 1 + draw_one(w, N_NEW),
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
        CHECK_MSG(rc >= 0 || (rc == -ECANCELED && (w->ended || was_ended)), "%s: %d: %s", w->what,
                  rc, err.text);
        was_ended = w->ended;
        tried[SET_ASIDE].n += w->e->aside.n > 0;
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
                  {"renew", 2, NULL, renew},
                  {"interrupt", 3, NULL, interrupt},
                  {"publish", 3, has_cache, publish},
                  {"save", 2, can_save, save},
                  {"resume", 2, has_saved, resume},
                  {"restart", 1, NULL, restart},
                  {"budgets", 2, NULL, set_budgets},
                  {"drive", 4, has_drive, break_drive},
                  {"memory", 1, NULL, refuse_memory},
                  {"spoil", 2, has_cache, spoil},
                  {"batch", 2, has_room, run_batch},
                  {"aside", 3, NULL, set_aside}};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

static uint64_t done[N_OPERATIONS], pairs[N_OPERATIONS][N_OPERATIONS];

static void do_operation(struct walk *w, size_t now, size_t last)
{
    const struct operation *o = &operations[now];
    bool can = !o->can || o->can(w);
    w->what[strlen(w->what)] = (char)('a' + now);
    CHECK_MSG(can, "%s: not possible here", w->what); /* of a given walk */
    if (can)
        o->run(w);
    done[now]++;
    if (last < N_OPERATIONS)
        pairs[last][now]++;
}

#endif
