/* What measuring a drive is made of: who it is, how fast it is, and what follows from that. */
#ifndef SPW_RUNTIME_MEASURE_DRIVE_H
#define SPW_RUNTIME_MEASURE_DRIVE_H

#include "runtime/measure.h"

/* Fills device and filesystem: which drive lies behind a directory. Reads /proc and /sys.
 * -ENOENT, -ENOTDIR, -EACCES with text. */
int spw_drive_identify(struct spw_drive *out, const char *directory, struct spw_error *err);
/* "MODEL SERIAL N sectors" of block device major:minor, or of the disk that it is a partition of,
 * as far as `sys` ("/sys") tells; without a model its name, without a serial number its own. */
void spw_drive_name(char *out, size_t bytes, const char *sys, unsigned major, unsigned minor);

/* Measures, in about a second and with at most `limit_bytes` written. */
int spw_drive_measure(struct spw_drive *out, const struct spw_drive_options *o,
                      struct spw_error *err);

/* Bandwidth with so many requests in flight. */
struct spw_drive_point {
    uint32_t depth;
    double bytes_per_second;
};
/* The least of the depths that is not under bandwidth x latency (Little's law: what must be in
 * flight to keep the drive busy) and gives 95 % of the best bandwidth; if none does, the best one.
 * Points in order of depth, at least one. */
uint32_t spw_drive_choose_depth(const struct spw_drive_point *points, unsigned n,
                                double latency_seconds, uint64_t request_bytes);

#endif
