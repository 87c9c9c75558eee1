/* The tensors of a model, in files that are mapped. The reader of a format makes such a table
 * (tensors_read.h); whoever uses it need not know the format. The data is not touched until
 * somebody reads it.
 *
 * The table owns the mappings and all tensors; pointers into them live until close. Once open, it
 * is read-only and safe from any thread. A file that is cut short while it is mapped reads as zeros
 * from there on (file_map.h); spw_tensors_check finds that, and a file that was written to. */
#ifndef SPW_MODEL_SOURCE_TENSORS_H
#define SPW_MODEL_SOURCE_TENSORS_H

#include "quant/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define SPW_TENSOR_MAX_DIMS 8

struct spw_tensor {
    const char *name;                    /* e.g. "model.norm.weight" */
    enum spw_dtype dtype;                /* AUTO: a type that spillway does not compute with */
    char dtype_name[16];                 /* as in the file: "BF16", "I64" */
    uint32_t n_dims;                     /* 0: a scalar */
    uint64_t shape[SPW_TENSOR_MAX_DIMS]; /* row-major, slowest first */
    uint64_t offset;                     /* of the data, from the end of the header */
    uint64_t bytes;
    const void *data;     /* borrowed, in the mapping; may be unaligned: old writers did not pad */
    const char *file;     /* the path */
    uint32_t file_index;  /* of that file */
    uint64_t file_offset; /* of the data in it, from its first byte */
};

struct spw_tensors;

void spw_tensors_close(struct spw_tensors *t);

/* NULL when there is no tensor of that name. */
const struct spw_tensor *spw_tensors_find(const struct spw_tensors *t, const char *name);
size_t spw_tensors_count(const struct spw_tensors *t);
/* The i-th in order of names. */
const struct spw_tensor *spw_tensors_at(const struct spw_tensors *t, size_t i);
/* The sum of all tensors' bytes. */
uint64_t spw_tensors_total_bytes(const struct spw_tensors *t);
/* The files, by file_index: how many, and the path of each. */
uint32_t spw_tensors_n_files(const struct spw_tensors *t);
const char *spw_tensors_path(const struct spw_tensors *t, uint32_t file_index);
/* Whether a reader has met a page that its file no longer has: cheap, for each row of logits. */
bool spw_tensors_damaged(const struct spw_tensors *t);
/* 0, or -EIO with a text when a file was cut short or written to since open: what was computed
 * since the last check may be wrong. */
int spw_tensors_check(const struct spw_tensors *t, struct spw_error *err);
struct spw_tensors_extent {
    const void *header; /* borrowed, in the mapping: everything in front of the data */
    uint64_t header_bytes, file_bytes;
};
struct spw_tensors_extent spw_tensors_extent(const struct spw_tensors *t, uint32_t file_index);
/* Tells the system that the pages of these bytes of a mapped file are not needed for now, so that
 * the process's resident size does not grow with what was read. The data stays valid: it is read
 * again when touched. */
void spw_tensors_release(const void *data, uint64_t bytes);
/* Reads the pages in and has them entered in the page table, before many threads wait for that. */
void spw_tensors_populate(const void *data, uint64_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
