/* The model's files, as weight blocks are read from them: around the page cache if the
 * filesystem allows it. Then weights on their way to the device do not evict pages that the host
 * needs.
 *
 * Resident blocks and small tensors use the mapping of the same files. Nothing writes to the
 * files, so both views agree. */
#include "runtime/engine/engine.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens the file with direct I/O, if its alignment divides SPW_FILE_BLOCK. 1: not possible. */
static int open_direct(struct spw_weight_file *f, const char *path)
{
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->fd < 0)
        return errno == EINVAL ? 1 : -errno;
    SPW_TRY(spw_io_use_file(f->fd, &f->io));
    return SPW_FILE_BLOCK % f->io.align ? 1 : 0;
}

static int open_buffered(struct spw_weight_file *f, const char *path)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    return f->fd < 0 ? -errno : spw_io_use_file(f->fd, &f->io);
}

static int open_file(struct spw_engine *e, uint32_t index, struct spw_error *err)
{
    struct spw_weight_file *f = &e->reads.files[index];
    const char *path = spw_tensors_path(e->model.tensors, index);
    if (f->fd >= 0)
        return 0;
    f->io = (struct spw_io_file){.fd = -1, .align = 1};
    if (spw_io_counts(e->io))
        return 0;
    int rc = open_direct(f, path);
    if (rc > 0)
        rc = open_buffered(f, path);
    return rc ? spw_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* Appends how the files are read to the description of the I/O engine. */
static void describe(struct spw_engine *e)
{
    uint32_t n = 0, n_direct = 0;
    for (uint32_t i = 0; i < e->reads.n_files; i++) {
        n += e->reads.files[i].fd >= 0;
        n_direct += e->reads.files[i].fd >= 0 && e->reads.files[i].io.align > 1;
    }
    size_t used = strlen(e->texts.io);
    snprintf(e->texts.io + used, sizeof e->texts.io - used, "; weights: %s",
             n_direct == n ? "O_DIRECT"
             : n_direct    ? "O_DIRECT, some files buffered (refused there)"
                           : "buffered (O_DIRECT was refused)");
}

/* The sums stay when the plan changes. */
static int open_sums(struct spw_engine *e, struct spw_error *err)
{
    struct spw_error why = {0};
    if (e->reads.sums.sums)
        return 0;
    if (spw_block_sums_open(&e->reads.sums, e->model.weights))
        return spw_fail(err, -ENOMEM, "out of memory for checksums of weights");
    if (!e->own.weight_checksums)
        return 0;
    int rc = spw_block_sums_read(&e->reads.sums, e->own.weight_checksums, &why);
    if (rc && rc != -ENOENT)
        spw_engine_add_note(e, "%s; checksums of weights are taken anew", why.text);
    return 0;
}

int spw_engine_open_weight_files(struct spw_engine *e, struct spw_error *err)
{
    const struct spw_weights *w = e->model.weights;
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    e->reads.n_files = spw_tensors_n_files(e->model.tensors);
    e->reads.files = spw_alloc_zero(e->reads.n_files, sizeof *e->reads.files);
    if (!e->reads.files)
        return spw_fail(err, -ENOMEM, "out of memory for the table of files");
    for (uint32_t i = 0; i < e->reads.n_files; i++)
        e->reads.files[i].fd = -1;
    for (uint32_t u = 0; u < spw_engine_n_blocks(e); u++) {
        if (!spw_plan_block(&e->plan, w, u).from_disk)
            continue;
        uint32_t n = spw_weights_ranges(w, u, ranges, lands);
        for (uint32_t i = 0; i < n; i++)
            SPW_TRY(open_file(e, ranges[i].file, err));
    }
    describe(e);
    return open_sums(e, err);
}

/* The first and the last matrix of the block that has some of these bytes of the file. */
static bool find_matrices(const struct spw_engine *e, const struct spw_block_failure *f,
                          const struct spw_tensor *ends[2])
{
    const struct spw_weights *w = e->model.weights;
    const struct spw_weight_block *b = &w->blocks[f->block - e->blocks.list];
    ends[0] = ends[1] = NULL;
    for (uint32_t i = b->first; i < b->first + b->n; i++) {
        const struct spw_tensor *t = w->matrices[i].tensor;
        const uint64_t at = t->file_offset + (uint64_t)((const uint8_t *)w->pieces[i].from -
                                                        (const uint8_t *)t->data);
        if (t->file_index != f->file || at >= f->offset + f->bytes ||
            at + w->pieces[i].bytes <= f->offset)
            continue;
        ends[0] = !ends[0] || t->file_offset < ends[0]->file_offset ? t : ends[0];
        ends[1] = !ends[1] || t->file_offset > ends[1]->file_offset ? t : ends[1];
    }
    return ends[0];
}

/* "tensor NAME"; of bytes between two matrices (spw_file_ranges) only the place. */
static void name_tensors(const struct spw_engine *e, const struct spw_block_failure *f, char *text,
                         size_t bytes)
{
    const struct spw_tensor *ends[2];
    if (!find_matrices(e, f, ends))
        snprintf(text, bytes, "bytes from %llu on", (unsigned long long)f->offset);
    else if (ends[0] == ends[1])
        snprintf(text, bytes, "tensor %.100s", ends[0]->own_name);
    else
        snprintf(text, bytes, "tensors %.100s to %.100s", ends[0]->own_name, ends[1]->own_name);
}

int spw_engine_fail_read(const struct spw_engine *e, const struct spw_block_failure *f,
                         struct spw_error *err)
{
    static const char held[] = "the sessions hold what they held before the step";
    const char *path = spw_tensors_path(e->model.tensors, f->file);
    const char *kept = e->own.weight_checksums ? e->own.weight_checksums : "";
    char tensors[256];
    name_tensors(e, f, tensors, sizeof tensors);
    if (f->rc == -EBADMSG)
        return spw_fail(
            err, -EIO,
            "%s: %s: weights are not what they were when they were first read; %s. Check "
            "the drive and the memory, or fetch the file again; if the file is right, "
            "%s%s%sopen the model again",
            path, tensors, held, *kept ? "remove " : "", kept, *kept ? " and " : "");
    return spw_fail(err, -EIO, "%s: %s: weights could not be read (%s); %s", path, tensors,
                    f->rc == -ENODATA ? "the file is shorter than it was" : strerror(-f->rc), held);
}

void spw_engine_close_weight_files(struct spw_engine *e)
{
    for (uint32_t i = 0; e->reads.files && i < e->reads.n_files; i++)
        if (e->reads.files[i].fd >= 0)
            close(e->reads.files[i].fd);
    spw_free(e->reads.files);
    e->reads.files = NULL;
}

void spw_engine_read_block(struct spw_engine *e, uint32_t u)
{
    struct spw_weights *w = e->model.weights;
    struct spw_block *block = &e->blocks.list[u];
    struct spw_block_read *reads = e->reads.ranges + w->blocks[u].first;
    uint64_t *bounce_offsets = e->reads.bounce_offsets + w->blocks[u].first;
    struct spw_file_range ranges[SPW_FILE_PARTS];
    block->n_reads = spw_weights_ranges(w, u, ranges, bounce_offsets);
    uint64_t *sums = e->reads.sums.sums + e->reads.sums.first[u];
    for (uint32_t i = 0; i < block->n_reads; i++) {
        reads[i] = (struct spw_block_read){
            .range = {.file = &e->reads.files[ranges[i].file].io,
                      .offset = ranges[i].offset,
                      .bytes = ranges[i].bytes,
                      .least_bytes = ranges[i].least_bytes,
                      .sums = sums},
            .file = ranges[i].file,
            .slot_offset = ranges[i].slot_offset,
        };
        sums += spw_div_up(ranges[i].bytes, SPW_RING_RECORD_BYTES);
    }
    block->reads = reads;
    const struct spw_block_place at = spw_plan_block(&e->plan, w, u);
    block->read_bytes = at.disk_bytes;
    if (at.as_in_file)
        spw_weights_place_as_in_file(w, u);
    else
        block->bounce_offsets = bounce_offsets;
}
