/* Tiles of the KV cache that lie in files of others, against a mirror in plain memory
 * (tests/unit/offload/kv_mirror.h): sequences begin with attached tiles, in several pieces, and
 * imported ones behind them; then they grow, spill, load, drop, truncate, fork and close in a
 * random order. Now and then some tiles are exported, wherever they are just then.
 *
 * The drive is read directly or by way of host frames, with a scratch file of its own or without
 * one, with room on the host or without; by both I/O engines. Files are opened for reading only.
 * Then files change while they are in use: bytes flip, the end is cut off. What is read is right,
 * or it is lost and said so. In the end every frame is free and every file was let go.
 *
 *   test_kv_attach [rounds] */
#include "tests/unit/offload/kv_mirror.h"

#include "offload/kv/kv_attach.h"

#include <fcntl.h>
#include <xxhash.h>

enum {
    N_FILES = 3,
    MAX_TILES = 8,
    MAX_TOKENS = MAX_TILES * SPW_TILE_TOKENS,
    TILE_BYTES = MIRROR_TILE_BYTES,
    RECORDS = KV_LAYERS * MAX_TILES, /* of a file */
    HEAD_BYTES = 3 * 4096,           /* before them */
    DEVICE_FRAMES = 60,
};

/* A file as it should be, and its two descriptors. */
struct file {
    int reads, writes;
    uint32_t word[KV_LAYERS][MAX_TOKENS];
    uint8_t *records; /* [KV_LAYERS][MAX_TILES][TILE_BYTES] */
    uint64_t sums[RECORDS];
    bool was_bad;
};

struct world {
    struct mirror x;
    _Atomic uint64_t draws;
    struct file files[N_FILES];
    uint32_t n_pieces, n_damaged;
};

/* One attachment. */
struct piece {
    struct world *w;
    struct file *f;
    uint32_t n;
};

/* ---- files ---- */

static uint64_t place_of(uint32_t record)
{
    return HEAD_BYTES + (uint64_t)record * TILE_BYTES;
}

static void write_records(const struct file *f)
{
    CHECK(pwrite(f->writes, f->records, RECORDS * TILE_BYTES, HEAD_BYTES) == RECORDS * TILE_BYTES);
}

static void open_file(struct world *w, struct file *f, const char *dir)
{
    char path[128];
    snprintf(path, sizeof path, "%s/spw_attach_XXXXXX", dir);
    f->writes = mkstemp(path);
    f->reads = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->reads < 0)
        f->reads = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(f->writes >= 0 && f->reads >= 0);
    unlink(path);
    f->records = aligned_alloc(4096, RECORDS * TILE_BYTES);
    memset(f->records, 0, RECORDS * TILE_BYTES);
    for (uint32_t r = 0; r < RECORDS; r++) {
        uint32_t *tile = (uint32_t *)(void *)(f->records + r * TILE_BYTES);
        uint32_t at = r % MAX_TILES * SPW_TILE_TOKENS;
        mirror_set_words(tile, 0, SPW_TILE_TOKENS, w->x.next_word);
        for (uint32_t i = 0; i < SPW_TILE_TOKENS; i++)
            f->word[r / MAX_TILES][at + i] = w->x.next_word++;
        f->sums[r] = XXH3_64bits(tile, TILE_BYTES);
    }
    write_records(f);
}

static void close_file(struct file *f)
{
    CHECK(close(f->writes) == 0 && close(f->reads) == 0);
    free(f->records);
}

/* Somebody else's mistake, or its repair. */
static void draw_fault(struct world *w)
{
    struct file *f = &w->files[check_random(&w->x.w.seed) % N_FILES];
    uint32_t record = (uint32_t)check_range(&w->x.w.seed, 0, RECORDS - 1);
    uint64_t at = place_of(record) + check_random(&w->x.w.seed) % TILE_BYTES;
    uint8_t byte = f->records[at - HEAD_BYTES] ^ 4;
    switch (check_random(&w->x.w.seed) % 40) {
    case 0:
        CHECK(pwrite(f->writes, &byte, 1, (off_t)at) == 1);
        f->was_bad = true;
        break;
    case 1:
        CHECK(ftruncate(f->writes, (off_t)at) == 0);
        f->was_bad = true;
        break;
    case 2:
    case 3:
    case 4:
        write_records(f);
    }
}

/* Now and then a request is late. */
static int64_t delay(void *context, const struct spw_io_request *r, int64_t result)
{
    struct world *w = context;
    uint64_t draw = atomic_fetch_add(&w->draws, 1);
    if (r->bytes && check_random(&draw) % 16 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(check_random(&draw) % 200000)}, NULL);
    return result;
}

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed,
                       const struct kv_drive *drive)
{
    struct kv_world_options o = {.seed = seed,
                                 .delay_seed = delay_seed,
                                 .drive = *drive,
                                 .max_tiles = MAX_TILES,
                                 .n_device_frames = DEVICE_FRAMES,
                                 .disturb = delay,
                                 .context = w};
    o.drive.attaches = true;
    o.drive.read_failure = -ENODATA; /* where a file ends early */
    memset(w, 0, sizeof *w);
    mirror_open(&w->x, &o);
    for (int i = 0; i < N_FILES; i++)
        open_file(w, &w->files[i], w->x.w.directory);
}

/* Sequences have been closed: every frame is free, every file let go. */
static void world_close(struct world *w)
{
    CHECK_MSG(!w->n_pieces, "%u pieces are left", w->n_pieces);
    CHECK(!w->n_damaged || w->x.w.o.drive.faulty);
    mirror_close(&w->x);
    for (int i = 0; i < N_FILES; i++)
        close_file(&w->files[i]);
}

/* ---- operations ---- */

static void released(void *context)
{
    struct piece *p = context;
    p->w->n_pieces--;
    free(p);
}

static void damaged(void *context, uint32_t i)
{
    struct piece *p = context;
    CHECK(p->f->was_bad && i < p->n);
    p->w->n_damaged++;
}

static struct spw_disk_attachment attachment(struct world *w, struct file *f, uint32_t record,
                                             uint32_t n)
{
    struct piece *p = malloc(sizeof *p);
    *p = (struct piece){w, f, n};
    return (struct spw_disk_attachment){.fd = f->reads,
                                        .offset = place_of(record),
                                        .n = n,
                                        .sums = f->sums + record,
                                        .released = released,
                                        .damaged = damaged,
                                        .context = p};
}

/* Tiles [from, to) of a layer, in several pieces, as from several packs. */
static void attach_layer(struct world *w, struct mirror_seq *m, struct file *f, uint32_t layer,
                         uint32_t from, uint32_t to)
{
    for (uint32_t n; from < to; from += n) {
        uint32_t frame;
        n = (uint32_t)check_range(&w->x.w.seed, 1, to - from);
        struct spw_disk_attachment a = attachment(w, f, layer * MAX_TILES + from, n);
        CHECK(spw_disk_attach(w->x.w.disk, &a, &frame) == 0);
        w->n_pieces++;
        CHECK(spw_kv_attach(m->seq, layer, from, frame, n) == 0);
        m->begin[layer] = m->disk_end[layer] = from + n;
    }
}

/* An empty sequence begins with the tokens of a file: some tiles are attached, the others are
 * imported. */
static void do_begin(struct world *w, struct mirror_seq *m)
{
    struct file *f = &w->files[check_random(&w->x.w.seed) % N_FILES];
    uint32_t n = (uint32_t)check_range(&w->x.w.seed, 1, MAX_TOKENS), end = spw_waterline_tiles(n);
    uint32_t attached = (uint32_t)check_range(&w->x.w.seed, 0, n / SPW_TILE_TOKENS);
    if (check_random(&w->x.w.seed) % 3 == 0)
        n = (end = attached = n / SPW_TILE_TOKENS) * SPW_TILE_TOKENS; /* only whole tiles */
    if (!mirror_has_room(&w->x, KV_LAYERS * (end - attached) + 3))
        return;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint32_t from = mirror_sliding[l] ? spw_waterline_first(MIRROR_WINDOW, n) : 0, at = from;
        m->first[l] = m->begin[l] = from < end ? from : end;
        if (from < attached && (!mirror_sliding[l] || check_random(&w->x.w.seed) % 2))
            attach_layer(w, m, f, l, from, at = attached);
        CHECK(spw_kv_import(m->seq, l, at, n, f->records + (l * MAX_TILES + at) * TILE_BYTES) == 0);
        w->x.moves.up += end - at;
        memcpy(m->word[l], f->word[l], n * sizeof m->word[l][0]);
    }
    m->n_tokens = n;
}

/* Some tiles of a layer, all at once: the right words, and nothing has changed. */
static void do_export(struct world *w, struct mirror_seq *m, uint32_t layer)
{
    uint32_t begin = (uint32_t)check_range(&w->x.w.seed, m->first[layer], mirror_end(m));
    uint32_t end = (uint32_t)check_range(&w->x.w.seed, begin, mirror_end(m));
    uint64_t from_device, from_host, from_disk;
    if (check_random(&w->x.w.seed) % 2)
        spw_kv_finish_writes(w->x.w.kv);
    memset(w->x.memory, 0, MAX_TILES * TILE_BYTES);
    mirror_count(m, layer, begin, end, &from_device, &from_host, &from_disk);
    int rc = spw_kv_export(m->seq, layer, begin, end, w->x.memory);
    CHECK(!rc || (w->x.w.o.drive.faulty && rc == -EBADMSG));
    if (rc)
        return;
    w->x.moves.down += from_device;
    w->x.moves.read += from_disk;
    mirror_check_lines(m);
    for (uint32_t t = begin; t < end; t++)
        mirror_compare(w->x.memory + (t - begin) * TILE_BYTES, &m->word[layer][t * SPW_TILE_TOKENS],
                       mirror_tokens_in(m, t));
}

static void step(struct world *w)
{
    struct mirror *x = &w->x;
    struct mirror_seq *m = &x->seqs[check_random(&x->w.seed) % KV_SEQS];
    uint32_t layer = (uint32_t)(check_random(&x->w.seed) % KV_LAYERS);
    if (x->w.o.drive.faulty)
        draw_fault(w);
    if (!m->seq)
        mirror_seq_open(x, m);
    else if (!m->n_tokens)
        do_begin(w, m);
    else
        switch (check_random(&x->w.seed) % 16) {
        case 0:
            mirror_seq_close(x, m);
            return;
        case 1:
            mirror_fork(x, m);
            break;
        case 2:
            mirror_truncate(x, m);
            break;
        case 3:
            mirror_drop(x, m);
            break;
        case 4:
        case 5:
        case 6:
            mirror_load(x, m, layer,
                        (uint32_t)check_range(&x->w.seed, m->first[layer], m->begin[layer]));
            break;
        case 7:
        case 8:
        case 9:
            mirror_spill(x, m, layer);
            break;
        case 10:
        case 11:
            do_export(w, m, layer);
            break;
        default:
            mirror_grow(x, m);
        }
    mirror_recover(x);
    if (check_random(&x->w.seed) % 3 == 0)
        mirror_check(x, m);
    mirror_recover(x);
}

/* Every frame of the device is free again. */
static void fill_device(struct mirror *x)
{
    struct spw_kv_seq *seqs[DEVICE_FRAMES / MAX_TILES + 1];
    uint32_t n = 0;
    for (uint32_t left = DEVICE_FRAMES; left; n++) {
        uint32_t tiles = left < MAX_TILES ? left : MAX_TILES;
        CHECK(spw_kv_seq_open(&seqs[n], x->w.kv) == 0);
        CHECK(spw_kv_grow(seqs[n], 0, 0, tiles * SPW_TILE_TOKENS) == 0);
        left -= tiles;
    }
    CHECK(spw_kv_grow(seqs[0], 1, 0, 1) == -ENOMEM);
    spw_kv_truncate(seqs[0], 0);
    mirror_drain(x);
    while (n)
        spw_kv_seq_close(seqs[--n]);
}

static uint64_t losses, damages;

static void run_round(uint64_t seed, uint64_t delay_seed, const struct kv_drive *drive, int steps)
{
    static struct world w;
    world_open(&w, seed, delay_seed, drive);
    for (int i = 0; i < steps; i++)
        step(&w);
    mirror_finish(&w.x);
    losses += w.x.n_lost;
    damages += w.n_damaged;
    fill_device(&w.x);
    world_close(&w);
}

/* ---- one thing at a time ---- */

static const struct kv_drive plain = {.direct = true};

/* What is refused changes nothing, and leaves frames with the caller. */
static void check_refused(void)
{
    static struct world w;
    world_open(&w, 1, 0, &plain);
    struct mirror_seq *m = &w.x.seqs[0];
    struct spw_kv_seq *seqs[DEVICE_FRAMES / MAX_TILES + 1];
    uint32_t frame, n = 0;
    mirror_seq_open(&w.x, m);
    struct spw_disk_attachment a = attachment(&w, &w.files[0], 0, MAX_TILES);
    CHECK(spw_disk_attach(w.x.w.disk, &a, &frame) == 0);
    w.n_pieces++;
    CHECK(spw_kv_attach(m->seq, 0, 1, frame, MAX_TILES) == -E2BIG);
    CHECK(spw_kv_import(m->seq, 0, 1, MAX_TOKENS + 1, w.files[0].records) == -E2BIG);
    spw_alloc_fail_nth(0);
    CHECK(spw_kv_attach(m->seq, 0, 0, frame, MAX_TILES) == -ENOMEM);
    spw_alloc_fail_nth(-1);
    mirror_check_lines(m);
    CHECK(w.n_pieces == 1 && spw_kv_attach(m->seq, 0, 0, frame, MAX_TILES) == 0);
    for (int rc = 0; !rc; n += !rc) { /* until the device is full */
        CHECK(spw_kv_seq_open(&seqs[n], w.x.w.kv) == 0);
        rc = spw_kv_import(seqs[n], 1, 0, MAX_TOKENS, w.files[0].records);
        CHECK(!rc || (rc == -ENOMEM && !spw_kv_end(seqs[n], 1)));
    }
    CHECK(n == DEVICE_FRAMES / MAX_TILES);
    CHECK(spw_kv_import(seqs[n], 1, 3, 5 * SPW_TILE_TOKENS + 1, w.files[0].records) == 0);
    CHECK(spw_kv_first(seqs[n], 1) == 3 && spw_kv_end(seqs[n], 1) == 6);
    for (uint32_t i = 0; i <= n; i++)
        spw_kv_seq_close(seqs[i]);
    mirror_seq_close(&w.x, m);
    w.x.moves.up += n * MAX_TILES + 3;
    world_close(&w);
}

/* A tile that two sequences share is damaged: the file is told once, each sequence finds its own
 * loss, and the file is let go when both have. */
static void check_shared_loss(bool direct)
{
    static struct world w;
    world_open(&w, 2, 0, &(struct kv_drive){.direct = direct, .faulty = true});
    struct mirror_seq *m = &w.x.seqs[0];
    struct spw_kv_loss loss;
    mirror_seq_open(&w.x, m);
    attach_layer(&w, m, &w.files[0], 0, 0, 1); /* one piece of one tile */
    memcpy(m->word[0], w.files[0].word[0], SPW_TILE_TOKENS * sizeof m->word[0][0]);
    w.files[0].records[5] ^= 1;
    write_records(&w.files[0]);
    w.files[0].was_bad = true;
    mirror_fork(&w.x, m);
    CHECK(spw_kv_load(m->seq, 0, 0) == -EBADMSG && w.n_damaged == 1 && w.n_pieces == 1);
    CHECK(spw_kv_take_loss(w.x.w.kv, &loss) && loss.seq == m->seq && loss.tile == 0);
    CHECK(spw_kv_export(w.x.seqs[1].seq, 0, 0, 1, w.x.memory) == -EBADMSG);
    CHECK(spw_kv_take_loss(w.x.w.kv, &loss) && loss.seq == w.x.seqs[1].seq);
    CHECK(!spw_kv_take_loss(w.x.w.kv, &loss) && w.n_damaged == 1);
    spw_kv_truncate(m->seq, 0);
    CHECK(w.n_pieces == 1);
    spw_kv_truncate(w.x.seqs[1].seq, 0);
    CHECK(w.n_pieces == 0);
    mirror_seq_close(&w.x, &w.x.seqs[1]);
    mirror_seq_close(&w.x, m);
    world_close(&w);
}

/* A tile that is on the device of one sequence is damaged where it is attached; another sequence
 * finds that. There is no frame for the tile on the disk: it is lost when it is to leave the
 * device, and nothing has moved. */
static void check_loss_on_device(bool direct)
{
    static struct world w;
    world_open(&w, 3, 0, &(struct kv_drive){.direct = direct, .faulty = true, .host = !direct});
    struct mirror_seq *m = &w.x.seqs[0];
    struct spw_kv_loss loss;
    mirror_seq_open(&w.x, m);
    attach_layer(&w, m, &w.files[0], 0, 0, 2);
    mirror_fork(&w.x, m);
    CHECK(spw_kv_load(m->seq, 0, 0) == 0);
    w.files[0].was_bad = true;
    spw_kv_note_loss(w.x.seqs[1].seq, 0, 1, -EBADMSG); /* as a reader of its slot does */
    CHECK(spw_kv_take_loss(w.x.w.kv, &loss) && loss.seq == w.x.seqs[1].seq);
    CHECK(spw_kv_spill(m->seq, 0, 1, 2) == 0 && spw_kv_begin(m->seq, 0) == 1);
    CHECK(spw_kv_spill(m->seq, 0, 2, 2) == -EBADMSG && spw_kv_begin(m->seq, 0) == 1);
    CHECK(spw_kv_take_loss(w.x.w.kv, &loss) && loss.seq == m->seq && loss.tile == 1);
    spw_kv_truncate(m->seq, SPW_TILE_TOKENS);
    spw_kv_truncate(w.x.seqs[1].seq, SPW_TILE_TOKENS);
    mirror_seq_close(&w.x, &w.x.seqs[1]);
    mirror_seq_close(&w.x, m);
    w.x.moves.up += direct ? 0 : 2;
    w.x.moves.read += 2;
    world_close(&w);
}

static void check_words(const struct world *w, uint32_t layer, uint32_t tile, const uint8_t *bytes,
                        uint32_t n)
{
    mirror_compare(bytes, &w->files[0].word[layer][tile * SPW_TILE_TOKENS], n);
}

/* What is near the present: the sink and, apart from it, the window go into a cache that has
 * neither host nor disk, come out again, and are cut back. */
static void check_sink(void)
{
    static struct world w;
    world_open(&w, 4, 0, &plain);
    struct spw_kv_options o = {.ops = w.x.w.ops,
                               .device = w.x.w.device,
                               .compute = w.x.w.compute,
                               .down = w.x.w.down,
                               .up = w.x.w.up,
                               .device_arena = w.x.w.device_arena,
                               .n_device_frames = 4,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = KV_LAYERS,
                               .kinds = mirror_sliding,
                               .max_tiles = MAX_TILES,
                               .keeps_sink = true,
                               .residual_tiles = 2,
                               .slot_tiles = 1};
    const uint8_t *records = w.files[0].records;
    struct spw_kv *kv;
    struct spw_kv_seq *seq;
    CHECK(spw_kv_open(&kv, &o) == 0 && spw_kv_seq_open(&seq, kv) == 0);
    for (int round = 0; round < 2; round++) {
        CHECK(spw_kv_import(seq, 0, 0, SPW_TILE_TOKENS, records) == 0);
        CHECK(spw_kv_import(seq, 0, 4, MAX_TOKENS, records + 4 * TILE_BYTES) == -ENOMEM);
        CHECK(spw_kv_first(seq, 0) == 0 && spw_kv_end(seq, 0) == 1);
        uint32_t n = 7 * SPW_TILE_TOKENS - 30;
        CHECK(spw_kv_import(seq, 0, 4, n, records + 4 * TILE_BYTES) == 0);
        CHECK(spw_kv_first(seq, 0) == 4 && spw_kv_begin(seq, 0) == 4 && spw_kv_end(seq, 0) == 7);
        CHECK(spw_kv_can_truncate(seq, mirror_residency, 6 * SPW_TILE_TOKENS));
        CHECK(!spw_kv_can_truncate(seq, mirror_residency, 5 * SPW_TILE_TOKENS));
        CHECK(spw_kv_export(seq, 0, 0, 1, w.x.memory) == 0);
        CHECK(spw_kv_export(seq, 0, 4, 7, w.x.memory + TILE_BYTES) == 0);
        check_words(&w, 0, 0, w.x.memory, SPW_TILE_TOKENS);
        for (uint32_t t = 4; t < 7; t++)
            check_words(&w, 0, t, w.x.memory + (t - 3) * TILE_BYTES, t < 6 ? SPW_TILE_TOKENS : 98);
        spw_kv_truncate(seq, 0);
        CHECK(spw_kv_end(seq, 0) == 0);
        w.x.moves.up += 4;
        w.x.moves.down += 4;
    }
    CHECK(!atomic_load(&mirror_wrong));
    spw_kv_seq_close(seq);
    mirror_drain(&w.x);
    spw_kv_close(kv);
    world_close(&w);
}

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not: what is under way then
 * comes to its end, and everything can be closed. */
static void check_lost_device(const struct kv_drive *drive)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct mirror_seq *m = &w.x.seqs[0];
        world_open(&w, 3 + (uint64_t)n, 0, drive);
        mirror_seq_open(&w.x, m);
        attach_layer(&w, m, &w.files[0], 0, 0, 5);
        spw_device_cpu_fail_nth(w.x.w.device, n);
        rc = spw_kv_import(m->seq, 0, 5, MAX_TOKENS, w.files[0].records);
        rc = rc ? rc : spw_kv_load(m->seq, 0, 3);
        rc = rc ? rc : spw_kv_spill(m->seq, 0, 7, drive->host ? 5 : 7);
        rc = rc ? rc : spw_kv_export(m->seq, 0, 0, MAX_TILES, w.x.memory);
        rc = rc ? rc : w.x.w.ops->stream_sync(w.x.w.device, w.x.w.compute);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(w.x.w.device, -1);
        spw_kv_seq_close(m->seq);
        world_close(&w);
        CHECK(n < 1000);
    }
}

int main(int argc, char **argv)
{
    struct check_draws rounds = check_draws_of(argc, argv,
                                               RUN_UNDER_TSAN   ? 10
                                               : RUN_UNDER_ASAN ? 30
                                                                : 120);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_refused();
    check_sink();
    for (int i = 0; i < 2; i++) {
        check_shared_loss(i);
        check_loss_on_device(i);
        check_lost_device(&(struct kv_drive){.direct = i, .host = true, .faulty = true});
        check_lost_device(&(struct kv_drive){.direct = i, .disk = true, .faulty = true});
    }
    while (check_another(&rounds)) {
        int i = rounds.done - 1;
        struct kv_drive d = {.faulty = i % 3 == 2,
                             .direct = check_random(&seed) % 2,
                             .host = check_random(&seed) % 2,
                             .disk = check_random(&seed) % 2};
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d,
                  300);
    }
    fprintf(stderr, "%llu words compared; %llu tiles damaged, %llu losses\n",
            (unsigned long long)atomic_load(&mirror_checked), (unsigned long long)damages,
            (unsigned long long)losses);
    CHECK(rounds.done < 50 || (damages && losses));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
