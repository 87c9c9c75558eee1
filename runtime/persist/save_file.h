/* The file that a session is saved to, held with a lock (flock) from spw_session_save_to until the
 * session is closed or saved elsewhere. The pack's writers go through the same descriptor, which
 * becomes the new file's when a save replaces the file. The engine's thread. */
#ifndef SPW_RUNTIME_PERSIST_SAVE_FILE_H
#define SPW_RUNTIME_PERSIST_SAVE_FILE_H

#include "runtime/engine/engine.h"

struct spw_save_file {
    char *path;    /* owned */
    int fd;        /* owned, with the lock; -1: none yet */
    bool made;     /* nothing had the name */
    bool verified; /* a save has seen to all that stays in it */
};

bool spw_save_file_is_empty(const struct spw_save_file *f);
/* Nobody else may read or write it. */
bool spw_save_file_is_private(const struct spw_save_file *f);

#endif
