/* fio, an external program, as the judge of a drive: the same file or one beside it, with
 * --direct=1 --ioengine=io_uring --bs=1M --iodepth=16 --fixedbufs. */
#ifndef SPW_TOOLS_COMMAND_BENCH_FIO_H
#define SPW_TOOLS_COMMAND_BENCH_FIO_H

#include "tools/command/common.h"

/* Reads `file`, or writes a new file of that name, in order, `bytes` of it. 0 with bytes a second
 * as fio measured them (the file is laid out before that); -ENOENT: there is no fio; -EIO: it ran
 * and failed, `why` has its first line. Its file stays: the caller removes it. */
int cli_fio_run(const char *file, bool write, uint64_t bytes, double *bytes_per_second,
                struct spw_error *why);

#endif
