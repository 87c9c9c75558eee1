/* Limits of this machine and of a drive that nobody measured: tests of the command get the same
 * numbers on a busy machine, and in no time. */
#ifndef SPW_TESTS_COMMAND_MADE_UP_LIMITS_H
#define SPW_TESTS_COMMAND_MADE_UP_LIMITS_H

#include "runtime/measure/profile.h"

/* Writes a profile with the CPU, with as many threads as it has and with one, and the drive of a
 * directory. 0 or a negative error. */
static inline int write_made_up_limits(const char *path, const char *directory)
{
    static struct spw_profile p;
    struct spw_error err = {0};
    for (uint32_t threads = 0; threads < 2; threads++) {
        struct spw_options o = {.backend = SPW_BACKEND_CPU, .threads = threads};
        struct spw_machine m; /* has what identifies it */
        if (spw_machine_recall(&m, &o, "/missing", SPW_PROBE_NEVER, &err) != -ENODATA)
            return -EIO;
        m.read_bytes_per_second = 20e9;
        m.copy_bytes_per_second = 5e9;
        for (int i = 0; i < SPW_PRODUCTS; i++) {
            m.few_flops[i] = 2e10;
            m.many_flops[i] = 1e11;
        }
        m.measured_at = 1795000000;
        spw_record_put(&spw_profile_lists[SPW_PROFILE_MACHINES], &p, &m);
    }
    struct spw_drive d;
    struct spw_drive_options drive = {.directory = directory, .mode = SPW_PROBE_NEVER};
    if (spw_drive_probe(&d, &drive, &err) != -ENODATA)
        return -EIO;
    d.direct = true;
    d.request_bytes = 1 << 20;
    d.queue_depth = 16;
    d.read_bytes_per_second = 2e9;
    d.write_bytes_per_second = 1e9;
    d.latency_seconds = 1e-3;
    d.small_request_bytes = 1 << 16;
    d.small_read_bytes_per_second = 1e9;
    d.measured_at = 1795000000;
    spw_record_put(&spw_profile_lists[SPW_PROFILE_DRIVES], &p, &d);
    return spw_record_file_write(&spw_profile_file, &p, path, &err);
}

#endif
