/* What options, and the files of a model, say of a beam search: input.h. */
#include "tools/command/input/input.h"

#include <inttypes.h>

const char *const cli_no_beams[] = {"save",     "resume",      "json-schema", "dump-logits",
                                    "logprobs", "temperature", "stop",        "expert-trace",
                                    "n",        NULL};

static int check(const struct cli_options *o)
{
    static const char *const of_beams[] = {"num-beam-groups", "diversity-penalty", "length-penalty",
                                           "early-stopping", "num-return-sequences"};
    const bool has_beams = o->num_beams > 1;
    for (size_t i = 0; !has_beams && i < sizeof of_beams / sizeof *of_beams; i++)
        if (cli_given(o, of_beams[i]))
            return cli_fail(CLI_REFUSED, "--%s needs --num-beams above 1", of_beams[i]);
    for (size_t i = 0; has_beams && cli_no_beams[i]; i++)
        if (cli_given(o, cli_no_beams[i]))
            return cli_fail(CLI_REFUSED, "found both --num-beams and --%s, expected one of them",
                            cli_no_beams[i]);
    if (o->num_return_sequences > o->num_beams)
        return cli_fail(CLI_REFUSED,
                        "--num-return-sequences: found %llu, expected at most %llu, "
                        "the number of beams",
                        (unsigned long long)o->num_return_sequences,
                        (unsigned long long)o->num_beams);
    if (cli_given(o, "sessions") && o->sessions < o->num_beams)
        return cli_fail(CLI_REFUSED,
                        "--sessions: found %" PRIu64 ", expected at least %" PRIu64
                        ", one for each beam",
                        o->sessions, o->num_beams);
    return 0;
}

void cli_obey_search(struct cli_options *o, const struct cli_model *m)
{
    const struct spw_search_rules *s = &m->config.search;
    const bool asks = !cli_given(o, "num-beams") && s->num_beams > 1 && !m->config.n_mels;
    const char *other = NULL;
    for (size_t i = 0; cli_no_beams[i]; i++)
        other = cli_given(o, cli_no_beams[i]) ? cli_no_beams[i] : other;
    /* a temperature asks for samples, and a saved run goes on as it began */
    if (asks && other && !cli_given(o, "temperature") && !cli_given(o, "resume"))
        cli_note("the files of the model ask for a search with %llu beams; --%s makes none, so the "
                 "answer may be another one",
                 (unsigned long long)s->num_beams, other);
    if (asks && !other) {
        o->num_beams = s->num_beams;
        if (!cli_given(o, "num-beam-groups") && s->num_beam_groups)
            o->num_beam_groups = s->num_beam_groups;
        if (!cli_given(o, "diversity-penalty"))
            o->diversity_penalty = (double)s->diversity_penalty;
    }
    if (!cli_given(o, "repetition-penalty") && s->repetition_penalty > 0)
        o->repetition_penalty = (double)s->repetition_penalty;
    if (!cli_given(o, "length-penalty") && m->config.n_source_layers)
        o->length_penalty = (double)s->length_penalty;
    if (!cli_given(o, "early-stopping"))
        o->early_stopping = (int)s->early_stopping;
}

int cli_take_search(struct cli_options *o, const struct cli_model *m)
{
    cli_obey_search(o, m);
    const int code = check(o);
    if (!code && o->num_beams > 1 && !cli_given(o, "num-beams"))
        cli_note(
            "the files of the model ask for a search with %llu beams; --num-beams 1 makes none",
            (unsigned long long)o->num_beams);
    return code;
}

struct spw_beam_search cli_beams(const struct cli_options *o)
{
    return (struct spw_beam_search){.n_beams = o->num_beams > 1 ? (uint32_t)o->num_beams : 0,
                                    .n_groups = (uint32_t)o->num_beam_groups,
                                    .n_return = (uint32_t)o->num_return_sequences,
                                    .diversity_penalty = (float)o->diversity_penalty,
                                    .length_penalty = (float)o->length_penalty,
                                    .early_stopping = (enum spw_early_stopping)o->early_stopping};
}
