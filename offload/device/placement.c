/* Which threads run on which cores: see placement.h.
 *
 * The number of compute threads, if the caller does not give it: all fast cores. One core less
 * if files are read beside the computation, or copies of a GPU are queued: the I/O thread sums
 * every byte that it reads, which takes a core at the speed of a drive, and a kernel ends with its
 * slowest worker. No more than the control group grants time for: a group that has used up its time
 * is stopped on all cores for the rest of each tenth of a second.
 *
 * Which threads are bound: workers, if they are at least as many as chosen here. With fewer
 * workers, several processes would bind to the same first cores. Beside bound workers, copies
 * and I/O are bound to the end of the order; there the last workers stand aside for copies
 * (device_cpu_team.h). Beside unbound workers, copies and I/O are bound to the slow cores, or to
 * the cores of the device's node, if that excludes any core. On a few cores nothing is bound:
 * the system decides better at each moment. */
#include "offload/device/placement.h"

#include "offload/device/topology.h"

#include <limits.h>

enum {
    FEW_CORES = 4,
    /* A processor with fewer fast cores than this computes on all cores. */
    LEAST_FAST_CORES = 4,
    /* From this number on, one core less makes computation at most an eighth slower, and less if
     * memory is the limit. */
    SPARING_CORES = 8,
    /* The same where a GPU waits for its copies and for files meanwhile. */
    BESIDE_CORES = 3,
    /* Cores that copies share with workers: usually one copy to the device and one from it run
     * together. */
    SHARED_CORES = 2,
};

/* --- the order --- */

static unsigned highest_rank(const struct spw_topology *t)
{
    unsigned rank = 0;
    for (unsigned i = 0; i < spw_topology_cores(t); i++)
        rank = (unsigned)spw_max_u64(rank, spw_topology_core_rank(t, i));
    return rank;
}

static unsigned count_from(const struct spw_topology *t, unsigned rank)
{
    unsigned n = 0;
    for (unsigned i = 0; i < spw_topology_cores(t); i++)
        n += spw_topology_core_rank(t, i) >= rank;
    return n;
}

/* The rank from which cores are fast: the highest rank with enough cores at or above it. */
static unsigned fast_rank(const struct spw_topology *t)
{
    unsigned rank = highest_rank(t);
    while (rank && count_from(t, rank) < LEAST_FAST_CORES)
        rank--;
    return rank;
}

static bool is_near(const struct spw_topology *t, const struct spw_placement_request *q,
                    unsigned core)
{
    return q->has_node && spw_topology_core_on_node(t, core, q->node);
}

static bool goes_before(const struct spw_topology *t, const struct spw_placement_request *q,
                        unsigned a, unsigned b)
{
    unsigned rank_a = spw_topology_core_rank(t, a), rank_b = spw_topology_core_rank(t, b);
    if (rank_a != rank_b)
        return rank_a > rank_b;
    return !is_near(t, q, a) && is_near(t, q, b);
}

/* An insertion sort. It is stable, so that cores of one node and kind stay neighbours. */
static void put_in_order(struct spw_placement *p, const struct spw_placement_request *q)
{
    for (unsigned i = 0; i < spw_topology_cores(p->topology); i++) {
        unsigned at = i;
        for (; at && goes_before(p->topology, q, i, p->cores[at - 1]); at--)
            p->cores[at] = p->cores[at - 1];
        p->cores[at] = i;
    }
}

/* How many cores at the end of the order are alike: all slow or all fast, all near or all far. */
static unsigned tail_length(const struct spw_placement *p, const struct spw_placement_request *q)
{
    const struct spw_topology *t = p->topology;
    unsigned n = spw_topology_cores(t), fast = fast_rank(t), last = p->cores[n - 1], length = 0;
    for (; length < n; length++) {
        unsigned core = p->cores[n - 1 - length];
        if (is_near(t, q, core) != is_near(t, q, last) ||
            (spw_topology_core_rank(t, core) < fast) != (spw_topology_core_rank(t, last) < fast))
            break;
    }
    return length;
}

/* --- who gets which --- */

static struct spw_places at_end(unsigned n_threads, unsigned n, unsigned skipped, unsigned length)
{
    return (struct spw_places){n_threads, n - skipped - length, length, true};
}

/* Each worker has one of the first `computing` cores. */
static void place_beside(struct spw_placement *p, const struct spw_placement_request *q, unsigned n,
                         unsigned computing)
{
    unsigned spare = n - computing, io = 0, up_to = spare - spare / 2;
    if (q->io && spare)
        io = (unsigned)spw_min_u64(q->io, up_to);
    unsigned left = spare - io, transfer = (unsigned)spw_min_u64(q->transfer, left);
    p->why = "one worker per core; I/O and copies have cores of their own";
    if (left <
        SHARED_CORES) { /* copies also use the cores of the last workers, which stand aside */
        transfer = SHARED_CORES;
        left = 0;
        p->why = spare == 0
                     ? "one worker per core; I/O and copies share the cores of the last workers"
                 : spare == 1 ? "one worker per core; copies share the core of I/O and of the last "
                                "worker"
                              : "one worker per core; I/O and copies share the rest";
    }
    p->role[SPW_ROLE_TRANSFER] = at_end(q->transfer, n, left ? io : 0, transfer);
    p->role[SPW_ROLE_IO] = at_end(q->io, n, 0, io ? io : SHARED_CORES);
}

static void place_unbound(struct spw_placement *p, const struct spw_placement_request *q,
                          unsigned n)
{
    unsigned tail = tail_length(p, q);
    bool bound = tail < n;
    p->role[SPW_ROLE_TRANSFER] = (struct spw_places){q->transfer, n - tail, tail, bound};
    p->role[SPW_ROLE_IO] = (struct spw_places){q->io, n - tail, tail, bound};
    p->why = bound ? "I/O and copies run on the slow cores, or on those near the device"
                   : "nothing to choose: all cores are alike";
}

static void decide(struct spw_placement *p, const struct spw_placement_request *q, unsigned n_fast)
{
    unsigned n = spw_topology_cores(p->topology), chosen = n_fast;
    if (n_fast == n && n >= (q->beside_device ? BESIDE_CORES : q->io ? SPARING_CORES : UINT_MAX))
        chosen = n - 1;
    unsigned threads = q->compute < 0 ? 0 : (unsigned)q->compute;
    if (q->compute == 0)
        threads = q->quota ? (unsigned)spw_min_u64(q->quota, chosen) : chosen;
    unsigned computing = (unsigned)spw_min_u64(threads, n);
    bool few = n <= FEW_CORES, bound = !few && threads >= chosen && threads <= n;
    p->role[SPW_ROLE_COMPUTE] = (struct spw_places){threads, 0, computing, bound};
    if (few) {
        p->role[SPW_ROLE_TRANSFER] = (struct spw_places){q->transfer, 0, n, false};
        p->role[SPW_ROLE_IO] = (struct spw_places){q->io, 0, n, false};
    } else if (bound) {
        place_beside(p, q, n, computing);
    } else {
        place_unbound(p, q, n);
        if (threads)
            p->why = threads < chosen
                         ? "fewer workers than cores: not bound, other processes may run"
                         : "more workers than cores: not bound";
    }
}

/* Host memory lies next to the device, else next to the compute threads. */
static void choose_near(struct spw_placement *p, const struct spw_placement_request *q)
{
    unsigned n = spw_topology_cores(p->topology);
    p->n_near = n;
    if (q->compute >= 0) {
        if (p->role[SPW_ROLE_COMPUTE].bound)
            p->n_near = p->role[SPW_ROLE_COMPUTE].n_cores;
        return;
    }
    unsigned tail = tail_length(p, q);
    if (is_near(p->topology, q, p->cores[n - 1])) {
        p->first_near = n - tail;
        p->n_near = tail;
    }
}

int spw_placement_init(struct spw_placement *out, const struct spw_topology *topology,
                       const struct spw_placement_request *request)
{
    *out =
        (struct spw_placement){.topology = topology, .why = "few cores: the system places threads"};
    out->role[SPW_ROLE_COMPUTE].n_threads = request->compute > 0 ? (unsigned)request->compute : 0;
    out->role[SPW_ROLE_TRANSFER].n_threads = request->transfer;
    out->role[SPW_ROLE_IO].n_threads = request->io;
    if (!topology)
        return 0;
    out->cores = spw_alloc_zero(spw_topology_cores(topology), sizeof *out->cores);
    if (!out->cores)
        return -ENOMEM;
    put_in_order(out, request);
    decide(out, request, count_from(topology, fast_rank(topology)));
    choose_near(out, request);
    return 0;
}

void spw_placement_free(struct spw_placement *p)
{
    spw_free(p->cores);
    *p = (struct spw_placement){0};
}

/* --- binding --- */

void spw_placement_bind(const struct spw_placement *p, enum spw_role role, unsigned i)
{
    const struct spw_places *r = &p->role[role];
    if (!p->topology || !r->bound)
        return;
    const unsigned *cores = p->cores + r->first;
    if (role == SPW_ROLE_COMPUTE)
        spw_topology_bind(p->topology, cores + i % r->n_cores, 1);
    else
        spw_topology_bind(p->topology, cores, r->n_cores);
}

void spw_placement_bind_io(void *context, unsigned i)
{
    spw_placement_bind(context, SPW_ROLE_IO, i);
}

void spw_placement_bind_near(const struct spw_placement *p)
{
    if (p->topology && p->n_near < spw_topology_cores(p->topology))
        spw_topology_bind(p->topology, p->cores + p->first_near, p->n_near);
}

void spw_placement_place_memory(const struct spw_placement *p, void *memory, uint64_t bytes)
{
    if (p->topology)
        spw_topology_place_memory(p->topology, p->cores + p->first_near, p->n_near, memory, bytes);
}
