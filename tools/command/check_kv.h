/* What other subcommands do with checks of quantized KV. */
#ifndef SPW_TOOLS_COMMAND_CHECK_KV_H
#define SPW_TOOLS_COMMAND_CHECK_KV_H

#include "tools/command/common.h"

/* One line on stderr where --kv-dtype asks for a format that this model is known not to pass.
 * Measures nothing; --kv-gate off keeps it silent. */
void cli_check_kv_warn(const struct cli_options *o, const struct spw_options *options);

/* spw_options.gate of every subcommand; the context is its cli_options. Checks what is not known
 * yet, except for subcommands that load no model, and says on stderr what came of it. --kv-gate off
 * lets everything pass. */
bool cli_check_kv_gate(void *context, enum spw_kv_precision precision);

#endif
