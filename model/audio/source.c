/* What a model says of its audio, and the tokens that stand for audio in a sequence. Sessions
 * compare sequences by their tokens, so these tokens are made of a hash of the whole spectrogram.
 */
#include "model/audio/audio.h"

#include <xxhash.h>

struct spw_mel_config spw_audio_mel_config(const struct spw_model_config *c)
{
    return (struct spw_mel_config){.n_mels = c->n_mels,
                                   .rate = 16000,
                                   .n_fft = 400,
                                   .hop = 160,
                                   .window_frames = SPW_AUDIO_FRAMES * c->n_audio};
}

void spw_audio_source(int32_t *out, size_t n, uint32_t vocab, const float *mels, size_t n_numbers)
{
    const XXH128_hash_t all = XXH3_128bits(mels, n_numbers * sizeof *mels);
    for (size_t i = 0; i < n; i++) {
        const uint64_t from[] = {all.low64, all.high64, i};
        out[i] = spw_source_token((int32_t)(XXH3_64bits(from, sizeof from) % vocab));
    }
}
