/* Which threads run on which cores: a pure decision from a topology and what is asked for.
 *
 * Three roles: compute (workers of the CPU device; none where a GPU computes), transfer (threads
 * that copy) and I/O (threads that read and write files, and sum what they read). Cores are put in
 * one order and handed out from both ends:
 *
 *     | fast, far from the device    ...   fast, near | slow, far   ...   slow, near |
 *       compute ->                                          <- transfer     <- I/O
 *
 * so that I/O is next to its device and neither is on a core that computes, as far as there are
 * cores. Where a thread runs never changes a result. A placement is owned by whoever made it and
 * read-only after that; it borrows the topology. All zeros is a valid one: nothing is bound. */
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
    unsigned transfer, io; /* threads that will run; 0: none */
    unsigned quota;        /* processors whose time is ours; 0: all of those there are */
    /* The NUMA node next to what the transfers and files come from; unset: nowhere in particular.
     */
    bool has_node;
    unsigned node;
};

/* Cores cores[first ... first + n_cores) of the placement. */
struct spw_places {
    unsigned n_threads;
    unsigned first, n_cores;
    bool bound; /* threads are kept there; otherwise the system chooses among all cores */
};

struct spw_placement {
    const struct spw_topology *topology;    /* borrowed; NULL: nothing is bound */
    struct spw_places role[SPW_ROLE_COUNT]; /* compute thread i has the i-th core; the others share
                                               theirs */
    unsigned first_near, n_near;            /* cores next to host memory for the device */
    unsigned *cores;                        /* owned: every core, in the order drawn above */
    const char *why;                        /* a few words for people; static */
};

/* -ENOMEM is the only failure. Without a topology nothing is bound. */
int spw_placement_init(struct spw_placement *out, const struct spw_topology *topology,
                       const struct spw_placement_request *request);
void spw_placement_free(struct spw_placement *p); /* also of one that is all zeros */

/* The calling thread is thread i of a role. Best effort. */
void spw_placement_bind(const struct spw_placement *p, enum spw_role role, unsigned i);
/* The same for I/O threads, as the I/O engine calls it; `context` is a struct spw_placement. */
void spw_placement_bind_io(void *context, unsigned i);
/* The calling thread is about to touch host memory for the first time. */
void spw_placement_bind_near(const struct spw_placement *p);
/* Where pages of this fresh mapping should lie: next to the device, else to the threads that
 * compute, in turn where those are on several nodes. Best effort. */
void spw_placement_place_memory(const struct spw_placement *p, void *memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
