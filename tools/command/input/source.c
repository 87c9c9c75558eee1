/* What the encoder of a model reads: --input-file. See input.h. */
#include "tools/command/input/input.h"
#include "tools/command/input/speech.h"

#include <string.h>

/* item->tokens = the source, the first token of answers, the tokens of the item. */
static int join(struct cli_input *item, const struct spw_model_config *c, const int32_t *source,
                size_t n_source)
{
    const bool begins = item->n_tokens && item->tokens[0] == c->start;
    int32_t *all = spw_alloc((n_source + 1 + item->n_tokens) * sizeof *all);
    if (!all)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n_source; i++)
        all[i] = spw_source_token(source[i]);
    all[n_source] = c->start;
    if (item->n_tokens)
        memcpy(all + n_source + !begins, item->tokens, item->n_tokens * sizeof *all);
    spw_free(item->tokens);
    item->tokens = all;
    item->n_tokens += n_source + !begins;
    return 0;
}

/* item->speech, and the tokens of its first window. */
static int add_audio(struct cli_input *item, const char *path, const struct cli_model *m)
{
    struct cli_speech *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return cli_fail(CLI_FAILED, "out of memory");
    int code = cli_speech_open(s, &m->config, path, item->tokens, item->n_tokens);
    spw_free(item->tokens);
    item->n_tokens = code ? 0 : s->n_tokens;
    item->tokens = code ? NULL : spw_alloc(s->n_tokens * sizeof *s->tokens);
    if (!code && !item->tokens)
        code = cli_fail(CLI_FAILED, "out of memory");
    if (!code)
        memcpy(item->tokens, s->tokens, s->n_tokens * sizeof *s->tokens);
    item->speech = s;
    return code;
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
        code = join(item, &m->config, source, n);
    spw_free(source);
    return code;
}

void cli_obey_search(struct cli_options *o, const struct cli_model *m, const char *const *others)
{
    const struct spw_search_rules *s = &m->config.search;
    for (size_t i = 0; others[i]; i++)
        if (cli_given(o, others[i]))
            return;
    if (!cli_given(o, "num-beams") && s->num_beams > 1 && !m->config.n_mels)
        o->num_beams = s->num_beams;
    if (!cli_given(o, "length-penalty") && m->config.n_source_layers)
        o->length_penalty = (double)s->length_penalty;
    if (!cli_given(o, "early-stopping"))
        o->early_stopping = (int)s->early_stopping;
}

uint64_t cli_max_new_tokens(const struct cli_options *o, const struct spw_model_config *c,
                            uint64_t n_before)
{
    const struct spw_search_rules *s = &c->search;
    if (cli_given(o, "max-new-tokens") || (!s->max_new_tokens && !s->max_length))
        return o->max_new_tokens;
    return s->max_new_tokens ? s->max_new_tokens
                             : spw_max_u64(spw_sub_u64(s->max_length, n_before), 1);
}
