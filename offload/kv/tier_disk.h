/* The disk tier: an anonymous scratch file of equal frames, one tile each, in a directory of the
 * user. Frames of one layer of one sequence are adjacent if there is room, so a layer is one
 * sequential read.
 *
 * The checksum of each frame stays in memory: a read must return the bytes that were written to
 * that frame. The file has no name (or loses its name at once), mode 0600, and is preallocated. It
 * disappears with the process, however the process ends. Tiles in files of other writers are
 * attached: they are read in place. One host thread; jobs run on the I/O threads, and are submitted
 * in the order of a stream of the device. */
#ifndef SPW_OFFLOAD_KV_TIER_DISK_H
#define SPW_OFFLOAD_KV_TIER_DISK_H

#include "offload/device/lane.h"
#include "offload/io/io.h"

#define SPW_DISK_NONE UINT32_MAX

struct spw_disk_options {
    const char
        *directory;      /* of the scratch file; not used if n_frames is 0, or if io only counts */
    struct spw_io *io;   /* borrowed */
    uint64_t tile_bytes; /* a multiple of 4096 */
    uint32_t n_frames,
        run; /* 0: no scratch file. run: adjacent frames for one layer of one sequence */
    uint64_t write_limit_bytes; /* 0: none */
};

/* The state of a job. Either the stream's function or, after the device is lost, the waiting host
 * thread takes a queued job, never both. */
enum { SPW_DISK_QUEUED, SPW_DISK_SUBMITTING, SPW_DISK_SUBMITTED, SPW_DISK_GIVEN_UP };

/* A read or write of adjacent frames. The job and its memory must stay until it is over. */
struct spw_disk_job {
    struct spw_io_job io;
    _Atomic int state;
};

struct spw_disk;

/* Errors name the directory and say what to do: -ENOENT, -EACCES, -EROFS, -ENOSPC, ... */
int spw_disk_open(struct spw_disk **out, const struct spw_disk_options *o, struct spw_error *err);
void spw_disk_close(struct spw_disk *d); /* no job may be in flight; NULL is fine */
/* "O_DIRECT, 4096-byte blocks, ext4" or "buffered (tmpfs refuses O_DIRECT)" */
const char *spw_disk_describe(const struct spw_disk *d);
bool spw_disk_is_direct(const struct spw_disk *d); /* O_DIRECT: no page cache */
/* The filesystem of a path by name: "ext4"; "this filesystem" where the name is not known. */
const char *spw_disk_filesystem(const char *path);

/* Takes a frame for one write: its bytes count against the limit. `after`: the frame that the new
 * one should follow, or SPW_DISK_NONE. -ENOMEM: the tier is full; -EDQUOT: the write limit. */
int spw_disk_take(struct spw_disk *d, uint32_t after, uint32_t *frame);
void spw_disk_put(struct spw_disk *d, uint32_t frame);
/* Call it instead of put if the drive has failed here: the frame is used again only if no other
 * frame is free. Its bytes are then checked as always. */
void spw_disk_retire(struct spw_disk *d, uint32_t frame);
/* The frame for a second write. bad: the drive has failed in this frame: takes another frame if one
 * is free, and retires this one. -EDQUOT: the write limit; the frame does not change. */
int spw_disk_retry_frame(struct spw_disk *d, bool bad, uint32_t *frame);
uint32_t spw_disk_n_retired(const struct spw_disk *d);
/* The number of frames in use; bytes that count against the limit. */
uint32_t spw_disk_n_used(const struct spw_disk *d);
uint64_t spw_disk_written(const struct spw_disk *d);

/* Adjacent tiles in a complete file. */
struct spw_disk_attachment {
    int fd;          /* open for reading until `released` */
    uint64_t offset; /* a multiple of 4096 */
    uint32_t n;
    const uint64_t *sums; /* [n], XXH3-64 of each; copied */
    /* Callbacks on the host thread; each may be NULL. Called after the last frame was put, or when
     * the tier is closed: */
    void (*released)(void *context);
    /* called once for each retired frame: record i is damaged: */
    void (*damaged)(void *context, uint32_t i);
    void *context;
};

/* Gives the tiles the frames [*first, *first + n), for reading only. They do not count as the
 * tier's own frames, nor against the write limit. put, prepare and the calls after them accept
 * these frames. retire reports that the tile is damaged; the frame must still be put when no read
 * of it can be in flight. Do not call it in the token loop. -ENOMEM, or the error for the
 * descriptor: then nothing is attached, and `released` is not called. */
int spw_disk_attach(struct spw_disk *d, const struct spw_disk_attachment *a, uint32_t *first);
bool spw_disk_is_attached(const struct spw_disk *d, uint32_t frame);

/* Opens the same file with other frames, smaller or fewer, all of them free: `n_frames` in the
 * space of the old ones. The caller moves the tiles into them. The count of written bytes
 * continues. Ends with replace, which makes the old disk the new one (retired places stay retired;
 * no attached frame may be left), or, if nothing has been written, with close. -ENOMEM; -EINVAL:
 * O_DIRECT does not support such blocks. */
int spw_disk_reframe(struct spw_disk **out, struct spw_disk *d, uint64_t tile_bytes,
                     uint32_t n_frames);
/* Takes this frame, which is free. write: for one write. Else its bytes stay valid, if it has its
 * old size. -EDQUOT. */
int spw_disk_claim(struct spw_disk *d, uint32_t frame, bool write);
void spw_disk_replace(struct spw_disk *d, struct spw_disk *by); /* frees `by` */

/* Prepares a job for `n` adjacent frames. */
void spw_disk_prepare(struct spw_disk *d, struct spw_disk_job *job, bool write, uint32_t frame,
                      uint32_t n, void *memory);
/* Initializes a job whose `io` the caller fills in. */
void spw_disk_job_init(struct spw_disk_job *job);
/* Submits the job in the order of stream `s`. */
int spw_disk_submit(const struct spw_lane *lane, struct spw_disk_job *job, spw_stream s);
/* Whether the job is over, with success or not. Does not wait. */
bool spw_disk_is_over(const struct spw_disk_job *job);
/* Sleeps until the job is over; job->io.rc then has its result. `submitted`: an event that was
 * recorded on the stream after the submission. Fails only if the device is lost; the job is not in
 * flight then either, and perhaps was never submitted (-ECANCELED in job->io.rc). */
int spw_disk_wait(const struct spw_lane *lane, struct spw_disk_job *job, spw_event submitted);
/* start: submits the job now, without a stream; the caller waits for job->io. run: also waits until
 * the job is over. */
void spw_disk_start(struct spw_disk_job *job);
int spw_disk_run(struct spw_disk_job *job);

#endif
