/* Reads a line of a job's input in two phases.
 *
 * job_item_parse finds out what the line is: its form, its id, the file that it names, its digest.
 * A job that is resumed does no more than this for an item that is done. job_item_encode parses the
 * JSON, checks the options of the request and makes the tokens of its prompts. Both return 0, or
 * -errno with the reason in *why: this line then has an error, and the job continues. They never
 * print. */
#ifndef SPW_TOOLS_COMMAND_JOB_REQUEST_REQUEST_H
#define SPW_TOOLS_COMMAND_JOB_REQUEST_REQUEST_H

#include "tools/command/job/item.h"

#include <time.h>

/* The largest file that a line may name. */
#define JOB_MAX_FILE_BYTES (UINT64_C(1) << 30)

/* What the lines of one job have in common. Zero, but for the first four. */
struct job_reader {
    const struct cli_options *o;   /* borrowed: defaults of the requests */
    const struct cli_model *model; /* borrowed; its tokenizer may be NULL */
    const char *folder;            /* borrowed: of the input; names of files begin there */
    /* The time that chat templates get. A job that is resumed keeps the time of its first start:
     * the date in a prompt must not change. */
    time_t started;

    struct spw_chat_template *template; /* owned; opened at the first conversation */
    struct spw_reasoning_form form;     /* of the model; found with the template */
    struct job_refusal no_template;     /* why there is none: message is not "" */
    int takes_effort; /* whether the template uses reasoning_effort: 1, -1; 0: not known yet */
};
/* Opens the template, if it is not open yet. 0, or -errno of the source: -ENOENT: there is none. */
int job_reader_open_template(struct job_reader *r, struct spw_error *err);
void job_reader_close(struct job_reader *r);

/* Fills *x, which job_item_free frees in any case. Keeps nothing of `line`. A line that cannot be
 * read has its id in spite of this, if a part of the line is enough to find it. -ENOMEM without an
 * id: nobody knows which item the line is. A name of a file is
 * used as it is written, `..` and links included; only a regular file is read. */
int job_item_parse(struct job_item *x, const struct job_reader *r, const char *line, size_t bytes,
                   uint64_t number, struct job_refusal *why);
/* Makes prompts and choices of an item that job_item_parse has read. */
int job_item_encode(struct job_item *x, struct job_reader *r, struct job_refusal *why);

/* For items that do not come from a line. `param` is the name in refusals. */
int job_encode(const struct job_reader *r, const char *param, const struct spw_encoding *e,
               struct job_prompt *out, struct job_refusal *why);
int job_encode_text(const struct job_reader *r, const char *param, const char *text, size_t bytes,
                    struct job_prompt *out, struct job_refusal *why);
/* `messages`: a list of {"role", "content"}. tools, extra (more variables): NULL: none. */
/* One message of the user, whose spans e->plain have no special tokens. `extra` as below. */
int job_encode_message(struct job_reader *r, const struct spw_encoding *e, const json_t *extra,
                       struct job_prompt *out, struct job_refusal *why);
int job_encode_chat(struct job_reader *r, const json_t *messages, const json_t *tools,
                    const json_t *extra, struct job_prompt *out, struct job_refusal *why);

#endif
