/* One line on stderr for what takes more than a second: how far, how fast, where the bytes are, how
 * long still. The line is rewritten in place and gone at the end. One at a time, one thread. */
#ifndef SPW_TOOLS_PROGRESS_H
#define SPW_TOOLS_PROGRESS_H

#include "tools/options.h"

/* `text_on_terminal`: generated text is shown where the line would stand, so that only prompts
 * get one. */
void cli_progress_start(enum cli_progress_mode mode, bool text_on_terminal);
/* Where to ask for the bytes; NULL before the engine is open. */
void cli_progress_engine(struct spw_engine *engine);
/* For spw_options.on_progress. */
void cli_progress_step(void *context, const struct spw_progress *p);
/* A token was generated, of at most `n_expected` in all. */
void cli_progress_token(uint64_t n_expected);
/* Takes the line away; it comes back with the next step. */
void cli_progress_clear(void);
void cli_progress_end(void);

#endif
