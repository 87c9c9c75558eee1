/* Sequences of a KV cache beside what they must hold, in plain memory, and everything that may be
 * done to both.
 *
 * A tile's contents are one word a token, written by kernels queued on `compute` as attention's own
 * appends are. The mirror knows what every token of every sequence must be; at any time a check is
 * queued that reads each device tile on `compute`, and each host copy on `up` as the ring does;
 * what lies on the disk is read from its frame. So a missing order between streams, a frame given
 * back too early or a shared tile that is written shows as a wrong word. Bytes over every link are
 * summed and compared. The last layer slides. */
#ifndef SPW_TESTS_UNIT_OFFLOAD_KV_MIRROR_H
#define SPW_TESTS_UNIT_OFFLOAD_KV_MIRROR_H

#include "offload/kv/kv_tile.h"
#include "tests/unit/offload/kv_world.h"

#include <stdatomic.h>

enum {
    MIRROR_WINDOW = 200,
    MIRROR_SLIDING = KV_LAYERS - 1,
    MIRROR_MOST_TILES = 12,
    MIRROR_MOST_TOKENS = MIRROR_MOST_TILES * SPW_TILE_TOKENS,
    MIRROR_STRIDE = 8, /* words: a token's lie at both ends of its stride */
    MIRROR_TILE_BYTES = SPW_TILE_TOKENS * MIRROR_STRIDE * 4,
    MIRROR_MOST_FRAMES = KV_SEQS * KV_LAYERS * MIRROR_MOST_TILES,
    MIRROR_MOST_CHECKS = 1 << 14,
};

static const uint8_t mirror_sliding[KV_LAYERS] = {[MIRROR_SLIDING] = SPW_LAYER_SLIDING};
static const struct spw_residency mirror_residency[SPW_LAYER_KINDS] = {
    [SPW_LAYER_SLIDING] = {.window = MIRROR_WINDOW}};

/* What one sequence must hold, and where its lines must be. */
struct mirror_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens;
    uint32_t word[KV_LAYERS][MIRROR_MOST_TOKENS];
    uint32_t first[KV_LAYERS], begin[KV_LAYERS], disk_end[KV_LAYERS];
};

/* Tiles that must have moved. */
struct mirror_moves {
    uint64_t down, up, written, read;
};

struct mirror {
    struct kv_world w;
    struct mirror_seq seqs[KV_SEQS];
    struct mirror_moves moves;
    uint8_t *memory; /* [max_tiles][MIRROR_TILE_BYTES] */
    uint32_t max_tokens, next_word, n_lost, n_failed_writes;
    uint32_t n_ahead; /* tiles of the load that goes on */
    uint64_t n_begun; /* loads that went on beside something else */
};

/* ---- kernels ---- */

struct mirror_stamp {
    uint32_t *tile;
    uint32_t from, to, word; /* word + i goes to token i of [from, to) */
};

struct mirror_verify {
    const uint32_t *tile;
    const uint32_t *expected; /* stays until the streams are drained */
    uint32_t n;
};

static _Atomic uint64_t mirror_wrong, mirror_checked; /* words */

static inline void mirror_set_words(uint32_t *tile, uint32_t from, uint32_t to, uint32_t word)
{
    for (uint32_t i = from; i < to; i++)
        tile[i * MIRROR_STRIDE] = tile[i * MIRROR_STRIDE + MIRROR_STRIDE - 1] = word + i - from;
}

static inline void mirror_compare(const void *tile, const uint32_t *expected, uint32_t n)
{
    const uint32_t *words = tile;
    for (uint32_t i = 0; i < n; i++)
        if (words[i * MIRROR_STRIDE] != expected[i] ||
            words[i * MIRROR_STRIDE + MIRROR_STRIDE - 1] != expected[i])
            atomic_fetch_add(&mirror_wrong, 1);
    atomic_fetch_add(&mirror_checked, n);
}

static inline void mirror_run_stamp(const void *args, size_t task, unsigned worker)
{
    const struct mirror_stamp *a = args;
    (void)task;
    (void)worker;
    mirror_set_words(a->tile, a->from, a->to, a->word);
}

static inline void mirror_run_verify(const void *args, size_t task, unsigned worker)
{
    const struct mirror_verify *a = args;
    (void)task;
    (void)worker;
    mirror_compare(a->tile, a->expected, a->n);
}

/* Expected words of the checks that are queued. */
static uint32_t mirror_words[MIRROR_MOST_CHECKS][SPW_TILE_TOKENS];
static size_t mirror_n_words;

static inline void mirror_drain(struct mirror *x)
{
    CHECK(x->w.ops->stream_sync(x->w.device, x->w.compute) == 0);
    CHECK(x->w.ops->stream_sync(x->w.device, x->w.up) == 0);
    CHECK(x->w.ops->stream_sync(x->w.device, x->w.down) == 0);
    mirror_n_words = 0;
}

static inline void mirror_queue_verify(struct mirror *x, spw_stream s, const void *tile,
                                       const uint32_t *words, uint32_t n)
{
    static const struct spw_kernel verify = {"verify", kv_one_task, mirror_run_verify};
    if (mirror_n_words == MIRROR_MOST_CHECKS)
        mirror_drain(x);
    uint32_t *copy = mirror_words[mirror_n_words++];
    memcpy(copy, words, n * sizeof *copy);
    struct mirror_verify a = {.tile = tile, .expected = copy, .n = n};
    kv_launch(&x->w, s, &verify, &a, sizeof a);
}

/* ---- opening and closing ---- */

/* Tiles are of MIRROR_TILE_BYTES, and slide as said above, whatever the options say. */
static inline void mirror_open(struct mirror *x, const struct kv_world_options *options)
{
    struct kv_world_options o = *options;
    memset(x, 0, sizeof *x);
    o.tile_bytes = MIRROR_TILE_BYTES;
    o.kinds = mirror_sliding;
    x->max_tokens = o.max_tiles * SPW_TILE_TOKENS;
    x->next_word = 1;
    x->memory = aligned_alloc(4096, o.max_tiles * MIRROR_TILE_BYTES);
    kv_world_open(&x->w, &o);
}

/* Every frame is free or retired: nothing was lost, nothing counted twice. */
static inline void mirror_check_disk(struct mirror *x)
{
    struct kv_world *w = &x->w;
    struct spw_io_usage u;
    uint32_t frame, n_retired = spw_disk_n_retired(w->disk);
    bool limited = w->o.drive.limit_bytes;
    for (uint32_t i = 0; i < w->n_disk_frames && !limited; i++)
        CHECK(spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == 0);
    CHECK(limited || spw_disk_take(w->disk, SPW_DISK_NONE, &frame) == -ENOMEM);
    spw_io_usage(w->io, &u);
    if (w->o.drive.faulty)
        return;
    CHECK(n_retired == 0);
    CHECK_MSG(u.written_bytes == x->moves.written * MIRROR_TILE_BYTES &&
                  u.read_bytes == x->moves.read * MIRROR_TILE_BYTES,
              "%llu bytes written for %llu tiles, %llu read for %llu",
              (unsigned long long)u.written_bytes, (unsigned long long)x->moves.written,
              (unsigned long long)u.read_bytes, (unsigned long long)x->moves.read);
}

/* Sequences have been closed. */
static inline void mirror_close(struct mirror *x)
{
    struct spw_device_usage u;
    kv_world_stop(&x->w);
    if (x->w.disk)
        mirror_check_disk(x);
    x->w.ops->usage(x->w.device, &u);
    if (!x->w.o.drive.faulty) {
        CHECK(!x->n_lost && !x->n_failed_writes);
        CHECK(u.moved_bytes[SPW_LINK_DEVICE_TO_HOST] == x->moves.down * MIRROR_TILE_BYTES);
        CHECK(u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] == x->moves.up * MIRROR_TILE_BYTES);
    }
    kv_world_close(&x->w);
    free(x->memory);
}

/* ---- what must be there ---- */

static inline uint32_t mirror_end(const struct mirror_seq *m)
{
    return spw_waterline_tiles(m->n_tokens);
}

/* Tokens of the sequence in a tile. */
static inline uint32_t mirror_tokens_in(const struct mirror_seq *m, uint32_t tile)
{
    uint32_t n = m->n_tokens - tile * SPW_TILE_TOKENS;
    return n < SPW_TILE_TOKENS ? n : SPW_TILE_TOKENS;
}

/* Frames of the device in use: no frame of a tier is counted twice, none is lost. */
static inline uint32_t mirror_device_frames(const struct mirror *x)
{
    const void *seen[MIRROR_MOST_FRAMES];
    uint32_t n = 0;
    for (const struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        for (uint32_t l = 0; l < KV_LAYERS && m->seq; l++)
            for (uint32_t t = m->begin[l]; t < mirror_end(m); t++) {
                const void *frame = spw_kv_device_tile(m->seq, l, t);
                uint32_t k = 0;
                while (k < n && seen[k] != frame)
                    k++;
                if (k == n)
                    seen[n++] = frame;
            }
    return n;
}

/* Room for so many tiles more on the device, one copied tail a layer included. */
static inline bool mirror_has_room(const struct mirror *x, uint32_t tiles)
{
    return mirror_device_frames(x) + x->n_ahead + tiles <= x->w.o.n_device_frames;
}

/* Reads the tile's frame as a KV slot would, and notes the loss if it does not come back. */
static inline void mirror_check_frame(struct mirror *x, const struct mirror_seq *m, uint32_t layer,
                                      uint32_t tile)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint32_t frame = spw_kv_disk_frame(m->seq, layer, tile);
    struct spw_disk_job job;
    memset(x->memory, 0, MIRROR_TILE_BYTES);
    spw_disk_prepare(x->w.disk, &job, false, frame, 1, x->memory);
    int rc = spw_disk_run(&job);
    x->moves.read++;
    if (rc) {
        CHECK(d->faulty && (rc == -EBADMSG || rc == d->read_failure));
        spw_kv_note_loss(m->seq, layer, tile, rc);
    } else {
        mirror_compare(x->memory, &m->word[layer][tile * SPW_TILE_TOKENS],
                       mirror_tokens_in(m, tile));
    }
}

static inline void mirror_check_below(struct mirror *x, const struct mirror_seq *m, uint32_t layer,
                                      uint32_t tile)
{
    CHECK(spw_kv_wait_written(m->seq, layer, tile) == 0);
    const void *host = spw_kv_host_tile(m->seq, layer, tile);
    uint32_t frame = spw_kv_disk_frame(m->seq, layer, tile), n = mirror_tokens_in(m, tile);
    bool faulty = x->w.o.drive.faulty;
    CHECK(!host || frame == SPW_DISK_NONE); /* one copy below */
    if (host)
        mirror_queue_verify(x, x->w.up, host, &m->word[layer][tile * SPW_TILE_TOKENS], n);
    else if (frame != SPW_DISK_NONE)
        mirror_check_frame(x, m, layer, tile);
    else {
        CHECK(faulty && spw_kv_lost(m->seq, layer, tile));
        spw_kv_note_loss(m->seq, layer, tile, spw_kv_lost(m->seq, layer, tile));
    }
    if (!faulty && tile < m->disk_end[layer])
        CHECK(frame != SPW_DISK_NONE);
    if (n == SPW_TILE_TOKENS)
        CHECK(spw_kv_is_readable(m->seq, layer, tile, tile + 1) ||
              spw_kv_lost(m->seq, layer, tile));
}

/* Tiles below the device that another sequence found lost: one that is on the device for a third
 * has no copy below any more. */
static inline uint32_t mirror_count_lost(const struct mirror_seq *m, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t t = m->first[layer]; t < m->begin[layer]; t++)
        n += spw_kv_lost(m->seq, layer, t) != 0;
    return n;
}

static inline void mirror_check_lines(const struct mirror_seq *m)
{
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->begin[l]);
        CHECK(spw_kv_end(m->seq, l) == mirror_end(m));
        CHECK(spw_kv_disk_end(m->seq, l) == m->disk_end[l]);
        CHECK(spw_kv_count_unwritten(m->seq, l, m->first[l], m->begin[l]) <=
              mirror_count_lost(m, l));
        CHECK(spw_kv_count_absent(m->seq, l, m->begin[l], mirror_end(m)) == 0);
    }
}

/* Every tile that a query could see, where it lies. */
static inline void mirror_check(struct mirror *x, const struct mirror_seq *m)
{
    mirror_check_lines(m);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        for (uint32_t t = m->first[l]; t < mirror_end(m); t++)
            if (t < m->begin[l])
                mirror_check_below(x, m, l, t);
            else
                mirror_queue_verify(x, x->w.compute, spw_kv_device_tile(m->seq, l, t),
                                    &m->word[l][t * SPW_TILE_TOKENS], mirror_tokens_in(m, t));
}

/* ---- operations ---- */

static inline void mirror_seq_open(struct mirror *x, struct mirror_seq *m)
{
    uint32_t first = x->w.o.first_tile;
    memset(m, 0, sizeof *m);
    m->n_tokens = first * SPW_TILE_TOKENS;
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        m->first[l] = m->begin[l] = first;
    CHECK(spw_kv_seq_open(&m->seq, x->w.kv) == 0);
}

static inline void mirror_seq_close(struct mirror *x, struct mirror_seq *m)
{
    CHECK(x->w.ops->stream_sync(x->w.device, x->w.up) == 0);
    spw_kv_seq_close(m->seq);
    m->seq = NULL;
}

/* Into one that is not open, if there is one. */
static inline void mirror_fork(struct mirror *x, const struct mirror_seq *from)
{
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (!m->seq) {
            mirror_seq_open(x, m);
            struct spw_kv_seq *seq = m->seq;
            spw_kv_seq_fork(seq, from->seq);
            *m = *from;
            m->seq = seq;
            return;
        }
}

static inline void mirror_cut(struct mirror *x, struct mirror_seq *m, uint32_t n)
{
    uint32_t least = x->w.o.first_tile * SPW_TILE_TOKENS;
    mirror_drain(x);
    spw_kv_truncate(m->seq, n);
    m->n_tokens = n < least ? least : n;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint32_t end = mirror_end(m), full = m->n_tokens / SPW_TILE_TOKENS;
        m->first[l] = m->first[l] < end ? m->first[l] : end;
        m->begin[l] = m->begin[l] < end ? m->begin[l] : end;
        m->disk_end[l] = m->disk_end[l] < full ? m->disk_end[l] : full;
    }
}

static inline void mirror_truncate(struct mirror *x, struct mirror_seq *m)
{
    uint32_t n = (uint32_t)check_range(&x->w.seed, 0, m->n_tokens), least = x->w.o.first_tile;
    uint32_t first = m->first[MIRROR_SLIDING];
    bool can = spw_kv_can_truncate(m->seq, mirror_residency, n);
    CHECK(can == (n <= least * SPW_TILE_TOKENS || first <= least ||
                  first <= spw_waterline_first(MIRROR_WINDOW, n)));
    mirror_cut(x, m, can ? n : 0);
}

static inline void mirror_cut_lost(struct mirror *x, struct mirror_seq *m, uint32_t tile)
{
    uint32_t n = tile * SPW_TILE_TOKENS;
    mirror_cut(x, m, spw_kv_can_truncate(m->seq, mirror_residency, n) ? n : 0);
    x->n_lost++;
}

/* Sequences that lost a tile go on from below it. */
static inline void mirror_recover(struct mirror *x)
{
    struct spw_kv_loss loss;
    while (spw_kv_take_loss(x->w.kv, &loss)) {
        struct mirror_seq *m = x->seqs;
        while (m < x->seqs + KV_SEQS && m->seq != loss.seq)
            m++;
        CHECK(x->w.o.drive.faulty && m < x->seqs + KV_SEQS && loss.rc < 0);
        CHECK(loss.tile >= m->first[loss.layer] && loss.tile < m->begin[loss.layer]);
        mirror_cut_lost(x, m, loss.tile);
    }
}

/* Where tiles [begin, end) are read from, the device before all: what other sequences share may be
 * there for them. */
static inline void mirror_count(const struct mirror_seq *m, uint32_t layer, uint32_t begin,
                                uint32_t end, uint64_t *from_device, uint64_t *from_host,
                                uint64_t *from_disk)
{
    const struct spw_kv *kv = m->seq->kv;
    *from_device = *from_host = *from_disk = 0;
    for (uint32_t i = begin; i < end; i++) {
        const struct spw_kv_tile *t = &kv->tiles[m->seq->layers[layer].ids[i]];
        bool stayed = t->host && spw_tier_has(&kv->device, t->host); /* it could not be written */
        ++*(t->device || stayed ? from_device : t->host ? from_host : from_disk);
    }
}

/* false: the sequence is not what it was. */
static inline bool mirror_load(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                               uint32_t begin)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint64_t from_device, from_host, from_disk;
    if (!mirror_has_room(x, m->begin[layer] - begin))
        return true;
    mirror_count(m, layer, begin, m->begin[layer], &from_device, &from_host, &from_disk);
    int rc = spw_kv_load(m->seq, layer, begin);
    CHECK(!rc || (d->faulty && rc == -EBADMSG) || (d->writes_fail && rc == -ENOMEM));
    if (rc == -EBADMSG)
        mirror_recover(x);
    if (rc)
        return rc != -EBADMSG;
    x->moves.up += from_host + (d->direct ? 0 : from_disk);
    x->moves.read += from_disk;
    m->begin[layer] = begin;
    return true;
}

/* New words for tokens [from, to) of a layer. */
static inline int mirror_append(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                                uint32_t from, uint32_t to)
{
    static const struct spw_kernel stamp = {"stamp", kv_one_task, mirror_run_stamp};
    SPW_TRY(spw_kv_grow(m->seq, layer, from, to));
    for (uint32_t at = from; at < to;) {
        uint32_t tile = at / SPW_TILE_TOKENS, stop = (tile + 1) * SPW_TILE_TOKENS;
        stop = stop < to ? stop : to;
        struct mirror_stamp a = {spw_kv_device_tile(m->seq, layer, tile), at % SPW_TILE_TOKENS,
                                 (stop - 1) % SPW_TILE_TOKENS + 1, x->next_word};
        for (; at < stop; at++)
            m->word[layer][at] = x->next_word++;
        kv_launch(&x->w, x->w.compute, &stamp, &a, sizeof a);
    }
    return 0;
}

/* false: an unfinished tail is not on the device, and there is no room for it or it was lost. */
static inline bool mirror_fetch_tail(struct mirror *x, struct mirror_seq *m)
{
    for (uint32_t l = 0; l < KV_LAYERS && m->n_tokens % SPW_TILE_TOKENS; l++)
        if (m->begin[l] == mirror_end(m) &&
            (!mirror_load(x, m, l, mirror_end(m) - 1) || m->begin[l] == mirror_end(m)))
            return false;
    return true;
}

/* The next tokens of every layer, as a chunk does. */
static inline void mirror_grow(struct mirror *x, struct mirror_seq *m)
{
    uint32_t from = m->n_tokens, most = x->max_tokens - from;
    uint32_t n = (uint32_t)check_range(&x->w.seed, 1, check_random(&x->w.seed) % 3 ? 40 : 300);
    n = n < most ? n : most;
    if (!n || !mirror_fetch_tail(x, m) ||
        !mirror_has_room(x, KV_LAYERS * (spw_waterline_tiles(from + n) - mirror_end(m) + 1)))
        return;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        int rc = mirror_append(x, m, l, from, from + n);
        CHECK(!rc || (x->w.o.drive.writes_fail && rc == -ENOMEM)); /* frames cannot be written */
        if (rc) {
            mirror_seq_close(x, m);
            return;
        }
    }
    m->n_tokens = from + n;
}

/* To lines drawn within what the drive takes; or as far as that gets. */
static inline void mirror_spill(struct mirror *x, struct mirror_seq *m, uint32_t layer)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint32_t full = m->n_tokens / SPW_TILE_TOKENS; /* the tail is never spilled */
    uint32_t begin = m->begin[layer], disk_end = m->disk_end[layer];
    if (!d->host && !d->disk && full > disk_end)
        full = disk_end; /* there is no other place */
    if (full <= begin && full <= disk_end)
        return;
    begin = (uint32_t)check_range(&x->w.seed, begin < full ? begin : full, full);
    if (d->disk && disk_end < full)
        disk_end = (uint32_t)check_range(&x->w.seed, disk_end, full);
    if (d->disk && !d->host && disk_end < begin)
        disk_end = begin;
    uint64_t to_host, to_disk;
    spw_kv_count_spill(m->seq, layer, begin, disk_end, &to_host, &to_disk);
    int rc = spw_kv_spill(m->seq, layer, begin, disk_end);
    CHECK(!rc || d->writes_fail || (d->attaches && d->faulty && rc == -EBADMSG));
    if (rc == -EBADMSG) { /* of a tile that was to leave the device */
        struct spw_kv_loss loss;
        CHECK(spw_kv_take_loss(x->w.kv, &loss) && loss.seq == m->seq && loss.layer == layer);
        CHECK(loss.tile >= m->begin[layer] && loss.tile < begin);
        mirror_cut_lost(x, m, loss.tile);
        return;
    }
    x->moves.down += to_host;
    x->moves.written += to_disk;
    m->begin[layer] = begin > m->begin[layer] ? begin : m->begin[layer];
    m->disk_end[layer] = disk_end;
    if (rc == -ENOMEM) { /* as far as it got */
        CHECK(spw_kv_begin(m->seq, layer) <= m->begin[layer]);
        CHECK(spw_kv_disk_end(m->seq, layer) <= disk_end);
        m->begin[layer] = spw_kv_begin(m->seq, layer);
        m->disk_end[layer] = spw_kv_disk_end(m->seq, layer);
    } else if (rc) {
        CHECK(rc == -EIO || rc == -ENOSPC); /* told once, and all done */
        x->n_failed_writes++;
    }
}

/* What the sliding layer's next query cannot see. */
static inline void mirror_drop(struct mirror *x, struct mirror_seq *m)
{
    uint32_t first = spw_waterline_first(MIRROR_WINDOW, m->n_tokens), l = MIRROR_SLIDING;
    CHECK(x->w.ops->stream_sync(x->w.device, x->w.up) == 0);
    spw_kv_drop(m->seq, l, first);
    first = first < mirror_end(m) ? first : mirror_end(m);
    m->first[l] = m->first[l] < first ? first : m->first[l];
    m->begin[l] = m->begin[l] < first ? first : m->begin[l];
}

/* The end of a round: everything is right, and closed. */
static inline void mirror_finish(struct mirror *x)
{
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (m->seq) {
            mirror_check(x, m);
            mirror_recover(x);
        }
    mirror_drain(x);
    CHECK_MSG(!atomic_exchange(&mirror_wrong, 0), "seed %llu, delays %llu: wrong words",
              (unsigned long long)x->w.o.seed, (unsigned long long)x->w.o.delay_seed);
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (m->seq)
            mirror_seq_close(x, m);
    mirror_drain(x);
}

static inline uint64_t mirror_bytes_read(const struct mirror *x)
{
    struct spw_io_usage u;
    spw_io_usage(x->w.io, &u);
    return u.read_bytes;
}

/* Others do something while a load of m goes on; `quiet`: without reading. */
static inline void mirror_act_beside(struct mirror *x, const struct mirror_seq *m, bool quiet)
{
    for (int i = (int)check_range(&x->w.seed, 0, 3); i; i--) {
        struct mirror_seq *other = &x->seqs[check_random(&x->w.seed) % KV_SEQS];
        uint32_t layer = (uint32_t)(check_random(&x->w.seed) % KV_LAYERS);
        if (other == m || !other->seq)
            continue;
        if (check_random(&x->w.seed) % 2)
            mirror_spill(x, other, layer);
        else if (!quiet && other->n_tokens % SPW_TILE_TOKENS == 0)
            mirror_grow(x, other);
    }
}

/* A load that goes on beside that, and is finished, or given up: it has moved as much as it came
 * to, which is known where nobody else reads. */
static inline void mirror_load_ahead(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                                     uint32_t begin)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint32_t n = m->begin[layer] - begin;
    bool begun = false, quiet = check_random(&x->w.seed) % 2;
    if (!d->disk || !n || !mirror_has_room(x, n))
        return;
    uint64_t before = mirror_bytes_read(x);
    CHECK(spw_kv_load_ahead(m->seq, layer, begin, &begun) == 0);
    CHECK(begun == spw_kv_is_loading(m->seq, layer));
    if (!begun)
        return;
    x->n_begun++;
    x->n_ahead = n;
    mirror_act_beside(x, m, quiet);
    x->n_ahead = 0;
    int rc = -ECANCELED;
    if (quiet && check_random(&x->w.seed) % 3 == 0) {
        uint64_t n_read = 0;
        int lost = spw_kv_forget_loads(m->seq, &n_read);
        n = (uint32_t)((mirror_bytes_read(x) - before) / MIRROR_TILE_BYTES);
        CHECK(lost ? lost == -EBADMSG && d->faulty : n_read == n);
    } else {
        rc = spw_kv_finish_load(m->seq, layer);
        CHECK(!rc || (d->faulty && rc == -EBADMSG) || (d->writes_fail && rc == -ENOMEM));
    }
    x->moves.read += n;
    x->moves.up += d->direct ? 0 : n;
    m->begin[layer] = rc ? m->begin[layer] : begin;
}

#endif
