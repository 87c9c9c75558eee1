/* Whose a file or a directory is: what others could have written is not to become part of an
 * answer. */
#ifndef SPW_OFFLOAD_STORE_OWNER_H
#define SPW_OFFLOAD_STORE_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

enum { SPW_OWNER_TEXT = 96 };

/* Whether the open file or directory belongs to `owner`, and nobody else may write to it. If not,
 * `why` continues a line that begins with its name. */
bool spw_owner_alone(int fd, uid_t owner, char why[SPW_OWNER_TEXT]);

#endif
