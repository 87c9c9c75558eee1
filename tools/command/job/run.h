/* Answers the items of a job: one engine, one batch, as many items side by side as memory allows.
 *
 * Items come from a source, one after the other, and go back to it when they have ended. The engine
 * is made for the longest item that is expected. For a longer one, the items that run are finished,
 * and another engine is opened. */
#ifndef SPW_TOOLS_COMMAND_JOB_RUN_H
#define SPW_TOOLS_COMMAND_JOB_RUN_H

#include "tools/command/engine.h"
#include "tools/command/request/request.h"
#include "tools/command/output/progress.h"
#include "tools/command/job/store/store.h"

/* Calls return 0 or an exit code, which ends the run. */
struct job_source {
    /* *out: the next item, which is allocated with spw_alloc and encoded. NULL: none, as long as no
     * other item ends; with *is_late the input may give one later. The call may wait for input,
     * `wait_ms` at most. */
    int (*next)(void *context, int wait_ms, struct request **out, bool *is_late);
    /* The item has ended: every choice has its result. The item is freed afterwards. Without a
     * store also when the run ends before the item: choices have the tokens so far. */
    int (*answered)(void *context, struct request *x);
    int (*refused)(void *context, struct request *x, const struct request_refusal *why);
    /* n_total, n_done, n_failed, and n_running if that is not the number of items that run. Returns
     * the work that was not handed out yet, relative to the work that was; 0: none, or not known.
     */
    double (*count)(void *context, struct job_counts *out);
    void *context;
};

struct job_run_options {
    const struct cli_options *o;
    const struct cli_model *model;
    /* Keeps tokens of answers under way, once a second and at the end, which a later run takes up;
     * NULL: there is none. */
    struct job_store *store;
    uint64_t longest;    /* tokens of the longest item that is expected; 0: not known */
    uint64_t typical;    /* tokens of an item on average; 0: not known */
    uint64_t n_sessions; /* that the expected items have use for; 0: not known */
    /* Items get moved_bytes and fallbacks. Each count waits for the transfers ahead. */
    bool measures_items;
};

/* Sets what the command line leaves open otherwise than `generate` does: if memory is short, items
 * wait, and no answer loses precision because of a neighbour; the loop chooses the sessions. */
void job_set_defaults(struct cli_options *o);
int job_run(const struct job_run_options *options, const struct job_source *source);

#endif
