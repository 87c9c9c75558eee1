/* The progress of a command on stderr. On a terminal it is one line, after a second, that is
 * rewritten in place and removed at the end; in the log of a job a sentence each minute, and one at
 * the end. One command a process, one thread. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H
#define SPW_TOOLS_COMMAND_OUTPUT_PROGRESS_H

#include "tools/command/events.h"
#include "tools/command/limits.h"

/* What the loop of a job knows. A failed document is not done. */
struct job_counts {
    uint64_t n_total; /* 0: not known yet, the input is still read */
    uint64_t n_done, n_running, n_waiting, n_failed;
    uint64_t n_requests; /* answers that run and have tokens */
    uint64_t n_reading;  /* prompts that are computed now, together */
    /* Tokens that this process has generated, and answers that have such tokens. */
    uint64_t n_answer_tokens, n_begun;
    /* Estimates: tokens of prompts that are not computed yet, without those that will be reused;
     * tokens that answers still need. */
    uint64_t n_prompt_tokens_left, n_answer_tokens_left;
};

/* --progress: `auto` looks at stderr, `always` is the line, `never` is nothing. `noun`: what a job
 * counts, in the plural ("documents"); NULL: the command has no items, and its log no sentences.
 * `text_on_terminal`: generated text goes to the same terminal, so only prompts show a line. */
void cli_progress_start(enum cli_progress_mode mode, const char *noun, bool text_on_terminal);
/* Call it after each opening of an engine, and with NULL before the engine is closed. Borrows all
 * three until then. During a long step the progress also prints `events`. `limits` may be NULL, or
 * lack numbers: then no link has a limit. */
void cli_progress_engine(struct spw_engine *engine, struct cli_events *events,
                         const struct cli_limits *limits);
/* For spw_options.on_progress; NULL if nothing is shown: then the engine need not wait for it. */
typedef void cli_progress_function(void *context, const struct spw_progress *p);
cli_progress_function *cli_progress_callback(void);
/* Of a job, before the callback: how many items run now (UINT64_MAX: as before), and how many
 * prompts are read. The other items of the last update wait. */
void cli_progress_running(uint64_t n_running, uint64_t n_reading);
/* Of a job, after the events of each step were read. Other calls, while no step runs, are fine. */
void cli_progress_update(const struct job_counts *counts);
/* Of one request: counts a generated token; at most `n_expected` will come. `is_hidden`: it is
 * reasoning that is not shown, so the line is drawn also where the text goes to the terminal. */
void cli_progress_token(uint64_t n_expected, bool is_hidden);
/* For a line of another kind: whether it is time to draw; draws the text, cut to the terminal. */
bool cli_progress_due(void);
void cli_progress_draw(const char *text);
/* Removes the line until the next step draws it. */
void cli_progress_clear(void);
/* Call it before the engine is closed. The log of a job of a minute or more gets the last sentence,
 * with the speeds of the whole job. */
void cli_progress_end(void);

/* ---- texts: progress_text.c ---- */

struct job_link {
    double rate, limit; /* bytes a second; rate: NAN if hardly a byte crosses the link */
};

/* NAN stands for a number that is not known; the texts then leave it out. */
struct job_view {
    const char *noun; /* "documents"; NULL: one request */
    bool is_hidden;   /* its answer is in reasoning that is not shown */
    struct job_counts counts;
    /* Tokens of prompts: computed by this process; with those that are left. */
    double n_read, n_to_read;
    double prompt_rate, answer_rate; /* tokens a second */
    struct job_link links[SPW_MOVED_COUNT];
    double left_seconds;
    double took_seconds; /* of the whole job, once it has ended; NAN before */
};

/* Words become shorter, and parts are left out, until the line fits into `columns` columns (at
 * least 20). The buffer has at least columns + 1 bytes. */
void job_progress_line(char *buffer, int columns, const struct job_view *view);
/* `now`: seconds since 1970, for the time stamp. */
enum { JOB_LOG_BYTES = 1024 };
void job_progress_sentence(char buffer[JOB_LOG_BYTES], int64_t now, const struct job_view *view);

#endif
