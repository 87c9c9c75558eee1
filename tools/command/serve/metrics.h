/* The numbers of /metrics, as text for Prometheus: vLLM's names with "spillway:" in front. The rows
 * stand in metrics.c. Any thread. */
#ifndef SPW_TOOLS_COMMAND_SERVE_METRICS_H
#define SPW_TOOLS_COMMAND_SERVE_METRICS_H

#include "tools/command/common.h"

enum serve_metric {
    /* gauges, and counters that the engine counts itself: set */
    SERVE_RUNNING, /* requests that the batch has admitted */
    SERVE_WAITING,
    SERVE_BYTES_HOST_TO_DEVICE,
    SERVE_BYTES_DEVICE_TO_HOST,
    SERVE_BYTES_HOST_TO_DISK,
    SERVE_BYTES_DISK_TO_HOST,
    SERVE_DEVICE_BUDGET,
    SERVE_HOST_BUDGET,
    SERVE_DISK_BUDGET,
    SERVE_DEVICE_PEAK,
    SERVE_HOST_PEAK,
    SERVE_DISK_PEAK,
    SERVE_KV_USAGE, /* of 1: at 1 requests wait */
    SERVE_FALLBACKS,
    SERVE_LOST_TILES,
    SERVE_UNHIDDEN_WAIT, /* seconds */
    SERVE_KEPT, /* ended requests whose KV stays for requests that begin alike, and their tokens */
    SERVE_KEPT_TOKENS,
    SERVE_WORST_GAP, /* seconds between two tokens of an answer: ever, and in the last step */
    SERVE_LAST_GAP,
    SERVE_PROMPT_CHUNKS, /* of a step, now */
    SERVE_PREFILL_SECONDS,
    SERVE_DECODE_SECONDS,
    SERVE_DECODE_STEPS,
    SERVE_DRAFTED,
    SERVE_ACCEPTED,
    SERVE_PUBLISHED_BYTES, /* written to the prefix cache */
    SERVE_PROMPT_TOKENS,
    SERVE_GENERATED_TOKENS,
    SERVE_PREFIX_QUERIES, /* tokens of prompts, and those of them that were not computed */
    SERVE_PREFIX_HITS,
    SERVE_SET_ASIDE, /* times that a prompt was set aside for decode steps */
    SERVE_REFUSED,
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
int serve_metrics_write(struct serve_metrics *m, const char *model, struct cli_text *out);

#endif
