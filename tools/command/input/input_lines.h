/* Prompts as JSON lines, for input.c: one object a line, with "prompt" (text) or "tokens" (ids)
 * and, optionally, with its own options of generation. Errors name the file, the line and the key.
 */
#ifndef SPW_TOOLS_COMMAND_INPUT_INPUT_LINES_H
#define SPW_TOOLS_COMMAND_INPUT_INPUT_LINES_H

#include "tools/command/input/input.h"

/* An input without tokens, with the options of the command line. Its stop strings are borrowed. */
struct cli_input cli_input_defaults(const struct cli_options *o);
int cli_read_lines(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m);

#endif
