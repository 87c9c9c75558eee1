/* What a model for speech reads: the samples of a WAV file (wav.c), at the rate of the model
 * (resample.c), as rows of a log-mel spectrogram (log_mel.c).
 *
 * Every function is pure and runs on one thread: equal input gives equal bits. Errors are 0 or
 * -errno; those of files name what was found and what was expected. Any thread. */
#ifndef SPW_MODEL_AUDIO_AUDIO_H
#define SPW_MODEL_AUDIO_AUDIO_H

#include "base/base.h"
#include "model/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* One channel. */
struct spw_audio {
    float *samples; /* owned, [n], from -1 to 1 where the file has integers */
    size_t n;
    uint32_t rate; /* samples of a second */
};

/* Reads the bytes of a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 bits. Several
 * channels become their mean. `name` is for messages. -EINVAL: not such a file, a file that is cut
 * short, or one without samples. After a failure there is nothing to free. */
int spw_audio_read_wav(struct spw_audio *out, const void *data, size_t bytes, const char *name,
                       struct spw_error *err);
/* Changes the rate. After -ENOMEM the audio is as before. */
int spw_audio_resample(struct spw_audio *a, uint32_t rate);
void spw_audio_free(struct spw_audio *a);

/* How the spectrogram is made. */
struct spw_mel_config {
    uint32_t n_mels;        /* numbers of a row */
    uint32_t rate;          /* of the samples */
    uint32_t n_fft;         /* samples that a row is made of; even */
    uint32_t hop;           /* samples from a row to the next */
    uint32_t window_frames; /* rows that the model reads at a time */
};

/* The rows [0, n_frames) of the samples. Fewer than n_frames * hop samples are followed by zeros;
 * of more the last row may read some, and behind the last one, as before the first one, samples are
 * mirrored. out: [n_frames][n_mels]. n_frames * hop must be more than n_fft / 2. -ENOMEM. */
int spw_audio_log_mel(float *out, size_t n_frames, const struct spw_mel_config *c,
                      const float *samples, size_t n);

/* That of a model whose source is audio: all such models have the rate, n_fft and hop of Whisper.
 */
struct spw_mel_config spw_audio_mel_config(const struct spw_model_config *c);
/* The tokens of a source that is audio: n numbers below zero for the n_numbers of its spectrogram.
 * Equal ones have equal spectrograms, but for one in 2^128. */
void spw_audio_source(int32_t *out, size_t n, uint32_t vocab, const float *mels, size_t n_numbers);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
