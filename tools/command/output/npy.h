/* Writes float32 rows to a NumPy file [n_rows, n_columns], format 1.0 (numpy.lib.format). close
 * writes the header with the number of rows, and then the file takes its name (output.h). */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_NPY_H
#define SPW_TOOLS_COMMAND_OUTPUT_NPY_H

#include <stdint.h>

struct cli_npy;

/* 0 or an exit code, after one line on stderr. */
int cli_npy_open(struct cli_npy **out, const char *path, uint32_t n_columns);
/* 0 or -errno. */
int cli_npy_append(struct cli_npy *n, const float *row);
/* Also frees `out`; NULL is fine. 0 or an exit code. */
int cli_npy_close(struct cli_npy *n);

#endif
