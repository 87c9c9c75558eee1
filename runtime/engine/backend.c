/* Checks that a backend has all operations: see backend.h. */
#include "runtime/engine/backend.h"

static bool ops_complete(const struct spw_ops *o)
{
    return o->norm && o->linear && o->gated_linear && o->gated && o->rope_append &&
           o->kv_quantize && o->attention && o->softcap && o->each && o->route && o->gather &&
           o->combine && o->attention_tiles;
}

int spw_backend_check(const struct spw_backend *b, struct spw_error *err)
{
    bool in_place = !b->reads_host_memory || (b->device_ops && b->device_ops->charge);
    if (b->device_ops && b->ops && b->linear_workspace && b->embed && in_place &&
        ops_complete(b->ops))
        return 0;
    return spw_fail(err, -EINVAL,
                    "backend %s: an operation is missing from its table; build spillway again, or "
                    "use options.backend cpu",
                    b->name);
}
