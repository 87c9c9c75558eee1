/* The container of a GGUF file, versions 2 and 3, little-endian: keys with values, and where each
 * tensor lies.
 *
 *   "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensors | padding | data
 *   key:    string | u32 type | value         string: u64 length | bytes
 *   array:  u32 type of elements | u64 count | elements
 *   tensor: string name | u32 dims | u64 sizes, fastest first | u32 type | u64 offset in the data
 *
 * Every count is compared with the bytes that are left before memory is taken for it, so a file
 * costs at most a small multiple of its own header. A parsed header borrows the mapped file. Any
 * thread. Errors: -EINVAL (the text names file, key or tensor, what was found and expected),
 * -ENOMEM, and those of file_map.h. */
#ifndef SPW_MODEL_SOURCE_GGUF_H
#define SPW_MODEL_SOURCE_GGUF_H

#include "model/source/file_map.h"
#include "model/source/tensors_read.h"

#include <jansson.h>

enum spw_gguf_type {
    SPW_GGUF_U8,
    SPW_GGUF_I8,
    SPW_GGUF_U16,
    SPW_GGUF_I16,
    SPW_GGUF_U32,
    SPW_GGUF_I32,
    SPW_GGUF_F32,
    SPW_GGUF_BOOL,
    SPW_GGUF_STRING,
    SPW_GGUF_ARRAY,
    SPW_GGUF_U64,
    SPW_GGUF_I64,
    SPW_GGUF_F64,
    SPW_GGUF_TYPES,
};

/* Bytes of a number or a truth value. */
unsigned spw_gguf_value_bytes(enum spw_gguf_type type);

enum {
    SPW_GGUF_LEAST_BYTES = 24,    /* of a file */
    SPW_GGUF_ALIGNMENT = 32,      /* of tensors, unless general.alignment says otherwise */
    SPW_GGUF_MOST_NAME = 64,      /* bytes of a tensor's name */
    SPW_GGUF_MOST_ELEMENTS = 4096 /* of an array that spw_gguf_object reads */
};

struct spw_gguf_string {
    const char *at; /* borrowed; no NUL at its end */
    uint64_t bytes;
};

struct spw_gguf_value {
    struct spw_gguf_string key;
    enum spw_gguf_type type; /* of an array: of its elements */
    bool array;
    uint64_t n; /* elements; 1 if it is no array */
    const uint8_t *at;
    uint64_t bytes; /* of all elements */
};

struct spw_gguf {
    struct spw_gguf_value *values; /* owned, sorted by key */
    size_t n_values;
    struct spw_tensor_table tensors; /* owned, sorted by name; names are those of the file */
    uint64_t header_bytes;           /* the data begins here */
};

/* A tensor type of the format. Types that spillway does not read have dtype AUTO. */
struct spw_gguf_tensor_type {
    uint32_t id;
    const char *name;
    uint32_t elements, bytes; /* of a block */
    enum spw_dtype dtype;
};
/* NULL: no type has this id. */
const struct spw_gguf_tensor_type *spw_gguf_tensor_type(uint32_t id);
/* NULL: the format does not have the type. */
const struct spw_gguf_tensor_type *spw_gguf_tensor_type_of(enum spw_dtype dtype);

/* Parses the header of a whole file. `path` is for messages. */
int spw_gguf_parse(struct spw_gguf *out, const uint8_t *base, uint64_t bytes, const char *path,
                   struct spw_error *err);
void spw_gguf_free(struct spw_gguf *g);

/* NULL: there is no such key. */
const struct spw_gguf_value *spw_gguf_find(const struct spw_gguf *g, const char *key);
/* Element i of an array of numbers. */
double spw_gguf_number(const struct spw_gguf_value *v, uint64_t i);
/* The string at *at, which moves past it. False: [*at, end) does not begin with a whole string. */
bool spw_gguf_next_string(const uint8_t **at, const uint8_t *end, struct spw_gguf_string *out);

/* All keys that begin with `prefix`, without it, as a JSON object: numbers, truth values, strings,
 * and arrays of up to SPW_GGUF_MOST_ELEMENTS numbers. An array whose elements are all the same
 * number is that number: some writers give a value for each layer. What JSON cannot hold is a
 * string that describes the value. *out is owned: json_decref. -ENOMEM. */
int spw_gguf_object(const struct spw_gguf *g, const char *prefix, json_t **out);

/* A mapped file and its header. */
struct spw_gguf_file {
    struct spw_file_map map;
    struct spw_gguf gguf;
};
int spw_gguf_open(struct spw_gguf_file *f, const char *path, struct spw_error *err);
/* Returns rc, or if rc is 0 the error of spw_file_map_check. Accepts a file that is zero. */
int spw_gguf_close(struct spw_gguf_file *f, const char *path, int rc, struct spw_error *err);

#endif
