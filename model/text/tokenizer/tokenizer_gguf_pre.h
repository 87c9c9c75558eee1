/* What the reader and the writer of GGUF keys share: the pre-tokenizers that GGUF names by
 * tokenizer.ggml.pre, and the types of tokens. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_GGUF_PRE_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_GGUF_PRE_H

#include <stdbool.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

enum token_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { SPW_TOK_GGUF_SPLITS = 6 };

/* How GPT-2 splits a text. */
#define SPW_TOK_GPT2_PATTERN                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct spw_tok_gguf_pre {
    const char *name;
    const char *splits[SPW_TOK_GGUF_SPLITS]; /* one after the other; NULL: no more */
    bool nfc;           /* the tokenizer of these models normalizes the text first */
    bool ignore_merges; /* a whole piece that is a token is this token */
    bool bos;           /* the default of add_bos_token */
};

/* NULL: unknown. */
const struct spw_tok_gguf_pre *spw_tok_gguf_pre_find(const char *name);
/* The first one of these splits, up to NULL. If none has the same `nfc`, another one. NULL: none.
 */
const struct spw_tok_gguf_pre *spw_tok_gguf_pre_like(const char *const splits[SPW_TOK_GGUF_SPLITS],
                                                     bool ignore_merges, bool nfc);
#define SPW_TOK_GGUF_PRES                                                                          \
    "llama-bpe, qwen2, gpt-4o, tekken, deepseek-v3, smollm, gpt-2, default or another name that "  \
    "docs/models.md lists"

#endif
