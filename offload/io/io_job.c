/* Jobs of the I/O engine: splits them into parts, handles results, computes checksums, ends
 * jobs. io_engine.h draws the way of a part.
 *
 * Records and requests need not have the same borders. The part that completes a record sums it:
 *
 *     requests  |----a----|----b----|----c----|      a returns first: sums nothing
 *     records   |------0-------|-------1------|      c second: nothing; b last: sums 0 and 1
 *
 * A part completes a record if no other part that overlaps the record is pending. So each record
 * is summed once, without the lock, by the thread that has just got its last bytes. */
#include "offload/io/io_engine.h"

#include "base/xxh3.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { JOB_OVER, JOB_PENDING, JOB_WAITED }; /* spw_io_job.state */

/* How often in a row a request may make no progress. EAGAIN may last as long as the kernel lacks
 * memory; it ends the job after a second. A result of 0 bytes ends the job sooner. */
#define STALLS_AT_ONCE 10
#define STALLS_MOST 1000
#define STALL_SECONDS 0.001

/* The kernel moves just below 2 GiB by one call. */
#define REQUEST_MOST ((uint64_t)1 << 30)

/* --- the state of a job, on which its owner sleeps --- */

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
        /* end_job wakes only owners that have announced their sleep with JOB_WAITED. */
        if (atomic_compare_exchange_strong(&job->state, &state, JOB_WAITED))
            state = JOB_WAITED;
        if (state == JOB_OVER)
            return job->rc;
        futex(&job->state, FUTEX_WAIT, JOB_WAITED);
        state = JOB_PENDING;
    }
}

/* After the exchange the job belongs to its owner again. Only its address is used then. */
static void end_job(struct spw_io_job *job)
{
    if (atomic_exchange(&job->state, JOB_OVER) == JOB_WAITED)
        futex(&job->state, FUTEX_WAKE, INT32_MAX);
}

/* --- records --- */

static uint64_t record_begin(const struct spw_io_job *job, uint64_t record)
{
    return record * job->record_bytes;
}

static uint64_t record_end(const struct spw_io_job *job, uint64_t record)
{
    return spw_min_u64(record_begin(job, record + 1), job->bytes);
}

/* Of a record that begins after min_bytes nothing counts. */
static uint64_t record_sum(const struct spw_io_job *job, uint64_t record)
{
    const uint64_t least = job->min_bytes ? job->min_bytes : job->bytes;
    const uint64_t begin = record_begin(job, record);
    const uint64_t end = spw_min_u64(record_end(job, record), least);
    return XXH3_64bits(job->memory + begin, (size_t)spw_sub_u64(end, begin));
}

/* Two reads that note the sum of one record may run at the same time. */
static uint64_t known_sum(struct spw_io_job *job, uint64_t record, uint64_t sum)
{
    uint64_t known = 0;
    if (!job->notes_sums)
        return job->sums[record];
    bool noted = __atomic_compare_exchange_n(&job->sums[record], &known, sum, false,
                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return noted ? sum : known;
}

/* --- the queue --- */

static int check_job(const struct spw_io_job *job)
{
    uint64_t end, align = job->file->align;
    if (!spw_add_u64(job->offset, job->bytes, &end) || end > INT64_MAX)
        return -EINVAL;
    if (job->offset % align || job->bytes % align || (uintptr_t)job->memory % align)
        return -EINVAL;
    if (job->min_bytes && (job->write || job->min_bytes > job->bytes))
        return -EINVAL;
    if (!job->record_bytes)
        return 0;
    if (job->record_bytes % align)
        return -EINVAL;
    return job->bytes / job->record_bytes < UINT32_MAX - 1 ? 0 : -EINVAL;
}

void spw_io_submit(struct spw_io *io, struct spw_io_job *job)
{
    atomic_store(&job->state, JOB_PENDING);
    job->next = NULL;
    job->cut_bytes = 0;
    job->in_flight = job->n_rereads = 0;
    job->bad_record = UINT32_MAX;
    job->rc = check_job(job);
    if (job->rc || !job->bytes) {
        end_job(job);
        return;
    }
    pthread_mutex_lock(&io->lock);
    if (io->closing) {
        job->rc = -ECANCELED;
        end_job(job);
    } else if (spw_io_counts(io)) {
        *(job->write ? &io->usage.written_bytes : &io->usage.read_bytes) += job->bytes;
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
    job->cut_bytes = job->bytes;
    io->head = job->next;
}

/* The first error of a job stays. The unsplit rest of the job is dropped: then the job is the
 * first of the queue, for only the first is partly split. */
static void fail(struct spw_io *io, struct spw_io_job *job, int rc, uint64_t at)
{
    if (job->rc)
        return;
    job->rc = rc;
    if (job->record_bytes)
        job->bad_record = (uint32_t)(at / job->record_bytes);
    if (job->cut_bytes < job->bytes)
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

/* A part has whole records if they fit into a request. Then it can sum what it has just moved. */
static uint64_t part_bytes(const struct spw_io *io, const struct spw_io_job *job)
{
    uint64_t part = io->request_bytes;
    if (job->record_bytes && job->record_bytes < part)
        part -= part % job->record_bytes;
    part = spw_max_u64(part - part % job->file->align, job->file->align);
    return spw_min_u64(part, job->bytes - job->cut_bytes);
}

struct spw_io_part *spw_io_next_part(struct spw_io *io)
{
    struct spw_io_job *job = io->head;
    struct spw_io_part *a = io->free_parts;
    if (!job || !a)
        return NULL;
    io->free_parts = a->next;
    uint64_t part = part_bytes(io, job);
    *a = (struct spw_io_part){.job = job,
                              .begin = job->cut_bytes,
                              .end = job->cut_bytes + part,
                              .at = job->cut_bytes,
                              .stop = job->cut_bytes + part,
                              .pending = true};
    job->in_flight++;
    job->cut_bytes += part;
    if (job->cut_bytes == job->bytes)
        pop_head(io);
    if (io->head)
        io->engine->wake(io); /* another thread may want the next part */
    return a;
}

/* --- what a result means --- */

struct spw_io_request spw_io_request_of(const struct spw_io_part *a)
{
    const struct spw_io_job *job = a->job;
    return (struct spw_io_request){.write = job->write,
                                   .fd = job->file->fd,
                                   .offset = job->offset + a->at,
                                   .bytes = spw_min_u64(a->stop - a->at, REQUEST_MOST),
                                   .memory = job->memory + a->at};
}

int64_t spw_io_apply_fault(const struct spw_io *io, const struct spw_io_part *a, int64_t result)
{
    if (!io->fault)
        return result;
    struct spw_io_request r = spw_io_request_of(a);
    return io->fault->completed(io->fault->context, &r, result);
}

struct spw_io_part *spw_io_deliver(const struct spw_io *io, struct spw_io_delayed *delayed,
                                   struct spw_io_part *a, bool others)
{
    a->next = delayed->list;
    if (io->fault && others && delayed->n < io->fault->reorder) {
        delayed->list = a;
        delayed->n++;
        return NULL;
    }
    *delayed = (struct spw_io_delayed){0};
    return a; /* the list continues with the parts that were held back, newest first */
}

static void pause_thread(void)
{
    struct timespec t = {.tv_nsec = (long)(STALL_SECONDS * 1e9)};
    nanosleep(&t, NULL);
}

/* Whether the file has all the bytes that it must have, once `done` more bytes are there. */
static bool is_enough(const struct spw_io_part *a, uint64_t done)
{
    uint64_t least = a->job->min_bytes;
    return least && a->at + done >= least;
}

/* Moves `at` on by the bytes that were done. Direct I/O continues at a multiple of the
 * alignment, so a count inside a block moves `at` by less, maybe by nothing. */
static int advance(struct spw_io_part *a, int64_t result)
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
    done -= done % job->file->align;
    a->at += done;
    a->stalls = done ? 0 : a->stalls + 1;
    if (result < 0)
        return a->stalls < STALLS_MOST ? 0 : (int)result;
    if (a->stalls < STALLS_AT_ONCE)
        return 0;
    return job->write ? -EIO : -ENODATA; /* the file ends inside a block */
}

/* Whether all of a record was split into parts, and no other pending part overlaps it. */
static bool is_whole(const struct spw_io *io, const struct spw_io_part *a, uint64_t record)
{
    const struct spw_io_job *job = a->job;
    uint64_t begin = record_begin(job, record), end = record_end(job, record);
    if (job->cut_bytes < end)
        return false;
    if (a->begin <= begin && end <= a->end)
        return true;
    for (unsigned i = 0; i < io->n_parts; i++) {
        const struct spw_io_part *b = &io->parts[i];
        if (b != a && b->pending && b->job == job && b->begin < end && begin < b->end)
            return false;
    }
    return true;
}

/* The part has all its bytes for the first time: finds the records that it completes. The caller
 * has the lock. */
static void find_records(struct spw_io *io, struct spw_io_part *a)
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

bool spw_io_take_result(struct spw_io *io, struct spw_io_part *a)
{
    struct spw_io_job *job = a->job;
    if (a->stalls > STALLS_AT_ONCE)
        pause_thread();
    int rc = advance(a, a->result);
    pthread_mutex_lock(&io->lock);
    io->usage.n_requests++;
    if (!rc && a->result < 0 && io->closing)
        rc = -ECANCELED; /* EINTR may come from a canceled request */
    bool once_more = rc == -EIO && !job->write && !a->failed_once && !job->rc;
    bool resubmit = once_more || (!rc && a->at < a->stop && !job->rc);
    if (once_more) {
        a->failed_once = true;
        io->usage.n_rereads++;
    } else if (resubmit) {
        io->usage.n_resumed++;
    } else {
        if (rc)
            fail(io, job, rc, a->at);
        else if (!job->rc && a->pending)
            find_records(io, a);
        a->pending = false;
    }
    pthread_mutex_unlock(&io->lock);
    return resubmit;
}

/* --- checksums, and the end --- */

static void read_again(struct spw_io *io, struct spw_io_part *a)
{
    a->rereads = true;
    a->at = record_begin(a->job, a->record);
    a->stop = record_end(a->job, a->record);
    a->stalls = 0;
    pthread_mutex_lock(&io->lock);
    io->usage.n_rereads++;
    pthread_mutex_unlock(&io->lock);
}

/* -EAGAIN: the checksum is wrong, and the record should be read again. -EBADMSG: it is wrong
 * again. */
static int check_record(struct spw_io *io, struct spw_io_part *a)
{
    struct spw_io_job *job = a->job;
    uint64_t sum = record_sum(job, a->record);
    if (job->write) {
        job->sums[a->record] = sum;
    } else if (sum != known_sum(job, a->record, sum)) {
        return a->rereads ? -EBADMSG : -EAGAIN;
    } else if (a->rereads) {
        a->rereads = false;
        pthread_mutex_lock(&io->lock);
        job->n_rereads++;
        pthread_mutex_unlock(&io->lock);
    }
    return 0;
}

static void release(struct spw_io *io, struct spw_io_part *a, int rc)
{
    struct spw_io_job *job = a->job;
    pthread_mutex_lock(&io->lock);
    if (rc)
        fail(io, job, rc, record_begin(job, a->record));
    bool over = --job->in_flight == 0 && job->cut_bytes == job->bytes;
    if (over && !job->write && !job->again)
        io->usage.read_bytes += job->bytes;
    else if (over && job->write && !job->rc)
        io->usage.written_bytes += job->bytes;
    a->next = io->free_parts;
    io->free_parts = a;
    if (io->head)
        io->engine->wake(io); /* a thread may wait for a free part */
    pthread_mutex_unlock(&io->lock);
    if (over)
        end_job(job); /* without the lock: the owner may wake and submit the next job at once */
}

bool spw_io_check_part(struct spw_io *io, struct spw_io_part *a)
{
    int rc = 0;
    pthread_mutex_lock(&io->lock);
    if (a->job->rc)
        a->record_end = a->record; /* the job has failed: no checksum is needed */
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
