/* Which parts of which files to read so that a weight block is there: a pure function.
 *
 *   file    ....|  q   |  k  |. norm .|   gate   |................|  down  |....
 *   ranges   |=============================|                    |============|
 *   slot     |============ range 0 ========|====== range 1 =====|
 *
 * Parts of one file that lie close together are read as one range, what is between them included.
 * Ranges begin and end at blocks, as direct I/O wants it, so the last one of a file may end behind
 * it. They land one behind the other: an address in the slot and the place in the file are the same
 * modulo SPW_FILE_BLOCK. */
#ifndef SPW_MODEL_WEIGHTS_FILE_RANGES_H
#define SPW_MODEL_WEIGHTS_FILE_RANGES_H

#include "base/base.h"

enum {
    SPW_FILE_BLOCK = 4096,
    SPW_FILE_GAP = 64 << 10, /* so much between two parts is read rather than left out */
    SPW_FILE_PARTS = 8,      /* most of one block */
};

struct spw_file_part {
    uint32_t file;
    uint64_t offset, bytes; /* at least 1 */
};

struct spw_file_range {
    uint32_t file;
    uint64_t offset, bytes; /* multiples of SPW_FILE_BLOCK */
    uint64_t least_bytes;   /* of them, up to the end of the last part: the file has these */
    uint64_t slot_offset;   /* where it lands */
};

/* Fills in at most n ranges, ordered by file and offset, and where each part lands in the slot.
 * Returns how many ranges. n: at most SPW_FILE_PARTS; parts do not overlap. */
uint32_t spw_file_ranges(const struct spw_file_part *parts, uint32_t n, struct spw_file_range *out,
                         uint64_t *lands);
/* What all the ranges take. */
uint64_t spw_file_ranges_bytes(const struct spw_file_range *ranges, uint32_t n);

#endif
