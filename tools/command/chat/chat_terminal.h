/* What a user types: edited lines with a history where stdin is a terminal, else plain lines. A
 * line that ends in a backslash goes on in the next one, and lines between two lines of """ are one
 * text as they stand. Owns the terminal's settings while it reads. One thread. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_TERMINAL_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_TERMINAL_H

#include "tools/command/common.h"

struct cli_terminal;

/* 0 or an exit code. */
int cli_terminal_open(struct cli_terminal **out);
void cli_terminal_close(struct cli_terminal *t);
/* Off while an answer is shown: keys that are typed meanwhile wait for the next prompt instead of
 * standing inside the answer. Ctrl-C works either way. */
void cli_terminal_echo(const struct cli_terminal *t, bool on);
/* Whether somebody sits there. */
bool cli_terminal_edits(const struct cli_terminal *t);
/* The next text, NUL-terminated, valid until the next call; `verbatim`: it stood between """. 1, 0
 * at the end of the input, or -errno. */
int cli_terminal_read(struct cli_terminal *t, char **text, size_t *bytes, bool *verbatim);

#endif
