/* Tiles of the KV cache that lie in files of others, against a model in plain memory: sequences
 * begin with adopted tiles, in several pieces, and imported ones behind them; then they grow,
 * spill, load, drop, truncate, fork and close in a random order, as in test_kv_cache.c, whose
 * contents and checks these are. Now and then some tiles are exported, wherever they are just then.
 *
 * The drive is read directly or by way of host frames, with a scratch file of its own or without
 * one, with room on the host or without; by both I/O engines. Files are opened for reading only.
 * Then files change while they are in use: bytes flip, the end is cut off. What is read is right,
 * or it is lost and said so. In the end every frame is free and every file was let go.
 *
 *   test_kv_adopt [rounds] */
#include "tests/engine_run.h"

#include "offload/kv_adopt.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <xxhash.h>

enum {
    N_LAYERS = 3, /* the last one slides */
    N_SEQS = 4,
    N_FILES = 3,
    MAX_TILES = 8,
    MAX_TOKENS = MAX_TILES * SPW_TILE_TOKENS,
    WINDOW = 200,
    STRIDE = 8, /* words: a token's lie at both ends of its stride */
    TILE_BYTES = SPW_TILE_TOKENS * STRIDE * 4,
    RECORDS = N_LAYERS * MAX_TILES, /* of a file */
    HEAD_BYTES = 3 * 4096,          /* before them */
    DEVICE_FRAMES = 60,
    HOST_FRAMES = N_SEQS * RECORDS,
    DISK_FRAMES = N_SEQS * RECORDS,
    TRANSIT_FRAMES = 3,
    MOST_CHECKS = 1 << 14,
};

struct drive {
    bool direct, host, scratch, faulty;
    enum spw_io_kind kind;
};

static const uint8_t sliding[N_LAYERS] = {0, 0, 1};

struct model_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens;
    uint32_t word[N_LAYERS][MAX_TOKENS];
    uint32_t first[N_LAYERS], begin[N_LAYERS], disk_end[N_LAYERS];
};

/* A file as it should be, and its two descriptors. */
struct file {
    int reads, writes;
    uint32_t word[N_LAYERS][MAX_TOKENS];
    uint8_t *records; /* [N_LAYERS][MAX_TILES][TILE_BYTES] */
    uint64_t sums[RECORDS];
    bool was_bad;
};

struct world {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up, disk_stream;
    void *device_arena, *host_arena;
    struct drive drive;
    struct spw_io *io;
    struct spw_io_fault fault;
    _Atomic uint64_t draws;
    struct spw_disk *disk;
    uint8_t *landing; /* [MAX_TILES][TILE_BYTES] */
    struct spw_kv *kv;
    struct file files[N_FILES];
    struct model_seq seqs[N_SEQS];
    uint64_t seed, moved_down, moved_up, written, read;
    uint32_t next_word, n_pieces, n_damaged, n_lost;
};

/* One adoption. */
struct piece {
    struct world *w;
    struct file *f;
    uint32_t n;
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

static void set_words(uint32_t *tile, uint32_t from, uint32_t to, uint32_t word)
{
    for (uint32_t i = from; i < to; i++)
        tile[i * STRIDE] = tile[i * STRIDE + STRIDE - 1] = word + i - from;
}

static void run_stamp(const void *args, size_t task, unsigned worker)
{
    const struct stamp_args *a = args;
    (void)task;
    (void)worker;
    set_words(a->tile, a->from, a->to, a->word);
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
    snprintf(path, sizeof path, "%s/spw_adopt_XXXXXX", dir);
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
        set_words(tile, 0, SPW_TILE_TOKENS, w->next_word);
        for (uint32_t i = 0; i < SPW_TILE_TOKENS; i++)
            f->word[r / MAX_TILES][at + i] = w->next_word++;
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
    struct file *f = &w->files[check_random(&w->seed) % N_FILES];
    uint32_t record = (uint32_t)check_range(&w->seed, 0, RECORDS - 1);
    uint64_t at = place_of(record) + check_random(&w->seed) % TILE_BYTES;
    uint8_t byte = f->records[at - HEAD_BYTES] ^ 4;
    switch (check_random(&w->seed) % 40) {
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

/* ---- the world ---- */

/* Expected words of the checks that are queued. */
static uint32_t expected_words[MOST_CHECKS][SPW_TILE_TOKENS];
static size_t n_expected;

static void drain(struct world *w)
{
    CHECK(w->ops->stream_sync(w->device, w->compute) == 0);
    CHECK(w->ops->stream_sync(w->device, w->up) == 0);
    CHECK(w->ops->stream_sync(w->device, w->down) == 0);
    n_expected = 0;
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

static void open_drive(struct world *w)
{
    struct spw_error err = {{0}};
    w->fault = (struct spw_io_fault){delay, (unsigned)check_range(&w->seed, 0, 3), w};
    struct spw_io_options io = {.kind = w->drive.kind, .queue_depth = 8, .fault = &w->fault};
    CHECK_MSG(spw_io_open(&w->io, &io, &err) == 0, "%s", err.text);
    bool memory = check_random(&w->seed) % 4 && !access("/dev/shm", W_OK);
    const char *dir = memory ? "/dev/shm" : "/tmp";
    struct spw_disk_options d = {.directory = w->drive.scratch ? dir : NULL,
                                 .io = w->io,
                                 .tile_bytes = TILE_BYTES,
                                 .n_frames = w->drive.scratch ? DISK_FRAMES : 0,
                                 .run = MAX_TILES};
    CHECK_MSG(spw_disk_open(&w->disk, &d, &err) == 0, "%s", err.text);
    for (int i = 0; i < N_FILES; i++)
        open_file(w, &w->files[i], dir);
    w->landing = aligned_alloc(4096, MAX_TILES * TILE_BYTES);
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
    open_streams(w, delay_seed);
    open_drive(w);
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->down,
                               .up = w->up,
                               .device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = DEVICE_FRAMES,
                               .n_host_frames = drive->host     ? HOST_FRAMES
                                                : drive->direct ? 0
                                                                : TRANSIT_FRAMES,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
                               .max_tiles = MAX_TILES,
                               .slot_tiles = 1 + (uint32_t)(seed % 5),
                               .disk = w->disk,
                               .disk_stream = w->disk_stream,
                               .n_disk_frames = drive->scratch ? DISK_FRAMES : 0,
                               .direct = drive->direct};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
}

/* Sequences have been closed: every frame is free, every file let go. */
static void world_close(struct world *w)
{
    struct spw_device_usage u;
    struct spw_io_usage io;
    uint32_t frame;
    CHECK_MSG(!w->n_pieces, "%u pieces are left", w->n_pieces);
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->down);
    w->ops->stream_close(w->device, w->up);
    w->ops->stream_close(w->device, w->disk_stream);
    spw_kv_close(w->kv);
    for (uint32_t i = 0; i < DISK_FRAMES && w->drive.scratch; i++)
        CHECK(spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == 0);
    CHECK(spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == -ENOMEM);
    spw_io_usage(w->io, &io);
    w->ops->usage(w->device, &u);
    if (!w->drive.faulty) {
        CHECK(!w->n_damaged && !w->n_lost);
        CHECK(u.moved_bytes[SPW_LINK_DEVICE_TO_HOST] == w->moved_down);
        CHECK(u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] == w->moved_up);
        CHECK(io.written_bytes == w->written && io.read_bytes == w->read);
    }
    spw_disk_close(w->disk);
    spw_io_close(w->io);
    for (int i = 0; i < N_FILES; i++)
        close_file(&w->files[i]);
    free(w->landing);
    w->ops->free(w->device, w->device_arena, DEVICE_FRAMES * TILE_BYTES);
    w->ops->free_host(w->device, w->host_arena, HOST_FRAMES * TILE_BYTES);
    w->ops->close(w->device);
}

static uint32_t end_of(const struct model_seq *m)
{
    return spw_waterline_tiles(m->n_tokens);
}

/* Room for so many tiles more on the device; shared ones counted more than once. */
static bool room_for(const struct world *w, uint32_t tiles)
{
    for (int i = 0; i < N_SEQS; i++)
        for (uint32_t l = 0; l < N_LAYERS && w->seqs[i].seq; l++)
            tiles += end_of(&w->seqs[i]) - w->seqs[i].begin[l];
    return tiles <= DEVICE_FRAMES;
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
    w->read += TILE_BYTES;
    if (rc) {
        CHECK(w->drive.faulty && (rc == -EBADMSG || rc == -ENODATA));
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
}

static void check_lines(const struct model_seq *m)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->begin[l]);
        CHECK(spw_kv_end(m->seq, l) == end_of(m));
        CHECK(spw_kv_disk_end(m->seq, l) == m->disk_end[l]);
        CHECK(spw_kv_count_unwritten(m->seq, l, m->first[l], m->begin[l]) == 0);
        CHECK(spw_kv_count_absent(m->seq, l, m->begin[l], end_of(m)) == 0);
    }
}

/* Tokens of the sequence in a tile. */
static uint32_t tokens_in(const struct model_seq *m, uint32_t tile)
{
    uint32_t n = m->n_tokens - tile * SPW_TILE_TOKENS;
    return n < SPW_TILE_TOKENS ? n : SPW_TILE_TOKENS;
}

/* Every tile that a query could see, where it lies. */
static void check_seq(struct world *w, const struct model_seq *m)
{
    check_lines(m);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t t = m->first[l]; t < end_of(m); t++) {
            const uint32_t *words = &m->word[l][t * SPW_TILE_TOKENS];
            uint32_t n = tokens_in(m, t);
            if (t >= m->begin[l]) {
                queue_verify(w, w->compute, spw_kv_device_tile(m->seq, l, t), words, n);
                continue;
            }
            verify_below(w, m, l, t, words, n);
            if (n == SPW_TILE_TOKENS)
                CHECK(spw_kv_is_readable(m->seq, l, t, t + 1) || spw_kv_lost(m->seq, l, t));
        }
}

/* ---- operations ---- */

static void do_open(struct world *w, struct model_seq *m)
{
    memset(m, 0, sizeof *m);
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
        w->n_lost++;
    }
}

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

static struct spw_disk_adoption adoption(struct world *w, struct file *f, uint32_t record,
                                         uint32_t n)
{
    struct piece *p = malloc(sizeof *p);
    *p = (struct piece){w, f, n};
    return (struct spw_disk_adoption){.fd = f->reads,
                                      .offset = place_of(record),
                                      .n = n,
                                      .sums = f->sums + record,
                                      .released = released,
                                      .damaged = damaged,
                                      .context = p};
}

/* Tiles [from, to) of a layer, in several pieces, as from several packs. */
static void adopt_layer(struct world *w, struct model_seq *m, struct file *f, uint32_t layer,
                        uint32_t from, uint32_t to)
{
    for (uint32_t n; from < to; from += n) {
        uint32_t frame;
        n = (uint32_t)check_range(&w->seed, 1, to - from);
        struct spw_disk_adoption a = adoption(w, f, layer * MAX_TILES + from, n);
        CHECK(spw_disk_adopt(w->disk, &a, &frame) == 0);
        w->n_pieces++;
        CHECK(spw_kv_adopt(m->seq, layer, from, frame, n) == 0);
        m->begin[layer] = m->disk_end[layer] = from + n;
    }
}

/* The tokens of a file, from its first one on: so many tiles adopted, the rest imported. Nothing is
 * there yet. */
static void do_begin(struct world *w, struct model_seq *m)
{
    struct file *f = &w->files[check_random(&w->seed) % N_FILES];
    uint32_t n = (uint32_t)check_range(&w->seed, 1, MAX_TOKENS), end = spw_waterline_tiles(n);
    uint32_t adopted = (uint32_t)check_range(&w->seed, 0, n / SPW_TILE_TOKENS);
    if (check_random(&w->seed) % 3 == 0)
        n = (end = adopted = n / SPW_TILE_TOKENS) * SPW_TILE_TOKENS; /* only whole tiles */
    if (!room_for(w, N_LAYERS * (end - adopted) + 3))
        return;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        uint32_t from = sliding[l] ? spw_waterline_first(WINDOW, n) : 0, at = from;
        m->first[l] = m->begin[l] = from < end ? from : end;
        if (from < adopted && (!sliding[l] || check_random(&w->seed) % 2))
            adopt_layer(w, m, f, l, from, at = adopted);
        CHECK(spw_kv_import(m->seq, l, at, n, f->records + (l * MAX_TILES + at) * TILE_BYTES) == 0);
        w->moved_up += (end - at) * TILE_BYTES;
        memcpy(m->word[l], f->word[l], n * sizeof m->word[l][0]);
    }
    m->n_tokens = n;
}

/* false: the sequence is not what it was. */
static bool do_load(struct world *w, struct model_seq *m, uint32_t layer, uint32_t begin)
{
    uint64_t from_host, from_disk;
    if (!room_for(w, m->begin[layer] - begin))
        return true;
    spw_kv_count_load(m->seq, layer, begin, m->begin[layer], &from_host, &from_disk);
    int rc = spw_kv_load(m->seq, layer, begin);
    CHECK(!rc || (w->drive.faulty && rc == -EBADMSG));
    if (rc) {
        recover(w);
        return false;
    }
    w->moved_up += (from_host + (w->drive.direct ? 0 : from_disk)) * TILE_BYTES;
    w->read += from_disk * TILE_BYTES;
    m->begin[layer] = begin;
    return true;
}

static void append(struct world *w, struct model_seq *m, uint32_t layer, uint32_t from, uint32_t to)
{
    CHECK(spw_kv_grow(m->seq, layer, from, to) == 0);
    for (uint32_t at = from, stop; at < to; at = stop) {
        uint32_t tile = at / SPW_TILE_TOKENS;
        stop = (tile + 1) * SPW_TILE_TOKENS < to ? (tile + 1) * SPW_TILE_TOKENS : to;
        struct stamp_args a = {spw_kv_device_tile(m->seq, layer, tile), at % SPW_TILE_TOKENS,
                               (stop - 1) % SPW_TILE_TOKENS + 1, w->next_word};
        CHECK(spw_device_cpu_launch(w->device, w->compute, &stamp, &a, sizeof a) == 0);
        for (uint32_t i = at; i < stop; i++)
            m->word[layer][i] = w->next_word++;
    }
}

/* The next tokens of every layer, as a chunk does. The tail must be on the device before. */
static void do_grow(struct world *w, struct model_seq *m)
{
    uint32_t from = m->n_tokens, most = MAX_TOKENS - from;
    uint32_t n = (uint32_t)check_range(&w->seed, 1, check_random(&w->seed) % 3 ? 40 : 300);
    n = n > most ? most : n;
    for (uint32_t l = 0; l < N_LAYERS && from % SPW_TILE_TOKENS; l++)
        if (m->begin[l] == end_of(m) && !do_load(w, m, l, end_of(m) - 1))
            return;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        if (from % SPW_TILE_TOKENS && m->begin[l] == end_of(m))
            return; /* no room for the tail */
    if (!n || !room_for(w, N_LAYERS * (spw_waterline_tiles(from + n) - end_of(m) + 1)))
        return;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        append(w, m, l, from, from + n);
    m->n_tokens = from + n;
}

static void do_spill(struct world *w, struct model_seq *m, uint32_t layer)
{
    uint32_t full = m->n_tokens / SPW_TILE_TOKENS, disk_end = m->disk_end[layer]; /* not the tail */
    if (!w->drive.host && !w->drive.scratch && full > disk_end)
        full = disk_end; /* there is no other place */
    if (full <= m->begin[layer] && full <= disk_end)
        return;
    uint32_t from = m->begin[layer] < full ? m->begin[layer] : full;
    uint32_t begin = (uint32_t)check_range(&w->seed, from, full);
    if (w->drive.scratch && disk_end < full)
        disk_end = (uint32_t)check_range(&w->seed, disk_end, full);
    if (w->drive.scratch && !w->drive.host && disk_end < begin)
        disk_end = begin;
    uint64_t to_host, to_disk;
    spw_kv_count_spill(m->seq, layer, begin, disk_end, &to_host, &to_disk);
    w->moved_down += to_host * TILE_BYTES;
    w->written += to_disk * TILE_BYTES;
    CHECK(spw_kv_spill(m->seq, layer, begin, disk_end) == 0);
    m->begin[layer] = begin > m->begin[layer] ? begin : m->begin[layer];
    m->disk_end[layer] = disk_end;
}

static void do_drop(struct world *w, struct model_seq *m)
{
    uint32_t first = spw_waterline_first(WINDOW, m->n_tokens), l = N_LAYERS - 1;
    CHECK(w->ops->stream_sync(w->device, w->up) == 0);
    spw_kv_drop(m->seq, l, first);
    first = first < end_of(m) ? first : end_of(m);
    m->first[l] = m->first[l] < first ? first : m->first[l];
    m->begin[l] = m->begin[l] < first ? first : m->begin[l];
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

/* Some tiles of a layer, all at once: the right words, and nothing has changed. */
static void do_export(struct world *w, struct model_seq *m, uint32_t layer)
{
    uint32_t begin = (uint32_t)check_range(&w->seed, m->first[layer], end_of(m));
    uint32_t end = (uint32_t)check_range(&w->seed, begin, end_of(m));
    uint64_t from_device, from_disk;
    if (check_random(&w->seed) % 2)
        spw_kv_finish_writes(w->kv);
    memset(w->landing, 0, MAX_TILES * TILE_BYTES);
    spw_kv_count_export(m->seq, layer, begin, end, &from_device, &from_disk);
    int rc = spw_kv_export(m->seq, layer, begin, end, w->landing);
    CHECK(!rc || (w->drive.faulty && rc == -EBADMSG));
    if (rc)
        return;
    w->moved_down += from_device * TILE_BYTES;
    w->read += from_disk * TILE_BYTES;
    check_lines(m);
    for (uint32_t t = begin; t < end; t++) {
        struct verify_args a = {(const uint32_t *)(void *)(w->landing + (t - begin) * TILE_BYTES),
                                &m->word[layer][t * SPW_TILE_TOKENS], tokens_in(m, t)};
        run_verify(&a, 0, 0);
    }
}

static void do_truncate(struct world *w, struct model_seq *m)
{
    uint32_t n = (uint32_t)check_range(&w->seed, 0, m->n_tokens);
    cut(w, m, spw_kv_can_truncate(m->seq, WINDOW, n) ? n : 0);
}

static void step(struct world *w)
{
    struct model_seq *m = &w->seqs[check_random(&w->seed) % N_SEQS];
    uint32_t layer = (uint32_t)(check_random(&w->seed) % N_LAYERS);
    if (w->drive.faulty)
        draw_fault(w);
    if (!m->seq)
        do_open(w, m);
    else if (!m->n_tokens)
        do_begin(w, m);
    else
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
            do_drop(w, m);
            break;
        case 4:
        case 5:
        case 6:
            do_load(w, m, layer, (uint32_t)check_range(&w->seed, m->first[layer], m->begin[layer]));
            break;
        case 7:
        case 8:
        case 9:
            do_spill(w, m, layer);
            break;
        case 10:
        case 11:
            do_export(w, m, layer);
            break;
        default:
            do_grow(w, m);
        }
    recover(w);
    if (check_random(&w->seed) % 3 == 0)
        check_seq(w, m);
    recover(w);
}

/* Every frame of the device is free again. */
static void fill_device(struct world *w)
{
    struct spw_kv_seq *seqs[DEVICE_FRAMES / MAX_TILES + 1];
    uint32_t n = 0;
    for (uint32_t left = DEVICE_FRAMES; left; n++) {
        uint32_t tiles = left < MAX_TILES ? left : MAX_TILES;
        CHECK(spw_kv_seq_open(&seqs[n], w->kv) == 0);
        CHECK(spw_kv_grow(seqs[n], 0, 0, tiles * SPW_TILE_TOKENS) == 0);
        left -= tiles;
    }
    CHECK(spw_kv_grow(seqs[0], 1, 0, 1) == -ENOMEM);
    spw_kv_truncate(seqs[0], 0);
    drain(w);
    while (n)
        spw_kv_seq_close(seqs[--n]);
}

static uint64_t losses, damages;

static void run_round(uint64_t seed, uint64_t delay_seed, const struct drive *drive, int steps)
{
    static struct world w;
    world_open(&w, seed, delay_seed, drive);
    for (int i = 0; i < steps; i++)
        step(&w);
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq) {
            check_seq(&w, &w.seqs[i]);
            recover(&w);
        }
    drain(&w);
    CHECK_MSG(!atomic_exchange(&words_wrong, 0), "seed %llu, delays %llu: wrong words",
              (unsigned long long)seed, (unsigned long long)delay_seed);
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq)
            do_close(&w, &w.seqs[i]);
    drain(&w);
    losses += w.n_lost;
    damages += w.n_damaged;
    fill_device(&w);
    world_close(&w);
}

/* ---- one thing at a time ---- */

static const struct drive plain = {.direct = true};

/* What is refused changes nothing, and leaves frames with the caller. */
static void check_refused(void)
{
    static struct world w;
    world_open(&w, 1, 0, &plain);
    struct model_seq *m = &w.seqs[0];
    struct spw_kv_seq *seqs[DEVICE_FRAMES / MAX_TILES + 1];
    uint32_t frame, n = 0;
    do_open(&w, m);
    struct spw_disk_adoption a = adoption(&w, &w.files[0], 0, MAX_TILES);
    CHECK(spw_disk_adopt(w.disk, &a, &frame) == 0);
    w.n_pieces++;
    CHECK(spw_kv_adopt(m->seq, 0, 1, frame, MAX_TILES) == -E2BIG);
    CHECK(spw_kv_import(m->seq, 0, 1, MAX_TOKENS + 1, w.files[0].records) == -E2BIG);
    spw_alloc_fail_nth(0);
    CHECK(spw_kv_adopt(m->seq, 0, 0, frame, MAX_TILES) == -ENOMEM);
    spw_alloc_fail_nth(-1);
    check_lines(m);
    CHECK(w.n_pieces == 1 && spw_kv_adopt(m->seq, 0, 0, frame, MAX_TILES) == 0);
    for (int rc = 0; !rc; n += !rc) { /* until the device is full */
        CHECK(spw_kv_seq_open(&seqs[n], w.kv) == 0);
        rc = spw_kv_import(seqs[n], 1, 0, MAX_TOKENS, w.files[0].records);
        CHECK(!rc || (rc == -ENOMEM && !spw_kv_end(seqs[n], 1)));
    }
    CHECK(n == DEVICE_FRAMES / MAX_TILES);
    CHECK(spw_kv_import(seqs[n], 1, 3, 5 * SPW_TILE_TOKENS + 1, w.files[0].records) == 0);
    CHECK(spw_kv_first(seqs[n], 1) == 3 && spw_kv_end(seqs[n], 1) == 6);
    for (uint32_t i = 0; i <= n; i++)
        spw_kv_seq_close(seqs[i]);
    do_close(&w, m);
    w.moved_up += (n * MAX_TILES + 3) * TILE_BYTES;
    world_close(&w);
}

/* A tile that two sequences share is damaged: the file is told once, each sequence finds its own
 * loss, and the file is let go when both have. */
static void check_shared_loss(bool direct)
{
    static struct world w;
    world_open(&w, 2, 0, &(struct drive){.direct = direct, .faulty = true});
    struct model_seq *m = &w.seqs[0];
    struct spw_kv_loss loss;
    do_open(&w, m);
    adopt_layer(&w, m, &w.files[0], 0, 0, 1); /* one piece of one tile */
    memcpy(m->word[0], w.files[0].word[0], SPW_TILE_TOKENS * sizeof m->word[0][0]);
    w.files[0].records[5] ^= 1;
    write_records(&w.files[0]);
    w.files[0].was_bad = true;
    do_fork(&w, m);
    CHECK(spw_kv_load(m->seq, 0, 0) == -EBADMSG && w.n_damaged == 1 && w.n_pieces == 1);
    CHECK(spw_kv_take_loss(w.kv, &loss) && loss.seq == m->seq && loss.tile == 0);
    CHECK(spw_kv_export(w.seqs[1].seq, 0, 0, 1, w.landing) == -EBADMSG);
    CHECK(spw_kv_take_loss(w.kv, &loss) && loss.seq == w.seqs[1].seq);
    CHECK(!spw_kv_take_loss(w.kv, &loss) && w.n_damaged == 1);
    spw_kv_truncate(m->seq, 0);
    CHECK(w.n_pieces == 1);
    spw_kv_truncate(w.seqs[1].seq, 0);
    CHECK(w.n_pieces == 0);
    do_close(&w, &w.seqs[1]);
    do_close(&w, m);
    world_close(&w);
}

static void check_words(const struct world *w, uint32_t layer, uint32_t tile, const uint8_t *bytes,
                        uint32_t n)
{
    struct verify_args a = {(const uint32_t *)(const void *)bytes,
                            &w->files[0].word[layer][tile * SPW_TILE_TOKENS], n};
    run_verify(&a, 0, 0);
}

/* What is near the present: the sink and, apart from it, the window go into a cache that has
 * neither host nor disk, come out again, and are cut back. */
static void check_sink(void)
{
    static struct world w;
    world_open(&w, 4, 0, &plain);
    struct spw_kv_options o = {.ops = w.ops,
                               .device = w.device,
                               .compute = w.compute,
                               .down = w.down,
                               .up = w.up,
                               .device_arena = w.device_arena,
                               .n_device_frames = 4,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
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
        CHECK(spw_kv_can_truncate(seq, WINDOW, 6 * SPW_TILE_TOKENS));
        CHECK(!spw_kv_can_truncate(seq, WINDOW, 5 * SPW_TILE_TOKENS));
        CHECK(spw_kv_export(seq, 0, 0, 1, w.landing) == 0);
        CHECK(spw_kv_export(seq, 0, 4, 7, w.landing + TILE_BYTES) == 0);
        check_words(&w, 0, 0, w.landing, SPW_TILE_TOKENS);
        for (uint32_t t = 4; t < 7; t++)
            check_words(&w, 0, t, w.landing + (t - 3) * TILE_BYTES, t < 6 ? SPW_TILE_TOKENS : 98);
        spw_kv_truncate(seq, 0);
        CHECK(spw_kv_end(seq, 0) == 0);
        w.moved_up += 4 * TILE_BYTES;
        w.moved_down += 4 * TILE_BYTES;
    }
    CHECK(!atomic_load(&words_wrong));
    spw_kv_seq_close(seq);
    drain(&w);
    spw_kv_close(kv);
    world_close(&w);
}

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not: what is under way then
 * comes to its end, and everything can be closed. */
static void check_lost_device(const struct drive *drive)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct model_seq *m = &w.seqs[0];
        world_open(&w, 3 + (uint64_t)n, 0, drive);
        do_open(&w, m);
        adopt_layer(&w, m, &w.files[0], 0, 0, 5);
        spw_device_cpu_fail_nth(w.device, n);
        rc = spw_kv_import(m->seq, 0, 5, MAX_TOKENS, w.files[0].records);
        rc = rc ? rc : spw_kv_load(m->seq, 0, 3);
        rc = rc ? rc : spw_kv_spill(m->seq, 0, 7, drive->host ? 5 : 7);
        rc = rc ? rc : spw_kv_export(m->seq, 0, 0, MAX_TILES, w.landing);
        rc = rc ? rc : w.ops->stream_sync(w.device, w.compute);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(w.device, -1);
        spw_kv_seq_close(m->seq);
        world_close(&w);
        CHECK(n < 1000);
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 30 : 120;
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_refused();
    check_sink();
    for (int i = 0; i < 2; i++) {
        check_shared_loss(i);
        check_lost_device(&(struct drive){.direct = i, .host = true, .faulty = true});
        check_lost_device(&(struct drive){.direct = i, .scratch = true, .faulty = true});
    }
    for (int i = 0; i < rounds; i++) {
        struct drive d = {.faulty = i % 3 == 2,
                          .direct = check_random(&seed) % 2,
                          .host = check_random(&seed) % 2,
                          .scratch = check_random(&seed) % 2,
                          .kind = check_random(&seed) % 2 ? SPW_IO_AUTO : SPW_IO_THREADS};
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d,
                  300);
    }
    fprintf(stderr, "%llu words compared; %llu tiles damaged, %llu losses\n",
            (unsigned long long)atomic_load(&words_checked), (unsigned long long)damages,
            (unsigned long long)losses);
    CHECK(rounds < 50 || (damages && losses));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
