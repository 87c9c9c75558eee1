/* Files that the command writes: --report, --dump-logits, --expert-trace, /save.
 *
 * An output is written to a temporary file in the same folder, mode 0600, and gets its own name
 * when it is complete. Until then, and after a failure, an old file of that name stays unchanged.
 * No output follows a symbolic link, replaces a file of another user, or replaces an input.
 * Functions that return int return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_OUTPUT_H
#define SPW_TOOLS_COMMAND_OUTPUT_OUTPUT_H

#include "tools/command/common.h"

/* Checks every output that the command line names, before any work is done. */
int cli_outputs_check(const struct cli_options *o);
/* Checks one output. Messages call the output `what` ("/save"). */
int cli_output_check(const struct cli_options *o, const char *what, const char *path);

struct cli_output;
/* `is_alone`: no other process writes this output, so the temporary file always has the same name,
 * and replaces the one that a killed process has left. */
int cli_output_open(struct cli_output **out, const char *path, bool is_alone);
/* The caller may write to the stream and seek in it. */
FILE *cli_output_file(const struct cli_output *out);
/* The name until the commit, for a function that opens the file itself. */
const char *cli_output_name(const struct cli_output *out);
/* Gives the file its name. Frees `out` also after a failure. */
int cli_output_commit(struct cli_output *out);
/* Removes what was written, and frees `out`. */
void cli_output_cancel(struct cli_output *out);

/* Writes a whole file. Takes the reference of `value`; NULL means out of memory. */
int cli_write_json(const char *path, json_t *value);

#endif
