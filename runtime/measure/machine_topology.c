/* The machine as `inspect --topology` shows it: what hwloc says, free memory, and where a device
 * would place its threads. */
#include "offload/device/placement.h"
#include "offload/device/topology.h"
#include "runtime/measure/machine.h"
#include "runtime/engine/memory.h"

#include <stdio.h>

static void add_role(struct spw_role_info *out, const struct spw_placement *p, enum spw_role role)
{
    const struct spw_places *r = &p->role[role];
    *out = (struct spw_role_info){.n_threads = r->n_threads, .bound = r->bound};
    if (r->bound)
        spw_topology_list(p->topology, p->cores + r->first, r->n_cores, out->threads.text,
                          sizeof out->threads.text);
}

static void add_places(struct spw_topology_info *out, const struct spw_backend *b,
                       const struct spw_lane *lane)
{
    const struct spw_placement *p = lane->ops->placement(lane->device);
    snprintf(out->backend, sizeof out->backend, "%s", b->name);
    snprintf(out->why, sizeof out->why, "%s", p->why);
    add_role(&out->compute, p, SPW_ROLE_COMPUTE);
    add_role(&out->transfer, p, SPW_ROLE_TRANSFER);
    add_role(&out->io, p, SPW_ROLE_IO);
}

int spw_machine_topology(struct spw_topology_info *out, const struct spw_options *o,
                         struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_backend b;
    struct spw_lane lane;
    SPW_TRY(spw_topology_describe(out, err));
    out->available_bytes = spw_memory_available();
    int rc = spw_engine_choose_device(&b, &lane, o, UINT64_MAX, UINT64_MAX, err);
    if (rc) {
        spw_topology_info_free(out);
        return rc;
    }
    add_places(out, &b, &lane);
    lane.ops->close(lane.device);
    return 0;
}
