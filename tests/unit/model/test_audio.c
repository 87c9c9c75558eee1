/* The front end of models for speech: WAV files that this test writes, sines at another rate, and
 * the log-mel spectrogram against that of transformers (tests/golden/make_audio_goldens.py). */
#include "base/file.h"
#include "model/audio/audio.h"
#include "tests/check.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* ---- WAV ---- */

struct wav {
    uint32_t tag, bits, channels, rate;
    bool extensible, from_pipe;
    uint32_t cut; /* bytes that are missing at the end */
};

static uint8_t *put(uint8_t *at, uint32_t x, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(x >> 8 * i);
    return at + bytes;
}

static uint8_t *put_name(uint8_t *at, const char *name)
{
    return (uint8_t *)memcpy(at, name, 4) + 4;
}

/* As many bits as the file has, of a number of 32 bits. */
static uint32_t stored(const struct wav *w, int32_t x)
{
    const float value = (float)(x / 2147483648.0);
    uint32_t bits = (uint32_t)x >> (32 - w->bits);
    if (w->tag == 3)
        memcpy(&bits, &value, sizeof bits);
    return w->bits == 8 ? bits ^ 128 : bits;
}

/* Writes frames of x[], with odd chunks of no interest around the format. Returns the bytes. */
static size_t write_wav(uint8_t *file, const struct wav *w, const int32_t *x, uint32_t n)
{
    const uint32_t sample = w->bits / 8, data = n * w->channels * sample;
    uint8_t *at = put_name(put(put_name(file, "RIFF"), 0, 4), "WAVE");
    at = put(put(put_name(at, "LIST"), 3, 4), 0, 4);
    at = put(put_name(at, "fmt "), w->extensible ? 40 : 16, 4);
    at = put(put(put(at, w->extensible ? 0xfffe : w->tag, 2), w->channels, 2), w->rate, 4);
    at = put(put(put(at, w->rate * w->channels * sample, 4), w->channels * sample, 2), w->bits, 2);
    if (w->extensible) {
        at = put(put(put(put(at, 22, 2), w->bits, 2), 3, 4), w->tag, 2);
        at = (uint8_t *)memcpy(at, "\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71", 14) + 14;
    }
    at = put(put_name(at, "data"), w->from_pipe ? UINT32_MAX : data, 4);
    for (uint32_t i = 0; i < n * w->channels; i++)
        at = put(at, stored(w, x[i]), sample);
    return (size_t)(at - file) - w->cut;
}

static const int32_t numbers[] = {0, INT32_MAX, INT32_MIN, 1 << 24, -(1 << 24), 123456789, -5, 99};

/* What the file holds of a number. */
static double kept(const struct wav *w, int32_t x)
{
    return w->tag == 3 ? (double)(float)(x / 2147483648.0)
                       : (double)(x >> (32 - w->bits)) / (double)(1u << (w->bits - 1));
}

static void test_formats(void)
{
    static const struct wav all[] = {
        {1, 8, 1, 8000, false, false, 0},  {1, 16, 1, 16000, false, false, 0},
        {1, 24, 1, 44100, false, true, 0}, {1, 32, 1, 48000, true, false, 0},
        {3, 32, 1, 16000, true, true, 0},  {1, 16, 2, 16000, false, false, 0},
        {1, 24, 4, 96000, true, false, 0}, {3, 32, 2, 768000, false, false, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct wav *w = &all[i];
        struct spw_audio a;
        struct spw_error err = {0};
        uint8_t file[256];
        const uint32_t n = 8 / w->channels;
        const size_t bytes = write_wav(file, w, numbers, n);
        CHECK_MSG(spw_audio_read_wav(&a, file, bytes, "x", &err) == 0, "%zu: %s", i, err.text);
        CHECK(a.n == n && a.rate == w->rate);
        for (uint32_t f = 0; f < a.n; f++) {
            double mean = 0;
            for (uint32_t c = 0; c < w->channels; c++)
                mean += kept(w, numbers[f * w->channels + c]) / w->channels;
            CHECK_MSG(fabs((double)a.samples[f] - mean) < 1e-7, "%zu, frame %u: %g, not %g", i, f,
                      (double)a.samples[f], mean);
        }
        spw_audio_free(&a);
    }
}

static void test_refusals(void)
{
    static const struct {
        struct wav wav;
        uint32_t n;
        const char *text;
    } all[] = {
        {{1, 16, 1, 16000, false, false, 1},
         4,
         "found 7 bytes in the data chunk, its header says 8"},
        {{1, 16, 1, 16000, false, false, 0}, 0, "found no samples"},
        {{1, 12, 1, 16000, false, false, 0}, 4, "format 1 with 12 bits"},
        {{2, 16, 1, 16000, false, false, 0}, 4, "format 2 with 16 bits"},
        {{3, 16, 1, 16000, true, false, 0}, 4, "format 3 with 16 bits"},
        {{1, 16, 0, 16000, false, false, 0}, 4, "found 0 channels"},
        {{1, 16, 1, 999, false, false, 0}, 4, "of 999 samples a second"},
        {{1, 16, 1, 16000, false, false, 16}, 4, "found no samples, expected a data chunk"},
        {{1, 16, 1, 16000, false, false, 56}, 4, "found no header"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct spw_audio a;
        struct spw_error err = {0};
        uint8_t file[256];
        const size_t bytes = write_wav(file, &all[i].wav, numbers, all[i].n);
        CHECK(spw_audio_read_wav(&a, file, bytes, "x.wav", &err) == -EINVAL);
        CHECK_MSG(strstr(err.text, all[i].text), "%zu: %s", i, err.text);
        CHECK(!strncmp(err.text, "x.wav: ", 7) && !a.samples);
    }
    const float nan = NAN;
    struct wav w = {3, 32, 1, 16000, false, false, 0};
    struct spw_audio a;
    struct spw_error err = {0};
    uint8_t file[256];
    const size_t bytes = write_wav(file, &w, numbers, 2);
    memcpy(file + bytes - sizeof nan, &nan, sizeof nan);
    CHECK(spw_audio_read_wav(&a, file, bytes, "x", &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "sample 2 is not finite"), "%s", err.text);
}

/* ---- rates ---- */

/* The largest difference from a sine of the other rate, away from both ends. */
static double sine_error(uint32_t from, uint32_t to, double hertz, double expected)
{
    const size_t n = from / 5;
    struct spw_audio a = {spw_alloc(n * sizeof(float)), n, from};
    double most = 0;
    for (size_t i = 0; i < n; i++)
        a.samples[i] = (float)sin(2 * PI * hertz * (double)i / from);
    CHECK(spw_audio_resample(&a, to) == 0);
    CHECK(a.rate == to && a.n == (n * (size_t)to + from - 1) / from);
    for (size_t i = a.n / 8; i < a.n * 7 / 8; i++)
        most = fmax(most,
                    fabs((double)a.samples[i] - expected * sin(2 * PI * hertz * (double)i / to)));
    spw_audio_free(&a);
    return most;
}

static void test_rates(void)
{
    static const uint32_t rates[] = {8000, 11025, 16000, 22050, 44100, 48000, 96000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const double passed = sine_error(rates[i], 16000, 3000, 1);
        CHECK_MSG(passed < 1e-3, "%u: %g", rates[i], passed);
        const double stopped = rates[i] > 20000 ? sine_error(rates[i], 16000, 8800, 0) : 0;
        CHECK_MSG(stopped < 1e-3, "%u: %g stays of what 16 kHz cannot hold", rates[i], stopped);
    }
    struct spw_audio a = {spw_alloc(3 * sizeof(float)), 3, 44100};
    memcpy(a.samples, (float[]){1, 1, 1}, 3 * sizeof(float));
    spw_alloc_fail_nth(0);
    CHECK(spw_audio_resample(&a, 16000) == -ENOMEM && a.n == 3 && a.rate == 44100);
    spw_alloc_fail_nth(-1);
    CHECK(spw_audio_resample(&a, 16000) == 0 && a.n == 2);
    spw_audio_free(&a);
}

/* ---- the spectrogram ---- */

static void run_golden(const json_t *c, const struct spw_audio *clip)
{
    const char *file;
    int n_mels, n_samples, n_frames;
    const json_t *frames, *frame;
    size_t k, bytes;
    char path[128], *golden;
    CHECK(json_unpack((json_t *)c, "{s:s, s:i, s:i, s:i, s:o}", "file", &file, "n_mels", &n_mels,
                      "n_samples", &n_samples, "n_frames", &n_frames, "frames", &frames) == 0);
    snprintf(path, sizeof path, "tests/golden/audio/%s", file);
    CHECK(spw_file_read(path, 1 << 20, &golden, &bytes, NULL) == 0);
    CHECK(bytes == json_array_size(frames) * (size_t)n_mels * sizeof(float));

    const struct spw_mel_config config = {(uint32_t)n_mels, 16000, 400, 160, (uint32_t)n_frames};
    float *samples = spw_alloc((size_t)n_samples * sizeof *samples);
    float *out = spw_alloc((size_t)n_frames * (size_t)n_mels * sizeof *out);
    for (int i = 0; i < n_samples; i++)
        samples[i] = clip->samples[(size_t)i % clip->n];
    CHECK(spw_audio_log_mel(out, (size_t)n_frames, &config, samples, (size_t)n_samples) == 0);
    double most = 0;
    json_array_foreach(frames, k, frame) for (int m = 0; m < n_mels; m++)
    {
        const float *row = out + json_integer_value(frame) * n_mels;
        const float expected = ((float *)golden)[k * (size_t)n_mels + (size_t)m];
        most = fmax(most, fabs((double)(row[m] - expected)));
    }
    CHECK_MSG(most < 1e-4, "%s: %g", file, most);
    fprintf(stderr, "%s: at most %.2g\n", file, most);
    spw_free(samples);
    spw_free(out);
    spw_free(golden);
}

static void test_goldens(void)
{
    struct spw_audio clip;
    char *wav;
    size_t bytes, i;
    CHECK(spw_file_read("tests/golden/audio/clip.wav", 1 << 20, &wav, &bytes, NULL) == 0);
    CHECK(spw_audio_read_wav(&clip, wav, bytes, "clip.wav", NULL) == 0);
    json_t *cases = json_load_file("tests/golden/audio/golden.json", 0, NULL), *c;
    CHECK(json_array_size(cases) == 3);
    json_array_foreach(cases, i, c) run_golden(c, &clip);
    json_decref(cases);
    spw_audio_free(&clip);
    spw_free(wav);
}

int main(void)
{
    test_formats();
    test_refusals();
    test_rates();
    test_goldens();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
