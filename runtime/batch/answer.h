/* One request and its answer so far: tokens, text, result. Sessions and steps are not known here
 * (batch.c).
 *
 *   token -> spw_answer_push -> detokenizer -> stop strings -> text that is final
 *
 * An answer owns all that it points to but the request's session. Opening takes all memory but that
 * of the text, which grows with what is final and not yet read. Not thread-safe. */
#ifndef SPW_RUNTIME_BATCH_ANSWER_H
#define SPW_RUNTIME_BATCH_ANSWER_H

#include "base/grow.h"
#include "model/config/config.h"
#include "model/text/grammar/run.h"
#include "model/text/tokenizer/tokenizer.h"
#include "runtime/batch/stop.h"
#include "runtime/spillway.h"

struct spw_answer {
    /* prompt: in `tokens`; no other pointer but the session and what sampling has, below */
    struct spw_request request;
    struct spw_logit_bias *logit_bias; /* owned, [request.sampling.n_logit_bias] */
    int32_t *lists[SPW_TOKEN_LISTS];   /* owned: of request.sampling.rules */
    int32_t *tokens;                   /* [n_prompt + max_new_tokens] */
    size_t n_tokens;                   /* the prompt's, given ones and generated ones */
    struct spw_result result;
    const struct spw_model_config *config; /* borrowed */
    struct spw_detokenizer *detokenizer;   /* NULL: nobody wants text */
    /* The last bytes of the prompt's text, which the detokenizer gives with the first new text:
     * they are left out. [n_prompt_end]; n_skipped of them were left out already. */
    char *prompt_end;
    size_t n_prompt_end, n_skipped;
    uint64_t n_text_left; /* bytes of request.n_text_given that are still to be left out */
    struct spw_stop *stop;
    const struct spw_tokenizer *tokenizer; /* borrowed */
    struct spw_grammar_run *grammar;       /* NULL: any text */
    uint64_t *allowed;  /* [vocab] bits, owned: those of the grammar, and end tokens */
    int grammar_rc;     /* why no token may follow; 0 */
    bool is_in_grammar; /* the answer has had request.grammar_after: now the grammar counts */
    char latest[64];    /* [n_latest]: the newest bytes of the answer before that */
    size_t n_latest;
    struct spw_text text; /* final, and not reported yet */
};

/* `vocabulary`: of the tokenizer, if the request has a grammar. `i`: the request's number, for
 * messages. -EINVAL, -ENOMEM. The caller has checked the request. */
int spw_answer_open(struct spw_answer *a, const struct spw_request *request, uint64_t i,
                    const struct spw_model_config *config, const struct spw_tokenizer *tokenizer,
                    const struct spw_vocabulary *vocabulary, struct spw_error *err);
void spw_answer_close(struct spw_answer *a);

/* How the answer ended; SPW_FINISH_NONE: it needs another step. */
enum spw_finish spw_answer_finish(const struct spw_answer *a);
/* Sets request.sampling.allowed for the next token. */
void spw_answer_allow(struct spw_answer *a);
/* The next token, picked from logits [vocab]; NULL: nothing was computed. -ENOMEM: no memory for
 * its text; -EDOM: its log-probability is not a number. */
int spw_answer_push(struct spw_answer *a, int32_t token, const float *logits);
/* The answer consists of these tokens alone; nothing was computed for it. -ENOMEM. */
int spw_answer_replace(struct spw_answer *a, const int32_t *tokens, size_t n);
/* No more tokens come: the text that was not final yet becomes final, unless a later batch
 * continues the answer. If this completes a stop string, result.finish says so. */
int spw_answer_end(struct spw_answer *a);
/* Whether the first step needs more logits than those that the first new token is picked from. */
static inline bool spw_answer_is_scored(const struct spw_answer *a)
{
    return a->request.prompt_logprobs || (a->request.logprobs && a->request.n_given);
}
/* The log-probability of the prompt's token, or the given token, after `position`, given logits
 * [vocab] there. -EDOM: it is not a number. */
int spw_answer_score(struct spw_answer *a, uint64_t position, const float *logits);

#endif
