/* The disk tier: an anonymous scratch file of equal frames, one tile each, in a directory of the
 * user's. Frames of one layer of one sequence are adjacent as far as there is room, so that a layer
 * is one sequential read.
 *
 * The checksum of each frame stays in memory: what comes back must be what went down, in that
 * frame. The file is made without a name (or loses it at once), mode 0600, and preallocated: it is
 * gone with the process however that ends. One host thread; jobs run on the I/O threads, and are
 * submitted in the order of a stream of the device. */
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

/* A read or write of adjacent frames. Its memory and the job itself stay until it is over. */
struct spw_disk_job {
    struct spw_io_job io;
    _Atomic bool submitted; /* to the engine: the stream got there */
};

struct spw_disk;

/* Errors name the directory and what would do: -ENOENT, -EACCES, -EROFS, -ENOSPC, ... */
int spw_disk_open(struct spw_disk **out, const struct spw_disk_options *o, struct spw_error *err);
void spw_disk_close(struct spw_disk *d); /* no job may be under way; NULL is fine */
/* "O_DIRECT, 4096-byte blocks, ext4" or "buffered (tmpfs refuses O_DIRECT)" */
const char *spw_disk_describe(const struct spw_disk *d);

/* A frame, to be written once: its bytes are counted against the limit. `after`: the frame that the
 * new one is to follow, or SPW_DISK_NONE. -ENOMEM: the tier is full; -EDQUOT: the write limit. */
int spw_disk_take(struct spw_disk *d, uint32_t after, uint32_t *frame);
void spw_disk_put(struct spw_disk *d, uint32_t frame);
/* Instead of put: the drive failed here, the frame is used again only when no other one is free:
 * what is written there is checked like everything else. */
void spw_disk_retire(struct spw_disk *d, uint32_t frame);
/* The frame is to be written again. bad: the drive failed here, so in another one if there is any,
 * and this one is retired. -EDQUOT: the write limit; the frame stays as it is. */
int spw_disk_again(struct spw_disk *d, bool bad, uint32_t *frame);
uint32_t spw_disk_n_retired(const struct spw_disk *d);

/* Fills in a job over `n` adjacent frames. */
void spw_disk_prepare(struct spw_disk *d, struct spw_disk_job *job, bool write, uint32_t frame,
                      uint32_t n, void *memory);
/* Submits the job when stream `s` gets there. */
int spw_disk_submit(const struct spw_device_ops *ops, struct spw_device *device,
                    struct spw_disk_job *job, spw_stream s);
/* Whether the job is over, whatever came of it; asks nobody. */
bool spw_disk_is_over(const struct spw_disk_job *job);
/* Sleeps until the job is over and gives what came of it in job->io.rc. `behind`: an event recorded
 * on the stream behind the submission. Fails only with the device; the job is not under way then
 * either, and was perhaps never submitted (-ECANCELED in job->io.rc). */
int spw_disk_wait(const struct spw_device_ops *ops, struct spw_device *device,
                  struct spw_disk_job *job, spw_event behind);
/* The same without a stream: now, and until it is over. */
int spw_disk_run(struct spw_disk_job *job);

#endif
