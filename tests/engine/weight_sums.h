/* The checksums that an engine has of its weights, against the model's files, which this header
 * reads on its own. */
#ifndef SPW_TESTS_ENGINE_WEIGHT_SUMS_H
#define SPW_TESTS_ENGINE_WEIGHT_SUMS_H

#include "tests/engine/engine_run.h"

#include <xxhash.h>

struct weight_sums {
    uint64_t n, n_known, n_wrong;
};

static inline uint64_t weight_sum_of(const char *path, uint64_t offset, uint64_t bytes)
{
    uint8_t *data = calloc(bytes, 1);
    int fd = open(path, O_RDONLY);
    bool there = fd >= 0 && pread(fd, data, bytes, (off_t)offset) == (ssize_t)bytes;
    uint64_t sum = there ? XXH3_64bits(data, bytes) : 0;
    CHECK_MSG(there, "%s: %llu bytes at %llu", path, (unsigned long long)bytes,
              (unsigned long long)offset);
    if (fd >= 0)
        close(fd);
    free(data);
    return sum;
}

/* Compares the sums that are known. fill: sets the others. */
static inline struct weight_sums weight_sums_check(struct spw_engine *e, bool fill)
{
    const struct spw_weights *w = e->model.weights;
    struct weight_sums found = {0};
    struct spw_stats stats;
    spw_engine_stats(e, &stats); /* waits for reads that are ahead */
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    for (uint32_t b = 0; e->reads.sums.sums && b < w->n_blocks + w->n_expert_blocks; b++) {
        uint64_t *sum = e->reads.sums.sums + e->reads.sums.first[b];
        uint32_t n = spw_weights_ranges(w, b, ranges, lands);
        for (uint32_t i = 0; i < n; i++)
            for (uint64_t at = 0; at < ranges[i].bytes; at += SPW_RING_RECORD_BYTES, sum++) {
                uint64_t bytes = spw_min_u64(ranges[i].least_bytes - at, SPW_RING_RECORD_BYTES);
                uint64_t is = weight_sum_of(spw_tensors_path(e->model.tensors, ranges[i].file),
                                            ranges[i].offset + at, bytes);
                found.n++;
                found.n_known += *sum != 0;
                found.n_wrong += *sum && *sum != is;
                if (fill)
                    *sum = is;
            }
    }
    return found;
}

#endif
