/* A cache that keeps the sink, against a model in plain memory: random sequences of grow, drop,
 * fork, truncate and close over several sequences that share tiles. Full layers keep tile 0 and
 * what follows `first`, the sliding layer what follows `first`; nothing lies below the device.
 *
 * A token's contents are one word, written by kernels on `compute` and compared by others, with and
 * without random delays. Frames are counted after every operation: those that the sequences show,
 * each once, are all that are taken.
 *
 *   test_kv_near [rounds] */
#include "tests/engine_run.h"

#include "offload/kv_cache.h"
#include "quant/residual.h"

#include <stdatomic.h>

enum {
    N_LAYERS = 3, /* the last one slides */
    SLIDING = N_LAYERS - 1,
    N_SEQS = 4,
    MAX_TILES = 12,
    MAX_TOKENS = MAX_TILES * SPW_TILE_TOKENS,
    WINDOW = 200,
    TILE_BYTES = SPW_TILE_TOKENS * 4,
    FRAMES = N_SEQS * N_LAYERS * MAX_TILES,
    MOST_LAUNCHES = 1 << 14,
};

static const uint8_t sliding[N_LAYERS] = {0, 0, 1};

struct model_seq {
    struct spw_kv_seq *seq;
    uint32_t n_tokens, first[N_LAYERS];
    uint32_t word[N_LAYERS][MAX_TOKENS];
};

struct world {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, other;
    uint8_t *arena;
    struct spw_kv *kv;
    struct model_seq seqs[N_SEQS];
    uint64_t seed, residual_tiles;
    uint32_t next_word, frames; /* given to the cache */
};

/* ---- kernels ---- */

struct token_args {
    uint32_t *tile;
    const uint32_t *words; /* stay until the stream is drained */
    uint32_t from, to;
};

static _Atomic uint64_t words_wrong, words_checked;

static size_t one(const void *args)
{
    (void)args;
    return 1;
}

static void run_stamp(const void *args, size_t task, unsigned worker)
{
    const struct token_args *a = args;
    (void)task;
    (void)worker;
    memcpy(a->tile + a->from, a->words, (a->to - a->from) * sizeof a->words[0]);
}

static void run_verify(const void *args, size_t task, unsigned worker)
{
    const struct token_args *a = args;
    (void)task;
    (void)worker;
    for (uint32_t i = a->from; i < a->to; i++)
        words_wrong += a->tile[i] != a->words[i - a->from];
    words_checked += a->to - a->from;
}

static const struct spw_kernel stamp = {"stamp", one, run_stamp};
static const struct spw_kernel verify = {"verify", one, run_verify};

static uint32_t words[MOST_LAUNCHES][SPW_TILE_TOKENS];
static size_t n_launched;

static void drain(struct world *w)
{
    CHECK(w->ops->stream_sync(w->device, w->compute) == 0);
    n_launched = 0;
}

/* Of the tokens [from, to) of one tile. */
static void launch(struct world *w, const struct spw_kernel *kernel, const struct model_seq *m,
                   uint32_t layer, uint32_t from, uint32_t to)
{
    uint32_t tile = from / SPW_TILE_TOKENS;
    if (n_launched == MOST_LAUNCHES)
        drain(w);
    struct token_args a = {.tile = spw_kv_device_tile(m->seq, layer, tile),
                           .words = words[n_launched],
                           .from = from % SPW_TILE_TOKENS,
                           .to = to - tile * SPW_TILE_TOKENS};
    memcpy(words[n_launched++], m->word[layer] + from, (to - from) * sizeof a.words[0]);
    CHECK(spw_device_cpu_launch(w->device, w->compute, kernel, &a, sizeof a) == 0);
}

/* ---- the world ---- */

static void world_open(struct world *w, uint64_t seed, uint64_t delay_seed, uint32_t frames)
{
    struct spw_error err = {{0}};
    struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .threads = 1,
                                   .delay_seed = delay_seed};
    *w = (struct world){.ops = &spw_device_cpu,
                        .seed = seed,
                        .residual_tiles = seed % 4,
                        .frames = frames,
                        .next_word = 1};
    void *arena;
    CHECK(w->ops->open(&w->device, &o, &err) == 0);
    CHECK(w->ops->alloc(w->device, FRAMES * TILE_BYTES, &arena) == 0);
    CHECK(w->ops->stream_open(w->device, "compute", &w->compute) == 0);
    CHECK(w->ops->stream_open(w->device, "other", &w->other) == 0);
    w->arena = arena;
    struct spw_kv_options k = {.ops = w->ops,
                               .device = w->device,
                               .compute = w->compute,
                               .down = w->other,
                               .up = w->other,
                               .device_arena = arena,
                               .n_device_frames = frames,
                               .tile_bytes = TILE_BYTES,
                               .n_layers = N_LAYERS,
                               .sliding = sliding,
                               .max_tiles = MAX_TILES,
                               .slot_tiles = 1 + (uint32_t)(seed % 5),
                               .keeps_sink = true,
                               .residual_tiles = w->residual_tiles};
    CHECK(spw_kv_open(&w->kv, &k) == 0);
}

static void world_close(struct world *w)
{
    drain(w);
    w->ops->stream_close(w->device, w->compute);
    w->ops->stream_close(w->device, w->other);
    spw_kv_close(w->kv);
    w->ops->free(w->device, w->arena, FRAMES * TILE_BYTES);
    w->ops->close(w->device);
}

/* ---- what must be there ---- */

static uint32_t end_of(const struct model_seq *m)
{
    return spw_waterline_tiles(m->n_tokens);
}

static bool holds(const struct model_seq *m, uint32_t layer, uint32_t tile)
{
    return tile < end_of(m) && (tile >= m->first[layer] || (!tile && !sliding[layer]));
}

/* Frames that the sequences show, each counted once. */
static uint32_t frames_shown(const struct world *w)
{
    uint8_t seen[FRAMES] = {0};
    uint32_t n = 0;
    for (const struct model_seq *m = w->seqs; m < w->seqs + N_SEQS; m++)
        for (uint32_t i = 0; i < N_LAYERS * MAX_TILES && m->seq; i++)
            if (holds(m, i / MAX_TILES, i % MAX_TILES)) {
                const uint8_t *f = spw_kv_device_tile(m->seq, i / MAX_TILES, i % MAX_TILES);
                n += !seen[(f - w->arena) / TILE_BYTES]++;
            }
    return n;
}

/* Takes every frame that is free, and gives it back: there are as many as must be. */
static void check_frames(struct world *w)
{
    struct spw_kv_seq *seq[N_SEQS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SEQS; i++)
        CHECK(spw_kv_seq_open(&seq[i], w->kv) == 0);
    for (uint32_t i = 0; i < N_SEQS * N_LAYERS * MAX_TILES; i++) {
        uint32_t tile = i % MAX_TILES, layer = i / MAX_TILES % N_LAYERS;
        uint64_t at = (uint64_t)tile * SPW_TILE_TOKENS;
        int rc = spw_kv_grow(seq[i / MAX_TILES / N_LAYERS], layer, at, at + SPW_TILE_TOKENS);
        if (rc) {
            CHECK(rc == -ENOMEM);
            break;
        }
        n++;
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        spw_kv_seq_close(seq[i]);
    CHECK_MSG(n + frames_shown(w) == w->frames, "%u free, %u shown", n, frames_shown(w));
}

static void check_seq(struct world *w, const struct model_seq *m)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(spw_kv_first(m->seq, l) == m->first[l]);
        CHECK(spw_kv_begin(m->seq, l) == m->first[l]);
        CHECK(spw_kv_end(m->seq, l) == end_of(m));
        for (uint32_t t = 0; t < end_of(m); t++)
            if (holds(m, l, t)) {
                uint32_t from = t * SPW_TILE_TOKENS, to = from + SPW_TILE_TOKENS;
                launch(w, &verify, m, l, from, to < m->n_tokens ? to : m->n_tokens);
            }
    }
}

/* ---- operations ---- */

static void do_grow(struct world *w, struct model_seq *m)
{
    uint32_t from = m->n_tokens;
    uint32_t to = from + (uint32_t)check_range(&w->seed, 1, check_random(&w->seed) % 3 ? 40 : 500);
    to = to < MAX_TOKENS ? to : MAX_TOKENS;
    m->n_tokens = to;
    for (uint32_t l = 0; l < N_LAYERS && from < to; l++) {
        CHECK(spw_kv_grow(m->seq, l, from, to) == 0);
        for (uint32_t at = from, next; at < to; at = next) {
            next = (at / SPW_TILE_TOKENS + 1) * SPW_TILE_TOKENS;
            next = next < to ? next : to;
            for (uint32_t i = at; i < next; i++)
                m->word[l][i] = w->next_word++;
            launch(w, &stamp, m, l, at, next);
        }
    }
}

/* As far as queries from n_tokens on allow, or (often) less. */
static void do_drop(struct world *w, struct model_seq *m)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        uint64_t block = spw_residual_block(m->n_tokens);
        uint64_t first = sliding[l] ? spw_waterline_first(WINDOW, m->n_tokens)
                                    : spw_residual_end(block, w->residual_tiles);
        first = check_range(&w->seed, 0, first);
        spw_kv_drop(m->seq, l, (uint32_t)first);
        if (first > end_of(m))
            first = end_of(m);
        if (first > m->first[l])
            m->first[l] = (uint32_t)first;
    }
}

/* Queries from position n on find every tile that they read exactly: said tile by tile. */
static bool can_truncate(const struct world *w, const struct model_seq *m, uint32_t n)
{
    uint64_t block = spw_residual_block(n);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t t = 0; t < spw_waterline_tiles(n); t++) {
            bool seen = sliding[l] ? t >= spw_waterline_first(WINDOW, n)
                                   : !spw_residual_is_quantized(block, t, w->residual_tiles);
            if (seen && !holds(m, l, t))
                return false;
        }
    return true;
}

static uint64_t n_cuts[2], n_sinks_opened;

static void do_truncate(struct world *w, struct model_seq *m)
{
    static const uint32_t most[3] = {3, SPW_TILE_TOKENS, MAX_TOKENS};
    uint32_t n = (uint32_t)check_range(&w->seed, 0, most[check_random(&w->seed) % 3]);
    n = n < m->n_tokens ? n : m->n_tokens;
    bool can = can_truncate(w, m, n);
    CHECK(spw_kv_can_truncate(m->seq, WINDOW, n) == can);
    n_cuts[can]++;
    if (!can)
        n = 0;
    drain(w);
    spw_kv_truncate(m->seq, n);
    m->n_tokens = n;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        n_sinks_opened += !sliding[l] && n && n < SPW_TILE_TOKENS && m->first[l] > 1;
        if (m->first[l] > end_of(m))
            m->first[l] = end_of(m);
        if (!sliding[l] && end_of(m) <= 1)
            m->first[l] = 0;
    }
}

static void do_fork(struct world *w, const struct model_seq *from)
{
    for (struct model_seq *m = w->seqs; m < w->seqs + N_SEQS; m++)
        if (!m->seq) {
            struct spw_kv_seq *seq;
            CHECK(spw_kv_seq_open(&seq, w->kv) == 0);
            spw_kv_seq_fork(seq, from->seq);
            *m = *from;
            m->seq = seq;
            return;
        }
}

static void do_close(struct model_seq *m)
{
    spw_kv_seq_close(m->seq);
    m->seq = NULL;
}

static void step(struct world *w)
{
    struct model_seq *m = &w->seqs[check_random(&w->seed) % N_SEQS];
    if (!m->seq) {
        memset(m, 0, sizeof *m);
        CHECK(spw_kv_seq_open(&m->seq, w->kv) == 0);
    }
    switch (check_random(&w->seed) % 12) {
    case 0:
        do_close(m);
        break;
    case 1:
    case 2:
        do_fork(w, m);
        break;
    case 3:
    case 4:
        do_truncate(w, m);
        break;
    case 5:
    case 6:
    case 7:
        do_drop(w, m);
        break;
    default:
        do_grow(w, m);
    }
    if (m->seq && check_random(&w->seed) % 3 == 0)
        check_seq(w, m);
    if (check_random(&w->seed) % 5 == 0)
        check_frames(w);
}

static void run_round(uint64_t seed, uint64_t delay_seed, int steps)
{
    static struct world w;
    uint64_t wrong = words_wrong;
    world_open(&w, seed, delay_seed, FRAMES);
    for (int i = 0; i < steps; i++)
        step(&w);
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq)
            check_seq(&w, &w.seqs[i]);
    drain(&w);
    CHECK_MSG(words_wrong == wrong, "seed %llu, delays %llu: %llu words", (unsigned long long)seed,
              (unsigned long long)delay_seed, (unsigned long long)(words_wrong - wrong));
    for (int i = 0; i < N_SEQS; i++)
        if (w.seqs[i].seq)
            do_close(&w.seqs[i]);
    check_frames(&w);
    world_close(&w);
}

/* A sink that two sequences share, and that one of them opens again, is copied; where there is no
 * frame for that, nothing has changed. */
static void check_shared_sink(void)
{
    static struct world w;
    struct spw_kv_seq *a, *b;
    world_open(&w, 3, 0, 3);
    CHECK(spw_kv_seq_open(&a, w.kv) == 0 && spw_kv_seq_open(&b, w.kv) == 0);
    CHECK(spw_kv_grow(a, 0, 0, 3 * SPW_TILE_TOKENS) == 0);
    spw_kv_seq_fork(b, a);
    spw_kv_drop(b, 0, 2);
    const void *sink = spw_kv_device_tile(a, 0, 0);
    CHECK(spw_kv_device_tile(b, 0, 0) == sink);
    spw_kv_truncate(b, 100);
    CHECK(spw_kv_first(b, 0) == 0 && spw_kv_device_tile(b, 0, 0) == sink);
    CHECK(spw_kv_grow(b, 0, 100, 120) == -ENOMEM && spw_kv_device_tile(b, 0, 0) == sink);
    spw_kv_drop(a, 0, 2);
    CHECK(spw_kv_grow(b, 0, 100, 120) == 0 && spw_kv_device_tile(b, 0, 0) != sink);
    CHECK(spw_kv_device_tile(a, 0, 0) == sink);
    spw_kv_seq_close(a);
    spw_kv_seq_close(b);
    check_frames(&w);
    world_close(&w);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 30 : 120;
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_shared_sink();
    for (int i = 0; i < rounds; i++)
        run_round(check_random(&seed), i % 3 ? 0 : check_random(&seed) | 1, 300);
    fprintf(stderr, "%llu words compared; %llu cuts refused, %llu done, %llu behind a gap\n",
            (unsigned long long)words_checked, (unsigned long long)n_cuts[0],
            (unsigned long long)n_cuts[1], (unsigned long long)n_sinks_opened);
    CHECK(rounds < 20 || (n_cuts[0] && n_cuts[1] && n_sinks_opened));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
