/* Files that the command writes: --report, --dump-logits, --csv, /save.
 *
 * An output is written under another name in the same folder, mode 0600, and takes its own name
 * when it is whole. Until then, and after a failure, the file of that name stays what it was. No
 * output follows a symbolic link, replaces a file of another user, or replaces an input. Functions
 * that return int give 0 or an exit code, after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_OUTPUT_H
#define SPW_TOOLS_COMMAND_OUTPUT_OUTPUT_H

#include "tools/command/common.h"

/* Checks every output that the command line names, before any work is done. */
int cli_outputs_check(const struct cli_options *o);
/* Checks one output. Messages call the output `what` ("/save"). */
int cli_output_check(const struct cli_options *o, const char *what, const char *path);

struct cli_output;
int cli_output_open(struct cli_output **out, const char *path);
/* For the caller to write to and to seek in. */
FILE *cli_output_file(const struct cli_output *out);
/* The file takes its name. Frees `out` whatever comes of it. */
int cli_output_commit(struct cli_output *out);

/* A whole file. Takes the reference, also of NULL (out of memory). */
int cli_write_json(const char *path, json_t *value);

#endif
