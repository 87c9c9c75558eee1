/* `spillway inspect`: the cache of each layer, and why it was chosen. */
#ifndef SPW_TOOLS_COMMAND_INSPECT_INSPECT_CACHE_H
#define SPW_TOOLS_COMMAND_INSPECT_INSPECT_CACHE_H

#include "tools/command/common.h"

/* A new reference; NULL: out of memory. */
json_t *cli_cache_json(const struct spw_cache_policy *p, const struct spw_model_config *c);
void cli_cache_print(const struct spw_cache_policy *p, const struct spw_model_config *c);

#endif
