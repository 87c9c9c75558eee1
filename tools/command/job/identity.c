/* See job.h. */
#include "tools/command/job/job.h"

#include "model/fingerprint.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

/* Options outside of the groups "Generation" and "Beam search" that answers depend on. */
static const char *const others[] = {"kv-dtype",           "residual-window", "compute", "context",
                                     "allow-long-context", "logprobs",        "shard"};

static bool decides(const struct cli_options *o, const struct cli_row *row)
{
    bool any = strcmp(row->group, "Generation") == 0 || strcmp(row->group, "Beam search") == 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        any |= strcmp(row->name, others[i]) == 0;
    return any && (row->commands & o->command->bit);
}

/* The file of a model may change its name; the fingerprint says what it is. */
static int add_model(json_t **to, const struct cli_options *o, const struct cli_model *model)
{
    uint8_t fingerprint[SPW_FINGERPRINT_BYTES];
    char hex[2 * SPW_FINGERPRINT_BYTES + 1], digest[17] = "none";
    struct spw_tensors *tensors;
    struct spw_error err = {0};
    char *text;
    size_t bytes;
    int rc = model->source->ops->tensors(model->source, &tensors, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    rc = spw_fingerprint_take(fingerprint, model->source, tensors, &err);
    spw_tensors_close(tensors);
    if (rc)
        return cli_fail_error(rc, &err, true);
    spw_fingerprint_text(hex, fingerprint);
    rc = model->source->ops->text(model->source, SPW_SOURCE_TOKENIZER, &text, &bytes, &err);
    if (!rc) {
        snprintf(digest, sizeof digest, "%016" PRIx64, XXH3_64bits(text, bytes));
        spw_free(text);
    } else if (rc != -ENOENT) {
        return cli_fail_error(rc, &err, true);
    }
    cli_json_add(to, "the command", CLI_JSON(o->command->name));
    cli_json_add(to, "the model", CLI_JSON((const char *)hex));
    cli_json_add(to, "the tokenizer", CLI_JSON((const char *)digest));
    return 0;
}

static int add_template(json_t **to, const struct cli_options *o)
{
    char digest[17], *text = NULL;
    size_t bytes = 0;
    int code = o->chat_template ? cli_read_file(o->chat_template, &text, &bytes) : 0;
    if (code)
        return code;
    snprintf(digest, sizeof digest, "%016" PRIx64, XXH3_64bits(text, bytes));
    spw_free(text);
    cli_json_add(to, "the chat template",
                 CLI_OR_NULL(o->chat_template, CLI_JSON((const char *)digest)));
    return 0;
}

static uint64_t add_ids(uint64_t hash, struct spw_token_list list)
{
    const uint64_t n = list.n;
    hash = XXH3_64bits_withSeed(&n, sizeof n, hash);
    return XXH3_64bits_withSeed(list.ids, list.n * sizeof *list.ids, hash);
}

/* Adds a digest of what generation_config.json says of the tokens of answers. Neither the options
 * nor the fingerprint of the model contain these rules. */
static void add_token_rules(json_t **to, const struct spw_model_config *c)
{
    const struct spw_token_rules *r = &c->token_rules;
    const struct spw_speech_config *s = &c->speech;
    const uint64_t numbers[] = {r->no_repeat_ngram_size, r->min_length, r->min_new_tokens,
                                r->renormalize_logits, s->max_initial_timestamp_index};
    const int32_t tokens[] = {c->start, s->no_timestamps};
    const struct spw_token_list lists[] = {{tokens, 2},
                                           {c->eos, c->n_eos},
                                           {s->start, s->n_start},
                                           {s->languages, s->n_languages},
                                           r->bad_words};
    char digest[17];
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        hash = add_ids(hash, lists[i]);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        hash = add_ids(hash, r->lists[k]);
    snprintf(digest, sizeof digest, "%016" PRIx64, hash);
    cli_json_add(to, "the token rules", CLI_JSON((const char *)digest));
}

int job_identity(json_t **out, const struct cli_options *o, const struct cli_model *model)
{
    *out = json_object();
    int code = add_model(out, o, model);
    if (!code)
        code = add_template(out, o);
    for (const struct cli_row *row = cli_rows; row->name && !code; row++) {
        char name[64];
        snprintf(name, sizeof name, "--%s", row->name);
        if (!decides(o, row))
            continue;
        json_t *value = cli_value_json(o, row);
        if (json_is_integer(value) &&
            json_integer_value(value) < 0) /* as the first jobs wrote it */
            json_integer_set(value, INT64_MAX);
        cli_json_add(out, name, value);
    }
    if (!code)
        add_token_rules(out, &model->config);
    if (!code && !*out)
        code = cli_fail(CLI_FAILED, "out of memory");
    if (code) {
        json_decref(*out);
        *out = NULL;
    }
    return code;
}
