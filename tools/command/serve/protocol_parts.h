/* What the protocols share: see protocol.c. */
#ifndef SPW_TOOLS_COMMAND_SERVE_PROTOCOL_PARTS_H
#define SPW_TOOLS_COMMAND_SERVE_PROTOCOL_PARTS_H

#include "tools/command/request/record.h"
#include "tools/command/request/record_logprobs.h"
#include "tools/command/serve/protocol.h"

/* The rows of the table. */
extern const struct serve_protocol serve_chat, serve_completions, serve_responses, serve_messages;

/* ---- bytes ---- all take the reference of the value; NULL: out of memory; 0 or -ENOMEM */

/* The value as the whole body of an answer. */
int serve_add_json(struct spw_text *out, json_t *value);
/* An event of a stream; `name` NULL: it has no line "event:". */
int serve_add_event(struct spw_text *out, const char *name, json_t *value);

/* Adds {"spillway": {...}} to an event: how far the prompt is. */
void serve_add_progress(json_t **event, const struct serve_progress *p);
/* "logits_hash" of a usage, if the client wants it. */
void serve_add_hash(json_t **usage, const struct serve_answer *a);
struct request_names serve_names(const struct serve_answer *a);
size_t serve_n_choices(const struct serve_answer *a);

/* The error of chat, completions and responses. */
json_t *serve_openai_error(const struct request_refusal *why);
int serve_write_openai_error(const struct request_refusal *why, const char *id,
                             struct spw_text *out);

/* ---- bodies ---- */

/* struct serve_protocol.read of /v1/responses and /v1/messages. */
int serve_read_responses(struct request *x, struct serve_wish *wish, json_t *body,
                         struct request_reader *r, struct request_refusal *why);
int serve_read_messages(struct request *x, struct serve_wish *wish, json_t *body,
                        struct request_reader *r, struct request_refusal *why);

/* The text under a key; "" if there is none. */
const char *serve_word(const json_t *object, const char *key);
bool serve_is_type(const json_t *object, const char *type);
/* {"type": TYPE, TYPE: value}; takes the reference of `value`. NULL: out of memory. */
json_t *serve_typed(const char *type, json_t *value);

/* "stream" and "logits_hash" of a body, which then are not in it any more. */
int serve_read_wish(struct serve_wish *wish, json_t *body, struct request_refusal *why);
/* Makes `body` (its reference is taken) the body of *x, whose line also has `echo` (taken; NULL:
 * nothing): what the answer repeats. Draws a seed if nobody gives one. */
int serve_set_body(struct request *x, enum request_form form, json_t *body, json_t *echo,
                   const struct request_reader *r, struct request_refusal *why);
/* Sets what the template wants for "none", "minimal", "low", ... "max"; NULL: nothing. */
int serve_set_effort(json_t *body, const char *effort, const struct request_reader *r);
/* enable_thinking and thinking of chat_template_kwargs, unless the body has them. 0 or -ENOMEM. */
int serve_set_thinking(json_t *body, bool thinks);
/* All 0 or -ENOMEM. Adds "name": value to the body unless `value` (borrowed) is NULL or null. */
int serve_copy(json_t *body, const char *name, json_t *value);
/* Copies the options that are the same in each protocol, and those that `from` has under the keys
 * `max_tokens` and `stop`. */
int serve_copy_options(json_t *body, const json_t *from, const char *max_tokens, const char *stop);
/* The tools of the body are these functions (the reference of the list is taken); it has none if
 * there are none. */
int serve_set_tools(json_t *body, json_t *functions);
/* Which tools the answer calls, if the body has any: `function`; NULL: "auto", "none" or
 * "required". */
int serve_set_choice(json_t *body, const char *word, const char *function);

#endif
