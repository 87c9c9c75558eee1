/* Sessions in files. That a session computes after it was saved and resumed what it would have
 * computed, to the last bit, under other budgets than it was saved under, in this process and in
 * another, for exact KV and every precision, is part of the walks of test_engine. Here: what is
 * damaged or cut off is refused or harmless, what is foreign is refused, and a save that is killed
 * leaves the file before it or the new one.
 *
 *   test_save [corruptions [kills]]    default 200 and 24, under sanitizers 40 and 6; 10000 and 500
 *                                      are the long run, of some minutes */
#include "runtime/saved.h"
#include "tests/children.h"
#include "tests/engine/oracle.h"

#include <stdatomic.h>

#define SLOW (RUN_UNDER_TSAN || RUN_UNDER_ASAN)

enum { STEP = 260 }; /* most tokens between two lengths that are looked at */
enum { CONTEXT = 1280, MOST = 1200, WINDOW = 300 };

/* ---- one session, saved, grown, saved again, resumed ---- */

struct world {
    struct subject s;
    char file[160], scratch[160];
    struct spw_options base;
    size_t n[4]; /* lengths: saved, saved again, resumed to, and further */
};

static void world_open(struct world *w, const struct tiny_model *m, enum spw_kv_precision precision,
                       uint64_t *seed)
{
    *w = (struct world){0};
    subject_open(&w->s, m, "save", MOST,
                 &(struct spw_options){.precision = precision, .residual_window = WINDOW});
    snprintf(w->file, sizeof w->file, "%.120s/session", w->s.dir);
    snprintf(w->scratch, sizeof w->scratch, "%.120s/scratch", w->s.dir);
    CHECK(mkdir(w->scratch, 0700) == 0);
    w->base = w->s.o;
    w->base.context = CONTEXT;
    w->base.threads = 1;
    w->base.saves = true;
    /* Some lengths are whole tiles, or a token beside. */
    uint64_t n = check_range(seed, 1, STEP + 100);
    for (int i = 0; i < 4; i++) {
        w->n[i] = n;
        if (check_range(seed, 0, 2) == 0)
            w->n[i] = spw_align_up(n, SPW_TILE_TOKENS) + check_range(seed, 0, 2);
        n = w->n[i] + check_range(seed, 1, i == 2 ? 3 : STEP);
    }
}

static void world_close(struct world *w)
{
    unlink(w->file);
    CHECK(rmdir(w->scratch) == 0);
    subject_close(&w->s);
}

/* Everything that may change without changing a bit. */
static struct spw_options draw_options(const struct world *w, uint64_t *seed)
{
    struct spw_options o = w->base;
    struct spw_backend b = run_backend(true);
    draw_speed(&o, seed);
    o.disk_dir = check_random(seed) % 2 ? w->scratch : NULL;
    draw_budgets(&o, &b, w->s.dir, ANYTHING, seed);
    return o;
}

static void check_logits(struct world *w, int i, const float *logits, const char *what)
{
    CHECK_MSG(oracle_same(&w->s, w->s.ids[0], w->n[i], logits), "%s, %zu tokens: %s", w->s.dir,
              w->n[i], what);
}

/* Bytes of all tiles of a save that cannot have been there: the tail, the window, what has become
 * old and what is new, of every layer, and tables. */
static uint64_t most_second_bytes(const struct world *w, const struct spw_engine *e)
{
    const struct spw_plan *p = &e->plan;
    uint64_t before = w->n[0] / SPW_TILE_TOKENS, now = spw_waterline_tiles(w->n[1]);
    uint64_t tiles = (now - before) * (p->quantizes ? 2 : 1) + 1;
    return w->s.model->layers * tiles * p->exact_tile_bytes +
           spw_align_up(w->s.model->vocab * 4, 4096) + 3 * 65536;
}

static void save(struct world *w, uint64_t *seed)
{
    struct spw_options o = draw_options(w, seed);
    struct spw_error err = {0};
    struct spw_engine *e = run_open(w->s.dir, &o);
    struct spw_session *s = run_session(e);
    uint64_t written;
    for (int i = 0; i < 2; i++) {
        check_logits(w, i, run_to(s, e, w->s.ids[0], w->n[i]), "computed");
        int rc = spw_session_save(s, w->file, "state", 5, &written, &err);
        CHECK_MSG(rc == 0, "%s: %s", w->s.dir, err.text);
    }
    CHECK_MSG(written <= most_second_bytes(w, e), "%s: %llu bytes for %zu after %zu tokens",
              w->s.dir, (unsigned long long)written, w->n[1], w->n[0]);
    check_logits(w, 2, run_to(s, e, w->s.ids[0], w->n[2]), "computed after a save");
    run_check_peaks(e, &o, "save");
    spw_session_close(s);
    spw_engine_close(e);
}

static void resume(struct world *w, uint64_t *seed)
{
    struct spw_options o = draw_options(w, seed);
    struct spw_error err = {0};
    struct spw_engine *e = run_open(w->s.dir, &o);
    struct spw_saved *saved = NULL;
    struct spw_session *s = NULL;
    CHECK_MSG(spw_saved_open(&saved, w->file, &err) == 0, "%s", err.text);
    if (saved) {
        const struct spw_saved_info *i = spw_saved_info(saved);
        CHECK(i->n_tokens == w->n[1] &&
              !memcmp(i->tokens, w->s.ids[0], w->n[1] * sizeof *w->s.ids[0]));
        CHECK(i->state_bytes == 5 && !memcmp(i->state, "state", 5));
        CHECK_MSG(spw_session_resume(&s, e, saved, &err) == 0, "%s: %s", w->s.dir, err.text);
    }
    spw_saved_close(saved);
    if (s) {
        check_logits(w, 1, run_to(s, e, w->s.ids[0], w->n[1]), "resumed");
        CHECK(spw_session_reused(s) == w->n[1]);
        check_logits(w, 2, run_to(s, e, w->s.ids[0], w->n[2]), "after a resume");
        CHECK_MSG(spw_session_reused(s) == w->n[1], "%s: reused %zu of %zu", w->s.dir,
                  spw_session_reused(s), w->n[1]);
        check_logits(w, 3, run_to(s, e, w->s.ids[0], w->n[3]), "further");
    }
    run_check_peaks(e, &o, "resume");
    spw_session_close(s);
    spw_engine_close(e);
}

/* ---- files that are not as they were written ---- */

/* Whether the file is refused; if not, what is computed after it must be right. */
static bool is_refused(struct world *w, struct spw_engine *e)
{
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    struct spw_session *s = NULL;
    int rc = spw_saved_open(&saved, w->file, &err);
    if (!rc)
        rc = spw_session_resume(&s, e, saved, &err);
    CHECK_MSG(!rc == !*err.text && !strchr(err.text, '\n'), "%d: %s", rc, err.text);
    if (!rc) {
        check_logits(w, 1, run_to(s, e, w->s.ids[0], w->n[1]), "resumed from a changed file");
        check_logits(w, 2, run_to(s, e, w->s.ids[0], w->n[2]), "after a changed file");
    }
    spw_session_close(s);
    spw_saved_close(saved);
    return rc != 0;
}

static void flip(int fd, off_t at, uint8_t bits)
{
    uint8_t byte;
    CHECK(pread(fd, &byte, 1, at) == 1);
    byte ^= bits;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
}

static void check_damage(const struct tiny_model *m, enum spw_kv_precision precision, int times,
                         uint64_t *seed)
{
    struct world w;
    int refused = 0;
    world_open(&w, m, precision, seed);
    save(&w, seed);
    struct spw_engine *e = run_open(w.s.dir, &w.base);
    int fd = open(w.file, O_RDWR);
    off_t bytes = lseek(fd, 0, SEEK_END);
    CHECK(!is_refused(&w, e));
    for (int i = 0; i < times; i++) {
        off_t at = (off_t)check_range(seed, 0, (uint64_t)bytes - 1);
        uint8_t bits = (uint8_t)check_range(seed, 1, 255);
        flip(fd, at, bits);
        refused += is_refused(&w, e);
        flip(fd, at, bits);
    }
    CHECK_MSG(refused >= times / 4, "%d of %d refused", refused, times);
    CHECK(!is_refused(&w, e));
    for (int i = 0; i < 8; i++) {
        bytes = (off_t)check_range(seed, 0, (uint64_t)bytes);
        CHECK(ftruncate(fd, bytes) == 0);
        is_refused(&w, e);
    }
    run_check_peaks(e, &w.base, "damage");
    close(fd);
    spw_engine_close(e);
    world_close(&w);
}

/* ---- files that are saved to ---- */

static void copy(const char *from, const char *to)
{
    char command[512];
    snprintf(command, sizeof command, "cp -p %s %s", from, to);
    CHECK(system(command) == 0);
}

/* A new session that comes to the same tokens saves them to the file. */
static int save_anew(struct world *w, struct spw_engine *e, struct spw_error *err)
{
    struct spw_session *s = run_session(e);
    spw_error_clear(err);
    run_to(s, e, w->s.ids[0], w->n[1]);
    int rc = spw_session_save(s, w->file, "state", 5, NULL, err);
    spw_session_close(s);
    return rc;
}

/* Whatever byte was changed since, a save leaves a file that resumes. */
static void check_repair(const struct tiny_model *m, enum spw_kv_precision precision, int times,
                         uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    char good[180];
    world_open(&w, m, precision, seed);
    snprintf(good, sizeof good, "%s.good", w.file);
    save(&w, seed);
    copy(w.file, good);
    struct spw_engine *e = run_open(w.s.dir, &w.base);
    for (int i = 0; i < times; i++) {
        copy(good, w.file);
        int fd = open(w.file, O_RDWR);
        off_t at = (off_t)check_range(seed, 0, (uint64_t)lseek(fd, 0, SEEK_END) - 1);
        flip(fd, at, (uint8_t)check_range(seed, 1, 255));
        close(fd);
        CHECK_MSG(!save_anew(&w, e, &err), "byte %lld: %s", (long long)at, err.text);
        CHECK_MSG(!is_refused(&w, e), "%s: byte %lld was changed, then it was saved to", w.s.dir,
                  (long long)at);
    }
    run_check_peaks(e, &w.base, "repair");
    spw_engine_close(e);
    unlink(good);
    world_close(&w);
}

static const char *const held_by_session = "another session of this engine saves to this file";

/* Two sessions, one file: the second is refused until the first is closed, whatever the first has
 * replaced meanwhile. */
static void check_held(uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    struct spw_session *s[2];
    world_open(&w, &tiny_models[0], SPW_KV_EXACT, seed);
    struct spw_options o = w.base;
    o.sessions = 2;
    struct spw_engine *e = run_open(w.s.dir, &o);
    for (int i = 0; i < 2; i++) {
        s[i] = run_session(e);
        run_to(s[i], e, w.s.ids[0], w.n[0]);
    }
    CHECK_MSG(!spw_session_save_to(s[0], w.file, &err), "%s", err.text);
    CHECK(spw_session_save_to(s[1], w.file, &err) == -EBUSY && strstr(err.text, held_by_session));
    struct spw_engine *other = run_open(w.s.dir, &o);
    struct spw_session *third = run_session(other);
    CHECK(spw_session_save_to(third, w.file, &err) == -EBUSY &&
          strstr(err.text, "another process or engine saves to this file"));
    spw_session_close(third);
    spw_engine_close(other);
    for (int i = 0; i < 3; i++) { /* made, grown, removed and made again */
        spw_error_clear(&err);
        CHECK_MSG(!spw_session_save(s[0], w.file, "state", 5, NULL, &err), "%s", err.text);
        CHECK(spw_session_save(s[1], w.file, NULL, 0, NULL, &err) == -EBUSY);
        if (i == 1)
            unlink(w.file);
        run_to(s[0], e, w.s.ids[0], w.n[1]);
    }
    spw_session_close(s[0]);
    spw_error_clear(&err);
    CHECK_MSG(!spw_session_save(s[1], w.file, "state", 5, NULL, &err), "%s", err.text);
    s[0] = run_session(e); /* a save reserves the file, too */
    CHECK(spw_session_save_to(s[0], w.file, &err) == -EBUSY && strstr(err.text, held_by_session));
    spw_session_close(s[0]);
    spw_session_close(s[1]);
    unlink(w.file);
    s[0] = run_session(e); /* nothing is saved: nothing stays */
    CHECK(!spw_session_save_to(s[0], w.file, &err) && access(w.file, F_OK) == 0);
    spw_session_close(s[0]);
    CHECK(access(w.file, F_OK) != 0);
    spw_engine_close(e);
    world_close(&w);
}

/* What is not ours is left alone; what others may write is replaced; links are not followed. */
static void check_owners(uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    struct stat before, after;
    char other[180], leftover[2][180];
    world_open(&w, &tiny_models[0], SPW_KV_EXACT, seed);
    snprintf(other, sizeof other, "%s.other", w.file);
    snprintf(leftover[0], sizeof leftover[0], "%.120s/.spw-tmp-mine", w.s.dir);
    snprintf(leftover[1], sizeof leftover[1], "%.120s/.spw-tmp-0123456789abcdef", w.s.dir);
    copy("/dev/null", leftover[0]);
    copy("/dev/null", leftover[1]);
    save(&w, seed);
    CHECK(unlink(leftover[0]) == 0 && unlink(leftover[1]) == 0); /* other names stay */
    struct spw_engine *e = run_open(w.s.dir, &w.base);
    CHECK(chmod(w.file, 0666) == 0 && stat(w.file, &before) == 0);
    CHECK(is_refused(&w, e));
    CHECK(link(w.file, other) == 0);
    CHECK_MSG(!save_anew(&w, e, &err), "%s", err.text);
    CHECK(stat(w.file, &after) == 0 && after.st_ino != before.st_ino &&
          (after.st_mode & 0777) == 0600);
    CHECK(stat(other, &after) == 0 && after.st_size == before.st_size &&
          after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    off_t size = before.st_size;
    CHECK(!is_refused(&w, e));
    if (geteuid() == 0) {
        CHECK(chown(w.file, 4321, 0) == 0 && stat(w.file, &before) == 0);
        CHECK(save_anew(&w, e, &err) == -EPERM && strstr(err.text, "another user"));
        CHECK(is_refused(&w, e));
        CHECK(stat(w.file, &after) == 0 && after.st_uid == 4321 &&
              after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    }
    CHECK(unlink(w.file) == 0 && symlink("session.other", w.file) == 0);
    CHECK(save_anew(&w, e, &err) == -EINVAL && strstr(err.text, "symbolic link"));
    CHECK(stat(other, &after) == 0 && after.st_size == size);
    CHECK(unlink(w.file) == 0 && unlink(other) == 0);
    copy("/etc/passwd", w.file);
    CHECK(chown(w.file, geteuid(), (gid_t)-1) == 0);
    CHECK(save_anew(&w, e, &err) == -EINVAL && strstr(err.text, "expected a saved session"));
    CHECK(stat(w.file, &after) == 0 && after.st_size > 0);
    spw_engine_close(e);
    world_close(&w);
}

/* Refused with both sides' names. */
static void refuse(const struct world *w, const char *dir, const struct spw_options *o,
                   int expected, const char *why)
{
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    struct spw_session *s = NULL;
    struct spw_engine *e = run_open(dir, o);
    CHECK_MSG(spw_saved_open(&saved, w->file, &err) == 0, "%s", err.text);
    int rc = spw_session_resume(&s, e, saved, &err);
    CHECK_MSG(rc == expected && strstr(err.text, why), "%d, not %d: %s", rc, expected, err.text);
    CHECK(!s);
    spw_saved_close(saved);
    CHECK_MSG(spw_session_open(&s, e, &err) == 0, "the refused session holds its place");
    spw_session_close(s);
    spw_engine_close(e);
}

static void check_foreign(uint64_t *seed)
{
    struct world w;
    char other[128];
    struct tiny_model changed = tiny_models[0];
    changed.seed++;
    world_open(&w, &tiny_models[0], SPW_KV_INT8, seed);
    save(&w, seed);
    run_folder(other, &changed, "save_other");
    refuse(&w, other, &w.base, -ESTALE, "another model");
    tiny_model_remove(other);
    struct spw_options o = w.base;
    o.precision = SPW_KV_INT4;
    refuse(&w, w.s.dir, &o, -ESTALE, "old KV int8; this run has f32, int4");
    o = w.base;
    o.compute = SPW_DTYPE_BF16;
    refuse(&w, w.s.dir, &o, -ESTALE, "options.compute f32, this run has bf16");
    o = w.base;
    o.residual_window = 600;
    refuse(&w, w.s.dir, &o, -ESTALE, "options.residual_window 384, this run has 640");
    o = w.base;
    o.saves = false;
    refuse(&w, w.s.dir, &o, -EINVAL, "without `saves`");
    if (w.n[1] > 1) {
        o = w.base;
        o.context = w.n[1] - 1;
        refuse(&w, w.s.dir, &o, -E2BIG, "planned for");
    }
    world_close(&w);
}

/* No more than the limit leaves beside what spills may need. */
static void check_write_limit(uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    world_open(&w, &tiny_models[0], SPW_KV_EXACT, seed);
    struct spw_options o = w.base;
    o.disk_dir = w.scratch;
    o.disk_bytes = 64 << 20;
    o.disk_write_limit = 4096;
    struct spw_engine *e = run_open(w.s.dir, &o);
    struct spw_session *s = run_session(e);
    CHECK(spw_session_save(s, w.file, NULL, 0, NULL, &err) == -EINVAL); /* it is empty */
    spw_error_clear(&err);
    check_logits(&w, 0, run_to(s, e, w.s.ids[0], w.n[0]), "computed");
    int rc = spw_session_save(s, w.file, NULL, 0, NULL, &err);
    CHECK_MSG(rc == -EDQUOT && strstr(err.text, "options.disk_write_limit"), "%d: %s", rc,
              err.text);
    CHECK(access(w.file, F_OK) != 0);
    check_logits(&w, 1, run_to(s, e, w.s.ids[0], w.n[1]), "after a refused save");
    spw_error_clear(&err);
    struct stat st;
    CHECK(mkfifo(w.file, 0600) == 0);
    CHECK(spw_session_save(s, w.file, NULL, 0, NULL, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "regular file"), "%s", err.text);
    CHECK(stat(w.file, &st) == 0 && S_ISFIFO(st.st_mode));
    unlink(w.file);
    spw_session_close(s);
    spw_engine_close(e);
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++) { /* any number, just enough, a byte less; without a disk tier */
        o = w.base;
        o.disk_write_limit = i ? bytes - (uint64_t)i + 1 : 0;
        e = run_open(w.s.dir, &o);
        s = run_session(e);
        run_to(s, e, w.s.ids[0], w.n[0]);
        uint64_t written;
        rc = spw_session_save(s, w.file, NULL, 0, &written, &err);
        CHECK(rc == (i < 2 ? 0 : -EDQUOT) && !written == (i == 2));
        CHECK((access(w.file, F_OK) == 0) == !rc);
        bytes = i ? bytes : written;
        struct spw_stats stats;
        spw_engine_stats(e, &stats);
        CHECK(stats.moved_bytes[SPW_MOVED_HOST_TO_DISK] == written);
        run_check_peaks(e, &o, "a save within its limit");
        spw_session_close(s);
        spw_engine_close(e);
        unlink(w.file);
    }
    world_close(&w);
}

/* A caller's state of any size that is allowed, and no other. */
static void check_large_state(uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    world_open(&w, &tiny_models[0], SPW_KV_EXACT, seed);
    struct spw_engine *e = run_open(w.s.dir, &w.base);
    struct spw_session *s = run_session(e);
    int32_t *state = calloc(1, SPW_SAVED_STATE_BYTES + 1);
    run_ids(state, SPW_SAVED_STATE_BYTES / sizeof *state, UINT32_MAX / 2, check_random(seed));
    run_to(s, e, w.s.ids[0], w.n[0]);
    CHECK(spw_session_save(s, w.file, state, SPW_SAVED_STATE_BYTES + 1, NULL, &err) == -E2BIG);
    CHECK(access(w.file, F_OK) != 0);
    spw_error_clear(&err);
    CHECK_MSG(spw_session_save(s, w.file, state, SPW_SAVED_STATE_BYTES, NULL, &err) == 0, "%s",
              err.text);
    CHECK_MSG(spw_saved_open(&saved, w.file, &err) == 0, "%s", err.text);
    const struct spw_saved_info *i = spw_saved_info(saved);
    CHECK(i->state_bytes == SPW_SAVED_STATE_BYTES && !memcmp(i->state, state, i->state_bytes));
    spw_saved_close(saved);
    free(state);
    spw_session_close(s);
    spw_engine_close(e);
    world_close(&w);
}

/* ---- a tile that is lost while it is saved ---- */

/* A byte of the file that no longer reads as it was written: of the first read once it is armed. */
struct bad_byte {
    _Atomic bool armed;
    _Atomic uint64_t place; /* 0: none yet */
};

static int64_t change_read(void *context, const struct spw_io_request *r, int64_t result)
{
    struct bad_byte *bad = context;
    uint64_t none = 0;
    if (r->write || result <= 0 || !bad->armed)
        return result;
    atomic_compare_exchange_strong(&bad->place, &none, r->offset + (uint64_t)result / 2);
    uint64_t at = bad->place - r->offset; /* wraps where the read begins after it */
    if (at < (uint64_t)result)
        r->memory[at] ^= 1;
    return result;
}

/* It is computed again, and the file is right. */
static void check_lost_tile(uint64_t *seed)
{
    struct world w;
    struct spw_error err = {0};
    struct bad_byte bad = {.armed = false};
    struct spw_io_fault hook = {.completed = change_read, .context = &bad};
    struct spw_backend b = run_backend(true);
    uint64_t n_lost;
    world_open(&w, &tiny_models[0], SPW_KV_EXACT, seed);
    w.n[1] = w.n[0] + 400; /* so that there are tiles on the disk */
    w.n[2] = w.n[1] + 1;
    w.n[3] = w.n[2] + 1;
    struct spw_options o = w.base;
    o.prefill_chunk = 128;
    o.disk_dir = w.scratch;
    o.disk_bytes = 64 << 20;
    o.device_bytes = run_plan_on(&b, w.s.dir, &o).smallest_device_bytes;
    run_to_disk_on(&b, w.s.dir, &o);
    b.io_fault = &hook;
    struct spw_engine *e = run_open_on(&b, w.s.dir, &o);
    struct spw_session *s = run_session(e);
    check_logits(&w, 1, run_to(s, e, w.s.ids[0], w.n[1]), "computed");
    CHECK(spw_engine_plan(e)->disk.kv > 0);
    bad.armed = true;
    CHECK_MSG(spw_session_save(s, w.file, "state", 5, NULL, &err) == 0, "%s", err.text);
    n_lost = e->events.n_lost_tiles;
    CHECK_MSG(n_lost == 1, "%llu tiles lost", (unsigned long long)n_lost);
    check_logits(&w, 2, run_to(s, e, w.s.ids[0], w.n[2]), "after a tile was lost");
    spw_session_close(s);
    spw_engine_close(e);
    resume(&w, seed);
    world_close(&w);
}

/* The n-th allocation fails, for every n: an error with a text, and the session as it was. */
static void check_allocations(uint64_t *seed)
{
    struct world w;
    struct spw_saved *saved = NULL;
    struct spw_session *s[2] = {NULL};
    int rc = -ENOMEM, n;
    world_open(&w, &tiny_models[5], SPW_KV_INT8, seed);
    w.base.sessions = 2;
    struct spw_engine *e = run_open(w.s.dir, &w.base);
    s[0] = run_session(e);
    run_to(s[0], e, w.s.ids[0], w.n[1]);
    for (n = 0; rc && n < 1000; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = spw_session_save(s[0], w.file, "state", 5, NULL, &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && *err.text), "save, allocation %d: %d %s", n, rc,
                  err.text);
    }
    CHECK(n > 3 && !rc);
    for (n = 0, rc = -ENOMEM; rc && n < 1000; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = spw_saved_open(&saved, w.file, &err);
        if (!rc)
            rc = spw_session_resume(&s[1], e, saved, &err);
        spw_alloc_fail_nth(-1);
        spw_saved_close(saved);
        saved = NULL;
        CHECK_MSG(!rc || (rc == -ENOMEM && *err.text), "resume, allocation %d: %d %s", n, rc,
                  err.text);
    }
    CHECK(n > 3 && !rc);
    for (int i = 0; i < 2 && !rc; i++) {
        check_logits(&w, 1, run_to(s[i], e, w.s.ids[0], w.n[1]), "after allocations failed");
        check_logits(&w, 2, run_to(s[i], e, w.s.ids[0], w.n[2]), "after allocations failed");
    }
    spw_session_close(s[1]);
    spw_session_close(s[0]);
    spw_engine_close(e);
    world_close(&w);
}

/* ---- killed ---- */

enum { KILL_FROM = 200, KILL_STEP = 7, KILL_TO = 1000 };

/* Tells when the first one is there. */
static void save_on_and_on(void *context, struct child *self)
{
    const struct world *w = context;
    struct spw_error err = {0};
    struct spw_engine *e = run_open(w->s.dir, &w->base);
    struct spw_session *s = run_session(e);
    for (size_t n = KILL_FROM; n <= KILL_TO; n += KILL_STEP) {
        run_to(s, e, w->s.ids[0], n);
        CHECK_MSG(spw_session_save(s, w->file, &n, sizeof n, NULL, &err) == 0, "%s", err.text);
        if (n == KILL_FROM)
            child_tell(self, "s", 1);
    }
    spw_session_close(s);
    spw_engine_close(e);
}

/* What is there is whole, and says itself how long it is. */
static void check_survivor(struct world *w)
{
    struct spw_error err = {0};
    struct spw_saved *saved = NULL;
    struct spw_session *s = NULL;
    struct spw_engine *e = run_open(w->s.dir, &w->base);
    int rc = spw_saved_open(&saved, w->file, &err);
    if (!rc)
        rc = spw_session_resume(&s, e, saved, &err);
    CHECK_MSG(!rc, "%s", err.text);
    if (!rc) {
        const struct spw_saved_info *i = spw_saved_info(saved);
        size_t n = i->n_tokens;
        CHECK(n >= KILL_FROM && !memcmp(i->tokens, w->s.ids[0], n * sizeof *w->s.ids[0]));
        CHECK(i->state_bytes == sizeof n && !memcmp(i->state, &n, sizeof n));
        CHECK(oracle_same(&w->s, w->s.ids[0], n, run_to(s, e, w->s.ids[0], n)));
        CHECK(oracle_same(&w->s, w->s.ids[0], n + 1, run_to(s, e, w->s.ids[0], n + 1)));
    }
    spw_session_close(s);
    spw_saved_close(saved);
    spw_engine_close(e);
}

static bool kill_one(struct world *w, uint64_t *seed)
{
    struct children child;
    char byte;
    unlink(w->file);
    children_start(&child, 1, save_on_and_on, w, seed);
    CHECK(children_told(&child, &byte, 1));
    usleep((useconds_t)check_range(seed, 0, 60000));
    bool killed = children_kill(&child);
    children_close(&child);
    return killed;
}

static void check_kills(const struct tiny_model *m, enum spw_kv_precision precision, int times,
                        uint64_t *seed)
{
    struct world w;
    int killed = 0;
    world_open(&w, m, precision, seed);
    for (int i = 0; i < times; i++) {
        killed += kill_one(&w, seed);
        check_survivor(&w);
    }
    CHECK_MSG(killed > times / 2, "%d of %d were killed at work", killed, times);
    world_close(&w);
}

int main(int argc, char **argv)
{
    int corruptions = argc > 1 ? atoi(argv[1]) : check_amount(SLOW ? 40 : 200);
    int kills = argc > 2 ? atoi(argv[2]) : check_amount(SLOW ? 6 : 24);
    uint64_t seed = check_seed();
    alarm(3600);
    check_damage(&tiny_models[5], SPW_KV_INT4, corruptions / 2, &seed);
    check_damage(&tiny_models[4], SPW_KV_EXACT, corruptions / 4, &seed);
    check_damage(&tiny_models[TINY_STATES], SPW_KV_EXACT, corruptions / 4, &seed);
    check_repair(&tiny_models[5], SPW_KV_INT8, corruptions / 4, &seed);
    check_repair(&tiny_models[0], SPW_KV_EXACT, corruptions / 4, &seed);
    check_held(&seed);
    check_owners(&seed);
    check_foreign(&seed);
    check_write_limit(&seed);
    check_large_state(&seed);
    check_allocations(&seed);
    check_lost_tile(&seed);
    check_kills(&tiny_models[5], SPW_KV_INT8, kills / 2, &seed);
    check_kills(&tiny_models[TINY_STATES], SPW_KV_EXACT, kills / 2, &seed);
    return check_done();
}
