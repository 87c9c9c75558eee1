/* Runs of `generate` in files: --save, --save-every, --resume. The tokens and the cache are the
 * library's (spw_session_save); the state beside them says, as JSON, how the run goes on: its
 * options, and how much text it printed. */
#ifndef SPW_TOOLS_COMMAND_INPUT_SAVED_H
#define SPW_TOOLS_COMMAND_INPUT_SAVED_H

#include "tools/command/input/input.h"

/* A run as it was saved. All zero: there is none. */
struct cli_saved {
    struct spw_saved *file; /* owned */
    json_t *state;          /* owned */
    int32_t *tokens;        /* owned, [n_prompt + n_given]: prompt and answer */
    const char **stop;      /* owned; texts are the state's */
    size_t n_prompt, n_given;
    uint64_t n_text; /* bytes of the answer that it printed */
};

/* Refuses what stands beside --save and --resume and cannot. */
int cli_saved_check(const struct cli_options *o);
/* Opens --resume, and sets the options that decide about the answer to those of the saved run; one
 * that was given and is another is refused. */
int cli_saved_open(struct cli_saved *s, struct cli_options *o);
void cli_saved_close(struct cli_saved *s);
/* The one input that the run had. */
int cli_saved_input(const struct cli_saved *s, struct cli_inputs *in, const struct cli_options *o,
                    const struct cli_model *m);

/* Holds --save for the session, before anything is computed: refused where another process has it,
 * or another run is in it. `in`: the run's input. */
int cli_saved_hold(struct spw_session *session, const struct spw_engine *e,
                   const struct cli_options *o, const struct cli_input *in);

/* How far a run is. */
struct cli_progress_made {
    const int32_t *prompt;
    size_t n_prompt;
    const struct spw_result *result;
    uint64_t n_text;
};
/* To --save. A line on stderr and an exit code after a failure. */
int cli_saved_write(struct spw_session *session, const struct cli_options *o,
                    const struct cli_progress_made *made, uint64_t *written_bytes);

#endif
