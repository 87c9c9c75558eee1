/* The tensors of a model, in mapped files. The reader of a format makes this table
 * (tensors_read.h); users of the table need not know the format. Opening does not touch the data.
 *
 * The table owns the mappings and all tensors; pointers into them are valid until close. After open
 * the table is read-only and safe from any thread. If a file is cut short while it is mapped, the
 * lost pages read as zeros (file_map.h). spw_tensors_check finds this, and also files that were
 * written to. */
#ifndef SPW_MODEL_SOURCE_TENSORS_H
#define SPW_MODEL_SOURCE_TENSORS_H

#include "base/base.h"
#include "base/dtype.h"

#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define SPW_TENSOR_MAX_DIMS 8
#define SPW_MOST_OWN_NAME 192

struct spw_tensor {
    const char *name;                    /* e.g. "model.norm.weight" */
    const char *own_name;                /* in its file, for messages: "output_norm.weight" */
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
/* The name that a tensor of this name would have in these files, for messages. */
void spw_tensors_own_name(const struct spw_tensors *t, const char *name,
                          char out[SPW_MOST_OWN_NAME]);
size_t spw_tensors_count(const struct spw_tensors *t);
/* The i-th tensor in the order of names. */
const struct spw_tensor *spw_tensors_at(const struct spw_tensors *t, size_t i);
/* The sum of all tensors' bytes. */
uint64_t spw_tensors_total_bytes(const struct spw_tensors *t);
/* The files, by file_index: how many, and the path of each. Those of the model come first; the MTP
 * layer may have one after them, on which no answer depends. */
uint32_t spw_tensors_n_files(const struct spw_tensors *t);
uint32_t spw_tensors_n_model_files(const struct spw_tensors *t);
const char *spw_tensors_path(const struct spw_tensors *t, uint32_t file_index);
/* Whether a reader has touched a page that its file no longer has. Cheap enough for each row of
 * logits. */
bool spw_tensors_damaged(const struct spw_tensors *t);
/* 0, or -EIO with a text if a file was cut short or written to since open: results since the last
 * check may be wrong. */
int spw_tensors_check(const struct spw_tensors *t, struct spw_error *err);
struct spw_tensors_extent {
    const void *header; /* borrowed, in the mapping: all bytes before the data */
    uint64_t header_bytes, file_bytes;
    struct timespec written; /* when the file was last written */
};
struct spw_tensors_extent spw_tensors_extent(const struct spw_tensors *t, uint32_t file_index);
/* Advises the system that the pages of these bytes of a mapped file are not needed now, so the
 * resident size of the process does not grow with every read. The data stays valid: the system
 * reads it again when it is touched. */
void spw_tensors_release(const void *data, uint64_t bytes);
/* Reads the pages in and enters them in the page table, before many threads would wait for each of
 * them. */
void spw_tensors_populate(const void *data, uint64_t bytes);
/* Copies bytes of a mapped file. Meanwhile the system reads what follows them, which is probably
 * copied next. */
void spw_tensors_copy(void *to, const void *data, uint64_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
