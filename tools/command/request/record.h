/* The line of output of an item: an answer in the form of the item's line, or an error. Both return
 * an object that the caller owns; NULL: out of memory. */
#ifndef SPW_TOOLS_COMMAND_REQUEST_RECORD_H
#define SPW_TOOLS_COMMAND_REQUEST_RECORD_H

#include "tools/command/request/request.h"

#include <time.h>

/* What the answers of one process have in common. */
struct request_names {
    const char *model;                     /* for a body that names none */
    time_t created;                        /* of the answers; of a job, its first start */
    const struct spw_tokenizer *tokenizer; /* NULL: answers have no text */
};

/* Every choice has ended, with LENGTH, EOS or STOP. The names ("batch_req_...", "chatcmpl-...") are
 * a function of the line and its number: a job that runs again gives the same names. */
json_t *request_record(const struct request *x, const struct request_names *names);
json_t *request_record_error(const struct request *x, const struct request_refusal *why);

#endif
