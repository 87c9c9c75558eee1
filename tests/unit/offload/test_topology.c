/* The topology of made-up machines, and the placement of threads on them. */
#include "offload/device/placement.h"
#include "offload/device/topology.h"
#include "tests/check.h"

#include <hwloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

static struct spw_topology *made_up(const char *machine)
{
    struct spw_topology *t = NULL;
    CHECK(spw_topology_open(&t, machine, NULL) == 0);
    return t;
}

/* ---- counts and numbers ---- */

/* The made-up machines number hardware threads depth-first: core c has c * pu ... c * pu + pu - 1.
 */
static void check_counts(const char *machine, unsigned cores, unsigned threads, unsigned nodes,
                         const unsigned *first_threads)
{
    struct spw_topology *t = made_up(machine);
    CHECK_MSG(spw_topology_cores(t) == cores && spw_topology_threads(t) == threads &&
                  spw_topology_nodes(t) == nodes,
              "%s: %u cores, %u threads, %u nodes", machine, spw_topology_cores(t),
              spw_topology_threads(t), spw_topology_nodes(t));
    for (unsigned i = 0; i < cores; i++) {
        char list[32];
        spw_topology_list(t, &i, 1, list, sizeof list); /* "4", or "4-5" */
        CHECK_MSG((unsigned)atoi(list) == first_threads[i], "%s: core %u at %s", machine, i, list);
        CHECK(spw_topology_core_rank(t, i) == 0);
    }
    spw_topology_close(t);
}

static void test_counts(void)
{
    check_counts("numa:2 core:2 pu:2", 4, 8, 2, (unsigned[]){0, 2, 4, 6});
    check_counts("pack:2 [numa] core:2 pu:1", 4, 4, 2, (unsigned[]){0, 1, 2, 3});
    check_counts("core:1 pu:1", 1, 1, 1, (unsigned[]){0});
    check_counts("core:2 pu:4", 2, 8, 1, (unsigned[]){0, 4});
    check_counts("pu:3", 3, 3, 1, (unsigned[]){0, 1, 2}); /* the machine names no cores */
    /* The system numbers the nodes in turn: 0 and 2 lie on the first, 1 and 3 on the second. */
    check_counts("numa:2 core:2 pu:1(indexes=0,2,1,3)", 4, 4, 2, (unsigned[]){0, 2, 1, 3});

    struct spw_topology *t = made_up("pack:2 [numa] core:2 pu:1");
    for (unsigned core = 0; core < 4; core++)
        for (unsigned node = 0; node < 3; node++)
            CHECK(spw_topology_core_on_node(t, core, node) == (core / 2 == node));
    /* The devices of this machine are unknown on a made-up one. */
    CHECK(spw_topology_node_of_pci(t, "0000:00:00.0") == -1);
    CHECK(spw_topology_node_of_path(t, "/") == -1);
    spw_topology_close(t);
}

/* ---- placement ---- */

/* Kind `fast` of the processors in a list such as "0-7"; the others are slow. */
static struct spw_topology *hybrid(const char *machine, const char *fast)
{
    hwloc_topology_t h;
    CHECK(hwloc_topology_init(&h) == 0 && hwloc_topology_set_synthetic(h, machine) == 0 &&
          hwloc_topology_load(h) == 0);
    hwloc_bitmap_t kind = hwloc_bitmap_alloc(), rest = hwloc_bitmap_alloc();
    hwloc_bitmap_list_sscanf(kind, fast);
    hwloc_bitmap_andnot(rest, hwloc_topology_get_complete_cpuset(h), kind);
    CHECK(hwloc_cpukinds_register(h, kind, 20, 0, NULL, 0) == 0);
    CHECK(hwloc_cpukinds_register(h, rest, 10, 0, NULL, 0) == 0);
    hwloc_bitmap_free(kind);
    hwloc_bitmap_free(rest);
    struct spw_topology *t = NULL;
    CHECK(spw_topology_open_loaded(&t, h, NULL) == 0);
    return t;
}

/* Limits the machine like a control group. */
static struct spw_topology *cut_down(const char *machine, const char *left)
{
    hwloc_topology_t h;
    CHECK(hwloc_topology_init(&h) == 0 && hwloc_topology_set_synthetic(h, machine) == 0 &&
          hwloc_topology_load(h) == 0);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    hwloc_bitmap_list_sscanf(set, left);
    CHECK(hwloc_topology_restrict(h, set, 0) == 0);
    hwloc_bitmap_free(set);
    struct spw_topology *t = NULL;
    CHECK(spw_topology_open_loaded(&t, h, NULL) == 0);
    return t;
}

static void list_cores(const struct spw_placement *p, const struct spw_places *r, char *out,
                       size_t bytes)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (unsigned i = 0; i < r->n_cores; i++)
        hwloc_bitmap_set(set, p->cores[r->first + i]);
    hwloc_bitmap_list_snprintf(out, bytes, set);
    hwloc_bitmap_free(set);
}

/* `expected`: "16 0-15 | 4 14-15 | 1 15": threads and cores of each role; "free" where nothing is
 * bound. Closes the topology. */
static void check_placement(struct spw_topology *t, struct spw_placement_request q,
                            const char *expected)
{
    struct spw_placement p;
    char found[512] = "";
    CHECK(spw_placement_init(&p, t, &q) == 0);
    for (int role = 0; role < SPW_ROLE_COUNT; role++) {
        const struct spw_places *r = &p.role[role];
        char cores[128] = "free";
        size_t n = strlen(found);
        if (r->bound)
            list_cores(&p, r, cores, sizeof cores);
        snprintf(found + n, sizeof found - n, "%s%u%s%s", n ? " | " : "", r->n_threads,
                 r->n_threads ? " " : "", r->n_threads ? cores : "");
        CHECK(r->first + r->n_cores <= spw_topology_cores(t));
    }
    CHECK_MSG(strcmp(found, expected) == 0, "found '%s', expected '%s' (%s)", found, expected,
              p.why);
    CHECK(p.why && *p.why);
    spw_placement_free(&p);
    spw_placement_free(&p); /* all zeros now */
    spw_topology_close(t);
}

static const struct spw_placement_request runs = {.transfer = 4}, reads = {.transfer = 4, .io = 1},
                                          gpu = {.compute = -1, .io = 2};

static struct spw_placement_request near_node(struct spw_placement_request q, unsigned node)
{
    q.has_node = true;
    q.node = node;
    return q;
}

static struct spw_placement_request with_threads(struct spw_placement_request q, int threads)
{
    q.compute = threads;
    return q;
}

static void test_sockets(void)
{
    static const char machine[] = "pack:2 [numa] core:8 pu:1";
    check_placement(made_up(machine), runs, "16 0-15 | 4 14-15 | 0");
    check_placement(made_up(machine), reads, "15 0-14 | 4 14-15 | 1 15");
    /* The drive is next to the first socket, and so is the spare core. */
    check_placement(made_up(machine), near_node(reads, 0), "15 0-6,8-15 | 4 6-7 | 1 7");
    check_placement(made_up(machine), near_node(reads, 1), "15 0-14 | 4 14-15 | 1 15");
    /* A GPU on the second socket, without compute threads; on neither. */
    check_placement(made_up(machine), near_node(gpu, 1), "0 | 0 | 2 8-15");
    check_placement(made_up(machine), near_node(gpu, 0), "0 | 0 | 2 0-7");
    check_placement(made_up(machine), gpu, "0 | 0 | 2 free");
    /* The user gives the number of threads. */
    check_placement(made_up(machine), with_threads(reads, 16), "16 0-15 | 4 14-15 | 1 14-15");
    check_placement(made_up(machine), with_threads(reads, 5), "5 free | 4 free | 1 free");
    check_placement(made_up(machine), near_node(with_threads(reads, 5), 1),
                    "5 free | 4 8-15 | 1 8-15");
    check_placement(made_up(machine), with_threads(reads, 40), "40 free | 4 free | 1 free");
}

static void test_threads_of_cores(void)
{
    /* Two hardware threads a core: workers have whole cores. */
    check_placement(made_up("core:8 pu:2"), runs, "8 0-7 | 4 6-7 | 0");
    check_placement(made_up("core:8 pu:2"), reads, "7 0-6 | 4 6-7 | 1 7");
    check_placement(made_up("core:6 pu:2"), reads, "6 0-5 | 4 4-5 | 1 4-5"); /* none to spare */
}

/* The CPU computes beside a GPU: where there are three cores, one is left. */
static void test_beside_device(void)
{
    const struct spw_placement_request beside = {.beside_device = true};
    check_placement(made_up("core:8 pu:2"), beside, "7 0-6 | 0 | 0");
    check_placement(made_up("core:3 pu:1"), beside, "2 free | 0 | 0");
    check_placement(made_up("core:2 pu:1"), beside, "2 free | 0 | 0");
    check_placement(made_up("core:8 pu:1"), with_threads(beside, 8), "8 0-7 | 0 | 0");
    check_placement(hybrid("core:16 pu:1", "0-7"), beside, "8 0-7 | 0 | 0");
}

static void test_hybrid(void)
{
    /* 8 fast cores of 2 threads would be PUs 0-15; here a machine of 8 + 8 cores. */
    check_placement(hybrid("core:16 pu:1", "0-7"), runs, "8 0-7 | 4 12-15 | 0");
    check_placement(hybrid("core:16 pu:1", "0-7"), reads, "8 0-7 | 4 11-14 | 1 15");
    check_placement(hybrid("core:16 pu:1", "8-15"), reads, "8 8-15 | 4 3-6 | 1 7");
    check_placement(hybrid("core:16 pu:1", "0-7"), gpu, "0 | 0 | 2 8-15");
    /* More threads than fast cores also use slow cores; the others stay free. */
    check_placement(hybrid("core:16 pu:1", "0-7"), with_threads(reads, 10),
                    "10 0-9 | 4 11-14 | 1 15");
    check_placement(hybrid("core:16 pu:1", "0-7"), with_threads(reads, 14),
                    "14 0-13 | 4 14-15 | 1 15");
    check_placement(hybrid("core:16 pu:1", "0-7"), with_threads(reads, 4),
                    "4 free | 4 8-15 | 1 8-15");
    /* Two fast cores are too few to compute with alone; they come first. */
    check_placement(hybrid("core:10 pu:1", "8-9"), reads, "9 0-6,8-9 | 4 6-7 | 1 7");
    check_placement(hybrid("core:6 pu:1", "0-3"), reads, "4 0-3 | 4 4-5 | 1 5");
}

/* A control group that grants less time than the number of processors that it shows. */
static void test_quota(void)
{
    struct spw_placement_request q = reads;
    CHECK(spw_topology_parse_quota("max 100000\n") == 0);
    CHECK(spw_topology_parse_quota("200000 100000\n") == 2);
    CHECK(spw_topology_parse_quota("150000 100000") == 2);
    CHECK(spw_topology_parse_quota("1000 100000") == 1);
    CHECK(spw_topology_parse_quota("-1 100000") == 0 && spw_topology_parse_quota("5") == 0);
    CHECK(spw_topology_parse_quota("5 0") == 0 && spw_topology_parse_quota("") == 0);
    CHECK(spw_topology_parse_quota("9000000000000000000 1") == UINT32_MAX);
    q.quota = 2;
    check_placement(made_up("pack:2 [numa] core:8 pu:1"), q, "2 free | 4 free | 1 free");
    check_placement(made_up("pack:2 [numa] core:8 pu:1"), with_threads(q, 15),
                    "15 0-14 | 4 14-15 | 1 15");
    check_placement(made_up("core:4 pu:1"), q, "2 free | 4 free | 1 free");
    q.quota = 40;
    check_placement(made_up("pack:2 [numa] core:8 pu:1"), q, "15 0-14 | 4 14-15 | 1 15");
}

static void test_few_cores(void)
{
    check_placement(made_up("core:2 pu:1"), reads, "2 free | 4 free | 1 free");
    check_placement(made_up("core:4 pu:2"), reads, "4 free | 4 free | 1 free");
    check_placement(made_up("core:1 pu:1"), with_threads(reads, 3), "3 free | 4 free | 1 free");
    check_placement(made_up("core:5 pu:1"), reads, "5 0-4 | 4 3-4 | 1 3-4");
    /* A control group of two cores on a machine of sixteen, on one socket and across. */
    check_placement(cut_down("pack:2 [numa] core:8 pu:1", "3-4"), reads,
                    "2 free | 4 free | 1 free");
    check_placement(cut_down("pack:2 [numa] core:8 pu:1", "7-8"), near_node(reads, 1),
                    "2 free | 4 free | 1 free");
}

/* Properties of every machine and every request. */
static void test_any(void)
{
    uint64_t seed = check_seed();
    for (int round = 0; round < 300; round++) {
        char machine[64];
        unsigned nodes = (unsigned)check_range(&seed, 1, 3), each, n;
        each = (unsigned)check_range(&seed, 1, 9);
        snprintf(machine, sizeof machine, "pack:%u [numa] core:%u pu:%u", nodes, each,
                 (unsigned)check_range(&seed, 1, 2));
        struct spw_topology *t = made_up(machine);
        n = spw_topology_cores(t);
        struct spw_placement_request q = {
            .compute = (int)check_range(&seed, 0, 2 * n) - 1,
            .transfer = (unsigned)check_range(&seed, 0, 5),
            .io = (unsigned)check_range(&seed, 0, 5),
            .has_node = check_range(&seed, 0, 1),
            .node = (unsigned)check_range(&seed, 0, 3),
        };
        struct spw_placement p;
        CHECK(spw_placement_init(&p, t, &q) == 0);
        const struct spw_places *compute = &p.role[SPW_ROLE_COMPUTE], *io = &p.role[SPW_ROLE_IO];
        unsigned seen = 0, shared = 0;
        for (unsigned core = 0; core < n; core++) /* every core once */
            for (unsigned i = 0; i < n; i++)
                seen += p.cores[i] == core;
        CHECK(seen == n);
        CHECK(compute->n_threads == (q.compute < 0 ? 0u : (unsigned)q.compute) || q.compute == 0);
        CHECK(q.compute < 0 || compute->n_threads >= 1);
        for (int role = 0; role < SPW_ROLE_COUNT; role++)
            CHECK(p.role[role].first + p.role[role].n_cores <= n);
        CHECK(p.first_near + p.n_near <= n && p.n_near >= 1);
        for (unsigned i = 0; i < io->n_cores; i++)
            shared += io->first + i < compute->n_cores;
        bool spare = compute->bound && compute->n_cores < n && q.io;
        CHECK_MSG(!spare || !shared, "%s: I/O on %u cores that compute", machine, shared);
        spw_placement_free(&p);
        spw_topology_close(t);
    }
}

/* ---- this machine ---- */

static void *bind_everything(void *argument)
{
    struct spw_placement *p = argument;
    unsigned threads = spw_topology_usable_threads();
    spw_placement_bind_near(p);
    spw_placement_bind(p, SPW_ROLE_TRANSFER, 0);
    spw_placement_bind_io(p, 3);
    spw_placement_bind(p, SPW_ROLE_COMPUTE, 0);
    CHECK(spw_topology_usable_threads() >= 1 && spw_topology_usable_threads() <= threads);
    if (p->topology) /* one core of its own */
        spw_topology_bind(p->topology, p->cores, 1);
    CHECK(!p->topology || spw_topology_usable_threads() * spw_topology_cores(p->topology) <=
                              2 * spw_topology_threads(p->topology));
    return NULL;
}

static void test_this_machine(void)
{
    struct spw_topology *t = NULL;
    struct spw_placement p, nothing = {0};
    pthread_t thread;
    CHECK(spw_topology_open(&t, NULL, NULL) == 0);
    CHECK(spw_topology_cores(t) >= 1 && spw_topology_cores(t) <= spw_topology_threads(t));
    CHECK(spw_topology_threads(t) == spw_topology_usable_threads());
    CHECK(spw_topology_node_of_path(t, "/no/such/folder") == -1);
    CHECK(spw_topology_node_of_path(t, ".") < (int)spw_topology_nodes(t));
    CHECK(spw_topology_node_of_pci(t, "no bus id") == -1);
    CHECK(spw_placement_init(&p, t, &reads) == 0);
    CHECK(pthread_create(&thread, NULL, bind_everything, &p) == 0 &&
          pthread_join(thread, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, bind_everything, &nothing) == 0 &&
          pthread_join(thread, NULL) == 0);
    spw_placement_free(&p);
    spw_topology_close(t);
}

static void test_failures(void)
{
    struct spw_topology *t = NULL;
    struct spw_placement p = {0};
    struct spw_error err = {0};
    CHECK(spw_topology_open(&t, "no such machine", &err) == -EIO && !t);
    CHECK(strstr(err.text, "no such machine"));
    for (int n = 0;; n++) {
        spw_alloc_fail_nth(n);
        int rc = spw_topology_open(&t, "core:2 pu:1", NULL);
        if (rc == 0) {
            rc = spw_placement_init(&p, t, &reads);
            if (rc)
                spw_topology_close(t);
        }
        spw_alloc_fail_nth(-1);
        if (!rc)
            break;
        CHECK(rc == -ENOMEM && spw_alloc_outstanding() == 0);
    }
    spw_placement_free(&p);
    spw_topology_close(t);
    spw_topology_close(NULL);
    CHECK(spw_alloc_outstanding() == 0);
}

int main(void)
{
    test_counts();
    test_sockets();
    test_threads_of_cores();
    test_beside_device();
    test_hybrid();
    test_few_cores();
    test_quota();
    test_any();
    test_this_machine();
    test_failures();
    return check_done();
}
