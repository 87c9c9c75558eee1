/* The table of operations that a walk of test_engine chooses from. */
#ifndef SPW_TESTS_ENGINE_WALK_OPERATIONS_H
#define SPW_TESTS_ENGINE_WALK_OPERATIONS_H

#include "runtime/saved.h"
#include "tests/children.h"
#include "tests/engine/persist/pack_run.h"
#include "tests/engine/walk_batch.h"
#include "tests/engine/weight_sums.h"

/* Often after a caller has asked for a checkpoint. */
static void decode(struct walk *w)
{
    if (w->e->plan.n_states && draw_one(w, 2)) {
        const uint32_t i = any_session(w);
        struct spw_session *s = w->sessions[i];
        CHECK(!spw_session_checkpoint(s));
        if (s->cached && !s->is_paused)
            w->checkpoint[i] = s->n_tokens;
        CHECK(!w->has_twin || !spw_session_checkpoint(w->twin.sessions[s->slot]));
    }
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

/* A session goes on from another one, in the place of any session; often from one whose step
 * waits. */
static void fork_session(struct walk *w)
{
    struct spw_error err = {0};
    uint32_t from = any_session(w), to = (from + 1 + (uint32_t)draw_one(w, w->n_sessions - 1u));
    for (uint32_t i = 0; i < w->n_sessions && draw_one(w, 4); i++)
        from = w->sessions[i] && w->sessions[i]->is_paused ? i : from;
    struct spw_session *s = w->sessions[from];
    to = to % w->n_sessions == from ? (from + 1) % w->n_sessions : to % w->n_sessions;
    close_session(w, to);
    bool fits = has_room_for(w, s->most_tokens);
    int rc = spw_session_fork(&w->sessions[to], s, &err);
    const bool refused = is_refused(w, to, rc, fits, &err);
    if (w->has_twin)
        twin_fork(&w->twin, w->sessions[to], s->slot);
    if (refused)
        return;
    memcpy(w->ids[to], w->ids[from], w->s->n_tokens * sizeof *w->ids[to]);
    w->checkpoint[to] = w->checkpoint[from];
}

/* A session of any length opens, or one closes, and maybe another one opens in its place: shares of
 * the frames change. */
static void open_or_close(struct walk *w)
{
    const uint32_t i = any_place(w);
    const uint64_t most = draw_one(w, 3) ? check_range(w->seed, 1, w->context) : w->context;
    const bool was_open = w->sessions[i];
    if (was_open && (n_open(w) == 1 || draw_one(w, 2))) {
        close_session(w, i);
        open_session(w, i, w->context);
        return;
    }
    close_session(w, i);
    if (!was_open)
        open_session(w, i, most);
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

/* A step in parts: it is paused, goes on and is paused again, while sessions that it does not
 * have decode. Returns what its last part has: -EAGAIN, where it waits until another operation
 * comes. may_fail: the others may meet what is wrong, too. */
static int step_in_parts(struct walk *w, const size_t *to, bool may_fail, struct spw_error *err)
{
    const uint64_t most = draw_one(w, 2) ? 1 : check_range(w->seed, 2, 8);
    size_t beside[N_SESSIONS], rows[N_SESSIONS];
    int rc = 0;
    choose(w, DECODE, beside);
    for (uint32_t i = 0; i < w->n_sessions; i++)
        if (to[i] || !beside[i] || !spw_session_n_tokens(w->sessions[i]))
            beside[i] = 0;
    for (uint64_t n = most; n--; w->wants_same = true) {
        w->most_chunks = check_range(w->seed, 1, 6);
        rc = step(w, to, err);
        w->most_chunks = 0;
        w->wants_same = false;
        if (rc != -EAGAIN)
            return rc;
        tried[SET_ASIDE].n++;
        memcpy(rows, w->n_rows, sizeof rows);
        if (may_fail) {
            int other = step(w, beside, err);
            CHECK_MSG(!other || other == -EIO || other == -ENOSPC, "%s: %d: %s", w->what, other,
                      err->text);
            tried[FAULTY_BESIDE].n++;
        } else {
            must_step(w, beside, "beside a step that waits");
        }
        memcpy(w->n_rows, rows, sizeof rows);
        for (uint32_t i = 0; i < w->n_sessions; i++) {
            tried[BESIDE].n += w->e->paused.n > 0 && beside[i];
            beside[i] += beside[i] && beside[i] < w->sessions[i]->most_tokens;
        }
    }
    w->wants_same = false;
    return rc;
}

static void pause_step(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    if (w->e->io) /* how far a drive has come then is not predicted */
        part_twin(w);
    choose(w, (enum way)draw_one(w, 4), to);
    int rc = step_in_parts(w, to, false, &err);
    CHECK_MSG(!rc || rc == -EAGAIN || is_late(w, rc), "%s: %d: %s", w->what, rc, err.text);
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
    for (int i = 0; i < N_SESSIONS; i++)
        if (w->saved[i])
            return true;
    return false;
}

/* Any session goes on from any file. */
static void resume(struct walk *w)
{
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    uint32_t i = any_place(w), k = (uint32_t)draw_one(w, N_SESSIONS);
    while (!w->saved[k])
        k = (k + 1) % N_SESSIONS;
    part_twin(w);
    close_session(w, i);
    const bool fits = has_room_for(w, w->context);
    CHECK_MSG(!spw_saved_open(&saved, w->file[k], &err), "%s: %s", w->what, err.text);
    int rc = spw_session_resume(&w->sessions[i], w->e, saved, &err);
    const bool refused = is_refused(w, i, rc, fits, &err);
    const struct spw_saved_info *info = spw_saved_info(saved);
    CHECK(info->n_tokens == w->saved[k] && !memcmp(info->state, &w->saved[k], sizeof w->saved[k]));
    spw_saved_close(saved);
    if (refused)
        return;
    memcpy(w->ids[i], w->saved_ids[k], w->s->n_tokens * sizeof *w->ids[i]);
    CHECK(spw_session_n_tokens(w->sessions[i]) == w->saved[k]);
}

/* A process that shares nothing but the files resumes a session, and may publish something. */
static void publish_there(void *context, struct child *self)
{
    struct walk *w = context;
    (void)self;
    draw_budgets(&w->o, &w->backend, w->s->dir, w->aim, w->seed);
    open_engine(w);
    if (has_saved(w))
        resume(w);
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

/* The drive fails for some steps: one request of its kind, or all from one on. Meanwhile steps are
 * paused, and sessions open and close. What is wrong once is made good without a word. */
static void break_drive(struct walk *w)
{
    size_t to[N_SESSIONS];
    struct spw_error err = {0};
    enum io_fault_kind kind = draw_one(w, 3) ? (enum io_fault_kind)draw_one(w, CUT) : FLIP_FOREVER;
    const bool lasts = kind >= READ_FOREVER;
    int rc = 0;
    if (kind == FLIP_ONCE || kind == FLIP_FOREVER) /* the first read of a weight finds no flip */
        CHECK(!weight_sums_check(w->e, true).n_wrong);
    part_twin(w);
    w->faulty = w->faulty || lasts;
    io_fault_set(&w->fault, kind,
                 (int64_t)check_range(w->seed, 0, 1 << check_range(w->seed, 0, 5)));
    for (uint64_t n = check_range(w->seed, 1, 3); n--;) {
        if (n && draw_one(w, 2))
            open_or_close(w);
        choose(w, (enum way)draw_one(w, 4), to);
        spw_error_clear(&err);
        rc = draw_one(w, 2) ? step_in_parts(w, to, lasts, &err) : step(w, to, &err);
        CHECK_MSG(!rc || rc == -EAGAIN || ((rc == -EIO || rc == -ENOSPC) && lasts),
                  "%s: %s: %d: %s", w->what, io_fault_names[kind], rc, err.text);
        tried[FAULTY_STEPS].n += io_fault_met(&w->fault);
    }
    /* a tile that was not written may still count as written in the account of a later step */
    w->late_fault = io_fault_end(&w->fault) && lasts;
    w->spoiled = w->spoiled || (w->late_fault && (kind == WRITE_FOREVER || kind == ALL_WRITES));
    after_fault(w, rc == -EAGAIN ? 0 : rc, to, &err, io_fault_names[kind]);
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

/* ---- the table of operations ---- */

static bool has_places(const struct walk *w)
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
                  {"fork", 3, has_places, fork_session},
                  {"open", 2, NULL, open_or_close},
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
                  {"pause", 3, NULL, pause_step}};
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
    check_logits(w);
    done[now]++;
    if (last < N_OPERATIONS)
        pairs[last][now]++;
}

/* ---- a walk ---- */

/* A drive that can fail, and names of files: before its options are drawn. */
static void name_walk(struct walk *w, const char *test)
{
    io_fault_open(&w->fault);
    snprintf(w->cache, sizeof w->cache, "/tmp/spw_%s_%d_cache", test, (int)getpid());
    for (int i = 0; i < N_SESSIONS; i++)
        snprintf(w->file[i], sizeof w->file[i], "/tmp/spw_%s_%d_%d", test, (int)getpid(), i);
}

static void begin_walk(struct walk *w)
{
    w->watch.s = w->s;
    w->scratch = calloc(w->s->n_tokens, sizeof *w->scratch);
    for (int i = 0; i < N_SESSIONS; i++) {
        w->ids[i] = calloc(w->s->n_tokens, sizeof *w->ids[i]);
        w->saved_ids[i] = calloc(w->s->n_tokens, sizeof *w->saved_ids[i]);
        memcpy(w->ids[i], w->s->ids[0], w->s->n_tokens * sizeof *w->ids[i]);
    }
    open_engine(w);
}

static void end_walk(struct walk *w)
{
    close_engine(w);
    pthread_mutex_destroy(&w->fault.lock);
    n_rows += w->watch.n_rows;
    free(w->scratch);
    for (int i = 0; i < N_SESSIONS; i++) {
        unlink(w->file[i]);
        free(w->ids[i]);
        free(w->saved_ids[i]);
    }
    if (access(w->cache, F_OK) == 0)
        pack_remove_folder(w->cache);
}

#endif
