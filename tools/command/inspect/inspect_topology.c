/* `spillway inspect --topology`: the part of the machine that a run may use, and the places of its
 * threads. `spillway inspect --self-test`: whether the device computes as it should. */
#include "tools/command/engine.h"

#include <string.h>

static json_t *role_json(const struct spw_role_info *r)
{
    const struct cli_field fields[] = {
        {"count", CLI_JSON(r->n_threads)},
        CLI_FIELD(r, bound),
        {"threads", CLI_JSON(r->threads)},
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

static int show(const struct cli_options *o, const struct spw_topology_info *t)
{
    const struct cli_field fields[] = {
        CLI_FIELD(t, cpu),
        {"cores", CLI_JSON(t->n_cores)},
        {"hardware_threads", CLI_JSON(t->n_threads)},
        {"threads", CLI_JSON(t->usable)},
        {"nodes", CLI_JSON(t->n_nodes)},
        {"quota", CLI_OR_NULL(t->quota, CLI_JSON(t->quota))},
        CLI_FIELD(t, memory_bytes),
        CLI_FIELD(t, available_bytes),
        {"placement", placement_json(t)},
    };
    return cli_show(o, CLI_OBJECT(fields));
}

/* Options that only a model has. `form`: the form of the command. */
static int refuse_model_options(const struct cli_options *o, const char *form)
{
    static const char *const of_models[] = {"tensors",     "kv-dtype",         "compute",    "disk",
                                            "disk-memory", "disk-write-limit", "host-memory"};
    if (o->operand)
        return cli_fail(CLI_REFUSED, "--%s: found with %s, expected without", form, o->operand);
    for (size_t i = 0; i < sizeof of_models / sizeof *of_models; i++)
        if (cli_given(o, of_models[i]))
            return cli_fail(CLI_REFUSED, "--%s: found with --%s, expected without", form,
                            of_models[i]);
    return 0;
}

int cli_inspect_topology(const struct cli_options *o)
{
    struct spw_topology_info t;
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(o, 0, 1);
    int rc = refuse_model_options(o, "topology");
    if (rc)
        return rc;
    options.disk_dir = ".";
    rc = spw_machine_topology(&t, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    return show(o, &t);
}

int cli_inspect_self_test(const struct cli_options *o)
{
    char device[80];
    struct spw_error err = {0};
    const struct spw_options options = cli_engine_options(o, 0, 1);
    int rc = refuse_model_options(o, "self-test");
    if (rc)
        return rc;
    rc = spw_self_test(device, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, rc != -EBADMSG);
    const struct cli_field fields[] = {{"backend", CLI_JSON((const char *)device)},
                                       {"self_test", CLI_JSON("passed")}};
    return cli_show(o, CLI_OBJECT(fields));
}
