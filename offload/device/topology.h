/* The processors this process may use (hwloc): cores, their kinds, the NUMA nodes they belong to.
 *
 * Owned by whoever opened it; read-only after that, so safe from any thread. -ENOMEM, or -EIO with
 * text when hwloc cannot tell. Opening the machine's own topology reads /sys: milliseconds. Cores
 * are numbered one NUMA node after the other; nodes have the system's numbers. */
#ifndef SPW_OFFLOAD_DEVICE_TOPOLOGY_H
#define SPW_OFFLOAD_DEVICE_TOPOLOGY_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_topology;
struct hwloc_topology; /* hwloc's */

/* `synthetic`: hwloc's description of a made-up machine for tests, such as "numa:2 core:4 pu:2".
 * NULL: this machine, cut down to our control group and affinity. */
int spw_topology_open(struct spw_topology **out, const char *synthetic, struct spw_error *err);
/* The same of a machine that hwloc has loaded already, such as one with kinds of cores made up.
 * Takes `loaded`, also when it fails. */
int spw_topology_open_loaded(struct spw_topology **out, struct hwloc_topology *loaded,
                             struct spw_error *err);
void spw_topology_close(struct spw_topology *t);

unsigned spw_topology_cores(const struct spw_topology *t);   /* physical cores */
unsigned spw_topology_threads(const struct spw_topology *t); /* hardware threads */
unsigned spw_topology_nodes(const struct spw_topology *t);   /* NUMA nodes of these cores */

/* Of one core: the system's number of its first hardware thread; how fast its kind is (0 the
 * slowest; all 0 where there is one kind, or nobody knows); whether it lies on NUMA node `node`. */
unsigned spw_topology_core_thread(const struct spw_topology *t, unsigned core);
unsigned spw_topology_core_rank(const struct spw_topology *t, unsigned core);
bool spw_topology_core_on_node(const struct spw_topology *t, unsigned core, unsigned node);

/* Their hardware threads for people: "0-7,16-23". */
void spw_topology_list(const struct spw_topology *t, const unsigned *cores, unsigned n_cores,
                       char *text, size_t bytes);

/* The NUMA node next to the PCI device `bus_id` ("0000:65:00.0"), next to the drive that holds the
 * file or folder `path`; -1: not known, or nothing to choose, for there is one node. */
int spw_topology_node_of_pci(const struct spw_topology *t, const char *bus_id);
int spw_topology_node_of_path(const struct spw_topology *t, const char *path);

/* Keeps the calling thread on these whole cores: inside them the system may choose. Best effort. */
void spw_topology_bind(const struct spw_topology *t, const unsigned *cores, unsigned n_cores);
/* Pages of this fresh mapping should come from the node of these cores, from several in turn.
 * Preferred, not bound: a full node must not fail what another has room for. */
void spw_topology_place_memory(const struct spw_topology *t, const unsigned *cores,
                               unsigned n_cores, void *memory, uint64_t bytes);

/* Hardware threads by affinity alone: a system call, no hwloc. */
unsigned spw_topology_usable_threads(void);
/* Of how many processors the control group grants the time, rounded up, whatever number it lets us
 * see; 0: no limit. Two small files. */
unsigned spw_topology_quota(void);
/* The same from the text of cpu.max, "150000 100000" or "max 100000"; 0 for any other. */
unsigned spw_topology_parse_quota(const char *text);

#ifdef __cplusplus
}
#endif

#endif
