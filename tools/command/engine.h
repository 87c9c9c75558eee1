/* The engine of a command: its options, and opening it. */
#ifndef SPW_TOOLS_COMMAND_ENGINE_H
#define SPW_TOOLS_COMMAND_ENGINE_H

#include "tools/command/events.h"
#include "tools/command/limits.h"

/* Engine options from the command line, for `context` tokens. They borrow from `o`. */
struct spw_options cli_engine_options(const struct cli_options *o, uint64_t context,
                                      uint32_t sessions);
struct spw_sampling cli_sampling(const struct cli_options *o);
/* Opens the engine for the model o->operand, and prints its first events and notes: limits that are
 * not known, the device, a --kv-dtype that the model does not pass. 0, or an exit code after a line
 * on stderr. */
int cli_engine_open(struct spw_engine **out, struct cli_events *events, const struct cli_options *o,
                    const struct spw_options *options, const struct cli_limits *limits);

#endif
