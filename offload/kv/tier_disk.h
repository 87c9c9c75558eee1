/* The disk tier: an anonymous scratch file of equal frames, one tile each, in a directory of the
 * user's. Frames of one layer of one sequence are adjacent as far as there is room, so that a layer
 * is one sequential read.
 *
 * The checksum of each frame stays in memory: what comes back must be what went down, in that
 * frame. The file is made without a name (or loses it at once), mode 0600, and preallocated: it is
 * gone with the process however that ends. Tiles in files that others wrote are attached: read
 * where they lie. One host thread; jobs run on the I/O threads, and are submitted in the order of a
 * stream of the device. */
#ifndef SPW_OFFLOAD_KV_TIER_DISK_H
#define SPW_OFFLOAD_KV_TIER_DISK_H

#include "offload/device/lane.h"
#include "offload/io/io.h"

#define SPW_DISK_NONE UINT32_MAX

struct spw_disk_options {
    const char *directory;      /* of the scratch file; not looked at where n_frames is 0 */
    struct spw_io *io;          /* borrowed */
    uint64_t tile_bytes;        /* a multiple of 4096 */
    uint32_t n_frames, run;     /* 0: no scratch file. run: of one layer of one sequence */
    uint64_t write_limit_bytes; /* 0: none */
};

/* Where a job is on its way to the engine. Either the stream's function or, after a lost device,
 * the host thread that waits takes a queued job; never both. */
enum { SPW_DISK_QUEUED, SPW_DISK_SUBMITTING, SPW_DISK_SUBMITTED, SPW_DISK_GIVEN_UP };

/* A read or write of adjacent frames. Its memory and the job itself stay until it is over. */
struct spw_disk_job {
    struct spw_io_job io;
    _Atomic int state;
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
/* Frames that are taken; bytes that count against the limit. */
uint32_t spw_disk_n_used(const struct spw_disk *d);
uint64_t spw_disk_written(const struct spw_disk *d);

/* Tiles in a file that is whole, side by side. */
struct spw_disk_attachment {
    int fd;          /* open for reading until `released` */
    uint64_t offset; /* a multiple of 4096 */
    uint32_t n;
    const uint64_t *sums; /* [n], XXH3-64 of each; copied */
    /* On the host thread; each may be NULL. The last frame was put, or the tier is being closed: */
    void (*released)(void *context);
    /* what lies in record i is not what it was (once for each that is retired): */
    void (*damaged)(void *context, uint32_t i);
    void *context;
};

/* Gives the tiles frames [*first, *first + n), for reading only: none of them counts as the
 * tier's own, or against the write limit. put, prepare and what follows take them as they take
 * others. retire tells that the tile is damaged; the frame must be put all the same, once no read
 * of it can be under way. Not in the token loop. -ENOMEM, or what the descriptor is refused with:
 * then nothing is attached, and `released` is not called. */
int spw_disk_attach(struct spw_disk *d, const struct spw_disk_attachment *a, uint32_t *first);
bool spw_disk_is_attached(const struct spw_disk *d, uint32_t frame);

/* The same file in other, smaller or fewer frames, all of them free, for whoever moves there what
 * the old ones hold: `n_frames` in their room. Writes count from where the old disk's stood. It
 * ends with replace, by which the old disk becomes the new one (retired places stay retired; no
 * attached frame may be left), or with close, while nothing has been written. -ENOMEM; -EINVAL:
 * direct I/O is not in such blocks. */
int spw_disk_reframe(struct spw_disk **out, struct spw_disk *d, uint64_t tile_bytes,
                     uint32_t n_frames);
/* Takes this very frame, which is free; to be written once, or to stay as it is if it has the size
 * it had. -EDQUOT. */
int spw_disk_claim(struct spw_disk *d, uint32_t frame, bool write);
void spw_disk_replace(struct spw_disk *d, struct spw_disk *by); /* frees `by` */

/* Fills in a job over `n` adjacent frames. */
void spw_disk_prepare(struct spw_disk *d, struct spw_disk_job *job, bool write, uint32_t frame,
                      uint32_t n, void *memory);
/* The same for a job whose io the caller fills in. */
void spw_disk_job_init(struct spw_disk_job *job);
/* Submits the job when stream `s` gets there. */
int spw_disk_submit(const struct spw_lane *lane, struct spw_disk_job *job, spw_stream s);
/* Whether the job is over, whatever came of it; asks nobody. */
bool spw_disk_is_over(const struct spw_disk_job *job);
/* Sleeps until the job is over and gives what came of it in job->io.rc. `behind`: an event recorded
 * on the stream behind the submission. Fails only with the device; the job is not under way then
 * either, and was perhaps never submitted (-ECANCELED in job->io.rc). */
int spw_disk_wait(const struct spw_lane *lane, struct spw_disk_job *job, spw_event behind);
/* Without a stream: now; job->io is waited for. Or until it is over. */
void spw_disk_start(struct spw_disk_job *job);
int spw_disk_run(struct spw_disk_job *job);

#endif
