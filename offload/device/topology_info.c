/* Describes the machine with hwloc: see topology_info.h. */
#include "offload/device/topology_info.h"

#include "offload/device/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Data caches of up to five levels, with one or two sizes each. */
enum { MOST_CACHES = 16 };

/* PCI's class of displays; GPUs without a display have it, too. */
enum { PCI_DISPLAY = 0x03 };

static void list_threads(struct spw_thread_list *out, hwloc_const_bitmap_t set)
{
    hwloc_bitmap_list_snprintf(out->text, sizeof out->text, set);
}

static unsigned count_inside(hwloc_topology_t h, hwloc_const_bitmap_t set, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_inside_cpuset_by_type(h, set, type);
    return n > 0 ? (unsigned)n : 0;
}

/* Some virtual machines report no cores. */
static unsigned count_cores(hwloc_topology_t h, hwloc_const_bitmap_t set)
{
    unsigned n = count_inside(h, set, HWLOC_OBJ_CORE);
    return n ? n : count_inside(h, set, HWLOC_OBJ_PU);
}

/* --- processors and memory --- */

/* Cores with at least one hardware thread that we may use. */
static unsigned count_usable_cores(hwloc_topology_t h, hwloc_const_bitmap_t usable)
{
    hwloc_obj_t core = NULL;
    unsigned n = 0;
    while ((core = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_CORE, core)))
        n += hwloc_bitmap_intersects(core->cpuset, usable) != 0;
    return n ? n : (unsigned)hwloc_bitmap_weight(usable);
}

/* What the control group and the affinity of the calling thread allow. */
static int describe_usable(struct spw_topology_info *out, hwloc_topology_t h)
{
    hwloc_bitmap_t usable = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(h));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    int rc = usable && bound ? 0 : -ENOMEM;
    if (!rc) {
        if (hwloc_topology_is_thissystem(h) && !hwloc_get_cpubind(h, bound, HWLOC_CPUBIND_THREAD))
            hwloc_bitmap_and(usable, usable, bound);
        out->quota = hwloc_topology_is_thissystem(h) ? spw_topology_quota() : 0;
        out->n_usable_threads = (unsigned)hwloc_bitmap_weight(usable);
        out->n_usable_cores = count_usable_cores(h, usable);
        list_threads(&out->usable, usable);
    }
    hwloc_bitmap_free(bound);
    hwloc_bitmap_free(usable);
    return rc;
}

static void describe_processors(struct spw_topology_info *out, hwloc_topology_t h)
{
    hwloc_obj_t root = hwloc_get_root_obj(h);
    hwloc_obj_t package = hwloc_get_obj_by_type(h, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    snprintf(out->cpu, sizeof out->cpu, "%s", model ? model : "unknown CPU");
    out->n_packages = (unsigned)hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_PACKAGE);
    out->n_cores = count_cores(h, root->cpuset);
    out->n_threads = count_inside(h, root->cpuset, HWLOC_OBJ_PU);
    /* The nodes' own numbers are out of date if memory was added to a virtual machine, and
     * missing without /sys. */
    const long pages = hwloc_topology_is_thissystem(h) ? sysconf(_SC_PHYS_PAGES) : 0;
    out->memory_bytes =
        pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : root->total_memory;
}

static void describe_nodes(struct spw_topology_info *out, hwloc_topology_t h)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, node))) {
        struct spw_node_info *n = &out->nodes[out->n_nodes++];
        hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_PACKAGE, node);
        n->number = node->os_index;
        n->package = package ? package->logical_index : 0;
        n->memory_bytes = node->attr->numanode.local_memory;
        n->n_cores = count_cores(h, node->cpuset);
        list_threads(&n->threads, node->cpuset);
    }
}

static void add_cache(struct spw_topology_info *out, hwloc_topology_t h, hwloc_obj_t cache)
{
    struct spw_cache_info c = {.level = cache->attr->cache.depth,
                               .n = 1,
                               .bytes = cache->attr->cache.size,
                               .n_cores = count_cores(h, cache->cpuset)};
    for (unsigned i = 0; i < out->n_caches; i++) {
        struct spw_cache_info *known = &out->caches[i];
        if (known->level == c.level && known->bytes == c.bytes && known->n_cores == c.n_cores) {
            known->n++;
            return;
        }
    }
    if (out->n_caches < MOST_CACHES)
        out->caches[out->n_caches++] = c;
}

static void describe_caches(struct spw_topology_info *out, hwloc_topology_t h)
{
    for (int type = HWLOC_OBJ_L1CACHE; type <= HWLOC_OBJ_L5CACHE; type++) {
        hwloc_obj_t cache = NULL;
        while ((cache = hwloc_get_next_obj_by_type(h, (hwloc_obj_type_t)type, cache)))
            add_cache(out, h, cache);
    }
}

static const char *find_info(const struct hwloc_info_s *infos, unsigned n, const char *name)
{
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(infos[i].name, name))
            return infos[i].value;
    return NULL;
}

/* One kind with all cores if hwloc knows no kinds. */
static int describe_kinds(struct spw_topology_info *out, hwloc_topology_t h, unsigned n)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(hwloc_get_root_obj(h)->cpuset);
    if (!set)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++) {
        struct spw_core_kind_info *k = &out->kinds[out->n_kinds++];
        struct hwloc_info_s *infos = NULL;
        unsigned n_infos = 0;
        int efficiency = -1;
        hwloc_cpukinds_get_info(h, i, set, &efficiency, &n_infos, &infos, 0);
        const char *mhz = find_info(infos, n_infos, "FrequencyMaxMHz");
        k->mhz = mhz ? (uint32_t)strtoul(mhz, NULL, 10) : 0;
        k->n_cores = count_cores(h, set);
        list_threads(&k->threads, set);
        if (n > 1 && efficiency >= 0 && (i == 0 || i + 1 == n))
            snprintf(k->name, sizeof k->name, "%s", i ? "fast" : "slow");
        else if (n > 1)
            snprintf(k->name, sizeof k->name, "kind %u", i);
    }
    hwloc_bitmap_free(set);
    return 0;
}

/* --- devices --- */

static void set_place(struct spw_machine_device_info *d, hwloc_topology_t h, hwloc_obj_t object,
                      hwloc_obj_t pci)
{
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(h, object);
    d->node = -1;
    /* A device that is next to all nodes is next to none. */
    if (near && hwloc_bitmap_weight(near->nodeset) == 1)
        d->node = hwloc_bitmap_first(near->nodeset);
    if (pci)
        snprintf(d->bus, sizeof d->bus, "%04x:%02x:%02x.%01x", pci->attr->pcidev.domain & 0xffff,
                 pci->attr->pcidev.bus, pci->attr->pcidev.dev, pci->attr->pcidev.func);
}

/* NVIDIA's driver has a file with the name of each GPU. */
static bool read_driver(char *out, size_t bytes, const char *bus)
{
    static const char key[] = "Model:";
    char path[96], line[160];
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", bus);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, sizeof key - 1) != 0)
            continue;
        const char *value = line + sizeof key - 1 + strspn(line + sizeof key - 1, " \t");
        snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

/* Without a name: the maker and the PCI numbers. */
static void name_pci(char *out, size_t bytes, const struct hwloc_pcidev_attr_s *pci)
{
    const char *maker = pci->vendor_id == 0x10de   ? "NVIDIA "
                        : pci->vendor_id == 0x1002 ? "AMD "
                        : pci->vendor_id == 0x8086 ? "Intel "
                                                   : "";
    snprintf(out, bytes, "%s%04x:%04x", maker, pci->vendor_id, pci->device_id);
}

static void describe_gpu(struct spw_topology_info *out, hwloc_topology_t h, hwloc_obj_t pci)
{
    struct spw_machine_device_info *d = &out->devices[out->n_devices++];
    const char *model = NULL;
    d->kind = SPW_MACHINE_GPU;
    set_place(d, h, pci, pci);
    for (hwloc_obj_t o = pci->io_first_child; o; o = o->next_sibling) {
        const char *name = hwloc_obj_get_info_by_name(o, "GPUModel"); /* from NVML */
        if (o->type != HWLOC_OBJ_OS_DEVICE || (!name && *d->name))
            continue;
        snprintf(d->name, sizeof d->name, "%s", o->name ? o->name : "");
        model = name ? name : model;
    }
    if (model)
        snprintf(d->model, sizeof d->model, "%s", model);
    else if (!hwloc_topology_is_thissystem(h) || !read_driver(d->model, sizeof d->model, d->bus))
        name_pci(d->model, sizeof d->model, &pci->attr->pcidev);
}

static void describe_drive(struct spw_topology_info *out, hwloc_topology_t h, hwloc_obj_t block)
{
    const char *type = hwloc_obj_get_info_by_name(block, "Type");
    const char *model = hwloc_obj_get_info_by_name(block, "Model");
    const char *size = hwloc_obj_get_info_by_name(block, "Size"); /* KiB */
    hwloc_obj_t pci = block->parent;
    if (type && strcmp(type, "Disk") && strcmp(type, "NVM"))
        return; /* a tape, or a removable medium */
    while (pci && pci->type != HWLOC_OBJ_PCI_DEVICE)
        pci = pci->parent;
    struct spw_machine_device_info *d = &out->devices[out->n_devices++];
    d->kind = SPW_MACHINE_DRIVE;
    set_place(d, h, block, pci);
    snprintf(d->name, sizeof d->name, "%s", block->name ? block->name : "");
    snprintf(d->model, sizeof d->model, "%s", model ? model : "");
    d->bytes = size ? strtoull(size, NULL, 10) * 1024 : 0;
}

static void describe_devices(struct spw_topology_info *out, hwloc_topology_t h)
{
    hwloc_obj_t o = NULL;
    while ((o = hwloc_get_next_pcidev(h, o)))
        if (o->attr->pcidev.class_id >> 8 == PCI_DISPLAY)
            describe_gpu(out, h, o);
    while ((o = hwloc_get_next_osdev(h, o)))
        if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_BLOCK)
            describe_drive(out, h, o);
}

/* --- all of it --- */

static unsigned count_objects(hwloc_topology_t h, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(h, type);
    return n > 0 ? (unsigned)n : 0;
}

int spw_topology_describe_loaded(struct spw_topology_info *out, struct hwloc_topology *loaded,
                                 struct spw_error *err)
{
    spw_error_clear(err);
    int kinds = hwloc_cpukinds_get_nr(loaded, 0);
    unsigned n_kinds = kinds > 0 ? (unsigned)kinds : 1;
    unsigned n_devices =
        count_objects(loaded, HWLOC_OBJ_PCI_DEVICE) + count_objects(loaded, HWLOC_OBJ_OS_DEVICE);
    *out = (struct spw_topology_info){0};
    out->nodes = spw_alloc_zero(count_objects(loaded, HWLOC_OBJ_NUMANODE), sizeof *out->nodes);
    out->caches = spw_alloc_zero(MOST_CACHES, sizeof *out->caches);
    out->kinds = spw_alloc_zero(n_kinds, sizeof *out->kinds);
    out->devices = spw_alloc_zero(n_devices + 1, sizeof *out->devices);
    int rc = out->nodes && out->caches && out->kinds && out->devices ? 0 : -ENOMEM;
    if (!rc)
        rc = describe_usable(out, loaded);
    if (!rc)
        rc = describe_kinds(out, loaded, n_kinds);
    if (rc) {
        spw_topology_info_free(out);
        return spw_fail(err, rc, "out of memory for the topology");
    }
    describe_processors(out, loaded);
    describe_nodes(out, loaded);
    describe_caches(out, loaded);
    describe_devices(out, loaded);
    return 0;
}

/* First the whole machine, then the part that we may use. Of the libraries of GPUs only NVML is
 * used, for names: the others would open the GPU or a display. hwloc's code for libpciaccess
 * leaks memory, and /sys has everything but names. */
int spw_topology_describe(struct spw_topology_info *out, struct spw_error *err)
{
    spw_error_clear(err);
    static const char *const left_out[] = {"pci", "cuda", "opencl", "rsmi", "levelzero", "gl"};
    hwloc_topology_t h;
    *out = (struct spw_topology_info){0};
    if (hwloc_topology_init(&h))
        return spw_fail(err, -ENOMEM, "out of memory for the topology");
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        hwloc_topology_set_components(h, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, left_out[i]);
    hwloc_topology_set_flags(h, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
                                    HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM);
    hwloc_topology_set_io_types_filter(h, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    int rc = hwloc_topology_load(h)
                 ? spw_fail(err, -EIO, "hwloc cannot read this machine's topology")
                 : spw_topology_describe_loaded(out, h, err);
    hwloc_topology_destroy(h);
    return rc;
}

void spw_topology_info_free(struct spw_topology_info *info)
{
    spw_free(info->nodes);
    spw_free(info->caches);
    spw_free(info->kinds);
    spw_free(info->devices);
    *info = (struct spw_topology_info){0};
}
