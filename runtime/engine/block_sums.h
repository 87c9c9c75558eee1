/* Checksums of weight blocks that are read from the model's files.
 *
 * A model's files have no checksums. So the first read of a record (1 MiB of the range of a block)
 * notes the sum of what came, and every later read is compared with it (offload/io/io_job.c). The
 * sums can be kept in a file for later runs (spw_options.weight_checksums), which then know also
 * whether a file is what it was when it was first read.
 *
 * The file of sums has those of several models, each under a key: the files of the model (names,
 * sizes, headers, times of last write) and the ranges of its blocks. A file that is damaged, or has
 * no such key, counts as missing: sums are noted anew. */
#ifndef SPW_RUNTIME_ENGINE_BLOCK_SUMS_H
#define SPW_RUNTIME_ENGINE_BLOCK_SUMS_H

#include "model/weights/weights.h"

enum { SPW_SUMS_KEY_BYTES = 16 };

struct spw_block_sums {
    uint64_t *sums;     /* owned, [n]; 0: not known */
    uint64_t *first;    /* owned, [blocks]: the first sum of each block, that of its first range */
    uint64_t n, n_kept; /* n_kept: sums that the file has */
    uint8_t key[SPW_SUMS_KEY_BYTES];
};

/* No sum is known then. -ENOMEM. */
int spw_block_sums_open(struct spw_block_sums *s, const struct spw_weights *w);
void spw_block_sums_close(struct spw_block_sums *s); /* accepts zeros */
/* Reads the sums that the file has for this model. -ENOENT: none; -EINVAL: the file is damaged. */
int spw_block_sums_read(struct spw_block_sums *s, const char *path, struct spw_error *err);
/* Adds the sums to the file, if there are new ones. The models that were used last stay. */
int spw_block_sums_write(struct spw_block_sums *s, const char *path, struct spw_error *err);

#endif
