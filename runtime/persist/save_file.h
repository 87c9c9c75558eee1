/* The file of a saved session. spw_session_save_to locks it (flock); the lock lasts until the
 * session is closed or saved to another file. Writers of the pack use the same descriptor. When a
 * save replaces the file, the descriptor becomes that of the new file. The engine's thread. */
#ifndef SPW_RUNTIME_PERSIST_SAVE_FILE_H
#define SPW_RUNTIME_PERSIST_SAVE_FILE_H

#include "runtime/engine/engine.h"
#include "runtime/saved.h"

struct spw_save_file {
    char *path;    /* owned */
    int fd;        /* owned, locked; -1: not open */
    bool made;     /* spw_session_save_to has created the file */
    bool verified; /* a save has checked all tiles that stay in it */
};

/* Closes and unlocks the file that the session is saved to, if there is one. */
void spw_save_file_release(struct spw_session *s);
bool spw_save_file_is_empty(const struct spw_save_file *f);
/* Whether no other user may read or write it. */
bool spw_save_file_is_private(const struct spw_save_file *f);

#endif
