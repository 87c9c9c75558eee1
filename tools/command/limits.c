/* See limits.h. */
#include "tools/command/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Number of pairs of a query and a key that the query sees, for `n` tokens. A query sees its own
 * key. */
static double visible_pairs(uint64_t n, struct spw_window window)
{
    double all = (double)n * ((double)n + 1) / 2, w = window.tokens;
    if (window.tokens == 0 || window.tokens >= n)
        return all;
    if (window.step == 1)
        return w * (w + 1) / 2 + ((double)n - w) * w;
    double rest = (double)(n % window.tokens);
    return (double)(n / window.tokens) * (w * (w + 1) / 2) + rest * (rest + 1) / 2;
}

struct spw_prompt_work cli_prompt_work(const struct spw_plan_info *p,
                                       const struct spw_model_config *c, uint64_t n)
{
    const double head = (double)c->hidden * c->vocab;
    struct spw_prompt_work work = {
        .tokens = (double)n,
        .product_flops = 2 * ((double)p->decode_weights - head) * (double)n + 2 * head};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct spw_window window = spw_layer_window(c->layer_kinds[i], c->window);
        work.attention_flops += 4.0 * (double)spw_config_q_width(c, i) * visible_pairs(n, window);
    }
    return work;
}

static json_t *products_json(const double flops[SPW_PRODUCTS])
{
    json_t *o = json_object();
    for (int i = 0; i < SPW_PRODUCTS; i++)
        cli_json_add(&o, spw_product_name((enum spw_product)i), CLI_JSON(flops[i]));
    return o;
}

json_t *cli_machine_json(const struct spw_machine *m)
{
    const struct cli_field fields[] = {
        CLI_FIELD(m, cpu),
        {"gpu", CLI_OR_NULL(*m->gpu, CLI_JSON(m->gpu))},
        CLI_FIELD(m, isa),
        CLI_FIELD(m, threads),
        CLI_FIELD(m, cores),
        CLI_FIELD(m, read_bytes_per_second),
        CLI_FIELD(m, copy_bytes_per_second),
        {*m->gpu ? "host_bytes_per_second" : NULL, CLI_JSON(m->host_bytes_per_second)},
        {"few_row_flops", products_json(m->few_flops)},
        {"many_row_flops", products_json(m->many_flops)},
        CLI_FIELD(m, measured_at),
    };
    return CLI_OBJECT(fields);
}

json_t *cli_drive_json(const struct spw_drive *d)
{
    const struct cli_field fields[] = {
        CLI_FIELD(d, device),
        CLI_FIELD(d, filesystem),
        CLI_FIELD(d, engine),
        CLI_FIELD(d, direct),
        CLI_FIELD(d, request_bytes),
        CLI_FIELD(d, queue_depth),
        CLI_FIELD(d, read_bytes_per_second),
        CLI_FIELD(d, write_bytes_per_second),
        CLI_FIELD(d, latency_seconds),
        CLI_FIELD(d, small_request_bytes),
        CLI_FIELD(d, small_read_bytes_per_second),
        CLI_FIELD(d, measured_at),
        CLI_FIELD(d, written_bytes),
    };
    return CLI_OBJECT(fields);
}

/* A folder that is not absolute is ignored, as the XDG base directory specification demands. */
const char *cli_cache_path(const char *given, const char *name, char *buffer)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given)
        return given;
    int n = -1;
    if (cache && *cache == '/')
        n = snprintf(buffer, CLI_PATH_BYTES, "%s/spillway/%s", cache, name);
    else if (home && *home == '/')
        n = snprintf(buffer, CLI_PATH_BYTES, "%s/.cache/spillway/%s", home, name);
    return n >= 0 && n < CLI_PATH_BYTES ? buffer : NULL;
}

int cli_measure_drive(struct spw_drive *out, struct spw_drive_options *o, struct spw_error *err)
{
    const enum spw_probe_mode mode = o->mode;
    o->mode = SPW_PROBE_NEVER;
    int rc = mode == SPW_PROBE_AGAIN ? -ENODATA : spw_drive_probe(out, o, err);
    o->mode = mode;
    if (rc != -ENODATA || mode == SPW_PROBE_NEVER)
        return rc;
    cli_note("measuring the drive behind %s for about a second; at most 128 MiB are written "
             "there, and removed",
             o->directory);
    return spw_drive_probe(out, o, err);
}

int cli_measure_machine(struct spw_machine *out, const struct spw_options *o, const char *profile,
                        enum spw_probe_mode mode, struct spw_error *err)
{
    int rc = mode == SPW_PROBE_AGAIN ? -ENODATA
                                     : spw_machine_recall(out, o, profile, SPW_PROBE_NEVER, err);
    if (rc != -ENODATA || mode == SPW_PROBE_NEVER)
        return rc;
    cli_note("measuring this machine's memory and kernels for about a second");
    return spw_machine_recall(out, o, profile, mode, err);
}

static void read_drive(struct cli_limits *out, const struct cli_options *o, const char *directory,
                       struct spw_options *options, enum spw_probe_mode mode)
{
    char path[CLI_PATH_BYTES];
    struct spw_drive_options drive = {.directory = directory,
                                      .profile = cli_cache_path(o->drive_profile, CLI_DRIVES, path),
                                      .mode = mode,
                                      .io = options->io};
    out->has_drive = cli_measure_drive(&out->drive, &drive, &out->why) == 0;
    options->drive = cli_limits_drive(out);
}

/* The drive of the model's files. The command does not write there, so it is not measured; a
 * profile may know it. */
static void read_model_drive(struct cli_limits *out, const struct cli_options *o,
                             struct spw_options *options)
{
    char folder[CLI_PATH_BYTES];
    struct stat st;
    int n = snprintf(folder, sizeof folder, "%s", o->operand);
    if (n >= (int)sizeof folder || stat(folder, &st) < 0)
        return;
    char *slash = strrchr(folder, '/');
    if (S_ISREG(st.st_mode) && slash) /* "/NAME": the root */
        slash[slash == folder] = 0;
    else if (S_ISREG(st.st_mode))
        strcpy(folder, ".");
    read_drive(out, o, folder, options, SPW_PROBE_NEVER);
}

static void read_machine(struct cli_limits *out, const struct cli_options *o,
                         struct spw_options *options, enum spw_probe_mode mode)
{
    char path[CLI_PATH_BYTES];
    out->has_machine = cli_measure_machine(&out->machine, options,
                                           cli_cache_path(o->drive_profile, CLI_DRIVES, path), mode,
                                           &out->why) == 0;
    options->machine = out->has_machine ? &out->machine : NULL;
}

/* Drive and machine are in one profile, so what is wrong with it is said of one of them. */
void cli_say_profile(const struct spw_drive *d, const struct spw_machine *m)
{
    if (*d->note || *m->note)
        cli_fail(0, "%s", *d->note ? d->note : m->note);
    if (*d->unstored || *m->unstored)
        cli_fail(0, "%s", *d->unstored ? d->unstored : m->unstored);
}

void cli_limits_read(struct cli_limits *out, const struct cli_options *o,
                     struct spw_options *options, enum spw_probe_mode mode)
{
    memset(out, 0, sizeof *out);
    if (options->disk_dir)
        read_drive(out, o, options->disk_dir, options, mode);
    if (!options->disk_dir || out->has_drive) /* the run will be refused: measure nothing */
        read_machine(out, o, options, mode);
    cli_say_profile(&out->drive, &out->machine);
}

static bool reads_disk(const struct spw_plan_info *plan)
{
    return plan->disk.total > 0 || plan->decode_moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0 ||
           plan->decode_expert_disk_bytes > 0;
}

void cli_limits_read_for(struct cli_limits *out, const struct cli_options *o,
                         struct spw_options *options)
{
    struct spw_plan_info plan;
    enum spw_probe_mode mode = o->no_probe ? SPW_PROBE_NEVER : SPW_PROBE_UNKNOWN;
    memset(out, 0, sizeof *out);
    if (spw_plan_query(&plan, o->operand, options, NULL) < 0)
        return;
    if (plan.disk.total > 0)
        read_drive(out, o, options->disk_dir, options,
                   options->disk_write_limit ? SPW_PROBE_NEVER : mode);
    else if (reads_disk(&plan))
        read_model_drive(out, o, options);
    read_machine(out, o, options, mode);
    cli_say_profile(&out->drive, &out->machine);
}

bool cli_limits_suffice(const struct cli_limits *l, const struct spw_plan_info *plan)
{
    return l->has_machine && (l->has_drive || !reads_disk(plan));
}

json_t *cli_prediction_json(const struct spw_prediction *p)
{
    const struct cli_field fields[] = {
        CLI_FIELD(p, seconds),
        {"bottleneck", CLI_JSON(spw_bound_name(p->bound))},
        {"computation_seconds", CLI_JSON(p->compute_seconds)},
        CLI_FIELD(p, link_seconds),
        CLI_FIELD(p, disk_seconds),
    };
    return CLI_OBJECT(fields);
}

const char *cli_format_date(char buffer[32], int64_t seconds)
{
    struct tm utc;
    time_t t = (time_t)seconds;
    if (!gmtime_r(&t, &utc) || strftime(buffer, 32, "%Y-%m-%d %H:%M UTC", &utc) == 0)
        snprintf(buffer, 32, "unknown");
    return buffer;
}
