/* The lines of a file or of stdin, one after the other, in memory of the longest one. */
#ifndef SPW_TOOLS_COMMAND_JOB_STORE_LINES_H
#define SPW_TOOLS_COMMAND_JOB_STORE_LINES_H

#include "base/base.h"

/* The longest line. A longer text belongs into a file of its own. */
#define JOB_MAX_LINE_BYTES (UINT64_C(64) << 20)

struct job_line {
    /* Without its newline, ends in a NUL; valid until the next call. The byte order mark that
     * programs of Windows write before the first line becomes blanks. */
    char *text;
    size_t bytes;
    uint64_t number;  /* from 1 */
    uint64_t offset;  /* of its first byte in the file */
    bool is_too_long; /* `text` is its beginning */
    bool has_newline; /* the last line may lack it */
};

struct job_lines {
    int fd;                      /* owned, unless it is stdin */
    char *buffer;                /* owned, [capacity] */
    size_t capacity, start, end; /* buffer[start, end) was read and not given out yet */
    /* Of a line that is not complete: bytes without a newline; bytes that were passed over. */
    size_t n_searched;
    uint64_t n_skipped;
    uint64_t offset, number; /* of buffer[start]; of the last line */
    bool is_at_end;
    /* How long a read may wait for a pipe; -1: without a limit. A pipe may give nothing for hours.
     */
    int wait_ms;
    size_t most; /* bytes of a line; JOB_MAX_LINE_BYTES */
};

/* "-" reads stdin. 0 or -errno. */
int job_lines_open(struct job_lines *l, const char *path);
void job_lines_close(struct job_lines *l);
/* 1: a line; 0: the input has ended; -errno. The last line may lack its newline. -EAGAIN: the pipe
 * has given no whole line within wait_ms, or a signal came; a later call continues. */
int job_lines_next(struct job_lines *l, struct job_line *out);
bool job_line_is_blank(const struct job_line *line);
/* The folder of the file `path`: names of files in its lines begin there. */
void job_lines_folder(char folder[4096], const char *path);
/* Continues at the line that begins at `offset` and has this number. -ESPIPE: not in a file. */
int job_lines_seek(struct job_lines *l, uint64_t offset, uint64_t number);

#endif
