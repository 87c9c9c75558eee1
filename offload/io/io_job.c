/* Jobs of the I/O engine: cutting them into asks, what a result means, checksums, their end. See
 * io_engine.h for the way of an ask.
 *
 * Records and requests need not coincide: a request has several records, or a record several
 * requests. A record is summed by the ask that completes it,
 *
 *     requests  |----a----|----b----|----c----|      a is back first: sums nothing
 *     records   |------0-------|-------1------|      c second: nothing; b last: sums 0 and 1
 *
 * which is the one after which no other ask that overlaps the record is moving. So each record is
 * summed once, by a thread that has just had its last bytes, without the lock. */
#include "offload/io/io_engine.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { JOB_OVER, JOB_PENDING, JOB_WAITED }; /* spw_io_job.state */

/* Times in a row that nothing moves. The kernel may say EAGAIN for as long as it lacks memory: that
 * is given up after a second. A count that is no error and no progress is not worth so much. */
#define STALLS_AT_ONCE 10
#define STALLS_MOST 1000
#define STALL_SECONDS 0.001

/* The most that one call moves is just below 2 GiB. */
#define REQUEST_MOST ((uint64_t)1 << 30)

/* --- the state of a job, which is what its owner sleeps on --- */

void spw_io_job_init(struct spw_io_job *job)
{
    *job = (struct spw_io_job){.bad_record = UINT32_MAX};
    atomic_init(&job->state, JOB_OVER);
}

bool spw_io_is_over(const struct spw_io_job *job)
{
    return atomic_load_explicit(&job->state, memory_order_acquire) == JOB_OVER;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

int spw_io_wait(struct spw_io *io, struct spw_io_job *job)
{
    (void)io;
    uint32_t state = JOB_PENDING;
    for (;;) {
        /* Whoever ends the job wakes nobody unless it was told that somebody sleeps. */
        if (atomic_compare_exchange_strong(&job->state, &state, JOB_WAITED))
            state = JOB_WAITED;
        if (state == JOB_OVER)
            return job->rc;
        futex(&job->state, FUTEX_WAIT, JOB_WAITED);
        state = JOB_PENDING;
    }
}

/* The job is its owner's again with the exchange: only its address is used after that. */
static void end_job(struct spw_io_job *job)
{
    if (atomic_exchange(&job->state, JOB_OVER) == JOB_WAITED)
        futex(&job->state, FUTEX_WAKE, INT32_MAX);
}

/* --- the queue --- */

static int job_is_sound(const struct spw_io_job *job)
{
    uint64_t end, align = job->file->direct ? job->file->align : 1;
    if (!spw_add_u64(job->offset, job->bytes, &end) || end > INT64_MAX)
        return -EINVAL;
    if (job->offset % align || job->bytes % align || (uintptr_t)job->memory % align)
        return -EINVAL;
    if (job->least_bytes && (job->write || job->record_bytes || job->least_bytes > job->bytes))
        return -EINVAL;
    if (!job->record_bytes)
        return 0;
    if (job->bytes % job->record_bytes || job->record_bytes % align)
        return -EINVAL;
    return job->bytes / job->record_bytes < UINT32_MAX ? 0 : -EINVAL;
}

void spw_io_submit(struct spw_io *io, struct spw_io_job *job)
{
    atomic_store(&job->state, JOB_PENDING);
    job->next = NULL;
    job->asked = 0;
    job->in_flight = job->n_rereads = 0;
    job->bad_record = UINT32_MAX;
    job->rc = job_is_sound(job);
    if (job->rc || !job->bytes) {
        end_job(job);
        return;
    }
    pthread_mutex_lock(&io->lock);
    if (io->closing) {
        job->rc = -ECANCELED;
        end_job(job);
    } else {
        if (io->head)
            io->tail->next = job;
        else
            io->head = job;
        io->tail = job;
        io->engine->wake(io);
    }
    pthread_mutex_unlock(&io->lock);
}

static void pop_head(struct spw_io *io)
{
    struct spw_io_job *job = io->head;
    job->asked = job->bytes;
    io->head = job->next;
}

/* The first error of a job stays. What was not cut yet never is: only the head of the queue has
 * been cut in part. */
static void fail(struct spw_io *io, struct spw_io_job *job, int rc, uint64_t at)
{
    if (job->rc)
        return;
    job->rc = rc;
    if (job->record_bytes)
        job->bad_record = (uint32_t)(at / job->record_bytes);
    if (job->asked < job->bytes)
        pop_head(io);
}

void spw_io_cancel(struct spw_io *io)
{
    while (io->head) {
        struct spw_io_job *job = io->head;
        job->rc = -ECANCELED;
        pop_head(io);
        if (!job->in_flight)
            end_job(job);
    }
}

/* Whole records as long as they are not larger than a request, so that each ask sums what it has
 * just moved. */
static uint64_t part_of(const struct spw_io *io, const struct spw_io_job *job)
{
    uint64_t part = io->request_bytes;
    if (job->record_bytes && job->record_bytes < part)
        part -= part % job->record_bytes;
    if (job->file->direct && part > job->file->align)
        part -= part % job->file->align;
    else if (job->file->direct)
        part = job->file->align;
    return spw_min_u64(part, job->bytes - job->asked);
}

struct spw_io_ask *spw_io_cut(struct spw_io *io)
{
    struct spw_io_job *job = io->head;
    struct spw_io_ask *a = io->free_asks;
    if (!job || !a)
        return NULL;
    io->free_asks = a->next;
    uint64_t part = part_of(io, job);
    *a = (struct spw_io_ask){.job = job,
                             .begin = job->asked,
                             .end = job->asked + part,
                             .at = job->asked,
                             .stop = job->asked + part,
                             .moving = true};
    job->in_flight++;
    job->asked += part;
    if (job->asked == job->bytes)
        pop_head(io);
    if (io->head)
        io->engine->wake(io); /* there is more than one thread may want to take */
    return a;
}

/* --- what a result means --- */

struct spw_io_request spw_io_request_of(const struct spw_io_ask *a)
{
    const struct spw_io_job *job = a->job;
    return (struct spw_io_request){.write = job->write,
                                   .fd = job->file->fd,
                                   .offset = job->offset + a->at,
                                   .bytes = spw_min_u64(a->stop - a->at, REQUEST_MOST),
                                   .memory = job->memory + a->at};
}

int64_t spw_io_see(const struct spw_io *io, const struct spw_io_ask *a, int64_t result)
{
    if (!io->fault)
        return result;
    struct spw_io_request r = spw_io_request_of(a);
    return io->fault->completed(io->fault->context, &r, result);
}

struct spw_io_ask *spw_io_deliver(const struct spw_io *io, struct spw_io_held *held,
                                  struct spw_io_ask *a, bool others)
{
    a->next = held->list;
    if (io->fault && others && held->n < io->fault->reorder) {
        held->list = a;
        held->n++;
        return NULL;
    }
    *held = (struct spw_io_held){0};
    return a; /* and behind it those that were held back, the newest first */
}

static void pause_thread(void)
{
    struct timespec t = {.tv_nsec = (long)(STALL_SECONDS * 1e9)};
    nanosleep(&t, NULL);
}

/* Whether all that the file must have is there, once `done` more bytes are. */
static bool is_enough(const struct spw_io_ask *a, uint64_t done)
{
    uint64_t least = a->job->least_bytes;
    return least && a->at + done >= least;
}

/* Moves `at` on by what was done. Direct I/O goes on at a multiple of the alignment, so that a
 * count in the middle of a block moves less, maybe nothing. */
static int advance(struct spw_io_ask *a, int64_t result)
{
    const struct spw_io_job *job = a->job;
    if (result == 0 && !job->write && !is_enough(a, 0))
        return -ENODATA;
    if (result < 0 && result != -EAGAIN && result != -EINTR)
        return (int)result;
    uint64_t done = result > 0 ? (uint64_t)result : 0;
    if (done > a->stop - a->at)
        return -EIO;
    if (result >= 0 && is_enough(a, done)) {
        a->at = a->stop;
        return 0;
    }
    if (job->file->direct)
        done -= done % job->file->align;
    a->at += done;
    a->stalls = done ? 0 : a->stalls + 1;
    if (result < 0)
        return a->stalls < STALLS_MOST ? 0 : (int)result;
    if (a->stalls < STALLS_AT_ONCE)
        return 0;
    return job->write ? -EIO : -ENODATA; /* a file that ends inside a block */
}

/* Whether all of a record has been asked for and no other ask moves any of it. */
static bool is_whole(const struct spw_io *io, const struct spw_io_ask *a, uint64_t record)
{
    const struct spw_io_job *job = a->job;
    uint64_t begin = record * job->record_bytes, end = begin + job->record_bytes;
    if (job->asked < end)
        return false;
    if (a->begin <= begin && end <= a->end)
        return true;
    for (unsigned i = 0; i < io->n_asks; i++) {
        const struct spw_io_ask *b = &io->asks[i];
        if (b != a && b->moving && b->job == job && b->begin < end && begin < b->end)
            return false;
    }
    return true;
}

/* The part of an ask is there, for the first time. The lock is held. */
static void land(struct spw_io *io, struct spw_io_ask *a)
{
    struct spw_io_job *job = a->job;
    if (a->failed_once)
        job->n_rereads++;
    if (!job->record_bytes)
        return;
    uint64_t first = a->begin / job->record_bytes;
    uint64_t end = spw_div_up(a->end, job->record_bytes);
    if (!is_whole(io, a, first))
        first++;
    if (first < end && !is_whole(io, a, end - 1))
        end--;
    a->record = (uint32_t)first;
    a->record_end = (uint32_t)end;
}

bool spw_io_settle(struct spw_io *io, struct spw_io_ask *a)
{
    struct spw_io_job *job = a->job;
    if (a->stalls > STALLS_AT_ONCE)
        pause_thread();
    int rc = advance(a, a->result);
    pthread_mutex_lock(&io->lock);
    io->usage.n_requests++;
    if (!rc && a->result < 0 && io->closing)
        rc = -ECANCELED; /* EINTR may be what is left of a cancelled one */
    bool once_more = rc == -EIO && !job->write && !a->failed_once && !job->rc;
    bool go_on = once_more || (!rc && a->at < a->stop && !job->rc);
    if (once_more) {
        a->failed_once = true;
        io->usage.n_rereads++;
    } else if (go_on) {
        io->usage.n_resumed++;
    } else {
        if (rc)
            fail(io, job, rc, a->at);
        else if (!job->rc && a->moving)
            land(io, a);
        a->moving = false;
    }
    pthread_mutex_unlock(&io->lock);
    return go_on;
}

/* --- checksums, and the end --- */

static void read_again(struct spw_io *io, struct spw_io_ask *a)
{
    a->again = true;
    a->at = a->record * a->job->record_bytes;
    a->stop = a->at + a->job->record_bytes;
    a->stalls = 0;
    pthread_mutex_lock(&io->lock);
    io->usage.n_rereads++;
    pthread_mutex_unlock(&io->lock);
}

/* Whether a record is as it should be; where not, whether that is worth another read. */
static int check_record(struct spw_io *io, struct spw_io_ask *a)
{
    struct spw_io_job *job = a->job;
    uint64_t sum = XXH3_64bits(job->memory + a->record * job->record_bytes, job->record_bytes);
    if (job->write) {
        job->sums[a->record] = sum;
    } else if (sum != job->sums[a->record]) {
        return a->again ? -EBADMSG : -EAGAIN;
    } else if (a->again) {
        a->again = false;
        pthread_mutex_lock(&io->lock);
        job->n_rereads++;
        pthread_mutex_unlock(&io->lock);
    }
    return 0;
}

static void release(struct spw_io *io, struct spw_io_ask *a, int rc)
{
    struct spw_io_job *job = a->job;
    pthread_mutex_lock(&io->lock);
    if (rc)
        fail(io, job, rc, a->record * job->record_bytes);
    bool over = --job->in_flight == 0 && job->asked == job->bytes;
    if (over && !job->write)
        io->usage.read_bytes += job->bytes;
    else if (over && !job->rc)
        io->usage.written_bytes += job->bytes;
    a->next = io->free_asks;
    io->free_asks = a;
    if (io->head)
        io->engine->wake(io); /* for one that found no ask free */
    pthread_mutex_unlock(&io->lock);
    if (over)
        end_job(job); /* whoever wakes for it may submit the next one at once: not under the lock */
}

bool spw_io_check(struct spw_io *io, struct spw_io_ask *a)
{
    int rc = 0;
    pthread_mutex_lock(&io->lock);
    if (a->job->rc)
        a->record_end = a->record; /* nobody asks any more */
    pthread_mutex_unlock(&io->lock);
    for (; a->record < a->record_end && !rc; a->record += !rc) {
        rc = check_record(io, a);
        if (rc == -EAGAIN) {
            read_again(io, a);
            return true;
        }
    }
    release(io, a, rc);
    return false;
}
