/* The processors that this process may use (from hwloc): cores, their kinds, and their NUMA
 * nodes.
 *
 * The caller of open owns the topology. It is read-only, so any thread may use it. Errors:
 * -ENOMEM, or -EIO with text if hwloc cannot read the machine. Opening the real machine reads
 * /sys, which takes milliseconds. Cores are numbered node by node. Nodes have the system's
 * numbers. */
#ifndef SPW_OFFLOAD_DEVICE_TOPOLOGY_H
#define SPW_OFFLOAD_DEVICE_TOPOLOGY_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_topology;
struct hwloc_topology; /* of hwloc */

/* `synthetic`: hwloc's description of a made-up machine, such as "numa:2 core:4 pu:2". NULL:
 * this machine, without what our control group and affinity exclude. */
int spw_topology_open(struct spw_topology **out, const char *synthetic, struct spw_error *err);
/* The same for a machine that hwloc has loaded already, for example one with made-up kinds of
 * cores. Takes over `loaded`, also after a failure. */
int spw_topology_open_loaded(struct spw_topology **out, struct hwloc_topology *loaded,
                             struct spw_error *err);
void spw_topology_close(struct spw_topology *t);

unsigned spw_topology_cores(const struct spw_topology *t);   /* physical cores */
unsigned spw_topology_threads(const struct spw_topology *t); /* hardware threads */
unsigned spw_topology_nodes(const struct spw_topology *t);   /* NUMA nodes of these cores */

/* For one core: the rank of its speed (0 is the slowest; all 0 if there is one kind or nothing is
 * known); whether it lies on NUMA node `node`. */
unsigned spw_topology_core_rank(const struct spw_topology *t, unsigned core);
bool spw_topology_core_on_node(const struct spw_topology *t, unsigned core, unsigned node);

/* The hardware threads of these cores (NULL: of all) as text: "0-7,16-23". */
void spw_topology_list(const struct spw_topology *t, const unsigned *cores, unsigned n_cores,
                       char *text, size_t bytes);

/* The NUMA node next to the PCI device `bus_id` ("0000:65:00.0"), or next to the drive of the
 * file or folder `path`. -1: unknown, or there is only one node. */
int spw_topology_node_of_pci(const struct spw_topology *t, const char *bus_id);
int spw_topology_node_of_path(const struct spw_topology *t, const char *path);

/* Binds the calling thread to these whole cores; the system chooses among them. Best effort. */
void spw_topology_bind(const struct spw_topology *t, const unsigned *cores, unsigned n_cores);
/* Asks for pages of this new mapping from the nodes of these cores, interleaved if there are
 * several. This is a preference: if a node is full, other nodes give the pages. */
void spw_topology_place_memory(const struct spw_topology *t, const unsigned *cores,
                               unsigned n_cores, void *memory, uint64_t bytes);

/* The number of hardware threads in the affinity mask: a system call, no hwloc. */
unsigned spw_topology_usable_threads(void);
/* The number of processors whose time the control group grants, rounded up; the process may see
 * more. 0: no limit. Reads two small files. */
unsigned spw_topology_quota(void);
/* The same from the text of cpu.max, "150000 100000" or "max 100000"; 0 for any other text. */
unsigned spw_topology_parse_quota(const char *text);

#ifdef __cplusplus
}
#endif

#endif
