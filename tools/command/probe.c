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
    char bytes[32], small[32], burst[32], date[32];
    printf("directory   %s\n"
           "drive       %s, %s, %s\n"
           "reads       %.2f GB/s with %u requests of %s in flight, one alone takes %.2f ms\n"
           "            %.2f GB/s with requests of %s, one alone takes %.2f ms\n"
           "            %d requests of %s after a pause take %.2f ms, %d %.2f ms\n"
           "writes      %.2f GB/s\n"
           "I/O         %s; %.3f core-seconds a GiB\n"
           "measured    %s",
           l->directory, d->device, d->filesystem,
           d->direct ? "O_DIRECT" : "buffered: the page cache is part of it",
           d->read_bytes_per_second * 1e-9, d->queue_depth,
           cli_format_bytes(bytes, d->request_bytes), d->latency_seconds * 1e3,
           d->small_read_bytes_per_second * 1e-9, cli_format_bytes(small, d->small_request_bytes),
           d->small_latency_seconds * 1e3, SPW_DRIVE_FEW, cli_format_bytes(burst, d->request_bytes),
           d->few_seconds * 1e3, SPW_DRIVE_MANY, d->many_seconds * 1e3,
           d->write_bytes_per_second * 1e-9, d->engine, d->cpu_seconds_per_byte * (double)(1 << 30),
           cli_format_date(date, d->measured_at));
    if (d->written_bytes)
        printf(", %s written for it", cli_format_bytes(bytes, d->written_bytes));
    putchar('\n');
}

/* On a GPU all types are as fast as its memory. */
static const char *quantized_speeds(char *text, size_t bytes, const struct spw_machine *m)
{
    size_t used = 0;
    *text = 0;
    for (enum spw_dtype t = SPW_DTYPE_Q8_0; !*m->gpu && t < SPW_WEIGHT_TYPES && used < bytes; t++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %.1f",
                                 !used                 ? "            "
                                 : t == SPW_DTYPE_Q4_K ? ",\n            "
                                                       : ", ",
                                 spw_dtype_name(t), 1e-9 / m->bf16_products[t][0].byte_seconds);
    if (used && used < bytes)
        snprintf(text + used, bytes - used, " GB/s\n");
    return text;
}

static void print_speeds(const char *title, const struct spw_machine *m)
{
    char int8[48] = "";
    if (m->int8_flops > 0)
        snprintf(int8, sizeof int8, ", int8 %.1f GFLOP/s", m->int8_flops * 1e-9);
    printf("\n%s\n"
           "memory      reads %.2f GB/s, copies %.2f GB/s; beside each other %.2f and %.2f GB/s\n"
           "threads     hand over a slot in %.3f ms, %.3f core-ms\n"
           "products    bf16 %.1f GFLOP/s, f32 %.1f GFLOP/s%s\n",
           title, m->read_bytes_per_second * 1e-9, m->copy_bytes_per_second * 1e-9,
           m->read_beside_bytes_per_second * 1e-9, m->copy_beside_bytes_per_second * 1e-9,
           m->handover_seconds * 1e3, m->handover_core_seconds * 1e3, m->bf16_flops * 1e-9,
           m->f32_flops * 1e-9, int8);
}

/* Only the typical figures have kernels of their own. */
static void print_kernels(const struct spw_machine *m)
{
    char text[256];
    printf("kernels     one row through bf16 weights at %.2f GB/s, f32 at %.2f GB/s\n%s",
           1e-9 / m->bf16_products[SPW_DTYPE_BF16][0].byte_seconds,
           1e-9 / m->f32_products[SPW_DTYPE_F32][0].byte_seconds,
           quantized_speeds(text, sizeof text, m));
    if (m->attention_flops > 0)
        printf("            attention of a prompt at %.1f GFLOP/s\n", m->attention_flops * 1e-9);
}

static void print_machine(const struct limits *l)
{
    const struct spw_machine *m = &l->machine.typical;
    char date[32];
    printf("\nmachine     %s, %s, %u threads on %u cores\n", m->cpu, m->isa, m->threads, m->cores);
    if (*m->gpu)
        printf("gpu         %s\n", m->gpu);
    if (*m->read_pattern)
        printf("            reads are fastest with %s\n", m->read_pattern);
    printf("measured    %s\n", cli_format_date(date, m->measured_at));
    print_speeds("typical: the median of several rounds, from which plans expect a time", m);
    print_kernels(m);
    print_speeds("at best: the fastest round, from which plans know the highest speed",
                 &l->machine.best);
    printf("\nstored in   %s\n", is_stored(l) ? l->profile
                                 : l->profile ? "nothing: the profile could not be written"
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
