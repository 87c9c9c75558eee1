/* What other subcommands say of a format that was checked. */
#ifndef SPW_TOOLS_CHECK_KV_H
#define SPW_TOOLS_CHECK_KV_H

#include "tools/common.h"

/* One line on stderr where --kv-dtype asks for a format that this model is known not to pass.
 * Measures nothing; --kv-gate off keeps it silent. */
void cli_check_kv_warn(const struct cli_options *o, const struct spw_options *options);

#endif
