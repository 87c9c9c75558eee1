/* Memory that will be pinned: touched pages are present and zero, with one thread or several.
 * Memory that a device gives out is touched if files will be read into it. */
#include "offload/device/device.h"
#include "offload/device/host_pages.h"
#include "offload/device/placement.h"
#include "offload/device/topology.h"
#include "tests/check.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096u

static uint64_t count_present(void *p, uint64_t bytes)
{
    static unsigned char pages[(96u << 20) / PAGE_BYTES];
    uint64_t n = 0, n_pages = bytes / PAGE_BYTES;
    CHECK(n_pages <= sizeof pages && mincore(p, bytes, pages) == 0);
    for (uint64_t i = 0; i < n_pages; i++)
        n += pages[i] & 1;
    return n;
}

static bool all_zero(const unsigned char *p, uint64_t bytes)
{
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

static void check_pages(uint64_t bytes, const struct spw_placement *place)
{
    void *p = NULL;
    CHECK(spw_host_pages_map(bytes, place, &p) == 0 && p && (uintptr_t)p % PAGE_BYTES == 0);
    if (bytes >= 2u << 20)
        CHECK(((uintptr_t)p + bytes) % (2u << 20) == 0);
    spw_host_pages_touch(p, bytes, place);
    CHECK_MSG(count_present(p, bytes) == bytes / PAGE_BYTES, "%llu of %llu pages",
              (unsigned long long)count_present(p, bytes),
              (unsigned long long)(bytes / PAGE_BYTES));
    CHECK(all_zero(p, bytes));
    spw_host_pages_unmap(p, bytes);
}

static void test_pages(void)
{
    struct spw_placement nowhere = {0}, place;
    struct spw_topology *here = NULL, *made_up = NULL;
    struct spw_placement_request gpu = {.compute = -1, .io = 1, .has_node = true, .node = 1};
    const uint64_t sizes[] = {PAGE_BYTES, 3 * PAGE_BYTES, 5u << 20, (66u << 20) + PAGE_BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_pages(sizes[i], &nowhere);
    /* This machine, and a machine with a node that may not exist here: best effort on both. */
    CHECK(spw_topology_open(&here, NULL, NULL) == 0);
    CHECK(spw_placement_init(&place, here, &gpu) == 0);
    check_pages(66u << 20, &place);
    spw_placement_free(&place);
    CHECK(spw_topology_open(&made_up, "pack:2 [numa] core:8 pu:1", NULL) == 0);
    CHECK(spw_placement_init(&place, made_up, &gpu) == 0 && place.n_near == 8);
    check_pages(66u << 20, &place);
    spw_placement_free(&place);
    spw_topology_close(made_up);
    spw_topology_close(here);
}

/* The caller does the part of every thread that cannot be started; no memory is a failure. */
static void test_failures(void)
{
    struct spw_placement nowhere = {0};
    void *p = &p;
    spw_alloc_fail_nth(0);
    CHECK(spw_host_pages_map(PAGE_BYTES, &nowhere, &p) == -ENOMEM && !p);
    spw_alloc_fail_nth(-1);
    CHECK(spw_host_pages_map((uint64_t)1 << 60, &nowhere, &p) == -ENOMEM && !p);
    for (int n = 0; n < 3; n++) {
        CHECK(spw_host_pages_map(96u << 20, &nowhere, &p) == 0);
        spw_alloc_fail_nth(n);
        spw_host_pages_touch(p, 96u << 20, &nowhere);
        spw_alloc_fail_nth(-1);
        CHECK(count_present(p, 96u << 20) == (96u << 20) / PAGE_BYTES);
        spw_host_pages_unmap(p, 96u << 20);
    }
    spw_host_pages_unmap(NULL, 0);
}

static void test_device(unsigned io_threads)
{
    struct spw_device_options o = {.device_bytes = 64u << 20,
                                   .host_bytes = 64u << 20,
                                   .io_threads = io_threads,
                                   .io_path = "."};
    struct spw_device *d = NULL;
    void *device = NULL, *host = NULL;
    const uint64_t bytes = 3u << 20;
    CHECK(spw_device_cpu.open(&d, &o, NULL) == 0);
    CHECK(spw_device_cpu.alloc(d, bytes, &device) == 0);
    CHECK(spw_device_cpu.alloc_host(d, bytes, &host) == 0);
    if (io_threads) {
        CHECK(count_present(device, bytes) == bytes / PAGE_BYTES);
        CHECK(count_present(host, bytes) == bytes / PAGE_BYTES);
    }
    CHECK(all_zero(device, bytes) && all_zero(host, bytes));
    const struct spw_placement *place = spw_device_cpu.placement(d);
    CHECK(place && (!place->topology || place->role[SPW_ROLE_IO].n_threads == io_threads));
    spw_device_cpu.free(d, device, bytes);
    spw_device_cpu.free_host(d, host, bytes);
    spw_device_cpu.close(d);
}

int main(void)
{
    test_pages();
    test_failures();
    test_device(0);
    test_device(2);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
