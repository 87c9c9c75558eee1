/* Processors through hwloc: see topology.h. */
#include "offload/topology.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

struct spw_topology {
    hwloc_topology_t hwloc;
    unsigned cores, threads;
    hwloc_obj_t *places; /* hardware threads in worker order */
};

/* Caches and devices cost time to discover, and nobody here asks for them. Packages and groups
 * stay: without the level that holds a NUMA node, cores would be numbered across nodes. */
static void leave_out(hwloc_topology_t h)
{
    hwloc_topology_set_all_types_filter(h, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(h, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_type_filter(h, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
    hwloc_topology_set_type_filter(h, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
}

static int load(hwloc_topology_t h, const char *synthetic, struct spw_error *err)
{
    leave_out(h);
    if (synthetic && hwloc_topology_set_synthetic(h, synthetic))
        return spw_fail(err, -EIO, "topology \"%s\": not a machine that hwloc can make up",
                        synthetic);
    if (!synthetic)
        hwloc_topology_set_flags(h, HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                        HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM);
    if (hwloc_topology_load(h))
        return spw_fail(err, -EIO, "hwloc cannot read this machine's topology");
    return 0;
}

/* The n-th hardware thread inside a core (or whatever `type` is), NULL past the last. */
static hwloc_obj_t thread_in(hwloc_topology_t h, hwloc_obj_t core, unsigned n)
{
    return hwloc_get_obj_inside_cpuset_by_type(h, core->cpuset, HWLOC_OBJ_PU, n);
}

/* hwloc numbers cores depth-first, so its order is already one NUMA node after the other. */
static void place_all(struct spw_topology *t, hwloc_obj_type_t core_type)
{
    unsigned placed = 0;
    for (unsigned round = 0; placed < t->threads; round++)
        for (unsigned i = 0; i < t->cores; i++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(t->hwloc, core_type, i);
            hwloc_obj_t pu = thread_in(t->hwloc, core, round);
            if (pu)
                t->places[placed++] = pu;
        }
}

int spw_topology_open(struct spw_topology **out, const char *synthetic, struct spw_error *err)
{
    struct spw_topology *t = spw_alloc_zero(1, sizeof *t);
    if (!t)
        return spw_fail(err, -ENOMEM, "out of memory for the topology");
    int rc = -ENOMEM;
    if (hwloc_topology_init(&t->hwloc))
        goto fail_block;
    rc = load(t->hwloc, synthetic, err);
    if (rc)
        goto fail_hwloc;

    t->threads = (unsigned)hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_PU);
    int cores = hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_CORE);
    /* Some virtual machines name no cores. */
    hwloc_obj_type_t core_type = cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    t->cores = cores > 0 ? (unsigned)cores : t->threads;
    t->places = spw_alloc_zero(t->threads, sizeof *t->places);
    rc = t->places ? 0 : spw_fail(err, -ENOMEM, "out of memory for the topology");
    if (rc)
        goto fail_hwloc;
    place_all(t, core_type);
    *out = t;
    return 0;

fail_hwloc:
    hwloc_topology_destroy(t->hwloc);
fail_block:
    spw_free(t);
    return rc;
}

void spw_topology_close(struct spw_topology *t)
{
    if (!t)
        return;
    hwloc_topology_destroy(t->hwloc);
    spw_free(t->places);
    spw_free(t);
}

unsigned spw_topology_cores(const struct spw_topology *t)
{
    return t->cores;
}

unsigned spw_topology_threads(const struct spw_topology *t)
{
    return t->threads;
}

unsigned spw_topology_place(const struct spw_topology *t, unsigned worker)
{
    return t->places[worker % t->threads]->os_index;
}

/* The whole core, not one of its threads: inside a core the system may choose. */
void spw_topology_bind(const struct spw_topology *t, unsigned worker)
{
    hwloc_obj_t place = t->places[worker % t->threads];
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(t->hwloc, HWLOC_OBJ_CORE, place);
    hwloc_set_thread_cpubind(t->hwloc, pthread_self(), (core ? core : place)->cpuset, 0);
}

static bool has_nodes(void)
{
    hwloc_topology_t h;
    bool several = false;
    if (hwloc_topology_init(&h))
        return false;
    leave_out(h);
    if (!hwloc_topology_load(h))
        several = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_NUMANODE) > 1;
    hwloc_topology_destroy(h);
    return several;
}

/* Finding PCI devices takes a slower look at /sys, so first whether it can matter. Preferred, not
 * bound: a full node must not fail what another has room for. */
void spw_topology_place_memory(const char *bus_id, void *memory, uint64_t bytes)
{
    hwloc_topology_t h;
    if (!has_nodes() || hwloc_topology_init(&h))
        return;
    leave_out(h);
    hwloc_topology_set_io_types_filter(h, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (!hwloc_topology_load(h)) {
        hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(h, bus_id);
        hwloc_obj_t near = device ? hwloc_get_non_io_ancestor_obj(h, device) : NULL;
        if (near && near->nodeset)
            hwloc_set_area_membind(h, memory, bytes, near->nodeset, HWLOC_MEMBIND_BIND,
                                   HWLOC_MEMBIND_BYNODESET);
    }
    hwloc_topology_destroy(h);
}

unsigned spw_topology_usable_threads(void)
{
    cpu_set_t set; /* 1,024 processors; past that the call fails and hwloc must say */
    if (sched_getaffinity(0, sizeof set, &set))
        return 1024;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}
