/* Log-probabilities of an answer in OpenAI's two forms, for record.c. Tokens have texts and bytes:
 * a token may be half a character. */
#ifndef SPW_TOOLS_COMMAND_REQUEST_RECORD_LOGPROBS_H
#define SPW_TOOLS_COMMAND_REQUEST_RECORD_LOGPROBS_H

#include "tools/command/request/request.h"

/* An answer of /v1/completions. */
struct request_completion {
    const struct request_prompt *prompt;
    const struct spw_result *result;
    const struct spw_result *of_prompt; /* with `echo`: the result with prompt_logprobs, or none */
    const json_t *echo;                 /* the text of the prompt, if the answer has it; NULL */
    const struct spw_tokenizer *tokenizer; /* NULL: a token is called "token_id:ID" */
};

/* "logprobs" of a choice: {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...],
 * "refusal": null}, of the result's tokens from number `begin` on. */
json_t *request_chat_logprobs(const struct spw_result *r, size_t begin,
                              const struct spw_tokenizer *t);
/* How far the tokens of a completion are written. Zero at first. */
struct request_place {
    struct spw_detokenizer *d; /* owned; NULL: nothing is written, or there is no tokenizer */
    size_t n_tokens;           /* of the result */
    size_t n_characters;       /* of the text before the next token */
    bool has_begun;
};
void request_place_free(struct request_place *at);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the tokens from *at on, first
 * those of the prompt with `echo`: text_offset counts the characters of the text before each token.
 */
json_t *request_completion_logprobs(const struct request_completion *c, struct request_place *at);

#endif
