/* The chat template of a model folder, and conversations rendered by it as Hugging Face does.
 *
 * The template is `chat_template.jinja`, else `chat_template` of tokenizer_config.json (a text, or
 * a list of named ones), else that of chat_template.json; named ones also lie in
 * additional_chat_templates/NAME.jinja. bos_token and the like are those of tokenizer_config.json,
 * or of special_tokens_map.json (see special_tokens.h). An opened template owns all it needs and
 * never changes, so any number of threads may use one. Errors: -ENOENT the folder has no such
 * template; -EINVAL a template or an input that is wrong; -E2BIG a limit
 * (model/text/jinja/jinja.h). Texts name file, line, reason. What is returned through `**` belongs
 * to the caller (spw_free). */
#ifndef SPW_MODEL_TEXT_CHAT_TEMPLATE_H
#define SPW_MODEL_TEXT_CHAT_TEMPLATE_H

#include "base/base.h"

#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_chat_template;

/* All JSON is text of `*_bytes` bytes; NULL: none. Zero is the default everywhere. */
struct spw_chat_request {
    const char *messages_json; /* [{"role": ..., "content": ...}, ...]; must be given */
    size_t messages_bytes;
    const char *tools_json; /* a list of function descriptions */
    size_t tools_bytes;
    const char *documents_json; /* a list of {"title": ..., "text": ...} */
    size_t documents_bytes;
    const char *extra_json; /* an object: more variables, e.g. {"enable_thinking": false} */
    size_t extra_bytes;
    bool add_generation_prompt;
    bool continue_final_message; /* the text ends where the last message's content does */
    const struct tm *now;        /* what strftime_now tells; NULL: a template that asks fails */
};

/* `name` NULL: the default one, or "tool_use" for a request with tools where there is one. */
int spw_chat_template_open(struct spw_chat_template **out, const char *model_dir, const char *name,
                           struct spw_error *err);
/* The template in `file`, with the special tokens of the model. */
int spw_chat_template_open_file(struct spw_chat_template **out, const char *model_dir,
                                const char *file, struct spw_error *err);
void spw_chat_template_close(struct spw_chat_template *t);
/* Where it comes from: a file, or the key in one. Of the folder, where it is the folder's own. */
const char *spw_chat_template_name(const struct spw_chat_template *t);

/* Whether `words` stand in the text of the template, or of the one for tools. */
bool spw_chat_template_has(const struct spw_chat_template *t, const char *words);

/* The text ends in a NUL that *bytes leaves out. It holds its special tokens (bos too) as text: it
 * is encoded without adding any. */
int spw_chat_template_render(const struct spw_chat_template *t,
                             const struct spw_chat_request *request, char **text, size_t *bytes,
                             struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
