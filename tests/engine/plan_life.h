/* Lives of sessions under a plan, by drawn steps, on the dry device: the runtime itself finds
 * whether the plan has frames for all tiles, and counts what moves. No memory is taken, so the
 * plans may have any size. */
#ifndef SPW_TESTS_ENGINE_PLAN_LIFE_H
#define SPW_TESTS_ENGINE_PLAN_LIFE_H

#include "runtime/persist/prefix.h"
#include "runtime/plan/plan_parts.h"
#include "runtime/plan/shares.h"
#include "tests/engine/engine_run.h"

enum { MOST_SESSIONS = 4 };

static const struct spw_model *life_model; /* of the plans that are drawn */

struct life {
    struct spw_engine *e;
    struct spw_dry_backend backend;
    struct spw_device *device; /* asked for its workers only */
    struct spw_session *sessions[MOST_SESSIONS];
    int32_t *tokens; /* [context], all 0 */
};

static void open_life(struct life *f, const struct spw_plan *p, const struct spw_plan_input *in)
{
    static const struct spw_dry_hooks nobody;
    const struct spw_device_options one = {.threads = 1};
    struct spw_lane lane = {.ops = &spw_device_cpu};
    struct spw_error err = {0};
    struct spw_engine like = {.model = *life_model,
                              .plan = *p,
                              .in = *in,
                              .expert_counts =
                                  calloc(in->weights->n_expert_blocks + 1, sizeof(double)),
                              .options = {.context = in->context,
                                          .sessions = in->sessions,
                                          .rolls_back = in->rolls_back,
                                          .on_oom = SPW_ON_OOM_FAIL,
                                          .disk_dir = in->disk_bytes ? "/tmp" : NULL,
                                          .disk_bytes = in->disk_bytes}};
    *f = (struct life){.tokens = calloc(in->context, sizeof *f->tokens)};
    spw_backend_cpu(&like.backend);
    like.backend.reads_host_memory = in->reads_host_memory;
    CHECK(!lane.ops->open(&f->device, &one, &err));
    lane.device = f->device;
    spw_backend_dry(&f->backend, &like.backend, &lane);
    CHECK_MSG(!spw_engine_open_dry(&f->e, &like, &f->backend, &spw_prefix_hooks, &nobody, &err),
              "%s", err.text);
    free(like.expert_counts);
}

static void open_session(struct life *f, uint32_t i, uint64_t most)
{
    struct spw_error err = {0};
    CHECK_MSG(!spw_session_open_for(&f->sessions[i], f->e, most, &err), "%s", err.text);
}

static void close_life(struct life *f)
{
    for (uint32_t i = 0; i < MOST_SESSIONS; i++)
        spw_session_close(f->sessions[i]);
    spw_engine_close(f->e);
    spw_device_cpu.close(f->device);
    free(f->tokens);
}

/* Sessions go to these numbers of tokens. */
static void run_step(struct life *f, const uint64_t *to)
{
    struct spw_span spans[MOST_SESSIONS];
    struct spw_error err = {0};
    size_t n = 0;
    for (uint32_t i = 0; i < MOST_SESSIONS; i++)
        if (f->sessions[i] && to[i])
            spans[n++] = (struct spw_span){f->sessions[i], f->tokens, to[i], 1};
    CHECK_MSG(!n || !spw_sync(f->e, spans, n, NULL, NULL, &err), "a step: %s", err.text);
}

static struct spw_stats counted(struct life *f)
{
    struct spw_stats s;
    spw_engine_stats(f->e, &s);
    return s;
}

/* Sessions as long as may be open together, and 12 steps. Returns whether tiles were below the
 * device. */
static bool check_life(const struct spw_plan *p, const struct spw_plan_input *in, uint64_t *seed)
{
    struct life f;
    uint64_t to[MOST_SESSIONS] = {0}, tiles = spw_share_most_tiles(p);
    bool below = false;
    open_life(&f, p, in);
    for (uint32_t s = 0; s < in->sessions; s++) {
        uint64_t most = spw_min_u64(in->context, tiles * SPW_TILE_TOKENS);
        if (s + 1 < in->sessions || check_random(seed) % 4 == 0)
            most = check_random(seed) % 2 ? most : check_range(seed, 0, most);
        if (most)
            open_session(&f, s, most);
        tiles -= spw_waterline_tiles(most);
    }
    for (int step = 0; step < 12; step++) {
        for (uint32_t s = 0; s < in->sessions; s++) {
            const uint64_t left = f.sessions[s] ? f.sessions[s]->most_tokens - to[s] : 0;
            const uint64_t more = check_random(seed) % 2 ? left : spw_min_u64(left, 130);
            to[s] += step == 11 ? left : check_range(seed, 0, more);
        }
        run_step(&f, to);
        for (uint32_t s = 0; s < in->sessions; s++) {
            struct spw_waterlines w = {0};
            if (f.sessions[s])
                spw_session_waterlines(f.sessions[s], &w);
            below |= w.host_end > 0;
        }
    }
    CHECK_MSG(!f.e->events.n_fallbacks, "the plan had to change");
    const struct spw_disk *checkpoints = f.e->checkpoint_disk;
    const uint64_t written = counted(&f).moved_bytes[SPW_MOVED_HOST_TO_DISK] -
                             (checkpoints ? spw_disk_written(checkpoints) : 0);
    CHECK_MSG(written <= p->info.disk_write_bytes, "%llu bytes written to disk, %llu planned",
              (unsigned long long)written, (unsigned long long)p->info.disk_write_bytes);
    close_life(&f);
    return below;
}

#endif
