/* The log-mel spectrogram of Whisper (A. Radford et al., Robust Speech Recognition via Large-Scale
 * Weak Supervision, 2022, 2.2), as transformers computes it:
 *
 *   frame: n_fft samples around sample i hop, mirrored at both ends, times a periodic Hann window
 *
 *   power: |DFT|^2 of the frame, n_fft / 2 + 1 bins
 *
 *   mel: sums of bins under n_mels triangles on the mel scale of M. Slaney's Auditory Toolbox
 *
 *   row: log10 of each sum, at least the largest number of all rows less 8; then (x + 4) / 4
 *
 * All in double, rounded to float where it is stored. A frame's numbers depend on its samples
 * alone, but for the largest number. */
#include "model/audio/audio.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* One triangle: bins [first, end) have weights from `at` on. */
struct triangle {
    uint32_t first, end, at;
};

struct tables {
    uint32_t n, p, q, n_bins;   /* n = p q */
    double *hann;               /* [n] */
    double *cosine, *sine;      /* [n], of 2 pi i / n */
    struct triangle *triangles; /* [n_mels] */
    double *weights;            /* of all triangles */
    double *frame, *re, *im;    /* [n]: a frame; its first step, [q / 2 + 1][p] */
    double *power;              /* [n_bins] */
};

/* ---- the mel scale: linear up to 1000 Hz, logarithmic above ---- */

static double log_step(void)
{
    return log(6.4) / 27;
}

static double mel_of(double hertz)
{
    return hertz < 1000 ? 3 * hertz / 200 : 15 + log(hertz / 1000) / log_step();
}

static double hertz_of(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp((mel - 15) * log_step());
}

/* The triangles stand side by side: each begins at the middle of the one before. A triangle has the
 * area of 1 hertz. */
static void find_triangles(struct tables *t, const struct spw_mel_config *c)
{
    const double most = mel_of(c->rate / 2.0), step = most / (c->n_mels + 1);
    uint32_t n = 0;
    for (uint32_t m = 0; m < c->n_mels; m++) {
        const double low = hertz_of(m * step), middle = hertz_of((m + 1) * step);
        const double high = hertz_of((m + 2) * step);
        struct triangle *r = &t->triangles[m];
        *r = (struct triangle){.at = n};
        for (uint32_t bin = 0; bin < t->n_bins; bin++) {
            const double hertz = (double)bin * c->rate / c->n_fft;
            const double rising = (hertz - low) / (middle - low);
            const double weight = fmin(rising, (high - hertz) / (high - middle));
            if (weight <= 0)
                continue;
            r->first = r->end ? r->first : bin;
            r->end = bin + 1;
            t->weights[n++] = weight * 2 / (high - low);
        }
    }
}

/* ---- tables ---- */

static void free_tables(struct tables *t)
{
    spw_free(t->hann);
    spw_free(t->triangles);
}

static int open_tables(struct tables *t, const struct spw_mel_config *c)
{
    const uint32_t n = c->n_fft, n_bins = n / 2 + 1;
    uint32_t p = 1;
    for (uint32_t i = 2; i * i <= n; i++)
        p = n % i == 0 ? i : p;
    *t = (struct tables){.n = n, .p = p, .q = n / p, .n_bins = n_bins};
    const size_t first_step = (size_t)(t->q / 2 + 1) * p;
    /* a bin is under two triangles at most */
    t->hann = spw_alloc((4 * (size_t)n + 2 * first_step + 3 * (size_t)n_bins) * sizeof(double));
    t->triangles = spw_alloc(c->n_mels * sizeof *t->triangles);
    if (!t->hann || !t->triangles) {
        free_tables(t);
        return -ENOMEM;
    }
    t->cosine = t->hann + n;
    t->sine = t->cosine + n;
    t->frame = t->sine + n;
    t->re = t->frame + n;
    t->im = t->re + first_step;
    t->power = t->im + first_step;
    t->weights = t->power + n_bins;
    for (uint32_t i = 0; i < n; i++) {
        t->cosine[i] = cos(2 * PI * i / n);
        t->sine[i] = sin(2 * PI * i / n);
        t->hann[i] = 0.5 - 0.5 * t->cosine[i];
    }
    find_triangles(t, c);
    return 0;
}

/* ---- a frame ---- */

/* t->frame = the samples around sample `middle`, times the window. */
static void take_frame(const struct tables *t, const float *samples, size_t n, uint64_t n_all,
                       uint64_t middle)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const uint64_t half = t->n / 2, to = middle + i;
        uint64_t at = to < half ? half - to : to - half;
        if (at >= n_all)
            at = 2 * (n_all - 1) - at;
        t->frame[i] = at < n ? t->hann[i] * (double)samples[at] : 0;
    }
}

/* t->power. The DFT in two steps (J. W. Cooley, J. W. Tukey, 1965): with w = exp(-2 pi i / n),
 *
 *   Y[k][b] = sum over a of x[p a + b] w^(p a k)       k < q; Y[q - k] is the conjugate of Y[k]
 *   X[k]    = sum over b of Y[k mod q][b] w^(b k) */
static void find_power(const struct tables *t)
{
    const uint32_t n = t->n, p = t->p, q = t->q;
    for (uint32_t k = 0; k <= q / 2; k++) {
        double *re = t->re + k * p, *im = t->im + k * p;
        for (uint32_t b = 0; b < p; b++)
            re[b] = im[b] = 0;
        for (uint32_t a = 0; a < q; a++) {
            const double c = t->cosine[p * (a * k % q)], s = t->sine[p * (a * k % q)];
            const double *x = t->frame + p * a;
            for (uint32_t b = 0; b < p; b++) {
                re[b] += c * x[b];
                im[b] -= s * x[b];
            }
        }
    }
    for (uint32_t k = 0; k < t->n_bins; k++) {
        const bool mirrored = k % q > q / 2;
        const double *re = t->re + (mirrored ? q - k % q : k % q) * p;
        const double *im = t->im + (mirrored ? q - k % q : k % q) * p;
        double sum_re = 0, sum_im = 0;
        for (uint32_t b = 0, at = 0; b < p; b++, at = (at + k) % n) {
            const double y = mirrored ? -im[b] : im[b];
            sum_re += re[b] * t->cosine[at] + y * t->sine[at];
            sum_im += y * t->cosine[at] - re[b] * t->sine[at];
        }
        t->power[k] = sum_re * sum_re + sum_im * sum_im;
    }
}

/* The numbers of t->power in mels, as log10; and the largest one. */
static double find_row(const struct tables *t, uint32_t n_mels, float *out)
{
    double most = -HUGE_VAL;
    for (uint32_t m = 0; m < n_mels; m++) {
        const struct triangle *r = &t->triangles[m];
        double sum = 0;
        for (uint32_t bin = r->first; bin < r->end; bin++)
            sum += t->power[bin] * t->weights[r->at + bin - r->first];
        const double x = log10(fmax(sum, 1e-10));
        out[m] = (float)x;
        most = fmax(most, x);
    }
    return most;
}

int spw_audio_log_mel(float *out, size_t n_frames, const struct spw_mel_config *c,
                      const float *samples, size_t n)
{
    struct tables t;
    const uint64_t n_all = spw_max_u64(n, (uint64_t)n_frames * c->hop);
    double most = -HUGE_VAL;
    SPW_TRY(open_tables(&t, c));
    for (size_t i = 0; i < n_frames; i++) {
        take_frame(&t, samples, n, n_all, (uint64_t)i * c->hop);
        find_power(&t);
        most = fmax(most, find_row(&t, c->n_mels, out + i * c->n_mels));
    }
    for (size_t i = 0; i < n_frames * c->n_mels; i++)
        out[i] = (float)((fmax((double)out[i], most - 8) + 4) / 4);
    free_tables(&t);
    return 0;
}
