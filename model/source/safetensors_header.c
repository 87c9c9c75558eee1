/* The two JSON texts of the safetensors format: the header of a file and the index of a sharded
 * folder. See safetensors.h, and huggingface/safetensors, README.md, "Format".
 *
 *   file: | u64 n, little-endian | n bytes of JSON, space-padded | data |
 *   JSON: {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *          "__metadata__": {"key": "text"}}
 *
 * The last tensor must end at the end of the file, as the format says: a wrong length of the header
 * would shift all tensors, and nothing else would show it. This reader accepts bytes between
 * tensors, which the format forbids: some writers align each tensor, and such gaps do no harm. It
 * refuses tensors that overlap: with two names for the same bytes a crafted file can make a loader
 * do more work than the size of the file allows. */
#include "model/config/config_json.h"
#include "model/source/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum spw_dtype dtype;
    uint64_t bits;
} dtypes[] = {
    {"F32", SPW_DTYPE_F32, 32},        {"F16", SPW_DTYPE_F16, 16},
    {"BF16", SPW_DTYPE_BF16, 16},      {"F64", SPW_DTYPE_F64, 64},
    {"F8_E4M3", SPW_DTYPE_F8_E4M3, 8}, {"F8_E5M2", SPW_DTYPE_F8_E5M2, 8},
    {"I64", SPW_DTYPE_AUTO, 64},       {"U64", SPW_DTYPE_AUTO, 64},
    {"C64", SPW_DTYPE_AUTO, 64},       {"I32", SPW_DTYPE_AUTO, 32},
    {"U32", SPW_DTYPE_AUTO, 32},       {"I16", SPW_DTYPE_AUTO, 16},
    {"U16", SPW_DTYPE_AUTO, 16},       {"I8", SPW_DTYPE_AUTO, 8},
    {"U8", SPW_DTYPE_AUTO, 8},         {"BOOL", SPW_DTYPE_AUTO, 8},
    {"F8_E8M0", SPW_DTYPE_AUTO, 8},    {"F6_E2M3", SPW_DTYPE_AUTO, 6},
    {"F6_E3M2", SPW_DTYPE_AUTO, 6},    {"F4", SPW_DTYPE_AUTO, 4},
};

/* One entry of the header being read. */
struct entry {
    struct spw_keys keys; /* prefix: "tensor NAME: " */
    struct spw_tensor *tensor;
    uint64_t data_bytes;
};

static int read_dtype(const struct entry *entry, uint64_t *bits)
{
    const char *name = NULL;
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &entry->keys, "dtype", &name));
    for (size_t i = 0; name && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (!strcmp(name, dtypes[i].name)) {
            entry->tensor->dtype = dtypes[i].dtype;
            *bits = dtypes[i].bits;
            snprintf(entry->tensor->dtype_name, sizeof entry->tensor->dtype_name, "%s", name);
            return 0;
        }
    }
    return spw_keys_refuse(&entry->keys, "dtype", "a safetensors type such as F32, F16 or BF16");
}

static int read_shape(const struct entry *entry, uint64_t *elements)
{
    const json_t *list = json_object_get(entry->keys.object, "shape");
    struct spw_tensor *tensor = entry->tensor;
    if (!json_is_array(list) || json_array_size(list) > SPW_TENSOR_MAX_DIMS)
        return spw_keys_refuse(&entry->keys, "shape", "a list of at most 8 sizes");
    tensor->n_dims = (uint32_t)json_array_size(list);
    *elements = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t size = json_integer_value(item);
        if (!json_is_integer(item) || size < 0)
            return spw_keys_refuse(&entry->keys, "shape", "sizes that are integers, 0 or more");
        tensor->shape[i] = (uint64_t)size;
        if (!spw_mul_u64(*elements, (uint64_t)size, elements))
            return spw_keys_refuse(&entry->keys, "shape", "fewer than 2^64 elements");
    }
    return 0;
}

static int read_offsets(const struct entry *entry, uint64_t elements, uint64_t bits)
{
    const struct spw_keys *keys = &entry->keys;
    const json_t *list = json_object_get(keys->object, "data_offsets");
    const json_t *begin = json_array_get(list, 0), *end = json_array_get(list, 1);
    if (json_array_size(list) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return spw_keys_refuse(keys, "data_offsets", "two integers, begin and end");
    struct spw_tensor *tensor = entry->tensor;
    tensor->offset = (uint64_t)json_integer_value(begin);
    tensor->bytes = (uint64_t)json_integer_value(end) - tensor->offset;
    if (tensor->offset + tensor->bytes > entry->data_bytes)
        return spw_fail(keys->err, -EINVAL,
                        "%s: %sdata_offsets: found an end at %" PRIu64 ", expected at most %" PRIu64
                        ", the bytes after the header; the file is cut short",
                        keys->file, keys->prefix, tensor->offset + tensor->bytes,
                        entry->data_bytes);
    uint64_t total_bits;
    if (!spw_mul_u64(elements, bits, &total_bits) || total_bits % 8 ||
        total_bits / 8 != tensor->bytes)
        return spw_fail(keys->err, -EINVAL,
                        "%s: %sdata_offsets: found %" PRIu64 " bytes, expected %" PRIu64
                        " elements of %" PRIu64 " bits (shape and dtype)",
                        keys->file, keys->prefix, tensor->bytes, elements, bits);
    return 0;
}

static int read_entry(const struct entry *entry)
{
    uint64_t bits = 0, elements = 0;
    SPW_TRY(read_dtype(entry, &bits));
    SPW_TRY(read_shape(entry, &elements));
    return read_offsets(entry, elements, bits);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct spw_tensor *x = *(const struct spw_tensor *const *)a;
    const struct spw_tensor *y = *(const struct spw_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors come first */
}

/* Tensors do not overlap, and the last one ends with the data. */
static int check_places(const struct spw_tensor_table *table, uint64_t data_bytes, const char *file,
                        struct spw_error *err)
{
    const struct spw_tensor **order = spw_alloc_zero(table->n, sizeof *order);
    if (!order)
        return spw_fail(err, -ENOMEM, "%s: out of memory", file);
    for (size_t i = 0; i < table->n; i++)
        order[i] = &table->tensors[i];
    qsort(order, table->n, sizeof *order, compare_offsets);
    int rc = 0;
    for (size_t i = 1; !rc && i < table->n; i++) {
        uint64_t end = order[i - 1]->offset + order[i - 1]->bytes;
        if (order[i]->offset < end)
            rc = spw_fail(err, -EINVAL,
                          "%s: tensor %.100s: data_offsets: found a begin at %" PRIu64
                          ", expected at least %" PRIu64 ", the end of tensor %.100s",
                          file, order[i]->name, order[i]->offset, end, order[i - 1]->name);
    }
    uint64_t end = table->n ? order[table->n - 1]->offset + order[table->n - 1]->bytes : 0;
    if (!rc && end != data_bytes)
        rc = spw_fail(err, -EINVAL,
                      "%s: found %" PRIu64 " bytes after the header, expected %" PRIu64
                      ", the end of the last tensor; the header's length is wrong, or bytes were "
                      "added to the file",
                      file, data_bytes, end);
    spw_free(order);
    return rc;
}

/* __metadata__ is text for people; no code depends on it. */
static int check_metadata(const json_t *value, const char *file, struct spw_error *err)
{
    char found[64];
    if (json_is_object(value))
        return 0;
    return spw_fail(err, -EINVAL, "%s: __metadata__: found %s, expected an object", file,
                    spw_json_describe(value, found, sizeof found));
}

/* The bytes that all keys of the object take, each with its NUL. */
static size_t names_bytes(json_t *object)
{
    size_t bytes = 0;
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i))
        bytes += strlen(json_object_iter_key(i)) + 1;
    return bytes;
}

static int read_tensors(struct spw_tensor_table *out, json_t *root, uint64_t data_bytes,
                        const char *file, struct spw_error *err)
{
    out->tensors = spw_alloc_zero(json_object_size(root), sizeof *out->tensors);
    out->names = spw_alloc(names_bytes(root));
    if (!out->tensors || !out->names)
        return spw_fail(err, -ENOMEM, "%s: out of memory", file);
    char *cursor = out->names;
    for (void *i = json_object_iter(root); i; i = json_object_iter_next(root, i)) {
        const char *name = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        if (!strcmp(name, "__metadata__")) {
            SPW_TRY(check_metadata(value, file, err));
            continue;
        }
        char prefix[192], found[64];
        snprintf(prefix, sizeof prefix, "tensor %.160s: ", name);
        if (!json_is_object(value))
            return spw_fail(err, -EINVAL, "%s: %sfound %s, expected an object", file, prefix,
                            spw_json_describe(value, found, sizeof found));
        struct entry entry = {.keys = {.file = file, .prefix = prefix, .object = value, .err = err},
                              .tensor = &out->tensors[out->n],
                              .data_bytes = data_bytes};
        SPW_TRY(read_entry(&entry));
        entry.tensor->name = entry.tensor->own_name = strcpy(cursor, name);
        cursor += strlen(name) + 1;
        out->n++;
    }
    qsort(out->tensors, out->n, sizeof *out->tensors, spw_tensor_compare);
    return check_places(out, data_bytes, file, err);
}

int spw_safetensors_parse_header(struct spw_tensor_table *out, const char *header,
                                 size_t header_bytes, uint64_t data_bytes, const char *file,
                                 struct spw_error *err)
{
    spw_error_clear(err);
    json_t *root = NULL;
    *out = (struct spw_tensor_table){0};
    int rc = spw_json_load(header, header_bytes, file, 0, &root, err);
    if (!rc)
        rc = read_tensors(out, root, data_bytes, file, err);
    json_decref(root);
    if (rc) {
        spw_tensor_table_free(out);
        spw_json_tidy(err);
    }
    return rc;
}

/* A shard is a file of the same folder: the index must not name a file outside it. */
static bool plain_file_name(const char *name)
{
    return name && name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static int check_map(json_t *map, const char *file, struct spw_error *err)
{
    const char *tensor;
    json_t *value;
    char found[64];
    if (!json_is_object(map) || !json_object_size(map))
        return spw_fail(err, -EINVAL,
                        "%s: weight_map: found %s, expected an object of tensor: file", file,
                        spw_json_describe(map, found, sizeof found));
    json_object_foreach(map, tensor, value)
    {
        if (!plain_file_name(json_string_value(value)))
            return spw_fail(err, -EINVAL,
                            "%s: weight_map.%.160s: found %s, expected the name of a file in the "
                            "same folder",
                            file, tensor, spw_json_describe(value, found, sizeof found));
    }
    return 0;
}

int spw_safetensors_parse_index(json_t **map, const char *text, size_t bytes, const char *file,
                                struct spw_error *err)
{
    spw_error_clear(err);
    json_t *root = NULL;
    *map = NULL;
    int rc = spw_json_load(text, bytes, file, 0, &root, err);
    if (!rc)
        rc = check_map(json_object_get(root, "weight_map"), file, err);
    if (!rc)
        *map = json_incref(json_object_get(root, "weight_map"));
    json_decref(root);
    if (rc)
        spw_json_tidy(err);
    return rc;
}
