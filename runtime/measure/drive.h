/* The steps of measuring a drive: identify it, measure it, choose a queue depth. */
#ifndef SPW_RUNTIME_MEASURE_DRIVE_H
#define SPW_RUNTIME_MEASURE_DRIVE_H

#include "runtime/measure.h"

/* Fills device and filesystem: the drive behind a directory. Reads /sys. -ENOENT, -ENOTDIR, -EACCES
 * with text. */
int spw_drive_identify(struct spw_drive *out, const char *directory, struct spw_error *err);
/* "MODEL SERIAL N sectors" of block device major:minor, or of the disk that this partition
 * belongs to, from `sys` ("/sys"). Without a model its name, without a serial number its own
 * number. */
void spw_drive_name(char *out, size_t bytes, const char *sys, unsigned major, unsigned minor);

/* Measures in about a second, and writes at most `limit_bytes`. */
int spw_drive_measure(struct spw_drive *out, const struct spw_drive_options *o,
                      struct spw_error *err);

/* Bandwidth with this many requests in flight. */
struct spw_drive_point {
    uint32_t depth;
    double bytes_per_second;
};
/* The smallest depth that is at least bandwidth x latency (Little's law: what must be in flight
 * to keep the drive busy) and reaches 95 % of the best bandwidth; if there is none, the best
 * depth. At least one point, sorted by depth. */
uint32_t spw_drive_choose_depth(const struct spw_drive_point *points, unsigned n,
                                double latency_seconds, uint64_t request_bytes);

#endif
