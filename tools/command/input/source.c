/* What the encoder of a model reads: --input-file. See input.h. */
#include "tools/command/input/input.h"
#include "tools/command/input/speech.h"

#include <string.h>

int cli_join_source(int32_t **tokens, size_t *n, const struct spw_model_config *c,
                    const int32_t *source, size_t n_source)
{
    const bool begins = *n && **tokens == c->start;
    int32_t *all = spw_alloc((n_source + 1 + *n) * sizeof *all);
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < n_source; i++)
        all[i] = spw_source_token(source[i]);
    all[n_source] = c->start;
    if (*n)
        memcpy(all + n_source + !begins, *tokens, *n * sizeof *all);
    spw_free(*tokens);
    *tokens = all;
    *n += n_source + !begins;
    return 0;
}

int cli_take_as_source(struct cli_inputs *in, const struct spw_model_config *c)
{
    struct cli_input *item = &in->items[0];
    int32_t *tokens = NULL;
    size_t n = 0;
    if (!c->n_source_layers || spw_source_length(item->tokens, item->n_tokens))
        return 0;
    if (cli_join_source(&tokens, &n, c, item->tokens, item->n_tokens))
        return cli_fail(CLI_FAILED, "out of memory");
    spw_free(item->tokens);
    item->tokens = tokens;
    item->n_tokens = n;
    in->longest++;
    return 0;
}

/* item->speech, and the tokens of its first window. */
static int add_audio(struct cli_input *item, const char *path, const struct cli_model *m)
{
    struct cli_speech *s = item->speech = spw_alloc_zero(1, sizeof *s);
    struct spw_error err = {0};
    char *data;
    size_t bytes;
    if (!s)
        return cli_fail(CLI_FAILED, "out of memory");
    int code = cli_read_file(path, &data, &bytes);
    if (code)
        return code;
    const struct cli_speech_file f = {cli_input_name(path), data, bytes, item->tokens,
                                      item->n_tokens};
    int rc = cli_speech_open(s, &m->config, &f, &err);
    spw_free(data);
    spw_free(item->tokens);
    item->tokens = rc ? NULL : spw_alloc(s->n_tokens * sizeof *s->tokens);
    item->n_tokens = item->tokens ? s->n_tokens : 0;
    if (item->tokens)
        memcpy(item->tokens, s->tokens, s->n_tokens * sizeof *s->tokens);
    else
        rc = rc ? rc : spw_fail(&err, -ENOMEM, "out of memory");
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

int cli_add_source(struct cli_input *item, const struct cli_options *o, const struct cli_model *m)
{
    int32_t *source = NULL;
    size_t n;
    if (!m->config.n_source_layers)
        return cli_fail(CLI_REFUSED,
                        "--input-file: the model (%s) has no encoder; --prompt-file is for such "
                        "models",
                        m->config.model_type);
    if (item->n_tokens && !item->tokens)
        return cli_fail(CLI_REFUSED, "found both --input-file and --prompt-tokens, expected one "
                                     "of them");
    if (m->config.n_mels)
        return add_audio(item, o->input_file, m);
    int code = cli_encode_file(m->tokenizer, o->input_file, true, &source, &n);
    if (code == 0)
        code = cli_check_ids(cli_input_name(o->input_file), source, n,
                             spw_config_vocab(&m->config, true));
    if (code == 0)
        code = cli_join_source(&item->tokens, &item->n_tokens, &m->config, source, n)
                   ? cli_fail(CLI_FAILED, "out of memory")
                   : 0;
    spw_free(source);
    return code;
}

uint64_t cli_max_new_tokens(const struct cli_options *o, const struct spw_model_config *c,
                            uint64_t n_before)
{
    const struct spw_search_rules *s = &c->search;
    if (c->n_mels && !cli_given(o, "max-new-tokens")) /* as many as the model has places for */
        return spw_sub_u64(c->stack_positions, n_before);
    if (cli_given(o, "max-new-tokens") || (!s->max_new_tokens && !s->max_length))
        return o->max_new_tokens;
    return s->max_new_tokens ? s->max_new_tokens
                             : spw_max_u64(spw_sub_u64(s->max_length, n_before), 1);
}
