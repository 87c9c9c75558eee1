/* Processor counts and worker placement on machines that hwloc makes up. */
#include "offload/topology.h"
#include "tests/check.h"

#include <string.h>

/* The made-up machines number hardware threads depth-first: core c has c * pu ... c * pu + pu - 1.
 */
static void check_places(const char *machine, unsigned cores, unsigned threads,
                         const unsigned *places, unsigned n_places)
{
    struct spw_topology *t = NULL;
    CHECK(spw_topology_open(&t, machine, NULL) == 0);
    CHECK(spw_topology_cores(t) == cores && spw_topology_threads(t) == threads);
    for (unsigned i = 0; i < n_places; i++)
        CHECK_MSG(spw_topology_place(t, i) == places[i], "%s: worker %u at %u", machine, i,
                  spw_topology_place(t, i));
    spw_topology_close(t);
}

static void test_made_up(void)
{
    /* Cores of node 0, cores of node 1, then the second threads in the same order, then again. */
    check_places("numa:2 core:2 pu:2", 4, 8, (unsigned[]){0, 2, 4, 6, 1, 3, 5, 7, 0}, 9);
    check_places("pack:2 [numa] core:2 pu:1", 4, 4, (unsigned[]){0, 1, 2, 3, 0}, 5);
    check_places("core:1 pu:1", 1, 1, (unsigned[]){0, 0}, 2);
    check_places("core:2 pu:4", 2, 8, (unsigned[]){0, 4, 1, 5, 2, 6, 3, 7}, 8);
    check_places("pu:3", 3, 3, (unsigned[]){0, 1, 2, 0}, 4); /* no cores named */
    /* The system numbers the nodes in turn: 0 and 2 lie on the first, 1 and 3 on the second. */
    check_places("numa:2 core:2 pu:1(indexes=0,2,1,3)", 4, 4, (unsigned[]){0, 2, 1, 3}, 4);
}

static void test_this_machine(void)
{
    struct spw_topology *t = NULL;
    CHECK(spw_topology_open(&t, NULL, NULL) == 0);
    CHECK(spw_topology_cores(t) >= 1 && spw_topology_cores(t) <= spw_topology_threads(t));
    CHECK(spw_topology_threads(t) == spw_topology_usable_threads());
    spw_topology_bind(t, 0);
    CHECK(spw_topology_usable_threads() <= spw_topology_threads(t));
    spw_topology_close(t);
}

static void test_failures(void)
{
    struct spw_topology *t = NULL;
    struct spw_error err = {0};
    CHECK(spw_topology_open(&t, "no such machine", &err) == -EIO && !t);
    CHECK(strstr(err.text, "no such machine"));
    for (int n = 0;; n++) {
        spw_alloc_fail_nth(n);
        int rc = spw_topology_open(&t, "core:2 pu:1", NULL);
        spw_alloc_fail_nth(-1);
        if (!rc)
            break;
        CHECK(rc == -ENOMEM && spw_alloc_outstanding() == 0);
    }
    spw_topology_close(t);
    spw_topology_close(NULL);
    CHECK(spw_alloc_outstanding() == 0);
}

int main(void)
{
    test_made_up();
    test_this_machine(); /* binds this thread: nothing after it may count processors */
    test_failures();
    return check_done();
}
