/* The engine of a command: its options, and opening it. */
#ifndef SPW_TOOLS_COMMAND_ENGINE_H
#define SPW_TOOLS_COMMAND_ENGINE_H

#include "tools/command/events.h"
#include "tools/command/input/input.h"
#include "tools/command/limits.h"

/* Engine options from the command line, for `context` tokens. They borrow from `o`. */
struct spw_options cli_engine_options(const struct cli_options *o, uint64_t context,
                                      uint32_t sessions);
/* Whether a plan was refused for its budgets, or for the limit of what it writes to disk. */
static inline bool cli_is_too_small(int rc)
{
    return rc == -ENOMEM || rc == -EDQUOT;
}
/* Sets options->full_sessions: where budgets do not hold as many contexts as there are sessions,
 * the most that they do hold. Old KV with less precision is no way out as long as one context fits.
 * Takes fewer sessions where the budgets do not even hold what each of them needs; fewer than
 * `least` only if they do not hold that number. 0, or the refusal of spw_plan_query. */
int cli_fit_sessions(struct spw_options *options, const struct cli_options *o, uint32_t least,
                     struct spw_error *err);
/* Sets options->full_sessions to the contexts that the beams of --num-beams need: they share the
 * prompt, but for its last tile, or nothing. */
void cli_count_full(struct spw_options *options, const struct cli_options *o,
                    const struct cli_input *in);
struct spw_sampling cli_sampling(const struct cli_options *o);
/* Refuses options of answers that do not fit to the model m, which is open: a --stop that is no
 * text, a --logit-bias of a token that m does not have, a --draft-model whose tokens are others
 * than those of m. An exit code. */
int cli_check_answers(const struct cli_options *o, const struct cli_model *m);
/* Opens the engine for the model o->operand, and prints its first events and notes: limits that are
 * not known, the device, a --kv-dtype that the model does not pass. 0, or an exit code after a line
 * on stderr. */
int cli_engine_open(struct spw_engine **out, struct cli_events *events, const struct cli_options *o,
                    const struct spw_options *options, const struct cli_limits *limits);

#endif
