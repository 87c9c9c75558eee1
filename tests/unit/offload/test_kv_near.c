/* A cache that keeps the sink, against a mirror in plain memory (tests/unit/offload/kv_mirror.h):
 * random sequences of grow, drop, fork, truncate and close over several sequences that share tiles.
 * Full layers keep tile 0 and what follows `first`, the sliding layer what follows `first`; nothing
 * lies below the device. What is held comes back where a pass is broken off, and is given back
 * else. With and without random delays.
 *
 * Frames are counted after every operation: those that the sequences show, each once, are all that
 * are taken.
 *
 *   test_kv_near [rounds] */
#include "tests/unit/offload/kv_mirror.h"

#include "quant/residual.h"

enum { MAX_TILES = 12, FRAMES = KV_SEQS * KV_LAYERS * MAX_TILES };

static void world_open(struct mirror *x, uint64_t seed, uint64_t delay_seed, uint32_t frames)
{
    struct kv_world_options o = {.seed = seed,
                                 .delay_seed = delay_seed,
                                 .drive = {.direct = true}, /* no frames of the host */
                                 .max_tiles = MAX_TILES,
                                 .n_device_frames = frames,
                                 .keeps_sink = true,
                                 .residual_tiles = seed % 4};
    mirror_open(x, &o);
}

/* ---- what must be there ---- */

static bool holds(const struct mirror_seq *m, uint32_t layer, uint32_t tile)
{
    return tile < mirror_end(m) && (tile >= m->first[layer] || (!tile && !mirror_sliding[layer]));
}

/* Frames that the sequences show, each counted once. */
static uint32_t frames_shown(const struct mirror *x)
{
    uint8_t seen[FRAMES] = {0};
    uint32_t n = 0;
    for (const struct mirror_seq *m = x->seqs; m < x->seqs + KV_SEQS; m++)
        for (uint32_t i = 0; i < KV_LAYERS * MAX_TILES && m->seq; i++)
            if (holds(m, i / MAX_TILES, i % MAX_TILES)) {
                const uint8_t *f = spw_kv_device_tile(m->seq, i / MAX_TILES, i % MAX_TILES);
                n += !seen[(f - (uint8_t *)x->w.device_arena) / MIRROR_TILE_BYTES]++;
            }
    return n;
}

/* Takes every frame that is free, and gives it back: there are as many as must be. */
static void check_frames(struct mirror *x)
{
    struct spw_kv_seq *seq[KV_SEQS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < KV_SEQS; i++)
        CHECK(spw_kv_seq_open(&seq[i], x->w.kv) == 0);
    for (uint32_t i = 0; i < KV_SEQS * KV_LAYERS * MAX_TILES; i++) {
        uint32_t tile = i % MAX_TILES, layer = i / MAX_TILES % KV_LAYERS;
        uint64_t at = (uint64_t)tile * SPW_TILE_TOKENS;
        int rc = spw_kv_grow(seq[i / MAX_TILES / KV_LAYERS], layer, at, at + SPW_TILE_TOKENS);
        if (rc) {
            CHECK(rc == -ENOMEM);
            break;
        }
        n++;
    }
    for (uint32_t i = 0; i < KV_SEQS; i++)
        spw_kv_seq_close(seq[i]);
    CHECK_MSG(n + frames_shown(x) == x->w.o.n_device_frames, "%u free, %u shown", n,
              frames_shown(x));
}

static void check_seq(struct mirror *x, const struct mirror_seq *m)
{
    mirror_check(x, m);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        if (m->first[l] && holds(m, l, 0))
            mirror_queue_verify(x, x->w.compute, spw_kv_device_tile(m->seq, l, 0), m->word[l],
                                mirror_tokens_in(m, 0));
}

/* ---- operations ---- */

static void do_grow(struct mirror *x, struct mirror_seq *m)
{
    uint32_t from = m->n_tokens, most = check_random(&x->w.seed) % 3 ? 40 : 500;
    uint32_t to = from + (uint32_t)check_range(&x->w.seed, 1, most);
    to = to < x->max_tokens ? to : x->max_tokens;
    for (uint32_t l = 0; l < KV_LAYERS && from < to; l++)
        CHECK(mirror_append(x, m, l, from, to) == 0);
    m->n_tokens = to;
}

/* As far as queries from n_tokens on allow, or (often) less. */
static void do_drop(struct mirror *x, struct mirror_seq *m)
{
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        uint64_t block = spw_residual_block(m->n_tokens);
        uint64_t first = mirror_sliding[l] ? spw_waterline_first(MIRROR_WINDOW, m->n_tokens)
                                           : spw_residual_end(block, x->w.o.residual_tiles);
        first = check_range(&x->w.seed, 0, first);
        spw_kv_drop(m->seq, l, (uint32_t)first);
        if (first > mirror_end(m))
            first = mirror_end(m);
        if (first > m->first[l])
            m->first[l] = m->begin[l] = (uint32_t)first;
    }
}

/* Queries from position n on find every tile that they read exactly: said tile by tile. */
static bool can_truncate(const struct mirror *x, const struct mirror_seq *m, uint32_t n)
{
    uint64_t block = spw_residual_block(n);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        for (uint32_t t = 0; t < spw_waterline_tiles(n); t++) {
            bool seen = mirror_sliding[l]
                            ? t >= spw_waterline_first(MIRROR_WINDOW, n)
                            : !spw_residual_is_quantized(block, t, x->w.o.residual_tiles);
            if (seen && !holds(m, l, t))
                return false;
        }
    return true;
}

static uint64_t n_cuts[2], n_sinks_opened, n_taken_back;

static void cut(struct mirror *x, struct mirror_seq *m, uint32_t n)
{
    mirror_cut(x, m, n);
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        if (!mirror_sliding[l] && mirror_end(m) <= 1)
            m->first[l] = m->begin[l] = 0;
}

static void do_truncate(struct mirror *x, struct mirror_seq *m)
{
    static const uint32_t most[3] = {3, SPW_TILE_TOKENS, MAX_TILES * SPW_TILE_TOKENS};
    uint32_t n = (uint32_t)check_range(&x->w.seed, 0, most[check_random(&x->w.seed) % 3]);
    n = n < m->n_tokens ? n : m->n_tokens;
    bool can = can_truncate(x, m, n);
    CHECK(spw_kv_can_truncate(m->seq, mirror_residency, n) == can);
    n_cuts[can]++;
    n = can ? n : 0;
    for (uint32_t l = 0; l < KV_LAYERS; l++)
        n_sinks_opened += !mirror_sliding[l] && n && n < SPW_TILE_TOKENS && m->first[l] > 1;
    cut(x, m, n);
}

/* What the sequence holds before a pass is held; where that is broken off it has it again. */
static void do_pass(struct mirror *x, struct mirror_seq *m)
{
    static struct mirror_seq before;
    before = *m;
    spw_kv_pin(m->seq, m->n_tokens);
    for (int i = (int)check_range(&x->w.seed, 0, 4); i; i--) {
        do_grow(x, m);
        do_drop(x, m);
    }
    if (check_random(&x->w.seed) % 2) {
        struct spw_kv_seq *copy;
        CHECK(spw_kv_seq_open(&copy, x->w.kv) == 0);
        spw_kv_seq_fork(copy, m->seq); /* holds nothing */
        spw_kv_seq_close(copy);
    }
    if (check_random(&x->w.seed) % 2) {
        spw_kv_pin(m->seq, m->n_tokens); /* instead of that */
        cut(x, m, m->n_tokens);
        return;
    }
    uint32_t less = check_random(&x->w.seed) % 3 ? 0 : (uint32_t)check_range(&x->w.seed, 0, 300);
    uint32_t n = before.n_tokens > less ? before.n_tokens - less : 0;
    bool can = can_truncate(x, &before, n);
    CHECK(spw_kv_can_truncate(m->seq, mirror_residency, n) == can);
    uint32_t more = (uint32_t)check_range(&x->w.seed, before.n_tokens, m->n_tokens);
    CHECK(spw_kv_reach(m->seq, mirror_residency, more) >= before.n_tokens);
    n = can ? n : 0;
    n_taken_back += n && m->first[0] > before.first[0];
    memcpy(m->first, before.first, sizeof m->first);
    memcpy(m->begin, before.begin, sizeof m->begin);
    cut(x, m, n);
}

static void step(struct mirror *x)
{
    struct mirror_seq *m = &x->seqs[check_random(&x->w.seed) % KV_SEQS];
    if (!m->seq)
        mirror_seq_open(x, m);
    switch (check_random(&x->w.seed) % 14) {
    case 0:
        mirror_seq_close(x, m);
        break;
    case 1:
    case 2:
        mirror_fork(x, m);
        break;
    case 3:
    case 4:
        do_truncate(x, m);
        break;
    case 5:
    case 6:
    case 7:
        do_drop(x, m);
        break;
    case 8:
    case 9:
        do_pass(x, m);
        break;
    default:
        do_grow(x, m);
    }
    if (m->seq && check_random(&x->w.seed) % 3 == 0)
        check_seq(x, m);
    if (check_random(&x->w.seed) % 5 == 0)
        check_frames(x);
}

static void run_round(uint64_t seed, uint64_t delay_seed, int steps)
{
    static struct mirror x;
    world_open(&x, seed, delay_seed, FRAMES);
    for (int i = 0; i < steps; i++)
        step(&x);
    for (int i = 0; i < KV_SEQS; i++)
        if (x.seqs[i].seq)
            check_seq(&x, &x.seqs[i]);
    mirror_finish(&x);
    check_frames(&x);
    mirror_close(&x);
}

/* A sink that two sequences share, and that one of them opens again, is copied; where there is no
 * frame for that, nothing has changed. */
static void check_shared_sink(void)
{
    static struct mirror x;
    struct spw_kv_seq *a, *b;
    world_open(&x, 3, 0, 3);
    CHECK(spw_kv_seq_open(&a, x.w.kv) == 0 && spw_kv_seq_open(&b, x.w.kv) == 0);
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
    check_frames(&x);
    mirror_drain(&x);
    mirror_close(&x);
}

int main(int argc, char **argv)
{
    struct check_draws rounds =
        check_draws_of(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 30 : 120);
    int64_t outstanding = spw_alloc_outstanding();
    uint64_t seed = check_seed();
    check_shared_sink();
    while (check_another(&rounds))
        run_round(check_random(&seed), rounds.done % 3 ? 0 : check_random(&seed) | 1, 300);
    fprintf(stderr,
            "%llu words compared; %llu cuts refused, %llu done, %llu behind a gap; "
            "%llu passes taken back\n",
            (unsigned long long)mirror_checked, (unsigned long long)n_cuts[0],
            (unsigned long long)n_cuts[1], (unsigned long long)n_sinks_opened,
            (unsigned long long)n_taken_back);
    CHECK(rounds.done < 20 || (n_cuts[0] && n_cuts[1] && n_sinks_opened && n_taken_back));
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
