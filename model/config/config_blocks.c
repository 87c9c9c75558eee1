/* Families each of whose layers is one mixer or one mlp: the list of layers. See config_parts.h. */
#include "model/config/config_parts.h"

#include <string.h>

static const struct block {
    const char *word, *old_word;
    char letter; /* in hybrid_override_pattern */
    enum spw_layer_kind kind;
    bool has_mlp, has_experts;
} blocks[] = {
    {"linear_attention", "mamba", 'M', SPW_LAYER_STATE, false, false},
    {"full_attention", "attention", '*', SPW_LAYER_FULL, false, false},
    {"mlp", "mlp", '-', SPW_LAYER_NONE, true, false},
    {"moe", "moe", 'E', SPW_LAYER_NONE, true, true},
};

enum { N_BLOCKS = sizeof blocks / sizeof *blocks };

static const struct block *by_word(const json_t *item)
{
    const char *word = json_is_string(item) ? json_string_value(item) : "";
    for (size_t i = 0; i < N_BLOCKS; i++)
        if (!strcmp(word, blocks[i].word) || !strcmp(word, blocks[i].old_word))
            return &blocks[i];
    return NULL;
}

static const struct block *by_letter(char letter)
{
    for (size_t i = 0; i < N_BLOCKS; i++)
        if (letter == blocks[i].letter)
            return &blocks[i];
    return NULL;
}

/* The list of words, or else the pattern. Without both, transformers has a layer of each kind. */
static const json_t *list_of(const struct spw_keys *keys, const char **key)
{
    static const char *const names[] = {"layers_block_type", "layer_types",
                                        "hybrid_override_pattern"};
    *key = names[0];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (spw_keys_has(keys, names[i])) {
            *key = names[i];
            return spw_keys_value(keys, *key);
        }
    return NULL;
}

int spw_config_count_blocks(const struct spw_keys *keys, uint32_t *n)
{
    const char *key;
    const json_t *list = list_of(keys, &key);
    const size_t count = !list                  ? 0
                         : json_is_string(list) ? json_string_length(list)
                                                : json_array_size(list);
    if (!count || count > MAX_LAYERS)
        return spw_keys_refuse(keys, key, "a word for each layer");
    *n = (uint32_t)count;
    return 0;
}

int spw_config_read_blocks(struct spw_model_config *out, const struct spw_keys *keys)
{
    const char *key;
    const json_t *list = list_of(keys, &key);
    for (uint32_t l = 0; l < out->n_layers; l++) {
        const struct block *b = json_is_string(list) ? by_letter(json_string_value(list)[l])
                                                     : by_word(json_array_get(list, l));
        if (!b)
            return spw_keys_refuse(keys, key,
                                   "for each layer linear_attention (M), full_attention (*), mlp "
                                   "(-) or moe (E)");
        out->layer_kinds[l] = (uint8_t)b->kind;
        out->has_mlp[l] = b->has_mlp;
        out->has_experts[l] = b->has_experts;
    }
    return 0;
}
