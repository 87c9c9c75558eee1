/* One line on stderr for work that takes more than a second: progress, speed, bytes in use,
 * remaining time. The line is rewritten in place and removed at the end. One line a process, used
 * by one thread. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H
#define SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H

#include "tools/command/events.h"

/* `text_on_terminal`: generated text goes to the same terminal, so only prompts show a line. */
void cli_progress_start(enum cli_progress_mode mode, bool text_on_terminal);
/* Call it after the engine was opened, and with NULL before the engine is closed: the line shows
 * the engine's bytes in use. During a long step it also prints `events`. */
void cli_progress_engine(struct spw_engine *engine, struct cli_events *events);
/* For spw_options.on_progress; NULL if no line is wanted: then the engine need not wait for it. */
typedef void cli_progress_function(void *context, const struct spw_progress *p);
cli_progress_function *cli_progress_callback(void);
/* Counts a generated token; at most `n_expected` will come. `is_hidden`: it is reasoning that is
 * not shown, so the line is drawn also where the text goes to the terminal. */
void cli_progress_token(uint64_t n_expected, bool is_hidden);
/* For a line of another kind: whether it is time to draw; the columns that the line may use; draws
 * the text, cut to these columns. */
bool cli_progress_due(void);
int cli_progress_columns(void);
void cli_progress_draw(const char *text);
/* Removes the line until the next step draws it. */
void cli_progress_clear(void);
void cli_progress_end(void);

#endif
