/* The I/O engines against a plain model: a file with known bytes, jobs of every size over it,
 * faults of the kernel, the end of an engine in the middle of its work. Each test runs with each
 * engine that the machine allows, with O_DIRECT and with the page cache. */
#include "offload/io/io.h"
#include "tests/children.h"

#include <linux/capability.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <xxhash.h>

#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)
#define BLOCK ((uint64_t)4096)

static const char *kind_name(enum spw_io_kind kind)
{
    return kind == SPW_IO_URING ? "io_uring" : "threads";
}

/* --- a file whose bytes are known --- */

struct world {
    enum spw_io_kind kind;
    const char *directory;
    bool direct;
    int fd;
    uint64_t bytes;
    uint8_t *model;  /* the expected bytes of the file */
    uint8_t *memory; /* memory of jobs, at the same offsets as in the file */
};

static uint8_t *map(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(1);
    return p;
}

static void fill(uint8_t *p, uint64_t bytes, uint64_t *random)
{
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t r = check_random(random);
        memcpy(p + i, &r, 8);
    }
}

/* false: no such directory, or it does not support O_DIRECT. */
static bool world_open(struct world *w, uint64_t bytes, uint64_t *random)
{
    w->fd = open(w->directory, O_TMPFILE | O_RDWR | (w->direct ? O_DIRECT : 0), 0600);
    if (w->fd < 0)
        return false;
    w->bytes = bytes;
    w->model = map(bytes);
    w->memory = map(bytes);
    fill(w->model, bytes, random);
    for (uint64_t at = 0; at < bytes; at += MIB) {
        uint64_t n = spw_min_u64(MIB, bytes - at);
        CHECK(pwrite(w->fd, w->model + at, n, (off_t)at) == (ssize_t)n);
    }
    return true;
}

static void world_close(struct world *w)
{
    munmap(w->model, w->bytes);
    munmap(w->memory, w->bytes);
    close(w->fd);
}

/* The kernel counts rings as locked memory of the user, and frees a closed ring later: with a limit
 * of 64 KiB the next ring may have to wait for the last one. Also, the n-th allocation fails. */
static int open_in_turn(struct spw_io **io, const struct spw_io_options *o, int64_t n,
                        struct spw_error *err)
{
    for (int tries = 0;; tries++) {
        spw_error_clear(err);
        spw_alloc_fail_nth(n);
        int rc = spw_io_open(io, o, err);
        spw_alloc_fail_nth(-1);
        bool full = rc ? rc == -ENOTSUP && strstr(err->text, "io_uring: Cannot allocate memory")
                       : !!strstr(spw_io_describe(*io), "(io_uring: Cannot allocate memory");
        if (!full || tries == 300)
            return rc;
        spw_io_close(*io);
        usleep(10000);
    }
}

static struct spw_io *open_engine(struct world *w, const struct spw_io_options *given,
                                  struct spw_io_file *file)
{
    struct spw_io_options o = *given;
    o.kind = w->kind;
    struct spw_io *io;
    struct spw_error err = {0};
    int rc = open_in_turn(&io, &o, -1, &err);
    CHECK_MSG(rc == 0, "%d %s", rc, err.text);
    if (rc)
        exit(1);
    CHECK(spw_io_use_file(w->fd, file) == 0);
    CHECK(file->align == 1 || w->direct);
    return io;
}

static int64_t fd_read(const struct world *w, uint8_t *to, uint64_t bytes, uint64_t at)
{
    return pread(w->fd, to, bytes, (off_t)at);
}

/* Whether the file equals the model. */
static void check_file(struct world *w)
{
    uint8_t *found = map(w->bytes);
    for (uint64_t at = 0; at < w->bytes; at += MIB)
        CHECK(fd_read(w, found + at, spw_min_u64(MIB, w->bytes - at), at) > 0);
    CHECK(!memcmp(found, w->model, w->bytes));
    munmap(found, w->bytes);
}

/* --- random jobs --- */

struct task {
    struct spw_io_job job;
    uint64_t sums[64];
    int expected;
    uint32_t bad;
};

static void draw_sums(struct world *w, struct task *t, uint64_t *random)
{
    struct spw_io_job *j = &t->job;
    uint64_t n = check_range(random, 1, 64);
    j->record_bytes = j->bytes / n / BLOCK * BLOCK;
    if (!j->record_bytes)
        j->record_bytes = BLOCK;
    n = spw_min_u64(j->bytes / j->record_bytes, 64);
    j->bytes = n * j->record_bytes;
    j->sums = t->sums;
    for (uint64_t k = 0; k < n; k++)
        t->sums[k] =
            j->write ? 0 : XXH3_64bits(w->model + j->offset + k * j->record_bytes, j->record_bytes);
    if (!j->write && n && check_range(random, 0, 5) == 0) {
        t->bad = (uint32_t)check_range(random, 0, n - 1);
        t->sums[t->bad] ^= 1;
        t->expected = -EBADMSG;
    }
}

/* The file is divided into as many disjoint pieces as there are jobs. */
static void draw_job(struct world *w, struct task *t, struct spw_io_file *file, uint64_t begin,
                     uint64_t end, uint64_t *random)
{
    *t = (struct task){.bad = UINT32_MAX};
    struct spw_io_job *j = &t->job;
    uint64_t unit = w->direct ? BLOCK : 1;
    spw_io_job_init(j);
    j->file = file;
    j->write = check_range(random, 0, 1);
    j->offset = begin + check_range(random, 0, (end - begin) / unit) * unit;
    j->bytes = check_range(random, 0, (end - j->offset) / unit) * unit;
    j->memory = w->memory + j->offset;
    if (j->bytes >= BLOCK && check_range(random, 0, 2))
        draw_sums(w, t, random);
    if (!j->write)
        return;
    fill(j->memory, j->bytes, random);
    memcpy(w->model + j->offset, j->memory, j->bytes);
}

static void check_job(struct world *w, struct task *t)
{
    struct spw_io_job *j = &t->job;
    CHECK_MSG(j->rc == t->expected && j->bad_record == t->bad, "%d, record %u; expected %d, %u",
              j->rc, j->bad_record, t->expected, t->bad);
    CHECK(j->n_rereads == 0);
    if (!t->expected)
        CHECK(!memcmp(w->memory + j->offset, w->model + j->offset, j->bytes));
    for (uint64_t k = 0; j->write && j->record_bytes && k < j->bytes / j->record_bytes; k++)
        CHECK(t->sums[k] ==
              XXH3_64bits(w->model + j->offset + k * j->record_bytes, j->record_bytes));
}

#define N_JOBS 48

struct submitter {
    struct spw_io *io;
    struct task *tasks;
    unsigned first;
};

static void *submit_odd_or_even(void *argument)
{
    struct submitter *s = argument;
    for (unsigned i = s->first; i < N_JOBS; i += 2)
        spw_io_submit(s->io, &s->tasks[i].job);
    return NULL;
}

/* Two threads submit; waiting is in any order. */
static void run_jobs(struct spw_io *io, struct task *tasks, uint64_t *random)
{
    struct submitter odd = {io, tasks, 1}, even = {io, tasks, 0};
    pthread_t other;
    CHECK(pthread_create(&other, NULL, submit_odd_or_even, &odd) == 0);
    unsigned start = (unsigned)check_range(random, 0, N_JOBS - 1);
    submit_odd_or_even(&even);
    CHECK(pthread_join(other, NULL) == 0);
    for (unsigned i = 0; i < N_JOBS; i++) {
        struct task *t = &tasks[(start + i * 7) % N_JOBS];
        CHECK(spw_io_wait(io, &t->job) == t->expected && spw_io_is_over(&t->job));
    }
}

static void test_random(struct world *w, uint64_t *random)
{
    if (!world_open(w, 12 * MIB, random))
        return;
    static struct task tasks[N_JOBS];
    for (int round = RUN_UNDER_TSAN && !check_full() ? 8 : 0; round < 12; round++) {
        struct spw_io_span span = {w->memory, w->bytes};
        struct spw_io_options o = {.queue_depth = (unsigned)check_range(random, 0, 20),
                                   .request_bytes = check_range(random, 0, 80) * BLOCK,
                                   .memory = &span,
                                   .n_memory = (unsigned)check_range(random, 0, 1)};
        struct spw_io_file file;
        struct spw_io *io = open_engine(w, &o, &file);
        uint64_t read = 0, written = 0, piece = w->bytes / N_JOBS;
        memset(w->memory, 0, w->bytes);
        for (unsigned i = 0; i < N_JOBS; i++) {
            draw_job(w, &tasks[i], &file, i * piece, (i + 1) * piece, random);
            *(tasks[i].job.write ? &written : &read) += tasks[i].job.bytes;
        }
        run_jobs(io, tasks, random);
        for (unsigned i = 0; i < N_JOBS; i++)
            check_job(w, &tasks[i]);
        check_file(w);
        struct spw_io_usage u;
        spw_io_usage(io, &u);
        CHECK(u.written_bytes == written && u.read_bytes <= read && u.cpu_seconds > 0);
        CHECK(u.n_resumed == 0 && u.n_requests > 0);
        spw_io_close(io);
    }
    world_close(w);
}

/* --- jobs one after the other, each waited for at once --- */

struct player {
    struct spw_io *io;
    struct spw_io_file *file;
    struct world *w;
    uint64_t random, begin, end;
};

/* If an I/O thread misses a wake, or sleeps although a job has come, this test never ends. */
static void *play(void *argument)
{
    struct player *p = argument;
    struct spw_io_job job;
    spw_io_job_init(&job);
    for (int i = 0; i < 400; i++) {
        uint64_t at = check_range(&p->random, p->begin / BLOCK, p->end / BLOCK - 1) * BLOCK;
        job.file = p->file;
        job.offset = at;
        job.bytes = BLOCK;
        job.memory = p->w->memory + at;
        spw_io_submit(p->io, &job);
        if (check_range(&p->random, 0, 1))
            usleep((unsigned)check_range(&p->random, 0, 60));
        if (spw_io_wait(p->io, &job) || memcmp(job.memory, p->w->model + at, BLOCK))
            return p;
    }
    return NULL;
}

static void test_one_by_one(struct world *w, uint64_t *random)
{
    if (!world_open(w, MIB, random))
        return;
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct spw_io_options o = {.queue_depth = threads};
        struct spw_io_file file;
        struct spw_io *io = open_engine(w, &o, &file);
        struct player players[2];
        pthread_t other;
        for (uint64_t i = 0; i < 2; i++)
            players[i] = (struct player){
                io, &file, w, check_random(random), i * w->bytes / 2, (i + 1) * w->bytes / 2};
        void *failed;
        CHECK(pthread_create(&other, NULL, play, &players[1]) == 0);
        CHECK(play(&players[0]) == NULL);
        CHECK(pthread_join(other, &failed) == 0 && !failed);
        spw_io_close(io);
    }
    world_close(w);
}

/* --- invalid jobs --- */

static int run_job(struct spw_io *io, struct spw_io_job *job)
{
    spw_io_submit(io, job);
    return spw_io_wait(io, job);
}

static void test_refused(struct world *w, uint64_t *random)
{
    if (!world_open(w, MIB, random))
        return;
    struct spw_io_file file;
    struct spw_io_options o = {.queue_depth = 2};
    struct spw_io *io = open_engine(w, &o, &file);
    struct spw_io_job job;
    uint64_t sums[4] = {0};
    spw_io_job_init(&job);
    CHECK(spw_io_is_over(&job) && spw_io_wait(io, &job) == 0);
    job.file = &file;
    job.memory = w->memory;
    CHECK(run_job(io, &job) == 0); /* no bytes */
    job.bytes = 2 * BLOCK;
    CHECK(run_job(io, &job) == 0 && !memcmp(w->memory, w->model, 2 * BLOCK));
    job.offset = w->bytes - BLOCK; /* the file ends inside the job */
    CHECK(run_job(io, &job) == -ENODATA && job.bad_record == UINT32_MAX);
    job.sums = sums;
    job.record_bytes = BLOCK;
    CHECK(run_job(io, &job) != 0 && job.bad_record <= 1);
    job.offset = 0;
    job.sums[0] = XXH3_64bits(w->model, BLOCK + 1);
    job.sums[1] = XXH3_64bits(w->model + BLOCK + 1, BLOCK - 1);
    job.record_bytes = BLOCK + 1; /* the last record is shorter */
    CHECK(run_job(io, &job) == (file.align > 1 ? -EINVAL : 0));
    job.record_bytes = 0;
    job.offset = UINT64_MAX - BLOCK + 1;
    CHECK(run_job(io, &job) == -EINVAL);
    job.offset = 0;
    for (uint64_t i = 0; file.align > 1 && i < 3; i++) {
        job.offset = i == 0;
        job.bytes = BLOCK + (i == 1);
        job.memory = w->memory + (i == 2);
        CHECK(run_job(io, &job) == -EINVAL);
    }
    struct spw_io_file other = file;
    int reads_only = open(w->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(spw_io_use_file(reads_only, &other) == 0 && other.align == 1);
    job = (struct spw_io_job){.file = &other, .bytes = BLOCK, .memory = w->memory};
    CHECK(run_job(io, &job) == -EISDIR);
    job.write = true;
    CHECK(run_job(io, &job) == -EBADF);
    CHECK(spw_io_use_file(-1, &other) == -EBADF);
    spw_io_close(io);
    spw_io_close(NULL);
    close(reads_only);
    world_close(w);
}

/* A file that ends inside a block: O_DIRECT reads less than a block there. */
static void test_odd_end(struct world *w, uint64_t *random)
{
    if (!world_open(w, MIB, random))
        return;
    CHECK(ftruncate(w->fd, (off_t)(w->bytes - 100)) == 0);
    struct spw_io_file file;
    struct spw_io_options o = {.queue_depth = 1,
                               .request_bytes = check_range(random, 1, 80) * BLOCK};
    struct spw_io *io = open_engine(w, &o, &file);
    struct spw_io_job job;
    uint64_t sums[16];
    spw_io_job_init(&job);
    job.file = &file;
    job.memory = w->memory;
    job.sums = sums;
    job.bytes = w->bytes;
    CHECK(run_job(io, &job) == -ENODATA);
    job.bytes = w->bytes - BLOCK;
    CHECK(run_job(io, &job) == 0 && !memcmp(w->memory, w->model, job.bytes));
    job.bytes = w->bytes;
    for (uint64_t less = 0; less <= BLOCK; less += 25) { /* it may end after least_bytes */
        job.min_bytes = w->bytes - less;
        job.record_bytes = less % 2 ? 64 * KIB : 0;
        for (uint64_t k = 0; k < 16; k++)
            sums[k] = XXH3_64bits(w->model + k * 64 * KIB, 64 * KIB - (k == 15 ? less : 0));
        sums[15] ^= less == 1025;
        job.notes_sums = less == 525;
        sums[15] = job.notes_sums ? 0 : sums[15];
        memset(w->memory, 0, w->bytes);
        CHECK(run_job(io, &job) == (less < 100 ? -ENODATA : less == 1025 ? -EBADMSG : 0));
        CHECK(less != 1025 || job.bad_record == 15);
        CHECK(less != 525 || sums[15] == XXH3_64bits(w->model + 15 * 64 * KIB, 64 * KIB - less));
        CHECK(less < 100 || !memcmp(w->memory, w->model, w->bytes - 100));
    }
    job.min_bytes = job.bytes + 1;
    CHECK(run_job(io, &job) == -EINVAL);
    job.min_bytes = job.bytes = BLOCK;
    job.record_bytes = 0;
    job.write = true;
    CHECK(run_job(io, &job) == -EINVAL);
    spw_io_close(io);
    world_close(w);
}

/* --- faults of the kernel --- */

enum fault_kind {
    FAULT_EIO,
    FAULT_ENOSPC,
    FAULT_HALF,
    FAULT_ONE_BYTE,
    FAULT_NOTHING,
    FAULT_EAGAIN,
    FAULT_EINTR,
    FAULT_LATE,
    FAULT_FLIP,
    FAULT_TOO_MUCH,
    N_FAULTS
};

struct plan {
    enum fault_kind kind;
    unsigned nth; /* the request that gets the fault */
    bool forever; /* and all later requests */
    _Atomic unsigned seen, hits, hits_on_reads;
};

static int64_t spoil(struct plan *p, const struct spw_io_request *r, int64_t result)
{
    switch (p->kind) {
    case FAULT_EIO:
        return -EIO;
    case FAULT_ENOSPC:
        return -ENOSPC;
    case FAULT_HALF:
        return (result + 1) / 2;
    case FAULT_ONE_BYTE:
        return 1;
    case FAULT_NOTHING:
        return 0;
    case FAULT_EAGAIN:
        return -EAGAIN;
    case FAULT_EINTR:
        return -EINTR;
    case FAULT_LATE:
        usleep(2000);
        return result;
    case FAULT_FLIP:
        if (!r->write)
            r->memory[r->bytes / 3] ^= 0x10;
        return result;
    default:
        return result + 1;
    }
}

static int64_t fault_completed(void *context, const struct spw_io_request *r, int64_t result)
{
    struct plan *p = context;
    if (!r->bytes) /* the request at open */
        return result;
    unsigned i = atomic_fetch_add(&p->seen, 1);
    if (i != p->nth && !(p->forever && i > p->nth))
        return result;
    atomic_fetch_add(&p->hits, 1);
    atomic_fetch_add(&p->hits_on_reads, !r->write);
    return spoil(p, r, result);
}

/* The allowed effects of a single fault on its job. */
static const struct {
    int write_rc, read_rc;
    unsigned resumed_write, resumed_read, rereads;
} expected[N_FAULTS] = {
    [FAULT_EIO] = {-EIO, 0, 0, 0, 1},         [FAULT_ENOSPC] = {-ENOSPC, -ENOSPC, 0, 0, 0},
    [FAULT_HALF] = {0, 0, 1, 1, 0},           [FAULT_ONE_BYTE] = {0, 0, 1, 1, 0},
    [FAULT_NOTHING] = {0, -ENODATA, 1, 0, 0}, [FAULT_EAGAIN] = {0, 0, 1, 1, 0},
    [FAULT_EINTR] = {0, 0, 1, 1, 0},          [FAULT_LATE] = {0, 0, 0, 0, 0},
    [FAULT_FLIP] = {0, 0, 0, 0, 1},           [FAULT_TOO_MUCH] = {-EIO, 0, 0, 0, 1},
};

#define N_SPOILED 4
#define PIECE (192 * KIB)
#define NTH_STEP (RUN_UNDER_TSAN && !check_full() ? 3 : 1) /* most of its time fills memory */

/* Requests are of 64 KiB: two records a request, two requests a record, records and requests that
 * do not coincide, no records. */
static const uint64_t spoiled_records[N_SPOILED] = {32 * KIB, 64 * KIB * 2, 96 * KIB, 0};

static uint64_t spoiled_bytes(unsigned i)
{
    return spoiled_records[i] == 128 * KIB ? 128 * KIB : PIECE;
}

struct outcome {
    unsigned failed, rereads;
    int rc; /* of the last job that failed */
};

/* Writes all four jobs, then reads them into other memory, if writing succeeded. */
static void run_phase(struct world *w, struct spw_io *io, struct spw_io_file *file, bool write,
                      bool sums_only, struct task *tasks, const struct task *from,
                      struct outcome *out)
{
    for (unsigned i = 0; i < N_SPOILED; i++) {
        struct task *t = &tasks[i];
        spw_io_job_init(&t->job);
        t->job.file = file;
        t->job.write = write;
        t->job.offset = i * PIECE;
        t->job.bytes = spoiled_bytes(i);
        t->job.memory = w->memory + (write ? 0 : w->bytes / 2) + t->job.offset;
        t->job.record_bytes = spoiled_records[i] ? spoiled_records[i] : sums_only ? BLOCK : 0;
        t->job.sums = t->sums;
        if (from)
            memcpy(t->sums, from[i].sums, sizeof t->sums);
        if (!from || !from[i].job.rc)
            spw_io_submit(io, &t->job);
    }
    for (unsigned i = 0; i < N_SPOILED; i++) {
        struct spw_io_job *j = &tasks[i].job;
        int rc = spw_io_wait(io, j);
        out->rereads += j->n_rereads;
        if (!rc)
            continue;
        out->failed++;
        out->rc = j->rc;
        CHECK((j->bad_record < UINT32_MAX) == (j->record_bytes > 0));
    }
}

/* One run. Returns whether the fault has happened. */
static bool run_spoiled(struct world *w, struct plan *p, unsigned reorder, struct outcome out[2],
                        struct spw_io_usage *usage, uint64_t *random)
{
    static struct task writes[N_SPOILED], reads[N_SPOILED];
    struct spw_io_fault fault = {fault_completed, reorder, p};
    struct spw_io_span span = {w->memory, w->bytes};
    struct spw_io_options o = {.queue_depth = 4,
                               .request_bytes = 64 * KIB,
                               .memory = &span,
                               .n_memory = p->nth % 2,
                               .fault = &fault};
    struct spw_io_file file;
    struct spw_io *io = open_engine(w, &o, &file);
    fill(w->memory, w->bytes / 2, random);
    memset(w->memory + w->bytes / 2, 0, w->bytes / 2);
    memset(out, 0, 2 * sizeof *out);
    bool sums_only = p->kind == FAULT_FLIP;
    run_phase(w, io, &file, true, sums_only, writes, NULL, &out[0]);
    run_phase(w, io, &file, false, sums_only, reads, writes, &out[1]);
    for (unsigned i = 0; i < N_SPOILED; i++)
        if (!writes[i].job.rc && !reads[i].job.rc)
            CHECK(!memcmp(reads[i].job.memory, writes[i].job.memory, spoiled_bytes(i)));
    spw_io_usage(io, usage);
    spw_io_close(io);
    return atomic_load(&p->hits) > 0;
}

static void check_outcome(const struct plan *p, const struct outcome *out,
                          const struct spw_io_usage *u)
{
    bool on_read = atomic_load(&p->hits_on_reads) > 0;
    int rc = on_read ? expected[p->kind].read_rc : expected[p->kind].write_rc;
    const struct outcome *hit = &out[on_read], *other = &out[!on_read];
    CHECK_MSG(hit->failed == (rc != 0) && hit->rc == rc && !other->failed && !other->rereads,
              "fault %d of request %u: %u failed with %d, expected %d", (int)p->kind, p->nth,
              hit->failed, hit->rc, rc);
    CHECK(hit->rereads == (on_read ? expected[p->kind].rereads : 0) &&
          u->n_rereads == hit->rereads);
    CHECK(u->n_resumed ==
          (on_read ? expected[p->kind].resumed_read : expected[p->kind].resumed_write));
}

static void test_faults(struct world *w, uint64_t *random)
{
    if (!world_open(w, 2 * N_SPOILED * PIECE, random))
        return;
    struct outcome out[2];
    struct spw_io_usage u;
    for (int kind = 0; kind < N_FAULTS; kind++)
        for (unsigned nth = 0;; nth += NTH_STEP) {
            struct plan p = {.kind = (enum fault_kind)kind, .nth = nth};
            unsigned reorder = (unsigned)check_range(random, 0, 3);
            if (!run_spoiled(w, &p, reorder, out, &u, random)) {
                CHECK(nth > 20 && !out[0].failed && !out[1].failed && !u.n_resumed);
                break;
            }
            check_outcome(&p, out, &u);
        }
    world_close(w);
}

/* From one request on, all requests fail. */
static void test_lasting_faults(struct world *w, uint64_t *random)
{
    static const struct {
        enum fault_kind kind;
        int write_rc, read_rc;
    } lasting[] = {{FAULT_EIO, -EIO, -EIO},
                   {FAULT_ENOSPC, -ENOSPC, -ENOSPC},
                   {FAULT_HALF, 0, 0},
                   {FAULT_FLIP, 0, -EBADMSG}};
    if (!world_open(w, 2 * N_SPOILED * PIECE, random))
        return;
    struct outcome out[2];
    struct spw_io_usage u;
    for (size_t k = 0; k < sizeof lasting / sizeof lasting[0]; k++)
        for (unsigned nth = 0;; nth += NTH_STEP) {
            struct plan p = {.kind = lasting[k].kind, .nth = nth, .forever = true};
            /* With O_DIRECT half a block counts as nothing, again and again. */
            if (p.kind == FAULT_HALF && w->direct)
                break;
            if (!run_spoiled(w, &p, nth % 4, out, &u, random))
                break;
            unsigned writes = atomic_load(&p.hits) - atomic_load(&p.hits_on_reads);
            CHECK((out[0].failed > 0) == (writes && lasting[k].write_rc));
            CHECK((out[1].failed > 0) == (atomic_load(&p.hits_on_reads) && lasting[k].read_rc));
            CHECK(!out[0].failed || out[0].rc == lasting[k].write_rc);
            CHECK(!out[1].failed || out[1].rc == lasting[k].read_rc);
        }
    world_close(w);
}

/* If the kernel never makes progress, the job ends with an error. */
static void test_stalls(struct world *w, uint64_t *random)
{
    static const struct {
        enum fault_kind kind;
        bool write;
        int rc;
    } stalls[] = {{FAULT_EAGAIN, false, -EAGAIN}, {FAULT_NOTHING, true, -EIO}};
    if (!w->direct || !world_open(w, MIB, random)) /* it takes a second each */
        return;
    for (size_t i = 0; i < sizeof stalls / sizeof stalls[0]; i++) {
        struct plan p = {.kind = stalls[i].kind, .forever = true};
        struct spw_io_fault fault = {fault_completed, 2, &p};
        struct spw_io_options o = {.queue_depth = 1, .fault = &fault};
        struct spw_io_file file;
        struct spw_io *io = open_engine(w, &o, &file);
        struct spw_io_job job = {.file = &file, .write = stalls[i].write, .bytes = BLOCK};
        job.memory = w->memory;
        CHECK(run_job(io, &job) == stalls[i].rc);
        spw_io_close(io);
    }
    world_close(w);
}

/* --- the end --- */

static void *wait_for_job(void *argument)
{
    struct spw_io_job *job = argument;
    spw_io_wait(job->io, job);
    return NULL;
}

static void test_close(struct world *w, uint64_t *random)
{
    if (!world_open(w, 2 * MIB, random))
        return;
    enum { N = 32 };
    uint64_t bytes = w->bytes / N;
    for (int round = 0; round < 4; round++) {
        struct plan p = {.kind = FAULT_LATE, .forever = true};
        struct spw_io_fault fault = {fault_completed, 0, &p};
        struct spw_io_options o = {.queue_depth = 2, .request_bytes = 4 * BLOCK, .fault = &fault};
        struct spw_io_file file;
        struct spw_io *io = open_engine(w, &o, &file);
        struct spw_io_job jobs[N];
        memset(w->memory, 0, w->bytes);
        double begun = check_seconds();
        for (uint64_t i = 0; i < N; i++) {
            jobs[i] =
                (struct spw_io_job){.io = io, .file = &file, .offset = i * bytes, .bytes = bytes};
            jobs[i].memory = w->memory + i * bytes;
            spw_io_submit(io, &jobs[i]);
        }
        pthread_t waiter;
        CHECK(pthread_create(&waiter, NULL, wait_for_job, &jobs[N - 1]) == 0);
        usleep((unsigned)check_range(random, 0, 9000));
        bool early = check_seconds() - begun < 0.05; /* all jobs take 0.128 s at least */
        spw_io_close(io);
        pthread_join(waiter, NULL);
        unsigned cancelled = 0;
        for (uint64_t i = 0; i < N; i++) {
            CHECK(spw_io_is_over(&jobs[i]));
            CHECK(jobs[i].rc == 0 || jobs[i].rc == -ECANCELED);
            cancelled += jobs[i].rc == -ECANCELED;
            if (!jobs[i].rc)
                CHECK(!memcmp(jobs[i].memory, w->model + i * bytes, bytes));
        }
        CHECK(!early || (cancelled > 0 && jobs[N - 1].rc == -ECANCELED));
        memset(w->memory, 7, w->bytes); /* no thread may write it any more */
        usleep(5000);
        CHECK(w->memory[0] == 7 && !memcmp(w->memory, w->memory + 1, w->bytes - 1));
    }
    world_close(w);
}

/* A read that never ends: of a pipe without a writer. Only io_uring can do that. */
static void test_close_cancels(struct world *w, uint64_t *random)
{
    (void)random;
    if (w->kind != SPW_IO_URING)
        return;
    for (unsigned depth = 1; depth <= 2; depth++) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        w->fd = ends[0];
        struct spw_io_options o = {.queue_depth = depth};
        struct spw_io_file file;
        struct spw_io *io = open_engine(w, &o, &file);
        uint8_t byte = 7;
        struct spw_io_job job = {.file = &file, .bytes = 1, .memory = &byte};
        spw_io_submit(io, &job);
        usleep(5000);
        CHECK(!spw_io_is_over(&job));
        spw_io_close(io);
        CHECK(spw_io_is_over(&job) && byte == 7);
        CHECK_MSG(job.rc == -ECANCELED, "%d", job.rc);
        close(ends[0]);
        close(ends[1]);
    }
}

static void test_idle(struct world *w, uint64_t *random)
{
    if (!world_open(w, MIB, random))
        return;
    struct spw_io_options o = {.queue_depth = 2};
    struct spw_io_file file;
    struct spw_io *io = open_engine(w, &o, &file);
    struct spw_io_job job = {.file = &file, .bytes = BLOCK, .memory = w->memory};
    CHECK(run_job(io, &job) == 0);
    usleep(20000); /* threads that were awake sleep again */
    struct spw_io_usage before, after;
    spw_io_usage(io, &before);
    usleep(300000);
    spw_io_usage(io, &after);
    CHECK_MSG(after.cpu_seconds - before.cpu_seconds < 0.003, "%g s in 0.3 s",
              after.cpu_seconds - before.cpu_seconds);
    spw_io_close(io);
    world_close(w);
}

static void test_allocations(struct world *w, uint64_t *random)
{
    if (!world_open(w, MIB, random))
        return;
    int64_t before = spw_alloc_outstanding();
    struct spw_io_span span = {w->memory, w->bytes};
    for (int64_t n = 0;; n++) {
        struct spw_io_options o = {.kind = n % 2 ? w->kind : SPW_IO_AUTO,
                                   .memory = &span,
                                   .n_memory = 1,
                                   .queue_depth = 3};
        struct spw_io *io;
        struct spw_error err = {0};
        int rc = open_in_turn(&io, &o, n, &err);
        if (!rc) {
            spw_io_close(io);
            CHECK(n >= 5 && spw_alloc_outstanding() == before);
            break;
        }
        CHECK(rc == -ENOMEM && *err.text && !io && spw_alloc_outstanding() == before);
    }
    world_close(w);
}

/* --- which engine, and why --- */

static int64_t refuse_at_open(void *context, const struct spw_io_request *r, int64_t result)
{
    (void)context;
    return r->bytes ? result : -ENOSYS;
}

static void test_refusal(void)
{
    struct spw_io_fault fault = {.completed = refuse_at_open};
    struct spw_io_options o = {.kind = SPW_IO_URING, .fault = &fault, .queue_depth = 3};
    struct spw_io *io;
    struct spw_error err = {0};
    CHECK(spw_io_open(&io, &o, &err) == -ENOTSUP && !io);
    CHECK(strstr(err.text, "io_uring: Function not implemented"));
    o.kind = SPW_IO_AUTO;
    CHECK(spw_io_open(&io, &o, NULL) == 0);
    CHECK(!strcmp(spw_io_describe(io), "3 threads (io_uring: Function not implemented)"));
    spw_io_close(io);
    o.kind = (enum spw_io_kind)9;
    CHECK(spw_io_open(&io, &o, &err) == -EINVAL);
}

static bool uring_works(struct spw_error *err)
{
    struct spw_io *io;
    struct spw_io_options o = {.kind = SPW_IO_URING, .queue_depth = 5};
    if (open_in_turn(&io, &o, -1, err))
        return false;
    CHECK(!strcmp(spw_io_describe(io), "io_uring, 5 in flight"));
    spw_io_close(io);
    return true;
}

/* In a process of its own, as a user whose locked memory is limited to 64 KiB. */
static void with_little_locked_memory(void *context, struct child *self)
{
    (void)context;
    struct rlimit little = {64 * KIB, 64 * KIB};
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &little) == 0 && syscall(SYS_capset, &head, none) == 0);
    struct world w = {.directory = "/tmp", .kind = SPW_IO_URING};
    if (!world_open(&w, MIB, &self->seed))
        return;
    struct spw_io_span span = {w.memory, w.bytes};
    struct spw_io_options o = {.memory = &span, .n_memory = 1, .queue_depth = 2};
    struct spw_io *io;
    struct spw_error err;
    CHECK(open_in_turn(&io, &o, -1, &err) == 0); /* auto */
    CHECK_MSG(!strcmp(spw_io_describe(io), "2 threads (io_uring: cannot register 1.0 MiB: Cannot "
                                           "allocate memory; RLIMIT_MEMLOCK is 0.1 MiB)"),
              "%s", spw_io_describe(io));
    spw_io_close(io);
    struct spw_io_file file;
    io = open_engine(&w, &o, &file); /* if it is named: it still works */
    CHECK(strstr(spw_io_describe(io), "io_uring, 2 in flight, plain memory (io_uring: cannot reg"));
    struct spw_io_job job = {.file = &file, .bytes = w.bytes, .memory = w.memory};
    CHECK(run_job(io, &job) == 0 && !memcmp(w.memory, w.model, w.bytes));
    spw_io_close(io);
    world_close(&w);
}

/* More than one slab of registered memory, and a job across the border: 1 GiB and 4 MiB of
 * addresses, which are the same 2 MiB again and again. */
static void test_slabs(struct world *w, uint64_t *random)
{
    uint64_t step = 2 * MIB, bytes = 1024 * MIB + 2 * step, border = 1024 * MIB;
    if (!world_open(w, step, random))
        return;
    int fd = memfd_create("test_io", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)step) == 0);
    uint8_t *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (uint64_t at = 0; at < bytes; at += step)
        CHECK(mmap(memory + at, step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
              memory + at);
    struct spw_io_span span = {memory, bytes};
    struct spw_io_options o = {.memory = &span, .n_memory = 1};
    struct spw_io_file file;
    struct spw_io *io = open_engine(w, &o, &file);
    for (uint64_t before = 0; before <= step; before += step / 4) {
        memset(memory, 0, step);
        struct spw_io_job job = {.file = &file, .bytes = step, .memory = memory + border - before};
        CHECK(run_job(io, &job) == 0 && !memcmp(job.memory, w->model, step));
    }
    spw_io_close(io);
    munmap(memory, bytes);
    close(fd);
    world_close(w);
}

/* --- all tests --- */

static void (*const tests[])(struct world *w, uint64_t *random) = {
    test_random,        test_one_by_one, test_refused,        test_odd_end,
    test_faults,        test_stalls,     test_lasting_faults, test_close,
    test_close_cancels, test_idle,       test_allocations,    test_slabs,
};

int main(void)
{
    static const enum spw_io_kind kinds[] = {SPW_IO_THREADS, SPW_IO_URING};
    static const struct {
        const char *directory;
        bool direct;
    } places[] = {{"/tmp", true}, {"/tmp", false}, {"/dev/shm", true}, {"/dev/shm", false}};
    uint64_t random = check_seed();
    struct spw_error err = {0};
    alarm(600); /* a job that never ends fails the test */
    test_refusal();
    bool uring = uring_works(&err);
    if (uring)
        CHECK(in_child(with_little_locked_memory, NULL, &random) == 0);
    else
        fprintf(stderr, "threads only: %s\n", err.text);
    /* in a full run each engine has all places; else the threads /tmp through the page cache */
    bool all = (check_full() && !RUN_UNDER_TSAN) || !uring;
    for (size_t k = 0; k < (uring ? 2 : 1); k++)
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            if (!all && (p % 3 == 0) != (kinds[k] == SPW_IO_URING))
                continue;
            struct world w = {
                .kind = kinds[k], .directory = places[p].directory, .direct = places[p].direct};
            fprintf(stderr, "%s, %s, %s\n", kind_name(w.kind), w.directory,
                    w.direct ? "direct" : "buffered");
            for (size_t t = 0; t < sizeof tests / sizeof tests[0]; t++)
                tests[t](&w, &random);
        }
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
