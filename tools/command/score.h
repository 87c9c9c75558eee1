/* Scoring a text: the log-likelihood of its tokens. `score` and `quantize` use it. Functions that
 * return int return 0, or an exit code after one line on stderr. */
#ifndef SPW_TOOLS_COMMAND_SCORE_H
#define SPW_TOOLS_COMMAND_SCORE_H

#include "tools/command/events.h"

struct cli_score {
    int32_t *tokens; /* owned by the caller, who frees them with spw_free */
    size_t n_tokens;
    double log_likelihood;     /* nats, of all tokens but the first one */
    struct spw_engine *engine; /* owned: open from cli_score_run to cli_score_close */
    struct cli_events events;
    struct spw_waterlines waterlines;
    double seconds;
};

/* Reads the tokens of --text, --text-file or --token-ids for the model o->operand. Refuses fewer
 * than two tokens, and more than the context has. */
int cli_score_read(const struct cli_options *o, struct cli_score *s);
/* Scores the tokens with the model o->operand. Call cli_score_close also after a failure. */
int cli_score_run(const struct cli_options *o, struct cli_score *s);
void cli_score_close(struct cli_score *s);
/* Nats a token. */
double cli_score_loss(const struct cli_score *s);

#endif
