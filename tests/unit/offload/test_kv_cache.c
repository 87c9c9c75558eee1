/* The KV cache against a mirror in plain memory (tests/unit/offload/kv_mirror.h): random sequences
 * of grow, spill, load, drop, truncate, fork and close over several sequences that share tiles;
 * random delays around every copy, kernel and request look for the rare faults of order.
 *
 * With a disk: directly and by way of host frames, with room on the host or with just enough for
 * the way. Then with a drive that fails: frames that cannot be written, a time in which none can,
 * frames that come back with a flipped bit or an error. Layers start at tile 0, or at tile 1.
 *
 *   test_kv_cache [rounds] */
#include "tests/unit/offload/kv_mirror.h"

#include "offload/kv/tier.h"

enum {
    MAX_TILES = 6,
    MAX_TOKENS = MAX_TILES * SPW_TILE_TOKENS,
    DEVICE_FRAMES = 44,
    DISK_FRAMES = KV_SEQS * KV_LAYERS * MAX_TILES,
};

/* What an unreliable drive does; looked at by the I/O threads. */
struct faults {
    _Atomic uint8_t unwritable[DISK_FRAMES], unreadable[DISK_FRAMES], flipped[DISK_FRAMES];
    _Atomic bool dead, late;
    _Atomic uint64_t draws, failed_writes, failed_reads;
};

struct world {
    struct mirror x;
    struct faults faults;
};

/* Sees each request of the disk. */
static int64_t disturb(void *context, const struct spw_io_request *r, int64_t result)
{
    const uint64_t tile = MIRROR_TILE_BYTES;
    struct faults *f = context;
    uint64_t draw = atomic_fetch_add(&f->draws, 1);
    if (atomic_load(&f->late) && check_random(&draw) % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(check_random(&draw) % 200000)}, NULL);
    if (result <= 0 || !r->bytes)
        return result;
    for (uint64_t i = r->offset / tile; i * tile < r->offset + r->bytes; i++) {
        if (r->write && (f->dead || f->unwritable[i])) {
            atomic_fetch_add(&f->failed_writes, 1);
            return draw % 2 ? -EIO : -ENOSPC;
        }
        if (!r->write && (f->unreadable[i] || f->flipped[i])) {
            atomic_fetch_add(&f->failed_reads, 1);
            if (f->unreadable[i])
                return -EIO;
            r->memory[i * tile < r->offset ? 0 : i * tile - r->offset] ^= 16;
        }
    }
    return result;
}

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed,
                       const struct kv_drive *drive, uint32_t first_tile)
{
    struct kv_world_options o = {.seed = seed,
                                 .delay_seed = delay_seed,
                                 .drive = *drive,
                                 .max_tiles = MAX_TILES,
                                 .first_tile = first_tile,
                                 .n_device_frames = DEVICE_FRAMES,
                                 .disturb = disturb,
                                 .context = &w->faults};
    o.drive.read_failure = -EIO;
    o.drive.writes_fail = drive->faulty;
    memset(&w->faults, 0, sizeof w->faults);
    w->faults.late = delay_seed != 0;
    mirror_open(&w->x, &o);
}

/* The drive becomes worse, and better again. */
static void draw_faults(struct world *w)
{
    uint32_t i = (uint32_t)(check_random(&w->x.w.seed) % DISK_FRAMES);
    switch (check_random(&w->x.w.seed) % 40) {
    case 0:
        w->faults.unwritable[i] = 1;
        break;
    case 1:
        w->faults.unreadable[i] = 1;
        break;
    case 2:
        w->faults.flipped[i] = 1;
        break;
    case 3:
        w->faults.dead = true;
        break;
    case 4:
    case 5:
    case 6:
        w->faults.dead = false;
        w->faults.unwritable[i] = w->faults.unreadable[i] = w->faults.flipped[i] = 0;
        break;
    }
}

static void step(struct world *w)
{
    struct mirror *x = &w->x;
    struct mirror_seq *m = &x->seqs[check_random(&x->w.seed) % KV_SEQS];
    uint32_t layer = (uint32_t)(check_random(&x->w.seed) % KV_LAYERS);
    if (x->w.o.drive.faulty)
        draw_faults(w);
    if (!m->seq) {
        mirror_seq_open(x, m);
        return;
    }
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
    case 4:
        mirror_drop(x, m);
        break;
    case 5:
        mirror_load_ahead(x, m, layer,
                          (uint32_t)check_range(&x->w.seed, m->first[layer], m->begin[layer]));
        break;
    case 6:
    case 7:
        mirror_load(x, m, layer,
                    (uint32_t)check_range(&x->w.seed, m->first[layer], m->begin[layer]));
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        mirror_spill(x, m, layer);
        break;
    default:
        mirror_grow(x, m);
    }
    if (m->seq && check_random(&x->w.seed) % 3 == 0)
        mirror_check(x, m);
    mirror_recover(x);
}

/* Every frame of the device is free again: one sequence after the other takes them all. */
static void fill_device(struct mirror *x)
{
    const struct kv_drive *d = &x->w.o.drive;
    struct spw_device_usage u;
    uint32_t n = 0, disk_end = d->disk ? 5 : 0, first = x->w.o.first_tile;
    for (int i = 0; i < KV_SEQS; i++)
        mirror_seq_open(x, &x->seqs[i]);
    for (uint32_t k = 0; k < KV_SEQS * KV_LAYERS && n + MAX_TILES <= DEVICE_FRAMES; k++) {
        struct spw_kv_seq *seq = x->seqs[k / KV_LAYERS].seq;
        uint32_t l = k % KV_LAYERS;
        CHECK(spw_kv_grow(seq, l, first * SPW_TILE_TOKENS, MAX_TOKENS) == 0 &&
              spw_kv_spill(seq, l, 5, disk_end) == 0 && spw_kv_load(seq, l, first) == 0);
        uint64_t on_host = 5 - first, on_disk = disk_end ? on_host : 0;
        x->moves.down += disk_end && d->direct ? 0 : on_host;
        x->moves.up += disk_end && d->direct ? 0 : on_host;
        x->moves.written += on_disk;
        x->moves.read += on_disk;
        n += MAX_TILES - first;
    }
    mirror_drain(x);
    for (int i = 0; i < KV_SEQS; i++)
        mirror_seq_close(x, &x->seqs[i]);
    x->w.ops->usage(x->w.device, &u);
    CHECK(u.device_bytes == spw_align_up(DEVICE_FRAMES * MIRROR_TILE_BYTES, 4096));
}

static uint64_t failed_writes, failed_reads, write_failures, loads_ahead;

static void run_round(uint64_t seed, uint64_t delay_seed, const struct kv_drive *drive,
                      uint32_t first_tile, int steps)
{
    static struct world w;
    world_open(&w, seed, delay_seed, drive, first_tile);
    for (int i = 0; i < steps; i++)
        step(&w);
    mirror_finish(&w.x);
    failed_writes += w.faults.failed_writes;
    failed_reads += w.faults.failed_reads;
    write_failures += w.x.n_failed_writes;
    loads_ahead += w.x.n_begun;
    if (!drive->faulty)
        fill_device(&w.x);
    mirror_close(&w.x);
}

/* ---- frames ---- */

/* All device frames can be taken, the next is refused, and closing gives every one of them back. */
static void check_tier_full(void)
{
    static struct world w;
    struct mirror *x = &w.x;
    world_open(&w, 1, 0, &(struct kv_drive){.host = true}, 0);
    for (int round = 0; round < 3; round++) {
        uint32_t taken = 0, i = 0;
        struct spw_kv_seq *seqs[KV_SEQS];
        for (; i < KV_SEQS; i++)
            CHECK(spw_kv_seq_open(&seqs[i], x->w.kv) == 0);
        int rc = 0;
        for (uint32_t t = 0; t < MAX_TILES && !rc; t++)
            for (i = 0; i < KV_SEQS && !rc; i++)
                for (uint32_t l = 0; l < KV_LAYERS && !rc; l++) {
                    rc = spw_kv_grow(seqs[i], l, t * SPW_TILE_TOKENS, (t + 1) * SPW_TILE_TOKENS);
                    taken += !rc;
                }
        CHECK(rc == -ENOMEM && taken == DEVICE_FRAMES);
        /* one goes down, one frame is there again */
        CHECK(spw_kv_spill(seqs[0], 0, 1, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        x->moves.down++;
        x->moves.up++;
        mirror_drain(x);
        for (i = 0; i < KV_SEQS; i++)
            spw_kv_seq_close(seqs[i]);
    }
    mirror_close(x);
}

/* A disk that takes three tiles, or may be written three times: the fourth stays where it is, and
 * the call may be repeated when there is room, or without the disk. */
static void check_disk_full(const struct kv_drive *drive, int expected)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct mirror_seq *m = &x->seqs[0];
    world_open(&w, 3, 0, drive, 0);
    mirror_seq_open(x, m);
    while (m->n_tokens < MAX_TOKENS)
        mirror_grow(x, m);
    for (int repeat = 0; repeat < 2; repeat++) {
        uint64_t to_host, to_disk;
        spw_kv_count_spill(m->seq, 0, 5, 5, &to_host, &to_disk);
        CHECK(to_disk == (repeat ? 2u : 5u));
        CHECK(spw_kv_spill(m->seq, 0, 5, 5) == expected);
        m->begin[0] = m->disk_end[0] = 3;
        mirror_check(x, m);
    }
    CHECK(spw_kv_spill(m->seq, 0, 5, 3) == 0); /* the host has room */
    m->begin[0] = 5;
    mirror_check(x, m);
    mirror_load(x, m, 0, 0);
    mirror_check(x, m);
    x->moves.written += 3;
    x->moves.down += drive->direct ? 2u : 5u;
    mirror_finish(x);
    mirror_close(x);
}

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not: what is under way then
 * comes to its end, and everything can be closed. */
static void check_lost_device(const struct kv_drive *drive)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct kv_world *k = &w.x.w;
        struct spw_kv_seq *a, *b;
        uint64_t n_read = 0;
        bool begun;
        world_open(&w, 3 + (uint64_t)n, 0, drive, 0);
        CHECK(spw_kv_seq_open(&a, k->kv) == 0 && spw_kv_seq_open(&b, k->kv) == 0);
        spw_device_cpu_fail_nth(k->device, n);
        rc = spw_kv_grow(a, 0, 0, MAX_TOKENS);
        rc = rc ? rc : spw_kv_spill(a, 0, 5, drive->host ? 3 : 5);
        rc = rc ? rc : spw_kv_load_ahead(a, 0, 2, &begun);
        if (rc)
            spw_kv_forget_loads(a, &n_read);
        rc = rc ? rc : spw_kv_load(a, 0, 1);
        spw_kv_seq_fork(b, a);
        rc = rc ? rc : spw_kv_spill(b, 0, 4, 4);
        rc = rc ? rc : spw_kv_spill(a, 0, 4, 4);
        rc = rc ? rc : spw_kv_load(b, 0, 0);
        rc = rc ? rc : k->ops->stream_sync(k->device, k->disk_stream);
        rc = rc ? rc : k->ops->stream_sync(k->device, k->compute);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(k->device, -1);
        spw_kv_seq_close(a);
        spw_kv_seq_close(b);
        mirror_close(&w.x);
        CHECK(n < 1000);
    }
}

static void check_tier(void)
{
    struct spw_tier t;
    uint8_t arena[8 * 16];
    void *frames[8], *more;
    CHECK(spw_tier_init(&t, arena, 16, 8, 3) == 0);
    for (int round = 0; round < 2; round++) {
        uint32_t seen = 0;
        for (int i = 0; i < 8; i++) {
            CHECK(spw_tier_take(&t, i % 3 ? frames[i - 1] : NULL, &frames[i]) == 0);
            seen |= 1u << (((uint8_t *)frames[i] - arena) / 16);
        }
        CHECK(seen == 0xff && spw_tier_take(&t, NULL, &more) == -ENOMEM);
        for (int i = 0; i < 8; i++)
            spw_tier_put(&t, frames[(i * 3) % 8]);
        spw_tier_put(&t, NULL);
        CHECK(spw_tier_n_free(&t) == 8);
    }
    CHECK(spw_tier_take(&t, NULL, &frames[0]) == 0);
    spw_tier_put(&t, frames[0]);
    spw_tier_free(&t);
}

/* Several series that grow in turn, as layers do in decode, each stay in one piece: a run at a
 * time, or longer while the place behind it is free. */
static void check_tier_series(uint64_t *seed)
{
    enum { RUN = 4, SERIES = 6, LENGTH = 8, FRAMES = SERIES * LENGTH };
    static uint8_t arena[FRAMES * 16];
    struct spw_tier t;
    uint8_t *frames[SERIES][LENGTH];
    uint32_t n[SERIES] = {0};
    CHECK(spw_tier_init(&t, arena, 16, FRAMES, RUN) == 0);
    for (int i = 0; i < SERIES * LENGTH; i++) {
        uint32_t s = (uint32_t)(check_random(seed) % SERIES);
        while (n[s] == LENGTH)
            s = (s + 1) % SERIES;
        void *frame;
        CHECK(spw_tier_take(&t, n[s] ? frames[s][n[s] - 1] : NULL, &frame) == 0);
        frames[s][n[s]] = frame;
        if (n[s] % RUN)
            CHECK(frames[s][n[s]] == frames[s][n[s] - 1] + 16);
        n[s]++;
    }
    for (int s = 0; s < SERIES; s++)
        for (int i = 0; i < LENGTH; i++)
            spw_tier_put(&t, frames[s][i]);
    CHECK(spw_tier_n_free(&t) == FRAMES);
    spw_tier_free(&t);
}

int main(int argc, char **argv)
{
    struct check_draws rounds =
        check_draws_of(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 25 : 120);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_tier();
    for (int i = 0; i < 100; i++)
        check_tier_series(&seed);
    check_tier_full();
    for (int i = 0; i < 2; i++) {
        struct kv_drive d = {.disk = true, .direct = i, .host = true, .n_frames = 3};
        check_disk_full(&d, -ENOMEM);
        d = (struct kv_drive){.disk = true, .direct = i, .host = true};
        d.limit_bytes = 3 * MIRROR_TILE_BYTES;
        check_disk_full(&d, -EDQUOT);
        d = (struct kv_drive){.disk = true, .direct = i, .faulty = true};
        check_lost_device(&d);
        d.host = true;
        check_lost_device(&d);
    }
    while (check_another(&rounds)) {
        int i = rounds.done - 1;
        struct kv_drive d = {.disk = i % 4, .faulty = i % 4 == 3};
        d.direct = check_random(&seed) % 2;
        d.host = check_random(&seed) % 2 || !d.disk;
        uint32_t first_tile = check_random(&seed) % 2;
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d,
                  first_tile, 300);
    }
    fprintf(stderr,
            "%llu words compared; %llu requests failed to write, %llu to read; %llu writes given "
            "up\n",
            (unsigned long long)atomic_load(&mirror_checked), (unsigned long long)failed_writes,
            (unsigned long long)failed_reads, (unsigned long long)write_failures);
    CHECK(rounds.done < 50 || (failed_writes && failed_reads && write_failures && loads_ahead));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
