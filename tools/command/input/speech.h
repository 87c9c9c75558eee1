/* Audio for a model whose source is audio: the file of --input-file as a spectrogram, the window of
 * it that the encoder reads, and the tokens that the answer to a window begins with.
 *
 * A file up to the length of a window is one window, with silence behind it. Of a longer one the
 * windows follow each other: the answer to a window has times, and the next window begins where the
 * last complete part of the answer ends, as transformers does it. */
#ifndef SPW_TOOLS_COMMAND_INPUT_SPEECH_H
#define SPW_TOOLS_COMMAND_INPUT_SPEECH_H

#include "model/audio/audio.h"
#include "runtime/spillway.h"
#include "tools/command/common.h"

/* Seconds of a row of the spectrogram, and of a time of an answer: both are Whisper's. */
#define CLI_SPEECH_ROW_SECONDS 0.01
#define CLI_SPEECH_TIME_SECONDS 0.02

struct cli_speech {
    const struct spw_model_config *config; /* borrowed, while it is open */
    struct spw_mel_config mel;
    float *rows;           /* owned, [n_rows][n_mels]: the spectrogram of the file */
    uint64_t n_rows, seek; /* seek: the row at which the window begins */
    float *window;         /* owned, [mel.window_frames][n_mels] */
    int32_t *tokens;       /* owned: the source of the window, then the begin of the answer */
    size_t n_tokens;
    int32_t *language; /* in `tokens`, if nobody has said it; NULL: it is known */
    int32_t *others;   /* owned, [n_others]: the tokens of no language, while it is not known */
    size_t n_others;
    bool has_times, shows_times;
    /* Owned. Its tokens: those of all windows so far, one window after the other. Its other
     * members: those of the last window. */
    struct spw_result answer;
};

/* A file of audio, and the tokens that answers to it shall begin with; none: those of the model. */
struct cli_speech_file {
    const char *name; /* for messages */
    const void *data;
    size_t bytes;
    const int32_t *begin;
    size_t n_begin;
};
/* Keeps nothing of *f. -EINVAL: the file is not what spw_audio_read_wav reads; -ENOMEM. */
int cli_speech_open(struct cli_speech *s, const struct spw_model_config *c,
                    const struct cli_speech_file *f, struct spw_error *err);
void cli_speech_close(struct cli_speech *s);
/* Bytes of memory that the audio takes. */
uint64_t cli_speech_bytes(const struct cli_speech *s);
/* The window begins at s->seek. */
void cli_speech_begin_window(struct cli_speech *s);
/* Whether row s->seek is behind the last one. */
static inline bool cli_speech_ends(const struct cli_speech *s)
{
    return s->seek >= s->n_rows;
}
/* The token of the time 0; UINT64_MAX: the answer has no times. */
static inline uint64_t cli_speech_first_time(const struct cli_speech *s)
{
    return s->has_times ? (uint64_t)s->config->speech.no_timestamps + 1 : UINT64_MAX;
}
/* Of the n tokens of the answer to the window: how many stay. Moves s->seek to where the next
 * window begins. */
size_t cli_speech_end_window(struct cli_speech *s, const int32_t *tokens, size_t n);

#endif
