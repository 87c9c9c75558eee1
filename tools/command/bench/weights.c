/* Reads weight files, to compare the start of a run with: see bench.h. */
#include "model/source/source.h"
#include "tools/command/bench/bench.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fits into a core's cache: the file is read from memory once, and memory is not written. */
enum { PIECE_BYTES = 1 << 20 };

/* One thread's part of one file. */
struct reader {
    pthread_t thread;
    int fd, rc;
    uint64_t begin, end;
};

static void *read_part(void *argument)
{
    struct reader *r = argument;
    void *piece = spw_alloc(PIECE_BYTES);
    r->rc = piece ? 0 : -ENOMEM;
    for (uint64_t at = r->begin; at < r->end && r->rc == 0;) {
        ssize_t n = pread(r->fd, piece, spw_min_u64(PIECE_BYTES, r->end - at), (off_t)at);
        r->rc = n < 0 ? -errno : n == 0 ? -EIO : cli_interrupted() ? -ECANCELED : 0;
        at += n > 0 ? (uint64_t)n : 0;
    }
    spw_free(piece);
    return NULL;
}

static int read_open_file(int fd, struct reader *readers, uint32_t threads)
{
    struct stat st;
    uint32_t n = 0;
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    const uint64_t size = rc ? 0 : (uint64_t)st.st_size, part = spw_div_up(size, threads);
    for (; rc == 0 && n < threads; n += rc == 0) {
        readers[n] = (struct reader){.fd = fd,
                                     .begin = spw_min_u64(size, n * part),
                                     .end = spw_min_u64(size, (n + 1) * part)};
        rc = -pthread_create(&readers[n].thread, NULL, read_part, &readers[n]);
    }
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(readers[i].thread, NULL);
        rc = rc ? rc : readers[i].rc;
    }
    return rc;
}

int bench_read_weights(const char *model, uint32_t threads, double *seconds)
{
    struct spw_source *source = NULL;
    struct spw_tensors *weights = NULL;
    struct reader *readers = spw_alloc_zero(threads, sizeof *readers);
    int rc = readers ? spw_source_open(&source, model, NULL) : -ENOMEM;
    if (rc == 0)
        rc = source->ops->tensors(source, &weights, NULL);
    double start = cli_now_seconds();
    for (uint32_t i = 0; rc == 0 && i < spw_tensors_n_files(weights); i++) {
        int fd = open(spw_tensors_path(weights, i), O_RDONLY | O_CLOEXEC);
        rc = fd < 0 ? -errno : read_open_file(fd, readers, threads);
        if (fd >= 0)
            close(fd);
    }
    *seconds = cli_now_seconds() - start;
    spw_tensors_close(weights);
    spw_source_close(source);
    spw_free(readers);
    return rc;
}
