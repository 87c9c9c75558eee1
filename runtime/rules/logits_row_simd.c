/* The passes over a row of logits in one instruction set: see logits_row.h.
 *
 * LANES values at a time, in as many registers as they take: sums and maxima are LANES chains side
 * by side, whatever the number of registers. */
#include "runtime/rules/logits_row.h"

#include <assert.h>
#include <math.h>

#include "base/simd.h"

extern const struct spw_row_kernels SIMD_NAME(spw_row_kernels);

enum { LANES = SPW_ROW_LANES, FLOATS = SIMD_LANES, DOUBLES = SIMD_LANES / 2 };

typedef double f64v __attribute__((vector_size(8 * DOUBLES)));
typedef int64_t i64v __attribute__((vector_size(8 * DOUBLES)));

static inline f64v load_double(const double *p)
{
    f64v v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline f64v load_widened(const float *p)
{
    f64v v;
    for (int l = 0; l < DOUBLES; l++)
        v[l] = (double)p[l];
    return v;
}

/* `x` where `which` is set, else 0. */
static inline f64v only(i64v which, f64v x)
{
    return (f64v)(which & (i64v)x);
}

static inline double sum_of(const f64v sums[LANES / DOUBLES])
{
    double sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += sums[k / DOUBLES][k % DOUBLES];
    return sum;
}

/* ---- logits ---- */

/* NaN is larger than nothing, so `odd` has it. */
static float row_top(const float *logits, size_t n)
{
    f32v most[LANES / FLOATS];
    i32v odd = {0};
    float top = -INFINITY;
    bool has_nan = false;
    size_t i = 0;
    for (size_t k = 0; k < LANES / FLOATS; k++)
        most[k] = simd_set1(-INFINITY);
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES / FLOATS; k++) {
            f32v x = simd_load(logits + i + k * FLOATS);
            most[k] = simd_max(x, most[k]);
            odd |= x != x;
        }
    for (; i < n; i++) {
        top = logits[i] > top ? logits[i] : top;
        has_nan |= isnan(logits[i]);
    }
    for (int k = 0; k < LANES; k++)
        top = most[k / FLOATS][k % FLOATS] > top ? most[k / FLOATS][k % FLOATS] : top;
    for (int l = 0; l < FLOATS; l++)
        has_nan |= odd[l] != 0;
    return has_nan ? NAN : top;
}

/* Of LANES values: whether one is at least `least`. */
static bool any_reaches(const float *logits, f32v least)
{
    i64v any = {0};
    int64_t bits = 0;
    for (size_t k = 0; k < LANES / FLOATS; k++)
        any |= (i64v)(simd_load(logits + k * FLOATS) >= least);
    for (int l = 0; l < DOUBLES; l++)
        bits |= any[l];
    return bits != 0;
}

static size_t row_find(const float *logits, size_t from, size_t n, float floor)
{
    const f32v least = simd_set1(floor);
    size_t i = from;
    while (i + LANES <= n && !any_reaches(logits + i, least))
        i += LANES;
    while (i < n && !(logits[i] >= floor))
        i++;
    return i;
}

static size_t row_count(const float *row, size_t n, float floor)
{
    const f32v least = simd_set1(floor);
    i32v count = {0};
    assert(n % LANES == 0 && n <= INT32_MAX);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / FLOATS; k++)
            count -= simd_load(row + i + k * FLOATS) >= least; /* true is -1 */
    return (size_t)simd_sum_i32(count);
}

/* ---- weights ---- */

/* e^x, x <= 0. 2^k e^r with |r| <= ln(2) / 2; of the series of e^r the terms up to r^9 / 9!, the
 * first one left out being 7e-12. Adding 1.5 * 2^52 leaves k, rounded to nearest, in the lowest
 * bits of the sum; far below -690 (1e-299) 2^k would be no number of full precision. */
static inline f64v exponential(f64v x)
{
    static const double terms[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                                   1.0 / 6,     1.0 / 2,    1,         1};
    const double shift = 0x1.8p52, log2_e = 0x1.71547652b82fep0;
    const double ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    i64v inside = x >= -690;
    f64v in = only(inside, x), at = in * log2_e + shift, k = at - shift;
    f64v r = (in - k * ln2_high) - k * ln2_low, p = r * 0 + 1.0 / 362880;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        p = p * r + terms[i];
    return only(inside, p * (f64v)(((i64v)at + 1023) << 52));
}

/* The case of equality also keeps inf - inf away. */
static inline f64v weights(f64v x, double top, double inverse)
{
    return exponential(only(x != top, x - top) * inverse);
}

static double row_weight(float logit, float top, double temperature)
{
    return weights((f64v){(double)logit, (double)top}, (double)top, 1 / temperature)[0];
}

static double row_weights(double *w, const float *row, size_t n, float top, double temperature)
{
    const double inverse = 1 / temperature;
    f64v sums[LANES / DOUBLES] = {{0}};
    assert(n % LANES == 0);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / DOUBLES; k++) {
            f64v x = weights(load_widened(row + i + k * DOUBLES), (double)top, inverse);
            if (w)
                memcpy(w + i + k * DOUBLES, &x, sizeof x);
            sums[k] += x;
        }
    return sum_of(sums);
}

static double row_sum(const double *w, size_t n, double floor)
{
    f64v sums[LANES / DOUBLES] = {{0}};
    assert(n % LANES == 0);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / DOUBLES; k++) {
            f64v x = load_double(w + i + k * DOUBLES);
            sums[k] += only(x >= floor, x);
        }
    return sum_of(sums);
}

const struct spw_row_kernels SIMD_NAME(spw_row_kernels) = {
    .top = row_top,
    .find = row_find,
    .count = row_count,
    .weight = row_weight,
    .weights = row_weights,
    .sum = row_sum,
};
