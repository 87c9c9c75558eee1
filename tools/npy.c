/* See npy.h. All machines that spillway runs on are little-endian, as the file says it is. */
#include "tools/npy.h"
#include "runtime/spillway.h"

#include <stdio.h>
#include <string.h>

#define HEADER_BYTES 128 /* a multiple of 64, with room for 64-bit numbers */

struct cli_npy {
    FILE *file; /* owned */
    uint64_t n_rows;
    uint32_t n_columns;
};

static int write_header(struct cli_npy *n)
{
    char header[HEADER_BYTES];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10; /* what follows the length, little-endian */
    header[9] = 0;
    char text[HEADER_BYTES - 11];
    int bytes = snprintf(text, sizeof text,
                         "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %u), }",
                         (unsigned long long)n->n_rows, n->n_columns);
    memcpy(header + 10, text, (size_t)bytes);
    header[HEADER_BYTES - 1] = '\n';
    return fwrite(header, HEADER_BYTES, 1, n->file) == 1 ? 0 : -errno;
}

int cli_npy_open(struct cli_npy **out, const char *path, uint32_t n_columns)
{
    *out = NULL;
    struct cli_npy *n = spw_alloc_zero(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    n->n_columns = n_columns;
    n->file = fopen(path, "wb");
    int rc = n->file ? write_header(n) : -errno;
    /* Written and gone back to at the end, when the number of rows is known: what cannot, a pipe or
     * a full disk, says so before there is anything to lose. */
    if (rc == 0 && (fflush(n->file) != 0 || fseek(n->file, HEADER_BYTES, SEEK_SET) != 0))
        rc = -errno;
    if (rc < 0) {
        if (n->file)
            fclose(n->file);
        spw_free(n);
        return rc;
    }
    *out = n;
    return 0;
}

int cli_npy_append(struct cli_npy *n, const float *row)
{
    if (fwrite(row, sizeof *row, n->n_columns, n->file) != n->n_columns)
        return -errno;
    n->n_rows++;
    return 0;
}

int cli_npy_close(struct cli_npy *n)
{
    if (!n)
        return 0;
    int rc = fseek(n->file, 0, SEEK_SET) == 0 ? write_header(n) : -errno;
    if (fclose(n->file) != 0 && rc == 0)
        rc = -errno;
    spw_free(n);
    return rc;
}
