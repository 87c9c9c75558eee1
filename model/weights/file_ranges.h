/* Which ranges of which files to read for a weight block: a pure function.
 *
 *   file    ....|  q   |  k  |. norm .|   gate   |................|  down  |....
 *   ranges   |=============================|                    |============|
 *   slot     |============ range 0 ========|====== range 1 =====|
 *
 * Parts of one file that are close together are read as one range, with the bytes between them.
 * Ranges begin and end at multiples of SPW_FILE_BLOCK, as O_DIRECT requires, so the last range may
 * end after the end of its file. The slot gets the ranges one after the other: an address in the
 * slot and its place in the file are equal modulo SPW_FILE_BLOCK. */
#ifndef SPW_MODEL_WEIGHTS_FILE_RANGES_H
#define SPW_MODEL_WEIGHTS_FILE_RANGES_H

#include "base/base.h"

enum {
    SPW_FILE_BLOCK = 4096,
    SPW_FILE_GAP = 64 << 10, /* a gap between two parts up to this size is read, too */
    SPW_FILE_PARTS = 28,     /* most of one block */
};

struct spw_file_part {
    uint32_t file;
    uint64_t offset, bytes; /* at least 1 */
};

struct spw_file_range {
    uint32_t file;
    uint64_t offset, bytes; /* multiples of SPW_FILE_BLOCK */
    uint64_t least_bytes;   /* bytes up to the end of the last part, which the file must have */
    uint64_t slot_offset;   /* where the slot gets it */
};

/* Fills in at most n ranges, ordered by file and offset, and the offset of each part in the slot.
 * Returns the number of ranges. n: at most SPW_FILE_PARTS; parts do not overlap. */
uint32_t spw_file_ranges(const struct spw_file_part *parts, uint32_t n, struct spw_file_range *out,
                         uint64_t *lands);
/* The sum of the bytes of all ranges. */
uint64_t spw_file_ranges_bytes(const struct spw_file_range *ranges, uint32_t n);

#endif
