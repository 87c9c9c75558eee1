/* The messages of a chat, made from a client's conversation in another form. Functions that return
 * int return 0, or -errno with the reason in c->why. */
#ifndef SPW_TOOLS_COMMAND_SERVE_CONVERSATION_H
#define SPW_TOOLS_COMMAND_SERVE_CONVERSATION_H

#include "tools/command/serve/protocol_parts.h"

struct serve_conversation {
    const struct request_reader *r;
    const json_t *tools;  /* borrowed: the client's list; NULL: none */
    json_t *out;          /* owned: the messages */
    struct spw_text text; /* owned: of the next message, which takes it; then it is empty */
    struct request_refusal *why;
};

/* The next message's text grows by a text; `between` stands before it, unless it is the first. Only
 * a text adds something. The message that takes the text says if memory was short. */
void serve_add_text(struct serve_conversation *c, const char *between, const json_t *text);

/* A message; it continues the one before it that has the same role, if `joins`. */
int serve_add_message(struct serve_conversation *c, const char *role, bool joins);
/* Without a text: no message. */
int serve_add_system(struct serve_conversation *c);
int serve_add_result(struct serve_conversation *c, const char *call_id);
/* To the last message, if the assistant's, else to a new one of it: the text as reasoning, and a
 * call; the reference of `arguments`, a text with JSON or an object, is taken. */
int serve_add_reasoning(struct serve_conversation *c);
int serve_add_call(struct serve_conversation *c, const char *id, const char *name,
                   json_t *arguments);
/* Gives the messages to the body of *x, folded; frees c->out and c->text. `rc`: of the calls
 * before; another value than 0 is returned. With `continues`, an answer continues a last text of
 * the assistant. */
int serve_end_conversation(struct serve_conversation *c, struct request *x, int rc, bool continues);

#endif
