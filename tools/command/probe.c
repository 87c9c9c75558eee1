/* `spillway probe`: the limits of a drive and of the machine, from the profile or measured now. */
#include "quant/types.h"
#include "tools/command/engine.h"

#include <string.h>

/* Everything that is shown, as text or as JSON. */
struct limits {
    const char *directory, *profile;
    struct spw_drive drive;
    struct spw_machine_range machine;
};

static bool is_stored(const struct limits *l)
{
    return l->profile && !*l->drive.unstored && !*l->machine.unstored;
}

static int print_json(const struct limits *l)
{
    const struct cli_field fields[] = {
        CLI_FIELD(l, directory),
        {"profile", CLI_OR_NULL(is_stored(l), CLI_JSON(l->profile))},
        {"drive", cli_drive_json(&l->drive)},
        {"machine", cli_machine_json(&l->machine)},
    };
    return cli_print_json(CLI_OBJECT(fields));
}

static void print_drive(const struct limits *l)
{
    const struct spw_drive *d = &l->drive;
    char bytes[32], small[32], date[32];
    printf("directory   %s\n"
           "drive       %s, %s, %s\n"
           "reads       %.2f GB/s with %u requests of %s in flight, one alone takes %.2f ms\n"
           "            %.2f GB/s with requests of %s\n"
           "writes      %.2f GB/s\n"
           "I/O         %s\n"
           "measured    %s",
           l->directory, d->device, d->filesystem,
           d->direct ? "O_DIRECT" : "buffered: the page cache is part of it",
           d->read_bytes_per_second * 1e-9, d->queue_depth,
           cli_format_bytes(bytes, d->request_bytes), d->latency_seconds * 1e3,
           d->small_read_bytes_per_second * 1e-9, cli_format_bytes(small, d->small_request_bytes),
           d->write_bytes_per_second * 1e-9, d->engine, cli_format_date(date, d->measured_at));
    if (d->written_bytes)
        printf(", %s written for it", cli_format_bytes(bytes, d->written_bytes));
    putchar('\n');
}

static void print_products(const char *what, const double flops[SPW_PRODUCTS])
{
    if (!(flops[SPW_PRODUCT_BF16] > 0))
        return;
    printf("%-12s", what);
    for (int i = 0, n = 0; i < SPW_PRODUCTS; i++)
        if (flops[i] > 0)
            printf("%s%s %.1f", n++ ? ", " : "", spw_product_name((enum spw_product)i),
                   flops[i] * 1e-9);
    printf(" GFLOP/s\n");
}

static void print_speeds(const char *title, const struct spw_machine *m)
{
    printf("\n%s\nmemory      reads %.2f GB/s, copies %.2f GB/s\n", title,
           m->read_bytes_per_second * 1e-9, m->copy_bytes_per_second * 1e-9);
    if (!*m->gpu)
        print_products("one row", m->few_flops);
    print_products("many rows", m->many_flops);
}

static void print_machine(const struct limits *l)
{
    const struct spw_machine *m = &l->machine.typical;
    char date[32];
    printf("\nmachine     %s, %s, %u threads on %u cores\n", m->cpu, m->isa, m->threads, m->cores);
    if (*m->gpu)
        printf("gpu         %s\n", m->gpu);
    printf("measured    %s\n", cli_format_date(date, m->measured_at));
    print_speeds("typical: the median of several rounds, from which plans expect a time", m);
    print_speeds("at best: the fastest round, from which plans know the highest speed",
                 &l->machine.best);
    printf("\nstored in   %s\n", is_stored(l) ? l->profile
                                 : l->profile ? "nothing"
                                              : "nothing: there is no --drive-profile and no HOME");
}

int cli_probe(const struct cli_options *o)
{
    char path[CLI_PATH_BYTES];
    struct limits l = {.directory = o->operand ? o->operand : ".",
                       .profile = cli_profile_path(o, path)};
    enum spw_probe_mode mode = o->redo ? SPW_PROBE_AGAIN : SPW_PROBE_UNKNOWN;
    struct spw_options options = cli_engine_options(o, 0, 1);
    struct spw_drive_options drive = {
        .directory = l.directory, .profile = l.profile, .mode = mode, .io = options.io};
    struct spw_error err = {0};
    int rc = cli_measure_drive(&l.drive, &drive, &err);
    if (rc == 0)
        rc = cli_measure_machine(&l.machine, &options, l.profile, mode, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, rc != -EIO && rc != -ENOMEM);
    cli_say_profile(&l.drive, &l.machine);
    if (o->json)
        return print_json(&l);
    print_drive(&l);
    print_machine(&l);
    return 0;
}
