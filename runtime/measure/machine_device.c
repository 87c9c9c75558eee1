/* The speeds of a device, and of attention alone: see measure.h and machine.h.
 *
 * On a GPU batches of queued work take tens of milliseconds, so that the cost of a launch does not
 * show. On a CPU the measurements take turns: a virtual machine may be slow for a moment. */
#include "model/cpu/probe/probe.h"
#include "runtime/measure/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 5, COPIES = 24, READS = 8, PRODUCTS = 6, MATRIX = 8192 };
#define COPY_BYTES ((uint64_t)64 << 20)
#define READ_BYTES ((uint64_t)1 << 30) /* far more than any cache */

struct bench {
    const struct spw_backend *backend;
    struct spw_lane lane;   /* owned: its streams */
    uint8_t *memory, *host; /* owned: [bytes], [COPY_BYTES] */
    uint64_t bytes;
    struct spw_probe_matrix *matrix;
    struct spw_attention_args attention;
    uint8_t *tiles; /* in `memory` */
    uint64_t context, tile_bytes;
};

static void write_time(void *argument)
{
    *(double *)argument = spw_now_seconds();
}

/* Writes the time at which the compute stream has done all that was queued before. */
static int queue_stamp(const struct spw_lane *lane, double *at)
{
    return spw_lane_host_call(lane, write_time, at, lane->compute);
}

static int queue_runs(const struct spw_lane *lane, int (*run)(void *of), void *of, int n,
                      double at[2])
{
    SPW_TRY(queue_stamp(lane, &at[0]));
    for (int i = 0; i < n; i++)
        SPW_TRY(run(of));
    return queue_stamp(lane, &at[1]);
}

int spw_machine_time(struct spw_rounds *out, const struct spw_lane *lane, int (*warm)(void *of),
                     int (*run)(void *of), void *of, int n)
{
    double at[2] = {0};
    int rc = warm(of);
    if (!rc)
        rc = queue_runs(lane, run, of, n, at);
    int synced = spw_lane_stream_sync(lane, lane->compute); /* writes the stamps */
    spw_rounds_add(out, (at[1] - at[0]) / n);
    return rc ? rc : synced;
}

/* Batches of n. */
static int time_work(struct spw_rounds *out, struct bench *b, int (*work)(void *), int n)
{
    for (int r = 0; r < ROUNDS; r++)
        SPW_TRY(spw_machine_time(out, &b->lane, work, work, b, n));
    return 0;
}

static int copy_up(void *bench)
{
    struct bench *b = bench;
    return spw_lane_copy(&b->lane, b->memory, b->host, COPY_BYTES, SPW_LINK_HOST_TO_DEVICE,
                         b->lane.compute);
}

static int read_all(void *bench)
{
    struct bench *b = bench;
    return b->backend->probe->read(b->memory, b->bytes - 4096, b->memory + b->bytes - 4096,
                                   b->lane.compute);
}

static int multiply(void *bench)
{
    struct bench *b = bench;
    return b->backend->probe->matrix_run(b->matrix, b->memory, b->lane.compute);
}

/* Numbers between 1 and 2 of either sign, as bf16 and as f32. Zeros would need less power, and give
 * a speed that no model reaches. */
static void draw(struct bench *b)
{
    uint32_t *words = (uint32_t *)b->host, state = 1;
    for (size_t i = 0; i < COPY_BYTES / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = ((state >> 3) & 0x807f807fu) | 0x3f803f80u;
    }
}

/* Fills the memory with these numbers. Kernels leave other bits there, among which are denormal
 * numbers, with which some processors compute ten times as long. */
static int fill(struct bench *b)
{
    for (uint64_t at = 0; at < b->bytes; at += COPY_BYTES)
        SPW_TRY(spw_lane_copy(&b->lane, b->memory + at, b->host,
                              spw_min_u64(COPY_BYTES, b->bytes - at), SPW_LINK_HOST_TO_DEVICE,
                              b->lane.compute));
    return spw_lane_stream_sync(&b->lane, b->lane.compute);
}

static int take(struct bench *b, uint64_t bytes)
{
    b->bytes = bytes;
    SPW_TRY(b->lane.ops->alloc(b->lane.device, bytes, (void **)&b->memory));
    SPW_TRY(b->lane.ops->alloc_host(b->lane.device, COPY_BYTES, (void **)&b->host));
    SPW_TRY(b->lane.ops->stream_open(b->lane.device, "compute", &b->lane.compute));
    draw(b);
    return fill(b);
}

static void give(struct bench *b)
{
    spw_lane_close_streams(&b->lane);
    b->lane.ops->free_host(b->lane.device, b->host, COPY_BYTES);
    b->lane.ops->free(b->lane.device, b->memory, b->bytes);
    b->host = b->memory = NULL;
}

/* The two machines of a range. */
static struct spw_machine *machine_of(struct spw_machine_range *out, enum spw_round which)
{
    return which == SPW_ROUND_BEST ? &out->best : &out->typical;
}

static void take_bandwidths(struct spw_machine_range *out, const struct spw_rounds *copies,
                            const struct spw_rounds *reads, double read_bytes)
{
    for (enum spw_round which = SPW_ROUND_TYPICAL; which <= SPW_ROUND_BEST; which++) {
        struct spw_machine *m = machine_of(out, which);
        m->copy_bytes_per_second = (double)COPY_BYTES / spw_rounds_take(copies, which);
        m->read_bytes_per_second = read_bytes / spw_rounds_take(reads, which);
    }
}

static double ratio(double best, double typical)
{
    return typical > 0 ? best / typical : 1;
}

static void take_spread(struct spw_machine_range *out)
{
    const struct spw_machine *best = &out->best, *typical = &out->typical;
    out->spread = fmax(ratio(best->read_bytes_per_second, typical->read_bytes_per_second),
                       ratio(best->copy_bytes_per_second, typical->copy_bytes_per_second));
    for (int i = 0; i < SPW_PRODUCTS; i++)
        out->spread = fmax(out->spread, fmax(ratio(best->few_flops[i], typical->few_flops[i]),
                                             ratio(best->many_flops[i], typical->many_flops[i])));
}

/* ---- a GPU ---- */

/* The device reads its own memory. */
static int probe_bandwidths(struct spw_machine_range *out, struct bench *b)
{
    struct spw_rounds copies = {0}, reads = {0};
    const uint64_t half = b->lane.ops->available(b->lane.device) / 2;
    int rc = take(b, spw_min_u64(READ_BYTES, half / 4096 * 4096));
    if (!rc)
        rc = time_work(&copies, b, copy_up, COPIES);
    if (!rc)
        rc = time_work(&reads, b, read_all, READS);
    take_bandwidths(out, &copies, &reads, (double)(b->bytes - 4096));
    give(b);
    return rc;
}

/* Without the library there is no result; the note says why. */
static int probe_matrix(struct spw_machine_range *out, struct bench *b, enum spw_product product)
{
    static const double flop = 2.0 * MATRIX * MATRIX * MATRIX;
    struct spw_rounds rounds = {0};
    struct spw_error why = {0};
    int rc = b->backend->probe->matrix_open(
        &b->matrix, product == SPW_PRODUCT_F32 ? SPW_DTYPE_F32 : SPW_DTYPE_BF16, MATRIX, &why);
    if (rc == -ENODEV) {
        snprintf(out->typical.note, sizeof out->typical.note, "no matrix peak: %.120s", why.text);
        return 0;
    }
    SPW_TRY(rc);
    rc = take(b, spw_align_up(b->backend->probe->matrix_bytes(b->matrix), 4096));
    if (!rc)
        rc = time_work(&rounds, b, multiply, PRODUCTS);
    for (enum spw_round which = SPW_ROUND_TYPICAL; !rc && which <= SPW_ROUND_BEST; which++)
        machine_of(out, which)->many_flops[product] = flop / spw_rounds_take(&rounds, which);
    give(b);
    b->backend->probe->matrix_close(b->matrix);
    return rc;
}

static int probe_gpu(struct spw_machine_range *out, struct bench *b)
{
    SPW_TRY(probe_bandwidths(out, b));
    SPW_TRY(probe_matrix(out, b, SPW_PRODUCT_BF16));
    SPW_TRY(probe_matrix(out, b, SPW_PRODUCT_F32));
    take_spread(out);
    return 0;
}

/* ---- a CPU ---- */

enum { TURNS = 5 };

/* Multiply-adds in registers: no product is faster. */
static void take_peaks(struct spw_machine *best, const struct spw_rounds peaks[SPW_PRODUCTS])
{
    for (int i = 0; i < SPW_PRODUCTS; i++)
        best->many_flops[i] =
            fmax(best->many_flops[i], 1 / spw_rounds_take(&peaks[i], SPW_ROUND_BEST));
}

/* Memory is at least as fast as the product that reads it. */
static void take_cpu(struct spw_machine_range *out, const struct spw_machine_products *p)
{
    for (enum spw_round which = SPW_ROUND_TYPICAL; which <= SPW_ROUND_BEST; which++) {
        struct spw_machine *m = machine_of(out, which);
        spw_machine_products_take(p, m, which);
        m->read_bytes_per_second =
            fmax(m->read_bytes_per_second, m->few_flops[SPW_PRODUCT_BF16]); /* 2 bytes: 2 FLOP */
    }
}

static int probe_cpu_in_turn(struct spw_machine_range *out, struct bench *b,
                             struct spw_machine_products *p, const struct spw_interrupt *interrupt)
{
    static const enum spw_dtype peak_types[SPW_PRODUCTS] = {SPW_DTYPE_F32, SPW_DTYPE_BF16,
                                                            SPW_DTYPE_Q8_0, SPW_DTYPE_F32};
    struct spw_rounds copies = {0}, reads = {0}, peaks[SPW_PRODUCTS] = {0};
    const uint32_t threads = out->typical.threads;
    for (int turn = 0; turn < TURNS; turn++) {
        SPW_TRY(spw_machine_time(&copies, &b->lane, copy_up, copy_up, b, 1));
        if (turn == TURNS / 2 && !spw_probe_read(&reads, threads))
            return -ENOMEM;
        for (int i = 0; i < SPW_PRODUCTS && turn == 0; i++)
            if (!spw_probe_matrix_peak(&peaks[i], spw_isa_best(), peak_types[i], threads))
                return -ENOMEM;
        SPW_TRY(fill(b)); /* kernels leave numbers there that are slow to compute with */
        SPW_TRY(spw_machine_products_round(p));
        if (spw_interrupt_is_raised(interrupt))
            return -ECANCELED;
    }
    take_bandwidths(out, &copies, &reads, 1);
    take_cpu(out, p);
    take_spread(out);
    take_peaks(&out->best, peaks);
    return 0;
}

static int probe_cpu(struct spw_machine_range *out, struct bench *b,
                     const struct spw_interrupt *interrupt)
{
    struct spw_machine_products p = {.backend = b->backend, .lane = &b->lane};
    const uint64_t bytes = spw_machine_products_bytes(&p);
    int rc = take(b, spw_max_u64(COPY_BYTES, spw_align_up(bytes, 4096)));
    p.memory = b->memory;
    if (!rc)
        rc = probe_cpu_in_turn(out, b, &p, interrupt);
    give(b);
    return rc;
}

int spw_machine_measure(struct spw_machine_range *out, const struct spw_backend *backend,
                        const struct spw_lane *lane, const struct spw_interrupt *interrupt,
                        struct spw_error *err)
{
    struct bench b = {.backend = backend, .lane = *lane};
    int rc = backend->probe ? probe_gpu(out, &b) : probe_cpu(out, &b, interrupt);
    if (rc == -ECANCELED)
        return spw_fail(err, rc, "interrupted: this machine was not measured");
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s: no memory or threads to measure it with", backend->name);
    return rc ? spw_fail(err, rc, "%s: its speed could not be measured: %s", backend->name,
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

/* The bytes of a tile in this form. */
static uint64_t tile_bytes_of(const struct spw_attention_shape *s)
{
    enum spw_qformat format = format_of(s);
    return format == SPW_QFORMAT_EXACT
               ? spw_tile_bytes(s->n_kv_heads, spw_tile_square(s->head_dim), s->dtype)
               : spw_qtile_bytes(s->n_kv_heads, spw_tile_square(s->head_dim), format);
}

static int attend(void *bench)
{
    struct bench *b = bench;
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
        SPW_TRY(b->backend->ops->attention(a, b->lane.compute));
    }
    return 0;
}

/* Offsets in `memory` after q; `end` is the size of everything. */
struct attention_layout {
    uint64_t state, split_states, kv, end;
};

static struct attention_layout attention_layout(const struct bench *b,
                                                const struct spw_attention_shape *s)
{
    struct attention_layout at;
    uint64_t state_row = (uint64_t)s->n_heads * (s->head_dim + 2) * sizeof(float);
    uint64_t splits = b->backend->ops->attention_tiles / SPW_SPLIT_TILES;
    at.state = spw_align_up((uint64_t)s->n_heads * s->head_dim * 4, 4096);
    at.split_states = at.state + spw_align_up(state_row, 4096);
    at.kv = at.split_states + spw_align_up(splits * state_row, 4096);
    at.end = spw_align_up(at.kv + spw_div_up(s->context, SPW_TILE_TOKENS) * tile_bytes_of(s), 4096);
    return at;
}

/* In the memory that is allocated already. */
static void lay_out_attention(struct bench *b, const struct spw_attention_shape *s)
{
    struct attention_layout at = attention_layout(b, s);
    b->context = s->context;
    b->tile_bytes = tile_bytes_of(s);
    b->tiles = b->memory + at.kv;
    b->attention = (struct spw_attention_args){
        .q = b->memory,
        .state = (float *)(b->memory + at.state),
        .split_states = (float *)(b->memory + at.split_states),
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
}

/* Of the last tile, only the visible part counts. */
static uint64_t kv_bytes(const struct bench *b)
{
    return b->context / SPW_TILE_TOKENS * b->tile_bytes +
           b->tile_bytes * (b->context % SPW_TILE_TOKENS) / SPW_TILE_TOKENS;
}

static int time_attention(struct spw_attention_speed *out, struct bench *b,
                          const struct spw_attention_shape *s)
{
    SPW_TRY(take(b, attention_layout(b, s).end));
    lay_out_attention(b, s);
    out->kv_bytes = kv_bytes(b);
    struct spw_rounds rounds = {0};
    SPW_TRY(time_work(&rounds, b, attend, STEPS));
    out->seconds = spw_rounds_take(&rounds, SPW_ROUND_BEST);
    return 0;
}

int spw_machine_attention(struct spw_attention_speed *out, const struct spw_attention_shape *shape,
                          const struct spw_options *o, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_backend backend;
    struct spw_lane lane;
    *out = (struct spw_attention_speed){0};
    SPW_TRY(spw_engine_choose_device(&backend, &lane, o, UINT64_MAX, UINT64_MAX, err));
    struct bench b = {.backend = &backend, .lane = lane};
    int rc = time_attention(out, &b, shape);
    give(&b);
    lane.ops->close(lane.device);
    return rc ? spw_fail(err, rc, "attention over %llu tokens: %s",
                         (unsigned long long)shape->context, strerror(-rc))
              : 0;
}
