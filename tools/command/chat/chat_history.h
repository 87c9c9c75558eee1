/* A conversation: a JSON list of messages for chat templates, {"role": ..., "content": ...} and any
 * other keys of the file. Functions return 0, or an exit code after one line on stderr. A function
 * that fails changes nothing. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_HISTORY_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_HISTORY_H

#include "model/text/reasoning.h"
#include "tools/command/input/input.h"

/* Reads a conversation; "-" reads stdin. The caller owns *messages. Refuses a message that is not
 * an object with a role, and names the message. */
int cli_history_read(json_t **messages, const char *path);
int cli_history_write(json_t *messages, const char *path);
/* Refuses to replace a file, unless it is empty, or has messages that these begin with, or has
 * those of `kept` (NULL: none). */
int cli_history_check_file(const json_t *messages, const json_t *kept, const char *path);

/* the role of the last message, such as "user"; "" for an empty conversation */
const char *cli_history_last_role(const json_t *messages);
int cli_history_add(json_t *messages, const char *role, const char *text, size_t bytes);
/* Adds an answer; with reasoning, the message also has "reasoning_content". */
int cli_history_add_answer(json_t *messages, const struct spw_text *answer,
                           const struct spw_text *reasoning);
/* Removes messages at the end until `n` are left. */
void cli_history_cut(json_t *messages, size_t n);
/* The number of messages before the last message of the user; SIZE_MAX if the user has none. */
size_t cli_history_before_question(const json_t *messages);
/* The number of messages without the answer at the end. */
size_t cli_history_before_answer(const json_t *messages);
/* Sets the system message, which is the first message. An empty text removes it. */
int cli_history_set_system(json_t *messages, const char *text);
bool cli_history_has_system(const json_t *messages);

#endif
