/* The transfer rings: what arrives is what was asked for, before it is read; no slot is overwritten
 * while kernels read it; what was fetched ahead is used if it comes true and dropped if not; and
 * what is ahead is exact. With random delays around every copy and kernel.
 *
 * Tiles lie on the host and on the disk, which is read directly or by way of bounce slots; between
 * two segments of a layer more of them go down, as they do while a prompt passes. Drives are late,
 * out of order, and in some rounds lose tiles: then the wait says so, and nothing wrong is read.
 * Weights, too, are read from a file then, at odd places of it.
 *
 *   test_prefetch [rounds] */
#define KV_WORLD_TILES 14
#include "tests/unit/offload/kv_world.h"

#include "prefetch/prefetch.h"

#include <fcntl.h>

enum {
    N_LAYERS = KV_LAYERS,
    N_HEADS = 3, /* weight blocks after the layers */
    N_BLOCKS = N_LAYERS + N_HEADS,
    N_SEQS = 2,
    MAX_TILES = KV_TILES,
    TILE_BYTES = KV_UNIT,
    BLOCK_BYTES = 8192, /* with gaps between two pieces; or two blocks of a file */
    BLOCK_STRIDE = 3 * 4096,
    MOST_SLOTS = 4,
    MOST_SPLITS = 3, /* in a slot */
    DEVICE_FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
    DISK_FRAMES = KV_FRAMES, /* twice as many: some are retired */
};

static const uint32_t layers[N_LAYERS] = {0, 1, 2}, one_slice[SPW_LAYER_KINDS] = {1, 1, 1};

/* ---- kernels: a slow reader, and a writer of tiles ---- */

struct read_args {
    const uint8_t *from;
    uint64_t bytes;
    uint8_t expected;
};

static _Atomic uint64_t wrong_reads, n_reads;

static void run_read(const void *args, size_t task, unsigned worker)
{
    const struct read_args *a = args;
    (void)task;
    (void)worker;
    for (uint64_t i = 0; i < a->bytes; i++)
        if (a->from[i] != a->expected)
            atomic_fetch_add(&wrong_reads, 1);
    atomic_fetch_add(&n_reads, 1);
}

static void run_fill(const void *args, size_t task, unsigned worker)
{
    const struct read_args *a = args;
    (void)task;
    (void)worker;
    memset((void *)(uintptr_t)a->from, a->expected, a->bytes);
}

static const struct spw_kernel reader = {"read", kv_one_task, run_read};
static const struct spw_kernel filler = {"fill", kv_one_task, run_fill};

/* ---- the world ---- */

struct bytes {
    uint64_t host_to_device, disk_to_host;
};

struct world {
    struct kv_world k;
    uint8_t *slots, *weight_slots, *resident, *bounce;
    struct spw_kv_seq *seqs[N_SEQS];
    struct spw_prefetch *prefetch;
    struct spw_block blocks[N_BLOCKS];
    struct spw_piece pieces[N_BLOCKS][2];
    uint8_t host_blocks[N_BLOCKS][BLOCK_BYTES];
    struct block_calls {
        uint8_t *host;
        uint8_t value;
        _Atomic uint32_t prepared, copied;
    } calls[N_BLOCKS];
    int block_fd;
    struct spw_io_file block_file;
    struct spw_block_read block_reads[N_BLOCKS][2];
    uint64_t block_sums[N_BLOCKS][2];
    uint64_t bounce_offsets[N_BLOCKS][2];
    uint8_t *block_bounce;
    uint32_t n_kv_slots, n_weight_slots, slot_tiles, n_bounce;
    const struct spw_schedule *ahead; /* what the rings are ahead for; NULL: nothing */
    struct bytes dropped;
    uint64_t n_dropped;
    bool failed;                              /* what is dropped is of a step that has failed */
    uint64_t needed_bytes, needed_disk_bytes; /* of the steps that were begun */
    _Atomic bool no_blocks;                   /* their file cannot be read */
    uint32_t fallen[N_SEQS][2];               /* disk_end of every layer of a kind */
};

static uint8_t tile_value(int seq, uint32_t layer, uint32_t tile)
{
    return (uint8_t)(1 + (uint32_t)seq * 97 + layer * 31 + tile * 7);
}

static void launch(struct world *w, const struct spw_kernel *k, const void *at, uint64_t bytes,
                   uint8_t value)
{
    struct read_args a = {at, bytes, value};
    CHECK(kv_launch(&w->k, k, w->k.lane.compute, &a, sizeof a) == 0 || w->k.device_is_lost);
}

static void count_copy(void *context)
{
    struct block_calls *c = context;
    atomic_fetch_add(&c->copied, 1);
}

/* Only now the pieces hold what is to be read. */
static void prepare_block(void *context)
{
    struct block_calls *c = context;
    memset(c->host, c->value, BLOCK_BYTES);
    atomic_fetch_add(&c->prepared, 1);
}

/* The block lies in the file: its pieces in two blocks of which the second may be the file's last,
 * and the file end with the piece. */
static void read_block(struct world *w, uint32_t u, uint64_t *seed)
{
    static uint8_t bytes[4096];
    struct spw_block *block = &w->blocks[u];
    bool direct = check_random(seed) % 2;
    memset(bytes, w->calls[u].value, sizeof bytes);
    *block = (struct spw_block){.layer = block->layer,
                                .pieces = w->pieces[u],
                                .n_pieces = 2,
                                .reads = w->block_reads[u],
                                .n_reads = 2,
                                .read_bytes = 2 * 4096,
                                .bounce_offsets = direct ? NULL : w->bounce_offsets[u],
                                .moved_bytes = direct ? 0 : block->moved_bytes};
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t odd = check_range(seed, 0, 3000), at = u * BLOCK_STRIDE + i * 2 * 4096;
        uint64_t n = w->pieces[u][i].bytes;
        CHECK(pwrite(w->block_fd, bytes, n, (off_t)(at + odd)) == (ssize_t)n);
        w->bounce_offsets[u][i] = i * 4096 + odd;
        if (direct)
            w->pieces[u][i].offset = w->bounce_offsets[u][i];
        w->block_reads[u][i] = (struct spw_block_read){.range = {.file = &w->block_file,
                                                                 .offset = at,
                                                                 .bytes = 4096,
                                                                 .least_bytes = odd + n,
                                                                 .sums = &w->block_sums[u][i]},
                                                       .slot_offset = i * 4096};
    }
}

static void make_blocks(struct world *w, uint64_t *seed)
{
    for (uint32_t u = 0; u < N_BLOCKS; u++) {
        bool prepared = check_random(seed) % 2;
        w->calls[u].host = w->host_blocks[u];
        w->calls[u].value = (uint8_t)(200 - u);
        if (!prepared)
            memset(w->host_blocks[u], w->calls[u].value, BLOCK_BYTES);
        uint64_t first = check_range(seed, 1, 400), second = check_range(seed, 1, 400);
        w->pieces[u][0] = (struct spw_piece){w->host_blocks[u], 0, first};
        w->pieces[u][1] = (struct spw_piece){w->host_blocks[u], 512, second};
        w->blocks[u] = (struct spw_block){.layer = u < N_LAYERS ? u : SPW_RANGES,
                                          .pieces = w->pieces[u],
                                          .n_pieces = 2,
                                          .moved_bytes = first + second,
                                          .prepare = prepared ? prepare_block : NULL,
                                          .copied = count_copy,
                                          .context = &w->calls[u]};
        uint64_t place = check_random(seed) % 5;
        if (place < 2)
            w->blocks[u].resident = w->resident + u * BLOCK_BYTES;
        if (place == 2)
            w->blocks[u].in_place = true;
        if (place > 2 && w->k.o.drive.disk && check_random(seed) % 2)
            read_block(w, u, seed);
    }
}

/* Sees each request. */
static int64_t disturb(void *context, const struct spw_io_request *r, int64_t result)
{
    struct world *w = context;
    if (r->fd == w->block_fd)
        return w->no_blocks ? -EIO : result;
    return kv_disturb(&w->k.faults, r, result);
}

static uint8_t *arena(size_t tiles)
{
    uint8_t *p = aligned_alloc(4096, tiles * TILE_BYTES);
    if (!p)
        abort();
    memset(p, 0, tiles * TILE_BYTES);
    return p;
}

/* A sequence of full tiles, all of them below. */
static void make_tiles(struct world *w, int i)
{
    CHECK(spw_kv_seq_open(&w->seqs[i], w->k.kv) == 0);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_grow(w->seqs[i], l, 0, MAX_TILES * SPW_TILE_TOKENS) == 0);
        for (uint32_t t = 0; t < MAX_TILES; t++)
            launch(w, &filler, spw_kv_device_tile(w->seqs[i], l, t), TILE_BYTES,
                   tile_value(i, l, t));
        CHECK(spw_kv_spill(w->seqs[i], l, MAX_TILES, w->fallen[i][kv_kinds[l]]) == 0);
    }
}

static void world_open(struct world *w, uint64_t *seed, uint64_t delay_seed,
                       const struct kv_drive *drive)
{
    memset(w, 0, sizeof *w);
    w->slot_tiles = SPW_SPLIT_TILES * (uint32_t)check_range(seed, 1, MOST_SPLITS);
    const struct kv_world_options o = {.seed = check_random(seed),
                                       .delay_seed = delay_seed,
                                       .drive = *drive,
                                       .tile_bytes = TILE_BYTES,
                                       .n_device_frames = DEVICE_FRAMES,
                                       .slot_tiles = w->slot_tiles};
    kv_world_open(&w->k, &o);
    if (drive->disk) {
        w->k.disturb.completed = disturb;
        w->k.disturb.context = w;
        w->block_fd = open("/tmp", O_TMPFILE | O_RDWR, 0600); /* through the page cache */
        CHECK(w->block_fd >= 0 && spw_io_use_file(w->block_fd, &w->block_file) == 0);
    }
    w->slots = arena(MOST_SLOTS * MOST_SPLITS * SPW_SPLIT_TILES);
    w->bounce = arena(MOST_SLOTS * MOST_SPLITS * SPW_SPLIT_TILES);
    w->weight_slots = arena(MOST_SLOTS * BLOCK_BYTES / TILE_BYTES);
    w->block_bounce = arena(MOST_SLOTS * BLOCK_BYTES / TILE_BYTES);
    w->resident = calloc(N_BLOCKS, BLOCK_BYTES);
    make_blocks(w, seed);
    for (int i = 0; i < N_SEQS; i++) {
        for (int kind = 0; kind < 2 && drive->disk; kind++)
            w->fallen[i][kind] = (uint32_t)check_range(seed, 0, MAX_TILES);
        make_tiles(w, i);
    }
    w->n_bounce = (uint32_t)check_range(seed, 1, MOST_SLOTS);
    w->n_kv_slots = (uint32_t)check_range(seed, 1, MOST_SLOTS);
    w->n_weight_slots = (uint32_t)check_range(seed, 1, MOST_SLOTS);
    struct spw_prefetch_options p = {.kv_arena = w->slots,
                                     .weights_arena = w->weight_slots,
                                     .tile_bytes = TILE_BYTES,
                                     .block_bytes = BLOCK_BYTES,
                                     .n_kv_slots = w->n_kv_slots,
                                     .slot_tiles = w->slot_tiles,
                                     .n_weight_slots = w->n_weight_slots,
                                     .blocks = w->blocks,
                                     .n_blocks = N_BLOCKS,
                                     .disk = w->k.disk,
                                     .bounce_arena = w->bounce,
                                     .n_bounce = drive->direct ? 0 : w->n_bounce,
                                     .weights_io = w->k.io,
                                     .weights_bounce_arena = w->block_bounce,
                                     .weights_bounce_bytes = BLOCK_BYTES};
    CHECK(spw_prefetch_open(&w->prefetch, &w->k.lane, &p) == 0);
    for (uint32_t u = 0; u < N_BLOCKS; u++)
        w->needed_bytes += w->blocks[u].resident ? w->blocks[u].moved_bytes : 0;
}

static void world_close(struct world *w)
{
    spw_prefetch_close(w->prefetch);
    for (int i = 0; i < N_SEQS; i++)
        spw_kv_seq_close(w->seqs[i]);
    kv_world_stop(&w->k);
    kv_world_close(&w->k);
    if (w->k.o.drive.disk)
        close(w->block_fd);
    free(w->bounce);
    free(w->slots);
    free(w->weight_slots);
    free(w->block_bounce);
    free(w->resident);
}

/* ---- steps ---- */

/* A schedule with its own memory: two of them take turns, as in the executor. */
struct plan {
    struct spw_part_reads parts[3];
    struct spw_schedule schedule;
};

static struct spw_stream_range draw_range(uint64_t *seed)
{
    uint32_t first = (uint32_t)check_range(seed, 0, MAX_TILES);
    return (struct spw_stream_range){first, (uint32_t)check_range(seed, first, MAX_TILES)};
}

/* fallen: where the layers are when the step begins; what they are at its end. */
static void draw_plan(struct world *w, struct plan *p, uint64_t *seed, uint32_t fallen[N_SEQS][2])
{
    p->schedule = (struct spw_schedule){.n_layers = N_LAYERS,
                                        .kinds = kv_kinds,
                                        .first_slices = layers,
                                        .layer_slices = one_slice,
                                        .slot_tiles = w->slot_tiles,
                                        .n_parts = (uint32_t)check_range(seed, 1, 3),
                                        .parts = p->parts,
                                        .n_layer_blocks = N_LAYERS,
                                        .n_head_blocks = N_HEADS,
                                        .n_head_rounds = (uint32_t)check_range(seed, 0, 2)};
    for (uint32_t i = 0; i < p->schedule.n_parts; i++) {
        uint64_t seq = check_random(seed) % N_SEQS;
        struct spw_part_reads *g = &p->parts[i];
        *g = (struct spw_part_reads){.seq = w->seqs[seq],
                                     .ranges = {draw_range(seed), draw_range(seed)}};
        for (int kind = 0; kind < 2; kind++) {
            uint32_t *f = &fallen[seq][kind];
            if (w->k.o.drive.disk && check_random(seed) % 4 == 0 && *f < MAX_TILES)
                *f += (uint32_t)check_range(seed, 1, 2 < MAX_TILES - *f ? 2 : MAX_TILES - *f);
            g->disk_end[kind] = *f;
        }
    }
}

/* What the transfer takes from each tier, where the layer is now; landed: on the device. */
static void count_transfer(const struct world *w, const struct spw_transfer *x, bool landed,
                           struct bytes *out)
{
    uint64_t from_host = 0, from_disk = 0;
    for (uint32_t i = x->tile_begin; i < x->tile_end; i++)
        ++*(spw_kv_host_tile(x->seq, x->layer, i) ? &from_host : &from_disk);
    out->host_to_device +=
        (from_host + (w->k.o.drive.direct || !landed ? 0 : from_disk)) * TILE_BYTES;
    out->disk_to_host += from_disk * TILE_BYTES;
}

static void count_needed(struct world *w, const struct spw_transfer *x)
{
    struct bytes b = {0};
    count_transfer(w, x, true, &b);
    w->needed_bytes += b.host_to_device;
    w->needed_disk_bytes += b.disk_to_host;
}

/* What the rings got of the schedule that is ahead. */
static void count_ahead(const struct world *w, const struct spw_schedule_progress *p,
                        struct bytes *out)
{
    struct spw_kv_cursor at = {0};
    struct spw_block_cursor block = {0};
    struct spw_transfer x;
    uint32_t u;
    for (uint64_t i = 0; i < p->transfers && spw_schedule_next_kv(w->ahead, &at, &x); i++)
        count_transfer(w, &x, i < p->queued_transfers, out);
    for (uint64_t i = 0; i < p->blocks && spw_schedule_next_block(w->ahead, &block, &u);) {
        const struct spw_block *is = &w->blocks[u];
        if (is->resident || is->in_place)
            continue;
        out->host_to_device += is->bounce_offsets && i >= p->queued_blocks ? 0 : is->moved_bytes;
        out->disk_to_host += is->read_bytes;
        i++;
    }
}

/* The brute force order of a layer's transfers: every tile, grouped where a slot ends. Before each
 * segment more of the layer goes to the disk. */
static int consume_layer(struct world *w, const struct spw_schedule *s, uint32_t layer)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const struct spw_part_reads *g = &s->parts[i];
        struct spw_stream_range r = g->ranges[kv_kinds[layer]];
        SPW_TRY(spw_kv_spill(g->seq, layer, MAX_TILES, g->disk_end[kv_kinds[layer]]));
        for (uint32_t t = r.first; t < r.end;) {
            uint32_t end = t + 1;
            while (end < r.end && end % s->slot_tiles)
                end++;
            struct spw_transfer x = {
                .seq = g->seq, .layer = layer, .tile_begin = t, .tile_end = end};
            uint8_t *slot;
            count_needed(w, &x);
            SPW_TRY(spw_prefetch_wait_kv(w->prefetch, &x, &slot));
            for (; t < end; t++, slot += TILE_BYTES)
                launch(w, &reader, slot, TILE_BYTES, tile_value(g->seq == w->seqs[1], layer, t));
            SPW_TRY(spw_prefetch_release_kv(w->prefetch));
        }
    }
    return 0;
}

static int use_block(struct world *w, uint32_t block, const struct spw_schedule *s, uint32_t layer)
{
    const uint8_t *weights;
    SPW_TRY(spw_prefetch_wait_block(w->prefetch, block, &weights));
    CHECK(!w->blocks[block].resident || weights == w->blocks[block].resident);
    CHECK(w->blocks[block].in_place == !weights);
    if (weights && !w->blocks[block].resident) {
        w->needed_bytes += w->blocks[block].moved_bytes;
        w->needed_disk_bytes += w->blocks[block].read_bytes;
    }
    for (int i = 0; i < 2; i++) {
        const struct spw_piece *p = &w->pieces[block][i];
        launch(w, &reader, weights ? weights + p->offset : p->from, p->bytes,
               (uint8_t)(200 - block));
        if (s && i == 0) /* KV turns over while the block is held */
            SPW_TRY(consume_layer(w, s, layer));
    }
    return spw_prefetch_release_block(w->prefetch, block);
}

static int consume(struct world *w, const struct spw_schedule *s)
{
    for (uint32_t l = 0; l < N_LAYERS; l++)
        SPW_TRY(use_block(w, l, s, l));
    for (uint32_t round = 0; round < s->n_head_rounds; round++)
        for (uint32_t u = N_LAYERS; u < N_BLOCKS; u++)
            SPW_TRY(use_block(w, u, NULL, 0));
    return 0;
}

/* Steps begin and are expected by these, which keep account of what is dropped. */
static void note_dropped(struct world *w)
{
    struct spw_schedule_progress last;
    uint64_t n = spw_prefetch_dropped(w->prefetch, &last);
    if (n != w->n_dropped && !w->failed && w->ahead)
        count_ahead(w, &last, &w->dropped);
    w->n_dropped = n;
}

static int begin_step(struct world *w, const struct spw_schedule *s)
{
    int rc = spw_prefetch_begin(w->prefetch, s);
    note_dropped(w);
    w->ahead = NULL;
    return rc;
}

static int expect_step(struct world *w, const struct spw_schedule *s)
{
    int rc = spw_prefetch_ahead(w->prefetch, s);
    note_dropped(w);
    w->ahead = s;
    return rc;
}

static int forget(struct world *w)
{
    int rc = spw_prefetch_forget(w->prefetch);
    note_dropped(w);
    w->ahead = NULL;
    return rc;
}

/* Dropped, or not waited for. */
static struct bytes ahead_of(struct world *w)
{
    struct bytes all = w->dropped;
    struct spw_schedule_progress now = spw_prefetch_progress(w->prefetch);
    if (w->ahead)
        count_ahead(w, &now, &all);
    return all;
}

/* Of the disk too; reads that are under way are waited for. */
static void check_disk_bytes(struct world *w, const char *what, bool idle)
{
    uint64_t ahead = ahead_of(w).disk_to_host, expected = w->needed_disk_bytes + ahead;
    struct spw_io_usage u;
    spw_io_usage(w->k.io, &u);
    /* for 20 seconds at least in which the process is not stopped */
    for (int i = 0; u.read_bytes < expected && !idle && i < 1000000; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        spw_io_usage(w->k.io, &u);
    }
    CHECK_MSG(u.read_bytes == expected, "%s: %llu read, %llu needed, %llu ahead", what,
              (unsigned long long)u.read_bytes, (unsigned long long)w->needed_disk_bytes,
              (unsigned long long)ahead);
}

/* All that crossed the link is what the steps needed and what is ahead. */
static void check_bytes(struct world *w, const char *what, bool idle)
{
    struct spw_device_usage u;
    if (w->k.o.drive.faulty)
        return; /* what was lost was read, or not */
    if (w->k.o.drive.disk)
        check_disk_bytes(w, what, idle);
    spw_lane_stream_sync(&w->k.lane, w->k.lane.kv_up);
    spw_lane_stream_sync(&w->k.lane, w->k.lane.weights_up);
    w->k.lane.ops->usage(w->k.lane.device, &u);
    uint64_t ahead = ahead_of(w).host_to_device;
    CHECK_MSG(u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] == w->needed_bytes + ahead,
              "%s: %llu moved, %llu needed, %llu ahead", what,
              (unsigned long long)u.moved_bytes[SPW_LINK_HOST_TO_DEVICE],
              (unsigned long long)w->needed_bytes, (unsigned long long)ahead);
}

/* A drive that fails: some frames are bad from now on, or good again. */
static void draw_faults(struct world *w, uint64_t *seed)
{
    struct kv_faults *f = &w->k.faults;
    for (uint32_t i = 0; i < DISK_FRAMES; i++) {
        const uint64_t how = check_random(seed) % 80;
        f->unreadable[i] = how == 0;
        f->flipped[i] = how == 1;
    }
}

static uint64_t n_losses;

/* What was lost is computed again, here: the sequence is made anew. The step is given up. */
static void recover(struct world *w)
{
    struct spw_kv_loss loss;
    bool any = false;
    w->failed = true;
    CHECK(forget(w) == 0);
    w->failed = false;
    spw_lane_stream_sync(&w->k.lane, w->k.lane.compute);
    memset((void *)w->k.faults.unreadable, 0, sizeof w->k.faults.unreadable);
    memset((void *)w->k.faults.flipped, 0, sizeof w->k.faults.flipped);
    for (; spw_kv_take_loss(w->k.kv, &loss); any = true) {
        int i = loss.seq == w->seqs[1];
        CHECK(loss.seq == w->seqs[i] && loss.rc < 0);
        CHECK(loss.tile < w->fallen[i][kv_kinds[loss.layer]]);
        CHECK(!spw_kv_host_tile(loss.seq, loss.layer, loss.tile));
        CHECK(spw_kv_lost(loss.seq, loss.layer, loss.tile) == loss.rc);
        spw_kv_seq_close(loss.seq);
        make_tiles(w, i);
        n_losses++;
    }
    CHECK(any && w->k.o.drive.faulty);
}

/* Some steps are followed by the right next one, some by a wrong one, some by none. */
static void run_steps(struct world *w, uint64_t *seed)
{
    struct plan plans[2], wrong_plan;
    draw_plan(w, &plans[0], seed, w->fallen);
    for (int step = 0; step < 12; step++) {
        struct plan *now = &plans[step % 2], *next = &plans[(step + 1) % 2];
        if (w->k.o.drive.faulty && check_random(seed) % 2)
            draw_faults(w, seed);
        int rc = begin_step(w, &now->schedule);
        rc = rc ? rc : consume(w, &now->schedule);
        CHECK(!rc || (w->k.o.drive.faulty && rc == -EBADMSG));
        if (rc)
            recover(w);
        draw_plan(w, next, seed, w->fallen);
        uint32_t elsewhere[N_SEQS][2];
        memcpy(elsewhere, w->fallen, sizeof elsewhere);
        draw_plan(w, &wrong_plan, seed, elsewhere);
        if (check_random(seed) % 2) { /* wrong only in where tiles will come from */
            memcpy(wrong_plan.parts, next->parts, sizeof next->parts);
            wrong_plan.schedule.n_parts = next->schedule.n_parts;
            for (uint32_t i = 0; i < next->schedule.n_parts; i++)
                memset(wrong_plan.parts[i].disk_end, 0, sizeof wrong_plan.parts[i].disk_end);
        }
        uint64_t told = check_random(seed) % 4;
        if (rc)
            continue;
        if (told == 0)
            CHECK(expect_step(w, &wrong_plan.schedule) == 0);
        if (told == 1 || told == 2)
            CHECK(expect_step(w, &next->schedule) == 0);
        check_bytes(w, "ahead", false);
        if (check_random(seed) % 8 == 0) {
            CHECK(forget(w) == 0);
            check_bytes(w, "forget", true);
        }
    }
}

static uint64_t n_from_files[2]; /* directly, by way of the host */

static void run_round(uint64_t seed, uint64_t delay_seed, const struct kv_drive *drive)
{
    static struct world w;
    uint64_t wrong = atomic_load(&wrong_reads), first_seed = seed;
    world_open(&w, &seed, delay_seed, drive);
    run_steps(&w, &seed);
    spw_lane_stream_sync(&w.k.lane, w.k.lane.compute);
    CHECK_MSG(atomic_load(&wrong_reads) == wrong, "seed %llu, drive %d %d %d: %llu wrong bytes",
              (unsigned long long)first_seed, drive->disk, drive->direct, drive->faulty,
              (unsigned long long)(atomic_load(&wrong_reads) - wrong));
    for (uint32_t u = 0; u < N_BLOCKS; u++) {
        const struct spw_block *block = &w.blocks[u];
        CHECK(w.calls[u].prepared == (block->prepare ? 1 : 0));
        n_from_files[block->bounce_offsets != NULL] += block->n_reads > 0;
        if (block->resident || block->in_place || block->n_reads)
            CHECK(w.calls[u].copied == (block->resident ? 1 : 0));
        else
            CHECK(w.calls[u].copied >= 1);
    }
    world_close(&w);
}

/* What was fetched ahead and comes true does not cross the link twice. */
static void check_lookahead_used(const struct kv_drive *drive)
{
    static struct world w;
    struct plan p;
    uint64_t seed = 5;
    world_open(&w, &seed, 0, drive);
    draw_plan(&w, &p, &seed, w.fallen);
    p.schedule.n_parts = 1;
    p.parts[0].ranges[0] = p.parts[0].ranges[1] = (struct spw_stream_range){1, MAX_TILES};
    for (int i = 0; i < 5; i++) {
        CHECK(begin_step(&w, &p.schedule) == 0);
        CHECK(consume(&w, &p.schedule) == 0);
        CHECK(!w.n_dropped);
        CHECK(expect_step(&w, &p.schedule) == 0);
        CHECK(ahead_of(&w).host_to_device + ahead_of(&w).disk_to_host > 0);
        check_bytes(&w, "used", false);
    }
    struct bytes ahead = ahead_of(&w);
    CHECK(forget(&w) == 0); /* given up: paid for nothing */
    CHECK(w.n_dropped == 1 && !memcmp(&w.dropped, &ahead, sizeof ahead));
    CHECK(begin_step(&w, &p.schedule) == 0);
    CHECK(consume(&w, &p.schedule) == 0);
    check_bytes(&w, "dropped", true);
    CHECK(w.n_dropped == 1);
    spw_lane_stream_sync(&w.k.lane, w.k.lane.compute);
    world_close(&w);
}

/* A file that cannot be read fails the wait for what comes from it, by its name; and the step after
 * forget once it can be. */
static void check_unreadable_blocks(uint64_t *seed)
{
    int n_failed = 0;
    for (int round = 0; round < 20; round++) {
        static struct world w;
        struct plan p;
        const struct kv_drive drive = {.host = true, .disk = true, .direct = round % 2};
        world_open(&w, seed, 0, &drive);
        draw_plan(&w, &p, seed, w.fallen);
        w.no_blocks = true;
        int rc = spw_prefetch_begin(w.prefetch, &p.schedule);
        rc = rc ? rc : consume(&w, &p.schedule);
        const struct spw_block_failure failed = spw_prefetch_failed_read(w.prefetch);
        CHECK((rc == -EIO) == (failed.block != NULL) && (!rc || rc == -EIO));
        CHECK(!failed.block ||
              (failed.rc == -EIO && failed.bytes == 4096 &&
               failed.offset ==
                   failed.block->reads[failed.offset != failed.block->reads[0].range.offset]
                       .range.offset));
        n_failed += failed.block != NULL;
        spw_lane_stream_sync(&w.k.lane, w.k.lane.compute);
        CHECK(spw_prefetch_forget(w.prefetch) == 0);
        CHECK(!spw_prefetch_failed_read(w.prefetch).block);
        w.no_blocks = false;
        CHECK(spw_prefetch_begin(w.prefetch, &p.schedule) == 0 && consume(&w, &p.schedule) == 0);
        spw_lane_stream_sync(&w.k.lane, w.k.lane.compute);
        world_close(&w);
    }
    CHECK(n_failed > 5);
}

/* The device is lost at the n-th command, for n = 0, 1, ... until it is not: whatever is under way
 * then, everything closes. */
static void check_lost_device(const struct kv_drive *drive, uint64_t seed)
{
    int rc = -EIO;
    for (int64_t n = 0; rc; n += 1 + n / 8) {
        static struct world w;
        struct plan p;
        uint64_t same = seed;
        world_open(&w, &same, 0, drive);
        draw_plan(&w, &p, &same, w.fallen);
        spw_lane_stream_sync(&w.k.lane, w.k.lane.compute); /* what opening queued */
        spw_lane_stream_sync(&w.k.lane, w.k.lane.disk);
        spw_lane_stream_sync(&w.k.lane, w.k.lane.weights_up);
        spw_lane_stream_sync(&w.k.lane, w.k.lane.kv_up);
        spw_device_cpu_fail_nth(w.k.lane.device, n);
        w.k.device_is_lost = true;
        rc = 0;
        for (int i = 0; i < 2 && !rc; i++) {
            rc = spw_prefetch_begin(w.prefetch, &p.schedule);
            rc = rc ? rc : consume(&w, &p.schedule);
            rc = rc ? rc : spw_prefetch_ahead(w.prefetch, &p.schedule);
        }
        rc = rc ? rc : spw_lane_stream_sync(&w.k.lane, w.k.lane.compute);
        rc = rc ? rc : spw_prefetch_forget(w.prefetch);
        CHECK(!rc || rc == -EIO);
        spw_device_cpu_fail_nth(w.k.lane.device, -1);
        world_close(&w);
    }
}

int main(int argc, char **argv)
{
    struct check_draws rounds =
        check_draws_of(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 30 : 200);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    for (int i = 0; i < 3; i++) {
        struct kv_drive d = {.host = true, .disk = i, .direct = i == 2};
        check_lookahead_used(&d);
        check_lost_device(&d, check_random(&seed));
    }
    check_unreadable_blocks(&seed);
    while (check_another(&rounds)) {
        int i = rounds.done - 1;
        struct kv_drive d = {
            .host = true, .disk = i % 4, .direct = check_random(&seed) % 2, .faulty = i % 4 == 3};
        run_round(check_random(&seed), check_random(&seed) % 3 ? check_random(&seed) | 1 : 0, &d);
    }
    fprintf(stderr, "%llu reads, %llu losses\n", (unsigned long long)atomic_load(&n_reads),
            (unsigned long long)n_losses);
    CHECK(rounds.done < 30 || (n_losses && n_from_files[0] && n_from_files[1]));
    CHECK(!atomic_load(&wrong_reads));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
