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
 * "refusal": null} */
json_t *request_chat_logprobs(const struct spw_result *r, const struct spw_tokenizer *t);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: text_offset counts the characters of
 * the text before each token. */
json_t *request_completion_logprobs(const struct request_completion *c);

#endif
