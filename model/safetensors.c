/* One folder of safetensors files, mapped: see safetensors.h; the JSON is read in
 * safetensors_header.c. */
#include "model/safetensors.h"

#include "model/config_json.h"
#include "model/file.h"
#include "model/file_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The limit of the reference implementation: a header is text, and a larger one is an attack. */
#define MAX_HEADER_BYTES 100000000u
#define LENGTH_BYTES 8u

struct shard {
    char *path; /* owned */
    struct spw_file_map map;
    uint64_t header_bytes;
    struct spw_tensor_table table;
};

struct spw_safetensors {
    struct shard *shards;
    size_t n_shards;
    struct spw_tensor *tensors; /* of all shards, sorted by name */
    size_t n_tensors;
};

static int read_header(struct shard *shard, uint32_t index, struct spw_error *err)
{
    uint64_t header_bytes = 0;
    SPW_TRY(spw_json_refuse_pointer(shard->map.base, shard->map.bytes, shard->path, err));
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)shard->map.base[i] << (8 * i);
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > shard->map.bytes - LENGTH_BYTES)
        return spw_fail(err, -EINVAL,
                        "%s: header: found a length of %" PRIu64 ", expected at most %" PRIu64
                        "; the file is cut short or is not safetensors",
                        shard->path, header_bytes,
                        spw_min_u64(MAX_HEADER_BYTES, shard->map.bytes - LENGTH_BYTES));
    shard->header_bytes = LENGTH_BYTES + header_bytes;
    const uint8_t *data = shard->map.base + shard->header_bytes;
    uint64_t data_bytes = shard->map.bytes - shard->header_bytes;
    SPW_TRY(spw_safetensors_parse_header(&shard->table,
                                         (const char *)shard->map.base + LENGTH_BYTES,
                                         (size_t)header_bytes, data_bytes, shard->path, err));
    for (size_t i = 0; i < shard->table.n; i++) {
        struct spw_tensor *t = &shard->table.tensors[i];
        t->data = data + t->offset;
        t->file = shard->path;
        t->file_index = index;
        t->file_offset = shard->header_bytes + t->offset;
    }
    return 0;
}

/* The next one. `named_by`: the index, for the message when the file is not there. */
static int open_shard(struct spw_safetensors *st, const char *folder, const char *name,
                      const char *named_by, struct spw_error *err)
{
    uint32_t index = (uint32_t)st->n_shards++;
    struct shard *shard = &st->shards[index];
    shard->path = spw_file_join(folder, name);
    if (!shard->path)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    int rc = spw_file_map_open(&shard->map, shard->path, LENGTH_BYTES, err);
    if (rc == -ENOENT || rc == -ENOTDIR)
        spw_fail(err, rc, "%s: found no such file, expected a shard that %s names", shard->path,
                 named_by);
    return rc ? rc : read_header(shard, index, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct spw_tensor *)a)->name, ((const struct spw_tensor *)b)->name);
}

/* All shards' tensors in one sorted list; a name may be there once. */
static int merge(struct spw_safetensors *st, const char *folder, struct spw_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < st->n_shards; i++)
        n += st->shards[i].table.n;
    st->tensors = spw_alloc_zero(n, sizeof *st->tensors);
    if (!st->tensors)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    for (size_t i = 0; i < st->n_shards; i++) {
        const struct spw_tensor_table *table = &st->shards[i].table;
        if (table->n)
            memcpy(st->tensors + st->n_tensors, table->tensors, table->n * sizeof *table->tensors);
        st->n_tensors += table->n;
    }
    qsort(st->tensors, n, sizeof *st->tensors, compare_names);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(st->tensors[i - 1].name, st->tensors[i].name))
            return spw_fail(err, -EINVAL,
                            "%s: tensor %.160s: found it also in %s, expected each tensor once",
                            st->tensors[i].file, st->tensors[i].name, st->tensors[i - 1].file);
    return 0;
}

static int check_index(const struct spw_safetensors *st, const struct spw_shard_index *index,
                       const char *index_path, struct spw_error *err)
{
    for (size_t i = 0; i < index->n; i++) {
        const struct spw_shard_entry *entry = &index->entries[i];
        const struct spw_tensor *tensor = spw_safetensors_find(st, entry->tensor);
        const char *slash = tensor ? strrchr(tensor->file, '/') : NULL;
        if (!tensor || strcmp(slash + 1, entry->file) != 0)
            return spw_fail(err, -EINVAL,
                            "%s: weight_map.%.160s: found %s, but the tensor is %s%s; expected the "
                            "file that holds it",
                            index_path, entry->tensor, entry->file, tensor ? "in " : "in no shard",
                            tensor ? slash + 1 : "");
    }
    return 0;
}

static int open_shards(struct spw_safetensors *st, const char *folder,
                       const struct spw_shard_index *index, const char *index_path,
                       struct spw_error *err)
{
    st->shards = spw_alloc_zero(index->n_files, sizeof *st->shards);
    if (!st->shards)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    for (size_t i = 0; i < index->n_files; i++)
        SPW_TRY(open_shard(st, folder, index->files[i], index_path, err));
    SPW_TRY(merge(st, folder, err));
    return check_index(st, index, index_path, err);
}

static int open_sharded(struct spw_safetensors *st, const char *folder, const char *index_path,
                        struct spw_error *err)
{
    char *text;
    size_t bytes;
    int rc = spw_file_read(index_path, MAX_HEADER_BYTES, &text, &bytes, err);
    if (rc == -ENOENT || rc == -ENOTDIR)
        return spw_fail(err, rc,
                        "%s: found neither model.safetensors nor model.safetensors.index.json, "
                        "expected a Hugging Face folder with safetensors weights",
                        folder);
    SPW_TRY(rc);
    struct spw_shard_index index = {0};
    rc = spw_safetensors_parse_index(&index, text, bytes, index_path, err);
    spw_free(text);
    if (!rc)
        rc = open_shards(st, folder, &index, index_path, err);
    spw_safetensors_free_index(&index);
    return rc;
}

/* One file when there is one, as transformers looks; else the index. */
static int open_folder(struct spw_safetensors *st, const char *folder, struct spw_error *err)
{
    char *single = spw_file_join(folder, "model.safetensors");
    char *index_path = spw_file_join(folder, "model.safetensors.index.json");
    int rc;
    if (!single || !index_path) {
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    } else if (access(single, F_OK) < 0) {
        rc = open_sharded(st, folder, index_path, err);
    } else if (!(st->shards = spw_alloc_zero(1, sizeof *st->shards))) {
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    } else {
        rc = open_shard(st, folder, "model.safetensors", folder, err);
        if (!rc)
            rc = merge(st, folder, err);
    }
    spw_free(single);
    spw_free(index_path);
    return rc;
}

int spw_safetensors_open(struct spw_safetensors **out, const char *folder, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    struct spw_safetensors *st = spw_alloc_zero(1, sizeof *st);
    if (!st)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    int rc = open_folder(st, folder, err);
    if (rc) {
        spw_safetensors_close(st);
        spw_json_tidy(err);
        return rc;
    }
    *out = st;
    return 0;
}

void spw_safetensors_close(struct spw_safetensors *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < st->n_shards; i++) {
        struct shard *shard = &st->shards[i];
        spw_safetensors_free_table(&shard->table);
        spw_file_map_close(&shard->map);
        spw_free(shard->path);
    }
    spw_free(st->shards);
    spw_free(st->tensors);
    spw_free(st);
}

const struct spw_tensor *spw_safetensors_find(const struct spw_safetensors *st, const char *name)
{
    struct spw_tensor key = {.name = name};
    if (!st->n_tensors)
        return NULL;
    return bsearch(&key, st->tensors, st->n_tensors, sizeof key, compare_names);
}

size_t spw_safetensors_count(const struct spw_safetensors *st)
{
    return st->n_tensors;
}

const struct spw_tensor *spw_safetensors_at(const struct spw_safetensors *st, size_t i)
{
    return i < st->n_tensors ? &st->tensors[i] : NULL;
}

uint64_t spw_safetensors_total_bytes(const struct spw_safetensors *st)
{
    uint64_t total = 0; /* cannot overflow: the tensors of a mapped file do not overlap */
    for (size_t i = 0; i < st->n_tensors; i++)
        total += st->tensors[i].bytes;
    return total;
}

uint32_t spw_safetensors_n_files(const struct spw_safetensors *st)
{
    return (uint32_t)st->n_shards;
}

const char *spw_safetensors_path(const struct spw_safetensors *st, uint32_t file_index)
{
    return st->shards[file_index].path;
}

bool spw_safetensors_damaged(const struct spw_safetensors *st)
{
    for (size_t i = 0; i < st->n_shards; i++)
        if (spw_file_map_damaged(&st->shards[i].map))
            return true;
    return false;
}

int spw_safetensors_check(const struct spw_safetensors *st, struct spw_error *err)
{
    spw_error_clear(err);
    for (size_t i = 0; i < st->n_shards; i++)
        SPW_TRY(spw_file_map_check(&st->shards[i].map, st->shards[i].path, err));
    return 0;
}

struct spw_safetensors_extent spw_safetensors_extent(const struct spw_safetensors *st,
                                                     uint32_t file_index)
{
    const struct shard *shard = &st->shards[file_index];
    return (struct spw_safetensors_extent){.header = shard->map.base,
                                           .header_bytes = shard->header_bytes,
                                           .file_bytes = shard->map.bytes};
}

/* Outward to whole pages: the mapping is read-only, so a neighbour's bytes in the first and the
 * last page come back from the file when they are touched again. Advice: a refusal changes nothing.
 */
void spw_safetensors_release(const void *data, uint64_t bytes)
{
    if (!bytes)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)data & ~(page - 1);
    madvise((void *)begin, (uintptr_t)data + (uintptr_t)bytes - begin, MADV_DONTNEED);
}

/* One read in each window that Linux maps around a fault, or in a huge page, where nearly all are
 * free. MADV_POPULATE_READ looks at every page and took 1.6 times as long (2.3 GiB of 4 KiB pages
 * in the page cache: 0.185 against 0.113 s of processor time; of 2 MiB pages 0.003 s either way).
 */
void spw_safetensors_populate(const void *data, uint64_t bytes)
{
    enum { FAULT_AROUND_BYTES = 64 << 10 };
    const volatile uint8_t *p = data;
    for (uint64_t at = 0; at < bytes; at += FAULT_AROUND_BYTES)
        (void)p[at];
    if (bytes)
        (void)p[bytes - 1];
}
