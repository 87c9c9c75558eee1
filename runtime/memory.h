/* How much memory this process may still take: what the system and its control group leave. */
#ifndef SPW_RUNTIME_MEMORY_H
#define SPW_RUNTIME_MEMORY_H

#include "runtime/base.h"

/* Bytes; 1 GiB when nothing can be found out. */
uint64_t spw_memory_available(void);

#endif
