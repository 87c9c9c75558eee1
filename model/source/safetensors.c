/* One folder of safetensors files, mapped: see safetensors.h; the JSON is read in
 * safetensors_header.c. */
#include "model/source/safetensors.h"

#include "model/config/config_json.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The limit of the reference implementation: a header is text, so a larger one is an attack. */
#define MAX_HEADER_BYTES 100000000u
#define LENGTH_BYTES 8u

static int read_header(struct spw_tensor_table *out, uint64_t *header_bytes, const uint8_t *base,
                       uint64_t bytes, const char *path, void *context, struct spw_error *err)
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

static int check_index(const struct spw_tensors *st, json_t *map, const char *index_path,
                       struct spw_error *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(map, name, file)
    {
        const struct spw_tensor *tensor = spw_tensors_find(st, name);
        const char *slash = tensor ? strrchr(tensor->file, '/') : NULL;
        if (!tensor || strcmp(slash + 1, json_string_value(file)) != 0)
            return spw_fail(err, -EINVAL,
                            "%s: weight_map.%.160s: found %s, but the tensor is %s%s; expected the "
                            "file that holds it",
                            index_path, name, json_string_value(file),
                            tensor ? "in " : "in no shard", tensor ? slash + 1 : "");
    }
    return 0;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each of n files is opened once, in the order of their names. map NULL: there is no index. */
static int open_shards(struct spw_tensors **out, const char *folder, json_t *map,
                       const char **files, size_t n, const char *index_path, struct spw_error *err)
{
    size_t n_files = 0;
    qsort(files, n, sizeof *files, compare_files);
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(files[i], files[n_files - 1]) != 0)
            files[n_files++] = files[i];
    *out = spw_tensors_new();
    if (!*out)
        return spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    for (size_t i = 0; i < n_files; i++)
        SPW_TRY(open_shard(*out, folder, files[i], index_path, err));
    SPW_TRY(spw_tensors_merge(*out, folder, err));
    return check_index(*out, map, index_path, err);
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
    json_t *map;
    rc = spw_safetensors_parse_index(&map, text, bytes, index_path, err);
    spw_free(text);
    SPW_TRY(rc);
    const char **files = spw_alloc(json_object_size(map) * sizeof *files), *name;
    size_t n = 0;
    json_t *file;
    json_object_foreach(map, name, file) if (files) files[n++] = json_string_value(file);
    rc = files ? open_shards(out, folder, map, files, n, index_path, err)
               : spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    spw_free(files);
    json_decref(map);
    return rc;
}

/* Opens model.safetensors if there is one, like transformers; else the index. */
static int open_folder(struct spw_tensors **out, const char *folder, struct spw_error *err)
{
    const char *only = "model.safetensors";
    char *single = spw_file_join(folder, only);
    char *index_path = spw_file_join(folder, "model.safetensors.index.json");
    int rc;
    if (!single || !index_path)
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    else if (access(single, F_OK) < 0)
        rc = open_sharded(out, folder, index_path, err);
    else
        rc = open_shards(out, folder, NULL, &only, 1, folder, err);
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
