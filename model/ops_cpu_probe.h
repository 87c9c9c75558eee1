/* What this machine can do, to put a measured speed beside: memory and arithmetic limits.
 *
 * Each call starts `threads` threads of its own, runs five rounds of about 0.02 s and returns the
 * median round. 0: it could not be measured (no memory, no thread, an
 * instruction set or type that does not run here). Nothing else should be running. */
#ifndef SPW_MODEL_OPS_CPU_PROBE_H
#define SPW_MODEL_OPS_CPU_PROBE_H

#include "model/ops_cpu.h"

/* Bytes per second read from memory: threads walk their parts of an array beyond the caches. */
double spw_probe_read_bandwidth(unsigned threads);
/* Bytes per second copied from memory to memory with memcpy, counted once. */
double spw_probe_copy_bandwidth(unsigned threads);
/* FLOP per second of the best multiply-add of `isa` on operands of type t (f32 or bf16) that never
 * leave the registers. bf16 where there is no bf16 instruction is the f32 rate: it is widened. */
double spw_probe_matrix_peak(enum spw_isa isa, enum spw_dtype t, unsigned threads);

#endif
