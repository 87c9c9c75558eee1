/* Writes a GGUF file, version 3: keys and tensors are added first, then the header is written to a
 * stream, and then the data of each tensor, in the order in which the tensors were added. Memory is
 * that of the header.
 *
 * Adding never fails: the first error (out of memory, or a type that the format does not have) is
 * kept, and spw_gguf_write_header returns it. The stream belongs to the caller, who also gives the
 * file its name when it is complete. */
#ifndef SPW_MODEL_SOURCE_GGUF_WRITE_H
#define SPW_MODEL_SOURCE_GGUF_WRITE_H

#include "model/source/gguf.h"

#include <stdio.h>

struct spw_gguf_bytes {
    uint8_t *at; /* owned */
    size_t n, capacity;
};

struct spw_gguf_writer {
    struct spw_gguf_bytes keys, tensors;
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes; /* of the tensors so far, with padding */
    int rc;
};

/* What a file that is written cannot say of the model it was made from, as sentences. Constants. */
struct spw_gguf_notes {
    const char *at[8];
    uint32_t n;
};
void spw_gguf_note(struct spw_gguf_notes *notes, const char *text);

/* A writer that is zero is ready. */
void spw_gguf_writer_free(struct spw_gguf_writer *w);

/* A value, or with `array` n values, of any type but strings; `values` as they are in memory. */
void spw_gguf_add(struct spw_gguf_writer *w, const char *key, enum spw_gguf_type type, bool array,
                  const void *values, uint64_t n);
void spw_gguf_add_u32(struct spw_gguf_writer *w, const char *key, uint32_t value);
void spw_gguf_add_f32(struct spw_gguf_writer *w, const char *key, float value);
void spw_gguf_add_bool(struct spw_gguf_writer *w, const char *key, bool value);
void spw_gguf_add_string(struct spw_gguf_writer *w, const char *key, const char *value);
void spw_gguf_add_strings(struct spw_gguf_writer *w, const char *key,
                          const struct spw_gguf_string *values, uint64_t n);
/* shape: slowest first, as in struct spw_tensor. */
void spw_gguf_add_tensor(struct spw_gguf_writer *w, const char *name, enum spw_dtype type,
                         uint32_t n_dims, const uint64_t *shape);

/* 0, -ENOMEM, -EINVAL (a type), or the stream's error. */
int spw_gguf_write_header(const struct spw_gguf_writer *w, FILE *out);
/* Call it after the data of a tensor, of so many bytes: writes the padding behind them. */
int spw_gguf_write_padding(FILE *out, uint64_t bytes);

#endif
