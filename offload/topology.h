/* The processors this process may use, and where its workers should run (hwloc).
 *
 * Owned by whoever opened it; read-only after that, so safe from any thread. -ENOMEM, or -EIO with
 * text when hwloc cannot tell. Opening the machine's own topology reads /sys: milliseconds. */
#ifndef SPW_OFFLOAD_TOPOLOGY_H
#define SPW_OFFLOAD_TOPOLOGY_H

#include "runtime/base.h"

struct spw_topology;

/* `synthetic`: hwloc's description of a made-up machine for tests, such as "numa:2 core:4 pu:2".
 * NULL: this machine, cut down to our control group and affinity. */
int spw_topology_open(struct spw_topology **out, const char *synthetic, struct spw_error *err);
void spw_topology_close(struct spw_topology *t);

unsigned spw_topology_cores(const struct spw_topology *t);   /* physical cores */
unsigned spw_topology_threads(const struct spw_topology *t); /* hardware threads */
/* The hardware thread (the system's number) for worker i: first one per core, NUMA node after NUMA
 * node, then the cores' second threads in the same order, and round again. */
unsigned spw_topology_place(const struct spw_topology *t, unsigned worker);
/* Keeps the calling thread on the core of worker i's place. Best effort. */
void spw_topology_bind(const struct spw_topology *t, unsigned worker);

/* Pages of this fresh mapping should come from the NUMA node next to the PCI device `bus_id`
 * ("0000:65:00.0"). Best effort; a machine with one node costs 2 ms. */
void spw_topology_place_memory(const char *bus_id, void *memory, uint64_t bytes);

/* Hardware threads by affinity alone: a system call, no hwloc. */
unsigned spw_topology_usable_threads(void);

#endif
