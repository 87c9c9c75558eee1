/* The CPU device's copy: memcpy, past the cache when the block is too big to stay in it. */
#ifndef SPW_OFFLOAD_DEVICE_COPY_CPU_H
#define SPW_OFFLOAD_DEVICE_COPY_CPU_H

#include <stddef.h>

/* The blocks do not overlap. Complete, and visible to any thread that synchronizes with this one,
 * when it returns. */
void spw_copy_cpu(void *to, const void *from, size_t bytes);

#endif
