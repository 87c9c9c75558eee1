/* Which threads run on which cores: a pure function of a topology and a request.
 *
 * There are three roles: compute (workers of the CPU device; none if a GPU computes), transfer
 * (threads that copy) and I/O (threads that read and write files, and compute checksums). Cores
 * are sorted and given out from both ends:
 *
 *     | fast, far from the device    ...   fast, near | slow, far   ...   slow, near |
 *       compute ->                                          <- transfer     <- I/O
 *
 * So I/O is next to its device, and I/O and transfer use no core that computes, as long as there
 * are enough cores. Where a thread runs never changes a result. The creator owns a placement; it
 * is read-only and borrows the topology. A placement of zeros is valid: nothing is bound. */
#ifndef SPW_OFFLOAD_DEVICE_PLACEMENT_H
#define SPW_OFFLOAD_DEVICE_PLACEMENT_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_topology;

enum spw_role { SPW_ROLE_COMPUTE, SPW_ROLE_TRANSFER, SPW_ROLE_IO, SPW_ROLE_COUNT };

struct spw_placement_request {
    int compute;           /* threads; 0: choose; negative: none */
    unsigned transfer, io; /* number of threads; 0: none */
    bool beside_device; /* another device computes, too, and needs a core for its copies and I/O */
    unsigned quota;     /* processors whose time we may use; 0: all */
    /* The NUMA node of the device or drive that transfers and files use; unset: no preference. */
    bool has_node;
    unsigned node;
};

/* Cores cores[first ... first + n_cores) of the placement. */
struct spw_places {
    unsigned n_threads;
    unsigned first, n_cores;
    bool bound; /* threads are bound to these cores; else the system may use all cores */
};

struct spw_placement {
    const struct spw_topology *topology;    /* borrowed; NULL: nothing is bound */
    struct spw_places role[SPW_ROLE_COUNT]; /* compute thread i has the i-th core; the threads of
                                               other roles share their cores */
    unsigned first_near, n_near;            /* cores next to host memory for the device */
    unsigned *cores;                        /* owned: every core, in the order drawn above */
    const char *why;                        /* a few words for people; static */
};

/* Fails only with -ENOMEM. Without a topology nothing is bound. */
int spw_placement_init(struct spw_placement *out, const struct spw_topology *topology,
                       const struct spw_placement_request *request);
void spw_placement_free(struct spw_placement *p); /* a placement of zeros is fine */

/* Binds the calling thread, which is thread i of a role. Best effort. */
void spw_placement_bind(const struct spw_placement *p, enum spw_role role, unsigned i);
/* The same for I/O threads, as a callback of the I/O engine; `context` is a struct
 * spw_placement. */
void spw_placement_bind_io(void *context, unsigned i);
/* Binds the calling thread near host memory, before it touches that memory for the first time. */
void spw_placement_bind_near(const struct spw_placement *p);
/* Says where pages of this new mapping should lie: next to the device, else next to the compute
 * threads, interleaved if these are on several nodes. Best effort. */
void spw_placement_place_memory(const struct spw_placement *p, void *memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
