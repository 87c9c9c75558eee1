/* `spillway batch --status OUTPUT...`: how far a job is, over all of its shards. */
#ifndef SPW_TOOLS_COMMAND_JOB_STATUS_H
#define SPW_TOOLS_COMMAND_JOB_STATUS_H

#include "tools/command/common.h"

/* The outputs are the operands. 0: every item has an answer; CLI_FAILED: some have none. */
int job_status(const struct cli_options *o);

#endif
