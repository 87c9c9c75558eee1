/* The profile file: see profile.h, and record_file.h for the format. */
#include "runtime/measure/profile.h"

#include "base/record_file.h"

#include <string.h>

#define RATE .kind = SPW_RECORD_REAL, .min = 1, .max = 1e18
#define LATENCY .kind = SPW_RECORD_REAL, .min = 1e-9, .max = 1e3
#define DATE .kind = SPW_RECORD_COUNT, .min = 1, .max = 1e12

static const struct spw_record_field drive_fields[] = {
    {SPW_RECORD(spw_drive, device), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_drive, filesystem), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_drive, io), .kind = SPW_RECORD_COUNT, .min = SPW_IO_AUTO,
     .max = SPW_IO_THREADS},
    {SPW_RECORD(spw_drive, engine), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_drive, direct), .kind = SPW_RECORD_FLAG},
    {SPW_RECORD(spw_drive, request_bytes), .kind = SPW_RECORD_COUNT, .min = 4096, .max = 1 << 30},
    {SPW_RECORD(spw_drive, queue_depth), .kind = SPW_RECORD_COUNT, .min = 1, .max = 4096},
    {SPW_RECORD(spw_drive, read_bytes_per_second), RATE},
    {SPW_RECORD(spw_drive, write_bytes_per_second), RATE},
    {SPW_RECORD(spw_drive, latency_seconds), LATENCY},
    {SPW_RECORD(spw_drive, small_request_bytes), .kind = SPW_RECORD_COUNT, .min = 4096,
     .max = 1 << 30},
    {SPW_RECORD(spw_drive, small_read_bytes_per_second), RATE},
    {SPW_RECORD(spw_drive, measured_at), DATE},
};
#define FLOPS(product)                                                                             \
    {SPW_RECORD(spw_machine, few_flops[SPW_PRODUCT_##product]), RATE},                             \
    {                                                                                              \
        SPW_RECORD(spw_machine, many_flops[SPW_PRODUCT_##product]), RATE                           \
    }

static const struct spw_record_field machine_fields[] = {
    {SPW_RECORD(spw_machine, cpu), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_machine, isa), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_machine, gpu), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_machine, threads), .kind = SPW_RECORD_COUNT, .min = 1, .max = 1 << 20},
    {SPW_RECORD(spw_machine, cores), .kind = SPW_RECORD_COUNT, .min = 1, .max = 1 << 20},
    {SPW_RECORD(spw_machine, read_bytes_per_second), RATE},
    {SPW_RECORD(spw_machine, copy_bytes_per_second), RATE},
    {SPW_RECORD(spw_machine, host_bytes_per_second), .kind = SPW_RECORD_REAL, .max = 1e18},
    FLOPS(F32),
    FLOPS(BF16),
    FLOPS(INT8),
    FLOPS(UNPACKED),
    {SPW_RECORD(spw_machine, measured_at), DATE},
    {SPW_RECORD(spw_machine, note), .kind = SPW_RECORD_TEXT}, /* "" */
};
enum {
    DRIVE_FIELDS = sizeof drive_fields / sizeof *drive_fields,
    MACHINE_FIELDS = sizeof machine_fields / sizeof *machine_fields,
};

/* The description of the file; the lists are those of `p`. A file may also have the list
 * "machines_at_best", which nothing reads any more. */
enum { DRIVES, MACHINES, LISTS };
struct profile_file {
    struct spw_record_list lists[LISTS];
    struct spw_record_file file;
};

static const struct spw_record_file *file_of(struct profile_file *f, struct spw_profile *p)
{
    f->lists[DRIVES] = (struct spw_record_list){.name = "drives",
                                                .fields = drive_fields,
                                                .n_fields = DRIVE_FIELDS,
                                                .entries = p->drives,
                                                .entry_bytes = sizeof *p->drives,
                                                .n = &p->n_drives,
                                                .max = SPW_PROFILE_DRIVES,
                                                .date = offsetof(struct spw_drive, measured_at)};
    f->lists[MACHINES] =
        (struct spw_record_list){.name = "machines_typical",
                                 .fields = machine_fields,
                                 .n_fields = MACHINE_FIELDS,
                                 .entries = p->machines,
                                 .entry_bytes = sizeof *p->machines,
                                 .n = &p->n_machines,
                                 .max = SPW_PROFILE_MACHINES,
                                 .date = offsetof(struct spw_machine, measured_at)};
    f->file = (struct spw_record_file){.what = "profile",
                                       .key = "spillway_profile",
                                       .version = SPW_PROFILE_VERSION,
                                       .lists = f->lists,
                                       .n_lists = LISTS};
    return &f->file;
}

int spw_profile_read(struct spw_profile *out, const char *path, struct spw_error *err)
{
    struct profile_file f;
    return spw_record_file_read(file_of(&f, out), path, err);
}

int spw_profile_write(const struct spw_profile *p, const char *path, struct spw_error *err)
{
    struct profile_file f;
    return spw_record_file_write(file_of(&f, (struct spw_profile *)p), path, err);
}

/* ---- entries by key ---- */

const struct spw_drive *spw_profile_find_drive(const struct spw_profile *p,
                                               const struct spw_drive *key)
{
    for (unsigned i = 0; i < p->n_drives; i++) {
        const struct spw_drive *d = &p->drives[i];
        if (strcmp(d->device, key->device) == 0 && strcmp(d->filesystem, key->filesystem) == 0 &&
            d->io == key->io)
            return d;
    }
    return NULL;
}

const struct spw_machine *spw_profile_find_machine(const struct spw_profile *p,
                                                   const struct spw_machine *key)
{
    for (const struct spw_machine *m = p->machines; m < p->machines + p->n_machines; m++)
        if (strcmp(m->cpu, key->cpu) == 0 && strcmp(m->isa, key->isa) == 0 &&
            strcmp(m->gpu, key->gpu) == 0 && m->threads == key->threads && m->cores == key->cores)
            return m;
    return NULL;
}

void spw_profile_put_drive(struct spw_profile *p, const struct spw_drive *drive)
{
    struct profile_file f;
    struct spw_drive *to =
        spw_record_place(&file_of(&f, p)->lists[DRIVES], spw_profile_find_drive(p, drive));
    *to = *drive;
}

void spw_profile_put_machine(struct spw_profile *p, const struct spw_machine *m)
{
    struct profile_file f;
    struct spw_machine *to =
        spw_record_place(&file_of(&f, p)->lists[MACHINES], spw_profile_find_machine(p, m));
    *to = *m;
}
