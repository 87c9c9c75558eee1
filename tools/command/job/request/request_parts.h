/* What the files of request.h share: request.c (what a line is), request_options.c (the table of
 * all keys), request_chat.c (conversations), request_encode.c (prompts to tokens). */
#ifndef SPW_TOOLS_COMMAND_JOB_REQUEST_REQUEST_PARTS_H
#define SPW_TOOLS_COMMAND_JOB_REQUEST_REQUEST_PARTS_H

#include "tools/command/job/request/request.h"

/* The object that has the keys: the line, or its body. */
const json_t *job_item_body(const struct job_item *x);
/* Fills the options of *x: from the body, else from the command line, else with defaults. */
int job_read_options(struct job_item *x, const struct job_reader *r, struct job_refusal *why);
/* The conversation of the line. Changes its JSON: content becomes a text. */
int job_read_chat(struct job_item *x, struct job_reader *r, struct job_prompt *out,
                  struct job_refusal *why);

int job_refuse_json(struct job_refusal *why, int rc, const json_error_t *e);
/* "KEY: found VALUE, but REASON": spillway cannot do it. */
int job_refuse_support(struct job_refusal *why, const char *key, const json_t *value,
                       const char *reason);
/* A call of the library failed. */
int job_refuse_call(struct job_refusal *why, int rc, const char *key, const struct spw_error *err);

#endif
