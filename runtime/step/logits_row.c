/* Passes over a row of logits: see logits_row.h.
 *
 * Written with the vector types of gcc and clang, 16 bytes each, which every 64-bit processor has;
 * STEPS of them are LANES values, so that sums and maxima are as many chains side by side. */
#include "runtime/step/logits_row.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { LANES = SPW_ROW_LANES, FLOATS = 4, DOUBLES = 2 };

typedef float vfloat __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));
typedef double vdouble __attribute__((vector_size(16)));
typedef int64_t vlong __attribute__((vector_size(16)));

static inline vfloat load(const float *p)
{
    vfloat v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vdouble load_double(const double *p)
{
    vdouble v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Of each value where `which` is set, `then`, else `other`. */
static inline vfloat choose(vmask which, vfloat then, vfloat other)
{
    return (vfloat)((which & (vmask)then) | (~which & (vmask)other));
}

/* `x` where `which` is set, else 0. */
static inline vdouble only(vlong which, vdouble x)
{
    return (vdouble)(which & (vlong)x);
}

static inline double sum_of(const vdouble sums[LANES / DOUBLES])
{
    double sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += sums[k / DOUBLES][k % DOUBLES];
    return sum;
}

/* ---- logits ---- */

void spw_row_fill(float *row, const float *logits, size_t n_tokens)
{
    size_t n = spw_align_up(n_tokens, LANES);
    for (size_t i = 0; i < n_tokens; i++)
        row[i] = isnan(logits[i]) ? -INFINITY : logits[i];
    for (size_t i = n_tokens; i < n; i++)
        row[i] = -INFINITY;
}

/* NaN is larger than nothing. */
float spw_row_top(const float *logits, size_t n)
{
    vfloat most[LANES / FLOATS];
    float top = -INFINITY;
    size_t i = 0;
    for (size_t k = 0; k < LANES / FLOATS; k++)
        most[k] = (vfloat){-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES / FLOATS; k++) {
            vfloat x = load(logits + i + k * FLOATS);
            most[k] = choose(x > most[k], x, most[k]);
        }
    for (; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int k = 0; k < LANES; k++)
        top = most[k / FLOATS][k % FLOATS] > top ? most[k / FLOATS][k % FLOATS] : top;
    return top;
}

/* Of LANES values: whether one is at least `least`. */
static bool any_reaches(const float *logits, vfloat least)
{
    vlong any = {0};
    for (size_t k = 0; k < LANES / FLOATS; k++)
        any |= (vlong)(load(logits + k * FLOATS) >= least);
    return any[0] | any[1];
}

size_t spw_row_find(const float *logits, size_t from, size_t n, float floor)
{
    const vfloat least = {floor, floor, floor, floor};
    size_t i = from;
    while (i + LANES <= n && !any_reaches(logits + i, least))
        i += LANES;
    while (i < n && !(logits[i] >= floor))
        i++;
    return i;
}

size_t spw_row_count(const float *row, size_t n, float floor)
{
    const vfloat least = {floor, floor, floor, floor};
    vmask count = {0};
    assert(n % LANES == 0 && n <= INT32_MAX);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / FLOATS; k++)
            count -= load(row + i + k * FLOATS) >= least; /* true is -1 */
    return (size_t)count[0] + (size_t)count[1] + (size_t)count[2] + (size_t)count[3];
}

/* ---- weights ---- */

/* e^x, x <= 0. 2^k e^r with |r| <= ln(2) / 2; of the series of e^r the terms up to r^9 / 9!, the
 * first one left out being 7e-12. Adding 1.5 * 2^52 leaves k, rounded to nearest, in the lowest
 * bits of the sum; far below -690 (1e-299) 2^k would be no number of full precision. */
static inline vdouble exponential(vdouble x)
{
    static const double terms[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                                   1.0 / 6,     1.0 / 2,    1,         1};
    const double shift = 0x1.8p52, log2_e = 0x1.71547652b82fep0;
    const double ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    vlong inside = x >= -690;
    vdouble in = only(inside, x), at = in * log2_e + shift, k = at - shift;
    vdouble r = (in - k * ln2_high) - k * ln2_low, p = r * 0 + 1.0 / 362880;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        p = p * r + terms[i];
    return only(inside, p * (vdouble)(((vlong)at + 1023) << 52));
}

/* Of two values; the case of equality also keeps inf - inf away. */
static inline vdouble weights(vdouble x, double top, double inverse)
{
    return exponential(only(x != top, x - top) * inverse);
}

double spw_row_weight(float logit, float top, double temperature)
{
    return weights((vdouble){(double)logit, (double)top}, (double)top, 1 / temperature)[0];
}

double spw_row_weights(double *w, const float *row, size_t n, float top, double temperature)
{
    const double inverse = 1 / temperature;
    vdouble sums[LANES / DOUBLES] = {{0}};
    assert(n % LANES == 0);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / DOUBLES; k++) {
            const float *x = row + i + k * DOUBLES;
            vdouble both = weights((vdouble){(double)x[0], (double)x[1]}, (double)top, inverse);
            memcpy(w + i + k * DOUBLES, &both, sizeof both);
            sums[k] += both;
        }
    return sum_of(sums);
}

double spw_row_sum(const double *w, size_t n, double floor)
{
    vdouble sums[LANES / DOUBLES] = {{0}};
    assert(n % LANES == 0);
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES / DOUBLES; k++) {
            vdouble x = load_double(w + i + k * DOUBLES);
            sums[k] += only(x >= floor, x);
        }
    return sum_of(sums);
}
