/* The KV cache against a model in plain memory: random sequences of grow, spill, load, drop,
 * truncate, fork and close over several sequences that share tiles.
 *
 * A tile's contents are one word a token, written by kernels queued on `compute` as attention's own
 * appends are. The model knows what every token of every sequence must be; at any time a check is
 * queued that reads each device tile on `compute`, and each host copy on `up` as the ring does;
 * what lies on the disk is read from its frame. So a missing order between streams, a frame given
 * back too early or a shared tile that is written shows as a wrong word; random delays around every
 * copy, kernel and request look for the rare ones. Bytes over every link are summed and compared.
 *
 * With a disk: directly and by way of host frames, with room on the host or with just enough for
 * the way. Then with a drive that fails: frames that cannot be written, a time in which none can,
 * frames that come back with a flipped bit or an error. Layers start at tile 0, or at tile 1.
 *
 *   test_kv_cache [rounds] */
#include "tests/engine_run.h"

#include "offload/kv_cache.h"
#include "offload/tier.h"

#include <stdatomic.h>

enum {
    N_LAYERS = 3, /* the last one slides */
    N_SEQS = 4,
    MAX_TILES = 6,
    MAX_TOKENS = MAX_TILES * SPW_TILE_TOKENS,
    WINDOW = 200,
    STRIDE = 8, /* words: a token's lie at both ends of its stride */
    TILE_WORDS = SPW_TILE_TOKENS,
    TILE_BYTES = TILE_WORDS * STRIDE * 4,
    DEVICE_FRAMES = 44,
    HOST_FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
    DISK_FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
    TRANSIT_FRAMES = 3,
    MOST_CHECKS = 1 << 16,
};

/* What the disk of a round is like. */
struct drive {
    bool there, direct, host; /* host: has room for tiles, else only for those on their way */
    bool faulty;
    uint32_t first_tile;
    enum spw_io_kind kind;
    uint32_t frames; /* 0: enough */
    uint64_t limit;  /* writes, in tiles; 0: none */
};

static const uint8_t sliding[N_LAYERS] = {0, 0, 1};

/* What one sequence must hold. */
struct model_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens;
    uint32_t word[N_LAYERS][MAX_TOKENS];
    uint32_t first[N_LAYERS], begin[N_LAYERS], disk_end[N_LAYERS];
};

/* What an unreliable drive does; looked at by the I/O threads. */
struct faults {
    _Atomic uint8_t unwritable[DISK_FRAMES], unreadable[DISK_FRAMES], flipped[DISK_FRAMES];
    _Atomic bool dead, late;
    _Atomic uint64_t draws, failed_writes, failed_reads;
};

/* Bytes that must have moved. */
struct moves {
    uint64_t down, up, written, read;
};

struct world {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up;
    spw_stream disk_stream;
    void *device_arena, *host_arena;
    struct drive drive;
    struct spw_io *io;
    struct spw_disk *disk;
    struct spw_io_fault fault;
    struct faults faults;
    struct moves moves;
    uint8_t *landing; /* one tile */
    struct spw_kv *kv;
    struct model_seq seqs[N_SEQS];
    uint64_t seed;
    uint32_t next_word, n_failures;
};

/* ---- kernels ---- */

struct stamp_args {
    uint32_t *tile;
    uint32_t from, to, word; /* word + i goes to token i of [from, to) */
};

struct verify_args {
    const uint32_t *tile;
    const uint32_t *expected; /* stays until the streams are drained */
    uint32_t n;
};

static _Atomic uint64_t words_wrong, words_checked;

static size_t one(const void *args)
{
    (void)args;
    return 1;
}

static void run_stamp(const void *args, size_t task, unsigned worker)
{
    const struct stamp_args *a = args;
    (void)task;
    (void)worker;
    for (uint32_t i = a->from; i < a->to; i++)
        a->tile[i * STRIDE] = a->tile[i * STRIDE + STRIDE - 1] = a->word + i - a->from;
}

static void run_verify(const void *args, size_t task, unsigned worker)
{
    const struct verify_args *a = args;
    (void)task;
    (void)worker;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->tile[i * STRIDE] != a->expected[i] ||
            a->tile[i * STRIDE + STRIDE - 1] != a->expected[i])
            atomic_fetch_add(&words_wrong, 1);
    atomic_fetch_add(&words_checked, a->n);
}

static const struct spw_kernel stamp = {"stamp", one, run_stamp};
static const struct spw_kernel verify = {"verify", one, run_verify};

/* ---- the world ---- */

/* Expected words of the checks that are queued. */
static uint32_t expected_words[MOST_CHECKS][TILE_WORDS];
static size_t n_expected;

static void drain(struct world *w)
{
    CHECK(w->ops->stream_sync(w->device, w->compute) == 0);
    CHECK(w->ops->stream_sync(w->device, w->up) == 0);
    CHECK(w->ops->stream_sync(w->device, w->down) == 0);
    n_expected = 0;
}

/* Sees each request of the disk. */
static int64_t disturb(void *context, const struct spw_io_request *r, int64_t result)
{
    struct faults *f = context;
    uint64_t draw = atomic_fetch_add(&f->draws, 1);
    if (atomic_load(&f->late) && check_random(&draw) % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(check_random(&draw) % 200000)}, NULL);
    if (result <= 0 || !r->bytes)
        return result;
    for (uint64_t i = r->offset / TILE_BYTES; i * TILE_BYTES < r->offset + r->bytes; i++) {
        if (r->write && (f->dead || f->unwritable[i])) {
            atomic_fetch_add(&f->failed_writes, 1);
            return draw % 2 ? -EIO : -ENOSPC;
        }
        if (!r->write && (f->unreadable[i] || f->flipped[i])) {
            atomic_fetch_add(&f->failed_reads, 1);
            if (f->unreadable[i])
                return -EIO;
            uint64_t at = i * TILE_BYTES < r->offset ? r->offset : i * TILE_BYTES;
            r->memory[at - r->offset] ^= 16;
        }
    }
    return result;
}

static uint32_t disk_frames(const struct world *w)
{
    return w->drive.frames ? w->drive.frames : DISK_FRAMES;
}

static void open_drive(struct world *w)
{
    struct spw_error err = {{0}};
    w->fault = (struct spw_io_fault){disturb, (unsigned)check_range(&w->seed, 0, 3), &w->faults};
    struct spw_io_options io = {.kind = w->drive.kind, .queue_depth = 8, .fault = &w->fault};
    CHECK_MSG(spw_io_open(&w->io, &io, &err) == 0, "%s", err.text);
    bool memory = check_random(&w->seed) % 4 && !access("/dev/shm", W_OK);
    struct spw_disk_options d = {.directory = memory ? "/dev/shm" : "/tmp",
                                 .io = w->io,
                                 .tile_bytes = TILE_BYTES,
                                 .n_frames = disk_frames(w),
                                 .run = MAX_TILES,
                                 .write_limit_bytes = w->drive.limit * TILE_BYTES};
    CHECK_MSG(spw_disk_open(&w->disk, &d, &err) == 0, "%s", err.text);
    w->landing = aligned_alloc(4096, TILE_BYTES);
}

/* Every frame is free or retired: nothing was lost, nothing counted twice. */
static void close_drive(struct world *w)
{
    struct spw_io_usage u;
    uint32_t frame, n_retired = spw_disk_n_retired(w->disk);
    for (uint32_t i = 0; i < disk_frames(w) && !w->drive.limit; i++)
        CHECK(spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == 0);
    CHECK(w->drive.limit || spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == -ENOMEM);
    spw_io_usage(w->io, &u);
    if (!w->drive.faulty) {
        CHECK(n_retired == 0);
        CHECK_MSG(u.written_bytes == w->moves.written && u.read_bytes == w->moves.read,
                  "%llu of %llu written, %llu of %llu read", (unsigned long long)u.written_bytes,
                  (unsigned long long)w->moves.written, (unsigned long long)u.read_bytes,
                  (unsigned long long)w->moves.read);
    }
    spw_disk_close(w->disk);
    spw_io_close(w->io);
    free(w->landing);
}

static uint32_t host_frames(const struct world *w)
{
    return !w->drive.there || w->drive.host ? HOST_FRAMES : w->drive.direct ? 0 : TRANSIT_FRAMES;
}

static void open_streams(struct world *w, uint64_t delay_seed)
{
    struct spw_error err = {{0}};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = delay_seed};
    w->ops = &spw_device_cpu;
    CHECK(w->ops->open(&w->device, &o, &err) == 0);
    CHECK(w->ops->alloc(w->device, DEVICE_FRAMES * TILE_BYTES, &w->device_arena) == 0);
    CHECK(w->ops->alloc_host(w->device, HOST_FRAMES * TILE_BYTES, &w->host_arena) == 0);
    CHECK(w->ops->stream_open(w->device, "compute", &w->compute) == 0);
    CHECK(w->ops->stream_open(w->device, "down", &w->down) == 0);
    CHECK(w->ops->stream_open(w->device, "up", &w->up) == 0);
    CHECK(w->ops->stream_open(w->device, "disk", &w->disk_stream) == 0);
}

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed,
                       const struct drive *drive)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->drive = *drive;
    w->next_word = 1;
    w->faults.late = delay_seed != 0;
    open_streams(w, delay_seed);
    if (drive->there)
        open_drive(w);
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->down,
                               .up = w->up,
                               .device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = DEVICE_FRAMES,
                               .n_host_frames = host_frames(w),
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
                               .max_tiles = MAX_TILES,
                               .first_tile = drive->first_tile,
                               .slot_tiles = 1 + (uint32_t)(seed % 5),
                               .disk = w->disk,
                               .disk_stream = w->disk_stream,
                               .n_disk_frames = disk_frames(w),
                               .direct = drive->direct};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
}

/* Sequences have been closed. */
static void world_close(struct world *w)
{
    struct spw_device_usage u;
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->down);
    w->ops->stream_close(w->device, w->up);
    w->ops->stream_close(w->device, w->disk_stream);
    spw_kv_close(w->kv);
    if (w->disk)
        close_drive(w);
    w->ops->usage(w->device, &u);
    if (!w->drive.faulty)
        CHECK(u.moved_bytes[SPW_LINK_DEVICE_TO_HOST] == w->moves.down &&
              u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] == w->moves.up);
    w->ops->free(w->device, w->device_arena, DEVICE_FRAMES * TILE_BYTES);
    w->ops->free_host(w->device, w->host_arena, HOST_FRAMES * TILE_BYTES);
    w->ops->close(w->device);
}

static uint32_t end_of(const struct model_seq *m)
{
    return spw_waterline_tiles(m->n_tokens);
}

/* Frames of the device in use: no frame of a tier is counted twice, none is lost. */
static uint32_t device_frames(const struct world *w)
{
    const void *seen[DEVICE_FRAMES + 1];
    uint32_t n = 0;
    for (int i = 0; i < N_SEQS; i++)
        for (uint32_t l = 0; l < N_LAYERS && w->seqs[i].seq; l++)
            for (uint32_t t = w->seqs[i].begin[l]; t < end_of(&w->seqs[i]); t++) {
                const void *frame = spw_kv_device_tile(w->seqs[i].seq, l, t);
                uint32_t k = 0;
                while (k < n && seen[k] != frame)
                    k++;
                if (k == n && n < DEVICE_FRAMES)
                    seen[n++] = frame;
            }
    return n;
}

/* Room for so many tiles more on the device, one copied tail a layer included. */
static bool room_for(const struct world *w, uint32_t tiles)
{
    return device_frames(w) + tiles <= DEVICE_FRAMES;
}

/* ---- checks ---- */

static void queue_verify(struct world *w, spw_stream s, const void *tile, const uint32_t *words,
                         uint32_t n)
{
    if (n_expected == MOST_CHECKS)
        drain(w);
    uint32_t *copy = expected_words[n_expected++];
    memcpy(copy, words, n * sizeof *copy);
    struct verify_args a = {.tile = tile, .expected = copy, .n = n};
    CHECK(spw_device_cpu_launch(w->device, s, &verify, &a, sizeof a) == 0);
}

/* Reads the tile's frame as a KV slot would, and notes the loss if it does not come back. */
static void verify_frame(struct world *w, const struct model_seq *m, uint32_t layer, uint32_t tile,
                         const uint32_t *words, uint32_t n)
{
    struct spw_disk_job job;
    memset(w->landing, 0, TILE_BYTES);
    spw_disk_prepare(w->disk, &job, false, spw_kv_disk_frame(m->seq, layer, tile), 1, w->landing);
    int rc = spw_disk_run(&job);
    w->moves.read += TILE_BYTES;
    if (rc) {
        CHECK(w->drive.faulty && (rc == -EIO || rc == -EBADMSG));
        spw_kv_note_loss(m->seq, layer, tile, rc);
    } else {
        struct verify_args a = {(const uint32_t *)(void *)w->landing, words, n};
        run_verify(&a, 0, 0);
    }
}

static void verify_below(struct world *w, const struct model_seq *m, uint32_t layer, uint32_t tile,
                         const uint32_t *words, uint32_t n)
{
    CHECK(spw_kv_wait_written(m->seq, layer, tile) == 0);
    const void *host = spw_kv_host_tile(m->seq, layer, tile);
    uint32_t frame = spw_kv_disk_frame(m->seq, layer, tile);
    CHECK(!host || frame == SPW_DISK_NONE); /* one copy below */
    if (host)
        queue_verify(w, w->up, host, words, n);
    else if (frame != SPW_DISK_NONE)
        verify_frame(w, m, layer, tile, words, n);
    else {
        CHECK(w->drive.faulty && spw_kv_lost(m->seq, layer, tile));
        spw_kv_note_loss(m->seq, layer, tile, spw_kv_lost(m->seq, layer, tile));
    }
    if (!w->drive.faulty && tile < m->disk_end[layer])
        CHECK(frame != SPW_DISK_NONE);
}

/* Tiles below the device that another sequence found lost: one that is on the device for a third
 * has no copy below any more. */
static uint32_t n_lost(const struct model_seq *m, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t t = m->first[layer]; t < m->begin[layer]; t++)
        n += spw_kv_lost(m->seq, layer, t) != 0;
    return n;
}

/* Every tile that a query could see, where it lies. */
static void check_seq(struct world *w, const struct model_seq *m)
{
    uint32_t end = end_of(m);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->begin[l]);
        CHECK(spw_kv_end(m->seq, l) == end);
        CHECK(spw_kv_disk_end(m->seq, l) == m->disk_end[l]);
        CHECK(spw_kv_count_unwritten(m->seq, l, m->first[l], m->begin[l]) <= n_lost(m, l));
        CHECK(spw_kv_count_absent(m->seq, l, m->begin[l], end) == 0);
        for (uint32_t t = m->first[l]; t < end; t++) {
            uint32_t at = t * SPW_TILE_TOKENS, n = m->n_tokens - at;
            n = n < SPW_TILE_TOKENS ? n : SPW_TILE_TOKENS;
            if (t >= m->begin[l]) {
                queue_verify(w, w->compute, spw_kv_device_tile(m->seq, l, t), &m->word[l][at], n);
                continue;
            }
            verify_below(w, m, l, t, &m->word[l][at], n);
            if ((t + 1) * SPW_TILE_TOKENS <= m->n_tokens)
                CHECK(spw_kv_is_readable(m->seq, l, t, t + 1) || spw_kv_lost(m->seq, l, t));
        }
    }
}

/* ---- operations ---- */

static void do_open(struct world *w, struct model_seq *m)
{
    memset(m, 0, sizeof *m);
    m->n_tokens = w->drive.first_tile * SPW_TILE_TOKENS;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        m->first[l] = m->begin[l] = w->drive.first_tile;
    CHECK(spw_kv_seq_open(&m->seq, w->kv) == 0);
}

static void do_close(struct world *w, struct model_seq *m)
{
    CHECK(w->ops->stream_sync(w->device, w->up) == 0);
    spw_kv_seq_close(m->seq);
    m->seq = NULL;
}

static void cut(struct world *w, struct model_seq *m, uint32_t n)
{
    drain(w);
    spw_kv_truncate(m->seq, n);
    if (n < w->drive.first_tile * SPW_TILE_TOKENS)
        n = w->drive.first_tile * SPW_TILE_TOKENS;
    m->n_tokens = n;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        m->first[l] = m->first[l] < end_of(m) ? m->first[l] : end_of(m);
        m->begin[l] = m->begin[l] < end_of(m) ? m->begin[l] : end_of(m);
        if (m->disk_end[l] > n / SPW_TILE_TOKENS)
            m->disk_end[l] = n / SPW_TILE_TOKENS;
    }
}

/* Sequences that lost a tile go on from below it. */
static void recover(struct world *w)
{
    struct spw_kv_loss loss;
    while (spw_kv_take_loss(w->kv, &loss)) {
        struct model_seq *m = w->seqs;
        while (m < w->seqs + N_SEQS && m->seq != loss.seq)
            m++;
        CHECK(w->drive.faulty && m < w->seqs + N_SEQS && loss.rc < 0);
        CHECK(loss.tile >= m->first[loss.layer] && loss.tile < m->begin[loss.layer]);
        uint32_t n = loss.tile * SPW_TILE_TOKENS;
        cut(w, m, spw_kv_can_truncate(m->seq, WINDOW, n) ? n : 0);
    }
}

/* false: the sequence is not what it was. */
static bool do_load(struct world *w, struct model_seq *m, uint32_t layer, uint32_t begin)
{
    uint64_t from_host, from_disk;
    if (!room_for(w, m->begin[layer] - begin))
        return true;
    spw_kv_count_load(m->seq, layer, begin, m->begin[layer], &from_host, &from_disk);
    int rc = spw_kv_load(m->seq, layer, begin);
    CHECK(!rc || (w->drive.faulty && (rc == -EBADMSG || rc == -ENOMEM)));
    if (rc == -EBADMSG)
        recover(w);
    if (rc)
        return rc != -EBADMSG;
    w->moves.up += (from_host + (w->drive.direct ? 0 : from_disk)) * TILE_BYTES;
    w->moves.read += from_disk * TILE_BYTES;
    m->begin[layer] = begin;
    return true;
}

/* The next tokens of every layer, as a chunk does. The tail must be on the device before. */
static void do_grow(struct world *w, struct model_seq *m)
{
    uint32_t from = m->n_tokens, most = MAX_TOKENS - from;
    uint32_t n = (uint32_t)check_range(&w->seed, 1, check_random(&w->seed) % 3 ? 40 : 300);
    n = n > most ? most : n;
    uint32_t end = spw_waterline_tiles(from + n);
    for (uint32_t l = 0; l < N_LAYERS && from % SPW_TILE_TOKENS; l++)
        if (m->begin[l] == end_of(m) && !do_load(w, m, l, end_of(m) - 1))
            return;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        if (from % SPW_TILE_TOKENS && m->begin[l] == end_of(m))
            return; /* no room for the tail */
    if (!n || !room_for(w, N_LAYERS * (end - end_of(m) + 1)))
        return;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        int rc = spw_kv_grow(m->seq, l, from, from + n);
        CHECK(!rc || (w->drive.faulty && rc == -ENOMEM)); /* frames hold what cannot be written */
        if (rc) {
            do_close(w, m);
            return;
        }
        for (uint32_t at = from; at < from + n;) {
            uint32_t tile = at / SPW_TILE_TOKENS, to = (tile + 1) * SPW_TILE_TOKENS;
            to = to < from + n ? to : from + n;
            struct stamp_args a = {spw_kv_device_tile(m->seq, l, tile), at % SPW_TILE_TOKENS,
                                   (to - 1) % SPW_TILE_TOKENS + 1, w->next_word};
            for (; at < to; at++)
                m->word[l][at] = w->next_word++;
            CHECK(spw_device_cpu_launch(w->device, w->compute, &stamp, &a, sizeof a) == 0);
        }
    }
    m->n_tokens = from + n;
}

static void do_spill(struct world *w, struct model_seq *m, uint32_t layer)
{
    uint32_t full = m->n_tokens / SPW_TILE_TOKENS; /* the tail is never spilled */
    if (full <= m->begin[layer] && full <= m->disk_end[layer])
        return;
    uint32_t from = m->begin[layer] < full ? m->begin[layer] : full;
    uint32_t begin = (uint32_t)check_range(&w->seed, from, full), disk_end = m->disk_end[layer];
    if (w->drive.there && disk_end < full)
        disk_end = (uint32_t)check_range(&w->seed, disk_end, full);
    if (w->drive.there && !w->drive.host && disk_end < begin)
        disk_end = begin;
    uint64_t to_host, to_disk;
    spw_kv_count_spill(m->seq, layer, begin, disk_end, &to_host, &to_disk);
    w->moves.down += to_host * TILE_BYTES;
    w->moves.written += to_disk * TILE_BYTES;
    int rc = spw_kv_spill(m->seq, layer, begin, disk_end);
    CHECK(!rc || w->drive.faulty);
    m->begin[layer] = begin > m->begin[layer] ? begin : m->begin[layer];
    m->disk_end[layer] = disk_end;
    if (rc == -ENOMEM) { /* as far as it got */
        CHECK(spw_kv_begin(m->seq, layer) <= m->begin[layer]);
        CHECK(spw_kv_disk_end(m->seq, layer) <= disk_end);
        m->begin[layer] = spw_kv_begin(m->seq, layer);
        m->disk_end[layer] = spw_kv_disk_end(m->seq, layer);
    } else if (rc) {
        CHECK(rc == -EIO || rc == -ENOSPC); /* told once, and all done */
        w->n_failures++;
    }
}

static void do_drop(struct world *w, struct model_seq *m)
{
    uint32_t first = spw_waterline_first(WINDOW, m->n_tokens);
    CHECK(w->ops->stream_sync(w->device, w->up) == 0);
    spw_kv_drop(m->seq, N_LAYERS - 1, first);
    if (m->first[N_LAYERS - 1] < first)
        m->first[N_LAYERS - 1] = first;
    if (m->begin[N_LAYERS - 1] < first)
        m->begin[N_LAYERS - 1] = first;
}

static void do_truncate(struct world *w, struct model_seq *m)
{
    uint32_t n = (uint32_t)check_range(&w->seed, 0, m->n_tokens);
    bool can = spw_kv_can_truncate(m->seq, WINDOW, n);
    uint32_t first = m->first[N_LAYERS - 1], least = w->drive.first_tile;
    CHECK(can == (n <= least * SPW_TILE_TOKENS || first <= least ||
                  first <= spw_waterline_first(WINDOW, n)));
    if (!can)
        n = 0;
    cut(w, m, n);
}

static void do_fork(struct world *w, const struct model_seq *from)
{
    for (int i = 0; i < N_SEQS; i++)
        if (!w->seqs[i].seq) {
            struct spw_kv_seq *seq;
            do_open(w, &w->seqs[i]);
            seq = w->seqs[i].seq;
            spw_kv_seq_fork(seq, from->seq);
            w->seqs[i] = *from;
            w->seqs[i].seq = seq;
            return;
        }
}

/* The drive becomes worse, and better again. */
static void draw_faults(struct world *w)
{
    uint32_t i = (uint32_t)(check_random(&w->seed) % DISK_FRAMES);
    switch (check_random(&w->seed) % 40) {
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
    struct model_seq *m = &w->seqs[check_random(&w->seed) % N_SEQS];
    uint32_t layer = (uint32_t)(check_random(&w->seed) % N_LAYERS);
    if (w->drive.faulty)
        draw_faults(w);
    if (!m->seq) {
        do_open(w, m);
        return;
    }
    switch (check_random(&w->seed) % 16) {
    case 0:
        do_close(w, m);
        return;
    case 1:
        do_fork(w, m);
        break;
    case 2:
        do_truncate(w, m);
        break;
    case 3:
    case 4:
        do_drop(w, m);
        break;
    case 5:
    case 6:
    case 7:
        do_load(w, m, layer, (uint32_t)check_range(&w->seed, m->first[layer], m->begin[layer]));
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        do_spill(w, m, layer);
        break;
    default:
        do_grow(w, m);
    }
    if (m->seq && check_random(&w->seed) % 3 == 0)
        check_seq(w, m);
    recover(w);
}

/* Every frame of the device is free again: one sequence after the other takes them all. */
static void fill_device(struct world *w)
{
    struct spw_device_usage u;
    uint32_t n = 0, disk_end = w->drive.there ? 5 : 0, first = w->drive.first_tile;
    for (int i = 0; i < N_SEQS; i++)
        do_open(w, &w->seqs[i]);
    for (uint32_t k = 0; k < N_SEQS * N_LAYERS && n + MAX_TILES <= DEVICE_FRAMES; k++) {
        struct spw_kv_seq *seq = w->seqs[k / N_LAYERS].seq;
        uint32_t l = k % N_LAYERS;
        CHECK(spw_kv_grow(seq, l, first * SPW_TILE_TOKENS, MAX_TOKENS) == 0 &&
              spw_kv_spill(seq, l, 5, disk_end) == 0 && spw_kv_load(seq, l, first) == 0);
        uint64_t on_host = (5 - first) * TILE_BYTES, on_disk = disk_end ? on_host : 0;
        w->moves.down += disk_end && w->drive.direct ? 0 : on_host;
        w->moves.up += disk_end && w->drive.direct ? 0 : on_host;
        w->moves.written += on_disk;
        w->moves.read += on_disk;
        n += MAX_TILES - first;
    }
    drain(w);
    for (int i = 0; i < N_SEQS; i++)
        do_close(w, &w->seqs[i]);
    w->ops->usage(w->device, &u);
    CHECK(u.device_bytes == spw_align_up(DEVICE_FRAMES * TILE_BYTES, 4096));
}

static uint64_t failed_writes, failed_reads, write_failures;

static void run_round(uint64_t seed, uint64_t delay_seed, const struct drive *drive, int steps)
{
    static struct world w;
    uint64_t wrong = atomic_load(&words_wrong);
    world_open(&w, seed, delay_seed, drive);
    for (int i = 0; i < steps; i++)
        step(&w);
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq)
            check_seq(&w, &w.seqs[i]);
    drain(&w);
    CHECK_MSG(atomic_load(&words_wrong) == wrong, "seed %llu, delays %llu: %llu words",
              (unsigned long long)seed, (unsigned long long)delay_seed,
              (unsigned long long)(atomic_load(&words_wrong) - wrong));
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq)
            do_close(&w, &w.seqs[i]);
    drain(&w);
    failed_writes += w.faults.failed_writes;
    failed_reads += w.faults.failed_reads;
    write_failures += w.n_failures;
    if (!drive->faulty)
        fill_device(&w);
    world_close(&w);
}

/* ---- frames ---- */

/* All device frames can be taken, the next is refused, and closing gives every one of them back. */
static void check_full(void)
{
    static struct world w;
    world_open(&w, 1, 0, &(struct drive){0});
    for (int round = 0; round < 3; round++) {
        uint32_t taken = 0, i = 0;
        struct spw_kv_seq *seqs[N_SEQS];
        for (; i < N_SEQS; i++)
            CHECK(spw_kv_seq_open(&seqs[i], w.kv) == 0);
        int rc = 0;
        for (uint32_t t = 0; t < MAX_TILES && !rc; t++)
            for (i = 0; i < N_SEQS && !rc; i++)
                for (uint32_t l = 0; l < N_LAYERS && !rc; l++) {
                    rc = spw_kv_grow(seqs[i], l, t * SPW_TILE_TOKENS, (t + 1) * SPW_TILE_TOKENS);
                    taken += !rc;
                }
        CHECK(rc == -ENOMEM && taken == DEVICE_FRAMES);
        /* one goes down, one frame is there again */
        CHECK(spw_kv_spill(seqs[0], 0, 1, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        w.moves.down += TILE_BYTES;
        w.moves.up += TILE_BYTES;
        drain(&w);
        for (i = 0; i < N_SEQS; i++)
            spw_kv_seq_close(seqs[i]);
    }
    world_close(&w);
}

/* A disk that takes three tiles, or may be written three times: the fourth stays where it is, and
 * the call may be repeated when there is room, or without the disk. */
static void check_disk_full(const struct drive *drive, int expected)
{
    static struct world w;
    world_open(&w, 3, 0, drive);
    struct model_seq *m = &w.seqs[0];
    do_open(&w, m);
    while (m->n_tokens < MAX_TOKENS)
        do_grow(&w, m);
    for (int repeat = 0; repeat < 2; repeat++) {
        uint64_t to_host, to_disk;
        spw_kv_count_spill(m->seq, 0, 5, 5, &to_host, &to_disk);
        CHECK(to_disk == (repeat ? 2u : 5u));
        CHECK(spw_kv_spill(m->seq, 0, 5, 5) == expected);
        m->begin[0] = m->disk_end[0] = 3;
        check_seq(&w, m);
    }
    CHECK(spw_kv_spill(m->seq, 0, 5, 3) == 0); /* the host has room */
    m->begin[0] = 5;
    check_seq(&w, m);
    do_load(&w, m, 0, 0);
    check_seq(&w, m);
    drain(&w);
    CHECK(atomic_load(&words_wrong) == 0);
    do_close(&w, m);
    w.moves.written += 3 * TILE_BYTES;
    w.moves.down += (drive->direct ? 2u : 5u) * TILE_BYTES;
    world_close(&w);
}

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not: what is under way then
 * comes to its end, and everything can be closed. */
static void check_lost_device(const struct drive *drive)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct spw_kv_seq *a, *b;
        world_open(&w, 3 + (uint64_t)n, 0, drive);
        CHECK(spw_kv_seq_open(&a, w.kv) == 0 && spw_kv_seq_open(&b, w.kv) == 0);
        spw_device_cpu_fail_nth(w.device, n);
        rc = spw_kv_grow(a, 0, 0, MAX_TOKENS);
        rc = rc ? rc : spw_kv_spill(a, 0, 5, drive->host ? 3 : 5);
        rc = rc ? rc : spw_kv_load(a, 0, 1);
        spw_kv_seq_fork(b, a);
        rc = rc ? rc : spw_kv_spill(b, 0, 4, 4);
        rc = rc ? rc : spw_kv_spill(a, 0, 4, 4);
        rc = rc ? rc : spw_kv_load(b, 0, 0);
        rc = rc ? rc : w.ops->stream_sync(w.device, w.disk_stream);
        rc = rc ? rc : w.ops->stream_sync(w.device, w.compute);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(w.device, -1);
        spw_kv_seq_close(a);
        spw_kv_seq_close(b);
        world_close(&w);
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
    int rounds = argc > 1 ? atoi(argv[1]) : RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 25 : 120;
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_tier();
    for (int i = 0; i < 100; i++)
        check_tier_series(&seed);
    check_full();
    for (int i = 0; i < 2; i++) {
        struct drive d = {.there = true, .direct = i, .host = true, .frames = 3};
        check_disk_full(&d, -ENOMEM);
        d = (struct drive){.there = true, .direct = i, .host = true, .limit = 3};
        check_disk_full(&d, -EDQUOT);
        d = (struct drive){.there = true, .direct = i, .faulty = true};
        check_lost_device(&d);
        d.host = true;
        check_lost_device(&d);
    }
    for (int i = 0; i < rounds; i++) {
        struct drive d = {.there = i % 4, .faulty = i % 4 == 3};
        d.direct = check_random(&seed) % 2;
        d.host = check_random(&seed) % 2;
        d.first_tile = check_random(&seed) % 2;
        d.kind = check_random(&seed) % 2 ? SPW_IO_AUTO : SPW_IO_THREADS;
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d,
                  300);
    }
    fprintf(stderr,
            "%llu words compared; %llu requests failed to write, %llu to read; %llu writes given "
            "up\n",
            (unsigned long long)atomic_load(&words_checked), (unsigned long long)failed_writes,
            (unsigned long long)failed_reads, (unsigned long long)write_failures);
    CHECK(rounds < 50 || (failed_writes && failed_reads && write_failures));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
