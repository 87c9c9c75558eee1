/* The self-test of a device (runtime/measure/self_test.c): a right device passes, and a device
 * whose products of one kind are wrong does not. */
#include "tests/engine/engine_run.h"

#include "quant/types.h"
#include "runtime/measure.h"

static struct spw_backend right;

/* What goes wrong: products with weights of this type and rows of that one, of at least so many
 * rows. */
static struct {
    enum spw_dtype w, x;
    size_t rows, n;
} fault;

/* As if the first row of weights were another one. */
static int wrong_linear(const struct spw_linear_args *a, spw_stream s)
{
    struct spw_linear_args b = *a;
    if (a->w_dtype == fault.w && a->x_dtype == fault.x && a->m >= fault.rows) {
        b.w = (const uint8_t *)a->w + spw_row_bytes(a->w_dtype, a->k);
        fault.n++;
    }
    return right.ops->linear(&b, s);
}

static void check_fault(enum spw_dtype w, enum spw_dtype x, size_t rows)
{
    char device[80];
    struct spw_error err = {0};
    struct spw_ops ops = *right.ops;
    struct spw_backend wrong = right;
    ops.linear = wrong_linear;
    wrong.ops = &ops;
    fault.w = w, fault.x = x, fault.rows = rows, fault.n = 0;
    const struct spw_options o = {.own_backend = &wrong, .threads = 2};
    const int rc = spw_self_test(device, &o, &err);
    CHECK_MSG(rc == -EBADMSG && fault.n && strstr(err.text, spw_dtype_name(w)) &&
                  strstr(err.text, "gives wrong numbers"),
              "%s, %zu rows: %d %s", spw_dtype_name(w), rows, rc, err.text);
}

int main(void)
{
    char device[80] = "";
    struct spw_error err = {0};
    right = run_backend(true);
    const struct spw_options o = {.own_backend = &right, .threads = 2};
    const int rc = spw_self_test(device, &o, &err);
    CHECK_MSG(!rc && !strcmp(device, right.name), "%d %s %s", rc, device, err.text);
    check_fault(SPW_DTYPE_F32, SPW_DTYPE_F32, 1);
    check_fault(SPW_DTYPE_BF16, SPW_DTYPE_BF16, 13);
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t += TEST_GPU ? 4 : 1) {
        check_fault((enum spw_dtype)t, SPW_DTYPE_BF16, t % 2 ? 1 : 33);
        check_fault((enum spw_dtype)t, SPW_DTYPE_F32, t % 2 ? 13 : 1);
    }
    return check_done();
}
