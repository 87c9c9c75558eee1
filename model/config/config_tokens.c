/* The tokens that begin and end an answer, and the rules of the files for those between. */
#include "model/config/config.h"

#include "model/config/config_parts.h"

#include "base/grow.h"

#include <stdio.h>

/* Reads one id, or for eos a list of ids. An absent key and null leave the old value. */
static int read_token(const struct spw_keys *keys, const char *key, int32_t *ids, uint32_t *n,
                      uint32_t capacity)
{
    if (!spw_keys_has(keys, key))
        return 0;
    const json_t *value = json_object_get(keys->object, key);
    bool list = json_is_array(value) && capacity > 1;
    size_t count = list ? json_array_size(value) : 1;
    const char *expected = capacity > 1 ? "a token id or a list of at most 16" : "a token id";
    if (count > capacity)
        return spw_keys_refuse(keys, key, expected);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = list ? json_array_get(value, i) : value;
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return spw_keys_refuse(keys, key, expected);
        ids[i] = (int32_t)id;
    }
    *n = (uint32_t)count;
    return 0;
}

/* An answer never ends with an id that the model cannot choose. */
static int check_eos(const struct spw_model_config *out, const struct spw_keys *keys)
{
    char expected[64];
    snprintf(expected, sizeof expected, "ids below vocab_size, %u", out->vocab);
    for (uint32_t i = 0; i < out->n_eos; i++)
        if ((uint32_t)out->eos[i] >= out->vocab)
            return spw_keys_refuse(keys, "eos_token_id", expected);
    return 0;
}

/* ---- rules of answers ---- */

/* Ids of a value that has one id or a list of them. `ids` has room for count_ids of it. */
static size_t count_ids(const json_t *value)
{
    return json_is_array(value) ? json_array_size(value) : 1;
}

/* `unknown` stands for each id from vocab on; -1: ids that the model does not have are left out.
 * Returns the number of ids; -EINVAL: the value has something else. */
static int read_ids(int32_t *ids, const json_t *value, uint32_t vocab, int32_t unknown)
{
    int n = 0;
    for (size_t i = 0; i < count_ids(value); i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        const json_int_t id = json_integer_value(item);
        const bool is_known = id >= 0 && id < (json_int_t)vocab;
        if (!json_is_integer(item) || (id < 0 && unknown >= 0))
            return -EINVAL;
        if (is_known || unknown >= 0)
            ids[n++] = is_known ? (int32_t)id : unknown;
    }
    return n;
}

/* transformers passes over ids that the model does not have. */
static int read_list(struct spw_model_config *out, const struct spw_keys *keys,
                     enum spw_token_list_kind kind)
{
    const char *key = spw_token_list_name(kind);
    const json_t *value = spw_keys_value(keys, key);
    int32_t **ids = &out->rule_tokens[kind];
    if (!value)
        return 0;
    SPW_TRY(spw_resize(ids, count_ids(value) + 1, sizeof **ids));
    const int n = json_is_null(value) ? 0 : read_ids(*ids, value, out->vocab, -1);
    if (n < 0)
        return spw_keys_refuse(keys, key, "a token id or a list of token ids");
    out->token_rules.lists[kind] = (struct spw_token_list){*ids, (size_t)n};
    return 0;
}

/* To transformers a number below 0 means off, as 0 does. */
static int read_count(const struct spw_keys *keys, const char *key, uint64_t *out)
{
    const json_t *value = spw_keys_value(keys, key);
    if (!value || !json_is_integer(value) || json_integer_value(value) >= 0)
        return SPW_OR_NULL(spw_keys_u64, keys, key, 0, MAX_POSITIONS, out);
    *out = 0;
    return 0;
}

static bool is_end(const struct spw_model_config *c, int32_t token)
{
    bool any = false;
    for (uint32_t i = 0; i < c->n_eos; i++)
        any |= token == c->eos[i];
    return any;
}

/* Those that stand alone, and words of several tokens: the number of the tokens, then these. The
 * size of the vocabulary, which no answer has, stands for an id that the model does not have. As in
 * transformers, no end token stands alone. */
static int read_bad_words(struct spw_model_config *out, const struct spw_keys *keys)
{
    const json_t *words = spw_keys_value(keys, "bad_words_ids");
    struct spw_token_rules *r = &out->token_rules;
    size_t n_alone = 0, n = 0, room = 0;
    for (size_t i = 0; i < json_array_size(words); i++)
        room += 1 + count_ids(json_array_get(words, i));
    if (!room)
        return 0;
    SPW_TRY(spw_resize(&out->rule_tokens[SPW_BAD_WORDS], room, sizeof(int32_t)));
    SPW_TRY(spw_resize(&out->rule_tokens[SPW_TOKEN_LISTS], room, sizeof(int32_t)));
    int32_t *alone = out->rule_tokens[SPW_BAD_WORDS], *all = out->rule_tokens[SPW_TOKEN_LISTS];
    for (size_t i = 0; i < json_array_size(words); i++) {
        int32_t *word = all + n;
        word[0] = read_ids(word + 1, json_array_get(words, i), out->vocab, (int32_t)out->vocab);
        if (word[0] < 0)
            return spw_keys_refuse(keys, "bad_words_ids", "lists of token ids");
        if (word[0] > 1)
            n += (size_t)word[0] + 1;
        else if (word[0] && (uint32_t)word[1] < out->vocab && !is_end(out, word[1]))
            alone[n_alone++] = word[1];
    }
    r->lists[SPW_BAD_WORDS] = (struct spw_token_list){alone, n_alone};
    r->bad_words = (struct spw_token_list){all, n};
    return 0;
}

/* Absent keys leave the old values. A file that wants answers to be drawn wants no plain search. */
static int read_search(struct spw_search_rules *s, const struct spw_keys *keys)
{
    enum { MOST_BEAMS = 256 };
    const json_t *early = spw_keys_value(keys, "early_stopping");
    double penalty = (double)s->length_penalty, diversity = (double)s->diversity_penalty;
    double repetition = (double)s->repetition_penalty;
    bool draws = false;
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, keys, "do_sample", &draws));
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "num_beams", 1, MOST_BEAMS, &s->num_beams));
    SPW_TRY(SPW_OR_NULL(spw_keys_u32, keys, "num_beam_groups", 1, MOST_BEAMS, &s->num_beam_groups));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, keys, "diversity_penalty", 0, 1e6, &diversity));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, keys, "repetition_penalty", 0.001, 1000, &repetition));
    SPW_TRY(SPW_OR_NULL(spw_keys_number, keys, "length_penalty", -30, 30, &penalty));
    SPW_TRY(read_count(keys, "max_length", &s->max_length));
    SPW_TRY(read_count(keys, "max_new_tokens", &s->max_new_tokens));
    if (early && !json_is_boolean(early) && !json_is_null(early) && !json_is_string(early))
        return spw_keys_refuse(keys, "early_stopping", "true, false or \"never\"");
    if (early)
        s->early_stopping = json_is_true(early)     ? SPW_BEAMS_STOP_EARLY
                            : json_is_string(early) ? SPW_BEAMS_NEVER_EARLY
                                                    : SPW_BEAMS_STOP_LATE;
    s->length_penalty = (float)penalty;
    s->diversity_penalty = (float)diversity;
    s->repetition_penalty = (float)repetition;
    s->num_beams = draws ? 0 : s->num_beams;
    return 0;
}

static int read_numbers(const struct spw_keys *keys, struct spw_token_rules *r)
{
    SPW_TRY(read_count(keys, "no_repeat_ngram_size", &r->no_repeat_ngram_size));
    SPW_TRY(read_count(keys, "min_length", &r->min_length));
    return read_count(keys, "min_new_tokens", &r->min_new_tokens);
}

/* As the summarization pipeline of transformers: what config.json says of this task wins. */
static int read_summary(struct spw_model_config *out, const struct spw_keys *top)
{
    struct spw_summary_config *s = &out->summary;
    struct spw_keys tasks = *top, keys = *top;
    const char *prefix = "", *key = "prefix";
    s->search = out->search;
    s->rules = out->token_rules;
    tasks.prefix = "task_specific_params.";
    tasks.object = keys.object = NULL;
    keys.prefix = "task_specific_params.summarization.";
    SPW_TRY(spw_keys_object(top, "task_specific_params", &tasks.object));
    SPW_TRY(spw_keys_object(&tasks, "summarization", &keys.object));
    SPW_TRY(SPW_OR_NULL(spw_keys_string, top, key, &prefix));
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &keys, key, &prefix));
    if (snprintf(s->prefix, sizeof s->prefix, "%s", prefix) >= (int)sizeof s->prefix)
        return spw_keys_refuse(&keys, key, "at most 255 bytes");
    SPW_TRY(read_numbers(&keys, &s->rules));
    return read_search(&s->search, &keys);
}

/* As transformers, from generation_config.json, or from config.json where that file is missing. */
static int read_rules(struct spw_model_config *out, const struct spw_config_source *source,
                      const struct spw_keys *generation)
{
    const struct spw_keys *places[] = {generation->object ? generation : &source->top,
                                       generation->object ? generation : &source->text};
    struct spw_token_rules *r = &out->token_rules;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        SPW_TRY(read_numbers(places[i], r));
        SPW_TRY(
            SPW_OR_NULL(spw_keys_bool, places[i], "renormalize_logits", &r->renormalize_logits));
        for (int k = 0; k < SPW_BAD_WORDS; k++)
            SPW_TRY(read_list(out, places[i], (enum spw_token_list_kind)k));
    }
    if (!source->family->encodes)
        return 0;
    out->search.length_penalty = 1;
    SPW_TRY(read_bad_words(out, places[0]));
    SPW_TRY(read_search(&out->search, places[0]));
    return read_summary(out, &source->top);
}

/* ---- all of them ---- */

/* The defaults of the family, then config.json, then generation_config.json; the later one wins. */
int spw_config_read_tokens(struct spw_model_config *out, const struct spw_config_source *source,
                           const struct spw_keys *generation)
{
    const struct spw_keys *places[] = {&source->top, &source->text, generation};
    uint32_t n_bos = 0, start = (uint32_t)source->family->start;
    out->bos = source->family->bos;
    out->eos[0] = source->family->eos;
    out->n_eos = source->family->eos >= 0;
    for (size_t i = 0; i < 3; i++) {
        if (spw_keys_is_null(places[i], "eos_token_id"))
            out->n_eos = 0;
        if (spw_keys_is_null(places[i], "bos_token_id"))
            out->bos = -1;
        SPW_TRY(read_token(places[i], "eos_token_id", out->eos, &out->n_eos, SPW_CONFIG_MAX_EOS));
        SPW_TRY(read_token(places[i], "bos_token_id", &out->bos, &n_bos, 1));
        if (spw_keys_has(places[i], "eos_token_id"))
            SPW_TRY(check_eos(out, places[i]));
        if (source->family->encodes)
            SPW_TRY(SPW_OR_NULL(spw_keys_u32, places[i], "decoder_start_token_id", 0,
                                out->vocab - 1, &start));
    }
    out->start = (int32_t)start < 0 ? out->bos : (int32_t)start;
    if (source->family->encodes && (uint32_t)out->start >= out->vocab)
        return spw_keys_refuse(&source->text, "decoder_start_token_id",
                               "the token that answers begin with");
    return read_rules(out, source, generation);
}
