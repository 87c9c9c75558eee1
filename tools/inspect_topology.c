/* `spillway inspect --topology`: the machine, what of it a run may use, and where its threads would
 * be. */
#include "tools/common.h"

#include <string.h>

/* ---- JSON ---- */

static json_t *node_json(const struct spw_node_info *n)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:s}", "node", (json_int_t)n->number, "package",
                     (json_int_t)n->package, "memory_bytes", (json_int_t)n->memory_bytes, "cores",
                     (json_int_t)n->n_cores, "threads", n->threads.text);
}

static json_t *cache_json(const struct spw_cache_info *c)
{
    return json_pack("{s:I,s:I,s:I,s:I}", "level", (json_int_t)c->level, "bytes",
                     (json_int_t)c->bytes, "count", (json_int_t)c->n, "cores_each",
                     (json_int_t)c->n_cores);
}

static json_t *kind_json(const struct spw_core_kind_info *k)
{
    return json_pack("{s:s,s:I,s:I,s:s}", "kind", k->name, "cores", (json_int_t)k->n_cores,
                     "max_mhz", (json_int_t)k->mhz, "threads", k->threads.text);
}

static json_t *device_json(const struct spw_machine_device_info *d)
{
    return json_pack(
        "{s:s,s:s,s:s,s:s,s:o,s:I}", "kind", d->kind == SPW_MACHINE_GPU ? "gpu" : "drive", "name",
        d->name, "model", d->model, "bus", d->bus, "node",
        d->node < 0 ? json_null() : json_integer(d->node), "bytes", (json_int_t)d->bytes);
}

static json_t *role_json(const struct spw_role_info *r)
{
    return json_pack("{s:I,s:b,s:s}", "count", (json_int_t)r->n_threads, "bound", r->bound,
                     "threads", r->threads.text);
}

static int add_lists(json_t *o, const struct spw_topology_info *t)
{
    json_t *nodes = json_array(), *caches = json_array(), *kinds = json_array(),
           *devices = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        failed |= json_array_append_new(nodes, node_json(&t->nodes[i]));
    for (uint32_t i = 0; i < t->n_caches; i++)
        failed |= json_array_append_new(caches, cache_json(&t->caches[i]));
    for (uint32_t i = 0; i < t->n_kinds; i++)
        failed |= json_array_append_new(kinds, kind_json(&t->kinds[i]));
    for (uint32_t i = 0; i < t->n_devices; i++)
        failed |= json_array_append_new(devices, device_json(&t->devices[i]));
    failed |= json_object_set_new(o, "nodes", nodes);
    failed |= json_object_set_new(o, "caches", caches);
    failed |= json_object_set_new(o, "core_kinds", kinds);
    failed |= json_object_set_new(o, "devices", devices);
    return failed;
}

static int print_json(const struct spw_topology_info *t)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "cpu", json_string(t->cpu));
    failed |= json_object_set_new(o, "packages", cli_json_count(t->n_packages));
    failed |= json_object_set_new(o, "cores", cli_json_count(t->n_cores));
    failed |= json_object_set_new(o, "hardware_threads", cli_json_count(t->n_threads));
    failed |= json_object_set_new(o, "memory_bytes", cli_json_count(t->memory_bytes));
    failed |= add_lists(o, t);
    failed |= json_object_set_new(
        o, "usable",
        json_pack("{s:I,s:I,s:s,s:o,s:I}", "cores", (json_int_t)t->n_usable_cores,
                  "hardware_threads", (json_int_t)t->n_usable_threads, "threads", t->usable.text,
                  "quota", t->quota ? json_integer(t->quota) : json_null(), "memory_bytes",
                  (json_int_t)t->available_bytes));
    failed |= json_object_set_new(o, "placement",
                                  json_pack("{s:s,s:s,s:o,s:o,s:o}", "backend", t->backend, "why",
                                            t->why, "compute", role_json(&t->compute), "transfer",
                                            role_json(&t->transfer), "io", role_json(&t->io)));
    if (failed) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(o, JSON_INDENT(2));
}

/* ---- text ---- */

static void print_processors(const struct spw_topology_info *t)
{
    char bytes[32], left[32];
    printf("processors  %s: %u package%s, %u core%s, %u hardware thread%s\n", t->cpu, t->n_packages,
           cli_plural(t->n_packages), t->n_cores, cli_plural(t->n_cores), t->n_threads,
           cli_plural(t->n_threads));
    for (uint32_t i = t->n_kinds; t->n_kinds > 1 && i-- > 0;) {
        const struct spw_core_kind_info *k = &t->kinds[i];
        printf("            %u %s: %s", k->n_cores, k->name, k->threads.text);
        if (k->mhz)
            printf(", up to %.1f GHz", k->mhz / 1e3);
        putchar('\n');
    }
    for (uint32_t i = t->n_caches; i-- > 0;) {
        const struct spw_cache_info *c = &t->caches[i];
        if (c->level > 1)
            printf("L%u cache    %u of %s, %u core%s each\n", c->level, c->n,
                   cli_format_bytes(bytes, c->bytes), c->n_cores, cli_plural(c->n_cores));
    }
    printf("memory      %s, %s available\n", cli_format_bytes(bytes, t->memory_bytes),
           cli_format_bytes(left, t->available_bytes));
    for (uint32_t i = 0; t->n_nodes > 1 && i < t->n_nodes; i++) {
        const struct spw_node_info *n = &t->nodes[i];
        printf("node %-6u %s, package %u, %u core%s: %s\n", n->number,
               cli_format_bytes(bytes, n->memory_bytes), n->package, n->n_cores,
               cli_plural(n->n_cores), n->threads.text);
    }
}

static void print_device(const struct spw_topology_info *t, const struct spw_machine_device_info *d)
{
    char bytes[32];
    const char *between = "";
    printf("%-11s", d->kind == SPW_MACHINE_GPU ? "GPU" : "drive");
    if (*d->name)
        printf(" %s", d->name);
    if (*d->model) {
        printf("%s %s", *d->name ? ":" : "", d->model);
        between = ",";
    }
    if (d->bytes)
        printf("%s %s", *between ? between : ":", cli_format_bytes(bytes, d->bytes));
    if (*d->bus)
        printf(", at %s", d->bus);
    if (d->node >= 0 && t->n_nodes > 1)
        printf(", next to node %d", d->node);
    putchar('\n');
}

static void print_role(const char *name, const struct spw_role_info *r)
{
    printf("  %-9s ", name);
    if (!r->n_threads)
        puts("none");
    else if (r->bound)
        printf("%u thread%s on %s\n", r->n_threads, cli_plural(r->n_threads), r->threads.text);
    else
        printf("%u thread%s, placed by the system\n", r->n_threads, cli_plural(r->n_threads));
}

static void print_text(const struct spw_topology_info *t)
{
    print_processors(t);
    for (uint32_t i = 0; i < t->n_devices; i++)
        print_device(t, &t->devices[i]);
    printf("\na run may use %u of %u cores, hardware thread%s %s", t->n_usable_cores, t->n_cores,
           cli_plural(t->n_usable_threads), t->usable.text);
    if (t->quota && t->quota < t->n_usable_threads)
        printf(", and the time of %u of them", t->quota);
    putchar('\n');
    printf("on %s, reading files beside the computation (%s)\n", t->backend, t->why);
    print_role("compute", &t->compute);
    print_role("transfer", &t->transfer);
    print_role("I/O", &t->io);
}

int cli_inspect_topology(const struct cli_options *o)
{
    struct spw_topology_info t;
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(o, 0, 1);
    static const char *const of_models[] = {"tensors",     "kv-dtype",         "compute",    "disk",
                                            "disk-memory", "disk-write-limit", "host-memory"};
    if (o->operand)
        return cli_fail(CLI_REFUSED, "--topology: found with %s, expected without", o->operand);
    for (size_t i = 0; i < sizeof of_models / sizeof *of_models; i++)
        if (cli_given(o, of_models[i]))
            return cli_fail(CLI_REFUSED, "--topology: found with --%s, expected without",
                            of_models[i]);
    options.disk_dir = ".";
    int rc = spw_machine_topology(&t, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    int code = 0;
    if (o->json)
        code = print_json(&t);
    else
        print_text(&t);
    spw_topology_info_free(&t);
    return code;
}
