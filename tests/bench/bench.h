/* What the benches share: a clock, memory, medians of rounds and the reads of this machine. */
#ifndef SPW_TESTS_BENCH_BENCH_H
#define SPW_TESTS_BENCH_BENCH_H

#include "model/cpu/probe.h"
#include "runtime/engine/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9 };

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Zeros. Ends the program where memory is short. */
static inline void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
    if (!p) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

static inline int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(const double of[ROUNDS])
{
    double sorted[ROUNDS];
    memcpy(sorted, of, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, compare_numbers);
    return sorted[ROUNDS / 2];
}

/* Bytes a second of memory that no cache has: the best of some rounds. */
static inline double read_rate(const struct spw_backend *b, struct spw_device *d, spw_stream s,
                               void *memory, size_t bytes)
{
    double best = 0;
    for (int round = 0; round < 4; round++) {
        spw_cache_evict(memory, bytes);
        double start = now();
        if (b->read(memory, bytes, memory, s) || b->device_ops->stream_sync(d, s))
            exit(1);
        double rate = (double)bytes / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

#endif
