/* The I/O engines against a plain model: a file whose bytes are known, jobs of every size over it,
 * what the kernel may do wrong, the end of an engine in the middle of its work. Each test runs with
 * each engine that the machine allows, through direct I/O and through the page cache. */
#include "offload/io.h"
#include "tests/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
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
    uint8_t *model;  /* what the file holds */
    uint8_t *memory; /* of jobs, at the same places as in the file */
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

/* false: no such directory, or it refuses direct I/O. */
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

static struct spw_io *open_engine(struct world *w, const struct spw_io_options *given,
                                  struct spw_io_file *file)
{
    struct spw_io_options o = *given;
    o.kind = w->kind;
    struct spw_io *io;
    struct spw_error err = {0};
    int rc = spw_io_open(&io, &o, &err);
    CHECK_MSG(rc == 0, "%d %s", rc, err.text);
    if (rc)
        exit(1);
    CHECK(spw_io_attach(io, w->fd, file) == 0 && file->direct == w->direct);
    CHECK(file->align == 1 || w->direct);
    return io;
}

static int64_t fd_read(const struct world *w, uint8_t *to, uint64_t bytes, uint64_t at)
{
    return pread(w->fd, to, bytes, (off_t)at);
}

/* Whether the file holds what the model says. */
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

/* The file is cut into as many disjoint pieces as there are jobs. */
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
    for (unsigned i = 0; i < N_JOBS; i++)
        spw_io_job_promise(&tasks[i].job);
    struct submitter odd = {io, tasks, 1}, even = {io, tasks, 0};
    pthread_t other;
    CHECK(pthread_create(&other, NULL, submit_odd_or_even, &odd) == 0);
    unsigned start = (unsigned)check_range(random, 0, N_JOBS - 1);
    CHECK(spw_io_wait(io, &tasks[1].job) == tasks[1].expected); /* promised, maybe not submitted */
    submit_odd_or_even(&even);
    for (unsigned i = 0; i < N_JOBS; i++) {
        struct task *t = &tasks[(start + i * 7) % N_JOBS];
        CHECK(spw_io_wait(io, &t->job) == t->expected && spw_io_is_over(&t->job));
    }
    pthread_join(other, NULL);
}

static void test_random(struct world *w, uint64_t *random)
{
    if (!world_open(w, 12 * MIB, random))
        return;
    static struct task tasks[N_JOBS];
    for (int round = 0; round < 12; round++) {
        struct spw_io_span span = {w->memory, w->bytes};
        struct spw_io_options o = {.queue_depth = (unsigned)check_range(random, 0, 20),
                                   .threads = (unsigned)check_range(random, 0, 3),
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

/* --- all of it --- */

int main(void)
{
    static const enum spw_io_kind kinds[] = {SPW_IO_THREADS, SPW_IO_URING};
    static const struct {
        const char *directory;
        bool direct;
    } places[] = {{"/tmp", true}, {"/tmp", false}, {"/dev/shm", false}};
    uint64_t random = check_seed();
    alarm(600); /* a job that never ends fails the test */
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            struct world w = {
                .kind = kinds[k], .directory = places[p].directory, .direct = places[p].direct};
            fprintf(stderr, "%s, %s, %s\n", kind_name(w.kind), w.directory,
                    w.direct ? "direct" : "buffered");
            test_random(&w, &random);
        }
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
