/* The protocols of the server: how the body of a client's request becomes a request of the
 * program, and how the answer becomes bytes. Pure functions over JSON: no thread, no connection, no
 * engine. The protocols are in serve_protocols.
 *
 * Every piece of an answer goes to request_add_piece. Then, for a streamed answer, the server
 * calls: begin, progress and piece as often as needed (piece after request_add_piece), end_choice
 * for each choice, end; or failed instead of the rest. For an answer in one body: whole, after all
 * choices have ended. An error before the first byte: error. */
#ifndef SPW_TOOLS_COMMAND_SERVE_PROTOCOL_H
#define SPW_TOOLS_COMMAND_SERVE_PROTOCOL_H

#include "model/text/answer_parts.h"
#include "tools/command/request/reader.h"

/* What the client wants, besides the request itself. */
struct serve_wish {
    bool stream;
    bool include_usage;    /* chat, completions: stream_options.include_usage */
    bool continuous_usage; /* stream_options.continuous_usage_stats */
    bool logits_hash;      /* the answer's usage has it */
    bool hides_reasoning;  /* messages: thinking.display "omitted" */
};

/* The state of one answer while it is written. */
struct serve_answer {
    const struct serve_protocol *protocol;
    const struct serve_wish *wish;
    const struct request *request; /* choices have the tokens and the log-probabilities so far */
    const char *model;             /* the name that the client used */
    const struct spw_tokenizer *tokenizer;
    char id[40];     /* of the answer, without its prefix */
    int64_t created; /* seconds since 1970 */
    void *own;       /* the protocol's, made by begin or whole; freed by close */
};

/* How far the prompt is. */
struct serve_progress {
    uint64_t n_read, n_prompt; /* tokens */
    double seconds_left;       /* negative: not known */
    uint32_t n_before;         /* requests that wait before this one; it runs: 0 */
};

struct serve_protocol {
    const char *path;
    /* Changes the body (borrowed) into one of the form `x->form`, which this call sets, as
     * request_encode reads it; the system messages in the middle are folded. 0, or -errno with the
     * reason in *why. */
    int (*read)(struct request *x, struct serve_wish *wish, json_t *body, struct request_reader *r,
                struct request_refusal *why);
    /* Each adds bytes to `out`: 0 or -ENOMEM. */
    int (*begin)(struct serve_answer *a, struct spw_text *out);
    int (*progress)(struct serve_answer *a, const struct serve_progress *p, struct spw_text *out);
    int (*piece)(struct serve_answer *a, size_t choice, const struct spw_answer_piece *p,
                 struct spw_text *out);
    int (*end_choice)(struct serve_answer *a, size_t choice, struct spw_text *out);
    int (*end)(struct serve_answer *a, struct spw_text *out);
    int (*failed)(struct serve_answer *a, const struct request_refusal *why, struct spw_text *out);
    int (*whole)(struct serve_answer *a, struct spw_text *out);
    /* `id`: of the request, as that of an answer; "": it has none. */
    int (*error)(const struct request_refusal *why, const char *id, struct spw_text *out);
    void (*close)(struct serve_answer *a);
};

/* Once, before the first body: opens the chat template of `r`, if the model has one, and finds out
 * what it does with system messages. Afterwards the protocols only read `r`: each thread may use a
 * copy of it, with a time of its own. 0, or -ENOMEM. */
int serve_prepare(struct request_reader *r);
/* From a body to a request that is encoded: parse, read, request_encode, and max_new_tokens at most
 * what `longest` tokens leave. Replaces lone surrogates in `text`. request_free frees *x in any
 * case. 0, or -errno with the reason in *why: always a status of 400 or above. Any thread. */
int serve_read(const struct serve_protocol *p, struct request *x, struct serve_wish *wish,
               char *text, size_t bytes, struct request_reader *r, uint64_t longest,
               struct request_refusal *why);
/* A prompt of n_tokens does not fit into `longest`, in the words that clients of `p` know. Returns
 * -E2BIG. */
int serve_refuse_length(const struct serve_protocol *p, uint64_t n_tokens, uint64_t longest,
                        struct request_refusal *why);

/* Chat, completions, responses, messages. */
extern const struct serve_protocol *const serve_protocols[];
extern const size_t serve_n_protocols;

#endif
