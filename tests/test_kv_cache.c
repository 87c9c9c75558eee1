/* The KV cache against a model in plain memory: random sequences of grow, spill, load, drop,
 * truncate, fork and close over several sequences that share tiles.
 *
 * A tile's contents are one word a token, written by kernels queued on `compute` as attention's own
 * appends are. The model knows what every token of every sequence must be; at any time a check is
 * queued that reads each device tile on `compute`, and each host copy on `up` as the ring does. So
 * a missing order between streams, a frame given back too early or a shared tile that is written
 * shows as a wrong word; random delays around every copy and kernel look for the rare ones.
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
    TILE_WORDS = SPW_TILE_TOKENS,
    TILE_BYTES = TILE_WORDS * 4,
    DEVICE_FRAMES = 44,
    HOST_FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
    MOST_CHECKS = 1 << 16,
};

static const uint8_t sliding[N_LAYERS] = {0, 0, 1};

/* What one sequence must hold. */
struct model_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens;
    uint32_t word[N_LAYERS][MAX_TOKENS];
    uint32_t first[N_LAYERS], begin[N_LAYERS];
};

struct world {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, down, up;
    void *device_arena, *host_arena;
    struct spw_kv *kv;
    struct model_seq seqs[N_SEQS];
    uint64_t seed;
    uint32_t next_word;
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
        a->tile[i] = a->word + i - a->from;
}

static void run_verify(const void *args, size_t task, unsigned worker)
{
    const struct verify_args *a = args;
    (void)task;
    (void)worker;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->tile[i] != a->expected[i])
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

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed)
{
    struct spw_error err = {{0}};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = delay_seed};
    memset(w, 0, sizeof *w);
    w->ops = &spw_device_cpu;
    w->seed = seed;
    w->next_word = 1;
    CHECK(w->ops->open(&w->device, &o, &err) == 0);
    CHECK(w->ops->alloc(w->device, DEVICE_FRAMES * TILE_BYTES, &w->device_arena) == 0);
    CHECK(w->ops->alloc_host(w->device, HOST_FRAMES * TILE_BYTES, &w->host_arena) == 0);
    CHECK(w->ops->stream_open(w->device, "compute", &w->compute) == 0);
    CHECK(w->ops->stream_open(w->device, "down", &w->down) == 0);
    CHECK(w->ops->stream_open(w->device, "up", &w->up) == 0);
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->down,
                               .up = w->up,
                               .device_arena = w->device_arena,
                               .host_arena = w->host_arena,
                               .n_device_frames = DEVICE_FRAMES,
                               .n_host_frames = HOST_FRAMES,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
                               .max_tiles = MAX_TILES,
                               .slot_tiles = 1 + (uint32_t)(seed % 5)};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
}

static void world_close(struct world *w)
{
    drain(w);
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->down);
    w->ops->stream_close(w->device, w->up);
    spw_kv_close(w->kv);
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

static void queue_verify(struct world *w, const struct model_seq *m, uint32_t layer, uint32_t tile,
                         bool below)
{
    uint32_t at = tile * SPW_TILE_TOKENS, n = m->n_tokens - at;
    if (n > SPW_TILE_TOKENS)
        n = SPW_TILE_TOKENS;
    if (n_expected == MOST_CHECKS)
        drain(w);
    uint32_t *copy = expected_words[n_expected++];
    memcpy(copy, &m->word[layer][at], n * sizeof *copy);
    struct verify_args a = {.expected = copy, .n = n};
    if (below) {
        a.tile = spw_kv_host_tile(m->seq, layer, tile);
        CHECK(spw_kv_wait_written(m->seq, layer, tile) == 0);
    } else {
        a.tile = spw_kv_device_tile(m->seq, layer, tile);
    }
    CHECK(a.tile != NULL);
    if (a.tile)
        CHECK(spw_device_cpu_launch(w->device, below ? w->up : w->compute, &verify, &a, sizeof a) ==
              0);
}

/* Every tile that a query could see, where it lies. */
static void check_seq(struct world *w, const struct model_seq *m)
{
    uint32_t end = end_of(m);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->begin[l]);
        CHECK(spw_kv_end(m->seq, l) == end);
        CHECK(spw_kv_count_unwritten(m->seq, l, m->first[l], m->begin[l]) == 0);
        CHECK(spw_kv_count_absent(m->seq, l, m->begin[l], end) == 0);
        for (uint32_t t = m->first[l]; t < end; t++) {
            bool below = t < m->begin[l];
            queue_verify(w, m, l, t, below);
            if (below && (t + 1) * SPW_TILE_TOKENS <= m->n_tokens)
                CHECK(spw_kv_is_written(m->seq, l, t, t + 1));
        }
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

static void do_load(struct world *w, struct model_seq *m, uint32_t layer, uint32_t begin)
{
    uint32_t need = m->begin[layer] - begin;
    if (!room_for(w, need))
        return;
    CHECK(spw_kv_load(m->seq, layer, begin) == 0);
    m->begin[layer] = begin;
}

/* The next tokens of every layer, as a chunk does. The tail must be on the device before. */
static void do_grow(struct world *w, struct model_seq *m)
{
    uint32_t from = m->n_tokens, most = MAX_TOKENS - from;
    uint32_t n = (uint32_t)check_range(&w->seed, 1, check_random(&w->seed) % 3 ? 40 : 300);
    n = n > most ? most : n;
    uint32_t end = spw_waterline_tiles(from + n);
    for (uint32_t l = 0; l < N_LAYERS && from % SPW_TILE_TOKENS; l++)
        if (m->begin[l] == end_of(m))
            do_load(w, m, l, end_of(m) - 1);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        if (from % SPW_TILE_TOKENS && m->begin[l] == end_of(m))
            return; /* no room for the tail */
    if (!n || !room_for(w, N_LAYERS * (end - end_of(m) + 1)))
        return;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_grow(m->seq, l, from, from + n) == 0);
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
    if (full <= m->begin[layer])
        return;
    uint32_t begin = (uint32_t)check_range(&w->seed, m->begin[layer], full);
    struct spw_device_usage before, after;
    drain(w);
    w->ops->usage(w->device, &before);
    uint32_t unwritten = spw_kv_count_unwritten(m->seq, layer, m->begin[layer], begin);
    CHECK(spw_kv_spill(m->seq, layer, begin, 0) == 0);
    m->begin[layer] = begin;
    if (check_random(&w->seed) % 2) { /* each tile goes down once */
        drain(w);
        w->ops->usage(w->device, &after);
        CHECK(after.moved_bytes[SPW_LINK_DEVICE_TO_HOST] -
                  before.moved_bytes[SPW_LINK_DEVICE_TO_HOST] ==
              (uint64_t)unwritten * TILE_BYTES);
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
    CHECK(can == (m->first[N_LAYERS - 1] <= spw_waterline_first(WINDOW, n)));
    if (!can)
        n = 0;
    drain(w);
    spw_kv_truncate(m->seq, n);
    m->n_tokens = n;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        m->first[l] = m->first[l] < end_of(m) ? m->first[l] : end_of(m);
        m->begin[l] = m->begin[l] < end_of(m) ? m->begin[l] : end_of(m);
    }
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

static void step(struct world *w)
{
    struct model_seq *m = &w->seqs[check_random(&w->seed) % N_SEQS];
    uint32_t layer = (uint32_t)(check_random(&w->seed) % N_LAYERS);
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
}

static void run_round(uint64_t seed, uint64_t delay_seed, int steps)
{
    static struct world w;
    struct spw_device_usage u;
    uint64_t wrong = atomic_load(&words_wrong);
    world_open(&w, seed, delay_seed);
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
    /* Every frame of both tiers is free again: a single sequence can take them all. */
    struct model_seq *m = &w.seqs[0];
    do_open(&w, m);
    for (uint32_t l = 0; l < 2; l++)
        CHECK(spw_kv_grow(m->seq, l, 0, MAX_TOKENS) == 0 && spw_kv_spill(m->seq, l, 5, 0) == 0 &&
              spw_kv_load(m->seq, l, 0) == 0);
    drain(&w);
    do_close(&w, m);
    w.ops->usage(w.device, &u);
    CHECK(u.device_bytes == spw_align_up(DEVICE_FRAMES * TILE_BYTES, 4096));
    world_close(&w);
}

/* ---- frames ---- */

/* All device frames can be taken, the next is refused, and closing gives every one of them back. */
static void check_full(void)
{
    static struct world w;
    world_open(&w, 1, 0);
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
        drain(&w);
        for (i = 0; i < N_SEQS; i++)
            spw_kv_seq_close(seqs[i]);
    }
    world_close(&w);
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
    for (int i = 0; i < rounds; i++)
        run_round(check_random(&seed), i % 3 ? check_random(&seed) | 1 : 0, 300);
    fprintf(stderr, "%llu words compared\n", (unsigned long long)atomic_load(&words_checked));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
