/* The tokens that begin an answer of Whisper, of generation_config.json: config_parts.h. Keys that
 * are missing are none of the model's. */
#include "model/config/config_parts.h"

#include <stdio.h>

static int read_languages(struct spw_speech_config *out, const struct spw_keys *keys,
                          uint32_t vocab)
{
    const json_t *ids = NULL, *id;
    const char *name;
    SPW_TRY(spw_keys_object(keys, "lang_to_id", &ids));
    if (!json_object_size(ids))
        return 0;
    out->languages = spw_alloc(json_object_size(ids) * sizeof *out->languages);
    if (!out->languages)
        return spw_fail(keys->err, -ENOMEM, "%s: out of memory", keys->file);
    json_object_foreach((json_t *)(uintptr_t)ids, name, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return spw_keys_refuse(keys, "lang_to_id", "token ids of the vocabulary");
        out->languages[out->n_languages++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

/* Pairs of a place, 1 and so on, and a token or null. */
static int read_start(struct spw_speech_config *out, const struct spw_keys *keys, uint32_t vocab)
{
    const char *key = "forced_decoder_ids";
    const json_t *pairs = spw_keys_value(keys, key), *pair;
    size_t i;
    if (!pairs || json_is_null(pairs))
        return 0;
    if (!json_is_array(pairs) || json_array_size(pairs) > SPW_SPEECH_MOST_START)
        return spw_keys_refuse(keys, key, "at most 8 pairs of a place and a token id");
    json_array_foreach(pairs, i, pair)
    {
        const json_t *id = json_array_get(pair, 1);
        const json_int_t at = json_integer_value(json_array_get(pair, 0));
        const json_int_t token = json_is_null(id) ? -1 : json_integer_value(id);
        if (at != (json_int_t)i + 1 || !id || (!json_is_null(id) && !json_is_integer(id)) ||
            token < -1 || token >= vocab)
            return spw_keys_refuse(keys, key, "pairs of the places 1, 2, ... and token ids");
        out->start[i] = (int32_t)token;
    }
    out->n_start = (uint32_t)json_array_size(pairs);
    return 0;
}

int spw_config_read_speech(struct spw_model_config *out, const struct spw_config_source *source,
                           const struct spw_keys *generation)
{
    const char *key = "max_initial_timestamp_index";
    struct spw_speech_config *speech = &out->speech;
    uint32_t no_timestamps = UINT32_MAX;
    if (!out->n_mels)
        return 0;
    SPW_TRY(read_languages(speech, generation, out->vocab));
    SPW_TRY(read_start(speech,
                       spw_keys_has(generation, "forced_decoder_ids") ? generation : &source->top,
                       out->vocab));
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, generation, "no_timestamps_token_id", 0, out->vocab - 1,
                        &no_timestamps));
    SPW_TRY(SPW_OR_NULL(spw_keys_u64, generation, key, 0, out->vocab,
                        &speech->max_initial_timestamp_index));
    if (!spw_keys_has(generation, key))
        speech->max_initial_timestamp_index = UINT64_MAX;
    speech->no_timestamps = (int32_t)no_timestamps;
    if (speech->n_languages && !speech->n_start)
        speech->start[speech->n_start++] = -1;
    return 0;
}

int spw_config_check_audio(const struct spw_model_config *c, const char *text, size_t bytes,
                           const char *name, struct spw_error *err)
{
    const uint32_t rows_a_second = 100;
    const struct {
        const char *key;
        uint32_t is;
    } numbers[] = {{"feature_size", c->n_mels},
                   {"sampling_rate", 16000},
                   {"n_fft", 400},
                   {"hop_length", 160},
                   {"chunk_length", SPW_AUDIO_FRAMES * c->n_audio / rows_a_second}};
    struct spw_keys keys = {.file = name, .prefix = "", .err = err};
    json_t *object = NULL;
    spw_error_clear(err);
    int rc = spw_json_load(text, bytes, name, 0, &object, err);
    keys.object = object;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !rc; i++) {
        uint32_t found = numbers[i].is;
        char expected[32];
        snprintf(expected, sizeof expected, "%u", numbers[i].is);
        rc = SPW_OR_NULL(spw_keys_u32, &keys, numbers[i].key, 0, UINT32_MAX, &found);
        if (!rc && found != numbers[i].is)
            rc = spw_keys_refuse(&keys, numbers[i].key, expected);
    }
    json_decref(object);
    if (rc)
        spw_json_tidy(err);
    return rc;
}
