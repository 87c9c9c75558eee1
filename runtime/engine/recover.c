/* Recovery of sessions after a failure of the disk. Lost tiles are computed again from their
 * tokens. After a failed write everything that the sessions held before the step stays.
 *
 * A session is cut back to the first token of its earliest lost tile (to nothing, if sliding
 * layers no longer hold what that position sees). The caller then runs the step again from
 * there. Nothing was computed from a lost tile: the wait for its transfer fails before any
 * kernel that reads it is queued. */
#include "runtime/engine/engine.h"

static void report(struct spw_engine *e, const struct spw_kv_loss *loss, uint64_t n_recomputed)
{
    const struct spw_engine_event lost = {
        .kind = SPW_ENGINE_LOST_TILE,
        .lost_tile = {.error = loss->rc,
                      .layer = e->model.config.slice_layers[loss->layer],
                      .position = (uint64_t)loss->tile * SPW_TILE_TOKENS,
                      .n_recomputed = n_recomputed}};
    spw_engine_report(e, &lost);
}

/* The tile may be shared. */
static bool holds(const struct spw_session *s, const struct spw_kv_loss *loss)
{
    return loss->tile >= spw_kv_first(s->seq.kv, loss->layer) &&
           loss->tile < spw_kv_shared_end(s->seq.kv, loss->seq, loss->layer);
}

int spw_engine_settle(struct spw_engine *e)
{
    SPW_TRY(spw_lane_sync_all(&e->lane));
    spw_kv_finish_writes(e->kv);
    spw_kv_take_write_failure(e->kv);
    return 0;
}

void spw_session_empty(struct spw_session *s)
{
    s->n_tokens = s->n_attached = 0;
    s->has_logits = s->mixed = false;
    spw_sequence_keep_none(&s->seq);
    spw_kv_truncate(s->seq.kv, s->engine->plan.residency, 0);
}

/* Lowers cut_to[i] of each session that has lost tiles. Takes all losses that were reported.
 * False: there were none. */
static bool lower_cuts(struct spw_engine *e, struct spw_session *const *sessions, uint64_t *cut_to,
                       uint32_t n)
{
    struct spw_kv_loss loss;
    bool any = false;
    while (spw_kv_take_loss(e->kv, &loss))
        for (uint32_t i = 0; i < n; i++)
            if (holds(sessions[i], &loss)) {
                uint64_t before = cut_to[i];
                cut_to[i] = spw_min_u64(before, (uint64_t)loss.tile * SPW_TILE_TOKENS);
                cut_to[i] = spw_kv_reach(sessions[i]->seq.kv, e->plan.residency, cut_to[i]);
                report(e, &loss, before - cut_to[i]);
                if (e->sharing.n_shared)
                    e->sharing.is_old = true;
                any = true;
            }
    return any;
}

void spw_session_hold(struct spw_session *s, uint64_t n)
{
    if (s->cached)
        s->n_tokens = n;
    s->n_attached = spw_min_u64(s->n_attached, n);
    s->has_logits = false;
    s->mixed &= spw_waterline_old_end(s->engine->plan.residency, n) > 1;
}

int spw_recover_cut_back(struct spw_session *s, uint64_t *cut_to)
{
    struct spw_engine *e = s->engine;
    for (int i = 0; i < SPW_RECOVER_TRIES; i++) {
        SPW_TRY(spw_prefetch_forget(e->prefetch));
        SPW_TRY(spw_session_cut(s, e->plan.residency, cut_to));
        spw_session_hold(s, *cut_to);
        int rc = spw_residency_apply(&e->executor->residency, &s->seq, *cut_to);
        e->unpredicted |= rc != 0;
        if (rc != -EBADMSG)
            return rc;
        if (!lower_cuts(e, &s, cut_to, 1))
            break;
    }
    return -EBADMSG;
}

/* Tiles that the drive still does not take stay where they are: the next sync writes them again. */
static int recover_session(struct spw_session *s, uint64_t *cut_to)
{
    int rc = spw_recover_cut_back(s, cut_to);
    return rc == -EBADMSG || (rc && spw_lane_sync_all(&s->engine->lane)) ? rc : 0;
}

int spw_recover_step(struct spw_engine *e, struct spw_session *const *sessions, uint32_t n)
{
    e->unpredicted = true;
    SPW_TRY(spw_engine_settle(e));   /* a failed write belongs to the failed step */
    for (uint32_t i = 0; i < n; i++) /* less than span.from, if an earlier try has failed */
        e->sharing.n_tokens[i] = spw_session_cached(sessions[i]);
    lower_cuts(e, sessions, e->sharing.n_tokens, n);
    for (uint32_t i = 0; i < n; i++)
        SPW_TRY(recover_session(sessions[i], &e->sharing.n_tokens[i]));
    return 0;
}
