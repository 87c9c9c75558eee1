/* The tokenizer in the keys of a GGUF file. Inside model/ only. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_GGUF_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_GGUF_H

#include "model/config/config_gguf.h"
#include "model/source/gguf_write.h"
#include "model/text/tokenizer/tokenizer.h"

/* False: the file has no tokenizer. Its key is then missing, or says "no_vocab" or "none". */
bool spw_tokenizer_gguf_is_there(const struct spw_gguf *g);
/* As spw_tokenizer_parse. -ENOENT: the file has no tokenizer. */
int spw_tokenizer_parse_gguf(struct spw_tokenizer **out, const struct spw_gguf *g, const char *name,
                             struct spw_error *err);
/* Whether an added token of a tokenizer with U+2581 takes the white space behind it. No key says
 * so. a: NULL for an architecture that is not known. */
bool spw_tok_gguf_greedy(const struct spw_gguf_architecture *a, const char *token, size_t bytes);
/* Adds the keys of a tokenizer that spw_tokenizer_parse opened, which `name` stands for in texts,
 * and the tokens around answers out of the config. Without a tokenizer (NULL)
 * "no_vocab", which other programs want to see, and the latter. Ids
 * of the model that have no token get padding. -ENOTSUP: GGUF has no keys for the tokenizer. */
int spw_tokenizer_write_gguf(struct spw_gguf_writer *w, const struct spw_tokenizer *t,
                             const struct spw_model_config *config, const char *name,
                             struct spw_gguf_notes *notes, struct spw_error *err);

#endif
