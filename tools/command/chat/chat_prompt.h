/* The tokens of a conversation, chosen for reuse of earlier computation.
 *
 * In each turn the model's chat template renders the whole conversation, and the text is encoded.
 * The encoding of an answer often differs from the tokens that the model generated. If an answer is
 * still unchanged in the new text, its generated tokens are used. So tokens change only where the
 * text changes: after /undo, or where the template leaves out the reasoning of an answer. Functions
 * return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_PROMPT_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_PROMPT_H

#include "model/text/reasoning.h"
#include "tools/command/input/input.h"

#include <time.h>

/* Renders messages. `variables` has tools, documents, where the text ends and the like; `now` is
 * the time that the template gets. 0 or -errno; *text is owned by the caller (spw_free). */
int cli_chat_render(const struct spw_chat_template *t, const json_t *messages, time_t now,
                    const struct spw_chat_request *variables, char **text, size_t *bytes,
                    struct spw_error *err);

struct cli_prompt;

/* Opens the template of the model folder o->operand, and the files of --tools and --documents.
 * Borrows `model`. */
int cli_prompt_open(struct cli_prompt **out, const struct cli_options *o,
                    const struct cli_model *model);
void cli_prompt_close(struct cli_prompt *p);

/* The tokens of the conversation up to the model's answer; valid until the next call. A failure
 * leaves the old tokens. */
int cli_prompt_render(struct cli_prompt *p, const json_t *messages, const int32_t **tokens,
                      size_t *n);
/* How the model's answers mark reasoning; whether the answer to the rendered tokens begins inside
 * reasoning. */
const struct spw_reasoning_form *cli_prompt_form(const struct cli_prompt *p);
bool cli_prompt_is_open(const struct cli_prompt *p);
/* Stores the model's answer: `reply` is the text of the tokens in `r`, which were generated after
 * the rendered tokens. 0 or -ENOMEM. */
int cli_prompt_keep(struct cli_prompt *p, const struct spw_result *r, const char *reply,
                    size_t bytes);

#endif
