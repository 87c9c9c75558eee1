/* The line of output of an item: an answer in the form of the item's line, or an error. All return
 * a value that the caller owns; NULL: out of memory. */
#ifndef SPW_TOOLS_COMMAND_REQUEST_RECORD_H
#define SPW_TOOLS_COMMAND_REQUEST_RECORD_H

#include "tools/command/request/request.h"

#include <time.h>

/* What the answers of one process have in common. */
struct request_names {
    const char *model;                     /* for a body that names none */
    time_t created;                        /* of the answers; of a job, its first start */
    const struct spw_tokenizer *tokenizer; /* NULL: answers have no text */
    const char *id; /* of the answer, without its prefix; NULL: a function of the line */
};

/* Every choice has ended, with LENGTH, EOS or STOP. The names ("batch_req_...", "chatcmpl-...") are
 * a function of the line and its number: a job that runs again gives the same names. */
json_t *request_record(const struct request *x, const struct request_names *names);
/* Parts of it, for answers that are no lines: the body of a chat or a completion; its usage; the
 * text of a prompt, for `echo`; why a choice has ended ("stop", "length", "tool_calls"). */
json_t *request_record_body(const struct request *x, const struct request_names *names);
json_t *request_record_usage(const struct request *x);
json_t *request_record_prompt(const struct request *x, size_t prompt,
                              const struct spw_tokenizer *t);
/* A text behind the one that stands before it, which may be NULL. */
json_t *request_record_text(const json_t *before, const char *text, size_t bytes);
/* logits_hash of each choice. */
json_t *request_record_hashes(const struct request *x);
const char *request_record_finish(const struct request_choice *c);
/* An error object, {"message", "type", "param", "code"}. */
json_t *request_record_reason(const struct request_refusal *why);
json_t *request_record_error(const struct request *x, const struct request_refusal *why);

#endif
