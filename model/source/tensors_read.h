/* How the reader of a format makes a table of tensors: spw_tensors_new, spw_tensors_add for each
 * file, spw_tensors_merge. Errors: -EINVAL with a text, -ENOMEM, and those of file.h. */
#ifndef SPW_MODEL_SOURCE_TENSORS_READ_H
#define SPW_MODEL_SOURCE_TENSORS_READ_H

#include "model/source/tensors.h"

/* The tensors of one header, sorted by name. Their file is not set yet. */
struct spw_tensor_table {
    struct spw_tensor *tensors; /* owned */
    size_t n;
    char *names; /* owned */
};

/* For qsort and bsearch: by name. */
int spw_tensor_compare(const void *a, const void *b);
void spw_tensor_table_free(struct spw_tensor_table *table);

/* NULL when out of memory. */
struct spw_tensors *spw_tensors_new(void);
/* Reads the header of a file that is mapped at `base`: fills in the table, and the size of the
 * header, after which the data begins. */
typedef int (*spw_tensors_read)(struct spw_tensor_table *out, uint64_t *header_bytes,
                                const uint8_t *base, uint64_t bytes, const char *path,
                                void *context, struct spw_error *err);
/* Maps one more file, of at least `least` bytes, and reads its header; `context` is for `read`.
 * Errors as in file.h, and those of `read`. Takes ownership of `path` (spw_free), also after a
 * failure. */
int spw_tensors_add(struct spw_tensors *t, char *path, uint64_t least, spw_tensors_read read,
                    void *context, struct spw_error *err);
/* Writes the name in a file of the tensor that users of the table call `name`, and returns true; or
 * returns false: there is none. */
typedef bool (*spw_tensors_name)(const void *context, const char *name,
                                 char out[SPW_MOST_OWN_NAME]);
/* For a format that has other names. */
void spw_tensors_set_names(struct spw_tensors *t, spw_tensors_name own_name, const void *context);
/* Call it after the last file of the model, and again after one beside the model: merges all
 * tensors into one sorted list. -EINVAL: a name occurs twice. */
int spw_tensors_merge(struct spw_tensors *t, const char *model, struct spw_error *err);

#endif
