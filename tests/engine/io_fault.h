/* A drive on which one request goes wrong, or all from that one on. For spw_backend.io_fault. */
#ifndef SPW_TESTS_ENGINE_IO_FAULT_H
#define SPW_TESTS_ENGINE_IO_FAULT_H

#include "offload/io/io.h"
#include "tests/check.h"

#include <errno.h>
#include <pthread.h>

enum io_fault_kind {
    READ_ONCE, /* the next try succeeds */
    FLIP_ONCE, /* of a bit, on the way */
    SHORT_READ,
    WRITE_ONCE,
    SHORT_WRITE,
    LATE,
    READ_FOREVER,  /* of this place */
    FLIP_FOREVER,  /* in this place */
    WRITE_FOREVER, /* to this place */
    ALL_READS,     /* from the N-th on */
    ALL_WRITES,    /* the drive is full from the N-th on */
    CUT,           /* the file ends where the N-th read begins */
    IO_FAULT_KINDS,
};

static const char *const io_fault_names[IO_FAULT_KINDS] = {
    "a read fails once",      "a bit flips on its way", "a short read",
    "a write fails once",     "a short write",          "a late completion",
    "a place cannot be read", "a bit is flipped",       "a place cannot be written",
    "all reads fail",         "the drive is full",      "the file is cut short"};

struct io_fault {
    struct spw_io_fault hook; /* for the backend */
    pthread_mutex_t lock;
    enum io_fault_kind kind;
    int64_t n;    /* of the request that meets it; negative: none */
    int64_t seen; /* requests of its direction so far */
    bool met;
    uint64_t place; /* in the file, of what stays broken */
};

static inline bool io_fault_hits(enum io_fault_kind kind, const struct spw_io_request *r)
{
    bool write =
        kind == WRITE_ONCE || kind == WRITE_FOREVER || kind == SHORT_WRITE || kind == ALL_WRITES;
    return kind == LATE || r->write == write;
}

/* What the engine sees of the request that meets the fault, and of those that come after it. */
static inline int64_t io_fault_result(const struct io_fault *f, const struct spw_io_request *r,
                                      int64_t result, bool first)
{
    bool there = result > 0 && f->place >= r->offset && f->place < r->offset + (uint64_t)result;
    switch (f->kind) {
    case READ_ONCE:
    case WRITE_ONCE:
        return first ? -EIO : result;
    case FLIP_ONCE:
        if (first && result > 0)
            r->memory[result / 3] ^= 16;
        return result;
    case READ_FOREVER:
    case WRITE_FOREVER:
        return there ? -EIO : result;
    case FLIP_FOREVER:
        if (there)
            r->memory[f->place - r->offset] ^= 1;
        return result;
    case SHORT_READ:
    case SHORT_WRITE:
        return first && result >= 8192 ? result / 8192 * 4096 : result;
    case LATE:
        if (first)
            usleep(20000);
        return result;
    case CUT:
        return r->offset >= f->place ? 0 : there ? (int64_t)(f->place - r->offset) : result;
    default:
        return f->kind == ALL_READS ? -EIO : -ENOSPC;
    }
}

static inline int64_t io_fault_completed(void *context, const struct spw_io_request *r,
                                         int64_t result)
{
    struct io_fault *f = context;
    pthread_mutex_lock(&f->lock);
    if (f->n >= 0 && r->bytes && io_fault_hits(f->kind, r)) {
        bool first = f->seen++ == f->n;
        if (first)
            f->place = r->offset + (f->kind == CUT ? 0 : 77);
        f->met = f->met || first;
        if (f->met)
            result = io_fault_result(f, r, result, first);
    }
    pthread_mutex_unlock(&f->lock);
    return result;
}

/* The n-th request of the fault's direction from now on meets it. */
static inline void io_fault_set(struct io_fault *f, enum io_fault_kind kind, int64_t n)
{
    pthread_mutex_lock(&f->lock);
    f->kind = kind;
    f->n = n;
    f->seen = 0;
    f->met = false;
    pthread_mutex_unlock(&f->lock);
}

/* Requests may be in flight. */
static inline bool io_fault_met(struct io_fault *f)
{
    pthread_mutex_lock(&f->lock);
    bool met = f->met;
    pthread_mutex_unlock(&f->lock);
    return met;
}

/* The drive is well from now on. Returns whether a request has met the fault. */
static inline bool io_fault_end(struct io_fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->n = -1;
    bool met = f->met;
    pthread_mutex_unlock(&f->lock);
    return met;
}

static inline void io_fault_open(struct io_fault *f)
{
    *f = (struct io_fault){.n = -1, .hook = {.completed = io_fault_completed, .context = f}};
    pthread_mutex_init(&f->lock, NULL);
}

#endif
