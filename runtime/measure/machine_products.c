/* The time of products of one row and of several rows with each type of weights, and of other
 * operations on a row: see measure.h and machine.h.
 *
 * One product of all the weights gives the bytes a second, with long and with short rows of
 * weights. Small products, which have short rows, take longer with what lies between them in a
 * layer: that is the time of a product beside its bytes. With many rows a part of the weights does.
 * All weights come from memory, whatever the caches hold, because a step uses each weight once.
 * Other weights are multiplied just before, as in a step: that wakes the workers. Memory may change
 * its speed from second to second, so the types take turns, and the fastest round of each counts.
 */
#include "model/cpu/probe/probe.h"
#include "quant/types.h"
#include "runtime/measure/machine.h"

#include <math.h>
#include <string.h>

enum {
    CHOICES = 3,
    K = SPW_LONG_ROW, /* the most */
    SMALL =
        256, /* columns and rows of small products: many of them, because each is a difference */
    WEIGHTS_BYTES = 16 << 20,
    LEAST_BYTES = 256 << 10,
    WARM_BYTES = WEIGHTS_BYTES / 4, /* of other weights, behind those that are measured */
    WEIGHTS_ROOM = 64,
};
/* Weights of several rows, at least. */
enum { MOST = SPW_ROW_COUNTS - 1, MANY_WEIGHTS = 1024 * SPW_LONG_ROW };
/* In device memory: rows of x, a gated row, codes, rows of y, workspace. */
enum { GATED_AT = 1 << 20, CODES_AT = 5 << 18, ROWS_AT = 2 << 20, WORK_AT = 5 << 20 };

/* Kernels that are slower than memory multiply fewer weights in the same time. */
static const double LARGE_SECONDS = 0.5e-3;
static const double MANY_SECONDS = 8e-3; /* and fewer than the most rows */

static const enum spw_dtype row_types[] = {SPW_DTYPE_F32, SPW_DTYPE_BF16};
enum { ROW_TYPES = sizeof row_types / sizeof *row_types };

/* Products of rows of type x and weights of `type`. */
struct products {
    const struct spw_backend *backend;
    const struct spw_lane *lane;
    uint8_t *memory;
    const uint8_t *weights; /* [bytes] */
    uint64_t bytes, rows;   /* that are multiplied */
    uint64_t all_bytes, many_rows;
    enum spw_dtype x, type;
    struct times {
        struct spw_rounds large, short_rows, small;
    } times[SPW_ROW_COUNTS];
};

/* Whether kernels multiply rows of type x by weights of the type. */
static bool multiplies(enum spw_dtype x, enum spw_dtype type)
{
    return spw_type_of(type).multiplies &&
           (x == SPW_DTYPE_F32 || x == type || spw_type_is_quantized(type));
}

uint64_t spw_machine_rows_bytes(const struct spw_backend *b, const struct spw_lane *lane)
{
    uint64_t most = 0;
    for (int x = 0; x < ROW_TYPES; x++)
        for (enum spw_dtype t = SPW_DTYPE_F32; t < SPW_WEIGHT_TYPES; t++)
            if (multiplies(row_types[x], t))
                most = spw_max_u64(most, b->linear_workspace(K, row_types[x], t));
    return WORK_AT + spw_align_up(lane->ops->workers(lane->device) * spw_align_up(most, 64), 4096);
}

static struct spw_linear_args linear_args(const struct products *p, uint64_t n, uint64_t k)
{
    return (struct spw_linear_args){.x = p->memory,
                                    .w = p->weights,
                                    .y = p->memory + ROWS_AT,
                                    .m = p->rows,
                                    .n = n,
                                    .k = k,
                                    .x_stride = k,
                                    .y_stride = n,
                                    .x_dtype = p->x,
                                    .w_dtype = p->type,
                                    .y_dtype = p->x,
                                    .workspace = p->memory + WORK_AT,
                                    .codes = p->memory + CODES_AT};
}

static int multiply_all(const struct products *p, uint64_t k)
{
    const struct spw_linear_args a = linear_args(p, p->bytes / spw_row_bytes(p->type, k), k);
    return p->backend->ops->linear(&a, p->lane->compute);
}

static int multiply_large(void *products)
{
    return multiply_all(products, SPW_LONG_ROW);
}

static int multiply_short_rows(void *products)
{
    return multiply_all(products, SPW_SHORT_ROW);
}

static uint64_t small_bytes(const struct products *p)
{
    return SMALL * spw_row_bytes(p->type, SMALL);
}

/* Gate, up and down of a layer. */
static uint64_t small_layers(const struct products *p, uint64_t bytes)
{
    return bytes / (3 * small_bytes(p));
}

/* All weights as many small layers. */
static int multiply_small(void *products)
{
    const struct products *p = products;
    struct spw_linear_args down = linear_args(p, SMALL, SMALL);
    down.x = p->memory + GATED_AT;
    for (uint64_t i = 0; i < small_layers(p, p->bytes); i++) {
        const uint8_t *w = p->weights + 3 * i * small_bytes(p);
        const struct spw_gated_linear_args a = {.x = p->memory,
                                                .w_gate = w,
                                                .w_up = w + small_bytes(p),
                                                .y = p->memory + GATED_AT,
                                                .scratch = p->memory + ROWS_AT,
                                                .m = p->rows,
                                                .n = SMALL,
                                                .k = SMALL,
                                                .x_stride = SMALL,
                                                .dtype = p->x,
                                                .gate_dtype = p->type,
                                                .up_dtype = p->type,
                                                .workspace = down.workspace,
                                                .codes = down.codes};
        SPW_TRY(p->backend->ops->gated_linear(&a, p->lane->compute));
        down.w = w + 2 * small_bytes(p);
        SPW_TRY(p->backend->ops->linear(&down, p->lane->compute));
    }
    return 0;
}

/* A quarter as many weights, behind those that are measured. */
static int multiply_others(void *products)
{
    struct products others = *(const struct products *)products;
    others.weights += WEIGHTS_BYTES;
    others.bytes = others.all_bytes / 4;
    others.rows = 1;
    return multiply_large(&others);
}

static int time_products(struct spw_rounds *out, struct products *p, int (*run)(void *))
{
    spw_probe_evict(p->weights, p->bytes);
    return spw_machine_time(out, p->lane, multiply_others, run, p, 1);
}

/* Several rows take longer: fewer weights do. */
static uint64_t bytes_of(const struct products *p, int count)
{
    const uint64_t many = spw_min_u64(p->all_bytes, spw_row_bytes(p->type, MANY_WEIGHTS));
    return count == 0 ? p->all_bytes : count == MOST ? many : spw_max_u64(many, p->all_bytes / 4);
}

static int time_rows(struct products *p, int count)
{
    struct times *out = &p->times[count];
    p->rows = count == MOST ? p->many_rows : spw_row_counts[count];
    p->bytes = bytes_of(p, count);
    SPW_TRY(time_products(&out->large, p, multiply_large));
    SPW_TRY(time_products(&out->short_rows, p, multiply_short_rows));
    return time_products(&out->small, p, multiply_small);
}

static struct spw_product_speed speed_of(const struct products *p, int count, enum spw_round which)
{
    const struct times *of = &p->times[count];
    const uint64_t n = 3 * small_layers(p, bytes_of(p, count));
    const double bytes = (double)bytes_of(p, count);
    const double short_rows = spw_rounds_take(&of->short_rows, which);
    const double rest =
        spw_rounds_take(&of->small, which) - (double)(n * small_bytes(p)) / bytes * short_rows;
    return (struct spw_product_speed){.byte_seconds = spw_rounds_take(&of->large, which) / bytes,
                                      .short_byte_seconds = short_rows / bytes,
                                      .product_seconds = n ? fmax(0, rest) / (double)n : 0};
}

/* Fewer than the most rows were measured where kernels are slow: a straight line leads to them. */
static double most_seconds(double before, double measured, uint64_t n)
{
    const double from = spw_row_counts[MOST - 1];
    return before + fmax(0, measured - before) * (spw_row_counts[MOST] - from) / ((double)n - from);
}

static void take_speeds(struct spw_product_speed out[SPW_ROW_COUNTS], const struct products *p,
                        enum spw_round which)
{
    for (int i = 0; i < SPW_ROW_COUNTS; i++)
        out[i] = speed_of(p, i, which);
    struct spw_product_speed *most = &out[MOST];
    most->byte_seconds = most_seconds(most[-1].byte_seconds, most->byte_seconds, p->many_rows);
    most->short_byte_seconds =
        most_seconds(most[-1].short_byte_seconds, most->short_byte_seconds, p->many_rows);
    most->product_seconds =
        most_seconds(most[-1].product_seconds, most->product_seconds, p->many_rows);
}

/* As many bytes as need LARGE_SECONDS, and as many rows as need MANY_SECONDS at most. A slow moment
 * must not make them few. */
static int choose_bytes(struct products *p)
{
    struct spw_rounds choices = {0};
    p->bytes = p->all_bytes = LEAST_BYTES;
    p->rows = 1;
    for (int r = 0; r < CHOICES; r++)
        SPW_TRY(time_products(&choices, p, multiply_large));
    const double seconds = spw_rounds_take(&choices, SPW_ROUND_BEST);
    const uint64_t n = (uint64_t)(LARGE_SECONDS / seconds);
    p->all_bytes = spw_max_u64(1, spw_min_u64(n, WEIGHTS_BYTES / LEAST_BYTES)) * LEAST_BYTES;
    p->many_rows =
        spw_max_u64(2 * spw_row_counts[MOST - 1],
                    spw_min_u64(spw_row_counts[MOST], (uint64_t)(MANY_SECONDS / seconds)));
    return 0;
}

/* ---- other operations on a row ---- */

/* In a batch: one takes microseconds. */
enum { ROW_LAYERS = 64 };
/* In device memory: heads of q, k and v; frequencies of the rotation; a tile. */
enum { FREQUENCIES_AT = 32 << 10, TILE_AT = 64 << 10 };

struct row {
    uint32_t n_heads, n_kv_heads, head_dim;
    const struct spw_backend *backend;
    const struct spw_lane *lane;
    uint8_t *memory;
    struct spw_rounds rounds; /* of two operations */
};

static uint32_t numbers_of(const struct row *r)
{
    return (r->n_heads + 2 * r->n_kv_heads) * r->head_dim;
}

/* A norm and a rotation of all numbers. */
static int run_row(void *row)
{
    const struct row *r = row;
    const uint32_t n = numbers_of(r);
    const struct spw_norm_args norm = {.x = r->memory,
                                       .y = r->memory,
                                       .rows = 1,
                                       .cols = n,
                                       .x_stride = n,
                                       .y_stride = n,
                                       .eps = 1e-6f,
                                       .dtype = SPW_DTYPE_BF16};
    const struct spw_rope_append_args rope = {.qkv = r->memory,
                                              .inv_freq =
                                                  (const float *)(r->memory + FREQUENCIES_AT),
                                              .rows = 1,
                                              .stride = n,
                                              .position = SPW_TILE_TOKENS - 1,
                                              .n_heads = r->n_heads,
                                              .n_kv_heads = r->n_kv_heads,
                                              .head_dim = r->head_dim,
                                              .rotary_dim = r->head_dim,
                                              .scaling = 1,
                                              .eps = 1e-6f,
                                              .dtype = SPW_DTYPE_BF16,
                                              .kv_dtype = SPW_DTYPE_BF16,
                                              .tiles = {r->memory + TILE_AT}};
    SPW_TRY(r->backend->ops->norm(&norm, r->lane->compute));
    return r->backend->ops->rope_append(&rope, r->lane->compute);
}

static int time_row(struct row *r)
{
    return spw_machine_time(&r->rounds, r->lane, run_row, run_row, r, ROW_LAYERS);
}

/* Seconds of one operation. */
static double row_seconds(const struct row *r, enum spw_round which)
{
    return spw_rounds_take(&r->rounds, which) / 2;
}

/* ---- all of them ---- */

struct spw_machine_rows {
    struct products products[ROW_TYPES * SPW_WEIGHT_TYPES]; /* [n] */
    unsigned n;
    uint8_t *weights; /* owned */
    struct row small_row, large_row;
};

/* Resident weights are computed from a mapped file: small pages, and matrices at multiples of 8
 * bytes. So they are measured like that, unless their type needs more. */
static int add_products(struct spw_machine_rows *r, const struct products *of)
{
    struct products *p = &r->products[r->n++];
    *p = *of;
    p->weights = r->weights + spw_max_u32(8, spw_type_of(p->type).align);
    return choose_bytes(p);
}

int spw_machine_rows_open(struct spw_machine_rows **out, const struct spw_backend *b,
                          const struct spw_lane *lane, uint8_t *memory)
{
    struct spw_machine_rows *r = *out = spw_alloc_zero(1, sizeof *r);
    uint8_t *weights = r ? spw_alloc(WEIGHTS_BYTES + WARM_BYTES + WEIGHTS_ROOM) : NULL;
    if (!weights)
        return -ENOMEM;
    memcpy(weights, memory, WEIGHTS_BYTES + WARM_BYTES + WEIGHTS_ROOM);
    r->weights = weights;
    const struct row small = {1, 1, 64, .backend = b, .lane = lane, .memory = memory};
    const struct row large = {32, 4, 128, .backend = b, .lane = lane, .memory = memory};
    r->small_row = small;
    r->large_row = large;
    for (int x = 0; x < ROW_TYPES; x++)
        for (enum spw_dtype t = SPW_DTYPE_F32; t < SPW_WEIGHT_TYPES; t++)
            if (multiplies(row_types[x], t))
                SPW_TRY(add_products(r, &(struct products){.backend = b,
                                                           .lane = lane,
                                                           .memory = memory,
                                                           .x = row_types[x],
                                                           .type = t}));
    return 0;
}

int spw_machine_rows_round(struct spw_machine_rows *r)
{
    for (struct products *p = r->products; p < r->products + r->n; p++) {
        for (int i = 0; i < SPW_ROW_COUNTS; i++)
            SPW_TRY(time_rows(p, i));
    }
    SPW_TRY(time_row(&r->small_row));
    return time_row(&r->large_row);
}

void spw_machine_rows_take(struct spw_machine_rows *r, struct spw_machine *out,
                           enum spw_round which)
{
    const uint32_t small = numbers_of(&r->small_row), large = numbers_of(&r->large_row);
    const double seconds = row_seconds(&r->small_row, which);
    for (const struct products *p = r->products; p < r->products + r->n; p++)
        take_speeds((p->x == SPW_DTYPE_F32 ? out->f32_products : out->bf16_products)[p->type], p,
                    which);
    out->row_number_seconds =
        fmax(0, row_seconds(&r->large_row, which) - seconds) / (large - small);
    out->row_operation_seconds = fmax(0, seconds - small * out->row_number_seconds);
}

void spw_machine_rows_close(struct spw_machine_rows *r)
{
    if (r)
        spw_free(r->weights);
    spw_free(r);
}
