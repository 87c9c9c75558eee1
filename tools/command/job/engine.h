/* The engine of a job, one after the other: each is made for the longest item that is expected. It
 * plans what fits the budgets, and refuses items that no engine can be made for. One thread. */
#ifndef SPW_TOOLS_COMMAND_JOB_ENGINE_H
#define SPW_TOOLS_COMMAND_JOB_ENGINE_H

#include "tools/command/job/report.h"
#include "tools/command/job/run.h"

struct job_engine {
    /* Borrowed; set by the caller, as what follows up to `next`. */
    const struct job_run_options *is;
    void (*on_progress)(void *context, const struct spw_progress *p);
    void *progress_context;
    bool rolls_back;            /* requests are canceled, and come again: struct spw_options */
    uint64_t limit;             /* the longest item that the model allows */
    uint64_t most;              /* longer items do not fit the budgets; UINT64_MAX: not known */
    const struct request *next; /* the item that the next engine is for */

    uint64_t written_bytes;    /* to the drive, by engines that were closed */
    struct spw_engine *engine; /* owned, as what follows; NULL: none is open */
    struct spw_batch *batch;
    struct cli_events events;
    struct spw_options options;
    struct cli_limits limits;
};

/* Opens an engine for an item of `least` tokens, and for twice the length of the last ones (`last`)
 * if there is memory: a job whose items grow needs few engines. 0 or an exit code. *fits: false:
 * the budgets are too small for the item, and no engine is open. */
int job_engine_open(struct job_engine *e, uint64_t least, uint64_t last, bool *fits);
/* Adds what it has measured to the report. Fine if none is open, or its batch is not. */
void job_engine_close(struct job_engine *e, struct job_report *report);

/* An item does not fit the budgets. Finds the longest one that does: `most`. If none does, names
 * its line, and budgets for all items that are expected. 0 or an exit code. */
int job_engine_find_most(struct job_engine *e, const struct request *x);
/* An item that no engine can be made for. Names the budgets that it needs. */
void job_engine_refuse(const struct job_engine *e, const struct request *x,
                       struct request_refusal *why);
/* Whether an engine with this plan has sessions and room for all beams of the item. */
bool job_engine_holds_beams(const struct spw_plan_info *p, const struct request *x);
/* Items have at most so many tokens. */
uint64_t job_engine_longest(const struct job_engine *e);

#endif
