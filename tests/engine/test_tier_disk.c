/* The disk tier: what a directory can refuse and how that is said; a file that has no name, mode
 * 0600, and room for all of its frames; frames, retired ones, the write limit; tiles that come back
 * as they went down, through the stream of a device and without; and pieces of other files that
 * are attached. Filesystems of its own (small, full, read-only, without fallocate) are mounted
 * where the kernel lets a test do that. */
#include "tests/check.h"
#include "tests/engine/engine_run.h"

#include "offload/kv/tier_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

enum { TILE_BYTES = 8192, FRAMES = 40, RUN = 4 };

static struct spw_io *io;

static struct spw_disk_options options(const char *directory)
{
    return (struct spw_disk_options){
        .directory = directory, .io = io, .tile_bytes = TILE_BYTES, .n_frames = FRAMES, .run = RUN};
}

static void open_io(void)
{
    struct spw_error err = {0};
    struct spw_io_options o = {.kind = SPW_IO_AUTO};
    int rc = spw_io_open(&io, &o, &err);
    CHECK_MSG(!rc, "%s", err.text);
}

/* ---- what can be refused ---- */

static void check_refused(const struct spw_disk_options *o, int expected, const char *says)
{
    struct spw_error err = {0};
    struct spw_disk *d = NULL;
    int rc = spw_disk_open(&d, o, &err);
    CHECK_MSG(rc == expected && !d, "%s: %d", o->directory, rc);
    CHECK_MSG(strstr(err.text, o->directory) && strstr(err.text, says) &&
                  strstr(err.text, "name a"),
              "%s", err.text);
    CHECK(!strchr(err.text, '\n'));
    spw_disk_close(d);
}

static void check_paths(const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s/none", dir);
    struct spw_disk_options o = options(path);
    check_refused(&o, -ENOENT, "does not exist");
    snprintf(path, sizeof path, "%s/file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    check_refused(&o, -ENOTDIR, "is not a directory");
    unlink(path);
    o = options(dir);
    o.n_frames = UINT32_MAX - 1; /* 32 TiB */
    o.tile_bytes = 1 << 20;
    check_refused(&o, -ENOSPC, "are free");
    o.tile_bytes = (uint64_t)1 << 60; /* no file is so large */
    check_refused(&o, -ENOSPC, "are free");
}

/* In a child, which is nobody if this is root. Its exit status: 0, 1, or 77. */
static int in_child(int (*run)(const char *), const char *argument)
{
    fflush(stderr);
    pid_t child = fork();
    if (!child)
        _exit(run(argument));
    int status = 1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void check_child(const char *what, int (*run)(const char *), const char *argument)
{
    int status = in_child(run, argument);
    if (status == CHECK_SKIP)
        fprintf(stderr, "%s: skipped\n", what);
    else
        CHECK_MSG(!status, "%s", what);
}

static int not_writable(const char *dir)
{
    if (!geteuid() && setuid(65534))
        return CHECK_SKIP;
    open_io(); /* a fork has no threads */
    struct spw_disk_options o = options(dir);
    check_refused(&o, -EACCES, "is not writable");
    return check_failed_ != 0;
}

/* ---- filesystems ---- */

static bool mount_at(const char *dir, const char *type, const char *data)
{
    uid_t uid = getuid();
    if (unshare(CLONE_NEWNS)) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
            return false;
        int fd = open("/proc/self/uid_map", O_WRONLY);
        int n = snprintf(map, sizeof map, "0 %u 1", (unsigned)uid);
        bool mapped = fd >= 0 && write(fd, map, (size_t)n) == n;
        close(fd);
        if (!mapped)
            return false;
    }
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return !mount("spillway", dir, type, 0, data);
}

static struct spw_disk *open_disk(const struct spw_disk_options *o)
{
    struct spw_error err = {0};
    struct spw_disk *d = NULL;
    int rc = spw_disk_open(&d, o, &err);
    CHECK_MSG(!rc && d, "%s", err.text);
    return d;
}

static void write_frame(struct spw_disk *d, uint32_t frame, uint8_t *memory, uint8_t value, int rc)
{
    struct spw_disk_job job;
    memset(memory, value, TILE_BYTES);
    spw_disk_prepare(d, &job, true, frame, 1, memory);
    CHECK(spw_disk_run(&job) == rc);
}

static void read_frame(struct spw_disk *d, uint32_t frame, uint8_t *memory, uint8_t value)
{
    struct spw_disk_job job;
    memset(memory, ~value, TILE_BYTES);
    spw_disk_prepare(d, &job, false, frame, 1, memory);
    CHECK(spw_disk_run(&job) == 0);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < TILE_BYTES; i++)
        wrong += memory[i] != value;
    CHECK_MSG(!wrong, "frame %u", frame);
}

static uint8_t *memory_of(uint32_t tiles)
{
    uint8_t *p = aligned_alloc(4096, (size_t)tiles * TILE_BYTES);
    if (!p)
        abort();
    return p;
}

static void fill_rest(const char *dir)
{
    char path[256], block[4096] = {0};
    snprintf(path, sizeof path, "%s/rest", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
}

/* A filesystem of 512 KiB: what does not fit is refused with the numbers; what was taken can be
 * written when it is full. */
static int small_tmpfs(const char *dir)
{
    if (!mount_at(dir, "tmpfs", "size=512k"))
        return CHECK_SKIP;
    open_io();
    struct spw_disk_options o = options(dir);
    o.n_frames = 512 / 8 + 1;
    check_refused(&o, -ENOSPC, "0.5 MiB are wanted, 0.5 MiB are free");
    o.n_frames = FRAMES;
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(1);
    fill_rest(dir);
    for (uint32_t i = 0; i < FRAMES; i++)
        write_frame(d, i, memory, (uint8_t)(i + 1), 0);
    for (uint32_t i = 0; i < FRAMES; i++)
        read_frame(d, i, memory, (uint8_t)(i + 1));
    check_refused(&o, -ENOSPC, "are free");
    spw_disk_close(d);
    free(memory);
    spw_io_close(io);
    return check_failed_ != 0;
}

static int read_only(const char *dir)
{
    if (!mount_at(dir, "tmpfs", "size=512k") ||
        mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL))
        return CHECK_SKIP;
    open_io();
    struct spw_disk_options o = options(dir);
    check_refused(&o, -EROFS, "read-only");
    return check_failed_ != 0;
}

/* ramfs has neither fallocate nor a size. */
static int sparse(const char *dir)
{
    if (!mount_at(dir, "ramfs", NULL))
        return CHECK_SKIP;
    open_io();
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(1);
    CHECK_MSG(strstr(spw_disk_describe(d), "not taken in advance"), "%s", spw_disk_describe(d));
    write_frame(d, 3, memory, 9, 0);
    read_frame(d, 3, memory, 9);
    spw_disk_close(d);
    free(memory);
    spw_io_close(io);
    return check_failed_ != 0;
}

/* ---- the file ---- */

static uint32_t n_names(const char *dir)
{
    uint32_t n = 0;
    DIR *d = opendir(dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* Descriptors of this process below `dir`, the last one in *fd. */
static uint32_t n_open(const char *dir, int *fd)
{
    uint32_t n = 0;
    for (int i = 0; i < 256; i++) {
        char link[64], target[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", i);
        ssize_t bytes = readlink(link, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = 0;
        if (strncmp(target, dir, strlen(dir)) == 0) {
            n++;
            *fd = i;
        }
    }
    return n;
}

static void check_anonymous(const char *dir)
{
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    struct stat s;
    int fd = -1;
    CHECK(n_names(dir) == 0 && n_open(dir, &fd) == 1);
    CHECK(fstat(fd, &s) == 0 && (s.st_mode & 07777) == 0600 && s.st_nlink == 0);
    CHECK(s.st_size == FRAMES * TILE_BYTES && s.st_blocks * 512 >= FRAMES * TILE_BYTES);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    fprintf(stderr, "%s: %s\n", dir, spw_disk_describe(d));
    bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
    CHECK(direct == !strncmp(spw_disk_describe(d), "O_DIRECT", 8));
    spw_disk_close(d);
    CHECK(n_open(dir, &fd) == 0);
}

/* Every allocation of open may fail. */
static void check_no_memory(const char *dir)
{
    struct spw_disk_options o = options(dir);
    int64_t outstanding = spw_alloc_outstanding();
    int rc = -ENOMEM, fd;
    for (int n = 0; rc == -ENOMEM; n++) {
        struct spw_error err = {0};
        struct spw_disk *d = NULL;
        spw_alloc_fail_nth(n);
        rc = spw_disk_open(&d, &o, &err);
        spw_alloc_fail_nth(-1);
        CHECK(!rc == !!d && !rc == !err.text[0]);
        spw_disk_close(d);
        CHECK(spw_alloc_outstanding() == outstanding && n_open(dir, &fd) == 0);
    }
    CHECK(!rc);
}

/* ---- frames ---- */

static void check_frames(const char *dir)
{
    struct spw_disk_options o = options(dir);
    o.n_frames = 10;
    struct spw_disk *d = open_disk(&o);
    uint32_t frames[10], more = 0, seen = 0;
    for (uint32_t i = 0; i < 10; i++) {
        CHECK(spw_disk_take(d, i % RUN ? frames[i - 1] : SPW_DISK_NONE, &frames[i]) == 0);
        if (i % RUN)
            CHECK(frames[i] == frames[i - 1] + 1);
        seen |= 1u << frames[i];
    }
    CHECK(seen == 0x3ff && spw_disk_take(d, 0, &more) == -ENOMEM);
    spw_disk_retire(d, frames[4]);
    spw_disk_put(d, frames[7]);
    uint32_t moved = frames[2];
    CHECK(spw_disk_retry_frame(d, false, &moved) == 0 && moved == frames[2]);
    CHECK(spw_disk_retry_frame(d, true, &moved) == 0 && moved == frames[7]);
    CHECK(spw_disk_n_retired(d) == 2);
    CHECK(spw_disk_retry_frame(d, true, &moved) == 0 && moved == frames[7]); /* there is no other */
    CHECK(spw_disk_n_retired(d) == 2);
    for (uint32_t i = 0; i < 10; i++)
        if (i != 4 && i != 2)
            spw_disk_put(d, frames[i]);
    for (uint32_t i = 0; i < 8; i++) {
        CHECK(spw_disk_take(d, SPW_DISK_NONE, &more) == 0);
        CHECK(more != frames[4] && more != frames[2]);
    }
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &more) == 0 && more == frames[4]);
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &more) == 0 && more == frames[2]);
    CHECK(spw_disk_n_retired(d) == 0);
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &more) == -ENOMEM);
    spw_disk_close(d);
}

static void check_limit(const char *dir)
{
    struct spw_disk_options o = options(dir);
    o.write_limit_bytes = 5 * TILE_BYTES + 1;
    struct spw_disk *d = open_disk(&o);
    uint32_t frame;
    for (int i = 0; i < 4; i++) {
        CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == 0);
        if (i % 2)
            spw_disk_put(d, frame); /* written or not, what was promised is counted */
    }
    uint32_t again = frame = 0;
    CHECK(spw_disk_retry_frame(d, false, &again) == 0);
    CHECK(spw_disk_retry_frame(d, true, &again) == -EDQUOT && again == frame);
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == -EDQUOT);
    CHECK(spw_disk_n_retired(d) == 0);
    spw_disk_close(d);
}

/* ---- tiles ---- */

/* Several frames in a job, one by one, and what was never written. */
static void check_tiles(const char *dir)
{
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(RUN);
    struct spw_disk_job job;
    for (uint32_t i = 0; i < RUN; i++)
        memset(memory + i * TILE_BYTES, (int)i + 50, TILE_BYTES);
    spw_disk_prepare(d, &job, true, 8, RUN, memory);
    CHECK(!spw_disk_is_over(&job));
    CHECK(spw_disk_run(&job) == 0 && spw_disk_is_over(&job));
    for (uint32_t i = RUN; i-- > 0;)
        read_frame(d, 8 + i, memory, (uint8_t)(i + 50));
    spw_disk_prepare(d, &job, false, 10, 3, memory);
    CHECK(spw_disk_run(&job) == -EBADMSG && job.io.bad_record == 2); /* 12 was never written */
    write_frame(d, 9, memory, 1, 0);
    read_frame(d, 8, memory, 50);
    read_frame(d, 9, memory, 1);
    read_frame(d, 10, memory, 52);
    spw_disk_close(d);
    free(memory);
}

/* Frames of two tiles become frames of one, while the file is moved upward from its beginning; bad
 * places stay bad, what was written stays counted, and the rest of the file is given back. */
static void check_reframe(const char *dir)
{
    enum { OLD = 6, NEW = 9 };
    struct spw_disk_options o = options(dir);
    o.tile_bytes = 2 * TILE_BYTES;
    o.n_frames = OLD;
    o.write_limit_bytes = (2 * OLD + NEW) * TILE_BYTES;
    struct spw_disk *d = open_disk(&o), *by;
    uint8_t *memory = memory_of(2);
    struct spw_disk_job job;
    struct stat s;
    uint32_t frame;
    int fd = -1;
    for (uint32_t i = 0; i < OLD; i++) {
        CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == 0 && frame == i);
        memset(memory, (int)i + 1, 2 * TILE_BYTES);
        spw_disk_prepare(d, &job, true, i, 1, memory);
        CHECK(spw_disk_run(&job) == 0);
    }
    spw_disk_retire(d, 2); /* tiles 4 and 5 of the file */
    CHECK(spw_disk_reframe(&by, d, TILE_BYTES, NEW) == 0);
    spw_disk_close(by); /* nothing has happened */
    CHECK(spw_disk_reframe(&by, d, TILE_BYTES, NEW) == 0);
    for (uint32_t i = 0; i < OLD; i++) {
        spw_disk_prepare(d, &job, false, i, 1, memory);
        CHECK(spw_disk_run(&job) == 0 && memory[TILE_BYTES] == i + 1);
        CHECK(spw_disk_claim(by, i, true) == 0);
        spw_disk_prepare(by, &job, true, i, 1, memory);
        CHECK(spw_disk_run(&job) == 0);
    }
    spw_disk_put(by, 4);
    spw_disk_replace(d, by);
    for (uint32_t i = 0; i < OLD; i++)
        read_frame(d, i, memory, (uint8_t)(i + 1));
    CHECK(spw_disk_n_retired(d) == 1); /* 5 is in use */
    for (uint32_t i = OLD; i < NEW; i++)
        CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == 0 && frame >= OLD);
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == -EDQUOT);
    CHECK(n_open(dir, &fd) == 1 && fstat(fd, &s) == 0 && s.st_size == NEW * TILE_BYTES);
    spw_disk_close(d);
    CHECK(n_open(dir, &fd) == 0);
    free(memory);
}

/* A device that is lost after a submission: the test calls the function that the driver has
 * already taken from its queue. */
static struct {
    void (*fn)(void *);
    void *argument;
} taken;

static int take_function(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s)
{
    (void)d;
    (void)s;
    taken.fn = fn;
    taken.argument = argument;
    return 0;
}

static int answer_lost(struct spw_device *d, spw_event e)
{
    (void)d;
    (void)e;
    return -EIO;
}

static void *call_taken(void *argument)
{
    (void)argument;
    taken.fn(taken.argument);
    return NULL;
}

/* The function comes after the job was given up: it must not touch what the job once named. Or at
 * the same time: either the job is written and waited for, or it is not written at all. */
static void check_lost(const char *dir)
{
    const struct spw_device_ops ops = {.host_call = take_function, .event_sync = answer_lost};
    const struct spw_lane lane = {.ops = &ops};
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(1), *old = memory_of(1);
    for (int i = 0; i < 60; i++) {
        bool late = i % 2;
        struct spw_disk_job job;
        pthread_t thread;
        write_frame(d, 0, old, 1, 0);
        memset(memory, 2, TILE_BYTES);
        spw_disk_prepare(d, &job, true, 0, 1, memory);
        CHECK(spw_disk_submit(&lane, &job, NULL) == 0);
        if (!late)
            CHECK(pthread_create(&thread, NULL, call_taken, NULL) == 0);
        CHECK(spw_disk_wait(&lane, &job, NULL) == -EIO);
        int rc = job.io.rc;
        CHECK(rc == -ECANCELED || (!late && rc == 0));
        if (late)
            call_taken(NULL);
        else
            pthread_join(thread, NULL);
        CHECK(spw_disk_is_over(&job) == (rc == 0));
        CHECK(spw_disk_wait(&lane, &job, NULL) == -EIO && job.io.rc == rc);
        read_frame(d, 0, old, rc ? 1 : 2);
    }
    spw_disk_close(d);
    free(memory);
    free(old);
}

/* Behind a stream: not before what was queued there; never on a device that is lost before. */
static void check_stream(const char *dir)
{
    const struct spw_device_ops *ops = &spw_device_cpu;
    struct spw_device_options device_options = {
        .device_bytes = UINT64_MAX, .host_bytes = UINT64_MAX, .threads = 1, .delay_seed = 7};
    struct spw_error err = {0};
    struct spw_device *device;
    spw_stream s;
    spw_event e;
    CHECK(ops->open(&device, &device_options, &err) == 0);
    const struct spw_lane lane = {.ops = ops, .device = device};
    CHECK(ops->stream_open(device, "disk", &s) == 0 && ops->event_open(device, &e) == 0);
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(2), *from = memory_of(2);
    memset(memory, 0, 2 * TILE_BYTES);
    for (uint32_t i = 0; i < 20; i++) {
        struct spw_disk_job job;
        memset(from, (int)i + 1, 2 * TILE_BYTES);
        CHECK(ops->copy(device, memory, from, 2 * TILE_BYTES, SPW_LINK_DEVICE_TO_HOST, s) == 0);
        spw_disk_prepare(d, &job, true, 2 * i, 2, memory);
        CHECK(spw_disk_submit(&lane, &job, s) == 0 && ops->event_record(device, e, s) == 0);
        CHECK(spw_disk_wait(&lane, &job, e) == 0 && !job.io.rc && spw_disk_is_over(&job));
    }
    for (uint32_t i = 0; i < 40; i++)
        read_frame(d, i, memory, (uint8_t)(i / 2 + 1));
    struct spw_disk_job job;
    spw_disk_prepare(d, &job, true, 0, 1, memory);
    spw_device_cpu_fail_nth(device, 0);
    CHECK(spw_disk_submit(&lane, &job, s) == 0);
    ops->event_record(device, e, s);
    CHECK(spw_disk_wait(&lane, &job, e) == -EIO && job.io.rc == -ECANCELED);
    ops->event_close(device, e);
    ops->stream_close(device, s);
    ops->close(device);
    spw_disk_close(d);
    free(memory);
    free(from);
}

/* ---- pieces of other files ---- */

/* Record i of the file is (i + 1) % 251 throughout; its descriptor can only read. */
static int file_of_records(const char *dir, uint32_t n, uint64_t *sums)
{
    char path[256];
    uint8_t *memory = memory_of(1);
    snprintf(path, sizeof path, "%s/records", dir);
    int out = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    for (uint32_t i = 0; i < n; i++) {
        memset(memory, (int)((i + 1) % 251), TILE_BYTES);
        sums[i] = XXH3_64bits(memory, TILE_BYTES);
        CHECK(write(out, memory, TILE_BYTES) == TILE_BYTES);
    }
    close(out);
    int in = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (in < 0)
        in = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    free(memory);
    return in;
}

/* What the test knows of an attachment. */
struct piece {
    uint32_t first, n, n_left, record, n_damaged;
    bool there;
    bool put[64];
};

static void piece_released(void *context)
{
    struct piece *p = context;
    CHECK(p->there && !p->n_left);
    p->there = false;
}

static void piece_damaged(void *context, uint32_t i)
{
    struct piece *p = context;
    CHECK(i < p->n && !p->put[i]);
    p->n_damaged++;
}

static int attach(struct spw_disk *d, struct piece *p, int fd, const uint64_t *sums,
                  uint32_t record, uint32_t n)
{
    struct spw_disk_attachment a = {.fd = fd,
                                    .offset = (uint64_t)record * TILE_BYTES,
                                    .n = n,
                                    .sums = sums + record,
                                    .released = piece_released,
                                    .damaged = piece_damaged,
                                    .context = p};
    *p = (struct piece){.n = n, .n_left = n, .record = record};
    int rc = spw_disk_attach(d, &a, &p->first);
    p->there = !rc;
    return rc;
}

static void put_piece_frame(struct spw_disk *d, struct piece *p, uint32_t i)
{
    p->put[i] = true;
    p->n_left--;
    spw_disk_put(d, p->first + i);
    CHECK(p->there == (p->n_left > 0));
}

/* All frames of a piece that are left, in reads of up to three. */
static void read_piece(struct spw_disk *d, const struct piece *p, uint8_t *memory)
{
    for (uint32_t i = 0, n; i < p->n; i += n) {
        struct spw_disk_job job;
        n = p->n - i < 3 ? p->n - i : 3;
        memset(memory, 0, (size_t)n * TILE_BYTES);
        spw_disk_prepare(d, &job, false, p->first + i, n, memory);
        CHECK(spw_disk_run(&job) == 0);
        for (uint32_t k = 0; k < n; k++)
            CHECK(memory[k * TILE_BYTES] == (p->record + i + k + 1) % 251 &&
                  memory[(k + 1) * TILE_BYTES - 1] == (p->record + i + k + 1) % 251);
    }
}

/* Numbers lie apart from all others, and apart by one. */
static void check_numbers(const struct piece *p, const struct piece *all, uint32_t n,
                          uint32_t scratch)
{
    CHECK(p->first > scratch);
    for (const struct piece *q = all; q < all + n; q++)
        if (q != p && q->there)
            CHECK(p->first > q->first + q->n || q->first > p->first + p->n);
}

/* Pieces come and go in any order beside frames of the scratch file, or without one. */
static void check_attached(const char *dir, uint32_t scratch)
{
    enum { PIECES = 24, RECORDS = 64 };
    static struct piece pieces[PIECES];
    uint64_t sums[RECORDS], seed = check_seed(), highest = 0;
    int fd = file_of_records(dir, RECORDS, sums), other;
    struct spw_disk_options o = options(scratch ? dir : NULL);
    o.n_frames = scratch;
    o.run = scratch ? RUN : 0;
    o.write_limit_bytes = scratch * TILE_BYTES;
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(3);
    CHECK(scratch || strstr(spw_disk_describe(d), "no scratch file"));
    memset(pieces, 0, sizeof pieces);
    for (int step = 0; step < 3000; step++) {
        struct piece *p = &pieces[check_random(&seed) % PIECES];
        uint32_t record = (uint32_t)check_range(&seed, 0, RECORDS - 1);
        if (!p->there) {
            uint32_t n = (uint32_t)check_range(&seed, 1, RECORDS - record);
            CHECK(attach(d, p, fd, sums, record, n) == 0);
            check_numbers(p, pieces, PIECES, scratch);
            highest = spw_max_u64(highest, p->first + p->n);
            continue;
        }
        uint32_t i = (uint32_t)check_range(&seed, 0, p->n - 1);
        if (check_random(&seed) % 8 == 0)
            read_piece(d, p, memory);
        for (; i < p->n && check_random(&seed) % 16; i++)
            if (!p->put[i])
                put_piece_frame(d, p, i);
    }
    CHECK(highest < PIECES * 2 * RECORDS + scratch); /* numbers are used again */
    uint32_t frame;
    for (uint32_t i = 0; i < scratch; i++) /* none of it was counted or given away */
        CHECK(spw_disk_take(d, pieces[0].first, &frame) == 0 && frame < scratch);
    CHECK(spw_disk_take(d, SPW_DISK_NONE, &frame) == -ENOMEM);
    for (struct piece *p = pieces; p < pieces + PIECES; p++)
        p->n_left = 0; /* closing lets go of the rest */
    spw_disk_close(d);
    for (struct piece *p = pieces; p < pieces + PIECES; p++)
        CHECK(!p->there);
    CHECK(n_open(dir, &other) == 1 && other == fd); /* the caller's, still */
    close(fd);
    free(memory);
}

/* What lies in the file is not what it was: said, and the frame stays until it is put. */
static void check_damaged(const char *dir)
{
    uint64_t sums[16] = {0};
    int fd = file_of_records(dir, 8, sums);
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    uint8_t *memory = memory_of(4);
    struct spw_disk_job job;
    struct piece p;
    sums[5] ^= 1;
    CHECK(attach(d, &p, fd, sums, 2, 6) == 0);
    sums[3] ^= 1; /* it has its own */
    spw_disk_prepare(d, &job, false, p.first, 3, memory);
    CHECK(spw_disk_run(&job) == 0);
    spw_disk_prepare(d, &job, false, p.first + 2, 3, memory);
    spw_disk_start(&job);
    CHECK(spw_io_wait(io, &job.io) == -EBADMSG && job.io.bad_record == 1);
    spw_disk_retire(d, p.first + 3);
    CHECK(p.n_damaged == 1 && p.n_left == 6 && !spw_disk_n_retired(d));
    for (uint32_t i = 6; i-- > 0;)
        put_piece_frame(d, &p, i);
    CHECK(attach(d, &p, fd, sums, 6, 8) == 0); /* the file ends inside */
    spw_disk_prepare(d, &job, false, p.first, 4, memory);
    CHECK(spw_disk_run(&job) == -ENODATA && job.io.bad_record == 2);
    p.n_left = 0;
    spw_disk_close(d);
    close(fd);
    free(memory);
}

static void check_attach_fails(const char *dir)
{
    uint64_t sums[4];
    int fd = file_of_records(dir, 4, sums);
    struct spw_disk_options o = options(dir);
    struct spw_disk *d = open_disk(&o);
    struct piece p;
    int rc = -ENOMEM;
    CHECK(attach(d, &p, -1, sums, 0, 4) == -EBADF);
    for (int n = 0; rc == -ENOMEM; n++) {
        spw_alloc_fail_nth(n);
        rc = attach(d, &p, fd, sums, 0, 4);
        spw_alloc_fail_nth(-1);
    }
    CHECK(!rc);
    for (uint32_t i = 0; i < 4; i++)
        put_piece_frame(d, &p, i);
    spw_disk_close(d);
    close(fd);
}

static void check_in(const char *dir)
{
    check_attached(dir, 0);
    check_attached(dir, FRAMES);
    check_damaged(dir);
    check_attach_fails(dir);
    check_anonymous(dir);
    check_no_memory(dir);
    check_frames(dir);
    check_limit(dir);
    check_tiles(dir);
    check_reframe(dir);
    check_stream(dir);
    check_lost(dir);
    CHECK(n_names(dir) == 0);
}

int main(void)
{
    char dirs[2][64] = {"/tmp/spw_disk_XXXXXX", "/dev/shm/spw_disk_XXXXXX"};
    if (!mkdtemp(dirs[0]))
        return 1;
    check_child("a directory that is not writable", not_writable, "/");
    check_child("a small filesystem", small_tmpfs, dirs[0]);
    check_child("a read-only filesystem", read_only, dirs[0]);
    check_child("a filesystem without fallocate", sparse, dirs[0]);
    int64_t outstanding = spw_alloc_outstanding();
    open_io();
    check_paths(dirs[0]);
    check_in(dirs[0]);
    if (mkdtemp(dirs[1])) { /* tmpfs: without direct I/O on most kernels */
        check_in(dirs[1]);
        rmdir(dirs[1]);
    }
    spw_io_close(io);
    rmdir(dirs[0]);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
