/* The scratch file: see tier_disk.h.
 *
 *   file:  | frame 0 | frame 1 | ... | frame n - 1 |      a frame is one tile; a multiple of
 *                                                         4096 bytes
 *   sums:  |  XXH3   |  XXH3   | ... |             |      in memory, never on the disk
 *
 * Open uses what the filesystem supports: O_TMPFILE, or a name that is removed at once; O_DIRECT,
 * or the page cache; fallocate, or a sparse file. spw_disk_describe says which.
 *
 * Frames from n + 1 on are pieces of other files: see attached.h. */
#include "offload/kv/attached.h"
#include "offload/kv/tier.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { BLOCK_BYTES = 4096 };

struct spw_disk {
    struct spw_io *io; /* borrowed */
    int fd;            /* -1: `file` belongs to another disk */
    struct spw_io_file file;
    uint64_t tile_bytes, write_limit_bytes, written_bytes; /* written, or queued to be written */
    struct spw_tier_frames frames;
    uint32_t *retired; /* [n_frames], owned; a ring, oldest first from first_retired on */
    uint32_t first_retired, n_retired;
    uint64_t *sums; /* [n_frames], owned */
    struct spw_attached_set attached;
    bool sparse;            /* the file's space is not allocated in advance */
    const char *filesystem; /* by name */
    char text[128];
};

/* ---- the file ---- */

const char *spw_disk_filesystem(const char *path)
{
    static const struct {
        long magic;
        const char *name;
    } known[] = {{EXT4_SUPER_MAGIC, "ext4"},
                 {XFS_SUPER_MAGIC, "xfs"},
                 {BTRFS_SUPER_MAGIC, "btrfs"},
                 {TMPFS_MAGIC, "tmpfs"},
                 {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
                 {NFS_SUPER_MAGIC, "nfs"},
                 {F2FS_SUPER_MAGIC, "f2fs"},
                 {V9FS_MAGIC, "9p"},
                 {0x2fc12fc1, "zfs"}};
    struct statfs s;
    if (statfs(path, &s))
        return "this filesystem";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if ((long)s.f_type == known[i].magic)
            return known[i].name;
    return "this filesystem";
}

/* Opens a file without a name, or one that loses its name at once. -errno. */
static int open_anonymous(const char *directory, int direct)
{
    char name[4096];
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600);
    /* EISDIR: the kernel, EOPNOTSUPP: the filesystem does not support O_TMPFILE */
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd >= 0 ? fd : -errno;
    if ((size_t)snprintf(name, sizeof name, "%s/spillway.XXXXXX", directory) >= sizeof name)
        return -ENAMETOOLONG;
    fd = mkostemp(name, O_CLOEXEC | direct); /* mode 0600 */
    if (fd < 0)
        return -errno;
    unlink(name);
    return fd;
}

static int refused(const char *directory, int rc, struct spw_error *err)
{
    const char *what = strerror(-rc), *remedy = "name another directory";
    if (rc == -ENOENT)
        what = "does not exist", remedy = "create it, or name another one";
    else if (rc == -ENOTDIR)
        what = "is not a directory", remedy = "name a directory";
    else if (rc == -EACCES || rc == -EPERM)
        what = "is not writable for this user";
    else if (rc == -EROFS)
        what = "is on a read-only filesystem";
    return spw_fail(err, rc, "disk: %s: %s; %s", directory, what, remedy);
}

static int open_file(struct spw_disk *d, const char *directory, struct spw_error *err)
{
    struct stat s;
    if (stat(directory, &s))
        return refused(directory, -errno, err);
    if (!S_ISDIR(s.st_mode))
        return refused(directory, -ENOTDIR, err);
    d->fd = open_anonymous(directory, O_DIRECT);
    if (d->fd == -EINVAL) /* the error of filesystems without O_DIRECT */
        d->fd = open_anonymous(directory, 0);
    return d->fd < 0 ? refused(directory, d->fd, err) : 0;
}

static int no_room(const char *directory, int rc, uint64_t bytes, uint64_t available,
                   struct spw_error *err)
{
    return spw_fail(err, rc,
                    "disk: %s: %.1f MiB are wanted, %.1f MiB are free; lower options.disk_bytes, "
                    "or name another directory",
                    directory, (double)bytes / (1 << 20), (double)available / (1 << 20));
}

/* Allocates the space of all frames now, so no later write finds the filesystem full. `sparse`:
 * this was not possible. */
static int take_room(const struct spw_disk *d, const char *directory, uint64_t bytes, bool *sparse,
                     struct spw_error *err)
{
    struct statvfs v;
    uint64_t available = UINT64_MAX;
    if (!fstatvfs(d->fd, &v) && v.f_blocks) /* some filesystems do not report it */
        available = v.f_bavail * v.f_frsize;
    if (bytes > INT64_MAX || bytes > available)
        return no_room(directory, -ENOSPC, bytes, available, err);
    int rc;
    do
        rc = fallocate(d->fd, 0, 0, (off_t)bytes) ? -errno : 0;
    while (rc == -EINTR);
    *sparse = rc == -EOPNOTSUPP || rc == -ENOSYS;
    if (*sparse)
        rc = ftruncate(d->fd, (off_t)bytes) ? -errno : 0;
    if (rc == -ENOSPC || rc == -EDQUOT)
        return no_room(directory, rc, bytes, available, err);
    if (rc)
        return spw_fail(err, rc, "disk: %s: a file of %.1f MiB: %s; name another directory",
                        directory, (double)bytes / (1 << 20), strerror(-rc));
    return 0;
}

/* O_DIRECT works only if its block size divides a tile; else turns it off. */
static int fit_blocks(struct spw_disk *d, uint64_t tile_bytes)
{
    if (tile_bytes % d->file.align == 0)
        return 0;
    int flags = fcntl(d->fd, F_GETFL);
    if (flags < 0 || fcntl(d->fd, F_SETFL, flags & ~O_DIRECT))
        return -errno;
    d->file.align = 1;
    return 0;
}

static int describe_file(struct spw_disk *d)
{
    SPW_TRY(spw_io_use_file(d->fd, &d->file));
    return fit_blocks(d, d->tile_bytes);
}

static void describe(struct spw_disk *d)
{
    const char *room = d->sparse ? ", room not taken in advance" : "";
    if (d->file.align > 1)
        snprintf(d->text, sizeof d->text, "O_DIRECT, %u-byte blocks, %s%s", d->file.align,
                 d->filesystem, room);
    else
        snprintf(d->text, sizeof d->text, "buffered (%s refuses O_DIRECT)%s", d->filesystem, room);
}

static int open_frames(struct spw_disk *d, uint32_t n_frames, uint32_t run)
{
    d->attached.base = n_frames + 1; /* the number before it stays unused */
    d->sums = spw_alloc_zero(n_frames, sizeof *d->sums);
    d->retired = spw_alloc_zero(n_frames, sizeof *d->retired);
    return d->sums && d->retired ? spw_tier_frames_init(&d->frames, n_frames, run) : -ENOMEM;
}

static void close_frames(struct spw_disk *d)
{
    spw_attached_free(&d->attached);
    spw_tier_frames_free(&d->frames);
    spw_free(d->sums);
    spw_free(d->retired);
}

static int open_scratch(struct spw_disk *d, const struct spw_disk_options *o, struct spw_error *err)
{
    uint64_t bytes;
    SPW_TRY(open_file(d, o->directory, err));
    if (!spw_mul_u64(o->tile_bytes, o->n_frames, &bytes))
        bytes = UINT64_MAX;
    SPW_TRY(take_room(d, o->directory, bytes, &d->sparse, err));
    int rc = describe_file(d);
    if (rc)
        return spw_fail(err, rc, "disk: %s: the flags of a file could not be read (%s)",
                        o->directory, strerror(-rc));
    d->filesystem = spw_disk_filesystem(o->directory);
    describe(d);
    return 0;
}

static int open_all(struct spw_disk *d, const struct spw_disk_options *o, struct spw_error *err)
{
    snprintf(d->text, sizeof d->text, "no scratch file");
    if (o->n_frames && !spw_io_counts(o->io))
        SPW_TRY(open_scratch(d, o, err));
    int rc = open_frames(d, o->n_frames, o->n_frames ? o->run : 1);
    if (rc)
        return spw_fail(err, rc, "out of memory for the checksums of %u frames", o->n_frames);
    return 0;
}

int spw_disk_open(struct spw_disk **out, const struct spw_disk_options *o, struct spw_error *err)
{
    assert(o->tile_bytes && o->tile_bytes % BLOCK_BYTES == 0 && (o->run || !o->n_frames));
    *out = NULL;
    struct spw_disk *d = spw_alloc_zero(1, sizeof *d);
    if (!d)
        return spw_fail(err, -ENOMEM, "out of memory for the disk tier");
    d->io = o->io;
    d->fd = -1;
    d->file = (struct spw_io_file){.fd = -1, .align = 1};
    d->tile_bytes = o->tile_bytes;
    d->write_limit_bytes = o->write_limit_bytes ? o->write_limit_bytes : UINT64_MAX;
    int rc = open_all(d, o, err);
    if (rc) {
        spw_disk_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void spw_disk_close(struct spw_disk *d)
{
    if (!d)
        return;
    close_frames(d);
    if (d->fd >= 0)
        close(d->fd);
    spw_free(d);
}

const char *spw_disk_describe(const struct spw_disk *d)
{
    return d->text;
}

bool spw_disk_is_direct(const struct spw_disk *d)
{
    return d->file.align > 1;
}

/* ---- frames ---- */

static int count_write(struct spw_disk *d)
{
    if (d->tile_bytes > spw_sub_u64(d->write_limit_bytes, d->written_bytes))
        return -EDQUOT;
    d->written_bytes += d->tile_bytes;
    return 0;
}

int spw_disk_take(struct spw_disk *d, uint32_t after, uint32_t *frame)
{
    if (!d->frames.free_frames.n && !d->n_retired)
        return -ENOMEM;
    SPW_TRY(count_write(d));
    if (d->frames.free_frames.n)
        return spw_tier_frames_take(&d->frames, after, frame);
    *frame = d->retired[d->first_retired];
    d->first_retired = (d->first_retired + 1) % d->frames.n_frames;
    d->n_retired--;
    return 0;
}

void spw_disk_put(struct spw_disk *d, uint32_t frame)
{
    if (spw_disk_is_attached(d, frame))
        spw_attached_put(&d->attached, frame);
    else
        spw_tier_frames_put(&d->frames, frame);
}

static void report_damage(const struct spw_attached *p, uint32_t frame)
{
    if (p->given.damaged)
        p->given.damaged(p->given.context, frame - p->first);
}

void spw_disk_retire(struct spw_disk *d, uint32_t frame)
{
    if (spw_disk_is_attached(d, frame)) {
        report_damage(spw_attached_find(&d->attached, frame), frame);
        return;
    }
    assert(frame < d->frames.n_frames && d->n_retired < d->frames.n_frames);
    d->retired[(d->first_retired + d->n_retired++) % d->frames.n_frames] = frame;
}

int spw_disk_retry_frame(struct spw_disk *d, bool bad, uint32_t *frame)
{
    SPW_TRY(count_write(d));
    uint32_t other;
    if (!bad || spw_tier_frames_take(&d->frames, SPW_TIER_NONE, &other))
        return 0;
    spw_disk_retire(d, *frame);
    *frame = other;
    return 0;
}

uint32_t spw_disk_n_retired(const struct spw_disk *d)
{
    return d->n_retired;
}

uint32_t spw_disk_n_used(const struct spw_disk *d)
{
    return d->frames.n_frames - d->frames.free_frames.n - d->n_retired;
}

uint64_t spw_disk_written(const struct spw_disk *d)
{
    return d->written_bytes;
}

/* ---- other files ---- */

int spw_disk_attach(struct spw_disk *d, const struct spw_disk_attachment *a, uint32_t *first)
{
    assert(a->n && a->offset % BLOCK_BYTES == 0);
    return spw_attached_add(&d->attached, a, d->tile_bytes, first);
}

bool spw_disk_is_attached(const struct spw_disk *d, uint32_t frame)
{
    return frame >= d->attached.base && frame != SPW_DISK_NONE;
}

/* ---- other frames ---- */

int spw_disk_reframe(struct spw_disk **out, struct spw_disk *d, uint64_t tile_bytes,
                     uint32_t n_frames)
{
    assert(tile_bytes && tile_bytes % BLOCK_BYTES == 0);
    assert(n_frames * tile_bytes <= d->frames.n_frames * d->tile_bytes);
    *out = NULL;
    uint32_t align = d->file.align;
    if (fit_blocks(d, tile_bytes))
        return -EINVAL;
    if (align != d->file.align)
        describe(d);
    struct spw_disk *by = spw_alloc_zero(1, sizeof *by);
    if (!by)
        return -ENOMEM;
    *by = (struct spw_disk){.io = d->io,
                            .fd = -1,
                            .file = d->file,
                            .tile_bytes = tile_bytes,
                            .write_limit_bytes = d->write_limit_bytes,
                            .written_bytes = d->written_bytes};
    if (open_frames(by, n_frames, d->frames.run)) {
        spw_disk_close(by);
        return -ENOMEM;
    }
    if (tile_bytes == d->tile_bytes) /* checksums of frames that stay */
        memcpy(by->sums, d->sums, n_frames * sizeof *by->sums);
    *out = by;
    return 0;
}

int spw_disk_claim(struct spw_disk *d, uint32_t frame, bool write)
{
    if (write)
        SPW_TRY(count_write(d));
    bool free_before = spw_tier_frames_claim(&d->frames, frame);
    assert(free_before);
    (void)free_before;
    return 0;
}

/* Retires the new frames in the places of retired frames. */
static void retire_places(const struct spw_disk *d, struct spw_disk *by)
{
    for (uint32_t i = 0; i < d->n_retired; i++) {
        uint64_t place = d->retired[(d->first_retired + i) % d->frames.n_frames] * d->tile_bytes;
        uint64_t end = spw_div_up(place + d->tile_bytes, by->tile_bytes);
        for (uint64_t f = place / by->tile_bytes; f < spw_min_u64(end, by->frames.n_frames); f++)
            if (spw_tier_frames_claim(&by->frames, (uint32_t)f))
                spw_disk_retire(by, (uint32_t)f);
    }
}

void spw_disk_replace(struct spw_disk *d, struct spw_disk *by)
{
    assert(!d->attached.n);
    retire_places(d, by);
    close_frames(d);
    d->tile_bytes = by->tile_bytes;
    d->written_bytes = by->written_bytes;
    d->frames = by->frames;
    d->retired = by->retired;
    d->first_retired = by->first_retired;
    d->n_retired = by->n_retired;
    d->sums = by->sums;
    d->attached = by->attached;
    spw_free(by);
    int rc = d->fd < 0 ? 0 : ftruncate(d->fd, (off_t)(d->frames.n_frames * d->tile_bytes));
    (void)rc; /* the rest of the file is within the budget, too */
}

/* ---- jobs ---- */

/* Where the frames lie. */
static void locate(struct spw_disk *d, struct spw_io_job *io, uint32_t frame)
{
    if (spw_disk_is_attached(d, frame)) {
        struct spw_attached *p = spw_attached_find(&d->attached, frame);
        uint32_t i = frame - p->first;
        assert(!io->write && io->bytes <= (p->given.n - i) * d->tile_bytes);
        io->file = &p->file;
        io->offset = p->given.offset + i * d->tile_bytes;
        io->sums = p->sums + i;
    } else {
        assert(frame < d->frames.n_frames);
        assert(io->bytes <= (d->frames.n_frames - frame) * d->tile_bytes);
        io->file = &d->file;
        io->offset = frame * d->tile_bytes;
        io->sums = d->sums + frame;
    }
}

void spw_disk_job_init(struct spw_disk_job *job)
{
    spw_io_job_init(&job->io);
    atomic_store(&job->state, SPW_DISK_QUEUED);
}

void spw_disk_prepare(struct spw_disk *d, struct spw_disk_job *job, bool write, uint32_t frame,
                      uint32_t n, void *memory)
{
    assert(n);
    spw_disk_job_init(job);
    job->io.io = d->io;
    job->io.write = write;
    job->io.bytes = n * d->tile_bytes;
    job->io.memory = memory;
    job->io.record_bytes = d->tile_bytes;
    locate(d, &job->io, frame);
}

void spw_disk_start(struct spw_disk_job *job)
{
    int queued = SPW_DISK_QUEUED;
    if (!atomic_compare_exchange_strong(&job->state, &queued, SPW_DISK_SUBMITTING))
        return; /* given up */
    spw_io_submit(job->io.io, &job->io);
    atomic_store(&job->state, SPW_DISK_SUBMITTED);
}

static void submit(void *argument)
{
    spw_disk_start(argument);
}

int spw_disk_submit(const struct spw_lane *lane, struct spw_disk_job *job, spw_stream s)
{
    return spw_lane_host_call(lane, submit, job, s);
}

bool spw_disk_is_over(const struct spw_disk_job *job)
{
    return atomic_load(&job->state) == SPW_DISK_SUBMITTED && spw_io_is_over(&job->io);
}

/* Whether the job will never be submitted. A lost device answers at once, perhaps while the driver
 * still runs the function that it has begun. */
static bool give_up(struct spw_disk_job *job)
{
    int state = SPW_DISK_QUEUED;
    if (atomic_compare_exchange_strong(&job->state, &state, SPW_DISK_GIVEN_UP))
        return true;
    while (atomic_load(&job->state) == SPW_DISK_SUBMITTING)
        sched_yield();
    return state == SPW_DISK_GIVEN_UP;
}

int spw_disk_wait(const struct spw_lane *lane, struct spw_disk_job *job, spw_event submitted)
{
    int rc = spw_lane_event_sync(lane, submitted);
    if (give_up(job))
        job->io.rc = -ECANCELED;
    else
        spw_io_wait(job->io.io, &job->io);
    return rc;
}

int spw_disk_run(struct spw_disk_job *job)
{
    atomic_store(&job->state, SPW_DISK_QUEUED); /* it may be a second try */
    spw_disk_start(job);
    return spw_io_wait(job->io.io, &job->io);
}
