#include "tools/command/serve/state.h"

void serve_state_see(struct serve_state *s, struct spw_engine *e, const struct spw_batch *b,
                     const struct cli_limits *limits)
{
    s->seconds = cli_now_seconds();
    snprintf(s->backend, sizeof s->backend, "%s", spw_engine_backend(e));
    s->plan = *spw_engine_plan(e);
    spw_engine_stats(e, &s->stats);
    s->n_sessions = spw_batch_sessions(b, s->sessions, SERVE_MOST_SEEN);
    if (limits->has_machine)
        s->limits[SPW_MOVED_HOST_TO_DEVICE] = s->limits[SPW_MOVED_DEVICE_TO_HOST] =
            limits->machine.copy_bytes_per_second;
    if (limits->has_drive) {
        s->limits[SPW_MOVED_HOST_TO_DISK] = limits->drive.write_bytes_per_second;
        s->limits[SPW_MOVED_DISK_TO_HOST] = limits->drive.read_bytes_per_second;
    }
}

struct tier {
    const char *name;
    uint64_t budget, peak, weights, kv, states, other;
};

static json_t *tiers_json(const struct spw_plan_info *p, const struct spw_stats *s)
{
    const struct tier tiers[] = {
        {"device", s->device_budget_bytes, s->device_peak_bytes, p->device.weights_resident,
         p->device.kv_resident, p->device.states,
         p->device.weights_slots + p->device.kv_slots + p->device.hidden + p->device.activations},
        {"host", s->host_budget_bytes, s->host_peak_bytes, p->host.weights, p->host.kv,
         p->host.states, p->host.hidden + p->host.staging + p->host.disk_staging},
        {"disk", s->disk_budget_bytes, s->disk_peak_bytes, p->weights_disk_bytes, p->disk.kv,
         p->disk.checkpoints, 0},
    };
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        const struct tier *t = &tiers[i];
        const struct cli_field fields[] = {
            CLI_FIELD(t, name), CLI_FIELD(t, budget), CLI_FIELD(t, peak),  CLI_FIELD(t, weights),
            CLI_FIELD(t, kv),   CLI_FIELD(t, states), CLI_FIELD(t, other),
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *links_json(const struct serve_state *s)
{
    static const char *const names[SPW_MOVED_COUNT] = {
        [SPW_MOVED_HOST_TO_DEVICE] = "host_to_device",
        [SPW_MOVED_DEVICE_TO_HOST] = "device_to_host",
        [SPW_MOVED_HOST_TO_DISK] = "host_to_disk",
        [SPW_MOVED_DISK_TO_HOST] = "disk_to_host",
    };
    json_t *list = json_array();
    for (size_t i = 0; i < SPW_MOVED_COUNT; i++) {
        const struct cli_field fields[] = {
            {"name", CLI_JSON(names[i])},
            {"bytes", CLI_JSON(s->stats.moved_bytes[i])},
            {"limit", CLI_OR_NULL(s->limits[i] > 0, CLI_JSON(s->limits[i]))},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *sessions_json(const struct serve_state *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_sessions; i++) {
        const struct spw_batch_session *x = &s->sessions[i];
        const struct spw_waterlines *w = &x->waterlines;
        const struct cli_field fields[] = {
            {"request", CLI_OR_NULL(!x->has_ended, CLI_JSON(x->request))},
            CLI_FIELD(x, n_prompt),
            CLI_FIELD(x, n_generated),
            CLI_FIELD(w, disk_end),
            CLI_FIELD(w, host_end),
            CLI_FIELD(w, n_tokens),
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

json_t *serve_state_json(const struct serve_state *s, const char *model)
{
    const struct cli_field queue[] = {
        {"running", CLI_JSON(s->n_running)},
        {"waiting", CLI_JSON(s->n_waiting)},
        CLI_FIELD(s, most_waiting),
    };
    const struct cli_field fields[] = {
        {"model", CLI_JSON(model)},
        {"version", CLI_JSON(spw_version())},
        {"backend", CLI_JSON((const char *)s->backend)},
        {"context", CLI_JSON(s->plan.context)},
        CLI_FIELD(s, seconds),
        {"tiers", tiers_json(&s->plan, &s->stats)},
        {"links", links_json(s)},
        {"queue", CLI_OBJECT(queue)},
        {"kv_bytes_per_token", CLI_JSON(s->plan.kv_bytes_per_token)},
        {"session_states_bytes", CLI_JSON(s->plan.session_states_bytes)},
        {"states_tier", CLI_JSON(s->plan.device.states ? "device" : "host")},
        {"sessions", sessions_json(s)},
    };
    return CLI_OBJECT(fields);
}
