/* What this machine can do, to put a measured speed beside: memory and arithmetic limits.
 *
 * Each call starts `threads` threads, runs six rounds of about 0.01 s (0.003 s for a matrix peak;
 * three rounds for each pattern of reading) and returns the best round, because others on the
 * machine only make a round slower. It returns 0 if it could not measure (no memory, no thread, an
 * instruction set or type that does not run here). Nothing else should run meanwhile. */
#ifndef SPW_MODEL_CPU_PROBE_PROBE_H
#define SPW_MODEL_CPU_PROBE_PROBE_H

#include "model/cpu/ops_cpu.h"

/* How a thread reads memory. */
struct spw_read_pattern {
    unsigned streams; /* 1, 2, 4 or 8 parts of its memory side by side */
    bool fetch;       /* with software prefetches */
    bool huge_pages;  /* 2 MiB asked for, or refused */
};

/* Bytes per second read from memory: threads walk their parts of an array beyond the caches, in
 * every pattern, one round of each in turn. The fastest pattern counts, and is stored in
 * *best. */
double spw_probe_read_bandwidth(unsigned threads, struct spw_read_pattern *best);
/* Bytes per second copied from memory to memory with memcpy, counted once. */
double spw_probe_copy_bandwidth(unsigned threads);
/* Both at once: one more thread copies while `readers` read, each its own part. Bytes per second of
 * all readers and of the copy; false: it could not be measured. */
bool spw_probe_read_beside_copy(unsigned readers, double *read, double *copied);
/* Removes the bytes from all caches, where the instruction set can do that. */
void spw_probe_evict(const void *memory, size_t bytes);
/* FLOP per second of the best multiply-add of `isa` on operands of type t (f32, bf16, or for codes
 * of 8 bits Q8_0) that never leave the registers. bf16 where there is no bf16 instruction is the
 * f32 rate: it is widened. */
double spw_probe_matrix_peak(enum spw_isa isa, enum spw_dtype t, unsigned threads);

#endif
