/* The time of products of one row with each type of weights, and of other operations on a row: see
 * measure.h.
 *
 * One product of all the weights gives the bytes a second, with long and with short rows of
 * weights. Small products, which have short rows, take longer with what lies between them in a
 * layer: that is the time of a product beside its bytes. All weights come from memory, whatever the
 * caches hold, because a step uses each weight once. Memory may change its speed from second to
 * second, so the types take turns, and the fastest rounds of small and large products are compared.
 */
#include "model/cpu/probe/probe.h"
#include "runtime/measure/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 5,
    K = SPW_LONG_ROW, /* the most */
    SMALL =
        256, /* columns and rows of small products: many of them, because each is a difference */
    WEIGHTS_BYTES = 16 << 20,
    LEAST_BYTES = 256 << 10,
    WEIGHTS_ROOM = 64,
};
/* In device memory: a row of x, a gated row, codes, a row of y, workspace. */
enum { GATED_AT = 16 << 10, CODES_AT = 32 << 10, ROWS_AT = 64 << 10, WORK_AT = 1 << 20 };

/* Kernels that are slower than memory multiply fewer weights in the same time. */
static const double LARGE_SECONDS = 1e-3;

static const enum spw_dtype row_types[] = {SPW_DTYPE_F32, SPW_DTYPE_BF16};
enum { ROW_TYPES = sizeof row_types / sizeof *row_types };

/* Products of rows of type x and weights of `type`. */
struct products {
    const struct spw_backend *backend;
    const struct spw_lane *lane;
    uint8_t *memory;
    const uint8_t *weights; /* [bytes] */
    uint64_t bytes;
    enum spw_dtype x, type;
    double large[ROUNDS], short_rows[ROUNDS], small[ROUNDS]; /* seconds */
};

/* Whether kernels multiply rows of type x by weights of the type. */
static bool multiplies(enum spw_dtype x, enum spw_dtype type)
{
    return spw_type_of(type).multiplies &&
           (x == SPW_DTYPE_F32 || x == type || spw_type_is_quantized(type));
}

uint64_t spw_machine_products_bytes(const struct spw_backend *b, const struct spw_lane *lane)
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
                                    .m = 1,
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

static int multiply_large(const struct products *p)
{
    return multiply_all(p, SPW_LONG_ROW);
}

static int multiply_short_rows(const struct products *p)
{
    return multiply_all(p, SPW_SHORT_ROW);
}

static uint64_t small_bytes(const struct products *p)
{
    return SMALL * spw_row_bytes(p->type, SMALL);
}

/* Gate, up and down of a layer. */
static uint64_t small_layers(const struct products *p)
{
    return p->bytes / (3 * small_bytes(p));
}

/* All weights as many small layers. */
static int multiply_small(const struct products *p)
{
    struct spw_linear_args down = linear_args(p, SMALL, SMALL);
    down.x = p->memory + GATED_AT;
    for (uint64_t i = 0; i < small_layers(p); i++) {
        const uint8_t *w = p->weights + 3 * i * small_bytes(p);
        const struct spw_gated_linear_args a = {.x = p->memory,
                                                .w_gate = w,
                                                .w_up = w + small_bytes(p),
                                                .y = p->memory + GATED_AT,
                                                .scratch = p->memory + ROWS_AT,
                                                .m = 1,
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

static int time_run(double *seconds, const struct products *p, int (*run)(const struct products *))
{
    spw_probe_evict(p->weights, p->bytes);
    double start = spw_now_seconds();
    SPW_TRY(run(p));
    SPW_TRY(spw_lane_stream_sync(p->lane, p->lane->compute));
    *seconds = spw_now_seconds() - start;
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void take_speed(struct spw_product_speed *out, struct products *p)
{
    const uint64_t n = 3 * small_layers(p);
    const double share = (double)(n * small_bytes(p)) / (double)p->bytes;
    qsort(p->large, ROUNDS, sizeof *p->large, compare);
    qsort(p->short_rows, ROUNDS, sizeof *p->short_rows, compare);
    qsort(p->small, ROUNDS, sizeof *p->small, compare);
    out->bytes_per_second = (double)p->bytes / p->large[ROUNDS / 2];
    out->short_bytes_per_second = (double)p->bytes / p->short_rows[ROUNDS / 2];
    out->product_seconds = n ? fmax(0, p->small[0] - share * p->short_rows[0]) / (double)n : 0;
}

/* Warms up, and takes as many bytes as need LARGE_SECONDS. */
static int choose_bytes(struct products *p)
{
    double seconds;
    p->bytes = LEAST_BYTES;
    SPW_TRY(time_run(&seconds, p, multiply_large));
    while (seconds < LARGE_SECONDS && p->bytes < WEIGHTS_BYTES) {
        p->bytes *= 2;
        SPW_TRY(time_run(&seconds, p, multiply_large));
    }
    return 0;
}

static int time_types(struct spw_machine *out, struct products *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        SPW_TRY(choose_bytes(&p[i]));
    for (int r = 0; r < ROUNDS; r++)
        for (unsigned i = 0; i < n; i++) {
            SPW_TRY(time_run(&p[i].large[r], &p[i], multiply_large));
            SPW_TRY(time_run(&p[i].short_rows[r], &p[i], multiply_short_rows));
            SPW_TRY(time_run(&p[i].small[r], &p[i], multiply_small));
        }
    for (unsigned i = 0; i < n; i++)
        take_speed(&(p[i].x == SPW_DTYPE_F32 ? out->f32_products : out->bf16_products)[p[i].type],
                   &p[i]);
    return 0;
}

/* Resident weights are computed from a mapped file: small pages, and matrices at multiples of 8
 * bytes. So they are measured like that, unless their type needs more. */
int spw_machine_probe_products(struct spw_machine *out, const struct spw_backend *b,
                               const struct spw_lane *lane, uint8_t *memory)
{
    struct products p[ROW_TYPES * SPW_WEIGHT_TYPES];
    unsigned n = 0;
    uint8_t *weights = spw_alloc(WEIGHTS_BYTES + WEIGHTS_ROOM);
    if (!weights)
        return -ENOMEM;
    memcpy(weights, memory, WEIGHTS_BYTES);
    memcpy(weights + WEIGHTS_BYTES, memory, WEIGHTS_ROOM);
    for (int x = 0; x < ROW_TYPES; x++)
        for (enum spw_dtype t = SPW_DTYPE_F32; t < SPW_WEIGHT_TYPES; t++) {
            if (multiplies(row_types[x], t))
                p[n++] =
                    (struct products){.backend = b,
                                      .lane = lane,
                                      .memory = memory,
                                      .weights = weights + spw_max_u32(8, spw_type_of(t).align),
                                      .x = row_types[x],
                                      .type = t};
        }
    int rc = time_types(out, p, n);
    spw_free(weights);
    return rc;
}

/* ---- other operations on a row ---- */

/* In a batch: one takes microseconds. */
enum { ROW_LAYERS = 64 };
/* In device memory: heads of q, k and v; frequencies of the rotation; a tile. */
enum { FREQUENCIES_AT = 32 << 10, TILE_AT = 64 << 10 };

struct row {
    uint32_t n_heads, n_kv_heads, head_dim;
};

static uint32_t numbers_of(const struct row *r)
{
    return (r->n_heads + 2 * r->n_kv_heads) * r->head_dim;
}

/* A norm and a rotation of all numbers. */
static int run_row(const struct row *r, const struct spw_backend *b, const struct spw_lane *lane,
                   uint8_t *memory)
{
    const uint32_t n = numbers_of(r);
    const struct spw_norm_args norm = {.x = memory,
                                       .y = memory,
                                       .rows = 1,
                                       .cols = n,
                                       .x_stride = n,
                                       .y_stride = n,
                                       .eps = 1e-6f,
                                       .dtype = SPW_DTYPE_BF16};
    const struct spw_rope_append_args rope = {.qkv = memory,
                                              .inv_freq = (const float *)(memory + FREQUENCIES_AT),
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
                                              .tiles = {memory + TILE_AT}};
    SPW_TRY(b->ops->norm(&norm, lane->compute));
    return b->ops->rope_append(&rope, lane->compute);
}

/* Of one operation: the fastest of several batches, because two sizes are compared. */
static int time_row(double *seconds, const struct row *r, const struct spw_backend *b,
                    const struct spw_lane *lane, uint8_t *memory)
{
    *seconds = INFINITY;
    for (int round = -1; round < ROUNDS; round++) { /* the first one warms up */
        const double start = spw_now_seconds();
        for (int i = 0; i < ROW_LAYERS; i++)
            SPW_TRY(run_row(r, b, lane, memory));
        SPW_TRY(spw_lane_stream_sync(lane, lane->compute));
        if (round >= 0)
            *seconds = fmin(*seconds, (spw_now_seconds() - start) / (2 * ROW_LAYERS));
    }
    return 0;
}

int spw_machine_probe_rows(struct spw_machine *out, const struct spw_backend *b,
                           const struct spw_lane *lane, uint8_t *memory)
{
    const struct row small = {1, 1, 64}, large = {32, 4, 128};
    double least, most;
    SPW_TRY(time_row(&least, &small, b, lane, memory));
    SPW_TRY(time_row(&most, &large, b, lane, memory));
    out->row_number_seconds = fmax(0, most - least) / (numbers_of(&large) - numbers_of(&small));
    out->row_operation_seconds = fmax(0, least - numbers_of(&small) * out->row_number_seconds);
    return 0;
}
