/* Does a device give the bits that it should? See spw_self_test.
 *
 * An emulated GPU shows that the kernels are right. What a real card, its driver, and the driver's
 * compiler make of them only the card can show. So small products are computed on the device, by
 * the operations that a run uses, and every bit is compared with what is known exactly:
 *
 *   integers     x and w are small integers, in bf16 and in f32: the sum is an integer below 2^24,
 *                whatever the order is; as bf16 it is rounded once
 *   codes        a quantized w and bf16 x: quant/codes.h
 *   numbers      a quantized w and f32 x with a single 1: the numbers of w (quant/blocks.h)
 *   chain        products with a matrix that moves each number by one place, many in a row, between
 *                two buffers: a kernel that reads before the previous one has written finds the
 *                numbers of an older product
 *
 * Rows are as many as each kernel takes. */
#include "base/numbers.h"
#include "quant/codes.h"
#include "quant/types.h"
#include "runtime/engine/engine.h"
#include "runtime/measure.h"

#include <stdio.h>
#include <string.h>

enum { N = 40, K = 512, LARGE = 512, CHAIN = 64, PART = 1 << 20 };

/* Of `device` and `host`; only the device has the last one. */
enum part { X, W, Y, CODES, WORK };

struct self_test {
    const struct spw_backend *backend;
    struct spw_lane lane;   /* owned: its streams */
    uint8_t *device, *host; /* owned: parts of PART bytes; WORK has the rest of [bytes] */
    uint64_t bytes;
    uint64_t random;
    struct spw_linear_args a; /* of the product; its addresses are the device's */
    const char *what;
    struct spw_error *err;
};

static void *host_part(const struct self_test *t, enum part part)
{
    return t->host + (uint64_t)part * PART;
}

static void *device_part(const struct self_test *t, enum part part)
{
    return t->device + (uint64_t)part * PART;
}

static uint32_t draw(struct self_test *t)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->random >> 33);
}

static float load(const void *from, uint64_t i, enum spw_dtype t)
{
    float value;
    spw_type_read(t, from, i, 1, &value);
    return value;
}

static void store(void *to, uint64_t i, enum spw_dtype t, float value)
{
    if (t == SPW_DTYPE_BF16)
        ((uint16_t *)to)[i] = spw_f32_to_bf16(value);
    else
        ((float *)to)[i] = value;
}

/* ---- a product ---- */

static int copy(struct self_test *t, enum part part, enum spw_link link)
{
    void *there = device_part(t, part), *here = host_part(t, part);
    const bool up = link == SPW_LINK_HOST_TO_DEVICE;
    return spw_lane_copy(&t->lane, up ? there : here, up ? here : there, PART, link,
                         t->lane.compute);
}

/* y on the host is what the device makes of x and w on the host. */
static int multiply(struct self_test *t)
{
    SPW_TRY(copy(t, X, SPW_LINK_HOST_TO_DEVICE));
    SPW_TRY(copy(t, W, SPW_LINK_HOST_TO_DEVICE));
    SPW_TRY(t->backend->ops->linear(&t->a, t->lane.compute));
    SPW_TRY(copy(t, Y, SPW_LINK_DEVICE_TO_HOST));
    return spw_lane_stream_sync(&t->lane, t->lane.compute);
}

static void shape(struct self_test *t, const char *what, size_t m, size_t n, size_t k,
                  enum spw_dtype x, enum spw_dtype w, enum spw_dtype y)
{
    t->what = what;
    t->a = (struct spw_linear_args){.x = device_part(t, X),
                                    .w = device_part(t, W),
                                    .y = device_part(t, Y),
                                    .m = m,
                                    .n = n,
                                    .k = k,
                                    .x_stride = k,
                                    .y_stride = n,
                                    .x_dtype = x,
                                    .w_dtype = w,
                                    .y_dtype = y,
                                    .workspace = device_part(t, WORK),
                                    .codes = device_part(t, CODES)};
}

/* want: of row r and column c. A zero may have any sign. */
static int compare(struct self_test *t,
                   float (*want)(const struct self_test *t, size_t r, size_t c))
{
    for (size_t r = 0; r < t->a.m; r++)
        for (size_t c = 0; c < t->a.n; c++) {
            const float expected = want(t, r, c);
            const float found = load(host_part(t, Y), r * t->a.n + c, t->a.y_dtype);
            if (found != expected)
                return spw_fail(t->err, -EBADMSG,
                                "%s gives wrong numbers: %s, weights in %s, %zu rows: row %zu, "
                                "column %zu is %a, expected %a; update the driver, or use "
                                "options.backend cpu",
                                t->backend->name, t->what, spw_dtype_name(t->a.w_dtype), t->a.m, r,
                                c, (double)found, (double)expected);
        }
    return 0;
}

/* ---- integers ---- */

static float exact_sum(const struct self_test *t, size_t r, size_t c)
{
    float sum = 0;
    for (size_t i = 0; i < t->a.k; i++)
        sum += load(host_part(t, X), r * t->a.k + i, t->a.x_dtype) *
               load(host_part(t, W), c * t->a.k + i, t->a.w_dtype);
    return t->a.y_dtype == SPW_DTYPE_BF16 ? spw_bf16_to_f32(spw_f32_to_bf16(sum)) : sum;
}

static int test_integers(struct self_test *t, size_t m, size_t n, size_t k, enum spw_dtype type,
                         enum spw_dtype y)
{
    shape(t, "sums of integers", m, n, k, type, type, y);
    for (size_t i = 0; i < m * t->a.k; i++)
        store(host_part(t, X), i, type, (float)(draw(t) % 17) - 8);
    for (size_t i = 0; i < t->a.n * t->a.k; i++)
        store(host_part(t, W), i, type, (float)(draw(t) % 17) - 8);
    SPW_TRY(multiply(t));
    return compare(t, exact_sum);
}

/* ---- quantized weights ---- */

/* Random blocks whose numbers are all finite. */
static void draw_blocks(struct self_test *t)
{
    const struct spw_type type = spw_type_of(t->a.w_dtype);
    uint8_t *block = host_part(t, W);
    float numbers[SPW_CODES_GROUP];
    for (size_t n = t->a.n * t->a.k / type.elements; n; n--, block += type.bytes) {
        bool finite = false;
        while (!finite) {
            for (size_t i = 0; i < type.bytes; i++)
                block[i] = (uint8_t)draw(t);
            spw_type_read(t->a.w_dtype, block, 0, type.elements, numbers);
            finite = true;
            for (size_t i = 0; i < type.elements; i++)
                finite &= numbers[i] - numbers[i] == 0;
        }
    }
}

static float by_codes(const struct self_test *t, size_t r, size_t c)
{
    const struct spw_codes *x = host_part(t, CODES);
    const uint8_t *w = host_part(t, W);
    return spw_codes_dot(t->a.w_dtype, w + c * spw_row_bytes(t->a.w_dtype, t->a.k),
                         x + r * spw_codes_groups(t->a.k), t->a.k);
}

static int test_codes(struct self_test *t, size_t m, enum spw_dtype type)
{
    shape(t, "int8 activations", m, N, K, SPW_DTYPE_BF16, type, SPW_DTYPE_F32);
    draw_blocks(t);
    for (size_t g = 0; g < m * t->a.k / SPW_CODES_GROUP; g++) {
        float x[SPW_CODES_GROUP];
        for (size_t i = 0; i < SPW_CODES_GROUP; i++) {
            store(host_part(t, X), g * SPW_CODES_GROUP + i, SPW_DTYPE_BF16,
                  (float)draw(t) * 0x1p-31f - 0.5f);
            x[i] = load(host_part(t, X), g * SPW_CODES_GROUP + i, SPW_DTYPE_BF16);
        }
        spw_codes_encode(type, x, SPW_CODES_GROUP, (struct spw_codes *)host_part(t, CODES) + g);
    }
    SPW_TRY(multiply(t));
    return compare(t, by_codes);
}

/* Row r of x has its 1 in this column. */
static size_t place_of_one(const struct self_test *t, size_t r)
{
    return r * 31 % t->a.k;
}

static float number_of_w(const struct self_test *t, size_t r, size_t c)
{
    const size_t at = place_of_one(t, r), n = spw_type_of(t->a.w_dtype).elements;
    const uint8_t *w = host_part(t, W);
    float numbers[SPW_CODES_GROUP];
    spw_type_read(t->a.w_dtype, w + c * spw_row_bytes(t->a.w_dtype, t->a.k), at / n * n, n,
                  numbers);
    return numbers[at % n];
}

static int test_numbers(struct self_test *t, size_t m, enum spw_dtype type)
{
    shape(t, "numbers of blocks", m, N, K, SPW_DTYPE_F32, type, SPW_DTYPE_F32);
    draw_blocks(t);
    memset(host_part(t, X), 0, PART);
    for (size_t r = 0; r < m; r++)
        store(host_part(t, X), r * t->a.k + place_of_one(t, r), SPW_DTYPE_F32, 1);
    SPW_TRY(multiply(t));
    return compare(t, number_of_w);
}

/* ---- a chain of products ---- */

static float moved(const struct self_test *t, size_t r, size_t c)
{
    return load(host_part(t, X), r * t->a.k + (c + CHAIN) % t->a.k, SPW_DTYPE_BF16);
}

static int test_chain(struct self_test *t, size_t m)
{
    enum { SIDE = 128 };
    shape(t, "products in a row", m, SIDE, SIDE, SPW_DTYPE_BF16, SPW_DTYPE_BF16, SPW_DTYPE_BF16);
    memset(host_part(t, W), 0, PART);
    for (size_t i = 0; i < SIDE; i++)
        store(host_part(t, W), i * SIDE + (i + 1) % SIDE, SPW_DTYPE_BF16, 1);
    for (size_t i = 0; i < m * SIDE; i++)
        store(host_part(t, X), i, SPW_DTYPE_BF16, (float)(draw(t) % 251));
    SPW_TRY(copy(t, X, SPW_LINK_HOST_TO_DEVICE));
    SPW_TRY(copy(t, W, SPW_LINK_HOST_TO_DEVICE));
    for (int i = 0; i < CHAIN; i++) {
        struct spw_linear_args a = t->a;
        a.x = device_part(t, i % 2 ? Y : X);
        a.y = device_part(t, i % 2 ? X : Y);
        SPW_TRY(t->backend->ops->linear(&a, t->lane.compute));
    }
    SPW_TRY(spw_lane_copy(&t->lane, host_part(t, Y), device_part(t, CHAIN % 2 ? Y : X), PART,
                          SPW_LINK_DEVICE_TO_HOST, t->lane.compute));
    SPW_TRY(spw_lane_stream_sync(&t->lane, t->lane.compute));
    return compare(t, moved);
}

/* ---- all of them ---- */

static int test_all(struct self_test *t)
{
    static const size_t rows[] = {1, 12, 40};
    SPW_TRY(test_integers(t, LARGE, LARGE, 64, SPW_DTYPE_BF16, SPW_DTYPE_F32));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SPW_TRY(test_integers(t, rows[i], N, K + 8, SPW_DTYPE_BF16, SPW_DTYPE_F32));
        SPW_TRY(test_integers(t, rows[i], N, K + 8, SPW_DTYPE_BF16, SPW_DTYPE_BF16));
        SPW_TRY(test_integers(t, rows[i], N, K + 8, SPW_DTYPE_F32, SPW_DTYPE_F32));
        SPW_TRY(test_chain(t, rows[i]));
        for (int type = SPW_DTYPE_Q8_0; type <= SPW_DTYPE_MXFP4; type++) {
            SPW_TRY(test_codes(t, rows[i], (enum spw_dtype)type));
            SPW_TRY(test_numbers(t, rows[i], (enum spw_dtype)type));
        }
    }
    return 0;
}

static int take(struct self_test *t)
{
    const struct spw_lane *l = &t->lane;
    uint64_t work = 0;
    for (int type = SPW_DTYPE_F32; type <= SPW_DTYPE_MXFP4; type++)
        for (int x = 0; x < 2; x++)
            work = spw_max_u64(
                work, t->backend->linear_workspace(2 * K, x ? SPW_DTYPE_BF16 : SPW_DTYPE_F32,
                                                   (enum spw_dtype)type));
    t->bytes = (uint64_t)WORK * PART + l->ops->workers(l->device) * spw_align_up(work, 64) + PART;
    SPW_TRY(l->ops->alloc(l->device, t->bytes, (void **)&t->device));
    SPW_TRY(l->ops->alloc_host(l->device, (uint64_t)WORK * PART, (void **)&t->host));
    return l->ops->stream_open(l->device, "compute", &t->lane.compute);
}

int spw_self_test(char device[80], const struct spw_options *o, struct spw_error *err)
{
    struct spw_backend backend;
    struct self_test t = {.backend = &backend, .random = 1, .err = err};
    spw_error_clear(err);
    SPW_TRY(spw_engine_choose_device(&backend, &t.lane, o, UINT64_MAX, UINT64_MAX, err));
    snprintf(device, 80, "%s", backend.name);
    int rc = take(&t);
    if (!rc)
        rc = test_all(&t);
    if (rc && rc != -EBADMSG)
        rc = spw_fail(err, rc, "%s: the self-test could not run: %s", backend.name, strerror(-rc));
    spw_lane_close_streams(&t.lane);
    t.lane.ops->free_host(t.lane.device, t.host, (uint64_t)WORK * PART);
    t.lane.ops->free(t.lane.device, t.device, t.bytes);
    t.lane.ops->close(t.lane.device);
    return rc;
}
