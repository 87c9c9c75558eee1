/* Writes a model folder as a GGUF file with quantized matrices.
 *
 * Matrices get the type that the caller asks for. A matrix whose rows are no whole blocks keeps the
 * type of the folder. Vectors become F32. Memory is that of the header, one matrix of the folder
 * in mapped pages, and a few MiB. Any thread. The caller owns the stream, and gives the file its
 * name after success. */
#ifndef SPW_MODEL_QUANTIZE_H
#define SPW_MODEL_QUANTIZE_H

#include "base/base.h"
#include "base/dtype.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A tensor that was written. */
struct spw_quantized {
    const char *name; /* in the file */
    enum spw_dtype from, to;
    const char *why; /* this type was taken and not the type asked for; NULL: it was taken */
    uint64_t n, bytes;
    /* Of the stored numbers against those of the folder: root mean square, relative to that of the
     * folder's numbers; and the largest one, absolute. */
    double relative_error, largest_error;
};

struct spw_quantize_options {
    enum spw_dtype type; /* SPW_DTYPE_Q8_0, SPW_DTYPE_Q4_0 */
    FILE *to;            /* empty */
    void *context;       /* of the functions, each of which may be NULL */
    void (*on_tensor)(void *context, const struct spw_quantized *t);
    /* A sentence for each thing of the model that the file cannot say. */
    void (*on_note)(void *context, const char *text);
    /* Numbers so far and of the model. False ends the call with -ECANCELED. */
    bool (*on_progress)(void *context, uint64_t done, uint64_t total);
};

/* 0; -ENOENT, -ENOTDIR: no model folder; -EINVAL: a model that is wrong; -ENOTSUP: what GGUF or
 * this function does not have; -ENOMEM; -ECANCELED; or the stream's error. The text names file and
 * tensor, except for an error of the stream. */
int spw_quantize(const char *folder, const struct spw_quantize_options *options,
                 struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
