/* Reads a request, a line of JSON, in two phases.
 *
 * request_parse finds out what the line is: its form, its id, the file that it names, its digest.
 * A job that is resumed does no more than this for an item that is done. request_encode checks the
 * options of the request and makes the tokens of its prompts. Both return 0, or -errno with the
 * reason in *why: this line then has an error, and the job continues. They never print. */
#ifndef SPW_TOOLS_COMMAND_REQUEST_READER_H
#define SPW_TOOLS_COMMAND_REQUEST_READER_H

#include "tools/command/request/request.h"

#include <time.h>

/* The largest file that a line may name. */
#define REQUEST_MAX_FILE_BYTES (UINT64_C(1) << 30)

/* What a chat template does with messages, found by rendering small conversations. */
struct request_habits {
    bool is_known;
    bool leads;   /* it renders a system message at the begin */
    bool inside;  /* and one in the middle, where it stands and marked as one */
    bool repeats; /* it takes two messages of the user in a row */
};

/* What the requests of one process have in common. Zero, but for the first four. */
struct request_reader {
    const struct cli_options *o;   /* borrowed: defaults of the requests */
    const struct cli_model *model; /* borrowed; its tokenizer may be NULL */
    const char *folder;            /* borrowed: of the input; names of files begin there */
    /* The time that chat templates get. A job that is resumed keeps the time of its first start:
     * the date in a prompt must not change. */
    time_t started;

    struct spw_chat_template *template; /* owned; opened at the first conversation */
    struct spw_reasoning_form form;     /* of the model; found with the template */
    struct spw_tool_form tools;         /* the same */
    struct request_refusal no_template; /* why there is none: message is not "" */
    struct request_habits habits;
    int takes_effort; /* whether the template uses reasoning_effort: 1, -1; 0: not known yet */
};
/* Opens the template, if it is not open yet. 0, or -errno of the source: -ENOENT: there is none. */
int request_reader_open_template(struct request_reader *r, struct spw_error *err);
/* Fills habits and takes_effort, which then do not change. The template is open. */
void request_reader_probe(struct request_reader *r);
void request_reader_close(struct request_reader *r);

/* Fills *x, which request_free frees in any case. Keeps nothing of `line`. A line that is no JSON
 * has no id. -ENOMEM without an id: nobody knows which item the line is. A name of a file is used
 * as it is written, `..` and links included; only a regular file is read. */
int request_parse(struct request *x, const struct request_reader *r, const char *line, size_t bytes,
                  uint64_t number, struct request_refusal *why);
/* Sessions that a request has use for, before its options are read. */
uint32_t request_sessions(const struct request *x, const struct request_reader *r);
/* Makes prompts and choices of a request that request_parse has read, or whose form and body the
 * caller has set. */
int request_encode(struct request *x, struct request_reader *r, struct request_refusal *why);

/* Bytes that the values of a JSON text take as a tree, about; its strings not counted. */
uint64_t request_tree_bytes(const char *text, size_t bytes);
/* The JSON of a text, unless it would take too much memory. `flags`: of spw_json_parse. */
int request_parse_json(json_t **out, const char *text, size_t bytes, size_t flags,
                       struct request_refusal *why);
/* Changes a conversation into one that the template renders (probed before): one system message at
 * the begin; a later one stays where the template marks it as one, else its text becomes a part of
 * the message before or after it, never between a call and its result. Content becomes a text. */
int request_fold_systems(struct request *x, const struct request_reader *r, json_t *messages,
                         struct request_refusal *why);

/* For items that do not come from a line; of any length. `param` is the name in refusals. */
int request_encode_prompt(const struct request_reader *r, const char *param,
                          const struct spw_encoding *e, struct request_prompt *out,
                          struct request_refusal *why);
/* One message of the user, whose spans e->plain have no special tokens. `extra`: more variables. */
int request_encode_message(struct request_reader *r, const struct spw_encoding *e,
                           const json_t *extra, struct request_prompt *out,
                           struct request_refusal *why);

#endif
