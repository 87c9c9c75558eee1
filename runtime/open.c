/* Opens an engine with the parts that stand above it: see spillway.h and engine/engine.h. */
#include "runtime/persist/prefix.h"

int spw_engine_open(struct spw_engine **out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err)
{
    return spw_engine_open_with(out, &spw_prefix_hooks, model_dir, o, err);
}
