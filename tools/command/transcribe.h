/* `generate` with a model for speech: the windows of the audio are answered one after the other, in
 * one batch. */
#ifndef SPW_TOOLS_COMMAND_TRANSCRIBE_H
#define SPW_TOOLS_COMMAND_TRANSCRIBE_H

#include "tools/command/events.h"
#include "tools/command/input/speech.h"

struct cli_transcript {
    struct cli_batch *batch; /* its engine and events; on_event and context are set here */
    const struct spw_tokenizer *tokenizer; /* NULL: the text is token ids */
    struct cli_speech *speech;
    struct spw_request request; /* of each window, but for its prompt and audio */
    /* Writes text, or ids. 0 or -errno. */
    int (*print)(void *context, const char *text, size_t bytes);
    void *context;
    /* Results: the answers, one after the other; the requests that they took. */
    struct spw_result all;       /* owned */
    uint64_t n_requests, n_made; /* n_made: tokens of the last one */
    struct spw_batch_times times;
    /* Owned, while it runs. One session for all requests: the first window is encoded once for the
     * language and for its answer. */
    struct spw_session *session;
    size_t n_printed; /* ids */
};

/* Hears the language, if nobody has said it, and then the windows. Without times, text is printed
 * as it comes; with times, when a window is complete: as text, or a line for each part with its
 * begin and its end in seconds. After a failure *t has what was complete. */
int cli_transcribe(struct cli_transcript *t, struct spw_error *err);

#endif
