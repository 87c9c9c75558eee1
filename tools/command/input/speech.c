/* Audio: see speech.h. */
#include "tools/command/input/speech.h"

#include <string.h>

static int read_audio(struct spw_audio *out, const struct cli_speech_file *f, uint32_t rate,
                      struct spw_error *err)
{
    SPW_TRY(spw_audio_read_wav(out, f->data, f->bytes, f->name, err));
    const int rc = spw_audio_resample(out, rate);
    if (rc)
        spw_audio_free(out);
    return rc;
}

/* One window, or all rows of the samples. */
static int make_rows(struct cli_speech *s, const struct spw_audio *a)
{
    const uint64_t n_mels = s->mel.n_mels, most = (uint64_t)s->mel.window_frames * s->mel.hop;
    s->n_rows = a->n > most ? a->n / s->mel.hop : s->mel.window_frames;
    s->rows = spw_alloc_zero(s->n_rows, n_mels * sizeof *s->rows);
    s->window = spw_alloc_zero(s->mel.window_frames, n_mels * sizeof *s->window);
    return s->rows && s->window ? spw_audio_log_mel(s->rows, s->n_rows, &s->mel, a->samples, a->n)
                                : -ENOMEM;
}

/* What the answer begins with: the tokens of the user, or else those of the model's files, and the
 * token that says that there are no times. The first token comes before all. */
static int add_begin(struct cli_speech *s, const int32_t *prompt, size_t n_prompt)
{
    const struct spw_speech_config *c = &s->config->speech;
    int32_t *to = s->tokens =
        spw_alloc((s->config->n_audio + n_prompt + SPW_SPEECH_MOST_START + 2) * sizeof *to);
    const bool is_long = s->n_rows > s->mel.window_frames;
    const int32_t *from = n_prompt ? prompt : c->start;
    const size_t n = n_prompt ? n_prompt : c->n_start;
    if (!to)
        return -ENOMEM;
    to += s->config->n_audio;
    if (!n || from[0] != s->config->start)
        *to++ = s->config->start;
    for (size_t i = 0; i < n; i++, to++) {
        const bool is_unknown = from[i] < 0; /* a place for it, until it is known */
        s->language = is_unknown ? to : s->language;
        *to = is_unknown ? c->languages[0] : from[i];
    }
    const bool has_none = to[-1] == c->no_timestamps;
    s->shows_times = n_prompt && !has_none && c->no_timestamps >= 0;
    s->has_times = s->shows_times || (is_long && !n_prompt && c->no_timestamps >= 0);
    if (s->has_times && has_none)
        to--;
    else if (!s->has_times && !has_none && c->no_timestamps >= 0)
        *to++ = c->no_timestamps;
    s->n_tokens = (size_t)(to - s->tokens);
    return 0;
}

static int list_others(struct cli_speech *s)
{
    const struct spw_speech_config *c = &s->config->speech;
    s->others = s->language ? spw_alloc(s->config->vocab * sizeof *s->others) : NULL;
    if (s->language && !s->others)
        return -ENOMEM;
    for (int32_t id = 0; s->others && id < (int32_t)s->config->vocab; id++) {
        uint32_t k = 0;
        while (k < c->n_languages && c->languages[k] != id)
            k++;
        s->others[s->n_others] = id;
        s->n_others += k == c->n_languages;
    }
    return 0;
}

int cli_speech_open(struct cli_speech *s, const struct spw_model_config *c,
                    const struct cli_speech_file *f, struct spw_error *err)
{
    struct spw_audio audio = {0};
    *s = (struct cli_speech){
        .config = c, .mel = spw_audio_mel_config(c), .answer = {.finish = SPW_FINISH_FAILED}};
    int rc = read_audio(&audio, f, s->mel.rate, err);
    rc = rc ? rc : make_rows(s, &audio);
    spw_audio_free(&audio);
    rc = rc ? rc : add_begin(s, f->begin, f->n_begin);
    rc = rc ? rc : list_others(s);
    if (!rc)
        cli_speech_begin_window(s);
    else
        cli_speech_close(s);
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: no memory for its audio", f->name) : rc;
}

void cli_speech_close(struct cli_speech *s)
{
    spw_result_free(&s->answer);
    spw_free(s->rows);
    spw_free(s->window);
    spw_free(s->tokens);
    spw_free(s->others);
    *s = (struct cli_speech){0};
}

uint64_t cli_speech_bytes(const struct cli_speech *s)
{
    return (s->n_rows + s->mel.window_frames) * s->mel.n_mels * sizeof *s->rows;
}

void cli_speech_begin_window(struct cli_speech *s)
{
    const size_t row = s->mel.n_mels, all = s->mel.window_frames * row;
    const size_t n = spw_min_u64(s->n_rows - s->seek, s->mel.window_frames) * row;
    memcpy(s->window, s->rows + s->seek * row, n * sizeof *s->window);
    memset(s->window + n, 0, (all - n) * sizeof *s->window);
    spw_audio_source(s->tokens, s->config->n_audio, s->config->vocab, s->window, all);
}

/* Parts of an answer stand between times, so two times that follow each other end a part. What
 * follows the last two of these is an unfinished part, and is heard again in the next window;
 * unless a single time follows the last text: then the speech ends there. */
size_t cli_speech_end_window(struct cli_speech *s, const int32_t *tokens, size_t n)
{
    const uint64_t first = cli_speech_first_time(s);
    const uint64_t rows = spw_min_u64(s->n_rows - s->seek, s->mel.window_frames);
    size_t end = n;
    while (end > 1 && ((uint64_t)tokens[end - 1] < first || (uint64_t)tokens[end - 2] < first))
        end--;
    const bool ends = n > 1 && (uint64_t)tokens[n - 1] >= first && (uint64_t)tokens[n - 2] < first;
    const uint64_t at =
        end > 1 && !ends ? ((uint64_t)tokens[end - 2] - first) * SPW_AUDIO_FRAMES : 0;
    s->seek += at ? at : rows;
    return at ? end : n;
}
