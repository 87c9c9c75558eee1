/* What the first layer of an encoder of audio reads (spw_forward_audio of model/forward.h): for
 * each token of the source the rows of the spectrogram around it, as the two convolutions need
 * them.
 *
 * Token p is what the second convolution makes of frames 2 p - 1, 2 p and 2 p + 1 of the first one,
 * and frame f is what the first one makes of rows f - 1, f and f + 1 of the spectrogram. So a token
 * has nine rows, some of them twice, and depends on no other token of its call. Outside of the
 * spectrogram there are zeros. */
#include "base/numbers.h"
#include "model/weights/weights_parts.h"
#include "quant/types.h"

#include <string.h>

/* n numbers of the compute type. */
static void store(const float *from, size_t n, enum spw_dtype type, uint8_t *to)
{
    if (type == SPW_DTYPE_F32)
        memcpy(to, from, n * sizeof *from);
    for (size_t i = 0; type != SPW_DTYPE_F32 && i < n; i++)
        ((uint16_t *)(void *)to)[i] = spw_f32_to_bf16(from[i]);
}

void spw_audio_embed(const struct spw_weights *w, const struct spw_embed_args *a)
{
    enum { TAPS = SPW_CONV_TAPS };
    const struct spw_model_config *c = w->config;
    const int64_t n_frames = SPW_AUDIO_FRAMES * (int64_t)c->n_audio;
    const uint64_t bytes = spw_row_bytes(a->compute, c->n_mels);
    uint8_t *to = a->inputs;
    for (uint64_t p = a->position; p < a->position + a->n; p++)
        for (int64_t i = 0; i < TAPS * TAPS; i++, to += bytes) {
            const int64_t frame = SPW_AUDIO_FRAMES * (int64_t)p + i / TAPS + i % TAPS - 2;
            if (frame >= 0 && frame < n_frames)
                store(a->audio + (uint64_t)frame * c->n_mels, c->n_mels, a->compute, to);
            else
                memset(to, 0, bytes);
        }
    memset(a->rows, 0, a->n * spw_row_bytes(a->compute, c->hidden));
    spw_positions_add(w, a);
}
