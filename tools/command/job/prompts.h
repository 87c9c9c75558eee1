/* The model of a job, and the lines of --prompts, for a plan of the run that answers them. */
#ifndef SPW_TOOLS_COMMAND_JOB_PROMPTS_H
#define SPW_TOOLS_COMMAND_JOB_PROMPTS_H

#include "tools/command/input/input.h"

/* cli_model_open, with the tokenizer if the model has one; a note says if it has none. */
int job_model_open(struct cli_model *m, const char *path);
/* One input for each answer of each line of o->prompts. A line that `generate` could not answer is
 * left out with a message; without any other line: CLI_REFUSED. */
int job_read_prompts(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m);

#endif
