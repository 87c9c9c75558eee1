/* The KV cache against a mirror in plain memory (tests/unit/offload/kv_mirror.h): random operations
 * on several sequences that share tiles, in a cache that quantizes old tiles or does not. Random
 * delays around every copy, kernel and request help to find rare faults of order.
 *
 * The disk reads and writes device frames or host frames, with host memory for tiles or only for
 * transfers; or there is no disk. Sequences begin with attached tiles and with imported tiles. Now
 * and then all tiles become smaller in place. Then the drive fails: frames that cannot be written,
 * a time in which no frame can, frames that are read with a flipped bit or an error; files change
 * while they are in use. A read tile is right, or it is lost and reported. In the end every frame
 * is free and every file was released.
 *
 * Then single cases: full, refused, damaged or shared tiles; memory and the device that fail at the
 * n-th call.
 *
 *   test_kv [rounds] */
#include "tests/unit/offload/kv_mirror.h"

#include <fcntl.h>
#include <xxhash.h>

enum {
    N_FILES = 2,
    DEVICE_FRAMES = 60,
    N_RECORDS = KV_LAYERS * KV_TILES, /* of a file */
    HEAD_BYTES = 3 * 4096,            /* before them */
};

/* A file of tiles, its expected contents, and its two descriptors. */
struct file {
    int reads, writes;
    uint32_t word[KV_LAYERS][MIRROR_TOKENS];
    uint64_t tile_bytes;
    uint8_t *records; /* [KV_LAYERS][KV_TILES] */
    uint64_t sums[N_RECORDS];
    bool was_bad;
};

struct world {
    struct mirror x;
    struct file files[N_FILES];
    uint32_t n_pieces, n_damaged;
};

/* One attachment. */
struct piece {
    struct world *w;
    struct file *f;
    uint32_t n;
};

static uint64_t failed_writes, failed_reads, write_failures, loads_ahead, losses, damages,
    forks_begun;
static uint64_t n_cuts[2], n_sinks_opened, n_rolled_back, n_shrunk, n_refused, n_packed;

/* ---- files ---- */

static void write_records(const struct file *f)
{
    size_t bytes = N_RECORDS * f->tile_bytes;
    CHECK(pwrite(f->writes, f->records, bytes, HEAD_BYTES) == (ssize_t)bytes);
}

static void open_file(struct world *w, struct file *f)
{
    char path[128];
    snprintf(path, sizeof path, "%s/spw_kv_XXXXXX", w->x.w.directory);
    f->writes = mkstemp(path);
    f->reads = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->reads < 0)
        f->reads = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(f->writes >= 0 && f->reads >= 0);
    unlink(path);
    f->tile_bytes = mirror_bytes(w->x.tiered);
    f->records = aligned_alloc(4096, N_RECORDS * f->tile_bytes);
    for (uint32_t r = 0; r < N_RECORDS; r++) {
        uint8_t *record = f->records + r * f->tile_bytes;
        for (uint32_t i = 0; i < SPW_TILE_TOKENS; i++) {
            uint32_t word = w->x.next_word++;
            f->word[r / KV_TILES][r % KV_TILES * SPW_TILE_TOKENS + i] = word;
            mirror_set_word((uint32_t *)(void *)record, w->x.tiered, i, word);
        }
        f->sums[r] = XXH3_64bits(record, f->tile_bytes);
    }
    write_records(f);
}

static void close_file(struct file *f)
{
    if (!f->records)
        return;
    CHECK(close(f->writes) == 0 && close(f->reads) == 0);
    free(f->records);
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

/* Frames for n records. */
static uint32_t attach_records(struct world *w, struct file *f, uint32_t record, uint32_t n)
{
    uint32_t frame;
    struct piece *p = malloc(sizeof *p);
    *p = (struct piece){w, f, n};
    struct spw_disk_attachment a = {.fd = f->reads,
                                    .offset = HEAD_BYTES + record * f->tile_bytes,
                                    .n = n,
                                    .sums = f->sums + record,
                                    .released = released,
                                    .damaged = damaged,
                                    .context = p};
    CHECK(spw_disk_attach(w->x.w.disk, &a, &frame) == 0);
    w->n_pieces++;
    return frame;
}

/* Attaches tiles [from, to) of a layer in several pieces, as from several packs. */
static void attach_layer(struct world *w, struct mirror_seq *m, struct file *f, uint32_t layer,
                         uint32_t from, uint32_t to)
{
    for (uint32_t n; from < to; from += n) {
        n = (uint32_t)check_range(&w->x.w.seed, 1, to - from);
        uint32_t frame = attach_records(w, f, layer * KV_TILES + from, n);
        CHECK(spw_kv_attach(m->seq, layer, from, frame, n) == 0);
        m->begin[layer] = m->end[layer] = m->disk_end[layer] = from + n;
    }
}

/* ---- the environment ---- */

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed,
                       const struct kv_drive *drive, bool quantizes, uint32_t units)
{
    struct kv_world_options o = {.seed = seed,
                                 .delay_seed = delay_seed,
                                 .drive = *drive,
                                 .n_device_frames = DEVICE_FRAMES,
                                 .n_exact_frames = quantizes ? KV_FRAMES : 0};
    memset(w, 0, sizeof *w);
    mirror_open(&w->x, &o, units, (uint32_t)(seed % 4));
    for (int i = 0; i < N_FILES && drive->attaches; i++)
        open_file(w, &w->files[i]);
}

/* Checks everything, closes it, and checks that everything is free. */
static void world_close(struct world *w)
{
    failed_writes += w->x.w.faults.failed_writes;
    failed_reads += w->x.w.faults.failed_reads;
    write_failures += w->x.n_failed_writes;
    loads_ahead += w->x.n_begun;
    losses += w->x.n_lost;
    damages += w->n_damaged;
    mirror_close(&w->x);
    CHECK_MSG(!w->n_pieces, "%u pieces are left", w->n_pieces);
    CHECK(!w->n_damaged || w->x.w.o.drive.faulty);
    for (int i = 0; i < N_FILES; i++)
        close_file(&w->files[i]);
}

static void check_all(struct mirror *x)
{
    for (struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        if (m->seq) {
            mirror_check(x, m);
            mirror_recover(x);
        }
    mirror_drain(x);
}

/* Makes the drive worse, or better again. */
static void draw_drive_fault(struct world *w)
{
    struct kv_faults *f = &w->x.w.faults;
    uint64_t *seed = &w->x.w.seed;
    uint32_t i = (uint32_t)(check_random(seed) % (KV_FILE_UNITS / 4)); /* lower frames first */
    switch (check_random(seed) % 40) {
    case 0:
        f->unwritable[i] = 1;
        break;
    case 1:
        f->unreadable[i] = 1;
        break;
    case 2:
        f->flipped[i] = 1;
        break;
    case 3:
        f->dead = true;
        break;
    case 4:
    case 5:
    case 6:
        f->dead = false;
        f->unwritable[i] = f->unreadable[i] = f->flipped[i] = 0;
        break;
    }
}

/* Damages an attached file, or repairs it. */
static void draw_file_fault(struct world *w)
{
    uint64_t *seed = &w->x.w.seed;
    struct file *f = &w->files[check_random(seed) % N_FILES];
    uint64_t at = check_random(seed) % (N_RECORDS * f->tile_bytes);
    uint8_t byte = f->records[at] ^ 4;
    switch (check_random(seed) % 40) {
    case 0:
        CHECK(pwrite(f->writes, &byte, 1, (off_t)(HEAD_BYTES + at)) == 1);
        f->was_bad = true;
        break;
    case 1:
        CHECK(ftruncate(f->writes, (off_t)(HEAD_BYTES + at)) == 0);
        f->was_bad = true;
        break;
    case 2:
    case 3:
    case 4:
        write_records(f);
    }
}

/* ---- operations ---- */

/* Imports tiles [first, end) of a layer in the given form, of tokens up to n, with the words of a
 * file. */
static int import(struct world *w, struct mirror_seq *m, const struct file *f, bool exact,
                  uint32_t layer, uint32_t first, uint32_t n)
{
    struct mirror *x = &w->x;
    struct mirror_format format = exact ? x->exact : x->tiered;
    uint32_t end = spw_waterline_tiles(n);
    for (uint32_t i = first * SPW_TILE_TOKENS; i < end * SPW_TILE_TOKENS; i++)
        mirror_set_word(
            (uint32_t *)(void *)(x->memory + (i / SPW_TILE_TOKENS - first) * mirror_bytes(format)),
            format, i % SPW_TILE_TOKENS, f->word[layer][i]);
    SPW_TRY(spw_kv_import(m->seq, layer, exact ? SPW_SNAPSHOT_TAIL : SPW_SNAPSHOT_OLD, first, n,
                          x->memory));
    x->up += (end > first ? end - first : 0) * mirror_bytes(format);
    return 0;
}

/* Begins an empty sequence with the tokens of a file: some tiles are attached, the others are
 * imported. */
static void do_begin(struct world *w, struct mirror_seq *m)
{
    struct mirror *x = &w->x;
    struct file *f = &w->files[check_random(&x->w.seed) % N_FILES];
    uint32_t n = (uint32_t)check_range(&x->w.seed, 1, MIRROR_TOKENS), end = spw_waterline_tiles(n);
    uint32_t old = x->quantizes ? mirror_old_end(x, n) : n / SPW_TILE_TOKENS;
    uint32_t start = x->quantizes, attached = (uint32_t)check_range(&x->w.seed, start, old);
    if (!x->quantizes && check_random(&x->w.seed) % 3 == 0)
        n = (end = attached = old) * SPW_TILE_TOKENS; /* complete tiles only */
    if (!mirror_has_room(x, false, KV_LAYERS * (end - attached) + 3) ||
        (x->quantizes && !mirror_has_room(x, true, KV_LAYERS * KV_TILES)))
        return;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        bool slides = l == KV_SLIDING;
        uint32_t first =
                     slides ? spw_waterline_first_visible(&x->residency[SPW_LAYER_SLIDING], n) : 0,
                 at = first;
        mirror_lower(&first, end);
        at = first;
        memcpy(m->word[l], f->word[l], n * sizeof m->word[l][0]);
        if (x->quantizes && !slides) { /* old tiles; the sink; the window */
            attach_layer(w, m, f, l, 1, attached);
            CHECK(import(w, m, f, false, l, attached, old * SPW_TILE_TOKENS) == 0);
            m->end[l] = old;
            first = at = old > 1 && end > 1 ? old : 0;
            if (first)
                CHECK(import(w, m, f, true, l, 0, SPW_TILE_TOKENS) == 0);
        } else if (!x->quantizes) {
            m->first[l] = m->begin[l] = m->end[l] = first;
            if (first < attached && (!slides || check_random(&x->w.seed) % 2))
                attach_layer(w, m, f, l, first, at = attached);
            m->end[l] = end;
        }
        CHECK(import(w, m, f, true, l, at, n) == 0);
        m->exact_first[l] = first;
    }
    m->n_tokens = n;
}

static void do_truncate(struct mirror *x, struct mirror_seq *m)
{
    static const uint32_t most[3] = {3, SPW_TILE_TOKENS, MIRROR_TOKENS};
    uint32_t n = (uint32_t)check_range(&x->w.seed, 0, most[check_random(&x->w.seed) % 3]);
    mirror_lower(&n, m->n_tokens);
    bool can = mirror_can_truncate(x, m, n);
    CHECK(spw_kv_can_truncate(m->seq, x->residency, n) == can);
    n_cuts[can]++;
    n_sinks_opened += can && n && n < SPW_TILE_TOKENS && m->exact_first[0] > 1;
    mirror_cut(x, m, can ? n : 0);
}

/* Layer l needs what it has dropped since then, if the sequence is cut back to n tokens. */
static bool needs_retained(const struct mirror *x, const struct mirror_seq *m, uint32_t l,
                           uint32_t n)
{
    const enum spw_layer_kind kind = l == KV_SLIDING ? SPW_LAYER_SLIDING : SPW_LAYER_FULL;
    return mirror_exact_first(x, m, l) > spw_waterline_first_read_exact(&x->residency[kind], n);
}

static void forget_retained(const struct mirror_seq *m)
{
    spw_kv_retain(m->seq, m->n_tokens); /* replaces the earlier retain */
    for (uint32_t i = 0; i < 2 * KV_LAYERS; i++)
        m->seq->tables[i].retained = m->seq->tables[i].retained_end = 0;
}

/* Retains the tiles that the sequence holds before a pass. If the pass is taken back, the sequence
 * has them again. */
static void do_pass(struct mirror *x, struct mirror_seq *m)
{
    static struct mirror_seq before;
    if (m->begin[KV_SLIDING] != m->first[KV_SLIDING] && !x->quantizes)
        return; /* a sequence with tiles in lower tiers retains nothing */
    before = *m;
    spw_kv_retain(m->seq, m->n_tokens);
    x->n_reserved =
        (x->quantizes ? KV_LAYERS : 1) * KV_TILES; /* frames of retained tiles that were dropped */
    for (int i = (int)check_range(&x->w.seed, 0, 4); i; i--) {
        mirror_grow(x, m);
        mirror_drop(x, m);
    }
    x->n_reserved = 0;
    struct mirror_seq *fork = check_random(&x->w.seed) % 2 ? mirror_fork(x, m) : NULL;
    if (fork) /* retains nothing */
        mirror_seq_close(x, fork);
    if (check_random(&x->w.seed) % 2) {
        forget_retained(m);
        mirror_cut(x, m, m->n_tokens);
        return;
    }
    uint32_t less = check_random(&x->w.seed) % 3 ? 0 : (uint32_t)check_range(&x->w.seed, 0, 300);
    uint32_t n = before.n_tokens > less ? before.n_tokens - less : 0;
    bool can = mirror_can_truncate(x, &before, n);
    CHECK(spw_kv_can_truncate(m->seq, x->residency, n) == can);
    uint32_t more = (uint32_t)check_range(&x->w.seed, before.n_tokens, m->n_tokens);
    CHECK(spw_kv_reach(m->seq, x->residency, more) >= before.n_tokens);
    n = can ? n : 0;
    n_rolled_back += n && needs_retained(x, m, 0, n);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        if (!needs_retained(x, m, l, n))
            continue;
        m->exact_first[l] = before.exact_first[l];
        if (!x->quantizes)
            m->first[l] = m->begin[l] = before.first[l];
    }
    mirror_cut(x, m, n);
    forget_retained(m);
}

/* Makes tiles smaller, or moves tiles of the same size into fewer frames. Exact frames of a
 * quantizing cache move to lower addresses. */
static void do_shrink(struct world *w)
{
    struct mirror *x = &w->x;
    struct spw_kv_shrunk out;
    uint32_t units = x->tiered.n_planes / MIRROR_UNIT_PLANES;
    uint32_t lines[2][KV_SEQS * KV_LAYERS * 2] = {{0}};
    if (units < 2)
        return;
    mirror_drain(x);
    spw_kv_take_write_failure(x->w.kv);
    struct spw_kv_shrink r = mirror_shrink_of(x, (uint32_t)check_range(&x->w.seed, 1, units - 1));
    struct spw_kv_shrink fewer = r;
    bool convert = check_random(&x->w.seed) % 3, pack = check_random(&x->w.seed) % 2;
    fewer.n_device_frames = (uint32_t)check_range(&x->w.seed, 1, r.n_device_frames);
    if (x->quantizes)
        fewer.n_exact_frames = (uint32_t)check_range(&x->w.seed, KV_FRAMES / 2, r.n_exact_frames);
    if (x->w.o.drive.disk)
        fewer.n_disk_frames = (uint32_t)check_range(&x->w.seed, 1, r.n_disk_frames);
    for (int after = 0; after < 2; after++) {
        for (uint32_t i = 0; i < KV_SEQS * KV_LAYERS; i++) {
            const struct spw_kv_seq *seq = x->seqs[i / KV_LAYERS].seq;
            lines[after][2 * i] = seq ? spw_kv_begin(seq, i % KV_LAYERS) : 0;
            lines[after][2 * i + 1] = seq ? spw_kv_disk_end(seq, i % KV_LAYERS) : 0;
        }
        if (after)
            break;
        int rc = mirror_shrink(x, pack ? &fewer : &r, convert, &out);
        n_packed += pack && !rc;
        x->tight |= pack && !rc && x->w.o.drive.disk;
        if (pack && rc == -ENOMEM) { /* too few */
            n_refused++;
            rc = mirror_shrink(x, &r, convert, &out);
        }
        CHECK(!rc && (!out.n_lost || x->w.o.drive.faulty));
    }
    CHECK(!memcmp(lines[0], lines[1], sizeof lines[0]));
    n_shrunk += out.n_device + out.n_host + out.n_disk;
    check_all(x);
}

static void step(struct world *w, bool shrinks)
{
    struct mirror *x = &w->x;
    struct mirror_seq *m = &x->seqs[check_random(&x->w.seed) % KV_SEQS];
    uint32_t layer = (uint32_t)(check_random(&x->w.seed) % (KV_LAYERS - x->quantizes));
    const struct kv_drive *d = &x->w.o.drive;
    if (d->faulty && d->attaches)
        draw_file_fault(w);
    else if (d->faulty)
        draw_drive_fault(w);
    if (!m->seq) {
        mirror_seq_open(x, m);
        return;
    }
    if (!m->n_tokens && d->attaches) {
        do_begin(w, m);
        return;
    }
    uint32_t begin = (uint32_t)check_range(&x->w.seed, m->first[layer], m->begin[layer]);
    switch (check_random(&x->w.seed) % (shrinks ? 21 : 20)) {
    case 0:
        mirror_seq_close(x, m);
        return;
    case 1:
        forks_begun += mirror_fork(x, m) != NULL;
        break;
    case 2:
        do_truncate(x, m);
        break;
    case 3:
    case 4:
        mirror_drop(x, m);
        break;
    case 5:
        mirror_load_ahead(x, m, layer, begin);
        break;
    case 6:
    case 7:
        mirror_load(x, m, layer, begin);
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        mirror_spill(x, m, layer);
        break;
    case 12:
        mirror_export(x, m, (uint32_t)(check_random(&x->w.seed) % KV_LAYERS));
        break;
    case 13:
    case 14:
        if (!d->faulty)
            do_pass(x, m);
        break;
    case 15:
        spw_kv_drop_copies(m->seq, layer, begin);
        break;
    case 20:
        if (!d->attaches && check_random(&x->w.seed) % 4 == 0)
            do_shrink(w);
        break;
    default:
        mirror_grow(x, m);
    }
    mirror_recover(x);
    if (m->seq && check_random(&x->w.seed) % 3 == 0)
        mirror_check(x, m);
    mirror_recover(x);
}

static void run_round(uint64_t seed, uint64_t delay_seed, const struct kv_drive *drive,
                      bool quantizes)
{
    static struct world w;
    bool shrinks = check_random(&seed) % 3 == 0;
    world_open(&w, seed, delay_seed, drive, quantizes, shrinks ? KV_MOST_UNITS - 1 : 1);
    for (int i = 0; i < 300; i++)
        step(&w, shrinks);
    check_all(&w.x);
    world_close(&w);
}

/* ---- frames ---- */

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
    spw_tier_free(&t);
}

/* Several series that grow in turn, as layers do in decode, stay in one piece each: a run at a
 * time, or longer if the next place is free. */
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

/* All device frames can be taken, the next one is refused, and closing frees all of them. */
static void check_tier_full(void)
{
    static struct world w;
    struct mirror *x = &w.x;
    world_open(&w, 1, 0, &(struct kv_drive){.host = true}, false, 1);
    for (int round = 0; round < 3; round++) {
        struct spw_kv_seq *seqs[KV_SEQS];
        uint32_t taken = 0;
        int rc = 0;
        for (uint32_t i = 0; i < KV_SEQS; i++)
            CHECK(spw_kv_seq_open(&seqs[i], x->w.kv) == 0);
        for (uint32_t i = 0; !rc; taken += !rc, i++)
            rc = spw_kv_grow(seqs[i / KV_LAYERS % KV_SEQS], i % KV_LAYERS,
                             i / KV_LAYERS / KV_SEQS * SPW_TILE_TOKENS,
                             (i / KV_LAYERS / KV_SEQS + 1) * SPW_TILE_TOKENS);
        CHECK(rc == -ENOMEM && taken == DEVICE_FRAMES);
        /* one tile is spilled, one frame is free again */
        CHECK(spw_kv_spill(seqs[0], 0, 1, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        CHECK(spw_kv_load(seqs[0], 0, 0) == 0);
        x->down += KV_UNIT;
        x->up += KV_UNIT;
        mirror_drain(x);
        for (uint32_t i = 0; i < KV_SEQS; i++)
            spw_kv_seq_close(seqs[i]);
    }
    world_close(&w);
}

/* A disk with room for three tiles, or a limit of three writes: the fourth tile stays where it is,
 * and the call may be repeated when there is room, or without the disk. */
static void check_disk_full(struct kv_drive drive, bool quantizes, int expected)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct mirror_seq *m = &x->seqs[0];
    uint32_t first = quantizes, stop = first + 3, all = first + 5;
    world_open(&w, 4, 0, &drive, quantizes, 1); /* no residual window */
    mirror_seq_open(x, m);
    mirror_grow_to(x, m, MIRROR_TOKENS);
    for (int repeat = 0; repeat < 2; repeat++) {
        uint64_t to_host, to_disk;
        spw_kv_count_spill(m->seq, 0, all, all, &to_host, &to_disk);
        CHECK(to_disk == (repeat ? 2u : 5u));
        CHECK(spw_kv_spill(m->seq, 0, all, all) == expected);
        m->begin[0] = m->disk_end[0] = stop;
        mirror_check(x, m);
    }
    CHECK(spw_kv_spill(m->seq, 0, all, stop) == 0); /* the host has room */
    m->begin[0] = all;
    mirror_check(x, m);
    mirror_load(x, m, 0, first);
    mirror_check(x, m);
    x->written += 3 * KV_UNIT;
    x->down += (drive.direct ? 2u : 5u) * KV_UNIT;
    world_close(&w);
}

/* ---- exact tiles beside quantized ones ---- */

/* A sink that two sequences share is copied if one of them writes to it again. If there is no frame
 * for the copy, nothing has changed. */
static void check_shared_sink(void)
{
    static struct mirror x;
    struct kv_world_options o = {
        .seed = 3, .drive = {.host = true}, .n_device_frames = 4, .n_exact_frames = 3};
    struct spw_kv_seq *a, *b;
    mirror_open(&x, &o, 1, 3);
    CHECK(spw_kv_seq_open(&a, x.w.kv) == 0 && spw_kv_seq_open(&b, x.w.kv) == 0);
    CHECK(spw_kv_grow(a, 0, 0, 3 * SPW_TILE_TOKENS) == 0);
    spw_kv_seq_fork(b, a);
    spw_kv_drop(b, 0, 2);
    const void *sink = spw_kv_exact_tile(a, 0, 0);
    CHECK(spw_kv_exact_tile(b, 0, 0) == sink);
    spw_kv_truncate(b, x.residency, 100);
    CHECK(spw_kv_exact_first(b, 0) == 0 && spw_kv_exact_tile(b, 0, 0) == sink);
    CHECK(spw_kv_grow(b, 0, 100, 120) == -ENOMEM && spw_kv_exact_tile(b, 0, 0) == sink);
    spw_kv_drop(a, 0, 2);
    CHECK(spw_kv_grow(b, 0, 100, 120) == 0 && spw_kv_exact_tile(b, 0, 0) != sink);
    CHECK(spw_kv_exact_tile(a, 0, 0) == sink);
    spw_kv_seq_close(a);
    spw_kv_seq_close(b);
    mirror_close(&x);
}

/* ---- attached tiles ---- */

/* A refused call changes nothing, and the caller still owns the frames. */
static void check_refused(void)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct mirror_seq *m = &x->seqs[0];
    struct spw_kv_seq *seqs[DEVICE_FRAMES / KV_TILES + 1];
    uint32_t n = 0;
    world_open(&w, 1, 0, &(struct kv_drive){.attaches = true, .direct = true}, false, 1);
    const uint8_t *records = w.files[0].records;
    mirror_seq_open(x, m);
    uint32_t frame = attach_records(&w, &w.files[0], 0, KV_TILES);
    CHECK(spw_kv_attach(m->seq, 0, 1, frame, KV_TILES) == -E2BIG);
    CHECK(spw_kv_import(m->seq, 0, SPW_SNAPSHOT_TAIL, 1, MIRROR_TOKENS + 1, records) == -E2BIG);
    spw_alloc_fail_nth(0);
    CHECK(spw_kv_attach(m->seq, 0, 0, frame, KV_TILES) == -ENOMEM);
    spw_alloc_fail_nth(-1);
    mirror_check_lines(x, m);
    CHECK(w.n_pieces == 1 && spw_kv_attach(m->seq, 0, 0, frame, KV_TILES) == 0);
    for (int rc = 0; !rc; n += !rc) { /* until the device is full */
        CHECK(spw_kv_seq_open(&seqs[n], x->w.kv) == 0);
        rc = spw_kv_import(seqs[n], 1, SPW_SNAPSHOT_TAIL, 0, MIRROR_TOKENS, records);
        CHECK(!rc || (rc == -ENOMEM && !spw_kv_end(seqs[n], 1)));
    }
    CHECK(n == DEVICE_FRAMES / KV_TILES);
    CHECK(spw_kv_import(seqs[n], 1, SPW_SNAPSHOT_TAIL, 3, 5 * SPW_TILE_TOKENS + 1, records) == 0);
    CHECK(spw_kv_first(seqs[n], 1) == 3 && spw_kv_end(seqs[n], 1) == 6);
    for (uint32_t i = 0; i <= n; i++)
        spw_kv_seq_close(seqs[i]);
    x->up += (n * KV_TILES + 3) * KV_UNIT;
    world_close(&w);
}

/* A tile is on the device for one sequence, and its attached copy is damaged. Another sequence
 * finds the damage. The disk has no frame for the tile, so it is lost when it must leave the
 * device, and nothing has moved. */
static void check_loss_on_device(bool direct)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct mirror_seq *m = &x->seqs[0];
    struct kv_drive d = {.attaches = true, .direct = direct, .faulty = true, .host = !direct};
    struct spw_kv_loss loss;
    world_open(&w, 3, 0, &d, false, 1);
    mirror_seq_open(x, m);
    attach_layer(&w, m, &w.files[0], 0, 0, 2);
    struct mirror_seq *other = mirror_fork(x, m);
    CHECK(spw_kv_load(m->seq, 0, 0) == 0);
    w.files[0].was_bad = true;
    spw_kv_note_loss(other->seq, 0, 1, -EBADMSG); /* like a reader of its slot */
    CHECK(spw_kv_take_loss(x->w.kv, &loss) && loss.seq == other->seq);
    CHECK(spw_kv_spill(m->seq, 0, 1, 2) == 0 && spw_kv_begin(m->seq, 0) == 1);
    CHECK(spw_kv_spill(m->seq, 0, 2, 2) == -EBADMSG && spw_kv_begin(m->seq, 0) == 1);
    CHECK(spw_kv_take_loss(x->w.kv, &loss) && loss.seq == m->seq && loss.tile == 1);
    spw_kv_truncate(m->seq, x->residency, SPW_TILE_TOKENS);
    spw_kv_truncate(other->seq, x->residency, SPW_TILE_TOKENS);
    world_close(&w);
}

/* ---- failures of the shrink ---- */

enum { BUILT_UNITS = 4, SMALLER_UNITS = 2 };

/* Two sequences that share tiles in every tier. */
static void build(struct world *w, const struct kv_drive *drive, uint64_t seed)
{
    struct mirror *x = &w->x;
    struct mirror_seq *m = &x->seqs[0];
    world_open(w, seed, 0, drive, false, BUILT_UNITS);
    mirror_seq_open(x, m);
    mirror_grow_to(x, m, 6 * SPW_TILE_TOKENS);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint64_t disk_end = drive->host ? 3 : 5, bytes = mirror_bytes(x->tiered);
        CHECK(spw_kv_spill(m->seq, l, 5, (uint32_t)disk_end) == 0);
        x->down += (drive->direct ? 5 - disk_end : 5) * bytes;
        x->written += disk_end * bytes;
        m->begin[l] = 5;
        m->disk_end[l] = (uint32_t)disk_end;
        CHECK(mirror_load(x, m, l, 4));
    }
    mirror_fork(x, m);
    check_all(x);
}

/* The n-th allocation fails, for n = 0, 1, ... until none fails; and there are too few frames. */
static void check_memory(const struct kv_drive *drive)
{
    static struct world w;
    struct spw_kv_shrunk out;
    build(&w, drive, 11);
    struct spw_kv_shrink r = mirror_shrink_of(&w.x, SMALLER_UNITS), fewer = r;
    fewer.n_device_frames = 1;
    CHECK(mirror_shrink(&w.x, &fewer, true, &out) == -ENOMEM);
    fewer = r;
    fewer.n_disk_frames = 1;
    CHECK(mirror_shrink(&w.x, &fewer, true, &out) == -ENOMEM);
    check_all(&w.x);
    int rc = -ENOMEM;
    for (int64_t n = 0; rc; n++) {
        CHECK(n < 100);
        spw_alloc_fail_nth(n);
        rc = mirror_shrink(&w.x, &r, true, &out);
        spw_alloc_fail_nth(-1);
        CHECK(!rc || rc == -ENOMEM);
        check_all(&w.x);
    }
    world_close(&w);
}

/* A write limit that allows the writes of build and of the shrink; or one byte less. */
static uint64_t limit_of(struct kv_drive drive, uint64_t seed)
{
    static struct world w;
    drive.limit_bytes = UINT64_MAX;
    build(&w, &drive, seed);
    uint64_t written = w.x.written;
    world_close(&w);
    return written / BUILT_UNITS * (BUILT_UNITS + SMALLER_UNITS);
}

static void check_limit(struct kv_drive drive)
{
    static struct world w;
    uint64_t limit = limit_of(drive, 12);
    for (int missing = 0; missing < 2; missing++) {
        struct spw_kv_shrunk out;
        drive.limit_bytes = limit - (uint64_t)missing;
        build(&w, &drive, 12);
        struct spw_kv_shrink r = mirror_shrink_of(&w.x, SMALLER_UNITS);
        CHECK(mirror_shrink(&w.x, &r, true, &out) == (missing ? -EDQUOT : 0));
        CHECK(missing || out.n_disk);
        check_all(&w.x);
        world_close(&w);
    }
}

enum fault { UNREADABLE, FLIPPED, UNWRITABLE, WRITE_ONCE, WRITE_ONCE_AT_LIMIT, FAULTS };

/* One tile on the disk that two sequences share has a fault: it is lost for both, or for none. */
static void check_fault(struct kv_drive drive, enum fault fault)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct spw_kv_shrunk out;
    drive.faulty = true;
    if (fault == WRITE_ONCE_AT_LIMIT)
        drive.limit_bytes = limit_of(drive, 14);
    build(&w, &drive, 14);
    struct spw_kv_shrink r = mirror_shrink_of(x, SMALLER_UNITS);
    uint32_t frame = spw_kv_disk_frame(x->seqs[0].seq, 1, 2);
    x->w.faults.unreadable[frame * BUILT_UNITS] = fault == UNREADABLE;
    x->w.faults.flipped[frame * BUILT_UNITS] = fault == FLIPPED;
    x->w.faults.unwritable[frame * SMALLER_UNITS] = fault == UNWRITABLE;
    x->w.faults.next_write = fault >= WRITE_ONCE;
    CHECK(mirror_shrink(x, &r, true, &out) == 0);
    CHECK(!x->w.faults.next_write && out.n_lost == (fault != WRITE_ONCE));
    int rc = spw_kv_lost(x->seqs[0].seq, 1, 2);
    CHECK(fault >= WRITE_ONCE || rc == (fault == FLIPPED ? -EBADMSG : -EIO) || rc == -ENOSPC);
    for (int i = 0; i < 2 && fault < WRITE_ONCE; i++) {
        CHECK(spw_kv_lost(x->seqs[i].seq, 1, 2) == rc);
        CHECK(spw_kv_load(x->seqs[i].seq, 1, 1) == -EBADMSG);
    }
    mirror_recover(x);
    for (int i = 0; i < 2 && fault < WRITE_ONCE; i++)
        CHECK(x->seqs[i].n_tokens == 2 * SPW_TILE_TOKENS);
    CHECK(spw_disk_n_retired(x->w.disk) > 0 || fault == WRITE_ONCE);
    check_all(x);
    world_close(&w);
}

/* Attached tiles move into our own file, or are lost if it is full; their files are released. */
static void check_attached(struct kv_drive drive, bool spoiled, bool full)
{
    static struct world w;
    struct mirror *x = &w.x;
    struct mirror_seq *m = &x->seqs[2];
    struct file *f = &w.files[0];
    struct spw_kv_shrunk out;
    drive.attaches = true;
    drive.faulty = spoiled || full; /* tiles may be lost */
    build(&w, &drive, 15);
    mirror_seq_open(x, m);
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        memcpy(m->word[l], f->word[l], sizeof m->word[l]);
        attach_layer(&w, m, f, l, 0, KV_TILES);
    }
    m->n_tokens = MIRROR_TOKENS;
    struct mirror_seq *fork = mirror_fork(x, m);
    CHECK(mirror_load(x, fork, 2, KV_TILES - 2));
    if (spoiled) { /* tile 1 */
        f->records[f->tile_bytes + 5] ^= 1;
        write_records(f);
        f->was_bad = true;
    } else {
        check_all(x);
    }
    struct spw_kv_shrink r = mirror_shrink_of(x, SMALLER_UNITS);
    uint32_t n_own = 0;
    for (uint32_t i = 0; i < x->w.kv->n_tiles; i++)
        n_own += x->w.kv->tiles[i].disk < KV_FRAMES;
    if (full)
        r.n_disk_frames = n_own + 2;
    CHECK(mirror_shrink(x, &r, true, &out) == 0);
    CHECK(!w.n_pieces && w.n_damaged == spoiled && !x->w.kv->n_attached);
    CHECK(out.n_lost == (full ? N_RECORDS - 2u : 0u) + spoiled);
    check_all(x);
    CHECK((m->n_tokens == MIRROR_TOKENS) == !(full || spoiled));
    world_close(&w);
}

/* ---- what fails at the n-th call ---- */

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not. Work in flight ends,
 * and everything can be cut to nothing and closed. */
static void check_lost_device(const struct kv_drive *drive, bool quantizes, bool shrinks)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n++) {
        static struct world w;
        struct mirror *x = &w.x;
        struct kv_world *k = &x->w;
        struct mirror_seq *m = &x->seqs[0], *b = &x->seqs[1];
        struct spw_kv_shrunk out;
        uint32_t first = quantizes, end = 7, disk_end = drive->host ? 5 : end;
        uint64_t n_read = 0;
        world_open(&w, 4 + 4 * (uint64_t)n, 0, drive, quantizes, 2);
        mirror_seq_open(x, m);
        mirror_seq_open(x, b);
        if (drive->attaches)
            attach_layer(&w, m, &w.files[0], 0, first, 5);
        spw_device_cpu_fail_nth(k->lane.device, n);
        if (drive->attaches)
            rc = import(&w, m, &w.files[0], false, 0, 5, MIRROR_TOKENS);
        else
            rc = spw_kv_grow(m->seq, 0, 0, MIRROR_TOKENS);
        if (!rc && quantizes && !drive->attaches)
            rc = spw_kv_quantize(m->seq, 0, KV_TILES);
        rc = rc ? rc : spw_kv_load(m->seq, 0, 3);
        rc = rc ? rc : spw_kv_spill(m->seq, 0, end, drive->disk || drive->attaches ? disk_end : 0);
        rc = rc ? rc : spw_kv_load_ahead(m->seq, 0, 2);
        if (rc)
            spw_kv_forget_loads(m->seq, &n_read);
        rc = rc ? rc : spw_kv_load(m->seq, 0, first);
        spw_kv_seq_fork(b->seq, m->seq);
        rc = rc ? rc : spw_kv_spill(b->seq, 0, 4, 4);
        rc = rc ? rc : spw_kv_spill(m->seq, 0, 4, 4);
        rc = rc ? rc : spw_kv_load(b->seq, 0, first);
        rc = rc ? rc : spw_kv_export(m->seq, 0, SPW_SNAPSHOT_OLD, first, KV_TILES, x->memory);
        struct spw_kv_shrink r = mirror_shrink_of(x, 1);
        if (shrinks && !rc)
            rc = mirror_shrink(x, &r, true, &out);
        rc = rc ? rc : spw_lane_stream_sync(&k->lane, k->lane.disk);
        rc = rc ? rc : spw_lane_stream_sync(&k->lane, k->lane.compute);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(k->lane.device, -1);
        k->device_is_lost = rc;
        if (n % 2)
            spw_kv_truncate(m->seq, x->residency, 0);
        world_close(&w);
        CHECK(n < 1000);
    }
}

int main(int argc, char **argv)
{
    struct check_draws rounds =
        check_draws_of(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 60 : 400);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_tier();
    for (int i = 0; i < 100; i++)
        check_tier_series(&seed);
    check_tier_full();
    check_shared_sink();
    check_refused();
    for (int i = 0; i < 4; i++) {
        struct kv_drive d = {.disk = true, .direct = i % 2, .host = true, .n_frames = 3};
        check_disk_full(d, i / 2, -ENOMEM);
        d.n_frames = 0;
        d.limit_bytes = 3 * KV_UNIT;
        check_disk_full(d, i / 2, -EDQUOT);
        d = (struct kv_drive){.disk = true, .direct = i % 2, .host = i / 2};
        check_memory(&d);
        check_limit(d);
        for (int fault = 0; fault < FAULTS; fault++)
            check_fault(d, (enum fault)fault);
        check_attached(d, false, false);
        check_attached(d, true, false);
        check_attached(d, false, true);
        check_loss_on_device(i % 2);
        d.faulty = true;
        check_lost_device(&d, false, true);
        check_lost_device(&d, true, true);
        d.attaches = true;
        check_lost_device(&d, i % 2, false);
    }
    while (check_another(&rounds)) {
        int i = rounds.done - 1;
        struct kv_drive d = {.disk = check_random(&seed) % 4, .faulty = i % 4 == 3};
        d.attaches = check_random(&seed) % 3 == 0;
        d.faulty &= d.disk || d.attaches;
        d.direct = check_random(&seed) % 2;
        d.host = check_random(&seed) % 2 || (!d.disk && !d.attaches);
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d,
                  check_random(&seed) % 2);
    }
    fprintf(stderr,
            "%llu words compared; %llu requests failed to write, %llu to read; %llu writes given "
            "up; %llu tiles damaged, %llu lost; %llu loads ahead; %llu forks; %llu cuts refused, "
            "%llu done, %llu behind a gap; %llu passes taken back; %llu tiles requantized, %llu "
            "times refused, %llu to fewer frames\n",
            (unsigned long long)atomic_load(&mirror_checked), (unsigned long long)failed_writes,
            (unsigned long long)failed_reads, (unsigned long long)write_failures,
            (unsigned long long)damages, (unsigned long long)losses,
            (unsigned long long)loads_ahead, (unsigned long long)forks_begun,
            (unsigned long long)n_cuts[0], (unsigned long long)n_cuts[1],
            (unsigned long long)n_sinks_opened, (unsigned long long)n_rolled_back,
            (unsigned long long)n_shrunk, (unsigned long long)n_refused,
            (unsigned long long)n_packed);
    bool all = failed_writes && failed_reads && write_failures && damages && losses &&
               loads_ahead && forks_begun && n_cuts[0] && n_cuts[1] && n_sinks_opened &&
               n_rolled_back && n_shrunk && n_refused && n_packed;
    CHECK(rounds.done < 200 || all);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
