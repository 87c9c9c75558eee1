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
static int open_direct(struct spw_engine *e, struct spw_weight_file *f, const char *path)
{
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->fd < 0)
        return errno == EINVAL ? 1 : -errno;
    SPW_TRY(spw_io_register_file(e->io, f->fd, &f->io));
    return SPW_FILE_BLOCK % f->io.align ? 1 : 0;
}

static int open_buffered(struct spw_engine *e, struct spw_weight_file *f, const char *path)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    return f->fd < 0 ? -errno : spw_io_register_file(e->io, f->fd, &f->io);
}

static int open_file(struct spw_engine *e, uint32_t index, struct spw_error *err)
{
    struct spw_weight_file *f = &e->weight_files[index];
    const char *path = spw_tensors_path(e->model.tensors, index);
    if (f->fd >= 0)
        return 0;
    int rc = open_direct(e, f, path);
    if (rc > 0)
        rc = open_buffered(e, f, path);
    if (rc == -ENFILE)
        return spw_fail(err, rc,
                        "%s: the weights to stream lie in more files than can be read from "
                        "(256); raise options.host_bytes, or merge the model's shards",
                        path);
    return rc ? spw_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* Appends how the files are read to the description of the I/O engine. */
static void describe(struct spw_engine *e)
{
    uint32_t n = 0, n_direct = 0;
    for (uint32_t i = 0; i < e->n_weight_files; i++) {
        n += e->weight_files[i].fd >= 0;
        n_direct += e->weight_files[i].fd >= 0 && e->weight_files[i].io.align > 1;
    }
    size_t used = strlen(e->io_text);
    snprintf(e->io_text + used, sizeof e->io_text - used, "; weights: %s",
             n_direct == n ? "O_DIRECT"
             : n_direct    ? "O_DIRECT, some files buffered (refused there)"
                           : "buffered (O_DIRECT was refused)");
}

int spw_engine_open_weight_files(struct spw_engine *e, struct spw_error *err)
{
    const struct spw_weights *w = e->model.weights;
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    e->n_weight_files = spw_tensors_n_files(e->model.tensors);
    e->weight_files = spw_alloc_zero(e->n_weight_files, sizeof *e->weight_files);
    if (!e->weight_files)
        return spw_fail(err, -ENOMEM, "out of memory for the table of files");
    for (uint32_t i = 0; i < e->n_weight_files; i++)
        e->weight_files[i].fd = -1;
    for (uint32_t u = 0; u < spw_engine_n_blocks(e); u++) {
        if (!spw_plan_block_from_disk(&e->plan, w, u))
            continue;
        uint32_t n = spw_weights_ranges(w, u, ranges, lands);
        for (uint32_t i = 0; i < n; i++)
            SPW_TRY(open_file(e, ranges[i].file, err));
    }
    describe(e);
    return 0;
}

void spw_engine_close_weight_files(struct spw_engine *e)
{
    for (uint32_t i = 0; e->weight_files && i < e->n_weight_files; i++)
        if (e->weight_files[i].fd >= 0)
            close(e->weight_files[i].fd);
    spw_free(e->weight_files);
    e->weight_files = NULL;
}

void spw_engine_read_block(struct spw_engine *e, uint32_t u)
{
    struct spw_weights *w = e->model.weights;
    struct spw_block *block = &e->blocks[u];
    struct spw_block_context *c = &e->block_contexts[u];
    struct spw_file_range ranges[SPW_FILE_PARTS];
    block->n_reads = spw_weights_ranges(w, u, ranges, c->bounce_offsets);
    for (uint32_t i = 0; i < block->n_reads; i++)
        c->reads[i] = (struct spw_block_read){
            .file = &e->weight_files[ranges[i].file].io,
            .path = spw_tensors_path(e->model.tensors, ranges[i].file),
            .offset = ranges[i].offset,
            .bytes = ranges[i].bytes,
            .least_bytes = ranges[i].least_bytes,
            .slot_offset = ranges[i].slot_offset,
        };
    block->reads = c->reads;
    block->read_bytes = spw_plan_block_disk_bytes(&e->plan, w, u);
    if (spw_plan_block_as_in_file(&e->plan, w, u))
        spw_weights_place_as_in_file(w, u);
    else
        block->bounce_offsets = c->bounce_offsets;
}
