/* WAV files: a header, then chunks of a name, a size and as many bytes. Two chunks matter: "fmt "
 * says how samples are stored, "data" has them, frame after frame, a frame being a sample of each
 * channel. All numbers are little-endian. */
#include "model/audio/audio.h"

#include <math.h>
#include <string.h>

enum {
    HEADER_BYTES = 12,
    CHUNK_BYTES = 8,
    FORMAT_BYTES = 16,
    TAG_PCM = 1,
    TAG_FLOAT = 3,
    TAG_EXTENSIBLE = 0xfffe, /* the tag itself is 24 bytes behind the begin of "fmt " */
    TAG_AT_EXTENSIBLE = 24,
    LEAST_RATE = 1000,
    MOST_RATE = 768000,
};

struct format {
    uint32_t tag, channels, bits, rate;
};

/* Where the samples lie. */
struct frames {
    struct format format;
    const uint8_t *data;
    uint64_t bytes;
};

static uint32_t number(const uint8_t *at, int n_bytes)
{
    uint32_t x = 0;
    for (int i = 0; i < n_bytes; i++)
        x |= (uint32_t)at[i] << 8 * i;
    return x;
}

static int read_format(struct format *f, const uint8_t *at, uint64_t bytes, const char *name,
                       struct spw_error *err)
{
    if (bytes < FORMAT_BYTES)
        return spw_fail(err, -EINVAL, "%s: found a fmt chunk of %llu bytes, expected 16 or more",
                        name, (unsigned long long)bytes);
    *f = (struct format){number(at, 2), number(at + 2, 2), number(at + 14, 2), number(at + 4, 4)};
    if (f->tag == TAG_EXTENSIBLE && bytes >= TAG_AT_EXTENSIBLE + 2)
        f->tag = number(at + TAG_AT_EXTENSIBLE, 2);
    const bool pcm = f->tag == TAG_PCM && f->bits % 8 == 0 && f->bits >= 8 && f->bits <= 32;
    if (!pcm && !(f->tag == TAG_FLOAT && f->bits == 32))
        return spw_fail(err, -EINVAL,
                        "%s: found samples of format %u with %u bits, expected PCM (1) of 8, 16, "
                        "24 or 32 bits, or floats (3) of 32",
                        name, f->tag, f->bits);
    if (!f->channels || f->rate < LEAST_RATE || f->rate > MOST_RATE)
        return spw_fail(err, -EINVAL,
                        "%s: found %u channels of %u samples a second, expected at least one "
                        "channel, of %d to %d",
                        name, f->channels, f->rate, LEAST_RATE, MOST_RATE);
    return 0;
}

/* Finds both chunks. A size of UINT32_MAX in "data" is that of a file from a pipe, whose writer did
 * not know the end. */
static int find_frames(struct frames *out, const uint8_t *data, size_t bytes, const char *name,
                       struct spw_error *err)
{
    *out = (struct frames){0};
    if (bytes < HEADER_BYTES || memcmp(data, "RIFF", 4) || memcmp(data + 8, "WAVE", 4))
        return spw_fail(err, -EINVAL, "%s: found no header of a WAV file (RIFF, WAVE)", name);
    for (uint64_t at = HEADER_BYTES; at + CHUNK_BYTES <= bytes;) {
        const uint8_t *chunk = data + at;
        const uint64_t size = number(chunk + 4, 4), left = bytes - at - CHUNK_BYTES;
        const bool is_data = !memcmp(chunk, "data", 4), to_end = is_data && size == UINT32_MAX;
        if (size > left && !to_end)
            return spw_fail(err, -EINVAL,
                            "%s: found %llu bytes in %s chunk, its header says %llu: the "
                            "file is cut short",
                            name, (unsigned long long)left, is_data ? "the data" : "a",
                            (unsigned long long)size);
        if (!memcmp(chunk, "fmt ", 4))
            SPW_TRY(read_format(&out->format, chunk + CHUNK_BYTES, size, name, err));
        if (is_data && !out->format.bits)
            return spw_fail(err, -EINVAL, "%s: found samples before their format (fmt)", name);
        if (is_data) {
            out->data = chunk + CHUNK_BYTES;
            out->bytes = to_end ? left : size;
            return 0;
        }
        at += CHUNK_BYTES + size + size % 2;
    }
    return spw_fail(err, -EINVAL, "%s: found no samples, expected a data chunk", name);
}

static double sample(const struct format *f, const uint8_t *at)
{
    const uint32_t bits = number(at, (int)f->bits / 8);
    if (f->tag == TAG_FLOAT) {
        float x;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    if (f->bits == 8) /* unsigned, the others are signed */
        return ((double)bits - 128) / 128;
    return (double)(int32_t)(bits << (32 - f->bits)) / 2147483648.0;
}

void spw_audio_free(struct spw_audio *a)
{
    spw_free(a->samples);
    *a = (struct spw_audio){0};
}

int spw_audio_read_wav(struct spw_audio *out, const void *data, size_t bytes, const char *name,
                       struct spw_error *err)
{
    struct frames frames;
    *out = (struct spw_audio){0};
    SPW_TRY(find_frames(&frames, data, bytes, name, err));
    const struct format *f = &frames.format;
    const uint64_t sample_bytes = f->bits / 8, frame_bytes = sample_bytes * f->channels;
    out->n = frames.bytes / frame_bytes;
    out->rate = f->rate;
    if (!out->n)
        return spw_fail(err, -EINVAL, "%s: found no samples, expected at least one", name);
    out->samples = spw_alloc(out->n * sizeof *out->samples);
    if (!out->samples)
        return spw_fail(err, -ENOMEM, "%s: no memory for %zu samples", name, out->n);
    for (size_t i = 0; i < out->n; i++) {
        double sum = 0;
        for (uint32_t c = 0; c < f->channels; c++)
            sum += sample(f, frames.data + i * frame_bytes + c * sample_bytes);
        out->samples[i] = (float)(sum / f->channels);
        if (!isfinite(out->samples[i])) {
            spw_audio_free(out);
            return spw_fail(err, -EINVAL, "%s: sample %zu is not finite (NaN or infinity)", name,
                            i + 1);
        }
    }
    return 0;
}
