/* Reads what a user types: edited lines with a history if stdin is a terminal, else plain lines. A
 * line that ends in a backslash is continued by the next line. Lines between two lines of """ are
 * one text, and so are the lines of a pasted text. The history stays in a file for later
 * conversations. Owns the terminal's settings while it reads. One thread. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_TERMINAL_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_TERMINAL_H

#include "tools/command/common.h"

struct cli_terminal;

/* `words` (borrowed; NULL ends the list): what the Tab key completes at the beginning of a line. 0
 * or an exit code. */
int cli_terminal_open(struct cli_terminal **out, const char *const *words);
void cli_terminal_close(struct cli_terminal *t);
/* Turns echo off while an answer is shown: keys typed meanwhile wait for the next prompt and are
 * not shown inside the answer. Ctrl-C works in both states. */
void cli_terminal_echo(const struct cli_terminal *t, bool on);
/* Whether stdin is a terminal. */
bool cli_terminal_edits(const struct cli_terminal *t);
/* Reads the next text, NUL-terminated, valid until the next call. `verbatim`: the text was between
 * two lines of """, or several lines were pasted. 1, 0 at the end of the input, or -errno. */
int cli_terminal_read(struct cli_terminal *t, char **text, size_t *bytes, bool *verbatim);

#endif
