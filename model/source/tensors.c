/* The table of tensors: see tensors.h. */
#include "model/source/tensors_read.h"

#include "base/grow.h"
#include "model/source/file_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct file {
    char *path; /* owned */
    struct spw_file_map map;
    uint64_t header_bytes;
    struct spw_tensor_table table;
};

struct spw_tensors {
    struct file *files; /* owned */
    size_t n_files, n_model_files, capacity;
    struct spw_tensor *tensors; /* owned: of all files, sorted by name */
    size_t n_tensors;
    spw_tensors_name own_name; /* NULL: the names are those of the files */
    const void *names;         /* borrowed, for it */
};

/* ---- making one ---- */

int spw_tensor_compare(const void *a, const void *b)
{
    return strcmp(((const struct spw_tensor *)a)->name, ((const struct spw_tensor *)b)->name);
}

void spw_tensor_table_free(struct spw_tensor_table *table)
{
    spw_free(table->tensors);
    spw_free(table->names);
    *table = (struct spw_tensor_table){0};
}

struct spw_tensors *spw_tensors_new(void)
{
    return spw_alloc_zero(1, sizeof(struct spw_tensors));
}

int spw_tensors_add(struct spw_tensors *t, char *path, uint64_t least, spw_tensors_read read,
                    void *context, struct spw_error *err)
{
    if (spw_grow(&t->files, &t->capacity, t->n_files + 1, sizeof *t->files)) {
        spw_fail(err, -ENOMEM, "%s: out of memory", path);
        spw_free(path);
        return -ENOMEM;
    }
    uint32_t index = (uint32_t)t->n_files++;
    struct file *f = &t->files[index];
    *f = (struct file){.path = path};
    SPW_TRY(spw_file_map_open(&f->map, path, least, err));
    SPW_TRY(read(&f->table, &f->header_bytes, f->map.base, f->map.bytes, path, context, err));
    for (size_t i = 0; i < f->table.n; i++) {
        struct spw_tensor *tensor = &f->table.tensors[i];
        tensor->file_offset = f->header_bytes + tensor->offset;
        tensor->data = f->map.base + tensor->file_offset;
        tensor->file = path;
        tensor->file_index = index;
    }
    return 0;
}

void spw_tensors_set_names(struct spw_tensors *t, spw_tensors_name own_name, const void *context)
{
    t->own_name = own_name;
    t->names = context;
}

int spw_tensors_merge(struct spw_tensors *t, const char *model, struct spw_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_files; i++)
        n += t->files[i].table.n;
    t->n_model_files = t->n_model_files ? t->n_model_files : t->n_files;
    t->n_tensors = 0;
    spw_free(t->tensors);
    t->tensors = spw_alloc_zero(n, sizeof *t->tensors);
    if (!t->tensors)
        return spw_fail(err, -ENOMEM, "%s: out of memory", model);
    for (size_t i = 0; i < t->n_files; i++) {
        const struct spw_tensor_table *table = &t->files[i].table;
        if (table->n)
            memcpy(t->tensors + t->n_tensors, table->tensors, table->n * sizeof *table->tensors);
        t->n_tensors += table->n;
    }
    qsort(t->tensors, n, sizeof *t->tensors, spw_tensor_compare);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(t->tensors[i - 1].name, t->tensors[i].name))
            return spw_fail(err, -EINVAL,
                            "%s: tensor %.160s: found it also in %s, expected each tensor once",
                            t->tensors[i].file, t->tensors[i].own_name, t->tensors[i - 1].file);
    return 0;
}

/* ---- using one ---- */

void spw_tensors_close(struct spw_tensors *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_files; i++) {
        struct file *f = &t->files[i];
        spw_tensor_table_free(&f->table);
        spw_file_map_close(&f->map);
        spw_free(f->path);
    }
    spw_free(t->files);
    spw_free(t->tensors);
    spw_free(t);
}

const struct spw_tensor *spw_tensors_find(const struct spw_tensors *t, const char *name)
{
    struct spw_tensor key = {.name = name};
    if (!t->n_tensors)
        return NULL;
    return bsearch(&key, t->tensors, t->n_tensors, sizeof key, spw_tensor_compare);
}

void spw_tensors_own_name(const struct spw_tensors *t, const char *name,
                          char out[SPW_MOST_OWN_NAME])
{
    if (!t->own_name || !t->own_name(t->names, name, out))
        snprintf(out, SPW_MOST_OWN_NAME, "%s", name);
}

size_t spw_tensors_count(const struct spw_tensors *t)
{
    return t->n_tensors;
}

const struct spw_tensor *spw_tensors_at(const struct spw_tensors *t, size_t i)
{
    return i < t->n_tensors ? &t->tensors[i] : NULL;
}

uint64_t spw_tensors_total_bytes(const struct spw_tensors *t)
{
    uint64_t total = 0; /* cannot overflow: the tensors of a mapped file do not overlap */
    for (size_t i = 0; i < t->n_tensors; i++)
        total += t->tensors[i].bytes;
    return total;
}

uint32_t spw_tensors_n_files(const struct spw_tensors *t)
{
    return (uint32_t)t->n_files;
}

uint32_t spw_tensors_n_model_files(const struct spw_tensors *t)
{
    return (uint32_t)t->n_model_files;
}

const char *spw_tensors_path(const struct spw_tensors *t, uint32_t file_index)
{
    return t->files[file_index].path;
}

bool spw_tensors_damaged(const struct spw_tensors *t)
{
    for (size_t i = 0; i < t->n_files; i++)
        if (spw_file_map_damaged(&t->files[i].map))
            return true;
    return false;
}

int spw_tensors_check(const struct spw_tensors *t, struct spw_error *err)
{
    spw_error_clear(err);
    for (size_t i = 0; i < t->n_files; i++)
        SPW_TRY(spw_file_map_check(&t->files[i].map, t->files[i].path, err));
    return 0;
}

struct spw_tensors_extent spw_tensors_extent(const struct spw_tensors *t, uint32_t file_index)
{
    const struct file *f = &t->files[file_index];
    return (struct spw_tensors_extent){.header = f->map.base,
                                       .header_bytes = f->header_bytes,
                                       .file_bytes = f->map.bytes,
                                       .written = f->map.written};
}

/* The range is extended to whole pages. The mapping is read-only, so the bytes of neighbours in the
 * first and the last page come back from the file when they are touched again. This is advice: an
 * error changes nothing. */
void spw_tensors_release(const void *data, uint64_t bytes)
{
    if (!bytes)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)data & ~(page - 1);
    madvise((void *)begin, (uintptr_t)data + (uintptr_t)bytes - begin, MADV_DONTNEED);
}

/* The system reads a mapped file 128 KiB ahead, which leaves a drive idle. With advice 16 MiB ahead
 * a file that was not in the page cache took 3.3 s for 512 MiB, without 12 to 15 s (a busy virtual
 * drive, 2026-11-29). Advice beyond the mapping is an error, which changes nothing. */
void spw_tensors_copy(void *to, const void *data, uint64_t bytes)
{
    enum { STEP = 4 << 20, AHEAD = 16 << 20 };
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < bytes; at += STEP) {
        const uint8_t *from = (const uint8_t *)data + at;
        madvise((void *)((uintptr_t)from & ~(page - 1)), AHEAD, MADV_WILLNEED);
        memcpy((uint8_t *)to + at, from, spw_min_u64(STEP, bytes - at));
    }
}

/* Reads once in each window that Linux maps around a fault, or in each huge page; nearly all other
 * pages are then mapped for free. MADV_POPULATE_READ looks at every page and took 1.6 times as long
 * (2.3 GiB of 4 KiB pages in the page cache: 0.185 against 0.113 s of processor time; of 2 MiB
 * pages 0.003 s either way). */
void spw_tensors_populate(const void *data, uint64_t bytes)
{
    enum { FAULT_AROUND_BYTES = 64 << 10 };
    const volatile uint8_t *p = data;
    for (uint64_t at = 0; at < bytes; at += FAULT_AROUND_BYTES)
        (void)p[at];
    if (bytes)
        (void)p[bytes - 1];
}
