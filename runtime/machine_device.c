/* The limits of a device that has its own memory, and one kernel alone: see spillway.h.
 *
 * Everything is timed from the host around a batch of queued work that takes tens of milliseconds,
 * so that what a launch costs does not show; the median of five batches counts. */
#include "runtime/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5, COPIES = 24, READS = 8, PRODUCTS = 6, MATRIX = 8192 };
#define COPY_BYTES ((uint64_t)64 << 20)
#define READ_BYTES ((uint64_t)1 << 30) /* far past any cache */

struct bench {
    const struct spw_backend *backend;
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream stream;
    uint8_t *memory, *host; /* owned: [bytes], [COPY_BYTES] */
    uint64_t bytes;
    struct spw_probe_matrix *matrix;
    struct spw_attention_args attention;
    uint8_t *tiles; /* in `memory` */
    uint64_t context, tile_bytes;
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one `work`, by batches of n. The first batch warms up and is not counted. */
static int time_work(struct bench *b, int (*work)(struct bench *), int n, double *seconds)
{
    double rounds[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) {
        double start = now_seconds();
        for (int i = 0; i < n; i++)
            SPW_TRY(work(b));
        SPW_TRY(b->ops->stream_sync(b->device, b->stream));
        if (r >= 0)
            rounds[r] = (now_seconds() - start) / n;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    *seconds = rounds[ROUNDS / 2];
    return 0;
}

static int copy_up(struct bench *b)
{
    return b->ops->copy(b->device, b->memory, b->host, COPY_BYTES, SPW_LINK_HOST_TO_DEVICE,
                        b->stream);
}

static int read_all(struct bench *b)
{
    return b->backend->probe->read(b->memory, b->bytes - 4096, b->memory + b->bytes - 4096,
                                   b->stream);
}

static int multiply(struct bench *b)
{
    return b->backend->probe->matrix_run(b->matrix, b->memory, b->stream);
}

/* Numbers of either sign between 1 and 2, as bf16 and as f32: zeros would draw less power, and the
 * peak would be one that no model reaches. */
static int fill(struct bench *b)
{
    uint32_t *words = (uint32_t *)b->host, state = 1;
    for (size_t i = 0; i < COPY_BYTES / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = ((state >> 3) & 0x807f807fu) | 0x3f803f80u;
    }
    for (uint64_t at = 0; at < b->bytes; at += COPY_BYTES)
        SPW_TRY(b->ops->copy(b->device, b->memory + at, b->host,
                             spw_min_u64(COPY_BYTES, b->bytes - at), SPW_LINK_HOST_TO_DEVICE,
                             b->stream));
    return b->ops->stream_sync(b->device, b->stream);
}

static int take(struct bench *b, uint64_t bytes)
{
    b->bytes = bytes;
    SPW_TRY(b->ops->alloc(b->device, bytes, (void **)&b->memory));
    SPW_TRY(b->ops->alloc_host(b->device, COPY_BYTES, (void **)&b->host));
    SPW_TRY(b->ops->stream_open(b->device, "compute", &b->stream));
    return fill(b);
}

static void give(struct bench *b)
{
    if (b->stream)
        b->ops->stream_close(b->device, b->stream);
    b->ops->free_host(b->device, b->host, COPY_BYTES);
    b->ops->free(b->device, b->memory, b->bytes);
    b->stream = NULL;
    b->host = b->memory = NULL;
}

static int probe_bandwidths(struct spw_machine *out, struct bench *b)
{
    double seconds;
    SPW_TRY(take(b, spw_min_u64(READ_BYTES, b->ops->available(b->device) / 2 / 4096 * 4096)));
    SPW_TRY(time_work(b, copy_up, COPIES, &seconds));
    out->copy_bytes_per_second = (double)COPY_BYTES / seconds;
    SPW_TRY(time_work(b, read_all, READS, &seconds));
    out->read_bytes_per_second = (double)(b->bytes - 4096) / seconds;
    return 0;
}

/* Without the library there is no peak; the note says why. */
static int probe_matrix(struct spw_machine *out, struct bench *b, enum spw_dtype dtype,
                        double *flops)
{
    struct spw_error why = {{0}};
    int rc = b->backend->probe->matrix_open(&b->matrix, dtype, MATRIX, &why);
    if (rc == -ENODEV) {
        snprintf(out->note, sizeof out->note, "no matrix peak: %.120s", why.text);
        return 0;
    }
    SPW_TRY(rc);
    double seconds;
    rc = take(b, spw_align_up(b->backend->probe->matrix_bytes(b->matrix), 4096));
    if (!rc)
        rc = time_work(b, multiply, PRODUCTS, &seconds);
    if (!rc)
        *flops = 2.0 * MATRIX * MATRIX * MATRIX / seconds;
    give(b);
    b->backend->probe->matrix_close(b->matrix);
    return rc;
}

int spw_machine_probe_device(struct spw_machine *out, const struct spw_backend *backend,
                             struct spw_device *device, struct spw_error *err)
{
    struct bench b = {.backend = backend, .ops = backend->device_ops, .device = device};
    int rc = probe_bandwidths(out, &b);
    give(&b);
    if (!rc)
        rc = probe_matrix(out, &b, SPW_DTYPE_BF16, &out->bf16_flops);
    if (!rc)
        rc = probe_matrix(out, &b, SPW_DTYPE_F32, &out->f32_flops);
    return rc ? spw_fail(err, rc, "%s: its limits could not be measured: %s", backend->name,
                         strerror(-rc))
              : 0;
}

/* ---- attention alone ---- */

enum { STEPS = 8 };

static enum spw_qformat format_of(const struct spw_attention_shape *s)
{
    if (!s->k_bits)
        return SPW_QFORMAT_EXACT;
    if (s->v_bits == 8)
        return SPW_QFORMAT_INT8;
    return s->k_bits == 8 ? SPW_QFORMAT_INT8_INT4 : SPW_QFORMAT_INT4;
}

/* Bytes of a tile in the form that is asked for. */
static uint64_t tile_bytes_of(const struct spw_attention_shape *s)
{
    enum spw_qformat format = format_of(s);
    return format == SPW_QFORMAT_EXACT ? spw_tile_bytes(s->n_kv_heads, s->head_dim, s->dtype)
                                       : spw_qtile_bytes(s->n_kv_heads, s->head_dim, format);
}

static int attend(struct bench *b)
{
    struct spw_attention_args *a = &b->attention;
    uint64_t tiles = spw_div_up(b->context, SPW_TILE_TOKENS);
    uint32_t most = b->backend->ops->attention_tiles;
    for (uint64_t first = 0; first < tiles; first += most) {
        a->tile_first = first;
        a->n_tiles = (uint32_t)spw_min_u64(most, tiles - first);
        a->first = first == 0;
        a->quantized_end = a->qformat == SPW_QFORMAT_EXACT ? 0 : a->n_tiles;
        for (uint32_t i = 0; i < a->n_tiles; i++)
            a->tiles[i] = b->tiles + (first + i) * b->tile_bytes;
        SPW_TRY(b->backend->ops->attention(a, b->stream));
    }
    return 0;
}

static int time_attention(struct spw_attention_speed *out, struct bench *b,
                          const struct spw_attention_shape *s)
{
    uint64_t tiles = spw_div_up(s->context, SPW_TILE_TOKENS);
    uint64_t state_row = (uint64_t)s->n_heads * (s->head_dim + 2) * sizeof(float);
    uint64_t splits = b->backend->ops->attention_tiles / SPW_SPLIT_TILES;
    uint64_t q = 0, state = spw_align_up((uint64_t)s->n_heads * s->head_dim * 4, 4096);
    uint64_t partials = state + spw_align_up(state_row, 4096);
    uint64_t kv = partials + spw_align_up(splits * state_row, 4096);
    uint64_t whole = s->context / SPW_TILE_TOKENS;
    b->context = s->context;
    b->tile_bytes = tile_bytes_of(s);
    SPW_TRY(take(b, spw_align_up(kv + tiles * b->tile_bytes, 4096)));
    b->tiles = b->memory + kv;
    b->attention = (struct spw_attention_args){
        .q = b->memory + q,
        .state = (float *)(b->memory + state),
        .partials = (float *)(b->memory + partials),
        .rows = 1,
        .q_stride = (size_t)s->n_heads * s->head_dim,
        .position = s->context - 1,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .scale = 0.01f,
        .dtype = s->dtype,
        .kv_dtype = s->dtype,
        .qformat = format_of(s),
    };
    /* Of the last tile, the part that is seen. */
    out->kv_bytes =
        whole * b->tile_bytes + b->tile_bytes * (s->context % SPW_TILE_TOKENS) / SPW_TILE_TOKENS;
    return time_work(b, attend, STEPS, &out->seconds);
}

int spw_machine_attention(struct spw_attention_speed *out, const struct spw_attention_shape *shape,
                          const struct spw_options *o, struct spw_error *err)
{
    struct spw_backend backend;
    struct spw_device *device;
    *out = (struct spw_attention_speed){0};
    SPW_TRY(spw_engine_choose_device(&backend, &device, o, UINT64_MAX, UINT64_MAX, err));
    struct bench b = {.backend = &backend, .ops = backend.device_ops, .device = device};
    int rc = time_attention(out, &b, shape);
    give(&b);
    backend.device_ops->close(device);
    return rc ? spw_fail(err, rc, "attention over %llu tokens: %s",
                         (unsigned long long)shape->context, strerror(-rc))
              : 0;
}
