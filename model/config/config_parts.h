/* What the files config*.c share. Not for other modules. */
#ifndef SPW_MODEL_CONFIG_CONFIG_PARTS_H
#define SPW_MODEL_CONFIG_CONFIG_PARTS_H

#include "model/config/config_families.h"
#include "model/config/config_gguf.h"

/* Larger than any model; small enough that the products of a plan stay far below 2^63. */
#define MAX_LAYERS 4096
#define MAX_WIDTH (1u << 22) /* of an mlp, or of an expert */
#define MAX_VOCAB (1u << 24)
#define MAX_POSITIONS ((uint64_t)1 << 31)

/* The keys of the decoder, and those of the whole file (a multimodal wrapper has both). */
struct spw_config_source {
    struct spw_keys text;
    struct spw_keys top;
    const struct spw_family *family;
    const char *model_type;             /* of the decoder */
    const char *wrapper;                /* model_type of the file, if that is another one */
    bool wrapper_tied;                  /* its default of tie_word_embeddings */
    const struct spw_config_gguf *gguf; /* NULL: the source is a config.json */
};

/* Reads all keys. The family is known. `generation`: keys of tokens, which win. */
int spw_config_read(struct spw_model_config *out, const struct spw_config_source *source,
                    const struct spw_keys *generation);

/* config_model_type.c: sets the family, and what the source says of a wrapper. `top` is set. */
int spw_config_read_family(struct spw_config_source *source);
/* Refuses keys that only other families have, unless they change nothing. */
int spw_config_refuse_foreign(const struct spw_config_source *source);

/* config_operations.c: norms, biases, the activation, limits and scales. The sizes must be set. */
int spw_config_read_operations(struct spw_model_config *out,
                               const struct spw_config_source *source);
/* By its name in config.json; SPW_ACT_COUNT: there is none. */
enum spw_activation spw_config_activation(const char *name);

/* config_stored.c: the type of the weights, FP8, tied embeddings. */
int spw_config_read_stored(struct spw_model_config *out, const struct spw_config_source *source);

/* config_layer_kinds.c: fills out->rotates, then out->layer_kinds, which have their memory. */
int spw_config_read_rotation(struct spw_model_config *out, const struct spw_config_source *source);
int spw_config_read_layer_kinds(struct spw_model_config *out,
                                const struct spw_config_source *source);

/* config_encoder.c, for a family that encodes. Counts the layers of both stacks; sets their kinds;
 * and reads the rest, after spw_config_read_operations and spw_config_read_stored. */
int spw_config_count_stacks(struct spw_model_config *out, const struct spw_config_source *source);
void spw_config_set_stacks(struct spw_model_config *out);
int spw_config_read_encoder(struct spw_model_config *out, const struct spw_config_source *source);
/* config_speech.c, for a family whose source is audio; after the vocabulary. */
int spw_config_read_speech(struct spw_model_config *out, const struct spw_config_source *source,
                           const struct spw_keys *generation);

/* config_kv.c: shapes of keys and values that depend on the layer kind, which layers store them,
 * and their slices. out->layer_kinds must be set; out->kv_layers has its memory. */
int spw_config_read_kv(struct spw_model_config *out, const struct spw_config_source *source);

/* config_blocks.c: the number of layers of a family of blocks, and what each is. */
int spw_config_count_blocks(const struct spw_keys *keys, uint32_t *n);
int spw_config_read_blocks(struct spw_model_config *out, const struct spw_keys *keys);

/* config_mixer.c: fills out->mixer. The sizes and out->layer_kinds must be set. */
int spw_config_read_mixer(struct spw_model_config *out, const struct spw_config_source *source);

/* config_tokens.c: bos, eos, token_rules. The vocabulary must be set. */
int spw_config_read_tokens(struct spw_model_config *out, const struct spw_config_source *source,
                           const struct spw_keys *generation);

/* config_experts.c: fills out->experts and out->has_experts, which has its memory. The sizes must
 * be set. */
int spw_config_read_experts(struct spw_model_config *out, const struct spw_config_source *source);

/* config_gguf_layers.c: some keys of a GGUF file have a number for each layer, and others follow
 * from its tensors. Puts what config.json has instead into facts->keys. `keys`: the same, by the
 * names of the file. */
int spw_config_gguf_layers(const struct spw_config_gguf *facts, const struct spw_family *family,
                           const struct spw_keys *keys);

/* config_gguf_ollama.c: renames the keys that Ollama's converter writes, as llama.cpp calls them,
 * and adds what Ollama's converter leaves out. `renamed`, an object, gets the file's own name of
 * each renamed key, for messages. */
int spw_config_gguf_ollama(struct spw_model_config *out, const struct spw_config_gguf *facts,
                           const struct spw_keys *keys, json_t *renamed);

/* Notes a fact that no file stores. `rule` is a constant. */
void spw_config_rule(struct spw_model_config *out, const char *rule);
/* Scores of gemma2 and gemma3 are multiplied by this number to the power of -0.5. */
double spw_config_gguf_query_scalar(const struct spw_model_config *out,
                                    const struct spw_gguf_architecture *a);

#endif
