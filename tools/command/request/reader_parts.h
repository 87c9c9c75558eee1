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

int request_refuse_json(struct request_refusal *why, int rc, const json_error_t *e);
/* "KEY: found VALUE, but REASON": spillway cannot do it. */
int request_refuse_support(struct request_refusal *why, const char *key, const json_t *value,
                           const char *reason);
/* A call of the library failed. */
int request_refuse_call(struct request_refusal *why, int rc, const char *key,
                        const struct spw_error *err);

#endif
