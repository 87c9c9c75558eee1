/* Sequences of a KV cache, a model of their contents in plain memory (the mirror), and operations
 * that change both.
 *
 * A token is one word. Its tile has the word in every plane of 128 words, changed by the plane's
 * number and by the mask of the tile's form. Kernels on `compute` write the words, like the appends
 * of attention, and convert one form into another from planes at both ends. The mirror knows the
 * word of every token of every sequence. A check can be queued at any time. It reads each device
 * tile on `compute`, and each host copy on `up`, as the ring does; it reads tiles on the disk from
 * their frames. So these faults give a wrong word: a missing order between streams, a frame that
 * was freed too early, a write to a shared tile, a tile that was overwritten by a moved tile. Bytes
 * over every link are summed and compared, and frames are counted. */
#ifndef SPW_TESTS_UNIT_OFFLOAD_KV_MIRROR_H
#define SPW_TESTS_UNIT_OFFLOAD_KV_MIRROR_H

#include "offload/kv/kv_attach.h"
#include "offload/kv/kv_shrink.h"
#include "tests/unit/offload/kv_world.h"

enum {
    MIRROR_TOKENS = KV_TILES * SPW_TILE_TOKENS,
    MIRROR_PLANE_BYTES = SPW_TILE_TOKENS * 4,
    MIRROR_UNIT_PLANES = KV_UNIT / MIRROR_PLANE_BYTES,
    MIRROR_CHECKS = 1 << 12,
};

struct mirror_format {
    uint32_t n_planes, mask;
};

/* The expected contents of one sequence, and its expected waterlines. */
struct mirror_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens;
    uint32_t word[KV_LAYERS][MIRROR_TOKENS];
    /* Of the form that moves between the tiers. */
    uint32_t first[KV_LAYERS], begin[KV_LAYERS], end[KV_LAYERS], disk_end[KV_LAYERS];
    uint32_t exact_first[KV_LAYERS]; /* where the cache quantizes */
};

struct mirror {
    struct kv_world w;
    bool quantizes;
    struct mirror_format tiered, exact;
    struct spw_residency residency[SPW_LAYER_KINDS];
    struct mirror_seq seqs[KV_SEQS];
    uint64_t down, up, written, read; /* expected bytes on each link */
    uint8_t *memory;                  /* [KV_TILES] tiles */
    uint32_t next_word,
        n_reserved; /* n_reserved: frames of a running load, which no sequence shows */
    bool tight;     /* the disk may become full: bytes are not counted */
    uint64_t n_lost, n_failed_writes, n_begun;
};

/* ---- tiles ---- */

static inline uint32_t mirror_value(struct mirror_format f, uint32_t plane, uint32_t word)
{
    return (word ^ f.mask) + plane * 0x9e3779b1;
}

static inline void mirror_set_word(uint32_t *tile, struct mirror_format f, uint32_t i,
                                   uint32_t word)
{
    for (uint32_t p = 0; p < f.n_planes; p++)
        tile[p * SPW_TILE_TOKENS + i] = mirror_value(f, p, word);
}

struct mirror_stamp {
    uint32_t *tile;
    struct mirror_format format;
    uint32_t from, to, word; /* token from + i gets word + i */
};

struct mirror_turn {
    const uint32_t *from;
    uint32_t *to;
    struct mirror_format from_format, to_format;
};

struct mirror_verify {
    const uint32_t *tile;
    const uint32_t *expected; /* stays until the streams are drained */
    struct mirror_format format;
    uint32_t n;
};

static _Atomic uint64_t mirror_wrong, mirror_checked; /* words */

static inline void mirror_compare(const void *tile, struct mirror_format f,
                                  const uint32_t *expected, uint32_t n)
{
    const uint32_t *words = tile;
    uint64_t wrong = 0;
    for (uint32_t p = 0; p < f.n_planes; p++)
        for (uint32_t i = 0; i < n; i++)
            wrong += words[p * SPW_TILE_TOKENS + i] != mirror_value(f, p, expected[i]);
    atomic_fetch_add(&mirror_wrong, wrong);
    atomic_fetch_add(&mirror_checked, n);
}

static inline void mirror_run_stamp(const void *args, size_t task, unsigned worker)
{
    const struct mirror_stamp *a = args;
    (void)task;
    (void)worker;
    for (uint32_t i = a->from; i < a->to; i++)
        mirror_set_word(a->tile, a->format, i, a->word + i - a->from);
}

static inline void mirror_run_turn(const void *args, size_t task, unsigned worker)
{
    const struct mirror_turn *a = args;
    (void)task;
    (void)worker;
    uint32_t n = a->from_format.n_planes; /* more than those of the other form */
    for (uint32_t p = 0; p < a->to_format.n_planes; p++)
        for (uint32_t i = 0; i < SPW_TILE_TOKENS; i++) {
            uint32_t q = (p ? p : n) - 1;
            uint32_t word = a->from[q * SPW_TILE_TOKENS + i] - q * 0x9e3779b1;
            a->to[p * SPW_TILE_TOKENS + i] =
                mirror_value(a->to_format, p, word ^ a->from_format.mask);
        }
}

static inline void mirror_run_verify(const void *args, size_t task, unsigned worker)
{
    const struct mirror_verify *a = args;
    (void)task;
    (void)worker;
    mirror_compare(a->tile, a->format, a->expected, a->n);
}

static inline int mirror_turn(struct mirror *x, const void *from, struct mirror_format from_format,
                              void *to, struct mirror_format to_format)
{
    static const struct spw_kernel turn = {"turn", kv_one_task, mirror_run_turn};
    struct mirror_turn a = {from, to, from_format, to_format};
    return kv_launch(&x->w, &turn, x->w.lane.compute, &a, sizeof a);
}

/* Expected words of the checks that are queued. */
static uint32_t mirror_words[MIRROR_CHECKS][SPW_TILE_TOKENS];
static size_t mirror_n_words;

static inline void mirror_drain(struct mirror *x)
{
    kv_world_drain(&x->w);
    mirror_n_words = 0;
}

static inline void mirror_queue_verify(struct mirror *x, spw_stream s, const void *tile,
                                       struct mirror_format format, const uint32_t *words,
                                       uint32_t n)
{
    static const struct spw_kernel verify = {"verify", kv_one_task, mirror_run_verify};
    if (mirror_n_words == MIRROR_CHECKS)
        mirror_drain(x);
    uint32_t *copy = mirror_words[mirror_n_words++];
    memcpy(copy, words, n * sizeof *copy);
    struct mirror_verify a = {tile, copy, format, n};
    CHECK(kv_launch(&x->w, &verify, s, &a, sizeof a) == 0);
}

/* ---- opening and closing ---- */

static inline uint64_t mirror_bytes(struct mirror_format f)
{
    return (uint64_t)f.n_planes * MIRROR_PLANE_BYTES;
}

/* A sliding window, or chunks of whole tiles or of part of them. */
static inline struct spw_window mirror_window(uint64_t seed)
{
    static const struct spw_window windows[] = {{200, 1}, {200, 200}, {256, 256}};
    return windows[seed % 3];
}

/* Tiles of `units`; quantized ones where n_exact_frames is set. */
static inline void mirror_open(struct mirror *x, const struct kv_world_options *options,
                               uint32_t units, uint32_t residual_tiles)
{
    struct kv_world_options o = *options;
    memset(x, 0, sizeof *x);
    x->quantizes = o.n_exact_frames;
    x->tiered = x->exact = (struct mirror_format){.n_planes = units * MIRROR_UNIT_PLANES};
    if (x->quantizes)
        x->exact = (struct mirror_format){(units + 1) * MIRROR_UNIT_PLANES, 0x5555};
    o.tile_bytes = mirror_bytes(x->tiered);
    o.exact_tile_bytes = mirror_bytes(x->exact);
    x->residency[SPW_LAYER_FULL] =
        (struct spw_residency){.quantizes = x->quantizes, .residual_tiles = residual_tiles};
    x->residency[SPW_LAYER_SLIDING] =
        (struct spw_residency){.window = mirror_window(o.seed), .fixed = x->quantizes};
    x->next_word = 1;
    x->memory = aligned_alloc(4096, KV_TILES * KV_MOST_UNITS * KV_UNIT);
    kv_world_open(&x->w, &o);
}

static inline void mirror_seq_open(struct mirror *x, struct mirror_seq *m)
{
    memset(m, 0, sizeof *m);
    for (uint32_t l = 0; l < KV_LAYERS && x->quantizes; l++)
        m->first[l] = m->begin[l] = m->end[l] = 1;
    CHECK(spw_kv_seq_open(&m->seq, x->w.kv) == 0);
}

static inline void mirror_seq_close(struct mirror *x, struct mirror_seq *m)
{
    kv_world_sync(&x->w, x->w.lane.kv_up);
    spw_kv_seq_close(m->seq);
    m->seq = NULL;
}

/* The moved bytes equal the expected bytes. */
static inline void mirror_check_moved(struct mirror *x)
{
    struct spw_device_usage u;
    struct spw_io_usage io = {0};
    x->w.lane.ops->usage(x->w.lane.device, &u);
    if (x->w.io)
        spw_io_usage(x->w.io, &io);
    uint64_t moved[4] = {u.moved_bytes[SPW_LINK_DEVICE_TO_HOST],
                         u.moved_bytes[SPW_LINK_HOST_TO_DEVICE], io.written_bytes, io.read_bytes};
    uint64_t expected[4] = {x->down, x->up, x->written, x->read};
    for (int i = 0; i < 4; i++)
        CHECK_MSG(moved[i] == expected[i], "link %d: %llu bytes moved, not %llu", i,
                  (unsigned long long)moved[i], (unsigned long long)expected[i]);
}

/* Closes what is open. */
static inline void mirror_close(struct mirror *x)
{
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (m->seq)
            mirror_seq_close(x, m);
    mirror_drain(x);
    CHECK_MSG(!atomic_exchange(&mirror_wrong, 0), "seed %llu, delays %llu: wrong words",
              (unsigned long long)x->w.o.seed, (unsigned long long)x->w.o.delay_seed);
    spw_kv_finish_writes(x->w.kv);
    if (!x->w.o.drive.faulty) {
        CHECK(!x->n_lost && !x->n_failed_writes);
        CHECK(!x->w.disk || !spw_disk_n_retired(x->w.disk));
        if (!x->tight)
            mirror_check_moved(x);
    }
    kv_world_check_free(&x->w);
    kv_world_stop(&x->w);
    kv_world_close(&x->w);
    free(x->memory);
}

/* ---- expected tiles ---- */

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

static inline const uint32_t *mirror_tile(const struct mirror_seq *m, uint32_t layer, uint32_t tile)
{
    return &m->word[layer][tile * SPW_TILE_TOKENS];
}

static inline uint32_t mirror_exact_first(const struct mirror *x, const struct mirror_seq *m,
                                          uint32_t layer)
{
    return x->quantizes ? m->exact_first[layer] : m->first[layer];
}

static inline bool mirror_holds_exact(const struct mirror *x, const struct mirror_seq *m,
                                      uint32_t layer, uint32_t tile)
{
    bool sink = x->quantizes && !tile && layer != KV_SLIDING;
    return tile < mirror_end(m) && (sink || tile >= mirror_exact_first(x, m, layer));
}

static inline bool mirror_holds_device(const struct mirror *x, const struct mirror_seq *m,
                                       bool exact, uint32_t layer, uint32_t tile)
{
    if (exact)
        return mirror_holds_exact(x, m, layer, tile);
    return tile >= m->begin[layer] && tile < m->end[layer];
}

/* Frames of the device that sequences use, each counted once. */
static inline uint32_t mirror_frames(const struct mirror *x, bool exact)
{
    const void *seen[KV_FRAMES];
    uint32_t n = 0;
    for (const struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        for (uint32_t i = 0; i < KV_LAYERS * KV_TILES && m->seq; i++) {
            uint32_t l = i / KV_TILES, t = i % KV_TILES, k = 0;
            if (!mirror_holds_device(x, m, exact, l, t))
                continue;
            const void *frame =
                exact ? spw_kv_exact_tile(m->seq, l, t) : spw_kv_device_tile(m->seq, l, t);
            while (k < n && seen[k] != frame)
                k++;
            if (k == n)
                seen[n++] = frame;
        }
    return n;
}

/* The number of tiles that still fit on the device. */
static inline bool mirror_has_room(const struct mirror *x, bool exact, uint32_t tiles)
{
    const struct spw_kv_options *o = &x->w.kv->o;
    exact &= x->quantizes;
    return mirror_frames(x, exact) + x->n_reserved + tiles <=
           (exact ? o->n_exact_frames : o->n_device_frames);
}

/* Reads a tile's frame, as the ring does, and notes the loss if the read fails. */
static inline void mirror_check_frame(struct mirror *x, const struct mirror_seq *m, uint32_t layer,
                                      uint32_t tile)
{
    uint32_t frame = spw_kv_disk_frame(m->seq, layer, tile);
    struct spw_disk_job job;
    memset(x->memory, 0, mirror_bytes(x->tiered));
    spw_disk_prepare(x->w.disk, &job, false, frame, 1, x->memory);
    int rc = spw_disk_run(&job);
    x->read += mirror_bytes(x->tiered);
    if (!rc) {
        mirror_compare(x->memory, x->tiered, mirror_tile(m, layer, tile),
                       mirror_tokens_in(m, tile));
        return;
    }
    CHECK(x->w.o.drive.faulty && (rc == -EBADMSG || rc == -EIO || rc == -ENODATA));
    spw_kv_note_loss(m->seq, layer, tile, rc);
}

static inline void mirror_check_below(struct mirror *x, const struct mirror_seq *m, uint32_t layer,
                                      uint32_t tile)
{
    CHECK(spw_kv_wait_written(m->seq, layer, tile) == 0);
    const void *host = spw_kv_host_tile(m->seq, layer, tile);
    uint32_t frame = spw_kv_disk_frame(m->seq, layer, tile), n = mirror_tokens_in(m, tile);
    int lost = spw_kv_lost(m->seq, layer, tile);
    bool faulty = x->w.o.drive.faulty;
    CHECK(!host || frame == SPW_DISK_NONE); /* one copy in the lower tiers */
    if (host)
        mirror_queue_verify(x, x->w.lane.kv_up, host, x->tiered, mirror_tile(m, layer, tile), n);
    else if (frame != SPW_DISK_NONE)
        mirror_check_frame(x, m, layer, tile);
    else {
        CHECK(faulty && lost);
        spw_kv_note_loss(m->seq, layer, tile, lost);
    }
    if (!faulty && tile < m->disk_end[layer])
        CHECK(frame != SPW_DISK_NONE);
    if (n == SPW_TILE_TOKENS)
        CHECK(spw_kv_is_readable(m->seq, layer, tile, tile + 1) ||
              spw_kv_lost(m->seq, layer, tile));
}

/* Tiles in lower tiers that another sequence has found lost. A tile that is on the device for a
 * third sequence has lost its lower copy. */
static inline uint32_t mirror_count_lost(const struct mirror_seq *m, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t t = m->first[layer]; t < m->begin[layer]; t++)
        n += spw_kv_lost(m->seq, layer, t) != 0;
    return n;
}

static inline void mirror_check_lines(const struct mirror *x, const struct mirror_seq *m)
{
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->begin[l]);
        CHECK(spw_kv_end(m->seq, l) == m->end[l]);
        CHECK(spw_kv_disk_end(m->seq, l) == m->disk_end[l]);
        CHECK(spw_kv_exact_first(m->seq, l) == mirror_exact_first(x, m, l));
        CHECK(spw_kv_exact_end(m->seq, l) == mirror_end(m));
        uint32_t n_unwritten = 0;
        for (uint32_t t = m->first[l]; t < m->begin[l]; t++)
            n_unwritten += spw_kv_is_unwritten(&m->seq->kv->tiles[m->seq->tables[l].ids[t]]);
        CHECK(n_unwritten <= mirror_count_lost(m, l));
        for (uint32_t t = m->begin[l]; t < m->end[l]; t++)
            CHECK(spw_kv_device_tile(m->seq, l, t));
    }
}

/* Checks every tile that a query could see, in its tier. */
static inline void mirror_check(struct mirror *x, const struct mirror_seq *m)
{
    mirror_check_lines(x, m);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        for (uint32_t t = m->first[l]; t < m->end[l]; t++)
            if (t < m->begin[l])
                mirror_check_below(x, m, l, t);
            else
                mirror_queue_verify(x, x->w.lane.compute, spw_kv_device_tile(m->seq, l, t),
                                    x->tiered, mirror_tile(m, l, t), mirror_tokens_in(m, t));
        for (uint32_t t = 0; t < mirror_end(m) && x->quantizes; t++)
            if (mirror_holds_exact(x, m, l, t))
                mirror_queue_verify(x, x->w.lane.compute, spw_kv_exact_tile(m->seq, l, t), x->exact,
                                    mirror_tile(m, l, t), mirror_tokens_in(m, t));
    }
    uint32_t n_free = spw_tier_n_free(&x->w.kv->exact);
    CHECK(!x->quantizes || mirror_frames(x, true) + n_free == x->w.kv->o.n_exact_frames);
}

/* ---- cutting back ---- */

/* The end of the quantized tiles of n tokens. */
static inline uint32_t mirror_old_end(const struct mirror *x, uint64_t n)
{
    return spw_waterline_end(&x->residency[SPW_LAYER_FULL], n);
}

/* Whether queries from position n on find every tile that they read exactly, checked tile by
 * tile. */
static inline bool mirror_can_truncate(const struct mirror *x, const struct mirror_seq *m,
                                       uint32_t n)
{
    const uint64_t window = x->residency[SPW_LAYER_FULL].residual_tiles,
                   end = spw_residual_end(spw_residual_block(n), window);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        for (uint32_t t = 0; t < spw_waterline_tiles(n); t++) {
            bool seen = l == KV_SLIDING
                            ? t >= spw_waterline_first_visible(&x->residency[SPW_LAYER_SLIDING], n)
                            : !x->quantizes || t == 0 || t >= end;
            if (seen && !mirror_holds_exact(x, m, l, t))
                return false;
        }
    return true;
}

static inline void mirror_lower(uint32_t *line, uint32_t to)
{
    *line = *line < to ? *line : to;
}

static inline void mirror_cut(struct mirror *x, struct mirror_seq *m, uint32_t n)
{
    mirror_drain(x);
    spw_kv_truncate(m->seq, x->residency, n);
    m->n_tokens = n;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint32_t end = mirror_end(m), full = n / SPW_TILE_TOKENS;
        if (x->quantizes) {
            mirror_lower(&m->exact_first[l], end);
            if (l != KV_SLIDING && end <= 1)
                m->exact_first[l] = 0;
            end = full = mirror_old_end(x, n);
        }
        if (x->quantizes && l == KV_SLIDING)
            continue;
        mirror_lower(&m->end[l], end);
        mirror_lower(&m->first[l], m->end[l]);
        mirror_lower(&m->begin[l], m->end[l]);
        mirror_lower(&m->disk_end[l], full);
    }
}

static inline void mirror_cut_lost(struct mirror *x, struct mirror_seq *m, uint32_t tile)
{
    uint32_t n = tile * SPW_TILE_TOKENS;
    mirror_cut(x, m, spw_kv_can_truncate(m->seq, x->residency, n) ? n : 0);
    x->n_lost++;
}

/* Sequences that have lost a tile continue before it. */
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

/* ---- operations ---- */

/* Forks into a sequence that is not open, if there is one. */
static inline struct mirror_seq *mirror_fork(struct mirror *x, const struct mirror_seq *from)
{
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (!m->seq) {
            mirror_seq_open(x, m);
            struct spw_kv_seq *seq = m->seq;
            spw_kv_seq_fork(seq, from->seq);
            *m = *from;
            m->seq = seq;
            return m;
        }
    return NULL;
}

/* The tiers from which tiles [begin, end) are read, the device first: shared tiles may be there
 * because of another sequence. */
static inline void mirror_count(const struct mirror_seq *m, uint32_t layer, enum spw_kv_form form,
                                uint32_t begin, uint32_t end, uint64_t *from_device,
                                uint64_t *from_host, uint64_t *from_disk)
{
    const struct spw_kv *kv = m->seq->kv;
    *from_device = *from_host = *from_disk = 0;
    for (uint32_t i = begin; i < end; i++) {
        const struct spw_kv_tile *t = &kv->tiles[spw_kv_table(m->seq, layer, form)->ids[i]];
        ++*(spw_kv_on_device(kv, t) ? from_device : t->host ? from_host : from_disk);
    }
}

/* A write has failed; this failure is returned once. */
static inline bool mirror_is_failed_write(struct mirror *x, int rc)
{
    bool failed = x->w.o.drive.faulty && (rc == -EIO || rc == -ENOSPC);
    x->n_failed_writes += failed;
    return failed;
}

/* An operation found no frame: a tier is full, perhaps because of a failed write. */
static inline bool mirror_is_full(struct mirror *x, int rc)
{
    struct spw_kv *kv = x->w.kv;
    CHECK(rc == -ENOMEM || mirror_is_failed_write(x, rc));
    return !spw_tier_n_free(&kv->device) || !spw_tier_n_free(&kv->host) ||
           (kv->o.disk && spw_disk_n_used(kv->o.disk) >= kv->o.n_disk_frames);
}

/* false: the sequence has changed. */
static inline bool mirror_load(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                               uint32_t begin)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint64_t from_device, from_host, from_disk, bytes = mirror_bytes(x->tiered);
    if (!mirror_has_room(x, false, m->begin[layer] - begin))
        return true;
    mirror_count(m, layer, SPW_KV_FORM_TIERED, begin, m->begin[layer], &from_device, &from_host,
                 &from_disk);
    int rc = spw_kv_load(m->seq, layer, begin);
    CHECK(!rc || (d->faulty && (rc == -EBADMSG || mirror_is_full(x, rc))));
    if (rc == -EBADMSG)
        mirror_recover(x);
    if (rc)
        return rc != -EBADMSG;
    x->up += (from_host + (d->direct ? 0 : from_disk)) * bytes;
    x->read += from_disk * bytes;
    m->begin[layer] = begin;
    return true;
}

/* Writes new words for tokens [from, to) of a layer, and quantizes tiles that have become old. */
static inline int mirror_append(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                                uint32_t from, uint32_t to)
{
    static const struct spw_kernel stamp = {"stamp", kv_one_task, mirror_run_stamp};
    SPW_TRY(spw_kv_grow(m->seq, layer, from, to));
    for (uint32_t at = from; at < to;) {
        uint32_t tile = at / SPW_TILE_TOKENS, stop = (tile + 1) * SPW_TILE_TOKENS;
        stop = stop < to ? stop : to;
        struct mirror_stamp a = {spw_kv_exact_tile(m->seq, layer, tile), x->exact,
                                 at % SPW_TILE_TOKENS, (stop - 1) % SPW_TILE_TOKENS + 1,
                                 x->next_word};
        for (; at < stop; at++)
            m->word[layer][at] = x->next_word++;
        CHECK(kv_launch(&x->w, &stamp, x->w.lane.compute, &a, sizeof a) == 0);
    }
    if (!x->quantizes)
        m->end[layer] = spw_waterline_tiles(to);
    if (!x->quantizes || layer == KV_SLIDING)
        return 0;
    SPW_TRY(spw_kv_quantize(m->seq, layer, mirror_old_end(x, to)));
    for (; m->end[layer] < mirror_old_end(x, to); m->end[layer]++)
        CHECK(mirror_turn(x, spw_kv_exact_tile(m->seq, layer, m->end[layer]), x->exact,
                          spw_kv_device_tile(m->seq, layer, m->end[layer]), x->tiered) == 0);
    return 0;
}

/* false: an unfinished tail is not on the device, and there is no room for it, or it was lost. */
static inline bool mirror_fetch_tail(struct mirror *x, struct mirror_seq *m)
{
    for (uint32_t l = 0; l < KV_LAYERS && m->n_tokens % SPW_TILE_TOKENS && !x->quantizes; l++)
        if (m->begin[l] == mirror_end(m) &&
            (!mirror_load(x, m, l, mirror_end(m) - 1) || m->begin[l] == mirror_end(m)))
            return false;
    return true;
}

/* Appends tokens to every layer, as a chunk does. */
static inline void mirror_grow_to(struct mirror *x, struct mirror_seq *m, uint32_t to)
{
    uint32_t from = m->n_tokens, tiles = spw_waterline_tiles(to) - mirror_end(m) + 1;
    uint32_t old = x->quantizes ? mirror_old_end(x, to) - m->end[0] : 0;
    if (from >= to || !mirror_fetch_tail(x, m) || !mirror_has_room(x, true, KV_LAYERS * tiles) ||
        !mirror_has_room(x, false, KV_LAYERS * old))
        return;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        int rc = mirror_append(x, m, l, from, to);
        CHECK(!rc || (x->w.o.drive.faulty && mirror_is_full(x, rc))); /* frames stay in use */
        if (rc) {
            mirror_seq_close(x, m);
            return;
        }
    }
    m->n_tokens = to;
}

static inline void mirror_grow(struct mirror *x, struct mirror_seq *m)
{
    uint32_t n = (uint32_t)check_range(&x->w.seed, 1, check_random(&x->w.seed) % 3 ? 40 : 400);
    mirror_grow_to(x, m, (uint32_t)spw_min_u64(m->n_tokens + n, MIRROR_TOKENS));
}

/* Spills to random waterlines within the room of the drive, as far as that is possible. */
static inline void mirror_spill(struct mirror *x, struct mirror_seq *m, uint32_t layer)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint32_t full = x->quantizes ? m->end[layer] : m->n_tokens / SPW_TILE_TOKENS; /* no tail */
    uint32_t begin = m->begin[layer], disk_end = m->disk_end[layer];
    if (!d->host && !d->disk && full > disk_end)
        full = disk_end; /* no other tier has room */
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
    CHECK(!rc || d->faulty || (x->tight && rc == -ENOMEM));
    if (rc == -EBADMSG) { /* a tile that should leave the device was lost */
        struct spw_kv_loss loss;
        CHECK(spw_kv_take_loss(x->w.kv, &loss) && loss.seq == m->seq && loss.layer == layer);
        CHECK(loss.tile >= m->begin[layer] && loss.tile < begin);
        mirror_cut_lost(x, m, loss.tile);
        return;
    }
    x->down += to_host * mirror_bytes(x->tiered);
    x->written += to_disk * mirror_bytes(x->tiered);
    m->begin[layer] = begin > m->begin[layer] ? begin : m->begin[layer];
    m->disk_end[layer] = disk_end;
    uint32_t to_begin = spw_kv_begin(m->seq, layer), to_disk_end = spw_kv_disk_end(m->seq, layer);
    if (rc && (to_begin < m->begin[layer] || to_disk_end < disk_end)) { /* it stopped there */
        CHECK(mirror_is_full(x, rc));
        m->begin[layer] = spw_min_u32(to_begin, m->begin[layer]);
        m->disk_end[layer] = spw_min_u32(to_disk_end, disk_end);
    } else if (rc) {
        CHECK(mirror_is_failed_write(x, rc)); /* the rest is done */
    }
}

/* Drops exact tiles that the next query does not read, or (often) fewer. */
static inline void mirror_drop(struct mirror *x, struct mirror_seq *m)
{
    kv_world_sync(&x->w, x->w.lane.kv_up);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint32_t first =
            l == KV_SLIDING
                ? spw_waterline_first_visible(&x->residency[SPW_LAYER_SLIDING], m->n_tokens)
            : x->quantizes ? mirror_old_end(x, m->n_tokens)
                           : 0;
        first = (uint32_t)check_range(&x->w.seed, check_random(&x->w.seed) % 2 ? 0 : first, first);
        spw_kv_drop(m->seq, l, first);
        mirror_lower(&first, mirror_end(m));
        uint32_t *line = x->quantizes ? &m->exact_first[l] : &m->first[l];
        *line = *line < first ? first : *line;
        m->begin[l] = m->begin[l] < m->first[l] ? m->first[l] : m->begin[l];
    }
}

/* Exports some tiles of a layer: the words are right, and nothing has changed. */
static inline void mirror_export(struct mirror *x, struct mirror_seq *m, uint32_t layer)
{
    bool exact = x->quantizes && (layer == KV_SLIDING || check_random(&x->w.seed) % 2);
    enum spw_kv_form form = exact ? SPW_KV_FORM_EXACT : SPW_KV_FORM_TIERED;
    struct mirror_format format = exact ? x->exact : x->tiered;
    uint32_t first = exact ? m->exact_first[layer] : m->first[layer];
    uint32_t begin =
        (uint32_t)check_range(&x->w.seed, first, exact ? mirror_end(m) : m->end[layer]);
    uint32_t end = (uint32_t)check_range(&x->w.seed, begin, exact ? mirror_end(m) : m->end[layer]);
    uint64_t from_device, from_host, from_disk;
    if (exact && layer != KV_SLIDING && m->n_tokens && check_random(&x->w.seed) % 4 == 0)
        end = (begin = 0) + 1; /* the sink */
    if (check_random(&x->w.seed) % 2)
        spw_kv_finish_writes(x->w.kv);
    mirror_count(m, layer, form, begin, end, &from_device, &from_host, &from_disk);
    int rc = spw_kv_export(m->seq, layer, exact ? SPW_SNAPSHOT_TAIL : SPW_SNAPSHOT_OLD, begin, end,
                           x->memory);
    CHECK(!rc || (x->w.o.drive.faulty && rc == -EBADMSG));
    if (rc)
        return;
    x->down += from_device * mirror_bytes(format);
    x->read += from_disk * mirror_bytes(format);
    mirror_check_lines(x, m);
    for (uint32_t t = begin; t < end; t++)
        mirror_compare(x->memory + (t - begin) * mirror_bytes(format), format,
                       mirror_tile(m, layer, t), mirror_tokens_in(m, t));
}

/* ---- loads beside other operations ---- */

static inline uint64_t mirror_bytes_read(const struct mirror *x)
{
    struct spw_io_usage u;
    spw_io_usage(x->w.io, &u);
    return u.read_bytes;
}

/* Other sequences do something during a load of m; `quiet`: without reading. */
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

/* A load during such operations that is finished or given up. The expected bytes are those that it
 * has moved; they are known if no other sequence reads. */
static inline void mirror_load_ahead(struct mirror *x, struct mirror_seq *m, uint32_t layer,
                                     uint32_t begin)
{
    const struct kv_drive *d = &x->w.o.drive;
    uint64_t n = m->begin[layer] - begin;
    bool quiet = check_random(&x->w.seed) % 2;
    if (!d->disk || !n || !mirror_has_room(x, false, (uint32_t)n))
        return;
    uint64_t before = mirror_bytes_read(x), bytes = mirror_bytes(x->tiered);
    CHECK(spw_kv_load_ahead(m->seq, layer, begin) == 0);
    if (!spw_kv_is_loading(m->seq, layer))
        return;
    x->n_begun++;
    x->n_reserved = (uint32_t)n;
    mirror_act_beside(x, m, quiet);
    x->n_reserved = 0;
    int rc = -ECANCELED;
    if (quiet && check_random(&x->w.seed) % 3 == 0) {
        uint64_t n_read = 0;
        int lost = spw_kv_forget_loads(m->seq, &n_read);
        n = (mirror_bytes_read(x) - before) / bytes;
        CHECK(lost ? lost == -EBADMSG && d->faulty : n_read == n);
    } else {
        rc = spw_kv_finish_load(m->seq, layer);
        CHECK(!rc || (d->faulty && (rc == -EBADMSG || mirror_is_full(x, rc))));
    }
    x->read += n * bytes;
    x->up += d->direct ? 0 : n * bytes;
    m->begin[layer] = rc ? m->begin[layer] : begin;
}

/* ---- shrinking ---- */

/* Tiles of `units`, and as many frames as there is memory for. */
static inline struct spw_kv_shrink mirror_shrink_of(struct mirror *x, uint32_t units)
{
    const struct spw_kv_options *o = &x->w.kv->o;
    uint64_t bytes = (uint64_t)units * KV_UNIT, most = KV_MOST_UNITS * KV_UNIT;
    uint8_t *device = x->w.device_scratch;
    return (struct spw_kv_shrink){
        .tile_bytes = bytes,
        .n_device_frames = (uint32_t)(o->n_device_frames * o->tile_bytes / bytes),
        .n_host_frames = (uint32_t)(o->n_host_frames * o->tile_bytes / bytes),
        .n_disk_frames = (uint32_t)(o->n_disk_frames * o->tile_bytes / bytes),
        .exact_arena = o->exact_arena,
        .n_exact_frames = o->n_exact_frames,
        .exact_tile_bytes = o->exact_tile_bytes,
        .slot_tiles = (uint32_t)check_range(&x->w.seed, 1, 5),
        .context = x,
        .device_from = device,
        .device_to = device + most,
        .host_scratch = x->w.host_scratch,
        .buffers = x->w.o.drive.direct ? device + 2 * most : x->w.host_scratch,
        .n_buffers = (uint32_t)check_range(&x->w.seed, 1, KV_MOST_BUFFERS)};
}

/* The expected tiles after a conversion to another size. */
static inline struct mirror_format mirror_next(const struct mirror *x, uint64_t tile_bytes)
{
    return (struct mirror_format){(uint32_t)(tile_bytes / MIRROR_PLANE_BYTES),
                                  x->tiered.mask * 5 + 77};
}

static inline int mirror_convert(void *context, const void *from, void *to)
{
    struct mirror *x = context;
    struct mirror_format f = x->tiered, t = mirror_next(x, *(uint64_t *)(void *)x->memory);
    CHECK((const uint8_t *)from + mirror_bytes(f) <= (uint8_t *)to ||
          (uint8_t *)to + mirror_bytes(t) <= (const uint8_t *)from);
    return mirror_turn(x, from, f, to, t);
}

/* Shrinks the cache, and checks the result and the moved bytes. */
static inline int mirror_shrink(struct mirror *x, const struct spw_kv_shrink *given, bool convert,
                                struct spw_kv_shrunk *out)
{
    struct spw_kv_shrink r = *given;
    uint64_t from = mirror_bytes(x->tiered), to = r.tile_bytes;
    r.convert = convert ? mirror_convert : NULL;
    memcpy(x->memory, &to, sizeof to); /* for mirror_convert */
    int rc = spw_kv_shrink(x->w.kv, &r, out);
    if (rc)
        return rc;
    x->tiered = convert
                    ? mirror_next(x, to)
                    : (struct mirror_format){(uint32_t)(to / MIRROR_PLANE_BYTES), x->tiered.mask};
    if (!x->quantizes)
        x->exact = x->tiered;
    uint64_t by_device = convert ? out->n_host + (x->w.o.drive.direct ? 0 : out->n_disk) : 0;
    x->up += by_device * from;
    x->down += by_device * to;
    x->read += out->n_disk * from;
    x->written += out->n_disk * to;
    return 0;
}

#endif
