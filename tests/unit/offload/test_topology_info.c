/* The description of made-up machines: two sockets with a GPU on the second and drives, cores of
 * two kinds, a machine of which the process may use a part; and of this machine. */
#include "offload/device/placement.h"
#include "offload/device/topology.h"
#include "offload/device/topology_info.h"
#include "tests/check.h"

#include <hwloc.h>
#include <stdbool.h>
#include <string.h>

static hwloc_topology_t start(void)
{
    hwloc_topology_t h;
    CHECK(hwloc_topology_init(&h) == 0);
    hwloc_topology_set_io_types_filter(h, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    return h;
}

static hwloc_topology_t made_up(const char *machine)
{
    hwloc_topology_t h = start();
    CHECK(hwloc_topology_set_synthetic(h, machine) == 0 && hwloc_topology_load(h) == 0);
    return h;
}

/* Devices in hwloc's XML, under their package. */
#define BRIDGE(text)                                                                               \
    "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\">" text    \
    "</object>"
#define PCI(bus, id, text)                                                                         \
    "<object type=\"PCIDev\" pci_busid=\"" bus "\" pci_type=\"" id "\">" text "</object>"
#define BLOCK(name, type)                                                                          \
    "<object type=\"OSDev\" name=\"" name "\" osdev_type=\"0\">"                                   \
    "<info name=\"Type\" value=\"" type "\"/><info name=\"Size\" value=\"1048576\"/>"              \
    "<info name=\"Model\" value=\"Model of " name "\"/></object>"

static const char first_package[] =
    BRIDGE(PCI("0000:01:00.0", "0108 [144d:a80c] [0000:0000] 00", BLOCK("nvme0n1", "Disk"))
               PCI("0000:02:00.0", "0300 [1a03:2000] [0000:0000] 00", ""));
static const char second_package[] = BRIDGE(
    PCI("0000:81:00.0", "0302 [10de:2335] [0000:0000] 00",
        "<object type=\"OSDev\" name=\"card1\" osdev_type=\"1\"/>"
        "<object type=\"OSDev\" name=\"nvml0\" osdev_type=\"1\">"
        "<info name=\"GPUModel\" value=\"NVIDIA H200\"/></object>")
        PCI("0000:82:00.0", "0106 [8086:1d02] [0000:0000] 00",
            BLOCK("sda", "Disk") BLOCK("sr0", "Removable Media Device") BLOCK("st0", "Tape")));

/* Two packages of four cores, with these devices. */
static hwloc_topology_t with_devices(void)
{
    static char text[1 << 15];
    hwloc_topology_t plain = made_up("pack:2 [numa(memory=8GiB)] l3:1(size=32MiB) l2:4(size=1MiB) "
                                     "core:1 pu:2");
    char *xml = NULL, *end;
    int bytes = 0;
    CHECK(hwloc_topology_export_xmlbuffer(plain, &xml, &bytes, 0) == 0);
    end = xml ? strstr(xml, "\n    </object>") : NULL; /* of the first package */
    char *second = end ? strstr(end + 1, "\n    </object>") : NULL;
    CHECK(second);
    if (second)
        snprintf(text, sizeof text, "%.*s%s%.*s%s%s", (int)(end - xml), xml, first_package,
                 (int)(second - end), end, second_package, second);
    hwloc_free_xmlbuffer(plain, xml);
    hwloc_topology_destroy(plain);
    hwloc_topology_t h = start();
    CHECK(hwloc_topology_set_xmlbuffer(h, text, (int)strlen(text) + 1) == 0);
    CHECK(hwloc_topology_load(h) == 0);
    return h;
}

static void check_device(const struct spw_machine_device_info *d, enum spw_machine_device_kind kind,
                         const char *name, const char *model, const char *bus, int node)
{
    CHECK_MSG(d->kind == kind && !strcmp(d->name, name) && !strcmp(d->model, model) &&
                  !strcmp(d->bus, bus) && d->node == node,
              "%d '%s' '%s' '%s' %d", (int)d->kind, d->name, d->model, d->bus, d->node);
}

static void test_devices(void)
{
    struct spw_topology_info info;
    hwloc_topology_t h = with_devices();
    CHECK(spw_topology_describe_loaded(&info, h, NULL) == 0);
    CHECK(info.n_packages == 2 && info.n_cores == 8 && info.n_threads == 16);
    CHECK(info.memory_bytes == (uint64_t)16 << 30 && info.n_nodes == 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct spw_node_info *n = &info.nodes[i];
        CHECK(n->number == i && n->package == i && n->memory_bytes == (uint64_t)8 << 30);
        CHECK(n->n_cores == 4 && !strcmp(n->threads.text, i ? "8-15" : "0-7"));
    }
    CHECK(info.n_caches == 2);
    for (unsigned i = 0; i < info.n_caches; i++) {
        const struct spw_cache_info *c = &info.caches[i];
        CHECK(c->level == 3
                  ? c->n == 2 && c->bytes == 32u << 20 && c->n_cores == 4
                  : c->level == 2 && c->n == 8 && c->bytes == 1u << 20 && c->n_cores == 1);
    }
    CHECK(info.n_kinds == 1 && info.kinds[0].n_cores == 8 && !*info.kinds[0].name);
    CHECK(info.n_usable_cores == 8 && !strcmp(info.usable.text, "0-15"));
    CHECK(info.n_devices == 4);
    if (info.n_devices == 4) {
        check_device(&info.devices[0], SPW_MACHINE_GPU, "", "1a03:2000", "0000:02:00.0", 0);
        check_device(&info.devices[1], SPW_MACHINE_GPU, "nvml0", "NVIDIA H200", "0000:81:00.0", 1);
        check_device(&info.devices[2], SPW_MACHINE_DRIVE, "nvme0n1", "Model of nvme0n1",
                     "0000:01:00.0", 0);
        check_device(&info.devices[3], SPW_MACHINE_DRIVE, "sda", "Model of sda", "0000:82:00.0", 1);
        CHECK(info.devices[3].bytes == (uint64_t)1 << 30 && !info.devices[1].bytes);
    }
    spw_topology_info_free(&info);
    spw_topology_info_free(&info);

    /* The same machine with placement: threads for the GPU run on the second socket. */
    struct spw_topology *t = NULL;
    struct spw_placement p;
    CHECK(spw_topology_open_loaded(&t, h, NULL) == 0); /* takes ownership of h */
    CHECK(spw_topology_node_of_pci(t, "0000:81:00.0") == 1);
    CHECK(spw_topology_node_of_pci(t, "0000:01:00.0") == 0);
    CHECK(spw_topology_node_of_pci(t, "0000:99:00.0") == -1);
    struct spw_placement_request q = {.compute = -1, .io = 1, .has_node = true, .node = 1};
    CHECK(spw_placement_init(&p, t, &q) == 0);
    const struct spw_places *io = &p.role[SPW_ROLE_IO];
    char list[64];
    spw_topology_list(t, p.cores + io->first, io->n_cores, list, sizeof list);
    CHECK(io->bound && !strcmp(list, "8-15") && p.n_near == 4);
    spw_placement_free(&p);
    spw_topology_close(t);
}

static void test_kinds(void)
{
    struct spw_topology_info info;
    struct hwloc_info_s mhz = {.name = (char[]){"FrequencyMaxMHz"}, .value = (char[]){"5200"}};
    hwloc_topology_t h = made_up("core:12 pu:1");
    hwloc_bitmap_t fast = hwloc_bitmap_alloc(), slow = hwloc_bitmap_alloc();
    hwloc_bitmap_set_range(fast, 0, 3);
    hwloc_bitmap_set_range(slow, 4, 11);
    CHECK(hwloc_cpukinds_register(h, fast, 9, 1, &mhz, 0) == 0);
    CHECK(hwloc_cpukinds_register(h, slow, 3, 0, NULL, 0) == 0);
    hwloc_bitmap_free(fast);
    hwloc_bitmap_free(slow);
    CHECK(spw_topology_describe_loaded(&info, h, NULL) == 0);
    CHECK(info.n_kinds == 2);
    const struct spw_core_kind_info *k = info.kinds;
    CHECK(!strcmp(k[0].name, "slow") && k[0].n_cores == 8 && !strcmp(k[0].threads.text, "4-11"));
    CHECK(!strcmp(k[1].name, "fast") && k[1].n_cores == 4 && !strcmp(k[1].threads.text, "0-3"));
    CHECK(k[0].mhz == 0 && k[1].mhz == 5200);
    spw_topology_info_free(&info);
    hwloc_topology_destroy(h);
}

static void test_this_machine(void)
{
    struct spw_topology_info info;
    struct spw_topology *t = NULL;
    CHECK(spw_topology_describe(&info, NULL) == 0 && spw_topology_open(&t, NULL, NULL) == 0);
    CHECK(info.n_usable_threads == spw_topology_usable_threads());
    CHECK(info.n_usable_cores == spw_topology_cores(t));
    CHECK(info.n_usable_threads <= info.n_threads && info.n_usable_cores <= info.n_cores);
    CHECK(info.n_nodes >= spw_topology_nodes(t) && info.memory_bytes > 0);
    CHECK(info.memory_bytes >= info.available_bytes);
    spw_topology_close(t);
    spw_topology_info_free(&info);

    for (int n = 0;; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        int rc = spw_topology_describe(&info, &err);
        spw_alloc_fail_nth(-1);
        if (!rc)
            break;
        CHECK(rc == -ENOMEM && *err.text && spw_alloc_outstanding() == 0);
    }
    spw_topology_info_free(&info);
    CHECK(spw_alloc_outstanding() == 0);
}

int main(void)
{
    test_devices();
    test_kinds();
    test_this_machine();
    return check_done();
}
