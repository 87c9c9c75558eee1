/* What a plan says of the traffic that it leads to: see traffic.h. */
#include "runtime/plan/traffic_tiles.h"

#include "runtime/plan/plan_work.h"
#include "runtime/plan/traffic.h"

#include <string.h>

/* What comes into slots of the ring in a decode step at the full context. */
static void count_slots(struct spw_plan *p)
{
    struct spw_plan_info *i = &p->info;
    struct spw_pass_span span = {.from = i->context - 1, .to = i->context};
    i->decode_slot_bytes = 0;
    for (int k = 0; k < SPW_LAYER_KINDS && p->n_kv_slots; k++) {
        uint32_t n_slices = p->n_readers[k];
        if (!n_slices)
            continue;
        const struct spw_part_tiles t =
            spw_waterline_part(&p->residency[k], &span, span.from, span.to);
        if (t.first >= t.begin)
            continue;
        i->decode_slot_bytes += (uint64_t)n_slices * (t.begin - t.first) * p->tile_bytes;
    }
}

static int count_experts(struct spw_plan *p, const struct spw_weights *w, const double *counts)
{
    struct spw_expert_forecast f;
    SPW_TRY(spw_expert_forecast_open(&f, p, w, counts));
    spw_expert_forecast_token(&f, &p->info.decode_expert_disk_bytes,
                              &p->info.decode_expert_host_bytes);
    spw_expert_forecast_close(&f);
    return 0;
}

int spw_traffic_info(struct spw_plan *p, const struct spw_weights *w, const double *expert_counts)
{
    struct spw_plan_info *i = &p->info;
    struct spw_plan alone = *p; /* the steps are those of one session */
    struct spw_traffic_run *r;
    struct spw_traffic prompt, before, after;
    SPW_TRY(count_experts(p, w, expert_counts));
    alone.info.sessions = 1;
    SPW_TRY(spw_traffic_run_open(&r, &alone, w, false, NULL, NULL));
    spw_traffic_step(r, &(struct spw_step_span){0, 0, i->context, 1}, 1);
    spw_traffic_run_moved(r, NULL, &prompt);
    memcpy(i->prefill_moved_bytes, prompt.bytes, sizeof prompt.bytes);
    uint32_t disk_end = spw_tiles_disk_end(spw_traffic_tiles(r), 0, 0);
    if (spw_plan_n_full(p) && disk_end > spw_waterline_first_tiered(&p->residency[p->full_kind]))
        i->waterlines.disk_end =
            spw_min_u64((uint64_t)disk_end * SPW_TILE_TOKENS, i->waterlines.host_end);
    spw_traffic_close(r, 0);
    spw_traffic_step(r, &(struct spw_step_span){0, 0, i->context - 1, 1}, 1);
    count_slots(p);
    spw_traffic_run_moved(r, NULL, &before);
    spw_traffic_step(r, &(struct spw_step_span){0, i->context - 1, i->context, 1}, 1);
    spw_traffic_run_moved(r, NULL, &after);
    for (int k = 0; k < SPW_MOVED_COUNT; k++)
        i->decode_moved_bytes[k] = after.bytes[k] - before.bytes[k];
    spw_plan_count_work(p, w);
    spw_traffic_run_close(r);
    return 0;
}
