/* The tokens that the other files of a Hugging Face folder name, beside those of tokenizer.json:
 * tokenizer_config.json and, if that is of an older version (no added_tokens_decoder) or missing,
 * special_tokens_map.json and added_tokens.json. The rules are those that transformers 5 has for a
 * PreTrainedTokenizerFast, whatever tokenizer_class says: for some classes it replaces parts of
 * tokenizer.json, which is not done here.
 * Where files contradict each other it may decide otherwise (contradicts() of
 * tests/oracle/special_tokens.py has these cases).
 *
 * A new token has the id of its text in the vocabulary, or the next id; the ids in these files give
 * only the order. split_special_tokens true is refused, and so is an add_prefix_space of a class
 * that has one (GPT2Tokenizer, Qwen2Tokenizer, LlamaTokenizer) if tokenizer.json contradicts it.
 * Other keys (add_bos_token, add_eos_token, legacy) do not change the tokens.
 *
 * A token is an object: content, lstrip, rstrip, single_word and special, and normalized if the
 * file says it. Errors: -EINVAL with file, key, what was found and what was expected; -ENOMEM. */
#ifndef SPW_MODEL_TEXT_SPECIAL_TOKENS_H
#define SPW_MODEL_TEXT_SPECIAL_TOKENS_H

#include "base/json.h"

struct spw_special_tokens {
    json_t *config; /* owned: tokenizer_config.json; NULL: there is none */
    json_t *named;  /* owned: bos_token and the like -> a token, or null; in order */
    json_t *listed; /* owned: tokens of added_tokens_decoder or added_tokens.json, by their ids */
    json_t *extra;  /* owned: special tokens without a name */
    bool has_pad;   /* a file has the key pad_token */
    bool old;       /* tokenizer_config.json is of an older version, or missing */
    /* add_prefix_space, if the tokenizer_class of transformers gives it to a step of that kind */
    enum { SPW_PREFIX_UNSAID, SPW_PREFIX_OF_BYTES, SPW_PREFIX_OF_METASPACE } prefix_of;
    bool prefix_space;
};

enum { SPW_SPECIAL_MOST_BYTES = 64 << 20 }; /* of a file, which may list many tokens */
/* A file of JSON beside tokenizer.json, whose top is an object. *out is owned; NULL: there is no
 * such file. */
int spw_special_tokens_json(const char *path, json_t **out, struct spw_error *err);
/* A token of which no file tells more. Owned by the caller; NULL: -ENOMEM. */
json_t *spw_special_token(const char *content, bool special);
/* spw_special_tokens_free frees *out, also after a failure. */
int spw_special_tokens_read(struct spw_special_tokens *out, const char *folder,
                            struct spw_error *err);
void spw_special_tokens_free(struct spw_special_tokens *tokens);

#endif
