/* The disk tier: an anonymous scratch file of equal frames, one tile each, in a directory of the
 * user's. Frames of one layer of one sequence are adjacent as far as there is room, so that a layer
 * is one sequential read.
 *
 * The checksum of each frame stays in memory: what comes back must be what went down, in that
 * frame. The file is made without a name (or loses it at once), mode 0600, and preallocated: it is
 * gone with the process however that ends. -ENOMEM from take: the tier is full; -EDQUOT: the write
 * limit. One host thread; jobs run on the I/O threads. */
#ifndef SPW_OFFLOAD_TIER_DISK_H
#define SPW_OFFLOAD_TIER_DISK_H

#include "offload/device.h"
#include "offload/io.h"

#define SPW_DISK_NONE UINT32_MAX

struct spw_disk_options {
    const char *directory;
    struct spw_io *io;          /* borrowed */
    uint64_t tile_bytes;        /* a multiple of 4096 */
    uint32_t n_frames, run;     /* run: of one layer of one sequence */
    uint64_t write_limit_bytes; /* 0: none */
};

struct spw_disk;

/* Errors name the directory and what would do: -ENOENT, -EACCES, -EROFS, -ENOSPC, ... */
int spw_disk_open(struct spw_disk **out, const struct spw_disk_options *o, struct spw_error *err);
void spw_disk_close(struct spw_disk *d); /* no job may be under way */
/* "O_DIRECT, 4096-byte blocks, ext4" or "buffered (tmpfs refuses O_DIRECT)" */
const char *spw_disk_describe(const struct spw_disk *d);

/* `after`: the frame that the new one is to follow, or SPW_DISK_NONE. */
int spw_disk_take(struct spw_disk *d, uint32_t after, uint32_t *frame);
void spw_disk_put(struct spw_disk *d, uint32_t frame);
/* Instead of put: the drive failed here, the frame is never used again. */
void spw_disk_retire(struct spw_disk *d, uint32_t frame);

/* Fills in a job over `n` adjacent frames. -EDQUOT: a write would pass the limit; else its bytes
 * are counted against it. */
int spw_disk_prepare(struct spw_disk *d, struct spw_io_job *job, bool write, uint32_t frame,
                     uint32_t n, void *memory);
/* Submits the job when stream `s` gets there. Whoever waits for the job first makes sure that the
 * stream did (an event recorded behind this): on a failed device it never does. */
int spw_disk_submit(struct spw_disk *d, const struct spw_device_ops *ops, struct spw_device *device,
                    struct spw_io_job *job, spw_stream s);
struct spw_io *spw_disk_io(const struct spw_disk *d);

#endif
