/* The chat template in the keys of a GGUF file. Inside model/ only. */
#ifndef SPW_MODEL_SOURCE_GGUF_CHAT_H
#define SPW_MODEL_SOURCE_GGUF_CHAT_H

#include "model/source/gguf.h"
#include "model/text/chat_template.h"

/* `name` as for spw_chat_template_open. */
int spw_gguf_read_chat_template(struct spw_chat_template **out, const struct spw_gguf *g,
                                const char *path, const char *name, struct spw_error *err);
/* The template in `file`, with the special tokens of the model. */
int spw_gguf_read_chat_template_file(struct spw_chat_template **out, const struct spw_gguf *g,
                                     const char *path, const char *file, struct spw_error *err);

#endif
