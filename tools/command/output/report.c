/* The contents of --report and `plan --json`: see report.h. */
#include "tools/command/output/report.h"

#include "quant/types.h"

#include <stdlib.h>
#include <string.h>

static const char *const moved_names[SPW_MOVED_COUNT] = {
    [SPW_MOVED_HOST_TO_DEVICE] = "host_to_device",
    [SPW_MOVED_DEVICE_TO_HOST] = "device_to_host",
    [SPW_MOVED_HOST_TO_DISK] = "host_to_disk",
    [SPW_MOVED_DISK_TO_HOST] = "disk_to_host",
};

json_t *cli_report_tiers(uint64_t device, uint64_t host, uint64_t disk)
{
    const struct cli_field fields[] = {
        {"device", CLI_JSON(device)},
        {"host", CLI_JSON(host)},
        {"disk", CLI_JSON(disk)},
    };
    return CLI_OBJECT(fields);
}

json_t *cli_report_moved(const uint64_t moved[SPW_MOVED_COUNT])
{
    json_t *o = json_object();
    for (size_t i = 0; i < SPW_MOVED_COUNT; i++)
        cli_json_add(&o, moved_names[i], CLI_JSON(moved[i]));
    return o;
}

static json_t *moved_and_predicted(const struct spw_stats *s, const uint64_t *predicted)
{
    json_t *o = json_object();
    for (size_t i = 0; i < SPW_MOVED_COUNT; i++) {
        const struct cli_field fields[] = {
            {"counted", CLI_JSON(s->moved_bytes[i])},
            {predicted ? "predicted" : NULL, CLI_JSON(predicted ? predicted[i] : 0)},
        };
        cli_json_add(&o, moved_names[i], CLI_OBJECT(fields));
    }
    return o;
}

json_t *cli_report_waterlines(const struct spw_waterlines *w)
{
    const struct cli_field fields[] = {CLI_FIELD(w, disk_end), CLI_FIELD(w, host_end),
                                       CLI_FIELD(w, n_tokens)};
    return CLI_OBJECT(fields);
}

json_t *cli_report_tokens(const int32_t *tokens, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, CLI_JSON(tokens[i]));
    return list;
}

json_t *cli_report_names(const struct spw_tokenizer *t, const int32_t *tokens, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, CLI_JSON(t ? spw_tokenizer_token(t, tokens[i]) : NULL));
    return list;
}

static json_t *waits_by_layer(struct spw_engine *e)
{
    json_t *list = json_array();
    for (uint32_t l = 0; l < spw_engine_config(e)->n_layers; l++)
        cli_json_append(&list, CLI_JSON(spw_engine_layer_wait(e, l)));
    return list;
}

const char *cli_report_compute(const struct spw_plan_info *p)
{
    return p->int8_activations ? "bf16 with int8 activations" : spw_dtype_name(p->compute);
}

/* The decisions of a plan, for the report of a run and for `plan`. */
static void add_decisions(json_t **o, const struct spw_plan_info *p)
{
    const struct cli_field fields[] = {
        {"compute", CLI_JSON(spw_dtype_name(p->compute))},
        CLI_FIELD(p, int8_activations),
        {"kv_dtype", CLI_JSON(spw_dtype_name(p->kv))},
        {"old_kv", CLI_JSON(spw_kv_precision_name(p->precision))},
        {"residual_window", CLI_JSON(p->residual_tokens)},
        CLI_FIELD(p, context),
        CLI_FIELD(p, sessions),
        CLI_FIELD(p, full_sessions),
        CLI_FIELD(p, prefill_chunk),
        CLI_FIELD(p, prefetch_slots),
        CLI_FIELD(p, prefetch_splits),
    };
    CLI_ADD(o, fields);
}

static json_t *list_json(json_t *list)
{
    return list ? json_incref(list) : json_array();
}

json_t *cli_report_engine(const char *model, struct spw_engine *e, const struct cli_events *events,
                          const uint64_t *predicted)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    uint64_t drafts = 0;
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        drafts += s.draft_moved_bytes[i];
    const char *io = spw_engine_io(e);
    const struct cli_field run[] = {
        {"version", CLI_JSON(SPW_VERSION)},
        {"model", CLI_JSON(model)},
        {"backend", CLI_JSON(spw_engine_backend(e))},
        {"io", CLI_OR_NULL(*io, CLI_JSON(io))},
    };
    const struct cli_field counters[] = {
        {"budget_bytes",
         cli_report_tiers(s.device_budget_bytes, s.host_budget_bytes, s.disk_budget_bytes)},
        {"peak_bytes", cli_report_tiers(s.device_peak_bytes, s.host_peak_bytes, s.disk_peak_bytes)},
        {"moved_bytes", moved_and_predicted(&s, predicted)},
        {drafts ? "draft_moved_bytes" : NULL, cli_report_moved(s.draft_moved_bytes)},
        {"host_multiplied_bytes", CLI_JSON(s.host_multiplied_bytes)},
        CLI_FIELD(&s, unhidden_wait_seconds),
        {"unhidden_wait_seconds_by_layer", waits_by_layer(e)},
        {"fallback_events", list_json(events->fallbacks)},
        {"disk_events", list_json(events->lost_tiles)},
    };
    json_t *o = CLI_OBJECT(run);
    add_decisions(&o, spw_engine_plan(e));
    CLI_ADD(&o, counters);
    return o;
}

static json_t *logprobs(const struct spw_result *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_tokens; i++)
        cli_json_append(&list, CLI_JSON(r->logprobs[i]));
    return list;
}

static json_t *top_logprobs(const struct spw_result *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_tokens; i++) {
        const struct spw_token_logprob *top = r->top_logprobs + i * r->n_top_logprobs;
        json_t *place = json_array();
        for (uint32_t k = 0; k < r->n_top_logprobs; k++) {
            const struct cli_field fields[] = {CLI_FIELD(&top[k], token),
                                               CLI_FIELD(&top[k], logprob)};
            cli_json_append(&place, CLI_OBJECT(fields));
        }
        cli_json_append(&list, place);
    }
    return list;
}

void cli_report_result(json_t **into, size_t n_prompt, const struct spw_result *r)
{
    static const char *const finishes[] = {[SPW_FINISH_LENGTH] = "length",
                                           [SPW_FINISH_EOS] = "eos",
                                           [SPW_FINISH_STOP] = "stop",
                                           [SPW_FINISH_CANCELED] = "canceled",
                                           [SPW_FINISH_FAILED] = "failed"};
    bool early = r->finish == SPW_FINISH_FAILED || r->finish == SPW_FINISH_CANCELED;
    const struct cli_field fields[] = {
        {"n_prompt", CLI_JSON(n_prompt)},
        {"n_generated", CLI_JSON(r->n_tokens)},
        {"finish", CLI_JSON(early && cli_interrupted() ? "interrupted" : finishes[r->finish])},
        {"logits_hash", json_sprintf("%016llx", (unsigned long long)r->logits_hash)},
        {"waterlines", cli_report_waterlines(&r->waterlines)},
        {"tokens", cli_report_tokens(r->tokens, r->n_tokens)},
    };
    CLI_ADD(into, fields);
    if (r->has_score)
        cli_json_add(into, "score", json_real(r->score));
    if (r->logprobs)
        cli_json_add(into, "logprobs", logprobs(r));
    if (r->top_logprobs)
        cli_json_add(into, "top_logprobs", top_logprobs(r));
}

/* With fewer tokens the time is that of reading the weights, which does not show the speed of a
 * prompt. */
enum { SPEED_TOKENS = 64 };

void cli_report_prefix(json_t **into, const struct spw_engine *e, const struct cli_reuse *r)
{
    struct spw_prefix_stats s;
    uint64_t n_computed =
        spw_sub_u64(r->n_prompt, r->n_reused); /* a resumed run reuses more than its prompt */
    double saved = r->prefill_seconds / (double)n_computed * (double)r->n_reused;
    const char *from = r->n_from_store ? "store" : r->n_reused ? "session" : NULL;
    spw_engine_prefix(e, &s);
    const struct cli_field fields[] = {
        {"n_tokens_reused", CLI_JSON(r->n_reused)},
        {"from", CLI_JSON(from)},
        {"n_tokens_from_store", CLI_JSON(r->n_from_store)},
        {"bytes_read", CLI_JSON(s.reused_bytes)},
        {"seconds_saved", CLI_OR_NULL(n_computed >= SPEED_TOKENS, CLI_JSON(saved))},
        {"n_tokens_published", CLI_JSON(s.n_published)},
        CLI_FIELD(&s, published_bytes),
        {"bytes_written", CLI_JSON(s.written_bytes)},
    };
    cli_json_add(into, "prefix", CLI_OBJECT(fields));
}

static json_t *plan_device(const struct spw_plan_info *p)
{
    const struct cli_field fields[] = {
        CLI_FIELD(&p->device, weights_resident), CLI_FIELD(&p->device, weights_slots),
        CLI_FIELD(&p->device, kv_resident),      CLI_FIELD(&p->device, kv_slots),
        CLI_FIELD(&p->device, states),           CLI_FIELD(&p->device, hidden),
        CLI_FIELD(&p->device, activations),      CLI_FIELD(&p->device, total)};
    return CLI_OBJECT(fields);
}

static json_t *plan_host(const struct spw_plan_info *p)
{
    const struct cli_field fields[] = {
        CLI_FIELD(&p->host, kv),           CLI_FIELD(&p->host, states),
        CLI_FIELD(&p->host, hidden),       CLI_FIELD(&p->host, staging),
        CLI_FIELD(&p->host, disk_staging), CLI_FIELD(&p->host, weights),
        CLI_FIELD(&p->host, total)};
    return CLI_OBJECT(fields);
}

static json_t *plan_disk(const struct spw_plan_info *p)
{
    const struct cli_field fields[] = {CLI_FIELD(&p->disk, kv), CLI_FIELD(&p->disk, checkpoints),
                                       CLI_FIELD(&p->disk, total)};
    return CLI_OBJECT(fields);
}

static json_t *plan_moved(const struct spw_plan_info *p, const uint64_t *run)
{
    const struct cli_field fields[] = {
        {"prefill", cli_report_moved(p->prefill_moved_bytes)},
        {"decode_step", cli_report_moved(p->decode_moved_bytes)},
        {"run", CLI_OR_NULL(run, cli_report_moved(run))},
    };
    return CLI_OBJECT(fields);
}

json_t *cli_report_plan(const char *model, const struct spw_plan_info *p, const uint64_t *run)
{
    const struct cli_field whose[] = {
        {"version", CLI_JSON(SPW_VERSION)},
        {"model", CLI_JSON(model)},
    };
    const struct cli_field bytes[] = {
        {"budget_bytes",
         cli_report_tiers(p->device_budget_bytes, p->host_budget_bytes, p->disk_budget_bytes)},
        {"peak_bytes", cli_report_tiers(p->device.total, p->host.total, p->disk.total)},
        {"smallest_bytes", cli_report_tiers(p->smallest_device_bytes, p->smallest_host_bytes,
                                            p->smallest_disk_bytes)},
        {"device", plan_device(p)},
        {"host", plan_host(p)},
        {"disk", plan_disk(p)},
        CLI_FIELD(p, disk_write_bytes),
        CLI_FIELD(p, prefix_write_bytes),
        CLI_FIELD(p, n_layers),
        CLI_FIELD(p, n_layers_resident),
        CLI_FIELD(p, n_layers_from_disk),
        CLI_FIELD(p, weights_disk_bytes),
        CLI_FIELD(p, weights_bytes),
        CLI_FIELD(p, decode_weights_bytes),
        CLI_FIELD(p, n_experts),
        CLI_FIELD(p, n_experts_resident),
        CLI_FIELD(p, n_experts_from_disk),
        CLI_FIELD(p, host_rows),
        CLI_FIELD(p, host_layer_rows),
        CLI_FIELD(p, n_layers_on_host),
        CLI_FIELD(p, decode_expert_bytes),
        CLI_FIELD(p, decode_expert_disk_bytes),
        CLI_FIELD(p, decode_expert_host_bytes),
        CLI_FIELD(p, kv_bytes_per_token),
        CLI_FIELD(p, session_states_bytes),
        CLI_FIELD(p, n_checkpoints),
        {"waterlines", cli_report_waterlines(&p->waterlines)},
        {"moved_bytes", plan_moved(p, run)},
        CLI_FIELD(p, decode_read_bytes),
    };
    json_t *o = CLI_OBJECT(whose);
    add_decisions(&o, p);
    CLI_ADD(&o, bytes);
    return o;
}
