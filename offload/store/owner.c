/* The owner of a file: see owner.h. */
#include "offload/store/owner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool spw_owner_is_exclusive(int fd, uid_t owner, char why[SPW_OWNER_TEXT])
{
    struct stat st;
    if (fstat(fd, &st)) {
        snprintf(why, SPW_OWNER_TEXT, "%s", strerror(errno));
        return false;
    }
    if (st.st_uid != owner) {
        snprintf(why, SPW_OWNER_TEXT, "belongs to user %u, expected user %u", (unsigned)st.st_uid,
                 (unsigned)owner);
        return false;
    }
    if (st.st_mode & (S_IWGRP | S_IWOTH)) {
        snprintf(why, SPW_OWNER_TEXT, "other users may write to it (mode %04o)",
                 (unsigned)st.st_mode & 07777);
        return false;
    }
    return true;
}
