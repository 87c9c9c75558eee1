/* A model as its files give it, whatever their format: what it is, its tensors, its tokenizer, its
 * chat template. A format is one table of operations (source_*.c); spw_source_open takes the one
 * that knows what lies at a path.
 *
 * Opening reads nothing: every part is read when it is asked for, and a part that is missing or
 * wrong fails that call only. What a call gives belongs to the caller and outlives the source.
 * Errors name file, key or tensor. Any thread. */
#ifndef SPW_MODEL_SOURCE_SOURCE_H
#define SPW_MODEL_SOURCE_SOURCE_H

#include "model/config.h"
#include "model/source/tensors.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_source;

/* Parts as they are written, for whoever must tell one model from another. */
enum spw_source_part {
    SPW_SOURCE_CONFIG, /* no bytes in a format where headers (spw_tensors_extent) have it */
    SPW_SOURCE_TOKENIZER,
};

struct spw_source_ops {
    /* As spw_config_parse. -ENOENT, -ENOTDIR: there is no model. */
    int (*config)(const struct spw_source *s, struct spw_model_config *out, struct spw_error *err);
    /* Names are those of Hugging Face. */
    int (*tensors)(const struct spw_source *s, struct spw_tensors **out, struct spw_error *err);
    /* -ENOENT: the model has none. */
    int (*tokenizer)(const struct spw_source *s, struct spw_tokenizer **out, struct spw_error *err);
    /* `name` as for spw_chat_template_open. -ENOENT: the model has none of that name. */
    int (*chat_template)(const struct spw_source *s, const char *name,
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
#ifdef __cplusplus
}
#endif

#endif
