/* Checks of quantized KV for the other subcommands. */
#ifndef SPW_TOOLS_COMMAND_CHECK_KV_H
#define SPW_TOOLS_COMMAND_CHECK_KV_H

#include "tools/command/common.h"

/* Prints a line on stderr if --kv-dtype names a format that this model is known not to pass.
 * Measures nothing. Silent with --kv-gate off. */
void cli_check_kv_warn(const struct cli_options *o, const struct spw_options *options);

/* spw_options.gate of every subcommand; its context is cli_options. Runs a check whose result is
 * not known, except for subcommands that load no model, and reports the result on stderr. With
 * --kv-gate off every format passes. */
const char *cli_check_kv_gate(void *context, enum spw_kv_precision precision);

#endif
