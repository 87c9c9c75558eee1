/* What the files of reader.h share: reader.c (what a line is), reader_options.c (the table of all
 * keys), reader_chat.c (conversations), reader_encode.c (prompts to tokens). */
#ifndef SPW_TOOLS_COMMAND_REQUEST_READER_PARTS_H
#define SPW_TOOLS_COMMAND_REQUEST_READER_PARTS_H

#include "tools/command/request/reader.h"

/* Fills the options of *x: from the body, else from the command line, else with defaults. */
int request_read_options(struct request *x, const struct request_reader *r,
                         struct request_refusal *why);
/* The conversation of the line. Changes its JSON: content becomes a text. */
int request_read_chat(struct request *x, struct request_reader *r, struct request_prompt *out,
                      struct request_refusal *why);

/* Checks messages, and changes their JSON: content becomes a text, arguments of calls an object. */
int request_tidy_messages(const struct request *x, const json_t *messages,
                          struct request_refusal *why);
/* The template's text of a conversation, owned by the caller. 0 or -errno. `tools`, `extra`
 * and `ending` may be NULL. `ending`: an object whose add_generation_prompt and
 * continue_final_message, as vLLM has them, say where the text ends; else the answer begins. */
int request_render(const struct request_reader *r, const json_t *messages, const json_t *tools,
                   const json_t *extra, const json_t *ending, char **text, size_t *bytes,
                   struct spw_error *err);

/* Whether prompts depend on reasoning_effort. The template is open. */
bool request_takes_effort(struct request_reader *r);

/* "KEY: found VALUE, but REASON": spillway cannot do it. */
int request_refuse_support(struct request_refusal *why, const char *key, const json_t *value,
                           const char *reason);
/* A call of the library failed. */
int request_refuse_call(struct request_refusal *why, int rc, const char *key,
                        const struct spw_error *err);

#endif
