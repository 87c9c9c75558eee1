/* `spillway bench --simulate RATES.json`: what a token would take on machines that are not here.
 *
 *   {"machines": [{"name": "...", "device_memory_bytes": N, "host_memory_bytes": N,
 *                  "device_bytes_per_second": R, "link_bytes_per_second": R,
 *                  "host_bytes_per_second": R, "drive_bytes_per_second": R,
 *                  "sources": {...}}, ...]}
 *
 * Nothing is measured, and no device takes part: each line says so. Bytes are those that a plan
 * counts. A time is the longest of reading device memory, of the link and of the drive, with what
 * waits for the host. Products count as reading their weights at the rates of the file, so a time
 * is an estimate. */
#include "base/json.h"
#include "tools/command/bench/bench.h"
#include "tools/command/engine.h"
#include "tools/command/input/input.h"
#include "tools/command/output/output.h"

#include <string.h>

struct rates {
    const char *name; /* borrowed of the file */
    double device_memory, host_memory, device, link, host, drive;
};

static const struct {
    const char *key;
    size_t at;
} numbers[] = {
    {"device_memory_bytes", offsetof(struct rates, device_memory)},
    {"host_memory_bytes", offsetof(struct rates, host_memory)},
    {"device_bytes_per_second", offsetof(struct rates, device)},
    {"link_bytes_per_second", offsetof(struct rates, link)},
    {"host_bytes_per_second", offsetof(struct rates, host)},
    {"drive_bytes_per_second", offsetof(struct rates, drive)},
};

/* ---- the file ---- */

static int read_rates(struct rates *out, const char *path, size_t i, const json_t *machine)
{
    out->name = json_string_value(json_object_get(machine, "name"));
    if (!out->name)
        return cli_fail(CLI_REFUSED, "%s: machine %zu has no name, expected \"name\": a text", path,
                        i + 1);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        const double x = json_number_value(json_object_get(machine, numbers[k].key));
        if (!(x >= 1 && x <= 1e18))
            return cli_fail(CLI_REFUSED, "%s: machine %s: %s: expected a number from 1 to 1e18",
                            path, out->name, numbers[k].key);
        memcpy((char *)out + numbers[k].at, &x, sizeof x);
    }
    return 0;
}

/* *machines: borrowed of *file, which is the caller's. */
static int read_file(json_t **file, json_t **machines, const char *path)
{
    char *text;
    size_t bytes;
    json_error_t why;
    int code = cli_read_file(path, &text, &bytes);
    if (code)
        return code;
    int rc = spw_json_parse(file, text, bytes, 0, &why);
    spw_free(text);
    if (rc == -ENOMEM)
        return cli_fail(CLI_FAILED, "out of memory");
    if (rc)
        return cli_fail(CLI_REFUSED, "%s, line %d: %s", path, why.line, why.text);
    *machines = json_object_get(*file, "machines");
    return json_array_size(*machines)
               ? 0
               : cli_fail(CLI_REFUSED, "%s: expected \"machines\": a list of rates", path);
}

/* ---- a case ---- */

struct simulated {
    const struct rates *rates;
    uint64_t context, budget;
    enum spw_host_compute host_compute;
};

static int simulate(struct spw_simulation *out, const struct cli_options *o,
                    const struct simulated *c, struct spw_error *err)
{
    const struct rates *r = c->rates;
    const struct spw_machine machine = {.gpu = "simulated",
                                        .cores = 1,
                                        .read_bytes_per_second = r->device,
                                        .copy_bytes_per_second = r->link,
                                        .host_bytes_per_second = r->host};
    const struct spw_drive drive = {.request_bytes = 1 << 20,
                                    .queue_depth = 32,
                                    .read_bytes_per_second = r->drive,
                                    .write_bytes_per_second = r->drive};
    struct spw_options options = cli_engine_options(o, c->context + o->decode_tokens + 1, 1);
    options.device_bytes = o->budgets.n ? c->budget : options.device_bytes;
    /* as the program's own default beside a GPU */
    options.host_bytes =
        options.host_bytes ? options.host_bytes : (uint64_t)r->host_memory / 10 * 8;
    options.host_compute = c->host_compute;
    options.drafts = SPW_DRAFTS_OFF;
    options.gate = NULL;
    return spw_simulate(out, o->operand, &options, &machine, &drive, (uint64_t)r->device_memory,
                        c->context, o->decode_tokens, err);
}

static const char *const lanes[] = {
    [SPW_HOST_COMPUTE_AUTO] = "auto", [SPW_HOST_COMPUTE_OFF] = "off"};

static void print_case(const struct simulated *c, const struct spw_simulation *s)
{
    char budget[32], moved[32], missed[32];
    const struct spw_plan_info *p = &s->plan;
    const uint64_t link = p->decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE] +
                          p->decode_moved_bytes[SPW_MOVED_DEVICE_TO_HOST];
    const uint64_t experts = p->decode_expert_host_bytes + p->decode_expert_disk_bytes;
    printf("simulated  %-22s context %-7llu device %-10s host compute %-4s %9.2f ms a token, %s "
           "over the link, %s of missed experts\n",
           c->rates->name, (unsigned long long)c->context,
           cli_format_bytes(budget, p->device_budget_bytes), lanes[c->host_compute],
           s->step.seconds * 1e3, cli_format_bytes(moved, link),
           experts ? cli_format_bytes(missed, experts) : "none");
}

static json_t *case_json(const struct simulated *c, const struct spw_simulation *s)
{
    const struct spw_plan_info *p = &s->plan;
    const struct cli_field fields[] = {
        {"simulated", json_true()},
        {"machine", CLI_JSON(c->rates->name)},
        CLI_FIELD(c, context),
        {"host_compute", CLI_JSON(lanes[c->host_compute])},
        {"device_budget_bytes", CLI_JSON(p->device_budget_bytes)},
        {"seconds_per_token", CLI_JSON(s->step.seconds)},
        {"bottleneck", CLI_JSON(spw_bound_name(s->step.bound))},
        {"host_to_device_bytes", CLI_JSON(p->decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE])},
        {"device_to_host_bytes", CLI_JSON(p->decode_moved_bytes[SPW_MOVED_DEVICE_TO_HOST])},
        {"disk_to_host_bytes", CLI_JSON(p->decode_moved_bytes[SPW_MOVED_DISK_TO_HOST])},
        CLI_FIELD(p, decode_expert_host_bytes),
        CLI_FIELD(p, decode_expert_disk_bytes),
        CLI_FIELD(p, n_layers_resident),
        CLI_FIELD(p, n_layers_on_host),
        CLI_FIELD(p, n_experts_resident),
    };
    return CLI_OBJECT(fields);
}

/* Whether the machine is too small, or the card has less than its budget. */
static bool refuses_budgets(int rc, const struct spw_error *err)
{
    return rc == -ENOMEM && (err->refuses_budgets || strstr(err->text, "options.device_bytes"));
}

/* Refusals are lines of the table: a small card may have no plan. */
static int run_case(const struct cli_options *o, const struct simulated *c, json_t **cases)
{
    struct spw_simulation s;
    struct spw_error err = {0};
    int rc = simulate(&s, o, c, &err);
    const bool too_small = refuses_budgets(rc, &err);
    cli_name_options(err.text);
    if (too_small) {
        printf("simulated  %-22s context %-7llu host compute %-4s %s\n", c->rates->name,
               (unsigned long long)c->context, lanes[c->host_compute], err.text);
        return 0;
    }
    if (rc)
        return cli_fail_error(rc, &err, rc != -ENOMEM);
    print_case(c, &s);
    cli_json_append(cases, case_json(c, &s));
    return 0;
}

static int run_machine(const struct cli_options *o, const struct rates *r, json_t **cases)
{
    static const struct cli_counts contexts = {.items = {128, 2048}, .n = 2};
    const struct cli_counts *n = o->contexts.n ? &o->contexts : &contexts;
    for (size_t i = 0; i < n->n; i++)
        for (size_t k = 0; k < spw_max_u64(o->budgets.n, 1); k++)
            for (int lane = SPW_HOST_COMPUTE_OFF; lane >= SPW_HOST_COMPUTE_AUTO; lane--) {
                const struct simulated c = {.rates = r,
                                            .context = n->items[i],
                                            .budget = o->budgets.n ? o->budgets.items[k] : 0,
                                            .host_compute = (enum spw_host_compute)lane};
                int code = run_case(o, &c, cases);
                if (code)
                    return code;
            }
    return 0;
}

int bench_simulate(const struct cli_options *o)
{
    json_t *file = NULL, *machines = NULL, *cases = json_array();
    struct rates r;
    int code = read_file(&file, &machines, o->simulate);
    for (size_t i = 0; !code && i < json_array_size(machines); i++)
        code = read_rates(&r, o->simulate, i, json_array_get(machines, i));
    if (!code)
        printf("simulated  %s: rates of %s and counted bytes; nothing is measured\n", o->operand,
               o->simulate);
    for (size_t i = 0; !code && i < json_array_size(machines); i++) {
        code = read_rates(&r, o->simulate, i, json_array_get(machines, i));
        code = code ? code : run_machine(o, &r, &cases);
    }
    if (!code && cases && !json_array_size(cases))
        code = cli_fail(CLI_REFUSED, "%s: no machine of %s has the memory for a case", o->operand,
                        o->simulate);
    if (!code && o->report) {
        const struct cli_field fields[] = {{"simulated", json_true()},
                                           {"model", CLI_JSON(o->operand)},
                                           {"rates", CLI_JSON(o->simulate)},
                                           {"cases", cases}};
        cases = NULL;
        code = cli_write_json(o->report, CLI_OBJECT(fields));
    }
    json_decref(cases);
    json_decref(file);
    return code;
}
