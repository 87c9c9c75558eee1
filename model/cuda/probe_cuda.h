/* Reading a GPU's memory, to measure its speed. */
#ifndef SPW_MODEL_CUDA_PROBE_CUDA_H
#define SPW_MODEL_CUDA_PROBE_CUDA_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues one read of `bytes` (a multiple of 16, 16-byte aligned). `sink`: 4 bytes on the device. */
int spw_probe_read_cuda(const void *from, uint64_t bytes, void *sink, spw_stream s);

#ifdef __cplusplus
}
#endif

#endif
