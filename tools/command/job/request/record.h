/* The line of output of an item: an answer in the form of the item's line, or an error. Both return
 * an object that the caller owns; NULL: out of memory. */
#ifndef SPW_TOOLS_COMMAND_JOB_REQUEST_RECORD_H
#define SPW_TOOLS_COMMAND_JOB_REQUEST_RECORD_H

#include "tools/command/job/item.h"

#include <time.h>

/* What the lines of one job have in common. */
struct job_names {
    const char *model;                     /* for a body that names none */
    time_t created;                        /* when the job was started for the first time */
    const struct spw_tokenizer *tokenizer; /* NULL: answers have no text */
};

/* Every choice has ended, with LENGTH, EOS or STOP. The names ("batch_req_...", "chatcmpl-...") are
 * a function of the line and its number: a job that runs again gives the same names. */
json_t *job_record(const struct job_item *x, const struct job_names *names);
json_t *job_record_error(const struct job_item *x, const struct job_refusal *why);

#endif
