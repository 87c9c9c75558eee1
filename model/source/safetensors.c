/* One folder of safetensors files, mapped: see safetensors.h; the JSON is read in
 * safetensors_header.c. */
#include "model/source/safetensors.h"

#include "model/config/config_json.h"
#include "model/source/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The limit of the reference implementation: a header is text, so a larger one is an attack. */
#define MAX_HEADER_BYTES 100000000u
#define LENGTH_BYTES 8u

static int read_header(struct spw_tensor_table *out, uint64_t *header_bytes, const uint8_t *base,
                       uint64_t bytes, const char *path, const void *context, struct spw_error *err)
{
    uint64_t length = 0;
    (void)context;
    SPW_TRY(spw_json_refuse_pointer(base, bytes, path, err));
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)base[i] << (8 * i);
    if (length > MAX_HEADER_BYTES || length > bytes - LENGTH_BYTES)
        return spw_fail(err, -EINVAL,
                        "%s: header: found a length of %" PRIu64 ", expected at most %" PRIu64
                        "; the file is cut short or is not safetensors",
                        path, length, spw_min_u64(MAX_HEADER_BYTES, bytes - LENGTH_BYTES));
    *header_bytes = LENGTH_BYTES + length;
    return spw_safetensors_parse_header(out, (const char *)base + LENGTH_BYTES, (size_t)length,
                                        bytes - *header_bytes, path, err);
}

/* Opens the next shard. `named_by`: the index, for the message if the file is missing. */
static int open_shard(struct spw_tensors *st, const char *folder, const char *name,
                      const char *named_by, struct spw_error *err)
{
    char *path = spw_file_join(folder, name);
    if (!path)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    int rc = spw_tensors_add(st, path, LENGTH_BYTES, read_header, NULL, err);
    if (rc == -ENOENT || rc == -ENOTDIR)
        spw_fail(err, rc, "%s: found no such file, expected a shard that %s names", path, named_by);
    return rc;
}

static int check_index(const struct spw_tensors *st, const struct spw_shard_index *index,
                       const char *index_path, struct spw_error *err)
{
    for (size_t i = 0; i < index->n; i++) {
        const struct spw_shard_entry *entry = &index->entries[i];
        const struct spw_tensor *tensor = spw_tensors_find(st, entry->tensor);
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

static int open_shards(struct spw_tensors **out, const char *folder,
                       const struct spw_shard_index *index, const char *index_path,
                       struct spw_error *err)
{
    *out = spw_tensors_new(index->n_files);
    if (!*out)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    for (size_t i = 0; i < index->n_files; i++)
        SPW_TRY(open_shard(*out, folder, index->files[i], index_path, err));
    SPW_TRY(spw_tensors_merge(*out, folder, err));
    return check_index(*out, index, index_path, err);
}

static int open_sharded(struct spw_tensors **out, const char *folder, const char *index_path,
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
        rc = open_shards(out, folder, &index, index_path, err);
    spw_safetensors_free_index(&index);
    return rc;
}

static int open_single(struct spw_tensors **out, const char *folder, struct spw_error *err)
{
    *out = spw_tensors_new(1);
    if (!*out)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    SPW_TRY(open_shard(*out, folder, "model.safetensors", folder, err));
    return spw_tensors_merge(*out, folder, err);
}

/* Opens model.safetensors if there is one, like transformers; else the index. */
static int open_folder(struct spw_tensors **out, const char *folder, struct spw_error *err)
{
    char *single = spw_file_join(folder, "model.safetensors");
    char *index_path = spw_file_join(folder, "model.safetensors.index.json");
    int rc;
    if (!single || !index_path)
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    else if (access(single, F_OK) < 0)
        rc = open_sharded(out, folder, index_path, err);
    else
        rc = open_single(out, folder, err);
    spw_free(single);
    spw_free(index_path);
    return rc;
}

int spw_safetensors_open(struct spw_tensors **out, const char *folder, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    int rc = open_folder(out, folder, err);
    if (rc) {
        spw_tensors_close(*out);
        *out = NULL;
        spw_json_tidy(err);
    }
    return rc;
}
