/* What measuring a CPU needs beside its kernels: a read of memory, and empty caches. */
#ifndef SPW_MODEL_CPU_PROBE_H
#define SPW_MODEL_CPU_PROBE_H

#include "base/base.h"

/* Reads `bytes` in pieces of SPW_READ_BYTES, each as a task; a rest that is smaller is left out.
 * `from` is aligned at 64 bytes. */
struct spw_read_args {
    const void *from;
    uint64_t bytes;
};
enum { SPW_READ_BYTES = 1 << 20 };
extern const struct spw_kernel spw_read_kernel;

/* Removes the bytes from all caches, where the instruction set can do that. */
void spw_cache_evict(const void *memory, size_t bytes);

#endif
