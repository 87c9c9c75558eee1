/* A chat template from texts in memory, for formats that are no folder. Inside model/ only. */
#ifndef SPW_MODEL_TEXT_CHAT_TEMPLATE_PARTS_H
#define SPW_MODEL_TEXT_CHAT_TEMPLATE_PARTS_H

#include "model/text/chat_template.h"

#include <jansson.h>

struct spw_chat_template_text {
    const char *name;               /* for messages */
    const char *plain, *with_tools; /* NULL: none */
    size_t plain_bytes, with_tools_bytes;
    json_t *tokens; /* bos_token and the like, as texts; the call takes the reference */
};

int spw_chat_template_parse(struct spw_chat_template **out,
                            const struct spw_chat_template_text *text, struct spw_error *err);
/* The template in `file`; takes the reference to `tokens`. */
int spw_chat_template_read(struct spw_chat_template **out, const char *file, json_t *tokens,
                           struct spw_error *err);
/* The text of a template of a folder, as chat_template.h finds it; owned by the caller (spw_free),
 * NULL if there is none. */
int spw_chat_template_text(const char *model_dir, const char *name, char **text,
                           struct spw_error *err);

#endif
