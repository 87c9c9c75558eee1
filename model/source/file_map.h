/* A file mapped for reading while others may cut it short or write to it.
 *
 * Touching a page that the file no longer has is SIGBUS. The first mapping installs a handler for
 * the whole process: in a range of spw_file_map_open the handler puts zeros where the file ended
 * and marks the mapping as damaged; every other SIGBUS goes to the handler that was there before.
 * So a reader does not die of it, and reads zeros that were never in the file: whoever computes
 * from a mapping must ask spw_file_map_damaged afterwards, before the result is used. A thread that
 * blocks SIGBUS has no such protection, nor has a program that installs its own handler later. Any
 * thread. */
#ifndef SPW_MODEL_SOURCE_FILE_MAP_H
#define SPW_MODEL_SOURCE_FILE_MAP_H

#include "base/base.h"

#include <time.h>

struct spw_file_map {
    const uint8_t *base; /* the whole file; NULL when it is not mapped */
    uint64_t bytes;
    int fd;                  /* stays open: it sees the file that is mapped, whatever its name is */
    int slot;                /* in the handler's table */
    struct timespec written; /* when the file was last written */
};

/* A regular file of at least `least` bytes (1 or more). Errors as in file.h; -ENFILE when 4096
 * files are mapped. */
int spw_file_map_open(struct spw_file_map *map, const char *path, uint64_t least,
                      struct spw_error *err);
/* Also of one that is zero or was not opened. */
void spw_file_map_close(struct spw_file_map *map);
/* Whether a reader has met a page that the file no longer has. */
bool spw_file_map_damaged(const struct spw_file_map *map);
/* 0, or -EIO with a text when the mapping is damaged, or when the file's size or its time of last
 * write differ from those at open: what was computed since the last check may be wrong. */
int spw_file_map_check(const struct spw_file_map *map, const char *path, struct spw_error *err);

#endif
