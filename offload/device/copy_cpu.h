/* The copy of the CPU device: memcpy, or stores past the cache for blocks that the cache cannot
 * hold. */
#ifndef SPW_OFFLOAD_DEVICE_COPY_CPU_H
#define SPW_OFFLOAD_DEVICE_COPY_CPU_H

#include <stddef.h>

/* The blocks do not overlap. On return the copy is complete, and visible to any thread that
 * synchronizes with this one. */
void spw_copy_cpu(void *to, const void *from, size_t bytes);

#endif
