/* libFuzzer target of the config reader. The input is config.json, and after a NUL byte, if there
 * is one, generation_config.json. Whatever the bytes, a failure has a one-line message and an
 * accepted config keeps what config.h promises.
 *
 *   build/fuzz/fuzz_config -max_total_time=60 tests/fuzz/seeds/config */
#include "model/config/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(bool promise)
{
    if (!promise)
        abort();
}

static void check_rope(const struct spw_model_config *config, enum spw_layer_kind kind)
{
    static float inv_freq[512];
    float scaling;
    const uint64_t lengths[] = {1, config->max_positions, config->max_positions * 4 + 1};
    const struct spw_rope_config *rope = &config->rope[kind];
    expect(rope->rotary_dim >= 2 && rope->rotary_dim <= config->kv[kind].head_dim);
    for (size_t i = 0; i < 3; i++) /* may refuse what would not be finite, must not crash */
        spw_rope_frequencies(rope, rope->rotary_dim, lengths[i], config->max_positions, inv_freq,
                             &scaling);
}

static void check_shape(const struct spw_model_config *config, const struct spw_kv_shape *kv)
{
    expect(kv->n_heads && config->n_heads % kv->n_heads == 0);
    expect(kv->head_dim >= 2 && kv->head_dim % 2 == 0 && kv->head_dim <= 1024);
    expect(kv->n_slices && kv->n_slices <= SPW_MOST_SLICES && kv->n_heads % kv->n_slices == 0);
}

static void check_layer(const struct spw_model_config *config, uint32_t layer)
{
    const enum spw_layer_kind kind = (enum spw_layer_kind)config->layer_kinds[layer];
    expect(kind < SPW_LAYER_KINDS);
    if (spw_config_attends(config, layer)) {
        check_shape(config, spw_config_kv(config, layer));
        check_rope(config, kind);
    }
    expect(!config->has_mlp[layer] || config->has_experts[layer] || config->intermediate);
    expect(spw_config_stores_kv(config, config->kv_layers[layer]));
    expect(config->first_slices[layer] + spw_config_layer_slices(config, layer) <=
           config->n_slices);
    expect(config->layer_kinds[config->kv_layers[layer]] == spw_config_tile_kind(config, kind));
    expect(!spw_layer_has_window(kind) || config->window);
    if (spw_config_has_state(config, layer)) {
        expect(config->state_slices[layer] < config->n_slices);
        expect(spw_mixer_state_floats(&config->mixer) && spw_mixer_in_width(&config->mixer));
    }
}

static void check_config(const struct spw_model_config *config)
{
    expect(config->n_layers && config->hidden && config->vocab);
    expect(config->n_source_layers < config->n_layers);
    expect(config->attention_scale > 0 && config->embedding_scale > 0 && config->rms_eps >= 0);
    expect(config->n_eos <= SPW_CONFIG_MAX_EOS && config->bos >= -1);
    for (uint32_t i = 0; i < config->n_layers; i++)
        check_layer(config, i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *split = bytes ? memchr(data, 0, bytes) : NULL;
    struct spw_config_text text = {.config = (const char *)data, .config_bytes = bytes};
    if (split) {
        text.config_bytes = (size_t)(split - data);
        text.generation = (const char *)split + 1;
        text.generation_bytes = bytes - text.config_bytes - 1;
    }
    struct spw_error err = {0};
    struct spw_model_config config;
    if (spw_config_parse(&config, &text, &err)) {
        expect(err.text[0] && !strchr(err.text, '\n') && !config.layer_kinds);
    } else {
        check_config(&config);
        spw_config_free(&config);
    }
    expect(spw_alloc_outstanding() == 0);
    return 0;
}
