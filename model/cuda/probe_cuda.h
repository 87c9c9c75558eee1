/* What a GPU can do, to put a measured speed beside: its memory and its matrix peak. The callers
 * time what these queue; see spw_machine_probe. */
#ifndef SPW_MODEL_CUDA_PROBE_CUDA_H
#define SPW_MODEL_CUDA_PROBE_CUDA_H

#include "base/base.h"
#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues one read of `bytes` (a multiple of 16, 16-byte aligned). `sink`: 4 bytes on the device. */
int spw_probe_read_cuda(const void *from, uint64_t bytes, void *sink, spw_stream s);

/* cuBLASLt's product of two n x n matrices with fp32 sums, loaded at run time: the library is large
 * and nothing else of spillway needs it. */
struct spw_probe_matrix;

/* -ENODEV where libcublasLt is not found or has no algorithm; `dtype`: bf16 or f32. */
int spw_probe_matrix_open(struct spw_probe_matrix **out, enum spw_dtype dtype, uint64_t n,
                          struct spw_error *err);
/* Bytes of device memory that one product needs. */
uint64_t spw_probe_matrix_bytes(const struct spw_probe_matrix *m);
/* Queues one product in `memory`. */
int spw_probe_matrix_run(struct spw_probe_matrix *m, void *memory, spw_stream s);
void spw_probe_matrix_close(struct spw_probe_matrix *m);

#ifdef __cplusplus
}
#endif

#endif
