/* Which engine reads and writes files: see io.h. A header of its own, for the public API. */
#ifndef SPW_OFFLOAD_IO_IO_KIND_H
#define SPW_OFFLOAD_IO_IO_KIND_H

enum spw_io_kind { SPW_IO_AUTO, SPW_IO_URING, SPW_IO_THREADS };

#endif
