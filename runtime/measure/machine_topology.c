/* The machine as `inspect --topology` shows it: processors that a run may use, free memory, and
 * where a device would place its threads. */
#include "offload/device/placement.h"
#include "offload/device/topology.h"
#include "runtime/engine/memory.h"
#include "runtime/measure/machine.h"

#include <stdio.h>
#include <unistd.h>

static void add_role(struct spw_role_info *out, const struct spw_placement *p, enum spw_role role)
{
    const struct spw_places *r = &p->role[role];
    *out = (struct spw_role_info){.n_threads = r->n_threads, .bound = r->bound};
    if (r->bound)
        spw_topology_list(p->topology, p->cores + r->first, r->n_cores, out->threads,
                          sizeof out->threads);
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

static int add_processors(struct spw_topology_info *out, struct spw_error *err)
{
    struct spw_topology *t;
    SPW_TRY(spw_topology_open(&t, NULL, err));
    out->n_cores = spw_topology_cores(t);
    out->n_threads = spw_topology_threads(t);
    out->n_nodes = spw_topology_nodes(t);
    spw_topology_list(t, NULL, 0, out->usable, sizeof out->usable);
    spw_topology_close(t);
    return 0;
}

int spw_machine_topology(struct spw_topology_info *out, const struct spw_options *o,
                         struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_backend b;
    struct spw_lane lane;
    *out = (struct spw_topology_info){.quota = spw_topology_quota(),
                                      .memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                                                      (uint64_t)sysconf(_SC_PAGESIZE),
                                      .available_bytes = spw_memory_available()};
    spw_machine_cpu_name(out->cpu, sizeof out->cpu);
    SPW_TRY(add_processors(out, err));
    SPW_TRY(spw_engine_choose_device(&b, &lane, o, UINT64_MAX, UINT64_MAX, err));
    add_places(out, &b, &lane);
    lane.ops->close(lane.device);
    return 0;
}
