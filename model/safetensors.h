/* The weights of one folder, memory-mapped: model.safetensors, or the shards that
 * model.safetensors.index.json names. Every offset, shape and name is checked at open; the data is
 * not touched until somebody reads it.
 *
 * The handle owns the mappings and all tensors; pointers into them live until close. Once open, it
 * is read-only and safe from any thread. A file that is cut short while it is mapped reads as zeros
 * from there on (file_map.h); spw_safetensors_check finds that, and a file that was written to.
 * Errors: -ENOENT, -EINVAL (the text names file, tensor, what was found and expected), -ENOMEM. */
#ifndef SPW_MODEL_SAFETENSORS_H
#define SPW_MODEL_SAFETENSORS_H

#include "quant/types.h"

#define SPW_TENSOR_MAX_DIMS 8

struct spw_tensor {
    const char *name;                    /* as in the file, e.g. "model.norm.weight" */
    enum spw_dtype dtype;                /* AUTO: a type that spillway does not compute with */
    char dtype_name[16];                 /* as in the file: "BF16", "I64" */
    uint32_t n_dims;                     /* 0: a scalar */
    uint64_t shape[SPW_TENSOR_MAX_DIMS]; /* row-major, slowest first */
    uint64_t offset;                     /* of the data, from the end of the header */
    uint64_t bytes;
    const void *data;     /* borrowed, in the mapping; may be unaligned: old writers did not pad */
    const char *file;     /* the path */
    uint32_t file_index;  /* of that file in the folder */
    uint64_t file_offset; /* of the data in it, from its first byte */
};

/* What one header lists, sorted by name. Nothing says yet which file that is. */
struct spw_tensor_table {
    struct spw_tensor *tensors; /* owned */
    size_t n;
    char *names; /* owned */
};

struct spw_safetensors;

int spw_safetensors_open(struct spw_safetensors **out, const char *folder, struct spw_error *err);
void spw_safetensors_close(struct spw_safetensors *st);

/* NULL when there is no tensor of that name. */
const struct spw_tensor *spw_safetensors_find(const struct spw_safetensors *st, const char *name);
size_t spw_safetensors_count(const struct spw_safetensors *st);
/* The i-th in order of names. */
const struct spw_tensor *spw_safetensors_at(const struct spw_safetensors *st, size_t i);
/* The sum of all tensors' bytes. */
uint64_t spw_safetensors_total_bytes(const struct spw_safetensors *st);
/* The files, by file_index: how many, and the path of each. */
uint32_t spw_safetensors_n_files(const struct spw_safetensors *st);
const char *spw_safetensors_path(const struct spw_safetensors *st, uint32_t file_index);
/* Whether a reader has met a page that its file no longer has: cheap, for each row of logits. */
bool spw_safetensors_damaged(const struct spw_safetensors *st);
/* 0, or -EIO with a text when a file was cut short or written to since open: what was computed
 * since the last check may be wrong. */
int spw_safetensors_check(const struct spw_safetensors *st, struct spw_error *err);
struct spw_safetensors_extent {
    const void *header; /* borrowed, in the mapping: 8 bytes of length and the JSON */
    uint64_t header_bytes, file_bytes;
};
struct spw_safetensors_extent spw_safetensors_extent(const struct spw_safetensors *st,
                                                     uint32_t file_index);
/* Tells the system that the pages of these bytes of a mapped file are not needed for now, so that
 * the process's resident size does not grow with what was read. The data stays valid: it is read
 * again when touched. */
void spw_safetensors_release(const void *data, uint64_t bytes);
/* Reads the pages in and has them entered in the page table, before many threads wait for that. */
void spw_safetensors_populate(const void *data, uint64_t bytes);

/* The JSON of one header (after its 8 bytes of length), for a file that has `data_bytes` bytes
 * after it. `file` is for messages. */
int spw_safetensors_parse_header(struct spw_tensor_table *out, const char *header,
                                 size_t header_bytes, uint64_t data_bytes, const char *file,
                                 struct spw_error *err);
void spw_safetensors_free_table(struct spw_tensor_table *table);

/* The shard files that an index names, each once, sorted; and which tensor lies in which. */
struct spw_shard_index {
    struct spw_shard_entry {
        const char *tensor; /* borrowed, as `file`, from `names` */
        const char *file;   /* a plain file name of the folder */
    } * entries;            /* owned, sorted by tensor */
    size_t n;
    const char **files; /* owned */
    size_t n_files;
    char *names; /* owned */
};

int spw_safetensors_parse_index(struct spw_shard_index *out, const char *text, size_t bytes,
                                const char *file, struct spw_error *err);
void spw_safetensors_free_index(struct spw_shard_index *index);

#endif
