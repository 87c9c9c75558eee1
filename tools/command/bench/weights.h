/* Reading weight files, to compare the start of a run with. */
#ifndef SPW_TOOLS_COMMAND_BENCH_WEIGHTS_H
#define SPW_TOOLS_COMMAND_BENCH_WEIGHTS_H

#include <stdint.h>

/* Reads every byte of the model's weight files once with read calls, on `threads` threads, and
 * measures the time: the limit of the page cache. 0 or -errno; -ECANCELED after an interrupt. */
int bench_read_weights(const char *model, uint32_t threads, double *seconds);

#endif
