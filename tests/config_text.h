/* Texts of config.json in tests, with ' for ": a base, and a patch over it, which must be accepted
 * or refused. main returns config_done(). */
#ifndef SPW_TESTS_CONFIG_TEXT_H
#define SPW_TESTS_CONFIG_TEXT_H

#include "model/config/config.h"
#include "tests/json_text.h"

#include <string.h>

static const char *const llama =
    "{'model_type': 'llama', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'max_position_embeddings': 512}";
static const char *const mistral =
    "{'model_type': 'mistral', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'max_position_embeddings': 512}";
static const char *const qwen2 =
    "{'model_type': 'qwen2', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'num_key_value_heads': "
    "2,'sliding_window': 32, 'max_window_layers': 4}";
static const char *const qwen3 =
    "{'model_type': 'qwen3', 'hidden_size': 64, 'intermediate_size': 96, 'vocab_size': "
    "100,'num_hidden_layers': 6, 'num_attention_heads': 8, 'num_key_value_heads': null}";
static const char *const gemma3 =
    "{'model_type': 'gemma3_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "6, 'sliding_window': 16}";

static const char *const llama4 =
    "{'model_type': 'llama4_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "6, 'attention_chunk_size': 32}";

static const char *const gemma4 =
    "{'model_type': 'gemma4_text', 'hidden_size': 64, 'intermediate_size': 96,'num_hidden_layers': "
    "8, 'sliding_window': 16, 'hidden_size_per_layer_input': 0}";

/* `base` with the keys of `patch` put over it. */
static inline char *patched(const char *base, const char *patch)
{
    json_t *root = json_loads(json_quoted(base), 0, NULL),
           *change = json_loads(json_quoted(patch), 0, NULL);
    if (!root || !change || json_object_update(root, change))
        abort();
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(change);
    return text;
}

static inline int parse(struct spw_model_config *out, const char *text, const char *generation,
                        struct spw_error *err)
{
    return spw_config_parse(
        out,
        &(struct spw_config_text){.config = text,
                                  .config_bytes = strlen(text),
                                  .generation = generation,
                                  .generation_bytes = generation ? strlen(generation) : 0},
        err);
}

static struct spw_model_config accepted[2]; /* the latest ones */

/* The config must be there, and lives until there are two later ones. */
static inline struct spw_model_config accept(const char *base, const char *patch,
                                             const char *generation)
{
    struct spw_error err = {0};
    char *text = patched(base, patch);
    spw_config_free(&accepted[0]);
    accepted[0] = accepted[1];
    int rc = parse(&accepted[1], text, generation ? json_quoted(generation) : NULL, &err);
    CHECK_MSG(rc == 0, "%s: %s", text, err.text);
    json_free(text);
    if (rc)
        abort();
    return accepted[1];
}

/* "FFSC...": full, sliding, chunked; M: with a state, N: none of these. */
static inline bool kinds_are(const struct spw_model_config *config, const char *expected)
{
    static const char letters[] = "FSCMN"; /* by kind */
    bool same = strlen(expected) == config->n_layers;
    for (uint32_t i = 0; same && i < config->n_layers; i++)
        same = letters[config->layer_kinds[i]] == expected[i];
    return same;
}

static inline void refuse(const char *base, const char *patch, const char *message)
{
    struct spw_error err = {0};
    struct spw_model_config config;
    char *text = patched(base, patch);
    int rc = parse(&config, text, NULL, &err);
    CHECK_MSG(rc == -EINVAL, "%s gave %d", text, rc);
    CHECK_MSG(strstr(err.text, json_quoted(message)) && !strchr(err.text, '\n'),
              "found '%s', expected '%s'", err.text, message);
    if (!rc)
        spw_config_free(&config);
    json_free(text);
}

/* Nothing stays allocated. */
static inline int config_done(void)
{
    for (int i = 0; i < 2; i++)
        spw_config_free(&accepted[i]);
    CHECK(spw_alloc_outstanding() == 0);
    CHECK(json_outstanding == 0);
    return check_done();
}

#endif
