/* A file mapped for reading. Other processes may cut the file short or write to it.
 *
 * Touching a page that the file no longer has raises SIGBUS. The first mapping installs a handler
 * for the whole process. In a range of spw_file_map_open the handler puts zeros in place of the
 * lost pages and marks the mapping as damaged; every other SIGBUS goes to the earlier handler. So a
 * reader survives, and reads zeros that were never in the file: after computing from a mapping, the
 * caller must ask spw_file_map_damaged before it uses the result. A thread that blocks SIGBUS has
 * no such protection, nor a program that installs its own handler later. Any thread. */
#ifndef SPW_MODEL_SOURCE_FILE_MAP_H
#define SPW_MODEL_SOURCE_FILE_MAP_H

#include "base/base.h"

#include <time.h>

struct spw_file_map {
    const uint8_t *base; /* the whole file; NULL if it is not mapped */
    uint64_t bytes;
    int fd;                  /* stays open: it refers to the mapped file even after a rename */
    int slot;                /* in the handler's table */
    struct timespec written; /* when the file was last written */
};

/* Maps a regular file of at least `least` bytes (1 or more). Errors as in file.h; -ENFILE if 4096
 * files are mapped. */
int spw_file_map_open(struct spw_file_map *map, const char *path, uint64_t least,
                      struct spw_error *err);
/* Accepts a mapping that is zero or was not opened. */
void spw_file_map_close(struct spw_file_map *map);
/* Whether a reader has touched a page that the file no longer has. */
bool spw_file_map_damaged(const struct spw_file_map *map);
/* 0, or -EIO with a text if the mapping is damaged, or if the file's size or its time of last write
 * differ from those at open: results since the last check may be wrong. */
int spw_file_map_check(const struct spw_file_map *map, const char *path, struct spw_error *err);

#endif
