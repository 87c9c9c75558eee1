/* One line on stderr for what takes more than a second: how far, how fast, where the bytes are, how
 * long still. The line is rewritten in place and gone at the end. One at a time, one thread. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H
#define SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H

#include "tools/command/options/options.h"

/* `text_on_terminal`: generated text is shown where the line would stand, so that only prompts
 * get one. */
void cli_progress_start(enum cli_progress_mode mode, bool text_on_terminal);
/* The engine is open, or closed (NULL): where to ask for the bytes. The first step follows. */
void cli_progress_engine(struct spw_engine *engine);
/* For spw_options.on_progress: NULL when no line is wanted, for then nothing has to be waited for.
 */
typedef void cli_progress_function(void *context, const struct spw_progress *p);
cli_progress_function *cli_progress_callback(void);
/* A token was generated, of at most `n_expected` in all. */
void cli_progress_token(uint64_t n_expected);
/* Of a batch: how many of `n_asked` requests have ended. */
void cli_progress_answers(uint64_t n_answers, uint64_t n_asked);
/* Takes the line away; it comes back with the next step. */
void cli_progress_clear(void);
void cli_progress_end(void);

#endif
