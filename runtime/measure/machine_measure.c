/* The speeds of a device: see measure.h and machine.h.
 *
 * The measurements take turns, because a virtual machine may be slow for a moment: a copy to the
 * device, a read of its memory, and products by what is multiplied, of one row and of many.
 *
 * One row: all weights come from memory, because a step uses each weight once. On a CPU they are
 * removed from the caches before; a GPU has more weights than its caches hold. Other weights are
 * multiplied just before, as in a step: that wakes the workers of a CPU. Quantized weights are of
 * the type that files have most often. A GPU does each work several times, so that the cost of a
 * launch does not show.
 *
 * Beside a GPU the processor multiplies quantized weights in host memory (host_products.h): that is
 * measured after the GPU, on a device of its own. */
#include "model/cpu/probe.h"
#include "quant/codes.h"
#include "quant/types.h"
#include "runtime/measure/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 5, GPU_TIMES = 16, PAGE_BYTES = 4096 };
#define COPY_BYTES ((uint64_t)64 << 20)

/* On a CPU one row of weights that are not taken apart takes a millisecond with FEW_COLUMNS; other
 * products take longer, so they have COLUMNS. Short rounds find moments without other load. A team
 * of many threads gets more, and a GPU the most. */
enum {
    K = 2048,
    COLUMNS = 512,
    FEW_COLUMNS = 16 * COLUMNS,
    CPU_ROWS = 64,
    GPU_ROWS = 2048,
    MOST_TEAM = 8,
};

/* Seconds for a byte, or for a multiplication or addition. */
struct rounds {
    double seconds[TURNS];
};

struct bench {
    const struct spw_backend *backend;
    struct spw_lane lane;   /* owned: its streams */
    uint8_t *memory, *host; /* owned: [bytes], [COPY_BYTES] */
    uint64_t bytes;
    bool is_gpu;
    int turn;
    /* In `memory`: rows of x, then at these offsets rows of y, codes, workspace, weights. */
    uint64_t y_at, codes_at, work_at, weights_at;
    uint64_t team, most_rows;
    uint64_t columns, rows; /* of the product that is timed */
    enum spw_product product;
    struct rounds copies, reads, few[SPW_PRODUCTS], many[SPW_PRODUCTS];
};

/* ---- one measurement ---- */

static void write_time(void *argument)
{
    *(double *)argument = spw_now_seconds();
}

static int queue_runs(struct bench *b, int (*run)(struct bench *), int n, double at[2])
{
    const struct spw_lane *lane = &b->lane;
    SPW_TRY(spw_lane_host_call(lane, write_time, &at[0], lane->compute));
    for (int i = 0; i < n; i++)
        SPW_TRY(run(b));
    return spw_lane_host_call(lane, write_time, &at[1], lane->compute);
}

/* Queues on the compute stream: warm, and then runs, which are timed. Waits for them. `units`:
 * bytes or operations of one run. */
static int time_work(struct rounds *out, struct bench *b, int (*warm)(struct bench *),
                     int (*run)(struct bench *), double units)
{
    const int n = b->is_gpu ? GPU_TIMES : 1;
    double at[2] = {0};
    int rc = warm(b);
    if (!rc)
        rc = queue_runs(b, run, n, at);
    int synced = spw_lane_stream_sync(&b->lane, b->lane.compute); /* writes the times */
    out->seconds[b->turn] = fmax(at[1] - at[0], 1e-9) / n / units;
    return rc ? rc : synced;
}

static int copy_up(struct bench *b)
{
    return spw_lane_copy(&b->lane, b->memory, b->host, COPY_BYTES, SPW_LINK_HOST_TO_DEVICE,
                         b->lane.compute);
}

/* The last page of the memory is the sink; of the rest, an eighth warms up, and is not timed. */
static uint64_t eighth(const struct bench *b)
{
    return (b->bytes - PAGE_BYTES) / 8 / SPW_READ_BYTES * SPW_READ_BYTES;
}

static int read_eighths(struct bench *b, uint64_t from, uint64_t n)
{
    return b->backend->read(b->memory + from * eighth(b), n * eighth(b),
                            b->memory + b->bytes - PAGE_BYTES, b->lane.compute);
}

static int read_first(struct bench *b)
{
    return read_eighths(b, 0, 1);
}

static int read_rest(struct bench *b)
{
    return read_eighths(b, 1, 7);
}

static int time_reads(struct bench *b)
{
    if (!b->is_gpu)
        spw_cache_evict(b->memory, b->bytes);
    return time_work(&b->reads, b, read_first, read_rest, 7.0 * (double)eighth(b));
}

/* ---- products ---- */

static enum spw_dtype row_type(enum spw_product p)
{
    return p == SPW_PRODUCT_F32 || p == SPW_PRODUCT_UNPACKED ? SPW_DTYPE_F32 : SPW_DTYPE_BF16;
}

static enum spw_dtype weight_type(enum spw_product p)
{
    return p == SPW_PRODUCT_F32    ? SPW_DTYPE_F32
           : p == SPW_PRODUCT_BF16 ? SPW_DTYPE_BF16
                                   : SPW_DTYPE_Q4_K;
}

static uint64_t weight_bytes(const struct bench *b)
{
    return b->columns * spw_row_bytes(weight_type(b->product), K);
}

/* Sets the offsets. Returns the size of everything. */
static uint64_t lay_out(struct bench *b)
{
    const uint64_t workers = b->lane.ops->workers(b->lane.device);
    const uint64_t n = b->most_rows = b->is_gpu ? GPU_ROWS : CPU_ROWS;
    uint64_t work = 0;
    for (int i = 0; i < SPW_PRODUCTS; i++) {
        const enum spw_product p = (enum spw_product)i;
        work = spw_max_u64(work, b->backend->linear_workspace(K, row_type(p), weight_type(p)));
    }
    b->team = b->is_gpu ? MOST_TEAM : spw_min_u64(MOST_TEAM, spw_max_u64(workers / 4, 1));
    b->y_at = n * K * sizeof(float);
    b->codes_at = b->y_at + n * b->team * COLUMNS * sizeof(float);
    b->work_at =
        b->codes_at + spw_align_up(n * spw_codes_groups(K) * sizeof(struct spw_codes), 4096);
    b->weights_at = b->work_at + spw_align_up(workers * spw_align_up(work, 64), 4096);
    return spw_max_u64(COPY_BYTES,
                       b->weights_at + b->team * FEW_COLUMNS * K * sizeof(float) * 5 / 4);
}

static int multiply(struct bench *b)
{
    const struct spw_linear_args a = {.x = b->memory,
                                      .w = b->memory + b->weights_at,
                                      .y = b->memory + b->y_at,
                                      .m = b->rows,
                                      .n = b->columns,
                                      .k = K,
                                      .x_stride = K,
                                      .y_stride = b->columns,
                                      .x_dtype = row_type(b->product),
                                      .w_dtype = weight_type(b->product),
                                      .y_dtype = row_type(b->product),
                                      .workspace = b->memory + b->work_at,
                                      .codes = b->memory + b->codes_at};
    return b->backend->ops->linear(&a, b->lane.compute);
}

/* A quarter as many weights, behind those that are timed. */
static int multiply_others(struct bench *b)
{
    struct bench others = *b;
    others.weights_at += weight_bytes(b);
    others.columns /= 4;
    others.rows = 1;
    return multiply(&others);
}

static int time_product(struct bench *b, enum spw_product product, bool few)
{
    struct rounds *out = few ? &b->few[product] : &b->many[product];
    b->product = product;
    b->rows = few ? 1 : b->most_rows;
    b->columns = b->team * (few && product != SPW_PRODUCT_UNPACKED ? FEW_COLUMNS : COLUMNS);
    if (!b->is_gpu)
        spw_cache_evict(b->memory + b->weights_at, weight_bytes(b));
    return time_work(out, b, multiply_others, multiply, 2.0 * K * (double)(b->columns * b->rows));
}

/* ---- memory ---- */

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

static int take(struct bench *b)
{
    const struct spw_lane *l = &b->lane;
    b->bytes = spw_align_up(lay_out(b), PAGE_BYTES) + PAGE_BYTES;
    SPW_TRY(l->ops->alloc(l->device, b->bytes, (void **)&b->memory));
    SPW_TRY(l->ops->alloc_host(l->device, COPY_BYTES, (void **)&b->host));
    SPW_TRY(l->ops->stream_open(l->device, "compute", &b->lane.compute));
    draw(b);
    return 0;
}

static void give(struct bench *b)
{
    spw_lane_close_streams(&b->lane);
    b->lane.ops->free_host(b->lane.device, b->host, COPY_BYTES);
    b->lane.ops->free(b->lane.device, b->memory, b->bytes);
}

/* ---- all of them ---- */

static int measure_in_turn(struct bench *b, const struct spw_interrupt *interrupt)
{
    SPW_TRY(take(b));
    for (b->turn = 0; b->turn < TURNS; b->turn++) {
        SPW_TRY(fill(b));
        SPW_TRY(time_work(&b->copies, b, copy_up, copy_up, (double)COPY_BYTES));
        SPW_TRY(time_reads(b));
        for (int i = 0; i < SPW_PRODUCTS; i++) {
            SPW_TRY(time_product(b, (enum spw_product)i, true));
            SPW_TRY(time_product(b, (enum spw_product)i, false));
        }
        if (spw_interrupt_is_raised(interrupt))
            return -ECANCELED;
    }
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The speed of the median round, or of the fastest one. */
static double speed_of(struct rounds r, bool best)
{
    qsort(r.seconds, TURNS, sizeof *r.seconds, compare);
    return 1 / r.seconds[best ? 0 : TURNS / 2];
}

/* Bytes a second of weights that the processor multiplies beside a GPU. */
static int measure_host(struct spw_machine *typical, struct spw_machine *best)
{
    struct spw_backend cpu;
    spw_backend_cpu(&cpu);
    struct bench b = {.backend = &cpu, .lane.ops = cpu.device_ops};
    const struct spw_device_options o = {
        .device_bytes = UINT64_MAX,
        .host_bytes = UINT64_MAX,
        .threads = typical->threads == typical->cores ? 0 : (int)typical->threads,
        .beside_device = true,
        .context = cpu.context};
    SPW_TRY(b.lane.ops->open(&b.lane.device, &o, NULL));
    int rc = take(&b);
    for (b.turn = 0; b.turn < TURNS && !rc; b.turn++) {
        rc = fill(&b);
        if (!rc)
            rc = time_product(&b, SPW_PRODUCT_INT8, true);
    }
    const double bytes = (double)spw_row_bytes(weight_type(SPW_PRODUCT_INT8), K) / (2.0 * K);
    typical->host_bytes_per_second = speed_of(b.few[SPW_PRODUCT_INT8], false) * bytes;
    best->host_bytes_per_second = speed_of(b.few[SPW_PRODUCT_INT8], true) * bytes;
    give(&b);
    b.lane.ops->close(b.lane.device);
    return rc;
}

/* Memory is at least as fast as the product that reads it: of bf16, two operations for two bytes.
 */
static void take_speeds(struct spw_machine *out, const struct bench *b, bool best)
{
    for (int i = 0; i < SPW_PRODUCTS; i++) {
        out->few_flops[i] = speed_of(b->few[i], best);
        out->many_flops[i] = speed_of(b->many[i], best);
    }
    out->copy_bytes_per_second = speed_of(b->copies, best);
    out->read_bytes_per_second = fmax(speed_of(b->reads, best), out->few_flops[SPW_PRODUCT_BF16]);
}

static double find_spread(const struct spw_machine *best, const struct spw_machine *typical)
{
    double spread = fmax(best->read_bytes_per_second / typical->read_bytes_per_second,
                         best->copy_bytes_per_second / typical->copy_bytes_per_second);
    for (int i = 0; i < SPW_PRODUCTS; i++)
        spread = fmax(spread, fmax(best->few_flops[i] / typical->few_flops[i],
                                   best->many_flops[i] / typical->many_flops[i]));
    return spread;
}

int spw_machine_measure(struct spw_machine *typical, struct spw_machine *best,
                        const struct spw_backend *backend, const struct spw_lane *lane,
                        const struct spw_interrupt *interrupt, struct spw_error *err)
{
    struct bench b = {.backend = backend, .lane = *lane, .is_gpu = *typical->gpu};
    struct spw_machine fastest = *typical;
    int rc = measure_in_turn(&b, interrupt);
    give(&b);
    if (!rc && b.is_gpu)
        rc = measure_host(typical, &fastest);
    if (rc == -ECANCELED)
        return spw_fail(err, rc, "interrupted: this machine was not measured");
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "%s: no memory to measure it with", backend->name);
    if (rc)
        return spw_fail(err, rc, "%s: its speed could not be measured: %s", backend->name,
                        strerror(-rc));
    take_speeds(typical, &b, false);
    take_speeds(&fastest, &b, true);
    typical->spread = fastest.spread = find_spread(&fastest, typical);
    if (best)
        *best = fastest;
    return 0;
}
