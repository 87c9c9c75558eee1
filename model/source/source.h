/* A model in any file format: what it is, its tensors, its tokenizer, its chat template. A format
 * is one table of operations (source_*.c). spw_source_open chooses the format of the files at a
 * path.
 *
 * Opening reads nothing. Each part is read by its own call, and a part that is missing or wrong
 * fails only that call. The caller owns the results, which outlive the source. Errors name file,
 * key or tensor. Any thread. */
#ifndef SPW_MODEL_SOURCE_SOURCE_H
#define SPW_MODEL_SOURCE_SOURCE_H

#include "model/config/config.h"
#include "model/source/tensors.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_source;

/* The raw text of parts, for callers that compare models. */
enum spw_source_part {
    SPW_SOURCE_CONFIG,    /* 0 bytes in a format whose headers (spw_tensors_extent) contain it */
    SPW_SOURCE_TOKENIZER, /* tokenizer.json, or SentencePiece's model and vocab.json; and the files
                             that name more of its tokens */
};

struct spw_source_ops {
    /* Like spw_config_parse. -ENOENT, -ENOTDIR: there is no model. */
    int (*config)(const struct spw_source *s, struct spw_model_config *out, struct spw_error *err);
    /* Names are those of Hugging Face. */
    int (*tensors)(const struct spw_source *s, struct spw_tensors **out, struct spw_error *err);
    /* config->mtp_beside: adds the tensors of the MTP layer to those of the model, and sets
     * config->n_more_layers. -ENODATA: no file has one. -EINVAL: not one of this model. NULL:
     * the format has no such files. */
    int (*add_mtp)(const struct spw_source *s, struct spw_model_config *config,
                   struct spw_tensors *t, struct spw_error *err);
    /* -ENOENT: the model has none. */
    int (*tokenizer)(const struct spw_source *s, struct spw_tokenizer **out, struct spw_error *err);
    /* `name` as for spw_chat_template_open. -ENOENT: the model has none of that name. file: the
     * template in this file instead of the model's own; or NULL. */
    int (*chat_template)(const struct spw_source *s, const char *name, const char *file,
                         struct spw_chat_template **out, struct spw_error *err);
    /* *text is owned by the caller (spw_free). -ENOENT: the model has no such part. */
    int (*text)(const struct spw_source *s, enum spw_source_part part, char **text, size_t *bytes,
                struct spw_error *err);
};

struct spw_source {
    const struct spw_source_ops *ops;
    char *path; /* owned */
};

int spw_source_open(struct spw_source **out, const char *path, struct spw_error *err);
void spw_source_close(struct spw_source *s);

#pragma GCC visibility pop
/* A Hugging Face folder; a GGUF file, or the first of several. */
extern const struct spw_source_ops spw_source_folder, spw_source_gguf;
#ifdef __cplusplus
}
#endif

#endif
