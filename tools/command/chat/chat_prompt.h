/* A conversation as tokens, so that what was computed for earlier turns is found again.
 *
 * Each turn the whole conversation is rendered by the model's chat template and encoded. Text that
 * a model wrote is often encoded into other tokens than the ones it was written with; for a reply
 * that stands in the new text as it stood before, the tokens it was generated with are taken. So
 * tokens only change where text does: a template that leaves out earlier reasoning, an /undo.
 * Functions return 0 or an exit code, after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_PROMPT_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_PROMPT_H

#include "tools/command/input/input.h"

struct cli_prompt;

/* Opens the template of the model folder o->operand, and --tools and --documents; `model` is
 * borrowed. */
int cli_prompt_open(struct cli_prompt **out, const struct cli_options *o,
                    const struct cli_model *model);
void cli_prompt_close(struct cli_prompt *p);

/* The conversation up to where the model is to speak; valid until the next call. After a failure
 * the tokens are those of before. */
int cli_prompt_render(struct cli_prompt *p, const json_t *messages, const int32_t **tokens,
                      size_t *n);
/* What it said: `reply` of the tokens in `r`, generated after the rendered ones. 0 or -ENOMEM. */
int cli_prompt_keep(struct cli_prompt *p, const struct spw_result *r, const char *reply,
                    size_t bytes);

#endif
