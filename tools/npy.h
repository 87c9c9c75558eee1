/* A NumPy file of float32 rows that grows: [n_rows, n_columns], format 1.0 (numpy.lib.format). The
 * header is written again at close, when the number of rows is known. 0 or -errno. */
#ifndef SPW_TOOLS_NPY_H
#define SPW_TOOLS_NPY_H

#include <stdint.h>

struct cli_npy;

int cli_npy_open(struct cli_npy **out, const char *path, uint32_t n_columns);
int cli_npy_append(struct cli_npy *n, const float *row);
/* Also frees; NULL is fine. */
int cli_npy_close(struct cli_npy *n);

#endif
