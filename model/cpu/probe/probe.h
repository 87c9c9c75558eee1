/* What this machine can do, to put a measured speed beside: memory and arithmetic limits.
 *
 * Each call starts `threads` threads and adds four rounds of about 0.01 s (0.003 s for a matrix
 * peak) to the rounds that it gets: seconds a byte or a FLOP. It returns false if it could not
 * measure (no memory, no thread, an instruction set or type that does not run here). Nothing else
 * should run meanwhile. */
#ifndef SPW_MODEL_CPU_PROBE_PROBE_H
#define SPW_MODEL_CPU_PROBE_PROBE_H

#include "base/rounds.h"
#include "model/cpu/ops_cpu.h"

/* Reading memory: each thread walks its part of an array beyond the caches, in huge pages where the
 * system gives them. */
bool spw_probe_read(struct spw_rounds *out, unsigned threads);
/* Removes the bytes from all caches, where the instruction set can do that. */
void spw_probe_evict(const void *memory, size_t bytes);
/* The best multiply-add of `isa` on operands of type t (f32, bf16, or for codes of 8 bits Q8_0)
 * that never leave the registers. bf16 where there is no bf16 instruction is the f32 rate: it is
 * widened. */
bool spw_probe_matrix_peak(struct spw_rounds *out, enum spw_isa isa, enum spw_dtype t,
                           unsigned threads);

#endif
