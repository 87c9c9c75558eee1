/* The messages of a chat, made from a client's conversation in another form. Functions that return
 * int return 0, or -errno with the reason in c->why. */
#ifndef SPW_TOOLS_COMMAND_SERVE_CONVERSATION_H
#define SPW_TOOLS_COMMAND_SERVE_CONVERSATION_H

#include "tools/command/serve/protocol_parts.h"

struct serve_conversation {
    const struct request_reader *r;
    const json_t *tools; /* borrowed: the client's list; NULL: none */
    json_t *out;         /* owned: the messages */
    struct request_refusal *why;
};

/* The text under a key; "" if there is none. */
const char *serve_word(const json_t *object, const char *key);
bool serve_is_type(const json_t *object, const char *type);
/* Adds a text; `between` stands before it, unless it is the first. Only a text adds something. 0 or
 * -ENOMEM. */
int serve_add_text(struct spw_text *to, const char *between, const json_t *text);

/* Takes the reference of `message`. */
int serve_append(struct serve_conversation *c, json_t *message);
/* The last message, if it has this role; else NULL. */
json_t *serve_last_with(const struct serve_conversation *c, const char *role);
/* Adds a message, or continues the one before it that has the same role. */
int serve_add_message(struct serve_conversation *c, const char *role, const struct spw_text *text);
int serve_add_system(struct serve_conversation *c, const struct spw_text *text);
int serve_add_result(struct serve_conversation *c, const char *call_id,
                     const struct spw_text *text);
/* To the assistant's message that is the last one: reasoning, and a call; the reference of
 * `arguments`, a text with JSON or an object, is taken. */
int serve_add_reasoning(struct serve_conversation *c, const struct spw_text *reasoning);
int serve_add_call(struct serve_conversation *c, const char *id, const char *name,
                   json_t *arguments);
/* Gives the messages to the body of *x, folded; frees c->out. `rc`: of the calls before; another
 * value than 0 is returned. With `continues`, an answer continues a last text of the assistant. */
int serve_end_conversation(struct serve_conversation *c, struct request *x, int rc, bool continues);

#endif
