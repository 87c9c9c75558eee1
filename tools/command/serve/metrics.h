/* The numbers of /metrics, as text for Prometheus: vLLM's names with "spillway:" in front. The rows
 * stand in metrics.c. Any thread. */
#ifndef SPW_TOOLS_COMMAND_SERVE_METRICS_H
#define SPW_TOOLS_COMMAND_SERVE_METRICS_H

#include "tools/command/common.h"

/* Numbers that grow with requests. What the engine's side counts itself has rows in metrics.c
 * alone. */
enum serve_metric {
    /* counters of requests, by the reason of their end: add */
    SERVE_ENDED_STOP,
    SERVE_ENDED_LENGTH,
    SERVE_ENDED_ABORT,
    SERVE_ENDED_ERROR,
    /* histograms: observe, in seconds or tokens */
    SERVE_FIRST_TOKEN,
    SERVE_BETWEEN_TOKENS,
    SERVE_WHOLE,
    SERVE_QUEUED,
    SERVE_PREFILL,
    SERVE_DECODE,
    SERVE_REQUEST_PROMPT,
    SERVE_REQUEST_GENERATED,
    SERVE_N_METRICS,
};

struct serve_metrics;
struct serve_counters;                          /* work.h */
struct serve_metrics *serve_metrics_open(void); /* NULL: out of memory */
void serve_metrics_close(struct serve_metrics *m);
/* Sets what the engine's side counts. */
void serve_metrics_count(struct serve_metrics *m, const struct serve_counters *c);
void serve_metrics_add(struct serve_metrics *m, enum serve_metric row);
void serve_metrics_observe(struct serve_metrics *m, enum serve_metric row, double value);
/* 0 or -ENOMEM. */
int serve_metrics_write(struct serve_metrics *m, const char *model, struct spw_text *out);

#endif
