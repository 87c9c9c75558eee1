/* A SentencePiece model (*.model, *.spm): the message ModelProto of sentencepiece_model.proto, and
 * the tokenizers of Hugging Face folders that have such files in the place of tokenizer.json.
 * Inside model/ only. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_SPM_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_SPM_H

#include "model/text/special_tokens.h"
#include "model/text/tokenizer/tokenizer_gguf_pre.h"
#include "model/text/tokenizer/tokenizer_impl.h"

struct spw_spm_piece {
    const char *text; /* borrowed from the file; no NUL behind it */
    size_t bytes;
    float score;
    enum token_type type;
};

struct spw_spm {
    struct spw_spm_piece *pieces; /* owned; texts are UTF-8 without a zero byte, never empty */
    size_t n, capacity;
    size_t unknown; /* the one piece of type UNKNOWN */
    bool unigram, byte_fallback;
    /* The normalizer: one space in front of a text; none more, and one for several. */
    bool adds_space, strips;
    const char *charsmap; /* borrowed from the file [charsmap_bytes] */
    size_t charsmap_bytes;
};

/* -EINVAL: the bytes are no such message. -ENOTSUP: words or characters as pieces, spaces behind
 * words or as they are, a denormalizer. -ENOMEM. After a failure, too, spw_spm_free frees *m. */
int spw_spm_read(struct spw_spm *m, const char *bytes, size_t n, const char *name,
                 struct spw_error *err);
void spw_spm_free(struct spw_spm *m);

/* A tokenizer whose ids are the pieces' numbers. As spw_tokenizer_parse. */
int spw_tokenizer_parse_spm(struct spw_tokenizer **out, const char *bytes, size_t n,
                            const char *name, struct spw_error *err);
/* The names of these files; NULL: no more. */
const char *spw_tok_spm_file(size_t i);
/* As spw_tokenizer_open_folder. `special`: of the folder. -ENOENT, without a text: the folder has
 * no such file, or is of a family whose use of it is not known. */
int spw_tok_open_spm(struct spw_tokenizer **out, const char *folder,
                     const struct spw_special_tokens *special, struct spw_error *err);

#endif
