/* The order of transfers against a list made by brute force: layer by layer, part by part, slice by
 * slice, tile by tile; tiles of the same slot are joined. */
#include "prefetch/schedule.h"
#include "tests/check.h"

enum { N_LAYERS = 5, N_SEGMENTS = 4, MOST_TILES = 23, MOST_SLICES = 3 };
enum { MOST = N_LAYERS * N_SEGMENTS * MOST_SLICES * MOST_TILES };

static struct spw_stream_range draw_range(uint64_t *seed)
{
    uint32_t first = (uint32_t)check_range(seed, 0, MOST_TILES);
    return (struct spw_stream_range){first, (uint32_t)check_range(seed, 0, MOST_TILES)};
}

static size_t add_slice(const struct spw_schedule *s, uint32_t l, const struct spw_part_reads *g,
                        uint32_t slice, struct spw_transfer *out)
{
    struct spw_stream_range r = s->kinds[l] == SPW_LAYER_FULL ? g->ranges[0] : g->ranges[1];
    size_t n = 0;
    for (uint32_t t = 0; t < MOST_TILES; t++) {
        if (t < r.first || t >= r.end)
            continue;
        if (t > r.first && t / s->slot_tiles == (t - 1) / s->slot_tiles)
            out[n - 1].tile_end++;
        else
            out[n++] = (struct spw_transfer){.seq = g->seq,
                                             .layer = slice,
                                             .tile_begin = t,
                                             .tile_end = t + 1,
                                             .disk_end = g->disk_end[s->kinds[l]],
                                             .reader = l};
    }
    return n;
}

static size_t brute_force(const struct spw_schedule *s, struct spw_transfer *out)
{
    size_t n = 0;
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t i = 0; i < s->n_parts; i++)
            for (uint32_t k = 0; k < s->layer_slices[s->kinds[l]]; k++)
                n += add_slice(s, l, &s->parts[i], s->first_slices[l] + k, out + n);
    return n;
}

static void run(uint64_t *seed)
{
    static struct spw_transfer expected[MOST];
    static char names[N_SEGMENTS]; /* addresses serve as names of sequences */
    struct spw_part_reads segments[N_SEGMENTS];
    uint8_t sliding[N_LAYERS];
    uint32_t first_slices[N_LAYERS], layer_slices[SPW_LAYER_KINDS];
    struct spw_transfer t;
    struct spw_kv_cursor kv = {0};
    struct spw_block_cursor blocks = {0};
    uint32_t block;
    for (int i = 0; i < N_LAYERS; i++)
        sliding[i] = check_random(seed) % 2;
    for (int i = 0; i < N_LAYERS; i++)
        first_slices[i] = (uint32_t)check_range(seed, 0, (uint64_t)i);
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        layer_slices[k] = (uint32_t)check_range(seed, 1, MOST_SLICES);
    for (int i = 0; i < N_SEGMENTS; i++)
        segments[i] =
            (struct spw_part_reads){.seq = (struct spw_kv_seq *)(void *)&names[i],
                                    .ranges = {draw_range(seed), draw_range(seed)},
                                    .disk_end = {(uint32_t)(check_random(seed) % MOST_TILES),
                                                 (uint32_t)(check_random(seed) % MOST_TILES)}};
    struct spw_schedule s = {.n_layers = (uint32_t)check_range(seed, 1, N_LAYERS),
                             .kinds = sliding,
                             .first_slices = first_slices,
                             .layer_slices = layer_slices,
                             .slot_tiles = SPW_SPLIT_TILES * (uint32_t)check_range(seed, 1, 8),
                             .n_parts = (uint32_t)check_range(seed, 0, N_SEGMENTS),
                             .parts = segments,
                             .n_layer_blocks = (uint32_t)check_range(seed, 1, 9),
                             .n_head_blocks = (uint32_t)check_range(seed, 0, 3),
                             .n_head_rounds = (uint32_t)check_range(seed, 0, 3)};
    size_t n = brute_force(&s, expected), got = 0;
    for (; spw_schedule_next_kv(&s, &kv, &t) && got < n; got++) {
        CHECK(t.seq == expected[got].seq && t.layer == expected[got].layer &&
              t.reader == expected[got].reader);
        CHECK(t.tile_begin == expected[got].tile_begin && t.tile_end == expected[got].tile_end);
        CHECK(t.tile_end - t.tile_begin <= s.slot_tiles && t.disk_end == expected[got].disk_end);
    }
    CHECK(got == n && !spw_schedule_next_kv(&s, &kv, &t));
    for (uint32_t b = 0; b < s.n_layer_blocks; b++)
        CHECK(spw_schedule_next_block(&s, &blocks, &block) && block == b);
    for (uint32_t r = 0; r < s.n_head_rounds; r++)
        for (uint32_t h = 0; h < s.n_head_blocks; h++)
            CHECK(spw_schedule_next_block(&s, &blocks, &block) && block == s.n_layer_blocks + h);
    CHECK(!spw_schedule_next_block(&s, &blocks, &block) &&
          !spw_schedule_next_block(&s, &blocks, &block));
}

int main(void)
{
    uint64_t seed = check_seed();
    for (int i = 0; i < 3000; i++)
        run(&seed);
    return check_done();
}
