/* A conversation: a JSON list of messages as chat templates take them, {"role": ..., "content":
 * ...} and what else a file has in them. Functions return 0 or an exit code, after one line on
 * stderr. What fails changes nothing. */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_HISTORY_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_HISTORY_H

#include "tools/command/input/input.h"

/* A new reference; "-" reads stdin. Every message must be an object with a role, and the first line
 * that is not so is named. */
int cli_history_read(json_t **messages, const char *path);
int cli_history_write(json_t *messages, const char *path);

/* -> "user" and the like; "" for an empty conversation */
const char *cli_history_last_role(const json_t *messages);
int cli_history_add(json_t *messages, const char *role, const char *text, size_t bytes);
/* Takes messages off the end until `n` are left. */
void cli_history_cut(json_t *messages, size_t n);
/* How many messages stand before the last one of the user; SIZE_MAX when there is none. */
size_t cli_history_before_question(const json_t *messages);
/* How many are left without the answer at the end. */
size_t cli_history_before_answer(const json_t *messages);
/* The system message is the first one; an empty text takes it away. */
int cli_history_set_system(json_t *messages, const char *text);
bool cli_history_has_system(const json_t *messages);

#endif
