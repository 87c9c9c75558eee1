/* The transfer rings: what arrives is what was asked for, before it is read; no slot is overwritten
 * while kernels read it; what was fetched ahead is used if it comes true and dropped if not; and
 * ahead_bytes is exact. With random delays around every copy and kernel.
 *
 *   test_prefetch [rounds] */
#include "tests/engine_run.h"

#include "prefetch/prefetch.h"

#include <stdatomic.h>

enum {
    N_LAYERS = 4,
    N_HEADS = 3, /* weight units behind the layers */
    N_UNITS = N_LAYERS + N_HEADS,
    N_SEQS = 2,
    MAX_TILES = 14,
    TILE_BYTES = 512,
    UNIT_BYTES = 1024, /* with gaps between two pieces */
    MOST_SLOTS = 4,
    MOST_SPLITS = 3, /* in a slot */
    DEVICE_FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
};

static const uint8_t sliding[N_LAYERS] = {0, 1, 0, 0};

/* ---- kernels: a slow reader, and a writer of tiles ---- */

struct read_args {
    const uint8_t *from;
    uint64_t bytes;
    uint8_t expected;
};

static _Atomic uint64_t wrong_reads, n_reads;

static size_t one(const void *args)
{
    (void)args;
    return 1;
}

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

static const struct spw_kernel reader = {"read", one, run_read};
static const struct spw_kernel filler = {"fill", one, run_fill};

/* ---- the world ---- */

struct world {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, kv_up, weights_up;
    uint8_t *device_arena, *host_arena, *slots, *unit_slots, *resident;
    struct spw_kv *kv;
    struct spw_kv_seq *seqs[N_SEQS];
    struct spw_prefetch *prefetch;
    struct spw_unit units[N_UNITS];
    struct spw_piece pieces[N_UNITS][2];
    uint8_t host_units[N_UNITS][UNIT_BYTES];
    struct unit_calls {
        uint8_t *host;
        uint8_t value;
        _Atomic uint32_t prepared, copied;
    } calls[N_UNITS];
    uint32_t n_kv_slots, n_weight_slots, slot_tiles;
    uint64_t needed_bytes; /* of the steps that were begun */
};

static uint8_t tile_value(int seq, uint32_t layer, uint32_t tile)
{
    return (uint8_t)(1 + (uint32_t)seq * 97 + layer * 31 + tile * 7);
}

static void launch(struct world *w, const struct spw_kernel *k, const void *at, uint64_t bytes,
                   uint8_t value)
{
    struct read_args a = {at, bytes, value};
    CHECK(spw_device_cpu_launch(w->device, w->compute, k, &a, sizeof a) == 0);
}

static void count_copy(void *context)
{
    struct unit_calls *c = context;
    atomic_fetch_add(&c->copied, 1);
}

/* Only now the pieces hold what is to be read. */
static void prepare_unit(void *context)
{
    struct unit_calls *c = context;
    memset(c->host, c->value, UNIT_BYTES);
    atomic_fetch_add(&c->prepared, 1);
}

static void make_units(struct world *w, uint64_t *seed)
{
    for (uint32_t u = 0; u < N_UNITS; u++) {
        bool prepared = check_random(seed) % 2;
        w->calls[u].host = w->host_units[u];
        w->calls[u].value = (uint8_t)(200 - u);
        if (!prepared)
            memset(w->host_units[u], w->calls[u].value, UNIT_BYTES);
        uint64_t first = check_range(seed, 1, 400), second = check_range(seed, 1, 400);
        w->pieces[u][0] = (struct spw_piece){w->host_units[u], 0, first};
        w->pieces[u][1] = (struct spw_piece){w->host_units[u], 512, second};
        w->units[u] = (struct spw_unit){.pieces = w->pieces[u],
                                        .n_pieces = 2,
                                        .moved_bytes = first + second,
                                        .prepare = prepared ? prepare_unit : NULL,
                                        .copied = count_copy,
                                        .context = &w->calls[u]};
        uint64_t place = check_random(seed) % 5;
        if (place < 2)
            w->units[u].resident = w->resident + u * UNIT_BYTES;
        if (place == 2)
            w->units[u].in_place = true;
    }
}

static void open_device(struct world *w, uint64_t delay_seed)
{
    struct spw_error err = {{0}};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = delay_seed};
    w->ops = &spw_device_cpu;
    CHECK(w->ops->open(&w->device, &o, &err) == 0);
    CHECK(w->ops->stream_open(w->device, "compute", &w->compute) == 0);
    CHECK(w->ops->stream_open(w->device, "down", &w->down) == 0);
    CHECK(w->ops->stream_open(w->device, "kv", &w->kv_up) == 0);
    CHECK(w->ops->stream_open(w->device, "weights", &w->weights_up) == 0);
    w->device_arena = calloc(DEVICE_FRAMES, TILE_BYTES);
    w->host_arena = calloc(DEVICE_FRAMES, TILE_BYTES);
    w->slots = calloc(MOST_SLOTS * MOST_SPLITS * SPW_SPLIT_TILES, TILE_BYTES);
    w->unit_slots = calloc(MOST_SLOTS, UNIT_BYTES);
    w->resident = calloc(N_UNITS, UNIT_BYTES);
}

/* Sequences of full tiles, all of them below. */
static void make_tiles(struct world *w)
{
    for (int i = 0; i < N_SEQS; i++) {
        CHECK(spw_kv_seq_open(&w->seqs[i], w->kv) == 0);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            CHECK(spw_kv_grow(w->seqs[i], l, 0, MAX_TILES * SPW_TILE_TOKENS) == 0);
            for (uint32_t t = 0; t < MAX_TILES; t++)
                launch(w, &filler, spw_kv_device_tile(w->seqs[i], l, t), TILE_BYTES,
                       tile_value(i, l, t));
            CHECK(spw_kv_spill(w->seqs[i], l, MAX_TILES, 0) == 0);
        }
    }
}

static void world_open(struct world *w, uint64_t *seed, uint64_t delay_seed)
{
    memset(w, 0, sizeof *w);
    open_device(w, delay_seed);
    make_units(w, seed);
    w->slot_tiles = SPW_SPLIT_TILES * (uint32_t)check_range(seed, 1, MOST_SPLITS);
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->down,
                               .up = w->kv_up,
                               .device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = DEVICE_FRAMES,
                               .n_host_frames = DEVICE_FRAMES,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
                               .max_tiles = MAX_TILES,
                               .slot_tiles = w->slot_tiles};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
    make_tiles(w);
    w->n_kv_slots = (uint32_t)check_range(seed, 1, MOST_SLOTS);
    w->n_weight_slots = (uint32_t)check_range(seed, 1, MOST_SLOTS);
    struct spw_prefetch_options p = {.ops = w->ops,
                                     .device = w->device,
                                     .compute = w->compute,
                                     .kv_link = w->kv_up,
                                     .weights_link = w->weights_up,
                                     .kv_arena = w->slots,
                                     .weights_arena = w->unit_slots,
                                     .tile_bytes = TILE_BYTES,
                                     .unit_bytes = UNIT_BYTES,
                                     .n_kv_slots = w->n_kv_slots,
                                     .slot_tiles = w->slot_tiles,
                                     .n_weight_slots = w->n_weight_slots,
                                     .units = w->units,
                                     .n_units = N_UNITS};
    CHECK(spw_prefetch_open(&w->prefetch, &p) == 0);
    for (uint32_t u = 0; u < N_UNITS; u++)
        w->needed_bytes += w->units[u].resident ? w->units[u].moved_bytes : 0;
}

static void world_close(struct world *w)
{
    spw_prefetch_close(w->prefetch);
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->down);
    w->ops->stream_close(w->device, w->kv_up);
    w->ops->stream_close(w->device, w->weights_up);
    for (int i = 0; i < N_SEQS; i++)
        spw_kv_seq_close(w->seqs[i]);
    spw_kv_close(w->kv);
    w->ops->close(w->device);
    free(w->device_arena);
    free(w->host_arena);
    free(w->slots);
    free(w->unit_slots);
    free(w->resident);
}

/* ---- steps ---- */

/* A schedule with its own memory: two of them take turns, as in the executor. */
struct plan {
    struct spw_schedule_segment segments[3];
    struct spw_schedule schedule;
};

static struct spw_stream_range draw_range(uint64_t *seed)
{
    uint32_t first = (uint32_t)check_range(seed, 0, MAX_TILES);
    return (struct spw_stream_range){first, (uint32_t)check_range(seed, first, MAX_TILES)};
}

static void draw_plan(struct world *w, struct plan *p, uint64_t *seed)
{
    p->schedule = (struct spw_schedule){.n_layers = N_LAYERS,
                                        .sliding = sliding,
                                        .slot_tiles = w->slot_tiles,
                                        .n_segments = (uint32_t)check_range(seed, 1, 3),
                                        .segments = p->segments,
                                        .n_head_units = N_HEADS,
                                        .n_head_rounds = (uint32_t)check_range(seed, 0, 2)};
    for (uint32_t i = 0; i < 3; i++)
        p->segments[i] =
            (struct spw_schedule_segment){.seq = w->seqs[check_random(seed) % N_SEQS],
                                          .ranges = {draw_range(seed), draw_range(seed)}};
}

/* The brute force order of a layer's transfers: every tile, grouped where a slot ends. */
static void consume_layer(struct world *w, const struct spw_schedule *s, uint32_t layer)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct spw_schedule_segment *g = &s->segments[i];
        struct spw_stream_range r = g->ranges[sliding[layer]];
        for (uint32_t t = r.first; t < r.end;) {
            uint32_t end = t + 1;
            while (end < r.end && end % s->slot_tiles)
                end++;
            struct spw_transfer x = {
                .seq = g->seq, .layer = layer, .tile_begin = t, .tile_end = end};
            uint8_t *slot;
            CHECK(spw_prefetch_wait_kv(w->prefetch, &x, &slot) == 0);
            for (; t < end; t++, slot += TILE_BYTES)
                launch(w, &reader, slot, TILE_BYTES, tile_value(g->seq == w->seqs[1], layer, t));
            CHECK(spw_prefetch_release_kv(w->prefetch) == 0);
            w->needed_bytes += (x.tile_end - x.tile_begin) * TILE_BYTES;
        }
    }
}

static void use_unit(struct world *w, uint32_t unit, const struct spw_schedule *s, uint32_t layer)
{
    const uint8_t *weights;
    CHECK(spw_prefetch_wait_unit(w->prefetch, unit, &weights) == 0);
    CHECK(!w->units[unit].resident || weights == w->units[unit].resident);
    CHECK(w->units[unit].in_place == !weights);
    bool streamed = weights && !w->units[unit].resident;
    for (int i = 0; i < 2; i++) {
        const struct spw_piece *p = &w->pieces[unit][i];
        launch(w, &reader, weights ? weights + p->offset : p->from, p->bytes,
               (uint8_t)(200 - unit));
        if (streamed)
            w->needed_bytes += p->bytes;
        if (s && i == 0) /* KV turns over while the unit is held */
            consume_layer(w, s, layer);
    }
    CHECK(spw_prefetch_release_unit(w->prefetch, unit) == 0);
}

static void consume(struct world *w, const struct spw_schedule *s)
{
    for (uint32_t l = 0; l < N_LAYERS; l++)
        use_unit(w, l, s, l);
    for (uint32_t round = 0; round < s->n_head_rounds; round++)
        for (uint32_t u = N_LAYERS; u < N_UNITS; u++)
            use_unit(w, u, NULL, 0);
}

/* All that crossed the link is what the steps needed and what is ahead. */
static void check_bytes(struct world *w, const char *what)
{
    struct spw_device_usage u;
    w->ops->stream_sync(w->device, w->kv_up);
    w->ops->stream_sync(w->device, w->weights_up);
    w->ops->usage(w->device, &u);
    CHECK_MSG(u.moved_bytes[SPW_LINK_HOST_TO_DEVICE] ==
                  w->needed_bytes + spw_prefetch_ahead_bytes(w->prefetch),
              "%s: %llu moved, %llu needed, %llu ahead", what,
              (unsigned long long)u.moved_bytes[SPW_LINK_HOST_TO_DEVICE],
              (unsigned long long)w->needed_bytes,
              (unsigned long long)spw_prefetch_ahead_bytes(w->prefetch));
}

/* Random steps; after some the right next one is told, after some a wrong one, after some none. */
static void run_round(uint64_t seed, uint64_t delay_seed)
{
    static struct world w;
    struct plan plans[2], wrong_plan;
    uint64_t wrong = atomic_load(&wrong_reads);
    world_open(&w, &seed, delay_seed);
    draw_plan(&w, &plans[0], &seed);
    for (int step = 0; step < 12; step++) {
        struct plan *now = &plans[step % 2], *next = &plans[(step + 1) % 2];
        CHECK(spw_prefetch_begin(w.prefetch, &now->schedule) == 0);
        consume(&w, &now->schedule);
        draw_plan(&w, next, &seed);
        draw_plan(&w, &wrong_plan, &seed);
        uint64_t told = check_random(&seed) % 4, before = spw_prefetch_ahead_bytes(w.prefetch);
        if (told == 0)
            CHECK(spw_prefetch_ahead(w.prefetch, &wrong_plan.schedule) == 0);
        if (told == 1 || told == 2)
            CHECK(spw_prefetch_ahead(w.prefetch, &next->schedule) == 0);
        CHECK(spw_prefetch_ahead_bytes(w.prefetch) >= before);
        check_bytes(&w, "ahead");
        if (check_random(&seed) % 8 == 0) {
            CHECK(spw_prefetch_forget(w.prefetch) == 0);
            check_bytes(&w, "forget");
        }
    }
    w.ops->stream_sync(w.device, w.compute);
    CHECK_MSG(atomic_load(&wrong_reads) == wrong, "seed %llu: %llu wrong bytes",
              (unsigned long long)seed, (unsigned long long)(atomic_load(&wrong_reads) - wrong));
    for (uint32_t u = 0; u < N_UNITS; u++) {
        const struct spw_unit *unit = &w.units[u];
        CHECK(w.calls[u].prepared == (unit->prepare ? 1 : 0));
        if (unit->resident || unit->in_place)
            CHECK(w.calls[u].copied == (unit->resident ? 1 : 0));
        else
            CHECK(w.calls[u].copied >= 1);
    }
    world_close(&w);
}

/* What was fetched ahead and comes true does not cross the link twice. */
static void check_lookahead_used(void)
{
    static struct world w;
    struct plan p;
    uint64_t seed = 5;
    world_open(&w, &seed, 0);
    draw_plan(&w, &p, &seed);
    p.schedule.n_segments = 1;
    p.segments[0].ranges[0] = p.segments[0].ranges[1] = (struct spw_stream_range){1, MAX_TILES};
    for (int i = 0; i < 5; i++) {
        CHECK(spw_prefetch_begin(w.prefetch, &p.schedule) == 0);
        consume(&w, &p.schedule);
        CHECK(spw_prefetch_ahead_bytes(w.prefetch) == 0);
        CHECK(spw_prefetch_ahead(w.prefetch, &p.schedule) == 0);
        CHECK(spw_prefetch_ahead_bytes(w.prefetch) > 0);
        check_bytes(&w, "used");
    }
    uint64_t ahead = spw_prefetch_ahead_bytes(w.prefetch);
    CHECK(spw_prefetch_forget(w.prefetch) == 0); /* given up: paid for nothing */
    CHECK(spw_prefetch_ahead_bytes(w.prefetch) == ahead);
    CHECK(spw_prefetch_begin(w.prefetch, &p.schedule) == 0);
    consume(&w, &p.schedule);
    check_bytes(&w, "dropped");
    CHECK(spw_prefetch_ahead_bytes(w.prefetch) == ahead);
    w.ops->stream_sync(w.device, w.compute);
    world_close(&w);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 30 : 200;
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_lookahead_used();
    for (int i = 0; i < rounds; i++)
        run_round(check_random(&seed), i % 3 ? check_random(&seed) | 1 : 0);
    fprintf(stderr, "%llu reads\n", (unsigned long long)atomic_load(&n_reads));
    CHECK(!atomic_load(&wrong_reads));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
