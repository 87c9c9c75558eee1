/* See metrics.h. Rows of one series that differ by a label stand together: the series gets one
 * line of help and one of type. */
#include "tools/command/serve/metrics.h"

#include "tools/command/serve/work.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { N_BUCKETS = 14 };

/* Bounds of buckets; the last bucket, without a bound, is not listed. */
static const double seconds[N_BUCKETS] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                          0.5,   1,     2.5,  5,     10,   60,  600};
static const double tokens[N_BUCKETS] = {1,    4,    16,   64,    256,   512,    1024,
                                         2048, 4096, 8192, 16384, 65536, 262144, 1048576};

struct row {
    const char *name, *label; /* label: more labels, or NULL */
    const char *help;         /* NULL: the series of the row before */
    const double *bounds;     /* of a histogram, else NULL */
    bool is_gauge;
    /* The member of struct serve_counters that has the number; 0: there is none. */
    enum { OF_NOTHING, OF_U32, OF_U64, OF_DOUBLE, OF_KV_USAGE } of;
    size_t at;
};

#define OF(member)                                                                                 \
    .at = offsetof(struct serve_counters, member),                                                 \
    .of = _Generic(((struct serve_counters *)0)->member, uint32_t                                  \
                   : OF_U32, uint64_t                                                              \
                   : OF_U64, double                                                                \
                   : OF_DOUBLE)
#define MOVED(link) OF(engine.moved_bytes[SPW_MOVED_##link])
#define GAUGE .is_gauge = true

/* What serve_metrics_count sets. */
static const struct row counts[] = {
    {"num_requests_running", NULL, "Requests that run.", GAUGE, OF(n_running)},
    {"num_requests_waiting", NULL, "Requests that wait for a place.", GAUGE, OF(n_waiting)},
    {"moved_bytes_total", "link=\"host_to_device\"", "Bytes moved over a link.",
     MOVED(HOST_TO_DEVICE)},
    {"moved_bytes_total", "link=\"device_to_host\"", NULL, MOVED(DEVICE_TO_HOST)},
    {"moved_bytes_total", "link=\"host_to_disk\"", NULL, MOVED(HOST_TO_DISK)},
    {"moved_bytes_total", "link=\"disk_to_host\"", NULL, MOVED(DISK_TO_HOST)},
    {"tier_budget_bytes", "tier=\"device\"", "Budget of a tier.", GAUGE,
     OF(engine.device_budget_bytes)},
    {"tier_budget_bytes", "tier=\"host\"", NULL, GAUGE, OF(engine.host_budget_bytes)},
    {"tier_budget_bytes", "tier=\"disk\"", NULL, GAUGE, OF(engine.disk_budget_bytes)},
    {"tier_peak_bytes", "tier=\"device\"", "The most bytes of a tier that were in use.", GAUGE,
     OF(engine.device_peak_bytes)},
    {"tier_peak_bytes", "tier=\"host\"", NULL, GAUGE, OF(engine.host_peak_bytes)},
    {"tier_peak_bytes", "tier=\"disk\"", NULL, GAUGE, OF(engine.disk_peak_bytes)},
    {"kv_cache_usage_perc", NULL, "The part of the room for KV that running requests have; 1: all.",
     GAUGE, .of = OF_KV_USAGE},
    {"fallbacks_total", NULL, "Fallbacks for want of memory.", OF(engine.n_fallbacks)},
    {"lost_tiles_total", NULL, "Tiles that were damaged on disk.", OF(engine.n_lost_tiles)},
    {"unhidden_wait_seconds_total", NULL, "Seconds in which computation waited for a transfer.",
     OF(engine.unhidden_wait_seconds)},
    {"kept_sessions", NULL, "Ended requests whose KV stays for requests that begin alike.", GAUGE,
     OF(n_kept)},
    {"kept_tokens", NULL, "Tokens of these requests.", GAUGE, OF(n_kept_tokens)},
    {"worst_gap_seconds", NULL, "The longest time between two tokens of an answer.", GAUGE,
     OF(worst_gap_seconds)},
    {"last_gap_seconds", NULL, "The longest time between two tokens in the last step.", GAUGE,
     OF(last_gap_seconds)},
    {"step_prompt_chunks", NULL, "Chunks of prompts in a step, now.", GAUGE, OF(prompt_chunks)},
    {"prefill_seconds_total", NULL, "Seconds of steps with prompts.", OF(prefill_seconds)},
    {"decode_seconds_total", NULL, "Seconds of other steps.", OF(decode_seconds)},
    {"decode_steps_total", NULL, "Steps without prompts.", OF(n_decode_steps)},
    {"spec_decode_num_draft_tokens_total", NULL, "Tokens that were drafted.", OF(n_drafted)},
    {"spec_decode_num_accepted_tokens_total", NULL, "Drafted tokens that were picked.",
     OF(n_accepted)},
    {"prefix_cache_written_bytes_total", NULL, "Bytes written to the prefix cache.",
     OF(prefix.written_bytes)},
    {"prompt_tokens_total", NULL, "Tokens of prompts that were read.", OF(n_prompt_tokens)},
    {"generation_tokens_total", NULL, "Tokens that were generated.", OF(n_answer_tokens)},
    {"prefix_cache_queries_total", NULL, "Tokens of prompts.", OF(n_prompt_tokens)},
    {"prefix_cache_hits_total", NULL, "Tokens of prompts that were not computed again.",
     OF(n_reused_tokens)},
    {"prompts_paused_total", NULL, "Times that a prompt was paused for decode steps.",
     OF(n_pauses)},
    {"requests_refused_total", NULL, "Requests that were refused.", OF(n_refused)},
};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static const struct row rows[SERVE_N_METRICS] = {
#define ENDED(why, text)                                                                           \
    {                                                                                              \
        .name = "request_success_total", .label = "finished_reason=\"" why "\"", .help = text      \
    }
#define HISTOGRAM(its_name, text, its_bounds)                                                      \
    {                                                                                              \
        .name = its_name, .help = text, .bounds = its_bounds                                       \
    }
    [SERVE_ENDED_STOP] = ENDED("stop", "Requests that have ended."),
    [SERVE_ENDED_LENGTH] = ENDED("length", NULL),
    [SERVE_ENDED_ABORT] = ENDED("abort", NULL),
    [SERVE_ENDED_ERROR] = ENDED("error", NULL),
    [SERVE_FIRST_TOKEN] = HISTOGRAM("time_to_first_token_seconds",
                                    "Seconds from a request to its first token.", seconds),
    [SERVE_BETWEEN_TOKENS] = HISTOGRAM("inter_token_latency_seconds",
                                       "Seconds between two tokens of an answer.", seconds),
    [SERVE_WHOLE] =
        HISTOGRAM("e2e_request_latency_seconds", "Seconds from a request to its end.", seconds),
    [SERVE_QUEUED] =
        HISTOGRAM("request_queue_time_seconds", "Seconds that a request waited.", seconds),
    [SERVE_PREFILL] = HISTOGRAM("request_prefill_time_seconds",
                                "Seconds from the place of a request to its first token.", seconds),
    [SERVE_DECODE] = HISTOGRAM("request_decode_time_seconds",
                               "Seconds from the first token of a request to its end.", seconds),
    [SERVE_REQUEST_PROMPT] = HISTOGRAM("request_prompt_tokens", "Tokens of a prompt.", tokens),
    [SERVE_REQUEST_GENERATED] =
        HISTOGRAM("request_generation_tokens", "Tokens of an answer.", tokens),
};

struct value {
    double sum; /* the value of what is no histogram */
    uint64_t n, in_bucket[N_BUCKETS];
};

struct serve_metrics {
    pthread_mutex_t mutex;
    struct value counts[N_COUNTS], values[SERVE_N_METRICS];
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

static double number(const struct serve_counters *c, const struct row *r)
{
    const struct spw_stats *e = &c->engine;
    const void *at = (const char *)c + r->at;
    return r->of == OF_DOUBLE  ? *(const double *)at
           : r->of == OF_U32   ? *(const uint32_t *)at
           : r->of == OF_U64   ? (double)*(const uint64_t *)at
           : e->most_kv_tokens ? (double)e->kv_tokens / (double)e->most_kv_tokens
                               : 0;
}

void serve_metrics_count(struct serve_metrics *m, const struct serve_counters *c)
{
    pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < N_COUNTS; i++)
        m->counts[i].sum = number(c, &counts[i]);
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
    struct spw_text *out;
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
        w->rc = spw_text_add(w->out, line, (size_t)spw_min_u64((uint64_t)n, sizeof line - 1));
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
            r->bounds     ? "histogram"
            : r->is_gauge ? "gauge"
                          : "counter");
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

int serve_metrics_write(struct serve_metrics *m, const char *model, struct spw_text *out)
{
    char name[512];
    struct value found[N_COUNTS], values[SERVE_N_METRICS];
    struct writer w = {out, name, 0};
    escape(name, sizeof name, model);
    pthread_mutex_lock(&m->mutex);
    memcpy(found, m->counts, sizeof found);
    memcpy(values, m->values, sizeof values);
    pthread_mutex_unlock(&m->mutex);
    for (size_t i = 0; i < N_COUNTS; i++)
        write_row(&w, &counts[i], &found[i]);
    for (size_t i = 0; i < SERVE_N_METRICS; i++)
        write_row(&w, &rows[i], &values[i]);
    return w.rc;
}
