/* The texts of a job's progress: a line that fits a terminal, and a sentence for a log. Pure. */
#ifndef SPW_TOOLS_COMMAND_JOB_PROGRESS_PROGRESS_TEXT_H
#define SPW_TOOLS_COMMAND_JOB_PROGRESS_PROGRESS_TEXT_H

#include "runtime/spillway.h"

/* What the loop of a job knows. A failed document is not done. */
struct job_counts {
    uint64_t n_total; /* 0: not known yet, the input is still read */
    uint64_t n_done, n_running, n_waiting, n_failed;
    /* Requests that run in the batch, and the tokens that they hold together. */
    uint64_t n_requests, n_held_tokens;
    uint64_t n_reading; /* prompts that are computed now, together */
    /* Tokens that this process has generated, and answers that have such tokens. */
    uint64_t n_answer_tokens, n_begun;
    /* Estimates: prompts that are not computed yet; their tokens, without those that will be
     * reused; tokens that answers still need. */
    uint64_t n_prompts_left, n_prompt_tokens_left, n_answer_tokens_left;
};

struct job_link {
    double rate, limit; /* bytes a second; rate: NAN if hardly a byte crosses the link */
};

/* NAN stands for a number that is not known; the texts then leave it out. */
struct job_view {
    const char *noun; /* "documents" */
    struct job_counts counts;
    /* Tokens of prompts: computed by this process; with those that are left. */
    double n_read, n_to_read;
    double prompt_rate, answer_rate; /* tokens a second */
    struct job_link links[SPW_MOVED_COUNT];
    double left_seconds;
    double took_seconds; /* of the whole job, once it has ended; NAN before */
};

/* "45 s", "12 min", "2 h 05 min", "3 d 04 h"; is_short: "45s", "12m", "2h05m", "3d04h". */
enum { JOB_DURATION_BYTES = 32 };
const char *job_duration(char buffer[JOB_DURATION_BYTES], double seconds, bool is_short);
/* Numbers and words become shorter, and parts are left out, until the line fits into `columns`
 * columns (at least 20). The buffer has at least columns + 1 bytes. */
void job_progress_line(char *buffer, int columns, const struct job_view *view);
/* `now`: seconds since 1970, for the time stamp. */
#define JOB_LOG_BYTES 1024
void job_progress_sentence(char buffer[JOB_LOG_BYTES], int64_t now, const struct job_view *view);

#endif
