/* Measures a drive with fio, an external program: --direct=1 --ioengine=io_uring --bs=1M
 * --iodepth=16 --fixedbufs. */
#ifndef SPW_TOOLS_COMMAND_BENCH_FIO_H
#define SPW_TOOLS_COMMAND_BENCH_FIO_H

#include "tools/command/common.h"

/* Reads `bytes` of `file` in order, or writes them to a new file of that name. 0 with the bytes a
 * second that fio measured (fio lays out the file before); -ENOENT: fio is not installed; -EIO: fio
 * failed, `why` has its first line. The caller removes the file. */
int cli_fio_run(const char *file, bool write, uint64_t bytes, double *bytes_per_second,
                struct spw_error *why);

#endif
