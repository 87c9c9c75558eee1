/* A model in GGUF files: what its keys and tensors mean. Inside model/ only. Errors as gguf.h. */
#ifndef SPW_MODEL_SOURCE_GGUF_MODEL_H
#define SPW_MODEL_SOURCE_GGUF_MODEL_H

#include "model/config/config_gguf.h"
#include "model/source/gguf.h"
#include "model/text/chat_template.h"

enum { SPW_GGUF_MOST_HF_NAME = 128 };

/* The architecture that general.architecture names. */
int spw_gguf_read_architecture(const struct spw_gguf *g, const char *path,
                               const struct spw_gguf_architecture **out, struct spw_error *err);
/* The name of a tensor in a Hugging Face folder. False: the architecture has no such tensor. */
bool spw_gguf_hf_name(const struct spw_gguf_architecture *a, const char *name,
                      char out[SPW_GGUF_MOST_HF_NAME]);
/* Whether a tensor is of a part for images or sound, by its name in the file. Folders keep such
 * names. */
bool spw_gguf_is_other_part(const char *name);
/* The inverse: the name of a tensor in a GGUF file. */
bool spw_gguf_name(const struct spw_gguf_architecture *a, const char *hf_name,
                   char out[SPW_GGUF_MOST_NAME + 1]);
/* Whether a token is a special one. Published files give another type to some tokens around a
 * message (normal, for example <start_of_turn> in Google's quantized Gemma 3): these are known by
 * their text. */
bool spw_gguf_is_control(const struct spw_gguf_string *token, double type);
/* The keys "tokenizer.ggml.*" as spw_gguf_object gives them. A tokenizer of SentencePiece gets the
 * bos and the eos that such models have where no key names them: *by_default (may be NULL). */
int spw_gguf_tokenizer_keys(const struct spw_gguf *g, json_t **out, bool *by_default);
/* The tensors of a model, by their Hugging Face names. `path`: the file, or the first of several.
 */
int spw_gguf_open_tensors(struct spw_tensors **out, const char *path, struct spw_error *err);
/* Renames the tensors of a file. -EINVAL: the architecture has no such tensor. */
int spw_gguf_rename_all(struct spw_tensor_table *table, const struct spw_gguf_architecture *a,
                        const char *path, struct spw_error *err);
/* As the operation add_mtp of struct spw_source_ops. */
int spw_gguf_add_mtp(const char *path, struct spw_model_config *config, struct spw_tensors *t,
                     struct spw_error *err);
/* `f`: the open first file. */
int spw_gguf_read_config(struct spw_model_config *out, const struct spw_gguf_file *f,
                         const char *path, struct spw_error *err);
/* The chat template in the keys; `name` and `file` as in struct spw_source_ops. */
int spw_gguf_read_chat_template(struct spw_chat_template **out, const struct spw_gguf *g,
                                const char *path, const char *name, const char *file,
                                struct spw_error *err);

#endif
