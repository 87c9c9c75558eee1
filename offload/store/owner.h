/* The owner of a file or a directory. Data that other users could have written must not become part
 * of an answer. */
#ifndef SPW_OFFLOAD_STORE_OWNER_H
#define SPW_OFFLOAD_STORE_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

enum { SPW_OWNER_TEXT = 96 };

/* Whether the open file or directory belongs to `owner`, and no other user may write to it. If not,
 * `why` says so, as the continuation of a line that begins with the file's name. */
bool spw_owner_is_exclusive(int fd, uid_t owner, char why[SPW_OWNER_TEXT]);

#endif
