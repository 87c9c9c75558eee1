/* Passes over a row of logits against loops over single values. */
#include "runtime/rules/logits_row.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sometimes a value that is not a number, or the largest one again. */
static float draw_logit(uint64_t *seed, double spread)
{
    static const float odd[] = {NAN, -INFINITY, -NAN, -0.0f, 0.0f, -3e38f, 7.0f, 7.0f};
    uint64_t which = check_range(seed, 0, 63);
    if (which < sizeof odd / sizeof *odd)
        return odd[which];
    return (float)(((double)check_range(seed, 0, 1 << 20) / (1 << 20) - 0.5) * spread);
}

static void test_logits(uint64_t seed)
{
    for (int round = 0; round < 400; round++) {
        size_t n = check_range(&seed, 1, 400), whole = spw_align_up(n, SPW_ROW_LANES), count = 0;
        float *logits = malloc(n * sizeof *logits),
              *row = malloc(whole * sizeof *row); /* exactly */
        double spread = pow(10, (double)check_range(&seed, 0, 6) - 3);
        float top = -INFINITY;
        bool has_nan = false;
        for (size_t i = 0; i < n; i++) {
            logits[i] = draw_logit(&seed, spread);
            has_nan |= isnan(logits[i]);
        }
        CHECK(isnan(spw_row_top(logits, n)) == has_nan);
        for (size_t i = 0; i < n; i++) {
            logits[i] = isnan(logits[i]) ? -INFINITY : logits[i];
            top = logits[i] > top ? logits[i] : top;
        }
        CHECK(spw_row_top(logits, n) == top);
        spw_row_fill(row, logits, n);
        for (size_t i = 0; i < whole; i++)
            CHECK(row[i] == (i < n ? logits[i] : -INFINITY));
        CHECK(spw_row_top(row, whole) == top);
        float floor = check_range(&seed, 0, 3) ? draw_logit(&seed, spread) : top;
        size_t from = check_range(&seed, 0, n), first = from;
        while (first < n && !(logits[first] >= floor))
            first++;
        CHECK(spw_row_find(logits, from, n, floor) == first);
        for (size_t i = 0; i < whole; i++)
            count += row[i] >= floor;
        CHECK(spw_row_count(row, whole, floor) == count);
        free(row);
        free(logits);
    }
    CHECK(spw_row_top((float[]){-INFINITY, -INFINITY}, 2) == -INFINITY);
    CHECK(spw_row_top((float[]){0}, 0) == -INFINITY);
}

static void test_weights(uint64_t seed)
{
    for (int round = 0; round < 400; round++) {
        size_t n = spw_align_up(check_range(&seed, 1, 400), SPW_ROW_LANES);
        float *row = malloc(n * sizeof *row), top = 0;
        double *w = malloc(n * sizeof *w), sum = 0, part = 0;
        double temperature = pow(10, (double)check_range(&seed, 0, 80) / 20 - 2), worst = 0;
        for (size_t i = 0; i < n; i++) {
            float x = draw_logit(&seed, 200);
            row[i] = isnan(x) ? -INFINITY : x;
        }
        top = spw_row_top(row, n);
        double got = spw_row_weights(w, row, n, top, temperature);
        double floor = w[check_range(&seed, 0, n - 1)];
        for (size_t i = 0; i < n && top > -INFINITY; i++) {
            double x = row[i] == top ? 1 : exp(((double)row[i] - (double)top) / temperature);
            CHECK(row[i] == top ? w[i] == 1 : x < 2e-299 ? w[i] < 2e-299 : true);
            if (x >= 2e-299)
                worst = fmax(worst, fabs(w[i] / x - 1));
            CHECK(spw_row_weight(row[i], top, temperature) == w[i]);
            sum += w[i];
            part += w[i] >= floor ? w[i] : 0;
        }
        /* r^10 / 10! at ln(2) / 2, and the rounding of x, which exp takes as it is */
        CHECK_MSG(worst < 1e-11 + 700 * 3e-16, "a weight is off by %g", worst);
        CHECK(fabs(got - sum) <= 1e-13 * sum);
        CHECK(fabs(spw_row_sum(w, n, floor) - part) <= 1e-13 * part);
        free(w);
        free(row);
    }
    const float infinite[SPW_ROW_LANES] = {1, INFINITY, -INFINITY, INFINITY};
    double w[SPW_ROW_LANES];
    CHECK(spw_row_weights(w, infinite, SPW_ROW_LANES, INFINITY, 1) == 2);
    CHECK(w[0] == 0 && w[1] == 1 && w[2] == 0 && w[3] == 1);
}

/* The passes of every instruction set that the processor has: the same bits. */
static void test_isas(uint64_t seed)
{
    const struct spw_row_kernels *plain = spw_row_kernels_of(SPW_ISA_PORTABLE);
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++) {
        if (!spw_isa_runs((enum spw_isa)isa))
            continue;
        const struct spw_row_kernels *k = spw_row_kernels_of((enum spw_isa)isa);
        for (int round = 0; round < 200; round++) {
            const size_t whole = spw_align_up(check_range(&seed, 1, 400), SPW_ROW_LANES);
            const size_t n = check_range(&seed, 1, whole), from = check_range(&seed, 0, n);
            float *row = malloc(whole * sizeof *row);
            double *w = malloc(2 * whole * sizeof *w);
            for (size_t i = 0; i < whole; i++) {
                const float x = draw_logit(&seed, 60);
                row[i] = isnan(x) ? -INFINITY : x;
            }
            const float top = plain->top(row, whole), floor = row[check_range(&seed, 0, n - 1)];
            const double t = pow(10, (double)check_range(&seed, 0, 40) / 20 - 1);
            const double sum = plain->weights(w, row, whole, top, t);
            CHECK(k->top(row, n) == plain->top(row, n));
            CHECK(k->find(row, from, n, floor) == plain->find(row, from, n, floor));
            CHECK(k->count(row, whole, floor) == plain->count(row, whole, floor));
            CHECK(k->weights(w + whole, row, whole, top, t) == sum);
            CHECK(k->weights(NULL, row, whole, top, t) == sum);
            CHECK(!memcmp(w, w + whole, whole * sizeof *w));
            CHECK(k->weight(row[0], top, t) == plain->weight(row[0], top, t));
            CHECK(k->sum(w, whole, w[0]) == plain->sum(w, whole, w[0]));
            free(w);
            free(row);
        }
    }
}

static void test_log_sum(uint64_t seed)
{
    for (int round = 0; round < 200; round++) {
        const size_t n = check_range(&seed, 1, 400);
        float *logits = malloc(n * sizeof *logits), top = -INFINITY;
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            logits[i] = (float)check_range(&seed, 0, 1 << 20) / (1 << 15);
            top = logits[i] > top ? logits[i] : top;
        }
        for (size_t i = 0; i < n; i++)
            sum += exp((double)logits[i] - (double)top);
        CHECK(fabs(spw_row_log_sum(logits, n, top) - log(sum)) < 1e-10);
        free(logits);
    }
}

int main(void)
{
    uint64_t seed = check_seed();
    test_logits(seed);
    test_weights(seed + 1);
    test_isas(seed + 2);
    test_log_sum(seed + 3);
    return check_done();
}
