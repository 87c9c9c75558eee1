/* One request: prompts, how they are to be answered, and what became of them. It comes from a line
 * of JSON (reader.h) or from another source. record.h writes its answer. */
#ifndef SPW_TOOLS_COMMAND_REQUEST_REQUEST_H
#define SPW_TOOLS_COMMAND_REQUEST_REQUEST_H

#include "model/text/answer_parts.h"
#include "model/text/grammar/grammar.h"
#include "tools/command/input/input.h"

enum request_form {
    REQUEST_SHORT,      /* {"id", "prompt" | "messages" | "tokens" | "file", options} */
    REQUEST_CHAT,       /* a line of an OpenAI batch file for /v1/chat/completions */
    REQUEST_COMPLETION, /* the same for /v1/completions */
};

struct request_prompt {
    int32_t *tokens; /* owned */
    size_t n;
    struct spw_reasoning_form form;          /* how an answer marks reasoning; zero: it has none */
    bool is_open;                            /* the answer begins inside reasoning */
    struct spw_tool_form tools;              /* how an answer calls tools; zero: it does not */
    int32_t shown[SPW_TOKENIZER_MOST_SHOWN]; /* special tokens of the marks of both */
    size_t n_shown;
};

/* A call of a tool in an answer. */
struct request_call {
    struct spw_text name, arguments; /* arguments: a JSON text, incomplete if the call is */
    bool is_complete;
};

/* One answer of an item. */
struct request_choice {
    /* Without stop strings and special tokens. When the answer has ended, `text` is without the
     * reasoning. */
    struct spw_text text, reasoning;
    struct request_call *calls; /* owned, [n_calls] */
    size_t n_calls, calls_capacity;
    uint64_t n_reasoning_tokens; /* of the result's tokens */
    size_t n_kept;               /* of the result's tokens, those that a store has */
    struct spw_result result;    /* owned */
    bool has_ended;
};

struct request {
    enum request_form form;
    json_t *line;    /* owned: the parsed line; NULL: there is none */
    json_t *body;    /* borrowed from `line`: the object with the keys of the request */
    json_t *id;      /* owned; NULL: none */
    uint64_t number; /* of the line in its input, from 1; 0: the item is no line */
    uint64_t digest; /* XXH3-64 of the line, and of the file that it names */
    size_t bytes;    /* of the line */
    char *file;      /* owned until the item is encoded: the text of the file that the line names */
    size_t file_bytes;
    /* Owned: the audio of the file, whose windows are the prompts: the next one is there when the
     * one before has its answer. NULL: the model reads text. */
    struct cli_speech *speech;

    struct request_prompt *prompts; /* owned, [n_prompts] */
    size_t n_prompts;
    uint32_t n_choices; /* answers of each prompt */
    uint64_t max_new_tokens;
    bool max_is_default; /* nobody gave max_new_tokens: fewer if the context has no room for them */
    struct spw_sampling sampling;          /* of choice 0; choice k draws from stream k */
    struct spw_logit_bias *logit_bias;     /* owned, if the line has any: of `sampling` */
    int32_t *token_lists[SPW_TOKEN_LISTS]; /* the same */
    struct cli_strings stop; /* list owned, strings borrowed from `line` or the options */
    /* A search; n_beams 0: none. The answers of a prompt are the n_choices best ones. */
    struct spw_beam_search beams;
    bool ignore_eos, logprobs;
    bool echo; /* with logprobs: choice 0 of each prompt needs prompt_logprobs */
    uint32_t n_top_logprobs;
    struct spw_grammar *grammar; /* owned: the format of answers; NULL: any text */
    bool forces_call;            /* it is that of a call */
    char *tools_json; /* owned: OpenAI's list of the tools that an answer may call; NULL: none */

    struct request_choice
        *choices; /* owned, [n_prompts * n_choices], index prompt * n_choices + k */
    size_t n_ended;
    /* What the engine did while the item ran, also for items beside it: bytes moved, and all its
     * fallbacks until then (borrowed; NULL: none). */
    uint64_t moved_bytes[SPW_MOVED_COUNT];
    const json_t *fallbacks;
};
void request_free(struct request *x);
/* Adds a piece of an answer to the text, the reasoning or the calls of its choice. 0 or -ENOMEM. */
int request_add_piece(struct request_choice *c, const struct spw_answer_piece *p);
/* The id of a call in an answer, "PREFIX" and 24 digits: a function of the answer's id
 * and of the numbers of choice and call. */
void request_call_id(char out[48], const char *prefix, const char *answer_id, size_t choice,
                     size_t call);
/* Counts the reasoning tokens of a choice that has ended. 0 or -ENOMEM. */
int request_count_reasoning(struct request *x, size_t choice, const struct spw_tokenizer *t);
/* What divides the text of a choice into its parts. 0 or -ENOMEM; -EINVAL: tools_json is wrong. */
int request_open_parts(const struct request *x, size_t choice, struct spw_answer_parts **out);
/* Moves reasoning and calls of a choice that has ended out of its text. 0 or -ENOMEM. */
int request_split(struct request *x, size_t choice, const struct spw_tokenizer *t);
/* What a batch is asked for one of its answers; of a search, for this one and those of the prompt
 * that follow (request_together). Borrows from *x. */
struct spw_request request_ask(const struct request *x, size_t choice, bool text);
/* Answers that one request of a batch gives: they have numbers one after the other. */
static inline uint32_t request_together(const struct request *x)
{
    return x->beams.n_beams ? x->n_choices : 1;
}
/* The request of the batch has ended, and its choice has the result. Makes what the item has of it:
 * the parts of its text; or the text of a window, and the next one. 0 or -ENOMEM. */
int request_end_choice(struct request *x, size_t choice, const struct spw_tokenizer *t);
/* Tokens of its longest prompt and answer. */
uint64_t request_tokens(const struct request *x);
/* Bytes that the tokens and log-probabilities of the prompts and of all answers take, at most. */
uint64_t request_bytes(const struct request *x);
/* Makes the answers as much shorter as `limit` tokens demand, if nobody has given their length.
 * -E2BIG: the item is still longer. */
int request_shorten(struct request *x, uint64_t limit);

/* Why an item has no answer: OpenAI's error object, and the HTTP status that belongs to it. */
struct request_refusal {
    int status;       /* 400 and above; 0: the line is no request, nothing was executed */
    const char *type; /* "invalid_request_error", "server_error" */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the key at fault; "": none */
    char message[512];
};
/* Fills *why. Returns -EINVAL, for a status of 500 and above -EIO. */
__attribute__((format(printf, 5, 6))) int request_refuse(struct request_refusal *why, int status,
                                                         const char *code, const char *param,
                                                         const char *format, ...);
/* "KEY: found VALUE, expected EXPECTED" */
int request_refuse_value(struct request_refusal *why, const char *key, const json_t *value,
                         const char *expected);
int request_refuse_memory(struct request_refusal *why); /* returns -ENOMEM */
/* spw_batch_submit has refused the request: says why by the keys of a line. */
int request_refuse_asked(struct request_refusal *why, const struct spw_error *err);
/* The request of an END event has failed: 400 if its own grammar is the cause. False: it has not.
 */
bool request_failed(struct request_refusal *why, const struct spw_event *e);
/* "a list", "\"text\"", "-3": for messages. */
const char *request_found(const json_t *value, char text[64]);

#endif
