/* See npy.h. All machines that spillway runs on are little-endian, as the file says it is. */
#include "tools/command/output/npy.h"
#include "tools/command/output/output.h"

#include <string.h>

#define HEADER_BYTES 128 /* a multiple of 64, with room for 64-bit numbers */

struct cli_npy {
    struct cli_output *output; /* owned */
    FILE *file;                /* of it */
    uint64_t n_rows;
    uint32_t n_columns;
    int failed; /* -errno of a row that could not be written */
};

static void write_header(struct cli_npy *n)
{
    char header[HEADER_BYTES];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10; /* the length of the rest, little-endian */
    header[9] = 0;
    char text[HEADER_BYTES - 11];
    int bytes = snprintf(text, sizeof text,
                         "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %u), }",
                         (unsigned long long)n->n_rows, n->n_columns);
    memcpy(header + 10, text, (size_t)bytes);
    header[HEADER_BYTES - 1] = '\n';
    fwrite(header, HEADER_BYTES, 1, n->file);
}

int cli_npy_open(struct cli_npy **out, const char *path, uint32_t n_columns)
{
    struct cli_npy *n = *out = spw_alloc_zero(1, sizeof *n);
    if (!n)
        return cli_fail(CLI_FAILED, "%s: out of memory", path);
    n->n_columns = n_columns;
    int code = cli_output_open(&n->output, path, false);
    if (code) {
        spw_free(n);
        *out = NULL;
        return code;
    }
    n->file = cli_output_file(n->output);
    write_header(n); /* reserves the place; close writes the number of rows. cli_output_commit sees
                        a failed write */
    return 0;
}

int cli_npy_append(struct cli_npy *n, const float *row)
{
    if (fwrite(row, sizeof *row, n->n_columns, n->file) != n->n_columns)
        return n->failed = errno ? -errno : -EIO;
    n->n_rows++;
    return 0;
}

int cli_npy_close(struct cli_npy *n)
{
    if (!n)
        return 0;
    if (!ferror(n->file) && fseek(n->file, 0, SEEK_SET) == 0)
        write_header(n);
    if (n->failed)
        errno = -n->failed; /* for the message of the commit */
    int code = cli_output_commit(n->output);
    spw_free(n);
    return code;
}
