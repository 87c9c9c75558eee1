/* What was measured once is kept: drives and the machine's own limits, in one small JSON file.
 *
 * A file of records (record_file.h): what is wrong with it makes it as good as none, and the caller
 * measures again and writes a new one. */
#ifndef SPW_RUNTIME_MEASURE_PROFILE_H
#define SPW_RUNTIME_MEASURE_PROFILE_H

#include "runtime/measure.h"

#define SPW_PROFILE_VERSION 3 /* of another version: measured again */

enum { SPW_PROFILE_DRIVES = 16, SPW_PROFILE_MACHINES = 16 };

struct spw_profile {
    struct spw_drive drives[SPW_PROFILE_DRIVES];
    struct spw_machine machines[SPW_PROFILE_MACHINES];
    unsigned n_drives, n_machines;
};

/* Empty and -ENOENT where there is no file; empty and -EINVAL, with what was wrong, where it cannot
 * be used; -ENOMEM; else what the system said. */
int spw_profile_read(struct spw_profile *out, const char *path, struct spw_error *err);
/* Makes folders that are missing (mode 0700). */
int spw_profile_write(const struct spw_profile *p, const char *path, struct spw_error *err);

/* The entry of the same drive, filesystem and kind of I/O; of the same processor, instruction set,
 * GPU and threads. NULL: not known. */
const struct spw_drive *spw_profile_find_drive(const struct spw_profile *p,
                                               const struct spw_drive *key);
const struct spw_machine *spw_profile_find_machine(const struct spw_profile *p,
                                                   const struct spw_machine *key);
/* Instead of the entry of the same key, or of the oldest where there is no room. */
void spw_profile_put_drive(struct spw_profile *p, const struct spw_drive *drive);
void spw_profile_put_machine(struct spw_profile *p, const struct spw_machine *machine);

#endif
