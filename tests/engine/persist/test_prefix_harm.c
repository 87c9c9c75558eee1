/* Harm to a prefix cache that engines are using: processes are killed while they compute and keep,
 * others read the same directory meanwhile; and single bytes of its files change. No reader ever
 * sees a wrong bit, nothing that was kept is lost, no lock is stuck; what is damaged is found out
 * or harmless. With exact KV, where a session may begin at any tile, and with windows and old KV in
 * int8, where it may at checkpoints.
 *
 *   test_prefix_harm [kills [corruptions]]      500 and 10000 are the long run, of some minutes */
#include "tests/children.h"
#include "tests/engine/oracle.h"

#include "offload/store/prefix_store.h"
#include "offload/store/store_info.h"
#include "runtime/persist/snapshot.h"
#include "tests/engine/persist/pack_run.h"

#define DEFAULT_KILLS (RUN_UNDER_ASAN ? 12 : 24)
#define DEFAULT_CORRUPTIONS (RUN_UNDER_ASAN ? 40 : 300)

enum { N_SEQUENCES = 6, TOKENS = 1000, SHARED = 256, N_READERS = 2, N_WRITERS = 2, MIB = 1 << 20 };

struct world {
    struct subject s;
    char cache[160];
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    int32_t ids[N_SEQUENCES][TOKENS]; /* pairs are the same as far as SHARED */
};

/* ---- engines ---- */

struct user {
    struct world *w;
    struct spw_options o;
    struct spw_engine *e;
    struct spw_session *session;
    struct watch watch;
    bool damaged; /* files are: notes are due */
    uint64_t n_notes, n_found;
};

static void hear(struct user *u)
{
    struct spw_engine_event event;
    while (spw_engine_event(u->e, &event))
        if (event.kind == SPW_ENGINE_NOTE) {
            u->n_notes++;
            CHECK_MSG(u->damaged, "%s", event.text);
        }
}

static void open_user(struct user *u, struct world *w, uint64_t *seed)
{
    struct spw_backend b = run_backend(check_random(seed) % 2);
    *u = (struct user){.w = w, .o = w->s.o};
    u->o.threads = (uint32_t)check_range(seed, 1, 2);
    u->o.prefill_chunk = check_random(seed) % 2 ? 0 : (uint32_t)check_range(seed, 50, 200);
    u->o.prefix_cache_dir = w->cache;
    if (check_random(seed) % 2) /* what is found streams from where it lies */
        run_tight_on(&b, w->s.dir, &u->o, 0);
    u->e = run_open_on(&b, w->s.dir, &u->o);
    u->session = run_session(u->e);
}

static void close_user(struct user *u)
{
    CHECK_MSG(!u->watch.n_wrong, "%s: %llu rows differ", u->w->s.dir,
              (unsigned long long)u->watch.n_wrong);
    hear(u);
    spw_session_close(u->session);
    spw_engine_close(u->e);
}

static void go_to(struct user *u, uint64_t sequence, size_t n)
{
    struct spw_error err = {0};
    struct spw_span span = {u->session, u->w->ids[sequence], n, n < 3 ? n : 3};
    CHECK_MSG(!watch_sync(&u->watch, &u->w->s, u->e, &span, 1, TOKENS, &err), "%s", err.text);
    hear(u);
    u->n_found += spw_session_from_store(u->session);
}

/* Half of them whole tiles, where checkpoints are. */
static size_t draw_length(uint64_t *seed)
{
    size_t n = check_range(seed, 1, TOKENS), rest = n % SPW_TILE_TOKENS;
    return check_random(seed) % 2 && n > rest ? n - rest : n;
}

/* ---- worlds ---- */

/* The logits of all sequences are here before a child is. */
static void world_open(struct world *w, const struct tiny_model *m, enum spw_kv_precision precision)
{
    *w = (struct world){0};
    subject_open(&w->s, m, "prefix_harm", TOKENS,
                 &(struct spw_options){.precision = precision, .residual_window = 200});
    snprintf(w->cache, sizeof w->cache, "%.120s_cache", w->s.dir);
    for (uint64_t q = 0; q < N_SEQUENCES; q++) {
        run_ids(w->ids[q], SHARED, m->vocab, 100 + q / 2);
        run_ids(w->ids[q] + SHARED, TOKENS - SHARED, m->vocab, 200 + q);
        oracle_rows(&w->s, w->ids[q], TOKENS, TOKENS);
    }
    struct spw_engine *e = run_open(w->s.dir, &w->s.o);
    spw_snapshot_fingerprint(w->fingerprint, e, SPW_ROPE_SHARED);
    spw_engine_close(e);
}

static void world_close(struct world *w)
{
    pack_remove_folder(w->cache);
    subject_close(&w->s);
}

static struct spw_store *open_store(const struct world *w)
{
    struct spw_store *s = NULL;
    struct spw_error err = {0};
    struct spw_store_options o = {
        .directory = w->cache, .limit_bytes = 1 << 30, .fingerprint = w->fingerprint};
    CHECK_MSG(spw_store_open(&s, &o, &err) == 0, "%s", err.text);
    return s;
}

/* What the store has of a sequence: tiles, and the last checkpoint. */
struct kept {
    uint32_t tiles, checkpoint;
};

static struct kept look(struct spw_store *s, const struct world *w, uint64_t sequence)
{
    struct spw_store_match m;
    CHECK(spw_store_match(s, w->ids[sequence], TOKENS, &m) == 0);
    struct kept k = {m.n_tiles, m.checkpoint_tiles};
    spw_store_release(s, &m);
    return k;
}

/* ---- killed ---- */

struct told {
    uint64_t sequence; /* N_SEQUENCES: it is about to keep one */
    struct kept kept;
};

/* Computes and keeps for ever; tells what it has then seen in the store. */
static void write_for_ever(void *context, struct child *self)
{
    struct world *w = context;
    struct user u;
    open_user(&u, w, &self->seed);
    struct spw_store *s = open_store(w);
    while (!check_failed_) {
        const struct told about_to = {.sequence = N_SEQUENCES};
        struct told t = {.sequence = check_range(&self->seed, 0, N_SEQUENCES - 1)};
        go_to(&u, t.sequence, draw_length(&self->seed));
        struct spw_error err = {0};
        child_tell(self, &about_to, sizeof t);
        int rc = spw_session_publish(u.session, &err);
        CHECK_MSG(!rc || rc == -EBUSY, "%d: %s", rc, err.text);
        t.kept = look(s, w, t.sequence);
        CHECK(!u.watch.n_wrong);
        child_tell(self, &t, sizeof t);
    }
}

/* Begins with what it finds until it is told to end. */
static void read_for_ever(void *context, struct child *self)
{
    uint64_t counts[2] = {0};
    struct user u;
    open_user(&u, context, &self->seed);
    for (; child_goes_on(self); counts[0]++) {
        go_to(&u, check_range(&self->seed, 0, N_SEQUENCES - 1), draw_length(&self->seed));
        CHECK(!u.e->events.n_lost_tiles);
    }
    counts[1] = u.n_found;
    child_tell(self, counts, sizeof counts);
    close_user(&u);
}

/* How many tokens they found. */
static uint64_t end_readers(struct children *readers)
{
    uint64_t counts[2], n = 0, found = 0;
    children_end(readers);
    for (int i = 0; i < N_READERS; i++) {
        CHECK(children_told(readers, counts, sizeof counts));
        n += counts[0];
        found += counts[1];
    }
    children_close(readers);
    fprintf(stderr, "readers took %llu steps, and found %llu tokens\n", (unsigned long long)n,
            (unsigned long long)found);
    CHECK(n);
    return found;
}

static void note_told(struct kept *kept, const struct told *t)
{
    struct kept *k = &kept[t->sequence];
    k->tiles = t->kept.tiles > k->tiles ? t->kept.tiles : k->tiles;
    k->checkpoint = t->kept.checkpoint > k->checkpoint ? t->kept.checkpoint : k->checkpoint;
}

/* Any moment, or one in which a writer keeps something. */
static void wait_a_while(const struct children *writers, struct kept *kept, uint64_t *seed)
{
    uint64_t n = check_range(seed, 0, 6);
    struct told t;
    if (!n)
        usleep((useconds_t)check_range(seed, 1000, 100000));
    while (n && children_told(writers, &t, sizeof t))
        if (t.sequence < N_SEQUENCES)
            note_told(kept, &t);
        else if (--n == 0)
            usleep((useconds_t)check_range(seed, 0, 2000));
}

static void kill_writers(struct world *w, struct kept *kept, uint64_t *seed)
{
    struct children writers;
    struct told t;
    children_start(&writers, N_WRITERS, write_for_ever, w, seed);
    wait_a_while(&writers, kept, seed);
    CHECK(children_kill(&writers) == N_WRITERS);
    while (children_told(&writers, &t, sizeof t))
        if (t.sequence < N_SEQUENCES)
            note_told(kept, &t);
    children_close(&writers);
}

/* All that was told is there, an engine begins with it, and can keep more. */
static void check_survivors(struct world *w, struct kept *kept, uint64_t *seed)
{
    struct user u;
    struct spw_store *s = open_store(w); /* sweeps what the dead have left */
    CHECK(pack_count(w->cache, SPW_PACK_TEMPORARY, NULL) == 0);
    for (uint64_t q = 0; q < N_SEQUENCES; q++) {
        struct kept now = look(s, w, q);
        CHECK_MSG(now.tiles >= kept[q].tiles && now.checkpoint >= kept[q].checkpoint,
                  "sequence %d: %u tiles and a checkpoint at %u, told %u and %u", (int)q, now.tiles,
                  now.checkpoint, kept[q].tiles, kept[q].checkpoint);
    }
    spw_store_close(s);
    uint64_t q = check_range(seed, 0, N_SEQUENCES - 1);
    open_user(&u, w, seed);
    go_to(&u, q, TOKENS);
    CHECK(spw_session_from_store(u.session) >= (uint64_t)kept[q].checkpoint * SPW_TILE_TOKENS);
    struct spw_error err = {0};
    CHECK_MSG(spw_session_publish(u.session, &err) == 0, "%s", err.text);
    close_user(&u);
}

static bool is_full(const struct kept *kept)
{
    for (int q = 0; q < N_SEQUENCES; q++)
        if (kept[q].tiles < TOKENS / SPW_TILE_TOKENS)
            return false;
    return true;
}

static void check_kills(const struct tiny_model *m, enum spw_kv_precision precision, int times,
                        uint64_t *seed)
{
    static struct world w;
    struct kept kept[N_SEQUENCES] = {{0}};
    struct children readers;
    struct spw_store_pruned pruned;
    int left = 0, rounds = 0, n = 0;
    world_open(&w, m, precision);
    children_start(&readers, N_READERS, read_for_ever, &w, seed);
    for (; n < times; n += N_WRITERS) {
        kill_writers(&w, kept, seed);
        left += pack_count(w.cache, SPW_PACK_TEMPORARY, NULL);
        check_survivors(&w, kept, seed);
        if (!is_full(kept) && check_random(seed) % 3)
            continue; /* else there is soon nothing left to write */
        CHECK(spw_store_prune(&pruned, w.cache, 0, NULL) == 0);
        memset(kept, 0, sizeof kept);
        rounds++;
    }
    uint64_t found = end_readers(&readers);
    fprintf(stderr, "%s: %d writers killed, %d of them while they wrote a file; emptied %d times\n",
            w.s.dir, n, left, rounds);
    CHECK(times < 100 || (left && found));
    world_close(&w);
}

/* ---- damaged ---- */

struct image {
    char path[512];
    uint8_t *bytes; /* owned */
    size_t n;
};

enum { MOST_FILES = 64 };

static size_t take_images(const struct world *w, struct image *images)
{
    size_t n = 0;
    DIR *d = opendir(w->cache);
    for (struct dirent *x; d && n < MOST_FILES && (x = readdir(d));) {
        struct image *i = &images[n];
        struct stat st;
        snprintf(i->path, sizeof i->path, "%s/%.255s", w->cache, x->d_name);
        if (x->d_name[0] == '.' || stat(i->path, &st) || !st.st_size)
            continue;
        FILE *f = fopen(i->path, "rb");
        i->n = (size_t)st.st_size;
        i->bytes = malloc(i->n);
        CHECK(f && fread(i->bytes, 1, i->n, f) == i->n && fclose(f) == 0);
        n++;
    }
    closedir(d);
    return n;
}

static void put_back(const struct image *i)
{
    int fd = open(i->path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0 && pwrite(fd, i->bytes, i->n, 0) == (ssize_t)i->n && close(fd) == 0);
}

static void change_byte(const struct image *i, uint64_t *seed)
{
    size_t at = check_range(seed, 0, i->n - 1);
    uint8_t byte = i->bytes[at] ^ (uint8_t)check_range(seed, 1, 255);
    int fd = open(i->path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1 && close(fd) == 0);
}

/* A session that begins in what is damaged. */
static void begin_there(struct user *u, uint64_t *seed)
{
    spw_session_close(u->session);
    u->session = run_session(u->e);
    go_to(u, check_range(seed, 0, 1), check_random(seed) % 3 ? TOKENS : draw_length(seed));
}

static void check_damage(const struct tiny_model *m, enum spw_kv_precision precision, int times,
                         uint64_t *seed)
{
    static const size_t lengths[] = {300, 640, 1000};
    static struct image images[MOST_FILES];
    static struct world w;
    struct user u;
    uint64_t detected = 0;
    world_open(&w, m, precision);
    open_user(&u, &w, seed);
    for (size_t i = 0; i < 6; i++) { /* two sequences, in several packs */
        go_to(&u, i % 2, lengths[i / 2]);
        CHECK(spw_session_publish(u.session, NULL) == 0);
    }
    close_user(&u);
    size_t n = take_images(&w, images);
    CHECK(n >= 2);
    for (int i = 0; i < times; i++) {
        if (i % 100 == 0) {
            open_user(&u, &w, seed);
            go_to(&u, (uint64_t)i / 100 % 2, TOKENS);
            CHECK(u.n_found); /* all is well again */
            u.damaged = true;
        }
        const struct image *x = &images[check_range(seed, 0, n - 1)];
        change_byte(x, seed);
        begin_there(&u, seed);
        put_back(x);
        if (i % 100 == 99 || i + 1 == times) {
            close_user(&u);
            detected += u.n_notes;
        }
    }
    fprintf(stderr, "%s: %d bytes of %zu files changed, %llu times told\n", w.s.dir, times, n,
            (unsigned long long)detected);
    CHECK_MSG(times < 100 || detected >= (uint64_t)times / 10, "%llu",
              (unsigned long long)detected);
    for (size_t i = 0; i < n; i++)
        free(images[i].bytes);
    world_close(&w);
}

int main(int argc, char **argv)
{
    int kills = argc > 1 ? atoi(argv[1]) : check_amount(DEFAULT_KILLS);
    int corruptions = argc > 2 ? atoi(argv[2]) : check_amount(DEFAULT_CORRUPTIONS);
    uint64_t seed = check_seed();
    alarm(3600);
    if (kills) {
        check_kills(&tiny_models[0], SPW_KV_EXACT, kills / 3, &seed);
        check_kills(&tiny_models[5], SPW_KV_INT8, kills / 3, &seed);
        check_kills(&tiny_models[TINY_STATES], SPW_KV_EXACT, kills / 3, &seed);
    }
    check_damage(&tiny_models[0], SPW_KV_EXACT, corruptions / 3, &seed);
    check_damage(&tiny_models[5], SPW_KV_INT8, corruptions / 3, &seed);
    check_damage(&tiny_models[TINY_STATES], SPW_KV_EXACT, corruptions / 3, &seed);
    return check_done();
}
