/* Processors, read with hwloc: see topology.h. */
#include "offload/device/topology.h"

#include <ctype.h>
#include <hwloc.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct core {
    hwloc_obj_t object;
    unsigned rank;
};

struct spw_topology {
    hwloc_topology_t hwloc;
    unsigned n_cores, n_threads, n_nodes;
    struct core *cores; /* owned */
    bool synthetic;
};

/* Caches and devices take time to discover, and nothing here needs them. Packages and groups
 * stay: without the level of a NUMA node, hwloc would number cores across nodes. */
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

/* hwloc ranks kinds of cores by what the system says: a name for slow cores, or the highest
 * frequency if that differs by more than a tenth. */
static struct core core_of(hwloc_topology_t h, hwloc_obj_t object)
{
    int efficiency = -1, kind = hwloc_cpukinds_get_by_cpuset(h, object->cpuset, 0);
    if (kind >= 0)
        hwloc_cpukinds_get_info(h, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0);
    return (struct core){object, efficiency > 0 ? (unsigned)efficiency : 0};
}

int spw_topology_open_loaded(struct spw_topology **out, struct hwloc_topology *loaded,
                             struct spw_error *err)
{
    struct spw_topology *t = spw_alloc_zero(1, sizeof *t);
    int cores = hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_CORE);
    /* Some virtual machines report no cores. */
    hwloc_obj_type_t type = cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    unsigned n = (unsigned)hwloc_get_nbobjs_by_type(loaded, type);
    if (t)
        t->cores = spw_alloc_zero(n, sizeof *t->cores);
    if (!t || !t->cores) {
        spw_free(t);
        hwloc_topology_destroy(loaded);
        return spw_fail(err, -ENOMEM, "out of memory for the topology");
    }
    t->hwloc = loaded;
    t->n_cores = n;
    t->n_threads = (unsigned)hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_PU);
    t->n_nodes = (unsigned)hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_NUMANODE);
    t->synthetic = !hwloc_topology_is_thissystem(loaded);
    /* hwloc numbers cores depth-first, so the cores of one NUMA node follow each other. */
    for (unsigned i = 0; i < n; i++)
        t->cores[i] = core_of(loaded, hwloc_get_obj_by_type(loaded, type, i));
    *out = t;
    return 0;
}

int spw_topology_open(struct spw_topology **out, const char *synthetic, struct spw_error *err)
{
    hwloc_topology_t h;
    if (hwloc_topology_init(&h))
        return spw_fail(err, -ENOMEM, "out of memory for the topology");
    int rc = load(h, synthetic, err);
    if (rc) {
        hwloc_topology_destroy(h);
        return rc;
    }
    return spw_topology_open_loaded(out, h, err);
}

void spw_topology_close(struct spw_topology *t)
{
    if (!t)
        return;
    hwloc_topology_destroy(t->hwloc);
    spw_free(t->cores);
    spw_free(t);
}

unsigned spw_topology_cores(const struct spw_topology *t)
{
    return t->n_cores;
}

unsigned spw_topology_threads(const struct spw_topology *t)
{
    return t->n_threads;
}

unsigned spw_topology_nodes(const struct spw_topology *t)
{
    return t->n_nodes;
}

unsigned spw_topology_core_rank(const struct spw_topology *t, unsigned core)
{
    return t->cores[core].rank;
}

bool spw_topology_core_on_node(const struct spw_topology *t, unsigned core, unsigned node)
{
    return hwloc_bitmap_isset(t->cores[core].object->nodeset, node);
}

/* --- devices --- */

/* Of the folders above a device in /sys/devices the lowest that names a node: its own, or that of
 * its controller. -1: none does. */
static int node_of(const char *device)
{
    char folder[PATH_MAX], file[PATH_MAX + 16];
    int node = -1;
    if (!realpath(device, folder))
        return -1;
    for (char *end; (end = strrchr(folder, '/')) && end > folder; *end = 0) {
        snprintf(file, sizeof file, "%s/numa_node", folder);
        FILE *f = fopen(file, "re");
        if (!f)
            continue;
        if (fscanf(f, "%d", &node) != 1)
            node = -1;
        fclose(f);
        break;
    }
    return node;
}

int spw_topology_node_of_pci(const struct spw_topology *t, const char *bus_id)
{
    char name[64];
    int n = snprintf(name, sizeof name, "/sys/bus/pci/devices/%s", bus_id);
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c); /* drivers write the digits as they like */
    return t->synthetic || t->n_nodes < 2 || n >= (int)sizeof name ? -1 : node_of(name);
}

/* Files of tmpfs and the like have no drive. */
int spw_topology_node_of_path(const struct spw_topology *t, const char *path)
{
    char name[64];
    struct stat s;
    if (t->synthetic || t->n_nodes < 2 || stat(path, &s))
        return -1;
    snprintf(name, sizeof name, "/sys/dev/block/%u:%u", major(s.st_dev), minor(s.st_dev));
    return node_of(name);
}

/* --- binding --- */

/* The processors of these cores, or the nodes next to them; NULL without memory. */
static hwloc_bitmap_t set_of(const struct spw_topology *t, const unsigned *cores, unsigned n_cores,
                             bool nodes)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (unsigned i = 0; set && i < n_cores; i++) {
        hwloc_obj_t core = t->cores[cores[i]].object;
        hwloc_bitmap_or(set, set, nodes ? core->nodeset : core->cpuset);
    }
    return set;
}

void spw_topology_list(const struct spw_topology *t, const unsigned *cores, unsigned n_cores,
                       char *text, size_t bytes)
{
    hwloc_bitmap_t set = cores ? set_of(t, cores, n_cores, false)
                               : hwloc_bitmap_dup(hwloc_get_root_obj(t->hwloc)->cpuset);
    *text = 0;
    if (set)
        hwloc_bitmap_list_snprintf(text, bytes, set);
    hwloc_bitmap_free(set);
}

void spw_topology_bind(const struct spw_topology *t, const unsigned *cores, unsigned n_cores)
{
    hwloc_bitmap_t set = set_of(t, cores, n_cores, false);
    if (set && !hwloc_bitmap_iszero(set))
        hwloc_set_thread_cpubind(t->hwloc, pthread_self(), set, 0);
    hwloc_bitmap_free(set);
}

void spw_topology_place_memory(const struct spw_topology *t, const unsigned *cores,
                               unsigned n_cores, void *memory, uint64_t bytes)
{
    if (t->n_nodes < 2)
        return;
    hwloc_bitmap_t nodes = set_of(t, cores, n_cores, true);
    if (nodes && !hwloc_bitmap_iszero(nodes))
        hwloc_set_area_membind(t->hwloc, memory, bytes, nodes,
                               hwloc_bitmap_weight(nodes) == 1 ? HWLOC_MEMBIND_BIND
                                                               : HWLOC_MEMBIND_INTERLEAVE,
                               HWLOC_MEMBIND_BYNODESET);
    hwloc_bitmap_free(nodes);
}

unsigned spw_topology_usable_threads(void)
{
    cpu_set_t set; /* 1,024 processors; with more the call fails, and hwloc must say */
    if (sched_getaffinity(0, sizeof set, &set))
        return 1024;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

unsigned spw_topology_parse_quota(const char *text)
{
    long long quota = 0, period = 0;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    return (unsigned)spw_min_u64(spw_div_up((uint64_t)quota, (uint64_t)period), UINT_MAX);
}

static void read_line(const char *path, char *out, size_t bytes)
{
    FILE *f = fopen(path, "re");
    *out = 0;
    if (f && !fgets(out, (int)bytes, f))
        *out = 0;
    if (f)
        fclose(f);
    out[strcspn(out, "\n")] = 0;
}

/* A container sees its own group at the root. cgroup version 2 has one file, version 1 has two
 * with the same numbers; there -1 means "max". */
unsigned spw_topology_quota(void)
{
    char quota[32], period[32], both[72];
    read_line("/sys/fs/cgroup/cpu.max", both, sizeof both);
    if (!*both) {
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota);
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period);
        snprintf(both, sizeof both, "%s %s", quota, period);
    }
    return spw_topology_parse_quota(both);
}
