/* The routing of mixtures of experts: counts of earlier runs, and traces. */
#ifndef SPW_TOOLS_COMMAND_EXPERTS_H
#define SPW_TOOLS_COMMAND_EXPERTS_H

#include "runtime/experts.h"
#include "tools/command/common.h"

/* The counts of the model o->operand in --expert-profile; NULL: there are none. A profile that is
 * damaged counts as empty, and a note says so. The caller frees them. */
struct spw_expert_counts *cli_experts_counts(const struct cli_options *o);
/* Closes the engine, and adds its counts to the profile before. NULL is fine. */
void cli_experts_close(struct spw_engine *e, const struct cli_options *o);
/* Reads --expert-trace. NULL after a line on stderr; *code is the exit code then. */
struct spw_expert_trace *cli_experts_trace(const struct cli_options *o, int *code);
/* NULL when out of memory. */
json_t *cli_experts_bytes_json(const struct spw_expert_bytes *b);
json_t *cli_experts_replay_json(const struct spw_expert_replay *r);

#endif
