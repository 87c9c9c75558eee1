/* Saved runs of `generate`: --save, --save-every, --resume. The library saves the tokens and the
 * cache (spw_session_save). Beside them lies a JSON state of the command: the options of the run,
 * and how much text it printed. */
#ifndef SPW_TOOLS_COMMAND_INPUT_SAVED_H
#define SPW_TOOLS_COMMAND_INPUT_SAVED_H

#include "runtime/saved.h"
#include "tools/command/input/input.h"

/* A saved run. All zero: there is none. */
struct cli_saved {
    struct spw_saved *file; /* owned */
    json_t *state;          /* owned */
    int32_t *tokens;        /* owned, [n_prompt + n_given]: the prompt and the answer so far */
    const char **stop;      /* owned; the texts belong to the state */
    struct spw_logit_bias *biases; /* owned */
    size_t n_prompt, n_given;
    uint64_t n_text;      /* bytes of the answer that the run printed */
    uint64_t logits_hash; /* of the answer so far */
};

/* Refuses options that cannot be combined with --save or --resume. */
int cli_saved_check(const struct cli_options *o);
/* Opens the file of --resume. Options that decide about the answer get the values of the saved run;
 * an option that was given with another value is refused. */
int cli_saved_open(struct cli_saved *s, struct cli_options *o);
void cli_saved_close(struct cli_saved *s);
/* The input of the saved run. */
int cli_saved_input(const struct cli_saved *s, struct cli_inputs *in, const struct cli_options *o,
                    const struct cli_model *m);

/* Opens the file of --save for the session, before anything is computed. Refuses a file that
 * another process uses or that has another run. `in` is the input of the run. */
int cli_saved_open_file(struct spw_session *session, const struct spw_engine *e,
                        const struct cli_options *o, const struct cli_input *in);

/* The progress of a run. */
struct cli_progress_made {
    const int32_t *prompt;
    size_t n_prompt;
    uint64_t max_new_tokens;
    const struct spw_result *result;
    uint64_t n_text;
};
/* Saves the run to --save. After a failure: a line on stderr and an exit code. */
int cli_saved_write(struct spw_session *session, const struct cli_options *o,
                    const struct cli_progress_made *made, uint64_t *written_bytes);

#endif
