/* The --report of a job: what its engines have measured, and what was answered in this run. */
#ifndef SPW_TOOLS_COMMAND_JOB_REPORT_H
#define SPW_TOOLS_COMMAND_JOB_REPORT_H

#include "tools/command/events.h"
#include "tools/command/request/request.h"
#include "tools/command/output/progress.h"
#include "tools/command/output/report.h"

#include "runtime/plan_query.h"

/* The requests of an engine, for the prediction of its bytes: of short jobs only, since all tokens
 * of their prompts are kept. */
struct job_asked {
    /* Owned, [n]: by the number of the request, less 1; with their tokens and rows of steps */
    struct spw_plan_request *requests;
    size_t n, n_ended;
    bool is_unknown; /* too many, or something that no plan knows */
};

struct job_report {
    json_t *engine, *earlier; /* owned: of the latest engine; a list of the others */
    uint64_t n_generated;     /* by this run, in answers that are complete */
    struct cli_reuse reuse;
    struct spw_batch_times times; /* of all engines */
    struct job_asked asked;
};
/* A request was submitted. */
void job_report_asked(struct job_report *r, const struct spw_request *request, uint64_t id);
/* A request of the item has ended. */
void job_report_choice(struct job_report *r, const struct request *x, size_t choice, size_t n_given,
                       uint64_t id);
/* Call it before an engine is closed. */
void job_report_engine(struct job_report *r, const struct cli_options *o, struct spw_engine *e,
                       const struct spw_batch *b, const struct cli_events *events);
/* Writes o->report, if it was asked for and an engine was opened. `totals`: of the whole job. Frees
 * the report. 0 or an exit code. */
int job_report_end(struct job_report *r, const struct cli_options *o,
                   const struct job_counts *totals);

#endif
