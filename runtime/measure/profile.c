/* The profile file: see profile.h, and record_file.h for the format. */
#include "runtime/measure/profile.h"

#include <stdio.h>
#include <string.h>

#define RATE .kind = SPW_RECORD_REAL, .min = 1, .max = 1e18
#define LATENCY .kind = SPW_RECORD_REAL, .min = 1e-9, .max = 1e3
#define DATE .kind = SPW_RECORD_COUNT, .min = 1, .max = 1e12

static const struct spw_record_field drive_fields[] = {
    {SPW_RECORD(spw_drive, device), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_drive, filesystem), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_drive, io), .kind = SPW_RECORD_COUNT, .min = SPW_IO_AUTO, .max = SPW_IO_THREADS,
     .is_key = true},
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
    {SPW_RECORD(spw_machine, cpu), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_machine, isa), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_machine, gpu), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_machine, threads), .kind = SPW_RECORD_COUNT, .min = 1, .max = 1 << 20,
     .is_key = true},
    {SPW_RECORD(spw_machine, cores), .kind = SPW_RECORD_COUNT, .min = 1, .max = 1 << 20,
     .is_key = true},
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

/* A file may also have the list "machines_at_best", which nothing reads any more. */
const struct spw_record_list spw_profile_lists[SPW_PROFILE_LISTS] = {
    [SPW_PROFILE_DRIVES] = {.name = "drives",
                            .fields = drive_fields,
                            .n_fields = sizeof drive_fields / sizeof *drive_fields,
                            SPW_RECORD_LIST(spw_profile, drives, n_drives),
                            .date = offsetof(struct spw_drive, measured_at)},
    [SPW_PROFILE_MACHINES] = {.name = "machines_typical",
                              .fields = machine_fields,
                              .n_fields = sizeof machine_fields / sizeof *machine_fields,
                              SPW_RECORD_LIST(spw_profile, machines, n_machines),
                              .date = offsetof(struct spw_machine, measured_at)},
};

const struct spw_record_file spw_profile_file = {.what = "profile",
                                                 .key = "spillway_profile",
                                                 .version = SPW_PROFILE_VERSION,
                                                 .lists = spw_profile_lists,
                                                 .n_lists = SPW_PROFILE_LISTS};

int spw_profile_recall(void *entry, const struct spw_recall *r, struct spw_error *err)
{
    struct spw_error unusable = {0}, why = {0};
    struct spw_profile *p = r->path ? spw_alloc_zero(1, sizeof *p) : NULL;
    int rc = 0;
    if (r->path && !p)
        return spw_fail(err, -ENOMEM, "%s: no memory to read it", r->path);
    if (p && spw_record_file_read(&spw_profile_file, p, r->path, &unusable) == -ENOENT)
        spw_error_clear(&unusable);
    const void *known = p && r->mode != SPW_PROBE_AGAIN ? spw_record_find(r->list, p, entry) : NULL;
    if (known)
        memcpy(entry, known, r->list->entry_bytes);
    else
        rc = r->mode == SPW_PROBE_NEVER ? -ENODATA : r->measure(r->context, entry, err);
    if (!rc && !known && p && !**r->unstored) {
        spw_record_put(r->list, p, entry);
        if (spw_record_file_write(&spw_profile_file, p, r->path, &why))
            snprintf(*r->unstored, sizeof *r->unstored, "%.200s, so the %s will be measured again",
                     why.text, r->what);
    }
    if (!rc && !known && *unusable.text)
        snprintf(*r->note, sizeof *r->note, "%.200s, so the %s was measured again", unusable.text,
                 r->what);
    spw_free(p);
    return rc;
}
