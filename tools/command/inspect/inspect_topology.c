/* `spillway inspect --topology`: the machine, the part of it that a run may use, and the places of
 * its threads. */
#include "tools/command/engine.h"

#include <string.h>

/* ---- JSON ---- */

static json_t *nodes_json(const struct spw_topology_info *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const struct spw_node_info *n = &t->nodes[i];
        const struct cli_field fields[] = {
            {"node", CLI_JSON(n->number)},
            CLI_FIELD(n, package),
            CLI_FIELD(n, memory_bytes),
            {"cores", CLI_JSON(n->n_cores)},
            {"threads", CLI_JSON(n->threads.text)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *caches_json(const struct spw_topology_info *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_caches; i++) {
        const struct spw_cache_info *c = &t->caches[i];
        const struct cli_field fields[] = {
            CLI_FIELD(c, level),
            CLI_FIELD(c, bytes),
            {"count", CLI_JSON(c->n)},
            {"cores_each", CLI_JSON(c->n_cores)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *kinds_json(const struct spw_topology_info *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_kinds; i++) {
        const struct spw_core_kind_info *k = &t->kinds[i];
        const struct cli_field fields[] = {
            {"kind", CLI_JSON(k->name)},
            {"cores", CLI_JSON(k->n_cores)},
            {"max_mhz", CLI_JSON(k->mhz)},
            {"threads", CLI_JSON(k->threads.text)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *devices_json(const struct spw_topology_info *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_devices; i++) {
        const struct spw_machine_device_info *d = &t->devices[i];
        const struct cli_field fields[] = {
            {"kind", CLI_JSON(d->kind == SPW_MACHINE_GPU ? "gpu" : "drive")},
            CLI_FIELD(d, name),
            CLI_FIELD(d, model),
            CLI_FIELD(d, bus),
            {"node", CLI_OR_NULL(d->node >= 0, CLI_JSON(d->node))},
            CLI_FIELD(d, bytes),
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *usable_json(const struct spw_topology_info *t)
{
    const struct cli_field fields[] = {
        {"cores", CLI_JSON(t->n_usable_cores)},
        {"hardware_threads", CLI_JSON(t->n_usable_threads)},
        {"threads", CLI_JSON(t->usable.text)},
        {"quota", CLI_OR_NULL(t->quota, CLI_JSON(t->quota))},
        {"memory_bytes", CLI_JSON(t->available_bytes)},
    };
    return CLI_OBJECT(fields);
}

static json_t *role_json(const struct spw_role_info *r)
{
    const struct cli_field fields[] = {
        {"count", CLI_JSON(r->n_threads)},
        CLI_FIELD(r, bound),
        {"threads", CLI_JSON(r->threads.text)},
    };
    return CLI_OBJECT(fields);
}

static json_t *placement_json(const struct spw_topology_info *t)
{
    const struct cli_field fields[] = {
        CLI_FIELD(t, backend),
        CLI_FIELD(t, why),
        {"compute", role_json(&t->compute)},
        {"transfer", role_json(&t->transfer)},
        {"io", role_json(&t->io)},
    };
    return CLI_OBJECT(fields);
}

static int print_json(const struct spw_topology_info *t)
{
    const struct cli_field fields[] = {
        CLI_FIELD(t, cpu),
        {"packages", CLI_JSON(t->n_packages)},
        {"cores", CLI_JSON(t->n_cores)},
        {"hardware_threads", CLI_JSON(t->n_threads)},
        CLI_FIELD(t, memory_bytes),
        {"nodes", nodes_json(t)},
        {"caches", caches_json(t)},
        {"core_kinds", kinds_json(t)},
        {"devices", devices_json(t)},
        {"usable", usable_json(t)},
        {"placement", placement_json(t)},
    };
    return cli_print_json(CLI_OBJECT(fields));
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
