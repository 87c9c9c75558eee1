/* What walks of test_engine must have met: each kind of placement, of fault and of reuse is counted
 * where it happens, and the program fails if one of them never did. */
#ifndef SPW_TESTS_ENGINE_WALK_TRIED_H
#define SPW_TESTS_ENGINE_WALK_TRIED_H

#include "tests/engine/engine_run.h"

enum {
    SPILLED,
    ON_DISK,
    ON_THREE_TIERS,
    STREAMED_WEIGHTS,
    PACKED_WEIGHTS,
    KEPT_WEIGHTS,
    MAPPED_WEIGHTS,
    WEIGHTS_FROM_DISK,
    WEIGHTS_BOUNCED,
    EXPERTS_MOVE,
    EXPERTS_FROM_DISK,
    EXPERTS_BOUNCED,
    EXPERTS_COUNTED,
    EXPERTS_ON_HOST,
    LAYERS_ON_HOST,
    QUANTIZED_STREAMS,
    OLD_FROM_HOST,
    OLD_FROM_DISK,
    FOUND,
    FOUND_QUANTIZED,
    FOUND_SLIDING,
    FOUND_STREAMS,
    FOUND_BOUNCED,
    NOTES,
    INCIDENTS,
    FAULT_ERRORS,
    INTERRUPTED,
    INTERRUPTED_DECODE,
    INTERRUPTED_LOGITS,
    INTERRUPTED_FURTHER,
    EMPTIED,
    TWINS,
    SET_ASIDE,
    BESIDE,
    REFUSED,
    REUSED,
    FAULTY_STEPS,
    FAULTY_BESIDE,
    BATCH_TWINS,
    STATES_STAY,
    STATES_MOVE,
    CHECKPOINTS_ON_DISK,
    KEPT_SESSIONS,
    BETWEEN_PASSES,
    DRAFTS,
    DRAFTS_STAYED,
    BEAMS,
    N_TRIED
};
static struct {
    const char *name;
    uint64_t n;
} tried[N_TRIED] = {{"tiles on the host", 0},
                    {"tiles on disk", 0},
                    {"on host and disk", 0},
                    {"streamed weights", 0},
                    {"packed copies", 0},
                    {"kept pages", 0},
                    {"mapped weights", 0},
                    {"weights from disk", 0},
                    {"weights by way of the host", 0},
                    {"experts that move", 0},
                    {"experts from disk", 0},
                    {"experts by way of the host", 0},
                    {"counts of experts from earlier runs", 0},
                    {"experts that the host multiplies", 0},
                    {"layers that the host multiplies", 0},
                    {"quantized KV streams", 0},
                    {"old tiles from the host", 0},
                    {"old tiles from disk", 0},
                    {"prefixes found", 0},
                    {"quantized ones", 0},
                    {"ones with windows", 0},
                    {"ones that stream", 0},
                    {"ones by way of the host", 0},
                    {"notes of the prefix cache", 0},
                    {"lost tiles", 0},
                    {"faults that ended a step", 0},
                    {"interrupted steps", 0},
                    {"of one token", 0},
                    {"between logits", 0},
                    {"that had passes through", 0},
                    {"that emptied a session", 0},
                    {"twins that counted the same", 0},
                    {"steps paused", 0},
                    {"steps beside them", 0},
                    {"sessions without room", 0},
                    {"prefixes reused", 0},
                    {"steps while the drive failed", 0},
                    {"steps beside waiting ones then", 0},
                    {"batches that counted the same", 0},
                    {"states that stay", 0},
                    {"states that move", 0},
                    {"checkpoints on disk", 0},
                    {"sessions kept for later requests", 0},
                    {"prompts between two passes", 0},
                    {"drafts", 0},
                    {"drafts that stayed", 0},
                    {"answers of beam searches", 0}};
static uint64_t n_rows;

static void count_plan(const struct spw_plan *p, const struct spw_stats *s)
{
    tried[SPILLED].n += p->info.host.kv > 0;
    tried[ON_DISK].n += s->moved_bytes[SPW_MOVED_HOST_TO_DISK] > 0;
    tried[ON_THREE_TIERS].n +=
        s->moved_bytes[SPW_MOVED_HOST_TO_DISK] && p->residency[SPW_LAYER_FULL].host;
    tried[STREAMED_WEIGHTS].n += p->info.device.weights_slots > 0;
    tried[PACKED_WEIGHTS].n += p->host.end > p->host.packed;
    tried[KEPT_WEIGHTS].n += p->page_cache_bytes > 0;
    tried[MAPPED_WEIGHTS].n += p->mapped_bytes > 0;
    tried[WEIGHTS_FROM_DISK].n += p->info.weights_disk_bytes > 0;
    const bool layers = p->info.n_layers_on_host && s->host_multiplied_bytes;
    tried[EXPERTS_ON_HOST].n += p->host_rows && s->host_multiplied_bytes && !layers;
    tried[LAYERS_ON_HOST].n += layers;
    tried[EXPERTS_MOVE].n += p->n_expert_frames > 0;
    tried[EXPERTS_FROM_DISK].n += p->n_disk_experts > 0;
    tried[EXPERTS_BOUNCED].n += p->n_disk_experts > 0 && p->n_expert_bounce > 0;
    tried[WEIGHTS_BOUNCED].n += p->n_weight_bounce > 0;
    tried[QUANTIZED_STREAMS].n += p->quantizes && p->n_kv_slots;
    tried[STATES_STAY].n += p->n_states && p->states_stay;
    tried[STATES_MOVE].n += p->n_states && !p->states_stay;
    tried[CHECKPOINTS_ON_DISK].n += p->n_disk_checkpoints > 0;
}

static void count_found(const struct spw_plan *p, const struct spw_stats *s, uint64_t n)
{
    tried[FOUND].n += n;
    tried[FOUND_QUANTIZED].n += p->quantizes ? n : 0;
    tried[FOUND_SLIDING].n += spw_plan_n_windowed(p) ? n : 0;
    tried[FOUND_STREAMS].n += n && p->n_kv_slots && s->moved_bytes[SPW_MOVED_DISK_TO_HOST];
    tried[FOUND_BOUNCED].n += n && p->n_bounce;
}

/* Mapped weights and kept pages are of a device that reads the host's memory. */
static bool can_be(int kind)
{
    return run_backend(true).reads_host_memory || (kind != KEPT_WEIGHTS && kind != MAPPED_WEIGHTS);
}

static uint64_t missing_kinds(bool tell)
{
    uint64_t n = 0;
    for (int i = 0; i < N_TRIED; i++)
        if (!tried[i].n && can_be(i) && ++n && tell)
            fprintf(stderr, "never tried: %s\n", tried[i].name);
    return n;
}

#endif
