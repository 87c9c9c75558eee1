/* Another rate of samples. The value between two samples is a weighted sum of those around it; the
 * weights are a sinc, which passes the frequencies that both rates can hold, times a Kaiser window:
 *
 *   y[i] = sum over j of x[j] h(j - i from / to),   h(t) = sinc(cutoff t) kaiser(t / half)
 *
 * (A. V. Oppenheim, R. W. Schafer, Discrete-Time Signal Processing, 7.6). to / from is reduced to
 * up / down. i and i + up have the same weights, so these are computed once. The weights of an
 * output are scaled to a sum of 1: silence and constants stay what they are. Before the first
 * sample and after the last one there are zeros. */
#include "model/audio/audio.h"

#include <math.h>

/* Zeros of the sinc on each side; the part of the band that passes; the shape of the window, which
 * leaves -80 dB of what must not pass. */
enum { ZEROS = 32 };
static const double PASSED = 0.95, KAISER = 8.0;
static const double PI = 3.14159265358979323846;

/* The modified Bessel function of order 0. */
static double bessel(double x)
{
    double sum = 1, term = 1;
    for (int k = 1; term > sum * 1e-17; k++) {
        term *= x / 2 / k * (x / 2 / k);
        sum += term;
    }
    return sum;
}

/* Not scaled. */
static double weight(double t, double cutoff, double half)
{
    const double u = t / half, x = PI * cutoff * t;
    if (fabs(u) >= 1)
        return 0;
    return (x == 0 ? 1 : sin(x) / x) * bessel(KAISER * sqrt(1 - u * u));
}

/* weights[k] is of the sample k - n / 2 + 1 after the one at or before the output. */
static void find_weights(double *weights, size_t n, double fraction, double cutoff)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        weights[k] = weight((double)k - (double)(n / 2) + 1 - fraction, cutoff, (double)(n / 2));
        sum += weights[k];
    }
    for (size_t k = 0; k < n; k++)
        weights[k] /= sum;
}

static double weighted_sum(const struct spw_audio *a, uint64_t at, const double *weights, size_t n)
{
    const uint64_t before = n / 2 - 1; /* samples before `at` that have weights */
    double sum = 0;
    for (size_t k = at < before ? before - at : 0; k < n && at + k < a->n + before; k++)
        sum += weights[k] * (double)a->samples[at + k - before];
    return sum;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int spw_audio_resample(struct spw_audio *a, uint32_t rate)
{
    const uint64_t divisor = common_divisor(a->rate, rate);
    const uint64_t up = rate / divisor, down = a->rate / divisor;
    const double cutoff = PASSED * (up < down ? (double)up / (double)down : 1);
    const size_t n_weights = 2 * (size_t)ceil(ZEROS / cutoff);
    if (up == down)
        return 0;
    const size_t n = spw_div_up(a->n * up, down);
    float *samples = spw_alloc(n * sizeof *samples);
    double *weights = spw_alloc(n_weights * sizeof *weights);
    for (uint64_t first = 0; samples && weights && first < spw_min_u64(up, n); first++) {
        find_weights(weights, n_weights, (double)(first * down % up) / (double)up, cutoff);
        for (uint64_t i = first; i < n; i += up)
            samples[i] = (float)weighted_sum(a, i * down / up, weights, n_weights);
    }
    spw_free(weights);
    if (!samples || !weights) {
        spw_free(samples);
        return -ENOMEM;
    }
    spw_free(a->samples);
    *a = (struct spw_audio){samples, n, rate};
    return 0;
}
