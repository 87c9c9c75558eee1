/* What every run of one job has in common: the model, and the options that decide which token comes
 * next. Stored in the state of the job; a run with another identity is refused. */
#ifndef SPW_TOOLS_COMMAND_JOB_IDENTITY_H
#define SPW_TOOLS_COMMAND_JOB_IDENTITY_H

#include "tools/command/input/input.h"

/* {"the command": o->command->name, "the model": its fingerprint, "the tokenizer": a digest,
 * "--temperature": 0, ...}. `shard` is part of it. Fails with an exit code after one line on
 * stderr. */
int job_identity(json_t **out, const struct cli_options *o, const struct cli_model *model);

#endif
