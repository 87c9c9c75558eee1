/* The engine's side of the server: the one thread that opens the engine, steps the batch, and turns
 * its events into the bytes of answers.
 *
 *   HTTP: serve_work_submit -> queue -> engine: take, submit to the batch, step, events -> pieces
 * -> the exchange's protocol -> serve_exchange_add, serve_exchange_end
 *
 * Between two steps requests join, requests whose client has left end, and those that read a prompt
 * or wait hear of their progress each second. Steps are short: pace.h. */
#ifndef SPW_TOOLS_COMMAND_SERVE_WORK_H
#define SPW_TOOLS_COMMAND_SERVE_WORK_H

#include "tools/command/serve/exchange.h"
#include "tools/command/serve/metrics.h"
#include "tools/command/serve/state.h"

struct serve_work_options {
    const struct cli_options *o;   /* borrowed, as what follows, until close */
    const struct cli_model *model; /* with its tokenizer */
    double max_gap_seconds;        /* 0: 2 */
    uint32_t most_waiting; /* choices that wait for a place in the batch; an exchange with more of
                              them is taken if no other waits; 0: 256 */
    struct serve_metrics *metrics; /* gets times and lengths of requests; NULL: nobody asks */
    void (*ready)(void *context);  /* the engine's thread: it is open, exchanges are taken */
    void *context;
};

/* What /metrics shows. Counts since the start, unless they are a state. */
struct serve_counters {
    uint32_t n_running, n_waiting; /* choices of exchanges, now */
    uint64_t n_ended, n_refused, n_gone, n_failed;
    uint64_t n_prompt_tokens, n_answer_tokens;  /* of requests that have ended; generated */
    uint64_t n_reused_tokens, n_stored_tokens;  /* of the prompts: not computed; from the cache */
    double first_token_seconds, answer_seconds; /* sums over exchanges */
    uint64_t n_first_tokens;
    /* What fairness costs: steps of prompts that were paused, and the longest time between two
     * tokens of an answer, ever and in the last step. */
    uint64_t n_pauses;
    uint32_t prompt_chunks; /* now: chunks of prompts in a step */
    uint64_t pass_tokens;   /* now: tokens of prompts in a pass */
    double worst_gap_seconds, last_gap_seconds;
    uint32_t n_kept; /* now: sessions that are kept for later requests, and their tokens */
    uint64_t n_kept_tokens;
    double prefill_seconds, decode_seconds;
    uint64_t n_decode_steps, n_drafted, n_accepted;
    struct spw_stats engine;
    struct spw_prefix_stats prefix;
    struct spw_plan_info plan; /* texts in it are borrowed from the engine */
    bool is_ready;
};

int serve_work_open(struct serve_work **out, const struct serve_work_options *options);
/* The calling thread opens the engine and answers exchanges until serve_work_stop. Then exchanges
 * that wait are refused, those that run get 15 seconds to end, and the prefix cache is
 * written. 0, or an exit code after a line on stderr. */
int serve_work_run(struct serve_work *w);
/* Ends serve_work_run. Any thread, and handlers of signals. */
void serve_work_stop(struct serve_work *w);
/* After serve_work_run has returned. NULL is fine. */
void serve_work_close(struct serve_work *w);

/* Any thread. */
void serve_work_count(struct serve_work *w, struct serve_counters *out);
void serve_work_look(struct serve_work *w, struct serve_state *out);
/* The most tokens of a prompt and its answer; 0: the engine is not open yet. */
uint64_t serve_work_context(struct serve_work *w);
/* The exchange's client has left, or has read something: the engine's thread looks soon. */
void serve_work_wake(struct serve_work *w);

#endif
