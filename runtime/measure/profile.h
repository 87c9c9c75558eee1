/* The profile: one small JSON file with what was measured of drives and of the machine.
 *
 * It is a file of records (record_file.h). If it cannot be used it counts as empty; the caller
 * measures again and writes a new file. */
#ifndef SPW_RUNTIME_MEASURE_PROFILE_H
#define SPW_RUNTIME_MEASURE_PROFILE_H

#include "base/record_file.h"
#include "runtime/measure.h"

#define SPW_PROFILE_VERSION 16 /* a file of another version is not used */

enum { SPW_PROFILE_MOST = 16 };

struct spw_profile {
    struct spw_drive drives[SPW_PROFILE_MOST];
    struct spw_machine machines[SPW_PROFILE_MOST];
    unsigned n_drives, n_machines;
};

enum { SPW_PROFILE_DRIVES, SPW_PROFILE_MACHINES, SPW_PROFILE_LISTS };
extern const struct spw_record_list spw_profile_lists[SPW_PROFILE_LISTS];
extern const struct spw_record_file spw_profile_file;

/* What the profile shall know of one drive, or of one machine. */
struct spw_recall {
    const struct spw_record_list *list;
    const char *what, *path; /* "drive", for texts; of the profile, NULL: none */
    enum spw_probe_mode mode;
    /* Fills the entry. If it writes a text to *unstored, the profile does not get the entry. */
    int (*measure)(void *context, void *entry, struct spw_error *err);
    void *context;
    char (*note)[320], (*unstored)[320]; /* of the entry */
};
/* Gives `entry`, whose keys are set, the numbers of the profile, or measures and stores them.
 * -ENODATA, without a text: the profile has none, and the mode is NEVER. -ENOMEM, and the errors of
 * measure. */
int spw_profile_recall(void *entry, const struct spw_recall *r, struct spw_error *err);

#endif
