/* A description of the machine for people: processors, memory, drives and GPUs, and the part
 * that this process may use. Part of the public API (runtime/spillway.h).
 *
 * The caller owns the result and frees it with spw_topology_info_free. The call reads /sys and
 * asks the libraries of GPUs: milliseconds, with a GPU up to a second. */
#ifndef SPW_OFFLOAD_DEVICE_TOPOLOGY_INFO_H
#define SPW_OFFLOAD_DEVICE_TOPOLOGY_INFO_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Hardware threads by the system's numbers, "0-7,16-23". Cut off if the list is too long. */
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
    uint32_t level, n; /* n: number of equal caches, for data or for both data and code */
    uint64_t bytes;    /* of one cache */
    uint32_t n_cores;  /* that share one cache */
};

/* Equal cores, the slowest kind first. Most machines have one kind. */
struct spw_core_kind_info {
    char name[32];         /* "fast", "slow", "kind 1" between them; "" if there is one kind */
    uint32_t n_cores, mhz; /* mhz: the highest known frequency; 0: unknown */
    struct spw_thread_list threads;
};

enum spw_machine_device_kind { SPW_MACHINE_GPU, SPW_MACHINE_DRIVE };

struct spw_machine_device_info {
    enum spw_machine_device_kind kind;
    char name[32];  /* the system's name: "nvme0n1", "card0"; "" if it has none */
    char model[96]; /* "" if unknown */
    char bus[24];   /* "0000:65:00.0"; "" if the device is on no PCI bus */
    int node;       /* the NUMA node next to it; -1: unknown, or all are equally near */
    uint64_t bytes; /* drives */
};

/* Where the threads of one role run. */
struct spw_role_info {
    uint32_t n_threads;
    bool bound; /* to `threads`; else the system chooses */
    struct spw_thread_list threads;
};

struct spw_topology_info {
    char cpu[128];
    uint32_t n_packages, n_cores, n_threads; /* of the machine */
    uint64_t memory_bytes;
    uint32_t n_usable_cores, n_usable_threads; /* by control group and affinity */
    struct spw_thread_list usable;
    uint32_t quota;              /* processors whose time the control group grants; 0: no limit */
    uint64_t available_bytes;    /* memory that this process can still allocate */
    struct spw_node_info *nodes; /* owned, like the other lists */
    struct spw_cache_info *caches;
    struct spw_core_kind_info *kinds;
    struct spw_machine_device_info *devices;
    uint32_t n_nodes, n_caches, n_kinds, n_devices;
    /* What a run with a disk tier would do: its threads, and why they run there. */
    char backend[80];
    struct spw_role_info compute, transfer, io;
    char why[96];
};

/* Describes this machine, without available_bytes and the fields after it, which the runtime
 * sets. -ENOMEM, or -EIO with text. */
int spw_topology_describe(struct spw_topology_info *out, struct spw_error *err);
/* The same for a machine that hwloc has loaded already (borrowed): made up, or from a file. */
struct hwloc_topology;
int spw_topology_describe_loaded(struct spw_topology_info *out, struct hwloc_topology *loaded,
                                 struct spw_error *err);
void spw_topology_info_free(struct spw_topology_info *info);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
