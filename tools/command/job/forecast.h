/* The time that the work of a job probably takes, from the plan and the measured limits: decode
 * steps of several requests, and prompts that are shorter than the context. Pure. */
#ifndef SPW_TOOLS_COMMAND_JOB_FORECAST_H
#define SPW_TOOLS_COMMAND_JOB_FORECAST_H

#include "tools/command/limits.h"

struct job_forecast { /* borrowed */
    const struct spw_plan_info *plan;
    const struct spw_model_config *config;
    const struct cli_limits *limits; /* cli_limits_suffice */
};

/* Seconds of a decode step of n requests that hold n_held tokens together. */
double job_step_seconds(const struct job_forecast *f, uint64_t n, uint64_t n_held);
/* How many sessions of a plan run at a time, if each holds n_held tokens. The others have no room
 * in the pool. */
uint64_t job_running(const struct spw_plan_info *plan, uint64_t n_held);
/* Tokens a second of all sessions that run. */
double job_rate(const struct job_forecast *f, uint64_t n_held);
/* The expected times of a run, in the same parts as its report. */
struct job_times {
    double prefill_seconds; /* of steps with a prompt */
    double decode_seconds;  /* of the other steps */
    uint64_t n_decode_steps;
    /* Of the other steps, those with the most sessions. */
    uint64_t most_sessions, n_fullest_steps;
    double fullest_seconds; /* of all of them */
};
/* Adds steps of a planned run, as struct spw_plan_steps gives them. */
void job_add_steps(struct job_times *out, const struct job_forecast *f,
                   const struct spw_plan_span *spans, size_t n, uint64_t times);

#endif
