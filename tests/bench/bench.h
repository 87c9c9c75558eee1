/* What the benches share: a clock, memory, medians of rounds and the reads of this machine. */
#ifndef SPW_TESTS_BENCH_BENCH_H
#define SPW_TESTS_BENCH_BENCH_H

#include "model/cpu/probe/probe.h"

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

/* Bytes a second. */
static inline double read_rate(int threads)
{
    struct spw_rounds rounds = {0};
    spw_probe_read(&rounds, (unsigned)threads);
    return 1 / spw_rounds_take(&rounds, SPW_ROUND_BEST);
}

#endif
