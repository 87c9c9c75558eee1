/* runtime/measure/divergence.c against closed forms. */
#include "runtime/measure/divergence.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

enum { VOCAB = 4096 };

static double kl[2000];
static float exact[VOCAB], candidate[VOCAB];

static struct spw_divergence fresh(void)
{
    return (struct spw_divergence){.kl = kl, .capacity = sizeof kl / sizeof *kl};
}

/* The divergence of one pair of rows. */
static double of(const float *p, const float *q, uint32_t vocab)
{
    struct spw_divergence d = fresh();
    spw_divergence_add(&d, p, q, vocab);
    return kl[0];
}

static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fmax(fabs(b), 1e-12);
}

/* Probabilities s(a), 1 - s(a) against s(b), 1 - s(b). */
static void test_two_tokens(void)
{
    for (double a = -6; a <= 6; a += 1.5)
        for (double b = -30; b <= 30; b += 2.5) {
            float p[2] = {(float)a, 0}, q[2] = {(float)b + 100, 100};
            double s = 1 / (1 + exp(-a)), t = 1 / (1 + exp(-b));
            double expected = s * log(s / t) + (1 - s) * (log((1 - s)) - (-b - log1p(exp(-b))));
            if (fabs(a) >= 2 * SPW_DIVERGENCE_SPREAD) /* two values +-a/2 spread by |a|/2 */
                CHECK_MSG(near(of(p, q, 2), expected, 1e-9), "%g %g: %g, not %g", a, b, of(p, q, 2),
                          expected);
        }
}

/* Certain against uniform; and rows of two values, where one token's logit is changed by h. */
static void test_many_tokens(void)
{
    double h = 12;
    for (uint32_t i = 0; i < VOCAB; i++) {
        exact[i] = i == 99 ? 1000 : 0;
        candidate[i] = 7; /* an offset changes nothing */
    }
    CHECK(near(of(exact, candidate, VOCAB), log(VOCAB), 1e-9));
    for (uint32_t i = 0; i < VOCAB; i++)
        exact[i] = candidate[i] = i % 2 ? 3.0f : -3.0f;
    CHECK(of(exact, candidate, VOCAB) == 0);
    candidate[1] += (float)h;
    double p = 1 / (VOCAB / 2.0 * (1 + exp(-6)));
    CHECK(near(of(exact, candidate, VOCAB), log(1 - p + p * exp(h)) - p * h, 1e-9));
}

/* Small differences: half their variance under p; the next term of the expansion is of third
 * order. */
static void test_small(void)
{
    uint64_t random = check_seed();
    double e[VOCAB], p[VOCAB], z = 0, mean = 0, variance = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        exact[i] = (float)(check_random(&random) % 1000) * 0.008f;
        e[i] = (double)(check_random(&random) % 1000) * 1e-6;
        candidate[i] = exact[i] + (float)e[i];
        e[i] = (double)candidate[i] - (double)exact[i];
        z += p[i] = exp((double)exact[i]);
    }
    for (uint32_t i = 0; i < VOCAB; i++)
        mean += p[i] / z * e[i];
    for (uint32_t i = 0; i < VOCAB; i++)
        variance += p[i] / z * (e[i] - mean) * (e[i] - mean);
    CHECK_MSG(near(of(exact, candidate, VOCAB), variance / 2, 2e-3), "%g, not %g",
              of(exact, candidate, VOCAB), variance / 2);
}

/* A flat model is judged like the same model at the temperature with a spread of 1. */
static void test_flat(void)
{
    uint64_t random = check_seed();
    float p[64], q[64], flat_p[64], flat_q[64];
    double mean = 0, squares = 0;
    for (int i = 0; i < 64; i++) {
        p[i] = (float)(check_random(&random) % 1000) * 0.001f;
        q[i] = (float)(check_random(&random) % 1000) * 0.001f;
        mean += (double)p[i] / 64;
    }
    for (int i = 0; i < 64; i++)
        squares += ((double)p[i] - mean) * ((double)p[i] - mean) / 64;
    for (int i = 0; i < 64; i++) { /* spread by a little more than 1; the same times 1/2^20 */
        p[i] *= (float)(SPW_DIVERGENCE_SPREAD * 1.0001 / sqrt(squares));
        q[i] *= (float)(SPW_DIVERGENCE_SPREAD * 1.0001 / sqrt(squares));
        flat_p[i] = p[i] * 0x1p-20f;
        flat_q[i] = q[i] * 0x1p-20f;
    }
    struct spw_divergence d = fresh();
    spw_divergence_add(&d, p, q, 64);
    CHECK(d.n_sharpened == 0);
    spw_divergence_add(&d, flat_p, flat_q, 64);
    CHECK(d.n_sharpened == 1);
    CHECK_MSG(kl[0] > 0.1 && near(kl[1], kl[0], 1e-3), "%g, %g", kl[0], kl[1]);
    memset(flat_p, 0, sizeof flat_p); /* no spread: both are uniform */
    CHECK(of(flat_p, flat_p, 64) == 0);
}

static void test_tokens(void)
{
    struct spw_divergence d = fresh();
    struct spw_divergence_summary s;
    float sure[4] = {0, 9, 0, 0}, other[4] = {9, 0, 0, 0}, torn[4] = {-9, 9, 8.5f, -9};
    float torn_too[4] = {-9, 8.5f, 9, -9};
    spw_divergence_add(&d, sure, sure, 4);
    spw_divergence_add(&d, sure, other, 4);
    spw_divergence_add(&d, torn, torn_too, 4); /* 1.6 times as probable: undecided */
    spw_divergence_add(&d, torn, torn, 4);
    CHECK(d.n == 4 && d.n_same == 2 && d.n_decided == 2 && d.n_decided_same == 1);
    spw_divergence_summarize(&d, &s);
    CHECK(s.n == 4 && s.same_top == 0.5 && s.same_decided == 0.5 && s.n_decided == 2);
}

/* NaN, infinity, in either row. */
static void test_not_finite(void)
{
    for (int bad = 0; bad < 6; bad++) {
        struct spw_divergence d = fresh();
        struct spw_divergence_summary s;
        float p[3] = {1, 5, 2}, q[3] = {1, 5, 2};
        static const float values[3] = {NAN, INFINITY, -INFINITY};
        (bad < 3 ? p : q)[2] = values[bad % 3];
        spw_divergence_add(&d, p, q, 3);
        CHECK(isinf(kl[0]) && d.n_same == 0 && d.n_decided == 1 && d.n_decided_same == 0);
        spw_divergence_summarize(&d, &s);
        CHECK(isinf(s.kl_median) && isinf(s.kl_p999) && s.same_top == 0);
    }
}

static void test_quantiles(void)
{
    static const struct {
        size_t n;
        double median, p999;
    } cases[] = {{1, 1, 1},        {2, 1, 2},         {3, 2, 3},         {999, 500, 999},
                 {1000, 500, 999}, {1001, 501, 1000}, {2000, 1000, 1998}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct spw_divergence d = fresh();
        struct spw_divergence_summary s;
        d.n = cases[c].n;
        for (size_t i = 0; i < d.n; i++) /* 1 ... n, out of order: 1009 is prime */
            kl[i] = (double)((i + 1) * 1009 % d.n + 1);
        spw_divergence_summarize(&d, &s);
        CHECK_MSG(s.kl_median == cases[c].median && s.kl_p999 == cases[c].p999, "%zu: %g %g", d.n,
                  s.kl_median, s.kl_p999);
    }
    struct spw_divergence none = fresh();
    struct spw_divergence_summary s;
    spw_divergence_summarize(&none, &s);
    CHECK(s.n == 0 && s.kl_median == 0 && s.same_top == 1);
}

int main(void)
{
    test_two_tokens();
    test_many_tokens();
    test_small();
    test_flat();
    test_tokens();
    test_not_finite();
    test_quantiles();
    return check_done();
}
