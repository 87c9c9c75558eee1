/* Measures attention of decoding, one row over a long past, beside the reads of this machine in the
 * same run:
 *
 *     bench_attention [THREADS [f32|f16|bf16]]    ninja -C build/release bench_attention
 *
 * Bytes of KV a second, from memory, and their share of the fastest way to read, for head sizes and
 * numbers of query heads a KV head. Reads are measured before and after each turn: virtual machines
 * change their speed within seconds. Medians of rounds in which the shapes take turns. */
#include "quant/tile.h"
#include "quant/types.h"
#include "runtime/engine/backend.h"
#include "tests/bench/bench.h"

#include <math.h>

enum {
    KV_HEADS = 8,
    BYTES = 64 << 20, /* of KV */
    MOST_GROUP = 8,
    MOST_DIM = 256,
};
static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8};
enum { N_DIMS = 3, N_GROUPS = 8 };

struct bench {
    struct spw_backend backend;
    struct spw_device *device;
    spw_stream stream;
    int threads;
    enum spw_dtype kv_dtype;
    void *q, *y;
    float *state;
    char *kv;
    struct spw_attention_args a;
    double seconds[N_DIMS][N_GROUPS][ROUNDS];
    double reads[ROUNDS][N_DIMS]; /* bytes a second, around the turn of the head size */
};

static void check(int result)
{
    if (result) {
        fprintf(stderr, "bench_attention: error %d\n", result);
        exit(1);
    }
}

static double run(struct bench *b, uint32_t dim, uint32_t group)
{
    const size_t tile = spw_tile_bytes(KV_HEADS, spw_tile_square(dim), b->kv_dtype);
    struct spw_attention_args *a = &b->a;
    a->n_tiles = (uint32_t)spw_min_u64(BYTES / tile, b->backend.ops->attention_tiles);
    a->head_dim = dim;
    a->n_heads = KV_HEADS * group;
    a->q_stride = (size_t)a->n_heads * dim;
    a->position = (uint64_t)a->n_tiles * SPW_TILE_TOKENS - 1;
    a->scale = 1 / sqrtf((float)dim);
    for (uint32_t i = 0; i < a->n_tiles; i++)
        a->tiles[i] = b->kv + i * tile;
    spw_cache_evict(b->kv, a->n_tiles * tile);
    const double start = now();
    check(b->backend.ops->attention(a, b->stream));
    check(b->backend.device_ops->stream_sync(b->device, b->stream));
    return (now() - start) / (double)(a->n_tiles * tile);
}

static void open_bench(struct bench *b)
{
    spw_backend_cpu(&b->backend);
    struct spw_device_options o = {.context = b->backend.context, .threads = b->threads};
    check(b->backend.device_ops->open(&b->device, &o, NULL));
    check(b->backend.device_ops->stream_open(b->device, "compute", &b->stream));
    b->kv = room(BYTES);
    for (size_t i = 0; i < BYTES / 2; i++)
        ((uint16_t *)b->kv)[i] = (uint16_t)(0x3c00 + (i * 2654435761u >> 8 & 0x83ff));
    const enum spw_dtype dtype = b->kv_dtype == SPW_DTYPE_BF16 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    const size_t numbers = (size_t)KV_HEADS * MOST_GROUP * (MOST_DIM + 2);
    b->q = room(numbers * sizeof(float));
    b->y = room(numbers * sizeof(float));
    b->state = room(numbers * sizeof(float));
    b->a = (struct spw_attention_args){.q = b->q,
                                       .state = b->state,
                                       .y = b->y,
                                       .rows = 1,
                                       .n_kv_heads = KV_HEADS,
                                       .window.step = 1,
                                       .first = true,
                                       .dtype = dtype,
                                       .kv_dtype = b->kv_dtype};
}

/* The median of the shares of the reads of the same turn. */
static double share_of(const struct bench *b, int d, int g)
{
    double shares[ROUNDS];
    for (int r = 0; r < ROUNDS; r++)
        shares[r] = 1 / b->seconds[d][g][r] / b->reads[r][d];
    return median(shares);
}

static void print(const struct bench *b)
{
    double all[N_DIMS][ROUNDS];
    for (int d = 0; d < N_DIMS; d++)
        for (int r = 0; r < ROUNDS; r++)
            all[d][r] = b->reads[r][d];
    printf("%s, %d threads, %s: GB/s of KV and percent of the reads, by query heads a KV head\n\n",
           b->backend.name, b->threads, spw_dtype_name(b->kv_dtype));
    printf("| head size | reads, GB/s |");
    for (int g = 0; g < N_GROUPS; g++)
        printf(" %u |", groups[g]);
    printf("\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (int d = 0; d < N_DIMS; d++) {
        printf("| %u | %.1f |", dims[d], median(all[d]) * 1e-9);
        for (int g = 0; g < N_GROUPS; g++)
            printf(" %.1f, %.0f %% |", 1e-9 / median(b->seconds[d][g]), 100 * share_of(b, d, g));
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    static struct bench b = {.kv_dtype = SPW_DTYPE_BF16};
    b.threads = argc > 1 ? atoi(argv[1]) : 2;
    for (enum spw_dtype t = SPW_DTYPE_F32; argc > 2 && t <= SPW_DTYPE_BF16; t++)
        if (!strcmp(argv[2], spw_dtype_name(t)))
            b.kv_dtype = t;
    open_bench(&b);
    for (int r = -1; r < ROUNDS; r++) {
        double before = read_rate(&b.backend, b.device, b.stream, b.kv, BYTES);
        for (int d = 0; d < N_DIMS; d++) {
            double seconds[N_GROUPS];
            for (int g = 0; g < N_GROUPS; g++)
                seconds[g] = run(&b, dims[d], groups[g]);
            const double after = read_rate(&b.backend, b.device, b.stream, b.kv, BYTES);
            for (int g = 0; g < N_GROUPS && r >= 0; g++)
                b.seconds[d][g][r] = seconds[g];
            if (r >= 0)
                b.reads[r][d] = (before + after) / 2;
            before = after;
        }
    }
    print(&b);
    return 0;
}
