/* Parts of jobs: the identity of a job, its shards, its model and prompts, its status. Functions
 * that return an int return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_JOB_JOB_H
#define SPW_TOOLS_COMMAND_JOB_JOB_H

#include "tools/command/request/request.h"

/* What every run of one job has in common: the model, and the options that decide which token comes
 * next. Stored in the state of the job; a run with another identity is refused.
 * {"the command": o->command->name, "the model": its fingerprint, "the tokenizer": a digest,
 * "--temperature": 0, ..., "the token rules": a digest}. `shard` is part of it. */
int job_identity(json_t **out, const struct cli_options *o, const struct cli_model *model);

/* Which part of a job's items a process answers: --shard I/N. */
struct job_shard {
    uint64_t index, n; /* n 0: the whole job */
};
/* "0/4" to "3/4". False: the text is something else. */
bool job_shard_parse(const char *text, struct job_shard *out);
/* The shard of --shard; without the option the whole job. */
int job_shard_check(const struct cli_options *o, struct job_shard *out);
/* A function of the item's id alone (of the number of its line, if it has none), so that all
 * processes agree. 1: the item is one of them; 0: it is not; -ENOMEM. */
int job_shard_has(const struct job_shard *s, const struct request *x);

/* cli_model_open, with the tokenizer if the model has one; a note says if it has none. */
int job_model_open(struct cli_model *m, const char *path);
/* One input for each answer of each line of o->prompts. A line that `generate` could not answer is
 * left out with a message; without any other line: CLI_REFUSED. */
int job_read_prompts(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m);

/* `spillway batch --status OUTPUT...`: how far a job is, over all of its shards. The outputs are
 * the operands. 0: every item has an answer; CLI_FAILED: some have none. */
int job_status(const struct cli_options *o);

#endif
