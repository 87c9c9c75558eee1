/* Which part of a job's items a process answers: --shard I/N. */
#ifndef SPW_TOOLS_COMMAND_JOB_SHARD_H
#define SPW_TOOLS_COMMAND_JOB_SHARD_H

#include "tools/command/request/request.h"

struct job_shard {
    uint64_t index, n; /* n 0: the whole job */
};
/* "0/4" to "3/4". False: the text is something else. */
bool job_shard_parse(const char *text, struct job_shard *out);
/* The shard of --shard; without the option the whole job. 0, or an exit code after a line on
 * stderr. */
int job_shard_check(const struct cli_options *o, struct job_shard *out);
/* A function of the item's id alone (of the number of its line, if it has none), so that all
 * processes agree. 1: the item is one of them; 0: it is not; -ENOMEM. */
int job_shard_has(const struct job_shard *s, const struct request *x);

#endif
