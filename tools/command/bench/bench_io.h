/* The measurements of `spillway bench --io`, and their output. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_IO_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_IO_H

#include "tools/command/bench/bench.h"

/* Each has one sample a pair. A ratio of 1 is the limit. */
enum io_measure {
    IO_READ,       /* bytes a second: slots from the file, checksums compared */
    IO_FIO_READ,   /* fio, the same file */
    IO_READ_RATIO, /* of this pair */
    IO_WRITE,      /* a fresh file, preallocated, checksums taken */
    IO_FIO_WRITE,  /* fio, another fresh file, preallocated */
    IO_WRITE_RATIO,
    IO_READ_CPU, /* core-seconds a GiB, of the whole process */
    IO_WRITE_CPU,
    IO_STEP,       /* seconds a token, 3/4 of the KV on disk */
    IO_STEP_ALONE, /* the same with all KV on the device */
    IO_STEP_LINK,  /* the bytes from disk at the rate of fio, mean of before and after */
    IO_STEP_RATIO, /* link / step */
    IO_STEP_PATH,  /* bytes from disk a second of the step / of the path alone */
    IO_STEP_WAIT,  /* waiting that computation did not hide */
    IO_PREDICTED,  /* predicted with the limits of the same pair / step */
    IO_PROMPT,     /* seconds of the prompt, spilling */
    IO_PROMPT_ALONE,
    IO_PROMPT_RATIO, /* spilling / alone */
    IO_BLOCKING, /* seconds to read the bytes of the step layer by layer through the page cache */
    IO_FACTOR,   /* (alone + blocking) / step */
    IO_MEASURES,
};

struct io_bench {
    const struct cli_options *o;
    struct cli_model model;
    struct spw_options options; /* with the disk */
    struct spw_plan_info plan;  /* the plan of `options` */
    struct cli_limits limits;
    struct spw_prediction predicted;
    int32_t *tokens;               /* owned: [context + decode_tokens + 1] */
    struct spw_drive_bench *drive; /* owned: the file that is read */
    char engine[128], file[128];   /* the I/O engine of the path alone */
    uint64_t context, file_bytes, slot_bytes, fio_bytes, step_bytes; /* step: from disk, a token */
    uint32_t n_slots;
    double *samples[IO_MEASURES]; /* owned, [n_pairs] each; NAN: not measured */
    size_t n_pairs;
    char no_fio[320]; /* why there are no numbers of fio; "" if there are */
};

/* Prints the table to stdout, and CSV and JSON to the files of the options. Returns an exit code.
 */
int bench_io_print(const struct io_bench *b);

#endif
