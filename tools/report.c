/* See report.h. Jansson's *_new setters take the reference also when they fail, and take NULL, so
 * that a missing value shows as a failed setter: every function adds up failures and checks once.
 */
#include "tools/report.h"

#include <stdlib.h>
#include <string.h>

static const char *const moved_names[SPW_MOVED_COUNT] = {
    [SPW_MOVED_HOST_TO_DEVICE] = "host_to_device",
    [SPW_MOVED_DEVICE_TO_HOST] = "device_to_host",
    [SPW_MOVED_HOST_TO_DISK] = "host_to_disk",
    [SPW_MOVED_DISK_TO_HOST] = "disk_to_host",
};

static json_t *checked(json_t *object, int failed)
{
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

json_t *cli_report_tiers(uint64_t device, uint64_t host, uint64_t disk)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "device", cli_json_count(device));
    failed |= json_object_set_new(o, "host", cli_json_count(host));
    failed |= json_object_set_new(o, "disk", cli_json_count(disk));
    return checked(o, failed);
}

json_t *cli_report_moved(const uint64_t moved[SPW_MOVED_COUNT])
{
    json_t *o = json_object();
    int failed = 0;
    for (size_t i = 0; i < SPW_MOVED_COUNT; i++)
        failed |= json_object_set_new(o, moved_names[i], cli_json_count(moved[i]));
    return checked(o, failed);
}

static json_t *counted(uint64_t n, const uint64_t *predicted)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "counted", cli_json_count(n));
    if (predicted)
        failed |= json_object_set_new(o, "predicted", cli_json_count(*predicted));
    return checked(o, failed);
}

static json_t *moved_and_predicted(const struct spw_stats *s)
{
    json_t *o = json_object();
    int failed = 0;
    for (size_t i = 0; i < SPW_MOVED_COUNT; i++)
        failed |= json_object_set_new(
            o, moved_names[i],
            counted(s->moved_bytes[i], s->has_prediction ? &s->predicted_bytes[i] : NULL));
    return checked(o, failed);
}

json_t *cli_report_waterlines(const struct spw_waterlines *w)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "disk_end", cli_json_count(w->disk_end));
    failed |= json_object_set_new(o, "host_end", cli_json_count(w->host_end));
    failed |= json_object_set_new(o, "n_tokens", cli_json_count(w->n_tokens));
    return checked(o, failed);
}

json_t *cli_report_tokens(const int32_t *tokens, size_t n)
{
    json_t *list = json_array();
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= json_array_append_new(list, json_integer(tokens[i]));
    return checked(list, failed);
}

static json_t *waits_by_layer(struct spw_engine *e)
{
    json_t *a = json_array();
    int failed = 0;
    for (uint32_t l = 0; l < spw_engine_config(e)->n_layers; l++)
        failed |= json_array_append_new(a, cli_json_real(spw_engine_layer_wait(e, l)));
    return checked(a, failed);
}

static json_t *disk_events(const struct spw_engine *e)
{
    uint64_t n;
    const struct spw_incident *list = spw_engine_incidents(e, &n);
    json_t *a = json_array();
    int failed = 0;
    for (uint64_t i = 0; i < n && i < SPW_INCIDENTS_KEPT; i++) {
        json_t *o = json_object();
        failed |= json_object_set_new(
            o, "error",
            json_string(list[i].error == -EBADMSG ? "checksum" : strerror(-list[i].error)));
        failed |= json_object_set_new(o, "layer", cli_json_count(list[i].layer));
        failed |= json_object_set_new(o, "position", cli_json_count(list[i].position));
        failed |= json_object_set_new(o, "recomputed_tokens", cli_json_count(list[i].n_recomputed));
        failed |= json_array_append_new(a, o);
    }
    return checked(a, failed);
}

static json_t *ladder_events(const struct spw_engine *e)
{
    uint64_t n;
    const struct spw_rung *list = spw_engine_rungs(e, &n);
    json_t *a = json_array();
    int failed = 0;
    for (uint64_t i = 0; i < n && i < SPW_RUNGS_KEPT; i++) {
        json_t *o = json_object();
        failed |= json_object_set_new(o, "position", cli_json_count(list[i].position));
        failed |= json_object_set_new(o, "failed", json_string(list[i].failed));
        failed |= json_object_set_new(o, "bytes_asked", cli_json_count(list[i].bytes_asked));
        failed |= json_object_set_new(o, "rung", json_string(spw_rung_name(list[i].kind)));
        failed |= json_object_set_new(o, "bytes_freed", cli_json_count(list[i].bytes_freed));
        failed |= json_object_set_new(o, "recomputed_tokens", cli_json_count(list[i].n_recomputed));
        failed |= json_object_set_new(
            o, "lossy_from", list[i].lossy_from ? cli_json_count(list[i].lossy_from) : json_null());
        failed |= json_array_append_new(a, o);
    }
    return checked(a, failed);
}

json_t *cli_report_engine(const char *model, struct spw_engine *e)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    const struct spw_plan_info *plan = spw_engine_plan(e);
    json_t *o = json_object();
    int failed = json_object_set_new(o, "version", json_string(SPW_VERSION));
    failed |= json_object_set_new(o, "model", cli_json_text(model));
    failed |= json_object_set_new(o, "backend", json_string(spw_engine_backend(e)));
    const char *io = spw_engine_io(e);
    failed |= json_object_set_new(o, "io", *io ? cli_json_text(io) : json_null());
    failed |= json_object_set_new(o, "compute", json_string(spw_dtype_name(plan->compute)));
    failed |= json_object_set_new(o, "kv_dtype", json_string(spw_dtype_name(plan->kv)));
    failed |= json_object_set_new(o, "old_kv", json_string(spw_kv_precision_name(plan->precision)));
    failed |= json_object_set_new(o, "residual_window", cli_json_count(plan->residual_tokens));
    failed |= json_object_set_new(o, "context", cli_json_count(plan->context));
    failed |= json_object_set_new(o, "sessions", cli_json_count(plan->sessions));
    failed |= json_object_set_new(o, "prefill_chunk", cli_json_count(plan->prefill_chunk));
    failed |= json_object_set_new(o, "prefetch_slots", cli_json_count(plan->prefetch_slots));
    failed |= json_object_set_new(o, "prefetch_splits", cli_json_count(plan->prefetch_splits));
    failed |= json_object_set_new(
        o, "budget_bytes",
        cli_report_tiers(s.device_budget_bytes, s.host_budget_bytes, s.disk_budget_bytes));
    failed |= json_object_set_new(
        o, "peak_bytes",
        cli_report_tiers(s.device_peak_bytes, s.host_peak_bytes, s.disk_peak_bytes));
    failed |= json_object_set_new(o, "moved_bytes", moved_and_predicted(&s));
    failed |=
        json_object_set_new(o, "unhidden_wait_seconds", cli_json_real(s.unhidden_wait_seconds));
    failed |= json_object_set_new(o, "unhidden_wait_seconds_by_layer", waits_by_layer(e));
    failed |= json_object_set_new(o, "ladder_events", ladder_events(e));
    failed |= json_object_set_new(o, "disk_events", disk_events(e));
    return checked(o, failed);
}

int cli_report_result(json_t *into, size_t n_prompt, const struct spw_result *r)
{
    static const char *const finishes[] = {[SPW_FINISH_LENGTH] = "length",
                                           [SPW_FINISH_EOS] = "eos",
                                           [SPW_FINISH_STOP] = "stop",
                                           [SPW_FINISH_FAILED] = "failed"};
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->logits_hash);
    int failed = json_object_set_new(into, "n_prompt", cli_json_count(n_prompt));
    failed |= json_object_set_new(into, "n_generated", cli_json_count(r->n_tokens));
    bool interrupted = r->finish == SPW_FINISH_FAILED && cli_interrupted();
    failed |= json_object_set_new(into, "finish",
                                  json_string(interrupted ? "interrupted" : finishes[r->finish]));
    failed |= json_object_set_new(into, "logits_hash", json_string(hash));
    failed |= json_object_set_new(into, "waterlines", cli_report_waterlines(&r->waterlines));
    failed |= json_object_set_new(into, "tokens", cli_report_tokens(r->tokens, r->n_tokens));
    return failed;
}

/* Fewer tokens take as long as reading the weights does, and say nothing of a prompt's speed. */
enum { SPEED_TOKENS = 64 };

int cli_report_prefix(json_t *into, const struct spw_engine *e, const struct cli_reuse *r)
{
    struct spw_prefix_stats s;
    uint64_t n_computed = spw_sub_u64(r->n_prompt, r->n_reused); /* a resumed run reuses more */
    double saved = r->prefill_seconds / (double)n_computed * (double)r->n_reused;
    spw_engine_prefix(e, &s);
    json_t *o = json_object();
    int failed = json_object_set_new(o, "n_tokens_reused", cli_json_count(r->n_reused));
    failed |= json_object_set_new(o, "from",
                                  r->n_from_store ? json_string("store")
                                  : r->n_reused   ? json_string("session")
                                                  : json_null());
    failed |= json_object_set_new(o, "n_tokens_from_store", cli_json_count(r->n_from_store));
    failed |= json_object_set_new(o, "bytes_read", cli_json_count(s.reused_bytes));
    failed |= json_object_set_new(o, "seconds_saved",
                                  n_computed < SPEED_TOKENS ? json_null() : cli_json_real(saved));
    failed |= json_object_set_new(o, "n_tokens_kept", cli_json_count(s.n_kept));
    failed |= json_object_set_new(o, "kept_bytes", cli_json_count(s.kept_bytes));
    failed |= json_object_set_new(o, "bytes_written", cli_json_count(s.written_bytes));
    return failed | json_object_set_new(into, "prefix", o);
}

static json_t *plan_device(const struct spw_plan_info *p)
{
    json_t *o = json_object();
    int failed =
        json_object_set_new(o, "weights_resident", cli_json_count(p->device.weights_resident));
    failed |= json_object_set_new(o, "weights_slots", cli_json_count(p->device.weights_slots));
    failed |= json_object_set_new(o, "kv_resident", cli_json_count(p->device.kv_resident));
    failed |= json_object_set_new(o, "kv_slots", cli_json_count(p->device.kv_slots));
    failed |= json_object_set_new(o, "hidden", cli_json_count(p->device.hidden));
    failed |= json_object_set_new(o, "activations", cli_json_count(p->device.activations));
    failed |= json_object_set_new(o, "total", cli_json_count(p->device.total));
    return checked(o, failed);
}

static json_t *plan_host(const struct spw_plan_info *p)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "kv", cli_json_count(p->host.kv));
    failed |= json_object_set_new(o, "hidden", cli_json_count(p->host.hidden));
    failed |= json_object_set_new(o, "staging", cli_json_count(p->host.staging));
    failed |= json_object_set_new(o, "disk_staging", cli_json_count(p->host.disk_staging));
    failed |= json_object_set_new(o, "weights", cli_json_count(p->host.weights));
    failed |= json_object_set_new(o, "total", cli_json_count(p->host.total));
    return checked(o, failed);
}

static json_t *plan_disk(const struct spw_plan_info *p)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "kv", cli_json_count(p->disk.kv));
    failed |= json_object_set_new(o, "total", cli_json_count(p->disk.total));
    return checked(o, failed);
}

static json_t *plan_moved(const struct spw_plan_info *p, const uint64_t *run)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "prefill", cli_report_moved(p->prefill_moved_bytes));
    failed |= json_object_set_new(o, "decode_step", cli_report_moved(p->decode_moved_bytes));
    failed |= json_object_set_new(o, "run", run ? cli_report_moved(run) : json_null());
    return checked(o, failed);
}

json_t *cli_report_plan(const char *model, const struct spw_plan_info *p, const uint64_t *run)
{
    json_t *o = json_object();
    int failed = json_object_set_new(o, "version", json_string(SPW_VERSION));
    failed |= json_object_set_new(o, "model", cli_json_text(model));
    failed |= json_object_set_new(o, "compute", json_string(spw_dtype_name(p->compute)));
    failed |= json_object_set_new(o, "kv_dtype", json_string(spw_dtype_name(p->kv)));
    failed |= json_object_set_new(o, "old_kv", json_string(spw_kv_precision_name(p->precision)));
    failed |= json_object_set_new(o, "residual_window", cli_json_count(p->residual_tokens));
    failed |= json_object_set_new(o, "context", cli_json_count(p->context));
    failed |= json_object_set_new(o, "sessions", cli_json_count(p->sessions));
    failed |= json_object_set_new(o, "prefill_chunk", cli_json_count(p->prefill_chunk));
    failed |= json_object_set_new(o, "prefetch_slots", cli_json_count(p->prefetch_slots));
    failed |= json_object_set_new(o, "prefetch_splits", cli_json_count(p->prefetch_splits));
    failed |= json_object_set_new(
        o, "budget_bytes",
        cli_report_tiers(p->device_budget_bytes, p->host_budget_bytes, p->disk_budget_bytes));
    failed |= json_object_set_new(o, "peak_bytes",
                                  cli_report_tiers(p->device.total, p->host.total, p->disk.total));
    failed |= json_object_set_new(
        o, "smallest_bytes",
        cli_report_tiers(p->smallest_device_bytes, p->smallest_host_bytes, p->smallest_disk_bytes));
    failed |= json_object_set_new(o, "device", plan_device(p));
    failed |= json_object_set_new(o, "host", plan_host(p));
    failed |= json_object_set_new(o, "disk", plan_disk(p));
    failed |= json_object_set_new(o, "disk_write_bytes", cli_json_count(p->disk_write_bytes));
    failed |= json_object_set_new(o, "prefix_write_bytes", cli_json_count(p->prefix_write_bytes));
    failed |= json_object_set_new(o, "n_layers", cli_json_count(p->n_layers));
    failed |= json_object_set_new(o, "n_layers_resident", cli_json_count(p->n_layers_resident));
    failed |= json_object_set_new(o, "n_layers_from_disk", cli_json_count(p->n_layers_from_disk));
    failed |= json_object_set_new(o, "weights_disk_bytes", cli_json_count(p->weights_disk_bytes));
    failed |= json_object_set_new(o, "weights_bytes", cli_json_count(p->weights_bytes));
    failed |= json_object_set_new(o, "kv_bytes_per_token", cli_json_count(p->kv_bytes_per_token));
    failed |= json_object_set_new(o, "waterlines", cli_report_waterlines(&p->waterlines));
    failed |= json_object_set_new(o, "moved_bytes", plan_moved(p, run));
    failed |= json_object_set_new(o, "decode_read_bytes", cli_json_count(p->decode_read_bytes));
    return checked(o, failed);
}
