/* The speed of products on a CPU, of one row and of many, by what is multiplied: see measure.h and
 * machine.h.
 *
 * One row: all weights come from memory, whatever the caches hold, because a step uses each weight
 * once. Other weights are multiplied just before, as in a step: that wakes the workers. Quantized
 * weights are of the type that files have most often. */
#include "model/cpu/probe/probe.h"
#include "quant/codes.h"
#include "quant/types.h"
#include "runtime/measure/machine.h"

/* One row of weights that are not taken apart takes a millisecond with FEW_COLUMNS; other products
 * take longer, so they have COLUMNS. Short rounds find moments without other load. A team of many
 * threads gets more. */
enum { K = 2048, COLUMNS = 512, FEW_COLUMNS = 16 * COLUMNS, MANY = 64, MOST_TEAM = 8 };

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

static uint64_t weight_bytes(const struct spw_machine_products *p)
{
    return p->columns * spw_row_bytes(weight_type(p->product), K);
}

uint64_t spw_machine_products_bytes(struct spw_machine_products *p)
{
    const uint64_t workers = p->lane->ops->workers(p->lane->device);
    uint64_t work = 0;
    for (int i = 0; i < SPW_PRODUCTS; i++) {
        const enum spw_product product = (enum spw_product)i;
        work = spw_max_u64(
            work, p->backend->linear_workspace(K, row_type(product), weight_type(product)));
    }
    p->team = spw_min_u64(MOST_TEAM, spw_max_u64(workers / 4, 1));
    p->y_at = MANY * K * sizeof(float);
    p->codes_at = p->y_at + MANY * p->team * COLUMNS * sizeof(float);
    p->work_at =
        p->codes_at + spw_align_up(MANY * spw_codes_groups(K) * sizeof(struct spw_codes), 4096);
    p->weights_at = p->work_at + spw_align_up(workers * spw_align_up(work, 64), 4096);
    return p->weights_at + p->team * FEW_COLUMNS * K * sizeof(float) * 5 / 4;
}

static int multiply(void *of)
{
    const struct spw_machine_products *p = of;
    const struct spw_linear_args a = {.x = p->memory,
                                      .w = p->memory + p->weights_at,
                                      .y = p->memory + p->y_at,
                                      .m = p->rows,
                                      .n = p->columns,
                                      .k = K,
                                      .x_stride = K,
                                      .y_stride = p->columns,
                                      .x_dtype = row_type(p->product),
                                      .w_dtype = weight_type(p->product),
                                      .y_dtype = row_type(p->product),
                                      .workspace = p->memory + p->work_at,
                                      .codes = p->memory + p->codes_at};
    return p->backend->ops->linear(&a, p->lane->compute);
}

/* A quarter as many weights, behind those that are timed. */
static int multiply_others(void *of)
{
    struct spw_machine_products others = *(const struct spw_machine_products *)of;
    others.weights_at += weight_bytes(&others);
    others.columns /= 4;
    others.rows = 1;
    return multiply(&others);
}

static uint64_t columns_of(const struct spw_machine_products *p, enum spw_product product, bool few)
{
    return p->team * (few && product != SPW_PRODUCT_UNPACKED ? FEW_COLUMNS : COLUMNS);
}

static int time_rows(struct spw_machine_products *p, bool few)
{
    struct spw_rounds *out = few ? &p->few[p->product] : &p->many[p->product];
    p->rows = few ? 1 : MANY;
    p->columns = columns_of(p, p->product, few);
    spw_probe_evict(p->memory + p->weights_at, weight_bytes(p));
    return spw_machine_time(out, p->lane, multiply_others, multiply, p, 1);
}

int spw_machine_products_round(struct spw_machine_products *p)
{
    for (int i = 0; i < SPW_PRODUCTS; i++) {
        p->product = (enum spw_product)i;
        SPW_TRY(time_rows(p, true));
        SPW_TRY(time_rows(p, false));
    }
    return 0;
}

void spw_machine_products_take(const struct spw_machine_products *p, struct spw_machine *out,
                               enum spw_round which)
{
    for (int i = 0; i < SPW_PRODUCTS; i++) {
        const double few = 2.0 * K * (double)columns_of(p, (enum spw_product)i, true);
        const double many = 2.0 * K * (double)columns_of(p, (enum spw_product)i, false) * MANY;
        out->few_flops[i] = few / spw_rounds_take(&p->few[i], which);
        out->many_flops[i] = many / spw_rounds_take(&p->many[i], which);
    }
}
