/* The requests that transcribe the audio of a model for speech, each asked when the one before has
 * ended: one for the language, if nobody has said it, then one for each window. `generate` runs
 * them in a batch of its own, a job beside those of other items. */
#ifndef SPW_TOOLS_COMMAND_TRANSCRIBE_H
#define SPW_TOOLS_COMMAND_TRANSCRIBE_H

#include "tools/command/events.h"
#include "tools/command/input/speech.h"

/* Makes the next request of *r, which has what all of them have in common: it borrows from *s until
 * it has ended. */
void cli_speech_ask(struct cli_speech *s, struct spw_request *r);

/* Where text goes that no TEXT event has. */
struct cli_speech_text {
    const struct spw_tokenizer *tokenizer; /* NULL: nowhere */
    /* 0 or -errno */
    int (*print)(void *context, const char *text, size_t bytes);
    void *context;
};
/* Takes the answer to the request: the next one follows, unless cli_speech_ends. Without times, the
 * text has come in events; with times, it is printed here: as text, or a line for each part with
 * its begin and its end in seconds. Of an answer that was ended early, the tokens are kept. 0 or
 * -errno. */
int cli_speech_take(struct cli_speech *s, const struct spw_result *r,
                    const struct cli_speech_text *to);

/* What `generate` runs. */
struct cli_transcript {
    struct cli_batch *batch; /* its engine and events; on_event and context are set here */
    struct cli_speech *speech;
    struct spw_request request;  /* of each window, but for what cli_speech_ask sets */
    struct cli_speech_text text; /* its print also gets token ids, where there is no tokenizer */
    /* Results: the requests that it took, and the tokens of the last one. */
    uint64_t n_requests, n_made;
    struct spw_batch_times times;
    /* Owned, while it runs. One session for all requests: the first window is encoded once for the
     * language and for its answer, however short it is. */
    struct spw_session *session;
};
/* After a failure speech->answer has what was complete. */
int cli_transcribe(struct cli_transcript *t, struct spw_error *err);

#endif
