/* The profile: one small JSON file with what was measured of drives and of the machine.
 *
 * It is a file of records (record_file.h). If it cannot be used it counts as empty; the caller
 * measures again and writes a new file. */
#ifndef SPW_RUNTIME_MEASURE_PROFILE_H
#define SPW_RUNTIME_MEASURE_PROFILE_H

#include "runtime/measure.h"

#define SPW_PROFILE_VERSION 16 /* a file of another version is not used */

enum { SPW_PROFILE_DRIVES = 16, SPW_PROFILE_MACHINES = 16 };

struct spw_profile {
    struct spw_drive drives[SPW_PROFILE_DRIVES];
    struct spw_machine machines[SPW_PROFILE_MACHINES];
    unsigned n_drives, n_machines;
};

/* Reads the profile. It is empty after a failure: -ENOENT: no file; -EINVAL: the file cannot be
 * used, and `err` says why; -ENOMEM; or an error of the system. */
int spw_profile_read(struct spw_profile *out, const char *path, struct spw_error *err);
/* Creates missing folders (mode 0700). */
int spw_profile_write(const struct spw_profile *p, const char *path, struct spw_error *err);

/* The entry with the same drive, filesystem and kind of I/O. NULL: none. */
const struct spw_drive *spw_profile_find_drive(const struct spw_profile *p,
                                               const struct spw_drive *key);
/* The entry with the same processor, instruction set, GPU, threads and cores. NULL: none. */
const struct spw_machine *spw_profile_find_machine(const struct spw_profile *p,
                                                   const struct spw_machine *key);
/* Replaces the entry with the same key; if there is none and no room, the oldest. */
void spw_profile_put_drive(struct spw_profile *p, const struct spw_drive *drive);
void spw_profile_put_machine(struct spw_profile *p, const struct spw_machine *m);

#endif
