/* See metrics.h. Rows of one series that differ by a label stand together: the series gets one
 * line of help and one of type. */
#include "tools/command/serve/metrics.h"

#include "tools/command/serve/work.h"

#include <pthread.h>
#include <string.h>

enum { N_BUCKETS = 14 };

/* Bounds of buckets; the last bucket, without a bound, is not listed. */
static const double seconds[N_BUCKETS] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                          0.5,   1,     2.5,  5,     10,   60,  600};
static const double tokens[N_BUCKETS] = {1,    4,    16,   64,    256,   512,    1024,
                                         2048, 4096, 8192, 16384, 65536, 262144, 1048576};

#define GAUGE(series, labels, text)                                                                \
    {                                                                                              \
        .name = (series), .label = (labels), .help = (text)                                        \
    }
#define COUNTER(series, labels, text)                                                              \
    {                                                                                              \
        .name = (series), .label = (labels), .help = (text), .is_counter = true                    \
    }
#define HISTOGRAM(series, of, text)                                                                \
    {                                                                                              \
        .name = (series), .bounds = (of), .help = (text)                                           \
    }

static const struct row {
    const char *name, *label; /* label: more labels, or NULL */
    const char *help;         /* NULL: the series of the row before */
    const double *bounds;     /* of a histogram, else NULL */
    bool is_counter;
} rows[SERVE_N_METRICS] = {
    [SERVE_RUNNING] = GAUGE("num_requests_running", NULL, "Requests that run."),
    [SERVE_WAITING] = GAUGE("num_requests_waiting", NULL, "Requests that wait for a place."),
    [SERVE_BYTES_HOST_TO_DEVICE] =
        COUNTER("moved_bytes_total", "link=\"host_to_device\"", "Bytes moved over a link."),
    [SERVE_BYTES_DEVICE_TO_HOST] = COUNTER("moved_bytes_total", "link=\"device_to_host\"", NULL),
    [SERVE_BYTES_HOST_TO_DISK] = COUNTER("moved_bytes_total", "link=\"host_to_disk\"", NULL),
    [SERVE_BYTES_DISK_TO_HOST] = COUNTER("moved_bytes_total", "link=\"disk_to_host\"", NULL),
    [SERVE_DEVICE_BUDGET] = GAUGE("tier_budget_bytes", "tier=\"device\"", "Budget of a tier."),
    [SERVE_HOST_BUDGET] = GAUGE("tier_budget_bytes", "tier=\"host\"", NULL),
    [SERVE_DISK_BUDGET] = GAUGE("tier_budget_bytes", "tier=\"disk\"", NULL),
    [SERVE_DEVICE_PEAK] =
        GAUGE("tier_peak_bytes", "tier=\"device\"", "The most bytes of a tier that were in use."),
    [SERVE_HOST_PEAK] = GAUGE("tier_peak_bytes", "tier=\"host\"", NULL),
    [SERVE_DISK_PEAK] = GAUGE("tier_peak_bytes", "tier=\"disk\"", NULL),
    [SERVE_KV_USAGE] = GAUGE("kv_cache_usage_perc", NULL,
                             "The part of the room for KV that running requests have; 1: all."),
    [SERVE_FALLBACKS] = COUNTER("fallbacks_total", NULL, "Fallbacks for want of memory."),
    [SERVE_LOST_TILES] = COUNTER("lost_tiles_total", NULL, "Tiles that were damaged on disk."),
    [SERVE_UNHIDDEN_WAIT] = COUNTER("unhidden_wait_seconds_total", NULL,
                                    "Seconds in which computation waited for a transfer."),
    [SERVE_KEPT] = GAUGE("kept_sessions", NULL,
                         "Ended requests whose KV stays for requests that begin alike."),
    [SERVE_KEPT_TOKENS] = GAUGE("kept_tokens", NULL, "Tokens of these requests."),
    [SERVE_WORST_GAP] =
        GAUGE("worst_gap_seconds", NULL, "The longest time between two tokens of an answer."),
    [SERVE_LAST_GAP] =
        GAUGE("last_gap_seconds", NULL, "The longest time between two tokens in the last step."),
    [SERVE_PROMPT_CHUNKS] = GAUGE("step_prompt_chunks", NULL, "Chunks of prompts in a step, now."),
    [SERVE_PREFILL_SECONDS] =
        COUNTER("prefill_seconds_total", NULL, "Seconds of steps with prompts."),
    [SERVE_DECODE_SECONDS] = COUNTER("decode_seconds_total", NULL, "Seconds of other steps."),
    [SERVE_DECODE_STEPS] = COUNTER("decode_steps_total", NULL, "Steps without prompts."),
    [SERVE_DRAFTED] =
        COUNTER("spec_decode_num_draft_tokens_total", NULL, "Tokens that were drafted."),
    [SERVE_ACCEPTED] =
        COUNTER("spec_decode_num_accepted_tokens_total", NULL, "Drafted tokens that were picked."),
    [SERVE_PUBLISHED_BYTES] =
        COUNTER("prefix_cache_written_bytes_total", NULL, "Bytes written to the prefix cache."),
    [SERVE_PROMPT_TOKENS] =
        COUNTER("prompt_tokens_total", NULL, "Tokens of prompts that were read."),
    [SERVE_GENERATED_TOKENS] =
        COUNTER("generation_tokens_total", NULL, "Tokens that were generated."),
    [SERVE_PREFIX_QUERIES] = COUNTER("prefix_cache_queries_total", NULL, "Tokens of prompts."),
    [SERVE_PREFIX_HITS] =
        COUNTER("prefix_cache_hits_total", NULL, "Tokens of prompts that were not computed again."),
    [SERVE_REFUSED] = COUNTER("requests_refused_total", NULL, "Requests that were refused."),
    [SERVE_ENDED_STOP] =
        COUNTER("request_success_total", "finished_reason=\"stop\"", "Requests that have ended."),
    [SERVE_ENDED_LENGTH] = COUNTER("request_success_total", "finished_reason=\"length\"", NULL),
    [SERVE_ENDED_ABORT] = COUNTER("request_success_total", "finished_reason=\"abort\"", NULL),
    [SERVE_ENDED_ERROR] = COUNTER("request_success_total", "finished_reason=\"error\"", NULL),
    [SERVE_SET_ASIDE] = COUNTER("prompts_set_aside_total", NULL,
                                "Times that a prompt was set aside for decode steps."),
    [SERVE_FIRST_TOKEN] = HISTOGRAM("time_to_first_token_seconds", seconds,
                                    "Seconds from a request to its first token."),
    [SERVE_BETWEEN_TOKENS] = HISTOGRAM("inter_token_latency_seconds", seconds,
                                       "Seconds between two tokens of an answer."),
    [SERVE_WHOLE] =
        HISTOGRAM("e2e_request_latency_seconds", seconds, "Seconds from a request to its end."),
    [SERVE_QUEUED] =
        HISTOGRAM("request_queue_time_seconds", seconds, "Seconds that a request waited."),
    [SERVE_PREFILL] = HISTOGRAM("request_prefill_time_seconds", seconds,
                                "Seconds from the place of a request to its first token."),
    [SERVE_DECODE] = HISTOGRAM("request_decode_time_seconds", seconds,
                               "Seconds from the first token of a request to its end."),
    [SERVE_REQUEST_PROMPT] = HISTOGRAM("request_prompt_tokens", tokens, "Tokens of a prompt."),
    [SERVE_REQUEST_GENERATED] =
        HISTOGRAM("request_generation_tokens", tokens, "Tokens of an answer."),
};

struct value {
    double sum; /* the value of what is no histogram */
    uint64_t n, in_bucket[N_BUCKETS];
};

struct serve_metrics {
    pthread_mutex_t mutex;
    struct value values[SERVE_N_METRICS];
};

struct serve_metrics *serve_metrics_open(void)
{
    struct serve_metrics *m = spw_alloc_zero(1, sizeof *m);
    if (m)
        pthread_mutex_init(&m->mutex, NULL);
    return m;
}

void serve_metrics_close(struct serve_metrics *m)
{
    if (m)
        pthread_mutex_destroy(&m->mutex);
    spw_free(m);
}

void serve_metrics_count(struct serve_metrics *m, const struct serve_counters *c)
{
    const struct spw_stats *e = &c->engine;
    const struct {
        enum serve_metric row;
        double value;
    } counts[] = {
        {SERVE_RUNNING, c->n_running},
        {SERVE_WAITING, c->n_waiting},
        {SERVE_BYTES_HOST_TO_DEVICE, (double)e->moved_bytes[SPW_MOVED_HOST_TO_DEVICE]},
        {SERVE_BYTES_DEVICE_TO_HOST, (double)e->moved_bytes[SPW_MOVED_DEVICE_TO_HOST]},
        {SERVE_BYTES_HOST_TO_DISK, (double)e->moved_bytes[SPW_MOVED_HOST_TO_DISK]},
        {SERVE_BYTES_DISK_TO_HOST, (double)e->moved_bytes[SPW_MOVED_DISK_TO_HOST]},
        {SERVE_DEVICE_BUDGET, (double)e->device_budget_bytes},
        {SERVE_HOST_BUDGET, (double)e->host_budget_bytes},
        {SERVE_DISK_BUDGET, (double)e->disk_budget_bytes},
        {SERVE_DEVICE_PEAK, (double)e->device_peak_bytes},
        {SERVE_HOST_PEAK, (double)e->host_peak_bytes},
        {SERVE_DISK_PEAK, (double)e->disk_peak_bytes},
        {SERVE_KV_USAGE, e->most_kv_tokens ? (double)e->kv_tokens / (double)e->most_kv_tokens : 0},
        {SERVE_FALLBACKS, (double)e->n_fallbacks},
        {SERVE_LOST_TILES, (double)e->n_lost_tiles},
        {SERVE_UNHIDDEN_WAIT, e->unhidden_wait_seconds},
        {SERVE_KEPT, c->n_kept},
        {SERVE_KEPT_TOKENS, (double)c->n_kept_tokens},
        {SERVE_WORST_GAP, c->worst_gap_seconds},
        {SERVE_LAST_GAP, c->last_gap_seconds},
        {SERVE_PROMPT_CHUNKS, c->prompt_chunks},
        {SERVE_PREFILL_SECONDS, c->prefill_seconds},
        {SERVE_DECODE_SECONDS, c->decode_seconds},
        {SERVE_DECODE_STEPS, (double)c->n_decode_steps},
        {SERVE_DRAFTED, (double)c->n_drafted},
        {SERVE_ACCEPTED, (double)c->n_accepted},
        {SERVE_PUBLISHED_BYTES, (double)c->prefix.written_bytes},
        {SERVE_PROMPT_TOKENS, (double)c->n_prompt_tokens},
        {SERVE_GENERATED_TOKENS, (double)c->n_answer_tokens},
        {SERVE_PREFIX_QUERIES, (double)c->n_prompt_tokens},
        {SERVE_PREFIX_HITS, (double)c->n_reused_tokens},
        {SERVE_SET_ASIDE, (double)c->n_asides},
        {SERVE_REFUSED, (double)c->n_refused},
    };
    pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        m->values[counts[i].row].sum = counts[i].value;
    pthread_mutex_unlock(&m->mutex);
}

void serve_metrics_add(struct serve_metrics *m, enum serve_metric row)
{
    pthread_mutex_lock(&m->mutex);
    m->values[row].sum++;
    pthread_mutex_unlock(&m->mutex);
}

void serve_metrics_observe(struct serve_metrics *m, enum serve_metric row, double value)
{
    pthread_mutex_lock(&m->mutex);
    struct value *v = &m->values[row];
    v->sum += value;
    v->n++;
    for (size_t i = 0; i < N_BUCKETS; i++)
        v->in_bucket[i] += value <= rows[row].bounds[i];
    pthread_mutex_unlock(&m->mutex);
}

/* ---- the text ---- */

struct writer {
    struct cli_text *out;
    const char *model; /* escaped */
    int rc;
};

__attribute__((format(printf, 2, 3))) static void add(struct writer *w, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!w->rc)
        w->rc = cli_text_add(w->out, line, (size_t)spw_min_u64((uint64_t)n, sizeof line - 1));
}

static void write_histogram(struct writer *w, const struct row *r, const struct value *v)
{
    for (size_t i = 0; i < N_BUCKETS; i++)
        add(w, "spillway:%s_bucket{model_name=\"%s\",le=\"%.15g\"} %llu\n", r->name, w->model,
            r->bounds[i], (unsigned long long)v->in_bucket[i]);
    add(w, "spillway:%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n", r->name, w->model,
        (unsigned long long)v->n);
    add(w, "spillway:%s_sum{model_name=\"%s\"} %.17g\n", r->name, w->model, v->sum);
    add(w, "spillway:%s_count{model_name=\"%s\"} %llu\n", r->name, w->model,
        (unsigned long long)v->n);
}

static void write_row(struct writer *w, const struct row *r, const struct value *v)
{
    if (r->help)
        add(w, "# HELP spillway:%s %s\n# TYPE spillway:%s %s\n", r->name, r->help, r->name,
            r->bounds       ? "histogram"
            : r->is_counter ? "counter"
                            : "gauge");
    if (r->bounds)
        write_histogram(w, r, v);
    else
        add(w, "spillway:%s{model_name=\"%s\"%s%s} %.17g\n", r->name, w->model, r->label ? "," : "",
            r->label ? r->label : "", v->sum);
}

/* A label's value: backslash, quote and line break have escapes. */
static void escape(char *to, size_t bytes, const char *from)
{
    size_t n = 0;
    for (; *from && n + 3 < bytes; from++) {
        if (*from == '\\' || *from == '"' || *from == '\n')
            to[n++] = '\\';
        to[n++] = *from == '\n' ? 'n' : *from;
    }
    to[n] = '\0';
}

int serve_metrics_write(struct serve_metrics *m, const char *model, struct cli_text *out)
{
    char name[512];
    struct value values[SERVE_N_METRICS];
    struct writer w = {out, name, 0};
    escape(name, sizeof name, model);
    pthread_mutex_lock(&m->mutex);
    memcpy(values, m->values, sizeof values);
    pthread_mutex_unlock(&m->mutex);
    for (size_t i = 0; i < SERVE_N_METRICS; i++)
        write_row(&w, &rows[i], &values[i]);
    return w.rc;
}
