/* Tiles made smaller in place, in every tier, against a model in plain memory: random sequences of
 * grow, spill, load, truncate, fork and close, and in between the frames shrink, several times, by
 * a conversion or to a prefix, to as many frames as there is room for or to fewer.
 *
 * A tile is filled from a number of its own; the model knows the number, and what has been done to
 * all tiles since. The conversion takes words from both ends of a tile, so that one that has been
 * written over shows. Every copy of every tile is compared: on the device, on the host, on the
 * disk. Then with a drive that fails: what is there must be right, all else be known to be lost.
 * And: memory that cannot be had, too few frames, the write limit, a device that is lost.
 *
 *   test_kv_repack [rounds] */
#include "tests/unit/offload/kv_world.h"

#include "offload/kv/kv_attach.h"
#include "offload/kv/kv_repack.h"
#include "offload/kv/kv_tile.h"

#include <stdatomic.h>
#include <xxhash.h>

enum {
    MAX_TILES = 8,
    UNIT = 4096,
    MOST_UNITS = 6,
    MOST_BYTES = MOST_UNITS * UNIT,
    DEVICE_FRAMES = 40,
    BELOW_FRAMES = KV_SEQS * KV_LAYERS * MAX_TILES,
    MOST_BUFFERS = 5,
    MOST_REPACKS = 3,
    FILE_UNITS = BELOW_FRAMES * MOST_UNITS,
};

struct model_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tiles;
    uint64_t id[KV_LAYERS][MAX_TILES];
    uint32_t born[KV_LAYERS][MAX_TILES]; /* repacks before it was filled */
};

struct faults {
    _Atomic uint8_t unwritable[FILE_UNITS], unreadable[FILE_UNITS], flipped[FILE_UNITS];
    _Atomic bool next_write; /* fails */
};

struct world {
    struct kv_world k;
    void *device_from, *device_to, *device_buffers, *host_buffers;
    struct faults faults;
    struct model_seq seqs[KV_SEQS];
    uint32_t n_repacks;
    uint64_t bytes[MOST_REPACKS + 1]; /* of a tile, by number of repacks */
    bool prefix[MOST_REPACKS + 1];    /* how they came to that size */
    uint64_t next_id;
};

static uint64_t n_compared, n_repacked, n_lost, n_refused, n_packed;

/* ---- contents ---- */

static uint64_t mix(uint64_t x)
{
    return check_random(&x);
}

static void fill(uint64_t *tile, uint64_t bytes, uint64_t id)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        tile[i] = mix(id * 1000003 + i);
}

static void shrink(const uint64_t *from, uint64_t from_bytes, uint64_t *to, uint64_t to_bytes)
{
    for (uint64_t i = 0; i < to_bytes / 8; i++)
        to[i] = mix(from[i] + 3 * from[from_bytes / 8 - 1 - i]) + i;
}

static const uint64_t *expected(const struct world *w, uint64_t id, uint32_t born)
{
    static uint64_t tile[MOST_BYTES / 8], other[MOST_BYTES / 8];
    fill(tile, w->bytes[born], id);
    for (uint32_t i = born + 1; i <= w->n_repacks; i++)
        if (!w->prefix[i]) {
            shrink(tile, w->bytes[i - 1], other, w->bytes[i]);
            memcpy(tile, other, w->bytes[i]);
        }
    return tile;
}

/* ---- kernels ---- */

struct tile_args {
    const uint64_t *from; /* NULL: filled from id */
    uint64_t *to;
    uint64_t from_bytes, to_bytes, id;
};

static void run_tile(const void *args, size_t task, unsigned worker)
{
    const struct tile_args *a = args;
    (void)task;
    (void)worker;
    if (a->from)
        shrink(a->from, a->from_bytes, a->to, a->to_bytes);
    else
        fill(a->to, a->to_bytes, a->id);
}

static const struct spw_kernel tile_kernel = {"tile", kv_one_task, run_tile};

static int convert(void *context, const void *from, void *to)
{
    struct world *w = context;
    struct tile_args a = {.from = from,
                          .to = to,
                          .from_bytes = w->bytes[w->n_repacks],
                          .to_bytes = w->bytes[w->n_repacks + 1]};
    CHECK((const uint8_t *)from + a.from_bytes <= (uint8_t *)to ||
          (uint8_t *)to + a.to_bytes <= (const uint8_t *)from);
    return spw_device_cpu_launch(w->k.device, w->k.compute, &tile_kernel, &a, sizeof a);
}

/* ---- the world ---- */

static int64_t disturb(void *context, const struct spw_io_request *r, int64_t result)
{
    struct faults *f = context;
    if (r->write && atomic_exchange(&f->next_write, false))
        return -EIO;
    for (uint64_t i = r->offset / UNIT; result > 0 && i < (r->offset + r->bytes) / UNIT; i++) {
        if (r->write ? f->unwritable[i] : f->unreadable[i])
            return -EIO;
        if (!r->write && f->flipped[i])
            r->memory[i * UNIT - r->offset] ^= 4;
    }
    return result;
}

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed,
                       const struct kv_drive *drive)
{
    static const uint8_t sliding[KV_LAYERS];
    uint32_t first_tile = (uint32_t)check_range(&seed, 0, 1);
    struct kv_world_options o = {.delay_seed = delay_seed,
                                 .drive = *drive,
                                 .max_tiles = MAX_TILES,
                                 .first_tile = first_tile,
                                 .n_device_frames = DEVICE_FRAMES,
                                 .kinds = sliding,
                                 .disturb = disturb,
                                 .context = &w->faults};
    memset(w, 0, sizeof *w);
    w->next_id = 1;
    w->bytes[0] = o.tile_bytes = check_range(&seed, MOST_REPACKS + 1, MOST_UNITS) * UNIT;
    o.seed = seed;
    kv_world_open(&w->k, &o);
    const struct spw_device_ops *ops = w->k.ops;
    CHECK(ops->alloc(w->k.device, MOST_BYTES, &w->device_from) == 0);
    CHECK(ops->alloc(w->k.device, MOST_BYTES, &w->device_to) == 0);
    CHECK(ops->alloc(w->k.device, MOST_BUFFERS * MOST_BYTES, &w->device_buffers) == 0);
    CHECK(ops->alloc_host(w->k.device, MOST_BUFFERS * MOST_BYTES, &w->host_buffers) == 0);
}

static void drain(struct world *w)
{
    w->k.ops->stream_sync(w->k.device, w->k.compute);
    w->k.ops->stream_sync(w->k.device, w->k.down);
    w->k.ops->stream_sync(w->k.device, w->k.up);
    spw_kv_finish_writes(w->k.kv);
}

/* Of all tiers. Frames that are lost to a drive are taken last, but can be taken. */
static void check_all_free(struct world *w)
{
    struct spw_kv_options *o = &w->k.kv->o;
    uint32_t frame, n = 0;
    CHECK(spw_tier_n_free(&w->k.kv->device) + w->k.kv->n_draining == o->n_device_frames);
    CHECK(spw_tier_n_free(&w->k.kv->host) == o->n_host_frames);
    while (w->k.disk && !w->k.o.drive.limit_bytes &&
           !spw_disk_take(w->k.disk, SPW_DISK_NONE, &frame))
        n++;
    CHECK(!w->k.disk || w->k.o.drive.limit_bytes || n == o->n_disk_frames);
    n = 0;
    for (uint32_t i = w->k.kv->free_tile; i != SPW_KV_NO_TILE; i = w->k.kv->tiles[i].refs)
        n++;
    CHECK(n == w->k.kv->n_tiles && n >= o->n_device_frames + o->n_host_frames);
}

static void world_close(struct world *w)
{
    for (int i = 0; i < KV_SEQS; i++)
        spw_kv_seq_close(w->seqs[i].seq);
    drain(w);
    check_all_free(w);
    kv_world_stop(&w->k);
    w->k.ops->free(w->k.device, w->device_from, MOST_BYTES);
    w->k.ops->free(w->k.device, w->device_to, MOST_BYTES);
    w->k.ops->free(w->k.device, w->device_buffers, MOST_BUFFERS * MOST_BYTES);
    w->k.ops->free_host(w->k.device, w->host_buffers, MOST_BUFFERS * MOST_BYTES);
    kv_world_close(&w->k);
}

/* ---- checks ---- */

static void compare(const struct world *w, const void *tile, const uint64_t *words)
{
    CHECK_MSG(!memcmp(tile, words, w->bytes[w->n_repacks]), "after %u repacks", w->n_repacks);
    n_compared++;
}

static void check_tile(struct world *w, struct model_seq *m, uint32_t l, uint32_t t)
{
    const uint64_t *words = expected(w, m->id[l][t], m->born[l][t]);
    const void *host = spw_kv_host_tile(m->seq, l, t);
    uint32_t frame = spw_kv_disk_frame(m->seq, l, t);
    if (t >= spw_kv_begin(m->seq, l))
        compare(w, spw_kv_device_tile(m->seq, l, t), words);
    else if (!host && frame == SPW_DISK_NONE) {
        CHECK(w->k.o.drive.faulty && spw_kv_lost(m->seq, l, t));
        spw_kv_note_loss(m->seq, l, t, spw_kv_lost(m->seq, l, t));
    }
    if (host)
        compare(w, host, words);
    if (frame == SPW_DISK_NONE)
        return;
    struct spw_disk_job job;
    spw_disk_prepare(w->k.disk, &job, false, frame, 1, w->host_buffers);
    int rc = spw_disk_run(&job);
    CHECK(!rc || (w->k.o.drive.faulty && (rc == -EIO || rc == -EBADMSG)));
    if (!rc)
        compare(w, w->host_buffers, words);
    else if (t < spw_kv_begin(m->seq, l))
        spw_kv_note_loss(m->seq, l, t, rc);
}

static void cut(struct world *w, struct model_seq *m, uint32_t n)
{
    drain(w);
    spw_kv_truncate(m->seq, (uint64_t)n * SPW_TILE_TOKENS);
    m->n_tiles = n;
}

/* Sequences that lost a tile go on from below it. */
static void recover(struct world *w)
{
    struct spw_kv_loss loss;
    while (spw_kv_take_loss(w->k.kv, &loss))
        for (struct model_seq *m = w->seqs; m < w->seqs + KV_SEQS; m++)
            if (m->seq == loss.seq) {
                CHECK(w->k.o.drive.faulty && loss.tile < m->n_tiles);
                cut(w, m, loss.tile);
            }
}

static void check_all(struct world *w)
{
    drain(w);
    for (struct model_seq *m = w->seqs; m < w->seqs + KV_SEQS; m++)
        for (uint32_t l = 0; l < KV_LAYERS && m->seq; l++) {
            CHECK(spw_kv_first(m->seq, l) == w->k.o.first_tile);
            CHECK(spw_kv_end(m->seq, l) == m->n_tiles);
            for (uint32_t t = w->k.o.first_tile; t < m->n_tiles; t++)
                check_tile(w, m, l, t);
        }
    recover(w);
}

/* ---- operations ---- */

static void do_open(struct world *w, struct model_seq *m)
{
    *m = (struct model_seq){.n_tiles = w->k.o.first_tile};
    CHECK(spw_kv_seq_open(&m->seq, w->k.kv) == 0);
}

static void do_grow(struct world *w, struct model_seq *m)
{
    uint32_t from = m->n_tiles, to = from + (uint32_t)check_range(&w->k.seed, 1, 3);
    int rc = to > MAX_TILES ? -ENOMEM : 0;
    for (uint32_t l = 0; l < KV_LAYERS && !rc; l++) {
        rc = spw_kv_grow(m->seq, l, from * SPW_TILE_TOKENS, to * SPW_TILE_TOKENS);
        for (uint32_t t = from; t < to && !rc; t++) {
            m->id[l][t] = w->next_id++;
            m->born[l][t] = w->n_repacks;
            struct tile_args a = {.to = spw_kv_device_tile(m->seq, l, t),
                                  .to_bytes = w->bytes[w->n_repacks],
                                  .id = m->id[l][t]};
            CHECK(spw_device_cpu_launch(w->k.device, w->k.compute, &tile_kernel, &a, sizeof a) ==
                  0);
        }
    }
    CHECK(!rc || rc == -ENOMEM);
    m->n_tiles = to;
    if (rc)
        cut(w, m, from);
}

static void do_spill(struct world *w, struct model_seq *m, uint32_t layer)
{
    uint32_t begin = (uint32_t)check_range(&w->k.seed, spw_kv_begin(m->seq, layer), m->n_tiles);
    uint32_t disk_end = (uint32_t)check_range(&w->k.seed, 0, m->n_tiles);
    if (!w->k.o.drive.host && disk_end < begin)
        disk_end = begin;
    int rc = spw_kv_spill(m->seq, layer, begin, w->k.o.drive.disk ? disk_end : 0);
    CHECK(!rc || rc == -ENOMEM || (w->k.o.drive.faulty && rc == -EIO));
}

static void do_load(struct world *w, struct model_seq *m, uint32_t layer)
{
    uint32_t begin =
        (uint32_t)check_range(&w->k.seed, w->k.o.first_tile, spw_kv_begin(m->seq, layer));
    int rc = spw_kv_load(m->seq, layer, begin);
    CHECK(!rc || rc == -ENOMEM || (w->k.o.drive.faulty && rc == -EBADMSG));
    recover(w);
}

static void do_fork(struct world *w, const struct model_seq *from)
{
    for (struct model_seq *m = w->seqs; m < w->seqs + KV_SEQS; m++)
        if (!m->seq) {
            do_open(w, m);
            spw_kv_seq_fork(m->seq, from->seq);
            struct spw_kv_seq *seq = m->seq;
            *m = *from;
            m->seq = seq;
            return;
        }
}

static void step(struct world *w)
{
    struct model_seq *m = &w->seqs[check_random(&w->k.seed) % KV_SEQS];
    uint32_t layer = (uint32_t)(check_random(&w->k.seed) % KV_LAYERS);
    if (!m->seq)
        do_open(w, m);
    switch (check_random(&w->k.seed) % 16) {
    case 0:
        drain(w);
        spw_kv_seq_close(m->seq);
        m->seq = NULL;
        break;
    case 1:
        do_fork(w, m);
        break;
    case 2:
        cut(w, m, (uint32_t)check_range(&w->k.seed, w->k.o.first_tile, m->n_tiles));
        break;
    case 3:
    case 4:
    case 5:
        do_load(w, m, layer);
        break;
    case 6:
    case 7:
    case 8:
        do_grow(w, m);
        break;
    default:
        do_spill(w, m, layer);
    }
}

/* ---- repacking ---- */

static uint32_t room(uint32_t n_frames, uint64_t old_bytes, uint64_t new_bytes)
{
    return (uint32_t)(n_frames * old_bytes / new_bytes);
}

/* The next size, and as many frames as there is room for. */
static struct spw_kv_repack draw_repack(struct world *w)
{
    const struct spw_kv_options *o = &w->k.kv->o;
    uint32_t left = MOST_REPACKS - w->n_repacks;
    uint64_t old_bytes = w->bytes[w->n_repacks];
    uint64_t bytes = check_range(&w->k.seed, left, old_bytes / UNIT - 1) * UNIT;
    w->bytes[w->n_repacks + 1] = bytes;
    w->prefix[w->n_repacks + 1] = check_random(&w->k.seed) % 3 == 0;
    return (struct spw_kv_repack){.tile_bytes = bytes,
                                  .n_device_frames = room(o->n_device_frames, old_bytes, bytes),
                                  .n_host_frames = room(o->n_host_frames, old_bytes, bytes),
                                  .n_disk_frames = room(o->n_disk_frames, old_bytes, bytes),
                                  .slot_tiles = (uint32_t)check_range(&w->k.seed, 1, 5),
                                  .convert = w->prefix[w->n_repacks + 1] ? NULL : convert,
                                  .context = w,
                                  .device_from = w->device_from,
                                  .device_to = w->device_to,
                                  .buffers =
                                      w->k.o.drive.direct ? w->device_buffers : w->host_buffers,
                                  .n_buffers = (uint32_t)check_range(&w->k.seed, 1, MOST_BUFFERS)};
}

/* Nothing is different after a repack that was refused. */
static void check_refused(struct world *w, const struct spw_kv_repack *r, int expected_rc)
{
    struct spw_kv_repacked out;
    CHECK(spw_kv_repack(w->k.kv, r, &out) == expected_rc);
    check_all(w);
    n_refused++;
}

static void check_moved(const struct world *w, const struct spw_kv_repacked *out,
                        const struct spw_device_usage *u, const struct spw_io_usage *io)
{
    struct spw_device_usage now;
    struct spw_io_usage io_now;
    uint64_t from = w->bytes[w->n_repacks - 1], to = w->bytes[w->n_repacks], n;
    n = w->prefix[w->n_repacks] ? 0 : out->n_host + (w->k.o.drive.direct ? 0 : out->n_disk);
    w->k.ops->usage(w->k.device, &now);
    CHECK(now.moved_bytes[SPW_LINK_HOST_TO_DEVICE] - u->moved_bytes[SPW_LINK_HOST_TO_DEVICE] ==
          n * from);
    CHECK(now.moved_bytes[SPW_LINK_DEVICE_TO_HOST] - u->moved_bytes[SPW_LINK_DEVICE_TO_HOST] ==
          n * to);
    CHECK(!out->n_lost);
    if (!w->k.disk)
        return;
    spw_io_usage(w->k.io, &io_now);
    CHECK(io_now.read_bytes - io->read_bytes == out->n_disk * from);
    CHECK(io_now.written_bytes - io->written_bytes == out->n_disk * to);
}

/* Sequences' waterlines, one after the other. */
static void waterlines(const struct world *w, uint32_t lines[KV_SEQS * KV_LAYERS * 2])
{
    for (uint32_t i = 0; i < KV_SEQS * KV_LAYERS; i++) {
        const struct spw_kv_seq *seq = w->seqs[i / KV_LAYERS].seq;
        lines[2 * i] = seq ? spw_kv_begin(seq, i % KV_LAYERS) : 0;
        lines[2 * i + 1] = seq ? spw_kv_disk_end(seq, i % KV_LAYERS) : 0;
    }
}

static void do_repack(struct world *w)
{
    uint32_t before[KV_SEQS * KV_LAYERS * 2], after[KV_SEQS * KV_LAYERS * 2];
    struct spw_device_usage u;
    struct spw_io_usage io = {0};
    struct spw_kv_repacked out;
    struct spw_kv_repack r = draw_repack(w), fewer = r;
    drain(w);
    spw_kv_take_write_failure(w->k.kv);
    waterlines(w, before);
    w->k.ops->usage(w->k.device, &u);
    if (w->k.disk)
        spw_io_usage(w->k.io, &io);
    fewer.n_device_frames = (uint32_t)check_range(&w->k.seed, 1, r.n_device_frames);
    if (w->k.disk)
        fewer.n_disk_frames = (uint32_t)check_range(&w->k.seed, 1, r.n_disk_frames);
    int rc = spw_kv_repack(w->k.kv, check_random(&w->k.seed) % 2 ? &fewer : &r, &out);
    if (rc == -ENOMEM) { /* too few */
        n_refused++;
        rc = spw_kv_repack(w->k.kv, &r, &out);
    }
    CHECK(!rc);
    w->n_repacks++;
    if (!w->k.o.drive.faulty)
        check_moved(w, &out, &u, &io);
    waterlines(w, after);
    CHECK(!memcmp(before, after, sizeof before));
    n_packed += w->k.kv->o.n_device_frames == fewer.n_device_frames;
    n_repacked += out.n_device + out.n_host + out.n_disk;
    n_lost += out.n_lost;
}

/* Places become bad, or good again. */
static void draw_faults(struct world *w)
{
    uint32_t i = (uint32_t)(check_random(&w->k.seed) % (FILE_UNITS / 4)); /* lower frames first */
    switch (check_random(&w->k.seed) % 6) {
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
        if (check_random(&w->k.seed) % 8)
            break;
        memset(&w->faults, 0, sizeof w->faults);
        break;
    }
}

static void run_round(uint64_t seed, uint64_t delay_seed, const struct kv_drive *drive)
{
    static struct world w;
    world_open(&w, seed, delay_seed, drive);
    for (int i = 0; i <= MOST_REPACKS; i++) {
        for (int k = 0; k < 60; k++) {
            if (drive->faulty)
                draw_faults(&w);
            step(&w);
        }
        check_all(&w);
        if (i < MOST_REPACKS)
            do_repack(&w);
        check_all(&w);
    }
    world_close(&w);
}

/* ---- what can go wrong ---- */

/* A sequence with tiles in every tier. */
static void build(struct world *w, const struct kv_drive *drive, uint64_t seed)
{
    world_open(w, seed, 0, drive);
    struct model_seq *m = &w->seqs[0];
    do_open(w, m);
    while (m->n_tiles < MAX_TILES - 2)
        do_grow(w, m);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        CHECK(spw_kv_spill(m->seq, l, 5, drive->host ? 3 : 5) == 0);
        CHECK(spw_kv_load(m->seq, l, 4) == 0);
    }
    do_fork(w, m);
    check_all(w);
}

/* Memory fails at the n-th allocation, for n = 0, 1, ... until it does not. */
static void check_memory(const struct kv_drive *drive)
{
    static struct world w;
    struct spw_kv_repacked out;
    build(&w, drive, 11);
    struct spw_kv_repack r = draw_repack(&w);
    struct spw_kv_repack fewer = r;
    fewer.n_device_frames = 1;
    check_refused(&w, &fewer, -ENOMEM);
    fewer = r;
    fewer.n_disk_frames = 1;
    check_refused(&w, &fewer, -ENOMEM);
    for (int64_t n = 0;; n++) {
        CHECK(n < 100);
        spw_alloc_fail_nth(n);
        int rc = spw_kv_repack(w.k.kv, &r, &out);
        spw_alloc_fail_nth(-1);
        CHECK(!rc || rc == -ENOMEM);
        if (!rc)
            break;
        check_all(&w);
    }
    w.n_repacks++;
    check_all(&w);
    world_close(&w);
}

/* What was written, and the repack, must be within the limit together. */
static void check_limit(struct kv_drive drive)
{
    static struct world w;
    for (int missing = 0; missing < 2; missing++) {
        struct spw_kv_repacked out;
        uint64_t written;
        drive.limit_bytes = UINT64_MAX;
        build(&w, &drive, 12);
        struct spw_io_usage u;
        spw_io_usage(w.k.io, &u);
        struct spw_kv_repack r = draw_repack(&w);
        written = u.written_bytes / w.bytes[0] * (w.bytes[0] + r.tile_bytes);
        world_close(&w);
        drive.limit_bytes = written - (uint64_t)missing;
        build(&w, &drive, 12);
        r = draw_repack(&w);
        if (missing) {
            check_refused(&w, &r, -EDQUOT);
        } else {
            CHECK(spw_kv_repack(w.k.kv, &r, &out) == 0 && out.n_disk);
            w.n_repacks++;
            check_all(&w);
        }
        world_close(&w);
    }
}

enum fault { UNREADABLE, FLIPPED, UNWRITABLE, WRITE_ONCE, WRITE_ONCE_AT_LIMIT, FAULTS };

/* One tile on the disk, which two sequences share, meets a fault: it is lost to both, or nothing
 * is. */
static void check_fault(struct kv_drive drive, enum fault fault)
{
    static struct world w;
    struct spw_kv_repacked out;
    struct spw_io_usage u;
    drive.faulty = true;
    build(&w, &drive, 14);
    spw_io_usage(w.k.io, &u);
    struct spw_kv_repack r = draw_repack(&w);
    if (fault == WRITE_ONCE_AT_LIMIT) {
        world_close(&w);
        drive.limit_bytes = u.written_bytes / w.bytes[0] * (w.bytes[0] + r.tile_bytes);
        build(&w, &drive, 14);
        r = draw_repack(&w);
    }
    uint64_t frame = spw_kv_disk_frame(w.seqs[0].seq, 1, 2);
    w.faults.unreadable[frame * w.bytes[0] / UNIT] = fault == UNREADABLE;
    w.faults.flipped[frame * w.bytes[0] / UNIT] = fault == FLIPPED;
    w.faults.unwritable[frame * r.tile_bytes / UNIT] = fault == UNWRITABLE;
    w.faults.next_write = fault >= WRITE_ONCE;
    CHECK(spw_kv_repack(w.k.kv, &r, &out) == 0);
    w.n_repacks++;
    CHECK(!w.faults.next_write && out.n_lost == (fault != WRITE_ONCE));
    int rc = fault == UNREADABLE || fault == UNWRITABLE ? -EIO : fault == FLIPPED ? -EBADMSG : 0;
    for (int i = 0; i < 2 && fault < WRITE_ONCE; i++) {
        CHECK(spw_kv_lost(w.seqs[i].seq, 1, 2) == rc);
        CHECK(spw_kv_load(w.seqs[i].seq, 1, 1) == -EBADMSG);
    }
    recover(&w);
    CHECK(fault >= WRITE_ONCE || (w.seqs[0].n_tiles == 2 && w.seqs[1].n_tiles == 2));
    CHECK(spw_disk_n_retired(w.k.disk) > 0 || fault == WRITE_ONCE);
    check_all(&w);
    world_close(&w);
}

/* A file of tiles that a sequence attaches. */
struct pack {
    int fd, n_released, n_damaged;
};

static void released(void *context)
{
    struct pack *p = context;
    p->n_released++;
    close(p->fd);
}

static void damaged(void *context, uint32_t i)
{
    struct pack *p = context;
    CHECK(i == 1);
    p->n_damaged++;
}

/* All tiles of all layers; the one that is spoiled, if any, is not what its checksum says. */
static void attach(struct world *w, struct model_seq *m, struct pack *p, uint64_t spoiled)
{
    enum { N = KV_LAYERS * MAX_TILES };
    static uint8_t tiles[N][MOST_BYTES];
    uint64_t sums[N], bytes = w->bytes[0];
    char name[] = "/tmp/spw_repack_XXXXXX";
    uint32_t first = w->k.o.first_tile, n = MAX_TILES - first, frame;
    *p = (struct pack){.fd = mkstemp(name)};
    unlink(name);
    for (uint32_t i = 0; i < KV_LAYERS * n; i++) {
        m->id[i / n][first + i % n] = w->next_id;
        memcpy(tiles[i], expected(w, w->next_id++, 0), bytes);
        sums[i] = XXH3_64bits(tiles[i], bytes);
        tiles[i][5] ^= i == spoiled;
        CHECK(pwrite(p->fd, tiles[i], bytes, (off_t)(i * bytes)) == (ssize_t)bytes);
    }
    struct spw_disk_attachment a = {.fd = p->fd,
                                    .n = KV_LAYERS * n,
                                    .sums = sums,
                                    .released = released,
                                    .damaged = damaged,
                                    .context = p};
    CHECK(spw_disk_attach(w->k.disk, &a, &frame) == 0);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        CHECK(spw_kv_attach(m->seq, l, first, frame + l * n, n) == 0);
    m->n_tiles = MAX_TILES;
}

/* Attached tiles are let go, and are in our own file, or lost where that is full. */
static void check_attached(struct kv_drive drive, uint64_t spoiled, bool full)
{
    static struct world w;
    struct spw_kv_repacked out;
    struct pack p;
    drive.faulty = spoiled == 1 || full; /* tiles may be lost */
    build(&w, &drive, 15);
    do_open(&w, &w.seqs[2]);
    attach(&w, &w.seqs[2], &p, spoiled);
    do_fork(&w, &w.seqs[2]);
    CHECK(spw_kv_load(w.seqs[3].seq, 2, MAX_TILES - 2) == 0);
    if (spoiled != 1)
        check_all(&w);
    struct spw_kv_repack r = draw_repack(&w);
    uint32_t n_own = 0, n = KV_LAYERS * (MAX_TILES - w.k.o.first_tile);
    for (uint32_t i = 0; i < w.k.kv->n_tiles; i++)
        n_own += w.k.kv->tiles[i].disk < BELOW_FRAMES;
    if (full)
        r.n_disk_frames = n_own + 2;
    CHECK(spw_kv_repack(w.k.kv, &r, &out) == 0);
    w.n_repacks++;
    CHECK(p.n_released == 1 && p.n_damaged == (spoiled == 1) && !w.k.kv->n_attached);
    CHECK(out.n_lost == (full ? n - 2 : 0) + (spoiled == 1));
    check_all(&w);
    CHECK(w.seqs[2].n_tiles == (full || spoiled == 1 ? w.k.o.first_tile + !full : MAX_TILES));
    world_close(&w);
}

/* The device is lost at the n-th command: everything can be cut to nothing and closed. */
static void check_lost_device(const struct kv_drive *drive)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct spw_kv_repacked out;
        CHECK(n < 1000);
        build(&w, drive, 13);
        struct spw_kv_repack r = draw_repack(&w);
        spw_device_cpu_fail_nth(w.k.device, n);
        rc = spw_kv_repack(w.k.kv, &r, &out);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(w.k.device, -1);
        if (n % 2)
            cut(&w, &w.seqs[0], w.k.o.first_tile);
        world_close(&w);
    }
}

int main(int argc, char **argv)
{
    struct check_draws rounds =
        check_draws_of(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 20 : 100);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    for (int i = 0; i < 4; i++) {
        struct kv_drive d = {.disk = true, .direct = i % 2, .host = i / 2};
        check_memory(&d);
        check_limit(d);
        check_lost_device(&d);
        for (int fault = 0; fault < FAULTS; fault++)
            check_fault(d, (enum fault)fault);
        check_attached(d, UINT64_MAX, false);
        check_attached(d, 1, false);
        check_attached(d, UINT64_MAX, true);
    }
    while (check_another(&rounds)) {
        int i = rounds.done - 1;
        struct kv_drive d = {.disk = i % 4, .faulty = i % 4 == 3};
        d.direct = check_random(&seed) % 2;
        d.host = check_random(&seed) % 2 || !d.disk;
        run_round(check_random(&seed), i % 3 ? 0 : check_random(&seed) | 1, &d);
    }
    fprintf(stderr,
            "%llu tiles compared, %llu copies repacked, %llu lost; %llu repacks refused, %llu to "
            "fewer frames\n",
            (unsigned long long)n_compared, (unsigned long long)n_repacked,
            (unsigned long long)n_lost, (unsigned long long)n_refused,
            (unsigned long long)n_packed);
    CHECK(rounds.done < 100 || (n_lost && n_refused && n_packed));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
