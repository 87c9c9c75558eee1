/* The progress of a job on stderr: on a terminal a line that is rewritten in place, else (a log) a
 * sentence each minute and one at the end. progress_text.h has the texts. One job a process, one
 * thread. */
#ifndef SPW_TOOLS_COMMAND_JOB_PROGRESS_PROGRESS_H
#define SPW_TOOLS_COMMAND_JOB_PROGRESS_PROGRESS_H

#include "tools/command/job/progress/progress_text.h"
#include "tools/command/limits.h"
#include "tools/command/output/progress.h"

/* --progress: `auto` looks at stderr, `always` is the line, `never` is neither. `noun`: what the
 * job counts, in the plural ("documents"). */
void job_progress_open(enum cli_progress_mode mode, const char *noun);
/* For spw_options.on_progress; NULL if nothing is shown. During a long step it also prints events.
 */
cli_progress_function *job_progress_callback(void);
/* Call it before the callback: how many items run now (UINT64_MAX: as before), and how many prompts
 * are read. The other items of the last update wait. */
void job_progress_running(uint64_t n_running, uint64_t n_reading);
/* Call it after each opening of an engine, and with NULL before the engine is closed. Borrows all
 * three until then. `limits` may lack numbers: then no link has a limit. */
void job_progress_engine(struct spw_engine *engine, struct cli_events *events,
                         const struct cli_limits *limits);
/* Call it after the events of each step were read. Other calls, while no step runs, are fine. */
void job_progress_update(const struct job_counts *counts);
/* Removes the line; the log of a job of a minute or more gets the last sentence, with the speeds of
 * the whole job. Call it before the engine is closed. */
void job_progress_end(void);

#endif
