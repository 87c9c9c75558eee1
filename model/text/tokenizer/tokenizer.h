/* Text to token ids and back, as a Hugging Face tokenizer.json says.
 *
 * A tokenizer owns all it needs (the JSON text may be freed) and never changes after it was opened,
 * so any number of threads may use one. What it returns through `**` belongs to the caller
 * (spw_free). Its answers are those of the `tokenizers` package: the same added-token matching,
 * normalizers, pre-tokenizers, merges, post-processor and decoder. A kind it does not know is
 * refused while loading, by name (-ENOTSUP); a malformed file gives -EINVAL; both say file and key.
 * Limits: ids below 2^22, text and every intermediate form of it below 2 GiB, a normal form by the
 * length of the text (spw_tok_normal_limit). */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define SPW_TOKENIZER_MOST_BYTES (256u << 20) /* of a tokenizer.json */

struct spw_tokenizer;

/* FOLDER/tokenizer.json, or the SentencePiece model of some families (tokenizer_pieces.c lists
 * them), with the tokens that the folder's tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json add or change, as in transformers. */
int spw_tokenizer_open_folder(struct spw_tokenizer **out, const char *folder,
                              struct spw_error *err);
/* `name` stands for the file in error texts. */
int spw_tokenizer_parse(struct spw_tokenizer **out, const char *json, size_t bytes,
                        const char *name, struct spw_error *err);
void spw_tokenizer_close(struct spw_tokenizer *t);

uint32_t spw_tokenizer_vocab_size(const struct spw_tokenizer *t); /* largest id + 1 */
/* The id of a token given as it is written in the file; -ENOENT when there is none. */
int spw_tokenizer_id(const struct spw_tokenizer *t, const char *token);
/* NULL when no token has this id. Lives as long as the tokenizer. */
const char *spw_tokenizer_token(const struct spw_tokenizer *t, int32_t id);
bool spw_tokenizer_is_special(const struct spw_tokenizer *t, int32_t id);
/* [*n] tokens that spw_tokenizer_encode with `add_special` puts in front of a text, or behind it.
 * They live as long as the tokenizer. */
const int32_t *spw_tokenizer_prefix(const struct spw_tokenizer *t, size_t *n);
const int32_t *spw_tokenizer_suffix(const struct spw_tokenizer *t, size_t *n);

/* `add_special` applies the post-processor's template (bos and the like); special tokens written
 * inside the text are recognized in any case. Invalid UTF-8 gives -EILSEQ and the byte offset.
 * *ids is never NULL on success, also for n = 0. */
int spw_tokenizer_encode(const struct spw_tokenizer *t, const char *text, size_t bytes,
                         bool add_special, int32_t **ids, size_t *n_ids, struct spw_error *err);

/* Bytes [begin, end) of a text. */
struct spw_text_span {
    size_t begin, end;
};
struct spw_encoding {
    const char *text;
    size_t bytes;
    bool add_special;
    /* [n_plain], in order: no special token is recognized that has a byte of these spans. This
     * keeps a document from ending its own message. Other tokens are those of spw_tokenizer_encode.
     */
    const struct spw_text_span *plain;
    size_t n_plain;
    bool (*stopped)(void); /* asked now and then: the caller wants no more; NULL: never */
};
/* The same. Also -EINVAL: a span has a special token that the tokenizer looks for only after its
 * normalizer has changed the text; -ECANCELED: `stopped`. */
int spw_tokenizer_encode_spans(const struct spw_tokenizer *t, const struct spw_encoding *e,
                               int32_t **ids, size_t *n_ids, struct spw_error *err);

/* Ids that name no token are passed over (models have more logits than tokens). The text is valid
 * UTF-8, with U+FFFD for bytes that form no character, and ends in a NUL that `bytes` leaves out.
 */
int spw_tokenizer_decode(const struct spw_tokenizer *t, const int32_t *ids, size_t n,
                         bool skip_special, char **text, size_t *bytes);
/* The bytes of one token as they stand inside a text, special tokens too: maybe half a character,
 * for which spw_tokenizer_decode gives U+FFFD. None if no token has this id. */
int spw_tokenizer_token_bytes(const struct spw_tokenizer *t, int32_t id, char **text,
                              size_t *bytes);

/* Decoding one token at a time. What push returns is always whole characters and stays valid until
 * the next call; everything returned, finish included, is exactly what spw_tokenizer_decode gives
 * for the whole list. Text that a later token can still change (half a character, a run of
 * byte-fallback tokens) is held back. The tokenizer must outlive it. One thread at a time. */
struct spw_detokenizer;

int spw_detokenizer_init(struct spw_detokenizer **out, const struct spw_tokenizer *t,
                         bool skip_special);
/* Special tokens that are not skipped, at most SPW_TOKENIZER_MOST_SHOWN of `ids`. */
enum { SPW_TOKENIZER_MOST_SHOWN = 8 };
void spw_detokenizer_show(struct spw_detokenizer *d, const int32_t *ids, size_t n);
int spw_detokenizer_push(struct spw_detokenizer *d, int32_t id, const char **text, size_t *bytes);
/* Flushes what is held back. Afterwards the detokenizer is as new. */
int spw_detokenizer_finish(struct spw_detokenizer *d, const char **text, size_t *bytes);
void spw_detokenizer_free(struct spw_detokenizer *d);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
