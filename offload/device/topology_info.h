/* The machine as a person wants to know it: processors, memory, drives and GPUs, and what of them
 * this process may use. Part of the public API (runtime/spillway.h).
 *
 * Owned by whoever asked for it; spw_topology_info_free gives it back. Asking reads /sys and the
 * libraries of GPUs: milliseconds, with a GPU up to a second. */
#ifndef SPW_OFFLOAD_DEVICE_TOPOLOGY_INFO_H
#define SPW_OFFLOAD_DEVICE_TOPOLOGY_INFO_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* "0-7,16-23": hardware threads by the system's numbers. Cut short where a machine has too many
 * pieces to tell. */
struct spw_thread_list {
    char text[128];
};

struct spw_node_info {
    uint32_t number, package;
    uint64_t memory_bytes;
    uint32_t n_cores;
    struct spw_thread_list threads;
};

struct spw_cache_info {
    uint32_t level, n; /* of data or of both; how many are alike */
    uint64_t bytes;    /* of one */
    uint32_t n_cores;  /* that share one */
};

/* Cores that are alike, the slowest kind first; one kind on most machines. */
struct spw_core_kind_info {
    char name[32];         /* "fast", "slow", "kind 1" between; "" where there is one */
    uint32_t n_cores, mhz; /* mhz: the highest that is stated; 0: none is */
    struct spw_thread_list threads;
};

enum spw_machine_device_kind { SPW_MACHINE_GPU, SPW_MACHINE_DRIVE };

struct spw_machine_device_info {
    enum spw_machine_device_kind kind;
    char name[32];  /* the system's: "nvme0n1", "card0"; "" where it has none */
    char model[96]; /* "" where nobody says */
    char bus[24];   /* "0000:65:00.0"; "" for what is on no PCI bus */
    int node;       /* NUMA node it is next to; -1: not known, or to all alike */
    uint64_t bytes; /* drives */
};

/* Where threads of one role run. */
struct spw_role_info {
    uint32_t n_threads;
    bool bound; /* to `threads`; otherwise the system chooses */
    struct spw_thread_list threads;
};

struct spw_topology_info {
    char cpu[128];
    uint32_t n_packages, n_cores, n_threads; /* of the machine */
    uint64_t memory_bytes;
    uint32_t n_usable_cores, n_usable_threads; /* by this process: control group and affinity */
    struct spw_thread_list usable;
    uint32_t quota;              /* processors whose time the control group grants; 0: no limit */
    uint64_t available_bytes;    /* memory that this process could still take */
    struct spw_node_info *nodes; /* owned, like the other lists */
    struct spw_cache_info *caches;
    struct spw_core_kind_info *kinds;
    struct spw_machine_device_info *devices;
    uint32_t n_nodes, n_caches, n_kinds, n_devices;
    /* What a run with a disk tier would do: its threads, and why they are placed like that. */
    char backend[80];
    struct spw_role_info compute, transfer, io;
    char why[96];
};

/* This machine, all but available_bytes and the last part, which are the runtime's to say. -ENOMEM,
 * or -EIO with text. */
int spw_topology_describe(struct spw_topology_info *out, struct spw_error *err);
/* The same of a machine that hwloc has loaded already (borrowed): made up, or from a file. */
struct hwloc_topology;
int spw_topology_describe_loaded(struct spw_topology_info *out, struct hwloc_topology *loaded,
                                 struct spw_error *err);
void spw_topology_info_free(struct spw_topology_info *info);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
